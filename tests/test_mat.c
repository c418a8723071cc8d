/* {sum} and {mat}: order, choice, products of every format at ragged shapes, threads. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"
#include "fixture.h"

/* ---- sums ---- */

static void sums(void)
{
    static const double x[] = { 1, 0x1p60, 1, -0x1p60, 3 }, one[] = { 1, 1, 1, 1, 1 };
    static const double tiny[] = { 1, 0x1p-27, 0x1p-27, 0x1p-27, 0x1p-27, 0x1p-27 };
    double z = tr_dot_f64(x, x, 0), minus[] = { -0.0 };
    CHECK(tr_dot_f64(x, one, 5) == 3);              /* any other order has 4 or 5 */
    CHECK(tr_dot_f64(x, x, 1) == 1 && tr_dot_f64(x, one, 3) == 0x1p60);
    CHECK(tr_sumsq_f64(tiny, 3) == 1);              /* each 2^-54 is lost against 1 */
    CHECK(tr_sumsq_f64(tiny + 1, 3) == 3 * 0x1p-54);
    CHECK(z == 0 && !signbit(z));
    z = tr_dot_f64(minus, one, 1);
    CHECK(z == 0 && !signbit(z));                   /* +0 + -0 */
    CHECK(tr_sumsq_f64(x, 1) == 1);
}

/* By sorting, the plain way: repeated search for the element with fewest before it. */
static int64_t slow_topk(int32_t *ids, int64_t K, const double *x, int64_t n,
                         const unsigned char *ok)
{
    int64_t found = 0;
    for (int64_t place = 0; place < n && found < K; place++)
        for (int64_t i = 0; i < n; i++) {
            int64_t before = 0;
            if (ok && !ok[i]) continue;
            for (int64_t j = 0; j < n; j++)
                if (!ok || ok[j]) before += x[j] > x[i] || (x[j] == x[i] && j < i);
            if (before == place) ids[found++] = (int32_t)i;
        }
    return found;
}

static void topk_rules(void)
{
    static const double t[] = { 2, 5, 5, -HUGE_VAL, 5, -1, -HUGE_VAL };
    static const double zeros[] = { -0.0, 0.0, -1, 0.0 };
    static const unsigned char mask[] = { 1, 0, 1, 1, 0, 1, 0 };
    int32_t ids[8] = { -7, -7, -7, -7, -7, -7, -7, -7 };
    CHECK(tr_topk_f64(ids, 2, t, 7, NULL) == 2);
    CHECK(ids[0] == 1 && ids[1] == 2 && ids[2] == -7);
    CHECK(tr_topk_f64(ids, 7, t, 7, NULL) == 7);                    /* K = n: a full sort */
    CHECK(ids[2] == 4 && ids[3] == 0 && ids[4] == 5 && ids[5] == 3 && ids[6] == 6);
    CHECK(tr_topk_f64(ids, 8, t, 7, NULL) == 7);                    /* more than there are */
    CHECK(tr_topk_f64(ids, 8, t, 7, mask) == 4);
    CHECK(ids[0] == 2 && ids[1] == 0 && ids[2] == 5 && ids[3] == 3);
    CHECK(tr_topk_f64(ids, 4, zeros, 4, NULL) == 4);                /* the zeros are equal */
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == 3 && ids[3] == 2);
    CHECK(tr_topk_f64(ids, 0, t, 7, NULL) == 0 && tr_topk_f64(ids, 3, t, 0, NULL) == 0);
    memset(ids, 0, sizeof ids);
    static const double masked[] = { -HUGE_VAL, -HUGE_VAL, 0.25, -HUGE_VAL };   /* A11 */
    CHECK(tr_topk_f64(ids, 3, masked, 4, NULL) == 3 && ids[0] == 2 && ids[1] == 0 && ids[2] == 1);
    static double e[896];                                           /* A10 */
    e[255] = 3; e[256] = 2; e[895] = 1;
    CHECK(tr_topk_f64(ids, 4, e, 896, NULL) == 4);
    CHECK(ids[0] == 255 && ids[1] == 256 && ids[2] == 895 && ids[3] == 0);
    static const double low[] = { -1e300, -HUGE_VAL, -1.7e308 };    /* no magic start value */
    CHECK(tr_topk_f64(ids, 1, low, 3, NULL) == 1 && ids[0] == 0);
    CHECK(tr_topk_f64(ids, 1, low + 2, 1, NULL) == 1 && ids[0] == 0);
}

static void topk_random(void)
{
    double x[40];
    unsigned char ok[40];
    int32_t a[40], b[40];
    for (uint64_t seed = 0; seed < 300; seed++) {
        int64_t n = 1 + (int64_t)(seed % 40), K = 1 + (int64_t)(seed * 7 % 41);
        for (int64_t i = 0; i < n; i++) {       /* few values, so that ties abound */
            uint64_t r = tr_rng_u64(seed, 1, (uint64_t)i);
            x[i] = r % 9 == 0 ? -HUGE_VAL : (double)(r % 9) - 5;
            ok[i] = r >> 32 & 1;
        }
        for (int m = 0; m < 2; m++) {
            int64_t na = tr_topk_f64(a, K, x, n, m ? ok : NULL);
            int64_t nb = slow_topk(b, K, x, n, m ? ok : NULL);
            CHECK(na == nb);
            if (na == nb) CHECK_BITS(a, b, (size_t)na * sizeof *a);
        }
    }
}

/* ---- products ---- */

#define MAX_O 131
#define MAX_I 608
static unsigned char q_mem[MAX_O * MAX_I * 8];
static float s_mem[4096];
static double values[MAX_O * MAX_I];    /* W in binary64, made without the library's readers */

/* A weight whose elements are small numbers of every format, with scales that are powers of two,
 * so that any product of it with small integers is exact in any order. */
