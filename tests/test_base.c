/* test_base.c - the ground that has no numbers of others: contexts, sizes, arenas, views, threads,
 * globs, differences, goldens, the self-test. */
#define TRILLION_IMPLEMENTATION
#include "test.h"
#include <fenv.h>

static void errors(void)
{
    tr_ctx *ctx = test_ctx();
    char huge[4096];
    CHECK(!strcmp(tr_status_str(TR_OK), "fine") && !strcmp(tr_status_str((tr_status)99), "unknown status"));
    CHECK(!tr_err_last(ctx)[0]);
    CHECK(tr_fail(ctx, TR_ERR_RANGE, "%d of %d", 3, 2) == TR_ERR_RANGE);
    CHECK(tr_fail_in(ctx, TR_ERR_RANGE, "layer %d", 7) == TR_ERR_RANGE);
    CHECK(!strcmp(tr_err_last(ctx), "layer 7: 3 of 2"));
    CHECK(tr_fail(ctx, TR_ERR_IO, "a\nb\x1b[2Jc\x7f: %s", "\xc3\xa9") == TR_ERR_IO);
    CHECK(tr_fail_in(ctx, TR_ERR_IO, "d\r") == TR_ERR_IO);
    CHECK(!strcmp(tr_err_last(ctx), "d?: a?b?[2Jc?: \xc3\xa9"));      /* one line, no cursor moved */
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = 0;
    CHECK(tr_fail(ctx, TR_ERR_ARG, "%s", huge) == TR_ERR_ARG && strlen(tr_err_last(ctx)) < 4096);
    CHECK(tr_fail_in(ctx, TR_ERR_ARG, "%s", huge) == TR_ERR_ARG && strlen(tr_err_last(ctx)) < 4096);
    tr_err_clear(ctx);
    CHECK(!tr_err_last(ctx)[0]);
    tr_ctx_free(ctx);
    tr_ctx_free(NULL);
}

