/* {res}: the mix of block attention residuals and its state machine against numbers of others. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

static tr_mix_args mix(tr_view snaps, tr_view h, tr_view norm, tr_view proj, double eps)
{
    tr_mix_args a;
    memset(&a, 0, sizeof a);
    a.y = new_like(h);
    a.snaps = snaps;
    a.h = h;
    a.norm = norm;
    a.proj = proj;
    a.eps = eps;
    return a;
}

/* Rows of attention and MLP results are given; what each sublayer reads, the block sums and the
 * running sum must come out. */
static void machine(void)
{
    int64_t L = case_int("layers"), block = case_int("block"), n = 0;
    tr_view attn = case_f64("in.attn_out"), mlp = case_f64("in.mlp_out");
    tr_view P = case_f64("in.embedding");
    tr_view norm = case_f64("w.norm"), proj = case_f64("w.proj");
    int64_t N = P.shape[0], D = P.shape[1];
    tr_view x = new3(2 * L, N, D), snaps = new3((L + block - 1) / block, N, D);
    for (int64_t i = 0; i <= 2 * L; i++) {
        tr_mix_args m = mix(tr_view_slice(snaps, 0, 0, n), P, tr_view_at(norm, i),
                            tr_view_at(proj, i), case_num("eps"));
        tr_add_args add;
        tr_copy_args push;
        BOTH(mix, &m);         /* without snapshots it is P itself */
        if (n == 0) bits_equal(m.y, P, "mix of one");
        if (i == 2 * L) { case_near(m.y, "out.final", 1e-10); break; }
        CHECK_OK(ctx, tr_view_copy(ctx, tr_view_at(x, i), m.y));
        add.a = P;
        if (i % (2 * block) == 0) {                 /* a block begins: P is pushed, starts anew */
            push.y = tr_view_at(snaps, n++);
            push.x = P;
            CHECK_OK(ctx, tr_copy(ctx, &push));
            add.a = new2(N, D);
        }
        add.b = tr_view_at(i % 2 ? mlp : attn, i / 2);
        add.y = P = new2(N, D);
        BOTH(add, &add);
    }
    case_near(x, "out.x", 1e-10);
    case_near(P, "out.P", 1e-10);
    case_near(snaps, "out.snapshots", 1e-10);
}

static void res_case(void)
{
    if (!strcmp(cases_name, "machine")) { machine(); return; }
    if (!case_named("mix_")) CASE_UNKNOWN("kind");
    tr_view proj = case_f64("w.proj"), p;
    tr_mix_args a = mix(case_f64("in.snapshots"), case_f64("in.P"), case_f64("w.norm"),
                        tr_view_at(proj, 0), case_num("eps"));
    int64_t N = a.h.shape[0], n = a.snaps.shape[0];
    a.probs = new2(N, n + 1);
    BOTH(mix, &a);
    case_near(a.y, "out.y", 1e-10);
    p = new2(n + 1, N);                             /* stored source by source */
    for (int64_t i = 0; i <= n; i++)
        for (int64_t t = 0; t < N; t++) f64(p)[i * N + t] = f64(a.probs)[t * (n + 1) + i];
    case_near(p, "out.p", 1e-10);
}

static void attn_res_cases(void) { exact_cases("attn_res", res_case); }

/* A source far larger than the others is normed in its score, and not in what it gives. */
static void sizes(void)
{
    tr_view snaps = new3(2, 1, 4), h = new2(1, 4), norm = new1(4), proj = new1(4);
    double p[3], want[4], sum, top = 1e-3;
    fill(norm, 1, 1);
    fill(proj, 2, 1);
    for (int d = 0; d < 4; d++) {
        f64(snaps)[d] = 1000 * (d + 1);
        f64(snaps)[4 + d] = top * (2 - d);          /* of the size of sqrt(eps) */
        f64(h)[d] = d % 2 ? 3 : -2;
    }
    tr_mix_args a = mix(snaps, h, norm, proj, 1e-5);
    CHECK_OK(ctx, tr_mix_f64(ctx, &a));
    sum = 0;
    for (int i = 0; i < 3; i++) {
        const double *V = i < 2 ? f64(snaps) + 4 * i : f64(h);
        double ms = 0, z = 0;
        for (int d = 0; d < 4; d++) ms += V[d] * V[d] / 4;
        for (int d = 0; d < 4; d++) z += V[d] / sqrt(ms + 1e-5) * f64(norm)[d] * f64(proj)[d];
        p[i] = exp(z);
        sum += p[i];
    }
    for (int d = 0; d < 4; d++)
        want[d] = (p[0] * f64(snaps)[d] + p[1] * f64(snaps)[4 + d] + p[2] * f64(h)[d]) / sum;
    CHECK_NEAR(f64(a.y), want, 4, 1e-13);
    mem_free();
}

