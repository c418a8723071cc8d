/* test_model.c - checkpoints that are wrong and how it is told; runs that are cut, batched,
 * threaded, opened in part, rewound; memory that is planned. */
#define TRILLION_IMPLEMENTATION
#include "test.h"
#include <sys/stat.h>

static const char *cases = "tests/golden";

/* ---- a copy of a checkpoint with one thing changed ------------------------ */

#define MAX_TENSORS 2048

typedef struct copy {
    tr_ctx *ctx;
    tr_shards from;
    tr_st_item item[MAX_TENSORS];
    void *own[MAX_TENSORS];         /* memory of changed tensors */
    int64_t n;
    char config[65536];
} copy;

static copy cp;

static const char *fixture(const char *sub)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", cases, sub);
    return path;
}

static void copy_begin(tr_ctx *ctx, const char *sub)
{
    char path[640];
    FILE *f;
    size_t n;
    memset(&cp, 0, sizeof cp);
    cp.ctx = ctx;
    CHECK_OK(ctx, tr_shards_open(ctx, &cp.from, fixture(sub), 0));
    for (int64_t i = 0; i < cp.from.n && i < MAX_TENSORS; i++) {
        cp.item[i].name = cp.from.entry[i]->name;
        cp.item[i].view = cp.from.entry[i]->view;
    }
    cp.n = cp.from.n;
    snprintf(path, sizeof path, "%s/config.json", fixture(sub));
    f = fopen(path, "rb");
    n = f ? fread(cp.config, 1, sizeof cp.config - 1, f) : 0;
    cp.config[n] = 0;
    if (f) fclose(f);
}

static int64_t item_of(const char *name)
{
    for (int64_t i = 0; i < cp.n; i++)
        if (!strcmp(cp.item[i].name, name)) return i;
    test_bad++;
    printf("  no tensor %s\n", name);
    return 0;
}

/* Its own memory for a tensor, to write into; bytes as for `shape` if given. */
static unsigned char *item_own(const char *name, int64_t elements)
{
    int64_t i = item_of(name);
    size_t size = (size_t)tr_dtype_get(cp.item[i].view.dtype)->bits / 8;
    size_t have = (size_t)tr_view_numel(cp.item[i].view) * size, want = (size_t)elements * size;
    unsigned char *p = (unsigned char *)calloc(1, want > have ? want : have);
    memcpy(p, cp.item[i].view.data, have < want ? have : want);
    free(cp.own[i]);
    cp.own[i] = p;
    cp.item[i].view.data = p;
    return p;
}

static unsigned char *item_bytes(const char *name)
{
    return item_own(name, tr_view_numel(cp.item[item_of(name)].view));
}

static void item_drop(const char *name)
{
    int64_t i = item_of(name);
    free(cp.own[i]);
    cp.item[i] = cp.item[--cp.n];
    cp.own[i] = cp.own[cp.n];
    cp.own[cp.n] = NULL;
}

static void config_edit(const char *from, const char *to)
{
    static char out[sizeof cp.config];
    char *at = strstr(cp.config, from);
    if (!at) { test_bad++; printf("  no %s in the config\n", from); return; }
    strcpy(out, at + strlen(from));
    snprintf(at, sizeof cp.config - (size_t)(at - cp.config), "%.1000s%.60000s", to, out);
}

static const char *copy_end(void)
{
    static const char *dir = "build/tmp/model";
    FILE *f;
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    mkdir(dir, 0777);
    CHECK_OK(cp.ctx, tr_st_write(cp.ctx, "build/tmp/model/model.safetensors", cp.item, cp.n, NULL, 0));
    f = fopen("build/tmp/model/config.json", "wb");
    if (f) { fputs(cp.config, f); fclose(f); }
    for (int64_t i = 0; i < MAX_TENSORS; i++) free(cp.own[i]);
    tr_shards_close(cp.ctx, &cp.from);
    return dir;
}

/* Opens the copy: must fail so. */
static void open_fails(tr_status status, const char *words)
{
    tr_model *m = NULL;
    const char *dir = copy_end();
    CHECK_FAILS(cp.ctx, status, words, tr_model_open(cp.ctx, &m, dir, NULL));
    tr_model_close(m);
}

