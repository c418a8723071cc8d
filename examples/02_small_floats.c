/* cc -std=c11 -O2 -ffp-contract=off -I. examples/02_small_floats.c -o build/02_floats -lm && build/02_floats */

/* What fits into 16, 8 and 4 bits. First the whole of e2m1, eight magnitudes, and the neighbourhood
 * of 1 in the others: the step there is the precision. Then some numbers narrowed to each format,
 * to nearest, ties to even: 2.5 lies between two e2m1 codes and takes the even one, 1e-8 is lost
 * where the exponent is short, 70000 is beyond f16 and 500 beyond e4m3, which has no infinity.
 * Last, how four bits become usable: 32 numbers share a scale, a power of two in one byte. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

static void narrow(double v)
{
    float x = (float)v;
    printf("%9g %12.7g %12.7g %10.5g %10.5g %8.3g\n", v,
           (double)tr_bf16_to_f32(tr_f32_to_bf16(x)), (double)tr_f16_to_f32(tr_f32_to_f16(x)),
           (double)tr_e5m2_to_f32(tr_f32_to_e5m2(x, TR_OVERFLOW_IEEE)),
           (double)tr_e4m3_to_f32(tr_f32_to_e4m3(x, TR_OVERFLOW_SATURATE)),
           (double)tr_e2m1_to_f32(tr_f32_to_e2m1(x)));
}

int main(void)
{
    static const double v[] = { 0.1, 1.0 / 3, 1.03125, 2.5, 3.14159265, 1e-8, 500, 70000 };
    tr_ctx *ctx;
    float x[32], y[32];
    unsigned char q[16], s[1];
    tr_weight w;

    printf("e2m1, code by code:      ");
    for (int i = 0; i < 8; i++) printf(" %g", (double)tr_e2m1_to_f32((uint8_t)i));
    printf("\n1 and what follows it:    bf16 %g   f16 %g   e5m2 %g   e4m3 %g\n\n",
           (double)tr_bf16_to_f32(0x3f81), (double)tr_f16_to_f32(0x3c01),
           (double)tr_e5m2_to_f32(0x3d), (double)tr_e4m3_to_f32(0x39));

    printf("%9s %12s %12s %10s %10s %8s\n", "narrowed:", "bf16", "f16", "e5m2", "e4m3", "e2m1");
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) narrow(v[i]);

    for (int i = 0; i < 32; i++) x[i] = 0.01f * (float)(i - 12);
    if (tr_ctx_new(&ctx, NULL)) return 1;
    if (tr_quantize(ctx, tr_qformat_get(TR_FMT_MXFP4), q, s, x, 1, 32, 1, 32) ||
        tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_MXFP4), "w", q, s, 1, 32, 1, 32))
        return fprintf(stderr, "%s\n", tr_err_last(ctx)), 1;
    tr_weight_row_f32(&w, 0, 0, 32, y);
    printf("\nmxfp4, 32 numbers in 17 bytes: scale byte %d is 2^%d\n", s[0], s[0] - 127);
    for (int i = 0; i < 16; i += 3) {
        printf("byte %2d %02x", i, q[i]);
        for (int k = 0; k < 2; k++)
            printf("   %4s %x: %4g * 2^%d = %-9g was %5.2f", k ? "high" : "low",
                   q[i] >> 4 * k & 15, (double)tr_e2m1_to_f32((uint8_t)(q[i] >> 4 * k)),
                   s[0] - 127, (double)y[2 * i + k], (double)x[2 * i + k]);
        printf("\n");
    }
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
e2m1, code by code:       0 0.5 1 1.5 2 3 4 6
1 and what follows it:    bf16 1.00781   f16 1.00098   e5m2 1.25   e4m3 1.125

narrowed:         bf16          f16       e5m2       e4m3     e2m1
      0.1    0.1000977   0.09997559    0.09375    0.10156        0
 0.333333    0.3339844     0.333252     0.3125    0.34375      0.5
  1.03125      1.03125      1.03125          1          1        1
      2.5          2.5          2.5        2.5        2.5        2
  3.14159     3.140625     3.140625          3       3.25        3
    1e-08 1.001172e-08            0          0          0        0
      500          500          500        512        448        6
    70000        70144          inf        inf        448        6

mxfp4, 32 numbers in 17 bytes: scale byte 122 is 2^-5
byte  0 ee    low e:   -4 * 2^-5 = -0.125    was -0.12   high e:   -4 * 2^-5 = -0.125    was -0.11
byte  3 bc    low c:   -2 * 2^-5 = -0.0625   was -0.06   high b: -1.5 * 2^-5 = -0.046875 was -0.05
byte  6 10    low 0:    0 * 2^-5 = 0         was  0.00   high 1:  0.5 * 2^-5 = 0.015625  was  0.01
byte  9 44    low 4:    2 * 2^-5 = 0.0625    was  0.06   high 4:    2 * 2^-5 = 0.0625    was  0.07
byte 12 66    low 6:    4 * 2^-5 = 0.125     was  0.12   high 6:    4 * 2^-5 = 0.125     was  0.13
byte 15 77    low 7:    6 * 2^-5 = 0.1875    was  0.18   high 7:    6 * 2^-5 = 0.1875    was  0.19
*/
