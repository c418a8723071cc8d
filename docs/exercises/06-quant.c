/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/06-quant.c -o build/ex06 -lm && build/ex06
 *
 * Exercise for docs/06-quant.md. Element (r, c) of a matrix in mxfp4: q holds cols / 2 bytes a
 * row, s holds cols / 32 bytes a row. Take the code's value from the table; a scale byte b is
 * 2^(b - 127). */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static const double e2m1[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };

static double element(const unsigned char *q, const unsigned char *s, int64_t cols, int64_t r,
                      int64_t c);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static double element(const unsigned char *q, const unsigned char *s, int64_t cols, int64_t r,
                      int64_t c)
{
    (void)q; (void)s; (void)cols; (void)r; (void)c;
    return e2m1[1];
}
/* -------------------------------------------------------------------------- */
#endif

enum { ROWS = 6, COLS = 96 };

int main(void)
{
    static unsigned char q[ROWS * COLS / 2], s[ROWS * COLS / 32];
    double buf[COLS];
    tr_ctx *ctx;
    tr_weight w;
    for (int i = 0; i < ROWS * COLS / 2; i++) q[i] = (unsigned char)tr_rng_u64(6, 0, (uint64_t)i);
    for (int i = 0; i < ROWS * COLS / 32; i++) s[i] = (unsigned char)(15 * i);  /* 0 to 255 */
    s[ROWS * COLS / 32 - 1] = 254;                                  /* 255 would be NaN */
    if (tr_ctx_new(&ctx, NULL) ||
        tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_MXFP4), "w", q, s, ROWS, COLS, 1, 32)) return 2;
    for (int r = 0; r < ROWS; r++) {
        const double *want = tr_weight_row_f64(&w, r, 0, COLS, buf);
        for (int c = 0; c < COLS; c++) {
            double have = element(q, s, COLS, r, c);
            if (have == want[c]) continue;
            printf("missing: element (%d, %d): byte %02x, scale byte %d: is %g, yours is %g\n", r,
                   c, q[r * COLS / 2 + c / 2], s[r * COLS / 32 + c / 32], want[c], have);
            return 1;
        }
    }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static double element(const unsigned char *q, const unsigned char *s, int64_t cols, int64_t r,
                      int64_t c)
{
    int code = q[r * (cols / 2) + c / 2] >> (c % 2 * 4) & 15;
    return ldexp(e2m1[code], s[r * (cols / 32) + c / 32] - 127);
}
#endif
