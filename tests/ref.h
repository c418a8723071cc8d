/* ref.h - the contract once more: every operator as a plain scalar loop, written from the words of
 * docs/numerics.md, whose row numbers stand at the margin. Of the header it takes the elementary
 * functions (section 4), which test_fn.c holds, and the exact decoding of stored weights. No
 * blocks, no threads, no care for speed: what it shares with the kernels are the words alone. */
#ifndef REF_H
#define REF_H

#include "test.h"

/* Row i of any view of floats, counted over all dimensions but the last. */
static inline float *ref_row(tr_view v, int64_t i)
{
    int64_t at = 0;
    for (int k = v.rank - 2; k >= 0; i /= v.shape[k--]) at += i % v.shape[k] * v.stride[k];
    return (float *)v.data + at;
}
static inline int64_t ref_rows(tr_view v)
{
    int64_t n = 1;
    for (int k = 0; k < v.rank - 1; k++) n *= v.shape[k];
    return n;
}
static inline int64_t ref_last(tr_view v) { return v.shape[v.rank - 1]; }
static inline float *ref_new(int64_t n)
{
    float *p = (float *)calloc((size_t)(n + 1), sizeof *p);
    if (!p) { printf("FAILED: no memory\n"); exit(1); }
    return p;
}

/* S1, S2: sixteen lanes, folded in halves. */
static inline float ref_fold(const float a[16])
{
    float b[8], c[4], d[2];
    for (int l = 0; l < 8; l++) b[l] = a[l] + a[l + 8];
    for (int l = 0; l < 4; l++) c[l] = b[l] + b[l + 4];
    for (int l = 0; l < 2; l++) d[l] = c[l] + c[l + 2];
    return d[0] + d[1];
}
static inline float ref_dot(const float *x, const float *w, int64_t n)
{
    float a[16] = { 0 };
    for (int64_t k = 0; k < n; k++) a[k % 16] = fmaf(x[k], w[k], a[k % 16]);
    return ref_fold(a);
}
static inline float ref_sum(const float *x, int64_t n)
{
    float a[16] = { 0 };
    for (int64_t k = 0; k < n; k++) a[k % 16] = a[k % 16] + x[k];
    return ref_fold(a);
}

/* W1 - W4: q s is exact in binary64, and rounded here once. */
static inline float *ref_weight_row(const tr_weight *w, int64_t r)
{
    float *y = ref_new(w->cols);
    double *buf = (double *)calloc((size_t)w->cols + 1, sizeof *buf);
    const double *exact = tr_weight_row_f64(w, r, 0, w->cols, buf);
    for (int64_t c = 0; c < w->cols; c++) y[c] = (float)exact[c];
    free(buf);
    return y;
}

static inline float ref_silu(float g)                           /* O7 */
{
    float s = tr_sigmoidf(g);
    return s == 0 ? 0 : g * s;
}
static inline void ref_act(const tr_act *act, float *y, const float *g, const float *u, int64_t n,
                           const double *par)
{
    float p = (float)par[0], P = (float)par[1];
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(act->name, "situ")) {                       /* O8 */
            float A = p * tr_tanhf(g[i] / p), B = P * tr_tanhf(u[i] / P);
            y[i] = A * tr_sigmoidf(g[i]) * B;
        } else {
            y[i] = ref_silu(g[i]) * u[i];
        }
}

/* O10; a row that is masked throughout is zeros, as tr_softmax says. */
static inline void ref_softmax(float *y, const float *x, int64_t n)
{
    float m = x[0], t;
    for (int64_t i = 1; i < n; i++) m = m > x[i] ? m : x[i];
    for (int64_t i = 0; i < n; i++) y[i] = m == -INFINITY ? 0 : tr_expf(x[i] - m);
    t = ref_sum(y, n);
    for (int64_t i = 0; i < n; i++) y[i] = m == -INFINITY ? 0 : y[i] / t;
}

