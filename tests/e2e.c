/* e2e.c - whole models against the vendors' own numbers. Every folder under CASES/kimi_k3 and
 * CASES/families that has a config.json, a checkpoint and an expected.safetensors is run: all
 * taps, the state after the prompt, greedy ids, the prompt in pieces and token by token. And the
 * exact profile: as near to float64 as the vendor's own float32 run, each sublayer by itself, and
 * the same bits in pieces and by the plain evaluation of ref.h.
 *
 * usage: e2e [CASES]     default tests/golden */
#define TRILLION_IMPLEMENTATION
#include "ref.h"
#include <dirent.h>
#include <sys/stat.h>

#define MAX_NAME 512

typedef struct fixture {
    const char *dir;
    tr_ctx  *ctx;
    tr_st    want;              /* expected.safetensors */
    tr_model *model;
    int32_t *ids;  int64_t B, T;        /* B prompts of T tokens, places of images expanded */
    int64_t *lengths;
    tr_images images;                   /* n 0: none; without ids the tower runs alone */
    tr_golden whole;            /* every tap of the oracle's run, once it has run */
} fixture;


static fixture fx;

/* The released layout names a tap of ours differently in cases/families. */
static void our_name(char out[MAX_NAME], const char *theirs)
{
    static const char *const map[][2] = {
        { "embed", "model.embed_tokens" }, { "norm", "model.norm" }
    };
    static const char *const tail[][2] = {
        { ".mlp.topk_ids", ".mlp.gate.topk_ids" }, { ".mlp.topk_weights", ".mlp.gate.topk_weights" },
        { ".mlp.router_logits", ".mlp.gate" }
    };
    snprintf(out, MAX_NAME, "%s%s", strncmp(theirs, "layers.", 7) ? "" : "model.", theirs);
    for (size_t i = 0; i < 2; i++)
        if (!strcmp(theirs, map[i][0])) snprintf(out, MAX_NAME, "%s", map[i][1]);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(out), k = strlen(tail[i][0]);
        if (n > k && !strcmp(out + n - k, tail[i][0]))
            snprintf(out + n - k, MAX_NAME - (n - k), "%s", tail[i][1]);
    }
}

static int ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* Contiguous copy as binary64, leading 1s and all. */
static double *as_f64(tr_view v, int64_t *n)
{
    int64_t count = tr_view_numel(v);
    double *x = (double *)malloc((size_t)(count ? count : 1) * sizeof *x);
    tr_view dst = tr_view_of(x, TR_F64, v.rank, v.shape);
    CHECK_OK(fx.ctx, tr_view_copy(fx.ctx, dst, v));
    *n = count;
    return x;
}

/* Vendors that de-interleave a head's rotary part before turning it store it in that order. */
static void deinterleave(double *x, int64_t rows, int64_t width, int64_t rope)
{
    double t[1024];
    for (int64_t r = 0; r < rows; r++) {
        double *p = x + (r + 1) * width - rope;
        for (int64_t i = 0; i < rope / 2; i++) {
            t[i] = p[2 * i];
            t[rope / 2 + i] = p[2 * i + 1];
        }
        memcpy(p, t, (size_t)rope * sizeof *t);
    }
}

/* Files keep the last four inputs of a convolution, of which three are ever read again. */
static double *last_columns(const double *x, int64_t rows, int64_t have, int64_t want)
{
    double *y = (double *)malloc((size_t)(rows * want) * sizeof *y);
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * want, x + r * have + have - want, (size_t)want * sizeof *y);
    return y;
}