/* Opens the copy: must succeed, but a run over 8 tokens must fail so. */
static void run_fails(tr_status status, const char *words)
{
    tr_run_opts o = tr_run_opts_default();
    tr_model *m = NULL;
    tr_run *r = NULL;
    int32_t ids[8], out;
    for (int i = 0; i < 8; i++) ids[i] = i;
    CHECK_OK(cp.ctx, tr_model_open(cp.ctx, &m, copy_end(), NULL));
    if (m) CHECK_OK(cp.ctx, tr_run_new(cp.ctx, &r, m, &o));
    if (r) CHECK_FAILS(cp.ctx, status, words, tr_generate(r, ids, 8, 1, &out));
    tr_run_free(r);
    tr_model_close(m);
}

#define K3 "language_model.model.layers."

static void tensors_that_do_not_fit(void)
{
    tr_ctx *ctx = test_ctx();
    int64_t i;
    copy_begin(ctx, "families/llama");
    item_drop("model.layers.2.mlp.up_proj.weight");
    open_fails(TR_ERR_MISSING, "build/tmp/model 1 missing model.layers.2.mlp.up_proj.weight 0");
    copy_begin(ctx, "families/llama");
    i = item_of("model.layers.2.mlp.up_proj.weight");
    cp.item[i].name = "model.layers.2.mlp.upproj.weight";
    open_fails(TR_ERR_MISSING, "1 model.layers.2.mlp.up_proj.weight 1 unused model.layers.2.mlp.upproj");
    copy_begin(ctx, "families/llama");
    config_edit("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3");
    open_fails(TR_ERR_FORMAT, "0 missing 9 unused model.layers.3.");
    copy_begin(ctx, "families/llama");
    config_edit("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 6");
    open_fails(TR_ERR_MISSING, "18 missing model.layers.4.");
    copy_begin(ctx, "families/llama");
    config_edit("\"intermediate_size\": 192", "\"intermediate_size\": 200");
    open_fails(TR_ERR_SHAPE, "mlp.gate_proj.weight [192, [200,");
    copy_begin(ctx, "families/llama");
    i = item_of("model.layers.1.mlp.up_proj.weight");
    item_bytes(cp.item[i].name);
    cp.item[i].view = tr_view2(cp.item[i].view.data, TR_BF16, 72, 192);
    open_fails(TR_ERR_SHAPE, "model.layers.1.mlp.up_proj.weight [72, 192]");
    copy_begin(ctx, "families/llama");
    i = item_of("model.layers.1.mlp.up_proj.weight");
    item_bytes(cp.item[i].name);
    cp.item[i].view = tr_view2(cp.item[i].view.data, TR_I16, 192, 72);
    open_fails(TR_ERR_DTYPE, "model.layers.1.mlp.up_proj.weight I16");
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void tied_head(void)
{
    tr_ctx *ctx = test_ctx();
    tr_model *m = NULL;
    copy_begin(ctx, "families/llama");
    cp.item[cp.n] = cp.item[item_of("model.embed_tokens.weight")];
    cp.item[cp.n++].name = "lm_head.weight";
    CHECK_OK(ctx, tr_model_open(ctx, &m, copy_end(), NULL));
    tr_model_close(m);
    copy_begin(ctx, "families/llama");
    cp.item[cp.n] = cp.item[item_of("model.embed_tokens.weight")];
    cp.item[cp.n++].name = "lm_head.weight";
    item_bytes("lm_head.weight")[10] ^= 1;
    open_fails(TR_ERR_FORMAT, "lm_head.weight model.embed_tokens.weight ties");
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void vectors(void)
{
    static const uint16_t nan = 0x7fc0;
    const float inf = INFINITY;
    tr_ctx *ctx = test_ctx();
    tr_model *m = NULL;
    int64_t i;
    copy_begin(ctx, "families/llama");
    memcpy(item_bytes("model.layers.3.input_layernorm.weight") + 2 * 17, &nan, 2);
    open_fails(TR_ERR_NOT_FINITE, "model.layers.3.input_layernorm.weight 17 nan");
    copy_begin(ctx, "kimi_k3/text-a");
    memcpy(item_bytes(K3 "1.block_sparse_moe.gate.e_score_correction_bias") + 4 * 3, &inf, 4);
    open_fails(TR_ERR_NOT_FINITE, "layers.1.block_sparse_moe.gate.e_score_correction_bias 3 inf");
    /* A_log: longer than the heads is fine and its rest is never used; shorter is refused */
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture("kimi_k3/text-a"), NULL));
    CHECK(strstr(test_log, "head: 6 (first") && strstr(test_log, "layers.0.self_attn.A_log"));
    if (m) CHECK(tr_view_numel(m->layer[0].vec[TR_W_A_LOG]) == 3);
    tr_model_close(m);
    m = NULL;
    copy_begin(ctx, "kimi_k3/text-a");
    for (int l = 0; l < 9; l++) {
        static char name[9][64];
        if (l == 3 || l > 6) continue;
        snprintf(name[l], sizeof name[l], K3 "%d.self_attn.A_log", l);
        memset(item_bytes(name[l]) + 12, 0, 20);
    }
    test_log[0] = 0;
    CHECK_OK(ctx, tr_model_open(ctx, &m, copy_end(), NULL));
    CHECK(!test_log[0]);
    tr_model_close(m);
    copy_begin(ctx, "kimi_k3/text-a");
    i = item_of(K3 "5.self_attn.A_log");
    cp.item[i].view.shape[0] = 2;
    open_fails(TR_ERR_SHAPE, "layers.5.self_attn.A_log 2 3");
    copy_begin(ctx, "kimi_k3/text-a");
    i = item_of(K3 "5.self_attn.dt_bias");
    cp.item[i].view.dtype = TR_BF16;
    cp.item[i].view.shape[0] = 96;
    open_fails(TR_ERR_DTYPE, "layers.5.self_attn.dt_bias BF16 F32");
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* A checkpoint whose every expert of layer 2 is spoilt the same way, so that a chosen one is. */
static void spoil_experts(const char *part, size_t at, int value)
{
    for (int e = 0; e < 12; e++) {
        static char name[12][128];
        snprintf(name[e], sizeof name[e], K3 "2.block_sparse_moe.experts.%d.%s", e, part);
        item_bytes(name[e])[at] = (unsigned char)value;
    }
}

static void scaled_weights(void)
{
    tr_ctx *ctx = test_ctx();
    tr_model *m = NULL;
    tr_run *r = NULL;
    tr_run_opts o = tr_run_opts_default();
    int32_t ids[3] = { 1, 2, 3 }, out;
    int64_t i;
    copy_begin(ctx, "kimi_k3/text-a");
    item_drop(K3 "2.block_sparse_moe.experts.4.w1.weight_scale");
    open_fails(TR_ERR_MISSING, "layers.2.block_sparse_moe.experts.4.w1.weight_packed weight_scale");
    copy_begin(ctx, "kimi_k3/text-a");
    i = item_of(K3 "2.block_sparse_moe.experts.4.w1.weight_scale");
    item_bytes(cp.item[i].name);
    cp.item[i].view = tr_view2(cp.item[i].view.data, TR_U8, 96 * 2, 1);
    open_fails(TR_ERR_SHAPE, "layers.2.block_sparse_moe.experts.4.w1.weight_scale [192, [96,");
    copy_begin(ctx, "kimi_k3/text-a");
    item_drop(K3 "2.block_sparse_moe.experts.4.w1.weight_packed");
    open_fails(TR_ERR_MISSING, "1 layers.2.block_sparse_moe.experts.4.w1.weight 1 w1.weight_scale");
    copy_begin(ctx, "kimi_k3/text-a");
    config_edit("\"quantization_config\": {", "\"quantisation_config\": {");
    open_fails(TR_ERR_UNSUPPORTED, "unknown text_config.quantisation_config");
    copy_begin(ctx, "families/deepseek_v3_fp8");
    *strstr(cp.config, ",\n  \"quantization_config\"") = 0;
    strcat(cp.config, "\n}\n");
    open_fails(TR_ERR_FORMAT, "fp8-block quantization_config");
    copy_begin(ctx, "kimi_k3/text-a");
    spoil_experts("w3.weight_scale", 2 * 7 + 1, 255);
    run_fails(TR_ERR_NOT_FINITE, "layers.2.block_sparse_moe.experts. w3.weight_packed row 7");
    copy_begin(ctx, "kimi_k3/text-a");
    spoil_experts("w3.weight_scale", 2 * 7 + 1, 0);             /* 2^-127, not 0 and not an error */
    CHECK_OK(ctx, tr_model_open(ctx, &m, copy_end(), NULL));
    if (m) {
        double w[32];
        CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
        if (r) CHECK_OK(ctx, tr_generate(r, ids, 3, 1, &out));
        tr_weight_row_f64(&m->layer[2].expert[1][0], 7, 32, 32, w);
        for (i = 0; i < 32; i++) CHECK(fabs(w[i]) <= 6 * ldexp(1, -127) && w[i] * 2 == rint(w[i] * 2 *
                                       ldexp(1, 127)) * ldexp(1, -127));
    }
    tr_run_free(r);
    tr_model_close(m);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void nan_weights(void)
{
    static const uint16_t nan = 0x7fc0, inf = 0x7f80;
    tr_ctx *ctx = test_ctx();
    copy_begin(ctx, "families/llama");
    memcpy(item_bytes("model.layers.1.mlp.up_proj.weight") + 2 * (72 * 5 + 3), &nan, 2);
    run_fails(TR_ERR_NOT_FINITE, "model.layers.1.mlp.up_proj weight row 5");
    copy_begin(ctx, "families/deepseek_v3");
    memcpy(item_bytes("model.layers.2.mlp.gate.weight") + 2 * 64, &inf, 2);
    run_fails(TR_ERR_NOT_FINITE, "model.layers.2.mlp.gate row 1");
    copy_begin(ctx, "families/deepseek_v3");
    memcpy(item_bytes("model.layers.3.self_attn.kv_b_proj.weight"), &nan, 2);
    run_fails(TR_ERR_NOT_FINITE, "model.layers.3.self_attn.kv_b_proj row 0");
    copy_begin(ctx, "families/llama3");
    memcpy(item_bytes("lm_head.weight") + 2 * 66 * 319, &nan, 2);
    run_fails(TR_ERR_NOT_FINITE, "lm_head row 319");
    copy_begin(ctx, "families/llama3");
    memcpy(item_bytes("model.embed_tokens.weight") + 2 * 66, &nan, 2);
    run_fails(TR_ERR_NOT_FINITE, "model.embed_tokens row 1");
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* A module that is announced and not shipped is a note; half of one is an error. */
static void prediction_modules(void)
{
    tr_ctx *ctx = test_ctx();
    tr_model *m = NULL;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture("families/deepseek_v3_mtp"), NULL));
    tr_model_close(m);
    m = NULL;
    copy_begin(ctx, "families/deepseek_v3_mtp");
    item_drop("model.layers.2.eh_proj.weight");
    open_fails(TR_ERR_MISSING, "prediction modules first layers.");
    copy_begin(ctx, "families/deepseek_v3_mtp");
    for (int64_t i = cp.n; i-- > 0;)
        if (!strncmp(cp.item[i].name, "model.layers.2.", 15)) item_drop(cp.item[i].name);
    test_log[0] = 0;
    CHECK_OK(ctx, tr_model_open(ctx, &m, copy_end(), NULL));
    CHECK(strstr(test_log, "none is shipped"));
    tr_model_close(m);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* ---- runs ------------------------------------------------------------------ */

static const char *const models[] = {
    "kimi_k3/text-a", "families/deepseek_v3_fp8", "families/llama3"
};

/* Logits and hidden rows of all tokens; V and D are bytes a row. */
typedef struct result { unsigned char *logits, *h; int64_t V, D; } result;

/* Runs B sequences of the given lengths. */
static result run_batch(tr_ctx *ctx, tr_model *m, const char *profile, int64_t B, const int64_t *T,
                        const int32_t *ids, int64_t piece)
{
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    tr_golden g;
    tr_batch b;
    result res;
    int64_t rows = 0, at = 0;
    tr_view v, h;
    static const char *const globs[] = { "logits", "*model.norm" };
    memset(&res, 0, sizeof res);
    b.B = B;
    b.T = T;
    b.ids = ids;
    for (int64_t s = 0; s < B; s++) rows += T[s];
    o.profile = tr_profile_find(profile);
    o.B = B;
    o.max_tokens = piece * B;
    o.capacity = 64;
    o.logits = TR_LOGITS_ALL;
    o.globs = globs;
    o.n_globs = 2;
    o.tap = tr_golden_tap;
    o.tap_user = &g;
    CHECK_OK(ctx, tr_golden_new(ctx, &g, B, T));
    CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
    if (r) CHECK_OK(ctx, tr_prefill(r, &b));
    res.V = m->cfg.vocab * tr_dtype_get(o.profile->act)->bits / 8;
    res.D = m->cfg.hidden * tr_dtype_get(o.profile->act)->bits / 8;
    res.logits = (unsigned char *)calloc((size_t)(rows * res.V), 1);
    res.h = (unsigned char *)calloc((size_t)(rows * res.D), 1);
    v = tr_golden_find(&g, "logits");
    h = tr_golden_find(&g, m->cfg.family->prefix[0] ? "language_model.model.norm" : "model.norm");
    for (int64_t s = 0; r && s < B; at += T[s++]) {
        memcpy(res.logits + at * res.V, (unsigned char *)v.data + s * g.T * res.V,
               (size_t)(T[s] * res.V));
        memcpy(res.h + at * res.D, (unsigned char *)h.data + s * g.T * res.D,
               (size_t)(T[s] * res.D));
    }
    tr_run_free(r);
    tr_golden_free(ctx, &g);
    return res;
}

static void result_free(result *r) { free(r->logits); free(r->h); }

static void make_ids(int32_t *ids, int64_t n, int64_t V)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(tr_rng_u64(7, 0, (uint64_t)i) % (uint64_t)V);
}

/* A sequence gives the same bits alone, in a ragged batch, in pieces, and on any threads. */
static void same_bits(const char *model, const char *profile, const int *threads)
{
    static const int64_t T[3] = { 5, 31, 17 };
    int32_t ids[53];
    result whole, r;
    for (int k = 0; threads[k]; k++) {
        int64_t at = 0;
        tr_ctx_opts co;
        tr_ctx *ctx;
        tr_model *m = NULL;
        memset(&co, 0, sizeof co);
        co.threads = threads[k];
        if (tr_ctx_new(&ctx, &co) != TR_OK) return;
        CHECK_OK(ctx, tr_model_open(ctx, &m, fixture(model), NULL));
        if (!m) return;
        make_ids(ids, 53, m->cfg.vocab);
        if (k == 0) whole = run_batch(ctx, m, profile, 3, T, ids, 64);
        for (int64_t piece = 3; piece <= 64; piece = piece * 4 + 1) {
            r = run_batch(ctx, m, profile, 3, T, ids, piece);
            CHECK_BITS(r.logits, whole.logits, (size_t)(53 * whole.V));
            CHECK_BITS(r.h, whole.h, (size_t)(53 * whole.D));
            result_free(&r);
        }
        for (int s = 0; s < 3; at += T[s++]) {
            r = run_batch(ctx, m, profile, 1, &T[s], ids + at, 64);
            CHECK_BITS(r.logits, whole.logits + at * whole.V, (size_t)(T[s] * whole.V));
            result_free(&r);
        }
        tr_model_close(m);
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
    result_free(&whole);
}

static void batches_threads_pieces(void)
{
    static const int many[] = { 1, 2, 7, 0 }, two[] = { 1, 7, 0 };
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        same_bits(models[k], "exact", many);
        same_bits(models[k], "oracle", two);
    }
}

/* Layers opened in part, fed with what the part before left, are the whole. */
static void in_part(void)
{
    static const int64_t cut[] = { 1, 3, 4, 5, 8 };
    tr_ctx *ctx = test_ctx();
    tr_model *m = NULL;
    int64_t T = 11;
    int32_t ids[11];
    result whole;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture(models[0]), NULL));
    make_ids(ids, T, 320);
    whole = run_batch(ctx, m, "exact", 1, &T, ids, 64);
    tr_model_close(m);
    for (size_t k = 0; k < sizeof cut / sizeof cut[0]; k++) {
        tr_run_opts o = tr_run_opts_default();
        tr_model_opts mo;
        tr_model *a = NULL, *b = NULL;
        tr_run *ra = NULL, *rb = NULL;
        tr_batch bt;
        tr_hidden h;
        char text[64];
        int32_t next;
        snprintf(text, sizeof text, "layer 8 open to layer %d", (int)cut[k] - 1);
        memset(&h, 0, sizeof h);
        bt.B = 1;
        bt.T = &T;
        bt.ids = ids;
        o.logits = TR_LOGITS_ALL;
        memset(&mo, 0, sizeof mo);
        mo.layers = cut[k];
        CHECK_OK(ctx, tr_model_open(ctx, &a, fixture(models[0]), &mo));
        mo.first = cut[k];
        mo.layers = k % 2 ? 0 : 9 - cut[k];             /* 0: to the end */
        CHECK_OK(ctx, tr_model_open(ctx, &b, fixture(models[0]), &mo));
        CHECK_OK(ctx, tr_run_new(ctx, &ra, a, &o));
        CHECK_OK(ctx, tr_run_new(ctx, &rb, b, &o));
        if (!ra || !rb) return;
        CHECK_FAILS(ctx, TR_ERR_ARG, "layer 0 embedding", tr_forward(ra, &bt, &h));
        CHECK_FAILS(ctx, TR_ERR_ARG, text, tr_generate(ra, ids, T, 1, &next));
        CHECK_OK(ctx, tr_forward(ra, &bt, NULL));
        CHECK(ra->hidden.n == (cut[k] + 3) / 4);        /* ceil(25 / 12) = 3 has this form */
        h.h = tr_view_slice(ra->hidden.h, 0, 0, T);
        h.snaps = tr_view_slice(ra->hidden.snaps, 1, 0, T);
        h.n = ra->hidden.n;
        CHECK_FAILS(ctx, TR_ERR_ARG, "hidden state", tr_forward(rb, &bt, NULL));
        h.n--;
        CHECK_FAILS(ctx, TR_ERR_ARG, "block sum", tr_forward(rb, &bt, &h));
        h.n++;
        h.snaps.shape[0]--;
        CHECK_FAILS(ctx, TR_ERR_SHAPE, "block sums", tr_forward(rb, &bt, &h));
        h.snaps.shape[0]++;
        h.h.shape[0]--;
        CHECK_FAILS(ctx, TR_ERR_SHAPE, "hidden state", tr_forward(rb, &bt, &h));
        h.h.shape[0]++;
        CHECK_OK(ctx, tr_forward(rb, &bt, &h));
        CHECK_BITS(rb->logits.data, whole.logits, (size_t)(T * whole.V));
        tr_run_free(ra);
        tr_run_free(rb);
        tr_model_close(a);
        tr_model_close(b);
    }
    result_free(&whole);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* Experts that are left out, held, or bound without memory. */
