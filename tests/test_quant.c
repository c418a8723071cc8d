/* {quant}: containers against the values others decoded, bands, refusals, and the way back. */
#define TRILLION_IMPLEMENTATION
#include "fixture.h"

static tr_ctx *ctx;

static const tr_qformat *fmt(tr_format f) { return tr_qformat_get(f); }

/* ---- containers ---- */

typedef struct container {
    const char *name;
    tr_format format;
    int64_t block_rows, block_cols;
    const char *q, *s;
} container;

static const container containers[] = {
    { "mxfp4_ct_6x64",              TR_FMT_MXFP4,       1,  32, "weight_packed", "weight_scale" },
    { "mxfp4_ct_3x96",              TR_FMT_MXFP4,       1,  32, "weight_packed", "weight_scale" },
    { "mxfp4_ct_1x32",              TR_FMT_MXFP4,       1,  32, "weight_packed", "weight_scale" },
    { "mxfp4_all_bytes",            TR_FMT_MXFP4,       1,  32, "weight_packed", "weight_scale" },
    { "mxfp4_scale_extremes",       TR_FMT_MXFP4,       1,  32, "weight_packed", "weight_scale" },
    { "fp8_block_128x128_f32scale", TR_FMT_FP8_BLOCK, 128, 128, "weight", "weight_scale_inv" },
    { "fp8_block_32x32_f32scale",   TR_FMT_FP8_BLOCK,  32,  32, "weight", "weight_scale_inv" }
};
#define N_CONTAINERS (int)(sizeof containers / sizeof *containers)

static tr_st store;     /* containers.safetensors, open while the tests run */

/* The weight of a case and its values in binary32, [rows, cols]. */
static const float *container_open(const container *c, tr_weight *w)
{
    char key[128];
    snprintf(key, sizeof key, "%s.out.w", c->name);
    tr_view out = fixture_view(&store, key, TR_F32);
    snprintf(key, sizeof key, "%s.in.%s", c->name, c->q);
    void *q = fixture_view(&store, key, TR_U8).data;
    snprintf(key, sizeof key, "%s.in.%s", c->name, c->s);
    void *s = fixture_view(&store, key, c->format == TR_FMT_MXFP4 ? TR_U8 : TR_F32).data;
    CHECK_OK(ctx, tr_weight_of(ctx, w, fmt(c->format), c->name, q, s, out.shape[0], out.shape[1],
                               c->block_rows, c->block_cols));
    CHECK(strcmp(w->format->q_suffix, c->q) == 0 && strcmp(w->format->s_suffix, c->s) == 0);
    return (const float *)out.data;
}

/* q and s of a single element, decoded here by arithmetic, not by the library. */
static double e4m3_value(int b)
{
    double m = b & 7, x = b >> 3 & 15, v = x > 0 ? ldexp(8 + m, (int)x - 10) : ldexp(m, -9);
    return b & 128 ? -v : v;
}

static void container_rows(void)
{
    double y64[300];
    float y32[300];
    for (int i = 0; i < N_CONTAINERS; i++) {
        tr_weight w;
        const float *want = container_open(&containers[i], &w);
        int64_t inexact = 0, bad = 0;
        for (int64_t r = 0; r < w.rows; r++, want += w.cols) {
            const double *a = tr_weight_row_f64(&w, r, 0, w.cols, y64);
            const float *b = tr_weight_row_f32(&w, r, 0, w.cols, y32);
            CHECK(a == y64 && b == y32);
            CHECK_BITS(b, want, (size_t)w.cols * 4);
            for (int64_t c = 0; c < w.cols; c++) {
                bad += tr_f32_bits((float)a[c]) != tr_f32_bits(want[c]);    /* one rounding */
                inexact += a[c] != (double)want[c];
            }
        }
        CHECK(bad == 0);
        if (containers[i].format == TR_FMT_MXFP4) CHECK(inexact == 0);
        else CHECK(inexact > w.rows * w.cols / 2);      /* nothing narrowed in between */
        CHECK_OK(ctx, tr_weight_check(ctx, &w));
        CHECK(w.finite == 1);
    }
}

