/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/04-fn.c -o build/ex04 -lm && build/ex04
 *
 * Exercise for docs/04-fn.md. Write 2^z for -160 <= z <= 130, less than 0.501 ulp off: split z
 * into an integer k and r in [-1/2, 1/2], take 2^r from the polynomial, scale by 2^k, and round to
 * binary32 once. Results may be subnormal, 0 or infinity. libm's ldexp(x, k) is x 2^k in binary64,
 * and floor rounds down. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

/* 2^r for |r| <= 1/2, good to 2^-37 */
static inline double two_to(double r)
{
    static const double c[9] = { 1, 0.69314718055687696, 0.2402265069648917, 0.055504109060035223,
        0.0096181289425099487, 0.0013333478817755093, 0.00015403629606012824, 1.530360894321085e-05,
        1.3215473638376677e-06 };
    double p = 0;
    for (int i = 8; i >= 0; i--) p = p * r + c[i];
    return p;
}

static float my_exp2(float z);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static float my_exp2(float z)
{
    return (float)two_to((double)z);
}
/* -------------------------------------------------------------------------- */
#endif

static int check(float z)
{
    double want = exp2((double)z), ulp;
    float w = (float)want, y = my_exp2(z);
    if (isinf(w) || w == 0) {
        if (y == w) return 0;
    } else {
        ulp = w < 0x1p-126f ? 0x1p-149 : ldexp(1, ilogb((double)w) - 23);
        if (fabs((double)y - want) < 0.501 * ulp) return 0;
    }
    printf("missing: 2^%.9g is %.9g, yours is %.9g\n", (double)z, (double)w, (double)y);
    return 1;
}

int main(void)
{
    static const float ends[] = { 0, 0.5f, -0.5f, 1, -1, 1.5f, 127.99999f, 128, 130, -126, -126.5f,
                                  -149, -149.5f, -150.5f, -160 };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (check(ends[i])) return 1;
    for (int i = 0; i < 300000; i++)
        if (check((float)(290 * tr_rng_unit(1, 2, (uint64_t)i) - 160))) return 1;
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static float my_exp2(float z)
{
    double k = floor((double)z + 0.5), r = (double)z - k;
    return (float)ldexp(two_to(r), (int)k);
}
#endif
