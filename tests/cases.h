/* cases.h - the operator cases of a folder like tests/golden: NAME.safetensors in its ops/ lists
 * its cases in the metadata, and a test runs whatever is listed. Tensors come as contiguous
 * binary64 views (integers as I64); what a test takes lives until its case ends. */
#ifndef CASES_H
#define CASES_H

#include "test.h"

static tr_ctx *ctx;
static const char *cases_root = "tests/golden";
static tr_st cases_st;                  /* the open file */
static const char *cases_file = "";     /* "rmsnorm" */
static char cases_name[128];            /* the case in progress */
static void *cases_mem[1 << 16];           /* what was allocated for it */
static int cases_mems, cases_skipped;

static inline void cases_args(int argc, char **argv) { if (argc > 1) cases_root = argv[1]; }

static inline void cases_die(const char *key, const char *what)
{
    printf("FAILED %s: case %s: %s %s\n", cases_file, cases_name, key, what);
    exit(1);
}

/* Zeroed; freed at the end of the case (or of the test, outside of cases). */
static inline void *mem(int64_t n, size_t size)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), size);
    if (!p || cases_mems == 1 << 16) cases_die("memory", "is used up");
    return cases_mem[cases_mems++] = p;
}

static inline void mem_free(void) { while (cases_mems) free(cases_mem[--cases_mems]); }

/* A new F64 view. */
static inline tr_view new1(int64_t a) { return tr_view1(mem(a, 8), TR_F64, a); }
static inline tr_view new2(int64_t a, int64_t b) { return tr_view2(mem(a * b, 8), TR_F64, a, b); }
static inline tr_view new3(int64_t a, int64_t b, int64_t c)
{
    return tr_view3(mem(a * b * c, 8), TR_F64, a, b, c);
}
static inline tr_view new_like(tr_view v)
{
    return tr_view_of(mem(tr_view_numel(v), 8), TR_F64, v.rank, v.shape);
}
static inline tr_view new_i32(int rank, int64_t a, int64_t b)
{
    return rank == 1 ? tr_view1(mem(a, 4), TR_I32, a) : tr_view2(mem(a * b, 4), TR_I32, a, b);
}

static inline double *f64(tr_view v) { return (double *)v.data; }
static inline int64_t *i64(tr_view v) { return (int64_t *)v.data; }
static inline int32_t *i32(tr_view v) { return (int32_t *)v.data; }

/* A contiguous copy of any view, as F64. */
static inline tr_view copy(tr_view v)
{
    tr_view y = new_like(v);
    CHECK_OK(ctx, tr_view_copy(ctx, y, v));
    return y;
}

static inline int case_has(const char *key)
{
    char s[256];
    snprintf(s, sizeof s, "%s.%s", cases_name, key);
    return tr_st_find(&cases_st, s) != NULL;
}

static inline tr_view case_raw(const char *key)
{
    char s[256];
    const tr_st_entry *e;
    snprintf(s, sizeof s, "%s.%s", cases_name, key);
    e = tr_st_find(&cases_st, s);
    if (!e) cases_die(key, "is missing");
    return e->view;
}

static inline tr_view case_f64(const char *key)
{
    tr_view v = case_raw(key);
    if (!tr_dtype_get(v.dtype)->is_float) cases_die(key, "is not of floats");
    return copy(v);
}

static inline tr_view case_f64_or_none(const char *key)
{
    return case_has(key) ? case_f64(key) : tr_view_none();
}

static inline tr_view case_i64(const char *key)
{
    tr_view v = case_raw(key);
    if (v.dtype != TR_I64) cases_die(key, "is not I64");
    tr_view y = tr_view_of(mem(tr_view_numel(v), 8), TR_I64, v.rank, v.shape);
    memcpy(y.data, v.data, (size_t)tr_view_numel(v) * 8);
    return y;
}

static inline const char *case_str_or(const char *key, const char *otherwise)
{
    char s[256];
    const char *v;
    snprintf(s, sizeof s, "%s.%s", cases_name, key);
    v = tr_st_meta(&cases_st, s);
    return v ? v : otherwise;
}