static void experts_in_part(void)
{
    tr_ctx *ctx = test_ctx();
    tr_model *all = NULL, *m = NULL;
    tr_model_opts mo;
    unsigned char *held;
    size_t bytes;
    memset(&mo, 0, sizeof mo);
    CHECK_OK(ctx, tr_model_open(ctx, &all, fixture(models[0]), NULL));
    held = (unsigned char *)calloc((size_t)(all->cfg.layers * all->cfg.experts), 1);
    if (!held) return;
    bytes = all->bytes;
    for (int64_t l = 0; l < all->cfg.layers; l++)
        for (int64_t e = 0; e < all->cfg.experts; e++) {
            held[l * all->cfg.experts + e] = (unsigned char)(e % 3);
            for (int k = 0; e % 3 != 1 && k < 3 && all->layer[l].expert[k]; k++) {
                const tr_weight *w = &all->layer[l].expert[k][e];
                size_t q, s;
                CHECK_OK(ctx, tr_qformat_bytes(ctx, w->format, w->rows, w->cols, w->block_rows,
                                               w->block_cols, &q, &s));
                bytes -= q + s;
            }
        }
    mo.held = held;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture(models[0]), &mo));
    CHECK(m->bytes == bytes && bytes < all->bytes);
    for (int64_t l = 0; l < m->layers; l++)
        for (int64_t e = 0; m->layer[l].expert[0] && e < m->cfg.experts; e++) {
            const tr_weight *w = &m->layer[l].expert[2][e], *whole = &all->layer[l].expert[2][e];
            CHECK((w->format != NULL) == (e % 3 > 0) && (w->q != NULL) == (e % 3 == 1));
            if (e % 3 == 0) continue;
            CHECK(w->format == whole->format && w->rows == whole->rows && w->cols == whole->cols);
            CHECK(w->s_stride == whole->s_stride && !strcmp(w->name, whole->name));
        }
    free(held);
    tr_model_close(m);
    tr_model_close(all);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void marks(void)
{
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        tr_ctx *ctx = test_ctx();
        tr_run_opts o = tr_run_opts_default();
        tr_model *m = NULL;
        tr_run *r = NULL;
        tr_mark mark;
        int32_t ids[24], a[4], b[4];
        CHECK_OK(ctx, tr_model_open(ctx, &m, fixture(models[k]), NULL));
        CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
        if (!r) return;
        make_ids(ids, 24, m->cfg.vocab);
        CHECK_OK(ctx, tr_generate(r, ids, 9, 1, a));
        CHECK_OK(ctx, tr_state_mark(&r->state, &mark));
        CHECK_OK(ctx, tr_generate(r, ids + 9, 7, 4, a));
        CHECK_OK(ctx, tr_state_rewind(&r->state, &mark));
        CHECK(r->state.len[0] == 9);
        CHECK_OK(ctx, tr_generate(r, ids + 13, 11, 4, b));      /* another road */
        CHECK_OK(ctx, tr_state_rewind(&r->state, &mark));
        CHECK_OK(ctx, tr_generate(r, ids + 9, 7, 4, b));
        CHECK_BITS(b, a, sizeof a);
        tr_state_reset(&r->state);
        CHECK_FAILS(ctx, TR_ERR_ARG, "rewind 0 9", tr_state_rewind(&r->state, &mark));
        tr_mark_free(&r->state, &mark);
        tr_run_free(r);
        tr_model_close(m);
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
}

