/* {norm}: RMS, L2 and LayerNorm against numbers of others; groups, weights, gate, scale. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_norm_args args(tr_norm_kind kind, tr_view x, tr_view w, double eps)
{
    tr_norm_args a;
    memset(&a, 0, sizeof a);
    a.y = new_like(x);
    a.x = x;
    a.w = w;
    a.kind = kind;
    a.eps = eps;
    a.scale = 1;
    a.groups = 1;
    return a;
}

static void rms_case(void)
{
    const char *kind = case_str("kind");
    tr_norm_args a = args(TR_NORM_RMS, case_f64("in.x"), case_f64_or_none("w.weight"),
                          case_num("eps"));
    if (!strcmp(kind, "plain") || !strcmp(kind, "none")) {
        if (!tr_view_is_none(a.w)) {    /* the raw kernel gives the operator's bits */
            tr_view raw = new_like(a.x);
            BOTH(norm, &a);
            tr_rmsnorm_f64(f64(raw), f64(a.x), f64(a.w), a.x.shape[0], a.x.shape[1], a.eps);
            bits_equal(raw, a.y, "raw rmsnorm");
        }
    } else if (!strcmp(kind, "1+w")) a.form = TR_NORM_ONE_PLUS_W;
    else if (!strcmp(kind, "grouped")) a.groups = case_int("groups");
    else if (strstr(kind, "sigmoid(gate)")) a.gate = case_f64("in.gate");
    else if (strstr(kind, "sum of squares")) a.kind = TR_NORM_L2;
    else if (strstr(kind, "silu(gate)")) CASE_SKIP("a gate by SiLU is not offered");
    else CASE_UNKNOWN("kind");
    BOTH(norm, &a);
    case_near(a.y, "out.y", 1e-10);
    a.y = a.x;                          /* y may be x */
    BOTH(norm, &a);
    case_near(a.y, "out.y", 1e-10);
}

static void layer_case(void)
{
    tr_norm_args a = args(TR_NORM_LAYER, case_f64("in.x"), case_f64("w.weight"), case_num("eps"));
    tr_view raw = new_like(a.x);
    a.bias = case_f64("w.bias");
    BOTH(norm, &a);
    case_near(a.y, "out.y", 1e-10);
    tr_layernorm_f64(f64(raw), f64(a.x), f64(a.w), f64(a.bias), a.x.shape[0], a.x.shape[1], a.eps);
    bits_equal(raw, a.y, "raw layernorm");
}

static void rmsnorm_cases(void)   { exact_cases("rmsnorm", rms_case); }
static void layernorm_cases(void) { exact_cases("layernorm", layer_case); }

/* eps decides when the row is small: 1e-3 / sqrt(1e-6 + eps). */
static void eps_and_scale(void)
{
    double x[4] = { 1e-3, -1e-3, 1e-3, -1e-3 }, y[4], want;
    tr_norm_args a;
    memset(&a, 0, sizeof a);
    a.x = tr_view2(x, TR_F64, 1, 4);
    a.y = tr_view2(y, TR_F64, 1, 4);
    a.groups = 1;
    a.eps = 1e-5;
    a.scale = 0.25;
    CHECK_OK(ctx, tr_norm_f64(ctx, &a));
    want = 0.25 * 1e-3 / sqrt(1e-6 + 1e-5);
    CHECK_NEAR(y, &want, 1, 1e-15);
    a.kind = TR_NORM_L2;                /* the sum: 4e-6 */
    CHECK_OK(ctx, tr_norm_f64(ctx, &a));
    want = 0.25 * 1e-3 / sqrt(4e-6 + 1e-5);
    CHECK_NEAR(y, &want, 1, 1e-15);
    tr_l2norm_f64(y, x, 1, 4, 1e-5);
    want *= 4;
    CHECK_NEAR(y, &want, 1, 1e-15);
    a.kind = TR_NORM_LAYER;             /* mean 0, var 1e-6 */
    CHECK_OK(ctx, tr_norm_f64(ctx, &a));
    want = 0.25 * 1e-3 / sqrt(1e-6 + 1e-5);
    CHECK_NEAR(y, &want, 1, 1e-15);
}

