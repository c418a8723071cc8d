/* cc -std=c11 -O2 -ffp-contract=off -I. examples/05_latent.c -o build/05_latent -lm && build/05_latent */

/* Latent attention remembers one short row a token. It can be read in two ways: make the keys and
 * values of all heads again and attend to them (expanded), or carry the query into the latent,
 * attend there, and carry only the result out (absorbed). The oracle's definition expands, the
 * exact profile absorbs; here the absorbed form is written out beside the definition, and both give
 * the same numbers but for rounding. Then what the latent saves in released models. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

enum { S = 6, H = 2, Dn = 3, Dr = 2, Dv = 4, R = 5, Dk = Dn + Dr };

/* One head of the last token. W holds its rows of kv_b: Dn of key, then Dv of value. */
static void absorbed(double *y, const double *q, const double *latent, const double *W,
                     double scale)
{
    double qt[R + Dr] = { 0 }, p[S], mean[R] = { 0 };
    for (int d = 0; d < Dn; d++)                            /* qt = W_k^T q_n: into the latent */
        for (int r = 0; r < R; r++) qt[r] += q[d] * W[d * R + r];
    for (int r = 0; r < Dr; r++) qt[R + r] = q[Dn + r];     /* the shared part as it is */
    for (int s = 0; s < S; s++) p[s] = scale * tr_dot_f64(qt, latent + s * (R + Dr), R + Dr);
    tr_softmax_f64(p, p, NULL, 1, S);
    for (int s = 0; s < S; s++)
        for (int r = 0; r < R; r++) mean[r] += p[s] * latent[s * (R + Dr) + r];
    for (int d = 0; d < Dv; d++) y[d] = tr_dot_f64(W + (Dn + d) * R, mean, R);      /* and out */
}

static void memory(const char *model, int heads, int nope, int rope, int v, int rank, int layers)
{
    int all = heads * (nope + rope + v), latent = rank + rope;
    printf("%-12s %7d %8d %7.1f %14d %10d\n", model, all, latent, (double)all / latent,
           2 * layers * all, 2 * layers * latent);
}

int main(void)
{
    double q[H * Dk], latent[S * (R + Dr)], W[H * (Dn + Dv) * R], kv[S * H * (Dn + Dv)];
    double y[H * Dv], z[Dv], worst = 0;
    tr_weight kv_b;
    tr_mla_args a;
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    for (int i = 0; i < H * Dk; i++) q[i] = tr_rng_normal(1, 0, (uint64_t)i);
    for (int i = 0; i < S * (R + Dr); i++) latent[i] = tr_rng_normal(1, 1, (uint64_t)i);
    for (int i = 0; i < H * (Dn + Dv) * R; i++) W[i] = tr_rng_normal(1, 2, (uint64_t)i);
    a.y = tr_view3(y, TR_F64, 1, H, Dv);
    a.q = tr_view3(q, TR_F64, 1, H, Dk);
    a.latent = tr_view2(latent, TR_F64, S, R + Dr);
    a.kv = tr_view2(kv, TR_F64, S, H * (Dn + Dv));
    a.absorbed = tr_view_none();
    a.kv_b = &kv_b;
    a.probs = tr_view_none();
    a.rope = Dr;
    a.pos = S - 1;
    a.scale = 1 / sqrt(Dk);
    if (tr_weight_of(ctx, &kv_b, tr_qformat_get(TR_FMT_F64), "kv_b", W, NULL, H * (Dn + Dv), R,
                     1, 1) != TR_OK || tr_mla_f64(ctx, &a) != TR_OK)
        return puts(tr_err_last(ctx));
    for (int h = 0; h < H; h++) {
        absorbed(z, q + h * Dk, latent, W + h * (Dn + Dv) * R, a.scale);
        printf("head %d  expanded", h);
        for (int d = 0; d < Dv; d++) printf(" %8.5f", y[h * Dv + d]);
        printf("\n        absorbed");
        for (int d = 0; d < Dv; d++) printf(" %8.5f", z[d]);
        for (int d = 0; d < Dv; d++) worst = fmax(worst, fabs(z[d] - y[h * Dv + d]));
        puts("");
    }
    printf("largest difference below 1e-14: %s\n\n", worst < 1e-14 ? "yes" : "no");
    puts("             numbers a token and layer     bytes a token (bf16, all layers)");
    puts("model         k and v   latent   ratio        k and v     latent");
    memory("DeepSeek-V3", 128, 128, 64, 128, 512, 61);
    memory("Kimi K3", 96, 128, 64, 128, 512, 24);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
head 0  expanded -2.02278 -0.09339 -0.39650  0.32759
        absorbed -2.02278 -0.09339 -0.39650  0.32759
head 1  expanded  0.72576  0.17898  0.14405  0.27252
        absorbed  0.72576  0.17898  0.14405  0.27252
largest difference below 1e-14: yes

             numbers a token and layer     bytes a token (bf16, all layers)
model         k and v   latent   ratio        k and v     latent
DeepSeek-V3    40960      576    71.1        4997120      70272
Kimi K3        30720      576    53.3        1474560      27648
*/
