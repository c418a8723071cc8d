/* {num}: every code of every format, every rounding vector, and the rules at the edges. */
#define TRILLION_IMPLEMENTATION
#include "fixture.h"

static tr_ctx *ctx;

static void dtype_names(void)
{
    static const char *const names[] = { "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F4",
        "F8_E8M0", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL" };
    static const int bits[] = { 64, 32, 16, 16, 8, 8, 4, 8, 64, 32, 16, 8, 64, 32, 16, 8, 8 };
    static const char *const others[] = { "F6_E2M3", "F6_E3M2", "C64", "F8_E4M3FNUZ", "f32", "F3",
        "F320", "BF1", "U128" };
    tr_dtype t;
    for (int i = 0; i < TR_DTYPE_COUNT; i++) {
        CHECK_OK(ctx, tr_dtype_parse(ctx, &t, names[i], strlen(names[i])));
        CHECK((int)t == i);
        CHECK(strcmp(tr_dtype_get(t)->name, names[i]) == 0);
        CHECK(tr_dtype_get(t)->bits == bits[i]);
        CHECK(tr_dtype_get(t)->is_float == (i < TR_I64));
    }
    CHECK(tr_dtype_get(TR_DTYPE_COUNT) == NULL && tr_dtype_get((tr_dtype)-1) == NULL);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        t = TR_I16;
        CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, others[i],
                    tr_dtype_parse(ctx, &t, others[i], strlen(others[i])));
        CHECK(t == TR_I16);
    }
    CHECK_OK(ctx, tr_dtype_parse(ctx, &t, "F16, and more text", 3));    /* n counts, not the NUL */
    CHECK(t == TR_F16);
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "\"\"", tr_dtype_parse(ctx, &t, "", 0));
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "F16", tr_dtype_parse(ctx, &t, "F16\0x", 5));
}

static void decode_tables(void)
{
    tr_st f;
    fixture_open(ctx, &f, "ops/quant/decode_tables.safetensors");
    const uint32_t *e2m1 = (const uint32_t *)fixture_view(&f, "e2m1_bits", TR_U32).data;
    const uint32_t *e4m3 = (const uint32_t *)fixture_view(&f, "e4m3fn_bits", TR_U32).data;
    const uint32_t *e5m2 = (const uint32_t *)fixture_view(&f, "e5m2_bits", TR_U32).data;
    const uint32_t *e8m0 = (const uint32_t *)fixture_view(&f, "e8m0_bits", TR_U32).data;
    for (int c = 0; c < 256; c++) {
        uint8_t b = (uint8_t)c;
        CHECK(tr_f32_bits(tr_e2m1_to_f32(b)) == e2m1[c & 15]);
        CHECK(tr_f32_bits(tr_e4m3_to_f32(b)) == e4m3[c]);
        CHECK(tr_f32_bits(tr_e5m2_to_f32(b)) == e5m2[c]);
        CHECK(tr_f32_bits(tr_e8m0_to_f32(b)) == e8m0[c]);
    }
    tr_view hc = fixture_view(&f, "f16_codes", TR_U16), bc = fixture_view(&f, "bf16_codes", TR_U16);
    const uint32_t *h = (const uint32_t *)fixture_view(&f, "f16_bits", TR_U32).data;
    const uint32_t *b = (const uint32_t *)fixture_view(&f, "bf16_bits", TR_U32).data;
    for (int64_t i = 0; i < hc.shape[0]; i++)
        CHECK(tr_f32_bits(tr_f16_to_f32(((const uint16_t *)hc.data)[i])) == h[i]);
    for (int64_t i = 0; i < bc.shape[0]; i++)
        CHECK(tr_f32_bits(tr_bf16_to_f32(((const uint16_t *)bc.data)[i])) == b[i]);
    CHECK(hc.shape[0] == 272 && bc.shape[0] == 272);
    tr_st_close(ctx, &f);
}

