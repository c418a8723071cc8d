/*
 * trillion_mpi.h - the model of trillion.h over MPI ranks: same bits, and never a silent hang.
 *
 * In one source file:
 *
 *     #define TRILLION_IMPLEMENTATION
 *     #define TRILLION_MPI_IMPLEMENTATION
 *     #include "trillion_mpi.h"           (includes mpi.h and trillion.h)
 *
 *     tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &opts);
 *     tr_mpi_model_open(m, &model, "DIR", NULL, NULL);
 *     tr_mpi_run_new(m, &run, model, &run_opts);
 *     tr_mpi_forward(run, &batch, NULL);  the same batch on every rank
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
 * CHAPTERS   (greppable by their tags; 5 and 7 to 10 have no functions of their own to call)
 *
 *      1 {mpi}     waiting, failing, agreeing          7 {rows}    values that ranks have in part
 *      2 {grid}    pp, tp, ep, cp on ranks             8 {cp}      a prompt's tokens over ranks
 *      3 {xfer}    bytes from rank to rank             9 {ep}      tokens to experts and back
 *      4 {map}     who holds which expert             10 {mops}    the table around the local one
 *      5 {fetch}   experts that come to tokens        11 {mrun}    prompts, stages, taps
 *      6 {load}    each rank opens its part
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
 *     MPI_Init, MPI_Finalize and MPI_Comm_dup in tr_mpi_new are MPI's own waits, and with a model
 *     that fetches its windows, made and freed, and the first read from each rank: a program that
 *     must end there too needs a thread that watches (as the tool has); events say when such a call
 *     of a model begins.
 *
 * LICENSE   MIT, at the end of the file.
 */

/* ==== Part one: declarations ================================================================= */

#ifndef TRILLION_MPI_H
#define TRILLION_MPI_H

#ifdef __cplusplus                  /* the C interface alone: MPI-3 took the classes out */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#endif
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
    X(FETCH,    "fetch")        /* experts to the ranks of tokens */            \
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
    TR_MPI_EVENT_FAIL,          /* text: the sentence; peer: who told it, -1 if this rank did */
    TR_MPI_EVENT_END,           /* tr_mpi_free, in order */
    TR_MPI_EVENT_HALF           /* half of the deadline is gone, peer does not come, and no lower
                                   rank that waits has told so */
} tr_mpi_event_kind;

typedef enum tr_mpi_cause {
    TR_MPI_CAUSE_OWN,           /* what the rank was given, or its own work */
    TR_MPI_CAUSE_UNLIKE,        /* it has or does something else than another, which is named too */
    TR_MPI_CAUSE_LATE,          /* another waited for it in vain */
    TR_MPI_CAUSE_DEADLOCK,      /* it waits, perhaps through others, for itself */
    TR_MPI_CAUSE_MPI            /* MPI gave it an error, perhaps because another is lost */
} tr_mpi_cause;

typedef struct tr_mpi_event {
    tr_mpi_event_kind kind;
    int         layer;          /* -1: outside the layers */
    int         peer;           /* -1: none */
    int         blocks;         /* a call of MPI begins that waits by itself, to the next event */
    int         rank;           /* of a failure: whose it is, whoever tells it; else -1 */
    tr_mpi_cause cause;         /* of a failure */
    uint64_t    expected, arrived;      /* bytes of a wait */
    const char *text;           /* step, or sentence; valid during the call */
} tr_mpi_event;
/* Called on the thread that calls the library; must be quick and call nothing of it. */
typedef void (*tr_mpi_event_fn)(void *user, const tr_mpi_event *e);

typedef struct tr_mpi_opts {
    tr_mpi_layout layout;
    double  deadline;           /* seconds, required: the longest wait for another rank */
    size_t  segment;            /* bytes of one MPI message at most; 0: 64 MB */
    const char *identity;       /* the same on all ranks, as a hash of the program; or NULL */
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
 * the sentence of the first that did not, which is named, and an event. Leaves m usable. */
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
    uint64_t messages, bytes;   /* sent; of TR_MPI_FETCH: experts, and their bytes */
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
/* (all) data [bytes] of each rank to rank 0, one after another into all [size, bytes]; all is not
 * looked at on other ranks. */
TR_API tr_status tr_mpi_collect(tr_mpi *m, tr_mpi_kind kind, const char *step, void *data,
                                void *all, uint64_t bytes);
/* (axis) data [bytes] of the member `root` to all. */
TR_API tr_status tr_mpi_bcast(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step,
                              int root, void *data, uint64_t bytes);
/* (axis) Dimension dim of x is dealt to the members in `units` equal pieces (tr_range_of); each has
 * its own and gets all. units divides the extent. */
TR_API tr_status tr_mpi_gather(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step,
                               tr_view x, int dim, int64_t units);

/* ============================================================================
 * 4. Maps of experts {map}
 *
 * Who holds which expert. Every rank of a stage is a place; a token goes to one place for each of
 * its experts, and comes back; or an expert that many tokens want comes to them.
 * ========================================================================= */

typedef struct tr_mpi_map {
    int64_t layers, experts;    /* of the model */
    int     places;             /* ranks of a stage */
    unsigned char *held;        /* [places, layers, experts] 1: held there; owned */
    int64_t fetch;              /* tokens of a rank and call from which on an expert that it does
                                   not hold is fetched for them; 0: never */
    int64_t keep;               /* fetched experts that a rank keeps, of all layers; at least 1 */
} tr_mpi_map;

/* (here) even: expert e at place e places / experts, so that neighbours share a place.
 * by_load: the heaviest expert first, to the place with the least load that has room; then `spare`
 *   more of the hottest experts at each place, where they are not held. load [layers, experts],
 *   tokens counted; an expert of load 0 counts as one token.
 * read: JSON, {"places": S, "layers": {"1": [[0, 1], [2, 3]], ..}}: of a layer, the experts of each
 *   place; "*" stands for all layers that are not named.
 * check: every expert of every layer with experts somewhere, none twice in a list, all below E;
 *   TR_ERR_ARG if what is fetched cannot be kept.
 * Maps are made with fetch 0: set it before the model is opened. On failure *out is empty, which
 * may be freed. */
TR_API tr_status tr_mpi_map_even   (tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places);
TR_API tr_status tr_mpi_map_by_load(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                                    const int64_t *load, int spare);
TR_API tr_status tr_mpi_map_read   (tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                                    const char *path);
TR_API tr_status tr_mpi_map_check  (tr_ctx *ctx, const tr_mpi_map *map, const tr_config *c);
TR_API void      tr_mpi_map_free   (tr_ctx *ctx, tr_mpi_map *map);

/* ============================================================================
 * 6. The model over ranks {load}
 *
 * Each rank opens the layers of its stage, its rows of every matrix, its experts.
 * ========================================================================= */

typedef struct tr_mpi_model tr_mpi_model;

/* (all) opts may be NULL; its first and layers say what all stages open together, its part, parts
 * and held are not looked at. map NULL: even; it is of all layers of the model, opened or not.
 * Ranks agree that they open the same layers and see the same config, the same headers and the same
 * sample of the weights; any rank's failure is every rank's. On failure *out is NULL.
 *   TR_ERR_RANGE   as tr_model_opts_layers
 *   TR_ERR_ARG     less layers than stages; a map of other places */
TR_API tr_status tr_mpi_model_open (tr_mpi *m, tr_mpi_model **out, const char *dir,
                                    const tr_model_opts *opts, const tr_mpi_map *map);
/* (here), or (all) if its map fetches: others may still read here. NULL is allowed. */
TR_API void      tr_mpi_model_close(tr_mpi_model *mm);
TR_API tr_model *tr_mpi_model_part (const tr_mpi_model *mm);        /* (here) this rank's part */
/* (here) Layers of a stage, [begin, end); of all stages together from that of the first to that of
 * the last. */
TR_API tr_range  tr_mpi_stage_layers(const tr_mpi_model *mm, int stage);

/* ============================================================================
 * 11. Running {mrun}
 *
 * Every rank sees all prompts and computes its part of them.
 * ========================================================================= */

typedef struct tr_mpi_run tr_mpi_run;

/* (all) opts as for one rank, sizes of the whole: B sequences, max_tokens a call. opts.ops NULL.
 * opts.tap is called on rank 0 alone, after a forward, in model order, with sequences numbered as
 * in the batch; what it gets is one sequence at a time. globs must be the same on all ranks.
 * TR_ERR_ARG as tr_run_new. On failure *out is NULL. */
TR_API tr_status tr_mpi_run_new (tr_mpi *m, tr_mpi_run **out, tr_mpi_model *mm,
                                 const tr_run_opts *opts);
TR_API void      tr_mpi_run_free(tr_mpi_run *r);                    /* (here) NULL is allowed */
/* (all) As tr_vit_forward with the prompts and images of all sequences; b NULL: the tower alone. */
TR_API tr_status tr_mpi_see    (tr_mpi_run *r, const tr_images *im, const tr_batch *b);
/* (all) As tr_forward; b and in, of all sequences and all their tokens, the same on all ranks. The
 * hidden state left behind is dealt as the tokens are: in tr_mpi_run_part each rank's rows. */
TR_API tr_status tr_mpi_forward(tr_mpi_run *r, const tr_batch *b, const tr_hidden *in);
/* (all) id [B]: the largest logit of each sequence that had tokens in the last forward, of others
 * what it was; ties to the lower index. TR_ERR_NOT_FINITE names the sequence and the token that it
 * would have chosen. TR_ERR_ARG unless the run has TR_LOGITS_LAST and the model its last layer. */
TR_API tr_status tr_mpi_next   (tr_mpi_run *r, int32_t *id);
/* (all) State of all sequences to the tap, as tr_tap_state. */
TR_API tr_status tr_mpi_tap_state(tr_mpi_run *r);
/* (here) This rank's, to look at: all ranks count on what its state holds. */
TR_API tr_run   *tr_mpi_run_part(const tr_mpi_run *r);

#ifdef __cplusplus
}
#endif

#endif /* TRILLION_MPI_H */

/* ==== Part two: implementation. Readers of the interface may stop here. ====================== */

#if defined(TRILLION_MPI_IMPLEMENTATION) && !defined(TRILLION_MPI_IMPLEMENTED)
#define TRILLION_MPI_IMPLEMENTED

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TRI_MPI_TRY(call)                                   \
    do {                                                    \
        tr_status tri_s_ = (call);                          \
        if (tri_s_ != TR_OK) return tri_s_;                 \
    } while (0)

/* ============================================================================
 * 1. Ranks {mpi}
 *
 * A message between two ranks has a head: what it belongs to, and how long it is; short data rides
 * in the head, longer data follows in segments. Both sides number the messages of a pair, and the
 * number is the tag, so that what is posted first is matched first whatever is done in between.
 *
 *     wait:   until all are complete: let MPI move what it can; look for alarms;
 *             half of the deadline gone: tell all whom we wait for; all of it: somebody is late
 *
 * Alarms have a tag of their own. FAIL says whose failure it is, its cause and a sentence, and ends
 * the receiver too. WAITS says for whom its sender waits: the late one is at the end of the chain.
 * ALIVE starts clocks anew.
 *
 * Traps. A send is complete when its memory may be used again, not when it was received. Ranks that
 * share cores must not spin: a waiter sleeps between looks. An error that MPI itself finds ends in
 * a status only if the communicator's error handler is MPI_ERRORS_RETURN.
 * ========================================================================= */

enum {
    TRI_MPI_HEAD = 4096,                    /* bytes of a head with what rides in it */
    TRI_MPI_TAGS = 32000,                   /* MPI promises 32767 */
    TRI_MPI_ALARM = 32001,                  /* the tag of alarms */
    TRI_MPI_TEXT = 512, TRI_MPI_STEP = 24   /* bytes of a sentence, of a step's name, with the 0 */
};

typedef struct tri_mpi_head {
    uint64_t bytes, call;
    int32_t  layer, kind;
    char     step[TRI_MPI_STEP];
} tri_mpi_head;

#define TRI_MPI_INLINE (TRI_MPI_HEAD - sizeof(tri_mpi_head))

typedef enum tri_mpi_alarm_kind { TRI_MPI_FAIL, TRI_MPI_WAITS, TRI_MPI_ALIVE } tri_mpi_alarm_kind;

/* Also what tri_mpi_agree collects: a status and its sentence. */
typedef struct tri_mpi_alarm {
    int32_t kind, status;                   /* status: of an agreement alone */
    int32_t rank, cause;                    /* whose failure, tr_mpi_cause; who is waited for */
    char    text[TRI_MPI_TEXT];             /* sentence; step */
} tri_mpi_alarm;

/* What this rank knows of another one. */
typedef struct tri_mpi_peer {
    uint32_t sent, got;                     /* messages begun with it */
    int32_t  waits;                         /* whom it said to wait for; -1 nobody */
    double   heard;                         /* when it last said that it is alive */
    int      layer;  char step[TRI_MPI_STEP];       /* of its last message; step "": none yet */
    tri_mpi_alarm alarm[2];  MPI_Request alarm_req[2];  /* to it, on their way; 1: FAIL */
} tri_mpi_peer;

/* One message under way, or memory of the peer that is being read. */
typedef struct tri_mpi_msg {
    int      peer, tag, sends, finished;
    int      begun;                         /* 0: nothing; 1: the head; 2: the data */
    MPI_Win  window;  MPI_Aint there;       /* read from there; MPI_WIN_NULL: a message */
    uint64_t bytes, done;                   /* of its data */
    unsigned char *data;
    int      layer;  tr_mpi_kind kind;  uint64_t call;  char step[TRI_MPI_STEP];
    MPI_Request req;
    unsigned char head[TRI_MPI_HEAD];
} tri_mpi_msg;

/* A value of which this rank has computed its share of dimension dim. */
typedef struct tri_mpi_note {
    tr_view x;                              /* as if whole */
    int     dim;
    int64_t units;                          /* equal pieces of it, dealt to the tp ranks */
} tri_mpi_note;

/* Scratch by what it holds; A, B, C serve one function at a time, whatever it needs. */
typedef enum tri_mpi_buf_id {
    TRI_MPI_BUF_ROOT, TRI_MPI_BUF_WAITED, TRI_MPI_BUF_SHARES, TRI_MPI_BUF_PACKED,
    TRI_MPI_BUF_A, TRI_MPI_BUF_B, TRI_MPI_BUF_C, TRI_MPI_BUF_LISTS,
    TRI_MPI_BUF_GATES, TRI_MPI_BUF_UPS, TRI_MPI_BUF_OUT_PAIRS, TRI_MPI_BUF_IN_PAIRS,
    TRI_MPI_BUF_SLOTS, TRI_MPI_BUF_OUT_ROWS, TRI_MPI_BUF_IN_ROWS, TRI_MPI_BUF_ANSWERS,
    TRI_MPI_BUF_FETCHED, TRI_MPI_BUF_COUNT
} tri_mpi_buf_id;

typedef struct tri_mpi_buf { void *p; size_t cap; } tri_mpi_buf;

struct tr_mpi {
    tr_ctx  *ctx;
    MPI_Comm comm;
    int      rank, size, failed;
    tr_mpi_opts opts;                       /* sides of the layout and segment at least 1 */
    tr_mpi_count count[TR_MPI_KIND_COUNT];
    tri_mpi_peer *peer;                     /* [size] */
    int       layer;                        /* where this rank is, for heads and sentences */
    tri_mpi_msg **msg;  int msgs, msg_cap;  /* pool; [0, msgs) in use */
    tri_mpi_note *note;  int notes, note_cap;       /* values in part */
    uint64_t  call;                         /* checksum of the batches run so far */
    tri_mpi_buf buf[TRI_MPI_BUF_COUNT];     /* grown as needed, used again */
};

#define TRI_MPI_NAME(name, text) text,
static const char *const tri_mpi_kinds[] = { TR_MPI_KIND_LIST(TRI_MPI_NAME) };
#undef TRI_MPI_NAME

const char *tr_mpi_kind_name(tr_mpi_kind k)
{
    return k >= 0 && k < TR_MPI_KIND_COUNT ? tri_mpi_kinds[k] : NULL;
}

tr_ctx *tr_mpi_ctx(const tr_mpi *m) { return m->ctx; }
int tr_mpi_rank(const tr_mpi *m) { return m->rank; }
int tr_mpi_size(const tr_mpi *m) { return m->size; }
tr_mpi_count tr_mpi_counted(const tr_mpi *m, tr_mpi_kind k) { return m->count[k]; }

static tr_mpi_event tri_mpi_event_of(const tr_mpi *m, tr_mpi_event_kind kind, const char *text,
                                     int peer)
{
    tr_mpi_event e;
    memset(&e, 0, sizeof e);
    e.kind = kind;
    e.layer = m->layer;
    e.peer = peer;
    e.rank = -1;
    e.cause = TR_MPI_CAUSE_OWN;
    e.text = text;
    return e;
}

static void tri_mpi_emit(const tr_mpi *m, const tr_mpi_event *e)
{
    if (m->opts.event) m->opts.event(m->opts.event_user, e);
}

static void tri_mpi_event(tr_mpi *m, tr_mpi_event_kind kind, const char *text, int peer,
                          uint64_t expected, uint64_t arrived)
{
    tr_mpi_event e = tri_mpi_event_of(m, kind, text, peer);
    e.expected = expected;
    e.arrived = arrived;
    tri_mpi_emit(m, &e);
}

/* A call of MPI that waits as long as it takes begins, perhaps for one rank; the next event ends
 * it. */
static void tri_mpi_blocks(tr_mpi *m, const char *call, int peer, uint64_t bytes)
{
    tr_mpi_event e = tri_mpi_event_of(m, TR_MPI_EVENT_WAIT, call, peer);
    e.blocks = 1;
    e.expected = bytes;
    tri_mpi_emit(m, &e);
}

/* The context's sentence; by: who told it, -1 if this rank did. */
static void tri_mpi_event_fail(tr_mpi *m, int by, int rank, tr_mpi_cause cause)
{
    tr_mpi_event e = tri_mpi_event_of(m, TR_MPI_EVENT_FAIL, tr_err_last(m->ctx), by);
    e.rank = rank;
    e.cause = cause;
    tri_mpi_emit(m, &e);
}

/* At least n bytes; what b held is lost. No memory is a failure that all are told of. */
static tr_status tri_mpi_room(tr_mpi *m, tri_mpi_buf *b, size_t n, void **out)
{
    *out = NULL;
    if (n > b->cap) {
        size_t cap = n + n / 4;
        tr_status s;
        tr_free(m->ctx, b->p);
        b->cap = 0;
        s = tr_alloc(m->ctx, &b->p, cap);
        if (s != TR_OK) return tr_mpi_raise(m, s);
        b->cap = cap;
    }
    *out = b->p;
    return TR_OK;
}

static tr_status tri_mpi_scratch(tr_mpi *m, tri_mpi_buf_id id, size_t n, void **out)
{
    return tri_mpi_room(m, &m->buf[id], n, out);
}

static void tri_mpi_sleep(void)
{
#if defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 199309L
    struct timespec t = { 0, 20000 };
    nanosleep(&t, NULL);
#endif
}

/* ---- alarms --------------------------------------------------------------- */

/* Hands an alarm to everybody else, without waiting. It is left out where the one before is still
 * on its way, as to a rank that takes nothing in; a FAIL has a place of its own. */
static void tri_mpi_tell(tr_mpi *m, tri_mpi_alarm_kind kind, int rank, tr_mpi_cause cause,
                         const char *text)
{
    for (int p = 0; p < m->size; p++) {
        int i = kind == TRI_MPI_FAIL, sent = 1;
        tri_mpi_alarm *a = &m->peer[p].alarm[i];
        MPI_Request *req = &m->peer[p].alarm_req[i];
        if (p == m->rank) continue;
        MPI_Test(req, &sent, MPI_STATUS_IGNORE);
        if (!sent) continue;
        memset(a, 0, sizeof *a);
        a->kind = (int32_t)kind;
        a->rank = rank;
        a->cause = (int32_t)cause;
        snprintf(a->text, sizeof a->text, "%.*s", TRI_MPI_TEXT - 1, text);
        MPI_Isend(a, (int)sizeof *a, MPI_BYTE, p, TRI_MPI_ALARM, m->comm, req);
    }
}

/* The first failure of m, with the context's sentence: of this rank, or found by it in another. */
static tr_status tri_mpi_fail(tr_mpi *m, tr_status s, int rank, tr_mpi_cause cause)
{
    if (s == TR_OK || m->failed) return s;
    m->failed = 1;
    tri_mpi_event_fail(m, -1, rank, cause);
    tri_mpi_tell(m, TRI_MPI_FAIL, rank, cause, tr_err_last(m->ctx));
    return s;
}

tr_status tr_mpi_raise(tr_mpi *m, tr_status s)
{
    return tri_mpi_fail(m, s, m->rank, TR_MPI_CAUSE_OWN);
}

/* What MPI itself says of an error. */
static tr_status tri_mpi_check(tr_mpi *m, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return TR_OK;
    MPI_Error_string(code, text, &n);
    return tri_mpi_fail(m, tr_fail(m->ctx, TR_ERR_PEER, "%s: MPI says: %.*s", what, n, text),
                        m->rank, TR_MPI_CAUSE_MPI);
}

void tr_mpi_alive(tr_mpi *m)
{
    if (!m->failed) tri_mpi_tell(m, TRI_MPI_ALIVE, -1, TR_MPI_CAUSE_OWN, "");
}

/* The sentence of a failure that another rank, by, tells. One that calls ranks late or unlike has
 * their numbers in it; all others are of who says them, whose number is put before. */
static tr_status tri_mpi_heard(tr_mpi *m, tr_status s, int by, tri_mpi_alarm *a)
{
    const tr_mpi_cause cause = (tr_mpi_cause)a->cause;
    a->text[TRI_MPI_TEXT - 1] = 0;
    if (cause == TR_MPI_CAUSE_LATE || cause == TR_MPI_CAUSE_UNLIKE)
        (void)tr_fail(m->ctx, s, "%s", a->text);
    else (void)tr_fail(m->ctx, s, "rank %d: %s", a->rank, a->text);
    tri_mpi_event_fail(m, by, a->rank, cause);
    return s;
}

