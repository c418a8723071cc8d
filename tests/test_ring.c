/* tools/ring.h, postmortem.h and watch.h: rings written, wrapped, torn, damaged, and read after
 * their writer was killed; what is said of runs that ended in each way that is known; calls that do
 * not return; signals. */

#define TRILLION_IMPLEMENTATION
#include "test.h"
#include "../tools/postmortem.h"
#include "../tools/watch.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static tr_ctx *ctx;
#define ROOT "build/ring"

static const char *fresh(const char *name)      /* an empty folder */
{
    static char path[256], cmd[600];
    snprintf(path, sizeof path, ROOT "/%s", name);
    snprintf(cmd, sizeof cmd, "rm -rf %s && mkdir -p %s", path, path);
    if (system(cmd) != 0) { printf("FAILED %s\n", cmd); exit(1); }
    return path;
}

static const char *in(const char *dir, const char *file)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, file);
    return path[turn];
}

static void pause_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static const ring_who alone = { .rank = 0, .world = 1, .layout = "ep=1", .command = "run x",
                                .run = "job 7" };

/* ---- the recorder */

static void test_round_trip(void)
{
    const char *dir = fresh("round");
    char longest[RING_SENTENCE + 100], host[64] = "";
    ring r, none;
    ring_log l;
    int64_t before = ring_now();
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    CHECK_OK(ctx, ring_create(ctx, &r, dir, &alone));
    ring_event(&r, RING_STEP, 0, RING_NOBODY, 0, 0, "self_attn");
    ring_event(&r, RING_WAIT, 5, 0, 4096, 77, "a step whose name is longer than 23 bytes");
    ring_event(&r, RING_DONE, -1, RING_ANYBODY, UINT64_MAX, 1, NULL);
    ring_fail(&r, 5, RING_ANYBODY, 0, RING_LATE, "rank 0 is late: layer 5, dispatch");
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
    gethostname(host, sizeof host - 1);
    CHECK(l.n == 4 && l.torn == 0);
    CHECK(l.head.pid == (int64_t)getpid() && !strcmp(l.head.host, host));
    CHECK(l.head.begun >= before && l.head.begun <= l.rec[0].time);
    CHECK(!strcmp(l.head.layout, "ep=1") && !strcmp(l.head.command, "run x"));
    CHECK(!strcmp(l.head.run, "job 7"));
    CHECK(l.head.state == RING_RUNNING && ring_alive(&l.head));
    CHECK(l.rec[0].kind == RING_STEP && l.rec[0].layer == 0 && l.rec[0].peer == RING_NOBODY);
    CHECK(!strcmp(l.rec[0].step, "self_attn"));
    CHECK(l.rec[1].kind == RING_WAIT && l.rec[1].layer == 5 && l.rec[1].peer == 0);
    CHECK(l.rec[1].expected == 4096 && l.rec[1].arrived == 77);
    CHECK(!strcmp(l.rec[1].step, "a step whose name is lo"));
    CHECK(l.rec[2].expected == UINT64_MAX && l.rec[2].step[0] == 0);
    CHECK(l.rec[2].rank == RING_NOBODY && l.rec[2].cause == RING_OWN);
    CHECK(l.rec[3].kind == RING_FAIL && l.rec[3].layer == 5 && l.rec[3].peer == RING_ANYBODY);
    CHECK(l.rec[3].rank == 0 && l.rec[3].cause == RING_LATE && l.rec[3].expected == 0);
    CHECK(!strcmp(l.rec[3].step, "rank 0 is late: layer 5"));
    CHECK(l.rec[0].time <= l.rec[1].time && l.rec[1].time <= l.rec[2].time);
    ring_close(ctx, &l);
    CHECK(ring_end(&r, RING_FAILED, 0, RING_NOBODY, RING_MPI, longest) == 1);
    CHECK(ring_end(&r, RING_ORDERLY, 0, 0, RING_OWN, "") == 0);     /* the first stands */
    ring_free(&r);
    ring_free(&r);
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
    CHECK(l.head.state == RING_FAILED && strlen(l.head.sentence) == RING_SENTENCE - 1);
    CHECK(l.head.ended >= l.rec[3].time);
    CHECK(l.head.failed == RING_NOBODY && l.head.cause == RING_MPI);
    ring_close(ctx, &l);
    memset(&none, 0, sizeof none);                                  /* no ring: nothing happens */
    ring_event(&none, RING_STEP, 0, 0, 0, 0, "x");
    ring_event(NULL, RING_STEP, 0, 0, 0, 0, "x");
    ring_fail(&none, 0, 0, 0, RING_OWN, "x");
    ring_fail(NULL, 0, 0, 0, RING_OWN, "x");
    CHECK(ring_end(&none, RING_ORDERLY, 0, 0, RING_OWN, "") == 0);
    CHECK(ring_end(NULL, RING_ORDERLY, 0, 0, RING_OWN, "") == 0);
}

static void test_wrap(void)
{
    static const int counts[] = { 0, 1, RING_RECORDS - 1, RING_RECORDS, RING_RECORDS + 1, 10000 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *dir = fresh("wrap");
        const int64_t n = counts[i], kept = n < RING_RECORDS ? n : RING_RECORDS;
        ring r;
        ring_log l;
        CHECK_OK(ctx, ring_create(ctx, &r, dir, &alone));
        for (int k = 0; k < n; k++)
            ring_event(&r, RING_STEP, k, RING_NOBODY, (uint64_t)k, 0, "s");
        CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
        CHECK(l.n == kept && l.torn == 0);
        for (int64_t k = 0; k < l.n; k++) {
            CHECK(l.rec[k].number == (uint64_t)(n - kept + k + 1));
            CHECK(l.rec[k].layer == n - kept + k);
        }
        ring_close(ctx, &l);
        ring_free(&r);
    }
}

static void test_torn(void)
{
    const char *dir = fresh("torn");
    ring r;
    ring_log l;
    CHECK_OK(ctx, ring_create(ctx, &r, dir, &alone));
    for (int k = 0; k < RING_RECORDS + 5; k++) ring_event(&r, RING_STEP, k, -1, 0, 0, "s");
    /* as the writer leaves it that is killed before it stores the number */
    r.file->rec[5].number = 0;
    r.file->rec[5].layer = 12345;
    memset(r.file->rec[5].step, 'x', RING_STEP_BYTES);
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
    CHECK(l.n == RING_RECORDS - 1 && l.torn == 1);
    CHECK(l.rec[0].layer == 6 && l.rec[l.n - 1].layer == RING_RECORDS + 4);
    CHECK(ring_last(r.file) == 4);
    ring_close(ctx, &l);
    r.file->rec[100].number = 70000;    /* one of another place */
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
    CHECK(l.n == RING_RECORDS - 2 && l.torn == 2);
    ring_close(ctx, &l);
    ring_free(&r);
}

static int wait_for(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) { }
    return status;
}

static void test_killed_writer(void)
{
    for (int round = 0; round < 20; round++) {
        const char *dir = fresh("killed");
        const int n = round ? 0 : 1234, step = 1;   /* the first stops there, the others go on */
        int ready[2];
        char c;
        ring_log l;
        pid_t pid;
        CHECK(pipe(ready) == 0);
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            ring r;
            if (ring_create(ctx, &r, dir, &alone) != TR_OK) _exit(1);
            for (int k = 0; k < 1234; k++) ring_event(&r, RING_STEP, k, -1, 0, 0, "s");
            if (write(ready[1], "x", 1) != 1) _exit(1);
            for (int k = 1234; k != n; k += step) ring_event(&r, RING_STEP, k, -1, 0, 0, "s");
            for (;;) pause();
        }
        CHECK(read(ready[0], &c, 1) == 1);
        if (!n) pause_ms(round % 5);
        kill(pid, SIGKILL);
        CHECK(WTERMSIG(wait_for(pid)) == SIGKILL);
        close(ready[0]);
        close(ready[1]);
        CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
        CHECK(n ? l.n == n && l.torn == 0 : l.n >= 1234 && l.torn <= 1);
        for (int64_t k = 0; k < l.n; k++) {
            CHECK(l.rec[k].layer == (int32_t)l.rec[k].number - 1);
            CHECK(k == 0 || l.rec[k].number == l.rec[k - 1].number + 1);
            CHECK(k == 0 || l.rec[k].time >= l.rec[k - 1].time);
        }
        CHECK(l.head.state == RING_RUNNING && !ring_alive(&l.head));
        ring_close(ctx, &l);
    }
}

