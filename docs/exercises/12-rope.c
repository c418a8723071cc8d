/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/12-rope.c -o build/ex12 -lm && build/ex12
 *
 * Exercise for docs/12-rope.md. A checkpoint was trained with interleaved pairs (2i, 2i + 1), and
 * the program at hand rotates half-split pairs (i, i + d/2). Reorder the d numbers of a head, the
 * same way for queries and keys, so that the scores come out right. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void reorder(double *y, const double *x, int64_t d);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void reorder(double *y, const double *x, int64_t d)
{
    for (int64_t i = 0; i < d; i++) y[i] = x[i];
}
/* -------------------------------------------------------------------------- */
#endif

static double score(tr_ctx *ctx, tr_rope_layout layout, double *q_k, int64_t d)
{
    double inv_freq[8], mult;
    int64_t pos[2] = { 20, 3 };
    tr_rope_cfg c;
    tr_rope_args a;
    memset(&c, 0, sizeof c);
    c.theta = 100;
    c.dim = d;
    if (tr_rope_freqs_f64(ctx, inv_freq, &mult, &c)) return NAN;
    a.x = tr_view3(q_k, TR_F64, 2, 1, d);
    a.pos = tr_view1(pos, TR_I64, 2);
    a.inv_freq = tr_view1(inv_freq, TR_F64, d / 2);
    a.mult = mult;
    a.layout = layout;
    if (tr_rope_f64(ctx, &a)) return NAN;
    return tr_dot_f64(q_k, q_k + d, d);
}

int main(void)
{
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    for (int64_t d = 2; d <= 16; d += 2) {
        double x[32], y[32], want, got;
        for (int i = 0; i < 2 * d; i++) x[i] = tr_rng_normal(12, (uint64_t)d, (uint64_t)i);
        reorder(y, x, d);
        reorder(y + d, x + d, d);
        want = score(ctx, TR_ROPE_INTERLEAVED, x, d);
        got = score(ctx, TR_ROPE_HALF, y, d);
        if (fabs(got - want) < 1e-12) continue;
        printf("missing: heads of %d numbers: the score is %.6f, yours is %.6f\n", (int)d, want,
               got);
        return 1;
    }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void reorder(double *y, const double *x, int64_t d)
{
    for (int64_t i = 0; i < d / 2; i++) {
        y[i] = x[2 * i];
        y[i + d / 2] = x[2 * i + 1];
    }
}
#endif