static void calls_that_are_refused(void)
{
    tr_ctx *ctx = test_ctx();
    tr_run_opts o = tr_run_opts_default();
    tr_model_opts mo;
    tr_model *m = NULL, *part = NULL;
    tr_run *r = NULL;
    tr_ops half;
    int32_t ids[20] = { 0 }, out[20];
    o.capacity = 8;
    o.max_tokens = 16;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture("families/llama"), NULL));
    CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
    if (!r) return;
    ids[3] = 320;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "sequence 0 token 3 320", tr_generate(r, ids, 4, 1, out));
    ids[3] = -1;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "token 3 -1", tr_generate(r, ids, 4, 1, out));
    ids[3] = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "empty", tr_generate(r, ids, 0, 1, out));
    CHECK_FAILS(ctx, TR_ERR_FULL, "9 0 8", tr_generate(r, ids, 9, 1, out));
    CHECK(r->state.len[0] == 0);
    CHECK_FAILS(ctx, TR_ERR_FULL, "1 8", tr_generate(r, ids, 5, 5, out));
    CHECK(r->state.len[0] == 8);
    tr_run_free(r);
    r = NULL;
    half = tr_ops_oracle();
    half.glu = NULL;
    half.name = "half";
    o.ops = &half;
    CHECK_FAILS(ctx, TR_ERR_ARG, "half glu", tr_run_new(ctx, &r, m, &o));
    o.ops = NULL;
    o.capacity = 0;
    CHECK_FAILS(ctx, TR_ERR_ARG, "room", tr_run_new(ctx, &r, m, &o));
    memset(&mo, 0, sizeof mo);
    mo.first = 3;
    mo.layers = 2;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "layers 3 4", tr_model_open(ctx, &part, fixture("families/llama"), &mo));
    CHECK_FAILS(ctx, TR_ERR_IO, "no/such", tr_model_open(ctx, &part, "no/such", NULL));
    tr_model_close(m);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* A port: one entry replaced, the rest the contract's. */