static tr_weight exact_weight(tr_format f, int64_t O, int64_t I)
{
    static const double e2m1[16] = {  0,   .5,  1,  1.5,  2,  3,  4,  6,
                                     -0., -.5, -1, -1.5, -2, -3, -4, -6 };
    static const unsigned char e4m3[16] = { 0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c,
                                            0x80, 0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc };
    const tr_qformat *fm = tr_qformat_get(f);
    int64_t br = f == TR_FMT_MXFP4 ? 1 : 7, bc = f == TR_FMT_MXFP4 ? 32 : 24;
    int64_t grid = (I + bc - 1) / bc;
    tr_weight w;
    memset(q_mem, 0, sizeof q_mem);
    for (int64_t i = 0; i < O * I; i++) {
        int64_t block = i / I / br * grid + i % I / bc;
        int code = (int)(tr_rng_u64(11, (uint64_t)f, (uint64_t)i) & 15), e = (int)(block % 5) - 2;
        values[i] = e2m1[code] * (fm->scaled ? ldexp(1, e) : 1);
        if (f == TR_FMT_MXFP4) {
            q_mem[i / 2] = (unsigned char)(q_mem[i / 2] | code << (i & 1) * 4);
            ((unsigned char *)s_mem)[block] = (unsigned char)(127 + e);
        } else if (f == TR_FMT_FP8_BLOCK) {
            q_mem[i] = e4m3[code];
            s_mem[block] = (float)ldexp(1, e);
        } else {
            CHECK(tri_put(q_mem, fm->q, i, values[i]));
        }
    }
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fm, "model.layers.0.up_proj.weight", q_mem,
                               fm->scaled ? s_mem : NULL, O, I, br, bc));
    return w;
}

static double x_mem[9 * 700], y_mem[9 * 200], y2_mem[9 * 200], b_mem[200];

static tr_matmul_args args(const tr_weight *w, int64_t N)
{
    tr_matmul_args a;
    memset(&a, 0, sizeof a);
    a.y = tr_view2(y_mem, TR_F64, N, w->rows);
    a.x = tr_view2(x_mem, TR_F64, N, w->cols);
    a.w = w;
    return a;
}

static void exact_products(void)
{
    static const int64_t Os[] = { 1, 5, 8, 130 }, Is[] = { 1, 7, 32, 96, 256, 257, 544, 600 };
    static const int64_t Ns[] = { 0, 1, 3, 8 };
    int64_t done = 0;
    for (int f = 0; f < TR_FORMAT_COUNT; f++)
        for (int k = 0; k < 4 * 8 * 4 * 2; k++) {
            int64_t O = Os[k % 4], I = Is[k / 4 % 8], N = Ns[k / 32 % 4];
            if (f == TR_FMT_MXFP4 && I % 32) continue;
            tr_weight w = exact_weight((tr_format)f, O, I);
            tr_matmul_args a = args(&w, N);
            for (int64_t i = 0; i < N * I; i++)
                x_mem[i] = (double)(tr_rng_u64(5, 0, (uint64_t)i) % 17) - 8;
            for (int64_t i = 0; i < O; i++) b_mem[i] = (double)i / 4 - 3;
            for (int64_t i = 0; i < N * O; i++) y_mem[i] = (double)NAN;
            if (k / 128) a.bias = tr_view1(b_mem, TR_F64, O);
            CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
            for (int64_t n = 0; n < N; n++)
                for (int64_t o = 0; o < O; o++) {
                    double sum = k / 128 ? b_mem[o] : 0;
                    for (int64_t i = 0; i < I; i++) sum += x_mem[n * I + i] * values[o * I + i];
                    CHECK(y_mem[n * O + o] == sum);
                }
            done++;
        }
    CHECK(done == 5 * 256 + 4 * 4 * 4 * 2);
}

/* No columns: the bias, or +0, over whatever was there. No rows, no tokens: nothing, no error. */
static void empty_products(void)
{
    tr_weight w;
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_BF16), "w", q_mem, NULL, 5, 0, 0, 0));
    tr_matmul_args a = args(&w, 2);
    for (int i = 0; i < 11; i++) y_mem[i] = (double)NAN;
    for (int i = 0; i < 5; i++) b_mem[i] = i + 1;
    CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
    for (int i = 0; i < 10; i++) CHECK(y_mem[i] == 0 && !signbit(y_mem[i]));
    a.bias = tr_view1(b_mem, TR_F64, 5);
    CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
    for (int i = 0; i < 10; i++) CHECK(y_mem[i] == i % 5 + 1);
    CHECK(isnan(y_mem[10]));
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_BF16), "w", NULL, NULL, 0, 4, 0, 0));
    a = args(&w, 3);
    CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_BF16), "w", q_mem, NULL, 4, 4, 0, 0));
    a = args(&w, 0);
    a.x.data = a.y.data = NULL;
    CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
}

/* Numbers of very different size, so that another order of any sum shows. */
static void fill_wild(void)
{
    for (uint64_t i = 0; i < sizeof x_mem / sizeof *x_mem; i++)
        x_mem[i] = tr_rng_normal(8, 1, i) * ldexp(1, (int)(tr_rng_u64(8, 2, i) % 40));
}

/* y is the chain of {sum} over the decoded row, then the bias: the same bits. */
static void order_of_products(void)
{
    double row[MAX_I], want;
    fill_wild();
    for (int i = 0; i < 200; i++) b_mem[i] = i * 0x1p20 / 3;
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        tr_weight w = exact_weight((tr_format)f, 23, 608);
        tr_matmul_args a = args(&w, 4);
        a.bias = tr_view1(b_mem, TR_F64, 23);
        CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
        for (int64_t n = 0; n < 4; n++)
            for (int64_t o = 0; o < 23; o++) {
                want = 0;
                const double *p = tr_weight_row_f64(&w, o, 0, 608, row);
                for (int64_t i = 0; i < 608; i++) want += x_mem[n * 608 + i] * p[i];
                want += b_mem[o];
                CHECK_BITS(&y_mem[n * 23 + o], &want, 8);
            }
    }
}

