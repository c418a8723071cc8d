/* ring.h - a rank's flight recorder: its last events in a file that survives the rank
 *
 * The file is mapped and shared: what is written is in the kernel's hands at once, whatever becomes
 * of the process (SIGKILL too; not of the machine). An event costs a look at the clock and some
 * stores, no call into the kernel. One thread writes events; an ending may come from another, or
 * from a signal handler. Readers are other programs, at any time.
 *
 *     ring r;  ring_who who = { .rank = 3, .world = 8, .layout = "ep=8", .command = "run DIR" };
 *     ring_create(ctx, &r, "DIR", &who);                       DIR/rank-00003.ring
 *     ring_event(&r, RING_WAIT, 5, 2, 4096, 0, "dispatch");    layer 5, waits for rank 2
 *     ring_fail(&r, 5, RING_NOBODY, 2, RING_LATE, "rank 2 is late");
 *     ring_end(&r, RING_FAILED, 0, 2, RING_LATE, "rank 2 is late");    the first ending stands
 *     ring_free(&r);
 *
 *     ring_log l;
 *     ring_open(ctx, &l, "DIR/rank-00003.ring");               l.rec[l.n - 1] is the last event
 *     ring_close(ctx, &l);
 *
 * THE FILE, in the byte order of its machine:
 *
 *     0       ring_head    who writes; how it ended
 *     4096    ring_record  [4096] event i, counted from 1, is at (i - 1) mod 4096
 *
 * A record's number is 0 while it is written and is stored last: a record without the number that
 * belongs to its place is torn, or was never written.
 *
 * A program includes this after trillion.h with its implementation. */

#ifndef RING_H
#define RING_H

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifndef _WIN32
#include <fcntl.h>
#include <sys/mman.h>
#endif

#include "../trillion.h"

enum { RING_RECORDS = 4096, RING_STEP_BYTES = 24, RING_SENTENCE = 512, RING_VERSION = 2,
       RING_WORLD = 1 << 22 };      /* ranks at most */
enum { RING_NOBODY = -1, RING_ANYBODY = -2 };       /* a peer: none; some other, not known which */

typedef enum ring_kind {        /* as tr_mpi_event_kind; its HALF is in no ring */
    RING_STEP,                  /* begins an operator or an exchange */
    RING_WAIT,                  /* begins to wait for peer */
    RING_DONE,                  /* what it waited for is complete */
    RING_FAIL,                  /* peer: who told of it; RING_NOBODY: this rank tells others */
    RING_END,                   /* in order */
    RING_KINDS
} ring_kind;

typedef enum ring_cause {       /* of a failure; as tr_mpi_cause */
    RING_OWN,                   /* what the rank was given, or its own work */
    RING_UNLIKE,                /* it has or does something else than another */
    RING_LATE,                  /* another waited for it in vain */
    RING_DEADLOCK,              /* it waits, perhaps through others, for itself */
    RING_MPI,                   /* MPI gave it an error, perhaps because another is lost */
    RING_CAUSES
} ring_cause;

typedef enum ring_state {
    RING_RUNNING,               /* no ending: still running, or ended without a word */
    RING_ORDERLY, RING_FAILED,
    RING_SIGNALLED,             /* by a signal that it could answer */
    RING_STATES
} ring_state;

typedef struct ring_record {
    _Atomic uint64_t number;    /* from 1; 0: not written, or not yet */
    int64_t  time;              /* ns of CLOCK_REALTIME */
    uint64_t expected, arrived; /* bytes of a wait */
    int16_t  kind, cause;       /* ring_kind; ring_cause of a failure */
    int32_t  layer, peer;       /* -1: outside the layers; rank, RING_NOBODY .. */
    int32_t  rank;              /* of a failure: whose it is; else RING_NOBODY */
    char     step[RING_STEP_BYTES];
} ring_record;

typedef struct ring_head {
    char     magic[8];          /* stored last */
    uint32_t version, order;    /* RING_VERSION; RING_ORDER */
    uint32_t head_bytes, record_bytes, records;
    int32_t  rank, world;
    int32_t  unused;
    int64_t  pid, born;         /* born: of the process, as ring_process gives it */
    int64_t  begun;             /* ns of CLOCK_REALTIME */
    char     host[64], layout[64];
    char     run[128];          /* the launcher's name of the run; "" if it has none */
    char     command[1024];
    int64_t  ended;             /* these five: before state, which is stored last */
    int32_t  signal, failed;    /* failed, cause: as of ring_end */
    int32_t  cause;
    char     sentence[RING_SENTENCE];
    _Atomic uint32_t state;     /* ring_state */
} ring_head;

