/* postmortem.h - which rank stopped first, from what all of them left in their rings
 *
 *     pm p;
 *     pm_read(ctx, &p, "DIR");             every *.ring of DIR, of one run
 *     pm_verdict v = pm_judge(&p);         v.sentence, v.first
 *     pm_free(ctx, &p);
 *
 * HOW IT IS FOUND. What counts is where each rank was when the first failed or gave up: launchers
 * wake a stopped rank before they end it, and it goes on for a while. An arrow goes from a rank to
 * the one that it waits for: a rank that gave up has one to the rank that its failure calls late;
 * one that was told of a failure, that a signal ended, or that says nothing, to the peer of its
 * last event if that is a wait. Then, the first that applies:
 *
 *     1. a rank failed by itself, before others gave up waiting     the first such
 *     2. ranks gave up waiting                                      the end of their arrows
 *     3. ranks left no ending, or no ring                           the oldest; see below
 *     4. signals ended all                                          who was silent, or ended first
 *
 * Arrows in a circle are a deadlock, unless one on it is called late and said nothing itself: a
 * rank that runs and waits tells so at half of its deadline, so that one was stopped. Of several
 * the one that most sentences name, of those the one named first. For the same reason no arrow
 * leads from a rank without a sentence to one that was busy for half of the time since then.
 *
 * A launcher that ends a run may end with SIGKILL a rank that had only waited; so of ranks without
 * an ending beside others with one, the first was one that did not wait, else the one that was
 * silent longest.
 *
 * Clocks of machines must agree to less than the deadline.
 *
 * A program includes this once, after trillion.h with its implementation. */

#ifndef POSTMORTEM_H
#define POSTMORTEM_H

#include <dirent.h>
#include <stdarg.h>

#include "ring.h"

typedef enum pm_end {
    PM_MISSING,                 /* no ring */
    PM_SILENT,                  /* a ring without an ending */
    PM_ORDERLY,
    PM_FAILED,                  /* with a sentence */
    PM_CRASHED,                 /* by a signal of its own making */
    PM_SIGNALLED                /* by a signal from outside */
} pm_end;

typedef struct pm_rank {
    ring_log log;
    char    *file;              /* NULL: missing */
    pm_end   end;
    int      alive;             /* as ring_alive, of a silent one */
    const ring_record *last;    /* where it was; NULL: nowhere yet */
    int64_t  since;             /* and since when */
    int      waits;             /* whom it waited for there */
    int      told;              /* failed: because another did, which told it */
    int      blames;            /* failed: whom it names; RING_NOBODY: itself */
    ring_cause cause;           /* failed */
    int      given_up;          /* it was told that others had given up waiting for it */
    int64_t  over;              /* time of its failure or ending */
    const char *said;           /* failed: its sentence */
} pm_rank;

typedef struct pm {
    int      world, known;      /* known: rings there are */
    pm_rank *rank;              /* [world] */
    int64_t  end;               /* when the first failed or gave up; else now if one lives; else
                                   of the last event */
    char   **damaged;  int64_t n_damaged;   /* sentences on files that were left out */
} pm;

typedef enum pm_why {
    PM_FINE, PM_RUNNING, PM_OWN, PM_LATE, PM_KILLED, PM_LEFT, PM_ABSENT, PM_DEADLOCK, PM_OUTSIDE,
    PM_UNKNOWN
} pm_why;

typedef struct pm_verdict {
    pm_why why;
    int    first;               /* the rank; -1: none can be named */
    size_t n;
    char   sentence[4096];
} pm_verdict;

static inline const char *pm_why_name(pm_why w)
{
    static const char *const name[] = { "fine", "running", "failed", "late", "killed", "left",
                                        "absent", "deadlock", "outside", "unknown" };
    return name[w];
}

static inline const char *pm_cause_name(ring_cause c)
{
    static const char *const name[RING_CAUSES] = { "own", "unlike", "late", "deadlock", "mpi" };
    return name[c];
}

static inline const char *pm_end_name(const pm_rank *r)
{
    static const char *const name[] = { "no ring", "no ending", "ended in order", "failed",
                                        "crashed", "ended by a signal" };
    return r->alive == 'T' ? "stopped" : r->alive ? "still running" : name[r->end];
}