/* Takes in what others have to say. */
static tr_status tri_mpi_listen(tr_mpi *m)
{
    for (;;) {
        tri_mpi_alarm a;
        MPI_Status st;
        int there = 0;
        TRI_MPI_TRY(tri_mpi_check(m, MPI_Iprobe(MPI_ANY_SOURCE, TRI_MPI_ALARM, m->comm, &there,
                                                &st), "looking for alarms"));
        if (!there) return TR_OK;
        TRI_MPI_TRY(tri_mpi_check(m, MPI_Recv(&a, (int)sizeof a, MPI_BYTE, st.MPI_SOURCE,
                                              TRI_MPI_ALARM, m->comm, MPI_STATUS_IGNORE),
                                  "taking an alarm"));
        if (a.kind == TRI_MPI_WAITS) m->peer[st.MPI_SOURCE].waits = a.rank;
        if (a.kind == TRI_MPI_ALIVE) {
            m->peer[st.MPI_SOURCE].heard = MPI_Wtime();
            m->peer[st.MPI_SOURCE].waits = -1;
        }
        if (a.kind != TRI_MPI_FAIL) continue;
        m->failed = 1;
        return tri_mpi_heard(m, TR_ERR_PEER, st.MPI_SOURCE, &a);
    }
}

/* ---- one message ---------------------------------------------------------- */

/* A message out of the pool, about nothing yet. */
static tr_status tri_mpi_new_msg(tr_mpi *m, tr_mpi_kind kind, const char *step,
                                 const tr_mpi_part *p, tri_mpi_msg **out)
{
    tri_mpi_msg *x;
    *out = NULL;
    if (m->failed) return TR_ERR_PEER;
    if (m->msgs == m->msg_cap) {
        void *list, *one;
        int cap = m->msg_cap + 16;
        TRI_MPI_TRY(tr_alloc(m->ctx, &list, (size_t)cap * sizeof *m->msg));
        if (m->msg) memcpy(list, m->msg, (size_t)m->msg_cap * sizeof *m->msg);
        tr_free(m->ctx, m->msg);
        m->msg = (tri_mpi_msg **)list;
        while (m->msg_cap < cap) {
            TRI_MPI_TRY(tr_alloc(m->ctx, &one, sizeof **m->msg));
            m->msg[m->msg_cap++] = (tri_mpi_msg *)one;
        }
    }
    x = m->msg[m->msgs++];
    x->peer = p->peer;
    x->tag = x->sends = x->finished = x->begun = 0;
    x->window = MPI_WIN_NULL;
    x->bytes = p->bytes;
    x->done = 0;
    x->data = (unsigned char *)p->data;
    x->layer = m->layer;
    x->kind = kind;
    x->call = m->call;
    snprintf(x->step, sizeof x->step, "%s", step);
    x->req = MPI_REQUEST_NULL;
    *out = x;
    return TR_OK;
}

static tr_status tri_mpi_post(tr_mpi *m, int sends, tr_mpi_kind kind, const char *step,
                              const tr_mpi_part *p, tri_mpi_msg **out)
{
    uint32_t *n = sends ? &m->peer[p->peer].sent : &m->peer[p->peer].got;
    TRI_MPI_TRY(tri_mpi_new_msg(m, kind, step, p, out));
    (*out)->tag = (int)((*n)++ % TRI_MPI_TAGS);
    (*out)->sends = sends;
    if (sends) {
        m->count[kind].messages++;
        m->count[kind].bytes += p->bytes;
    }
    return TR_OK;
}

/* Reads what lies at address `there` of the peer, which does nothing for it. */
static tr_status tri_mpi_post_get(tr_mpi *m, tr_mpi_kind kind, const char *step,
                                  const tr_mpi_part *p, MPI_Win window, MPI_Aint there,
                                  tri_mpi_msg **out)
{
    TRI_MPI_TRY(tri_mpi_new_msg(m, kind, step, p, out));
    (*out)->window = window;
    (*out)->there = there;
    (*out)->begun = 2;                      /* no head goes before it */
    return TR_OK;
}

static void tri_mpi_drop(tr_mpi *m, tri_mpi_msg *x)     /* back to the pool */
{
    for (int i = 0; i < m->msgs; i++)
        if (m->msg[i] == x) {
            m->msg[i] = m->msg[--m->msgs];
            m->msg[m->msgs] = x;
            return;
        }
}

static const char *tri_mpi_at(int layer, const char *step, char buf[64])
{
    if (layer < 0) snprintf(buf, 64, "%s", step);
    else snprintf(buf, 64, "layer %d, %s", layer, step);
    return buf;
}

/* Does the head that came belong to the message that is waited for? */
static tr_status tri_mpi_head_check(tr_mpi *m, const tri_mpi_msg *x)
{
    tri_mpi_head h;
    char a[64], b[64];
    tr_status s = TR_OK;
    memcpy(&h, x->head, sizeof h);
    h.step[TRI_MPI_STEP - 1] = 0;
    if (h.layer != x->layer || h.kind != (int32_t)x->kind || strcmp(h.step, x->step))
        s = tr_fail(m->ctx, TR_ERR_PEER, "rank %d is in %s while rank %d is in %s: they took "
                    "different branches", x->peer, tri_mpi_at(h.layer, h.step, a), m->rank,
                    tri_mpi_at(x->layer, x->step, b));
    else if (h.call != x->call)
        s = tr_fail(m->ctx, TR_ERR_PEER, "%s: rank %d and rank %d run other batches of tokens or "
                    "hidden states: all ranks must be given the same",
                    tri_mpi_at(x->layer, x->step, b), x->peer, m->rank);
    else if (h.bytes != x->bytes)
        s = tr_fail(m->ctx, TR_ERR_PEER, "%s: rank %d sends %llu bytes, rank %d expects %llu",
                    tri_mpi_at(x->layer, x->step, b), x->peer, (unsigned long long)h.bytes,
                    m->rank, (unsigned long long)x->bytes);
    m->peer[x->peer].layer = h.layer;
    memcpy(m->peer[x->peer].step, h.step, sizeof h.step);
    return tri_mpi_fail(m, s, m->rank, TR_MPI_CAUSE_UNLIKE);
}

/* Begins the next piece of the message: its head, or the next segment of its data. */
static tr_status tri_mpi_begin(tr_mpi *m, tri_mpi_msg *x)
{
    int code;
    size_t n = sizeof(tri_mpi_head);
    if (!x->begun) {
        if (x->sends) {
            tri_mpi_head h;
            memset(&h, 0, sizeof h);
            h.bytes = x->bytes;
            h.layer = x->layer;
            h.kind = (int32_t)x->kind;
            h.call = x->call;
            memcpy(h.step, x->step, sizeof h.step);
            memcpy(x->head, &h, sizeof h);
            if (x->bytes <= TRI_MPI_INLINE) {
                if (x->bytes) memcpy(x->head + n, x->data, (size_t)x->bytes);
                n += (size_t)x->bytes;
                x->done = x->bytes;
            }
            code = MPI_Isend(x->head, (int)n, MPI_BYTE, x->peer, x->tag, m->comm, &x->req);
        } else {
            code = MPI_Irecv(x->head, TRI_MPI_HEAD, MPI_BYTE, x->peer, x->tag, m->comm, &x->req);
        }
        x->begun = 1;
        return tri_mpi_check(m, code, x->step);
    }
    n = x->bytes - x->done < m->opts.segment ? (size_t)(x->bytes - x->done) : m->opts.segment;
    if (x->window != MPI_WIN_NULL) {        /* may itself wait, and for long if the peer is lost */
        tri_mpi_blocks(m, "MPI_Rget", x->peer, n);
        code = MPI_Rget(x->data + x->done, (int)n, MPI_BYTE, x->peer,
                        MPI_Aint_add(x->there, (MPI_Aint)x->done), (int)n, MPI_BYTE, x->window,
                        &x->req);
        tri_mpi_event(m, TR_MPI_EVENT_DONE, "MPI_Rget", x->peer, n, n);
    } else if (x->sends)
        code = MPI_Isend(x->data + x->done, (int)n, MPI_BYTE, x->peer, x->tag, m->comm, &x->req);
    else
        code = MPI_Irecv(x->data + x->done, (int)n, MPI_BYTE, x->peer, x->tag, m->comm, &x->req);
    x->done += n;
    return tri_mpi_check(m, code, x->step);
}

/* Moves the message on as far as it goes without waiting; *moved counts steps. */
static tr_status tri_mpi_push(tr_mpi *m, tri_mpi_msg *x, int *moved)
{
    while (!x->finished) {
        int there = 0, head = x->begun == 1;
        if (x->begun) {
            TRI_MPI_TRY(tri_mpi_check(m, MPI_Test(&x->req, &there, MPI_STATUS_IGNORE), x->step));
            if (!there) return TR_OK;
            ++*moved;
            if (head && !x->sends) {
                TRI_MPI_TRY(tri_mpi_head_check(m, x));
                if (x->bytes <= TRI_MPI_INLINE) {
                    if (x->bytes) memcpy(x->data, x->head + sizeof(tri_mpi_head),
                                         (size_t)x->bytes);
                    x->done = x->bytes;
                }
            }
            x->begun = 2;
            if (x->done == x->bytes) {
                x->finished = 1;
                return TR_OK;
            }
        }
        TRI_MPI_TRY(tri_mpi_begin(m, x));
    }
    return TR_OK;
}

/* Bytes of x's data that have surely arrived or left. */
static uint64_t tri_mpi_arrived(const tr_mpi *m, const tri_mpi_msg *x)
{
    uint64_t last = x->done % m->opts.segment ? x->done % m->opts.segment : m->opts.segment;
    return x->finished ? x->bytes : x->begun < 2 || last > x->done ? 0 : x->done - last;
}

/* ---- waiting -------------------------------------------------------------- */

/* The place that is late may be far behind the one that others wait in. */
static const char *tri_mpi_last_heard(const tr_mpi *m, int rank, char buf[128])
{
    const tri_mpi_peer *p = &m->peer[rank];
    char at[64];
    buf[0] = 0;
    if (p->step[0])
        snprintf(buf, 128, "; its last message was of %s", tri_mpi_at(p->layer, p->step, at));
    return buf;
}

/* The end of the chain: for whom all wait, over *hops others; this rank itself: a circle. */
static int tri_mpi_awaited(const tr_mpi *m, int peer, int *hops)
{
    for (*hops = 0; *hops < m->size && m->peer[peer].waits >= 0 && peer != m->rank; ++*hops)
        peer = m->peer[peer].waits;
    return peer;
}

/* The lowest rank that waits tells its program, for all; others may have told of it meanwhile. */
static void tri_mpi_half(tr_mpi *m, const tri_mpi_msg *x)
{
    int hops, who = tri_mpi_awaited(m, x->peer, &hops);
    for (int i = 0; i < m->rank; i++)
        if (m->peer[i].waits >= 0) return;
    tri_mpi_event(m, TR_MPI_EVENT_HALF, x->step, who == m->rank ? x->peer : who, x->bytes,
                  tri_mpi_arrived(m, x));
}

static tr_status tri_mpi_late(tr_mpi *m, const tri_mpi_msg *x, double waited)
{
    char at[64], heard[128];
    const char *through;
    int hops, who = tri_mpi_awaited(m, x->peer, &hops);
    through = hops > 1 ? ", through others," : "";
    tri_mpi_at(x->layer, x->step, at);
    if (who == m->rank) {
        (void)tr_fail(m->ctx, TR_ERR_PEER, "deadlock: it waits for rank %d in %s, which waits%s "
                      "for rank %d (%.1f s)", x->peer, at, through, who, waited);
        return tri_mpi_fail(m, TR_ERR_PEER, who, TR_MPI_CAUSE_DEADLOCK);
    }
    if (hops)
        (void)tr_fail(m->ctx, TR_ERR_PEER, "rank %d is late: rank %d waits for rank %d in %s, "
                      "which waits%s for rank %d (%.1f s)%s", who, m->rank, x->peer, at, through,
                      who, waited, tri_mpi_last_heard(m, who, heard));
    else
        (void)tr_fail(m->ctx, TR_ERR_PEER, "rank %d is late: %s: rank %d %s %llu of %llu bytes in "
                      "%.1f s%s", who, at, m->rank, x->sends ? "could hand it" : "had",
                      (unsigned long long)tri_mpi_arrived(m, x), (unsigned long long)x->bytes,
                      waited, tri_mpi_last_heard(m, who, heard));
    return tri_mpi_fail(m, TR_ERR_PEER, who, TR_MPI_CAUSE_LATE);
}

/* Among what is not complete: a message whose peer waits for nobody, else any. */
static const tri_mpi_msg *tri_mpi_pending(const tr_mpi *m, tri_mpi_msg *const *x, int n)
{
    const tri_mpi_msg *any = NULL;
    for (int i = 0; i < n; i++) {
        if (x[i]->finished) continue;
        if (m->peer[x[i]->peer].waits < 0) return x[i];
        any = x[i];
    }
    return any;
}

static tr_status tri_mpi_wait_all(tr_mpi *m, tri_mpi_msg *const *x, int n)
{
    double begun = MPI_Wtime(), since = begun, looked = begun;
    int told = 0, idle = 0, waiting = 0;
    for (;;) {
        const tri_mpi_msg *p;
        int moved = 0, left = 0;
        double now;
        for (int i = 0; i < m->msgs; i++)       /* others move on too: somebody waits for them */
            if (!m->msg[i]->finished) TRI_MPI_TRY(tri_mpi_push(m, m->msg[i], &moved));
        for (int i = 0; i < n; i++) left += !x[i]->finished;
        if (!left) break;
        TRI_MPI_TRY(tri_mpi_listen(m));
        p = tri_mpi_pending(m, x, n);
        if (!waiting++) tri_mpi_event(m, TR_MPI_EVENT_WAIT, p->step, p->peer, p->bytes, 0);
        now = MPI_Wtime();
        if (moved) {
            since = now;
            idle = 0;
        }
        if (m->peer[p->peer].heard > since) since = m->peer[p->peer].heard;
        if (now - looked > m->opts.deadline / 2) since = now;   /* it was stopped itself */
        looked = now;
        if (!told && now - since > m->opts.deadline / 2) {
            tri_mpi_tell(m, TRI_MPI_WAITS, p->peer, TR_MPI_CAUSE_OWN, p->step);
            told = 1;
        }
        if (told == 1 && now - since > m->opts.deadline * (17 + (double)m->rank / m->size) / 32) {
            tri_mpi_half(m, p);         /* in the order of ranks, when what they tell has come */
            told = 2;
        }
        if (now - since > m->opts.deadline) {
            tri_mpi_event(m, TR_MPI_EVENT_WAIT, p->step, p->peer, p->bytes, tri_mpi_arrived(m, p));
            return tri_mpi_late(m, p, now - since);
        }
        if (++idle > 200) tri_mpi_sleep();
    }
    if (n && waiting) {
        tri_mpi_event(m, TR_MPI_EVENT_DONE, x[0]->step, x[0]->peer, x[0]->bytes, x[0]->bytes);
        m->count[x[0]->kind].waited += MPI_Wtime() - begun;
    }
    if (told) tr_mpi_alive(m);
    return TR_OK;
}

/* Waits, gives the messages back to the pool, and tells the others if it failed. */
static tr_status tri_mpi_wait(tr_mpi *m, tri_mpi_msg **x, int n)
{
    tr_status s = m->failed ? TR_ERR_PEER : tri_mpi_wait_all(m, x, n);
    if (s != TR_OK) return tr_mpi_raise(m, s);      /* memory of what is under way stays taken */
    for (int i = 0; i < n; i++) tri_mpi_drop(m, x[i]);
    return TR_OK;
}

/* ---- from start to end ----------------------------------------------------- */

static int tri_mpi_side(int n) { return n > 0 ? n : 1; }

static tr_status tri_mpi_peers(tr_mpi *m)
{
    void *p;
    TRI_MPI_TRY(tr_alloc(m->ctx, &p, (size_t)m->size * sizeof *m->peer));
    m->peer = (tri_mpi_peer *)p;
    for (int i = 0; i < m->size; i++) {
        m->peer[i].waits = -1;
        m->peer[i].alarm_req[0] = m->peer[i].alarm_req[1] = MPI_REQUEST_NULL;
    }
    return TR_OK;
}

tr_status tr_mpi_new(tr_ctx *ctx, tr_mpi **out, MPI_Comm comm, const tr_mpi_opts *opts)
{
    tr_mpi *m;
    tr_mpi_layout *l;
    void *p;
    char text[512], layout[64];
    int64_t ranks;
    tr_status s;
    *out = NULL;
    if (!(opts->deadline > 0) || opts->segment > INT_MAX)
        return tr_fail(ctx, TR_ERR_ARG, "ranks need a deadline above 0 and segments of at most "
                       "%d bytes", INT_MAX);
    TRI_MPI_TRY(tr_alloc(ctx, &p, sizeof *m));
    m = (tr_mpi *)p;
    m->ctx = ctx;
    m->opts = *opts;
    l = &m->opts.layout;
    m->layer = -1;
    m->comm = MPI_COMM_NULL;
    if (!m->opts.segment) m->opts.segment = (size_t)64 << 20;
    l->pp = tri_mpi_side(l->pp);
    l->tp = tri_mpi_side(l->tp);
    l->ep = tri_mpi_side(l->ep);
    l->cp = tri_mpi_side(l->cp);
    MPI_Comm_rank(comm, &m->rank);
    s = tri_mpi_check(m, MPI_Comm_dup(comm, &m->comm), "MPI_Comm_dup");
    if (s != TR_OK) {
        tr_mpi_free(m);
        return s;
    }
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(m->comm, &m->size);
    s = tri_mpi_peers(m);
    ranks = (int64_t)l->pp * l->tp * l->ep * l->cp;
    if (s == TR_OK && ranks != m->size)
        s = tr_fail(ctx, TR_ERR_ARG, "layout %s is for %lld ranks, there are %d",
                    tr_mpi_layout_str(*l, layout), (long long)ranks, m->size);
    if (s == TR_OK) s = tr_mpi_same(m, "the layout", tr_mpi_layout_str(*l, layout));
    if (s == TR_OK) {
        snprintf(text, sizeof text, "trillion %s, contract %s, deadline %g s, segments of %zu "
                 "bytes, %.200s", TR_VERSION, TR_CONTRACT, m->opts.deadline, m->opts.segment,
                 opts->identity ? opts->identity : "");
        s = tr_mpi_same(m, "the program", text);
    }
    if (s != TR_OK) tr_mpi_free(m);
    else *out = m;
    return s;
}

/* Gives what is still going out a second: a sentence should arrive. */
static void tri_mpi_flush(tr_mpi *m)
{
    double end = MPI_Wtime() + 1;
    for (int i = 0; m->peer && i < 2 * m->size; i++) {
        MPI_Request *req = &m->peer[i / 2].alarm_req[i % 2];
        int sent = 0;
        MPI_Test(req, &sent, MPI_STATUS_IGNORE);
        while (!sent && MPI_Wtime() < end) {
            tri_mpi_sleep();
            MPI_Test(req, &sent, MPI_STATUS_IGNORE);
        }
        if (!sent) MPI_Request_free(req);
    }
}

void tr_mpi_free(tr_mpi *m)
{
    tr_ctx *ctx;
    int failed;
    if (!m) return;
    ctx = m->ctx;
    failed = m->failed || m->msgs;
    tri_mpi_flush(m);
    if (!failed) tri_mpi_event(m, TR_MPI_EVENT_END, "", -1, 0, 0);
    if (m->comm != MPI_COMM_NULL && !failed) MPI_Comm_free(&m->comm);
    if (failed) return;                 /* MPI may still write to what messages point to */
    for (int i = 0; i < m->msg_cap; i++) tr_free(ctx, m->msg[i]);
    tr_free(ctx, m->msg);
    tr_free(ctx, m->note);
    for (int i = 0; i < TRI_MPI_BUF_COUNT; i++) tr_free(ctx, m->buf[i].p);
    tr_free(ctx, m->peer);
    tr_free(ctx, m);
}

/* Each rank's status, cause and sentence to rank 0, the first bad one back to all. */
static tr_status tri_mpi_agree(tr_mpi *m, tr_status s, tr_mpi_cause cause)
{
    tri_mpi_alarm *all, mine, verdict;
    void *p;
    if (m->failed) return s != TR_OK ? s : TR_ERR_PEER;
    memset(&mine, 0, sizeof mine);
    mine.status = (int32_t)s;
    mine.rank = m->rank;
    mine.cause = (int32_t)cause;
    snprintf(mine.text, sizeof mine.text, "%.*s", TRI_MPI_TEXT - 1,
             s == TR_OK ? "" : tr_err_last(m->ctx));
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_ROOT, (size_t)m->size * sizeof *all, &p));
    all = (tri_mpi_alarm *)p;
    TRI_MPI_TRY(tr_mpi_collect(m, TR_MPI_CONTROL, "agreement", &mine, all, sizeof mine));
    verdict = mine;
    for (int i = 0; m->rank == 0 && i < m->size && verdict.status == TR_OK; i++) verdict = all[i];
    TRI_MPI_TRY(tr_mpi_bcast(m, TR_MPI_ALL, TR_MPI_CONTROL, "agreement", 0, &verdict,
                             sizeof verdict));
    if (verdict.status == TR_OK) return TR_OK;
    if (verdict.rank != m->rank)
        return tri_mpi_heard(m, (tr_status)verdict.status, verdict.rank, &verdict);
    tri_mpi_event_fail(m, -1, m->rank, cause);
    return s;
}

tr_status tr_mpi_agree(tr_mpi *m, tr_status s) { return tri_mpi_agree(m, s, TR_MPI_CAUSE_OWN); }

tr_status tr_mpi_same(tr_mpi *m, const char *what, const char *text)
{
    struct { char text[TRI_MPI_TEXT], hash[65]; } theirs;
    char hash[65];                              /* the text may be longer than what is sent of it */
    tr_sha256 h;
    tr_status s = TR_OK;
    tr_sha256_init(&h);
    tr_sha256_update(&h, text, strlen(text));
    tr_sha256_hex(&h, hash);
    snprintf(theirs.text, sizeof theirs.text, "%s", text);
    memcpy(theirs.hash, hash, sizeof hash);
    TRI_MPI_TRY(tr_mpi_bcast(m, TR_MPI_ALL, TR_MPI_CONTROL, what, 0, &theirs, sizeof theirs));
    if (!strncmp(theirs.text, text, sizeof theirs.text - 1) && strcmp(theirs.hash, hash))
        s = tr_fail(m->ctx, TR_ERR_PEER, "rank %d differs from rank 0 in %s, after its first %d "
                    "bytes: %.300s", m->rank, what, TRI_MPI_TEXT - 1, text);
    else if (strcmp(theirs.hash, hash))
        s = tr_fail(m->ctx, TR_ERR_PEER, "rank %d differs from rank 0 in %s: %s; rank 0: %s",
                    m->rank, what, text, theirs.text);
    return tri_mpi_agree(m, s, TR_MPI_CAUSE_UNLIKE);
}

/* ============================================================================
 * 2. The grid {grid}
 *
 *     rank = ((stage EP + e) CP + c) TP + t
 * ========================================================================= */

