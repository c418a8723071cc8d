/* exact.h - one call of an operator, held from all sides. BOTH(norm, &a) runs the definition on
 * a, whose views are F64, and then, on the same input narrowed to F32:
 *
 *   the contract's kernel on every cpu level and 1, 2, 7 threads     all bits equal, and equal to
 *   the plain evaluation of ref.h
 *   its error against the definition's answer on the input as it came:
 *
 *       max|y32 - y| / max|y| <= max(1e-6, |def(narrowed) - def| / max|y| + bound / max|y|)
 *
 * The first term of the derived bound is what the narrowing of the input does to the answer,
 * computed by the definition itself; the second is the operation's own, by the functions below.
 * BITS(norm, &a) takes arguments with F32 views and holds the bits alone. */
#ifndef EXACT_H
#define EXACT_H

#include "cases.h"
#include "ref.h"
#include <stddef.h>

/* ---- bounds ----------------------------------------------------------------------------------
 *
 * All to first order in u = 2^-24, the largest relative error of a rounding; what is of second
 * order is far below the roundings counted too often. The views are contiguous F64. Each gives
 * a bound on max|error| of the output that stands at `at` in the arguments. */

#define EXACT_U 0x1p-24

/* A dot of n in sixteen lanes: an element goes through at most ceil(n/16) fused steps of its lane
 * and four folds, so the error is at most (ceil(n/16) + 4) u sum|x||w|. One more for a weight
 * that is stored in F64, one for a bias or for what is of second order. */
static inline double exact_dots(int64_t n) { return (double)((n + 15) / 16 + 6) * EXACT_U; }

static inline double exact_max(tr_view v)
{
    double m = 0;
    for (int64_t i = 0; i < tr_view_numel(v); i++)
        if (isfinite(f64(v)[i]) && fabs(f64(v)[i]) > m) m = fabs(f64(v)[i]);
    return m;
}
static inline double exact_abs_dot(const double *x, const double *y, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += fabs(x[i] * y[i]);
    return s;
}
static inline double *exact_weights(const tr_weight *w)
{
    double *W = (double *)mem(w->rows * w->cols, 8);
    for (int64_t r = 0; r < w->rows; r++) {
        const double *row = tr_weight_row_f64(w, r, 0, w->cols, W + r * w->cols);
        if (row != W + r * w->cols) memcpy(W + r * w->cols, row, (size_t)w->cols * 8);
    }
    return W;
}

static inline double bound_matmul(const tr_matmul_args *a, size_t at)
{
    double worst = 0, *W = exact_weights(a->w);
    int64_t I = a->w->cols;
    (void)at;
    for (int64_t i = 0; i < tr_view_numel(a->y); i++) {
        double b = tr_view_is_none(a->bias) ? 0 : fabs(f64(a->bias)[i % a->w->rows]);
        b += exact_abs_dot(f64(a->x) + i / a->w->rows * I, W + i % a->w->rows * I, I);
        worst = fmax(worst, exact_dots(I) * b);
    }
    return worst;
}

static inline double bound_embed(const tr_embed_args *a, size_t at)
{
    (void)at;
    return EXACT_U * exact_max(a->y);
}

/* n = (x - mu) r. The sum of squares has only positive terms: relative error dots; half of it goes
 * into r, with 3 u for quotient, eps, root. LayerNorm: mu is off by (dots + u) mean|x|, so x - mu
 * by that and u|x - mu|; e is this in units of the deviation, and enters n itself and by r. Then
 * at most 7 roundings: x r, weight (1 + w), bias, sigmoid and gate, scale and its narrowing. */
