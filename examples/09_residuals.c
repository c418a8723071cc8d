/* cc -std=c11 -O2 -ffp-contract=off -I. examples/09_residuals.c -o build/09_residuals -lm && build/09_residuals */

/* Block attention residuals, followed through six layers in blocks of two. P is the running sum; at
 * the start of a block it is pushed onto the list B and starts anew. Every sublayer reads a softmax
 * mix of B and P. The sublayers here are dull (number i returns the i-th unit vector), so a source
 * can be written as the sublayers that it is the sum of; 0 is the embedding. The shares come from
 * tr_mix_f64, with a query (norm times proj) that likes the embedding and dislikes the rest a
 * little. A plain residual would read share 1 of everything, always. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { D = 16, LAYERS = 6, BLOCK = 2, MAX = LAYERS / BLOCK };

static double B[MAX][D], P[D];
static int64_t n;                           /* block sums held */

static void print_source(const double *v)
{
    const char *sep = "";
    printf(" ");
    for (int d = 0; d < D; d++)
        if (v[d] != 0) { printf("%s%d", sep, d); sep = "+"; }
}

static int read_mix(tr_ctx *ctx, const char *who, int layer)
{
    double y[D], norm[D], proj[D], probs[MAX + 1];
    tr_mix_args a;
    for (int d = 0; d < D; d++) { norm[d] = 1; proj[d] = d ? -0.1 : 0.2; }
    a.y = tr_view2(y, TR_F64, 1, D);
    a.snaps = tr_view3(B, TR_F64, n, 1, D);
    a.h = tr_view2(P, TR_F64, 1, D);
    a.norm = tr_view1(norm, TR_F64, D);
    a.proj = tr_view1(proj, TR_F64, D);
    a.probs = tr_view2(probs, TR_F64, 1, n + 1);
    a.eps = 1e-5;
    if (tr_mix_f64(ctx, &a) != TR_OK) { puts(tr_err_last(ctx)); return 1; }
    printf("%-7s %d  reads", who, layer);
    for (int64_t i = 0; i <= n; i++) {
        printf("%s %.3f of", i ? "," : "", probs[i]);
        print_source(i < n ? B[i] : P);
    }
    puts("");
    return 0;
}

int main(void)
{
    tr_ctx *ctx;
    int bad = 0, next = 1;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    P[0] = 1;                               /* the embedding; alone it is the whole mix */
    for (int l = 0; l < LAYERS; l++) {
        bad |= read_mix(ctx, "mixer", l);
        if (l % BLOCK == 0) {               /* push what entered the layer, and start anew */
            memcpy(B[n++], P, sizeof P);
            memset(P, 0, sizeof P);
        }
        P[next++] = 1;                      /* P = P + a */
        bad |= read_mix(ctx, "feed", l);
        P[next++] = 1;
    }
    bad |= read_mix(ctx, "output", LAYERS);
    tr_ctx_free(ctx);
    return bad;
}

/* expected output:
mixer   0  reads 1.000 of 0
feed    0  reads 0.769 of 0, 0.231 of 1
mixer   1  reads 0.797 of 0, 0.203 of 1+2
feed    1  reads 0.816 of 0, 0.184 of 1+2+3
mixer   2  reads 0.832 of 0, 0.168 of 1+2+3+4
feed    2  reads 0.665 of 0, 0.134 of 1+2+3+4, 0.200 of 5
mixer   3  reads 0.686 of 0, 0.139 of 1+2+3+4, 0.175 of 5+6
feed    3  reads 0.701 of 0, 0.142 of 1+2+3+4, 0.158 of 5+6+7
mixer   4  reads 0.712 of 0, 0.144 of 1+2+3+4, 0.144 of 5+6+7+8
feed    4  reads 0.586 of 0, 0.118 of 1+2+3+4, 0.118 of 5+6+7+8, 0.177 of 9
mixer   5  reads 0.603 of 0, 0.122 of 1+2+3+4, 0.122 of 5+6+7+8, 0.154 of 9+10
feed    5  reads 0.614 of 0, 0.124 of 1+2+3+4, 0.124 of 5+6+7+8, 0.138 of 9+10+11
output  6  reads 0.623 of 0, 0.126 of 1+2+3+4, 0.126 of 5+6+7+8, 0.126 of 9+10+11+12
*/