static void compare_tap(const tr_st_entry *e, const char *name, tr_view got)
{
    const tr_config *c = &fx.model->cfg;
    int64_t n, m;
    double *a, *b, bound = e->view.dtype == TR_F32 ? 1e-6 : 1e-10;
    if (tr_view_is_none(got)) {
        test_bad++;
        printf("  %s: no tap \"%s\"\n", fx.dir, name);
        return;
    }
    a = as_f64(got, &n);
    b = as_f64(e->view, &m);
    if (strstr(name, ".conv_") && m > n) {
        int64_t J = got.shape[got.rank - 1];
        double *cut = last_columns(b, n / J, e->view.shape[e->view.rank - 1], J);
        free(b);
        b = cut;
        m = n;
    }
    if (n != m) {
        test_bad++;
        printf("  %s: %s has %lld values, expected %lld\n", fx.dir, name, (long long)n, (long long)m);
    } else if (e->view.dtype == TR_I32 || e->view.dtype == TR_I64) {
        CHECK_NEAR(a, b, n, 0);
    } else {
        if (c->family->layout == TR_ROPE_INTERLEAVED &&
            (ends_in(name, "self_attn.q") || ends_in(name, "self_attn.k")))
            deinterleave(a, n / (c->nope + c->rope), c->nope + c->rope, c->rope);
        test_near(a, b, n, bound, name, fx.dir, 0);
    }
    free(a);
    free(b);
}

/* A run over the whole prompt with every tap, in pieces of `piece` tokens. ops NULL: the profile's;
 * seam NULL, or what wants to know the run. */
typedef struct seam {
    tr_run *run;
    const tr_golden *g;
    int64_t used;
    int64_t at;                 /* first patch of the image in the tower */
} seam;

static void run_with(const char *profile, const tr_ops *ops, seam *j, tr_golden *g, tr_run **r,
                     int64_t piece)
{
    static const char *const all[] = { "*" };
    tr_run_opts o = tr_run_opts_default();
    tr_batch b;
    o.profile = tr_profile_find(profile);
    o.ops = ops;
    b.B = fx.B;
    b.T = fx.lengths;
    b.ids = fx.ids;
    o.B = fx.B;
    o.max_tokens = piece ? piece * fx.B : 1;
    o.capacity = fx.T + 16;
    o.logits = TR_LOGITS_ALL;
    o.tap = tr_golden_tap;
    o.tap_user = g;
    o.globs = all;
    o.n_globs = 1;
    if (fx.images.n)
        CHECK_OK(fx.ctx, tr_run_opts_images(fx.ctx, &o, &fx.model->cfg, &fx.images));
    CHECK_OK(fx.ctx, tr_golden_new(fx.ctx, g, fx.B, fx.lengths));
    CHECK_OK(fx.ctx, tr_run_new(fx.ctx, r, fx.model, &o));
    if (!*r) return;
    if (j) j->run = *r;
    if (fx.images.n)
        CHECK_OK(fx.ctx, tr_vit_forward(*r, &fx.images, fx.T ? &b : NULL));
    if (!fx.T) return;
    CHECK_OK(fx.ctx, tr_prefill(*r, &b));
    CHECK_OK(fx.ctx, tr_tap_state(*r));
}

static const tr_golden *oracle(void)
{
    tr_run *r = NULL;
    if (!fx.whole.n) run_with("oracle", NULL, NULL, &fx.whole, &r, fx.T);
    tr_run_free(r);
    return &fx.whole;
}

static int is_loss(const char *name)
{
    return strstr(name, "loss") || !strncmp(name, "f64.mtp.", 8);
}

/* What is stored in binary64 is held to 1e-10, what was rounded to binary32 for size to 1e-6. With
 * images the vendor's embed_tokens is of the prompt before they took their places. */
static void hold_taps(tr_dtype type)
{
    const tr_golden *g = oracle();
    for (int64_t i = 0; i < fx.want.n; i++) {
        const tr_st_entry *e = &fx.want.entry[i];
        char name[MAX_NAME];
        if (strncmp(e->name, "f64.", 4) || !strncmp(e->name, "f64.greedy", 10) ||
            is_loss(e->name) || (fx.images.n && ends_in(e->name, "embed_tokens")) ||
            (e->view.dtype == TR_F32) != (type == TR_F32)) continue;
        our_name(name, e->name + 4);
        compare_tap(e, name, tr_golden_find(g, name));
    }
}

