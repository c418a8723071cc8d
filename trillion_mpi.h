/*
 * trillion_mpi.h - the model of trillion.h over MPI ranks: same bits, and never a silent hang.
 *
 * In one source file, after trillion.h's implementation:
 *
 *     #define TRILLION_IMPLEMENTATION
 *     #define TRILLION_MPI_IMPLEMENTATION
 *     #include "trillion_mpi.h"           (includes mpi.h and trillion.h)
 *
 *     tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &opts);
 *     tr_mpi_model_open(m, &model, "DIR", NULL, NULL);
 *     tr_mpi_run_new(m, &run, model, &run_opts);
 *     tr_mpi_forward(run, &batch);        the same batch on every rank
 *     tr_mpi_next(run, ids);              what each sequence says next, known to all
 *
 * LAYOUT   ranks on a grid, tp fastest: rank = ((stage EP + e) CP + c) TP + t
 *
 *            layers 0 .. l         layers l+1 ..
 *          +-----------------+   +-----------------+
 *      e=0 | t=0: heads 0..h |-->| t=0             |    pp   layers: a stage hands on its hidden
 *          | t=1: heads h..  |-->| t=1             |         state
 *          +-----------------+   +-----------------+    ep   sequences are dealt to groups
 *      e=1 | t=0             |-->| t=0             |    cp   a prompt's tokens, in order
 *          | t=1             |-->| t=1             |    tp   rows of matrices, heads
 *          +-----------------+   +-----------------+
 *           experts of a stage: dealt to all of its ranks, whatever their e, c and t
 *
 * WHY NO LAYOUT CAN CHANGE A BIT
 *
 *     Ranks exchange values and never partial sums. Whatever one rank computes is an output of an
 *     operator that another number of ranks would compute in the same way from the same inputs: a
 *     row of a product, a head, an expert's answer for a token, a token's row. Each has its own
 *     sums in trillion.h, whose order does not depend on which others stand beside it. The only
 *     sum over what several ranks computed, that of a token's experts, is taken by the token's
 *     owner in increasing expert index. A chapter below therefore only says who computes which
 *     outputs, and moves values.
 *
 * WHO MUST CALL
 *
 *     (all) all ranks of the communicator, in the same order, with equal arguments unless it says
 *     otherwise. (axis) all ranks of one axis. (here) anybody, no message is sent. What is called
 *     with other arguments, or in another order, is told as an error: each message says what it
 *     belongs to, and its receiver looks.
 *
 * HOW IT ENDS
 *
 *     No wait is without an end. A rank that waits longer than opts.deadline for another returns
 *     TR_ERR_PEER with a sentence: who is late, in which layer and step, how many bytes were
 *     expected and came. Half-way there it tells all others whom it waits for, so that the one at
 *     the end of a chain is named and not the one before it. A rank whose own work fails tells the
 *     others its sentence, and all return TR_ERR_PEER with it. After such an end the tr_mpi is
 *     good for tr_err_last and tr_mpi_free alone; programs print the sentence and call MPI_Abort.
 *     MPI_Init, MPI_Comm_dup in tr_mpi_new and MPI_Finalize are MPI's own waits: a program that
 *     must end there too needs a thread that watches (as the tool has).
 *
 * LICENSE   MIT, as trillion.h.
 */

/* ==== Part one: declarations ================================================================= */

#ifndef TRILLION_MPI_H
#define TRILLION_MPI_H

#include <mpi.h>
#include "trillion.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ============================================================================
 * 1. Ranks {mpi}
 *
 * The caller's communicator, duplicated; one way to wait; one way to fail.
 * ========================================================================= */

typedef struct tr_mpi_layout { int pp, tp, ep, cp; } tr_mpi_layout;     /* 0 counts as 1 */

/* What bytes are sent for. */
#define TR_MPI_KIND_LIST(X)                                                     \
    X(CONTROL,  "control")      /* agreement, checks, lateness */               \
    X(ROWS,     "rows")         /* tp: outputs gathered */                      \
    X(DISPATCH, "dispatch")     /* tokens to the ranks of their experts */      \
    X(COMBINE,  "combine")      /* and their answers */                         \
    X(STAGE,    "stage")        /* pp: hidden state */                          \
    X(CONTEXT,  "context")      /* cp: keys, values, recurrent state */         \
    X(TAP,      "tap")          /* tapped values to rank 0 */
#define TRI_MPI_ENUM(name, text) TR_MPI_##name,
typedef enum tr_mpi_kind { TR_MPI_KIND_LIST(TRI_MPI_ENUM) TR_MPI_KIND_COUNT } tr_mpi_kind;
#undef TRI_MPI_ENUM
/* NULL if k is none. */
TR_API const char *tr_mpi_kind_name(tr_mpi_kind k);

typedef enum tr_mpi_event_kind {
    TR_MPI_EVENT_STEP,          /* begins an operator or an exchange */
    TR_MPI_EVENT_WAIT,          /* begins to wait for peer, if it has to */
    TR_MPI_EVENT_DONE,          /* what it waited for is complete */
    TR_MPI_EVENT_FAIL,          /* text: the sentence */
    TR_MPI_EVENT_END            /* tr_mpi_free, in order */
} tr_mpi_event_kind;