/* Each group is a row of its own; views with gaps between rows. */
static void groups_and_strides(void)
{
    tr_view x = new3(5, 6, 32), w = new1(16), wide, y;
    tr_norm_args a;
    fill(x, 1, 1);
    fill(w, 2, 1);
    wide = tr_view_slice(x, 2, 8, 16);
    a = args(TR_NORM_RMS, wide, w, 1e-6);
    a.groups = 4;
    CHECK_OK(ctx, tr_norm_f64(ctx, &a));
    y = new_like(wide);
    for (int64_t i = 0; i < 30; i++)
        for (int64_t c = 0; c < 16; c += 4)
            tr_rmsnorm_f64(f64(y) + 16 * i + c, f64(x) + 32 * i + 8 + c, f64(w) + c, 1, 4, 1e-6);
    bits_equal(a.y, y, "groups");
    mem_free();
}

static void threads(void)
{
    tr_view x = new3(37, 11, 160), gate = new_like(x), w = new1(160), first = tr_view_none();
    fill(x, 1, 3);
    fill(gate, 2, 3);
    fill(w, 3, 1);
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_norm_args a = args(TR_NORM_RMS, x, w, 1e-5);
        a.gate = gate;
        CHECK_OK(c, tr_norm_f64(c, &a));
        if (i) bits_equal(a.y, first, "threads");
        else first = a.y;
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit: all kinds and what may follow them, tails of 16, groups, one row of
 * zeros, rows too large for their sum of squares, subnormal ones. */
static void contract_bits(void)
{
    static const int64_t size[] = { 1, 2, 15, 16, 17, 33, 100, 272 };
    for (int i = 0; i < 8 * 3 * 4; i++) {
        int64_t D = size[i % 8];
        tr_norm_args a = args((tr_norm_kind)(i / 8 % 3), hard(1, i % 5 ? 3 : 1e-42, 3, 3, 5, D),
                              i / 24 ? hard(2, 1, 1, D, 0, 0) : tr_view_none(), 1e-5);
        if (a.kind == TR_NORM_LAYER && i / 24 > 1) a.bias = hard(3, 1, 1, D, 0, 0);
        if (i / 24 == 2) a.gate = hard(4, 4, 3, 3, 5, D);
        if (i / 24 == 3) a.form = TR_NORM_ONE_PLUS_W;
        if (i / 24 == 3) a.scale = 0.3;
        if (D % 2 == 0 && i / 24 == 1) a.groups = 2;
        if (i % 7 == 0) a.eps = 0;                      /* zeros: 0 / 0 */
        BITS(norm, &a);
        if (i % 4 == 0) {                               /* beyond 2^128: r is 0 */
            a.x = hard(5, 1e25, 3, 3, 5, D);
            BITS(norm, &a);
        }
        mem_free();
    }
    tr_norm_args a = args(TR_NORM_RMS, hard(1, 3, 3, 37, 11, 160), hard(2, 1, 1, 160, 0, 0), 1e-6);
    tr_view y;
    BITS(norm, &a);                                     /* large enough for seven threads */
    a.y = y = exact_view(a.x, TR_F32, 1);
    CHECK_OK(ctx, tr_norm(ctx, &a));
    a.y = a.x = exact_view(a.x, TR_F32, 0);
    CHECK_OK(ctx, tr_norm(ctx, &a));
    bits_equal(a.x, y, "y is x");
    mem_free();
}

static void raw_kernels(void)
{
    tr_view x = hard(1, 3, 2, 9, 75, 0), w = hard(2, 1, 1, 75, 0, 0), b = hard(3, 1, 1, 75, 0, 0);
    tr_view y = exact_view(x, TR_F32, 1);
    for (int k = 0; k < 3; k++) {
        tr_norm_args a = args((tr_norm_kind)k, x, k == 1 ? tr_view_none() : w, 1e-5);
        a.y = exact_view(x, TR_F32, 1);
        if (k == 2) a.bias = b;
        CHECK_OK(ctx, ref_norm(ctx, &a));
        if (k == 0) tr_rmsnorm(tr_view_f32(y), tr_view_f32(x), tr_view_f32(w), 9, 75, 1e-5f);
        if (k == 1) tr_l2norm(tr_view_f32(y), tr_view_f32(x), 9, 75, 1e-5f);
        if (k == 2) tr_layernorm(tr_view_f32(y), tr_view_f32(x), tr_view_f32(w), tr_view_f32(b), 9,
                                 75, 1e-5f);
        bits_equal(y, a.y, "raw kernels");
    }
    mem_free();
}

static void bad_arguments(void)
{
    tr_view x = new2(3, 8), w = new1(8);
    tr_norm_args good = args(TR_NORM_RMS, x, w, 1e-6), a;
    CHECK_OK(ctx, tr_norm_f64(ctx, &good));
    a = good; a.x = tr_view_none();
    CHECK_FAILS(ctx, TR_ERR_ARG, "norm: x absent", tr_norm_f64(ctx, &a));
    a = good; a.x.dtype = TR_F32;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "x F32 [3, 8] F64", tr_norm_f64(ctx, &a));
    a = good; a.y = new2(3, 9);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x [3, 8] y [3, 9] differ in D", tr_norm_f64(ctx, &a));
    a = good; a.y = new2(4, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x [3, 8] y [4, 8] differ in ..", tr_norm_f64(ctx, &a));
    a = good; a.y = new3(1, 3, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x [3, 8] y [1, 3, 8]", tr_norm_f64(ctx, &a));
    a = good; a.w = new1(7);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x [3, 8] w [7] differ in D", tr_norm_f64(ctx, &a));
    a = good; a.w = new2(1, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "w [1, 8] not [D]", tr_norm_f64(ctx, &a));
    a = good; a.x.data = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "x [3, 8] no data", tr_norm_f64(ctx, &a));
    a = good; a.x.shape[0] = -3;
    CHECK_FAILS(ctx, TR_ERR_ARG, "x [-3, 8] no data", tr_norm_f64(ctx, &a));
    a = good; a.x.stride[1] = 2;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x [3, 8] stride 2", tr_norm_f64(ctx, &a));
    a = good; a.x.rank = 0;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "x not [..,D]", tr_norm_f64(ctx, &a));
    a = good; a.x = new2(3, 0); a.y = new2(3, 0); a.w = tr_view_none();
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "rows of 0", tr_norm_f64(ctx, &a));
    a = good; a.bias = w;
    CHECK_FAILS(ctx, TR_ERR_ARG, "only LayerNorm bias", tr_norm_f64(ctx, &a));
    a = good; a.gate = new2(3, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "gate [3, 4] differ", tr_norm_f64(ctx, &a));
    a = good; a.eps = -1e-6;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "eps -1e-06", tr_norm_f64(ctx, &a));
    a = good; a.eps = (double)NAN;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "eps nan", tr_norm_f64(ctx, &a));
    a = good; a.scale = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "scale 0", tr_norm_f64(ctx, &a));
    a = good; a.groups = 3;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "8 3 groups", tr_norm_f64(ctx, &a));
    a = good; a.groups = 0;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "8 0 groups", tr_norm_f64(ctx, &a));
    a = good; a.kind = (tr_norm_kind)7;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "kind 7", tr_norm_f64(ctx, &a));
    a = good; a.x = new2(0, 8); a.y = new2(0, 8);
    CHECK_OK(ctx, tr_norm_f64(ctx, &a));            /* no tokens: nothing to do */
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(rmsnorm_cases);
    TEST(layernorm_cases);
    TEST(eps_and_scale);
    TEST(groups_and_strides);
    TEST(threads);
    TEST(contract_bits);
    TEST(raw_kernels);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
