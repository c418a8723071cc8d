/* test_par.c - what the host program may do around the library without moving a bit: another
 * rounding mode, flushed subnormals, any number of threads, calls from inside its own parallel
 * regions and from several threads at a time, OpenMP's environment; and weights that lie at any
 * address. Models run the shortest prompt of bits.h against its known answer.
 *
 * usage: test_par [CASES]; test_par CASES THREADS prints the hashes alone, for itself */
#define TRILLION_IMPLEMENTATION
#include "test.h"
#include "bits.h"
#include <fenv.h>
#include <sys/stat.h>
#if defined(_OPENMP)
#include <pthread.h>                /* comes with -fopenmp */
#endif

static const char *root = "tests/golden", *self;

static const bits_cell brief = { 7, 1, BITS_PROMPTS - 1 };

static tr_model *open_model(tr_ctx *ctx, size_t model)
{
    char dir[1024];
    tr_model *m;
    snprintf(dir, sizeof dir, "%s/%s", root, bits_models[model].dir);
    if (tr_model_open(ctx, &m, dir, NULL) == TR_OK) return m;
    printf("  %s\n", tr_err_last(ctx));
    return NULL;
}

static int is_known(size_t model, const bits_hash *h)
{
    bits_hash want;
    return bits_known(root, bits_models[model].name, brief.prompt, &want) && bits_equal(h, &want);
}

/* Opens and runs a model in a context that is there; 1 if every bit is as known. Calls no CHECK, so
 * that several threads may. */
static int runs_right(tr_ctx *ctx, size_t model)
{
    bits_hash h;
    tr_model *m = open_model(ctx, model);
    int good = m && bits_run(ctx, m, brief, 0, &h) == TR_OK && is_known(model, &h);
    tr_model_close(m);
    return good;
}

static int right_with(tr_cpu cpu, int threads, size_t model)
{
    tr_ctx *ctx = bits_ctx(cpu, threads);
    int good = ctx && runs_right(ctx, model);
    tr_ctx_free(ctx);
    return good;
}

/* ---- rounding and subnormals ------------------------------------------------ */

/* mxcsr: bits to flip. words: what tr_ctx_new says under it. Exceptions that trap would end the
 * program where one is raised. */
typedef struct host_mode {
    const char *name;
    int round;
    unsigned mxcsr;
    const char *words;
} host_mode;

static const host_mode modes[] = {
#if defined(FE_UPWARD)
    { "upward",          FE_UPWARD,     0,                  "round nearest" },
    { "downward",        FE_DOWNWARD,   0,                  "round nearest" },
    { "towards zero",    FE_TOWARDZERO, 0,                  "round nearest" },
#endif
#if defined(__GNUC__) && defined(__SSE2__)
    { "flush to zero",   FE_TONEAREST,  0x8000,             "subnormal" },
    { "subnormal is 0",  FE_TONEAREST,  0x0040,             "subnormal" },
    { "both",            FE_TONEAREST,  0x8040,             "subnormal" },
    { "all, upward",     FE_UPWARD,     0x8040,             "" },
    { "traps",           FE_TONEAREST,  0x0e80,             NULL },
#endif
    { "nothing",         FE_TONEAREST,  0,                  NULL }
};
#define MODES ((int)(sizeof modes / sizeof modes[0]))

static unsigned get_mxcsr(void)
{
#if defined(__GNUC__) && defined(__SSE2__)
    return __builtin_ia32_stmxcsr() & 0xffc0u;
#else
    return 0;
#endif
}

static void flip_mxcsr(unsigned bits)
{
#if defined(__GNUC__) && defined(__SSE2__)
    if (bits) __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() ^ bits) & 0xffc0u);
#else
    (void)bits;
#endif
}

static void enter(const host_mode *m) { fesetround(m->round); flip_mxcsr(m->mxcsr); }
static void leave(const host_mode *m) { flip_mxcsr(m->mxcsr); fesetround(FE_TONEAREST); }

