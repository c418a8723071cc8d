/* tools/image.h: every file, resize and size rule of the cases to the last bit; files and processor
 * configs that must be refused and the words in which that is said; pictures made here, cut and
 * damaged at every byte. */

#define TRILLION_IMPLEMENTATION
#include "test.h"
#include "../tools/image.h"

#include <dirent.h>

static tr_ctx *ctx;
static const char *root = "tests/golden";

static const char *in_root(const char *name)
{
    static char path[4][1024];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/images/%s", root, name);
    return path[turn];
}

static int is_there(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

static void stop(const char *what)
{
    printf("FAILED %s: %s\n", what, tr_err_last(ctx));
    exit(1);
}

static void sha_of(const void *p, size_t n, char hex[65])
{
    tr_sha256 h;
    tr_sha256_init(&h);
    tr_sha256_update(&h, p, n);
    tr_sha256_hex(&h, hex);
}

/* ---- resize alone */

static img_mode mode_of(const char *name)
{
    for (int m = 0; m < IMG_MODES; m++)
        if (!strcmp(name, img_mode_name((img_mode)m))) return (img_mode)m;
    stop(name);
    return IMG_L;
}

static img_filter filter_of(const char *name)       /* "BICUBIC" */
{
    for (int f = 0; f < IMG_FILTERS; f++) {
        const char *a = name, *b = img_kernel_get((img_filter)f)->name;
        while (*a && (*a | 32) == *b) a++, b++;
        if (!*a && !*b) return (img_filter)f;
    }
    stop(name);
    return IMG_BICUBIC;
}

static void resize_case(const char *path)
{
    const img_pillow order[2] = { IMG_PILLOW_12, IMG_PILLOW_13 };
    tr_st f;
    img src, out;
    if (tr_st_open(ctx, &f, path, 0) != TR_OK) stop(path);
    tr_view v = tr_st_find(&f, "src")->view, d = tr_st_find(&f, "dst")->view;
    memset(&src, 0, sizeof src);
    src.mode = mode_of(tr_st_meta(&f, "mode"));
    src.h = v.shape[0];
    src.w = v.shape[1];
    src.px = (uint8_t *)v.data;
    for (int i = 0; i < 2; i++) {
        const tr_st_entry *e = tr_st_find(&f, "dst_pillow12");
        const void *want = e && i == 0 ? e->view.data : d.data;
        CHECK_OK(ctx, img_resize(ctx, &out, &src, d.shape[1], d.shape[0],
                                 filter_of(tr_st_meta(&f, "filter")), order[i]));
        test_bits(out.px, want, (size_t)(out.w * out.h * img_bytes(out.mode)), path, __FILE__,
                  __LINE__);
        img_free(ctx, &out);
    }
    tr_st_close(ctx, &f);
}

/* Runs every safetensors of a folder of the fixtures; how many there were. */
static int each_case(const char *folder, void (*run)(const char *path))
{
    DIR *d = opendir(in_root(folder));
    struct dirent *e;
    char path[2048];
    int n = 0;
    while (d && (e = readdir(d)) != NULL)
        if (strstr(e->d_name, ".safetensors")) {
            snprintf(path, sizeof path, "%s/%s", in_root(folder), e->d_name);
            run(path);
            n++;
        }
    if (d) closedir(d);
    return n;
}

static void pil_resize(void)
{
    int n = each_case("pil_resize", resize_case);
    printf("  pil_resize: %d cases in two orders\n", n);
    CHECK(n >= 80);
}

/* The same bits from each clone, at sizes that end in every way. */
static void resize_clones(void)
{
    tr_ctx *base = NULL;
    tr_ctx_opts o;
    img a, x, y;
    memset(&o, 0, sizeof o);
    o.cpu = TR_CPU_BASE;
    if (tr_ctx_new(&base, &o) != TR_OK) stop("a context");
    memset(&a, 0, sizeof a);
    for (int k = 0; k < 60; k++) {
        img_mode mode = k % 3 ? k % 3 == 1 ? IMG_RGB : IMG_RGBA : IMG_L;
        int64_t w = 1 + (int64_t)(tr_rng_u64(1, 1, (uint64_t)k) % 90);
        int64_t h = 1 + (int64_t)(tr_rng_u64(1, 2, (uint64_t)k) % 90);
        int64_t nw = 1 + (int64_t)(tr_rng_u64(1, 3, (uint64_t)k) % 140);
        int64_t nh = 1 + (int64_t)(tr_rng_u64(1, 4, (uint64_t)k) % 140);
        if (img_alloc(ctx, &a, mode, w, h) != TR_OK) stop("memory");
        for (int64_t i = 0; i < w * h * img_bytes(mode); i++)
            a.px[i] = (uint8_t)tr_rng_u64(2, (uint64_t)k, (uint64_t)i);
        CHECK_OK(ctx, img_resize(ctx, &x, &a, nw, nh, IMG_LANCZOS, IMG_PILLOW_12));
        CHECK_OK(base, img_resize(base, &y, &a, nw, nh, IMG_LANCZOS, IMG_PILLOW_12));
        CHECK_BITS(x.px, y.px, (size_t)(nw * nh * img_bytes(mode)));
        img_free(ctx, &x);
        img_free(base, &y);
        img_free(ctx, &a);
    }
    tr_ctx_free(base);
}

/* ---- files */

static void hash_is(const void *p, size_t n, const char *want, const char *what)
{
    char hex[65];
    sha_of(p, n, hex);
    if (want && !strcmp(hex, want)) return;
    test_bad++;
    printf("  %s: SHA-256 %s, expected %s\n", what, hex, want ? want : "one");
}

static int64_t meta_int(const tr_st *f, const char *key)
{
    const char *s = tr_st_meta(f, key);
    return s ? strtoll(s, NULL, 10) : -1;
}

/* x against the expected file, in one order. */
static void pixels_are(const tr_st *f, const img_pixels *x, const char *name)
{
    const img_grid *g = &x->grid;
    size_t n = (size_t)(g->nw * g->nh * 3);
    int twelve = x->order == IMG_PILLOW_12 && tr_st_meta(f, "pixel_values_sha256_pillow12");
    const tr_st_entry *r = tr_st_find(f, twelve ? "resized_pillow12" : "resized");
    const tr_st_entry *v = tr_st_find(f, "pixel_values"), *t = tr_st_find(f, "grid_thws");
    const int64_t *thw = (const int64_t *)t->view.data;
    CHECK(thw[0] == 1 && thw[1] == g->gh && thw[2] == g->gw);
    CHECK(g->nw == meta_int(f, "new_width") && g->nh == meta_int(f, "new_height"));
    CHECK(g->pw == meta_int(f, "pad_width") && g->ph == meta_int(f, "pad_height"));
    CHECK(g->tokens == meta_int(f, "num_tokens"));
    if (r && r->bytes != n) { CHECK(r->bytes == n); return; }
    if (r) test_bits(x->resized, r->view.data, n, name, __FILE__, __LINE__);
    if (tr_st_meta(f, "resized_sha256"))
        hash_is(x->resized, n, tr_st_meta(f, "resized_sha256"), name);
    if (v && !twelve)
        test_bits(x->values, v->view.data, v->bytes, name, __FILE__, __LINE__);
    hash_is(x->values, (size_t)(g->patches * g->patch_len) * 4,
            tr_st_meta(f, twelve ? "pixel_values_sha256_pillow12" : "pixel_values_sha256"), name);
}

/* convert("RGB") at the file's own size. */
static void rgb_is(const tr_st *f, const img *m, const char *name)
{
    const char *hash = tr_st_meta(f, "rgb_sha256");
    img_proc plain;
    img rgb;
    size_t n = (size_t)(m->w * m->h * 3);
    if (!hash) return;                              /* of a shrunk one it is not stored */
    memset(&plain, 0, sizeof plain);
    CHECK_OK(ctx, img_flatten(ctx, &plain, &rgb, m));
    hash_is(rgb.px, n, hash, name);
    img_free(ctx, &rgb);
}

static tr_json manifest;

static const char *str_of(const tr_json_node *v, const char *key)
{
    const tr_json_node *e = tr_json_get(&manifest, v, key);
    return e ? tr_json_str(&manifest, e) : "";
}

/* The vendor's config, with one patch limit or the other. */
static void kimi_proc(img_proc *p, const char *limit)
{
    char text[2048];
    int n = snprintf(text, sizeof text,
        "{\"media_proc_cfg\": {\"in_patch_limit\": %s, \"patch_size\": 14, "
        "\"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5], "
        "\"merge_kernel_size\": 2, \"fixed_output_tokens\": "
        "null, \"patch_limit_on_one_side\": 512, \"transparent_bg_config\": {\"pattern\": "
        "\"chessboard\", \"chessboard_square_size\": 8, \"chessboard_square_on_top_left\": true, "
        "\"chessboard_white_value\": 255, \"chessboard_gray_value\": 180}, "
        "\"transparent_bg_fill_stage\": \"after_resize\"}}", limit);
    if (img_proc_parse(ctx, p, "kimi", text, (size_t)n, NULL, 0) != TR_OK) stop("kimi");
}

static int files_ok, files_bad, files_any;

static void file_case(const tr_json_node *v, const char *ending)
{
    char path[512], want[512];
    const char *file = str_of(v, "file"), *expect = str_of(v, "expect");
    const tr_json_node *cfg = tr_json_get(&manifest, v, "config");
    const char *limit = cfg ? str_of(cfg, "in_patch_limit") : "65536";
    img m;
    tr_status s;
    snprintf(path, sizeof path, "files/%s", file);
    if (!strstr(file, ending)) return;
    test_log[0] = 0;
    s = img_load(ctx, &m, in_root(path), IMG_MAX_PIXELS);
    if (!strcmp(expect, "error") || (!strcmp(expect, "any") && s != TR_OK)) {
        if (s == TR_OK || !strstr(tr_err_last(ctx), file)) {
            test_bad++;
            printf("  %s: \"%s\"\n", file, s == TR_OK ? "loaded" : tr_err_last(ctx));
        }
        files_bad += !strcmp(expect, "error");
        files_any += !strcmp(expect, "any");
        img_free(ctx, &m);
        return;
    }
    CHECK_OK(ctx, s);
    if (s != TR_OK) return;
    if (*str_of(v, "pil_mode")) CHECK(!strcmp(img_mode_name(m.mode), str_of(v, "pil_mode")));
    snprintf(want, sizeof want, cfg ? "expected/%s.limit%s.safetensors" : "expected/%s.safetensors",
             file, limit);
    if (is_there(in_root(want))) {
        img_proc p;
        tr_st f;
        kimi_proc(&p, limit);
        if (tr_st_open(ctx, &f, in_root(want), 0) != TR_OK) stop(want);
        for (int order = 12; order <= 13; order++) {
            img_pixels x;
            CHECK_OK(ctx, img_process(ctx, &p, &m, (img_pillow)order, &x));
            pixels_are(&f, &x, file);
            img_pixels_free(ctx, &x);
        }
        rgb_is(&f, &m, file);
        tr_st_close(ctx, &f);
        files_ok++;
    } else {
        test_bad++;
        printf("  %s is missing\n", want);
    }
    img_free(ctx, &m);
}

static void files(const char *ending)
{
    const tr_json_node *v;
    files_ok = files_bad = files_any = 0;
    if (tr_json_load(ctx, &manifest, in_root("manifest.json")) != TR_OK) stop("manifest");
    v = tr_json_first(&manifest, tr_json_get(&manifest, manifest.node, "files"));
    for (; v; v = tr_json_next(&manifest, v)) file_case(v, ending);
    tr_json_free(&manifest);
    printf("  %d pictures, %d refused as they must be, %d as they may be\n", files_ok, files_bad,
           files_any);
}

static void files_png(void) { files(".png"); CHECK(files_ok >= 60 && files_bad >= 13); }
static void files_jpeg(void) { files(".jpg"); CHECK(files_ok >= 20 && files_bad >= 7); }

static void rgb_sha_is(const img *m, const tr_st *f, const char *name, const char *what)
{
    char key[256];
    img_proc plain;
    img rgb;
    memset(&plain, 0, sizeof plain);
    CHECK_OK(ctx, img_flatten(ctx, &plain, &rgb, m));
    snprintf(key, sizeof key, "%s.%s_sha256", name, what);
    hash_is(rgb.px, (size_t)(rgb.w * rgb.h * 3), tr_st_meta(f, key), key);
    img_free(ctx, &rgb);
}

/* Small JPEGs of all kinds: Pillow's convert("RGB"), at their own size and at half of it. */
static void jpeg_kinds(void)
{
    char key[256];
    tr_st f;
    img m, half;
    if (tr_st_open(ctx, &f, "tests/golden/images/jpeg.safetensors", 0) != TR_OK) stop("the JPEGs");
    for (int64_t i = 0; i < f.n; i++) {
        const tr_st_entry *e = &f.entry[i];
        snprintf(key, sizeof key, "%s.mode", e->name);
        CHECK_OK(ctx, img_decode(ctx, &m, e->name, e->view.data, e->bytes, IMG_MAX_PIXELS));
        if (!m.px) continue;
        CHECK(!strcmp(img_mode_name(m.mode), tr_st_meta(&f, key)));
        rgb_sha_is(&m, &f, e->name, "rgb");
        CHECK_OK(ctx, img_resize(ctx, &half, &m, (m.w + 1) / 2, (m.h + 1) / 2, IMG_BICUBIC,
                                 IMG_PILLOW_13));
        rgb_sha_is(&half, &f, e->name, "half");
        img_free(ctx, &m);
        img_free(ctx, &half);
    }
    printf("  %lld kinds of JPEG, with Pillow %s\n", (long long)f.n, tr_st_meta(&f, "pillow"));
    CHECK(f.n >= 200);
    tr_st_close(ctx, &f);
    CHECK(tr_ctx_bytes(ctx) == 0);
}

/* Ink that is really shrunk: Pillow's resize of four channels, then its convert("RGB"). */
static void ink_shrinks(void)
{
    img_proc p;
    img_pixels x;
    img m;
    kimi_proc(&p, "6");
    if (img_load(ctx, &m, in_root("files/jpeg_cmyk.jpg"), IMG_MAX_PIXELS) != TR_OK) stop("ink");
    CHECK_OK(ctx, img_process(ctx, &p, &m, IMG_PILLOW_12, &x));
    CHECK(x.grid.nw == 39 && x.grid.nh == 39);
    hash_is(x.resized, (size_t)(x.grid.nw * x.grid.nh * 3),
            "09a0e31332b90873ac2f63e3966004f001e1c1b48948a8f98e28e45078f27347", "ink");
    img_pixels_free(ctx, &x);
    img_free(ctx, &m);
}

/* ---- sizes */

static int64_t int_of(const tr_json *j, const char *key)
{
    int64_t i = -1;
    const tr_json_node *v = tr_json_get(j, j->node, key);
    if (v) (void)tr_json_int(j, v, &i);
    return i;
}

/* Every line of a file through fn. */
static void each_line(const char *name, void (*fn)(const tr_json *j, void *user), void *user,
                      int least)
{
    FILE *f = fopen(in_root(name), "rb");
    char line[1024];
    int n = 0;
    if (!f) stop(name);
    while (fgets(line, sizeof line, f)) {
        tr_json j;
        if (tr_json_parse(ctx, &j, name, line, strlen(line)) != TR_OK) stop(name);
        fn(&j, user);
        tr_json_free(&j);
        n++;
    }
    fclose(f);
    printf("  %s: %d lines\n", name, n);
    CHECK(n >= least);
}

static void k3_size(const tr_json *j, void *user)
{
    const img_proc *p = (const img_proc *)user;
    img_grid g;
    CHECK_OK(ctx, img_size(ctx, p, "k3", int_of(j, "w"), int_of(j, "h"), &g));
    CHECK(g.nw == int_of(j, "nw") && g.nh == int_of(j, "nh") && g.pw == int_of(j, "pw") &&
          g.ph == int_of(j, "ph") && g.tokens == int_of(j, "tokens"));
}

static void sizes_kimi(void)
{
    static const int64_t row[11][3] = {             /* the report's own check values */
        { 1, 1, 1 }, { 224, 224, 64 }, { 448, 448, 256 }, { 611, 437, 352 }, { 1920, 1080, 2691 },
        { 2800, 2800, 10000 }, { 3584, 3584, 16384 }, { 4000, 3000, 15444 }, { 8000, 8000, 16641 },
        { 10000, 100, 768 }, { 20000, 20, 256 }
    };
    img_proc p;
    img_grid g;
    kimi_proc(&p, "65536");
    each_line("k3_sizes.jsonl", k3_size, &p, 200);
    for (int i = 0; i < 11; i++) {
        CHECK_OK(ctx, img_size(ctx, &p, "k3", row[i][0], row[i][1], &g));
        CHECK(g.tokens == row[i][2]);
    }
}

static void qwen_size(const tr_json *j, void *user)
{
    img_proc p;
    img_grid g;
    (void)user;
    memset(&p, 0, sizeof p);
    p.family = IMG_QWEN;
    p.merge = 2;
    p.temporal = 2;
    p.patch = int_of(j, "factor") / 2;
    p.min_pixels = int_of(j, "min_pixels");
    p.max_pixels = int_of(j, "max_pixels");
    if (tr_json_get(j, j->node, "error")) {
        CHECK_FAILS(ctx, TR_ERR_RANGE, "200", img_size(ctx, &p, "qwen", int_of(j, "w"),
                                                       int_of(j, "h"), &g));
        return;
    }
    CHECK_OK(ctx, img_size(ctx, &p, "qwen", int_of(j, "w"), int_of(j, "h"), &g));
    CHECK(g.nw == int_of(j, "nw") && g.nh == int_of(j, "nh"));
}

static void sizes_qwen(void) { each_line("qwen_sizes.jsonl", qwen_size, NULL, 200); }

/* ---- Qwen's processor */

static void qwen_case(const char *path)
{
    char text[2048], file[600];
    tr_st f;
    img m;
    img_proc p;
    if (tr_st_open(ctx, &f, path, 0) != TR_OK) stop(path);
    int n = snprintf(text, sizeof text, "{\"image_processor_type\": \"%s\", \"size\": %s, "
                     "\"rescale_factor\": %s, \"resample\": %s, \"patch_size\": %s, "
                     "\"merge_size\": %s, \"temporal_patch_size\": %s, \"image_mean\": %s, "
                     "\"image_std\": %s}",
                     tr_st_meta(&f, "processor"), tr_st_meta(&f, "size"),
                     tr_st_meta(&f, "rescale_factor"), tr_st_meta(&f, "resample"),
                     tr_st_meta(&f, "patch_size"), tr_st_meta(&f, "merge_size"),
                     tr_st_meta(&f, "temporal_patch_size"), tr_st_meta(&f, "image_mean"),
                     tr_st_meta(&f, "image_std"));
    CHECK_OK(ctx, img_proc_parse(ctx, &p, path, text, (size_t)n, NULL, 0));
    snprintf(file, sizeof file, "files/%s", tr_st_meta(&f, "file"));
    if (img_load(ctx, &m, in_root(file), IMG_MAX_PIXELS) != TR_OK) stop(file);
    for (int order = 12; order <= 13; order++) {
        const tr_st_entry *e = order == 12 ? tr_st_find(&f, "pixel_values_pillow12") : NULL;
        const int64_t *thw = (const int64_t *)tr_st_find(&f, "image_grid_thw")->view.data;
        img_pixels x;
        if (!e) e = tr_st_find(&f, "pixel_values");
        CHECK_OK(ctx, img_process(ctx, &p, &m, (img_pillow)order, &x));
        CHECK(thw[1] == x.grid.gh && thw[2] == x.grid.gw);
        CHECK(e->bytes == (size_t)(x.grid.patches * x.grid.patch_len) * 4);
        if (e->bytes == (size_t)(x.grid.patches * x.grid.patch_len) * 4)
            test_bits(x.values, e->view.data, e->bytes, path, __FILE__, __LINE__);
        img_pixels_free(ctx, &x);
    }
    img_free(ctx, &m);
    tr_st_close(ctx, &f);
}

static void qwen_pixels(void)
{
    CHECK(each_case("qwen_vl", qwen_case) >= 2);
}

/* ---- processors that are refused */

#define KIMI_REST                                                                       \
    "\"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5], "                 \
    "\"merge_kernel_size\": 2, \"fixed_output_tokens\": null, \"patch_limit_on_one_side\": 512"
#define KIMI(first, more) "{\"media_proc_cfg\": {" first KIMI_REST more "}}"
#define SIZES "\"in_patch_limit\": 64, \"patch_size\": 14, "
#define QWEN(more) "{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 14, "   \
    "\"merge_size\": 2, \"temporal_patch_size\": 2, \"image_mean\": [0, 0, 0], "         \
    "\"image_std\": [1, 1, 1]" more "}"

static void configs(void)
{
    static const struct { const char *text; tr_status s; const char *words; } bad[] = {
        { "{}", TR_ERR_UNSUPPORTED, "p.json media_proc_cfg image_processor_type" },
        { "[1]", TR_ERR_UNSUPPORTED, "media_proc_cfg" },
        { "{\"media_proc_cfg\": 3}", TR_ERR_FORMAT, "media_proc_cfg 3 object" },
        { "{\"media_proc_cfg\": {}}", TR_ERR_MISSING, "media_proc_cfg.in_patch_limit" },
        { KIMI("\"patch_size\": 14, ", ""), TR_ERR_MISSING, "in_patch_limit" },
        { KIMI("\"in_patch_limit\": 64, ", ""), TR_ERR_MISSING, "patch_size" },
        { KIMI(SIZES, ", \"pad_color\": 0"), TR_ERR_UNSUPPORTED,
          "line 1 media_proc_cfg.pad_color" },
        { KIMI(SIZES, ", \"transparent_bg_config\": {\"pattern\": \"chessboard\"}"),
          TR_ERR_MISSING, "chessboard_square_size" },
        { KIMI(SIZES, ", \"transparent_bg_config\": {\"pattern\": \"none\"}"), TR_ERR_FORMAT,
          "pattern none" },
        { KIMI(SIZES, ", \"transparent_bg_fill_stage\": \"sometimes\""), TR_ERR_FORMAT,
          "sometimes after_resize|before_resize" },
        { KIMI("\"in_patch_limit\": 0, \"patch_size\": 14, ", ""), TR_ERR_FORMAT,
          "in_patch_limit 0" },
        { KIMI("\"in_patch_limit\": 1.5, \"patch_size\": 14, ", ""), TR_ERR_FORMAT, "1.5" },
        { KIMI("\"in_patch_limit\": 9, \"patch_size\": 2000, ", ""), TR_ERR_FORMAT, "2000 1024" },
        { "{\"media_proc_cfg\": {" SIZES "\"image_mean\": [0.5, 0.5]}}", TR_ERR_FORMAT,
          "image_mean three" },
        { "{\"media_proc_cfg\": {" SIZES "\"image_mean\": [0, 0, 0, 0]}}", TR_ERR_FORMAT,
          "image_mean three" },
        { "{\"media_proc_cfg\": {" SIZES "\"image_mean\": 0.5}}", TR_ERR_FORMAT, "image_mean" },
        { "{\"media_proc_cfg\": {" SIZES "\"image_std\": [0.5, 0, 0.5]}}", TR_ERR_FORMAT,
          "image_std positive" },
        { "{\"media_proc_cfg\": {" SIZES "\"image_std\": [0.5, 1e-9, 0.5]}}", TR_ERR_FORMAT,
          "image_std 1e-6" },
        { "{\"media_proc_cfg\": {" SIZES "\"fixed_output_tokens\": 64}}", TR_ERR_FORMAT,
          "fixed_output_tokens 64 null" },
        { QWEN(""), TR_ERR_MISSING, "size.shortest_edge min_pixels" },
        { QWEN(", \"min_pixels\": 3136"), TR_ERR_MISSING, "size.longest_edge max_pixels" },
        { QWEN(", \"min_pixels\": 3136, \"max_pixels\": 300"), TR_ERR_RANGE, "3136 300" },
        { QWEN(", \"min_pixels\": 3136, \"max_pixels\": 9000, \"size\": {\"longest_edge\": 9001}"),
          TR_ERR_FORMAT, "size.longest_edge 9001 9000" },
        { QWEN(", \"do_resize\": false"), TR_ERR_FORMAT, "do_resize false true" },
        { QWEN(", \"do_pad\": \"false\""), TR_ERR_FORMAT, "do_pad \"false\" null|false" },
        { QWEN(", \"do_resize\": \"true\""), TR_ERR_FORMAT, "do_resize \"true\" true" },
        { QWEN(", \"resample\": \"3\""), TR_ERR_FORMAT, "resample \"3\"" },
        { KIMI(SIZES, ", \"transparent_bg_config\": {\"chessboard_square_on_top_left\": "
          "\"false\"}"), TR_ERR_FORMAT, "top_left \"false\" false|true" },
        { QWEN(", \"resample\": 6"), TR_ERR_FORMAT, "resample 6" },
        { QWEN(", \"rescale_factor\": 0"), TR_ERR_FORMAT, "rescale_factor 0" },
        { QWEN(", \"rescale_factor\": 1e7"), TR_ERR_FORMAT, "rescale_factor 1e7 less than 1e6" },
        { QWEN(", \"size\": {\"height\": 224}"), TR_ERR_UNSUPPORTED, "size.height" },
        { "{\"image_processor_type\": \"Qwen2VLImageProcessorFast\"}", TR_ERR_FORMAT,
          "image_processor_type Qwen2VLImageProcessorFast" },
        { "{\"image_processor_type\": \"CLIPImageProcessor\"}", TR_ERR_FORMAT, "CLIP" },
        { "{\"media_proc_cfg\": {}, \"media_proc_cfg\": {}}", TR_ERR_FORMAT, "media_proc_cfg" },
        { "{", TR_ERR_FORMAT, "p.json" },
    };
    static const char fast[] = "{\"image_processor_type\": \"Qwen2VLImageProcessorFast\", "
        "\"patch_size\": 14, \"merge_size\": 2, \"temporal_patch_size\": 2, \"image_mean\": [0, 0, "
        "0], \"image_std\": [1, 1, 1], \"size\": {\"shortest_edge\": 4, \"longest_edge\": 9999}}";
    static const char *const accept[] = { "media_proc_cfg.pad_color", "image_processor_type" };
    const char *fine = KIMI(SIZES, ", \"pad_color\": 0");
    img_proc p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(ctx, bad[i].s, bad[i].words,
                    img_proc_parse(ctx, &p, "p.json", bad[i].text, strlen(bad[i].text), NULL, 0));
    CHECK_OK(ctx, img_proc_parse(ctx, &p, "p.json", fine, strlen(fine), accept, 2));
    CHECK(p.fill == IMG_FILL_NONE && p.fill_before == 1 && p.patch_limit == 64 && p.temporal == 1);
    CHECK_OK(ctx, img_proc_parse(ctx, &p, "p.json", fast, strlen(fast), accept, 2));
    CHECK(p.min_pixels == 4 && p.max_pixels == 9999 && p.filter == IMG_BICUBIC && p.temporal == 2);
    CHECK_FAILS(ctx, TR_ERR_IO, "nowhere/preprocessor_config.json",
                img_proc_load(ctx, &p, "nowhere", NULL, 0));
    CHECK(tr_ctx_bytes(ctx) == 0);
}

/* The values of all bytes under means that are no binary numbers: what numpy makes with the formula
 * of Kimi's media_utils, and what transformers' rescale and normalize make. */
static void normalized(void)
{
#define CLIP "\"image_mean\": [0.48145466, 0.4578275, 0.40821073], "     \
             "\"image_std\": [0.26862954, 0.26130258, 0.27577711], "
    static const struct { const char *text, *sha256; } row[2] = {
        { "{\"media_proc_cfg\": {" SIZES CLIP "\"merge_kernel_size\": 2, \"fixed_output_tokens\": "
          "null, \"patch_limit_on_one_side\": 512}}",
          "963d710b4e5d42c96bbc122dd791871678442f224097750e6083da8f9308ab05" },
        { "{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 14, "
          "\"merge_size\": 2, " CLIP "\"temporal_patch_size\": 2, \"min_pixels\": 4, "
          "\"max_pixels\": 9999}",
          "5d23c0b115c373c73875b37dce36aa6a54af484dd4332d5f9d07d6ebecb20900" },
    };
#undef CLIP
    img_proc p;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctx, img_proc_parse(ctx, &p, "p.json", row[i].text, strlen(row[i].text), NULL, 0));
        hash_is(p.value, sizeof p.value, row[i].sha256, i ? "Qwen's values" : "Kimi's values");
    }
}