static void memory(void)
{
    tr_ctx *ctx = test_ctx();
    void *a, *b, *c;
    size_t n;
    CHECK_OK(ctx, tr_alloc(ctx, &a, 0));
    CHECK(!a);
    CHECK_OK(ctx, tr_alloc(ctx, &a, 1));
    CHECK_OK(ctx, tr_alloc(ctx, &b, 100));
    CHECK((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    for (int i = 0; i < 100; i++) CHECK(((char *)b)[i] == 0);
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflow", tr_alloc(ctx, &c, SIZE_MAX - 8));
    CHECK_FAILS(ctx, TR_ERR_MEMORY, "out of memory", tr_alloc(ctx, &c, SIZE_MAX / 2 - 4096));
    CHECK(!c);
    CHECK_OK(ctx, tr_size_mul(ctx, &n, 0, SIZE_MAX));
    CHECK_OK(ctx, tr_size_mul(ctx, &n, SIZE_MAX, 1));
    CHECK(n == SIZE_MAX);
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", tr_size_mul(ctx, &n, (size_t)1 << 33, (size_t)1 << 31));
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", tr_size_add(ctx, &n, SIZE_MAX, 1));
    tr_free(ctx, NULL);
    tr_free(ctx, b);
    tr_free(ctx, a);
    CHECK(tr_ctx_peak_bytes(ctx) > 101 && tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void arenas(void)
{
    tr_ctx *ctx = test_ctx();
    tr_arena dry, a;
    void *p, *q;
    size_t mark;
    memset(&dry, 0, sizeof dry);
    CHECK_OK(ctx, tr_arena_push(ctx, &dry, &p, 100));
    mark = tr_arena_mark(&dry);
    CHECK_OK(ctx, tr_arena_push(ctx, &dry, &q, 1000));
    CHECK(!p && !q && dry.peak == 128 + 1024);
    tr_arena_rewind(&dry, mark);
    CHECK(dry.used == 128 && dry.peak == 1152);
    CHECK_OK(ctx, tr_arena_new(ctx, &a, dry.peak));
    CHECK_OK(ctx, tr_arena_push(ctx, &a, &p, 100));
    CHECK_OK(ctx, tr_arena_push(ctx, &a, &q, 1000));
    CHECK((unsigned char *)q == (unsigned char *)p + 128);
    CHECK_FAILS(ctx, TR_ERR_FULL, "1 1152 planned", tr_arena_push(ctx, &a, &p, 1));
    CHECK_FAILS(ctx, TR_ERR_RANGE, "overflows", tr_arena_push(ctx, &a, &p, SIZE_MAX));
    tr_arena_free(ctx, &a);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void views(void)
{
    tr_ctx *ctx = test_ctx();
    float x[24], y[24];
    double d[24];
    uint8_t f4[4] = { 0 };
    char s[96];
    tr_view v = tr_view3(x, TR_F32, 2, 3, 4), w;
    for (int i = 0; i < 24; i++) x[i] = (float)i / 3;
    CHECK(tr_view_numel(v) == 24 && tr_view_is_contig(v) && !tr_view_is_none(v));
    CHECK(tr_view_is_none(tr_view_none()) && tr_view_numel(tr_view_none()) == 0);
    CHECK(!strcmp(tr_view_str(v, s), "F32 [2, 3, 4]"));
    w = tr_view_slice(tr_view_at(v, 1), 1, 1, 2);           /* rows 0..2 of x[1], columns 1, 2 */
    CHECK(w.rank == 2 && w.shape[0] == 3 && w.shape[1] == 2 && !tr_view_is_contig(w));
    CHECK_OK(ctx, tr_view_copy(ctx, tr_view2(y, TR_F32, 3, 2), w));
    CHECK(y[0] == x[13] && y[1] == x[14] && y[4] == x[21] && y[5] == x[22]);
    CHECK_OK(ctx, tr_view_copy(ctx, tr_view2(d, TR_F64, 3, 2), w));
    CHECK(d[5] == (double)x[22]);
    w = tr_view_split(tr_view_join(v), 1, 2);
    CHECK(w.rank == 3 && w.shape[0] == 6 && w.shape[1] == 2 && w.shape[2] == 2);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "[3, 2] [6, 2, 2]", tr_view_copy(ctx, tr_view2(y, TR_F32, 3, 2), w));
    v.data = NULL;                                          /* planned: subviews stay NULL */
    CHECK(!tr_view_slice(tr_view_at(v, 1), 1, 1, 2).data && !tr_view_is_none(v));
    v = tr_view1(f4, TR_F4E2M1, 8);
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "F4", tr_view_copy(ctx, v, v));
    v = tr_view2(x, TR_F32, 3, 4);
    v.stride[0] = 0;                                        /* one row three times */
    CHECK_OK(ctx, tr_view_copy(ctx, tr_view2(y, TR_F32, 3, 4), v));
    CHECK(!memcmp(y, y + 8, 4 * sizeof *y));
    tr_ctx_free(ctx);
}

typedef struct cover { unsigned char hit[1000]; } cover;
static void cover_range(void *user, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) ((cover *)user)->hit[i]++;
}

static void threads(void)
{
    for (int t = 0; t <= 9; t++) {
        tr_ctx_opts o;
        tr_ctx *ctx;
        memset(&o, 0, sizeof o);
        o.threads = t;
        if (tr_ctx_new(&ctx, &o) != TR_OK) return;
        CHECK(tr_par_threads(ctx) >= 1);
        for (int64_t n = 0; n <= 1000; n += n < 20 ? 1 : 327)
            for (int64_t grain = 0; grain < 40; grain += 13) {
                cover c;
                memset(&c, 0, sizeof c);
                tr_par_for(ctx, n, grain, cover_range, &c);
                for (int64_t i = 0; i < 1000; i++) CHECK(c.hit[i] == (i < n));
            }
        tr_ctx_free(ctx);
    }
}

static void random_numbers(void)
{
    double sum = 0, sq = 0;
    CHECK(tr_rng_u64(1, 2, 3) == tr_rng_u64(1, 2, 3) && tr_rng_u64(1, 2, 3) != tr_rng_u64(1, 3, 2));
    CHECK(tr_rng_u64(1, 2, 3) != tr_rng_u64(2, 2, 3) && tr_rng_u64(0, 0, 0) != 0);
    for (uint64_t i = 0; i < 100000; i++) {
        double u = tr_rng_unit(5, 0, i), x = tr_rng_normal(5, 1, i);
        CHECK(u >= 0 && u < 1);
        sum += x;
        sq += x * x;
    }
    CHECK(fabs(sum / 1e5) < 0.02 && fabs(sq / 1e5 - 1) < 0.02);
}

static void globs(void)
{
    CHECK(tr_tap_match("*", "model.layers.3") && tr_tap_match("", "") && tr_tap_match("**", ""));
    CHECK(tr_tap_match("model.layers.*.self_attn", "model.layers.13.self_attn"));
    CHECK(!tr_tap_match("model.layers.*.self_attn", "model.layers.13.self_attn.q"));
    CHECK(tr_tap_match("*.mlp*", "layers.0.mlp.gate") && !tr_tap_match("*.mlp", "layers.0.mlp.gate"));
    CHECK(tr_tap_match("*ab*ab", "abcabab") && !tr_tap_match("a", "") && !tr_tap_match("", "a"));
    CHECK(!tr_tap_match("a?c", "abc") && tr_tap_match("state.*", "state.layers.0.k"));
}

static void differences(void)
{
    tr_ctx *ctx = test_ctx();
    double a[4] = { 1, 2, 3, -4 }, b[4] = { 1, 2.5, 3, -5 };
    float c[4] = { 1, 2, 3, -4 };
    int64_t i64[2] = { 3, 4 };
    int32_t i32[2] = { 3, 5 };
    tr_diff d;
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 4), tr_view1(b, TR_F64, 4)));
    CHECK(d.n == 4 && d.max_abs == 1 && d.max_b == 5 && d.max_rel == 0.2 && d.worst == 3);
    CHECK(d.worst_a == -4 && d.worst_b == -5 && d.equal == 2);
    CHECK(fabs(d.rms_ratio - sqrt(1.25 / 41.25)) < 1e-15 && fabs(d.cosine - 35 / sqrt(30 * 41.25)) < 1e-15);
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view3(c, TR_F32, 1, 2, 2), tr_view2(a, TR_F64, 2, 2)));
    CHECK(d.max_abs == 0 && d.max_rel == 0 && d.cosine == 1 && d.equal == 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "[4] [3]", tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 4), tr_view1(b, TR_F64, 3)));
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(i64, TR_I64, 2), tr_view1(i32, TR_I32, 2)));
    CHECK(d.max_abs == 1 && d.worst == 1);
    a[0] = NAN;
    b[1] = INFINITY;
    a[1] = INFINITY;
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 4), tr_view1(b, TR_F64, 4)));
    CHECK(d.nan_a == 1 && d.nan_b == 0 && d.nan_one_side == 1 && d.inf_a == 1 && d.inf_b == 1);
    CHECK(d.worst == 3 && d.max_abs == 1 && d.cosine > 0.99);
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 1), tr_view1(a, TR_F64, 1)));
    CHECK(d.worst == -1 && d.nan_one_side == 0 && d.equal == 1);
    a[0] = 1;
    b[0] = 0;
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 1), tr_view1(b, TR_F64, 1)));
    CHECK(d.max_rel > 1e300);                       /* anything against zero */
    b[0] = INFINITY;
    CHECK_OK(ctx, tr_diff_views(ctx, &d, tr_view1(a, TR_F64, 1), tr_view1(b, TR_F64, 1)));
    CHECK(isinf(d.max_rel) && d.equal == 0);        /* not infinity / infinity */
    tr_ctx_free(ctx);
}

