/* The same bits from any number of ranks in any layout: logits, every tap, and the state after the
 * prompt and after three more tokens, held against what one rank without MPI computes.
 *
 *     mpirun -np N build/tests/mpi_bits [MODEL|all|mistakes] [LAYOUT|all] [THREADS] [long]
 *
 * One launch goes through all layouts of N ranks, the models and the batches. Rank 0 prints one
 * line a (model, layout) and the sum. */
#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "../trillion_mpi.h"

#include <stdlib.h>

#define GOLDEN "tests/golden/"

enum { MODELS = 7, BATCHES = 4, MOST_B = 34, MOST_N = 1300, LATER = 3, MOST_IM = 4 };

/* first: the layer that the ranks begin with; what enters it, a run of those before it leaves. */
static const struct { const char *name, *dir; int64_t first; } models[MODELS] = {
    { "kimi_k3", GOLDEN "kimi_k3/text-c", 0 },
    { "kimi_k3_part", GOLDEN "kimi_k3/text-c", 3 },         /* and two block sums */
    { "kimi_k3_images", GOLDEN "kimi_k3/multimodal", 0 },
    { "deepseek_v3", GOLDEN "families/deepseek_v3", 0 },
    { "deepseek_v3_fp8", GOLDEN "families/deepseek_v3_fp8", 0 },
    { "llama", GOLDEN "families/llama", 0 },
    { "llama3", GOLDEN "families/llama3", 0 }
};

/* Lengths of the prompts (a list of 0: 1 to 5 in turn), tokens a call of each sequence, and what is
 * tapped: everything, or the default set, which leaves values between them in part. The third has
 * more sequences than a list of few values has room for, the last more rows than one segment of an
 * exchange; it goes with experts dealt by a load, two more on each rank. Experts that `fetch` tokens
 * want come to them. */
static const struct { int64_t B, len[4], piece, fetch; const char *glob; } batches[BATCHES] = {
    { 1, { 1 }, 1, 0, "*" },                /* most ranks have none */
    { 4, { 7, 1, 130, 9 }, 130, 0, "*" },
    { MOST_B, { 0 }, 5, 2, NULL },
    { 2, { 600, 560 }, 600, 150, NULL }
};

/* How many of them: the long one for experts on few ranks; the first two show what there is to see
 * of threads, which are the local operators' matter, and of many ranks without experts. */
static int batches_of(const tr_config *c, int k, int ranks, int threads)
{
    if (threads > 1 || (ranks > 4 && !c->experts)) return 2;
    return ranks > 3 || !c->experts || models[k].first ? BATCHES - 1 : BATCHES;
}

static int64_t length(int k, int64_t b)
{
    return batches[k].len[0] ? batches[k].len[b] : 1 + (3 * b + 2) % 5;
}

/* Placeholders of the prompts of kimi_k3_images, and their grids. */
static const struct { int64_t seq, at, grid[3]; } pictures[MOST_IM] = {
    { 0, 0, { 1, 4, 6 } }, { 1, 0, { 2, 2, 4 } }, { 2, 0, { 1, 2, 2 } }, { 2, 129, { 1, 6, 4 } }
};

typedef struct prompt {
    int64_t B, piece, T[MOST_B], N;
    int32_t id[MOST_N];
    tr_images im;
    int64_t grid[3 * MOST_IM];
    float  *pixels;
    const char *glob;           /* what is tapped */
} prompt;

static int passed, failed;

static int64_t longest(const prompt *p)
{
    int64_t n = 0;
    for (int64_t b = 0; b < p->B; b++) n = p->T[b] > n ? p->T[b] : n;
    return n;
}

static void must(tr_ctx *ctx, tr_status s, const char *what)
{
    if (s == TR_OK) return;
    fprintf(stderr, "%s: %s\n", what, tr_err_last(ctx));
    MPI_Abort(MPI_COMM_WORLD, 2);
}

