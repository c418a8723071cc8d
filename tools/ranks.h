/* ranks.h - {engine} of trillion.c over ranks: what golden and run ask of a model, and how a
 * program of many processes begins, speaks and ends
 *
 *     program_start     who the launcher says this is      program_alive   this rank goes on
 *     program_options   what can be said before MPI        program_end     all agree; rings removed
 *     program_begin     MPI, the ring                      program_fail    one sentence, all end
 *     program_ready     tr_mpi; who is where
 *
 * HOW IT FAILS   A rank whose own work fails tells the others by tr_mpi_raise; they find it when
 * they wait. Whoever comes to program_fail has a sentence. Rank 0 prints its own at once and says
 * so to the others; they wait for that a moment before they print theirs (rank 1 less long than
 * the rest, those who only heard of it longest). Then MPI_Abort ends those that compute or hang.
 * Before MPI_Init a rank hears nothing: what is wrong for all alike ends rank 0 at once, and then
 * the launcher the others, while they wait; a rank that is still there speaks.
 *
 * Part of trillion.c, after {open}. */

#ifndef RANKS_H
#define RANKS_H

#include <sched.h>
#include "ring.h"
#include "watch.h"

/* ============================================================================
 * Beginning, speaking, ending
 * ========================================================================= */

enum { RANKS_TAG_SAID = 1, RANKS_TAG_GO = 2 };

typedef struct node {               /* what a rank says of itself */
    char    host[64];
    int32_t cores, threads;         /* that it may use; that it asks for */
} node;

typedef struct world {
    int      rank, size, argc;
    int      launched;              /* rank and size are known before MPI */
    int      mpi, parsed;           /* MPI runs; the arguments are good */
    char   **argv;
    const char *run;                /* the launcher's name of it */
    MPI_Comm comm;                  /* of the tool's own messages */
    tr_mpi  *m;
    double   deadline, alive;       /* alive: when the others were last told */
    int      heard;                 /* another rank told of the failure */
    int      failed;                /* whose it is, -1: of whoever speaks; and its cause */
    tr_mpi_cause cause;
    int      blocked;               /* in a call of MPI that the watchdog looks at */
    ring     ring;
    tr_mpi_layout layout;
    char     rings[512];
    char     hint[600], told[600];  /* where they are, said once; the file of who says it */
    int      rings_stay;            /* they were asked for */
    int      local, first;          /* ranks of this machine; this is the first of them */
    node    *node;                  /* [size] on rank 0 */
    int      runs;                  /* a run has begun: rings may tell more than a sentence */
    int64_t  tokens;                /* of all forwards */
    double   read, mapped;          /* bytes, before the command began */
} world;

static world *world_of(const app *a) { return (world *)a->world; }
static int program_leads(const app *a) { return !a->follows; }

static void world_sleep(double seconds)
{
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static void program_start(app *a, int argc, char **argv)
{
    static world w;
    a->world = &w;
    w.argc = argc;
    w.argv = argv;
    w.comm = MPI_COMM_NULL;
    w.failed = -1;
    w.launched = watch_launched(&w.rank, &w.size, &w.run);
    a->follows = w.rank > 0;
}

/* ---- The folder of rings */

/* The path of the next ring in d, which is dir and may be NULL; 0: there are no more. */
static int rings_next(DIR *d, const char *dir, char path[1024])
{
    const struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        int n = 0;
        if (sscanf(e->d_name, "rank-%*5[0-9].ring%n", &n) < 0 || n == 0 || e->d_name[n]) continue;
        snprintf(path, 1024, "%s/%s", dir, e->d_name);
        return 1;
    }
    return 0;
}

static void rings_clear(const char *dir)
{
    char path[1024];
    DIR *d = opendir(dir);
    while (rings_next(d, dir, path)) remove(path);
    if (d) closedir(d);
    snprintf(path, sizeof path, "%s/told", dir);
    remove(path);
}

/* Those that still write to a ring keep it as long. */
static void rings_remove(const char *dir)
{
    rings_clear(dir);
    rmdir(dir);
}

/* ---- One sentence */

/* Says to all others that the sentence is on the screen, without waiting for any. */
static void world_said(world *w)
{
    static int word;
    MPI_Request r;
    for (int i = 0; i < w->size; i++)
        if (i != w->rank && MPI_Isend(&word, 1, MPI_INT, i, RANKS_TAG_SAID, w->comm, &r) ==
            MPI_SUCCESS) MPI_Request_free(&r);
}

/* Has another rank said so within these seconds? */
static int world_heard_said(world *w, double seconds)
{
    double until = now() + seconds;
    int there = 0;
    while (!there && now() < until) {
        if (MPI_Iprobe(MPI_ANY_SOURCE, RANKS_TAG_SAID, w->comm, &there, MPI_STATUS_IGNORE) !=
            MPI_SUCCESS) return 0;
        if (!there) world_sleep(0.002);
    }
    return there;
}

/* A file that cannot be used, found before anything ran: its sentence says all. */
static int rings_tell(const world *w)
{
    return w->ring.file && (w->runs || w->rings_stay || w->cause != TR_MPI_CAUSE_OWN);
}

/* A sentence that is another's names it, as does one that calls a rank late, or unlike another. */
static void world_print(const world *w, const char *sentence)
{
    if (w->rank && w->failed == w->rank && w->cause != TR_MPI_CAUSE_LATE &&
        w->cause != TR_MPI_CAUSE_UNLIKE)
        fprintf(stderr, PROGRAM ": rank %d: %s\n", w->rank, sentence);
    else fprintf(stderr, PROGRAM ": %s\n", sentence);
    fflush(stderr);
    if (rings_tell(w)) watch_say_hint();
}

/* It gives all ranks the same arguments, and lets the others go on when one ends. */
static int world_by_srun(void)
{
    return getenv("SLURM_PROCID") && !getenv("OMPI_COMM_WORLD_RANK");
}

