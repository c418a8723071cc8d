/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/01-err.c -o build/ex01 -lm && build/ex01
 *
 * Exercise for docs/01-err.md. A test that lets every single allocation fail once. The program
 * below opens a checkpoint again and again; in round n the n-th request for memory (counted from
 * 0) must fail, and all before it succeed. You write the hook. Its four cases stand at
 * tr_alloc_fn. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct meter {
    long before_failure;    /* requests that still succeed; the one after them fails */
    size_t live;            /* bytes handed out and not yet given back: keep it up to date */
} meter;

static void *hook(void *user, void *ptr, size_t old_bytes, size_t new_bytes);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static void *hook(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    meter *m = (meter *)user;
    (void)m;
    (void)old_bytes;
    return realloc(ptr, new_bytes ? new_bytes : 1);     /* never fails, never frees */
}
/* -------------------------------------------------------------------------- */
#endif

static int wrong(const char *what, long round)
{
    printf("missing: round %ld: %s\n", round, what);
    return 1;
}

int main(void)
{
    for (long round = 0; ; round++) {
        meter m = { round, 0 };
        tr_ctx_opts o = { hook, &m, NULL, NULL, 1 };
        tr_ctx *ctx;
        tr_model *model = NULL;
        tr_status s = tr_ctx_new(&ctx, &o);
        if (round == 0 && s == TR_OK) return wrong("the first request did not fail", round);
        if (s == TR_OK) {
            s = tr_model_open(ctx, &model, "tests/golden/kimi_k3/text-a", NULL);
            if (s == TR_OK && m.live < 100000) return wrong("live bytes are not counted", round);
            if (s != TR_OK && s != TR_ERR_MEMORY) return wrong(tr_err_last(ctx), round);
            tr_model_close(model);
            tr_ctx_free(ctx);
        }
        if (m.live) return wrong("bytes were not given back, or not counted as given back", round);
        if (s != TR_OK) continue;
        if (round < 100) return wrong("opening needs more requests than that", round);
        printf("%s\n", "right");
        return 0;
    }
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static void *hook(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    meter *m = (meter *)user;
    void *p;
    if (new_bytes == 0) {
        m->live -= ptr ? old_bytes : 0;
        free(ptr);
        return NULL;
    }
    if (m->before_failure-- <= 0) return NULL;
    p = realloc(ptr, new_bytes);
    if (p) m->live += new_bytes - (ptr ? old_bytes : 0);
    return p;
}
#endif
