/* {vit}: patches to the vendor's bits, positions and merge against its numbers, and images in
 * prompts: alone or in a pack, cut anywhere, first, last, beside others; and what is refused. */
#define TRILLION_IMPLEMENTATION
#include "exact.h"

/* ---- operators */

/* The processor's own pixels, by their hash, from the picture that it had resized. */
static void patches(void)
{
    static const char *const name[2] = { "bad_idat_crc.png", "bad_no_plte.png" };
    float value[3][256];
    for (int c = 0; c < 3; c++) tr_image_normalize(value[c], 0.5, 0.5);
    CHECK(value[0][0] == -1 && value[0][255] == 1);
    for (int i = 0; i < 2; i++) {
        char path[512], hex[65];
        tr_st f;
        snprintf(path, sizeof path, "%s/images/expected/%s.safetensors", cases_root, name[i]);
        CHECK_OK(ctx, tr_st_open(ctx, &f, path, 0));
        tr_view rgb = tr_st_find(&f, "resized")->view;
        const int64_t *grid = (const int64_t *)tr_st_find(&f, "grid_thws")->view.data;
        int64_t n = grid[1] * grid[2] * 3 * 14 * 14;
        tr_view y = tr_view1(mem(n, 4), TR_F32, n);
        CHECK(grid[1] * 14 > rgb.shape[0] && grid[2] * 14 > rgb.shape[1]);      /* padded */
        tr_patchify((float *)y.data, (const uint8_t *)rgb.data, rgb.shape[0], rgb.shape[1], grid[1],
                    grid[2], 14, value[0]);
        tr_view_sha256(y, hex);
        CHECK(!strcmp(hex, tr_st_meta(&f, "pixel_values_sha256")));
        tr_st_close(ctx, &f);
    }
    mem_free();
}

/* Means and deviations that are no binary numbers: the bits of the vendor's `normalize` in numpy,
 * and the real numbers within three roundings. */
static void normalize(void)
{
    static const struct { double mean[3], std[3]; const char *sha256; } row[2] = {
        { { 0.48145466, 0.4578275, 0.40821073 }, { 0.26862954, 0.26130258, 0.27577711 },
          "963d710b4e5d42c96bbc122dd791871678442f224097750e6083da8f9308ab05" },
        { { 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 },
          "151abde84edc5b87dba23ea117d314d0889ff6a2c8c7f0364238c0c4dce93c5b" },
    };
    for (int i = 0; i < 2; i++) {
        float value[3][256];
        char hex[65];
        for (int c = 0; c < 3; c++) {
            double m = row[i].mean[c], s = row[i].std[c];
            tr_image_normalize(value[c], m, s);
            for (int v = 0; v < 256; v++)
                CHECK(fabs((double)value[c][v] - (v / 255.0 - m) / s) < 1e-6);
        }
        tr_view_sha256(tr_view2(value, TR_F32, 3, 256), hex);
        CHECK(!strcmp(hex, row[i].sha256));
    }
}

typedef struct vision {             /* the fixture of five images */
    tr_model *m;
    tr_st f;
    tr_images im;
} vision;

static vision vision_open(const char *name)
{
    vision v;
    char path[512];
    memset(&v, 0, sizeof v);
    snprintf(path, sizeof path, "%s/kimi_k3/%s", cases_root, name);
    CHECK_OK(ctx, tr_model_open(ctx, &v.m, path, NULL));
    snprintf(path, sizeof path, "%s/kimi_k3/%s/expected.safetensors", cases_root, name);
    CHECK_OK(ctx, tr_st_open(ctx, &v.f, path, 0));
    v.im.pixels = tr_st_find(&v.f, "pixel_values")->view;
    v.im.grid = (const int64_t *)tr_st_find(&v.f, "grid_thws")->view.data;
    v.im.n = tr_st_find(&v.f, "grid_thws")->view.shape[0];
    return v;
}

static void vision_close(vision *v)
{
    tr_model_close(v->m);
    tr_st_close(ctx, &v->f);
    mem_free();
}

static tr_view wanted(const vision *v, const char *name)
{
    const tr_st_entry *e = tr_st_find(&v->f, name);
    if (!e) { printf("FAILED: no %s\n", name); exit(1); }
    return e->view;
}