/* Everything that the library computes outside of models, to one hash. */
static void small_calls(tr_ctx *ctx, char hex[65])
{
    static const char text[] = "[0.3, 0.1, 1e-310, 0.7, 123456789.123456789, 3.3e-5]";
    static double big[1] = { 1e39 };        /* rounded towards zero it would be finite */
    float x[64], y[64], tie[3] = { 1e-45f, 3e-45f, -1 };
    double d[64], inv[8], mult;
    unsigned char q[64];
    float scale[4];
    int32_t best;
    tr_json j;
    tr_rope_cfg rope;
    tr_diff diff;
    tr_weight w;
    tr_sha256 s;
    tr_norm_args norm;
    memset(&rope, 0, sizeof rope);
    memset(&norm, 0, sizeof norm);
    memset(q, 0, sizeof q);
    memset(scale, 0, sizeof scale);
    for (int i = 0; i < 64; i++) {          /* one in four is subnormal */
        int64_t u = (int64_t)(tr_rng_u64(1, 2, (uint64_t)i) & 0x7fffff) + 1;
        x[i] = tr_f32_from_bits((uint32_t)u | (i % 4 ? 0x3f000000u : 0));
    }
    tr_sha256_init(&s);
    CHECK_OK(ctx, tr_json_parse(ctx, &j, "numbers", text, strlen(text)));
    for (const tr_json_node *n = tr_json_first(&j, j.node); n; n = tr_json_next(&j, n)) {
        CHECK_OK(ctx, tr_json_num(&j, n, &mult));
        tr_sha256_update(&s, &mult, sizeof mult);
    }
    tr_json_free(&j);
    rope.kind = TR_ROPE_YARN;
    rope.theta = 10000;
    rope.dim = 16;
    rope.factor = 40;
    rope.orig = 4096;
    rope.beta_fast = 32;
    rope.beta_slow = 1;
    CHECK_OK(ctx, tr_rope_freqs_f64(ctx, inv, &mult, &rope));
    tr_sha256_update(&s, inv, sizeof inv);
    tr_sha256_update(&s, &mult, sizeof mult);
    CHECK_OK(ctx, tr_view_copy(ctx, tr_view1(d, TR_F64, 64), tr_view1(x, TR_F32, 64)));
    tr_sha256_update(&s, d, sizeof d);
    CHECK_OK(ctx, tr_diff_views(ctx, &diff, tr_view1(x, TR_F32, 63), tr_view1(x + 1, TR_F32, 63)));
    tr_sha256_update(&s, &diff, sizeof diff);
    CHECK_OK(ctx, tr_quantize(ctx, tr_qformat_get(TR_FMT_FP8_BLOCK), q, scale, x, 4, 16, 2, 8));
    tr_sha256_update(&s, q, sizeof q);
    tr_sha256_update(&s, scale, sizeof scale);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_FP8_BLOCK), "w", q, scale, 4, 16, 2,
                               8));
    CHECK_OK(ctx, tr_weight_check(ctx, &w));
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F64), "big", big, NULL, 1, 1, 0, 0));
    CHECK(tr_weight_check(ctx, &w) == TR_ERR_NOT_FINITE);
    best = tr_argmax(tr_view1(tie, TR_F32, 3));
    tr_sha256_update(&s, &best, sizeof best);
    norm.y = tr_view2(y, TR_F32, 4, 16);
    norm.x = tr_view2(x, TR_F32, 4, 16);
    norm.eps = 1e-5;
    norm.scale = 0.1;
    norm.groups = 1;
    CHECK_OK(ctx, tr_norm(ctx, &norm));
    tr_sha256_update(&s, y, sizeof y);
    tr_sha256_hex(&s, hex);
}