/* ---- One rank */

static inline int pm_is_crash(int sig)
{
    const char *s = ring_signal_name(sig);
    return !strcmp(s, "SIGSEGV") || !strcmp(s, "SIGBUS") || !strcmp(s, "SIGFPE") ||
           !strcmp(s, "SIGILL") || !strcmp(s, "SIGABRT");
}

static inline void pm_look(pm_rank *r)          /* how it ended */
{
    const ring_head *h = &r->log.head;
    const ring_record *fail = NULL;
    uint32_t state = atomic_load(&r->log.head.state);
    for (int64_t i = r->log.n - 1; i >= 0 && !fail; i--)
        if (r->log.rec[i].kind == RING_FAIL) fail = &r->log.rec[i];
    r->blames = RING_NOBODY;
    r->over = state == RING_RUNNING ? 0 : h->ended;
    r->end = state == RING_ORDERLY ? PM_ORDERLY : state == RING_SIGNALLED ?
             pm_is_crash(h->signal) ? PM_CRASHED : PM_SIGNALLED : PM_SILENT;
    if (state == RING_FAILED || (state == RING_RUNNING && fail)) {
        r->end = PM_FAILED;
        r->said = *h->sentence ? h->sentence : fail ? fail->step : "";
        r->blames = state == RING_FAILED ? h->failed : fail->rank;
        r->cause = (ring_cause)(state == RING_FAILED ? h->cause : fail->cause);
        r->given_up = r->cause == RING_LATE && r->blames == h->rank;
        r->told = r->given_up || (fail && fail->peer >= 0 && fail->peer != h->rank);
        if (r->blames == h->rank) r->blames = RING_NOBODY;
        if (fail) r->over = fail->time;
    }
    if (r->end == PM_SILENT) r->alive = ring_alive(h);
}

/* What a failure of its own is told in comes after the step that failed. */
static inline int pm_only_tells(const pm_rank *r, const ring_record *e)
{
    return r->end == PM_FAILED && !r->told && (r->cause == RING_OWN || r->cause == RING_UNLIKE) &&
           strcmp(e->step, "agreement") == 0;
}

/* Where it was at time t. What waits and says so again at its deadline has waited since the first
 * time. */
static inline void pm_look_at(pm_rank *r, int64_t t)
{
    int64_t i = r->log.n - 1;
    if (r->end == PM_FAILED && r->over < t) t = r->over;
    r->since = r->log.head.begun;
    r->waits = RING_NOBODY;
    while (i >= 0 && (r->log.rec[i].kind == RING_FAIL || r->log.rec[i].time > t)) i--;
    while (i > 0 && pm_only_tells(r, &r->log.rec[i])) i--;
    if (i < 0 && r->log.n && atomic_load(&r->log.rec[0].number) > 1) {
        r->last = &r->log.rec[0];       /* all it did before is written over */
        r->since = t;
        return;
    }
    if (i < 0) return;
    r->last = &r->log.rec[i];
    r->since = r->last->time;
    if (r->last->kind != RING_WAIT) return;
    r->waits = r->last->peer;
    for (; i >= 0 && r->log.rec[i].kind == RING_WAIT; i--) r->since = r->log.rec[i].time;
}

static inline int pm_raised(const pm_rank *r) { return r->end == PM_FAILED && !r->told; }

/* When r was last heard of doing something; a missing one never was. */
static inline int64_t pm_seen(const pm_rank *r)
{
    return r->file ? r->since : INT64_MIN;
}

static inline int pm_next(const pm *p, int r)   /* the arrow from r; RING_NOBODY, RING_ANYBODY */
{
    const pm_rank *q = &p->rank[r];
    if (pm_raised(q)) return q->cause == RING_DEADLOCK ? q->waits : q->blames;
    if (q->end == PM_MISSING || q->end == PM_ORDERLY || q->end == PM_CRASHED) return RING_NOBODY;
    if (q->waits >= 0 && q->blames == RING_NOBODY &&
        pm_seen(&p->rank[q->waits]) > pm_seen(q) + (p->end - pm_seen(q)) / 2) return RING_NOBODY;
    return q->waits;
}