tr_mpi_group tr_mpi_group_of(const tr_mpi *m, tr_mpi_axis axis)
{
    const tr_mpi_layout *l = &m->opts.layout;
    int stage = l->tp * l->cp * l->ep;
    const int n[TR_MPI_AXIS_COUNT] = { l->tp, l->cp, l->ep, l->pp, stage, m->size };
    const int step[TR_MPI_AXIS_COUNT] = { 1, l->tp, l->tp * l->cp, stage, 1, 1 };
    tr_mpi_group g;
    g.n = n[axis];
    g.step = step[axis];
    g.me = m->rank / g.step % g.n;
    g.first = m->rank - g.me * g.step;
    return g;
}

const char *tr_mpi_layout_str(tr_mpi_layout l, char buf[64])
{
    snprintf(buf, 64, "pp=%d,tp=%d,ep=%d,cp=%d", l.pp, l.tp, l.ep, l.cp);
    return buf;
}

tr_status tr_mpi_layout_parse(tr_ctx *ctx, tr_mpi_layout *out, const char *text, int ranks)
{
    static const char *const name[4] = { "pp", "tp", "ep", "cp" };
    int *field[4], n = 0;
    int64_t product = 1;
    char l[64];
    memset(out, 0, sizeof *out);
    field[0] = &out->pp;
    field[1] = &out->tp;
    field[2] = &out->ep;
    field[3] = &out->cp;
    for (const char *s = text; *s; n++) {
        int k = 0, v = 0;
        while (k < 4 && strncmp(s, name[k], 2)) k++;
        if (k == 4 || s[2] != '=')
            return tr_fail(ctx, TR_ERR_ARG, "layout '%s': at '%s' stands none of pp=, tp=, ep=, "
                           "cp=", text, s);
        if (*field[k])
            return tr_fail(ctx, TR_ERR_ARG, "layout '%s': %s= is given for the second time", text,
                           name[k]);
        for (s += 3; *s >= '0' && *s <= '9' && v < 1000000; s++) v = 10 * v + (*s - '0');
        if (v < 1 || (*s && *s != ',') || (*s == ',' && !s[1]))
            return tr_fail(ctx, TR_ERR_ARG, "layout '%s': %s= needs a number from 1 on", text,
                           name[k]);
        *field[k] = v;
        s += *s == ',';
    }
    if (!n) out->ep = ranks;
    for (int k = 0; k < 4; k++) {
        *field[k] = tri_mpi_side(*field[k]);
        product *= *field[k];
        if (product > INT_MAX) break;
    }
    if (product != ranks)
        return tr_fail(ctx, TR_ERR_ARG, "layout %s is for %lld ranks, there are %d",
                       tr_mpi_layout_str(*out, l), (long long)product, ranks);
    return TR_OK;
}

/* ============================================================================
 * 3. Messages {xfer}
 *
 *     exchange    post all, wait for all
 *     collect     each to rank 0
 *     bcast       the root to each
 *     gather      each to each, its own rows or columns packed
 *
 * Traps. What is exchanged is dealt by tr_range_of on both sides, so no lengths travel; the heads
 * would tell if two ranks disagreed. Nobody sends nothing: a share of no units has no message.
 * ========================================================================= */

static tr_status tri_mpi_post_all(tr_mpi *m, tr_mpi_kind kind, const char *step, int sends,
                                  const tr_mpi_part *p, int n, tri_mpi_msg **x, int *posted)
{
    for (int i = 0; i < n; i++) {
        if (!p[i].bytes || p[i].peer == m->rank) continue;
        TRI_MPI_TRY(tri_mpi_post(m, sends, kind, step, &p[i], &x[*posted]));
        ++*posted;
    }
    return TR_OK;
}

tr_status tr_mpi_exchange(tr_mpi *m, tr_mpi_kind kind, const char *step, const tr_mpi_part *send,
                          int n_send, const tr_mpi_part *recv, int n_recv)
{
    tri_mpi_msg **x;
    void *p;
    int n = 0, k = 0;
    tr_status s;
    if (m->failed) return TR_ERR_PEER;
    tri_mpi_event(m, TR_MPI_EVENT_STEP, step, -1, 0, 0);
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_WAITED, (size_t)(n_send + n_recv + 1) * sizeof *x,
                                &p));
    x = (tri_mpi_msg **)p;
    for (int i = 0; i < n_send; i++) {              /* to itself: the parts match in order */
        if (send[i].peer != m->rank) continue;
        while (k < n_recv && recv[k].peer != m->rank) k++;
        if (k == n_recv || recv[k].bytes != send[i].bytes)
            return tr_mpi_raise(m, tr_fail(m->ctx, TR_ERR_ARG, "%s: rank %d sends itself what it "
                                           "does not take", step, m->rank));
        if (send[i].bytes) memmove(recv[k].data, send[i].data, (size_t)send[i].bytes);
        k++;
    }
    s = tri_mpi_post_all(m, kind, step, 0, recv, n_recv, x, &n);
    if (s == TR_OK) s = tri_mpi_post_all(m, kind, step, 1, send, n_send, x, &n);
    if (s != TR_OK) return tr_mpi_raise(m, s);
    return tri_mpi_wait(m, x, n);
}

/* Room for the parts of a group, twice. */
static tr_status tri_mpi_parts(tr_mpi *m, int n, tr_mpi_part **send, tr_mpi_part **recv)
{
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_SHARES, 2 * (size_t)(n + 1) * sizeof **send, &p));
    *send = (tr_mpi_part *)p;
    *recv = *send + n + 1;
    return TR_OK;
}

tr_status tr_mpi_collect(tr_mpi *m, tr_mpi_kind kind, const char *step, void *data, void *all,
                         uint64_t bytes)
{
    tr_mpi_part *send, *recv;
    TRI_MPI_TRY(tri_mpi_parts(m, m->size, &send, &recv));
    send->peer = 0;
    send->data = data;
    send->bytes = bytes;
    for (int i = 0; m->rank == 0 && i < m->size; i++) {
        recv[i].peer = i;
        recv[i].data = (unsigned char *)all + (size_t)i * (size_t)bytes;
        recv[i].bytes = bytes;
    }
    return tr_mpi_exchange(m, kind, step, send, 1, recv, m->rank ? 0 : m->size);
}

tr_status tr_mpi_bcast(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step, int root,
                       void *data, uint64_t bytes)
{
    tr_mpi_group g = tr_mpi_group_of(m, axis);
    tr_mpi_part *send, *recv;
    int n = 0;
    TRI_MPI_TRY(tri_mpi_parts(m, g.n, &send, &recv));
    for (int i = 0; i < g.n; i++) {
        if (i == root || g.me != root) continue;
        send[n].peer = g.first + i * g.step;
        send[n].data = data;
        send[n++].bytes = bytes;
    }
    recv[0].peer = g.first + root * g.step;
    recv[0].data = data;
    recv[0].bytes = bytes;
    return tr_mpi_exchange(m, kind, step, send, n, recv, g.me != root);
}

static size_t tri_mpi_elem(tr_view v) { return (size_t)tr_dtype_get(v.dtype)->bits / 8; }
static size_t tri_mpi_bytes(tr_view v) { return (size_t)tr_view_numel(v) * tri_mpi_elem(v); }

/* The same shape, contiguous, at p. */
static tr_view tri_mpi_packed(void *p, tr_view v)
{
    return tr_view_of(p, v.dtype, v.rank, v.shape);
}

static tr_view tri_mpi_share(tr_view x, int dim, int64_t units, int parts, int part)
{
    tr_range r = tr_range_of(units, parts, part);
    int64_t each = units ? x.shape[dim] / units : 0;
    return tr_view_slice(x, dim, r.begin * each, (r.end - r.begin) * each);
}

tr_status tr_mpi_gather(tr_mpi *m, tr_mpi_axis axis, tr_mpi_kind kind, const char *step, tr_view x,
                        int dim, int64_t units)
{
    tr_mpi_group g = tr_mpi_group_of(m, axis);
    tr_mpi_part *send, *recv;
    unsigned char *at;
    void *p;
    int n = 0;
    if (g.n == 1 || !tr_view_numel(x)) return TR_OK;
    TRI_MPI_TRY(tri_mpi_parts(m, g.n, &send, &recv));
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_PACKED, tri_mpi_bytes(x), &p));
    at = (unsigned char *)p;
    for (int i = 0; i < g.n; i++) {             /* the buffer holds the shares one after another */
        tr_view v = tri_mpi_share(x, dim, units, g.n, i);
        recv[i].peer = g.first + i * g.step;
        recv[i].data = at;
        recv[i].bytes = tri_mpi_bytes(v);
        if (i == g.me && recv[i].bytes)
            TRI_MPI_TRY(tr_view_copy(m->ctx, tri_mpi_packed(at, v), v));
        at += recv[i].bytes;
    }
    for (int i = 0; i < g.n; i++) {
        if (i == g.me) continue;
        send[n] = recv[g.me];
        send[n++].peer = recv[i].peer;
    }
    recv[g.me].bytes = 0;
    TRI_MPI_TRY(tr_mpi_exchange(m, kind, step, send, n, recv, g.n));
    at = (unsigned char *)p;
    for (int i = 0; i < g.n; i++) {
        tr_view v = tri_mpi_share(x, dim, units, g.n, i);
        if (i != g.me && tr_view_numel(v))
            TRI_MPI_TRY(tr_view_copy(m->ctx, v, tri_mpi_packed(at, v)));
        at += tri_mpi_bytes(v);
    }
    return TR_OK;
}

/* ============================================================================
 * 4. Maps of experts {map}
 *
 *     even       expert e at place floor(e places / experts)      load   the heaviest first, each
 *     replicas   a token's row decides among those who hold its expert   to the least loaded place
 *
 * Traps. An expert's answer does not depend on where it was computed, so a map decides speed and
 * memory alone; a map that leaves an expert out would be found only by the first token that wants
 * it, after hours, so it is looked through before the first token.
 * ========================================================================= */

static unsigned char *tri_mpi_held_at(const tr_mpi_map *map, int place, int64_t layer)
{
    return map->held + ((int64_t)place * map->layers + layer) * map->experts;
}

static size_t tri_mpi_map_bytes(const tr_mpi_map *map)        /* of held */
{
    return (size_t)map->places * (size_t)map->layers * (size_t)map->experts;
}

static int tri_mpi_has_experts(const tr_config *c, int64_t layer)
{
    return c->layer[layer].ffn == TR_FFN_MOE;
}

static tr_status tri_mpi_map_new(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places)
{
    size_t n;
    void *p;
    memset(out, 0, sizeof *out);
    TRI_MPI_TRY(tr_size_mul(ctx, &n, (size_t)c->layers, (size_t)c->experts));
    TRI_MPI_TRY(tr_size_mul(ctx, &n, n, (size_t)places));
    TRI_MPI_TRY(tr_alloc(ctx, &p, n ? n : 1));
    out->held = (unsigned char *)p;
    out->layers = c->layers;
    out->experts = c->experts;
    out->places = places;
    return TR_OK;
}

void tr_mpi_map_free(tr_ctx *ctx, tr_mpi_map *map)
{
    tr_free(ctx, map->held);
    memset(map, 0, sizeof *map);
}

tr_status tr_mpi_map_even(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places)
{
    TRI_MPI_TRY(tri_mpi_map_new(ctx, out, c, places));
    for (int64_t l = 0; l < c->layers; l++)
        for (int p = 0; tri_mpi_has_experts(c, l) && p < places; p++) {
            tr_range r = tr_range_of(c->experts, places, p);
            for (int64_t e = r.begin; e < r.end; e++) tri_mpi_held_at(out, p, l)[e] = 1;
        }
    return TR_OK;
}

static int64_t tri_mpi_load(const int64_t *load, int64_t e) { return load[e] > 0 ? load[e] : 1; }

/* The heaviest expert that `taken` does not mark; ties to the lower index; -1: all are marked. */
static int64_t tri_mpi_heaviest(const int64_t *load, const unsigned char *taken, int64_t E)
{
    int64_t best = -1;
    for (int64_t e = 0; e < E; e++)
        if (!taken[e] && (best < 0 || tri_mpi_load(load, e) > tri_mpi_load(load, best)))
            best = e;
    return best;
}

/* One layer: sum and n of each place are kept; no place has more than its even share of experts. */
static void tri_mpi_deal(tr_mpi_map *map, int64_t l, const int64_t *load, int spare,
                         unsigned char *taken, double *sum, int64_t *n)
{
    int64_t E = map->experts, room = (E + map->places - 1) / map->places, e;
    memset(taken, 0, (size_t)E);
    for (int p = 0; p < map->places; p++) {
        sum[p] = 0;
        n[p] = 0;
    }
    while ((e = tri_mpi_heaviest(load, taken, E)) >= 0) {
        int best = -1;
        for (int p = 0; p < map->places; p++)
            if (n[p] < room && (best < 0 || sum[p] < sum[best])) best = p;
        taken[e] = 1;
        tri_mpi_held_at(map, best, l)[e] = 1;
        sum[best] += (double)tri_mpi_load(load, e);
        n[best]++;
    }
    for (int p = 0; p < map->places; p++)
        for (int k = 0; k < spare; k++) {
            e = tri_mpi_heaviest(load, tri_mpi_held_at(map, p, l), E);
            if (e < 0) break;
            tri_mpi_held_at(map, p, l)[e] = 1;
        }
}

tr_status tr_mpi_map_by_load(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                             const int64_t *load, int spare)
{
    void *p = NULL, *q = NULL, *t = NULL;
    tr_status s = tri_mpi_map_new(ctx, out, c, places);
    if (s == TR_OK) s = tr_alloc(ctx, &t, (size_t)c->experts + 1);
    if (s == TR_OK) s = tr_alloc(ctx, &p, (size_t)places * sizeof(double));
    if (s == TR_OK) s = tr_alloc(ctx, &q, (size_t)places * sizeof(int64_t));
    for (int64_t l = 0; s == TR_OK && l < c->layers; l++)
        if (tri_mpi_has_experts(c, l))
            tri_mpi_deal(out, l, load + l * c->experts, spare, (unsigned char *)t, (double *)p,
                         (int64_t *)q);
    tr_free(ctx, t);
    tr_free(ctx, p);
    tr_free(ctx, q);
    if (s != TR_OK) tr_mpi_map_free(ctx, out);
    return s;
}

/* The experts of each place in one layer: `places` lists. */
static tr_status tri_mpi_map_layer(tr_ctx *ctx, tr_mpi_map *map, const tr_json *j,
                                   const tr_json_node *lists, const char *path, int64_t l)
{
    const tr_json_node *list = tr_json_first(j, lists), *e;
    if (lists->type != TR_JSON_ARRAY || (int64_t)lists->count != map->places)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: layer %lld: not a list of %d lists of experts",
                       path, (long long)l, map->places);
    for (int p = 0; list; p++, list = tr_json_next(j, list)) {
        if (list->type != TR_JSON_ARRAY)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: layer %lld: place %d is no list of experts",
                           path, (long long)l, p);
        for (e = tr_json_first(j, list); e; e = tr_json_next(j, e)) {
            int64_t id;
            TRI_MPI_TRY(tr_json_int(j, e, &id));
            if (id < 0 || id >= map->experts)
                return tr_fail(ctx, TR_ERR_RANGE, "%s: layer %lld, place %d: expert %lld; there "
                               "are 0 to %lld", path, (long long)l, p, (long long)id,
                               (long long)(map->experts - 1));
            if (tri_mpi_held_at(map, p, l)[id]++)
                return tr_fail(ctx, TR_ERR_FORMAT, "%s: layer %lld, place %d: expert %lld stands "
                               "there twice", path, (long long)l, p, (long long)id);
        }
    }
    return TR_OK;
}

/* "1 to 8", or "1, 3, 5": the layers that have experts, as far as they fit. */
static const char *tri_mpi_expert_layers(const tr_config *c, char buf[96])
{
    int64_t first = 0, last = c->layers - 1, n = 0;
    size_t used = 0;
    while (first < last && !tri_mpi_has_experts(c, first)) first++;
    while (last > first && !tri_mpi_has_experts(c, last)) last--;
    for (int64_t l = first; l <= last; l++) n += tri_mpi_has_experts(c, l);
    snprintf(buf, 96, "%lld to %lld", (long long)first, (long long)last);
    for (int64_t l = first; n <= last - first && l <= last && used < 70; l++)
        if (tri_mpi_has_experts(c, l))
            used += (size_t)snprintf(buf + used, 96 - used, "%s%lld", used ? ", " : "",
                                     (long long)l);
    if (used >= 70) snprintf(buf + used, 96 - used, " and so on");
    return buf;
}

/* Is key the number of a layer that has experts? A list under any other would say nothing. */
static int tri_mpi_names_layer(const char *key, const tr_config *c)
{
    char want[24];
    int64_t l = 0;
    for (; l < c->layers; l++) {
        snprintf(want, sizeof want, "%lld", (long long)l);
        if (!strcmp(key, want)) break;
    }
    return l < c->layers && tri_mpi_has_experts(c, l);
}

static tr_status tri_mpi_map_take(tr_ctx *ctx, tr_mpi_map *map, const tr_json *j,
                                  const tr_config *c, const char *path)
{
    const tr_json_node *places = tr_json_get(j, &j->node[0], "places");
    const tr_json_node *layers = tr_json_get(j, &j->node[0], "layers"), *other;
    char list[96];
    int64_t n;
    if (!places || !layers || layers->type != TR_JSON_OBJECT)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: a map of experts has \"places\" and \"layers\"",
                       path);
    for (const tr_json_node *k = tr_json_first(j, &j->node[0]); k; k = tr_json_next(j, k))
        if (k != places && k != layers)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: a map of experts has no \"%s\", only "
                           "\"places\" and \"layers\"", path, tr_json_key(j, k));
    TRI_MPI_TRY(tr_json_int(j, places, &n));
    if (n != map->places)
        return tr_fail(ctx, TR_ERR_ARG, "%s: is for %lld ranks a stage, there are %d", path,
                       (long long)n, map->places);
    other = tr_json_get(j, layers, "*");
    for (const tr_json_node *k = tr_json_first(j, layers); k; k = tr_json_next(j, k))
        if (k != other && !tri_mpi_names_layer(tr_json_key(j, k), c))
            return tr_fail(ctx, TR_ERR_RANGE, "%s: \"%s\" is no layer of experts; layers with "
                           "experts are %s", path, tr_json_key(j, k),
                           tri_mpi_expert_layers(c, list));
    for (int64_t l = 0; l < c->layers; l++) {
        char key[24];
        const tr_json_node *lists;
        if (!tri_mpi_has_experts(c, l)) continue;
        snprintf(key, sizeof key, "%lld", (long long)l);
        lists = tr_json_get(j, layers, key);
        if (!lists) lists = other;
        if (!lists)
            return tr_fail(ctx, TR_ERR_MISSING, "%s: says nothing of layer %lld, which has experts",
                           path, (long long)l);
        TRI_MPI_TRY(tri_mpi_map_layer(ctx, map, j, lists, path, l));
    }
    return TR_OK;
}

tr_status tr_mpi_map_read(tr_ctx *ctx, tr_mpi_map *out, const tr_config *c, int places,
                          const char *path)
{
    tr_json j;
    tr_status s;
    memset(out, 0, sizeof *out);
    TRI_MPI_TRY(tr_json_load(ctx, &j, path));
    s = tri_mpi_map_new(ctx, out, c, places);
    if (s == TR_OK) s = tri_mpi_map_take(ctx, out, &j, c, path);
    if (s == TR_OK) {
        s = tr_mpi_map_check(ctx, out, c);
        if (s != TR_OK) s = tr_fail_in(ctx, s, "%s", path);
    }
    tr_json_free(&j);
    if (s != TR_OK) tr_mpi_map_free(ctx, out);
    return s;
}

tr_status tr_mpi_map_check(tr_ctx *ctx, const tr_mpi_map *map, const tr_config *c)
{
    if (map->fetch < 0 || (map->fetch && (map->keep < 1 || map->keep > INT_MAX)))
        return tr_fail(ctx, TR_ERR_ARG, "experts that %lld tokens want are to be fetched, and %lld "
                       "of them kept", (long long)map->fetch, (long long)map->keep);
    if (map->layers != c->layers || map->experts != c->experts || map->places < 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "a map of %lld layers of %lld experts at %d places; the "
                       "model has %lld of %lld", (long long)map->layers, (long long)map->experts,
                       map->places, (long long)c->layers, (long long)c->experts);
    for (int64_t l = 0; l < c->layers; l++)
        for (int64_t e = 0; tri_mpi_has_experts(c, l) && e < c->experts; e++) {
            int n = 0;
            for (int p = 0; p < map->places; p++) n += tri_mpi_held_at(map, p, l)[e] != 0;
            if (!n)
                return tr_fail(ctx, TR_ERR_MISSING, "the map of experts leaves expert %lld of "
                               "layer %lld out: no rank holds it", (long long)e, (long long)l);
        }
    return TR_OK;
}

/* The place that serves `me` with an expert of a layer: itself if it can, else the holders in
 * turn. */
static int tri_mpi_server(const tr_mpi_map *map, int64_t layer, int64_t e, int me, int64_t turn)
{
    int found = 0, k;
    if (tri_mpi_held_at(map, me, layer)[e]) return me;
    for (int s = 0; s < map->places; s++) found += tri_mpi_held_at(map, s, layer)[e] != 0;
    k = found ? (int)((turn + me) % found) : 0;
    for (int s = 0; s < map->places; s++)
        if (tri_mpi_held_at(map, s, layer)[e] && k-- == 0) return s;
    return me;
}

/* ============================================================================
 * 5. Experts that come to tokens {fetch}
 *
 * A token travels to its expert and back with two rows; an expert travels with all of its weights,
 * once, and may stay. Where many tokens of a rank want an expert of another one, it is cheaper to
 * fetch it, and its holder has nothing to do for it.
 *
 *     opened      each rank lets the others read the files that its experts lie in, and tells where
 *                 each of them is; all try it
 *     fetched     MPI_Rget, begun and asked for like any other message: no lock that somebody waits
 *                 for, and a deadline
 *     kept        map.keep of them; the one whose layer comes last from here on makes room, as a
 *                 pass goes through all layers and would find what was used longest ago just gone
 *
 * Traps. Only the one who fetches knows of it: what is read must stay mapped until all have said
 * that they read no more. An address is one of the other rank's. MPI may allow few regions in a
 * window (Open MPI over shared memory or InfiniBand: 64), so they are spread over several. The
 * first MPI_Rget from a rank may wait, in the call itself, for that rank to help (Open MPI over
 * messages): it is done when the model is opened, where somebody may watch. A checkpoint may be cut
 * into other shards on another machine.
 * ========================================================================= */

enum { TRI_MPI_REGIONS = 32 };              /* of a window */

/* Where a matrix lies at its holder: elements, scales; region -1: nowhere. */
typedef struct tri_mpi_spot { MPI_Aint at[2]; int32_t region[2]; } tri_mpi_spot;

