/* {delta}: short convolution, decay, delta rule and whole KDA blocks against numbers of others; a
 * prompt in pieces gives the bits of the whole. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

/* A stored state is [H, K, V]; ours is [H, V, K]. */
static tr_view swap(tr_view s)
{
    tr_view y = new3(s.shape[0], s.shape[2], s.shape[1]);
    for (int64_t h = 0; h < s.shape[0]; h++)
        for (int64_t a = 0; a < s.shape[1]; a++)
            for (int64_t b = 0; b < s.shape[2]; b++)
                f64(y)[(h * s.shape[2] + b) * s.shape[1] + a] =
                    f64(s)[(h * s.shape[1] + a) * s.shape[2] + b];
    return y;
}

/* [n, C] <-> [C, n] */
static tr_view turn(tr_view v)
{
    return tr_view_at(swap(tr_view3(v.data, TR_F64, 1, v.shape[0], v.shape[1])), 0);
}

static tr_view l2(tr_view x, double eps, double scale)
{
    tr_norm_args a;
    memset(&a, 0, sizeof a);
    a.x = x;
    a.y = new_like(x);
    a.kind = TR_NORM_L2;
    a.eps = eps;
    a.scale = scale;
    a.groups = 1;
    BOTH(norm, &a);
    return a.y;
}

static tr_decay_args decay(tr_decay_kind kind, tr_view z, tr_view b, tr_view A_log, tr_view dt)
{
    tr_decay_args a;
    memset(&a, 0, sizeof a);
    a.g = new_like(z);
    a.beta = new_like(b);
    a.z = z;
    a.b = b;
    a.A_log = A_log;
    a.dt_bias = dt;
    a.kind = kind;
    CHECK(z.shape[2] == dt.shape[1]);
    return a;
}

static tr_delta_args delta(tr_view q, tr_view k, tr_view v, tr_view g, tr_view beta, tr_view S)
{
    tr_delta_args a;
    a.o = new_like(v);
    a.q = q;
    a.k = k;
    a.v = v;
    a.g = g;
    a.beta = beta;
    a.S = tr_view_is_none(S) ? new3(q.shape[1], v.shape[2], q.shape[2]) : S;
    return a;
}

static tr_conv_args conv(tr_view x, tr_view w, tr_view hist, int silu)
{
    tr_conv_args a;
    a.y = new_like(x);
    a.x = x;
    a.w = w;
    a.hist = hist;
    a.silu = silu;
    return a;
}

/* The weight is [C, 1, J] in files. */
static tr_view taps(const char *key)
{
    tr_view w = case_f64(key);
    return tr_view2(w.data, TR_F64, w.shape[0], w.shape[2]);
}

static void conv_case(void)
{
    if (case_num("plus_input") == 1) CASE_SKIP("a convolution plus its input is not offered");
    tr_conv_args a = conv(case_f64("in.x"), taps("w.weight"), turn(case_f64("in.hist")),
                          (int)case_num("silu"));
    BOTH(shortconv, &a);
    case_near(a.y, "out.y", 1e-10);
    case_near(turn(a.hist), "out.hist", 1e-10);
}

/* As one head whose rows the file leaves away. */
static tr_view one_head(const char *key)
{
    tr_view v = case_f64(key);
    return tr_view3(v.data, TR_F64, v.shape[0], 1, v.rank > 1 ? v.shape[1] : 1);
}

static void raw_recurrence(void)
{
    tr_view beta = case_f64("in.beta");
    tr_delta_args a = delta(one_head("in.q"), one_head("in.k"), one_head("in.v"), one_head("in.g"),
                            tr_view2(beta.data, TR_F64, beta.shape[0], 1), tr_view_none());
    BOTH(delta, &a);
    case_near(a.o, "out.o", 1e-10);
    case_near(swap(a.S), "out.state", 1e-10);
}

/* One of q, k, v: projection, then convolution; the state it leaves is checked. */
static tr_view stream(tr_view x, char which, int64_t H)
{
    char key[32];
    snprintf(key, sizeof key, "w.%c_proj", which);
    tr_view p = matmul(x, case_f64(key));
    snprintf(key, sizeof key, "w.%c_conv1d", which);
    tr_view w = taps(key);
    tr_conv_args a = conv(p, w, new2(p.shape[1], w.shape[1] - 1), 1);
    BOTH(shortconv, &a);
    snprintf(key, sizeof key, "out.hist_%c", which);
    case_near(turn(a.hist), key, 1e-10);
    return tr_view_split(a.y, 1, p.shape[1] / H);
}

