/* {rope}: frequencies and rotations against numbers of others. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_rope_cfg cfg_of(tr_rope_kind kind, double theta, int64_t dim)
{
    tr_rope_cfg c;
    memset(&c, 0, sizeof c);
    c.kind = kind;
    c.theta = theta;
    c.dim = dim;
    return c;
}

static tr_rope_layout layout(void)
{
    if (case_is("layout", "half")) return TR_ROPE_HALF;
    if (!case_is("layout", "interleaved")) CASE_UNKNOWN("layout");
    return TR_ROPE_INTERLEAVED;
}

static void rotate(tr_view x, tr_view pos, tr_view inv_freq, double mult, tr_rope_layout l)
{
    tr_rope_args a;
    a.x = x;
    a.pos = pos;
    a.inv_freq = inv_freq;
    a.mult = mult;
    a.layout = l;
    BOTH(rope, &a);
}

/* What the case's attributes say. yarn's factor of cos and sin: DeepSeek-type configs give both
 * mscales, others none; V4 forces it to 1. */
static tr_rope_cfg case_cfg(void)
{
    tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, case_num("theta"), case_int("dim"));
    c.factor = case_num_or("factor", 0);
    c.orig = case_num_or("orig", 0);
    if (case_named("linear")) c.kind = TR_ROPE_LINEAR;
    if (case_named("yarn")) {
        c.kind = TR_ROPE_YARN;
        c.beta_fast = case_num("beta_fast");
        c.beta_slow = case_num("beta_slow");
        c.truncate = (int)case_num("truncate");
        if (case_num("cos_sin_multiplier") == 1) c.mscale = c.mscale_all_dim = 1;
    }
    if (case_named("llama3")) {
        c.kind = TR_ROPE_LLAMA3;
        c.low_freq = case_num("low_freq");
        c.high_freq = case_num("high_freq");
    }
    return c;
}

static void frequencies_case(void)
{
    tr_rope_cfg c = case_cfg();
    tr_view x = case_f64("in.x"), inv_freq = new1(c.dim / 2);
    double mult, want = case_num("cos_sin_multiplier");
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &mult, &c));
    case_near(inv_freq, "out.inv_freq", 1e-14);
    for (int64_t i = 0; i < c.dim / 2; i++)     /* the slow ones too */
        test_near(f64(inv_freq) + i, f64(case_f64("out.inv_freq")) + i, 1, 1e-13, "inv_freq",
                  __FILE__, __LINE__);
    CHECK_NEAR(&mult, &want, 1, 1e-15);
    rotate(x, case_i64("in.pos"), inv_freq, mult, layout());
    case_near(x, "out.y", 1e-10);
}

/* A part of each head, as a view of it; -inv_freq turns back. */
static void partial_case(void)
{
    tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, case_num("theta"), case_int("dim"));
    tr_view x = case_f64("in.x"), inv_freq = new1(c.dim / 2);
    int64_t begin = case_is("end", "leading") ? 0 : x.shape[2] - c.dim;
    double mult;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &mult, &c));
    for (int64_t i = 0; case_num_or("inverse", 0) == 1 && i < c.dim / 2; i++)
        f64(inv_freq)[i] *= -1;
    rotate(tr_view_slice(x, 2, begin, c.dim), case_i64("in.pos"), inv_freq, mult, layout());
    case_near(x, "out.y", 1e-10);
}

/* Several axes: one rotation an axis, the pairs of the others standing still. */
static void mrope_case(void)
{
    tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, case_num("theta"), case_int("dim"));
    tr_view x = case_f64("in.x"), pos = case_i64("in.pos3"), axis = case_i64("out.axis_of_pair");
    double mult;
    for (int64_t a = 0; a < 3; a++) {
        tr_view inv_freq = new1(c.dim / 2);
        CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &mult, &c));
        for (int64_t i = 0; i < c.dim / 2; i++)
            if (i64(axis)[i] != a) f64(inv_freq)[i] = 0;
        rotate(x, tr_view_at(pos, a), inv_freq, 1, layout());
    }
    case_near(x, "out.y", 1e-10);
}

