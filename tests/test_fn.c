/* {fn}: against correctly rounded results that this project did not make, against mpmath and libm,
 * at every edge; software against hardware fma; and one hash for all compilers, flags and CPUs. */
#define TRILLION_IMPLEMENTATION
#include "fixture.h"
#include "fn.h"

static tr_ctx *ctx;

/* ---- golden numbers */

static void golden(void)
{
    tr_st f;
    fixture_open(ctx, &f, "ops/elementary.safetensors");
    for (int k = 0; k < FN_GOLDEN; k++) {
        const fn_row *r = &fn_rows[k];
        char name[64];
        double worst = 0;
        int64_t not_nearest = 0, n;
        snprintf(name, sizeof name, "%s.in.x", r->name);
        tr_view x = fixture_view(&f, name, TR_F32);
        snprintf(name, sizeof name, "%s.out.f32", r->name);
        const float *y32 = tr_view_f32(fixture_view(&f, name, TR_F32));
        snprintf(name, sizeof name, "%s.out.f64", r->name);
        const double *y64 = tr_view_f64(fixture_view(&f, name, TR_F64));
        n = tr_view_numel(x);
        for (int64_t i = 0; i < n; i++) {
            float a = tr_view_f32(x)[i], y = r->f(a);
            double u = fn_ulps(y, y64[i]);
            /* y64, rounded, may stand on a tie where the truth does not; y32 knows. */
            int nearest = tr_f32_bits(y) == tr_f32_bits(y32[i]) || (y != y && y32[i] != y32[i]);
            not_nearest += !nearest;
            if (nearest && u > 0.5) u = 0.5;
            if (u > worst) worst = u;
            if (u > r->bound) printf("  %s(%a) = %a, expected %a\n", r->name, (double)a,
                                     (double)y, (double)y32[i]);
        }
        printf("  %-9s %lld arguments, %lld not the nearest, worst %.6f ulp <= %.4f\n", r->name,
               (long long)n, (long long)not_nearest, worst, r->bound);
        CHECK(n >= 2000 && worst <= r->bound);
    }
    tr_st_close(ctx, &f);
}

static void golden64_of(const tr_st *f, const char *name, tr_view x, const double *y)
{
    char key[64];
    double worst = 0, at = 0;
    snprintf(key, sizeof key, "%s.hi", name);
    tr_view v = fixture_view(f, key, TR_F64);
    const double *hi = tr_view_f64(v);
    snprintf(key, sizeof key, "%s.lo", name);
    const double *lo = tr_view_f64(fixture_view(f, key, TR_F64));
    for (int64_t i = 0; i < tr_view_numel(v); i++) {
        double d = fn_rel(y[i], hi[i], lo[i]);
        if (!(d <= worst)) { worst = d; at = tr_view_f64(x)[i]; }
    }
    printf("  %-17s %lld arguments, worst 2^%.2f <= 2^-50, at %.17g\n", name,
           (long long)tr_view_numel(v), log2(worst), at);
    CHECK(worst <= ldexp(1, -50));
}

static void golden64(void)
{
    tr_st f;
    double y[2000], z[2000];
    CHECK_OK(ctx, tr_st_open(ctx, &f, "tests/golden/ops/elementary64.safetensors", 0));
    tr_view x = fixture_view(&f, "exp64.in.x", TR_F64);
    for (int64_t i = 0; i < tr_view_numel(x); i++) y[i] = tr_exp64(tr_view_f64(x)[i]);
    golden64_of(&f, "exp64.out", x, y);
    x = fixture_view(&f, "log64.in.x", TR_F64);
    for (int64_t i = 0; i < tr_view_numel(x); i++) y[i] = tr_log64(tr_view_f64(x)[i]);
    golden64_of(&f, "log64.out", x, y);
    x = fixture_view(&f, "pow64.in.x", TR_F64);
    const double *e = tr_view_f64(fixture_view(&f, "pow64.in.y", TR_F64));
    for (int64_t i = 0; i < tr_view_numel(x); i++) y[i] = tr_pow64(tr_view_f64(x)[i], e[i]);
    golden64_of(&f, "pow64.out", x, y);
    x = fixture_view(&f, "sincos64.in.x", TR_F64);
    for (int64_t i = 0; i < tr_view_numel(x); i++) tr_sincos64(tr_view_f64(x)[i], &y[i], &z[i]);
    golden64_of(&f, "sincos64.out.sin", x, y);
    golden64_of(&f, "sincos64.out.cos", x, z);
    tr_st_close(ctx, &f);
}