/* ---- pictures made here */

typedef struct maker { uint8_t b[1 << 16]; size_t n; } maker;

static void put(maker *k, const void *p, size_t n) { memcpy(k->b + k->n, p, n); k->n += n; }

static void put32(maker *k, uint32_t v)
{
    const uint8_t b[4] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v };
    put(k, b, 4);
}

static void put_chunk(maker *k, const char *name, const void *p, size_t n)
{
    size_t at = k->n + 4;
    put32(k, (uint32_t)n);
    put(k, name, 4);
    if (n) put(k, p, n);
    put32(k, img_crc(k->b + at, n + 4));
}

static void put_ihdr(maker *k, uint32_t w, uint32_t h, int depth, int kind, int interlace)
{
    maker d;
    const uint8_t rest[5] = { (uint8_t)depth, (uint8_t)kind, 0, 0, (uint8_t)interlace };
    d.n = 0;
    put32(&d, w);
    put32(&d, h);
    put(&d, rest, 5);
    put_chunk(k, "IHDR", d.b, d.n);
}

/* Rows [n] as one stored block, which needs no deflater. */
static void put_idat(maker *k, const uint8_t *rows, size_t n)
{
    static maker d;
    uint32_t a = 1, b = 0;
    const uint8_t head[7] = { 0x78, 1, 1, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n,
                              (uint8_t)(~n >> 8) };
    d.n = 0;
    put(&d, head, 7);
    put(&d, rows, n);
    for (size_t i = 0; i < n; i++) { a = (a + rows[i]) % 65521; b = (b + a) % 65521; }
    put32(&d, b << 16 | a);
    put_chunk(k, "IDAT", d.b, d.n);
}