static inline int pm_is_own(const pm_rank *r)   /* failed for a reason of its own */
{
    return r->end == PM_CRASHED || (pm_raised(r) && r->blames == RING_NOBODY);
}

static inline int pm_is_lost(const pm_rank *r) { return r->end <= PM_SILENT; }

/* ---- Words */

TR_PRINTF(2, 3) static inline void pm_put(pm_verdict *v, const char *fmt, ...)
{
    va_list ap;
    int k;
    va_start(ap, fmt);
    k = vsnprintf(v->sentence + v->n, sizeof v->sentence - v->n, fmt, ap);
    va_end(ap);
    if (k > 0) v->n += (size_t)k;
    if (v->n > sizeof v->sentence - 1) v->n = sizeof v->sentence - 1;
}

static inline void pm_put_where(pm_verdict *v, const pm_rank *r)
{
    const ring_record *e = r->last;
    if (!r->file) return;
    if (!e) { pm_put(v, " before its first step"); return; }
    if (e->kind == RING_END) { pm_put(v, " after its last step"); return; }
    if (e->layer >= 0) pm_put(v, " in layer %d,", (int)e->layer);
    pm_put(v, "%s step %s", e->kind == RING_DONE ? " after" : e->layer < 0 ? " in" : "", e->step);
    if (r->waits >= 0) pm_put(v, ", waiting for rank %d", r->waits);
    if (r->waits == RING_ANYBODY) pm_put(v, ", waiting for others");
}

/* Who gave up, and its sentence: one that names r, if there is one. */
static inline void pm_put_witness(const pm *p, pm_verdict *v, int r, const char *said)
{
    int w = -1, best = -1;
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        int good = 2 * pm_raised(q) + (q->blames == r);
        if (q->end != PM_FAILED || i == r || !*q->said || good <= best) continue;
        w = i;
        best = good;
    }
    if (w >= 0) pm_put(v, "; rank %d %s: %s", w, said, p->rank[w].said);
}

/* One of those without an ending, whose process is gone; but: not this one. */
static inline int pm_is_gone(const pm *p, int i, int but)
{
    return i < p->world && i != but && p->rank[i].end == PM_SILENT && !p->rank[i].alive;
}

/* "ranks 0, 1 and 3-9": the n that are gone; four in a row are a range, and of many the rest is
 * counted. */
static inline void pm_put_gone(const pm *p, pm_verdict *v, int but, int n)
{
    int shown = 0, words = 0;
    pm_put(v, n > 1 ? "ranks " : "rank ");
    for (int i = 0; i < p->world && shown < n; i++) {
        int end = i;
        if (!pm_is_gone(p, i, but)) continue;
        while (pm_is_gone(p, end + 1, but)) end++;
        if (end - i < 3) end = i;
        if (words == 16) { pm_put(v, " and %d more", n - shown); return; }
        shown += end - i + 1;
        pm_put(v, "%s%d", !words++ ? "" : shown == n ? " and " : ", ", i);
        if (end > i) pm_put(v, "-%d", end);
        i = end;
    }
}

/* Not below 0: what began after the end, or on another clock. */
static inline double pm_seconds(int64_t ns) { return ns > 0 ? (double)ns / 1e9 : 0; }

/* ---- The arrows */

/* How many ranks call r late, of those who gave up, or of all if none of their rings is here;
 * *first: when the first was said. */
static inline int pm_accusers(const pm *p, int r, int64_t *first)
{
    int n[2] = { 0, 0 };
    int64_t when[2] = { INT64_MAX, INT64_MAX };
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        if (q->end != PM_FAILED || q->blames != r) continue;
        n[q->told]++;
        if (q->over < when[q->told]) when[q->told] = q->over;
    }
    *first = n[0] ? when[0] : when[1];
    return n[0] + n[1];
}