static inline double bound_norm(const tr_norm_args *a, size_t at)
{
    int64_t D = ref_last(a->x), C = D / a->groups;
    double worst = 0, in = exact_dots(C);
    (void)at;
    for (int64_t i = 0; i < tr_view_numel(a->x); i += C) {
        const double *x = f64(a->x) + i;
        double mu = 0, mean_abs = 0, ss = 0, r, e = 0, top = 0;
        for (int64_t d = 0; d < C; d++) mu += x[d] / (double)C;
        for (int64_t d = 0; d < C; d++) mean_abs += fabs(x[d]) / (double)C;
        if (a->kind != TR_NORM_LAYER) mu = 0;
        for (int64_t d = 0; d < C; d++) {
            ss += (x[d] - mu) * (x[d] - mu);
            top = fmax(top, fabs(x[d] - mu));
        }
        r = 1 / sqrt((a->kind == TR_NORM_L2 ? ss : ss / (double)C) + a->eps);
        if (a->kind == TR_NORM_LAYER) e = r * ((in + EXACT_U) * mean_abs + EXACT_U * top);
        for (int64_t d = 0; d < C; d++) {
            int64_t k = i % D + d;
            double one = a->form == TR_NORM_W ? 0 : 1;
            double w = tr_view_is_none(a->w) ? 1 : fabs(f64(a->w)[k] + one);
            double b = tr_view_is_none(a->bias) ? 0 : fabs(f64(a->bias)[k]);
            double n = fabs((x[d] - mu) * r), y = w * (e + n * (e + in / 2 + 3 * EXACT_U));
            worst = fmax(worst, fabs(a->scale) * (y + 7 * EXACT_U * (w * n + b)));
        }
    }
    return worst;
}

/* SwiGLU: sigmoid, two products. SiTU: each cap narrowed, quotient, tanh (whose relative error is
 * at most that of its argument, and its own), product; sigmoid; two products: 11. */
static inline double bound_glu(const tr_glu_args *a, size_t at)
{
    (void)at;
    return 12 * EXACT_U * exact_max(a->y);
}
static inline double bound_gate(const tr_gate_args *a, size_t at)
{
    (void)at;
    return 3 * EXACT_U * exact_max(a->y);
}

static inline double bound_gelu(const tr_gelu_args *a, size_t at)
{
    (void)at;
    return 1.01 * EXACT_U * exact_max(a->y);
}

/* cos or sin narrowed, product, sum: 3 u (|a c| + |b s|) <= 3 u sqrt(2) mult hypot(a, b), and the
 * length of a pair is what it was. */
static inline double bound_rope(const tr_rope_args *a, size_t at)
{
    (void)at;
    return 6 * sqrt(2) * EXACT_U * exact_max(a->x);
}

/* Scores that are off by dz move the shares by 2 dz; l and o are each off by 8 + 5 steps in a block
 * and 3 roundings a fold, and z - m is rounded: u |z - m|, whose mean over the shares is at most u
 * ln S. All of it times the mean of |v|. */
static inline double exact_attend(double dz, int64_t S)
{
    double blocks = (double)((S + 127) / 128);
    return 2 * dz + (2 * (13 + 3 * blocks) + 2 * log((double)S + 1) + 6) * EXACT_U;
}
static inline double bound_attn(const tr_attn_args *a, size_t at)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], S = a->k.shape[0], G = a->k.shape[1];
    int64_t D = a->q.shape[2], n = tr_view_numel(a->v);
    double dz = 0;
    tr_attn_args b = *a;
    (void)at;
    for (int64_t i = 0; i < T * H; i++)
        for (int64_t s = 0; s <= a->pos + i / H; s++)
            dz = fmax(dz, exact_abs_dot(f64(a->q) + i * D,
                                        f64(a->k) + (s * G + i % H / (H / G)) * D, D));
    dz = fabs(a->scale) * dz * (exact_dots(D) + 2 * EXACT_U) + 4 * EXACT_U * a->softcap;
    b.y = new_like(a->y);
    b.v = copy(a->v);
    b.probs = tr_view_none();
    for (int64_t i = 0; i < n; i++) f64(b.v)[i] = fabs(f64(b.v)[i]);
    CHECK_OK(ctx, tr_attn_f64(ctx, &b));
    return exact_attend(dz, S) * exact_max(b.y);
}

