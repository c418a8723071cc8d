/* test_bits.c - the exact profile against the known answers of tests/golden/bits.txt: threads,
 * pieces, batch and every cpu that this machine has. `make check-bits` does the same for more of
 * each, and for many compilers. */
#define TRILLION_IMPLEMENTATION
#include "test.h"
#include "bits.h"

static const char *root = "tests/golden";

static void one_model(size_t model, tr_cpu cpu, int threads, const bits_cell *cell, int cells)
{
    char dir[1024];
    tr_ctx *ctx = bits_ctx(cpu, threads);
    tr_model *m;
    CHECK(ctx);
    if (!ctx) return;
    snprintf(dir, sizeof dir, "%s/%s", root, bits_models[model].dir);
    CHECK_OK(ctx, tr_model_open(ctx, &m, dir, NULL));
    for (int i = 0; m && i < cells; i++) {
        bits_hash got[BITS_PROMPTS], want;
        memset(got, 0, sizeof got);
        CHECK_OK(ctx, bits_run(ctx, m, cell[i], 0, got));
        for (int64_t k = 0; k < cell[i].B; k++) {
            int known = bits_known(root, bits_models[model].name, cell[i].prompt + k, &want);
            if (known && bits_equal(&got[k], &want)) continue;
            test_bad++;
            printf("  %s, prompt %d: %d threads, pieces of %d, batch of %d, %s: %s differ\n",
                   bits_models[model].name, (int)(cell[i].prompt + k), threads, (int)cell[i].piece,
                   (int)cell[i].B, tr_cpu_name(tr_ctx_cpu(ctx)),
                   !known ? "no known answer: all" : strcmp(got[k].logits, want.logits) ? "logits"
                   : strcmp(got[k].taps, want.taps) ? "taps" : "states");
        }
    }
    tr_model_close(m);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* Pieces of 7 and all x batch of 1 and 2, the longest prompt left to cpus(); two of these also with
 * 1 and 7 threads. */
static void threads_pieces_batch(void)
{
    static const bits_cell cell[] = { { 7, 2, 1 }, { 0, 1, 2 }, { 0, 2, 1 }, { 7, 1, 2 } };
    for (size_t m = 0; m < BITS_MODELS; m++) {
        one_model(m, TR_CPU_BEST, 1, cell, 2);
        one_model(m, TR_CPU_BEST, 2, cell, 4);
        one_model(m, TR_CPU_BEST, 7, cell, 2);
    }
}

/* The longest prompt on each cpu that is here; all three at once on the best. */
static void cpus(void)
{
    static const bits_cell one[] = { { 64, 1, 0 } }, three[] = { { 16, 3, 0 } };
    tr_ctx *ctx = bits_ctx(TR_CPU_BEST, 1);
    tr_cpu best = ctx ? tr_ctx_cpu(ctx) : TR_CPU_BASE;
    tr_ctx_free(ctx);
    for (size_t m = 0; m < BITS_MODELS; m++) {
        for (int c = TR_CPU_BASE; c < (int)best; c++) one_model(m, (tr_cpu)c, 2, one, 1);
        one_model(m, best, 3, three, 1);
    }
    printf("  up to %s\n", tr_cpu_name(best));
}

/* The list belongs to this version of the contract. */
static void list(void)
{
    char path[1024], want[64], line[256] = "";
    FILE *f;
    snprintf(path, sizeof path, "%s/bits.txt", root);
    snprintf(want, sizeof want, "# contract %s;", TR_CONTRACT);
    f = fopen(path, "r");
    CHECK(f && fgets(line, sizeof line, f) && !strncmp(line, want, strlen(want)));
    if (f) fclose(f);
}

int main(int argc, char **argv)
{
    bits_hash h;
    if (argc > 1) root = argv[1];
    if (!bits_known(root, bits_models[0].name, 0, &h)) {
        printf("skipped: %s has no bits.txt\n", root);
        return test_end();
    }
    TEST(list);
    TEST(threads_pieces_batch);
    TEST(cpus);
    return test_end();
}
