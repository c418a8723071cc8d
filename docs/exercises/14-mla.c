/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/14-mla.c -o build/ex14 -lm && build/ex14
 *
 * Exercise for docs/14-mla.md. One head, one query that sees S latents. Write its answer y [Dv]
 * without making a key or a value:
 *
 *     q' = W_k^T q_n          score_s = scale (q' . c_s + q_r . k_r,s)
 *     p  = softmax(score)     y = W_v sum_s p_s c_s
 *
 * q [Dn + Dr] is q_n, then q_r. latent [S, R + Dr] is c, then k_r. W [Dn + Dv, R] is W_k, then W_v.
 * tr_softmax_f64(p, p, NULL, 1, S) turns a row into shares. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { S = 7, Dn = 4, Dr = 3, Dv = 5, R = 6 };

static void absorbed(double *y, const double *q, const double *latent, const double *W,
                     double scale);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void absorbed(double *y, const double *q, const double *latent, const double *W,
                     double scale)
{
    (void)q; (void)latent; (void)W; (void)scale;
    for (int d = 0; d < Dv; d++) y[d] = 0;
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    double q[Dn + Dr], latent[S * (R + Dr)], W[(Dn + Dv) * R], kv[S * (Dn + Dv)], y[Dv], want[Dv];
    tr_weight kv_b;
    tr_mla_args a;
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    for (int i = 0; i < Dn + Dr; i++) q[i] = tr_rng_normal(14, 0, (uint64_t)i);
    for (int i = 0; i < S * (R + Dr); i++) latent[i] = tr_rng_normal(14, 1, (uint64_t)i);
    for (int i = 0; i < (Dn + Dv) * R; i++) W[i] = tr_rng_normal(14, 2, (uint64_t)i);
    if (tr_weight_of(ctx, &kv_b, tr_qformat_get(TR_FMT_F64), "kv_b", W, NULL, Dn + Dv, R, 1, 1))
        return 1;
    memset(&a, 0, sizeof a);
    a.y = tr_view3(want, TR_F64, 1, 1, Dv);
    a.q = tr_view3(q, TR_F64, 1, 1, Dn + Dr);
    a.latent = tr_view2(latent, TR_F64, S, R + Dr);
    a.kv = tr_view2(kv, TR_F64, S, Dn + Dv);
    a.kv_b = &kv_b;
    a.rope = Dr;
    a.pos = S - 1;
    a.scale = 1 / sqrt(Dn + Dr);
    if (tr_mla_f64(ctx, &a)) { printf("%s\n", tr_err_last(ctx)); return 1; }
    absorbed(y, q, latent, W, a.scale);
    for (int d = 0; d < Dv; d++)
        if (!(fabs(y[d] - want[d]) <= 1e-14)) {
            printf("missing: number %d of the answer is %.6f, yours is %.6f\n", d, want[d], y[d]);
            return 1;
        }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void absorbed(double *y, const double *q, const double *latent, const double *W,
                     double scale)
{
    double into[R] = { 0 }, p[S], mean[R] = { 0 };
    for (int d = 0; d < Dn; d++)
        for (int r = 0; r < R; r++) into[r] += W[d * R + r] * q[d];
    for (int s = 0; s < S; s++) {
        const double *c = latent + s * (R + Dr);
        p[s] = scale * (tr_dot_f64(into, c, R) + tr_dot_f64(q + Dn, c + R, Dr));
    }
    tr_softmax_f64(p, p, NULL, 1, S);
    for (int s = 0; s < S; s++)
        for (int r = 0; r < R; r++) mean[r] += p[s] * latent[s * (R + Dr) + r];
    for (int d = 0; d < Dv; d++) y[d] = tr_dot_f64(W + (Dn + d) * R, mean, R);
}
#endif
