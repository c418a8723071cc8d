/* trillion.h - the reference that a trillion-parameter model is checked against
 *
 * What exactly should come out of this layer, and how far off may mine be? This file answers with
 * code that a person can read: from one number format at the top to a whole mixture-of-experts
 * model at the bottom, each operation under its formula.
 *
 * HELLO
 *
 *     #define TRILLION_IMPLEMENTATION
 *     #include "trillion.h"
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         tr_ctx *ctx; tr_model *m = NULL; tr_run *r = NULL;
 *         int32_t prompt[3] = { 1, 2, 3 }, next = -1;
 *         tr_run_opts o = tr_run_opts_default();
 *         if (tr_ctx_new(&ctx, NULL)) return 1;
 *         if (tr_model_open(ctx, &m, "tests/golden/kimi_k3/text-a", NULL) ||
 *             tr_run_new(ctx, &r, m, &o) || tr_generate(r, prompt, 3, 1, &next))
 *             printf("%s\n", tr_err_last(ctx));
 *         printf("%d\n", next);
 *         tr_run_free(r); tr_model_close(m); tr_ctx_free(ctx);
 *     }
 *
 * INCLUDE
 *
 *     Include it anywhere for the declarations. In exactly one .c or .cpp file define
 *     TRILLION_IMPLEMENTATION before. Needs libc, libm and, if the compiler has it, OpenMP:
 *         cc -std=c11 -O2 -ffp-contract=off -fopenmp hello.c -lm
 *     Threads that call it, and OpenMP's own, need 256 KB of stack.
 *
 * CONTENTS   (search for the tag in braces: here, declaration, implementation)
 *
 *     I. Ground
 *      1 {err}     how a failure is reported          6 {quant}   one weight type, scaled or not
 *      2 {ctx}     everything a call may touch        7 {par}     threads own outputs
 *      3 {num}     what a float is                    8 {sum}     sums, order, top-k
 *      4 {fn}      exp, log and their kin             9 {mat}     products and embedding
 *      5 {view}    pointer + dtype + shape
 *     II. Layers
 *     10 {norm}    one parametric norm               14 {mla}     attention through a latent
 *     11 {act}     activations and gates             16 {delta}   short conv, decay, delta rule
 *     12 {rope}    positions as rotations            17 {res}     residual rules
 *     13 {attn}    softmax attention                 18 {moe}     router, experts, combine
 *                                                    19 {vit}     pictures as rows of a prompt
 *     III. Models
 *     20 {ops}     the table of operators            26 {state}   what a sequence remembers
 *     21 {tap}     seeing any value by name          28 {model}   binding, one layer function
 *     23 {json}    a bounded reader                  29 {plan}    counts and bytes before memory
 *     24 {st}      safetensors, shards               30 {gen}     prefill, decode, greedy
 *     25 {cfg}     config.json to a list of layers
 *     IV. Instruments
 *     31 {golden}  golden outputs and their hash     33 {self}    known answers of this build
 *     32 {bar}     how far apart two tensors are
 *     36 {os}      map a file, list a folder: every #if on a system
 *
 * READING PATHS
 *
 *     only attention:      fn, view, par, sum, mat, norm, rope, attn, mla
 *     only the delta rule: fn, view, par, sum, norm, act, delta
 *     only experts:        view, quant, par, sum, mat, act, moe
 *     only pictures:       fn, view, quant, par, mat, norm, act, rope, attn, vit
 *     how a file becomes a model: json, st, cfg, model
 *
 * LETTERS   (used in every shape, slowest dimension first)
 *
 *     B sequences in the batch      D residual width         E routed experts
 *     T tokens of one sequence now  H query heads            K experts chosen per token, or the
 *     N tokens of all sequences now G key/value heads          key width of delta rules
 *     S tokens seen (key rows)      Dk, Dv key/value width   F inner width of a feed-forward
 *     L layers                      R latent rank            V vocabulary, or the value
 *     J taps of a short convolution C its channels             width of delta rules
 *     I, O widths of a product's input and output            Dn, Dr plain, shared part of a key
 *
 * CONVENTIONS
 *
 *     tr_ is public, tri_ is internal. Linear weights are [out, in] as in checkpoints: y = x W^T.
 *     Extents and indices are int64_t, bytes size_t, token ids int32_t. Whatever can fail returns a
 *     tr_status, and the sentence is in the context (tr_err_last). Outputs come first after ctx.
 *     Zero means off; a number that changes results is never filled in for the caller. The library
 *     does not print, exit, read the environment or keep hidden state. A tr_ctx and what was made
 *     with it belong to one thread at a time; two contexts do not know of each other. What takes a
 *     context or a run computes under the contract's rounding whatever the thread's is, and leaves
 *     that as it was; functions without one compute under the caller's. Taps and operators of the
 *     caller's own are called under the contract's.
 *
 * SWITCHES   (define to 1 before including; none changes a struct or a number)
 *
 *     TR_STATIC      all functions static, for a single file
 *     TR_NO_OPENMP   one thread even if the compiler has OpenMP
 *     TR_NO_MMAP     read files with stdio instead of mapping them
 *     TR_ASSERT(c)   precondition checks of raw kernels; off unless defined
 *
 * NUMBERS
 *
 *     The `exact` profile computes in binary32, and every bit of it is fixed by docs/numerics.md:
 *     same results for any threads, batch, pieces of a prompt, compiler, optimisation and CPU. A
 *     dot product is sixteen lanes of fused multiply-adds, lane l takes k = l, l + 16, .., and the
 *     lanes fold l + 8, l + 4, l + 2, l + 1; every matrix product is that. Attention folds blocks
 *     of 128 keys in increasing position; delta rules go token by token; experts are added in
 *     increasing index; positions are binary64; exp, tanh and their kin are our own. Compile with
 *     -ffp-contract=off and without fast-math: tr_ctx_new tests what it gets, and tells.
 *
 *     The `oracle` profile evaluates the definitions (functions that end in _f64) in binary64 from
 *     exactly widened weights. It is the truth that every other arithmetic is judged by, and it is
 *     reproducible to 1e-12 (libm's exp differs between systems).
 *
 * LICENSE   MIT, at the end of the file.
 */

/* ==== Part one: declarations ================================================================= */

#ifndef TRILLION_H
#define TRILLION_H

#include <stddef.h>
#include <stdint.h>

#define TR_VERSION  "0.1.0"
#define TR_CONTRACT "1"     /* version of the numbers: of docs/numerics.md */

#ifndef TR_STATIC
#define TR_STATIC 0
#endif
#ifndef TR_NO_OPENMP
#define TR_NO_OPENMP 0
#endif
#ifndef TR_NO_MMAP
#define TR_NO_MMAP 0
#endif

#if TR_STATIC && defined(__GNUC__)
#define TR_API static __attribute__((unused))
#elif TR_STATIC
#define TR_API static
#else
#define TR_API extern
#endif

#if defined(__GNUC__)
#define TR_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TR_PRINTF(f, a)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ============================================================================
 * 1. Errors {err}
 *
 * A function that can fail returns one of these. The kind is for programs; the sentence in the
 * context is for people and names the file, tensor or key, the layer and the numbers.
 * ========================================================================= */

#define TR_STATUS_LIST(X)                                                              \
    X(TR_OK,              "fine")                                                      \
    X(TR_ERR_ARG,         "bad argument")                                              \
    X(TR_ERR_SHAPE,       "shapes do not fit")                                         \
    X(TR_ERR_DTYPE,       "wrong element type")                                        \
    X(TR_ERR_RANGE,       "value out of range")                                        \
    X(TR_ERR_MEMORY,      "out of memory")                                             \
    X(TR_ERR_IO,          "file cannot be read or written")                            \
    X(TR_ERR_FORMAT,      "file is malformed")                                         \
    X(TR_ERR_MISSING,     "something required is missing")                             \
    X(TR_ERR_UNSUPPORTED, "not supported")                                             \
    X(TR_ERR_FULL,        "capacity used up")                                          \
    X(TR_ERR_NOT_FINITE,  "NaN or infinity")                                           \
    X(TR_ERR_PEER,        "another rank failed")

#define TRI_ENUM(name, text) name,
typedef enum tr_status { TR_STATUS_LIST(TRI_ENUM) TR_STATUS_COUNT } tr_status;
#undef TRI_ENUM

typedef struct tr_ctx tr_ctx;

TR_API const char *tr_status_str(tr_status s);      /* the short text of a kind */
TR_API const char *tr_err_last(const tr_ctx *ctx);  /* the last sentence, "" if none; ctx's own */
TR_API void        tr_err_clear(tr_ctx *ctx);

/* Sets the sentence and returns s, for callers that fill in their own tables of operators. */
TR_API tr_status tr_fail(tr_ctx *ctx, tr_status s, const char *fmt, ...) TR_PRINTF(3, 4);
/* Puts "prefix: " before the sentence that stands in ctx and returns s. */
TR_API tr_status tr_fail_in(tr_ctx *ctx, tr_status s, const char *fmt, ...) TR_PRINTF(3, 4);

/* ============================================================================
 * 2. Context {ctx}
 *
 * Allocator, log, thread count and the last error: everything a call may touch that is not among
 * its arguments. Sizes that come from files go through tr_size_mul and tr_size_add, which fail
 * instead of wrapping. Scratch comes from an arena, by mark and rewind.
 * ========================================================================= */

/* One hook in the manner of realloc:
 *   ptr NULL, new > 0    a new block             ptr, new > 0    resize, contents kept
 *   ptr, new = 0         free, returns NULL      ptr NULL, new = 0    NULL
 * Any alignment that malloc gives will do. */
typedef void *(*tr_alloc_fn)(void *user, void *ptr, size_t old_bytes, size_t new_bytes);
typedef void  (*tr_log_fn)(void *user, const char *line);   /* one warning, without newline */

/* Which clone of the kernels runs. It decides speed and never a bit. */
typedef enum tr_cpu {
    TR_CPU_BEST,                /* what this machine has */
    TR_CPU_BASE,                /* what the file was compiled for */
    TR_CPU_AVX2,                /* x86-64-v3: AVX2, FMA, F16C */
    TR_CPU_AVX512,              /* x86-64-v4: and AVX-512 F, BW, DQ, VL */
    TR_CPU_COUNT
} tr_cpu;

typedef struct tr_ctx_opts {
    tr_alloc_fn alloc;  void *alloc_user;   /* NULL: malloc and free */
    tr_log_fn   log;    void *log_user;     /* NULL: warnings are dropped */
    int         threads;                    /* 0: what OpenMP offers */
    tr_cpu      cpu;                        /* 0: the best */
} tr_ctx_opts;

/* opts may be NULL, and is copied. The context is one block, with 8 MB of workspace for products
 * and 1.2 MB a thread, up to 64; it is not counted by tr_ctx_bytes. Tests the arithmetic of this
 * build and thread (tr_selftest).
 * TR_ERR_MEMORY: *out is NULL, and there is no context to hold a sentence. Any other failure: *out
 * is good for tr_err_last and tr_ctx_free alone. TR_ERR_UNSUPPORTED: contraction, flushed
 * subnormals, another rounding mode, a cpu that this machine is not. */
TR_API tr_status tr_ctx_new(tr_ctx **out, const tr_ctx_opts *opts);
TR_API tr_cpu      tr_ctx_cpu(const tr_ctx *ctx);           /* the one that runs; never BEST */
TR_API const char *tr_cpu_name(tr_cpu c);                   /* "avx2", ...; NULL if c is none */
/* After everything that was made with ctx. NULL is allowed. */
TR_API void      tr_ctx_free(tr_ctx *ctx);
/* Hands one line to opts.log, cut off at 1023 bytes. */
TR_API void      tr_warn(tr_ctx *ctx, const char *fmt, ...) TR_PRINTF(2, 3);

/* Zeroed blocks, 64-byte aligned. *out is NULL on failure; bytes 0 gives NULL and TR_OK. */
TR_API tr_status tr_alloc(tr_ctx *ctx, void **out, size_t bytes);
TR_API void      tr_free(tr_ctx *ctx, void *ptr);
TR_API size_t    tr_ctx_bytes(const tr_ctx *ctx);       /* held now */
TR_API size_t    tr_ctx_peak_bytes(const tr_ctx *ctx);  /* most ever held */

/* a + b, a b. TR_ERR_RANGE with *out 0 if they do not fit. */
TR_API tr_status tr_size_add(tr_ctx *ctx, size_t *out, size_t a, size_t b);
TR_API tr_status tr_size_mul(tr_ctx *ctx, size_t *out, size_t a, size_t b);

/* A stack of scratch. With base NULL it only measures: tr_arena_push gives NULL and counts, so
 * that a dry run tells how much a real one needs. What is pushed is 64-byte aligned, not
 * cleared, and valid until a rewind to an earlier mark; TR_ERR_FULL with *out NULL if cap is
 * reached. */
typedef struct tr_arena {
    unsigned char *base;    /* owned */
    size_t used, cap, peak;
} tr_arena;

TR_API tr_status tr_arena_new(tr_ctx *ctx, tr_arena *a, size_t bytes);
TR_API void      tr_arena_free(tr_ctx *ctx, tr_arena *a);
TR_API tr_status tr_arena_push(tr_ctx *ctx, tr_arena *a, void **out, size_t bytes);
TR_API size_t    tr_arena_mark(const tr_arena *a);
TR_API void      tr_arena_rewind(tr_arena *a, size_t mark);

/* ============================================================================
 * 3. Numbers {num}
 *
 * What a float is. Widening is exact; narrowing rounds to nearest, ties to even, and says what
 * happens beyond the largest finite value.
 * ========================================================================= */

typedef enum tr_dtype {
    TR_F64, TR_F32, TR_F16, TR_BF16, TR_F8E4M3, TR_F8E5M2, TR_F4E2M1, TR_E8M0,
    TR_I64, TR_I32, TR_I16, TR_I8, TR_U64, TR_U32, TR_U16, TR_U8, TR_BOOL,
    TR_DTYPE_COUNT
} tr_dtype;

typedef struct tr_dtype_info {
    const char *name;   /* as safetensors writes it: "F64", "BF16", "F8_E4M3", ... */
    int bits;
    int is_float;
} tr_dtype_info;

TR_API const tr_dtype_info *tr_dtype_get(tr_dtype t);               /* NULL if t is none */
/* name [n], not NUL-terminated. TR_ERR_UNSUPPORTED names what it does not know; *out is then as
 * before. */
TR_API tr_status tr_dtype_parse(tr_ctx *ctx, tr_dtype *out, const char *name, size_t n);

typedef enum tr_overflow { TR_OVERFLOW_IEEE, TR_OVERFLOW_SATURATE } tr_overflow;
/* IEEE: beyond the largest finite value the format's own answer: infinity where it has one (bf16,
 * f16, e5m2), NaN in e4m3 (OCP FP8), saturation in e2m1, which has neither.
 * SATURATE: the largest finite value; NaN stays NaN. */

/* Exact, subnormals too; every NaN becomes 0x7fc00000. */
TR_API float    tr_bf16_to_f32(uint16_t b);
TR_API float    tr_f16_to_f32 (uint16_t b);
TR_API float    tr_e4m3_to_f32(uint8_t b);     /* bias 7, no infinity, 0x7f and 0xff NaN */
TR_API float    tr_e5m2_to_f32(uint8_t b);     /* bias 15, infinities and NaN as IEEE */
TR_API float    tr_e2m1_to_f32(uint8_t b);     /* low four bits: sign, 0 .5 1 1.5 2 3 4 6 */
TR_API float    tr_e8m0_to_f32(uint8_t b);     /* 2^(b-127); 0 is 2^-127; 255 is NaN */
/* To nearest, ties to even, subnormals kept; NaN becomes the quiet NaN with its sign. bf16 and f16
 * overflow as IEEE says. */
TR_API uint16_t tr_f32_to_bf16(float x);
TR_API uint16_t tr_f32_to_f16 (float x);
TR_API uint8_t  tr_f32_to_e4m3(float x, tr_overflow o);
TR_API uint8_t  tr_f32_to_e5m2(float x, tr_overflow o);
TR_API uint8_t  tr_f32_to_e2m1(float x);       /* saturates at 6; NaN gives 6 with its sign */

TR_API uint32_t tr_f32_bits(float x);
TR_API float    tr_f32_from_bits(uint32_t u);
/* Floats to step over from a to b, or back; 0 between the two zeros, which are one place; infinity
 * is one step past the largest. INT64_MAX if either is NaN. */
TR_API int64_t  tr_ulps(float a, float b);

/* Element i of x as binary64; x need not be aligned. Exact for all but 64-bit integers beyond 2^53.
 * F4: half of byte i / 2, the low half first. */
TR_API double   tr_get_f64(const void *x, tr_dtype t, int64_t i);

/* ============================================================================
 * 4. Elementary functions {fn}
 *
 * Our own, because libm's differ from system to system. The binary32 ones are evaluated in
 * binary64 and rounded once: less than 0.501 ulp off for every argument, which tests/long_fn.c
 * checks for all 2^32. Additions, multiplications, divisions and bit patterns alone make them, so
 * that they give the same bits in a scalar and in a vector of any width.
 *
 * For all: -0 gives -0 where f(0) = 0; subnormals are kept, in and out; what is too large becomes
 * infinity; every NaN is 0x7fc00000 (0x7ff8000000000000 in binary64).
 * ========================================================================= */

/* The definitions, by libm. */
TR_API double tr_sigmoid_f64 (double x);    /* 1 / (1 + e^-x), no overflow on either side */
TR_API double tr_silu_f64    (double x);    /* x sigmoid(x) */
TR_API double tr_softplus_f64(double x);    /* log(1 + e^x), accurate for x << 0 too */
TR_API double tr_gelu_erf_f64 (double x);   /* x Phi(x), accurate for x << 0 too */
TR_API double tr_gelu_tanh_f64(double x);   /* its approximation by tanh: x sigmoid(2 z) */

TR_API float tr_expf     (float x);     /* e^x */
TR_API float tr_expm1f   (float x);     /* e^x - 1, to all digits near 0 */
TR_API float tr_logf     (float x);     /* -inf at 0, NaN below */
TR_API float tr_log1pf   (float x);     /* log(1 + x), to all digits near 0; -inf at -1 */
TR_API float tr_tanhf    (float x);     /* odd to the bit */
TR_API float tr_sigmoidf (float x);     /* 1 / (1 + e^-x), to all digits for x << 0 too */
TR_API float tr_softplusf(float x);     /* log(1 + e^x), to all digits for x << 0 too */
TR_API float tr_erff     (float x);     /* odd to the bit */
TR_API float tr_gelu_erff (float x);    /* x Phi(x), to all digits for x << 0 too; -0 at -inf */
TR_API float tr_gelu_tanhf(float x);    /* its approximation by tanh, likewise */
TR_API float tr_sinf     (float x);     /* any finite x, reduced exactly; odd; NaN at infinity */
TR_API float tr_cosf     (float x);

/* For positions and constants; off by less than 2^-50 of the result, wherever that is normal. */
TR_API double tr_exp64(double x);
TR_API double tr_log64(double x);                   /* -inf at 0, NaN below */
TR_API double tr_pow64(double x, double y);         /* x^y; NaN unless x > 0, both finite */
TR_API void   tr_sincos64(double x, double *sin_x, double *cos_x);  /* NaN unless |x| <= 2^31 */

/* ============================================================================
 * 5. Views {view}
 *
 * A pointer with element type, shape and strides. A view never owns. data NULL is allowed and
 * means "planned, not there": subviews of it are NULL too, which is how a dry run walks a model.
 * An empty view (tr_view_none) means "this argument is absent".
 * ========================================================================= */

#define TR_MAX_RANK 6

typedef struct tr_view {
    void    *data;
    tr_dtype dtype;
    int      rank;                   /* 0 with data NULL: absent */
    int64_t  shape[TR_MAX_RANK];
    int64_t  stride[TR_MAX_RANK];    /* in elements; 0 repeats */
} tr_view;

/* Indices, extents and ranks are preconditions (TR_ASSERT), not checked. split: inner divides the
 * extent; join: no gap between the first two dimensions; at: rank > 0. */
TR_API tr_view tr_view_none(void);
TR_API tr_view tr_view_of(void *data, tr_dtype t, int rank, const int64_t *shape);  /* contiguous */
TR_API tr_view tr_view1(void *data, tr_dtype t, int64_t a);
TR_API tr_view tr_view2(void *data, tr_dtype t, int64_t a, int64_t b);
TR_API tr_view tr_view3(void *data, tr_dtype t, int64_t a, int64_t b, int64_t c);
TR_API tr_view tr_view4(void *data, tr_dtype t, int64_t a, int64_t b, int64_t c, int64_t d);
TR_API tr_view tr_view_slice(tr_view v, int dim, int64_t begin, int64_t n);  /* same rank */
TR_API tr_view tr_view_at(tr_view v, int64_t i);                 /* drops the first dimension */
TR_API tr_view tr_view_split(tr_view v, int dim, int64_t inner); /* n -> n/inner, inner */
TR_API tr_view tr_view_join(tr_view v);                          /* first two into one */
TR_API int     tr_view_is_none(tr_view v);
TR_API int     tr_view_same_shape(tr_view a, tr_view b);
TR_API int     tr_view_is_contig(tr_view v);
TR_API int64_t tr_view_numel(tr_view v);                         /* 1 for rank 0 with data */
TR_API double *tr_view_f64(tr_view v);      /* data, for views that were checked to be F64 */
TR_API float  *tr_view_f32(tr_view v);
TR_API const char *tr_view_str(tr_view v, char buf[96]);         /* "F32 [3, 80]", for messages */

/* dst[i] = src[i]: equal shapes; widening exact, narrowing to nearest even (IEEE overflow). They
 * must not overlap. TR_ERR_SHAPE; TR_ERR_DTYPE for packed F4, or an integer type that cannot
 * hold a value: elements before it are written by then. */
TR_API tr_status tr_view_copy(tr_ctx *ctx, tr_view dst, tr_view src);

/* ============================================================================
 * 6. Stored weights {quant}
 *
 * One type for every linear weight. A plain one is the format whose block holds one number; a
 * scaled one is q * s, with s shared by a block. Everybody reads rows through tr_weight_row_*, so
 * there is one matrix product for all formats.
 * ========================================================================= */

typedef struct tr_weight tr_weight;

typedef struct tr_qformat {
    const char *name;       /* "bf16", "fp8-block", "mxfp4", ... */
    tr_dtype    q, s;       /* element and scale type (s ignored when plain) */
    tr_dtype    q_file, s_file;     /* as files name the containers: U8 for packed and E8M0 */
    int         per_byte;   /* elements packed into one byte: 1, or 2 for four-bit types */
    int         scaled;
    const char *q_suffix;   /* what the tensor of elements is called: "weight", "weight_packed" */
    const char *s_suffix;   /* and that of scales: "weight_scale_inv", "weight_scale" */
    /* y[i] = element (r, c + i) for i < n; r, c in the weight, not the stored matrix. */
    void (*row_f64)(const tr_weight *w, int64_t r, int64_t c, int64_t n, double *y);
    void (*row_f32)(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y);
} tr_qformat;

struct tr_weight {
    const tr_qformat *format;   /* NULL: this weight does not exist in the model */
    const char *name;           /* the tensor's, for messages; not owned */
    void    *q, *s;             /* elements and scales where they lie; NULL: planned */
    int64_t  rows, cols;        /* [out, in] as used */
    int64_t  q_stride;          /* bytes from one stored row to the next */
    int64_t  s_stride;          /* scales from one row of blocks to the next */
    int64_t  block_rows, block_cols;
    int64_t  row0;              /* a band: its row r is row row0 + r of what q and s point to */
    int64_t  unit;              /* rows that stand together, a head's: bands of a model opened in
                                   part begin and end at multiples; 0: not such a band */
    int      finite;            /* set once every decoded value was seen to be finite */
};

typedef enum tr_format {        /* rows of the table of formats */
    TR_FMT_F64, TR_FMT_F32, TR_FMT_F16, TR_FMT_BF16, TR_FMT_FP8_BLOCK, TR_FMT_MXFP4,
    TR_FORMAT_COUNT
} tr_format;

TR_API const tr_qformat *tr_qformat_get(tr_format f);
TR_API const tr_qformat *tr_qformat_plain(tr_dtype t);      /* NULL if t is no plain float */
TR_API const tr_qformat *tr_qformat_find(const char *name); /* NULL if unknown */

/* Bytes of elements and of scales of [rows, cols], products checked; *s_bytes 0 when plain. Blocks
 * at the edges may be partial. TR_ERR_SHAPE if a packed row does not fill its bytes and groups. */
TR_API tr_status tr_qformat_bytes(tr_ctx *ctx, const tr_qformat *f, int64_t rows, int64_t cols,
                                  int64_t block_rows, int64_t block_cols,
                                  size_t *q_bytes, size_t *s_bytes);

/* A weight over stored memory, contiguous; q and s need not be aligned.
 *   block_* are ignored when plain; q NULL: planned, and s is not looked at
 *   name, q, s must outlive *out; on failure *out is empty (format NULL)
 *   errors as tr_qformat_bytes; TR_ERR_MISSING if there are elements but no scales */
TR_API tr_status tr_weight_of(tr_ctx *ctx, tr_weight *out, const tr_qformat *f, const char *name,
                              void *q, void *s, int64_t rows, int64_t cols,
                              int64_t block_rows, int64_t block_cols);
/* Rows [begin, begin + n) of w, which may be a band itself. q and s stay at the stored matrix. */
TR_API tr_weight tr_weight_rows(const tr_weight *w, int64_t begin, int64_t n);

/* Row r, columns [c, c+n), decoded. f64: exact. f32: fl32(q * s), one rounding (an F64 narrows
 * once). The result is in place when no decoding is needed, else it is buf [n]. */
TR_API const double *tr_weight_row_f64(const tr_weight *w, int64_t r, int64_t c, int64_t n,
                                       double *buf);
TR_API const float  *tr_weight_row_f32(const tr_weight *w, int64_t r, int64_t c, int64_t n,
                                       float *buf);

/* Sets w->finite if every element is finite as a binary32. Else TR_ERR_NOT_FINITE names tensor,
 * row in the stored matrix, column and, when scaled, the group and its scale. */
TR_API tr_status tr_weight_check(tr_ctx *ctx, tr_weight *w);

/* Narrows x f32 [rows, cols] into q and s of the format (contiguous, as large as tr_qformat_bytes
 * says; s may be NULL when plain).
 *   fp8-block: s = amax / 448; mxfp4: s = 2^(floor(log2 amax) - 2), the OCP MX rule; 1 for a block
 *   of zeros. Elements to nearest even, saturating.
 *   plain: to nearest even; TR_ERR_RANGE names the first element that overflows
 *   TR_ERR_NOT_FINITE names the first element of x that is; after a failure q and s hold nothing */
TR_API tr_status tr_quantize(tr_ctx *ctx, const tr_qformat *f, void *q, void *s, const float *x,
                             int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols);

/* ============================================================================
 * 7. Threads and random numbers {par}
 *
 * Work is split by output: every output element is computed by one thread from start to end, so
 * the split cannot change it. Random numbers are a function of (seed, stream, index), so a split
 * cannot reorder them either.
 * ========================================================================= */

typedef void (*tr_par_fn)(void *user, int64_t begin, int64_t end);

/* Calls fn on ranges that cover [0, n) once, in pieces of at least `grain`, from several threads
 * at a time: fn must not use ctx or fail. It runs under the contract's rounding, whatever the
 * thread's is. Returns when all are done. */
TR_API void tr_par_for(tr_ctx *ctx, int64_t n, int64_t grain, tr_par_fn fn, void *user);
TR_API int  tr_par_threads(const tr_ctx *ctx);

/* Part `part` of n things dealt to `parts` in order: [begin, end), floor(n part / parts) to
 * floor(n (part + 1) / parts). Sizes differ by one at most, and the last part is no smaller than
 * any other: if there is one thing, it has it. */
typedef struct tr_range { int64_t begin, end; } tr_range;
TR_API tr_range tr_range_of(int64_t n, int64_t parts, int64_t part);

TR_API uint64_t tr_rng_u64   (uint64_t seed, uint64_t stream, uint64_t i);
TR_API double   tr_rng_unit  (uint64_t seed, uint64_t stream, uint64_t i);  /* [0, 1), 53 bits */
TR_API double   tr_rng_normal(uint64_t seed, uint64_t stream, uint64_t i);  /* sum of twelve - 6 */

/* ============================================================================
 * 8. Sums {sum}
 *
 * Order matters: floating-point addition is not associative. The definitions add in increasing
 * index, the contract in sixteen lanes; choices among equals take the lower index.
 * ========================================================================= */

/* One chain in increasing index from +0. */
TR_API double tr_dot_f64  (const double *x, const double *w, int64_t n);
TR_API double tr_sumsq_f64(const double *x, int64_t n);

/* The contract's: sum x_i w_i, sum x_i, sum x_i^2. TR_LANES chains from +0, lane l takes i = l,
 * l + 16, .., products fused; then the lanes l and l + 8 are added, l and l + 4, l + 2, l + 1.
 * n may be 0 (+0), x may be w. They round as the calling thread does. */
#define TR_LANES 16
TR_API float tr_dot  (const float *x, const float *w, int64_t n);
TR_API float tr_sum  (const float *x, int64_t n);
TR_API float tr_sumsq(const float *x, int64_t n);

/* The K largest of x[0..n), largest first, equal values by lower index, none twice; -inf may be
 * chosen. allowed NULL or one byte per element, 0 forbids. Returns how many were found.
 * x must not hold NaN. */
TR_API int64_t tr_topk_f64(int32_t *ids, int64_t K, const double *x, int64_t n,
                           const unsigned char *allowed);

/* ============================================================================
 * 9. Products {mat}
 *
 * y = x W^T (+ b), and the embedding, which is a row of W.
 * ========================================================================= */

typedef struct tr_matmul_args {
    tr_view y;                  /* [N, O]  out */
    tr_view x;                  /* [N, I] */
    const tr_weight *w;         /* [O, I] */
    tr_view bias;               /* [O], or absent */
} tr_matmul_args;

typedef struct tr_embed_args {
    tr_view y;                  /* [N, D]  out */
    tr_view ids;                /* I32 [N] */
    const tr_weight *w;         /* [V, D] */
} tr_embed_args;

/* Views are F64 (those of the contract F32) with stride 1 between columns and any stride between
 * rows; N, O and I may be 0.
 *   y must not overlap x
 *   f64: every sum runs in increasing index from +0, the bias comes last
 *   contract: each element is tr_dot of a row of x and a decoded row of w, then the bias is added
 *   any threads, any N: the same bits
 *   TR_ERR_SHAPE and TR_ERR_DTYPE name the weight and both shapes; embed: TR_ERR_RANGE names the
 *   first id outside [0, V). After a failure y is as before. */
TR_API tr_status tr_matmul_f64(tr_ctx *ctx, const tr_matmul_args *a);
TR_API tr_status tr_matmul    (tr_ctx *ctx, const tr_matmul_args *a);
TR_API tr_status tr_embed_f64 (tr_ctx *ctx, const tr_embed_args *a);
TR_API tr_status tr_embed     (tr_ctx *ctx, const tr_embed_args *a);

/* ============================================================================
 * 10. Norms {norm}
 *
 * A row divided by its own size, times a learned weight.
 * ========================================================================= */

typedef enum tr_norm_kind {
    TR_NORM_RMS,        /* y = x / sqrt(mean x^2 + eps) */
    TR_NORM_L2,         /* y = x / sqrt(sum x^2 + eps) */
    TR_NORM_LAYER       /* y = (x - mean) / sqrt(var + eps), biased variance */
} tr_norm_kind;

typedef enum tr_norm_weight { TR_NORM_W, TR_NORM_ONE_PLUS_W } tr_norm_weight;

typedef struct tr_norm_args {    /* y = scale (w n(x) + bias) sigmoid(gate) */
    tr_view y;                  /* [.., D]  out; may be x */
    tr_view x;                  /* [.., D]  innermost stride 1 */
    tr_view w;                  /* [D], or absent: 1 */
    tr_view bias;               /* [D], or absent (LAYER only) */
    tr_view gate;               /* as x, or absent: y *= sigmoid(gate), after weight and bias */
    tr_norm_kind   kind;
    tr_norm_weight form;
    double  eps;                /* inside the root; >= 0 */
    double  scale;              /* multiplies the result; 0 is an error, there is no default */
    int64_t groups;             /* statistics over D / groups values each; 1: the whole row */
} tr_norm_args;

/* What holds for this and every operator below: tr_x_f64 is the definition and takes F64 views,
 * tr_x is the contract's kernel and takes F32 ones, unless the struct names another type. Their
 * last dimension is without gaps; outputs do not overlap inputs unless it says "may be". Numbers in
 * the struct are binary64, and the contract rounds them once. What tr_x rounds, in which order,
 * stands in docs/numerics.md.
 * TR_ERR_SHAPE, TR_ERR_DTYPE and TR_ERR_ARG (absent, no data) name operator, view and shape and
 * leave outputs as they were; TR_ERR_RANGE names a number. Any threads, the same bits. */
TR_API tr_status tr_norm_f64(tr_ctx *ctx, const tr_norm_args *a);
TR_API tr_status tr_norm    (tr_ctx *ctx, const tr_norm_args *a);

/* Raw kernels: y, x [T, D], w and b [D] or NULL; y may be x. */
TR_API void tr_rmsnorm_f64  (double *y, const double *x, const double *w, int64_t T, int64_t D,
                             double eps);
TR_API void tr_l2norm_f64   (double *y, const double *x, int64_t T, int64_t D, double eps);
TR_API void tr_layernorm_f64(double *y, const double *x, const double *w, const double *b,
                             int64_t T, int64_t D, double eps);
TR_API void tr_rmsnorm  (float *y, const float *x, const float *w, int64_t T, int64_t D, float eps);
TR_API void tr_l2norm   (float *y, const float *x, int64_t T, int64_t D, float eps);
TR_API void tr_layernorm(float *y, const float *x, const float *w, const float *b, int64_t T,
                         int64_t D, float eps);

/* ============================================================================
 * 11. Activations {act}
 *
 * Registered by the name that configs use. All act on a pair: the gate's pre-activation g and the
 * value u it gates.
 * ========================================================================= */

#define TR_ACT_PARAMS 2
typedef struct tr_act {
    const char *name;                                       /* "silu", "situ", ... */
    double (*f64)(double g, double u, const double *p);     /* p: TR_ACT_PARAMS numbers */
    /* y, g, u [n], y may be g or u; NULL: only the oracle knows it */
    void   (*f32)(float *y, const float *g, const float *u, int64_t n, const float *p);
} tr_act;

/* A registered one, else one of the library's, else NULL. Adding another moves registered rows. */
TR_API const tr_act *tr_act_find(const tr_ctx *ctx, const char *name);
/* Copies the row; what its name points to must outlive ctx. TR_ERR_ARG if the name is taken. */
TR_API tr_status     tr_ctx_add_act(tr_ctx *ctx, const tr_act *act);

typedef struct tr_glu_args {
    tr_view y;                  /* [N, F]  out; may be g or u */
    tr_view g, u;               /* [N, F] */
    const tr_act *act;
    double p[TR_ACT_PARAMS];    /* situ: cap of the gate, cap of the value; > 0 */
} tr_glu_args;

/* y = act(g, u), element by element. */
TR_API tr_status tr_glu_f64(tr_ctx *ctx, const tr_glu_args *a);
TR_API tr_status tr_glu    (tr_ctx *ctx, const tr_glu_args *a);

typedef struct tr_gate_args {   /* y = x sigmoid(g): an output gate */
    tr_view y;                  /* out; may be x */
    tr_view x, g;               /* same shape */
} tr_gate_args;

TR_API tr_status tr_gate_f64(tr_ctx *ctx, const tr_gate_args *a);
TR_API tr_status tr_gate    (tr_ctx *ctx, const tr_gate_args *a);

typedef enum tr_gelu_kind {
    TR_GELU_ERF,                /* x Phi(x); "gelu" in configs */
    TR_GELU_TANH                /* its approximation; "gelu_pytorch_tanh", "gelu_new" */
} tr_gelu_kind;

typedef struct tr_gelu_args {   /* an activation without a gate */
    tr_view y;                  /* [.., D]  out; may be x */
    tr_view x;                  /* [.., D] */
    tr_gelu_kind kind;
} tr_gelu_args;

TR_API tr_status tr_gelu_f64(tr_ctx *ctx, const tr_gelu_args *a);
TR_API tr_status tr_gelu    (tr_ctx *ctx, const tr_gelu_args *a);

/* y = softmax(x), row by row; y may be x. sink NULL, or one logit a row that takes part in the
 * sum and is thrown away. -inf is a masked entry; a row of them alone gives zeros. */
TR_API void tr_softmax_f64(double *y, const double *x, const double *sink, int64_t T, int64_t D);
TR_API void tr_softmax    (float *y, const float *x, int64_t T, int64_t D);     /* no sinks */

/* ============================================================================
 * 12. Positions {rope}
 *
 * A pair of numbers is a point in the plane; position p turns it by p times the pair's frequency.
 * ========================================================================= */

typedef enum tr_rope_kind {
    TR_ROPE_DEFAULT, TR_ROPE_LINEAR, TR_ROPE_YARN, TR_ROPE_LLAMA3
} tr_rope_kind;
typedef enum tr_rope_layout {
    TR_ROPE_HALF,               /* pairs (i, i + d/2) */
    TR_ROPE_INTERLEAVED         /* pairs (2i, 2i + 1) */
} tr_rope_layout;

typedef struct tr_rope_cfg {
    tr_rope_kind kind;
    double  theta;
    int64_t dim;                        /* numbers rotated; even */
    double  factor;                     /* linear, yarn, llama3 */
    double  orig;                       /* yarn, llama3: context of the first training */
    double  beta_fast, beta_slow;       /* yarn */
    int64_t truncate;                   /* yarn: round the ramp's ends outwards */
    double  mscale, mscale_all_dim;     /* yarn; 0 is absent */
    double  attention_factor;           /* yarn; 0 is absent */
    double  low_freq, high_freq;        /* llama3 */
} tr_rope_cfg;

/* inv_freq f64 [dim / 2]; *mult multiplies cos and sin. TR_ERR_RANGE names the number at fault. */
TR_API tr_status tr_rope_freqs_f64(tr_ctx *ctx, double *inv_freq, double *mult,
                                   const tr_rope_cfg *c);
/* What DeepSeek-type attention multiplies its softmax scale by: g(factor, mscale_all_dim)^2. */
TR_API double    tr_rope_softmax_mult(const tr_rope_cfg *c);

typedef struct tr_rope_args {
    tr_view x;                  /* [N, H, d]  in place; d is the rotated part */
    tr_view pos;                /* I64 [N]; or [N, A], of A axes: pair i turns by pos[n, i mod A] */
    tr_view inv_freq;           /* F64 [d / 2]; negative ones turn back */
    double  mult;               /* of cos and sin; 0 is an error */
    tr_rope_layout layout;
} tr_rope_args;

/* TR_ERR_SHAPE unless d is twice the frequencies. */
TR_API tr_status tr_rope_f64(tr_ctx *ctx, const tr_rope_args *a);
TR_API tr_status tr_rope    (tr_ctx *ctx, const tr_rope_args *a);   /* x F32, inv_freq F64 */

/* ============================================================================
 * 13. Attention {attn}
 *
 * The mean of the values seen so far, weighted by how well their keys answer a query.
 * ========================================================================= */

typedef struct tr_attn_args {
    tr_view y;                  /* [T, H, Dv]  out */
    tr_view q, k, v;            /* [T, H, Dk]  [S, G, Dk]  [S, G, Dv]; head h reads h div (H/G) */
    tr_view sink;               /* [H], or absent */
    tr_view probs;              /* [H, T, S] out, or absent */
    int64_t pos;                /* position of query row 0: row t sees keys s <= pos + t */
    int64_t window;             /* and s > pos + t - window; 0 is off */
    int64_t chunk;              /* and s div chunk = (pos + t) div chunk; 0 is off */
    double  softcap;            /* 0 is off */
    double  scale;              /* required: 0 is an error */
} tr_attn_args;

#define TR_ATTN_BLOCK 128       /* the contract folds blocks of so many keys, which begin at
                                   multiples of it, in increasing position */

/* y must not overlap q, k, v. TR_ERR_RANGE unless S >= pos + T: a query has its own key.
 * TR_ERR_UNSUPPORTED: tr_attn with probs. */
TR_API tr_status tr_attn_f64(tr_ctx *ctx, const tr_attn_args *a);
TR_API tr_status tr_attn    (tr_ctx *ctx, const tr_attn_args *a);

/* ============================================================================
 * 14. Latent attention {mla}
 *
 * The cache holds one latent row a token, [normed latent R | shared key part Dr]; keys and values
 * of all heads are a product of it with kv_b, whose rows are, head by head, Dn of key then Dv of
 * value. The definition makes these keys and values (expanded); the contract's kernel carries the
 * queries into the latent instead (absorbed).
 * ========================================================================= */

typedef struct tr_mla_args {
    tr_view y;                  /* [T, H, Dv]  out */
    tr_view q;                  /* [T, H, Dn + Dr], rotated already */
    tr_view latent;             /* [S, R + Dr] */
    const tr_weight *kv_b;      /* [H (Dn + Dv), R] */
    tr_view kv;                 /* f64: [S, H (Dn + Dv)] workspace, expanded keys and values */
    tr_view absorbed;           /* contract: [T, H, 2 R + Dr] workspace, queries in the latent and
                                   what attention gives there */
    tr_view probs;              /* [H, T, S] out, or absent */
    int64_t rope;               /* Dr */
    int64_t pos;                /* as in attention */
    double  scale;              /* required */
} tr_mla_args;

/* f64: expanded, kv is written, then attended to. Contract: absorbed; kv is not looked at.
 * y must not overlap q. */
TR_API tr_status tr_mla_f64(tr_ctx *ctx, const tr_mla_args *a);
TR_API tr_status tr_mla    (tr_ctx *ctx, const tr_mla_args *a);

/* ============================================================================
 * 16. Delta rules {delta}
 *
 * A head keeps a matrix S [V, K] that maps keys to values. Each token lets it fade, reads what it
 * says about the token's key, and corrects it towards the token's value.
 * ========================================================================= */

typedef struct tr_conv_args {   /* depthwise causal convolution, then SiLU */
    tr_view y;                  /* [T, C]  out; must not be x */
    tr_view x;                  /* [T, C] */
    tr_view w;                  /* [C, J], tap J-1 is the current token */
    tr_view hist;               /* [C, J-1] the last inputs, oldest first; updated */
    int     silu;               /* 0: the sum alone */
} tr_conv_args;

typedef enum tr_decay_kind {
    TR_DECAY_BOUNDED,           /* g = bound sigmoid(exp(A_log) (z + dt)),  bound < 0 */
    TR_DECAY_SOFTPLUS           /* g = -exp(A_log) softplus(z + dt) */
} tr_decay_kind;

typedef struct tr_decay_args {
    tr_view g, beta;            /* [T, H, K]  [T, H]  out: log decay, write strength */
    tr_view z, b;               /* [T, H, K]  [T, H]; beta = sigmoid(b) */
    tr_view A_log, dt_bias;     /* [H]  [H, K] */
    tr_decay_kind kind;
    double  bound;              /* BOUNDED only */
} tr_decay_args;

typedef struct tr_delta_args {
    tr_view o;                  /* [T, H, V]  out */
    tr_view q, k, v;            /* [T, H, K]  [T, H, K]  [T, H, V]; q scaled already */
    tr_view g, beta;            /* [T, H, K]  [T, H]; a stride of 0 in K: one decay a head */
    tr_view S;                  /* [H, V, K]  in and out */
} tr_delta_args;

/* Token by token in increasing t, so a prompt may come in any pieces: hist and S carry it on. */
TR_API tr_status tr_shortconv_f64(tr_ctx *ctx, const tr_conv_args *a);
TR_API tr_status tr_decay_f64    (tr_ctx *ctx, const tr_decay_args *a);
TR_API tr_status tr_delta_f64    (tr_ctx *ctx, const tr_delta_args *a);
TR_API tr_status tr_shortconv    (tr_ctx *ctx, const tr_conv_args *a);
TR_API tr_status tr_decay        (tr_ctx *ctx, const tr_decay_args *a);
TR_API tr_status tr_delta        (tr_ctx *ctx, const tr_delta_args *a);

/* One head, one token: o [V], S [V, K] in and out, q k g [K], v [V]. */
TR_API void tr_delta_step_f64(double *o, double *S, const double *q, const double *k,
                              const double *v, const double *g, double beta,
                              int64_t K, int64_t V);
TR_API void tr_delta_step    (float *o, float *S, const float *q, const float *k, const float *v,
                              const float *g, float beta, int64_t K, int64_t V);

/* ============================================================================
 * 17. Residuals {res}
 *
 * What a sublayer reads and how its result returns. Plain: reads h, writes h + a. Block attention
 * residuals: reads a softmax mix of earlier block sums, writes into the running sum.
 * ========================================================================= */

typedef struct tr_add_args {
    tr_view y;                  /* [N, D]  out; may be a or b */
    tr_view a, b;               /* [N, D] */
} tr_add_args;

typedef struct tr_copy_args {   /* into state, into a snapshot */
    tr_view y, x;               /* same shape and type */
} tr_copy_args;

typedef struct tr_mix_args {
    tr_view y;                  /* [N, D]  out; must not overlap the sources */
    tr_view snaps;              /* [n, N, D] block sums in the order they were pushed; n may be 0 */
    tr_view h;                  /* [N, D] the running sum, last source */
    tr_view norm, proj;         /* [D], [D] */
    tr_view probs;              /* [N, n+1] out, or absent */
    double  eps;
} tr_mix_args;

TR_API tr_status tr_add_f64(tr_ctx *ctx, const tr_add_args *a);
TR_API tr_status tr_add    (tr_ctx *ctx, const tr_add_args *a);
TR_API tr_status tr_copy   (tr_ctx *ctx, const tr_copy_args *a);    /* any type: nothing rounds */
TR_API tr_status tr_mix_f64(tr_ctx *ctx, const tr_mix_args *a);
TR_API tr_status tr_mix    (tr_ctx *ctx, const tr_mix_args *a);     /* n < 256 */

/* ============================================================================
 * 18. Experts {moe}
 *
 * A router scores all experts and keeps K of them a token; a bias and groups may steer the choice,
 * never the weights. The plan lists, expert by expert, who computes what; the combine adds in
 * increasing expert index, whatever the plan was.
 * ========================================================================= */

#define TR_MAX_GROUPS 256
typedef enum tr_score_kind { TR_SCORE_SIGMOID, TR_SCORE_SOFTMAX } tr_score_kind;

typedef struct tr_route_args {
    tr_view ids;                /* I32 [N, K] out, ascending */
    tr_view weights;            /* [N, K] out, in that order, scaling included */
    tr_view scores;             /* [N, E] out: before the bias */
    tr_view logits;             /* [N, E] */
    tr_view bias;               /* [E], or absent: added to scores for the choice only */
    tr_score_kind score;
    int64_t groups, keep;       /* E / groups experts each, by their two best; 1, 1: off */
    int     renorm;             /* divide the chosen weights by (their sum + renorm_eps) */
    double  renorm_eps;
    double  scale;              /* of the weights, last; 0 is an error */
} tr_route_args;

typedef struct tr_dispatch_args {
    tr_view order;              /* I32 [N K] out: slots t K + j, by expert, then by token */
    tr_view offset;             /* I32 [E + 1] out: expert e has order[offset[e] .. offset[e+1]) */
    tr_view ids;                /* I32 [N, K]; an id of -1 is not computed here */
    int64_t experts;            /* E */
} tr_dispatch_args;

typedef struct tr_experts_args {
    tr_view y;                  /* [N, K, O]  out, unweighted, in the order of the ids */
    tr_view x;                  /* [N, I] */
    tr_view order, offset;      /* from dispatch */
    const tr_weight *gate, *up, *down;  /* E each: [F, I]  [F, I]  [O, F] */
    tr_view g, u;               /* [N K, F] workspace */
    const tr_act *act;
    double  p[TR_ACT_PARAMS];
} tr_experts_args;

typedef struct tr_combine_args {
    tr_view y;                  /* [N, O]  out */
    tr_view x;                  /* [N, K, O] */
    tr_view weights;            /* [N, K] */
} tr_combine_args;

/* route: TR_ERR_NOT_FINITE names row and expert of a NaN logit or score, or a bias that is NaN or
 *   +infinity; TR_ERR_SHAPE if fewer than K experts can be chosen. Chosen scores that are all 0
 *   give weights 0, or TR_ERR_NOT_FINITE if renorm_eps is 0.
 * dispatch: TR_ERR_RANGE names the first id outside [-1, E); order ends in -1 where ids did.
 * experts: slots with id -1 become 0; weights of experts without tokens are not looked at.
 * combine: from +0, j increasing. */
TR_API tr_status tr_route_f64   (tr_ctx *ctx, const tr_route_args *a);
TR_API tr_status tr_route       (tr_ctx *ctx, const tr_route_args *a);
TR_API tr_status tr_dispatch    (tr_ctx *ctx, const tr_dispatch_args *a);
TR_API tr_status tr_experts_f64 (tr_ctx *ctx, const tr_experts_args *a);
TR_API tr_status tr_experts     (tr_ctx *ctx, const tr_experts_args *a);
TR_API tr_status tr_combine_f64 (tr_ctx *ctx, const tr_combine_args *a);
TR_API tr_status tr_combine     (tr_ctx *ctx, const tr_combine_args *a);

/* ============================================================================
 * 19. Pictures {vit}
 *
 * A picture is cut into patches, and each patch becomes a row. Learned positions, resized to the
 * picture's grid, are added; blocks of attention without a mask let the rows see each other; two by
 * two they are merged into rows as wide as a token's. Norms, products, GELU, rotation and attention
 * are those of the chapters above.
 * ========================================================================= */

/* value[v] = (v / 255 - mean) (1 / std) of a colour v, as Kimi K3's processor rounds it (numpy, in
 * place): the quotient, the difference and the product are each computed in binary64 and stored in
 * binary32; mean and 1 / std stay in binary64. std is not 0. */
TR_API void tr_image_normalize(float value[256], double mean, double std);
/* y [3, P, P]: patch (i, k) of rgb [H, W, 3], row and column of the grid. value [3, 256]:
 * tr_image_normalize's for each channel. What the patch has beyond the picture's right and lower
 * edge is black (colour 0, then normalised like any other). patchify: y [gh, gw, 3, P, P], all of
 * them by rows of the grid. */
TR_API void tr_patch(float *y, const uint8_t *rgb, int64_t H, int64_t W, int64_t i, int64_t k,
                     int64_t P, const float *value);
TR_API void tr_patchify(float *y, const uint8_t *rgb, int64_t H, int64_t W, int64_t gh, int64_t gw,
                        int64_t P, const float *value);

typedef struct tr_pos_args {    /* learned positions at any grid, and those of frames */
    tr_view y;                  /* [t h w, D]  out: frame, row, column */
    const tr_weight *table;     /* [Gh, Gw D]: row; column and channel */
    int64_t t, h, w;            /* the picture's frames, rows, columns */
    double  theta;              /* of the frames' frequencies; not looked at if t is 1 */
} tr_pos_args;

typedef struct tr_merge_args {  /* mean over frames, then mh x mw neighbours side by side */
    tr_view y;                  /* [(h/mh) (w/mw), mh mw, D]  out: rows and columns of the coarser
                                   grid; in each the neighbours by row and column */
    tr_view x;                  /* [t h w, D] */
    int64_t t, h, w, mh, mw;
} tr_merge_args;

/* TR_ERR_SHAPE unless extents are above 0 and fit; pos: D is even if t > 1; merge: mh divides h, mw
 * divides w. */
TR_API tr_status tr_pos_resize_f64 (tr_ctx *ctx, const tr_pos_args *a);
TR_API tr_status tr_pos_resize     (tr_ctx *ctx, const tr_pos_args *a);
TR_API tr_status tr_patch_merge_f64(tr_ctx *ctx, const tr_merge_args *a);
TR_API tr_status tr_patch_merge    (tr_ctx *ctx, const tr_merge_args *a);

/* ============================================================================
 * 20. The table of operators {ops}
 *
 * A model runs through this table and through nothing else: the engine never touches a number.
 * The oracle's entries are the binary64 definitions, the contract's the binary32 kernels of which
 * every bit is fixed. A port copies a table and replaces the entries it has; the dry table only
 * checks shapes and counts, which is how plans are made.
 * ========================================================================= */

/* X(entry, its arguments, its definition in binary64, its kernel of the contract) */
#define TR_OPS_LIST(X)                                                  \
    X(embed,     tr_embed_args,    tr_embed_f64,     tr_embed)          \
    X(matmul,    tr_matmul_args,   tr_matmul_f64,    tr_matmul)         \
    X(norm,      tr_norm_args,     tr_norm_f64,      tr_norm)           \
    X(glu,       tr_glu_args,      tr_glu_f64,       tr_glu)            \
    X(gate,      tr_gate_args,     tr_gate_f64,      tr_gate)           \
    X(gelu,      tr_gelu_args,     tr_gelu_f64,      tr_gelu)           \
    X(rope,      tr_rope_args,     tr_rope_f64,      tr_rope)           \
    X(attn,      tr_attn_args,     tr_attn_f64,      tr_attn)           \
    X(mla,       tr_mla_args,      tr_mla_f64,       tr_mla)            \
    X(shortconv, tr_conv_args,     tr_shortconv_f64, tr_shortconv)      \
    X(decay,     tr_decay_args,    tr_decay_f64,     tr_decay)          \
    X(delta,     tr_delta_args,    tr_delta_f64,     tr_delta)          \
    X(add,       tr_add_args,      tr_add_f64,       tr_add)            \
    X(copy,      tr_copy_args,     tr_copy,          tr_copy)           \
    X(mix,       tr_mix_args,      tr_mix_f64,       tr_mix)            \
    X(route,     tr_route_args,    tr_route_f64,     tr_route)          \
    X(dispatch,  tr_dispatch_args, tr_dispatch,      tr_dispatch)       \
    X(experts,   tr_experts_args,  tr_experts_f64,   tr_experts)        \
    X(combine,   tr_combine_args,  tr_combine_f64,   tr_combine)        \
    X(pos,       tr_pos_args,      tr_pos_resize_f64, tr_pos_resize)    \
    X(merge,     tr_merge_args,    tr_patch_merge_f64, tr_patch_merge)

#define TRI_FIELD(op, args, f64, f32) tr_status (*op)(void *user, tr_ctx *ctx, const args *a);
typedef struct tr_ops {
    const char *name;
    void       *user;           /* handed to every entry */
    int         dry;            /* data pointers are NULL; entries must not follow them */
    TR_OPS_LIST(TRI_FIELD)
    /* Entries may leave what they compute in parts, or elsewhere: on other ranks, on a device.
     * Before the engine looks at a value itself, for a tap or a check, it asks for the whole of it
     * by this. NULL: what an entry returned is all there. */
    tr_status (*whole)(void *user, tr_ctx *ctx, tr_view x);
} tr_ops;
#undef TRI_FIELD

TR_API tr_ops tr_ops_oracle(void);      /* every entry is its definition; user is NULL */
TR_API tr_ops tr_ops_contract(void);    /* every entry is the contract's kernel */

/* ============================================================================
 * 21. Taps {tap}
 *
 * Any intermediate value, under the name that a forward hook on the public implementation gives.
 * ========================================================================= */

typedef struct tr_batch {
    int64_t        B;           /* sequences */
    const int64_t *T;           /* [B] tokens of each now; 0 is allowed if another has some */
    const int32_t *ids;         /* the sum of T, sequence after sequence */
} tr_batch;

typedef enum tr_tap_kind {
    TR_TAP_ROWS,                /* x [N, ..]: one row a token of the call */
    TR_TAP_PROBS,               /* x [H, T, S]: attention of one sequence */
    TR_TAP_STATE,               /* x [..]: memory of one sequence after the call */
    TR_TAP_PATCHES              /* x [n, ..]: of one image; rows row .. row + n of all `rows` */
} tr_tap_kind;

typedef struct tr_tap {
    const char     *name;       /* model.layers.3.self_attn.o_proj */
    tr_view         x;
    tr_tap_kind     kind;
    const tr_batch *batch;      /* the call whose rows these are */
    const int64_t  *pos;        /* [B] position of each sequence's first row; STATE: its length */
    int64_t         seq;        /* the one sequence x is of; -1: all of the batch */
    int             grows;      /* STATE: x has a row a token */
    int64_t         row, rows;  /* PATCHES */
    int64_t         image;      /* PATCHES: its number */
} tr_tap;

/* tap and all it points to are the run's, and valid during the call. A failure ends the forward. */
typedef tr_status (*tr_tap_fn)(void *user, tr_ctx *ctx, const tr_tap *tap);

/* Does the name match the glob? `*` stands for any run of characters, dots too; nothing else is
 * special. */
TR_API int tr_tap_match(const char *glob, const char *name);

/* ============================================================================
 * 23. JSON {json}
 *
 * A bounded reader of RFC 8259: depth, size and numbers are checked; a key that occurs twice in an
 * object is an error, and so are invalid UTF-8 and U+0000 in strings; messages carry file, line
 * and key. Values are nodes in one array, in file order.
 * ========================================================================= */

typedef enum tr_json_type {
    TR_JSON_NULL, TR_JSON_BOOL, TR_JSON_NUM, TR_JSON_STR, TR_JSON_ARRAY, TR_JSON_OBJECT
} tr_json_type;

typedef struct tr_json_node {
    tr_json_type type;
    int32_t  line;
    uint32_t next;              /* index of the next sibling; 0: none */
    uint32_t count;             /* members or items */
    uint32_t key, key_len;      /* into text: the member's name, unescaped; key 0: it has none (""
                                   is a name: key_len 0, but key > 0) */
    uint32_t str, str_len;      /* into text: STR: unescaped; NUM, BOOL, NULL: the token; else "" */
} tr_json_node;

typedef struct tr_json {
    tr_ctx *ctx;
    const char *name;           /* for messages; copied */
    char   *text;               /* owned copy, strings unescaped in place; NUL after each name,
                                   string and token */
    tr_json_node *node;         /* owned; node[0] is the root */
    uint32_t n;
} tr_json;

#define TR_JSON_MAX_DEPTH 64

/* text [n] is copied; it need not end in NUL, and must be shorter than 4 GiB. On failure *out is
 * empty, and the message begins "name:line: key: ". An empty tr_json may be freed. */
TR_API tr_status tr_json_parse(tr_ctx *ctx, tr_json *out, const char *name, const char *text,
                               size_t n);
TR_API tr_status tr_json_load (tr_ctx *ctx, tr_json *out, const char *path);
TR_API void      tr_json_free (tr_json *j);
/* get: the member of that name, by looking at one after another; NULL if there is none, or if obj
 * is NULL or no object. first, next: members and items in file order; NULL at the end. */
TR_API const tr_json_node *tr_json_get (const tr_json *j, const tr_json_node *obj, const char *key);
TR_API const tr_json_node *tr_json_first(const tr_json *j, const tr_json_node *parent);
TR_API const tr_json_node *tr_json_next (const tr_json *j, const tr_json_node *n);
TR_API const char *tr_json_key(const tr_json *j, const tr_json_node *n);   /* "" without a name */
TR_API const char *tr_json_str(const tr_json *j, const tr_json_node *n);   /* STR, or the token */
/* int: an integer without fraction or exponent that fits; num: a finite number, rounded to nearest
 * whatever the locale; bool: 0 or 1. Else *out is 0 and TR_ERR_FORMAT names line, key and text;
 * TR_ERR_MISSING if n is NULL. */
TR_API tr_status tr_json_int (const tr_json *j, const tr_json_node *n, int64_t *out);
TR_API tr_status tr_json_num (const tr_json *j, const tr_json_node *n, double *out);
TR_API tr_status tr_json_bool(const tr_json *j, const tr_json_node *n, int *out);
TR_API const char *tr_json_type_str(tr_json_type t);

/* ============================================================================
 * 24. Safetensors {st}
 *
 * u64 little-endian header length, JSON header, data. Every byte is accounted for: offsets lie in
 * the file, do not overlap, leave no hole, and equal shape times element size. Files are mapped;
 * opening one reads its header alone.
 * ========================================================================= */

typedef struct tr_st_entry {
    const char *name;           /* owned by its file */
    tr_view     view;           /* data points into the mapped file, which must not be written; of
                                   F4 the shape counts elements, and strides are of no use */
    size_t      begin, bytes;   /* in the data area of the file */
    int32_t     file;           /* index of the shard */
    int32_t     used;           /* set by the model that binds it */
} tr_st_entry;

typedef struct tr_st {          /* one file */
    char   *path;               /* owned, as are all below */
    tr_json header;
    unsigned char *map;  size_t map_bytes;
    size_t  data_at;            /* offset of the data area */
    tr_st_entry *entry;  int64_t n;     /* in order of offset */
    size_t  trailing;           /* bytes past the last tensor (lenient only) */
    size_t  holes;              /* bytes in no tensor (lenient only) */
    size_t  copied;             /* bytes of tensors off their type's alignment: read into memory */
    unsigned char *copy;  size_t copy_bytes;    /* those, with gaps; their views point here */
    tr_st_entry **by_name;      /* [n] sorted bytewise */
} tr_st;

/* lenient: trailing bytes and holes are warnings; overlaps never are. On failure *out is empty. An
 * empty tr_st or tr_shards may be closed. */
TR_API tr_status tr_st_open (tr_ctx *ctx, tr_st *out, const char *path, int lenient);
TR_API void      tr_st_close(tr_ctx *ctx, tr_st *f);
TR_API const tr_st_entry *tr_st_find(const tr_st *f, const char *name);     /* NULL: none */
TR_API const char *tr_st_meta(const tr_st *f, const char *key);             /* NULL: none */

typedef struct tr_shards {      /* a checkpoint's tensors, wherever they lie */
    char   *dir;
    tr_st  *file;   int64_t files;
    tr_st_entry **entry;  int64_t n;    /* sorted bytewise by name */
    size_t  bytes;                      /* of all tensors */
} tr_shards;

/* By model.safetensors.index.json: only the shards it lists, and in each exactly the tensors that
 * it puts there; without an index model.safetensors; else model-*-of-*.safetensors, all of them.
 * Other *.safetensors in the folder are named in a warning.
 *   lenient: as for tr_st_open; a wrong metadata.total_size is a warning too
 *   TR_ERR_MISSING names the first shard or tensor that is not there and says how many are */
TR_API tr_status tr_shards_open (tr_ctx *ctx, tr_shards *out, const char *dir, int lenient);
TR_API void      tr_shards_close(tr_ctx *ctx, tr_shards *s);
TR_API const tr_st_entry *tr_shards_find(const tr_shards *s, const char *name);

typedef struct tr_st_item { const char *name; tr_view view; } tr_st_item;   /* contiguous */
typedef struct tr_st_meta_item { const char *key, *value; } tr_st_meta_item;

/* Items in the order given, one after another: data is aligned if larger elements come first.
 * Writes to PATH.part (PATH.part2 to 9 if there is one) and renames it when complete; on failure
 * PATH is as it was and the part is gone. What tr_st_open would refuse (a name twice, no UTF-8,
 * ..) is not written. */
TR_API tr_status tr_st_write(tr_ctx *ctx, const char *path, const tr_st_item *item, int64_t n,
                             const tr_st_meta_item *meta, int64_t n_meta);

/* ============================================================================
 * 25. Configurations {cfg}
 *
 * config.json becomes a list of layers. Every key of a family is a row in one of four classes:
 * required; optional, with the value its absence means; allowed only with certain values (some may
 * be absent and then mean that value, some must be there); inert. Another path to a key that has a
 * row is a row too, and must agree with it.
 * An unknown key is refused by name. The tensors of a checkpoint are rows too: where, name, shape,
 * when. All that a program knows about a family is in these tables; the engine knows none by name.
 * ========================================================================= */

typedef enum tr_mixer_kind { TR_MIXER_GQA, TR_MIXER_MLA, TR_MIXER_KDA } tr_mixer_kind;
typedef enum tr_ffn_kind   { TR_FFN_DENSE, TR_FFN_MOE } tr_ffn_kind;
typedef enum tr_res_kind   { TR_RES_PLAIN, TR_RES_ATTN } tr_res_kind;

/* Weights that the engine uses, by role. Names in files come from the family's table. */
typedef enum tr_weight_id {
    TR_W_NONE = -1,             /* checked and counted, not used by the engine */
    /* of the model */
    TR_W_EMBED, TR_W_HEAD, TR_W_FINAL_NORM, TR_W_OUT_RES_NORM, TR_W_OUT_RES_PROJ,
    /* of a layer */
    TR_W_NORM1, TR_W_NORM2, TR_W_RES1_NORM, TR_W_RES1_PROJ, TR_W_RES2_NORM, TR_W_RES2_PROJ,
    TR_W_Q, TR_W_K, TR_W_V, TR_W_O, TR_W_G,
    TR_W_Q_BIAS, TR_W_K_BIAS, TR_W_V_BIAS, TR_W_O_BIAS,
    TR_W_Q_A, TR_W_Q_A_NORM, TR_W_Q_B, TR_W_KV_A, TR_W_KV_A_NORM, TR_W_KV_B,
    TR_W_Q_CONV, TR_W_K_CONV, TR_W_V_CONV, TR_W_F_A, TR_W_F_B, TR_W_B, TR_W_A_LOG, TR_W_DT_BIAS,
    TR_W_O_NORM,
    TR_W_GATE, TR_W_UP, TR_W_DOWN, TR_W_GATE_BIAS, TR_W_UP_BIAS, TR_W_DOWN_BIAS,
    TR_W_ROUTER, TR_W_ROUTER_BIAS, TR_W_LATENT_DOWN, TR_W_LATENT_NORM, TR_W_LATENT_UP,
    TR_W_SHARED_GATE, TR_W_SHARED_UP, TR_W_SHARED_DOWN,
    TR_W_EXPERT_GATE, TR_W_EXPERT_UP, TR_W_EXPERT_DOWN,         /* one each an expert */
    /* of a vision tower: once; of each of its blocks; of the projector behind it */
    TR_W_VIT_PATCH, TR_W_VIT_POS, TR_W_VIT_NORM,
    TR_W_VIT_NORM0, TR_W_VIT_QKV, TR_W_VIT_O, TR_W_VIT_NORM1, TR_W_VIT_FC0, TR_W_VIT_FC1,
    TR_W_MM_FC0, TR_W_MM_FC1, TR_W_MM_NORM,
    TR_W_COUNT
} tr_weight_id;

typedef enum tr_where {
    TR_AT_MODEL,                /* once */
    TR_AT_LAYER,                /* once a layer, under its prefix */
    TR_AT_EXPERT,               /* once an expert of a layer; {e} in the name */
    TR_AT_MTP,                  /* once a prediction module: announced, not always shipped */
    TR_AT_VISION,               /* once, outside the text prefix */
    TR_AT_BLOCK                 /* once a vision block; {b} in the name */
} tr_where;

typedef enum tr_store {
    TR_STORE_LINEAR,            /* a matrix, read in place; plain or scaled */
    TR_STORE_QUANT,             /* the same; scaled where the config says quantised */
    TR_STORE_VECTOR,            /* small; widened once; any plain float */
    TR_STORE_VECTOR_F32,        /* the same; must be F32 in the file */
    TR_STORE_PADDED_F32         /* the same; may be stored longer, the rest is never used */
} tr_store;

typedef enum tr_init {          /* how `tiny` fills a tensor; c is the row's number */
    TR_INIT_LINEAR,             /* normal(0, c / sqrt(in)) */
    TR_INIT_NORM,               /* 1 + c normal */
    TR_INIT_NORMAL,             /* c normal */
    TR_INIT_UNIFORM,            /* uniform(-c, c) */
    TR_INIT_PADDED              /* uniform(-c, 2c), the unused rest 0 */
} tr_init;

/* One row: a tensor of a family. shape and when are small expressions over the names of
 * tr_config's numbers and the layer's kinds: "heads*(nope+rope) q_lora", "mla * q_lora".  */
typedef struct tr_weight_spec {
    tr_where     where;
    tr_weight_id id;
    const char  *name;          /* after the prefix of its place */
    const char  *shape;         /* dimensions separated by a blank */
    const char  *when;          /* present if not 0 */
    tr_store     store;
    tr_init      init;
    double       c;
} tr_weight_spec;

typedef struct tr_fact {        /* a constant that lives in the vendor's code only */
    const char *name;           /* "mla.inner_eps" */
    size_t      field;          /* a double of tr_config; TR_NO_FIELD: a rule, told by text */
    double      value;
    const char *text;           /* the rule, "" for a number */
    const char *note;           /* where it comes from */
} tr_fact;
#define TR_NO_FIELD ((size_t)-1)

typedef struct tr_family tr_family;
typedef struct tr_int_list { int64_t *v; int64_t n; } tr_int_list;
typedef struct tr_layer_cfg { tr_mixer_kind mixer; tr_ffn_kind ffn; } tr_layer_cfg;

typedef struct tr_config {
    const tr_family *family;
    /* sizes */
    int64_t vocab, hidden, layers, max_pos;
    int64_t heads, kv_heads, head_dim, v_dim;           /* attention; v_dim of MLA */
    int64_t q_lora, kv_lora, nope, rope, qk_dim;        /* MLA; qk_dim 0 or nope + rope */
    int64_t kda_heads, kda_dim, conv;                   /* KDA */
    int64_t ffn, moe_ffn;                               /* inner widths */
    int64_t experts, topk, shared, latent;              /* latent 0: experts work at full width */
    int64_t groups, keep_groups, first_dense, moe_freq; /* first_dense layers without experts */
    int64_t res_block;                                  /* block attention residuals; 0: plain */
    int64_t mtp;                                        /* announced prediction modules */
    int64_t vit_layers, vit_dim, vit_qkv, vit_ffn, vit_heads, vit_patch;    /* layers 0: none */
    int64_t vit_pos_h, vit_pos_w, vit_frames;           /* table of positions; most frames */
    int64_t vit_out, vit_mm;                            /* width it must deliver; of its output */
    tr_int_list vit_merge;                              /* rows, columns */
    /* switches */
    int64_t tie, attn_bias, mlp_bias, out_gate, renorm;
    int64_t rope_dynamic;                               /* plain up to max_pos, refused beyond */
    /* numbers */
    double  eps, route_scale, act_p0, act_p1, decay_bound, mm_eps;
    /* facts */
    double  inner_eps, l2_eps, renorm_eps, a_log_pad;
    double  vit_eps, vit_theta, vit_time_theta, vit_grid;
    /* names */
    char    act[32], score[32], rope_type[32], quant[32], model_type[32];
    tr_rope_cfg rope_cfg;
    const tr_qformat *format;                           /* of TR_STORE_QUANT; NULL: plain */
    int64_t block_rows, block_cols;                     /* its blocks */
    tr_int_list kda_layers, full_layers;                /* counted from 1, as released */
    tr_int_list quant_blocks;                           /* rows, columns of an FP8 block */
    tr_int_list eos;                                    /* ids that end a text */
    tr_int_list media, pad;                             /* stands for an image; fills up: 0 or 1 */
    tr_layer_cfg *layer;                                /* [layers] */
    char   *accepted;                                   /* keys accepted by name, one a line */
    char   *sets;                                       /* facts set by name, NAME=VALUE a line */
    char    sha256[65];                                 /* of config.json's bytes */
} tr_config;

typedef struct tr_config_opts {
    const char *const *accept;  int64_t n_accept;       /* unknown keys to let pass */
    const char *const *set;     int64_t n_set;          /* "mla.inner_eps=1e-5" */
} tr_config_opts;

/* load: path is a config.json or the folder it is in; parse: text [n], name for messages. opts may
 * be NULL. On failure *out is empty, which may be freed, and the message names file, line and key:
 *   TR_ERR_MISSING       a required key is not there
 *   TR_ERR_UNSUPPORTED   an unknown key or family, a value that is not allowed
 *   TR_ERR_FORMAT        a wrong type; keys that contradict each other
 *   TR_ERR_ARG, _RANGE   a fact that cannot be set, or not so; a layer that is not there */
TR_API tr_status tr_config_load(tr_ctx *ctx, tr_config *out, const char *path,
                                const tr_config_opts *opts);
TR_API tr_status tr_config_parse(tr_ctx *ctx, tr_config *out, const char *name, const char *text,
                                 size_t n, const tr_config_opts *opts);
TR_API void      tr_config_free(tr_ctx *ctx, tr_config *c);

/* The families, 0 .. count - 1; NULL beyond. Facts: n rows, the library's own. value: a fact as
 * this config has it, 0 for a rule. */
TR_API int64_t     tr_family_count(void);
TR_API const tr_family *tr_family_get(int64_t i);
TR_API const char *tr_family_name(const tr_family *f);          /* the config's model_type */
TR_API const char *tr_family_title(const tr_family *f);
TR_API const tr_fact *tr_family_facts(const tr_family *f, int64_t *n);
TR_API double      tr_fact_value(const tr_config *c, const tr_fact *f);

/* config.json of a small model of the family, every branch taken; set: "hidden_size=96", "rope_
 * scaling=null", values as JSON. *json is freed with tr_free. */
TR_API tr_status tr_config_tiny(tr_ctx *ctx, char **json, const char *family,
                                const char *const *set, int64_t n_set);

/* One tensor that the tables ask for. */
typedef struct tr_expected {
    const tr_weight_spec *spec;
    const char *name;           /* full name of the (elements') tensor under the plain layout */
    const char *stem;           /* without its last part: for scaled formats and for taps */
    int64_t layer, expert, block;       /* -1: not of one; block: of a vision tower */
    int     optional;           /* of a module that may be announced and not shipped */
    int64_t params;             /* elements */
    int     rank;
    int64_t shape[TR_MAX_RANK]; /* logical */
    const tr_qformat *format;   /* as the config announces it; NULL: plain, type from the file */
} tr_expected;

typedef tr_status (*tr_expected_fn)(void *user, tr_ctx *ctx, const tr_expected *e);
/* Calls fn for every tensor of the model, in model order; stops at the first failure. */
TR_API tr_status tr_config_each(tr_ctx *ctx, const tr_config *c, tr_expected_fn fn, void *user);

/* The tensors in which e is stored under format f (NULL: plain): 1 or 2 names, types, shapes. */
typedef struct tr_stored {
    char     name[256];
    tr_dtype dtype;
    int      rank;
    int64_t  shape[TR_MAX_RANK];
} tr_stored;
/* TR_ERR_SHAPE if e does not fill the blocks of f. */
TR_API tr_status tr_expected_stored(tr_ctx *ctx, const tr_config *c, const tr_expected *e,
                                    const tr_qformat *f, tr_stored out[2], int *n);

/* ============================================================================
 * 26. State {state}
 *
 * What a sequence remembers between calls, one row a kind of memory. What grows by a row a token
 * rewinds by forgetting rows; what is overwritten needs a copy.
 * ========================================================================= */

typedef enum tr_state_kind {
    TR_STATE_LATENT,            /* [B, capacity, R + Dr] */
    TR_STATE_K, TR_STATE_V,     /* [B, capacity, G, Dk] */
    TR_STATE_CONV_Q, TR_STATE_CONV_K, TR_STATE_CONV_V,  /* [B, C, J-1] */
    TR_STATE_DELTA,             /* [B, H, V, K] */
    TR_STATE_KIND_COUNT
} tr_state_kind;

typedef struct tr_state {
    tr_ctx  *ctx;
    int64_t  B, capacity;       /* sequences; tokens each can hold */
    int64_t  first, layers;     /* the layers it covers */
    tr_dtype dtype;
    int64_t *len;               /* [B] tokens held */
    int      spoilt;            /* a call failed half-way: rewind or reset */
    tr_view *slot;              /* [layers][TR_STATE_KIND_COUNT]; none where a layer has no such */
    void    *block;             /* owned */
    size_t   bytes;
} tr_state;

typedef struct tr_mark { int64_t *len; void *copy; size_t bytes; } tr_mark;

/* first, layers: the part of the model; dry: shapes only. All sequences are empty; on failure
 * *out is empty, which may be freed. c is not kept. */
TR_API tr_status tr_state_new(tr_ctx *ctx, tr_state *out, const tr_config *c, int64_t first,
                              int64_t layers, int64_t B, int64_t capacity, tr_dtype t, int dry);
TR_API void      tr_state_free(tr_state *s);
TR_API void      tr_state_reset(tr_state *s);                           /* all sequences to empty */
/* [..] of one sequence; absent where the layer has no such memory. */
TR_API tr_view   tr_state_slot(const tr_state *s, int64_t layer, tr_state_kind k, int64_t seq);
/* Copies only what is overwritten. rewind: TR_ERR_ARG if a sequence holds fewer tokens than it
 * did. */
TR_API tr_status tr_state_mark(tr_state *s, tr_mark *m);                /* remembers now */
TR_API tr_status tr_state_rewind(tr_state *s, const tr_mark *m);        /* back to then; m stays */
TR_API void      tr_mark_free(tr_state *s, tr_mark *m);

/* ============================================================================
 * 28. The model {model}
 *
 * Tensors bound to layers, and the one function that all families pass through.
 * ========================================================================= */

typedef struct tr_profile {     /* what is rounded where */
    const char *name;
    tr_dtype    act;            /* type of activations and state */
    tr_ops    (*ops)(void);
    int         expanded;       /* MLA expands keys and values (and can show kv_b_proj) */
} tr_profile;

TR_API int64_t           tr_profile_count(void);
TR_API const tr_profile *tr_profile_get(int64_t i);
TR_API const tr_profile *tr_profile_find(const char *name);     /* NULL: unknown */

typedef struct tr_model_opts {
    int64_t first, layers;      /* open layers [first, first + layers); layers 0: to the end */
    int     lenient;            /* trailing bytes and holes in shards are warnings */
    int64_t part, parts;        /* of every matrix that part of `parts` of its rows; 0, 0: all */
    const unsigned char *held;  /* [layers of the model, E]: 0 leaves an expert out, 2 binds its
                                   shape and no memory; NULL: all are held */
    tr_config_opts config;
} tr_model_opts;

typedef struct tr_layer {
    int64_t index;
    tr_layer_cfg kind;
    tr_weight w[TR_W_COUNT];                        /* linear weights; format NULL: absent */
    tr_view   vec[TR_W_COUNT];                      /* vectors, widened to F64 */
    tr_view   vec_f32[TR_W_COUNT];                  /* and the same in F32 */
    const tr_weight_spec *spec[TR_W_COUNT];         /* NULL: absent */
    tr_weight *expert[3];                           /* gate, up, down: [E] each, owned */
} tr_layer;

typedef struct tr_model {
    tr_ctx    *ctx;
    tr_config  cfg;
    tr_shards  shards;
    int64_t    first, layers;                       /* the part that is open */
    tr_layer   top;                                 /* embedding, final norm, head; of the tower
                                                       what is no block */
    tr_layer  *layer;                               /* [layers] */
    tr_layer  *vit;                                 /* [vit_layers] blocks of the vision tower */
    int        dry;                                 /* from a config alone: nothing to read */
    int64_t    part, parts;                         /* of the rows of matrices; 0, 0: all */
    size_t     bytes;                               /* of tensors in the open part, as stored */
    void      *vectors;  size_t vector_bytes;       /* the widened vectors, owned */
} tr_model;

/* Opens, checks and binds DIR. Reads headers and small vectors; large weights stay in place.
 * opts may be NULL: all layers. On failure *out is NULL, and the message names file, tensor or
 * key. A model may serve several runs, one after another; it must outlive them. With parts or
 * experts left out, a forward needs a table of operators that knows who has the rest: its matrices
 * are bands (tr_weight.row0, rows), and an expert that is not held has format NULL, or q NULL. */
TR_API tr_status tr_model_open(tr_ctx *ctx, tr_model **out, const char *dir,
                               const tr_model_opts *opts);
/* A model without weights, for plans. Takes c over, also on failure. */
TR_API tr_status tr_model_new_dry(tr_ctx *ctx, tr_model **out, tr_config *c);
TR_API void      tr_model_close(tr_model *m);
/* The layers [begin, end) that opts asks for; NULL: all. TR_ERR_RANGE if DIR has no such layers. */
TR_API tr_status tr_model_opts_layers(tr_ctx *ctx, tr_range *out, const tr_config *c,
                                      const char *dir, const tr_model_opts *opts);

/* What flows between layers: the running sum and, for attention residuals, the block sums. */
typedef struct tr_hidden {
    tr_view h;                  /* [N, D] */
    tr_view snaps;              /* [n_max, N, D] */
    int64_t n;                  /* block sums held */
} tr_hidden;
TR_API int64_t tr_hidden_snaps(const tr_config *c, int64_t layer);  /* held before that layer */
/* Is `in` what enters that layer with N tokens? Of layer 0 NULL is, as the embedding enters it.
 * TR_ERR_ARG if it is missing, not wanted or has another number of block sums; TR_ERR_SHAPE. */
TR_API tr_status tr_hidden_check(tr_ctx *ctx, const tr_config *c, int64_t layer, int64_t N,
                                 const tr_hidden *in);

typedef enum tr_logits_kind { TR_LOGITS_LAST, TR_LOGITS_ALL, TR_LOGITS_NONE } tr_logits_kind;

typedef struct tr_run_opts {
    const tr_profile *profile;
    const tr_ops *ops;          /* NULL: the profile's; copied */
    int64_t B;                  /* sequences */
    int64_t max_tokens;         /* of all sequences in one call */
    int64_t capacity;           /* tokens a sequence can hold */
    tr_logits_kind logits;
    tr_tap_fn tap;  void *tap_user;                 /* NULL: none */
    const char *const *globs;  int64_t n_globs;     /* which taps; none: the default set */
    int64_t max_patches;        /* of an image; 0: the run takes no images (tr_run_opts_images) */
    int64_t max_images;         /* in all prompts together */
    int64_t image_rows;         /* that they fill in these */
    int     idle;               /* calls without tokens go through all layers: others may wait */
} tr_run_opts;
/* exact, one sequence, 64 tokens a call, capacity 1024, last logits, no images. */
TR_API tr_run_opts tr_run_opts_default(void);

typedef struct tr_images {
    tr_view pixels;             /* F32 [patches, 3, P, P]: image after image; frame, row, column */
    const int64_t *grid;        /* [n, 3]: frames, rows, columns of patches */
    int64_t n;
    const int64_t *among;       /* [n, 2] if these are some of more: number of each among them, and
                                   of its first patch; else NULL */
    int64_t patches;            /* that all of them have */
} tr_images;

typedef struct tr_place {       /* where an image's rows belong */
    int64_t seq, pos, n;        /* positions [pos, pos + n) of a sequence */
    int64_t row;                /* the first of them in tr_run.features */
} tr_place;

typedef struct tr_run {         /* a model being run: state, workspace, options */
    tr_ctx   *ctx;
    tr_model *model;
    tr_run_opts opts;
    tr_ops    ops;
    tr_state  state;
    tr_arena  arena;
    tr_hidden hidden;
    tr_view   x, a;             /* [N, D]: what a sublayer reads, what it returns */
    tr_view   logits;           /* [B or N, V] */
    tr_view   pos;              /* I64 [N] */
    tr_view   inv_freq;  double rope_mult;
    tr_view   features;         /* [image_rows + 1, D]: of all images, then a row of zeros */
    tr_view   vit_freq;         /* F64 [half a head of the tower] */
    tr_place *place;  int64_t places;   /* the images of the prompts, in their order */
    int64_t  *media;            /* [B, 2]: prompts with images begin and end here; equal: none */
    int       seeing;           /* some prompt has images, though perhaps none of this run's */
    const tr_batch *batch;      /* of the call in progress */
    int64_t   N;
    const int64_t *number;      /* [B] what sequences are called in messages; NULL: 0, 1, .. */
    int       empty;            /* the running sum was just pushed and holds nothing */
    const tr_layer *layer;      /* where it is, for names; NULL outside the layers */
    const tr_layer *block;      /* of the vision tower; NULL outside */
    int64_t   image;            /* that the tower looks at */
    const char *doing;          /* the module being computed, after the layer's prefix */
    int32_t  *piece_ids;  int64_t *piece_T;         /* of tr_prefill */
    size_t    fixed_bytes;      /* of the arena: what lives between calls */
} tr_run;

/* Takes all memory that forwards need, measured by a dry run; a forward takes none. opts is
 * copied, what its pointers point to must outlive the run. TR_ERR_ARG for sizes below 1, a table
 * with a missing entry, a model without weights; on failure *out is NULL. NULL may be freed. */
TR_API tr_status tr_run_new (tr_ctx *ctx, tr_run **out, tr_model *m, const tr_run_opts *opts);
TR_API void      tr_run_free(tr_run *r);

/* Images in four steps. (1) opts_images sees that the model takes them (TR_ERR_UNSUPPORTED) and
 * that grids and pixels fit it and each other (TR_ERR_SHAPE, _RANGE, _DTYPE), and sets the three
 * numbers of *o. (2) In b each image has one placeholder id, images in the order of the prompts;
 * expand gives it a place for each of its rows: T [B] new lengths, ids [their sum], or ids NULL: T
 * alone. TR_ERR_ARG if there are not as many placeholders as images. (3) vit_forward runs the
 * tower, leaves r->features, and remembers where they belong if the prompts b, as expand made
 * them, follow what the state holds now; b NULL: nowhere; im NULL: forgets. (4) Calls that read
 * b, in any pieces, find the images' rows at their places, and rows of 0 where the prompt of a
 * sequence with images has the config's pad_token_id.
 * im is not kept. If vit_forward fails the run holds no images. rows: those of image i. */
TR_API int64_t   tr_image_rows(const tr_config *c, const tr_images *im, int64_t i);
TR_API tr_status tr_run_opts_images(tr_ctx *ctx, tr_run_opts *o, const tr_config *c,
                                    const tr_images *im);
TR_API tr_status tr_expand_images(tr_ctx *ctx, int64_t *T, int32_t *ids, const tr_config *c,
                                  const tr_images *im, const tr_batch *b);
TR_API tr_status tr_vit_forward(tr_run *r, const tr_images *im, const tr_batch *b);

/* Runs b through the open layers; state grows by b->T. in: [N, D] views, needed if the model starts
 * after layer 0, and then b->ids are not read; else NULL. Leaves r->hidden, whose first N rows are
 * this call's, and, if the model ends with its last layer, r->logits. What is wrong with the
 * arguments is told before anything changes. If an operator fails the state is spoilt
 * (state.spoilt) and must be rewound or reset before the next call. */
TR_API tr_status tr_forward(tr_run *r, const tr_batch *b, const tr_hidden *in);
/* The page everything leads to: one layer, two sublayers, from r->hidden to r->hidden. For use
 * inside a forward, which sets up the call. */
TR_API tr_status tr_layer_forward(tr_run *r, tr_layer *ly);
/* Hands every piece of state to the tap as state.layers.N.KIND, sequence by sequence. */
TR_API tr_status tr_tap_state(tr_run *r);

/* ============================================================================
 * 29. Plans {plan}
 *
 * How much, before anything is allocated: a dry run of the same engine over a table of operators
 * that only counts.
 * ========================================================================= */

typedef struct tr_plan_op {     /* one operator call of the dry run */
    int64_t  layer;             /* -1: outside the layers */
    int64_t  block;             /* of the vision tower; -1: outside */
    const char *op;             /* name of the entry */
    const char *name;           /* its weight or module, after the layer's prefix; "": between */
    tr_view  y;                 /* shape and type of the result */
    int64_t  weight_params;     /* read by it */
    double   flops;             /* multiplications and additions of products */
} tr_plan_op;

typedef struct tr_plan_layer {
    int64_t  index;  tr_layer_cfg kind;
    int64_t  tensors, params, active;   size_t bytes;
    size_t   state_bytes_token, state_bytes_seq;
} tr_plan_layer;

typedef struct tr_plan {
    int64_t  tensors, params, active_params;    /* active: one token, with the head, without the
                                                   embedding table */
    size_t   bytes;                             /* of all tensors */
    size_t   vectors, state, activations, workspace;    /* of a run with the given sizes */
    tr_plan_layer *layer;  int64_t layers;      /* owned */
    tr_plan_op    *op;     int64_t ops;         /* owned */
} tr_plan;

/* m may be dry. opts as for tr_run_new; taps are not asked. On failure *out is empty, which may be
 * freed. Names in the plan are the tables' and m's: m must outlive it. */
TR_API tr_status tr_plan_model(tr_ctx *ctx, tr_plan *out, tr_model *m, const tr_run_opts *opts);
TR_API void      tr_plan_free(tr_ctx *ctx, tr_plan *p);

/* ============================================================================
 * 30. Generation {gen}
 *
 * Prompts in, token ids out, one forward after another. A prompt may come in any pieces: the bits
 * do not depend on where it was cut.
 * ========================================================================= */

/* The prompts in pieces of opts.max_tokens / B each; leaves the logits of each one's last token
 * (TR_LOGITS_LAST), or those of the last piece (TR_LOGITS_ALL; a tap sees all of them). */
TR_API tr_status tr_prefill(tr_run *r, const tr_batch *b);
TR_API int32_t   tr_argmax(tr_view logits_row);     /* ties to the lower index; -1 if any is NaN */
/* Greedy: prefill, then n tokens; out [n], -1 from the first that failed. One sequence; the run's
 * state must be empty or hold what came before the prompt. */
TR_API tr_status tr_generate(tr_run *r, const int32_t *prompt, int64_t T, int64_t n, int32_t *out);

/* ============================================================================
 * 31. Golden outputs {golden}
 *
 * Taps collected over a whole prompt, in model order and in the vendor's layout, and the hash by
 * which two of them are compared at a glance.
 * ========================================================================= */

typedef struct tr_sha256 { uint32_t h[8]; uint64_t bytes; unsigned char buf[64]; } tr_sha256;
TR_API void tr_sha256_init  (tr_sha256 *s);
TR_API void tr_sha256_update(tr_sha256 *s, const void *data, size_t n);
TR_API void tr_sha256_hex   (tr_sha256 *s, char out[65]);       /* ends it */

typedef struct tr_golden_item tr_golden_item;
typedef struct tr_golden {
    int64_t  B, T;              /* sequences; longest prompt */
    int64_t *lengths;           /* [B], owned */
    tr_golden_item *item;  int64_t n, cap;      /* in model order */
    int64_t  next;              /* where the search for the next tap starts */
} tr_golden;

/* lengths [B] is copied. find: the tensor of that name, absent if there is none; g's own. write:
 * all of them in order, and lengths I64 [B] if the batch is ragged; as tr_st_write. */
TR_API tr_status tr_golden_new (tr_ctx *ctx, tr_golden *g, int64_t B, const int64_t *lengths);
TR_API void      tr_golden_free(tr_ctx *ctx, tr_golden *g);
TR_API tr_status tr_golden_tap (void *golden, tr_ctx *ctx, const tr_tap *tap);  /* a tr_tap_fn */
TR_API tr_view   tr_golden_find(const tr_golden *g, const char *name);
/* SHA-256 over the little-endian bytes of a contiguous view. Every NaN of F64, F32, BF16 and F16
 * counts as the quiet one: 0x7ff8000000000000, 0x7fc00000, 0x7fc0, 0x7e00. */
TR_API void      tr_view_sha256(tr_view v, char out[65]);
TR_API tr_status tr_golden_write(tr_ctx *ctx, const tr_golden *g, const char *path,
                                 const tr_st_meta_item *meta, int64_t n_meta);

/* ============================================================================
 * 32. Differences {bar}
 *
 * How far apart two tensors are, in numbers that mean the same for every tensor of every model.
 * ========================================================================= */

typedef struct tr_diff {
    int64_t n;                          /* elements */
    int64_t nan_a, nan_b, inf_a, inf_b;
    int64_t nan_one_side;               /* NaN in one of them only: a difference */
    double  max_abs, max_b, max_rel;    /* max|a-b|, max|b|, their ratio */
    double  rms_ratio;                  /* rms(a-b) / rms(b) */
    double  cosine;
    int64_t worst;  double worst_a, worst_b;    /* where max_abs is; -1: nothing compared */
    int64_t equal;                      /* elements that are equal */
} tr_diff;

/* Element by element in storage order; shapes may differ if the counts do not ([1, T, D] and
 * [T, D]), else TR_ERR_SHAPE. NaN and infinities stay out of rms and cosine. */
TR_API tr_status tr_diff_views(tr_ctx *ctx, tr_diff *out, tr_view a, tr_view b);

/* ============================================================================
 * 33. Self-test {self}
 *
 * What this build is, and whether this machine's arithmetic is the one that the numbers stand on.
 * The first thing that a bug report should hold.
 * ========================================================================= */

typedef struct tr_build {
    const char *version, *contract, *compiler, *arch;
    int openmp, threads, mmap;
} tr_build;

TR_API tr_build  tr_build_info(const tr_ctx *ctx);
/* Tests, in the clones that ctx runs and under the thread's own rounding: nearest even, subnormals,
 * products and sums left apart, sums left in order, divisions, roots, signs of zero, NaN, fmaf;
 * then known answers of formats and kernels. Names what failed; takes some 30 microseconds. */
TR_API tr_status tr_selftest(tr_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif /* TRILLION_H */

/* ==== Part two: implementation. Readers of the interface may stop here. ====================== */

#if defined(TRILLION_IMPLEMENTATION) && !defined(TRILLION_IMPLEMENTED)
#define TRILLION_IMPLEMENTED

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_OPENMP) && !TR_NO_OPENMP
#include <omp.h>
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "trillion.h: fast-math breaks NaN, infinities, zeros and order; compile without it"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16   /* 16: _Float16 */
#error "trillion.h: needs FLT_EVAL_METHOD 0 or 16 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "trillion.h: checkpoints are little-endian and read in place; so must the machine be"
#endif

#ifndef TR_ASSERT
#define TR_ASSERT(c) ((void)0)
#endif

#define TRI_S(n) ((n) == 1 ? "" : "s")                /* "1 image", "2 images" */
#define TRI_TRY(e) do { tr_status tri_s = (e); if (tri_s != TR_OK) return tri_s; } while (0)

/* From {os}, whose bodies stand at the end so that no reader of a layer meets a system. */
static tr_status tri_os_map(tr_ctx *ctx, const char *path, unsigned char **map, size_t *bytes);
static void      tri_os_unmap(tr_ctx *ctx, unsigned char *map, size_t bytes);
typedef tr_status (*tri_os_name_fn)(void *user, tr_ctx *ctx, const char *name);
static tr_status tri_os_list(tr_ctx *ctx, const char *dir, tri_os_name_fn fn, void *user);
static int       tri_os_is_dir(const char *path);
static int       tri_os_rename(const char *from, const char *to, const char *aside);
typedef enum tri_kind { TRI_NOTHING, TRI_FILE, TRI_DIR, TRI_OTHER } tri_kind;
static tri_kind  tri_os_kind(const char *path, uint64_t *bytes);
static tr_status tri_os_fail(tr_ctx *ctx, const char *path, const char *what);  /* says errno */
static tr_cpu    tri_os_cpu(void);                      /* the best clones that this machine runs */
typedef struct tri_fpenv { uint64_t was; } tri_fpenv;      /* how the thread rounded */
static tri_fpenv tri_os_fp_begin(void);                 /* nearest even, subnormals kept */
static tri_fpenv tri_os_fp_quiet(void);                 /* as it is, but nothing traps */
static void      tri_os_fp_end(tri_fpenv e);            /* as it was */
typedef struct tri_tiles tri_tiles;
static const tri_tiles *tri_os_tiles(tr_cpu cpu);       /* the inner loops of {mat} */

/* ============================================================================
 * 1. Errors {err}
 *
 * A failure is a kind and a sentence. The kind goes up as the return value; the sentence is written
 * once, into the context, where the numbers are known, and whoever hands the failure on puts in
 * front what it knows: "model-00003.safetensors: tensor "a.weight": shape [3, 4] ...". Success
 * clears nothing, so a sentence means something only after a failure.
 *
 * Traps. A sentence quotes names from files, which may hold a %: it is an argument, never a format.
 * Who has no context, because there was no memory for one, still gets a sentence from tr_err_last.
 * ========================================================================= */

#define TRI_ERR_BYTES 1024

/* The sixteen e2m1 values under each e8m0 scale: as numbers, and their bytes 2 and 3, of which the
 * other two are 0. */
typedef struct tri_fp4 {
    float v[256][16];
    unsigned char bytes[256][2][16];
} tri_fp4;

struct tr_ctx {
    tr_ctx_opts opts;
    tr_cpu cpu;                     /* which clones run */
    size_t bytes, peak;             /* allocated now, most ever */
    tr_act *acts;  int64_t n_acts;  /* registered by the caller */
    char   err[TRI_ERR_BYTES];
    tri_fp4 fp4;
    float *outer;                   /* workspace of {mat}, behind this */
    int64_t outer_threads;          /* that have a part of it */
};

const char *tr_status_str(tr_status s)
{
#define TRI_TEXT(name, text) text,
    static const char *const text[] = { TR_STATUS_LIST(TRI_TEXT) };
#undef TRI_TEXT
    return (int)s >= 0 && s < TR_STATUS_COUNT ? text[s] : "unknown status";
}

const char *tr_err_last(const tr_ctx *ctx) { return ctx ? ctx->err : "out of memory"; }
void        tr_err_clear(tr_ctx *ctx) { ctx->err[0] = 0; }

/* A name of a file or tensor may hold anything; a message is one line that moves no cursor. */
static void tri_one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

tr_status tr_fail(tr_ctx *ctx, tr_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(ctx->err, sizeof ctx->err, fmt, ap);
    va_end(ap);
    tri_one_line(ctx->err);
    return s;
}

tr_status tr_fail_in(tr_ctx *ctx, tr_status s, const char *fmt, ...)
{
    char tail[TRI_ERR_BYTES];
    va_list ap;
    size_t n;
    memcpy(tail, ctx->err, sizeof tail);
    va_start(ap, fmt);
    vsnprintf(ctx->err, sizeof ctx->err, fmt, ap);
    va_end(ap);
    n = strlen(ctx->err);
    snprintf(ctx->err + n, sizeof ctx->err - n, ": %s", tail);
    tri_one_line(ctx->err);
    return s;
}

/* ============================================================================
 * 2. Context {ctx}
 *
 * Takes one hook in the manner of realloc, and gives zeroed blocks that begin on a cache line. A
 * block carries its own origin, so that the hook hears the old size and the context knows what it
 * holds:
 *
 *     raw                  p - sizeof(tri_block)   p, a multiple of 64
 *      |  0 to 63 bytes     |  raw, raw_bytes       |  what the caller gets, zeroed  |
 *
 * An arena is the other way to have memory: one block, handed out by moving a mark up and given
 * back by moving it down. What a step of the model needs is measured on an arena without a block
 * first.
 *
 * Traps. Sizes are products of numbers from files; a product that wraps allocates little and is
 * written as much, so none is formed without a check. 0 bytes are NULL and no failure, as malloc
 * leaves it open.
 * ========================================================================= */

/* Every block has this before it, so that the hook can be told the old size; 64 bytes keep the
 * payload on a cache line. */
typedef struct tri_block { void *raw; size_t raw_bytes; } tri_block;
#define TRI_ALIGN 64

/* So that operators need not allocate, a context brings memory for products of many tokens: the
 * tokens, and for each thread a panel and its lanes. */
#define TRI_OUTER_X (1 << 21)
#define TRI_OUTER_TOKENS 256    /* most tokens of a block */
#define TRI_OUTER_ROWS 48       /* rows of a panel */
#define TRI_OUTER_COLS 2048     /* columns of a piece of it */
#define TRI_OUTER_OWN (TRI_OUTER_ROWS * (TRI_OUTER_COLS + TRI_OUTER_TOKENS * TR_LANES))
#define TRI_OUTER_THREADS 64

static int tri_threads(const tr_ctx_opts *o)
{
#if defined(_OPENMP) && !TR_NO_OPENMP
    return o->threads > 0 ? o->threads : omp_get_max_threads();
#else
    (void)o;
    return 1;
#endif
}

static size_t tri_ctx_size(int64_t threads)
{
    return sizeof(tr_ctx) + TRI_ALIGN +
           (TRI_OUTER_X + (size_t)threads * TRI_OUTER_OWN) * sizeof(float);
}

/* The first cache line that begins at p or later. */
static unsigned char *tri_aligned(unsigned char *p)
{
    return p + (TRI_ALIGN - (uintptr_t)p % TRI_ALIGN) % TRI_ALIGN;
}

static void *tri_malloc(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    (void)user; (void)old_bytes;
    if (new_bytes == 0) { free(ptr); return NULL; }
    return realloc(ptr, new_bytes);
}

static void tri_fp4_fill(tri_fp4 *t)
{
    tri_fpenv env = tri_os_fp_begin();
    for (int s = 0; s < 256; s++)
        for (int q = 0; q < 16; q++) {
            float v = tr_e2m1_to_f32((uint8_t)q) * tr_e8m0_to_f32((uint8_t)s);
            t->v[s][q] = v;
            t->bytes[s][0][q] = (unsigned char)(tr_f32_bits(v) >> 16);
            t->bytes[s][1][q] = (unsigned char)(tr_f32_bits(v) >> 24);
        }
    tri_os_fp_end(env);
}

tr_status tr_ctx_new(tr_ctx **out, const tr_ctx_opts *opts)
{
    tr_ctx_opts o;
    tr_ctx *ctx;
    int64_t threads;
    memset(&o, 0, sizeof o);
    if (opts) o = *opts;
    if (!o.alloc) o.alloc = tri_malloc;
    *out = NULL;
    threads = tri_threads(&o);
    if (threads > TRI_OUTER_THREADS) threads = TRI_OUTER_THREADS;
    ctx = (tr_ctx *)o.alloc(o.alloc_user, NULL, 0, tri_ctx_size(threads));
    if (!ctx) return TR_ERR_MEMORY;
    memset(ctx, 0, sizeof *ctx);
    tri_fp4_fill(&ctx->fp4);
    ctx->outer_threads = threads;
    ctx->outer = (float *)(void *)tri_aligned((unsigned char *)(ctx + 1));
    ctx->opts = o;
    *out = ctx;
    ctx->cpu = o.cpu == TR_CPU_BEST ? tri_os_cpu() : o.cpu;
    if ((int)o.cpu < 0 || ctx->cpu > tri_os_cpu())
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "this machine is no %s",
                       tr_cpu_name(o.cpu) ? tr_cpu_name(o.cpu) : "such cpu");
    return tr_selftest(ctx);
}

tr_cpu tr_ctx_cpu(const tr_ctx *ctx) { return ctx->cpu; }

const char *tr_cpu_name(tr_cpu c)
{
    static const char *const name[TR_CPU_COUNT] = { "best", "base", "avx2", "avx512" };
    return (int)c >= 0 && c < TR_CPU_COUNT ? name[c] : NULL;
}

void tr_ctx_free(tr_ctx *ctx)
{
    if (!ctx) return;
    tr_free(ctx, ctx->acts);
    ctx->opts.alloc(ctx->opts.alloc_user, ctx, tri_ctx_size(ctx->outer_threads), 0);
}

void tr_warn(tr_ctx *ctx, const char *fmt, ...)
{
    char line[TRI_ERR_BYTES];
    va_list ap;
    if (!ctx->opts.log) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    tri_one_line(line);
    ctx->opts.log(ctx->opts.log_user, line);
}

tr_status tr_alloc(tr_ctx *ctx, void **out, size_t bytes)
{
    size_t raw_bytes;
    unsigned char *raw, *p;
    tri_block b;
    *out = NULL;
    if (bytes == 0) return TR_OK;
    TRI_TRY(tr_size_add(ctx, &raw_bytes, bytes, sizeof b + TRI_ALIGN));
    raw = (unsigned char *)ctx->opts.alloc(ctx->opts.alloc_user, NULL, 0, raw_bytes);
    if (!raw) return tr_fail(ctx, TR_ERR_MEMORY, "out of memory: %llu bytes asked for",
                             (unsigned long long)raw_bytes);
    p = tri_aligned(raw + sizeof b);
    b.raw = raw;
    b.raw_bytes = raw_bytes;
    memcpy(p - sizeof b, &b, sizeof b);
    memset(p, 0, bytes);
    ctx->bytes += raw_bytes;
    if (ctx->bytes > ctx->peak) ctx->peak = ctx->bytes;
    *out = p;
    return TR_OK;
}

void tr_free(tr_ctx *ctx, void *ptr)
{
    tri_block b;
    if (!ptr) return;
    memcpy(&b, (unsigned char *)ptr - sizeof b, sizeof b);
    ctx->bytes -= b.raw_bytes;
    ctx->opts.alloc(ctx->opts.alloc_user, b.raw, b.raw_bytes, 0);
}

size_t tr_ctx_bytes(const tr_ctx *ctx) { return ctx->bytes; }
size_t tr_ctx_peak_bytes(const tr_ctx *ctx) { return ctx->peak; }

tr_status tr_size_add(tr_ctx *ctx, size_t *out, size_t a, size_t b)
{
    *out = 0;
    if (b > SIZE_MAX - a)
        return tr_fail(ctx, TR_ERR_RANGE, "size overflows: %llu + %llu bytes",
                       (unsigned long long)a, (unsigned long long)b);
    *out = a + b;
    return TR_OK;
}

tr_status tr_size_mul(tr_ctx *ctx, size_t *out, size_t a, size_t b)
{
    *out = 0;
    if (a && b > SIZE_MAX / a)
        return tr_fail(ctx, TR_ERR_RANGE, "size overflows: %llu times %llu",
                       (unsigned long long)a, (unsigned long long)b);
    *out = a * b;
    return TR_OK;
}

/* [n] zeroed elements of elem bytes, product checked; n < 0 is a bug of the caller. */
static tr_status tri_alloc_n(tr_ctx *ctx, void **out, int64_t n, size_t elem)
{
    size_t bytes;
    *out = NULL;
    TR_ASSERT(n >= 0);
    TRI_TRY(tr_size_mul(ctx, &bytes, (size_t)n, elem));
    return tr_alloc(ctx, out, bytes);
}

/* Grows *p from used to at least `used + 1` elements by doubling; *cap is its size. */
static tr_status tri_grow(tr_ctx *ctx, void **p, int64_t *cap, int64_t used, size_t elem)
{
    void *q;
    int64_t n = *cap ? *cap : 16;
    if (used < *cap) return TR_OK;
    while (n <= used) {
        if (n > INT64_MAX / 2)
            return tr_fail(ctx, TR_ERR_RANGE, "a list of %lld entries is too long",
                           (long long)used);
        n *= 2;
    }
    TRI_TRY(tri_alloc_n(ctx, &q, n, elem));
    if (*p) memcpy(q, *p, (size_t)used * elem);
    tr_free(ctx, *p);
    *p = q;
    *cap = n;
    return TR_OK;
}

/* Are the n bytes at s this word? */
static int tri_is(const char *word, const char *s, size_t n)
{
    return strlen(word) == n && !memcmp(word, s, n);
}

static tr_status tri_strdup(tr_ctx *ctx, char **out, const char *s, size_t n)
{
    void *p;
    *out = NULL;
    TRI_TRY(tr_alloc(ctx, &p, n + 1));
    if (n) memcpy(p, s, n);
    *out = (char *)p;
    return TR_OK;
}

/* Text that grows. After the first failure nothing more happens, and status keeps it, so a writer
 * looks once, at the end. */
typedef struct tri_text { tr_ctx *ctx; char *s; size_t n, cap; tr_status status; } tri_text;

static TR_PRINTF(2, 3) void tri_text_add(tri_text *t, const char *fmt, ...)
{
    va_list ap;
    size_t n;
    void *p;
    if (t->status != TR_OK) return;
    va_start(ap, fmt);
    n = (size_t)vsnprintf(t->s ? t->s + t->n : NULL, t->cap - t->n, fmt, ap);
    va_end(ap);
    if (t->n + n >= t->cap) {
        size_t cap = 2 * (t->n + n + 1);
        t->status = tr_alloc(t->ctx, &p, cap);
        if (t->status != TR_OK) return;
        if (t->n) memcpy(p, t->s, t->n);
        tr_free(t->ctx, t->s);
        t->s = (char *)p;
        t->cap = cap;
        va_start(ap, fmt);
        vsnprintf(t->s + t->n, cap - t->n, fmt, ap);
        va_end(ap);
    }
    t->n += n;
}

static tri_text tri_text_begin(tr_ctx *ctx)
{
    tri_text t;
    memset(&t, 0, sizeof t);
    t.ctx = ctx;
    return t;
}

/* *out is owned, NULL on failure. */
static tr_status tri_text_end(tri_text *t, char **out)
{
    if (t->status != TR_OK) tr_free(t->ctx, t->s);
    *out = t->status == TR_OK ? t->s : NULL;
    return t->status;
}

/* a, b and c in one string, owned. */
static tr_status tri_concat(tr_ctx *ctx, char **out, const char *a, const char *b, const char *c)
{
    tri_text t = tri_text_begin(ctx);
    tri_text_add(&t, "%s%s%s", a, b, c);
    return tri_text_end(&t, out);
}

tr_status tr_arena_new(tr_ctx *ctx, tr_arena *a, size_t bytes)
{
    void *p;
    memset(a, 0, sizeof *a);
    TRI_TRY(tr_alloc(ctx, &p, bytes));
    a->base = (unsigned char *)p;
    a->cap = bytes;
    return TR_OK;
}

void tr_arena_free(tr_ctx *ctx, tr_arena *a)
{
    tr_free(ctx, a->base);
    memset(a, 0, sizeof *a);
}

tr_status tr_arena_push(tr_ctx *ctx, tr_arena *a, void **out, size_t bytes)
{
    size_t end;
    *out = NULL;
    TRI_TRY(tr_size_add(ctx, &end, bytes, TRI_ALIGN - 1));
    end = end / TRI_ALIGN * TRI_ALIGN;
    TRI_TRY(tr_size_add(ctx, &end, end, a->used));
    if (a->base && end > a->cap)
        return tr_fail(ctx, TR_ERR_FULL, "workspace: %llu bytes on top of %llu exceed the planned "
                       "%llu", (unsigned long long)bytes, (unsigned long long)a->used,
                       (unsigned long long)a->cap);
    if (a->base) *out = a->base + a->used;
    a->used = end;
    if (end > a->peak) a->peak = end;
    return TR_OK;
}

size_t tr_arena_mark(const tr_arena *a) { return a->used; }
void   tr_arena_rewind(tr_arena *a, size_t mark) { a->used = mark; }

/* ============================================================================
 * 3. Numbers {num}
 *
 * A float is a sign S, an exponent field X of e bits and a mantissa field M of m bits. One rule
 * reads them all, from binary64 down to the four bits of e2m1:
 *
 *     X > 0    (-1)^S  2^(X - bias)  (1 + M / 2^m)     normal: the leading 1 is not stored
 *     X = 0    (-1)^S  2^(1 - bias)  (0 + M / 2^m)     subnormal: the last spacing, down to 0
 *
 *     f64     s eeeeeeeeeee mmmmmmmm .. 52 .. mmmmmmmm      bias 1023
 *     f32     s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm            bias 127
 *     bf16    s eeeeeeee mmmmmmm                            bias 127, the upper half of f32
 *     f16     s eeeee mmmmmmmmmm                            bias 15
 *     e5m2    s eeeee mm                                    bias 15, the upper half of f16
 *     e4m3    s eeee mmm                                    bias 7
 *     e2m1    s ee m                                        bias 1
 *     e8m0      eeeeeeee                                    bias 127, the power of two alone
 *
 * Without its sign a code is an integer that grows with the value, so that "one step up" is "plus
 * one", a carry out of the mantissa is the right exponent, and overflow is a code past the largest.
 * The formats differ in what they keep there:
 *
 *     f32, bf16, f16, e5m2    X all ones: infinity when M is 0, else NaN
 *     e4m3                    no infinity; 1111.111 alone is NaN, so the largest is 1.75 2^8 = 448
 *     e2m1                    neither; the largest is 1.5 2^2 = 6
 *     e8m0                    no sign, no zero; 255 is NaN
 *
 * Widening gives one NaN, 0x7fc00000; narrowing gives the format's quiet NaN with the sign kept.
 *
 * Traps. Rounding a binary64 to binary32 and then to bf16 is not rounding it to bf16: 1 + 2^-8 +
 * 2^-30 first falls onto the tie 1 + 2^-8, then to 1, though 1 + 2^-7 is nearer; so everything
 * narrows from binary64 in one step. Rounding a NaN to bf16 by adding 0x7fff makes an infinity of
 * it, or -0. Code 0 of e8m0 is 2^-127, a subnormal binary32, and not what 0 << 23 says. OCP's e4m3
 * is not IEEE's, whose largest is 240, and not the "fnuz" kind, whose bias is 8.
 * ========================================================================= */

static const tr_dtype_info tri_dtypes[TR_DTYPE_COUNT] = {
    { "F64",     64, 1 }, { "F32",     32, 1 }, { "F16",     16, 1 }, { "BF16",    16, 1 },
    { "F8_E4M3",  8, 1 }, { "F8_E5M2",  8, 1 }, { "F4",       4, 1 }, { "F8_E8M0",  8, 1 },
    { "I64",     64, 0 }, { "I32",     32, 0 }, { "I16",     16, 0 }, { "I8",       8, 0 },
    { "U64",     64, 0 }, { "U32",     32, 0 }, { "U16",     16, 0 }, { "U8",       8, 0 },
    { "BOOL",     8, 0 }
};

const tr_dtype_info *tr_dtype_get(tr_dtype t)
{
    return (int)t >= 0 && t < TR_DTYPE_COUNT ? &tri_dtypes[t] : NULL;
}

tr_status tr_dtype_parse(tr_ctx *ctx, tr_dtype *out, const char *name, size_t n)
{
    for (int t = 0; t < TR_DTYPE_COUNT; t++)
        if (tri_is(tri_dtypes[t].name, name, n)) {
            *out = (tr_dtype)t;
            return TR_OK;
        }
    return tr_fail(ctx, TR_ERR_UNSUPPORTED, "element type \"%.*s\" is not supported",
                   n < 40 ? (int)n : 40, name);
}

uint32_t tr_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

float tr_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t tri_f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double tri_f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static int tri_finite_f32(float x) { return (tr_f32_bits(x) & 0x7f800000u) != 0x7f800000u; }

/* The fields of a float, and its codes at the top: the largest finite one, what lies beyond it
 * under IEEE overflow, and NaN. Rows as in tr_dtype, from F32 on. */
typedef struct tri_fields { int e, m, bias; uint32_t largest, beyond, nan; } tri_fields;

static const tri_fields tri_floats[] = {
    { 8, 23, 127, 0x7f7fffff, 0x7f800000, 0x7fc00000 },     /* F32 */
    { 5, 10,  15,     0x7bff,     0x7c00,     0x7e00 },     /* F16 */
    { 8,  7, 127,     0x7f7f,     0x7f80,     0x7fc0 },     /* BF16 */
    { 4,  3,   7,       0x7e,       0x7f,       0x7f },     /* F8E4M3 */
    { 5,  2,  15,       0x7b,       0x7c,       0x7e },     /* F8E5M2 */
    { 2,  1,   1,        0x7,        0x7,        0x7 }      /* F4E2M1 */
};

static const tri_fields *tri_fields_of(tr_dtype t) { return &tri_floats[(int)t - (int)TR_F32]; }

/* Widening f16, e4m3 and e5m2, whose subnormals are normal binary32 numbers: a normal code moves
 * its fields to their place and changes the bias; a subnormal is M times 2^(1 - bias - m). */
static float tri_widen(uint32_t code, tr_dtype t)
{
    const tri_fields *f = tri_fields_of(t);
    uint32_t mag = code & ((1u << (f->e + f->m)) - 1), u;
    if (mag > f->largest) {
        if (mag != f->beyond || f->beyond == f->nan) return tr_f32_from_bits(0x7fc00000);
        u = 0x7f800000;
    } else if (mag >> f->m) {
        u = (mag << (23 - f->m)) + ((uint32_t)(127 - f->bias) << 23);
    } else {
        u = tr_f32_bits((float)mag * tr_f32_from_bits((uint32_t)(128 - f->bias - f->m) << 23));
    }
    return tr_f32_from_bits(code >> (f->e + f->m) << 31 | u);
}

float tr_bf16_to_f32(uint16_t b)
{
    return tr_f32_from_bits((b & 0x7fff) > 0x7f80 ? 0x7fc00000 : (uint32_t)b << 16);
}

float tr_f16_to_f32 (uint16_t b) { return tri_widen(b, TR_F16); }
float tr_e4m3_to_f32(uint8_t b)  { return tri_widen(b, TR_F8E4M3); }
float tr_e5m2_to_f32(uint8_t b)  { return tri_widen(b, TR_F8E5M2); }

float tr_e2m1_to_f32(uint8_t b)
{
    static const float value[16] = {  0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
    return value[b & 15];
}

float tr_e8m0_to_f32(uint8_t b)
{
    if (b == 0) return tr_f32_from_bits(0x00400000);    /* 2^-127: half the smallest normal */
    return tr_f32_from_bits(b == 255 ? 0x7fc00000 : (uint32_t)b << 23);
}

/* Narrows to nearest, ties to even. x = 1.f 2^E; sig is 1f as an integer of 53 bits, X = E + bias.
 * We drop bits of sig until m are left after the leading 1, more of them where X < 1, since
 * subnormals keep the spacing of X = 1. Adding just under half of what is dropped, plus the last
 * bit that is kept, makes the truncation round; and the leading 1, added to X - 1, makes it X. */
static uint32_t tri_narrow(double x, tr_dtype t, tr_overflow o)
{
    const tri_fields *f = tri_fields_of(t);
    uint64_t u = tri_f64_bits(x), mag = u & 0x7fffffffffffffffu, code;
    uint64_t sig = (mag & 0xfffffffffffffu) | 0x10000000000000u;
    uint32_t sign = (uint32_t)(u >> 63) << (f->e + f->m);
    int X = (int)(mag >> 52) - 1023 + f->bias, drop = 52 - f->m;
    if (mag > 0x7ff0000000000000u) return sign | f->nan;
    if (X < 1) {
        drop = drop + 1 - X > 54 ? 54 : drop + 1 - X;   /* 54: all gone, x rounds to 0 */
        X = 1;
    }
    sig += ((uint64_t)1 << (drop - 1)) - 1 + (sig >> drop & 1);
    code = ((uint64_t)(X - 1) << f->m) + (sig >> drop);
    if (code > f->largest) code = o == TR_OVERFLOW_SATURATE ? f->largest : f->beyond;
    return sign | (uint32_t)code;
}

uint16_t tr_f32_to_bf16(float x)
{
    return (uint16_t)tri_narrow((double)x, TR_BF16, TR_OVERFLOW_IEEE);
}

uint16_t tr_f32_to_f16(float x)
{
    return (uint16_t)tri_narrow((double)x, TR_F16, TR_OVERFLOW_IEEE);
}

uint8_t tr_f32_to_e4m3(float x, tr_overflow o)
{
    return (uint8_t)tri_narrow((double)x, TR_F8E4M3, o);
}

uint8_t tr_f32_to_e5m2(float x, tr_overflow o)
{
    return (uint8_t)tri_narrow((double)x, TR_F8E5M2, o);
}

uint8_t tr_f32_to_e2m1(float x)
{
    return (uint8_t)tri_narrow((double)x, TR_F4E2M1, TR_OVERFLOW_SATURATE);
}

/* The place of x among all floats in increasing order; both zeros are 0. */
static int64_t tri_f32_place(float x)
{
    int64_t mag = tr_f32_bits(x) & 0x7fffffffu;
    return tr_f32_bits(x) >> 31 ? -mag : mag;
}

int64_t tr_ulps(float a, float b)
{
    int64_t d = tri_f32_place(a) - tri_f32_place(b);
    if (a != a || b != b) return INT64_MAX;
    return d < 0 ? -d : d;
}

/* Tensors in files need not be aligned, so elements are copied out. */
static uint16_t tri_load16(const void *p) { uint16_t u; memcpy(&u, p, sizeof u); return u; }
static uint32_t tri_load32(const void *p) { uint32_t u; memcpy(&u, p, sizeof u); return u; }
static uint64_t tri_load64(const void *p) { uint64_t u; memcpy(&u, p, sizeof u); return u; }

double tr_get_f64(const void *x, tr_dtype t, int64_t i)
{
    const unsigned char *p = (const unsigned char *)x;
    switch (t) {
    case TR_F64:    return tri_f64_from_bits(tri_load64(p + 8 * i));
    case TR_F32:    return (double)tr_f32_from_bits(tri_load32(p + 4 * i));
    case TR_F16:    return (double)tr_f16_to_f32(tri_load16(p + 2 * i));
    case TR_BF16:   return (double)tr_bf16_to_f32(tri_load16(p + 2 * i));
    case TR_F8E4M3: return (double)tr_e4m3_to_f32(p[i]);
    case TR_F8E5M2: return (double)tr_e5m2_to_f32(p[i]);
    case TR_F4E2M1: return (double)tr_e2m1_to_f32((uint8_t)(p[i / 2] >> i % 2 * 4));
    case TR_E8M0:   return (double)tr_e8m0_to_f32(p[i]);
    case TR_I64:    return (double)(int64_t)tri_load64(p + 8 * i);
    case TR_I32:    return (double)(int32_t)tri_load32(p + 4 * i);
    case TR_I16:    return (double)(int16_t)tri_load16(p + 2 * i);
    case TR_I8:     return (double)(int8_t)p[i];
    case TR_U64:    return (double)tri_load64(p + 8 * i);
    case TR_U32:    return (double)tri_load32(p + 4 * i);
    case TR_U16:    return (double)tri_load16(p + 2 * i);
    case TR_U8:     return (double)p[i];
    case TR_BOOL:   return p[i] ? 1 : 0;
    default:        return tri_f64_from_bits(0x7ff8000000000000u);
    }
}

/* Powers of two and NaN; nothing else has a code. */
static int tri_code_e8m0(uint64_t *u, double v)
{
    int e;
    if (v != v) { *u = 255; return 1; }
    if (frexp(v, &e) != 0.5 || e - 1 < -127 || e - 1 > 127) return 0;
    *u = (uint64_t)(e - 1 + 127);
    return 1;
}

static int tri_code_int(uint64_t *u, tr_dtype t, double v)
{
    int with_sign = t == TR_I64 || t == TR_I32 || t == TR_I16 || t == TR_I8;
    int bits = t == TR_BOOL ? 1 : tri_dtypes[t].bits - with_sign;
    double hi = ldexp(1, bits);
    if (!(v >= (with_sign ? -hi : 0) && v < hi) || v != trunc(v)) return 0;
    *u = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
    return 1;
}

/* x[i] = v as type t, floats to nearest even; an integer only if v is one and fits. 0 if v cannot
 * be stored: such a v, or packed F4, whose elements are not bytes. */
static int tri_put(void *x, tr_dtype t, int64_t i, double v)
{
    uint64_t u;
    size_t size;
    if (!tr_dtype_get(t) || t == TR_F4E2M1) return 0;
    if (t == TR_F64) u = tri_f64_bits(v);
    else if (t < TR_F4E2M1) u = tri_narrow(v, t, TR_OVERFLOW_IEEE);
    else if (t == TR_E8M0) { if (!tri_code_e8m0(&u, v)) return 0; }
    else if (!tri_code_int(&u, t, v)) return 0;
    size = (size_t)tri_dtypes[t].bits / 8;
    memcpy((unsigned char *)x + (size_t)i * size, &u, size);    /* the low bytes */
    return 1;
}

/* ============================================================================
 * 4. Elementary functions {fn}
 *
 * Every function is made in the same three steps. A reduction, exact or nearly so, brings the
 * argument to a short interval around 0: exponent bits are moved, or a multiple of ln 2 or pi/2 is
 * taken off. There a polynomial is as good as the function. Then what was taken off is put back.
 *
 * Why binary64. A binary32 argument and all that is done with it fit into 53 bits with 29 to
 * spare: products of two are exact, subnormals are normal numbers, e^88 does not overflow, and the
 * errors of reduction, polynomial and assembly stay under 2^-35 of the result. Rounding that to 24
 * bits is off by at most 1/2 + 2^-11 ulp; the first term is what any correct rounding may do. In
 * binary32 the same would need fused multiply-adds and pairs of numbers at every step. No product
 * is fused here: plain + - * / give the same bits with FMA instructions and without.
 *
 * Why it vectorises. No branch and no table (but for the digits of 2/pi): both sides of a choice
 * are computed, and a select keeps one. A loop over a core (tri_expf, ...) is vector code at -O3
 * with the bits of the scalar one, since each lane does the same operations. The cores are inlined
 * always, so a caller that is compiled for AVX2 or AVX-512 gets them compiled so.
 *
 * Coefficients are minimax fits by tests/make_fn.py, which prints them with their errors.
 *
 * Traps. exp(x) - 1 loses all digits of a small x, as log(1 + x) does. e^-104 is still 0.47 of the
 * smallest subnormal and e^-103.97 rounds to it. log(1 + e^x) is 0 for x < -37 even in binary64.
 * sin(x) for x = 10^20 is a number like any other: x is exact, and what must be exact too is the
 * multiple of pi/2 that is taken off. -0 is lost by the first x + 0.
 * ========================================================================= */

#define TRI_SQRT_2_PI 0.79788456080286541   /* sqrt(2/pi) */

/* sigma(x) = 1 / (1 + e^-x). The exponential is always taken of -|x|, so it cannot overflow. */
double tr_sigmoid_f64(double x)
{
    double e = exp(x < 0 ? x : -x);
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* silu(x) = x sigma(x); its limit at -infinity is 0, where the product would be NaN. */
double tr_silu_f64(double x)
{
    double s = tr_sigmoid_f64(x);
    return s == 0 ? 0 : x * s;
}

/* softplus(x) = log(1 + e^x) = max(x, 0) + log1p(e^-|x|). For x << 0 it is e^x to all digits;
 * log(1 + e^x) would be 0 from x = -37 on, and a router that scores by it would see ties. */
double tr_softplus_f64(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x));
}

/* gelu(x) = x Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2 = (1 + erf(x / sqrt(2))) / 2, the share of a
 * normal distribution below x; the second form has no digits left for x << 0 (Hendrycks & Gimpel
 * 2016). Its limit at -infinity is -0. */
double tr_gelu_erf_f64(double x)
{
    double p = erfc(-x * sqrt(0.5)) / 2;
    return p == 0 ? -0.0 : x * p;
}

/* The same paper's approximation, torch's gelu(approximate="tanh"):
 *     x (1 + tanh(z)) / 2 = x sigma(2 z),  z = sqrt(2/pi) (x + 0.044715 x^3) */
double tr_gelu_tanh_f64(double x)
{
    double s = tr_sigmoid_f64(2 * TRI_SQRT_2_PI * (x + 0.044715 * x * x * x));
    return s == 0 ? -0.0 : x * s;
}

#if defined(__GNUC__)
#define TRI_INLINE static inline __attribute__((always_inline))
#else
#define TRI_INLINE static inline
#endif

/* ---- the fused multiply-add of the contract's kernels */

/* 1 if this file is compiled for hardware that has it. Bodies that are compiled for several cpus
 * take hw as a constant argument instead. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
#define TRI_HW_FMA 1
#else
#define TRI_HW_FMA 0
#endif

/* a b + c rounded once, without the instruction. p = a b is exact in binary64: 48 bits, and its
 * exponent from -298 to 255. s = fl64(p + c), and e = p + c - s exactly (Knuth's two-sum; nothing
 * here can overflow or be subnormal in binary64). Rounding s to binary32 would round twice; so we
 * first make s the sum rounded to odd: if e is not 0, the exact sum lies between two neighbours in
 * binary64, one even and one odd, and we take the odd one. s is one of the two: if it is even, the
 * other lies one step towards e, which in the bits is one up if e has the sign of s, else one
 * down, across powers of two as well.
 *
 * Rounded to odd, no inexact sum stands on a number of binary32 or midway between two, since
 * these, subnormal or not, end in 28 zeros at least: 53 bits against 24 + 1. It lies on the same
 * side of all of them as the exact sum. So the last rounding decides as if it saw the exact sum
 * (Boldo and Melquiond 2008), to subnormals, to zero with its sign, and to infinity.
 *
 * e = 0: s is exact, and so is the sign of a zero. A sum of nonzero terms that is 0 is exact.
 * An infinite s, or NaN: e is NaN, which is neither above nor below 0, and s stays. */
TRI_INLINE float tri_fmaf_soft(float a, float b, float c)
{
    double p = (double)a * (double)b, d = (double)c, s = p + d, v = s - p;
    double e = (p - (s - v)) + (d - v);
    uint64_t u = tri_f64_bits(s), away = (tri_f64_bits(e) ^ u) >> 63;   /* 1: signs differ */
    uint64_t inexact = (uint64_t)((e > 0) | (e < 0));
    u += (inexact & ~u) * (1 - 2 * away);
    return (float)tri_f64_from_bits(u);
}

/* fl(a b + c). hw is a constant where this is inlined: 1 in a body that is compiled for hardware
 * with the instruction. Same bits either way (the payload of a NaN excepted). */
TRI_INLINE float tri_fmaf(int hw, float a, float b, float c)
{
    return hw ? fmaf(a, b, c) : tri_fmaf_soft(a, b, c);
}

/* ---- small tools, all in binary64 */

/* t = x + TRI_ROUND has the integer nearest to x in its low bits, because numbers of that size
 * stand 1 apart; t - TRI_ROUND is that integer as a number. For |x| < 2^51. */
#define TRI_ROUND 6755399441055744.0    /* 1.5 2^52 */
#define TRI_LOG2E 1.4426950408889634
#define TRI_LN2   0.69314718055994529
#define TRI_SIGN  0x8000000000000000u
#define TRI_SQRT_HALF 0x3fe6a09e667f3bcdu   /* the bits of sqrt(1/2) */

/* 2^k, where t = k + TRI_ROUND and |k| < 1023: k + bias, moved to the exponent. */
TRI_INLINE double tri_pow2(double t)
{
    return tri_f64_from_bits((tri_f64_bits(t) + 1023) << 52);
}

/* yes ? a : b, in bits: gcc takes it that a comparison may trap, and leaves loops with a ?: between
 * floats scalar. */
TRI_INLINE double tri_pick(int yes, double a, double b)
{
    uint64_t none = (uint64_t)yes - 1;          /* no bit if yes, else all */
    return tri_f64_from_bits((tri_f64_bits(a) & ~none) | (tri_f64_bits(b) & none));
}

TRI_INLINE double tri_clamp(double x, double lo, double hi)     /* NaN stays */
{
    x = tri_pick(x < lo, lo, x);
    return tri_pick(x > hi, hi, x);
}

TRI_INLINE double tri_with_sign(double y, double x)             /* |y| with the sign of x */
{
    return tri_f64_from_bits((tri_f64_bits(y) & ~TRI_SIGN) | (tri_f64_bits(x) & TRI_SIGN));
}

TRI_INLINE double tri_one_nan(double y)
{
    return tri_pick(y == y, y, tri_f64_from_bits(0x7ff8000000000000u));
}

/* The one rounding to binary32. */
TRI_INLINE float tri_to_f32(double y) { return (float)tri_one_nan(y); }

/* a + b = h + *l exactly (Knuth). */
TRI_INLINE double tri_two_sum(double a, double b, double *l)
{
    double h = a + b, v = h - a;
    *l = (a - (h - v)) + (b - v);
    return h;
}

/* The upper 26 bits of x, to nearest; the rest fits into 26 bits too (Veltkamp). */
TRI_INLINE double tri_upper(double x)
{
    double t = 134217729.0 * x;         /* 2^27 + 1 */
    return t - (t - x);
}

/* a b = h + *l exactly (Dekker), for |a|, |b| < 2^990 and |a b| over 2^-960. */
TRI_INLINE double tri_two_prod(double a, double b, double *l)
{
    double h = a * b, ah = tri_upper(a), al = a - ah, bh = tri_upper(b), bl = b - bh;
    *l = ((ah * bh - h) + ah * bl + al * bh) + al * bl;
    return h;
}

/* ---- exponentials
 *
 *     e^x = 2^z, z = x log2(e);   z = k + r, k the nearest integer, |r| <= 1/2
 *     2^z = 2^k (1 + q),          q = 2^r - 1 = r Q(r)
 *
 * z is off by 2^-53 z, which for |z| < 160 is 2^-46 of the result. */

/* q with 2^z = *scale (1 + q). Q is good to 2^-37.7 of q. */
TRI_INLINE double tri_exp2_parts(double z, double *scale)
{
    double t = z + TRI_ROUND, r = z - (t - TRI_ROUND), p = 1.3215473638376677e-06;
    p = p * r + 1.530360894321085e-05;
    p = p * r + 0.00015403629606012824;
    p = p * r + 0.0013333478817755093;
    p = p * r + 0.0096181289425099487;
    p = p * r + 0.055504109060035223;
    p = p * r + 0.2402265069648917;
    p = p * r + 0.69314718055687696;
    *scale = tri_pow2(t);
    return p * r;
}

TRI_INLINE double tri_exp2(double z)
{
    double scale, q = tri_exp2_parts(z, &scale);
    return scale + scale * q;
}

/* 2^z - 1. For k = 0 this is q, with all its digits; else 2^k - 1 is at least 1/2 in magnitude and
 * cancels at most a half of it. */
TRI_INLINE double tri_exp2m1(double z)
{
    double scale, q = tri_exp2_parts(z, &scale);
    return (scale - 1) + scale * q;
}

/* Beyond the clamps the result rounds to 0, to -1, to infinity: e^89 > 2^128, e^-104 < 2^-150. */
TRI_INLINE float tri_expf(float x)
{
    return tri_to_f32(tri_exp2(tri_clamp((double)x, -105, 90) * TRI_LOG2E));
}

TRI_INLINE float tri_expm1f(float x)
{
    double d = (double)x, y = tri_exp2m1(tri_clamp(d, -105, 90) * TRI_LOG2E);
    return tri_to_f32(tri_pick(d == 0, d, y));
}

/* tanh(a) = (e^2a - 1) / (e^2a + 1) = E / (E + 2), E = e^2a - 1. tanh(10) rounds to 1. */
TRI_INLINE float tri_tanhf(float x)
{
    double E = tri_exp2m1(tri_clamp(fabs((double)x), 0, 10) * (2 * TRI_LOG2E));
    return tri_to_f32(tri_with_sign(E / (E + 2), (double)x));
}

/* On the left e^-x is large but finite, e^110, and 1 / (1 + e^-x) has all its digits. */
TRI_INLINE float tri_sigmoidf(float x)
{
    return tri_to_f32(1 / (1 + tri_exp2(tri_clamp((double)x, -110, 110) * -TRI_LOG2E)));
}

/* erf(a) = 1 - erfc(a), and -log2(erfc(a)) = a Q(a) is a smooth function: so it is 1 - 2^(-a Q),
 * with all its digits near 0 too. An error d of a Q moves erf by ln2 erfc(a) d, so that Q need be
 * good only where erfc is not small. 2^-35.4 of erf; erf(4) rounds to 1. */
TRI_INLINE float tri_erff(float x)
{
    double a = tri_clamp(fabs((double)x), 0, 4), p = 5.2452093854597241e-08;
    p = p * a - 9.6267668294601809e-07;
    p = p * a + 7.5478986024199386e-06;
    p = p * a - 3.1386289944717941e-05;
    p = p * a + 5.8740859944312763e-05;
    p = p * a + 8.6217009843301783e-05;
    p = p * a - 0.00089393382249597006;
    p = p * a + 0.0024705724410486111;
    p = p * a - 0.00030980099591453535;
    p = p * a - 0.027594941868425173;
    p = p * a + 0.14826936855952083;
    p = p * a + 0.91844819448456072;
    p = p * a + 1.6279070285745547;
    return tri_to_f32(tri_with_sign(tri_exp2m1(-(p * a)), (double)x));
}

/* With b = |x|: gelu(x) = max(x, 0) - b Phi(-b), so that nothing cancels for x << 0, and
 * Phi(-b) = e^(-b^2 / 2) M(b) with M(b) smooth (Mills' ratio) and, in t = 4 / (4 + b), close to a
 * polynomial: 2^-38.2 of it up to b = 14.5, and 1/2 to the bit at b = 0, so that small x are halved
 * exactly. b^2 is exact. From b = 14.2 on the product rounds to 0. */
TRI_INLINE float tri_gelu_erff(float x)
{
    double d = (double)x, b = tri_clamp(fabs(d), 0, 14.5), t = 4 / (4 + b);
    double p = 0.0093103125704633843, y;
    p = p * t - 0.075833800497070322;
    p = p * t + 0.26294137666100481;
    p = p * t - 0.49860519030803491;
    p = p * t + 0.57040926969371719;
    p = p * t - 0.45695463920633556;
    p = p * t + 0.29552507884329121;
    p = p * t - 0.074457520913253486;
    p = p * t + 0.10114596733019122;
    p = p * t + 0.072238076733998624;
    p = p * t + 0.094962255050921249;
    p = p * t + 0.099572626288557731;
    p = p * t + 0.099746522505758869;
    p = p * t - 3.3475321008675682e-07;
    y = tri_pick(d > 0, d, 0) - b * (tri_exp2(b * b * (-0.5 * TRI_LOG2E)) * p);
    y = tri_pick(d == d, y, d);
    return tri_to_f32(tri_pick(d == 0, d, y));
}

/* 2 z is -112.5 at x = -11, from where on x sigma(2 z) rounds to 0. */
TRI_INLINE float tri_gelu_tanhf(float x)
{
    double d = tri_clamp((double)x, -11, (double)INFINITY), z = d + 0.044715 * d * d * d;
    z = tri_clamp(2 * TRI_SQRT_2_PI * z, -113, 110);
    return tri_to_f32(d / (1 + tri_exp2(z * -TRI_LOG2E)));
}

/* ---- logarithms
 *
 *     x = 2^k m, m in [sqrt(1/2), sqrt(2));   f = m - 1, exactly
 *     log x = k ln2 + log(1 + f)
 *     log(1 + f) = 2 atanh(s), s = f / (2 + f);   |s| < 0.172, so a short series in s^2 will do
 *
 * Around x = 1 k is 0, and nothing cancels: the result is s times nearly 2. */

/* k, and *m; x > 0 and normal. Taking the bits of sqrt(1/2) from those of x leaves k in the upper
 * twelve; they become a number by way of 2^52, in whose last bits they are put. */
TRI_INLINE double tri_split(double x, double *m)
{
    uint64_t u = tri_f64_bits(x), K = (u - TRI_SQRT_HALF + ((uint64_t)1023 << 52)) >> 52;
    *m = tri_f64_from_bits(u - (K << 52) + ((uint64_t)1023 << 52));
    return tri_f64_from_bits(K | 0x4330000000000000u) - (4503599627370496.0 + 1023);
}

/* k ln2 + log(1 + f), to 2^-37.6 */
TRI_INLINE double tri_log_sum(double k, double f)
{
    double s = f / (2 + f), z = s * s, p = 0.23581513218611527;
    p = p * z + 0.28537344867432002;
    p = p * z + 0.4000033456708334;
    p = p * z + 0.66666665648496171;
    return k * TRI_LN2 + s * (2 + z * p);
}

/* y = log(x) where x is positive and finite; else what the logarithm is there. */
TRI_INLINE double tri_log_ends(double x, double y)
{
    y = tri_pick(x < (double)INFINITY, y, x);           /* infinity, NaN */
    y = tri_pick(x == 0, -(double)INFINITY, y);
    return tri_pick(x < 0, (double)NAN, y);
}

TRI_INLINE float tri_logf(float x)              /* a subnormal x is normal in binary64 */
{
    double m, k = tri_split((double)x, &m);
    return tri_to_f32(tri_log_ends((double)x, tri_log_sum(k, m - 1)));
}

/* log(1 + x). Where k = 0, f is x itself: 1 + x has lost its digits, but is not used. Elsewhere
 * |x| > 0.29, and rounding 1 + x costs 2^-53. */
TRI_INLINE double tri_log1p(double x)
{
    double m, k = tri_split(1 + x, &m), f = tri_pick(k == 0, x, m - 1);
    return tri_log_ends(1 + x, tri_log_sum(k, f));
}

TRI_INLINE float tri_log1pf(float x)
{
    double d = (double)x;
    return tri_to_f32(tri_pick(d == 0, d, tri_log1p(d)));
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|): the exponential cannot overflow, and for x << 0 the
 * result is e^x with all its digits. */
TRI_INLINE float tri_softplusf(float x)
{
    double d = (double)x, e = tri_exp2(tri_clamp(-fabs(d), -110, 0) * TRI_LOG2E);
    return tri_to_f32(tri_pick(d > 0, d, 0) + tri_log1p(e));
}

/* ---- sine and cosine
 *
 *     x = n pi/2 + r, |r| <= pi/4;   by n mod 4: sin x = sin r, cos r, -sin r, -cos r
 *
 * r is kept as h + l: near a multiple of pi/2 it is the small rest of a large difference. */

/* sin(h + l) = sin h + l cos h, to 2^-56 and the roundings */
TRI_INLINE double tri_sin_poly(double h, double l)
{
    double z = h * h, p = 1.5896230074390288e-10;
    p = p * z - 2.5050747759863509e-08;
    p = p * z + 2.7557313621350977e-06;
    p = p * z - 0.00019841269829589363;
    p = p * z + 0.0083333333333221182;
    p = p * z - 0.1666666666666663;
    return h + (h * z * p + l * (1 - 0.5 * z));
}

/* cos(h + l) = cos h - l sin h */
TRI_INLINE double tri_cos_poly(double h, double l)
{
    double z = h * h, p = -1.1358536916813013e-11;
    p = p * z + 2.0875700851838813e-09;
    p = p * z - 2.7557314179391761e-07;
    p = p * z + 2.4801587288852144e-05;
    p = p * z - 0.0013888888888873058;
    p = p * z + 0.041666666666666595;
    return 1 - (0.5 * z - (z * z * p - h * l));
}

/* sin(n pi/2 + r) from s = sin r and c = cos r; with n + 1 it is the cosine. */
TRI_INLINE double tri_quadrant(uint64_t n, double s, double c)
{
    double v = tri_pick((int)(n & 1), c, s);
    return tri_f64_from_bits(tri_f64_bits(v) ^ (n & 2) << 62);
}

/* 2/pi in digits of base 2^24. */
static const double tri_two_over_pi[9] = {
    10680707, 7228996, 1387004, 2578385, 16069853, 12639074, 9804092, 4427841, 16646144
};

/* p less a multiple of 4, |p| < 2^53; exact. */
TRI_INLINE double tri_mod4(double p)
{
    return p - 4 * ((0.25 * p + TRI_ROUND) - TRI_ROUND);
}

/* n mod 4, and *r, for any binary32 x (Payne and Hanek). x 2/pi = x (d0 2^-24 + d1 2^-48 + ..): of
 * this we want the value mod 4 and 70 bits behind the point, which five digits give. With e the
 * exponent of x, x is a multiple of 2^(e-23), and digit i gives multiples of 2^(e-23-24(i+1)): of
 * 4, that is nothing, for the first j = (e - 25) / 24 digits. The products are exact, 24 bits by
 * 24. p0 < 2^49 and p1 < 2^25 are taken mod 4, p2 < 2 and the rest are small; nothing is lost on
 * the way to h + l. x comes no nearer to a multiple of pi/2 than 2^-30, so r has 40 good bits. */
TRI_INLINE uint64_t tri_reduce_f32(double x, double *r)
{
    int e = (int)(tri_f64_bits(x) >> 52 & 0x7ff) - 1023, j;
    const double *d = tri_two_over_pi;
    double h, l, l2, t, u;
    e = e > 127 ? 127 : e;                          /* infinity and NaN: r will be NaN */
    j = e < 49 ? 0 : (e - 25) / 24;
    d += j;
    u = x * tri_f64_from_bits((uint64_t)(1023 - 24 * (j + 1)) << 52);
    h = tri_two_sum(tri_mod4(u * d[0]), tri_mod4(u * 5.9604644775390625e-08 * d[1]), &l);
    u *= 3.5527136788005009e-15;                    /* 2^-48 */
    h = tri_two_sum(h, u * d[2], &l2);
    u *= 5.9604644775390625e-08;                    /* 2^-24 */
    l += l2 + (u * d[3] + u * 5.9604644775390625e-08 * d[4]);
    t = h + TRI_ROUND;
    *r = ((h - (t - TRI_ROUND)) + l) * 1.5707963267948966;
    return tri_f64_bits(t);
}

TRI_INLINE float tri_sinf(float x)
{
    double r, d = (double)x;
    uint64_t n = tri_reduce_f32(d, &r);
    double y = tri_quadrant(n, tri_sin_poly(r, 0), tri_cos_poly(r, 0));
    return tri_to_f32(tri_pick(d == 0, d, y));
}

TRI_INLINE float tri_cosf(float x)
{
    double r;
    uint64_t n = tri_reduce_f32((double)x, &r);
    return tri_to_f32(tri_quadrant(n + 1, tri_sin_poly(r, 0), tri_cos_poly(r, 0)));
}

float tr_expf     (float x) { return tri_expf(x); }
float tr_expm1f   (float x) { return tri_expm1f(x); }
float tr_logf     (float x) { return tri_logf(x); }
float tr_log1pf   (float x) { return tri_log1pf(x); }
float tr_tanhf    (float x) { return tri_tanhf(x); }
float tr_sigmoidf (float x) { return tri_sigmoidf(x); }
float tr_softplusf(float x) { return tri_softplusf(x); }
float tr_erff     (float x) { return tri_erff(x); }
float tr_gelu_erff (float x) { return tri_gelu_erff(x); }
float tr_gelu_tanhf(float x) { return tri_gelu_tanhf(x); }
float tr_sinf     (float x) { return tri_sinf(x); }
float tr_cosf     (float x) { return tri_cosf(x); }

/* ---- binary64
 *
 * Here nothing is to spare, so what would lose bits is kept as a sum h + l of two numbers. */

#define TRI_LN2_HI 0.69314718055989033      /* 42 bits: k times it is exact */
#define TRI_LN2_LO 5.4979230187083712e-14

/* e^(x + l), |l| far below |x|:   r = x + l - k ln2, |r| <= ln2 / 2;   e^r = 1 + r + r^2 P(r), to
 * 2^-60. 2^k is multiplied in two halves, since 2^1024 and 2^-1074 are results, but no factors. */
static double tri_exp_pair(double x, double l)
{
    double t = x * TRI_LOG2E + TRI_ROUND, k = t - TRI_ROUND, p = 2.0826619102482348e-09, t2;
    double hi = x - k * TRI_LN2_HI, lo = l - k * TRI_LN2_LO, r = hi + lo;
    p = p * r + 2.5112024821849769e-08;
    p = p * r + 2.7557581807135586e-07;
    p = p * r + 2.7557234895834474e-06;
    p = p * r + 2.480158692677383e-05;
    p = p * r + 0.00019841269896350431;
    p = p * r + 0.0013888888889115496;
    p = p * r + 0.0083333333333170476;
    p = p * r + 0.041666666666666095;
    p = p * r + 0.16666666666666682;
    p = p * r + 0.5;
    p = 1 + (r + (r * r * p + (lo - (r - hi))));
    t = 0.5 * k + TRI_ROUND;
    t2 = k - (t - TRI_ROUND) + TRI_ROUND;
    return tri_one_nan(p * tri_pow2(t) * tri_pow2(t2));
}

double tr_exp64(double x) { return tri_exp_pair(tri_clamp(x, -800, 800), 0); }

/* As tri_split; a subnormal is first made normal. */
static double tri_split_any(double x, double *m)
{
    int tiny = x < DBL_MIN;
    return tri_split(tiny ? x * 18014398509481984.0 : x, m) - (tiny ? 54 : 0);      /* 2^54 */
}

/* (2 atanh(s) - 2 s - 2/3 s^3) / s^5, z = s^2; to 2^-65 of the logarithm */
static double tri_atanh_tail(double z)
{
    double p = 0.13195859781531022;
    p = p * z + 0.13256869272630395;
    p = p * z + 0.15386755073158759;
    p = p * z + 0.18181784417174213;
    p = p * z + 0.22222222519338541;
    p = p * z + 0.28571428570102919;
    return p * z + 0.4000000000000225;
}

#define TRI_TWO_THIRDS 0.66666666666666663

double tr_log64(double x)
{
    double m, k = tri_split_any(x, &m), f = m - 1, s = f / (2 + f), z = s * s;
    double tail = s * z * (TRI_TWO_THIRDS + z * tri_atanh_tail(z));
    double y = k * TRI_LN2_HI + (2 * s + (tail + k * TRI_LN2_LO));
    return tri_one_nan(tri_log_ends(x, y));
}

/* log x = h + *l to 2^-63, x > 0 and finite. x^y = e^(y log x) multiplies the error of the
 * logarithm by up to 745; so the first two terms of the series are made of pairs,
 *     s + sl = f / (d + dl), d + dl = 2 + f;   z + zl = s^2;   c + cl = s^3;   w + wl = 2/3 s^3
 * and the tail, at most 2^-12 of the logarithm, of single numbers. */
static double tri_log_pair(double x, double *l)
{
    double m, k = tri_split_any(x, &m), f = m - 1, d = 2 + f, dl = f - (d - 2), s = f / d;
    double pl, p = tri_two_prod(s, d, &pl), sl = (((f - p) - pl) - s * dl) / d;
    double zl, z = tri_two_prod(s, s, &zl);
    double cl, c = tri_two_prod(s, z, &cl);
    double wl, w = tri_two_prod(c, TRI_TWO_THIRDS, &wl);
    double h, l1, l2;
    cl += 3 * z * sl + s * zl;
    wl += TRI_TWO_THIRDS * cl + 3.7007434154171883e-17 * c;     /* 2/3 has a low part too */
    h = tri_two_sum(k * TRI_LN2_HI, 2 * s, &l1);
    h = tri_two_sum(h, w, &l2);
    return tri_two_sum(h, l1 + l2 + (2 * sl + (wl + c * z * tri_atanh_tail(z)) + k * TRI_LN2_LO),
                       l);
}

double tr_pow64(double x, double y)
{
    double l, h, pl, p;
    if (!(x > 0 && x <= DBL_MAX && y - y == 0)) return tri_one_nan((double)NAN);
    y = tri_clamp(y, -1e20, 1e20);              /* |log x| >= 2^-53, so 0, 1 or infinity */
    h = tri_log_pair(x, &l);
    p = tri_two_prod(y, h, &pl);
    pl += y * l;
    return tri_exp_pair(tri_clamp(p, -800, 800), fabs(p) < 800 ? pl : 0);
}

/* x - n pi/2 = h + *l, for |x| <= 2^31 (Cody and Waite). pi/2 is cut into pieces of 21 bits, the
 * first of 22, so that n < 2^31 times a piece is exact. The first two differences are exact: both
 * sides are multiples of a common unit, and the result is below 2^53 of them. The others leave
 * their errors in l. What is left out is n 2^-158; no x is nearer to n pi/2 than about 2^-60. */
static uint64_t tri_reduce_f64(double x, double *h, double *l)
{
    double t = x * 0.63661977236758138 + TRI_ROUND, n = t - TRI_ROUND, l1, l2, l3;
    double a = (x - n * 1.570796012878418) - n * 3.139164164167596e-07;
    a = tri_two_sum(a, -(n * 6.2233638381536949e-14), &l1);
    a = tri_two_sum(a, -(n * 8.3337412738951847e-20), &l2);
    a = tri_two_sum(a, -(n * 1.6446246107757519e-26), &l3);
    *h = tri_two_sum(a, l1 + (l2 + (l3 - n * 1.082856673921914e-32)), l);
    return tri_f64_bits(t);
}

void tr_sincos64(double x, double *sin_x, double *cos_x)
{
    double h, l, s, c, in = fabs(x) <= 2147483648.0 ? x : (double)NAN;
    uint64_t n = tri_reduce_f64(in, &h, &l);
    s = tri_sin_poly(h, l);
    c = tri_cos_poly(h, l);
    *sin_x = x == 0 ? x : tri_one_nan(tri_quadrant(n, s, c));
    *cos_x = tri_one_nan(tri_quadrant(n + 1, s, c));
}

/* ============================================================================
 * 5. Views {view}
 *
 *     element (i_0, .., i_r-1) of v  =  data[i_0 stride_0 + .. + i_r-1 stride_r-1]
 *
 * A head of a projection, a window of a cache, the new rows of a state, one vector read by all
 * heads: each is the same memory under other numbers, so nothing is moved to be seen differently.
 * Views are handed over by value and own nothing.
 *
 * Traps. Strides count elements, not bytes. A dimension of one may have any stride and is
 * contiguous all the same. Joining needs rows without a gap between them. NULL plus an offset is a
 * pointer to somewhere, so a planned view stays NULL whatever is cut out of it. Elements of four
 * bits have no address: their views tell shapes, and tr_get_f64 reads them.
 * ========================================================================= */

tr_view tr_view_none(void)
{
    tr_view v;
    memset(&v, 0, sizeof v);
    return v;
}

tr_view tr_view_of(void *data, tr_dtype t, int rank, const int64_t *shape)
{
    tr_view v = tr_view_none();
    int64_t step = 1;
    TR_ASSERT(rank >= 0 && rank <= TR_MAX_RANK);
    v.data = data;
    v.dtype = t;
    v.rank = rank;
    for (int i = rank - 1; i >= 0; i--) {
        v.shape[i] = shape[i];
        v.stride[i] = step;
        step *= shape[i];
    }
    return v;
}

tr_view tr_view1(void *data, tr_dtype t, int64_t a)
{
    return tr_view_of(data, t, 1, &a);
}

tr_view tr_view2(void *data, tr_dtype t, int64_t a, int64_t b)
{
    int64_t s[2];
    s[0] = a; s[1] = b;
    return tr_view_of(data, t, 2, s);
}

tr_view tr_view3(void *data, tr_dtype t, int64_t a, int64_t b, int64_t c)
{
    int64_t s[3];
    s[0] = a; s[1] = b; s[2] = c;
    return tr_view_of(data, t, 3, s);
}

tr_view tr_view4(void *data, tr_dtype t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t s[4];
    s[0] = a; s[1] = b; s[2] = c; s[3] = d;
    return tr_view_of(data, t, 4, s);
}

/* data + i elements; a planned view stays planned. */
static void *tri_view_ptr(tr_view v, int64_t i)
{
    if (!v.data) return NULL;
    return (unsigned char *)v.data + i * (tr_dtype_get(v.dtype)->bits / 8);
}

tr_view tr_view_slice(tr_view v, int dim, int64_t begin, int64_t n)
{
    TR_ASSERT(dim >= 0 && dim < v.rank && begin >= 0 && n >= 0 && begin + n <= v.shape[dim]);
    v.data = tri_view_ptr(v, begin * v.stride[dim]);
    v.shape[dim] = n;
    return v;
}

tr_view tr_view_at(tr_view v, int64_t i)
{
    TR_ASSERT(v.rank > 0 && i >= 0 && i < v.shape[0]);
    v.data = tri_view_ptr(v, i * v.stride[0]);
    v.rank--;
    for (int k = 0; k < v.rank; k++) {
        v.shape[k] = v.shape[k + 1];
        v.stride[k] = v.stride[k + 1];
    }
    return v;
}

tr_view tr_view_split(tr_view v, int dim, int64_t inner)
{
    TR_ASSERT(v.rank < TR_MAX_RANK && inner > 0 && v.shape[dim] % inner == 0);
    for (int k = v.rank; k > dim; k--) {
        v.shape[k] = v.shape[k - 1];
        v.stride[k] = v.stride[k - 1];
    }
    v.rank++;
    v.shape[dim] /= inner;
    v.shape[dim + 1] = inner;
    v.stride[dim] *= inner;
    return v;
}

tr_view tr_view_join(tr_view v)
{
    TR_ASSERT(v.rank >= 2 && v.stride[0] == v.shape[1] * v.stride[1]);
    v.shape[1] *= v.shape[0];
    v.rank--;
    for (int k = 0; k < v.rank; k++) {
        v.shape[k] = v.shape[k + 1];
        v.stride[k] = v.stride[k + 1];
    }
    return v;
}

int tr_view_is_none(tr_view v) { return v.rank == 0 && !v.data; }

int tr_view_same_shape(tr_view a, tr_view b)
{
    if (a.rank != b.rank) return 0;
    for (int k = 0; k < a.rank; k++)
        if (a.shape[k] != b.shape[k]) return 0;
    return 1;
}

int tr_view_is_contig(tr_view v)
{
    int64_t step = 1;
    for (int k = v.rank - 1; k >= 0; k--) {
        if (v.shape[k] != 1 && v.stride[k] != step) return 0;
        step *= v.shape[k];
    }
    return 1;
}

int64_t tr_view_numel(tr_view v)
{
    int64_t n = 1;
    for (int k = 0; k < v.rank; k++) n *= v.shape[k];
    return tr_view_is_none(v) ? 0 : n;
}

double *tr_view_f64(tr_view v)
{
    TR_ASSERT(v.dtype == TR_F64);
    return (double *)v.data;
}

float *tr_view_f32(tr_view v)
{
    TR_ASSERT(v.dtype == TR_F32);
    return (float *)v.data;
}

const char *tr_view_str(tr_view v, char buf[96])
{
    size_t n = (size_t)snprintf(buf, 96, "%s [", tr_dtype_get(v.dtype)->name);
    for (int k = 0; k < v.rank && n < 80; k++)
        n += (size_t)snprintf(buf + n, 96 - n, k ? ", %lld" : "%lld", (long long)v.shape[k]);
    if (n < 95) { buf[n] = ']'; buf[n + 1] = 0; }
    return buf;
}

/* Rows of a view: everything but the last dimension, counted through. */
static int64_t tri_rows(tr_view v)
{
    int64_t n = 1;
    for (int k = 0; k + 1 < v.rank; k++) n *= v.shape[k];
    return n;
}

/* Offset in elements of row i; the row itself has stride v.stride[rank - 1]. */
TRI_INLINE int64_t tri_row_at(tr_view v, int64_t i)
{
    int64_t at = 0;
    for (int k = v.rank - 2; k > 0; k--) {
        at += i % v.shape[k] * v.stride[k];
        i /= v.shape[k];
    }
    return v.rank > 1 ? at + i * v.stride[0] : 0;
}

TRI_INLINE double *tri_row_f64(tr_view v, int64_t i)
{
    return (double *)v.data + tri_row_at(v, i);
}

TRI_INLINE float *tri_row_f32(tr_view v, int64_t i)
{
    return (float *)v.data + tri_row_at(v, i);
}

/* Row h of token n of a view [N, H, ..]. */
TRI_INLINE double *tri_head_f64(tr_view v, int64_t n, int64_t h)
{
    return (double *)v.data + n * v.stride[0] + h * v.stride[1];
}

TRI_INLINE float *tri_head_f32(tr_view v, int64_t n, int64_t h)
{
    return (float *)v.data + n * v.stride[0] + h * v.stride[1];
}

static tr_status tri_view_copy(tr_ctx *ctx, tr_view dst, tr_view src)
{
    char a[96], b[96];
    int64_t rows = tri_rows(src), n = src.rank ? src.shape[src.rank - 1] : 1;
    int64_t ds = dst.rank ? dst.stride[dst.rank - 1] : 1;
    int64_t ss = src.rank ? src.stride[src.rank - 1] : 1;
    if (!tr_view_same_shape(dst, src))
        return tr_fail(ctx, TR_ERR_SHAPE, "copy: %s from %s", tr_view_str(dst, a),
                       tr_view_str(src, b));
    if (tr_dtype_get(src.dtype)->bits < 8 || tr_dtype_get(dst.dtype)->bits < 8)
        return tr_fail(ctx, TR_ERR_DTYPE, "copy: %s from %s: elements smaller than a byte",
                       tr_view_str(dst, a), tr_view_str(src, b));
    for (int64_t r = 0; r < rows; r++) {
        int64_t d0 = tri_row_at(dst, r), s0 = tri_row_at(src, r);
        size_t size = (size_t)tr_dtype_get(src.dtype)->bits / 8;
        if (dst.dtype == src.dtype && ds == 1 && ss == 1 && n > 0) {
            memcpy((unsigned char *)dst.data + (size_t)d0 * size,
                   (const unsigned char *)src.data + (size_t)s0 * size, (size_t)n * size);
        } else if (dst.dtype == src.dtype) {
            for (int64_t i = 0; i < n; i++)
                memcpy((unsigned char *)dst.data + (size_t)(d0 + i * ds) * size,
                       (const unsigned char *)src.data + (size_t)(s0 + i * ss) * size, size);
        } else {
            for (int64_t i = 0; i < n; i++)
                if (!tri_put(dst.data, dst.dtype, d0 + i * ds,
                             tr_get_f64(src.data, src.dtype, s0 + i * ss)))
                    return tr_fail(ctx, TR_ERR_DTYPE, "copy: %s from %s is not offered",
                                   tr_view_str(dst, a), tr_view_str(src, b));
        }
    }
    return TR_OK;
}

tr_status tr_view_copy(tr_ctx *ctx, tr_view dst, tr_view src)
{
    tri_fpenv env = tri_os_fp_begin();
    tr_status s = tri_view_copy(ctx, dst, src);
    tri_os_fp_end(env);
    return s;
}

/* ============================================================================
 * 6. Stored weights {quant}
 *
 * A stored weight is a matrix of small numbers q and, if scaled, a coarser matrix s, one number a
 * block of block_rows x block_cols:
 *
 *     W[r, c] = q[r, c] s[r div block_rows, c div block_cols]        r counted in the stored matrix
 *
 *     fp8-block    128 x 128 |....|....|..|   e4m3, one f32 for a square, squares cut at the edges
 *     mxfp4          1 x 32  |.|.|.|.|.|.|    e2m1, two a byte, one e8m0 for 32 of a row:
 *
 *         byte      0        1        2              15       byte j of a row holds
 *         +--------+--------+--------+-- .. --+--------+      column 2j in its low half and
 *         |  1   0 |  3   2 |  5   4 |        | 31  30 |      column 2j + 1 in its high half
 *         +--------+--------+--------+-- .. --+--------+
 *
 * In binary64 the product is exact (4 + 24 bits of mantissa at most), which makes row_f64 the
 * definition. In binary32 it is rounded once; where s is a power of two it is exact there too.
 *
 * A reader has two steps, so that a format is a row of the table and at most one more line in
 * each: widen the stored elements of a row as they stand, then multiply each run of columns by the
 * scale it lies under. A product calls the reader and knows no format.
 *
 * Traps. weight_scale_inv multiplies, whatever its name says. The size of blocks is a fact of the
 * config: 1000 rows in 8 blocks are blocks of 128, the last of 104, and not of 125. A band of rows
 * starts within a block, hence row0. A scale byte is an exponent also where a file calls it U8.
 * Scales can be subnormal, in f16 and in binary32; flushing them loses whole groups. And if the
 * scale is NaN, so is the element 0.
 * ========================================================================= */

#define TRI_PIECE 256       /* elements decoded at a time where a buffer is on the stack */

/* Blocks of `step` that cover n, the last one perhaps partial. */
static int64_t tri_blocks(int64_t n, int64_t step) { return n / step + (n % step != 0); }
static int64_t tri_least(int64_t a, int64_t b) { return a < b ? a : b; }

static const unsigned char *tri_weight_at(const tr_weight *w, int64_t r)
{
    return (const unsigned char *)w->q + (w->row0 + r) * w->q_stride;
}

static double tri_weight_scale(const tr_weight *w, int64_t r, int64_t c)
{
    int64_t block = (w->row0 + r) / w->block_rows * w->s_stride + c / w->block_cols;
    return tr_get_f64(w->s, w->format->s, block);
}

/* y[i] = element c + i of a stored row as it stands. Every type here fits in binary32. */
static void tri_widen_row(float *y, const unsigned char *row, tr_dtype q, int64_t c, int64_t n)
{
    switch (q) {
    case TR_F32:
        memcpy(y, row + 4 * c, (size_t)n * sizeof *y);
        break;
    case TR_F16:
        for (int64_t i = 0; i < n; i++) y[i] = tr_f16_to_f32(tri_load16(row + 2 * (c + i)));
        break;
    case TR_BF16:
        for (int64_t i = 0; i < n; i++) y[i] = tr_bf16_to_f32(tri_load16(row + 2 * (c + i)));
        break;
    case TR_F8E4M3:
        for (int64_t i = 0; i < n; i++) y[i] = tr_e4m3_to_f32(row[c + i]);
        break;
    case TR_F4E2M1:
        for (int64_t i = 0, k = c; i < n; i++, k++)
            y[i] = tr_e2m1_to_f32((uint8_t)(row[k / 2] >> k % 2 * 4));
        break;
    default:
        for (int64_t i = 0; i < n; i++) y[i] = (float)tr_get_f64(row, q, c + i);
        break;
    }
}

static void tri_decode_f64(const tr_weight *w, int64_t r, int64_t c, int64_t n, double *y)
{
    const unsigned char *row = tri_weight_at(w, r);
    float q[TRI_PIECE];
    for (int64_t at = 0, len; at < n; at += len) {
        len = tri_least(n - at, TRI_PIECE);
        tri_widen_row(q, row, w->format->q, c + at, len);
        for (int64_t i = 0; i < len; i++) y[at + i] = (double)q[i];
    }
    for (int64_t i = 0, end; w->format->scaled && i < n; i = end) {
        double s = tri_weight_scale(w, r, c + i);
        end = i + tri_least(n - i, w->block_cols - (c + i) % w->block_cols);
        for (int64_t k = i; k < end; k++) y[k] *= s;
    }
}

static void tri_decode_f32(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y)
{
    tri_widen_row(y, tri_weight_at(w, r), w->format->q, c, n);
    for (int64_t i = 0, end; w->format->scaled && i < n; i = end) {
        float s = (float)tri_weight_scale(w, r, c + i);     /* all scales fit in binary32 */
        end = i + tri_least(n - i, w->block_cols - (c + i) % w->block_cols);
        for (int64_t k = i; k < end; k++) y[k] *= s;
    }
}

/* Storage in binary64 is the one that binary32 cannot hold. */
static void tri_decode_wide_f64(const tr_weight *w, int64_t r, int64_t c, int64_t n, double *y)
{
    memcpy(y, tri_weight_at(w, r) + 8 * c, (size_t)n * sizeof *y);
}

static void tri_decode_wide_f32(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y)
{
    const unsigned char *row = tri_weight_at(w, r);
    for (int64_t i = 0; i < n; i++) y[i] = (float)tr_get_f64(row, TR_F64, c + i);
}

static const tr_qformat tri_qformats[TR_FORMAT_COUNT] = {
    /* name, q, s, their types in files, per byte, scaled, tensor of q, tensor of s, row readers */
    { "f64",  TR_F64,  TR_F32, TR_F64,  TR_F32, 1, 0, "weight", "",
      tri_decode_wide_f64, tri_decode_wide_f32 },
    { "f32",  TR_F32,  TR_F32, TR_F32,  TR_F32, 1, 0, "weight", "",
      tri_decode_f64, tri_decode_f32 },
    { "f16",  TR_F16,  TR_F32, TR_F16,  TR_F32, 1, 0, "weight", "",
      tri_decode_f64, tri_decode_f32 },
    { "bf16", TR_BF16, TR_F32, TR_BF16, TR_F32, 1, 0, "weight", "",
      tri_decode_f64, tri_decode_f32 },
    { "fp8-block", TR_F8E4M3, TR_F32, TR_F8E4M3, TR_F32, 1, 1, "weight", "weight_scale_inv",
      tri_decode_f64, tri_decode_f32 },
    { "mxfp4", TR_F4E2M1, TR_E8M0, TR_U8, TR_U8, 2, 1, "weight_packed", "weight_scale",
      tri_decode_f64, tri_decode_f32 }
};

const tr_qformat *tr_qformat_get(tr_format f)
{
    return (int)f >= 0 && f < TR_FORMAT_COUNT ? &tri_qformats[f] : NULL;
}

const tr_qformat *tr_qformat_plain(tr_dtype t)
{
    for (int f = 0; f < TR_FORMAT_COUNT; f++)
        if (!tri_qformats[f].scaled && tri_qformats[f].q == t) return &tri_qformats[f];
    return NULL;
}

const tr_qformat *tr_qformat_find(const char *name)
{
    for (int f = 0; f < TR_FORMAT_COUNT; f++)
        if (name && strcmp(tri_qformats[f].name, name) == 0) return &tri_qformats[f];
    return NULL;
}

/* *out = a b elem. What does not fit in a pointer difference could not be indexed. */
static tr_status tri_bytes_of(tr_ctx *ctx, size_t *out, int64_t a, int64_t b, size_t elem)
{
    size_t n;
    *out = 0;
    if (a < 0 || b < 0 || (int64_t)(size_t)a != a || (int64_t)(size_t)b != b)
        return tr_fail(ctx, TR_ERR_SHAPE, "no matrix is [%lld, %lld]", (long long)a, (long long)b);
    TRI_TRY(tr_size_mul(ctx, &n, (size_t)a, (size_t)b));
    TRI_TRY(tr_size_mul(ctx, &n, n, elem));
    if (n > PTRDIFF_MAX)
        return tr_fail(ctx, TR_ERR_RANGE, "size overflows: %llu bytes", (unsigned long long)n);
    *out = n;
    return TR_OK;
}

static tr_status tri_block_check(tr_ctx *ctx, const tr_qformat *f, int64_t rows, int64_t cols,
                                 int64_t block_rows, int64_t block_cols)
{
    if (block_rows < 1 || block_cols < 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "%s [%lld, %lld]: blocks of %lld x %lld", f->name,
                       (long long)rows, (long long)cols, (long long)block_rows,
                       (long long)block_cols);
    if (f->per_byte > 1 && (block_cols % f->per_byte || cols % block_cols))
        return tr_fail(ctx, TR_ERR_SHAPE,
                       "%s [%lld, %lld]: a row does not fill its groups of %lld, %d to a byte",
                       f->name, (long long)rows, (long long)cols, (long long)block_cols,
                       f->per_byte);
    return TR_OK;
}

tr_status tr_qformat_bytes(tr_ctx *ctx, const tr_qformat *f, int64_t rows, int64_t cols,
                           int64_t block_rows, int64_t block_cols, size_t *q_bytes, size_t *s_bytes)
{
    size_t q_size = f->per_byte > 1 ? 1 : (size_t)tr_dtype_get(f->q)->bits / 8;
    size_t s_size = (size_t)tr_dtype_get(f->s)->bits / 8;
    *q_bytes = *s_bytes = 0;
    if (f->scaled) TRI_TRY(tri_block_check(ctx, f, rows, cols, block_rows, block_cols));
    TRI_TRY(tri_bytes_of(ctx, q_bytes, rows, cols / f->per_byte, q_size));
    if (!f->scaled) return TR_OK;
    return tri_bytes_of(ctx, s_bytes, tri_blocks(rows, block_rows), tri_blocks(cols, block_cols),
                        s_size);
}

tr_status tr_weight_of(tr_ctx *ctx, tr_weight *out, const tr_qformat *f, const char *name,
                       void *q, void *s, int64_t rows, int64_t cols,
                       int64_t block_rows, int64_t block_cols)
{
    size_t q_bytes, s_bytes;
    tr_status st;
    memset(out, 0, sizeof *out);
    if (!f) return tr_fail(ctx, TR_ERR_ARG, "%s: no format", name ? name : "weight");
    st = tr_qformat_bytes(ctx, f, rows, cols, block_rows, block_cols, &q_bytes, &s_bytes);
    if (st != TR_OK) return tr_fail_in(ctx, st, "%s", name ? name : "weight");
    if (q && s_bytes && !s)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: %s needs its scales (%s)", name ? name : "weight",
                       f->name, f->s_suffix);
    out->format = f;
    out->name = name ? name : "weight";
    out->q = q;
    out->rows = rows;
    out->cols = cols;
    out->q_stride = rows ? (int64_t)q_bytes / rows : 0;
    out->block_rows = out->block_cols = 1;
    if (!f->scaled) return TR_OK;
    out->s = s;
    out->block_rows = block_rows;
    out->block_cols = block_cols;
    out->s_stride = tri_blocks(cols, block_cols);
    return TR_OK;
}

tr_weight tr_weight_rows(const tr_weight *w, int64_t begin, int64_t n)
{
    tr_weight band = *w;
    TR_ASSERT(begin >= 0 && n >= 0 && n <= w->rows - begin);
    band.row0 += begin;
    band.rows = n;
    return band;
}

const double *tr_weight_row_f64(const tr_weight *w, int64_t r, int64_t c, int64_t n, double *buf)
{
    TR_ASSERT(r >= 0 && r < w->rows && c >= 0 && n >= 0 && n <= w->cols - c);
    if (w->format->q == TR_F64) {
        const unsigned char *p = tri_weight_at(w, r) + 8 * c;
        if ((uintptr_t)p % sizeof *buf == 0) return (const double *)(const void *)p;
    }
    w->format->row_f64(w, r, c, n, buf);
    return buf;
}

const float *tr_weight_row_f32(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *buf)
{
    TR_ASSERT(r >= 0 && r < w->rows && c >= 0 && n >= 0 && n <= w->cols - c);
    if (w->format->q == TR_F32) {
        const unsigned char *p = tri_weight_at(w, r) + 4 * c;
        if ((uintptr_t)p % sizeof *buf == 0) return (const float *)(const void *)p;
    }
    w->format->row_f32(w, r, c, n, buf);
    return buf;
}

/* The sentence for an element that is NaN or infinite as a binary32; rows as stored. */
static tr_status tri_weight_bad(tr_ctx *ctx, const tr_weight *w, int64_t r, int64_t c)
{
    double q = tr_get_f64(tri_weight_at(w, r), w->format->q, c);
    long long row = (long long)(w->row0 + r), col = (long long)c;
    if (!w->format->scaled)
        return tr_fail(ctx, TR_ERR_NOT_FINITE,
                       "%s: row %lld, column %lld: %g is not a finite binary32 number",
                       w->name, row, col, q);
    return tr_fail(ctx, TR_ERR_NOT_FINITE,
                   "%s: row %lld, column %lld, group [%lld, %lld]: %g times scale %g is not a "
                   "finite binary32 number", w->name, row, col, row / (long long)w->block_rows,
                   col / (long long)w->block_cols, q, tri_weight_scale(w, r, c));
}

/* What is finite in binary32 is finite in binary64, so one pass serves both. */
static tr_status tri_weight_check(tr_ctx *ctx, tr_weight *w)
{
    float buf[TRI_PIECE];
    if (w->finite) return TR_OK;
    if (!w->q && w->rows && w->cols)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: planned, not there to be checked", w->name);
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c += TRI_PIECE) {
            int64_t n = tri_least(w->cols - c, TRI_PIECE);
            const float *x = tr_weight_row_f32(w, r, c, n, buf);
            for (int64_t i = 0; i < n; i++)
                if (!tri_finite_f32(x[i])) return tri_weight_bad(ctx, w, r, c + i);
        }
    w->finite = 1;
    return TR_OK;
}

tr_status tr_weight_check(tr_ctx *ctx, tr_weight *w)
{
    tri_fpenv env = tri_os_fp_begin();
    tr_status s = tri_weight_check(ctx, w);
    tri_os_fp_end(env);
    return s;
}

/* Narrowing. The scale of a block comes from its largest magnitude:
 *
 *     s in f32     fl32(amax / largest), so that amax becomes the largest code
 *     s in e8m0    2^(floor(log2 amax) - floor(log2 largest)), so that amax reaches the top binade
 *
 * where largest is 448 or 6. A block of zeros has s = 1. Elements are x / s to nearest even and
 * saturate: under an e8m0 scale amax / s may lie between 6 and 8, and where s underflows, more.
 * The quotient is taken in binary64, which cannot fall on a tie that the true one misses: two
 * numbers of 24 bits divide to a tie of at most 5 bits, or to something 2^-30 away from it. */

typedef struct tri_quant {
    tr_ctx *ctx;
    const tr_qformat *f;
    void *q, *s;
    const float *x;
    int64_t rows, cols, block_rows, block_cols;
} tri_quant;

static tr_status tri_amax(const tri_quant *j, int64_t r0, int64_t rn, int64_t c0, int64_t cn,
                          float *amax)
{
    *amax = 0;
    for (int64_t r = r0; r < r0 + rn; r++)
        for (int64_t c = c0; c < c0 + cn; c++) {
            float x = j->x[r * j->cols + c];
            if (!tri_finite_f32(x))
                return tr_fail(j->ctx, TR_ERR_NOT_FINITE, "quantize to %s: row %lld, column %lld "
                               "is %g", j->f->name, (long long)r, (long long)c, (double)x);
            if (fabsf(x) > *amax) *amax = fabsf(x);
        }
    return TR_OK;
}

static double tri_scale_for(const tr_qformat *f, float amax)
{
    float largest = f->q == TR_F4E2M1 ? 6.0f : 448.0f, s = amax / largest;
    int e;
    if (amax == 0) return 1;
    if (f->s == TR_F32) return (double)(s > 0 ? s : tr_f32_from_bits(1));
    e = ilogb((double)amax) - ilogb((double)largest);
    return ldexp(1, e > -127 ? e : -127);
}

/* Element i of q = v; pairs of four bits are written low half first. */
static tr_status tri_quant_put(const tri_quant *j, int64_t i, double v)
{
    unsigned char *q = (unsigned char *)j->q;
    if (j->f->q == TR_F4E2M1) {
        unsigned code = tri_narrow(v, TR_F4E2M1, TR_OVERFLOW_SATURATE);
        q[i / 2] = (unsigned char)(i % 2 ? code << 4 | (q[i / 2] & 15u) : code);
    } else if (j->f->scaled) {
        q[i] = (unsigned char)tri_narrow(v, j->f->q, TR_OVERFLOW_SATURATE);
    } else {
        tri_put(q, j->f->q, i, v);
        if (!isfinite(tr_get_f64(q, j->f->q, i)))
            return tr_fail(j->ctx, TR_ERR_RANGE, "quantize to %s: row %lld, column %lld: %g is "
                           "beyond the largest finite value", j->f->name,
                           (long long)(i / j->cols), (long long)(i % j->cols), v);
    }
    return TR_OK;
}

static tr_status tri_quant_block(const tri_quant *j, int64_t br, int64_t bc)
{
    int64_t r0 = br * j->block_rows, rn = tri_least(j->rows - r0, j->block_rows);
    int64_t c0 = bc * j->block_cols, cn = tri_least(j->cols - c0, j->block_cols);
    double s = 1;
    float amax;
    TRI_TRY(tri_amax(j, r0, rn, c0, cn, &amax));
    if (j->f->scaled) {
        s = tri_scale_for(j->f, amax);
        tri_put(j->s, j->f->s, br * tri_blocks(j->cols, j->block_cols) + bc, s);
    }
    for (int64_t r = r0; r < r0 + rn; r++)
        for (int64_t c = c0; c < c0 + cn; c++) {
            int64_t i = r * j->cols + c;
            TRI_TRY(tri_quant_put(j, i, (double)j->x[i] / s));
        }
    return TR_OK;
}

tr_status tr_quantize(tr_ctx *ctx, const tr_qformat *f, void *q, void *s, const float *x,
                      int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols)
{
    tri_quant j;
    size_t q_bytes, s_bytes;
    tri_fpenv env;
    tr_status st = TR_OK;
    TRI_TRY(tr_qformat_bytes(ctx, f, rows, cols, block_rows, block_cols, &q_bytes, &s_bytes));
    j.ctx = ctx;
    j.f = f;
    j.q = q;
    j.s = s;
    j.x = x;
    j.rows = rows;
    j.cols = cols;
    j.block_rows = f->scaled ? block_rows : 1;      /* plain: a block is a row, and s is 1 */
    j.block_cols = f->scaled ? block_cols : cols;
    if (!rows || !cols) return TR_OK;
    env = tri_os_fp_begin();
    for (int64_t br = 0; st == TR_OK && br < tri_blocks(rows, j.block_rows); br++)
        for (int64_t bc = 0; st == TR_OK && bc < tri_blocks(cols, j.block_cols); bc++)
            st = tri_quant_block(&j, br, bc);
    tri_os_fp_end(env);
    return st;
}

/* ============================================================================
 * 7. Threads and random numbers {par}
 *
 *     piece i of P over n items     [n i / P, n (i + 1) / P)
 *     number i of a stream          mix(mix(seed, stream), i)
 *
 * Every output is computed by one thread from start to end, and a random number depends on where it
 * goes and not on what was drawn before. So nothing here has an order that a split could change,
 * and one thread or sixty-four give the same bits.
 *
 * A kernel's body is compiled once for every cpu of tr_cpu, from one text: it is inlined into
 * functions that differ in nothing but their target, and the context says which of them runs.
 *
 * A thread has a rounding mode and may flush subnormals, as the host program or a library it loads
 * has set it. Pieces run under the contract's own, whatever thread they meet, and leave the
 * thread's as it was.
 *
 * Traps. OpenMP's reduction leaves the order of a sum open and is used nowhere. n i overflows long
 * before n i / P does. A generator with a state gives other numbers as soon as the work is cut
 * otherwise. Normal numbers by logarithm and cosine differ in the last bit between libms.
 * ========================================================================= */

/* TRI_CLONES(name) makes name##_clones, a table by cpu, of the inlined body
 *     name(int hw, void *user, int64_t begin, int64_t end)
 * hw is 1 where fmaf is one instruction. */
#if defined(__GNUC__) && defined(__x86_64__)
#define TRI_AVX2   __attribute__((target("avx2,fma,f16c")))
#define TRI_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define TRI_CLONES(name)                                                                \
    static void name##_base(void *u, int64_t b, int64_t e) { name(TRI_HW_FMA, u, b, e); }   \
    TRI_AVX2 static void name##_avx2(void *u, int64_t b, int64_t e) { name(1, u, b, e); }   \
    TRI_AVX512 static void name##_avx512(void *u, int64_t b, int64_t e) { name(1, u, b, e); } \
    static const tr_par_fn name##_clones[TR_CPU_COUNT] = { name##_base, name##_base,    \
                                                           name##_avx2, name##_avx512 };
#else
#define TRI_CLONES(name)                                                                \
    static void name##_base(void *u, int64_t b, int64_t e) { name(TRI_HW_FMA, u, b, e); }   \
    static const tr_par_fn name##_clones[TR_CPU_COUNT] = { name##_base, name##_base,    \
                                                           name##_base, name##_base };
#endif

/* TRI_UNROLL before a loop of few and constantly many steps, so that an array it walks becomes
 * registers. TRI_AHEAD asks for a cache line that will be read soon; it may lie anywhere. */
#if defined(__clang__)
#define TRI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define TRI_UNROLL _Pragma("GCC unroll 16")
#else
#define TRI_UNROLL
#endif
#if defined(__GNUC__)
#define TRI_AHEAD(p) __builtin_prefetch(p, 0, 2)
#else
#define TRI_AHEAD(p) ((void)(p))
#endif

int tr_par_threads(const tr_ctx *ctx) { return tri_threads(&ctx->opts); }

tr_range tr_range_of(int64_t n, int64_t parts, int64_t part)
{
    tr_range r;             /* n part / parts without overflow */
    r.begin = n / parts * part + n % parts * part / parts;
    r.end = n / parts * (part + 1) + n % parts * (part + 1) / parts;
    return r;
}

void tr_par_for(tr_ctx *ctx, int64_t n, int64_t grain, tr_par_fn fn, void *user)
{
    int64_t pieces = tr_par_threads(ctx), most = n / (grain > 0 ? grain : 1);
    if (pieces > most) pieces = most;
    if (n <= 0) return;
    if (pieces <= 1) {
        tri_fpenv env = tri_os_fp_begin();
        fn(user, 0, n);
        tri_os_fp_end(env);
        return;
    }
#if defined(_OPENMP) && !TR_NO_OPENMP
#pragma omp parallel for num_threads((int)pieces) schedule(static, 1)
    for (int64_t i = 0; i < pieces; i++) {
        tr_range r = tr_range_of(n, pieces, i);
        tri_fpenv env = tri_os_fp_begin();
        fn(user, r.begin, r.end);
        tri_os_fp_end(env);
    }
#endif
}

/* tr_par_for over the clone that suits the machine. */
static void tri_par_clone(tr_ctx *ctx, int64_t n, int64_t grain,
                          const tr_par_fn clones[TR_CPU_COUNT], void *user)
{
    tr_par_for(ctx, n, grain, clones[ctx->cpu], user);
}

/* SplitMix64's finaliser over a counter: (seed, stream, i) -> 64 bits. */
static uint64_t tri_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t tr_rng_u64(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t key = tri_mix64(seed + 0x9e3779b97f4a7c15u * (stream + 1));
    return tri_mix64(key + 0x9e3779b97f4a7c15u * (i + 1));
}

double tr_rng_unit(uint64_t seed, uint64_t stream, uint64_t i)
{
    return (double)(tr_rng_u64(seed, stream, i) >> 11) * (DBL_EPSILON / 2);
}

/* The sum of twelve uniform numbers has variance 1; it needs no logarithm, so it is the same on
 * every system. */
double tr_rng_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    double s = -6;
    for (uint64_t k = 0; k < 12; k++) s += tr_rng_unit(seed, stream, 12 * i + k);
    return s;
}

/* ============================================================================
 * 8. Sums {sum}
 *
 *     dot = sum_i x_i w_i        sumsq = sum_i x_i^2        i = 0, 1, .., n - 1, from +0
 *
 * Floating-point addition is not associative, so a sum is a number only together with its order.
 * The definition is one chain in increasing index: slow, and impossible to misread. The contract's
 * order is made of sixteen chains, as a vector register of 16, two of 8 or four of 4 add without
 * being told to:
 *
 *     a_l  = x_l w_l (+) x_l+16 w_l+16 (+) ..          l = 0 .. 15; a (+) x w = fl(a + x w)
 *     b_l  = a_l + a_l+8    c_l = b_l + b_l+4    d_l = c_l + c_l+2    dot = d_0 + d_1
 *
 * Lanes may stop after any x and go on later; they may not be summed before the end. An element
 * that is not there adds nothing: it is no product with 0, which would turn a lane of -0 into +0.
 *
 * The K largest are picked one after the other in a total order: larger value first, then lower
 * index. Each pick is the first element after the one before, so nothing is marked or copied, and
 * no element is picked twice.
 *
 * Traps. Starting from "the smallest number there is" (-1e30, or -infinity under >) loses elements
 * that are -infinity themselves: masked scores are, and K of them may have to be named. The two
 * zeros are equal, so their index decides. NaN has no place in the order and is the caller's to
 * refuse.
 * ========================================================================= */

/* The chain, taken up at `sum`: a row may come in pieces without changing a bit. */
static double tri_dot_on(double sum, const double *x, const double *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum += x[i] * w[i];
    return sum;
}

double tr_dot_f64  (const double *x, const double *w, int64_t n) { return tri_dot_on(0, x, w, n); }
double tr_sumsq_f64(const double *x, int64_t n)                  { return tri_dot_on(0, x, x, n); }

/* Takes the lanes on over x[0..n) w[0..n); x[0] belongs to lane 0. */
TRI_INLINE void tri_lanes_dot(int hw, float lane[TR_LANES], const float *x, const float *w,
                              int64_t n)
{
    int64_t i = 0;
    for (; i + TR_LANES <= n; i += TR_LANES)
        for (int l = 0; l < TR_LANES; l++) lane[l] = tri_fmaf(hw, x[i + l], w[i + l], lane[l]);
    for (int l = 0; i + l < n; l++) lane[l] = tri_fmaf(hw, x[i + l], w[i + l], lane[l]);
}

TRI_INLINE void tri_lanes_sum(float lane[TR_LANES], const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + TR_LANES <= n; i += TR_LANES)
        for (int l = 0; l < TR_LANES; l++) lane[l] += x[i + l];
    for (int l = 0; i + l < n; l++) lane[l] += x[i + l];
}

TRI_INLINE float tri_lanes_fold(const float lane[TR_LANES])
{
    float b[8], c[4];
    for (int l = 0; l < 8; l++) b[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) c[l] = b[l] + b[l + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

TRI_INLINE float tri_dot(int hw, const float *x, const float *w, int64_t n)
{
    float lane[TR_LANES] = { 0 };
    tri_lanes_dot(hw, lane, x, w, n);
    return tri_lanes_fold(lane);
}

TRI_INLINE float tri_sum(const float *x, int64_t n)
{
    float lane[TR_LANES] = { 0 };
    tri_lanes_sum(lane, x, n);
    return tri_lanes_fold(lane);
}

float tr_dot  (const float *x, const float *w, int64_t n) { return tri_dot(TRI_HW_FMA, x, w, n); }
float tr_sum  (const float *x, int64_t n)                 { return tri_sum(x, n); }
float tr_sumsq(const float *x, int64_t n)                 { return tri_dot(TRI_HW_FMA, x, x, n); }

/* Does element a come before element b? */
static int tri_comes_first(const double *x, int64_t a, int64_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

int64_t tr_topk_f64(int32_t *ids, int64_t K, const double *x, int64_t n,
                    const unsigned char *allowed)
{
    int64_t found = 0, last = -1;
    while (found < K) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++) {
            if (allowed && !allowed[i]) continue;
            if (last >= 0 && !tri_comes_first(x, last, i)) continue;
            if (best < 0 || tri_comes_first(x, i, best)) best = i;
        }
        if (best < 0) break;
        ids[found++] = (int32_t)best;
        last = best;
    }
    return found;
}

/* ============================================================================
 * 9. Products {mat}
 *
 *     y[n, o] = sum_i x[n, i] W[o, i]  + b[o]        the sum from +0, then the bias
 *
 * A row of W is one output and a row of x is one token, so y = x W^T: both are read along their
 * rows. The embedding is the row of W that the token's id names.
 *
 * We take rows of W in pieces, decode each piece once for many tokens, and carry every token's sum
 * from piece to piece: one chain in the definition, sixteen lanes in the contract's kernel. So any
 * format of W will do, no operator allocates, and the sum is that of tr_dot_f64, or of tr_dot,
 * whatever the number of tokens. Threads own rows of W.
 *
 * Traps. Without columns the sum is empty: y is the bias or 0, not what was there before. Without
 * tokens there is nothing to do, and no error. Adding the sum of each piece to y, instead of
 * carrying on, is another order and another number.
 * ========================================================================= */

/* How many rows are worth a thread: about 2^14 products. */
static int64_t tri_mat_grain(int64_t N, int64_t I) { return 1 + 16384 / (N + 1) / (I + 1); }

/* Rows of type t that can be read with a pointer. */
static int tri_is_rows(tr_view v, tr_dtype t)
{
    return v.dtype == t && v.rank == 2 && (v.stride[1] == 1 || v.shape[1] <= 1) &&
           (v.data || v.shape[0] == 0 || v.shape[1] == 0);
}

static tr_status tri_mat_weight(tr_ctx *ctx, const char *op, const tr_weight *w)
{
    if (!w || !w->format) return tr_fail(ctx, TR_ERR_ARG, "%s: there is no weight", op);
    if (!w->q && w->rows && w->cols)
        return tr_fail(ctx, TR_ERR_MISSING, "%s %s: weight is planned, not loaded", op, w->name);
    return TR_OK;
}

static tr_status tri_mat_rows(tr_ctx *ctx, tr_dtype t, const char *op, const tr_weight *w,
                              const char *letter, tr_view v)
{
    char s[96];
    if (tri_is_rows(v, t)) return TR_OK;
    return tr_fail(ctx, v.dtype == t ? TR_ERR_SHAPE : TR_ERR_DTYPE,
                   "%s %s: %s is %s and must be %s rows without gaps between columns", op, w->name,
                   letter, tr_view_str(v, s), tr_dtype_get(t)->name);
}

static tr_status tri_matmul_check(tr_ctx *ctx, tr_dtype t, const tr_matmul_args *a)
{
    const tr_weight *w = a->w;
    char y[96], x[96], b[96];
    TRI_TRY(tri_mat_weight(ctx, "matmul", w));
    TRI_TRY(tri_mat_rows(ctx, t, "matmul", w, "y", a->y));
    TRI_TRY(tri_mat_rows(ctx, t, "matmul", w, "x", a->x));
    if (a->x.shape[1] != w->cols || a->y.shape[1] != w->rows || a->x.shape[0] != a->y.shape[0])
        return tr_fail(ctx, TR_ERR_SHAPE, "matmul %s [%lld, %lld]: x is %s and y is %s", w->name,
                       (long long)w->rows, (long long)w->cols, tr_view_str(a->x, x),
                       tr_view_str(a->y, y));
    if (a->y.shape[0] > 1 && a->y.stride[0] < a->y.shape[1])
        return tr_fail(ctx, TR_ERR_ARG, "matmul %s: rows of y lie on each other", w->name);
    if (a->y.data == a->x.data && tr_view_numel(a->y) && tr_view_numel(a->x))
        return tr_fail(ctx, TR_ERR_ARG, "matmul %s: y is x", w->name);
    if (tr_view_is_none(a->bias)) return TR_OK;
    if (a->bias.rank != 1 || a->bias.shape[0] != w->rows || (!a->bias.data && w->rows))
        return tr_fail(ctx, TR_ERR_SHAPE, "matmul %s [%lld, %lld]: bias is %s", w->name,
                       (long long)w->rows, (long long)w->cols, tr_view_str(a->bias, b));
    if (a->bias.dtype != t)
        return tr_fail(ctx, TR_ERR_DTYPE, "matmul %s: bias is %s and must be %s", w->name,
                       tr_view_str(a->bias, b), tr_dtype_get(t)->name);
    return TR_OK;
}

static void tri_matmul_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_matmul_args *a = (const tr_matmul_args *)user;
    int64_t N = a->x.shape[0], I = a->x.shape[1];
    int has_bias = !tr_view_is_none(a->bias);
    double buf[TRI_PIECE];
    for (int64_t o = begin; o < end; o++) {
        for (int64_t n = 0; n < N; n++) tri_row_f64(a->y, n)[o] = 0;
        for (int64_t i = 0; i < I; i += TRI_PIECE) {
            int64_t len = tri_least(I - i, TRI_PIECE);
            const double *w = tr_weight_row_f64(a->w, o, i, len, buf);
            for (int64_t n = 0; n < N; n++) {
                double *y = tri_row_f64(a->y, n) + o;
                *y = tri_dot_on(*y, tri_row_f64(a->x, n) + i, w, len);
            }
        }
        for (int64_t n = 0; has_bias && n < N; n++)
            tri_row_f64(a->y, n)[o] += tr_view_f64(a->bias)[o * a->bias.stride[0]];
    }
}

tr_status tr_matmul_f64(tr_ctx *ctx, const tr_matmul_args *a)
{
    tr_matmul_args job = *a;
    TRI_TRY(tri_matmul_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->w->rows, tri_mat_grain(a->x.shape[0], a->w->cols), tri_matmul_rows_f64,
               &job);
    return TR_OK;
}

/* ---- the contract's product
 *
 *     y[n, o] = fold_l ( x[n, l] W[o, l] (+) x[n, l + 16] W[o, l + 16] (+) .. )  + b[o]
 *
 * A few tokens. The sixteen lanes of an output lie along a register of 16 numbers, or two of 8, and
 * both factors are read along their rows: nothing is copied. A tile of 4 tokens and 6 rows of W
 * holds its 24 outputs in 24 registers and takes 10 loads for 24 multiply-adds. Around it,
 *
 *     for blocks of tokens
 *         for panels of 6 rows of W, one of each of six bands: so memory sees six streams
 *             for pieces of 1024 columns: decode the panel's piece, once for the block, into
 *                 the first cache (what is stored as binary32 is read where it lies)
 *                 for tiles: take the lanes of 4 tokens x 6 rows on over the piece
 *             fold, add the bias, write y
 *
 * The lanes of a block wait in memory from piece to piece; that only stops and resumes them. With
 * one token W is decoded in registers, and read once at the speed of memory. From sixteen tokens on
 * we go another way, below. */
#define TRI_TILE_N 4            /* tokens of a tile */
#define TRI_TILE_O 6            /* rows of W of a tile and panel */
#define TRI_PANEL  1024         /* columns of a piece; a power of two, so that blocks fill it */
#define TRI_BLOCK_X (1 << 18)   /* numbers of x in a block, 1 MB; but 16 tokens at least */
#define TRI_TOKENS 64           /* most tokens of a block: its lanes are 24 KB */
#define TRI_MIXED  8192         /* so many columns of e2m1 are streamed; x mixed for them: 32 KB */

#define TRI_T_COLS   32         /* of the transposed product: a panel is 256 rows by 32 columns */
#define TRI_T_ROWS   256
#define TRI_T_TOKENS 8

#define TRI_OUTER_FROM 16       /* so many tokens are worth copying */

/* Up to TRI_TILE_O rows of W: o, o + step, .. */
typedef struct tri_panel { const tr_weight *w; int64_t o, step, O; } tri_panel;

/* One token for stream. */
typedef struct tri_stream_x {
    const float *x;
    const float *mixed;  int64_t n;     /* its first n numbers, mixed, if w is e2m1 */
    const tri_fp4 *fp4;
} tri_stream_x;

/* What differs from cpu to cpu. */
struct tri_tiles {
    /* What products of W's rows take instead if x is full of subnormals, for each of which a
     * multiply-add in hardware may take a hundred times as long; NULL: nothing is faster. */
    const tri_tiles *soft;
    /* lane[n][j][l] (+)= x[n][k] w[j][k], k = 0 .. K - 1, l = k mod 16, for n < N <= TRI_TILE_N and
     * j < O <= TRI_TILE_O. K is a multiple of 16; w[j] is w + j stride. */
    void (*tile)(float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x, int64_t N,
                 const float *w, int64_t stride, int64_t O, int64_t K);
    /* As row_f32 of the weight's format, for weights that are finite. 0: it cannot, and y holds
     * nothing of use; NULL: it never can. */
    int (*decode)(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y);
    /* lane[j][l] (+)= x[k] w[j][k] from k = 0 on, for a panel of TRI_TILE_O rows w[j] that are
     * finite, and one token. Returns how many columns it took, a multiple of 16; NULL: none. */
    int64_t (*stream)(float (*lane)[TR_LANES], const tri_stream_x *x, const tri_panel *r);
    /* The first n numbers of x, a multiple of 32, in the order that stream has e2m1 in. */
    void (*mix)(float *y, const float *x, int64_t n);
    /* lane[n][l][c] (+)= x[n][k] w[k][c], k = 0 .. K - 1, l = k mod 16, n < N <= TRI_T_TOKENS */
    void (*tile_t)(float (*lane)[TR_LANES][TRI_T_COLS], const float *const *x, int64_t N,
                   const float (*w)[TRI_T_COLS], int64_t K);
    /* Of sixteen rows of K numbers: y[l step + 16 d + r] = row[r][16 d + l]. NULL: there is no
     * outer. */
    void (*turn)(float *y, int64_t step, const float *const *row, int64_t K);
    /* y[n][o] = from[n][o] (+) x[d][n] w[o div 16][d][o mod 16], d = 0 .. D - 1, for n < N <= 16
     * and o < 16 G <= TRI_OUTER_ROWS; all sixteen n may be written. y may be `from`. Their rows
     * have TRI_OUTER_ROWS numbers, those of x and w 16; step is from w[i] to w[i + 1]. */
    void (*outer)(float *y, const float *from, const float *x, const float *w, int64_t step,
                  int64_t N, int64_t G, int64_t D);
    /* y[o] = tri_lanes_fold(lane[l step + o], l = 0 .. 15), o < 16 */
    void (*fold)(float y[TR_LANES], const float *lane, int64_t step);
};

/* A group of products that share their input and output: for each e of E weights of one shape, and
 * each of its slots s = slot[offset[e]] .. slot[offset[e + 1] - 1],
 *
 *     y_s = x_(s div per) W_e^T (+ b)                 x_i, y_s: rows of the views, of any rank >= 2
 *
 * which is what experts are (one weight each, `per` slots a token). No slot may occur twice. A
 * plain product is a group of one, with slot NULL: all n rows in order, per 1. */
typedef struct tri_product_job {
    tr_view y, x, bias;                 /* F32, innermost stride 1; bias [O] or absent */
    const tr_weight *w;                 /* [E] */
    const int32_t *slot, *offset;       /* slot NULL: s is 0 .. n - 1; offset NULL: 0 and n */
    int64_t E, n, per;
    const tri_tiles *tiles;             /* these three: tri_product_run's */
    const tri_fp4 *fp4;
    int64_t few;                        /* more tokens of a weight than these go another way */
} tri_product_job;

/* The first slot of weight e, as an index into slot; and the row of y that an index stands for. */
static int64_t tri_slots_begin(const tri_product_job *a, int64_t e)
{
    return a->offset ? a->offset[e] : e * a->n;
}

TRI_INLINE int64_t tri_slot(const tri_product_job *a, int64_t i)
{
    return a->slot ? a->slot[i] : i;
}

/* Tokens of one weight: their rows of x and y. */
typedef struct tri_tokens {
    tri_stream_x one;                   /* if there is one */
    const float *x[TRI_TOKENS];
    float *y[TRI_TOKENS];
    int64_t n;
} tri_tokens;

/* Columns [c, c + n) of row r, decoded the fast way if there is one. */
static void tri_decode_row(const tri_tiles *t, const tr_weight *w, int64_t r, int64_t c, int64_t n,
                           float *y)
{
    if (!w->finite || !t->decode || !t->decode(w, r, c, n, y))
        w->format->row_f32(w, r, c, n, y);
}

/* Columns [c, c + n) of a panel's rows, *stride numbers apart, in place or in buf. */
static const float *tri_panel_read(const tri_tiles *t, const tri_panel *r, int64_t c, int64_t n,
                                   float *buf, int64_t *stride)
{
    const tr_weight *w = r->w;
    if (w->format->q == TR_F32) {
        const unsigned char *p = tri_weight_at(w, r->o) + 4 * c;
        *stride = r->step * (w->q_stride / 4);
        if ((uintptr_t)p % 4 == 0 && w->q_stride % 4 == 0) return (const float *)(const void *)p;
    }
    *stride = TRI_PANEL;
    for (int64_t j = 0; j < r->O; j++)
        tri_decode_row(t, w, r->o + j * r->step, c, n, buf + j * TRI_PANEL);
    return buf;
}

/* Asks for part t of T of what the panel has in columns [c, c + TRI_PANEL), or the one after it if
 * there are none. */
TRI_INLINE void tri_panel_ahead(const tri_panel *r, int64_t c, int64_t t, int64_t T)
{
    const tr_weight *w = r->w;
    int64_t bytes, begin, end, o = r->o;
    if (c >= w->cols) { c = 0; o++; }
    if (w->cols == 0) return;
    bytes = tri_least(w->cols - c, TRI_PANEL) * w->q_stride / w->cols;
    c = c * w->q_stride / w->cols;
    begin = bytes * t / T;
    end = bytes * (t + 1) / T;
    for (int64_t j = 0; j < r->O && o + j * r->step < w->rows; j++)
        for (int64_t i = begin; i < end; i += 64)
            TRI_AHEAD(tri_weight_at(w, o + j * r->step) + c + i);
}

/* The outputs of one panel for a block of tokens. */
TRI_INLINE void tri_product_panel(int hw, const tri_product_job *a, const tri_panel *r,
                                  const tri_tokens *k)
{
    float lane[TRI_TOKENS][TRI_TILE_O][TR_LANES], buf[TRI_TILE_O * TRI_PANEL];
    int64_t tiles = tri_blocks(k->n, TRI_TILE_N), cols = r->w->cols, stride, c = 0;
    const float *b = tr_view_is_none(a->bias) ? NULL : tr_view_f32(a->bias);
    memset(lane, 0, (size_t)k->n * sizeof lane[0]);
    if (k->n == 1 && r->O == TRI_TILE_O && r->w->finite && a->tiles->stream)
        c = a->tiles->stream(lane[0], &k->one, r);
    for (; c < cols; c += TRI_PANEL) {
        int64_t len = tri_least(cols - c, TRI_PANEL), whole = len - len % TR_LANES;
        const float *p = tri_panel_read(a->tiles, r, c, len, buf, &stride), *x[TRI_TILE_N];
        for (int64_t t = 0; t < tiles; t++) {
            int64_t n = t * TRI_TILE_N, N = tri_least(k->n - n, TRI_TILE_N);
            for (int64_t i = 0; i < N; i++) x[i] = k->x[n + i] + c;
            tri_panel_ahead(r, c + TRI_PANEL, t, tiles);
            a->tiles->tile(lane + n, x, N, p, stride, r->O, whole);
        }
        for (int64_t n = 0; len > whole && n < k->n; n++)
            for (int64_t j = 0; j < r->O; j++)
                tri_lanes_dot(hw, lane[n][j], k->x[n] + c + whole, p + j * stride + whole,
                              len - whole);
    }
    for (int64_t n = 0; n < k->n; n++)
        for (int64_t j = 0; j < r->O; j++) {
            int64_t o = r->o + j * r->step;
            float y = tri_lanes_fold(lane[n][j]);
            k->y[n][o] = b ? y + b[o * a->bias.stride[0]] : y;
        }
}

/* Rows [begin, end) of weight e for its slots first .. last - 1, in bands of `step` rows; the
 * rows that are left make a last panel. */
TRI_INLINE void tri_product_weight(int hw, const tri_product_job *a, int64_t e, int64_t first,
                                   int64_t last, int64_t begin, int64_t end)
{
    int64_t most = TRI_BLOCK_X / (a->w->cols + 1) / TRI_TILE_N * TRI_TILE_N;
    float mixed[TRI_MIXED];
    tri_panel r;
    tri_tokens k;
    r.w = &a->w[e];
    k.one.fp4 = a->fp4;
    k.one.mixed = mixed;
    k.one.n = r.w->format->q == TR_F4E2M1 ? tri_least(r.w->cols / 32 * 32, TRI_MIXED) : 0;
    if (most > TRI_TOKENS) most = TRI_TOKENS;
    if (most < 4 * TRI_TILE_N) most = 4 * TRI_TILE_N;
    for (; first < last; first += k.n) {
        k.n = tri_least(last - first, most);
        for (int64_t i = 0; i < k.n; i++) {
            int64_t s = tri_slot(a, first + i);
            k.x[i] = tri_row_f32(a->x, s / a->per);
            k.y[i] = tri_row_f32(a->y, s);
        }
        k.one.x = k.x[0];
        if (k.n == 1 && a->tiles->stream) a->tiles->mix(mixed, k.x[0], k.one.n);
        r.step = (end - begin) / TRI_TILE_O;
        r.O = TRI_TILE_O;
        for (r.o = begin; r.o < begin + r.step; r.o++) tri_product_panel(hw, a, &r, &k);
        r.o = begin + r.step * TRI_TILE_O;
        r.O = end - r.o;
        r.step = 1;
        if (r.O > 0) tri_product_panel(hw, a, &r, &k);
    }
}

/* What a row of W costs, in tokens: reading it is worth a few. A weight without slots costs
 * nothing, nor does one with so many that tri_outer_run has taken it. Threads share the sum over
 * all rows of all weights, so that many experts of one token are spread as evenly as one weight of
 * a few tokens. */
static int64_t tri_product_cost(const tri_product_job *a, int64_t n)
{
    return n > 0 && n <= a->few ? n + 4 : 0;
}

TRI_INLINE void tri_product_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tri_product_job *a = (const tri_product_job *)user;
    int64_t O = a->w->rows, at = 0;
    for (int64_t e = 0; e < a->E && at < end; e++) {
        int64_t first = tri_slots_begin(a, e), last = tri_slots_begin(a, e + 1);
        int64_t cost = tri_product_cost(a, last - first), next = at + cost * O;
        if (next > begin && cost > 0) {     /* a row belongs to whoever has its first unit */
            int64_t from = begin > at ? tri_blocks(begin - at, cost) : 0;
            int64_t to = end < next ? tri_blocks(end - at, cost) : O;
            tri_product_weight(hw, a, e, first, last, from, to);
        }
        at = next;
    }
}
TRI_CLONES(tri_product_rows)

/* ---- many tokens
 *
 * A register along the lanes leaves room for few outputs, and most of the time goes into loads. But
 * the lanes do not meet before the fold. So with many tokens we take one lane after the other, each
 * an ordinary product of every sixteenth column, whose registers lie along the rows of W:
 *
 *     lane l of y[n, o]  (+)=  x[n, l + 16 d] W[o, l + 16 d]      d = 0, 1, ..
 *
 * Each d adds the outer product of a column of x and a column of W: hence the names. For that both
 * factors are copied, sixteen rows at a time, into the order
 *
 *     [lane][group of 16 rows][d][row of the group]
 *
 * and read as streams. Tokens are copied once for all rows of W; W panel by panel and piece by
 * piece, decoded on the way, once for a block of tokens.
 *
 *     for blocks of tokens: copy them
 *         for panels of 48 rows of W
 *             for pieces of 2048 columns: copy the piece of the panel
 *                 for lanes, for groups of 16 tokens: go on over the piece
 *             fold, add the bias, write y
 *
 * Rows that fill up a group are copies of its last row; their outputs are written nowhere. */
typedef struct tri_outer_job {
    const tri_product_job *a;
    const tr_weight *w;
    float *x;                       /* the tokens, copied */
    float *own;                     /* of thread 0: its panel and its lanes */
    int64_t threads, first, n, groups;      /* tokens first .. first + n - 1, and their groups */
} tri_outer_job;

/* Where piece c of the copied tokens is. */
static float *tri_outer_piece(const tri_outer_job *p, int64_t c)
{
    return p->x + p->groups * TR_LANES * c;
}

/* How many tokens a block may have, a multiple of 16; 0: W has no columns, or too many. */
static int64_t tri_outer_most(const tr_weight *w)
{
    int64_t group = TR_LANES * TR_LANES * tri_blocks(w->cols, TR_LANES);
    return group ? tri_least(TRI_OUTER_X / group * TR_LANES, TRI_OUTER_TOKENS) : 0;
}

/* Copies groups [begin, end) of sixteen tokens. */
static void tri_outer_tokens(void *user, int64_t begin, int64_t end)
{
    const tri_outer_job *p = (const tri_outer_job *)user;
    const float *row[TR_LANES];
    int64_t K = p->w->cols;
    for (int64_t g = begin; g < end; g++)
        for (int64_t c = 0; c < K; c += TRI_OUTER_COLS) {
            int64_t len = tri_least(K - c, TRI_OUTER_COLS), D = tri_blocks(len, TR_LANES);
            for (int64_t i = 0; i < TR_LANES; i++) {
                int64_t n = p->first + tri_least(g * TR_LANES + i, p->n - 1);
                row[i] = tri_row_f32(p->a->x, tri_slot(p->a, n) / p->a->per) + c;
            }
            p->a->tiles->turn(tri_outer_piece(p, c) + g * D * TR_LANES,
                              p->groups * D * TR_LANES, row, len);
        }
}

/* Columns [c, c + len) of the sixteen rows from o on, decoded and turned into y. */
static void tri_outer_rows(const tri_tiles *t, const tr_weight *w, int64_t o, int64_t c,
                           int64_t len, float *y, int64_t step)
{
    float buf[TR_LANES][TRI_PIECE];
    const float *row[TR_LANES];
    int64_t n;
    for (; len > 0; len -= n, c += n, y += n) {
        n = tri_least(len, TRI_PIECE);
        for (int64_t i = 0; i < TR_LANES; i++) {
            int64_t r = tri_least(o + i, w->rows - 1);
            row[i] = buf[i];
            if (w->format->q == TR_F32) row[i] = tr_weight_row_f32(w, r, c, n, buf[i]);
            else tri_decode_row(t, w, r, c, n, buf[i]);
        }
        t->turn(y, step, row, n);
    }
}

/* Asks for part t of T of the bytes that O rows of W from o on have in TRI_OUTER_COLS columns. */
static void tri_outer_ahead(const tr_weight *w, int64_t o, int64_t O, int64_t c, int64_t t,
                            int64_t T)
{
    int64_t from = c * w->q_stride / w->cols, to = (c + TRI_OUTER_COLS) * w->q_stride / w->cols;
    int64_t lines = tri_blocks(tri_least(to, w->q_stride) - from, 64);
    for (int64_t i = lines * O * t / T; i < lines * O * (t + 1) / T; i++)
        if (o + i / lines < w->rows)
            TRI_AHEAD(tri_weight_at(w, o + i / lines) + from + i % lines * 64);
}

/* Takes the lanes of a panel, [lane][token][row of the panel], on over the piece at c. */
static void tri_outer_lanes(const tri_outer_job *p, int64_t o, int64_t G, int64_t c, float *w,
                            float *lane)
{
    static const float zero[TR_LANES * TRI_OUTER_ROWS] = { 0 };
    int64_t len = tri_least(p->w->cols - c, TRI_OUTER_COLS), D = tri_blocks(len, TR_LANES);
    int64_t last = c + len >= p->w->cols;
    const tri_tiles *tiles = p->a->tiles;
    const float *x = tri_outer_piece(p, c);
    for (int64_t g = 0; g < G; g++)
        tri_outer_rows(tiles, p->w, o + g * TR_LANES, c, len, w + g * D * TR_LANES,
                       G * D * TR_LANES);
    for (int64_t l = 0; l < TR_LANES; l++)
        for (int64_t g = 0; g < p->groups; g++) {
            int64_t i = l * p->groups + g, depth = (len + TR_LANES - 1 - l) / TR_LANES;
            float *y = lane + i * TR_LANES * TRI_OUTER_ROWS;
            tri_outer_ahead(p->w, last ? o + G * TR_LANES : o, G * TR_LANES, last ? 0 : c + len,
                            i, TR_LANES * p->groups);
            tiles->outer(y, c ? y : zero, x + i * D * TR_LANES, w + l * G * D * TR_LANES,
                         D * TR_LANES, tri_least(p->n - g * TR_LANES, TR_LANES), G, depth);
        }
}

/* Groups [begin, end) of sixteen rows of W. */
static void tri_outer_panels(const tri_outer_job *p, int64_t begin, int64_t end, float *own)
{
    const tri_product_job *a = p->a;
    const float *b = tr_view_is_none(a->bias) ? NULL : tr_view_f32(a->bias);
    float *w = own, *lane = own + TRI_OUTER_COLS * TRI_OUTER_ROWS, y[TRI_OUTER_ROWS];
    int64_t step = p->groups * TR_LANES * TRI_OUTER_ROWS, G;
    for (; begin < end; begin += G) {
        int64_t o = begin * TR_LANES, O;
        G = tri_least(end - begin, TRI_OUTER_ROWS / TR_LANES);
        O = tri_least(p->w->rows - o, G * TR_LANES);
        for (int64_t c = 0; c < p->w->cols; c += TRI_OUTER_COLS)
            tri_outer_lanes(p, o, G, c, w, lane);
        for (int64_t n = 0; n < p->n; n++) {
            for (int64_t j = 0; n + 8 < p->n && j < O; j += TR_LANES)
                TRI_AHEAD(tri_row_f32(a->y, tri_slot(a, p->first + n + 8)) + o + j);
            for (int64_t g = 0; g < G; g++)
                a->tiles->fold(y + g * TR_LANES, lane + n * TRI_OUTER_ROWS + g * TR_LANES, step);
            for (int64_t j = 0; b && j < O; j++) y[j] += b[(o + j) * a->bias.stride[0]];
            memcpy(tri_row_f32(a->y, tri_slot(a, p->first + n)) + o, y, (size_t)O * sizeof *y);
        }
    }
}

/* Threads begin .. end - 1, each with its share of the groups. */
static void tri_outer_threads(void *user, int64_t begin, int64_t end)
{
    const tri_outer_job *p = (const tri_outer_job *)user;
    int64_t groups = tri_blocks(p->w->rows, TR_LANES);
    for (int64_t i = begin; i < end; i++)
        tri_outer_panels(p, groups * i / p->threads, groups * (i + 1) / p->threads,
                         p->own + i * TRI_OUTER_OWN);
}

/* Weight w for its n slots from first on, in even blocks of tokens. */
static void tri_outer_run(tr_ctx *ctx, const tri_product_job *a, const tr_weight *w, int64_t first,
                          int64_t n)
{
    int64_t blocks = tri_blocks(n, tri_outer_most(w)), each = tri_blocks(n, blocks);
    tri_outer_job p;
    p.a = a;
    p.w = w;
    p.x = ctx->outer;
    p.own = ctx->outer + TRI_OUTER_X;
    p.threads = tri_least(tr_par_threads(ctx), ctx->outer_threads);
    p.threads = tri_least(p.threads, tri_blocks(w->rows, TR_LANES));
    each = tri_blocks(each, TR_LANES) * TR_LANES;
    for (int64_t last = first + n; first < last; first += p.n) {
        p.first = first;
        p.n = tri_least(each, last - first);
        p.groups = tri_blocks(p.n, TR_LANES);
        tr_par_for(ctx, p.groups, 1 + 4096 / w->cols, tri_outer_tokens, &p);
        tr_par_for(ctx, p.threads, 1, tri_outer_threads, &p);
    }
}

/* 1 if more than three quarters of a sample of 256 pieces of x, of 16 numbers, have a subnormal:
 * with fewer the hardware is still faster. */
static int tri_many_subnormal(const tri_product_job *a)
{
    int64_t pieces = a->w->cols / TR_LANES, sample = tri_least(a->n * pieces, 256), many = 0;
    for (int64_t i = 0; i < sample; i++) {
        int64_t at = a->n * pieces * i / sample;
        int64_t s = tri_slot(a, tri_slots_begin(a, 0) + at / pieces);
        const float *x = tri_row_f32(a->x, s / a->per) + at % pieces * TR_LANES;
        int some = 0;
        for (int l = 0; l < TR_LANES; l++) some |= x[l] != 0 && fabsf(x[l]) < FLT_MIN;
        many += some;
    }
    return many * 4 > sample * 3;
}

static void tri_product_run(tr_ctx *ctx, tri_product_job *a)
{
    int64_t total = 0;
    a->tiles = tri_os_tiles(ctx->cpu);
    if (a->tiles->soft && tri_many_subnormal(a)) a->tiles = a->tiles->soft;
    a->fp4 = &ctx->fp4;
    a->few = a->tiles->outer && tri_outer_most(a->w) >= TRI_OUTER_FROM ? TRI_OUTER_FROM - 1 :
             INT64_MAX;
    for (int64_t e = 0; e < a->E; e++) {
        int64_t first = tri_slots_begin(a, e), n = tri_slots_begin(a, e + 1) - first;
        if (n > a->few) tri_outer_run(ctx, a, &a->w[e], first, n);
        total += tri_product_cost(a, n) * a->w->rows;
    }
    tri_par_clone(ctx, total, 1 + 65536 / (a->w->cols + 1), tri_product_rows_clones, a);
}

/* y_s = x_(s div per) W_e^T for the experts e < E and their slots, as above. The weights w[E] are
 * of one shape; those without slots are not looked at. Checks nothing, allocates nothing. */
static void tri_product_group(tr_ctx *ctx, tr_view y, tr_view x, int64_t per, const tr_weight *w,
                              int64_t E, const int32_t *slot, const int32_t *offset)
{
    tri_product_job job;
    int64_t first = 0;
    while (first < E && offset[first] == offset[first + 1]) first++;
    if (first == E) return;
    memset(&job, 0, sizeof job);
    job.y = y;
    job.x = x;
    job.w = w + first;                  /* tells the shape */
    job.slot = slot;
    job.offset = offset + first;
    job.E = E - first;
    job.n = offset[E] - offset[first];
    job.per = per;
    tri_product_run(ctx, &job);
}

tr_status tr_matmul(tr_ctx *ctx, const tr_matmul_args *a)
{
    tri_product_job job;
    TRI_TRY(tri_matmul_check(ctx, TR_F32, a));
    memset(&job, 0, sizeof job);
    job.y = a->y;
    job.x = a->x;
    job.bias = a->bias;
    job.w = a->w;
    job.E = job.per = 1;
    job.n = a->x.shape[0];
    tri_product_run(ctx, &job);
    return TR_OK;
}

/* ---- the transposed product
 *
 *     y[n, c] = sum_k x[n, k] W[k, c]        W [K, C]: a stored weight or a band of its rows
 *
 * W is read along its rows, so it is not stored transposed. The sum over k is the same dot product
 * as above: lane k mod 16, k counted from the first row of the band. Here the registers lie along
 * c, and each lane is an ordinary product of its own rows: we go through a panel once a lane. */
typedef struct tri_product_t_job {
    tr_view y, x;
    const tr_weight *w;
    const tri_tiles *tiles;
} tri_product_t_job;

/* Rows [k, k + n) of columns [c, c + len), decoded; columns that are not there are 0. */
static void tri_panel_read_t(const tri_tiles *t, const tr_weight *w, int64_t k, int64_t n,
                             int64_t c, int64_t len, float (*p)[TRI_T_COLS])
{
    if (len < TRI_T_COLS) memset(p, 0, (size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) tri_decode_row(t, w, k + i, c, len, p[i]);
}

/* tri_lanes_fold for a panel's columns at once. */
TRI_INLINE void tri_fold_t(float y[TRI_T_COLS], const float (*lane)[TRI_T_COLS])
{
    float b[8][TRI_T_COLS], d[4][TRI_T_COLS];
    for (int l = 0; l < 8; l++)
        for (int c = 0; c < TRI_T_COLS; c++) b[l][c] = lane[l][c] + lane[l + 8][c];
    for (int l = 0; l < 4; l++)
        for (int c = 0; c < TRI_T_COLS; c++) d[l][c] = b[l][c] + b[l + 4][c];
    for (int c = 0; c < TRI_T_COLS; c++) y[c] = (d[0][c] + d[2][c]) + (d[1][c] + d[3][c]);
}

/* Panels of columns [begin, end), each for all tokens, eight at a time. A weight of few rows is
 * decoded once. */
TRI_INLINE void tri_product_t_cols(int hw, void *user, int64_t begin, int64_t end)
{
    const tri_product_t_job *a = (const tri_product_t_job *)user;
    float lane[TRI_T_TOKENS][TR_LANES][TRI_T_COLS], p[TRI_T_ROWS][TRI_T_COLS];
    const float *x[TRI_T_TOKENS];
    (void)hw;
    for (int64_t c = begin * TRI_T_COLS; begin < end; begin++, c += TRI_T_COLS) {
        int64_t len = tri_least(a->w->cols - c, TRI_T_COLS), K = a->w->rows, N;
        for (int64_t n = 0; n < a->x.shape[0]; n += N) {
            N = tri_least(a->x.shape[0] - n, TRI_T_TOKENS);
            memset(lane, 0, (size_t)N * sizeof lane[0]);
            for (int64_t k = 0, rows; k < K; k += rows) {
                rows = tri_least(K - k, TRI_T_ROWS);
                if (n == 0 || K > TRI_T_ROWS)
                    tri_panel_read_t(a->tiles, a->w, k, rows, c, len, p);
                for (int64_t i = 0; i < N; i++) x[i] = tri_row_f32(a->x, n + i) + k;
                a->tiles->tile_t(lane, x, N, (const float (*)[TRI_T_COLS])p, rows);
            }
            for (int64_t i = 0; i < N; i++) {
                float y[TRI_T_COLS];
                tri_fold_t(y, (const float (*)[TRI_T_COLS])lane[i]);
                memcpy(tri_row_f32(a->y, n + i) + c, y, (size_t)len * sizeof *y);
            }
        }
    }
}
TRI_CLONES(tri_product_t_cols)

/* y [N, C], x [N, K], w [K, C]: rows of views of any strides, but 1 within a row. Checks nothing,
 * allocates nothing. Threads share the columns of y, 32 at a time. */
static void tri_product_t(tr_ctx *ctx, tr_view y, tr_view x, const tr_weight *w)
{
    tri_product_t_job job;
    job.y = y;
    job.x = x;
    job.w = w;
    job.tiles = tri_os_tiles(ctx->cpu);
    tri_par_clone(ctx, tri_blocks(w->cols, TRI_T_COLS),
                  1 + 65536 / TRI_T_COLS / (x.shape[0] + 4) / (w->rows + 1),
                  tri_product_t_cols_clones, &job);
}

static int64_t tri_embed_id(const tr_embed_args *a, int64_t n)
{
    return (int64_t)tr_get_f64(a->ids.data, TR_I32, n * a->ids.stride[0]);
}

static tr_status tri_embed_check(tr_ctx *ctx, tr_dtype t, const tr_embed_args *a)
{
    const tr_weight *w = a->w;
    char y[96], ids[96];
    TRI_TRY(tri_mat_weight(ctx, "embed", w));
    TRI_TRY(tri_mat_rows(ctx, t, "embed", w, "y", a->y));
    if (a->ids.dtype != TR_I32)
        return tr_fail(ctx, TR_ERR_DTYPE, "embed %s: ids are %s and must be I32", w->name,
                       tr_view_str(a->ids, ids));
    if (a->ids.rank != 1 || a->ids.shape[0] != a->y.shape[0] || a->y.shape[1] != w->cols ||
        (!a->ids.data && a->ids.shape[0]))
        return tr_fail(ctx, TR_ERR_SHAPE, "embed %s [%lld, %lld]: ids are %s and y is %s", w->name,
                       (long long)w->rows, (long long)w->cols, tr_view_str(a->ids, ids),
                       tr_view_str(a->y, y));
    for (int64_t n = 0; n < a->ids.shape[0]; n++)
        if (tri_embed_id(a, n) < 0 || tri_embed_id(a, n) >= w->rows)
            return tr_fail(ctx, TR_ERR_RANGE, "embed %s: token %lld: id %lld is outside [0, %lld)",
                           w->name, (long long)n, (long long)tri_embed_id(a, n),
                           (long long)w->rows);
    return TR_OK;
}

static void tri_embed_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_embed_args *a = (const tr_embed_args *)user;
    int64_t D = a->w->cols;
    for (int64_t n = begin; n < end; n++) {
        double *y = tri_row_f64(a->y, n);
        const double *row = tr_weight_row_f64(a->w, tri_embed_id(a, n), 0, D, y);
        if (row != y) memcpy(y, row, (size_t)D * sizeof *y);
    }
}

tr_status tr_embed_f64(tr_ctx *ctx, const tr_embed_args *a)
{
    tr_embed_args job = *a;
    TRI_TRY(tri_embed_check(ctx, TR_F64, a));
    if (a->w->cols == 0) return TR_OK;
    tr_par_for(ctx, a->ids.shape[0], tri_mat_grain(0, a->w->cols), tri_embed_rows_f64, &job);
    return TR_OK;
}

static void tri_embed_rows(void *user, int64_t begin, int64_t end)
{
    const tr_embed_args *a = (const tr_embed_args *)user;
    int64_t D = a->w->cols;
    for (int64_t n = begin; n < end; n++) {
        float *y = tri_row_f32(a->y, n);
        const float *row = tr_weight_row_f32(a->w, tri_embed_id(a, n), 0, D, y);
        if (row != y) memcpy(y, row, (size_t)D * sizeof *y);
    }
}

tr_status tr_embed(tr_ctx *ctx, const tr_embed_args *a)
{
    tr_embed_args job = *a;
    TRI_TRY(tri_embed_check(ctx, TR_F32, a));
    if (a->w->cols == 0) return TR_OK;
    tr_par_for(ctx, a->ids.shape[0], tri_mat_grain(0, a->w->cols), tri_embed_rows, &job);
    return TR_OK;
}

/* ============================================================================
 * 10. Norms {norm}
 *
 * A row of activations is divided by its own size, so that what follows sees its direction and not
 * its magnitude; a learned weight then says how much each channel counts. The kinds differ in what
 * "size" is, and in whether the mean is taken off first.
 *
 * Traps. eps stands inside the root and beside the mean: an RMS helper on delta-rule keys needs eps
 * / D and a factor D^-1/2 to be the L2 norm. Inner norms of latent attention use 1e-6 even where
 * the config says 1e-5 (the vendor's class default; the fact mla.inner_eps). Some checkpoints store
 * w, some w - 1. With eps 0 a row of zeros is 0/0.
 * ========================================================================= */

/* Operators check at the door; the arithmetic behind it is bare. tri_fit takes the shapes as this
 * book writes them, and a view for each:
 *
 *     tri_fit(ctx, TR_F64, "glu", "y[N,F] g[N,F] u[N,F]", a->y, a->g, a->u)
 *
 * Equal letters must be equal extents. Views are of the given type unless it says name:I32[..];
 * name?[..] may be absent; two dots stand for any leading dimensions, the same for all that have
 * them. The last dimension must be without gaps. */
typedef struct tri_fitting {
    tr_ctx *ctx;
    tr_dtype t;
    const char *op;
    int n;                                              /* letters met so far, with where */
    struct { const char *letter, *name; size_t len; int64_t extent; tr_view v; } met[16];
} tri_fitting;

static int tri_name_len(const char *item) { return (int)strcspn(item, "?:["); }

/* Dimension k of v is called `letter`; two dots compare dimensions before the k-th. */
static tr_status tri_fit_letter(tri_fitting *f, const char *item, tr_view v, const char *letter,
                                int k)
{
    char a[96], b[96];
    size_t len = strcspn(letter, ",]");
    int dots = *letter == '.', same = 1;
    for (int i = 0; i < f->n; i++) {
        if (f->met[i].len != len || memcmp(f->met[i].letter, letter, len)) continue;
        for (int d = 0; dots && d < k; d++) same &= f->met[i].v.shape[d] == v.shape[d];
        if (same && f->met[i].extent == (dots ? k : v.shape[k])) return TR_OK;
        return tr_fail(f->ctx, TR_ERR_SHAPE, "%s: %.*s %s and %.*s %s differ in %.*s", f->op,
                       tri_name_len(f->met[i].name), f->met[i].name, tr_view_str(f->met[i].v, a),
                       tri_name_len(item), item, tr_view_str(v, b), (int)len, letter);
    }
    TR_ASSERT(f->n < 16);
    f->met[f->n].letter = letter;
    f->met[f->n].name = item;
    f->met[f->n].len = len;
    f->met[f->n].extent = dots ? k : v.shape[k];
    f->met[f->n++].v = v;
    return TR_OK;
}

static tr_status tri_fit_view(tri_fitting *f, const char *item, tr_view v)
{
    char s[96];
    int name = tri_name_len(item), last = v.rank - 1, dims = 1, k = 0;
    int there = v.data || tr_view_numel(v) == 0;
    const char *shape = strchr(item, '[');
    tr_dtype t = f->t;
    if (item[name] == ':') TRI_TRY(tr_dtype_parse(f->ctx, &t, item + name + 1, 3));
    for (const char *c = shape; *c != ']'; c++) dims += *c == ',';
    if (shape[1] == '.') k = v.rank - (dims - 1) > 0 ? v.rank - (dims - 1) : 0;

    if (tr_view_is_none(v) && item[name] == '?') return TR_OK;
    if (tr_view_is_none(v))
        return tr_fail(f->ctx, TR_ERR_ARG, "%s: %.*s is absent", f->op, name, item);
    if (v.dtype != t)
        return tr_fail(f->ctx, TR_ERR_DTYPE, "%s: %.*s %s is not %s", f->op, name, item,
                       tr_view_str(v, s), tr_dtype_get(t)->name);
    if (v.rank != (shape[1] == '.' ? k + dims - 1 : dims))
        return tr_fail(f->ctx, TR_ERR_SHAPE, "%s: %.*s %s is not %.*s", f->op, name, item,
                       tr_view_str(v, s), (int)(strchr(shape, ']') + 1 - shape), shape);
    for (int d = 0; d < v.rank; d++) there &= v.shape[d] >= 0;
    if (!there)
        return tr_fail(f->ctx, TR_ERR_ARG, "%s: %.*s %s has no data", f->op, name, item,
                       tr_view_str(v, s));
    if (v.shape[last] > 1 && v.stride[last] != 1)
        return tr_fail(f->ctx, TR_ERR_SHAPE, "%s: %.*s %s has stride %lld in its last dimension",
                       f->op, name, item, tr_view_str(v, s), (long long)v.stride[last]);
    for (shape++; k < v.rank; shape += strcspn(shape, ",]") + 1) {
        TRI_TRY(tri_fit_letter(f, item, v, shape, k));
        if (*shape != '.') k++;
    }
    return TR_OK;
}

static tr_status tri_fit(tr_ctx *ctx, tr_dtype t, const char *op, const char *shapes, ...)
{
    tri_fitting f;
    tr_status s = TR_OK;
    va_list ap;
    f.ctx = ctx;
    f.t = t;
    f.op = op;
    f.n = 0;
    va_start(ap, shapes);
    for (; s == TR_OK && *shapes; shapes += strcspn(shapes, " "), shapes += *shapes == ' ')
        s = tri_fit_view(&f, shapes, va_arg(ap, tr_view));
    va_end(ap);
    return s;
}

/* A factor: finite and not 0. There is no default; 1 changes nothing. */
static tr_status tri_factor(tr_ctx *ctx, const char *what, double x)
{
    if (x != 0 && fabs(x) <= DBL_MAX) return TR_OK;
    return tr_fail(ctx, TR_ERR_ARG, "%s is %g, must be finite and not 0", what, x);
}

/* Something like an epsilon: finite and not below 0. */
static tr_status tri_not_below_0(tr_ctx *ctx, const char *what, double x)
{
    if (x >= 0 && x <= DBL_MAX) return TR_OK;
    return tr_fail(ctx, TR_ERR_RANGE, "%s is %g, must be finite and not below 0", what, x);
}

/* How many items of `work` multiplications make a piece worth a thread. */
static int64_t tri_grain(int64_t work) { return 1 + 8192 / (work > 0 ? work : 1); }

/* Root mean square (Zhang & Sennrich 2019; LlamaRMSNorm):
 *
 *     y = w x / rms(x),   rms(x) = sqrt(mean_d(x_d^2) + eps)                    w NULL: 1 */
void tr_rmsnorm_f64(double *y, const double *x, const double *w, int64_t T, int64_t D, double eps)
{
    for (int64_t t = 0; t < T; t++, x += D, y += D) {
        double r = 1 / sqrt(tr_sumsq_f64(x, D) / (double)D + eps);
        for (int64_t d = 0; d < D; d++) y[d] = (w ? w[d] : 1) * (x[d] * r);
    }
}

/* Euclidean length (fla l2norm, on the queries and keys of delta rules): the sum, not the mean.
 *
 *     y = x / sqrt(sum_d(x_d^2) + eps) */
void tr_l2norm_f64(double *y, const double *x, int64_t T, int64_t D, double eps)
{
    for (int64_t t = 0; t < T; t++, x += D, y += D) {
        double r = 1 / sqrt(tr_sumsq_f64(x, D) + eps);
        for (int64_t d = 0; d < D; d++) y[d] = x[d] * r;
    }
}

/* Mean and deviation (Ba, Kiros & Hinton 2016; torch LayerNorm):
 *
 *     y = w (x - mu) / sqrt(mean_d((x_d - mu)^2) + eps) + b,   mu = mean_d(x_d) */
void tr_layernorm_f64(double *y, const double *x, const double *w, const double *b,
                      int64_t T, int64_t D, double eps)
{
    for (int64_t t = 0; t < T; t++, x += D, y += D) {
        double mu = 0, var = 0;
        for (int64_t d = 0; d < D; d++) mu += x[d];
        mu /= (double)D;
        for (int64_t d = 0; d < D; d++) var += (x[d] - mu) * (x[d] - mu);
        double r = 1 / sqrt(var / (double)D + eps);
        for (int64_t d = 0; d < D; d++)
            y[d] = (w ? w[d] : 1) * ((x[d] - mu) * r) + (b ? b[d] : 0);
    }
}

/* The operator: D falls into groups with statistics of their own, then
 *
 *     y = scale (w n(x) + b) sigmoid(gate)                        w is 1 + w in some checkpoints
 *
 * The gate comes after norm and weight (KDA's o_norm, fla FusedRMSNormGated). */
static void tri_norm_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_norm_args *a = (const tr_norm_args *)user;
    int64_t D = a->x.shape[a->x.rank - 1], C = D / a->groups;
    double one = a->form == TR_NORM_ONE_PLUS_W ? 1 : 0;
    const double *w = tr_view_f64(a->w), *b = tr_view_f64(a->bias);
    for (int64_t i = begin; i < end; i++) {
        double *y = tri_row_f64(a->y, i);
        const double *x = tri_row_f64(a->x, i);
        const double *gate = tr_view_is_none(a->gate) ? NULL : tri_row_f64(a->gate, i);
        for (int64_t c = 0; c < D; c += C) {
            if (a->kind == TR_NORM_RMS)   tr_rmsnorm_f64(y + c, x + c, NULL, 1, C, a->eps);
            if (a->kind == TR_NORM_L2)    tr_l2norm_f64(y + c, x + c, 1, C, a->eps);
            if (a->kind == TR_NORM_LAYER) tr_layernorm_f64(y + c, x + c, NULL, NULL, 1, C, a->eps);
        }
        for (int64_t d = 0; d < D; d++) {
            if (w) y[d] *= one + w[d];
            if (b) y[d] += b[d];
            if (gate) y[d] *= tr_sigmoid_f64(gate[d]);
            y[d] *= a->scale;
        }
    }
}

static tr_status tri_norm_check(tr_ctx *ctx, tr_dtype t, const tr_norm_args *a)
{
    int64_t D;
    TRI_TRY(tri_fit(ctx, t, "norm", "x[..,D] y[..,D] w?[D] bias?[D] gate?[..,D]",
                    a->x, a->y, a->w, a->bias, a->gate));
    TRI_TRY(tri_not_below_0(ctx, "norm: eps", a->eps));
    TRI_TRY(tri_factor(ctx, "norm: scale", a->scale));
    D = a->x.shape[a->x.rank - 1];
    if (D < 1 || a->groups < 1 || D % a->groups)
        return tr_fail(ctx, TR_ERR_SHAPE, "norm: rows of %lld do not fall into %lld groups",
                       (long long)D, (long long)a->groups);
    if ((int)a->kind < 0 || a->kind > TR_NORM_LAYER)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "norm: no kind %d", (int)a->kind);
    if (!tr_view_is_none(a->bias) && a->kind != TR_NORM_LAYER)
        return tr_fail(ctx, TR_ERR_ARG, "norm: only LayerNorm has a bias");
    return TR_OK;
}

static int64_t tri_norm_grain(const tr_norm_args *a)
{
    return tri_grain(4 * a->x.shape[a->x.rank - 1]);
}

tr_status tr_norm_f64(tr_ctx *ctx, const tr_norm_args *a)
{
    tr_norm_args job = *a;
    TRI_TRY(tri_norm_check(ctx, TR_F64, a));
    tr_par_for(ctx, tri_rows(a->x), tri_norm_grain(a), tri_norm_rows_f64, &job);
    return TR_OK;
}

/* The contract's kernels: sums in sixteen lanes, each product and sum rounded.
 *     r = fl(1 / sqrt(fl(ss / D) + eps))    y = fl(x r), then times w, plus b */
TRI_INLINE void tri_rmsnorm(int hw, float *y, const float *x, const float *w, int64_t D, float eps)
{
    float r = 1 / sqrtf(tri_dot(hw, x, x, D) / (float)D + eps);
    for (int64_t d = 0; d < D; d++) y[d] = x[d] * r;
    if (w) for (int64_t d = 0; d < D; d++) y[d] *= w[d];
}

TRI_INLINE void tri_l2norm(int hw, float *y, const float *x, int64_t D, float eps)
{
    float r = 1 / sqrtf(tri_dot(hw, x, x, D) + eps);
    for (int64_t d = 0; d < D; d++) y[d] = x[d] * r;
}

/* y holds x - mu for a while. */
TRI_INLINE void tri_layernorm(int hw, float *y, const float *x, const float *w, const float *b,
                              int64_t D, float eps)
{
    float mu = tri_sum(x, D) / (float)D, r;
    for (int64_t d = 0; d < D; d++) y[d] = x[d] - mu;
    r = 1 / sqrtf(tri_dot(hw, y, y, D) / (float)D + eps);
    for (int64_t d = 0; d < D; d++) y[d] *= r;
    if (w) for (int64_t d = 0; d < D; d++) y[d] *= w[d];
    if (b) for (int64_t d = 0; d < D; d++) y[d] += b[d];
}

void tr_rmsnorm(float *y, const float *x, const float *w, int64_t T, int64_t D, float eps)
{
    for (int64_t t = 0; t < T; t++) tri_rmsnorm(TRI_HW_FMA, y + t * D, x + t * D, w, D, eps);
}

void tr_l2norm(float *y, const float *x, int64_t T, int64_t D, float eps)
{
    for (int64_t t = 0; t < T; t++) tri_l2norm(TRI_HW_FMA, y + t * D, x + t * D, D, eps);
}

void tr_layernorm(float *y, const float *x, const float *w, const float *b, int64_t T, int64_t D,
                  float eps)
{
    for (int64_t t = 0; t < T; t++) tri_layernorm(TRI_HW_FMA, y + t * D, x + t * D, w, b, D, eps);
}

/* What follows a norm, row by row; each step is there or left out. */
TRI_INLINE void tri_norm_finish(const tr_norm_args *a, int64_t i, float *y, int64_t D)
{
    const float *w = tr_view_is_none(a->w) ? NULL : tr_view_f32(a->w), scale = (float)a->scale;
    const float *b = tr_view_is_none(a->bias) ? NULL : tr_view_f32(a->bias);
    const float *gate = tr_view_is_none(a->gate) ? NULL : tri_row_f32(a->gate, i);
    if (w && a->form == TR_NORM_W) for (int64_t d = 0; d < D; d++) y[d] *= w[d];
    if (w && a->form != TR_NORM_W) for (int64_t d = 0; d < D; d++) y[d] *= 1 + w[d];
    if (b) for (int64_t d = 0; d < D; d++) y[d] += b[d];
    if (gate) for (int64_t d = 0; d < D; d++) y[d] *= tri_sigmoidf(gate[d]);
    for (int64_t d = 0; d < D; d++) y[d] *= scale;
}

TRI_INLINE void tri_norm_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_norm_args *a = (const tr_norm_args *)user;
    int64_t D = a->x.shape[a->x.rank - 1], C = D / a->groups;
    float eps = (float)a->eps;
    for (int64_t i = begin; i < end; i++) {
        float *y = tri_row_f32(a->y, i);
        const float *x = tri_row_f32(a->x, i);
        for (int64_t c = 0; c < D; c += C) {
            if (a->kind == TR_NORM_RMS)   tri_rmsnorm(hw, y + c, x + c, NULL, C, eps);
            if (a->kind == TR_NORM_L2)    tri_l2norm(hw, y + c, x + c, C, eps);
            if (a->kind == TR_NORM_LAYER) tri_layernorm(hw, y + c, x + c, NULL, NULL, C, eps);
        }
        tri_norm_finish(a, i, y, D);
    }
}
TRI_CLONES(tri_norm_rows)

tr_status tr_norm(tr_ctx *ctx, const tr_norm_args *a)
{
    tr_norm_args job = *a;
    TRI_TRY(tri_norm_check(ctx, TR_F32, a));
    tri_par_clone(ctx, tri_rows(a->x), tri_norm_grain(a), tri_norm_rows_clones, &job);
    return TR_OK;
}

/* ============================================================================
 * 11. Activations {act}
 *
 * What makes a network more than one matrix: a function of single numbers. Here they come in
 * pairs, one number deciding (the gate) how much of the other passes. And softmax, which turns a
 * row of scores into shares of one.
 *
 * Traps. Gate and up are not symmetric: swapping w1 and w3 gives plausible text. In SiTU the
 * sigmoid of the capped gate, or the two caps swapped, are wrong by little. torch's softplus
 * returns x above 20, which is off by 2e-9. The two GELUs differ by at most 5e-4, and a model may
 * hold both: the kind stands in its code or its config, and in no tensor.
 * ========================================================================= */

/* SwiGLU (Shazeer 2020):   y = silu(g) u */
static double tri_act_silu_f64(double g, double u, const double *p)
{
    (void)p;
    return tr_silu_f64(g) * u;
}

/* SiTU (Kimi K3, SituAndMul):   y = p0 tanh(g / p0) sigma(g) p1 tanh(u / p1)
 * Both factors are capped; the sigmoid sees g as it came. */
static double tri_act_situ_f64(double g, double u, const double *p)
{
    return p[0] * tanh(g / p[0]) * tr_sigmoid_f64(g) * (p[1] * tanh(u / p[1]));
}

/* yes ? a : b, as tri_pick. */
TRI_INLINE float tri_pickf(int yes, float a, float b)
{
    uint32_t none = (uint32_t)yes - 1;
    return tr_f32_from_bits((tr_f32_bits(a) & ~none) | (tr_f32_bits(b) & none));
}

/* silu in binary32: fl(x sigma(x)), and +0 where sigma is 0. */
TRI_INLINE float tri_siluf(float x)
{
    float s = tri_sigmoidf(x);
    return tri_pickf(s == 0, 0, x * s);
}

TRI_INLINE void tri_silu_row(float *y, const float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = tri_siluf(g[i]) * u[i];
}

TRI_INLINE void tri_situ_row(float *y, const float *g, const float *u, int64_t n, const float *p)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = p[0] * tri_tanhf(g[i] / p[0]) * tri_sigmoidf(g[i]) * (p[1] * tri_tanhf(u[i] / p[1]));
}

static void tri_act_silu(float *y, const float *g, const float *u, int64_t n, const float *p)
{
    (void)p;
    tri_silu_row(y, g, u, n);
}

static void tri_act_situ(float *y, const float *g, const float *u, int64_t n, const float *p)
{
    tri_situ_row(y, g, u, n, p);
}

/* A row of any activation; the library's own are inlined, so that clones vectorise them. */
TRI_INLINE void tri_act_row(const tr_act *act, float *y, const float *g, const float *u, int64_t n,
                            const double *p)
{
    float pf[TR_ACT_PARAMS];
    for (int i = 0; i < TR_ACT_PARAMS; i++) pf[i] = (float)p[i];
    if (act->f32 == tri_act_silu) tri_silu_row(y, g, u, n);
    else if (act->f32 == tri_act_situ) tri_situ_row(y, g, u, n, pf);
    else act->f32(y, g, u, n, pf);
}

static const tr_act tri_acts[] = {
    { "silu", tri_act_silu_f64, tri_act_silu },
    { "situ", tri_act_situ_f64, tri_act_situ },
};

const tr_act *tr_act_find(const tr_ctx *ctx, const char *name)
{
    for (int64_t i = 0; i < ctx->n_acts; i++)
        if (!strcmp(ctx->acts[i].name, name)) return &ctx->acts[i];
    for (size_t i = 0; i < sizeof tri_acts / sizeof *tri_acts; i++)
        if (!strcmp(tri_acts[i].name, name)) return &tri_acts[i];
    return NULL;
}

tr_status tr_ctx_add_act(tr_ctx *ctx, const tr_act *act)
{
    void *p;
    if (!act->name || !act->name[0] || !act->f64)
        return tr_fail(ctx, TR_ERR_ARG, "an activation needs a name and a function");
    if (tr_act_find(ctx, act->name))
        return tr_fail(ctx, TR_ERR_ARG, "activation \"%s\" exists already", act->name);
    TRI_TRY(tri_alloc_n(ctx, &p, ctx->n_acts + 1, sizeof *act));
    if (ctx->n_acts) memcpy(p, ctx->acts, (size_t)ctx->n_acts * sizeof *act);
    tr_free(ctx, ctx->acts);
    ctx->acts = (tr_act *)p;
    ctx->acts[ctx->n_acts++] = *act;
    return TR_OK;
}

/* op is "glu" or "experts". A cap of 0 would be 0/0. */
static tr_status tri_act_check(tr_ctx *ctx, tr_dtype t, const char *op, const tr_act *act,
                               const double *p)
{
    if (!act || !act->f64) return tr_fail(ctx, TR_ERR_ARG, "%s: no activation", op);
    if (t == TR_F32 && !act->f32)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: activation \"%s\" has no binary32 form", op,
                       act->name);
    if (act->f64 == tri_act_situ_f64 && !(p[0] > 0 && p[1] > 0))
        return tr_fail(ctx, TR_ERR_RANGE, "%s: situ needs caps > 0, not %g and %g", op, p[0], p[1]);
    return TR_OK;
}

static void tri_glu_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_glu_args *a = (const tr_glu_args *)user;
    for (int64_t n = begin; n < end; n++) {
        const double *g = tri_row_f64(a->g, n), *u = tri_row_f64(a->u, n);
        double *y = tri_row_f64(a->y, n);
        for (int64_t f = 0; f < a->y.shape[1]; f++) y[f] = a->act->f64(g[f], u[f], a->p);
    }
}

static tr_status tri_glu_check(tr_ctx *ctx, tr_dtype t, const tr_glu_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "glu", "y[N,F] g[N,F] u[N,F]", a->y, a->g, a->u));
    return tri_act_check(ctx, t, "glu", a->act, a->p);
}

tr_status tr_glu_f64(tr_ctx *ctx, const tr_glu_args *a)
{
    tr_glu_args job = *a;
    TRI_TRY(tri_glu_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->y.shape[0], tri_grain(16 * a->y.shape[1]), tri_glu_rows_f64, &job);
    return TR_OK;
}

TRI_INLINE void tri_glu_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_glu_args *a = (const tr_glu_args *)user;
    (void)hw;
    for (int64_t n = begin; n < end; n++)
        tri_act_row(a->act, tri_row_f32(a->y, n), tri_row_f32(a->g, n), tri_row_f32(a->u, n),
                    a->y.shape[1], a->p);
}
TRI_CLONES(tri_glu_rows)

tr_status tr_glu(tr_ctx *ctx, const tr_glu_args *a)
{
    tr_glu_args job = *a;
    TRI_TRY(tri_glu_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->y.shape[0], tri_grain(16 * a->y.shape[1]), tri_glu_rows_clones, &job);
    return TR_OK;
}

/* y = x sigma(g): the output gate of gated attention, on what the heads return, before o_proj. */
static void tri_gate_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_gate_args *a = (const tr_gate_args *)user;
    for (int64_t n = begin; n < end; n++) {
        const double *x = tri_row_f64(a->x, n), *g = tri_row_f64(a->g, n);
        double *y = tri_row_f64(a->y, n);
        for (int64_t d = 0; d < a->y.shape[a->y.rank - 1]; d++) y[d] = x[d] * tr_sigmoid_f64(g[d]);
    }
}

static tr_status tri_gate_check(tr_ctx *ctx, tr_dtype t, const tr_gate_args *a)
{
    return tri_fit(ctx, t, "gate", "y[..,D] x[..,D] g[..,D]", a->y, a->x, a->g);
}

tr_status tr_gate_f64(tr_ctx *ctx, const tr_gate_args *a)
{
    tr_gate_args job = *a;
    TRI_TRY(tri_gate_check(ctx, TR_F64, a));
    tr_par_for(ctx, tri_rows(a->y), tri_grain(16 * a->y.shape[a->y.rank - 1]), tri_gate_rows_f64,
               &job);
    return TR_OK;
}

TRI_INLINE void tri_gate_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_gate_args *a = (const tr_gate_args *)user;
    (void)hw;
    for (int64_t n = begin; n < end; n++) {
        const float *x = tri_row_f32(a->x, n), *g = tri_row_f32(a->g, n);
        float *y = tri_row_f32(a->y, n);
        for (int64_t d = 0; d < a->y.shape[a->y.rank - 1]; d++) y[d] = x[d] * tri_sigmoidf(g[d]);
    }
}
TRI_CLONES(tri_gate_rows)

tr_status tr_gate(tr_ctx *ctx, const tr_gate_args *a)
{
    tr_gate_args job = *a;
    TRI_TRY(tri_gate_check(ctx, TR_F32, a));
    tri_par_clone(ctx, tri_rows(a->y), tri_grain(16 * a->y.shape[a->y.rank - 1]),
                  tri_gate_rows_clones, &job);
    return TR_OK;
}

/* y = x Phi(x), or its approximation: tr_gelu_erf_f64 and tr_gelu_tanh_f64 of {fn}, element by
 * element. The contract's are tr_gelu_erff and tr_gelu_tanhf, one rounding each. */
static void tri_gelu_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_gelu_args *a = (const tr_gelu_args *)user;
    for (int64_t n = begin; n < end; n++) {
        const double *x = tri_row_f64(a->x, n);
        double *y = tri_row_f64(a->y, n);
        for (int64_t d = 0; d < a->y.shape[a->y.rank - 1]; d++)
            y[d] = a->kind == TR_GELU_ERF ? tr_gelu_erf_f64(x[d]) : tr_gelu_tanh_f64(x[d]);
    }
}

static tr_status tri_gelu_check(tr_ctx *ctx, tr_dtype t, const tr_gelu_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "gelu", "y[..,D] x[..,D]", a->y, a->x));
    if (a->kind == TR_GELU_ERF || a->kind == TR_GELU_TANH) return TR_OK;
    return tr_fail(ctx, TR_ERR_UNSUPPORTED, "gelu: no kind %d", (int)a->kind);
}

tr_status tr_gelu_f64(tr_ctx *ctx, const tr_gelu_args *a)
{
    tr_gelu_args job = *a;
    TRI_TRY(tri_gelu_check(ctx, TR_F64, a));
    tr_par_for(ctx, tri_rows(a->y), tri_grain(16 * a->y.shape[a->y.rank - 1]), tri_gelu_rows_f64,
               &job);
    return TR_OK;
}

TRI_INLINE void tri_gelu_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_gelu_args *a = (const tr_gelu_args *)user;
    (void)hw;
    for (int64_t n = begin; n < end; n++) {
        const float *x = tri_row_f32(a->x, n);
        float *y = tri_row_f32(a->y, n);
        int64_t D = a->y.shape[a->y.rank - 1];
        if (a->kind == TR_GELU_ERF) for (int64_t d = 0; d < D; d++) y[d] = tri_gelu_erff(x[d]);
        else for (int64_t d = 0; d < D; d++) y[d] = tri_gelu_tanhf(x[d]);
    }
}
TRI_CLONES(tri_gelu_rows)

tr_status tr_gelu(tr_ctx *ctx, const tr_gelu_args *a)
{
    tr_gelu_args job = *a;
    TRI_TRY(tri_gelu_check(ctx, TR_F32, a));
    tri_par_clone(ctx, tri_rows(a->y), tri_grain(16 * a->y.shape[a->y.rank - 1]),
                  tri_gelu_rows_clones, &job);
    return TR_OK;
}

/* p_i = e^(x_i - m) / (e^(sink - m) + sum_j e^(x_j - m)),   m = max(sink, max_j x_j)
 *
 * Taking off m changes nothing but keeps every exponent <= 0. m starts from a number of the row,
 * not from a very small one: a row may lie below any. */
void tr_softmax_f64(double *y, const double *x, const double *sink, int64_t T, int64_t D)
{
    for (int64_t t = 0; t < T; t++, x += D, y += D) {
        double m = sink ? sink[t] : D ? x[0] : 0, sum;
        for (int64_t d = 0; d < D; d++) m = x[d] > m ? x[d] : m;
        int masked = m < -DBL_MAX;                  /* nothing to see: zeros, not 0/0 */
        sum = sink && !masked ? exp(sink[t] - m) : 0;
        for (int64_t d = 0; d < D; d++) {
            y[d] = masked ? 0 : exp(x[d] - m);
            sum += y[d];
        }
        for (int64_t d = 0; d < D; d++) y[d] = masked ? 0 : y[d] / sum;
    }
}

/* The contract's: m by comparison from x_0 on; e_i = expf(fl(x_i - m)); their sum in lanes; then
 * the quotient. y may be x. */
TRI_INLINE void tri_softmax(float *y, const float *x, int64_t D)
{
    float m = D ? x[0] : 0, sum;
    for (int64_t d = 1; d < D; d++) m = m > x[d] ? m : x[d];
    for (int64_t d = 0; d < D; d++) y[d] = m < -FLT_MAX ? 0 : tri_expf(x[d] - m);
    sum = tri_sum(y, D);
    if (m < -FLT_MAX) sum = 1;                      /* nothing to see: zeros, not 0/0 */
    for (int64_t d = 0; d < D; d++) y[d] /= sum;
}

void tr_softmax(float *y, const float *x, int64_t T, int64_t D)
{
    for (int64_t t = 0; t < T; t++) tri_softmax(y + t * D, x + t * D, D);
}

/* ============================================================================
 * 12. Positions {rope}
 *
 * Attention itself does not know in which order tokens came. Here every pair of numbers of a query
 * or key is a point in the plane that position p turns by p times the pair's frequency; the product
 * of a query at i and a key at j then depends on i - j alone. Pairs turn at geometrically falling
 * frequencies, like the hands of a clock. Contexts longer than those of training are reached by
 * slowing down the slow hands.
 *
 * Traps. Half-split rotation of interleaved weights gives fluent nonsense after some tokens.
 * DeepSeek's own code de-interleaves first, so its stored keys are a permutation of these: compare
 * scores, not caches. An angle in binary32 is off by 0.03 at position 2^20. theta comes from the
 * config: the default of 1e4 passes every short test. yarn's g^2 is easily forgotten, or applied
 * to cos and sin as well.
 * ========================================================================= */

/* inv_freq_i = theta^(-2i/d),  i = 0 .. d/2-1                              (Su et al. 2021)
 *
 *   linear:  inv_freq / factor
 *   yarn:    the ramp between the pairs that make beta_fast and beta_slow turns in orig tokens
 *            (Peng et al. 2023; transformers modeling_rope_utils):
 *              corr(r) = d ln(orig / (2 pi r)) / (2 ln theta)
 *              low = max(corr(beta_fast), 0)   high = min(corr(beta_slow), d - 1)
 *                (truncate: floor and ceil first; high += 0.001 if they are equal)
 *              ramp_i = clamp((i - low) / (high - low), 0, 1)
 *              inv_freq / factor * ramp + inv_freq * (1 - ramp)
 *            and cos, sin are multiplied by attention_factor, if given; else by
 *            g(mscale) / g(mscale_all_dim), if both are; else by g(1), where
 *              g(m) = 1 if factor <= 1 else 0.1 m ln(factor) + 1
 *   llama3:  n = turns in orig tokens = orig inv_freq / (2 pi)
 *              n < low_freq: inv_freq / factor      n >= high_freq: inv_freq
 *              between: s = (n - low_freq) / (high_freq - low_freq),
 *                       (1 - s) inv_freq / factor + s inv_freq */

#define TRI_PI 3.14159265358979323846

static double tri_yarn_g(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * tr_log64(factor) + 1;
}

/* The index, as a real number, of the pair that makes r turns in orig tokens. */
static double tri_yarn_corr(const tr_rope_cfg *c, double r)
{
    return (double)c->dim * tr_log64(c->orig / (2 * TRI_PI * r)) / (2 * tr_log64(c->theta));
}

static double tri_yarn_mult(const tr_rope_cfg *c)
{
    if (c->attention_factor != 0) return c->attention_factor;
    if (c->mscale != 0 && c->mscale_all_dim != 0)
        return tri_yarn_g(c->factor, c->mscale) / tri_yarn_g(c->factor, c->mscale_all_dim);
    return tri_yarn_g(c->factor, 1);
}

static void tri_freqs_yarn_f64(double *f, const tr_rope_cfg *c)
{
    double low = tri_yarn_corr(c, c->beta_fast), high = tri_yarn_corr(c, c->beta_slow);
    if (c->truncate) { low = floor(low); high = ceil(high); }
    if (low < 0) low = 0;
    if (high > (double)(c->dim - 1)) high = (double)(c->dim - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < c->dim / 2; i++) {
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        f[i] = f[i] / c->factor * ramp + f[i] * (1 - ramp);
    }
}

static void tri_freqs_llama3_f64(double *f, const tr_rope_cfg *c)
{
    for (int64_t i = 0; i < c->dim / 2; i++) {
        double n = c->orig * f[i] / (2 * TRI_PI);
        double s = (n - c->low_freq) / (c->high_freq - c->low_freq);
        if (n < c->low_freq) f[i] = f[i] / c->factor;
        else if (n < c->high_freq) f[i] = (1 - s) * f[i] / c->factor + s * f[i];
    }
}

/* x > least, finite; else the sentence names the number. */
static tr_status tri_above(tr_ctx *ctx, const char *name, double x, double least)
{
    if (x > least && x <= DBL_MAX) return TR_OK;
    return tr_fail(ctx, TR_ERR_RANGE, "rope: %s is %g, must be above %g", name, x, least);
}

static tr_status tri_rope_freqs_f64(tr_ctx *ctx, double *inv_freq, double *mult,
                                    const tr_rope_cfg *c)
{
    int yarn = c->kind == TR_ROPE_YARN, llama3 = c->kind == TR_ROPE_LLAMA3;
    if ((int)c->kind < 0 || c->kind > TR_ROPE_LLAMA3)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "rope: no kind %d", (int)c->kind);
    if (c->dim < 2 || c->dim % 2)
        return tr_fail(ctx, TR_ERR_RANGE, "rope: dim is %lld, must be even and above 0",
                       (long long)c->dim);
    TRI_TRY(tri_above(ctx, "theta", c->theta, yarn ? 1 : 0));
    if (c->kind != TR_ROPE_DEFAULT) TRI_TRY(tri_above(ctx, "factor", c->factor, 0));
    if (yarn || llama3) TRI_TRY(tri_above(ctx, "orig", c->orig, 0));
    if (yarn) {
        TRI_TRY(tri_above(ctx, "beta_slow", c->beta_slow, 0));
        TRI_TRY(tri_above(ctx, "beta_fast", c->beta_fast, 0));
        if (c->beta_fast < c->beta_slow)
            return tr_fail(ctx, TR_ERR_RANGE, "rope: beta_fast %g is below beta_slow %g",
                           c->beta_fast, c->beta_slow);
        TRI_TRY(tri_factor(ctx, "rope: what mscale and attention_factor make of cos and sin",
                           tri_yarn_mult(c)));
    }
    if (llama3) {
        TRI_TRY(tri_above(ctx, "low_freq", c->low_freq, 0));
        TRI_TRY(tri_above(ctx, "high_freq", c->high_freq, 0));
        if (c->high_freq < c->low_freq)
            return tr_fail(ctx, TR_ERR_RANGE, "rope: high_freq %g is below low_freq %g",
                           c->high_freq, c->low_freq);
    }
    for (int64_t i = 0; i < c->dim / 2; i++)
        inv_freq[i] = tr_pow64(c->theta, -2 * (double)i / (double)c->dim);
    if (c->kind == TR_ROPE_LINEAR)
        for (int64_t i = 0; i < c->dim / 2; i++) inv_freq[i] /= c->factor;
    if (yarn) tri_freqs_yarn_f64(inv_freq, c);
    if (llama3) tri_freqs_llama3_f64(inv_freq, c);
    *mult = yarn ? tri_yarn_mult(c) : 1;
    return TR_OK;
}

tr_status tr_rope_freqs_f64(tr_ctx *ctx, double *inv_freq, double *mult, const tr_rope_cfg *c)
{
    tri_fpenv env = tri_os_fp_begin();
    tr_status s = tri_rope_freqs_f64(ctx, inv_freq, mult, c);
    tri_os_fp_end(env);
    return s;
}

/* DeepSeek puts yarn's correction into the softmax scale instead (modeling_deepseek_v3): there
 * mscale = mscale_all_dim, so cos and sin are multiplied by 1, and the scale by g^2. */
double tr_rope_softmax_mult(const tr_rope_cfg *c)
{
    double g = tri_yarn_g(c->factor, c->mscale_all_dim);
    return c->kind == TR_ROPE_YARN ? g * g : 1;
}

/* The pair (x_a, x_b) at position p, with phi = p inv_freq_i:
 *
 *     x_a' = x_a cos phi - x_b sin phi         half:         a = i,    b = i + d/2
 *     x_b' = x_b cos phi + x_a sin phi         interleaved:  a = 2i,   b = 2i + 1
 *
 * Part of a head is rotated by passing a view of that part. -inv_freq turns back. In a plane
 * (MoonViT) a patch has two positions, column and row, and pairs take them in turn. */
TRI_INLINE double tri_rope_pos(const tr_rope_args *r, int64_t n, int64_t i)
{
    int64_t A = r->pos.rank == 2 ? r->pos.shape[1] : 1;
    return (double)((const int64_t *)r->pos.data)[n * A + i % A];
}

static void tri_rope_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_rope_args *r = (const tr_rope_args *)user;
    const double *inv_freq = tr_view_f64(r->inv_freq);
    int64_t H = r->x.shape[1], d = r->x.shape[2];
    int half = r->layout == TR_ROPE_HALF;
    for (int64_t n = begin; n < end; n++) {
        for (int64_t i = 0; i < d / 2; i++) {
            double phi = tri_rope_pos(r, n, i) * inv_freq[i];
            double c = r->mult * cos(phi), s = r->mult * sin(phi);
            int64_t a = half ? i : 2 * i, b = half ? i + d / 2 : 2 * i + 1;
            for (int64_t h = 0; h < H; h++) {
                double *x = tri_head_f64(r->x, n, h), xa = x[a], xb = x[b];
                x[a] = xa * c - xb * s;
                x[b] = xb * c + xa * s;
            }
        }
    }
}

static tr_status tri_rope_check(tr_ctx *ctx, tr_dtype t, const tr_rope_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "rope", a->pos.rank == 2 ? "x[N,H,d] pos:I64[N,A] inv_freq:F64[d/2]"
                    : "x[N,H,d] pos:I64[N] inv_freq:F64[d/2]", a->x, a->pos, a->inv_freq));
    if (a->pos.rank == 2 && (a->pos.shape[1] < 1 || !tr_view_is_contig(a->pos)))
        return tr_fail(ctx, TR_ERR_SHAPE, "rope: pos [%lld, %lld] needs an axis, and no gaps",
                       (long long)a->pos.shape[0], (long long)a->pos.shape[1]);
    if (a->x.shape[2] != 2 * a->inv_freq.shape[0])
        return tr_fail(ctx, TR_ERR_SHAPE, "rope: %lld numbers to rotate, but %lld frequencies",
                       (long long)a->x.shape[2], (long long)a->inv_freq.shape[0]);
    if (a->layout != TR_ROPE_HALF && a->layout != TR_ROPE_INTERLEAVED)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "rope: no layout %d", (int)a->layout);
    return tri_factor(ctx, "rope: mult", a->mult);
}

static int64_t tri_rope_grain(const tr_rope_args *a)
{
    return tri_grain(a->x.shape[2] * (a->x.shape[1] + 16));
}

tr_status tr_rope_f64(tr_ctx *ctx, const tr_rope_args *a)
{
    tr_rope_args job = *a;
    TRI_TRY(tri_rope_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->x.shape[0], tri_rope_grain(a), tri_rope_rows_f64, &job);
    return TR_OK;
}

/* The contract's: the angle is binary64, cos and sin come from our own binary64 functions and are
 * rounded once; then two products and a sum, each rounded. */
TRI_INLINE void tri_rope_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_rope_args *r = (const tr_rope_args *)user;
    const double *inv_freq = tr_view_f64(r->inv_freq);
    int64_t H = r->x.shape[1], d = r->x.shape[2];
    int half = r->layout == TR_ROPE_HALF;
    (void)hw;
    for (int64_t n = begin; n < end; n++) {
        double cos_x, sin_x;
        for (int64_t i = 0; i < d / 2; i++) {
            int64_t a = half ? i : 2 * i, b = half ? i + d / 2 : 2 * i + 1;
            tr_sincos64(tri_rope_pos(r, n, i) * inv_freq[i], &sin_x, &cos_x);
            float c = (float)(r->mult * cos_x), s = (float)(r->mult * sin_x);
            for (int64_t h = 0; h < H; h++) {
                float *x = tri_head_f32(r->x, n, h), xa = x[a], xb = x[b];
                x[a] = xa * c - xb * s;
                x[b] = xb * c + xa * s;
            }
        }
    }
}
TRI_CLONES(tri_rope_rows)

tr_status tr_rope(tr_ctx *ctx, const tr_rope_args *a)
{
    tr_rope_args job = *a;
    TRI_TRY(tri_rope_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->x.shape[0], tri_rope_grain(a), tri_rope_rows_clones, &job);
    return TR_OK;
}

/* ============================================================================
 * 13. Attention {attn}
 *
 * Each token asks (q), each token seen offers a key (k) and a value (v); what comes back is the
 * mean of the values, weighted by the softmax of how well the keys answer. Query heads share key
 * and value heads in groups: head h reads group h div (H/G). A query at position p sees positions
 * up to p, and of these only the last few (window), or those of its own chunk (chunk).
 *
 * Traps. A window of W counts the query's own key: W keys, not W + 1. Chunks are fixed stretches
 * of positions, not the last so many. The scale is Dk^-1/2 only where the config says nothing
 * else, and Dk is the whole key, rotated part included. The sink belongs into the maximum too.
 * Softcap comes after the scale.
 * ========================================================================= */

/*     z_s = scale q . k_s                          z_s = softcap tanh(z_s / softcap), if not off
 *     p_s = e^(z_s - m) / (e^(sink - m) + sum_s e^(z_s - m)),   m = max(sink, max_s z_s)
 *     y   = sum_s p_s v_s
 *
 * (Vaswani et al. 2017; groups: Ainslie et al. 2023; sinks: gpt-oss, one logit a head that takes
 * part in the sum and gives no value.) */

/* The operator's arguments, and the part of the key that latent attention keeps apart: the last
 * Dr numbers of a query meet k_r instead of k. */
typedef struct tri_attn { tr_attn_args a; tr_view k_r; } tri_attn;

static double tri_attn_score(const tri_attn *j, int64_t t, int64_t h, int64_t s)
{
    const tr_attn_args *a = &j->a;
    int64_t H = a->q.shape[1], G = a->k.shape[1], g = h / (H / G), Dk = a->k.shape[2];
    const double *q = tri_row_f64(a->q, t * H + h);
    double z = tr_dot_f64(q, tri_row_f64(a->k, s * G + g), Dk);
    if (!tr_view_is_none(j->k_r)) z += tr_dot_f64(q + Dk, tri_row_f64(j->k_r, s), j->k_r.shape[1]);
    z *= a->scale;
    return a->softcap > 0 ? a->softcap * tanh(z / a->softcap) : z;
}

/* Rows t H + h of y. The keys are walked twice, for the maximum and for the mean, so that no row
 * of scores is ever stored; masked keys are not touched. */
static void tri_attn_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tri_attn *j = (const tri_attn *)user;
    const tr_attn_args *a = &j->a;
    int64_t H = a->q.shape[1], G = a->k.shape[1], S = a->k.shape[0], Dv = a->v.shape[2];
    const double *sink = tr_view_f64(a->sink);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / H, h = i % H, g = h / (H / G), p = a->pos + t, first = 0;
        double *y = tri_row_f64(a->y, i);
        double *probs = tr_view_is_none(a->probs) ? NULL
                                                  : tri_row_f64(a->probs, h * a->y.shape[0] + t);
        if (a->window > 0 && p - a->window + 1 > first) first = p - a->window + 1;
        if (a->chunk > 0 && p / a->chunk * a->chunk > first) first = p / a->chunk * a->chunk;

        double m = sink ? sink[h] : tri_attn_score(j, t, h, first);
        for (int64_t s = first; s <= p; s++) {
            double z = tri_attn_score(j, t, h, s);
            m = z > m ? z : m;
        }
        double sum = sink ? exp(sink[h] - m) : 0;
        for (int64_t d = 0; d < Dv; d++) y[d] = 0;
        for (int64_t s = 0; probs && s < S; s++) probs[s] = 0;
        for (int64_t s = first; s <= p; s++) {
            const double *v = tri_row_f64(a->v, s * G + g);
            double e = exp(tri_attn_score(j, t, h, s) - m);
            sum += e;
            for (int64_t d = 0; d < Dv; d++) y[d] += e * v[d];
            if (probs) probs[s] = e;
        }
        for (int64_t d = 0; d < Dv; d++) y[d] /= sum;
        for (int64_t s = first; probs && s <= p; s++) probs[s] /= sum;
    }
}

/* A query has its own key among those it sees. */
static tr_status tri_attn_positions(tr_ctx *ctx, const char *op, int64_t T, int64_t S, int64_t pos)
{
    if (pos >= 0 && pos <= S - T) return TR_OK;
    return tr_fail(ctx, TR_ERR_RANGE, "%s: %lld queries from position %lld on, but keys of %lld "
                   "positions", op, (long long)T, (long long)pos, (long long)S);
}

static tr_status tri_attn_check(tr_ctx *ctx, tr_dtype t, const tr_attn_args *a)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], G = a->k.shape[1], S = a->k.shape[0];
    TRI_TRY(tri_fit(ctx, t, "attn",
                    "y[T,H,Dv] q[T,H,Dk] k[S,G,Dk] v[S,G,Dv] sink?[H] probs?[H,T,S]",
                    a->y, a->q, a->k, a->v, a->sink, a->probs));
    TRI_TRY(tri_factor(ctx, "attn: scale", a->scale));
    TRI_TRY(tri_not_below_0(ctx, "attn: softcap", a->softcap));
    TRI_TRY(tri_attn_positions(ctx, "attn", T, S, a->pos));
    if (G < 1 || H % G)
        return tr_fail(ctx, TR_ERR_SHAPE, "attn: %lld query heads cannot share %lld key heads",
                       (long long)H, (long long)G);
    if (a->window < 0 || a->chunk < 0)
        return tr_fail(ctx, TR_ERR_RANGE, "attn: window %lld and chunk %lld must not be below 0",
                       (long long)a->window, (long long)a->chunk);
    return TR_OK;
}

tr_status tr_attn_f64(tr_ctx *ctx, const tr_attn_args *a)
{
    tri_attn job;
    TRI_TRY(tri_attn_check(ctx, TR_F64, a));
    job.a = *a;
    job.k_r = tr_view_none();
    tr_par_for(ctx, a->q.shape[0] * a->q.shape[1], tri_grain(a->k.shape[0] * a->q.shape[2]),
               tri_attn_rows_f64, &job);
    return TR_OK;
}

/* The contract's kernel. Keys fall into blocks of TR_ATTN_BLOCK by position, and each block alone
 * gives its maximum m, its sum l and its weighted values o, for the keys that the query sees:
 *
 *     z_s = fl(q.k_s scale)    e_s = expf(z_s - m)    l = sum_s e_s    o = sum_s e_s v_s
 *
 * with l and o in sixteen lanes by position. The triples are folded from the left, in increasing
 * position, whoever made them:
 *
 *     M' = max(M, m)    a = expf(M - M')    b = expf(m - M')
 *     L' = fma(L, a, l b)                   O' = fma(O, a, o b)            y = O / L
 *
 * A block begins where its positions do and not where a call's keys do, so the pieces in which a
 * prompt came cannot be seen in the result; and a rank that holds part of the keys can hand on the
 * folded triple. O is kept in y. We take up to TRI_ATTN_HEADS heads that share a key head at once,
 * so that a block of keys is read from near memory by all but the first. */
#define TRI_ATTN_HEADS 8
#define TRI_ATTN_PANEL 64

typedef struct tri_attn_job { tr_attn_args a; const tri_tiles *tiles; } tri_attn_job;

typedef struct tri_attn_tile {      /* heads h .. h + n of query t, all reading key head g */
    int64_t t, h, n, g, first, last;    /* it sees positions first .. last */
    float M[TRI_ATTN_HEADS], L[TRI_ATTN_HEADS];
} tri_attn_tile;

/* z[i] = scores of positions s0 .. s1 for head i of the tile: the product of a few queries and
 * keys, by the tiles of {mat}. */
TRI_INLINE void tri_attn_scores(int hw, const tri_attn_job *j, const tri_attn_tile *c, int64_t s0,
                                int64_t s1, float z[TRI_ATTN_HEADS][TR_ATTN_BLOCK])
{
    const tr_attn_args *a = &j->a;
    int64_t H = a->q.shape[1], G = a->k.shape[1], Dk = a->q.shape[2], step = a->k.stride[0], N, S;
    int64_t whole = Dk - Dk % TR_LANES;
    float scale = (float)a->scale, cap = (float)a->softcap;
    for (int64_t h = 0; h < c->n; h += N) {
        const float *q[TRI_TILE_N];
        N = tri_least(c->n - h, TRI_TILE_N);
        for (int64_t i = 0; i < N; i++) q[i] = tri_row_f32(a->q, c->t * H + c->h + h + i);
        for (int64_t s = s0; s < s1; s += S) {
            const float *k = tri_row_f32(a->k, s * G + c->g);
            float lane[TRI_TILE_N][TRI_TILE_O][TR_LANES];
            S = tri_least(s1 - s, TRI_TILE_O);
            memset(lane, 0, (size_t)N * sizeof lane[0]);
            j->tiles->tile(lane, q, N, k, step, S, whole);
            for (int64_t i = 0; i < N; i++)
                for (int64_t o = 0; o < S; o++) {
                    tri_lanes_dot(hw, lane[i][o], q[i] + whole, k + o * step + whole, Dk - whole);
                    z[h + i][s + o - s0] = tri_lanes_fold(lane[i][o]) * scale;
                }
        }
    }
    for (int64_t i = 0; cap > 0 && i < c->n; i++)
        for (int64_t s = 0; s < s1 - s0; s++) z[i][s] = cap * tri_tanhf(z[i][s] / cap);
}

/* o[d] = sum over s of e[s] v_s[d], lane s mod 16; v is position s0's, rows `step` apart. A lane's
 * chain for a whole panel of columns stays in registers. */
TRI_INLINE void tri_attn_values(int hw, float *o, const float *e, const float *v, int64_t step,
                                int64_t s0, int64_t s1, int64_t width)
{
    float lane[TR_LANES][TRI_ATTN_PANEL];
    for (int64_t l = 0; l < TR_LANES; l++) {
        float acc[TRI_ATTN_PANEL] = { 0 };
        for (int64_t s = s0 + (l - s0 % TR_LANES + TR_LANES) % TR_LANES; s < s1; s += TR_LANES) {
            const float *row = v + (s - s0) * step;
            if (width == TRI_ATTN_PANEL)
                for (int64_t d = 0; d < TRI_ATTN_PANEL; d++)
                    acc[d] = tri_fmaf(hw, e[s - s0], row[d], acc[d]);
            else
                for (int64_t d = 0; d < width; d++)
                    acc[d] = tri_fmaf(hw, e[s - s0], row[d], acc[d]);
        }
        memcpy(lane[l], acc, sizeof acc);
    }
    for (int64_t half = TR_LANES / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; l++)
            for (int64_t d = 0; d < TRI_ATTN_PANEL; d++) lane[l][d] += lane[l + half][d];
    memcpy(o, lane[0], (size_t)width * sizeof *o);
}

/* Folds positions [s0, s1) of one block into the tile. */
TRI_INLINE void tri_attn_block(int hw, const tri_attn_job *j, tri_attn_tile *c, int64_t s0,
                               int64_t s1, int fresh)
{
    const tr_attn_args *a = &j->a;
    float z[TRI_ATTN_HEADS][TR_ATTN_BLOCK], o[TRI_ATTN_PANEL];
    int64_t H = a->q.shape[1], G = a->k.shape[1], Dv = a->v.shape[2];
    tri_attn_scores(hw, j, c, s0, s1, z);
    for (int64_t i = 0; i < c->n; i++) {
        float *y = tri_row_f32(a->y, c->t * H + c->h + i), lane[TR_LANES] = { 0 };
        float m = z[i][0], M, l, fade = 0, b = 1;
        for (int64_t s = 1; s < s1 - s0; s++) m = m > z[i][s] ? m : z[i][s];
        for (int64_t s = 0; s < s1 - s0; s++) z[i][s] = tri_expf(z[i][s] - m);
        for (int64_t s = s0; s < s1; s++) lane[s % TR_LANES] += z[i][s - s0];
        l = tri_lanes_fold(lane);
        M = fresh || m > c->M[i] ? m : c->M[i];
        if (!fresh) {
            fade = tri_expf(c->M[i] - M);
            b = tri_expf(m - M);
        }
        c->L[i] = fresh ? l : tri_fmaf(hw, c->L[i], fade, l * b);
        c->M[i] = M;
        for (int64_t d = 0, w; d < Dv; d += w) {
            w = tri_least(Dv - d, TRI_ATTN_PANEL);
            tri_attn_values(hw, o, z[i], tri_row_f32(a->v, s0 * G + c->g) + d, a->v.stride[0], s0,
                            s1, w);
            if (fresh) memcpy(y + d, o, (size_t)w * sizeof *o);
            else for (int64_t k = 0; k < w; k++) y[d + k] = tri_fmaf(hw, y[d + k], fade, o[k] * b);
        }
    }
}

static int64_t tri_attn_tiles(const tr_attn_args *a)        /* of one key head */
{
    return tri_blocks(a->q.shape[1] / a->k.shape[1], TRI_ATTN_HEADS);
}

/* Tile number i; with a sink the fold starts from (sink, 1, 0). */
static tri_attn_tile tri_attn_tile_of(const tr_attn_args *a, int64_t i)
{
    tri_attn_tile c;
    int64_t H = a->q.shape[1], G = a->k.shape[1], tiles = tri_attn_tiles(a), at, p;
    memset(&c, 0, sizeof c);
    c.t = i / (G * tiles);
    c.g = i / tiles % G;
    at = i % tiles * TRI_ATTN_HEADS;
    c.h = c.g * (H / G) + at;
    c.n = tri_least(H / G - at, TRI_ATTN_HEADS);
    c.last = p = a->pos + c.t;
    if (a->window > 0 && p - a->window + 1 > c.first) c.first = p - a->window + 1;
    if (a->chunk > 0 && p / a->chunk * a->chunk > c.first) c.first = p / a->chunk * a->chunk;
    for (int64_t k = 0; !tr_view_is_none(a->sink) && k < c.n; k++) {
        float *y = tri_row_f32(a->y, c.t * H + c.h + k);
        c.M[k] = tr_view_f32(a->sink)[c.h + k];
        c.L[k] = 1;
        for (int64_t d = 0; d < a->y.shape[2]; d++) y[d] = 0;
    }
    return c;
}

TRI_INLINE void tri_attn_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tri_attn_job *j = (const tri_attn_job *)user;
    const tr_attn_args *a = &j->a;
    int64_t H = a->q.shape[1], Dv = a->v.shape[2];
    for (int64_t i = begin; i < end; i++) {
        tri_attn_tile c = tri_attn_tile_of(a, i);
        int fresh = tr_view_is_none(a->sink);
        for (int64_t s = c.first, next; s <= c.last; s = next, fresh = 0) {
            next = tri_least((s / TR_ATTN_BLOCK + 1) * TR_ATTN_BLOCK, c.last + 1);
            tri_attn_block(hw, j, &c, s, next, fresh);
        }
        for (int64_t k = 0; k < c.n; k++) {
            float *y = tri_row_f32(a->y, c.t * H + c.h + k);
            for (int64_t d = 0; d < Dv; d++) y[d] /= c.L[k];
        }
    }
}
TRI_CLONES(tri_attn_rows)

tr_status tr_attn(tr_ctx *ctx, const tr_attn_args *a)
{
    tri_attn_job job;
    job.a = *a;
    job.tiles = tri_os_tiles(ctx->cpu);
    TRI_TRY(tri_attn_check(ctx, TR_F32, a));
    if (!tr_view_is_none(a->probs))
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "attn: probabilities exist in the oracle alone");
    tri_par_clone(ctx, a->q.shape[0] * a->k.shape[1] * tri_attn_tiles(a),
                  tri_grain(TRI_ATTN_HEADS * a->k.shape[0] * a->q.shape[2]), tri_attn_rows_clones,
                  &job);
    return TR_OK;
}

/* ============================================================================
 * 14. Latent attention {mla}
 *
 * Keys and values of all heads are products of one short row a token, the latent, and only that
 * row is remembered: 576 numbers instead of 40,960 in DeepSeek-V3. The definition is the expanded
 * form, which makes keys and values again and attends as always; the contract's kernel is the
 * absorbed form, which carries the queries into the latent instead and is equal in exact
 * arithmetic.
 *
 * Traps. The rows of kv_b go head by head, [k_n | v], not all keys and then all values. The norms
 * before kv_b and q_b use eps 1e-6 whatever the config says (the fact mla.inner_eps, which
 * tr_config_opts.set can change). The latent is remembered after its norm, once; k_r is not normed.
 * Without rotation the Dr numbers still count, in the product and in the scale. DeepSeek's scale
 * carries yarn's g^2. The output gate reads the layer's normed input, not q.
 * ========================================================================= */

/*     latent_s = [c_s | k_r,s]                  c normed already, k_r rotated if anything is
 *     kv_s     = W_kvb c_s                      head by head: Dn of key, then Dv of value
 *     key_s,h  = [k_n,s,h | k_r,s]              k_r is shared by all heads and never normed
 *     y_h      = attention(q_h, key_h, v_h),    causal
 *
 * (DeepSeek-V2, section 2.1; DeepseekV3Attention. Kimi K3: the same without rotation.) */
/* Head h of [T, H, D]: rows [T, D]. */
static tr_view tri_one_head(tr_view v, int64_t h)
{
    v = tr_view_slice(v, 1, h, 1);
    v.shape[1] = v.shape[2];
    v.stride[1] = v.stride[2];
    v.rank = 2;
    return v;
}

static tr_status tri_mla_check(tr_ctx *ctx, tr_dtype t, const tr_mla_args *a)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], S = a->latent.shape[0], Dv = a->y.shape[2];
    int64_t Dr = a->rope, Dn = a->q.shape[2] - Dr, R = a->latent.shape[1] - Dr;
    TRI_TRY(tri_fit(ctx, t, "mla", "y[T,H,Dv] q[T,H,Dn+Dr] latent[S,R+Dr] kv?[S,H(Dn+Dv)] "
                    "absorbed?[T,H,2R+Dr] probs?[H,T,S]", a->y, a->q, a->latent, a->kv,
                    a->absorbed, a->probs));
    TRI_TRY(tri_factor(ctx, "mla: scale", a->scale));
    TRI_TRY(tri_attn_positions(ctx, "mla", T, S, a->pos));
    TRI_TRY(tri_mat_weight(ctx, "mla", a->kv_b));
    if (Dr < 0 || Dn < 0 || R < 0 || Dn + Dv < 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "mla: %lld shared key numbers, queries of %lld, a latent "
                       "of %lld, values of %lld", (long long)Dr, (long long)a->q.shape[2],
                       (long long)a->latent.shape[1], (long long)Dv);
    if (a->kv_b->rows != H * (Dn + Dv) || a->kv_b->cols != R)
        return tr_fail(ctx, TR_ERR_SHAPE, "mla: %s [%lld, %lld] should be [%lld (%lld + %lld), "
                       "%lld]", a->kv_b->name, (long long)a->kv_b->rows, (long long)a->kv_b->cols,
                       (long long)H, (long long)Dn, (long long)Dv, (long long)R);
    if (t == TR_F64 && (tr_view_is_none(a->kv) || a->kv.shape[1] != a->kv_b->rows))
        return tr_fail(ctx, TR_ERR_SHAPE, "mla: %s [%lld, %lld] and kv of %lld columns",
                       a->kv_b->name, (long long)a->kv_b->rows, (long long)a->kv_b->cols,
                       (long long)a->kv.shape[1]);
    if (t == TR_F32 && (tr_view_is_none(a->absorbed) || a->absorbed.shape[2] != 2 * R + Dr))
        return tr_fail(ctx, TR_ERR_SHAPE, "mla: absorbed of %lld columns, should be %lld",
                       (long long)a->absorbed.shape[2], (long long)(2 * R + Dr));
    return TR_OK;
}

tr_status tr_mla_f64(tr_ctx *ctx, const tr_mla_args *a)
{
    tri_attn job;
    tr_matmul_args expand;
    tr_view kv;
    int64_t T = a->q.shape[0], H = a->q.shape[1], S = a->latent.shape[0], Dv = a->y.shape[2];
    int64_t Dr = a->rope, Dn = a->q.shape[2] - Dr, R = a->latent.shape[1] - Dr;
    TRI_TRY(tri_mla_check(ctx, TR_F64, a));

    memset(&expand, 0, sizeof expand);
    expand.y = a->kv;
    expand.x = tr_view_slice(a->latent, 1, 0, R);
    expand.w = a->kv_b;
    TRI_TRY(tr_matmul_f64(ctx, &expand));

    kv = tr_view_split(a->kv, 1, Dn + Dv);              /* [S, H, Dn + Dv] */
    memset(&job, 0, sizeof job);
    job.a.y = a->y;
    job.a.q = a->q;
    job.a.k = tr_view_slice(kv, 2, 0, Dn);
    job.a.v = tr_view_slice(kv, 2, Dn, Dv);
    job.k_r = tr_view_slice(a->latent, 1, R, Dr);
    job.a.probs = a->probs;
    job.a.pos = a->pos;
    job.a.scale = a->scale;
    tr_par_for(ctx, T * H, tri_grain(S * a->q.shape[2]), tri_attn_rows_f64, &job);
    return TR_OK;
}

/* The contract's kernel is absorbed. In exact arithmetic q.(W_k c) = (W_k^T q).c, so the query is
 * carried into the latent once instead of every key out of it; and the mean of values W_v c_s is
 * W_v times the mean of the c_s:
 *
 *     qa_h  = W_k,h^T q_n,h                     [R], lane n mod 16 over the Dn rows of W_k,h
 *     ctx_h = attention([qa_h | q_r,h], [c_s | k_r,s], c_s)      one key head for all heads
 *     y_h   = W_v,h ctx_h
 *
 * The latent rows are key and value at once, and nothing of the length of the context is formed. */
tr_status tr_mla(tr_ctx *ctx, const tr_mla_args *a)
{
    int64_t H = a->q.shape[1], Dv = a->y.shape[2], Dr = a->rope;
    int64_t Dn = a->q.shape[2] - Dr, R = a->latent.shape[1] - Dr;
    tr_view qa, ctx_h;
    tr_attn_args attend;
    TRI_TRY(tri_mla_check(ctx, TR_F32, a));
    if (!tr_view_is_none(a->probs))
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "mla: probabilities exist in the oracle alone");
    qa = tr_view_slice(a->absorbed, 2, 0, R + Dr);
    ctx_h = tr_view_slice(a->absorbed, 2, R + Dr, R);
    TRI_TRY(tr_view_copy(ctx, tr_view_slice(qa, 2, R, Dr), tr_view_slice(a->q, 2, Dn, Dr)));
    for (int64_t h = 0; h < H; h++) {
        tr_weight w = tr_weight_rows(a->kv_b, h * (Dn + Dv), Dn);
        tri_product_t(ctx, tri_one_head(tr_view_slice(qa, 2, 0, R), h),
                      tri_one_head(tr_view_slice(a->q, 2, 0, Dn), h), &w);
    }
    memset(&attend, 0, sizeof attend);
    attend.y = ctx_h;
    attend.q = qa;
    attend.k = tr_view_split(a->latent, 1, R + Dr);
    attend.v = tr_view_slice(attend.k, 2, 0, R);
    attend.pos = a->pos;
    attend.scale = a->scale;
    TRI_TRY(tr_attn(ctx, &attend));
    for (int64_t h = 0; h < H; h++) {
        tr_weight w = tr_weight_rows(a->kv_b, h * (Dn + Dv) + Dn, Dv);
        tr_matmul_args m;
        memset(&m, 0, sizeof m);
        m.y = tri_one_head(a->y, h);
        m.x = tri_one_head(ctx_h, h);
        m.w = &w;
        TRI_TRY(tr_matmul(ctx, &m));
    }
    return TR_OK;
}

/* ============================================================================
 * 16. Delta rules {delta}
 *
 * Softmax attention remembers every token; here a head remembers one matrix S, which answers a key
 * with a value. Before it, a short convolution lets each channel see its last few inputs; two gates
 * say how fast the memory fades (g, the logarithm of the decay, one a key channel in KDA, one a
 * head in gated delta) and how strongly the new token is written (beta).
 *
 * Traps. Tap J-1 is now. The history is of raw inputs, and is carried from one piece of the prompt
 * to the next. Queries and keys are normed by sum, eps 1e-6, and only then is q scaled by K^-1/2; v
 * is neither. dt is added before the product with A = e^A_log, one a head, though files may hold
 * more (padding). The bounded decay is a scaled sigmoid, not the softplus clamped. The memory is
 * read for the correction after it has faded, and for the output after it was written. States of
 * other programs may be [K, V]. After the heads comes the norm, then the gate's sigmoid. The parts
 * are put together by tri_kda, in the model's chapter.
 * ========================================================================= */

/* Depthwise causal convolution (fla ShortConvolution; the weight is [C, 1, J] in files):
 *
 *     y_c(t) = sum_j w_c,j x_c(t - (J-1) + j),   oldest tap to newest, then SiLU if asked
 *
 * Before the first token x comes from hist: what went in last time, before any SiLU. */
static void tri_conv_channels_f64(void *user, int64_t begin, int64_t end)
{
    const tr_conv_args *a = (const tr_conv_args *)user;
    int64_t T = a->x.shape[0], J = a->w.shape[1];
    for (int64_t c = begin; c < end; c++) {
        const double *w = tri_row_f64(a->w, c);
        double *hist = tri_row_f64(a->hist, c);             /* hist[i] is x(i - (J-1)) */
        for (int64_t t = 0; t < T; t++) {
            double sum = 0;
            for (int64_t j = 0; j < J; j++)
                sum += w[j] * (t + j < J - 1 ? hist[t + j] : tri_row_f64(a->x, t + j - (J - 1))[c]);
            tri_row_f64(a->y, t)[c] = a->silu ? tr_silu_f64(sum) : sum;
        }
        for (int64_t i = 0; i < J - 1; i++)                 /* the last J-1 of hist and x */
            hist[i] = T + i < J - 1 ? hist[T + i] : tri_row_f64(a->x, T + i - (J - 1))[c];
    }
}

static tr_status tri_conv_check(tr_ctx *ctx, tr_dtype t, const tr_conv_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "shortconv", "y[T,C] x[T,C] w[C,J] hist[C,J-1]",
                    a->y, a->x, a->w, a->hist));
    if (a->w.shape[1] < 1 || a->hist.shape[1] != a->w.shape[1] - 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "shortconv: %lld taps need %lld earlier inputs, hist has "
                       "%lld", (long long)a->w.shape[1], (long long)(a->w.shape[1] - 1),
                       (long long)a->hist.shape[1]);
    if (a->y.data && a->y.data == a->x.data)
        return tr_fail(ctx, TR_ERR_ARG, "shortconv: y must not be x, whose rows are read again");
    return TR_OK;
}

static int64_t tri_conv_grain(const tr_conv_args *a)
{
    return tri_grain(a->x.shape[0] * (a->w.shape[1] + 16));
}

tr_status tr_shortconv_f64(tr_ctx *ctx, const tr_conv_args *a)
{
    tr_conv_args job = *a;
    TRI_TRY(tri_conv_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->x.shape[1], tri_conv_grain(a), tri_conv_channels_f64, &job);
    return TR_OK;
}

/* The contract's: a channel is one chain of fused products, oldest tap first; then SiLU. */
TRI_INLINE void tri_conv_channels(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_conv_args *a = (const tr_conv_args *)user;
    int64_t T = a->x.shape[0], J = a->w.shape[1];
    for (int64_t t = 0; t < T; t++) {
        float *y = tri_row_f32(a->y, t);
        for (int64_t c = begin; c < end; c++) {
            const float *w = tri_row_f32(a->w, c), *hist = tri_row_f32(a->hist, c);
            float sum = 0;
            for (int64_t j = 0; j < J; j++) {
                int64_t s = t + j - (J - 1);
                sum = tri_fmaf(hw, w[j], s < 0 ? hist[t + j] : tri_row_f32(a->x, s)[c], sum);
            }
            y[c] = sum;
        }
        for (int64_t c = begin; a->silu && c < end; c++) y[c] = tri_siluf(y[c]);
    }
    for (int64_t c = begin; c < end; c++) {
        float *hist = tri_row_f32(a->hist, c);
        for (int64_t i = 0; i < J - 1; i++)
            hist[i] = T + i < J - 1 ? hist[T + i] : tri_row_f32(a->x, T + i - (J - 1))[c];
    }
}
TRI_CLONES(tri_conv_channels)

tr_status tr_shortconv(tr_ctx *ctx, const tr_conv_args *a)
{
    tr_conv_args job = *a;
    TRI_TRY(tri_conv_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->x.shape[1], tri_conv_grain(a), tri_conv_channels_clones, &job);
    return TR_OK;
}

/* Decay and write strength, from projections z and b of the layer's input:
 *
 *     bounded:   g = bound sigma(A (z + dt)),  bound < 0             (Kimi K3, fla kda/gate.py)
 *     softplus:  g = -A softplus(z + dt)                             (Kimi-Linear, gated delta)
 *     beta = sigma(b)
 *
 * A = e^A_log is one number a head, dt one a channel, added before the product with A. Which form
 * is the config's: gate_lower_bound, if it is there, is the bound. */
static void tri_decay_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_decay_args *a = (const tr_decay_args *)user;
    int64_t H = a->z.shape[1], K = a->z.shape[2];
    for (int64_t i = begin; i < end; i++) {                 /* i = t H + h */
        int64_t t = i / H, h = i % H;
        double *g = tri_row_f64(a->g, i), A = exp(tr_view_f64(a->A_log)[h]);
        const double *z = tri_row_f64(a->z, i), *dt = tri_row_f64(a->dt_bias, h);
        for (int64_t k = 0; k < K; k++)
            g[k] = a->kind == TR_DECAY_BOUNDED ? a->bound * tr_sigmoid_f64(A * (z[k] + dt[k]))
                                               : -A * tr_softplus_f64(z[k] + dt[k]);
        tri_row_f64(a->beta, t)[h] = tr_sigmoid_f64(tri_row_f64(a->b, t)[h]);
    }
}

static tr_status tri_decay_check(tr_ctx *ctx, tr_dtype t, const tr_decay_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "decay", "g[T,H,K] beta[T,H] z[T,H,K] b[T,H] A_log[H] dt_bias[H,K]",
                    a->g, a->beta, a->z, a->b, a->A_log, a->dt_bias));
    if (a->kind != TR_DECAY_BOUNDED && a->kind != TR_DECAY_SOFTPLUS)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "decay: no kind %d", (int)a->kind);
    if (a->kind == TR_DECAY_BOUNDED && !(a->bound < 0 && a->bound >= -DBL_MAX))
        return tr_fail(ctx, TR_ERR_RANGE, "decay: bound is %g, must be below 0", a->bound);
    return TR_OK;
}

tr_status tr_decay_f64(tr_ctx *ctx, const tr_decay_args *a)
{
    tr_decay_args job = *a;
    TRI_TRY(tri_decay_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->z.shape[0] * a->z.shape[1], tri_grain(16 * a->z.shape[2]),
               tri_decay_rows_f64, &job);
    return TR_OK;
}

TRI_INLINE void tri_decay_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_decay_args *a = (const tr_decay_args *)user;
    int64_t H = a->z.shape[1], K = a->z.shape[2];
    float bound = (float)a->bound;
    (void)hw;
    for (int64_t i = begin; i < end; i++) {                 /* i = t H + h */
        int64_t t = i / H, h = i % H;
        float *g = tri_row_f32(a->g, i), A = tri_expf(tr_view_f32(a->A_log)[h]);
        const float *z = tri_row_f32(a->z, i), *dt = tri_row_f32(a->dt_bias, h);
        if (a->kind == TR_DECAY_BOUNDED)
            for (int64_t k = 0; k < K; k++) g[k] = bound * tri_sigmoidf(A * (z[k] + dt[k]));
        else
            for (int64_t k = 0; k < K; k++) g[k] = -(A * tri_softplusf(z[k] + dt[k]));
        tri_row_f32(a->beta, t)[h] = tri_sigmoidf(tri_row_f32(a->b, t)[h]);
    }
}
TRI_CLONES(tri_decay_rows)

tr_status tr_decay(tr_ctx *ctx, const tr_decay_args *a)
{
    tr_decay_args job = *a;
    TRI_TRY(tri_decay_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->z.shape[0] * a->z.shape[1], tri_grain(16 * a->z.shape[2]),
                  tri_decay_rows_clones, &job);
    return TR_OK;
}

/* One token of one head (Yang et al. 2024; Kimi Linear 2025; fla fused_recurrent):
 *
 *     S[i, k] = e^(g_k) S[i, k]              fade, column by column
 *     u_i     = sum_k S[i, k] k_k            what the faded memory says about this key
 *     r_i     = beta (v_i - u_i)             how far it is off
 *     S[i, k] = S[i, k] + r_i k_k
 *     o_i     = sum_k S[i, k] q_k            read after the write
 *
 * Rows i of S do not meet. gs is the step from one g_k to the next, 0 for one decay a head. */
static void tri_delta_step_f64(double *o, double *S, const double *q, const double *k,
                               const double *v, const double *g, int64_t gs, double beta,
                               int64_t K, int64_t V)
{
    for (int64_t c = 0; c < K; c++) {
        double fade = exp(g[c * gs]);
        for (int64_t i = 0; i < V; i++) S[i * K + c] *= fade;
    }
    for (int64_t i = 0; i < V; i++, S += K) {
        double r = beta * (v[i] - tr_dot_f64(S, k, K));
        for (int64_t c = 0; c < K; c++) S[c] += r * k[c];
        o[i] = tr_dot_f64(S, q, K);
    }
}

void tr_delta_step_f64(double *o, double *S, const double *q, const double *k, const double *v,
                       const double *g, double beta, int64_t K, int64_t V)
{
    tri_delta_step_f64(o, S, q, k, v, g, 1, beta, K, V);
}

static void tri_delta_heads_f64(void *user, int64_t begin, int64_t end)
{
    const tr_delta_args *a = (const tr_delta_args *)user;
    int64_t T = a->q.shape[0], H = a->q.shape[1];
    for (int64_t h = begin; h < end; h++)
        for (int64_t t = 0; t < T; t++) {
            int64_t i = t * H + h;
            tri_delta_step_f64(tri_row_f64(a->o, i), (double *)a->S.data + h * a->S.stride[0],
                               tri_row_f64(a->q, i), tri_row_f64(a->k, i), tri_row_f64(a->v, i),
                               tri_row_f64(a->g, i), a->g.stride[2], tri_row_f64(a->beta, t)[h],
                               a->S.shape[2], a->S.shape[1]);
        }
}

static tr_status tri_delta_check(tr_ctx *ctx, tr_dtype t, const tr_delta_args *a)
{
    tr_view g = a->g;
    if (g.rank == 3 && g.stride[2] == 0) g.stride[2] = 1;   /* one decay a head is allowed */
    TRI_TRY(tri_fit(ctx, t, "delta",
                    "o[T,H,V] q[T,H,K] k[T,H,K] v[T,H,V] g[T,H,K] beta[T,H] S[H,V,K]",
                    a->o, a->q, a->k, a->v, g, a->beta, a->S));
    if (a->S.shape[0] > 0 && !tr_view_is_contig(tr_view_at(a->S, 0)))
        return tr_fail(ctx, TR_ERR_SHAPE, "delta: the matrix of a head has gaps");
    return TR_OK;
}

static int64_t tri_delta_grain(const tr_delta_args *a)
{
    return tri_grain(a->q.shape[0] * (4 * a->S.shape[1] + 16) * a->S.shape[2]);
}

tr_status tr_delta_f64(tr_ctx *ctx, const tr_delta_args *a)
{
    tr_delta_args job = *a;
    TRI_TRY(tri_delta_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->q.shape[1], tri_delta_grain(a), tri_delta_heads_f64, &job);
    return TR_OK;
}

/* The contract's step: both products of a row of S are dots in sixteen lanes, which is why the
 * state is [V, K]; the fade is a product, the write a fused one. */
TRI_INLINE void tri_delta_step(int hw, float *o, float *S, const float *q, const float *k,
                               const float *v, const float *g, int64_t gs, float beta, int64_t K,
                               int64_t V)
{
    float fade[TRI_PIECE];
    for (int64_t c = 0, n; c < K; c += n) {
        n = tri_least(K - c, TRI_PIECE);
        for (int64_t j = 0; j < n; j++) fade[j] = tri_expf(g[(c + j) * gs]);
        for (int64_t i = 0; i < V; i++)
            for (int64_t j = 0; j < n; j++) S[i * K + c + j] *= fade[j];
    }
    for (int64_t i = 0; i < V; i++, S += K) {
        float r = beta * (v[i] - tri_dot(hw, S, k, K));
        for (int64_t c = 0; c < K; c++) S[c] = tri_fmaf(hw, r, k[c], S[c]);
        o[i] = tri_dot(hw, S, q, K);
    }
}

void tr_delta_step(float *o, float *S, const float *q, const float *k, const float *v,
                   const float *g, float beta, int64_t K, int64_t V)
{
    tri_delta_step(TRI_HW_FMA, o, S, q, k, v, g, 1, beta, K, V);
}

TRI_INLINE void tri_delta_heads(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_delta_args *a = (const tr_delta_args *)user;
    int64_t T = a->q.shape[0], H = a->q.shape[1];
    for (int64_t h = begin; h < end; h++)
        for (int64_t t = 0; t < T; t++) {
            int64_t i = t * H + h;
            tri_delta_step(hw, tri_row_f32(a->o, i), (float *)a->S.data + h * a->S.stride[0],
                           tri_row_f32(a->q, i), tri_row_f32(a->k, i), tri_row_f32(a->v, i),
                           tri_row_f32(a->g, i), a->g.stride[2], tri_row_f32(a->beta, t)[h],
                           a->S.shape[2], a->S.shape[1]);
        }
}
TRI_CLONES(tri_delta_heads)

tr_status tr_delta(tr_ctx *ctx, const tr_delta_args *a)
{
    tr_delta_args job = *a;
    TRI_TRY(tri_delta_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->q.shape[1], tri_delta_grain(a), tri_delta_heads_clones, &job);
    return TR_OK;
}

/* ============================================================================
 * 17. Residuals {res}
 *
 * A deep network is a sum: every sublayer adds to what it read. How it reads and adds is the
 * residual rule. The plain rule needs an addition. Attention residuals keep the sums of earlier
 * blocks of layers, and let every sublayer choose, token by token, how much of each it reads.
 *
 * Traps. What is pushed at a block's start is the running sum as it entered the layer, not the mix
 * and not the value after attention; then the running sum starts anew with the sublayer's result.
 * The values are not normed. Every sublayer reads through a mix (but the very first, which has
 * nothing to choose from), and so does the final norm; there is no ordinary residual beside it.
 * When that happens in a layer: tri_attnres_read and tri_attnres_write, in the model's chapter.
 * ========================================================================= */

static void tri_add_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_add_args *a = (const tr_add_args *)user;
    for (int64_t n = begin; n < end; n++) {
        const double *p = tri_row_f64(a->a, n), *q = tri_row_f64(a->b, n);
        double *y = tri_row_f64(a->y, n);
        for (int64_t d = 0; d < a->y.shape[1]; d++) y[d] = p[d] + q[d];
    }
}

static tr_status tri_add_check(tr_ctx *ctx, tr_dtype t, const tr_add_args *a)
{
    return tri_fit(ctx, t, "add", "y[N,D] a[N,D] b[N,D]", a->y, a->a, a->b);
}

tr_status tr_add_f64(tr_ctx *ctx, const tr_add_args *a)
{
    tr_add_args job = *a;
    TRI_TRY(tri_add_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->y.shape[0], tri_grain(a->y.shape[1]), tri_add_rows_f64, &job);
    return TR_OK;
}

static void tri_add_rows(void *user, int64_t begin, int64_t end)
{
    const tr_add_args *a = (const tr_add_args *)user;
    for (int64_t n = begin; n < end; n++) {
        const float *p = tri_row_f32(a->a, n), *q = tri_row_f32(a->b, n);
        float *y = tri_row_f32(a->y, n);
        for (int64_t d = 0; d < a->y.shape[1]; d++) y[d] = p[d] + q[d];
    }
}

tr_status tr_add(tr_ctx *ctx, const tr_add_args *a)
{
    tr_add_args job = *a;
    TRI_TRY(tri_add_check(ctx, TR_F32, a));
    tr_par_for(ctx, a->y.shape[0], tri_grain(a->y.shape[1]), tri_add_rows, &job);
    return TR_OK;
}

tr_status tr_copy(tr_ctx *ctx, const tr_copy_args *a)
{
    char y[96], x[96];
    if (!tr_view_same_shape(a->y, a->x) || a->y.dtype != a->x.dtype)
        return tr_fail(ctx, TR_ERR_SHAPE, "copy: y %s and x %s differ", tr_view_str(a->y, y),
                       tr_view_str(a->x, x));
    if (tr_view_numel(a->x) > 0 && (!a->y.data || !a->x.data))
        return tr_fail(ctx, TR_ERR_ARG, "copy: %s has no data", tr_view_str(a->x, x));
    return tr_view_copy(ctx, a->y, a->x);
}

/* Block attention residuals (Kimi K3, _apply_attn_res). The sources are V_0 .. V_n-1, the sums of
 * finished blocks in the order they were pushed, and V_n = h, the running sum:
 *
 *     z_i = sum_d (V_i,d / rms(V_i)) (norm_d proj_d),   rms(V) = sqrt(mean_d(V_d^2) + eps)
 *     p   = softmax(z)                                  no temperature, no D^-1/2
 *     y   = sum_i p_i V_i                               the sources themselves, not normed */
static double tri_mix_score_f64(const tr_mix_args *a, const double *V)
{
    const double *norm = tr_view_f64(a->norm), *proj = tr_view_f64(a->proj);
    int64_t D = a->y.shape[1];
    double r = 1 / sqrt(tr_sumsq_f64(V, D) / (double)D + a->eps), z = 0;
    for (int64_t d = 0; d < D; d++) z += V[d] * r * (norm[d] * proj[d]);
    return z;
}

static void tri_mix_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_mix_args *a = (const tr_mix_args *)user;
    int64_t N = a->y.shape[0], D = a->y.shape[1], n = a->snaps.shape[0];
    for (int64_t t = begin; t < end; t++) {
        double *y = tri_row_f64(a->y, t);
        double *probs = tr_view_is_none(a->probs) ? NULL : tri_row_f64(a->probs, t);
        const double *h = tri_row_f64(a->h, t);
        double m = tri_mix_score_f64(a, h), sum = 0;
        for (int64_t i = 0; i < n; i++) {
            double z = tri_mix_score_f64(a, tri_row_f64(a->snaps, i * N + t));
            m = z > m ? z : m;
        }
        for (int64_t d = 0; d < D; d++) y[d] = 0;
        for (int64_t i = 0; i <= n; i++) {
            const double *V = i < n ? tri_row_f64(a->snaps, i * N + t) : h;
            double e = exp(tri_mix_score_f64(a, V) - m);
            sum += e;
            for (int64_t d = 0; d < D; d++) y[d] += e * V[d];
            if (probs) probs[i] = e;
        }
        for (int64_t d = 0; d < D; d++) y[d] /= sum;
        for (int64_t i = 0; probs && i <= n; i++) probs[i] /= sum;
    }
}

static tr_status tri_mix_check(tr_ctx *ctx, tr_dtype t, const tr_mix_args *a)
{
    int64_t n = a->snaps.shape[0], D = a->y.shape[1];       /* no snapshots: 0 of them */
    TRI_TRY(tri_fit(ctx, t, "mix", "y[N,D] h[N,D] norm[D] proj[D] snaps?[n,N,D] probs?[N,n+1]",
                    a->y, a->h, a->norm, a->proj, a->snaps, a->probs));
    TRI_TRY(tri_not_below_0(ctx, "mix: eps", a->eps));
    if (D < 1) return tr_fail(ctx, TR_ERR_SHAPE, "mix: rows of y are empty");
    if (!tr_view_is_none(a->probs) && a->probs.shape[1] != n + 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "mix: probs of %lld columns for %lld sources",
                       (long long)a->probs.shape[1], (long long)(n + 1));
    if (a->y.shape[0] && (a->y.data == a->h.data || a->y.data == a->snaps.data))
        return tr_fail(ctx, TR_ERR_ARG, "mix: y is a source, and sources are read again");
    return TR_OK;
}

static int64_t tri_mix_grain(const tr_mix_args *a)
{
    return tri_grain(8 * (a->snaps.shape[0] + 1) * a->y.shape[1]);
}

tr_status tr_mix_f64(tr_ctx *ctx, const tr_mix_args *a)
{
    tr_mix_args job = *a;
    TRI_TRY(tri_mix_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->y.shape[0], tri_mix_grain(a), tri_mix_rows_f64, &job);
    return TR_OK;
}

/* The contract's: scores in sixteen lanes over d; the few sources in sequence, and p = fl(e / t)
 * before the products, where the definition divides last. */
TRI_INLINE float tri_mix_score(int hw, const tr_mix_args *a, const float *V)
{
    const float *norm = tr_view_f32(a->norm), *proj = tr_view_f32(a->proj);
    int64_t D = a->y.shape[1], d = 0;
    float r = 1 / sqrtf(tri_dot(hw, V, V, D) / (float)D + (float)a->eps), lane[TR_LANES] = { 0 };
    for (; d + TR_LANES <= D; d += TR_LANES)
        for (int l = 0; l < TR_LANES; l++)
            lane[l] = tri_fmaf(hw, V[d + l] * r, norm[d + l] * proj[d + l], lane[l]);
    for (int l = 0; d + l < D; l++)
        lane[l] = tri_fmaf(hw, V[d + l] * r, norm[d + l] * proj[d + l], lane[l]);
    return tri_lanes_fold(lane);
}

TRI_INLINE void tri_mix_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_mix_args *a = (const tr_mix_args *)user;
    int64_t N = a->y.shape[0], D = a->y.shape[1], n = a->snaps.shape[0];
    float p[TRI_PIECE];
    for (int64_t t = begin; t < end; t++) {
        float *y = tri_row_f32(a->y, t), m = 0, sum = 0;
        const float *h = tri_row_f32(a->h, t);
        for (int64_t i = 0; i <= n; i++) {
            p[i] = tri_mix_score(hw, a, i < n ? tri_row_f32(a->snaps, i * N + t) : h);
            m = i && m > p[i] ? m : p[i];
        }
        for (int64_t i = 0; i <= n; i++) sum += p[i] = tri_expf(p[i] - m);
        for (int64_t i = 0; i <= n; i++) p[i] /= sum;
        for (int64_t d = 0; d < D; d++) y[d] = 0;
        for (int64_t i = 0; i <= n; i++) {
            const float *V = i < n ? tri_row_f32(a->snaps, i * N + t) : h;
            for (int64_t d = 0; d < D; d++) y[d] = tri_fmaf(hw, p[i], V[d], y[d]);
        }
        if (!tr_view_is_none(a->probs))
            memcpy(tri_row_f32(a->probs, t), p, (size_t)(n + 1) * sizeof *p);
    }
}
TRI_CLONES(tri_mix_rows)

tr_status tr_mix(tr_ctx *ctx, const tr_mix_args *a)
{
    tr_mix_args job = *a;
    TRI_TRY(tri_mix_check(ctx, TR_F32, a));
    if (a->snaps.shape[0] >= TRI_PIECE)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "mix: %lld sources, at most %d are offered",
                       (long long)(a->snaps.shape[0] + 1), TRI_PIECE);
    tri_par_clone(ctx, a->y.shape[0], tri_mix_grain(a), tri_mix_rows_clones, &job);
    return TR_OK;
}

/* ============================================================================
 * 18. Experts {moe}
 *
 * A feed-forward of which a token uses K parts of E. The router scores all parts; dispatch lists,
 * expert by expert, the tokens that chose it; the experts compute; combine adds what came back.
 * Slot t K + j of the lists is choice j of token t.
 *
 * Traps. The bias chooses and never weighs. Groups are ranked by the sum of their two best, not by
 * the best (that was V2's rule). With negative biases every c may be negative: groups left out are
 * left out, not set to 0, which would win. -infinity is a value like any other, so that K distinct
 * experts are found even if all have it. renorm_eps is added to the sum before the division. Both a
 * lost renormalisation and a lost scale hide behind the norm that follows in latent experts:
 * compare the weights. The router reads the full width in full precision, the experts may read a
 * latent; the norm after them sees the sum of all experts, so first the ranks must have met.
 * Shared experts have weight 1. An expert that is not there must be an error, never a skip.
 * The parts are put together by tri_moe, in the model's chapter: in a latent y = W_up rmsnorm(u) +
 * shared(x), u = sum_e w_e expert_e(W_down x), with the config's eps.
 * ========================================================================= */

/*     s   = sigma(logits), or softmax(logits) over all experts
 *     c   = s + bias                                       for the choice only
 *     groups: of E/G experts each, ranked by the sum of their two best c; only the best `keep`
 *             groups take part
 *     ids = the K experts of largest c, equal ones by lower index; then in ascending order
 *     w   = s_ids,   divided by (sum w + renorm_eps) if asked,   times scale
 *
 * (DeepSeek-V3, section 2.1.2; DeepseekV3TopkRouter, KimiMoEGate.) If all chosen scores are 0,
 * 0 / (0 + 1e-20) makes their weights 0: the experts then say nothing, and nothing is NaN. With
 * renorm_eps 0 it is an error. */

static void tri_route_scores_f64(void *user, int64_t begin, int64_t end)
{
    const tr_route_args *a = (const tr_route_args *)user;
    int64_t E = a->logits.shape[1];
    for (int64_t n = begin; n < end; n++) {
        const double *x = tri_row_f64(a->logits, n);
        double *s = tri_row_f64(a->scores, n);
        if (a->score == TR_SCORE_SOFTMAX) tr_softmax_f64(s, x, NULL, 1, E);
        else for (int64_t e = 0; e < E; e++) s[e] = tr_sigmoid_f64(x[e]);
    }
}

/* fl(a + b) in the type of the scores. The sum of two binary32 numbers in binary64, rounded to
 * binary32, is their sum rounded once: 53 bits are more than twice 24 and two. */
static double tri_route_plus(const tr_route_args *a, double x, double y)
{
    return a->scores.dtype == TR_F64 ? x + y : (double)(float)(x + y);
}

/* c of expert e: what the choice is made by. row: of the scores. */
static double tri_route_c(const tr_route_args *a, int64_t row, int64_t e)
{
    double s = tr_get_f64(a->scores.data, a->scores.dtype, row + e);
    if (tr_view_is_none(a->bias)) return s;
    return tri_route_plus(a, s, tr_get_f64(a->bias.data, a->bias.dtype, e));
}

/* The sum of the two best c among experts [e, e + n); of one, if there is no second. */
static double tri_route_group(const tr_route_args *a, int64_t row, int64_t e, int64_t n)
{
    double best = -HUGE_VAL, second = -HUGE_VAL;
    for (int64_t i = e; i < e + n; i++) {
        double c = tri_route_c(a, row, i);
        if (c > best) { second = best; best = c; }
        else if (c > second) second = c;
    }
    return n > 1 ? tri_route_plus(a, best, second) : best;
}

/* kept[g] = 1 for the best groups */
static void tri_route_groups(unsigned char *kept, const tr_route_args *a, int64_t row)
{
    int64_t size = a->logits.shape[1] / a->groups;
    double value[TR_MAX_GROUPS];
    int32_t best[TR_MAX_GROUPS];
    memset(kept, a->keep == a->groups, (size_t)a->groups);
    if (a->keep == a->groups) return;
    for (int64_t g = 0; g < a->groups; g++) value[g] = tri_route_group(a, row, g * size, size);
    tr_topk_f64(best, a->keep, value, a->groups, NULL);
    for (int64_t i = 0; i < a->keep; i++) kept[best[i]] = 1;
}

/* K times the best of those that come after the last choice, put in its place among the ids. */
static void tri_route_choose(int32_t *ids, const tr_route_args *a, int64_t row,
                             const unsigned char *kept)
{
    int64_t E = a->logits.shape[1], size = E / a->groups, last = -1;
    double last_c = 0;
    for (int64_t j = 0; j < a->ids.shape[1]; j++) {
        int64_t next = -1, at = j;
        double next_c = 0;
        for (int64_t e = 0; e < E; e++) {
            double c = tri_route_c(a, row, e);
            int after = last < 0 || c < last_c || (c == last_c && e > last);
            if (kept[e / size] && after && (next < 0 || c > next_c)) { next = e; next_c = c; }
        }
        for (; at > 0 && ids[at - 1] > next; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)next;
        last = next;
        last_c = next_c;
    }
}

/* The ids of row n. */
static const int32_t *tri_route_ids(const tr_route_args *a, int64_t n)
{
    unsigned char kept[TR_MAX_GROUPS];
    int32_t *ids = (int32_t *)a->ids.data + tri_row_at(a->ids, n);
    int64_t row = tri_row_at(a->scores, n);
    tri_route_groups(kept, a, row);
    tri_route_choose(ids, a, row, kept);
    return ids;
}

static void tri_route_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_route_args *a = (const tr_route_args *)user;
    int64_t K = a->ids.shape[1];
    for (int64_t n = begin; n < end; n++) {
        const double *s = tri_row_f64(a->scores, n);
        const int32_t *ids = tri_route_ids(a, n);
        double *w = tri_row_f64(a->weights, n), sum = 0;
        for (int64_t j = 0; j < K; j++) sum += w[j] = s[ids[j]];
        for (int64_t j = 0; j < K; j++)
            w[j] = (a->renorm ? w[j] / (sum + a->renorm_eps) : w[j]) * a->scale;
    }
}

/* NaN has no place in an order: it is reported, not chosen. So is a bias of +infinity. */
static tr_status tri_route_finite(tr_ctx *ctx, const tr_route_args *a)
{
    for (int64_t e = 0; !tr_view_is_none(a->bias) && e < a->logits.shape[1]; e++) {
        double b = tr_get_f64(a->bias.data, a->bias.dtype, e);
        if (!(b <= DBL_MAX))
            return tr_fail(ctx, TR_ERR_NOT_FINITE, "route: bias of expert %lld is %g",
                           (long long)e, b);
    }
    for (int64_t n = 0; n < a->logits.shape[0]; n++)
        for (int64_t e = 0; e < a->logits.shape[1]; e++) {
            double x = tr_get_f64(a->logits.data, a->logits.dtype, tri_row_at(a->logits, n) + e);
            double s = tr_get_f64(a->scores.data, a->scores.dtype, tri_row_at(a->scores, n) + e);
            if (x != x || s != s)
                return tr_fail(ctx, TR_ERR_NOT_FINITE, "route: row %lld, expert %lld: logit %g, "
                               "score %g", (long long)n, (long long)e, x, s);
        }
    return TR_OK;
}

static tr_status tri_route_weights_finite(tr_ctx *ctx, const tr_route_args *a)
{
    for (int64_t n = 0; n < a->weights.shape[0]; n++) {
        double w = tr_get_f64(a->weights.data, a->weights.dtype, tri_row_at(a->weights, n));
        if (w != w)
            return tr_fail(ctx, TR_ERR_NOT_FINITE, "route: row %lld: the chosen scores are all 0, "
                           "and renorm_eps is 0", (long long)n);
    }
    return TR_OK;
}

static tr_status tri_route_check(tr_ctx *ctx, tr_dtype t, const tr_route_args *a)
{
    int64_t E = a->logits.shape[1], K = a->ids.shape[1];
    TRI_TRY(tri_fit(ctx, t, "route", "ids:I32[N,K] weights[N,K] scores[N,E] logits[N,E] bias?[E]",
                    a->ids, a->weights, a->scores, a->logits, a->bias));
    TRI_TRY(tri_factor(ctx, "route: scale", a->scale));
    if (a->renorm) TRI_TRY(tri_not_below_0(ctx, "route: renorm_eps", a->renorm_eps));
    if (a->groups < 1 || a->groups > TR_MAX_GROUPS || E % a->groups)
        return tr_fail(ctx, TR_ERR_SHAPE, "route: %lld experts do not fall into %lld groups (of at "
                       "most %d)", (long long)E, (long long)a->groups, TR_MAX_GROUPS);
    if (a->keep < 1 || a->keep > a->groups)
        return tr_fail(ctx, TR_ERR_RANGE, "route: %lld of %lld groups cannot be kept",
                       (long long)a->keep, (long long)a->groups);
    if (K < 1 || K > E / a->groups * a->keep)
        return tr_fail(ctx, TR_ERR_SHAPE, "route: %lld experts to choose from %lld",
                       (long long)K, (long long)(E / a->groups * a->keep));
    if (a->score != TR_SCORE_SIGMOID && a->score != TR_SCORE_SOFTMAX)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "route: no score %d", (int)a->score);
    return TR_OK;
}

/* Scores, then choice and weights, row by row. */
static tr_status tri_route(tr_ctx *ctx, const tr_route_args *a, tr_par_fn scores, tr_par_fn rows)
{
    tr_route_args job = *a;
    int64_t N = a->logits.shape[0], E = a->logits.shape[1];
    tr_par_for(ctx, N, tri_grain(16 * E), scores, &job);
    TRI_TRY(tri_route_finite(ctx, a));
    tr_par_for(ctx, N, tri_grain(2 * a->ids.shape[1] * E), rows, &job);
    return tri_route_weights_finite(ctx, a);
}

tr_status tr_route_f64(tr_ctx *ctx, const tr_route_args *a)
{
    TRI_TRY(tri_route_check(ctx, TR_F64, a));
    return tri_route(ctx, a, tri_route_scores_f64, tri_route_rows_f64);
}

/* The contract's: scores in binary32; their sum in sequence, ids ascending. */
TRI_INLINE void tri_route_scores(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_route_args *a = (const tr_route_args *)user;
    int64_t E = a->logits.shape[1];
    (void)hw;
    for (int64_t n = begin; n < end; n++) {
        const float *x = tri_row_f32(a->logits, n);
        float *s = tri_row_f32(a->scores, n);
        if (a->score == TR_SCORE_SOFTMAX) tri_softmax(s, x, E);
        else for (int64_t e = 0; e < E; e++) s[e] = tri_sigmoidf(x[e]);
    }
}
TRI_CLONES(tri_route_scores)

static void tri_route_rows(void *user, int64_t begin, int64_t end)
{
    const tr_route_args *a = (const tr_route_args *)user;
    int64_t K = a->ids.shape[1];
    float eps = (float)a->renorm_eps, scale = (float)a->scale;
    for (int64_t n = begin; n < end; n++) {
        const float *s = tri_row_f32(a->scores, n);
        const int32_t *ids = tri_route_ids(a, n);
        float *w = tri_row_f32(a->weights, n), sum = 0;
        for (int64_t j = 0; j < K; j++) sum += w[j] = s[ids[j]];
        for (int64_t j = 0; j < K; j++) w[j] = (a->renorm ? w[j] / (sum + eps) : w[j]) * scale;
    }
}

tr_status tr_route(tr_ctx *ctx, const tr_route_args *a)
{
    TRI_TRY(tri_route_check(ctx, TR_F32, a));
    return tri_route(ctx, a, tri_route_scores_clones[ctx->cpu], tri_route_rows);
}

/* Who computes what: a counting sort of the slots by expert. The counts of expert e stand first in
 * offset[e + 1], then their sums are its end, then its slots move offset[e] forward to that end. */
tr_status tr_dispatch(tr_ctx *ctx, const tr_dispatch_args *a)
{
    int64_t N = a->ids.shape[0], K = a->ids.shape[1], E = a->experts;
    int32_t *order = (int32_t *)a->order.data, *offset = (int32_t *)a->offset.data;
    TRI_TRY(tri_fit(ctx, TR_I32, "dispatch", "order:I32[NK] offset:I32[E+1] ids:I32[N,K]",
                    a->order, a->offset, a->ids));
    if (K && N > INT32_MAX / K)
        return tr_fail(ctx, TR_ERR_RANGE, "dispatch: %lld tokens of %lld experts are too many",
                       (long long)N, (long long)K);
    if (E < 1 || a->order.shape[0] != N * K || a->offset.shape[0] != E + 1)
        return tr_fail(ctx, TR_ERR_SHAPE, "dispatch: %lld experts, %lld slots: order has %lld, "
                       "offset %lld", (long long)E, (long long)(N * K),
                       (long long)a->order.shape[0], (long long)a->offset.shape[0]);
    for (int64_t e = 0; e <= E; e++) offset[e] = 0;
    for (int64_t s = 0; s < N * K; s++) {
        const int32_t *ids = (const int32_t *)a->ids.data + tri_row_at(a->ids, s / K);
        int64_t e = ids[s % K];
        if (e < -1 || e >= E)
            return tr_fail(ctx, TR_ERR_RANGE, "dispatch: token %lld, choice %lld: expert %lld lies "
                           "outside [0, %lld)", (long long)(s / K), (long long)(s % K),
                           (long long)e, (long long)E);
        if (e >= 0) offset[e + 1]++;
    }
    for (int64_t e = 0; e < E; e++) offset[e + 1] += offset[e];
    for (int64_t s = offset[E]; s < N * K; s++) order[s] = -1;
    for (int64_t s = 0; s < N * K; s++) {
        const int32_t *ids = (const int32_t *)a->ids.data + tri_row_at(a->ids, s / K);
        if (ids[s % K] >= 0) order[offset[ids[s % K]]++] = (int32_t)s;
    }
    for (int64_t e = E; e > 0; e--) offset[e] = offset[e - 1];
    offset[0] = 0;
    return TR_OK;
}

/* y_s = x_(s div per) W^T for the n slots s of a list. As in tr_matmul_f64, a row of W is decoded
 * once for all of them, and each sum is the same chain. */
typedef struct tri_slots {
    tr_view y, x;
    const tr_weight *w;
    const int32_t *slot;
    int64_t n, per;
} tri_slots;

static void tri_slots_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tri_slots *a = (const tri_slots *)user;
    int64_t I = a->w->cols;
    double buf[TRI_PIECE];
    for (int64_t o = begin; o < end; o++) {
        for (int64_t n = 0; n < a->n; n++) tri_row_f64(a->y, a->slot[n])[o] = 0;
        for (int64_t i = 0; i < I; i += TRI_PIECE) {
            int64_t len = tri_least(I - i, TRI_PIECE);
            const double *w = tr_weight_row_f64(a->w, o, i, len, buf);
            for (int64_t n = 0; n < a->n; n++) {
                double *y = tri_row_f64(a->y, a->slot[n]) + o;
                *y = tri_dot_on(*y, tri_row_f64(a->x, a->slot[n] / a->per) + i, w, len);
            }
        }
    }
}

static void tri_slots_matmul_f64(tr_ctx *ctx, tr_view y, tr_view x, int64_t per, const tr_weight *w,
                                 const int32_t *slot, int64_t n)
{
    tri_slots job;
    job.y = y;
    job.x = x;
    job.w = w;
    job.slot = slot;
    job.n = n;
    job.per = per;
    tr_par_for(ctx, w->rows, tri_mat_grain(n, w->cols), tri_slots_rows_f64, &job);
}

static tr_status tri_expert_weight(tr_ctx *ctx, const tr_weight *w, int64_t rows, int64_t cols,
                                   int64_t e, const char *role)
{
    tr_status s = tri_mat_weight(ctx, role, w);
    if (s == TR_OK && (w->rows != rows || w->cols != cols))
        s = tr_fail(ctx, TR_ERR_SHAPE, "%s [%lld, %lld] is not [%lld, %lld]", role,
                    (long long)w->rows, (long long)w->cols, (long long)rows, (long long)cols);
    return s == TR_OK ? s : tr_fail_in(ctx, s, "experts: expert %lld", (long long)e);
}

static tr_status tri_experts_check(tr_ctx *ctx, tr_dtype t, const tr_experts_args *a)
{
    const int32_t *order = (const int32_t *)a->order.data;
    const int32_t *offset = (const int32_t *)a->offset.data;
    int64_t N = a->y.shape[0], K = a->y.shape[1], E = a->offset.shape[0] - 1;
    TRI_TRY(tri_fit(ctx, t, "experts",
                    "y[N,K,O] x[N,I] order:I32[NK] offset:I32[E+1] g[NK,F] u[NK,F]",
                    a->y, a->x, a->order, a->offset, a->g, a->u));
    if (E < 1 || a->order.shape[0] != N * K)
        return tr_fail(ctx, TR_ERR_SHAPE, "experts: %lld tokens of %lld slots, but order has %lld, "
                       "offset %lld", (long long)N, (long long)K, (long long)a->order.shape[0],
                       (long long)(E + 1));
    TRI_TRY(tri_act_check(ctx, t, "experts", a->act, a->p));
    if (offset[0] != 0 || offset[E] > N * K)
        return tr_fail(ctx, TR_ERR_RANGE, "experts: offset goes from %d to %d, slots to %lld",
                       (int)offset[0], (int)offset[E], (long long)(N * K));
    for (int64_t e = 0; e < E; e++) {
        int64_t n = (int64_t)offset[e + 1] - offset[e], F = a->g.shape[1];
        if (n < 0)
            return tr_fail(ctx, TR_ERR_RANGE, "experts: expert %lld has %lld slots", (long long)e,
                           (long long)n);
        if (n == 0) continue;
        if (!a->gate || !a->up || !a->down)
            return tr_fail(ctx, TR_ERR_MISSING, "experts: no weights");
        TRI_TRY(tri_expert_weight(ctx, &a->gate[e], F, a->x.shape[1], e, "gate"));
        TRI_TRY(tri_expert_weight(ctx, &a->up[e], F, a->x.shape[1], e, "up"));
        TRI_TRY(tri_expert_weight(ctx, &a->down[e], a->y.shape[2], F, e, "down"));
    }
    for (int64_t i = 0; i < offset[E]; i++)
        if (order[i] < 0 || order[i] >= N * K)
            return tr_fail(ctx, TR_ERR_RANGE, "experts: order[%lld] is %d, there are %lld slots",
                           (long long)i, (int)order[i], (long long)(N * K));
    return TR_OK;
}

/*     y_s = W_down act(W_gate x_t, W_up x_t)          for each slot s = t K + j of expert e
 *
 * An expert without slots is not touched; a slot that no expert has is 0. */
tr_status tr_experts_f64(tr_ctx *ctx, const tr_experts_args *a)
{
    int64_t K = a->y.shape[1], E = a->offset.shape[0] - 1, F = a->g.shape[1];
    tri_fpenv env;
    TRI_TRY(tri_experts_check(ctx, TR_F64, a));
    env = tri_os_fp_begin();
    for (int64_t s = 0; s < tri_rows(a->y); s++)
        for (int64_t o = 0; o < a->y.shape[2]; o++) tri_row_f64(a->y, s)[o] = 0;
    for (int64_t e = 0; e < E; e++) {
        const int32_t *offset = (const int32_t *)a->offset.data + e;
        const int32_t *slot = (const int32_t *)a->order.data + offset[0];
        int64_t n = offset[1] - offset[0];
        if (n == 0) continue;
        tri_slots_matmul_f64(ctx, a->g, a->x, K, &a->gate[e], slot, n);
        tri_slots_matmul_f64(ctx, a->u, a->x, K, &a->up[e], slot, n);
        for (int64_t i = 0; i < n; i++) {
            double *g = tri_row_f64(a->g, slot[i]), *u = tri_row_f64(a->u, slot[i]);
            for (int64_t f = 0; f < F; f++) g[f] = a->act->f64(g[f], u[f], a->p);
        }
        tri_slots_matmul_f64(ctx, a->y, a->g, 1, &a->down[e], slot, n);
    }
    tri_os_fp_end(env);
    return TR_OK;
}

/* The contract's: the same three products for all experts at once, each sum in sixteen lanes. */
TRI_INLINE void tri_slots_act_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_experts_args *a = (const tr_experts_args *)user;
    (void)hw;
    for (int64_t i = begin; i < end; i++) {
        int64_t s = ((const int32_t *)a->order.data)[i];
        float *g = tri_row_f32(a->g, s);
        tri_act_row(a->act, g, g, tri_row_f32(a->u, s), a->g.shape[1], a->p);
    }
}
TRI_CLONES(tri_slots_act_rows)

tr_status tr_experts(tr_ctx *ctx, const tr_experts_args *a)
{
    int64_t K = a->y.shape[1], E = a->offset.shape[0] - 1;
    const int32_t *slot = (const int32_t *)a->order.data, *at = (const int32_t *)a->offset.data;
    tr_experts_args job = *a;
    TRI_TRY(tri_experts_check(ctx, TR_F32, a));
    for (int64_t s = 0; s < tri_rows(a->y); s++)
        memset(tri_row_f32(a->y, s), 0, (size_t)a->y.shape[2] * sizeof(float));
    tri_product_group(ctx, a->g, a->x, K, a->gate, E, slot, at);
    tri_product_group(ctx, a->u, a->x, K, a->up, E, slot, at);
    tri_par_clone(ctx, at[E], tri_grain(16 * a->g.shape[1]), tri_slots_act_rows_clones, &job);
    tri_product_group(ctx, a->y, a->g, 1, a->down, E, slot, at);
    return TR_OK;
}

/*     y_t = sum_j w_t,j x_t,j      from +0, j increasing; ids ascend, so in expert order */
static void tri_combine_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_combine_args *a = (const tr_combine_args *)user;
    int64_t K = a->x.shape[1], O = a->y.shape[1];
    for (int64_t t = begin; t < end; t++) {
        double *y = tri_row_f64(a->y, t);
        const double *w = tri_row_f64(a->weights, t);
        for (int64_t o = 0; o < O; o++) y[o] = 0;
        for (int64_t j = 0; j < K; j++) {
            const double *x = tri_row_f64(a->x, t * K + j);
            for (int64_t o = 0; o < O; o++) y[o] += w[j] * x[o];
        }
    }
}

static tr_status tri_combine_check(tr_ctx *ctx, tr_dtype t, const tr_combine_args *a)
{
    return tri_fit(ctx, t, "combine", "y[N,O] x[N,K,O] weights[N,K]", a->y, a->x, a->weights);
}

tr_status tr_combine_f64(tr_ctx *ctx, const tr_combine_args *a)
{
    tr_combine_args job = *a;
    TRI_TRY(tri_combine_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->y.shape[0], tri_grain(a->x.shape[1] * a->y.shape[1]), tri_combine_rows_f64,
               &job);
    return TR_OK;
}

/* The contract's: y = fma(w, x, y) */
TRI_INLINE void tri_combine_rows(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_combine_args *a = (const tr_combine_args *)user;
    int64_t K = a->x.shape[1], O = a->y.shape[1];
    for (int64_t t = begin; t < end; t++) {
        float *y = tri_row_f32(a->y, t);
        const float *w = tri_row_f32(a->weights, t);
        for (int64_t o = 0; o < O; o++) y[o] = 0;
        for (int64_t j = 0; j < K; j++) {
            const float *x = tri_row_f32(a->x, t * K + j);
            for (int64_t o = 0; o < O; o++) y[o] = tri_fmaf(hw, w[j], x[o], y[o]);
        }
    }
}
TRI_CLONES(tri_combine_rows)

tr_status tr_combine(tr_ctx *ctx, const tr_combine_args *a)
{
    tr_combine_args job = *a;
    TRI_TRY(tri_combine_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->y.shape[0], tri_grain(a->x.shape[1] * a->y.shape[1]),
                  tri_combine_rows_clones, &job);
    return TR_OK;
}

/* ============================================================================
 * 19. Pictures {vit}
 *
 *     patches -> W x + positions -> blocks -> norm -> merge -> P1 gelu(P0 x) -> norm -> rows
 *     block:  h = h + Wo attn(rope(q), rope(k), v),  q k v = Wqkv norm(h)
 *             h = h + W1 gelu(W0 norm(h))
 *
 * (MoonViT, Kimi K3's modeling_kimi_k3.) The blocks are made of operators that the chapters above
 * have; the engine strings them together. Attention has no mask: a patch sees all patches of its
 * own picture, before it and behind it, and none of another. {attn} offers this without a case of
 * its own: N patches that ask one head are N query heads that share a key head, at the last
 * position. With q as [1, H N, Dk], head by head, and pos = N - 1, each of them sees all N keys.
 *
 * What is new here is what a plane needs: cutting into patches, a learned table of positions that
 * has one size and must serve any, and the merge.
 *
 * Traps. Pairs of the rotation take column, row, column, row: x first, though rows come first
 * everywhere else. The table is resized as a picture that has pixels at half-integers (no
 * align_corners), by two neighbours an axis also when it shrinks (no antialias). Padding is black
 * before the normalisation, so -1 and not 0. With one frame nothing is added for time; frame 0 of
 * several gets cos 0 = 1 in the upper half. The tower's GELU is the one by tanh, the projector's
 * the one by erf. q, k and v are wider than the residual here.
 * ========================================================================= */

void tr_image_normalize(float value[256], double mean, double std)
{
    for (int v = 0; v < 256; v++) {
        float x = (float)(v / 255.0);
        x = (float)((double)x - mean);
        value[v] = (float)((double)x * (1 / std));
    }
}

void tr_patch(float *y, const uint8_t *rgb, int64_t H, int64_t W, int64_t i, int64_t k, int64_t P,
              const float *value)
{
    int64_t there = W - k * P > 0 ? tri_least(W - k * P, P) : 0;        /* columns of the picture */
    for (int64_t c = 0; c < 3; c++, value += 256)
        for (int64_t row = i * P; row < (i + 1) * P; row++) {
            int64_t n = row < H ? there : 0;
            const uint8_t *q = n ? rgb + (row * W + k * P) * 3 + c : NULL;
            for (int64_t x = 0; x < n; x++) *y++ = value[q[3 * x]];
            for (int64_t x = n; x < P; x++) *y++ = value[0];
        }
}

void tr_patchify(float *y, const uint8_t *rgb, int64_t H, int64_t W, int64_t gh, int64_t gw,
                 int64_t P, const float *value)
{
    for (int64_t i = 0; i < gh * gw; i++, y += 3 * P * P)
        tr_patch(y, rgb, H, W, i / gw, i % gw, P, value);
}

/* Cell i of n lies at z in a table of G, whose entry k stands for the middle of [k, k + 1):
 *
 *     z = max(0, (i + 1/2) (G / n) - 1/2)     b = z - k0
 *     k0 = min(floor z, G - 1)                k1 = min(k0 + 1, G - 1)
 *
 * (torch interpolate, bilinear, align_corners=False, antialias=False). Between 0 and the first
 * middle, and past the last one, the table goes on as it is there. */
typedef struct tri_between { int64_t k0, k1; double b; } tri_between;

static tri_between tri_between_of(int64_t i, int64_t n, int64_t G)
{
    tri_between p;
    double z = ((double)i + 0.5) * ((double)G / (double)n) - 0.5;
    if (z < 0) z = 0;
    p.k0 = tri_least((int64_t)z, G - 1);
    p.k1 = tri_least(p.k0 + 1, G - 1);
    p.b = z - (double)p.k0;
    return p;
}

/* One cell of the grid, in all frames:
 *
 *     p   = (1 - c.b) T[r.k0, c.k0] + c.b T[r.k0, c.k1]       q the same in row r.k1
 *     pos = (1 - r.b) p + r.b q
 *     y   = pos + time[f] if there are several frames,
 *     time[f] = [ sin(f w_0), sin(f w_1), ..  |  cos(f w_0), cos(f w_1), .. ],
 *     w_j     = theta^(-2j/D) */
static void tri_pos_cells_f64(void *user, int64_t begin, int64_t end)
{
    const tr_pos_args *a = (const tr_pos_args *)user;
    int64_t D = a->y.shape[1], cells = a->h * a->w, Gw = a->table->cols / D;
    double buf[4][TRI_PIECE];
    for (int64_t i = begin; i < end; i++) {
        tri_between r = tri_between_of(i / a->w, a->h, a->table->rows);
        tri_between c = tri_between_of(i % a->w, a->w, Gw);
        for (int64_t d0 = 0, n; d0 < D; d0 += n) {
            const double *T[4];
            n = tri_least(D - d0, TRI_PIECE);
            for (int k = 0; k < 4; k++)
                T[k] = tr_weight_row_f64(a->table, k / 2 ? r.k1 : r.k0,
                                         (k % 2 ? c.k1 : c.k0) * D + d0, n, buf[k]);
            for (int64_t d = d0; d < d0 + n; d++) {
                double p = (1 - c.b) * T[0][d - d0] + c.b * T[1][d - d0];
                double q = (1 - c.b) * T[2][d - d0] + c.b * T[3][d - d0];
                double y = (1 - r.b) * p + r.b * q, w = 0;
                if (a->t > 1) w = pow(a->theta, -2 * (double)(d % (D / 2)) / (double)D);
                for (int64_t f = 0; f < a->t; f++) {
                    double at = a->t == 1 ? 0 : d < D / 2 ? sin((double)f * w) : cos((double)f * w);
                    tri_row_f64(a->y, f * cells + i)[d] = y + at;
                }
            }
        }
    }
}

static tr_status tri_grid_check(tr_ctx *ctx, const char *op, int64_t N, int64_t t, int64_t h,
                                int64_t w)
{
    if (t > 0 && h > 0 && w > 0 && t <= N && h <= N / t && w <= N / t / h && t * h * w == N)
        return TR_OK;
    return tr_fail(ctx, TR_ERR_SHAPE, "%s: %lld rows for %lld frames of %lld x %lld patches", op,
                   (long long)N, (long long)t, (long long)h, (long long)w);
}

static tr_status tri_pos_check(tr_ctx *ctx, tr_dtype t, const tr_pos_args *a)
{
    int64_t D = a->y.shape[1];
    TRI_TRY(tri_fit(ctx, t, "pos", "y[N,D]", a->y));
    TRI_TRY(tri_grid_check(ctx, "pos", a->y.shape[0], a->t, a->h, a->w));
    if (!a->table || !a->table->format || !a->table->q)
        return tr_fail(ctx, TR_ERR_ARG, "pos: the table is absent");
    if (D < 1 || a->table->rows < 1 || a->table->cols < D || a->table->cols % D)
        return tr_fail(ctx, TR_ERR_SHAPE, "pos: %s [%lld, %lld] does not hold rows of %lld",
                       a->table->name, (long long)a->table->rows, (long long)a->table->cols,
                       (long long)D);
    if (a->t == 1) return TR_OK;
    if (D % 2)
        return tr_fail(ctx, TR_ERR_SHAPE, "pos: the time of frames needs an even width, not %lld",
                       (long long)D);
    if (a->theta > 0 && a->theta <= DBL_MAX) return TR_OK;
    return tr_fail(ctx, TR_ERR_RANGE, "pos: theta is %g, must be above 0", a->theta);
}

tr_status tr_pos_resize_f64(tr_ctx *ctx, const tr_pos_args *a)
{
    tr_pos_args job = *a;
    TRI_TRY(tri_pos_check(ctx, TR_F64, a));
    tr_par_for(ctx, a->h * a->w, tri_grain(8 * a->t * a->y.shape[1]), tri_pos_cells_f64, &job);
    return TR_OK;
}

/* The contract's: z and frequencies in binary64; b = fl(z - k0) and 1 - b, the mix in each row and
 * that of the rows in binary32, the second product of each fused; sines and cosines rounded
 * once. */
TRI_INLINE void tri_pos_cells(int hw, void *user, int64_t begin, int64_t end)
{
    const tr_pos_args *a = (const tr_pos_args *)user;
    int64_t D = a->y.shape[1], cells = a->h * a->w, Gw = a->table->cols / D;
    float buf[4][TRI_PIECE], y[TRI_PIECE];
    for (int64_t i = begin; i < end; i++) {
        tri_between r = tri_between_of(i / a->w, a->h, a->table->rows);
        tri_between c = tri_between_of(i % a->w, a->w, Gw);
        float rb = (float)r.b, ra = 1 - rb, cb = (float)c.b, ca = 1 - cb;
        for (int64_t d0 = 0, n; d0 < D; d0 += n) {
            const float *T[4];
            n = tri_least(D - d0, TRI_PIECE);
            for (int k = 0; k < 4; k++)
                T[k] = tr_weight_row_f32(a->table, k / 2 ? r.k1 : r.k0,
                                         (k % 2 ? c.k1 : c.k0) * D + d0, n, buf[k]);
            for (int64_t d = 0; d < n; d++) {
                float p = tri_fmaf(hw, cb, T[1][d], ca * T[0][d]);
                float q = tri_fmaf(hw, cb, T[3][d], ca * T[2][d]);
                y[d] = tri_fmaf(hw, rb, q, ra * p);
            }
            if (a->t == 1) memcpy(tri_row_f32(a->y, i) + d0, y, (size_t)n * sizeof *y);
            for (int64_t d = d0; a->t > 1 && d < d0 + n; d++) {
                double w = tr_pow64(a->theta, -2 * (double)(d % (D / 2)) / (double)D), sin_f, cos_f;
                for (int64_t f = 0; f < a->t; f++) {
                    tr_sincos64((double)f * w, &sin_f, &cos_f);
                    tri_row_f32(a->y, f * cells + i)[d] =
                        y[d - d0] + (float)(d < D / 2 ? sin_f : cos_f);
                }
            }
        }
    }
}
TRI_CLONES(tri_pos_cells)

tr_status tr_pos_resize(tr_ctx *ctx, const tr_pos_args *a)
{
    tr_pos_args job = *a;
    TRI_TRY(tri_pos_check(ctx, TR_F32, a));
    tri_par_clone(ctx, a->h * a->w, tri_grain(8 * a->t * a->y.shape[1]), tri_pos_cells_clones,
                  &job);
    return TR_OK;
}

/* Row k of cell i of the coarser grid is the patch dy rows and dx columns into it, k = dy mw + dx:
 *
 *     y[i, k] = mean over frames f of x[f, (i div (w/mw)) mh + dy, (i mod (w/mw)) mw + dx] */
static int64_t tri_merge_from(const tr_merge_args *a, int64_t i, int64_t k)
{
    int64_t w = a->w / a->mw;
    return (i / w * a->mh + k / a->mw) * a->w + i % w * a->mw + k % a->mw;
}

static void tri_merge_rows_f64(void *user, int64_t begin, int64_t end)
{
    const tr_merge_args *a = (const tr_merge_args *)user;
    int64_t D = a->x.shape[1], K = a->mh * a->mw, cells = a->h * a->w;
    for (int64_t i = begin; i < end; i++) {
        double *y = tri_row_f64(a->y, i);
        int64_t from = tri_merge_from(a, i / K, i % K);
        for (int64_t d = 0; d < D; d++) {
            double sum = 0;
            for (int64_t f = 0; f < a->t; f++) sum += tri_row_f64(a->x, f * cells + from)[d];
            y[d] = sum / (double)a->t;
        }
    }
}

static tr_status tri_merge_check(tr_ctx *ctx, tr_dtype t, const tr_merge_args *a)
{
    TRI_TRY(tri_fit(ctx, t, "merge", "y[n,k,D] x[N,D]", a->y, a->x));
    TRI_TRY(tri_grid_check(ctx, "merge", a->x.shape[0], a->t, a->h, a->w));
    if (a->mh < 1 || a->mw < 1 || a->h % a->mh || a->w % a->mw)
        return tr_fail(ctx, TR_ERR_SHAPE, "merge: a grid of %lld x %lld patches does not divide by "
                       "%lld x %lld", (long long)a->h, (long long)a->w, (long long)a->mh,
                       (long long)a->mw);
    if (a->y.shape[0] == a->h / a->mh * (a->w / a->mw) && a->y.shape[1] == a->mh * a->mw)
        return TR_OK;
    return tr_fail(ctx, TR_ERR_SHAPE, "merge: y of %lld x %lld rows, %lld x %lld are made",
                   (long long)a->y.shape[0], (long long)a->y.shape[1],
                   (long long)(a->h / a->mh * (a->w / a->mw)), (long long)(a->mh * a->mw));
}

tr_status tr_patch_merge_f64(tr_ctx *ctx, const tr_merge_args *a)
{
    tr_merge_args job = *a;
    TRI_TRY(tri_merge_check(ctx, TR_F64, a));
    tr_par_for(ctx, tri_rows(a->y), tri_grain(a->t * a->x.shape[1]), tri_merge_rows_f64, &job);
    return TR_OK;
}

/* The contract's: frames in sequence, from the first one's value; then the quotient. One frame is
 * copied. */
static void tri_merge_rows(void *user, int64_t begin, int64_t end)
{
    const tr_merge_args *a = (const tr_merge_args *)user;
    int64_t D = a->x.shape[1], K = a->mh * a->mw, cells = a->h * a->w;
    for (int64_t i = begin; i < end; i++) {
        float *y = tri_row_f32(a->y, i);
        int64_t from = tri_merge_from(a, i / K, i % K);
        if (D) memcpy(y, tri_row_f32(a->x, from), (size_t)D * sizeof *y);
        for (int64_t f = 1; f < a->t; f++) {
            const float *x = tri_row_f32(a->x, f * cells + from);
            for (int64_t d = 0; d < D; d++) y[d] += x[d];
        }
        for (int64_t d = 0; a->t > 1 && d < D; d++) y[d] /= (float)a->t;
    }
}

tr_status tr_patch_merge(tr_ctx *ctx, const tr_merge_args *a)
{
    tr_merge_args job = *a;
    TRI_TRY(tri_merge_check(ctx, TR_F32, a));
    tr_par_for(ctx, tri_rows(a->y), tri_grain(a->t * a->x.shape[1]), tri_merge_rows, &job);
    return TR_OK;
}

/* ============================================================================
 * 20. The table of operators {ops}
 *
 * TR_OPS_LIST is the one list of operators; the table's type, the oracle, the contract, the dry
 * table and the check that a table is complete all come from it, so that none can lag behind. The
 * oracle's entries hand their arguments to the definitions above, the contract's to the kernels.
 * The dry table's entries look at shapes, tell a listener what the call would give, read and
 * multiply, and touch no data.
 *
 * Traps. Every entry gets the table's `user`, also those that a port left as they were. A product
 * and the addition of it count two; what is not a product (norms, gates, rotations) counts nothing.
 * ========================================================================= */

#define TRI_ENTRIES(op, args, f64, f32)                                         \
    static tr_status tri_oracle_##op(void *user, tr_ctx *ctx, const args *a)    \
    {                                                                           \
        (void)user;                                                             \
        return f64(ctx, a);                                                     \
    }                                                                           \
    static tr_status tri_contract_##op(void *user, tr_ctx *ctx, const args *a)  \
    {                                                                           \
        (void)user;                                                             \
        return f32(ctx, a);                                                     \
    }
TR_OPS_LIST(TRI_ENTRIES)
#undef TRI_ENTRIES

tr_ops tr_ops_oracle(void)
{
    tr_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.name = "oracle";
#define TRI_ENTRY(op, args, f64, f32) ops.op = tri_oracle_##op;
    TR_OPS_LIST(TRI_ENTRY)
#undef TRI_ENTRY
    return ops;
}

tr_ops tr_ops_contract(void)
{
    tr_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.name = "contract";
#define TRI_ENTRY(op, args, f64, f32) ops.op = tri_contract_##op;
    TR_OPS_LIST(TRI_ENTRY)
#undef TRI_ENTRY
    return ops;
}

/* The first entry that a table lacks, or NULL. */
static const char *tri_ops_missing(const tr_ops *o)
{
#define TRI_ENTRY(op, args, f64, f32) if (!o->op) return #op;
    TR_OPS_LIST(TRI_ENTRY)
#undef TRI_ENTRY
    return NULL;
}

/* ---- the dry table: shapes and counts ------------------------------------ */

/* What a call would give: the view y; and cost: the parameters it reads, and its products. */
typedef tr_status (*tri_hear_fn)(void *user, const char *op, tr_view y, int64_t params,
                                 double flops);
typedef struct tri_listener { tri_hear_fn fn; void *user; } tri_listener;

static tr_status tri_hear(const tri_listener *l, const char *op, tr_view y, int64_t params,
                          double flops)
{
    return l ? l->fn(l->user, op, y, params, flops) : TR_OK;
}

/* The product of extents, in binary64: a plan may count beyond 2^63. */
static double tri_extent(tr_view v)
{
    double n = 1;
    for (int k = 0; k < v.rank; k++) n *= (double)v.shape[k];
    return n;
}

static int64_t tri_params(const tr_weight *w) { return w->rows * w->cols; }

/* Expanded: kv_b for every key, then attention. Absorbed: kv_b for every query (its key half on the
 * way in, its value half on the way out), then attention over the latent rows. */
static double tri_mla_flops(const tr_mla_args *a)
{
    double S = (double)a->latent.shape[0], T = (double)a->q.shape[0];
    double kv = (double)tri_params(a->kv_b);
    if (tr_view_is_none(a->absorbed))
        return 2 * kv * S + 2 * (tri_extent(a->q) + tri_extent(a->y)) * S;
    return 2 * kv * T + 2 * tri_extent(a->absorbed) * S;
}

#define TRI_DRY(op, args, y, params, flops)                                         \
    static tr_status tri_dry_##op(void *user, tr_ctx *ctx, const args *a)           \
    {                                                                               \
        (void)ctx;                                                                  \
        return tri_hear((tri_listener *)user, #op, y, params, flops);               \
    }
TRI_DRY(embed, tr_embed_args, a->y, a->w->cols, 0)
TRI_DRY(matmul, tr_matmul_args, a->y, tri_params(a->w), 2 * tri_extent(a->y) * (double)a->w->cols)
TRI_DRY(norm, tr_norm_args, a->y, 0, 0)
TRI_DRY(glu, tr_glu_args, a->y, 0, 0)
TRI_DRY(gate, tr_gate_args, a->y, 0, 0)
TRI_DRY(gelu, tr_gelu_args, a->y, 0, 0)
TRI_DRY(rope, tr_rope_args, a->x, 0, 0)
TRI_DRY(attn, tr_attn_args, a->y, 0,
        2 * tri_extent(a->q) * (double)a->k.shape[0] + 2 * tri_extent(a->y) * (double)a->k.shape[0])
TRI_DRY(mla, tr_mla_args, a->y, tri_params(a->kv_b), tri_mla_flops(a))
TRI_DRY(shortconv, tr_conv_args, a->y, 0, 2 * tri_extent(a->y) * (double)a->w.shape[1])
TRI_DRY(decay, tr_decay_args, a->g, 0, 0)
TRI_DRY(delta, tr_delta_args, a->o, 0, 7 * tri_extent(a->o) * (double)a->S.shape[2])
TRI_DRY(add, tr_add_args, a->y, 0, 0)
TRI_DRY(copy, tr_copy_args, a->y, 0, 0)
TRI_DRY(mix, tr_mix_args, a->y, 0, 4 * tri_extent(a->h) * (double)(a->snaps.shape[0] + 1))
TRI_DRY(route, tr_route_args, a->ids, 0, 0)
TRI_DRY(dispatch, tr_dispatch_args, a->order, 0, 0)
TRI_DRY(experts, tr_experts_args, a->y,
        a->y.shape[1] * (2 * tri_params(a->gate) + tri_params(a->down)),
        2 * (double)(a->y.shape[0] * a->y.shape[1]) *
        (double)(2 * tri_params(a->gate) + tri_params(a->down)))
TRI_DRY(combine, tr_combine_args, a->y, 0, 2 * tri_extent(a->x))
TRI_DRY(pos, tr_pos_args, a->y, tri_params(a->table), 0)
TRI_DRY(merge, tr_merge_args, a->y, 0, 0)
#undef TRI_DRY

/* l may be NULL: nobody listens. */
static tr_ops tri_ops_dry(tri_listener *l)
{
    tr_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.name = "dry";
    ops.user = l;
    ops.dry = 1;
#define TRI_ENTRY(op, args, f64, f32) ops.op = tri_dry_##op;
    TR_OPS_LIST(TRI_ENTRY)
#undef TRI_ENTRY
    return ops;
}

/* ============================================================================
 * 21. Taps {tap}
 *
 * The engine offers each value under its public name; whoever asked for the name gets a view. The
 * memory belongs to the run and is used again, so a tap copies what it wants to keep. The default
 * set is what every engine has: embedding, layers, sublayers, routes, final norm, logits.
 *
 * Traps. `*` stands for dots too, so `*.mlp` is the mlp of every layer, and `model.layers.1*` is
 * not layer 1 alone. A matcher that tries every star again takes time exponential in their number.
 * ========================================================================= */

/* Greedy matching with one point to come back to: after the last star. */
int tr_tap_match(const char *glob, const char *name)
{
    const char *star = NULL, *back = NULL;
    while (*name) {
        if (*glob == '*') {
            star = glob++;
            back = name;
        } else if (*glob == *name) {
            glob++;
            name++;
        } else if (star) {
            glob = star + 1;
            name = ++back;
        } else {
            return 0;
        }
    }
    while (*glob == '*') glob++;
    return !*glob;
}

/* ============================================================================
 * 23. JSON {json}
 *
 * Recursive descent over RFC 8259, one function a production. The text is copied once; strings are
 * unescaped where they stand, which never needs more room than they had, and the closing quote
 * leaves the place for a NUL. Each value becomes a node in one array, in file order: a container
 * stands directly before its first child, and children are chained by `next`.
 *
 * Traps: a text may nest without end (bounded: TR_JSON_MAX_DEPTH), name a member twice (refused:
 * readers disagree on which one counts), or hold half a surrogate pair, an overlong UTF-8 form or
 * U+0000 (refused: strings are C strings). strtod reads "1.5" by the locale; see tr_json_num.
 * ========================================================================= */

typedef struct tri_json_in {
    tr_json *j;
    size_t   at, n;             /* next byte; end of the text, where a NUL stands */
    int32_t  line;
    int      depth;             /* containers open */
    int64_t  cap;               /* nodes allocated */
    uint32_t key, key_len;      /* the member being read, for messages; key 0: none */
} tri_json_in;

/* Bytes of the UTF-8 character at s, 0 if it is none: RFC 3629, so the shortest form only, no
 * surrogates, at most U+10FFFF. s ends in NUL, which is no continuation byte. */
static size_t tri_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = s[0] & (0x7fu >> n);
    if (n == 1) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    for (size_t k = 1; k < n; k++) {
        if ((s[k] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[k] & 0x3fu);
    }
    if ((n == 3 && c < 0x800) || (n == 4 && c < 0x10000) || c > 0x10ffff) return 0;
    return c >= 0xd800 && c <= 0xdfff ? 0 : n;
}

/* About 60 bytes of s[0..n) as a message may show them: what is no character, or a control
 * character, becomes '?'. */
typedef struct tri_shown { char s[68]; } tri_shown;
static tri_shown tri_show(const char *s, size_t n)
{
    tri_shown b;
    size_t i = 0, k = 0;
    while (i < n && k < 60) {
        size_t c = tri_utf8(s + i);
        if (c == 0 || c > n - i || (unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            b.s[k++] = '?';
            i++;
        } else
            while (c--) b.s[k++] = s[i++];
    }
    strcpy(b.s + k, i < n ? "..." : "");
    return b;
}

/* "config.json:12: rope_theta: what is wrong" */
static tr_status tri_json_say(const tr_json *j, int32_t line, uint32_t key, uint32_t key_len,
                              const char *what)
{
    if (!key) return tr_fail(j->ctx, TR_ERR_FORMAT, "%s:%d: %s", j->name, (int)line, what);
    return tr_fail(j->ctx, TR_ERR_FORMAT, "%s:%d: %s: %s", j->name, (int)line,
                   tri_show(j->text + key, key_len).s, what);
}

static TR_PRINTF(2, 3) tr_status tri_json_bad(const tri_json_in *in, const char *fmt, ...)
{
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return tri_json_say(in->j, in->line, in->key, in->key_len, what);
}

static void tri_json_space(tri_json_in *in)
{
    for (;; in->at++) {
        char c = in->j->text[in->at];
        if (c == '\n' && in->line < INT32_MAX) in->line++;
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    }
}

static size_t tri_utf8_put(char *s, uint32_t c)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t k = n - 1; k > 0; k--) {
        s[k] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    s[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xf0u) | c);
    return n;
}

/* Four hexadecimal digits as a number, -1 if they are not four. */
static int32_t tri_hex4(const char *s)
{
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The escape at text[*r] becomes UTF-8 at text[*w]; w <= r, and no escape is shorter than what it
 * stands for. */
static tr_status tri_json_escape(const tri_json_in *in, size_t *r, size_t *w)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *t = in->j->text;
    const char *k = strchr(from, t[*r + 1]);
    int32_t c, low;
    if (k && *k) {
        t[(*w)++] = to[k - from];
        *r += 2;
        return TR_OK;
    }
    if (t[*r + 1] != 'u')
        return tri_json_bad(in, "\\%s is no escape in JSON", tri_show(t + *r + 1, 1).s);
    c = tri_hex4(t + *r + 2);
    if (c < 0) return tri_json_bad(in, "\\u without four hexadecimal digits");
    if (c == 0) return tri_json_bad(in, "\\u0000 in a string");
    *r += 6;
    if (c >= 0xd800 && c <= 0xdbff) {
        low = t[*r] == '\\' && t[*r + 1] == 'u' ? tri_hex4(t + *r + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return tri_json_bad(in, "\\u%04x is half of a surrogate pair", (unsigned)c);
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        *r += 6;
    } else if (c >= 0xdc00 && c <= 0xdfff)
        return tri_json_bad(in, "\\u%04x is half of a surrogate pair", (unsigned)c);
    *w += tri_utf8_put(t + *w, (uint32_t)c);
    return TR_OK;
}

/* The string whose opening quote is next: where it begins in text, and its unescaped length. */
static tr_status tri_json_string(tri_json_in *in, uint32_t *str, uint32_t *len)
{
    char *t = in->j->text;
    size_t r = in->at + 1, w = r, k;
    *str = (uint32_t)r;
    while (t[r] != '"') {
        unsigned char c = (unsigned char)t[r];
        if (c == '\n' || r >= in->n) return tri_json_bad(in, "a string without its closing quote");
        if (c < 0x20) return tri_json_bad(in, "control character 0x%02x in a string", (unsigned)c);
        if (c == '\\') {
            TRI_TRY(tri_json_escape(in, &r, &w));
            continue;
        }
        k = tri_utf8(t + r);
        if (!k) return tri_json_bad(in, "byte 0x%02x in a string is not UTF-8", (unsigned)c);
        while (k--) t[w++] = t[r++];
    }
    t[w] = 0;
    *len = (uint32_t)(w - *str);
    in->at = r + 1;
    return TR_OK;
}

static size_t tri_digits(const char *s)
{
    size_t n = 0;
    while (s[n] >= '0' && s[n] <= '9') n++;
    return n;
}

/* number = [-] (0 | 1-9 digits) [. digits] [(e|E) [+|-] digits];  0 bytes if there is none */
static size_t tri_json_number(const char *s)
{
    size_t n = s[0] == '-', d = tri_digits(s + n);
    if (d == 0 || (d > 1 && s[n] == '0')) return 0;
    n += d;
    if (s[n] == '.') {
        d = tri_digits(s + n + 1);
        if (d == 0) return 0;
        n += 1 + d;
    }
    if (s[n] == 'e' || s[n] == 'E') {
        n += s[n + 1] == '+' || s[n + 1] == '-' ? 2 : 1;
        d = tri_digits(s + n);
        if (d == 0) return 0;
        n += d;
    }
    return n;
}

/* A number, true, false or null. */
static tr_status tri_json_token(tri_json_in *in, tr_json_node *v)
{
    const char *s = in->j->text + in->at;
    size_t n = tri_json_number(s), k = 0;
    v->type = TR_JSON_NUM;
    if (!n && !strncmp(s, "true", 4))  { v->type = TR_JSON_BOOL; n = 4; }
    if (!n && !strncmp(s, "false", 5)) { v->type = TR_JSON_BOOL; n = 5; }
    if (!n && !strncmp(s, "null", 4))  { v->type = TR_JSON_NULL; n = 4; }
    if (!n) {
        while (s[k] && !strchr(" \t\r\n,:[]{}\"", s[k])) k++;
        if (in->at >= in->n) return tri_json_bad(in, "the text ends where a value should stand");
        return tri_json_bad(in, "'%s' is no value in JSON", tri_show(s, k ? k : 1).s);
    }
    v->str = (uint32_t)in->at;
    v->str_len = (uint32_t)n;
    in->at += n;
    return TR_OK;
}

/* ---- sorting, here and in the next chapter ---- */

typedef int (*tri_cmp_fn)(const void *user, const void *a, const void *b);

/* Stable merge sort of n elements of e bytes; tmp holds half of them. Two halves that follow one
 * another are left alone, so that sorted input takes n comparisons; any takes at most n log2 n. */
static void tri_merge_sort(char *v, char *tmp, size_t n, size_t e, tri_cmp_fn cmp, const void *user)
{
    size_t h = n / 2 * e, end = n * e, i = 0, j = h;
    if (n < 2) return;
    tri_merge_sort(v, tmp, n / 2, e, cmp, user);
    tri_merge_sort(v + h, tmp, n - n / 2, e, cmp, user);
    if (cmp(user, v + h - e, v + h) <= 0) return;
    memcpy(tmp, v, h);
    while (i < h) {                             /* i + j - h are in place */
        int second = j < end && cmp(user, tmp + i, v + j) > 0;
        memcpy(v + i + j - h, second ? v + j : tmp + i, e);
        if (second) j += e;
        else i += e;
    }
}

/* v [n] of elem bytes each, in the order of cmp; equal ones keep theirs. On failure as before. */
static tr_status tri_sort(tr_ctx *ctx, void *v, int64_t n, size_t elem, tri_cmp_fn cmp,
                          const void *user)
{
    void *tmp;
    TRI_TRY(tri_alloc_n(ctx, &tmp, n / 2, elem));
    if (n > 1) tri_merge_sort((char *)v, (char *)tmp, (size_t)n, elem, cmp, user);
    tr_free(ctx, tmp);
    return TR_OK;
}

/* ---- members ---- */

typedef struct tri_json_name {
    uint64_t hash;
    const char *key;
    const tr_json_node *node;
} tri_json_name;

static int tri_json_name_cmp(const void *user, const void *a, const void *b)
{
    const tri_json_name *x = (const tri_json_name *)a, *y = (const tri_json_name *)b;
    (void)user;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return strcmp(x->key, y->key);
}

static tr_status tri_json_twice(const tr_json *j, const tr_json_node *v)
{
    return tri_json_say(j, v->line, v->key, v->key_len, "this key occurs twice in one object");
}

/* No name occurs twice among the children of obj. A few are compared pairwise; many are sorted by
 * hash and then by name, so that names made to share a hash cost no more than a sort. */
static tr_status tri_json_unique(const tr_json *j, const tr_json_node *obj)
{
    const tr_json_node *a, *b;
    tri_json_name *v;
    void *p;
    int64_t i = 0;
    tr_status s;
    if (obj->count <= 8) {
        for (b = tr_json_first(j, obj); b; b = tr_json_next(j, b))
            for (a = tr_json_first(j, obj); a != b; a = tr_json_next(j, a))
                if (a->key_len == b->key_len &&
                    !memcmp(j->text + a->key, j->text + b->key, a->key_len))
                    return tri_json_twice(j, b);
        return TR_OK;
    }
    TRI_TRY(tri_alloc_n(j->ctx, &p, obj->count, sizeof *v));
    v = (tri_json_name *)p;
    for (a = tr_json_first(j, obj); a; a = tr_json_next(j, a), i++) {
        v[i].node = a;
        v[i].key = j->text + a->key;
        v[i].hash = 0xcbf29ce484222325u;                    /* FNV-1a */
        for (uint32_t k = 0; k < a->key_len; k++)
            v[i].hash = (v[i].hash ^ (unsigned char)v[i].key[k]) * 0x100000001b3u;
    }
    s = tri_sort(j->ctx, v, i, sizeof *v, tri_json_name_cmp, NULL);
    for (int64_t k = 1; s == TR_OK && k < i; k++)
        if (!tri_json_name_cmp(NULL, &v[k - 1], &v[k])) s = tri_json_twice(j, v[k].node);
    tr_free(j->ctx, p);
    return s;
}

static tr_status tri_json_value(tri_json_in *in, uint32_t key, uint32_t key_len);

/* "name" : */
static tr_status tri_json_member(tri_json_in *in, uint32_t *key, uint32_t *key_len)
{
    if (in->j->text[in->at] != '"') {
        if (in->at >= in->n) return tri_json_bad(in, "the text ends inside an object");
        return tri_json_bad(in, "'%s' where a key in quotes should stand",
                            tri_show(in->j->text + in->at, 1).s);
    }
    TRI_TRY(tri_json_string(in, key, key_len));
    in->key = *key;
    in->key_len = *key_len;
    tri_json_space(in);
    if (in->j->text[in->at] != ':') return tri_json_bad(in, "no ':' after the key");
    in->at++;
    tri_json_space(in);
    return TR_OK;
}

/* { members } or [ items ]; its opening bracket is next, its node is `self`. Nodes move while the
 * array grows, so they are known by index. */
static tr_status tri_json_container(tri_json_in *in, uint32_t self, char close)
{
    const char *t = in->j->text;
    uint32_t key = in->key, key_len = in->key_len, k = 0, k_len = 0, last = 0, child, count = 0;
    if (++in->depth > TR_JSON_MAX_DEPTH)
        return tri_json_bad(in, "nested deeper than %d", TR_JSON_MAX_DEPTH);
    in->at++;
    tri_json_space(in);
    while (t[in->at] != close || count) {
        if (close == '}') TRI_TRY(tri_json_member(in, &k, &k_len));
        child = in->j->n;
        TRI_TRY(tri_json_value(in, k, k_len));
        if (last) in->j->node[last].next = child;
        last = child;
        count++;
        in->key = key;
        in->key_len = key_len;
        tri_json_space(in);
        if (t[in->at] == close) break;
        if (in->at >= in->n)
            return tri_json_bad(in, "the text ends before '%c'", close);
        if (t[in->at] != ',')
            return tri_json_bad(in, "'%s' where ',' or '%c' should stand",
                                tri_show(t + in->at, 1).s, close);
        in->at++;
        tri_json_space(in);
        if (t[in->at] == close) return tri_json_bad(in, "a comma before '%c'", close);
    }
    in->at++;
    in->depth--;
    in->j->node[self].count = count;
    return close == '}' ? tri_json_unique(in->j, &in->j->node[self]) : TR_OK;
}

/* Any value, as the next node. key 0: it has no name. */
static tr_status tri_json_value(tri_json_in *in, uint32_t key, uint32_t key_len)
{
    tr_json *j = in->j;
    uint32_t self = j->n;
    void *p = j->node;
    tr_json_node v;
    char c = j->text[in->at];
    tr_status s = tri_grow(j->ctx, &p, &in->cap, j->n, sizeof v);
    j->node = (tr_json_node *)p;
    if (s != TR_OK) return s;
    memset(&v, 0, sizeof v);
    v.line = in->line;
    v.key = key;
    v.key_len = key_len;
    v.str = (uint32_t)in->n;        /* where the text is empty: containers have no token */
    j->n++;                         /* < 2^31: a value takes two bytes of text, with its comma */
    if (c == '{' || c == '[') {
        v.type = c == '{' ? TR_JSON_OBJECT : TR_JSON_ARRAY;
        j->node[self] = v;
        return tri_json_container(in, self, c == '{' ? '}' : ']');
    }
    if (c == '"') {
        v.type = TR_JSON_STR;
        TRI_TRY(tri_json_string(in, &v.str, &v.str_len));
    } else
        TRI_TRY(tri_json_token(in, &v));
    j->node[self] = v;
    return TR_OK;
}

static tr_status tri_json_text(tri_json_in *in)
{
    tr_json *j = in->j;
    if (in->n >= 3 && !memcmp(j->text, "\xef\xbb\xbf", 3))
        return tri_json_bad(in, "a byte order mark before the text; save it as plain UTF-8");
    tri_json_space(in);
    TRI_TRY(tri_json_value(in, 0, 0));
    tri_json_space(in);
    if (in->at < in->n)
        return tri_json_bad(in, "'%s' after the end of the value",
                            tri_show(j->text + in->at, 1).s);
    /* What follows a token has been read by now, so it too can end in NUL. */
    for (uint32_t i = 0; i < j->n; i++) j->text[j->node[i].str + j->node[i].str_len] = 0;
    return TR_OK;
}

tr_status tr_json_parse(tr_ctx *ctx, tr_json *out, const char *name, const char *text, size_t n)
{
    tri_json_in in;
    char *copy;
    tr_status s;
    memset(out, 0, sizeof *out);
    memset(&in, 0, sizeof in);
    if (n >= UINT32_MAX)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: %llu bytes of JSON; at most 4 GiB are read", name,
                       (unsigned long long)n);
    out->ctx = ctx;
    in.j = out;
    in.n = n;
    in.line = 1;
    s = tri_strdup(ctx, &copy, name, strlen(name));
    out->name = copy;
    if (s == TR_OK) s = tri_strdup(ctx, &out->text, text, n);
    if (s == TR_OK) s = tri_json_text(&in);
    if (s != TR_OK) tr_json_free(out);
    return s;
}

tr_status tr_json_load(tr_ctx *ctx, tr_json *out, const char *path)
{
    unsigned char *map;
    size_t bytes;
    tr_status s;
    memset(out, 0, sizeof *out);
    TRI_TRY(tri_os_map(ctx, path, &map, &bytes));
    s = tr_json_parse(ctx, out, path, (const char *)map, bytes);
    tri_os_unmap(ctx, map, bytes);
    return s;
}

void tr_json_free(tr_json *j)
{
    if (j->ctx) {
        tr_free(j->ctx, (void *)(uintptr_t)j->name);    /* const for readers; ours to free */
        tr_free(j->ctx, j->text);
        tr_free(j->ctx, j->node);
    }
    memset(j, 0, sizeof *j);
}

/* ---- reading values ---- */

const tr_json_node *tr_json_first(const tr_json *j, const tr_json_node *parent)
{
    (void)j;
    return parent && parent->count ? parent + 1 : NULL;
}

const tr_json_node *tr_json_next(const tr_json *j, const tr_json_node *n)
{
    return n->next ? &j->node[n->next] : NULL;
}

const tr_json_node *tr_json_get(const tr_json *j, const tr_json_node *obj, const char *key)
{
    size_t n = strlen(key);
    const tr_json_node *v;
    if (!obj || obj->type != TR_JSON_OBJECT) return NULL;
    for (v = tr_json_first(j, obj); v; v = tr_json_next(j, v))
        if (v->key_len == n && !memcmp(j->text + v->key, key, n)) return v;
    return NULL;
}

const char *tr_json_key(const tr_json *j, const tr_json_node *n)
{
    return n->key ? j->text + n->key : "";
}

const char *tr_json_str(const tr_json *j, const tr_json_node *n) { return j->text + n->str; }

const char *tr_json_type_str(tr_json_type t)
{
    static const char *const text[] = { "null", "true or false", "a number", "a string", "an array",
                                        "an object" };
    return (int)t >= 0 && t <= TR_JSON_OBJECT ? text[t] : "unknown";
}

/* "config.json:12: hidden_size: 1e3 is no integer", "...: an array is no integer" */
static tr_status tri_json_not(const tr_json *j, const tr_json_node *n, const char *what)
{
    char text[160];
    const char *quote = n && n->type == TR_JSON_STR ? "\"" : "";
    if (!n) return tr_fail(j->ctx, TR_ERR_MISSING, "%s: a value is missing", j->name);
    if (n->type >= TR_JSON_ARRAY)
        snprintf(text, sizeof text, "%s is %s", tr_json_type_str(n->type), what);
    else
        snprintf(text, sizeof text, "%s%s%s is %s", quote,
                 tri_show(j->text + n->str, n->str_len).s, quote, what);
    return tri_json_say(j, n->line, n->key, n->key_len, text);
}

tr_status tr_json_int(const tr_json *j, const tr_json_node *n, int64_t *out)
{
    const char *s;
    int neg;
    uint64_t v = 0, d;
    *out = 0;
    if (!n || n->type != TR_JSON_NUM) return tri_json_not(j, n, "no integer");
    s = tr_json_str(j, n);
    neg = *s == '-';
    for (s += neg; *s; s++) {
        if (*s < '0' || *s > '9') return tri_json_not(j, n, "no integer");
        d = (uint64_t)(*s - '0');
        if (v > ((uint64_t)INT64_MAX + (uint64_t)neg - d) / 10)
            return tri_json_not(j, n, "no integer of 64 bits");
        v = v * 10 + d;
    }
    *out = !neg ? (int64_t)v : v ? -(int64_t)(v - 1) - 1 : 0;
    return TR_OK;
}

/* strtod takes its decimal point from the locale, so it is given none: 12.5e3 is handed over as
 * 125e2. Beyond 800 digits only "is there another digit but 0" can matter, because a point halfway
 * between two doubles has at most 768 of them; that is one more digit 1. */
tr_status tr_json_num(const tr_json *j, const tr_json_node *n, double *out)
{
    enum { MOST = 800 };
    char b[MOST + 40];
    const char *s;
    size_t k = 0, first;
    int64_t e = 0, x = 0;           /* exponent of the digits kept; as written */
    int point = 0, more = 0, neg;
    tri_fpenv env;
    *out = 0;
    if (!n || n->type != TR_JSON_NUM) return tri_json_not(j, n, "no number");
    s = tr_json_str(j, n);
    if (*s == '-') b[k++] = *s++;
    b[k++] = '0';
    for (first = k; *s && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') { point = 1; continue; }
        e -= point;
        if (k == first && *s == '0') continue;      /* leading zeros carry nothing */
        if (k - first < MOST) b[k++] = *s;
        else { more |= *s != '0'; e++; }
    }
    if (more) { b[k++] = '1'; e--; }
    if (*s) {
        s++;
        neg = *s == '-';
        s += *s == '-' || *s == '+';
        for (; *s; s++) if (x < 1000000000000) x = x * 10 + (*s - '0');
        e += neg ? -x : x;
    }
    snprintf(b + k, sizeof b - k, "e%lld", (long long)e);
    env = tri_os_fp_begin();
    *out = strtod(b, NULL);
    tri_os_fp_end(env);
    if (!(*out - *out == 0)) {
        *out = 0;
        return tri_json_not(j, n, "beyond the range of binary64");
    }
    return TR_OK;
}

tr_status tr_json_bool(const tr_json *j, const tr_json_node *n, int *out)
{
    *out = 0;
    if (!n || n->type != TR_JSON_BOOL) return tri_json_not(j, n, "neither true nor false");
    *out = tr_json_str(j, n)[0] == 't';
    return TR_OK;
}

/* ============================================================================
 * 24. Safetensors {st}
 *
 *     byte 0    H, the length of the header: 8 bytes, little-endian
 *          8    the header: H bytes of JSON that begin with '{' and may end in blanks
 *        8+H    the data area, to the end of the file
 *
 *     { "__metadata__": { "format": "pt" },                        optional; strings to strings
 *       "a.weight": { "dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12] },
 *       "a.scale":  { "dtype": "F32",  "shape": [],     "data_offsets": [12, 16] } }
 *
 * What holds for every file that opens:
 *   (1) 8 + H is at most the file's size, and H at most 512 MiB;
 *   (2) an entry has these three members and no other, its dtype is a tr_dtype, its name holds
 *       no control character, and no name occurs twice;
 *   (3) begin <= end, and end - begin is the product of the shape times the bits of an element, in
 *       whole bytes;
 *   (4) offsets count from the data area, whose end no tensor passes;
 *   (5) tensors do not overlap and, unless lenient, leave no byte of the data area out.
 * A shape of [] is one number; a 0 in a shape is no bytes. F4 counts elements, two in a byte.
 *
 * Traps: nothing in the format aligns data. Today's writers pad the header to 8 bytes and sort by
 * element size; older ones did neither, and a double at an odd address must not be read in place.
 * Such tensors are copied when the file is opened (`copied` counts their bytes).
 * ========================================================================= */

#define TRI_ST_HEADER_MAX ((uint64_t)512 << 20)

/* The numbers of array a into v, none negative. */
static tr_status tri_st_ints(const tr_json *j, const tr_json_node *a, int64_t *v)
{
    const tr_json_node *x;
    for (x = tr_json_first(j, a); x; x = tr_json_next(j, x), v++) {
        TRI_TRY(tr_json_int(j, x, v));
        if (*v < 0)
            return tr_fail(j->ctx, TR_ERR_FORMAT, "%s holds %lld", tr_json_key(j, a),
                           (long long)*v);
    }
    return TR_OK;
}

/* (3): the product of the shape times bits / 8. Zeros count as one while the product is checked:
 * strides are products of the dimensions behind them, and must not overflow either. */
static tr_status tri_st_bytes(tr_ctx *ctx, size_t *bytes, const tr_view *v)
{
    int64_t n = 1, bits = tr_dtype_get(v->dtype)->bits;
    int empty = 0;
    for (int k = 0; k < v->rank; k++) {
        if (v->shape[k] == 0) { empty = 1; continue; }
        if (v->shape[k] > INT64_MAX / bits / n)
            return tr_fail(ctx, TR_ERR_RANGE, "the product of its shape overflows");
        n *= v->shape[k];
    }
    if (empty) n = 0;
    if (n * bits % 8)
        return tr_fail(ctx, TR_ERR_SHAPE, "%lld elements of %lld bits do not fill bytes",
                       (long long)n, (long long)bits);
    if ((uint64_t)(n * bits / 8) > SIZE_MAX / 4)
        return tr_fail(ctx, TR_ERR_RANGE, "too large for this machine");
    *bytes = (size_t)(n * bits / 8);
    return TR_OK;
}

/* (2): the three members of a tensor's description. */
static tr_status tri_st_fields(const tr_json *j, const tr_json_node *m,
                               const tr_json_node *field[3])
{
    static const char *const name[3] = { "dtype", "shape", "data_offsets" };
    static const tr_json_type type[3] = { TR_JSON_STR, TR_JSON_ARRAY, TR_JSON_ARRAY };
    const tr_json_node *x;
    if (m->type != TR_JSON_OBJECT)
        return tr_fail(j->ctx, TR_ERR_FORMAT, "its description is %s", tr_json_type_str(m->type));
    for (const char *c = tr_json_key(j, m); *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return tr_fail(j->ctx, TR_ERR_FORMAT, "a control character in its name");
    for (int i = 0; i < 3; i++) field[i] = NULL;
    for (x = tr_json_first(j, m); x; x = tr_json_next(j, x)) {
        int i = 0;
        while (i < 3 && strcmp(tr_json_key(j, x), name[i])) i++;
        if (i == 3)
            return tr_fail(j->ctx, TR_ERR_FORMAT, "unknown member \"%s\"",
                           tri_show(tr_json_key(j, x), x->key_len).s);
        if (x->type != type[i])
            return tr_fail(j->ctx, TR_ERR_FORMAT, "%s is %s", name[i], tr_json_type_str(x->type));
        field[i] = x;
    }
    for (int i = 0; i < 3; i++)
        if (!field[i]) return tr_fail(j->ctx, TR_ERR_FORMAT, "no %s", name[i]);
    return TR_OK;
}

/* Member m of the header as e; the data pointer comes later. */
static tr_status tri_st_member(const tr_json *j, const tr_json_node *m, tr_st_entry *e)
{
    const tr_json_node *field[3];
    int64_t shape[TR_MAX_RANK], offset[2];
    tr_dtype dtype = TR_U8;
    size_t bytes;
    e->name = tr_json_key(j, m);
    TRI_TRY(tri_st_fields(j, m, field));
    if (tr_dtype_parse(j->ctx, &dtype, tr_json_str(j, field[0]), field[0]->str_len) != TR_OK)
        return tr_fail(j->ctx, TR_ERR_DTYPE, "unknown dtype \"%s\"",
                       tri_show(tr_json_str(j, field[0]), field[0]->str_len).s);
    if (field[1]->count > TR_MAX_RANK)
        return tr_fail(j->ctx, TR_ERR_UNSUPPORTED, "%u dimensions; at most %d are read",
                       (unsigned)field[1]->count, TR_MAX_RANK);
    if (field[2]->count != 2)
        return tr_fail(j->ctx, TR_ERR_FORMAT, "data_offsets holds %u numbers, not 2",
                       (unsigned)field[2]->count);
    TRI_TRY(tri_st_ints(j, field[1], shape));
    TRI_TRY(tri_st_ints(j, field[2], offset));
    e->view = tr_view_of(NULL, dtype, 0, NULL);
    e->view.rank = (int)field[1]->count;
    memcpy(e->view.shape, shape, (size_t)e->view.rank * sizeof *shape);
    TRI_TRY(tri_st_bytes(j->ctx, &bytes, &e->view));
    e->view = tr_view_of(NULL, dtype, e->view.rank, shape);
    if (offset[0] > offset[1] || (uint64_t)(offset[1] - offset[0]) != bytes)
        return tr_fail(j->ctx, TR_ERR_FORMAT, "data_offsets are [%lld, %lld], but type and shape "
                       "need %llu bytes", (long long)offset[0], (long long)offset[1],
                       (unsigned long long)bytes);
    if ((uint64_t)offset[1] > SIZE_MAX / 2)     /* of 32 bits */
        return tr_fail(j->ctx, TR_ERR_RANGE, "too large for this machine");
    e->begin = (size_t)offset[0];
    e->bytes = bytes;
    return TR_OK;
}

/* (1), and where the data area begins. */
static tr_status tri_st_length(tr_ctx *ctx, tr_st *f)
{
    uint64_t h = 0, size = f->map_bytes;
    if (size < 8)
        return tr_fail(ctx, TR_ERR_FORMAT, "%llu bytes are too few for a safetensors file",
                       (unsigned long long)size);
    for (int k = 7; k >= 0; k--) h = h << 8 | f->map[k];
    if (h > size - 8)
        return tr_fail(ctx, TR_ERR_FORMAT, "a header of %llu bytes in a file of %llu: truncated, "
                       "or no safetensors file", (unsigned long long)h, (unsigned long long)size);
    if (h > TRI_ST_HEADER_MAX)
        return tr_fail(ctx, TR_ERR_FORMAT, "a header of %llu bytes; at most %llu are read",
                       (unsigned long long)h, (unsigned long long)TRI_ST_HEADER_MAX);
    if (h == 0 || f->map[8] != '{')
        return tr_fail(ctx, TR_ERR_FORMAT, "no '{' where the header begins: no safetensors file");
    f->data_at = 8 + (size_t)h;
    return TR_OK;
}

/* (4) and (5), over entries in order of offset. */
static tr_status tri_st_tile(tr_ctx *ctx, tr_st *f, int lenient)
{
    size_t data = f->map_bytes - f->data_at, at = 0;
    const tr_st_entry *e, *end = f->entry + f->n, *last = f->entry;
    for (e = f->entry; e < end; e++)
        if (e->begin + e->bytes > last->begin + last->bytes) last = e;
    if (last < end && last->begin + last->bytes > data)
        return tr_fail(ctx, TR_ERR_FORMAT, "truncated: its tensors need a file of %llu bytes, and "
                       "it has %llu; \"%s\" ends beyond",
                       (unsigned long long)(f->data_at + last->begin + last->bytes),
                       (unsigned long long)f->map_bytes, last->name);
    for (e = f->entry; e < end; e++) {
        if (e->begin < at)
            return tr_fail(ctx, TR_ERR_FORMAT, "tensors \"%s\" and \"%s\" overlap at byte %llu of "
                           "the data", e[-1].name, e->name, (unsigned long long)e->begin);
        if (e->begin > at && !lenient)
            return tr_fail(ctx, TR_ERR_FORMAT, "a hole: bytes %llu to %llu of the data, before "
                           "tensor \"%s\", are in no tensor", (unsigned long long)at,
                           (unsigned long long)e->begin, e->name);
        f->holes += e->begin - at;
        at = e->begin + e->bytes;
    }
    f->trailing = data - at;
    if (f->trailing && !lenient)
        return tr_fail(ctx, TR_ERR_FORMAT, "%llu trailing bytes after the last tensor",
                       (unsigned long long)f->trailing);
    if (f->holes || f->trailing)
        tr_warn(ctx, "%s: %llu bytes between tensors and %llu trailing bytes are in no tensor",
                f->path, (unsigned long long)f->holes, (unsigned long long)f->trailing);
    return TR_OK;
}

static tr_status tri_st_meta_ok(const tr_json *j, const tr_json_node *m)
{
    const tr_json_node *x;
    if (m->type != TR_JSON_OBJECT)
        return tr_fail(j->ctx, TR_ERR_FORMAT, "__metadata__ is %s", tr_json_type_str(m->type));
    for (x = tr_json_first(j, m); x; x = tr_json_next(j, x))
        if (x->type != TR_JSON_STR)
            return tr_fail(j->ctx, TR_ERR_FORMAT, "__metadata__: \"%s\" is %s, not a string",
                           tri_show(tr_json_key(j, x), x->key_len).s, tr_json_type_str(x->type));
    return TR_OK;
}

static int tri_st_by_begin(const void *user, const void *a, const void *b)
{
    const tr_st_entry *x = (const tr_st_entry *)a, *y = (const tr_st_entry *)b;
    (void)user;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;      /* empty ones come first */
}

static int tri_st_by_name(const void *user, const void *a, const void *b)
{
    (void)user;
    return strcmp((*(tr_st_entry *const *)a)->name, (*(tr_st_entry *const *)b)->name);
}

/* Entries come in the header's order; now in order of offset, and by_name. */
static tr_status tri_st_arrange(tr_ctx *ctx, tr_st *f)
{
    void *p;
    TRI_TRY(tri_sort(ctx, f->entry, f->n, sizeof *f->entry, tri_st_by_begin, NULL));
    TRI_TRY(tri_alloc_n(ctx, &p, f->n, sizeof *f->by_name));
    f->by_name = (tr_st_entry **)p;
    for (int64_t i = 0; i < f->n; i++) f->by_name[i] = &f->entry[i];
    return tri_sort(ctx, f->by_name, f->n, sizeof *f->by_name, tri_st_by_name, NULL);
}

/* Everything but the data pointers, from a map of which only the header need be there. */
static tr_status tri_st_header(tr_ctx *ctx, tr_st *f, int lenient)
{
    const tr_json *j = &f->header;
    const tr_json_node *m;
    void *p;
    TRI_TRY(tri_st_length(ctx, f));
    TRI_TRY(tr_json_parse(ctx, &f->header, "header", (const char *)f->map + 8, f->data_at - 8));
    TRI_TRY(tri_alloc_n(ctx, &p, (int64_t)j->node->count + 1, sizeof *f->entry));   /* never NULL */
    f->entry = (tr_st_entry *)p;
    for (m = tr_json_first(j, j->node); m; m = tr_json_next(j, m)) {
        tr_status s;
        if (!strcmp(tr_json_key(j, m), "__metadata__")) {
            TRI_TRY(tri_st_meta_ok(j, m));
            continue;
        }
        s = tri_st_member(j, m, &f->entry[f->n++]);
        if (s != TR_OK)
            return tr_fail_in(ctx, s, "tensor \"%s\"", tri_show(tr_json_key(j, m), m->key_len).s);
    }
    TRI_TRY(tri_st_arrange(ctx, f));
    return tri_st_tile(ctx, f, lenient);
}

/* Bytes to set aside for a tensor that lies off its element's alignment, a multiple of TRI_ALIGN;
 * 0 if it can be read where it is. */
static size_t tri_st_off(const tr_st_entry *e)
{
    int size = tr_dtype_get(e->view.dtype)->bits / 8;
    if (size < 2 || (uintptr_t)e->view.data % (unsigned)size == 0) return 0;
    return (e->bytes + TRI_ALIGN - 1) / TRI_ALIGN * TRI_ALIGN;
}

static tr_status tri_st_place(tr_ctx *ctx, tr_st *f)
{
    tr_st_entry *e, *end = f->entry + f->n;
    size_t at = 0, off;
    void *p;
    for (e = f->entry; e < end; e++) {
        e->view.data = f->map + f->data_at + e->begin;
        at += tri_st_off(e);
    }
    TRI_TRY(tr_alloc(ctx, &p, at));
    f->copy = (unsigned char *)p;
    f->copy_bytes = at;
    for (e = f->entry, at = 0; e < end; e++, at += off) {
        off = tri_st_off(e);
        if (!off) continue;
        memcpy(f->copy + at, e->view.data, e->bytes);
        e->view.data = f->copy + at;
        f->copied += e->bytes;
    }
    return TR_OK;
}

tr_status tr_st_open(tr_ctx *ctx, tr_st *out, const char *path, int lenient)
{
    tr_status s;
    memset(out, 0, sizeof *out);
    s = tri_strdup(ctx, &out->path, path, strlen(path));
    if (s == TR_OK) s = tri_os_map(ctx, path, &out->map, &out->map_bytes);
    if (s == TR_OK) {
        s = tri_st_header(ctx, out, lenient);
        if (s == TR_OK) s = tri_st_place(ctx, out);
        if (s != TR_OK) tr_fail_in(ctx, s, "%s", path);
    }
    if (s != TR_OK) tr_st_close(ctx, out);
    return s;
}

void tr_st_close(tr_ctx *ctx, tr_st *f)
{
    tri_os_unmap(ctx, f->map, f->map_bytes);
    tr_json_free(&f->header);
    tr_free(ctx, f->entry);
    tr_free(ctx, f->by_name);
    tr_free(ctx, f->copy);
    tr_free(ctx, f->path);
    memset(f, 0, sizeof *f);
}

/* By halving: v [n] is sorted by name. */
static tr_st_entry *tri_st_search(tr_st_entry *const *v, int64_t n, const char *name)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int c = strcmp(v[mid]->name, name);
        if (c == 0) return v[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

const tr_st_entry *tr_st_find(const tr_st *f, const char *name)
{
    return tri_st_search(f->by_name, f->n, name);
}

const char *tr_st_meta(const tr_st *f, const char *key)
{
    const tr_json_node *m = tr_json_get(&f->header, f->header.node, "__metadata__");
    const tr_json_node *x = tr_json_get(&f->header, m, key);
    return x ? tr_json_str(&f->header, x) : NULL;
}

/* ---- a folder of shards ----
 *
 * model.safetensors.index.json:
 *     { "metadata": { "total_size": 1560860324864 },
 *       "weight_map": { "a.weight": "model-00017-of-000096.safetensors", ... } }
 *
 * With an index its files are read, and each must hold the tensors that the index puts there, no
 * more and no fewer. Without one, model.safetensors; else all of model-I-of-N. I and N have five
 * or six digits, not always the same number of them. */

typedef struct tri_seen { char *name; int used; } tri_seen;     /* a *.safetensors of the folder */
typedef struct tri_want { const char *name; int64_t first, n; } tri_want;   /* a shard to read */

typedef struct tri_folder {
    const char *dir;
    tri_seen *seen;  int64_t n_seen, seen_cap;      /* sorted by name */
    tri_want *want;  int64_t n_want, want_cap;      /* its members are member[first .. first + n) */
    char     *absent;                               /* the name of a shard that is not there */
    int       has_index;
    tr_json   index;
    const tr_json_node *map;                        /* weight_map; NULL without an index */
    const tr_json_node **member;                    /* [map->count] by file, then by tensor */
} tri_folder;

static int tri_ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* One name of the folder: a tri_os_name_fn. */
static tr_status tri_folder_name(void *user, tr_ctx *ctx, const char *name)
{
    tri_folder *d = (tri_folder *)user;
    void *p = d->seen;
    tr_status s;
    if (!strcmp(name, "model.safetensors.index.json")) d->has_index = 1;
    if (!tri_ends_in(name, ".safetensors")) return TR_OK;
    s = tri_grow(ctx, &p, &d->seen_cap, d->n_seen, sizeof *d->seen);
    d->seen = (tri_seen *)p;
    if (s == TR_OK) s = tri_strdup(ctx, &d->seen[d->n_seen].name, name, strlen(name));
    if (s == TR_OK) d->n_seen++;
    return s;
}

static int tri_seen_cmp(const void *user, const void *a, const void *b)
{
    (void)user;
    return strcmp(((const tri_seen *)a)->name, ((const tri_seen *)b)->name);
}

/* What is there, sorted, since a system lists names in any order. */
static tr_status tri_folder_list(tr_ctx *ctx, tri_folder *d)
{
    TRI_TRY(tri_os_list(ctx, d->dir, tri_folder_name, d));
    return tri_sort(ctx, d->seen, d->n_seen, sizeof *d->seen, tri_seen_cmp, NULL);
}

static tri_seen *tri_folder_find(const tri_folder *d, const char *name)
{
    int64_t lo = 0, hi = d->n_seen;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int c = strcmp(d->seen[mid].name, name);
        if (c == 0) return &d->seen[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* name stays where it is. */
static tr_status tri_folder_want(tr_ctx *ctx, tri_folder *d, const char *name, int64_t first)
{
    void *p = d->want;
    tr_status s = tri_grow(ctx, &p, &d->want_cap, d->n_want, sizeof *d->want);
    d->want = (tri_want *)p;
    if (s != TR_OK) return s;
    d->want[d->n_want].name = name;
    d->want[d->n_want].first = first;
    d->want[d->n_want++].n = 0;
    return TR_OK;
}

/* An index may name files beside itself, and no others. */
static tr_status tri_shard_name_ok(const tr_json *j, const tr_json_node *m)
{
    const char *name = tr_json_str(j, m);
    int ok = m->type == TR_JSON_STR && tri_ends_in(name, ".safetensors") && !strstr(name, "..") &&
             !strpbrk(name, "/\\:");
    for (const char *c = name; ok && *c; c++) ok = (unsigned char)*c >= 0x20 && *c != 0x7f;
    if (ok) return TR_OK;
    return tr_fail(j->ctx, TR_ERR_FORMAT, "%s:%d: %s: \"%s\" is no name of a .safetensors file "
                   "beside the index", j->name, (int)m->line,
                   tri_show(tr_json_key(j, m), m->key_len).s, tri_show(name, m->str_len).s);
}

static int tri_member_cmp(const void *user, const void *a, const void *b)
{
    const tr_json *j = (const tr_json *)user;
    const tr_json_node *x = *(const tr_json_node *const *)a, *y = *(const tr_json_node *const *)b;
    int c = strcmp(tr_json_str(j, x), tr_json_str(j, y));
    return c ? c : strcmp(tr_json_key(j, x), tr_json_key(j, y));
}

/* Sorted by file, the index's members fall into one run a shard. */
static tr_status tri_folder_index(tr_ctx *ctx, tri_folder *d, const char *path)
{
    const tr_json *j = &d->index;
    const tr_json_node *m;
    void *p;
    int64_t n = 0;
    TRI_TRY(tr_json_load(ctx, &d->index, path));
    for (m = tr_json_first(j, j->node); m; m = tr_json_next(j, m))
        if (strcmp(tr_json_key(j, m), "weight_map") && strcmp(tr_json_key(j, m), "metadata"))
            tr_warn(ctx, "%s: \"%s\" is not used", path, tri_show(tr_json_key(j, m), m->key_len).s);
    m = tr_json_get(j, j->node, "weight_map");
    if (!m || m->type != TR_JSON_OBJECT || m->count == 0)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: weight_map is %s", path,
                       !m ? "missing" : m->type == TR_JSON_OBJECT ? "empty" : "no object");
    d->map = m;
    TRI_TRY(tri_alloc_n(ctx, &p, m->count, sizeof *d->member));
    d->member = (const tr_json_node **)p;
    for (m = tr_json_first(j, d->map); m; m = tr_json_next(j, m)) {
        TRI_TRY(tri_shard_name_ok(j, m));
        d->member[n++] = m;
    }
    TRI_TRY(tri_sort(ctx, (void *)d->member, n, sizeof *d->member, tri_member_cmp, j));
    for (int64_t i = 0; i < n; i++) {
        const char *file = tr_json_str(j, d->member[i]);
        if (i == 0 || strcmp(d->want[d->n_want - 1].name, file))
            TRI_TRY(tri_folder_want(ctx, d, file, i));
        d->want[d->n_want - 1].n++;
    }
    return TR_OK;
}

/* The 17 and the 96 of "model-00017-of-000096.safetensors"; 0 if it is no such name. */
static int tri_shard_number(const char *name, int64_t *i, int64_t *of)
{
    size_t a, b;
    if (strncmp(name, "model-", 6)) return 0;
    a = tri_digits(name + 6);
    if ((a != 5 && a != 6) || strncmp(name + 6 + a, "-of-", 4)) return 0;
    b = tri_digits(name + 10 + a);
    if ((b != 5 && b != 6) || strcmp(name + 10 + a + b, ".safetensors")) return 0;
    *i = strtol(name + 6, NULL, 10);
    *of = strtol(name + 10 + a, NULL, 10);
    return 1;
}

/* All of model-I-of-N. The first that is not there gets the name it should have. */
static tr_status tri_folder_numbered(tr_ctx *ctx, tri_folder *d)
{
    const char *one = NULL;
    int64_t i = 0, of = 0, n = 0, k = 0;
    for (int64_t f = 0; f < d->n_seen; f++) {
        const char *name = d->seen[f].name;
        if (!tri_shard_number(name, &i, &of)) continue;
        if (!one) { one = name; n = of; }
        for (; k < n; k++) TRI_TRY(tri_folder_want(ctx, d, NULL, 0));
        if (of != n)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: %s and %s belong to different sets, and no "
                           "index tells which is meant", d->dir, one, name);
        if (i < 1 || i > n)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: %s is number %lld of %lld", d->dir, name,
                           (long long)i, (long long)n);
        if (d->want[i - 1].name)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: %s and %s have the same number", d->dir,
                           d->want[i - 1].name, name);
        d->want[i - 1].name = name;
    }
    if (!one)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: no model.safetensors.index.json, no "
                       "model.safetensors and no model-*-of-*.safetensors in this folder", d->dir);
    TRI_TRY(tri_strdup(ctx, &d->absent, one, strlen(one)));
    for (k = n; k > 0; k--) if (!d->want[k - 1].name) {
        size_t digits = tri_digits(one + 6);
        snprintf(d->absent, strlen(one) + 1, "model-%0*lld%s", (int)digits, (long long)k,
                 one + 6 + digits);
        d->want[k - 1].name = d->absent;
    }
    return TR_OK;
}

/* Every wanted file is there; those that are there and not wanted are named in a warning. */
static tr_status tri_folder_check(tr_ctx *ctx, tri_folder *d)
{
    const char *missing = NULL;
    char line[512] = "";
    int64_t here = 0, others = 0;
    size_t n = 0;
    for (int64_t i = 0; i < d->n_want; i++) {
        tri_seen *f = tri_folder_find(d, d->want[i].name);
        if (f) { f->used = 1; here++; }
        else if (!missing) missing = d->want[i].name;
    }
    if (missing)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: %lld of %lld shards are here; %s is missing%s",
                       d->dir, (long long)here, (long long)d->n_want, missing,
                       here + 1 < d->n_want ? ", and others are" : "");
    for (int64_t i = 0; i < d->n_seen; i++) {
        if (d->seen[i].used) continue;
        others++;
        if (n < sizeof line)
            n += (size_t)snprintf(line + n, sizeof line - n, " %s", d->seen[i].name);
    }
    if (others)
        tr_warn(ctx, "%s: %lld other .safetensors here %s not read:%s%s", d->dir,
                (long long)others, others == 1 ? "is" : "are", line, n < sizeof line ? "" : "...");
    return TR_OK;
}

/* Which files are to be read, and that they are there. */
static tr_status tri_folder_plan(tr_ctx *ctx, tri_folder *d)
{
    char *path;
    tr_status s;
    TRI_TRY(tri_folder_list(ctx, d));
    if (d->has_index) {
        TRI_TRY(tri_concat(ctx, &path, d->dir, "/", "model.safetensors.index.json"));
        s = tri_folder_index(ctx, d, path);
        tr_free(ctx, path);
    } else if (tri_folder_find(d, "model.safetensors"))
        s = tri_folder_want(ctx, d, "model.safetensors", 0);
    else
        s = tri_folder_numbered(ctx, d);
    return s == TR_OK ? tri_folder_check(ctx, d) : s;
}

/* The tensors of f are those that the index puts there. Both lists are sorted: walk them. */
static tr_status tri_folder_match(tr_ctx *ctx, const tri_folder *d, const tri_want *w,
                                  const tr_st *f)
{
    const tr_json *j = &d->index;
    const tr_json_node *m;
    int64_t i = 0, k = 0;
    while (i < w->n || k < f->n) {
        const char *a = i < w->n ? tr_json_key(j, d->member[w->first + i]) : NULL;
        const char *b = k < f->n ? f->by_name[k]->name : NULL;
        int c = !a ? 1 : !b ? -1 : strcmp(a, b);
        if (c < 0)
            return tr_fail(ctx, TR_ERR_MISSING, "%s: tensor \"%s\" is not in this file, where the "
                           "index puts it", f->path, a);
        if (c > 0) {
            m = tr_json_get(j, d->map, b);
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: tensor \"%s\" is in this file, but the index "
                           "%s%s", f->path, b, m ? "puts it into " : "does not know it",
                           m ? tr_json_str(j, m) : "");
        }
        i++;
        k++;
    }
    return TR_OK;
}

/* All entries of all files, sorted by name; none twice. */
static tr_status tri_shards_merge(tr_ctx *ctx, tr_shards *s)
{
    int64_t n = 0;
    void *p;
    for (int64_t i = 0; i < s->files; i++) n += s->file[i].n;
    TRI_TRY(tri_alloc_n(ctx, &p, n, sizeof *s->entry));
    s->entry = (tr_st_entry **)p;
    for (int64_t i = 0; i < s->files; i++)
        for (int64_t k = 0; k < s->file[i].n; k++) {
            tr_st_entry *e = s->file[i].by_name[k];
            e->file = (int32_t)i;
            s->bytes += e->bytes;       /* no overflow: the files are mapped */
            s->entry[s->n++] = e;
        }
    TRI_TRY(tri_sort(ctx, s->entry, n, sizeof *s->entry, tri_st_by_name, NULL));
    for (int64_t i = 1; i < n; i++) {
        const tr_st_entry *e = s->entry[i], *before = s->entry[i - 1];
        if (!strcmp(before->name, e->name))
            return tr_fail(ctx, TR_ERR_FORMAT, "tensor \"%s\" is in %s and in %s", e->name,
                           s->file[before->file].path, s->file[e->file].path);
    }
    return TR_OK;
}

/* metadata.total_size, where it is given, is the sum of all tensors' bytes. Some writers give it
 * a fraction of 0. */
static tr_status tri_shards_total(tr_ctx *ctx, const tri_folder *d, const tr_shards *s, int lenient)
{
    const tr_json *j = &d->index;
    const tr_json_node *m = d->map ? tr_json_get(j, j->node, "metadata") : NULL;
    const tr_json_node *x = tr_json_get(j, m, "total_size");
    double v;
    if (m && m->type != TR_JSON_OBJECT)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s:%d: metadata is %s", j->name, (int)m->line,
                       tr_json_type_str(m->type));
    if (!x) return TR_OK;
    TRI_TRY(tr_json_num(j, x, &v));
    if (v == (double)s->bytes) return TR_OK;
    tr_fail(ctx, TR_ERR_FORMAT, "%s:%d: total_size is %s, but the tensors have %llu bytes", j->name,
            (int)x->line, tr_json_str(j, x), (unsigned long long)s->bytes);
    if (!lenient) return TR_ERR_FORMAT;
    tr_warn(ctx, "%s", tr_err_last(ctx));
    tr_err_clear(ctx);
    return TR_OK;
}

static tr_status tri_shards_read(tr_ctx *ctx, tr_shards *out, tri_folder *d, int lenient)
{
    void *p;
    char *path;
    tr_status s;
    TRI_TRY(tri_strdup(ctx, &out->dir, d->dir, strlen(d->dir)));
    TRI_TRY(tri_folder_plan(ctx, d));
    TRI_TRY(tri_alloc_n(ctx, &p, d->n_want, sizeof *out->file));
    out->file = (tr_st *)p;
    for (int64_t i = 0; i < d->n_want; i++) {
        TRI_TRY(tri_concat(ctx, &path, d->dir, "/", d->want[i].name));
        s = tr_st_open(ctx, &out->file[i], path, lenient);
        tr_free(ctx, path);
        if (s != TR_OK) return s;
        out->files++;
        if (d->map) TRI_TRY(tri_folder_match(ctx, d, &d->want[i], &out->file[i]));
    }
    TRI_TRY(tri_shards_merge(ctx, out));
    return tri_shards_total(ctx, d, out, lenient);
}

tr_status tr_shards_open(tr_ctx *ctx, tr_shards *out, const char *dir, int lenient)
{
    tri_folder d;
    tr_status s;
    memset(out, 0, sizeof *out);
    memset(&d, 0, sizeof d);
    d.dir = dir;
    s = tri_shards_read(ctx, out, &d, lenient);
    for (int64_t i = 0; i < d.n_seen; i++) tr_free(ctx, d.seen[i].name);
    tr_free(ctx, d.seen);
    tr_free(ctx, d.want);
    tr_free(ctx, d.absent);
    tr_free(ctx, (void *)d.member);
    tr_json_free(&d.index);
    if (s != TR_OK) tr_shards_close(ctx, out);
    return s;
}

void tr_shards_close(tr_ctx *ctx, tr_shards *s)
{
    for (int64_t i = 0; i < s->files; i++) tr_st_close(ctx, &s->file[i]);
    tr_free(ctx, s->file);
    tr_free(ctx, s->entry);
    tr_free(ctx, s->dir);
    memset(s, 0, sizeof *s);
}

static tr_st_entry *tri_shards_get(const tr_shards *s, const char *name)
{
    return tri_st_search(s->entry, s->n, name);
}

const tr_st_entry *tr_shards_find(const tr_shards *s, const char *name)
{
    return tri_shards_get(s, name);
}

/* ---- writing ----
 *
 * {"__metadata__":{"k":"v"},"NAME":{"dtype":"F64","shape":[2,3],"data_offsets":[0,48]}} and blanks
 * up to a multiple of 8, in the order given, so that equal input gives equal files. The header is
 * composed and then read: what the reader would refuse is never written. */

static void tri_text_quote(tri_text *t, const char *s)
{
    tri_text_add(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20) tri_text_add(t, "\\u%04x", (unsigned)c);
        else tri_text_add(t, c == '"' || c == '\\' ? "\\%c" : "%c", *s);
    }
    tri_text_add(t, "\"");
}

static size_t tri_item_bytes(const tr_st_item *it)          /* checked by tri_item_ok */
{
    return (size_t)(tr_view_numel(it->view) * tr_dtype_get(it->view.dtype)->bits / 8);
}

static void tri_put_header(tri_text *t, const tr_st_item *item, int64_t n,
                           const tr_st_meta_item *meta, int64_t n_meta)
{
    size_t at = 0;
    tri_text_add(t, "{");
    for (int64_t i = 0; i < n_meta; i++) {
        tri_text_add(t, i ? "," : "\"__metadata__\":{");
        tri_text_quote(t, meta[i].key);
        tri_text_add(t, ":");
        tri_text_quote(t, meta[i].value);
    }
    if (n_meta) tri_text_add(t, n ? "}," : "}");
    for (int64_t i = 0; i < n; i++) {
        const tr_view *v = &item[i].view;
        if (i) tri_text_add(t, ",");
        tri_text_quote(t, item[i].name);
        tri_text_add(t, ":{\"dtype\":\"%s\",\"shape\":[", tr_dtype_get(v->dtype)->name);
        for (int k = 0; k < v->rank; k++)
            tri_text_add(t, k ? ",%lld" : "%lld", (long long)v->shape[k]);
        tri_text_add(t, "],\"data_offsets\":[%llu,", (unsigned long long)at);
        at += tri_item_bytes(&item[i]);
        tri_text_add(t, "%llu]}", (unsigned long long)at);
    }
    tri_text_add(t, "}");
    tri_text_add(t, "%*s", (int)((8 - t->n % 8) % 8), "");
}

/* Can this view be written? After this its elements can be counted without overflow. */
static tr_status tri_item_ok(tr_ctx *ctx, const tr_st_item *it)
{
    size_t bytes;
    if (!tr_dtype_get(it->view.dtype)) return tr_fail(ctx, TR_ERR_DTYPE, "no element type");
    if (tr_view_is_none(it->view)) return tr_fail(ctx, TR_ERR_ARG, "an absent view");
    TRI_TRY(tri_st_bytes(ctx, &bytes, &it->view));
    if (!tr_view_is_contig(it->view)) return tr_fail(ctx, TR_ERR_ARG, "not contiguous");
    if (!it->view.data && bytes) return tr_fail(ctx, TR_ERR_ARG, "a planned view, without data");
    return TR_OK;
}

/* *head: the length and the header, owned by the caller on failure too. */
static tr_status tri_st_compose(tr_ctx *ctx, tri_text *head, const tr_st_item *item, int64_t n,
                                const tr_st_meta_item *meta, int64_t n_meta)
{
    tr_st check;
    size_t bytes;
    tr_status s;
    *head = tri_text_begin(ctx);
    memset(&check, 0, sizeof check);
    tri_text_add(head, "%8s", "");              /* the place of the length */
    tri_put_header(head, item, n, meta, n_meta);
    if (head->status != TR_OK) return head->status;
    for (int k = 0; k < 8; k++) head->s[k] = (char)((uint64_t)(head->n - 8) >> 8 * k & 0xff);
    bytes = head->n;
    for (int64_t i = 0; i < n; i++)
        TRI_TRY(tr_size_add(ctx, &bytes, bytes, tri_item_bytes(&item[i])));
    check.map = (unsigned char *)head->s;
    check.map_bytes = bytes;
    s = tri_st_header(ctx, &check, 0);
    check.map = NULL;
    tr_st_close(ctx, &check);
    return s;
}

/* 0, or -1 and errno. In pieces: some systems write no more than 2^31 bytes at once. */
static int tri_write(FILE *f, const void *data, size_t bytes)
{
    const char *p = (const char *)data;
    while (bytes > 0) {
        size_t k = fwrite(p, 1, bytes < (1u << 28) ? bytes : 1u << 28, f);
        if (k == 0) return -1;
        p += k;
        bytes -= k;
    }
    return 0;
}

/* A new file beside the one to be written: two programs may write the same one at a time, and the
 * last to end has it. part ends in a digit, which the first try leaves out. */
static FILE *tri_part_open(tr_ctx *ctx, char *part)
{
    char *digit = part + strlen(part) - 1;
    FILE *f = NULL;
    errno = EEXIST;
    for (char c = '1'; !f && errno == EEXIST && c <= '9'; c++) {
        if (c == '2')
            tr_warn(ctx, "%s: exists; another program writes it, or was stopped and left it", part);
        *digit = c == '1' ? '\0' : c;
        f = fopen(part, "wbx");
    }
    if (!f) (void)tri_os_fail(ctx, part, "cannot be written");
    return f;
}

/* Everything to f, the file `part`, and part in the place of path; nothing is left of it on
 * failure. */
static tr_status tri_st_commit(tr_ctx *ctx, const char *path, const char *part, const char *aside,
                               FILE *f, const tri_text *head, const tr_st_item *item, int64_t n)
{
    int bad, why;
    bad = tri_write(f, head->s, head->n);
    for (int64_t i = 0; i < n && !bad; i++)
        bad = tri_write(f, item[i].view.data, tri_item_bytes(&item[i]));
    why = errno;
    if (fclose(f) && !bad) { bad = -1; why = errno; }       /* a full disk may show only now */
    if (!bad && tri_os_rename(part, path, aside)) { bad = -1; why = errno; }
    if (!bad) return TR_OK;
    remove(part);
    errno = why;
    return tri_os_fail(ctx, path, "cannot be written");
}

tr_status tr_st_write(tr_ctx *ctx, const char *path, const tr_st_item *item, int64_t n,
                      const tr_st_meta_item *meta, int64_t n_meta)
{
    tri_text head;
    char *part = NULL, *aside = NULL;
    FILE *f = NULL;
    uint64_t bytes;
    tri_kind kind = tri_os_kind(path, &bytes);
    tr_status s = TR_OK;
    if (kind != TRI_NOTHING && kind != TRI_FILE)
        return tr_fail(ctx, TR_ERR_IO, "%s: exists and is no regular file", path);
    for (int64_t i = 0; i < n; i++) {
        s = tri_item_ok(ctx, &item[i]);
        if (s != TR_OK)
            return tr_fail_in(ctx, s, "%s: tensor \"%s\"", path,
                              tri_show(item[i].name, strlen(item[i].name)).s);
    }
    s = tri_st_compose(ctx, &head, item, n, meta, n_meta);
    if (s != TR_OK) tr_fail_in(ctx, s, "%s", path);
    if (s == TR_OK) s = tri_concat(ctx, &part, path, ".part", "1");
    if (s == TR_OK) s = tri_concat(ctx, &aside, path, ".old", "");
    if (s == TR_OK && !(f = tri_part_open(ctx, part))) s = TR_ERR_IO;
    if (s == TR_OK) s = tri_st_commit(ctx, path, part, aside, f, &head, item, n);
    tr_free(ctx, head.s);
    tr_free(ctx, part);
    tr_free(ctx, aside);
    return s;
}

/* ============================================================================
 * 25. Configurations {cfg}
 *
 * A family is three tables: its keys, its tensors, its facts. What follows them are the readers of
 * these tables, one pass each:
 *
 *     text -> JSON -> rows of keys that are there -> rows that are not -> facts, sizes that follow
 *          -> keys that are wrong together -> rope, formats -> a list of layers
 *
 * and the other direction: the small config that a table describes, and every tensor it asks for.
 * The shape and the presence of a tensor are small expressions, evaluated for each layer:
 *
 *     sum = product {+ product}   product = factor {* factor}   factor = {!} name | digit | (sum)
 *
 * How a row becomes a weight: tri_each_row makes its name and shape, tri_bind (in the model's
 * chapter) finds the tensor in the files and puts it in its place in the layer.
 *
 * Traps. null is absence, not a value. The lists of layers count from 1, all else from 0. One
 * number may have three names (rope_scaling, rope_parameters, the outer config), which must agree.
 * A key that a family ignores can mean something in another: DeepSeek's head_dim is neither of its
 * two. A default is the vendor's code of one version; it is taken only where a row says so, and a
 * key nobody knows is an error, because the vendor's code may know it.
 * ========================================================================= */

#define TRI_F(field) offsetof(tr_config, field)

typedef enum tri_key_class {
    TRI_REQUIRED,
    TRI_OPTIONAL,               /* value: what absence (or null) means; NULL: the field stays 0 */
    TRI_ALIAS,                  /* another path to a field; must agree if both are there */
    TRI_ONLY,                   /* value: what is allowed (split by |), and what absence means */
    TRI_EXACT,                  /* the same, but must be there */
    TRI_INERT                   /* value: keys of the object `path`, split by blanks */
} tri_key_class;

typedef enum tri_key_type {
    TRI_ANY, TRI_OBJECT, TRI_SIZE, TRI_COUNT, TRI_POSITIVE, TRI_NEGATIVE, TRI_NUMBER, TRI_BOOL,
    TRI_STRING, TRI_INTS, TRI_IDS, TRI_STRINGS
} tri_key_type;

#define TRI_MAX_SIZE 16777216   /* the largest extent a config may name */
#define TRI_MAX_LAYERS 4096
#define TRI_MAX_EXPERTS 65536   /* of one layer */

typedef struct tri_key {
    const char   *path;         /* dots lead into objects */
    tri_key_class cls;
    tri_key_type  type;
    size_t        field;
    const char   *value;
    const char   *tiny;         /* JSON in a tiny config; "=path" copies; NULL: left out */
} tri_key;

/* ---- keys ---------------------------------------------------------------- */

static const tri_key tri_keys_rope[] = {
    { "rope_theta", TRI_REQUIRED, TRI_POSITIVE, TRI_F(rope_cfg.theta), NULL, "10000" },
    { "rope_scaling.rope_type", TRI_OPTIONAL, TRI_STRING, TRI_F(rope_type), "default", NULL },
    { "rope_scaling.type", TRI_ALIAS, TRI_STRING, TRI_F(rope_type), NULL, NULL },
    { "rope_scaling.factor", TRI_OPTIONAL, TRI_POSITIVE, TRI_F(rope_cfg.factor), NULL, NULL },
    { "rope_scaling.original_max_position_embeddings", TRI_OPTIONAL, TRI_POSITIVE,
      TRI_F(rope_cfg.orig), NULL, NULL },
    { "rope_scaling.beta_fast", TRI_OPTIONAL, TRI_POSITIVE, TRI_F(rope_cfg.beta_fast), "32", NULL },
    { "rope_scaling.beta_slow", TRI_OPTIONAL, TRI_POSITIVE, TRI_F(rope_cfg.beta_slow), "1", NULL },
    { "rope_scaling.truncate", TRI_OPTIONAL, TRI_BOOL, TRI_F(rope_cfg.truncate), "true", NULL },
    { "rope_scaling.mscale", TRI_OPTIONAL, TRI_NUMBER, TRI_F(rope_cfg.mscale), NULL, NULL },
    { "rope_scaling.mscale_all_dim", TRI_OPTIONAL, TRI_NUMBER, TRI_F(rope_cfg.mscale_all_dim),
      NULL, NULL },
    { "rope_scaling.attention_factor", TRI_OPTIONAL, TRI_POSITIVE,
      TRI_F(rope_cfg.attention_factor), NULL, NULL },
    { "rope_scaling.low_freq_factor", TRI_OPTIONAL, TRI_POSITIVE, TRI_F(rope_cfg.low_freq),
      NULL, NULL },
    { "rope_scaling.high_freq_factor", TRI_OPTIONAL, TRI_POSITIVE, TRI_F(rope_cfg.high_freq),
      NULL, NULL },
    { "rope_parameters", TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { "rope_parameters.rope_theta", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.theta), NULL, NULL },
    { "rope_parameters.rope_type", TRI_ALIAS, TRI_STRING, TRI_F(rope_type), NULL, NULL },
    { "rope_parameters.type", TRI_ALIAS, TRI_STRING, TRI_F(rope_type), NULL, NULL },
    { "rope_parameters.factor", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.factor), NULL, NULL },
    { "rope_parameters.original_max_position_embeddings", TRI_ALIAS, TRI_POSITIVE,
      TRI_F(rope_cfg.orig), NULL, NULL },
    { "rope_parameters.beta_fast", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.beta_fast), NULL, NULL },
    { "rope_parameters.beta_slow", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.beta_slow), NULL, NULL },
    { "rope_parameters.truncate", TRI_ALIAS, TRI_BOOL, TRI_F(rope_cfg.truncate), NULL, NULL },
    { "rope_parameters.mscale", TRI_ALIAS, TRI_NUMBER, TRI_F(rope_cfg.mscale), NULL, NULL },
    { "rope_parameters.mscale_all_dim", TRI_ALIAS, TRI_NUMBER, TRI_F(rope_cfg.mscale_all_dim),
      NULL, NULL },
    { "rope_parameters.attention_factor", TRI_ALIAS, TRI_POSITIVE,
      TRI_F(rope_cfg.attention_factor), NULL, NULL },
    { "rope_parameters.low_freq_factor", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.low_freq),
      NULL, NULL },
    { "rope_parameters.high_freq_factor", TRI_ALIAS, TRI_POSITIVE, TRI_F(rope_cfg.high_freq),
      NULL, NULL },
    { NULL, TRI_INERT, TRI_ANY, 0, NULL, NULL }
};

static const tri_key tri_keys_llama[] = {
    { "architectures", TRI_ONLY, TRI_STRINGS, TR_NO_FIELD, "LlamaForCausalLM",
      "[\"LlamaForCausalLM\"]" },
    { "model_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "llama", "\"llama\"" },
    { "vocab_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vocab), NULL, "320" },
    { "hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(hidden), NULL, "72" },
    { "intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(ffn), NULL, "192" },
    { "num_hidden_layers", TRI_REQUIRED, TRI_SIZE, TRI_F(layers), NULL, "4" },
    { "num_attention_heads", TRI_REQUIRED, TRI_SIZE, TRI_F(heads), NULL, "9" },
    { "num_key_value_heads", TRI_OPTIONAL, TRI_SIZE, TRI_F(kv_heads), NULL, "3" },
    { "head_dim", TRI_OPTIONAL, TRI_SIZE, TRI_F(head_dim), NULL, NULL },
    { "hidden_act", TRI_EXACT, TRI_STRING, TRI_F(act), "silu", "\"silu\"" },
    { "rms_norm_eps", TRI_REQUIRED, TRI_POSITIVE, TRI_F(eps), NULL, "1e-05" },
    { "attention_bias", TRI_OPTIONAL, TRI_BOOL, TRI_F(attn_bias), "false", "false" },
    { "mlp_bias", TRI_OPTIONAL, TRI_BOOL, TRI_F(mlp_bias), "false", "false" },
    { "tie_word_embeddings", TRI_REQUIRED, TRI_BOOL, TRI_F(tie), NULL, "false" },
    { "max_position_embeddings", TRI_OPTIONAL, TRI_SIZE, TRI_F(max_pos), NULL, "8192" },
    { "rope_interleaved", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", NULL },
    { "rope_scaling", TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL, "null" },
    { "eos_token_id", TRI_OPTIONAL, TRI_IDS, TRI_F(eos), NULL, "2" },
    { "bos_token_id", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "1" },
    { "torch_dtype", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "\"bfloat16\"" },
    { "pretraining_tp", TRI_ONLY, TRI_COUNT, TR_NO_FIELD, "1", NULL },
    { "", TRI_INERT, TRI_ANY, TR_NO_FIELD, "attention_dropout initializer_range use_cache dtype "
      "pad_token_id transformers_version is_llama_config transformers.js_config _name_or_path",
      NULL },
    { NULL, TRI_INERT, TRI_ANY, 0, NULL, NULL }
};

static const tri_key tri_keys_deepseek_v3[] = {
    { "architectures", TRI_ONLY, TRI_STRINGS, TR_NO_FIELD, "DeepseekV3ForCausalLM",
      "[\"DeepseekV3ForCausalLM\"]" },
    { "model_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "deepseek_v3", "\"deepseek_v3\"" },
    { "vocab_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vocab), NULL, "320" },
    { "hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(hidden), NULL, "64" },
    { "intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(ffn), NULL, "112" },
    { "moe_intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(moe_ffn), NULL, "24" },
    { "num_hidden_layers", TRI_REQUIRED, TRI_SIZE, TRI_F(layers), NULL, "4" },
    { "num_attention_heads", TRI_REQUIRED, TRI_SIZE, TRI_F(heads), NULL, "4" },
    { "num_key_value_heads", TRI_OPTIONAL, TRI_SIZE, TRI_F(kv_heads), NULL,
      "=num_attention_heads" },
    { "q_lora_rank", TRI_OPTIONAL, TRI_SIZE, TRI_F(q_lora), NULL, "48" },
    { "kv_lora_rank", TRI_REQUIRED, TRI_SIZE, TRI_F(kv_lora), NULL, "32" },
    { "qk_nope_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(nope), NULL, "16" },
    { "qk_rope_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(rope), NULL, "16" },
    { "qk_head_dim", TRI_OPTIONAL, TRI_SIZE, TRI_F(qk_dim), NULL, NULL },
    { "v_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(v_dim), NULL, "20" },
    { "first_k_dense_replace", TRI_REQUIRED, TRI_COUNT, TRI_F(first_dense), NULL, "1" },
    { "moe_layer_freq", TRI_OPTIONAL, TRI_SIZE, TRI_F(moe_freq), "1", "1" },
    { "n_routed_experts", TRI_REQUIRED, TRI_SIZE, TRI_F(experts), NULL, "16" },
    { "num_experts_per_tok", TRI_REQUIRED, TRI_SIZE, TRI_F(topk), NULL, "4" },
    { "n_shared_experts", TRI_REQUIRED, TRI_COUNT, TRI_F(shared), NULL, "1" },
    { "n_group", TRI_REQUIRED, TRI_SIZE, TRI_F(groups), NULL, "4" },
    { "topk_group", TRI_REQUIRED, TRI_SIZE, TRI_F(keep_groups), NULL, "2" },
    { "topk_method", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "noaux_tc", "\"noaux_tc\"" },
    { "scoring_func", TRI_EXACT, TRI_STRING, TRI_F(score), "sigmoid", "\"sigmoid\"" },
    { "norm_topk_prob", TRI_REQUIRED, TRI_BOOL, TRI_F(renorm), NULL, "true" },
    { "routed_scaling_factor", TRI_REQUIRED, TRI_POSITIVE, TRI_F(route_scale), NULL, "2.5" },
    { "hidden_act", TRI_EXACT, TRI_STRING, TRI_F(act), "silu", "\"silu\"" },
    { "rms_norm_eps", TRI_REQUIRED, TRI_POSITIVE, TRI_F(eps), NULL, "1e-06" },
    { "attention_bias", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", "false" },
    { "rope_interleave", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "true", NULL },
    { "rope_scaling", TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL,
      "{\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096, "
      "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}" },
    { "tie_word_embeddings", TRI_REQUIRED, TRI_BOOL, TRI_F(tie), NULL, "false" },
    { "max_position_embeddings", TRI_OPTIONAL, TRI_SIZE, TRI_F(max_pos), NULL, "163840" },
    { "num_nextn_predict_layers", TRI_OPTIONAL, TRI_COUNT, TRI_F(mtp), NULL, "0" },
    { "eos_token_id", TRI_OPTIONAL, TRI_IDS, TRI_F(eos), NULL, "1" },
    { "bos_token_id", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "0" },
    { "torch_dtype", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "\"bfloat16\"" },
    { "quantization_config", TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { "quantization_config.quant_method", TRI_EXACT, TRI_STRING, TRI_F(quant), "fp8", NULL },
    { "quantization_config.fmt", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "e4m3", NULL },
    { "quantization_config.weight_block_size", TRI_OPTIONAL, TRI_INTS, TRI_F(quant_blocks),
      NULL, NULL },
    { "quantization_config.", TRI_INERT, TRI_ANY, TR_NO_FIELD,
      "activation_scheme scale_fmt modules_to_not_convert dequantize", NULL },
    { "", TRI_INERT, TRI_ANY, TR_NO_FIELD, "attention_dropout initializer_range use_cache dtype "
      "pad_token_id transformers_version auto_map ep_size pretraining_tp seq_aux aux_loss_alpha "
      "head_dim _name_or_path", NULL },
    { NULL, TRI_INERT, TRI_ANY, 0, NULL, NULL }
};

#define TRI_QC "text_config.quantization_config"
#define TRI_QW TRI_QC ".config_groups.group_0.weights"

static const tri_key tri_keys_kimi_k3[] = {
    { "architectures", TRI_ONLY, TRI_STRINGS, TR_NO_FIELD, "KimiK3ForConditionalGeneration",
      "[\"KimiK3ForConditionalGeneration\"]" },
    { "model_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "kimi_k3", "\"kimi_k3\"" },
    { "dtype", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "\"bfloat16\"" },
    { "bos_token_id", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "256" },
    { "eos_token_id", TRI_OPTIONAL, TRI_IDS, TRI_F(eos), NULL, "258" },
    { "media_placeholder_token_id", TRI_OPTIONAL, TRI_IDS, TRI_F(media), NULL, "277" },
    { "pad_token_id", TRI_OPTIONAL, TRI_IDS, TRI_F(pad), NULL, NULL },
    { "tie_word_embeddings", TRI_ALIAS, TRI_BOOL, TRI_F(tie), NULL, "false" },
    { "text_config", TRI_REQUIRED, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { "text_config.model_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "kimi_linear",
      "\"kimi_linear\"" },
    { "text_config.architectures", TRI_ONLY, TRI_STRINGS, TR_NO_FIELD, "KimiLinearForCausalLM",
      "[\"KimiLinearForCausalLM\"]" },
    { "text_config.vocab_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vocab), NULL, "320" },
    { "text_config.hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(hidden), NULL, "80" },
    { "text_config.num_hidden_layers", TRI_REQUIRED, TRI_SIZE, TRI_F(layers), NULL, "9" },
    { "text_config.num_attention_heads", TRI_REQUIRED, TRI_SIZE, TRI_F(heads), NULL, "5" },
    { "text_config.num_key_value_heads", TRI_OPTIONAL, TRI_SIZE, TRI_F(kv_heads), NULL,
      "=text_config.num_attention_heads" },
    { "text_config.intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(ffn), NULL, "112" },
    { "text_config.first_k_dense_replace", TRI_REQUIRED, TRI_COUNT, TRI_F(first_dense), NULL, "1" },
    { "text_config.moe_layer_freq", TRI_OPTIONAL, TRI_SIZE, TRI_F(moe_freq), "1", "1" },
    { "text_config.hidden_act", TRI_EXACT, TRI_STRING, TRI_F(act), "situ", "\"situ\"" },
    { "text_config.activation_situ_beta", TRI_REQUIRED, TRI_POSITIVE, TRI_F(act_p0), NULL, "4.0" },
    { "text_config.activation_situ_linear_beta", TRI_REQUIRED, TRI_POSITIVE, TRI_F(act_p1),
      NULL, "25.0" },
    { "text_config.rms_norm_eps", TRI_REQUIRED, TRI_POSITIVE, TRI_F(eps), NULL, "1e-05" },
    { "text_config.max_position_embeddings", TRI_OPTIONAL, TRI_SIZE, TRI_F(max_pos), NULL,
      "1048576" },
    { "text_config.q_lora_rank", TRI_OPTIONAL, TRI_SIZE, TRI_F(q_lora), NULL, "48" },
    { "text_config.kv_lora_rank", TRI_REQUIRED, TRI_SIZE, TRI_F(kv_lora), NULL, "32" },
    { "text_config.qk_nope_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(nope), NULL, "16" },
    { "text_config.qk_rope_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(rope), NULL, "8" },
    { "text_config.v_head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(v_dim), NULL, "20" },
    { "text_config.mla_use_nope", TRI_EXACT, TRI_BOOL, TR_NO_FIELD, "true", "true" },
    { "text_config.mla_use_output_gate", TRI_REQUIRED, TRI_BOOL, TRI_F(out_gate), NULL, "true" },
    { "text_config.num_experts", TRI_REQUIRED, TRI_SIZE, TRI_F(experts), NULL, "12" },
    { "text_config.num_experts_per_token", TRI_REQUIRED, TRI_SIZE, TRI_F(topk), NULL, "4" },
    { "text_config.num_shared_experts", TRI_REQUIRED, TRI_COUNT, TRI_F(shared), NULL, "2" },
    { "text_config.moe_intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(moe_ffn), NULL, "96" },
    { "text_config.routed_expert_hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(latent), NULL, "64" },
    { "text_config.latent_moe_use_norm", TRI_EXACT, TRI_BOOL, TR_NO_FIELD, "true", "true" },
    { "text_config.moe_router_activation_func", TRI_EXACT, TRI_STRING, TRI_F(score), "sigmoid",
      "\"sigmoid\"" },
    { "text_config.moe_renormalize", TRI_REQUIRED, TRI_BOOL, TRI_F(renorm), NULL, "true" },
    { "text_config.routed_scaling_factor", TRI_REQUIRED, TRI_POSITIVE, TRI_F(route_scale), NULL,
      "2.5" },
    { "text_config.topk_method", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "noaux_tc", "\"noaux_tc\"" },
    { "text_config.use_grouped_topk", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "true", "true" },
    { "text_config.num_expert_group", TRI_REQUIRED, TRI_SIZE, TRI_F(groups), NULL, "1" },
    { "text_config.topk_group", TRI_REQUIRED, TRI_SIZE, TRI_F(keep_groups), NULL, "1" },
    { "text_config.attn_res_block_size", TRI_REQUIRED, TRI_SIZE, TRI_F(res_block), NULL, "4" },
    { "text_config.num_nextn_predict_layers", TRI_ONLY, TRI_COUNT, TR_NO_FIELD, "0", "0" },
    { "text_config.eos_token_id", TRI_ALIAS, TRI_IDS, TRI_F(eos), NULL, "=eos_token_id" },
    { "text_config.bos_token_id", TRI_OPTIONAL, TRI_ANY, TR_NO_FIELD, NULL, "=bos_token_id" },
    { "text_config.tie_word_embeddings", TRI_REQUIRED, TRI_BOOL, TRI_F(tie), NULL,
      "=tie_word_embeddings" },
    { "text_config.tie_encoder_decoder", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", NULL },
    { "text_config.pruned_heads", TRI_ONLY, TRI_OBJECT, TR_NO_FIELD, "{}", NULL },
    { "text_config.linear_attn_config", TRI_REQUIRED, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { "text_config.linear_attn_config.full_attn_layers", TRI_REQUIRED, TRI_INTS,
      TRI_F(full_layers), NULL, "@full" },
    { "text_config.linear_attn_config.kda_layers", TRI_REQUIRED, TRI_INTS, TRI_F(kda_layers),
      NULL, "@delta" },
    { "text_config.linear_attn_config.gate_lower_bound", TRI_OPTIONAL, TRI_NEGATIVE,
      TRI_F(decay_bound), NULL, "-5.0" },
    { "text_config.linear_attn_config.head_dim", TRI_REQUIRED, TRI_SIZE, TRI_F(kda_dim), NULL,
      "32" },
    { "text_config.linear_attn_config.num_heads", TRI_REQUIRED, TRI_SIZE, TRI_F(kda_heads), NULL,
      "3" },
    { "text_config.linear_attn_config.short_conv_kernel_size", TRI_REQUIRED, TRI_SIZE,
      TRI_F(conv), NULL, "4" },
    { "text_config.linear_attn_config.use_full_rank_gate", TRI_EXACT, TRI_BOOL, TR_NO_FIELD,
      "true", "true" },
    { TRI_QC, TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { TRI_QC ".quant_method", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "compressed-tensors",
      "\"compressed-tensors\"" },
    { TRI_QC ".format", TRI_EXACT, TRI_STRING, TRI_F(quant), "mxfp4-pack-quantized",
      "\"mxfp4-pack-quantized\"" },
    { TRI_QC ".quantization_status", TRI_ONLY, TRI_STRING, TR_NO_FIELD, "compressed",
      "\"compressed\"" },
    { TRI_QC ".kv_cache_scheme", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null", "null" },
    { TRI_QC ".config_groups", TRI_REQUIRED, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { TRI_QC ".config_groups.group_0", TRI_REQUIRED, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { TRI_QC ".config_groups.group_0.format", TRI_ONLY, TRI_STRING, TR_NO_FIELD,
      "mxfp4-pack-quantized", "\"mxfp4-pack-quantized\"" },
    { TRI_QC ".config_groups.group_0.input_activations", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null",
      "null" },
    { TRI_QC ".config_groups.group_0.output_activations", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null",
      "null" },
    { TRI_QC ".config_groups.group_0.targets", TRI_ONLY, TRI_STRINGS, TR_NO_FIELD, "Linear",
      "[\"Linear\"]" },
    { TRI_QW, TRI_REQUIRED, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { TRI_QW ".num_bits", TRI_EXACT, TRI_COUNT, TR_NO_FIELD, "4", "4" },
    { TRI_QW ".type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "float", "\"float\"" },
    { TRI_QW ".group_size", TRI_EXACT, TRI_COUNT, TRI_F(block_cols), "32", "32" },
    { TRI_QW ".strategy", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "group", "\"group\"" },
    { TRI_QW ".symmetric", TRI_EXACT, TRI_BOOL, TR_NO_FIELD, "true", "true" },
    { TRI_QW ".dynamic", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", "false" },
    { TRI_QW ".scale_dtype", TRI_ONLY, TRI_STRING, TR_NO_FIELD, "torch.uint8",
      "\"torch.uint8\"" },
    { TRI_QW ".zp_dtype", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null", "null" },
    { TRI_QW ".actorder", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null", "null" },
    { TRI_QW ".block_structure", TRI_ONLY, TRI_ANY, TR_NO_FIELD, "null", "null" },
    { TRI_QW ".", TRI_INERT, TRI_ANY, TR_NO_FIELD, "observer observer_kwargs", NULL },
    { TRI_QC ".", TRI_INERT, TRI_ANY, TR_NO_FIELD, "global_compression_ratio ignore", NULL },
    { "vision_config", TRI_OPTIONAL, TRI_OBJECT, TR_NO_FIELD, NULL, NULL },
    { "vision_config.patch_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_patch), NULL, "14" },
    { "vision_config.init_pos_emb_height", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_pos_h), NULL, "8" },
    { "vision_config.init_pos_emb_width", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_pos_w), NULL, "8" },
    { "vision_config.init_pos_emb_time", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_frames), NULL, "4" },
    { "vision_config.vt_num_hidden_layers", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_layers), NULL, "2" },
    { "vision_config.vt_hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_dim), NULL, "48" },
    { "vision_config.vt_intermediate_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_ffn), NULL, "80" },
    { "vision_config.vt_num_attention_heads", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_heads), NULL,
      "2" },
    { "vision_config.qkv_hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_qkv), NULL, "64" },
    { "vision_config.mm_hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_mm), NULL,
      "=vision_config.vt_hidden_size" },
    { "vision_config.text_hidden_size", TRI_REQUIRED, TRI_SIZE, TRI_F(vit_out), NULL,
      "=text_config.hidden_size" },
    { "vision_config.merge_kernel_size", TRI_REQUIRED, TRI_INTS, TRI_F(vit_merge), NULL,
      "[2, 2]" },
    { "vision_config.norm_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "rmsnorm", "\"rmsnorm\"" },
    { "vision_config.mlp_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "mlp2", "\"mlp2\"" },
    { "vision_config.activation_func", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "gelu_pytorch_tanh",
      "\"gelu_pytorch_tanh\"" },
    { "vision_config.attn_bias", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", "false" },
    { "vision_config.linear_bias", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", "false" },
    { "vision_config.patch_embed_proj_bias", TRI_ONLY, TRI_BOOL, TR_NO_FIELD, "false", "false" },
    { "vision_config.pos_emb_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "divided_fixed",
      "\"divided_fixed\"" },
    { "vision_config.pos_emb_interpolation_mode", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "bilinear",
      "\"bilinear\"" },
    { "vision_config.merge_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "sd2_tpool",
      "\"sd2_tpool\"" },
    { "vision_config.mm_projector_type", TRI_EXACT, TRI_STRING, TR_NO_FIELD, "patchmergerv2",
      "\"patchmergerv2\"" },
    { "vision_config.projector_hidden_act", TRI_ONLY, TRI_STRING, TR_NO_FIELD, "gelu",
      "\"gelu\"" },
    { "vision_config.projector_ln_eps", TRI_REQUIRED, TRI_POSITIVE, TRI_F(mm_eps), NULL, "1e-05" },
    { "vision_config.", TRI_INERT, TRI_ANY, TR_NO_FIELD, "_attn_implementation", NULL },
    { "text_config.", TRI_INERT, TRI_ANY, TR_NO_FIELD,
      "auto_map dtype pad_token_id use_cache initializer_range transformers_version "
      "_name_or_path add_cross_attention bad_words_ids begin_suppress_tokens "
      "chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id "
      "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
      "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
      "id2label label2id is_decoder is_encoder_decoder length_penalty max_length min_length "
      "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
      "output_hidden_states output_scores prefix problem_type remove_invalid_values "
      "repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens "
      "task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torchscript "
      "typical_p use_bfloat16", NULL },
    { "", TRI_INERT, TRI_ANY, TR_NO_FIELD,
      "auto_map ignore_index image_placeholder transformers_version", NULL },
    { NULL, TRI_INERT, TRI_ANY, 0, NULL, NULL }
};

/* ---- tensors ------------------------------------------------------------- */

#define TRI_END { TR_AT_MODEL, TR_W_NONE, NULL, NULL, NULL, TR_STORE_LINEAR, TR_INIT_LINEAR, 0 }
#define TRI_LIN(id, name, shape, when, c) \
    { TR_AT_LAYER, id, name, shape, when, TR_STORE_LINEAR, TR_INIT_LINEAR, c }
#define TRI_QUA(id, name, shape, when, c) \
    { TR_AT_LAYER, id, name, shape, when, TR_STORE_QUANT, TR_INIT_LINEAR, c }
#define TRI_EXP(id, name, shape, c) \
    { TR_AT_EXPERT, id, name, shape, "moe", TR_STORE_QUANT, TR_INIT_LINEAR, c }
#define TRI_VEC(id, name, shape, when, init, c) \
    { TR_AT_LAYER, id, name, shape, when, TR_STORE_VECTOR, init, c }
#define TRI_F32(id, name, shape, when, init, c) \
    { TR_AT_LAYER, id, name, shape, when, TR_STORE_VECTOR_F32, init, c }

static const tr_weight_spec tri_w_embed[] = {
    { TR_AT_MODEL, TR_W_EMBED, "model.embed_tokens.weight", "vocab hidden", "1",
      TR_STORE_LINEAR, TR_INIT_NORMAL, 1 },
    TRI_END
};
static const tr_weight_spec tri_w_norm1[] = {
    TRI_VEC(TR_W_NORM1, "input_layernorm.weight", "hidden", "1", TR_INIT_NORM, 0.3),
    TRI_END
};
static const tr_weight_spec tri_w_norm2[] = {
    TRI_VEC(TR_W_NORM2, "post_attention_layernorm.weight", "hidden", "1", TR_INIT_NORM, 0.3),
    TRI_END
};
static const tr_weight_spec tri_w_head[] = {
    { TR_AT_MODEL, TR_W_FINAL_NORM, "model.norm.weight", "hidden", "1",
      TR_STORE_VECTOR, TR_INIT_NORM, 0.3 },
    { TR_AT_MODEL, TR_W_HEAD, "lm_head.weight", "vocab hidden", "!tie",
      TR_STORE_LINEAR, TR_INIT_LINEAR, 2 },
    TRI_END
};
static const tr_weight_spec tri_w_res[] = {      /* block attention residuals */
    TRI_VEC(TR_W_RES1_NORM, "self_attention_res_norm.weight", "hidden", "1", TR_INIT_NORM, 0.3),
    TRI_VEC(TR_W_RES1_PROJ, "self_attention_res_proj.weight", "1 hidden", "1", TR_INIT_LINEAR, 2),
    TRI_VEC(TR_W_RES2_NORM, "mlp_res_norm.weight", "hidden", "1", TR_INIT_NORM, 0.3),
    TRI_VEC(TR_W_RES2_PROJ, "mlp_res_proj.weight", "1 hidden", "1", TR_INIT_LINEAR, 2),
    TRI_END
};
static const tr_weight_spec tri_w_res_out[] = {
    { TR_AT_MODEL, TR_W_OUT_RES_NORM, "model.output_attn_res_norm.weight", "hidden", "1",
      TR_STORE_VECTOR, TR_INIT_NORM, 0.3 },
    { TR_AT_MODEL, TR_W_OUT_RES_PROJ, "model.output_attn_res_proj.weight", "1 hidden", "1",
      TR_STORE_VECTOR, TR_INIT_LINEAR, 2 },
    TRI_END
};
static const tr_weight_spec tri_w_gqa[] = {
    TRI_QUA(TR_W_Q, "self_attn.q_proj.weight", "heads*head_dim hidden", "gqa", 2),
    TRI_VEC(TR_W_Q_BIAS, "self_attn.q_proj.bias", "heads*head_dim", "gqa*attn_bias",
            TR_INIT_NORMAL, 0.3),
    TRI_QUA(TR_W_K, "self_attn.k_proj.weight", "kv_heads*head_dim hidden", "gqa", 2),
    TRI_VEC(TR_W_K_BIAS, "self_attn.k_proj.bias", "kv_heads*head_dim", "gqa*attn_bias",
            TR_INIT_NORMAL, 0.3),
    TRI_QUA(TR_W_V, "self_attn.v_proj.weight", "kv_heads*head_dim hidden", "gqa", 1),
    TRI_VEC(TR_W_V_BIAS, "self_attn.v_proj.bias", "kv_heads*head_dim", "gqa*attn_bias",
            TR_INIT_NORMAL, 0.3),
    TRI_QUA(TR_W_O, "self_attn.o_proj.weight", "hidden heads*head_dim", "gqa", 1),
    TRI_VEC(TR_W_O_BIAS, "self_attn.o_proj.bias", "hidden", "gqa*attn_bias",
            TR_INIT_NORMAL, 0.3),
    TRI_END
};
static const tr_weight_spec tri_w_mla[] = {
    TRI_QUA(TR_W_Q, "self_attn.q_proj.weight", "heads*(nope+rope) hidden", "mla*!q_lora", 2),
    TRI_QUA(TR_W_Q_A, "self_attn.q_a_proj.weight", "q_lora hidden", "mla*q_lora", 1),
    TRI_VEC(TR_W_Q_A_NORM, "self_attn.q_a_layernorm.weight", "q_lora", "mla*q_lora",
            TR_INIT_NORM, 0.3),
    TRI_QUA(TR_W_Q_B, "self_attn.q_b_proj.weight", "heads*(nope+rope) q_lora", "mla*q_lora", 2),
    TRI_QUA(TR_W_KV_A, "self_attn.kv_a_proj_with_mqa.weight", "kv_lora+rope hidden", "mla", 1),
    TRI_VEC(TR_W_KV_A_NORM, "self_attn.kv_a_layernorm.weight", "kv_lora", "mla",
            TR_INIT_NORM, 0.3),
    TRI_QUA(TR_W_KV_B, "self_attn.kv_b_proj.weight", "heads*(nope+v_dim) kv_lora", "mla", 1.5),
    TRI_QUA(TR_W_G, "self_attn.g_proj.weight", "heads*v_dim hidden", "mla*out_gate", 1.5),
    TRI_QUA(TR_W_O, "self_attn.o_proj.weight", "hidden heads*v_dim", "mla", 2.5),
    TRI_END
};
static const tr_weight_spec tri_w_kda[] = {
    TRI_LIN(TR_W_Q, "self_attn.q_proj.weight", "kda_heads*kda_dim hidden", "kda", 1),
    TRI_LIN(TR_W_K, "self_attn.k_proj.weight", "kda_heads*kda_dim hidden", "kda", 1),
    TRI_LIN(TR_W_V, "self_attn.v_proj.weight", "kda_heads*kda_dim hidden", "kda", 1),
    TRI_F32(TR_W_Q_CONV, "self_attn.q_conv1d.weight", "kda_heads*kda_dim 1 conv", "kda",
            TR_INIT_NORMAL, 0.5),
    TRI_F32(TR_W_K_CONV, "self_attn.k_conv1d.weight", "kda_heads*kda_dim 1 conv", "kda",
            TR_INIT_NORMAL, 0.5),
    TRI_F32(TR_W_V_CONV, "self_attn.v_conv1d.weight", "kda_heads*kda_dim 1 conv", "kda",
            TR_INIT_NORMAL, 0.5),
    TRI_LIN(TR_W_F_A, "self_attn.f_a_proj.weight", "kda_dim hidden", "kda", 1),
    TRI_LIN(TR_W_F_B, "self_attn.f_b_proj.weight", "kda_heads*kda_dim kda_dim", "kda", 1.5),
    TRI_LIN(TR_W_B, "self_attn.b_proj.weight", "kda_heads hidden", "kda", 1.5),
    { TR_AT_LAYER, TR_W_A_LOG, "self_attn.A_log", "a_log", "kda", TR_STORE_PADDED_F32,
      TR_INIT_PADDED, 0.5 },
    TRI_F32(TR_W_DT_BIAS, "self_attn.dt_bias", "kda_heads*kda_dim", "kda", TR_INIT_NORMAL, 2),
    TRI_LIN(TR_W_G, "self_attn.g_proj.weight", "kda_heads*kda_dim hidden", "kda", 1.5),
    TRI_F32(TR_W_O_NORM, "self_attn.o_norm.weight", "kda_dim", "kda", TR_INIT_NORM, 0.3),
    TRI_LIN(TR_W_O, "self_attn.o_proj.weight", "hidden kda_heads*kda_dim", "kda", 2.5),
    TRI_END
};
static const tr_weight_spec tri_w_dense[] = {
    TRI_QUA(TR_W_GATE, "mlp.gate_proj.weight", "ffn hidden", "dense", 3),
    TRI_VEC(TR_W_GATE_BIAS, "mlp.gate_proj.bias", "ffn", "dense*mlp_bias", TR_INIT_NORMAL, 0.3),
    TRI_QUA(TR_W_UP, "mlp.up_proj.weight", "ffn hidden", "dense", 3),
    TRI_VEC(TR_W_UP_BIAS, "mlp.up_proj.bias", "ffn", "dense*mlp_bias", TR_INIT_NORMAL, 0.3),
    TRI_QUA(TR_W_DOWN, "mlp.down_proj.weight", "hidden ffn", "dense", 0.3),
    TRI_VEC(TR_W_DOWN_BIAS, "mlp.down_proj.bias", "hidden", "dense*mlp_bias", TR_INIT_NORMAL, 0.3),
    TRI_END
};
static const tr_weight_spec tri_w_moe[] = {      /* gate_proj, up_proj, down_proj under mlp */
    TRI_LIN(TR_W_ROUTER, "mlp.gate.weight", "experts hidden", "moe", 1),
    TRI_F32(TR_W_ROUTER_BIAS, "mlp.gate.e_score_correction_bias", "experts", "moe",
            TR_INIT_UNIFORM, 0.3),
    TRI_EXP(TR_W_EXPERT_GATE, "mlp.experts.{e}.gate_proj.weight", "moe_ffn hidden", 3),
    TRI_EXP(TR_W_EXPERT_UP, "mlp.experts.{e}.up_proj.weight", "moe_ffn hidden", 3),
    TRI_EXP(TR_W_EXPERT_DOWN, "mlp.experts.{e}.down_proj.weight", "hidden moe_ffn", 0.3),
    TRI_QUA(TR_W_SHARED_GATE, "mlp.shared_experts.gate_proj.weight", "shared*moe_ffn hidden",
            "moe*shared", 3),
    TRI_QUA(TR_W_SHARED_UP, "mlp.shared_experts.up_proj.weight", "shared*moe_ffn hidden",
            "moe*shared", 3),
    TRI_QUA(TR_W_SHARED_DOWN, "mlp.shared_experts.down_proj.weight", "hidden shared*moe_ffn",
            "moe*shared", 0.3),
    TRI_END
};
static const tr_weight_spec tri_w_latent_moe[] = {   /* w1 gate, w3 up, w2 down, in the latent */
    TRI_LIN(TR_W_ROUTER, "block_sparse_moe.gate.weight", "experts hidden", "moe", 1),
    TRI_F32(TR_W_ROUTER_BIAS, "block_sparse_moe.gate.e_score_correction_bias", "experts", "moe",
            TR_INIT_UNIFORM, 0.3),
    TRI_LIN(TR_W_LATENT_DOWN, "block_sparse_moe.routed_expert_down_proj.weight", "latent hidden",
            "moe", 1.5),
    TRI_EXP(TR_W_EXPERT_GATE, "block_sparse_moe.experts.{e}.w1.weight", "moe_ffn latent", 3),
    TRI_EXP(TR_W_EXPERT_UP, "block_sparse_moe.experts.{e}.w3.weight", "moe_ffn latent", 10),
    TRI_EXP(TR_W_EXPERT_DOWN, "block_sparse_moe.experts.{e}.w2.weight", "latent moe_ffn", 0.01),
    TRI_VEC(TR_W_LATENT_NORM, "block_sparse_moe.routed_expert_norm.weight", "latent", "moe",
            TR_INIT_NORM, 0.3),
    TRI_LIN(TR_W_LATENT_UP, "block_sparse_moe.routed_expert_up_proj.weight", "hidden latent",
            "moe", 1),
    TRI_QUA(TR_W_SHARED_GATE, "block_sparse_moe.shared_experts.gate_proj.weight",
            "shared*moe_ffn hidden", "moe*shared", 3),
    TRI_QUA(TR_W_SHARED_UP, "block_sparse_moe.shared_experts.up_proj.weight",
            "shared*moe_ffn hidden", "moe*shared", 10),
    TRI_QUA(TR_W_SHARED_DOWN, "block_sparse_moe.shared_experts.down_proj.weight",
            "hidden shared*moe_ffn", "moe*shared", 0.2),
    TRI_END
};
static const tr_weight_spec tri_w_mtp[] = {
    { TR_AT_MTP, TR_W_NONE, "embed_tokens.weight", "vocab hidden", "1",
      TR_STORE_LINEAR, TR_INIT_NORMAL, 1 },
    { TR_AT_MTP, TR_W_NONE, "enorm.weight", "hidden", "1", TR_STORE_VECTOR, TR_INIT_NORM, 0.3 },
    { TR_AT_MTP, TR_W_NONE, "hnorm.weight", "hidden", "1", TR_STORE_VECTOR, TR_INIT_NORM, 0.3 },
    { TR_AT_MTP, TR_W_NONE, "eh_proj.weight", "hidden 2*hidden", "1",
      TR_STORE_LINEAR, TR_INIT_LINEAR, 1 },
    { TR_AT_MTP, TR_W_NONE, "shared_head.norm.weight", "hidden", "1",
      TR_STORE_VECTOR, TR_INIT_NORM, 0.3 },
    { TR_AT_MTP, TR_W_NONE, "shared_head.head.weight", "vocab hidden", "1",
      TR_STORE_LINEAR, TR_INIT_LINEAR, 2 },
    TRI_END
};
#define TRI_VIT(where, id, name, shape, init, c) \
    { where, id, name, shape, "vit_layers", TR_STORE_LINEAR, init, c }
#define TRI_VIT_NORM(where, id, name, shape) \
    { where, id, name, shape, "vit_layers", TR_STORE_VECTOR, TR_INIT_NORM, 0.3 }
static const tr_weight_spec tri_w_vit_patch[] = {
    TRI_VIT(TR_AT_VISION, TR_W_VIT_PATCH, "vision_tower.patch_embed.proj.weight",
            "vit_dim 3 vit_patch vit_patch", TR_INIT_NORMAL, 0.05),
    TRI_VIT(TR_AT_VISION, TR_W_VIT_POS, "vision_tower.patch_embed.pos_emb.weight",
            "vit_pos_h vit_pos_w vit_dim", TR_INIT_NORMAL, 0.5),
    TRI_END
};
static const tr_weight_spec tri_w_vit_block[] = {
    TRI_VIT_NORM(TR_AT_BLOCK, TR_W_VIT_NORM0, "vision_tower.encoder.blocks.{b}.norm0.weight",
                 "vit_dim"),
    TRI_VIT(TR_AT_BLOCK, TR_W_VIT_QKV, "vision_tower.encoder.blocks.{b}.wqkv.weight",
            "3*vit_qkv vit_dim", TR_INIT_LINEAR, 2),
    TRI_VIT(TR_AT_BLOCK, TR_W_VIT_O, "vision_tower.encoder.blocks.{b}.wo.weight",
            "vit_dim vit_qkv", TR_INIT_LINEAR, 1),
    TRI_VIT_NORM(TR_AT_BLOCK, TR_W_VIT_NORM1, "vision_tower.encoder.blocks.{b}.norm1.weight",
                 "vit_dim"),
    TRI_VIT(TR_AT_BLOCK, TR_W_VIT_FC0, "vision_tower.encoder.blocks.{b}.mlp.fc0.weight",
            "vit_ffn vit_dim", TR_INIT_LINEAR, 2),
    TRI_VIT(TR_AT_BLOCK, TR_W_VIT_FC1, "vision_tower.encoder.blocks.{b}.mlp.fc1.weight",
            "vit_dim vit_ffn", TR_INIT_LINEAR, 1),
    TRI_END
};
static const tr_weight_spec tri_w_vit_out[] = {
    TRI_VIT_NORM(TR_AT_VISION, TR_W_VIT_NORM, "vision_tower.encoder.final_layernorm.weight",
                 "vit_dim"),
    TRI_VIT(TR_AT_VISION, TR_W_MM_FC0, "mm_projector.proj.0.weight", "vit_merged vit_merged",
            TR_INIT_LINEAR, 1),
    TRI_VIT(TR_AT_VISION, TR_W_MM_FC1, "mm_projector.proj.2.weight", "vit_out vit_merged",
            TR_INIT_LINEAR, 1),
    TRI_VIT_NORM(TR_AT_VISION, TR_W_MM_NORM, "mm_projector.post_norm.weight", "vit_out"),
    TRI_END
};

/* ---- families ------------------------------------------------------------ */

#define TRI_MAX_TABLES 16
struct tr_family {
    const char *name, *title;
    const char *prefix;                 /* of everything but the vision tower */
    tr_mixer_kind mixer;                /* of a layer that no list names */
    tr_rope_layout layout;
    int rotates;                        /* 0: no positions at all */
    const char *format;                 /* of quantised tensors */
    int quant_experts_only;
    int shard_by_layer;                 /* how the release is cut into files */
    const char *moe, *context, *routed; /* names of taps: experts' module, attention before its
                                           output projection, weighted sum of experts */
    const tri_key *keys[TRI_MAX_TABLES];
    const tr_weight_spec *weights[TRI_MAX_TABLES];
    const tr_fact *facts;
    int64_t n_facts;
};

static const tr_fact tri_facts_llama[] = {
    { "sampling.ties", TR_NO_FIELD, 0, "lower token id", "torch leaves it open" }
};
static const tr_fact tri_facts_deepseek_v3[] = {
    { "mla.inner_eps", TRI_F(inner_eps), 1e-6, "",
      "DeepseekV3Attention builds q_a_layernorm and kv_a_layernorm without the config's eps" },
    { "router.renorm_eps", TRI_F(renorm_eps), 1e-20, "",
      "added to the sum in DeepseekV3TopkRouter" },
    { "router.ties", TR_NO_FIELD, 0, "lower expert index", "torch.topk leaves it open" },
    { "router.masked_groups", TR_NO_FIELD, 0, "never chosen",
      "filled with -inf; older code filled with 0" },
    { "sampling.ties", TR_NO_FIELD, 0, "lower token id", "torch leaves it open" }
};
static const tr_fact tri_facts_kimi_k3[] = {
    { "mla.inner_eps", TRI_F(inner_eps), 1e-6, "",
      "KimiMLAAttention builds q_a_layernorm and kv_a_layernorm without the config's eps" },
    { "kda.l2_eps", TRI_F(l2_eps), 1e-6, "", "fla's l2 norm of queries and keys, on the sum" },
    { "kda.a_log_pad", TRI_F(a_log_pad), 128, "",
      "A_log is stored padded to a multiple of this; only the heads' entries are read" },
    { "router.renorm_eps", TRI_F(renorm_eps), 1e-20, "", "added to the sum in KimiMoEGate" },
    { "vit.norm_eps", TRI_F(vit_eps), 1.1920928955078125e-07, "",
      "nn.RMSNorm without eps: 2^-23 in today's torch for BF16 and F32; 2^-7 in older kernels" },
    { "vit.rope_theta", TRI_F(vit_theta), 10000, "",
      "of both axes, pairs by column and by row in turn, column first" },
    { "vit.time_theta", TRI_F(vit_time_theta), 10000, "", "of the sines that tell frames apart" },
    { "vit.max_grid", TRI_F(vit_grid), 512, "", "rows and columns of patches it has angles for" },
    { "vit.pad_rows", TR_NO_FIELD, 0, "0 in a prompt with images",
      "the vendor's merge leaves embeddings of pad_token_id out" },
    { "router.ties", TR_NO_FIELD, 0, "lower expert index", "torch.topk leaves it open" },
    { "sampling.ties", TR_NO_FIELD, 0, "lower token id", "torch leaves it open" }
};
#define TRI_FACTS(t) t, (int64_t)(sizeof t / sizeof t[0])

static const tr_family tri_families[] = {
    { "kimi_k3", "Kimi K3", "language_model.", TR_MIXER_MLA, TR_ROPE_HALF, 0, "mxfp4", 1, 1,
      "block_sparse_moe", "attn_ctx", "routed_sum",
      { tri_keys_kimi_k3, NULL },
      { tri_w_embed, tri_w_norm1, tri_w_res, tri_w_kda, tri_w_mla, tri_w_norm2, tri_w_dense,
        tri_w_latent_moe, tri_w_res_out, tri_w_head, tri_w_vit_patch, tri_w_vit_block,
        tri_w_vit_out, NULL },
      TRI_FACTS(tri_facts_kimi_k3) },
    { "deepseek_v3", "DeepSeek-V3, V3-0324, R1, V3.1", "", TR_MIXER_MLA, TR_ROPE_INTERLEAVED, 1,
      "fp8-block", 0, 0, "mlp", "core", "experts",
      { tri_keys_deepseek_v3, tri_keys_rope, NULL },
      { tri_w_embed, tri_w_norm1, tri_w_mla, tri_w_norm2, tri_w_dense, tri_w_moe, tri_w_mtp,
        tri_w_head, NULL },
      TRI_FACTS(tri_facts_deepseek_v3) },
    { "llama", "Llama 2, Llama 3, SmolLM2", "", TR_MIXER_GQA, TR_ROPE_HALF, 1,
      "", 0, 0, "mlp", "core", "experts",
      { tri_keys_llama, tri_keys_rope, NULL },
      { tri_w_embed, tri_w_norm1, tri_w_gqa, tri_w_norm2, tri_w_dense, tri_w_head, NULL },
      TRI_FACTS(tri_facts_llama) }
};
#define TRI_FAMILIES ((int64_t)(sizeof tri_families / sizeof tri_families[0]))

int64_t          tr_family_count(void) { return TRI_FAMILIES; }
const char      *tr_family_name(const tr_family *f) { return f->name; }
const char      *tr_family_title(const tr_family *f) { return f->title; }

const tr_fact *tr_family_facts(const tr_family *f, int64_t *n)
{
    *n = f->n_facts;
    return f->facts;
}

const tr_family *tr_family_get(int64_t i)
{
    return i >= 0 && i < TRI_FAMILIES ? &tri_families[i] : NULL;
}

static double *tri_cfg_num(tr_config *c, size_t field)
{
    return (double *)(void *)((char *)c + field);
}

double tr_fact_value(const tr_config *c, const tr_fact *f)
{
    double v;
    if (f->field == TR_NO_FIELD) return 0;
    memcpy(&v, (const char *)c + f->field, sizeof v);
    return v;
}

static const tr_family *tri_family_find(const char *name)
{
    for (int64_t i = 0; i < TRI_FAMILIES; i++)
        if (!strcmp(tri_families[i].name, name)) return &tri_families[i];
    return NULL;
}

/* The i-th key of a family, one table after the other; NULL: there are no more. */
static const tri_key *tri_key_at(const tr_family *f, int i)
{
    for (int t = 0; f->keys[t]; t++)
        for (const tri_key *k = f->keys[t]; k->path; k++)
            if (i-- == 0) return k;
    return NULL;
}

/* ---- reading a config ---------------------------------------------------- */

typedef struct tri_reader {
    tr_ctx  *ctx;
    const tr_json *json;
    tr_config *c;
    const tr_config_opts *opts;
    const tri_key *row[256];            /* the family's keys, one table after the other */
    unsigned char seen[256];            /* present, and not null */
    int n;
} tri_reader;

/* Is `key` one of the blank-separated words? */
static int tri_in_words(const char *words, const char *key)
{
    for (const char *w = words; *w; w += strspn(w, " ")) {
        size_t len = strcspn(w, " ");
        if (tri_is(key, w, len)) return 1;
        w += len;
    }
    return 0;
}

/* The row of a path: by name, or inert by the words of its object. */
static int tri_row_of(const tri_reader *rd, const char *path)
{
    const char *dot = strrchr(path, '.');
    for (int i = 0; i < rd->n; i++)
        if (rd->row[i]->cls != TRI_INERT && !strcmp(rd->row[i]->path, path)) return i;
    for (int i = 0; i < rd->n; i++) {
        const char *dir = rd->row[i]->path;
        size_t at = strlen(dir);
        if (rd->row[i]->cls != TRI_INERT || strncmp(dir, path, at)) continue;
        if (at == 0 ? tri_in_words(rd->row[i]->value, path)
                    : dot == path + at - 1 && tri_in_words(rd->row[i]->value, path + at)) return i;
    }
    return -1;
}

static tr_status tri_bad_value(const tri_reader *rd, const tr_json_node *v, const char *path,
                               const char *want)
{
    return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: key \"%s\" must be %s, found %s%s%.80s",
                   rd->json->name, v->line, path, want, tr_json_type_str(v->type),
                   v->count || !tr_json_str(rd->json, v)[0] ? "" : " ",
                   v->count ? "" : tr_json_str(rd->json, v));
}

/* A list of whole numbers >= 0; a single number counts as a list of one if `one`. */
static tr_status tri_read_ints(tri_reader *rd, const tr_json_node *v, const char *path,
                               tr_int_list *out, int one)
{
    const tr_json_node *item = v;
    void *p = NULL;
    int64_t n = 1, i = 0;
    if (v->type == TR_JSON_ARRAY) {
        n = v->count;
        item = tr_json_first(rd->json, v);
    } else if (!one || v->type != TR_JSON_NUM) {
        return tri_bad_value(rd, v, path, one ? "a whole number or a list of them"
                                              : "a list of whole numbers");
    }
    tr_free(rd->ctx, out->v);
    out->v = NULL;
    out->n = 0;
    TRI_TRY(tri_alloc_n(rd->ctx, &p, n, sizeof *out->v));
    out->v = (int64_t *)p;
    out->n = n;
    for (; i < n; i++, item = tr_json_next(rd->json, item)) {
        if (item->type != TR_JSON_NUM || tr_json_int(rd->json, item, &out->v[i]) != TR_OK ||
            out->v[i] < 0 || out->v[i] > TRI_MAX_SIZE)
            return tri_bad_value(rd, item, path, "whole numbers from 0 to 16777216");
    }
    return TR_OK;
}

/* A number of this key's sign; no model has one outside 1e-30 to 1e30, where formulas overflow. */
static tr_status tri_read_real(const tri_reader *rd, const tri_key *k, const tr_json_node *v,
                               double *x)
{
    if (v->type == TR_JSON_NUM && tr_json_num(rd->json, v, x) == TR_OK &&
        (k->type == TRI_POSITIVE ? *x > 0 : k->type == TRI_NEGATIVE ? *x < 0 : 1) &&
        (*x == 0 || (fabs(*x) >= 1e-30 && fabs(*x) <= 1e30))) return TR_OK;
    return tri_bad_value(rd, v, k->path,
                         k->type == TRI_POSITIVE ? "a number above 0 (1e-30 to 1e30)" :
                         k->type == TRI_NEGATIVE ? "a number below 0 (-1e30 to -1e-30)" :
                         "a number (0, or 1e-30 to 1e30 in size)");
}

/* Checks v's type and range; writes it to the row's field of *c if there is one. */
static tr_status tri_read_value(tri_reader *rd, const tri_key *k, const tr_json_node *v)
{
    char *at = k->field == TR_NO_FIELD ? NULL : (char *)rd->c + k->field;
    int64_t i = 0;
    double x = 0;
    int b = 0;
    switch (k->type) {
    case TRI_ANY: return TR_OK;
    case TRI_OBJECT:
        return v->type == TR_JSON_OBJECT ? TR_OK : tri_bad_value(rd, v, k->path, "an object");
    case TRI_SIZE: case TRI_COUNT:
        if (v->type != TR_JSON_NUM || tr_json_int(rd->json, v, &i) != TR_OK ||
            i < (k->type == TRI_SIZE) || i > TRI_MAX_SIZE)
            return tri_bad_value(rd, v, k->path, k->type == TRI_SIZE ?
                "a whole number from 1 to 16777216" : "a whole number from 0 to 16777216");
        if (at) memcpy(at, &i, sizeof i);
        return TR_OK;
    case TRI_POSITIVE: case TRI_NEGATIVE: case TRI_NUMBER:
        TRI_TRY(tri_read_real(rd, k, v, &x));
        if (at) memcpy(at, &x, sizeof x);
        return TR_OK;
    case TRI_BOOL:
        if (v->type != TR_JSON_BOOL) return tri_bad_value(rd, v, k->path, "true or false");
        TRI_TRY(tr_json_bool(rd->json, v, &b));
        i = b;
        if (at) memcpy(at, &i, sizeof i);
        return TR_OK;
    case TRI_STRING:
        if (v->type != TR_JSON_STR || v->str_len > 31)
            return tri_bad_value(rd, v, k->path, "a string of at most 31 bytes");
        if (at) memcpy(at, tr_json_str(rd->json, v), v->str_len + 1);
        return TR_OK;
    case TRI_STRINGS:
        if (v->type != TR_JSON_ARRAY) return tri_bad_value(rd, v, k->path, "a list of strings");
        return TR_OK;
    case TRI_INTS: case TRI_IDS:
        return tri_read_ints(rd, v, k->path, (tr_int_list *)(void *)at, k->type == TRI_IDS);
    }
    return TR_OK;
}

/* Is v one of the alternatives a|b|c? A list must consist of them. */
static int tri_is_allowed(const tri_reader *rd, const char *alt, const tr_json_node *v)
{
    char want[64];
    if (v->type == TR_JSON_ARRAY) {
        const tr_json_node *item = tr_json_first(rd->json, v);
        for (; item; item = tr_json_next(rd->json, item))
            if (item->type != TR_JSON_STR || !tri_is_allowed(rd, alt, item)) return 0;
        return v->count > 0;
    }
    if (v->type == TR_JSON_OBJECT) return v->count == 0 && !strcmp(alt, "{}");
    for (; *alt; alt += strspn(alt, "|")) {
        size_t n = strcspn(alt, "|");
        double x;
        snprintf(want, sizeof want, "%.*s", (int)n, alt);
        if (v->type == TR_JSON_NULL && !strcmp(want, "null")) return 1;
        if (v->type == TR_JSON_NUM && tr_json_num(rd->json, v, &x) == TR_OK) {
            char *end;
            if (x == strtod(want, &end) && !*end) return 1;
        } else if (v->type != TR_JSON_NULL && !strcmp(tr_json_str(rd->json, v), want)) {
            return 1;
        }
        alt += n;
    }
    return 0;
}

static size_t tri_field_bytes(tri_key_type t)
{
    return t == TRI_STRING ? 32 : t == TRI_INTS || t == TRI_IDS ? sizeof(tr_int_list) : 8;
}

/* Two keys for one field must say the same. Called with row i in place and `old` as it was. */
static int tri_agrees(const tri_reader *rd, int i, const void *old)
{
    const void *now = (const char *)rd->c + rd->row[i]->field;
    if (rd->row[i]->type == TRI_STRING) return !strcmp((const char *)now, (const char *)old);
    if (rd->row[i]->type == TRI_INTS || rd->row[i]->type == TRI_IDS) return 1;
    return !memcmp(now, old, 8);
}

/* Another row that was present and writes the same field, or -1. */
static int tri_other_row(const tri_reader *rd, int i)
{
    if (rd->row[i]->field == TR_NO_FIELD) return -1;
    for (int k = 0; k < rd->n; k++)
        if (k != i && rd->seen[k] && rd->row[k]->field == rd->row[i]->field) return k;
    return -1;
}

static tr_status tri_read_row(tri_reader *rd, int i, const tr_json_node *v)
{
    const tri_key *k = rd->row[i];
    int other = tri_other_row(rd, i), nested = v->type >= TR_JSON_ARRAY;
    char old[32];
    if (k->cls == TRI_INERT) return TR_OK;
    if ((k->cls == TRI_ONLY || k->cls == TRI_EXACT) && !tri_is_allowed(rd, k->value, v))
        return tr_fail(rd->ctx, TR_ERR_UNSUPPORTED, "%s line %d: key \"%s\" is %s%s%.80s; "
                       "supported: %s", rd->json->name, v->line, k->path,
                       nested ? tr_json_type_str(v->type) : "", nested ? " " : "",
                       v->type == TR_JSON_NULL ? "null" : v->count ? "of other values" :
                       nested ? "without any" : tr_json_str(rd->json, v), k->value);
    if (v->type == TR_JSON_NULL && (k->cls == TRI_OPTIONAL || k->cls == TRI_ALIAS)) return TR_OK;
    if (other >= 0) memcpy(old, (char *)rd->c + k->field, tri_field_bytes(k->type));
    TRI_TRY(tri_read_value(rd, k, v));
    if (other >= 0 && !tri_agrees(rd, i, old))
        return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: keys \"%s\" and \"%s\" contradict each "
                       "other", rd->json->name, v->line, rd->row[other]->path, k->path);
    rd->seen[i] = 1;
    return TR_OK;
}

static int tri_is_accepted(const tri_reader *rd, const char *path)
{
    const char *const *a = rd->opts ? rd->opts->accept : NULL;
    for (int64_t i = 0; a && i < rd->opts->n_accept; i++)
        if (!strcmp(a[i], path)) return 1;
    return 0;
}

static tr_status tri_append_line(tr_ctx *ctx, char **text, const char *line)
{
    char *out;
    TRI_TRY(tri_concat(ctx, &out, *text ? *text : "", line, "\n"));
    tr_free(ctx, *text);
    *text = out;
    return TR_OK;
}

static tr_status tri_read_object(tri_reader *rd, const tr_json_node *obj, const char *prefix)
{
    const tr_json_node *v = tr_json_first(rd->json, obj);
    char path[256];
    for (; v; v = tr_json_next(rd->json, v)) {
        int i, n = snprintf(path, sizeof path, "%s%s", prefix, tr_json_key(rd->json, v));
        if (n < 0 || n >= (int)sizeof path)
            return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: a key of %d bytes is too long",
                           rd->json->name, v->line, n);
        i = tri_row_of(rd, path);
        if (i < 0) {
            if (!tri_is_accepted(rd, path))
                return tr_fail(rd->ctx, TR_ERR_UNSUPPORTED, "%s line %d: unknown key \"%s\"; "
                               "accept it by name if it changes nothing", rd->json->name,
                               v->line, path);
            TRI_TRY(tri_append_line(rd->ctx, &rd->c->accepted, path));
            continue;
        }
        TRI_TRY(tri_read_row(rd, i, v));
        if (rd->row[i]->type == TRI_OBJECT && v->type == TR_JSON_OBJECT && v->count) {
            snprintf(path + n, sizeof path - (size_t)n, ".");
            TRI_TRY(tri_read_object(rd, v, path));
        }
    }
    return TR_OK;
}

/* Is the object that a dotted path lies in there? */
static int tri_parent_seen(const tri_reader *rd, const char *path)
{
    const char *dot = strrchr(path, '.');
    if (!dot) return 1;
    for (int i = 0; i < rd->n; i++)
        if (rd->seen[i] && rd->row[i]->type == TRI_OBJECT &&
            tri_is(rd->row[i]->path, path, (size_t)(dot - path))) return 1;
    return 0;
}

/* What absence means: an error, or the row's value. */
static tr_status tri_read_absent(tri_reader *rd)
{
    for (int i = 0; i < rd->n; i++) {
        const tri_key *k = rd->row[i];
        int here = tri_parent_seen(rd, k->path);
        if (rd->seen[i] || tri_other_row(rd, i) >= 0) continue;
        if (k->cls == TRI_REQUIRED && here)
            return tr_fail(rd->ctx, TR_ERR_MISSING, "%s: required key \"%s\" is missing",
                           rd->json->name, k->path);
        if (k->cls == TRI_EXACT && here)
            return tr_fail(rd->ctx, TR_ERR_MISSING, "%s: required key \"%s\" is missing "
                           "(supported: %s)", rd->json->name, k->path, k->value);
        if (k->cls == TRI_OPTIONAL && k->value && k->field != TR_NO_FIELD) {
            tri_reader def = *rd;
            tr_json j;
            char text[80];
            tr_status s;
            snprintf(text, sizeof text, k->type == TRI_STRING ? "\"%s\"" : "%s", k->value);
            TRI_TRY(tr_json_parse(rd->ctx, &j, k->path, text, strlen(text)));
            def.json = &j;
            s = tri_read_value(&def, k, &j.node[0]);
            tr_json_free(&j);
            TRI_TRY(s);
        }
    }
    return TR_OK;
}

static tr_status tri_apply_sets(tri_reader *rd)
{
    for (int64_t i = 0; rd->opts && i < rd->opts->n_set; i++) {
        const char *set = rd->opts->set[i], *eq = strchr(set, '=');
        const tr_family *f = rd->c->family;
        char *end = NULL;
        double v = eq ? strtod(eq + 1, &end) : 0;
        int64_t k = 0;
        if (!eq || end == eq + 1 || *end || !isfinite(v))
            return tr_fail(rd->ctx, TR_ERR_ARG, "\"%s\": a fact is set as NAME=NUMBER", set);
        while (k < f->n_facts && !tri_is(f->facts[k].name, set, (size_t)(eq - set))) k++;
        if (k == f->n_facts || f->facts[k].field == TR_NO_FIELD)
            return tr_fail(rd->ctx, TR_ERR_ARG, "\"%.*s\" is no fact of %s that can be set",
                           (int)(eq - set), set, f->name);
        if (v < 0 || v > TRI_MAX_SIZE || (f->facts[k].value >= 1 && v != floor(v)))
            return tr_fail(rd->ctx, TR_ERR_RANGE, "\"%s\": must be %s from 0 to %d", set,
                           f->facts[k].value >= 1 ? "a whole number" : "a number", TRI_MAX_SIZE);
        for (int64_t j = 0; j < i; j++)
            if (!strncmp(rd->opts->set[j], set, (size_t)(eq - set) + 1))
                return tr_fail(rd->ctx, TR_ERR_ARG, "\"%.*s\" is set twice", (int)(eq - set), set);
        *tri_cfg_num(rd->c, f->facts[k].field) = v;
        TRI_TRY(tri_append_line(rd->ctx, &rd->c->sets, set));
    }
    return TR_OK;
}

/* ---- what a config means ------------------------------------------------- */

static int tri_list_has(const tr_int_list *l, int64_t x)
{
    for (int64_t i = 0; i < l->n; i++)
        if (l->v[i] == x) return 1;
    return 0;
}

static tr_status tri_make_layers(tr_ctx *ctx, tr_config *c, const char *name)
{
    const tr_int_list *lists[2];
    int listed = c->kda_layers.n + c->full_layers.n > 0 || c->kda_heads > 0;
    void *p;
    lists[0] = &c->kda_layers;
    lists[1] = &c->full_layers;
    TRI_TRY(tri_alloc_n(ctx, &p, c->layers, sizeof *c->layer));
    c->layer = (tr_layer_cfg *)p;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < lists[k]->n && i <= c->layers; i++) {
            int64_t l = lists[k]->v[i];
            if (l < 1 || l > c->layers)
                return tr_fail(ctx, TR_ERR_RANGE, "%s: %s names layer %lld; layers count from 1 to "
                               "%lld", name, k ? "full_attn_layers" : "kda_layers",
                               (long long)l, (long long)c->layers);
            for (int64_t j = 0; j < i; j++)
                if (lists[k]->v[j] == l)
                    return tr_fail(ctx, TR_ERR_FORMAT, "%s: %s names layer %lld twice", name,
                                   k ? "full_attn_layers" : "kda_layers", (long long)l);
        }
    for (int64_t l = 0; l < c->layers; l++) {
        int kda = tri_list_has(&c->kda_layers, l + 1), full = tri_list_has(&c->full_layers, l + 1);
        if (listed && kda == full)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: layer %lld (counted from 1) is in %s of "
                           "kda_layers and full_attn_layers", name, (long long)(l + 1),
                           kda ? "both" : "neither");
        c->layer[l].mixer = kda ? TR_MIXER_KDA : c->family->mixer;
        c->layer[l].ffn = c->experts && l >= c->first_dense && l % c->moe_freq == 0
                        ? TR_FFN_MOE : TR_FFN_DENSE;
    }
    return TR_OK;
}

/* Numbers that fit their keys but not each other; what they make of one pair shows it. */
static tr_status tri_check_rope(tr_ctx *ctx, const tr_config *c, const char *name)
{
    tr_rope_cfg pair = c->rope_cfg;
    double freq, mult;
    tr_status s;
    if (pair.dim % 2)
        return tr_fail(ctx, TR_ERR_SHAPE, "%s: %lld rotated dimensions do not form pairs", name,
                       (long long)pair.dim);
    if (pair.kind != TR_ROPE_LLAMA3 && (pair.low_freq > 0 || pair.high_freq > 0))
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: low_freq_factor and high_freq_factor have no "
                       "meaning with rope_type \"%s\"", name, c->rope_type);
    pair.dim = 2;
    s = tr_rope_freqs_f64(ctx, &freq, &mult, &pair);
    return s == TR_OK ? s : tr_fail_in(ctx, s, "%s", name);
}

static tr_status tri_make_rope(tr_ctx *ctx, tr_config *c, const char *name)
{
    static const struct { const char *name; tr_rope_kind kind; } kinds[] = {
        { "default", TR_ROPE_DEFAULT }, { "linear", TR_ROPE_LINEAR }, { "yarn", TR_ROPE_YARN },
        { "llama3", TR_ROPE_LLAMA3 }, { "dynamic", TR_ROPE_DEFAULT }
    };
    tr_rope_cfg *r = &c->rope_cfg;
    const char *missing = NULL;
    size_t i = 0, n = sizeof kinds / sizeof kinds[0];
    if (!c->family->rotates) return TR_OK;
    while (i < n && strcmp(kinds[i].name, c->rope_type)) i++;
    if (i == n)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: rope_type \"%s\" is not supported", name,
                       c->rope_type);
    r->kind = kinds[i].kind;
    c->rope_dynamic = !strcmp(c->rope_type, "dynamic");
    r->dim = c->family->mixer == TR_MIXER_MLA ? c->rope : c->head_dim;
    if (r->kind != TR_ROPE_DEFAULT && !(r->factor > 0)) missing = "factor";
    if ((r->kind == TR_ROPE_YARN || r->kind == TR_ROPE_LLAMA3) && !(r->orig > 0))
        missing = "original_max_position_embeddings";
    if (r->kind == TR_ROPE_LLAMA3 && !(r->low_freq > 0)) missing = "low_freq_factor";
    if (r->kind == TR_ROPE_LLAMA3 && !(r->high_freq > 0)) missing = "high_freq_factor";
    if (c->rope_dynamic && !c->max_pos) missing = "max_position_embeddings";
    if (missing)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: rope_type \"%s\" needs key \"%s\"", name,
                       c->rope_type, missing);
    if (r->kind == TR_ROPE_DEFAULT && !c->rope_dynamic && r->factor > 0)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: a rope factor has no meaning with rope_type "
                       "\"default\"", name);
    return tri_check_rope(ctx, c, name);
}

static tr_status tri_make_format(tr_ctx *ctx, tr_config *c, const char *name)
{
    if (!c->quant[0]) {
        c->format = NULL;
        c->block_rows = c->block_cols = 0;
        return TR_OK;
    }
    c->format = tr_qformat_find(c->family->format);
    if (!c->quant_blocks.n && c->block_cols) {          /* groups along the row */
        c->block_rows = 1;
        return TR_OK;
    }
    if (c->quant_blocks.n != 2 || c->quant_blocks.v[0] < 1 || c->quant_blocks.v[1] < 1)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: key \"quantization_config.weight_block_size\" "
                       "must be two numbers above 0", name);
    c->block_rows = c->quant_blocks.v[0];
    c->block_cols = c->quant_blocks.v[1];
    return TR_OK;
}

#define TRI_REFUSE(cond, ...) \
    do { if (cond) return tr_fail(ctx, TR_ERR_FORMAT, __VA_ARGS__); } while (0)

/* Keys that are right alone and wrong together. */
static tr_status tri_check_config(tr_ctx *ctx, const tr_config *c, const char *name)
{
    int mla = c->family->mixer == TR_MIXER_MLA;
    TRI_REFUSE(c->layers > TRI_MAX_LAYERS || c->mtp > TRI_MAX_LAYERS ||
               c->vit_layers > TRI_MAX_LAYERS, "%s: more than %d layers", name, TRI_MAX_LAYERS);
    TRI_REFUSE(c->experts > TRI_MAX_EXPERTS, "%s: %lld experts; at most %d are supported", name,
               (long long)c->experts, TRI_MAX_EXPERTS);
    TRI_REFUSE(c->heads % c->kv_heads, "%s: %lld attention heads do not divide among %lld "
               "key/value heads", name, (long long)c->heads, (long long)c->kv_heads);
    TRI_REFUSE(mla && c->kv_heads != c->heads, "%s: num_key_value_heads %lld differs from "
               "num_attention_heads %lld; latent attention has no groups", name,
               (long long)c->kv_heads, (long long)c->heads);
    TRI_REFUSE(c->qk_dim && c->qk_dim != c->nope + c->rope, "%s: qk_head_dim %lld is not "
               "qk_nope_head_dim %lld + qk_rope_head_dim %lld", name, (long long)c->qk_dim,
               (long long)c->nope, (long long)c->rope);
    TRI_REFUSE(c->experts && c->experts % c->groups, "%s: %lld experts do not divide into %lld "
               "groups", name, (long long)c->experts, (long long)c->groups);
    TRI_REFUSE(c->experts && c->groups > TR_MAX_GROUPS, "%s: %lld expert groups; at most %d are "
               "supported", name, (long long)c->groups, TR_MAX_GROUPS);
    TRI_REFUSE(c->experts && c->keep_groups > c->groups, "%s: %lld groups are kept of %lld", name,
               (long long)c->keep_groups, (long long)c->groups);
    TRI_REFUSE(c->experts && c->topk > c->experts / c->groups * c->keep_groups,
               "%s: %lld experts a token are chosen of %lld", name, (long long)c->topk,
               (long long)(c->experts / c->groups * c->keep_groups));
    TRI_REFUSE(c->vit_layers && c->vit_out != c->hidden, "%s: vision_config.text_hidden_size %lld "
               "is not hidden_size %lld", name, (long long)c->vit_out, (long long)c->hidden);
    TRI_REFUSE(c->vit_layers && c->vit_mm != c->vit_dim, "%s: vision_config.mm_hidden_size %lld is "
               "not vt_hidden_size %lld", name, (long long)c->vit_mm, (long long)c->vit_dim);
    TRI_REFUSE(c->vit_layers && c->vit_qkv % c->vit_heads, "%s: vision_config.qkv_hidden_size %lld "
               "does not divide among %lld heads", name, (long long)c->vit_qkv,
               (long long)c->vit_heads);
    TRI_REFUSE(c->vit_layers && c->vit_qkv / c->vit_heads % 4, "%s: vision_config's heads of %lld "
               "do not form pairs for two axes", name, (long long)(c->vit_qkv / c->vit_heads));
    TRI_REFUSE(c->vit_layers && c->vit_frames > 1 && c->vit_dim % 2, "%s: vision_config's width of "
               "%lld has no halves for the time of frames", name, (long long)c->vit_dim);
    TRI_REFUSE(c->vit_layers && (c->vit_merge.n != 2 || c->vit_merge.v[0] < 1 ||
                                 c->vit_merge.v[1] < 1), "%s: vision_config.merge_kernel_size must "
               "be two numbers above 0", name);
    TRI_REFUSE(c->vit_layers && c->media.n != 1, "%s: key \"media_placeholder_token_id\" must name "
               "one id", name);
    TRI_REFUSE(c->vit_layers && c->media.v[0] >= c->vocab, "%s: media_placeholder_token_id %lld "
               "lies outside the vocabulary of %lld", name, (long long)c->media.v[0],
               (long long)c->vocab);
    TRI_REFUSE(c->pad.n > 1, "%s: pad_token_id is %lld ids, not one", name, (long long)c->pad.n);
    for (int64_t i = 0; i < c->eos.n; i++)
        TRI_REFUSE(c->eos.v[i] >= c->vocab, "%s: eos_token_id %lld lies outside the vocabulary of "
                   "%lld", name, (long long)c->eos.v[i], (long long)c->vocab);
    return TR_OK;
}

/* Sizes that follow from others. */
static tr_status tri_derive(tr_ctx *ctx, tr_config *c, const char *name)
{
    for (int64_t i = 0; i < c->family->n_facts; i++)
        if (c->family->facts[i].field != TR_NO_FIELD)
            *tri_cfg_num(c, c->family->facts[i].field) = c->family->facts[i].value;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim && c->family->mixer == TR_MIXER_GQA) {
        TRI_REFUSE(c->hidden % c->heads, "%s: hidden_size %lld does not divide by "
                   "num_attention_heads %lld, and head_dim is not given", name,
                   (long long)c->hidden, (long long)c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    return TR_OK;
}

void tr_config_free(tr_ctx *ctx, tr_config *c)
{
    tr_free(ctx, c->kda_layers.v);
    tr_free(ctx, c->full_layers.v);
    tr_free(ctx, c->quant_blocks.v);
    tr_free(ctx, c->vit_merge.v);
    tr_free(ctx, c->eos.v);
    tr_free(ctx, c->media.v);
    tr_free(ctx, c->pad.v);
    tr_free(ctx, c->layer);
    tr_free(ctx, c->accepted);
    tr_free(ctx, c->sets);
    memset(c, 0, sizeof *c);
}

static tr_status tri_config_read(tr_ctx *ctx, tr_config *c, const tr_json *j,
                                 const tr_config_opts *opts)
{
    const tr_json_node *type;
    tri_reader rd;
    memset(&rd, 0, sizeof rd);
    if (j->node[0].type != TR_JSON_OBJECT)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: a configuration is an object", j->name);
    type = tr_json_get(j, &j->node[0], "model_type");
    if (!type || type->type != TR_JSON_STR)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: required key \"model_type\" is missing", j->name);
    c->family = tri_family_find(tr_json_str(j, type));
    if (!c->family)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s line %d: model_type \"%.64s\" is not supported",
                       j->name, type->line, tr_json_str(j, type));
    rd.ctx = ctx;
    rd.json = j;
    rd.c = c;
    rd.opts = opts;
    while ((rd.row[rd.n] = tri_key_at(c->family, rd.n)) != NULL) rd.n++;
    TRI_TRY(tri_read_object(&rd, &j->node[0], ""));
    TRI_TRY(tri_read_absent(&rd));
    TRI_TRY(tri_derive(ctx, c, j->name));
    TRI_TRY(tri_apply_sets(&rd));
    TRI_TRY(tri_check_config(ctx, c, j->name));
    TRI_TRY(tri_make_rope(ctx, c, j->name));
    TRI_TRY(tri_make_format(ctx, c, j->name));
    return tri_make_layers(ctx, c, j->name);
}

tr_status tr_config_parse(tr_ctx *ctx, tr_config *out, const char *name, const char *text,
                          size_t n, const tr_config_opts *opts)
{
    tr_json j;
    tr_sha256 hash;
    tri_fpenv env;
    tr_status s;
    memset(out, 0, sizeof *out);
    TRI_TRY(tr_json_parse(ctx, &j, name, text, n));
    env = tri_os_fp_begin();
    s = tri_config_read(ctx, out, &j, opts);
    tri_os_fp_end(env);
    tr_json_free(&j);
    tr_sha256_init(&hash);
    tr_sha256_update(&hash, text, n);
    if (s == TR_OK) tr_sha256_hex(&hash, out->sha256);
    else tr_config_free(ctx, out);
    return s;
}

tr_status tr_config_load(tr_ctx *ctx, tr_config *out, const char *path,
                         const tr_config_opts *opts)
{
    unsigned char *map = NULL;
    size_t bytes = 0;
    char *file = NULL;
    tr_status s;
    memset(out, 0, sizeof *out);
    TRI_TRY(tri_concat(ctx, &file, path, tri_os_is_dir(path) ? "/config.json" : "", ""));
    s = tri_os_map(ctx, file, &map, &bytes);
    if (s == TR_OK) s = tr_config_parse(ctx, out, file, (const char *)map, bytes, opts);
    tri_os_unmap(ctx, map, bytes);
    tr_free(ctx, file);
    return s;
}

/* ---- a small config ------------------------------------------------------ */

/* The value that `set` gives a path: the whole path, or its last part, before the =. */
static const char *tri_set_for(const char *path, const char *const *set, int64_t n)
{
    const char *last = strrchr(path, '.');
    last = last ? last + 1 : path;
    for (int64_t i = n; i-- > 0;) {
        const char *eq = strchr(set[i], '=');
        size_t len = eq ? (size_t)(eq - set[i]) : 0;
        if (eq && (tri_is(path, set[i], len) || tri_is(last, set[i], len))) return eq + 1;
    }
    return NULL;
}

static const tri_key *tri_key_find(const tr_family *f, const char *path)
{
    const tri_key *k;
    for (int i = 0; (k = tri_key_at(f, i)) != NULL; i++)
        if (k->cls != TRI_INERT && !strcmp(k->path, path)) return k;
    return NULL;
}

/* Every fourth layer and the last one attend fully, the rest by the delta rule. */
static void tri_put_layer_list(tri_text *out, int64_t layers, int full)
{
    const char *sep = "";
    tri_text_add(out, "[");
    for (int64_t l = 1; l <= layers; l++)
        if ((l % 4 == 0 || l == layers) == full) {
            tri_text_add(out, "%s%lld", sep, (long long)l);
            sep = ", ";
        }
    tri_text_add(out, "]");
}

static void tri_put_tiny(tri_text *out, const tr_family *f, const tri_key *k,
                         const char *const *set, int64_t n)
{
    const char *v = tri_set_for(k->path, set, n);
    for (int hop = 0; !v && hop < 4; hop++) {
        v = k->tiny;
        if (v[0] != '=') break;
        k = tri_key_find(f, v + 1);
        v = tri_set_for(k->path, set, n);
    }
    if (v[0] == '@') {
        const char *path = !strncmp(k->path, "text_config.", 12) ? "text_config.num_hidden_layers"
                                                                 : "num_hidden_layers";
        const char *layers = tri_set_for(path, set, n);
        tri_put_layer_list(out, strtoll(layers ? layers : tri_key_find(f, path)->tiny, NULL, 10),
                           !strcmp(v, "@full"));
    } else if (k->type == TRI_STRING && v[0] != '"' && strcmp(v, "null")) {
        tri_text_add(out, "\"%s\"", v);
    } else {
        tri_text_add(out, "%s", v);
    }
}

/* A new line, indented for a member of the object `at`. */
static void tri_text_line(tri_text *out, const char *at)
{
    tri_text_add(out, "\n  ");
    for (const char *c = at; *c; c++)
        if (c == at || *c == '.') tri_text_add(out, "  ");
}

/* Closes and opens objects so that the next key can be written at `path`. */
static void tri_walk_to(tri_text *out, char *at, size_t at_bytes, const char *path, int *first)
{
    const char *dot = strrchr(path, '.');
    size_t want = dot ? (size_t)(dot - path) : 0;
    for (;;) {                                      /* up, until `at` is a prefix */
        size_t n = strlen(at);
        char *up;
        if (n <= want && !strncmp(at, path, n) && (n == 0 || n == want || path[n] == '.')) break;
        up = strrchr(at, '.');
        *(up ? up : at) = 0;
        tri_text_line(out, at);
        tri_text_add(out, "}");
        *first = 0;
    }
    while (strlen(at) < want) {                     /* down */
        size_t n = strlen(at), begin = n ? n + 1 : 0, end = begin + strcspn(path + begin, ".");
        if (!*first) tri_text_add(out, ",");
        tri_text_line(out, at);
        tri_text_add(out, "\"%.*s\": {", (int)(end - begin), path + begin);
        snprintf(at, at_bytes, "%.*s", (int)end, path);
        *first = 1;
    }
}

static tr_status tri_check_sets(tr_ctx *ctx, const tr_family *f, const char *const *set, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const char *eq = strchr(set[i], '=');
        const tri_key *k;
        int known = 0;
        if (!eq || !eq[1])
            return tr_fail(ctx, TR_ERR_ARG, "\"%s\": a key is set as KEY=VALUE", set[i]);
        for (int at = 0; !known && (k = tri_key_at(f, at)) != NULL; at++)
            known = k->cls != TRI_INERT && tri_set_for(k->path, set + i, 1) != NULL;
        if (!known)
            return tr_fail(ctx, TR_ERR_ARG, "\"%.*s\" is no key of %s", (int)(eq - set[i]), set[i],
                           f->name);
    }
    return TR_OK;
}

tr_status tr_config_tiny(tr_ctx *ctx, char **json, const char *family,
                         const char *const *set, int64_t n_set)
{
    const tr_family *f = tri_family_find(family);
    const tri_key *k;
    char at[256] = "", root[] = "x";
    int first = 1;
    tri_text out = tri_text_begin(ctx);
    *json = NULL;
    if (!f) return tr_fail(ctx, TR_ERR_UNSUPPORTED, "family \"%.64s\" is not supported", family);
    TRI_TRY(tri_check_sets(ctx, f, set, n_set));
    tri_text_add(&out, "{");
    for (int i = 0; (k = tri_key_at(f, i)) != NULL; i++) {
        const char *last = strrchr(k->path, '.');
        if (k->cls == TRI_INERT || (!k->tiny && !tri_set_for(k->path, set, n_set))) continue;
        if (k->cls == TRI_ALIAS && !k->tiny) continue;
        tri_walk_to(&out, at, sizeof at, k->path, &first);
        if (!first) tri_text_add(&out, ",");
        tri_text_line(&out, at);
        tri_text_add(&out, "\"%s\": ", last ? last + 1 : k->path);
        tri_put_tiny(&out, f, k, set, n_set);
        first = 0;
    }
    tri_walk_to(&out, at, sizeof at, root, &first);
    tri_text_add(&out, "\n}\n");
    return tri_text_end(&out, json);
}

/* ---- the tensors that a config asks for ---------------------------------- */

typedef struct tri_scope { const tr_config *c; int64_t layer; tr_layer_cfg kind; } tri_scope;

static const struct { const char *name; size_t field; } tri_vars[] = {
    { "vocab", TRI_F(vocab) }, { "hidden", TRI_F(hidden) }, { "heads", TRI_F(heads) },
    { "kv_heads", TRI_F(kv_heads) }, { "head_dim", TRI_F(head_dim) }, { "v_dim", TRI_F(v_dim) },
    { "q_lora", TRI_F(q_lora) }, { "kv_lora", TRI_F(kv_lora) }, { "nope", TRI_F(nope) },
    { "rope", TRI_F(rope) }, { "kda_heads", TRI_F(kda_heads) }, { "kda_dim", TRI_F(kda_dim) },
    { "conv", TRI_F(conv) }, { "ffn", TRI_F(ffn) }, { "moe_ffn", TRI_F(moe_ffn) },
    { "experts", TRI_F(experts) }, { "shared", TRI_F(shared) }, { "latent", TRI_F(latent) },
    { "tie", TRI_F(tie) }, { "attn_bias", TRI_F(attn_bias) }, { "mlp_bias", TRI_F(mlp_bias) },
    { "out_gate", TRI_F(out_gate) }, { "vit_layers", TRI_F(vit_layers) },
    { "vit_dim", TRI_F(vit_dim) }, { "vit_qkv", TRI_F(vit_qkv) }, { "vit_ffn", TRI_F(vit_ffn) },
    { "vit_patch", TRI_F(vit_patch) }, { "vit_pos_h", TRI_F(vit_pos_h) },
    { "vit_pos_w", TRI_F(vit_pos_w) }, { "vit_out", TRI_F(vit_out) }
};

#define TRI_MAX_ELEMENTS ((int64_t)1 << 40)     /* of one tensor; what is larger is absurd */

/* Numbers of a table, >= 0, that stick at TRI_MAX_ELEMENTS + 1 instead of overflowing. */
static int64_t tri_table_mul(int64_t a, int64_t b)
{
    return a && b > TRI_MAX_ELEMENTS / a ? TRI_MAX_ELEMENTS + 1 : a * b;
}

static int64_t tri_table_add(int64_t a, int64_t b)
{
    return a > TRI_MAX_ELEMENTS || b > TRI_MAX_ELEMENTS ? TRI_MAX_ELEMENTS + 1 : a + b;
}

static int64_t tri_var(const tri_scope *s, const char *name, size_t n)
{
    static const char *const mixers[] = { "gqa", "mla", "kda" };
    static const char *const ffns[] = { "dense", "moe" };
    const tr_config *c = s->c;
    int64_t v = 0;
    for (size_t i = 0; i < sizeof tri_vars / sizeof tri_vars[0]; i++)
        if (tri_is(tri_vars[i].name, name, n)) {
            memcpy(&v, (const char *)c + tri_vars[i].field, sizeof v);
            return v;
        }
    for (int i = 0; i < 3; i++)
        if (tri_is(mixers[i], name, n)) return (int)s->kind.mixer == i;
    for (int i = 0; i < 2; i++)
        if (tri_is(ffns[i], name, n)) return (int)s->kind.ffn == i;
    if (tri_is("a_log", name, n)) {
        int64_t pad = c->a_log_pad >= 1 ? (int64_t)c->a_log_pad : 1;
        return (c->kda_heads + pad - 1) / pad * pad;
    }
    if (tri_is("vit_merged", name, n))
        return tri_table_mul(c->vit_dim, tri_table_mul(c->vit_merge.v[0], c->vit_merge.v[1]));
    TR_ASSERT(!"a table names a size that does not exist");
    return 0;
}

/* sum of products of names, numbers, !x and (sums) */
static int64_t tri_eval(const tri_scope *s, const char **p)
{
    int64_t sum = 0, prod = 1;
    for (;;) {
        int64_t v;
        int no = 0;
        while (**p == '!') { no = !no; ++*p; }
        if (**p == '(') {
            ++*p;
            v = tri_eval(s, p);
            ++*p;                                   /* the closing one */
        } else if (**p >= '0' && **p <= '9') {
            v = *(*p)++ - '0';
        } else {
            size_t n = strspn(*p, "abcdefghijklmnopqrstuvwxyz_");
            v = tri_var(s, *p, n);
            *p += n;
        }
        prod = tri_table_mul(prod, no ? !v : v);
        if (**p == '*') { ++*p; continue; }
        sum = tri_table_add(sum, prod);
        prod = 1;
        if (**p != '+') return sum;
        ++*p;
    }
}

/* pattern with {e} or {b} replaced by i, behind a prefix. */
static void tri_name(char *out, size_t bytes, const char *prefix, const char *pattern, int64_t i)
{
    const char *hole = strchr(pattern, '{');
    if (!hole) snprintf(out, bytes, "%s%s", prefix, pattern);
    else snprintf(out, bytes, "%s%.*s%lld%s", prefix, (int)(hole - pattern), pattern, (long long)i,
                  hole + 3);
}

typedef struct tri_each {
    tr_ctx *ctx;
    const tr_config *c;
    tr_expected_fn fn;
    void *user;
} tri_each;

/* expert: the number in its name, of an expert or a block. */
static tr_status tri_each_row(const tri_each *w, const tri_scope *s, const tr_weight_spec *spec,
                              const char *prefix, int64_t expert, int optional)
{
    char name[256], stem[256];
    const char *p = spec->when;
    const tr_family *f = w->c->family;
    tr_expected e;
    size_t n;
    if (!tri_eval(s, &p)) return TR_OK;
    memset(&e, 0, sizeof e);
    tri_name(name, sizeof name, prefix, spec->name, expert);
    snprintf(stem, sizeof stem, "%s", name);
    n = strlen(stem);
    if (n > 7 && !strcmp(stem + n - 7, ".weight")) stem[n - 7] = 0;
    e.spec = spec;
    e.name = name;
    e.stem = stem;
    e.layer = s->layer;
    e.expert = spec->where == TR_AT_EXPERT ? expert : -1;
    e.block = spec->where == TR_AT_BLOCK ? expert : -1;
    e.optional = optional;
    e.params = 1;
    for (p = spec->shape; *p; p += *p == ' ') {
        e.shape[e.rank] = tri_eval(s, &p);
        e.params = tri_table_mul(e.params, e.shape[e.rank++]);
    }
    if (e.params > TRI_MAX_ELEMENTS)
        return tr_fail(w->ctx, TR_ERR_RANGE, "%s would have more than 2^40 elements", name);
    if (spec->store == TR_STORE_QUANT && w->c->format &&
        (!f->quant_experts_only || spec->where == TR_AT_EXPERT)) e.format = w->c->format;
    return w->fn(w->user, w->ctx, &e);
}

/* All rows of one table that belong to a layer; experts in the outer loop. */
static tr_status tri_each_layer_table(const tri_each *w, const tri_scope *s,
                                      const tr_weight_spec *t, const char *prefix, int mtp)
{
    for (; t->name; t++) {
        const tr_weight_spec *end = t;
        if (t->where == TR_AT_MTP && !mtp) continue;
        if (t->where != TR_AT_EXPERT) {
            TRI_TRY(tri_each_row(w, s, t, prefix, 0, mtp));
            continue;
        }
        while (end->name && end->where == TR_AT_EXPERT) end++;
        for (int64_t e = 0; s->kind.ffn == TR_FFN_MOE && e < w->c->experts; e++)
            for (const tr_weight_spec *x = t; x < end; x++)
                TRI_TRY(tri_each_row(w, s, x, prefix, e, mtp));
        t = end - 1;
    }
    return TR_OK;
}

static int tri_is_layer_table(const tr_weight_spec *t)
{
    return t && (t->where == TR_AT_LAYER || t->where == TR_AT_EXPERT || t->where == TR_AT_MTP);
}

tr_status tr_config_each(tr_ctx *ctx, const tr_config *c, tr_expected_fn fn, void *user)
{
    const tr_weight_spec *const *t = c->family->weights;
    char prefix[128];
    tri_each w;
    tri_scope s;
    w.ctx = ctx; w.c = c; w.fn = fn; w.user = user;
    memset(&s, 0, sizeof s);
    s.c = c;
    for (; *t; t++) {
        int layered = tri_is_layer_table(*t);
        int64_t n = layered ? c->layers + c->mtp : (*t)->where == TR_AT_BLOCK ? c->vit_layers : 1;
        const tr_weight_spec *const *end = t + 1;
        while (layered && tri_is_layer_table(*end)) end++;
        for (int64_t l = 0; l < n; l++) {
            int mtp = layered && l >= c->layers;
            s.layer = layered ? l : -1;
            snprintf(prefix, sizeof prefix, "%smodel.layers.%lld.", c->family->prefix,
                     (long long)l);
            if (layered && !mtp) s.kind = c->layer[l];
            if (mtp) { s.kind.mixer = c->family->mixer; s.kind.ffn = TR_FFN_MOE; }
            for (const tr_weight_spec *const *u = t; u < end; u++)
                if (layered) {
                    TRI_TRY(tri_each_layer_table(&w, &s, *u, prefix, mtp));
                } else {
                    for (const tr_weight_spec *x = *u; x->name; x++)
                        TRI_TRY(tri_each_row(&w, &s, x, x->where == TR_AT_MODEL ? c->family->prefix
                                                                                : "", l, 0));
                }
        }
        t = end - 1;
    }
    return TR_OK;
}

static int tri_must_be_f32(const tr_expected *e)
{
    return e->spec->store == TR_STORE_VECTOR_F32 || e->spec->store == TR_STORE_PADDED_F32;
}

tr_status tr_expected_stored(tr_ctx *ctx, const tr_config *c, const tr_expected *e,
                             const tr_qformat *f, tr_stored out[2], int *n)
{
    size_t q_bytes, s_bytes;
    tr_status s;
    memset(out, 0, 2 * sizeof *out);
    *n = 1;
    snprintf(out[0].name, sizeof out[0].name, "%s", e->name);
    out[0].rank = e->rank;
    memcpy(out[0].shape, e->shape, sizeof e->shape);
    if (!f || !f->scaled) {
        out[0].dtype = f ? f->q : tri_must_be_f32(e) ? TR_F32 : TR_BF16;
        return TR_OK;
    }
    s = tr_qformat_bytes(ctx, f, e->shape[0], e->shape[1], c->block_rows, c->block_cols, &q_bytes,
                         &s_bytes);
    if (s != TR_OK) return tr_fail_in(ctx, s, "%s", e->name);
    *n = 2;
    snprintf(out[0].name, sizeof out[0].name, "%s.%s", e->stem, f->q_suffix);
    out[0].dtype = f->q_file;
    out[0].shape[1] /= f->per_byte;
    snprintf(out[1].name, sizeof out[1].name, "%s.%s", e->stem, f->s_suffix);
    out[1].dtype = f->s_file;
    out[1].rank = 2;
    out[1].shape[0] = tri_blocks(e->shape[0], c->block_rows);
    out[1].shape[1] = tri_blocks(e->shape[1], c->block_cols);
    return TR_OK;
}

/* ============================================================================
 * 26. State {state}
 *
 *     latent            [B, capacity, R + Dr]    latent attention          grows by a row a token
 *     k, v              [B, capacity, G, Dk]     grouped-query attention   grows by a row a token
 *     conv_q, _k, _v    [B, C, J-1]              delta rule                overwritten
 *     delta             [B, H, V, K]             delta rule                overwritten
 *
 * One block for all layers and sequences, placed in two passes over the same rows: measure, then
 * cut. To rewind what grows is to forget rows: they stay behind the length and are never read. A
 * fading matrix cannot be run backwards, so what is overwritten is copied by a mark.
 *
 * Traps. A call that failed half-way has written some layers and not others; a length alone would
 * not show it, hence `spoilt`. A mark is of one state and cannot bring back tokens that came after
 * it.
 * ========================================================================= */

/* One row a kind: its name in taps, and whether it grows by a row a token or is overwritten. */
static const struct { const char *name; int grows; } tri_state_kinds[TR_STATE_KIND_COUNT] = {
    { "mla_latent", 1 }, { "k", 1 }, { "v", 1 },
    { "conv_q", 0 }, { "conv_k", 0 }, { "conv_v", 0 }, { "kda_recurrent", 0 }
};

/* Shape of kind k in a layer, [B, ..]; rank 0 if the layer has none. */
static tr_view tri_state_shape(const tr_config *c, tr_mixer_kind mixer, tr_state_kind k,
                               int64_t B, int64_t capacity, tr_dtype t)
{
    int64_t channels = c->kda_heads * c->kda_dim;
    switch (k) {
    case TR_STATE_LATENT:
        if (mixer != TR_MIXER_MLA) break;
        return tr_view3(NULL, t, B, capacity, c->kv_lora + c->rope);
    case TR_STATE_K: case TR_STATE_V:
        if (mixer != TR_MIXER_GQA) break;
        return tr_view4(NULL, t, B, capacity, c->kv_heads, c->head_dim);
    case TR_STATE_CONV_Q: case TR_STATE_CONV_K: case TR_STATE_CONV_V:
        if (mixer != TR_MIXER_KDA) break;
        return tr_view3(NULL, t, B, channels, c->conv - 1);
    case TR_STATE_DELTA:
        if (mixer != TR_MIXER_KDA) break;
        return tr_view4(NULL, t, B, c->kda_heads, c->kda_dim, c->kda_dim);
    case TR_STATE_KIND_COUNT: break;
    }
    return tr_view_none();
}

static tr_status tri_view_bytes(tr_ctx *ctx, tr_view v, size_t *out)
{
    *out = (size_t)tr_dtype_get(v.dtype)->bits / 8;
    for (int k = 0; k < v.rank; k++) TRI_TRY(tr_size_mul(ctx, out, *out, (size_t)v.shape[k]));
    return TR_OK;
}

tr_status tr_state_new(tr_ctx *ctx, tr_state *s, const tr_config *c, int64_t first,
                       int64_t layers, int64_t B, int64_t capacity, tr_dtype t, int dry)
{
    void *p;
    tr_status st;
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->B = B;
    s->capacity = capacity;
    s->first = first;
    s->layers = layers;
    s->dtype = t;
    if ((st = tri_alloc_n(ctx, &p, B, sizeof *s->len)) != TR_OK) goto fail;
    s->len = (int64_t *)p;
    if ((st = tri_alloc_n(ctx, &p, layers * TR_STATE_KIND_COUNT, sizeof *s->slot)) != TR_OK)
        goto fail;
    s->slot = (tr_view *)p;
    for (int pass = 0; pass < 2; pass++) {          /* count, then place */
        size_t at = 0;
        for (int64_t i = 0; i < layers * TR_STATE_KIND_COUNT; i++) {
            size_t bytes;
            s->slot[i] = tri_state_shape(c, c->layer[first + i / TR_STATE_KIND_COUNT].mixer,
                                         (tr_state_kind)(i % TR_STATE_KIND_COUNT), B, capacity, t);
            if (!s->slot[i].rank) continue;
            if ((st = tri_view_bytes(ctx, s->slot[i], &bytes)) != TR_OK) goto fail;
            if (s->block) s->slot[i].data = (unsigned char *)s->block + at;
            if ((st = tr_size_add(ctx, &at, at, bytes)) != TR_OK) goto fail;
        }
        s->bytes = at;
        if (dry) break;
        if (pass == 0 && (st = tr_alloc(ctx, &s->block, at)) != TR_OK) goto fail;
    }
    return TR_OK;
fail:
    tr_state_free(s);
    return st;
}

void tr_state_free(tr_state *s)
{
    if (!s->ctx) return;
    tr_free(s->ctx, s->len);
    tr_free(s->ctx, s->slot);
    tr_free(s->ctx, s->block);
    memset(s, 0, sizeof *s);
}

void tr_state_reset(tr_state *s)
{
    if (s->block) memset(s->block, 0, s->bytes);
    s->spoilt = 0;
    memset(s->len, 0, (size_t)s->B * sizeof *s->len);
}

tr_view tr_state_slot(const tr_state *s, int64_t layer, tr_state_kind k, int64_t seq)
{
    tr_view v = s->slot[(layer - s->first) * TR_STATE_KIND_COUNT + (int)k];
    return v.rank ? tr_view_at(v, seq) : v;
}

/* Bytes of slot i that a mark must keep: none where there is no memory or it only grows. */
static size_t tri_mark_bytes(const tr_state *s, int64_t i)
{
    if (!s->slot[i].rank || tri_state_kinds[i % TR_STATE_KIND_COUNT].grows) return 0;
    return (size_t)tr_view_numel(s->slot[i]) * (size_t)tr_dtype_get(s->dtype)->bits / 8;
}

/* Copies what is overwritten: to the mark (save) or back from it. */
static void tri_state_copy(tr_state *s, const tr_mark *m, int save)
{
    unsigned char *at = (unsigned char *)m->copy;
    for (int64_t i = 0; i < s->layers * TR_STATE_KIND_COUNT; i++) {
        size_t n = tri_mark_bytes(s, i);
        if (!at || !n) continue;
        if (save) memcpy(at, s->slot[i].data, n);
        else memcpy(s->slot[i].data, at, n);
        at += n;
    }
}

tr_status tr_state_mark(tr_state *s, tr_mark *m)
{
    void *p;
    memset(m, 0, sizeof *m);
    for (int64_t i = 0; i < s->layers * TR_STATE_KIND_COUNT; i++) m->bytes += tri_mark_bytes(s, i);
    TRI_TRY(tri_alloc_n(s->ctx, &p, s->B, sizeof *m->len));
    m->len = (int64_t *)p;
    if (tr_alloc(s->ctx, &m->copy, m->bytes) != TR_OK) {
        tr_mark_free(s, m);
        return TR_ERR_MEMORY;
    }
    memcpy(m->len, s->len, (size_t)s->B * sizeof *m->len);
    tri_state_copy(s, m, 1);
    return TR_OK;
}

tr_status tr_state_rewind(tr_state *s, const tr_mark *m)
{
    for (int64_t b = 0; b < s->B; b++)
        if (s->len[b] < m->len[b])
            return tr_fail(s->ctx, TR_ERR_ARG, "rewind: sequence %lld holds %lld tokens and cannot "
                           "go back to %lld", (long long)b, (long long)s->len[b],
                           (long long)m->len[b]);
    memcpy(s->len, m->len, (size_t)s->B * sizeof *m->len);
    tri_state_copy(s, m, 0);
    s->spoilt = 0;
    return TR_OK;
}

void tr_mark_free(tr_state *s, tr_mark *m)
{
    tr_free(s->ctx, m->len);
    tr_free(s->ctx, m->copy);
    memset(m, 0, sizeof *m);
}

/* ============================================================================
 * 28. The model {model}
 *
 * Takes a folder and gives a model: every tensor that the tables ask for is found, held against its
 * shape and type, and bound to its role in its layer. Large weights stay where the file has them;
 * small vectors are widened once into a block of the model's own. A run adds what changes (state,
 * workspace) and is the only thing that a forward writes to. Three parts: binding; the sublayers
 * and the one function that all layers pass through; the run, measured by a walk with the dry table
 * before a byte of workspace is taken.
 *
 * Scratch comes from the run's arena. A sublayer pushes what it needs, and the layer gives it all
 * back.
 *
 * Images go through their tower one by one, so that none can see another, and wait as rows until
 * the calls that read the prompt come to their places.
 *
 * Traps. The format of a weight is what its file holds; that the config announces another is an
 * error, not a hint. A weight is looked through for NaN before its first use and not when it is
 * bound: a checkpoint of 1.5 TB would be read to open it. A name in the folder that no table knows
 * is an error too, as a sublayer that was forgotten would leave just that behind.
 * ========================================================================= */

/* ---- binding tensors ----
 *
 * From a row of a table to a weight; names are made and looked up, never parsed:
 *     tr_config_each -> tri_each_row (name, shape) -> tri_bind -> tri_find_stored, tri_check_stored
 *     -> ly->vec[id] | ly->w[id] | ly->expert[k][e];  what no row asked for: tri_check_bound */

typedef struct tri_binder {
    tr_model *m;
    const unsigned char *held;          /* of tr_model_opts */
    size_t    vector_at;                /* bytes of m->vectors given out */
    size_t    bytes;                    /* of tensors bound, as stored */
    int64_t   missing, optional, optional_here;
    int64_t   tails;                    /* padded tensors whose unused rest is not zero */
    int64_t   left_out;                 /* optional ones that are not here */
    char      first_missing[256], first_left_out[256], first_tail[256];
} tri_binder;

/* Where e goes, or NULL if the engine does not use it or it is not in the open part. */
static tr_layer *tri_layer_of(tr_model *m, const tr_expected *e)
{
    if (e->spec->id == TR_W_NONE || e->optional) return NULL;
    if (e->block >= 0) return &m->vit[e->block];
    if (e->layer < 0) return &m->top;
    if (e->layer < m->first || e->layer >= m->first + m->layers) return NULL;
    return &m->layer[e->layer - m->first];
}

static int tri_is_vision(const tr_expected *e)
{
    return e->spec->where == TR_AT_VISION || e->spec->where == TR_AT_BLOCK;
}

static int tri_is_vector(const tr_expected *e)
{
    return e->spec->store == TR_STORE_VECTOR || tri_must_be_f32(e);
}

/* A scaled format under which e is in the file: *q elements, *s scales. NULL: none. */
static const tr_qformat *tri_find_scaled(const tr_shards *sh, const tr_expected *e,
                                         tr_st_entry **q, tr_st_entry **s, char scales[256])
{
    char name[256];
    for (int i = 0; i < TR_FORMAT_COUNT; i++) {
        const tr_qformat *f = tr_qformat_get((tr_format)i);
        if (!f->scaled) continue;
        snprintf(name, sizeof name, "%.200s.%s", e->stem, f->q_suffix);
        *q = tri_shards_get(sh, name);
        if (!*q || (*q)->view.dtype != f->q_file) continue;
        snprintf(scales, 256, "%.200s.%s", e->stem, f->s_suffix);
        *s = tri_shards_get(sh, scales);
        return f;
    }
    return NULL;
}

/* The tensors in which e is stored, decided by what is in the file and then held against the
 * config. *q NULL: missing. *f is the format, plain ones too. */
static tr_status tri_find_stored(tr_ctx *ctx, const tr_model *m, const tr_expected *e,
                                 const tr_qformat **f, tr_st_entry **q, tr_st_entry **s)
{
    char scales[256];
    int linear = !tri_is_vector(e) && e->spec->id != TR_W_NONE;
    *s = NULL;
    *f = e->rank == 2 && linear ? tri_find_scaled(&m->shards, e, q, s, scales) : NULL;
    if (*f) {
        if (*f != m->cfg.format)
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: stored as %s, which the config's "
                           "quantization_config does not announce", (*q)->name, (*f)->name);
        if (!*s)
            return tr_fail(ctx, TR_ERR_MISSING, "%s: its scales \"%s\" are missing", (*q)->name,
                           scales);
        return TR_OK;
    }
    *s = NULL;
    *q = tri_shards_get(&m->shards, e->name);
    if (!*q) return TR_OK;
    *f = tr_qformat_plain((*q)->view.dtype);
    if (!*f)
        return tr_fail(ctx, TR_ERR_DTYPE, "%s: element type %s without scales is not supported",
                       e->name, tr_dtype_get((*q)->view.dtype)->name);
    return TR_OK;
}

static tr_status tri_check_stored(tr_ctx *ctx, const tr_model *m, const tr_expected *e,
                                  const tr_qformat *f, const tr_st_entry *q, const tr_st_entry *s)
{
    tr_stored want[2];
    char a[96], w[96];
    int n;
    TRI_TRY(tr_expected_stored(ctx, &m->cfg, e, f, want, &n));
    for (int i = 0; i < n; i++) {
        const tr_st_entry *t = i ? s : q;
        tr_view v = tr_view_of(NULL, want[i].dtype, want[i].rank, want[i].shape);
        if (tri_must_be_f32(e)) v.dtype = TR_F32;
        if (t->view.dtype != v.dtype)
            return tr_fail(ctx, TR_ERR_DTYPE, "%s: stored as %s, must be %s", t->name,
                           tr_dtype_get(t->view.dtype)->name, tr_dtype_get(v.dtype)->name);
        if (e->spec->store == TR_STORE_PADDED_F32 && t->view.rank == 1) {
            if (t->view.shape[0] >= m->cfg.kda_heads) continue;
            return tr_fail(ctx, TR_ERR_SHAPE, "%s: holds %lld values, fewer than the %lld heads",
                           t->name, (long long)t->view.shape[0], (long long)m->cfg.kda_heads);
        }
        if (!tr_view_same_shape(t->view, v))
            return tr_fail(ctx, TR_ERR_SHAPE, "%s: stored as %s, the config asks for %s", t->name,
                           tr_view_str(t->view, a), tr_view_str(v, w));
    }
    return TR_OK;
}

/* The shape of e without a 1 before its last dimension: [1, D] is [D], [C, 1, J] is [C, J]. */
static tr_view tri_squeeze(void *data, tr_dtype t, const tr_expected *e)
{
    int64_t shape[TR_MAX_RANK];
    int rank = 0;
    for (int k = 0; k < e->rank; k++)
        if (k != e->rank - 2 || e->shape[k] != 1) shape[rank++] = e->shape[k];
    return tr_view_of(data, t, rank, shape);
}

/* Memory for n elements out of the model's block, or NULL while it is only counted. */
static void *tri_vector_memory(tri_binder *b, int64_t n, size_t elem)
{
    void *at = b->m->vectors ? (unsigned char *)b->m->vectors + b->vector_at : NULL;
    b->vector_at += ((size_t)n * elem + TRI_ALIGN - 1) / TRI_ALIGN * TRI_ALIGN;
    return at;
}

/* Copies a vector into the model's own memory, as F64 and as F32, the types that operators take;
 * every value must be finite in both. Without that memory yet (first pass, plans) it only
 * counts. */
static tr_status tri_bind_vector(tri_binder *b, tr_ctx *ctx, const tr_expected *e, tr_layer *ly,
                                 const tr_st_entry *q)
{
    int padded = e->spec->store == TR_STORE_PADDED_F32, id = (int)e->spec->id;
    int64_t n = padded ? b->m->cfg.kda_heads : e->params;
    double *y = (double *)tri_vector_memory(b, n, sizeof *y);
    float *z = (float *)tri_vector_memory(b, n, sizeof *z);
    ly->vec[id] = padded ? tr_view1(y, TR_F64, n) : tri_squeeze(y, TR_F64, e);
    ly->vec_f32[id] = padded ? tr_view1(z, TR_F32, n) : tri_squeeze(z, TR_F32, e);
    ly->spec[id] = e->spec;
    if (!y) return TR_OK;
    b->bytes += q->bytes;
    for (int64_t i = 0; i < n; i++) {
        y[i] = tr_get_f64(q->view.data, q->view.dtype, i);
        z[i] = (float)y[i];
        if (!tri_finite_f32(z[i]))
            return tr_fail(ctx, TR_ERR_NOT_FINITE, "%s: element %lld is %g", q->name, (long long)i,
                           y[i]);
    }
    for (int64_t i = n; i < tr_view_numel(q->view); i++)
        if (tr_get_f64(q->view.data, q->view.dtype, i) != 0) {
            if (!b->tails++) snprintf(b->first_tail, sizeof b->first_tail, "%s", q->name);
            break;
        }
    return TR_OK;
}

/* Rows of a matrix that stand and fall together: those of a head, or of a group of heads that read
 * the same keys, so that whatever splits them all splits the heads. */
static int64_t tri_rows_together(const tr_config *c, const tr_layer *ly, tr_weight_id id)
{
    int kda = ly->kind.mixer == TR_MIXER_KDA, gqa = ly->kind.mixer == TR_MIXER_GQA;
    switch (id) {
    case TR_W_Q:    return kda ? c->kda_dim : gqa ? c->head_dim * (c->heads / c->kv_heads)
                                                  : c->nope + c->rope;
    case TR_W_K:
    case TR_W_V:    return kda ? c->kda_dim : c->head_dim;
    case TR_W_G:    return kda ? c->kda_dim : c->v_dim;
    case TR_W_F_B:  return c->kda_dim;
    case TR_W_Q_B:  return c->nope + c->rope;
    case TR_W_KV_B: return c->nope + c->v_dim;
    default:        return 1;
    }
}

/* The rows of w that this part of the model has. Tables of positions are read by all. */
static tr_weight tri_part_rows(const tr_model *m, const tr_layer *ly, tr_weight_id id,
                               const tr_weight *w)
{
    int64_t unit = tri_rows_together(&m->cfg, ly, id);
    tr_range r;
    tr_weight band;
    if (!m->parts || id == TR_W_VIT_POS) return *w;
    r = tr_range_of(w->rows / unit, m->parts, m->part);
    band = tr_weight_rows(w, r.begin * unit, (r.end - r.begin) * unit);
    band.unit = unit;
    return band;
}

/* What has more than two dimensions is a matrix of its first by all others. */
static tr_status tri_bind_linear(tri_binder *b, tr_ctx *ctx, const tr_expected *e, tr_layer *ly,
                                 const tr_qformat *f, const tr_st_entry *q, const tr_st_entry *s)
{
    int id = (int)e->spec->id;
    tr_weight *w = &ly->w[id];
    const tr_config *c = &b->m->cfg;
    size_t all = (q ? q->bytes : 0) + (s ? s->bytes : 0);
    int held = e->expert < 0 || !b->held ? 1 : b->held[e->layer * c->experts + e->expert];
    if (e->spec->where == TR_AT_EXPERT) {
        tr_weight **list = &ly->expert[id - TR_W_EXPERT_GATE];
        if (!*list) {
            void *p;
            TRI_TRY(tri_alloc_n(ctx, &p, c->experts, sizeof **list));
            *list = (tr_weight *)p;
        }
        w = &(*list)[e->expert];
    }
    ly->spec[id] = e->spec;
    if (!held) return TR_OK;
    TRI_TRY(tr_weight_of(ctx, w, f, q ? q->name : e->name, q && held == 1 ? q->view.data : NULL,
                         s && held == 1 ? s->view.data : NULL, e->shape[0],
                         e->params / e->shape[0], c->block_rows, c->block_cols));
    if (held != 1) return TR_OK;
    if (e->expert < 0) *w = tri_part_rows(b->m, ly, e->spec->id, w);
    b->bytes += (size_t)((double)all * (double)w->rows / (double)e->shape[0]);
    return TR_OK;
}

/* Called for every tensor that the config asks for. */
static tr_status tri_bind(void *user, tr_ctx *ctx, const tr_expected *e)
{
    tri_binder *b = (tri_binder *)user;
    tr_layer *ly = tri_layer_of(b->m, e);
    const tr_qformat *f = e->format ? e->format : tr_qformat_get(TR_FMT_BF16);
    tr_st_entry *q = NULL, *s = NULL;
    if (e->optional) b->optional++;
    if (!b->m->dry) {
        TRI_TRY(tri_find_stored(ctx, b->m, e, &f, &q, &s));
        if (!q) {
            int64_t *n = e->optional ? &b->left_out : &b->missing;
            if (!(*n)++) snprintf(e->optional ? b->first_left_out : b->first_missing,
                                  sizeof b->first_missing, "%s", e->name);
            return TR_OK;
        }
        TRI_TRY(tri_check_stored(ctx, b->m, e, f, q, s));
        q->used = 1;
        if (s) s->used = 1;
        if (e->optional) b->optional_here++;
    }
    if (!ly) return TR_OK;
    return tri_is_vector(e) ? tri_bind_vector(b, ctx, e, ly, q)
                            : tri_bind_linear(b, ctx, e, ly, f, q, s);
}

/* A tied model may still carry its head, if it is the embedding again. */
static tr_status tri_check_tied_head(tr_ctx *ctx, tr_model *m)
{
    char name[256];
    tr_st_entry *head, *embed;
    snprintf(name, sizeof name, "%slm_head.weight", m->cfg.family->prefix);
    head = tri_shards_get(&m->shards, name);
    if (!m->cfg.tie || !head) return TR_OK;
    snprintf(name, sizeof name, "%s%s", m->cfg.family->prefix, m->top.spec[TR_W_EMBED]->name);
    embed = tri_shards_get(&m->shards, name);
    if (!embed || !tr_view_same_shape(head->view, embed->view) ||
        head->view.dtype != embed->view.dtype ||
        memcmp(head->view.data, embed->view.data, head->bytes))
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: differs from %s, but the config ties them",
                       head->name, name);
    head->used = 1;
    return TR_OK;
}

static tr_status tri_check_bound(tr_ctx *ctx, const tri_binder *b)
{
    const tr_shards *sh = &b->m->shards;
    int64_t unknown = 0, first = -1;
    for (int64_t i = 0; i < sh->n; i++)
        if (!sh->entry[i]->used && unknown++ == 0) first = i;
    if (b->missing || unknown)
        return tr_fail(ctx, b->missing ? TR_ERR_MISSING : TR_ERR_FORMAT,
                       "%s: %lld tensors that the config asks for are missing%s%s%s and %lld "
                       "tensors are unused%s%s%s", sh->dir, (long long)b->missing,
                       b->missing ? " (first: " : "", b->missing ? b->first_missing : "",
                       b->missing ? ")" : "", (long long)unknown, unknown ? " (first: " : "",
                       unknown ? sh->entry[first]->name : "", unknown ? ")" : "");
    if (b->optional_here && b->optional_here < b->optional)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: the config announces prediction modules; only "
                       "%lld of their %lld tensors are here (first missing: %s)", sh->dir,
                       (long long)b->optional_here, (long long)b->optional, b->first_left_out);
    if (b->optional && !b->optional_here)
        tr_warn(ctx, "%s: the config announces prediction modules; none is shipped", sh->dir);
    return TR_OK;
}

/* Two passes over the tables: find and count, then widen the vectors. What a config claims is held
 * against the files before memory is asked for it. held: of tr_model_opts. */
static tr_status tri_model_bind(tr_ctx *ctx, tr_model *m, const unsigned char *held)
{
    tri_binder b;
    void *p;
    TRI_TRY(tri_alloc_n(ctx, &p, m->layers, sizeof *m->layer));
    m->layer = (tr_layer *)p;
    for (int64_t l = 0; l < m->layers; l++) {
        m->layer[l].index = m->first + l;
        m->layer[l].kind = m->cfg.layer[m->first + l];
    }
    TRI_TRY(tri_alloc_n(ctx, &p, m->cfg.vit_layers, sizeof *m->vit));
    m->vit = (tr_layer *)p;
    for (int64_t l = 0; l < m->cfg.vit_layers; l++) m->vit[l].index = l;
    memset(&b, 0, sizeof b);
    b.m = m;
    b.held = held;
    TRI_TRY(tr_config_each(ctx, &m->cfg, tri_bind, &b));
    m->vector_bytes = b.vector_at;
    if (m->dry) return TR_OK;
    TRI_TRY(tri_check_tied_head(ctx, m));
    TRI_TRY(tri_check_bound(ctx, &b));
    TRI_TRY(tr_alloc(ctx, &m->vectors, m->vector_bytes));
    memset(&b, 0, sizeof b);
    b.m = m;
    b.held = held;
    TRI_TRY(tr_config_each(ctx, &m->cfg, tri_bind, &b));
    m->bytes = b.bytes;
    if (b.tails)
        tr_warn(ctx, "%s: padded tensors that are not zero past their last head: %lld (first: %s); "
                "the rest is never used", m->shards.dir, (long long)b.tails, b.first_tail);
    return TR_OK;
}

tr_status tr_model_opts_layers(tr_ctx *ctx, tr_range *out, const tr_config *c, const char *dir,
                               const tr_model_opts *opts)
{
    int64_t first = opts ? opts->first : 0;
    int64_t layers = opts && opts->layers ? opts->layers : c->layers - first;
    if (first < 0 || layers < 1 || first > c->layers - layers)
        return tr_fail(ctx, TR_ERR_RANGE, "layers %lld to %lld were asked for; %s has 0 to %lld",
                       (long long)first, (long long)(first + layers - 1), dir,
                       (long long)(c->layers - 1));
    out->begin = first;
    out->end = first + layers;
    return TR_OK;
}

/* Which part of the model is asked for, and whether there is such a part. */
static tr_status tri_model_part(tr_ctx *ctx, tr_model *m, const char *dir,
                                const tr_model_opts *opts)
{
    tr_range layers;
    m->part = opts ? opts->part : 0;
    m->parts = opts ? opts->parts : 0;
    if (m->parts && (m->part < 0 || m->part >= m->parts))
        return tr_fail(ctx, TR_ERR_RANGE, "part %lld of %lld was asked for", (long long)m->part,
                       (long long)m->parts);
    TRI_TRY(tr_model_opts_layers(ctx, &layers, &m->cfg, dir, opts));
    m->first = layers.begin;
    m->layers = layers.end - layers.begin;
    return TR_OK;
}

tr_status tr_model_open(tr_ctx *ctx, tr_model **out, const char *dir, const tr_model_opts *opts)
{
    tr_model *m;
    void *p;
    tri_fpenv env;
    tr_status s;
    *out = NULL;
    TRI_TRY(tr_alloc(ctx, &p, sizeof *m));
    m = (tr_model *)p;
    m->ctx = ctx;
    env = tri_os_fp_begin();
    s = tr_config_load(ctx, &m->cfg, dir, opts ? &opts->config : NULL);
    if (s == TR_OK) s = tri_model_part(ctx, m, dir, opts);
    if (s == TR_OK) s = tr_shards_open(ctx, &m->shards, dir, opts ? opts->lenient : 0);
    if (s == TR_OK) s = tri_model_bind(ctx, m, opts ? opts->held : NULL);
    tri_os_fp_end(env);
    if (s != TR_OK) tr_model_close(m);
    else *out = m;
    return s;
}

tr_status tr_model_new_dry(tr_ctx *ctx, tr_model **out, tr_config *c)
{
    tr_model *m;
    void *p;
    tr_status s = tr_alloc(ctx, &p, sizeof *m);
    *out = NULL;
    if (s != TR_OK) {
        tr_config_free(ctx, c);
        return s;
    }
    m = (tr_model *)p;
    m->ctx = ctx;
    m->cfg = *c;
    memset(c, 0, sizeof *c);
    m->layers = m->cfg.layers;
    m->dry = 1;
    s = tri_model_bind(ctx, m, NULL);
    if (s != TR_OK) tr_model_close(m);
    else *out = m;
    return s;
}

void tr_model_close(tr_model *m)
{
    tr_ctx *ctx;
    if (!m) return;
    ctx = m->ctx;
    for (int64_t l = 0; m->layer && l < m->layers; l++)
        for (int k = 0; k < 3; k++) tr_free(ctx, m->layer[l].expert[k]);
    tr_free(ctx, m->layer);
    tr_free(ctx, m->vit);
    tr_free(ctx, m->vectors);
    tr_shards_close(ctx, &m->shards);
    tr_config_free(ctx, &m->cfg);
    tr_free(ctx, m);
}

/* ---- what a run is made with --------------------------------------------- */

static const tr_profile tri_profiles[] = {
    { "exact",  TR_F32, tr_ops_contract, 0 },
    { "oracle", TR_F64, tr_ops_oracle, 1 }
};
#define TRI_PROFILES ((int64_t)(sizeof tri_profiles / sizeof tri_profiles[0]))

int64_t           tr_profile_count(void) { return TRI_PROFILES; }
const tr_profile *tr_profile_get(int64_t i)
{
    return i >= 0 && i < TRI_PROFILES ? &tri_profiles[i] : NULL;
}

const tr_profile *tr_profile_find(const char *name)
{
    for (int64_t i = 0; i < TRI_PROFILES; i++)
        if (!strcmp(tri_profiles[i].name, name)) return &tri_profiles[i];
    return NULL;
}

tr_run_opts tr_run_opts_default(void)
{
    tr_run_opts o;
    memset(&o, 0, sizeof o);
    o.profile = &tri_profiles[0];
    o.B = 1;
    o.max_tokens = 64;
    o.capacity = 1024;
    return o;
}

int64_t tr_hidden_snaps(const tr_config *c, int64_t layer)
{
    return c->res_block ? (layer + c->res_block - 1) / c->res_block : 0;
}

/* *out = v with scratch from the run's arena as its data. */
static tr_status tri_push(tr_run *r, tr_view *out, tr_view v)
{
    size_t bytes;
    TRI_TRY(tri_view_bytes(r->ctx, v, &bytes));
    *out = v;
    return tr_arena_push(r->ctx, &r->arena, &out->data, bytes);
}

/* Activations, [a, b] and [a, b, c]. */
static tr_status tri_push2(tr_run *r, tr_view *out, int64_t a, int64_t b)
{
    return tri_push(r, out, tr_view2(NULL, r->opts.profile->act, a, b));
}

static tr_status tri_push3(tr_run *r, tr_view *out, int64_t a, int64_t b, int64_t c)
{
    return tri_push(r, out, tr_view3(NULL, r->opts.profile->act, a, b, c));
}

/* ---- names and taps ------------------------------------------------------ */

/* Full name of a module: the layer's prefix, or the model's, and what follows. */
static void tri_full_name(const tr_run *r, char out[256], const char *suffix)
{
    const char *prefix = r->model->cfg.family->prefix;
    if (r->layer) snprintf(out, 256, "%smodel.layers.%lld%s%s", prefix, (long long)r->layer->index,
                           suffix[0] ? "." : "", suffix);
    else snprintf(out, 256, "%s%s", prefix, suffix);
}

typedef enum tri_tap_class { TRI_TAP_FINE, TRI_TAP_MAIN } tri_tap_class;

/* Does anybody want this value? main: it belongs to the default set. */
static int tri_wanted(const tr_run *r, const char *name, tri_tap_class cls)
{
    if (!r->opts.tap) return 0;
    if (!r->opts.n_globs) return cls == TRI_TAP_MAIN;
    for (int64_t i = 0; i < r->opts.n_globs; i++)
        if (tr_tap_match(r->opts.globs[i], name)) return 1;
    return 0;
}

static tr_status tri_whole(tr_run *r, tr_view x)
{
    return r->ops.whole ? r->ops.whole(r->ops.user, r->ctx, x) : TR_OK;
}

static tr_status tri_tap_as(tr_run *r, const char *name, tr_view x, tr_tap_kind kind, int64_t seq)
{
    tr_tap t;
    if (r->ops.dry) return TR_OK;
    TRI_TRY(tri_whole(r, x));
    t.name = name;
    t.x = x;
    t.kind = kind;
    t.batch = r->batch;
    t.pos = r->state.len;
    t.seq = seq;
    t.grows = 0;
    t.row = t.rows = t.image = 0;
    return r->opts.tap(r->opts.tap_user, r->ctx, &t);
}

/* Rows of all tokens of the call, named after the layer's prefix. */
static tr_status tri_tap(tr_run *r, const char *suffix, tr_view x, tri_tap_class cls)
{
    char name[256];
    if (!r->opts.tap) return TR_OK;
    tri_full_name(r, name, suffix);
    return tri_wanted(r, name, cls) ? tri_tap_as(r, name, x, TR_TAP_ROWS, -1) : TR_OK;
}

/* One of two parts of a name: the module and what inside it. */
static tr_status tri_tap_in(tr_run *r, const char *module, const char *part, tr_view x,
                            tri_tap_class cls)
{
    char suffix[128];
    if (!r->opts.tap) return TR_OK;
    snprintf(suffix, sizeof suffix, "%s.%s", module, part);
    return tri_tap(r, suffix, x, cls);
}

/* Which sequence and position is row i of the call? For messages. */
static void tri_locate(const tr_run *r, int64_t i, int64_t *seq, int64_t *pos)
{
    int64_t b = 0;
    while (b < r->batch->B - 1 && i >= r->batch->T[b]) i -= r->batch->T[b++];
    *seq = r->number ? r->number[b] : b;
    *pos = r->state.len[b] + i;
}

/* The first value that is not finite, v at (row, d); 0: there is none, or nothing to look at. */
static int tri_find_not_finite(const tr_run *r, tr_view x, int64_t *row, int64_t *d, double *v)
{
    int64_t D = x.shape[x.rank - 1];
    if (r->ops.dry) return 0;
    for (*row = 0; *row < tri_rows(x); ++*row) {
        int64_t at = tri_row_at(x, *row);
        for (*d = 0; *d < D; ++*d) {
            *v = tr_get_f64(x.data, x.dtype, at + *d);
            if (!isfinite(*v)) return 1;
        }
    }
    return 0;
}

/* A value that is not finite ends the run: what follows it would be noise. */
static tr_status tri_check_finite(tr_run *r, const char *suffix, tr_view x)
{
    char name[256];
    int64_t row, d, seq, pos;
    double v;
    TRI_TRY(tri_whole(r, x));
    if (!tri_find_not_finite(r, x, &row, &d, &v)) return TR_OK;
    tri_full_name(r, name, suffix);
    tri_locate(r, row, &seq, &pos);
    return tr_fail(r->ctx, TR_ERR_NOT_FINITE, "%s: sequence %lld, token %lld, element %lld is %g",
                   name, (long long)seq, (long long)pos, (long long)d, v);
}

/* An operator's failure, with the module it was computing. */
static tr_status tri_in(tr_run *r, const char *suffix, tr_status s)
{
    char name[256];
    if (s == TR_OK || s == TR_ERR_PEER) return s;       /* another rank's sentence has its place */
    tri_full_name(r, name, suffix);
    return tr_fail_in(r->ctx, s, "%s", name);
}

/* ---- steps that all sublayers take --------------------------------------- */

/* Sees that every decoded value of a weight is finite, once in the weight's life. */
static tr_status tri_check_weight(tr_run *r, tr_weight *w)
{
    return r->ops.dry || w->finite ? TR_OK : tr_weight_check(r->ctx, w);
}

/* A vector of the layer in the type of the run's activations. */
static tr_view tri_vec(const tr_run *r, const tr_layer *ly, tr_weight_id id)
{
    return r->opts.profile->act == TR_F32 ? ly->vec_f32[id] : ly->vec[id];
}

/* The bias that goes with a matrix; its view is absent where the config asks for none. */
static tr_view tri_bias_of(const tr_run *r, const tr_layer *ly, tr_weight_id id)
{
    switch (id) {
    case TR_W_Q:    return tri_vec(r, ly, TR_W_Q_BIAS);
    case TR_W_K:    return tri_vec(r, ly, TR_W_K_BIAS);
    case TR_W_V:    return tri_vec(r, ly, TR_W_V_BIAS);
    case TR_W_O:    return tri_vec(r, ly, TR_W_O_BIAS);
    case TR_W_GATE: return tri_vec(r, ly, TR_W_GATE_BIAS);
    case TR_W_UP:   return tri_vec(r, ly, TR_W_UP_BIAS);
    case TR_W_DOWN: return tri_vec(r, ly, TR_W_DOWN_BIAS);
    default:        return tr_view_none();
    }
}

/* y = x W^T (+ b) with a weight of the layer. */
static tr_status tri_op_matmul(tr_run *r, tr_layer *ly, tr_weight_id id, tr_view y, tr_view x)
{
    tr_matmul_args a;
    r->doing = ly->spec[id]->name;
    a.y = y;
    a.x = x;
    a.w = &ly->w[id];
    a.bias = tri_bias_of(r, ly, id);
    TRI_TRY(tri_check_weight(r, &ly->w[id]));
    return r->ops.matmul(r->ops.user, r->ctx, &a);
}

/* The same, and taps y under the weight's module. */
static tr_status tri_linear(tr_run *r, tr_layer *ly, tr_weight_id id, tr_view y, tr_view x)
{
    char module[128];
    const char *name = ly->spec[id]->name, *end = strstr(name, ".weight");
    snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
    TRI_TRY(tri_in(r, module, tri_op_matmul(r, ly, id, y, x)));
    return tri_tap(r, module, y, TRI_TAP_FINE);
}

/* y = norm(x) with a weight of the layer, or without (TR_W_NONE; suffix names it then); gate may
 * be absent. */
static tr_status tri_op_norm(tr_run *r, tr_layer *ly, tr_norm_kind kind, tr_weight_id id,
                             tr_view y, tr_view x, tr_view gate, double eps, double scale,
                             const char *suffix)
{
    tr_norm_args a;
    r->doing = id == TR_W_NONE ? suffix : ly->spec[id]->name;
    memset(&a, 0, sizeof a);
    a.y = y;
    a.x = x;
    a.w = id == TR_W_NONE ? tr_view_none() : tri_vec(r, ly, id);
    a.gate = gate;
    a.kind = kind;
    a.eps = eps;
    a.scale = scale;
    a.groups = 1;
    return r->ops.norm(r->ops.user, r->ctx, &a);
}

/* The same in place, and taps x. */
static tr_status tri_norm(tr_run *r, tr_layer *ly, tr_norm_kind kind, tr_weight_id id, tr_view x,
                          tr_view gate, double eps, double scale, const char *suffix)
{
    TRI_TRY(tri_in(r, suffix, tri_op_norm(r, ly, kind, id, x, x, gate, eps, scale, suffix)));
    return tri_tap(r, suffix, x, r->layer ? TRI_TAP_FINE : TRI_TAP_MAIN);
}

static tr_status tri_rms(tr_run *r, tr_layer *ly, tr_weight_id id, tr_view x, double eps,
                         const char *suffix)
{
    return tri_norm(r, ly, TR_NORM_RMS, id, x, tr_view_none(), eps, 1, suffix);
}

static tr_status tri_copy(tr_run *r, tr_view y, tr_view x)
{
    tr_copy_args a;
    a.y = y;
    a.x = x;
    return r->ops.copy(r->ops.user, r->ctx, &a);
}

static tr_status tri_add(tr_run *r, tr_view y, tr_view x, tr_view z)
{
    tr_add_args a;
    a.y = y;
    a.a = x;
    a.b = z;
    return r->ops.add(r->ops.user, r->ctx, &a);
}

static tr_status tri_sigmoid_gate(tr_run *r, tr_view y, tr_view g)
{
    tr_gate_args a;
    a.y = y;
    a.x = y;
    a.g = g;
    return r->ops.gate(r->ops.user, r->ctx, &a);
}

static tr_status tri_rope(tr_run *r, tr_view x)
{
    tr_rope_args a;
    a.x = x;
    a.pos = tr_view_slice(r->pos, 0, 0, r->N);
    a.inv_freq = r->inv_freq;
    a.mult = r->rope_mult;
    a.layout = r->model->cfg.family->layout;
    return r->ops.rope(r->ops.user, r->ctx, &a);
}

/* ---- token mixers: read r->x, write r->a --------------------------------- */

/* The rows of sequence b, and the rows of state it has after them. */
typedef struct tri_seq { int64_t b, row, T, pos; } tri_seq;

static int tri_next_seq(const tr_run *r, tri_seq *s)
{
    s->row += s->T;
    for (s->b++; s->b < r->batch->B; s->b++)
        if (r->batch->T[s->b] > 0) {
            s->T = r->batch->T[s->b];
            s->pos = r->state.len[s->b];
            return 1;
        }
    return 0;
}

static tri_seq tri_first_seq(void)
{
    tri_seq s;
    memset(&s, 0, sizeof s);
    s.b = -1;
    return s;
}

static tr_view tri_of_seq(tr_view v, const tri_seq *s) { return tr_view_slice(v, 0, s->row, s->T); }

/* Memory that grows: all rows that sequence s has after this call. */
static tr_view tri_rows_seen(const tr_run *r, const tr_layer *ly, tr_state_kind k, const tri_seq *s)
{
    return tr_view_slice(tr_state_slot(&r->state, ly->index, k, s->b), 0, 0, s->pos + s->T);
}

/* Appends the rows of x that belong to s. */
static tr_status tri_remember(tr_run *r, const tr_layer *ly, tr_state_kind k, const tri_seq *s,
                              tr_view x)
{
    tr_view rows = tri_rows_seen(r, ly, k, s);
    return tri_copy(r, tr_view_slice(rows, 0, s->pos, s->T), tri_of_seq(x, s));
}

/* Attention probabilities [H, T, S] of one sequence, if somebody wants them. */
static tr_status tri_push_probs(tr_run *r, tr_view *probs, int64_t H, int64_t T, int64_t S)
{
    char name[256];
    *probs = tr_view_none();
    tri_full_name(r, name, "self_attn.attn_probs");
    if (!r->opts.profile->expanded || !tri_wanted(r, name, TRI_TAP_FINE)) return TR_OK;
    return tri_push3(r, probs, H, T, S);
}

static tr_status tri_tap_seq(tr_run *r, const char *suffix, tr_view x, tr_tap_kind kind, int64_t b)
{
    char name[256];
    tri_full_name(r, name, suffix);
    if (tr_view_is_none(x) || !tri_wanted(r, name, TRI_TAP_FINE)) return TR_OK;
    return tri_tap_as(r, name, x, kind, b);
}

/* Grouped-query attention: q, k, v; rope; softmax over the keys and values remembered; o. */
static tr_status tri_gqa(tr_run *r, tr_layer *ly)
{
    const tr_config *c = &r->model->cfg;
    int64_t N = r->N, H = c->heads, G = c->kv_heads, Dk = c->head_dim;
    tri_seq s = tri_first_seq();
    tr_view q, k, v, ctx;
    TRI_TRY(tri_push2(r, &q, N, H * Dk));
    TRI_TRY(tri_push2(r, &k, N, G * Dk));
    TRI_TRY(tri_push2(r, &v, N, G * Dk));
    TRI_TRY(tri_push3(r, &ctx, N, H, Dk));
    TRI_TRY(tri_linear(r, ly, TR_W_Q, q, r->x));
    TRI_TRY(tri_linear(r, ly, TR_W_K, k, r->x));
    TRI_TRY(tri_linear(r, ly, TR_W_V, v, r->x));
    q = tr_view_split(q, 1, Dk);
    k = tr_view_split(k, 1, Dk);
    v = tr_view_split(v, 1, Dk);
    r->doing = "self_attn";
    TRI_TRY(tri_rope(r, q));
    TRI_TRY(tri_rope(r, k));
    TRI_TRY(tri_tap(r, "self_attn.q", q, TRI_TAP_FINE));
    TRI_TRY(tri_tap(r, "self_attn.k", k, TRI_TAP_FINE));
    while (tri_next_seq(r, &s)) {
        size_t mark = tr_arena_mark(&r->arena);
        tr_attn_args a;
        memset(&a, 0, sizeof a);
        TRI_TRY(tri_remember(r, ly, TR_STATE_K, &s, k));
        TRI_TRY(tri_remember(r, ly, TR_STATE_V, &s, v));
        TRI_TRY(tri_push_probs(r, &a.probs, H, s.T, s.pos + s.T));
        a.y = tri_of_seq(ctx, &s);
        a.q = tri_of_seq(q, &s);
        a.k = tri_rows_seen(r, ly, TR_STATE_K, &s);
        a.v = tri_rows_seen(r, ly, TR_STATE_V, &s);
        a.pos = s.pos;
        a.scale = 1 / sqrt((double)Dk);
        TRI_TRY(tri_in(r, "self_attn", r->ops.attn(r->ops.user, r->ctx, &a)));
        TRI_TRY(tri_tap_seq(r, "self_attn.attn_probs", a.probs, TR_TAP_PROBS, s.b));
        tr_arena_rewind(&r->arena, mark);
    }
    TRI_TRY(tri_tap_in(r, "self_attn", c->family->context, ctx, TRI_TAP_FINE));
    ctx = tr_view2(ctx.data, ctx.dtype, N, H * Dk);
    TRI_TRY(tri_tap(r, "self_attn.o_proj.input", ctx, TRI_TAP_FINE));
    return tri_linear(r, ly, TR_W_O, r->a, ctx);
}

/* Queries of latent attention: directly, or through their own normed latent. */
static tr_status tri_mla_queries(tr_run *r, tr_layer *ly, tr_view q)
{
    const tr_config *c = &r->model->cfg;
    tr_view lat;
    if (!c->q_lora) return tri_linear(r, ly, TR_W_Q, q, r->x);
    TRI_TRY(tri_push2(r, &lat, r->N, c->q_lora));
    TRI_TRY(tri_linear(r, ly, TR_W_Q_A, lat, r->x));
    TRI_TRY(tri_rms(r, ly, TR_W_Q_A_NORM, lat, c->inner_eps, "self_attn.q_a_layernorm"));
    return tri_linear(r, ly, TR_W_Q_B, q, lat);
}

/* Expanded keys of one sequence's new tokens, [T, H, Dn + Dr]: only for whoever taps them. */
static tr_status tri_tap_mla_keys(tr_run *r, const tri_seq *s, tr_view kv, tr_view latent)
{
    const tr_config *c = &r->model->cfg;
    char name[256];
    tr_view k, shared;
    tri_full_name(r, name, "self_attn.k");
    if (tr_view_is_none(kv) || !tri_wanted(r, name, TRI_TAP_FINE)) return TR_OK;
    TRI_TRY(tri_push3(r, &k, s->T, c->heads, c->nope + c->rope));
    kv = tr_view_split(tr_view_slice(kv, 0, s->pos, s->T), 1, c->nope + c->v_dim);
    shared = tr_view_slice(tr_view_slice(latent, 0, s->pos, s->T), 1, c->kv_lora, c->rope);
    shared = tr_view_split(shared, 1, c->rope);
    shared.shape[1] = c->heads;                     /* one vector, read by every head */
    shared.stride[1] = 0;
    TRI_TRY(tri_copy(r, tr_view_slice(k, 2, 0, c->nope), tr_view_slice(kv, 2, 0, c->nope)));
    TRI_TRY(tri_copy(r, tr_view_slice(k, 2, c->nope, c->rope), shared));
    return tri_tap_as(r, name, k, TR_TAP_ROWS, s->b);
}

static tr_status tri_mla_attend(tr_run *r, tr_layer *ly, const tri_seq *s, tr_view ctx, tr_view q)
{
    const tr_config *c = &r->model->cfg;
    size_t mark = tr_arena_mark(&r->arena);
    int64_t S = s->pos + s->T;
    tr_mla_args a;
    memset(&a, 0, sizeof a);
    if (r->opts.profile->expanded)
        TRI_TRY(tri_push2(r, &a.kv, S, c->heads * (c->nope + c->v_dim)));
    else TRI_TRY(tri_push3(r, &a.absorbed, s->T, c->heads, 2 * c->kv_lora + c->rope));
    TRI_TRY(tri_push_probs(r, &a.probs, c->heads, s->T, S));
    a.y = tri_of_seq(ctx, s);
    a.q = tri_of_seq(q, s);
    a.latent = tri_rows_seen(r, ly, TR_STATE_LATENT, s);
    a.kv_b = &ly->w[TR_W_KV_B];
    a.rope = c->rope;
    a.pos = s->pos;
    a.scale = 1 / sqrt((double)(c->nope + c->rope));
    if (c->family->rotates) a.scale *= tr_rope_softmax_mult(&c->rope_cfg);
    TRI_TRY(tri_in(r, "self_attn", r->ops.mla(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_tap_seq(r, "self_attn.attn_probs", a.probs, TR_TAP_PROBS, s->b));
    if (!tr_view_is_none(a.kv))
        TRI_TRY(tri_tap_seq(r, "self_attn.kv_b_proj", tr_view_slice(a.kv, 0, s->pos, s->T),
                            TR_TAP_ROWS, s->b));
    TRI_TRY(tri_tap_mla_keys(r, s, a.kv, a.latent));
    tr_arena_rewind(&r->arena, mark);
    return TR_OK;
}

/* Multi-head latent attention: queries; the latent row and its shared key part, remembered;
 * attention; the output gate, if any; o. */
static tr_status tri_mla(tr_run *r, tr_layer *ly)
{
    const tr_config *c = &r->model->cfg;
    int64_t N = r->N, H = c->heads, Dk = c->nope + c->rope, R = c->kv_lora;
    tri_seq s = tri_first_seq();
    tr_view q, lat, ctx, flat, g;
    TRI_TRY(tri_push2(r, &q, N, H * Dk));
    TRI_TRY(tri_push2(r, &lat, N, R + c->rope));
    TRI_TRY(tri_push3(r, &ctx, N, H, c->v_dim));
    TRI_TRY(tri_mla_queries(r, ly, q));
    q = tr_view_split(q, 1, Dk);
    TRI_TRY(tri_linear(r, ly, TR_W_KV_A, lat, r->x));
    TRI_TRY(tri_rms(r, ly, TR_W_KV_A_NORM, tr_view_slice(lat, 1, 0, R), c->inner_eps,
                    "self_attn.kv_a_layernorm"));
    r->doing = "self_attn";
    if (c->family->rotates) {
        TRI_TRY(tri_rope(r, tr_view_slice(q, 2, c->nope, c->rope)));
        TRI_TRY(tri_rope(r, tr_view_split(tr_view_slice(lat, 1, R, c->rope), 1, c->rope)));
    }
    TRI_TRY(tri_tap(r, "self_attn.q", q, TRI_TAP_FINE));
    TRI_TRY(tri_in(r, "self_attn.kv_b_proj", tri_check_weight(r, &ly->w[TR_W_KV_B])));
    while (tri_next_seq(r, &s)) {
        TRI_TRY(tri_remember(r, ly, TR_STATE_LATENT, &s, lat));
        TRI_TRY(tri_mla_attend(r, ly, &s, ctx, q));
    }
    TRI_TRY(tri_tap_in(r, "self_attn", c->family->context, ctx, TRI_TAP_FINE));
    flat = tr_view2(ctx.data, ctx.dtype, N, H * c->v_dim);
    if (c->out_gate) {
        TRI_TRY(tri_push2(r, &g, N, H * c->v_dim));
        TRI_TRY(tri_linear(r, ly, TR_W_G, g, r->x));
        TRI_TRY(tri_sigmoid_gate(r, flat, g));
    }
    TRI_TRY(tri_tap(r, "self_attn.o_proj.input", flat, TRI_TAP_FINE));
    return tri_linear(r, ly, TR_W_O, r->a, flat);
}

/* One of q, k, v: projection, then the short convolution over what the state remembers. */
static tr_status tri_kda_conv(tr_run *r, tr_layer *ly, tr_weight_id proj, tr_weight_id conv,
                              tr_state_kind hist, tr_view y, const char *suffix)
{
    tri_seq s = tri_first_seq();
    tr_view x;
    size_t mark = tr_arena_mark(&r->arena);
    TRI_TRY(tri_push2(r, &x, y.shape[0], y.shape[1]));
    TRI_TRY(tri_linear(r, ly, proj, x, r->x));
    r->doing = suffix;
    while (tri_next_seq(r, &s)) {
        tr_conv_args a;
        a.y = tri_of_seq(y, &s);
        a.x = tri_of_seq(x, &s);
        a.w = tri_vec(r, ly, conv);
        a.hist = tr_state_slot(&r->state, ly->index, hist, s.b);
        a.silu = 1;
        TRI_TRY(tri_in(r, suffix, r->ops.shortconv(r->ops.user, r->ctx, &a)));
    }
    tr_arena_rewind(&r->arena, mark);
    return tri_tap(r, suffix, y, TRI_TAP_FINE);
}

/* Log decay of every channel and write strength of every head. */
static tr_status tri_kda_decay(tr_run *r, tr_layer *ly, tr_view g, tr_view beta)
{
    const tr_config *c = &r->model->cfg;
    int64_t N = r->N, H = c->kda_heads, K = c->kda_dim;
    size_t mark = tr_arena_mark(&r->arena);
    tr_view low, z, b;
    tr_decay_args a;
    TRI_TRY(tri_push2(r, &low, N, K));
    TRI_TRY(tri_push2(r, &z, N, H * K));
    TRI_TRY(tri_push2(r, &b, N, H));
    TRI_TRY(tri_linear(r, ly, TR_W_F_A, low, r->x));
    TRI_TRY(tri_linear(r, ly, TR_W_F_B, z, low));
    TRI_TRY(tri_linear(r, ly, TR_W_B, b, r->x));
    r->doing = "self_attn.kda_g";
    a.g = g;
    a.beta = beta;
    a.z = tr_view_split(z, 1, K);
    a.b = b;
    a.A_log = tri_vec(r, ly, TR_W_A_LOG);
    a.dt_bias = tr_view_split(tri_vec(r, ly, TR_W_DT_BIAS), 0, K);
    a.kind = c->decay_bound < 0 ? TR_DECAY_BOUNDED : TR_DECAY_SOFTPLUS;
    a.bound = c->decay_bound;
    TRI_TRY(tri_in(r, "self_attn", r->ops.decay(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_tap(r, "self_attn.kda_g", g, TRI_TAP_FINE));
    TRI_TRY(tri_tap(r, "self_attn.kda_beta", beta, TRI_TAP_FINE));
    tr_arena_rewind(&r->arena, mark);
    return TR_OK;
}

/* Kimi delta attention: convolved q, k, v; decay and write strength; the recurrence; a norm gated
 * by the sublayer's input; o. */
static tr_status tri_kda(tr_run *r, tr_layer *ly)
{
    const tr_config *c = &r->model->cfg;
    int64_t N = r->N, H = c->kda_heads, K = c->kda_dim;
    tri_seq s = tri_first_seq();
    tr_view q, k, v, g, beta, o, gate;
    TRI_TRY(tri_push2(r, &q, N, H * K));
    TRI_TRY(tri_push2(r, &k, N, H * K));
    TRI_TRY(tri_push2(r, &v, N, H * K));
    TRI_TRY(tri_push3(r, &g, N, H, K));
    TRI_TRY(tri_push2(r, &beta, N, H));
    TRI_TRY(tri_push3(r, &o, N, H, K));
    TRI_TRY(tri_push2(r, &gate, N, H * K));
    TRI_TRY(tri_kda_conv(r, ly, TR_W_Q, TR_W_Q_CONV, TR_STATE_CONV_Q, q, "self_attn.q_conv1d"));
    TRI_TRY(tri_kda_conv(r, ly, TR_W_K, TR_W_K_CONV, TR_STATE_CONV_K, k, "self_attn.k_conv1d"));
    TRI_TRY(tri_kda_conv(r, ly, TR_W_V, TR_W_V_CONV, TR_STATE_CONV_V, v, "self_attn.v_conv1d"));
    q = tr_view_split(q, 1, K);
    k = tr_view_split(k, 1, K);
    v = tr_view_split(v, 1, K);
    TRI_TRY(tri_kda_decay(r, ly, g, beta));
    TRI_TRY(tri_norm(r, ly, TR_NORM_L2, TR_W_NONE, q, tr_view_none(), c->l2_eps,
                     1 / sqrt((double)K), "self_attn.kda_qn"));
    TRI_TRY(tri_norm(r, ly, TR_NORM_L2, TR_W_NONE, k, tr_view_none(), c->l2_eps, 1,
                     "self_attn.kda_kn"));
    r->doing = "self_attn.kda_o";
    while (tri_next_seq(r, &s)) {
        tr_delta_args a;
        a.o = tri_of_seq(o, &s);
        a.q = tri_of_seq(q, &s);
        a.k = tri_of_seq(k, &s);
        a.v = tri_of_seq(v, &s);
        a.g = tri_of_seq(g, &s);
        a.beta = tri_of_seq(beta, &s);
        a.S = tr_state_slot(&r->state, ly->index, TR_STATE_DELTA, s.b);
        TRI_TRY(tri_in(r, "self_attn", r->ops.delta(r->ops.user, r->ctx, &a)));
    }
    TRI_TRY(tri_tap(r, "self_attn.kda_o", o, TRI_TAP_FINE));
    TRI_TRY(tri_linear(r, ly, TR_W_G, gate, r->x));
    TRI_TRY(tri_norm(r, ly, TR_NORM_RMS, TR_W_O_NORM, o, tr_view_split(gate, 1, K), c->eps, 1,
                     "self_attn.o_norm"));
    return tri_linear(r, ly, TR_W_O, r->a, tr_view2(o.data, o.dtype, N, H * K));
}

/* ---- channel mixers: read r->x, write r->a -------------------------------- */

/* The activation that the config names, and its numbers. */
static const tr_act *tri_act_of(const tr_run *r, double p[TR_ACT_PARAMS])
{
    p[0] = r->model->cfg.act_p0;
    p[1] = r->model->cfg.act_p1;
    return tr_act_find(r->ctx, r->model->cfg.act);
}

/* y = down(act(gate x, up x)); `inner` names the tap of what enters down. */
static tr_status tri_mlp(tr_run *r, tr_layer *ly, const tr_weight_id id[3], int64_t F, tr_view y,
                         const char *inner)
{
    size_t mark = tr_arena_mark(&r->arena);
    tr_glu_args a;
    TRI_TRY(tri_push2(r, &a.g, r->N, F));
    TRI_TRY(tri_push2(r, &a.u, r->N, F));
    TRI_TRY(tri_linear(r, ly, id[0], a.g, r->x));
    TRI_TRY(tri_linear(r, ly, id[1], a.u, r->x));
    r->doing = ly->spec[id[2]]->name;
    a.y = a.g;
    a.act = tri_act_of(r, a.p);
    TRI_TRY(tri_in(r, inner, r->ops.glu(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_tap(r, inner, a.y, TRI_TAP_FINE));
    TRI_TRY(tri_linear(r, ly, id[2], y, a.y));
    tr_arena_rewind(&r->arena, mark);
    return TR_OK;
}

static tr_status tri_dense(tr_run *r, tr_layer *ly)
{
    static const tr_weight_id id[3] = { TR_W_GATE, TR_W_UP, TR_W_DOWN };
    return tri_mlp(r, ly, id, r->model->cfg.ffn, r->a, "mlp.down_proj.input");
}

/* Which K of the E experts, and with what weights. */
static tr_status tri_router(tr_run *r, tr_layer *ly, tr_view ids, tr_view weights)
{
    const tr_config *c = &r->model->cfg;
    const char *moe = c->family->moe;
    size_t mark = tr_arena_mark(&r->arena);
    tr_route_args a;
    memset(&a, 0, sizeof a);
    TRI_TRY(tri_push2(r, &a.logits, r->N, c->experts));
    TRI_TRY(tri_push2(r, &a.scores, r->N, c->experts));
    TRI_TRY(tri_linear(r, ly, TR_W_ROUTER, a.logits, r->x));
    r->doing = "gate.topk_ids";
    a.ids = ids;
    a.weights = weights;
    if (ly->spec[TR_W_ROUTER_BIAS]) a.bias = tri_vec(r, ly, TR_W_ROUTER_BIAS);
    a.score = strcmp(c->score, "sigmoid") ? TR_SCORE_SOFTMAX : TR_SCORE_SIGMOID;
    a.groups = c->groups;
    a.keep = c->keep_groups;
    a.renorm = c->renorm != 0;
    a.renorm_eps = c->renorm_eps;
    a.scale = c->route_scale;
    TRI_TRY(tri_check_finite(r, ly->spec[TR_W_ROUTER]->name, a.logits));
    TRI_TRY(tri_in(r, moe, r->ops.route(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_tap_in(r, moe, "gate.scores", a.scores, TRI_TAP_FINE));
    TRI_TRY(tri_tap_in(r, moe, "gate.topk_ids", ids, TRI_TAP_MAIN));
    TRI_TRY(tri_tap_in(r, moe, "gate.topk_weights", weights, TRI_TAP_MAIN));
    tr_arena_rewind(&r->arena, mark);
    return TR_OK;
}

/* Every expert that a token chose must be sound before it is used; who computes one that is not
 * held here looks at it there. */
static tr_status tri_check_experts(tr_run *r, tr_layer *ly, tr_view offset)
{
    const int32_t *at = (const int32_t *)offset.data;
    if (r->ops.dry) return TR_OK;
    for (int64_t e = 0; e < r->model->cfg.experts; e++)
        for (int k = 0; at[e] < at[e + 1] && k < 3; k++)
            if (ly->expert[k][e].q) TRI_TRY(tri_check_weight(r, &ly->expert[k][e]));
    return TR_OK;
}

/* y = sum of w_e expert_e(z) over the chosen experts. */
static tr_status tri_routed(tr_run *r, tr_layer *ly, tr_view y, tr_view z, tr_view ids,
                            tr_view weights)
{
    const tr_config *c = &r->model->cfg;
    const char *moe = c->family->moe;
    int64_t N = r->N, K = c->topk, F = c->moe_ffn;
    tr_dispatch_args d;
    tr_experts_args a;
    tr_combine_args m;
    r->doing = "experts";
    TRI_TRY(tri_push(r, &d.order, tr_view1(NULL, TR_I32, N * K)));
    TRI_TRY(tri_push(r, &d.offset, tr_view1(NULL, TR_I32, c->experts + 1)));
    d.ids = ids;
    d.experts = c->experts;
    TRI_TRY(tri_in(r, moe, r->ops.dispatch(r->ops.user, r->ctx, &d)));
    TRI_TRY(tri_in(r, moe, tri_check_experts(r, ly, d.offset)));
    TRI_TRY(tri_push3(r, &a.y, N, K, y.shape[1]));
    TRI_TRY(tri_push2(r, &a.g, N * K, F));
    TRI_TRY(tri_push2(r, &a.u, N * K, F));
    a.x = z;
    a.order = d.order;
    a.offset = d.offset;
    a.gate = ly->expert[0];
    a.up = ly->expert[1];
    a.down = ly->expert[2];
    a.act = tri_act_of(r, a.p);
    TRI_TRY(tri_in(r, moe, r->ops.experts(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_tap_in(r, moe, "experts_out", a.y, TRI_TAP_FINE));
    m.y = y;
    m.x = a.y;
    m.weights = weights;
    TRI_TRY(tri_in(r, moe, r->ops.combine(r->ops.user, r->ctx, &m)));
    return tri_tap_in(r, moe, c->family->routed, y, TRI_TAP_FINE);
}

/* Mixture of experts: route; the chosen experts, at full width or in a latent that is normed after
 * the weighted sum; the shared expert beside them, unweighted.
 *
 *     full width:  y = sum_e w_e expert_e(x) + shared(x)
 *     latent:      z = W_down x    u = sum_e w_e expert_e(z)    y = W_up rmsnorm(u) + shared(x) */
static tr_status tri_moe(tr_run *r, tr_layer *ly)
{
    static const tr_weight_id shared[3] = { TR_W_SHARED_GATE, TR_W_SHARED_UP, TR_W_SHARED_DOWN };
    const tr_config *c = &r->model->cfg;
    char inner[96], norm[96];
    tr_view ids, weights, z = r->x, y = r->a, sh;
    TRI_TRY(tri_push(r, &ids, tr_view2(NULL, TR_I32, r->N, c->topk)));
    TRI_TRY(tri_push2(r, &weights, r->N, c->topk));
    TRI_TRY(tri_router(r, ly, ids, weights));
    if (c->latent) {
        TRI_TRY(tri_push2(r, &z, r->N, c->latent));
        TRI_TRY(tri_push2(r, &y, r->N, c->latent));
        TRI_TRY(tri_linear(r, ly, TR_W_LATENT_DOWN, z, r->x));
    }
    TRI_TRY(tri_routed(r, ly, y, z, ids, weights));
    if (c->latent) {
        snprintf(norm, sizeof norm, "%s.routed_expert_norm", c->family->moe);
        TRI_TRY(tri_rms(r, ly, TR_W_LATENT_NORM, y, c->eps, norm));
        TRI_TRY(tri_linear(r, ly, TR_W_LATENT_UP, r->a, y));
    }
    if (!c->shared) return TR_OK;
    TRI_TRY(tri_push2(r, &sh, r->N, c->hidden));
    snprintf(inner, sizeof inner, "%s.shared_experts.down_proj.input", c->family->moe);
    TRI_TRY(tri_mlp(r, ly, shared, c->shared * c->moe_ffn, sh, inner));
    TRI_TRY(tri_tap_in(r, c->family->moe, "shared_experts", sh, TRI_TAP_FINE));
    return tri_add(r, r->a, r->a, sh);
}

/* ---- residual rules: what a sublayer reads, how its result returns -------- */

typedef struct tri_residual {
    tr_status (*read)(tr_run *r, tr_layer *ly, int sub);    /* leaves it in r->x */
    tr_status (*write)(tr_run *r, tr_layer *ly, int sub);   /* takes r->a */
} tri_residual;

static tr_view tri_h(const tr_run *r) { return tr_view_slice(r->hidden.h, 0, 0, r->N); }

static tr_view tri_snaps(const tr_run *r, int64_t n)
{
    return tr_view_slice(tr_view_slice(r->hidden.snaps, 0, 0, n), 1, 0, r->N);
}

static tr_status tri_plain_read(tr_run *r, tr_layer *ly, int sub)
{
    (void)ly;
    (void)sub;
    return tri_copy(r, r->x, tri_h(r));
}

static tr_status tri_plain_write(tr_run *r, tr_layer *ly, int sub)
{
    (void)ly;
    (void)sub;
    return tri_add(r, tri_h(r), tri_h(r), r->a);
}

static tr_status tri_mix(tr_run *r, tr_layer *ly, tr_weight_id norm, tr_weight_id proj, tr_view y,
                         const char *suffix)
{
    tr_mix_args a;
    r->doing = suffix;
    a.y = y;
    a.snaps = tri_snaps(r, r->hidden.n);
    a.h = tri_h(r);
    a.norm = tri_vec(r, ly, norm);
    a.proj = tri_vec(r, ly, proj);
    a.probs = tr_view_none();
    a.eps = r->model->cfg.eps;
    TRI_TRY(tri_in(r, suffix, r->ops.mix(r->ops.user, r->ctx, &a)));
    return tri_tap(r, suffix, y, TRI_TAP_FINE);
}

/* The first sublayer of layer l reads x = mix(block sums, h). If l % res_block == 0 it then pushes
 * h, the running sum as it entered (not x), as the next block sum, and h starts anew with the
 * sublayer's result. Layer 0 is such a layer: its h, the embedding, is the first block sum, and as
 * there is nothing to mix yet it reads h itself. The second sublayer only mixes. */
static tr_status tri_attnres_read(tr_run *r, tr_layer *ly, int sub)
{
    const tr_config *c = &r->model->cfg;
    if (sub == 1) return tri_mix(r, ly, TR_W_RES2_NORM, TR_W_RES2_PROJ, r->x, "mlp_res");
    if (r->hidden.n)
        TRI_TRY(tri_mix(r, ly, TR_W_RES1_NORM, TR_W_RES1_PROJ, r->x, "self_attention_res"));
    else TRI_TRY(tri_copy(r, r->x, tri_h(r)));
    if (ly->index % c->res_block) return TR_OK;
    TRI_TRY(tri_copy(r, tr_view_at(tri_snaps(r, r->hidden.n + 1), r->hidden.n), tri_h(r)));
    r->hidden.n++;
    r->empty = 1;
    return TR_OK;
}

static tr_status tri_attnres_write(tr_run *r, tr_layer *ly, int sub)
{
    int empty = r->empty;
    (void)ly;
    (void)sub;
    r->empty = 0;
    return empty ? tri_copy(r, tri_h(r), r->a) : tri_add(r, tri_h(r), tri_h(r), r->a);
}

/* ---- one layer ----------------------------------------------------------- */

typedef tr_status (*tri_sublayer_fn)(tr_run *r, tr_layer *ly);

static const tri_sublayer_fn tri_mixers[] = { tri_gqa, tri_mla, tri_kda };
static const tri_sublayer_fn tri_ffns[] = { tri_dense, tri_moe };
static const tri_residual tri_residuals[] = {
    { tri_plain_read, tri_plain_write },
    { tri_attnres_read, tri_attnres_write }
};

/* Two sublayers, token mixer then feed-forward:
 *     x = read(h)     x = norm(x)     a = f(x)     h = write(h, a)
 * plain:    read h            write h + a
 * attnres:  read mix(B, h)    write h + a,  B grows and h restarts at block boundaries        */
tr_status tr_layer_forward(tr_run *r, tr_layer *ly)
{
    const tr_config *c = &r->model->cfg;
    const tri_residual *res = &tri_residuals[c->res_block ? TR_RES_ATTN : TR_RES_PLAIN];
    r->layer = ly;
    for (int i = 0; i < 2; i++) {
        tri_sublayer_fn f = i ? tri_ffns[ly->kind.ffn] : tri_mixers[ly->kind.mixer];
        const char *name = !i ? "self_attn" : ly->kind.ffn == TR_FFN_MOE ? c->family->moe : "mlp";
        size_t mark = tr_arena_mark(&r->arena);
        r->doing = "";
        TRI_TRY(res->read(r, ly, i));
        TRI_TRY(tri_rms(r, ly, i ? TR_W_NORM2 : TR_W_NORM1, r->x, c->eps,
                        i ? "post_attention_layernorm" : "input_layernorm"));
        TRI_TRY(f(r, ly));
        TRI_TRY(tri_check_finite(r, name, r->a));
        TRI_TRY(tri_tap(r, name, r->a, TRI_TAP_MAIN));
        r->doing = "";
        TRI_TRY(res->write(r, ly, i));
        tr_arena_rewind(&r->arena, mark);
    }
    TRI_TRY(tri_tap(r, "", tri_h(r), TRI_TAP_MAIN));
    r->layer = NULL;
    return TR_OK;
}

/* ---- images --------------------------------------------------------------- */

int64_t tr_image_rows(const tr_config *c, const tr_images *im, int64_t i)
{
    return im->grid[3 * i + 1] / c->vit_merge.v[0] * (im->grid[3 * i + 2] / c->vit_merge.v[1]);
}

static tr_status tri_check_grid(tr_ctx *ctx, const tr_config *c, const int64_t *grid, int64_t i)
{
    long long t = grid[0], h = grid[1], w = grid[2], mh = c->vit_merge.v[0], mw = c->vit_merge.v[1];
    if (t < 1 || t > c->vit_frames)
        return tr_fail(ctx, TR_ERR_RANGE, "image %lld: %lld frame%s; %s takes 1 to %lld",
                       (long long)i, t, TRI_S(t), c->family->name, (long long)c->vit_frames);
    if (h < 1 || w < 1 || (double)h > c->vit_grid || (double)w > c->vit_grid)
        return tr_fail(ctx, TR_ERR_RANGE, "image %lld: a grid of %lld x %lld patches; %s takes 1 "
                       "to %lld a side", (long long)i, h, w, c->family->name,
                       (long long)c->vit_grid);
    if (h % mh || w % mw)
        return tr_fail(ctx, TR_ERR_SHAPE, "image %lld: a grid of %lld x %lld patches does not "
                       "divide into cells of %lld x %lld", (long long)i, h, w, mh, mw);
    return TR_OK;
}

static tr_status tri_check_images(tr_ctx *ctx, const tr_config *c, const tr_images *im)
{
    char s[96];
    const tr_view *v = &im->pixels;
    int64_t P = c->vit_patch, patches = 0;
    if (!c->vit_layers)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s has no vision tower: it takes no images (%lld "
                       "given)", c->family->name, (long long)im->n);
    if (im->n < 1 || !v->data) return tr_fail(ctx, TR_ERR_ARG, "no images were given");
    if (v->dtype != TR_F32)
        return tr_fail(ctx, TR_ERR_DTYPE, "pixel_values is %s, not F32", tr_view_str(*v, s));
    if (v->rank != 4 || v->shape[1] != 3 || v->shape[2] != P || v->shape[3] != P ||
        !tr_view_is_contig(*v))
        return tr_fail(ctx, TR_ERR_SHAPE, "pixel_values is %s; %s takes patches [3, %lld, %lld]",
                       tr_view_str(*v, s), c->family->name, (long long)P, (long long)P);
    for (int64_t i = 0; i < im->n; i++) {
        const int64_t *g = im->grid + 3 * i;
        TRI_TRY(tri_check_grid(ctx, c, g, i));
        if (g[0] * g[1] > (v->shape[0] - patches) / g[2])
            return tr_fail(ctx, TR_ERR_SHAPE, "the grid of image %lld, %lld x %lld x %lld, does "
                           "not fit the %lld patches left of %lld in pixel_values", (long long)i,
                           (long long)g[0], (long long)g[1], (long long)g[2],
                           (long long)(v->shape[0] - patches), (long long)v->shape[0]);
        patches += g[0] * g[1] * g[2];
    }
    if (patches == v->shape[0]) return TR_OK;
    return tr_fail(ctx, TR_ERR_SHAPE, "the grid%s of %lld image%s make%s %lld patches, "
                   "pixel_values holds %lld", TRI_S(im->n), (long long)im->n, TRI_S(im->n),
                   im->n == 1 ? "s" : "", (long long)patches, (long long)v->shape[0]);
}

tr_status tr_run_opts_images(tr_ctx *ctx, tr_run_opts *o, const tr_config *c, const tr_images *im)
{
    TRI_TRY(tri_check_images(ctx, c, im));
    o->max_patches = o->image_rows = 0;
    o->max_images = im->n;
    for (int64_t i = 0; i < im->n; i++) {
        int64_t n = im->grid[3 * i] * im->grid[3 * i + 1] * im->grid[3 * i + 2];
        if (n > o->max_patches) o->max_patches = n;
        o->image_rows += tr_image_rows(c, im, i);
    }
    return TR_OK;
}

static int64_t tri_placeholders(const tr_config *c, const tr_batch *b)
{
    int64_t all = 0, n = 0;
    for (int64_t s = 0; s < b->B; s++) all += b->T[s];
    for (int64_t i = 0; i < all; i++) n += b->ids[i] == c->media.v[0];
    return n;
}

tr_status tr_expand_images(tr_ctx *ctx, int64_t *T, int32_t *ids, const tr_config *c,
                           const tr_images *im, const tr_batch *b)
{
    int64_t n, k = 0, at = 0;
    const int32_t *id = b->ids;
    TRI_TRY(tri_check_images(ctx, c, im));
    n = tri_placeholders(c, b);
    if (n != im->n)
        return tr_fail(ctx, TR_ERR_ARG, "%s: %lld placeholder%s (id %lld) in the prompts for "
                       "%lld image%s; each image needs one", c->family->name, (long long)n,
                       TRI_S(n), (long long)c->media.v[0], (long long)im->n, TRI_S(im->n));
    for (int64_t s = 0; s < b->B; s++) {
        int64_t from = at;
        for (int64_t t = 0; t < b->T[s]; t++, id++) {
            int64_t rows = *id == c->media.v[0] ? tr_image_rows(c, im, k++) : 1;
            for (int64_t i = 0; ids && i < rows; i++) ids[at + i] = *id;
            at += rows;
        }
        T[s] = at - from;
    }
    return TR_OK;
}

/* One image on its way through the tower. */
typedef struct tri_sight {
    int64_t image, t, h, w, N;          /* its number, grid and patches */
    int64_t at;                         /* its first patch in the pixels given */
    int64_t tap_at, patches;            /* and among those of all images */
} tri_sight;

/* Name of a module from its weight's: the block's number put in, ".weight" left out. */
static void tri_vit_name(const tr_run *r, char out[256], const tr_layer *ly, tr_weight_id id)
{
    char *end;
    tri_name(out, 256, "", ly->spec[id]->name, r->block ? r->block->index : 0);
    end = strstr(out, ".weight");
    if (end) *end = 0;
}

static tr_status tri_vit_in(tr_run *r, const char *name, tr_status s)
{
    return s == TR_OK ? s : tr_fail_in(r->ctx, s, "%s", name);
}

/* x: rows of one image, from `row` of all images' `rows` on; under a full name. */
static tr_status tri_vit_tap(tr_run *r, const char *name, tr_view x, int64_t row, int64_t rows,
                             tri_tap_class cls)
{
    tr_tap t;
    if (r->ops.dry || !tri_wanted(r, name, cls)) return TR_OK;
    TRI_TRY(tri_whole(r, x));
    memset(&t, 0, sizeof t);
    t.name = name;
    t.x = x;
    t.kind = TR_TAP_PATCHES;
    t.seq = -1;
    t.row = row;
    t.rows = rows;
    t.image = r->image;
    return r->opts.tap(r->opts.tap_user, r->ctx, &t);
}

/* The same, under the name of the block and what is in it. */
static tr_status tri_vit_tap_in(tr_run *r, const tri_sight *z, const char *part, tr_view x,
                                tri_tap_class cls)
{
    char name[256];
    snprintf(name, sizeof name, "vision_tower.encoder.blocks.%lld%s", (long long)r->block->index,
             part);
    return tri_vit_tap(r, name, x, z->tap_at, z->patches, cls);
}

static tr_status tri_vit_finite(tr_run *r, const tri_sight *z, const char *name, tr_view x)
{
    int64_t row, d;
    double v;
    TRI_TRY(tri_whole(r, x));
    if (!tri_find_not_finite(r, x, &row, &d, &v)) return TR_OK;
    return tr_fail(r->ctx, TR_ERR_NOT_FINITE, "%s: image %lld, row %lld, element %lld is %g", name,
                   (long long)z->image, (long long)row, (long long)d, v);
}

/* y = x W^T, without a tap. */
static tr_status tri_vit_linear(tr_run *r, tr_layer *ly, tr_weight_id id, tr_view y, tr_view x)
{
    char name[256];
    tri_vit_name(r, name, ly, id);
    return tri_vit_in(r, name, tri_op_matmul(r, ly, id, y, x));
}

static tr_status tri_vit_norm(tr_run *r, tr_layer *ly, tr_weight_id id, tr_view y, tr_view x,
                              double eps)
{
    char name[256];
    tri_vit_name(r, name, ly, id);
    return tri_vit_in(r, name, tri_op_norm(r, ly, TR_NORM_RMS, id, y, x, tr_view_none(), eps, 1,
                                           name));
}

static tr_status tri_vit_gelu(tr_run *r, tr_view x, tr_gelu_kind kind, const char *name)
{
    tr_gelu_args a;
    a.y = x;
    a.x = x;
    a.kind = kind;
    return tri_vit_in(r, name, r->ops.gelu(r->ops.user, r->ctx, &a));
}

/* h = W pixels + positions. */
static tr_status tri_vit_embed(tr_run *r, const tri_sight *z, const tr_images *im, tr_view h)
{
    static const char proj[] = "vision_tower.patch_embed.proj";
    const tr_config *c = &r->model->cfg;
    tr_layer *top = &r->model->top;
    size_t mark = tr_arena_mark(&r->arena);
    int64_t I = 3 * c->vit_patch * c->vit_patch;
    tr_view x, pos;
    tr_pos_args a;
    TRI_TRY(tri_push2(r, &x, z->N, I));
    TRI_TRY(tri_push2(r, &pos, z->N, c->vit_dim));
    if (!r->ops.dry) {
        float *from = tr_view_f32(im->pixels) + z->at * I;
        TRI_TRY(tr_view_copy(r->ctx, x, tr_view2(from, TR_F32, z->N, I)));
    }
    TRI_TRY(tri_vit_finite(r, z, "pixel_values", x));
    TRI_TRY(tri_vit_linear(r, top, TR_W_VIT_PATCH, h, x));
    TRI_TRY(tri_vit_tap(r, proj, h, z->tap_at, z->patches, TRI_TAP_FINE));
    r->doing = top->spec[TR_W_VIT_POS]->name;
    a.y = pos;
    a.table = &top->w[TR_W_VIT_POS];
    a.t = z->t;
    a.h = z->h;
    a.w = z->w;
    a.theta = c->vit_time_theta;
    TRI_TRY(tri_vit_in(r, r->doing, tri_check_weight(r, &top->w[TR_W_VIT_POS])));
    TRI_TRY(tri_vit_in(r, r->doing, r->ops.pos(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_add(r, h, h, pos));
    tr_arena_rewind(&r->arena, mark);
    return tri_vit_tap(r, "vision_tower.patch_embed", h, z->tap_at, z->patches, TRI_TAP_FINE);
}

/* Column, row of every patch: its positions for the rotation. */
static tr_status tri_vit_positions(tr_run *r, const tri_sight *z, tr_view *pos)
{
    int64_t *p;
    TRI_TRY(tri_push(r, pos, tr_view2(NULL, TR_I64, z->N, 2)));
    p = (int64_t *)pos->data;
    for (int64_t i = 0; !r->ops.dry && i < z->N; i++) {
        p[2 * i] = i % z->w;
        p[2 * i + 1] = i / z->w % z->h;
    }
    return TR_OK;
}

static tr_status tri_vit_rope(tr_run *r, const tri_sight *z, tr_view x, tr_view pos,
                              const char *tap)
{
    tr_rope_args a;
    a.x = x;
    a.pos = pos;
    a.inv_freq = r->vit_freq;
    a.mult = 1;
    a.layout = TR_ROPE_INTERLEAVED;
    TRI_TRY(tri_vit_in(r, "vision_tower", r->ops.rope(r->ops.user, r->ctx, &a)));
    return tri_vit_tap_in(r, z, tap, x, TRI_TAP_FINE);
}

/* [N, H, d], as [H, N, d] */
static tr_view tri_by_head(tr_view v)
{
    int64_t n = v.shape[0], step = v.stride[0];
    v.shape[0] = v.shape[1];
    v.stride[0] = v.stride[1];
    v.shape[1] = n;
    v.stride[1] = step;
    return v;
}

/* y = Wo attn(rope(q), rope(k), v); why q is [1, H N, d] and stands at N - 1, {vit} says. */
static tr_status tri_vit_attend(tr_run *r, tr_layer *ly, const tri_sight *z, tr_view y, tr_view x,
                                tr_view pos)
{
    const tr_config *c = &r->model->cfg;
    int64_t N = z->N, Q = c->vit_qkv, H = c->vit_heads, d = Q / H;
    tr_view qkv, heads[3], q, ctx;
    tr_attn_args a;
    TRI_TRY(tri_push2(r, &qkv, N, 3 * Q));
    TRI_TRY(tri_push3(r, &q, H, N, d));
    TRI_TRY(tri_push3(r, &ctx, H, N, d));
    TRI_TRY(tri_vit_linear(r, ly, TR_W_VIT_QKV, qkv, x));
    TRI_TRY(tri_vit_tap_in(r, z, ".wqkv", qkv, TRI_TAP_FINE));
    for (int k = 0; k < 3; k++) heads[k] = tr_view_split(tr_view_slice(qkv, 1, k * Q, Q), 1, d);
    TRI_TRY(tri_vit_rope(r, z, heads[0], pos, ".rope_q"));
    TRI_TRY(tri_vit_rope(r, z, heads[1], pos, ".rope_k"));
    TRI_TRY(tri_copy(r, q, tri_by_head(heads[0])));
    memset(&a, 0, sizeof a);
    a.y = tr_view3(ctx.data, ctx.dtype, 1, H * N, d);
    a.q = tr_view3(q.data, q.dtype, 1, H * N, d);
    a.k = heads[1];
    a.v = heads[2];
    a.pos = N - 1;
    a.scale = 1 / sqrt((double)d);
    TRI_TRY(tri_vit_in(r, "vision_tower", r->ops.attn(r->ops.user, r->ctx, &a)));
    TRI_TRY(tri_copy(r, tri_by_head(heads[0]), ctx));       /* q is not needed any more */
    x = tr_view_slice(qkv, 1, 0, Q);
    TRI_TRY(tri_vit_tap_in(r, z, ".attn_ctx", x, TRI_TAP_FINE));
    TRI_TRY(tri_vit_linear(r, ly, TR_W_VIT_O, y, x));
    return tri_vit_tap_in(r, z, ".wo", y, TRI_TAP_FINE);
}

/* h = h + Wo attn(norm0(h)), then h = h + W1 gelu(W0 norm1(h)). x has room for N rows. */
static tr_status tri_vit_block(tr_run *r, tr_layer *ly, const tri_sight *z, tr_view h, tr_view x,
                               tr_view pos)
{
    const tr_config *c = &r->model->cfg;
    size_t mark = tr_arena_mark(&r->arena);
    char name[64];
    tr_view u;
    r->block = ly;
    TRI_TRY(tri_vit_norm(r, ly, TR_W_VIT_NORM0, x, h, c->vit_eps));
    TRI_TRY(tri_vit_tap_in(r, z, ".norm0", x, TRI_TAP_FINE));
    TRI_TRY(tri_vit_attend(r, ly, z, x, x, pos));
    TRI_TRY(tri_add(r, h, h, x));
    tr_arena_rewind(&r->arena, mark);
    TRI_TRY(tri_vit_norm(r, ly, TR_W_VIT_NORM1, x, h, c->vit_eps));
    TRI_TRY(tri_vit_tap_in(r, z, ".norm1", x, TRI_TAP_FINE));
    TRI_TRY(tri_push2(r, &u, z->N, c->vit_ffn));
    TRI_TRY(tri_vit_linear(r, ly, TR_W_VIT_FC0, u, x));
    TRI_TRY(tri_vit_gelu(r, u, TR_GELU_TANH, "vision_tower"));
    TRI_TRY(tri_vit_linear(r, ly, TR_W_VIT_FC1, x, u));
    TRI_TRY(tri_vit_tap_in(r, z, ".mlp", x, TRI_TAP_FINE));
    TRI_TRY(tri_add(r, h, h, x));
    tr_arena_rewind(&r->arena, mark);
    snprintf(name, sizeof name, "vision_tower.encoder.blocks.%lld", (long long)ly->index);
    TRI_TRY(tri_vit_finite(r, z, name, h));
    TRI_TRY(tri_vit_tap_in(r, z, "", h, TRI_TAP_MAIN));
    r->block = NULL;
    return TR_OK;
}

/* y [n, hidden] = norm(P1 gelu(P0 m)), m: the rows of each cell side by side. */
static tr_status tri_vit_project(tr_run *r, const tri_sight *z, tr_view y, tr_view h)
{
    const tr_config *c = &r->model->cfg;
    tr_layer *top = &r->model->top;
    int64_t n = y.shape[0], K = c->vit_merge.v[0] * c->vit_merge.v[1];
    char name[64];
    tr_view m, flat, u;
    tr_merge_args a;
    TRI_TRY(tri_push3(r, &m, n, K, c->vit_dim));
    TRI_TRY(tri_push2(r, &u, n, K * c->vit_dim));
    r->doing = "vision_tower.merged";
    a.y = m;
    a.x = h;
    a.t = z->t;
    a.h = z->h;
    a.w = z->w;
    a.mh = c->vit_merge.v[0];
    a.mw = c->vit_merge.v[1];
    TRI_TRY(tri_vit_in(r, r->doing, r->ops.merge(r->ops.user, r->ctx, &a)));
    snprintf(name, sizeof name, "vision_tower.merged.%lld", (long long)z->image);
    TRI_TRY(tri_vit_tap(r, name, m, 0, n, TRI_TAP_FINE));
    flat = tr_view2(m.data, m.dtype, n, K * c->vit_dim);
    TRI_TRY(tri_vit_linear(r, top, TR_W_MM_FC0, u, flat));
    TRI_TRY(tri_vit_gelu(r, u, TR_GELU_ERF, "mm_projector"));
    TRI_TRY(tri_vit_linear(r, top, TR_W_MM_FC1, y, u));
    TRI_TRY(tri_vit_norm(r, top, TR_W_MM_NORM, y, y, c->mm_eps));
    snprintf(name, sizeof name, "mm_projector.%lld", (long long)z->image);
    TRI_TRY(tri_vit_finite(r, z, name, y));
    return tri_vit_tap(r, name, y, 0, n, TRI_TAP_MAIN);
}

/* The tower over one image; y: its rows of the features. */
static tr_status tri_vit_image(tr_run *r, const tri_sight *z, const tr_images *im, tr_view y)
{
    const tr_config *c = &r->model->cfg;
    size_t mark = tr_arena_mark(&r->arena);
    tr_view h, x, pos;
    TRI_TRY(tri_push2(r, &h, z->N, c->vit_dim));
    TRI_TRY(tri_push2(r, &x, z->N, c->vit_dim));
    TRI_TRY(tri_vit_positions(r, z, &pos));
    TRI_TRY(tri_vit_embed(r, z, im, h));
    for (int64_t l = 0; l < c->vit_layers; l++)
        TRI_TRY(tri_vit_block(r, &r->model->vit[l], z, h, x, pos));
    TRI_TRY(tri_vit_norm(r, &r->model->top, TR_W_VIT_NORM, h, h, c->vit_eps));
    TRI_TRY(tri_vit_tap(r, "vision_tower.encoder.final_layernorm", h, z->tap_at, z->patches,
                        TRI_TAP_FINE));
    TRI_TRY(tri_vit_project(r, z, y, h));
    tr_arena_rewind(&r->arena, mark);
    return TR_OK;
}

static tr_status tri_vit_images(tr_run *r, const tr_images *im)
{
    int64_t row = 0;
    tri_sight z;
    memset(&z, 0, sizeof z);
    z.patches = im->among ? im->patches : im->pixels.shape[0];
    r->layer = NULL;
    for (int64_t i = 0; i < im->n; i++) {
        int64_t n = tr_image_rows(&r->model->cfg, im, i);
        z.image = im->among ? im->among[2 * i] : i;
        z.tap_at = im->among ? im->among[2 * i + 1] : z.at;
        r->image = z.image;
        z.t = im->grid[3 * i];
        z.h = im->grid[3 * i + 1];
        z.w = im->grid[3 * i + 2];
        z.N = z.t * z.h * z.w;
        TRI_TRY(tri_vit_image(r, &z, im, tr_view_slice(r->features, 0, row, n)));
        z.at += z.N;
        row += n;
    }
    return TR_OK;
}

/* Each placeholder that is not yet filled begins the next image, whose rows must all be there. */
static tr_status tri_find_places(tr_run *r, const tr_images *im, const tr_batch *b)
{
    const tr_config *c = &r->model->cfg;
    const int32_t *ids = b->ids;
    int64_t k = 0, row = 0;
    if (b->B != r->opts.B)
        return tr_fail(r->ctx, TR_ERR_ARG, "the batch has %lld sequence%s, the run %lld",
                       (long long)b->B, TRI_S(b->B), (long long)r->opts.B);
    for (int64_t s = 0; s < b->B; ids += b->T[s++]) {
        int64_t first = k;
        for (int64_t t = 0; t < b->T[s]; ) {
            int64_t n = 0, rows = k < im->n ? tr_image_rows(c, im, k) : 1;
            if (ids[t] != c->media.v[0]) { t++; continue; }
            while (n < rows && t + n < b->T[s] && ids[t + n] == c->media.v[0]) n++;
            if (k == im->n || n < rows)
                return tr_fail(r->ctx, TR_ERR_ARG, "%s: sequence %lld, token %lld: %lld "
                               "placeholder%s (id %lld) for image %lld of %lld, which has %lld "
                               "rows", c->family->name, (long long)s, (long long)t, (long long)n,
                               TRI_S(n), (long long)c->media.v[0], (long long)k, (long long)im->n,
                               (long long)(k == im->n ? 0 : rows));
            r->place[k].seq = s;
            r->place[k].pos = r->state.len[s] + t;
            r->place[k].n = n;
            r->place[k++].row = row;
            row += n;
            t += n;
        }
        r->media[2 * s] = r->state.len[s];
        r->media[2 * s + 1] = r->state.len[s] + (k > first ? b->T[s] : 0);
    }
    if (k < im->n)
        return tr_fail(r->ctx, TR_ERR_ARG, "%s: the prompts have places (id %lld) for %lld "
                       "image%s, not for %lld", c->family->name, (long long)c->media.v[0],
                       (long long)k, TRI_S(k), (long long)im->n);
    r->places = k;
    return TR_OK;
}

tr_status tr_vit_forward(tr_run *r, const tr_images *im, const tr_batch *b)
{
    tr_run_opts need;
    const tr_run_opts *o = &r->opts;
    tri_fpenv env;
    tr_status s;
    r->places = r->seeing = 0;
    if (!im) return TR_OK;
    TRI_TRY(tr_run_opts_images(r->ctx, &need, &r->model->cfg, im));
    if (need.max_patches > o->max_patches || need.max_images > o->max_images ||
        need.image_rows > o->image_rows)
        return tr_fail(r->ctx, TR_ERR_ARG, "%lld image%s of up to %lld patches that fill %lld "
                       "rows; the run was made for %lld, %lld and %lld", (long long)need.max_images,
                       TRI_S(need.max_images), (long long)need.max_patches,
                       (long long)need.image_rows, (long long)o->max_images,
                       (long long)o->max_patches, (long long)o->image_rows);
    if (b && r->model->first)
        return tr_fail(r->ctx, TR_ERR_ARG, "layer %lld and those behind it see no embeddings: "
                       "images have no place there", (long long)r->model->first);
    if (b) TRI_TRY(tri_find_places(r, im, b));
    env = tri_os_fp_begin();
    s = tri_vit_images(r, im);
    tri_os_fp_end(env);
    r->block = NULL;
    tr_arena_rewind(&r->arena, r->fixed_bytes);
    if (s != TR_OK) r->places = 0;
    r->seeing = r->places > 0;
    return s;
}

/* What was looked up for placeholders is of no use to anybody, so the tap is inputs_embeds alone.
 * Rows of the call that belong to images get their features; rows of pad_token_id in a prompt with
 * images become 0, as the vendor's merge fills text embeddings into zeros and leaves these out. */
static tr_status tri_splice(tr_run *r, const tr_batch *b)
{
    const tr_config *c = &r->model->cfg;
    tr_view h = tri_h(r), zero = tr_view_slice(r->features, 0, r->opts.image_rows, 1);
    tri_seq s = tri_first_seq();
    r->doing = "inputs_embeds";
    while (tri_next_seq(r, &s)) {
        const int64_t *m = r->media + 2 * s.b;
        for (int64_t k = 0; k < r->places; k++) {
            const tr_place *p = &r->place[k];
            int64_t from = p->pos > s.pos ? p->pos : s.pos;
            int64_t n = tri_least(p->pos + p->n, s.pos + s.T) - from;
            if (p->seq != s.b || n <= 0) continue;
            TRI_TRY(tri_copy(r, tr_view_slice(h, 0, s.row + from - s.pos, n),
                             tr_view_slice(r->features, 0, p->row + from - p->pos, n)));
        }
        for (int64_t t = 0; c->pad.n && t < s.T; t++)
            if (s.pos + t >= m[0] && s.pos + t < m[1] && b->ids[s.row + t] == c->pad.v[0])
                TRI_TRY(tri_copy(r, tr_view_slice(h, 0, s.row + t, 1), zero));
    }
    if (!tri_wanted(r, "inputs_embeds", TRI_TAP_MAIN)) return TR_OK;
    return tri_tap_as(r, "inputs_embeds", h, TR_TAP_ROWS, -1);
}

/* A row that an image fills has the placeholder's id. */
static tr_status tri_check_places(const tr_run *r, const tr_batch *b)
{
    const int32_t *ids = b->ids;
    for (int64_t s = 0; s < b->B; ids += b->T[s++])
        for (int64_t k = 0; k < r->places; k++) {
            const tr_place *p = &r->place[k];
            int64_t at = r->state.len[s], from = p->pos > at ? p->pos : at;
            for (int64_t t = from; p->seq == s && t < p->pos + p->n && t < at + b->T[s]; t++)
                if (ids[t - at] != r->model->cfg.media.v[0])
                    return tr_fail(r->ctx, TR_ERR_ARG, "sequence %lld, token %lld: id %ld where "
                                   "row %lld of image %lld belongs (id %lld)", (long long)s,
                                   (long long)t, (long)ids[t - at], (long long)(t - p->pos),
                                   (long long)k, (long long)r->model->cfg.media.v[0]);
        }
    return TR_OK;
}

/* ---- the whole of it ------------------------------------------------------ */

static tr_status tri_embed(tr_run *r, const tr_batch *b)
{
    tr_layer *top = &r->model->top;
    tr_embed_args a;
    r->doing = "embed_tokens";
    a.y = tri_h(r);
    a.ids = tr_view1(NULL, TR_I32, r->N);
    memcpy(&a.ids.data, &b->ids, sizeof a.ids.data);
    a.w = &top->w[TR_W_EMBED];
    TRI_TRY(tri_in(r, "model.embed_tokens", tri_check_weight(r, &top->w[TR_W_EMBED])));
    TRI_TRY(tri_in(r, "model.embed_tokens", r->ops.embed(r->ops.user, r->ctx, &a)));
    return r->seeing ? tri_splice(r, b)
                     : tri_tap(r, "model.embed_tokens", tri_h(r), TRI_TAP_MAIN);
}

/* The rows whose logits are asked for: all, or the last of each sequence. */
static tr_status tri_head_rows(tr_run *r, tr_matmul_args *a, tr_view x)
{
    const tr_ops *ops = &r->ops;
    tri_seq s = tri_first_seq();
    if (r->opts.logits == TR_LOGITS_ALL) {
        a->y = tr_view_slice(r->logits, 0, 0, r->N);
        a->x = x;
        return ops->matmul(ops->user, r->ctx, a);
    }
    while (tri_next_seq(r, &s)) {
        a->y = tr_view_slice(r->logits, 0, s.b, 1);
        a->x = tr_view_slice(x, 0, s.row + s.T - 1, 1);
        TRI_TRY(ops->matmul(ops->user, r->ctx, a));
    }
    return TR_OK;
}

/* The block sums as the vendor stacks them, [N, n, D]. */
static tr_view tri_stacked_snaps(const tr_run *r)
{
    tr_view v = tri_snaps(r, r->hidden.n);
    int64_t n = v.shape[0], step = v.stride[0];
    v.shape[0] = v.shape[1];
    v.stride[0] = v.stride[1];
    v.shape[1] = n;
    v.stride[1] = step;
    return v;
}

static tr_status tri_head(tr_run *r)
{
    const tr_config *c = &r->model->cfg;
    tr_layer *top = &r->model->top;
    tr_weight *head = &top->w[c->tie ? TR_W_EMBED : TR_W_HEAD];
    tr_matmul_args a;
    if (c->res_block) {
        TRI_TRY(tri_tap(r, "model.block_residual", tri_stacked_snaps(r), TRI_TAP_FINE));
        TRI_TRY(tri_mix(r, top, TR_W_OUT_RES_NORM, TR_W_OUT_RES_PROJ, r->x,
                        "model.output_attn_res"));
    } else {
        TRI_TRY(tri_copy(r, r->x, tri_h(r)));
    }
    TRI_TRY(tri_rms(r, top, TR_W_FINAL_NORM, r->x, c->eps, "model.norm"));
    if (r->opts.logits == TR_LOGITS_NONE) return TR_OK;
    r->doing = "lm_head";
    a.w = head;
    a.bias = tr_view_none();
    TRI_TRY(tri_in(r, "lm_head", tri_check_weight(r, head)));
    TRI_TRY(tri_in(r, "lm_head", tri_head_rows(r, &a, r->x)));
    TRI_TRY(tri_in(r, "lm_head", tri_whole(r, r->logits)));
    if (!tri_wanted(r, "logits", TRI_TAP_MAIN) || r->opts.logits != TR_LOGITS_ALL) return TR_OK;
    return tri_tap_as(r, "logits", a.y, TR_TAP_ROWS, -1);
}

/* The call itself, its arguments already checked. With a dry table no data is touched. */
static tr_status tri_forward_layers(tr_run *r, const tr_batch *b, int64_t N)
{
    tr_view x = r->x, a = r->a;
    tr_status s = TR_OK;
    r->batch = b;
    r->N = N;
    r->empty = 0;
    r->layer = NULL;
    r->x = tr_view_slice(x, 0, 0, N);
    r->a = tr_view_slice(a, 0, 0, N);
    if (r->model->first == 0) s = tri_embed(r, b);
    for (int64_t l = 0; s == TR_OK && l < r->model->layers; l++)
        s = tr_layer_forward(r, &r->model->layer[l]);
    if (s == TR_OK && r->model->first + r->model->layers == r->model->cfg.layers) s = tri_head(r);
    r->x = x;
    r->a = a;
    return s;
}

/* ---- a run --------------------------------------------------------------- */

/* What images leave between calls; frequencies are those of a head of half the width, each for two
 * pairs: theta^(-4i/d) for pairs 2i and 2i + 1. */
static tr_status tri_vit_layout(tr_run *r)
{
    const tr_config *c = &r->model->cfg;
    const tr_run_opts *o = &r->opts;
    int64_t pairs = c->vit_qkv / c->vit_heads / 2;
    double *f, mult;
    tr_rope_cfg rope;
    tr_view v;
    TRI_TRY(tri_push2(r, &r->features, o->image_rows + 1, c->hidden));
    TRI_TRY(tri_push(r, &r->vit_freq, tr_view1(NULL, TR_F64, pairs)));
    TRI_TRY(tri_push(r, &v, tr_view2(NULL, TR_I64, o->max_images,
                                     (int64_t)(sizeof(tr_place) / sizeof(int64_t)))));
    r->place = (tr_place *)v.data;
    TRI_TRY(tri_push(r, &v, tr_view2(NULL, TR_I64, o->B, 2)));
    r->media = (int64_t *)v.data;
    f = tr_view_f64(r->vit_freq);
    if (!f) return TR_OK;
    v = tr_view_slice(r->features, 0, o->image_rows, 1);
    memset(v.data, 0, (size_t)c->hidden * (size_t)tr_dtype_get(v.dtype)->bits / 8);
    memset(&rope, 0, sizeof rope);
    rope.theta = c->vit_theta;
    rope.dim = pairs;
    TRI_TRY(tr_rope_freqs_f64(r->ctx, f, &mult, &rope));
    for (int64_t i = pairs - 1; i >= 0; i--) f[i] = f[i / 2];
    return TR_OK;
}

/* What lives between calls, at the bottom of the arena. */
static tr_status tri_run_layout(tr_run *r)
{
    const tr_config *c = &r->model->cfg;
    const tr_run_opts *o = &r->opts;
    int64_t N = o->max_tokens, D = c->hidden, last = r->model->first + r->model->layers;
    int64_t rows = o->logits == TR_LOGITS_ALL ? N : o->logits == TR_LOGITS_LAST ? o->B : 0;
    tr_view v;
    TRI_TRY(tri_push2(r, &r->hidden.h, N, D));
    TRI_TRY(tri_push3(r, &r->hidden.snaps, tr_hidden_snaps(c, last), N, D));
    TRI_TRY(tri_push2(r, &r->x, N, D));
    TRI_TRY(tri_push2(r, &r->a, N, D));
    TRI_TRY(tri_push2(r, &r->logits, last == c->layers ? rows : 0, c->vocab));
    TRI_TRY(tri_push(r, &r->pos, tr_view1(NULL, TR_I64, N)));
    TRI_TRY(tri_push(r, &v, tr_view1(NULL, TR_I32, N)));
    r->piece_ids = (int32_t *)v.data;
    TRI_TRY(tri_push(r, &v, tr_view1(NULL, TR_I64, o->B)));
    r->piece_T = (int64_t *)v.data;
    TRI_TRY(tri_push(r, &r->inv_freq, tr_view1(NULL, TR_F64, c->rope_cfg.dim / 2)));
    if (o->max_patches) TRI_TRY(tri_vit_layout(r));
    r->fixed_bytes = r->arena.used;
    if (!r->inv_freq.data || !c->family->rotates) return TR_OK;
    return tr_rope_freqs_f64(r->ctx, tr_view_f64(r->inv_freq), &r->rope_mult, &c->rope_cfg);
}

static tr_status tri_check_run(tr_ctx *ctx, const tr_model *m, const tr_run_opts *o)
{
    if (!o->profile) return tr_fail(ctx, TR_ERR_ARG, "a run needs a profile");
    if (o->B < 1 || o->max_tokens < 1 || o->capacity < 1)
        return tr_fail(ctx, TR_ERR_ARG, "a run needs at least one sequence, one token a call and "
                       "room for one token (asked: %lld, %lld, %lld)", (long long)o->B,
                       (long long)o->max_tokens, (long long)o->capacity);
    if (o->max_patches < 0 || o->max_patches > TRI_MAX_ELEMENTS || o->max_images < 0 ||
        o->max_images > TRI_MAX_ELEMENTS || o->image_rows < 0 || o->image_rows > TRI_MAX_ELEMENTS)
        return tr_fail(ctx, TR_ERR_ARG, "a run for %lld images of up to %lld patches that fill "
                       "%lld rows", (long long)o->max_images, (long long)o->max_patches,
                       (long long)o->image_rows);
    if (o->max_patches && !m->cfg.vit_layers)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s has no vision tower: it takes no images",
                       m->cfg.family->name);
    if (m->cfg.rope_dynamic && o->capacity > m->cfg.max_pos)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "rope_type \"dynamic\" changes with the length "
                       "beyond max_position_embeddings %lld; room for %lld was asked",
                       (long long)m->cfg.max_pos, (long long)o->capacity);
    if (o->ops && tri_ops_missing(o->ops))
        return tr_fail(ctx, TR_ERR_ARG, "table of operators \"%s\" lacks \"%s\"",
                       o->ops->name ? o->ops->name : "", tri_ops_missing(o->ops));
    return TR_OK;
}

/* The tower's walk: one image of as many patches as there may be, in one frame, which leaves the
 * most rows. */
static tr_status tri_vit_measure(tr_run *r)
{
    const tr_config *c = &r->model->cfg;
    int64_t cell = tri_table_mul(c->vit_merge.v[0], c->vit_merge.v[1]);
    int64_t cells = tri_blocks(r->opts.max_patches, cell);
    tr_view y;
    tri_sight z;
    memset(&z, 0, sizeof z);
    z.t = 1;
    z.h = c->vit_merge.v[0];
    z.w = c->vit_merge.v[1] * cells;
    z.N = tri_table_mul(cell, cells);
    z.patches = z.N;
    if (z.N > TRI_MAX_ELEMENTS)
        return tr_fail(r->ctx, TR_ERR_RANGE, "images of %lld patches",
                       (long long)r->opts.max_patches);
    y = tr_view2(NULL, r->opts.profile->act, cells, c->hidden);
    return tri_vit_image(r, &z, NULL, y);
}

/* Walks once through the model with a table that only counts: as many tokens as a call can have,
 * in as few sequences as can hold them, each filling its capacity. Scratch of one sequence is given
 * back before the next, so no other call needs more. */
static tr_status tri_run_measure(tr_run *r, tri_listener *l)
{
    const tr_run_opts *o = &r->opts;
    tr_ops real = r->ops;
    int64_t *T, N = 0;
    tr_batch b;
    void *p;
    tr_status s;
    TRI_TRY(tri_alloc_n(r->ctx, &p, o->B, sizeof *T));
    T = (int64_t *)p;
    for (int64_t k = 0; k < o->B; N += T[k++]) T[k] = tri_least(o->max_tokens - N, o->capacity);
    b.B = o->B;
    b.T = T;
    b.ids = NULL;
    r->ops = tri_ops_dry(l);
    s = tri_run_layout(r);
    if (s == TR_OK)
        s = tr_state_new(r->ctx, &r->state, &r->model->cfg, r->model->first, r->model->layers,
                         o->B, o->capacity, o->profile->act, 1);
    if (s == TR_OK) {
        if (o->max_patches) s = tri_vit_measure(r);
        for (int64_t k = 0; k < o->B; k++) r->state.len[k] = o->capacity - T[k];
        r->hidden.n = tr_hidden_snaps(&r->model->cfg, r->model->first);
        if (s == TR_OK) s = tri_forward_layers(r, &b, N);
    }
    tr_state_free(&r->state);
    tr_free(r->ctx, p);
    r->ops = real;
    return s;
}

tr_status tr_run_new(tr_ctx *ctx, tr_run **out, tr_model *m, const tr_run_opts *opts)
{
    tr_run *r;
    size_t need;
    void *p;
    tri_fpenv env;
    tr_status s;
    *out = NULL;
    TRI_TRY(tri_check_run(ctx, m, opts));
    if (m->dry) return tr_fail(ctx, TR_ERR_ARG, "a model without weights can be planned, not run");
    TRI_TRY(tr_alloc(ctx, &p, sizeof *r));
    r = (tr_run *)p;
    r->ctx = ctx;
    r->model = m;
    r->opts = *opts;
    r->ops = opts->ops ? *opts->ops : opts->profile->ops();
    env = tri_os_fp_begin();
    s = tri_run_measure(r, NULL);
    need = r->arena.peak;
    if (s == TR_OK) s = tr_arena_new(ctx, &r->arena, need);
    if (s == TR_OK) s = tri_run_layout(r);
    if (s == TR_OK)
        s = tr_state_new(ctx, &r->state, &m->cfg, m->first, m->layers, opts->B, opts->capacity,
                         opts->profile->act, 0);
    tri_os_fp_end(env);
    if (s != TR_OK) tr_run_free(r);
    else *out = r;
    return s;
}

void tr_run_free(tr_run *r)
{
    tr_ctx *ctx;
    if (!r) return;
    ctx = r->ctx;
    tr_state_free(&r->state);
    tr_arena_free(ctx, &r->arena);
    tr_free(ctx, r);
}

/* ---- one call ------------------------------------------------------------ */

static tr_status tri_check_batch(tr_run *r, const tr_batch *b, int64_t *N)
{
    tr_ctx *ctx = r->ctx;
    int64_t i = 0;
    *N = 0;
    if (r->state.spoilt)
        return tr_fail(ctx, TR_ERR_ARG, "the state is spoilt by a call that failed; rewind or "
                       "reset it first");
    if (b->B != r->opts.B)
        return tr_fail(ctx, TR_ERR_ARG, "the batch has %lld sequence%s, the run %lld",
                       (long long)b->B, TRI_S(b->B), (long long)r->opts.B);
    for (int64_t s = 0; s < b->B; s++) {
        if (b->T[s] < 0)
            return tr_fail(ctx, TR_ERR_ARG, "sequence %lld has %lld tokens", (long long)s,
                           (long long)b->T[s]);
        if (b->T[s] > r->opts.capacity - r->state.len[s])
            return tr_fail(ctx, TR_ERR_FULL, "sequence %lld: %lld token%s after %lld exceed the "
                           "state's capacity of %lld", (long long)s, (long long)b->T[s],
                           TRI_S(b->T[s]), (long long)r->state.len[s], (long long)r->opts.capacity);
        *N += b->T[s];
    }
    if (*N == 0 && !r->opts.idle)
        return tr_fail(ctx, TR_ERR_ARG, "the batch holds no tokens");
    if (*N > r->opts.max_tokens)
        return tr_fail(ctx, TR_ERR_ARG, "%lld tokens in one call; the run was made for %lld",
                       (long long)*N, (long long)r->opts.max_tokens);
    if (r->model->first) return TR_OK;                  /* ids are not read */
    for (int64_t s = 0; s < b->B; s++)
        for (int64_t t = 0; t < b->T[s]; t++, i++)
            if (b->ids[i] < 0 || b->ids[i] >= r->model->cfg.vocab)
                return tr_fail(ctx, TR_ERR_RANGE, "sequence %lld, token %lld: id %ld lies outside "
                               "the vocabulary of %lld", (long long)s,
                               (long long)(r->state.len[s] + t), (long)b->ids[i],
                               (long long)r->model->cfg.vocab);
    return tri_check_places(r, b);
}

tr_status tr_hidden_check(tr_ctx *ctx, const tr_config *c, int64_t layer, int64_t N,
                          const tr_hidden *in)
{
    int64_t n = tr_hidden_snaps(c, layer), D = c->hidden;
    if (layer == 0)
        return in ? tr_fail(ctx, TR_ERR_ARG, "layer 0 is entered by the embedding and takes no "
                            "hidden state") : TR_OK;
    if (!in) return tr_fail(ctx, TR_ERR_ARG, "layer %lld needs the hidden state that enters it",
                            (long long)layer);
    if (in->n != n)
        return tr_fail(ctx, TR_ERR_ARG, "layer %lld needs %lld block sum%s, not %lld",
                       (long long)layer, (long long)n, TRI_S(n), (long long)in->n);
    if (in->h.rank != 2 || in->h.shape[0] != N || in->h.shape[1] != D)
        return tr_fail(ctx, TR_ERR_SHAPE, "the hidden state given is not [%lld, %lld]",
                       (long long)N, (long long)D);
    if (n && (in->snaps.rank != 3 || in->snaps.shape[0] < n || in->snaps.shape[1] != N ||
              in->snaps.shape[2] != D))
        return tr_fail(ctx, TR_ERR_SHAPE, "the block sums given are not [%lld, %lld, %lld]",
                       (long long)n, (long long)N, (long long)D);
    return TR_OK;
}

/* The hidden state that enters the first open layer. */
static tr_status tri_take_hidden(tr_run *r, const tr_hidden *in, int64_t N)
{
    int64_t n = tr_hidden_snaps(&r->model->cfg, r->model->first);
    tr_view dst = tr_view_slice(r->hidden.h, 0, 0, N);
    TRI_TRY(tr_hidden_check(r->ctx, &r->model->cfg, r->model->first, N, in));
    r->hidden.n = 0;
    if (!in) return TR_OK;
    TRI_TRY(tr_view_copy(r->ctx, dst, in->h));
    for (int64_t i = 0; i < n; i++)
        TRI_TRY(tr_view_copy(r->ctx, tr_view_slice(tr_view_at(r->hidden.snaps, i), 0, 0, N),
                             tr_view_at(in->snaps, i)));
    r->hidden.n = n;
    return TR_OK;
}

tr_status tr_forward(tr_run *r, const tr_batch *b, const tr_hidden *in)
{
    int64_t N, i = 0, *pos = (int64_t *)r->pos.data;
    tri_fpenv env;
    tr_status s;
    TRI_TRY(tri_check_batch(r, b, &N));
    TRI_TRY(tri_take_hidden(r, in, N));
    for (int64_t k = 0; k < b->B; k++)
        for (int64_t t = 0; t < b->T[k]; t++) pos[i++] = r->state.len[k] + t;
    r->state.spoilt = 1;
    env = tri_os_fp_begin();            /* for what is computed between operators, too */
    s = tri_forward_layers(r, b, N);
    tri_os_fp_end(env);
    tr_arena_rewind(&r->arena, r->fixed_bytes);
    r->state.spoilt = s != TR_OK;
    if (s == TR_OK)
        for (int64_t k = 0; k < b->B; k++) r->state.len[k] += b->T[k];
    return s;
}

static tr_status tri_tap_state(tr_run *r)
{
    const tr_state *st = &r->state;
    char name[256];
    for (int64_t l = 0; l < st->layers; l++)
        for (int k = 0; k < TR_STATE_KIND_COUNT; k++) {
            snprintf(name, sizeof name, "state.layers.%lld.%s", (long long)(st->first + l),
                     tri_state_kinds[k].name);
            if (!tri_wanted(r, name, TRI_TAP_FINE)) continue;
            for (int64_t b = 0; b < st->B; b++) {
                tr_tap t;
                memset(&t, 0, sizeof t);
                t.name = name;
                t.x = tr_state_slot(st, st->first + l, (tr_state_kind)k, b);
                t.kind = TR_TAP_STATE;
                t.pos = st->len;
                t.seq = b;
                t.grows = tri_state_kinds[k].grows;
                if (!t.x.rank) break;
                if (t.grows) t.x = tr_view_slice(t.x, 0, 0, st->len[b]);
                TRI_TRY(r->opts.tap(r->opts.tap_user, r->ctx, &t));
            }
        }
    return TR_OK;
}

tr_status tr_tap_state(tr_run *r)
{
    tri_fpenv env = tri_os_fp_begin();
    tr_status s = tri_tap_state(r);
    tri_os_fp_end(env);
    return s;
}

/* ============================================================================
 * 29. Plans {plan}
 *
 *     params     elements of all tensors as stored, without scales
 *     active     what one token reads: K of E experts, the head, no embedding table, no vision
 *     memory     weights, vectors, state, activations (live between layers), workspace (within one)
 *
 * Parameters and bytes come from the tables of configurations, operators and workspace from a dry
 * run of the engine: there is no second description of the model that could be wrong.
 *
 * Traps. A tied embedding is the head and so counts as active. The experts of a layer are alike, so
 * the first K stand for those that a token would choose. Padding is stored and counted, and never
 * used.
 * ========================================================================= */

/* ---- operators, heard in a dry run --------------------------------------- */

typedef struct tri_recorder { tr_ctx *ctx; tr_plan *plan; tr_run *run; int64_t cap; } tri_recorder;

static tr_status tri_record(void *user, const char *op, tr_view y, int64_t params, double flops)
{
    tri_recorder *rec = (tri_recorder *)user;
    tr_plan_op *o;
    void *p = rec->plan->op;
    TRI_TRY(tri_grow(rec->ctx, &p, &rec->cap, rec->plan->ops, sizeof *o));
    rec->plan->op = (tr_plan_op *)p;
    o = &rec->plan->op[rec->plan->ops++];
    o->layer = rec->run->layer ? rec->run->layer->index : -1;
    o->block = rec->run->block ? rec->run->block->index : -1;
    o->op = op;
    o->name = rec->run->doing;
    o->y = y;
    o->weight_params = params;
    o->flops = flops;
    return TR_OK;
}

/* ---- tensors, by the tables ---------------------------------------------- */

typedef struct tri_counter { const tr_model *m; tr_plan *plan; } tri_counter;

/* Tensors and bytes of e as they lie in the files, or as the config announces them. */
static tr_status tri_stored_size(tr_ctx *ctx, const tr_model *m, const tr_expected *e,
                                 int64_t *tensors, int64_t *params, size_t *bytes)
{
    const tr_qformat *f = e->format;
    tr_st_entry *q = NULL, *s = NULL;
    tr_stored out[2];
    int n;
    *tensors = 0;
    *params = 0;
    *bytes = 0;
    if (!m->dry) {
        TRI_TRY(tri_find_stored(ctx, m, e, &f, &q, &s));
        if (!q) return TR_OK;
        *tensors = s ? 2 : 1;
        *bytes = q->bytes + (s ? s->bytes : 0);
        *params = f->scaled ? e->params : tr_view_numel(q->view);
        return TR_OK;
    }
    TRI_TRY(tr_expected_stored(ctx, &m->cfg, e, f, out, &n));
    *tensors = n;
    *params = e->params;
    for (int i = 0; i < n; i++) {
        tr_view v = tr_view_of(NULL, out[i].dtype, out[i].rank, out[i].shape);
        size_t b;
        TRI_TRY(tri_view_bytes(ctx, v, &b));
        *bytes += b;
    }
    return TR_OK;
}

static tr_status tri_count(void *user, tr_ctx *ctx, const tr_expected *e)
{
    tri_counter *k = (tri_counter *)user;
    const tr_config *c = &k->m->cfg;
    tr_plan *p = k->plan;
    int64_t tensors, params, active = 0;
    size_t bytes;
    TRI_TRY(tri_stored_size(ctx, k->m, e, &tensors, &params, &bytes));
    if (params > INT64_MAX - p->params)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: the parameters are too many to count", e->name);
    p->tensors += tensors;
    p->params += params;
    TRI_TRY(tr_size_add(ctx, &p->bytes, p->bytes, bytes));
    if (e->spec->id == TR_W_NONE || e->optional || tri_is_vision(e)) return TR_OK;
    active = e->spec->id == TR_W_EMBED && !c->tie ? 0 : params;
    if (e->spec->where == TR_AT_EXPERT) {       /* K of E: the first K stand for those chosen */
        active = e->expert < c->topk ? params : 0;
    }
    p->active_params += active;
    if (e->layer >= 0) {
        tr_plan_layer *l = &p->layer[e->layer];
        l->tensors += tensors;
        l->params += params;
        l->active += active;
        l->bytes += bytes;
    }
    return TR_OK;
}

/* State of one layer: bytes a token, bytes a sequence. */
static tr_status tri_count_state(tr_ctx *ctx, const tr_model *m, tr_dtype t, tr_plan_layer *l)
{
    for (int k = 0; k < TR_STATE_KIND_COUNT; k++) {
        tr_view v = tri_state_shape(&m->cfg, l->kind.mixer, (tr_state_kind)k, 1, 1, t);
        size_t b;
        if (!v.rank) continue;
        TRI_TRY(tri_view_bytes(ctx, v, &b));
        if (tri_state_kinds[k].grows) l->state_bytes_token += b;
        else l->state_bytes_seq += b;
    }
    return TR_OK;
}

/* The dry run itself: the same engine, a table that records. */
static tr_status tri_plan_run(tr_ctx *ctx, tr_plan *p, tr_model *m, const tr_run_opts *opts)
{
    tri_recorder rec;
    tri_listener listener;
    tr_state st;
    tr_run r;
    TRI_TRY(tri_check_run(ctx, m, opts));
    memset(&rec, 0, sizeof rec);
    memset(&r, 0, sizeof r);
    rec.ctx = ctx;
    rec.plan = p;
    rec.run = &r;
    r.ctx = ctx;
    r.model = m;
    r.opts = *opts;
    r.opts.tap = NULL;
    listener.fn = tri_record;
    listener.user = &rec;
    TRI_TRY(tri_run_measure(&r, &listener));
    p->activations = r.fixed_bytes;
    p->workspace = r.arena.peak - r.fixed_bytes;
    p->vectors = m->vector_bytes;
    TRI_TRY(tr_state_new(ctx, &st, &m->cfg, m->first, m->layers, opts->B, opts->capacity,
                         opts->profile->act, 1));
    p->state = st.bytes;
    tr_state_free(&st);
    return TR_OK;
}

tr_status tr_plan_model(tr_ctx *ctx, tr_plan *out, tr_model *m, const tr_run_opts *opts)
{
    tri_counter k;
    void *p;
    tri_fpenv env;
    tr_status s;
    memset(out, 0, sizeof *out);
    TRI_TRY(tri_alloc_n(ctx, &p, m->cfg.layers, sizeof *out->layer));
    out->layer = (tr_plan_layer *)p;
    out->layers = m->cfg.layers;
    for (int64_t l = 0; l < out->layers; l++) {
        out->layer[l].index = l;
        out->layer[l].kind = m->cfg.layer[l];
    }
    k.m = m;
    k.plan = out;
    env = tri_os_fp_begin();
    s = tr_config_each(ctx, &m->cfg, tri_count, &k);
    for (int64_t l = 0; s == TR_OK && l < out->layers; l++)
        s = tri_count_state(ctx, m, opts->profile->act, &out->layer[l]);
    if (s == TR_OK) s = tri_plan_run(ctx, out, m, opts);
    tri_os_fp_end(env);
    if (s != TR_OK) tr_plan_free(ctx, out);
    return s;
}

void tr_plan_free(tr_ctx *ctx, tr_plan *p)
{
    tr_free(ctx, p->layer);
    tr_free(ctx, p->op);
    memset(p, 0, sizeof *p);
}

/* ============================================================================
 * 30. Generation {gen}
 *
 *     prefill    forward of the next `piece` tokens of each prompt, until none has any left
 *     decode     the same with one token each: what the logits' largest entry names
 *
 * Decoding is not another computation than reading the prompt, and its bits are the same: each row
 * has its own sums, and what earlier rows left is in the state.
 *
 * Traps. Prompts of a batch end in different pieces; the row of logits of one that has ended is
 * left as it was. A search for the largest that does not look for NaN steps over it and returns
 * something. The last token chosen has not been read: n of them after a prompt of T fill T + n - 1.
 * ========================================================================= */

tr_status tr_prefill(tr_run *r, const tr_batch *b)
{
    int64_t piece = r->opts.max_tokens / r->opts.B, longest = 0;
    tr_batch part;
    if (piece < 1)
        return tr_fail(r->ctx, TR_ERR_ARG, "%lld sequence%s need more than %lld tokens a call",
                       (long long)r->opts.B, TRI_S(r->opts.B), (long long)r->opts.max_tokens);
    if (b->B != r->opts.B)
        return tr_fail(r->ctx, TR_ERR_ARG, "the batch has %lld sequence%s, the run %lld",
                       (long long)b->B, TRI_S(b->B), (long long)r->opts.B);
    for (int64_t s = 0; s < b->B; s++) {
        if (b->T[s] < 1)
            return tr_fail(r->ctx, TR_ERR_ARG, "sequence %lld: the prompt is empty", (long long)s);
        if (b->T[s] > longest) longest = b->T[s];
    }
    part.B = b->B;
    part.T = r->piece_T;
    part.ids = r->piece_ids;
    for (int64_t done = 0; done < longest; done += piece) {
        int64_t n = 0, at = 0;
        for (int64_t s = 0; s < b->B; at += b->T[s++]) {
            int64_t left = b->T[s] - done, T = left < 0 ? 0 : left < piece ? left : piece;
            r->piece_T[s] = T;
            if (T) memcpy(r->piece_ids + n, b->ids + at + done, (size_t)T * sizeof *b->ids);
            n += T;
        }
        TRI_TRY(tr_forward(r, &part, NULL));
    }
    return TR_OK;
}

int32_t tr_argmax(tr_view row)
{
    int64_t best = -1, n = tr_view_numel(row);
    tri_fpenv env = tri_os_fp_begin();
    for (int64_t i = 0; i < n; i++) {
        double v = tr_get_f64(row.data, row.dtype, i);
        if (v != v) { best = -1; break; }
        if (best < 0 || v > tr_get_f64(row.data, row.dtype, best)) best = i;
    }
    tri_os_fp_end(env);
    return (int32_t)best;
}

tr_status tr_generate(tr_run *r, const int32_t *prompt, int64_t T, int64_t n, int32_t *out)
{
    tr_batch b;
    int64_t one = 1, last = r->model->first + r->model->layers;
    if (r->opts.B != 1)
        return tr_fail(r->ctx, TR_ERR_ARG, "generation runs one sequence; the run has %lld",
                       (long long)r->opts.B);
    if (r->opts.logits == TR_LOGITS_NONE)
        return tr_fail(r->ctx, TR_ERR_ARG, "generation needs logits; the run makes none");
    if (last < r->model->cfg.layers)
        return tr_fail(r->ctx, TR_ERR_ARG, "generation needs logits, which layer %lld leads to; "
                       "the model is open to layer %lld", (long long)(r->model->cfg.layers - 1),
                       (long long)(last - 1));
    b.B = 1;
    b.T = &T;
    b.ids = prompt;
    for (int64_t i = 0; i < n; i++) out[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t row;
        TRI_TRY(i == 0 ? tr_prefill(r, &b) : tr_forward(r, &b, NULL));
        row = r->opts.logits == TR_LOGITS_ALL ? r->N - 1 : 0;
        out[i] = tr_argmax(tr_view_at(r->logits, row));
        if (out[i] < 0)
            return tr_fail(r->ctx, TR_ERR_NOT_FINITE, "logits of token %lld hold a NaN",
                           (long long)(r->state.len[0] - 1));
        b.T = &one;
        b.ids = &out[i];
    }
    return TR_OK;
}

/* ============================================================================
 * 31. Golden outputs {golden}
 *
 * A golden is the taps of a whole prompt under their names, in the order in which the model first
 * showed them. A call shows some rows of some sequences; each goes to its place in a tensor made
 * when its name came up first:
 *
 *     rows    [B, T, ..]    at the row's position        probs    [B, H, T, T]    queries and keys
 *     state   [B, ..], or [B, T, ..] if it grows         lengths  [B], if they are not all T
 *     patches [P, ..]       image after image
 *
 * Traps. What no call fills stays 0: the padding of short sequences, the keys that a query does not
 * see. NaNs of different machines differ in bits and are one value, so they are made one before
 * hashing.
 * ========================================================================= */

/* SHA-256 (FIPS 180-4): blocks of 64 bytes turn eight words, each block by 64 rounds. A message
 * ends in the bit 1, zeros, and its length in bits, so that the last block is full. */

static uint32_t tri_ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void tri_sha256_block(uint32_t *h, const unsigned char *p)
{
    static const uint32_t k[64] = {     /* fractions of the cube roots of the first 64 primes */
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2
    };
    uint32_t w[64], s[8], a, b;
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int i = 16; i < 64; i++) {
        a = tri_ror(w[i - 15], 7) ^ tri_ror(w[i - 15], 18) ^ w[i - 15] >> 3;
        b = tri_ror(w[i - 2], 17) ^ tri_ror(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        a = s[7] + (tri_ror(s[4], 6) ^ tri_ror(s[4], 11) ^ tri_ror(s[4], 25)) +
            ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        b = (tri_ror(s[0], 2) ^ tri_ror(s[0], 13) ^ tri_ror(s[0], 22)) +
            ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += a;
        s[0] = a + b;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void tr_sha256_init(tr_sha256 *s)
{
    static const uint32_t h[8] = {      /* of the square roots of the first 8 */
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19
    };
    memset(s, 0, sizeof *s);
    memcpy(s->h, h, sizeof h);
}

void tr_sha256_update(tr_sha256 *s, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    while (n > 0) {
        size_t at = (size_t)(s->bytes % 64), k = n < 64 - at ? n : 64 - at;
        memcpy(s->buf + at, p, k);
        s->bytes += k;
        p += k;
        n -= k;
        if (at + k == 64) tri_sha256_block(s->h, s->buf);
    }
}

void tr_sha256_hex(tr_sha256 *s, char out[65])
{
    static const unsigned char one[64] = { 0x80 };
    unsigned char end[8];
    uint64_t bits = s->bytes * 8, pad = 64 - (s->bytes + 8) % 64;   /* 1..64: the 1 bit and zeros */
    for (int i = 0; i < 8; i++) end[i] = (unsigned char)(bits >> (56 - 8 * i));
    tr_sha256_update(s, one, (size_t)pad);
    tr_sha256_update(s, end, 8);
    for (int i = 0; i < 64; i++)
        out[i] = "0123456789abcdef"[s->h[i / 8] >> (28 - i % 8 * 4) & 15];
    out[64] = 0;
}

/* NaN has many bit patterns, and which one an operation gives is not fixed by IEEE 754: they all
 * hash as the quiet NaN without payload. A pattern is a NaN if, without its sign, it is above
 * infinity. */
void tr_view_sha256(tr_view v, char out[65])
{
    size_t size = (size_t)tr_dtype_get(v.dtype)->bits / 8;
    size_t n = (size_t)tr_view_numel(v) * (size_t)tr_dtype_get(v.dtype)->bits / 8;
    uint64_t inf = 0, nan = 0, x = 0;
    const unsigned char *p = (const unsigned char *)v.data;
    tr_sha256 s;
    TR_ASSERT(tr_view_is_contig(v));
    switch (v.dtype) {
    case TR_F64:  inf = 0x7ff0000000000000u; nan = 0x7ff8000000000000u; break;
    case TR_F32:  inf = 0x7f800000; nan = 0x7fc00000; break;
    case TR_BF16: inf = 0x7f80; nan = 0x7fc0; break;
    case TR_F16:  inf = 0x7c00; nan = 0x7e00; break;
    default: break;
    }
    tr_sha256_init(&s);
    for (size_t i = 0; inf && i < n; i += size) {
        memcpy(&x, p + i, size);
        if ((x & ~(uint64_t)0 >> (65 - 8 * size)) > inf) x = nan;
        tr_sha256_update(&s, &x, size);
    }
    if (!inf) tr_sha256_update(&s, p, n);
    tr_sha256_hex(&s, out);
}

struct tr_golden_item { char *name; tr_view x; };

tr_status tr_golden_new(tr_ctx *ctx, tr_golden *g, int64_t B, const int64_t *lengths)
{
    void *p;
    memset(g, 0, sizeof *g);
    TRI_TRY(tri_alloc_n(ctx, &p, B, sizeof *g->lengths));
    memcpy(p, lengths, (size_t)B * sizeof *lengths);
    g->lengths = (int64_t *)p;
    g->B = B;
    for (int64_t b = 0; b < B; b++)
        if (lengths[b] > g->T) g->T = lengths[b];
    return TR_OK;
}

void tr_golden_free(tr_ctx *ctx, tr_golden *g)
{
    for (int64_t i = 0; i < g->n; i++) {
        tr_free(ctx, g->item[i].name);
        tr_free(ctx, g->item[i].x.data);
    }
    tr_free(ctx, g->item);
    tr_free(ctx, g->lengths);
    memset(g, 0, sizeof *g);
}

/* Taps come in the same order call after call, so the search starts where the last one ended. */
static tr_golden_item *tri_golden_item(tr_golden *g, const char *name)
{
    for (int64_t i = 0; i < g->n; i++) {
        int64_t k = (g->next + i) % g->n;
        if (strcmp(g->item[k].name, name)) continue;
        g->next = k + 1;
        return &g->item[k];
    }
    return NULL;
}

tr_view tr_golden_find(const tr_golden *g, const char *name)
{
    for (int64_t i = 0; i < g->n; i++)
        if (!strcmp(g->item[i].name, name)) return g->item[i].x;
    return tr_view_none();
}

/* The whole prompt's shape of a tap: [B, T, ..], [B, H, T, T], or [B, ..]; what state remembers
 * token by token is [B, T, ..]; patches are [those of all images, ..]. */
static tr_status tri_golden_add(tr_ctx *ctx, tr_golden *g, const tr_tap *t, tr_golden_item **out)
{
    int64_t shape[TR_MAX_RANK];
    int rank = 0;
    size_t bytes;
    tr_golden_item *it;
    void *p = g->item;
    TRI_TRY(tri_grow(ctx, &p, &g->cap, g->n, sizeof *it));
    g->item = (tr_golden_item *)p;
    it = &g->item[g->n];
    if (t->kind != TR_TAP_PATCHES) shape[rank++] = g->B;
    else shape[rank++] = t->rows;
    if (t->kind == TR_TAP_ROWS) shape[rank++] = g->T;
    for (int k = t->kind == TR_TAP_ROWS || t->kind == TR_TAP_PATCHES;
         k < t->x.rank && rank < TR_MAX_RANK; k++) shape[rank++] = t->x.shape[k];
    if (t->kind == TR_TAP_PROBS) shape[2] = shape[3] = g->T;
    if (t->grows) shape[1] = g->T;
    it->x = tr_view_of(NULL, t->x.dtype, rank, shape);
    TRI_TRY(tri_view_bytes(ctx, it->x, &bytes));
    TRI_TRY(tri_strdup(ctx, &it->name, t->name, strlen(t->name)));
    if (tr_alloc(ctx, &it->x.data, bytes) != TR_OK) {
        tr_free(ctx, it->name);
        return TR_ERR_MEMORY;
    }
    g->n++;
    g->next = g->n;
    *out = it;
    return TR_OK;
}

tr_status tr_golden_tap(void *golden, tr_ctx *ctx, const tr_tap *t)
{
    tr_golden *g = (tr_golden *)golden;
    tr_golden_item *it = tri_golden_item(g, t->name);
    int64_t row = 0;
    if (!it) TRI_TRY(tri_golden_add(ctx, g, t, &it));
    if (t->kind == TR_TAP_PATCHES)
        return tr_view_copy(ctx, tr_view_slice(it->x, 0, t->row, t->x.shape[0]), t->x);
    if (t->kind == TR_TAP_STATE) {
        tr_view dst = tr_view_at(it->x, t->seq);
        if (t->grows) dst = tr_view_slice(dst, 0, 0, t->x.shape[0]);
        return tr_view_copy(ctx, dst, t->x);
    }
    if (t->kind == TR_TAP_PROBS) {
        tr_view dst = tr_view_at(it->x, t->seq);
        dst = tr_view_slice(dst, 1, t->pos[t->seq], t->x.shape[1]);
        return tr_view_copy(ctx, tr_view_slice(dst, 2, 0, t->x.shape[2]), t->x);
    }
    for (int64_t b = 0; b < t->batch->B; b++) {
        int64_t T = t->batch->T[b];
        if (t->seq >= 0 && t->seq != b) continue;
        if (T) TRI_TRY(tr_view_copy(ctx, tr_view_slice(tr_view_at(it->x, b), 0, t->pos[b], T),
                                    tr_view_slice(t->x, 0, row, T)));
        row += T;
    }
    return TR_OK;
}

tr_status tr_golden_write(tr_ctx *ctx, const tr_golden *g, const char *path,
                          const tr_st_meta_item *meta, int64_t n_meta)
{
    tr_st_item *item;
    void *p;
    int64_t ragged = 0;
    tr_status s;
    TRI_TRY(tri_alloc_n(ctx, &p, g->n + 1, sizeof *item));
    item = (tr_st_item *)p;
    for (int64_t i = 0; i < g->n; i++) {
        item[i].name = g->item[i].name;
        item[i].view = g->item[i].x;
    }
    for (int64_t b = 0; b < g->B; b++) ragged |= g->lengths[b] != g->T;
    if (ragged) {
        item[g->n].name = "lengths";
        item[g->n].view = tr_view1(g->lengths, TR_I64, g->B);
    }
    s = tr_st_write(ctx, path, item, g->n + (ragged != 0), meta, n_meta);
    tr_free(ctx, p);
    return s;
}

/* ============================================================================
 * 32. Differences {bar}
 *
 *     max rel = max|a - b| / max|b|        rms = sqrt(sum (a - b)^2 / sum b^2)
 *     cosine  = sum a b / sqrt(sum a^2 sum b^2)                            b is the golden
 *
 * Errors are measured against the size of the tensor, not of the element: an element that happens
 * to lie near 0 is as uncertain as its neighbours, and its own relative error says nothing.
 *
 * Traps. NaN is above no bound, so it must be counted, and one that only one side has is a
 * difference. Two infinities differ by NaN: equal values are seen before they are subtracted. A
 * cosine close to 1 hides a wrong scale, a small rms hides one wrong row; look at all of them.
 * ========================================================================= */

tr_status tr_diff_views(tr_ctx *ctx, tr_diff *out, tr_view a, tr_view b)
{
    char sa[96], sb[96];
    double aa = 0, bb = 0, ab = 0, dd = 0;
    int64_t n = tr_view_numel(b);
    tri_fpenv env;
    memset(out, 0, sizeof *out);
    while (a.rank > 1 && a.shape[0] == 1) a = tr_view_at(a, 0);
    while (b.rank > 1 && b.shape[0] == 1) b = tr_view_at(b, 0);
    if (tr_view_numel(a) != n)
        return tr_fail(ctx, TR_ERR_SHAPE, "%s and %s differ in size", tr_view_str(a, sa),
                       tr_view_str(b, sb));
    if (!tr_view_is_contig(a) || !tr_view_is_contig(b))
        return tr_fail(ctx, TR_ERR_ARG, "differences are taken of contiguous views");
    env = tri_os_fp_begin();
    out->n = n;
    out->worst = -1;
    for (int64_t i = 0; i < n; i++) {
        double x = tr_get_f64(a.data, a.dtype, i), y = tr_get_f64(b.data, b.dtype, i);
        double d = x == y ? 0 : fabs(x - y);
        out->nan_a += x != x;
        out->nan_b += y != y;
        out->inf_a += isinf(x) != 0;
        out->inf_b += isinf(y) != 0;
        out->nan_one_side += (x != x) != (y != y);
        out->equal += x == y || (x != x && y != y);
        if (x != x || y != y) continue;
        if (out->worst < 0 || d > out->max_abs) {
            out->max_abs = d;
            out->worst = i;
            out->worst_a = x;
            out->worst_b = y;
        }
        if (fabs(y) > out->max_b) out->max_b = fabs(y);
        if (isinf(x) || isinf(y)) continue;
        dd += d * d;
        aa += x * x;
        bb += y * y;
        ab += x * y;
    }
    out->max_rel = out->max_abs == 0 ? 0 : out->max_b > 0 && out->max_abs < HUGE_VAL
                 ? out->max_abs / out->max_b : HUGE_VAL;
    out->rms_ratio = dd == 0 ? 0 : bb > 0 ? sqrt(dd / bb) : HUGE_VAL;
    out->cosine = aa > 0 && bb > 0 ? ab / (sqrt(aa) * sqrt(bb)) : aa == bb ? 1 : 0;
    tri_os_fp_end(env);
    return TR_OK;
}

/* ============================================================================
 * 33. Self-test {self}
 *
 * A header cannot see the flags it is compiled with, nor what the host program did to the rounding
 * mode. It can see answers: operations whose result is known and differs under each of the usual
 * mistakes, done by the clone that will do the work, since a compiler that may fuse finds the
 * instruction for it there and not in what it compiles for every machine. Whatever passes these
 * and still computes otherwise should show in the hashes of some kernels that come after.
 *
 * Traps. A compiler computes constants itself, with its own rounding: operands come from memory
 * through a pointer to a function, where it cannot follow them. What is tested is the thread's own
 * rounding, not the one that kernels set.
 * ========================================================================= */

tr_build tr_build_info(const tr_ctx *ctx)
{
    tr_build b;
    memset(&b, 0, sizeof b);
    b.version = TR_VERSION;
    b.contract = TR_CONTRACT;
#if defined(__clang__)
    b.compiler = "clang " __clang_version__;
#elif defined(__GNUC__)
    b.compiler = "gcc " __VERSION__;
#else
    b.compiler = "unknown";
#endif
#if defined(__x86_64__)
    b.arch = "x86_64";
#elif defined(__aarch64__)
    b.arch = "aarch64";
#elif defined(__riscv)
    b.arch = "riscv";
#else
    b.arch = "other";
#endif
#if defined(_OPENMP) && !TR_NO_OPENMP
    b.openmp = 1;
#endif
    b.threads = tr_par_threads(ctx);
    b.mmap = !TR_NO_MMAP;
    return b;
}

/* Each probe is one expression of a, b and c in both types, and what it means if the answer is not
 * the known one. d and e are b and c as one number for all lanes, which a compiler would like to
 * put together first; TRI_ROOT, TRI_FUSED and TRI_SHIFT are the type's own. */
#define TRI_NOT_NEAREST "arithmetic does not round to nearest even"
#define TRI_FLUSHES     "arithmetic flushes subnormal numbers to zero"
#define TRI_FUSES       "the compiler fuses a product and a sum that are written apart; build " \
                        "with -ffp-contract=off"
#define TRI_REORDERS    "the compiler reorders sums or products; build with -fno-associative-math"
#define TRI_DIVIDES     "the compiler does not divide as written; build with -fno-reciprocal-math"
#define TRI_NO_SIGN     "the compiler drops the sign of zero; build with -fsigned-zeros"
#define TRI_NO_NAN      "the compiler takes it that no number is NaN or infinite; build with " \
                        "-fno-finite-math-only"

#define TRI_PROBES(X)                                                           \
    X(ADD,       a + b,                         TRI_NOT_NEAREST)                \
    X(MUL,       a * b,                         TRI_FLUSHES)                    \
    X(MUL_ADD,   a * b + c,                     TRI_FUSES)                      \
    X(MUL_SUB,   a * b - c,                     TRI_FUSES)                      \
    X(SUB_MUL,   c - a * b,                     TRI_FUSES)                      \
    X(BACK,      (a + b) - a,                   TRI_REORDERS)                   \
    X(ADD_ALL,   a + d + e,                     TRI_REORDERS)                   \
    X(MUL_ALL,   a * d * e,                     TRI_REORDERS)                   \
    X(INVERSE,   1 / a * b,                     TRI_REORDERS)                   \
    X(NEAREST,   (a + TRI_SHIFT) - TRI_SHIFT,   TRI_REORDERS)                   \
    X(DIV,       a / b,                         TRI_DIVIDES)                    \
    X(DIV_ALL,   a / d,                         TRI_DIVIDES)                    \
    X(DIV_3,     a / 3,                         TRI_DIVIDES)                    \
    X(ROOT,      TRI_ROOT(a),                   "square roots are not rounded correctly")   \
    X(PLUS_0,    a + 0,                         TRI_NO_SIGN)                    \
    X(FROM_0,    0 - a,                         TRI_NO_SIGN)                    \
    X(MAX,       a > b ? a : b,                 TRI_NO_SIGN)                    \
    X(NAN,       a == a ? b : c,                TRI_NO_NAN)                     \
    X(FINITE,    isfinite(a) ? b : c,           TRI_NO_NAN)                     \
    X(FUSED,     TRI_FUSED(a, b, c),            "fmaf does not round once")

#define TRI_ENUM(op, expression, flaw) TRI_P_##op,
typedef enum tri_probe { TRI_PROBES(TRI_ENUM) TRI_PROBE_COUNT } tri_probe;
#undef TRI_ENUM

/* The bits of the operands and of the answer. */
typedef struct tri_answer { tri_probe op; uint64_t a, b, c, want; } tri_answer;

static const tri_answer tri_answers_f32[] = {
    { TRI_P_ADD, 0x3f800000, 0x33800000, 0, 0x3f800000 },   /* a tie: to even */
    { TRI_P_ADD, 0x3f800001, 0x33800000, 0, 0x3f800002 },   /* a tie: to even, upwards */
    { TRI_P_ADD, 0x3f800000, 0x33c00000, 0, 0x3f800001 },
    { TRI_P_ADD, 0xbf800000, 0xb3c00000, 0, 0xbf800001 },
    { TRI_P_ADD, 0xbf800000, 0xb3000000, 0, 0xbf800000 },
    { TRI_P_ADD, 0x3f800000, 0x33000000, 0, 0x3f800000 },
    { TRI_P_MUL, 0x00800000, 0x3e800000, 0, 0x00200000 },   /* a subnormal result */
    { TRI_P_MUL, 0x00200000, 0x41800000, 0, 0x01800000 },   /* a subnormal operand */
    { TRI_P_MUL, 0x00000001, 0x3f400000, 0, 0x00000001 },
    { TRI_P_MUL_ADD, 0x3f800800, 0x3f800800, 0xbf801000, 0 },
    { TRI_P_MUL_SUB, 0x3f800800, 0x3f800800, 0x3f801000, 0 },
    { TRI_P_SUB_MUL, 0x3f800800, 0x3f800800, 0x3f801000, 0 },
    { TRI_P_BACK, 0x3f800000, 0x33000000, 0, 0 },
    { TRI_P_BACK, 0x3f800000, 0x33c00000, 0, 0x34000000 },
    { TRI_P_ADD_ALL, 0xbf2e5acf, 0x4193aced, 0xc149874b, 0x40a5d9c6 },
    { TRI_P_MUL_ALL, 0x3fe9f229, 0x3fb460a3, 0x3fc65916, 0x407f6ea8 },
    { TRI_P_INVERSE, 0x40400000, 0x40a00000, 0, 0x3fd55556 },
    { TRI_P_NEAREST, 0x40100000, 0, 0, 0x40000000 },
    { TRI_P_DIV, 0x40a00000, 0x42440000, 0, 0x3dd0fac7 },
    { TRI_P_DIV, 0x3f800000, 0x40400000, 0, 0x3eaaaaab },
    { TRI_P_DIV, 0x00800000, 0x40400000, 0, 0x002aaaab },
    { TRI_P_DIV_ALL, 0x40a00000, 0x42440000, 0, 0x3dd0fac7 },
    { TRI_P_DIV_ALL, 0x41200000, 0x42440000, 0, 0x3e50fac7 },
    { TRI_P_DIV_3, 0x40a00000, 0, 0, 0x3fd55555 },
    { TRI_P_DIV_3, 0x40e00000, 0, 0, 0x40155555 },
    { TRI_P_ROOT, 0x40000000, 0, 0, 0x3fb504f3 },
    { TRI_P_ROOT, 0x40400000, 0, 0, 0x3fddb3d7 },
    { TRI_P_ROOT, 0x3f7fffff, 0, 0, 0x3f7fffff },
    { TRI_P_ROOT, 0x00000001, 0, 0, 0x1a3504f3 },
    { TRI_P_PLUS_0, 0x80000000, 0, 0, 0 },
    { TRI_P_FROM_0, 0, 0, 0, 0 },
    { TRI_P_MAX, 0, 0x80000000, 0, 0x80000000 },
    { TRI_P_MAX, 0x80000000, 0, 0, 0 },
    { TRI_P_NAN, 0x7fc00000, 0x3f800000, 0x40000000, 0x40000000 },
    { TRI_P_FINITE, 0x7f800000, 0x3f800000, 0x40000000, 0x40000000 },
    { TRI_P_FUSED, 0x3f800800, 0x3f800800, 0xbf801000, 0x33800000 },   /* what the product leaves */
    { TRI_P_FUSED, 0x46c2c200, 0x38284000, 0x21800000, 0x3f800001 },   /* just above a tie */
    { TRI_P_FUSED, 0x46c2c200, 0x38284000, 0xa1800000, 0x3f800000 },   /* just below */
    { TRI_P_FUSED, 0x19ffffff, 0x1a000000, 0x00000001, 0x00000001 },   /* subnormal, below a tie */
    { TRI_P_FUSED, 0x40400000, 0x40a00000, 0xc1700000, 0 },   /* +0 */
    { TRI_P_FUSED, 0x80000000, 0x3f800000, 0x80000000, 0x80000000 },   /* -0 */
};

static const tri_answer tri_answers_f64[] = {
    { TRI_P_ADD, 0x3ff0000000000000, 0x3ca0000000000000, 0, 0x3ff0000000000000 },
    { TRI_P_ADD, 0x3ff0000000000001, 0x3ca0000000000000, 0, 0x3ff0000000000002 },
    { TRI_P_ADD, 0x3ff0000000000000, 0x3ca8000000000000, 0, 0x3ff0000000000001 },
    { TRI_P_ADD, 0xbff0000000000000, 0xbca8000000000000, 0, 0xbff0000000000001 },
    { TRI_P_ADD, 0xbff0000000000000, 0xbc90000000000000, 0, 0xbff0000000000000 },
    { TRI_P_ADD, 0x3ff0000000000000, 0x3c90000000000000, 0, 0x3ff0000000000000 },
    { TRI_P_MUL, 0x0010000000000000, 0x3fd0000000000000, 0, 0x0004000000000000 },
    { TRI_P_MUL, 0x0004000000000000, 0x4030000000000000, 0, 0x0030000000000000 },
    { TRI_P_MUL, 0x0000000000000001, 0x3fe8000000000000, 0, 0x0000000000000001 },
    { TRI_P_MUL_ADD, 0x3ff0000002000000, 0x3ff0000002000000, 0xbff0000004000000, 0 },
    { TRI_P_MUL_SUB, 0x3ff0000002000000, 0x3ff0000002000000, 0x3ff0000004000000, 0 },
    { TRI_P_SUB_MUL, 0x3ff0000002000000, 0x3ff0000002000000, 0x3ff0000004000000, 0 },
    { TRI_P_BACK, 0x3ff0000000000000, 0x3c90000000000000, 0, 0 },
    { TRI_P_BACK, 0x3ff0000000000000, 0x3ca8000000000000, 0, 0x3cb0000000000000 },
    { TRI_P_ADD_ALL, 0x3fec25fd9d206e0c, 0x403579f74e9a6ef0, 0xc02beb6d67003998,
      0x4020cae11006ab28 },
    { TRI_P_MUL_ALL, 0x3ff3415a484e7642, 0x3ff4326f79280940, 0x3ffc017e63105131,
      0x400545b9473daf8a },
    { TRI_P_INVERSE, 0x4008000000000000, 0x4014000000000000, 0, 0x3ffaaaaaaaaaaaaa },
    { TRI_P_NEAREST, 0x4002000000000000, 0, 0, 0x4000000000000000 },
    { TRI_P_DIV, 0x4014000000000000, 0x4048800000000000, 0, 0x3fba1f58d0fac688 },
    { TRI_P_DIV, 0x3ff0000000000000, 0x4008000000000000, 0, 0x3fd5555555555555 },
    { TRI_P_DIV, 0x0010000000000000, 0x4008000000000000, 0, 0x0005555555555555 },
    { TRI_P_DIV_ALL, 0x4014000000000000, 0x4048800000000000, 0, 0x3fba1f58d0fac688 },
    { TRI_P_DIV_ALL, 0x4024000000000000, 0x4048800000000000, 0, 0x3fca1f58d0fac688 },
    { TRI_P_DIV_3, 0x4014000000000000, 0, 0, 0x3ffaaaaaaaaaaaab },
    { TRI_P_DIV_3, 0x401c000000000000, 0, 0, 0x4002aaaaaaaaaaab },
    { TRI_P_ROOT, 0x4000000000000000, 0, 0, 0x3ff6a09e667f3bcd },
    { TRI_P_ROOT, 0x4008000000000000, 0, 0, 0x3ffbb67ae8584caa },
    { TRI_P_ROOT, 0x3fefffffffffffff, 0, 0, 0x3fefffffffffffff },
    { TRI_P_ROOT, 0x0000000000000001, 0, 0, 0x1e60000000000000 },
    { TRI_P_PLUS_0, 0x8000000000000000, 0, 0, 0 },
    { TRI_P_FROM_0, 0, 0, 0, 0 },
    { TRI_P_MAX, 0, 0x8000000000000000, 0, 0x8000000000000000 },
    { TRI_P_MAX, 0x8000000000000000, 0, 0, 0 },
    { TRI_P_NAN, 0x7ff8000000000000, 0x3ff0000000000000, 0x4000000000000000, 0x4000000000000000 },
    { TRI_P_FINITE, 0x7ff0000000000000, 0x3ff0000000000000, 0x4000000000000000,
      0x4000000000000000 },
};

/* Every lane holds the same operands: some lie in a vector of whatever width, and some behind. */
#define TRI_PROBE_LANES 19
typedef struct tri_probe_f32 { tri_probe op; float  v[4][TRI_PROBE_LANES]; } tri_probe_f32;
typedef struct tri_probe_f64 { tri_probe op; double v[4][TRI_PROBE_LANES]; } tri_probe_f64;

#define TRI_CASE(op, expression, flaw)                                          \
    case TRI_P_##op:                                                            \
        for (int64_t i = begin; i < end; i++) {                                 \
            a = j->v[0][i]; b = j->v[1][i]; c = j->v[2][i];                     \
            j->v[3][i] = expression;                                            \
        }                                                                       \
        break;

#define TRI_SHIFT 12582912.0f               /* 1.5 2^23 */
#define TRI_ROOT(a) sqrtf(a)
#define TRI_FUSED(a, b, c) tri_fmaf(hw, a, b, c)
TRI_INLINE void tri_probe_rows_f32(int hw, void *user, int64_t begin, int64_t end)
{
    tri_probe_f32 *j = (tri_probe_f32 *)user;
    float a, b, c, d = j->v[1][0], e = j->v[2][0];
    switch (j->op) { TRI_PROBES(TRI_CASE) default: break; }
}
TRI_CLONES(tri_probe_rows_f32)
#undef TRI_SHIFT
#undef TRI_ROOT
#undef TRI_FUSED

#define TRI_SHIFT TRI_ROUND
#define TRI_ROOT(a) sqrt(a)
#define TRI_FUSED(a, b, c) (a)              /* the contract fuses in binary32 alone */
TRI_INLINE void tri_probe_rows_f64(int hw, void *user, int64_t begin, int64_t end)
{
    tri_probe_f64 *j = (tri_probe_f64 *)user;
    double a, b, c, d = j->v[1][0], e = j->v[2][0];
    (void)hw;
    switch (j->op) { TRI_PROBES(TRI_CASE) default: break; }
}
TRI_CLONES(tri_probe_rows_f64)
#undef TRI_SHIFT
#undef TRI_ROOT
#undef TRI_FUSED
#undef TRI_CASE

static int tri_answers_so_f32(const tr_ctx *ctx, const tri_answer *t)
{
    tri_probe_f32 p;
    p.op = t->op;
    for (int i = 0; i < TRI_PROBE_LANES; i++) {
        p.v[0][i] = tr_f32_from_bits((uint32_t)t->a);
        p.v[1][i] = tr_f32_from_bits((uint32_t)t->b);
        p.v[2][i] = tr_f32_from_bits((uint32_t)t->c);
    }
    tri_probe_rows_f32_clones[ctx->cpu](&p, 0, TRI_PROBE_LANES);
    for (int i = 0; i < TRI_PROBE_LANES; i++)
        if (tr_f32_bits(p.v[3][i]) != t->want) return 0;
    return 1;
}

static int tri_answers_so_f64(const tr_ctx *ctx, const tri_answer *t)
{
    tri_probe_f64 p;
    p.op = t->op;
    for (int i = 0; i < TRI_PROBE_LANES; i++) {
        p.v[0][i] = tri_f64_from_bits(t->a);
        p.v[1][i] = tri_f64_from_bits(t->b);
        p.v[2][i] = tri_f64_from_bits(t->c);
    }
    tri_probe_rows_f64_clones[ctx->cpu](&p, 0, TRI_PROBE_LANES);
    for (int i = 0; i < TRI_PROBE_LANES; i++)
        if (tri_f64_bits(p.v[3][i]) != t->want) return 0;
    return 1;
}

static tr_status tri_test_arithmetic(tr_ctx *ctx)
{
#define TRI_TEXT(op, expression, flaw) flaw,
    static const char *const flaws[] = { TRI_PROBES(TRI_TEXT) };
#undef TRI_TEXT
    for (size_t k = 0; k < sizeof tri_answers_f32 / sizeof tri_answers_f32[0]; k++)
        if (!tri_answers_so_f32(ctx, &tri_answers_f32[k]))
            return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s", flaws[tri_answers_f32[k].op]);
    for (size_t k = 0; k < sizeof tri_answers_f64 / sizeof tri_answers_f64[0]; k++)
        if (!tri_answers_so_f64(ctx, &tri_answers_f64[k]))
            return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s", flaws[tri_answers_f64[k].op]);
    if (tri_f64_bits(0.1) != 0x3fb999999999999au)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "the compiler narrows constants to binary32; build "
                       "with -fno-single-precision-constant");
    return TR_OK;
}

/* Some kernels on a few numbers, each to one hash of its bits. */
enum { TRI_K_EXP, TRI_K_SIGMOID, TRI_K_TANH, TRI_K_SOFTPLUS, TRI_K_SUM, TRI_K_POSITIONS,
       TRI_K_PRODUCT, TRI_K_ATTENTION, TRI_K_COUNT };
static const struct { const char *name; uint64_t want; } tri_known[TRI_K_COUNT] = {
    { "exp",             0xeca20a36d34a25e6u },
    { "sigmoid",         0x46d0c4d7f86b6c34u },
    { "tanh",            0xcec32b75ea47b600u },
    { "softplus",        0xb733f4207bfdc227u },
    { "dot, sum",        0x695e5d20bc9d2af2u },
    { "pow64, sincos64", 0xabe0aa2e85300f11u },
    { "matmul",          0xa40bc1ce69462d65u },
    { "attn",            0x732a58475cdc9882u }
};

#define TRI_SAMPLES 41
typedef struct tri_sample {
    float x[4 * TRI_SAMPLES], y[TRI_K_COUNT][TRI_SAMPLES];
    double d[TRI_SAMPLES];
} tri_sample;

TRI_INLINE void tri_sample_rows(int hw, void *user, int64_t begin, int64_t end)
{
    tri_sample *j = (tri_sample *)user;
    for (int64_t i = begin; i < end; i++) j->y[TRI_K_EXP][i] = tri_expf(j->x[i]);
    for (int64_t i = begin; i < end; i++) j->y[TRI_K_SIGMOID][i] = tri_sigmoidf(j->x[i]);
    for (int64_t i = begin; i < end; i++) j->y[TRI_K_TANH][i] = tri_tanhf(j->x[i]);
    for (int64_t i = begin; i < end; i++) j->y[TRI_K_SOFTPLUS][i] = tri_softplusf(j->x[i]);
    j->y[TRI_K_SUM][0] = tri_dot(hw, j->x, j->x + end, end - begin);
    j->y[TRI_K_SUM][1] = tri_sum(j->x, end - begin);
}
TRI_CLONES(tri_sample_rows)

/* y [2, 3] = x [2, 41] W [3, 41]^T + b. */
static tr_status tri_sample_product(tr_ctx *ctx, tri_sample *j)
{
    tr_matmul_args a;
    tr_weight w;
    TRI_TRY(tr_weight_of(ctx, &w, tr_qformat_get(TR_FMT_F32), "self-test", j->x + 5, NULL, 3,
                         TRI_SAMPLES, 0, 0));
    a.y = tr_view2(j->y[TRI_K_PRODUCT], TR_F32, 2, 3);
    a.x = tr_view2(j->x, TR_F32, 2, TRI_SAMPLES);
    a.w = &w;
    a.bias = tr_view1(j->x + 7, TR_F32, 3);
    return tr_matmul(ctx, &a);
}

/* Two heads of width 6 see the last 20 of 131 keys: they lie in two blocks. Row s of the keys, and
 * of the values, begins at number s of x, so that few numbers do for all of them. */
static tr_status tri_sample_attention(tr_ctx *ctx, tri_sample *j)
{
    tr_attn_args a;
    memset(&a, 0, sizeof a);
    a.y = tr_view3(j->y[TRI_K_ATTENTION], TR_F32, 1, 2, 6);
    a.q = tr_view3(j->x + 140, TR_F32, 1, 2, 6);
    a.k = tr_view3(j->x + 3, TR_F32, 131, 1, 6);
    a.v = tr_view3(j->x + 20, TR_F32, 131, 1, 6);
    a.k.stride[0] = a.v.stride[0] = 1;
    a.pos = 130;
    a.window = 20;
    a.scale = 0.1;
    return tr_attn(ctx, &a);
}

static tr_status tri_test_kernels(tr_ctx *ctx)
{
    tri_sample j;
    memset(&j, 0, sizeof j);
    for (uint64_t i = 0; i < 4 * TRI_SAMPLES; i++)          /* 24 bits, from -8 to 8 */
        j.x[i] = (float)((int32_t)(tri_mix64(i + 1) >> 40) - 8388608) / 1048576;
    tri_sample_rows_clones[ctx->cpu](&j, 0, TRI_SAMPLES);
    for (int i = 0; i + 3 < TRI_SAMPLES; i += 3) {
        tr_sincos64(1000 * (double)j.x[i], &j.d[i], &j.d[i + 1]);
        j.d[i + 2] = tr_pow64(8.5 + (double)j.x[i + 1], (double)j.x[i + 2]);
    }
    TRI_TRY(tri_sample_product(ctx, &j));
    TRI_TRY(tri_sample_attention(ctx, &j));
    for (int k = 0; k < TRI_K_COUNT; k++) {
        uint64_t h = 0;
        for (int i = 0; i < TRI_SAMPLES; i++)
            h = tri_mix64(h ^ (k == TRI_K_POSITIONS ? tri_f64_bits(j.d[i])
                                                    : tr_f32_bits(j.y[k][i])));
        if (h != tri_known[k].want)
            return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: a known answer is wrong: this build "
                           "computes other bits", tri_known[k].name);
    }
    return TR_OK;
}

static tr_status tri_test_formats(tr_ctx *ctx)
{
    if (tr_f32_to_bf16(1.00390625f) != 0x3f80 || tr_f32_to_bf16(1.01171875f) != 0x3f82 ||
        tr_bf16_to_f32(0x3fc0) != 1.5f)
        return tr_fail(ctx, TR_ERR_FORMAT, "bf16: a known answer is wrong");
    if (tr_f16_to_f32(0x0001) * 16777216 != 1 || tr_f32_to_f16(65520) != 0x7c00)
        return tr_fail(ctx, TR_ERR_FORMAT, "f16: a known answer is wrong");
    if (tr_e4m3_to_f32(0x01) * 512 != 1 || tr_e4m3_to_f32(0x7e) != 448 ||
        tr_f32_to_e4m3(500, TR_OVERFLOW_SATURATE) != 0x7e)
        return tr_fail(ctx, TR_ERR_FORMAT, "e4m3: a known answer is wrong");
    if (tr_e2m1_to_f32(0xf) != -6 || tr_f32_to_e2m1(2.5f) != 4 ||
        tr_f32_bits(tr_e8m0_to_f32(0)) != 0x00400000)
        return tr_fail(ctx, TR_ERR_FORMAT, "e2m1, e8m0: a known answer is wrong");
    return TR_OK;
}

tr_status tr_selftest(tr_ctx *ctx)
{
    tri_fpenv env = tri_os_fp_quiet();      /* a host that traps underflow shall hear of no test */
    tr_status s = tri_test_arithmetic(ctx);
    if (s == TR_OK) s = tri_test_formats(ctx);
    if (s == TR_OK) s = tri_test_kernels(ctx);
    tri_os_fp_end(env);
    return s;
}

/* ============================================================================
 * 36. The system {os}
 *
 * Everything that differs between systems: what a path is, a file as memory, the names in a
 * folder, one file put in the place of another; which instructions the machine has, and how its
 * threads round. POSIX and Windows; nothing here needs a feature macro, so that -std=c11 is enough.
 *
 * Traps: a mapping of no bytes is an error on every system, an empty file is not. fread of more
 * than 2^31 bytes at once fails on some. A file that another program shortens while it is mapped
 * ends this one (SIGBUS): replace files by rename, as tr_st_write does.
 * ========================================================================= */

#include <dirent.h>
#include <sys/stat.h>
#if !defined(_WIN32) && !TR_NO_MMAP
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__GNUC__) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static tr_cpu tri_os_cpu(void)
{
#if defined(__GNUC__) && defined(__x86_64__)
    unsigned a, b, c, d;                        /* F16C: clang 14 knows no name for it */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c >> 29 & 1)) return TR_CPU_BASE;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
           ? TR_CPU_AVX512 : TR_CPU_AVX2;
#else
    return TR_CPU_BASE;
#endif
}

/* The control word that says how to round and what becomes of subnormals. The assembler lines are
 * also barriers: what is computed from memory stays on its side of them. x86 has a second word, of
 * the old unit, in which libc looks up how strtod shall round; its two bits go above mxcsr. */
#if defined(__GNUC__) && defined(__SSE2__)
#define TRI_FP_PLAIN 0x1f80u                    /* mxcsr: all exceptions masked, nothing else */
#define TRI_FP_BITS  0xc000000ffc0u             /* without the flags that exceptions leave */
#define TRI_FP_QUIET(w) ((w) | 0x1f80u)
static uint64_t tri_os_fp_get(void)
{
    uint32_t w;
    uint16_t old;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(w), "=m"(old) : : "memory");
    return w | (uint64_t)(old & 0xc00u) << 32;
}
static void tri_os_fp_set(uint64_t word)
{
    uint32_t w = (uint32_t)word;
    uint16_t old;
    __asm__ volatile("fnstcw %0" : "=m"(old));
    old = (uint16_t)((old & ~0xc00u) | (word >> 32 & 0xc00u));
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(w), "m"(old) : "memory");
}
#elif defined(__GNUC__) && defined(__aarch64__)
#define TRI_FP_PLAIN 0u                         /* fpcr */
#define TRI_FP_BITS  0xffffffffu
#define TRI_FP_QUIET(w) ((w) & ~(uint64_t)0x9f00u)
static uint64_t tri_os_fp_get(void)
{
    uint64_t w;
    __asm__ volatile("mrs %0, fpcr" : "=r"(w) : : "memory");
    return w;
}
static void tri_os_fp_set(uint64_t w) { __asm__ volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#else
#include <fenv.h>
#define TRI_FP_PLAIN ((uint64_t)FE_TONEAREST)   /* flushing cannot be asked for portably */
#define TRI_FP_BITS  UINT64_MAX
#define TRI_FP_QUIET(w) (w)
static uint64_t tri_os_fp_get(void)       { return (uint64_t)fegetround(); }
static void     tri_os_fp_set(uint64_t w) { fesetround((int)w); }
#endif

static tri_fpenv tri_os_fp_begin(void)
{
    tri_fpenv e;
    e.was = tri_os_fp_get();
    if ((e.was & TRI_FP_BITS) != TRI_FP_PLAIN) tri_os_fp_set(TRI_FP_PLAIN);
    return e;
}

static tri_fpenv tri_os_fp_quiet(void)
{
    tri_fpenv e;
    e.was = tri_os_fp_get();
    if (e.was != TRI_FP_QUIET(e.was)) tri_os_fp_set(TRI_FP_QUIET(e.was));
    return e;
}

static void tri_os_fp_end(tri_fpenv e)
{
    if ((e.was & TRI_FP_BITS) != TRI_FP_PLAIN) tri_os_fp_set(e.was);
}

/* What path leads to (links followed), and the size of a file. errno tells why nothing. */
static tri_kind tri_os_kind(const char *path, uint64_t *bytes)
{
#if defined(_WIN32)
    struct _stat64 st;
    int bad = _stat64(path, &st);
#else
    struct stat st;
    int bad = stat(path, &st);
#endif
    *bytes = 0;
    if (bad) return TRI_NOTHING;
    if (S_ISDIR(st.st_mode)) return TRI_DIR;
    if (!S_ISREG(st.st_mode)) return TRI_OTHER;
    *bytes = (uint64_t)st.st_size;
    return TRI_FILE;
}

static int tri_os_is_dir(const char *path)
{
    uint64_t bytes;
    return tri_os_kind(path, &bytes) == TRI_DIR;
}

static tr_status tri_os_fail(tr_ctx *ctx, const char *path, const char *what)
{
    return tr_fail(ctx, TR_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

#if defined(_WIN32) || TR_NO_MMAP

static tr_status tri_os_read(tr_ctx *ctx, const char *path, unsigned char **map, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    size_t at = 0, n = 1;
    void *p;
    tr_status s;
    if (!f) return tri_os_fail(ctx, path, "cannot be opened");
    s = tr_alloc(ctx, &p, bytes);
    *map = (unsigned char *)p;
    for (; s == TR_OK && at < bytes && n > 0; at += n)
        n = fread(*map + at, 1, bytes - at < (1u << 28) ? bytes - at : 1u << 28, f);
    if (s == TR_OK && at < bytes)
        s = tr_fail(ctx, TR_ERR_IO, "%s: only %llu of %llu bytes could be read", path,
                    (unsigned long long)at, (unsigned long long)bytes);
    fclose(f);
    if (s != TR_OK) { tr_free(ctx, *map); *map = NULL; }
    return s;
}

static void tri_os_unmap(tr_ctx *ctx, unsigned char *map, size_t bytes)
{
    (void)bytes;
    tr_free(ctx, map);
}

#else

static tr_status tri_os_read(tr_ctx *ctx, const char *path, unsigned char **map, size_t bytes)
{
    int fd = open(path, O_RDONLY);
    void *p;
    tr_status s = TR_OK;
    if (fd < 0) return tri_os_fail(ctx, path, "cannot be opened");
    p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) s = tri_os_fail(ctx, path, "cannot be mapped");
    else *map = (unsigned char *)p;
    close(fd);                          /* the mapping stays */
    return s;
}

static void tri_os_unmap(tr_ctx *ctx, unsigned char *map, size_t bytes)
{
    (void)ctx;
    if (map) munmap(map, bytes);
}

#endif

/* The bytes of a file, to be read only, until tri_os_unmap. *map is NULL on failure. */
static tr_status tri_os_map(tr_ctx *ctx, const char *path, unsigned char **map, size_t *bytes)
{
    uint64_t n;
    tri_kind kind = tri_os_kind(path, &n);
    *map = NULL;
    *bytes = 0;
    if (kind == TRI_NOTHING) return tri_os_fail(ctx, path, "cannot be opened");
    if (kind == TRI_DIR) return tr_fail(ctx, TR_ERR_IO, "%s: is a folder, not a file", path);
    if (kind == TRI_OTHER) return tr_fail(ctx, TR_ERR_IO, "%s: is not a regular file", path);
    if (n == 0) return tr_fail(ctx, TR_ERR_FORMAT, "%s: is empty", path);
    if (n > SIZE_MAX / 2)
        return tr_fail(ctx, TR_ERR_IO, "%s: %llu bytes are too many for this machine", path,
                       (unsigned long long)n);
    TRI_TRY(tri_os_read(ctx, path, map, (size_t)n));
    *bytes = (size_t)n;
    return TR_OK;
}

/* fn for every name in dir but "." and "..", in the system's order; ends with fn's failure. */
static tr_status tri_os_list(tr_ctx *ctx, const char *dir, tri_os_name_fn fn, void *user)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    tr_status s = TR_OK;
    if (!d) return tri_os_fail(ctx, dir, "cannot be listed");
    while (s == TR_OK && (errno = 0, e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) s = fn(user, ctx, e->d_name);
    if (s == TR_OK && errno) s = tri_os_fail(ctx, dir, "cannot be listed");
    closedir(d);
    return s;
}

/* Puts `from` in the place of `to`, which may exist; 0 if done, else errno tells. Windows renames
 * onto nothing only, so there the old file steps aside and comes back if need be. */
static int tri_os_rename(const char *from, const char *to, const char *aside)
{
#if defined(_WIN32)
    uint64_t n;
    int bad;
    if (tri_os_kind(to, &n) == TRI_NOTHING) return rename(from, to);
    remove(aside);
    if (rename(to, aside)) return -1;
    bad = rename(from, to);
    if (bad) rename(aside, to);
    else remove(aside);
    return bad;
#else
    (void)aside;
    return rename(from, to);
#endif
}

/* ---- the inner loops of {mat}, by cpu */

TRI_INLINE void tri_tile_plain(int hw, float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x,
                               int64_t N, const float *w, int64_t stride, int64_t O, int64_t K)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t j = 0; j < O; j++) {
            float a[TR_LANES];
            memcpy(a, lane[n][j], sizeof a);
            tri_lanes_dot(hw, a, x[n], w + j * stride, K);
            memcpy(lane[n][j], a, sizeof a);
        }
}

static void tri_tile_base(float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x, int64_t N,
                          const float *w, int64_t stride, int64_t O, int64_t K)
{
    tri_tile_plain(TRI_HW_FMA, lane, x, N, w, stride, O, K);
}

static void tri_tile_t_base(float (*lane)[TR_LANES][TRI_T_COLS], const float *const *x, int64_t N,
                            const float (*w)[TRI_T_COLS], int64_t K)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++)
            for (int c = 0; c < TRI_T_COLS; c++)
                lane[n][k % TR_LANES][c] = tri_fmaf(TRI_HW_FMA, x[n][k], w[k][c],
                                                    lane[n][k % TR_LANES][c]);
}

static const tri_tiles tri_tiles_base = { NULL, tri_tile_base, NULL, NULL, NULL, tri_tile_t_base,
                                          NULL, NULL, NULL };

#if defined(__GNUC__) && defined(__x86_64__)

/* g++ 12 takes the undefined upper operands of its own intrinsics for mistakes. */
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/* Sixteen lanes are one register, 24 outputs 24 of the 32. */
TRI_AVX512 TRI_INLINE void tri_tile512(int N, int O, float (*lane)[TRI_TILE_O][TR_LANES],
                                       const float *const *x, const float *w, int64_t stride,
                                       int64_t K)
{
    __m512 a[TRI_TILE_N][TRI_TILE_O], xs[TRI_TILE_N];
    TRI_UNROLL
    for (int n = 0; n < N; n++) {
        TRI_UNROLL
        for (int j = 0; j < O; j++) a[n][j] = _mm512_loadu_ps(lane[n][j]);
    }
    for (int64_t k = 0; k < K; k += TR_LANES) {
        TRI_UNROLL
        for (int n = 0; n < N; n++) xs[n] = _mm512_loadu_ps(x[n] + k);
        TRI_UNROLL
        for (int j = 0; j < O; j++) {
            __m512 ws = _mm512_loadu_ps(w + j * stride + k);
            TRI_UNROLL
            for (int n = 0; n < N; n++) a[n][j] = _mm512_fmadd_ps(xs[n], ws, a[n][j]);
        }
    }
    TRI_UNROLL
    for (int n = 0; n < N; n++) {
        TRI_UNROLL
        for (int j = 0; j < O; j++) _mm512_storeu_ps(lane[n][j], a[n][j]);
    }
}

TRI_AVX512 static void tri_tile_avx512(float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x,
                                       int64_t N, const float *w, int64_t stride, int64_t O,
                                       int64_t K)
{
    if (O == TRI_TILE_O) {
        if (N == 4)      tri_tile512(4, TRI_TILE_O, lane, x, w, stride, K);
        else if (N == 3) tri_tile512(3, TRI_TILE_O, lane, x, w, stride, K);
        else if (N == 2) tri_tile512(2, TRI_TILE_O, lane, x, w, stride, K);
        else             tri_tile512(1, TRI_TILE_O, lane, x, w, stride, K);
        return;
    }
    for (int64_t n = 0; n < N; n++)
        for (int64_t j = 0; j < O; j++)
            tri_tile512(1, 1, (float (*)[TRI_TILE_O][TR_LANES])(void *)lane[n][j], x + n,
                        w + j * stride, 0, K);
}

/* With sixteen registers of 8 lanes, one half of the lanes at a time: 2 tokens x 6 rows are 12. */
TRI_AVX2 TRI_INLINE void tri_tile256(int N, int O, float (*lane)[TRI_TILE_O][TR_LANES],
                                     const float *const *x, const float *w, int64_t stride,
                                     int64_t K)
{
    __m256 a[2][TRI_TILE_O], xs[2];
    for (int h = 0; h < TR_LANES; h += 8) {
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            TRI_UNROLL
            for (int j = 0; j < O; j++) a[n][j] = _mm256_loadu_ps(lane[n][j] + h);
        }
        for (int64_t k = h; k < K; k += TR_LANES) {
            TRI_UNROLL
            for (int n = 0; n < N; n++) xs[n] = _mm256_loadu_ps(x[n] + k);
            TRI_UNROLL
            for (int j = 0; j < O; j++) {
                __m256 ws = _mm256_loadu_ps(w + j * stride + k);
                TRI_UNROLL
                for (int n = 0; n < N; n++) a[n][j] = _mm256_fmadd_ps(xs[n], ws, a[n][j]);
            }
        }
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            TRI_UNROLL
            for (int j = 0; j < O; j++) _mm256_storeu_ps(lane[n][j] + h, a[n][j]);
        }
    }
}

TRI_AVX2 static void tri_tile_avx2(float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x,
                                   int64_t N, const float *w, int64_t stride, int64_t O, int64_t K)
{
    int64_t n = 0;
    for (; O == TRI_TILE_O && n + 2 <= N; n += 2)
        tri_tile256(2, TRI_TILE_O, lane + n, x + n, w, stride, K);
    for (; O == TRI_TILE_O && n < N; n++)
        tri_tile256(1, TRI_TILE_O, lane + n, x + n, w, stride, K);
    for (; n < N; n++)
        for (int64_t j = 0; j < O; j++)
            tri_tile256(1, 1, (float (*)[TRI_TILE_O][TR_LANES])(void *)lane[n][j], x + n,
                        w + j * stride, 0, K);
}

/* The columns that fill no register. */
static void tri_turn_end(float *y, int64_t step, const float *const *row, int64_t k, int64_t K)
{
    for (int64_t l = 0; k + l < K; l++)
        for (int64_t r = 0; r < TR_LANES; r++) y[l * step + r] = row[r][k + l];
}

/* Sixteen rows by sixteen columns, turned: pairs of numbers, pairs of pairs, then the quarters of
 * the registers. Asks for what comes four times later. */
TRI_AVX512 static void tri_turn_avx512(float *y, int64_t step, const float *const *row, int64_t K)
{
    int64_t k = 0;
    for (; k + TR_LANES <= K; k += TR_LANES) {
        __m512 a[TR_LANES], b[TR_LANES];
        TRI_UNROLL
        for (int i = 0; i < 16; i += 2) {
            __m512 u = _mm512_loadu_ps(row[i] + k), v = _mm512_loadu_ps(row[i + 1] + k);
            TRI_AHEAD(row[i] + k + 4 * TR_LANES);
            TRI_AHEAD(row[i + 1] + k + 4 * TR_LANES);
            a[i] = _mm512_unpacklo_ps(u, v);
            a[i + 1] = _mm512_unpackhi_ps(u, v);
        }
        TRI_UNROLL
        for (int i = 0; i < 16; i += 4) {
            for (int j = 0; j < 2; j++) {
                __m512d u = _mm512_castps_pd(a[i + j]), v = _mm512_castps_pd(a[i + j + 2]);
                b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(u, v));
                b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(u, v));
            }
        }
        TRI_UNROLL
        for (int i = 0; i < 4; i++) {       /* b[4 r + i]: columns i, i + 4, .. of rows 4 r .. */
            __m512 u = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
            __m512 v = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
            _mm512_storeu_ps(y + i * step + k, _mm512_shuffle_f32x4(u, v, 0x88));
            _mm512_storeu_ps(y + (i + 8) * step + k, _mm512_shuffle_f32x4(u, v, 0xdd));
            u = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
            v = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
            _mm512_storeu_ps(y + (i + 4) * step + k, _mm512_shuffle_f32x4(u, v, 0x88));
            _mm512_storeu_ps(y + (i + 12) * step + k, _mm512_shuffle_f32x4(u, v, 0xdd));
        }
    }
    tri_turn_end(y + k, step, row, k, K);
}

/* 8 tokens x 48 rows are 24 registers. Asks for D cache lines on the way: the tokens of the next
 * group, then its lanes. */
TRI_AVX512 TRI_INLINE void tri_outer512(int G, float *y, const float *from, const float *x,
                                        const float *w, int64_t step, int64_t D,
                                        const float *ahead)
{
    __m512 a[8][3], ws[3];
    TRI_UNROLL
    for (int n = 0; n < 8; n++) {
        TRI_UNROLL
        for (int g = 0; g < G; g++)
            a[n][g] = _mm512_loadu_ps(from + n * TRI_OUTER_ROWS + g * TR_LANES);
    }
    for (int64_t d = 0; d < D; d++, x += TR_LANES, w += TR_LANES, ahead += TR_LANES) {
        _mm_prefetch((const void *)ahead, _MM_HINT_T0);
        TRI_UNROLL
        for (int g = 0; g < G; g++) ws[g] = _mm512_loadu_ps(w + g * step);
        TRI_UNROLL
        for (int n = 0; n < 8; n++) {
            __m512 xs = _mm512_set1_ps(x[n]);
            TRI_UNROLL
            for (int g = 0; g < G; g++) a[n][g] = _mm512_fmadd_ps(xs, ws[g], a[n][g]);
        }
    }
    TRI_UNROLL
    for (int n = 0; n < 8; n++) {
        TRI_UNROLL
        for (int g = 0; g < G; g++)
            _mm512_storeu_ps(y + n * TRI_OUTER_ROWS + g * TR_LANES, a[n][g]);
    }
}

TRI_AVX512 static void tri_outer_avx512(float *y, const float *from, const float *x,
                                        const float *w, int64_t step, int64_t N, int64_t G,
                                        int64_t D)
{
    for (int64_t n = 0; n < N; n += 8) {
        float *to = y + n * TRI_OUTER_ROWS;
        const float *at = from + n * TRI_OUTER_ROWS;
        const float *ahead = n ? from + TR_LANES * TRI_OUTER_ROWS : x + TR_LANES * D;
        if (G == 3)      tri_outer512(3, to, at, x + n, w, step, D, ahead);
        else if (G == 2) tri_outer512(2, to, at, x + n, w, step, D, ahead);
        else             tri_outer512(1, to, at, x + n, w, step, D, ahead);
    }
}

TRI_AVX512 static void tri_fold_avx512(float y[TR_LANES], const float *lane, int64_t step)
{
    __m512 a[8];
    TRI_UNROLL
    for (int l = 0; l < 8; l++)
        a[l] = _mm512_add_ps(_mm512_loadu_ps(lane + l * step),
                             _mm512_loadu_ps(lane + (l + 8) * step));
    TRI_UNROLL
    for (int l = 0; l < 4; l++) a[l] = _mm512_add_ps(a[l], a[l + 4]);
    a[0] = _mm512_add_ps(a[0], a[2]);
    a[1] = _mm512_add_ps(a[1], a[3]);
    _mm512_storeu_ps(y, _mm512_add_ps(a[0], a[1]));
}

/* As tri_turn_avx512, with eight rows by eight columns at a time. */
TRI_AVX2 TRI_INLINE void tri_turn256(float *y, int64_t step, const float *const *row, int64_t k)
{
    __m256 a[8], b[8];
    TRI_UNROLL
    for (int i = 0; i < 8; i += 2) {
        __m256 u = _mm256_loadu_ps(row[i] + k), v = _mm256_loadu_ps(row[i + 1] + k);
        a[i] = _mm256_unpacklo_ps(u, v);
        a[i + 1] = _mm256_unpackhi_ps(u, v);
    }
    TRI_UNROLL
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m256d u = _mm256_castps_pd(a[i + j]), v = _mm256_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(u, v));
            b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(u, v));
        }
    }
    TRI_UNROLL
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(y + i * step, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_storeu_ps(y + (i + 4) * step, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

TRI_AVX2 static void tri_turn_avx2(float *y, int64_t step, const float *const *row, int64_t K)
{
    int64_t k = 0;
    for (; k + TR_LANES <= K; k += TR_LANES)
        for (int l = 0; l < TR_LANES; l += 8)
            for (int r = 0; r < TR_LANES; r += 8)
                tri_turn256(y + l * step + k + r, step, row + r, k + l);
    tri_turn_end(y + k, step, row, k, K);
}

/* 6 tokens x 16 rows are 12 registers of 16; sixteen tokens are 6, 5 and 5. */
TRI_AVX2 TRI_INLINE void tri_outer256(int N, float *y, const float *from, const float *x,
                                      const float *w, int64_t D)
{
    __m256 a[6][2];
    TRI_UNROLL
    for (int n = 0; n < N; n++) {
        a[n][0] = _mm256_loadu_ps(from + n * TRI_OUTER_ROWS);
        a[n][1] = _mm256_loadu_ps(from + n * TRI_OUTER_ROWS + 8);
    }
    for (int64_t d = 0; d < D; d++, x += TR_LANES, w += TR_LANES) {
        __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            __m256 xs = _mm256_set1_ps(x[n]);
            a[n][0] = _mm256_fmadd_ps(xs, w0, a[n][0]);
            a[n][1] = _mm256_fmadd_ps(xs, w1, a[n][1]);
        }
    }
    TRI_UNROLL
    for (int n = 0; n < N; n++) {
        _mm256_storeu_ps(y + n * TRI_OUTER_ROWS, a[n][0]);
        _mm256_storeu_ps(y + n * TRI_OUTER_ROWS + 8, a[n][1]);
    }
}

TRI_AVX2 static void tri_outer_avx2(float *y, const float *from, const float *x, const float *w,
                                    int64_t step, int64_t N, int64_t G, int64_t D)
{
    for (int64_t g = 0; g < G; g++, y += TR_LANES, from += TR_LANES, w += step) {
        tri_outer256(6, y, from, x, w, D);
        if (N > 6) tri_outer256(5, y + 6 * TRI_OUTER_ROWS, from + 6 * TRI_OUTER_ROWS, x + 6, w, D);
        if (N > 11)
            tri_outer256(5, y + 11 * TRI_OUTER_ROWS, from + 11 * TRI_OUTER_ROWS, x + 11, w, D);
    }
}

TRI_AVX2 static void tri_fold_avx2(float y[TR_LANES], const float *lane, int64_t step)
{
    for (int h = 0; h < TR_LANES; h += 8) {
        __m256 a[8];
        TRI_UNROLL
        for (int l = 0; l < 8; l++)
            a[l] = _mm256_add_ps(_mm256_loadu_ps(lane + l * step + h),
                                 _mm256_loadu_ps(lane + (l + 8) * step + h));
        TRI_UNROLL
        for (int l = 0; l < 4; l++) a[l] = _mm256_add_ps(a[l], a[l + 4]);
        a[0] = _mm256_add_ps(a[0], a[2]);
        a[1] = _mm256_add_ps(a[1], a[3]);
        _mm256_storeu_ps(y + h, _mm256_add_ps(a[0], a[1]));
    }
}

/* The transposed product: 4 tokens x 32 columns are 8 registers, or 2 tokens of 8. */
TRI_AVX512 TRI_INLINE void tri_tile_t512(int N, float (*lane)[TR_LANES][TRI_T_COLS],
                                         const float *const *x, const float (*w)[TRI_T_COLS],
                                         int64_t K)
{
    for (int l = 0; l < TR_LANES; l++) {
        __m512 a[4][2];
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            a[n][0] = _mm512_loadu_ps(lane[n][l]);
            a[n][1] = _mm512_loadu_ps(lane[n][l] + 16);
        }
        for (int64_t k = l; k < K; k += TR_LANES) {
            __m512 w0 = _mm512_loadu_ps(w[k]), w1 = _mm512_loadu_ps(w[k] + 16);
            TRI_UNROLL
            for (int n = 0; n < N; n++) {
                __m512 xs = _mm512_set1_ps(x[n][k]);
                a[n][0] = _mm512_fmadd_ps(xs, w0, a[n][0]);
                a[n][1] = _mm512_fmadd_ps(xs, w1, a[n][1]);
            }
        }
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            _mm512_storeu_ps(lane[n][l], a[n][0]);
            _mm512_storeu_ps(lane[n][l] + 16, a[n][1]);
        }
    }
}

TRI_AVX512 static void tri_tile_t_avx512(float (*lane)[TR_LANES][TRI_T_COLS],
                                         const float *const *x, int64_t N,
                                         const float (*w)[TRI_T_COLS], int64_t K)
{
    int64_t n = 0;
    for (; n + 4 <= N; n += 4) tri_tile_t512(4, lane + n, x + n, w, K);
    for (; n < N; n++) tri_tile_t512(1, lane + n, x + n, w, K);
}

TRI_AVX2 TRI_INLINE void tri_tile_t256(int N, float (*lane)[TR_LANES][TRI_T_COLS],
                                       const float *const *x, const float (*w)[TRI_T_COLS],
                                       int64_t K)
{
    for (int l = 0; l < TR_LANES; l++) {
        __m256 a[2][4];
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            TRI_UNROLL
            for (int c = 0; c < 4; c++) a[n][c] = _mm256_loadu_ps(lane[n][l] + 8 * c);
        }
        for (int64_t k = l; k < K; k += TR_LANES) {
            TRI_UNROLL
            for (int n = 0; n < N; n++) {
                __m256 xs = _mm256_set1_ps(x[n][k]);
                TRI_UNROLL
                for (int c = 0; c < 4; c++)
                    a[n][c] = _mm256_fmadd_ps(xs, _mm256_loadu_ps(w[k] + 8 * c), a[n][c]);
            }
        }
        TRI_UNROLL
        for (int n = 0; n < N; n++) {
            TRI_UNROLL
            for (int c = 0; c < 4; c++) _mm256_storeu_ps(lane[n][l] + 8 * c, a[n][c]);
        }
    }
}

TRI_AVX2 static void tri_tile_t_avx2(float (*lane)[TR_LANES][TRI_T_COLS], const float *const *x,
                                     int64_t N, const float (*w)[TRI_T_COLS], int64_t K)
{
    int64_t n = 0;
    for (; n + 2 <= N; n += 2) tri_tile_t256(2, lane + n, x + n, w, K);
    for (; n < N; n++) tri_tile_t256(1, lane + n, x + n, w, K);
}

/* Readers of rows, faster than those of {quant} and equal to them in every finite value.
 *
 * e4m3 becomes an f16 by moving bits, eight powers of two too small, subnormals included; the
 * factor 2^8 goes into the scale, exactly, so the product is rounded once as it must be. e2m1 is
 * looked up: a register holds the 8 magnitudes or 16 values, already times their scale. */
#define TRI_M128(p) ((const __m128i *)(const void *)(p))
#define TRI_M256(p) ((const __m256i *)(const void *)(p))

TRI_AVX2 static void tri_decode_f16(const unsigned char *q, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(TRI_M128(q + 2 * i))));
    for (; i < n; i++) y[i] = tr_f16_to_f32(tri_load16(q + 2 * i));
}

TRI_AVX2 static void tri_decode_bf16(const unsigned char *q, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(TRI_M128(q + 2 * i)));
        _mm256_storeu_ps(y + i, _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
    }
    for (; i < n; i++) y[i] = tr_bf16_to_f32(tri_load16(q + 2 * i));
}

/* n numbers under one scale s; s 2^8 is finite. */
TRI_AVX2 static void tri_e4m3_avx2(const unsigned char *q, float s, int64_t n, float *y)
{
    const __m256 s8 = _mm256_set1_ps(s * 256);
    const __m128i clear = _mm_set1_epi16((short)0xbfff);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i u = _mm_cvtepi8_epi16(_mm_loadl_epi64(TRI_M128(q + i)));
        u = _mm_and_si128(_mm_slli_epi16(u, 7), clear);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_cvtph_ps(u), s8));
    }
    for (; i < n; i++) y[i] = tr_e4m3_to_f32(q[i]) * s;
}

TRI_AVX512 static void tri_e4m3_avx512(const unsigned char *q, float s, int64_t n, float *y)
{
    const __m512 s8 = _mm512_set1_ps(s * 256);
    const __m512i clear = _mm512_set1_epi16((short)0xbfff);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512i u = _mm512_cvtepi8_epi16(_mm256_loadu_si256(TRI_M256(q + i)));
        u = _mm512_and_si512(_mm512_slli_epi16(u, 7), clear);
        _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(u)), s8));
        _mm512_storeu_ps(y + i + 16, _mm512_mul_ps(
                         _mm512_cvtph_ps(_mm512_extracti64x4_epi64(u, 1)), s8));
    }
    tri_e4m3_avx2(q + i, s, n - i, y + i);
}

/* Groups of 32 under an e8m0 each: digit i of four bytes is moved to the low end of word i. */
TRI_AVX2 static void tri_e2m1_avx2(const unsigned char *q, const unsigned char *s, int64_t n,
                                   float *y)
{
    const __m256 table = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i down = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t i = 0; i < n; i += 32) {
        __m256 t = _mm256_mul_ps(table, _mm256_set1_ps(tr_e8m0_to_f32(s[i / 32])));
        for (int64_t k = i; k < i + 32; k += 8) {
            __m256i u = _mm256_set1_epi32((int)tri_load32(q + k / 2));
            __m256 v = _mm256_permutevar8x32_ps(t, _mm256_srlv_epi32(u, down));
            __m256 m = _mm256_castsi256_ps(_mm256_sllv_epi32(u, up));
            _mm256_storeu_ps(y + k, _mm256_xor_ps(v, _mm256_and_ps(m, sign)));
        }
    }
}

/* Powers of two move into the exponent, but for 2^-127, which is no normal number. */
TRI_AVX512 static void tri_e8m0_avx512(const unsigned char *s, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 there = (__mmask16)((1u << tri_least(n - i, 16)) - 1), least;
        __m512i u = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, s + i));
        least = _mm512_testn_epi32_mask(u, u);
        u = _mm512_mask_set1_epi32(_mm512_slli_epi32(u, 23), least, 0x400000);
        _mm512_mask_storeu_epi32(y + i, there, u);
    }
}

TRI_AVX512 static void tri_e2m1_avx512(const unsigned char *q, const unsigned char *s, int64_t n,
                                       float *y)
{
    const __m512 table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3,
                                        -4, -6);
    const __m512i down = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28,
                                           0, 4, 8, 12, 16, 20, 24, 28);
    float scale[16];
    for (int64_t i = 0; i < n; i += 32, q += 16, s++) {
        __m512 t;
        if (i % 512 == 0) tri_e8m0_avx512(s, tri_least((n - i) / 32, 16), scale);
        t = _mm512_mul_ps(table, _mm512_set1_ps(scale[i / 32 % 16]));
        for (int h = 0; h < 2; h++) {
            __m512i u = _mm512_set1_epi32((int)tri_load32(q + 8 * h));
            u = _mm512_mask_set1_epi32(u, 0xff00, (int)tri_load32(q + 8 * h + 4));
            u = _mm512_srlv_epi32(u, down);
            _mm512_storeu_ps(y + i + 16 * h, _mm512_permutexvar_ps(u, t));
        }
    }
}

typedef void (*tri_e4m3_fn)(const unsigned char *q, float s, int64_t n, float *y);
typedef void (*tri_e2m1_fn)(const unsigned char *q, const unsigned char *s, int64_t n, float *y);

static int tri_decode_fast(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y,
                           tri_e4m3_fn e4m3, tri_e2m1_fn e2m1)
{
    const unsigned char *row = tri_weight_at(w, r);
    const unsigned char *s8 = (const unsigned char *)w->s;
    switch (w->format->q) {
    case TR_F16:    tri_decode_f16(row + 2 * c, n, y);  return 1;
    case TR_BF16:   tri_decode_bf16(row + 2 * c, n, y); return 1;
    case TR_F8E4M3:
        for (int64_t i = 0, len; i < n; i += len) {
            float s = (float)tri_weight_scale(w, r, c + i);
            if (256 * s - 256 * s != 0) return 0;
            len = tri_least(n - i, w->block_cols - (c + i) % w->block_cols);
            e4m3(row + c + i, s, len, y + i);
        }
        return 1;
    case TR_F4E2M1:
        if (w->format->s != TR_E8M0 || w->block_cols != 32 || c % 32 || n % 32) return 0;
        e2m1(row + c / 2, s8 + (w->row0 + r) / w->block_rows * w->s_stride + c / 32, n, y);
        return 1;
    default:
        return 0;
    }
}

static int tri_decode_avx2(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y)
{
    return tri_decode_fast(w, r, c, n, y, tri_e4m3_avx2, tri_e2m1_avx2);
}

static int tri_decode_avx512(const tr_weight *w, int64_t r, int64_t c, int64_t n, float *y)
{
    return tri_decode_fast(w, r, c, n, y, tri_e4m3_avx512, tri_e2m1_avx512);
}

/* One token: numbers are decoded in registers on their way from memory. What is read a little
 * later is asked for TRI_FAR bytes ahead; behind a row of this panel lies one of the next.
 *
 * 16 digits of e2m1 are two words of 32 bits, repeated eight times: words 2i and 2i + 1 of the
 * register, moved down by 4i bits, begin with digits i and 8 + i. So lanes stand in that order,
 * and x is put into it. */
#define TRI_FAR 1024

typedef struct tri_stream {
    const unsigned char *w;     /* row o, column 0 of the piece */
    int64_t stride;             /* bytes between rows */
    int shift;                  /* a block of FP8's scales is 2^shift columns, 32 to TRI_PANEL */
    float s[TRI_TILE_O][TRI_PANEL / 32];    /* FP8's scales, times 2^8 */
    const unsigned char *e;     /* e2m1's scales, as w and stride */
    int64_t e_stride;
    const tri_fp4 *fp4;
} tri_stream;

/* 32 numbers of a row: FP8's scale is s[0] / 2^8, e2m1's e[0]; others look at neither. */
TRI_AVX512 TRI_INLINE void tri_load512(tr_dtype q, const unsigned char *w, const float *s,
                                       const unsigned char *e, const tri_fp4 *fp4, __m512 v[2])
{
    const __m512i clear = _mm512_set1_epi16((short)0xbfff);
    const __m512i down = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12,
                                           16, 16, 20, 20, 24, 24, 28, 28);
    __m512i u;
    if (q == TR_BF16) {
        for (int h = 0; h < 2; h++) {
            u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(TRI_M256(w + 32 * h)));
            v[h] = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
        }
    } else if (q == TR_F16) {
        for (int h = 0; h < 2; h++)
            v[h] = _mm512_cvtph_ps(_mm256_loadu_si256(TRI_M256(w + 32 * h)));
    } else if (q == TR_F8E4M3) {
        u = _mm512_cvtepi8_epi16(_mm256_loadu_si256(TRI_M256(w)));
        u = _mm512_and_si512(_mm512_slli_epi16(u, 7), clear);
        v[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(u)), _mm512_set1_ps(*s));
        v[1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(u, 1)), _mm512_set1_ps(*s));
    } else {
        __m512 t = _mm512_loadu_ps(fp4->v[e[0]]);
        for (int h = 0; h < 2; h++) {
            u = _mm512_set1_epi64((long long)tri_load64(w + 8 * h));
            v[h] = _mm512_permutexvar_ps(_mm512_srlv_epi32(u, down), t);
        }
    }
}

TRI_AVX512 TRI_INLINE __m512 tri_mix512(__m512 x)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7,
                                                   15), x);
}

TRI_AVX512 static void tri_mix_avx512(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) _mm512_storeu_ps(y + i, tri_mix512(_mm512_loadu_ps(x + i)));
}

/* The lanes of six rows over K columns, a multiple of 32, each 32 of which are `bytes` long. Two
 * pointers to three rows each, with one stride, leave registers for everything. */
TRI_AVX512 TRI_INLINE void tri_stream512(tr_dtype q, int64_t bytes, float (*lane)[TR_LANES],
                                         const float *x, const tri_stream *t, int64_t K)
{
    const __m512i sort = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const unsigned char *w[2] = { t->w, t->w + 3 * t->stride };
    const unsigned char *e[2] = { t->e, t->e + 3 * t->e_stride };
    __m512 a[TRI_TILE_O], xs[2], v[2];
    TRI_UNROLL
    for (int j = 0; j < TRI_TILE_O; j++) {
        a[j] = _mm512_loadu_ps(lane[j]);
        if (q == TR_F4E2M1) a[j] = tri_mix512(a[j]);
    }
    for (int64_t k = 0; k < K;) {
        TRI_UNROLL
        for (int j = 0; j < TRI_TILE_O; j++)
            _mm_prefetch((const void *)(w[j / 3] + j % 3 * t->stride + TRI_FAR), _MM_HINT_T0);
        for (int64_t end = tri_least(k + 32 * 64 / bytes, K); k < end; k += 32) {  /* a line */
            xs[0] = _mm512_loadu_ps(x + k);
            xs[1] = _mm512_loadu_ps(x + k + 16);
            TRI_UNROLL
            for (int j = 0; j < TRI_TILE_O; j++) {
                tri_load512(q, w[j / 3] + j % 3 * t->stride,
                            t->s[j] + (q == TR_F8E4M3 ? k >> t->shift : 0),
                            e[j / 3] + j % 3 * t->e_stride, t->fp4, v);
                a[j] = _mm512_fmadd_ps(xs[0], v[0], a[j]);
                a[j] = _mm512_fmadd_ps(xs[1], v[1], a[j]);
            }
            TRI_UNROLL
            for (int i = 0; i < 2; i++) { w[i] += bytes; e[i]++; }
        }
    }
    TRI_UNROLL
    for (int j = 0; j < TRI_TILE_O; j++) {
        if (q == TR_F4E2M1) a[j] = _mm512_permutexvar_ps(sort, a[j]);
        _mm512_storeu_ps(lane[j], a[j]);
    }
}

/* The scales of columns c .. c + n - 1, one a block; 0 if 2^8 times one is not finite. */
static int tri_stream_scales(tri_stream *t, const tri_panel *r, int64_t c, int64_t n)
{
    const tr_weight *w = r->w;
    const unsigned char *s = (const unsigned char *)w->s;
    if (w->format->s == TR_E8M0) {
        t->e = s + (w->row0 + r->o) * w->s_stride + c / 32;
        return 1;
    }
    for (int j = 0; w->format->scaled && j < TRI_TILE_O; j++) {
        int64_t o = w->row0 + r->o + j * r->step;
        int64_t at = o / w->block_rows * w->s_stride + c / w->block_cols;
        for (int64_t b = 0; b << t->shift < n; b++) {
            float f = tr_f32_from_bits(tri_load32(s + 4 * (at + b))) * 256;
            if (f - f != 0) return 0;
            t->s[j][b] = f;
        }
    }
    return 1;
}

/* As tri_load512. Of 16 bytes of e2m1 the lower half of a register takes the low digits and the
 * upper half the high ones. Tables give the upper two bytes of each value, whose others are 0; of
 * these pairs 0, 2, .. and 1, 3, .. then become registers by a shift and a mask. So the numbers
 * stand in the order 0 4 8 12 1 5 9 13, 2 6 10 14 3 7 11 15, and lanes and x are put into it. */
TRI_AVX2 TRI_INLINE void tri_load256(tr_dtype q, const unsigned char *w, const float *s,
                                     const unsigned char *e, const tri_fp4 *fp4, __m256 v[4])
{
    if (q == TR_BF16 || q == TR_F16) {
        TRI_UNROLL
        for (int i = 0; i < 4; i++) {
            __m128i u = _mm_loadu_si128(TRI_M128(w + 16 * i));
            v[i] = q == TR_F16 ? _mm256_cvtph_ps(u) : _mm256_castsi256_ps(
                   _mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16));
        }
    } else if (q == TR_F8E4M3) {
        const __m256i clear = _mm256_set1_epi16((short)0xbfff);
        const __m256 scale = _mm256_set1_ps(*s);
        TRI_UNROLL
        for (int i = 0; i < 4; i += 2) {
            __m256i u = _mm256_cvtepi8_epi16(_mm_loadu_si128(TRI_M128(w + 8 * i)));
            u = _mm256_and_si256(_mm256_slli_epi16(u, 7), clear);
            v[i] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(u)), scale);
            v[i + 1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(u, 1)), scale);
        }
    } else {
        const __m128i *table = TRI_M128(fp4->bytes[e[0]]);
        const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
        const __m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table + 1));
        const __m256i down = _mm256_setr_epi64x(0, 0, 4, 4);
        __m256i u = _mm256_broadcastsi128_si256(_mm_loadu_si128(TRI_M128(w))), h, l;
        u = _mm256_and_si256(_mm256_srlv_epi64(u, down), _mm256_set1_epi8(15));
        h = _mm256_shuffle_epi8(high, u);
        l = _mm256_shuffle_epi8(low, u);
        TRI_UNROLL
        for (int i = 0; i < 4; i += 2) {
            u = i == 0 ? _mm256_unpacklo_epi8(l, h) : _mm256_unpackhi_epi8(l, h);
            v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
            u = _mm256_and_si256(u, _mm256_set1_epi32(-65536));
            v[i + 1] = _mm256_castsi256_ps(u);
        }
    }
}

/* 0 1 .. 15 into the order of tri_load256's e2m1, and back; y may be x. */
TRI_AVX2 TRI_INLINE void tri_mix256(const float x[TR_LANES], float y[TR_LANES])
{
    const __m256i pairs = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    __m256d a = _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_loadu_ps(x), pairs));
    __m256d b = _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_loadu_ps(x + 8), pairs));
    _mm256_storeu_ps(y, _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)));
    _mm256_storeu_ps(y + 8, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
}

TRI_AVX2 TRI_INLINE void tri_sort256(const float x[TR_LANES], float y[TR_LANES])
{
    const __m256i pairs = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    __m256d a = _mm256_castps_pd(_mm256_loadu_ps(x)), b = _mm256_castps_pd(_mm256_loadu_ps(x + 8));
    __m256 low = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
    __m256 high = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    _mm256_storeu_ps(y, _mm256_permutevar8x32_ps(low, pairs));
    _mm256_storeu_ps(y + 8, _mm256_permutevar8x32_ps(high, pairs));
}

TRI_AVX2 static void tri_mix_avx2(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += TR_LANES) tri_mix256(x + i, y + i);
}

/* As tri_stream512, three rows at a time: their lanes are six of the sixteen registers. */
TRI_AVX2 TRI_INLINE void tri_stream256(tr_dtype q, int64_t bytes, float (*lane)[TR_LANES],
                                       const float *x, const tri_stream *t, int64_t K)
{
    for (int o = 0; o < TRI_TILE_O; o += 3) {
        const unsigned char *w = t->w + o * t->stride, *e = t->e + o * t->e_stride;
        __m256 a[3][2], v[4];
        TRI_UNROLL
        for (int j = 0; j < 3; j++) {
            a[j][0] = _mm256_loadu_ps(lane[o + j]);
            a[j][1] = _mm256_loadu_ps(lane[o + j] + 8);
        }
        for (int64_t k = 0; k < K;) {
            TRI_UNROLL
            for (int j = 0; j < 3; j++)
                _mm_prefetch((const void *)(w + j * t->stride + TRI_FAR), _MM_HINT_T0);
            for (int64_t end = tri_least(k + 32 * 64 / bytes, K); k < end;
                 k += 32, w += bytes, e++) {
                TRI_UNROLL
                for (int j = 0; j < 3; j++) {
                    tri_load256(q, w + j * t->stride,
                                t->s[o + j] + (q == TR_F8E4M3 ? k >> t->shift : 0),
                                e + j * t->e_stride, t->fp4, v);
                    TRI_UNROLL
                    for (int i = 0; i < 4; i++)
                        a[j][i % 2] = _mm256_fmadd_ps(_mm256_loadu_ps(x + k + 8 * i), v[i],
                                                      a[j][i % 2]);
                }
            }
        }
        TRI_UNROLL
        for (int j = 0; j < 3; j++) {
            _mm256_storeu_ps(lane[o + j], a[j][0]);
            _mm256_storeu_ps(lane[o + j] + 8, a[j][1]);
        }
    }
}

TRI_AVX2 static void tri_piece_avx2(tr_dtype q, float (*lane)[TR_LANES], const float *x,
                                    const tri_stream *t, int64_t K)
{
    if (q == TR_BF16)        tri_stream256(TR_BF16, 64, lane, x, t, K);
    else if (q == TR_F16)    tri_stream256(TR_F16, 64, lane, x, t, K);
    else if (q == TR_F8E4M3) tri_stream256(TR_F8E4M3, 32, lane, x, t, K);
    if (q != TR_F4E2M1) return;
    for (int j = 0; j < TRI_TILE_O; j++) tri_mix256(lane[j], lane[j]);
    tri_stream256(TR_F4E2M1, 16, lane, x, t, K);
    for (int j = 0; j < TRI_TILE_O; j++) tri_sort256(lane[j], lane[j]);
}

TRI_AVX512 static void tri_piece_avx512(tr_dtype q, float (*lane)[TR_LANES], const float *x,
                                        const tri_stream *t, int64_t K)
{
    if (q == TR_BF16)        tri_stream512(TR_BF16, 64, lane, x, t, K);
    else if (q == TR_F16)    tri_stream512(TR_F16, 64, lane, x, t, K);
    else if (q == TR_F8E4M3) tri_stream512(TR_F8E4M3, 32, lane, x, t, K);
    else                     tri_stream512(TR_F4E2M1, 16, lane, x, t, K);
}

typedef void (*tri_piece_fn)(tr_dtype q, float (*lane)[TR_LANES], const float *x,
                             const tri_stream *t, int64_t K);

static int64_t tri_stream_rows(float (*lane)[TR_LANES], const tri_stream_x *x,
                               const tri_panel *r, tri_piece_fn piece)
{
    const tr_weight *w = r->w;
    tr_dtype q = w->format->q, scale = q == TR_F4E2M1 ? TR_E8M0 : TR_F32;
    int64_t bits = q == TR_F4E2M1 ? 4 : q == TR_F8E4M3 ? 8 : 16, c = 0, K = w->cols - w->cols % 32;
    int64_t len;
    tri_stream t;
    if (q != TR_F4E2M1 && q != TR_F8E4M3 && q != TR_F16 && q != TR_BF16) return 0;
    for (t.shift = 5; (1 << t.shift) < w->block_cols && (1 << t.shift) < TRI_PANEL;) t.shift++;
    if (w->format->scaled && (w->format->s != scale || w->block_cols != 1 << t.shift)) return 0;
    if (q == TR_F4E2M1 && (w->block_cols != 32 || w->block_rows != 1)) return 0;
    if (q == TR_F4E2M1) K = x->n;
    t.stride = r->step * w->q_stride;
    t.e = tri_weight_at(w, r->o);               /* moved along, but read for e2m1 alone */
    t.e_stride = q == TR_F4E2M1 ? r->step * w->s_stride : 0;
    t.fp4 = x->fp4;
    for (; c < K; c += len) {
        len = q == TR_F4E2M1 ? K : tri_least(K - c, TRI_PANEL);
        if (!tri_stream_scales(&t, r, c, len)) break;
        t.w = tri_weight_at(w, r->o) + c * bits / 8;
        piece(q, lane, (q == TR_F4E2M1 ? x->mixed : x->x) + c, &t, len);
    }
    return c;
}

static int64_t tri_stream_avx2(float (*lane)[TR_LANES], const tri_stream_x *x, const tri_panel *r)
{
    return tri_stream_rows(lane, x, r, tri_piece_avx2);
}

static int64_t tri_stream_avx512(float (*lane)[TR_LANES], const tri_stream_x *x,
                                 const tri_panel *r)
{
    return tri_stream_rows(lane, x, r, tri_piece_avx512);
}

/* In software, but eight lanes at a time. */
TRI_AVX2 static void tri_tile_soft(float (*lane)[TRI_TILE_O][TR_LANES], const float *const *x,
                                   int64_t N, const float *w, int64_t stride, int64_t O, int64_t K)
{
    tri_tile_plain(0, lane, x, N, w, stride, O, K);
}

static const tri_tiles tri_tiles_soft = { NULL, tri_tile_soft, tri_decode_avx2, NULL, NULL,
                                          NULL, NULL, NULL, NULL };
static const tri_tiles tri_tiles_avx2 = {
    &tri_tiles_soft, tri_tile_avx2, tri_decode_avx2, tri_stream_avx2, tri_mix_avx2,
    tri_tile_t_avx2, tri_turn_avx2, tri_outer_avx2, tri_fold_avx2
};
static const tri_tiles tri_tiles_avx512 = {
    &tri_tiles_soft, tri_tile_avx512, tri_decode_avx512, tri_stream_avx512, tri_mix_avx512,
    tri_tile_t_avx512, tri_turn_avx512, tri_outer_avx512, tri_fold_avx512
};

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

static const tri_tiles *tri_os_tiles(tr_cpu cpu)
{
    return cpu == TR_CPU_AVX512 ? &tri_tiles_avx512 :
           cpu == TR_CPU_AVX2 ? &tri_tiles_avx2 : &tri_tiles_base;
}

#else

static const tri_tiles *tri_os_tiles(tr_cpu cpu)
{
    (void)cpu;
    return &tri_tiles_base;
}

#endif

#endif /* TRILLION_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 The Trillion authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