/* Random prompts and, for a model that sees, pictures of multiples of 1/256 in them. */
static void prompt_new(tr_ctx *ctx, prompt *p, const tr_model *m, int k)
{
    const tr_config *c = &m->cfg;
    int32_t id[MOST_N];
    int64_t n = 0, P = c->vit_patch, at = 0, T[MOST_B];
    tr_batch b;
    memset(p, 0, sizeof *p);
    p->B = batches[k].B;
    p->piece = batches[k].piece;
    p->glob = batches[k].glob;
    for (int64_t s = 0; s < p->B; s++)
        for (int64_t t = 0; t < (p->T[s] = length(k, s)); t++, n++) {
            id[n] = (int32_t)(tr_rng_u64(7, (uint64_t)(k * 8 + s), (uint64_t)t) %
                              (uint64_t)c->vocab);
            if (c->vit_layers) id[n] -= id[n] == c->media.v[0];
        }
    p->N = n;
    memcpy(p->id, id, sizeof id);
    if (!c->vit_layers || m->first) return;
    for (int i = 0; i < MOST_IM; i++) {
        int64_t row = pictures[i].at;
        const int64_t *g = pictures[i].grid;
        if (pictures[i].seq >= p->B || pictures[i].at >= p->T[pictures[i].seq]) continue;
        for (int64_t s = 0; s < pictures[i].seq; s++) row += p->T[s];
        id[row] = (int32_t)c->media.v[0];
        memcpy(p->grid + 3 * p->im.n++, g, 3 * sizeof *g);
        at += g[0] * g[1] * g[2];
    }
    p->pixels = (float *)malloc((size_t)(at * 3 * P * P) * sizeof *p->pixels);
    if (!p->pixels) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int64_t i = 0; i < at * 3 * P * P; i++)
        p->pixels[i] = (float)((int64_t)(tr_rng_u64(8, 0, (uint64_t)i) % 513) - 256) * 0.00390625f;
    p->im.pixels = tr_view4(p->pixels, TR_F32, at, 3, P, P);
    p->im.grid = p->grid;
    b.B = p->B;
    for (int64_t s = 0; s < p->B; s++) T[s] = p->T[s];
    b.T = T;
    b.ids = id;
    must(ctx, tr_expand_images(ctx, p->T, p->id, c, &p->im, &b), "pictures");
    p->N = 0;
    for (int64_t s = 0; s < p->B; s++) p->N += p->T[s];
}

/* Either kind of run; front: of the layers before it, NULL if there are none. */
typedef struct either { tr_run *one; tr_mpi_run *many; tr_run *front; } either;

/* What the front's last call left: of all its N tokens. */
static tr_hidden left_by(const tr_run *front)
{
    tr_hidden h = front->hidden;
    h.h = tr_view_slice(h.h, 0, 0, front->N);
    h.snaps = tr_view_slice(tr_view_slice(h.snaps, 0, 0, h.n), 1, 0, front->N);
    return h;
}

static tr_status forward(const either *e, const tr_batch *b)
{
    tr_hidden h;
    tr_status s = e->front ? tr_forward(e->front, b, NULL) : TR_OK;
    if (s != TR_OK) return s;
    if (e->front) h = left_by(e->front);
    return e->many ? tr_mpi_forward(e->many, b, e->front ? &h : NULL)
                   : tr_forward(e->one, b, e->front ? &h : NULL);
}

static tr_status next(const either *e, const tr_batch *b, int32_t *id)
{
    if (e->many) return tr_mpi_next(e->many, id);
    for (int64_t s = 0; s < b->B; s++)
        if (b->T[s]) id[s] = tr_argmax(tr_view_at(e->one->logits, s));
    return TR_OK;
}