static inline tr_status ref_matmul(tr_ctx *c, const tr_matmul_args *a)      /* O1 */
{
    (void)c;
    for (int64_t o = 0; o < a->w->rows; o++) {
        float *w = ref_weight_row(a->w, o);
        for (int64_t n = 0; n < a->x.shape[0]; n++) {
            float y = ref_dot(ref_row(a->x, n), w, a->w->cols);
            if (!tr_view_is_none(a->bias))
                y = y + ((const float *)a->bias.data)[o * a->bias.stride[0]];
            ref_row(a->y, n)[o] = y;
        }
        free(w);
    }
    return TR_OK;
}

static inline tr_status ref_embed(tr_ctx *c, const tr_embed_args *a)        /* O2 */
{
    (void)c;
    for (int64_t n = 0; n < a->ids.shape[0]; n++) {
        float *w = ref_weight_row(a->w, ((const int32_t *)a->ids.data)[n * a->ids.stride[0]]);
        if (a->w->cols) memcpy(ref_row(a->y, n), w, (size_t)a->w->cols * sizeof *w);
        free(w);
    }
    return TR_OK;
}

static inline tr_status ref_norm(tr_ctx *c, const tr_norm_args *a)          /* O3 - O6 */
{
    int64_t D = ref_last(a->x), C = D / a->groups;
    float eps = (float)a->eps, *x = ref_new(D);
    const float *w = (const float *)a->w.data, *b = (const float *)a->bias.data;
    (void)c;
    for (int64_t i = 0; i < ref_rows(a->x); i++) {
        float *y = ref_row(a->y, i);
        memcpy(x, ref_row(a->x, i), (size_t)D * sizeof *x);
        for (int64_t g = 0; g < D; g += C) {
            if (a->kind == TR_NORM_LAYER) {
                float mu = ref_sum(x + g, C) / (float)C;
                for (int64_t d = g; d < g + C; d++) x[d] = x[d] - mu;
            }
            float ss = ref_dot(x + g, x + g, C);
            if (a->kind != TR_NORM_L2) ss = ss / (float)C;
            float r = 1 / sqrtf(ss + eps);
            for (int64_t d = g; d < g + C; d++) y[d] = x[d] * r;
        }
        for (int64_t d = 0; d < D; d++) {
            float f = !w ? 0 : a->form == TR_NORM_W ? w[d] : 1 + w[d];
            if (w) y[d] = y[d] * f;
            if (b) y[d] = y[d] + b[d];
            if (!tr_view_is_none(a->gate)) y[d] = y[d] * tr_sigmoidf(ref_row(a->gate, i)[d]);
            y[d] = y[d] * (float)a->scale;
        }
    }
    free(x);
    return TR_OK;
}

static inline tr_status ref_glu(tr_ctx *c, const tr_glu_args *a)            /* O7, O8 */
{
    (void)c;
    for (int64_t n = 0; n < a->y.shape[0]; n++)
        ref_act(a->act, ref_row(a->y, n), ref_row(a->g, n), ref_row(a->u, n), a->y.shape[1], a->p);
    return TR_OK;
}

static inline tr_status ref_gate(tr_ctx *c, const tr_gate_args *a)          /* O9 */
{
    (void)c;
    for (int64_t n = 0; n < ref_rows(a->y); n++)
        for (int64_t d = 0; d < ref_last(a->y); d++)
            ref_row(a->y, n)[d] = ref_row(a->x, n)[d] * tr_sigmoidf(ref_row(a->g, n)[d]);
    return TR_OK;
}

static inline tr_status ref_gelu(tr_ctx *c, const tr_gelu_args *a)          /* O28 */
{
    (void)c;
    for (int64_t n = 0; n < ref_rows(a->y); n++)
        for (int64_t d = 0; d < ref_last(a->y); d++)
            ref_row(a->y, n)[d] = a->kind == TR_GELU_ERF ? tr_gelu_erff(ref_row(a->x, n)[d])
                                                         : tr_gelu_tanhf(ref_row(a->x, n)[d]);
    return TR_OK;
}

