/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/24-st.c -o build/ex24 -lm && build/ex24
 *
 * Exercise for docs/24-st.md. Write to `out` the bytes of a safetensors file that holds two
 * tensors: "x", F32 [3], with the numbers 1, 2, 3, and after it "n", I32 of shape [] with the
 * number 7. Return how many bytes there are (at most `room`). The machine is little-endian, so
 * memcpy writes numbers as the file wants them. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static size_t compose(unsigned char *out, size_t room);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static size_t compose(unsigned char *out, size_t room)
{
    memset(out, 0, room);
    return 16;
}
/* -------------------------------------------------------------------------- */
#endif

static int missing(const char *what)
{
    remove("build/ex24.safetensors");
    printf("missing: %s\n", what);
    return 1;
}

int main(void)
{
    static unsigned char file[4096];
    size_t n = compose(file, sizeof file);
    FILE *f = fopen("build/ex24.safetensors", "wb");
    const tr_st_entry *x, *k;
    char text[96];
    tr_ctx *ctx;
    tr_st st;
    if (!f || fwrite(file, 1, n, f) != n || fclose(f) || tr_ctx_new(&ctx, NULL)) return 2;
    if (tr_st_open(ctx, &st, "build/ex24.safetensors", 0)) return missing(tr_err_last(ctx));
    x = tr_st_find(&st, "x");
    k = tr_st_find(&st, "n");
    if (st.n != 2 || !x || !k) return missing("the tensors are \"x\" and \"n\", and no more");
    if (strcmp(tr_view_str(x->view, text), "F32 [3]")) return missing("x is F32 [3]");
    if (strcmp(tr_view_str(k->view, text), "I32 []")) return missing("n is I32 []");
    for (int i = 0; i < 3; i++)
        if (tr_get_f64(x->view.data, TR_F32, i) != i + 1) return missing("x is 1, 2, 3");
    if (tr_get_f64(k->view.data, TR_I32, 0) != 7) return missing("n is 7");
    tr_st_close(ctx, &st);
    tr_ctx_free(ctx);
    remove("build/ex24.safetensors");
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static size_t compose(unsigned char *out, size_t room)
{
    static const char header[] =
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
        "\"n\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[12,16]}}";
    static const float x[3] = { 1, 2, 3 };
    static const int32_t n = 7;
    uint64_t H = sizeof header - 1;
    (void)room;
    memcpy(out, &H, 8);
    memcpy(out + 8, header, (size_t)H);
    memcpy(out + 8 + H, x, 12);
    memcpy(out + 8 + H + 12, &n, 4);
    return 8 + (size_t)H + 16;
}
#endif