typedef struct tri_mpi_remote {             /* an expert of another place */
    tri_mpi_spot w[3];                      /* gate, up, down */
    int      rank;                          /* its holder */
} tri_mpi_remote;

/* Room for one expert that was fetched. */
typedef struct tri_mpi_kept {
    int64_t   layer, expert;                /* the layer of this part; -1: empty */
    uint64_t  used, pass;                   /* when last, by the counts below */
    int       wanted;                       /* on its way, or about to compute: stays */
    tri_mpi_msg *msg[6];  int msgs;         /* elements and scales on their way */
    tr_weight w[3];                         /* as of `part`, their memory in buf */
    tri_mpi_buf buf;
} tri_mpi_kept;

typedef struct tri_mpi_fetch {
    tr_mpi   *m;                            /* NULL: nothing is fetched */
    tr_model *part;
    const tr_mpi_map *map;
    MPI_Win  *window;  int windows;
    unsigned char *attached;                /* [regions] 1: open to the others */
    int       regions;                      /* two a file: what is mapped, and what is a copy */
    tri_mpi_remote *remote;                 /* [layers of the part, E] those not held here */
    tri_mpi_kept *kept;                     /* [map.keep] */
    uint64_t  clock, pass;                  /* count what is wanted, and layers gone through */
} tri_mpi_fetch;

/* The region that p lies in, open to the others from now on. */
static tr_status tri_mpi_region(tri_mpi_fetch *f, const void *p, int32_t *out)
{
    for (int r = 0; r < f->regions; r++) {
        const tr_st *file = &f->part->shards.file[r / 2];
        unsigned char *base = r % 2 ? file->copy : file->map;
        size_t bytes = r % 2 ? file->copy_bytes : file->map_bytes;
        if (!base || (const unsigned char *)p < base ||
            (const unsigned char *)p >= base + bytes) continue;
        *out = r;
        if (f->attached[r]) return TR_OK;
        f->attached[r] = 1;
        return tri_mpi_check(f->m, MPI_Win_attach(f->window[r / TRI_MPI_REGIONS], base,
                                                   (MPI_Aint)bytes), "MPI_Win_attach");
    }
    return tr_fail(f->m->ctx, TR_ERR_FORMAT, "an expert lies in no file of %s",
                   f->part->shards.dir);
}

/* own [layers, E] becomes where this rank's experts lie; others lie nowhere. */
static tr_status tri_mpi_where(tri_mpi_fetch *f, tri_mpi_remote *own)
{
    int64_t E = f->part->cfg.experts, n = f->part->layers * E;
    if (n) memset(own, 0, (size_t)n * sizeof *own);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            const tr_weight *list = f->part->layer[i / E].expert[k], *w;
            tri_mpi_spot *spot = &own[i].w[k];
            spot->region[0] = spot->region[1] = -1;
            if (!list || !list[i % E].q) continue;
            w = &list[i % E];
            MPI_Get_address(w->q, &spot->at[0]);
            TRI_MPI_TRY(tri_mpi_region(f, w->q, &spot->region[0]));
            if (!w->s) continue;
            MPI_Get_address(w->s, &spot->at[1]);
            TRI_MPI_TRY(tri_mpi_region(f, w->s, &spot->region[1]));
        }
    return TR_OK;
}

/* at [layers, E] says where the experts of a place lie: kept of those that it serves here. */
static void tri_mpi_learn(tri_mpi_fetch *f, const tri_mpi_remote *at, int place)
{
    tr_mpi_group stage = tr_mpi_group_of(f->m, TR_MPI_IN_STAGE);
    int64_t E = f->part->cfg.experts;
    for (int64_t i = 0; i < f->part->layers * E; i++) {
        if (tri_mpi_server(f->map, f->part->first + i / E, i % E, stage.me, 0) != place) continue;
        f->remote[i] = at[i];
        f->remote[i].rank = stage.first + place;
    }
}

/* Reads a byte of each window of a place, where `at` [layers, E] says that its experts are. */
static tr_status tri_mpi_try_windows(tri_mpi_fetch *f, const tri_mpi_remote *at, int place)
{
    tr_mpi *m = f->m;
    int64_t E = f->part->cfg.experts;
    unsigned char *tried, byte;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_B, (size_t)f->windows, &p));
    tried = (unsigned char *)p;
    memset(tried, 0, (size_t)f->windows);
    for (int64_t i = 0; i < f->part->layers * E; i++)
        for (int k = 0; k < 6; k++) {
            const tri_mpi_spot *spot = &at[i].w[k / 2];
            int window = spot->region[k % 2] / TRI_MPI_REGIONS;
            tri_mpi_msg *x;
            tr_mpi_part part;
            if (spot->region[k % 2] < 0 || tried[window]) continue;
            tried[window] = 1;
            part.peer = tr_mpi_group_of(m, TR_MPI_IN_STAGE).first + place;
            part.data = &byte;
            part.bytes = 1;
            TRI_MPI_TRY(tri_mpi_post_get(m, TR_MPI_CONTROL, "first read of experts", &part,
                                         f->window[window], spot->at[k % 2], &x));
            TRI_MPI_TRY(tri_mpi_wait(m, &x, 1));
        }
    return TR_OK;
}

/* (all) Windows that the rank with the most shards needs. */
static tr_status tri_mpi_windows_needed(tri_mpi_fetch *f, int32_t *out)
{
    tr_mpi *m = f->m;
    int32_t mine = (f->regions - 1) / TRI_MPI_REGIONS + 1, *all;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_ROOT, (size_t)m->size * sizeof *all, &p));
    all = (int32_t *)p;
    TRI_MPI_TRY(tr_mpi_collect(m, TR_MPI_CONTROL, "windows needed", &mine, all, sizeof mine));
    *out = mine;
    for (int i = 0; m->rank == 0 && i < m->size; i++)
        if (all[i] > *out) *out = all[i];
    return tr_mpi_bcast(m, TR_MPI_ALL, TR_MPI_CONTROL, "windows needed", 0, out, sizeof *out);
}

/* (all) What MPI refuses here ends m: who has which windows is not known after it. */
static tr_status tri_mpi_windows(tri_mpi_fetch *f)
{
    tr_mpi *m = f->m;
    int32_t n;
    tr_status s;
    void *p;
    TRI_MPI_TRY(tri_mpi_windows_needed(f, &n));
    s = tr_alloc(m->ctx, &p, (size_t)n * sizeof *f->window);
    f->window = (MPI_Win *)p;
    TRI_MPI_TRY(tr_mpi_agree(m, s));
    while (f->windows < n) {
        MPI_Win *w = &f->window[f->windows++];
        tri_mpi_blocks(m, "MPI_Win_create_dynamic", -1, 0);
        TRI_MPI_TRY(tri_mpi_check(m, MPI_Win_create_dynamic(MPI_INFO_NULL, m->comm, w),
                                  "MPI_Win_create_dynamic"));
        MPI_Win_set_errhandler(*w, MPI_ERRORS_RETURN);
        TRI_MPI_TRY(tri_mpi_check(m, MPI_Win_lock_all(MPI_MODE_NOCHECK, *w), "MPI_Win_lock_all"));
    }
    return TR_OK;
}

/* (all) Where everything lies, place by place; whoever hears of it tries it at once. */
static tr_status tri_mpi_tell_where(tri_mpi_fetch *f)
{
    tr_mpi *m = f->m;
    tr_mpi_group stage = tr_mpi_group_of(m, TR_MPI_IN_STAGE);
    size_t n = (size_t)(f->part->layers * f->part->cfg.experts);
    tri_mpi_remote *own, *theirs;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_A, 2 * n * sizeof *own, &p));
    own = (tri_mpi_remote *)p;
    theirs = own + n;
    TRI_MPI_TRY(tr_mpi_agree(m, tri_mpi_where(f, own)));
    for (int place = 0; place < stage.n; place++) {
        tri_mpi_remote *at = place == stage.me ? own : theirs;
        TRI_MPI_TRY(tr_mpi_bcast(m, TR_MPI_IN_STAGE, TR_MPI_CONTROL, "where experts lie", place,
                                 at, n * sizeof *at));
        if (place == stage.me) continue;
        tri_mpi_learn(f, theirs, place);
        TRI_MPI_TRY(tri_mpi_try_windows(f, theirs, place));
    }
    tri_mpi_event(m, TR_MPI_EVENT_STEP, "windows open", -1, 0, 0);
    return TR_OK;
}

static tr_status tri_mpi_fetch_room(tri_mpi_fetch *f)
{
    tr_ctx *ctx = f->m->ctx;
    size_t regions = 2 * (size_t)f->part->shards.files;
    void *p;
    if (regions > INT_MAX)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: too many shards to fetch experts from",
                       f->part->shards.dir);
    f->regions = (int)regions;
    TRI_MPI_TRY(tr_alloc(ctx, &p, regions));
    f->attached = (unsigned char *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)(f->part->layers * f->map->experts) * sizeof *f->remote));
    f->remote = (tri_mpi_remote *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)f->map->keep * sizeof *f->kept));
    f->kept = (tri_mpi_kept *)p;
    for (int64_t i = 0; i < f->map->keep; i++) f->kept[i].layer = f->kept[i].expert = -1;
    return TR_OK;
}

/* (all) Nothing if there is nothing to fetch. part and map outlive f. */
static tr_status tri_mpi_fetch_open(tr_mpi *m, tri_mpi_fetch *f, tr_model *part,
                                   const tr_mpi_map *map)
{
    if (!map->fetch || map->places == 1) return TR_OK;
    f->m = m;
    f->part = part;
    f->map = map;
    TRI_MPI_TRY(tr_mpi_agree(m, tri_mpi_fetch_room(f)));
    TRI_MPI_TRY(tri_mpi_windows(f));
    return tri_mpi_tell_where(f);
}

/* (all) When all are here nobody reads any more. */
static tr_status tri_mpi_fetch_close(tri_mpi_fetch *f)
{
    if (!f->m) return TR_OK;
    if (f->windows) TRI_MPI_TRY(tr_mpi_agree(f->m, TR_OK));
    for (int i = 0; i < f->windows; i++) {
        tri_mpi_blocks(f->m, "MPI_Win_free", -1, 0);
        MPI_Win_unlock_all(f->window[i]);
        MPI_Win_free(&f->window[i]);
    }
    if (f->windows) tri_mpi_event(f->m, TR_MPI_EVENT_STEP, "windows freed", -1, 0, 0);
    for (int64_t i = 0; f->kept && i < f->map->keep; i++) tr_free(f->m->ctx, f->kept[i].buf.p);
    tr_free(f->m->ctx, f->window);
    tr_free(f->m->ctx, f->attached);
    tr_free(f->m->ctx, f->remote);
    tr_free(f->m->ctx, f->kept);
    return TR_OK;
}

/* ---- one expert -------------------------------------------------------------- */

/* Begins to read the elements or the scales (which 0, 1) of matrix k to p; bytes 0: there are
 * none. */
static tr_status tri_mpi_fetch_bytes(tri_mpi_fetch *f, tri_mpi_kept *x, const tri_mpi_remote *from,
                                     int k, int which, void *p, size_t bytes)
{
    tr_mpi_part part;
    int moved = 0;
    int32_t region = from->w[k].region[which];
    double begun = MPI_Wtime();
    tr_status st;
    if (!bytes) return TR_OK;
    if (region < 0)
        return tr_fail(f->m->ctx, TR_ERR_PEER, "rank %d does not say where its %s of %s are",
                       from->rank, which ? "scales" : "elements", x->w[k].name);
    part.peer = from->rank;
    part.data = p;
    part.bytes = bytes;
    TRI_MPI_TRY(tri_mpi_post_get(f->m, TR_MPI_FETCH, "expert fetched", &part,
                                 f->window[region / TRI_MPI_REGIONS], from->w[k].at[which],
                                 &x->msg[x->msgs]));
    st = tri_mpi_push(f->m, x->msg[x->msgs++], &moved);
    f->m->count[TR_MPI_FETCH].waited += MPI_Wtime() - begun;    /* MPI may read all in the call */
    return st;
}

/* Begins to read all of expert e of layer l of this part into x. */
static tr_status tri_mpi_fetch_expert(tri_mpi_fetch *f, int64_t l, int64_t e, tri_mpi_kept *x)
{
    const tri_mpi_remote *from = &f->remote[l * f->part->cfg.experts + e];
    tr_ctx *ctx = f->m->ctx;
    size_t q[3], s[3], all = 0;
    unsigned char *at;
    void *p;
    x->layer = x->expert = -1;
    for (int k = 0; k < 3; k++) {
        x->w[k] = f->part->layer[l].expert[k][e];
        TRI_MPI_TRY(tr_qformat_bytes(ctx, x->w[k].format, x->w[k].rows, x->w[k].cols,
                                     x->w[k].block_rows, x->w[k].block_cols, &q[k], &s[k]));
        all += q[k] + s[k];
    }
    TRI_MPI_TRY(tri_mpi_room(f->m, &x->buf, all, &p));
    at = (unsigned char *)p;
    for (int k = 0; k < 3; k++) {
        x->w[k].q = at;
        x->w[k].s = s[k] ? at + q[k] : NULL;
        TRI_MPI_TRY(tri_mpi_fetch_bytes(f, x, from, k, 0, at, q[k]));
        TRI_MPI_TRY(tri_mpi_fetch_bytes(f, x, from, k, 1, at + q[k], s[k]));
        at += q[k] + s[k];
    }
    f->m->count[TR_MPI_FETCH].messages++;
    f->m->count[TR_MPI_FETCH].bytes += all;
    x->layer = l;
    x->expert = e;
    return TR_OK;
}

/* Layers from layer l until x may be of use, a pass being all layers: 0, it may still be in this
 * one; all of them, it just was. */
static int64_t tri_mpi_away(const tri_mpi_fetch *f, const tri_mpi_kept *x, int64_t l)
{
    int64_t L = f->part->layers;
    if (x->layer < 0) return L + 1;         /* empty */
    if (x->layer == l) return x->pass == f->pass ? L : 0;
    return (x->layer - l + L) % L;
}

/* Would a make room before b? */
static int tri_mpi_goes_first(const tri_mpi_fetch *f, const tri_mpi_kept *a, const tri_mpi_kept *b,
                              int64_t l)
{
    int64_t x = tri_mpi_away(f, a, l), y = tri_mpi_away(f, b, l);
    return x != y ? x > y : a->used < b->used;
}

/* Expert e of layer l of this part: *out has it, or is getting it, and keeps it until its `wanted`
 * is taken back; NULL: all are wanted. */
static tr_status tri_mpi_want(tri_mpi_fetch *f, int64_t l, int64_t e, tri_mpi_kept **out)
{
    tri_mpi_kept *best = NULL;
    *out = NULL;
    for (int64_t i = 0; i < f->map->keep; i++) {
        tri_mpi_kept *x = &f->kept[i];
        int has = x->layer == l && x->expert == e;
        if (has || (!x->wanted && (!best || tri_mpi_goes_first(f, x, best, l)))) best = x;
        if (has) break;
    }
    if (!best) return TR_OK;
    if (best->layer != l || best->expert != e) TRI_MPI_TRY(tri_mpi_fetch_expert(f, l, e, best));
    best->used = ++f->clock;
    best->pass = f->pass;
    best->wanted = 1;
    *out = best;
    return TR_OK;
}

/* All of x is here, and sound; the part's weight remembers it for when x comes again. */
static tr_status tri_mpi_arrive(tri_mpi_fetch *f, tri_mpi_kept *x)
{
    int n = x->msgs;
    x->msgs = 0;
    if (n) TRI_MPI_TRY(tri_mpi_wait(f->m, x->msg, n));
    for (int k = 0; k < 3; k++) {
        TRI_MPI_TRY(tr_weight_check(f->m->ctx, &x->w[k]));
        f->part->layer[x->layer].expert[k][x->expert].finite = 1;
    }
    return TR_OK;
}

/* ============================================================================
 * 6. The model over ranks {load}
 *
 *     stage        layers tr_range_of(L, pp, p) of those that are opened
 *     matrices     rows tr_range_of(O / unit, tp, t), a unit being what stands together: a head
 *     experts      whole, as the map says
 *     the rest     norms, biases, routers' biases, tables of positions: everywhere
 *
 * Traps. Two checkpoints of one shape have the same headers byte for byte; what differs is inside,
 * so a sample of it is hashed. All ranks must learn that one of them could not open its part, or
 * they would wait for it in the first layer.
 * ========================================================================= */

struct tr_mpi_model {
    tr_mpi    *m;
    tr_model  *part;
    tr_range   layers;          /* of all stages */
    tr_mpi_map map;
    tri_mpi_fetch fetch;
};

tr_model *tr_mpi_model_part(const tr_mpi_model *mm) { return mm->part; }

tr_range tr_mpi_stage_layers(const tr_mpi_model *mm, int stage)
{
    tr_range r = tr_range_of(mm->layers.end - mm->layers.begin, mm->m->opts.layout.pp, stage);
    r.begin += mm->layers.begin;
    r.end += mm->layers.begin;
    return r;
}

/* Over the headers, and the first and last 64 bytes of at most some 4096 tensors. */
static void tri_mpi_sample(const tr_shards *sh, char out[65])
{
    int64_t step = sh->n / 4096 + 1;
    tr_sha256 h;
    tr_sha256_init(&h);
    for (int64_t i = 0; i < sh->n; i++) {
        const tr_st_entry *e = sh->entry[i];
        tr_sha256_update(&h, e->name, strlen(e->name) + 1);
        tr_sha256_update(&h, e->view.shape, (size_t)e->view.rank * sizeof *e->view.shape);
        tr_sha256_update(&h, &e->view.dtype, sizeof e->view.dtype);
        if (i % step) continue;
        if (e->bytes < 128) tr_sha256_update(&h, e->view.data, e->bytes);
        else {
            tr_sha256_update(&h, e->view.data, 64);
            tr_sha256_update(&h, (const unsigned char *)e->view.data + e->bytes - 64, 64);
        }
    }
    tr_sha256_hex(&h, out);
}

/* Who has what, and who fetches: the ranks of a stage count on it. What each keeps is its own
 * affair. */
static void tri_mpi_map_sha256(const tr_mpi_map *map, char out[65])
{
    tr_sha256 h;
    tr_sha256_init(&h);
    tr_sha256_update(&h, map->held, tri_mpi_map_bytes(map));
    tr_sha256_update(&h, &map->fetch, sizeof map->fetch);
    tr_sha256_hex(&h, out);
}

/* mm->map of what the caller gave; NULL: even. */
static tr_status tri_mpi_take_map(tr_mpi_model *mm, const tr_mpi_map *map, const tr_config *c)
{
    tr_ctx *ctx = mm->m->ctx;
    int places = tr_mpi_group_of(mm->m, TR_MPI_IN_STAGE).n;
    if (!map) return tr_mpi_map_even(ctx, &mm->map, c, places);
    if (map->places != places)
        return tr_fail(ctx, TR_ERR_ARG, "a map of experts for %d ranks a stage, there are %d",
                       map->places, places);
    TRI_MPI_TRY(tr_mpi_map_check(ctx, map, c));
    TRI_MPI_TRY(tri_mpi_map_new(ctx, &mm->map, c, places));
    memcpy(mm->map.held, map->held, tri_mpi_map_bytes(map));
    mm->map.fetch = map->fetch;
    mm->map.keep = map->keep;
    return TR_OK;
}

/* mm->layers, of all stages together: as opts say, and one a stage at least. */
static tr_status tri_mpi_take_layers(tr_mpi_model *mm, const tr_config *c, const char *dir,
                                     const tr_model_opts *opts)
{
    tr_ctx *ctx = mm->m->ctx;
    int64_t layers, stages = mm->m->opts.layout.pp;
    TRI_MPI_TRY(tr_model_opts_layers(ctx, &mm->layers, c, dir, opts));
    layers = mm->layers.end - mm->layers.begin;
    if (layers < stages)
        return tr_fail(ctx, TR_ERR_ARG, "%s: %lld layer%s (%lld to %lld) cannot be dealt to %lld "
                       "stages", dir, (long long)layers, layers == 1 ? "" : "s",
                       (long long)mm->layers.begin, (long long)(mm->layers.end - 1),
                       (long long)stages);
    return TR_OK;
}

/* held [layers, E] of tr_model_opts: 1 an expert of this rank, 2 one that it may fetch, of which it
 * needs the shape, 0 any other. */
static tr_status tri_mpi_held_here(tr_mpi_model *mm, void **held)
{
    const tr_mpi_map *map = &mm->map;
    int64_t n = map->layers * map->experts;
    const unsigned char *mine = tri_mpi_held_at(map, tr_mpi_group_of(mm->m, TR_MPI_IN_STAGE).me, 0);
    TRI_MPI_TRY(tr_alloc(mm->m->ctx, held, n ? (size_t)n : 1));
    for (int64_t i = 0; i < n; i++)
        ((unsigned char *)*held)[i] = mine[i] ? 1 : map->fetch ? 2 : 0;
    return TR_OK;
}

/* This rank's part, on its own. */
static tr_status tri_mpi_open_part(tr_mpi_model *mm, const char *dir, const tr_model_opts *opts,
                                   const tr_mpi_map *map)
{
    tr_mpi *m = mm->m;
    tr_mpi_group tp = tr_mpi_group_of(m, TR_MPI_TP);
    tr_model_opts o;
    tr_config c;
    tr_range mine;
    tr_status s;
    void *held;
    memset(&o, 0, sizeof o);
    if (opts) o = *opts;
    TRI_MPI_TRY(tr_config_load(m->ctx, &c, dir, &o.config));
    s = tri_mpi_take_layers(mm, &c, dir, opts);
    if (s == TR_OK) s = tri_mpi_take_map(mm, map, &c);
    tr_config_free(m->ctx, &c);
    TRI_MPI_TRY(s);
    mine = tr_mpi_stage_layers(mm, tr_mpi_group_of(m, TR_MPI_PP).me);
    o.first = mine.begin;
    o.layers = mine.end - mine.begin;
    o.part = tp.me;
    o.parts = tp.n > 1 ? tp.n : 0;
    TRI_MPI_TRY(tri_mpi_held_here(mm, &held));
    o.held = (const unsigned char *)held;
    s = tr_model_open(m->ctx, &mm->part, dir, &o);
    tr_free(m->ctx, held);
    return s;
}

