/* {moe}: routes and whole blocks of experts against numbers of others; the router's edges. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_route_args route(tr_view logits, tr_view bias, int64_t K)
{
    tr_route_args a;
    memset(&a, 0, sizeof a);
    a.ids = new_i32(2, logits.shape[0], K);
    a.weights = new2(logits.shape[0], K);
    a.scores = new_like(logits);
    a.logits = logits;
    a.bias = bias;
    a.groups = a.keep = 1;
    a.renorm = 1;
    a.renorm_eps = 1e-20;
    a.scale = 1;
    return a;
}

/* Ids equal; weights are stored in the order of idx, which is by rank. */
static void check_route(const tr_route_args *a)
{
    tr_view idx = case_i64("out.idx"), weight = case_f64("out.weight"), want = new_like(weight);
    int64_t N = idx.shape[0], K = idx.shape[1];
    for (int64_t n = 0; n < N; n++) {
        const int32_t *ids = i32(a->ids) + n * K;
        for (int64_t j = 0; j < K; j++) {
            int64_t at = -1;
            CHECK(j == 0 || ids[j] > ids[j - 1]);
            for (int64_t i = 0; i < K; i++)
                if (i64(idx)[n * K + i] == ids[j]) at = i;
            CHECK(at >= 0);
            if (at >= 0) f64(want)[n * K + j] = f64(weight)[n * K + at];
        }
        if (case_has("out.idx_sorted"))
            for (int64_t j = 0; j < K; j++)
                CHECK(i64(case_i64("out.idx_sorted"))[n * K + j] == ids[j]);
    }
    test_near(f64(a->weights), f64(want), N * K, 1e-10, cases_name, __FILE__, __LINE__);
}

static void route_case(void)
{
    const char *score = case_str_or("score", "");
    if (!strcmp(cases_name, "v4_hash")) CASE_SKIP("routes by token id are not offered");
    if (!strcmp(score, "sqrtsoftplus")) CASE_SKIP("a score by sqrt(softplus) is not offered");
    if (case_named("inkling_")) CASE_SKIP("weights of shared experts are not offered");
    if (case_num_or("softmax_after", 0) == 1) CASE_SKIP("a later softmax is not offered");
    if (strcmp(score, "sigmoid") && strcmp(score, "softmax")) CASE_UNKNOWN("score");
    if (strcmp(case_str_or("fill", "-inf"), "-inf")) CASE_SKIP("left-out groups are left out");
    tr_view logits = case_has("in.x") ? matmul(case_f64("in.x"), case_f64("w.weight"))
                                      : case_f64("in.logits");
    tr_route_args a = route(logits, case_f64_or_none("w.bias"), case_int("k"));
    a.score = !strcmp(score, "sigmoid") ? TR_SCORE_SIGMOID : TR_SCORE_SOFTMAX;
    a.groups = (int64_t)case_num_or("groups", 1);
    a.keep = (int64_t)case_num_or("keep", 1);
    a.renorm = (int)case_num("renorm");
    a.renorm_eps = case_num("eps");
    a.scale = case_num("scale");
    BOTH(route, &a);
    check_route(&a);
    if (case_has("out.logits")) case_near(logits, "out.logits", 1e-10);
}

/* Experts w1, w2, w3 [E, ..] of the case (or any three views) over rows x by ids. */
typedef struct experts { tr_weight *gate, *up, *down; int64_t E, F, O; } experts;

static experts experts_of(tr_view w1, tr_view w3, tr_view w2)
{
    experts m;
    m.E = w1.shape[0];
    m.F = w1.shape[1];
    m.O = w2.shape[1];
    m.gate = (tr_weight *)mem(m.E, sizeof *m.gate);
    m.up = (tr_weight *)mem(m.E, sizeof *m.up);
    m.down = (tr_weight *)mem(m.E, sizeof *m.down);
    for (int64_t e = 0; e < m.E; e++) {
        m.gate[e] = weight_of(tr_view_at(w1, e));
        m.up[e] = weight_of(tr_view_at(w3, e));
        m.down[e] = weight_of(tr_view_at(w2, e));
    }
    return m;
}