static inline const char *case_str(const char *key)
{
    const char *v = case_str_or(key, NULL);
    if (!v) cases_die(key, "is not in the metadata");
    return v;
}

static inline double case_num(const char *key) { return strtod(case_str(key), NULL); }
static inline double case_num_or(const char *key, double x)
{
    return case_str_or(key, NULL) ? case_num(key) : x;
}
static inline int64_t case_int(const char *key) { return (int64_t)case_num(key); }
static inline int case_is(const char *key, const char *v) { return !strcmp(case_str(key), v); }
static inline int case_named(const char *start)
{
    return !strncmp(cases_name, start, strlen(start));
}

/* y (any strides) against a stored tensor, relative to its largest magnitude. */
static inline void case_near(tr_view y, const char *key, double bound)
{
    char what[256];
    tr_view want = case_f64(key), got = copy(y);
    snprintf(what, sizeof what, "%s %s", cases_name, key);
    if (tr_view_numel(want) != tr_view_numel(got)) cases_die(key, "has another size");
    test_near(f64(got), f64(want), tr_view_numel(want), bound, what, __FILE__, __LINE__);
}

/* A matrix of the case as a weight. */
static inline tr_weight weight_of(tr_view v)
{
    tr_weight w;
    memset(&w, 0, sizeof w);
    CHECK_OK(ctx, tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F64), "w", v.data, NULL, v.shape[0],
                               v.shape[1], 0, 0));
    return w;
}

/* In a case function: a kind that the definitions do not offer. */
#define CASE_SKIP(why)                                                     \
    do {                                                                   \
        printf("  skipped %s: %s: %s\n", cases_file, cases_name, why);     \
        cases_skipped++;                                                   \
        return;                                                            \
    } while (0)

/* A case of a kind that neither runs nor is listed as not offered. */
#define CASE_UNKNOWN(what)                                                                  \
    do {                                                                                    \
        test_bad++;                                                                         \
        printf("  %s: case %s: this test does not know its %s\n", cases_file, cases_name, what); \
    } while (0)

static inline void cases_run(const char *file, void (*fn)(void))
{
    char path[1024];
    const char *list;
    int run = 0;
    cases_file = file;
    cases_skipped = 0;
    cases_name[0] = 0;
    snprintf(path, sizeof path, "%s/ops/%s.safetensors", cases_root, file);
    if (tr_st_open(ctx, &cases_st, path, 0)) { printf("FAILED %s\n", tr_err_last(ctx)); exit(1); }
    list = tr_st_meta(&cases_st, "cases");
    if (!list) cases_die("cases", "is not in the metadata");
    while (*list) {
        size_t n = strcspn(list, ",");
        snprintf(cases_name, sizeof cases_name, "%.*s", (int)n, list);
        fn();
        mem_free();
        run++;
        list += n;
        list += *list == ',';
    }
    printf("  %s: %d cases run, %d skipped\n", file, run - cases_skipped, cases_skipped);
    CHECK(run > cases_skipped);
    tr_st_close(ctx, &cases_st);
    cases_name[0] = 0;
}

/* Numbers in a range that layers have: normal(0, size), and one in 64 thirty times as large. */
static inline void fill(tr_view v, uint64_t stream, double size)
{
    for (int64_t i = 0; i < tr_view_numel(v); i++)
        f64(v)[i] = size * tr_rng_normal(7, stream, (uint64_t)i) *
                    (tr_rng_u64(8, stream, (uint64_t)i) % 64 ? 1 : 30);
}

/* Three contexts with 1, 2 and 7 threads, for tests that compare their bits. */
static const int thread_counts[3] = { 1, 2, 7 };
static inline tr_ctx *ctx_threads(int n)
{
    tr_ctx_opts o;
    tr_ctx *c = NULL;
    memset(&o, 0, sizeof o);
    o.threads = n;
    if (tr_ctx_new(&c, &o)) { printf("no context\n"); exit(1); }
    return c;
}

static inline void bits_equal(tr_view a, tr_view b, const char *what)
{
    test_bits(a.data, b.data, (size_t)tr_view_numel(b) * (size_t)tr_dtype_get(b.dtype)->bits / 8,
              what, __FILE__, __LINE__);
}

#endif
