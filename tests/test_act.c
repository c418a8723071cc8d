/* {act}: activations and softmax against numbers of others, and their tails. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

/* Each element to a relative bound of its own: what is small must be right, too. */
static void each_near(const double *a, const double *b, int64_t n, double bound, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (fabs(b[i]) > 1e-290) test_near(a + i, b + i, 1, bound, what, __FILE__, __LINE__);
}

static tr_glu_args glu_args(const char *act, tr_view g, tr_view u)
{
    tr_glu_args a;
    memset(&a, 0, sizeof a);
    a.y = new_like(g);
    a.g = g;
    a.u = u;
    a.act = tr_act_find(ctx, act);
    CHECK(a.act != NULL);
    return a;
}

static tr_view row(tr_view v) { return tr_view2(v.data, TR_F64, 1, v.shape[0]); }

/* The contract's: rounded once (half an ulp and a 2000th), or, for SiLU, twice: the sigmoid, which
 * may be subnormal, so |x| times half its last place, and the product. */
static void elementwise(double (*fn)(double), float (*fn32)(float), double ulps)
{
    tr_view x = case_f64("in.x"), y = new_like(x), want = case_f64("out.y");
    for (int64_t i = 0; i < x.shape[0]; i++) f64(y)[i] = fn(f64(x)[i]);
    case_near(y, "out.y", 1e-10);
    each_near(f64(y), f64(want), x.shape[0], 1e-14, cases_name);
    for (int64_t i = 0; fn32 && i < x.shape[0]; i++) {
        double z = (double)fn32((float)f64(x)[i]), w = f64(want)[i];
        double last = fn32 == ref_silu ? 1 + fabs(f64(x)[i]) : 1;
        CHECK(fabs(z - w) <= ulps * fmax(fabs(w) * 0x1p-23, last * 0x1p-149));
    }
}

static double sqrtsoftplus(double x) { return sqrt(tr_softplus_f64(x)); }

/* Infinities and NaN: the same, or NaN in both. */
static void special(double (*fn)(double), const char *key)
{
    tr_view x = case_f64("in.x"), want = case_f64(key);
    for (int64_t i = 0; i < x.shape[0]; i++) {
        double y = fn(f64(x)[i]), w = f64(want)[i];
        CHECK(y == w || (y != y && w != w));
    }
}

static void specials(void)
{
    special(tr_sigmoid_f64, "out.sigmoid");
    special(tr_silu_f64, "out.silu");
    special(tr_softplus_f64, "out.softplus");
}

static void mlp(const char *act, double p0, double p1)
{
    tr_view x = case_f64("in.x");
    tr_glu_args a = glu_args(act, matmul(x, case_f64("w.gate")), matmul(x, case_f64("w.up")));
    a.p[0] = p0;
    a.p[1] = p1;
    a.y = a.g;                                          /* y may be g */
    BOTH(glu, &a);
    case_near(matmul(a.y, case_f64("w.down")), "out.y", 1e-10);
}

static void situ_bf16(void)
{
    tr_view g = case_raw("in.g"), u = case_raw("in.u"), y = case_raw("out.y");
    tr_glu_args a;
    g.dtype = u.dtype = TR_BF16;                        /* stored as their bits in U16 */
    a = glu_args("situ", row(new1(g.shape[0])), row(new1(g.shape[0])));
    for (int64_t i = 0; i < g.shape[0]; i++) {
        f64(a.g)[i] = tr_get_f64(g.data, TR_BF16, i);
        f64(a.u)[i] = tr_get_f64(u.data, TR_BF16, i);
    }
    a.p[0] = case_num("beta");
    a.p[1] = case_num("linear_beta");
    BOTH(glu, &a);
    for (int64_t i = 0; i < g.shape[0]; i++) {
        uint16_t want, got = tr_f32_to_bf16((float)f64(a.y)[i]);
        memcpy(&want, (const char *)y.data + 2 * i, 2);
        CHECK(want == got || ((want | got) & 0x7fff) == 0);
    }
}