typedef struct tr_mpi_event {
    tr_mpi_event_kind kind;
    int         layer;          /* -1: outside the layers */
    int         peer;           /* -1: none */
    uint64_t    expected, arrived;      /* bytes of a wait */
    const char *text;           /* step, or sentence; valid during the call */
} tr_mpi_event;
/* Called on the thread that calls the library; must be quick and call nothing of it. */
typedef void (*tr_mpi_event_fn)(void *user, const tr_mpi_event *e);

typedef struct tr_mpi_opts {
    tr_mpi_layout layout;
    double  deadline;           /* seconds, required: the longest wait for another rank */
    size_t  segment;            /* bytes of one MPI message at most; 0: 64 MB */
    const char *identity;       /* what must be the same on all ranks, or NULL: the binary's hash */
    tr_mpi_event_fn event;  void *event_user;       /* NULL: nobody looks */
} tr_mpi_opts;

typedef struct tr_mpi tr_mpi;

/* (all) Duplicates comm, which stays the caller's; MPI must be initialised, and its calls come from
 * one thread. ctx belongs to m until tr_mpi_free. opts may differ between ranks in event alone.
 *   TR_ERR_ARG     the layout does not make as many ranks as comm has; deadline is not above 0
 *   TR_ERR_PEER    a rank with another version, contract, identity or other opts, named
 * On failure *out is NULL. */
TR_API tr_status tr_mpi_new(tr_ctx *ctx, tr_mpi **out, MPI_Comm comm, const tr_mpi_opts *opts);
/* (here) After everything that was made with m. NULL is allowed. Messages still under way are given
 * up after a second. */
TR_API void      tr_mpi_free(tr_mpi *m);
TR_API tr_ctx   *tr_mpi_ctx (const tr_mpi *m);
TR_API int       tr_mpi_rank(const tr_mpi *m);      /* (here), as are the next */
TR_API int       tr_mpi_size(const tr_mpi *m);

/* (all) s is how this rank did. Gives TR_OK if all did well; else every rank gets the status and
 * the sentence of the first that did not, which is named. Leaves m usable. */
TR_API tr_status tr_mpi_agree(tr_mpi *m, tr_status s);
/* (all) Is text the same on all ranks? Else TR_ERR_PEER names what, and the rank that differs from
 * rank 0. */
TR_API tr_status tr_mpi_same(tr_mpi *m, const char *what, const char *text);
/* (here) Tells the others that this rank fails; returns s. Later calls of m fail at once. */
TR_API tr_status tr_mpi_raise(tr_mpi *m, tr_status s);
/* (here) For work outside of this library that takes longer than the deadline, while others wait:
 * they begin to count anew. Call it now and then. */
TR_API void      tr_mpi_alive(tr_mpi *m);

typedef struct tr_mpi_count {
    uint64_t messages, bytes;   /* sent */
    double   waited;            /* seconds in which nothing else was done */
} tr_mpi_count;
TR_API tr_mpi_count tr_mpi_counted(const tr_mpi *m, tr_mpi_kind k);     /* (here) since m is */

/* ============================================================================
 * 2. The grid {grid}
 *
 * Five sets of ranks that a rank belongs to, each an arithmetic progression: its place on the four
 * axes, and its stage, the ranks that share its layers.
 * ========================================================================= */

typedef enum tr_mpi_axis { TR_MPI_TP, TR_MPI_CP, TR_MPI_EP, TR_MPI_PP, TR_MPI_IN_STAGE, TR_MPI_ALL,
                           TR_MPI_AXIS_COUNT } tr_mpi_axis;

typedef struct tr_mpi_group {
    int n, me;                  /* ranks; this rank's place among them */
    int first, step;            /* member i is rank first + i step */
} tr_mpi_group;
TR_API tr_mpi_group tr_mpi_group_of(const tr_mpi *m, tr_mpi_axis axis);     /* (here) */
/* "pp=2,tp=1,ep=4,cp=1" or part of it, in any order, each once: TR_ERR_ARG otherwise. Absent is 1,
 * all four absent is ep = ranks. TR_ERR_ARG unless their product is `ranks`. */
TR_API tr_status tr_mpi_layout_parse(tr_ctx *ctx, tr_mpi_layout *out, const char *text, int ranks);
TR_API const char *tr_mpi_layout_str(tr_mpi_layout l, char buf[64]);

/* ============================================================================
 * 3. Messages {xfer}
 *
 * Bytes from rank to rank, 64-bit counts in segments, nothing that blocks. The only chapter that
 * calls MPI to move data.
 * ========================================================================= */

typedef struct tr_mpi_part {    /* what one peer gets, or gives */
    int      peer;              /* rank; this rank itself is allowed */
    void    *data;
    uint64_t bytes;             /* known on both sides; 0 sends nothing */
} tr_mpi_part;

/* (both sides of each part) Sends and receives at the same time; returns when all is done. Parts
 * between the same two ranks match in order. TR_ERR_PEER: a peer is late, or sends for another
 * step, layer or size. */