static int64_t port_calls;
static tr_status port_glu(void *user, tr_ctx *ctx, const tr_glu_args *a)
{
    port_calls++;
    CHECK(user == &port_calls);
    TRI_TRY(tr_glu(ctx, a));
    *(float *)a->y.data += 1e-3f;
    return TR_OK;
}

static void a_port(void)
{
    tr_ctx *ctx = test_ctx();
    tr_run_opts o = tr_run_opts_default();
    tr_model *m = NULL;
    tr_run *r = NULL, *p = NULL;
    tr_ops ops = tr_ops_contract();
    int32_t ids[3] = { 1, 2, 3 }, out;
    ops.user = &port_calls;
    ops.glu = port_glu;
    port_calls = 0;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture("families/llama"), NULL));
    CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
    o.ops = &ops;
    CHECK_OK(ctx, tr_run_new(ctx, &p, m, &o));
    if (!r || !p) return;
    CHECK_OK(ctx, tr_generate(r, ids, 3, 1, &out));
    CHECK(port_calls == 0);
    CHECK_OK(ctx, tr_generate(p, ids, 3, 1, &out));
    CHECK(port_calls == 4);
    CHECK(memcmp(r->logits.data, p->logits.data, 320 * sizeof(float)));
    tr_run_free(r);
    tr_run_free(p);
    tr_model_close(m);
    tr_ctx_free(ctx);
}