/* The last chunk's CRC, after its data [n] was changed. */
static void sum_again(maker *k, size_t n)
{
    k->n -= 4;
    put32(k, img_crc(k->b + k->n - n - 4, n + 4));
}

static void begin(maker *k) { k->n = 0; put(k, "\x89PNG\r\n\x1a\n", 8); }

static void refused(const maker *k, tr_status s, const char *words)
{
    img m;
    CHECK_FAILS(ctx, s, words, img_decode(ctx, &m, "made.png", k->b, k->n, IMG_MAX_PIXELS));
    CHECK(m.px == NULL);
}

/* Pillow's limits and words, and no memory for what a header only claims. */
static void bombs(void)
{
    static const uint8_t rows[64];
    static const struct { uint32_t w, h; tr_status s; const char *words; } row[] = {
        { 0, 1, TR_ERR_FORMAT, "made.png: 0 x 1" },   { 1, 0, TR_ERR_FORMAT, "1 x 0" },
        { 1u << 20, 1u << 20, TR_ERR_RANGE, "1048576 178956970" },
        { 0xffffffffu, 1, TR_ERR_RANGE, "4294967295" },
        { 0x7fffffff, 2, TR_ERR_RANGE, "2147483647" },
        { 1, 178956971, TR_ERR_RANGE, "178956971" },
        { 13000, 13000, TR_ERR_FORMAT, "13000 IDAT" }, { 1, 178956970, TR_ERR_FORMAT, "IDAT" },
        { 178956970, 1, TR_ERR_FORMAT, "IDAT" }, { 300, 300, TR_ERR_FORMAT, "IDAT" },
    };
    static maker k;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        size_t peak = tr_ctx_peak_bytes(ctx);
        begin(&k);
        put_ihdr(&k, row[i].w, row[i].h, 8, 2, (int)i & 1);
        put_idat(&k, rows, sizeof rows);
        put_chunk(&k, "IEND", NULL, 0);
        refused(&k, row[i].s, row[i].words);
        CHECK(tr_ctx_peak_bytes(ctx) - peak < 1 << 20);
    }
}

