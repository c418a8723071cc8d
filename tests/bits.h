/* bits.h - what a run of the exact profile comes to, in three hashes, and the known answers of
 * tests/golden/bits.txt. Include the implementation first.
 *
 * Three prompts a model, of unlike lengths and unlike ids, so that a sequence that reads another's
 * memory cannot come out right by chance. The first is longer than a block of keys. One model gets
 * images among them: at the first place, at the last, between, and of several frames. */
#ifndef BITS_H
#define BITS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../trillion.h"

#define BITS_PROMPTS 3
#define BITS_LONGEST 150
#define BITS_TAPS    1024
#define BITS_IMAGES  3          /* of a prompt */
#define BITS_ROWS    20         /* that they fill, at most */
#define BITS_PATCHES 96         /* that they have, at most */

static const int64_t bits_length[BITS_PROMPTS] = { BITS_LONGEST, 61, 24 };

static const struct { const char *name, *dir; } bits_models[] = {
    { "kimi_k3",         "kimi_k3/text-c" },
    { "kimi_k3_images",  "kimi_k3/multimodal" },
    { "deepseek_v3_fp8", "families/deepseek_v3_fp8" },
    { "llama3",          "families/llama3" }
};
#define BITS_MODELS (sizeof bits_models / sizeof bits_models[0])

/* Where images stand in the prompts of kimi_k3_images, before they take their places, and their
 * grids; frames 0: none. */
static const struct { int64_t at, grid[3]; } bits_images[BITS_PROMPTS][BITS_IMAGES] = {
    { { 0, { 1, 6, 10 } }, { 70, { 2, 4, 4 } }, { 149, { 1, 2, 2 } } },
    { { 30, { 3, 4, 6 } }, { 0, { 0, 0, 0 } }, { 0, { 0, 0, 0 } } },
    { { 5, { 1, 4, 4 } }, { 0, { 0, 0, 0 } }, { 0, { 0, 0, 0 } } }
};

/* The hashes are SHA-256: of the logits [T, V]; of a line "name hash" for every tap of the prompt
 * in model order, logits excepted; of the same lines for what the sequence remembers after it. Taps
 * of images inside their tower are left out: inputs_embeds has what they became. */
typedef struct bits_hash { char logits[65], taps[65], state[65]; } bits_hash;

/* What a run is made with; nothing of it may change a bit. */
typedef struct bits_cell {
    int64_t piece;              /* tokens a call of each sequence; 0: all */
    int64_t B, prompt;          /* prompts prompt .. prompt + B - 1 */
} bits_cell;

/* Taps go to a golden; how the tensor of each lies is remembered here. */
typedef struct bits_job {
    tr_golden g;
    struct { char name[256]; tr_tap_kind kind; int grows; } tap[BITS_TAPS];
    int64_t n;
} bits_job;

static inline tr_status bits_tap(void *user, tr_ctx *ctx, const tr_tap *t)
{
    bits_job *j = (bits_job *)user;
    tr_status s = t->kind == TR_TAP_PATCHES ? TR_OK : tr_golden_tap(&j->g, ctx, t);
    if (s != TR_OK || j->g.n == j->n) return s;
    if (j->n == BITS_TAPS) return tr_fail(ctx, TR_ERR_FULL, "more than %d taps", BITS_TAPS);
    snprintf(j->tap[j->n].name, sizeof j->tap[j->n].name, "%s", t->name);
    j->tap[j->n].kind = t->kind;
    j->tap[j->n].grows = t->grows;
    j->n++;
    return TR_OK;
}

/* Tap i of sequence b, which has T tokens. */
static inline tr_view bits_view(const bits_job *j, int64_t i, int64_t b, int64_t T)
{
    tr_view v = tr_view_at(tr_golden_find(&j->g, j->tap[i].name), b);
    return j->tap[i].kind == TR_TAP_ROWS || j->tap[i].grows ? tr_view_slice(v, 0, 0, T) : v;
}

/* The three hashes of sequence b. say: prints the lines, to find out what differs. */
static inline bits_hash bits_sum(const bits_job *j, int64_t b, int64_t T, int say)
{
    bits_hash h;
    tr_sha256 taps, state;
    char line[400], hex[65];
    memset(&h, 0, sizeof h);
    tr_sha256_init(&taps);
    tr_sha256_init(&state);
    for (int64_t i = 0; i < j->n; i++) {
        tr_view_sha256(bits_view(j, i, b, T), hex);
        snprintf(line, sizeof line, "%s %s\n", j->tap[i].name, hex);
        if (say) printf("%s", line);
        if (!strcmp(j->tap[i].name, "logits")) memcpy(h.logits, hex, sizeof h.logits);
        else tr_sha256_update(j->tap[i].kind == TR_TAP_STATE ? &state : &taps, line, strlen(line));
    }
    tr_sha256_hex(&taps, h.taps);
    tr_sha256_hex(&state, h.state);
    return h;
}

/* Ids that any machine can make: no file is read for them. */
static inline void bits_ids(int32_t *ids, int64_t prompt, int64_t n, int64_t vocab)
{
    for (int64_t t = 0; t < n; t++)
        ids[t] = (int32_t)(tr_rng_u64(2024, (uint64_t)prompt, (uint64_t)t) % (uint64_t)vocab);
}

/* The images of prompts [first, first + B); puts their placeholders among the ids, where no other
 * may be. Pixels are multiples of 1/256, the same in every rounding mode.
 * data [B BITS_PATCHES 3 P P], grid [B BITS_IMAGES 3] */
