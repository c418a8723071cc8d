/* test_cfg.c - configurations: what is read, what is refused and how it is told, the tensors that
 * a config asks for, plans of released sizes. */
#define TRILLION_IMPLEMENTATION
#include "test.h"

static const char *cases = "tests/golden";

/* A tiny config with one piece of its text replaced; freed by the caller. */
static char *edited(const char *json, const char *from, const char *to)
{
    const char *at = strstr(json, from);
    size_t n = strlen(json) + strlen(to) + 1;
    char *out = (char *)malloc(n);
    if (!at) { test_bad++; printf("  no %s in the config\n", from); at = json; from = ""; to = ""; }
    snprintf(out, n, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
    return out;
}

typedef struct bad_config {
    const char *family, *from, *to;
    tr_status status;
    const char *words;
} bad_config;

static const bad_config bad[] = {
    /* missing, unknown, of the wrong type, absurd */
    { "llama", "\"hidden_size\": 72,", "", TR_ERR_MISSING, "hidden_size missing" },
    { "llama", "\"rms_norm_eps\": 1e-05,", "", TR_ERR_MISSING, "rms_norm_eps missing" },
    { "llama", "\"hidden_act\": \"silu\",", "", TR_ERR_MISSING, "hidden_act missing" },
    { "llama", "\"tie_word_embeddings\": false,", "", TR_ERR_MISSING, "tie_word_embeddings" },
    { "llama", ",\n  \"rope_theta\": 10000", "", TR_ERR_MISSING, "rope_theta missing" },
    { "llama", "\"model_type\": \"llama\",", "", TR_ERR_MISSING, "model_type missing" },
    { "llama", "\"model_type\": \"llama\"", "\"model_type\": \"lama\"", TR_ERR_UNSUPPORTED,
      "model_type lama line" },
    { "llama", "{", "{\"sliding_window\": 64,", TR_ERR_UNSUPPORTED, "unknown sliding_window" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": \"72\"", TR_ERR_FORMAT,
      "hidden_size whole string 72 line" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 72.5", TR_ERR_FORMAT, "hidden_size 72.5" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 72.0", TR_ERR_FORMAT, "hidden_size 72.0" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": null", TR_ERR_FORMAT, "hidden_size null" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 0", TR_ERR_FORMAT, "hidden_size from 1" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": -72", TR_ERR_FORMAT, "hidden_size -72" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 9999999999", TR_ERR_FORMAT, "hidden_size" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 99999999999999999999", TR_ERR_FORMAT,
      "hidden_size" },
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": [72]", TR_ERR_FORMAT, "hidden_size array" },
    { "llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", TR_ERR_FORMAT, "rms_norm_eps above" },
    { "llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1e-5", TR_ERR_FORMAT, "rms_norm_eps" },
    { "llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": true", TR_ERR_FORMAT, "rms_norm_eps" },
    { "llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e300", TR_ERR_FORMAT,
      "rms_norm_eps 1e30 1e300" },
    { "llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-320", TR_ERR_FORMAT,
      "rms_norm_eps 1e-30 1e-320" },
    { "deepseek_v3", "\"mscale\": 1.0", "\"mscale\": -1e31", TR_ERR_FORMAT, "mscale -1e31" },
    { "kimi_k3", "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": -1e-31", TR_ERR_FORMAT,
      "gate_lower_bound -1e-31" },
    { "llama", "[\"LlamaForCausalLM\"]", "[]", TR_ERR_UNSUPPORTED,
      "architectures array without LlamaForCausalLM" },
    { "llama", "{", "{\"hi\\ndden\": 1,", TR_ERR_UNSUPPORTED, "hi?dden" },
    { "llama", "\"attention_bias\": false", "\"attention_bias\": 0", TR_ERR_FORMAT,
      "attention_bias true false" },
    { "llama", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", TR_ERR_UNSUPPORTED,
      "hidden_act gelu silu" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": 8", TR_ERR_FORMAT, "rope_scaling object" },
    { "llama", "[\"LlamaForCausalLM\"]", "[\"MistralForCausalLM\"]", TR_ERR_UNSUPPORTED,
      "architectures LlamaForCausalLM" },
    { "llama", "{", "{\"pretraining_tp\": 2,", TR_ERR_UNSUPPORTED, "pretraining_tp 2" },
    { "llama", "{", "{\"rope_interleaved\": true,", TR_ERR_UNSUPPORTED, "rope_interleaved true" },
    { "llama", "\"eos_token_id\": 2", "\"eos_token_id\": 320", TR_ERR_FORMAT, "eos_token_id 320" },
    { "llama", "\"eos_token_id\": 2", "\"eos_token_id\": [2, \"x\"]", TR_ERR_FORMAT, "eos_token_id" },
    { "llama", "\"eos_token_id\": 2", "\"eos_token_id\": -2", TR_ERR_FORMAT, "eos_token_id" },
    { "llama", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5000", TR_ERR_FORMAT,
      "4096 layers" },
    { "deepseek_v3", "\"n_routed_experts\": 16", "\"n_routed_experts\": 70000", TR_ERR_FORMAT,
      "70000 experts" },
    { "deepseek_v3", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 5000",
      TR_ERR_FORMAT, "4096 layers" },
    /* contradictory */
    { "llama", "\"hidden_size\": 72", "\"hidden_size\": 73", TR_ERR_FORMAT, "73 head_dim 9" },
    { "llama", "\"num_key_value_heads\": 3", "\"num_key_value_heads\": 4", TR_ERR_FORMAT, "9 4" },
    { "llama", "\"hidden_size\": 72", "\"head_dim\": 7, \"hidden_size\": 72", TR_ERR_SHAPE, "7 pairs" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"default\", \"factor\": 2}",
      TR_ERR_FORMAT, "factor default" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"type\": \"linear\"}",
      TR_ERR_FORMAT, "rope_type type contradict" },
    { "llama", "\"rope_scaling\": null", "\"rope_parameters\": {\"rope_theta\": 500000}", TR_ERR_FORMAT,
      "rope_theta rope_parameters.rope_theta contradict" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
      TR_ERR_MISSING, "llama3" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8}",
      TR_ERR_MISSING, "yarn original_max_position_embeddings" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"linear\"}",
      TR_ERR_MISSING, "linear factor" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
      "\"low_freq_factor\": 4, \"high_freq_factor\": 1, \"original_max_position_embeddings\": 64}",
      TR_ERR_RANGE, "config.json: high_freq 1 low_freq 4" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, "
      "\"beta_slow\": 64, \"original_max_position_embeddings\": 64}", TR_ERR_RANGE,
      "config.json: beta_fast 32 beta_slow 64" },
    { "deepseek_v3", "\"rope_theta\": 10000", "\"rope_theta\": 1", TR_ERR_RANGE, "theta 1" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8, "
      "\"low_freq_factor\": 4}", TR_ERR_FORMAT, "low_freq_factor linear" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 8}",
      TR_ERR_UNSUPPORTED, "longrope" },
    { "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"fast\": 8}",
      TR_ERR_UNSUPPORTED, "unknown rope_scaling.fast" },
    { "deepseek_v3", "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2", TR_ERR_FORMAT,
      "num_key_value_heads 2 4" },
    { "deepseek_v3", "\"n_group\": 4", "\"n_group\": 3", TR_ERR_FORMAT, "16 3 groups" },
    { "deepseek_v3", "\"topk_group\": 2", "\"topk_group\": 5", TR_ERR_FORMAT, "5 4" },
    { "deepseek_v3", "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 9", TR_ERR_FORMAT, "9 8" },
    { "deepseek_v3", "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"",
      TR_ERR_UNSUPPORTED, "scoring_func softmax sigmoid" },
    { "deepseek_v3", "\"v_head_dim\": 20", "\"v_head_dim\": 20, \"qk_head_dim\": 30", TR_ERR_FORMAT,
      "qk_head_dim 30 16" },
    { "deepseek_v3", "\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 15", TR_ERR_SHAPE, "15 pairs" },
    { "deepseek_v3", "{", "{\"quantization_config\": {\"quant_method\": \"awq\"},",
      TR_ERR_UNSUPPORTED, "quantization_config.quant_method awq fp8" },
    { "deepseek_v3", "{", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\"},",
      TR_ERR_MISSING, "weight_block_size" },
    { "deepseek_v3", "{", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"},",
      TR_ERR_UNSUPPORTED, "fmt e5m2" },
    { "deepseek_v3", "{", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
      "\"weight_block_size\": [128, 0]},", TR_ERR_MISSING, "weight_block_size above" },
    /* layers in both or neither of two lists */
    { "kimi_k3", "[4, 8, 9]", "[4, 8]", TR_ERR_FORMAT, "layer 9 neither" },
    { "kimi_k3", "[4, 8, 9]", "[3, 4, 8, 9]", TR_ERR_FORMAT, "layer 3 both" },
    { "kimi_k3", "[4, 8, 9]", "[4, 8, 9, 10]", TR_ERR_RANGE, "layer 10 9 full_attn_layers" },
    { "kimi_k3", "[1, 2, 3, 5, 6, 7]", "[0, 1, 2, 3, 5, 6, 7]", TR_ERR_RANGE, "layer 0 kda_layers" },
    { "kimi_k3", "[4, 8, 9]", "[4, 8, 8, 9]", TR_ERR_FORMAT, "layer 8 twice" },
    { "kimi_k3", "[4, 8, 9]", "[4, 8.5, 9]", TR_ERR_FORMAT, "full_attn_layers 8.5" },
    { "kimi_k3", "[4, 8, 9]", "[4, -8, 9]", TR_ERR_FORMAT, "full_attn_layers -8" },
    { "kimi_k3", "[4, 8, 9]", "\"4, 8, 9\"", TR_ERR_FORMAT, "full_attn_layers list" },
    { "kimi_k3", "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": 5.0", TR_ERR_FORMAT,
      "gate_lower_bound below" },
    { "kimi_k3", "\"mla_use_nope\": true", "\"mla_use_nope\": false", TR_ERR_UNSUPPORTED,
      "mla_use_nope false true" },
    { "kimi_k3", "\"mla_use_nope\": true,", "", TR_ERR_MISSING, "mla_use_nope true" },
    { "kimi_k3", "\"num_bits\": 4,", "", TR_ERR_MISSING, "num_bits" },
    { "deepseek_v3", "\"topk_method\": \"noaux_tc\",", "", TR_ERR_MISSING, "topk_method noaux_tc" },
    { "kimi_k3", "\"group_size\": 32", "\"group_size\": 16", TR_ERR_UNSUPPORTED,
      "config_groups.group_0.weights.group_size 16 32" },
    { "kimi_k3", "\"num_bits\": 4", "\"num_bits\": 8", TR_ERR_UNSUPPORTED, "num_bits 8 4" },
    { "kimi_k3", "\"targets\": [\"Linear\"]", "\"targets\": [\"Embedding\"]", TR_ERR_UNSUPPORTED,
      "targets Linear" },
    { "kimi_k3", "\"text_hidden_size\": 80", "\"text_hidden_size\": 81", TR_ERR_FORMAT, "81 80" },
    { "kimi_k3", "\"tie_word_embeddings\": false,", "\"tie_word_embeddings\": true,", TR_ERR_FORMAT,
      "tie_word_embeddings contradict" },
    { "kimi_k3", "\"text_config\": {", "\"text_konfig\": {", TR_ERR_UNSUPPORTED, "text_konfig" },
    { "kimi_k3", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1",
      TR_ERR_UNSUPPORTED, "num_nextn_predict_layers 1" },
    { "kimi_k3", "\"vt_hidden_size\": 48,", "", TR_ERR_MISSING, "vision_config.vt_hidden_size" },
    { "kimi_k3", "\"hidden_size\": 80,", "\"hidden_size\": 80, \"hidden_size\": 80,", TR_ERR_FORMAT,
      "hidden_size" }
};