static void png_refused(void)
{
    static const uint8_t rows[7] = { 0, 1, 2, 3, 4, 5, 6 };
    static maker k;
    static const struct { const char *chunk; int n; const char *words; } odd[] = {
        { "PLTE", 4, "PLTE 4" }, { "PLTE", 0, "PLTE" }, { "tRNS", 4, "tRNS 4" },
        { "QUUX", 3, "QUUX" }, { "IHDR", 13, "IHDR twice" }
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        begin(&k);
        put_ihdr(&k, 2, 1, 8, 2, 0);
        put_chunk(&k, odd[i].chunk, rows, (size_t)odd[i].n % 8);
        put_idat(&k, rows, 7);
        put_chunk(&k, "IEND", NULL, 0);
        refused(&k, i == 3 ? TR_ERR_UNSUPPORTED : TR_ERR_FORMAT, odd[i].words);
    }
    begin(&k);
    put_ihdr(&k, 2, 1, 8, 2, 0);
    put_chunk(&k, "IEND", NULL, 0);
    refused(&k, TR_ERR_FORMAT, "no IDAT");
    begin(&k);
    put_idat(&k, rows, 7);
    refused(&k, TR_ERR_FORMAT, "IHDR first");
    begin(&k);
    put_ihdr(&k, 2, 1, 8, 2, 0);
    put_idat(&k, rows, 7);
    put_chunk(&k, "tEXt", rows, 3);
    put_idat(&k, rows, 7);
    refused(&k, TR_ERR_FORMAT, "IDATs");
    begin(&k);
    put_ihdr(&k, 2, 1, 8, 3, 0);
    put_chunk(&k, "tRNS", rows, 1);
    refused(&k, TR_ERR_FORMAT, "tRNS PLTE");
    begin(&k);
    put_ihdr(&k, 6, 1, 8, 0, 0);
    put_idat(&k, rows, 7);
    put_chunk(&k, "tRNS", rows, 2);                 /* Pillow would let it count */
    put_chunk(&k, "IEND", NULL, 0);
    refused(&k, TR_ERR_FORMAT, "tRNS after IDAT");
    begin(&k);
    put_ihdr(&k, 2, 1, 8, 3, 0);
    put_chunk(&k, "PLTE", rows, 3);
    put_idat(&k, rows, 3);
    put_chunk(&k, "IEND", NULL, 0);
    refused(&k, TR_ERR_RANGE, "colour 2 palette 1");
}