/* The host changes its mode when the context is already there. */
static void host_changes_later(void)
{
    char want[65], got[65];
    for (int i = MODES - 1; i >= 0; i--) {          /* plain first */
        int threads = 1 + i % 2, round, good = 1;
        tr_ctx *ctx = bits_ctx(TR_CPU_BEST, threads);
        unsigned before, after;
        CHECK(ctx);
        if (!ctx) return;
        enter(&modes[i]);
        before = get_mxcsr();
        small_calls(ctx, got);
        for (size_t m = 0; m < BITS_MODELS; m++) good &= runs_right(ctx, m);
        round = fegetround();
        after = get_mxcsr();
        leave(&modes[i]);
        if (i == MODES - 1) memcpy(want, got, sizeof want);
        if (!good || strcmp(want, got) || round != modes[i].round || after != before) {
            test_bad++;
            printf("  %s, %d threads: models %s, small calls %s, mode %s\n", modes[i].name, threads,
                   good ? "right" : "DIFFER", strcmp(want, got) ? "DIFFER" : "right",
                   round == modes[i].round && after == before ? "kept" : "CHANGED");
        }
        CHECK(tr_ctx_bytes(ctx) == 0);
        tr_ctx_free(ctx);
    }
}

/* Taps, and so everything around them, run under the contract's mode. */
typedef struct tap_modes { int64_t taps, others; } tap_modes;

static tr_status look_at_mode(void *user, tr_ctx *ctx, const tr_tap *t)
{
    tap_modes *m = (tap_modes *)user;
    (void)ctx;
    (void)t;
    m->taps++;
    m->others += fegetround() != FE_TONEAREST || (get_mxcsr() & 0x8040) != 0;
    return TR_OK;
}

static void taps_see_the_contracts_mode(void)
{
    for (int i = 0; i < MODES; i++) {
        tr_ctx *ctx = bits_ctx(TR_CPU_BEST, 1);
        tr_model *m = ctx ? open_model(ctx, BITS_MODELS - 1) : NULL;
        static const char *const all[] = { "*" };
        tr_run_opts o = tr_run_opts_default();
        tr_run *r = NULL;
        int32_t ids[3] = { 1, 2, 3 }, next;
        tap_modes seen = { 0, 0 };
        o.tap = look_at_mode;
        o.tap_user = &seen;
        o.globs = all;
        o.n_globs = 1;
        CHECK(m);
        if (!m) return;
        CHECK_OK(ctx, tr_run_new(ctx, &r, m, &o));
        enter(&modes[i]);
        CHECK_OK(ctx, tr_generate(r, ids, 3, 1, &next));
        CHECK_OK(ctx, tr_tap_state(r));
        leave(&modes[i]);
        CHECK(seen.taps > 0 && seen.others == 0);
        tr_run_free(r);
        tr_model_close(m);
        tr_ctx_free(ctx);
    }
}

/* And before: the context says what is wrong and can be freed. */
static void host_changed_before(void)
{
    for (int i = 0; i < MODES; i++)
        for (int c = TR_CPU_BASE; c < TR_CPU_COUNT; c++) {
            tr_ctx_opts o;
            tr_ctx *ctx;
            tr_status s;
            memset(&o, 0, sizeof o);
            o.cpu = (tr_cpu)c;
            enter(&modes[i]);
            s = tr_ctx_new(&ctx, &o);
            leave(&modes[i]);
            if (s != TR_OK && strstr(tr_err_last(ctx), "this machine")) s = TR_OK;
            else if (modes[i].words) CHECK_FAILS(ctx, TR_ERR_UNSUPPORTED, modes[i].words, s);
            else CHECK_OK(ctx, s);
            tr_ctx_free(ctx);
        }
}

/* ---- threads ------------------------------------------------------------------ */

static void more_threads_than_cores(void)
{
    for (size_t m = 0; m < BITS_MODELS; m++) CHECK(right_with(TR_CPU_BEST, m ? 16 : 64, m));
}

static void inside_a_parallel_region(void)
{
    int bad = 0;
#if defined(_OPENMP)
    omp_set_max_active_levels(2);       /* the library's own region is the second */
#pragma omp parallel for num_threads(3) schedule(static, 1) reduction(+ : bad)
#endif
    for (int i = 0; i < 6; i++) bad += !right_with(TR_CPU_BEST, 2 + i / 3, (size_t)i % BITS_MODELS);
    CHECK(bad == 0);
#if defined(_OPENMP)
    omp_set_max_active_levels(1);       /* and here it gets one thread, whatever it asks for */
#pragma omp parallel for num_threads(3) schedule(static, 1) reduction(+ : bad)
    for (int i = 0; i < 3; i++) bad += !right_with(TR_CPU_BEST, 5, (size_t)i);
    CHECK(bad == 0);
#endif
}

