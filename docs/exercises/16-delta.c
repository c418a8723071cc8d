/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/16-delta.c -o build/ex16 -lm && build/ex16
 *
 * Exercise for docs/16-delta.md. One token of one head, with the state as other programs keep it:
 * S [K, V], so that row c belongs to key channel c. Fade, ask, correct, read:
 *
 *     S[c, i] = e^(g_c) S[c, i]
 *     u_i     = sum_c k_c S[c, i]
 *     S[c, i] = S[c, i] + k_c beta (v_i - u_i)
 *     o_i     = sum_c q_c S[c, i] */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

enum { K = 6, V = 4, T = 20 };

static void step(double *o, double *S, const double *q, const double *k, const double *v,
                 const double *g, double beta);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void step(double *o, double *S, const double *q, const double *k, const double *v,
                 const double *g, double beta)
{
    (void)g; (void)beta;
    for (int c = 0; c < K; c++)                 /* linear attention: it only adds */
        for (int i = 0; i < V; i++) S[c * V + i] += k[c] * v[i];
    for (int i = 0; i < V; i++) {
        o[i] = 0;
        for (int c = 0; c < K; c++) o[i] += q[c] * S[c * V + i];
    }
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    double ours[V * K] = { 0 }, yours[K * V] = { 0 };
    for (int t = 0; t < T; t++) {
        double q[K], k[K], v[V], g[K], o[V], want[V], beta = tr_rng_unit(16, 4, (uint64_t)t);
        for (int c = 0; c < K; c++) {
            uint64_t n = (uint64_t)(t * K + c);
            q[c] = tr_rng_normal(16, 0, n);
            k[c] = tr_rng_normal(16, 1, n);
            g[c] = -5 * tr_rng_unit(16, 2, n);
        }
        for (int i = 0; i < V; i++) v[i] = tr_rng_normal(16, 3, (uint64_t)(t * V + i));
        tr_l2norm_f64(k, k, 1, K, 1e-6);
        tr_delta_step_f64(want, ours, q, k, v, g, beta, K, V);
        step(o, yours, q, k, v, g, beta);
        for (int i = 0; i < V; i++)
            if (!(fabs(o[i] - want[i]) <= 1e-13)) {
                printf("missing: token %d, output %d is %.6f, yours is %.6f\n", t, i, want[i],
                       o[i]);
                return 1;
            }
    }
    for (int c = 0; c < K; c++)
        for (int i = 0; i < V; i++)
            if (!(fabs(yours[c * V + i] - ours[i * K + c]) <= 1e-13)) {
                printf("missing: the outputs are right, S[%d, %d] is not\n", c, i);
                return 1;
            }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void step(double *o, double *S, const double *q, const double *k, const double *v,
                 const double *g, double beta)
{
    double u[V] = { 0 };
    for (int c = 0; c < K; c++)
        for (int i = 0; i < V; i++) {
            S[c * V + i] *= exp(g[c]);
            u[i] += k[c] * S[c * V + i];
        }
    for (int i = 0; i < V; i++) o[i] = 0;
    for (int c = 0; c < K; c++)
        for (int i = 0; i < V; i++) {
            S[c * V + i] += k[c] * beta * (v[i] - u[i]);
            o[i] += q[c] * S[c * V + i];
        }
}
#endif