/* A file that ends early is refused at whatever byte, and one byte changed never gives another
 * picture in silence: it is refused, or it was in a chunk that nobody looks at. */
static void png_cut(void)
{
    static maker k, d;
    uint8_t rows[14];
    img m, n;
    for (int i = 0; i < 14; i++) rows[i] = (uint8_t)(i % 7 ? 37 * i : 4);
    begin(&k);
    put_ihdr(&k, 2, 2, 8, 2, 0);
    put_chunk(&k, "tEXt", rows, 5);
    put_idat(&k, rows, 14);
    put_chunk(&k, "IEND", NULL, 0);
    CHECK_OK(ctx, img_decode(ctx, &m, "made.png", k.b, k.n, IMG_MAX_PIXELS));
    for (size_t cut = 0; cut < k.n; cut++)
        CHECK(img_decode(ctx, &n, "made.png", k.b, cut, IMG_MAX_PIXELS) != TR_OK && !n.px);
    for (size_t at = 0; at < k.n; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(&d, &k, sizeof d);
            d.b[at] ^= (uint8_t)(1 << bit);
            if (img_decode(ctx, &n, "made.png", d.b, d.n, IMG_MAX_PIXELS) == TR_OK)
                CHECK(n.w == m.w && n.h == m.h && n.mode == m.mode && !memcmp(m.px, n.px, 12));
            img_free(ctx, &n);
        }
    put(&k, "tail", 4);
    test_log[0] = 0;
    CHECK_OK(ctx, img_decode(ctx, &n, "made.png", k.b, k.n, IMG_MAX_PIXELS));
    CHECK(strstr(test_log, "made.png: 4 bytes after") != NULL);
    img_free(ctx, &m);
    img_free(ctx, &n);
    CHECK(tr_ctx_bytes(ctx) == 0);
}

