/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/13-attn.c -o build/ex13 -lm && build/ex13
 *
 * Exercise for docs/13-attn.md. Attention over some of the keys leaves three things: the largest
 * score m, l = sum e^(z - m), and o = sum e^(z - m) v. Merge such a part into another one, so that
 * at the end o / l is attention over all keys. A part that saw no key has m = -infinity, l = 0,
 * o = 0, and may come at any place. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct part { double m, l, o; } part;      /* values of one number each */

static void merge(part *a, const part *b);

#ifndef SOLUTION
/* ---- complete this: a becomes a and b together --------------------------- */
static void merge(part *a, const part *b)
{
    a->l += b->l;
    a->o += b->o;
}
/* -------------------------------------------------------------------------- */
#endif

static part of_keys(const double *z, const double *v, int n)
{
    part p = { -INFINITY, 0, 0 };
    for (int s = 0; s < n; s++) p.m = z[s] > p.m ? z[s] : p.m;
    for (int s = 0; s < n; s++) {
        p.l += exp(z[s] - p.m);
        p.o += exp(z[s] - p.m) * v[s];
    }
    return p;
}

int main(void)
{
    enum { S = 12 };
    static const double size[3] = { 1, 30, 2000 };      /* scores that no exponential survives */
    static const int cut[5] = { 0, 0, 0, 5, 12 };       /* parts of no key, none, five, seven */
    double z[S], v[S], y, one = 1;
    tr_attn_args a;
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL)) return 1;
    memset(&a, 0, sizeof a);
    a.y = tr_view3(&y, TR_F64, 1, 1, 1);
    a.q = tr_view3(&one, TR_F64, 1, 1, 1);
    a.k = tr_view3(z, TR_F64, S, 1, 1);
    a.v = tr_view3(v, TR_F64, S, 1, 1);
    a.pos = S - 1;
    a.scale = 1;
    for (int i = 0; i < 3; i++)
        for (int order = 0; order < 2; order++) {
            part all = { 0, 0, 0 };
            for (int s = 0; s < S; s++) {
                z[s] = size[i] * tr_rng_normal(13, (uint64_t)i, (uint64_t)s);
                v[s] = tr_rng_normal(13, 9, (uint64_t)s);
            }
            if (tr_attn_f64(ctx, &a)) { printf("%s\n", tr_err_last(ctx)); return 1; }
            for (int k = 0; k < 4; k++) {
                int j = order ? 3 - k : k;
                part p = of_keys(z + cut[j], v + cut[j], cut[j + 1] - cut[j]);
                if (k == 0) all = p; else merge(&all, &p);
            }
            if (fabs(all.o / all.l - y) <= 1e-14) continue;
            printf("missing: scores of size %g: the answer is %.6f, yours is %.6f\n", size[i], y,
                   all.o / all.l);
            return 1;
        }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void merge(part *a, const part *b)
{
    double m = a->m > b->m ? a->m : b->m;
    double fa = a->l > 0 ? exp(a->m - m) : 0;       /* an empty part has nothing to scale: */
    double fb = b->l > 0 ? exp(b->m - m) : 0;       /* -infinity - -infinity is NaN */
    a->l = fa * a->l + fb * b->l;
    a->o = fa * a->o + fb * b->o;
    a->m = m;
}
#endif
