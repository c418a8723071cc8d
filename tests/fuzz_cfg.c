/* fuzz_cfg.c - any bytes as a config.json: read, and if they are one, what they ask for is counted.
 *     clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_cfg.c -lm \
 *         -o build/fuzz_cfg && build/fuzz_cfg tests/corpus/cfg */
#define TRILLION_IMPLEMENTATION
#include "../trillion.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tr_run_opts o = tr_run_opts_default();
    tr_ctx *ctx;
    tr_config c;
    tr_model *m = NULL;
    tr_plan p;
    tr_status s;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 0;
    s = tr_config_parse(ctx, &c, "config.json", (const char *)data, n, NULL);
    if (s != TR_OK && !tr_err_last(ctx)[0]) abort();        /* every refusal has its sentence */
    if (s == TR_OK && c.layers * (c.experts + 1) > 100000) tr_config_free(ctx, &c);
    else if (s == TR_OK && tr_model_new_dry(ctx, &m, &c) == TR_OK &&
             tr_plan_model(ctx, &p, m, &o) == TR_OK) tr_plan_free(ctx, &p);
    tr_model_close(m);
    if (tr_ctx_bytes(ctx)) abort();
    tr_ctx_free(ctx);
    return 0;
}