/* Threads, and one token alone against a batch of them. */
static void threads_and_batches(void)
{
    static const int threads[] = { 1, 2, 7 };
    fill_wild();
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        tr_weight w = exact_weight((tr_format)f, 130, 608);
        for (int k = 0; k < 3; k++) {
            tr_ctx_opts o;
            tr_ctx *c;
            memset(&o, 0, sizeof o);
            o.threads = threads[k];
            CHECK(tr_ctx_new(&c, &o) == TR_OK);
            tr_matmul_args a = args(&w, 8);
            if (k) a.y.data = y2_mem;
            CHECK_OK(c, tr_matmul_f64(c, &a));
            if (k) CHECK_BITS(y2_mem, y_mem, 8 * 130 * sizeof *y_mem);
            CHECK(tr_ctx_peak_bytes(c) == 0);
            tr_ctx_free(c);
        }
        for (int64_t n = 0; n < 8; n++) {
            tr_matmul_args a = args(&w, 1);
            a.x.data = x_mem + n * 608;
            a.y.data = y2_mem;
            CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
            CHECK_BITS(y2_mem, y_mem + n * 130, 130 * sizeof *y_mem);
        }
    }
}

/* Rows with gaps, x repeated, a bias with a stride, a band that starts inside a block. */
static void strides_and_bands(void)
{
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        tr_weight w = exact_weight((tr_format)f, 33, 320), band = tr_weight_rows(&w, 10, 9);
        for (int64_t i = 0; i < 9 * 700; i++) x_mem[i] = (double)(i % 13) - 6;
        for (int64_t i = 0; i < 200; i++) b_mem[i] = (double)i;
        for (int64_t i = 0; i < 9 * 200; i++) y_mem[i] = -77;
        tr_matmul_args a = args(&band, 4);
        a.x.stride[0] = 700;
        a.y.stride[0] = 50;
        a.bias = tr_view1(b_mem, TR_F64, 9);
        a.bias.stride[0] = 3;
        CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
        for (int64_t n = 0; n < 4; n++)
            for (int64_t o = 0; o < 50; o++) {
                double want = 3 * (double)o;
                for (int64_t i = 0; i < 320 && o < 9; i++)
                    want += x_mem[n * 700 + i] * values[(o + 10) * 320 + i];
                CHECK(y_mem[n * 50 + o] == (o < 9 ? want : -77));
            }
        a.x.stride[0] = 0;      /* one row for all tokens */
        CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
        CHECK_BITS(y_mem + 3 * 50, y_mem, 9 * sizeof *y_mem);
    }
}

/* x = 1 reads the matrix out: the values that others decoded. */
static void products_of_containers(void)
{
    static const char *const name[] = { "mxfp4_ct_6x64", "mxfp4_ct_3x96", "mxfp4_ct_1x32",
        "mxfp4_all_bytes", "mxfp4_scale_extremes", "fp8_block_128x128_f32scale",
        "fp8_block_32x32_f32scale" };
    static double one[260 * 260], y[260 * 131];
    tr_st f;
    fixture_open(ctx, &f, "ops/quant/containers.safetensors");
    for (int k = 0; k < 7; k++) {
        char key[96];
        tr_weight w;
        int fp8 = name[k][0] == 'f';
        int64_t block = k == 5 ? 128 : 32, bad = 0;
        snprintf(key, sizeof key, "%s.out.w", name[k]);
        tr_view out = fixture_view(&f, key, TR_F32);
        snprintf(key, sizeof key, "%s.in.weight%s", name[k], fp8 ? "" : "_packed");
        void *q = fixture_view(&f, key, TR_U8).data;
        snprintf(key, sizeof key, "%s.in.weight_scale%s", name[k], fp8 ? "_inv" : "");
        void *s = fixture_view(&f, key, fp8 ? TR_F32 : TR_U8).data;
        int64_t O = out.shape[0], I = out.shape[1];
        CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(fp8 ? TR_FMT_FP8_BLOCK : TR_FMT_MXFP4),
                                   name[k], q, s, O, I, fp8 ? block : 1, block));
        memset(one, 0, sizeof one);
        for (int64_t i = 0; i < I; i++) one[i * I + i] = 1;
        tr_matmul_args a = args(&w, I);
        a.x.data = one;
        a.y.data = y;
        CHECK_OK(ctx, tr_matmul_f64(ctx, &a));
        for (int64_t o = 0; o < O; o++)
            for (int64_t i = 0; i < I; i++)
                bad += (float)y[i * O + o] != ((float *)out.data)[o * I + i];
        CHECK(bad == 0);
    }
    tr_st_close(ctx, &f);
}

