/* fuzz_st.c - any bytes as a safetensors file; what opens must keep the invariants of {st}.
 *     clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_st.c -lm -o build/fuzz_st
 *     build/fuzz_st -max_len=4096 build/corpus/st tests/corpus/st */

#define TRILLION_IMPLEMENTATION
#include "../trillion.h"

/* As tr_st_open, but from memory. The first byte says how: 1: lenient; 2: what follows is not a
 * file but header, NUL, data, so that a change of the header need not also correct its length. */
static void take(tr_st *f, int with_length, const uint8_t *data, size_t n)
{
    size_t h = 0;
    while (with_length && h < n && data[h]) h++;
    f->map_bytes = !with_length ? n : h < n ? 8 + n - 1 : 8 + n;
    f->map = (unsigned char *)malloc(f->map_bytes + !f->map_bytes);
    if (!with_length) { memcpy(f->map, data, n); return; }
    for (int k = 0; k < 8; k++) f->map[k] = (unsigned char)((uint64_t)h >> 8 * k);
    memcpy(f->map + 8, data, h);
    if (h < n) memcpy(f->map + 8 + h, data + h + 1, n - h - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tr_ctx *ctx;
    tr_st f;
    char hex[65];
    int lenient = n > 0 && data[0] & 1;
    size_t at = 0;
    memset(&f, 0, sizeof f);
    if (n < 1 || tr_ctx_new(&ctx, NULL) != TR_OK) return 0;
    take(&f, data[0] & 2, data + 1, n - 1);
    if (tri_st_header(ctx, &f, lenient) == TR_OK && tri_st_place(ctx, &f) == TR_OK) {
        for (int64_t i = 0; i < f.n; i++) {
            const tr_st_entry *e = &f.entry[i];
            if (e->begin < at || (e->begin > at && !lenient)) abort();
            at = e->begin + e->bytes;
            if (at > f.map_bytes - f.data_at || tr_st_find(&f, e->name) != e) abort();
            tr_view_sha256(e->view, hex);       /* reads every byte through the view */
        }
        if (at + f.trailing != f.map_bytes - f.data_at || (f.trailing && !lenient)) abort();
        (void)tr_st_meta(&f, "format");
    } else if (!tr_err_last(ctx)[0]) abort();
    free(f.map);
    f.map = NULL;
    tr_st_close(ctx, &f);
    if (tr_ctx_bytes(ctx)) abort();
    tr_ctx_free(ctx);
    return 0;
}