static inline tr_images bits_pictures(const tr_config *cfg, int64_t first, int64_t B, int32_t *ids,
                                      float *data, int64_t *grid)
{
    int64_t P = cfg->vit_patch, patches = 0;
    int32_t media = (int32_t)cfg->media.v[0];
    tr_images im;
    memset(&im, 0, sizeof im);
    im.grid = grid;
    for (int64_t p = first; p < first + B; ids += bits_length[p++]) {
        for (int64_t t = 0; t < bits_length[p]; t++) ids[t] -= ids[t] == media;
        for (int i = 0; i < BITS_IMAGES && bits_images[p][i].grid[0]; i++, im.n++) {
            const int64_t *g = bits_images[p][i].grid;
            int64_t n = g[0] * g[1] * g[2] * 3 * P * P;
            ids[bits_images[p][i].at] = media;
            memcpy(grid + 3 * im.n, g, 3 * sizeof *g);
            for (int64_t k = 0; k < n; k++)
                data[patches * 3 * P * P + k] = (float)((int64_t)(tr_rng_u64(2025,
                    (uint64_t)(p * 8 + i), (uint64_t)k) % 513) - 256) * 0.00390625f;
            patches += g[0] * g[1] * g[2];
        }
    }
    im.pixels = tr_view4(data, TR_F32, patches, 3, P, P);
    return im;
}

static inline int bits_sees(const tr_model *m)      /* is it the one that gets images? */
{
    size_t n = strlen(m->shards.dir), k = strlen(bits_models[1].dir);
    return n >= k && !strcmp(m->shards.dir + n - k, bits_models[1].dir);
}

/* out [c.B] */
static inline tr_status bits_run(tr_ctx *ctx, tr_model *m, bits_cell c, int say, bits_hash *out)
{
    static const char *const all[] = { "*" };
    static const int64_t grown = BITS_LONGEST + BITS_ROWS;
    int32_t ids[BITS_PROMPTS * BITS_LONGEST], spread[BITS_PROMPTS * (BITS_LONGEST + BITS_ROWS)];
    int64_t T[BITS_PROMPTS], n = 0, longest = 0, grid[3 * BITS_PROMPTS * BITS_IMAGES];
    float *data = NULL;
    tr_images im;
    bits_job *j = (bits_job *)calloc(1, sizeof *j);
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    tr_batch b;
    tr_status s;
    for (int64_t k = 0; k < c.B; n += T[k++]) {
        T[k] = bits_length[c.prompt + k];
        bits_ids(ids + n, c.prompt + k, T[k], m->cfg.vocab);
    }
    if (!j) return TR_ERR_MEMORY;
    b.B = c.B;
    b.T = T;
    b.ids = ids;
    im.n = 0;
    s = TR_OK;
    if (bits_sees(m)) {
        int64_t patch = 3 * m->cfg.vit_patch * m->cfg.vit_patch, lengths[BITS_PROMPTS];
        data = (float *)malloc((size_t)(c.B * BITS_PATCHES * patch) * sizeof *data);
        if (!data) return TR_ERR_MEMORY;
        im = bits_pictures(&m->cfg, c.prompt, c.B, ids, data, grid);
        s = tr_run_opts_images(ctx, &o, &m->cfg, &im);
        if (s == TR_OK) s = tr_expand_images(ctx, lengths, spread, &m->cfg, &im, &b);
        for (int64_t k = 0; s == TR_OK && k < c.B; k++) T[k] = lengths[k];
        b.ids = spread;
    }
    for (int64_t k = 0; k < c.B; k++) longest = T[k] > longest ? T[k] : longest;
    o.profile = tr_profile_find("exact");
    o.B = c.B;
    o.max_tokens = (c.piece ? c.piece : longest) * c.B;
    o.capacity = grown;
    o.logits = TR_LOGITS_ALL;
    o.tap = bits_tap;
    o.tap_user = j;
    o.globs = all;
    o.n_globs = 1;
    if (s == TR_OK) s = tr_golden_new(ctx, &j->g, c.B, T);
    if (s == TR_OK) s = tr_run_new(ctx, &r, m, &o);
    if (s == TR_OK && im.n) s = tr_vit_forward(r, &im, &b);
    if (s == TR_OK) s = tr_prefill(r, &b);
    if (s == TR_OK) s = tr_tap_state(r);
    for (int64_t k = 0; s == TR_OK && k < c.B; k++) out[k] = bits_sum(j, k, T[k], say);
    tr_run_free(r);
    tr_golden_free(ctx, &j->g);
    free(data);
    free(j);
    return s;
}

/* The known answer of a prompt; 0 if the list has none. Its lines:
 *     model prompt logits taps state */
static inline int bits_known(const char *root, const char *model, int64_t prompt, bits_hash *h)
{
    char path[1024], line[512], name[64];
    long long p;
    int found = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/bits.txt", root);
    f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%63s %lld %64s %64s %64s", name, &p, h->logits, h->taps,
                       h->state) == 5 && !strcmp(name, model) && p == prompt;
    if (f) fclose(f);
    return found;
}

static inline int bits_equal(const bits_hash *a, const bits_hash *b)
{
    return !strcmp(a->logits, b->logits) && !strcmp(a->taps, b->taps) &&
           !strcmp(a->state, b->state);
}

static inline tr_ctx *bits_ctx(tr_cpu cpu, int threads)
{
    tr_ctx_opts o;
    tr_ctx *ctx = NULL;
    memset(&o, 0, sizeof o);
    o.cpu = cpu;
    o.threads = threads;
    if (tr_ctx_new(&ctx, &o) == TR_OK) return ctx;
    printf("no context: %s\n", tr_err_last(ctx));
    tr_ctx_free(ctx);
    return NULL;
}

#endif