/* The golden numbers of the tail come from 1 + erf and 1 + tanh, so their last place is 2^-53 |x|;
 * the operator's y may be x. */
static void gelu(tr_gelu_kind kind)
{
    tr_view x = row(case_f64("in.x")), want = case_f64("out.y");
    tr_gelu_args a;
    a.y = a.x = x;
    a.y = new_like(x);
    a.kind = kind;
    BOTH(gelu, &a);
    case_near(a.y, "out.y", 1e-10);
    for (int64_t i = 0; i < x.shape[1]; i++) {
        double y = f64(a.y)[i], w = f64(want)[i], v = f64(x)[i];
        CHECK(fabs(y - w) <= 1e-14 * fabs(w) + 0x1p-52 * fabs(v));
    }
    a.y = a.x;
    CHECK_OK(ctx, tr_gelu_f64(ctx, &a));
    case_near(a.y, "out.y", 1e-10);
}

static void act_case(void)
{
    if (!strcmp(cases_name, "specials")) specials();
    else if (!strcmp(cases_name, "silu")) elementwise(tr_silu_f64, ref_silu, 1.01);
    else if (!strcmp(cases_name, "sigmoid")) elementwise(tr_sigmoid_f64, tr_sigmoidf, 0.501);
    else if (!strcmp(cases_name, "softplus")) elementwise(tr_softplus_f64, tr_softplusf, 0.501);
    else if (!strcmp(cases_name, "sqrtsoftplus")) elementwise(sqrtsoftplus, NULL, 0);
    else if (!strcmp(cases_name, "mlp_swiglu")) mlp("silu", 0, 0);
    else if (!strcmp(cases_name, "mlp_situ")) mlp("situ", 4, 25);
    else if (!strcmp(cases_name, "situ_bf16")) situ_bf16();
    else if (!strcmp(cases_name, "swiglu") || case_named("situ_")) {
        int situ = case_named("situ_");
        tr_glu_args a = glu_args(situ ? "situ" : "silu", row(case_f64("in.g")),
                                 row(case_f64("in.u")));
        a.p[0] = situ ? case_num("beta") : 0;
        a.p[1] = situ ? case_num("linear_beta") : 0;
        BOTH(glu, &a);
        case_near(a.y, "out.y", 1e-10);
        each_near(f64(a.y), f64(case_f64("out.y")), a.y.shape[1], 1e-13, cases_name);
    }
    else if (!strcmp(cases_name, "gelu_erf")) gelu(TR_GELU_ERF);
    else if (!strcmp(cases_name, "gelu_tanh")) gelu(TR_GELU_TANH);
    else if (!strcmp(cases_name, "relu2")) CASE_SKIP("squared ReLU is not offered");
    else if (case_named("swiglu_clamp_")) CASE_SKIP("clamped SwiGLU is not offered");
    else if (case_named("swiglu_oai_")) CASE_SKIP("gpt-oss's SwiGLU is not offered");
    else if (!strcmp(cases_name, "softcap")) CASE_SKIP("softcap belongs to {attn}");
    else CASE_UNKNOWN("kind");
}

/* x - m, e^, D/16 + 4 sums, quotient: relative u (|x - m| + D/16 + 7), and |x - m| e^(x - m) is at
 * most 0.4 of the largest. */
static void softmax32(tr_view x)
{
    int64_t T = x.shape[0], D = x.shape[1];
    tr_view x32 = exact_view(x, TR_F32, 0), y32 = exact_view(x, TR_F32, 1);
    double bound = EXACT_U * ((double)D / 16 + 8);
    tr_softmax((float *)y32.data, (float *)x32.data, T, D);
    test_near(f64(copy(y32)), f64(case_f64("out.y")), T * D, bound > 1e-6 ? bound : 1e-6,
              cases_name, __FILE__, __LINE__);
    for (int64_t t = 0; t < T; t++) ref_softmax(ref_row(x32, t), ref_row(x32, t), D);
    bits_equal(y32, x32, "softmax32");
}