/* The prompt in pieces, then tokens chosen, then the state. */
static tr_status go(const either *e, const prompt *p)
{
    int64_t T[MOST_B];
    int32_t ids[MOST_N], id[MOST_B] = { 0 };
    tr_batch b;
    tr_status s = TR_OK;
    b.B = p->B;
    b.T = p->T;
    b.ids = p->id;
    if (p->im.n) s = e->many ? tr_mpi_see(e->many, &p->im, &b) : tr_vit_forward(e->one, &p->im, &b);
    b.T = T;
    b.ids = ids;
    for (int64_t done = 0; s == TR_OK && done < longest(p); done += p->piece) {
        int64_t n = 0, at = 0;
        for (int64_t k = 0; k < p->B; at += p->T[k++]) {
            int64_t left = p->T[k] - done;
            T[k] = left < 0 ? 0 : left < p->piece ? left : p->piece;
            if (T[k]) memcpy(ids + n, p->id + at + done, (size_t)T[k] * sizeof *ids);
            n += T[k];
        }
        s = forward(e, &b);
        if (s == TR_OK) s = next(e, &b, id);
    }
    for (int i = 0; s == TR_OK && i < LATER; i++) {
        int64_t n = 0;
        for (int64_t k = 0; k < p->B; k++) {
            T[k] = (k + i) % 3 != 2 || p->B == 1;           /* not all of them every time */
            if (T[k]) ids[n++] = id[k];
        }
        s = forward(e, &b);
        if (s == TR_OK) s = next(e, &b, id);
    }
    if (s != TR_OK) return s;
    return e->many ? tr_mpi_tap_state(e->many) : tr_tap_state(e->one);
}

static tr_run_opts opts_of(tr_ctx *ctx, const tr_config *c, const prompt *p, tr_golden *g,
                           const char *profile)
{
    tr_run_opts o = tr_run_opts_default();
    o.profile = tr_profile_find(profile);
    o.B = p->B;
    o.max_tokens = p->B * p->piece;
    o.capacity = longest(p) + LATER;
    o.tap = tr_golden_tap;
    o.tap_user = g;
    o.globs = &p->glob;
    o.n_globs = p->glob != NULL;
    if (p->im.n) must(ctx, tr_run_opts_images(ctx, &o, c, &p->im), "pictures");
    return o;
}

static tr_run *front_new(tr_ctx *ctx, tr_model *front, const prompt *p, const char *profile)
{
    tr_run *r = NULL;
    tr_run_opts o;
    if (!front) return NULL;
    o = opts_of(ctx, &front->cfg, p, NULL, profile);
    o.tap = NULL;
    must(ctx, tr_run_new(ctx, &r, front, &o), "the layers before");
    return r;
}

static void golden_new(tr_ctx *ctx, tr_golden *g, const prompt *p)
{
    int64_t T[MOST_B];
    for (int64_t b = 0; b < p->B; b++) T[b] = p->T[b] + LATER;
    must(ctx, tr_golden_new(ctx, g, p->B, T), "golden");
}

/* How many tensors differ; the first by name. */
static int differ(const tr_golden *want, const tr_golden *got, const char *title)
{
    int bad = want->n != got->n;
    if (bad) printf("  %s: %lld tensors, expected %lld\n", title, (long long)got->n,
                    (long long)want->n);
    for (int64_t i = 0; i < want->n; i++) {
        char a[65], b[65] = "nothing";
        tr_view v = tr_golden_find(got, want->item[i].name);
        tr_view_sha256(want->item[i].x, a);
        if (!tr_view_is_none(v)) tr_view_sha256(v, b);
        if (!strcmp(a, b) && (i >= got->n || !strcmp(got->item[i].name, want->item[i].name)))
            continue;
        if (bad++ < 3) printf("  %s: %s: %.12s, expected %.12s%s\n", title, want->item[i].name, b,
                              a, strcmp(a, b) ? "" : " (the order differs)");
    }
    return bad;
}

static tr_model_opts part_of(int k)
{
    tr_model_opts o;
    memset(&o, 0, sizeof o);
    o.first = models[k].first;
    return o;
}

/* The model again, as batch b wants it: experts evenly, or by a load that some of them have most
 * of. */
