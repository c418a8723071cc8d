/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/23-json.c -o build/ex23 -lm && build/ex23
 *
 * Exercise for docs/23-json.md. Return the value at a path such as "text_config.hidden_size":
 * each part between dots names a member of the object before it. NULL if there is none. The
 * functions tr_json_first, tr_json_next and tr_json_key are enough; the root is j->node. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static const tr_json_node *at_path(const tr_json *j, const char *path);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static const tr_json_node *at_path(const tr_json *j, const char *path)
{
    (void)path;
    return j->node;
}
/* -------------------------------------------------------------------------- */
#endif

int main(void)
{
    static const struct { const char *path; int64_t want; } ask[] = {
        { "eos_token_id", 258 }, { "text_config.hidden_size", 80 },
        { "text_config.linear_attn_config.num_heads", 3 },
        { "text_config.quantization_config.config_groups.group_0.weights.group_size", 32 },
        { "text_config.hidden", -1 }, { "text_config.hidden_size.x", -1 }, { "hidden_size", -1 },
    };
    tr_ctx *ctx;
    tr_json j;
    if (tr_ctx_new(&ctx, NULL) ||
        tr_json_load(ctx, &j, "tests/golden/kimi_k3/text-a/config.json")) return 2;
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
        const tr_json_node *n = at_path(&j, ask[i].path);
        int64_t v = -1;
        if (n && tr_json_int(&j, n, &v)) v = -2;
        if (v == ask[i].want) continue;
        printf("missing: %s is %lld, yours is %lld (-1: there is none, -2: no integer)\n",
               ask[i].path, (long long)ask[i].want, (long long)v);
        return 1;
    }
    tr_json_free(&j);
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static const tr_json_node *at_path(const tr_json *j, const char *path)
{
    const tr_json_node *at = j->node;
    for (;;) {
        size_t n = strcspn(path, ".");
        if (at->type != TR_JSON_OBJECT) return NULL;
        for (at = tr_json_first(j, at); at; at = tr_json_next(j, at))
            if (strlen(tr_json_key(j, at)) == n && !strncmp(tr_json_key(j, at), path, n)) break;
        if (!at || !path[n]) return at;
        path += n + 1;
    }
}
#endif