/* ---- damaged files */

static char *image;                     /* a good ring */
static char damaged_path[512];

static tr_status open_image(const void *bytes, size_t n)
{
    ring_log l;
    FILE *f = fopen(damaged_path, "wb");
    tr_status s;
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) exit(1);
    s = ring_open(ctx, &l, damaged_path);
    if (s == TR_OK) ring_close(ctx, &l);
    else CHECK(l.rec == NULL && l.n == 0);
    return s;
}

static void test_damaged(void)
{
    static const struct { size_t at; uint32_t value; const char *words; } field[] = {
        { offsetof(ring_head, version), 1, "version 1, not 2" },
        { offsetof(ring_head, order), 0x04030201, "byte order" },
        { offsetof(ring_head, head_bytes), 8192, "8192 4096" },
        { offsetof(ring_head, record_bytes), 64, "64" },
        { offsetof(ring_head, records), 0xffffffff, "4294967295" },
        { offsetof(ring_head, rank), 4, "rank 4 of 4" },
        { offsetof(ring_head, rank), 0xffffffff, "rank -1" },
        { offsetof(ring_head, world), 0, "of 0" },
        { offsetof(ring_head, world), 0x7fffffff, "2147483647" },
        { offsetof(ring_head, state), 9, "ended 9" },
        { offsetof(ring_head, failed), 4, "rank 4 of 4" },
        { offsetof(ring_head, cause), 5, "cause 5" },
        { offsetof(ring_head, cause), 0xffffffff, "cause -1" },
        { offsetof(ring_file, rec) + offsetof(ring_record, kind), 77, "event 1 kind 77" },
        { offsetof(ring_file, rec) + offsetof(ring_record, peer), 4, "event 1 peer 4" },
        { offsetof(ring_file, rec) + offsetof(ring_record, cause), 5, "event 1 cause 5" },
        { offsetof(ring_file, rec) + offsetof(ring_record, rank), 4, "event 1 rank 4 of 4" },
        { offsetof(ring_file, rec) + offsetof(ring_record, number) + 4, 0x80000000, "number" },
    };
    static const struct { size_t at, n; const char *words; } texts[] = {
        { offsetof(ring_head, host), 64, "head no end" },
        { offsetof(ring_head, layout), 64, "head no end" },
        { offsetof(ring_head, run), 128, "head no end" },
        { offsetof(ring_head, command), 1024, "head no end" },
        { offsetof(ring_head, sentence), RING_SENTENCE, "head no end" },
        { offsetof(ring_file, rec) + offsetof(ring_record, step), RING_STEP_BYTES, "event 1 step" },
    };
    static const size_t cut[] = { 0, 1, 7, 8, 100, sizeof(ring_head) - 1, sizeof(ring_head), 4096,
                                  sizeof(ring_file) - 1 };
    const char *dir = fresh("damaged");
    const ring_who who = { .rank = 3, .world = 4 };
    const size_t size = sizeof(ring_file);
    char *bytes = (char *)malloc(size + 1);
    ring r;
    ring_log l;
    FILE *f;
    image = (char *)calloc(1, size + 1);
    if (!bytes || !image) exit(1);
    CHECK_OK(ctx, ring_create(ctx, &r, dir, &who));
    ring_event(&r, RING_WAIT, 2, 1, 10, 0, "combine");
    ring_event(&r, RING_STEP, 2, -1, 0, 0, "experts");
    ring_free(&r);
    f = fopen(in(dir, "rank-00003.ring"), "rb");
    CHECK(f && fread(image, 1, size, f) == size);
    if (f) fclose(f);
    snprintf(damaged_path, sizeof damaged_path, "%s/damaged.ring", dir);
    CHECK_OK(ctx, open_image(image, size));
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        CHECK_FAILS(ctx, TR_ERR_FORMAT, "damaged.ring bytes", open_image(image, cut[i]));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "damaged.ring at least bytes", open_image(image, size + 1));
    memset(bytes, 'a', size);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "damaged.ring TRRING", open_image(bytes, size));
    memset(bytes, 0, size);                 /* killed while it was made */
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "damaged.ring TRRING", open_image(bytes, size));
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        memcpy(bytes, image, size);
        memcpy(bytes + field[i].at, &field[i].value, 4);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, field[i].words, open_image(bytes, size));
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        memcpy(bytes, image, size);
        memset(bytes + texts[i].at, 'x', texts[i].n);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, texts[i].words, open_image(bytes, size));
    }
    memcpy(bytes, image, size);
    memcpy(bytes + offsetof(ring_head, host), "a\nb", 4);   /* one line, whatever it holds */
    CHECK_OK(ctx, open_image(bytes, size));
    CHECK_OK(ctx, ring_open(ctx, &l, damaged_path));
    CHECK(!strcmp(l.head.host, "a?b"));
    ring_close(ctx, &l);
    for (size_t i = 0; i < sizeof(ring_head) + 300; i++) {          /* refused or read: no crash */
        size_t at = i < sizeof(ring_head) ? i : 4096 + i - sizeof(ring_head);
        memcpy(bytes, image, size);
        bytes[at] = (char)~bytes[at];
        if (i % 3 == 0 || i >= sizeof(ring_head)) open_image(bytes, size);
    }
    CHECK_FAILS(ctx, TR_ERR_IO, "none.ring No such file", ring_open(ctx, &l, in(dir, "none.ring")));
    CHECK_FAILS(ctx, TR_ERR_IO, "damaged no regular file", ring_open(ctx, &l, dir));
    CHECK(mkfifo(in(dir, "pipe.ring"), 0600) == 0);         /* that nobody writes to */
    CHECK_FAILS(ctx, TR_ERR_IO, "pipe.ring no regular file",
                ring_open(ctx, &l, in(dir, "pipe.ring")));
    CHECK(ring_writer(in(dir, "pipe.ring")) == 0);
    free(bytes);
    free(image);
}

static void test_no_room(void)
{
    const char *dir = fresh("full");
    char cmd[600];
    ring r;
    pid_t pid;
    CHECK_FAILS(ctx, TR_ERR_IO, "nowhere/rank-00000.ring No such", ring_create(ctx, &r,
                "build/ring/nowhere", &alone));
    CHECK_FAILS(ctx, TR_ERR_ARG, "rank 5 of 2", ring_create(ctx, &r, dir,
                &(ring_who){ .rank = 5, .world = 2 }));
    fflush(stdout);
    pid = fork();
    if (pid == 0) {                         /* a limit on the size of files */
        struct rlimit small = { 100000, 100000 };
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
        test_bad = 0;
        CHECK_FAILS(ctx, TR_ERR_IO, "rank-00000.ring cannot made large", ring_create(ctx, &r, dir,
                    &alone));
        CHECK(r.file == NULL && access(in(dir, "rank-00000.ring"), F_OK) != 0);
        fflush(stdout);
        _exit(test_bad != 0);
    }
    CHECK(wait_for(pid) == 0);
    snprintf(cmd, sizeof cmd, "mount -t tmpfs -o size=64k none %s 2> /dev/null", dir);
    if (system(cmd) != 0) return;           /* not allowed here */
    CHECK_FAILS(ctx, TR_ERR_IO, "rank-00000.ring bytes No space left", ring_create(ctx, &r, dir,
                &alone));
    CHECK(r.file == NULL && access(in(dir, "rank-00000.ring"), F_OK) != 0);
    ring_free(&r);                          /* a mapped one keeps the folder busy */
    snprintf(cmd, sizeof cmd, "umount %s", dir);
    CHECK(system(cmd) == 0);
}

/* A ring that a process still has mapped is not cut under it by the next run. */
static void test_replaced(void)
{
    const char *dir = fresh("replaced");
    ring old, r;
    ring_log l;
    CHECK_OK(ctx, ring_create(ctx, &old, dir, &alone));
    CHECK_OK(ctx, ring_create(ctx, &r, dir, &alone));
    ring_event(&old, RING_STEP, 1, -1, 0, 0, "old");
    ring_event(&r, RING_STEP, 2, -1, 0, 0, "new");
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00000.ring")));
    CHECK(l.n == 1 && l.rec[0].layer == 2);
    ring_close(ctx, &l);
    ring_free(&old);
    ring_free(&r);
}