static inline tr_status ref_rope(tr_ctx *ctx_, const tr_rope_args *a)       /* O12 */
{
    int64_t H = a->x.shape[1], d = a->x.shape[2];
    (void)ctx_;
    for (int64_t n = 0; n < a->x.shape[0]; n++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                int half = a->layout == TR_ROPE_HALF;
                float *x = ref_row(a->x, n * H + h);
                float *pa = x + (half ? i : 2 * i), *pb = x + (half ? i + d / 2 : 2 * i + 1);
                int64_t A = a->pos.rank == 2 ? a->pos.shape[1] : 1;
                double phi = (double)((const int64_t *)a->pos.data)[n * A + i % A] *
                             ((const double *)a->inv_freq.data)[i], sin_x, cos_x;
                tr_sincos64(phi, &sin_x, &cos_x);
                double c64 = a->mult * cos_x, s64 = a->mult * sin_x;
                float c = (float)c64, s = (float)s64, ac = *pa * c, bs = *pb * s, bc = *pb * c;
                float as = *pa * s;
                *pa = ac - bs;
                *pb = bc + as;
            }
    return TR_OK;
}

/* Section 7, one query head at position p. k, v: position 0's rows; ks, vs: to the next. */
typedef struct ref_keys {
    const float *k, *v;
    int64_t ks, vs, Dk, Dv, window, chunk;
    float scale, cap;
} ref_keys;

static inline void ref_attend(float *y, const float *q, const ref_keys *j, int64_t p,
                              const float *sink)
{
    float *o = ref_new(j->Dv), M = 0, L = 0;
    int begun = 0;
    if (sink) {
        M = *sink;
        L = 1;
        begun = 1;
        for (int64_t d = 0; d < j->Dv; d++) y[d] = 0;
    }
    for (int64_t block = 0; block <= p / 128; block++) {
        float z[128], m = 0, l;
        int sees[128], any = 0;
        float lane[16] = { 0 };
        for (int64_t i = 0; i < 128; i++) {
            int64_t s = 128 * block + i;
            sees[i] = s <= p && (j->window == 0 || s > p - j->window) &&
                      (j->chunk == 0 || s / j->chunk == p / j->chunk);
            if (!sees[i]) continue;
            z[i] = ref_dot(q, j->k + s * j->ks, j->Dk) * j->scale;
            if (j->cap > 0) z[i] = j->cap * tr_tanhf(z[i] / j->cap);
            m = !any ? z[i] : m > z[i] ? m : z[i];
            any = 1;
        }
        if (!any) continue;
        for (int i = 0; i < 128; i++)
            if (sees[i]) { z[i] = tr_expf(z[i] - m); lane[i % 16] += z[i]; }
        l = ref_fold(lane);
        for (int64_t d = 0; d < j->Dv; d++) {
            float part[16] = { 0 };
            for (int i = 0; i < 128; i++)
                if (sees[i])
                    part[i % 16] = fmaf(z[i], j->v[(128 * block + i) * j->vs + d], part[i % 16]);
            o[d] = ref_fold(part);
        }
        if (!begun) {
            M = m;
            L = l;
            memcpy(y, o, (size_t)j->Dv * sizeof *o);
        } else {
            float to = M > m ? M : m, a = tr_expf(M - to), b = tr_expf(m - to);
            L = fmaf(L, a, l * b);
            for (int64_t d = 0; d < j->Dv; d++) y[d] = fmaf(y[d], a, o[d] * b);
            M = to;
        }
        begun = 1;
    }
    for (int64_t d = 0; d < j->Dv; d++) y[d] = y[d] / L;
    free(o);
}

