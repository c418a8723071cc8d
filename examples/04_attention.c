/* cc -std=c11 -O2 -ffp-contract=off -I. examples/04_attention.c -o build/04_attention -lm && build/04_attention */

/* Attention maps, drawn. Query and key of a token say which word it is and which kind of word, so
 * a token reads its own earlier copies most and words of its kind next. Row by row the map shows
 * what a token reads and how strongly; nothing right of the diagonal is seen. Then the same tokens
 * with a window of 3 keys, in chunks of 4 positions, and with a sink: one more logit that takes its
 * share of the softmax and gives nothing back, so that a row adds up to less than 1. */
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define T  9
#define Dk 9                            /* six words, then three kinds of word */

static const struct { const char *word; int id, kind; } text[T] = {
    { "the", 0, 6 }, { "cat", 1, 7 }, { "sees", 2, 8 }, { "the", 0, 6 }, { "dog", 3, 7 },
    { "and", 4, 6 }, { "the", 0, 6 }, { "cat", 1, 7 }, { "runs", 5, 8 }
};

static int draw(tr_ctx *ctx, const char *title, int64_t window, int64_t chunk, double *sink)
{
    double q[T * Dk] = { 0 }, v[T] = { 0 }, y[T], p[T * T];
    tr_attn_args a;
    for (int t = 0; t < T; t++) q[t * Dk + text[t].id] = q[t * Dk + text[t].kind] = 2;
    memset(&a, 0, sizeof a);
    a.y = tr_view3(y, TR_F64, T, 1, 1);
    a.q = tr_view3(q, TR_F64, T, 1, Dk);
    a.k = tr_view3(q, TR_F64, T, 1, Dk);
    a.v = tr_view3(v, TR_F64, T, 1, 1);
    a.probs = tr_view3(p, TR_F64, 1, T, T);
    if (sink) a.sink = tr_view1(sink, TR_F64, 1);
    a.window = window;
    a.chunk = chunk;
    a.scale = 1 / sqrt(Dk);
    if (tr_attn_f64(ctx, &a) != TR_OK) return puts(tr_err_last(ctx));
    printf("\n%s\n", title);
    for (int t = 0; t < T; t++) {
        double sum = 0;
        printf("  %-5s|", text[t].word);
        for (int s = 0; s < T; s++) {
            double x = p[t * T + s];
            sum += x;
            printf(" %c", x == 0 ? ' ' : ".:-=+*#%@@"[(int)(x * 9)]);
        }
        printf("  |%6.3f\n", sum);
    }
    return 0;
}

int main(void)
{
    tr_ctx *ctx;
    double sink = 3;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    puts("blank: not seen     . : - = + * # % @  from 0 to 1     right: sum of the row");
    draw(ctx, "causal", 0, 0, NULL);
    draw(ctx, "window of 3 keys, the token's own among them", 3, 0, NULL);
    draw(ctx, "chunks of 4 positions", 0, 4, NULL);
    draw(ctx, "causal, with a sink of logit 3", 0, 0, &sink);
    tr_ctx_free(ctx);
    return 0;
}

/* expected output:
blank: not seen     . : - = + * # % @  from 0 to 1     right: sum of the row

causal
  the  | @                  | 1.000
  cat  | . @                | 1.000
  sees | . . %              | 1.000
  the  | + . . +            | 1.000
  dog  | . : . . #          | 1.000
  and  | : . . : . *        | 1.000
  the  | - . . - . . -      | 1.000
  cat  | . = . . . . . =    | 1.000
  runs | . . : . . . . . *  | 1.000

window of 3 keys, the token's own among them
  the  | @                  | 1.000
  cat  | . @                | 1.000
  sees | . . %              | 1.000
  the  |   . . %            | 1.000
  dog  |     . . %          | 1.000
  and  |       : . #        | 1.000
  the  |         . : #      | 1.000
  cat  |           . . %    | 1.000
  runs |             . . %  | 1.000

chunks of 4 positions
  the  | @                  | 1.000
  cat  | . @                | 1.000
  sees | . . %              | 1.000
  the  | + . . +            | 1.000
  dog  |         @          | 1.000
  and  |         . @        | 1.000
  the  |         . : #      | 1.000
  cat  |         : . . #    | 1.000
  runs |                 @  | 1.000

causal, with a sink of logit 3
  the  | =                  | 0.417
  cat  | . =                | 0.434
  sees | . . =              | 0.449
  the  | - . . -            | 0.605
  dog  | . . . . =          | 0.513
  and  | . . . . . -        | 0.554
  the  | : . . : . . :      | 0.713
  cat  | . - . . . . . -    | 0.652
  runs | . . . . . . . . -  | 0.556
*/