static tr_mpi_model *again(tr_ctx *ctx, tr_mpi *m, tr_mpi_model *mm, int k, int b)
{
    tr_model_opts part = part_of(k);
    const tr_config *c = &tr_mpi_model_part(mm)->cfg;
    int64_t n = c->layers * c->experts;
    int places = tr_mpi_group_of(m, TR_MPI_IN_STAGE).n;
    int64_t *load = (int64_t *)malloc((size_t)(n + 1) * sizeof *load);
    tr_mpi_map map;
    if (!load) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int64_t i = 0; i < n; i++) load[i] = (int64_t)(tr_rng_u64(9, 0, (uint64_t)i) % 100);
    must(ctx, b == BATCHES - 1 ? tr_mpi_map_by_load(ctx, &map, c, places, load, 2)
                               : tr_mpi_map_even(ctx, &map, c, places), "map");
    map.fetch = batches[b].fetch;
    map.keep = b == BATCHES - 1 ? 3 : 200;          /* they make room, or all stay */
    tr_mpi_model_close(mm);
    must(ctx, tr_mpi_model_open(m, &mm, models[k].dir, &part, &map), models[k].dir);
    tr_mpi_map_free(ctx, &map);
    free(load);
    return mm;
}

/* Bytes that all ranks have fetched must be some if there are places to fetch from, and else none. */
static int fetched(tr_mpi *m, const tr_mpi_model *mm, int64_t fetch)
{
    const tr_model *part = tr_mpi_model_part(mm);
    uint64_t mine = tr_mpi_counted(m, TR_MPI_FETCH).bytes, all;
    int want = fetch && part->cfg.experts && tr_mpi_group_of(m, TR_MPI_IN_STAGE).n > 1;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if ((all > 0) == want) return 0;
    if (!tr_mpi_rank(m)) printf("  %d bytes of experts were fetched\n", (int)all);
    return 1;
}

static void run_layout(tr_ctx *ctx, int k, tr_mpi_layout l, const char *profile, tr_model *front,
                       tr_golden *want, prompt *p)
{
    tr_model_opts part = part_of(k);
    tr_mpi_opts o;
    tr_mpi *m;
    tr_mpi_model *mm;
    int bad = 0, rank;
    char text[64];
    size_t before = tr_ctx_bytes(ctx);
    memset(&o, 0, sizeof o);
    o.layout = l;
    o.deadline = 60;
    o.segment = 3000;
    must(ctx, tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o), "tr_mpi_new");
    rank = tr_mpi_rank(m);
    must(ctx, tr_mpi_model_open(m, &mm, models[k].dir, &part, NULL), models[k].dir);
    for (int b = 0; b < batches_of(&tr_mpi_model_part(mm)->cfg, k, tr_mpi_size(m),
                                   tr_par_threads(ctx)); b++) {
        const tr_config *c = &tr_mpi_model_part(mm)->cfg;
        tr_golden got;
        tr_run_opts ro;
        either e;
        memset(&e, 0, sizeof e);
        if (batches[b].fetch) {
            mm = again(ctx, m, mm, k, b);
            c = &tr_mpi_model_part(mm)->cfg;
        }
        golden_new(ctx, &got, &p[b]);
        ro = opts_of(ctx, c, &p[b], &got, profile);
        must(ctx, tr_mpi_run_new(m, &e.many, mm, &ro), "tr_mpi_run_new");
        e.front = front_new(ctx, front, &p[b], profile);
        must(ctx, go(&e, &p[b]), tr_mpi_layout_str(l, text));
        tr_mpi_run_free(e.many);
        tr_run_free(e.front);
        if (!rank) bad += differ(&want[b], &got, tr_mpi_layout_str(l, text));
        bad += fetched(m, mm, batches[b].fetch);
        tr_golden_free(ctx, &got);
    }
    tr_mpi_model_close(mm);
    tr_mpi_free(m);
    if (tr_ctx_bytes(ctx) != before) {
        printf("  rank %d: %zu bytes are held after the end, %zu before\n", rank, tr_ctx_bytes(ctx),
               before);
        bad++;
    }
    if (rank) return;
    printf("%s %-16s %-8s %s\n", bad ? "FAILED" : "ok", models[k].name, profile,
           tr_mpi_layout_str(l, text));
    fflush(stdout);
    if (bad) failed++;
    else passed++;
}

/* ---- What a caller does wrong with layers in part: each rank has the sentence. `rank`: that one
 * alone does it, -1: all. */

