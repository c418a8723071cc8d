/* fuzz_json.c - any bytes through {json}; what opens must walk.
 *     clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_json.c -lm -o build/fuzz_json
 *     build/fuzz_json -max_len=4096 build/corpus/json tests/corpus/json */

#define TRILLION_IMPLEMENTATION
#include "../trillion.h"

static void walk(const tr_json *j, const tr_json_node *v, int depth)
{
    int64_t i;
    double d;
    int b;
    uint32_t n = 0;
    if (depth > TR_JSON_MAX_DEPTH || strlen(tr_json_str(j, v)) != v->str_len) abort();
    if (strlen(tr_json_key(j, v)) != v->key_len || v->line < 1) abort();
    if (tr_json_int(j, v, &i) == TR_OK && tr_json_num(j, v, &d) != TR_OK) abort();
    (void)tr_json_num(j, v, &d);
    (void)tr_json_bool(j, v, &b);
    for (const tr_json_node *c = tr_json_first(j, v); c; c = tr_json_next(j, c), n++) {
        if (v->type == TR_JSON_OBJECT && n < 16 && tr_json_get(j, v, tr_json_key(j, c)) != c) abort();
        walk(j, c, depth + 1);
    }
    if (n != v->count) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tr_ctx *ctx;
    tr_json j;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 0;
    if (tr_json_parse(ctx, &j, "fuzz", (const char *)data, n) == TR_OK) walk(&j, j.node, 1);
    else if (!tr_err_last(ctx)[0]) abort();
    tr_json_free(&j);
    if (tr_ctx_bytes(ctx)) abort();
    tr_ctx_free(ctx);
    return 0;
}
