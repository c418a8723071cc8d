/* cc -std=c11 -O2 -ffp-contract=off -I. examples/01_order_of_sums.c -o build/01_order -lm && build/01_order */

/* One dot product of 4096 numbers in binary32, added up in different orders: forwards, backwards,
 * in pairs, and in n lanes, where lane l takes the elements l, l + n, l + 2n, .. as n threads or
 * the n slots of a vector register would. No order is wrong, and they give eight answers. So "the
 * same bits for any number of threads" can only be had by fixing the order in the definition. It
 * may still be cut: 64 pieces that each carry on from the sum so far are the one chain again, but
 * 64 sums added up afterwards are one more order. The last line is the library's own (S1 in
 * docs/numerics.md): sixteen lanes of fused products, folded in halves. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

enum { N = 4096 };
static float x[N], w[N];

static float chain(float sum, int first, int last, int step)    /* carries on from sum */
{
    for (int i = first; i != last; i += step) sum += x[i] * w[i];
    return sum;
}

static float pairs(int at, int n)
{
    return n == 1 ? x[at] * w[at] : pairs(at, n / 2) + pairs(at + n / 2, n / 2);
}

static float lanes(int n)           /* each lane is a chain; the lanes are then added in order */
{
    float sum = 0;
    for (int l = 0; l < n; l++) sum += chain(0, l, l + (N - l + n - 1) / n * n, n);
    return sum;
}

static void show(const char *order, float sum, double truth)
{
    printf("%-22s %.9g   0x%08x %3d ulp\n", order, (double)sum, (unsigned)tr_f32_bits(sum),
           (int)tr_ulps(sum, (float)truth));
}

int main(void)
{
    static const int n[] = { 2, 3, 4, 7, 8, 16 };
    float carried = 0, added = 0;
    double truth = 0;
    char name[32];
    for (int i = 0; i < N; i++) {
        x[i] = (float)tr_rng_normal(1, 0, (uint64_t)i);
        w[i] = (float)tr_rng_normal(1, 1, (uint64_t)i);
        truth += (double)x[i] * (double)w[i];
    }
    printf("%-22s %.9g   bits     from binary64\n", "binary64", truth);
    show("forwards", chain(0, 0, N, 1), truth);
    show("backwards", chain(0, N - 1, -1, -1), truth);
    show("pairs", pairs(0, N), truth);
    for (int k = 0; k < 6; k++) {
        snprintf(name, sizeof name, "%d lanes", n[k]);
        show(name, lanes(n[k]), truth);
    }
    for (int i = 0; i < N; i += 64) {
        carried = chain(carried, i, i + 64, 1);
        added += chain(0, i, i + 64, 1);
    }
    show("64 pieces, carried on", carried, truth);
    show("64 pieces, added up", added, truth);
    show("tr_dot", tr_dot(x, w, N), truth);
    return 0;
}

/* expected output:
binary64               -56.2881022   bits     from binary64
forwards               -56.2880859   0xc2612700   4 ulp
backwards              -56.2881317   0xc261270c   8 ulp
pairs                  -56.2881012   0xc2612704   0 ulp
2 lanes                -56.2880974   0xc2612703   1 ulp
3 lanes                -56.2881012   0xc2612704   0 ulp
4 lanes                -56.2880783   0xc26126fe   6 ulp
7 lanes                -56.2880707   0xc26126fc   8 ulp
8 lanes                -56.2881317   0xc261270c   8 ulp
16 lanes               -56.2881279   0xc261270b   7 ulp
64 pieces, carried on  -56.2880859   0xc2612700   4 ulp
64 pieces, added up    -56.2880974   0xc2612703   1 ulp
tr_dot                 -56.2881355   0xc261270d   9 ulp
*/
