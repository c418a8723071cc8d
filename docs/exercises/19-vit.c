/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/19-vit.c -o build/ex19 -lm && build/ex19
 *
 * Exercise for docs/19-vit.md. A table has G positions, a picture n cells along the same axis.
 * Entry k of the table stands for the middle of [k, k + 1), cell i for the middle of its n-th part
 * of [0, G). Mix what stands at the cell's middle from the two entries beside it; before the first
 * entry's middle and after the last one's the table goes on as it is there. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static double resized(const double *table, int G, int i, int n);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static double resized(const double *table, int G, int i, int n)
{
    return table[i * G / n];                        /* the nearest below */
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    double table[9], want[40];
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    for (int k = 0; k < 9; k++) table[k] = tr_rng_normal(19, 0, (uint64_t)k);
    for (int G = 1; G <= 9; G++)
        for (int n = 1; n <= 40; n++) {
            tr_weight w;
            tr_pos_args a = { tr_view2(want, TR_F64, n, 1), &w, 1, 1, n, 0 };
            if (tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F64), "", table, NULL, 1, G, 0, 0) ||
                tr_pos_resize_f64(ctx, &a)) return printf("%s\n", tr_err_last(ctx)), 1;
            for (int i = 0; i < n; i++) {
                double y = resized(table, G, i, n);
                if (fabs(y - want[i]) <= 1e-12) continue;
                printf("missing: %d entries, cell %d of %d is %.4f, yours %.4f\n", G, i, n, want[i],
                       y);
                return 1;
            }
        }
    printf("right\n");
    tr_ctx_free(ctx);
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static double resized(const double *table, int G, int i, int n)
{
    double z = fmax((i + 0.5) * ((double)G / n) - 0.5, 0);
    int k = z < G - 1 ? (int)z : G - 1, next = k + 1 < G ? k + 1 : k;
    return (1 - (z - k)) * table[k] + (z - k) * table[next];
}
#endif
