/* cc -std=c11 -O2 -ffp-contract=off -I. docs/exercises/25-cfg.c -o build/ex25 -lm && build/ex25
 *
 * Exercise for docs/25-cfg.md. Fill kind[0 .. layers) with 'k' for a layer that the list kda
 * names and 'm' for one that the list full names. Lists count from 1 and end in 0. Return 1; or 0
 * if some layer is in both or in neither, or a list names one that does not exist, or one twice. */

#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include <stdio.h>
#include <string.h>

static int make_layers(char *kind, int layers, const int *kda, const int *full);

#ifndef SOLUTION
/* ---- complete this ------------------------------------------------------- */
static int make_layers(char *kind, int layers, const int *kda, const int *full)
{
    (void)kda;
    for (int l = 0; l < layers; l++) kind[l] = 'k';
    for (int i = 0; full[i]; i++) kind[full[i]] = 'm';
    return 1;
}
/* -------------------------------------------------------------------------- */
#endif

static int refused(const char *what, const int *kda, const int *full)
{
    char kind[64] = "";
    if (!make_layers(kind, 4, kda, full)) return 1;
    printf("missing: 4 layers, %s: not refused\n", what);
    return 0;
}

int main(void)
{
    static const int a[] = { 1, 2, 3, 0 }, b[] = { 4, 0 }, both[] = { 3, 4, 0 }, none[] = { 0 },
                     beyond[] = { 4, 5, 0 }, twice[] = { 4, 4, 0 };
    int kda[64] = { 0 }, full[64] = { 0 };
    char kind[64] = "", want[64] = "";
    tr_ctx *ctx;
    tr_config c;
    if (tr_ctx_new(&ctx, NULL)) return 2;
    if (tr_config_load(ctx, &c, "tests/golden/kimi_k3/text-a", NULL)) return 2;
    for (int64_t i = 0; i < c.kda_layers.n; i++) kda[i] = (int)c.kda_layers.v[i];
    for (int64_t i = 0; i < c.full_layers.n; i++) full[i] = (int)c.full_layers.v[i];
    for (int64_t l = 0; l < c.layers; l++) want[l] = c.layer[l].mixer == TR_MIXER_KDA ? 'k' : 'm';
    if (!make_layers(kind, (int)c.layers, kda, full) || memcmp(kind, want, (size_t)c.layers)) {
        printf("missing: the layers are %s, yours %.*s\n", want, (int)c.layers, kind);
        return 1;
    }
    tr_config_free(ctx, &c);
    tr_ctx_free(ctx);
    if (!refused("layer 3 in both lists", a, both) || !refused("layer 4 in neither", a, none) ||
        !refused("a list names layer 5", a, beyond) ||
        !refused("a list names layer 4 twice", a, twice))
        return 1;
    if (!make_layers(kind, 4, a, b)) return printf("missing: kkkm is refused\n"), 1;
    printf("right\n");
    return 0;
}

/* ---- solution ------------------------------------------------------------ */
#ifdef SOLUTION
static int make_layers(char *kind, int layers, const int *kda, const int *full)
{
    memset(kind, 0, (size_t)layers);
    for (int list = 0; list < 2; list++)
        for (const int *l = list ? full : kda; *l; l++) {
            if (*l < 1 || *l > layers || kind[*l - 1]) return 0;
            kind[*l - 1] = list ? 'm' : 'k';
        }
    for (int l = 0; l < layers; l++)
        if (!kind[l]) return 0;
    return 1;
}
#endif