static tr_experts_args dispatched(tr_ctx *c, tr_view x, tr_view ids, const experts *m,
                                  const char *act)
{
    int64_t N = ids.shape[0], K = ids.shape[1];
    tr_dispatch_args d;
    tr_experts_args a;
    d.order = new_i32(1, N * K, 0);
    d.offset = new_i32(1, m->E + 1, 0);
    d.ids = ids;
    d.experts = m->E;
    CHECK_OK(c, tr_dispatch(c, &d));
    memset(&a, 0, sizeof a);
    a.y = new3(N, K, m->O);
    a.x = x;
    a.order = d.order;
    a.offset = d.offset;
    a.gate = m->gate;
    a.up = m->up;
    a.down = m->down;
    a.g = new2(N * K, m->F);
    a.u = new2(N * K, m->F);
    fill(a.y, 90, 1);                                   /* whatever was there before */
    fill(a.g, 91, 1);
    a.act = tr_act_find(c, act);
    a.p[0] = 4;
    a.p[1] = 25;
    return a;
}

static tr_view combine(tr_ctx *c, tr_view x, tr_view weights)
{
    tr_combine_args a;
    a.y = new2(x.shape[0], x.shape[2]);
    a.x = x;
    a.weights = weights;
    if (c == ctx) BOTH(combine, &a);
    else CHECK_OK(c, tr_combine_f64(c, &a));
    return a.y;
}

static tr_view dense(tr_view x, tr_view w1, tr_view w3, tr_view w2, const char *act)
{
    tr_glu_args a;
    memset(&a, 0, sizeof a);
    a.g = matmul(x, w1);
    a.u = matmul(x, w3);
    a.y = a.g;
    a.act = tr_act_find(ctx, act);
    a.p[0] = 4;
    a.p[1] = 25;
    BOTH(glu, &a);
    return matmul(a.y, w2);
}

static void moe_case(void)
{
    int latent = case_has("w.routed_expert_down_proj");
    const char *act = case_is("act", "situ") ? "situ" : "silu";
    if (case_has("w.shared_gate")) CASE_SKIP("a gate on the shared expert is not offered");
    if (case_named("llama4")) CASE_SKIP("weights on the experts' input are not offered");
    if (case_is("act", "oai")) CASE_SKIP("gpt-oss's SwiGLU and biases are not offered");
    tr_view x = case_f64("in.x"), z = x, y;
    tr_route_args r = route(matmul(x, case_f64("w.gate")), case_f64("w.bias"), case_int("k"));
    experts m = experts_of(case_f64("w.w1"), case_f64("w.w3"), case_f64("w.w2"));
    tr_experts_args a;
    tr_add_args add;
    r.scale = case_num_or("scale", 1);
    BOTH(route, &r);
    check_route(&r);
    if (latent) z = matmul(x, case_f64("w.routed_expert_down_proj"));
    a = dispatched(ctx, z, r.ids, &m, act);
    BOTH(experts, &a);
    y = combine(ctx, a.y, r.weights);
    if (latent) {
        tr_norm_args n;
        memset(&n, 0, sizeof n);
        case_near(y, "out.latent", 1e-10);
        n.x = n.y = y;
        n.w = case_f64("w.routed_expert_norm");
        n.eps = case_num("eps");
        n.scale = 1;
        n.groups = 1;
        BOTH(norm, &n);
        y = matmul(y, case_f64("w.routed_expert_up_proj"));
    }
    add.y = add.a = y;
    add.b = dense(x, case_f64("w.shared_w1"), case_f64("w.shared_w3"), case_f64("w.shared_w2"),
                  act);
    BOTH(add, &add);
    case_near(y, "out.y", 1e-10);
}

static void router_cases(void) { exact_cases("router", route_case); }
static void moe_cases(void)    { exact_cases("moe", moe_case); }