static void softmax_case(void)
{
    tr_view x = case_f64("in.x"), y = new_like(x), sink = case_f64_or_none("in.sink");
    int64_t T = x.shape[0], D = x.shape[1];
    tr_softmax_f64(f64(y), f64(x), tr_view_is_none(sink) ? NULL : f64(sink), T, D);
    case_near(y, "out.y", 1e-10);
    for (int64_t t = 0; tr_view_is_none(sink) && t < T; t++) {  /* sums to 1, or is masked */
        double sum = 0, top = 0, one = 1;
        for (int64_t d = 0; d < D; d++) sum += f64(y)[t * D + d];
        for (int64_t d = 0; d < D; d++) top = isfinite(f64(x)[t * D + d]) ? 1 : top;
        if (top > 0) CHECK_NEAR(&sum, &one, 1, 1e-14);
        else CHECK(sum == 0);
    }
    if (tr_view_is_none(sink)) softmax32(x);
    tr_softmax_f64(f64(x), f64(x), tr_view_is_none(sink) ? NULL : f64(sink), T, D);
    bits_equal(x, y, "softmax in place");
}

static void activation_cases(void) { exact_cases("activations", act_case); }
static void softmax_cases(void)    { exact_cases("softmax", softmax_case); }

/* Rows that -inf, sinks and a start from 0 would get wrong. */
static void softmax_edges(void)
{
    double inf = (double)INFINITY, x[6] = { -900, -901, -inf, -inf, -inf, -inf }, y[6];
    double sink[2] = { -899, -inf }, want[3], e = exp(1.0);
    tr_softmax_f64(y, x, NULL, 2, 3);
    want[0] = e / (1 + e); want[1] = 1 / (1 + e); want[2] = 0;
    CHECK_NEAR(y, want, 3, 1e-15);
    CHECK(y[3] == 0 && y[4] == 0 && y[5] == 0);         /* all masked: zeros, not NaN */
    tr_softmax_f64(y, x, sink, 2, 3);
    want[0] = exp(-1.0) / (1 + exp(-1.0) + exp(-2.0));
    want[1] = exp(-2.0) / (1 + exp(-1.0) + exp(-2.0));
    CHECK_NEAR(y, want, 3, 1e-15);
    CHECK(y[3] == 0 && y[5] == 0);
    x[1] = (double)NAN;                                 /* NaN stays NaN, wherever it stands */
    tr_softmax_f64(y, x, NULL, 1, 2);
    CHECK(y[0] != y[0] && y[1] != y[1]);
    x[0] = (double)NAN; x[1] = 1;
    tr_softmax_f64(y, x, NULL, 1, 2);
    CHECK(y[0] != y[0] && y[1] != y[1]);
}

/* Ports that evaluate log(1 + e^x) return 0 here, and their routers see ties. */
static void tails(void)
{
    static const double x[8] = { -16, -17, -20, -30, -40, -100, -700, -744 };
    for (int i = 0; i < 8; i++) {
        double e = exp(x[i]), y = tr_softplus_f64(x[i]), want = e - e * e / 2;
        CHECK_NEAR(&y, &want, 1, x[i] < -16 ? 1e-13 : 1e-10);
        y = tr_sigmoid_f64(x[i]); want = e / (1 + e);
        CHECK_NEAR(&y, &want, 1, 1e-15);
        if (i) CHECK(tr_softplus_f64(x[i]) < tr_softplus_f64(x[i - 1]));
    }
    CHECK(tr_softplus_f64(800) == 800 && tr_softplus_f64(1e300) == 1e300);
    CHECK(tr_sigmoid_f64(800) == 1 && tr_sigmoid_f64(-800) == 0);
    CHECK(tr_silu_f64(-(double)INFINITY) == 0 && tr_silu_f64((double)INFINITY) > 1e308);
    CHECK(tr_silu_f64((double)NAN) != tr_silu_f64((double)NAN));
    CHECK(tr_softplus_f64((double)NAN) != tr_softplus_f64((double)NAN));
}