/* The sum behind the pixels is theirs, whatever the chunk's says; more may stand behind it. */
static void png_adler(void)
{
    static const uint8_t rows[7] = { 0, 1, 2, 3, 4, 5, 6 };
    enum { DATA = 7 + 7 + 4 };                      /* header, rows, sum */
    static maker k;
    img m;
    for (int at = 8; at <= DATA; at++) {            /* a pixel, or a byte of the sum */
        begin(&k);
        put_ihdr(&k, 2, 1, 8, 2, 0);
        put_idat(&k, rows, 7);
        if (at < DATA) k.b[k.n - 4 - (size_t)(DATA - at)] ^= 1;
        sum_again(&k, DATA);
        put_chunk(&k, "IEND", NULL, 0);
        if (at < DATA) refused(&k, TR_ERR_FORMAT, "made.png damaged Adler-32");
    }
    CHECK_OK(ctx, img_decode(ctx, &m, "made.png", k.b, k.n, IMG_MAX_PIXELS));
    img_free(ctx, &m);
    k.n -= 12 + 4;                                  /* IEND, and the sum of IDAT */
    put(&k, "tail", 4);
    k.b[8 + 25 + 3] += 4;
    put32(&k, 0);
    sum_again(&k, DATA + 4);
    put_chunk(&k, "IEND", NULL, 0);
    CHECK_OK(ctx, img_decode(ctx, &m, "made.png", k.b, k.n, IMG_MAX_PIXELS));
    CHECK(m.px && !memcmp(m.px, rows + 1, 6));
    img_free(ctx, &m);
}

static size_t file_read(const char *name, uint8_t *b, size_t room)
{
    FILE *f = fopen(in_root(name), "rb");
    size_t n = f ? fread(b, 1, room, f) : 0;
    if (!f) stop(name);
    fclose(f);
    return n;
}

/* A JPEG that ends early, at whatever byte, is refused too. */
static void jpeg_cut(void)
{
    static uint8_t b[1 << 16];
    size_t n = file_read("files/jpeg_7x9.jpg", b, sizeof b);
    img m;
    for (size_t cut = 0; cut < n; cut++)
        CHECK(img_decode(ctx, &m, "x", b, cut, IMG_MAX_PIXELS) != TR_OK && !m.px);
    memcpy(b + n, "tail", 4);
    test_log[0] = 0;
    CHECK_OK(ctx, img_decode(ctx, &m, "x.jpg", b, n + 4, IMG_MAX_PIXELS));
    CHECK(strstr(test_log, "x.jpg: 4 bytes after") != NULL);
    img_free(ctx, &m);
}