/* Two sequences of 3 and 1 tokens, in two calls. */
static void goldens(void)
{
    tr_ctx *ctx = test_ctx();
    int64_t len[2] = { 3, 1 }, T1[2] = { 2, 1 }, T2[2] = { 1, 0 }, pos1[2] = { 0, 0 }, pos2[2] = { 2, 1 };
    double x[3][2] = { { 1, 2 }, { 3, 4 }, { 5, 6 } }, late[1][2] = { { 7, 8 } }, m[4] = { 1, 2, 3, 4 };
    static const double want[12] = { 1, 2, 3, 4, 7, 8, 5, 6, 0, 0, 0, 0 };
    tr_golden g;
    tr_batch b;
    tr_tap t;
    tr_st f;
    memset(&t, 0, sizeof t);
    b.B = 2;
    b.T = T1;
    b.ids = NULL;
    CHECK_OK(ctx, tr_golden_new(ctx, &g, 2, len));
    t.name = "a";
    t.x = tr_view2(x, TR_F64, 3, 2);
    t.batch = &b;
    t.pos = pos1;
    t.seq = -1;
    CHECK_OK(ctx, tr_golden_tap(&g, ctx, &t));
    t.kind = TR_TAP_STATE;
    t.name = "state.m";
    t.x = tr_view2(m, TR_F64, 2, 2);
    t.seq = 1;
    CHECK_OK(ctx, tr_golden_tap(&g, ctx, &t));
    t.kind = TR_TAP_ROWS;
    t.name = "a";
    t.x = tr_view2(late, TR_F64, 1, 2);
    t.pos = pos2;
    t.seq = -1;
    b.T = T2;
    CHECK_OK(ctx, tr_golden_tap(&g, ctx, &t));
    CHECK(tr_view_numel(tr_golden_find(&g, "a")) == 12 && tr_view_is_none(tr_golden_find(&g, "b")));
    CHECK_BITS(tr_golden_find(&g, "a").data, want, sizeof want);
    CHECK(!memcmp((double *)tr_golden_find(&g, "state.m").data + 4, m, sizeof m));
    CHECK_FAILS(ctx, TR_ERR_IO, "no/such/g", tr_golden_write(ctx, &g, "no/such/g", NULL, 0));
    CHECK_OK(ctx, tr_golden_write(ctx, &g, "build/golden-test.safetensors", NULL, 0));
    CHECK_OK(ctx, tr_st_open(ctx, &f, "build/golden-test.safetensors", 0));
    CHECK(f.n == 3 && tr_st_find(&f, "lengths") && tr_st_find(&f, "a")->view.rank == 3);
    tr_st_close(ctx, &f);
    tr_golden_free(ctx, &g);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* The self-test names what the host program has done to the arithmetic. */
static void self(void)
{
    tr_ctx *ctx = test_ctx();
    tr_build b = tr_build_info(ctx);
    CHECK(!strcmp(b.version, TR_VERSION) && b.compiler[0] && b.threads >= 1);
    CHECK_OK(ctx, tr_selftest(ctx));
#if defined(__GNUC__) && defined(FE_UPWARD)
    fesetround(FE_UPWARD);
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "round nearest", tr_selftest(ctx));
    fesetround(FE_TONEAREST);
#endif
#if defined(__SSE2__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);     /* flush, denormals are zero */
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "subnormal", tr_selftest(ctx));
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x8040u);
#endif
    CHECK_OK(ctx, tr_selftest(ctx));
    tr_ctx_free(ctx);
}

int main(void)
{
    TEST(errors);
    TEST(memory);
    TEST(arenas);
    TEST(views);
    TEST(threads);
    TEST(random_numbers);
    TEST(globs);
    TEST(differences);
    TEST(goldens);
    TEST(self);
    return test_end();
}