static void block(void)
{
    int64_t H = case_int("heads"), d = case_int("head_dim");
    tr_view x = case_f64("in.x"), q = stream(x, 'q', H), k = stream(x, 'k', H);
    tr_view v = stream(x, 'v', H), f_a = matmul(x, case_f64("w.f_a_proj"));
    tr_view z = tr_view_split(matmul(f_a, case_f64("w.f_b_proj")), 1, d);
    tr_view dt = case_f64("w.dt_bias");
    tr_decay_args g = decay(TR_DECAY_BOUNDED, z, matmul(x, case_f64("w.b_proj")),
                            tr_view_slice(case_f64("w.A_log"), 0, 0, H),
                            tr_view2(dt.data, TR_F64, H, d));
    tr_norm_args n;
    g.bound = case_num("gate_lower_bound");
    BOTH(decay, &g);
    tr_delta_args a = delta(l2(q, 1e-6, 1 / sqrt((double)d)), l2(k, 1e-6, 1), v, g.g, g.beta,
                            tr_view_none());
    BOTH(delta, &a);
    case_near(a.o, "out.o", 1e-10);
    case_near(swap(a.S), "out.state", 1e-10);
    memset(&n, 0, sizeof n);
    n.x = n.y = a.o;
    n.w = case_f64("w.o_norm");
    n.gate = tr_view_split(matmul(x, case_f64("w.g_proj")), 1, d);
    n.eps = case_num("eps");
    n.scale = 1;
    n.groups = 1;
    BOTH(norm, &n);
    case_near(matmul(tr_view2(n.y.data, TR_F64, x.shape[0], H * d), case_f64("w.o_proj")), "out.y",
              1e-10);
}

static void kda_case(void)
{
    if (!strcmp(cases_name, "raw_recurrence")) { raw_recurrence(); return; }
    if (case_named("block_")) { block(); return; }
    int bounded = case_is("form", "lower_bound");
    if (!bounded && !case_is("form", "softplus")) CASE_UNKNOWN("form");
    double eps = case_num("l2_eps");
    tr_decay_args g = decay(bounded ? TR_DECAY_BOUNDED : TR_DECAY_SOFTPLUS, case_f64("in.z"),
                            case_f64("in.b"), case_f64("w.A_log"), case_f64("w.dt_bias"));
    g.bound = case_num("gate_lower_bound");
    BOTH(decay, &g);
    case_near(g.g, "out.g", 1e-10);
    case_near(g.beta, "out.beta", 1e-10);
    tr_delta_args a = delta(l2(case_f64("in.q"), eps, case_num("scale")),
                            l2(case_f64("in.k"), eps, 1), case_f64("in.v"), g.g, g.beta,
                            swap(case_f64("in.state")));
    BOTH(delta, &a);
    case_near(a.o, "out.o", 1e-10);
    case_near(swap(a.S), "out.state", 1e-10);
}

/* families.md 8.4: two steps with numbers that fit on a line; q and k normed, q times 2^-1/2. */
static void golden_2x2(void)
{
    double q[4] = { 1, 2, 0.5, -1 }, k[4] = { 2, 1, 1, 1 }, v[4] = { 1, -1, 2, 0.5 };
    double g[2] = { -0.1, -0.3 }, beta[2] = { 0.5, 0.8 };
    tr_view gk = tr_view3(g, TR_F64, 2, 1, 2);
    gk.stride[0] = 1;
    gk.stride[2] = 0;
    tr_delta_args a = delta(l2(tr_view3(q, TR_F64, 2, 1, 2), 1e-6, sqrt(0.5)),
                            l2(tr_view3(k, TR_F64, 2, 1, 2), 1e-6, 1), tr_view3(v, TR_F64, 2, 1, 2),
                            gk, tr_view2(beta, TR_F64, 2, 1), tr_view_none());
    BOTH(delta, &a);
    case_near(a.o, "out.o", 1e-10);
    case_near(swap(a.S), "out.state", 1e-10);
}