/* fp8 in binary64 is q times s to the last bit. */
static void fp8_exact_product(void)
{
    for (int i = 0; i < N_CONTAINERS; i++) {
        tr_weight w;
        const container *k = &containers[i];
        if (k->format != TR_FMT_FP8_BLOCK) continue;
        container_open(k, &w);
        for (int64_t r = 0; r < w.rows; r++)
            for (int64_t c = 0; c < w.cols; c++) {
                int64_t grid = (w.cols + k->block_cols - 1) / k->block_cols;
                double q = e4m3_value(((unsigned char *)w.q)[r * w.cols + c]), y;
                double s = (double)((float *)w.s)[r / k->block_rows * grid + c / k->block_cols];
                CHECK(*tr_weight_row_f64(&w, r, c, 1, &y) == q * s);
            }
    }
}

/* Any piece of a row is that piece of the row: odd columns, pieces across groups and blocks. */
static void pieces(void)
{
    double all64[300], part64[300];
    float all32[300], part32[300];
    for (int i = 0; i < N_CONTAINERS; i++) {
        tr_weight w;
        container_open(&containers[i], &w);
        for (int64_t r = 0; r < w.rows; r += 3) {
            tr_weight_row_f64(&w, r, 0, w.cols, all64);
            tr_weight_row_f32(&w, r, 0, w.cols, all32);
            for (int64_t c = 0; c < w.cols; c += 1 + c / 5)
                for (int64_t n = 1; n <= w.cols - c; n += 1 + n / 3) {
                    tr_weight_row_f64(&w, r, c, n, part64);
                    tr_weight_row_f32(&w, r, c, n, part32);
                    CHECK_BITS(part64, all64 + c, (size_t)n * 8);
                    CHECK_BITS(part32, all32 + c, (size_t)n * 4);
                }
        }
    }
}

/* Bands that begin inside a block, and bands of bands. */
static void bands(void)
{
    double a[300], b[300];
    for (int i = 0; i < N_CONTAINERS; i++) {
        tr_weight w;
        container_open(&containers[i], &w);
        for (int64_t begin = 0; begin < w.rows; begin += 1 + begin / 2) {
            tr_weight band = tr_weight_rows(&w, begin, w.rows - begin);
            tr_weight last = tr_weight_rows(&band, band.rows - 1, 1);
            CHECK(band.rows == w.rows - begin && band.cols == w.cols && last.rows == 1);
            for (int64_t r = 0; r < band.rows; r++)
                CHECK_BITS(tr_weight_row_f64(&band, r, 0, w.cols, a),
                           tr_weight_row_f64(&w, begin + r, 0, w.cols, b), (size_t)w.cols * 8);
            CHECK_BITS(tr_weight_row_f64(&last, 0, 0, w.cols, a),
                       tr_weight_row_f64(&w, w.rows - 1, 0, w.cols, b), (size_t)w.cols * 8);
        }
    }
    /* 1000 rows in 8 blocks: 128 each, not 125 (B08); rows 120..130 cross into the second. */
    static unsigned char q[1000 * 3];
    static float s[8];
    tr_weight w, band;
    memset(q, 0x38, sizeof q);
    for (int i = 0; i < 8; i++) s[i] = (float)(i + 1);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_FP8_BLOCK), "w", q, s, 1000, 3, 128, 128));
    band = tr_weight_rows(&w, 120, 11);
    for (int64_t r = 0; r < 11; r++)
        CHECK(*tr_weight_row_f64(&band, r, 2, 1, a) == (120 + r < 128 ? 1 : 2));
    CHECK(*tr_weight_row_f64(&w, 999, 0, 1, a) == 8 && *tr_weight_row_f64(&w, 895, 0, 1, a) == 7);
}

/* Columns that fill 85 and a half blocks (B07), each block its own scale (C10). */
static void ragged_columns(void)
{
    enum { COLS = 10944, GRID = 86 };
    static unsigned char q[2 * COLS];
    static float s[GRID], y[COLS];
    tr_weight w;
    memset(q, 0x38, sizeof q);
    for (int i = 0; i < GRID; i++) s[i] = (float)(i + 1);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_FP8_BLOCK), "w", q, s, 2, COLS, 128, 128));
    CHECK(w.s_stride == GRID);
    tr_weight_row_f32(&w, 1, 0, COLS, y);
    for (int c = 0; c < COLS; c++) CHECK(y[c] == (float)(c / 128 + 1));
}