static void taps_stored_f64(void) { hold_taps(TR_F64); }
static void taps_stored_f32(void) { hold_taps(TR_F32); }

static void greedy_of(const char *profile)
{
    const tr_st_entry *e = tr_st_find(&fx.want, "f64.greedy_ids");
    tr_run_opts o = tr_run_opts_default();
    o.profile = tr_profile_find("oracle");
    tr_run *r = NULL;
    int32_t out[64];
    int64_t n = e ? tr_view_numel(e->view) : 0;
    o.capacity = fx.T + n;
    o.profile = tr_profile_find(profile);
    if (!e || fx.B > 1) return;
    CHECK(n <= 64);
    if (fx.images.n)
        CHECK_OK(fx.ctx, tr_run_opts_images(fx.ctx, &o, &fx.model->cfg, &fx.images));
    CHECK_OK(fx.ctx, tr_run_new(fx.ctx, &r, fx.model, &o));
    if (r && fx.images.n) {
        tr_batch b;
        b.B = 1;
        b.T = fx.lengths;
        b.ids = fx.ids;
        CHECK_OK(fx.ctx, tr_vit_forward(r, &fx.images, &b));
    }
    if (r) CHECK_OK(fx.ctx, tr_generate(r, fx.ids, fx.T, n, out));
    for (int64_t i = 0; r && i < n; i++)
        CHECK(out[i] == (int32_t)tr_get_f64(e->view.data, e->view.dtype, i));
    tr_run_free(r);
}

static void greedy(void) { greedy_of("oracle"); }

/* The prompt in any pieces gives what it gives whole: every tap, and the state. */
static void pieces(void)
{
    static const int64_t cut[] = { 1, 7, 47 };
    const tr_golden *whole = oracle();
    tr_golden part;
    tr_run *p = NULL;
    for (size_t k = 0; k < sizeof cut / sizeof cut[0]; k++) {
        run_with("oracle", NULL, NULL, &part, &p, cut[k]);
        CHECK(part.n == whole->n);
        for (int64_t i = 0; i < whole->n; i++) {
            tr_view a = tr_golden_find(&part, whole->item[i].name), b = whole->item[i].x;
            tr_diff d;
            CHECK_OK(fx.ctx, tr_diff_views(fx.ctx, &d, a, b));
            if (d.max_rel > test_worst) test_worst = d.max_rel;
            if (!(d.max_rel <= 1e-12) || d.nan_one_side) {
                test_bad++;
                printf("  %s in pieces of %lld: %s differs by %.3g\n", fx.dir, (long long)cut[k],
                       whole->item[i].name, d.max_rel);
            }
        }
        test_bound = 1e-12;
        tr_run_free(p);
        p = NULL;
        tr_golden_free(fx.ctx, &part);
    }
}

/* ---- the exact profile ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* max over the vocabulary |x - truth| / max |truth|, a token at a time: median and worst. */
static void token_errors(const double *x, const double *truth, int64_t tokens, int64_t V,
                         double *median, double *worst)
{
    double *e = (double *)malloc((size_t)(tokens + 1) * sizeof *e);
    for (int64_t t = 0; t < tokens; t++) {
        double d = 0, top = 0;
        for (int64_t v = t * V; v < (t + 1) * V; v++) {
            d = !(fabs(x[v] - truth[v]) <= d) ? fabs(x[v] - truth[v]) : d;
            top = fabs(truth[v]) > top ? fabs(truth[v]) : top;
        }
        e[t] = d / top;
    }
    qsort(e, (size_t)tokens, sizeof *e, by_size);
    *median = tokens % 2 ? e[tokens / 2] : (e[tokens / 2 - 1] + e[tokens / 2]) / 2;
    *worst = e[tokens - 1];
    free(e);
}

/* The contract's own binary32 run may be off by as much as the vendor's: the median by 1.5 times
 * its median, no token by more than 5 times its worst; or by 1e-6 and 1e-5, where those are
 * larger. And it takes the routes of float64. */