/* What the vendor adds to its patches is the difference of two taps. */
static void positions(void)
{
    vision v = vision_open("vision");
    tr_view sum = copy(wanted(&v, "f64.vision_tower.patch_embed"));
    tr_view proj = copy(wanted(&v, "f64.vision_tower.patch_embed.proj"));
    int64_t D = sum.shape[1], at = 0;
    exact_few = 1;
    snprintf(cases_name, sizeof cases_name, "positions");
    for (int64_t i = 0; i < v.im.n; i++) {
        tr_pos_args a;
        a.table = &v.m->top.w[TR_W_VIT_POS];
        a.t = v.im.grid[3 * i];
        a.h = v.im.grid[3 * i + 1];
        a.w = v.im.grid[3 * i + 2];
        a.theta = 10000;
        a.y = new2(a.t * a.h * a.w, D);
        BOTH(pos, &a);
        for (int64_t k = 0; k < tr_view_numel(a.y); k++)
            f64(a.y)[k] += f64(proj)[at + k];
        CHECK_NEAR(f64(a.y), f64(sum) + at, tr_view_numel(a.y), 1e-14);
        at += tr_view_numel(a.y);
    }
    CHECK(at == tr_view_numel(sum));
    vision_close(&v);
}

static void merge(void)
{
    vision v = vision_open("vision");
    tr_view x = copy(wanted(&v, "f64.vision_tower.encoder.final_layernorm"));
    int64_t D = x.shape[1], at = 0;
    snprintf(cases_name, sizeof cases_name, "merge");
    for (int64_t i = 0; i < v.im.n; i++) {
        char name[64];
        tr_merge_args a;
        snprintf(name, sizeof name, "f64.vision_tower.merged.%d", (int)i);
        tr_view want = copy(wanted(&v, name));
        a.t = v.im.grid[3 * i];
        a.h = v.im.grid[3 * i + 1];
        a.w = v.im.grid[3 * i + 2];
        a.mh = a.mw = 2;
        a.x = tr_view_slice(x, 0, at, a.t * a.h * a.w);
        a.y = new_like(want);
        BOTH(merge, &a);
        CHECK_NEAR(f64(a.y), f64(want), tr_view_numel(want), 1e-14);
        at += a.x.shape[0];
    }
    CHECK(at == x.shape[0] && D == 48);
    exact_report();
    vision_close(&v);
}

/* A table that is a plane is one at any grid, between the outermost middles: y = 2 k + 3 j. */
static void plane(void)
{
    enum { G = 6 };
    double table[G * G], got[35], want[35];
    tr_weight w;
    tr_pos_args a;
    for (int i = 0; i < G * G; i++) table[i] = 2 * (i / G) + 3 * (i % G);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F64), "table", table, NULL, G, G, 0,
                               0));
    memset(&a, 0, sizeof a);
    a.table = &w;
    a.t = 1;
    a.h = 5;
    a.w = 7;
    a.y = tr_view2(got, TR_F64, 35, 1);
    CHECK_OK(ctx, tr_pos_resize_f64(ctx, &a));
    for (int i = 0; i < 35; i++) {
        double k = fmin(fmax((i / 7 + 0.5) * 6 / 5 - 0.5, 0), 5);
        double j = fmin(fmax((i % 7 + 0.5) * 6 / 7 - 0.5, 0), 5);
        want[i] = 2 * k + 3 * j;
    }
    CHECK_NEAR(got, want, 35, 1e-15);
    a.h = a.w = 6;                              /* its own size: as it is */
    a.y = tr_view2(mem(36, 8), TR_F64, 36, 1);
    CHECK_OK(ctx, tr_pos_resize_f64(ctx, &a));
    CHECK_BITS(a.y.data, table, sizeof table);
    mem_free();
}

/* The contract, to the bit: larger, smaller, one row, frames; a table of BF16 and of F64 with hard
 * numbers, rows beyond one piece of a buffer. */