/* Of a circle through r: the one that was stopped; -1: it is a deadlock. */
static inline int pm_circle(const pm *p, int r)
{
    int silent = -1, signalled = 0, tellers = 0, named = -1, most = 0, at = r;
    int64_t first = INT64_MAX;
    do {
        const pm_rank *q = &p->rank[at];
        if (pm_raised(q)) {
            if (q->cause == RING_DEADLOCK) return -1;
            tellers++;
        } else {
            int64_t t;
            int k = pm_accusers(p, at, &t);
            if (k > most || (k && k == most && t < first)) { named = at; most = k; first = t; }
            if (q->end != PM_SILENT) signalled++;
            else if (silent < 0 || pm_seen(q) < pm_seen(&p->rank[silent])) silent = at;
        }
        at = pm_next(p, at);
    } while (at != r);
    if (named >= 0) return named;
    return silent >= 0 && (tellers || signalled) ? silent : -1;
}

/* The end of the arrows from r. *circle: it is on one that is a deadlock. */
static inline int pm_root(const pm *p, int r, int *circle)
{
    int at = r, k;
    *circle = 0;
    for (k = 0; k < p->world; k++) {
        int to = pm_next(p, at);
        if (to < 0) return at;
        at = to;
    }
    k = pm_circle(p, at);                       /* more arrows than ranks: at is on a circle */
    if (k >= 0) return k;
    *circle = 1;
    for (k = pm_next(p, at), r = at; k != at; k = pm_next(p, k))
        if (k < r) r = k;                       /* one name for the whole circle */
    return r;
}

static inline void pm_say_deadlock(const pm *p, pm_verdict *v, int r)
{
    int at = r, shown = 0;
    v->why = PM_DEADLOCK;
    v->first = r;
    pm_put(v, "deadlock:");
    do {
        const pm_rank *q = &p->rank[at];
        const ring_record *e = q->last;
        if (shown++ < 8) {
            pm_put(v, "%s rank %d waits for rank %d", shown > 1 ? "," : "", at, pm_next(p, at));
            if (e && e->layer >= 0) pm_put(v, " (layer %d, step %s)", (int)e->layer, e->step);
            else if (e) pm_put(v, " (step %s)", e->step);
        }
        at = pm_next(p, at);
    } while (at != r);
    if (shown > 8) pm_put(v, ", and so on, %d ranks in a circle", shown);
}

/* ---- The verdict */

static inline void pm_say_own(pm_verdict *v, const pm_rank *q, int r)
{
    v->why = PM_OWN;
    v->first = r;
    pm_put(v, "rank %d %s first,", r, q->end == PM_CRASHED ? "crashed" : "failed");
    pm_put_where(v, q);
    if (q->end == PM_FAILED) pm_put(v, ": %s", q->said);
    else pm_put(v, ": signal %d (%s)", (int)q->log.head.signal,
                ring_signal_name(q->log.head.signal));
}

/* Others gave up waiting for r. */
static inline void pm_say_late(const pm *p, pm_verdict *v, int r)
{
    const pm_rank *q = &p->rank[r];
    if (pm_is_own(q) || pm_raised(q)) { pm_say_own(v, q, r); return; }
    v->first = r;
    v->why = q->end == PM_MISSING ? PM_ABSENT : q->end == PM_ORDERLY ? PM_LEFT : PM_LATE;
    if (q->end == PM_MISSING) {
        pm_put(v, "rank %d left no ring, and others waited for it: it never started, or its ring "
               "is on another disk", r);
    } else if (q->end == PM_ORDERLY) {
        pm_put(v, "rank %d ended in order while others still waited for it: they took different "
               "branches", r);
    } else if (q->given_up) {
        pm_put(v, "rank %d was stopped or slow: silent for %.1f s", r,
               pm_seconds(p->end - pm_seen(q)));
        pm_put_where(v, q);
        pm_put_witness(p, v, r, "gave up waiting for it");
        return;
    } else {
        pm_put(v, "rank %d stopped first,", r);
        pm_put_where(v, q);
        pm_put(v, ", %.1f s before others gave up", pm_seconds(p->end - pm_seen(q)));
        if (q->alive) pm_put(v, "; its process %lld is %s", (long long)q->log.head.pid,
                             q->alive == 'T' ? "stopped, not dead" : "still running");
        else if (q->end == PM_SILENT)
            pm_put(v, "; it left no ending: killed (SIGKILL, out of memory, power), or stopped and "
                   "killed later");
        else if (q->told)
            pm_put(v, "; it lived to hear of it: it was stopped for a time, or slow");
        else pm_put(v, "; it lived until signal %d ended it: it was stopped, or slow",
                    (int)q->log.head.signal);
    }
    pm_put_witness(p, v, r, "said");
}