static void exact_logits(void)
{
    const tr_st_entry *truth = tr_st_find(&fx.want, "f64.logits");
    const tr_st_entry *vendor = tr_st_find(&fx.want, "f32.logits");
    double *x, *y, *v, m, w, vm, vw;
    int64_t n, V, routes = 0;
    tr_golden g;
    tr_run *r = NULL;
    run_with("exact", NULL, NULL, &g, &r, fx.T);
    for (int64_t i = 0; r && i < fx.want.n; i++) {
        const tr_st_entry *e = &fx.want.entry[i];
        char name[MAX_NAME];
        if (strncmp(e->name, "f64.", 4) || !ends_in(e->name, ".topk_ids") || is_loss(e->name))
            continue;
        our_name(name, e->name + 4);
        compare_tap(e, name, tr_golden_find(&g, name));
        routes++;
    }
    CHECK(truth != NULL || !fx.T);
    if (r && truth && !tr_view_is_none(tr_golden_find(&g, "logits"))) {
        x = as_f64(tr_golden_find(&g, "logits"), &n);
        y = as_f64(truth->view, &n);
        V = truth->view.shape[truth->view.rank - 1];
        token_errors(x, y, n / V, V, &m, &w);
        vm = vw = 0;
        if (vendor) {
            v = as_f64(vendor->view, &n);
            token_errors(v, y, n / V, V, &vm, &vw);
            free(v);
        }
        printf("  exact %s: median %.2g (vendor %.2g), worst %.2g (vendor %.2g), routes of %lld "
               "layers\n", fx.dir, m, vm, w, vw, (long long)routes);
        CHECK(m <= (1.5 * vm > 1e-6 ? 1.5 * vm : 1e-6));
        CHECK(w <= (5 * vw > 1e-5 ? 5 * vw : 1e-5));
        free(x);
        free(y);
    }
    tr_run_free(r);
    tr_golden_free(fx.ctx, &g);
}

/* The same for the rows that images become. Where the vendor's float32 rows were not kept, 1e-6 and
 * 1e-5 alone hold. */
static void exact_features(void)
{
    double x[4096], y[4096], v[4096], m, w, vm, vw, worst = 0, vendor_worst = 0;
    tr_golden g;
    tr_run *r = NULL;
    run_with("exact", NULL, NULL, &g, &r, fx.T);
    for (int64_t i = 0; r && i < fx.images.n; i++) {
        char name[64];
        const tr_st_entry *truth, *vendor;
        tr_view got;
        int64_t n, V;
        snprintf(name, sizeof name, "f64.mm_projector.%d", (int)i);
        truth = tr_st_find(&fx.want, name);
        got = tr_golden_find(&g, name + 4);
        memcpy(name, "f32", 3);
        vendor = tr_st_find(&fx.want, name);
        CHECK(truth && !tr_view_is_none(got) && tr_view_numel(truth->view) == tr_view_numel(got));
        if (!truth || tr_view_is_none(got)) continue;
        n = tr_view_numel(got);
        V = got.shape[1];
        CHECK(n <= 4096);
        for (int64_t k = 0; k < n; k++) {
            x[k] = tr_get_f64(got.data, got.dtype, k);
            y[k] = tr_get_f64(truth->view.data, truth->view.dtype, k);
            if (vendor) v[k] = tr_get_f64(vendor->view.data, vendor->view.dtype, k);
        }
        token_errors(x, y, n / V, V, &m, &w);
        vm = vw = 0;
        if (vendor) token_errors(v, y, n / V, V, &vm, &vw);
        CHECK(m <= (1.5 * vm > 1e-6 ? 1.5 * vm : 1e-6));
        CHECK(w <= (5 * vw > 1e-5 ? 5 * vw : 1e-5));
        worst = fmax(worst, w);
        vendor_worst = fmax(vendor_worst, vw);
    }
    if (fx.images.n) printf("  exact %s: rows of %d images, worst %.2g (vendor %.2g)\n", fx.dir,
                            (int)fx.images.n, worst, vendor_worst);
    tr_run_free(r);
    tr_golden_free(fx.ctx, &g);
}

