/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/05-view.c -o build/ex05 -lm && build/ex05
 *
 * Exercise for docs/05-view.md. kv is [S, H (Dn + Dv)], contiguous. In each row lie, head by
 * head, Dn numbers of key and then Dv of value. Return the values of head h as a view [S, 1, Dv]
 * into the same memory. tr_view_split and tr_view_slice are enough. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>

static tr_view values_of_head(tr_view kv, int64_t h, int64_t Dn, int64_t Dv);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static tr_view values_of_head(tr_view kv, int64_t h, int64_t Dn, int64_t Dv)
{
    (void)h; (void)Dn; (void)Dv;
    return kv;
}
/* -------------------------------------------------------------------------- */
#endif

enum { S = 5, H = 3, Dn = 4, Dv = 6, ROW = H * (Dn + Dv) };

int main(void)
{
    static double data[S * ROW];
    char text[96];
    for (int i = 0; i < S * ROW; i++) data[i] = i;
    for (int h = 0; h < H; h++) {
        tr_view v = values_of_head(tr_view2(data, TR_F64, S, ROW), h, Dn, Dv);
        if (v.rank != 3 || v.shape[0] != S || v.shape[1] != 1 || v.shape[2] != Dv) {
            printf("missing: head %d is %s, should be F64 [5, 1, 6]\n", h, tr_view_str(v, text));
            return 1;
        }
        for (int s = 0; s < S; s++)
            for (int d = 0; d < Dv; d++) {
                double want = s * ROW + h * (Dn + Dv) + Dn + d;
                double have = tr_get_f64(v.data, v.dtype, s * v.stride[0] + d * v.stride[2]);
                if (have == want) continue;
                printf("missing: head %d, token %d, value %d is element %g, yours is %g\n", h, s, d,
                       want, have);
                return 1;
            }
    }
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static tr_view values_of_head(tr_view kv, int64_t h, int64_t Dn, int64_t Dv)
{
    tr_view heads = tr_view_split(kv, 1, Dn + Dv);              /* [S, H, Dn + Dv] */
    return tr_view_slice(tr_view_slice(heads, 1, h, 1), 2, Dn, Dv);
}
#endif
