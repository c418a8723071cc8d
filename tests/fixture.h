/* fixture.h - tensors of the cases folder: tests/golden, or the folder in argv[1]. A tensor that
 * is missing or of another type ends the program; there is nothing to test without it. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "test.h"

static const char *fixture_root = "tests/golden";

static inline void fixture_args(int argc, char **argv) { if (argc > 1) fixture_root = argv[1]; }

static inline void fixture_open(tr_ctx *c, tr_st *f, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", fixture_root, name);
    if (tr_st_open(c, f, path, 0) == TR_OK) return;
    printf("FAILED %s: %s\n", path, tr_err_last(c));
    exit(1);
}

static inline tr_view fixture_view(const tr_st *f, const char *name, tr_dtype t)
{
    const tr_st_entry *e = tr_st_find(f, name);
    if (e && e->view.dtype == t) return e->view;
    printf("FAILED %s: %s is %s\n", f->path, name, e ? "of another type" : "missing");
    exit(1);
}

static inline const char *fixture_meta(const tr_st *f, const char *key)
{
    const char *s = tr_st_meta(f, key);
    if (s) return s;
    printf("FAILED %s: no %s in its metadata\n", f->path, key);
    exit(1);
}

#endif
