/* {attn}: grouped attention with window, chunk, softcap and sinks against numbers of others; whole
 * gated blocks; pieces of a prompt. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_attn_args args(tr_view q, tr_view k, tr_view v, double scale)
{
    tr_attn_args a;
    memset(&a, 0, sizeof a);
    a.y = new3(q.shape[0], q.shape[1], v.shape[2]);
    a.q = q;
    a.k = k;
    a.v = v;
    a.scale = scale;
    return a;
}

/* Shares sum to 1 without a sink, to less with one; the values' mean by them is y. */
static void check_probs(const tr_attn_args *a)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], S = a->k.shape[0], G = a->k.shape[1];
    tr_view y = new_like(a->y);
    for (int64_t h = 0; h < H; h++)
        for (int64_t t = 0; t < T; t++) {
            const double *p = f64(a->probs) + (h * T + t) * S;
            double sum = 0, one = 1;
            for (int64_t s = 0; s < S; s++) {
                sum += p[s];
                for (int64_t d = 0; d < a->v.shape[2]; d++)
                    f64(y)[(t * H + h) * a->v.shape[2] + d] +=
                        p[s] * f64(a->v)[(s * G + h / (H / G)) * a->v.shape[2] + d];
            }
            if (tr_view_is_none(a->sink)) CHECK_NEAR(&sum, &one, 1, 1e-13);
            else CHECK(sum < 1 && sum >= 0);
        }
    CHECK_NEAR(f64(y), f64(a->y), tr_view_numel(y), 1e-13);
}

static void attn_case(void)
{
    if (!strcmp(cases_name, "q_temperature") || !strcmp(cases_name, "q_log_scaling"))
        CASE_SKIP("scales that depend on the position are not offered");
    if (case_has("in.bias")) CASE_SKIP("a relative bias is not offered");
    if (case_num("causal") != 1) CASE_SKIP("attention to later tokens is not offered");

    tr_attn_args a = args(case_f64("in.q"), case_f64("in.k"), case_f64("in.v"), case_num("scale"));
    a.pos = case_int("q_start");
    a.window = case_int("window");
    a.chunk = case_int("chunk");
    a.softcap = case_num("softcap");
    a.sink = case_f64_or_none("w.sinks");
    if (case_has("in.segment")) {                   /* sequences in one row: each on its own */
        tr_view segment = case_i64("in.segment");
        for (int64_t t = 0, n; t < segment.shape[0]; t += n) {
            tr_attn_args b = a;
            for (n = 1; t + n < segment.shape[0] && i64(segment)[t + n] == i64(segment)[t]; n++) { }
            b.y = tr_view_slice(a.y, 0, t, n);
            b.q = tr_view_slice(a.q, 0, t, n);
            b.k = tr_view_slice(a.k, 0, t, n);
            b.v = tr_view_slice(a.v, 0, t, n);
            BOTH(attn, &b);
        }
    } else {
        a.probs = new3(a.q.shape[1], a.q.shape[0], a.k.shape[0]);
        fill(a.probs, 1, 1);                        /* masked entries must be written, too */
        BOTH(attn, &a);
        check_probs(&a);
    }
    case_near(a.y, "out.y", 1e-10);
}

/* x -> q (per head: query, then gate), k, v -> norm a head -> rope -> attention -> gate -> o. */
static void block_case(void)
{
    int64_t d = case_int("head_dim"), H = case_int("nh"), G = case_int("nkv");
    int64_t r = case_int("rotary");
    int gated = case_num("gate") == 1;
    tr_view x = case_f64("in.x"), q = matmul(x, case_f64("w.q_proj")), gate = tr_view_none();
    tr_view k = tr_view_split(matmul(x, case_f64("w.k_proj")), 1, d);
    tr_view v = tr_view_split(matmul(x, case_f64("w.v_proj")), 1, d);
    tr_view pos = tr_view1(mem(x.shape[0], 8), TR_I64, x.shape[0]), inv_freq = new1(r / 2);
    tr_rope_cfg c;
    tr_rope_args rope;
    q = tr_view_split(q, 1, gated ? 2 * d : d);
    if (gated) gate = tr_view_slice(q, 2, d, d);
    q = tr_view_slice(q, 2, 0, d);
    CHECK(q.shape[1] == H && k.shape[1] == G);

    memset(&c, 0, sizeof c);
    c.theta = case_num("theta");
    c.dim = r;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &rope.mult, &c));
    for (int64_t t = 0; t < x.shape[0]; t++) i64(pos)[t] = t;
    for (int i = 0; i < 2; i++) {
        tr_norm_args n;
        memset(&n, 0, sizeof n);
        n.x = n.y = i ? k : q;
        n.w = case_f64(i ? "w.k_norm" : "w.q_norm");
        n.form = case_is("norm", "1+w") ? TR_NORM_ONE_PLUS_W : TR_NORM_W;
        n.eps = case_num("eps");
        n.scale = 1;
        n.groups = 1;
        BOTH(norm, &n);
        rope.x = tr_view_slice(n.y, 2, 0, r);
        rope.pos = pos;
        rope.inv_freq = inv_freq;
        rope.layout = TR_ROPE_HALF;
        BOTH(rope, &rope);
    }
    tr_attn_args a = args(q, k, v, 1 / sqrt((double)d));
    BOTH(attn, &a);
    if (gated) {
        tr_gate_args g;
        g.y = g.x = a.y;
        g.g = gate;
        BOTH(gate, &g);
    }
    case_near(a.y, "out.attn", 1e-10);              /* stored after the gate */
    case_near(matmul(tr_view_join(tr_view3(a.y.data, TR_F64, 1, x.shape[0], H * d)),
                     case_f64("w.o_proj")), "out.y", 1e-10);
}

