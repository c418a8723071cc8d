/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/10-norm.c -o build/ex10 -lm && build/ex10
 *
 * Exercise for docs/10-norm.md. A machine has a fast RMS norm and no L2 norm, and a delta rule asks
 * for y = x / sqrt(sum_d(x_d^2) + eps). Write it by calling tr_rmsnorm_f64 (one row, no weight) and
 * multiplying by one number. It must be right for rows of any size. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static void l2_by_rms(double *y, const double *x, int64_t D, double eps);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void l2_by_rms(double *y, const double *x, int64_t D, double eps)
{
    tr_rmsnorm_f64(y, x, NULL, 1, D, eps);
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    static const double size[5] = { 1, 1000, 1e-2, 1e-3, 1e-5 };
    for (int i = 0; i < 5; i++)
        for (int64_t D = 1; D <= 128; D *= 2) {
            double x[128], y[128], want[128], diff = 0;
            for (int64_t d = 0; d < D; d++) x[d] = size[i] * tr_rng_normal(10, 0, (uint64_t)d);
            tr_l2norm_f64(want, x, 1, D, 1e-6);
            l2_by_rms(y, x, D, 1e-6);
            for (int64_t d = 0; d < D; d++) diff = fmax(diff, fabs(y[d] - want[d]));
            if (diff <= 1e-14) continue;
            printf("missing: rows of %d numbers of size %g are off by %.2g\n", (int)D, size[i],
                   diff);
            return 1;
        }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void l2_by_rms(double *y, const double *x, int64_t D, double eps)
{
    tr_rmsnorm_f64(y, x, NULL, 1, D, eps / (double)D);
    for (int64_t d = 0; d < D; d++) y[d] /= sqrt((double)D);
}
#endif
