/* One fault of one rank, at a given layer and step, while several ranks run a small model. What the
 * others say, and when, is looked at by tests/mpi_faults.sh.
 *
 *     mpirun -np N build/tests/mpi_faults DIR LAYOUT DEADLINE FAULT RANK LAYER [TIMES [FETCH]]
 *
 * FAULT is none, kill, stop, slow (1.5 deadlines), pause (half of one), fail (its own sentence),
 * nan (among the logits of a router), branch (a step that the others do not take), circle (each
 * rank waits for the next). Each rank prints whose failure it found or was told, and its sentence
 * with the seconds since the fault, on stderr. TIMES repeats the job, for none. Experts that FETCH
 * tokens want come to them. */
#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "../trillion_mpi.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct fault {
    const char *name;
    int     rank, layer, done;
    double  deadline, at;
    tr_mpi *m;
} fault;

static void on_event(void *user, const tr_mpi_event *e)
{
    static const char *const cause[] = { "own", "unlike", "late", "deadlock", "mpi" };
    fault *f = (fault *)user;
    if (e->kind == TR_MPI_EVENT_FAIL)
        fprintf(stderr, "failure of rank %d, %s\n", e->rank, cause[e->cause]);
    if (f->done || !f->m || e->layer != f->layer || e->kind != TR_MPI_EVENT_STEP) return;
    if (tr_mpi_rank(f->m) != f->rank && strcmp(f->name, "circle") != 0) return;
    f->done = 1;
    f->at = MPI_Wtime();
    if (!strcmp(f->name, "kill")) raise(SIGKILL);
    if (!strcmp(f->name, "stop")) raise(SIGSTOP);
    if (!strcmp(f->name, "slow") || !strcmp(f->name, "pause")) {
        double end = f->at + f->deadline * (*f->name == 's' ? 1.5 : 0.5);
        while (MPI_Wtime() < end) { }
    }
    if (!strcmp(f->name, "branch")) {
        int64_t x = 0;
        (void)tr_mpi_bcast(f->m, TR_MPI_ALL, TR_MPI_CONTROL, "another step", f->rank, &x, sizeof x);
    }
    if (!strcmp(f->name, "circle")) {
        int64_t x = 0;
        tr_mpi_part next = { (tr_mpi_rank(f->m) + 1) % tr_mpi_size(f->m), &x, sizeof x };
        (void)tr_mpi_exchange(f->m, TR_MPI_CONTROL, "circle", NULL, 0, &next, 1);
    }
}

static tr_status fail_tap(void *user, tr_ctx *ctx, const tr_tap *t)
{
    fault *f = (fault *)user;
    char want[64];
    snprintf(want, sizeof want, "layers.%d", f->layer);
    return strstr(t->name, want) ? tr_fail(ctx, TR_ERR_IO, "%s: the disk is full", t->name) : TR_OK;
}

static tr_status job(tr_mpi *m, tr_mpi_model *mm, fault *f)
{
    int64_t T[4] = { 20, 3, 40, 9 };
    int32_t ids[72], id[4];
    tr_run_opts o = tr_run_opts_default();
    tr_mpi_run *r = NULL;
    tr_batch b;
    tr_status s;
    for (int i = 0; i < 72; i++) ids[i] = (int32_t)(i * 7 % 200);
    o.B = 4;
    o.max_tokens = 72;
    o.capacity = 64;
    b.B = 4;
    b.T = T;
    b.ids = ids;
    f->m = m;
    s = tr_mpi_run_new(m, &r, mm, &o);
    if (s == TR_OK && !strcmp(f->name, "fail") && tr_mpi_rank(m) == f->rank) {
        tr_mpi_run_part(r)->opts.tap = fail_tap;
        tr_mpi_run_part(r)->opts.tap_user = f;
    }
    if (s == TR_OK && !strcmp(f->name, "nan") && tr_mpi_rank(m) == f->rank) {
        tr_model *part = tr_mpi_model_part(mm);
        if (f->layer >= part->first && f->layer < part->first + part->layers) {
            float *w = (float *)part->layer[f->layer - part->first].vec_f32[TR_W_NORM2].data;
            w[3] = (float)NAN;
        }
    }
    if (s == TR_OK) s = tr_mpi_forward(r, &b, NULL);
    for (int i = 0; s == TR_OK && i < 4; i++) {
        s = tr_mpi_next(r, id);
        for (int k = 0; k < 4; k++) T[k] = 1;
        b.ids = id;
        if (s == TR_OK) s = tr_mpi_forward(r, &b, NULL);
    }
    if (s == TR_OK) s = tr_mpi_next(r, id);
    if (s == TR_OK && !tr_mpi_rank(m)) printf("%d %d %d %d\n", id[0], id[1], id[2], id[3]);
    tr_mpi_run_free(r);
    return s;
}

static tr_status open_model(tr_mpi *m, tr_mpi_model **out, const char *dir, int64_t fetch)
{
    tr_ctx *ctx = tr_mpi_ctx(m);
    tr_config c;
    tr_mpi_map map;
    tr_status s = tr_config_load(ctx, &c, dir, NULL);
    if (s != TR_OK) return s;
    s = tr_mpi_map_even(ctx, &map, &c, tr_mpi_group_of(m, TR_MPI_IN_STAGE).n);
    map.fetch = fetch;
    map.keep = 2;
    if (s == TR_OK) s = tr_mpi_model_open(m, out, dir, NULL, &map);
    tr_mpi_map_free(ctx, &map);
    tr_config_free(ctx, &c);
    return s;
}

int main(int argc, char **argv)
{
    tr_ctx *ctx;
    tr_ctx_opts co;
    tr_mpi_opts o;
    tr_mpi *m = NULL;
    tr_mpi_model *mm = NULL;
    fault f;
    int n, rank, times;
    tr_status s;
    double begun;
    if (argc < 7) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(&f, 0, sizeof f);
    f.deadline = atof(argv[3]);
    f.name = argv[4];
    f.rank = atoi(argv[5]);
    f.layer = atoi(argv[6]);
    times = argc > 7 ? atoi(argv[7]) : 1;
    memset(&co, 0, sizeof co);
    co.threads = 1;
    if (tr_ctx_new(&ctx, &co) != TR_OK) return 2;
    memset(&o, 0, sizeof o);
    o.deadline = f.deadline;
    o.segment = 4000;
    o.event = on_event;
    o.event_user = &f;
    s = tr_mpi_layout_parse(ctx, &o.layout, argv[2], n);
    if (s == TR_OK) s = tr_mpi_new(ctx, &m, MPI_COMM_WORLD, &o);
    if (s == TR_OK) s = open_model(m, &mm, argv[1], argc > 8 ? atoi(argv[8]) : 0);
    begun = MPI_Wtime();
    for (int i = 0; s == TR_OK && i < times; i++) s = job(m, mm, &f);
    if (s != TR_OK) {
        fprintf(stderr, "rank %d after %.1f s: %s\n", rank, MPI_Wtime() - begun, tr_err_last(ctx));
        tr_mpi_free(m);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0 && times > 1) printf("%d jobs, %zu bytes held\n", times, tr_ctx_peak_bytes(ctx));
    tr_mpi_model_close(mm);
    tr_mpi_free(m);
    tr_ctx_free(ctx);
    MPI_Finalize();
    return 0;
}
