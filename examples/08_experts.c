/* cc -std=c11 -O2 -ffp-contract=off -I. examples/08_experts.c -o build/08_experts -lm && build/08_experts */

/* From the router's choice to the layer's output. Dispatch sorts the choices by expert, so that
 * each expert is loaded once and works through its list: slot t K + j is choice j of token t. The
 * experts answer unweighted; combine weighs and adds them, token by token, in increasing expert
 * index. Expert e here multiplies by e + 1 (behind SwiGLU), so the answers are easy to tell apart.
 * The columns at the right leave out an expert, as a rank does that does not hold it: an id of -1
 * is no work, its slot stays 0, and the number that results looks like any other. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>

enum { N = 4, K = 2, E = 4 };               /* tokens, experts a token, experts; widths are 1 */

static tr_weight gate[E], up[E], down[E];

static tr_status run(tr_ctx *ctx, double *y, int32_t *ids, int print)
{
    static double x[N] = { 1, 2, 3, 4 }, w[N * K] = { .5, .5, .75, .25, .5, .5, .9, .1 };
    int32_t order[N * K], offset[E + 1];
    double out[N * K], g[N * K], u[N * K];
    tr_dispatch_args d;
    tr_experts_args a;
    tr_combine_args c;
    tr_status s;
    d.order = a.order = tr_view1(order, TR_I32, N * K);
    d.offset = a.offset = tr_view1(offset, TR_I32, E + 1);
    d.ids = tr_view2(ids, TR_I32, N, K);
    d.experts = E;
    a.y = c.x = tr_view3(out, TR_F64, N, K, 1);
    a.x = tr_view2(x, TR_F64, N, 1);
    a.gate = gate; a.up = up; a.down = down;
    a.g = tr_view2(g, TR_F64, N * K, 1);
    a.u = tr_view2(u, TR_F64, N * K, 1);
    a.act = tr_act_find(ctx, "silu");
    a.p[0] = a.p[1] = 0;
    c.y = tr_view2(y, TR_F64, N, 1);
    c.weights = tr_view2(w, TR_F64, N, K);
    if ((s = tr_dispatch(ctx, &d)) != TR_OK || (s = tr_experts_f64(ctx, &a)) != TR_OK ||
        (s = tr_combine_f64(ctx, &c)) != TR_OK) return s;
    for (int e = 0; print && e < E; e++) {
        printf("expert %d:", e);
        for (int i = offset[e]; i < offset[e + 1]; i++)
            printf("  token %d, slot %d -> %7.4f", order[i] / K, order[i], out[order[i]]);
        puts(offset[e] == offset[e + 1] ? "  no token" : "");
    }
    return TR_OK;
}

int main(void)
{
    static double one[1] = { 1 }, by[E] = { 1, 2, 3, 4 };
    int32_t ids[N * K] = { 0, 2, 2, 3, 0, 3, 2, 3 }, here[N * K], rest[N * K];
    double y[N], part[N], other[N];
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    for (int e = 0; e < E; e++) {
        const tr_qformat *f = tr_qformat_get(TR_FMT_F64);
        if (tr_weight_of(ctx, &gate[e], f, "gate", one, NULL, 1, 1, 1, 1) != TR_OK ||
            tr_weight_of(ctx, &up[e], f, "up", one, NULL, 1, 1, 1, 1) != TR_OK ||
            tr_weight_of(ctx, &down[e], f, "down", by + e, NULL, 1, 1, 1, 1) != TR_OK) return 1;
    }
    for (int i = 0; i < N * K; i++) {
        here[i] = ids[i] == 2 ? -1 : ids[i];        /* -1: not computed here */
        rest[i] = ids[i] == 2 ? 2 : -1;
    }
    if (run(ctx, y, ids, 1) != TR_OK || run(ctx, part, here, 0) != TR_OK ||
        run(ctx, other, rest, 0) != TR_OK) return puts(tr_err_last(ctx));
    puts("\n         all four  without 2     only 2");
    for (int t = 0; t < N; t++)
        printf("token %d  %9.4f  %9.4f  %9.4f\n", t, y[t], part[t], other[t]);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
expert 0:  token 0, slot 0 ->  0.7311  token 2, slot 4 ->  8.5732
expert 1:  no token
expert 2:  token 0, slot 1 ->  2.1932  token 1, slot 2 -> 10.5696  token 3, slot 6 -> 47.1367
expert 3:  token 1, slot 3 -> 14.0928  token 2, slot 5 -> 34.2927  token 3, slot 7 -> 62.8489

         all four  without 2     only 2
token 0     1.4621     0.3655     1.0966
token 1    11.4504     3.5232     7.9272
token 2    21.4329    21.4329     0.0000
token 3    48.7079     6.2849    42.4230
*/
