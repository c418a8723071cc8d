/* cc -std=c11 -O2 -ffp-contract=off -I. examples/06_delta.c -o build/06_delta -lm && build/06_delta */

/* A matrix as memory. A plain sum of outer products (linear attention) answers a key that was
 * written twice with both values added up; the delta rule first reads what is stored under the key
 * and writes only the difference, so the new value replaces the old. A smaller beta corrects in
 * steps. Keys that resemble each other disturb each other. And with a decay the memory fades,
 * channel by channel: here the first channel keeps half of itself at each token, the second one all
 * of itself. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { K = 2, V = 2 };

static double S[V * K], plain[V * K];       /* [V, K]: row i answers with value i */

static void show(const char *what)
{
    /* what the memory says about the keys (1, 0) and (0, 1): its two columns */
    printf("%-38s (%6.3f, %6.3f)   (%6.3f, %6.3f)\n", what, S[0], S[2], S[1], S[3]);
}

static void put(const char *what, double k0, double k1, double v0, double v1, double beta,
                const double *g)
{
    const double k[K] = { k0, k1 }, v[V] = { v0, v1 };
    double o[V];
    tr_delta_step_f64(o, S, k, k, v, g, beta, K, V);
    for (int i = 0; i < V; i++)
        for (int c = 0; c < K; c++) plain[i * K + c] += v[i] * k[c];
    show(what);
}

int main(void)
{
    const double keep[K] = { 0, 0 }, fade[K] = { log(0.5), 0 };     /* g is the log of the decay */
    printf("%-38s %-18s %s\n", "", "under key (1, 0)", "under key (0, 1)");
    put("write (1, 2) under (1, 0)", 1, 0, 1, 2, 1, keep);
    put("write (5, 5) under (0, 1)", 0, 1, 5, 5, 1, keep);
    put("write (3, 4) under (1, 0): replaced", 1, 0, 3, 4, 1, keep);
    printf("%-38s (%6.3f, %6.3f)   (%6.3f, %6.3f)\n", "  the plain sum would say", plain[0],
           plain[2], plain[1], plain[3]);

    puts("\nbeta 0.5: each write goes half of the way");
    for (int i = 1; i <= 4; i++) put("write (7, 0) under (1, 0)", 1, 0, 7, 0, 0.5, keep);

    puts("\na key between the two: (0.6, 0.8) has length 1, so it is learned exactly,");
    puts("and the others pay for it");
    put("write (1, 1) under (0.6, 0.8)", 0.6, 0.8, 1, 1, 1, keep);
    printf("%-38s (%6.3f, %6.3f)\n", "  read (0.6, 0.8)", 0.6 * S[0] + 0.8 * S[1],
           0.6 * S[2] + 0.8 * S[3]);

    puts("\ndecay (0.5, 1) a token, nothing written (beta 0)");
    for (int i = 1; i <= 3; i++) put("fade", 1, 0, 0, 0, 0, fade);
    return 0;
}

/* expected output:
                                       under key (1, 0)   under key (0, 1)
write (1, 2) under (1, 0)              ( 1.000,  2.000)   ( 0.000,  0.000)
write (5, 5) under (0, 1)              ( 1.000,  2.000)   ( 5.000,  5.000)
write (3, 4) under (1, 0): replaced    ( 3.000,  4.000)   ( 5.000,  5.000)
  the plain sum would say              ( 4.000,  6.000)   ( 5.000,  5.000)

beta 0.5: each write goes half of the way
write (7, 0) under (1, 0)              ( 5.000,  2.000)   ( 5.000,  5.000)
write (7, 0) under (1, 0)              ( 6.000,  1.000)   ( 5.000,  5.000)
write (7, 0) under (1, 0)              ( 6.500,  0.500)   ( 5.000,  5.000)
write (7, 0) under (1, 0)              ( 6.750,  0.250)   ( 5.000,  5.000)

a key between the two: (0.6, 0.8) has length 1, so it is learned exactly,
and the others pay for it
write (1, 1) under (0.6, 0.8)          ( 2.520, -1.640)   (-0.640,  2.480)
  read (0.6, 0.8)                      ( 1.000,  1.000)

decay (0.5, 1) a token, nothing written (beta 0)
fade                                   ( 1.260, -0.820)   (-0.640,  2.480)
fade                                   ( 0.630, -0.410)   (-0.640,  2.480)
fade                                   ( 0.315, -0.205)   (-0.640,  2.480)
*/