/* As attention's, with two dots on the way to a score and one behind the mean. */
static inline double bound_mla(const tr_mla_args *a, size_t at)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], S = a->latent.shape[0], Dv = a->y.shape[2];
    int64_t Dr = a->rope, Dn = a->q.shape[2] - Dr, R = a->latent.shape[1] - Dr;
    double *W = exact_weights(a->kv_b), dz = 0, worst = 0;
    double *qa = (double *)mem(R, 8), *c = (double *)mem(R, 8);
    tr_mla_args b = *a;
    (void)at;
    b.y = new_like(a->y);
    b.probs = new3(H, T, S);
    CHECK_OK(ctx, tr_mla_f64(ctx, &b));
    for (int64_t i = 0; i < T * H; i++) {
        int64_t t = i / H, h = i % H;
        const double *q = f64(a->q) + i * (Dn + Dr), *Wk = W + h * (Dn + Dv) * R, *Wv = Wk + Dn * R;
        for (int64_t r = 0; r < R; r++) {
            qa[r] = c[r] = 0;
            for (int64_t k = 0; k < Dn; k++) qa[r] += fabs(q[k] * Wk[k * R + r]);
        }
        for (int64_t s = 0; s <= a->pos + t; s++) {
            const double *l = f64(a->latent) + s * (R + Dr);
            dz = fmax(dz, exact_abs_dot(qa, l, R) + exact_abs_dot(q + Dn, l + R, Dr));
            for (int64_t r = 0; r < R; r++) c[r] += f64(b.probs)[(h * T + t) * S + s] * fabs(l[r]);
        }
        for (int64_t d = 0; d < Dv; d++) worst = fmax(worst, exact_abs_dot(Wv + d * R, c, R));
    }
    dz *= fabs(a->scale) * (exact_dots(Dn) + exact_dots(R + Dr) + 2 * EXACT_U);
    return (exact_attend(dz, S) + exact_dots(R)) * worst;
}

/* A chain of J; SiLU has a slope of at most 1.1, and three roundings. */
static inline double bound_shortconv(const tr_conv_args *a, size_t at)
{
    int64_t J = a->w.shape[1];
    double w = 0;
    if (at == offsetof(tr_conv_args, hist)) return 0;           /* copies */
    for (int64_t c = 0; c < a->w.shape[0]; c++)
        for (int64_t j = 0; j < J; j++) w = fmax(w, fabs(f64(a->w)[c * J + j]));
    w *= (double)J * fmax(exact_max(a->x), exact_max(a->hist));
    return 1.1 * (double)(J + 1) * EXACT_U * w + 3 * EXACT_U * exact_max(a->y);
}

/* The argument of the sigmoid is off by 3 u of itself (z + dt, A, product), |x sigma'(x)| <= 0.23;
 * softplus likewise, where |x| sigma(x) <= softplus(x) + 0.4; then 3 roundings. */
static inline double bound_decay(const tr_decay_args *a, size_t at)
{
    if (at == offsetof(tr_decay_args, beta)) return 2 * EXACT_U * exact_max(a->beta);
    if (a->kind == TR_DECAY_BOUNDED) return 4 * EXACT_U * fabs(a->bound);
    double A = 0;
    for (int64_t h = 0; h < a->A_log.shape[0]; h++) A = fmax(A, exp(f64(a->A_log)[h]));
    return 6 * EXACT_U * exact_max(a->g) + 0.4 * EXACT_U * A;
}

/* By rows of S, in the Euclidean norm. A step maps an error E to at most E max(e^g) max(1, |1 -
 * beta k.k|), and adds 2 u |S| by the fade, beta |k| (dots |S||k| + 2 u |v - u|) by the
 * correction, u |S'| by the write. bound_delta runs the rule itself; a->S is its end, so the
 * start must be given: exact_S0. */
static tr_view exact_S0;
static inline double bound_delta(const tr_delta_args *a, size_t at)
{
    int64_t T = a->q.shape[0], H = a->q.shape[1], K = a->q.shape[2], V = a->v.shape[2];
    tr_view S0 = copy(exact_S0);
    double worst_o = 0, worst_S = 0;
    for (int64_t i = 0; i < H * V; i++) {
        double *S = f64(S0) + i * K, E = 0;
        int64_t h = i / V;
        for (int64_t t = 0; t < T; t++) {
            const double *q = f64(a->q) + (t * H + h) * K, *k = f64(a->k) + (t * H + h) * K;
            const double *g = f64(a->g) + (t * H + h) * K;
            double beta = f64(a->beta)[t * H + h], v = f64(a->v)[(t * H + h) * V + i % V], r;
            double fade = 0, faded = 0, now = 0, kk = sqrt(tr_dot_f64(k, k, K));
            double turn = fmax(1, fabs(1 - beta * kk * kk));
            for (int64_t c = 0; c < K; c++) {
                fade = fmax(fade, exp(g[c]));
                S[c] *= exp(g[c]);
                faded += S[c] * S[c];
            }
            r = v - tr_dot_f64(S, k, K);
            for (int64_t c = 0; c < K; c++) { S[c] += beta * r * k[c]; now += S[c] * S[c]; }
            faded = sqrt(faded);
            now = sqrt(now);
            E = turn * (fade * E + 2 * EXACT_U * faded) + EXACT_U * now +
                fabs(beta) * kk * (exact_dots(K) * faded * kk + 2 * EXACT_U * fabs(r));
            worst_o = fmax(worst_o, (E + exact_dots(K) * now) * sqrt(tr_dot_f64(q, q, K)));
        }
        worst_S = fmax(worst_S, E);
    }
    return at == offsetof(tr_delta_args, S) ? worst_S : worst_o;
}