tr_status tr_mpi_model_open(tr_mpi *m, tr_mpi_model **out, const char *dir,
                            const tr_model_opts *opts, const tr_mpi_map *map)
{
    tr_mpi_model *mm = NULL;
    void *p;
    char hash[65] = "", layers[64] = "";
    tr_status s = tr_alloc(m->ctx, &p, sizeof *mm);
    *out = NULL;
    if (s == TR_OK) {
        mm = (tr_mpi_model *)p;
        mm->m = m;
        tri_mpi_event(m, TR_MPI_EVENT_STEP, "opening the model", -1, 0, 0);
        s = tri_mpi_open_part(mm, dir, opts, map);
    }
    s = tr_mpi_agree(m, s);
    if (s == TR_OK)
        snprintf(layers, sizeof layers, "%lld to %lld", (long long)mm->layers.begin,
                 (long long)(mm->layers.end - 1));
    if (s == TR_OK) s = tr_mpi_same(m, "the layers", layers);
    if (s == TR_OK) s = tr_mpi_same(m, "config.json", mm->part->cfg.sha256);
    if (s == TR_OK) tri_mpi_sample(&mm->part->shards, hash);
    if (s == TR_OK) s = tr_mpi_same(m, "the checkpoint", hash);
    if (s == TR_OK) {
        tri_mpi_map_sha256(&mm->map, hash);
        s = tr_mpi_same(m, "the map of experts", hash);
    }
    if (s == TR_OK) s = tri_mpi_fetch_open(m, &mm->fetch, mm->part, &mm->map);
    if (s == TR_OK) *out = mm;
    else tr_mpi_model_close(mm);
    return s;
}

void tr_mpi_model_close(tr_mpi_model *mm)
{
    if (!mm || tri_mpi_fetch_close(&mm->fetch) != TR_OK) return;      /* others may read here */
    tr_model_close(mm->part);
    tr_mpi_map_free(mm->m->ctx, &mm->map);
    tr_free(mm->m->ctx, mm);
}

/* ---- what a run knows, for the chapters that compute ------------------------ */

/* A sequence that this rank has a hand in, and its tokens of the call in progress. */
typedef struct tri_mpi_seq {
    int64_t pos, T;             /* tokens before the call, tokens of the call: of all cp ranks */
    int64_t *held;              /* [cp] rows of keys that each has, in tr_mpi_run.held */
} tri_mpi_seq;

struct tr_mpi_run {
    tr_mpi       *m;
    tr_mpi_model *mm;
    tr_run       *run;          /* of this rank's part */
    tr_run_opts   opts;         /* of the whole */
    tr_ops        local;        /* what computes; the run's table wraps it */
    tr_mpi_group  tp, cp, ep, pp, stage;
    int64_t       n;            /* sequences dealt here */
    tri_mpi_seq  *mine;         /* [n or 1] those */
    int64_t      *held;         /* [n or 1, cp] */
    int64_t      *number;       /* [n or 1] of each of mine in the batch */
    int64_t      *T;  int32_t *ids;     /* [n or 1], [max_tokens] this rank's part of the batch */
    int64_t      *len, *now;    /* [B] tokens held, and of the last call: of all sequences */
    int64_t       most;         /* rows of the rank in this stage that has most, in this call */
    unsigned char *rec;  size_t rec_n, rec_cap; /* taps that wait to go to rank 0, tri_mpi_tapped */
    tri_mpi_msg  *handed;       /* pp: hidden state on its way to the next stage; NULL: none */
    tri_mpi_buf   hand;         /* its memory */
};

/* ============================================================================
 * 7. Rows {rows}
 *
 * A product whose matrix is a band gives its columns alone, and stays so while what follows goes
 * head by head or element by element: activations, rotations, norms of heads, attention, delta
 * rules then take their share of the heads. Whoever needs the whole row gathers it first. So a
 * feed-forward moves its F inner values and its D results, each once.
 *
 *     units    equal pieces of the columns that are dealt: heads, groups of heads, or columns
 *
 * Traps. Memory is used again: whatever is written anew is not in part any more. Which values are
 * in part, and which are gathered when, is the same on all ranks of the axis, since it follows from
 * the order of operators alone.
 * ========================================================================= */

typedef struct tri_mpi_operand {
    tr_view *v;
    int      dim;               /* heads or columns */
    int      out;               /* written: in part afterwards */
} tri_mpi_operand;

/* Do two views touch common memory? By the span between their first and last elements. */
static int tri_mpi_overlap(tr_view a, tr_view b)
{
    const unsigned char *p[2], *q[2];
    for (int k = 0; k < 2; k++) {
        tr_view v = k ? b : a;
        int64_t last = 0;
        for (int i = 0; i < v.rank; i++) {
            if (!v.shape[i]) return 0;
            last += (v.shape[i] - 1) * v.stride[i];
        }
        if (!v.data) return 0;
        p[k] = (const unsigned char *)v.data;
        q[k] = p[k] + (size_t)(last + 1) * tri_mpi_elem(v);
    }
    return p[0] < q[1] && p[1] < q[0];
}

/* v is written whole: what was in part there is no more. */
static void tri_mpi_forget(tr_mpi *m, tr_view v)
{
    int n = 0;
    for (int i = 0; i < m->notes; i++)
        if (!tri_mpi_overlap(m->note[i].x, v)) m->note[n++] = m->note[i];
    m->notes = n;
}

static const tri_mpi_note *tri_mpi_find(const tr_mpi *m, tr_view v)
{
    for (int i = 0; i < m->notes; i++)
        if (tri_mpi_overlap(m->note[i].x, v)) return &m->note[i];
    return NULL;
}

/* v is read whole. */
static tr_status tri_mpi_need(tr_mpi *m, tr_view v)
{
    const tri_mpi_note *found;
    while ((found = tri_mpi_find(m, v)) != NULL) {
        tri_mpi_note n = *found;
        tri_mpi_forget(m, n.x);
        TRI_MPI_TRY(tr_mpi_gather(m, TR_MPI_TP, TR_MPI_ROWS, "gather", n.x, n.dim, n.units));
    }
    return TR_OK;
}

/* x is written in part. */
static tr_status tri_mpi_remember(tr_mpi *m, tr_view x, int dim, int64_t units)
{
    tri_mpi_note *n;
    tri_mpi_forget(m, x);
    if (!tr_view_numel(x)) return TR_OK;
    if (m->notes == m->note_cap) {
        void *p;
        int cap = 2 * m->note_cap + 16;
        TRI_MPI_TRY(tr_alloc(m->ctx, &p, (size_t)cap * sizeof *m->note));
        if (m->note) memcpy(p, m->note, (size_t)m->notes * sizeof *m->note);
        tr_free(m->ctx, m->note);
        m->note = (tri_mpi_note *)p;
        m->note_cap = cap;
    }
    n = &m->note[m->notes++];
    n->x = x;
    n->dim = dim;
    n->units = units;
    return TR_OK;
}

/* Units in which v is in part along dim, all of it: 0, it is whole; -1, some of it is, or otherwise
 * than asked. One sequence may be an entry of its own, so the rows of all that touch v count. */
static int64_t tri_mpi_units_of(const tr_mpi *m, tr_view v, int dim)
{
    int64_t units = 0, rows = 0;
    for (int i = 0; i < m->notes; i++) {
        const tri_mpi_note *n = &m->note[i];
        if (!tri_mpi_overlap(n->x, v)) continue;
        if (!units) units = n->units;
        if (n->units != units || n->dim != dim) return -1;
        rows += n->x.shape[0];
    }
    return units && dim && rows < v.shape[0] ? -1 : units;
}

/* Units in which the operands that are read are in part; 0: none is, or they do not agree, and then
 * all have been made whole. */
static tr_status tri_mpi_units(tr_mpi *m, const tri_mpi_operand *o, int n, int64_t *units)
{
    *units = 0;
    for (int i = 0; i < n; i++) {
        int64_t u = o[i].out ? 0 : tri_mpi_units_of(m, *o[i].v, o[i].dim);
        if (!u) continue;
        if (!*units) *units = u;
        if (*units != u) *units = -1;
    }
    for (int i = 0; *units > 0 && i < n; i++)
        if (!tr_view_is_none(*o[i].v) && o[i].v->shape[o[i].dim] % *units) *units = -1;
    if (*units >= 0) return TR_OK;
    *units = 0;
    for (int i = 0; i < n; i++)
        if (!o[i].out) TRI_MPI_TRY(tri_mpi_need(m, *o[i].v));
    return TR_OK;
}

/* Cuts all operands down to this rank's share of the units; *empty: it has none. Those written are
 * in part from now on. */
static tr_status tri_mpi_cut(tr_mpi_run *r, const tri_mpi_operand *o, int n, int64_t units,
                             int *empty)
{
    tr_range mine = tr_range_of(units, r->tp.n, r->tp.me);
    *empty = 0;
    if (!units) {
        for (int i = 0; i < n; i++)
            if (o[i].out) tri_mpi_forget(r->m, *o[i].v);
        return TR_OK;
    }
    *empty = mine.begin == mine.end;
    for (int i = 0; i < n; i++) {
        if (tr_view_is_none(*o[i].v)) continue;
        if (o[i].out) TRI_MPI_TRY(tri_mpi_remember(r->m, *o[i].v, o[i].dim, units));
        *o[i].v = tri_mpi_share(*o[i].v, o[i].dim, units, r->tp.n, r->tp.me);
    }
    return TR_OK;
}

/* The operands become this rank's share of themselves, in the units given; 0: in those in which
 * they are in part. */
static tr_status tri_mpi_take_share(tr_mpi_run *r, const tri_mpi_operand *o, int n, int64_t units,
                                    int *empty)
{
    int64_t found;
    *empty = 0;
    if (r->tp.n == 1) return TR_OK;
    TRI_MPI_TRY(tri_mpi_units(r->m, o, n, &found));
    return tri_mpi_cut(r, o, n, units ? units : found, empty);
}

/* ---- operators that go head by head or element by element ------------------ */

#define TRI_MPI_OPERANDS(o) ((int)(sizeof(o) / sizeof *(o)))

/* The step that begins, for sentences and for whoever records. */
static tr_mpi_run *tri_mpi_enter(void *user, const char *op)
{
    tr_mpi_run *r = (tr_mpi_run *)user;
    r->m->layer = r->run && r->run->layer ? (int)r->run->layer->index : -1;
    tri_mpi_event(r->m, TR_MPI_EVENT_STEP, op, -1, 0, 0);
    return r;
}

/* The arguments a, cut to this rank's share by the operands o, through the local table. */
#define TRI_MPI_SHARED(op)                                                          \
    do {                                                                            \
        int empty;                                                                  \
        TRI_MPI_TRY(tri_mpi_take_share(r, o, TRI_MPI_OPERANDS(o), 0, &empty));      \
        return empty ? TR_OK : r->local.op(r->local.user, ctx, &a);                 \
    } while (0)

/* Is y in part afterwards? What is written where it was read in part stays so; if it was whole, as
 * after a tap, and another operand is not, then a share of it alone is written. */
static int tri_mpi_new_value(const tr_mpi_run *r, tr_view y, tr_view x)
{
    return y.data != x.data || !tri_mpi_find(r->m, y);
}

static tr_status tri_mpi_norm(void *user, tr_ctx *ctx, const tr_norm_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "norm");
    tr_norm_args a = *args;
    tri_mpi_operand o[3] = { { &a.x, 1, 0 }, { &a.gate, 1, 0 }, { &a.y, 1, 0 } };
    o[2].out = tri_mpi_new_value(r, a.y, a.x);
    if (a.x.rank != 3) {                    /* over the whole row */
        TRI_MPI_TRY(tri_mpi_need(r->m, a.x));
        TRI_MPI_TRY(tri_mpi_need(r->m, a.gate));
        if (o[2].out) tri_mpi_forget(r->m, a.y);
        return r->local.norm(r->local.user, ctx, &a);
    }
    TRI_MPI_SHARED(norm);
}

static tr_status tri_mpi_glu(void *user, tr_ctx *ctx, const tr_glu_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "activation");
    tr_glu_args a = *args;
    tri_mpi_operand o[3] = { { &a.g, 1, 0 }, { &a.u, 1, 0 }, { &a.y, 1, 0 } };
    o[2].out = tri_mpi_new_value(r, a.y, a.g) && tri_mpi_new_value(r, a.y, a.u);
    TRI_MPI_SHARED(glu);
}

static tr_status tri_mpi_gate(void *user, tr_ctx *ctx, const tr_gate_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "gate");
    tr_gate_args a = *args;
    tri_mpi_operand o[3] = { { &a.x, 1, 0 }, { &a.g, 1, 0 }, { &a.y, 1, 0 } };
    o[2].out = tri_mpi_new_value(r, a.y, a.x);
    TRI_MPI_SHARED(gate);
}

static tr_status tri_mpi_gelu(void *user, tr_ctx *ctx, const tr_gelu_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "activation");
    tr_gelu_args a = *args;
    tri_mpi_operand o[2] = { { &a.x, 1, 0 }, { &a.y, 1, 0 } };
    o[1].out = tri_mpi_new_value(r, a.y, a.x);
    TRI_MPI_SHARED(gelu);
}

static tr_status tri_mpi_rope(void *user, tr_ctx *ctx, const tr_rope_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "rope");
    tr_rope_args a = *args;
    tri_mpi_operand o[1] = { { &a.x, 1, 0 } };
    TRI_MPI_SHARED(rope);
}

static tr_status tri_mpi_decay(void *user, tr_ctx *ctx, const tr_decay_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "decay");
    tr_decay_args a = *args;
    tri_mpi_operand o[6] = { { &a.z, 1, 0 }, { &a.b, 1, 0 }, { &a.A_log, 0, 0 },
                             { &a.dt_bias, 0, 0 }, { &a.g, 1, 1 }, { &a.beta, 1, 1 } };
    TRI_MPI_SHARED(decay);
}

/* ---- products -------------------------------------------------------------- */

static tr_status tri_mpi_matmul(void *user, tr_ctx *ctx, const tr_matmul_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, args->w->name);
    tr_matmul_args a = *args;
    int64_t O = a.y.shape[1];
    if (r->tp.n == 1) return r->local.matmul(r->local.user, ctx, &a);
    TRI_MPI_TRY(tri_mpi_need(r->m, a.x));
    if (!a.w->unit) {                       /* not a band */
        tri_mpi_forget(r->m, a.y);
        return r->local.matmul(r->local.user, ctx, &a);
    }
    TRI_MPI_TRY(tri_mpi_remember(r->m, a.y, 1, O / a.w->unit));
    a.y = tr_view_slice(a.y, 1, a.w->row0, a.w->rows);
    if (!tr_view_is_none(a.bias)) a.bias = tr_view_slice(a.bias, 0, a.w->row0, a.w->rows);
    return a.w->rows ? r->local.matmul(r->local.user, ctx, &a) : TR_OK;
}

static int64_t tri_mpi_id(const tr_embed_args *a, int64_t n)
{
    return ((const int32_t *)a->ids.data)[n * a->ids.stride[0]];
}

static int tri_mpi_is_in(tr_range r, int64_t i) { return i >= r.begin && i < r.end; }

/* rows, of this rank's band first and then of the others' in turn, to the tokens that have them. */
static tr_status tri_mpi_embed_spread(const tr_mpi_run *r, const tr_embed_args *a, tr_view rows)
{
    int64_t j = 0;
    for (int i = -1; i < r->tp.n; i++) {
        tr_range band = tr_range_of(r->mm->part->cfg.vocab, r->tp.n, i < 0 ? r->tp.me : i);
        if (i == r->tp.me) continue;
        for (int64_t t = 0; t < rows.shape[0]; t++)
            if (tri_mpi_is_in(band, tri_mpi_id(a, t)))
                TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_slice(a->y, 0, t, 1),
                                         tr_view_slice(rows, 0, j++, 1)));
    }
    return TR_OK;
}

/* Each token's row from the rank whose band of the table has it. All ranks know all ids, so each
 * knows what it gives and gets. `rows` are packed: this rank's own, and the others' behind. */
static tr_status tri_mpi_embed(void *user, tr_ctx *ctx, const tr_embed_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "embedding");
    tr_embed_args a = *args;
    int64_t N = a.ids.shape[0], D = a.y.shape[1], V = r->mm->part->cfg.vocab, n = 0;
    tr_mpi_part *send, *recv;
    tr_view rows;
    int32_t *own;
    void *p;
    int k = 0;
    size_t row = (size_t)D * tri_mpi_elem(a.y), at = 0;
    if (r->tp.n == 1 || !N) return N ? r->local.embed(r->local.user, ctx, &a) : TR_OK;
    tri_mpi_forget(r->m, a.y);
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_A, (size_t)N * row, &p));
    rows = tr_view2(p, a.y.dtype, N, D);
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_B, (size_t)N * sizeof *own, &p));
    own = (int32_t *)p;
    for (int64_t t = 0; t < N; t++) {
        int64_t id = tri_mpi_id(&a, t) - a.w->row0;
        if (id >= 0 && id < a.w->rows) own[n++] = (int32_t)id;
    }
    a.ids = tr_view1(own, TR_I32, n);
    a.y = tr_view_slice(rows, 0, 0, n);
    if (n) TRI_MPI_TRY(r->local.embed(r->local.user, ctx, &a));
    TRI_MPI_TRY(tri_mpi_parts(r->m, r->tp.n, &send, &recv));
    for (int i = 0; i < r->tp.n; i++) {
        tr_range band = tr_range_of(V, r->tp.n, i);
        int64_t have = 0;
        if (i == r->tp.me) continue;
        for (int64_t t = 0; t < N; t++) have += tri_mpi_is_in(band, tri_mpi_id(args, t));
        recv[k].peer = send[k].peer = r->tp.first + i * r->tp.step;
        recv[k].data = (unsigned char *)rows.data + (size_t)n * row + at;
        recv[k].bytes = (uint64_t)have * row;
        send[k].data = rows.data;
        send[k].bytes = (uint64_t)n * row;
        at += (size_t)recv[k++].bytes;
    }
    TRI_MPI_TRY(tr_mpi_exchange(r->m, TR_MPI_ROWS, "embedding", send, k, recv, k));
    return tri_mpi_embed_spread(r, args, rows);
}

/* ---- what reads everything ------------------------------------------------- */

#define TRI_MPI_WHOLE(op, args_type, y, y2, ...)                                    \
    static tr_status tri_mpi_##op(void *user, tr_ctx *ctx, const args_type *a)      \
    {                                                                               \
        tr_mpi_run *r = tri_mpi_enter(user, #op);                                   \
        const tr_view in[] = { __VA_ARGS__ };                                       \
        for (size_t i = 0; i < sizeof in / sizeof *in; i++)                         \
            TRI_MPI_TRY(tri_mpi_need(r->m, in[i]));                                 \
        tri_mpi_forget(r->m, y);                                                    \
        tri_mpi_forget(r->m, y2);                                                   \
        return r->local.op(r->local.user, ctx, a);                                  \
    }
TRI_MPI_WHOLE(add, tr_add_args, a->y, tr_view_none(), a->a, a->b)
TRI_MPI_WHOLE(copy, tr_copy_args, a->y, tr_view_none(), a->x)
TRI_MPI_WHOLE(mix, tr_mix_args, a->y, a->probs, a->snaps, a->h)
TRI_MPI_WHOLE(dispatch, tr_dispatch_args, a->order, a->offset, a->ids)
TRI_MPI_WHOLE(pos, tr_pos_args, a->y, tr_view_none(), tr_view_none())
TRI_MPI_WHOLE(merge, tr_merge_args, a->y, tr_view_none(), a->x)
#undef TRI_MPI_WHOLE

static tr_status tri_mpi_route(void *user, tr_ctx *ctx, const tr_route_args *a)
{
    tr_mpi_run *r = tri_mpi_enter(user, "route");
    TRI_MPI_TRY(tri_mpi_need(r->m, a->logits));
    tri_mpi_forget(r->m, a->scores);
    tri_mpi_forget(r->m, a->ids);
    tri_mpi_forget(r->m, a->weights);
    return r->local.route(r->local.user, ctx, a);
}

static tr_status tri_mpi_whole(void *user, tr_ctx *ctx, tr_view x)
{
    (void)ctx;
    return tri_mpi_need(((tr_mpi_run *)user)->m, x);
}

/* ============================================================================
 * 8. Context {cp}
 *
 * A prompt's tokens of one call are dealt to the cp ranks in order. Between them goes what the
 * state would have been: the recurrent state after the rank before, overwritten by the rank's own
 * tokens and handed on; and the rows of keys and values of all tokens before, which each rank
 * passes to the next. So each computes from what one rank would have had at its first token.
 *
 *     call of T tokens at pos:   rank j has [pos + floor(T j / cp), pos + floor(T (j + 1) / cp))
 *     the last rank always has some, holds all rows, and gives the first one what it held before
 *
 * Traps. Ranks without a token of a sequence are stepped over, and both sides must step over the
 * same ones. What the last rank gives away is of before the call: it must leave before what comes
 * in overwrites it.
 * ========================================================================= */

/* With whom this rank has to do for one sequence: ranks, -1: none; and rows of its keys. */
typedef struct tri_mpi_link {
    int     from, to;           /* who has the tokens before this rank's, and behind */
    int     give;               /* who gets from here, the last rank, what was before the call */
    int64_t pos, to_pos;        /* the first token of this rank and of `to`: rows they need */
    int64_t held, to_row, give_row;     /* rows that this rank, `to` and `give` have already */
} tri_mpi_link;

static tr_range tri_mpi_tokens(const tr_mpi_run *r, const tri_mpi_seq *q, int j)
{
    return tr_range_of(q->T, r->cp.n, j);
}

/* The sequence whose memory of that kind, in the layer at work, begins at `data`; NULL: none. */
static const tri_mpi_seq *tri_mpi_seq_of(const tr_mpi_run *r, tr_state_kind first,
                                         tr_state_kind last, const void *data)
{
    if (r->cp.n == 1 || !r->run->layer) return NULL;
    for (int k = (int)first; k <= (int)last; k++)
        for (int64_t b = 0; b < r->n; b++)
            if (tr_state_slot(&r->run->state, r->run->layer->index, (tr_state_kind)k, b).data ==
                data) return &r->mine[b];
    return NULL;
}

static int tri_mpi_cp_rank(const tr_mpi_run *r, int j)
{
    return j < 0 ? -1 : r->cp.first + j * r->cp.step;
}

/* q NULL: nobody else has to do with it. */
static tri_mpi_link tri_mpi_link_of(const tr_mpi_run *r, const tri_mpi_seq *q)
{
    int me = r->cp.me, last = r->cp.n - 1, first = last, from = -1, to = -1, give = -1;
    tri_mpi_link l;
    memset(&l, 0, sizeof l);
    l.from = l.to = l.give = -1;
    if (!q) return l;
    for (int j = 0; j <= last; j++) {
        tr_range t = tri_mpi_tokens(r, q, j);
        if (t.begin == t.end) continue;
        if (j < first) first = j;
        if (j < me) from = j;
        if (j > me && to < 0) to = j;
    }
    if (q->pos && first != last) {
        if (me == first) from = last;
        if (me == last) give = first;
    }
    l.from = tri_mpi_cp_rank(r, from);
    l.to = tri_mpi_cp_rank(r, to);
    l.give = tri_mpi_cp_rank(r, give);
    l.pos = q->pos + tri_mpi_tokens(r, q, me).begin;
    l.held = q->held[me];
    l.to_row = to < 0 ? 0 : q->held[to];
    l.to_pos = q->pos + (to < 0 ? 0 : tri_mpi_tokens(r, q, to).begin);
    l.give_row = give < 0 ? 0 : q->held[give];
    return l;
}

static tr_mpi_part tri_mpi_part_of(int peer, tr_view v)
{
    tr_mpi_part p;
    p.peer = peer;
    p.data = v.data;
    p.bytes = tri_mpi_bytes(v);
    return p;
}

/* v to that rank, or from it; -1: nobody. */
static tr_status tri_mpi_give(tr_mpi_run *r, int peer, const char *step, tr_view v)
{
    tr_mpi_part p = tri_mpi_part_of(peer, v);
    return peer < 0 ? TR_OK : tr_mpi_exchange(r->m, TR_MPI_CONTEXT, step, &p, 1, NULL, 0);
}

static tr_status tri_mpi_take(tr_mpi_run *r, int peer, const char *step, tr_view v)
{
    tr_mpi_part p = tri_mpi_part_of(peer, v);
    return peer < 0 ? TR_OK : tr_mpi_exchange(r->m, TR_MPI_CONTEXT, step, NULL, 0, &p, 1);
}

/* Rows [0, pos) of v are made complete here, and those that the next rank lacks go on. */
static tr_status tri_mpi_pass_rows(tr_mpi_run *r, const tri_mpi_link *l, const char *step,
                                   const tri_mpi_seq *q, tr_view v)
{
    if (!q) return TR_OK;
    TRI_MPI_TRY(tri_mpi_give(r, l->give, step,
                             tr_view_slice(v, 0, l->give_row, q->pos - l->give_row)));
    TRI_MPI_TRY(tri_mpi_take(r, l->from, step, tr_view_slice(v, 0, l->held, l->pos - l->held)));
    return tri_mpi_give(r, l->to, step, tr_view_slice(v, 0, l->to_row, l->to_pos - l->to_row));
}

/* What is overwritten, before the operator: give the old one away, take the one from before. After
 * it, it is given to the next. */
static tr_status tri_mpi_take_state(tr_mpi_run *r, const tri_mpi_link *l, const char *step,
                                    tr_view v)
{
    TRI_MPI_TRY(tri_mpi_give(r, l->give, step, v));
    return tri_mpi_take(r, l->from, step, v);
}

static tr_status tri_mpi_shortconv(void *user, tr_ctx *ctx, const tr_conv_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "short convolution");
    tr_conv_args a = *args;
    tri_mpi_operand o[4] = { { &a.x, 1, 0 }, { &a.w, 0, 0 }, { &a.hist, 0, 0 }, { &a.y, 1, 1 } };
    const tri_mpi_seq *q = tri_mpi_seq_of(r, TR_STATE_CONV_Q, TR_STATE_CONV_V, a.hist.data);
    tri_mpi_link l = tri_mpi_link_of(r, q);
    int empty;
    TRI_MPI_TRY(tri_mpi_take_share(r, o, TRI_MPI_OPERANDS(o), 0, &empty));
    if (empty) return TR_OK;
    TRI_MPI_TRY(tri_mpi_take_state(r, &l, "short convolution", a.hist));
    TRI_MPI_TRY(r->local.shortconv(r->local.user, ctx, &a));
    return tri_mpi_give(r, l.to, "short convolution", a.hist);
}