static void matmul_refuses(void)
{
    tr_weight w = exact_weight(TR_FMT_F32, 5, 32), none;
    tr_matmul_args a = args(&w, 3), b;
    for (int i = 0; i < 200; i++) y_mem[i] = -77;
    memset(&none, 0, sizeof none);
    b = a; b.x.shape[1] = 31;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "matmul model.layers.0.up_proj.weight [5, 32]: [3, 31] [3, 5]",
                tr_matmul_f64(ctx, &b));
    b = a; b.y.shape[1] = 6; b.y.stride[0] = 6;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight [5, 32]: [3, 32] [3, 6]",
                tr_matmul_f64(ctx, &b));
    b = a; b.y.shape[0] = 4;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight [3, 32] [4, 5]", tr_matmul_f64(ctx, &b));
    b = a; b.x = tr_view1(x_mem, TR_F64, 32);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight x F64 [32]", tr_matmul_f64(ctx, &b));
    b = a; b.x.dtype = TR_F32;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "up_proj.weight x F32 [3, 32]", tr_matmul_f64(ctx, &b));
    b = a; b.y.dtype = TR_F32;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "up_proj.weight y F32 [3, 5]", tr_matmul_f64(ctx, &b));
    b = a; b.x.stride[1] = 2;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight x gaps", tr_matmul_f64(ctx, &b));
    b = a; b.y.stride[1] = 3; b.y.stride[0] = 1;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight y gaps", tr_matmul_f64(ctx, &b));
    b = a; b.y.stride[0] = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "up_proj.weight rows y", tr_matmul_f64(ctx, &b));
    b = a; b.y.data = b.x.data;
    CHECK_FAILS(ctx, TR_ERR_ARG, "up_proj.weight y is x", tr_matmul_f64(ctx, &b));
    b = a; b.x.data = NULL;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight x", tr_matmul_f64(ctx, &b));
    b = a; b.bias = tr_view1(b_mem, TR_F64, 6);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight [5, 32] bias [6]", tr_matmul_f64(ctx, &b));
    b = a; b.bias = tr_view1(b_mem, TR_F32, 5);
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "up_proj.weight bias F32 [5]", tr_matmul_f64(ctx, &b));
    b = a; b.w = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "matmul no weight", tr_matmul_f64(ctx, &b));
    b = a; b.w = &none;
    CHECK_FAILS(ctx, TR_ERR_ARG, "matmul no weight", tr_matmul_f64(ctx, &b));
    w.q = NULL;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "up_proj.weight planned", tr_matmul_f64(ctx, &a));
    for (int i = 0; i < 200; i++) CHECK(y_mem[i] == -77);
}

/* ---- the contract's product ---- */

/* Contexts of every cpu that this machine has, with several numbers of threads. */
#define MAX_CTX 12
static tr_ctx *ctxs[MAX_CTX];
static int n_ctxs;

static void open_contexts(void)
{
    static const int threads[] = { 1, 2, 3, 7 };
    for (int c = TR_CPU_BASE; c < TR_CPU_COUNT; c++)
        for (int t = 0; t < 4; t++) {
            tr_ctx_opts o;
            memset(&o, 0, sizeof o);
            o.cpu = (tr_cpu)c;
            o.threads = threads[t];
            if (tr_ctx_new(&ctxs[n_ctxs], &o) == TR_OK) n_ctxs++;
            else tr_ctx_free(ctxs[n_ctxs]);
        }
}

static void close_contexts(void)
{
    while (n_ctxs > 0) tr_ctx_free(ctxs[--n_ctxs]);
}

#define BIG_Q  (1 << 20)
#define BIG_X  (1 << 18)
static unsigned char big_q[BIG_Q], big_s[1 << 17];
static float big_w[BIG_Q / 4], big_x[BIG_X], big_y[BIG_X], big_y2[BIG_X], big_b[1024];

/* Random numbers with what is easily lost: -0, subnormals, large and small, now and then. */
static float wild(uint64_t stream, uint64_t i)
{
    uint64_t r = tr_rng_u64(31, stream, i);
    switch (r % 41) {
    case 0:  return -0.0f;
    case 1:  return 0.0f;
    case 2:  return tr_f32_from_bits((uint32_t)(r >> 32) & 0x807fffff);
    case 3:  return ldexpf((float)(int32_t)(r >> 32), 30);
    case 4:  return ldexpf((float)(int32_t)(r >> 32), -100);
    default: return ldexpf((float)(int32_t)(r >> 32), -31 + (int)(r % 7));
    }
}

/* A finite code of an element of type t: a random one, or nothing but a sign. */
static void wild_code(unsigned char *q, tr_dtype t, int64_t i, uint64_t stream)
{
    uint64_t r = tr_rng_u64(32, stream, (uint64_t)i);
    uint16_t h = (uint16_t)(r >> 16);
    float f = wild(stream, (uint64_t)i);
    double d = (double)f * (1 + 0x1p-30);
    switch (t) {
    case TR_F64: memcpy(q + 8 * i, &d, 8); break;
    case TR_F32: memcpy(q + 4 * i, &f, 4); break;
    case TR_F16:  if ((h & 0x7c00) == 0x7c00) h ^= 0x4000; memcpy(q + 2 * i, &h, 2); break;
    case TR_BF16: if ((h & 0x7f80) > 0x6000) h = (uint16_t)((h & 0x80ff) | 0x3f00);
                  memcpy(q + 2 * i, &h, 2); break;
    case TR_F8E4M3: q[i] = (unsigned char)((h & 127) == 127 ? h & 128 : h); break;
    default: q[i / 2] = (unsigned char)(i % 2 ? q[i / 2] | (h & 15) << 4 : h & 15); break;
    }
}

/* A band of O rows of a weight of format f at odd addresses, and its values in big_w: each element
 * times its scale in binary64, which is exact, rounded once. */
