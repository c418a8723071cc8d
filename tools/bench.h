/* bench.h - what `trillion bench` measures with: a clock, two sides timed in turn, memory larger
 * than the caches and how fast it can be read, somebody else's matrix product
 *
 * The peer is looked for when it is asked for (dlopen), so that the tool is built without it and
 * runs where it is not installed.
 */

#ifndef BENCH_H
#define BENCH_H

#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifndef _WIN32
#include <dlfcn.h>
#endif

/* ---- Time */

static double bench_now(void)           /* seconds, on a clock that nobody sets */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Threads that have done their part keep looking for more before they sleep, OpenBLAS's for 2^26
 * ticks of the clock: the other side is not measured beside them. */
static void bench_pause(void)
{
    struct timespec t = { 0, 50000000 };
    nanosleep(&t, NULL);
}

/* ---- Two sides in turn, so that a slow moment of the machine meets both */

enum { BENCH_REPEATS = 9 };

typedef struct bench_side {
    void  (*call)(void *job);           /* one unit of work */
    void   *job;
    int64_t calls;                      /* in a sample */
    int     n;
    double  s[BENCH_REPEATS];           /* seconds a call; at the end sorted, so s[0] is the best */
} bench_side;

typedef struct bench_effort {
    int    repeats;                     /* samples, up to BENCH_REPEATS */
    double least, most;                 /* seconds of a sample; after which no more are begun */
} bench_effort;

static double bench_sample(bench_side *p)
{
    double begun = bench_now();
    for (int64_t i = 0; i < p->calls; i++) p->call(p->job);
    return (bench_now() - begun) / (double)p->calls;
}

/* The first call, which nobody counts, also warms up. */
static void bench_calibrate(bench_side *p, double least)
{
    double t;
    p->n = 0;
    p->calls = 1;
    t = bench_sample(p);
    if (t < least) t = bench_sample(p);
    if (t < least) p->calls = 1 + (int64_t)(least / (t > 1e-7 ? t : 1e-7));
}

static int bench_less(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_measure(bench_side *ours, bench_side *peer, const bench_effort *e)
{
    double begun = bench_now();
    bench_calibrate(ours, e->least);
    bench_calibrate(peer, e->least);
    for (int i = 0; i < e->repeats; i++) {
        if (i && bench_now() - begun > e->most) break;
        bench_pause();
        ours->s[ours->n++] = bench_sample(ours);
        bench_pause();
        peer->s[peer->n++] = bench_sample(peer);
    }
    qsort(ours->s, (size_t)ours->n, sizeof *ours->s, bench_less);
    qsort(peer->s, (size_t)peer->n, sizeof *peer->s, bench_less);
}

static double bench_median(const bench_side *p) { return p->s[p->n / 2]; }

/* ---- What the system tells */

/* The line of a file of /proc that begins with key, from behind its colon; 0 if there is none. */
static int bench_proc(const char *path, const char *key, char *out, size_t cap)
{
    char line[512];
    int found = 0;
    FILE *f = fopen(path, "rb");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *s = strchr(line, ':');
        if (!s || strncmp(line, key, strlen(key)) != 0) continue;
        s += 1 + strspn(s + 1, " \t");
        snprintf(out, cap, "%.*s", (int)strcspn(s, "\n"), s);
        found = 1;
    }
    if (f) fclose(f);
    return found;
}

static double bench_proc_bytes(const char *path, const char *key)    /* 0: not told */
{
    char kib[512];
    return bench_proc(path, key, kib, sizeof kib) ? 1024 * strtod(kib, NULL) : 0;
}

static double bench_cache_bytes(void)   /* of the largest cache; 0: not told */
{
    double most = 0;
    for (int i = 0; i < 8; i++) {
        char path[80], unit = 0;
        double n = 0;
        FILE *f;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!(f = fopen(path, "rb"))) break;
        if (fscanf(f, "%lf%c", &n, &unit) == 2) n *= unit == 'M' ? 1048576 : unit == 'K' ? 1024 : 1;
        if (n > most) most = n;
        fclose(f);
    }
    return most;
}

/* ---- Memory larger than the caches, in bands that are used in turn: what a band holds has left
 * the caches when its turn comes again. */

enum { BENCH_BANDS = 32 };
#define BENCH_PAGE ((size_t)2 << 20)    /* a huge one */

typedef struct bench_pool {
    void          *raw;
    unsigned char *p;                   /* [bytes], where a huge page begins */
    size_t         bytes;
    int            huge;                /* the system gave huge pages */
    int64_t        turn;                /* bands used so far */
} bench_pool;

static int bench_pool_new(bench_pool *m, size_t bytes)      /* 0: no memory */
{
    memset(m, 0, sizeof *m);
    if (!(m->raw = malloc(bytes + BENCH_PAGE))) return 0;
    m->p = (unsigned char *)m->raw;
    m->p += (BENCH_PAGE - (uintptr_t)m->p % BENCH_PAGE) % BENCH_PAGE;
    m->bytes = bytes;
#ifdef MADV_HUGEPAGE
    (void)madvise(m->p, bytes, MADV_HUGEPAGE);              /* asked; what came is looked up */
#endif
    memset(m->p, 1, bytes);
    m->huge = bench_proc_bytes("/proc/self/smaps_rollup", "AnonHugePages") > 0.9 * (double)bytes;
    return 1;
}

static void bench_pool_free(bench_pool *m) { free(m->raw); }