static _Noreturn void program_fail(app *a, const char *sentence)
{
    world *w = world_of(a);
    int talks = w->mpi && w->comm != MPI_COMM_NULL, silent = 0, known = w->failed >= 0, code;
    if (!known) w->failed = w->rank;
    /* 2: what a rank was given; 1: what ranks are to each other */
    code = w->cause == TR_MPI_CAUSE_OWN || w->cause == TR_MPI_CAUSE_UNLIKE ? EXIT_UNUSABLE :
           EXIT_DIFFERS;
    ring_end(&w->ring, RING_FAILED, 0, w->failed, (ring_cause)w->cause, sentence);
    signal(SIGTERM, SIG_DFL);           /* the launcher may end what has ended itself */
    alarm(3);                           /* whatever MPI does from here on */
    if (w->m && !known) tr_mpi_raise(w->m, tr_fail(a->ctx, TR_ERR_PEER, "%s", sentence));
    if (w->rank && talks)
        silent = world_heard_said(w, w->heard ? 1.2 : w->rank == 1 ? 0.4 : 0.7);
    else if (w->rank) {                 /* what all do alike ends rank 0, and so all, before that */
        silent = !w->parsed && world_by_srun();
        world_sleep(2);
    }
    if (w->ring.file && !rings_tell(w)) rings_remove(w->rings);
    if (!silent) world_print(w, sentence);
    if (!silent && talks) world_said(w);
    if (w->mpi) {
        if (talks) world_heard_said(w, 0.05);       /* moves on what was said */
        if (silent) world_sleep(1);                 /* who printed it ends all */
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    _exit(code);
}

static void program_alive(app *a)
{
    world *w = world_of(a);
    double t = now();
    if (!w->m || w->size == 1 || t - w->alive < w->deadline / 8) return;
    w->alive = t;
    tr_mpi_alive(w->m);
}

/* What MPI says of a call that failed. */
static void must_mpi(app *a, int code, const char *what)
{
    world *w = world_of(a);
    char said[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, said, &n);
    w->failed = w->rank;
    w->cause = TR_MPI_CAUSE_MPI;
    die(a, "%s: %s", what, said);
}

/* ---- Rings */

_Static_assert((int)RING_END == (int)TR_MPI_EVENT_END && (int)RING_MPI == (int)TR_MPI_CAUSE_MPI,
               "kinds and causes of a ring are those of trillion_mpi.h");

/* Nothing to see for minutes, and why. */
static void world_waits(app *a, const tr_mpi_event *e)
{
    const world *w = world_of(a);
    char layer[32] = "";
    if (w->deadline < 20) return;       /* it is over soon */
    if (e->layer >= 0) snprintf(layer, sizeof layer, "layer %d, ", e->layer);
    progress_clear(a);
    fprintf(stderr, PROGRAM ": rank %d has waited more than %g s for rank %d in %s%s; all end at "
            "%g s\n", w->rank, w->deadline / 2, e->peer, layer, e->text, w->deadline);
}

static void world_event(void *user, const tr_mpi_event *e)
{
    app *a = (app *)user;
    world *w = world_of(a);
    if (w->blocked) watch_end();
    w->blocked = e->blocks;
    if (e->blocks) {
        watch_begin(e->text, w->deadline);
        return;
    }
    if (e->kind == TR_MPI_EVENT_HALF) {
        world_waits(a, e);
        return;
    }
    if (e->kind != TR_MPI_EVENT_FAIL) {
        ring_event(&w->ring, (ring_kind)e->kind, e->layer, e->peer, e->expected, e->arrived,
                   e->text);
        return;
    }
    w->heard = e->peer >= 0;
    w->failed = e->rank;
    w->cause = e->cause;
    ring_fail(&w->ring, e->layer, e->peer, e->rank, (ring_cause)e->cause, e->text);
}

/* A run of which a rank is still there on this machine keeps its folder. */
static tr_status rings_unused(tr_ctx *ctx, const char *dir)
{
    char path[1024];
    tr_status s = TR_OK;
    DIR *d = opendir(dir);
    while (s == TR_OK && rings_next(d, dir, path)) {
        int64_t pid = ring_writer(path);
        if (pid) s = tr_fail(ctx, TR_ERR_ARG, "%s is the ring of process %lld, which still runs: "
                             "--rings needs another folder for another run", path, (long long)pid);
    }
    if (d) closedir(d);
    return s;
}

/* Before there is a tr_mpi: how each rank did; the first sentence ends all. */
static void world_agree(app *a, tr_status s, tr_ctx *ctx)
{
    world *w = world_of(a);
    char sentence[1024] = "";
    int bad = s == TR_OK ? w->size : w->rank, first;
    watch_begin("the agreement on rings", w->deadline);
    must_mpi(a, MPI_Allreduce(&bad, &first, 1, MPI_INT, MPI_MIN, w->comm), "MPI_Allreduce");
    if (first < w->size) {
        if (s != TR_OK) snprintf(sentence, sizeof sentence, "%.900s", tr_err_last(ctx));
        must_mpi(a, MPI_Bcast(sentence, sizeof sentence, MPI_BYTE, first, w->comm), "MPI_Bcast");
        w->failed = first;
        w->heard = first != w->rank;
        if (w->heard) die(a, "rank %d: %s", first, sentence);
        die(a, "%s", sentence);
    }
    watch_end();
}

/* Rank 0 chooses the folder; all make it, as machines may not share it, and the first rank of each
 * looks whether another run is in it. */
static tr_status rings_folder(app *a, tr_ctx *ctx)
{
    world *w = world_of(a);
    const char *dir = opt(a, "--rings"), *tmp = getenv("TMPDIR");
    tr_status s = TR_OK;
    w->rings_stay = dir != NULL;
    if (w->rank == 0) {
        int n = dir ? snprintf(w->rings, sizeof w->rings, "%s", dir)
                    : snprintf(w->rings, sizeof w->rings, "%s/trillion-XXXXXX",
                               tmp && *tmp ? tmp : "/tmp");
        if (n < 0 || (size_t)n >= sizeof w->rings)
            s = tr_fail(ctx, TR_ERR_IO, "%s: no folder for the rings can be made: a path of %d "
                        "bytes, where %zu are allowed", dir ? "--rings" : "TMPDIR", n,
                        sizeof w->rings - 1);
        else if (!dir && !mkdtemp(w->rings))
            s = tr_fail(ctx, TR_ERR_IO, "%s: no folder for the rings can be made: %s; --rings DIR "
                        "names one", w->rings, strerror(errno));
    }
    if (s != TR_OK) w->rings[0] = 0;        /* the others make none */
    watch_begin("the first broadcast", w->deadline);
    must_mpi(a, MPI_Bcast(w->rings, sizeof w->rings, MPI_BYTE, 0, w->comm), "MPI_Bcast");
    watch_end();
    if (*w->rings && mkdir(w->rings, 0777) != 0 && errno != EEXIST)
        s = tr_fail(ctx, TR_ERR_IO, "%s: no folder for the rings can be made: %s", w->rings,
                    strerror(errno));
    return s == TR_OK && w->first ? rings_unused(ctx, w->rings) : s;
}

static void rings_begin(app *a, tr_ctx *ctx)
{
    world *w = world_of(a);
    char line[1024] = "", layout[64];
    ring_who who;
    world_agree(a, rings_folder(a, ctx), ctx);
    if (w->rank == 0) rings_clear(w->rings);    /* an earlier run's, perhaps of more ranks */
    world_agree(a, TR_OK, ctx);         /* nobody writes before that */
    for (int i = 1; i < w->argc; i++) {
        size_t n = strlen(line);
        snprintf(line + n, sizeof line - n, "%s%s", i > 1 ? " " : "", w->argv[i]);
    }
    memset(&who, 0, sizeof who);
    who.rank = w->rank;
    who.world = w->size;
    who.layout = tr_mpi_layout_str(w->layout, layout);
    who.command = line;
    who.run = w->run;
    world_agree(a, ring_create(ctx, &w->ring, w->rings, &who), ctx);
    watch_who(&w->ring, w->rank);
    snprintf(w->hint, sizeof w->hint, "`trillion postmortem %s` tells more", w->rings);
    snprintf(w->told, sizeof w->told, "%s/told", w->rings);
    watch_hint(w->hint, w->told);
    say(a, "events of the ranks go to %s%s; `trillion postmortem %s` reads them", w->rings,
        w->rings_stay ? "" : ", kept if the run fails", w->rings);
}

/* All ended well. The folder goes with the last ring in it. */
static void rings_end(world *w)
{
    char path[1024];
    ring_end(&w->ring, RING_ORDERLY, 0, RING_NOBODY, RING_OWN, "");
    if (w->rings_stay || !w->ring.file) return;
    if (ring_path(path, sizeof path, w->rings, w->rank)) remove(path);
    rmdir(w->rings);
}

/* ---- From start to end */

/* With a context of its own, for the program has none yet: that one knows of threads. */
static tr_ctx *world_layout(app *a)
{
    world *w = world_of(a);
    const char *layout = opt(a, "--layout");
    tr_ctx *ctx = NULL;
    tr_ctx_opts o;
    memset(&o, 0, sizeof o);
    o.threads = 1;
    if (layout && !*layout) die(a, "%s: --layout is empty", a->cmd->name);
    if (tr_ctx_new(&ctx, &o) != TR_OK) die(a, "%s", ctx ? tr_err_last(ctx) : "out of memory");
    if (tr_mpi_layout_parse(ctx, &w->layout, layout ? layout : "", w->size) != TR_OK)
        die(a, "%s: %s", a->cmd->name, tr_err_last(ctx));
    return ctx;
}

/* A launcher that does not say how many ranks there are leaves the layout to program_begin. */
static void program_options(app *a)
{
    world *w = world_of(a);
    if (w->launched) tr_ctx_free(world_layout(a));
    w->deadline = opt_num(a, "--deadline", 300);
    if (!(w->deadline > 0) || w->deadline > 1e8)
        die(a, "%s: --deadline '%s' is not a number of seconds above 0", a->cmd->name,
            opt(a, "--deadline"));
}

/* MPI runs, and this rank knows its number. */
static void world_init(app *a)
{
    world *w = world_of(a);
    int got = MPI_THREAD_SINGLE, e;
    watch_begin("MPI_Init", w->deadline);
    e = MPI_Init_thread(&w->argc, &w->argv, MPI_THREAD_FUNNELED, &got);
    watch_end();
    must_mpi(a, e, "MPI_Init_thread");
    w->mpi = 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->size);
    a->follows = w->rank > 0;
    if (a->follows && !freopen("/dev/null", "w", stdout)) die(a, "/dev/null: %s", strerror(errno));
    if (got < MPI_THREAD_FUNNELED) die(a, "this MPI allows no threads beside it");
    watch_who(NULL, w->rank);
}