TR_API tr_status tr_mpi_exchange(tr_mpi *m, tr_mpi_kind kind, const char *step,
                                 const tr_mpi_part *send, int n_send,
                                 const tr_mpi_part *recv, int n_recv);
/* (axis) data [bytes] of the member `root` to all. */
TR_API tr_status tr_mpi_bcast(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step,
                              int root, void *data, uint64_t bytes);
/* (axis) Dimension dim of x is dealt to the members in `units` equal pieces (tr_range_of); each has
 * its own and gets all. units divides the extent. */
TR_API tr_status tr_mpi_gather(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step,
                               tr_view x, int dim, int64_t units);

/* ============================================================================
 * 4. Experts {ep}
 *
 * Who holds which expert. Every rank of a stage is a place; a token goes to one place for each of
 * its experts, and comes back.
 * ========================================================================= */

typedef struct tr_mpi_map {
    int64_t layers, experts;    /* of the model */
    int     places;             /* ranks of a stage */
    unsigned char *held;        /* [places, layers, experts] 1: held there; owned */
} tr_mpi_map;

/* (here) even: expert e at place e places / experts, so that neighbours share a place.
 * by_load: the heaviest expert first, to the place with the least load that has room; then `spare`
 *   more of the hottest experts at each place, where they are not held. load [layers, experts],
 *   tokens counted; an expert of load 0 counts as one token.
 * read: JSON, {"places": S, "layers": {"1": [[0, 1], [2, 3]], ..}}: of a layer, the experts of each
 *   place; "*" stands for all layers that are not named.
 * check: every expert of every layer with experts somewhere, none twice in a list, all below E.
 * On failure *out is empty, which may be freed. */
TR_API tr_status tr_mpi_map_even   (tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places);
TR_API tr_status tr_mpi_map_by_load(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                                    const int64_t *load, int spare);
TR_API tr_status tr_mpi_map_read   (tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                                    const char *path);
TR_API tr_status tr_mpi_map_check  (tr_ctx *ctx, const tr_mpi_map *map, const tr_config *c);
TR_API void      tr_mpi_map_free   (tr_ctx *ctx, tr_mpi_map *map);

/* ============================================================================
 * 5. The model over ranks {load}
 *
 * Each rank opens the layers of its stage, its rows of every matrix, its experts.
 * ========================================================================= */

typedef struct tr_mpi_model tr_mpi_model;

/* (all) opts may be NULL; its first, layers, part, parts and held are not looked at. map NULL: even.
 * Ranks agree that they see the same config, the same headers and the same sample of the weights;
 * any rank's failure is every rank's. On failure *out is NULL. */
TR_API tr_status tr_mpi_model_open (tr_mpi *m, tr_mpi_model **out, const char *dir,
                                    const tr_model_opts *opts, const tr_mpi_map *map);
TR_API void      tr_mpi_model_close(tr_mpi_model *mm);              /* (here) NULL is allowed */
TR_API tr_model *tr_mpi_model_part (const tr_mpi_model *mm);        /* (here) this rank's part */
/* (here) Layers of a stage: [begin, end). */
TR_API tr_range  tr_mpi_stage_layers(const tr_mpi_model *mm, int stage);

/* ============================================================================
 * 6. Running {mrun}
 *
 * Every rank sees all prompts and computes its part of them.
 * ========================================================================= */

typedef struct tr_mpi_run tr_mpi_run;

/* (all) opts as for one rank, sizes of the whole: B sequences, max_tokens a call. opts.ops NULL.
 * opts.tap is called on rank 0 alone, after a forward, in model order, with sequences numbered as
 * in the batch; what it gets is one sequence at a time. globs must be the same on all ranks.
 * TR_ERR_ARG as tr_run_new, or for less layers than stages. On failure *out is NULL. */
TR_API tr_status tr_mpi_run_new (tr_mpi *m, tr_mpi_run **out, tr_mpi_model *mm,
                                 const tr_run_opts *opts);
TR_API void      tr_mpi_run_free(tr_mpi_run *r);                    /* (here) NULL is allowed */
/* (all) As tr_vit_forward with the prompts and images of all sequences; b NULL: the tower alone. */
TR_API tr_status tr_mpi_see    (tr_mpi_run *r, const tr_images *im, const tr_batch *b);
/* (all) As tr_forward, b the same on all ranks. */
TR_API tr_status tr_mpi_forward(tr_mpi_run *r, const tr_batch *b);
/* (all) The largest logit of each sequence that had tokens in the last forward, id [B], of others as
 * it was; ties to the lower index. TR_ERR_NOT_FINITE names the sequence. Needs TR_LOGITS_LAST. */
TR_API tr_status tr_mpi_next   (tr_mpi_run *r, int32_t *id);
/* (all) State of all sequences to the tap, as tr_tap_state. */
TR_API tr_status tr_mpi_tap_state(tr_mpi_run *r);
TR_API tr_run   *tr_mpi_run_part(const tr_mpi_run *r);              /* (here) this rank's */

#ifdef __cplusplus
}
#endif

#endif /* TRILLION_MPI_H */
