/* cc -std=c11 -O2 -ffp-contract=off -I. examples/16_your_kernel.c -o build/16_kernel -lm && build/16_kernel */

/* A kernel of your own in the contract's table of operators. Here it is a matrix product, in three
 * versions: one adds forwards in one chain, one keeps sixteen lanes but takes their products and
 * sums apart, and one does what numerics.md says (S1). All three are good arithmetic: the distance
 * of the logits from the binary64 oracle cannot tell them apart. Bits can: only the third gives the
 * contract's, on every machine, and then there is no bound to choose.
 *
 * The table is copied, one entry is replaced, and everything else stays. A call that the kernel
 * does not want (here: with a bias) goes on to the contract's own. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

enum { IDS = 24, VOCAB = 320, MOST = 4096 };

static float chain(const float *x, const float *w, int64_t n)
{
    float sum = 0;
    for (int64_t k = 0; k < n; k++) sum = fmaf(x[k], w[k], sum);
    return sum;
}

static float fold(float lane[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

static float lanes_apart(const float *x, const float *w, int64_t n)
{
    float lane[16] = { 0 };
    for (int64_t k = 0; k < n; k++) lane[k % 16] += x[k] * w[k];
    return fold(lane);
}

static float lanes_fused(const float *x, const float *w, int64_t n)
{
    float lane[16] = { 0 };
    for (int64_t k = 0; k < n; k++) lane[k % 16] = fmaf(x[k], w[k], lane[k % 16]);
    return fold(lane);
}

typedef struct kernel {
    const char *name;
    float (*dot)(const float *x, const float *w, int64_t n);
    long calls;
} kernel;

/* y[n, o] = x[n, :] . W[o, :]. A row of W comes decoded, whatever its format; rows of x and y may
 * lie apart, so the stride counts. */
static tr_status my_matmul(void *user, tr_ctx *ctx, const tr_matmul_args *a)
{
    kernel *mine = (kernel *)user;
    int64_t N = a->x.shape[0], I = a->w->cols;
    float buf[MOST];
    if (!tr_view_is_none(a->bias) || I > MOST) return tr_matmul(ctx, a);
    for (int64_t o = 0; o < a->w->rows; o++) {
        const float *w = tr_weight_row_f32(a->w, o, 0, I, buf);
        for (int64_t n = 0; n < N; n++)
            tr_view_f32(a->y)[n * a->y.stride[0] + o] =
                mine->dot(tr_view_f32(a->x) + n * a->x.stride[0], w, I);
    }
    mine->calls++;
    return TR_OK;
}

/* All logits of a prompt, as binary64 numbers; ops NULL is the profile's own table. */
static tr_status logits(tr_model *m, const char *profile, const tr_ops *ops, double *out)
{
    tr_run_opts o = tr_run_opts_default();
    int32_t ids[IDS];
    int64_t T = IDS;
    tr_batch b = { 1, &T, ids };
    tr_run *r = NULL;
    tr_status s;
    for (int i = 0; i < IDS; i++) ids[i] = 10 * i;
    o.profile = tr_profile_find(profile);
    o.ops = ops;
    o.logits = TR_LOGITS_ALL;
    s = tr_run_new(m->ctx, &r, m, &o);
    if (s == TR_OK) s = tr_forward(r, &b, NULL);
    for (int64_t i = 0; s == TR_OK && i < IDS * VOCAB; i++)
        out[i] = tr_get_f64(r->logits.data, o.profile->act, i);
    tr_run_free(r);
    return s;
}

int main(void)
{
    static double truth[IDS * VOCAB], exact[IDS * VOCAB], yours[IDS * VOCAB];
    static kernel version[3] = { { "one chain", chain, 0 },
                                 { "lanes, two roundings", lanes_apart, 0 },
                                 { "lanes, fused", lanes_fused, 0 } };
    tr_view t = tr_view1(truth, TR_F64, IDS * VOCAB), e = tr_view1(exact, TR_F64, IDS * VOCAB);
    tr_view y = tr_view1(yours, TR_F64, IDS * VOCAB);
    tr_ctx *ctx;
    tr_model *m = NULL;
    tr_diff d;
    if (tr_ctx_new(&ctx, NULL) ||
        tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL) ||
        logits(m, "oracle", NULL, truth) || logits(m, "exact", NULL, exact) ||
        tr_diff_views(ctx, &d, e, t))
        return fprintf(stderr, "%s\n", tr_err_last(ctx)), 1;
    printf("%-22s %5s %24s %22s\n", "matrix product", "calls", "logits with exact bits",
           "from the oracle");
    printf("%-22s %5s %15d of %5d %22.1e\n", "the contract's", "", (int)d.n, (int)d.n, d.max_rel);
    for (int i = 0; i < 3; i++) {
        tr_ops ops = tr_ops_contract();
        int64_t equal;
        ops.user = &version[i];
        ops.matmul = my_matmul;
        if (logits(m, "exact", &ops, yours) || tr_diff_views(ctx, &d, y, e))
            return fprintf(stderr, "%s\n", tr_err_last(ctx)), 1;
        equal = d.equal;
        tr_diff_views(ctx, &d, y, t);
        printf("%-22s %5ld %15d of %5d %22.1e\n", version[i].name, version[i].calls, (int)equal,
               (int)d.n, d.max_rel);
    }
    tr_model_close(m);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
matrix product         calls   logits with exact bits        from the oracle
the contract's                          7680 of  7680                1.2e-05
one chain                115              49 of  7680                2.0e-05
lanes, two roundings     115             110 of  7680                1.4e-05
lanes, fused             115            7680 of  7680                1.2e-05
*/