/* The tool's own communicator, and who is on this machine. */
static void world_comms(app *a)
{
    world *w = world_of(a);
    MPI_Comm here;
    int me;
    watch_begin("MPI_Comm_dup", w->deadline);
    must_mpi(a, MPI_Comm_dup(MPI_COMM_WORLD, &w->comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    must_mpi(a, MPI_Comm_split_type(w->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
             "MPI_Comm_split_type");
    MPI_Comm_size(here, &w->local);
    MPI_Comm_rank(here, &me);
    MPI_Comm_free(&here);
    w->first = me == 0;
    watch_end();
}

static void program_begin(app *a)
{
    world *w = world_of(a);
    tr_ctx *ctx;
    int e;
    w->parsed = 1;
    e = watch_start(NULL, w->rank);
    if (e) die(a, "no thread that watches can be started: %s", strerror(e));
    world_init(a);
    world_comms(a);
    ctx = world_layout(a);
    rings_begin(a, ctx);
    tr_ctx_free(ctx);
}

/* Cores that this rank may use, as it was bound; 0: not known. */
static int world_cores(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return 0;
}

/* A fair share of the machine, and not more than this rank is bound to. OMP_NUM_THREADS stands. */
static int program_threads(app *a)
{
    const world *w = world_of(a);
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    int share = all > w->local ? (int)(all / w->local) : 1, cores = world_cores();
    if (getenv("OMP_NUM_THREADS")) return 0;
    return cores && cores < share ? cores : share;
}

/* SHA-256 of the program that runs: another binary may have other bits. */
static void world_identity(char hex[65])
{
    static unsigned char part[1 << 16];
    tr_sha256 h;
    size_t n;
    FILE *f = fopen("/proc/self/exe", "rb");
    hex[0] = 0;
    if (!f) return;
    tr_sha256_init(&h);
    while ((n = fread(part, 1, sizeof part, f)) > 0) tr_sha256_update(&h, part, n);
    fclose(f);
    tr_sha256_hex(&h, hex);
}

/* What changes no answer may differ: threads. */
static void world_same_command(app *a)
{
    char *all = text(a, "%s", a->cmd->name);
    for (int i = 0; i < a->cmd->n_args; i++) all = text(a, "%s %s", all, a->arg[i]);
    for (int i = 0; i < a->n_opt; i++)
        if (strcmp(a->opt[i].opt->name, "--threads") != 0)
            all = text(a, "%s %s %s", all, a->opt[i].opt->name, a->opt[i].value);
    must(a, tr_mpi_same(world_of(a)->m, "the command line", all));
}

/* bytes of each rank, in their order, on rank 0. */
static void world_gather(app *a, const char *step, const void *mine, void *all, size_t bytes)
{
    void *copy = need(a, (int64_t)bytes, 1);
    memcpy(copy, mine, bytes);
    must(a, tr_mpi_collect(world_of(a)->m, TR_MPI_CONTROL, step, copy, all, bytes));
    tr_free(a->ctx, copy);
}

/* More threads than the cores a rank is bound to: the launcher's doing, and slow. */
static void world_warn(app *a)
{
    world *w = world_of(a);
    int n = 0, first = -1;
    for (int i = 0; i < w->size; i++)
        if (w->node[i].cores && w->node[i].cores < w->node[i].threads && n++ == 0) first = i;
    if (n)
        say(a, "warning: %d of %d rank%s may use fewer cores than threads (rank %d: %d core%s, %d "
            "threads); launch with --bind-to none, --map-by slot:PE=%d, or Slurm's "
            "--cpus-per-task=%d", n, w->size, plural(w->size), first, w->node[first].cores,
            plural(w->node[first].cores), w->node[first].threads, w->node[first].threads,
            w->node[first].threads);
}

static double world_read(void)          /* bytes by read(2) */
{
    char rchar[64] = "0";
    bench_proc("/proc/self/io", "rchar", rchar, sizeof rchar);
    return strtod(rchar, NULL);
}

static double world_mapped(void)        /* bytes of files that are resident */
{
    return bench_proc_bytes("/proc/self/status", "RssFile");
}

static void program_ready(app *a)
{
    world *w = world_of(a);
    tr_mpi_opts o;
    char identity[65];
    node mine;
    memset(&o, 0, sizeof o);
    memset(&mine, 0, sizeof mine);
    o.layout = w->layout;
    world_identity(identity);
    o.deadline = w->deadline;
    o.identity = identity;
    o.event = world_event;
    o.event_user = a;
    watch_begin("MPI_Comm_dup", w->deadline + 0.8);     /* what follows it has its own deadline */
    must(a, tr_mpi_new(a->ctx, &w->m, w->comm, &o));
    watch_end();
    world_same_command(a);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0) mine.host[0] = 0;
    mine.cores = world_cores();
    mine.threads = tr_par_threads(a->ctx);
    w->node = (node *)need(a, w->size, sizeof *w->node);
    world_gather(a, "hosts", &mine, w->node, sizeof mine);
    if (program_leads(a)) world_warn(a);
    w->read = world_read();
    w->mapped = world_mapped();
}

static int program_end(app *a, int code)
{
    world *w = world_of(a);
    tr_status s = TR_OK;
    if (!w->mpi && a->follows) _exit(code);             /* rank 0 prints the same page */
    if (fflush(stdout) != 0 || ferror(stdout)) die(a, "stdout: %s", strerror(errno));
    if (!w->mpi) return code;
    if (w->m) {
        if (code != EXIT_FINE && a->follows) s = TR_ERR_PEER;   /* rank 0 has told of its own */
        must(a, tr_mpi_agree(w->m, s));
        must(a, tr_mpi_bcast(w->m, TR_MPI_ALL, TR_MPI_CONTROL, "exit code", 0, &code, sizeof code));
        watch_begin("MPI_Comm_free", w->deadline + 2);
        tr_mpi_free(w->m);
        w->m = NULL;
        watch_end();
    }
    watch_begin("MPI_Finalize", w->deadline);
    MPI_Comm_free(&w->comm);
    signal(SIGTERM, SIG_DFL);           /* after a code of 1 the launcher ends the rest */
    rings_end(w);
    MPI_Finalize();
    watch_end();
    watch_stop();
    return code;
}

/* ============================================================================
 * What rank 0 reads, to all
 * ========================================================================= */

static void share(app *a, void *data, int64_t bytes)
{
    must(a, tr_mpi_bcast(world_of(a)->m, TR_MPI_ALL, TR_MPI_CONTROL, "what rank 0 read", 0, data,
                         (uint64_t)bytes));
}

/* What all must have alike. */
static void same(app *a, const char *what, const char *text)
{
    must(a, tr_mpi_same(world_of(a)->m, what, text));
}

/* [n] elements, which others than rank 0 get room for. */
static void *share_list(app *a, const void *p, int64_t n, size_t elem)
{
    void *q = need(a, n, elem);
    if (n && program_leads(a)) memcpy(q, p, (size_t)n * elem);
    share(a, q, n * (int64_t)elem);
    return q;
}

static char *share_text(app *a, const char *s)         /* NULL is allowed */
{
    int64_t n = s ? (int64_t)strlen(s) + 1 : 0;
    share(a, &n, sizeof n);
    return n ? (char *)share_list(a, s, n, 1) : NULL;
}

static prompts engine_prompts(app *a)
{
    prompts p;
    int64_t size[6], *shape = &size[3];         /* B, T, images; patches, C, P of the pixels */
    memset(&p, 0, sizeof p);
    memset(size, 0, sizeof size);
    if (program_leads(a)) {
        p = prompts_read(a);
        if (p.images.n && (p.images.pixels.rank != 4 || p.images.pixels.dtype != TR_F32 ||
                           p.images.pixels.shape[2] != p.images.pixels.shape[3])) {
            char s[96];
            die(a, "%s: pixel_values is %s, expected F32 [patches, 3, P, P]",
                opt(a, "--pixels") ? opt(a, "--pixels") : opt(a, "--ids"),
                tr_view_str(p.images.pixels, s));
        }
        size[0] = p.B;
        size[1] = p.T;
        size[2] = p.images.n;
        if (p.images.n) memcpy(shape, p.images.pixels.shape, 3 * sizeof *shape);
    }
    share(a, size, sizeof size);
    p.B = size[0];
    p.T = size[1];
    p.len = (int64_t *)share_list(a, p.len, p.B, sizeof *p.len);
    p.id = (int32_t *)share_list(a, p.id, p.B * p.T, sizeof *p.id);
    p.sha256 = share_text(a, p.sha256);
    p.files = share_text(a, p.files);
    p.pillow = share_text(a, p.pillow);
    if (p.B < world_of(a)->layout.ep)
        say(a, "warning: %lld of %d groups of ep have no prompt, and only answer for their "
            "experts; cp or tp would share the work of %s", world_of(a)->layout.ep - (long long)p.B,
            world_of(a)->layout.ep, p.B == 1 ? "the one there is" : "those there are");
    p.images.n = size[2];
    if (p.images.n) {
        void *x = share_list(a, p.images.pixels.data, shape[0] * shape[1] * shape[2] * shape[2],
                             sizeof(float));
        p.images.pixels = tr_view4(x, TR_F32, shape[0], shape[1], shape[2], shape[2]);
        p.images.grid = (const int64_t *)share_list(a, p.images.grid, 3 * p.images.n,
                                                    sizeof *p.images.grid);
    }
    return p;
}

static const tr_int_list *engine_eos(app *a, const tr_config *c)
{
    tr_int_list *list = (tr_int_list *)need(a, 1, sizeof *list);
    if (program_leads(a)) *list = *eos_ids(a, a->arg[0], c);
    share(a, &list->n, sizeof list->n);
    list->v = (int64_t *)share_list(a, list->v, list->n, sizeof *list->v);
    return list;
}

/* ---- Who holds which expert */

/* N of "..layers.N..", -1. */
static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    char *end;
    long long n;
    if (!at || at[7] < '0' || at[7] > '9') return -1;
    n = strtoll(at + 7, &end, 10);
    return *end == '.' ? n : -1;
}

/* One tensor topk_ids [B, T, K] counted, of each sequence its own tokens alone. */
static void load_count(app *a, const char *path, const tr_st_entry *e, const tr_st_entry *lengths,
                       const tr_config *c, int64_t *load)
{
    tr_view v = e->view;
    char s[96];
    int64_t B = v.rank == 3 ? v.shape[0] : 1, T = v.rank >= 2 ? v.shape[v.rank - 2] : 0;
    int64_t K = v.rank >= 2 ? v.shape[v.rank - 1] : 0;
    if (v.rank < 2 || v.rank > 3 || (lengths && tr_view_numel(lengths->view) != B))
        die(a, "%s: %s is %s, expected [B, T, K]", path, e->name, tr_view_str(v, s));
    for (int64_t b = 0; b < B; b++) {
        int64_t own = lengths ? int_at(a, path, lengths, b) : T;
        for (int64_t i = 0; i < (own < T ? own : T) * K; i++) {
            int64_t id = int_at(a, path, e, b * T * K + i);
            if (id < 0 || id >= c->experts)
                die(a, "%s: %s names expert %lld; the model has 0 to %lld", path, e->name,
                    (long long)id, (long long)c->experts - 1);
            load[id]++;
        }
    }
}

/* Layers with experts of which the golden counts nothing: all of theirs count alike. */
static void load_warn(app *a, const char *path, const tr_config *c, const char *counted)
{
    char *even = (char *)need(a, c->layers + 1, 1);
    int64_t n = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        even[l] = c->layer[l].ffn == TR_FFN_MOE && !counted[l];
        n += even[l];
    }
    if (n)
        say(a, "warning: %s: has no topk_ids of layer%s %s: their experts are dealt evenly", path,
            plural(n), ranges(a, even, c->layers, ", "));
}

