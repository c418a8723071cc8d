/* cc -std=c11 -O2 -ffp-contract=off -I. examples/07_router.c -o build/07_router -lm && build/07_router */

/* One token, eight experts, two of them chosen. Each line of bars is the score s of an expert; the
 * bias is added for the choice only. So a bias can send the token elsewhere, but the weights of
 * those chosen come from the bare scores. Equal scores are decided by the lower index. With groups
 * the token first picks the groups whose two best experts add up to most: the single best expert
 * may stay at home. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { E = 8, K = 2 };

static int route(tr_ctx *ctx, const char *title, const double *s, const double *b, int64_t groups)
{
    int32_t ids[K];
    double w[K], scores[E], logits[E], bias[E];
    tr_route_args a;
    for (int e = 0; e < E; e++) logits[e] = log(s[e] / (1 - s[e]));     /* the sigmoid's inverse */
    for (int e = 0; e < E; e++) bias[e] = b ? b[e] : 0;
    memset(&a, 0, sizeof a);
    a.ids = tr_view2(ids, TR_I32, 1, K);
    a.weights = tr_view2(w, TR_F64, 1, K);
    a.scores = tr_view2(scores, TR_F64, 1, E);
    a.logits = tr_view2(logits, TR_F64, 1, E);
    a.bias = tr_view1(bias, TR_F64, E);
    a.score = TR_SCORE_SIGMOID;
    a.groups = groups;
    a.keep = 1;
    a.renorm = 1;
    a.renorm_eps = 1e-20;
    a.scale = 1;
    if (tr_route_f64(ctx, &a) != TR_OK) return puts(tr_err_last(ctx));
    printf("%s\n  expert   s     bias    c\n", title);
    for (int e = 0; e < E; e++) {
        int j = e == ids[0] ? 0 : e == ids[1] ? 1 : -1, n = (int)(20 * scores[e] + 0.5);
        if (groups > 1 && e && e % (E / groups) == 0) puts("  ------");
        printf("  %d      %.2f  %+5.2f  %5.2f  %.*s", e, scores[e], bias[e], scores[e] + bias[e], n,
               "####################");
        if (j >= 0) printf("%*s<- weight %.3f", 22 - n, "", w[j]);
        puts("");
    }
    puts("");
    return 0;
}

int main(void)
{
    const double s[E] = { 0.20, 0.91, 0.32, 0.45, 0.71, 0.41, 0.52, 0.69 };
    const double push[E] = { 0, -0.6, 0, 0, 0, 0, 0.3, 0 };
    const double same[E] = { 0.25, 0.81, 0.75, 0.75, 0.25, 0.75, 0.25, 0.75 };
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    route(ctx, "no bias: the two largest scores", s, NULL, 1);
    route(ctx, "1 is overloaded, 6 idle: another pair, weighted by the bare scores", s, push, 1);
    route(ctx, "four experts tie for the second place: the lowest index", same, NULL, 1);
    route(ctx, "two groups, one kept: 4 + 7 beat 1 + 3", s, NULL, 2);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
no bias: the two largest scores
  expert   s     bias    c
  0      0.20  +0.00   0.20  ####
  1      0.91  +0.00   0.91  ##################    <- weight 0.562
  2      0.32  +0.00   0.32  ######
  3      0.45  +0.00   0.45  #########
  4      0.71  +0.00   0.71  ##############        <- weight 0.438
  5      0.41  +0.00   0.41  ########
  6      0.52  +0.00   0.52  ##########
  7      0.69  +0.00   0.69  ##############

1 is overloaded, 6 idle: another pair, weighted by the bare scores
  expert   s     bias    c
  0      0.20  +0.00   0.20  ####
  1      0.91  -0.60   0.31  ##################
  2      0.32  +0.00   0.32  ######
  3      0.45  +0.00   0.45  #########
  4      0.71  +0.00   0.71  ##############        <- weight 0.577
  5      0.41  +0.00   0.41  ########
  6      0.52  +0.30   0.82  ##########            <- weight 0.423
  7      0.69  +0.00   0.69  ##############

four experts tie for the second place: the lowest index
  expert   s     bias    c
  0      0.25  +0.00   0.25  #####
  1      0.81  +0.00   0.81  ################      <- weight 0.519
  2      0.75  +0.00   0.75  ###############       <- weight 0.481
  3      0.75  +0.00   0.75  ###############
  4      0.25  +0.00   0.25  #####
  5      0.75  +0.00   0.75  ###############
  6      0.25  +0.00   0.25  #####
  7      0.75  +0.00   0.75  ###############

two groups, one kept: 4 + 7 beat 1 + 3
  expert   s     bias    c
  0      0.20  +0.00   0.20  ####
  1      0.91  +0.00   0.91  ##################
  2      0.32  +0.00   0.32  ######
  3      0.45  +0.00   0.45  #########
  ------
  4      0.71  +0.00   0.71  ##############        <- weight 0.507
  5      0.41  +0.00   0.41  ########
  6      0.52  +0.00   0.52  ##########
  7      0.69  +0.00   0.69  ##############        <- weight 0.493

*/