/* A11: all biases -inf but one: distinct experts, lowest index first; also inside kept groups. */
static void bias_of_minus_infinity(void)
{
    tr_view logits = new2(1, 12), bias = new1(12);
    tr_route_args a;
    for (int e = 0; e < 12; e++) f64(bias)[e] = -(double)INFINITY;
    f64(bias)[7] = 0.5;
    fill(logits, 1, 1);
    a = route(logits, bias, 3);
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    CHECK(i32(a.ids)[0] == 0 && i32(a.ids)[1] == 1 && i32(a.ids)[2] == 7);
    a.groups = 4;                                       /* all sums of two are -inf: group 0 */
    a.keep = 1;
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    CHECK(i32(a.ids)[0] == 0 && i32(a.ids)[1] == 1 && i32(a.ids)[2] == 2);
    f64(bias)[8] = 0.25;                                /* with a second, group 2 comes first */
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    CHECK(i32(a.ids)[0] == 6 && i32(a.ids)[1] == 7 && i32(a.ids)[2] == 8);
    mem_free();
}

/* A01: all biased scores negative; no expert outside the kept groups. */
static void groups_and_negative_scores(void)
{
    tr_view logits = new2(50, 16), bias = new1(16);
    tr_route_args a;
    fill(logits, 1, 2);
    for (int e = 0; e < 16; e++) f64(bias)[e] = -1.5 - 0.01 * e;
    a = route(logits, bias, 6);
    a.groups = 4;
    a.keep = 2;
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    for (int n = 0; n < 50; n++) {
        double value[4];
        int group[4] = { 0, 0, 0, 0 };
        for (int g = 0; g < 4; g++) {                   /* the sum of the two best */
            double b = -10, s = -10;
            for (int i = 0; i < 4; i++) {
                double c = f64(a.scores)[n * 16 + 4 * g + i] + f64(bias)[4 * g + i];
                if (c > b) { s = b; b = c; } else if (c > s) s = c;
            }
            value[g] = b + s;
        }
        for (int j = 0; j < 6; j++) group[i32(a.ids)[n * 6 + j] / 4] = 1;
        for (int g = 0; g < 4; g++)
            for (int o = 0; o < 4; o++)
                if (group[g] && !group[o]) CHECK(value[g] >= value[o]);
        CHECK(group[0] + group[1] + group[2] + group[3] == 2);
    }
    mem_free();
}

static void not_a_number(void)
{
    tr_view logits = new2(3, 8), bias = new1(8);
    tr_route_args a;
    fill(logits, 1, 1);
    a = route(logits, bias, 2);
    f64(logits)[2 * 8 + 5] = (double)NAN;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: row 2, expert 5", tr_route_f64(ctx, &a));
    for (int e = 0; e < 8; e++) f64(logits)[8 + e] = (double)NAN;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: row 1, expert 0", tr_route_f64(ctx, &a));
    fill(logits, 1, 1);
    f64(logits)[4] = (double)INFINITY;                  /* a sigmoid of 1, but a softmax of NaN */
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    a.score = TR_SCORE_SOFTMAX;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: row 0, expert score", tr_route_f64(ctx, &a));
    fill(logits, 1, 1);
    f64(bias)[3] = (double)NAN;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: bias expert 3 nan", tr_route_f64(ctx, &a));
    f64(bias)[3] = (double)INFINITY;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: bias expert 3 inf", tr_route_f64(ctx, &a));
    mem_free();
}