/* Where marker FFxx begins in a file. */
static size_t marker_at(const uint8_t *b, size_t n, int marker)
{
    for (size_t i = 2; i + 1 < n; i++)
        if (b[i] == 0xff && b[i + 1] == marker) return i;
    stop("a marker");
    return 0;
}

/* Damage that a decoder could paint over, and headers that claim too much. */
static void jpeg_damaged(void)
{
    static const struct {
        const char *file;
        int marker, ahead;                  /* the damage begins so many bytes after that marker */
        const char *bytes, *words;
    } row[] = {
        { "files/jpeg_restart.jpg", 0xd1, 0, "\xff\xd5", "marker 0xd5" },
        { "files/jpeg_restart.jpg", 0xd1, 0, "\xff\xd9", "Corrupt" },
        { "files/jpeg_444.jpg", 0xda, 99, "\xff\xd9", "premature end" },
        { "files/jpeg_progressive_444.jpg", 0xda, 99, "\xff\0\xff\0\xff\0\xff\0", "Huffman code" },
        { "files/jpeg_7x9.jpg", 0xd9, 0, "\xff\xfe", "end" },
    };
    static uint8_t b[1 << 16];
    size_t n, at, peak;
    img m;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        n = file_read(row[i].file, b, sizeof b);
        at = marker_at(b, n, row[i].marker) + (size_t)row[i].ahead;
        memcpy(b + at, row[i].bytes, row[i].bytes[1] ? 2 : 8);
        if (row[i].marker == 0xd9) memcpy(b + n, "\0\2", 2);        /* an empty comment instead */
        n += row[i].marker == 0xd9 ? 2 : 0;
        CHECK_FAILS(ctx, TR_ERR_FORMAT, "x: JPEG", img_decode(ctx, &m, "x", b, n, IMG_MAX_PIXELS));
        CHECK(!m.px && strstr(tr_err_last(ctx), row[i].words) != NULL);
    }
    n = file_read("files/jpeg_420.jpg", b, sizeof b);
    at = marker_at(b, n, 0xc0);                     /* height and width of the frame */
    memcpy(b + at + 5, "\x27\x10\x27\x10", 4);
    peak = tr_ctx_peak_bytes(ctx);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "x 10000 bytes",
                img_decode(ctx, &m, "x", b, n, IMG_MAX_PIXELS));
    CHECK(tr_ctx_peak_bytes(ctx) == peak);
    memcpy(b + at + 5, "\xff\xdc\xff\xdc", 4);
    CHECK_FAILS(ctx, TR_ERR_RANGE, "65500 178956970",
                img_decode(ctx, &m, "x", b, n, IMG_MAX_PIXELS));
}

/* The first scan of a progressive JPEG, again and again: twice is odd and said, six hundred times
 * is an attack. */
static void jpeg_scans(void)
{
    static uint8_t c[1 << 16];
    static const int times[2] = { 2, 600 };
    tr_st f;
    img m;
    if (tr_st_open(ctx, &f, "tests/golden/images/jpeg.safetensors", 0) != TR_OK) stop("the JPEGs");
    const tr_st_entry *e = f.entry;
    while (strncmp(e->name, "grey_progressive_", 17) || strstr(e->name, "restart")) e++;
    const uint8_t *b = (const uint8_t *)e->view.data;
    size_t at = marker_at(b, e->bytes, 0xda), end = at + 2;
    while (b[end] != 0xff || b[end + 1] == 0) end++;
    for (int i = 0; i < 2; i++) {
        size_t n = end, len = end - at;
        memcpy(c, b, end);
        for (int k = 1; k < times[i] && n + e->bytes < sizeof c; k++, n += len)
            memcpy(c + n, b + at, len);
        memcpy(c + n, b + end, e->bytes - end);
        n += e->bytes - end;
        test_log[0] = 0;
        if (i == 0) CHECK_OK(ctx, img_decode(ctx, &m, "x.jpg", c, n, IMG_MAX_PIXELS));
        if (i == 0) CHECK(strstr(test_log, "x.jpg: JPEG: Inconsistent") != NULL);
        if (i == 1) CHECK_FAILS(ctx, TR_ERR_FORMAT, "x.jpg more 500 scans",
                                img_decode(ctx, &m, "x.jpg", c, n, IMG_MAX_PIXELS));
        img_free(ctx, &m);
    }
    tr_st_close(ctx, &f);
}

/* A file that ends in good order, but before its last scan, or without any of a component: the
 * library would fill the gap by itself. */
static void jpeg_scan_missing(void)
{
    static uint8_t c[1 << 16];
    size_t n, at, scans = 0;
    tr_st f;
    img m;
    if (tr_st_open(ctx, &f, "tests/golden/images/jpeg.safetensors", 0) != TR_OK) stop("the JPEGs");
    const tr_st_entry *e = f.entry;
    while (strncmp(e->name, "grey_progressive_", 17)) e++;
    memcpy(c, e->view.data, e->bytes);
    for (n = marker_at(c, e->bytes, 0xda) + 1; n + 1 < e->bytes; n++) {
        if (c[n] != 0xff || c[n + 1] != 0xda) continue;
        c[n + 1] = 0xd9;
        CHECK_FAILS(ctx, TR_ERR_FORMAT, "x.jpg: JPEG component 0 scan missing",
                    img_decode(ctx, &m, "x.jpg", c, n + 2, IMG_MAX_PIXELS));
        c[n + 1] = 0xda;
        scans++;
    }
    CHECK(scans >= 4);
    tr_st_close(ctx, &f);
    n = file_read("files/jpeg_grey.jpg", c, sizeof c);
    at = marker_at(c, n, 0xc0);                     /* one component becomes three */
    memmove(c + at + 13 + 6, c + at + 13, n - at - 13);
    memcpy(c + at + 13, "\x02\x11\x00\x03\x11\x00", 6);
    c[at + 3] = 17;
    c[at + 9] = 3;
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "x.jpg: JPEG component 1 scan missing",
                img_decode(ctx, &m, "x.jpg", c, n + 6, IMG_MAX_PIXELS));
    CHECK(tr_ctx_bytes(ctx) == 0);
}