static void attention_cases(void) { exact_cases("attention", attn_case); }
static void gqa_block_cases(void) { exact_cases("gqa_block", block_case); }

/* What a query sees does not depend on how the prompt was cut: same bits, whatever is on. */
static void pieces(void)
{
    static const int64_t cut[5] = { 0, 1, 2, 30, 53 };
    tr_view q = new3(53, 6, 12), k = new3(53, 2, 12), v = new3(53, 2, 10), sink = new1(6);
    fill(q, 1, 2);
    fill(k, 2, 2);
    fill(v, 3, 1);
    fill(sink, 4, 3);
    for (int mode = 0; mode < 5; mode++) {
        tr_attn_args a = args(q, k, v, 0.3), b;
        if (mode == 1) a.window = 9;
        if (mode == 2) a.chunk = 8;
        if (mode == 3) a.softcap = 4;
        if (mode == 4) a.sink = sink;
        CHECK_OK(ctx, tr_attn_f64(ctx, &a));
        b = a;
        b.y = new_like(a.y);
        for (int i = 0; i < 4; i++) {
            tr_attn_args p = b;
            p.pos = cut[i];
            p.q = tr_view_slice(q, 0, cut[i], cut[i + 1] - cut[i]);
            p.y = tr_view_slice(b.y, 0, cut[i], cut[i + 1] - cut[i]);
            p.k = tr_view_slice(k, 0, 0, cut[i + 1]);
            p.v = tr_view_slice(v, 0, 0, cut[i + 1]);
            CHECK_OK(ctx, tr_attn_f64(ctx, &p));
        }
        bits_equal(b.y, a.y, "pieces");
    }
    mem_free();
}

/* Keys beyond the queries, or outside the window, are not touched: NaN there changes nothing.
 * Views with gaps give the bits of those without. */
static void untouched(void)
{
    tr_view kv = new3(20, 2, 16), k = tr_view_slice(kv, 2, 0, 8), v = tr_view_slice(kv, 2, 8, 8);
    tr_view q = new3(4, 2, 8), k1, v1;
    fill(kv, 1, 1);
    fill(q, 2, 1);
    k1 = copy(k);
    v1 = copy(v);
    tr_attn_args a = args(q, k, v, 0.5), b = args(q, k1, v1, 0.5);
    a.pos = b.pos = 9;
    a.window = b.window = 3;
    for (int64_t s = 0; s < 20; s++)
        for (int64_t d = 0; d < 32; d++)
            if (s < 7 || s > 12) f64(kv)[s * 32 + d] = (double)NAN;
    CHECK_OK(ctx, tr_attn_f64(ctx, &a));
    CHECK_OK(ctx, tr_attn_f64(ctx, &b));
    bits_equal(a.y, b.y, "untouched");
    mem_free();
}

/* Scores far from 0, of either sign: the maximum starts from a score, not from a small number. */
static void large_scores(void)
{
    double q[1] = { 1 }, k[3] = { -5000, -5001, -5002 }, v[3] = { 1, 2, 4 }, y, want, sink = -5000;
    tr_attn_args a;
    memset(&a, 0, sizeof a);
    a.y = tr_view3(&y, TR_F64, 1, 1, 1);
    a.q = tr_view3(q, TR_F64, 1, 1, 1);
    a.k = tr_view3(k, TR_F64, 3, 1, 1);
    a.v = tr_view3(v, TR_F64, 3, 1, 1);
    a.pos = 2;
    a.scale = 1;
    CHECK_OK(ctx, tr_attn_f64(ctx, &a));
    want = (1 + 2 * exp(-1) + 4 * exp(-2)) / (1 + exp(-1) + exp(-2));
    CHECK_NEAR(&y, &want, 1, 1e-15);
    a.sink = tr_view1(&sink, TR_F64, 1);
    CHECK_OK(ctx, tr_attn_f64(ctx, &a));
    want = (1 + 2 * exp(-1) + 4 * exp(-2)) / (2 + exp(-1) + exp(-2));
    CHECK_NEAR(&y, &want, 1, 1e-15);
    sink = 5000;                                    /* the sink takes all */
    CHECK_OK(ctx, tr_attn_f64(ctx, &a));
    CHECK(y == 0);
}