static tr_status tri_mpi_delta(void *user, tr_ctx *ctx, const tr_delta_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "delta rule");
    tr_delta_args a = *args;
    tri_mpi_operand o[7] = { { &a.q, 1, 0 }, { &a.k, 1, 0 }, { &a.v, 1, 0 }, { &a.g, 1, 0 },
                             { &a.beta, 1, 0 }, { &a.S, 0, 0 }, { &a.o, 1, 1 } };
    const tri_mpi_seq *q = tri_mpi_seq_of(r, TR_STATE_DELTA, TR_STATE_DELTA, a.S.data);
    tri_mpi_link l = tri_mpi_link_of(r, q);
    int empty;
    TRI_MPI_TRY(tri_mpi_take_share(r, o, TRI_MPI_OPERANDS(o), 0, &empty));
    if (empty) return TR_OK;
    TRI_MPI_TRY(tri_mpi_take_state(r, &l, "delta rule", a.S));
    TRI_MPI_TRY(r->local.delta(r->local.user, ctx, &a));
    return tri_mpi_give(r, l.to, "delta rule", a.S);
}

static tr_status tri_mpi_attn(void *user, tr_ctx *ctx, const tr_attn_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "attention");
    tr_attn_args a = *args;
    tri_mpi_operand o[6] = { { &a.q, 1, 0 }, { &a.k, 1, 0 }, { &a.v, 1, 0 }, { &a.sink, 0, 0 },
                             { &a.probs, 0, 1 }, { &a.y, 1, 1 } };
    const tri_mpi_seq *q = tri_mpi_seq_of(r, TR_STATE_K, TR_STATE_K, a.k.data);
    tri_mpi_link l = tri_mpi_link_of(r, q);
    TRI_MPI_TRY(tri_mpi_pass_rows(r, &l, "keys", q, a.k));
    TRI_MPI_TRY(tri_mpi_pass_rows(r, &l, "values", q, a.v));
    TRI_MPI_SHARED(attn);
}

/* kv_b is a band of whole heads, and so is what comes of it. */
static tr_status tri_mpi_mla(void *user, tr_ctx *ctx, const tr_mla_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "latent attention");
    tr_mla_args a = *args;
    int64_t H = a.q.shape[1];
    tri_mpi_operand o[5] = { { &a.q, 1, 0 }, { &a.kv, 1, 1 }, { &a.absorbed, 1, 1 },
                             { &a.probs, 0, 1 }, { &a.y, 1, 1 } };
    const tri_mpi_seq *q = tri_mpi_seq_of(r, TR_STATE_LATENT, TR_STATE_LATENT, a.latent.data);
    tri_mpi_link l = tri_mpi_link_of(r, q);
    int empty;
    TRI_MPI_TRY(tri_mpi_pass_rows(r, &l, "latent rows", q, a.latent));
    TRI_MPI_TRY(tri_mpi_take_share(r, o, TRI_MPI_OPERANDS(o), H, &empty));
    return empty ? TR_OK : r->local.mla(r->local.user, ctx, &a);
}

/* ============================================================================
 * 9. Experts {ep}
 *
 *     each rank:   its tokens' rows, one message a place and segment  -->
 *                  rows of all ranks: one call of the local operator a segment, all experts held
 *                  <--  answers, unweighted, one row a (token, expert)
 *
 * The tokens of a tp group are the same on its ranks, so each sends its share of the rows, and the
 * combined rows are gathered. Segments are shares of the tokens: while one is computed the next is
 * under way. Weights are decoded once a segment, so there are only as many as there is work for.
 *
 * Traps. A rank without tokens still holds experts that others want: it enters with no rows. Room
 * is needed for what others send, which only they know, so counts go first.
 * ========================================================================= */

enum { TRI_MPI_SEGMENTS = 4, TRI_MPI_SEGMENT_ROWS = 256 };     /* at most; at least, if several */
enum { TRI_MPI_NO_PLACE = -1, TRI_MPI_FETCHED = -2 };          /* no expert; with one that came */

typedef struct tri_mpi_pair { int32_t row, expert; } tri_mpi_pair;  /* row within its message */

/* What goes to or comes from one place in one segment. */
typedef struct tri_mpi_lot {
    int64_t rows, pairs;                    /* how many */
    int64_t row_at, pair_at;                /* where they begin in the buffers */
    tri_mpi_msg *x, *y;                     /* rows; answers */
} tri_mpi_lot;

/* An expert that comes to tokens of this rank instead. */
typedef struct tri_mpi_fetched {
    int64_t expert, tokens;
    tri_mpi_kept *kept;                     /* NULL: not asked for yet */
} tri_mpi_fetched;

typedef struct tri_mpi_trip {
    tr_mpi_run *r;
    const tr_experts_args *a;
    int      S, G;                          /* places, segments */
    int64_t  K, I, O, E;
    size_t   elem;
    tr_range own;                           /* tokens that this rank sends */
    int32_t *expert, *place;                /* [N K] of each slot, -1: none; and who computes it,
                                               TRI_MPI_NO_PLACE, TRI_MPI_FETCHED: this rank */
    tri_mpi_fetched *fetched;  int64_t n_fetched, asked;    /* in order; asked for so far */
    tri_mpi_lot *out, *in;                  /* [G, S] */
    int64_t  out_rows, out_pairs, in_rows, in_pairs;
    tri_mpi_pair *out_pair, *in_pair;
    int32_t *slot;                          /* [out_pairs] slot of a->y that a pair is for */
    unsigned char *out_x, *in_x, *out_y, *in_y;
} tri_mpi_trip;

static tri_mpi_lot *tri_mpi_lot_of(tri_mpi_lot *lot, const tri_mpi_trip *t, int g, int s)
{
    return &lot[g * t->S + s];
}

/* One walk over this rank's tokens: counts (fill 0), or writes pairs, slots and rows. */
static tr_status tri_mpi_pack(tri_mpi_trip *t, int fill)
{
    int64_t R = t->own.end - t->own.begin;
    int64_t *last;                          /* [S] the token whose row went there last */
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(t->r->m, TRI_MPI_BUF_LISTS, (size_t)t->S * sizeof *last, &p));
    last = (int64_t *)p;
    for (int s = 0; s < t->S; s++) last[s] = -1;
    for (int i = 0; i < t->G * t->S; i++) t->out[i].rows = t->out[i].pairs = 0;
    for (int g = 0; g < t->G; g++) {
        tr_range part = tr_range_of(R, t->G, g);
        for (int64_t n = t->own.begin + part.begin; n < t->own.begin + part.end; n++)
            for (int64_t j = 0; j < t->K; j++) {
                int64_t slot = n * t->K + j;
                int s = t->place[slot];
                tri_mpi_lot *lot;
                if (s < 0) continue;
                lot = tri_mpi_lot_of(t->out, t, g, s);
                if (last[s] != n) {
                    if (fill)
                        TRI_MPI_TRY(tr_view_copy(t->r->m->ctx,
                            tr_view2(t->out_x + (size_t)((lot->row_at + lot->rows) * t->I) *
                                     t->elem, t->a->x.dtype, 1, t->I),
                            tr_view_slice(t->a->x, 0, n, 1)));
                    last[s] = n;
                    lot->rows++;
                }
                if (fill) {
                    int64_t i = lot->pair_at + lot->pairs;
                    t->out_pair[i].row = (int32_t)(lot->rows - 1);
                    t->out_pair[i].expert = t->expert[slot];
                    t->slot[i] = (int32_t)slot;
                }
                lot->pairs++;
            }
    }
    return TR_OK;
}

/* Places in the buffers: rows by segment, then place; pairs by place, then segment, as they are
 * sent together. */
static void tri_mpi_lay(const tri_mpi_trip *t, tri_mpi_lot *lot, int64_t *rows, int64_t *pairs)
{
    *rows = *pairs = 0;
    for (int g = 0; g < t->G; g++)
        for (int s = 0; s < t->S; s++) {
            tri_mpi_lot_of(lot, t, g, s)->row_at = *rows;
            *rows += tri_mpi_lot_of(lot, t, g, s)->rows;
        }
    for (int s = 0; s < t->S; s++)
        for (int g = 0; g < t->G; g++) {
            tri_mpi_lot_of(lot, t, g, s)->pair_at = *pairs;
            *pairs += tri_mpi_lot_of(lot, t, g, s)->pairs;
        }
}

/* Counts to and from all places. */
static tr_status tri_mpi_counts(tri_mpi_trip *t)
{
    tr_mpi *m = t->r->m;
    tr_mpi_part *send, *recv;
    int64_t *c, each = 2 * t->G;
    void *p;
    TRI_MPI_TRY(tri_mpi_parts(m, t->S, &send, &recv));
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_LISTS, (size_t)(2 * t->S * each) * sizeof *c, &p));
    c = (int64_t *)p;
    for (int s = 0; s < t->S; s++) {
        for (int g = 0; g < t->G; g++) {
            c[s * each + 2 * g] = tri_mpi_lot_of(t->out, t, g, s)->rows;
            c[s * each + 2 * g + 1] = tri_mpi_lot_of(t->out, t, g, s)->pairs;
        }
        send[s].peer = recv[s].peer = t->r->stage.first + s;
        send[s].data = c + s * each;
        recv[s].data = c + (t->S + s) * each;
        send[s].bytes = recv[s].bytes = (uint64_t)each * sizeof *c;
    }
    TRI_MPI_TRY(tr_mpi_exchange(m, TR_MPI_DISPATCH, "counts", send, t->S, recv, t->S));
    for (int s = 0; s < t->S; s++)
        for (int g = 0; g < t->G; g++) {
            const int64_t *n = c + (t->S + s) * each + 2 * g;
            tri_mpi_lot_of(t->in, t, g, s)->rows = n[0];
            tri_mpi_lot_of(t->in, t, g, s)->pairs = n[1];
            if (n[0] < 0 || n[1] < n[0] || n[1] > n[0] * t->K)
                return tr_fail(m->ctx, TR_ERR_PEER, "rank %d sends %lld rows for %lld answers",
                               t->r->stage.first + s, (long long)n[0], (long long)n[1]);
        }
    return TR_OK;
}

/* Which answers are wanted of which rows. */
static tr_status tri_mpi_pairs(tri_mpi_trip *t)
{
    tr_mpi *m = t->r->m;
    tr_mpi_part *send, *recv;
    TRI_MPI_TRY(tri_mpi_parts(m, t->S, &send, &recv));
    for (int s = 0; s < t->S; s++) {
        int last = s + 1 == t->S;
        int64_t out = t->out[s].pair_at, out_end = last ? t->out_pairs : t->out[s + 1].pair_at;
        int64_t in = t->in[s].pair_at, in_end = last ? t->in_pairs : t->in[s + 1].pair_at;
        send[s].peer = recv[s].peer = t->r->stage.first + s;
        send[s].data = t->out_pair + out;
        send[s].bytes = (uint64_t)(out_end - out) * sizeof *t->out_pair;
        recv[s].data = t->in_pair + in;
        recv[s].bytes = (uint64_t)(in_end - in) * sizeof *t->in_pair;
    }
    return tr_mpi_exchange(m, TR_MPI_DISPATCH, "pairs", send, t->S, recv, t->S);
}

/* Begins one message of each lot; those of this rank itself are copied, and NULL. */
static tr_status tri_mpi_post_lots(tri_mpi_trip *t, int sends, int answers, int g)
{
    tr_mpi *m = t->r->m;
    int outward = sends != answers;         /* rows leave by `out`, answers by `in` */
    tri_mpi_lot *lots = outward ? t->out : t->in;
    size_t each = (size_t)(answers ? t->O : t->I) * t->elem;
    for (int s = 0; s < t->S; s++) {
        tri_mpi_lot *lot = tri_mpi_lot_of(lots, t, g, s), *own;
        tri_mpi_msg **x = answers ? &lot->y : &lot->x;
        int64_t n = answers ? lot->pairs : lot->rows, at = answers ? lot->pair_at : lot->row_at;
        unsigned char *buf = answers ? (sends ? t->out_y : t->in_y) : (sends ? t->out_x : t->in_x);
        tr_mpi_part p;
        *x = NULL;
        p.peer = t->r->stage.first + s;
        p.data = buf + (size_t)at * each;
        p.bytes = (uint64_t)n * each;
        if (!n) continue;
        if (s != t->r->stage.me) {
            int moved = 0;
            TRI_MPI_TRY(tri_mpi_post(m, sends, answers ? TR_MPI_COMBINE : TR_MPI_DISPATCH,
                                     answers ? "answers" : "tokens", &p, x));
            TRI_MPI_TRY(tri_mpi_push(m, *x, &moved));
        } else if (sends) {
            own = tri_mpi_lot_of(outward ? t->in : t->out, t, g, s);
            memcpy((answers ? t->in_y : t->in_x) +
                   (size_t)(answers ? own->pair_at : own->row_at) * each, p.data, (size_t)p.bytes);
        }
    }
    return TR_OK;
}

/* Waits for what was begun of the lots of segment g: their rows or their answers. */
static tr_status tri_mpi_wait_lots(tri_mpi_trip *t, tri_mpi_lot *lots, int answers, int g)
{
    tri_mpi_msg **x;
    void *p;
    int n = 0;
    TRI_MPI_TRY(tri_mpi_scratch(t->r->m, TRI_MPI_BUF_WAITED, (size_t)t->S * sizeof *x, &p));
    x = (tri_mpi_msg **)p;
    for (int s = 0; s < t->S; s++) {
        tri_mpi_lot *lot = tri_mpi_lot_of(lots, t, g, s);
        tri_mpi_msg **y = answers ? &lot->y : &lot->x;
        if (*y) x[n++] = *y;
        *y = NULL;
    }
    return tri_mpi_wait(t->r->m, x, n);
}

/* The experts held here that have tokens must be sound; in order of their index. */
static tr_status tri_mpi_sound(tri_mpi_trip *t, const int32_t *offset)
{
    tr_layer *ly = &t->r->mm->part->layer[t->r->run->layer->index - t->r->mm->part->first];
    for (int64_t e = 0; e < t->E; e++)
        for (int k = 0; offset[e] < offset[e + 1] && k < 3; k++) {
            tr_weight *w = &ly->expert[k][e];
            if (!w->q)
                return tr_fail(t->r->m->ctx, TR_ERR_PEER, "tokens came for expert %lld, which this "
                               "rank does not hold", (long long)e);
            if (!w->finite) TRI_MPI_TRY(tr_weight_check(t->r->m->ctx, w));
        }
    return TR_OK;
}

/* b.g, b.u of the local operator for that many slots. */
static tr_status tri_mpi_inner_room(const tri_mpi_trip *t, tr_experts_args *b, int64_t slots)
{
    tr_mpi *m = t->r->m;
    int64_t F = t->a->g.shape[1];
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_GATES, (size_t)(slots * F) * t->elem, &p));
    b->g = tr_view2(p, t->a->g.dtype, slots, F);
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_UPS, (size_t)(slots * F) * t->elem, &p));
    b->u = tr_view2(p, t->a->u.dtype, slots, F);
    return TR_OK;
}

/* The pairs that came in one segment, in the lots first [S], by expert: order and offset as the
 * local operator takes them; at [pairs]: the slot of each, in the order in which they came; used
 * [rows]: slots of each row. */
static tr_status tri_mpi_sort_pairs(const tri_mpi_trip *t, const tri_mpi_lot *first, int32_t *order,
                                    int32_t *offset, int32_t *at, int32_t *used)
{
    int64_t base = 0, k = 0;
    for (int s = 0; s < t->S; base += first[s++].rows)
        for (int64_t i = 0; i < first[s].pairs; i++, k++) {
            tri_mpi_pair q = t->in_pair[first[s].pair_at + i];
            if (q.row < 0 || q.row >= first[s].rows || q.expert < 0 || q.expert >= t->E ||
                used[base + q.row] == t->K)
                return tr_fail(t->r->m->ctx, TR_ERR_PEER, "rank %d asks for expert %d of row %d of "
                               "%lld", t->r->stage.first + s, q.expert, q.row,
                               (long long)first[s].rows);
            at[k] = (int32_t)((base + q.row) * t->K + used[base + q.row]++);
            offset[q.expert + 1]++;
        }
    for (int64_t e = 0; e < t->E; e++) offset[e + 1] += offset[e];
    k = 0;
    for (int s = 0; s < t->S; s++)
        for (int64_t i = 0; i < first[s].pairs; i++)
            order[offset[t->in_pair[first[s].pair_at + i].expert]++] = at[k++];
    for (int64_t e = t->E; e > 0; e--) offset[e] = offset[e - 1];       /* each was moved on */
    offset[0] = 0;
    return TR_OK;
}

/* Segment g: all rows that came, through the local operator; answers packed by pair. */
static tr_status tri_mpi_segment(tri_mpi_trip *t, int g)
{
    tr_mpi *m = t->r->m;
    const tri_mpi_lot *first = tri_mpi_lot_of(t->in, t, g, 0);
    tr_experts_args b = *t->a;
    int64_t rows = 0, pairs = 0, slots, k = 0;
    int32_t *offset, *order, *at, *used;
    void *p;
    for (int s = 0; s < t->S; s++) {
        rows += first[s].rows;
        pairs += first[s].pairs;
    }
    if (!pairs) return TR_OK;
    slots = rows * t->K;
    if (slots > INT32_MAX)
        return tr_fail(m->ctx, TR_ERR_RANGE, "%lld tokens for the experts of one rank at a time; "
                       "run smaller pieces", (long long)rows);
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_LISTS,
                                (size_t)(t->E + 1 + slots + pairs + rows) * sizeof *at, &p));
    offset = (int32_t *)p;
    order = offset + t->E + 1;
    at = order + slots;
    used = at + pairs;
    memset(offset, 0, (size_t)(t->E + 1) * sizeof *offset);
    memset(order, 0xff, (size_t)slots * sizeof *order);         /* -1: no expert */
    memset(used, 0, (size_t)rows * sizeof *used);
    TRI_MPI_TRY(tri_mpi_sort_pairs(t, first, order, offset, at, used));
    TRI_MPI_TRY(tri_mpi_sound(t, offset));
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_C, (size_t)slots * (size_t)t->O * t->elem, &p));
    b.y = tr_view3(p, t->a->y.dtype, rows, t->K, t->O);
    b.x = tr_view2(t->in_x + (size_t)(first[0].row_at * t->I) * t->elem, t->a->x.dtype, rows, t->I);
    b.order = tr_view1(order, TR_I32, slots);
    b.offset = tr_view1(offset, TR_I32, t->E + 1);
    TRI_MPI_TRY(tri_mpi_inner_room(t, &b, slots));
    TRI_MPI_TRY(t->r->local.experts(t->r->local.user, m->ctx, &b));
    for (int s = 0; s < t->S; s++)
        for (int64_t i = 0; i < first[s].pairs; i++, k++)
            memcpy(t->out_y + (size_t)((first[s].pair_at + i) * t->O) * t->elem,
                   (const unsigned char *)b.y.data + (size_t)(at[k] * t->O) * t->elem,
                   (size_t)t->O * t->elem);
    return TR_OK;
}

