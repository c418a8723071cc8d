/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/07-par.c -o build/ex07 -lm && build/ex07
 *
 * Exercise for docs/07-par.md. Return where piece i of p begins when [0, n) is cut into p pieces
 * whose lengths differ by one at most. i may be p: the end. n may be as large as INT64_MAX, so
 * the product of n and i may not be computed. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>

static int64_t begins(int64_t n, int64_t p, int64_t i);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int64_t begins(int64_t n, int64_t p, int64_t i)
{
    return n / p * i;
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    static const int64_t sizes[] = { 0, 1, 2, 10, 896, 163840, INT64_MAX - 1, INT64_MAX };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int64_t p = 1; p <= 64; p++) {
            int64_t n = sizes[k], low = n / p;
            for (int64_t i = 0; i < p; i++) {
                int64_t len = begins(n, p, i + 1) - begins(n, p, i);
                if (len == low || len == low + (n % p != 0)) continue;
                printf("missing: %lld in %lld pieces: piece %lld is %lld long\n", (long long)n,
                       (long long)p, (long long)i, (long long)len);
                return 1;
            }
            if (begins(n, p, 0) == 0 && begins(n, p, p) == n) continue;
            printf("missing: %lld in %lld pieces: they go from %lld to %lld\n", (long long)n,
                   (long long)p, (long long)begins(n, p, 0), (long long)begins(n, p, p));
            return 1;
        }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int64_t begins(int64_t n, int64_t p, int64_t i)
{
    return n / p * i + n % p * i / p;
}
#endif