/* MoonViT: pairs 2i turn by the column, pairs 2i + 1 by the row, at 10000^(-4i/d). */
static void vit2d_case(void)
{
    int64_t W = case_int("grid_w"), N = W * case_int("grid_h"), d = case_int("head_dim");
    tr_view x = case_f64("in.x"), y = copy(x), pos = tr_view1(mem(N, 8), TR_I64, N);
    tr_view both = tr_view2(mem(2 * N, 8), TR_I64, N, 2), freqs = new1(d / 2);
    for (int64_t axis = 0; axis < 2; axis++) {
        tr_view inv_freq = new1(d / 2);
        for (int64_t i = axis; i < d / 2; i += 2)
            f64(freqs)[i] = f64(inv_freq)[i] =
                pow(case_num("theta"), -4.0 * (double)(i / 2) / (double)d);
        for (int64_t n = 0; n < N; n++)
            i64(both)[2 * n + axis] = i64(pos)[n] = axis ? n / W : n % W;
        rotate(x, pos, inv_freq, 1, TR_ROPE_INTERLEAVED);
    }
    case_near(x, "out.y", 1e-10);
    rotate(y, both, freqs, 1, TR_ROPE_INTERLEAVED);     /* both axes at once */
    case_near(y, "out.y", 1e-10);
}

/* DeepSeek-V3, Kimi-K2 at 32 and at 64: the softmax scale; gpt-oss: cos and sin. */
static void scales_case(void)
{
    static const double factor[3] = { 40, 32, 64 };
    tr_view y = new1(4);
    for (int i = 0; i < 3; i++) {
        tr_rope_cfg c = cfg_of(TR_ROPE_YARN, 10000, 64);
        c.factor = factor[i];
        c.mscale = c.mscale_all_dim = 1;
        f64(y)[i] = pow(192, -0.5) * tr_rope_softmax_mult(&c);
    }
    tr_rope_cfg c = cfg_of(TR_ROPE_YARN, 150000, 64);
    double inv_freq[32];
    c.factor = 32;
    c.orig = 4096;
    c.beta_fast = 32;
    c.beta_slow = 1;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, inv_freq, f64(y) + 3, &c));
    CHECK(tr_rope_softmax_mult(&c) == 1);
    case_near(y, "out.y", 1e-14);
}

static void rope_case(void)
{
    if (!strcmp(cases_name, "softmax_scales")) scales_case();
    else if (case_named("vit2d_")) vit2d_case();
    else if (case_named("mrope_")) mrope_case();
    else if (case_named("partial_") || case_named("inverse_")) partial_case();
    else if (case_named("default_") || case_named("linear_") || case_named("yarn_") ||
             case_named("llama3_")) frequencies_case();
    else CASE_UNKNOWN("kind");
}

static void rope_cases(void) { exact_cases("rope", rope_case); }

/* families.md 2.3, computed by others: single frequencies of released models. */
static void released_numbers(void)
{
    static const int at[5] = { 1, 12, 16, 20, 31 };
    static const struct { double theta, factor, orig, fast; int truncate; double inv[5]; } row[] = {
        { 1e4,   40, 4096,  32, 1, { 0.749894209, 0.0268793601, 0.0055, 7.90569415e-4,
                                     3.33380358e-6 } },
        { 5e4,   32, 4096,   1, 1, { 0.713111085, 0.0172936334, 0.00447213595, 3.61404677e-5,
                                     8.76441291e-7 } },
        { 5e4,   64, 4096,   1, 1, { 0.713111085, 0.0172936334, 0.00447213595, 1.80702339e-5,
                                     4.38220646e-7 } },
        { 1.6e5, 16, 65536, 32, 1, { 0.687656022, 0.0111803399, 0.002265625, 2.96977778e-4,
                                     5.68052904e-7 } },
        { 1.5e5, 32, 4096,  32, 0, { 0.689044306, 0.00679495949, 4.56483919e-4, 1.81883367e-5,
                                     3.02351143e-7 } },
    };
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        tr_rope_cfg c = cfg_of(TR_ROPE_YARN, row[r].theta, 64);
        double inv_freq[32], mult;
        c.factor = row[r].factor;
        c.orig = row[r].orig;
        c.beta_fast = row[r].fast;
        c.beta_slow = 1;
        c.truncate = row[r].truncate;
        CHECK_OK(ctx, tr_rope_freqs_f64(ctx, inv_freq, &mult, &c));
        for (int i = 0; i < 5; i++) CHECK_NEAR(inv_freq + at[i], row[r].inv + i, 1, 2e-9);
    }
}