static void refused(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tr_ctx *ctx = test_ctx();
        tr_config c;
        char *json = NULL, *text;
        CHECK_OK(ctx, tr_config_tiny(ctx, &json, bad[i].family, NULL, 0));
        text = edited(json, bad[i].from, bad[i].to);
        test_fails(ctx, bad[i].status, bad[i].words,
                   tr_config_parse(ctx, &c, "config.json", text, strlen(text), NULL),
                   bad[i].to[0] ? bad[i].to : bad[i].from, __FILE__, (int)i);
        CHECK(strstr(tr_err_last(ctx), "config.json"));
        free(text);
        tr_free(ctx, json);
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
}

static void load_tiny(tr_ctx *ctx, tr_config *c, const char *family, const char *from, const char *to)
{
    char *json = NULL, *text;
    CHECK_OK(ctx, tr_config_tiny(ctx, &json, family, NULL, 0));
    text = edited(json, from, to);
    CHECK_OK(ctx, tr_config_parse(ctx, c, "config.json", text, strlen(text), NULL));
    free(text);
    tr_free(ctx, json);
}

/* What absence and aliases mean. */
static void meanings(void)
{
    tr_ctx *ctx = test_ctx();
    tr_config c;
    load_tiny(ctx, &c, "llama", "\"num_key_value_heads\": 3,", "");
    CHECK(c.kv_heads == 9 && c.head_dim == 8 && c.layer[3].mixer == TR_MIXER_GQA);
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "llama", "\"rope_theta\": 10000", "\"rope_parameters\": {\"rope_theta\": 1e6, "
              "\"rope_type\": \"default\"}");
    CHECK(c.rope_cfg.theta == 1e6 && c.rope_cfg.kind == TR_ROPE_DEFAULT);
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"linear\", "
              "\"factor\": 4.0}");
    CHECK(c.rope_cfg.kind == TR_ROPE_LINEAR && c.rope_cfg.factor == 4);
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "llama", "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", "
              "\"factor\": 4, \"original_max_position_embeddings\": 64}");
    CHECK(c.rope_cfg.beta_fast == 32 && c.rope_cfg.beta_slow == 1 && c.rope_cfg.truncate == 1);
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "llama", "\"eos_token_id\": 2", "\"eos_token_id\": [2, 7, 319]");
    CHECK(c.eos.n == 3 && c.eos.v[1] == 7);
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "kimi_k3", "\"gate_lower_bound\": -5.0,", "");
    CHECK(c.decay_bound == 0);      /* the softplus form: another golden than -5 */
    tr_config_free(ctx, &c);
    load_tiny(ctx, &c, "kimi_k3", "{", "{");
    CHECK(c.decay_bound == -5 && c.inner_eps == 1e-6 && c.eps == 1e-5 && c.renorm_eps == 1e-20);
    CHECK(c.layer[7].mixer == TR_MIXER_MLA && c.layer[8].mixer == TR_MIXER_MLA);
    CHECK(c.layer[0].ffn == TR_FFN_DENSE && c.layer[1].ffn == TR_FFN_MOE);
    tr_config_free(ctx, &c);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void accepted_and_set(void)
{
    static const char *const accept[] = { "my_note", "text_config.extra" };
    static const char *const set[] = { "mla.inner_eps=1e-5" };
    static const char *const twice[] = { "mla.inner_eps=1e-5", "mla.inner_eps=1e-5" };
    static const char *const wrong[][1] = { { "mla.inner_eps" }, { "mla.inner_eps=x" },
                                            { "no.such=1" }, { "router.ties=1" },
                                            { "mla.inner_eps=-1" }, { "kda.a_log_pad=1e300" },
                                            { "kda.a_log_pad=2.5" }, { "mla.inner_eps=nan" } };
    tr_ctx *ctx = test_ctx();
    tr_config_opts o;
    tr_config c;
    char *json = NULL, *text;
    memset(&o, 0, sizeof o);
    CHECK_OK(ctx, tr_config_tiny(ctx, &json, "kimi_k3", NULL, 0));
    text = edited(json, "\"text_config\": {", "\"my_note\": [1], \"text_config\": {\"extra\": 1,");
    o.accept = accept;
    o.n_accept = 1;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "text_config.extra",
                tr_config_parse(ctx, &c, "config.json", text, strlen(text), &o));
    o.n_accept = 2;
    o.set = set;
    o.n_set = 1;
    CHECK_OK(ctx, tr_config_parse(ctx, &c, "config.json", text, strlen(text), &o));
    CHECK(!strcmp(c.accepted, "my_note\ntext_config.extra\n"));
    CHECK(!strcmp(c.sets, "mla.inner_eps=1e-5\n") && c.inner_eps == 1e-5);
    tr_config_free(ctx, &c);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        o.set = wrong[i];
        CHECK(tr_config_parse(ctx, &c, "config.json", text, strlen(text), &o) != TR_OK);
    }
    o.set = twice;
    o.n_set = 2;
    CHECK_FAILS(ctx, TR_ERR_ARG, "mla.inner_eps twice",
                tr_config_parse(ctx, &c, "config.json", text, strlen(text), &o));
    free(text);
    tr_free(ctx, json);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* Sizes that are fine alone and absurd together are told, not overflowed. */