/* All 65,536 patterns at once, by the hash in the table's metadata. */
static void decode_hashes(void)
{
    tr_st f;
    tr_sha256 s[2];
    char hex[65];
    fixture_open(ctx, &f, "ops/quant/decode_tables.safetensors");
    tr_sha256_init(&s[0]);
    tr_sha256_init(&s[1]);
    for (uint32_t c = 0; c < 65536; c++) {
        uint32_t b = tr_f32_bits(tr_bf16_to_f32((uint16_t)c));
        uint32_t h = tr_f32_bits(tr_f16_to_f32((uint16_t)c));
        tr_sha256_update(&s[0], &b, 4);
        tr_sha256_update(&s[1], &h, 4);
    }
    tr_sha256_hex(&s[0], hex);
    CHECK(strcmp(hex, fixture_meta(&f, "bf16_sha256")) == 0);
    tr_sha256_hex(&s[1], hex);
    CHECK(strcmp(hex, fixture_meta(&f, "f16_sha256")) == 0);
    tr_st_close(ctx, &f);
}

/* Narrowing what was widened gives the code back; NaN stays NaN. */
static void round_trips(void)
{
    int bad = 0;
    for (uint32_t c = 0; c < 65536; c++) {
        float b = tr_bf16_to_f32((uint16_t)c), h = tr_f16_to_f32((uint16_t)c);
        uint16_t bb = tr_f32_to_bf16(b), hh = tr_f32_to_f16(h);
        bad += b != b ? tr_bf16_to_f32(bb) == tr_bf16_to_f32(bb) : bb != c;
        bad += h != h ? tr_f16_to_f32(hh) == tr_f16_to_f32(hh) : hh != c;
    }
    CHECK(bad == 0);
    for (int o = 0; o < 2; o++)
        for (uint32_t c = 0; c < 256; c++) {
            float a = tr_e4m3_to_f32((uint8_t)c), e = tr_e5m2_to_f32((uint8_t)c);
            uint8_t aa = tr_f32_to_e4m3(a, (tr_overflow)o), ee = tr_f32_to_e5m2(e, (tr_overflow)o);
            if (a != a) CHECK((aa & 0x7f) == 0x7f); else CHECK(aa == c);
            if (e != e) CHECK((ee & 0x7f) > 0x7c);
            else if (isinf(e) && o == TR_OVERFLOW_SATURATE) CHECK(ee == c - 1);
            else CHECK(ee == c);
            CHECK(tr_f32_to_e2m1(tr_e2m1_to_f32((uint8_t)c)) == (c & 15));
        }
}

static void roundings(void)
{
    tr_st f;
    int64_t bad[7] = { 0 };
    fixture_open(ctx, &f, "ops/quant/roundings.safetensors");
#define VECTOR(k, name, code, bits, expr)                                                       \
    do {                                                                                        \
        tr_view vx = fixture_view(&f, name ".x", TR_F32);                                       \
        tr_view vc = fixture_view(&f, name code, bits == 16 ? TR_U16 : TR_U8);                  \
        const float *px = (const float *)vx.data;                                               \
        CHECK(vx.shape[0] == vc.shape[0] && vx.shape[0] > 1000);                                \
        for (int64_t i = 0; i < vx.shape[0]; i++) {                                             \
            float x = px[i];                                                                    \
            uint32_t want = bits == 16 ? ((const uint16_t *)vc.data)[i]                         \
                                       : ((const uint8_t *)vc.data)[i];                         \
            if ((uint32_t)(expr) != want) {                                                     \
                if (!bad[k]++) printf("  " name code ": %a: %x, expected %x\n", (double)x,      \
                                      (unsigned)(expr), (unsigned)want);                        \
            }                                                                                   \
        }                                                                                       \
        CHECK(bad[k] == 0);                                                                     \
    } while (0)
    VECTOR(0, "bf16",   ".code",     16, tr_f32_to_bf16(x));
    VECTOR(1, "f16",    ".code",     16, tr_f32_to_f16(x));
    VECTOR(2, "e4m3fn", ".code_nan",  8, tr_f32_to_e4m3(x, TR_OVERFLOW_IEEE));
    VECTOR(3, "e4m3fn", ".code_sat",  8, tr_f32_to_e4m3(x, TR_OVERFLOW_SATURATE));
    VECTOR(4, "e5m2",   ".code",      8, tr_f32_to_e5m2(x, TR_OVERFLOW_IEEE));
    VECTOR(5, "e5m2",   ".code_sat",  8, tr_f32_to_e5m2(x, TR_OVERFLOW_SATURATE));
    VECTOR(6, "e2m1",   ".code",      8, tr_f32_to_e2m1(x));
#undef VECTOR
    tr_st_close(ctx, &f);
}

