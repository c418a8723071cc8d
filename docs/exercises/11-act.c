/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/11-act.c -o build/ex11 -lm && build/ex11
 *
 * Exercise for docs/11-act.md. A config names an activation that the library does not bring: a
 * SwiGLU whose parts are clamped at a limit L,
 *
 *     silu(min(g, L)) · clamp(u, -L, L)
 *
 * The gate is clamped from above only. L is p[0]. tr_silu_f64 is there. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

static double clamped(double g, double u, const double *p);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static double clamped(double g, double u, const double *p)
{
    (void)p;
    return tr_silu_f64(g) * u;
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    double g[4] = { 1, 12, -3, 10.5 }, u[4] = { 0.5, 11, -20, -1 }, y[4];
    static const double want[4] = { 0.3655293, 99.9954602, 1.4227762, -9.9995460 };
    tr_act act = { "clamped_swiglu", clamped };
    tr_glu_args a;
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) || tr_ctx_add_act(ctx, &act)) return 1;
    a.y = tr_view2(y, TR_F64, 1, 4);
    a.g = tr_view2(g, TR_F64, 1, 4);
    a.u = tr_view2(u, TR_F64, 1, 4);
    a.act = tr_act_find(ctx, "clamped_swiglu");
    a.p[0] = 10;
    a.p[1] = 0;
    if (tr_glu_f64(ctx, &a)) { printf("%s\n", tr_err_last(ctx)); return 1; }
    for (int i = 0; i < 4; i++)
        if (!(fabs(y[i] - want[i]) < 1e-6)) {
            printf("missing: at g = %g, u = %g it is %.7f, yours is %.7f\n", g[i], u[i], want[i],
                   y[i]);
            return 1;
        }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static double clamped(double g, double u, const double *p)
{
    double L = p[0];
    return tr_silu_f64(g < L ? g : L) * (u > L ? L : u < -L ? -L : u);
}
#endif
