/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/17-res.c -o build/ex17 -lm && build/ex17
 *
 * Exercise for docs/17-res.md. The bookkeeping of block attention residuals, with numbers in place
 * of rows. Sublayer 0 of a layer is its mixer, sublayer 1 its feed-forward. Complete `returned`,
 * which is called with what the sublayer returned, after the sublayer has read its sources.
 *
 *     a layer whose index is a multiple of `block` starts a block: before its mixer's result is
 *     taken in, the running sum is pushed onto the list, and then starts anew */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

typedef struct flow {
    double sum;             /* P, the running sum */
    double push[16];        /* B, the sums that were pushed */
    int n;                  /* how many */
} flow;

static void returned(flow *f, int layer, int block, int sublayer, double a);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void returned(flow *f, int layer, int block, int sublayer, double a)
{
    (void)layer; (void)block; (void)sublayer;
    f->sum += a;
}
/* -------------------------------------------------------------------------- */
#endif

/* The slow way: sublayer i returned i + 1 (the embedding is 1000), and a source is the sum of all
 * sublayers between two boundaries. Sources before sublayer `at` (2 layer + sublayer). */
static int sources(double *s, int at, int block)
{
    int n = 0;
    double sum = 1000;
    for (int i = 0; i < at; i++) {
        if (i % (2 * block) == 0) { s[n++] = sum; sum = 0; }
        sum += i + 1;
    }
    s[n++] = sum;
    return n;
}

int main(void)
{
    for (int block = 1; block <= 5; block++)
        for (int layers = 1; layers <= 11; layers++) {
            flow f = { 1000, { 0 }, 0 };
            for (int at = 0; at <= 2 * layers; at++) {
                double want[16];
                int n = sources(want, at, block);
                int bad = f.n != n - 1 || f.sum != want[n - 1];
                for (int i = 0; !bad && i < f.n; i++) bad = f.push[i] != want[i];
                if (bad) {
                    printf("missing: blocks of %d layers, before sublayer %d of layer %d there are "
                           "%d sums pushed and P is %g; yours: %d and %g\n", block, at % 2, at / 2,
                           n - 1, want[n - 1], f.n, f.sum);
                    return 1;
                }
                if (at < 2 * layers) returned(&f, at / 2, block, at % 2, at + 1);
            }
        }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void returned(flow *f, int layer, int block, int sublayer, double a)
{
    if (sublayer == 0 && layer % block == 0) {
        f->push[f->n++] = f->sum;
        f->sum = 0;
    }
    f->sum += a;
}
#endif
