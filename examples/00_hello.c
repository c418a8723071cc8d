/* cc -std=c11 -O2 -ffp-contract=off -I. examples/00_hello.c -o build/00_hello -lm && build/00_hello */

/* The shortest useful program: open a checkpoint as it was released, give the model a prompt of
 * three token ids, and let it continue. The checkpoint is a Kimi K3 small enough for the repository
 * (9 layers, 12 experts each); with the real one only the directory would be another. The weights
 * are random, so the ids mean nothing, but they are right: every number on the way is a binary32
 * one that docs/numerics.md fixes to the last bit, so they are the same on every machine. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

int main(void)
{
    tr_ctx *ctx;
    tr_model *m = NULL;
    tr_run *r = NULL;
    tr_run_opts o = tr_run_opts_default();
    int32_t prompt[3] = { 1, 2, 3 }, next[8];
    if (tr_ctx_new(&ctx, NULL)) return 1;
    if (tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL) ||
        tr_run_new(ctx, &r, m, &o) || tr_generate(r, prompt, 3, 8, next))
        return fprintf(stderr, "%s\n", tr_err_last(ctx)), 1;
    printf("after 1 2 3 comes");
    for (int i = 0; i < 8; i++) printf(" %d", (int)next[i]);
    printf("\n");
    tr_run_free(r);
    tr_model_close(m);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
after 1 2 3 comes 241 295 28 230 223 166 180 186
*/
