/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/18-moe.c -o build/ex18 -lm && build/ex18
 *
 * Exercise for docs/18-moe.md. Choose K of E experts by s + bias, largest first, equal ones by the
 * lower index, none twice; a bias may be -infinity. Write their ids in increasing order, and their
 * weights: the scores s of those chosen, divided by the sum of these scores. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { E = 8, K = 3 };

static void choose(int32_t *ids, double *w, const double *s, const double *bias);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void choose(int32_t *ids, double *w, const double *s, const double *bias)
{
    (void)s; (void)bias;
    for (int j = 0; j < K; j++) { ids[j] = j; w[j] = 1.0 / K; }
}
/* -------------------------------------------------------------------------- */
#endif

static int check(tr_ctx *ctx, const char *name, double *logits, double *bias)
{
    int32_t ids[K], want_ids[K];
    double s[E], w[K], want[K];
    tr_route_args a;
    memset(&a, 0, sizeof a);
    a.ids = tr_view2(want_ids, TR_I32, 1, K);
    a.weights = tr_view2(want, TR_F64, 1, K);
    a.scores = tr_view2(s, TR_F64, 1, E);
    a.logits = tr_view2(logits, TR_F64, 1, E);
    a.bias = tr_view1(bias, TR_F64, E);
    a.score = TR_SCORE_SIGMOID;
    a.groups = a.keep = a.renorm = 1;
    a.scale = 1;
    if (tr_route_f64(ctx, &a)) { printf("%s\n", tr_err_last(ctx)); return 1; }
    choose(ids, w, s, bias);
    for (int j = 0; j < K; j++)
        if (ids[j] != want_ids[j] || !(fabs(w[j] - want[j]) <= 1e-15)) {
            printf("missing: %s: choice %d is expert %d with weight %.4f, yours is %d with %.4f\n",
                   name, j, (int)want_ids[j], want[j], (int)ids[j], w[j]);
            return 1;
        }
    return 0;
}

int main(void)
{
    double none[E] = { 0 }, low[E], one[E], logits[E], same[E] = { 1, 2, 0, 2, 2, 2, 0, 2 };
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    for (int e = 0; e < E; e++) {
        logits[e] = tr_rng_normal(18, 0, (uint64_t)e);
        low[e] = tr_rng_normal(18, 1, (uint64_t)e) - 3;     /* every s + bias is below 0 */
        one[e] = e == 5 ? 0 : -INFINITY;
    }
    if (check(ctx, "no bias", logits, none) || check(ctx, "ties", same, none) ||
        check(ctx, "all below 0", logits, low) || check(ctx, "one of finite bias", logits, one))
        return 1;
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void choose(int32_t *ids, double *w, const double *s, const double *bias)
{
    int taken[E] = { 0 }, n = 0;
    double sum = 0;
    for (int j = 0; j < K; j++) {
        int best = -1;
        for (int e = 0; e < E; e++)         /* > and not >=: the first of equals stays */
            if (!taken[e] && (best < 0 || s[e] + bias[e] > s[best] + bias[best])) best = e;
        taken[best] = 1;
        sum += s[best];
    }
    for (int e = 0; e < E; e++)
        if (taken[e]) { ids[n] = e; w[n++] = s[e] / sum; }
}
#endif
