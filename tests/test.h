/* test.h - what every test file needs: a check counts, prints what differs, and main ends with
 * the sum. One line of output a test: "ok NAME (worst error against its bound)" or what failed. */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../trillion.h"

static int test_passed, test_failed;        /* tests, not checks */
static int test_bad;                        /* failed checks of the test in progress */
static double test_worst, test_bound;       /* worst relative error of the test in progress */

#define CHECK(c)                                                                        \
    do {                                                                                \
        if (!(c)) { test_bad++; printf("  %s:%d: %s\n", __FILE__, __LINE__, #c); }      \
    } while (0)

/* An expression of type tr_status that must succeed. */
#define CHECK_OK(ctx, e)                                                                \
    do {                                                                                \
        tr_status test_s = (e);                                                         \
        if (test_s != TR_OK) {                                                          \
            test_bad++;                                                                 \
            printf("  %s:%d: %s: %s\n", __FILE__, __LINE__, #e, tr_err_last(ctx));      \
        }                                                                               \
    } while (0)

/* One that must fail with this kind and a sentence that has all of these words (blank-separated). */
#define CHECK_FAILS(ctx, status, words, e) \
    test_fails(ctx, status, words, e, #e, __FILE__, __LINE__)

static inline void test_fails(tr_ctx *ctx, tr_status want, const char *words, tr_status got,
                              const char *what, const char *file, int line)
{
    char w[256];
    if (got != want) {
        test_bad++;
        printf("  %s:%d: %s: expected \"%s\", got \"%s\" (%s)\n", file, line, what,
               tr_status_str(want), tr_status_str(got), tr_err_last(ctx));
        return;
    }
    while (*words) {
        size_t n = strcspn(words, " ");
        snprintf(w, sizeof w, "%.*s", (int)n, words);
        if (!strstr(tr_err_last(ctx), w)) {
            test_bad++;
            printf("  %s:%d: %s: no \"%s\" in \"%s\"\n", file, line, what, w, tr_err_last(ctx));
        }
        words += n;
        words += strspn(words, " ");
    }
}

/* max|a-b| / max|b| <= bound, printed as the test's worst. */
#define CHECK_NEAR(a, b, n, bound) test_near(a, b, n, bound, #a, __FILE__, __LINE__)

static inline void test_near(const double *a, const double *b, int64_t n, double bound,
                             const char *what, const char *file, int line)
{
    double top = 0, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = a[i] == b[i] ? 0 : fabs(a[i] - b[i]);
        if (!(d <= worst)) { worst = d; at = i; if (d != d) break; }
        if (isfinite(b[i]) && fabs(b[i]) > top) top = fabs(b[i]);
    }
    double rel = worst == 0 ? 0 : top > 0 ? worst / top : (double)INFINITY;
    if (!(rel <= test_worst)) test_worst = rel;
    if (bound > test_bound) test_bound = bound;
    if (!(rel <= bound)) {
        test_bad++;
        printf("  %s:%d: %s: relative error %.3g > %.3g; at %lld: %.17g (%a), expected %.17g (%a)\n",
               file, line, what, rel, bound, (long long)at, a[at], a[at], b[at], b[at]);
    }
}

/* Same bits. */
#define CHECK_BITS(a, b, bytes) test_bits(a, b, bytes, #a, __FILE__, __LINE__)

static inline void test_bits(const void *a, const void *b, size_t bytes, const char *what,
                             const char *file, int line)
{
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i]) {
            test_bad++;
            printf("  %s:%d: %s: first difference at byte %zu of %zu: %02x, expected %02x\n",
                   file, line, what, i, bytes, x[i], y[i]);
            return;
        }
}

/* Runs one test function and prints its line. */
#define TEST(fn) test_run(fn, #fn)

static inline void test_run(void (*fn)(void), const char *name)
{
    test_bad = 0;
    test_worst = test_bound = 0;
    fn();
    if (test_bad) {
        test_failed++;
        printf("FAILED %s (%d checks)\n", name, test_bad);
        if (getenv("TEST_STOP")) exit(1);           /* one failure is all that a mutant must show */
    } else {
        test_passed++;
        if (test_bound > 0) printf("ok %-44s %.2g <= %.2g\n", name, test_worst, test_bound);
        else printf("ok %s\n", name);
    }
    fflush(stdout);
}

static inline int test_end(void)
{
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed != 0;
}

/* A context whose warnings go to a buffer that tests can read. */
static char test_log[4096];
static inline void test_log_fn(void *user, const char *line)
{
    size_t n = strlen(test_log);
    (void)user;
    snprintf(test_log + n, sizeof test_log - n, "%s\n", line);
}

static inline tr_ctx *test_ctx(void)
{
    tr_ctx_opts o;
    tr_ctx *ctx = NULL;
    memset(&o, 0, sizeof o);
    o.log = test_log_fn;
    test_log[0] = 0;
    if (tr_ctx_new(&ctx, &o) != TR_OK) { printf("no context\n"); exit(1); }
    return ctx;
}

/* An allocator that fails at its n-th allocation and knows what is still held. */
typedef struct test_hook { int64_t until_failure, blocks; } test_hook;

static inline void *test_hook_fn(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    test_hook *h = (test_hook *)user;
    (void)old_bytes;
    if (new_bytes == 0) {
        if (ptr) h->blocks--;
        free(ptr);
        return NULL;
    }
    if (h->until_failure > 0 && --h->until_failure == 0) return NULL;
    if (!ptr) h->blocks++;
    return realloc(ptr, new_bytes);
}

/* fn opens, uses and closes something. It is run with its first allocation failing, its second,
 * and so on, until it succeeds: each time it must end in TR_ERR_MEMORY and hold nothing. Returns
 * how many allocations it makes. */
static inline int64_t test_sweep(tr_status (*fn)(tr_ctx *ctx, void *user), void *user)
{
    for (int64_t n = 1; ; n++) {
        test_hook h = { 0, 0 };
        tr_ctx_opts o;
        tr_ctx *ctx = NULL;
        memset(&o, 0, sizeof o);
        o.alloc = test_hook_fn;
        o.alloc_user = &h;
        if (tr_ctx_new(&ctx, &o) != TR_OK) { test_bad++; return 0; }
        h.until_failure = n;
        tr_status s = fn(ctx, user);
        if ((s != TR_OK && s != TR_ERR_MEMORY) || h.blocks != 1 || tr_ctx_bytes(ctx) != 0) {
            test_bad++;
            printf("  allocation %lld fails: \"%s\" (%s), %lld blocks held\n", (long long)n,
                   tr_status_str(s), tr_err_last(ctx), (long long)h.blocks - 1);
        }
        int reached = h.until_failure == 0;
        tr_ctx_free(ctx);
        if (reached == (s == TR_OK)) {      /* fails if and only if an allocation did */
            test_bad++;
            printf("  allocation %lld: failed %d, status \"%s\"\n", (long long)n, reached,
                   tr_status_str(s));
        }
        if (!reached || s == TR_OK) return n - 1;
    }
}

#endif