enum { ALL_WELL, NO_HIDDEN, FEW_SUMS, FEW_ROWS, NARROW_SUMS, OTHER_NUMBER, UNASKED, NO_LOGITS };

static const struct { int what, rank; int64_t first, layers; const char *words; } wrong[] = {
    { ALL_WELL,     -1, 5, 2, NULL },
    { NO_HIDDEN,    -1, 5, 2, "layer 5 needs the hidden state that enters it" },
    { NO_HIDDEN,     1, 5, 2, "layer 5 needs the hidden state that enters it" },
    { FEW_SUMS,     -1, 5, 2, "layer 5 needs 2 block sums, not 1" },
    { FEW_ROWS,     -1, 5, 2, "the hidden state given is not [5, 80]" },
    { NARROW_SUMS,  -1, 5, 2, "the block sums given are not [2, 5, 80]" },
    { OTHER_NUMBER,  1, 5, 2, "other batches of tokens or hidden states" },
    { UNASKED,      -1, 0, 2, "layer 0 is entered by the embedding" },
    { NO_LOGITS,    -1, 5, 2, "leads to; the model is open to layer 6" },
    { ALL_WELL,     -1, 7, 3, "layers 7 to 9 were asked for" },
    { ALL_WELL,      1, 5, 3, "rank 1 differs from rank 0 in the layers: 5 to 7; rank 0: 5 to 6" },
    { ALL_WELL,     -1, 8, 1, "1 layer (8 to 8) cannot be dealt to" },
};

/* One call over all ranks with the mistake i. Two sequences; the numbers say nothing. */
static tr_status err(tr_mpi *m, int i, int does)
{
    static float x[3 * 6 * 80];
    static const int32_t ids[5] = { 1, 2, 3, 4, 5 };
    static const int64_t T[2] = { 3, 2 };
    tr_model_opts part;
    tr_run_opts o = tr_run_opts_default();
    tr_mpi_model *mm = NULL;
    tr_mpi_run *r = NULL;
    tr_hidden in;
    tr_batch b;
    tr_status s;
    int what = does ? wrong[i].what : ALL_WELL;
    int32_t id[2];
    b.B = o.B = 2;
    b.T = T;
    b.ids = ids;
    memset(&part, 0, sizeof part);
    part.first = wrong[i].first;
    part.layers = does || wrong[i].what ? wrong[i].layers : 2;
    for (int k = 0; k < 3 * 6 * 80; k++) x[k] = (float)(k % 61) * 0.0625f - 1.5f;
    if (what == OTHER_NUMBER) x[7] += 1;
    in.h = tr_view2(x, TR_F32, what == FEW_ROWS ? 4 : 5, 80);
    in.snaps = tr_view3(x + 400, TR_F32, 2, 5, what == NARROW_SUMS ? 79 : 80);
    in.n = what == FEW_SUMS ? 1 : 2;
    s = tr_mpi_model_open(m, &mm, GOLDEN "kimi_k3/text-a", &part, NULL);
    if (s == TR_OK) s = tr_mpi_run_new(m, &r, mm, &o);
    if (s == TR_OK) s = tr_mpi_forward(r, &b, what == NO_HIDDEN ? NULL : &in);
    if (s == TR_OK && what == NO_LOGITS) s = tr_mpi_next(r, id);
    if (s == TR_OK) s = tr_mpi_agree(m, s);         /* who did no wrong hears of it here at last */
    tr_mpi_run_free(r);
    tr_mpi_model_close(mm);
    return s;
}