typedef struct ring_file {
    union { ring_head head; char page[4096]; } u;
    ring_record rec[RING_RECORDS];
} ring_file;

#define RING_MAGIC "TRRING\r\n"
#define RING_ORDER 0x01020304u

typedef struct ring_who {
    int rank, world;
    const char *layout, *command, *run;     /* cut to fit; NULL is "" */
} ring_who;

typedef struct ring {           /* zeroed: records nothing, which is allowed */
    ring_file *file;
    uint64_t   n;               /* events so far; the writing thread's */
    int64_t    pid;             /* whose it is */
    atomic_int ending;          /* somebody writes the ending */
} ring;

typedef struct ring_log {
    ring_head    head;
    ring_record *rec;           /* [n] oldest first; owned */
    int64_t      n, torn;       /* torn: written when the process ended, or now */
} ring_log;

/* SIGTERM -> "SIGTERM"; "a signal" for those that nothing here is told of. */
static inline const char *ring_signal_name(int sig)
{
    switch (sig) {
    case SIGTERM: return "SIGTERM";
    case SIGINT:  return "SIGINT";
    case SIGABRT: return "SIGABRT";
    case SIGSEGV: return "SIGSEGV";
    case SIGFPE:  return "SIGFPE";
    case SIGILL:  return "SIGILL";
#ifdef SIGHUP
    case SIGHUP:  return "SIGHUP";
#endif
#ifdef SIGBUS
    case SIGBUS:  return "SIGBUS";
#endif
    }
    return "a signal";
}

/* ---- Processes */

/* 0: there is no process pid; else its state, 'T' if it is stopped, 'R' if nothing is known; its
 * parent, and when it began, in a unit that tells it from a later one of this number (0: not
 * known). */
static inline int ring_process(int64_t pid, int64_t *parent, int64_t *born)
{
    int state = 'R';
    *parent = *born = 0;
#ifdef _WIN32
    (void)pid;
    return 0;
#else
    char path[64], line[1024], *s;
    FILE *f;
    if (pid < 1 || pid > INT_MAX || (kill((pid_t)pid, 0) != 0 && errno != EPERM)) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);     /* Linux */
    f = fopen(path, "r");
    if (!f) return state;
    if (fgets(line, sizeof line, f) && (s = strrchr(line, ')')) != NULL && s[1] == ' ' && s[2]) {
        state = s[2] == 't' ? 'T' : s[2];
        if (s[3]) *parent = strtoll(s + 3, NULL, 10);
        for (int i = 0; i < 20 && s; i++) s = strchr(s + 1, ' ');
        if (s) *born = strtoll(s, NULL, 10);
    }
    fclose(f);
    return state == 'Z' || state == 'X' ? 0 : state;            /* dead, and not yet asked for */
#endif
}

/* As ring_process, for the process that writes h, if it is one of this host. */
static inline int ring_alive(const ring_head *h)
{
#ifdef _WIN32
    (void)h;
    return 0;
#else
    char host[sizeof h->host] = "";
    int64_t parent, born;
    int state;
    if (gethostname(host, sizeof host - 1) != 0 || strcmp(host, h->host) != 0) return 0;
    state = ring_process(h->pid, &parent, &born);
    return born == h->born ? state : 0;
#endif
}

/* NULL: it cannot be opened, and errno says why, or is 0 if it is no regular file. Opening a pipe
 * would wait until somebody writes to it. */
static inline FILE *ring_file_open(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return NULL;
    errno = 0;
    return S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
}

/* The process that writes the ring at path, if it is one of this host and still there; else 0. */
static inline int64_t ring_writer(const char *path)
{
    ring_head h;
    FILE *f = ring_file_open(path);
    size_t n = f ? fread(&h, 1, sizeof h, f) : 0;
    if (f) fclose(f);
    if (n != sizeof h || memcmp(h.magic, RING_MAGIC, sizeof h.magic) != 0 ||
        h.order != RING_ORDER || h.version != RING_VERSION) return 0;
    h.host[sizeof h.host - 1] = 0;
    return ring_alive(&h) ? h.pid : 0;
}

/* ---- Writing */

#ifndef _WIN32