/* A call that fails half-way spoils the state until it is rewound or reset. */
static tr_status port_fails(void *user, tr_ctx *ctx, const tr_glu_args *a)
{
    int64_t *calls = (int64_t *)user;
    return ++*calls == 3 ? tr_fail(ctx, TR_ERR_RANGE, "the port gives up") : tr_glu(ctx, a);
}

static void spoilt(void)
{
    tr_ctx *ctx = test_ctx();
    tr_run_opts o = tr_run_opts_default();
    tr_model *m = NULL;
    tr_run *r = NULL;
    tr_ops ops = tr_ops_contract();
    int64_t calls = 0;
    int32_t ids[3] = { 1, 2, 3 }, a[2], b[2];
    ops.user = &calls;
    ops.glu = port_fails;
    o.ops = &ops;
    CHECK_OK(ctx, tr_model_open(ctx, &m, fixture("families/llama"), NULL));
    CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
    if (!r) return;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "model.layers.2.mlp the port gives up", tr_generate(r, ids, 3, 2, a));
    CHECK(r->state.spoilt && r->state.len[0] == 0 && a[0] == -1 && a[1] == -1);
    CHECK_FAILS(ctx, TR_ERR_ARG, "spoilt rewind reset", tr_generate(r, ids, 3, 2, a));
    tr_state_reset(&r->state);
    CHECK_OK(ctx, tr_generate(r, ids, 3, 2, a));
    tr_state_reset(&r->state);
    CHECK_OK(ctx, tr_generate(r, ids, 3, 2, b));
    CHECK_BITS(a, b, sizeof a);
    tr_run_free(r);
    tr_model_close(m);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void argmax(void)
{
    float ties[5] = { -3, 2, 2, 1, 2 }, nan[3] = { 1, NAN, 5 }, low[2] = { -INFINITY, -INFINITY };
    CHECK(tr_argmax(tr_view1(ties, TR_F32, 5)) == 1);
    CHECK(tr_argmax(tr_view1(nan, TR_F32, 3)) == -1);
    CHECK(tr_argmax(tr_view1(low, TR_F32, 2)) == 0);
}