static uint32_t put(tr_dtype t, double v)
{
    uint64_t u = 0;
    if (!tri_put(&u, t, 0, v)) return 0xdeadbeef;
    return (uint32_t)u;
}

/* Between every two neighbours of a format: the middle goes to the even code, and one step of
 * binary64 beside the middle goes to the nearer one. A path through binary32 cannot pass. */
static void ties_from_binary64(void)
{
    static const tr_dtype type[] = { TR_F16, TR_BF16, TR_F8E4M3, TR_F8E5M2 };
    static const uint32_t top[] = { 0x7bff, 0x7f7f, 0x7e, 0x7b };
    int64_t bad = 0, n = 0;
    for (int k = 0; k < 4; k++)
        for (uint32_t c = 0; c < top[k]; c++, n++) {
            uint32_t c1 = c + 1, sign = k < 2 ? 0x8000 : 0x80;
            double lo = tr_get_f64(&c, type[k], 0), hi = tr_get_f64(&c1, type[k], 0);
            double mid = lo + (hi - lo) / 2;
            bad += put(type[k], mid) != (c & 1 ? c1 : c);
            bad += put(type[k], nextafter(mid, 0)) != c;
            bad += put(type[k], nextafter(mid, DBL_MAX)) != c1;
            bad += put(type[k], -mid) != (sign | (c & 1 ? c1 : c));
        }
    CHECK(n == 0x7bff + 0x7f7f + 0x7e + 0x7b);
    CHECK(bad == 0);
    CHECK(put(TR_BF16, 1 + 0x1p-8 + 0x1p-30) == 0x3f81);    /* 0x3f80 by way of binary32 */
    CHECK(put(TR_BF16, 1 + 0x1p-8) == 0x3f80);
    CHECK(put(TR_F16, 65519.999999999) == 0x7bff && put(TR_F16, 65520) == 0x7c00);
    CHECK(put(TR_BF16, 0x1.fefffffffffffp127) == 0x7f7f && put(TR_BF16, 0x1.ffp127) == 0x7f80);
    CHECK(put(TR_BF16, DBL_MAX) == 0x7f80 && put(TR_BF16, -DBL_MAX) == 0xff80);
    CHECK(put(TR_F8E4M3, 464) == 0x7e && put(TR_F8E4M3, nextafter(464, 500)) == 0x7f);
    CHECK(put(TR_F16, DBL_TRUE_MIN) == 0 && put(TR_F16, -DBL_MIN) == 0x8000);
}

/* To binary32 the machine itself is the judge. */
static void narrow_to_f32(void)
{
    int64_t bad = 0;
    for (uint64_t i = 0; i < 400000; i++) {
        uint64_t u = tr_rng_u64(3, 0, i);
        double x;
        if (i % 2) u = (u & 0x800fffffffffffffu) | (870 + u % 300) << 52;  /* around f32's range */
        if (i % 8 == 3) u = (u & ~0x1fffffffu) | 0x10000000u;              /* a tie */
        memcpy(&x, &u, 8);
        if (x != x) continue;
        bad += put(TR_F32, x) != tr_f32_bits((float)x);
    }
    CHECK(bad == 0);
    CHECK(put(TR_F32, (double)NAN) == 0x7fc00000 && put(TR_F32, -(double)NAN) == 0xffc00000);
}

/* A NaN comes out as a NaN, with its sign when narrowed and as 0x7fc00000 when widened. */
static void nan_rules(void)
{
    static const uint32_t nans[] = { 0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff,
                                     0xffffffff, 0x7f80ffff, 0x7f808000 };
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        float x = tr_f32_from_bits(nans[i]);
        uint32_t s = nans[i] >> 31;
        CHECK(tr_f32_to_bf16(x) == (s << 15 | 0x7fc0));
        CHECK(tr_f32_to_f16(x) == (s << 15 | 0x7e00));
        CHECK(tr_f32_to_e4m3(x, TR_OVERFLOW_SATURATE) == (s << 7 | 0x7f));
        CHECK(tr_f32_to_e4m3(x, TR_OVERFLOW_IEEE) == (s << 7 | 0x7f));
        CHECK((tr_f32_to_e5m2(x, TR_OVERFLOW_SATURATE) & 0xfc) == (s << 7 | 0x7c));
        CHECK((tr_f32_to_e5m2(x, TR_OVERFLOW_SATURATE) & 3) != 0);
        CHECK(tr_f32_to_e2m1(x) == (s << 3 | 7));
    }
    CHECK(tr_f32_bits(tr_bf16_to_f32(0x7f81)) == 0x7fc00000);
    CHECK(tr_f32_bits(tr_bf16_to_f32(0xffff)) == 0x7fc00000);
    CHECK(tr_f32_bits(tr_f16_to_f32(0xfc01)) == 0x7fc00000);
    CHECK(tr_f32_bits(tr_e4m3_to_f32(0xff)) == 0x7fc00000);
    CHECK(tr_f32_bits(tr_e8m0_to_f32(255)) == 0x7fc00000);
}