static tr_status count_only(void *user, tr_ctx *ctx, const tr_expected *e)
{
    (void)ctx;
    *(int64_t *)user += e->params > 0;
    return TR_OK;
}

static void absurd(void)
{
    static const char *const huge[] = { "text_config.hidden_size=16777216", "text_hidden_size=16777216",
        "num_attention_heads=16777216", "num_key_value_heads=16777216", "qk_nope_head_dim=16777216",
        "q_lora_rank=16777216", "vt_hidden_size=16777216", "mm_hidden_size=16777216",
        "merge_kernel_size=[16777216, 16777216]" };
    tr_ctx *ctx = test_ctx();
    for (int64_t n = 1; n <= 9; n++) {
        tr_config c;
        char *json = NULL;
        int64_t seen = 0;
        CHECK_OK(ctx, tr_config_tiny(ctx, &json, "kimi_k3", huge, n == 1 ? 2 : n));
        if (tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL) == TR_OK) {
            tr_status s = tr_config_each(ctx, &c, count_only, &seen);
            CHECK(s == TR_OK || (s == TR_ERR_RANGE && strstr(tr_err_last(ctx), "2^40 elements")));
            if (n > 5) CHECK(s == TR_ERR_RANGE);
            tr_config_free(ctx, &c);
        }
        tr_free(ctx, json);
    }
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