/* ---- verdicts, of rings that are written here. Times are seconds after T0. */

static const int64_t T0 = 1700000000LL * 1000000000;
enum { WORLD = 4 };
static ring faked[WORLD];
static const char *fake_dir;

static int64_t at(double s) { return T0 + (int64_t)(s * 1e9); }

static void fake(const char *name, unsigned without)        /* without: a bit a rank */
{
    fake_dir = fresh(name);
    for (int i = 0; i < WORLD; i++) {
        ring_who who = { .rank = i, .world = WORLD, .layout = "pp=2,ep=2", .command = "run" };
        if (without >> i & 1) continue;
        CHECK_OK(ctx, ring_create(ctx, &faked[i], fake_dir, &who));
        faked[i].file->u.head.begun = at(0);
        faked[i].file->u.head.pid = 1000 + i;
        snprintf(faked[i].file->u.head.host, 64, "node-%d", i);
        ring_event(&faked[i], RING_STEP, -1, -1, 0, 0, "embed");
        faked[i].file->rec[0].time = at(0.1);
    }
}

static void ev(int rank, double t, ring_kind kind, int layer, int peer, const char *step)
{
    ring *r = &faked[rank];
    ring_event(r, kind, layer, peer, 4096, 0, step);
    r->file->rec[(r->n - 1) % RING_RECORDS].time = at(t);
}

static void ev_fail(int rank, double t, int by, int whose, ring_cause cause, const char *said)
{
    ring *r = &faked[rank];
    ring_fail(r, -1, by, whose, cause, said);
    r->file->rec[(r->n - 1) % RING_RECORDS].time = at(t);
}

static void fin(int rank, double t, ring_state state, int whose, ring_cause cause, const char *said)
{
    CHECK(ring_end(&faked[rank], state, 0, whose, cause, said));
    faked[rank].file->u.head.ended = at(t);
}

static void orderly(int rank, double t) { fin(rank, t, RING_ORDERLY, RING_NOBODY, RING_OWN, ""); }

static void told(int rank, double t, int by, int whose, ring_cause cause, const char *said)
{
    ev_fail(rank, t, by, whose, cause, said);
    fin(rank, t + 0.01, RING_FAILED, whose, cause, said);
}

/* It told the others: of itself, or that another is late. */
static void failed(int rank, double t, ring_cause cause, const char *said)
{
    told(rank, t, RING_NOBODY, rank, cause, said);
}

static void gave_up(int rank, double t, int late, const char *said)
{
    told(rank, t, RING_NOBODY, late, RING_LATE, said);
}

static void ended_by(int rank, double t, int sig)
{
    CHECK(ring_end(&faked[rank], RING_SIGNALLED, sig, RING_NOBODY, RING_OWN, "ended"));
    faked[rank].file->u.head.ended = at(t);
}

static void signalled(int rank, double t) { ended_by(rank, t, SIGTERM); }

static void verdict_(pm_why why, int first, const char *words, int line)
{
    pm p;
    pm_verdict v;
    char w[256];
    for (int i = 0; i < WORLD; i++) ring_free(&faked[i]);
    if (pm_read(ctx, &p, fake_dir) != TR_OK) {
        test_bad++;
        printf("  %d: %s\n", line, tr_err_last(ctx));
        return;
    }
    v = pm_judge(&p);
    if (v.why != why || v.first != first) {
        test_bad++;
        printf("  %d: expected %s of rank %d, got %s of rank %d: %s\n", line, pm_why_name(why),
               first, pm_why_name(v.why), v.first, v.sentence);
    }
    for (; *words; words += strspn(words, "|")) {
        size_t n = strcspn(words, "|");
        snprintf(w, sizeof w, "%.*s", (int)n, words);
        if (!strstr(v.sentence, w)) {
            test_bad++;
            printf("  %d: no \"%s\" in \"%s\"\n", line, w, v.sentence);
        }
        words += n;
    }
    if (getenv("TEST_SAY")) printf("  %s: %s\n", fake_dir, v.sentence);
    pm_free(ctx, &p);
}
#define VERDICT(why, first, words) verdict_(why, first, words, __LINE__)

static void test_in_order(void)
{
    fake("fine", 0);
    for (int i = 0; i < WORLD; i++) {
        ev(i, 1, RING_END, -1, -1, NULL);
        orderly(i, 1 + i);
    }
    VERDICT(PM_FINE, -1, "all 4 ranks ended in order");
}

/* SIGKILL: the launcher ends the others. */
static void test_killed(void)
{
    fake("kill-1", 0);
    ev(0, 5.0, RING_WAIT, 3, 1, "dispatch");
    ev(1, 4.9, RING_STEP, 3, -1, "experts");
    ev(2, 5.0, RING_WAIT, 3, 0, "combine");
    ev(3, 5.1, RING_STEP, 4, -1, "mla");
    signalled(0, 5.2); signalled(2, 5.2); signalled(3, 5.2);
    VERDICT(PM_KILLED, 1, "rank 1 was killed without a word|in layer 3, step experts");

    fake("kill-2", 0);                  /* while it waited for one that lived */
    ev(0, 5.0, RING_STEP, 3, -1, "experts");
    ev(1, 4.0, RING_STEP, 3, -1, "experts");
    ev(2, 5.0, RING_WAIT, 3, 0, "combine");
    ev(3, 5.1, RING_WAIT, 4, 1, "dispatch");
    signalled(0, 5.2); signalled(1, 5.2); signalled(2, 5.2);
    VERDICT(PM_KILLED, 3, "rank 3 was killed|layer 4, step dispatch, waiting for rank 1");

    fake("kill-3", 0);                  /* noticed by those that waited, not by the launcher */
    ev(0, 5.0, RING_WAIT, 3, 1, "dispatch");
    ev(1, 4.9, RING_WAIT, 3, 0, "dispatch");
    ev(2, 5.0, RING_WAIT, 3, 1, "dispatch");
    ev(3, 5.0, RING_WAIT, 3, 1, "dispatch");
    gave_up(0, 15.0, 1, "rank 1 is late: layer 3, dispatch, 4096 bytes expected, 0 came");
    gave_up(2, 15.1, 1, "rank 1 is late");
    signalled(3, 15.1);
    VERDICT(PM_LATE, 1, "rank 1 stopped first, in layer 3, step dispatch|10.1 s before others gave "
            "up|no ending|rank 0 said: rank 1 is late: layer 3, dispatch, 4096");

    fake("kill-5", 0);                  /* 3 was ended by the launcher; both waited */
    ev(0, 5.02, RING_WAIT, -1, 3, "next tokens");
    ev(1, 5.02, RING_WAIT, -1, 0, "next tokens");
    ev(2, 4.9, RING_WAIT, -1, 0, "agreement");
    ev(3, 5.01, RING_WAIT, 5, 2, "hidden state");
    signalled(0, 6.0); signalled(1, 6.0);
    VERDICT(PM_KILLED, 2, "rank 2 was killed without a word|step agreement|; rank 3 has no ending "
            "either");

    fake("kill-6", 0);
    ev(0, 5.02, RING_WAIT, -1, 1, "agreement");
    ev(1, 5.02, RING_WAIT, 1, 0, "hidden state");
    ev(2, 4.96, RING_WAIT, -1, 0, "agreement");
    ev(3, 5.02, RING_WAIT, 5, 2, "hidden state");
    signalled(1, 6.0);
    VERDICT(PM_KILLED, 2, "rank 2 was killed|; ranks 0 and 3 have no ending either (the launcher "
            "may have ended them later)");

    fake("kill-7", 0);                  /* 3 waited longer than 0 computed */
    ev(0, 5.2, RING_STEP, 0, -1, "short convolution");
    for (int i = 1; i < WORLD; i++) ev(i, 5.0, RING_WAIT, 2, 0, "counts");
    signalled(1, 6.0); signalled(2, 6.0);
    VERDICT(PM_KILLED, 0, "rank 0 was killed|short convolution|; rank 3 has no ending either");

    fake("kill-4", 0);                  /* while it waited for one that MPI then ended, too */
    ev(0, 5.0, RING_WAIT, 3, 1, "combine");
    ev(1, 4.9, RING_WAIT, 3, 0, "combine");
    ev(2, 5.0, RING_WAIT, 3, 1, "combine");
    ev(3, 5.1, RING_WAIT, 4, 0, "dispatch");
    signalled(2, 5.2); signalled(3, 5.2);
    VERDICT(PM_KILLED, 1, "rank 1 was killed without a word|step combine, waiting for rank 0");
}

