/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/40-ranks.c -o build/ex40 -lm && build/ex40
 *
 * Exercise for docs/40-ranks.md. A token's owner has asked K experts, which lie on several ranks,
 * and their answers have arrived: answer i is y [D] of the expert numbered expert, which weighs w.
 * They stand in the order of arrival. Write the token's row u [D], so that its bits are those of
 * one rank: for each d, a = fmaf(w, y[d], a) from +0 in increasing expert index. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { D = 40, K = 6, RUNS = 50 };

typedef struct answer { int expert; float w; const float *y; } answer;

static void put_together(float *u, const answer *a, int n);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void put_together(float *u, const answer *a, int n)
{
    for (int d = 0; d < D; d++) u[d] = 0;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < D; d++) u[d] = fmaf(a[i].w, a[i].y[d], u[d]);
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    static float y[K][D], w[K], want[D], u[D];
    answer a[K];
    tr_combine_args c;
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    for (int k = 0; k < K; k++) {
        w[k] = (float)tr_rng_unit(40, 2, (uint64_t)k);
        for (int d = 0; d < D; d++) y[k][d] = (float)tr_rng_normal(40, 3, (uint64_t)(k * D + d));
        a[k].expert = 7 * k + 3;
        a[k].w = w[k];
        a[k].y = y[k];
    }
    c.y = tr_view2(want, TR_F32, 1, D);
    c.x = tr_view3(y, TR_F32, 1, K, D);
    c.weights = tr_view2(w, TR_F32, 1, K);
    if (tr_combine(ctx, &c)) return 1;
    tr_ctx_free(ctx);
    for (int run = 0; run < RUNS; run++) {
        for (int k = K - 1; run && k > 0; k--) {        /* another order of arrival */
            int j = (int)(tr_rng_u64(41, (uint64_t)run, (uint64_t)k) % (uint64_t)(k + 1));
            answer t = a[k];
            a[k] = a[j];
            a[j] = t;
        }
        put_together(u, a, K);
        for (int d = 0; d < D; d++)
            if (tr_f32_bits(u[d]) != tr_f32_bits(want[d])) {
                printf("missing: arrival %d: u[%d] is %.9g, one rank has %.9g\n", run, d,
                       (double)u[d], (double)want[d]);
                return 1;
            }
    }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void put_together(float *u, const answer *a, int n)
{
    int last = -1;
    for (int d = 0; d < D; d++) u[d] = 0;
    for (int k = 0; k < n; k++) {                       /* the next larger expert, n times */
        int next = -1;
        for (int i = 0; i < n; i++)
            if (a[i].expert > last && (next < 0 || a[i].expert < a[next].expert)) next = i;
        last = a[next].expert;
        for (int d = 0; d < D; d++) u[d] = fmaf(a[next].w, a[next].y[d], u[d]);
    }
}
#endif