static inline tr_status ref_attn(tr_ctx *c, const tr_attn_args *a)
{
    int64_t H = a->q.shape[1], G = a->k.shape[1];
    (void)c;
    for (int64_t i = 0; i < a->q.shape[0] * H; i++) {
        int64_t h = i % H, g = h / (H / G);
        ref_keys j;
        j.k = ref_row(a->k, g);
        j.v = ref_row(a->v, g);
        j.ks = a->k.stride[0];
        j.vs = a->v.stride[0];
        j.Dk = a->k.shape[2];
        j.Dv = a->v.shape[2];
        j.window = a->window;
        j.chunk = a->chunk;
        j.scale = (float)a->scale;
        j.cap = (float)a->softcap;
        ref_attend(ref_row(a->y, i), ref_row(a->q, i), &j, a->pos + i / H,
                   tr_view_is_none(a->sink) ? NULL : (const float *)a->sink.data + h);
    }
    return TR_OK;
}

static inline tr_status ref_mla(tr_ctx *ctx_, const tr_mla_args *a)         /* section 8 */
{
    int64_t H = a->q.shape[1], Dr = a->rope, Dn = a->q.shape[2] - Dr, Dv = a->y.shape[2];
    int64_t R = a->latent.shape[1] - Dr;
    float *q = ref_new(R + Dr), *c = ref_new(R), *W = ref_new(a->kv_b->rows * R);
    ref_keys j;
    (void)ctx_;
    memset(&j, 0, sizeof j);
    j.k = j.v = (const float *)a->latent.data;
    j.ks = j.vs = a->latent.stride[0];
    j.Dk = R + Dr;
    j.Dv = R;
    j.scale = (float)a->scale;
    for (int64_t r = 0; r < a->kv_b->rows; r++) {
        float *row = ref_weight_row(a->kv_b, r);
        memcpy(W + r * R, row, (size_t)R * sizeof *row);
        free(row);
    }
    for (int64_t i = 0; i < a->q.shape[0] * H; i++) {
        const float *Wk = W + i % H * (Dn + Dv) * R, *Wv = Wk + Dn * R, *qi = ref_row(a->q, i);
        for (int64_t r = 0; r < R; r++) {
            float lane[16] = { 0 };
            for (int64_t n = 0; n < Dn; n++)
                lane[n % 16] = fmaf(qi[n], Wk[n * R + r], lane[n % 16]);
            q[r] = ref_fold(lane);
        }
        for (int64_t d = 0; d < Dr; d++) q[R + d] = qi[Dn + d];
        ref_attend(c, q, &j, a->pos + i / H, NULL);
        for (int64_t d = 0; d < Dv; d++) ref_row(a->y, i)[d] = ref_dot(c, Wv + d * R, R);
    }
    free(q);
    free(c);
    free(W);
    return TR_OK;
}

static inline tr_status ref_shortconv(tr_ctx *ctx_, const tr_conv_args *a)  /* O15 */
{
    int64_t T = a->x.shape[0], J = a->w.shape[1];
    float *all = ref_new(T + J);                    /* a channel's inputs, history first */
    (void)ctx_;
    for (int64_t c = 0; c < a->w.shape[0]; c++) {
        for (int64_t i = 0; i < J - 1; i++) all[i] = ref_row(a->hist, c)[i];
        for (int64_t t = 0; t < T; t++) all[J - 1 + t] = ref_row(a->x, t)[c];
        for (int64_t t = 0; t < T; t++) {
            float y = 0;
            for (int64_t k = 0; k < J; k++) y = fmaf(ref_row(a->w, c)[k], all[t + k], y);
            ref_row(a->y, t)[c] = a->silu ? ref_silu(y) : y;
        }
        for (int64_t i = 0; i < J - 1; i++) ref_row(a->hist, c)[i] = all[T + i];
    }
    free(all);
    return TR_OK;
}

static inline tr_status ref_decay(tr_ctx *ctx_, const tr_decay_args *a)     /* O16 - O18 */
{
    int64_t H = a->z.shape[1];
    (void)ctx_;
    for (int64_t i = 0; i < a->z.shape[0] * H; i++) {
        float A = tr_expf(((const float *)a->A_log.data)[i % H]);
        for (int64_t k = 0; k < a->z.shape[2]; k++) {
            float x = ref_row(a->z, i)[k] + ref_row(a->dt_bias, i % H)[k];
            float in = A * x, soft = A * tr_softplusf(x);
            ref_row(a->g, i)[k] = a->kind == TR_DECAY_BOUNDED ? (float)a->bound * tr_sigmoidf(in)
                                                              : -soft;
        }
        ref_row(a->beta, i / H)[i % H] = tr_sigmoidf(ref_row(a->b, i / H)[i % H]);
    }
    return TR_OK;
}