/* Tokens that each expert had in a golden, [layers, experts]. */
static int64_t *load_read(app *a, const char *path, const tr_config *c)
{
    tr_st f;
    int64_t *load, n = 0;
    char *counted = (char *)need(a, c->layers + 1, 1);
    size_t all;
    must(a, tr_size_mul(a->ctx, &all, (size_t)c->layers, (size_t)c->experts));
    load = (int64_t *)need(a, (int64_t)all, sizeof *load);
    must(a, tr_st_open(a->ctx, &f, path, 0));
    for (int64_t i = 0; i < f.n; i++) {
        const tr_st_entry *e = &f.entry[i];
        int64_t l = layer_of(e->name);
        if (!ends_with(e->name, "topk_ids") || l < 0 || l >= c->layers) continue;
        load_count(a, path, e, tr_st_find(&f, "lengths"), c, load + l * c->experts);
        counted[l] = 1;
        n++;
    }
    if (!n) die(a, "%s: there is no ..layers.N...topk_ids in it: a golden of this model has", path);
    load_warn(a, path, c, counted);
    tr_st_close(a->ctx, &f);
    return load;
}

typedef struct experts {            /* of --experts, --spare, --fetch and --keep */
    const char *path;               /* NULL: an even map */
    const char *load;               /* the golden that path names behind load:, else NULL */
    int64_t     spare, fetch, keep;
} experts;

