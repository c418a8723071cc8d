/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/31-golden.c -o build/ex31 -lm && build/ex31
 *
 * Exercise for docs/31-golden.md. names[0..n) are values of a model in model order; a[i] and b[i]
 * are theirs and the golden's. Return the index of the first one that is wrong: its max_rel is
 * above the bound, or it holds a NaN that the golden does not, or tr_diff_views refuses it. -1 if
 * none is. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static int first_wrong(tr_ctx *ctx, const tr_view *a, const tr_view *b, int n, double bound);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int first_wrong(tr_ctx *ctx, const tr_view *a, const tr_view *b, int n, double bound)
{
    for (int i = 0; i < n; i++) {
        tr_diff d;
        tr_diff_views(ctx, &d, a[i], b[i]);
        if (d.cosine < 1 - bound) return i;
    }
    return -1;
}
/* -------------------------------------------------------------------------- */
#endif

enum { N = 6, D = 64 };
static double golden[N][D], theirs[N][D];

static int check(tr_ctx *ctx, const char *what, int want)
{
    tr_view a[N], b[N];
    int have;
    for (int i = 0; i < N; i++) {
        a[i] = tr_view2(theirs[i], TR_F64, 1, want == 4 && i == 4 ? D - 1 : D);
        b[i] = tr_view2(golden[i], TR_F64, 1, D);
    }
    have = first_wrong(ctx, a, b, N, 1e-9);
    for (int i = 0; i < N; i++)                         /* as it was */
        for (int d = 0; d < D; d++) theirs[i][d] = golden[i][d] * (1 + 1e-12 * (d % 3 - 1));
    if (have == want) return 0;
    printf("missing: %s: the first wrong value is %d, yours is %d\n", what, want, have);
    return 1;
}

int main(void)
{
    tr_ctx *ctx;
    int bad;
    if (tr_ctx_new(&ctx, NULL)) return 2;
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++)
            theirs[i][d] = golden[i][d] = tr_rng_normal(3, (uint64_t)i, (uint64_t)d);
    bad = check(ctx, "equal values", -1) || check(ctx, "rounding alone", -1);
    theirs[3][7] += 1e-6;
    bad = bad || check(ctx, "one element is off by 1e-6", 3);
    for (int d = 0; d < D; d++) theirs[2][d] *= 2.5;
    bad = bad || check(ctx, "a factor of 2.5", 2);
    theirs[5][0] = sqrt(-1);
    bad = bad || check(ctx, "a NaN", 5) || check(ctx, "one value has 63 elements", 4);
    tr_ctx_free(ctx);
    if (!bad) printf("right\n");
    return bad;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int first_wrong(tr_ctx *ctx, const tr_view *a, const tr_view *b, int n, double bound)
{
    for (int i = 0; i < n; i++) {
        tr_diff d;
        if (tr_diff_views(ctx, &d, a[i], b[i]) != TR_OK || d.nan_one_side || !(d.max_rel <= bound))
            return i;
    }
    return -1;
}
#endif