static inline tr_status ref_delta(tr_ctx *ctx_, const tr_delta_args *a)     /* section 9 */
{
    int64_t H = a->q.shape[1], V = a->v.shape[2], K = a->q.shape[2];
    (void)ctx_;
    for (int64_t i = 0; i < a->q.shape[0] * H; i++) {
        const float *q = ref_row(a->q, i), *k = ref_row(a->k, i), *g = ref_row(a->g, i);
        float beta = ref_row(a->beta, i / H)[i % H];
        for (int64_t r = 0; r < V; r++) {
            float *S = ref_row(tr_view_at(a->S, i % H), r), off;
            for (int64_t c = 0; c < K; c++) S[c] = S[c] * tr_expf(g[c * a->g.stride[2]]);
            off = ref_row(a->v, i)[r] - ref_dot(S, k, K);
            off = beta * off;
            for (int64_t c = 0; c < K; c++) S[c] = fmaf(off, k[c], S[c]);
            ref_row(a->o, i)[r] = ref_dot(S, q, K);
        }
    }
    return TR_OK;
}

static inline tr_status ref_add(tr_ctx *c, const tr_add_args *a)            /* O20 */
{
    (void)c;
    for (int64_t n = 0; n < a->y.shape[0]; n++)
        for (int64_t d = 0; d < a->y.shape[1]; d++)
            ref_row(a->y, n)[d] = ref_row(a->a, n)[d] + ref_row(a->b, n)[d];
    return TR_OK;
}

static inline tr_status ref_copy(tr_ctx *c, const tr_copy_args *a) { return tr_copy(c, a); }

static inline tr_status ref_mix(tr_ctx *ctx_, const tr_mix_args *a)         /* section 10 */
{
    int64_t N = a->y.shape[0], D = a->y.shape[1], n = a->snaps.shape[0];
    const float *norm = (const float *)a->norm.data, *proj = (const float *)a->proj.data;
    float *x = ref_new(D), *w = ref_new(D), *p = ref_new(n + 1);
    (void)ctx_;
    for (int64_t t = 0; t < N; t++) {
        float m = 0, sum = 0;
        for (int64_t i = 0; i <= n; i++) {
            const float *V = i < n ? ref_row(a->snaps, i * N + t) : ref_row(a->h, t);
            float r = 1 / sqrtf(ref_dot(V, V, D) / (float)D + (float)a->eps);
            for (int64_t d = 0; d < D; d++) { x[d] = V[d] * r; w[d] = norm[d] * proj[d]; }
            p[i] = ref_dot(x, w, D);
            m = i == 0 ? p[i] : m > p[i] ? m : p[i];
        }
        for (int64_t i = 0; i <= n; i++) { p[i] = tr_expf(p[i] - m); sum = sum + p[i]; }
        for (int64_t i = 0; i <= n; i++) p[i] = p[i] / sum;
        for (int64_t d = 0; d < D; d++) {
            float y = 0;
            for (int64_t i = 0; i <= n; i++)
                y = fmaf(p[i], (i < n ? ref_row(a->snaps, i * N + t) : ref_row(a->h, t))[d], y);
            ref_row(a->y, t)[d] = y;
        }
        for (int64_t i = 0; i <= n && !tr_view_is_none(a->probs); i++)
            ref_row(a->probs, t)[i] = p[i];
    }
    free(x);
    free(w);
    free(p);
    return TR_OK;
}

/* How many of [0, n) that take part come before e: larger value, or equal and lower index. */
static inline int64_t ref_before(const float *v, const unsigned char *part, int64_t n, int64_t e)
{
    int64_t before = 0;
    for (int64_t i = 0; i < n; i++)
        before += (!part || part[i]) && (v[i] > v[e] || (v[i] == v[e] && i < e));
    return before;
}