static void threads(void)
{
    tr_view q = new3(40, 6, 32), k = new3(40, 3, 32), v = new3(40, 3, 16), first = tr_view_none();
    fill(q, 1, 2);
    fill(k, 2, 2);
    fill(v, 3, 1);
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_attn_args a = args(q, k, v, 0.2);
        CHECK_OK(c, tr_attn_f64(c, &a));
        if (i) bits_equal(a.y, first, "threads");
        else first = a.y;
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit. Shapes: key dimensions and values off 16 and 64, more than 8 heads a
 * group, from one key to several blocks of 128, and everything that masks, in and across blocks.
 * Keys that no query sees are NaN. */
static void contract_bits(void)
{
    static const struct {
        int64_t T, H, G, Dk, Dv, S, pos, window, chunk;
        double cap;
        int sink;
    } c[] = {
        { 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0 }, { 1, 1, 1, 16, 64, 1, 0, 0, 0, 0, 1 },
        { 3, 9, 1, 17, 65, 20, 17, 0, 0, 0, 0 }, { 2, 20, 1, 8, 70, 300, 255, 0, 0, 0, 1 },
        { 2, 17, 1, 33, 129, 140, 126, 0, 0, 0, 0 }, { 4, 4, 2, 24, 20, 520, 509, 0, 0, 30, 0 },
        { 5, 6, 3, 16, 16, 400, 380, 100, 0, 0, 0 }, { 5, 6, 3, 16, 16, 400, 253, 128, 0, 0, 1 },
        { 5, 2, 2, 16, 12, 400, 126, 1, 0, 0, 0 }, { 9, 2, 1, 16, 12, 400, 120, 3, 0, 5, 1 },
        { 6, 2, 1, 16, 12, 400, 297, 0, 100, 0, 0 }, { 6, 2, 1, 16, 12, 400, 253, 0, 64, 0, 1 },
        { 6, 2, 1, 16, 12, 400, 300, 150, 200, 9, 1 }, { 40, 4, 2, 32, 32, 40, 0, 0, 0, 0, 0 },
        { 3, 3, 1, 16, 128, 260, 127, 129, 0, 0, 0 }, { 1, 12, 1, 40, 64, 385, 384, 257, 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        tr_view k = hard(2, 1, 3, c[i].S, c[i].G, c[i].Dk);
        tr_attn_args a = args(hard(1, 1, 3, c[i].T, c[i].H, c[i].Dk), k,
                              hard(3, 1, 3, c[i].S, c[i].G, c[i].Dv), i % 3 ? 0.3 : 3);
        a.pos = c[i].pos;
        a.window = c[i].window;
        a.chunk = c[i].chunk;
        a.softcap = c[i].cap;
        if (c[i].sink) a.sink = hard(4, 2, 1, c[i].H, 0, 0);
        for (int64_t n = 0; n < c[i].S * c[i].G; n++) {
            int64_t s = n / c[i].G, first = a.window ? a.pos - a.window + 1 : 0;
            if (a.chunk && a.pos / a.chunk * a.chunk > first) first = a.pos / a.chunk * a.chunk;
            if (s < first || s >= a.pos + c[i].T) {
                ref_row(a.k, n)[0] = (float)NAN;
                ref_row(a.v, n)[0] = (float)NAN;
            }
        }
        BITS(attn, &a);
        mem_free();
    }
}

/* Keys far apart in size; a block whose maximum is below, at or above the one before. */
static void folds(void)
{
    for (int mode = 0; mode < 4; mode++) {
        tr_view q = hard(1, 1, 3, 2, 3, 16), k = hard(2, 1, 3, 386, 1, 16);
        tr_attn_args a = args(q, k, hard(3, 1, 3, 386, 1, 10), 1);
        for (int64_t s = 0; s < 386; s++) {
            static const float step[4][4] = {
                { 1, 2, 3, 4 }, { 4, 3, 2, 1 }, { 2, 2, 2, 2 }, { 1, 400, -400, 1 }
            };
            for (int d = 0; d < 16; d++)
                ref_row(k, s)[d] = mode == 2 && s % 128 ? ref_row(k, s % 128)[d]
                                                        : ref_row(k, s)[d] * step[mode][s / 128];
        }
        a.pos = 384;
        if (mode == 3) a.sink = hard(4, 900, 1, 3, 0, 0);
        BITS(attn, &a);
        mem_free();
    }
}

/* A query alone, with no key behind its own, and among others with all keys there: the same bits;
 * so the blocks belong to positions. */
static void contract_pieces(void)
{
    tr_view q = hard(1, 1, 3, 300, 6, 24), k = hard(2, 1, 3, 300, 2, 24);
    tr_view v = hard(3, 1, 3, 300, 2, 72), sink = hard(4, 3, 1, 6, 0, 0);
    for (int mode = 0; mode < 5; mode++) {
        tr_attn_args a = args(q, k, v, 0.3);
        a.y = tr_view3(mem(300 * 6 * 72, 4), TR_F32, 300, 6, 72);
        if (mode == 1) a.window = 90;
        if (mode == 2) a.chunk = 70;
        if (mode == 3) a.softcap = 4;
        if (mode == 4) a.sink = sink;
        CHECK_OK(ctx, tr_attn(ctx, &a));
        for (int64_t t = 0, n; t < 300; t += n) {
            tr_attn_args p = a;
            n = t % 11 == 0 ? 1 : 3 + t % 60;
            if (n > 300 - t) n = 300 - t;
            p.pos = t;
            p.q = tr_view_slice(q, 0, t, n);
            p.k = tr_view_slice(k, 0, 0, t + n);
            p.v = tr_view_slice(v, 0, 0, t + n);
            p.y = tr_view3(mem(n * 6 * 72, 4), TR_F32, n, 6, 72);
            CHECK_OK(ctx, tr_attn(ctx, &p));
            bits_equal(p.y, tr_view_slice(a.y, 0, t, n), "pieces of the contract");
        }
    }
    mem_free();
}

static void bad_arguments(void)
{
    tr_attn_args good = args(new3(3, 6, 24), new3(7, 2, 24), new3(7, 2, 20), 0.2), a;
    good.pos = 4;
    good.sink = new1(6);
    good.probs = new3(6, 3, 7);
    CHECK_OK(ctx, tr_attn_f64(ctx, &good));
    a = good; a.k = new3(7, 2, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: q [3, 6, 24] k [7, 2, 20] differ in Dk",
                tr_attn_f64(ctx, &a));
    a = good; a.v = new3(6, 2, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: k [7, 2, 24] v [6, 2, 20] differ in S",
                tr_attn_f64(ctx, &a));
    a = good; a.v = new3(7, 1, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: k v [7, 1, 20] differ in G", tr_attn_f64(ctx, &a));
    a = good; a.y = new3(3, 6, 24);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: y [3, 6, 24] v differ in Dv", tr_attn_f64(ctx, &a));
    a = good; a.y = new3(2, 6, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: y [2, 6, 20] q differ in T", tr_attn_f64(ctx, &a));
    a = good; a.y = new3(3, 5, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: y [3, 5, 20] q differ in H", tr_attn_f64(ctx, &a));
    a = good; a.k = new3(7, 4, 24); a.v = new3(7, 4, 20);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: 6 query heads 4 key heads", tr_attn_f64(ctx, &a));
    a = good; a.sink = new1(5);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: sink [5] differ in H", tr_attn_f64(ctx, &a));
    a = good; a.probs = new3(6, 3, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "attn: probs [6, 3, 8] differ in S", tr_attn_f64(ctx, &a));
    a = good; a.scale = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "attn: scale 0", tr_attn_f64(ctx, &a));
    a = good; a.scale = (double)NAN;
    CHECK_FAILS(ctx, TR_ERR_ARG, "attn: scale nan", tr_attn_f64(ctx, &a));
    a = good; a.pos = 5;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "attn: 3 queries position 5 7 positions", tr_attn_f64(ctx, &a));
    a = good; a.pos = -1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "attn: position -1", tr_attn_f64(ctx, &a));
    a = good; a.window = -1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "attn: window -1", tr_attn_f64(ctx, &a));
    a = good; a.chunk = -4;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "attn: chunk -4", tr_attn_f64(ctx, &a));
    a = good; a.softcap = -2;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "attn: softcap -2", tr_attn_f64(ctx, &a));
    a = good; a.q = new3(0, 6, 24); a.y = new3(0, 6, 20); a.probs = tr_view_none();
    CHECK_OK(ctx, tr_attn_f64(ctx, &a));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(attention_cases);
    TEST(gqa_block_cases);
    TEST(pieces);
    TEST(untouched);
    TEST(large_scores);
    TEST(threads);
    TEST(contract_bits);
    TEST(folds);
    TEST(contract_pieces);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