/* Two contexts at once, in threads of the host, on different cpus. */
#if defined(_OPENMP)
typedef struct worker { tr_cpu cpu; int threads, good; } worker;

static void *work(void *user)
{
    worker *w = (worker *)user;
    w->good = 1;
    for (size_t m = 0; m < BITS_MODELS; m++) w->good &= right_with(w->cpu, w->threads, m);
    return NULL;
}

static void two_contexts_at_once(void)
{
    worker w[2] = { { TR_CPU_BASE, 2, 0 }, { TR_CPU_BEST, 3, 0 } };
    pthread_t id[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&id[i], NULL, work, &w[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(id[i], NULL) == 0);
    CHECK(w[0].good && w[1].good);
}

/* What OpenMP reads from the environment, it reads when a program begins: so another one. */
static void openmp_environment(void)
{
    static const struct { const char *set; int threads; } row[] = {     /* 0: what it offers */
        { "OMP_THREAD_LIMIT=1", 7 }, { "OMP_THREAD_LIMIT=2", 0 }, { "OMP_NUM_THREADS=5", 0 },
        { "OMP_DYNAMIC=true OMP_NUM_THREADS=8", 7 },
        { "OMP_NUM_THREADS=3,2 OMP_MAX_ACTIVE_LEVELS=3", 0 },
        { "OMP_SCHEDULE=dynamic,1 OMP_PROC_BIND=true", 3 }
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char command[2200], line[256], name[64];
        bits_hash h;
        size_t m = 0;
        FILE *p;
        snprintf(command, sizeof command, "%s OMP_WAIT_POLICY=passive '%s' '%s' %d", row[i].set,
                 self, root, row[i].threads);
        p = popen(command, "r");
        CHECK(p);
        while (p && m < BITS_MODELS && fgets(line, sizeof line, p) &&
               sscanf(line, "%63s %64s %64s %64s", name, h.logits, h.taps, h.state) == 4 &&
               is_known(m, &h)) m++;
        CHECK(p && pclose(p) == 0 && m == BITS_MODELS);
        if (m < BITS_MODELS) printf("  %s\n", command);
    }
}
#endif

static int print_hashes(int threads)
{
    tr_ctx *ctx = bits_ctx(TR_CPU_BEST, threads);
    for (size_t i = 0; ctx && i < BITS_MODELS; i++) {
        bits_hash h;
        tr_model *m = open_model(ctx, i);
        if (!m || bits_run(ctx, m, brief, 0, &h) != TR_OK) return 1;
        printf("%s %s %s %s\n", bits_models[i].name, h.logits, h.taps, h.state);
        tr_model_close(m);
    }
    tr_ctx_free(ctx);
    return !ctx;
}

/* ---- addresses ------------------------------------------------------------------ */

/* y = x W^T and rows of W, from storage that begins `off` bytes behind a multiple of 64. */
static void at_any_address(void)
{
    enum { ROWS = 7, COLS = 96, N = 2 };
    static float x[ROWS * COLS];
    static unsigned char q[ROWS * COLS * 8], s[ROWS * COLS];
    static unsigned char block[80 + sizeof q], scales[80 + sizeof s];
    tr_ctx *ctx = bits_ctx(TR_CPU_BEST, 1);
    CHECK(ctx);
    if (!ctx) return;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)tr_rng_normal(3, 1, (uint64_t)i);
    for (int c = TR_CPU_BASE; c <= (int)tr_ctx_cpu(ctx); c++) {
        tr_ctx *here = bits_ctx((tr_cpu)c, 1);
        for (int f = 0; f < TR_FORMAT_COUNT; f++) {
            const tr_qformat *format = tr_qformat_get((tr_format)f);
            size_t q_bytes, s_bytes;
            float want[N * ROWS + COLS], got[N * ROWS + COLS];
            CHECK_OK(here, tr_qformat_bytes(here, format, ROWS, COLS, 3, 32, &q_bytes, &s_bytes));
            CHECK_OK(here, tr_quantize(here, format, q, s, x, ROWS, COLS, 3, 32));
            for (size_t off = 0; off < 16; off++) {
                unsigned char *at = block + (64 - (uintptr_t)block % 64) % 64 + off;
                unsigned char *sat = scales + (64 - (uintptr_t)scales % 64) % 64 + off;
                int32_t id = 5;
                tr_weight w;
                tr_matmul_args a;
                tr_embed_args e;
                memcpy(at, q, q_bytes);
                memcpy(sat, s, s_bytes);
                CHECK_OK(here, tr_weight_of(here, &w, format, "w", at, sat, ROWS, COLS, 3, 32));
                CHECK_OK(here, tr_weight_check(here, &w));
                memset(&a, 0, sizeof a);
                a.y = tr_view2(got, TR_F32, N, ROWS);
                a.x = tr_view2(x + 11, TR_F32, N, COLS);
                a.w = &w;
                CHECK_OK(here, tr_matmul(here, &a));
                e.y = tr_view2(got + N * ROWS, TR_F32, 1, COLS);
                e.ids = tr_view1(&id, TR_I32, 1);
                e.w = &w;
                CHECK_OK(here, tr_embed(here, &e));
                if (off == 0) memcpy(want, got, sizeof want);
                else test_bits(got, want, sizeof want, format->name, __FILE__, __LINE__);
            }
        }
        tr_ctx_free(here);
    }
    tr_ctx_free(ctx);
}