/* Scores that are all 0 give weights 0; tiny ones show where eps is added; scale comes last. */
static void renormalisation(void)
{
    double logits[4] = { -800, -900, -1000, -1100 }, sum, want[2];
    tr_route_args a = route(tr_view2(logits, TR_F64, 1, 4), tr_view_none(), 2);
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    CHECK(i32(a.ids)[0] == 0 && i32(a.ids)[1] == 1);
    CHECK(f64(a.weights)[0] == 0 && f64(a.weights)[1] == 0);
    a.renorm_eps = 0;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "route: row 0 scores 0 renorm_eps", tr_route_f64(ctx, &a));
    a.renorm_eps = 1e-20;
    logits[0] = -46;                                    /* sigmoid: 1e-20, as large as eps */
    logits[1] = -46.5;
    a.scale = 2.5;
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    sum = exp(-46) + exp(-46.5) + 1e-20;
    want[0] = 2.5 * exp(-46) / sum;
    want[1] = 2.5 * exp(-46.5) / sum;
    CHECK_NEAR(f64(a.weights), want, 2, 1e-14);
    a.renorm = 0;
    CHECK_OK(ctx, tr_route_f64(ctx, &a));
    want[0] = 2.5 * exp(-46);
    want[1] = 2.5 * exp(-46.5);
    CHECK_NEAR(f64(a.weights), want, 2, 1e-14);
    mem_free();
}

/* A10: every index of 896 can win. */
static void reachable(void)
{
    static const int win[5] = { 0, 255, 256, 511, 895 };
    tr_view logits = new2(1, 896);
    tr_route_args a = route(logits, tr_view_none(), 1);
    for (int i = 0; i < 5; i++) {
        for (int e = 0; e < 896; e++) f64(logits)[e] = e == win[i] ? 3 : -1 - 1e-3 * e;
        CHECK_OK(ctx, tr_route_f64(ctx, &a));
        CHECK(i32(a.ids)[0] == win[i] && f64(a.weights)[0] == 1);
    }
    mem_free();
}

static void dispatch_order(void)
{
    int32_t ids[8] = { 2, 0, -1, 2, 0, 2, -1, -1 }, order[8], offset[5];
    static const int32_t want_order[8] = { 1, 4, 0, 3, 5, -1, -1, -1 };
    static const int32_t want_offset[5] = { 0, 2, 2, 5, 5 };
    tr_dispatch_args a;
    a.order = tr_view1(order, TR_I32, 8);
    a.offset = tr_view1(offset, TR_I32, 5);
    a.ids = tr_view2(ids, TR_I32, 4, 2);
    a.experts = 4;
    CHECK_OK(ctx, tr_dispatch(ctx, &a));
    CHECK_BITS(order, want_order, sizeof order);
    CHECK_BITS(offset, want_offset, sizeof offset);
}

static experts some_experts(int64_t E, int64_t F, int64_t D, int64_t O, const int *as)
{
    tr_view w1 = new3(E, F, D), w3 = new3(E, F, D), w2 = new3(E, O, F);
    for (int64_t e = 0; e < E; e++) {                   /* expert e is number as[e] */
        uint64_t n = (uint64_t)(as ? as[e] : e);
        fill(tr_view_at(w1, e), 100 + n, 0.2);
        fill(tr_view_at(w3, e), 200 + n, 0.2);
        fill(tr_view_at(w2, e), 300 + n, 0.2);
    }
    return experts_of(w1, w3, w2);
}

/* Every slot is what the products give for that token alone, to the bit; -1 is 0; weights of 1
 * make the combine the plain sum. 300 columns: rows are decoded in more than one piece. */
static void experts_and_products(void)
{
    enum { N = 9, K = 3, E = 5, F = 17, D = 300, O = 31 };
    experts m = some_experts(E, F, D, O, NULL);
    tr_view x = new2(N, D), ids = new_i32(2, N, K), ones = new2(N, K), sum = new2(N, O), y;
    fill(x, 1, 1);
    for (int n = 0; n < N; n++) {
        i32(ids)[n * K] = n % 4 == 3 ? -1 : n % 2;      /* expert 3 has no token */
        i32(ids)[n * K + 1] = 2;
        i32(ids)[n * K + 2] = n % 3 ? 4 : -1;
    }
    tr_experts_args a = dispatched(ctx, x, ids, &m, "situ");
    memset(&m.gate[3], 0, sizeof m.gate[3]);            /* so its weights need not be there */
    CHECK_OK(ctx, tr_experts_f64(ctx, &a));
    for (int n = 0; n < N; n++)
        for (int j = 0; j < K; j++) {
            int e = i32(ids)[n * K + j];
            tr_view got = tr_view_slice(tr_view_at(a.y, n), 0, j, 1), want = new2(1, O);
            if (e >= 0) {
                tr_view row = tr_view_slice(x, 0, n, 1);
                want = dense(row, tr_view2(m.gate[e].q, TR_F64, F, D),
                             tr_view2(m.up[e].q, TR_F64, F, D), tr_view2(m.down[e].q, TR_F64, O, F),
                             "situ");
            }
            bits_equal(got, want, "slot");
        }
    for (int i = 0; i < N * K; i++) f64(ones)[i] = 1;
    for (int n = 0; n < N; n++)
        for (int j = 0; j < K; j++)
            for (int o = 0; o < O; o++) f64(sum)[n * O + o] += f64(a.y)[(n * K + j) * O + o];
    y = combine(ctx, a.y, ones);
    bits_equal(y, sum, "combine with 1");
    mem_free();
}

