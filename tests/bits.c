/* bits.c - runs models of the exact profile under many circumstances and prints what each comes
 * to, a line a prompt; tests/bits.sh and tests/isa.sh compare the lines of many builds.
 *
 *     bits ROOT WHAT CPU [MODEL]
 *
 * ROOT is laid out like tests/golden. WHAT:
 *     product   threads 1 2 3 7, each with pieces 1 7 16 64 all, each with batch 1 and 3
 *     cover     six runs in which every one of these values occurs
 *     short     the shortest prompt alone, for slow machines
 *     golden    the list of known answers, tests/golden/bits.txt
 *     taps      the hash of every tap, prompt 0 in one piece: to find out what differs first
 * CPU is best, base, avx2 or avx512. A line:
 *     model prompt threads piece batch cpu logits taps state
 * with the first sixteen digits of each hash. Exit code 2: this cpu is not to be had here. */
#define TRILLION_IMPLEMENTATION
#include "bits.h"

typedef struct setting { int threads; int64_t piece, B; } setting;

static const setting cover[] = {
    { 1, 0, 1 }, { 2, 7, 3 }, { 3, 16, 1 }, { 7, 64, 3 }, { 2, 1, 1 }, { 7, 0, 3 }
};
static const setting brief[] = { { 1, 0, 1 }, { 2, 7, 1 } };

static const char *root;

static int cell(tr_model *m, const char *model, setting s, int64_t prompt)
{
    tr_ctx *ctx = m->ctx;
    bits_cell c;
    bits_hash h[BITS_PROMPTS];
    char piece[24] = "all";
    c.piece = s.piece;
    c.B = s.B;
    c.prompt = prompt;
    if (s.piece) snprintf(piece, sizeof piece, "%lld", (long long)s.piece);
    if (bits_run(ctx, m, c, 0, h) != TR_OK) {
        printf("FAILED %s: %s\n", model, tr_err_last(ctx));
        return 1;
    }
    for (int64_t k = 0; k < s.B; k++)
        printf("%s %lld %d %s %lld %s %.16s %.16s %.16s\n", model, (long long)(prompt + k),
               s.threads, piece, (long long)s.B, tr_cpu_name(tr_ctx_cpu(ctx)), h[k].logits,
               h[k].taps, h[k].state);
    fflush(stdout);
    return 0;
}

/* One setting in a context of its own, since threads belong to the context. */
static int run(size_t model, tr_cpu cpu, setting s, int64_t prompt)
{
    char dir[1024];
    tr_ctx *ctx = bits_ctx(cpu, s.threads);
    tr_model *m;
    int bad;
    if (!ctx) return 1;
    snprintf(dir, sizeof dir, "%s/%s", root, bits_models[model].dir);
    bad = tr_model_open(ctx, &m, dir, NULL) != TR_OK;
    if (bad) printf("FAILED %s: %s\n", dir, tr_err_last(ctx));
    else bad = cell(m, bits_models[model].name, s, prompt);
    tr_model_close(m);
    tr_ctx_free(ctx);
    return bad;
}

static int product(size_t model, tr_cpu cpu)
{
    static const int threads[] = { 1, 2, 3, 7 };
    static const int64_t piece[] = { 1, 7, 16, 64, 0 };
    int bad = 0;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++)
            for (int B = 1; B <= BITS_PROMPTS; B += 2) {
                setting s;
                s.threads = threads[i];
                s.piece = piece[k];
                s.B = B;
                bad |= run(model, cpu, s, 0);
            }
    return bad;
}

/* Each prompt alone: what the sequences of a batch are held against. */
static int singles(size_t model, tr_cpu cpu)
{
    int bad = 0;
    for (int64_t p = 1; p < BITS_PROMPTS; p++) bad |= run(model, cpu, cover[0], p);
    return bad;
}

static int golden(size_t model)
{
    char dir[1024];
    tr_ctx *ctx = bits_ctx(TR_CPU_BEST, 1);
    tr_model *m;
    bits_hash h[BITS_PROMPTS];
    int bad = !ctx;
    if (bad) return bad;
    snprintf(dir, sizeof dir, "%s/%s", root, bits_models[model].dir);
    bad = tr_model_open(ctx, &m, dir, NULL) != TR_OK;
    for (int64_t p = 0; !bad && p < BITS_PROMPTS; p++) {
        bits_cell c;
        c.piece = 0;
        c.B = 1;
        c.prompt = p;
        bad = bits_run(ctx, m, c, 0, h) != TR_OK;
        if (!bad) printf("%s %lld %s %s %s\n", bits_models[model].name, (long long)p, h[0].logits,
                         h[0].taps, h[0].state);
    }
    if (bad) fprintf(stderr, "FAILED %s: %s\n", dir, tr_err_last(ctx));
    tr_model_close(m);
    tr_ctx_free(ctx);
    return bad;
}

static int taps(size_t model, tr_cpu cpu)
{
    char dir[1024];
    tr_ctx *ctx = bits_ctx(cpu, 1);
    tr_model *m;
    bits_cell c;
    bits_hash h;
    int bad = !ctx;
    if (bad) return bad;
    c.piece = 0;
    c.B = 1;
    c.prompt = 0;
    snprintf(dir, sizeof dir, "%s/%s", root, bits_models[model].dir);
    bad = tr_model_open(ctx, &m, dir, NULL) != TR_OK || bits_run(ctx, m, c, 1, &h) != TR_OK;
    if (bad) printf("FAILED %s: %s\n", dir, tr_err_last(ctx));
    tr_model_close(m);
    tr_ctx_free(ctx);
    return bad;
}

static int all(const char *what, size_t model, tr_cpu cpu)
{
    int bad = 0;
    if (!strcmp(what, "golden")) return golden(model);
    if (!strcmp(what, "taps")) return taps(model, cpu);
    if (!strcmp(what, "product")) return product(model, cpu) | singles(model, cpu);
    if (!strcmp(what, "short")) {
        for (size_t i = 0; i < sizeof brief / sizeof brief[0]; i++)
            bad |= run(model, cpu, brief[i], BITS_PROMPTS - 1);
        return bad;
    }
    for (size_t i = 0; i < sizeof cover / sizeof cover[0]; i++) bad |= run(model, cpu, cover[i], 0);
    return bad | singles(model, cpu);
}

int main(int argc, char **argv)
{
    tr_ctx_opts o;
    tr_ctx *ctx;
    tr_status s;
    int bad = 0;
    memset(&o, 0, sizeof o);
    if (argc < 4) {
        fprintf(stderr, "usage: bits ROOT product|cover|short|golden|taps CPU [MODEL]\n");
        return 3;
    }
    root = argv[1];
    while (o.cpu < TR_CPU_COUNT && strcmp(tr_cpu_name(o.cpu), argv[3]))
        o.cpu = (tr_cpu)((int)o.cpu + 1);
    s = tr_ctx_new(&ctx, &o);
    if (s != TR_OK) printf("%s\n", tr_err_last(ctx));
    tr_ctx_free(ctx);
    if (s != TR_OK) return 2;
    if (!strcmp(argv[2], "golden"))
        printf("# contract %s; see tests/bits.h for what is hashed\n"
               "# model prompt logits taps state\n", TR_CONTRACT);
    for (size_t i = 0; i < BITS_MODELS; i++)
        if (argc < 5 || !strcmp(argv[4], bits_models[i].name)) bad |= all(argv[2], i, o.cpu);
    return bad;
}