/* Lists of ranks: by number, from four in a row as ranges, the rest of many counted. */
static void test_gone(void)
{
    static pm_rank r[60];
    const pm p = { .world = 60, .rank = r };
    static const struct { const char *gone, *said; } list[] = {      /* gone: '-' */
        { "..-.", "rank 2" }, { "-.-.", "ranks 0 and 2" }, { "--.-", "ranks 0, 1 and 3" },
        { ".---.----..-", "ranks 1, 2, 3, 5-8 and 11" }, { "----------", "ranks 0-9" },
        { "-.-.-.-.-.-.-.-.-.-.-.-.-.-.-.-.-.-.-",
          "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 3 more" } };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const char *s = list[k].gone;
        pm_verdict v;
        int n = 0;
        memset(&v, 0, sizeof v);
        for (int i = 0; i < 60; i++) r[i].end = PM_SIGNALLED;
        for (int i = 0; s[i]; i++) if (s[i] == '-') { r[i].end = PM_SILENT; n++; }
        r[59].end = PM_SILENT;
        pm_put_gone(&p, &v, 59, n);
        CHECK(!strcmp(v.sentence, list[k].said));
    }
}

/* SIGSTOP: the others' deadline passes; the launcher then ends the stopped one with SIGKILL, or
 * lets it go on to its SIGTERM. */