/* Nobody gave up waiting. */
static inline void pm_say_lost(const pm *p, pm_verdict *v, int r)
{
    const pm_rank *q = &p->rank[r];
    int others = 0, running = 0, gone = 0;
    for (int i = 0; i < p->world; i++) {
        if (!pm_is_lost(&p->rank[i])) others++;
        if (p->rank[i].alive) running++;
        gone += pm_is_gone(p, i, r);
    }
    v->first = r;
    if (q->end == PM_MISSING) {
        v->why = PM_ABSENT;
        pm_put(v, "rank %d left no ring: it never started, or its ring is on another disk", r);
    } else if (q->alive) {
        v->why = PM_RUNNING;
        if (running == p->world) pm_put(v, "all %d ranks are still there; ", running);
        pm_put(v, "rank %d, process %lld, is %s,", r, (long long)q->log.head.pid,
               q->alive == 'T' ? "stopped" : "still running");
        pm_put_where(v, q);
        pm_put(v, ", silent for %.1f s", pm_seconds(p->end - pm_seen(q)));
    } else {
        v->why = PM_KILLED;
        if (!others) pm_put(v, "no rank left an ending (power, or all were killed at once): ");
        pm_put(v, "rank %d was killed %s,", r, others ? "without a word (SIGKILL, out of memory, "
               "power)" : "or stopped first");
        pm_put_where(v, q);
        pm_put(v, ", %.1f s before the last event of all", pm_seconds(p->end - pm_seen(q)));
        if (!others || !gone) return;
        pm_put(v, "; ");
        pm_put_gone(p, v, r, gone);
        pm_put(v, gone > 1 ? " have no ending either (the launcher may have ended them later)" :
               " has no ending either (the launcher may have ended it later)");
    }
}

/* 1: of those that failed by themselves the first, if nobody gave up before. */
static inline int pm_first_own(const pm *p)
{
    int own = -1, other = -1;
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        int *first = pm_is_own(q) ? &own : &other;
        if (!pm_is_own(q) && !pm_raised(q)) continue;
        if (*first < 0 || q->over < p->rank[*first].over) *first = i;
    }
    return own < 0 || other < 0 || p->rank[own].over <= p->rank[other].over ? own : -1;
}

/* 2: to whom the arrows lead from most of those that gave up; if the rings of all of them are lost,
 * whom the failures name that others were told. -1: nobody gave up, or none names any. */
static inline int pm_most_blamed(const pm *p, int *circle)
{
    int best = -1, most = 0, told = 1;
    *circle = 0;
    for (int i = 0; i < p->world; i++)
        if (pm_raised(&p->rank[i])) told = 0;
    for (int i = 0; i < p->world; i++) {
        int c, votes = 0, root, other;
        if (p->rank[i].end != PM_FAILED || p->rank[i].told != told || p->rank[i].blames < 0)
            continue;
        root = pm_root(p, p->rank[i].blames, &c);
        for (int k = 0; k < p->world; k++)
            if (p->rank[k].end == PM_FAILED && p->rank[k].told == told && p->rank[k].blames >= 0)
                votes += pm_root(p, p->rank[k].blames, &other) == root;
        if (votes > most) { most = votes; best = root; *circle = c; }
    }
    return best;
}

/* 2, where those that waited had found out themselves; -1 */
static inline int pm_tells_deadlock(const pm *p)
{
    for (int i = 0; i < p->world; i++)
        if (pm_raised(&p->rank[i]) && p->rank[i].cause == RING_DEADLOCK) return i;
    return -1;
}

/* 3: the oldest of the lost that waits for none of them: one that does not wait rather than one
 * that does, a missing one before all. -1: there is none. */
static inline int pm_oldest_lost(const pm *p)
{
    int best = -1, best_waits = 0;
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        int waits = q->waits != RING_NOBODY;
        if (!pm_is_lost(q) || (q->waits >= 0 && pm_is_lost(&p->rank[q->waits]))) continue;
        if (best < 0 || waits < best_waits ||
            (waits == best_waits && pm_seen(q) < pm_seen(&p->rank[best]))) {
            best = i;
            best_waits = waits;
        }
    }
    return best;
}