/* The experts in another order, the router's rows with them: the same answer, but for the order in
 * which K numbers are added. And any number of threads: the same bits. */
static void permuted_and_threads(void)
{
    enum { N = 300, K = 4, E = 8, F = 24, D = 64, O = 64 };
    static const int to[E] = { 3, 6, 0, 7, 1, 5, 2, 4 };
    experts m = some_experts(E, F, D, O, NULL), p = some_experts(E, F, D, O, to);
    tr_view x = new2(N, D), w = new2(E, D), wp = new2(E, D), y = tr_view_none(), again;
    fill(x, 1, 1);
    fill(w, 2, 0.3);
    for (int e = 0; e < E; e++) memcpy(f64(wp) + e * D, f64(w) + to[e] * D, D * 8);
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_route_args r = route(matmul(x, w), tr_view_none(), K);
        CHECK_OK(c, tr_route_f64(c, &r));
        tr_experts_args a = dispatched(c, x, r.ids, &m, "silu");
        CHECK_OK(c, tr_experts_f64(c, &a));
        again = combine(c, a.y, r.weights);
        if (i) bits_equal(again, y, "threads");
        y = again;
        tr_ctx_free(c);
    }
    tr_route_args r = route(matmul(x, wp), tr_view_none(), K);
    CHECK_OK(ctx, tr_route_f64(ctx, &r));
    tr_experts_args a = dispatched(ctx, x, r.ids, &p, "silu");
    CHECK_OK(ctx, tr_experts_f64(ctx, &a));
    again = combine(ctx, a.y, r.weights);
    CHECK_NEAR(f64(again), f64(y), N * O, 1e-13);
    mem_free();
}

/* The contract, to the bit: few values, so that ties abound in experts and in groups; zeros of
 * both signs; biases that make all c negative, or -infinity; scores that saturate. */
static void route_bits(void)
{
    for (int i = 0; i < 240; i++) {
        int64_t E = i % 3 ? 24 : 64, K = 1 + i % 5, G = i % 4 ? 1 : 8;
        tr_view logits = hard((uint64_t)i, i % 7 ? 2 : 60, 2, 12, E, 0), bias = tr_view_none();
        tr_route_args a;
        for (int64_t n = 0; i % 2 && n < 12 * E; n++)
            tr_view_f32(logits)[n] = roundf(tr_view_f32(logits)[n]);
        if (i % 3) bias = hard((uint64_t)i + 1000, 0.3, 1, E, 0, 0);
        for (int64_t e = 0; i % 3 && e < E; e++) {
            float *b = tr_view_f32(bias) + e;
            *b = i % 5 == 1 ? -3 : i % 5 == 2 && e % 3 ? -INFINITY : roundf(*b * 4) / 4;
            if (i % 5 == 3) *b = 4096;                  /* sums that are equal once rounded */
        }
        a = route(logits, bias, K);
        a.groups = G;
        a.keep = G == 1 ? 1 : 1 + i % 3;
        if (a.keep * E / G < K) a.keep = G;
        a.score = i % 8 < 4 ? TR_SCORE_SIGMOID : TR_SCORE_SOFTMAX;
        a.renorm = i % 11 > 2;
        a.scale = i % 2 ? 2.446 : 1;
        a.renorm_eps = i % 13 ? 1e-20 : 0.01;
        BITS(route, &a);
        mem_free();
    }
    tr_route_args a = route(hard(1, 3, 2, 40, 896, 0), hard(2, 0.1, 1, 896, 0, 0), 16);
    BITS(route, &a);                                    /* many rows: threads */
    a = route(hard(1, 3, 2, 5, 6, 0), tr_view_none(), 2);
    a.groups = a.keep = 6;                              /* groups of one */
    a.keep = 3;
    BITS(route, &a);
    mem_free();
}