static tr_weight wild_weight(tr_format f, int64_t O, int64_t I, uint64_t seed)
{
    const tr_qformat *fm = tr_qformat_get(f);
    int64_t row0 = (int64_t)(seed % 5), rows = O + row0 + (int64_t)(seed % 3);
    int64_t br = f == TR_FMT_MXFP4 ? 1 : 3, blocks[] = { 128, 32, 24, 64, 2048 };
    int64_t bc = f == TR_FMT_MXFP4 ? 32 : blocks[seed / 7 % 5], grid = (I + bc - 1) / bc;
    unsigned char *q = big_q + seed % 2, *sc = big_s + seed / 2 % 2;
    tr_weight w, band;
    for (int64_t i = 0; i < rows * I; i++) wild_code(q, fm->q, i, seed);
    for (int64_t i = 0; fm->scaled && i < (rows + br - 1) / br * grid; i++) {
        uint64_t r = tr_rng_u64(33, seed, (uint64_t)i);
        float s = ldexpf((float)(1 + r % 1000), (int)(r >> 32 & 15) - 20);
        if (r >> 40 & 1 && seed % 11 == 0) s = r >> 41 & 1 ? 0x1p-140f : 0x1p119f;
        if (f == TR_FMT_MXFP4) sc[i] = (unsigned char)(seed % 3 ? 120 + r % 14 : r % 200);
        else memcpy(sc + 4 * i, &s, 4);
    }
    CHECK_OK(ctx, tr_weight_of(ctx, &w, fm, "w", q, fm->scaled ? sc : NULL, rows, I, br, bc));
    band = tr_weight_rows(&w, row0, O);
    band.finite = seed % 4 != 0;
    for (int64_t i = 0; i < O * I; i++) {
        int64_t r = row0 + i / I;
        double v = tr_get_f64(q, fm->q, r * I + i % I);
        if (fm->scaled) v *= tr_get_f64(sc, fm->s, r / br * grid + i % I / bc);
        big_w[i] = (float)v;
    }
    return band;
}

/* Sixteen lanes from +0, lane i mod 16 takes element i, one fused multiply-add each; then l + 8,
 * l + 4, l + 2, l + 1. w[i * step] is element i. */
static float lanes(const float *x, const float *w, int64_t step, int64_t n)
{
    float a[16] = { 0 };
    for (int64_t i = 0; i < n; i++) a[i % 16] = fmaf(x[i], w[i * step], a[i % 16]);
    for (int k = 8; k > 0; k /= 2)
        for (int l = 0; l < k; l++) a[l] += a[l + k];
    return a[0];
}

static int same(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (tr_f32_bits(a[i]) != tr_f32_bits(b[i]) && (a[i] == a[i] || b[i] == b[i])) {
            printf("  element %lld: %a, expected %a\n", (long long)i, (double)a[i], (double)b[i]);
            return 0;
        }
    return 1;
}

static void one_product(tr_format f, int64_t N, int64_t O, int64_t I, uint64_t seed)
{
    tr_weight w = wild_weight(f, O, I, seed);
    int64_t xs = seed % 6 == 0 ? 0 : I + (int64_t)(seed % 4), ys = O + (int64_t)(seed % 3);
    int64_t bs = 1 + (int64_t)(seed % 2);
    tr_matmul_args a;
    memset(&a, 0, sizeof a);
    a.w = &w;
    a.x = tr_view2(big_x, TR_F32, N, I);
    a.x.stride[0] = xs;
    if (seed / 3 % 3) a.bias = tr_view1(big_b, TR_F32, O);
    a.bias.stride[0] = bs;
    for (int64_t i = 0; i < N * xs + I; i++) big_x[i] = wild(seed + 1000, (uint64_t)i);
    for (int64_t i = 0; i < O * bs; i++) big_b[i] = wild(seed + 2000, (uint64_t)i);
    for (int64_t i = 0; i < N * ys + 1; i++) big_y[i] = -77;
    for (int64_t n = 0; n < N; n++)
        for (int64_t o = 0; o < O; o++) {
            big_y[n * ys + o] = lanes(big_x + n * xs, big_w + o * I, 1, I);
            if (a.bias.data) big_y[n * ys + o] += big_b[o * bs];
        }
    for (int c = 0; c < n_ctxs; c++) {
        a.y = tr_view2(big_y2, TR_F32, N, O);
        a.y.stride[0] = ys;
        for (int64_t i = 0; i < N * ys + 1; i++) big_y2[i] = -77;
        if (c % 4 != (int)(seed % 5) % 4) continue;     /* every cpu, each time other threads */
        CHECK_OK(ctxs[c], tr_matmul(ctxs[c], &a));
        CHECK(tr_ctx_peak_bytes(ctxs[c]) == 0);
        if (!same(big_y2, big_y, N * ys + 1)) {
            test_bad++;
            printf("  %s: %s [%d, %d] x %d, seed %d\n", tr_cpu_name(tr_ctx_cpu(ctxs[c])),
                   w.format->name, (int)O, (int)I, (int)N, (int)seed);
            return;
        }
    }
}

static void bits_of_products(void)
{
    uint64_t seed = 0;
    for (; seed < 300; seed++) {
        tr_format f = (tr_format)(seed % TR_FORMAT_COUNT);
        uint64_t r = tr_rng_u64(30, 0, seed);
        int64_t N = (int64_t)(r % 4 == 0 ? r / 4 % 71 : r / 4 % 6), O = (int64_t)(r >> 20) % 41;
        int64_t I = (int64_t)(r >> 40) % (seed % 2 ? 601 : 70);
        if (f == TR_FMT_MXFP4) I = I / 32 * 32;
        one_product(f, N, O, I, seed);
    }
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {     /* several pieces, several blocks of tokens */
        one_product((tr_format)f, 1, 31, 2048 + (f == TR_FMT_MXFP4 ? 32 : 51), ++seed);
        one_product((tr_format)f, 3, 13, 4096, ++seed);
        one_product((tr_format)f, 70, 13, 1056, ++seed);
        one_product((tr_format)f, 300, 7, 128, ++seed);
    }
}