static inline tr_status ref_route(tr_ctx *ctx_, const tr_route_args *a)     /* O22 - O24 */
{
    int64_t E = a->logits.shape[1], K = a->ids.shape[1], size = E / a->groups;
    float *c = ref_new(E), *value = ref_new(a->groups);
    unsigned char *part = (unsigned char *)calloc((size_t)E, 1);
    (void)ctx_;
    for (int64_t n = 0; n < a->logits.shape[0]; n++) {
        float *s = ref_row(a->scores, n), *w = ref_row(a->weights, n), t = 0;
        int32_t *ids = (int32_t *)a->ids.data + n * a->ids.stride[0];
        int64_t found = 0;
        if (a->score == TR_SCORE_SOFTMAX) ref_softmax(s, ref_row(a->logits, n), E);
        for (int64_t e = 0; e < E; e++) {
            if (a->score == TR_SCORE_SIGMOID) s[e] = tr_sigmoidf(ref_row(a->logits, n)[e]);
            c[e] = tr_view_is_none(a->bias) ? s[e] : s[e] + ((const float *)a->bias.data)[e];
        }
        for (int64_t g = 0; g < a->groups; g++) {
            const float *x = c + g * size;
            float best = x[0], second = 0;
            for (int64_t i = 0; a->groups > 1 && i < size; i++) {
                if (ref_before(x, NULL, size, i) == 0) best = x[i];
                if (ref_before(x, NULL, size, i) == 1) second = x[i];
            }
            value[g] = best + second;
            if (size == 1) value[g] = x[0];
        }
        for (int64_t e = 0; e < E; e++)
            part[e] = ref_before(value, NULL, a->groups, e / size) < a->keep;
        for (int64_t e = 0; e < E; e++)
            if (part[e] && ref_before(c, part, E, e) < K) ids[found++] = (int32_t)e;
        for (int64_t j = 0; j < K; j++) t = t + s[ids[j]];
        for (int64_t j = 0; j < K; j++) {
            float sum = t + (float)a->renorm_eps;
            w[j] = a->renorm ? s[ids[j]] / sum : s[ids[j]];
            w[j] = w[j] * (float)a->scale;
        }
    }
    free(c);
    free(value);
    free(part);
    return TR_OK;
}

static inline tr_status ref_dispatch(tr_ctx *c, const tr_dispatch_args *a)
{
    return tr_dispatch(c, a);
}

static inline tr_status ref_experts(tr_ctx *c, const tr_experts_args *a) /* O25 */
{
    const int32_t *order = (const int32_t *)a->order.data;
    const int32_t *offset = (const int32_t *)a->offset.data;
    int64_t K = a->y.shape[1];
    (void)c;
    for (int64_t i = 0; i < ref_rows(a->y); i++)
        for (int64_t o = 0; o < a->y.shape[2]; o++) ref_row(a->y, i)[o] = 0;
    for (int64_t e = 0; e < a->offset.shape[0] - 1; e++) {
        int64_t at = offset[e], n = offset[e + 1] - at, F = a->g.shape[1];
        for (int64_t f = 0; n && f < F; f++) {
            float *wg = ref_weight_row(&a->gate[e], f), *wu = ref_weight_row(&a->up[e], f);
            for (int64_t i = at; i < at + n; i++) {
                const float *x = ref_row(a->x, order[i] / K);
                ref_row(a->g, order[i])[f] = ref_dot(x, wg, a->x.shape[1]);
                ref_row(a->u, order[i])[f] = ref_dot(x, wu, a->x.shape[1]);
            }
            free(wg);
            free(wu);
        }
        for (int64_t i = at; i < at + n; i++) {
            float *g = ref_row(a->g, order[i]);
            ref_act(a->act, g, g, ref_row(a->u, order[i]), F, a->p);
        }
        for (int64_t o = 0; n && o < a->y.shape[2]; o++) {
            float *w = ref_weight_row(&a->down[e], o);
            for (int64_t i = at; i < at + n; i++)
                ref_row(a->y, order[i])[o] = ref_dot(ref_row(a->g, order[i]), w, F);
            free(w);
        }
    }
    return TR_OK;
}