/* Answers of segment g to their slots. */
static tr_status tri_mpi_unpack(tri_mpi_trip *t, int g)
{
    for (int s = 0; s < t->S; s++) {
        const tri_mpi_lot *lot = tri_mpi_lot_of(t->out, t, g, s);
        for (int64_t i = lot->pair_at; i < lot->pair_at + lot->pairs; i++) {
            tr_view token = tr_view_at(t->a->y, t->slot[i] / t->K);
            TRI_MPI_TRY(tr_view_copy(t->r->m->ctx, tr_view_slice(token, 0, t->slot[i] % t->K, 1),
                tr_view2(t->in_y + (size_t)(i * t->O) * t->elem, t->a->y.dtype, 1, t->O)));
        }
    }
    return TR_OK;
}

static tr_status tri_mpi_trip_buffers(tri_mpi_trip *t)
{
    tr_mpi *m = t->r->m;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_OUT_PAIRS,
                                (size_t)t->out_pairs * sizeof *t->out_pair, &p));
    t->out_pair = (tri_mpi_pair *)p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_IN_PAIRS,
                                (size_t)t->in_pairs * sizeof *t->in_pair, &p));
    t->in_pair = (tri_mpi_pair *)p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_SLOTS, (size_t)t->out_pairs * sizeof *t->slot, &p));
    t->slot = (int32_t *)p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_OUT_ROWS,
                                (size_t)(t->out_rows * t->I) * t->elem, &p));
    t->out_x = (unsigned char *)p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_IN_ROWS, (size_t)(t->in_rows * t->I) * t->elem, &p));
    t->in_x = (unsigned char *)p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_ANSWERS,
                                (size_t)((t->in_pairs + t->out_pairs) * t->O) * t->elem, &p));
    t->out_y = (unsigned char *)p;
    t->in_y = t->out_y + (size_t)(t->in_pairs * t->O) * t->elem;
    return TR_OK;
}

/* ---- experts that come ------------------------------------------------------ */

/* Which do: those that this rank lacks and that at least map.fetch of its tokens want. */
static tr_status tri_mpi_choose(tri_mpi_trip *t)
{
    int64_t first = t->own.begin * t->K, end = t->own.end * t->K, fetch = t->r->mm->map.fetch;
    tri_mpi_fetched *of;                    /* [E] counted, then those chosen to its front */
    void *p;
    if (!fetch) return TR_OK;
    t->r->mm->fetch.pass++;
    TRI_MPI_TRY(tri_mpi_scratch(t->r->m, TRI_MPI_BUF_FETCHED, (size_t)t->E * sizeof *of, &p));
    of = t->fetched = (tri_mpi_fetched *)p;
    memset(of, 0, (size_t)t->E * sizeof *of);
    for (int64_t i = first; i < end; i++)
        if (t->expert[i] >= 0 && t->place[i] != t->r->stage.me) of[t->expert[i]].tokens++;
    for (int64_t i = first; i < end; i++)
        if (t->expert[i] >= 0 && of[t->expert[i]].tokens >= fetch) t->place[i] = TRI_MPI_FETCHED;
    for (int64_t e = 0; e < t->E; e++) {
        if (of[e].tokens < fetch) continue;
        of[t->n_fetched].tokens = of[e].tokens;
        of[t->n_fetched++].expert = e;
    }
    return TR_OK;
}

/* Begins to fetch as many of the next ones as can be kept. */
static tr_status tri_mpi_ask(tri_mpi_trip *t)
{
    int64_t l = t->r->run->layer->index - t->r->mm->part->first;
    for (; t->asked < t->n_fetched; t->asked++) {
        tri_mpi_fetched *c = &t->fetched[t->asked];
        TRI_MPI_TRY(tri_mpi_want(&t->r->mm->fetch, l, c->expert, &c->kept));
        if (!c->kept) break;
    }
    return TR_OK;
}

/* The answers of one that came, to all tokens of this rank that want it. */
static tr_status tri_mpi_answer(tri_mpi_trip *t, const tri_mpi_fetched *c)
{
    tr_mpi *m = t->r->m;
    tr_experts_args b = *t->a;
    int64_t n = c->tokens, k = 0;
    int32_t *offset, *order;
    int64_t *slot;
    unsigned char *rows;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_LISTS,
                                (size_t)n * (sizeof *slot + sizeof *order) + 2 * sizeof *offset,
                                &p));
    slot = (int64_t *)p;
    order = (int32_t *)(slot + n);
    offset = order + n;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_C, (size_t)(n * (t->I + t->O)) * t->elem, &p));
    rows = (unsigned char *)p;
    b.x = tr_view2(rows, t->a->x.dtype, n, t->I);
    b.y = tr_view3(rows + (size_t)(n * t->I) * t->elem, t->a->y.dtype, n, 1, t->O);
    for (int64_t i = t->own.begin * t->K; i < t->own.end * t->K; i++) {
        if (t->expert[i] != c->expert) continue;
        TRI_MPI_TRY(tr_view_copy(m->ctx, tr_view_slice(b.x, 0, k, 1),
                                 tr_view_slice(t->a->x, 0, i / t->K, 1)));
        slot[k] = i;
        order[k] = (int32_t)k;
        k++;
    }
    offset[0] = 0;
    offset[1] = (int32_t)n;
    b.order = tr_view1(order, TR_I32, n);
    b.offset = tr_view1(offset, TR_I32, 2);
    b.gate = &c->kept->w[0];
    b.up = &c->kept->w[1];
    b.down = &c->kept->w[2];
    TRI_MPI_TRY(tri_mpi_inner_room(t, &b, n));
    TRI_MPI_TRY(t->r->local.experts(t->r->local.user, m->ctx, &b));
    for (k = 0; k < n; k++)
        TRI_MPI_TRY(tr_view_copy(m->ctx, tr_view_slice(tr_view_at(t->a->y, slot[k] / t->K), 0,
                                                       slot[k] % t->K, 1), tr_view_at(b.y, k)));
    return TR_OK;
}

static tr_status tri_mpi_answer_all(tri_mpi_trip *t)
{
    for (int64_t i = 0; i < t->n_fetched; i++) {
        tri_mpi_fetched *c = &t->fetched[i];
        TRI_MPI_TRY(tri_mpi_arrive(&t->r->mm->fetch, c->kept));
        TRI_MPI_TRY(tri_mpi_answer(t, c));
        c->kept->wanted = 0;
        TRI_MPI_TRY(tri_mpi_ask(t));
    }
    return TR_OK;
}

/* There and back. What others wait for goes first. */
static tr_status tri_mpi_travel(tri_mpi_trip *t)
{
    TRI_MPI_TRY(tri_mpi_ask(t));
    TRI_MPI_TRY(tri_mpi_pack(t, 0));
    TRI_MPI_TRY(tri_mpi_counts(t));
    tri_mpi_lay(t, t->out, &t->out_rows, &t->out_pairs);
    tri_mpi_lay(t, t->in, &t->in_rows, &t->in_pairs);
    TRI_MPI_TRY(tri_mpi_trip_buffers(t));
    TRI_MPI_TRY(tri_mpi_pack(t, 1));
    TRI_MPI_TRY(tri_mpi_pairs(t));
    for (int g = 0; g < t->G; g++) TRI_MPI_TRY(tri_mpi_post_lots(t, 0, 0, g));
    for (int g = 0; g < t->G; g++) TRI_MPI_TRY(tri_mpi_post_lots(t, 1, 0, g));
    for (int g = 0; g < t->G; g++) TRI_MPI_TRY(tri_mpi_post_lots(t, 0, 1, g));
    for (int g = 0; g < t->G; g++) {
        TRI_MPI_TRY(tri_mpi_wait_lots(t, t->in, 0, g));
        TRI_MPI_TRY(tri_mpi_segment(t, g));
        TRI_MPI_TRY(tri_mpi_post_lots(t, 1, 1, g));
    }
    TRI_MPI_TRY(tri_mpi_answer_all(t));
    for (int g = 0; g < t->G; g++) {
        TRI_MPI_TRY(tri_mpi_wait_lots(t, t->out, 0, g));
        TRI_MPI_TRY(tri_mpi_wait_lots(t, t->out, 1, g));
        TRI_MPI_TRY(tri_mpi_wait_lots(t, t->in, 1, g));
        TRI_MPI_TRY(tri_mpi_unpack(t, g));
    }
    return TR_OK;
}

/* Who computes which slot, of this rank's tokens; what no expert computes is 0. */
static tr_status tri_mpi_places(tri_mpi_trip *t)
{
    const tr_experts_args *a = t->a;
    const int32_t *order = (const int32_t *)a->order.data, *at = (const int32_t *)a->offset.data;
    int64_t slots = a->x.shape[0] * t->K;
    void *p;
    TRI_MPI_TRY(tri_mpi_scratch(t->r->m, TRI_MPI_BUF_B, (size_t)(2 * slots) * sizeof *t->expert,
                                &p));
    t->expert = (int32_t *)p;
    t->place = t->expert + slots;
    for (int64_t i = 0; i < slots; i++) {
        t->expert[i] = -1;
        t->place[i] = TRI_MPI_NO_PLACE;
    }
    for (int64_t e = 0; e < t->E; e++)
        for (int32_t i = at[e]; i < at[e + 1]; i++) t->expert[order[i]] = (int32_t)e;
    for (int64_t i = t->own.begin * t->K; i < t->own.end * t->K; i++) {
        tr_view y = tr_view_slice(tr_view_at(a->y, i / t->K), 0, i % t->K, 1);
        if (t->expert[i] >= 0)
            t->place[i] = (int32_t)tri_mpi_server(&t->r->mm->map, t->r->run->layer->index,
                                                  t->expert[i], t->r->stage.me, i / t->K);
        else memset(y.data, 0, (size_t)t->O * t->elem);
    }
    return TR_OK;
}

static tr_status tri_mpi_experts(void *user, tr_ctx *ctx, const tr_experts_args *a)
{
    tr_mpi_run *r = tri_mpi_enter(user, "experts");
    int64_t N = a->x.shape[0], G = r->most / TRI_MPI_SEGMENT_ROWS;
    tri_mpi_trip t;
    void *p;
    TRI_MPI_TRY(tri_mpi_need(r->m, a->x));
    if (r->stage.n == 1) {
        tri_mpi_forget(r->m, a->y);
        return N ? r->local.experts(r->local.user, ctx, a) : TR_OK;
    }
    memset(&t, 0, sizeof t);
    t.r = r;
    t.a = a;
    t.S = r->stage.n;
    t.G = G < 1 ? 1 : G > TRI_MPI_SEGMENTS ? TRI_MPI_SEGMENTS : (int)G;
    t.K = a->y.shape[1];
    t.I = a->x.shape[1];
    t.O = a->y.shape[2];
    t.E = a->offset.shape[0] - 1;
    t.elem = tri_mpi_elem(a->x);
    t.own = tr_range_of(N, r->tp.n, r->tp.me);
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_A, 2 * (size_t)(t.G * t.S) * sizeof *t.out, &p));
    t.out = (tri_mpi_lot *)p;
    t.in = t.out + t.G * t.S;
    memset(t.out, 0, 2 * (size_t)(t.G * t.S) * sizeof *t.out);
    TRI_MPI_TRY(tri_mpi_places(&t));
    if (r->tp.n > 1) TRI_MPI_TRY(tri_mpi_remember(r->m, a->y, 0, N));
    TRI_MPI_TRY(tri_mpi_choose(&t));
    return tri_mpi_travel(&t);
}

/* Each rank of a tp group combines the tokens that it sent away. */
static tr_status tri_mpi_combine(void *user, tr_ctx *ctx, const tr_combine_args *args)
{
    tr_mpi_run *r = tri_mpi_enter(user, "combine");
    tr_combine_args a = *args;
    tri_mpi_operand o[3] = { { &a.x, 0, 0 }, { &a.weights, 0, 0 }, { &a.y, 0, 1 } };
    TRI_MPI_SHARED(combine);
}

/* ============================================================================
 * 10. The table of operators {mops}
 *
 * The seam: the engine of trillion.h runs through this table, and each entry works for the run that
 * is its `user`. What computes is the profile's table behind it, so that the oracle over ranks is
 * the oracle.
 * ========================================================================= */

static tr_ops tri_mpi_ops(tr_mpi_run *r)
{
    tr_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.name = "ranks";
    ops.user = r;
#define TRI_MPI_ENTRY(op, args, f64, f32) ops.op = tri_mpi_##op;
    TR_OPS_LIST(TRI_MPI_ENTRY)
#undef TRI_MPI_ENTRY
    ops.whole = tri_mpi_whole;
    return ops;
}

/* ============================================================================
 * 11. Running {mrun}
 *
 *     sequence b belongs to group b mod EP of the ep axis; there its tokens are dealt along cp
 *     one forward:  hidden state from the stage before, or this rank's rows of the caller's
 *                   -> tr_forward of this rank's part -> on
 *     taps:         kept as records, sent to rank 0 after the call, shown there in model order
 *
 * Traps. A rank without a token of the call still goes through all layers: others wait for it in
 * the exchanges of experts. Its state knows how long its sequences are by what all ranks did, so
 * lengths are set before each call. What was handed on may still be on its way when the next piece
 * comes; its memory is used again only when it has left.
 * ========================================================================= */

/* A tap on its way to rank 0; its data follows. */
typedef struct tri_mpi_tapped {
    uint64_t bytes;                         /* of head and data, a multiple of 64 */
    int32_t  kind, dtype, rank, grows;
    int64_t  shape[TR_MAX_RANK];
    int64_t  seq, T, pos, row, rows, image;
    char     name[256];
} tri_mpi_tapped;

enum { TRI_MPI_TAPPED = (sizeof(tri_mpi_tapped) + 63) / 64 * 64 };

tr_run *tr_mpi_run_part(const tr_mpi_run *r) { return r->run; }

/* Keeps x of a tap: T rows from position pos of a sequence, or what else it is. */
static tr_status tri_mpi_record_tap(tr_mpi_run *r, const tr_tap *t, tr_view x, int64_t seq,
                                    int64_t T, int64_t pos)
{
    tri_mpi_tapped h;
    size_t n = TRI_MPI_TAPPED + (tri_mpi_bytes(x) + 63) / 64 * 64;
    if (r->rec_n + n > r->rec_cap) {
        size_t cap = (r->rec_n + n) * 2;
        void *p;
        TRI_MPI_TRY(tr_alloc(r->m->ctx, &p, cap));
        if (r->rec_n) memcpy(p, r->rec, r->rec_n);
        tr_free(r->m->ctx, r->rec);
        r->rec = (unsigned char *)p;
        r->rec_cap = cap;
    }
    memset(&h, 0, sizeof h);
    h.bytes = n;
    h.kind = (int32_t)t->kind;
    h.dtype = (int32_t)x.dtype;
    h.rank = x.rank;
    h.grows = t->grows;
    memcpy(h.shape, x.shape, (size_t)x.rank * sizeof *x.shape);
    h.seq = seq;
    h.T = T;
    h.pos = pos;
    h.row = t->row;
    h.rows = t->rows;
    h.image = t->image;
    snprintf(h.name, sizeof h.name, "%s", t->name);
    memcpy(r->rec + r->rec_n, &h, sizeof h);
    if (tri_mpi_bytes(x))
        TRI_MPI_TRY(tr_view_copy(r->m->ctx, tri_mpi_packed(r->rec + r->rec_n + TRI_MPI_TAPPED, x),
                                 x));
    r->rec_n += n;
    return TR_OK;
}

/* The tap of this rank's run: of what several ranks have whole, one keeps it. */
static tr_status tri_mpi_tap(void *user, tr_ctx *ctx, const tr_tap *t)
{
    tr_mpi_run *r = (tr_mpi_run *)user;
    int64_t row = 0;
    (void)ctx;
    if (r->tp.me) return TR_OK;
    if (t->kind == TR_TAP_PATCHES)
        return r->cp.me ? TR_OK : tri_mpi_record_tap(r, t, t->x, -1, 0, 0);
    if (t->kind == TR_TAP_STATE)
        return r->cp.me < r->cp.n - 1 || t->seq >= r->n ? TR_OK
            : tri_mpi_record_tap(r, t, t->x, r->number[t->seq], 0, t->pos[t->seq]);
    for (int64_t b = 0; b < r->n; b++) {
        int64_t T = t->batch->T[b];
        if (t->seq >= 0 && t->seq != b) continue;
        if (T)
            TRI_MPI_TRY(tri_mpi_record_tap(r, t, t->kind == TR_TAP_PROBS ? t->x
                        : tr_view_slice(t->x, 0, row, T), r->number[b], T, t->pos[b]));
        row += T;
    }
    return TR_OK;
}

/* One kept tap to the caller's. */
static tr_status tri_mpi_show(tr_mpi_run *r, unsigned char *at, int64_t *T, int64_t *pos)
{
    tri_mpi_tapped h;
    tr_batch b;
    tr_tap t;
    memcpy(&h, at, sizeof h);
    memset(&t, 0, sizeof t);
    b.B = r->opts.B;
    b.T = T;
    b.ids = NULL;
    if (h.seq >= 0) {
        T[h.seq] = h.T;
        pos[h.seq] = h.pos;
    }
    t.name = h.name;
    t.x = tr_view_of(at + TRI_MPI_TAPPED, (tr_dtype)h.dtype, h.rank, h.shape);
    t.kind = (tr_tap_kind)h.kind;
    t.batch = &b;
    t.pos = pos;
    t.seq = h.seq;
    t.grows = h.grows;
    t.row = h.row;
    t.rows = h.rows;
    t.image = h.image;
    return r->opts.tap(r->opts.tap_user, r->m->ctx, &t);
}

/* What a rank kept, n bytes: of one image, or all of it if image is -1. */
static tr_status tri_mpi_show_all(tr_mpi_run *r, unsigned char *at, uint64_t n, int64_t image,
                                  int64_t *T, int64_t *pos)
{
    for (uint64_t k = 0; k < n; ) {
        tri_mpi_tapped h;
        memcpy(&h, at + k, sizeof h);
        if (image < 0 || h.image == image) TRI_MPI_TRY(tri_mpi_show(r, at + k, T, pos));
        k += h.bytes;
    }
    return TR_OK;
}

/* All kept taps to rank 0 and to the caller there; images: how many, one after another; or 0. */
static tr_status tri_mpi_show_taps(tr_mpi_run *r, int64_t images)
{
    tr_mpi *m = r->m;
    tr_mpi_part *send, *recv;
    uint64_t n = r->rec_n, *size, all = 0;
    unsigned char *at;
    int64_t *T;
    void *p = NULL, *buf = NULL, *lists = NULL;
    tr_status s;
    if (!r->opts.tap) return TR_OK;
    r->rec_n = 0;
    m->layer = -1;
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_ROOT, (size_t)m->size * sizeof *size, &p));
    size = (uint64_t *)p;
    TRI_MPI_TRY(tr_mpi_collect(m, TR_MPI_TAP, "taps", &n, size, sizeof n));
    TRI_MPI_TRY(tri_mpi_parts(m, m->size, &send, &recv));
    if (m->rank) {
        send->peer = 0;
        send->data = r->rec;
        send->bytes = n;
        return tr_mpi_exchange(m, TR_MPI_TAP, "taps", send, 1, NULL, 0);
    }
    for (int i = 1; i < m->size; i++) all += size[i];
    s = tr_alloc(m->ctx, &buf, (size_t)all);
    if (s == TR_OK) s = tr_alloc(m->ctx, &lists, 2 * (size_t)r->opts.B * sizeof *T);
    if (s != TR_OK) return tr_mpi_raise(m, s);
    T = (int64_t *)lists;
    at = (unsigned char *)buf;
    for (int i = 1; i < m->size; i++) {
        recv[i].peer = i;
        recv[i].data = at;
        recv[i].bytes = size[i];
        at += size[i];
    }
    s = tr_mpi_exchange(m, TR_MPI_TAP, "taps", NULL, 0, recv + 1, m->size - 1);
    for (int64_t image = images ? 0 : -1; s == TR_OK && image < images; image++) {
        s = tri_mpi_show_all(r, r->rec, n, image, T, T + r->opts.B);
        for (int i = 1; s == TR_OK && i < m->size; i++)
            s = tri_mpi_show_all(r, (unsigned char *)recv[i].data, size[i], image, T,
                                 T + r->opts.B);
    }
    tr_free(m->ctx, lists);
    tr_free(m->ctx, buf);
    return tr_mpi_raise(m, s);
}

/* ---- from start to end ------------------------------------------------------ */

/* The lists that a run keeps, for the sequences dealt here. */
static tr_status tri_mpi_run_lists(tr_mpi_run *r)
{
    tr_ctx *ctx = r->m->ctx;
    int64_t n = r->n > 0 ? r->n : 1;
    void *p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)n * sizeof *r->mine));
    r->mine = (tri_mpi_seq *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)(n * r->cp.n) * sizeof *r->held));
    r->held = (int64_t *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)r->opts.B * sizeof *r->len));
    r->len = (int64_t *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)r->opts.B * sizeof *r->now));
    r->now = (int64_t *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)n * sizeof *r->T));
    r->T = (int64_t *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)r->opts.max_tokens * sizeof *r->ids));
    r->ids = (int32_t *)p;
    TRI_MPI_TRY(tr_alloc(ctx, &p, (size_t)n * sizeof *r->number));
    r->number = (int64_t *)p;
    for (int64_t k = 0; k < r->n; k++) {
        r->number[k] = r->ep.me + k * r->ep.n;
        r->mine[k].held = r->held + k * r->cp.n;
    }
    return TR_OK;
}

static tr_status tri_mpi_same_opts(tr_mpi *m, const tr_run_opts *o)
{
    char text[256], globs[65];
    tr_sha256 h;
    tr_sha256_init(&h);
    for (int64_t i = 0; i < o->n_globs; i++)
        tr_sha256_update(&h, o->globs[i], strlen(o->globs[i]) + 1);
    tr_sha256_hex(&h, globs);
    snprintf(text, sizeof text, "%s, %lld sequences, %lld tokens a call, capacity %lld, logits %d, "
             "images %lld %lld %lld, taps %d %.16s", o->profile->name, (long long)o->B,
             (long long)o->max_tokens, (long long)o->capacity, (int)o->logits,
             (long long)o->max_images, (long long)o->max_patches, (long long)o->image_rows,
             o->tap != NULL, globs);
    return tr_mpi_same(m, "what the run is made with", text);
}