static experts experts_options(app *a)
{
    experts x;
    x.path = opt(a, "--experts");
    x.load = x.path && strncmp(x.path, "load:", 5) == 0 ? x.path + 5 : NULL;
    x.spare = opt_int(a, "--spare", 0, 1, 1 << 20);
    x.fetch = opt_int(a, "--fetch", 0, 1, INT32_MAX);
    x.keep = opt_int(a, "--keep", 16, 1, 1 << 16);
    if (x.spare && !x.load) die(a, "%s: --spare needs --experts load:GOLDEN", a->cmd->name);
    if (opt(a, "--keep") && !x.fetch) die(a, "%s: --keep needs --fetch", a->cmd->name);
    return x;
}

static void program_check_model(app *a) { (void)experts_options(a); }

/* 0: neither a map nor --fetch was given. Rank 0 reads: only its machine may have the file. */
static int experts_read(app *a, tr_mpi_map *map)
{
    world *w = world_of(a);
    experts x = experts_options(a);
    int64_t size[2] = { 0, 0 };
    int places = tr_mpi_group_of(w->m, TR_MPI_IN_STAGE).n;
    memset(map, 0, sizeof *map);
    if (!x.path && !x.fetch) return 0;
    if (program_leads(a)) {
        tr_config *c = (tr_config *)need(a, 1, sizeof *c);
        tr_config_opts o = config_opts(a);
        must(a, tr_config_load(a->ctx, c, a->arg[0], &o));
        if (!c->experts) die(a, "%s: %s: %s has no experts here", a->arg[0],
                             x.path ? "--experts" : "--fetch", tr_family_name(c->family));
        if (x.load)
            must(a, tr_mpi_map_by_load(a->ctx, map, c, places, load_read(a, x.load, c),
                                       (int)x.spare));
        else must(a, x.path ? tr_mpi_map_read(a->ctx, map, c, places, x.path)
                            : tr_mpi_map_even(a->ctx, map, c, places));
        size[0] = map->layers;
        size[1] = map->experts;
    }
    share(a, size, sizeof size);
    map->layers = size[0];
    map->experts = size[1];
    map->places = places;
    map->held = (unsigned char *)share_list(a, map->held, places * size[0] * size[1], 1);
    map->fetch = x.fetch;
    map->keep = x.keep;
    return 1;
}

/* ============================================================================
 * The engine
 * ========================================================================= */

typedef struct engine {
    tr_model *m;                    /* this rank's part */
    int64_t   first, layers;        /* that all ranks run together */
    tr_mpi_model *mm;
    tr_mpi_run   *r;
} engine;

static void engine_open(app *a, engine *e, int64_t first, int64_t layers)
{
    tr_model_opts o;
    tr_mpi_map map;
    int mapped;
    memset(e, 0, sizeof *e);
    memset(&o, 0, sizeof o);
    o.first = first;
    o.layers = layers;
    o.lenient = opt(a, "--lenient") != NULL;
    o.config = config_opts(a);
    mapped = experts_read(a, &map);
    a->quiet_warnings = 1;
    must(a, tr_mpi_model_open(world_of(a)->m, &e->mm, a->arg[0], &o, mapped ? &map : NULL));
    a->quiet_warnings = 0;
    warnings_say(a, a->arg[0]);
    e->m = tr_mpi_model_part(e->mm);
    e->first = tr_mpi_stage_layers(e->mm, 0).begin;
    e->layers = tr_mpi_stage_layers(e->mm, world_of(a)->layout.pp - 1).end - e->first;
}

static void engine_run(app *a, engine *e, const tr_run_opts *o)
{
    must(a, tr_mpi_run_new(world_of(a)->m, &e->r, e->mm, o));
    world_of(a)->runs = 1;
}

static void engine_see(app *a, engine *e, const prompts *p)
{
    tr_batch b = prompts_flat(a, p);
    if (p->images.n) must(a, tr_mpi_see(e->r, &p->images, p->T ? &b : NULL));
}

static void engine_forward(app *a, engine *e, const tr_batch *b, const tr_hidden *in)
{
    for (int64_t s = 0; s < b->B; s++) world_of(a)->tokens += b->T[s];
    must(a, tr_mpi_forward(e->r, b, in));
}

static void engine_next(app *a, engine *e, const tr_batch *b, int32_t *id)
{
    (void)b;
    must(a, tr_mpi_next(e->r, id));
}

static void engine_tap_state(app *a, engine *e) { must(a, tr_mpi_tap_state(e->r)); }
static void engine_run_end(engine *e) { tr_mpi_run_free(e->r); }
static void engine_close(engine *e) { tr_mpi_model_close(e->mm); }

/* ---- What rank 0 does alone may take longer than the deadline: another thread does it, this one
 * says that it goes on. The work calls no MPI and does not end the program. */

typedef struct labour {
    void (*work)(void *arg);
    void  *arg;
    atomic_int done;
} labour;

static void *labour_main(void *arg)
{
    labour *l = (labour *)arg;
    l->work(l->arg);
    atomic_store(&l->done, 1);
    return NULL;
}

