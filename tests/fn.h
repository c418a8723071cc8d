/* fn.h - the functions of {fn} beside the binary64 libm that judges them, for test_fn.c and
 * long_fn.c. libm's own error, under 1 ulp of binary64, is 2^-29 ulp of binary32. */
#ifndef FN_H
#define FN_H

#include "test.h"

typedef struct fn_row {
    const char *name;
    float (*f)(float);
    double (*ref)(double);
    double bound;                   /* ulps */
} fn_row;

/* Half an ulp is any correct rounding's. Before it the result is off by e, which is up to 2^24 e
 * ulps: e = 2^-37.7 for exp and expm1, 2^-37.6 for the logarithms, both together for softplus
 * (2^-12.6 ulp), 2^-35.1 for erf (2^-11.1 ulp), 2^-37.2 for gelu (2^-13.2 ulp). */
#define FN_ROWS   12
#define FN_GOLDEN 10                /* those of which elementary.safetensors has numbers */
static const fn_row fn_rows[FN_ROWS] = {
    { "exp",      tr_expf,      exp,             0.5002 },
    { "expm1",    tr_expm1f,    expm1,           0.5002 },
    { "log",      tr_logf,      log,             0.5002 },
    { "log1p",    tr_log1pf,    log1p,           0.5002 },
    { "tanh",     tr_tanhf,     tanh,            0.5002 },
    { "sigmoid",  tr_sigmoidf,  tr_sigmoid_f64,  0.5002 },
    { "softplus", tr_softplusf, tr_softplus_f64, 0.5002 },
    { "erf",      tr_erff,      erf,             0.5005 },
    { "sin",      tr_sinf,      sin,             0.5002 },
    { "cos",      tr_cosf,      cos,             0.5002 },
    { "gelu",     tr_gelu_erff,     tr_gelu_erf_f64,     0.5002 },
    { "gelu_tanh", tr_gelu_tanhf, tr_gelu_tanh_f64, 0.5002 }
};

/* |y - want| in ulps of binary32 at want; INFINITY where that cannot be said and the bits are not
 * those of want rounded. */
static inline double fn_ulps(float y, double want)
{
    float w = (float)want;
    uint64_t e, u;
    double scale;
    if (want != want) return tr_f32_bits(y) == 0x7fc00000u ? 0 : (double)INFINITY;
    if (w == 0 || y == 0 || isinf(w) || isinf(y))
        return tr_f32_bits(w) == tr_f32_bits(y) ? 0 : (double)INFINITY;
    if ((y < 0) != (w < 0)) return (double)INFINITY;
    e = tr_f32_bits(w) >> 23 & 255;
    u = (1023 + 150 - (e ? e : 1)) << 52;                   /* 1 / ulp, a power of two */
    memcpy(&scale, &u, sizeof scale);
    return fabs((double)y - want) * scale;
}

/* |y - (hi + lo)| / |hi| */
static inline double fn_rel(double y, double hi, double lo)
{
    return y == hi && lo == 0 ? 0 : fabs((y - hi) - lo) / fabs(hi);
}

#endif