static void mistakes(void)
{
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        tr_ctx_opts threads;
        tr_mpi_opts o;
        tr_mpi *m;
        tr_ctx *ctx;                    /* stays: a tr_mpi that failed keeps what it has */
        tr_status s;
        int n, rank, fine, all;
        MPI_Comm_size(MPI_COMM_WORLD, &n);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (n <= wrong[i].rank || (n == 1 && wrong[i].first == 8)) continue;
        memset(&threads, 0, sizeof threads);
        threads.threads = 1;
        if (tr_ctx_new(&ctx, &threads) != TR_OK) MPI_Abort(MPI_COMM_WORLD, 2);
        memset(&o, 0, sizeof o);
        if (wrong[i].first == 8) o.layout.pp = n;
        else o.layout.ep = n;
        o.deadline = 20;
        must(ctx, tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o), "tr_mpi_new");
        s = err(m, i, wrong[i].rank < 0 || wrong[i].rank == rank);
        fine = wrong[i].words ? s != TR_OK && strstr(tr_err_last(ctx), wrong[i].words) != NULL
                              : s == TR_OK;
        if (!fine)
            printf("  rank %d: \"%s\", expected \"%s\"\n", rank, s ? tr_err_last(ctx) : "",
                   wrong[i].words ? wrong[i].words : "");
        tr_mpi_free(m);
        MPI_Allreduce(&fine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (all) passed += !rank;
        else failed += !rank;
        if (!rank) printf("%s %-16s %s\n", all ? "ok" : "FAILED", "mistakes",
                          wrong[i].words ? wrong[i].words : "none");
    }
    fflush(stdout);
}

static int wanted(const char *arg, const char *name)
{
    return !arg || !strcmp(arg, "all") || !strcmp(arg, name);
}

int main(int argc, char **argv)
{
    tr_ctx *ctx;
    tr_ctx_opts o;
    int n, rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(&o, 0, sizeof o);
    o.threads = argc > 3 ? atoi(argv[3]) : 1;
    if (argc > 1 && !strcmp(argv[1], "mistakes")) mistakes();
    if (tr_ctx_new(&ctx, &o) != TR_OK) return 2;
    for (int k = 0; k < MODELS; k++) {
        const char *profile = argc > 4 ? argv[4] : "exact";
        tr_golden want[BATCHES];
        prompt p[BATCHES];
        tr_model_opts part = part_of(k);
        tr_model *m, *front = NULL;
        if (!wanted(argc > 1 ? argv[1] : NULL, models[k].name)) continue;
        if (models[k].first && wanted(argc > 1 ? argv[1] : NULL, "all") &&
            (n > 4 || o.threads > 1)) continue;             /* by its name alone */
        must(ctx, tr_model_open(ctx, &m, models[k].dir, &part), models[k].dir);
        part.layers = part.first;
        part.first = 0;
        if (part.layers) must(ctx, tr_model_open(ctx, &front, models[k].dir, &part), "front");
        for (int b = 0; b < BATCHES; b++) {
            either e;
            tr_run_opts ro;
            memset(&e, 0, sizeof e);
            prompt_new(ctx, &p[b], m, b);
            golden_new(ctx, &want[b], &p[b]);
            if (rank || b >= batches_of(&m->cfg, k, n, o.threads)) continue;
            ro = opts_of(ctx, &m->cfg, &p[b], &want[b], profile);
            must(ctx, tr_run_new(ctx, &e.one, m, &ro), "tr_run_new");
            e.front = front_new(ctx, front, &p[b], profile);
            must(ctx, go(&e, &p[b]), "one rank");
            tr_run_free(e.one);
            tr_run_free(e.front);
        }
        for (int pp = 1; pp <= n; pp++)
            for (int tp = 1; tp <= n; tp++)
                for (int ep = 1; ep <= n; ep++) {
                    tr_mpi_layout l;
                    char text[64];
                    l.pp = pp;
                    l.tp = tp;
                    l.ep = ep;
                    l.cp = n / (pp * tp * ep);
                    if (!l.cp || pp * tp * ep * l.cp != n || pp > m->layers) continue;
                    if (!wanted(argc > 2 ? argv[2] : NULL, tr_mpi_layout_str(l, text))) continue;
                    run_layout(ctx, k, l, profile, front, want, p);
                }
        for (int b = 0; b < BATCHES; b++) {
            tr_golden_free(ctx, &want[b]);
            free(p[b].pixels);
        }
        tr_model_close(front);
        tr_model_close(m);
    }
    tr_ctx_free(ctx);
    if (!rank) printf("%d passed, %d failed\n", passed, failed);
    MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return failed != 0;
}
