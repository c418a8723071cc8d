/* cc -std=c11 -O2 -ffp-contract=off -I. examples/10_open_a_checkpoint.c -o build/10_open -lm && build/10_open */

/* What a checkpoint directory holds. tr_model_open reads config.json and the headers of the shards,
 * checks every name, type, shape and byte, and binds tensors to layers; the weights stay in the
 * mapped files until somebody asks for a row. The layers of this small Kimi K3 are of two kinds
 * twice over: KDA or latent attention, dense or experts. Its experts are stored in MXFP4: the
 * packed elements and the scales are two tensors that mean one matrix, and a row of it is decoded
 * by hand below beside what tr_weight_row_f64 returns. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

static void tensor(const tr_model *m, const char *name)
{
    const tr_st_entry *e = tr_shards_find(&m->shards, name);
    char shape[96];
    printf("  %-73s %s\n", name, e ? tr_view_str(e->view, shape) : "missing");
}

int main(void)
{
    static const char *const mixer[] = { "gqa", "mla", "kda" }, *const ffn[] = { "dense", "moe" };
    tr_ctx *ctx;
    tr_model *m;
    double y[64];
    if (tr_ctx_new(&ctx, NULL)) return 1;
    if (tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL))
        return fprintf(stderr, "%s\n", tr_err_last(ctx)), 1;

    const tr_config *c = &m->cfg;
    printf("%s: width %d, vocabulary %d, %d experts of which a token uses %d\n",
           tr_family_title(c->family), (int)c->hidden, (int)c->vocab, (int)c->experts,
           (int)c->topk);
    printf("%d tensors in %d files, %d bytes\n\nlayer ", (int)m->shards.n, (int)m->shards.files,
           (int)m->shards.bytes);
    for (int i = 0; i < m->layers; i++) printf("%6d", i);
    printf("\nmixer ");
    for (int i = 0; i < m->layers; i++) printf("%6s", mixer[m->layer[i].kind.mixer]);
    printf("\nffn   ");
    for (int i = 0; i < m->layers; i++) printf("%6s", ffn[m->layer[i].kind.ffn]);

    printf("\n\nsome tensors\n");
    tensor(m, "language_model.model.embed_tokens.weight");
    tensor(m, "language_model.model.layers.0.self_attn.A_log");
    tensor(m, "language_model.model.layers.3.self_attn.kv_b_proj.weight");
    tensor(m, "language_model.model.layers.3.block_sparse_moe.experts.5.w1.weight_packed");
    tensor(m, "language_model.model.layers.3.block_sparse_moe.experts.5.w1.weight_scale");

    const tr_weight *w = &m->layer[3].expert[0][5];     /* 0: the gate, w1 in files */
    const unsigned char *q = (const unsigned char *)w->q, *s = (const unsigned char *)w->s;
    tr_weight_row_f64(w, 0, 0, 8, y);
    printf("\nlayer 3, expert 5, w1: %s [%d, %d]; row 0, group 0: scale byte %d is 2^%d\n",
           w->format->name, (int)w->rows, (int)w->cols, s[0], s[0] - 127);
    for (int i = 0; i < 8; i++) {
        unsigned char code = q[i / 2] >> i % 2 * 4 & 15;
        double e = (double)tr_e2m1_to_f32(code), scale = (double)tr_e8m0_to_f32(s[0]);
        printf("  column %d: %s half of %02x, code %2d: %4g * %g = %6.3f   row_f64: %6.3f\n",
               i, i % 2 ? "high" : "low ", q[i / 2], code, e, scale, e * scale, y[i]);
    }
    tr_model_close(m);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
Kimi K3: width 80, vocabulary 320, 12 experts of which a token uses 4
828 tensors in 12 files, 3040768 bytes

layer      0     1     2     3     4     5     6     7     8
mixer    kda   kda   kda   mla   kda   kda   kda   mla   mla
ffn    dense   moe   moe   moe   moe   moe   moe   moe   moe

some tensors
  language_model.model.embed_tokens.weight                                  BF16 [320, 80]
  language_model.model.layers.0.self_attn.A_log                             F32 [8]
  language_model.model.layers.3.self_attn.kv_b_proj.weight                  BF16 [180, 32]
  language_model.model.layers.3.block_sparse_moe.experts.5.w1.weight_packed U8 [96, 32]
  language_model.model.layers.3.block_sparse_moe.experts.5.w1.weight_scale  U8 [96, 2]

layer 3, expert 5, w1: mxfp4 [96, 64]; row 0, group 0: scale byte 125 is 2^-2
  column 0: low  half of 57, code  7:    6 * 0.25 =  1.500   row_f64:  1.500
  column 1: high half of 57, code  5:    3 * 0.25 =  0.750   row_f64:  0.750
  column 2: low  half of df, code 15:   -6 * 0.25 = -1.500   row_f64: -1.500
  column 3: high half of df, code 13:   -3 * 0.25 = -0.750   row_f64: -0.750
  column 4: low  half of cc, code 12:   -2 * 0.25 = -0.500   row_f64: -0.500
  column 5: high half of cc, code 12:   -2 * 0.25 = -0.500   row_f64: -0.500
  column 6: low  half of fc, code 12:   -2 * 0.25 = -0.500   row_f64: -0.500
  column 7: high half of fc, code 15:   -6 * 0.25 = -1.500   row_f64: -1.500
*/
