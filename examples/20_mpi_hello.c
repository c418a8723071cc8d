/* mpicc -std=c11 -O2 -ffp-contract=off -I. examples/20_mpi_hello.c -o build/20_mpi_hello -lm && mpirun --oversubscribe -n 4 build/20_mpi_hello */

/* Four ranks, two stages of two: what each of them opens of a small Kimi K3. Every rank fills in a
 * line about itself and sends it to rank 0, which prints them: an exchange names who gives and who
 * gets, with sizes that both sides know. Then, on purpose, rank 2 says something else than the
 * others where all must say the same, and every rank is told who it was. As root (in a container)
 * Open MPI does not start by itself: see docs/howto/ranks.md. */

#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "trillion_mpi.h"

enum { LINE = 100, RANKS = 4 };

/* Layers, rows of a matrix, experts of layer 5 and bytes of this rank's part. */
static void describe(char line[LINE], const tr_mpi *m, const tr_mpi_model *mm)
{
    const tr_model *part = tr_mpi_model_part(mm);
    const tr_weight *o = &part->layer[0].w[TR_W_O];
    int experts = 0;
    for (int64_t e = 0; e < part->cfg.experts; e++)
        experts += part->layer[part->layers - 1].expert[0][e].format != NULL;
    snprintf(line, LINE, "%4d %6d %8d-%d   %2d-%-2d of %d %9d of %d %9d", tr_mpi_rank(m),
             tr_mpi_group_of(m, TR_MPI_PP).me, (int)part->first,
             (int)(part->first + part->layers - 1), (int)o->row0, (int)(o->row0 + o->rows - 1),
             (int)part->cfg.hidden, experts, (int)part->cfg.experts, (int)part->bytes);
}

static tr_status hello(tr_mpi *m, tr_mpi_model *mm)
{
    char line[RANKS][LINE] = { "" };
    tr_mpi_part mine, from[RANKS];
    tr_status s;
    describe(line[0], m, mm);
    mine.peer = 0;
    mine.data = line[0];
    mine.bytes = LINE;
    for (int i = 0; i < RANKS; i++) {
        from[i].peer = i;
        from[i].data = line[i];
        from[i].bytes = LINE;
    }
    if (tr_mpi_rank(m)) s = tr_mpi_exchange(m, TR_MPI_CONTROL, "hello", &mine, 1, NULL, 0);
    else s = tr_mpi_exchange(m, TR_MPI_CONTROL, "hello", NULL, 0, from + 1, RANKS - 1);
    if (s != TR_OK || tr_mpi_rank(m)) return s;
    printf("rank  stage    layers  rows of o_proj      experts      bytes\n");
    for (int i = 0; i < RANKS; i++) printf("%s\n", line[i]);
    return TR_OK;
}

int main(int argc, char **argv)
{
    tr_ctx *ctx;
    tr_ctx_opts threads = { 0 };
    tr_mpi_opts o = { 0 };
    tr_mpi *m = NULL;
    tr_mpi_model *mm = NULL;
    tr_status s;
    MPI_Init(&argc, &argv);
    threads.threads = 1;
    if (tr_ctx_new(&ctx, &threads)) return 1;
    o.layout.pp = 2;
    o.layout.tp = 2;
    o.deadline = 60;
    s = tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o);
    if (s == TR_OK) s = tr_mpi_model_open(m, &mm, "tests/golden/kimi_k3/text-a", NULL, NULL);
    if (s == TR_OK) s = hello(m, mm);
    if (s != TR_OK) {
        fprintf(stderr, "%s\n", tr_err_last(ctx));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    s = tr_mpi_same(m, "the weather", tr_mpi_rank(m) == 2 ? "rain" : "sun");
    if (!tr_mpi_rank(m))
        printf("\na disagreement, made on purpose: all must name one weather, and rank 2 does not\n"
               "status \"%s\": %s\n", tr_status_str(s), tr_err_last(ctx));
    tr_mpi_model_close(mm);
    tr_mpi_free(m);
    tr_ctx_free(ctx);
    MPI_Finalize();
    return 0;
}

/* expected output:
rank  stage    layers  rows of o_proj      experts      bytes
   0      0        0-3    0-39 of 80         6 of 12    703248
   1      0        0-3   40-79 of 80         6 of 12    779120
   2      1        4-8    0-39 of 80         6 of 12    940560
   3      1        4-8   40-79 of 80         6 of 12   1024240

a disagreement, made on purpose: all must name one weather, and rank 2 does not
status "another rank failed": rank 2 differs from rank 0 in the weather: rain; rank 0: sun
*/
