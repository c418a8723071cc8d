/* mpicc -std=c11 -O2 -ffp-contract=off -I. examples/22_mpi_generate.c -o build/22_mpi_generate -lm && mpirun --oversubscribe -n 4 build/22_mpi_generate */

/* Two prompts and five tokens after each, by four ranks in five layouts. All ranks see all prompts,
 * and tr_mpi_next tells all of them what each sequence says next, whichever rank has its logits.
 * The ids are the same in every layout; what is sent for them is not. (The weights of this small
 * DeepSeek-V3 are random; so are the answers.)
 *
 * What is sent:  rows      tp: the part of a value a rank computed, to those that need all of it
 *                dispatch  tokens, to the ranks that hold their experts, with the lists of which
 *                combine   the experts' answers, back to the rank of the token
 *                stage     pp: the hidden state, to the rank that has the next layers
 *                context   cp: what the later tokens of a prompt need of the earlier: latent rows
 *
 * As root (in a container) Open MPI does not start by itself: see docs/howto/ranks.md. */

#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "trillion_mpi.h"

enum { B = 2, N = 5, PROMPT = 12 };

/* out [B, N] */
static tr_status generate(tr_mpi *m, tr_mpi_model *mm, int32_t *out)
{
    int64_t T[B] = { 5, 7 };
    int32_t ids[PROMPT] = { 17, 4, 99, 120, 8, 33, 2, 71, 54, 9, 140, 66 }, next[B];
    tr_run_opts o = tr_run_opts_default();
    tr_mpi_run *r = NULL;
    tr_batch b;
    tr_status s;
    o.B = B;
    o.max_tokens = PROMPT;
    o.capacity = 7 + N;
    s = tr_mpi_run_new(m, &r, mm, &o);
    b.B = B;
    b.T = T;
    b.ids = ids;
    for (int i = 0; s == TR_OK && i < N; i++) {
        s = tr_mpi_forward(r, &b, NULL);        /* the prompts, then one token of each */
        if (s == TR_OK) s = tr_mpi_next(r, next);
        for (int k = 0; k < B; k++) {
            out[k * N + i] = next[k];
            T[k] = 1;
        }
        b.ids = next;
    }
    tr_mpi_run_free(r);
    return s;
}

static void print_ids(const char *layout, const tr_mpi *m, const int32_t *out)
{
    printf("%s", layout);
    for (int k = 0; k < B; k++) {
        printf(" ");
        for (int i = 0; i < N; i++) printf("%4d", out[k * N + i]);
    }
    printf(" ");
    for (int k = TR_MPI_ROWS; k <= TR_MPI_CONTEXT; k++) {
        tr_mpi_count c = tr_mpi_counted(m, (tr_mpi_kind)k);
        if (c.bytes) printf(" %s %d", tr_mpi_kind_name((tr_mpi_kind)k), (int)c.bytes);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const char *const layouts[] = { "ep=4", "tp=4", "cp=4", "pp=4", "pp=2,ep=2" };
    tr_ctx *ctx;
    tr_ctx_opts threads = { 0 };
    MPI_Init(&argc, &argv);
    threads.threads = 1;
    if (tr_ctx_new(&ctx, &threads)) return 1;
    for (int i = 0; i < 5; i++) {
        int32_t out[B * N] = { 0 };
        tr_mpi_opts o = { 0 };
        tr_mpi *m = NULL;
        tr_mpi_model *mm = NULL;
        tr_status s = tr_mpi_layout_parse(ctx, &o.layout, layouts[i], 4);
        o.deadline = 60;
        if (s == TR_OK) s = tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o);
        if (s == TR_OK)
            s = tr_mpi_model_open(m, &mm, "tests/golden/families/deepseek_v3", NULL, NULL);
        if (s == TR_OK) s = generate(m, mm, out);
        if (s != TR_OK) {
            fprintf(stderr, "%s\n", tr_err_last(ctx));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (!tr_mpi_rank(m)) {
            if (!i) printf("layout    sequence 0           sequence 1           bytes from "
                           "rank 0\n");
            char name[16];
            snprintf(name, sizeof name, "%-9s", layouts[i]);
            print_ids(name, m, out);
        }
        tr_mpi_model_close(mm);
        tr_mpi_free(m);
    }
    tr_ctx_free(ctx);
    MPI_Finalize();
    return 0;
}

/* expected output:
layout    sequence 0           sequence 1           bytes from rank 0
ep=4        47 211  47  76 248   60 224 240 187 315  dispatch 12968 combine 5120
tp=4        47 211  47  76 248   60 224 240 187 315  rows 109536 dispatch 5080 combine 8704
cp=4        47 211  47  76 248   60 224 240 187 315  dispatch 3712 combine 8960 context 1536
pp=4        47 211  47  76 248   60 224 240 187 315  stage 5120
pp=2,ep=2   47 211  47  76 248   60 224 240 187 315  dispatch 2048 combine 4096 stage 2304
*/
