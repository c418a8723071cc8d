/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/26-state.c -o build/ex26 -lm && build/ex26
 *
 * Exercise for docs/26-state.md. Return the bytes that the state of one layer takes in binary64,
 * for B sequences with room for `capacity` tokens each. The letters of the page, as fields of the
 * config:
 *     GQA      G kv_heads   Dk head_dim
 *     latent   R kv_lora    Dr rope
 *     KDA      H kda_heads  K = V kda_dim   J conv   C = H K channels, three convolutions */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static int64_t state_bytes(const tr_config *c, tr_mixer_kind mixer, int64_t B, int64_t capacity);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int64_t state_bytes(const tr_config *c, tr_mixer_kind mixer, int64_t B, int64_t capacity)
{
    switch (mixer) {
    case TR_MIXER_GQA: return 2 * B * capacity * c->kv_heads * c->head_dim * 8;
    case TR_MIXER_MLA: return 0;
    case TR_MIXER_KDA: return 0;
    }
    return 0;
}
/* -------------------------------------------------------------------------- */
#endif

static int check(tr_ctx *ctx, const tr_config *c, const char *name, int64_t B, int64_t capacity)
{
    for (int64_t l = 0; l < c->layers; l++) {
        tr_state s;
        int64_t have = state_bytes(c, c->layer[l].mixer, B, capacity), want;
        if (tr_state_new(ctx, &s, c, l, 1, B, capacity, TR_F64, 1)) return 2;
        want = (int64_t)s.bytes;
        tr_state_free(&s);
        if (have == want) continue;
        printf("missing: %s, layer %d, %d sequences of %d tokens: %lld bytes, yours is %lld\n",
               name, (int)l, (int)B, (int)capacity, (long long)want, (long long)have);
        return 1;
    }
    return 0;
}

int main(void)
{
    static const char *const families[] = { "llama", "deepseek_v3", "kimi_k3" };
    tr_ctx *ctx;
    tr_config c;
    int bad = 0;
    if (tr_ctx_new(&ctx, NULL)) return 2;
    for (int i = 0; i < 3 && !bad; i++) {
        char *json;
        if (tr_config_tiny(ctx, &json, families[i], NULL, 0) ||
            tr_config_parse(ctx, &c, families[i], json, strlen(json), NULL)) return 2;
        bad = check(ctx, &c, families[i], 1, 1) || check(ctx, &c, families[i], 3, 100);
        tr_free(ctx, json);
        tr_config_free(ctx, &c);
    }
    tr_ctx_free(ctx);
    if (!bad) printf("right\n");
    return bad;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int64_t state_bytes(const tr_config *c, tr_mixer_kind mixer, int64_t B, int64_t capacity)
{
    int64_t H = c->kda_heads, K = c->kda_dim;
    switch (mixer) {
    case TR_MIXER_GQA: return 2 * B * capacity * c->kv_heads * c->head_dim * 8;
    case TR_MIXER_MLA: return B * capacity * (c->kv_lora + c->rope) * 8;
    case TR_MIXER_KDA: return B * (H * K * K + 3 * H * K * (c->conv - 1)) * 8;
    }
    return 0;
}
#endif