static void contract_bits(void)
{
    static const int64_t c[][6] = { /* Gh, Gw, D, t, h, w */
        { 8, 8, 48, 1, 8, 8 }, { 3, 5, 7, 1, 9, 2 }, { 1, 1, 4, 3, 2, 2 }, { 5, 2, 270, 4, 3, 7 },
        { 64, 3, 16, 1, 10, 1 }, { 7, 7, 2, 2, 1, 13 }
    };
    snprintf(cases_name, sizeof cases_name, "hard");
    for (int i = 0; i < 6; i++)
        for (int mode = 0; mode < 3; mode++) {
            int64_t Gh = c[i][0], W = c[i][1] * c[i][2], D = c[i][2];
            int64_t N = c[i][3] * c[i][4] * c[i][5];
            tr_view x = hard(1, mode == 2 ? 1e18 : 1, 2, Gh, W, 0);
            uint16_t *b = (uint16_t *)mem(Gh * W, 2);
            tr_weight w;
            tr_pos_args a;
            tr_merge_args m;
            for (int64_t k = 0; k < Gh * W; k++) b[k] = tr_f32_to_bf16(((float *)x.data)[k]);
            CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(mode ? TR_FMT_F32 : TR_FMT_BF16),
                                       "table", mode ? x.data : (void *)b, NULL, Gh, W, 0, 0));
            a.table = &w;
            a.t = c[i][3];
            a.h = c[i][4];
            a.w = c[i][5];
            a.theta = 10000;
            a.y = new2(N, D);
            BITS(pos, &a);
            m.t = a.t;
            m.h = a.h * 3;
            m.w = a.w * 2;
            m.mh = 3;
            m.mw = 2;
            m.x = hard(2, mode == 2 ? 1e38 : 1, 2, N * 6, D, 0);
            m.y = new3(a.h * a.w, 6, D);
            BITS(merge, &m);
            mem_free();
        }
}

static void bad_arguments(void)
{
    double table[64] = { 0 };
    tr_weight w, none;
    tr_pos_args good, a;
    tr_merge_args fine, m;
    tr_rope_args r;
    tr_gelu_args g;
    memset(&none, 0, sizeof none);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F64), "t", table, NULL, 4, 16, 0, 0));
    good.table = &w;
    good.t = 2; good.h = 3; good.w = 2;
    good.theta = 10000;
    good.y = new2(12, 4);
    CHECK_OK(ctx, tr_pos_resize_f64(ctx, &good));
    a = good; a.h = 4;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "pos: 12 rows 2 frames 4 x 2", tr_pos_resize_f64(ctx, &a));
    a = good; a.t = 0;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "pos: 12 0 frames", tr_pos_resize_f64(ctx, &a));
    a = good; a.h = INT64_MAX;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "pos: 12", tr_pos_resize_f64(ctx, &a));
    a = good; a.y = new2(12, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "pos: t [4, 16] hold 3", tr_pos_resize_f64(ctx, &a));
    a = good; a.y = new2(12, 1);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "pos: even 1", tr_pos_resize_f64(ctx, &a));
    a = good; a.theta = 0;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "pos: theta 0", tr_pos_resize_f64(ctx, &a));
    a = good; a.table = NULL;
    CHECK_FAILS(ctx, TR_ERR_ARG, "pos: table absent", tr_pos_resize_f64(ctx, &a));
    a = good; a.table = &none;
    CHECK_FAILS(ctx, TR_ERR_ARG, "pos: table absent", tr_pos_resize_f64(ctx, &a));
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "pos: y F64 F32", tr_pos_resize(ctx, &good));
    fine.t = 1; fine.h = 4; fine.w = 6; fine.mh = fine.mw = 2;
    fine.x = new2(24, 5);
    fine.y = new3(6, 4, 5);
    CHECK_OK(ctx, tr_patch_merge_f64(ctx, &fine));
    m = fine; m.mh = 3;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "merge: 4 x 6 divide 3 x 2", tr_patch_merge_f64(ctx, &m));
    m = fine; m.mw = 0;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "merge: divide 2 x 0", tr_patch_merge_f64(ctx, &m));
    m = fine; m.y = new3(8, 3, 5);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "merge: 8 x 3 6 x 4", tr_patch_merge_f64(ctx, &m));
    m = fine; m.y = new3(6, 4, 6);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "merge: x [24, 5] differ in D", tr_patch_merge_f64(ctx, &m));
    m = fine; m.w = 5;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "merge: 24 rows 4 x 5", tr_patch_merge_f64(ctx, &m));
    r.x = new3(2, 1, 4); r.pos = tr_view2(mem(4, 8), TR_I64, 2, 0); r.inv_freq = new1(2);
    r.mult = 1; r.layout = TR_ROPE_INTERLEAVED;
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "rope: pos [2, 0] axis", tr_rope_f64(ctx, &r));
    r.pos = tr_view2(r.pos.data, TR_I64, 1, 2);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "rope: pos differ in N", tr_rope_f64(ctx, &r));
    g.y = g.x = new2(2, 3); g.kind = (tr_gelu_kind)7;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "gelu: kind 7", tr_gelu_f64(ctx, &g));
    mem_free();
}

/* ---- images in prompts */

/* A prompt, its images and what came of them. */
typedef struct prompt {
    int32_t ids[400];           /* one placeholder an image */
    int64_t T;
    tr_images im;
    int64_t grid[12];
    float *pixels;
} prompt;

