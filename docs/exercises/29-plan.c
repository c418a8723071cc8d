/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/29-plan.c -o build/ex29 -lm && build/ex29
 *
 * Exercise for docs/29-plan.md. Return how many parameters of the feed-forward of a layer with
 * experts one token meets in Kimi K3: router and bias, the way into the latent and back with its
 * norm, the chosen experts, the shared experts. Fields of the config: hidden, experts, topk,
 * latent, moe_ffn, shared. A shared expert works at full width, a routed one in the latent. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static int64_t active_ffn(const tr_config *c);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int64_t active_ffn(const tr_config *c)
{
    return c->experts * c->hidden;
}
/* -------------------------------------------------------------------------- */
#endif

/* Counts what the tables ask for in the feed-forward of layer 1: all but experts not chosen. */
static tr_status add(void *user, tr_ctx *ctx, const tr_expected *e)
{
    (void)ctx;
    if (e->layer != 1 || !strstr(e->name, "block_sparse_moe")) return TR_OK;
    if (e->expert < 4) *(int64_t *)user += e->params;
    return TR_OK;
}

int main(void)
{
    static const char *const sets[][2] = {
        { "num_experts_per_token=4", "num_shared_experts=2" },
        { "num_experts_per_token=4", "num_shared_experts=3" },
        { "num_experts_per_token=4", "moe_intermediate_size=160" },
        { "num_experts_per_token=4", "routed_expert_hidden_size=128" },
    };
    tr_ctx *ctx;
    tr_config c;
    if (tr_ctx_new(&ctx, NULL)) return 2;
    for (int i = 0; i < 4; i++) {
        int64_t want = 0, have;
        char *json;
        if (tr_config_tiny(ctx, &json, "kimi_k3", sets[i], 2) ||
            tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL) ||
            tr_config_each(ctx, &c, add, &want)) return 2;
        have = active_ffn(&c);
        tr_config_free(ctx, &c);
        tr_free(ctx, json);
        if (have == want) continue;
        printf("missing: with %s, %s: %lld, yours is %lld\n", sets[i][0], sets[i][1],
               (long long)want, (long long)have);
        return 1;
    }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int64_t active_ffn(const tr_config *c)
{
    int64_t router = c->experts * c->hidden + c->experts;
    int64_t latent = 2 * c->hidden * c->latent + c->latent;
    int64_t routed = c->topk * 3 * c->moe_ffn * c->latent;
    int64_t shared = 3 * (c->shared * c->moe_ffn) * c->hidden;
    return router + latent + routed + shared;
}
#endif