/* ---- How fast memory can be read: every thread takes a part of a band, as 1 to 8 streams side by
 * side. Vectors of a cache line, split by the compiler into registers that the target has, and sums
 * that do not wait for each other: nothing waits for anything but memory, at -O2 as at -O3. */

enum { BENCH_PARTS = 256 };             /* at most */
#define BENCH_STEP ((size_t)8 * 64)     /* a part of a band is a multiple of this */

typedef struct bench_read {
    tr_ctx     *ctx;
    bench_pool *pool;
    size_t      band;                   /* bytes a call, a multiple of parts steps */
    int         streams;                /* 1, 2, 4 or 8 */
    int64_t     parts;                  /* threads */
    const unsigned char *at;            /* the band of this call */
    uint64_t    sum[BENCH_PARTS];       /* [parts] */
} bench_read;

typedef uint64_t bench_line __attribute__((vector_size(64), may_alias));

#define BENCH_READ(name, target)                                                            \
    target static uint64_t name(const unsigned char *part, size_t lines, size_t streams)   \
    {                                                                                       \
        const bench_line *p[8];                                                             \
        size_t step = 8 / streams, n = lines / streams;         /* n: lines of a stream */  \
        bench_line a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };                              \
        for (size_t k = 0; k < 8; k++)                                                      \
            p[k] = (const bench_line *)(const void *)part + k % streams * n + k / streams;  \
        for (size_t i = 0; i < n; i += step) {                                              \
            a ^= p[0][i]; b ^= p[1][i]; c ^= p[2][i]; d ^= p[3][i];                         \
            a ^= p[4][i]; b ^= p[5][i]; c ^= p[6][i]; d ^= p[7][i];                         \
        }                                                                                   \
        a ^= b ^ c ^ d;                                                                     \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];                       \
    }

BENCH_READ(bench_read_base, )
#ifdef __x86_64__
BENCH_READ(bench_read_avx2, __attribute__((target("avx2"))))
BENCH_READ(bench_read_avx512, __attribute__((target("avx512f"))))
#else
#define bench_read_avx2   bench_read_base
#define bench_read_avx512 bench_read_base
#endif

static void bench_read_part(void *user, int64_t begin, int64_t end)
{
    bench_read *r = (bench_read *)user;
    size_t lines = r->band / 64 / (size_t)r->parts, streams = (size_t)r->streams;
    tr_cpu cpu = tr_ctx_cpu(r->ctx);
    for (int64_t i = begin; i < end; i++) {
        const unsigned char *part = r->at + 64 * lines * (size_t)i;
        r->sum[i] = cpu == TR_CPU_AVX512 ? bench_read_avx512(part, lines, streams)
                  : cpu == TR_CPU_AVX2 ? bench_read_avx2(part, lines, streams)
                  : bench_read_base(part, lines, streams);
    }
}

/* A call. Reads half a round ahead of whoever else takes turns, so that neither finds in a cache
 * what the other has just fetched. */
static void bench_read_band(void *job)
{
    static volatile uint64_t seen;      /* without it the loop above has no effect */
    bench_read *r = (bench_read *)job;
    r->at = r->pool->p + r->band * (size_t)((r->pool->turn++ + BENCH_BANDS / 2) % BENCH_BANDS);
    tr_par_for(r->ctx, r->parts, 1, bench_read_part, r);
    for (int64_t i = 0; i < r->parts; i++) seen = seen ^ r->sum[i];
}

/* ---- The peer: sgemm of OpenBLAS */

#ifdef __APPLE__
#define BENCH_BLAS "libopenblas.dylib"
#else
#define BENCH_BLAS "libopenblas.so.0"
#endif

typedef struct bench_blas {
    char name[80];
    const char *why;                    /* there is none; else NULL */
    int  parallel;                      /* can use threads */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*threads)(int n);
} bench_blas;

enum { BENCH_ROW_MAJOR = 101, BENCH_PLAIN = 111, BENCH_TRANSPOSED = 112 };  /* CBLAS's numbers */

#ifdef _WIN32

static void bench_blas_open(bench_blas *b, const char *path)
{
    (void)path;
    memset(b, 0, sizeof *b);
    b->why = "not looked for on this system";
}

#else

/* dlsym gives an object pointer; a function's has the same bytes on every system that has it. */
static int bench_symbol(void *lib, const char *name, void *to)
{
    void *p = dlsym(lib, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}

static void bench_blas_open(bench_blas *b, const char *path)
{
    char *(*config)(void), *(*core)(void), word[2][24] = { "", "" };
    int (*parallel)(void);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);        /* stays open */
    memset(b, 0, sizeof *b);
    b->why = "cannot be loaded";
    if (!lib) return;
    b->why = "is no OpenBLAS";
    if (!bench_symbol(lib, "cblas_sgemm", &b->sgemm) ||
        !bench_symbol(lib, "openblas_set_num_threads", &b->threads) ||
        !bench_symbol(lib, "openblas_get_parallel", &parallel) ||
        !bench_symbol(lib, "openblas_get_config", &config) ||
        !bench_symbol(lib, "openblas_get_corename", &core)) return;
    b->why = NULL;
    b->parallel = parallel() != 0;
    sscanf(config(), "%23s %23s", word[0], word[1]);        /* "OpenBLAS 0.3.21 NO_LAPACKE .." */
    snprintf(b->name, sizeof b->name, "%s %s (%.20s)", word[0], word[1], core());
}

#endif

#endif /* BENCH_H */