/* ---- memory ---------------------------------------------------------------- */

typedef struct budget { int64_t left, calls; } budget;
static void *counting(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    budget *b = (budget *)user;
    (void)old_bytes;
    b->calls++;
    if (new_bytes == 0) { free(ptr); return NULL; }
    if (b->left-- <= 0) return NULL;
    return realloc(ptr, new_bytes);
}

/* Every allocation refused once, from opening to the second token; and after the run is made none
 * is asked for. */
static void allocations(void)
{
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        int64_t n = 0;
        int done = 0;
        for (; !done && n < 100000; n += n < 150 ? 1 : 1 + n / 8) {
            budget b;
            tr_ctx_opts co;
            tr_run_opts o = tr_run_opts_default();
            tr_ctx *ctx;
            tr_model *m = NULL;
            tr_run *r = NULL;
            tr_status s;
            int32_t ids[3] = { 1, 2, 3 }, out[2];
            memset(&co, 0, sizeof co);
            b.left = n;
            b.calls = 0;
            co.alloc = counting;
            co.alloc_user = &b;
            co.threads = 1;
            if (tr_ctx_new(&ctx, &co) != TR_OK) continue;
            s = tr_model_open(ctx, &m, fixture(models[k]), NULL);
            if (s == TR_OK) s = tr_run_new(ctx, &r, m, &o);
            if (s == TR_OK) {
                int64_t before = b.calls;
                s = tr_generate(r, ids, 3, 2, out);
                CHECK(b.calls == before);
                CHECK(r->arena.peak <= r->arena.cap);
            }
            if (s == TR_OK) done = 1;
            else CHECK(s == TR_ERR_MEMORY && strstr(tr_err_last(ctx), "out of memory"));
            tr_run_free(r);
            tr_model_close(m);
            CHECK(tr_ctx_bytes(ctx) == 0);
            tr_ctx_free(ctx);
        }
        CHECK(done && n > 20);
    }
}