static inline tr_status ref_combine(tr_ctx *c, const tr_combine_args *a)    /* O26 */
{
    int64_t K = a->x.shape[1];
    (void)c;
    for (int64_t t = 0; t < a->y.shape[0]; t++)
        for (int64_t o = 0; o < a->y.shape[1]; o++) {
            float y = 0;
            for (int64_t j = 0; j < K; j++)
                y = fmaf(ref_row(a->weights, t)[j], ref_row(a->x, t * K + j)[o], y);
            ref_row(a->y, t)[o] = y;
        }
    return TR_OK;
}

static inline void ref_between(int64_t i, int64_t n, int64_t G, int64_t *k0, int64_t *k1, float *b)
{
    double step = (double)G / (double)n, z = ((double)i + 0.5) * step - 0.5;
    if (z < 0) z = 0;
    *k0 = (int64_t)floor(z) < G - 1 ? (int64_t)floor(z) : G - 1;
    *k1 = *k0 + 1 < G - 1 ? *k0 + 1 : G - 1;
    *b = (float)(z - (double)*k0);
}

static inline tr_status ref_pos(tr_ctx *c, const tr_pos_args *a)            /* O29 */
{
    int64_t D = a->y.shape[1], G = a->table->rows;
    float **T = (float **)calloc((size_t)G, sizeof *T);
    (void)c;
    for (int64_t g = 0; g < G; g++) T[g] = ref_weight_row(a->table, g);
    for (int64_t n = 0; n < a->y.shape[0]; n++) {
        int64_t f = n / (a->h * a->w), r0, r1, c0, c1;
        float rb, cb;
        ref_between(n / a->w % a->h, a->h, G, &r0, &r1, &rb);
        ref_between(n % a->w, a->w, a->table->cols / D, &c0, &c1, &cb);
        for (int64_t d = 0; d < D; d++) {
            float ra = 1 - rb, ca = 1 - cb, p = ca * T[r0][c0 * D + d], q = ca * T[r1][c0 * D + d];
            p = fmaf(cb, T[r0][c1 * D + d], p);
            q = fmaf(cb, T[r1][c1 * D + d], q);
            float y = ra * p;
            y = fmaf(rb, q, y);
            if (a->t > 1) {
                double j = (double)(d % (D / 2)), sin_f, cos_f;
                double w = tr_pow64(a->theta, -2 * j / (double)D);
                tr_sincos64((double)f * w, &sin_f, &cos_f);
                y = y + (float)(d < D / 2 ? sin_f : cos_f);
            }
            ref_row(a->y, n)[d] = y;
        }
    }
    for (int64_t g = 0; g < G; g++) free(T[g]);
    free(T);
    return TR_OK;
}

static inline tr_status ref_merge(tr_ctx *c, const tr_merge_args *a)        /* O30 */
{
    int64_t H = a->h / a->mh, W = a->w / a->mw, at = 0;
    (void)c;
    for (int64_t Y = 0; Y < H; Y++)
        for (int64_t X = 0; X < W; X++)
            for (int64_t dy = 0; dy < a->mh; dy++)
                for (int64_t dx = 0; dx < a->mw; dx++, at++)
                    for (int64_t d = 0; d < a->x.shape[1]; d++) {
                        int64_t n = (Y * a->mh + dy) * a->w + X * a->mw + dx;
                        float s = ref_row(a->x, n)[d];
                        for (int64_t f = 1; f < a->t; f++)
                            s = s + ref_row(a->x, f * a->h * a->w + n)[d];
                        ref_row(a->y, at)[d] = a->t > 1 ? s / (float)a->t : s;
                    }
    return TR_OK;
}

#endif