tr_status tr_mpi_run_new(tr_mpi *m, tr_mpi_run **out, tr_mpi_model *mm, const tr_run_opts *opts)
{
    tr_mpi_run *r = NULL;
    tr_run_opts o = *opts;
    tr_ops ops;
    void *p;
    tr_status s = tr_alloc(m->ctx, &p, sizeof *r);
    *out = NULL;
    if (s == TR_OK) {
        r = (tr_mpi_run *)p;
        r->m = m;
        r->mm = mm;
        r->opts = *opts;
        r->tp = tr_mpi_group_of(m, TR_MPI_TP);
        r->cp = tr_mpi_group_of(m, TR_MPI_CP);
        r->ep = tr_mpi_group_of(m, TR_MPI_EP);
        r->pp = tr_mpi_group_of(m, TR_MPI_PP);
        r->stage = tr_mpi_group_of(m, TR_MPI_IN_STAGE);
        if (!opts->profile || opts->B < 1 || opts->max_tokens < 1)
            s = tr_fail(m->ctx, TR_ERR_ARG, "a run needs a profile, at least one sequence and one "
                        "token a call");
        else if (opts->ops)
            s = tr_fail(m->ctx, TR_ERR_ARG, "the table of operators over ranks wraps the "
                        "profile's; another cannot be given");
    }
    if (s == TR_OK) {
        r->local = opts->profile->ops();
        r->n = opts->B > r->ep.me ? (opts->B - r->ep.me + r->ep.n - 1) / r->ep.n : 0;
        s = tri_mpi_run_lists(r);
    }
    if (s == TR_OK) {
        ops = tri_mpi_ops(r);
        o.ops = &ops;
        o.B = r->n > 0 ? r->n : 1;
        o.idle = 1;
        o.tap = opts->tap ? tri_mpi_tap : NULL;
        o.tap_user = r;
        if (r->pp.me) o.max_patches = o.max_images = o.image_rows = 0;
        s = tr_run_new(m->ctx, &r->run, mm->part, &o);
        if (s == TR_OK) r->run->number = r->number;
    }
    s = tr_mpi_agree(m, s);
    if (s == TR_OK) s = tri_mpi_same_opts(m, opts);
    if (s == TR_OK) *out = r;
    else tr_mpi_run_free(r);
    return s;
}

/* What was handed on has left, or the deadline is over. */
static tr_status tri_mpi_handed(tr_mpi_run *r)
{
    tri_mpi_msg *x = r->handed;
    r->handed = NULL;
    return x ? tri_mpi_wait(r->m, &x, 1) : TR_OK;
}

void tr_mpi_run_free(tr_mpi_run *r)
{
    tr_ctx *ctx;
    if (!r) return;
    ctx = r->m->ctx;
    if (!r->m->failed) (void)tri_mpi_handed(r);
    if (r->m->failed) return;           /* MPI may still write to what messages point to */
    tr_run_free(r->run);
    tr_free(ctx, r->mine);
    tr_free(ctx, r->held);
    tr_free(ctx, r->number);
    tr_free(ctx, r->len);
    tr_free(ctx, r->now);
    tr_free(ctx, r->T);
    tr_free(ctx, r->ids);
    tr_free(ctx, r->rec);
    tr_free(ctx, r->hand.p);
    tr_free(ctx, r);
}

/* ---- images ------------------------------------------------------------------ */

/* owner [im->n] becomes the sequence of each image: each sequence has as many as its placeholders
 * have rows for, of those that are left. Returns how many found a place. */
static int64_t tri_mpi_image_owners(const tr_mpi_run *r, const tr_images *im, const tr_batch *b,
                                    int64_t *owner)
{
    const tr_config *c = &r->mm->part->cfg;
    const int32_t *id = b->ids;
    int64_t i = 0;
    for (int64_t s = 0; s < b->B; s++) {
        int64_t rows = 0;
        for (int64_t t = 0; t < b->T[s]; t++) rows += *id++ == c->media.v[0];
        for (; rows > 0 && i < im->n; rows -= tr_image_rows(c, im, i++)) owner[i] = s;
    }
    return i;
}

static int64_t tri_mpi_patches(const tr_images *im, int64_t i)
{
    return im->grid[3 * i] * im->grid[3 * i + 1] * im->grid[3 * i + 2];
}

/* The images of the sequences dealt here, or without prompts every EP-th, and those prompts,
 * through this rank's tower. owner [im->n]: of tri_mpi_image_owners; b NULL: not looked at. */
static tr_status tri_mpi_see_part(tr_mpi_run *r, const tr_images *im, const tr_batch *b,
                                  const int64_t *owner)
{
    tr_images part;
    tr_batch mine;
    tr_view pixels;
    int64_t *grid, *among, patches = 0, n = 0, N = 0, at = 0;
    int32_t *ids;
    void *p;
    for (int64_t s = 0; b && s < b->B; s++) N += b->T[s];
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_A, (size_t)(5 * im->n) * sizeof *grid, &p));
    grid = (int64_t *)p;
    among = grid + 3 * im->n;
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_B, tri_mpi_bytes(im->pixels), &p));
    pixels = tri_mpi_packed(p, im->pixels);
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_C, (size_t)(N + 1) * sizeof *ids, &p));
    ids = (int32_t *)p;
    memset(&part, 0, sizeof part);
    for (int64_t i = 0; i < im->n; i++) {
        int64_t k = tri_mpi_patches(im, i);
        part.patches += k;
        if ((b ? owner[i] : i) % r->ep.n != r->ep.me) continue;
        memcpy(grid + 3 * part.n, im->grid + 3 * i, 3 * sizeof *grid);
        among[2 * part.n] = i;
        among[2 * part.n++ + 1] = part.patches - k;
        TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_slice(pixels, 0, patches, k),
                                 tr_view_slice(im->pixels, 0, part.patches - k, k)));
        patches += k;
    }
    for (int64_t s = 0; b && s < b->B; at += b->T[s++]) {
        if (s % r->ep.n != r->ep.me) continue;
        if (b->T[s]) memcpy(ids + n, b->ids + at, (size_t)b->T[s] * sizeof *ids);
        n += b->T[s];
        r->T[s / r->ep.n] = b->T[s];
    }
    if (!part.n) {                          /* others have some: names of taps are theirs */
        TRI_MPI_TRY(tr_vit_forward(r->run, NULL, NULL));
        memset(r->run->media, 0, 2 * (size_t)r->run->opts.B * sizeof *r->run->media);
        r->run->seeing = b != NULL;
        return TR_OK;
    }
    part.pixels = tr_view_slice(pixels, 0, 0, patches);
    part.grid = grid;
    part.among = among;
    mine.B = r->n;
    mine.T = r->T;
    mine.ids = ids;
    for (int64_t k = 0; k < r->n; k++) r->run->state.len[k] = r->len[r->number[k]];
    return tr_vit_forward(r->run, &part, b ? &mine : NULL);
}

tr_status tr_mpi_see(tr_mpi_run *r, const tr_images *im, const tr_batch *b)
{
    tr_run_opts o;
    int64_t *owner = NULL;
    void *p = NULL;
    tr_status s = TR_OK;
    if (r->m->failed) return TR_ERR_PEER;
    if (!im) return r->pp.me ? TR_OK : tr_vit_forward(r->run, NULL, NULL);
    s = tr_run_opts_images(r->m->ctx, &o, &r->mm->part->cfg, im);
    if (s == TR_OK && (o.max_patches > r->opts.max_patches || o.max_images > r->opts.max_images ||
                       o.image_rows > r->opts.image_rows))
        s = tr_fail(r->m->ctx, TR_ERR_ARG, "%lld images of up to %lld patches that fill %lld rows; "
                    "the run was made for %lld, %lld and %lld", (long long)o.max_images,
                    (long long)o.max_patches, (long long)o.image_rows,
                    (long long)r->opts.max_images, (long long)r->opts.max_patches,
                    (long long)r->opts.image_rows);
    if (s == TR_OK && b && b->B != r->opts.B)
        s = tr_fail(r->m->ctx, TR_ERR_ARG, "the batch has %lld sequences, the run %lld",
                    (long long)b->B, (long long)r->opts.B);
    if (s == TR_OK && b && r->mm->layers.begin)
        s = tr_fail(r->m->ctx, TR_ERR_ARG, "layer %lld and those behind it see no embeddings: "
                    "images have no place there", (long long)r->mm->layers.begin);
    if (s == TR_OK)
        s = tri_mpi_scratch(r->m, TRI_MPI_BUF_LISTS, (size_t)im->n * sizeof *owner, &p);
    owner = (int64_t *)p;
    if (s == TR_OK && b) {                  /* all ranks look, as one alone would miss some */
        int64_t n = tri_mpi_image_owners(r, im, b, owner);
        if (n != im->n)
            s = tr_fail(r->m->ctx, TR_ERR_ARG, "%s: the prompts have places for %lld images, not "
                        "for %lld", tr_family_name(r->mm->part->cfg.family), (long long)n,
                        (long long)im->n);
    }
    r->m->notes = 0;
    if (s == TR_OK && !r->pp.me) s = tri_mpi_see_part(r, im, b, owner);
    if (s != TR_OK) return tr_mpi_raise(r->m, s);
    return tri_mpi_show_taps(r, im->n);
}

/* ---- one call ---------------------------------------------------------------- */

/* Every message says by this which calls came before it (FNV-1a, by words). */
static void tri_mpi_mark(tr_mpi *m, uint64_t x) { m->call = (m->call ^ x) * 0x100000001b3u; }

/* x [N, D], by elements. */
static void tri_mpi_mark_rows(tr_mpi *m, tr_view x)
{
    const char *p = (const char *)x.data;
    int64_t elem = (int64_t)tri_mpi_elem(x);
    for (int64_t n = 0; n < x.shape[0]; n++)
        for (int64_t i = 0; i < x.shape[1]; i++) {
            uint64_t bits = 0;
            memcpy(&bits, p + (n * x.stride[0] + i * x.stride[1]) * elem, (size_t)elem);
            tri_mpi_mark(m, bits);
        }
}

/* Whether the call is one that this run can make, as every rank finds by itself. *N: its tokens. */
static tr_status tri_mpi_check_batch(const tr_mpi_run *r, const tr_batch *b, const tr_hidden *in,
                                     int64_t *N)
{
    int64_t n = 0, first = r->mm->layers.begin;
    if (b->B != r->opts.B)
        return tr_fail(r->m->ctx, TR_ERR_ARG, "the batch has %lld sequences, the run %lld",
                       (long long)b->B, (long long)r->opts.B);
    for (int64_t s = 0; s < b->B; n += b->T[s++])
        if (b->T[s] < 0 || b->T[s] > r->opts.max_tokens - n)
            return tr_fail(r->m->ctx, TR_ERR_ARG, "sequence %lld has %lld tokens; the run was made "
                           "for %lld a call", (long long)s, (long long)b->T[s],
                           (long long)r->opts.max_tokens);
        else if (b->T[s] > r->opts.capacity - r->len[s])
            return tr_fail(r->m->ctx, TR_ERR_FULL, "sequence %lld: %lld tokens after %lld exceed "
                           "the state's capacity of %lld", (long long)s, (long long)b->T[s],
                           (long long)r->len[s], (long long)r->opts.capacity);
    if (n == 0) return tr_fail(r->m->ctx, TR_ERR_ARG, "the batch holds no tokens");
    TRI_MPI_TRY(tr_hidden_check(r->m->ctx, &r->mm->part->cfg, first, n, in));
    for (int64_t s = 0, i = 0; !first && s < b->B; s++)     /* behind layer 0 they are not read */
        for (int64_t t = 0; t < b->T[s]; t++, i++)
            if (b->ids[i] < 0 || b->ids[i] >= r->mm->part->cfg.vocab)
                return tr_fail(r->m->ctx, TR_ERR_RANGE, "sequence %lld, token %lld: id %ld lies "
                               "outside the vocabulary of %lld", (long long)s,
                               (long long)(r->len[s] + t), (long)b->ids[i],
                               (long long)r->mm->part->cfg.vocab);
    *N = n;
    return TR_OK;
}

/* The call of N tokens, in what messages say from now on. */
static void tri_mpi_mark_batch(tr_mpi_run *r, const tr_batch *b, const tr_hidden *in, int64_t N)
{
    tri_mpi_mark(r->m, (uint64_t)N);
    for (int64_t s = 0; s < b->B; s++) tri_mpi_mark(r->m, (uint64_t)b->T[s]);
    for (int64_t i = 0; !r->mm->layers.begin && i < N; i++)
        tri_mpi_mark(r->m, (uint64_t)b->ids[i]);
    if (!in) return;
    tri_mpi_mark_rows(r->m, in->h);
    for (int64_t i = 0; i < in->n; i++) tri_mpi_mark_rows(r->m, tr_view_at(in->snaps, i));
}

/* This rank's batch of the whole one, its state's lengths, and r->most. */
static void tri_mpi_deal_batch(tr_mpi_run *r, const tr_batch *b, tr_batch *mine)
{
    int64_t n = 0, at = 0;
    r->most = 0;
    for (int e = 0; e < r->ep.n; e++)
        for (int j = 0; j < r->cp.n; j++) {
            int64_t N = 0;
            for (int64_t s = e; s < b->B; s += r->ep.n) {
                tr_range t = tr_range_of(b->T[s], r->cp.n, j);
                N += t.end - t.begin;
            }
            if (N > r->most) r->most = N;
        }
    for (int64_t s = 0; s < b->B; at += b->T[s++]) {
        int64_t k = s / r->ep.n;
        tr_range t = tr_range_of(b->T[s], r->cp.n, r->cp.me);
        if (s % r->ep.n != r->ep.me) continue;
        r->mine[k].pos = r->len[s];
        r->mine[k].T = b->T[s];
        r->T[k] = t.end - t.begin;
        r->run->state.len[k] = r->len[s] + t.begin;
        if (t.end > t.begin && !r->mm->layers.begin)
            memcpy(r->ids + n, b->ids + at + t.begin, (size_t)(t.end - t.begin) * sizeof *r->ids);
        n += t.end - t.begin;
    }
    if (!r->n) r->T[0] = 0;
    mine->B = r->n > 0 ? r->n : 1;
    mine->T = r->T;
    mine->ids = r->ids;
}

/* [1 + n, N, D]: hidden state and block sums that enter layer `layer`, without memory. */
static tr_view tri_mpi_hidden_view(const tr_mpi_run *r, int64_t layer, int64_t N)
{
    const tr_config *c = &r->mm->part->cfg;
    return tr_view3(NULL, r->opts.profile->act, 1 + tr_hidden_snaps(c, layer), N, c->hidden);
}

/* v [1 + n, N, D] becomes the rows of this rank's tokens in what the caller gave for all. */
static tr_status tri_mpi_deal_hidden(tr_mpi_run *r, const tr_batch *b, const tr_hidden *all,
                                     tr_view v)
{
    int64_t row = 0, at = 0;
    for (int64_t s = 0; s < b->B; at += b->T[s++]) {
        tr_range t = tr_range_of(b->T[s], r->cp.n, r->cp.me);
        int64_t k = t.end - t.begin;
        if (s % r->ep.n != r->ep.me || !k) continue;
        TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_slice(tr_view_at(v, 0), 0, row, k),
                                 tr_view_slice(all->h, 0, at + t.begin, k)));
        for (int64_t i = 0; i < all->n; i++)
            TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_slice(tr_view_at(v, i + 1), 0, row, k),
                                     tr_view_slice(tr_view_at(all->snaps, i), 0, at + t.begin, k)));
        row += k;
    }
    return TR_OK;
}

/* What enters this rank's first layer with its N tokens: from the stage before, or of the caller's,
 * which is of all. */
static tr_status tri_mpi_hidden_in(tr_mpi_run *r, const tr_batch *b, const tr_hidden *all,
                                   int64_t N, tr_hidden *in)
{
    int64_t first = r->mm->part->first;
    tr_view v = tri_mpi_hidden_view(r, first, N);
    TRI_MPI_TRY(tri_mpi_scratch(r->m, TRI_MPI_BUF_A, tri_mpi_bytes(v), &v.data));
    if (r->pp.me) {
        tr_mpi_part p = tri_mpi_part_of(r->m->rank - r->pp.step, v);
        r->m->layer = (int)first - 1;
        TRI_MPI_TRY(tr_mpi_exchange(r->m, TR_MPI_STAGE, "hidden state", NULL, 0, &p, 1));
    } else TRI_MPI_TRY(tri_mpi_deal_hidden(r, b, all, v));
    in->n = v.shape[0] - 1;
    in->h = tr_view_at(v, 0);
    in->snaps = in->n ? tr_view_slice(v, 0, 1, in->n) : tr_view_none();
    return TR_OK;
}

static tr_status tri_mpi_hidden_out(tr_mpi_run *r, int64_t N)
{
    const tr_model *part = r->mm->part;
    const tr_hidden *h = &r->run->hidden;
    tr_view v = tri_mpi_hidden_view(r, part->first + part->layers, N);
    tr_mpi_part p;
    int moved = 0;
    TRI_MPI_TRY(tri_mpi_handed(r));
    if (!N) return TR_OK;
    TRI_MPI_TRY(tri_mpi_room(r->m, &r->hand, tri_mpi_bytes(v), &v.data));
    TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_at(v, 0), tr_view_slice(h->h, 0, 0, N)));
    for (int64_t i = 1; i < v.shape[0]; i++)
        TRI_MPI_TRY(tr_view_copy(r->m->ctx, tr_view_at(v, i),
                                 tr_view_slice(tr_view_at(h->snaps, i - 1), 0, 0, N)));
    p = tri_mpi_part_of(r->m->rank + r->pp.step, v);
    r->m->layer = (int)(part->first + part->layers) - 1;
    tri_mpi_event(r->m, TR_MPI_EVENT_STEP, "hidden state", p.peer, p.bytes, 0);
    TRI_MPI_TRY(tri_mpi_post(r->m, 1, TR_MPI_STAGE, "hidden state", &p, &r->handed));
    return tri_mpi_push(r->m, r->handed, &moved);
}

tr_status tr_mpi_forward(tr_mpi_run *r, const tr_batch *b, const tr_hidden *in)
{
    int64_t all = 0, N = 0, first = r->mm->part->first;         /* N: tokens of this rank */
    tr_batch mine;
    tr_hidden own;
    tr_status s;
    if (r->m->failed) return TR_ERR_PEER;
    s = tri_mpi_check_batch(r, b, in, &all);
    if (s != TR_OK) return tr_mpi_raise(r->m, s);
    tri_mpi_mark_batch(r, b, in, all);
    tri_mpi_deal_batch(r, b, &mine);
    for (int64_t k = 0; k < mine.B; k++) N += mine.T[k];
    memset(&own, 0, sizeof own);
    if (first) s = tri_mpi_hidden_in(r, b, in, N, &own);
    r->m->notes = 0;
    if (s == TR_OK) s = tr_forward(r->run, &mine, first ? &own : NULL);
    if (s == TR_OK && r->pp.me + 1 < r->pp.n) s = tri_mpi_hidden_out(r, N);
    r->m->layer = -1;
    if (s != TR_OK) return tr_mpi_raise(r->m, s);
    for (int64_t k = 0; k < r->n; k++)
        for (int j = 0; j < r->cp.n; j++) {
            tr_range t = tr_range_of(r->mine[k].T, r->cp.n, j);
            if (t.end > t.begin) r->mine[k].held[j] = r->mine[k].pos + t.end;
        }
    for (int64_t q = 0; q < b->B; q++) {
        r->len[q] += b->T[q];
        r->now[q] = b->T[q];
    }
    return tri_mpi_show_taps(r, 0);
}

/* Rank of the last stage that has the logits of group e's sequences. */
static int tri_mpi_speaker(const tr_mpi_run *r, int e)
{
    const tr_mpi_layout *l = &r->m->opts.layout;
    return (((l->pp - 1) * l->ep + e) * l->cp + l->cp - 1) * l->tp;
}

tr_status tr_mpi_next(tr_mpi_run *r, int32_t *id)
{
    tr_mpi *m = r->m;
    int64_t B = r->opts.B, most = (B + r->ep.n - 1) / r->ep.n;
    int64_t last = r->mm->layers.end, layers = r->mm->part->cfg.layers;
    int32_t *said, *all;
    void *p;
    if (m->failed) return TR_ERR_PEER;
    if (r->opts.logits != TR_LOGITS_LAST)
        return tr_mpi_raise(m, tr_fail(m->ctx, TR_ERR_ARG, "what comes next needs a run that makes "
                                       "the last logits"));
    if (last < layers)
        return tr_mpi_raise(m, tr_fail(m->ctx, TR_ERR_ARG, "what comes next needs logits, which "
                                       "layer %lld leads to; the model is open to layer %lld",
                                       (long long)(layers - 1), (long long)(last - 1)));
    TRI_MPI_TRY(tri_mpi_scratch(m, TRI_MPI_BUF_A, (size_t)(most * (m->size + 1)) * sizeof *said,
                                &p));
    said = (int32_t *)p;
    all = said + most;
    for (int64_t k = 0; k < most; k++)
        said[k] = k < r->n && m->rank == tri_mpi_speaker(r, r->ep.me) && r->mine[k].T
                  ? tr_argmax(tr_view_at(r->run->logits, k)) : -1;
    TRI_MPI_TRY(tr_mpi_collect(m, TR_MPI_CONTROL, "next tokens", said, all,
                               (uint64_t)most * sizeof *said));
    TRI_MPI_TRY(tr_mpi_bcast(m, TR_MPI_ALL, TR_MPI_CONTROL, "next tokens", 0, all,
                             (uint64_t)(most * m->size) * sizeof *all));
    for (int64_t b = 0; b < B; b++) {
        int64_t speaker = tri_mpi_speaker(r, (int)(b % r->ep.n));
        int32_t next = all[speaker * most + b / r->ep.n];
        if (!r->now[b]) continue;
        if (next < 0)
            return tr_mpi_raise(m, tr_fail(m->ctx, TR_ERR_NOT_FINITE, "sequence %lld, token %lld: "
                                           "NaN among the logits", (long long)b,
                                           (long long)r->len[b]));
        id[b] = next;
    }
    return TR_OK;
}

tr_status tr_mpi_tap_state(tr_mpi_run *r)
{
    tr_state *st = &r->run->state;
    tr_status s = TR_OK;
    if (r->m->failed) return TR_ERR_PEER;
    for (int64_t k = 0; k < r->n; k++) st->len[k] = r->len[r->number[k]];
    for (int64_t l = st->first; r->tp.n > 1 && l < st->first + st->layers; l++)
        for (int kind = TR_STATE_CONV_Q; kind <= TR_STATE_DELTA; kind++)
            for (int64_t k = 0; k < r->n; k++) {
                tr_view v = tr_state_slot(st, l, (tr_state_kind)kind, k);
                if (v.rank)
                    TRI_MPI_TRY(tr_mpi_gather(r->m, TR_MPI_TP, TR_MPI_ROWS, "state", v, 0,
                                              r->mm->part->cfg.kda_heads));
            }
    if (r->opts.tap) s = tr_tap_state(r->run);
    if (s != TR_OK) return tr_mpi_raise(r->m, s);
    return tri_mpi_show_taps(r, 0);
}

#endif /* TRILLION_MPI_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 The Trillion authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