/* Weights as files hold them; rows longer than a piece of 256; slots that nobody has. */
static void experts_bits(void)
{
    enum { N = 7, K = 3, E = 5, F = 96, D = 288, O = 33 };
    static const tr_format format[3] = { TR_FMT_F32, TR_FMT_BF16, TR_FMT_MXFP4 };
    for (int i = 0; i < 6; i++) {
        const tr_qformat *f = tr_qformat_get(format[i % 3]);
        tr_weight *w[3];
        experts m;
        tr_view ids = new_i32(2, N, K);
        for (int k = 0; k < 3; k++) {
            w[k] = (tr_weight *)mem(E, sizeof *w[k]);
            for (int e = 0; e < E; e++) {
                int64_t rows = k == 2 ? O : F, cols = k == 2 ? F : D;
                tr_view x = hard((uint64_t)(10 * k + e), 0.2, 2, rows, cols, 0);
                void *q = mem(rows * cols, 4), *s = mem(rows * cols, 1);
                CHECK_OK(ctx, tr_quantize(ctx, f, q, s, tr_view_f32(x), rows, cols, 1, 32));
                CHECK_OK(ctx, tr_weight_of(ctx, &w[k][e], f, "w", q, s, rows, cols, 1, 32));
                if (e % 2) CHECK_OK(ctx, tr_weight_check(ctx, &w[k][e]));
            }
        }
        m.gate = w[0]; m.up = w[1]; m.down = w[2];
        m.E = E; m.F = F; m.O = O;
        for (int n = 0; n < N * K; n++)
            i32(ids)[n] = n % K == 2 && n % 2 ? -1 : n % K + n / K % 3;
        tr_experts_args a = dispatched(ctx, hard(50, 1, 2, N, D, 0), ids, &m,
                                       i / 3 ? "situ" : "silu");
        BITS(experts, &a);
        mem_free();
    }
}

/* In increasing index from +0, fused: also with weights of 0 and products below any number. */
static void combine_bits(void)
{
    for (int64_t K = 1; K < 10; K++) {
        tr_combine_args a;
        a.x = hard(1, K == 3 ? 1e-38 : 5, 3, 40, K, 75);
        a.weights = hard(2, K == 3 ? 1e-8 : 0.3, 2, 40, K, 0);
        a.y = new2(40, 75);
        BITS(combine, &a);
        mem_free();
    }
}