/* 4 */
static inline void pm_say_outside(const pm *p, pm_verdict *v)
{
    int first = -1, silent = -1;
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        if (q->end != PM_SIGNALLED) continue;
        if (first < 0 || q->over < p->rank[first].over) first = i;
        if (q->waits == RING_NOBODY &&
            (silent < 0 || pm_seen(q) < pm_seen(&p->rank[silent]))) silent = i;
    }
    v->why = PM_OUTSIDE;
    v->first = first;
    if (first < 0) { v->why = PM_UNKNOWN; pm_put(v, "no rank tells how it ended"); return; }
    pm_put(v, "the ranks were ended from outside, rank %d first, by signal %d (%s),", first,
           (int)p->rank[first].log.head.signal,
           ring_signal_name(p->rank[first].log.head.signal));
    pm_put_where(v, &p->rank[first]);
    if (silent >= 0 && p->rank[first].over - pm_seen(&p->rank[silent]) > 1000000000) {
        v->first = silent;
        pm_put(v, "; until then rank %d, which waited for nobody, had been silent for %.1f s",
               silent, pm_seconds(p->rank[first].over - pm_seen(&p->rank[silent])));
        if (silent != first) pm_put_where(v, &p->rank[silent]);
    }
}

/* Nobody is known to have stopped, but these waited for somebody. */
static inline void pm_say_unknown(const pm *p, pm_verdict *v)
{
    int silent = pm_oldest_lost(p);
    for (int i = 0; i < p->world; i++)      /* woken to be ended, it knew that it was stopped */
        if (pm_raised(&p->rank[i]) && pm_is_own(&p->rank[i]) && p->rank[i].log.head.signal) {
            pm_say_own(v, &p->rank[i], i);
            return;
        }
    for (int i = 0; i < p->world && silent < 0; i++)
        if (p->rank[i].end == PM_SIGNALLED && p->rank[i].waits == RING_NOBODY) silent = i;
    if (silent >= 0) { pm_say_late(p, v, silent); return; }
    v->why = PM_UNKNOWN;
    pm_put(v, "every rank waited for others, and none is known to have stopped: the network, or "
           "what launched them");
    pm_put_witness(p, v, -1, "said");
}

/* Of the ranks without an ending one that is stopped, else one that did not wait, else any: of
 * those the one that was silent longest. There is one. */
static inline int pm_oldest_silent(const pm *p)
{
    int best = -1, most = 0;
    for (int i = 0; i < p->world; i++) {
        const pm_rank *q = &p->rank[i];
        int why = 2 * (q->alive == 'T') + (q->waits == RING_NOBODY);
        if (q->end != PM_SILENT || (best >= 0 && why < most)) continue;
        if (best < 0 || why > most || pm_seen(q) < pm_seen(&p->rank[best])) best = i;
        most = best == i ? why : most;
    }
    return best;
}

static inline int pm_is_healthy(const pm *p)    /* all are there, and none is stopped */
{
    for (int i = 0; i < p->world; i++)
        if (!p->rank[i].alive || p->rank[i].alive == 'T') return 0;
    return 1;
}

static inline pm_verdict pm_judge(const pm *p)
{
    pm_verdict v;
    int count[PM_SIGNALLED + 1] = { 0 }, stopped = 0, circle, r;
    memset(&v, 0, sizeof v);
    v.first = -1;
    for (int i = 0; i < p->world; i++) {
        count[p->rank[i].end]++;
        stopped |= p->rank[i].alive == 'T';
    }
    if (count[PM_ORDERLY] == p->world) {
        pm_put(&v, p->world == 1 ? "the one rank ended in order" : "all %d ranks ended in order",
               p->world);
        return v;
    }
    if ((r = pm_tells_deadlock(p)) >= 0) {
        r = pm_root(p, r, &circle);
        if (circle) { pm_say_deadlock(p, &v, r); return v; }
    }
    if ((r = pm_first_own(p)) >= 0) pm_say_own(&v, &p->rank[r], r);
    else if ((r = pm_most_blamed(p, &circle)) >= 0 && circle) pm_say_deadlock(p, &v, r);
    else if (r >= 0) pm_say_late(p, &v, r);
    else if (count[PM_FAILED]) pm_say_unknown(p, &v);
    else if (stopped || (count[PM_SILENT] && count[PM_SIGNALLED] && !count[PM_MISSING]))
        pm_say_lost(p, &v, pm_oldest_silent(p));
    else if ((r = pm_oldest_lost(p)) >= 0) pm_say_lost(p, &v, r);
    else if (count[PM_SILENT]) {                /* all of them wait for each other */
        r = pm_oldest_silent(p);
        r = pm_root(p, r, &circle);
        if (circle) pm_say_deadlock(p, &v, r);
        else pm_say_lost(p, &v, r);
    } else pm_say_outside(p, &v);
    return v;
}