/* A weight that is not known to be finite keeps NaN and infinity, whatever reads it. */
static void not_finite_weights(void)
{
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        int64_t I = 64, bad = 0;
        tr_weight w = wild_weight((tr_format)f, 6, I, 1);
        float row[64];
        tr_matmul_args a;
        memset(&a, 0, sizeof a);
        w.finite = 0;
        if (f == TR_FMT_MXFP4) ((unsigned char *)w.s)[w.row0 * 2] = 255;
        else memset((unsigned char *)w.q + w.row0 * w.q_stride, 0x7f, (size_t)w.q_stride);
        tr_weight_row_f32(&w, 0, 0, I, row);
        for (int64_t i = 0; i < I; i++) bad += !isfinite(row[i]) || row[i] > 0x1p120f;
        CHECK(bad > 0);
        for (int c = 0; c < n_ctxs; c++)
            for (int64_t N = 1; N < 6; N += 4) {
                a.w = &w;
                a.x = tr_view2(big_x, TR_F32, N, I);
                a.y = tr_view2(big_y2, TR_F32, N, 6);
                for (int64_t i = 0; i < N * I; i++) big_x[i] = 1;
                CHECK_OK(ctxs[c], tr_matmul(ctxs[c], &a));
                for (int64_t n = 0; n < N; n++) {
                    float want = lanes(big_x, tr_weight_row_f32(&w, 0, 0, I, row), 1, I);
                    CHECK(same(big_y2 + n * 6, &want, 1));
                }
            }
    }
}

/* Experts: slots in any order, several to a token, some experts without any. */
static void products_by_slots(void)
{
    enum { E = 5, K = 3, N = 23, O = 19, I = 96 };
    static const int32_t offset[E + 1] = { 0, 0, 1, 40, 40, 64 };
    static unsigned char q[E][2 * O * I];
    int32_t slot[N * K];
    tr_weight w[E];
    for (int e = 0; e < E; e++) {
        for (int64_t i = 0; i < O * I; i++) wild_code(q[e], TR_BF16, i, 50 + (uint64_t)e);
        CHECK_OK(ctx, tr_weight_of(ctx, &w[e], tr_qformat_get(TR_FMT_BF16), "w", q[e], NULL, O, I,
                                   0, 0));
        w[e].finite = e % 2;
    }
    for (int i = 0; i < N * K; i++) slot[i] = (i * 31 + 7) % (N * K);
    for (int64_t i = 0; i < N * I; i++) big_x[i] = wild(60, (uint64_t)i);
    for (int64_t i = 0; i < N * K * O; i++) big_y[i] = -77;
    for (int e = 0; e < E; e++)
        for (int i = offset[e]; i < offset[e + 1]; i++)
            for (int o = 0; o < O; o++) {
                float row[I];
                tr_weight_row_f32(&w[e], o, 0, I, row);
                big_y[slot[i] * O + o] = lanes(big_x + slot[i] / K * I, row, 1, I);
            }
    for (int c = 0; c < n_ctxs; c++)
        for (int alone = 0; alone < 2; alone++) {
            tr_view y = tr_view3(big_y2, TR_F32, N, K, O), x = tr_view2(big_x, TR_F32, N, I);
            for (int64_t i = 0; i < N * K * O; i++) big_y2[i] = -77;
            if (!alone) tri_product_group(ctxs[c], y, x, K, w, E, slot, offset);
            for (int e = 0; alone && e < E; e++)
                tri_product_group(ctxs[c], y, x, K, &w[e], 1, slot, offset + e);
            CHECK(same(big_y2, big_y, N * K * O));
        }
}

static void transposed_products(void)
{
    for (uint64_t seed = 0; seed < 96; seed++) {
        tr_format f = (tr_format)(seed % TR_FORMAT_COUNT);
        uint64_t r = tr_rng_u64(34, 0, seed);
        int64_t N = (int64_t)(r % 3 ? r % 23 : r % 3);
        int64_t K = (int64_t)(r >> 20) % (seed % 8 ? 90 : 600);
        int64_t R = (int64_t)(r >> 40) % 150, xs = K + (int64_t)(seed % 3), ys = R + 2;
        if (f == TR_FMT_MXFP4) R = R / 32 * 32;
        tr_weight w = wild_weight(f, K, R, seed);
        tr_view x = tr_view2(big_x, TR_F32, N, K), y = tr_view2(big_y2, TR_F32, N, R);
        x.stride[0] = xs;
        y.stride[0] = ys;
        for (int64_t i = 0; i < N * xs; i++) big_x[i] = wild(seed + 4000, (uint64_t)i);
        for (int64_t i = 0; i < N * ys; i++) big_y[i] = -77;
        for (int64_t n = 0; n < N; n++)
            for (int64_t o = 0; o < R; o++)
                big_y[n * ys + o] = lanes(big_x + n * xs, big_w + o, R, K);
        for (int c = 0; c < n_ctxs; c++) {
            if (c % 4 != (int)(seed % 4)) continue;
            for (int64_t i = 0; i < N * ys; i++) big_y2[i] = -77;
            tri_product_t(ctxs[c], y, x, &w);
            if (!same(big_y2, big_y, N * ys)) {
                test_bad++;
                printf("  %s: %s [%d, %d] x %d, seed %d\n", tr_cpu_name(tr_ctx_cpu(ctxs[c])),
                       w.format->name, (int)K, (int)R, (int)N, (int)seed);
                return;
            }
        }
    }
}

/* ---- embedding ---- */

