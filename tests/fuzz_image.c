/* fuzz_image.c - any bytes as a picture, or, if they begin with a brace, as a processor; what is
 * decoded must be the same a second time, and go through both processors, small.
 *     clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_image.c -ljpeg -lm \
 *         -o build/fuzz_image
 *     build/fuzz_image -max_len=4096 build/corpus/image tests/corpus/image
 *
 * Checksums would hide all that lies behind them: those of a PNG are put right first. */

#define TRILLION_IMPLEMENTATION
#include "../trillion.h"
#include "../tools/image.h"

static const char kimi[] =
    "{\"media_proc_cfg\": {\"in_patch_limit\": 30, \"patch_size\": 4, \"image_mean\": [0.5, 0.4, 0.3],"
    "\"image_std\": [0.5, 0.5, 0.5], \"merge_kernel_size\": 2, \"fixed_output_tokens\": null,"
    "\"patch_limit_on_one_side\": 20, \"transparent_bg_config\": {\"pattern\": \"chessboard\","
    "\"chessboard_square_size\": 3, \"chessboard_square_on_top_left\": true,"
    "\"chessboard_white_value\": 255, \"chessboard_gray_value\": 180},"
    "\"transparent_bg_fill_stage\": \"after_resize\"}}";
static const char qwen[] =
    "{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 4, \"merge_size\": 2,"
    "\"temporal_patch_size\": 2, \"image_mean\": [0, 0, 0], \"image_std\": [1, 1, 1],"
    "\"min_pixels\": 64, \"max_pixels\": 900}";

/* Adler-32 of what the IDATs hold, at the end of the last one. */
static void mend_pixels(uint8_t *p, size_t n)
{
    static char raw[1 << 18];
    uint8_t *idat = (uint8_t *)malloc(n), *end = NULL;
    size_t at = 8, all = 0;
    uint32_t a = 1, b = 0;
    for (size_t len; n >= at + 12 && (len = img_u32(p + at)) <= n - at - 12; at += 12 + len) {
        if (memcmp(p + at + 4, "IDAT", 4)) continue;
        memcpy(idat + all, p + at + 8, len);
        all += len;
        end = len >= 4 ? p + at + 8 + len : NULL;
    }
    int got = stbi_zlib_decode_buffer(raw, sizeof raw, (const char *)idat, (int)all);
    for (int i = 0; i < got; i++) { a = (a + (uint8_t)raw[i]) % 65521; b = (b + a) % 65521; }
    for (int k = 0; k < 4 && end && got > 0; k++)
        end[k - 4] = (uint8_t)((b << 16 | a) >> (24 - 8 * k));
    free(idat);
}

static void mend(uint8_t *p, size_t n)
{
    size_t at = 8;
    mend_pixels(p, n);
    while (n >= at + 12 && img_u32(p + at) <= n - at - 12) {
        size_t len = img_u32(p + at);
        uint32_t c = img_crc(p + at + 4, len + 4);
        for (int k = 0; k < 4; k++) p[at + 8 + len + (size_t)k] = (uint8_t)(c >> (24 - 8 * k));
        at += 12 + len;
    }
}

static void again(tr_ctx *ctx, const uint8_t *data, size_t n, const img *m)
{
    img b;
    if (img_decode(ctx, &b, "fuzz", data, n, 1 << 16) != TR_OK) abort();
    if (b.mode != m->mode || b.w != m->w || b.h != m->h) abort();
    if (memcmp(b.px, m->px, (size_t)(b.w * b.h * img_bytes(b.mode)))) abort();
    img_free(ctx, &b);
}

static void through(tr_ctx *ctx, const img_proc *p, const img *m)
{
    for (int order = 12; order <= 13; order++) {
        img_pixels x;
        const img_grid *g = &x.grid;
        double sum = 0;
        if (img_process(ctx, p, m, (img_pillow)order, &x) != TR_OK) {
            if (x.values || x.resized || !tr_err_last(ctx)[0]) abort();
            continue;
        }
        if (g->gw * p->patch != g->nw + g->pw || g->gh * p->patch != g->nh + g->ph) abort();
        if (g->tokens * p->merge * p->merge != g->patches || g->patches != g->gw * g->gh) abort();
        for (int64_t i = 0; i < g->patches * g->patch_len; i++) sum += (double)x.values[i];
        for (int64_t i = 0; i < g->nw * g->nh * 3; i++) sum += x.resized[i];
        if (!(sum == sum)) abort();
        img_pixels_free(ctx, &x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tr_ctx *ctx;
    img_proc p;
    img m;
    uint8_t *copy;
    if (n < 1 || tr_ctx_new(&ctx, NULL) != TR_OK) return 0;
    copy = (uint8_t *)malloc(n);
    memcpy(copy, data, n);
    if (data[0] == '{') {                   /* a processor */
        if (img_proc_parse(ctx, &p, "fuzz", (const char *)copy, n, NULL, 0) == TR_OK) {
            img_grid g;
            if (img_size(ctx, &p, "fuzz", 640, 427, &g) == TR_OK && g.patches < 1) abort();
        } else if (!tr_err_last(ctx)[0]) {
            abort();
        }
    } else {
        mend(copy, n);
        if (img_decode(ctx, &m, "fuzz", copy, n, 1 << 16) == TR_OK) {
            again(ctx, copy, n, &m);
            if (img_proc_parse(ctx, &p, "kimi", kimi, sizeof kimi - 1, NULL, 0) != TR_OK) abort();
            through(ctx, &p, &m);
            if (img_proc_parse(ctx, &p, "qwen", qwen, sizeof qwen - 1, NULL, 0) != TR_OK) abort();
            through(ctx, &p, &m);
            img_free(ctx, &m);
        } else if (m.px || !tr_err_last(ctx)[0]) {
            abort();
        }
    }
    free(copy);
    if (tr_ctx_bytes(ctx)) abort();
    tr_ctx_free(ctx);
    return 0;
}
