/* fuzz_pixels.c - any bytes as images of a model and prompts with places for them: grids, pixels,
 * ids. What is taken must be the same in any pieces, and a second time; what is not has a sentence.
 *     clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_pixels.c -lm \
 *         -o build/fuzz_pixels && build/fuzz_pixels tests/corpus/pixels
 *
 * A byte a number: small ones are themselves, the last few those that overflow. Run it from the top
 * of the repository: the model is in tests/golden. */

#define TRILLION_IMPLEMENTATION
#include "../trillion.h"

enum { MAX_IMAGES = 4, MAX_SEQS = 3, MAX_IDS = 12, MAX_PATCHES = 64 };

typedef struct bytes { const uint8_t *p; size_t n; } bytes;

static int byte(bytes *b)
{
    if (!b->n) return 0;
    b->n--;
    return *b->p++;
}

static int64_t number(bytes *b)
{
    static const int64_t wild[] = { -1, INT64_MIN, INT64_MAX, (int64_t)1 << 62, (int64_t)1 << 32,
                                    ((int64_t)1 << 31) - 1, -((int64_t)1 << 31), 514 };
    int v = byte(b);
    return v < 248 ? v & 15 : wild[v - 248];
}

static void check(tr_ctx *ctx, tr_status s)
{
    if (s != TR_OK && !tr_err_last(ctx)[0]) abort();        /* every refusal has its sentence */
}

/* Patches as the grids have them, or as many as a byte says; the pixels repeat what is left. */
static void read_images(bytes *b, const tr_config *c, tr_images *im, int64_t *grid)
{
    int64_t P = c->vit_patch, patches = 0, n, how = byte(b);
    memset(im, 0, sizeof *im);
    im->n = byte(b) % (MAX_IMAGES + 1);
    im->grid = grid;
    for (int64_t i = 0; i < 3 * im->n; i++) grid[i] = number(b);
    for (int64_t i = 0; i < im->n; i++) {
        const int64_t *g = grid + 3 * i;
        if (g[0] < 0 || g[1] < 0 || g[2] < 0 || g[0] > 16 || g[1] > 16 || g[2] > 16) how |= 1;
        else patches += g[0] * g[1] * g[2];
    }
    if (how & 1 || patches > MAX_PATCHES) patches = number(b) & 15;
    n = patches * 3 * P * P;
    im->pixels = tr_view4(malloc((size_t)n * 4 + !n), TR_F32, patches, 3, P, P);
    for (int64_t i = 0; i < n; i++) {
        static const float wild[] = { INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f, 1e19f, 0 };
        int v = b->n ? b->p[(size_t)i % b->n] : 0;
        ((float *)im->pixels.data)[i] = how & 2 && v >= 248 ? wild[v - 248]
                                                            : (float)v / 127.5f - 1;
    }
    if (how & 4) im->pixels.shape[1 + how / 64] = how / 8 % 8;
    if (how & 8) im->pixels.rank = how / 64;
    if ((how & 0x30) == 0x30) im->pixels.dtype = how & 64 ? TR_BF16 : TR_F64;
}

/* Placeholders, padding, ids that do not exist. */
static void read_ids(bytes *b, const tr_config *c, tr_batch *p, int64_t *T, int32_t *ids)
{
    int64_t n = 0;
    p->B = 1 + byte(b) % MAX_SEQS;
    p->T = T;
    p->ids = ids;
    for (int64_t s = 0; s < p->B; n += T[s++]) {
        T[s] = byte(b) % (MAX_IDS + 1);
        for (int64_t t = 0; t < T[s]; t++) {
            int v = byte(b);
            ids[n + t] = v < 64 ? (int32_t)c->media.v[0] : v < 72 && c->pad.n ? (int32_t)c->pad.v[0]
                       : v == 255 ? -1 : v == 254 ? (int32_t)c->vocab : v;
        }
    }
}

/* The prompts in pieces of `piece` tokens: the hash of what comes out; "": an error. */
static void answer(tr_ctx *ctx, tr_model *m, const tr_images *im, const tr_batch *b, int64_t piece,
                   int64_t capacity, char hex[65])
{
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    tr_status s = tr_run_opts_images(ctx, &o, &m->cfg, im);
    hex[0] = 0;
    o.B = b->B;
    o.max_tokens = piece * b->B;
    o.capacity = capacity;
    if (s == TR_OK) s = tr_run_new(ctx, &r, m, &o);
    for (int k = 0; k < 2 && s == TR_OK; k++) {             /* two turns: images follow a state */
        s = tr_vit_forward(r, im, b);
        if (s != TR_OK && r->places) abort();
        if (s == TR_OK) s = tr_prefill(r, b);
    }
    check(ctx, s);
    if (s == TR_OK) tr_view_sha256(r->logits, hex);
    tr_run_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static tr_ctx *ctx;                 /* the model stays open between inputs */
    static tr_model *m;
    bytes in = { data, n };
    int64_t grid[3 * MAX_IMAGES], T[MAX_SEQS], longer[MAX_SEQS], all = 0, rows = 0, longest = 1;
    int32_t ids[MAX_SEQS * MAX_IDS];
    tr_run_opts o = tr_run_opts_default();
    tr_images im;
    tr_batch b;
    tr_status s;
    size_t held;
    if (!m && (tr_ctx_new(&ctx, NULL) != TR_OK ||
               tr_model_open(ctx, &m, "tests/golden/kimi_k3/multimodal", NULL) != TR_OK)) abort();
    held = tr_ctx_bytes(ctx);
    read_ids(&in, &m->cfg, &b, T, ids);
    int64_t piece = 1 + byte(&in) % 16;
    read_images(&in, &m->cfg, &im, grid);
    check(ctx, tr_run_opts_images(ctx, &o, &m->cfg, &im));
    s = tr_expand_images(ctx, longer, NULL, &m->cfg, &im, &b);
    check(ctx, s);
    if (s == TR_OK) {
        char whole[65], pieces[65];
        int32_t *out;
        for (int64_t i = 0; i < b.B; i++) {
            all += longer[i];
            rows += longer[i] - T[i];
            if (longer[i] > longest) longest = longer[i];
        }
        if (rows + im.n != o.image_rows) abort();
        out = (int32_t *)malloc((size_t)all * sizeof *out + !all);
        if (tr_expand_images(ctx, longer, out, &m->cfg, &im, &b) != TR_OK) abort();
        b.T = longer;
        b.ids = out;
        answer(ctx, m, &im, &b, longest, 2 * longest, whole);
        answer(ctx, m, &im, &b, piece, 2 * longest, pieces);
        if (strcmp(whole, pieces)) abort();
        free(out);
    }
    free(im.pixels.data);
    if (tr_ctx_bytes(ctx) != held) abort();
    return 0;
}