static void exact_greedy(void) { greedy_of("exact"); }

/* The oracle's rows of a norm in the tower: of the image that begins at patch j->at. */
static tr_view vit_norm_of(seam *j, const tr_norm_args *a)
{
    char name[128];
    tr_view x;
    int64_t b = j->run->block->index, N = a->y.shape[0];
    int first = strstr(j->run->doing, "norm0") != NULL;
    snprintf(name, sizeof name, "vision_tower.encoder.blocks.%d.%s", (int)b,
             first ? "norm0" : "norm1");
    x = tr_view_slice(tr_golden_find(j->g, name), 0, j->at, N);
    if (!first && b == fx.model->cfg.vit_layers - 1) j->at += N;
    return x;
}

/* What a layer's norm gave in the oracle's run: "..layers.N.input_layernorm". */
static tr_view norm_of(const tr_golden *g, int64_t layer, const char *which)
{
    char end[64];
    snprintf(end, sizeof end, "layers.%lld.%s", (long long)layer, which);
    for (int64_t i = 0; i < g->n; i++)
        if (ends_in(g->item[i].name, end)) return g->item[i].x;
    return tr_view_none();
}

/* The two norms before the sublayers write the oracle's values, narrowed; all else computes. */
static tr_status golden_norm(void *user, tr_ctx *ctx, const tr_norm_args *a)
{
    static const char *const which[2] = { "input_layernorm", "post_attention_layernorm" };
    seam *j = (seam *)user;
    if (j->run && j->run->block) return tr_view_copy(ctx, a->y, vit_norm_of(j, a));
    for (int i = 0; i < 2; i++)
        if (j->run && j->run->layer && !strncmp(j->run->doing, which[i], strlen(which[i]))) {
            tr_view x = norm_of(j->g, j->run->layer->index, which[i]);
            CHECK(tr_view_numel(x) == tr_view_numel(a->y));
            j->used++;
            x = tr_view_of(x.data, x.dtype, a->y.rank, a->y.shape);
            return tr_view_copy(ctx, a->y, x);
        }
    return tr_norm(ctx, a);
}

/* Attention and feed-forward of every block of the tower, on the golden input of each. */
static void vit_sublayers(const seam *j, const tr_golden *got)
{
    static const char *const part[2] = { "wo", "mlp" };
    double worst = 0;
    for (int64_t b = 0; b < 2 * fx.model->cfg.vit_layers; b++) {
        char name[128];
        const tr_st_entry *e;
        tr_diff d;
        snprintf(name, sizeof name, "f64.vision_tower.encoder.blocks.%d.%s", (int)(b / 2),
                 part[b % 2]);
        e = tr_st_find(&fx.want, name);
        CHECK_OK(fx.ctx, tr_diff_views(fx.ctx, &d, tr_golden_find(got, name + 4),
                                       e ? e->view : tr_golden_find(j->g, name + 4)));
        CHECK(d.max_rel <= 3e-6 && !d.nan_one_side);
        worst = fmax(worst, d.max_rel);
    }
    printf("  exact %s: tower, %d sublayers, worst %.2g <= 3e-06\n", fx.dir,
           (int)(2 * fx.model->cfg.vit_layers), worst);
}

