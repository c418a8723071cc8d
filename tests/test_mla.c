/* {mla}: whole blocks of latent attention against numbers of others; pieces of a prompt. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_view norm(tr_view x, tr_view w, double eps)
{
    tr_norm_args a;
    memset(&a, 0, sizeof a);
    a.x = x;
    a.y = new_like(x);
    a.w = w;
    a.eps = eps;
    a.scale = 1;
    a.groups = 1;
    BOTH(norm, &a);
    return a.y;
}

/* The rotated blocks are DeepSeek-V3's (yarn, factor 40, g^2 in the scale) and GLM-5's (plain,
 * theta 1e6): families.md 3 and 9.2. */
static void rotate(tr_view q_r, tr_view k_r, int64_t start)
{
    int64_t T = q_r.shape[0], Dr = q_r.shape[2];
    tr_view pos = tr_view1(mem(T, 8), TR_I64, T), inv_freq = new1(Dr / 2);
    tr_rope_cfg c;
    tr_rope_args r;
    double scale;
    memset(&c, 0, sizeof c);
    c.theta = case_named("glm5") ? 1e6 : 1e4;
    c.dim = Dr;
    if (case_named("v3_yarn")) {
        c.kind = TR_ROPE_YARN;
        c.factor = 40;
        c.orig = 4096;
        c.beta_fast = 32;
        c.beta_slow = 1;
        c.truncate = 1;
        c.mscale = c.mscale_all_dim = 1;
    }
    scale = tr_rope_softmax_mult(&c) / sqrt(case_num("nope") + case_num("rope"));
    double given = case_num("scale");
    CHECK_NEAR(&scale, &given, 1, 1e-14);
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, f64(inv_freq), &r.mult, &c));
    for (int64_t t = 0; t < T; t++) i64(pos)[t] = start + t;
    r.pos = pos;
    r.inv_freq = inv_freq;
    r.layout = case_is("layout", "half") ? TR_ROPE_HALF : TR_ROPE_INTERLEAVED;
    r.x = q_r;
    BOTH(rope, &r);
    r.x = k_r;
    BOTH(rope, &r);
}

static void mla_case(void)
{
    int64_t H = case_int("nh"), Dn = case_int("nope"), Dr = case_int("rope");
    int64_t R = case_int("kv_lora");
    tr_view x = case_f64("in.x"), q, latent = matmul(x, case_f64("w.kv_a"));
    tr_view c = tr_view_slice(latent, 1, 0, R), k_r = tr_view_slice(latent, 1, R, Dr);
    int64_t T = x.shape[0], Dv = case_int("v");
    double eps = case_num("eps");
    tr_weight kv_b = weight_of(case_f64("w.kv_b"));
    tr_mla_args a;
    if (case_int("q_lora")) {
        q = norm(matmul(x, case_f64("w.q_a")), case_f64("w.q_a_norm"), eps);
        q = matmul(q, case_f64("w.q_b"));
    } else q = matmul(x, case_f64("w.q"));
    q = tr_view_split(q, 1, Dn + Dr);
    CHECK_OK(ctx, tr_view_copy(ctx, c, norm(c, case_f64("w.kv_a_norm"), eps)));
    if (case_int("rotate"))
        rotate(tr_view_slice(q, 2, Dn, Dr), tr_view_split(k_r, 1, Dr), case_int("start"));
    case_near(latent, "out.cache", 1e-10);

    memset(&a, 0, sizeof a);
    a.y = new3(T, H, Dv);
    a.q = q;
    a.latent = latent;
    a.kv_b = &kv_b;
    a.kv = new2(T, H * (Dn + Dv));
    a.probs = new3(H, T, T);
    a.rope = Dr;
    a.scale = case_num("scale");
    BOTH(mla, &a);
    case_near(a.y, "out.attn", 1e-10);
    for (int64_t i = 0; i < H * T; i++) {
        double sum = 0, one = 1;
        for (int64_t s = 0; s < T; s++) sum += f64(a.probs)[i * T + s];
        CHECK_NEAR(&sum, &one, 1, 1e-13);
        for (int64_t s = i % T + 1; s < T; s++) CHECK(f64(a.probs)[i * T + s] == 0);
    }
    if (case_int("gate")) {
        tr_gate_args g;
        g.y = g.x = a.y;
        g.g = tr_view_split(matmul(x, case_f64("w.g")), 1, Dv);
        BOTH(gate, &g);
    }
    case_near(matmul(tr_view2(a.y.data, TR_F64, T, H * Dv), case_f64("w.o")), "out.y", 1e-10);
}

static void mla_cases(void) { exact_cases("mla", mla_case); }

static tr_mla_args small(tr_weight *w, int64_t T)
{
    tr_mla_args a;
    tr_view kv_b = new2(3 * (5 + 6), 7);
    memset(&a, 0, sizeof a);
    fill(kv_b, 1, 0.4);
    *w = weight_of(kv_b);
    a.y = new3(T, 3, 6);
    a.q = new3(T, 3, 5 + 4);
    a.latent = new2(T, 7 + 4);
    fill(a.q, 2, 1);
    fill(a.latent, 3, 1);
    a.kv_b = w;
    a.kv = new2(T, 33);
    a.rope = 4;
    a.scale = 0.4;
    return a;
}