/* linear, attention_factor, mscale: what no case has. */
static void other_numbers(void)
{
    tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, 1e4, 8);
    double plain[4], f[4], mult, want;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, plain, &mult, &c));
    CHECK(plain[0] == 1 && mult == 1);
    c.kind = TR_ROPE_LINEAR;
    c.factor = 4;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    for (int i = 0; i < 4; i++) CHECK(f[i] == plain[i] / 4);
    CHECK(mult == 1 && tr_rope_softmax_mult(&c) == 1);
    c.kind = TR_ROPE_YARN;
    c.orig = 64;
    c.beta_fast = 32;
    c.beta_slow = 1;
    c.attention_factor = 1.25;
    c.mscale = 2;
    c.mscale_all_dim = 0.5;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    CHECK(mult == 1.25);                                /* the explicit key comes first */
    c.attention_factor = 0;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    want = (0.2 * log(4) + 1) / (0.05 * log(4) + 1);
    CHECK_NEAR(&mult, &want, 1, 1e-15);
    mult = tr_rope_softmax_mult(&c);
    want = (0.05 * log(4) + 1) * (0.05 * log(4) + 1);
    CHECK_NEAR(&mult, &want, 1, 1e-15);
    c.mscale_all_dim = 0;                               /* one of them alone counts for nothing */
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    want = 0.1 * log(4) + 1;
    CHECK_NEAR(&mult, &want, 1, 1e-15);
    c.factor = 0.5;                                     /* g is 1 for factors up to 1 */
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    CHECK(mult == 1);
    c = cfg_of(TR_ROPE_LLAMA3, 4, 2);                   /* inv_freq 1, exactly 1 turn in 2 pi */
    c.factor = 8;
    c.orig = 2 * 3.14159265358979323846;
    c.low_freq = c.high_freq = 1;                       /* the middle is empty: no 0 / 0 */
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f, &mult, &c));
    CHECK(f[0] == 1);
}

/* Turning keeps lengths; turning back gives the start; scores depend on distance alone; at
 * position 2^20 + 1, too. */
static void rotations(void)
{
    tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, 1e4, 64);
    tr_view x = new3(2, 3, 64), start, inv_freq = new1(32), back = new1(32);
    tr_view pos = tr_view1(mem(2, 8), TR_I64, 2);
    double mult, dot, far;
    fill(x, 1, 1);
    start = copy(x);
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &mult, &c));
    for (int i = 0; i < 32; i++) f64(back)[i] = -f64(inv_freq)[i];
    for (int l = 0; l < 2; l++) {
        i64(pos)[0] = 1048577;
        i64(pos)[1] = 1048577 - 3;
        rotate(x, pos, inv_freq, mult, (tr_rope_layout)l);
        dot = tr_dot_f64(f64(x), f64(x) + 3 * 64, 64);
        for (int i = 0; i < 6; i++) {
            double a = tr_sumsq_f64(f64(x) + 64 * i, 64), b = tr_sumsq_f64(f64(start) + 64 * i, 64);
            CHECK_NEAR(&a, &b, 1, 1e-14);
        }
        rotate(x, pos, back, mult, (tr_rope_layout)l);
        CHECK_NEAR(f64(x), f64(start), 2 * 3 * 64, 1e-14);
        i64(pos)[0] = 3;
        i64(pos)[1] = 0;
        rotate(x, pos, inv_freq, mult, (tr_rope_layout)l);
        far = tr_dot_f64(f64(x), f64(x) + 3 * 64, 64);
        CHECK_NEAR(&far, &dot, 1, 1e-8);
        memcpy(x.data, start.data, 2 * 3 * 64 * 8);
    }
    mem_free();
}

static void threads(void)
{
    tr_view start = new3(300, 2, 64), inv_freq = new1(32), first = tr_view_none();
    tr_view pos = tr_view1(mem(300, 8), TR_I64, 300);
    fill(start, 1, 1);
    fill(inv_freq, 2, 1);
    for (int i = 0; i < 300; i++) i64(pos)[i] = 7 * i;
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_rope_args a;
        a.x = copy(start);
        a.pos = pos;
        a.inv_freq = inv_freq;
        a.mult = 1.25;
        a.layout = TR_ROPE_HALF;
        CHECK_OK(c, tr_rope_f64(c, &a));
        if (i) bits_equal(a.x, first, "threads");
        else first = a.x;
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit: both layouts, a factor, far positions, turning back. */
static void contract_bits(void)
{
    for (int k = 0; k < 6; k++) {
        int64_t d = k % 3 == 0 ? 2 : k % 3 == 1 ? 34 : 128;
        tr_view x = hard((uint64_t)k, 3, 3, 130, 3, d), inv_freq = new1(d / 2);
        tr_view pos = tr_view1(mem(130, 8), TR_I64, 130);
        tr_rope_cfg c = cfg_of(TR_ROPE_DEFAULT, k % 2 ? 5e4 : 1e6, d);
        tr_rope_args a;
        double mult;
        CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &mult, &c));
        for (int64_t i = 0; k == 4 && i < d / 2; i++) f64(inv_freq)[i] *= -1;
        for (int64_t i = 0; i < 130; i++) i64(pos)[i] = i < 100 ? i : ((int64_t)1 << (i - 100)) - i;
        a.x = x;
        a.pos = pos;
        a.inv_freq = inv_freq;
        a.mult = k > 2 ? 1.2079441541679836 : 1;
        a.layout = k % 2 ? TR_ROPE_HALF : TR_ROPE_INTERLEAVED;
        BITS(rope, &a);
        mem_free();
    }
}