/* ---- plain formats ---- */

static void plain_rows(void)
{
    static const float x[5] = { 1.5f, -0.0f, 0x1p-24f, 65504.0f, -5e-8f };
    static const tr_format f[] = { TR_FMT_F64, TR_FMT_F32, TR_FMT_F16, TR_FMT_BF16 };
    double raw[9], y64[5];
    float y32[5];
    for (int k = 0; k < 4; k++)
        for (int odd = 0; odd < 2; odd++) {     /* at an odd address nothing is read in place */
            unsigned char *q = (unsigned char *)raw + odd;
            tr_dtype t = fmt(f[k])->q;
            tr_weight w;
            CHECK(!fmt(f[k])->scaled && fmt(f[k])->per_byte == 1);
            CHECK(tr_qformat_plain(t) == fmt(f[k]));
            CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(f[k]), "w", q, NULL, 1, 5, 0, 0));
            for (int i = 0; i < 5; i++) CHECK(tri_put(q, t, i, (double)x[i]));
            const double *a = tr_weight_row_f64(&w, 0, 1, 4, y64);
            const float *b = tr_weight_row_f32(&w, 0, 1, 4, y32);
            CHECK((a == y64) == (t != TR_F64 || odd));
            CHECK((b == y32) == (t != TR_F32 || odd));
            for (int i = 0; i < 4; i++) {
                double want = tr_get_f64(q, t, i + 1);
                float want32 = (float)want;
                CHECK_BITS(&a[i], &want, 8);
                CHECK_BITS(&b[i], &want32, 4);
            }
            CHECK(a[1] == (t == TR_F16 ? 0x1p-24 : (double)x[2]));          /* not flushed (C11) */
            CHECK(a[3] == (t == TR_F16 ? -0x1p-24 : t == TR_BF16 ? -0x1.aep-25 : (double)x[4]));
        }
    CHECK(tr_qformat_plain(TR_F8E4M3) == NULL && tr_qformat_plain(TR_I32) == NULL);
    /* a binary64 narrows once */
    double d = 1 + 0x1p-24 + 0x1p-50;
    tr_weight w;
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_F64), "w", &d, NULL, 1, 1, 0, 0));
    CHECK(*tr_weight_row_f32(&w, 0, 0, 1, y32) == 1 + 0x1p-23f);
    CHECK(*tr_weight_row_f64(&w, 0, 0, 1, y64) == d);
}

static void table(void)
{
    static const char *const names[] = { "f64", "f32", "f16", "bf16", "fp8-block", "mxfp4" };
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        CHECK(strcmp(fmt((tr_format)f)->name, names[f]) == 0);
        CHECK(tr_qformat_find(names[f]) == fmt((tr_format)f));
    }
    CHECK(!tr_qformat_find("fp8") && !tr_qformat_find("") && !tr_qformat_find(NULL));
    CHECK(!fmt(TR_FORMAT_COUNT) && !fmt((tr_format)-1));
    CHECK(fmt(TR_FMT_FP8_BLOCK)->q == TR_F8E4M3 && fmt(TR_FMT_FP8_BLOCK)->s == TR_F32);
    CHECK(fmt(TR_FMT_MXFP4)->q == TR_F4E2M1 && fmt(TR_FMT_MXFP4)->s == TR_E8M0);
    CHECK(fmt(TR_FMT_MXFP4)->per_byte == 2 && fmt(TR_FMT_MXFP4)->scaled);
    for (int f = 0; f < TR_FMT_MXFP4; f++) {
        CHECK(fmt((tr_format)f)->q_file == fmt((tr_format)f)->q);
        CHECK(fmt((tr_format)f)->s_file == fmt((tr_format)f)->s);
    }
    CHECK(fmt(TR_FMT_MXFP4)->q_file == TR_U8 && fmt(TR_FMT_MXFP4)->s_file == TR_U8);
}

