/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/09-mat.c -o build/ex09 -lm && build/ex09
 *
 * Exercise for docs/09-mat.md. y = x W^T + b for one token. tr_weight_row_f64 may be asked for at
 * most four columns at a time (buf is no larger), and the bits must be those of tr_matmul_f64. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static void product(double *y, const double *x, const tr_weight *w, const double *b);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void product(double *y, const double *x, const tr_weight *w, const double *b)
{
    double buf[4];
    for (int64_t o = 0; o < w->rows; o++) {
        y[o] = b[o];
        for (int64_t i = 0; i + 4 <= w->cols; i += 4) {
            const double *p = tr_weight_row_f64(w, o, i, 4, buf);
            y[o] += x[i] * p[0] + x[i + 1] * p[1] + x[i + 2] * p[2] + x[i + 3] * p[3];
        }
    }
}
/* -------------------------------------------------------------------------- */
#endif

enum { O = 5, MOST = 67 };

int main(void)
{
    static const int64_t cols[] = { 64, 67, 3, 1, 0 };
    static float data[O * MOST];
    double x[MOST], b[O], y[O], want[O];
    tr_ctx *ctx;
    tr_weight w;
    if (tr_ctx_new(&ctx, NULL)) return 2;
    for (int i = 0; i < O * MOST; i++) data[i] = (float)tr_rng_normal(1, 0, (uint64_t)i);
    for (int i = 0; i < MOST; i++) x[i] = tr_rng_normal(1, 1, (uint64_t)i);
    for (int o = 0; o < O; o++) b[o] = tr_rng_normal(1, 2, (uint64_t)o);
    for (int k = 0; k < 5; k++) {
        tr_matmul_args a;
        if (tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F32), "W", data, NULL, O, cols[k], 1, 1))
            return 2;
        a.y = tr_view2(want, TR_F64, 1, O);
        a.x = tr_view2(x, TR_F64, 1, cols[k]);
        a.w = &w;
        a.bias = tr_view1(b, TR_F64, O);
        if (tr_matmul_f64(ctx, &a)) return 2;
        for (int o = 0; o < O; o++) y[o] = 12345;
        product(y, x, &w, b);
        for (int o = 0; o < O; o++)
            if (memcmp(&y[o], &want[o], sizeof y[o])) {
                printf("missing: %d columns, output %d: is %a, yours is %a\n", (int)cols[k], o,
                       want[o], y[o]);
                return 1;
            }
    }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void product(double *y, const double *x, const tr_weight *w, const double *b)
{
    double buf[4];
    for (int64_t o = 0; o < w->rows; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < w->cols; i += 4) {
            int64_t n = w->cols - i < 4 ? w->cols - i : 4;
            const double *p = tr_weight_row_f64(w, o, i, n, buf);
            for (int64_t k = 0; k < n; k++) y[o] += x[i + k] * p[k];
        }
        y[o] += b[o];
    }
}
#endif
