/* cc -std=c11 -O2 -ffp-contract=off -I. examples/13_image.c -o build/13_image -lm && build/13_image */

/* Two pictures on their way into a prompt. Their patches were made by the vendor's processor: the
 * fixture holds 3 x 14 x 14 numbers from -1 to 1 for each. The tower makes of every 2 x 2 patches a
 * row as wide as a token's. The prompt has one placeholder a picture (id 277); expanded, it has a
 * place for each row, and the calls that read it find the rows there. The features and the last
 * logits are held against what the vendor's code made of the same pictures in float64, and the
 * first answers come out. (The weights of this small Kimi K3 are random; so are the answers.) */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"

#define DIR "tests/golden/kimi_k3/multimodal"

/* max |a - b| / max |b| */
static double off(tr_ctx *ctx, tr_view a, tr_view b)
{
    tr_diff d;
    return tr_diff_views(ctx, &d, a, b) == TR_OK ? d.max_rel : -1;
}

/* Mean brightness of a patch as a character. */
static char shade(const float *patch)
{
    double sum = 0;
    for (int k = 0; k < 3 * 14 * 14; k++) sum += (double)patch[k] / (3 * 14 * 14);
    int level = (int)(10 * (sum + 0.5));
    return " .:-=+*#%@"[level < 0 ? 0 : level > 9 ? 9 : level];
}

static int example(tr_ctx *ctx, tr_model *m, const tr_st *f)
{
    const tr_config *c = &m->cfg;
    tr_view ids = tr_st_find(f, "input_ids")->view, want, got;
    int32_t prompt[128], expanded[256], out[6];
    int64_t T = ids.shape[1], longer;
    tr_images im;
    tr_batch b;
    tr_run *r;
    tr_run_opts o = tr_run_opts_default();
    memset(&im, 0, sizeof im);
    im.pixels = tr_st_find(f, "pixel_values")->view;
    im.grid = (const int64_t *)tr_st_find(f, "grid_thws")->view.data;
    im.n = tr_st_find(f, "grid_thws")->view.shape[0];
    for (int64_t t = 0; t < T; t++)
        prompt[t] = (int32_t)tr_get_f64(ids.data, ids.dtype, t);

    const float *patch = tr_view_f32(im.pixels);
    for (int64_t i = 0; i < im.n; i++) {
        const int64_t *g = im.grid + 3 * i;
        printf("picture %d: %d x %d patches, %d rows of the prompt\n", (int)i, (int)g[1], (int)g[2],
               (int)tr_image_rows(c, &im, i));
        for (int64_t y = 0; y < g[1]; y++) {
            printf("    ");
            for (int64_t x = 0; x < g[2]; x++, patch += 3 * 14 * 14)
                printf("%s%c%c", x % 2 ? "" : "|", shade(patch), shade(patch));
            printf("|\n");
        }
    }

    b.B = 1;
    b.T = &T;
    b.ids = prompt;
    if (tr_run_opts_images(ctx, &o, c, &im) ||
        tr_expand_images(ctx, &longer, expanded, c, &im, &b)) return 1;
    printf("\nprompt: %d ids, %d rows\n", (int)T, (int)longer);
    printf("  written   ");
    for (int t = 2; t < 8; t++) printf("%4d", (int)prompt[t]);
    printf(" ..\n  as read   ");
    for (int t = 2; t < 13; t++)
        printf(expanded[t] == c->media.v[0] ? "   *" : "%4d", (int)expanded[t]);
    printf(" ..\n");

    b.T = &longer;
    b.ids = expanded;
    o.max_tokens = 16;                              /* pieces that end inside the pictures */
    if (tr_run_new(ctx, &r, m, &o) || tr_vit_forward(r, &im, &b) || tr_prefill(r, &b)) return 1;
    printf("\nagainst float64 of the vendor's code\n");
    for (int64_t i = 0, row = 0; i < im.n; row += tr_image_rows(c, &im, i++)) {
        char name[40];
        snprintf(name, sizeof name, "f64.mm_projector.%d", (int)i);
        want = tr_st_find(f, name)->view;
        got = tr_view_slice(r->features, 0, row, want.shape[0]);
        printf("  rows of picture %d   %s 1e-6\n", (int)i, off(ctx, got, want) < 1e-6 ? "<" : ">");
    }
    want = tr_view_at(tr_st_find(f, "f64.logits")->view, 0);
    printf("  last logits         %s 1e-5\n",
           off(ctx, tr_view_at(r->logits, 0), tr_view_at(want, longer - 1)) < 1e-5 ? "<" : ">");

    tr_state_reset(&r->state);
    if (tr_generate(r, expanded, longer, 6, out)) return 1;
    printf("\nanswer ids ");
    for (int i = 0; i < 6; i++) printf(" %d", (int)out[i]);
    ids = tr_st_find(f, "f64.greedy_ids")->view;
    printf("\nvendor's   ");
    for (int i = 0; i < 6; i++) printf(" %d", (int)tr_get_f64(ids.data, ids.dtype, i));
    printf("\n");
    tr_run_free(r);
    return 0;
}

int main(void)
{
    tr_ctx *ctx;
    tr_model *m = NULL;
    tr_st f;
    int bad;
    memset(&f, 0, sizeof f);
    if (tr_ctx_new(&ctx, NULL)) return 1;
    bad = tr_model_open(ctx, &m, DIR, NULL) || tr_st_open(ctx, &f, DIR "/expected.safetensors", 0);
    if (!bad) bad = example(ctx, m, &f);
    if (bad) fprintf(stderr, "%s\n", tr_err_last(ctx));
    tr_model_close(m);
    tr_st_close(ctx, &f);
    tr_ctx_free(ctx);
    return bad;
}

/* expected output:
picture 0: 4 x 6 patches, 6 rows of the prompt
    |..**|  %%|@@--|
    |**%%|==  |##--|
    |%%--|....|==##|
    |..--|::==|@@**|
picture 1: 10 x 4 patches, 10 rows of the prompt
    |--::|==##|
    |==..|##**|
    |##::|==::|
    |%%**|@@**|
    |====|****|
    |####|==++|
    |  ::|  ..|
    |::--|++**|
    |**..|##..|
    |##==|--==|

prompt: 72 ids, 86 rows
  written     85  88 277  30 268  91 ..
  as read     85  88   *   *   *   *   *   *  30 268  91 ..

against float64 of the vendor's code
  rows of picture 0   < 1e-6
  rows of picture 1   < 1e-6
  last logits         < 1e-5

answer ids  130 91 269 300 119 164
vendor's    130 91 269 300 119 164
*/