/* Query and key heads are repeated, one after the other, for the value heads. */
static tr_view repeat(tr_view x, int64_t H)
{
    tr_view y = new3(x.shape[0], H, x.shape[2]);
    int64_t r = H / x.shape[1];
    for (int64_t t = 0; t < x.shape[0]; t++)
        for (int64_t h = 0; h < H; h++)
            memcpy(f64(y) + (t * H + h) * x.shape[2],
                   f64(x) + (t * x.shape[1] + h / r) * x.shape[2], (size_t)x.shape[2] * 8);
    return y;
}

/* One decay a head: K = 1 in {decay}, a stride of 0 over K in {delta}. */
static void gated_case(void)
{
    if (!strcmp(cases_name, "golden_2x2")) { golden_2x2(); return; }
    if (!strcmp(cases_name, "lightning")) CASE_SKIP("a rule without correction is not offered");
    tr_view v = case_f64("in.v"), b = case_f64("in.b"), z = case_f64("in.a");
    tr_view dt = case_f64("w.dt_bias"), g;
    int64_t T = v.shape[0], H = v.shape[1];
    double eps = case_num("l2_eps");
    tr_decay_args d = decay(TR_DECAY_SOFTPLUS, tr_view3(z.data, TR_F64, T, H, 1), b,
                            case_f64("w.A_log"), tr_view2(dt.data, TR_F64, H, 1));
    BOTH(decay, &d);
    case_near(d.g, "out.g", 1e-10);
    case_near(d.beta, "out.beta", 1e-10);
    tr_view q = repeat(l2(case_f64("in.q"), eps, case_num("scale")), H);
    tr_view k = repeat(l2(case_f64("in.k"), eps, 1), H);
    g = d.g;
    g.shape[2] = q.shape[2];
    g.stride[2] = 0;
    tr_delta_args a = delta(q, k, v, g, d.beta, swap(case_f64("in.state")));
    BOTH(delta, &a);
    case_near(a.o, "out.o", 1e-10);
    case_near(swap(a.S), "out.state", 1e-10);
}

static void short_conv_cases(void)  { exact_cases("short_conv", conv_case); }
static void kda_cases(void)         { exact_cases("kda", kda_case); }
static void gated_delta_cases(void) { exact_cases("gated_delta", gated_case); }

/* 129 tokens at once, and in three pieces: the same bits, by any number of threads. */
static void pieces(void)
{
    static const int64_t cut[3][4] = {
        { 0, 64, 128, 129 }, { 0, 1, 3, 129 }, { 0, 128, 129, 129 }
    };
    tr_view q = new3(129, 7, 16), k = new_like(q), g = new_like(q), v = new3(129, 7, 20);
    tr_view beta = new2(129, 7), x = new2(129, 50), w = new2(50, 4), S = new3(7, 20, 16);
    fill(q, 1, 0.3);
    fill(k, 2, 0.2);
    fill(v, 3, 1);
    fill(g, 4, 0.5);
    fill(beta, 5, 0.3);
    fill(x, 6, 1);
    fill(w, 7, 1);
    for (int64_t i = 0; i < 129 * 7 * 16; i++) f64(g)[i] = -fabs(f64(g)[i]);
    tr_delta_args a = delta(q, l2(k, 1e-6, 1), v, g, beta, S);
    tr_conv_args c = conv(x, w, new2(50, 3), 1);
    CHECK_OK(ctx, tr_delta_f64(ctx, &a));
    CHECK_OK(ctx, tr_shortconv_f64(ctx, &c));
    for (int i = 0; i < 3; i++) {
        tr_ctx *n = ctx_threads(thread_counts[i]);
        tr_delta_args b = a;
        tr_conv_args d = c;
        b.o = new_like(a.o);
        b.S = new_like(a.S);
        d.y = new_like(c.y);
        d.hist = new2(50, 3);
        for (int j = 0; j < 3; j++) {
            tr_delta_args p = b;
            tr_conv_args e = d;
            int64_t t = cut[i][j], len = cut[i][j + 1] - t;
            p.o = tr_view_slice(b.o, 0, t, len);
            p.q = tr_view_slice(a.q, 0, t, len);
            p.k = tr_view_slice(a.k, 0, t, len);
            p.v = tr_view_slice(a.v, 0, t, len);
            p.g = tr_view_slice(a.g, 0, t, len);
            p.beta = tr_view_slice(a.beta, 0, t, len);
            e.y = tr_view_slice(d.y, 0, t, len);
            e.x = tr_view_slice(d.x, 0, t, len);
            CHECK_OK(n, tr_delta_f64(n, &p));
            CHECK_OK(n, tr_shortconv_f64(n, &e));
        }
        bits_equal(b.o, a.o, "o in pieces");
        bits_equal(b.S, a.S, "S in pieces");
        bits_equal(d.y, c.y, "conv in pieces");
        bits_equal(d.hist, c.hist, "history in pieces");
        tr_ctx_free(n);
    }
    tr_view o = new3(1, 1, 20), S0 = new2(20, 16);      /* the raw step is the operator's */
    for (int64_t t = 0; t < 129; t++)
        tr_delta_step_f64(f64(o), f64(S0), f64(q) + t * 7 * 16, f64(a.k) + t * 7 * 16,
                          f64(v) + t * 7 * 20, f64(g) + t * 7 * 16, f64(beta)[t * 7], 16, 20);
    bits_equal(tr_view_slice(a.o, 0, 128, 1), o, "raw step");
    bits_equal(a.S, S0, "raw step's S");                /* of head 0 */
    mem_free();
}

