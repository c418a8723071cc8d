/* mpicc -std=c11 -O2 -ffp-contract=off -I. examples/21_mpi_experts.c -o build/21_mpi_experts -lm && mpirun --oversubscribe -n 4 build/21_mpi_experts */

/* Which token went to which rank, and came back. Four sequences of two tokens are dealt to four
 * ranks; a layer's twelve experts too, three a rank. The router of each token's own rank chooses
 * four experts; the token's row goes once to each rank that holds some of them; the answers come
 * back, one row an expert, and the token's rank adds them in increasing expert index. So where an
 * expert stands can be read off a map and cannot be read off the result: the layer's output is
 * compared with that of a run without MPI, and then again with another map. As root (in a
 * container) Open MPI does not start by itself: see docs/howto/ranks.md. */

#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "trillion_mpi.h"

#define DIR "tests/golden/kimi_k3/text-a"
#define MOE "language_model.model.layers.5.block_sparse_moe"

enum { B = 4, T = 2, LAYER = 5 };

static const char *const globs[] = { MOE, MOE ".gate.topk_ids" };
static int64_t lengths[B] = { T, T, T, T };
static int32_t ids[B * T] = { 11, 47, 200, 3, 99, 150, 7, 64 };

static tr_run_opts opts_of(tr_golden *g)
{
    tr_run_opts o = tr_run_opts_default();
    o.B = B;
    o.max_tokens = B * T;
    o.capacity = T;
    o.tap = tr_golden_tap;
    o.tap_user = g;
    o.globs = globs;
    o.n_globs = 2;
    return o;
}

static tr_batch batch_of(void)
{
    tr_batch b;
    b.B = B;
    b.T = lengths;
    b.ids = ids;
    return b;
}

/* The layer's output without MPI. */
static tr_status alone(tr_ctx *ctx, char hash[65])
{
    tr_golden g;
    tr_model *m = NULL;
    tr_run *r = NULL;
    tr_batch b = batch_of();
    tr_run_opts o = opts_of(&g);
    tr_status s = tr_golden_new(ctx, &g, B, lengths);
    if (s == TR_OK) s = tr_model_open(ctx, &m, DIR, NULL);
    if (s == TR_OK) s = tr_run_new(ctx, &r, m, &o);
    if (s == TR_OK) s = tr_forward(r, &b, NULL);
    if (s == TR_OK) tr_view_sha256(tr_golden_find(&g, MOE), hash);
    tr_run_free(r);
    tr_model_close(m);
    tr_golden_free(ctx, &g);
    return s;
}

static void print_way(const tr_golden *g, const tr_mpi_map *map)
{
    tr_view chosen = tr_golden_find(g, MOE ".gate.topk_ids");
    int64_t K = chosen.shape[2];
    printf("sequence  token  on rank  experts and their ranks            rows sent to\n");
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            const int32_t *e = (const int32_t *)chosen.data + (b * T + t) * K;
            int to[B] = { 0 };
            printf("%8d %6d %8d  ", b, t, b % map->places);
            for (int64_t j = 0; j < K; j++)
                for (int p = 0; p < map->places; p++)
                    if (map->held[(p * map->layers + LAYER) * map->experts + e[j]]) {
                        printf("%3d at %d", (int)e[j], p);
                        to[p] = 1;
                    }
            printf("   ");
            for (int p = 0; p < map->places; p++)
                if (to[p] && p != b % map->places) printf(" %d", p);
            printf("\n");
        }
}

/* One forward with the experts where the map says. */
static tr_status together(tr_mpi *m, const tr_mpi_map *map, int print, char hash[65])
{
    tr_golden g;
    tr_mpi_model *mm = NULL;
    tr_mpi_run *r = NULL;
    tr_batch b = batch_of();
    tr_run_opts o = opts_of(&g);
    tr_status s = tr_golden_new(tr_mpi_ctx(m), &g, B, lengths);
    if (s == TR_OK) s = tr_mpi_model_open(m, &mm, DIR, NULL, map);
    if (s == TR_OK) s = tr_mpi_run_new(m, &r, mm, &o);
    if (s == TR_OK) s = tr_mpi_forward(r, &b, NULL);
    if (s == TR_OK && tr_mpi_rank(m) == 0) {
        if (print) print_way(&g, map);
        tr_view_sha256(tr_golden_find(&g, MOE), hash);
    }
    tr_mpi_run_free(r);
    tr_mpi_model_close(mm);
    tr_golden_free(tr_mpi_ctx(m), &g);
    return s;
}