static inline int64_t ring_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* s cut to cap - 1 bytes; for signal handlers too, where strncpy is allowed and snprintf not. */
static inline void ring_text(char *to, size_t cap, const char *s)
{
    size_t n = 0;
    while (s && s[n] && n < cap - 1) { to[n] = s[n]; n++; }
    memset(to + n, 0, cap - n);
}

/* Written in full, so that a full disk is told here and is no SIGBUS at some event later. */
static inline int ring_fill(int fd)
{
    static const char zero[4096];
    for (size_t at = 0; at < sizeof(ring_file); ) {
        size_t left = sizeof(ring_file) - at;
        ssize_t k = write(fd, zero, left < sizeof zero ? left : sizeof zero);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno;
        if (k == 0) return ENOSPC;
        at += (size_t)k;
    }
    return 0;
}

/* 0: it does not fit. */
static inline int ring_path(char *to, size_t cap, const char *dir, int rank)
{
    int n = snprintf(to, cap, "%s/rank-%05d.ring", dir, rank);
    return n >= 0 && (size_t)n < cap;
}

static inline int ring_map(const char *path, ring_file **out)
{
    int fd, e;
    void *p = MAP_FAILED;
    unlink(path);               /* not cut to nothing: another process may still have it mapped */
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    e = ring_fill(fd);
    if (!e) {
        p = mmap(NULL, sizeof(ring_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) e = errno;
    }
    if (close(fd) != 0 && !e) e = errno;
    if (e) {
        if (p != MAP_FAILED) munmap(p, sizeof(ring_file));
        unlink(path);
        return e;
    }
    *out = (ring_file *)p;
    return 0;
}

/* The folder must be there. TR_ERR_IO names file and reason: a full disk among them; then *r is
 * zeroed and no file is left. A ring of an earlier run is replaced. */
static inline tr_status ring_create(tr_ctx *ctx, ring *r, const char *dir, const ring_who *who)
{
    char path[PATH_MAX];
    int64_t parent;
    int e;
    ring_head *h;
    memset(r, 0, sizeof *r);
    if (who->world < 1 || who->world > RING_WORLD || who->rank < 0 || who->rank >= who->world)
        return tr_fail(ctx, TR_ERR_ARG, "%s: a ring for rank %d of %d", dir, who->rank, who->world);
    if (!ring_path(path, sizeof path, dir, who->rank))
        return tr_fail(ctx, TR_ERR_IO, "%s: %s", dir, strerror(ENAMETOOLONG));
    e = ring_map(path, &r->file);
    if (e)
        return tr_fail(ctx, TR_ERR_IO, "%s: the ring of %zu bytes cannot be made: %s", path,
                       sizeof(ring_file), strerror(e));
    h = &r->file->u.head;
    h->version = RING_VERSION;
    h->order = RING_ORDER;
    h->head_bytes = offsetof(ring_file, rec);
    h->record_bytes = sizeof(ring_record);
    h->records = RING_RECORDS;
    h->rank = who->rank;
    h->world = who->world;
    h->pid = r->pid = (int64_t)getpid();
    ring_process(h->pid, &parent, &h->born);
    h->begun = ring_now();
    h->failed = RING_NOBODY;
    if (gethostname(h->host, sizeof h->host - 1) != 0) h->host[0] = 0;
    ring_text(h->layout, sizeof h->layout, who->layout);
    ring_text(h->run, sizeof h->run, who->run);
    ring_text(h->command, sizeof h->command, who->command);
    atomic_thread_fence(memory_order_release);
    memcpy(h->magic, RING_MAGIC, sizeof h->magic);
    return TR_OK;
}

/* The place of the next event, now without its number; ring_put gives it. */
static inline ring_record *ring_take(ring *r)
{
    ring_record *e = &r->file->rec[r->n % RING_RECORDS];
    atomic_store_explicit(&e->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);      /* 0 before the new fields, */
    e->time = ring_now();
    return e;
}

static inline void ring_put(ring *r, ring_record *e)
{
    atomic_store_explicit(&e->number, ++r->n, memory_order_release);    /* the number after them */
}

/* No call into the kernel, no lock, no allocation. r NULL or zeroed: nothing. step may be NULL. */
static inline void ring_event(ring *r, ring_kind kind, int layer, int peer, uint64_t expected,
                              uint64_t arrived, const char *step)
{
    ring_record *e;
    if (!r || !r->file) return;
    e = ring_take(r);
    e->kind = (int16_t)kind;
    e->cause = RING_OWN;
    e->layer = layer;
    e->peer = peer;
    e->rank = RING_NOBODY;
    e->expected = expected;
    e->arrived = arrived;
    ring_text(e->step, sizeof e->step, step);
    ring_put(r, e);
}

/* A RING_FAIL: who told of it, whose failure it is and why, and how its sentence begins. */
static inline void ring_fail(ring *r, int layer, int by, int rank, ring_cause cause,
                             const char *sentence)
{
    ring_record *e;
    if (!r || !r->file) return;
    e = ring_take(r);
    e->kind = RING_FAIL;
    e->cause = (int16_t)cause;
    e->layer = layer;
    e->peer = by;
    e->rank = rank;
    e->expected = e->arrived = 0;
    ring_text(e->step, sizeof e->step, sentence);
    ring_put(r, e);
}

/* How this rank ends; sentence is cut to 511 bytes. The first ending stands: 1 if this is it. That
 * of a forked child is not the rank's. For signal handlers and any thread. rank: whose failure is
 * the reason, RING_NOBODY if its own, RING_ANYBODY if that of another, not known which. */
static inline int ring_end(ring *r, ring_state state, int sig, int rank, ring_cause cause,
                           const char *sentence)
{
    ring_head *h;
    if (!r || !r->file || r->pid != (int64_t)getpid() || atomic_exchange(&r->ending, 1)) return 0;
    h = &r->file->u.head;
    h->ended = ring_now();
    h->signal = sig;
    h->failed = rank < h->world ? rank : RING_ANYBODY;      /* a launcher may count otherwise */
    h->cause = (int32_t)cause;
    ring_text(h->sentence, sizeof h->sentence, sentence);
    atomic_store_explicit(&h->state, (uint32_t)state, memory_order_release);
    return 1;
}

/* The file stays. A rank that said no ending has none. */
static inline void ring_free(ring *r)
{
    if (r->file) munmap(r->file, sizeof *r->file);
    memset(r, 0, sizeof *r);
}

#endif /* _WIN32 */

/* The place (0 .. 4095) of the last event that is complete; -1: there is none. For signal handlers
 * and readers. */
static inline int ring_last(const ring_file *f)
{
    uint64_t best = 0;
    int at = -1;
    for (int i = 0; i < RING_RECORDS; i++) {
        uint64_t k = atomic_load_explicit(&f->rec[i].number, memory_order_acquire);
        if (k > best && (k - 1) % RING_RECORDS == (uint64_t)i) { best = k; at = i; }
    }
    return at;
}

/* ---- Reading */

/* One line, whatever the file holds. 0: the text has no end. */
static inline int ring_clean(char *s, size_t cap)
{
    if (!memchr(s, 0, cap)) return 0;
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
    return 1;
}

#define RING_REFUSE(cond, ...)                                                              \
    do { if (cond) return tr_fail(ctx, TR_ERR_FORMAT, "%s: " __VA_ARGS__); } while (0)

static inline tr_status ring_check_head(tr_ctx *ctx, ring_head *h, const char *path)
{
    RING_REFUSE(memcmp(h->magic, RING_MAGIC, sizeof h->magic) != 0,
                "is not the ring of a rank: it does not begin with TRRING", path);
    RING_REFUSE(h->order != RING_ORDER, "was written on a machine with another byte order", path);
    RING_REFUSE(h->version != RING_VERSION, "is a ring of version %u, not %d", path, h->version,
                RING_VERSION);
    RING_REFUSE(h->head_bytes != offsetof(ring_file, rec) || h->records != RING_RECORDS ||
                h->record_bytes != sizeof(ring_record),
                "says %u + %u x %u bytes, where a ring has %zu + %d x %zu", path, h->head_bytes,
                h->records, h->record_bytes, offsetof(ring_file, rec), RING_RECORDS,
                sizeof(ring_record));
    RING_REFUSE(h->world < 1 || h->world > RING_WORLD || h->rank < 0 || h->rank >= h->world,
                "says rank %d of %d", path, h->rank, h->world);
    RING_REFUSE(atomic_load(&h->state) >= RING_STATES, "says that it ended in a way %u, which none "
                "is", path, (unsigned)atomic_load(&h->state));
    RING_REFUSE(h->failed < RING_ANYBODY || h->failed >= h->world, "names rank %d of %d", path,
                h->failed, h->world);
    RING_REFUSE(h->cause < 0 || h->cause >= RING_CAUSES, "has a cause %d of its ending, which none "
                "is", path, h->cause);
    RING_REFUSE(!ring_clean(h->host, sizeof h->host) || !ring_clean(h->layout, sizeof h->layout) ||
                !ring_clean(h->run, sizeof h->run) || !ring_clean(h->command, sizeof h->command) ||
                !ring_clean(h->sentence, sizeof h->sentence), "a text in its head has no end",
                path);
    return TR_OK;
}

static inline tr_status ring_check_record(tr_ctx *ctx, ring_record *e, int world, const char *path)
{
    unsigned long long k = atomic_load(&e->number);
    RING_REFUSE(e->kind < 0 || e->kind >= RING_KINDS, "event %llu is of kind %d, which none is",
                path, k, (int)e->kind);
    RING_REFUSE(e->cause < 0 || e->cause >= RING_CAUSES, "event %llu has cause %d, which none is",
                path, k, (int)e->cause);
    RING_REFUSE(e->peer < RING_ANYBODY || e->peer >= world, "event %llu has peer %d of %d", path, k,
                (int)e->peer, world);
    RING_REFUSE(e->rank < RING_ANYBODY || e->rank >= world, "event %llu is the failure of rank %d "
                "of %d", path, k, (int)e->rank, world);
    RING_REFUSE(!ring_clean(e->step, sizeof e->step), "event %llu: its step has no end", path, k);
    return TR_OK;
}

/* The records of f that are whole, oldest first: numbers without a gap up to the last one. */
static inline tr_status ring_sort(tr_ctx *ctx, ring_log *out, ring_file *f, const char *path)
{
    int last = ring_last(f);
    uint64_t end = last < 0 ? 0 : atomic_load(&f->rec[last].number);
    uint64_t first = end > RING_RECORDS ? end - RING_RECORDS + 1 : 1;
    void *p;
    tr_status s;
    if (end == 0) return TR_OK;
    RING_REFUSE(end > INT64_MAX, "an event has a number that no rank comes to", path);
    s = tr_alloc(ctx, &p, (size_t)(end - first + 1) * sizeof(ring_record));
    if (s != TR_OK) return s;
    out->rec = (ring_record *)p;
    for (uint64_t k = first; k <= end; k++) {
        ring_record *e = &f->rec[(k - 1) % RING_RECORDS];
        if (atomic_load(&e->number) != k) { out->torn++; continue; }
        s = ring_check_record(ctx, e, f->u.head.world, path);
        if (s != TR_OK) return s;
        memcpy(&out->rec[out->n++], e, sizeof *e);
    }
    return TR_OK;
}

/* A copy of the file as it is now; its rank may be writing. TR_ERR_IO, TR_ERR_FORMAT say what is
 * wrong with the file; *out is then empty. */
static inline tr_status ring_open(tr_ctx *ctx, ring_log *out, const char *path)
{
    void *p;
    ring_file *f;
    size_t n;
    FILE *file;
    tr_status s;
    memset(out, 0, sizeof *out);
    file = ring_file_open(path);
    if (!file) return tr_fail(ctx, TR_ERR_IO, "%s: %s", path,
                              errno ? strerror(errno) : "is no regular file");
    s = tr_alloc(ctx, &p, sizeof *f + 1);
    if (s != TR_OK) { fclose(file); return s; }
    f = (ring_file *)p;
    errno = 0;
    n = fread(f, 1, sizeof *f + 1, file);
    if (ferror(file)) s = tr_fail(ctx, TR_ERR_IO, "%s: %s", path, strerror(errno));
    fclose(file);
    if (s == TR_OK && n >= sizeof f->u.head) s = ring_check_head(ctx, &f->u.head, path);
    if (s == TR_OK && n != sizeof *f)
        s = tr_fail(ctx, TR_ERR_FORMAT, "%s: has %s%zu bytes, where a ring has %zu", path,
                    n > sizeof *f ? "at least " : "", n, sizeof *f);
    if (s == TR_OK) {
        memcpy(&out->head, &f->u.head, sizeof out->head);
        s = ring_sort(ctx, out, f, path);
    }
    tr_free(ctx, f);
    if (s != TR_OK) { tr_free(ctx, out->rec); memset(out, 0, sizeof *out); }
    return s;
}

static inline void ring_close(tr_ctx *ctx, ring_log *l)
{
    tr_free(ctx, l->rec);
    memset(l, 0, sizeof *l);
}

#endif