static void labour_do(app *a, void (*work)(void *arg), void *arg)
{
    labour l;
    pthread_t thread;
    memset(&l, 0, sizeof l);
    l.work = work;
    l.arg = arg;
    if (world_of(a)->size == 1 || pthread_create(&thread, NULL, labour_main, &l) != 0) {
        work(arg);
        return;
    }
    while (!atomic_load(&l.done)) {
        world_sleep(0.002);
        program_alive(a);
    }
    pthread_join(thread, NULL);
}

typedef struct writing {
    tr_ctx *ctx;
    const tr_golden *g;
    const char *path;
    const metadata *meta;
    tr_status s;
} writing;

static void writing_do(void *arg)
{
    writing *t = (writing *)arg;
    t->s = tr_golden_write(t->ctx, t->g, t->path, t->meta->item, t->meta->n);
}

static void engine_write(app *a, const tr_golden *g, const char *path, const metadata *meta)
{
    writing t;
    t.ctx = a->ctx;
    t.g = g;
    t.path = path;
    t.meta = meta;
    labour_do(a, writing_do, &t);
    must(a, t.s);
}

typedef struct hashing { tr_view v; char *hex; } hashing;

static void hashing_do(void *arg)
{
    hashing *h = (hashing *)arg;
    tr_view_sha256(h->v, h->hex);
}

static void engine_sha256(app *a, tr_view v, char hex[65])
{
    hashing h;
    h.v = v;
    h.hex = hex;
    labour_do(a, hashing_do, &h);
}

/* ============================================================================
 * The report
 * ========================================================================= */

typedef struct account {            /* of one rank */
    int64_t layers[2], part, parts; /* begin, end; rows: which part of how many */
    int64_t experts;                /* that it holds, of all its layers */
    double  weights, read, mapped, peak;        /* bytes; see report_print */
    tr_mpi_count count[TR_MPI_KIND_COUNT];
} account;

static int64_t experts_held(const tr_model *m)
{
    int64_t n = 0;
    for (int64_t l = 0; l < m->layers; l++)
        for (int64_t e = 0; m->layer[l].expert[0] && e < m->cfg.experts; e++)
            n += m->layer[l].expert[0][e].q != NULL;
    return n;
}

static account account_of(app *a, const engine *e)
{
    account c;
    memset(&c, 0, sizeof c);
    for (int k = 0; k < TR_MPI_KIND_COUNT; k++)
        c.count[k] = tr_mpi_counted(world_of(a)->m, (tr_mpi_kind)k);
    c.layers[0] = e->m->first;
    c.layers[1] = e->m->first + e->m->layers;
    c.part = e->m->part;
    c.parts = e->m->parts ? e->m->parts : 1;
    c.experts = experts_held(e->m);
    c.weights = (double)e->m->bytes;
    c.read = world_read() - world_of(a)->read;
    c.mapped = world_mapped() - world_of(a)->mapped;
    c.peak = bench_proc_bytes("/proc/self/status", "VmHWM");
    return c;
}

static void report_print(app *a, const account *all)
{
    const world *w = world_of(a);
    double tokens = w->tokens ? (double)w->tokens : 1;
    char layout[64];
    int wide = 4;
    for (int i = 0; i < w->size; i++)
        if ((int)strlen(w->node[i].host) > wide) wide = (int)strlen(w->node[i].host);
    fprintf(stderr, "%4s  %-*s %9s %7s %7s %9s %9s %9s %9s %8s\n", "rank", wide, "host", "layers",
            "rows", "experts", "weights", "read", "mapped", "peak", "waited");
    for (int i = 0; i < w->size; i++) {
        const account *c = &all[i];
        double waited = 0;
        for (int k = 0; k < TR_MPI_KIND_COUNT; k++) waited += c->count[k].waited;
        fprintf(stderr, "%4d  %-*s %9s %7s %7lld %9s %9s %9s %9s %6.2f s\n", i, wide,
                w->node[i].host,
                text(a, "%lld-%lld", (long long)c->layers[0], (long long)c->layers[1] - 1),
                text(a, "%lld/%lld", (long long)c->part + 1, (long long)c->parts),
                (long long)c->experts, size_of(c->weights).s, size_of(c->read).s,
                size_of(c->mapped).s, size_of(c->peak).s, waited);
    }
    fprintf(stderr, "\n%-9s %12s %12s %12s %14s %12s\n", "kind", "messages", "bytes", "a token",
            "longest wait", "(rank)");
    for (int k = 0; k < TR_MPI_KIND_COUNT; k++) {
        double messages = 0, bytes = 0, waited = 0;
        int who = 0;
        for (int i = 0; i < w->size; i++) {
            const tr_mpi_count *c = &all[i].count[k];
            messages += (double)c->messages;
            bytes += (double)c->bytes;
            if (c->waited > waited) { waited = c->waited; who = i; }
        }
        fprintf(stderr, "%-9s %12s %12s %12s %12.3f s %12d\n", tr_mpi_kind_name((tr_mpi_kind)k),
                commas((int64_t)messages).s, size_of(bytes).s, size_of(bytes / tokens).s, waited,
                who);
    }
    fprintf(stderr, "%lld tokens, layout %s; read by read(2), and mapped pages that are in "
            "memory, since the command began\n", (long long)w->tokens,
            tr_mpi_layout_str(w->layout, layout));
}

static void report_json(app *a, const account *all)
{
    const world *w = world_of(a);
    js_int(a, "tokens", w->tokens);
    js_open(a, "ranks", '[');
    for (int i = 0; i < w->size; i++) {
        const account *c = &all[i];
        js_open(a, NULL, '{');
        js_int(a, "rank", i);
        js_str(a, "host", w->node[i].host);
        js_int(a, "threads", w->node[i].threads);
        js_int(a, "first_layer", c->layers[0]);
        js_int(a, "layers", c->layers[1] - c->layers[0]);
        js_int(a, "part", c->part);
        js_int(a, "parts", c->parts);
        js_int(a, "experts", c->experts);
        js_num(a, "weights", c->weights);
        js_num(a, "read", c->read);
        js_num(a, "mapped", c->mapped);
        js_num(a, "peak", c->peak);
        js_open(a, "kinds", '{');
        for (int k = 0; k < TR_MPI_KIND_COUNT; k++) {
            js_open(a, tr_mpi_kind_name((tr_mpi_kind)k), '{');
            js_int(a, "messages", (int64_t)c->count[k].messages);
            js_int(a, "bytes", (int64_t)c->count[k].bytes);
            js_num(a, "waited", c->count[k].waited);
            js_close(a, '}');
        }
        js_close(a, '}');
        js_close(a, '}');
    }
    js_close(a, ']');
}

/* With --report: the table to stderr, as stdout is what one rank would have printed; and with
 * --json into the object that is open. */
static void engine_report(app *a, engine *e)
{
    world *w = world_of(a);
    account mine, *all;
    if (!opt(a, "--report")) return;
    mine = account_of(a, e);
    all = (account *)need(a, w->size, sizeof *all);
    world_gather(a, "report", &mine, all, sizeof mine);
    if (!program_leads(a)) return;
    if (a->json) report_json(a, all);
    else report_print(a, all);
}