static void bad_arguments(void)
{
    tr_rope_cfg good = cfg_of(TR_ROPE_YARN, 1e4, 64), c;
    tr_rope_args a, ok;
    double f[32], mult;
    good.factor = 4;
    good.orig = 4096;
    good.beta_fast = 32;
    good.beta_slow = 1;
    good.low_freq = 1;
    good.high_freq = 4;
#define REFUSED(field, value, status, words)                                    \
    c = good; c.field = value;                                                  \
    CHECK_FAILS(ctx, status, words, tr_rope_freqs_f64(ctx, f, &mult, &c))
    REFUSED(dim, 63, TR_ERR_RANGE, "rope: dim 63");
    REFUSED(dim, 0, TR_ERR_RANGE, "rope: dim 0");
    REFUSED(theta, 1, TR_ERR_RANGE, "rope: theta 1");
    REFUSED(theta, (double)NAN, TR_ERR_RANGE, "rope: theta nan");
    REFUSED(theta, (double)INFINITY, TR_ERR_RANGE, "rope: theta inf");
    REFUSED(factor, 0, TR_ERR_RANGE, "rope: factor 0");
    REFUSED(orig, 0, TR_ERR_RANGE, "rope: orig 0");
    REFUSED(beta_fast, 0, TR_ERR_RANGE, "rope: beta_fast 0");
    REFUSED(beta_slow, -1, TR_ERR_RANGE, "rope: beta_slow -1");
    REFUSED(beta_slow, 33, TR_ERR_RANGE, "rope: beta_fast 32 beta_slow 33");
    REFUSED(attention_factor, (double)NAN, TR_ERR_ARG, "rope: attention_factor nan");
    REFUSED(kind, (tr_rope_kind)9, TR_ERR_UNSUPPORTED, "rope: kind 9");
    good.kind = TR_ROPE_LLAMA3;
    REFUSED(low_freq, 0, TR_ERR_RANGE, "rope: low_freq 0");
    REFUSED(low_freq, 5, TR_ERR_RANGE, "rope: high_freq 4 low_freq 5");
    REFUSED(high_freq, 0, TR_ERR_RANGE, "rope: high_freq 0");
    REFUSED(orig, -1, TR_ERR_RANGE, "rope: orig -1");
    good.kind = TR_ROPE_LINEAR;
    REFUSED(factor, -2, TR_ERR_RANGE, "rope: factor -2");
    good.kind = TR_ROPE_DEFAULT;
    REFUSED(theta, 0, TR_ERR_RANGE, "rope: theta 0");

    ok.x = new3(5, 2, 16);
    ok.pos = tr_view1(mem(5, 8), TR_I64, 5);
    ok.inv_freq = new1(8);
    ok.mult = 1;
    ok.layout = TR_ROPE_HALF;
    CHECK_OK(ctx, tr_rope_f64(ctx, &ok));
    a = ok; a.inv_freq = new1(7);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "rope: 16 7 frequencies", tr_rope_f64(ctx, &a));
    a = ok; a.pos.shape[0] = 4;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "rope: x [5, 2, 16] pos [4] differ in N", tr_rope_f64(ctx, &a));
    a = ok; a.pos = new1(5);
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "rope: pos F64 [5] I64", tr_rope_f64(ctx, &a));
    a = ok; a.mult = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "rope: mult 0", tr_rope_f64(ctx, &a));
    a = ok; a.layout = (tr_rope_layout)2;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "rope: layout 2", tr_rope_f64(ctx, &a));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(rope_cases);
    TEST(released_numbers);
    TEST(other_numbers);
    TEST(rotations);
    TEST(threads);
    TEST(contract_bits);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