/* The even map, and one that deals the experts like cards. */
static tr_status maps(tr_ctx *ctx, int places, tr_mpi_map *even, tr_mpi_map *cards)
{
    tr_config c;
    tr_status s = tr_config_load(ctx, &c, DIR, NULL);
    if (s == TR_OK) s = tr_mpi_map_even(ctx, even, &c, places);
    if (s == TR_OK) s = tr_mpi_map_even(ctx, cards, &c, places);
    for (int64_t i = 0; s == TR_OK && i < cards->places * cards->layers * cards->experts; i++)
        cards->held[i] = i % cards->experts % places == i / (cards->layers * cards->experts);
    tr_config_free(ctx, &c);
    return s;
}

int main(int argc, char **argv)
{
    tr_ctx *ctx;
    tr_ctx_opts threads = { 0 };
    tr_mpi_opts o = { 0 };
    tr_mpi *m = NULL;
    tr_mpi_map even = { 0 }, cards = { 0 };
    char one[65] = "", four[65] = "", other[65] = "";
    tr_status s;
    MPI_Init(&argc, &argv);
    threads.threads = 1;
    if (tr_ctx_new(&ctx, &threads)) return 1;
    o.layout.ep = 4;
    o.deadline = 60;
    s = tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o);
    if (s == TR_OK) s = maps(ctx, 4, &even, &cards);
    if (s == TR_OK) s = alone(ctx, one);
    if (s == TR_OK) s = together(m, &even, 1, four);
    if (s == TR_OK) s = together(m, &cards, 0, other);
    if (s != TR_OK) {
        fprintf(stderr, "%s\n", tr_err_last(ctx));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (tr_mpi_rank(m) == 0) {
        tr_mpi_count d = tr_mpi_counted(m, TR_MPI_DISPATCH), c = tr_mpi_counted(m, TR_MPI_COMBINE);
        printf("\noutput of the layer, SHA-256\n  one rank     %.32s..\n  four ranks   %.32s..\n"
               "  another map  %.32s..\n", one, four, other);
        printf("rank 0 sent %d bytes of rows and lists, %d of answers: all layers, both maps\n",
               (int)d.bytes, (int)c.bytes);
    }
    tr_mpi_map_free(ctx, &even);
    tr_mpi_map_free(ctx, &cards);
    tr_mpi_free(m);
    tr_ctx_free(ctx);
    MPI_Finalize();
    return 0;
}

/* expected output:
sequence  token  on rank  experts and their ranks            rows sent to
       0      0        0    3 at 1  5 at 1  6 at 2 11 at 3    1 2 3
       0      1        0    1 at 0  6 at 2  9 at 3 11 at 3    2 3
       1      0        1    1 at 0  3 at 1  9 at 3 11 at 3    0 3
       1      1        1    1 at 0  6 at 2  9 at 3 11 at 3    0 2 3
       2      0        2    3 at 1  6 at 2  8 at 2  9 at 3    1 3
       2      1        2    1 at 0  3 at 1  8 at 2  9 at 3    0 1 3
       3      0        3    1 at 0  3 at 1  5 at 1  6 at 2    0 1 2
       3      1        3    1 at 0  5 at 1  6 at 2  8 at 2    0 1 2

output of the layer, SHA-256
  one rank     4b1b17fabf0522db10940c9f56c13c77..
  four ranks   4b1b17fabf0522db10940c9f56c13c77..
  another map  4b1b17fabf0522db10940c9f56c13c77..
rank 0 sent 20288 bytes of rows and lists, 25344 of answers: all layers, both maps
*/