/* The rule in one line, for S [K, V]: S' = (I - beta k k^T) Diag(e^g) S + beta k v^T, o = S'^T q */
static void matrix_form(void)
{
    enum { K = 6, V = 5 };
    tr_view q = new1(K), k = new1(K), v = new1(V), g = new1(K), S = new2(V, K), o = new1(V);
    double want[V * K], out[V], beta = 0.7;
    fill(q, 1, 1);
    fill(k, 2, 1);
    fill(v, 3, 1);
    fill(g, 4, 1);
    fill(S, 5, 1);
    for (int i = 0; i < V; i++) {
        out[i] = 0;
        for (int a = 0; a < K; a++) {
            double s = beta * f64(k)[a] * f64(v)[i];
            for (int b = 0; b < K; b++)
                s += ((a == b) - beta * f64(k)[a] * f64(k)[b]) * exp(f64(g)[b]) * f64(S)[i * K + b];
            want[i * K + a] = s;
            out[i] += s * f64(q)[a];
        }
    }
    tr_delta_step_f64(f64(o), f64(S), f64(q), f64(k), f64(v), f64(g), beta, K, V);
    CHECK_NEAR(f64(S), want, V * K, 1e-13);
    CHECK_NEAR(f64(o), out, V, 1e-13);
    mem_free();
}

/* Very strong decay leaves nothing and overflows nowhere; g stays in (bound, 0). */
static void extremes(void)
{
    double z[4] = { -800, 800, 0, 3 }, dt[4] = { 0, 0, 0, -3 }, A = 4, b = 900;
    double g[4], beta, want[4] = { 0, -5, -2.5, -2.5 };
    tr_decay_args a;
    memset(&a, 0, sizeof a);
    a.g = tr_view3(g, TR_F64, 1, 1, 4);
    a.beta = tr_view2(&beta, TR_F64, 1, 1);
    a.z = tr_view3(z, TR_F64, 1, 1, 4);
    a.b = tr_view2(&b, TR_F64, 1, 1);
    a.A_log = tr_view1(&A, TR_F64, 1);
    a.dt_bias = tr_view2(dt, TR_F64, 1, 4);
    a.bound = -5;
    CHECK_OK(ctx, tr_decay_f64(ctx, &a));
    CHECK_NEAR(g, want, 4, 1e-15);
    CHECK(beta == 1);
    a.kind = TR_DECAY_SOFTPLUS;
    CHECK_OK(ctx, tr_decay_f64(ctx, &a));
    want[1] = -exp(4) * 800;
    want[2] = want[3] = -exp(4) * log(2);
    CHECK_NEAR(g, want, 2, 1e-15);
    CHECK_NEAR(g + 2, want + 2, 2, 1e-15);
    double S[2] = { 1e300, -1e300 }, o, q[2] = { 1, 1 }, k[2] = { 0.6, 0.8 }, v = 3;
    double deep[2] = { -1e5, -1e5 }, s0 = 3 * 0.6;
    tr_delta_step_f64(&o, S, q, k, &v, deep, 1, 2, 1);
    CHECK_NEAR(S, &s0, 1, 1e-15);
}

/* The contract, to the bit: K off 16 and beyond a piece of 256, one decay a head (a stride of 0),
 * no decay, all of it, betas of 0 and 1. */
