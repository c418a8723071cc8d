/* bench_image.c - the side of tools/bench_image.py that is ours: PROCESSOR.json RGB W H PILLOW;
 * for every line of stdin, one preprocessing of the picture, its milliseconds and the values'
 * SHA-256 */

#define TRILLION_IMPLEMENTATION
#include "../trillion.h"
#include "image.h"

#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    tr_ctx *ctx = NULL;
    tr_ctx_opts o;
    img_proc p;
    img m;
    img_pixels x;
    char line[64], hex[65];
    size_t n;
    FILE *f;
    memset(&o, 0, sizeof o);
    memset(&m, 0, sizeof m);
    o.threads = 1;
    if (argc != 6 || tr_ctx_new(&ctx, &o) != TR_OK) return 2;
    if (img_proc_load(ctx, &p, argv[1], NULL, 0) != TR_OK ||
        img_alloc(ctx, &m, IMG_RGB, atol(argv[3]), atol(argv[4])) != TR_OK) {
        fprintf(stderr, "%s\n", tr_err_last(ctx));
        return 2;
    }
    n = (size_t)(m.w * m.h * 3);
    f = fopen(argv[2], "rb");
    if (!f || fread(m.px, 1, n, f) != n) return 2;
    fclose(f);
    while (fgets(line, sizeof line, stdin)) {
        double begun = now();
        if (img_process(ctx, &p, &m, (img_pillow)atoi(argv[5]), &x) != TR_OK) return 2;
        begun = now() - begun;
        tr_view_sha256(tr_view2(x.values, TR_F32, x.grid.patches, x.grid.patch_len), hex);
        img_pixels_free(ctx, &x);
        printf("%.3f %s\n", 1e3 * begun, hex);
        fflush(stdout);
    }
    img_free(ctx, &m);
    tr_ctx_free(ctx);
    return 0;
}
