/* {fn}, all of it: every binary32 number through every function against libm in binary64, and
 * five million arguments of each binary64 function against libm in long double. `make check-long`
 * builds it at -O3 -march=native; some ten minutes on two idle cores. The sums over all results are
 * the same for every compiler and CPU. With a number N as its argument it takes a piece in N, and
 * with the name of a function that one alone. */
#define TRILLION_IMPLEMENTATION
#include "fn.h"

#if defined(_OPENMP)
#define OMP(clause) _Pragma(#clause)
#else
#define OMP(clause)
#endif

#define PIECE 65536

static int64_t every = 1;
static const char *only = "";

typedef struct found { double worst; uint32_t at; uint64_t sum, inexact; } found;

/* One piece of 65,536 numbers: the core in a loop of its own, so that it is tried as vector code. */
#define PIECE_OF(name, core)                                                        \
    static void name(float *y, const float *x)                                      \
    {                                                                               \
        for (int i = 0; i < PIECE; i++) y[i] = core(x[i]);                          \
    }
PIECE_OF(exp_of, tri_expf)
PIECE_OF(expm1_of, tri_expm1f)
PIECE_OF(log_of, tri_logf)
PIECE_OF(log1p_of, tri_log1pf)
PIECE_OF(tanh_of, tri_tanhf)
PIECE_OF(sigmoid_of, tri_sigmoidf)
PIECE_OF(softplus_of, tri_softplusf)
PIECE_OF(erf_of, tri_erff)
PIECE_OF(sin_of, tri_sinf)
PIECE_OF(cos_of, tri_cosf)
PIECE_OF(gelu_of, tri_gelu_erff)
PIECE_OF(gelu_tanh_of, tri_gelu_tanhf)

static void (*const pieces[FN_ROWS])(float *, const float *) = {
    exp_of, expm1_of, log_of, log1p_of, tanh_of, sigmoid_of, softplus_of, erf_of, sin_of, cos_of,
    gelu_of, gelu_tanh_of
};

/* The sums of a correct build. */
static const uint64_t sums[FN_ROWS] = {
    0x47ddeae3e133a8b7u, 0x99376fdb0994c63fu, 0xc42e2d83adb55fa2u, 0x854dce7e92470f26u,
    0x1c4612f544548d32u, 0xe47c1c3e67ac6ab4u, 0x243bc3a5cbd035edu, 0x1360cf37b9eaf802u,
    0x0d8beb060afe9e38u, 0x9fe7c872cdb0a491u, 0xb53a0bb890f67749u, 0xa8437a1e2ed0092du
};

static void piece(found *f, int k, uint32_t first)
{
    float x[PIECE], y[PIECE];
    for (uint32_t i = 0; i < PIECE; i++) x[i] = tr_f32_from_bits(first + i);
    pieces[k](y, x);
    for (uint32_t i = 0; i < PIECE; i++) {
        double want = fn_rows[k].ref((double)x[i]), u = fn_ulps(y[i], want);
        f->sum += tri_mix64((uint64_t)(first + i) << 32 | tr_f32_bits(y[i]));
        if (u > 0.5) f->inexact++;
        if (u > f->worst) { f->worst = u; f->at = first + i; }
    }
}

static void all_binary32(void)
{
    for (int k = 0; k < FN_ROWS; k++) {
        found all = { 0, 0, 0, 0 };
        if (*only && strcmp(only, fn_rows[k].name)) continue;
OMP(omp parallel)
        {
            found f = { 0, 0, 0, 0 };
OMP(omp for schedule(dynamic, 64))
            for (int64_t p = 0; p < (int64_t)0x100000000 / PIECE; p += every)
                piece(&f, k, (uint32_t)(p * PIECE));
OMP(omp critical)
            {
                all.sum += f.sum;
                all.inexact += f.inexact;
                if (f.worst > all.worst || (f.worst == all.worst && f.at < all.at)) {
                    all.worst = f.worst;
                    all.at = f.at;
                }
            }
        }
        printf("  %-9s worst %.7f ulp <= %.4f at %.9g (0x%08x), %llu not the nearest, sum %016llx\n",
               fn_rows[k].name, all.worst, fn_rows[k].bound, (double)tr_f32_from_bits(all.at),
               all.at, (unsigned long long)all.inexact, (unsigned long long)all.sum);
        fflush(stdout);
        CHECK(all.worst <= fn_rows[k].bound);
        CHECK(all.sum == sums[k] || every > 1);
    }
}