/* Scales far from 1, at both ends of e8m0, in subnormals (C01 C04 C05). */
static void scales(void)
{
    static const int byte[] = { 0, 1, 2, 87, 127, 167, 253, 254 };
    unsigned char q[16] = { 0x21 }, s;      /* 0.5, 1, 0, 0, ... */
    double y[32];
    float y32[32], s32;
    tr_weight w;
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "w", q, &s, 1, 32, 1, 32));
    for (int k = 0; k < 8; k++) {
        s = (unsigned char)byte[k];
        tr_weight_row_f64(&w, 0, 0, 32, y);
        tr_weight_row_f32(&w, 0, 0, 32, y32);
        CHECK(y[0] == ldexp(0.5, s - 127) && y[1] == ldexp(1, s - 127) && y[2] == 0);
        CHECK((double)y32[0] == y[0] && (double)y32[1] == y[1]);
        w.finite = 0;
        CHECK_OK(ctx, tr_weight_check(ctx, &w));
    }
    q[0] = 0x38;    /* fp8: 1 */
    for (int k = 0; k < 4; k++) {
        s32 = k == 0 ? 0x1p40f : k == 1 ? 0x1p-40f : k == 2 ? 0x1p-149f : 5e-41f;
        CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_FP8_BLOCK), "w", q, &s32, 1, 1, 128, 128));
        CHECK(*tr_weight_row_f64(&w, 0, 0, 1, y) == (double)s32);
        CHECK(*tr_weight_row_f32(&w, 0, 0, 1, y32) == s32);
    }
}

/* ---- sizes ---- */

static size_t q_bytes, s_bytes;
static tr_status bytes(tr_format f, int64_t rows, int64_t cols, int64_t br, int64_t bc)
{
    return tr_qformat_bytes(ctx, fmt(f), rows, cols, br, bc, &q_bytes, &s_bytes);
}

static void sizes(void)
{
#define BYTES(f, rows, cols, br, bc, q, s)                                  \
    do {                                                                    \
        CHECK_OK(ctx, bytes(f, rows, cols, br, bc));                        \
        CHECK(q_bytes == (q) && s_bytes == (s));                            \
    } while (0)
    BYTES(TR_FMT_F64, 3, 5, 0, 0, 120, 0);
    BYTES(TR_FMT_BF16, 3, 5, 0, 0, 30, 0);
    BYTES(TR_FMT_FP8_BLOCK, 130, 257, 128, 128, 130 * 257, 2 * 3 * 4);
    BYTES(TR_FMT_FP8_BLOCK, 576, 7168, 128, 128, 576 * 7168, 5 * 56 * 4);
    BYTES(TR_FMT_FP8_BLOCK, 4, 10944, 128, 128, 4 * 10944, 86 * 4);
    BYTES(TR_FMT_FP8_BLOCK, 1, 1, 128, 128, 1, 4);
    BYTES(TR_FMT_FP8_BLOCK, 5, 7, INT64_MAX, INT64_MAX, 35, 4);
    BYTES(TR_FMT_FP8_BLOCK, 0, 7, 128, 128, 0, 0);
    BYTES(TR_FMT_MXFP4, 3072, 3584, 1, 32, 3072 * 1792, 3072 * 112);
    BYTES(TR_FMT_MXFP4, 7, 0, 1, 32, 0, 0);
    BYTES(TR_FMT_MXFP4, 0, 32, 1, 32, 0, 0);
    BYTES(TR_FMT_BF16, 1ll << 30, 1ll << 30, 0, 0, (size_t)1 << 61, 0);
#undef BYTES
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mxfp4 [3, 31] 32", bytes(TR_FMT_MXFP4, 3, 31, 1, 32));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mxfp4 [3, 48] 32", bytes(TR_FMT_MXFP4, 3, 48, 1, 32));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mxfp4 [3, 33] 33", bytes(TR_FMT_MXFP4, 3, 33, 1, 33));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "blocks 0 128", bytes(TR_FMT_FP8_BLOCK, 3, 3, 0, 128));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "blocks 128 -1", bytes(TR_FMT_FP8_BLOCK, 3, 3, 128, -1));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "-3", bytes(TR_FMT_F32, -3, 3, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "-3", bytes(TR_FMT_F32, 3, -3, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", bytes(TR_FMT_F32, 1ll << 32, 1ll << 32, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", bytes(TR_FMT_F32, INT64_MAX, 2, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", bytes(TR_FMT_F64, 1ll << 61, 1, 0, 0));  /* 2^64 */
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", bytes(TR_FMT_F64, 1ll << 60, 1, 0, 0));  /* 2^63 */
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", bytes(TR_FMT_FP8_BLOCK, INT64_MAX, 1, 1, 1));
    CHECK(q_bytes == INT64_MAX && s_bytes == 0);
}