static void test_stopped(void)
{
    fake("stop-1", 0);
    ev(0, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(1, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(2, 4.8, RING_STEP, 3, -1, "experts");
    ev(3, 5.0, RING_WAIT, 3, 1, "dispatch");
    gave_up(0, 15.0, 2, "rank 2 is late in layer 3");
    gave_up(1, 15.0, 2, "rank 2 is late in layer 3");
    gave_up(3, 15.0, 2, "rank 2 is late in layer 3");
    VERDICT(PM_LATE, 2, "rank 2 stopped first|layer 3, step experts|10.2 s before others|stopped "
            "and killed");

    fake("stop-2", 0);                  /* SIGCONT, SIGTERM */
    ev(0, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(1, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(2, 4.8, RING_WAIT, 3, 0, "dispatch");
    ev(3, 5.0, RING_WAIT, 3, 1, "dispatch");
    gave_up(0, 15.0, 2, "in layer 3, dispatch: rank 2 is late");
    signalled(1, 15.1); signalled(2, 15.3); signalled(3, 15.1);
    VERDICT(PM_LATE, 2, "rank 2 stopped first|lived until signal 15|stopped, or slow");

    fake("stop-4", 0);                  /* goes on, and hears what was said of it */
    ev(0, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(1, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(2, 4.8, RING_WAIT, 3, 0, "dispatch");
    ev(3, 5.0, RING_DONE, 3, 0, "dispatch");
    ev(0, 15.0, RING_WAIT, 3, 2, "dispatch");       /* as at its deadline, with what arrived */
    gave_up(0, 15.0, 2, "rank 2 is late: layer 3, dispatch: rank 2 had 0 of 4096 bytes in 10.0 s");
    told(1, 15.1, 0, 2, RING_LATE, "rank 2 is late: layer 3, dispatch");
    told(3, 15.1, 0, 2, RING_LATE, "rank 2 is late: layer 3, dispatch");
    told(2, 20.0, 3, 1, RING_LATE, "rank 1 is late: rank 3 waits for rank 1");
    VERDICT(PM_LATE, 2, "rank 2 stopped first, in layer 3, step dispatch|stopped for a time|"
            "rank 0 said: rank 2 is late: layer 3, dispatch: rank 2 had");

    fake("stop-6", 0);                  /* goes on for a while, before it is ended */
    ev(0, 5.0, RING_WAIT, 3, 3, "dispatch");
    ev(1, 5.0, RING_WAIT, 3, 0, "dispatch");
    ev(2, 4.8, RING_STEP, 3, -1, "experts");
    ev(3, 5.0, RING_WAIT, 3, 2, "dispatch");
    gave_up(3, 15.0, 2, "rank 2 is late: layer 3, dispatch");
    gave_up(0, 15.0, 3, "rank 3 is late: layer 3, dispatch");
    ev(0, 15.1, RING_WAIT, -1, RING_ANYBODY, "MPI_Abort");
    ev(3, 15.1, RING_WAIT, -1, RING_ANYBODY, "MPI_Abort");
    ev(2, 17.0, RING_WAIT, 3, 1, "dispatch");
    signalled(1, 16.0); signalled(2, 17.1);
    VERDICT(PM_LATE, 2, "rank 2 stopped first, in layer 3, step experts, 10.2 s before others");

    fake("stop-5", 1);                  /* the ring of the one that gave up is lost */
    ev(2, 4.8, RING_STEP, 3, -1, "experts");
    told(1, 15.1, 0, 2, RING_LATE, "rank 2 is late: layer 3, dispatch");
    told(3, 15.1, 0, 2, RING_LATE, "rank 2 is late: layer 3, dispatch");
    VERDICT(PM_LATE, 2, "rank 2 stopped first|rank 1 said: rank 2 is late");

    fake("stop-3", 0);                  /* through a chain: 0 names 1, which waits for 3 */
    ev(0, 5.0, RING_WAIT, 3, 1, "stage");
    ev(1, 5.5, RING_WAIT, 2, 3, "rows");
    ev(2, 5.0, RING_WAIT, 2, 1, "rows");
    ev(3, 4.0, RING_STEP, 2, -1, "kda");
    gave_up(0, 15.0, 1, "rank 1 is late");
    signalled(1, 15.1); signalled(2, 15.1); signalled(3, 15.1);
    VERDICT(PM_LATE, 3, "rank 3 stopped first|step kda");
}

/* Stopped while it waits, in a circle with those that wait for it: their words decide. */
static void test_stopped_in_circle(void)
{
    static const char said[] = "rank 2 is late: layer 5, hidden state: rank 3 had 0 of 960 bytes";
    fake("ring-1", 0);
    ev(0, 5.0008, RING_WAIT, -1, 3, "next tokens");
    ev(1, 5.0003, RING_WAIT, -1, 0, "next tokens");
    ev(2, 4.9999, RING_WAIT, 3, 1, "hidden state");
    ev(3, 4.9995, RING_WAIT, 5, 2, "hidden state");
    ev(3, 8.0, RING_WAIT, 5, 2, "hidden state");
    gave_up(3, 8.0, 2, said);
    told(0, 8.001, 3, 2, RING_LATE, said);
    told(1, 8.002, 3, 2, RING_LATE, said);
    ev(2, 8.05, RING_STEP, 3, -1, "norm");              /* woken, for a moment */
    signalled(2, 8.06);
    VERDICT(PM_LATE, 2, "rank 2 stopped first, in layer 3, step hidden state, waiting for rank 1, "
            "3.0 s before others gave up|rank 3 said: rank 2 is late: layer 5");

    fake("ring-2", 0);                  /* most sentences; rank 1 is named once, and first */
    for (int i = 0; i < WORLD; i++) ev(i, 5.0, RING_WAIT, 3, (i + 3) % WORLD, "rows");
    gave_up(3, 8.0, 1, "rank 1 is late: rank 3 waits for rank 2 in layer 3, rows, which waits");
    gave_up(2, 8.1, 1, "rank 1 is late: layer 3, rows: rank 2 had 0 of 4096 bytes in 3.0 s");
    told(0, 7.9, 3, 3, RING_OWN, "rank 3: it reads no more");
    signalled(1, 8.3);
    VERDICT(PM_LATE, 1, "rank 1 stopped first");

    fake("ring-3", 0);                  /* the one it waited for was busy all the time */
    ev(0, 5.0, RING_WAIT, 3, 2, "rows");
    ev(2, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 7.99, RING_STEP, 3, -1, "experts");
    gave_up(0, 8.0, 2, "rank 2 is late: layer 3, rows: rank 0 had 0 of 4096 bytes in 3.0 s");
    signalled(1, 8.3); signalled(2, 8.3); signalled(3, 8.3);
    VERDICT(PM_LATE, 2, "rank 2 stopped first, in layer 3, step rows, waiting for rank 1");
}

/* Woken by the launcher, it hears what was said of it, and ends with that. */
static void test_woken(void)
{
    static const char said[] = "rank 2 is late: layer 4, counts: rank 1 had 0 of 64 bytes in 3.0 s";
    for (int how = 0; how < 2; how++) {
        fake(how == 0 ? "woken-1" : "woken-2", 0);
        ev(0, 5.0, RING_WAIT, 4, 1, "answers");
        ev(1, 5.0, RING_WAIT, 4, 2, "counts");
        ev(2, 5.0, RING_STEP, 4, -1, "counts");
        ev(3, 5.0, RING_WAIT, 4, 1, "answers");
        gave_up(1, 8.0, 2, said);
        told(0, 8.1, 1, 2, RING_LATE, said);
        ev(2, 8.2, RING_STEP, 5, -1, "mla");
        ev(2, 8.3, RING_WAIT, 5, 1, "rows");
        if (how == 0) ev_fail(2, 8.4, 1, 2, RING_LATE, said);   /* else not yet */
        fin(2, 8.4, RING_FAILED, 2, RING_LATE, said);
        signalled(3, 8.5);
        VERDICT(PM_LATE, 2, "rank 2 was stopped or slow: silent for 3.0 s in layer 4, step counts; "
                "rank 1 gave up waiting for it: rank 2 is late: layer 4, counts: rank 1 had 0");
    }

    fake("woken-3", 0);                 /* it went on until its ring held nothing else */
    ev(1, 5.0, RING_WAIT, 4, 2, "counts");
    gave_up(1, 8.0, 2, said);
    for (int i = 0; i < RING_RECORDS; i++) ev(2, 8.1, RING_STEP, 5, -1, "mla");
    signalled(0, 8.4); signalled(2, 8.4); signalled(3, 8.4);
    VERDICT(PM_LATE, 2, "rank 2 stopped first, in layer 5, step mla");
}

static void test_own(void)
{
    fake("own-0", 0);                   /* the agreement only tells of it */
    ev(2, 1.0, RING_STEP, -1, -1, "opening the model");
    ev(2, 1.4, RING_STEP, -1, -1, "agreement");
    ev(2, 1.4, RING_WAIT, -1, 0, "agreement");
    ev(2, 1.5, RING_DONE, -1, 0, "agreement");
    failed(2, 1.5, RING_OWN, "a shard is too short");
    for (int i = 0; i < WORLD; i++)
        if (i != 2) told(i, 1.6, 0, 2, RING_OWN, "rank 2: a shard is too short");
    VERDICT(PM_OWN, 2, "rank 2 failed first, in step opening the model: a shard");

    fake("nan", 0);
    for (int i = 0; i < WORLD; i++) ev(i, 5.0, RING_STEP, 3, -1, "experts");
    failed(2, 5.5, RING_OWN, "layer 3, experts: element 7 is NaN");
    told(0, 5.6, 2, 2, RING_OWN, "rank 2: layer 3, experts: element 7 is NaN");
    told(1, 5.4, 2, 2, RING_OWN, "rank 2: layer 3, experts: element 7 is NaN"); /* another clock */
    signalled(3, 5.7);
    VERDICT(PM_OWN, 2, "rank 2 failed first, in layer 3, step experts: layer 3, experts: element");

    fake("crash", 0);
    for (int i = 0; i < WORLD; i++) ev(i, 5.0, RING_STEP, 3, -1, "experts");
    ended_by(1, 5.1, SIGSEGV);
    signalled(0, 5.2); signalled(2, 5.2); signalled(3, 5.2);
    VERDICT(PM_OWN, 1, "rank 1 crashed first|signal 11 (SIGSEGV)");

    fake("agreed", 0);                  /* all end with the sentence of one */
    for (int i = 0; i < WORLD; i++)
        fin(i, 2.0 + i, RING_FAILED, 2, RING_OWN, i == 2 ? "model.safetensors: the file is cut" :
            "rank 2: model.safetensors: the file is cut");
    VERDICT(PM_OWN, 2, "rank 2 failed first, in step embed: model.safetensors");

    fake("mpi", 1u << 3);               /* what MPI says to one, because another is lost */
    ev(1, 5.0, RING_WAIT, 3, 3, "rows");
    failed(1, 5.1, RING_MPI, "rows: MPI says: connection reset");
    signalled(0, 5.2); signalled(2, 5.2);
    VERDICT(PM_ABSENT, 3, "rank 3 left no ring|rank 1 said: rows: MPI says");

    fake("mpi-own", 0);
    failed(1, 5.1, RING_MPI, "rows: MPI says: no memory");
    signalled(0, 5.2); signalled(2, 5.2); signalled(3, 5.2);
    VERDICT(PM_OWN, 1, "rank 1 failed first");

    fake("unsaid", 0);                  /* killed between its failure and its ending */
    ev(3, 5.0, RING_STEP, 7, -1, "mla");
    ev_fail(3, 5.1, RING_NOBODY, 3, RING_OWN, "out of memory");
    signalled(0, 5.2); signalled(1, 5.2); signalled(2, 5.2);
    VERDICT(PM_OWN, 3, "rank 3 failed first, in layer 7, step mla: out of memory");

    fake("unsaid-2", 0);
    ev(3, 5.0, RING_WAIT, 7, 1, "rows");
    ev_fail(3, 15.0, RING_NOBODY, 1, RING_LATE, "rank 1 is late: layer 7");
    signalled(0, 15.2); signalled(1, 15.2); signalled(2, 15.2);
    VERDICT(PM_LATE, 1, "rank 1 stopped first, in step embed|rank 3 said: rank 1 is late: layer 7");

    fake("words", 0);                   /* what stands in a sentence names nobody */
    ev(0, 5.0, RING_WAIT, 3, 2, "rows");
    failed(2, 5.1, RING_OWN, "rank 1 is late: deadlock: MPI says/x.json: no such file");
    for (int i = 0; i < WORLD; i++)
        if (i != 2) told(i, 5.2, 2, 2, RING_OWN, "rank 2: rank 1 is late: deadlock: MPI says/x");
    VERDICT(PM_OWN, 2, "rank 2 failed first, in step embed: rank 1 is late: deadlock: MPI says/x");

    fake("late-then-own", 0);           /* what failed after others gave up was not the first */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    gave_up(0, 15.0, 1, "rank 1 is late");
    failed(2, 16.0, RING_OWN, "no space left on device");
    signalled(1, 16.2); signalled(3, 16.2);
    VERDICT(PM_LATE, 1, "rank 1 stopped first");
}

static void test_deadlock(void)
{
    fake("circle", 0);
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 5.1, RING_WAIT, 4, 2, "combine");
    ev(2, 5.2, RING_WAIT, 3, 0, "rows");
    ev(3, 5.2, RING_WAIT, 3, 2, "rows");
    gave_up(0, 15.0, 1, "rank 1 is late");
    gave_up(1, 15.0, 2, "rank 2 is late");
    gave_up(2, 15.0, 0, "rank 0 is late");
    gave_up(3, 15.0, 2, "rank 2 is late");
    VERDICT(PM_DEADLOCK, 0, "deadlock: rank 0 waits for rank 1 (layer 3, step rows), rank 1 waits "
            "for rank 2 (layer 4, step combine), rank 2 waits for rank 0");

    fake("circle-2", 0);                /* 1 did not tell at half of its deadline that it waits */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 5.1, RING_WAIT, 4, 0, "combine");
    gave_up(0, 15.0, 1, "rank 1 is late");
    signalled(1, 15.1); signalled(2, 15.1); signalled(3, 15.1);
    VERDICT(PM_LATE, 1, "rank 1 stopped first, in layer 4, step combine, waiting for rank 0|9.9 s");

    fake("circle-4", 0);                /* what waits says so again at its deadline */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 5.1, RING_WAIT, 4, 0, "combine");
    ev(1, 14.9, RING_WAIT, 4, 0, "combine");
    gave_up(0, 15.0, 1, "rank 1 is late");
    signalled(1, 15.1); signalled(2, 15.1); signalled(3, 15.1);
    VERDICT(PM_LATE, 1, "rank 1 stopped first, in layer 4, step combine, waiting for rank 0|9.9 s");

    fake("circle-3", 0);                /* found by one of them */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 4.9, RING_WAIT, 4, 2, "combine");
    ev(2, 5.2, RING_WAIT, 3, 0, "rows");
    ev(3, 5.2, RING_STEP, 3, -1, "mla");
    failed(0, 15.0, RING_DEADLOCK, "deadlock: in layer 3, rows it waits for rank 1, and that, over "
           "others, for it (10.0 s)");
    for (int i = 1; i < 4; i++)
        told(i, 15.0, 0, 0, RING_DEADLOCK, "rank 0: deadlock: in layer 3, rows it waits for");
    VERDICT(PM_DEADLOCK, 0, "deadlock: rank 0 waits for rank 1|rank 1 waits for rank 2 (layer 4");

    fake("branches", 0);
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 5.0, RING_WAIT, 3, 0, "combine");
    failed(0, 5.1, RING_UNLIKE, "rank 1 is in layer 3, combine while rank 0 is in layer 3, rows: "
           "they took different branches");
    for (int i = 1; i < 4; i++)
        told(i, 5.2, 0, 0, RING_UNLIKE, "rank 1 is in layer 3, combine while rank 0 is in");
    VERDICT(PM_OWN, 0, "rank 0 failed first, in layer 3, step rows|they took different branches");

    fake("left", 0);                    /* another branch */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    orderly(1, 5.0);
    gave_up(0, 15.0, 1, "rank 1 is late");
    signalled(2, 15.1); signalled(3, 15.1);
    VERDICT(PM_LEFT, 1, "rank 1 ended in order while others still waited");
}

static void test_all_silent(void)
{
    fake("power", 0);
    ev(0, 5.0, RING_WAIT, 3, 2, "dispatch");
    ev(1, 4.0, RING_WAIT, 3, 2, "dispatch");
    ev(2, 4.5, RING_STEP, 3, -1, "experts");
    ev(3, 5.0, RING_STEP, 3, -1, "experts");
    VERDICT(PM_KILLED, 2, "no rank left an ending|rank 2 was killed or stopped first|layer 3");

    fake("power-circle", 0);
    for (int i = 0; i < WORLD; i++) ev(i, 5.0, RING_WAIT, 3, (i + 1) % WORLD, "rows");
    VERDICT(PM_DEADLOCK, 0, "rank 3 waits for rank 0");
}

static void test_missing(void)
{
    fake("absent", 1u << 2);
    for (int i = 0; i < WORLD; i++)
        if (i != 2) ev(i, 1.0, RING_WAIT, -1, RING_ANYBODY, "MPI_Init");
    gave_up(0, 31, RING_ANYBODY, "MPI_Init did not return within 30 s");
    gave_up(1, 31, RING_ANYBODY, "MPI_Init did not return within 30 s");
    signalled(3, 31);
    VERDICT(PM_ABSENT, 2, "rank 2 left no ring|rank 0 said: MPI_Init did not");

    fake("absent-2", 1u << 2);
    ev(0, 1.0, RING_WAIT, 3, 2, "rows");
    gave_up(0, 11, 2, "rank 2 is late");
    VERDICT(PM_ABSENT, 2, "rank 2 left no ring");

    fake("absent-3", 1u << 3);
    for (int i = 0; i < 3; i++) orderly(i, 5);
    VERDICT(PM_ABSENT, 3, "rank 3 left no ring");

    fake("init", 0);                    /* one stopped on its way into MPI_Init */
    for (int i = 0; i < 3; i++) {
        ev(i, 1.0, RING_WAIT, -1, RING_ANYBODY, "MPI_Init");
        gave_up(i, 31, RING_ANYBODY, "MPI_Init did not return within 30 s");
    }
    signalled(3, 31.2);
    VERDICT(PM_LATE, 3, "rank 3 stopped first, in step embed");

    fake("init-all", 0);
    for (int i = 0; i < WORLD; i++) {
        ev(i, 1.0, RING_WAIT, -1, RING_ANYBODY, "MPI_Init");
        gave_up(i, 31, RING_ANYBODY, "MPI_Init did not return within 30 s");
    }
    VERDICT(PM_UNKNOWN, -1, "every rank waited|rank 0 said: MPI_Init");
}

static void test_outside(void)
{
    fake("cancel", 0);
    for (int i = 0; i < WORLD; i++) ev(i, 5.0 + 0.1 * i, RING_STEP, 3, -1, "experts");
    for (int i = 0; i < WORLD; i++) signalled(i, i == 2 ? 5.5 : 5.6);
    VERDICT(PM_OUTSIDE, 2, "ended from outside, rank 2 first, by signal 15 (SIGTERM), in layer 3");

    fake("cancel-2", 0);                /* somebody had enough of a run that hung */
    ev(0, 5.0, RING_WAIT, 3, 1, "rows");
    ev(1, 4.5, RING_STEP, 3, -1, "mla");
    ev(2, 5.0, RING_WAIT, 3, 1, "rows");
    ev(3, 5.0, RING_WAIT, 3, 0, "rows");
    for (int i = 0; i < WORLD; i++) signalled(i, 60 + 0.01 * i);
    VERDICT(PM_OUTSIDE, 1, "rank 0 first|rank 1, which waited for nobody, had been silent for "
            "55.5 s in layer 3, step mla");
}

static char tool_out[1 << 16];
static int tool(const char *args);

/* Ranks that are still there: real processes, one of them stopped. */
static void test_alive(void)
{
    const char *dir = fresh("alive");
    pid_t pid[3];
    pm p;
    pm_verdict v;
    for (int i = 0; i < 3; i++) {
        int ready[2];
        char c;
        CHECK(pipe(ready) == 0);
        fflush(stdout);
        pid[i] = fork();
        if (pid[i] == 0) {
            ring_who who = { .rank = i, .world = 3 };
            ring r;
            if (ring_create(ctx, &r, dir, &who) != TR_OK) _exit(1);
            ring_event(&r, i == 1 ? RING_STEP : RING_WAIT, 2, i == 1 ? -1 : 1, 8, 0, "rows");
            if (write(ready[1], "x", 1) != 1) _exit(1);
            for (;;) pause();
        }
        CHECK(read(ready[0], &c, 1) == 1);
        close(ready[0]);
        close(ready[1]);
    }
    CHECK(ring_writer(in(dir, "rank-00001.ring")) == (int64_t)pid[1]);
    CHECK(ring_writer(in(dir, "none.ring")) == 0);
    CHECK_OK(ctx, pm_read(ctx, &p, dir));
    v = pm_judge(&p);
    CHECK(v.why == PM_RUNNING && v.first == 1 && strstr(v.sentence, "all 3 ranks are still there"));
    CHECK(pm_is_healthy(&p) && strstr(v.sentence, "step rows, silent for 0."));
    CHECK(tool(dir) == 1 && strstr(tool_out, "s silent") && !strchr(tool_out, '*'));
    pm_free(ctx, &p);
    kill(pid[1], SIGSTOP);
    waitpid(pid[1], NULL, WUNTRACED);
    CHECK_OK(ctx, pm_read(ctx, &p, dir));
    v = pm_judge(&p);
    CHECK(v.first == 1 && strstr(v.sentence, "is stopped") && !pm_is_healthy(&p));
    CHECK(tool(dir) == 1 && strstr(tool_out, "\n*     1 "));
    pm_free(ctx, &p);
    kill(pid[1], SIGCONT);
    kill(pid[2], SIGSTOP);              /* a stopped one before one that runs */
    waitpid(pid[2], NULL, WUNTRACED);
    CHECK_OK(ctx, pm_read(ctx, &p, dir));
    v = pm_judge(&p);
    CHECK(v.first == 2 && strstr(v.sentence, "is stopped"));
    pm_free(ctx, &p);
    for (int i = 0; i < 3; i++) {
        kill(pid[i], SIGKILL);
        wait_for(pid[i]);
    }
    CHECK(ring_writer(in(dir, "rank-00001.ring")) == 0);
    CHECK_OK(ctx, pm_read(ctx, &p, dir));
    v = pm_judge(&p);
    CHECK(v.why == PM_KILLED && v.first == 1);
    pm_free(ctx, &p);
}

/* ---- folders that are no run */

static void copy_file(const char *from, const char *to)
{
    char cmd[1200];
    snprintf(cmd, sizeof cmd, "cp %s %s", from, to);
    CHECK(system(cmd) == 0);
}

static void test_folders(void)
{
    const char *dir = fresh("empty");
    pm p;
    FILE *f;
    CHECK_FAILS(ctx, TR_ERR_MISSING, "empty .ring", pm_read(ctx, &p, dir));
    CHECK_FAILS(ctx, TR_ERR_IO, "nowhere No such", pm_read(ctx, &p, ROOT "/nowhere"));
    f = fopen(in(dir, "notes.ring"), "w");
    if (f) { fputs("not a ring\n", f); fclose(f); }
    CHECK_FAILS(ctx, TR_ERR_MISSING, "notes.ring 11 bytes", pm_read(ctx, &p, dir));
    copy_file(ROOT "/fine/rank-00001.ring", in(dir, "rank-00001.ring"));
    CHECK_OK(ctx, pm_read(ctx, &p, dir));               /* one is enough; the other is told of */
    CHECK(p.world == WORLD && p.known == 1 && p.n_damaged == 1);
    CHECK(p.n_damaged == 1 && strstr(p.damaged[0], "notes.ring"));
    pm_free(ctx, &p);
    copy_file(ROOT "/fine/rank-00001.ring", in(dir, "copy.ring"));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "copy.ring rank-00001.ring both rank 1", pm_read(ctx, &p, dir));
    remove(in(dir, "copy.ring"));
    copy_file(ROOT "/round/rank-00000.ring", in(dir, "rank-00000.ring"));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "rank-00000.ring rank-00001.ring 4 1", pm_read(ctx, &p, dir));

    for (int i = 0; i < 4; i++) {                       /* what tells two runs apart */
        static const char *const words[] = { "layout pp=2,ep=2 pp=4", "run 12", "different 700 s",
                                             "different 90 s" };
        ring_head *h;
        fake("runs", 0);
        h = &faked[3].file->u.head;
        for (int k = 0; k < WORLD; k++) orderly(k, 5);
        if (i == 0) strcpy(h->layout, "pp=4");
        if (i == 1) strcpy(h->run, "12");
        if (i == 2) { h->begun = at(700); h->ended = at(701); }
        if (i == 3) h->begun = at(-90), h->ended = at(-70);
        for (int k = 0; k < WORLD; k++) ring_free(&faked[k]);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, words[i], pm_read(ctx, &p, fake_dir));
    }
    for (int i = 0; i < 2; i++) {       /* one run of two layouts: its name, or why it failed */
        static const char said[] = "rank 3 differs from rank 0 in the layout: pp=4; rank 0: ep=4";
        fake("layouts", 0);
        strcpy(faked[3].file->u.head.layout, "pp=4");
        for (int k = 0; k < WORLD && i == 0; k++) strcpy(faked[k].file->u.head.run, "12");
        for (int k = 0; k < 3; k++) told(k, 5.1, 3, 3, RING_UNLIKE, said);
        ev(3, 4.9, RING_STEP, -1, -1, "the layout");
        ev(3, 4.95, RING_DONE, -1, 0, "agreement");
        failed(3, 5.0, RING_UNLIKE, said);
        VERDICT(PM_OWN, 3, "rank 3 failed first, in step the layout: rank 3 differs|rank 0: ep=4");
    }
}