/* families.md 2.5, computed by others. */
static void golden_numbers(void)
{
    static const double p[2] = { 4, 25 };
    double y[2], want[2] = { 0.3580520, 82.9526883 };
    y[0] = tr_act_find(ctx, "situ")->f64(1, 0.5, p);
    y[1] = tr_act_find(ctx, "situ")->f64(12, 30, p);
    CHECK_NEAR(y, want, 1, 1e-6);
    CHECK_NEAR(y + 1, want + 1, 1, 1e-8);
}

static double twice(double g, double u, const double *p) { return 2 * g * u + p[0]; }
static double thrice(double g, double u, const double *p) { return 3 * g * u + p[1]; }

static void registered(void)
{
    tr_ctx *c = ctx_threads(1);
    tr_act act = { "twice", twice, NULL };
    tr_view g = new2(1, 1), u = new2(1, 1);
    tr_glu_args a;
    CHECK(tr_act_find(c, "twice") == NULL && tr_act_find(c, "sil") == NULL);
    CHECK_OK(c, tr_ctx_add_act(c, &act));
    CHECK_FAILS(c, TR_ERR_ARG, "\"twice\" exists", tr_ctx_add_act(c, &act));
    act.name = "silu";
    CHECK_FAILS(c, TR_ERR_ARG, "\"silu\" exists", tr_ctx_add_act(c, &act));
    act.name = "";
    CHECK_FAILS(c, TR_ERR_ARG, "needs a name", tr_ctx_add_act(c, &act));
    act.name = "thrice"; act.f64 = NULL;
    CHECK_FAILS(c, TR_ERR_ARG, "function", tr_ctx_add_act(c, &act));
    act.f64 = thrice;
    CHECK_OK(c, tr_ctx_add_act(c, &act));
    CHECK(tr_act_find(ctx, "twice") == NULL);           /* another context does not know it */
    f64(g)[0] = 5;
    f64(u)[0] = 7;
    a = glu_args("silu", g, u);
    a.p[0] = 1;
    a.p[1] = 2;
    a.act = tr_act_find(c, "twice");
    CHECK_OK(c, tr_glu_f64(c, &a));
    CHECK(f64(a.y)[0] == 71);
    a.act = tr_act_find(c, "thrice");
    CHECK_OK(c, tr_glu_f64(c, &a));
    CHECK(f64(a.y)[0] == 107);
    tr_ctx_free(c);
    mem_free();
}

static void gate(void)
{
    tr_view x = new3(9, 4, 50), g = new_like(x), want = new_like(x);
    tr_gate_args a;
    fill(x, 1, 1);
    fill(g, 2, 4);
    for (int64_t i = 0; i < 9 * 4 * 50; i++) f64(want)[i] = f64(x)[i] / (1 + exp(-f64(g)[i]));
    a.y = x;
    a.x = x;
    a.g = g;
    CHECK_OK(ctx, tr_gate_f64(ctx, &a));
    CHECK_NEAR(f64(x), f64(want), 9 * 4 * 50, 1e-15);
    mem_free();
}

