/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/03-num.c -o build/ex03 -lm && build/ex03
 *
 * Exercise for docs/03-num.md. One rule reads all float formats. Write it: the value of a code
 * with e bits of exponent, m bits of mantissa, and a bias. NaN and infinity are left out; the
 * codes that mean them are not asked for. ldexp(x, k) is x 2^k. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static double value(unsigned code, int e, int m, int bias);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static double value(unsigned code, int e, int m, int bias)
{
    (void)code; (void)e; (void)m; (void)bias;
    return 0;
}
/* -------------------------------------------------------------------------- */
#endif

static int check(const char *name, unsigned codes, int e, int m, int bias, double (*want)(unsigned))
{
    for (unsigned c = 0; c < codes; c++) {
        double w = want(c), v;
        if (w != w || isinf(w)) continue;
        v = value(c, e, m, bias);
        if (v == w && signbit(v) == signbit(w)) continue;
        printf("missing: %s code 0x%02x is %g, yours is %g\n", name, c, w, v);
        return 1;
    }
    return 0;
}

static double e2m1(unsigned c) { return (double)tr_e2m1_to_f32((uint8_t)c); }
static double e4m3(unsigned c) { return (double)tr_e4m3_to_f32((uint8_t)c); }
static double e5m2(unsigned c) { return (double)tr_e5m2_to_f32((uint8_t)c); }
static double f16(unsigned c)  { return (double)tr_f16_to_f32((uint16_t)c); }
static double bf16(unsigned c) { return (double)tr_bf16_to_f32((uint16_t)c); }

int main(void)
{
    if (check("e2m1", 16, 2, 1, 1, e2m1) || check("e4m3", 256, 4, 3, 7, e4m3) ||
        check("e5m2", 256, 5, 2, 15, e5m2) || check("f16", 65536, 5, 10, 15, f16) ||
        check("bf16", 65536, 8, 7, 127, bf16)) return 1;
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static double value(unsigned code, int e, int m, int bias)
{
    int M = (int)(code & ((1u << m) - 1)), X = (int)(code >> m & ((1u << e) - 1));
    double x = X > 0 ? ldexp((1 << m) + M, X - bias - m) : ldexp(M, 1 - bias - m);
    return code >> (e + m) & 1 ? -x : x;
}
#endif