static int32_t media(const tr_model *m) { return (int32_t)m->cfg.media.v[0]; }

/* Random ids, and at the given places images of the given grids (t, h, w). */
static prompt *prompt_new(const tr_model *m, uint64_t seed, int64_t T, int n, const int64_t *at,
                          const int64_t *grid)
{
    prompt *p = (prompt *)mem(1, sizeof *p);
    int64_t patches_ = 0, P = m->cfg.vit_patch;
    p->T = T;
    for (int64_t t = 0; t < T; t++) p->ids[t] = (int32_t)(tr_rng_u64(seed, 1, (uint64_t)t) % 256);
    for (int i = 0; i < n; i++) {
        p->ids[at[i]] = media(m);
        memcpy(p->grid + 3 * i, grid + 3 * i, 3 * sizeof *grid);
        patches_ += grid[3 * i] * grid[3 * i + 1] * grid[3 * i + 2];
    }
    p->pixels = (float *)mem(patches_ * 3 * P * P, 4);
    for (int64_t k = 0; k < patches_ * 3 * P * P; k++)
        p->pixels[k] = (float)(2 * tr_rng_unit(seed, 2, (uint64_t)k) - 1);
    p->im.pixels = tr_view4(p->pixels, TR_F32, patches_, 3, P, P);
    p->im.grid = p->grid;
    p->im.n = n;
    return p;
}

/* Runs B prompts together and collects every tap; the images of all, in their order. */
static void run_prompts(tr_ctx *c, tr_model *m, prompt *const *p, int64_t B, int64_t piece,
                        tr_golden *g, int64_t *T)
{
    static const char *const all[] = { "*" };
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    tr_images im;
    tr_batch b;
    int64_t lengths[4], n = 0, patches_ = 0, longest = 0;
    int64_t P3 = 3 * m->cfg.vit_patch * m->cfg.vit_patch;
    int32_t *ids = (int32_t *)mem(4000, 4), *out = (int32_t *)mem(4000, 4);
    int64_t *grid = (int64_t *)mem(64, 8);
    float *pixels = (float *)mem(1000 * P3, 4);
    memset(&im, 0, sizeof im);
    for (int64_t s = 0; s < B; n += p[s++]->T) {
        lengths[s] = p[s]->T;
        memcpy(ids + n, p[s]->ids, (size_t)p[s]->T * sizeof *ids);
        memcpy(grid + 3 * im.n, p[s]->grid, (size_t)p[s]->im.n * 3 * sizeof *grid);
        memcpy(pixels + patches_ * P3, p[s]->pixels,
               (size_t)(p[s]->im.pixels.shape[0] * P3) * sizeof *pixels);
        im.n += p[s]->im.n;
        patches_ += p[s]->im.pixels.shape[0];
    }
    im.grid = grid;
    im.pixels = tr_view4(pixels, TR_F32, patches_, 3, m->cfg.vit_patch, m->cfg.vit_patch);
    b.B = B;
    b.T = lengths;
    b.ids = ids;
    if (im.n) {
        CHECK_OK(c, tr_expand_images(c, T, out, &m->cfg, &im, &b));
        CHECK_OK(c, tr_run_opts_images(c, &o, &m->cfg, &im));
        b.T = T;
        b.ids = out;
    } else memcpy(T, lengths, (size_t)B * sizeof *T);
    for (int64_t s = 0; s < B; s++) longest = T[s] > longest ? T[s] : longest;
    o.B = B;
    o.max_tokens = (piece ? piece : longest) * B;
    o.capacity = longest;
    o.logits = TR_LOGITS_ALL;
    o.tap = tr_golden_tap;
    o.tap_user = g;
    o.globs = all;
    o.n_globs = 1;
    CHECK_OK(c, tr_golden_new(c, g, B, T));
    CHECK_OK(c, tr_run_new(c, &r, m, &o));
    if (r && im.n) CHECK_OK(c, tr_vit_forward(r, &im, &b));
    if (r) CHECK_OK(c, tr_prefill(r, &b));
    if (r) CHECK_OK(c, tr_tap_state(r));
    tr_run_free(r);
}

/* Rows [from, from + n) of a tap of sequence s. */
static tr_view rows_of(const tr_golden *g, const char *name, int64_t s, int64_t from, int64_t n)
{
    tr_view v = tr_golden_find(g, name);
    if (tr_view_is_none(v)) { printf("FAILED: no tap %s\n", name); exit(1); }
    return tr_view_slice(tr_view_at(v, s), 0, from, n);
}

