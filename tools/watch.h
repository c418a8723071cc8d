/* watch.h - an end for what has none of its own: MPI's blocking calls, and signals
 *
 *     watch_launched(&rank, &world, &run);         as the launcher numbers, before MPI_Init
 *     watch_start(&r, rank);                       a thread that watches, and the handlers
 *     watch_hint("DIR/.. tells more", "DIR/told");  said once by all that find no such file
 *     watch_begin("MPI_Init", 30);
 *     MPI_Init(..);
 *     watch_end();
 *     watch_stop();
 *
 * A call that does not return within its seconds: one sentence to stderr, which names a rank of
 * this machine that is stopped, if one is; the ring ends as failed, the process with exit code 1. A
 * process that was stopped meanwhile has its seconds anew. A signal that asks to end: the ring says
 * where the rank was, one sentence, exit code 128 + signal; and for how long it had been stopped,
 * since others waited for it. A crash: the same, and then what the system does with one.
 *
 * One a process, with its state in this file: handlers have no other place to look. A program
 * includes this once, after ring.h, and is linked with -pthread. */

#ifndef WATCH_H
#define WATCH_H

#include <dirent.h>
#include <pthread.h>

#include "ring.h"

typedef struct watch {
    ring *r;
    _Atomic int rank;                   /* -1: not known */
    _Atomic int64_t looked, stopped;    /* ms: when the thread last ran, 0: nothing is watched; for
                                           how long it then did not, and so nor did the process */
    const char *hint, *told;            /* NULL: none; a line, and the file of who says it */
    int running, stop;                  /* the rest: under lock */
    const char *what;                   /* NULL: nothing is watched */
    double seconds;
    int64_t until;                      /* ms of watch_now */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} watch;

static watch watch_it = { .rank = -1, .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- Sentences without printf, which a handler may not call */

typedef struct watch_text { char s[RING_SENTENCE]; size_t n; } watch_text;

static void watch_put(watch_text *t, const char *s)
{
    while (*s && t->n < sizeof t->s - 2) t->s[t->n++] = *s++;
    t->s[t->n] = 0;
}

static void watch_put_int(watch_text *t, int64_t v)
{
    char digits[24], *d = digits + sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    *--d = 0;
    do *--d = (char)('0' + u % 10); while (u /= 10);
    if (v < 0) *--d = '-';
    watch_put(t, d);
}

static void watch_put_tenths(watch_text *t, int64_t tenths)
{
    watch_put_int(t, tenths / 10);
    if (tenths % 10 == 0) return;
    watch_put(t, ".");
    watch_put_int(t, tenths % 10);
}

static void watch_put_where(watch_text *t)
{
    const ring_file *f = watch_it.r ? watch_it.r->file : NULL;
    const char *what = watch_it.what;           /* this thread's own: watch_begin */
    int at = f ? ring_last(f) : -1;
    if (!f && what) { watch_put(t, " in step "); watch_put(t, what); }
    if (at < 0) return;
    watch_put(t, " in");
    if (f->rec[at].layer >= 0) {
        watch_put(t, " layer ");
        watch_put_int(t, f->rec[at].layer);
        watch_put(t, ",");
    }
    watch_put(t, " step ");
    watch_put(t, f->rec[at].step);
    if (f->rec[at].kind != RING_WAIT || f->rec[at].peer < 0) return;
    watch_put(t, ", waiting for rank ");
    watch_put_int(t, f->rec[at].peer);
}

/* "trillion-mpi: rank 3: SENTENCE", in one piece. */
static void watch_say(const watch_text *sentence)
{
    watch_text t = { "", 0 };
    int rank = atomic_load(&watch_it.rank);
    ssize_t k;
    watch_put(&t, "trillion-mpi: ");
    if (rank >= 0) {
        watch_put(&t, "rank ");
        watch_put_int(&t, rank);
        watch_put(&t, ": ");
    }
    watch_put(&t, sentence->s);
    t.s[t.n++] = '\n';
    k = write(2, t.s, t.n);
    (void)k;
}

/* Of the processes that were given the same file `told`, and of all of their endings, one says the
 * hint: who makes the file. 1: this one shall. */
static int watch_hint_mine(void)
{
    int fd = watch_it.hint ? open(watch_it.told, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) :
             -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void watch_say_hint(void)
{
    watch_text t = { "", 0 };
    ssize_t k;
    if (!watch_hint_mine()) return;
    watch_put(&t, "trillion-mpi: ");
    watch_put(&t, watch_it.hint);
    t.s[t.n++] = '\n';
    k = write(2, t.s, t.n);
    (void)k;
}

/* ---- Was this process stopped? */

enum { WATCH_LOOK_MS = 100, WATCH_STOPPED_MS = 1000 };     /* looks; longer without one: stopped */

static int64_t watch_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 1;
}

/* Milliseconds in which it did not run while something was watched; 0: it ran. */
static int64_t watch_stopped(void)
{
    int64_t looked = atomic_load(&watch_it.looked), stopped = atomic_load(&watch_it.stopped);
    if (looked && watch_now() - looked > stopped) stopped = watch_now() - looked;
    return looked && stopped > WATCH_STOPPED_MS ? stopped : 0;
}

/* ---- Signals */

static const int watch_asks[] = { SIGTERM, SIGINT, SIGHUP };
static const int watch_crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };

/* The rank's own ending, if it has one, stands, and was told: nothing is said again. */
static void watch_ended_by(int sig)
{
    watch_text t = { "", 0 };
    int64_t stopped = watch_stopped();
    watch_put(&t, "ended by signal ");
    watch_put_int(&t, sig);
    watch_put(&t, " (");
    watch_put(&t, ring_signal_name(sig));
    watch_put(&t, ")");
    watch_put_where(&t);
    if (stopped) {                      /* what others waited for, and so a failure of its own */
        watch_put(&t, ", after it had been stopped for ");
        watch_put_tenths(&t, stopped / 100);
        watch_put(&t, " s");
    }
    if (ring_end(watch_it.r, stopped ? RING_FAILED : RING_SIGNALLED, sig, RING_NOBODY, RING_OWN,
                 t.s) || !watch_it.r || !watch_it.r->file) {
        watch_say(&t);
        watch_say_hint();
    }
}

static void watch_on_ask(int sig)
{
    watch_ended_by(sig);
    _exit(128 + sig);
}

static void watch_on_crash(int sig)     /* once: SA_RESETHAND */
{
    watch_ended_by(sig);
    raise(sig);
}

static int watch_handle(void)
{
    struct sigaction s;
    int bad = 0;
    memset(&s, 0, sizeof s);
    sigfillset(&s.sa_mask);             /* one ending at a time */
    s.sa_handler = watch_on_ask;
    for (size_t i = 0; i < sizeof watch_asks / sizeof *watch_asks; i++)
        bad |= sigaction(watch_asks[i], &s, NULL);
    s.sa_handler = watch_on_crash;
    s.sa_flags = (int)SA_RESETHAND;
    for (size_t i = 0; i < sizeof watch_crashes / sizeof *watch_crashes; i++)
        bad |= sigaction(watch_crashes[i], &s, NULL);
    return bad ? errno : 0;
}

/* ---- Who does not come */

/* Environment variables in which Open MPI, MPICH or Slurm tell a process its rank. */
static const char *const watch_rank_names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                                "SLURM_PROCID", NULL };

/* The rank of a process of this machine, as its launcher told it; -1: not known. */
static int watch_rank_of(int64_t pid)
{
    char path[64], *s = NULL;
    size_t cap = 0, best = sizeof watch_rank_names / sizeof *watch_rank_names;
    int rank = -1;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%lld/environ", (long long)pid);      /* Linux */
    f = fopen(path, "r");
    while (f && getdelim(&s, &cap, 0, f) > 0)
        for (size_t i = 0; i < best && watch_rank_names[i]; i++) {
            size_t n = strlen(watch_rank_names[i]);
            if (strncmp(s, watch_rank_names[i], n) != 0 || s[n] != '=') continue;
            rank = atoi(s + n + 1);
            best = i;
        }
    free(s);
    if (f) fclose(f);
    return rank;
}

/* Of what this process's launcher started on this machine, one that is stopped, which may not have
 * come to its main yet; 0: there is none. */
static int64_t watch_stopped_sibling(void)
{
    int64_t found = 0;
    const struct dirent *e;
    DIR *d = opendir("/proc");
    while (!found && d && (e = readdir(d)) != NULL) {
        int64_t parent, born, pid = strtoll(e->d_name, NULL, 10);
        if (pid > 0 && ring_process(pid, &parent, &born) == 'T' && parent == (int64_t)getppid())
            found = pid;
    }
    if (d) closedir(d);
    return found;
}

/* ---- The thread */

/* Time is up. Children that this rank may have started go with it, if it leads their group. */
static _Noreturn void watch_time_is_up(const char *what, double seconds)
{
    watch_text t = { "", 0 };
    int64_t pid = watch_stopped_sibling();
    int rank = pid ? watch_rank_of(pid) : -1;
    watch_put(&t, what);
    watch_put(&t, " did not return within ");
    watch_put_tenths(&t, (int64_t)(seconds * 10 + 0.5));
    watch_put(&t, rank >= 0 ? " s: rank " : " s: another rank did not come to it, or cannot be "
                                            "reached");
    if (rank >= 0) {
        watch_put_int(&t, rank);
        watch_put(&t, ", process ");
        watch_put_int(&t, pid);
        watch_put(&t, " of this machine, is stopped");
    }
    ring_end(watch_it.r, RING_FAILED, 0, rank >= 0 ? rank : RING_ANYBODY, RING_LATE, t.s);
    watch_say(&t);
    watch_say_hint();
    if (getpgrp() == getpid()) {
        signal(SIGTERM, SIG_IGN);
        kill(0, SIGTERM);
    }
    _exit(1);
}