/* ---- Reading a folder */

static inline void pm_free(tr_ctx *ctx, pm *p)
{
    for (int i = 0; p->rank && i < p->world; i++) {
        ring_close(ctx, &p->rank[i].log);
        tr_free(ctx, p->rank[i].file);
    }
    for (int64_t i = 0; i < p->n_damaged; i++) tr_free(ctx, p->damaged[i]);
    tr_free(ctx, p->damaged);
    tr_free(ctx, p->rank);
    memset(p, 0, sizeof *p);
}

static inline tr_status pm_copy(tr_ctx *ctx, char **out, const char *s)
{
    void *q;
    tr_status st = tr_alloc(ctx, &q, strlen(s) + 1);
    if (st == TR_OK) memcpy(q, s, strlen(s) + 1);
    *out = st == TR_OK ? (char *)q : NULL;
    return st;
}

static inline tr_status pm_note_damage(tr_ctx *ctx, pm *p)
{
    void *q;
    tr_status s = tr_alloc(ctx, &q, (size_t)(p->n_damaged + 1) * sizeof *p->damaged);
    if (s != TR_OK) return s;
    if (p->n_damaged) memcpy(q, p->damaged, (size_t)p->n_damaged * sizeof *p->damaged);
    tr_free(ctx, p->damaged);
    p->damaged = (char **)q;
    s = pm_copy(ctx, &p->damaged[p->n_damaged], tr_err_last(ctx));
    if (s == TR_OK) p->n_damaged++;
    return s;
}

static inline const pm_rank *pm_any(const pm *p)        /* of the rings the first; NULL: none */
{
    for (int i = 0; i < p->world; i++)
        if (p->rank[i].file) return &p->rank[i];
    return NULL;
}

static inline int pm_owns(const pm *p, const char *file)
{
    for (int i = 0; i < p->world; i++)
        if (file && p->rank[i].file == file) return 1;
    return 0;
}

/* Rings of one run have its name and size, and its layout unless that is why it failed; none had
 * ended long before another began. */
static inline tr_status pm_same_run(tr_ctx *ctx, const pm_rank *x, const pm_rank *y)
{
    const ring_head *a = &x->log.head, *b = &y->log.head;
    const int64_t minute = 60000000000;
    if (strcmp(a->layout, b->layout) != 0 && !*a->run && x->cause != RING_UNLIKE &&
        y->cause != RING_UNLIKE)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s is of a run with layout \"%s\", %s of one with "
                       "\"%s\"", x->file, a->layout, y->file, b->layout);
    if (strcmp(a->run, b->run) != 0)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s is of the run \"%s\", %s of \"%s\"", x->file, a->run,
                       y->file, b->run);
    if (a->begun - b->begun > 10 * minute || b->begun - a->begun > 10 * minute ||
        (x->over && b->begun - x->over > minute) || (y->over && a->begun - y->over > minute))
        return tr_fail(ctx, TR_ERR_FORMAT, "%s and %s are of different runs: they began %.0f s "
                       "apart", x->file, y->file,
                       pm_seconds(a->begun > b->begun ? a->begun - b->begun :
                                  b->begun - a->begun));
    return TR_OK;
}