/* Each sublayer on golden input: whatever it is off by is its own. */
static void exact_sublayers(void)
{
    static const char *const kind[] = { "self_attn", "mlp", "block_sparse_moe" };
    static const double bound = 3e-6;
    tr_golden x;
    tr_run *s = NULL;
    tr_ops ops = tr_ops_contract();
    seam j = { NULL, oracle(), 0, 0 };
    ops.user = &j;
    ops.norm = golden_norm;
    run_with("exact", &ops, &j, &x, &s, fx.T);
    CHECK(j.used == (fx.T ? 2 * fx.model->layers : 0));
    CHECK(j.at == (fx.images.n ? fx.images.pixels.shape[0] : 0));
    if (s && fx.images.n) vit_sublayers(&j, &x);
    for (int k = 0; s && k < 3; k++) {
        double worst = 0;
        int64_t at = -1, count = 0, stored = 0;
        for (int64_t l = 0; l < fx.model->layers; l++) {
            char end[64];
            tr_view want = tr_view_none(), got = tr_view_none();
            tr_diff d;
            snprintf(end, sizeof end, "layers.%lld.%s", (long long)l, kind[k]);
            for (int64_t i = 0; i < x.n; i++)
                if (ends_in(x.item[i].name, end)) {
                    got = x.item[i].x;
                    want = tr_golden_find(j.g, x.item[i].name);
                }
            for (int64_t i = 0; i < fx.want.n; i++)     /* the vendor's, if it is there */
                if (!strncmp(fx.want.entry[i].name, "f64.", 4) &&
                    ends_in(fx.want.entry[i].name, end)) {
                    want = fx.want.entry[i].view;
                    stored++;
                }
            if (tr_view_is_none(got)) continue;
            CHECK_OK(fx.ctx, tr_diff_views(fx.ctx, &d, got, want));
            count++;
            if (!(d.max_rel <= worst)) { worst = d.max_rel; at = l; }
            CHECK(d.max_rel <= bound && !d.nan_one_side);
        }
        if (count) printf("  exact %s: %s, %lld layers (%lld stored), worst %.2g <= %.2g (layer "
                          "%lld)\n", fx.dir, kind[k], (long long)count, (long long)stored, worst,
                          bound, (long long)at);
    }
    tr_run_free(s);
    tr_golden_free(fx.ctx, &x);
}

#define REF_ENTRY(op, args, f64, f32)                                       \
    static tr_status plain_##op(void *user, tr_ctx *ctx, const args *a)     \
    {                                                                       \
        (void)user;                                                         \
        return ref_##op(ctx, a);                                            \
    }
TR_OPS_LIST(REF_ENTRY)

/* Every tap of the run and its state against those of `whole`, to the bit. */
static void same_bits(const tr_golden *whole, const tr_ops *ops, int64_t piece, const char *how)
{
    tr_golden g;
    tr_run *r = NULL;
    int64_t differ = 0;
    run_with("exact", ops, NULL, &g, &r, piece);
    CHECK(g.n == whole->n);
    for (int64_t i = 0; i < whole->n; i++) {
        char a[65] = "", b[65] = "";
        tr_view x = tr_golden_find(&g, whole->item[i].name);
        if (!tr_view_is_none(x)) tr_view_sha256(x, a);
        tr_view_sha256(whole->item[i].x, b);
        if (strcmp(a, b) && !differ++) {
            test_bad++;
            printf("  %s %s: %s is the first to differ\n", fx.dir, how, whole->item[i].name);
        }
    }
    tr_run_free(r);
    tr_golden_free(fx.ctx, &g);
}

/* What test_bits.c finds by hashes of three models, for all of them by ref.h. */
static void exact_bits(void)
{
    tr_golden whole;
    tr_run *r = NULL;
    tr_ops plain = tr_ops_contract();
#define REF_SET(op, args, f64, f32) plain.op = plain_##op;
    TR_OPS_LIST(REF_SET)
    run_with("exact", NULL, NULL, &whole, &r, fx.T);
    same_bits(&whole, NULL, 47, "in pieces of 47");
    same_bits(&whole, &plain, fx.T, "by ref.h");
    tr_run_free(r);
    tr_golden_free(fx.ctx, &whole);
}