static void weight_of_errors(void)
{
    unsigned char q[16] = { 0 }, s = 127;
    tr_weight w;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "model.w1 mxfp4 weight_scale",
                tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "model.w1", q, NULL, 1, 32, 1, 32));
    CHECK(w.format == NULL);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "model.w1 [1, 30]",
                tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "model.w1", q, &s, 1, 30, 1, 32));
    CHECK(w.format == NULL);
    CHECK_FAILS(ctx, TR_ERR_RANGE, "model.w1 overflows",
                tr_weight_of(ctx, &w, fmt(TR_FMT_F32), "model.w1", q, NULL, INT64_MAX, 3, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_ARG, "model.w1 format",
                tr_weight_of(ctx, &w, NULL, "model.w1", q, NULL, 1, 3, 0, 0));
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), NULL, NULL, NULL, 9, 64, 1, 32));
    CHECK(w.name && w.format && w.rows == 9 && w.cols == 64 && !w.finite);
    CHECK_FAILS(ctx, TR_ERR_MISSING, "planned", tr_weight_check(ctx, &w));
    CHECK(!w.finite);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "w", NULL, NULL, 0, 64, 1, 32));
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
}

/* ---- what is not finite is refused, with tensor, row, column, group ---- */

static void check_scaled(void)
{
    unsigned char q[3 * 48], s[9], saved;
    float s32[6];
    tr_weight w, band;
    memset(q, 0x22, sizeof q);
    memset(s, 127, sizeof s);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "experts.3.w1", q, s, 3, 96, 1, 32));
    s[5] = 255;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "experts.3.w1: row 1, column 64, group [1, 2]: 1 scale nan",
                tr_weight_check(ctx, &w));
    CHECK(!w.finite);
    q[48 + 32] = 0;             /* 0 times NaN is NaN too */
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "row 1, column 64, group [1, 2]: 0 nan",
                tr_weight_check(ctx, &w));
    band = tr_weight_rows(&w, 1, 2);        /* rows are those of the stored matrix */
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "row 1, column 64, group [1, 2]",
                tr_weight_check(ctx, &band));
    band = tr_weight_rows(&w, 2, 1);
    CHECK_OK(ctx, tr_weight_check(ctx, &band));
    s[5] = 254;                 /* 2^127: 1.5 times that is finite, 2 times is not */
    memset(q + 48 + 32, 0x33, 16);
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
    w.finite = 0;
    q[48 + 47] = 0x43;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "row 1, column 95, group [1, 2]: 2 1.70141e+38",
                tr_weight_check(ctx, &w));

    memset(q, 0x38, sizeof q);
    for (int i = 0; i < 6; i++) s32[i] = 1;
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_FP8_BLOCK), "kv_b", q, s32, 6, 24, 4, 8));
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
    saved = q[5 * 24 + 23];
    for (int k = 0; k < 2; k++) {           /* the last element, both NaN codes */
        w.finite = 0;
        q[5 * 24 + 23] = k ? 0xff : 0x7f;
        CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "kv_b: row 5, column 23, group [1, 2]: nan scale 1",
                    tr_weight_check(ctx, &w));
    }
    q[5 * 24 + 23] = saved;
    s32[4] = NAN;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "kv_b: row 4, column 8, group [1, 1] nan",
                tr_weight_check(ctx, &w));
    s32[4] = -INFINITY;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "row 4, column 8, group [1, 1] scale -inf",
                tr_weight_check(ctx, &w));
    s32[4] = 3e38f;
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
}