/* ============================================================================
 * bench: many ranks against one
 *
 * In turn: all ranks run the prompts and some tokens more; rank 0 does the same alone, with as many
 * threads as the ranks of its machine have together, while the others sleep.
 * ========================================================================= */

enum { RB_PREFILL, RB_DECODE, RB_PHASES };
enum { RB_MOST_SAMPLES = 9 };

typedef struct phase {              /* one sample on one rank */
    double seconds;                 /* rank 0's, known to all */
    double waited[TR_MPI_KIND_COUNT];
} phase;

typedef struct ranks_bench {
    app     *a;
    engine   e;
    tr_ctx  *alone;  tr_model *whole;           /* rank 0's */
    int      threads, samples;                  /* threads of the one rank */
    int64_t  B, T, steps;
    int64_t *len, *ones;            /* [B] */
    int32_t *ids, *next;            /* [B T], [B] */
    tr_run_opts o;
    phase    many[RB_PHASES], *of;              /* the best; [size] of each rank, on rank 0 */
    double   one[RB_PHASES];        /* seconds */
} ranks_bench;

static tr_batch rb_batch(const ranks_bench *b, int decode)
{
    tr_batch x;
    x.B = b->B;
    x.T = decode ? b->ones : b->len;
    x.ids = decode ? b->next : b->ids;
    return x;
}

/* Ends one phase: its seconds are rank 0's, when all have come to it. */
static phase rb_phase(ranks_bench *b, double begun, const tr_mpi_count *before)
{
    tr_mpi *m = world_of(b->a)->m;
    phase p;
    memset(&p, 0, sizeof p);
    for (int k = 0; k < TR_MPI_KIND_COUNT; k++)
        p.waited[k] = tr_mpi_counted(m, (tr_mpi_kind)k).waited - before[k].waited;
    must(b->a, tr_mpi_agree(m, TR_OK));
    p.seconds = bench_now() - begun;
    share(b->a, &p.seconds, sizeof p.seconds);
    return p;
}

static double rb_begin(ranks_bench *b, tr_mpi_count *before)
{
    tr_mpi *m = world_of(b->a)->m;
    must(b->a, tr_mpi_agree(m, TR_OK));
    for (int k = 0; k < TR_MPI_KIND_COUNT; k++) before[k] = tr_mpi_counted(m, (tr_mpi_kind)k);
    return bench_now();
}

static void rb_take(phase *best, phase p)
{
    if (!(best->seconds > 0) || p.seconds < best->seconds) *best = p;
}

static void rb_many(ranks_bench *b)
{
    tr_mpi_count before[TR_MPI_KIND_COUNT];
    tr_batch p = rb_batch(b, 0), d = rb_batch(b, 1);
    double begun;
    engine_run(b->a, &b->e, &b->o);
    begun = rb_begin(b, before);
    engine_forward(b->a, &b->e, &p, NULL);
    engine_next(b->a, &b->e, &p, b->next);
    rb_take(&b->many[RB_PREFILL], rb_phase(b, begun, before));
    begun = rb_begin(b, before);
    for (int64_t i = 0; i < b->steps; i++) {
        engine_forward(b->a, &b->e, &d, NULL);
        engine_next(b->a, &b->e, &d, b->next);
    }
    rb_take(&b->many[RB_DECODE], rb_phase(b, begun, before));
    engine_run_end(&b->e);
}

/* Wakes the others: more 1: not yet, but rank 0 is well. */
static void rb_tick(ranks_bench *b, int more)
{
    world *w = world_of(b->a);
    for (int i = 1; i < w->size; i++)
        must_mpi(b->a, MPI_Send(&more, 1, MPI_INT, i, RANKS_TAG_GO, w->comm), "MPI_Send");
}

static void rb_rest(ranks_bench *b)
{
    world *w = world_of(b->a);
    double heard = bench_now();
    for (int more = 1; more; ) {
        int there = 0;
        must_mpi(b->a, MPI_Iprobe(0, RANKS_TAG_GO, w->comm, &there, MPI_STATUS_IGNORE),
                 "MPI_Iprobe");
        if (there) {
            must_mpi(b->a, MPI_Recv(&more, 1, MPI_INT, 0, RANKS_TAG_GO, w->comm,
                                    MPI_STATUS_IGNORE), "MPI_Recv");
            heard = bench_now();
        } else if (bench_now() - heard > w->deadline)
            die(b->a, "rank 0 is late: it measures one rank alone for more than %g s a step",
                w->deadline);
        else world_sleep(0.005);
    }
}

static void rb_step(ranks_bench *b, tr_run *r, const tr_batch *x)
{
    if (tr_forward(r, x, NULL) != TR_OK) die(b->a, "bench: %s", tr_err_last(b->alone));
    for (int64_t s = 0; s < b->B; s++)
        if ((b->next[s] = tr_argmax(tr_view_at(r->logits, s))) < 0)
            die(b->a, "bench: NaN among the logits");
}

static void rb_one(ranks_bench *b)
{
    tr_batch p = rb_batch(b, 0), d = rb_batch(b, 1);
    tr_run *r;
    double t[3];
    if (!program_leads(b->a)) { rb_rest(b); return; }
    if (tr_run_new(b->alone, &r, b->whole, &b->o) != TR_OK)
        die(b->a, "bench: %s", tr_err_last(b->alone));
    bench_pause();                                  /* others fall asleep */
    t[0] = bench_now();
    rb_step(b, r, &p);
    t[1] = bench_now();
    for (int64_t i = 0; i < b->steps; i++) rb_step(b, r, &d);
    t[2] = bench_now();
    for (int k = 0; k < RB_PHASES; k++)
        if (!(b->one[k] > 0) || t[k + 1] - t[k] < b->one[k]) b->one[k] = t[k + 1] - t[k];
    tr_run_free(r);
    rb_tick(b, 0);
}

static void rb_open(ranks_bench *b)
{
    app *a = b->a;
    const world *w = world_of(a);
    tr_ctx_opts o;
    tr_model_opts mo;
    engine_open(a, &b->e, 0, 0);
    if (!program_leads(a)) return;
    for (int i = 0; i < w->size; i++)
        if (strcmp(w->node[i].host, w->node[0].host) == 0) b->threads += w->node[i].threads;
    memset(&o, 0, sizeof o);
    o.threads = b->threads;
    if (tr_ctx_new(&b->alone, &o) != TR_OK)
        die(a, "bench: %s", b->alone ? tr_err_last(b->alone) : "out of memory");
    memset(&mo, 0, sizeof mo);
    mo.lenient = opt(a, "--lenient") != NULL;
    mo.config = config_opts(a);
    if (tr_model_open(b->alone, &b->whole, a->arg[0], &mo) != TR_OK)
        die(a, "%s", tr_err_last(b->alone));
}