static void contract_bits(void)
{
    static const int64_t c[][4] = { /* T, H, K, V */
        { 1, 1, 1, 1 }, { 3, 2, 15, 5 }, { 4, 3, 16, 17 }, { 5, 2, 33, 3 }, { 2, 1, 300, 4 },
        { 40, 7, 32, 20 }
    };
    for (int i = 0; i < 6; i++)
        for (int mode = 0; mode < 3; mode++) {
            int64_t T = c[i][0], H = c[i][1], K = c[i][2], V = c[i][3];
            tr_view g = hard(4, mode == 2 ? 60 : 0.5, 3, T, H, K), beta = hard(5, 0.4, 2, T, H, 0);
            for (int64_t n = 0; n < T * H * K; n++) tr_view_f32(g)[n] = -fabsf(tr_view_f32(g)[n]);
            for (int64_t n = 0; n < T * H; n++)
                tr_view_f32(beta)[n] = n % 5 == 0 ? 1 : fabsf(tr_view_f32(beta)[n]);
            if (mode == 1) { g.stride[2] = 0; g.shape[2] = K; }
            tr_delta_args a = delta(hard(1, 0.3, 3, T, H, K), hard(2, 0.3, 3, T, H, K),
                                    hard(3, 1, 3, T, H, V), g, beta, hard(6, 1, 3, H, V, K));
            BITS(delta, &a);
            mem_free();
        }
}

static void conv_and_decay_bits(void)
{
    for (int i = 0; i < 24; i++) {          /* T < J - 1, T = 0, one tap */
        int64_t T = i % 6, J = 1 + i / 6 * 2, C = i % 2 ? 37 : 700;
        tr_conv_args a = conv(hard(1, 2, 2, T, C, 0), hard(2, 1, 2, C, J, 0),
                              hard(3, 2, 2, C, J - 1, 0), i % 4 < 2);
        if (T == 0) a.x.data = a.y.data = mem(1, 8);
        if (T == 0) a.y.data = mem(1, 8);
        BITS(shortconv, &a);
        mem_free();
    }
    for (int i = 0; i < 6; i++) {
        tr_decay_args a = decay(i % 2 ? TR_DECAY_SOFTPLUS : TR_DECAY_BOUNDED,
                                hard(1, i < 2 ? 3 : 40, 3, 60, 5, 33), hard(2, 9, 2, 60, 5, 0),
                                hard(3, i < 4 ? 1 : 30, 1, 5, 0, 0), hard(4, 2, 2, 5, 33, 0));
        a.bound = -5.3;
        BITS(decay, &a);
        mem_free();
    }
}

/* The raw step, and tokens in pieces: S and hist carry all there is. */
static void contract_pieces(void)
{
    tr_view g = hard(4, 1, 3, 21, 3, 32);
    for (int64_t n = 0; n < 21 * 3 * 32; n++) tr_view_f32(g)[n] = -fabsf(tr_view_f32(g)[n]);
    tr_view S = hard(6, 1, 3, 3, 20, 32), S1 = exact_view(S, TR_F32, 0);
    tr_view S2 = exact_view(S, TR_F32, 0), o = tr_view2(mem(20, 4), TR_F32, 1, 20);
    tr_delta_args a = delta(hard(1, 0.3, 3, 21, 3, 32), hard(2, 0.3, 3, 21, 3, 32),
                            hard(3, 1, 3, 21, 3, 20), g, hard(5, 0.5, 2, 21, 3, 0), S), p;
    a.o = tr_view3(mem(21 * 60, 4), TR_F32, 21, 3, 20);
    CHECK_OK(ctx, tr_delta(ctx, &a));
    p = a;
    p.S = S1;
    for (int64_t t = 0, n; t < 21; t += n) {
        n = t % 2 == 0 ? 1 : t + 5 > 21 ? 21 - t : 5;
        p.o = tr_view3(mem(n * 60, 4), TR_F32, n, 3, 20);
        p.q = tr_view_slice(a.q, 0, t, n);
        p.k = tr_view_slice(a.k, 0, t, n);
        p.v = tr_view_slice(a.v, 0, t, n);
        p.g = tr_view_slice(a.g, 0, t, n);
        p.beta = tr_view_slice(a.beta, 0, t, n);
        CHECK_OK(ctx, tr_delta(ctx, &p));
        bits_equal(p.o, tr_view_slice(a.o, 0, t, n), "o in pieces");
    }
    bits_equal(S1, S, "S in pieces");
    for (int64_t t = 0; t < 21; t++)            /* head 0 alone */
        tr_delta_step(tr_view_f32(o), tr_view_f32(S2), ref_row(a.q, 3 * t), ref_row(a.k, 3 * t),
                      ref_row(a.v, 3 * t), ref_row(a.g, 3 * t), ref_row(a.beta, t)[0], 32, 20);
    bits_equal(tr_view_at(S2, 0), tr_view_at(S, 0), "raw step");
    bits_equal(o, tr_view_slice(tr_view_at(a.o, 20), 0, 0, 1), "raw step's o");
    mem_free();
}