static int copy_file(const char *to, const char *from, size_t pad)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    unsigned char length[8], buf[4096];
    uint64_t n = 0;
    size_t k;
    int good = in && out && fread(length, 1, 8, in) == 8;
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((n + pad) >> 8 * i);
    if (pad && good) good = fwrite(length, 1, 8, out) == 8;
    else if (good) rewind(in);
    for (; pad && good && n > 0; n -= k) {
        k = fread(buf, 1, n < sizeof buf ? (size_t)n : sizeof buf, in);
        good = k > 0 && fwrite(buf, 1, k, out) == k;
    }
    for (size_t i = 0; good && i < pad; i++) good = fputc(' ', out) == ' ';
    while (good && (k = fread(buf, 1, sizeof buf, in)) > 0) good = fwrite(buf, 1, k, out) == k;
    if (in) fclose(in);
    if (out) good &= fclose(out) == 0;
    return good;
}

/* A file whose header is some blanks longer: all of its tensors lie elsewhere. */
static void file_at_any_address(void)
{
    char from[1200];
    snprintf(from, sizeof from, "%s/families/llama3/config.json", root);
    mkdir("build", 0777);               /* either may be there */
    mkdir("build/moved", 0777);
    CHECK(copy_file("build/moved/config.json", from, 0));
    snprintf(from, sizeof from, "%s/families/llama3/model.safetensors", root);
    for (size_t pad = 1; pad < 16; pad += 4) {
        tr_ctx *ctx = bits_ctx(TR_CPU_BEST, 1);
        tr_model *m = NULL;
        bits_hash h;
        CHECK(ctx && copy_file("build/moved/model.safetensors", from, pad));
        if (!ctx) return;
        CHECK_OK(ctx, tr_model_open(ctx, &m, "build/moved", NULL));
        if (m) CHECK_OK(ctx, bits_run(ctx, m, brief, 0, &h));
        CHECK(m && is_known(BITS_MODELS - 1, &h));
        tr_model_close(m);
        tr_ctx_free(ctx);
    }
}

int main(int argc, char **argv)
{
    bits_hash h;
    self = argv[0];
    if (argc > 1) root = argv[1];
    if (argc > 2) return print_hashes(atoi(argv[2]));
    if (!bits_known(root, bits_models[0].name, 0, &h)) {
        printf("skipped: %s has no bits.txt\n", root);
        return test_end();
    }
    TEST(host_changes_later);
    TEST(taps_see_the_contracts_mode);
    TEST(host_changed_before);
    TEST(more_threads_than_cores);
    TEST(inside_a_parallel_region);
#if defined(_OPENMP)
    TEST(two_contexts_at_once);
    TEST(openmp_environment);
#endif
    TEST(at_any_address);
    TEST(file_at_any_address);
    return test_end();
}