/* Every tap of the tower over im. */
static void see_all(tr_ctx *c, const tr_images *im, tr_golden *g)
{
    static const char *const all[] = { "*" };
    static const int64_t none = 0;
    tr_run_opts o = tr_run_opts_default();
    tr_run *r = NULL;
    tr_model *m;
    char path[512];
    snprintf(path, sizeof path, "%s/kimi_k3/vision", cases_root);
    CHECK_OK(c, tr_model_open(c, &m, path, NULL));
    CHECK_OK(c, tr_run_opts_images(c, &o, &m->cfg, im));
    o.tap = tr_golden_tap;
    o.tap_user = g;
    o.globs = all;
    o.n_globs = 1;
    CHECK_OK(c, tr_golden_new(c, g, 1, &none));
    CHECK_OK(c, tr_run_new(c, &r, m, &o));
    if (r) CHECK_OK(c, tr_vit_forward(r, im, NULL));
    tr_run_free(r);
    tr_model_close(m);
}

/* Each of five images alone gives the bits that it has in the pack, whatever the threads. */
static void alone(void)
{
    vision v = vision_open("vision");
    tr_golden pack, g;
    int64_t at = 0;
    see_all(ctx, &v.im, &pack);
    for (int i = 0; i < v.im.n; i++) {
        tr_ctx *c = ctx_threads(thread_counts[i % 3]);
        tr_images im = v.im;
        int64_t N = im.grid[3 * i] * im.grid[3 * i + 1] * im.grid[3 * i + 2];
        im.pixels = tr_view_slice(im.pixels, 0, at, N);
        im.grid += 3 * i;
        im.n = 1;
        see_all(c, &im, &g);
        CHECK(g.n == 2 + 2 * 9 + 3);
        for (int64_t n = 0; n < g.n; n++) {
            const char *own = g.item[n].name, *dot = strrchr(own, '.');
            int whole = strncmp(own, "mm_projector.", 13) &&
                        strncmp(own, "vision_tower.merged.", 20);
            char name[64];
            tr_view y;
            snprintf(name, sizeof name, "%.*s.%d", (int)(dot - own), own, i);
            y = tr_golden_find(&pack, whole ? own : name);
            if (whole) y = tr_view_slice(y, 0, at, N);
            CHECK(tr_view_same_shape(g.item[n].x, y));
            bits_equal(g.item[n].x, y, own);
        }
        tr_golden_free(c, &g);
        tr_ctx_free(c);
        at += N;
    }
    CHECK(at == v.im.pixels.shape[0]);
    tr_golden_free(ctx, &pack);
    vision_close(&v);
}

/* Two prompts, one of them with an image first, one in the middle and one last: in pieces that cut
 * through images, together and each by itself, on several threads. */
static void prompts_in_pieces(void)
{
    static const int64_t at[3] = { 0, 9, 29 }, one_at[1] = { 30 };
    static const int64_t grid[9] = { 1, 4, 6, 2, 2, 4, 1, 6, 6 }, one[3] = { 1, 2, 8 };
    static const int64_t pieces[] = { 0, 1, 5, 7 };
    vision v = vision_open("multimodal");
    prompt *p[3];
    tr_golden whole[2], g;
    int64_t T[3], whole_T[2];
    p[0] = prompt_new(v.m, 1, 30, 3, at, grid);
    p[1] = prompt_new(v.m, 2, 61, 1, one_at, one);
    for (int s = 0; s < 2; s++) run_prompts(ctx, v.m, p + s, 1, 0, &whole[s], whole_T + s);
    CHECK(whole_T[0] == 30 + 5 + 1 + 8 && whole_T[1] == 61 + 3);
    for (int k = 0; k < 4; k++) {
        run_prompts(ctx, v.m, p, 2, pieces[k], &g, T);
        for (int64_t i = 0; i < g.n; i++) {
            const char *name = g.item[i].name;
            if (!strncmp(name, "vision_tower", 12) || !strncmp(name, "mm_projector", 12)) continue;
            for (int s = 0; s < 2; s++) {
                tr_view x = tr_view_at(g.item[i].x, s);
                tr_view y = tr_view_at(tr_golden_find(&whole[s], name), 0);
                if (strncmp(name, "state.", 6) || strstr(name, "latent"))
                    x = tr_view_slice(x, 0, 0, T[s]);
                bits_equal(x, y, name);
            }
        }
        tr_golden_free(ctx, &g);
    }
    /* what the images became stands at their places, the text's rows where they were */
    for (int i = 0; i < 3; i++) {
        static const int64_t from[3] = { 0, 14, 35 }, n[3] = { 6, 2, 9 };
        char name[64];
        snprintf(name, sizeof name, "mm_projector.%d", i);
        bits_equal(rows_of(&whole[0], "inputs_embeds", 0, from[i], n[i]),
                   tr_golden_find(&whole[0], name), name);
    }
    p[2] = prompt_new(v.m, 1, 30, 0, at, grid);         /* the text alone */
    run_prompts(ctx, v.m, p + 2, 1, 0, &g, T);
    bits_equal(rows_of(&whole[0], "inputs_embeds", 0, 6, 8),
               rows_of(&g, "language_model.model.embed_tokens", 0, 1, 8), "text");
    bits_equal(rows_of(&whole[0], "inputs_embeds", 0, 16, 19),
               rows_of(&g, "language_model.model.embed_tokens", 0, 10, 19), "text");
    tr_golden_free(ctx, &g);
    for (int s = 0; s < 2; s++) tr_golden_free(ctx, &whole[s]);
    vision_close(&v);
}