/* The watched call may have its seconds anew if it had none of them: this process was stopped. */
static void watch_look(watch *w)
{
    int64_t t = watch_now(), gap = t - atomic_load(&w->looked);
    if (gap > WATCH_STOPPED_MS) {
        atomic_store(&w->stopped, gap);
        w->until = t + (int64_t)(w->seconds * 1000);
    }
    atomic_store(&w->looked, t);
}

static void *watch_main(void *arg)
{
    watch *w = (watch *)arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->what) pthread_cond_wait(&w->changed, &w->lock);
        else {
            int64_t next = watch_now() + WATCH_LOOK_MS;
            struct timespec until;
            watch_look(w);
            if (atomic_load(&w->looked) >= w->until) watch_time_is_up(w->what, w->seconds);
            if (next > w->until) next = w->until;
            until.tv_sec = (time_t)(next / 1000);
            until.tv_nsec = (long)(next % 1000) * 1000000;
            pthread_cond_timedwait(&w->changed, &w->lock, &until);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* From now on r and rank; both may be not yet known: NULL, -1. */
static void watch_who(ring *r, int rank)
{
    watch_it.r = r;
    atomic_store(&watch_it.rank, rank);
}

/* A line that one ending of all says behind its sentence; both texts stay valid. */
static void watch_hint(const char *hint, const char *told)
{
    watch_it.told = told;
    watch_it.hint = hint;
}

/* 0, or the number of an error. Signals go to the program's own threads. */
static int watch_start(ring *r, int rank)
{
    pthread_condattr_t attr;
    sigset_t all, old;
    int e;
    watch_who(r, rank);
    e = watch_handle();
    if (e) return e;
    pthread_condattr_init(&attr);
    e = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!e) e = pthread_cond_init(&watch_it.changed, &attr);
    pthread_condattr_destroy(&attr);
    if (e) return e;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    e = pthread_create(&watch_it.thread, NULL, watch_main, &watch_it);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    watch_it.running = !e;
    return e;
}

static void watch_set(const char *what, double seconds)
{
    watch *w = &watch_it;
    pthread_mutex_lock(&w->lock);
    w->what = what;
    w->seconds = seconds;
    w->until = watch_now() + (int64_t)(seconds * 1000);
    atomic_store(&w->stopped, 0);
    atomic_store(&w->looked, what ? watch_now() : 0);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* what stays valid until watch_end. Called by the thread that writes the ring's events. */
static void watch_begin(const char *what, double seconds)
{
    ring_event(watch_it.r, RING_WAIT, -1, RING_ANYBODY, 0, 0, what);
    if (watch_it.running) watch_set(what, seconds);
}

static void watch_end(void)
{
    const char *what = watch_it.what;           /* this thread's own: watch_begin */
    if (watch_it.running) watch_set(NULL, 0);
    ring_event(watch_it.r, RING_DONE, -1, RING_NOBODY, 0, 0, what);
}

/* The handlers stay. */
static void watch_stop(void)
{
    if (!watch_it.running) return;
    pthread_mutex_lock(&watch_it.lock);
    watch_it.stop = 1;
    pthread_cond_signal(&watch_it.changed);
    pthread_mutex_unlock(&watch_it.lock);
    pthread_join(watch_it.thread, NULL);
    pthread_cond_destroy(&watch_it.changed);
    watch_it.running = watch_it.stop = 0;
}

/* ---- The launcher */

static const char *watch_env(const char *const *name, const char *absent)
{
    for (; *name; name++) {
        const char *s = getenv(*name);
        if (s && *s) return s;
    }
    return absent;
}

/* What Open MPI, MPICH or Slurm tell a process about itself before MPI_Init: rank and world, and
 * the run's name, "" if there is none. 0: nothing is told, and the process is one of one. */
static int watch_launched(int *rank, int *world, const char **run)
{
    static const char *const worlds[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS",
                                          NULL };
    static const char *const runs[] = { "PMIX_NAMESPACE", "SLURM_JOB_ID", NULL };
    const char *r = watch_env(watch_rank_names, NULL), *w = watch_env(worlds, NULL);
    *rank = 0;
    *world = 1;
    *run = watch_env(runs, "");
    if (!r || !w) return 0;
    *rank = atoi(r);
    *world = atoi(w);
    return 1;
}

#endif