static inline double bound_add(const tr_add_args *a, size_t at)
{
    (void)at;
    return EXACT_U * exact_max(a->y);
}
static inline double bound_copy(const tr_copy_args *a, size_t at) { (void)a; (void)at; return 0; }

/* A score is off by its dot, by half the dot in r and 6 roundings; shares by twice that. */
static inline double bound_mix(const tr_mix_args *a, size_t at)
{
    int64_t N = a->y.shape[0], D = a->y.shape[1], n = a->snaps.shape[0];
    double worst = 0, top = fmax(exact_max(a->snaps), exact_max(a->h));
    for (int64_t i = 0; i < (n + 1) * N; i++) {
        const double *V = i < n * N ? f64(a->snaps) + i * D : f64(a->h) + (i - n * N) * D, z = 0;
        double r = 1 / sqrt(tr_dot_f64(V, V, D) / (double)D + a->eps), zabs = 0;
        for (int64_t d = 0; d < D; d++) zabs += fabs(V[d] * r * f64(a->norm)[d] * f64(a->proj)[d]);
        worst = fmax(worst, zabs);
        (void)z;
    }
    worst = 2 * worst * (1.5 * exact_dots(D) + 6 * EXACT_U) + (double)(2 * n + 8) * EXACT_U;
    return at == offsetof(tr_mix_args, probs) ? worst : worst * top;
}

/* Sigmoid: a rounding. Softmax: x - m is rounded, then the sum over E. K scores are added. */
static inline double bound_route(const tr_route_args *a, size_t at)
{
    int64_t E = a->logits.shape[1], K = a->ids.shape[1];
    double far = 0, steps = (double)K + 6;
    if (a->score == TR_SCORE_SOFTMAX) {
        for (int64_t i = 0; i < a->ids.shape[0] * K; i++) {
            const double *x = f64(a->logits) + i / K * E;
            double m = x[0];
            for (int64_t e = 0; e < E; e++) m = fmax(m, x[e]);
            far = fmax(far, m - x[i32(a->ids)[i]]);
        }
        steps += (double)E / 16 + 8 + 2 * far;
    }
    if (at == offsetof(tr_route_args, scores)) return steps * EXACT_U * exact_max(a->scores);
    return steps * EXACT_U * exact_max(a->weights);
}

static inline double bound_dispatch(const tr_dispatch_args *a, size_t at)
{
    (void)a;
    (void)at;
    return 0;
}

/* h = act(g, u): off by 1.1 |u| dg + |h / u| du (both activations have slopes of at most 1.1 in g
 * and |h| <= |g||u|) and 12 u |h|; then through down. */
static inline double bound_experts(const tr_experts_args *a, size_t at)
{
    int64_t K = a->y.shape[1], I = a->x.shape[1], F = a->g.shape[1], O = a->y.shape[2];
    double worst = 0, *dh = (double *)mem(F, 8), *h = (double *)mem(F, 8);
    (void)at;
    for (int64_t e = 0; e < a->offset.shape[0] - 1; e++) {
        if (i32(a->offset)[e] == i32(a->offset)[e + 1]) continue;
        double *Wg = exact_weights(&a->gate[e]), *Wu = exact_weights(&a->up[e]);
        double *Wd = exact_weights(&a->down[e]);
        for (int64_t i = i32(a->offset)[e]; i < i32(a->offset)[e + 1]; i++) {
            const double *x = f64(a->x) + i32(a->order)[i] / K * I;
            for (int64_t f = 0; f < F; f++) {
                double g = tr_dot_f64(x, Wg + f * I, I), u = tr_dot_f64(x, Wu + f * I, I);
                double dg = exact_dots(I) * exact_abs_dot(x, Wg + f * I, I);
                double du = exact_dots(I) * exact_abs_dot(x, Wu + f * I, I);
                h[f] = a->act->f64(g, u, a->p);
                dh[f] = 1.1 * fabs(u) * dg + fabs(g) * du + 12 * EXACT_U * fabs(h[f]);
            }
            for (int64_t o = 0; o < O; o++)
                worst = fmax(worst, exact_dots(F) * exact_abs_dot(h, Wd + o * F, F) +
                                    exact_abs_dot(dh, Wd + o * F, F));
        }
    }
    return worst;
}