/* Rows of pad_token_id: 0 in a prompt with images, the embedding in another, whoever is beside it,
 * and in what is decoded later. */
static void pad_rows(void)
{
    static const int64_t at[1] = { 3 }, grid[3] = { 1, 2, 4 };
    vision v = vision_open("multimodal");
    prompt *p[2];
    tr_golden g, text;
    tr_run_opts o = tr_run_opts_default();
    tr_run *r;
    tr_batch b;
    int64_t T[2], one = 1;
    int32_t pad = (int32_t)v.m->cfg.pad.v[0], ids[40];
    p[0] = prompt_new(v.m, 1, 10, 1, at, grid);
    p[1] = prompt_new(v.m, 2, 12, 0, at, grid);
    p[0]->ids[1] = p[0]->ids[8] = p[1]->ids[8] = pad;
    run_prompts(ctx, v.m, p, 2, 4, &g, T);
    CHECK(T[0] == 11 && T[1] == 12);
    for (int64_t t = 0; t < 11; t++) {
        tr_view x = rows_of(&g, "inputs_embeds", 0, t, 1);
        int zero = 1;
        for (int64_t d = 0; d < 80; d++) zero &= tr_get_f64(x.data, x.dtype, d) == 0;
        CHECK(zero == (t == 1 || t == 9));
    }
    run_prompts(ctx, v.m, p + 1, 1, 0, &text, T);
    bits_equal(tr_view_at(tr_golden_find(&g, "inputs_embeds"), 1),
               tr_view_at(tr_golden_find(&text, "language_model.model.embed_tokens"), 0),
               "no images");
    tr_golden_free(ctx, &text);
    tr_golden_free(ctx, &g);
    b.B = 1;
    b.T = &p[0]->T;
    b.ids = p[0]->ids;
    CHECK_OK(ctx, tr_expand_images(ctx, T, ids, &v.m->cfg, &p[0]->im, &b));
    b.T = T;
    b.ids = ids;
    CHECK_OK(ctx, tr_run_opts_images(ctx, &o, &v.m->cfg, &p[0]->im));
    CHECK_OK(ctx, tr_run_new(ctx, &r, v.m, &o));
    CHECK_OK(ctx, tr_vit_forward(r, &p[0]->im, &b));
    CHECK_OK(ctx, tr_prefill(r, &b));
    b.T = &one;
    b.ids = &pad;
    CHECK_OK(ctx, tr_forward(r, &b, NULL));         /* decoded: not of the prompt */
    tr_run_free(r);
    vision_close(&v);
}