typedef struct name_list { char **name; int64_t n, cap; } name_list;

static tr_status add_names(void *user, tr_ctx *ctx, const tr_expected *e)
{
    name_list *l = (name_list *)user;
    tr_stored s[2];
    int n;
    tr_status st = tr_expected_stored(ctx, (const tr_config *)(void *)l->name[0], e, e->format, s, &n);
    for (int i = 0; st == TR_OK && i < n; i++) {
        if (l->n == l->cap) {
            l->cap *= 2;
            l->name = (char **)realloc(l->name, (size_t)l->cap * sizeof *l->name);
        }
        l->name[l->n] = (char *)malloc(strlen(s[i].name) + 1);
        strcpy(l->name[l->n++], s[i].name);
    }
    return st;
}

static int cmp_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The released Kimi K3: every count, every byte, every name. */
static void released(void)
{
    char path[512], hex[65];
    tr_ctx *ctx = test_ctx();
    tr_config c, again;
    tr_model *m = NULL;
    tr_run_opts o = tr_run_opts_default();
    tr_json inv;
    tr_plan p;
    tr_sha256 h;
    name_list l;
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/kimi_k3/released-index", cases);
    CHECK_OK(ctx, tr_config_load(ctx, &c, path, NULL));
    CHECK_OK(ctx, tr_config_load(ctx, &again, path, NULL));
    CHECK_OK(ctx, tr_model_new_dry(ctx, &m, &c));
    CHECK_OK(ctx, tr_plan_model(ctx, &p, m, &o));
    CHECK(p.tensors == 497220 && p.params == 2779931837184);
    CHECK(p.active_params == 104189614848 && p.bytes == 1560860324864u);
    CHECK(p.layers == 93 && p.layer[0].state_bytes_seq == (96 * 128 * 128 + 3 * 12288 * 3) * 4);
    CHECK(p.layer[92].state_bytes_token == 576 * 4 && p.layer[92].kind.mixer == TR_MIXER_MLA);
    snprintf(path, sizeof path, "%s/kimi_k3/released-index/inventory.json", cases);
    CHECK_OK(ctx, tr_json_load(ctx, &inv, path));
    CHECK_OK(ctx, tr_json_int(&inv, tr_json_get(&inv, inv.node, "total_tensors"), &n));
    CHECK(n == p.tensors);
    l.cap = 1024;
    l.n = 1;
    l.name = (char **)malloc((size_t)l.cap * sizeof *l.name);
    l.name[0] = (char *)&again;             /* add_names asks it for the format */
    CHECK_OK(ctx, tr_config_each(ctx, &again, add_names, &l));
    CHECK(l.n - 1 == 497220);
    qsort(l.name + 1, (size_t)(l.n - 1), sizeof *l.name, cmp_names);
    tr_sha256_init(&h);
    for (int64_t i = 1; i < l.n; i++) {
        tr_sha256_update(&h, l.name[i], strlen(l.name[i]));
        tr_sha256_update(&h, "\n", 1);
        free(l.name[i]);
    }
    tr_sha256_hex(&h, hex);
    CHECK(!strcmp(hex, tr_json_str(&inv, tr_json_get(&inv, inv.node, "sha256_sorted_names"))));
    free(l.name);
    tr_json_free(&inv);
    tr_plan_free(ctx, &p);
    tr_model_close(m);
    tr_config_free(ctx, &again);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void tiny_configs(void)
{
    static const char *const set[] = { "num_hidden_layers=6", "text_config.hidden_size=96" };
    static const char *const name[] = { "hidden_act=silu" };
    static const char *const no_key[] = { "hidden_sise=96" };
    tr_ctx *ctx = test_ctx();
    tr_config c;
    char *json = NULL;
    for (int64_t i = 0; i < tr_family_count(); i++) {
        CHECK_OK(ctx, tr_config_tiny(ctx, &json, tr_family_name(tr_family_get(i)), NULL, 0));
        CHECK_OK(ctx, tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL));
        tr_config_free(ctx, &c);
        tr_free(ctx, json);
    }
    CHECK_OK(ctx, tr_config_tiny(ctx, &json, "kimi_k3", set, 2));
    CHECK_OK(ctx, tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL));
    CHECK(c.layers == 6 && c.hidden == 96 && c.full_layers.n == 2 && c.kda_layers.n == 4);
    tr_config_free(ctx, &c);
    tr_free(ctx, json);
    CHECK_OK(ctx, tr_config_tiny(ctx, &json, "llama", name, 1));
    CHECK_OK(ctx, tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL));
    tr_config_free(ctx, &c);
    tr_free(ctx, json);
    CHECK_FAILS(ctx, TR_ERR_ARG, "hidden_sise llama", tr_config_tiny(ctx, &json, "llama", no_key, 1));
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "lama", tr_config_tiny(ctx, &json, "lama", NULL, 0));
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* An allocator that refuses its n-th request. */
typedef struct budget { int64_t left; } budget;
static void *failing(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    budget *b = (budget *)user;
    (void)old_bytes;
    if (new_bytes == 0) { free(ptr); return NULL; }
    if (b->left-- <= 0) return NULL;
    return realloc(ptr, new_bytes);
}

static void allocations(void)
{
    int64_t n = 0, done = 0;
    for (; !done && n < 10000; n++) {
        budget b;
        tr_ctx_opts o;
        tr_ctx *ctx;
        tr_config c;
        char *json = NULL;
        tr_status s;
        memset(&o, 0, sizeof o);
        b.left = n;
        o.alloc = failing;
        o.alloc_user = &b;
        if (tr_ctx_new(&ctx, &o) != TR_OK) continue;
        s = tr_config_tiny(ctx, &json, "kimi_k3", NULL, 0);
        if (s == TR_OK) s = tr_config_parse(ctx, &c, "tiny", json, strlen(json), NULL);
        if (s == TR_OK) { tr_config_free(ctx, &c); done = 1; }
        else CHECK(s == TR_ERR_MEMORY && strstr(tr_err_last(ctx), "memory"));
        tr_free(ctx, json);
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
    CHECK(done && n > 10);
}

int main(int argc, char **argv)
{
    if (argc > 1) cases = argv[1];
    TEST(refused);
    TEST(meanings);
    TEST(accepted_and_set);
    TEST(absurd);
    TEST(tiny_configs);
    TEST(released);
    TEST(allocations);
    return test_end();
}
