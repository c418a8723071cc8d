/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/30-gen.c -o build/ex30 -lm && build/ex30
 *
 * Exercise for docs/30-gen.md. Feed the prompt with tr_prefill, then choose greedily (tr_argmax
 * of row 0 of r->logits) and feed what was chosen with tr_forward, until the chosen id is `end`
 * or n ids are chosen. Write them to out, the ending one too, and return how many there are. Each
 * chosen id is fed once at most; one that ends the text, or is the n-th, need not be fed. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static int64_t generate(tr_run *r, const int32_t *prompt, int64_t len, int32_t end, int64_t n,
                        int32_t *out);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int64_t generate(tr_run *r, const int32_t *prompt, int64_t len, int32_t end, int64_t n,
                        int32_t *out)
{
    tr_batch b = { 1, &len, prompt };
    (void)end;
    if (n < 1 || tr_prefill(r, &b)) return 0;
    out[0] = tr_argmax(tr_view_at(r->logits, 0));
    return 1;
}
/* -------------------------------------------------------------------------- */
#endif

enum { N = 10, T = 5 };

int main(void)
{
    static const int32_t prompt[T] = { 9, 8, 7, 6, 5 };
    tr_run_opts o = tr_run_opts_default();
    int32_t want[N], have[N + 1];
    tr_ctx *ctx;
    tr_model *m;
    tr_run *r;
    o.max_tokens = 3;                           /* the prompt comes in two pieces */
    o.capacity = T + N;
    if (tr_ctx_new(&ctx, NULL) || tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL) ||
        tr_run_new(ctx, &r, m, &o) || tr_generate(r, prompt, T, N, want)) return 2;
    for (int stop = 0; stop < N; stop++) {
        int32_t end = want[stop];
        int64_t n, first = 0;
        while (want[first] != end) first++;
        tr_state_reset(&r->state);
        memset(have, -1, sizeof have);
        n = generate(r, prompt, T, end, N, have);
        for (int64_t i = 0; i <= first; i++)
            if (have[i] != want[i]) {
                printf("missing: id %d is %d, yours is %d\n", (int)i, (int)want[i], (int)have[i]);
                return 1;
            }
        if (n == first + 1 && r->state.len[0] <= T + n) continue;
        printf("missing: text ends with id %d, after %d ids; yours has %d, the state %d tokens\n",
               (int)end, (int)first + 1, (int)n, (int)r->state.len[0]);
        return 1;
    }
    tr_state_reset(&r->state);
    if (generate(r, prompt, T, -1, 4, have) != 4 || memcmp(have, want, 4 * sizeof *want)) {
        printf("missing: four ids were asked for, without an end\n");
        return 1;
    }
    tr_run_free(r);
    tr_model_close(m);
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int64_t generate(tr_run *r, const int32_t *prompt, int64_t len, int32_t end, int64_t n,
                        int32_t *out)
{
    tr_batch b = { 1, &len, prompt };
    int64_t one = 1;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 ? tr_prefill(r, &b) : tr_forward(r, &b, NULL)) return i;
        out[i] = tr_argmax(tr_view_at(r->logits, 0));
        if (out[i] == end) return i + 1;
        b.T = &one;
        b.ids = &out[i];
    }
    return n;
}
#endif