static tr_status sweep_read(tr_ctx *c, void *user)
{
    pm p;
    tr_status s = pm_read(c, &p, (const char *)user);
    if (s == TR_OK) pm_free(c, &p);
    return s;
}

static void test_memory(void)
{
    CHECK(test_sweep(sweep_read, (void *)(uintptr_t)(ROOT "/kill-1")) > 4);
}

/* ---- the tool */

static int tool(const char *args)
{
    char cmd[600];
    size_t n = 0;
    FILE *f;
    int status;
    snprintf(cmd, sizeof cmd, "build/trillion postmortem %s 2>&1", args);
    f = popen(cmd, "r");
    if (!f) return -1;
    n = fread(tool_out, 1, sizeof tool_out - 1, f);
    tool_out[n] = 0;
    status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_tool(void)
{
    if (access("build/trillion", X_OK) != 0) return;
    CHECK(tool(ROOT "/fine") == 0 && strstr(tool_out, "all 4 ranks ended in order"));
    CHECK(tool(ROOT "/kill-1") == 1);
    CHECK(strstr(tool_out, "*     1  node-1      1001  layer 3, experts"));
    CHECK(strstr(tool_out, "rank 1 was killed without a word"));
    CHECK(tool(ROOT "/absent") == 1 && strstr(tool_out, "no ring: rank 2\n"));
    CHECK(tool(ROOT "/kill-1 --json") == 1);
    CHECK(strstr(tool_out, "\"first\":1") && strstr(tool_out, "\"why\":\"killed\""));
    CHECK(tool(ROOT "/stop-1 --json") == 1);
    CHECK(strstr(tool_out, "\"cause\":\"late\",\"failure_of\":2") != NULL);
    CHECK(tool(ROOT "/runs") == 2 && strstr(tool_out, "different runs"));
    CHECK(tool(ROOT "/nowhere") == 2 && strstr(tool_out, "nowhere"));
    CHECK(tool("tests/golden") == 2 && strstr(tool_out, "no file *.ring"));
}

/* ---- the watchdog and the handlers, each in a process of its own */

typedef struct child { int exit, sig; double seconds; char err[2048]; } child;

static child run_child(const char *dir, void (*fn)(ring *r))
{
    child c;
    int fd[2];
    size_t n = 0;
    ssize_t k;
    pid_t pid;
    struct timespec a, b;
    memset(&c, 0, sizeof c);
    clock_gettime(CLOCK_MONOTONIC, &a);
    CHECK(pipe(fd) == 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        static ring r;
        struct rlimit none = { 0, 0 };
        ring_who who = { .rank = 3, .world = 8 };
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        setrlimit(RLIMIT_CORE, &none);
        if (ring_create(ctx, &r, dir, &who) != TR_OK || watch_start(&r, 3) != 0) _exit(99);
        fn(&r);
        _exit(98);
    }
    close(fd[1]);
    while (n < sizeof c.err - 1 && (k = read(fd[0], c.err + n, sizeof c.err - 1 - n)) > 0)
        n += (size_t)k;                 /* to its end, which no process of it holds open any more */
    close(fd[0]);
    int status = wait_for(pid);
    clock_gettime(CLOCK_MONOTONIC, &b);
    c.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    c.sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    c.seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    return c;
}

static void blocks(ring *r)
{
    (void)r;
    watch_begin("MPI_Init", 0.5);
    sleep(60);
}

static void blocks_with_children(ring *r)
{
    setpgid(0, 0);
    if (fork() == 0) { sleep(60); _exit(0); }
    blocks(r);
}

/* As ranks of one launcher, this process: one is stopped before it has done anything. */
static void blocks_for_stopped(ring *r)
{
    pid_t rank2 = fork();
    if (rank2 == 0) {
        setenv("PMIX_RANK", "9", 1);
        setenv("OMPI_COMM_WORLD_RANK", "2", 1);
        execl("/bin/sh", "sh", "-c", "kill -STOP $$", (char *)NULL);
        _exit(1);
    }
    pause_ms(300);
    if (fork() == 0) {
        r->pid = (int64_t)getpid();
        watch_start(r, 3);
        blocks(r);
    }
    wait(NULL);
    kill(rank2, SIGKILL);
    _exit(0);
}

static void returns_in_time(ring *r)
{
    for (int i = 0; i < 1000; i++) {
        watch_begin("MPI_Comm_dup", 0.2);
        watch_end();
    }
    pause_ms(400);
    watch_stop();
    ring_end(r, RING_ORDERLY, 0, RING_NOBODY, RING_OWN, "");
    _exit(0);
}

/* Stopped by another process for longer than its call may take, then woken. */
static void woken_by(pid_t who, int then)
{
    pid_t parent = who;
    if (fork()) return;
    pause_ms(300);
    kill(parent, SIGSTOP);
    pause_ms(1800);
    kill(parent, SIGCONT);
    if (then) kill(parent, then);
    _exit(0);
}

static void is_stopped(ring *r)                 /* and has its seconds anew */
{
    woken_by(getpid(), 0);
    watch_begin("MPI_Init", 1.5);
    for (int i = 0; i < 12; i++) pause_ms(100);
    watch_end();
    watch_stop();
    ring_end(r, RING_ORDERLY, 0, RING_NOBODY, RING_OWN, "");
    _exit(0);
}

static void is_stopped_then_ended(ring *r)
{
    (void)r;
    woken_by(getpid(), SIGTERM);
    watch_begin("MPI_Init", 1.5);
    sleep(60);
}

static void test_watch_woken(void)
{
    const char *dir = fresh("woken");
    ring_log l;
    child c = run_child(dir, is_stopped);
    CHECK(c.exit == 0 && !*c.err);
    c = run_child(dir, is_stopped_then_ended);
    CHECK(c.exit == 143 && strstr(c.err, "in step MPI_Init, after it had been stopped for 1."));
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
    CHECK(l.head.state == RING_FAILED && l.head.signal == SIGTERM &&
          l.head.failed == RING_NOBODY);
    ring_close(ctx, &l);
}

static void test_watchdog(void)
{
    const char *dir = fresh("watch");
    void (*const fn[2])(ring *r) = { blocks, blocks_with_children };
    child c;
    ring_log l;
    for (int i = 0; i < 2; i++) {
        c = run_child(dir, fn[i]);
        CHECK(c.exit == 1 && c.seconds >= 0.5 && c.seconds < 2.5);
        CHECK(strstr(c.err, "trillion-mpi: rank 3: MPI_Init did not return within 0.5 s") == c.err);
        CHECK(strchr(c.err, '\n') == c.err + strlen(c.err) - 1);
        CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
        CHECK(l.head.state == RING_FAILED && l.head.failed == RING_ANYBODY);
        CHECK(l.head.cause == RING_LATE);
        CHECK(strstr(l.head.sentence, "MPI_Init did not return within 0.5 s"));
        CHECK(l.n == 1 && l.rec[0].kind == RING_WAIT && !strcmp(l.rec[0].step, "MPI_Init"));
        ring_close(ctx, &l);
    }
    c = run_child(dir, blocks_for_stopped);
    CHECK(strstr(c.err, "MPI_Init did not return within 0.5 s: rank 2, process "));
    CHECK(strstr(c.err, " of this machine, is stopped\n"));
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
    CHECK(l.head.failed == 2 && l.head.cause == RING_LATE);
    ring_close(ctx, &l);
    c = run_child(dir, returns_in_time);
    CHECK(c.exit == 0 && !*c.err);
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
    CHECK(l.head.state == RING_ORDERLY && l.n == 2000 && l.rec[1999].kind == RING_DONE);
    ring_close(ctx, &l);
}

static int signal_to_raise;

static void gets_signal(ring *r)
{
    ring_event(r, RING_STEP, 5, -1, 0, 0, "experts");
    ring_event(r, RING_WAIT, 5, 2, 4096, 0, "dispatch");
    kill(getpid(), signal_to_raise);
    sleep(60);
}

static void gets_signal_at_start(ring *r)
{
    (void)r;
    raise(SIGTERM);
}

static void gets_signal_without_ring(ring *r)
{
    (void)r;
    watch_who(NULL, 3);
    watch_begin("MPI_Init", 60);
    raise(SIGTERM);
}

static char told_file[256];

static void gets_signal_with_hint(ring *r)
{
    watch_hint("DIR tells more", told_file);
    gets_signal(r);
}

static void fails_then_gets_signal(ring *r)
{
    ring_end(r, RING_FAILED, 0, RING_NOBODY, RING_OWN, "its own sentence");
    raise(SIGTERM);
}

static void test_signals(void)
{
    static const struct { int sig; const char *name; int crash; } row[] = {
        { SIGTERM, "SIGTERM", 0 }, { SIGINT, "SIGINT", 0 }, { SIGHUP, "SIGHUP", 0 },
        { SIGSEGV, "SIGSEGV", 1 }, { SIGABRT, "SIGABRT", 1 }, { SIGBUS, "SIGBUS", 1 },
        { SIGFPE, "SIGFPE", 1 },   { SIGILL, "SIGILL", 1 },
    };
    const char *dir = fresh("signals");
    char want[200];
    child c;
    ring_log l;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        signal_to_raise = row[i].sig;
        c = run_child(dir, gets_signal);
        CHECK(row[i].crash ? c.sig == row[i].sig : c.exit == 128 + row[i].sig);
        snprintf(want, sizeof want, "trillion-mpi: rank 3: ended by signal %d (%s) in layer 5, "
                 "step dispatch, waiting for rank 2\n", row[i].sig, row[i].name);
        CHECK(!strcmp(c.err, want));
        CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
        CHECK(l.head.state == RING_SIGNALLED && l.head.signal == row[i].sig);
        CHECK(strstr(want, l.head.sentence) != NULL && *l.head.sentence);
        CHECK(pm_is_crash(row[i].sig) == row[i].crash);
        ring_close(ctx, &l);
    }
    c = run_child(dir, gets_signal_at_start);
    CHECK(c.exit == 143 && !strcmp(c.err, "trillion-mpi: rank 3: ended by signal 15 (SIGTERM)\n"));
    c = run_child(dir, gets_signal_without_ring);
    CHECK(c.exit == 143 && strstr(c.err, "ended by signal 15 (SIGTERM) in step MPI_Init\n"));
    c = run_child(dir, fails_then_gets_signal);
    CHECK(c.exit == 143 && !*c.err);
    CHECK_OK(ctx, ring_open(ctx, &l, in(dir, "rank-00003.ring")));
    CHECK(l.head.state == RING_FAILED && !strcmp(l.head.sentence, "its own sentence"));
    ring_close(ctx, &l);
    snprintf(told_file, sizeof told_file, "%s", in(dir, "told"));
    signal_to_raise = SIGTERM;
    c = run_child(dir, gets_signal_with_hint);          /* the first says the hint, */
    CHECK(strstr(c.err, "waiting for rank 2\ntrillion-mpi: DIR tells more\n"));
    c = run_child(dir, gets_signal_with_hint);          /* and no other */
    CHECK(c.exit == 143 && strstr(c.err, "SIGTERM") && !strstr(c.err, "DIR tells more"));
    snprintf(told_file, sizeof told_file, "%s", in(dir, "gone/told"));
    c = run_child(dir, gets_signal_with_hint);          /* none of a folder that is gone */
    CHECK(c.exit == 143 && !strstr(c.err, "DIR tells more"));
}