static void check_plain(void)
{
    static const uint64_t bad[] = { 0x7ff0000000000000u, 0x7f800000, 0x7c00, 0x7f80 };
    static const uint64_t nan_[] = { 0xfff0000000000001u, 0xffc00000, 0x7c01, 0xffff };
    enum { COLS = 600 };
    static double raw[2 * COLS];
    for (int f = 0; f < 4; f++) {
        tr_dtype t = fmt((tr_format)f)->q;
        size_t size = (size_t)tr_dtype_get(t)->bits / 8;
        unsigned char *p = (unsigned char *)raw;
        tr_weight w;
        memset(raw, 0, sizeof raw);
        CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt((tr_format)f), "up", raw, NULL, 2, COLS, 0, 0));
        memcpy(p + (size_t)(2 * COLS - 1) * size, &bad[f], size);
        CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "up: row 1, column 599: inf", tr_weight_check(ctx, &w));
        memcpy(p + (size_t)300 * size, &nan_[f], size);
        CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "up: row 0, column 300: nan", tr_weight_check(ctx, &w));
        CHECK(!w.finite);
        CHECK(!strstr(tr_err_last(ctx), "group"));
        memset(raw, 0, sizeof raw);
        CHECK_OK(ctx, tr_weight_check(ctx, &w));
        CHECK(w.finite);
    }
    tr_weight w;
    raw[3] = 1e300;     /* finite, and not a weight that binary32 could hold */
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_F64), "up", raw, NULL, 2, 2, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "up: row 1, column 1: 1e+300 binary32",
                tr_weight_check(ctx, &w));
    CHECK(tr_ctx_peak_bytes(ctx) == 0);     /* nothing in this chapter allocates */
}

/* Offsets beyond 2^32 bytes (B10, B11, B13). Pages are reserved, only a few are touched. */
static void far_rows(void)
{
    int64_t rows = ((int64_t)1 << 20) + 5, cols = 4096;
    unsigned char *q = (unsigned char *)calloc((size_t)rows, (size_t)cols);
    float *s = (float *)calloc((size_t)(rows / 128 + 1) * 32, 4);
    tr_weight w, band;
    double y[2];
    if (!q || !s) { printf("  no address space, skipped\n"); free(q); free(s); return; }
    q[rows * cols - 1] = 0x38;
    s[(rows / 128 + 1) * 32 - 1] = 3;
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_FP8_BLOCK), "w", q, s, rows, cols, 128, 128));
    band = tr_weight_rows(&w, rows - 3, 3);
    CHECK(tr_weight_row_f64(&w, rows - 1, cols - 2, 2, y)[1] == 3);
    CHECK(tr_weight_row_f64(&band, 2, cols - 2, 2, y)[1] == 3);
    free(q);
    free(s);
}

/* ---- the way back ---- */

/* Narrowing what a case decodes to gives its bytes, where some code of the group is in the top
 * binade (4 or 6), which is what the OCP rule makes. */
static void requantize_mxfp4(void)
{
    for (int i = 0; i < N_CONTAINERS; i++) {
        tr_weight w;
        unsigned char q[512], s[32];
        if (containers[i].format != TR_FMT_MXFP4) continue;
        const float *x = container_open(&containers[i], &w);
        CHECK_OK(ctx, tr_quantize(ctx, w.format, q, s, x, w.rows, w.cols, 1, 32));
        for (int64_t g = 0; g < w.rows * w.cols / 32; g++) {
            const unsigned char *old = (const unsigned char *)w.q + 16 * g;
            int top = 0;
            for (int b = 0; b < 16; b++) top |= (old[b] & 7) >= 6 || (old[b] >> 4 & 7) >= 6;
            if (!top) { CHECK(strcmp(containers[i].name, "mxfp4_all_bytes") == 0); continue; }
            CHECK_BITS(q + 16 * g, old, 16);
            CHECK(s[g] == ((unsigned char *)w.s)[g]);
        }
    }
}

