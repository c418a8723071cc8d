/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/28-model.c -o build/ex28 -lm && build/ex28
 *
 * Exercise for docs/28-model.md. A model is cut into two: layers [0, cut) and [cut, 9). After the
 * first half has run, its hidden state lies in r->hidden: h [64, D] and snaps [n_max, 64, D],
 * with room for 64 tokens, of which T are filled. tr_forward of the second half wants h [T, D],
 * snaps [n, T, D], and n, the number of block sums held. Return that. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static tr_hidden hand_over(const tr_run *first, int64_t T);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static tr_hidden hand_over(const tr_run *first, int64_t T)
{
    (void)T;
    return first->hidden;
}
/* -------------------------------------------------------------------------- */
#endif

static const char dir[] = "tests/golden/kimi_k3/text-a";
enum { T = 6, LAYERS = 9, V = 320 };

/* Layers [first, first + n) on six tokens, or on the hidden state that enters them. */
static tr_status part(tr_ctx *ctx, int64_t first, int64_t n, const tr_hidden *in, tr_model **m,
                      tr_run **r)
{
    static const int32_t ids[T] = { 11, 12, 13, 14, 15, 16 };
    static const int64_t len = T;
    tr_batch b = { 1, &len, ids };
    tr_model_opts mo;
    tr_run_opts o = tr_run_opts_default();
    tr_status s;
    o.profile = tr_profile_find("oracle");
    memset(&mo, 0, sizeof mo);
    mo.first = first;
    mo.layers = n;
    *m = NULL;
    *r = NULL;
    s = tr_model_open(ctx, m, dir, &mo);
    if (s == TR_OK) s = tr_run_new(ctx, r, *m, &o);
    return s == TR_OK ? tr_forward(*r, &b, in) : s;
}

int main(void)
{
    double want[V];
    tr_ctx *ctx;
    tr_model *m, *m2;
    tr_run *r, *r2;
    tr_diff d;
    if (tr_ctx_new(&ctx, NULL) || part(ctx, 0, LAYERS, NULL, &m, &r)) return 2;
    memcpy(want, r->logits.data, sizeof want);
    tr_run_free(r);
    tr_model_close(m);
    for (int cut = 1; cut < LAYERS; cut++) {
        tr_hidden h;
        if (part(ctx, 0, cut, NULL, &m, &r)) return 2;
        h = hand_over(r, T);
        if (part(ctx, cut, LAYERS - cut, &h, &m2, &r2)) {
            printf("missing: cut at layer %d: %s\n", cut, tr_err_last(ctx));
            return 1;
        }
        tr_diff_views(ctx, &d, tr_view_at(r2->logits, 0), tr_view1(want, TR_F64, V));
        tr_run_free(r2);
        tr_model_close(m2);
        tr_run_free(r);
        tr_model_close(m);
        if (d.equal == V) continue;
        printf("missing: cut at layer %d: %d of %d logits differ\n", cut, (int)(V - d.equal), V);
        return 1;
    }
    tr_ctx_free(ctx);
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static tr_hidden hand_over(const tr_run *first, int64_t tokens)
{
    tr_hidden h = first->hidden;
    h.h = tr_view_slice(h.h, 0, 0, tokens);
    h.snaps = tr_view_slice(tr_view_slice(h.snaps, 0, 0, h.n), 1, 0, tokens);
    return h;
}
#endif