static void threads(void)
{
    tr_view g = new2(129, 700), u = new_like(g), first[2] = { tr_view_none(), tr_view_none() };
    fill(g, 1, 2);
    fill(u, 2, 9);
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_glu_args a = glu_args("situ", g, u);
        tr_gate_args b;
        a.p[0] = 4;
        a.p[1] = 25;
        b.y = new_like(g);
        b.x = u;
        b.g = g;
        CHECK_OK(c, tr_glu_f64(c, &a));
        CHECK_OK(c, tr_gate_f64(c, &b));
        if (i) bits_equal(a.y, first[0], "glu threads");
        if (i) bits_equal(b.y, first[1], "gate threads");
        first[0] = a.y;
        first[1] = b.y;
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit, with pre-activations at which sigma, e^x and the caps end. */
static void contract_bits(void)
{
    static const float edge[] = { -INFINITY, -3e38f, -120, -104, -103.5f, -88, -17, -1e-45f, -0.0f,
                                  0, 1e-45f, 0.5f, 17, 88.7f, 90, 3e38f, INFINITY };
    tr_view g = hard(1, 6, 2, 71, 300, 0), u = hard(2, 20, 2, 71, 300, 0);
    tr_gate_args b;
    for (int i = 0; i < 17 * 17; i++) {
        tr_view_f32(g)[601 + i] = edge[i % 17];
        tr_view_f32(u)[601 + i] = edge[i / 17];
    }
    for (int k = 0; k < 3; k++) {
        tr_glu_args a = glu_args(k ? "situ" : "silu", g, u);
        a.p[0] = k == 2 ? 0.1 : 4;
        a.p[1] = k == 2 ? 7e10 : 25;
        BITS(glu, &a);
        a.y = a.u = exact_view(u, TR_F32, 0);           /* y may be u */
        CHECK_OK(ctx, tr_glu(ctx, &a));
        tr_view y = a.y;
        a.y = a.u = exact_view(u, TR_F32, 0);
        CHECK_OK(ctx, ref_glu(ctx, &a));
        bits_equal(exact_one_nan(y), exact_one_nan(a.y), "y is u");
    }
    b.y = b.x = u;
    b.g = g;
    BITS(gate, &b);
    mem_free();
}

/* Ties, odd sizes, masked entries and rows. */
static void softmax_bits(void)
{
    for (int64_t D = 1; D < 70; D++) {
        tr_view x = hard((uint64_t)D, 9, 2, 5, D, 0), y = exact_view(x, TR_F32, 1);
        for (int64_t d = 0; d < D; d++) {
            tr_view_f32(x)[3 * D + d] = -INFINITY;
            if (d % 3 == 1) tr_view_f32(x)[4 * D + d] = -INFINITY;
        }
        tr_softmax(tr_view_f32(y), tr_view_f32(x), 5, D);
        for (int64_t t = 0; t < 5; t++) ref_softmax(ref_row(x, t), ref_row(x, t), D);
        bits_equal(y, x, "softmax");
    }
    mem_free();
}

static void bad_arguments(void)
{
    tr_glu_args good = glu_args("situ", new2(3, 8), new2(3, 8)), a;
    tr_gate_args b;
    good.p[0] = 4;
    good.p[1] = 25;
    CHECK_OK(ctx, tr_glu_f64(ctx, &good));
    a = good; a.u = new2(3, 9);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "glu: [3, 8] u [3, 9] differ in F", tr_glu_f64(ctx, &a));
    a = good; a.y = new2(2, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "glu: y [2, 8] g [3, 8] differ in N", tr_glu_f64(ctx, &a));
    a = good; a.act = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "glu: no activation", tr_glu_f64(ctx, &a));
    a = good; a.p[0] = 0;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "glu: situ caps 0 25", tr_glu_f64(ctx, &a));
    a = good; a.p[1] = -25;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "glu: situ caps 4 -25", tr_glu_f64(ctx, &a));
    b.y = new2(3, 8); b.x = new2(3, 8); b.g = new2(3, 1);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "gate: g [3, 1] differ in D", tr_gate_f64(ctx, &b));
    b.g = tr_view_none();
    CHECK_FAILS(ctx, TR_ERR_ARG, "gate: g absent", tr_gate_f64(ctx, &b));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(activation_cases);
    TEST(softmax_cases);
    TEST(softmax_edges);
    TEST(tails);
    TEST(golden_numbers);
    TEST(registered);
    TEST(gate);
    TEST(threads);
    TEST(contract_bits);
    TEST(softmax_bits);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