static void threads(void)
{
    tr_view snaps = new3(7, 600, 128), h = new2(600, 128), norm = new1(128), proj = new1(128);
    tr_view first[2] = { tr_view_none(), tr_view_none() };
    fill(snaps, 1, 3);
    fill(h, 2, 3);
    fill(norm, 3, 0.3);
    fill(proj, 4, 0.3);
    for (int i = 0; i < 3; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i]);
        tr_mix_args a = mix(snaps, h, norm, proj, 1e-5);
        tr_add_args b;
        a.probs = new2(600, 8);
        CHECK_OK(c, tr_mix_f64(c, &a));
        b.a = b.y = copy(h);
        b.b = a.y;
        CHECK_OK(c, tr_add_f64(c, &b));
        for (int t = 0; t < 600; t++) {
            double sum = 0, one = 1;
            for (int k = 0; k < 8; k++) sum += f64(a.probs)[8 * t + k];
            CHECK_NEAR(&sum, &one, 1, 1e-14);
        }
        if (i) bits_equal(a.y, first[0], "mix threads");
        if (i) bits_equal(b.y, first[1], "add threads");
        first[0] = a.y;
        first[1] = b.y;
        tr_ctx_free(c);
    }
    mem_free();
}

/* The contract, to the bit: no source but one, many, equal ones; D off 16; rows of zeros. */
static void contract_bits(void)
{
    static const int64_t c[][3] = { /* n, N, D */
        { 0, 4, 40 }, { 1, 3, 1 }, { 3, 5, 15 }, { 2, 4, 16 }, { 9, 40, 113 }, { 255, 2, 17 }
    };
    for (int i = 0; i < 6; i++)
        for (int mode = 0; mode < 3; mode++) {
            int64_t n = c[i][0], N = c[i][1], D = c[i][2];
            tr_mix_args a = mix(hard(1, mode == 2 ? 1e15 : 2, 3, n, N, D), hard(2, 2, 2, N, D, 0),
                                hard(3, 1, 1, D, 0, 0), hard(4, 1, 1, D, 0, 0), 1e-5);
            tr_add_args b;
            if (mode == 1 && n > 1)         /* equal sources: equal scores */
                memcpy(a.snaps.data, ref_row(a.snaps, N), (size_t)(N * D) * 4);
            if (mode < 2) a.probs = new2(N, n + 1);
            BITS(mix, &a);
            b.y = b.a = a.h;
            b.b = hard(5, 2, 2, N, D, 0);
            BITS(add, &b);
            mem_free();
        }
}

static void bad_arguments(void)
{
    tr_mix_args good = mix(new3(2, 5, 8), new2(5, 8), new1(8), new1(8), 1e-5), a;
    tr_add_args b;
    tr_copy_args c;
    CHECK_OK(ctx, tr_mix_f64(ctx, &good));
    a = good; a.snaps = new3(2, 4, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mix: snaps [2, 4, 8] differ in N", tr_mix_f64(ctx, &a));
    a = good; a.norm = new1(7);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mix: norm [7] differ in D", tr_mix_f64(ctx, &a));
    a = good; a.proj = new2(1, 8);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mix: proj [1, 8] not [D]", tr_mix_f64(ctx, &a));
    a = good; a.probs = new2(5, 2);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "mix: probs 2 columns 3 sources", tr_mix_f64(ctx, &a));
    a = good; a.eps = -1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "mix: eps -1", tr_mix_f64(ctx, &a));
    a = good; a.y = a.h;
    CHECK_FAILS(ctx, TR_ERR_ARG, "mix: y is a source", tr_mix_f64(ctx, &a));
    a = good; a.y = tr_view_at(a.snaps, 0);
    CHECK_FAILS(ctx, TR_ERR_ARG, "mix: y is a source", tr_mix_f64(ctx, &a));
    a = good; a.snaps = tr_view_none();
    CHECK_OK(ctx, tr_mix_f64(ctx, &a));
    b.y = new2(3, 4); b.a = new2(3, 4); b.b = new2(3, 5);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "add: b [3, 5] differ in D", tr_add_f64(ctx, &b));
    c.y = new2(3, 4); c.x = new2(4, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "copy: [3, 4] [4, 3] differ", tr_copy(ctx, &c));
    c.x = c.y; c.x.dtype = TR_F32;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "copy: F64 F32 differ", tr_copy(ctx, &c));
    c.x = c.y; c.x.data = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "copy: no data", tr_copy(ctx, &c));
    mem_free();
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(attn_res_cases);
    TEST(sizes);
    TEST(threads);
    TEST(contract_bits);
    TEST(bad_arguments);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