/* One prompt with one placeholder an image: a place for every row. */
static void expand_ids(void)
{
    const tr_config *c = &fx.model->cfg;
    int32_t *text = fx.ids;
    tr_batch b;
    b.B = fx.B;
    b.T = fx.lengths;
    b.ids = text;
    CHECK(fx.B == 1);
    CHECK_OK(fx.ctx, tr_expand_images(fx.ctx, &fx.T, NULL, c, &fx.images, &b));
    fx.ids = (int32_t *)malloc((size_t)fx.T * sizeof *fx.ids);
    CHECK_OK(fx.ctx, tr_expand_images(fx.ctx, &fx.T, fx.ids, c, &fx.images, &b));
    fx.lengths[0] = fx.T;
    free(text);
}

static int open_fixture(const char *dir)
{
    char path[2 * MAX_NAME + 32];
    const tr_st_entry *ids, *grids;
    memset(&fx, 0, sizeof fx);
    fx.dir = dir;
    fx.ctx = test_ctx();
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    if (tr_model_open(fx.ctx, &fx.model, dir, NULL) == TR_ERR_UNSUPPORTED) {
        printf("skipped %s\n", tr_err_last(fx.ctx));
        tr_ctx_free(fx.ctx);
        return 0;
    }
    if (!fx.model) { printf("FAILED %s\n", tr_err_last(fx.ctx)); test_failed++; return 0; }
    if (tr_st_open(fx.ctx, &fx.want, path, 0) != TR_OK) {
        printf("FAILED %s\n", tr_err_last(fx.ctx));
        test_failed++;
        return 0;
    }
    ids = tr_st_find(&fx.want, "input_ids");
    grids = tr_st_find(&fx.want, "grid_thws");
    if (grids) {
        fx.images.pixels = tr_st_find(&fx.want, "pixel_values")->view;
        fx.images.grid = (const int64_t *)grids->view.data;
        fx.images.n = grids->view.shape[0];
    }
    if (!ids && !grids) { printf("skipped %s: no input_ids\n", dir); return 0; }
    fx.B = ids && ids->view.rank > 1 ? ids->view.shape[0] : 1;
    fx.T = ids ? tr_view_numel(ids->view) / fx.B : 0;
    fx.ids = (int32_t *)malloc((size_t)(fx.B * fx.T + 1) * sizeof *fx.ids);
    fx.lengths = (int64_t *)malloc((size_t)fx.B * sizeof *fx.lengths);
    for (int64_t b = 0; b < fx.B; b++) fx.lengths[b] = fx.T;
    for (int64_t i = 0; i < fx.B * fx.T; i++)
        fx.ids[i] = (int32_t)tr_get_f64(ids->view.data, ids->view.dtype, i);
    if (ids && grids) expand_ids();
    return 1;
}

static void close_fixture(void)
{
    free(fx.ids);
    free(fx.lengths);
    tr_golden_free(fx.ctx, &fx.whole);
    tr_model_close(fx.model);
    tr_st_close(fx.ctx, &fx.want);
    CHECK(tr_ctx_bytes(fx.ctx) == 0);
    tr_ctx_free(fx.ctx);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_folder(const char *cases, const char *sub)
{
    char dir[MAX_NAME], path[2 * MAX_NAME];
    struct dirent **list;
    struct stat st;
    int n;
    snprintf(dir, sizeof dir, "%s/%s", cases, sub);
    n = scandir(dir, &list, NULL, by_name);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/%.100s/expected.safetensors", cases, sub, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && !stat(path, &st)) {
            snprintf(path, sizeof path, "%s/%s/%.100s", cases, sub, list[i]->d_name);
            if (open_fixture(path)) {
                printf("%s: %lld x %lld tokens\n", path, (long long)fx.B, (long long)fx.T);
                TEST(taps_stored_f64);
                TEST(taps_stored_f32);
                TEST(greedy);
                TEST(pieces);
                TEST(exact_logits);
                TEST(exact_features);
                TEST(exact_greedy);
                TEST(exact_sublayers);
                TEST(exact_bits);
                close_fixture();
            }
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}

int main(int argc, char **argv)
{
    const char *cases = argc > 1 ? argv[1] : "tests/golden";
    run_folder(cases, "kimi_k3");
    run_folder(cases, "families");
    return test_end();
}