static void test_launched(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK",
        "SLURM_PROCID", "SLURM_NTASKS", "PMIX_NAMESPACE", "SLURM_JOB_ID"
    };
    int rank, world;
    const char *run;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    CHECK(!watch_launched(&rank, &world, &run) && rank == 0 && world == 1 && !*run);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "16", 1);
    setenv("SLURM_JOB_ID", "4711", 1);
    CHECK(watch_launched(&rank, &world, &run) && rank == 0 && world == 16 && !strcmp(run, "4711"));
    setenv("OMPI_COMM_WORLD_RANK", "5", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
    CHECK(watch_launched(&rank, &world, &run) && rank == 5 && world == 8);
}

int main(void)
{
    int lock = open("build/ring.lock", O_RDWR | O_CREAT, 0666);     /* one at a time in ROOT */
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    if (lock < 0 || fcntl(lock, F_SETLKW, &whole) != 0) return 1;
    ctx = test_ctx();
    TEST(test_round_trip);
    TEST(test_wrap);
    TEST(test_torn);
    TEST(test_killed_writer);
    TEST(test_damaged);
    TEST(test_no_room);
    TEST(test_replaced);
    TEST(test_in_order);
    TEST(test_killed);
    TEST(test_gone);
    TEST(test_stopped);
    TEST(test_stopped_in_circle);
    TEST(test_woken);
    TEST(test_own);
    TEST(test_deadlock);
    TEST(test_all_silent);
    TEST(test_missing);
    TEST(test_outside);
    TEST(test_alive);
    TEST(test_folders);
    TEST(test_memory);
    TEST(test_tool);
    TEST(test_watchdog);
    TEST(test_watch_woken);
    TEST(test_signals);
    TEST(test_launched);
    tr_ctx_free(ctx);
    return test_end();
}
