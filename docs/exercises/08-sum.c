/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/08-sum.c -o build/ex08 -lm && build/ex08
 *
 * Exercise for docs/08-sum.md. Write into ids the indices of the K largest of x[0..n), largest
 * first, equal values by lower index, none twice; -infinity may be chosen, K <= n, n <= 1024. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void topk(int *ids, int K, const double *x, int n);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void topk(int *ids, int K, const double *x, int n)
{
    (void)x; (void)n;
    for (int k = 0; k < K; k++) ids[k] = k;
}
/* -------------------------------------------------------------------------- */
#endif

static int check(const char *what, const double *x, int n, int K)
{
    int ids[1024];
    int32_t want[1024];
    memset(ids, -1, sizeof ids);
    topk(ids, K, x, n);
    tr_topk_f64(want, K, x, n, NULL);
    for (int k = 0; k < K; k++)
        if (ids[k] != want[k]) {
            printf("missing: %s: choice %d is index %d, yours is %d\n", what, k, (int)want[k],
                   ids[k]);
            return 1;
        }
    return 0;
}

int main(void)
{
    double x[896], inf[8], zeros[4] = { -0.0, 0.0, -0.0, 0.0 };
    for (int i = 0; i < 896; i++) x[i] = floor(20 * tr_rng_normal(9, 0, (uint64_t)i));
    x[255] = x[256] = x[895] = 200;
    if (check("896 scores with many ties", x, 896, 16)) return 1;
    for (int i = 0; i < 896; i++) x[i] -= 1000;
    if (check("all scores negative", x, 896, 896)) return 1;
    for (int i = 0; i < 8; i++) inf[i] = i == 5 ? 1 : -HUGE_VAL;
    if (check("one finite score", inf, 8, 3) || check("both zeros", zeros, 4, 4)) return 1;
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void topk(int *ids, int K, const double *x, int n)
{
    char taken[1024] = { 0 };
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
        taken[best] = 1;
        ids[k] = best;
    }
}
#endif