/* A second prompt with an image follows the first in the same state. Neither takes memory. */
static void turns(void)
{
    static const int64_t at[1] = { 2 }, grid[3] = { 1, 4, 4 };
    static const int64_t both_at[2] = { 2, 11 }, both_grid[6] = { 1, 4, 4, 1, 4, 4 };
    vision v = vision_open("multimodal");
    prompt *p[2], *both;
    tr_golden g;
    tr_run_opts o = tr_run_opts_default();
    tr_run *r;
    tr_batch b;
    int64_t T, whole_T;
    int32_t ids[80];
    p[0] = prompt_new(v.m, 5, 9, 1, at, grid);
    p[1] = prompt_new(v.m, 6, 7, 1, at, grid);
    both = prompt_new(v.m, 5, 16, 2, both_at, both_grid);
    memcpy(both->ids + 9, p[1]->ids, 7 * 4);
    memcpy(both->pixels, p[0]->pixels, 16 * 588 * 4);
    memcpy(both->pixels + 16 * 588, p[1]->pixels, 16 * 588 * 4);
    run_prompts(ctx, v.m, &both, 1, 0, &g, &whole_T);
    CHECK_OK(ctx, tr_run_opts_images(ctx, &o, &v.m->cfg, &p[0]->im));
    CHECK_OK(ctx, tr_run_new(ctx, &r, v.m, &o));
    b.B = 1;
    size_t held = tr_ctx_bytes(ctx);
    for (int k = 0; k < 2; k++) {
        b.T = &p[k]->T;
        b.ids = p[k]->ids;
        CHECK_OK(ctx, tr_expand_images(ctx, &T, ids, &v.m->cfg, &p[k]->im, &b));
        b.T = &T;
        b.ids = ids;
        CHECK_OK(ctx, tr_vit_forward(r, &p[k]->im, &b));
        CHECK_OK(ctx, tr_prefill(r, &b));
    }
    CHECK(tr_ctx_bytes(ctx) == held);
    CHECK(r->state.len[0] == whole_T);
    bits_equal(tr_view_at(r->logits, 0), tr_view_at(rows_of(&g, "logits", 0, whole_T - 1, 1), 0),
               "logits of two turns");
    tr_golden_free(ctx, &g);
    tr_run_free(r);
    vision_close(&v);
}

static void refused(void)
{
    static const int64_t at[2] = { 2, 5 }, grid[6] = { 1, 4, 4, 1, 2, 2 };
    vision v = vision_open("multimodal");
    prompt *p = prompt_new(v.m, 5, 9, 2, at, grid);
    const tr_config *c = &v.m->cfg;
    tr_images im = p->im;
    tr_run_opts o = tr_run_opts_default();
    tr_run *r;
    tr_batch b;
    int64_t g[6], T;
    int32_t ids[80];
    char path[512];
    tr_model *text;
    memcpy(g, p->grid, sizeof g);
    im.grid = g;
    b.B = 1;
    b.T = &p->T;
    b.ids = p->ids;
#define REFUSED(status, words) CHECK_FAILS(ctx, status, words, tr_run_opts_images(ctx, &o, c, &im))
    CHECK_OK(ctx, tr_run_opts_images(ctx, &o, c, &im));
    CHECK(o.max_patches == 16 && o.max_images == 2 && o.image_rows == 5);
    g[1] = 6;  REFUSED(TR_ERR_SHAPE, "image 0, 1 x 6 x 4 20 patches pixel_values");
    g[1] = 2;  REFUSED(TR_ERR_SHAPE, "2 images 12 patches pixel_values 20");
    g[1] = 3;  REFUSED(TR_ERR_SHAPE, "image 0 3 x 4 divide 2 x 2");
    g[1] = 514; REFUSED(TR_ERR_RANGE, "image 0 514 x 4 512");
    g[1] = 0;  REFUSED(TR_ERR_RANGE, "image 0 0 x 4");
    g[1] = -4; REFUSED(TR_ERR_RANGE, "image 0 -4 x 4");
    g[1] = INT64_MAX; REFUSED(TR_ERR_RANGE, "image 0 x 4");
    g[1] = 4;
    g[3] = 5;  REFUSED(TR_ERR_RANGE, "image 1 5 frames 1 to 4");
    g[3] = 0;  REFUSED(TR_ERR_RANGE, "image 1 0 frames");
    g[3] = 1;
    im.n = 0;  REFUSED(TR_ERR_ARG, "no images");
    im.n = 1;  REFUSED(TR_ERR_SHAPE, "1 image makes 16 patches 20");
    im.n = 2;
    im.pixels = tr_view4(p->pixels, TR_F32, 20, 3, 14, 7);
    REFUSED(TR_ERR_SHAPE, "[20, 3, 14, 7] 14");
    im.pixels = tr_view2(p->pixels, TR_F32, 20, 588);
    REFUSED(TR_ERR_SHAPE, "[20, 588]");
    im.pixels = p->im.pixels;
    im.pixels.dtype = TR_BF16;  REFUSED(TR_ERR_DTYPE, "BF16 F32");
    im = p->im;

    p->ids[2] = 1;
    CHECK_FAILS(ctx, TR_ERR_ARG, "kimi_k3: 1 placeholder (id 277) 2 images",
                tr_expand_images(ctx, &T, NULL, c, &im, &b));
    p->ids[2] = p->ids[3] = (int32_t)c->media.v[0];
    CHECK_FAILS(ctx, TR_ERR_ARG, "kimi_k3: 3 placeholders (id 277) 2 images",
                tr_expand_images(ctx, &T, NULL, c, &im, &b));
    p->ids[3] = 1;
    CHECK_OK(ctx, tr_expand_images(ctx, &T, ids, c, &im, &b));
    CHECK(T == 9 + 3 && ids[2] == 277 && ids[5] == 277 && ids[6] == 1 && ids[8] == 277);

    CHECK_OK(ctx, tr_run_new(ctx, &r, v.m, &o));
    CHECK_FAILS(ctx, TR_ERR_ARG, "sequence 0, token 2: 1 placeholder (id image 0 2 4 rows",
                tr_vit_forward(r, &im, &b));            /* not expanded */
    b.T = &T;
    b.ids = ids;
    ids[11] = 277;
    CHECK_FAILS(ctx, TR_ERR_ARG, "token 11: image 2", tr_vit_forward(r, &im, &b));
    ids[11] = 1;
    ids[8] = 1;
    CHECK_FAILS(ctx, TR_ERR_ARG, "1 image, not 2", tr_vit_forward(r, &im, &b));
    ids[8] = 277;
    CHECK_OK(ctx, tr_vit_forward(r, &im, &b));
    ids[4] = 7;
    CHECK_FAILS(ctx, TR_ERR_ARG, "token 4: id 7 row 2 of image 0", tr_prefill(r, &b));
    CHECK(!r->state.spoilt);
    CHECK_OK(ctx, tr_vit_forward(r, NULL, NULL));       /* forgotten: an id like any other */
    CHECK_OK(ctx, tr_prefill(r, &b));
    p->pixels[588 + 3] = (float)NAN;
    CHECK_FAILS(ctx, TR_ERR_NOT_FINITE, "pixel_values: image 0, row 1, element 3 nan",
                tr_vit_forward(r, &im, NULL));
    tr_run_free(r);
    o.max_patches = 12;
    CHECK_OK(ctx, tr_run_new(ctx, &r, v.m, &o));
    CHECK_FAILS(ctx, TR_ERR_ARG, "2 images 16 patches 12", tr_vit_forward(r, &im, NULL));
    tr_run_free(r);
    o = tr_run_opts_default();
    CHECK_OK(ctx, tr_run_new(ctx, &r, v.m, &o));
    CHECK_FAILS(ctx, TR_ERR_ARG, "2 images 16 patches 0", tr_vit_forward(r, &im, NULL));
    tr_run_free(r);
    o.max_patches = -1;
    CHECK_FAILS(ctx, TR_ERR_ARG, "images -1 patches", tr_run_new(ctx, &r, v.m, &o));

    snprintf(path, sizeof path, "%s/families/llama3", cases_root);
    CHECK_OK(ctx, tr_model_open(ctx, &text, path, NULL));
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "llama no vision tower images (2",
                tr_run_opts_images(ctx, &o, &text->cfg, &im));
    o = tr_run_opts_default();
    o.max_patches = 4;
    CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, "llama no vision tower",
                tr_run_new(ctx, &r, text, &o));
    tr_model_close(text);
    vision_close(&v);
}

