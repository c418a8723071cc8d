/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/20-ops.c -o build/ex20 -lm && build/ex20
 *
 * Exercise for docs/20-ops.md. Bring your own RMSNorm: y = w x / sqrt(mean(x^2) + eps), row by
 * row. x and y are F64 views [N, D] with stride 1 inside a row; the rows of a slice are further
 * apart than D, so use stride[0]. y may be x. w is [D]. The table below sends such calls to you
 * and the others (L2 norms, gates, heads) to the oracle; the logits must come out as the
 * oracle's. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static tr_status my_norm(tr_ctx *ctx, const tr_norm_args *a);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static tr_status my_norm(tr_ctx *ctx, const tr_norm_args *a)
{
    (void)a;
    return tr_fail(ctx, TR_ERR_UNSUPPORTED, "my_norm is not written yet");
}
/* -------------------------------------------------------------------------- */
#endif

static tr_status norm(void *user, tr_ctx *ctx, const tr_norm_args *a)
{
    int mine = a->kind == TR_NORM_RMS && a->x.rank == 2 && tr_view_is_none(a->gate);
    (void)user;
    return mine ? my_norm(ctx, a) : tr_norm_f64(ctx, a);
}

/* The logits after three tokens, under a table of operators; NULL is the oracle's. */
static tr_status logits(tr_ctx *ctx, tr_model *m, const tr_ops *ops, double out[320])
{
    static const int32_t prompt[3] = { 5, 6, 7 };
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    int32_t next;
    tr_status s;
    o.profile = tr_profile_find("oracle");
    o.ops = ops;
    s = tr_run_new(ctx, &r, m, &o);
    if (s == TR_OK) s = tr_generate(r, prompt, 3, 1, &next);
    for (int i = 0; s == TR_OK && i < 320; i++) out[i] = tr_get_f64(r->logits.data, TR_F64, i);
    tr_run_free(r);
    return s;
}

int main(void)
{
    double theirs[320], yours[320];
    tr_ops ops = tr_ops_oracle();
    tr_diff d;
    tr_ctx *ctx;
    tr_model *m;
    ops.norm = norm;
    if (tr_ctx_new(&ctx, NULL) || tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL) ||
        logits(ctx, m, NULL, theirs)) return 2;
    if (logits(ctx, m, &ops, yours)) {
        printf("missing: %s\n", tr_err_last(ctx));
        return 1;
    }
    tr_diff_views(ctx, &d, tr_view1(yours, TR_F64, 320), tr_view1(theirs, TR_F64, 320));
    tr_model_close(m);
    tr_ctx_free(ctx);
    if (!(d.max_rel <= 1e-12)) {
        printf("missing: the logits are off by %g of their largest\n", d.max_rel);
        return 1;
    }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static tr_status my_norm(tr_ctx *ctx, const tr_norm_args *a)
{
    const double *w = tr_view_f64(a->w);
    (void)ctx;
    for (int64_t n = 0; n < a->x.shape[0]; n++) {
        const double *x = tr_view_f64(a->x) + n * a->x.stride[0];
        double *y = tr_view_f64(a->y) + n * a->y.stride[0];
        int64_t D = a->x.shape[1];
        double r = 1 / sqrt(tr_sumsq_f64(x, D) / (double)D + a->eps);
        for (int64_t d = 0; d < D; d++) y[d] = w[d] * (x[d] * r);
    }
    return TR_OK;
}
#endif