static inline double bound_combine(const tr_combine_args *a, size_t at)
{
    int64_t K = a->x.shape[1], O = a->y.shape[1];
    double worst = 0;
    (void)at;
    for (int64_t i = 0; i < tr_view_numel(a->y); i++) {
        double s = 0;
        for (int64_t j = 0; j < K; j++)
            s += fabs(f64(a->weights)[i / O * K + j] * f64(a->x)[(i / O * K + j) * O + i % O]);
        worst = fmax(worst, (double)(K + 1) * EXACT_U * s);
    }
    return worst;
}

/* b is off by u and enters twice an axis, a product and a sum each: at most 10 u of the largest entry.
 * Then a sine or cosine, and a sum. */
static inline double bound_pos(const tr_pos_args *a, size_t at)
{
    double top = 0, *W = exact_weights(a->table);
    (void)at;
    for (int64_t i = 0; i < a->table->rows * a->table->cols; i++) top = fmax(top, fabs(W[i]));
    return EXACT_U * (10 * top + (a->t > 1 ? 2 + top : 0));
}

static inline double bound_merge(const tr_merge_args *a, size_t at)
{
    (void)at;
    return a->t == 1 ? 0 : (double)a->t * EXACT_U * exact_max(a->x);
}

/* ---- the operators, by number ---------------------------------------------------------------- */

#define EXACT_NUMBER(op, args, f64_, f32_) EXACT_##op,
enum { TR_OPS_LIST(EXACT_NUMBER) EXACT_COUNT };

typedef union exact_args {          /* room for any */
#define EXACT_MEMBER(op, args, f64_, f32_) args op;
    TR_OPS_LIST(EXACT_MEMBER)
} exact_args;

typedef struct exact_op {
    const char *name;
    size_t bytes;
    tr_status (*f64)(tr_ctx *, const void *);
    tr_status (*f32)(tr_ctx *, const void *);
    tr_status (*ref)(tr_ctx *, const void *);
    double (*bound)(const void *, size_t);
    int calls;                      /* since the last report; the worst of them: */
    double error, limit, most;      /* most: whatever its limit */
    char at[160];
} exact_op;

#define EXACT_CALL(name, fn, args)                                                              \
    static tr_status name(tr_ctx *c, const void *a) { return fn(c, (const args *)a); }