/* Random matrices, ragged: bytes of a second pass are those of the first, in every format. */
static void requantize(void)
{
    enum { ROWS = 37, COLS = 160 };
    static float x[ROWS * COLS], y[ROWS * COLS];
    static unsigned char q1[ROWS * COLS * 8], q2[ROWS * COLS * 8];
    static float s1[1024], s2[1024];
    for (int f = 0; f < TR_FORMAT_COUNT; f++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            int64_t br = f == TR_FMT_MXFP4 ? 1 : 16, bc = f == TR_FMT_MXFP4 ? 32 : 48;
            tr_weight w;
            for (uint64_t i = 0; i < ROWS * COLS; i++)
                x[i] = (float)(tr_rng_normal(seed, 0, i) * ldexp(1, (int)(i / 1000 % 7) - 3));
            CHECK_OK(ctx, tr_quantize(ctx, fmt((tr_format)f), q1, s1, x, ROWS, COLS, br, bc));
            CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt((tr_format)f), "w", q1, s1, ROWS, COLS, br,
                                       bc));
            for (int64_t r = 0; r < ROWS; r++)
                memcpy(y + r * COLS, tr_weight_row_f32(&w, r, 0, COLS, y + r * COLS), COLS * 4);
            CHECK_OK(ctx, tr_quantize(ctx, fmt((tr_format)f), q2, s2, y, ROWS, COLS, br, bc));
            CHECK_OK(ctx, bytes((tr_format)f, ROWS, COLS, br, bc));
            CHECK_BITS(q2, q1, q_bytes);
            for (size_t i = 0; f == TR_FMT_FP8_BLOCK && i < s_bytes / 4; i++)   /* it rounds */
                CHECK(tr_ulps(s1[i], s2[i]) <= 1);
            if (f == TR_FMT_MXFP4) CHECK_BITS(s2, s1, s_bytes);
        }
}

/* The scale byte of a group: compressed-tensors rounds up from 1.75 2^e, OCP never does. */
static void mx_scale_rule(void)
{
    tr_st f;
    fixture_open(ctx, &f, "ops/quant/scales.safetensors");
    tr_view a = fixture_view(&f, "amax", TR_F32), m = fixture_view(&f, "mx_fp4_code", TR_U8);
    int64_t up = 0;
    for (int64_t i = 0; i < a.shape[0]; i++) {
        float x[32] = { 0 }, amax = ((float *)a.data)[i];
        unsigned char q[16], s;
        int e;
        x[i % 32] = i & 1 ? -amax : amax;
        CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_MXFP4), q, &s, x, 1, 32, 1, 32));
        int above = frexp((double)amax, &e) >= 0.875;
        CHECK(s + above == ((unsigned char *)m.data)[i]);
        up += above;
    }
    CHECK(a.shape[0] > 300 && up > 20);
    tr_st_close(ctx, &f);
}

/* With a scale of 1 the elements are the rounding vectors. */
static void quantize_rounds(void)
{
    tr_st f;
    fixture_open(ctx, &f, "ops/quant/roundings.safetensors");
    static const struct { tr_format f; const char *x, *code; float amax, most; } k[] = {
        { TR_FMT_FP8_BLOCK, "e4m3fn.x", "e4m3fn.code_sat", 448, 448 },
        { TR_FMT_MXFP4, "e2m1.x", "e2m1.code", 4, 7.99f },
        { TR_FMT_BF16, "bf16.x", "bf16.code", 1, FLT_MAX },
        { TR_FMT_F16, "f16.x", "f16.code", 1, 65519 } };
    for (int i = 0; i < 4; i++) {
        tr_view vx = fixture_view(&f, k[i].x, TR_F32);
        tr_view vc = fixture_view(&f, k[i].code, i < 2 ? TR_U8 : TR_U16);
        int64_t used = 0;
        for (int64_t n = 0; n < vx.shape[0]; n++) {
            float x[32] = { 0 };
            unsigned char q[64], s[4];
            uint16_t got, want;
            x[0] = k[i].amax;
            x[31] = ((float *)vx.data)[n];
            if (!(fabsf(x[31]) <= k[i].most)) continue;
            want = i < 2 ? ((uint8_t *)vc.data)[n] : ((uint16_t *)vc.data)[n];
            if (i == 2 && (want & 0x7fff) == 0x7f80) continue;
            used++;
            CHECK_OK(ctx, tr_quantize(ctx, fmt(k[i].f), q, s, x, 1, 32, 1, 32));
            got = i == 0 ? q[31] : i == 1 ? q[15] >> 4 : (uint16_t)(q[62] | q[63] << 8);
            CHECK(got == want);
        }
        CHECK(used > 500);
    }
    tr_st_close(ctx, &f);
}