/* What the model will not see as a viewer shows it is said; what is upright and dark is not. */
static void warnings(void)
{
    static const struct { const char *file, *words; } row[] = {
        { "files/jpeg_exif3.jpg", "orientation 3" }, { "files/jpeg_exif6.jpg", "orientation 6" },
        { "files/jpeg_exif8.jpg", "orientation 8" },
        { "files/grey16.png", "16-bit grey" }, { "files/jpeg_420.jpg", NULL },
        { "files/jpeg_cmyk.jpg", NULL }, { "files/rgb16.png", NULL }, { "files/grey8.png", NULL },
    };
    static const uint8_t rows[4] = { 0, 1, 2, 3 };
    static maker k;
    img m;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        test_log[0] = 0;
        CHECK_OK(ctx, img_load(ctx, &m, in_root(row[i].file), IMG_MAX_PIXELS));
        CHECK(row[i].words ? strstr(test_log, row[i].words) != NULL : !test_log[0]);
        img_free(ctx, &m);
    }
    for (int turn = 0; turn <= 9; turn++) {         /* little-endian, behind another entry */
        char exif[] = "II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0A\0\0\0"
                      "\x12\x01\x03\0\x01\0\0\0?\0\0";
        exif[30] = (char)turn;
        begin(&k);
        put_ihdr(&k, 1, 1, 8, 2, 0);
        put_chunk(&k, "eXIf", exif, sizeof exif);
        put_idat(&k, rows, 4);
        put_chunk(&k, "IEND", NULL, 0);
        test_log[0] = 0;
        CHECK_OK(ctx, img_decode(ctx, &m, "made.png", k.b, k.n, IMG_MAX_PIXELS));
        CHECK(m.orientation == (turn <= 8 ? turn : 0) && !test_log[0] == (turn < 2 || turn == 9));
        img_free(ctx, &m);
    }
}

/* A JPEG of one component: bits, height and width, then a scan without tables and without data. */
#define FRAME(bits, size) "\xff\xd8\xff\xc0\x00\x0b" bits size "\x01\x01\x11\x00" \
    "\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\xff\xd9"

static void others_refused(void)
{
    static const struct { const char *bytes; size_t n; tr_status s; const char *words; } row[] = {
        { "", 0, TR_ERR_UNSUPPORTED, "x: empty" },
        { "GIF89a", 6, TR_ERR_UNSUPPORTED, "neither PNG JPEG" },
        { "\xff\xd8\xff\xd9", 4, TR_ERR_FORMAT, "x: JPEG no image" },
        { "\xff\xd8\xff\xe0\x00", 5, TR_ERR_FORMAT, "end" },
        { "\xff\xd8\xff\xe0\x00\x01", 6, TR_ERR_FORMAT, "end" },
        { "\xff\xd8\xff\xc3\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00", 15, TR_ERR_UNSUPPORTED,
          "SOF 0xc3" },
        { FRAME("\x0c", "\x00\x01\x00\x01"), 27, TR_ERR_UNSUPPORTED, "precision 12" },
        { FRAME("\x08", "\x00\x00\x00\x01"), 27, TR_ERR_FORMAT, "Empty" },
        { FRAME("\x08", "\xff\x00\xff\x00"), 27, TR_ERR_RANGE, "65280" },
        { FRAME("\x08", "\xff\xff\xff\xff"), 27, TR_ERR_FORMAT, "65500" },
        { FRAME("\x08", "\x00\x01\x00\x01"), 27, TR_ERR_FORMAT, "table" },
        { "\xff\xd8\xff\xc0\x00\x0e\x08\x00\x01\x00\x01\x02\x01\x11\x00\x02\x11\x00\xff\xda\x00\x0a"
          "\x02\x01\x00\x02\x00\x00\x3f\x00\xff\xd9", 32, TR_ERR_UNSUPPORTED, "2 components" },
        { "\xff\xd8\xff\xc4\x00\x13\x00\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 23,
          TR_ERR_FORMAT, "Huffman" },
        { "\xff\xd8\xff\xdb\x00\x04\x05\x00", 8, TR_ERR_FORMAT, "DQT 5" },
        { "\xff\xd8\xff\xda\x00\x02\xff\xd9", 8, TR_ERR_FORMAT, "SOS SOF" },
    };
    img m;
    img_proc p;
    img_grid g;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        CHECK_FAILS(ctx, row[i].s, row[i].words,
                    img_decode(ctx, &m, "x", row[i].bytes, row[i].n, IMG_MAX_PIXELS));
    CHECK_FAILS(ctx, TR_ERR_IO, "nowhere.png", img_load(ctx, &m, "nowhere.png", IMG_MAX_PIXELS));
    CHECK_FAILS(ctx, TR_ERR_IO, "tests", img_load(ctx, &m, "tests", IMG_MAX_PIXELS));
    kimi_proc(&p, "65536");
    p.side_limit = 1;                               /* less than a token's two patches */
    CHECK_FAILS(ctx, TR_ERR_RANGE, "2 1", img_size(ctx, &p, "x", 9, 9, &g));
    p.side_limit = (int64_t)1 << 40;
    p.merge = 1024;
    p.patch = 1024;
    CHECK_FAILS(ctx, TR_ERR_RANGE, "1048576", img_size(ctx, &p, "x", 9, 9, &g));
}

static tr_status all_of_it(tr_ctx *c, void *user)
{
    const maker *k = (const maker *)user;
    img_proc p;
    img m;
    img_pixels x;
    tr_status s;
    const char *text = KIMI("\"in_patch_limit\": 1, \"patch_size\": 1, ", "");
    s = img_proc_parse(c, &p, "p", text, strlen(text), NULL, 0);
    if (s == TR_OK) s = img_decode(c, &m, "made.png", k->b, k->n, IMG_MAX_PIXELS);
    if (s == TR_OK) {
        p.fill_before = 0;
        s = img_process(c, &p, &m, IMG_PILLOW_12, &x);
        img_free(c, &m);
        if (s == TR_OK) img_pixels_free(c, &x);
    }
    return s;
}

static void memory_fails(void)
{
    static maker k;
    uint8_t rows[39];
    memset(rows, 0, sizeof rows);
    begin(&k);
    put_ihdr(&k, 3, 3, 8, 6, 0);
    put_idat(&k, rows, 39);
    put_chunk(&k, "IEND", NULL, 0);
    CHECK(test_sweep(all_of_it, &k) >= 10);
}

int main(int argc, char **argv)
{
    if (argc > 1) root = argv[1];
    ctx = test_ctx();
    TEST(pil_resize);
    TEST(resize_clones);
    TEST(files_png);
    TEST(files_jpeg);
    TEST(jpeg_kinds);
    TEST(ink_shrinks);
    TEST(warnings);
    TEST(normalized);
    TEST(sizes_kimi);
    TEST(sizes_qwen);
    TEST(qwen_pixels);
    TEST(configs);
    TEST(bombs);
    TEST(png_refused);
    TEST(png_cut);
    TEST(png_adler);
    TEST(jpeg_cut);
    TEST(jpeg_damaged);
    TEST(jpeg_scans);
    TEST(jpeg_scan_missing);
    TEST(others_refused);
    TEST(memory_fails);
    tr_ctx_free(ctx);
    return test_end();
}