static void bad_arguments(void)
{
    tr_route_args good = route(new2(3, 8), new1(8), 2), r;
    experts m = some_experts(4, 5, 6, 7, NULL);
    tr_view ids = new_i32(2, 3, 2);
    tr_experts_args eg = dispatched(ctx, new2(3, 6), ids, &m, "situ"), e;
    tr_dispatch_args d;
    tr_combine_args c;
    int32_t order[6] = { 0, 1, 2, 3, 4, 5 };
    CHECK_OK(ctx, tr_route_f64(ctx, &good));
    r = good; r.bias = new1(7);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: bias [7] differ in E", tr_route_f64(ctx, &r));
    r = good; r.weights = new2(3, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: ids weights [3, 3] differ in K", tr_route_f64(ctx, &r));
    r = good; r.ids.dtype = TR_I64;
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "route: ids I64 I32", tr_route_f64(ctx, &r));
    r = good; r.groups = 3;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: 8 experts 3 groups", tr_route_f64(ctx, &r));
    r = good; r.groups = 0;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: 0 groups", tr_route_f64(ctx, &r));
    r = good; r.groups = 4; r.keep = 5;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "route: 5 of 4 groups", tr_route_f64(ctx, &r));
    r = route(new2(3, 8), tr_view_none(), 5); r.groups = 4; r.keep = 2;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: 5 experts from 4", tr_route_f64(ctx, &r));
    r = route(new2(3, 512), tr_view_none(), 5); r.groups = 512; r.keep = 8;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "route: 512 groups most 256", tr_route_f64(ctx, &r));
    r = good; r.scale = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "route: scale 0", tr_route_f64(ctx, &r));
    r = good; r.renorm_eps = -1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "route: renorm_eps -1", tr_route_f64(ctx, &r));
    r = good; r.score = (tr_score_kind)4;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "route: score 4", tr_route_f64(ctx, &r));

    d.order = new_i32(1, 6, 0);
    d.offset = new_i32(1, 5, 0);
    d.ids = new_i32(2, 3, 2);
    d.experts = 4;
    i32(d.ids)[3] = 4;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "dispatch: token 1, choice 1: expert 4 outside [0, 4)",
                tr_dispatch(ctx, &d));
    i32(d.ids)[3] = -2;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "dispatch: token 1, choice 1: expert -2", tr_dispatch(ctx, &d));
    i32(d.ids)[3] = -1;
    CHECK_OK(ctx, tr_dispatch(ctx, &d));
    d.experts = 5;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "dispatch: 5 experts, 6 slots offset 5", tr_dispatch(ctx, &d));

    CHECK_OK(ctx, tr_experts_f64(ctx, &eg));
    e = eg; e.x = new2(3, 5);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "experts: expert 0: gate [5, 6] [5, 5]",
                tr_experts_f64(ctx, &e));
    e = eg; e.y = new3(3, 2, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "experts: expert 0: down [7, 5] [8, 5]",
                tr_experts_f64(ctx, &e));
    e = eg; e.g = new2(6, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "experts: g u differ in F", tr_experts_f64(ctx, &e));
    e = eg; e.order = new_i32(1, 5, 0);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "experts: order g differ in NK", tr_experts_f64(ctx, &e));
    e = eg; e.up = NULL;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "experts: no weights", tr_experts_f64(ctx, &e));
    memset(&m.up[0], 0, sizeof m.up[0]);
    CHECK_FAILS(ctx, TR_ERR_ARG, "experts: expert 0: up no weight", tr_experts_f64(ctx, &eg));
    m = some_experts(4, 5, 6, 7, NULL);
    e = dispatched(ctx, new2(3, 6), ids, &m, "situ");
    e.p[1] = 0;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "experts: situ 4 0", tr_experts_f64(ctx, &e));
    e.p[1] = 25;
    e.order = tr_view1(order, TR_I32, 6);
    order[2] = 6;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "experts: order[2] 6", tr_experts_f64(ctx, &e));
    order[2] = 2;
    i32(e.offset)[4] = 7;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "experts: offset 7 slots 6", tr_experts_f64(ctx, &e));
    i32(e.offset)[4] = 6;
    i32(e.offset)[2] = 7;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "experts: expert 2 -1 slots", tr_experts_f64(ctx, &e));

    c.y = new2(3, 7);
    c.x = new3(3, 2, 7);
    c.weights = new2(3, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "combine: weights [3, 3] differ in K", tr_combine_f64(ctx, &c));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(router_cases);
    TEST(moe_cases);
    TEST(bias_of_minus_infinity);
    TEST(groups_and_negative_scores);
    TEST(not_a_number);
    TEST(renormalisation);
    TEST(reachable);
    TEST(dispatch_order);
    TEST(experts_and_products);
    TEST(permuted_and_threads);
    TEST(route_bits);
    TEST(experts_bits);
    TEST(combine_bits);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