#if LDBL_MANT_DIG >= 64
typedef struct found64 { double worst, x, y; } found64;

static void judge(found64 *f, double got, long double want, double x, double y)
{
    long double d = fabsl((long double)got - want);
    if (fabsl(want) < DBL_MIN || fabsl(want) > DBL_MAX) return;
    double rel = (double)(d / fabsl(want));
    if (!(rel <= f->worst)) { f->worst = rel; f->x = x; f->y = y; }
}

/* Uniform in value or in exponent, and next to where k changes. */
static void one64(found64 *f, uint64_t i)
{
    double p = tr_rng_unit(5, 1, i), q = tr_rng_unit(5, 2, i), s, c, x, y;
    int e = (int)(tr_rng_u64(5, 3, i) % 4096);
    double sign = i & 1 ? -1 : 1, near = 1 + (double)(e % 16 - 8) * DBL_EPSILON;
    x = i % 4 == 0 ? 1417 * p - 708 : i % 4 == 1 ? sign * ldexp(1 + p, e % 69 - 60) :
        (floor(2000 * p) - 1000 + 0.5) * 0.69314718055994529 * near;
    judge(&f[0], tr_exp64(x), expl((long double)x), x, 0);
    x = i % 4 == 0 ? ldexp(1 + p, e % 2045 - 1022) : i % 4 == 1 ? 1 + sign * ldexp(1 + p, -e % 53 - 1)
        : i % 4 == 2 ? 0.5 + p : ldexp(0.70710678118654757 * near, e % 2000 - 1000);
    judge(&f[1], tr_log64(x), logl((long double)x), x, 0);
    x = i % 4 == 0 ? ldexp(1 + p, e % 200 - 100) : i % 4 == 1 ? 1 + sign * ldexp(1 + p, -e % 30 - 2)
        : i % 4 == 2 ? 0.5 + p : 1e4 + 1e7 * p;
    y = i % 4 == 3 ? -floor(256 * q) / 256 : (2 * q - 1) * 700 / fabs((double)logl((long double)x));
    judge(&f[2], tr_pow64(x, y), powl((long double)x, (long double)y), x, y);
    x = i % 4 == 0 ? 2147483648.0 * p : i % 4 == 1 ? sign * ldexp(1 + p, e % 61 - 30) :
        i % 4 == 2 ? floor(2147483648.0 * p) * ldexp(1 + q, -(e % 20)) :
        floor(ldexp(p, e % 31)) * 1.5707963267948966 * near;
    if (fabs(x) > 2147483648.0) x = 2147483648.0;
    tr_sincos64(x, &s, &c);
    judge(&f[3], s, sinl((long double)x), x, 0);
    judge(&f[4], c, cosl((long double)x), x, 0);
}

static void many_binary64(void)
{
    static const char *const name[5] = { "exp64", "log64", "pow64", "sin64", "cos64" };
    found64 all[5];
    memset(all, 0, sizeof all);
OMP(omp parallel)
    {
        found64 f[5];
        memset(f, 0, sizeof f);
OMP(omp for schedule(dynamic, 4096))
        for (int64_t i = 0; i < 5000000; i++) one64(f, (uint64_t)i);
OMP(omp critical)
        for (int k = 0; k < 5; k++) if (f[k].worst > all[k].worst) all[k] = f[k];
    }
    for (int k = 0; k < 5; k++) {
        printf("  %-9s worst 2^%.3f <= 2^-50 at %.17g, %.17g\n", name[k], log2(all[k].worst),
               all[k].x, all[k].y);
        CHECK(all[k].worst <= ldexp(1, -50));
    }
}
#endif

int main(int argc, char **argv)
{
    if (argc > 1 && strtol(argv[1], NULL, 10) > 0) every = strtol(argv[1], NULL, 10);
    for (int k = 0; argc > 1 && k < FN_ROWS; k++)
        if (!strcmp(argv[1], fn_rows[k].name)) only = argv[1];
    TEST(all_binary32);
#if LDBL_MANT_DIG >= 64
    TEST(many_binary64);
#endif
    return test_end();
}