static void embedding(void)
{
    static const int32_t ids[] = { 4, 0, 32, 4, 17, 9 };
    int32_t wide[12];
    for (int k = 0; k < 12; k++) wide[k] = k % 2 ? -1 : ids[k / 2];
    for (int f = 0; f < TR_FORMAT_COUNT; f++) {
        tr_weight w = exact_weight((tr_format)f, 33, 160);
        tr_embed_args a;
        memset(&a, 0, sizeof a);
        a.w = &w;
        for (int m = 0; m < 2; m++) {       /* m: ids and y with gaps */
            for (int i = 0; i < 9 * 200; i++) y_mem[i] = -77;
            a.y = tr_view2(y_mem, TR_F64, 6, 160);
            memcpy(y2_mem, m ? wide : ids, m ? sizeof wide : sizeof ids);
            a.ids = tr_view1(y2_mem, TR_I32, 6);
            if (m) { a.y.stride[0] = 170; a.ids.stride[0] = 2; }
            CHECK_OK(ctx, tr_embed_f64(ctx, &a));
            for (int64_t n = 0; n < 6; n++)
                for (int64_t i = 0, gap = a.y.stride[0]; i < gap; i++)
                    CHECK(y_mem[n * gap + i] == (i < 160 ? values[ids[n] * 160 + i] : -77));
        }
    }
}

static void embed_refuses(void)
{
    int32_t ids[5] = { 0, 4, 5, -1, INT32_MAX };
    tr_weight w = exact_weight(TR_FMT_BF16, 5, 16);
    tr_embed_args a, b;
    memset(&a, 0, sizeof a);
    a.w = &w;
    a.y = tr_view2(y_mem, TR_F64, 5, 16);
    a.ids = tr_view1(ids, TR_I32, 5);
    for (int i = 0; i < 200; i++) y_mem[i] = -77;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "embed up_proj.weight: token 2: id 5 [0, 5)",
                tr_embed_f64(ctx, &a));
    ids[2] = 3;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "token 3: id -1 [0, 5)", tr_embed_f64(ctx, &a));
    ids[3] = 0;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "token 4: id 2147483647", tr_embed_f64(ctx, &a));
    ids[4] = 0;
    b = a; b.y.shape[1] = 15;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight [5, 16]: I32 [5] F64 [5, 15]",
                tr_embed_f64(ctx, &b));
    b = a; b.y.shape[0] = 4;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "up_proj.weight [5, 16]: I32 [5] F64 [4, 16]",
                tr_embed_f64(ctx, &b));
    b = a; b.ids.dtype = TR_I64;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "up_proj.weight I64 [5]", tr_embed_f64(ctx, &b));
    b = a; b.y.dtype = TR_F32;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "up_proj.weight y F32", tr_embed_f64(ctx, &b));
    b = a; b.w = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "embed weight", tr_embed_f64(ctx, &b));
    for (int i = 0; i < 200; i++) CHECK(y_mem[i] == -77);
    b = a; b.y.shape[0] = b.ids.shape[0] = 0;
    CHECK_OK(ctx, tr_embed_f64(ctx, &b));
    CHECK_OK(ctx, tr_embed_f64(ctx, &a));
    CHECK(y_mem[16] == values[4 * 16]);
    w.q = NULL;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "planned", tr_embed_f64(ctx, &a));
}

/* ---- the contract, to the bit ---- */

/* Sixteen lanes, whatever the tail; absent elements are no products with 0, which would make +0 of
 * a lane of -0: all lanes are -0 after products of opposite sign that are too small to see. */
static void tails(void)
{
    tr_view x = hard(1, 1e3, 1, 600, 0, 0), w = hard(2, 1, 1, 600, 0, 0);
    float tiny[64], minus[64], y, want;
    for (int64_t n = 0; n <= 600; n += n < 100 ? 1 : 37) {
        y = tr_dot(tr_view_f32(x), tr_view_f32(w), n);
        want = ref_dot(tr_view_f32(x), tr_view_f32(w), n);
        CHECK_BITS(&y, &want, 4);
        y = tr_sumsq(tr_view_f32(x), n);
        want = ref_dot(tr_view_f32(x), tr_view_f32(x), n);
        CHECK_BITS(&y, &want, 4);
        y = tr_sum(tr_view_f32(x), n);
        want = ref_sum(tr_view_f32(x), n);
        CHECK_BITS(&y, &want, 4);
    }
    for (int i = 0; i < 64; i++) { tiny[i] = 1e-30f; minus[i] = -1e-30f; }
    for (int64_t n = 0; n <= 64; n++) {
        y = tr_dot(tiny, minus, n);
        CHECK(y == 0 && (signbit(y) != 0) == (n >= 16));
        y = tr_sum(minus, n);
        want = 0;
        CHECK(n == 0 ? tr_f32_bits(y) == tr_f32_bits(want) : y < 0);
    }
    mem_free();
}

/* Every format, columns off 16 and across pieces of 256, none at all; a bias; -0 and +-infinity. */
static void contract_bits(void)
{
    static const int64_t Is[] = { 0, 1, 15, 16, 17, 31, 96, 255, 257, 288, 600 };
    for (int f = 0; f < TR_FORMAT_COUNT; f++)
        for (int k = 0; k < 11; k++) {
            int64_t I = Is[k], O = k % 3 ? 37 : 5, N = k % 4 == 0 ? 9 : k % 2 + 1;
            const tr_qformat *fm = tr_qformat_get((tr_format)f);
            tr_weight w;
            tr_matmul_args a;
            tr_embed_args e;
            void *q = mem(O * I, 8), *s = mem(O * (I + 32), 4);
            if (f == TR_FMT_MXFP4 && I % 32) continue;
            tr_view W = hard(1, 0.3, 2, O, I, 0), W64 = copy(W);
            if (f == TR_FMT_F64)            /* these must be rounded */
                for (int64_t i = 0; i < O * I; i++) f64(W64)[i] *= 1 + 0x1p-26;
            if (f == TR_FMT_F64) q = W64.data;
            else CHECK_OK(ctx, tr_quantize(ctx, fm, q, s, tr_view_f32(W), O, I,
                                           f == TR_FMT_MXFP4 ? 1 : 7, f == TR_FMT_MXFP4 ? 32 : 24));
            CHECK_OK(ctx, tr_weight_of(ctx, &w, fm, "w", q, fm->scaled ? s : NULL, O, I,
                                       f == TR_FMT_MXFP4 ? 1 : 7, f == TR_FMT_MXFP4 ? 32 : 24));
            memset(&a, 0, sizeof a);
            a.x = hard(2, 50, 2, N, I, 0);
            if (k % 2) a.bias = hard(3, 2, 1, O, 0, 0);
            a.y = new2(N, O);
            a.w = &w;
            BITS(matmul, &a);
            CHECK_OK(ctx, tr_weight_check(ctx, &w));    /* finite: decoded in other ways */
            BITS(matmul, &a);
            if (I) tr_view_f32(a.x)[0] = INFINITY;
            if (I > 20) tr_view_f32(a.x)[20] = -3e38f;
            BITS(matmul, &a);
            memset(&e, 0, sizeof e);
            e.ids = new_i32(1, 6, 0);
            for (int i = 0; i < 6; i++) i32(e.ids)[i] = (int32_t)(i * 7 % O);
            e.y = new2(6, I);
            e.w = &w;
            BITS(embed, &e);
            mem_free();
        }
}