#define EXACT_CALLS(op, args, f64_, f32_)                                                       \
    EXACT_CALL(exact_f64_##op, f64_, args)                                                      \
    EXACT_CALL(exact_f32_##op, f32_, args)                                                      \
    EXACT_CALL(exact_ref_##op, ref_##op, args)                                                  \
    static double exact_bound_##op(const void *a, size_t at)                                    \
    {                                                                                           \
        return bound_##op((const args *)a, at);                                                 \
    }
TR_OPS_LIST(EXACT_CALLS)

static exact_op exact_ops[EXACT_COUNT] = {
#define EXACT_ROW(op, args, f64_, f32_)                                                         \
    { #op, sizeof(args), exact_f64_##op, exact_f32_##op, exact_ref_##op, exact_bound_##op,      \
      0, 0, 0, 0, "" },
    TR_OPS_LIST(EXACT_ROW)
};

/* i: read; o: written; b: both; w: workspace, written; n: the contract has none. I32: as they
 * are. */
static const struct { int op; char kind; size_t at; } exact_fields[] = {
#define F(op, args, kind, field) { EXACT_##op, kind, offsetof(args, field) },
    F(embed, tr_embed_args, 'o', y)
    F(matmul, tr_matmul_args, 'o', y) F(matmul, tr_matmul_args, 'i', x)
    F(matmul, tr_matmul_args, 'i', bias)
    F(norm, tr_norm_args, 'o', y) F(norm, tr_norm_args, 'i', x) F(norm, tr_norm_args, 'i', w)
    F(norm, tr_norm_args, 'i', bias) F(norm, tr_norm_args, 'i', gate)
    F(glu, tr_glu_args, 'o', y) F(glu, tr_glu_args, 'i', g) F(glu, tr_glu_args, 'i', u)
    F(gate, tr_gate_args, 'o', y) F(gate, tr_gate_args, 'i', x) F(gate, tr_gate_args, 'i', g)
    F(gelu, tr_gelu_args, 'o', y) F(gelu, tr_gelu_args, 'i', x)
    F(rope, tr_rope_args, 'b', x)
    F(attn, tr_attn_args, 'o', y) F(attn, tr_attn_args, 'i', q) F(attn, tr_attn_args, 'i', k)
    F(attn, tr_attn_args, 'i', v) F(attn, tr_attn_args, 'i', sink)
    F(attn, tr_attn_args, 'n', probs)
    F(mla, tr_mla_args, 'o', y) F(mla, tr_mla_args, 'i', q) F(mla, tr_mla_args, 'i', latent)
    F(mla, tr_mla_args, 'w', absorbed) F(mla, tr_mla_args, 'n', kv) F(mla, tr_mla_args, 'n', probs)
    F(shortconv, tr_conv_args, 'o', y) F(shortconv, tr_conv_args, 'i', x)
    F(shortconv, tr_conv_args, 'i', w) F(shortconv, tr_conv_args, 'b', hist)
    F(decay, tr_decay_args, 'o', g) F(decay, tr_decay_args, 'o', beta)
    F(decay, tr_decay_args, 'i', z) F(decay, tr_decay_args, 'i', b)
    F(decay, tr_decay_args, 'i', A_log) F(decay, tr_decay_args, 'i', dt_bias)
    F(delta, tr_delta_args, 'o', o) F(delta, tr_delta_args, 'i', q) F(delta, tr_delta_args, 'i', k)
    F(delta, tr_delta_args, 'i', v) F(delta, tr_delta_args, 'i', g)
    F(delta, tr_delta_args, 'i', beta) F(delta, tr_delta_args, 'b', S)
    F(add, tr_add_args, 'o', y) F(add, tr_add_args, 'i', a) F(add, tr_add_args, 'i', b)
    F(copy, tr_copy_args, 'o', y) F(copy, tr_copy_args, 'i', x)
    F(mix, tr_mix_args, 'o', y) F(mix, tr_mix_args, 'o', probs) F(mix, tr_mix_args, 'i', snaps)
    F(mix, tr_mix_args, 'i', h) F(mix, tr_mix_args, 'i', norm) F(mix, tr_mix_args, 'i', proj)
    F(route, tr_route_args, 'o', ids) F(route, tr_route_args, 'o', weights)
    F(route, tr_route_args, 'o', scores) F(route, tr_route_args, 'i', logits)
    F(route, tr_route_args, 'i', bias)
    F(experts, tr_experts_args, 'o', y) F(experts, tr_experts_args, 'i', x)
    F(experts, tr_experts_args, 'w', g) F(experts, tr_experts_args, 'w', u)
    F(combine, tr_combine_args, 'o', y) F(combine, tr_combine_args, 'i', x)
    F(combine, tr_combine_args, 'i', weights)
    F(pos, tr_pos_args, 'o', y)
    F(merge, tr_merge_args, 'o', y) F(merge, tr_merge_args, 'i', x)
#undef F
};
#define EXACT_FIELDS (sizeof exact_fields / sizeof *exact_fields)

static inline tr_view exact_get(const void *args, size_t i)
{
    tr_view v;
    memcpy(&v, (const char *)args + exact_fields[i].at, sizeof v);
    return v;
}
static inline void exact_set(void *args, size_t i, tr_view v)
{
    memcpy((char *)args + exact_fields[i].at, &v, sizeof v);
}

/* A contiguous view of that type and shape: a copy of v, or (fill) numbers that nobody expects. */
static inline tr_view exact_view(tr_view v, tr_dtype t, int fill_it)
{
    int64_t n = tr_view_numel(v);
    tr_view y = tr_view_of(mem(n, 8), t, v.rank, v.shape);
    if (!fill_it) CHECK_OK(ctx, tr_view_copy(ctx, y, v));
    for (int64_t i = 0; fill_it && i < n; i++) tri_put(y.data, t, i, -77);
    return y;
}

/* args with new views of type t: what is read is copied from `from`, what is written is new. */
static inline void exact_new(int op, exact_args *args, const void *from, tr_dtype t, int workspace)
{
    memcpy(args, from, exact_ops[op].bytes);
    for (size_t i = 0; i < EXACT_FIELDS; i++) {
        char kind = exact_fields[i].kind;
        tr_view v;
        if (exact_fields[i].op != op) continue;
        v = exact_get(from, i);
        if (tr_view_is_none(v)) continue;
        if (kind == 'i' && v.dtype == t) continue;          /* strides and all */
        if (kind == 'n' && !workspace) v = tr_view_none();
        else v = exact_view(v, v.dtype == TR_I32 ? TR_I32 : t, kind != 'i' && kind != 'b');
        exact_set(args, i, v);
    }
    if (op == EXACT_mla && t == TR_F32) {
        const tr_mla_args *m = (const tr_mla_args *)from;
        tr_view a = tr_view_of(NULL, TR_F32, 3, m->q.shape);
        a.shape[2] = 2 * m->latent.shape[1] - m->rope;
        args->mla.absorbed = exact_view(a, TR_F32, 1);
    }
}

/* Contexts of every cpu level that is here, by 1, 2 and 7 threads; a few: each of both once. */
static inline tr_ctx *exact_ctx(int i)
{
    static tr_ctx *all[9];
    tr_ctx_opts o;
    memset(&o, 0, sizeof o);
    if (i < 0) { for (i = 0; i < 9; i++) tr_ctx_free(all[i]); return NULL; }
    o.cpu = (tr_cpu)(TR_CPU_BASE + i / 3);
    o.threads = thread_counts[i % 3];
    if (!all[i] && tr_ctx_new(&all[i], &o) != TR_OK) { tr_ctx_free(all[i]); all[i] = NULL; }
    return all[i];
}

static int exact_few;           /* 1: three of the nine */

/* The contract leaves open which NaN it is. */
static inline tr_view exact_one_nan(tr_view v)
{
    for (int64_t i = 0; v.dtype == TR_F32 && i < tr_view_numel(v); i++)
        if (isnan(((float *)v.data)[i])) ((float *)v.data)[i] = tr_f32_from_bits(0x7fc00000u);
    return v;
}

/* Runs f32 by all contexts and ref on `narrow`, whose outputs hold the kernel's in the end. */
static inline void exact_bits(int op, exact_args *narrow)
{
    exact_op *o = &exact_ops[op];
    exact_args ref, got;
    exact_new(op, &ref, narrow, TR_F32, 1);
    CHECK_OK(ctx, o->ref(ctx, &ref));
    for (int k = 0; k < 9; k++) {
        tr_ctx *c = exact_few && k / 3 != k % 3 ? NULL : exact_ctx(k);
        char what[256];
        if (!c) continue;
        snprintf(what, sizeof what, "%s %s, cpu %s, %d threads", cases_name, o->name,
                 tr_cpu_name(tr_ctx_cpu(c)), thread_counts[k % 3]);
        exact_new(op, &got, narrow, TR_F32, 1);
        CHECK_OK(c, o->f32(c, &got));
        for (size_t i = 0; i < EXACT_FIELDS; i++)
            if (exact_fields[i].op == op && strchr("ob", exact_fields[i].kind) &&
                !tr_view_is_none(exact_get(narrow, i)))
                bits_equal(exact_one_nan(exact_get(&got, i)), exact_one_nan(exact_get(&ref, i)),
                           what);
    }
    memcpy(narrow, &got, sizeof got);
}

/* Beyond the largest binary32 number lies its infinity. */
static inline tr_view exact_range(tr_view v)
{
    for (int64_t i = 0; i < tr_view_numel(v); i++)
        if (fabs(f64(v)[i]) >= 0x1.ffffffp127) f64(v)[i] = copysign((double)INFINITY, f64(v)[i]);
    return v;
}

static inline double exact_distance(tr_view a, tr_view b)
{
    double d = 0;
    for (int64_t i = 0; i < tr_view_numel(a); i++)
        if (f64(a)[i] != f64(b)[i] && !(fabs(f64(a)[i] - f64(b)[i]) <= d))
            d = fabs(f64(a)[i] - f64(b)[i]);
    return d;
}

static inline void exact_run(int op, void *args)
{
    exact_op *o = &exact_ops[op];
    exact_args narrow, wide;
    exact_new(op, &narrow, args, TR_F32, 0);
    exact_new(op, &wide, args, TR_F64, 1);
    for (size_t i = 0; i < EXACT_FIELDS; i++)       /* wide reads what was narrowed */
        if (exact_fields[i].op == op && strchr("ib", exact_fields[i].kind) &&
            !tr_view_is_none(exact_get(args, i)))
            exact_set(&wide, i, copy(exact_get(&narrow, i)));
    if (op == EXACT_delta) exact_S0 = copy(wide.delta.S);
    CHECK_OK(ctx, o->f64(ctx, args));
    CHECK_OK(ctx, o->f64(ctx, &wide));
    exact_bits(op, &narrow);
    o->calls++;
    for (size_t i = 0; i < EXACT_FIELDS; i++) {
        tr_view y, w, n;
        double top, error, limit;
        if (exact_fields[i].op != op || !strchr("ob", exact_fields[i].kind)) continue;
        y = exact_get(args, i);
        if (tr_view_is_none(y)) continue;
        if (y.dtype == TR_I32) {
            bits_equal(exact_get(&narrow, i), y, "ids of the contract against the definition's");
            continue;
        }
        y = exact_range(copy(y));
        w = exact_range(exact_get(&wide, i));
        n = copy(exact_get(&narrow, i));
        top = exact_max(y);
        error = exact_distance(n, y);
        limit = exact_distance(w, y) + o->bound(&wide, exact_fields[i].at);
        if (top > 0) { error /= top; limit /= top; }
        if (limit < 1e-6) limit = 1e-6;
        if (!(error <= limit)) {
            test_bad++;
            printf("  %s %s: error %.3g > %.3g\n", cases_name, o->name, error, limit);
        }
        if (error > 1e-6 && error <= limit)         /* worth a line: the case is hard */
            printf("  exact %s: %s is off by %.2g <= %.2g\n", o->name, cases_name, error, limit);
        if (!(error <= o->most)) o->most = error;
        if (o->limit == 0 || !(error / limit <= o->error / o->limit)) {
            o->error = error;
            o->limit = limit;
            snprintf(o->at, sizeof o->at, "%s", cases_name);
        }
    }
}

/* Numbers of F32 that show order and roundings: sizes 2^10 apart and more, zeros of both signs,
 * subnormals, equal neighbours; and if there are more than two rows, row 1 is zeros of either
 * sign. */
static inline tr_view hard(uint64_t stream, double size, int rank, int64_t a, int64_t b, int64_t c)
{
    int64_t shape[3], n = a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1), row;
    float *x = (float *)mem(n, 4);
    shape[0] = a; shape[1] = b; shape[2] = c;
    row = rank > 1 ? shape[rank - 1] : n;
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = tr_rng_u64(21, stream, (uint64_t)i);
        double y = size * tr_rng_normal(22, stream, (uint64_t)i);
        if (r % 32 == 0) y = r & 1024 ? -0.0 : 0;
        if (r % 32 == 1) y *= 1e-42;
        if (r % 32 == 2) y *= 40;
        if (r % 32 == 3) y *= 0x1p-10;
        if (r % 32 == 4 && i) y = (double)x[i - 1];
        if (row < n / 2 && i / row == 1) y = r & 1024 ? -0.0 : 0;
        x[i] = (float)y;
    }
    return tr_view_of(x, TR_F32, rank, shape);
}

#define BOTH(op, a) exact_run(EXACT_##op, a)
#define BITS(op, a)                                                                     \
    do {                                                                                \
        exact_args exact_in;                                                            \
        exact_few = 0;                                                                  \
        exact_new(EXACT_##op, &exact_in, a, TR_F32, 1);                                 \
        exact_bits(EXACT_##op, &exact_in);                                              \
        exact_few = 1;                                                                  \
    } while (0)

/* The worst error of each operator beside its bound, since the last report. */
static inline void exact_report(void)
{
    for (int i = 0; i < EXACT_COUNT; i++) {
        exact_op *o = &exact_ops[i];
        if (o->calls) printf("  exact %-9s %4d calls, error %.2g <= %.2g (%s), at most %.2g\n",
                             o->name, o->calls, o->error, o->limit, o->at, o->most);
        o->calls = 0;
        o->error = o->limit = o->most = 0;
    }
}

/* The cases of a file, then the report. */
static inline void exact_cases(const char *file, void (*fn)(void))
{
    exact_few = 1;
    cases_run(file, fn);
    exact_report();
}

static inline tr_view matmul(tr_view x, tr_view w)
{
    tr_weight weight = weight_of(w);
    tr_matmul_args a;
    memset(&a, 0, sizeof a);
    a.y = new2(x.shape[0], w.shape[0]);
    a.x = x;
    a.w = &weight;
    BOTH(matmul, &a);
    return a.y;
}

#endif