static void quantize_edges(void)
{
    float x[96] = { 0 }, s32[3], y[96];
    unsigned char q[192], s[3];
    tr_weight w;
    /* zeros: scale 1, signs kept */
    x[1] = -0.0f;
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_FP8_BLOCK), q, s32, x, 1, 96, 128, 32));
    CHECK(s32[0] == 1 && s32[2] == 1 && q[0] == 0 && q[1] == 0x80);
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_MXFP4), q, s, x, 1, 96, 1, 32));
    CHECK(s[0] == 127 && s[2] == 127 && q[0] == 0x80);
    /* the smallest and the largest there are; scales at their ends, subnormals kept */
    x[0] = 0x1p-149f; x[32] = FLT_MAX; x[64] = 0x1.8p-125f;
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_MXFP4), q, s, x, 1, 96, 1, 32));
    CHECK(s[0] == 0 && s[1] == 252 && s[2] == 0 && q[32] == 7);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fmt(TR_FMT_MXFP4), "w", q, s, 1, 96, 1, 32));
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
    CHECK(tr_weight_row_f32(&w, 0, 64, 1, y)[0] == 0x1.8p-125f);
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_FP8_BLOCK), q, s32, x, 1, 96, 128, 32));
    CHECK(s32[0] == 0x1p-149f && s32[1] == FLT_MAX / 448 && q[0] == 0x38 && q[32] == 0x7e);
    /* where s underflows, elements saturate and stay finite */
    x[0] = 667 * 0x1p-149f;
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_FP8_BLOCK), q, s32, x, 1, 96, 128, 32));
    CHECK(s32[0] == 0x1p-149f && q[0] == 0x7e);
    /* the quotient is not rounded to binary32 before it is narrowed */
    for (int i = 0; i < 96; i++) x[i] = 0;
    x[0] = 448 * 0x1.00001ep0f;             /* s = 1 + 15 2^-23 */
    x[1] = 17 + 0x1p-15f;                   /* x / s = 17 + 2^-23, above a tie that goes down */
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_FP8_BLOCK), q, s32, x, 1, 96, 128, 128));
    CHECK(s32[0] == 0x1.00001ep0f && x[1] / s32[0] == 17);
    CHECK(q[1] == tr_f32_to_e4m3(18, TR_OVERFLOW_IEEE));
    /* empty */
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_MXFP4), NULL, NULL, NULL, 0, 32, 1, 32));
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_F32), NULL, NULL, NULL, 3, 0, 0, 0));
}

static void quantize_refuses(void)
{
    float x[4 * 64];
    unsigned char q[4 * 64 * 8], s[64];
    for (int k = 0; k < 3; k++)
        for (int f = 0; f < TR_FORMAT_COUNT; f++) {
            for (int i = 0; i < 4 * 64; i++) x[i] = 1;
            x[2 * 64 + 33] = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
            CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "quantize row 2, column 33",
                        tr_quantize(ctx, fmt((tr_format)f), q, s, x, 4, 64, 1, 32));
            CHECK(strstr(tr_err_last(ctx), fmt((tr_format)f)->name) != NULL);
        }
    x[2 * 64 + 33] = 70000;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "f16 row 2, column 33: 70000 beyond",
                tr_quantize(ctx, fmt(TR_FMT_F16), q, NULL, x, 4, 64, 0, 0));
    x[2 * 64 + 33] = -FLT_MAX;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "bf16 row 2, column 33",
                tr_quantize(ctx, fmt(TR_FMT_BF16), q, NULL, x, 4, 64, 0, 0));
    CHECK_OK(ctx, tr_quantize(ctx, fmt(TR_FMT_F64), q, NULL, x, 4, 64, 0, 0));
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mxfp4 60",
                tr_quantize(ctx, fmt(TR_FMT_MXFP4), q, s, x, 4, 60, 1, 32));
}

int main(int argc, char **argv)
{
    fixture_args(argc, argv);
    ctx = test_ctx();
    TEST(table);
    TEST(sizes);
    TEST(weight_of_errors);
    TEST(plain_rows);
    TEST(scales);
    TEST(check_scaled);
    TEST(check_plain);
    TEST(ragged_columns);
    TEST(far_rows);
    fixture_open(ctx, &store, "ops/quant/containers.safetensors");
    TEST(container_rows);
    TEST(fp8_exact_product);
    TEST(pieces);
    TEST(bands);
    TEST(requantize_mxfp4);
    tr_st_close(ctx, &store);
    TEST(requantize);
    TEST(mx_scale_rule);
    TEST(quantize_rounds);
    TEST(quantize_edges);
    TEST(quantize_refuses);
    tr_ctx_free(ctx);
    return test_end();
}