static void bad_arguments(void)
{
    tr_conv_args cg = conv(new2(5, 8), new2(8, 4), new2(8, 3), 1), c;
    tr_decay_args dg = decay(TR_DECAY_BOUNDED, new3(5, 2, 4), new2(5, 2), new1(2), new2(2, 4)), d;
    tr_delta_args ag = delta(new3(5, 2, 4), new3(5, 2, 4), new3(5, 2, 6), new3(5, 2, 4), new2(5, 2),
                             tr_view_none()), a;
    CHECK_OK(ctx, tr_shortconv_f64(ctx, &cg));
    c = cg; c.hist = new2(8, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "shortconv: 4 taps 3 earlier has 4", tr_shortconv_f64(ctx, &c));
    c = cg; c.hist = new2(7, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "shortconv: hist [7, 3] differ in C", tr_shortconv_f64(ctx, &c));
    c = cg; c.w = new2(9, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "shortconv: w [9, 4] differ in C", tr_shortconv_f64(ctx, &c));
    c = cg; c.y = c.x;
    CHECK_FAILS(ctx, TR_ERR_ARG, "shortconv: y must not be x", tr_shortconv_f64(ctx, &c));
    c = cg; c.w = new2(8, 1); c.hist = new2(8, 0);
    CHECK_OK(ctx, tr_shortconv_f64(ctx, &c));           /* one tap: no history */

    dg.bound = -5;
    CHECK_OK(ctx, tr_decay_f64(ctx, &dg));
    d = dg; d.A_log = new1(8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "decay: A_log [8] differ in H", tr_decay_f64(ctx, &d));
    d = dg; d.dt_bias = new2(2, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "decay: dt_bias [2, 3] differ in K", tr_decay_f64(ctx, &d));
    d = dg; d.bound = 5;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "decay: bound 5 below", tr_decay_f64(ctx, &d));
    d = dg; d.bound = 0;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "decay: bound 0", tr_decay_f64(ctx, &d));
    d = dg; d.kind = (tr_decay_kind)5;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "decay: kind 5", tr_decay_f64(ctx, &d));
    d = dg; d.b = new2(5, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "decay: b [5, 3] differ in H", tr_decay_f64(ctx, &d));

    CHECK_OK(ctx, tr_delta_f64(ctx, &ag));
    a = ag; a.S = new3(2, 4, 6);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: S [2, 4, 6] differ", tr_delta_f64(ctx, &a));
    a = ag; a.S = new3(1, 6, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: S [1, 6, 4] differ in H", tr_delta_f64(ctx, &a));
    a = ag; a.S = tr_view_slice(new3(2, 6, 8), 2, 0, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: gaps", tr_delta_f64(ctx, &a));
    a = ag; a.k = new3(5, 2, 5);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: k [5, 2, 5] differ in K", tr_delta_f64(ctx, &a));
    a = ag; a.g = new3(5, 2, 1);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: g [5, 2, 1] differ in K", tr_delta_f64(ctx, &a));
    a = ag; a.g.stride[2] = 2;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: g stride 2", tr_delta_f64(ctx, &a));
    a = ag; a.beta = new2(5, 1);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "delta: beta [5, 1] differ in H", tr_delta_f64(ctx, &a));
    a = ag; a.S = tr_view_none();
    CHECK_FAILS(ctx, TR_ERR_ARG, "delta: S absent", tr_delta_f64(ctx, &a));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(short_conv_cases);
    TEST(kda_cases);
    TEST(gated_delta_cases);
    TEST(pieces);
    TEST(matrix_form);
    TEST(extremes);
    TEST(contract_bits);
    TEST(conv_and_decay_bits);
    TEST(contract_pieces);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