static void rb_prompts(ranks_bench *b)
{
    const tr_config *c = &b->e.m->cfg;
    size_t n;
    must(b->a, tr_size_mul(b->a->ctx, &n, (size_t)b->B, (size_t)b->T));
    if (n > INT32_MAX) die(b->a, "bench: %lld sequences of %lld tokens are too many for one call",
                           (long long)b->B, (long long)b->T);
    b->len = (int64_t *)need(b->a, b->B, sizeof *b->len);
    b->ones = (int64_t *)need(b->a, b->B, sizeof *b->ones);
    b->next = (int32_t *)need(b->a, b->B, sizeof *b->next);
    b->ids = (int32_t *)need(b->a, (int64_t)n, sizeof *b->ids);
    for (int64_t s = 0; s < b->B; s++) {
        b->len[s] = b->T;
        b->ones[s] = 1;
        for (int64_t t = 0; t < b->T; t++)
            b->ids[s * b->T + t] = (int32_t)(tr_rng_u64(1, (uint64_t)s, (uint64_t)t) %
                                             (uint64_t)c->vocab);
    }
    b->o = tr_run_opts_default();
    b->o.profile = profile(b->a);
    b->o.B = b->B;
    b->o.max_tokens = (int64_t)n;
    b->o.capacity = b->T + b->steps;
}

/* Mean over the ranks of the share of a phase that was spent waiting for kind k; -1: all kinds. */
static double rb_waited(const ranks_bench *b, int ph, int k)
{
    int size = world_of(b->a)->size;
    double sum = 0;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < TR_MPI_KIND_COUNT; j++)
            if (k < 0 || j == k) sum += b->of[i * RB_PHASES + ph].waited[j];
    return sum / size / b->many[ph].seconds;
}

static const char *const rb_name[RB_PHASES] = { "prefill", "decode" };

static void rb_print(const ranks_bench *b)
{
    const world *w = world_of(b->a);
    char layout[64];
    printf("%s: %lld sequence%s of %lld tokens, %lld steps, layout %s\n", b->a->arg[0],
           (long long)b->B, plural(b->B), (long long)b->T, (long long)b->steps,
           tr_mpi_layout_str(w->layout, layout));
    printf("%d rank%s of %d thread%s against 1 of %d; the best of %d\n\n", w->size, plural(w->size),
           w->node[0].threads, plural(w->node[0].threads), b->threads, b->samples);
    printf("%-8s %12s %12s %7s %8s", "", "many tok/s", "one tok/s", "ratio", "waited");
    for (int k = 0; k < TR_MPI_KIND_COUNT; k++) printf(" %8s", tr_mpi_kind_name((tr_mpi_kind)k));
    printf("\n");
    for (int i = 0; i < RB_PHASES; i++) {
        double n = (double)(b->B * (i == RB_PREFILL ? b->T : b->steps));
        printf("%-8s %12.1f %12.1f %7.3f %6.1f %%", rb_name[i], n / b->many[i].seconds,
               n / b->one[i], b->one[i] / b->many[i].seconds, 100 * rb_waited(b, i, -1));
        for (int k = 0; k < TR_MPI_KIND_COUNT; k++) printf(" %6.1f %%", 100 * rb_waited(b, i, k));
        printf("\n");
    }
}

static void rb_json(const ranks_bench *b)
{
    app *a = b->a;
    const world *w = world_of(a);
    js_int(a, "world", w->size);
    js_int(a, "threads", w->node[0].threads);
    js_int(a, "threads_of_one", b->threads);
    js_int(a, "sequences", b->B);
    js_int(a, "tokens_a_sequence", b->T);
    js_int(a, "steps", b->steps);
    js_int(a, "samples", b->samples);
    for (int i = 0; i < RB_PHASES; i++) {
        double n = (double)(b->B * (i == RB_PREFILL ? b->T : b->steps));
        js_open(a, rb_name[i], '{');
        js_num(a, "many", n / b->many[i].seconds);
        js_num(a, "one", n / b->one[i]);
        js_num(a, "ratio", b->one[i] / b->many[i].seconds);
        js_num(a, "waited", rb_waited(b, i, -1));
        js_open(a, "kinds", '{');
        for (int k = 0; k < TR_MPI_KIND_COUNT; k++)
            js_num(a, tr_mpi_kind_name((tr_mpi_kind)k), rb_waited(b, i, k));
        js_close(a, '}');
        js_close(a, '}');
    }
}

static ranks_bench rb_options(app *a)
{
    ranks_bench b;
    memset(&b, 0, sizeof b);
    b.a = a;
    b.B = opt_int(a, "--sequences", 2 * (int64_t)world_of(a)->size, 1, 1 << 20);
    b.T = opt_int(a, "--tokens", 64, 1, 1 << 20);
    b.steps = opt_int(a, "--steps", 16, 1, 1 << 20);
    b.samples = (int)opt_int(a, "--samples", 3, 1, RB_MOST_SAMPLES);
    (void)profile(a);
    return b;
}

static void check_ranks_bench(app *a)
{
    (void)rb_options(a);
    program_check_model(a);
}

static int cmd_ranks_bench(app *a)
{
    world *w = world_of(a);
    ranks_bench b = rb_options(a);
    rb_open(&b);
    rb_prompts(&b);
    progress_begin(a, "measuring", b.samples);
    for (int i = 0; i < b.samples; i++) {
        rb_many(&b);
        rb_one(&b);
        progress_at(a, i + 1, "");
    }
    progress_end(a);
    b.of = (phase *)need(a, w->size * RB_PHASES, sizeof *b.of);
    world_gather(a, "waits", b.many, b.of, sizeof b.many);
    if (a->json) js_open(a, NULL, '{');
    if (program_leads(a)) (a->json ? rb_json : rb_print)(&b);
    engine_report(a, &b.e);
    if (a->json) js_close(a, '}');
    engine_close(&b.e);
    return EXIT_FINE;
}

static const option ranks_bench_options[] = {
    { "--sequences", "B", OPT_ONE, "prompts (default: 2 a rank)" },
    { "--tokens",    "N", OPT_ONE, "tokens of each (default: 64)" },
    { "--steps",     "N", OPT_ONE, "tokens after them (default: 16)" },
    { "--samples",   "N", OPT_ONE, "of each side, in turn; the best counts (default: 3)" },
    OPT_PROFILE, PROGRAM_MODEL_OPTIONS OPT_SET, OPT_ACCEPT, OPT_LENIENT, OPT_END
};

static const char ranks_bench_note[] =
    "The one rank is rank 0 alone, with the threads of all ranks of its machine together: give\n"
    "--threads 1 on 2 ranks to see 2 ranks of a thread against a rank of 2, and a launch that\n"
    "lets rank 0 use those cores (--bind-to none). waited: the share of its time that a rank was\n"
    "in a wait for others and did nothing else, the mean over ranks, in all and by kind: messages\n"
    "that computing did not hide, and others that were late.\n\n"
    "Exit codes: 0 measured; 2 a file cannot be used.\n" PROGRAM_CODES;

#endif /* RANKS_H */