/* Shapes beyond every block: tokens and rows that fill no group, more than 256 tokens, columns on
 * both sides of a piece of 2048, one token of more e2m1 columns than are put in order at once;
 * tokens that begin anywhere; an x full of subnormals, whose sums are subnormal too. */
static void contract_many(void)
{
    static const struct { int64_t N, I, O; tr_format f; } s[] = {
        { 16, 1, 16, TR_FMT_F32 },       { 17, 33, 1, TR_FMT_BF16 },
        { 15, 70, 31, TR_FMT_F32 },      { 31, 2047, 50, TR_FMT_F32 },
        { 33, 2061, 97, TR_FMT_FP8_BLOCK }, { 300, 40, 49, TR_FMT_BF16 },
        { 16, 4100, 20, TR_FMT_F16 },    { 18, 2080, 33, TR_FMT_MXFP4 },
        { 257, 16, 48, TR_FMT_F32 },     { 1, 8288, 13, TR_FMT_MXFP4 },
        { 1, 1100, 44, TR_FMT_BF16 },    { 2, 640, 100, TR_FMT_MXFP4 },
    };
    for (int k = 0; k < 12; k++) {
        const tr_qformat *fm = tr_qformat_get(s[k].f);
        int64_t N = s[k].N, I = s[k].I, O = s[k].O, R = s[k].f == TR_FMT_FP8_BLOCK ? 128 : 1;
        int64_t C = s[k].f == TR_FMT_MXFP4 ? 32 : 128;
        void *q = mem(O * I, 8), *scale = mem(O * (I + 32), 4);
        tr_view W = hard(1, 0.3, 2, O, I, 0), wide = hard(2, 50, 2, N, I + 3, 0);
        tr_weight w;
        tr_matmul_args a;
        CHECK_OK(ctx, tr_quantize(ctx, fm, q, scale, tr_view_f32(W), O, I, R, C));
        CHECK_OK(ctx, tr_weight_of(ctx, &w, fm, "w", q, fm->scaled ? scale : NULL, O, I, R, C));
        CHECK_OK(ctx, tr_weight_check(ctx, &w));
        memset(&a, 0, sizeof a);
        a.x = tr_view_slice(wide, 1, k % 3, I);
        a.bias = k % 2 ? hard(3, 2, 1, O, 0, 0) : tr_view_none();
        a.y = new2(N, O);
        a.w = &w;
        BITS(matmul, &a);
        for (int64_t i = 0; i < N * (I + 3); i++) tr_view_f32(wide)[i] *= 0x1p-130f;
        BITS(matmul, &a);
        mem_free();
    }
}

/* One token, a band of rows, and gaps: what a row gives does not depend on its company. */
static void contract_alone(void)
{
    tr_weight w = exact_weight(TR_FMT_FP8_BLOCK, 130, 608), band = tr_weight_rows(&w, 61, 9);
    tr_view x = hard(1, 50, 2, 9, 608, 0), wide = tr_view2(mem(9 * 140, 4), TR_F32, 9, 140);
    tr_matmul_args a = args(&w, 9), b = a;
    a.x = x;
    a.y = tr_view_slice(wide, 1, 4, 130);
    CHECK_OK(ctx, tr_matmul(ctx, &a));
    for (int64_t n = 0; n < 9; n++) {
        b.w = &band;
        b.x = tr_view_slice(x, 0, n, 1);
        b.y = tr_view2(mem(9, 4), TR_F32, 1, 9);
        CHECK_OK(ctx, tr_matmul(ctx, &b));
        CHECK_BITS(b.y.data, ref_row(a.y, n) + 61, 9 * 4);
        CHECK(ref_row(wide, n)[3] == 0 && ref_row(wide, n)[134] == 0);
    }
    mem_free();
}

int main(int argc, char **argv)
{
    fixture_args(argc, argv);
    ctx = test_ctx();
    TEST(sums);
    TEST(topk_rules);
    TEST(topk_random);
    TEST(exact_products);
    TEST(empty_products);
    TEST(order_of_products);
    TEST(threads_and_batches);
    TEST(strides_and_bands);
    TEST(products_of_containers);
    TEST(matmul_refuses);
    open_contexts();
    TEST(bits_of_products);
    TEST(not_finite_weights);
    TEST(products_by_slots);
    TEST(transposed_products);
    close_contexts();
    TEST(embedding);
    TEST(embed_refuses);
    TEST(tails);
    TEST(contract_bits);
    TEST(contract_many);
    TEST(contract_alone);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