/* ---- edges */

#define INF 0x7f800000u
#define NEG 0x80000000u
#define ONE 0x3f800000u
#define QNAN 0x7fc00000u

static void specials(void)
{
    enum { EXP, EXPM1, LOG, LOG1P, TANH, SIGMOID, SOFTPLUS, ERF, SIN, COS, GELU,
           GELU_TANH };
    static const struct { int f; uint32_t x, y; } rows[] = {
        { EXP, 0, ONE }, { EXP, NEG, ONE }, { EXP, INF, INF }, { EXP, NEG | INF, 0 },
        { EXP, 1, ONE }, { EXP, NEG | 1, ONE }, { EXP, 0x7f7fffff, INF }, { EXP, 0xff7fffff, 0 },
        { EXP, 0x42b17217, 0x7f7fff84 },        /* the last finite one, 88.72283 */
        { EXP, 0x42b17218, INF },
        { EXP, 0xc2aeac4f, 0x00800026 }, { EXP, 0xc2aeac50, 0x007fffe6 },   /* to subnormals */
        { EXP, 0xc2cff1b4, 1 }, { EXP, 0xc2cff1b5, 0 },                     /* to 2^-149, to 0 */
        { EXPM1, 0, 0 }, { EXPM1, NEG, NEG }, { EXPM1, 1, 1 }, { EXPM1, NEG | 1, NEG | 1 },
        { EXPM1, INF, INF }, { EXPM1, NEG | INF, NEG | ONE }, { EXPM1, 0x42b17218, INF },
        { EXPM1, 0x00400000, 0x00400000 }, { EXPM1, 0xff7fffff, NEG | ONE },
        { LOG, 0, NEG | INF }, { LOG, NEG, NEG | INF }, { LOG, NEG | 1, QNAN }, { LOG, ONE, 0 },
        { LOG, NEG | ONE, QNAN }, { LOG, INF, INF }, { LOG, NEG | INF, QNAN },
        { LOG, 1, 0xc2ce8ed0 }, { LOG, 0x7f7fffff, 0x42b17218 },
        { LOG1P, 0, 0 }, { LOG1P, NEG, NEG }, { LOG1P, 1, 1 }, { LOG1P, NEG | 1, NEG | 1 },
        { LOG1P, NEG | ONE, NEG | INF }, { LOG1P, 0xbf800001, QNAN }, { LOG1P, INF, INF },
        { LOG1P, NEG | INF, QNAN }, { LOG1P, 0x7f7fffff, 0x42b17218 },
        { TANH, 0, 0 }, { TANH, NEG, NEG }, { TANH, 1, 1 }, { TANH, NEG | 1, NEG | 1 },
        { TANH, INF, ONE }, { TANH, NEG | INF, NEG | ONE }, { TANH, 0x41200000, ONE },
        { SIGMOID, 0, 0x3f000000 }, { SIGMOID, NEG, 0x3f000000 }, { SIGMOID, INF, ONE },
        { SIGMOID, NEG | INF, 0 }, { SIGMOID, 0xc2cff1b4, 1 }, { SIGMOID, 0xc2cff1b5, 0 },
        { SIGMOID, 0xff7fffff, 0 }, { SIGMOID, 0x41a00000, ONE },
        { SOFTPLUS, 0, 0x3f317218 }, { SOFTPLUS, NEG, 0x3f317218 }, { SOFTPLUS, INF, INF },
        { SOFTPLUS, NEG | INF, 0 }, { SOFTPLUS, 0xc2cff1b4, 1 }, { SOFTPLUS, 0xc2cff1b5, 0 },
        { SOFTPLUS, 0x7f7fffff, 0x7f7fffff }, { SOFTPLUS, 0x42c80000, 0x42c80000 },
        { ERF, 0, 0 }, { ERF, NEG, NEG }, { ERF, 1, 1 }, { ERF, NEG | 1, NEG | 1 },
        { ERF, INF, ONE }, { ERF, NEG | INF, NEG | ONE }, { ERF, 0x40800000, ONE },
        { SIN, 0, 0 }, { SIN, NEG, NEG }, { SIN, 1, 1 }, { SIN, NEG | 1, NEG | 1 },
        { SIN, INF, QNAN }, { SIN, NEG | INF, QNAN },
        { COS, 0, ONE }, { COS, NEG, ONE }, { COS, 1, ONE }, { COS, INF, QNAN },
        { COS, NEG | INF, QNAN },
        { GELU, 0, 0 }, { GELU, NEG, NEG }, { GELU, 1, 0 }, { GELU, 3, 2 }, { GELU, INF, INF },
        { GELU, NEG | INF, NEG }, { GELU, 0xff7fffff, NEG }, { GELU, 0x7f7fffff, 0x7f7fffff },
        { GELU, 0xc1680000, NEG },                                          /* -14.5 */
        { GELU_TANH, 0, 0 }, { GELU_TANH, NEG, NEG }, { GELU_TANH, 1, 0 }, { GELU_TANH, 3, 2 },
        { GELU_TANH, INF, INF }, { GELU_TANH, NEG | INF, NEG }, { GELU_TANH, 0xff7fffff, NEG },
        { GELU_TANH, 0x7f7fffff, 0x7f7fffff }, { GELU_TANH, 0xc1300000, NEG }   /* -11 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fn_row *r = &fn_rows[rows[i].f];
        uint32_t y = tr_f32_bits(r->f(tr_f32_from_bits(rows[i].x)));
        if (y != rows[i].y) {
            test_bad++;
            printf("  %s(0x%08x) = 0x%08x, expected 0x%08x\n", r->name, rows[i].x, y, rows[i].y);
        }
    }
    static const uint32_t nans[] = { QNAN, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff };
    for (int k = 0; k < FN_ROWS; k++)
        for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
            CHECK(tr_f32_bits(fn_rows[k].f(tr_f32_from_bits(nans[i]))) == QNAN);
}

static int is_bits(double x, uint64_t u) { return memcmp(&x, &u, 8) == 0; }

static void specials64(void)
{
    const double inf = (double)INFINITY, nan = (double)NAN;
    const uint64_t qnan = 0x7ff8000000000000u;
    double s, c;
    CHECK(tr_exp64(0) == 1 && tr_exp64(-0.0) == 1 && tr_exp64(inf) == inf && tr_exp64(1e9) == inf);
    CHECK(is_bits(tr_exp64(-inf), 0) && is_bits(tr_exp64(-1e9), 0) && is_bits(tr_exp64(nan), qnan));
    CHECK(tr_exp64(709.78271289338397) < inf && tr_exp64(709.782712893385) == inf);
    CHECK(is_bits(tr_exp64(-745.1), 1) && is_bits(tr_exp64(-745.2), 0));
    CHECK(tr_log64(1) == 0 && !signbit(tr_log64(1)) && tr_log64(0) == -inf);
    CHECK(tr_log64(-0.0) == -inf && tr_log64(inf) == inf && is_bits(tr_log64(-1), qnan));
    CHECK(is_bits(tr_log64(-inf), qnan) && is_bits(tr_log64(nan), qnan));
    CHECK(fabs(tr_log64(4.9406564584124654e-324) + 744.44007192138126) < 2e-13);
    CHECK(tr_pow64(1, 1e300) == 1 && tr_pow64(7, 0) == 1 && tr_pow64(7, -0.0) == 1);
    CHECK(tr_pow64(2, 1023) == ldexp(1, 1023) && tr_pow64(2, -1074) == ldexp(1, -1074));
    CHECK(tr_pow64(2, 1e300) == inf && is_bits(tr_pow64(2, -1e300), 0));
    CHECK(is_bits(tr_pow64(0.5, 1e25), 0) && tr_pow64(10, 5) == 100000);
    CHECK(tr_pow64(1 + DBL_EPSILON, 1e19) == inf && tr_pow64(1 + DBL_EPSILON, 1e-300) == 1);
    CHECK(is_bits(tr_pow64(0, 1), qnan) && is_bits(tr_pow64(-1, 1), qnan));
    CHECK(is_bits(tr_pow64(inf, 1), qnan) && is_bits(tr_pow64(nan, 1), qnan));
    CHECK(is_bits(tr_pow64(2, inf), qnan) && is_bits(tr_pow64(1, nan), qnan));
    tr_sincos64(-0.0, &s, &c);
    CHECK(s == 0 && signbit(s) && c == 1);
    tr_sincos64(4.9406564584124654e-324, &s, &c);
    CHECK(is_bits(s, 1) && c == 1);
    tr_sincos64(2147483648.0, &s, &c);
    CHECK(fabs(s - sin(2147483648.0)) < 1e-15 && fabs(c - cos(2147483648.0)) < 1e-15);
    tr_sincos64(2147483649.0, &s, &c);
    CHECK(is_bits(s, qnan) && is_bits(c, qnan));
    tr_sincos64(-inf, &s, &c);
    CHECK(is_bits(s, qnan) && is_bits(c, qnan));
    tr_sincos64(nan, &s, &c);
    CHECK(is_bits(s, qnan) && is_bits(c, qnan));
}

/* ---- a sparse sweep of all binary32 numbers; long_fn.c takes them all */

static void sweep(void)
{
    for (int k = 0; k < FN_ROWS; k++) {
        const fn_row *r = &fn_rows[k];
        double worst = 0;
        uint32_t at = 0;
        for (uint64_t i = 0; i <= 0xffffffffu; i += 10007) {
            float x = tr_f32_from_bits((uint32_t)i);
            double u = fn_ulps(r->f(x), r->ref((double)x));
            if (u > worst) { worst = u; at = (uint32_t)i; }
        }
        printf("  %-9s worst %.6f ulp <= %.4f, at %.9g (0x%08x)\n", r->name, worst, r->bound,
               (double)tr_f32_from_bits(at), at);
        CHECK(worst <= r->bound);
    }
}

static void odd(void)
{
    static const int rows[] = { 4, 7, 8 };                  /* tanh, erf, sin */
    for (int k = 0; k < 3; k++) {
        float (*f)(float) = fn_rows[rows[k]].f;
        int bad = 0;
        for (uint32_t i = 0; i < INF; i += 5003)
            bad += (tr_f32_bits(f(tr_f32_from_bits(i))) ^ NEG) !=
                   tr_f32_bits(f(tr_f32_from_bits(i | NEG)));
        CHECK(bad == 0);
    }
}

/* Neighbours around the places where a reduction changes its k, its branch or its digits. */
static void seams(void)
{
    static const double at[] = { 0.34657359, 0.17328680, 1.0397208, 0.70710678, 1.4142135, -0.29289,
        0.41421356, 1, 2, 4, 10, 17.328680, 88.722839, -103.97208, 0.78539816, 2.3561945, 5.4977871,
        5.6294995e14, 9.4447330e21, 1.5845633e29, 2.6584560e36, 1.1754944e-38, 9.0109, 3.9192,
        14.1, 14.5, 10.8, 11 };
    for (int k = 0; k < FN_ROWS; k++) {
        double worst = 0;
        for (size_t i = 0; i < sizeof at / sizeof *at; i++)
            for (uint32_t d = 0; d < 8192; d++)
                for (uint32_t sign = 0; sign < 2; sign++) {
                    float x = tr_f32_from_bits((tr_f32_bits((float)at[i]) ^ sign << 31) + d - 4096);
                    double u = fn_ulps(fn_rows[k].f(x), fn_rows[k].ref((double)x));
                    if (u > worst) worst = u;
                }
        CHECK(worst <= fn_rows[k].bound);
    }
}

/* ---- loops that the compiler may make vectors of give the bits of single calls */

#define LOOP(name, f)                                                      \
    static void name(float *y, const float *x, int64_t n)                  \
    {                                                                      \
        for (int64_t i = 0; i < n; i++) y[i] = f(x[i]);                    \
    }
#define LOOPS(suffix)                                                      \
    LOOP(exp_##suffix, tri_expf) LOOP(expm1_##suffix, tri_expm1f)          \
    LOOP(log_##suffix, tri_logf) LOOP(log1p_##suffix, tri_log1pf)          \
    LOOP(tanh_##suffix, tri_tanhf) LOOP(sigmoid_##suffix, tri_sigmoidf)    \
    LOOP(softplus_##suffix, tri_softplusf) LOOP(erf_##suffix, tri_erff)    \
    LOOP(sin_##suffix, tri_sinf) LOOP(cos_##suffix, tri_cosf)              \
    LOOP(gelu_##suffix, tri_gelu_erff) LOOP(gelu_tanh_##suffix, tri_gelu_tanhf)
#define LIST(suffix)                                                       \
    { exp_##suffix, expm1_##suffix, log_##suffix, log1p_##suffix,          \
      tanh_##suffix, sigmoid_##suffix, softplus_##suffix, erf_##suffix,    \
      sin_##suffix, cos_##suffix, gelu_##suffix, gelu_tanh_##suffix }

typedef void (*loop_fn)(float *y, const float *x, int64_t n);

#if defined(__GNUC__) && !defined(__clang__)
#define VECTOR __attribute__((optimize("O3")))
#else
#define VECTOR
#endif
#define static VECTOR static
LOOPS(plain)
#undef static
#if defined(__GNUC__) && defined(__x86_64__)
#define X86 1
#define static VECTOR __attribute__((target("avx2,fma"))) static
LOOPS(avx2)
#undef static
#define static VECTOR __attribute__((target("avx512f,avx512dq,avx512vl,fma"))) static
LOOPS(avx512)
#undef static
#else
#define X86 0
#endif

static void loops_are(const char *name, const loop_fn *loops)
{
    enum { N = 100003 };
    float *x = (float *)malloc(N * sizeof *x), *y = (float *)malloc(N * sizeof *y);
    if (!x || !y) exit(1);
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? (float)(8 * tr_rng_normal(3, 1, (uint64_t)i)) :
               tr_f32_from_bits((uint32_t)tr_rng_u64(3, 2, (uint64_t)i));
    for (int k = 0; k < FN_ROWS; k++) {
        int bad = 0;
        loops[k](y, x, N);
        for (int i = 0; i < N; i++) bad += tr_f32_bits(y[i]) != tr_f32_bits(fn_rows[k].f(x[i]));
        if (bad) printf("  %s: %s differs in %d of %d\n", name, fn_rows[k].name, bad, N);
        test_bad += bad != 0;
    }
    free(x);
    free(y);
}

static void vectors(void)
{
    static const loop_fn plain[FN_ROWS] = LIST(plain);
    loops_are("plain", plain);
#if X86
    static const loop_fn avx2[FN_ROWS] = LIST(avx2), avx512[FN_ROWS] = LIST(avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) loops_are("avx2", avx2);
    else printf("  no avx2 here\n");
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        loops_are("avx512", avx512);
    else printf("  no avx512 here\n");
#endif
}

/* ---- fma */

#if X86
__attribute__((target("fma"))) static float fma_instruction(float a, float b, float c)
{
    return tri_fmaf(1, a, b, c);
}
#endif

static int64_t fma_bad, fma_run;
static int fma_here;

static void fma_one(float a, float b, float c)
{
    float want = fmaf(a, b, c), soft = tri_fmaf(0, a, b, c), hard = tri_fmaf(1, a, b, c);
#if X86
    if (fma_here) hard = fma_instruction(a, b, c);
#endif
    fma_run++;
    if (want != want ? soft == soft : tr_f32_bits(soft) != tr_f32_bits(want) ||
                                      tr_f32_bits(hard) != tr_f32_bits(want))
        if (fma_bad++ < 5)
            printf("  fma(%a, %a, %a) = %a, expected %a\n", (double)a, (double)b, (double)c,
                   (double)soft, (double)want);
}

static uint64_t rnd(void)
{
    static uint64_t i;
    return tr_rng_u64(11, 4, i++);
}

/* Random mantissa, mostly zeros at its end, and an exponent field near e. */
static float fma_float(int e, int spread)
{
    uint64_t u = rnd();
    int f = e - spread + (int)(u >> 40) % (2 * spread + 1);
    f = f < 0 ? 0 : f > 254 ? 254 : f;
    return tr_f32_from_bits((uint32_t)(u >> 63) << 31 | (uint32_t)f << 23 |
                            ((uint32_t)u & 0x7fffff & (0xffffffffu << (u >> 24) % 24)));
}

static void fma_specials(void)
{
    static const uint32_t v[] = { 0, 1, 2, 3, 0x7fffff, 0x800000, 0x800001, 0x00ffffff, 0x01000000,
        0x0c000000, 0x33800000, 0x33800001, 0x33ffffff, 0x34000000, 0x3effffff, 0x3f000000,
        0x3f7fffff, ONE, 0x3f800001, 0x3fc00000, 0x3fffffff, 0x40000000, 0x4b000000, 0x4b7fffff,
        0x4b800000, 0x5f000000, 0x73800000, 0x7effffff, 0x7f000000, 0x7f7ffffe, 0x7f7fffff, INF,
        QNAN };
    const size_t n = sizeof v / sizeof *v;
    fma_bad = fma_run = 0;
    for (size_t i = 0; i < 2 * n; i++)
        for (size_t j = 0; j < 2 * n; j++)
            for (size_t k = 0; k < 2 * n; k++)
                fma_one(tr_f32_from_bits(v[i / 2] | (uint32_t)(i & 1) << 31),
                        tr_f32_from_bits(v[j / 2] | (uint32_t)(j & 1) << 31),
                        tr_f32_from_bits(v[k / 2] | (uint32_t)(k & 1) << 31));
    printf("  %lld triples\n", (long long)fma_run);
    CHECK(fma_bad == 0);
}

/* Sums that end on or next to a tie of binary32: c = m - a b rounded, m a midpoint; and products
 * that are ties (25 bits), moved by a c far below. */
static void fma_ties(void)
{
    fma_bad = fma_run = 0;
    for (int i = 0; i < 2000000; i++) {
        int e = (int)(rnd() % 255);
        float a = fma_float(127, 20), b = fma_float(e, 3), m = fma_float(e, 12), c;
        double mid = ((double)m + (double)tr_f32_from_bits(tr_f32_bits(m) + 1)) / 2;
        c = (float)(mid - (double)a * (double)b);
        fma_one(a, b, c);
        fma_one(a, b, tr_f32_from_bits(tr_f32_bits(c) ^ 1));
        a = tr_f32_from_bits(ONE | ((uint32_t)rnd() & 0x7ff000) | 0x800);       /* 13 bits, odd */
        b = tr_f32_from_bits(((uint32_t)rnd() & 0x7ff000) | 0x1000 | (uint32_t)(e % 254 + 1) << 23);
        fma_one(a, b, fma_float(0, 1));
        fma_one(a, b, fma_float(e - 60 > 0 ? e - 60 : 0, 40));
        fma_one(-a, b, fma_float(e - 26 > 0 ? e - 26 : 0, 3));
    }
    printf("  %lld triples\n", (long long)fma_run);
    CHECK(fma_bad == 0);
}

static void fma_random(void)
{
    fma_bad = fma_run = 0;
    for (int i = 0; i < 3000000; i++) {
        uint64_t u = rnd(), w = rnd();
        fma_one(tr_f32_from_bits((uint32_t)u), tr_f32_from_bits((uint32_t)(u >> 32)),
                tr_f32_from_bits((uint32_t)w));
        int e = (int)(w >> 32) % 255, g = (int)(w >> 40) % 255;
        fma_one(fma_float(e, 2), fma_float(g, 2), fma_float(e + g - 127, 30));   /* c near a b */
        fma_one(fma_float(e, 2), fma_float(127 - e, 30), fma_float(5, 8));       /* subnormal */
        fma_one(fma_float(e, 2), fma_float(381 - e, 3), fma_float(253, 3));      /* overflow */
    }
    printf("  %lld triples\n", (long long)fma_run);
    CHECK(fma_bad == 0);
}

/* ---- one hash */

static const char gelu_hash[] = "a84f2da7a0a58c64554faa36cdefe7e21f2a99806a8f32835ac6d18fcafbba34";
static const char one_hash[] = "8f9be76751a2f0b4d4a8d8938aebb405605fb70f40ebbcefaf0050dcacbffa71";

/* Every 4099th binary32 number through functions [begin, end). */
static void hash_rows(tr_sha256 *h, int begin, int end)
{
    for (int k = begin; k < end; k++)
        for (uint64_t i = 0; i <= 0xffffffffu; i += 4099) {
            float y = fn_rows[k].f(tr_f32_from_bits((uint32_t)i));
            tr_sha256_update(h, &y, sizeof y);
        }
}

static void hash_is(tr_sha256 *h, const char *want)
{
    char hex[65];
    tr_sha256_hex(h, hex);
    if (strcmp(hex, want)) printf("  %s, expected %s\n", hex, want);
    CHECK(!strcmp(hex, want));
}

/* Those, and 100,000 arguments or triples through the rest. Another compiler, flag or CPU that
 * changes one bit changes it. */
static void hash(void)
{
    tr_sha256 h;
    tr_sha256_init(&h);
    hash_rows(&h, FN_GOLDEN, FN_ROWS);
    hash_is(&h, gelu_hash);
    tr_sha256_init(&h);
    hash_rows(&h, 0, FN_GOLDEN);
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t u = tr_rng_u64(1, 2, i), w = tr_rng_u64(1, 3, i);
        double x = 1500 * (tr_rng_unit(1, 4, i) - 0.5), p = tr_rng_unit(1, 5, i), y[6];
        float f = tri_fmaf(TRI_HW_FMA, tr_f32_from_bits((uint32_t)u), tr_f32_from_bits((uint32_t)w),
                           tr_f32_from_bits((uint32_t)(u >> 32)));
        y[0] = tr_exp64(x);
        y[1] = tr_log64(ldexp(1 + p, (int)(u % 2000) - 1000));
        y[2] = tr_pow64(1 + 1000000 * p, x / 80);
        tr_sincos64(ldexp(p, (int)(w % 50) - 18), &y[3], &y[4]);
        y[5] = f != f ? 0 : (double)f;
        tr_sha256_update(&h, y, sizeof y);
    }
    hash_is(&h, one_hash);
}

int main(int argc, char **argv)
{
    fixture_args(argc, argv);
    ctx = test_ctx();
#if X86
    fma_here = __builtin_cpu_supports("fma") != 0;
#endif
    TEST(golden);
    TEST(golden64);
    TEST(specials);
    TEST(specials64);
    TEST(odd);
    TEST(seams);
    TEST(fma_specials);
    TEST(fma_ties);
    TEST(fma_random);
    TEST(vectors);
    TEST(sweep);
    TEST(hash);
    tr_ctx_free(ctx);
    return test_end();
}