/* What the plan says is what a run takes. */
static void plans(void)
{
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        tr_ctx *ctx = test_ctx();
        tr_run_opts o = tr_run_opts_default();
        tr_model *m = NULL;
        tr_run *r = NULL;
        tr_plan p;
        int32_t ids[64], out[2];
        size_t before;
        o.capacity = 66;
        CHECK_OK(ctx, tr_model_open(ctx, &m, fixture(models[k]), NULL));
        CHECK_OK(ctx, tr_plan_model(ctx, &p, m, &o));
        CHECK(p.tensors == m->shards.n && p.bytes == m->shards.bytes);
        CHECK(p.vectors == m->vector_bytes && p.ops > 10);
        before = tr_ctx_bytes(ctx);
        CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
        if (!r) return;
        make_ids(ids, 64, m->cfg.vocab);
        CHECK(tr_ctx_bytes(ctx) - before >= p.state + p.activations + p.workspace);
        CHECK(tr_ctx_bytes(ctx) - before <= p.state + p.activations + p.workspace + 65536);
        CHECK_OK(ctx, tr_generate(r, ids, 64, 2, out));
        CHECK(r->arena.peak <= p.activations + p.workspace);
        CHECK(r->arena.peak * 2 > p.activations + p.workspace);
        tr_run_free(r);
        tr_plan_free(ctx, &p);
        tr_model_close(m);
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cases = argv[1];
    TEST(tensors_that_do_not_fit);
    TEST(tied_head);
    TEST(vectors);
    TEST(scaled_weights);
    TEST(nan_weights);
    TEST(prediction_modules);
    TEST(calls_that_are_refused);
    TEST(batches_threads_pieces);
    TEST(in_part);
    TEST(experts_in_part);
    TEST(marks);
    TEST(a_port);
    TEST(argmax);
    TEST(spoilt);
    TEST(allocations);
    TEST(plans);
    return test_end();
}