/* Keys written out head by head, and plain attention over them, say the same. */
static void equals_attention(void)
{
    tr_weight w;
    tr_mla_args a = small(&w, 23);
    tr_attn_args b;
    memset(&b, 0, sizeof b);
    CHECK_OK(ctx, tr_mla_f64(ctx, &a));
    b.y = new_like(a.y);
    b.q = a.q;
    b.k = new3(23, 3, 9);
    b.v = new3(23, 3, 6);
    b.scale = a.scale;
    for (int64_t s = 0; s < 23; s++)
        for (int64_t h = 0; h < 3; h++) {
            for (int64_t d = 0; d < 9; d++)
                f64(b.k)[(s * 3 + h) * 9 + d] = d < 5 ? f64(a.kv)[s * 33 + h * 11 + d]
                                                      : f64(a.latent)[s * 11 + 7 + d - 5];
            for (int64_t d = 0; d < 6; d++)
                f64(b.v)[(s * 3 + h) * 6 + d] = f64(a.kv)[s * 33 + h * 11 + 5 + d];
        }
    CHECK_OK(ctx, tr_attn_f64(ctx, &b));
    CHECK_NEAR(f64(a.y), f64(b.y), 23 * 18, 1e-13);
    mem_free();
}

static void pieces_and_threads(void)
{
    static const int64_t cut[4] = { 0, 4, 5, 60 };
    tr_weight w;
    tr_mla_args a = small(&w, 60);
    CHECK_OK(ctx, tr_mla_f64(ctx, &a));
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_mla_args b = a;
        b.y = new_like(a.y);
        for (int j = 0; j < 3; j++) {
            tr_mla_args p = b;
            p.pos = cut[j];
            p.q = tr_view_slice(a.q, 0, cut[j], cut[j + 1] - cut[j]);
            p.y = tr_view_slice(b.y, 0, cut[j], cut[j + 1] - cut[j]);
            p.latent = tr_view_slice(a.latent, 0, 0, cut[j + 1]);
            p.kv = new2(cut[j + 1], 33);
            CHECK_OK(c, tr_mla_f64(c, &p));
        }
        bits_equal(b.y, a.y, "pieces");
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit, beyond one block of keys and with stored formats; and the absorbed form
 * against the expanded definition on inputs of another kind than the cases'. */
static void contract_bits(void)
{
    static const int64_t c[][8] = {     /* T, H, S, pos, Dn, Dr, Dv, R */
        { 1, 1, 1, 0, 1, 0, 1, 1 }, { 3, 2, 150, 126, 17, 5, 9, 33 },
        { 2, 3, 300, 298, 16, 8, 16, 64 },
        { 5, 9, 140, 125, 31, 16, 70, 48 }, { 9, 2, 33, 24, 128, 64, 128, 96 }
    };
    for (int i = 0; i < 5; i++)
        for (int f = 0; f < (i < 3 ? 3 : 1); f++) {
            int64_t T = c[i][0], H = c[i][1], S = c[i][2], Dn = c[i][4], Dr = c[i][5], Dv = c[i][6];
            int64_t R = c[i][7], rows = H * (Dn + Dv);
            tr_format format = f == 0 ? TR_FMT_F32 : f == 1 ? TR_FMT_BF16 : TR_FMT_FP8_BLOCK;
            tr_view W = hard(1, 0.5, 2, rows, R, 0);
            tr_mla_args a;
            tr_weight w;
            void *q = mem(rows * R, 4), *s = mem(rows * R, 4);
            memset(&a, 0, sizeof a);
            CHECK_OK(ctx, tr_quantize(ctx, tr_qformat_get(format), q, s, tr_view_f32(W), rows, R,
                                      128, 128));
            CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(format), "kv_b", q, s, rows, R, 128,
                                       128));
            if (i % 2) CHECK_OK(ctx, tr_weight_check(ctx, &w));
            a.y = new3(T, H, Dv);
            a.q = hard(2, 1, 3, T, H, Dn + Dr);
            a.latent = hard(3, 1, 2, S, R + Dr, 0);
            a.absorbed = new3(T, H, 2 * R + Dr);
            a.kv_b = &w;
            a.rope = Dr;
            a.pos = c[i][3];
            a.scale = 0.2;
            BITS(mla, &a);
            a.q = copy(a.q);
            a.latent = copy(a.latent);
            a.kv = new2(S, rows);
            a.absorbed = tr_view_none();
            if (f == 0) BOTH(mla, &a);
            mem_free();
        }
    exact_report();
}

static void bad_arguments(void)
{
    tr_weight w, other;
    tr_mla_args good = small(&w, 5), a;
    CHECK_OK(ctx, tr_mla_f64(ctx, &good));
    a = good; a.scale = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "mla: scale 0", tr_mla_f64(ctx, &a));
    a = good; a.rope = 10;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: 10 shared queries of 9", tr_mla_f64(ctx, &a));
    a = good; a.rope = -1;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: -1 shared", tr_mla_f64(ctx, &a));
    a = good; a.rope = 3;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: [33, 7] (6 + 6), 8]", tr_mla_f64(ctx, &a));
    a = good; a.kv = new2(5, 32);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: [33, 7] kv of 32 columns", tr_mla_f64(ctx, &a));
    a = good; a.kv = new2(4, 33);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: latent [5, 11] kv [4, 33] differ in S",
                tr_mla_f64(ctx, &a));
    a = good; a.y = new3(5, 2, 6);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: y [5, 2, 6] q differ in H", tr_mla_f64(ctx, &a));
    a = good; a.pos = 1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "mla: 5 queries position 1", tr_mla_f64(ctx, &a));
    a = good; a.kv_b = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "mla no weight", tr_mla_f64(ctx, &a));
    other = w;
    other.q = NULL;
    a = good; a.kv_b = &other;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "mla planned", tr_mla_f64(ctx, &a));
    a = good; a.probs = new3(3, 5, 4);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mla: probs [3, 5, 4] differ in S", tr_mla_f64(ctx, &a));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(mla_cases);
    TEST(equals_attention);
    TEST(pieces_and_threads);
    TEST(contract_bits);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