/* C01 C02 C04 C05 C07 C11 of the public faults, and their neighbours. */
static void known_faults(void)
{
    unsigned char s = 127;
    CHECK(tr_e8m0_to_f32(127) == 1.0f && tr_get_f64(&s, TR_E8M0, 0) == 1);
    CHECK(tr_e8m0_to_f32(0) == 0x1p-127f && tr_e8m0_to_f32(1) == 0x1p-126f);
    CHECK(tr_e8m0_to_f32(254) == 0x1p127f && isnan(tr_e8m0_to_f32(255)));
    CHECK(tr_e8m0_to_f32(167) == 0x1p40f && tr_e8m0_to_f32(87) == 0x1p-40f);
    CHECK(tr_f32_to_e4m3(957, TR_OVERFLOW_SATURATE) == 0x7e);
    CHECK(tr_f32_to_e4m3(-957, TR_OVERFLOW_SATURATE) == 0xfe);
    CHECK(tr_f32_to_e4m3(957, TR_OVERFLOW_IEEE) == 0x7f);
    CHECK(tr_f32_to_e5m2(60000, TR_OVERFLOW_IEEE) == 0x7b);
    CHECK(tr_f32_to_e5m2(62000, TR_OVERFLOW_IEEE) == 0x7c);
    CHECK(tr_f32_to_e5m2(62000, TR_OVERFLOW_SATURATE) == 0x7b);
    CHECK(tr_f32_to_e5m2(INFINITY, TR_OVERFLOW_SATURATE) == 0x7b);
    CHECK(tr_f32_to_e2m1(957) == 7 && tr_f32_to_e2m1(-INFINITY) == 15);
    CHECK(tr_f32_to_f16(5e-8f) == 1 && tr_f16_to_f32(1) == 0x1p-24f);
    CHECK(tr_e4m3_to_f32(0x01) == 0.001953125f && tr_e4m3_to_f32(0x08) == 0.015625f);
    CHECK(tr_e4m3_to_f32(0x38) == 1.0f && tr_e4m3_to_f32(0x7e) == 448.0f);
    CHECK(tr_f32_to_bf16(-0.0f) == 0x8000 && tr_f32_to_e2m1(-0.0f) == 8);
}

