/* cc -std=c11 -O2 -ffp-contract=off -I. examples/03_norms.c -o build/03_norms -lm && build/03_norms */

/* A norm divides a row by its own size. The three kinds differ in what "size" means, and none of
 * them notices when the whole row is multiplied by a number. Then the row gets smaller and smaller,
 * and eps takes over: below it the norm is only a multiplication by 1 / sqrt(eps). The last table
 * shows the usual mistake: calling an RMS norm where the L2 norm of a delta rule is meant. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>

#define D 4

static void print_row(const char *name, const double *y)
{
    double ss = tr_sumsq_f64(y, D);
    printf("%-22s", name);
    for (int d = 0; d < D; d++) printf(" %8.4f", y[d]);
    printf("   mean square %.4f\n", ss / D);
}

int main(void)
{
    const double x[D] = { 1, -2, 3, 6 };
    double big[D], y[D];
    for (int d = 0; d < D; d++) big[d] = 1000 * x[d];

    puts("one row, three norms");
    print_row("x", x);
    tr_rmsnorm_f64(y, x, NULL, 1, D, 1e-6);
    print_row("rms", y);
    tr_rmsnorm_f64(y, big, NULL, 1, D, 1e-6);
    print_row("rms of 1000 x", y);
    tr_l2norm_f64(y, x, 1, D, 1e-6);
    print_row("l2", y);
    tr_layernorm_f64(y, x, NULL, NULL, 1, D, 1e-6);
    print_row("layer", y);

    puts("\nsize of the row after an rms norm: where eps takes over");
    puts("rms of x      eps 1e-5   eps 1e-6");
    for (int i = 0; i < 7; i++) {
        double s = pow(10, -i), row[D] = { s, -s, s, s };
        printf("%8.0e", s);
        for (int k = 5; k <= 6; k++) {
            tr_rmsnorm_f64(y, row, NULL, 1, D, pow(10, -k));
            printf("%13.4f", sqrt(tr_sumsq_f64(y, D) / D));
        }
        puts("");
    }

    puts("\nl2 norm of a small key, made with an rms norm");
    double key[D] = { 1e-3, -2e-3, 3e-3, 6e-3 }, half = 1 / sqrt(D);
    tr_l2norm_f64(y, key, 1, D, 1e-6);
    print_row("l2, eps", y);
    tr_rmsnorm_f64(y, key, NULL, 1, D, 1e-6);
    for (int d = 0; d < D; d++) y[d] *= half;
    print_row("rms, eps: wrong", y);
    tr_rmsnorm_f64(y, key, NULL, 1, D, 1e-6 / D);
    for (int d = 0; d < D; d++) y[d] *= half;
    print_row("rms, eps / D: right", y);
    return 0;
}

/* expected output:
one row, three norms
x                        1.0000  -2.0000   3.0000   6.0000   mean square 12.5000
rms                      0.2828  -0.5657   0.8485   1.6971   mean square 1.0000
rms of 1000 x            0.2828  -0.5657   0.8485   1.6971   mean square 1.0000
l2                       0.1414  -0.2828   0.4243   0.8485   mean square 0.2500
layer                   -0.3430  -1.3720   0.3430   1.3720   mean square 1.0000

size of the row after an rms norm: where eps takes over
rms of x      eps 1e-5   eps 1e-6
   1e+00       1.0000       1.0000
   1e-01       0.9995       1.0000
   1e-02       0.9535       0.9950
   1e-03       0.3015       0.7071
   1e-04       0.0316       0.0995
   1e-05       0.0032       0.0100
   1e-06       0.0003       0.0010

l2 norm of a small key, made with an rms norm
l2, eps                  0.1400  -0.2801   0.4201   0.8402   mean square 0.2451
rms, eps: wrong          0.1361  -0.2722   0.4082   0.8165   mean square 0.2315
rms, eps / D: right      0.1400  -0.2801   0.4201   0.8402   mean square 0.2451
*/