/* Puts r into its place; the failure of one is the failure of all. */
static inline tr_status pm_add(tr_ctx *ctx, pm *p, const pm_rank *r)
{
    const pm_rank *other = pm_any(p);
    const int k = r->log.head.rank, world = r->log.head.world;
    pm_rank *q;
    if (other && world != p->world)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s is of a run with %d ranks, %s of one with %d",
                       other->file, p->world, r->file, world);
    if (!other) {
        void *ranks;
        tr_status s = tr_alloc(ctx, &ranks, (size_t)world * sizeof *p->rank);
        if (s != TR_OK) return s;
        p->world = world;
        p->rank = (pm_rank *)ranks;
        for (int i = 0; i < world; i++) p->rank[i].waits = p->rank[i].blames = RING_NOBODY;
    }
    q = &p->rank[k];
    if (q->file)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s and %s are both of rank %d", q->file, r->file, k);
    *q = *r;
    pm_look(q);
    p->known++;
    if (q->log.head.begun > p->end) p->end = q->log.head.begun;
    if (q->log.n && q->log.rec[q->log.n - 1].time > p->end)
        p->end = q->log.rec[q->log.n - 1].time;
    return other ? pm_same_run(ctx, other, q) : TR_OK;
}

static inline tr_status pm_read_one(tr_ctx *ctx, pm *p, const char *dir, const char *name)
{
    char path[4096];
    pm_rank r;
    tr_status s;
    memset(&r, 0, sizeof r);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return tr_fail(ctx, TR_ERR_IO, "%s: %s", dir, strerror(ENAMETOOLONG));
    s = ring_open(ctx, &r.log, path);
    if (s == TR_ERR_MEMORY) return s;
    if (s != TR_OK) return pm_note_damage(ctx, p);
    s = pm_copy(ctx, &r.file, path);
    if (s == TR_OK) s = pm_add(ctx, p, &r);
    if (s != TR_OK && !pm_owns(p, r.file)) {
        ring_close(ctx, &r.log);
        tr_free(ctx, r.file);
    }
    return s;
}

/* An error that MPI reports to one rank is another's, if one is lost. */
static inline void pm_doubt_mpi(pm *p)
{
    int lost = 0;
    for (int i = 0; i < p->world; i++) lost |= pm_is_lost(&p->rank[i]);
    for (int i = 0; i < p->world; i++) {
        pm_rank *r = &p->rank[i];
        if (lost && pm_is_own(r) && r->cause == RING_MPI) r->blames = RING_ANYBODY;
    }
}

static inline void pm_look_all(pm *p)
{
    int64_t first = INT64_MAX, told = INT64_MAX;
    pm_doubt_mpi(p);
    for (int i = 0; i < p->world; i++) {
        const pm_rank *r = &p->rank[i];
        int64_t *t = r->told ? &told : &first;
        if ((r->end == PM_FAILED || r->end == PM_CRASHED) && r->over < *t) *t = r->over;
    }
    if (first == INT64_MAX) first = told;
    if (first != INT64_MAX) p->end = first;
    else for (int i = 0; i < p->world; i++) {
        struct timespec now;
        if (p->rank[i].alive && timespec_get(&now, TIME_UTC))
            p->end = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    for (int i = 0; i < p->world; i++)
        if (p->rank[i].file) pm_look_at(&p->rank[i], first);
}

/* All *.ring of dir. A damaged one is left out, its rank missing, and its sentence kept in damaged.
 * TR_ERR_MISSING if there is none that can be read; TR_ERR_FORMAT if they are of several runs. On
 * failure *p is empty. */
static inline tr_status pm_read(tr_ctx *ctx, pm *p, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    tr_status s = TR_OK;
    memset(p, 0, sizeof *p);
    if (!d) return tr_fail(ctx, TR_ERR_IO, "%s: %s", dir, strerror(errno));
    while (s == TR_OK && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".ring") == 0)
            s = pm_read_one(ctx, p, dir, e->d_name);
    }
    closedir(d);
    if (s == TR_OK && !p->known) {
        if (p->n_damaged) s = tr_fail(ctx, TR_ERR_MISSING, "%s", p->damaged[0]);
        else s = tr_fail(ctx, TR_ERR_MISSING, "%s: holds no file *.ring", dir);
    }
    if (s == TR_OK) pm_look_all(p);
    else pm_free(ctx, p);
    return s;
}

#endif