/* Every type at an odd address, elements 0 and 2 of three. */
static void get_and_put(void)
{
    static const double in_range[TR_DTYPE_COUNT] = { -0x1.123456789abcdp-1000, -0x1.abcdep-120,
        -65504, 0x1.8p127, -448, 57344, 0, 0x1p-127, -9223372036854775808.0, -2147483648.0,
        -32768, -128, 18446744073709549568.0, 4294967295.0, 65535, 255, 1 };
    for (int t = 0; t < TR_DTYPE_COUNT; t++) {
        unsigned char raw[1 + 3 * 8];
        memset(raw, 0xaa, sizeof raw);
        if (t == TR_F4E2M1) { CHECK(!tri_put(raw + 1, TR_F4E2M1, 0, 1)); continue; }
        CHECK(tri_put(raw + 1, (tr_dtype)t, 0, in_range[t]));
        CHECK(tri_put(raw + 1, (tr_dtype)t, 2, in_range[t]));
        CHECK(tr_get_f64(raw + 1, (tr_dtype)t, 0) == in_range[t]);
        CHECK(tr_get_f64(raw + 1, (tr_dtype)t, 2) == in_range[t]);
        CHECK(raw[0] == 0xaa && raw[1 + tr_dtype_get((tr_dtype)t)->bits / 8] == 0xaa);
        if (t >= TR_I64) {      /* no rounding, no wrapping */
            CHECK(!tri_put(raw + 1, (tr_dtype)t, 0, 0.5));
            CHECK(!tri_put(raw + 1, (tr_dtype)t, 0, (double)NAN));
            CHECK(!tri_put(raw + 1, (tr_dtype)t, 0, HUGE_VAL));
            CHECK(!tri_put(raw + 1, (tr_dtype)t, 0, 0x1p64));
            CHECK(tr_get_f64(raw + 1, (tr_dtype)t, 0) == in_range[t]);
        }
        if (t > TR_I64 && t <= TR_I8) CHECK(!tri_put(raw, (tr_dtype)t, 0, in_range[t] - 1) &&
                                            !tri_put(raw, (tr_dtype)t, 0, -in_range[t]) &&
                                            tri_put(raw, (tr_dtype)t, 0, -in_range[t] - 1));
        if (t > TR_U64) CHECK(!tri_put(raw, (tr_dtype)t, 0, in_range[t] + 1));
        if (t >= TR_U64) CHECK(!tri_put(raw, (tr_dtype)t, 0, -1));
    }
    unsigned char b[4] = { 0x21, 0x43, 7, 0 };
    CHECK(tr_get_f64(b, TR_F4E2M1, 0) == 0.5 && tr_get_f64(b, TR_F4E2M1, 1) == 1);
    CHECK(tr_get_f64(b, TR_F4E2M1, 2) == 1.5 && tr_get_f64(b, TR_F4E2M1, 3) == 2);
    CHECK(tr_get_f64(b, TR_BOOL, 2) == 1 && tr_get_f64(b, TR_BOOL, 3) == 0);
    CHECK(isnan(tr_get_f64(b, TR_DTYPE_COUNT, 0)) && !tri_put(b, TR_DTYPE_COUNT, 0, 1));
    CHECK(!tri_put(b, TR_E8M0, 0, 3) && !tri_put(b, TR_E8M0, 0, 0) && !tri_put(b, TR_E8M0, 0, -1));
    CHECK(!tri_put(b, TR_E8M0, 0, 0x1p-128) && !tri_put(b, TR_E8M0, 0, 0x1p128));
    CHECK(b[0] == 0x21 && tri_put(b, TR_E8M0, 0, (double)NAN) && b[0] == 255);
    CHECK(tri_put(b, TR_E8M0, 0, 0x1p127) && b[0] == 254);
}

static void ulps(void)
{
    CHECK(tr_ulps(1, 1) == 0 && tr_ulps(0.0f, -0.0f) == 0);
    CHECK(tr_ulps(1, nextafterf(1, 2)) == 1 && tr_ulps(nextafterf(1, 2), 1) == 1);
    CHECK(tr_ulps(2, nextafterf(2, 1)) == 1);                       /* across a power of two */
    CHECK(tr_ulps(0x1p-149f, -0x1p-149f) == 2 && tr_ulps(-0x1p-149f, 0) == 1);
    CHECK(tr_ulps(FLT_MAX, INFINITY) == 1 && tr_ulps(-INFINITY, INFINITY) == 2 * 0x7f800000ll);
    CHECK(tr_ulps(NAN, 1) == INT64_MAX && tr_ulps(1, NAN) == INT64_MAX);
    CHECK(tr_ulps(NAN, NAN) == INT64_MAX);
    CHECK(tr_ulps(1, 2) == 0x00800000);
}

static void bits(void)
{
    CHECK(tr_f32_bits(1) == 0x3f800000 && tr_f32_bits(-0.0f) == 0x80000000);
    CHECK(tr_f32_from_bits(0x40490fdb) == 3.14159274f);
    CHECK(tr_f32_bits(tr_f32_from_bits(0x00000001)) == 1);
}

int main(int argc, char **argv)
{
    fixture_args(argc, argv);
    ctx = test_ctx();
    TEST(dtype_names);
    TEST(bits);
    TEST(decode_tables);
    TEST(decode_hashes);
    TEST(round_trips);
    TEST(roundings);
    TEST(ties_from_binary64);
    TEST(narrow_to_f32);
    TEST(nan_rules);
    TEST(known_faults);
    TEST(get_and_put);
    TEST(ulps);
    tr_ctx_free(ctx);
    return test_end();
}