/* Opening, seeing and freeing, with each allocation failing in turn. */
static tr_status see(tr_ctx *c, void *user)
{
    vision *v = (vision *)user;
    char path[512];
    tr_model *m = NULL;
    tr_run *r = NULL;
    tr_run_opts o = tr_run_opts_default();
    tr_status s;
    snprintf(path, sizeof path, "%s/kimi_k3/vision", cases_root);
    s = tr_model_open(c, &m, path, NULL);
    if (s == TR_OK) s = tr_run_opts_images(c, &o, &m->cfg, &v->im);
    if (s == TR_OK) s = tr_run_new(c, &r, m, &o);
    if (s == TR_OK) s = tr_vit_forward(r, &v->im, NULL);
    tr_run_free(r);
    tr_model_close(m);
    return s;
}

static void allocations(void)
{
    vision v = vision_open("vision");
    CHECK(test_sweep(see, &v) > 20);
    vision_close(&v);
}

int main(int argc, char **argv)
{
    cases_args(argc, argv);
    ctx = test_ctx();
    TEST(patches);
    TEST(normalize);
    TEST(positions);
    TEST(merge);
    TEST(plane);
    TEST(contract_bits);
    TEST(bad_arguments);
    TEST(alone);
    TEST(prompts_in_pieces);
    TEST(pad_rows);
    TEST(turns);
    TEST(refused);
    TEST(allocations);
    exact_ctx(-1);
    tr_ctx_free(ctx);
    return test_end();
}
