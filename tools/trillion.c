/* trillion.c - the command line: one program of subcommands, a user of trillion.h like any other
 *
 * What was asked for goes to stdout, all else to stderr; an error is one sentence. Exit codes:
 * 0 fine, 1 the answer is "differs" or "failed", 2 unusable input or arguments. A command computes
 * before it prints, so that a failure leaves no half answer behind. Memory is given back by the
 * end of the program: the tool, unlike the library, may exit where it stands (see die).
 *
 * trillion_mpi.c is this file with another {engine}: the same commands over ranks.
 *
 * CONTENTS   (search for the tag in braces)
 *
 *     {app}     errors, memory, progress          {plan}    plan
 *     {opt}     options, one table a command      {golden}  golden
 *     {out}     numbers, lists, JSON              {compare} compare
 *     {ids}     prompts from a file               {run}     run
 *     {open}    models and pieces of prompts      {tiny}    tiny
 *     {engine}  what golden and run ask of it     {image}   image
 *     {audit}   audit                             {bench}   bench
 *                                                 {post}    postmortem
 *                                                 {small}   families, selftest
 *                                                 {main}    the table of commands
 */

#define _DEFAULT_SOURCE 1               /* madvise, which POSIX does not have */
#define TRILLION_IMPLEMENTATION
#include "../trillion.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

#include "bench.h"
#include "image.h"
#include "postmortem.h"

#ifndef TRILLION_RANKS
#define PROGRAM "trillion"
#define PROGRAM_OPTIONS
#define PROGRAM_COMMANDS
#define PROGRAM_MODEL_OPTIONS
#define PROGRAM_THREADS "what OpenMP offers"
#define PROGRAM_RANKS 0
#define PROGRAM_CODES ""
#define PROGRAM_LAYERS ""
#define PROGRAM_USE                                                                         \
    "What exactly should come out of each layer, and where does another engine differ?\n\n" \
    "  trillion audit   DIR\n"                                                             \
    "  trillion golden  DIR --ids ids.txt -o gold.safetensors\n"                           \
    "  trillion compare theirs.safetensors gold.safetensors --max-rel 1e-9\n\n"          \
    "Over several ranks (MPI) golden and run are `trillion-mpi`'s.\n\n"
#endif

/* ============================================================================
 * The program {app}
 * ========================================================================= */

enum { EXIT_FINE = 0, EXIT_DIFFERS = 1, EXIT_UNUSABLE = 2 };

typedef enum opt_kind { OPT_FLAG, OPT_ONE, OPT_MANY, OPT_NEEDED } opt_kind;

typedef struct option {
    const char *name;
    const char *arg;                /* what its value is called; NULL for a flag */
    opt_kind    kind;
    const char *help;
} option;

typedef struct given { const option *opt; const char *value; } given;

typedef struct progress {
    const char *what;
    double total, begun, shown;     /* shown: when last; 0 never */
    int    tty, open;               /* open: an unfinished line stands on the terminal */
} progress;

typedef struct lines { char **s; int64_t n, cap; } lines;

typedef struct app app;

typedef struct command {
    const char   *name, *args, *help;
    const char   *note;             /* the rules that its --help states */
    int           n_args;
    int           json;             /* has --json */
    int           ranks;            /* makes sense over ranks */
    const option *options;
    void        (*check)(app *a);   /* refuses options by themselves, before all else; or NULL */
    int         (*run)(app *a);
} command;

struct app {
    tr_ctx        *ctx;
    const command *cmd;
    const char   **arg;             /* [cmd->n_args] */
    given         *opt;  int n_opt;
    progress       bar;
    int            quiet_warnings;  /* collected, shown by the command itself */
    lines          warnings;
    int            json, depth, comma;
    int            follows;         /* one of several ranks, and another one speaks */
    void          *world;           /* of ranks.h */
};

/* ---- What differs over ranks: {engine}, or ranks.h */

/* Before all else; with options of which some may be missing; with all; with a context; after the
 * command, for the exit code. */
static void program_start(app *a, int argc, char **argv);
static void program_options(app *a);
static void program_begin(app *a);
static void program_ready(app *a);
static int  program_end  (app *a, int code);
/* The sentence is printed, if no other rank has printed it, and all end. */
static _Noreturn void program_fail(app *a, const char *sentence);
/* For work that others wait for; called often. */
static void program_alive(app *a);
/* Of the options of a model: those that only many ranks have. No context yet. */
static void program_check_model(app *a);
static int  program_threads(app *a);            /* without --threads; 0: what OpenMP offers */

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void progress_clear(app *a)
{
    if (a->bar.open) fprintf(stderr, "\r\033[K");
    a->bar.open = 0;
}

/* One line, whatever a file's name holds. */
static void vline(char line[4096], const char *fmt, va_list ap)
{
    vsnprintf(line, 4096, fmt, ap);
    for (char *s = line; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

TR_PRINTF(2, 3) static void say(app *a, const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    if (a->follows) return;
    va_start(ap, fmt);
    vline(line, fmt, ap);
    va_end(ap);
    progress_clear(a);
    fprintf(stderr, PROGRAM ": %s\n", line);
}

TR_PRINTF(2, 3) static _Noreturn void die(app *a, const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    for (int64_t i = 0; i < a->warnings.n; i++) say(a, "warning: %s", a->warnings.s[i]);
    va_start(ap, fmt);
    vline(line, fmt, ap);
    va_end(ap);
    progress_clear(a);
    program_fail(a, line);
}

/* The library's sentence ends the program. */
static void must(app *a, tr_status s)
{
    if (s != TR_OK) die(a, "%s", tr_err_last(a->ctx));
}

/* The same, if what is wrong is in a file that the library was not told of; NULL: in none. */
static void must_in(app *a, const char *path, tr_status s)
{
    if (s != TR_OK && path) die(a, "%s: %s", path, tr_err_last(a->ctx));
    must(a, s);
}

/* [n] zeroed elements; n may be 0. */
static void *need(app *a, int64_t n, size_t elem)
{
    size_t bytes;
    void *p;
    must(a, tr_size_mul(a->ctx, &bytes, (size_t)n, elem));
    must(a, tr_alloc(a->ctx, &p, bytes ? bytes : 1));
    return p;
}

/* p with room for one more than used. */
static void *grow(app *a, void *p, int64_t *cap, int64_t used, size_t elem)
{
    void *q;
    if (used < *cap) return p;
    *cap = *cap ? 2 * *cap : 64;
    q = need(a, *cap, elem);
    if (used) memcpy(q, p, (size_t)used * elem);
    tr_free(a->ctx, p);
    return q;
}

TR_PRINTF(2, 3) static char *text(app *a, const char *fmt, ...)
{
    va_list ap;
    int n;
    char *s;
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    s = (char *)need(a, (int64_t)n + 1, 1);
    va_start(ap, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }      /* "1 file", "2 files" */

static void lines_add(app *a, lines *l, const char *s)
{
    l->s = (char **)grow(a, l->s, &l->cap, l->n, sizeof *l->s);
    l->s[l->n++] = text(a, "%s", s);
}

static void on_warning(void *user, const char *line)
{
    app *a = (app *)user;
    if (a->quiet_warnings) lines_add(a, &a->warnings, line);
    else say(a, "warning: %s", line);
}

/* ---- Progress: nothing for two seconds; then one line rewritten on a terminal, else a line every
 * ten seconds. */

static void progress_begin(app *a, const char *what, double total)
{
    a->bar.what = what;
    a->bar.total = total > 0 ? total : 1;
    a->bar.begun = now();
    a->bar.shown = 0;
    a->bar.tty = isatty(2);
}

static void progress_at(app *a, double done, const char *detail)
{
    progress *b = &a->bar;
    double t = now(), spent = t - b->begun, part = done / b->total, left;
    program_alive(a);
    if (a->follows || spent < 2 || part >= 1 || t - b->shown < (b->tty ? 0.2 : 10)) return;
    left = part > 0 ? spent / part - spent : 0;
    fprintf(stderr, "%s" PROGRAM ": %s: %.1f %%, %.0f s spent, about %.0f s left%s%s%s",
            b->tty ? "\r" : "", b->what, 100 * part, spent, left, *detail ? "; " : "", detail,
            b->tty ? "\033[K" : "\n");
    fflush(stderr);
    b->open = b->tty;
    b->shown = t;
}

static double progress_end(app *a)
{
    progress_clear(a);
    return now() - a->bar.begun;
}

/* ---- Files */

/* The whole file, with a NUL behind it. */
static char *read_file(app *a, const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    int64_t cap = 0, used = 0;
    if (!f) die(a, "%s: %s", path, strerror(errno));
    for (;;) {
        if (used > 1 << 30) die(a, "%s: more than a gigabyte of text", path);
        p = (char *)grow(a, p, &cap, used, 1);
        used += (int64_t)fread(p + used, 1, (size_t)(cap - used), f);
        if (used < cap) break;
    }
    if (ferror(f)) die(a, "%s: %s", path, strerror(errno));
    fclose(f);
    p[used] = 0;
    *n = (size_t)used;
    return p;
}

static int exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* A text file is written as PATH.part and renamed when complete. */
static FILE *part_open(app *a, const char *path)
{
    FILE *f = fopen(text(a, "%s.part", path), "wb");
    if (!f) die(a, "%s: %s", path, strerror(errno));
    return f;
}

static void part_close(app *a, const char *path, FILE *f)
{
    char *part = text(a, "%s.part", path);
    int ok = !ferror(f);
    if (fclose(f) != 0) ok = 0;
    if (!ok || rename(part, path) != 0) {
        int e = errno;
        remove(part);
        die(a, "%s: %s", path, strerror(e));
    }
}

/* Asks before hours of work, not after, whether the answer can be stored. */
static void must_be_writable(app *a, const char *path)
{
    char *part = text(a, "%s.part", path);
    struct stat st;
    FILE *f;
    if (!*path) die(a, "%s: an empty name for the file to write", a->cmd->name);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) die(a, "%s: is a folder", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) die(a, "%s: is no regular file", path);
    f = fopen(part, "wbx");                             /* not over somebody else's */
    if (!f && errno != EEXIST) die(a, "%s: %s", path, strerror(errno));
    if (f) { fclose(f); remove(part); }
    tr_free(a->ctx, part);
}

/* ============================================================================
 * Options {opt}
 * ========================================================================= */

static const option shared_options[] = {
    PROGRAM_OPTIONS
    { "--threads", "N",  OPT_ONE,  "threads (default: " PROGRAM_THREADS ")" },
    { "--help",    NULL, OPT_FLAG, "this page" },
    { NULL, NULL, OPT_FLAG, NULL }
};
static const option json_option[] = {
    { "--json",    NULL, OPT_FLAG, "print one JSON object" },
    { NULL, NULL, OPT_FLAG, NULL }
};

static const option *option_in(const option *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0) return table;
    return NULL;
}

static const option *option_find(const command *c, const char *name, size_t n)
{
    const option *o = option_in(c->options, name, n);
    if (!o) o = option_in(shared_options, name, n);
    if (!o && c->json) o = option_in(json_option, name, n);
    return o;
}

static const char *opt(const app *a, const char *name)      /* NULL: not given */
{
    for (int i = 0; i < a->n_opt; i++)
        if (strcmp(a->opt[i].opt->name, name) == 0) return a->opt[i].value;
    return NULL;
}

static const char **opt_all(app *a, const char *name, int64_t *n)
{
    const char **v = (const char **)need(a, a->n_opt + 1, sizeof *v);
    *n = 0;
    for (int i = 0; i < a->n_opt; i++)
        if (strcmp(a->opt[i].opt->name, name) == 0) v[(*n)++] = a->opt[i].value;
    return v;
}

static int64_t opt_int(app *a, const char *name, int64_t absent, int64_t least, int64_t most)
{
    const char *s = opt(a, name);
    char *end;
    long long v;
    if (!s) return absent;
    errno = 0;
    v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v < least || v > most)
        die(a, "%s: %s '%s' is not an integer from %lld to %lld", a->cmd->name, name, s,
            (long long)least, (long long)most);
    return v;
}

/* The number of threads; absent: without --threads. */
static int opt_threads(app *a, int absent)
{
    return (int)opt_int(a, "--threads", absent, 1, 4096);
}

static double opt_num(app *a, const char *name, double absent)
{
    const char *s = opt(a, name);
    char *end;
    double v;
    if (!s) return absent;
    v = strtod(s, &end);
    if (end == s || *end || !(v >= 0) || v > DBL_MAX)
        die(a, "%s: %s '%s' is not a number from 0 up", a->cmd->name, name, s);
    return v;
}

static tr_config_opts config_opts(app *a)           /* by the command's --accept and --set */
{
    tr_config_opts o;
    memset(&o, 0, sizeof o);
    o.accept = opt_all(a, "--accept", &o.n_accept);
    o.set = opt_all(a, "--set", &o.n_set);
    return o;
}

/* argv[*i] is an option; takes its value from behind `=` or from the next argument. */
static void option_take(app *a, int argc, char **argv, int *i)
{
    const char *s = argv[*i], *eq = s[1] == '-' ? strchr(s, '=') : NULL;
    const option *o = option_find(a->cmd, s, eq ? (size_t)(eq - s) : strlen(s));
    const char *value = eq ? eq + 1 : "";
    if (!o) die(a, "%s: there is no option '%s'", a->cmd->name, s);
    if (o->kind == OPT_FLAG && eq) die(a, "%s: %s takes no value", a->cmd->name, o->name);
    if (o->kind != OPT_FLAG && !eq) {
        if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0)
            die(a, "%s: %s needs a value, %s", a->cmd->name, o->name, o->arg);
        value = argv[++*i];
    }
    if (o->kind != OPT_MANY && opt(a, o->name))
        die(a, "%s: %s is given twice", a->cmd->name, o->name);
    a->opt[a->n_opt].opt = o;
    a->opt[a->n_opt++].value = value;
}

static void options_parse(app *a, int argc, char **argv)
{
    int n = 0, only_args = 0;
    a->opt = (given *)calloc((size_t)argc + 1, sizeof *a->opt);     /* no context yet */
    a->arg = (const char **)calloc((size_t)argc + 1, sizeof *a->arg);
    if (!a->opt || !a->arg) die(a, "out of memory");
    for (int i = 0; i < argc; i++) {
        if (!only_args && strcmp(argv[i], "--") == 0) only_args = 1;
        else if (!only_args && argv[i][0] == '-' && argv[i][1]) option_take(a, argc, argv, &i);
        else if (n < a->cmd->n_args) a->arg[n++] = argv[i];
        else die(a, "%s: '%s' is one argument too many", a->cmd->name, argv[i]);
    }
    if (opt(a, "--help")) return;
    program_options(a);
    if (n < a->cmd->n_args)
        die(a, "%s needs %s; `" PROGRAM " %s --help` explains", a->cmd->name, a->cmd->args,
            a->cmd->name);
    for (const option *o = a->cmd->options; o->name; o++)
        if (o->kind == OPT_NEEDED && !opt(a, o->name))
            die(a, "%s needs %s %s; `" PROGRAM " %s --help` explains", a->cmd->name, o->name,
                o->arg, a->cmd->name);
    (void)opt_threads(a, 0);
    if (a->cmd->check) a->cmd->check(a);
    a->json = opt(a, "--json") != NULL;
}

static void options_print(const option *o)
{
    for (; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-20s %s%s\n", left, o->help, o->kind == OPT_MANY ? " (may be repeated)" : "");
    }
}

static int help_print(const command *c)
{
    printf(PROGRAM " %s%s%s\n\n%s\n\n", c->name, *c->args ? " " : "", c->args, c->help);
    options_print(c->options);
    if (c->json) options_print(json_option);
    options_print(shared_options);
    if (c->note[0]) printf("\n%s", c->note);
    return EXIT_FINE;
}

/* ============================================================================
 * Output {out}
 * ========================================================================= */

typedef struct str32 { char s[32]; } str32;

static str32 commas(int64_t n)                  /* 1234567 -> "1,234,567"; n >= 0 */
{
    str32 out;
    char digits[24];
    int k = snprintf(digits, sizeof digits, "%lld", (long long)n), j = 0;
    for (int i = 0; i < k; i++) {
        if (i && (k - i) % 3 == 0) out.s[j++] = ',';
        out.s[j++] = digits[i];
    }
    out.s[j] = 0;
    return out;
}

static str32 scaled(double x, double step, const char *const *unit)
{
    str32 out;
    int k = 0;
    while (x >= 999.5 && k < 5) { x /= step; k++; }
    snprintf(out.s, sizeof out.s, k && x < 99.95 ? "%.*f %s" : "%.*f %s", k && x < 99.95 ? 1 : 0,
             x, unit[k]);
    return out;
}

static str32 exact(double x)                    /* the shortest decimal that reads back as x */
{
    str32 out;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out.s, sizeof out.s, "%.*g", digits, x);
        if (strtod(out.s, NULL) == x) break;
    }
    return out;
}

static str32 human(double n)                    /* 2.78e12 -> "2.8 T" */
{
    static const char *const unit[] = { "", "k", "M", "G", "T", "P" };
    return scaled(n, 1000, unit);
}

static str32 size_of(double bytes)              /* 1048576 -> "1.0 MiB" */
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    return scaled(bytes, 1024, unit);
}

static str32 shape_str(tr_view v)               /* "[64,96,128]" */
{
    str32 out;
    size_t n = 0;
    out.s[0] = 0;
    for (int k = 0; k < v.rank && n < 24; k++)
        n += (size_t)snprintf(out.s + n, sizeof out.s - n, k ? ",%lld" : "[%lld",
                              (long long)v.shape[k]);
    if (n < sizeof out.s - 1) snprintf(out.s + n, sizeof out.s - n, "]");
    return out;
}

/* The marked ones of 0..n-1 as "0-2, 4, 7-9", with ", " or another comma. */
static char *ranges(app *a, const char *marked, int64_t n, const char *comma)
{
    char *s = (char *)need(a, 48 * n + 1, 1);
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i;
        if (!marked[i]) continue;
        while (j + 1 < n && marked[j + 1]) j++;
        used += (size_t)sprintf(s + used, "%s%lld", used ? comma : "", (long long)i);
        if (j > i)
            used += (size_t)sprintf(s + used, "%s%lld", j > i + 1 ? "-" : comma, (long long)j);
        i = j;
    }
    return s;
}

/* Words of a list under each other in lines of 100 columns. */
static void print_wrapped(const char *const *word, int64_t n)
{
    size_t col = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t len = strlen(word[i]);
        if (col && col + 1 + len > 99) { printf("\n"); col = 0; }
        col += (size_t)printf(col ? " %s" : "  %s", word[i]);
    }
    if (col) printf("\n");
}

static void print_at(const char *left, const char *s)   /* s in lines of 100 columns after left */
{
    size_t indent = strlen(left), room = 99 - indent;
    printf("%s", left);
    while (strlen(s) > room) {
        size_t k = room;
        while (k > 0 && s[k] != ' ') k--;
        if (k == 0) break;
        printf("%.*s\n%*s", (int)k, s, (int)indent, "");
        s += k + 1;
    }
    printf("%s\n", s);
}

/* ---- JSON: key NULL inside an array. */

/* Bytes of the UTF-8 character at s; 0 if there is none, which a name of a file may hold. */
static int utf8_bytes(const unsigned char *s)
{
    int n = *s < 0x80 ? 1 : *s < 0xc2 ? 0 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : *s < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n;
}

static void js_quote(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    putchar('"');
    while (*s) {
        int n = utf8_bytes(s);
        if (n == 0 || *s < 32) printf("\\u%04x", n ? *s : 0xfffd);
        else if (*s == '"' || *s == '\\') printf("\\%c", *s);
        else fwrite(s, 1, (size_t)n, stdout);
        s += n ? n : 1;
    }
    putchar('"');
}

static void js_lead(app *a, const char *key)
{
    if (a->comma) putchar(',');
    if (a->comma && a->depth <= 2) putchar('\n');
    if (key) { js_quote(key); putchar(':'); }
    a->comma = 1;
}

static void js_open(app *a, const char *key, char bracket)
{
    js_lead(a, key);
    putchar(bracket);
    a->comma = 0;
    a->depth++;
}

static void js_close(app *a, char bracket)
{
    putchar(bracket);
    a->comma = 1;
    if (--a->depth == 0) putchar('\n');
}

static void js_str(app *a, const char *key, const char *s)   /* s NULL: null */
{
    js_lead(a, key);
    if (s) js_quote(s);
    else printf("null");
}
static void js_int(app *a, const char *key, int64_t v)
{
    js_lead(a, key);
    printf("%lld", (long long)v);
}
static void js_bool(app *a, const char *key, int v)
{
    js_lead(a, key);
    printf(v ? "true" : "false");
}
static void js_num(app *a, const char *key, double v)       /* JSON has no NaN, no infinity */
{
    js_lead(a, key);
    printf("%s", isfinite(v) ? exact(v).s : "null");
}
static void js_shape(app *a, const char *key, int rank, const int64_t *shape)
{
    js_lead(a, key);
    putchar('[');
    for (int k = 0; k < rank; k++) printf(k ? ",%lld" : "%lld", (long long)shape[k]);
    putchar(']');
}
static void js_lines(app *a, const char *key, const lines *l)
{
    js_open(a, key, '[');
    for (int64_t i = 0; i < l->n; i++) js_str(a, NULL, l->s[i]);
    js_close(a, ']');
}

/* ============================================================================
 * Prompts {ids}
 * ========================================================================= */

#define IDS_NOTE                                                                             \
    "FILE of --ids: text, one sequence of integers a line, separated by blanks; lines without\n" \
    "any are skipped. Or a safetensors with input_ids, I64 or I32 [B, T] or [T], and optional\n" \
    "lengths [B]; other tensors in it are ignored, but for pixel_values and grid_thws.\n"

#define PIXELS_NOTE                                                                          \
    "Images: pixel_values F32 [patches, 3, P, P] and grid_thws I64 [images, 3] (frames, rows,\n" \
    "columns of patches), in the file of --ids or in that of --pixels; or pictures by --image.\n" \
    "Each has one placeholder id in the prompts, in their order; it becomes as many rows as the\n" \
    "model makes of the image. Without images a placeholder is refused, or looked up like any\n" \
    "other id by --as-text, which is what the vendor's code does.\n"

typedef struct prompts {
    int64_t  B, T;                  /* sequences; longest of them */
    int64_t *len;                   /* [B] */
    int32_t *id;                    /* [B, T], 0 past a sequence's end */
    char    *sha256;                /* of the padded ids as they came */
    tr_images images;               /* n 0: none */
    const char *images_in;          /* the file that has them; NULL: made of --image */
    char    *files, *pillow;        /* of --image: their hashes, whose passes; NULL */
} prompts;

static int ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static int is_blank(char c) { return c == ' ' || c == '\t'; }

/* The word at p, up to and with the first byte that no one can see, as "1\\xef". */
static str32 word_str(const char *p, const char *end)
{
    str32 s;
    int k = 0;
    for (; p < end && k < 24 && *p > ' ' && *p < 127; p++) s.s[k++] = *p;
    s.s[k] = 0;
    if (p < end && k < 24 && !is_blank(*p))
        snprintf(s.s + k, sizeof s.s - (size_t)k, "\\x%02x", (unsigned)(unsigned char)*p);
    return s;
}

/* Appends the integers of one line to id; returns how many there were. */
static int64_t ids_line(app *a, const char *path, int64_t line, const char *p, const char *end,
                        int32_t *id)
{
    int64_t n = 0;
    while (p < end) {
        const char *word = p;
        int64_t v = 0;
        if (is_blank(*p)) { p++; continue; }
        while (p < end && *p >= '0' && *p <= '9' && v <= INT32_MAX) v = 10 * v + (*p++ - '0');
        if (p == word || v > INT32_MAX || (p < end && !is_blank(*p)))
            die(a, "%s:%lld: '%s' is no token id; a line is integers from 0 to %d between blanks",
                path, (long long)line, word_str(word, end).s, INT32_MAX);
        id[n++] = (int32_t)v;
    }
    return n;
}

static char *hash_of(app *a, tr_view v)
{
    char *hex = (char *)need(a, 65, 1);
    tr_view_sha256(v, hex);
    return hex;
}

/* The prompt, so that compare can tell when two files are about different ones: SHA-256 of the
 * padded ids [B, T] as 32-bit integers. */
static char *ids_sha256(app *a, int32_t *id, int64_t n)
{
    return hash_of(a, tr_view1(id, TR_I32, n));
}

static void ids_pad(app *a, prompts *p, const int32_t *flat)
{
    size_t n;
    for (int64_t b = 0; b < p->B; b++)
        if (p->len[b] > p->T) p->T = p->len[b];
    must(a, tr_size_mul(a->ctx, &n, (size_t)p->B, (size_t)p->T));
    p->id = (int32_t *)need(a, (int64_t)n, sizeof *p->id);
    for (int64_t b = 0; b < p->B; b++) {
        memcpy(p->id + b * p->T, flat, (size_t)p->len[b] * sizeof *flat);
        flat += p->len[b];
    }
}

static void ids_text(app *a, prompts *p, const char *path)
{
    size_t n;
    const char *s = read_file(a, path, &n), *end = s + n;
    int32_t *flat = (int32_t *)need(a, (int64_t)(n / 2 + 1), sizeof *flat);
    int64_t used = 0, cap = 0;
    for (int64_t line = 1; s < end; line++) {
        const char *stop = (const char *)memchr(s, '\n', (size_t)(end - s));
        const char *text_end = stop ? stop : end;
        int64_t k;
        if (text_end > s && text_end[-1] == '\r') text_end--;
        k = ids_line(a, path, line, s, text_end, flat + used);
        p->len = (int64_t *)grow(a, p->len, &cap, p->B, sizeof *p->len);
        if (k) p->len[p->B++] = k;
        used += k;
        s = stop ? stop + 1 : end;
    }
    if (p->B == 0) die(a, "%s: no token ids in it", path);
    ids_pad(a, p, flat);
}

/* Element i of an integer tensor; die says what else it is. */
static int64_t int_at(app *a, const char *path, const tr_st_entry *e, int64_t i)
{
    char s[96];
    int64_t v64;
    int32_t v32;
    if (e->view.dtype == TR_I64) {
        memcpy(&v64, (const char *)e->view.data + 8 * i, 8);
        return v64;
    }
    if (e->view.dtype != TR_I32)
        die(a, "%s: %s is %s, expected I64 or I32", path, e->name, tr_view_str(e->view, s));
    memcpy(&v32, (const char *)e->view.data + 4 * i, 4);
    return v32;
}

static void ids_lengths(app *a, prompts *p, const char *path, const tr_st_entry *e, int64_t T)
{
    char s[96];
    p->len = (int64_t *)need(a, p->B, sizeof *p->len);
    if (e && tr_view_numel(e->view) != p->B)
        die(a, "%s: lengths is %s for %lld sequences", path, tr_view_str(e->view, s),
            (long long)p->B);
    for (int64_t b = 0; b < p->B; b++) {
        p->len[b] = e ? int_at(a, path, e, b) : T;
        if (p->len[b] < 1 || p->len[b] > T)
            die(a, "%s: lengths[%lld] is %lld, outside 1 to %lld", path, (long long)b,
                (long long)p->len[b], (long long)T);
    }
}

/* The images of a safetensors, which stays open: the views point into it. */
static void images_read(app *a, prompts *p, const char *path)
{
    tr_st *f = (tr_st *)need(a, 1, sizeof *f);
    const tr_st_entry *pixels, *grids;
    tr_images im;
    char s[96];
    memset(&im, 0, sizeof im);
    must(a, tr_st_open(a->ctx, f, path, 0));
    pixels = tr_st_find(f, "pixel_values");
    grids = tr_st_find(f, "grid_thws");
    if (!pixels || !grids)
        die(a, "%s: there is no tensor %s in it", path, pixels ? "grid_thws" : "pixel_values");
    if (grids->view.dtype != TR_I64 || grids->view.rank != 2 || grids->view.shape[1] != 3)
        die(a, "%s: grid_thws is %s, expected I64 [images, 3]", path,
            tr_view_str(grids->view, s));
    if (grids->view.shape[0] == 0)
        die(a, "%s: grid_thws is %s: there is no image in it", path, tr_view_str(grids->view, s));
    im.pixels = pixels->view;
    im.grid = (const int64_t *)grids->view.data;
    im.n = grids->view.shape[0];
    p->images = im;
    p->images_in = path;
}

static void ids_safetensors(app *a, prompts *p, const char *path)
{
    tr_st f;
    char s[96];
    const tr_st_entry *e;
    int32_t *flat;
    int64_t T, used = 0;
    must(a, tr_st_open(a->ctx, &f, path, 0));
    if (!(e = tr_st_find(&f, "input_ids"))) die(a, "%s: there is no tensor input_ids in it", path);
    if (e->view.rank < 1 || e->view.rank > 2 || tr_view_numel(e->view) == 0)
        die(a, "%s: input_ids is %s, expected [B, T]", path, tr_view_str(e->view, s));
    p->B = e->view.rank == 2 ? e->view.shape[0] : 1;
    T = e->view.shape[e->view.rank - 1];
    ids_lengths(a, p, path, tr_st_find(&f, "lengths"), T);
    flat = (int32_t *)need(a, p->B * T, sizeof *flat);
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < p->len[b]; t++) {
            int64_t v = int_at(a, path, e, b * T + t);
            if (v < 0 || v > INT32_MAX)
                die(a, "%s: input_ids[%lld,%lld] is %lld, no token id", path, (long long)b,
                    (long long)t, (long long)v);
            flat[used++] = (int32_t)v;
        }
    ids_pad(a, p, flat);
    if (tr_st_find(&f, "pixel_values")) images_read(a, p, path);
    tr_st_close(a->ctx, &f);
}

/* A safetensors has a JSON header behind its length; text has neither. A pipe is text, unlooked
 * at: what is read of it is gone. */
static int is_safetensors(app *a, const char *path)
{
    unsigned char head[9];
    struct stat st;
    size_t n;
    FILE *f;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return 0;
    if (!(f = fopen(path, "rb"))) die(a, "%s: %s", path, strerror(errno));
    n = fread(head, 1, sizeof head, f);
    fclose(f);
    return ends_with(path, ".safetensors") || (n == 9 && head[8] == '{');
}

/* A model that sees nothing has no processor either: not its missing file is what to tell. */
static void must_see(app *a, int64_t n)
{
    tr_config *c = (tr_config *)need(a, 1, sizeof *c);
    tr_config_opts o = config_opts(a);
    must(a, tr_config_load(a->ctx, c, a->arg[0], &o));
    if (!c->vit_layers)
        die(a, "%s: %s has no vision tower here: it takes no picture (%lld by --image)", a->arg[0],
            tr_family_name(c->family), (long long)n);
}

static int64_t opt_pillow(app *a)
{
    return opt_int(a, "--pillow", IMG_PILLOW_12, IMG_PILLOW_12, IMG_PILLOW_13);
}

/* Files of pictures through the processor of the folder that the command is about. */
static void images_process(app *a, prompts *p, const char **file, int64_t n)
{
    int64_t order = opt_pillow(a);
    int64_t *grid = (int64_t *)need(a, n, 3 * sizeof *grid), patches = 0, P;
    img_pixels *x = (img_pixels *)need(a, n, sizeof *x);
    float *all, *at;
    img_proc proc;
    must_see(a, n);
    must(a, img_proc_load(a->ctx, &proc, a->arg[0], NULL, 0));
    if (proc.family != IMG_KIMI)
        die(a, "%s: its processor is %s's; only Kimi's patches are run", a->arg[0],
            img_family_name(proc.family));
    p->pillow = text(a, "%lld", (long long)order);
    p->files = text(a, "%s", "");
    P = proc.patch;
    for (int64_t i = 0; i < n; i++) {
        img m;
        must(a, img_load(a->ctx, &m, file[i], IMG_MAX_PIXELS));
        must(a, img_size(a->ctx, &proc, file[i], m.w, m.h, &x[i].grid));
        must(a, img_process(a->ctx, &proc, &m, (img_pillow)order, &x[i]));
        p->files = text(a, "%s%s%s", p->files, i ? " " : "", m.sha256);
        img_free(a->ctx, &m);
        grid[3 * i] = 1;
        grid[3 * i + 1] = x[i].grid.gh;
        grid[3 * i + 2] = x[i].grid.gw;
        patches += x[i].grid.patches;
    }
    at = all = (float *)need(a, patches * 3 * P * P, sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        size_t k = (size_t)(x[i].grid.patches * 3 * P * P);
        memcpy(at, x[i].values, k * sizeof *at);
        at += k;
        img_pixels_free(a->ctx, &x[i]);
    }
    p->images.pixels = tr_view4(all, TR_F32, patches, 3, P, P);
    p->images.grid = grid;
    p->images.n = n;
}

/* Of the command's --ids, --pixels and --image. Without ids one prompt of no tokens. */
static prompts prompts_read(app *a)
{
    const char *path = opt(a, "--ids"), *pixels = opt(a, "--pixels"), **file;
    int64_t n;
    prompts p;
    memset(&p, 0, sizeof p);
    if (path && is_safetensors(a, path)) ids_safetensors(a, &p, path);
    else if (path) ids_text(a, &p, path);
    else {
        p.B = 1;
        p.len = (int64_t *)need(a, 1, sizeof *p.len);
    }
    if (path) p.sha256 = ids_sha256(a, p.id, p.B * p.T);
    if (pixels && p.images.n)
        die(a, "%s: images are in %s and in %s; which?", a->cmd->name, path, pixels);
    file = opt_all(a, "--image", &n);
    if (n && (pixels || p.images.n))
        die(a, "%s: images are given by --image and in %s; which?", a->cmd->name,
            pixels ? pixels : path);
    if (pixels) images_read(a, &p, pixels);
    if (n) images_process(a, &p, file, n);
    return p;
}

/* The prompts one after the other, without padding. */
static tr_batch prompts_flat(app *a, const prompts *p)
{
    tr_batch b;
    int64_t n = 0;
    int32_t *id = (int32_t *)need(a, p->B * p->T, sizeof *id);
    for (int64_t s = 0; s < p->B; n += p->len[s++])
        if (p->len[s]) memcpy(id + n, p->id + s * p->T, (size_t)p->len[s] * sizeof *id);
    b.B = p->B;
    b.T = p->len;
    b.ids = id;
    return b;
}

/* A placeholder without a picture is nearly always a picture that was forgotten. The vendor's code
 * looks its id up like any other when it is called without pixels: --as-text. */
static void prompts_blind(app *a, const prompts *p, const tr_config *c)
{
    int64_t n = 0, seq = 0, at = 0;
    if (c->media.n != 1 || opt(a, "--as-text")) return;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < p->len[b]; t++)
            if (p->id[b * p->T + t] == c->media.v[0] && n++ == 0) { seq = b; at = t; }
    if (n)
        die(a, "%s: id %lld stands for a picture (%lld placeholder%s, the first at sequence %lld, "
            "token %lld), and none is given by --image or --pixels; --as-text takes it for a word",
            opt(a, "--ids"), (long long)c->media.v[0], (long long)n, plural(n), (long long)seq,
            (long long)at);
}

/* Each placeholder becomes as many as its image has rows; o learns what the images need. */
static void prompts_expand(app *a, prompts *p, const tr_config *c, tr_run_opts *o)
{
    tr_batch b = prompts_flat(a, p);
    int64_t *len = (int64_t *)need(a, p->B, sizeof *len), n = 0;
    int32_t *flat;
    if (!p->images.n) { prompts_blind(a, p, c); return; }
    if (opt(a, "--as-text")) die(a, "%s: --as-text is for prompts without images", a->cmd->name);
    must_in(a, p->images_in, tr_run_opts_images(a->ctx, o, c, &p->images));
    if (!p->T) return;
    must_in(a, opt(a, "--ids"), tr_expand_images(a->ctx, len, NULL, c, &p->images, &b));
    for (int64_t s = 0; s < p->B; s++) n += len[s];
    flat = (int32_t *)need(a, n, sizeof *flat);
    must(a, tr_expand_images(a->ctx, len, flat, c, &p->images, &b));
    p->len = len;
    p->T = 0;
    ids_pad(a, p, flat);
}

/* ============================================================================
 * Models {open}
 * ========================================================================= */

#define OPT_ACCEPT { "--accept", "KEY", OPT_MANY, "let an unknown config key pass, by name" }
#define OPT_SET    { "--set", "NAME=VALUE", OPT_MANY, "set a fact that audit lists, by name" }
#define OPT_LENIENT \
    { "--lenient", NULL, OPT_FLAG, "trailing bytes and holes in a shard are warnings" }
#define OPT_PROFILE { "--profile", "NAME", OPT_ONE, "what is rounded where (default: exact)" }
#define OPT_IDS     { "--ids", "FILE", OPT_NEEDED, "token ids, text or safetensors" }
#define OPT_PIXELS  { "--pixels", "FILE", OPT_ONE, "safetensors with the images of the prompts" }, \
    { "--image", "FILE", OPT_MANY, "a PNG or JPEG of the prompts, processed as `image` does" },    \
    { "--pillow", "12|13", OPT_ONE, "whose order of its two passes (default: 12)" },               \
    { "--as-text", NULL, OPT_FLAG, "placeholders without images are ordinary ids" }
#define OPT_END     { NULL, NULL, OPT_FLAG, NULL }

/* What was collected while a model was opened, in one line. */
static void warnings_say(app *a, const char *dir)
{
    if (a->warnings.n == 1) say(a, "warning: %s", a->warnings.s[0]);
    if (a->warnings.n > 1)
        say(a, "warning: %s: %lld warnings; `trillion audit %s%s` lists them", dir,
            (long long)a->warnings.n, dir, opt(a, "--lenient") ? " --lenient" : "");
    a->warnings.n = 0;
}

/* By the command's --lenient, --accept and --set. */
static tr_model *model_open(app *a, const char *dir, int64_t first, int64_t layers)
{
    tr_model_opts o;
    tr_model *m;
    int shown_later = a->quiet_warnings;
    memset(&o, 0, sizeof o);
    o.first = first;
    o.layers = layers;
    o.lenient = opt(a, "--lenient") != NULL;
    o.config = config_opts(a);
    a->quiet_warnings = 1;
    must(a, tr_model_open(a->ctx, &m, dir, &o));
    a->quiet_warnings = shown_later;
    if (!shown_later) warnings_say(a, dir);
    return m;
}

static const tr_profile *profile(app *a)
{
    const char *name = opt(a, "--profile");
    const tr_profile *p = tr_profile_find(name ? name : "exact");
    if (!p) {
        char have[256] = "";            /* there may be no context yet */
        size_t n = 0;
        for (int64_t i = 0; i < tr_profile_count() && n < sizeof have; i++)
            n += (size_t)snprintf(have + n, sizeof have - n, "%s%s", i ? ", " : "",
                                  tr_profile_get(i)->name);
        die(a, "%s: there is no profile '%s'; there is %s", a->cmd->name, name, have);
    }
    return p;
}

static const char *const mixer_name[] = { "GQA", "MLA", "KDA" };     /* by tr_mixer_kind */
static const char *const ffn_name[] = { "dense", "MoE" };            /* by tr_ffn_kind */

/* ---- Pieces: the next `chunk` tokens of every prompt that has some left. */

typedef struct piece {
    const prompts *p;
    int64_t  chunk, at;             /* tokens a sequence; where the piece begins */
    int64_t  N, pieces;             /* tokens in it; how many pieces there are in all */
    int64_t *T;                     /* [B] */
    int32_t *ids;
    tr_batch batch;
} piece;

static piece piece_first(app *a, const prompts *p, int64_t chunk)
{
    piece c;
    memset(&c, 0, sizeof c);
    c.p = p;
    c.chunk = chunk < p->T ? chunk : p->T;
    c.at = -c.chunk;
    c.pieces = (p->T + c.chunk - 1) / c.chunk;
    c.T = (int64_t *)need(a, p->B, sizeof *c.T);
    c.ids = (int32_t *)need(a, p->B * c.chunk, sizeof *c.ids);
    return c;
}

static int piece_next(piece *c)                 /* 0: there is none */
{
    c->at += c->chunk;
    c->N = 0;
    for (int64_t b = 0; b < c->p->B; b++) {
        int64_t left = c->p->len[b] - c->at;
        c->T[b] = left < 0 ? 0 : left < c->chunk ? left : c->chunk;
        for (int64_t t = 0; t < c->T[b]; t++)
            c->ids[c->N++] = c->p->id[b * c->p->T + c->at + t];
    }
    c->batch.B = c->p->B;
    c->batch.T = c->T;
    c->batch.ids = c->ids;
    return c->N > 0;
}

static int64_t opt_chunk(app *a, int64_t absent)
{
    return opt_int(a, "--chunk", absent, 1, INT32_MAX);
}

/* Tokens a sequence and call: what was asked for, else 512 of all sequences together, which keeps
 * activations small beside the weights. */
static int64_t chunk_of(app *a, const prompts *p)
{
    int64_t usual = 512 / p->B;
    return opt_chunk(a, usual > 0 ? usual : 1);
}

/* What golden and run have in common, before all else. */
static void check_model(app *a)
{
    (void)profile(a);
    (void)opt_pillow(a);
    (void)opt_chunk(a, 1);
    program_check_model(a);
}

/* ---- Names: the module path of a layer, or of the embedding (layer -1), from the tables. */

typedef struct path_query { app *a; char *embed; } path_query;

static tr_status path_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    path_query *q = (path_query *)user;
    (void)ctx;
    if (e->spec->id == TR_W_EMBED) q->embed = text(q->a, "%s", e->stem);
    return q->embed ? TR_ERR_FULL : TR_OK;      /* any failure stops the walk */
}

static char *module_path(app *a, const tr_config *c, int64_t layer)
{
    path_query q;
    const char *last;
    q.a = a;
    q.embed = NULL;
    (void)tr_config_each(a->ctx, c, path_visit, &q);
    if (!q.embed) die(a, "the tables name no embedding");
    if (layer < 0) return q.embed;
    last = strrchr(q.embed, '.');
    return text(a, "%.*slayers.%lld", last ? (int)(last + 1 - q.embed) : 0, q.embed,
                (long long)layer);
}

/* ---- What both the audit and the golden say about files */

/* SHA-256 over length field and header of every shard, in the order of the shards. */
static char *headers_sha256(app *a, const tr_shards *s)
{
    tr_sha256 h;
    char *hex = (char *)need(a, 65, 1);
    tr_sha256_init(&h);
    for (int64_t i = 0; i < s->files; i++)
        tr_sha256_update(&h, s->file[i].map, s->file[i].data_at);
    tr_sha256_hex(&h, hex);
    return hex;
}

/* What a fact is in this config: its number, or its rule in words. */
static const char *fact_text(app *a, const tr_config *c, const tr_fact *f)
{
    return f->field == TR_NO_FIELD ? f->text : text(a, "%s", exact(tr_fact_value(c, f)).s);
}

/* Elements of e that the model uses: of a padded vector one a head, of anything else all. */
static int64_t used_of(const tr_config *c, const tr_expected *e)
{
    return e->spec->store == TR_STORE_PADDED_F32 ? c->kda_heads : e->params;
}

static size_t stored_bytes(app *a, const tr_stored *s)
{
    size_t n = (size_t)tr_dtype_get(s->dtype)->bits;
    for (int k = 0; k < s->rank; k++) must(a, tr_size_mul(a->ctx, &n, n, (size_t)s->shape[k]));
    return n / 8;
}

typedef struct metadata { tr_st_meta_item *item; int64_t n, cap; } metadata;

/* eos_token_id, an id or a list of them, of generation_config.json if the folder has one and it
 * says so, as transformers does; else the config's. */
static const tr_int_list *eos_ids(app *a, const char *dir, const tr_config *c)
{
    char *path = text(a, "%s/generation_config.json", dir);
    tr_int_list *list = (tr_int_list *)need(a, 1, sizeof *list);
    tr_json j;
    const tr_json_node *e, *item;
    if (!exists(path)) return &c->eos;
    must(a, tr_json_load(a->ctx, &j, path));
    e = tr_json_get(&j, &j.node[0], "eos_token_id");
    if (!e || e->type == TR_JSON_NULL) return &c->eos;
    list->v = (int64_t *)need(a, (int64_t)e->count + 1, sizeof *list->v);
    if (e->type != TR_JSON_ARRAY) must(a, tr_json_int(&j, e, &list->v[list->n++]));
    else
        for (item = tr_json_first(&j, e); item; item = tr_json_next(&j, item))
            must(a, tr_json_int(&j, item, &list->v[list->n++]));
    tr_json_free(&j);
    return list;
}

/* ============================================================================
 * What golden and run ask of a model {engine}
 *
 * Here on one rank. ranks.h has the same functions over several, and there rank 0 alone, which
 * leads, reads prompts, has what is tapped and writes.
 * ========================================================================= */

#ifdef TRILLION_RANKS
#include "ranks.h"
#else

typedef struct engine {
    tr_model *m;
    int64_t   first, layers;        /* that are run */
    tr_run   *r;
} engine;

static void program_start(app *a, int argc, char **argv) { (void)a; (void)argc; (void)argv; }
static void program_options(app *a) { (void)a; }
static void program_begin(app *a) { (void)a; }
static void program_ready(app *a) { (void)a; }
static void program_alive(app *a) { (void)a; }
static void program_check_model(app *a) { (void)a; }
static int  program_threads(app *a) { (void)a; return 0; }
static int  program_leads(const app *a) { (void)a; return 1; }

static int program_end(app *a, int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) die(a, "stdout: %s", strerror(errno));
    return code;
}

static _Noreturn void program_fail(app *a, const char *sentence)
{
    (void)a;
    fprintf(stderr, PROGRAM ": %s\n", sentence);
    fflush(stderr);
    _exit(EXIT_UNUSABLE);               /* not exit: what stdout still holds is half an answer */
}

/* What rank 0 read, to all; what all must have alike. */
static void share(app *a, void *data, int64_t bytes) { (void)a; (void)data; (void)bytes; }
static void same(app *a, const char *what, const char *text) { (void)a; (void)what; (void)text; }

static prompts engine_prompts(app *a) { return prompts_read(a); }

static const tr_int_list *engine_eos(app *a, const tr_config *c)
{
    return eos_ids(a, a->arg[0], c);
}

static void engine_open(app *a, engine *e, int64_t first, int64_t layers)
{
    memset(e, 0, sizeof *e);
    e->m = model_open(a, a->arg[0], first, layers);
    e->first = e->m->first;
    e->layers = e->m->layers;
}

static void engine_run(app *a, engine *e, const tr_run_opts *o)
{
    must(a, tr_run_new(a->ctx, &e->r, e->m, o));
}

/* The tower over the images; their places are in the expanded prompts. */
static void engine_see(app *a, engine *e, const prompts *p)
{
    tr_batch b = prompts_flat(a, p);
    if (p->images.n)
        must_in(a, p->images_in, tr_vit_forward(e->r, &p->images, p->T ? &b : NULL));
}

static void engine_forward(app *a, engine *e, const tr_batch *b, const tr_hidden *in)
{
    must(a, tr_forward(e->r, b, in));
}

/* What each sequence that had tokens in the last forward says next; id [B] of others as it was. */
static void engine_next(app *a, engine *e, const tr_batch *b, int32_t *id)
{
    for (int64_t s = 0; s < b->B; s++) {
        int32_t next = b->T[s] ? tr_argmax(tr_view_at(e->r->logits, s)) : 0;
        if (next < 0)
            die(a, "sequence %lld, token %lld: NaN among the logits", (long long)s,
                (long long)e->r->state.len[s]);
        if (b->T[s]) id[s] = next;
    }
}

static void engine_tap_state(app *a, engine *e) { must(a, tr_tap_state(e->r)); }
static void engine_run_end(engine *e) { tr_run_free(e->r); }

static void engine_write(app *a, const tr_golden *g, const char *path, const metadata *meta)
{
    must(a, tr_golden_write(a->ctx, g, path, meta->item, meta->n));
}

static void engine_sha256(app *a, tr_view v, char hex[65]) { (void)a; tr_view_sha256(v, hex); }
static void engine_report(app *a, engine *e) { (void)a; (void)e; }
static void engine_close(engine *e) { tr_model_close(e->m); }

#endif

/* ============================================================================
 * audit {audit}
 * ========================================================================= */

/* ---- Every byte. Findings fail the audit; remarks do not. */

typedef struct deep {
    app      *a;
    tr_model *m;
    int64_t   read, resumed;        /* rows of the tables done; of them in an earlier run */
    int64_t   tensors;              /* that they are stored in */
    double    bytes, saved;
    lines     findings, remarks;
    const char *state;              /* --resume FILE, or NULL */
    char     *headers;              /* SHA-256: whose state it is */
} deep;

/* Lines: "trillion audit 1 HEADERS_SHA256", "read N", then "finding ..." and "remark ...". */
static void deep_save(deep *d)
{
    FILE *f;
    if (!d->state) return;
    f = part_open(d->a, d->state);
    fprintf(f, "trillion audit 1 %s\nread %lld\n", d->headers, (long long)d->read);
    for (int64_t i = 0; i < d->findings.n; i++) fprintf(f, "finding %s\n", d->findings.s[i]);
    for (int64_t i = 0; i < d->remarks.n; i++) fprintf(f, "remark %s\n", d->remarks.s[i]);
    part_close(d->a, d->state, f);
    d->saved = now();
}

static void deep_resume(deep *d)
{
    size_t n;
    char *s, *line;
    if (!d->state || !exists(d->state)) return;
    s = read_file(d->a, d->state, &n);
    line = strtok(s, "\n");
    if (!line || strcmp(line, text(d->a, "trillion audit 1 %s", d->headers)) != 0)
        die(d->a, "%s: is not the state of an audit of this checkpoint; remove it to start anew",
            d->state);
    while ((line = strtok(NULL, "\n")) != NULL) {
        char *end = line;
        if (strncmp(line, "read ", 5) == 0) d->resumed = strtoll(line + 5, &end, 10);
        if (end > line + 5 && !*end && d->resumed >= 0) continue;
        if (strncmp(line, "finding ", 8) == 0) lines_add(d->a, &d->findings, line + 8);
        else if (strncmp(line, "remark ", 7) == 0) lines_add(d->a, &d->remarks, line + 7);
        else die(d->a, "%s: '%s' is no line of an audit's state", d->state, line);
    }
}

/* What is stored past the elements that are used. */
static void deep_tail(deep *d, const tr_st_entry *e, int64_t used)
{
    int64_t n = tr_view_numel(e->view);
    for (int64_t i = used; i < n; i++) {
        double v = tr_get_f64(e->view.data, e->view.dtype, i);
        if (v == 0) continue;
        lines_add(d->a, &d->remarks, text(d->a, "%s: element %lld of the padded tail is %g, not 0 "
                  "(%lld of %lld are used)", e->name, (long long)i, v, (long long)used,
                  (long long)n));
        return;
    }
}

static tr_status deep_tensor(deep *d, tr_ctx *ctx, const tr_expected *e, const tr_st_entry *q,
                             const tr_st_entry *s)
{
    const tr_qformat *f = e->format ? e->format : tr_qformat_plain(q->view.dtype);
    int matrix = e->format || q->view.rank > 1;
    int64_t rows = matrix && e->rank ? e->shape[0] : 1, used = used_of(&d->m->cfg, e);
    tr_weight w;
    tr_status r;
    if (!f) return tr_fail(ctx, TR_ERR_DTYPE, "%s: cannot be checked", q->name);
    if (!e->format && tr_view_numel(q->view) > used) { rows = 1; deep_tail(d, q, used); }
    r = tr_weight_of(ctx, &w, f, q->name, q->view.data, s ? s->view.data : NULL, rows,
                     rows > 0 ? used / rows : 0, d->m->cfg.block_rows, d->m->cfg.block_cols);
    if (r == TR_OK) r = tr_weight_check(ctx, &w);
    if (r != TR_ERR_NOT_FINITE) return r;
    lines_add(d->a, &d->findings, tr_err_last(ctx));
    return TR_OK;
}

static tr_status deep_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    deep *d = (deep *)user;
    tr_stored st[2];
    const tr_st_entry *q, *s = NULL;
    int n;
    tr_status r = tr_expected_stored(ctx, &d->m->cfg, e, e->format, st, &n);
    if (r != TR_OK) return r;
    q = tr_shards_find(&d->m->shards, st[0].name);
    if (n > 1) s = tr_shards_find(&d->m->shards, st[1].name);
    if (!q) return TR_OK;                   /* of an announced module that was not shipped */
    if (d->read++ >= d->resumed) r = deep_tensor(d, ctx, e, q, s);
    d->tensors += n;
    d->bytes += (double)q->bytes + (s ? (double)s->bytes : 0);
    progress_at(d->a, d->bytes, q->name);
    if (now() - d->saved > 5) deep_save(d);
    return r;
}

static void audit_deep(app *a, deep *d, tr_model *m)
{
    d->a = a;
    d->m = m;
    d->state = opt(a, "--resume");
    d->headers = headers_sha256(a, &m->shards);
    d->saved = now();
    deep_resume(d);
    progress_begin(a, "reading every byte", (double)m->shards.bytes);
    must(a, tr_config_each(a->ctx, &m->cfg, deep_visit, d));
    progress_end(a);
    if (d->resumed > d->read)
        die(a, "%s: says that %lld weights were read, and there are %lld; remove it to start anew",
            d->state, (long long)d->resumed, (long long)d->read);
    deep_save(d);
}

/* ---- The report */

typedef struct census {             /* what the tables ask for, and what is there */
    const tr_model *m;
    int64_t expected, not_shipped;  /* tensors; of modules that are announced only */
    int64_t unused;                 /* there, and for parts that the engine does not run */
} census;

static tr_status census_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    census *c = (census *)user;
    tr_stored st[2];
    int n;
    tr_status r = tr_expected_stored(ctx, &c->m->cfg, e, e->format, st, &n);
    if (r != TR_OK) return r;
    if (e->optional && !tr_shards_find(&c->m->shards, st[0].name)) {
        c->not_shipped += n;
        return TR_OK;
    }
    c->expected += n;
    if (e->spec->id == TR_W_NONE || e->layer >= c->m->cfg.layers) c->unused += n;
    return TR_OK;
}

static census census_of(app *a, const tr_model *m)
{
    census c;
    memset(&c, 0, sizeof c);
    c.m = m;
    must(a, tr_config_each(a->ctx, &m->cfg, census_visit, &c));
    return c;
}

static int same_kind(const tr_plan_layer *x, const tr_plan_layer *y)
{
    return x->kind.mixer == y->kind.mixer && x->kind.ffn == y->kind.ffn &&
           x->tensors == y->tensors && x->bytes == y->bytes;
}

/* Layers that are alike, in one line. */
static void audit_layers(app *a, const tr_plan *p)
{
    char *done = (char *)need(a, p->layers, 1);
    printf("\n%-13s %9s %18s %9s  %s\n", "layers", "tensors", "parameters", "bytes", "(of one)");
    for (int64_t i = 0; i < p->layers; i++) {
        const tr_plan_layer *l = &p->layer[i];
        char *marked = (char *)need(a, p->layers, 1), *left;
        if (done[i]) continue;
        for (int64_t k = i; k < p->layers; k++)
            if (same_kind(l, &p->layer[k])) marked[k] = done[k] = 1;
        left = text(a, "%-13s %9s %18s %9s  ", text(a, "%s + %s", mixer_name[l->kind.mixer],
                    ffn_name[l->kind.ffn]), commas(l->tensors).s, commas(l->params).s,
                    size_of((double)l->bytes).s);
        print_at(left, ranges(a, marked, p->layers, ", "));
    }
}

static void audit_facts(app *a, const tr_config *c)
{
    int64_t n;
    const tr_fact *f = tr_family_facts(c->family, &n);
    if (n) printf("\n%-26s %-18s %s\n", "fact", "value", "note");
    for (int64_t i = 0; i < n; i++) {
        const char *v = fact_text(a, c, &f[i]);
        int wide = strlen(v) > 18;
        char *left = text(a, "%-26s %-18s ", f[i].name, wide ? "" : v);
        if (wide) print_at(text(a, "%-26s ", f[i].name), v);
        print_at(wide ? text(a, "%-45s ", "") : left, f[i].note);
    }
    for (const char *s = c->sets; s && *s; s += strcspn(s, "\n") + (strchr(s, '\n') != NULL))
        printf("set by name: %.*s\n", (int)strcspn(s, "\n"), s);
    for (const char *s = c->accepted; s && *s; s += strcspn(s, "\n") + (strchr(s, '\n') != NULL))
        printf("accepted by name: %.*s\n", (int)strcspn(s, "\n"), s);
}

static void print_list(const char *what, const lines *l)
{
    if (l->n) printf("\n%s (%lld)\n", what, (long long)l->n);
    for (int64_t i = 0; i < l->n; i++) printf("  %s\n", l->s[i]);
}

static void audit_print(app *a, const tr_model *m, const tr_plan *p, const census *c, const deep *d)
{
    printf("checkpoint  %s\n", a->arg[0]);
    printf("family      %s, %s\n", tr_family_name(m->cfg.family), tr_family_title(m->cfg.family));
    printf("config      sha256 %s\n", m->cfg.sha256);
    printf("headers     sha256 %s, %lld %s\n", headers_sha256(a, &m->shards),
           (long long)m->shards.files, m->shards.files == 1 ? "file" : "files");
    printf("tensors     %s found, %s expected", commas(m->shards.n).s, commas(c->expected).s);
    if (c->unused) printf("; %s not used by the engine", commas(c->unused).s);
    if (c->not_shipped) printf("; %s announced and not shipped", commas(c->not_shipped).s);
    printf("\nbytes       %s (%s)\n", commas((int64_t)m->shards.bytes).s,
           size_of((double)m->shards.bytes).s);
    audit_layers(a, p);
    audit_facts(a, &m->cfg);
    print_list("warnings", &a->warnings);
    print_list("remarks", &d->remarks);
    print_list("findings", &d->findings);
    if (opt(a, "--deep"))
        printf("\nevery byte of %s tensor%s read%s\n", commas(d->tensors).s, plural(d->tensors),
               d->resumed ? ", some of them in an earlier run" : "");
    printf("\n%s", d->findings.n ? "FAILED" : "fine");
    if (a->warnings.n)
        printf(" (%lld warning%s above)", (long long)a->warnings.n, plural(a->warnings.n));
    printf("\n");
}

static void js_layer_open(app *a, const tr_plan_layer *l)
{
    js_open(a, NULL, '{');
    js_int(a, "index", l->index);
    js_str(a, "mixer", mixer_name[l->kind.mixer]);
    js_str(a, "ffn", ffn_name[l->kind.ffn]);
    js_int(a, "tensors", l->tensors);
    js_int(a, "params", l->params);
    js_int(a, "bytes", (int64_t)l->bytes);
}

static void js_facts(app *a, const tr_family *family, const tr_config *c)
{
    int64_t n;
    const tr_fact *f = tr_family_facts(family, &n);
    js_open(a, "facts", '[');
    for (int64_t i = 0; i < n; i++) {
        js_open(a, NULL, '{');
        js_str(a, "name", f[i].name);
        if (f[i].field == TR_NO_FIELD) js_str(a, "rule", f[i].text);
        else js_num(a, "value", c ? tr_fact_value(c, &f[i]) : f[i].value);
        js_str(a, "note", f[i].note);
        js_close(a, '}');
    }
    js_close(a, ']');
}

static void audit_json(app *a, const tr_model *m, const tr_plan *p, const census *c, const deep *d)
{
    int every = opt(a, "--deep") != NULL;
    js_open(a, NULL, '{');
    js_str(a, "checkpoint", a->arg[0]);
    js_bool(a, "fine", d->findings.n == 0);
    js_str(a, "family", tr_family_name(m->cfg.family));
    js_str(a, "config_sha256", m->cfg.sha256);
    js_str(a, "headers_sha256", headers_sha256(a, &m->shards));
    js_int(a, "files", m->shards.files);
    js_int(a, "tensors", m->shards.n);
    js_int(a, "expected", c->expected);
    js_int(a, "unused", c->unused);
    js_int(a, "not_shipped", c->not_shipped);
    js_int(a, "bytes", (int64_t)m->shards.bytes);
    js_open(a, "layers", '[');
    for (int64_t i = 0; i < p->layers; i++) {
        js_layer_open(a, &p->layer[i]);
        js_close(a, '}');
    }
    js_close(a, ']');
    js_facts(a, m->cfg.family, &m->cfg);
    js_lines(a, "warnings", &a->warnings);
    js_bool(a, "deep", every);
    js_lines(a, "findings", &d->findings);
    js_lines(a, "remarks", &d->remarks);
    js_close(a, '}');
}

static int cmd_audit(app *a)
{
    tr_run_opts o = tr_run_opts_default();
    tr_model *m;
    tr_plan p;
    census c;
    deep d;
    memset(&d, 0, sizeof d);
    if (opt(a, "--resume") && !opt(a, "--deep")) die(a, "audit: --resume needs --deep");
    a->quiet_warnings = 1;
    m = model_open(a, a->arg[0], 0, 0);
    must(a, tr_plan_model(a->ctx, &p, m, &o));
    c = census_of(a, m);
    if (opt(a, "--deep")) audit_deep(a, &d, m);
    if (a->json) audit_json(a, m, &p, &c, &d);
    else audit_print(a, m, &p, &c, &d);
    tr_plan_free(a->ctx, &p);
    tr_model_close(m);
    return d.findings.n ? EXIT_DIFFERS : EXIT_FINE;
}

static const option audit_options[] = {
    { "--deep",   NULL,   OPT_FLAG, "read every byte: NaN weights, scale 255, padded tails" },
    { "--resume", "FILE", OPT_ONE,  "with --deep: keep a state there and go on from it" },
    OPT_LENIENT, OPT_ACCEPT, OPT_SET, OPT_END
};

static const char audit_note[] =
    "Checks config, index, headers, names, shapes and sizes, and prints every fact of the\n"
    "family: constants that live in the vendor's code only. --deep names tensor, row and block of\n"
    "the first value of a tensor that is not finite; a padded tail that is not 0 is a remark, as\n"
    "it is never used. The state of --resume is rewritten every five seconds and at the end;\n"
    "remove it to start anew.\n\n"
    "Exit codes: 0 all as it must be; 1 --deep found something; 2 the checkpoint cannot be\n"
    "opened, and the sentence says why.\n";

/* ============================================================================
 * plan {plan}
 * ========================================================================= */

/* ---- Names of all tensors, as stored. */

typedef struct names {
    app *a;
    const tr_config *c;
    char *text;  int64_t used, cap;
    int64_t n;
} names;

static tr_status names_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    names *all = (names *)user;
    tr_stored st[2];
    int n;
    tr_status r = tr_expected_stored(ctx, all->c, e, e->format, st, &n);
    if (r != TR_OK) return r;
    for (int k = 0; k < n; k++, all->n++)
        for (const char *s = st[k].name; ; s++) {
            all->text = (char *)grow(all->a, all->text, &all->cap, all->used, 1);
            all->text[all->used++] = *s;
            if (!*s) break;
        }
    return TR_OK;
}

static int by_bytes(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static void plan_names(app *a, const tr_config *c)
{
    names all;
    const char **sorted, *s;
    memset(&all, 0, sizeof all);
    all.a = a;
    all.c = c;
    must(a, tr_config_each(a->ctx, c, names_visit, &all));
    sorted = (const char **)need(a, all.n, sizeof *sorted);
    s = all.text;
    for (int64_t i = 0; i < all.n; i++, s += strlen(s) + 1) sorted[i] = s;
    qsort(sorted, (size_t)all.n, sizeof *sorted, by_bytes);
    for (int64_t i = 0; i < all.n; i++) puts(sorted[i]);
}

/* ---- Bytes of an operator: of the tensors stored under its name. */

typedef struct stem {               /* a tensor, or elements and scales, by its name in the layer */
    int64_t layer, params;
    char   *name;
    double  bytes;
} stem;

typedef struct plan_job {
    app      *a;
    tr_model *m;
    tr_plan   p;
    tr_run_opts o;
    int64_t  *first_op;             /* [layers + 1] of plan.op, by layer */
    int64_t  *like;                 /* [layers] the first layer that is equal to this one */
    stem     *stem;  int64_t stems, stems_cap;
} plan_job;

/* What follows "layers.N." in a tensor's name. */
static const char *inner_name(const tr_expected *e)
{
    char number[32];
    const char *at;
    if (e->layer < 0) return e->stem;
    snprintf(number, sizeof number, "layers.%lld.", (long long)e->layer);
    at = strstr(e->stem, number);
    return at ? at + strlen(number) : e->stem;
}

static tr_status stem_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    plan_job *j = (plan_job *)user;
    tr_stored st[2];
    stem *s;
    int n;
    tr_status r;
    if (e->layer >= j->p.layers || (e->layer >= 0 && j->like[e->layer] != e->layer)) return TR_OK;
    r = tr_expected_stored(ctx, &j->m->cfg, e, e->format, st, &n);
    if (r != TR_OK) return r;
    j->stem = (stem *)grow(j->a, j->stem, &j->stems_cap, j->stems, sizeof *j->stem);
    s = &j->stem[j->stems++];
    s->layer = e->layer;
    s->name = text(j->a, "%s", inner_name(e));
    s->params = e->params;
    s->bytes = 0;
    for (int k = 0; k < n; k++) s->bytes += (double)stored_bytes(j->a, &st[k]);
    return TR_OK;
}

/* The module of an operator: its name, without "weight", with the number of its block. */
static char *op_module(app *a, const tr_plan_op *op)
{
    size_t n = strlen(op->name);
    const char *hole = strstr(op->name, "{b}");
    if (ends_with(op->name, ".weight")) n -= 7;
    if (!hole) return text(a, "%.*s", (int)n, op->name);
    return text(a, "%.*s%lld%.*s", (int)(hole - op->name), op->name, (long long)op->block,
                (int)(op->name + n - hole - 3), hole + 3);
}

/* How much of a stem's name the module is: 2 all, 1 the modules around it, 0 it is another. */
static int stem_fits(const char *name, const char *module)
{
    size_t n = strlen(module);
    for (const char *at = name; (at = strstr(at, module)) != NULL; at++)
        if ((at == name || at[-1] == '.') && (at[n] == 0 || at[n] == '.')) return at[n] ? 1 : 2;
    return 0;
}

/* Stored bytes of the weights that an operator reads: of its own tensor; or, of those under its
 * module, the one of that size; or its share of all of them (a token's experts). */
static double op_bytes(const plan_job *j, const tr_plan_op *op)
{
    char *module = op_module(j->a, op);
    double params = 0, bytes = 0;
    if (op->weight_params == 0 || !module[0]) return 0;
    for (int64_t i = 0; i < j->stems; i++) {
        const stem *s = &j->stem[i];
        int fits = s->layer == op->layer ? stem_fits(s->name, module) : 0;
        if (fits && s->params == op->weight_params) return s->bytes;
        if (!fits) continue;
        params += (double)s->params;
        bytes += s->bytes;
    }
    return params > 0 ? bytes * (double)op->weight_params / params : 0;
}

/* ---- Layers that are equal, operator by operator */

static int same_op(const tr_plan_op *x, const tr_plan_op *y)
{
    return strcmp(x->op, y->op) == 0 && strcmp(x->name, y->name) == 0 &&
           x->y.dtype == y->y.dtype && tr_view_same_shape(x->y, y->y) &&
           x->weight_params == y->weight_params;
}

static int same_layer(const plan_job *j, int64_t x, int64_t y)
{
    int64_t n = j->first_op[x + 1] - j->first_op[x];
    if (!same_kind(&j->p.layer[x], &j->p.layer[y]) || n != j->first_op[y + 1] - j->first_op[y])
        return 0;
    for (int64_t i = 0; i < n; i++)
        if (!same_op(&j->p.op[j->first_op[x] + i], &j->p.op[j->first_op[y] + i])) return 0;
    return 1;
}

/* The operators of a layer follow each other; those before and after are outside the layers. */
static void plan_group(plan_job *j)
{
    int64_t L = j->p.layers, i = 0, first = L ? j->p.layer[0].index : 0;
    j->first_op = (int64_t *)need(j->a, L + 1, sizeof *j->first_op);
    j->like = (int64_t *)need(j->a, L, sizeof *j->like);
    for (int64_t l = 0; l < L; l++) {
        while (i < j->p.ops && j->p.op[i].layer != first + l) i++;
        j->first_op[l] = i;
        while (i < j->p.ops && j->p.op[i].layer == first + l) i++;
        j->first_op[l + 1] = i;
    }
    for (int64_t l = 0; l < L; l++)
        for (int64_t k = 0; k <= l; k++)
            if (k == l || same_layer(j, l, k)) { j->like[l] = k; break; }
}

/* ---- The page */

static void print_ops(const plan_job *j, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const tr_plan_op *op = &j->p.op[i];
        double bytes = op_bytes(j, op);
        if (op->block > 0) continue;
        printf("  %-9s %-41s %-15s %13s %8s %7s\n", op->op, op_module(j->a, op),
               shape_str(op->y).s, op->weight_params ? commas(op->weight_params).s : "",
               bytes > 0 ? size_of(bytes).s : "", op->flops > 0 ? human(op->flops).s : "");
    }
}

static void print_outside(const plan_job *j, const char *title, int64_t begin, int64_t end)
{
    if (begin >= end) return;
    printf("\n%s\n", title);
    print_ops(j, begin, end);
}

static void print_layers(const plan_job *j)
{
    for (int64_t l = 0; l < j->p.layers; l++) {
        const tr_plan_layer *y = &j->p.layer[l];
        char *marked = (char *)need(j->a, j->p.layers, 1);
        int64_t n = 0;
        if (j->like[l] != l) continue;
        for (int64_t k = l; k < j->p.layers; k++) n += marked[k] = j->like[k] == l;
        printf("\n");
        print_at(n == 1 ? "layer " : text(j->a, "%lld layers ", (long long)n),
                 text(j->a, "%s: %s + %s", ranges(j->a, marked, j->p.layers, ", "),
                      mixer_name[y->kind.mixer], ffn_name[y->kind.ffn]));
        printf("  %s tensor%s, %s parameters, %s active, %s%s\n", commas(y->tensors).s,
               plural(y->tensors),
               commas(y->params).s, commas(y->active).s, size_of((double)y->bytes).s,
               n == 1 ? "" : " each");
        if (y->state_bytes_token)
            printf("  state %s a token\n", size_of((double)y->state_bytes_token).s);
        if (y->state_bytes_seq)
            printf("  state %s a sequence\n", size_of((double)y->state_bytes_seq).s);
        print_ops(j, j->first_op[l], j->first_op[l + 1]);
    }
}

static void print_region(const char *name, double bytes, const char *what)
{
    printf("  %-12s %9s   %s\n", name, size_of(bytes).s, what);
}

static void plan_print(const plan_job *j)
{
    const tr_plan *p = &j->p;
    const tr_config *c = &j->m->cfg;
    int64_t L = p->layers;
    printf("%s, %s\n\n", tr_family_name(c->family), tr_family_title(c->family));
    printf("tensors      %21s\n", commas(p->tensors).s);
    printf("bytes        %21s   %s\n", commas((int64_t)p->bytes).s, size_of((double)p->bytes).s);
    printf("parameters   %21s   %s\n", commas(p->params).s, human((double)p->params).s);
    printf("active       %21s   %s, one token, with the head\n", commas(p->active_params).s,
           human((double)p->active_params).s);
    printf("width %s, %s layer%s, vocabulary %s\n", commas(c->hidden).s, commas(c->layers).s,
           plural(c->layers), commas(c->vocab).s);
    printf("\nmemory: %s profile, %lld sequence%s, %lld token%s a call, room for %lld\n",
           j->o.profile->name, (long long)j->o.B, plural(j->o.B), (long long)j->o.max_tokens,
           plural(j->o.max_tokens), (long long)j->o.capacity);
    if (j->o.max_patches)
        printf("  and an image of %lld patch%s, %lld row%s of the prompt\n",
               (long long)j->o.max_patches, j->o.max_patches == 1 ? "" : "es",
               (long long)j->o.image_rows, plural(j->o.image_rows));
    print_region("weights", (double)p->bytes, "mapped and read in place");
    print_region("vectors", (double)p->vectors, "norms, biases, conv taps, widened");
    print_region("state", (double)p->state, "what the sequences remember");
    print_region("activations", (double)p->activations, "what flows between layers");
    print_region("workspace", (double)p->workspace, "scratch inside a layer");
    printf("\n  %-9s %-41s %-15s %13s %8s %7s\n", "operator", "module", "result", "parameters",
           "bytes", "flop");
    print_outside(j, j->o.max_patches ? text(j->a, "before the layers; block 0 of the %lld of the "
                  "vision tower, which are alike", (long long)c->vit_layers) : "before the layers",
                  0, L ? j->first_op[0] : 0);
    print_layers(j);
    print_outside(j, "after the layers", L ? j->first_op[L] : 0, p->ops);
}

static void js_op(app *a, const plan_job *j, const tr_plan_op *op)
{
    js_open(a, NULL, '{');
    js_str(a, "op", op->op);
    js_str(a, "name", op_module(a, op));
    js_str(a, "dtype", tr_dtype_get(op->y.dtype)->name);
    js_shape(a, "shape", op->y.rank, op->y.shape);
    js_int(a, "params", op->weight_params);
    js_num(a, "bytes", op_bytes(j, op));
    js_num(a, "flops", op->flops);
    js_close(a, '}');
}

static void js_layer(app *a, const plan_job *j, int64_t l)
{
    const tr_plan_layer *y = &j->p.layer[l];
    js_layer_open(a, y);
    js_int(a, "active", y->active);
    js_int(a, "state_bytes_token", (int64_t)y->state_bytes_token);
    js_int(a, "state_bytes_sequence", (int64_t)y->state_bytes_seq);
    js_int(a, "same_as", j->p.layer[j->like[l]].index);
    js_open(a, "ops", '[');
    if (j->like[l] == l)
        for (int64_t i = j->first_op[l]; i < j->first_op[l + 1]; i++) js_op(a, j, &j->p.op[i]);
    js_close(a, ']');
    js_close(a, '}');
}

static void plan_json(app *a, const plan_job *j)
{
    const tr_plan *p = &j->p;
    js_open(a, NULL, '{');
    js_str(a, "family", tr_family_name(j->m->cfg.family));
    js_int(a, "tensors", p->tensors);
    js_int(a, "bytes", (int64_t)p->bytes);
    js_int(a, "params", p->params);
    js_int(a, "active_params", p->active_params);
    js_open(a, "run", '{');
    js_str(a, "profile", j->o.profile->name);
    js_int(a, "sequences", j->o.B);
    js_int(a, "tokens", j->o.max_tokens);
    js_int(a, "capacity", j->o.capacity);
    js_int(a, "patches", j->o.max_patches);
    js_close(a, '}');
    js_open(a, "memory", '{');
    js_int(a, "weights", (int64_t)p->bytes);
    js_int(a, "vectors", (int64_t)p->vectors);
    js_int(a, "state", (int64_t)p->state);
    js_int(a, "activations", (int64_t)p->activations);
    js_int(a, "workspace", (int64_t)p->workspace);
    js_close(a, '}');
    js_open(a, "layers", '[');
    for (int64_t l = 0; l < p->layers; l++) js_layer(a, j, l);
    js_close(a, ']');
    js_open(a, "outside", '[');
    for (int64_t i = 0; i < p->ops; i++)
        if (p->op[i].layer < 0 && p->op[i].block <= 0) js_op(a, j, &p->op[i]);
    js_close(a, ']');
    js_close(a, '}');
}

static int cmd_plan(app *a)
{
    plan_job j;
    tr_config *c = (tr_config *)need(a, 1, sizeof *c);
    tr_config_opts o = config_opts(a);
    memset(&j, 0, sizeof j);
    j.a = a;
    j.o = tr_run_opts_default();
    j.o.profile = profile(a);
    j.o.B = opt_int(a, "--batch", 1, 1, 4096);
    j.o.max_tokens = opt_int(a, "--tokens", 64, 1, INT32_MAX);
    j.o.capacity = opt_int(a, "--capacity", 1024, 1, INT32_MAX);
    must(a, tr_config_load(a->ctx, c, a->arg[0], &o));
    if (opt(a, "--names")) {
        plan_names(a, c);
        return EXIT_FINE;
    }
    must(a, tr_model_new_dry(a->ctx, &j.m, c));
    j.o.max_patches = opt_int(a, "--patches", 0, 1, INT32_MAX);
    if (j.o.max_patches && j.m->cfg.vit_layers) {
        int64_t cell = j.m->cfg.vit_merge.v[0] * j.m->cfg.vit_merge.v[1];
        j.o.max_images = 1;
        j.o.image_rows = (j.o.max_patches + cell - 1) / cell;
    }
    must(a, tr_plan_model(a->ctx, &j.p, j.m, &j.o));
    plan_group(&j);
    must(a, tr_config_each(a->ctx, &j.m->cfg, stem_visit, &j));
    if (a->json) plan_json(a, &j);
    else plan_print(&j);
    tr_plan_free(a->ctx, &j.p);
    tr_model_close(j.m);
    return EXIT_FINE;
}

static const option plan_options[] = {
    { "--names",    NULL, OPT_FLAG, "all tensor names instead, sorted bytewise, one a line" },
    { "--batch",    "B",  OPT_ONE,  "sequences (default: 1)" },
    { "--tokens",   "N",  OPT_ONE,  "tokens of all sequences in one call (default: 64)" },
    { "--capacity", "S",  OPT_ONE,  "tokens that a sequence can hold (default: 1024)" },
    { "--patches",  "N",  OPT_ONE,  "an image of so many patches, too" },
    OPT_PROFILE, OPT_SET, OPT_ACCEPT, OPT_END
};

static const char plan_note[] =
    "Reads config.json alone. An operator's result has the shape of one call with N tokens; its\n"
    "parameters and bytes are what one token reads, its flop the multiplications and additions\n"
    "of products for all of them. Equal layers are shown once; in JSON `same_as` points to the\n"
    "layer that has the operators. Of a vision tower's blocks block 0 is shown.\n\n"
    "Exit codes: 0 fine; 2 the config cannot be used, and the sentence says why.\n";

/* ============================================================================
 * golden {golden}
 * ========================================================================= */

static void meta_add(app *a, metadata *m, const char *key, const char *value)
{
    m->item = (tr_st_meta_item *)grow(a, m->item, &m->cap, m->n, sizeof *m->item);
    m->item[m->n].key = key;
    m->item[m->n++].value = value;
}

static void meta_facts(app *a, metadata *m, const tr_config *c)
{
    int64_t n;
    const tr_fact *f = tr_family_facts(c->family, &n);
    for (int64_t i = 0; i < n; i++)
        meta_add(a, m, text(a, "fact.%s", f[i].name), fact_text(a, c, &f[i]));
}

/* One key a line of `said`; what stands behind '=' is its value. */
static void meta_lines(app *a, metadata *m, const char *prefix, const char *said)
{
    while (said && *said) {
        size_t n = strcspn(said, "\n"), k = 0;
        while (k < n && said[k] != '=') k++;
        meta_add(a, m, text(a, "%s%.*s", prefix, (int)k, said),
                 k < n ? text(a, "%.*s", (int)(n - k - 1), said + k + 1) : "by name");
        said += n + (said[n] == '\n');
    }
}

/* SHA-256 over all tensors in bytewise order of their names: the name, a NUL, and the bytes. The
 * sampled form takes 64 bytes from each of four places, floor(k (bytes - 64) / 3) for k = 0 to 3,
 * and tensors of at most 256 bytes whole: a page or four of each tensor, wherever its shard is. */
static char *weights_sha256(app *a, const tr_shards *s, int sampled)
{
    tr_sha256 h;
    char *hex = (char *)need(a, 65, 1);
    double done = 0;
    progress_begin(a, sampled ? "hashing a sample of the weights" : "hashing the weights",
                   sampled ? (double)s->n : (double)s->bytes);
    tr_sha256_init(&h);
    for (int64_t i = 0; i < s->n; i++) {
        const tr_st_entry *e = s->entry[i];
        const unsigned char *p = (const unsigned char *)e->view.data;
        size_t step = (size_t)1 << 24;
        tr_sha256_update(&h, e->name, strlen(e->name) + 1);
        if (sampled && e->bytes > 256) {
            for (size_t k = 0; k < 4; k++) tr_sha256_update(&h, p + k * (e->bytes - 64) / 3, 64);
        } else {
            for (size_t at = 0; at < e->bytes; at += step) {
                tr_sha256_update(&h, p + at, e->bytes - at < step ? e->bytes - at : step);
                if (!sampled) progress_at(a, done + (double)at, e->name);
            }
        }
        done += sampled ? 1 : (double)e->bytes;
        progress_at(a, done, e->name);
    }
    progress_end(a);
    tr_sha256_hex(&h, hex);
    return hex;
}

/* ---- Layers in part: what enters the first of them, from a golden. Rank 0 alone may have it. */

typedef struct entering {
    int64_t   n;                    /* block sums */
    tr_view  *src;                  /* [1 + n] [B, T, D]: hidden state, block sums; rank 0's */
    tr_view   buf;                  /* [1 + n, rows, D]: room for the pieces */
    tr_hidden hidden;               /* of the piece in progress */
} entering;

static tr_view entering_find(app *a, const tr_st *f, const char *name, const tr_model *m,
                             const prompts *p)
{
    char s[96], *prefixed = text(a, "f64.%s", name);
    const tr_st_entry *e = tr_st_find(f, name);
    int64_t D = m->cfg.hidden, n = tr_hidden_snaps(&m->cfg, m->first);
    if (!e) e = tr_st_find(f, prefixed);
    if (!e && ends_with(name, "embed_tokens") && p->images.n) {
        e = tr_st_find(f, "inputs_embeds");
        if (!e) e = tr_st_find(f, "f64.inputs_embeds");
    }
    if (!e)
        die(a, "%s: there is no %s in it: layer %lld is entered by a hidden state and %lld block "
            "sums", f->path, name, (long long)m->first, (long long)n);
    if (!tr_qformat_plain(e->view.dtype) || tr_view_numel(e->view) != p->B * p->T * D ||
        e->view.shape[e->view.rank - 1] != D)
        die(a, "%s: %s is %s, expected floats [%lld, %lld, %lld]", f->path, name,
            tr_view_str(e->view, s), (long long)p->B, (long long)p->T, (long long)D);
    return tr_view3(e->view.data, e->view.dtype, p->B, p->T, D);
}

/* A golden says which prompt and pictures it is of, and in which profile it was made; files of
 * others need not. */
static void entering_same(app *a, const tr_st *f, const prompts *p)
{
    const char *made = tr_st_meta(f, "profile");
    const char *ids = tr_st_meta(f, "input_ids_sha256");
    const char *pixels = tr_st_meta(f, "pixel_values_sha256");
    if (ids && p->sha256 && strcmp(ids, p->sha256) != 0)
        die(a, "%s: is of another prompt than %s: input_ids_sha256 is %.16s.., here %.16s..",
            f->path, opt(a, "--ids"), ids, p->sha256);
    if (pixels && p->images.n && strcmp(pixels, hash_of(a, p->images.pixels)) != 0)
        die(a, "%s: is of other pictures: pixel_values_sha256 is %.16s.., here %.16s..", f->path,
            pixels, hash_of(a, p->images.pixels));
    if (made && strcmp(made, profile(a)->name) != 0)
        say(a, "warning: %s is of the %s profile, this run of the %s profile", f->path, made,
            profile(a)->name);
}

/* The hidden state is what left layer first - 1. Block sum i is what entered its boundary layer,
 * the embedding for the first one; a boundary at `first` is pushed by that layer itself. */
static void entering_read(app *a, entering *in, const char *path, const tr_model *m,
                          const prompts *p)
{
    tr_st *f = (tr_st *)need(a, 1, sizeof *f);      /* stays open: src points into it */
    must(a, tr_st_open(a->ctx, f, path, 0));
    entering_same(a, f, p);
    in->src = (tr_view *)need(a, in->n + 1, sizeof *in->src);
    in->src[0] = entering_find(a, f, module_path(a, &m->cfg, m->first - 1), m, p);
    for (int64_t i = 0; i < in->n; i++)
        in->src[i + 1] = entering_find(a, f, module_path(a, &m->cfg, i * m->cfg.res_block - 1), m,
                                       p);
}

static void entering_open(app *a, entering *in, const char *path, const engine *e,
                          const prompts *p, int64_t rows, tr_dtype act)
{
    const tr_config *c = &e->m->cfg;
    in->n = tr_hidden_snaps(c, e->first);
    in->buf = tr_view3(NULL, act, in->n + 1, rows, c->hidden);
    in->buf.data = need(a, tr_view_numel(in->buf), (size_t)tr_dtype_get(act)->bits / 8);
    if (program_leads(a)) entering_read(a, in, path, e->m, p);
}

/* The rows of a piece, sequence by sequence; x [1 + n, N, D]. */
static void entering_fill(app *a, const entering *in, const piece *c, tr_view x)
{
    int64_t row = 0;
    for (int64_t b = 0; b < c->p->B; b++)
        for (int64_t t = 0; t < c->T[b]; t++, row++, program_alive(a))
            for (int64_t i = 0; i <= in->n; i++)
                must(a, tr_view_copy(a->ctx, tr_view_at(tr_view_at(x, i), row),
                                     tr_view_at(tr_view_at(in->src[i], b), c->at + t)));
}

static const tr_hidden *entering_piece(app *a, entering *in, const piece *c)
{
    tr_view x = tr_view3(in->buf.data, in->buf.dtype, in->n + 1, c->N, in->buf.shape[2]);
    if (program_leads(a)) entering_fill(a, in, c, x);
    share(a, x.data, tr_view_numel(x) * tr_dtype_get(x.dtype)->bits / 8);
    in->hidden.h = tr_view_at(x, 0);
    in->hidden.snaps = in->n ? tr_view_slice(x, 0, 1, in->n) : tr_view_none();
    in->hidden.n = in->n;
    return &in->hidden;
}

/* ---- The job */

typedef struct golden_job {
    app       *a;
    engine     e;
    prompts    p;
    piece      c;
    int64_t    piece_at;            /* pieces done */
    tr_golden  out, logits;         /* what is written; logits that only their hash wants */
    const char **glob;  int64_t globs;
    int64_t   *hits;                /* [globs] */
    const char **run_glob;  int64_t run_globs;
    char      *weights;             /* SHA-256 of all bytes, NULL if nobody asks */
} golden_job;

/* N of "…layers.N", -1 of any other name: the tap by which progress is seen. */
static int64_t layer_left(const char *name)
{
    const char *at = strrchr(name, '.'), *digits = at ? at + 1 : name;
    size_t n = strspn(digits, "0123456789");
    if (digits - name < 7 || memcmp(digits - 7, "layers.", 7) || n == 0 || digits[n]) return -1;
    return strtoll(digits, NULL, 10);
}

static void golden_progress(golden_job *j, const char *name)
{
    int64_t l = layer_left(name);
    char *s;
    if (l < 0) return;
    s = text(j->a, "piece %lld of %lld, layer %lld", (long long)j->piece_at + 1,
             (long long)j->c.pieces, (long long)l);
    progress_at(j->a, (double)(j->piece_at * j->e.layers + l - j->e.first + 1), s);
    tr_free(j->a->ctx, s);
}

static tr_status golden_tap(void *user, tr_ctx *ctx, const tr_tap *tap)
{
    golden_job *j = (golden_job *)user;
    int wanted = j->globs == 0;
    for (int64_t i = 0; i < j->globs; i++)
        if (tr_tap_match(j->glob[i], tap->name)) { j->hits[i]++; wanted = 1; }
    golden_progress(j, tap->name);
    if (wanted) return tr_golden_tap(&j->out, ctx, tap);
    return strcmp(tap->name, "logits") == 0 ? tr_golden_tap(&j->logits, ctx, tap) : TR_OK;
}

/* With globs of the user's, the run also shows the logits, for their hash, and what leaves each
 * layer, for progress; golden_tap keeps them out of the file. */
static void golden_globs(golden_job *j)
{
    app *a = j->a;
    j->glob = opt_all(a, "--tap", &j->globs);
    j->hits = (int64_t *)need(a, j->globs, sizeof *j->hits);
    if (j->globs == 0) return;
    j->run_glob = (const char **)need(a, j->globs + 1 + j->e.layers, sizeof *j->run_glob);
    for (int64_t i = 0; i < j->globs; i++) j->run_glob[j->run_globs++] = j->glob[i];
    j->run_glob[j->run_globs++] = "logits";
    for (int64_t l = j->e.first; l < j->e.first + j->e.layers; l++)
        j->run_glob[j->run_globs++] = text(a, "*layers.%lld", (long long)l);
}

/* "A-B" or "A": layers A to B, both included. */
static void golden_layers(app *a, int64_t *first, int64_t *layers)
{
    const char *s = opt(a, "--layers");
    char *end;
    long long A, B;
    *first = *layers = 0;
    if (!s) {
        if (opt(a, "--input")) die(a, "golden: --input needs --layers A-B");
        return;
    }
    A = B = strtoll(s, &end, 10);
    if (end != s && *end == '-' && end[1] >= '0' && end[1] <= '9') B = strtoll(end + 1, &end, 10);
    if (end == s || *end || *s < '0' || *s > '9' || B < A || B >= INT32_MAX)
        die(a, "golden: --layers '%s' is not A-B, the first and the last layer", s);
    if (A > 0 && !opt(a, "--input"))
        die(a, "golden: --layers %s needs --input FILE, a golden with what enters layer %lld", s,
            A);
    if (A == 0 && opt(a, "--input"))
        die(a, "golden: --layers %s starts with the embedding and takes no --input", s);
    *first = A;
    *layers = B - A + 1;
}

static void golden_run(golden_job *j)
{
    app *a = j->a;
    tr_run_opts o = tr_run_opts_default();
    engine *e = &j->e;
    entering in;
    memset(&in, 0, sizeof in);
    prompts_expand(a, &j->p, &e->m->cfg, &o);
    if (j->p.T) j->c = piece_first(a, &j->p, chunk_of(a, &j->p));
    o.profile = profile(a);
    o.B = j->p.B;
    o.max_tokens = j->p.T ? j->p.B * j->c.chunk : 1;
    o.capacity = j->p.T ? j->p.T : 1;
    o.logits = TR_LOGITS_ALL;
    o.tap = golden_tap;
    o.tap_user = j;
    o.globs = j->run_glob;
    o.n_globs = j->run_globs;
    if (e->first > 0)
        entering_open(a, &in, opt(a, "--input"), e, &j->p, o.max_tokens, o.profile->act);
    engine_run(a, e, &o);
    must(a, tr_golden_new(a->ctx, &j->out, j->p.B, j->p.len));
    must(a, tr_golden_new(a->ctx, &j->logits, j->p.B, j->p.len));
    if (e->first == 0) engine_see(a, e, &j->p);
    progress_begin(a, "running", (double)(j->c.pieces * e->layers));
    for (; j->p.T && piece_next(&j->c); j->piece_at++)
        engine_forward(a, e, &j->c.batch, e->first > 0 ? entering_piece(a, &in, &j->c) : NULL);
    if (j->globs && j->p.T) engine_tap_state(a, e);
    progress_end(a);
    engine_run_end(e);
    if (!program_leads(a)) return;
    for (int64_t i = 0; i < j->globs; i++)
        if (!j->hits[i]) say(a, "warning: --tap '%s' matched no value", j->glob[i]);
    if (j->out.n == 0) die(a, "golden: no value matched --tap, nothing to write");
}

static void meta_images(app *a, metadata *m, const prompts *p)
{
    const tr_images *im = &p->images;
    char *grids = text(a, "%s", "");
    for (int64_t i = 0; i < im->n; i++)
        grids = text(a, "%s%s%lldx%lldx%lld", grids, i ? " " : "", (long long)im->grid[3 * i],
                     (long long)im->grid[3 * i + 1], (long long)im->grid[3 * i + 2]);
    meta_add(a, m, "pixel_values_sha256", hash_of(a, im->pixels));
    meta_add(a, m, "grid_thws", grids);
    if (!p->files) return;
    meta_add(a, m, "image_sha256", p->files);
    meta_add(a, m, "pillow", p->pillow);
}

static metadata golden_meta(golden_job *j, const char *logits_hash)
{
    app *a = j->a;
    const tr_config *c = &j->e.m->cfg;
    metadata m;
    memset(&m, 0, sizeof m);
    meta_add(a, &m, "contract", TR_CONTRACT);
    meta_add(a, &m, "version", TR_VERSION);
    meta_add(a, &m, "profile", profile(a)->name);
    meta_add(a, &m, "family", tr_family_name(c->family));
    meta_facts(a, &m, c);
    meta_lines(a, &m, "set.", c->sets);
    meta_lines(a, &m, "accept.", c->accepted);
    if (opt(a, "--layers")) meta_add(a, &m, "layers", opt(a, "--layers"));
    if (j->p.sha256) meta_add(a, &m, "input_ids_sha256", j->p.sha256);
    if (j->p.images.n) meta_images(a, &m, &j->p);
    meta_add(a, &m, "config_sha256", c->sha256);
    meta_add(a, &m, "headers_sha256", headers_sha256(a, &j->e.m->shards));
    meta_add(a, &m, "weights_sample_sha256", weights_sha256(a, &j->e.m->shards, 1));
    if (j->weights) meta_add(a, &m, "weights_sha256", j->weights);
    if (logits_hash[0]) meta_add(a, &m, "logits_sha256", logits_hash);
    return m;
}

/* What was tapped, with its metadata, into the file. */
static void golden_write(golden_job *j, double begun)
{
    app *a = j->a;
    metadata meta;
    char hash[65] = "";
    const char *out = opt(a, "-o");
    tr_view logits = tr_golden_find(&j->out, "logits");
    if (tr_view_is_none(logits)) logits = tr_golden_find(&j->logits, "logits");
    if (!tr_view_is_none(logits)) engine_sha256(a, logits, hash);
    meta = golden_meta(j, hash);
    engine_write(a, &j->out, out, &meta);
    say(a, "%s: %lld tensor%s, %s profile, %.1f s%s%s", out, (long long)j->out.n, plural(j->out.n),
        profile(a)->name, now() - begun, hash[0] ? ", logits " : "", hash);
    if (!a->json) return;
    js_open(a, NULL, '{');
    js_str(a, "out", out);
    js_int(a, "tensors", j->out.n);
    for (int64_t i = 0; i < meta.n; i++) js_str(a, meta.item[i].key, meta.item[i].value);
}

static void check_golden(app *a)
{
    int64_t first, layers;
    check_model(a);
    golden_layers(a, &first, &layers);
    if (!opt(a, "--ids") && !opt(a, "--pixels") && !opt(a, "--image"))
        die(a, "golden: needs --ids FILE, or --pixels or --image for the vision tower alone");
}

static int cmd_golden(app *a)
{
    golden_job j;
    int64_t first, layers;
    double begun = now();
    memset(&j, 0, sizeof j);
    j.a = a;
    golden_layers(a, &first, &layers);
    j.p = engine_prompts(a);
    if (program_leads(a)) must_be_writable(a, opt(a, "-o"));
    engine_open(a, &j.e, first, layers);
    if (opt(a, "--hash-weights")) {
        j.weights = weights_sha256(a, &j.e.m->shards, 0);
        same(a, "the weights", j.weights);
    }
    golden_globs(&j);
    golden_run(&j);
    if (program_leads(a)) golden_write(&j, begun);
    engine_report(a, &j.e);
    if (a->json && program_leads(a)) js_close(a, '}');
    engine_close(&j.e);
    return EXIT_FINE;
}

static const option golden_options[] = {
    { "--ids",     "FILE", OPT_ONE,    "token ids, text or safetensors; or --pixels alone" },
    OPT_PIXELS,
    { "-o",        "OUT",  OPT_NEEDED, "safetensors to write; replaced only when complete" },
    OPT_PROFILE,
    { "--tap",     "GLOB", OPT_MANY,   "values to write instead of the default set" },
    { "--chunk",   "N",    OPT_ONE,    "tokens of each sequence in one call" },
    { "--layers",  "A-B",  OPT_ONE,    "open layers A to B alone" },
    { "--input",   "FILE", OPT_ONE,    "a golden with what enters layer A" },
    PROGRAM_MODEL_OPTIONS
    OPT_SET, OPT_ACCEPT, OPT_LENIENT,
    { "--hash-weights", NULL, OPT_FLAG, "store SHA-256 of every weight byte too" },
    OPT_END
};

static const char golden_note[] =
    "Default taps: embedding, every layer, every sublayer's return, router ids and weights, final\n"
    "norm, logits. In a GLOB `*` stands for any run of characters; '*' alone is every value the\n"
    "profile computes, 'state.*' the state after the prompt.\n\n"
    IDS_NOTE PIXELS_NOTE
    "Without --ids the vision tower alone is run. With images the embedding's tap is\n"
    "inputs_embeds, the prompt with its images' rows, and rows of text and images are counted\n"
    "together in all that follows.\n"
    "\nMetadata of OUT: contract, version, profile, family, every fact as fact.NAME, what --set,\n"
    "--accept and --layers said as set.NAME, accept.KEY and layers, and\n"
    "  input_ids_sha256       of the padded ids [B, T] as 32-bit integers, as they came\n"
    "  pixel_values_sha256    of the pixels, and grid_thws, if there are images; of --image also\n"
    "                         image_sha256 of the files, and pillow\n"
    "  config_sha256          of config.json\n"
    "  headers_sha256         of the length field and header of each shard, in order\n"
    "  weights_sample_sha256  of all tensors in bytewise order of their names: name, NUL, then 64\n"
    "                         bytes at floor(k (bytes - 64) / 3), k = 0 to 3; all if at most 256\n"
    "  weights_sha256         the same over all bytes (--hash-weights; over ranks all must agree)\n"
    "  logits_sha256          of the logits' little-endian bytes, NaN canonical\n\n"
    "--input: the hidden state that enters layer A is the tap ...layers.(A-1). Where residuals\n"
    "are mixed from block sums, those are needed too: ...embed_tokens and, of every block\n"
    "boundary b below A, ...layers.(b-1). A FILE that says that it is of another prompt or of\n"
    "other pictures is refused, of another profile told.\n" PROGRAM_LAYERS "\n"
    "Exit codes: 0 written; 2 not, and OUT is as it was.\n" PROGRAM_CODES;

/* ============================================================================
 * compare {compare}
 * ========================================================================= */

typedef struct alias { const char *theirs, *ours; } alias;     /* one `*` a side, or none */

typedef struct row {                /* one pair of tensors */
    const tr_st_entry *a, *b;       /* theirs, the golden's */
    tr_diff d;
    int     counts_differ;          /* of elements: nothing else can be said */
    int     exact;                  /* integers */
    int     agrees;
    int64_t routes, routes_equal;   /* rows of topk_ids; of them with equal sets */
} row;

typedef struct comparison {
    app    *a;
    tr_st   file_a, file_b;
    double  bound;                  /* of max rel */
    alias  *map;  int64_t maps, maps_cap;
    row    *row;  int64_t rows, differ;
    const row *first, *agreed;      /* first that differs; last that agreed before it */
    lines   only_a, only_b;
    const char *prefix;  size_t prefix_n;   /* of the layers' names, left out of the table */
} comparison;

static int64_t stars(const char *s)
{
    int64_t n = 0;
    for (; *s; s++) n += *s == '*';
    return n;
}

static void map_line(comparison *c, const char *path, int64_t line, char *s)
{
    char *tab = strchr(s, '\t');
    size_t n = strlen(s);
    alias *m;
    if (n && s[n - 1] == '\r') s[n - 1] = 0;
    if (!*s || *s == '#') return;
    if (!tab || strchr(tab + 1, '\t') || tab == s || !tab[1])
        die(c->a, "%s:%lld: a line is theirs<TAB>ours", path, (long long)line);
    *tab = 0;
    if (stars(s) > 1 || stars(s) != stars(tab + 1))
        die(c->a, "%s:%lld: one `*` on both sides, or none", path, (long long)line);
    c->map = (alias *)grow(c->a, c->map, &c->maps_cap, c->maps, sizeof *c->map);
    m = &c->map[c->maps++];
    m->theirs = s;
    m->ours = tab + 1;
}

static void map_read(comparison *c, const char *path)
{
    size_t n;
    char *s = read_file(c->a, path, &n), *end = s + n;
    for (int64_t line = 1; s < end; line++) {
        char *stop = (char *)memchr(s, '\n', (size_t)(end - s));
        if (stop) *stop = 0;
        map_line(c, path, line, s);
        s = stop ? stop + 1 : end;
    }
}

/* Their tensor of this name; a fixture writes "f64." before it. */
static const tr_st_entry *theirs_find(comparison *c, const char *name)
{
    const tr_st_entry *e = tr_st_find(&c->file_a, name);
    char *prefixed;
    if (e) return e;
    prefixed = text(c->a, "f64.%s", name);
    e = tr_st_find(&c->file_a, prefixed);
    tr_free(c->a->ctx, prefixed);
    return e;
}

/* If name fits m->ours, what it is called over there, else NULL. */
static char *map_apply(comparison *c, const alias *m, const char *name)
{
    const char *star = strchr(m->ours, '*');
    size_t head, tail, n = strlen(name);
    if (!star) return strcmp(m->ours, name) == 0 ? text(c->a, "%s", m->theirs) : NULL;
    head = (size_t)(star - m->ours);
    tail = strlen(star + 1);
    if (n < head + tail || memcmp(name, m->ours, head) != 0 ||
        memcmp(name + n - tail, star + 1, tail) != 0) return NULL;
    star = strchr(m->theirs, '*');
    return text(c->a, "%.*s%.*s%s", (int)(star - m->theirs), m->theirs, (int)(n - head - tail),
                name + head, star + 1);
}

/* The map goes first, then equal names. */
static const tr_st_entry *partner(comparison *c, const char *name)
{
    for (int64_t i = 0; i < c->maps; i++) {
        char *other = map_apply(c, &c->map[i], name);
        const tr_st_entry *e = other ? theirs_find(c, other) : NULL;
        tr_free(c->a->ctx, other);
        if (e) return e;
    }
    return theirs_find(c, name);
}

static int is_integer(tr_dtype t) { return t >= TR_I64 && t <= TR_BOOL; }

/* What is compared of a row of ids is the set, so both are sorted. */
static void sort_ids(double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && x[j - 1] > x[j]; j--) {
            double t = x[j];
            x[j] = x[j - 1];
            x[j - 1] = t;
        }
}

static void compare_routes(comparison *c, row *r)
{
    tr_view a = r->a->view, b = r->b->view;
    int64_t K = b.rank ? b.shape[b.rank - 1] : 0;
    double *x;
    if (K < 1 || K > 4096 || a.rank < 1 || a.shape[a.rank - 1] != K) return;
    x = (double *)need(c->a, 2 * K, sizeof *x);
    r->routes = tr_view_numel(b) / K;
    for (int64_t t = 0; t < r->routes; t++) {
        for (int64_t k = 0; k < K; k++) {
            x[k] = tr_get_f64(a.data, a.dtype, t * K + k);
            x[K + k] = tr_get_f64(b.data, b.dtype, t * K + k);
        }
        sort_ids(x, K);
        sort_ids(x + K, K);
        r->routes_equal += memcmp(x, x + K, (size_t)K * sizeof *x) == 0;
    }
    tr_free(c->a->ctx, x);
}

static void compare_pair(comparison *c, row *r)
{
    tr_status s = tr_diff_views(c->a->ctx, &r->d, r->a->view, r->b->view);
    if (s == TR_ERR_SHAPE) { r->counts_differ = 1; return; }
    if (s != TR_OK) die(c->a, "%s: %s", r->b->name, tr_err_last(c->a->ctx));
    r->exact = is_integer(r->a->view.dtype) && is_integer(r->b->view.dtype);
    if (r->exact && (ends_with(r->a->name, "topk_ids") || ends_with(r->b->name, "topk_ids")))
        compare_routes(c, r);
    if (r->routes) r->agrees = r->routes_equal == r->routes;
    else if (r->exact) r->agrees = r->d.equal == r->d.n;
    else r->agrees = r->d.nan_one_side == 0 && r->d.max_rel <= c->bound;
}

/* All pairs in the golden's order, and what only one side has. */
static void compare_all(comparison *c)
{
    app *a = c->a;
    int64_t na = c->file_a.n, nb = c->file_b.n;
    char *used = (char *)need(a, na, 1);
    c->row = (row *)need(a, nb, sizeof *c->row);
    progress_begin(a, "comparing", (double)nb);
    for (int64_t i = 0; i < nb; i++) {
        const tr_st_entry *b = &c->file_b.entry[i], *e = partner(c, b->name);
        row *r = &c->row[c->rows];
        if (!e) { lines_add(a, &c->only_b, b->name); continue; }
        used[e - c->file_a.entry] = 1;
        r->a = e;
        r->b = b;
        compare_pair(c, r);
        c->rows++;
        c->differ += !r->agrees;
        if (!r->agrees && !c->first) c->first = r;
        if (r->agrees && !c->first) c->agreed = r;
        progress_at(a, (double)i, b->name);
    }
    progress_end(a);
    for (int64_t i = 0; i < na; i++)
        if (!used[i]) lines_add(a, &c->only_a, c->file_a.entry[i].name);
}

/* A golden knows the hashes of its prompt and its pixels; a dump may hold the prompt. A port's own
 * pixels may differ in rounding, so a dump's are a row of the table and not another picture. */
static void compare_prompts(comparison *c)
{
    const char *ours = tr_st_meta(&c->file_b, "input_ids_sha256");
    const char *theirs = tr_st_meta(&c->file_a, "input_ids_sha256");
    const tr_st_entry *e = tr_st_find(&c->file_a, "input_ids");
    if (!theirs && ours && e && is_integer(e->view.dtype)) {
        int64_t n = tr_view_numel(e->view);
        int32_t *id = (int32_t *)need(c->a, n, sizeof *id);
        for (int64_t i = 0; i < n; i++) {
            double v = tr_get_f64(e->view.data, e->view.dtype, i);
            id[i] = v >= 0 && v <= INT32_MAX ? (int32_t)v : -1;
        }
        theirs = ids_sha256(c->a, id, n);
    }
    if (ours && theirs && strcmp(ours, theirs) != 0)
        say(c->a, "warning: %s and %s are about different prompts", c->file_a.path, c->file_b.path);
    ours = tr_st_meta(&c->file_b, "pixel_values_sha256");
    theirs = tr_st_meta(&c->file_a, "pixel_values_sha256");
    if (ours && theirs && strcmp(ours, theirs) != 0 && !tr_st_find(&c->file_b, "pixel_values"))
        say(c->a, "warning: %s and %s are about different pictures, or of other sizes",
            c->file_a.path, c->file_b.path);
}

/* A golden says contract and profile. If only theirs does, the two were likely swapped. */
static void compare_order(comparison *c)
{
    if (!tr_st_meta(&c->file_a, "contract") || !tr_st_meta(&c->file_a, "profile") ||
        tr_st_meta(&c->file_b, "contract")) return;
    say(c->a, "warning: %s is a golden and %s is none; theirs comes first, the golden second",
        c->file_a.path, c->file_b.path);
}

/* ---- The table */

enum { NAME_COLUMNS = 31 };         /* what 100 columns leave for names */

/* "language_model.model." of "language_model.model.layers.0.self_attn". */
static void find_prefix(comparison *c)
{
    c->prefix = "";
    for (int64_t i = 0; i < c->rows && !c->prefix_n; i++) {
        const char *s = c->row[i].b->name, *at = strstr(s, ".layers.");
        if (!at || strncmp(s, "state.", 6) == 0) continue;
        c->prefix = s;
        c->prefix_n = (size_t)(at + 1 - s);
    }
}

/* Without the prefix; if still too long, without the modules between layer and end: "~". */
static str32 short_name(const comparison *c, const char *name)
{
    str32 out;
    size_t head = 0, n;
    const char *tail;
    if (strncmp(name, c->prefix, c->prefix_n) == 0) name += c->prefix_n;
    n = strlen(name);
    if (n <= NAME_COLUMNS) {
        snprintf(out.s, sizeof out.s, "%s", name);
        return out;
    }
    if (strncmp(name, "layers.", 7) == 0) head = 7 + strcspn(name + 7, ".") + 1;
    if (head > NAME_COLUMNS / 2) head = 0;
    tail = name + n - (NAME_COLUMNS - head - 1);
    if (strchr(tail, '.')) tail = strchr(tail, '.');
    snprintf(out.s, sizeof out.s, "%.*s~%s", (int)head, name, tail);
    return out;
}

static str32 brief(double x)                    /* an error in seven columns */
{
    str32 s;
    if (x == 0) snprintf(s.s, sizeof s.s, "0");
    else snprintf(s.s, sizeof s.s, "%.1e", x);
    return s;
}

static void coordinates(int64_t at[TR_MAX_RANK], tr_view v, int64_t flat)
{
    for (int k = v.rank - 1; k >= 0; k--) {
        at[k] = v.shape[k] ? flat % v.shape[k] : 0;
        flat = v.shape[k] ? flat / v.shape[k] : 0;
    }
}

static str32 place(tr_view v, int64_t flat)     /* "[0,17,3]" */
{
    coordinates(v.shape, v, flat);
    return shape_str(v);
}

static void print_row(const row *r, const char *name)
{
    const tr_diff *d = &r->d;
    char sa[96], sb[96];
    printf("%s %-*s ", r->agrees ? "  " : "!!", NAME_COLUMNS, name);
    if (r->counts_differ) {
        printf("%s against %s\n", tr_view_str(r->a->view, sa), tr_view_str(r->b->view, sb));
        return;
    }
    if (r->routes) {
        printf("%lld of %lld route%s equal", (long long)r->routes_equal, (long long)r->routes,
               plural(r->routes));
        if (!r->agrees)
            printf("; %.2f %%", 100.0 * (double)r->routes_equal / (double)r->routes);
        printf("\n");
        return;
    }
    if (r->exact) printf("%lld of %lld equal%s", (long long)d->equal, (long long)d->n,
                         r->agrees ? "\n" : "");
    else printf("%7s %7s %7s %8.6f", brief(d->max_abs).s, brief(d->max_rel).s,
                brief(d->rms_ratio).s, d->cosine);
    if (r->exact && r->agrees) return;
    if (d->max_abs == 0) printf(" -\n");
    else printf(" %-11s %10.4g %10.4g\n", place(r->b->view, d->worst).s, d->worst_a, d->worst_b);
    if (d->nan_a + d->nan_b + d->inf_a + d->inf_b)
        printf("   %-*s NaN %lld and %lld, infinite %lld and %lld (theirs and golden)\n",
               NAME_COLUMNS, "", (long long)d->nan_a, (long long)d->nan_b, (long long)d->inf_a,
               (long long)d->inf_b);
}

/* ---- Names on one side only, those that differ by their layer alone as one word */

enum { MOST_LAYERS = 4096 };

/* Cuts the number behind "layers." out of name and returns it; -1: there is none. The hole is where
 * the rest now begins: *at. */
static int64_t take_layer(char *name, size_t *at)
{
    char *digits = strstr(name, "layers."), *end;
    long long l;
    if (!digits || digits[7] < '0' || digits[7] > '9') return -1;
    digits += 7;
    l = strtoll(digits, &end, 10);
    if (l >= MOST_LAYERS || (*end && *end != '.')) return -1;
    memmove(digits, end, strlen(end) + 1);
    *at = (size_t)(digits - name);
    return l;
}

typedef struct word { char *name, *layers; size_t at; } word;   /* layers [MOST_LAYERS], or NULL */

static void print_only(const comparison *c, const char *path, const lines *only)
{
    app *a = c->a;
    word *w = (word *)need(a, only->n, sizeof *w);
    const char **shown = (const char **)need(a, only->n, sizeof *shown);
    int64_t words = 0;
    if (only->n == 0) return;
    for (int64_t i = 0; i < only->n; i++) {
        int cut = c->prefix_n && strncmp(only->s[i], c->prefix, c->prefix_n) == 0;
        char *name = text(a, "%s", only->s[i] + (cut ? c->prefix_n : 0));
        int64_t l = take_layer(name, &w[words].at), k = 0;
        while (k < words && (l < 0 || !w[k].layers || strcmp(w[k].name, name) != 0)) k++;
        if (k == words) w[words++].name = name;
        if (l >= 0 && !w[k].layers) w[k].layers = (char *)need(a, MOST_LAYERS, 1);
        if (l >= 0) w[k].layers[l] = 1;
    }
    for (int64_t k = 0; k < words; k++)
        shown[k] = !w[k].layers ? w[k].name
                 : text(a, "%.*s%s%s", (int)w[k].at, w[k].name,
                        ranges(a, w[k].layers, MOST_LAYERS, ","), w[k].name + w[k].at);
    printf("\nonly in %s (%lld):\n", path, (long long)only->n);
    print_wrapped(shown, words);
}

/* "name (what is wrong with it)", for the sentence that ends the report. */
static char *difference(const comparison *c, const row *r)
{
    app *a = c->a;
    char sa[96], sb[96];
    const tr_diff *d = &r->d;
    if (r->counts_differ)
        return text(a, "%s (%s against %s)", r->b->name, tr_view_str(r->a->view, sa),
                    tr_view_str(r->b->view, sb));
    if (r->routes)
        return text(a, "%s (%lld of %lld route%s differ)", r->b->name,
                    (long long)(r->routes - r->routes_equal), (long long)r->routes,
                    plural(r->routes));
    if (r->exact)
        return text(a, "%s (%lld of %lld integer%s differ)", r->b->name,
                    (long long)(d->n - d->equal), (long long)d->n, plural(d->n));
    if (d->nan_one_side)
        return text(a, "%s (%lld NaN on one side only)", r->b->name, (long long)d->nan_one_side);
    return text(a, "%s (max rel %.2g > %.2g, worst at %s: %.9g, golden %.9g)", r->b->name,
                d->max_rel, c->bound, place(r->b->view, d->worst).s, d->worst_a, d->worst_b);
}

static void compare_print(comparison *c)
{
    int cut = 0;
    find_prefix(c);
    for (int64_t i = 0; i < c->rows; i++)
        cut |= strchr(short_name(c, c->row[i].b->name).s, '~') != NULL;
    printf("theirs %s\ngolden %s\n", c->file_a.path, c->file_b.path);
    if (c->prefix_n)
        printf("left out before the names of modules: %.*s\n", (int)c->prefix_n, c->prefix);
    if (cut) printf("~ in a name: modules left out, so that it fits (--json has whole names)\n");
    printf("\n   %-*s %7s %7s %7s %8s %-11s %10s %10s\n", NAME_COLUMNS, "tensor", "max abs",
           "max rel", "rms", "cosine", "worst at", "theirs", "golden");
    for (int64_t i = 0; i < c->rows; i++)
        print_row(&c->row[i], short_name(c, c->row[i].b->name).s);
    print_only(c, c->file_a.path, &c->only_a);
    print_only(c, c->file_b.path, &c->only_b);
    printf("\n%lld compared, %lld differ", (long long)c->rows, (long long)c->differ);
    if (opt(c->a, "--max-rel")) printf(" (max rel over %.3g)", c->bound);
    printf("; on one side only: %lld theirs, %lld golden\n", (long long)c->only_a.n,
           (long long)c->only_b.n);
    if (!c->first) {
        if (c->rows) printf("no difference\n");
        return;
    }
    printf("last that agreed: %s\n", c->agreed ? c->agreed->b->name : "none before it");
    printf("first difference: %s\n", difference(c, c->first));
}

/* ---- JSON */

static void js_row(app *a, const row *r)
{
    const tr_diff *d = &r->d;
    int64_t at[TR_MAX_RANK];
    js_open(a, NULL, '{');
    js_str(a, "name", r->b->name);
    js_str(a, "theirs", r->a->name);
    js_shape(a, "shape_theirs", r->a->view.rank, r->a->view.shape);
    js_shape(a, "shape", r->b->view.rank, r->b->view.shape);
    js_bool(a, "agrees", r->agrees);
    if (!r->counts_differ) {
        js_int(a, "elements", d->n);
        js_int(a, "equal", d->equal);
        js_num(a, "max_abs", d->max_abs);
        js_num(a, "max_rel", d->max_rel);
        js_num(a, "rms_ratio", d->rms_ratio);
        js_num(a, "cosine", d->cosine);
        coordinates(at, r->b->view, d->worst);
        js_shape(a, "worst", r->b->view.rank, at);
        js_num(a, "worst_theirs", d->worst_a);
        js_num(a, "worst_golden", d->worst_b);
        js_int(a, "nan_theirs", d->nan_a);
        js_int(a, "nan_golden", d->nan_b);
        js_int(a, "nan_one_side", d->nan_one_side);
        js_int(a, "inf_theirs", d->inf_a);
        js_int(a, "inf_golden", d->inf_b);
    }
    if (r->routes) {
        js_int(a, "routes", r->routes);
        js_int(a, "routes_equal", r->routes_equal);
        js_num(a, "routes_share", (double)r->routes_equal / (double)r->routes);
    }
    js_close(a, '}');
}

static void compare_json(comparison *c, int code)
{
    app *a = c->a;
    js_open(a, NULL, '{');
    js_str(a, "theirs", c->file_a.path);
    js_str(a, "golden", c->file_b.path);
    js_num(a, "bound", c->bound);
    js_bool(a, "differs", code == EXIT_DIFFERS);
    js_int(a, "compared", c->rows);
    js_int(a, "differ", c->differ);
    js_str(a, "first_difference", c->first ? c->first->b->name : NULL);
    js_str(a, "last_agreed", c->agreed ? c->agreed->b->name : NULL);
    js_open(a, "tensors", '[');
    for (int64_t i = 0; i < c->rows; i++) js_row(a, &c->row[i]);
    js_close(a, ']');
    js_lines(a, "only_theirs", &c->only_a);
    js_lines(a, "only_golden", &c->only_b);
    js_close(a, '}');
}

static int cmd_compare(app *a)
{
    comparison c;
    int code;
    memset(&c, 0, sizeof c);
    c.a = a;
    c.bound = opt_num(a, "--max-rel", 0);
    if (opt(a, "--map")) map_read(&c, opt(a, "--map"));
    must(a, tr_st_open(a->ctx, &c.file_a, a->arg[0], 0));
    must(a, tr_st_open(a->ctx, &c.file_b, a->arg[1], 0));
    compare_order(&c);
    compare_prompts(&c);
    compare_all(&c);
    if (c.rows == 0)
        die(a, "%s and %s have no tensor in common; --map FILE says what is called what",
            a->arg[0], a->arg[1]);
    code = c.differ || (opt(a, "--strict") && c.only_a.n + c.only_b.n) ? EXIT_DIFFERS : EXIT_FINE;
    if (a->json) compare_json(&c, code);
    else compare_print(&c);
    tr_st_close(a->ctx, &c.file_a);
    tr_st_close(a->ctx, &c.file_b);
    return code;
}

static const option compare_options[] = {
    { "--map",     "FILE", OPT_ONE,  "lines theirs<TAB>ours, one `*` a side allowed" },
    { "--max-rel", "X",    OPT_ONE,  "bound of max|a-b| / max|b| (default: none may differ)" },
    { "--strict",  NULL,   OPT_FLAG, "tensors on one side only count as differences" },
    OPT_END
};

static const char compare_note[] =
    "A is theirs, B the golden; the table is in B's order, which is the model's. Tensors meet by\n"
    "the map, then by equal names; a fixture's \"f64.\" before a name of theirs is ignored.\n"
    "Leading dimensions of 1 are ignored; another number of elements is a difference; so is a\n"
    "NaN on one side only. Integers must be equal; of topk_ids the sets of each row are compared.\n"
    "max rel is max|a-b| / max|b|, rms is rms(a-b) / rms(b). In the table `~` stands for modules\n"
    "of a name that is too long. In a map, blank lines and lines that begin with # are skipped.\n\n"
    "Exit codes: 0 all agree; 1 something differs; 2 a file cannot be used.\n";

/* ============================================================================
 * run {run}
 * ========================================================================= */

typedef struct greedy {
    app     *a;
    engine   e;
    prompts  p;
    int64_t  n;                     /* tokens wanted of each sequence */
    const tr_int_list *eos;         /* what ends a text; NULL: nothing does */
    int32_t *out, *next;            /* [B, n]; [B] */
    int64_t *made;                  /* [B] */
    char    *done;                  /* [B] */
} greedy;

/* The token that the model chose for sequence b becomes its next. */
static void greedy_take(greedy *g, int64_t b)
{
    int32_t id = g->next[b];
    g->out[b * g->n + g->made[b]++] = id;
    for (int64_t i = 0; g->eos && i < g->eos->n; i++) g->done[b] |= g->eos->v[i] == id;
    g->done[b] |= g->made[b] == g->n;
}

/* Sequences that did not run to N tokens, and the id that ended them. */
static void greedy_ends(greedy *g)
{
    for (int64_t b = 0; b < g->p.B; b++) {
        int64_t n = g->made[b];
        int32_t last = g->out[b * g->n + n - 1];
        for (int64_t i = 0; g->eos && i < g->eos->n; i++)
            if (g->eos->v[i] == last) {
                say(g->a, "sequence %lld: end of text (id %ld) after %lld of %lld token%s",
                    (long long)b, (long)last, (long long)n, (long long)g->n, plural(g->n));
                break;
            }
    }
}

static int64_t greedy_prompt(greedy *g, piece *c)       /* returns the tokens it read */
{
    int64_t tokens = 0;
    progress_begin(g->a, "reading the prompt", (double)c->pieces);
    while (piece_next(c)) {
        engine_forward(g->a, &g->e, &c->batch, NULL);
        engine_next(g->a, &g->e, &c->batch, g->next);
        for (int64_t b = 0; b < g->p.B; b++)
            if (c->T[b] && c->at + c->T[b] == g->p.len[b]) greedy_take(g, b);
        tokens += c->N;
        progress_at(g->a, (double)(c->at / c->chunk + 1), "");
    }
    return tokens;
}

/* One token of every sequence that is not done; returns how many those were. */
static int64_t greedy_step(greedy *g, piece *c)
{
    c->N = 0;
    for (int64_t b = 0; b < g->p.B; b++) {
        c->T[b] = !g->done[b];
        if (c->T[b]) c->ids[c->N++] = g->out[b * g->n + g->made[b] - 1];
    }
    if (c->N == 0) return 0;
    engine_forward(g->a, &g->e, &c->batch, NULL);
    engine_next(g->a, &g->e, &c->batch, g->next);
    for (int64_t b = 0; b < g->p.B; b++)
        if (c->T[b]) greedy_take(g, b);
    return c->N;
}

static void greedy_report(greedy *g, int64_t read, double read_s, int64_t made, double made_s)
{
    double resident = bench_proc_bytes("/proc/self/status", "VmHWM");   /* mapped weights too */
    say(g->a, "prompt %lld token%s, %.1f tok/s; decode %lld token%s, %.1f tok/s",
        (long long)read, plural(read), (double)read / (read_s > 0 ? read_s : 1e-9),
        (long long)made, plural(made), (double)made / (made_s > 0 ? made_s : 1e-9));
    say(g->a, "peak memory %s held%s%s%s; weights of %s are mapped",
        size_of((double)tr_ctx_peak_bytes(g->a->ctx)).s, resident > 0 ? ", " : "",
        resident > 0 ? size_of(resident).s : "", resident > 0 ? " resident" : "",
        size_of((double)g->e.m->shards.bytes).s);
}

static int64_t opt_n(app *a) { return opt_int(a, "-n", 0, 1, INT32_MAX); }

static void check_run(app *a)
{
    check_model(a);
    (void)opt_n(a);
}

static int cmd_run(app *a)
{
    greedy g;
    tr_run_opts o = tr_run_opts_default();
    piece c;
    double t0, t1;
    int64_t read, made = 0, step;
    memset(&g, 0, sizeof g);
    g.a = a;
    g.n = opt_n(a);
    o.profile = profile(a);
    g.p = engine_prompts(a);
    engine_open(a, &g.e, 0, 0);
    prompts_expand(a, &g.p, &g.e.m->cfg, &o);
    c = piece_first(a, &g.p, chunk_of(a, &g.p));
    g.eos = opt(a, "--ignore-eos") ? NULL : engine_eos(a, &g.e.m->cfg);
    g.out = (int32_t *)need(a, g.p.B * g.n, sizeof *g.out);
    g.next = (int32_t *)need(a, g.p.B, sizeof *g.next);
    g.made = (int64_t *)need(a, g.p.B, sizeof *g.made);
    g.done = (char *)need(a, g.p.B, 1);
    o.B = g.p.B;
    o.max_tokens = g.p.B * c.chunk;
    o.capacity = g.p.T + g.n - 1;
    engine_run(a, &g.e, &o);
    t0 = now();
    engine_see(a, &g.e, &g.p);
    read = greedy_prompt(&g, &c);
    t1 = now();
    progress_begin(a, "decoding", (double)(g.p.B * g.n));
    for (; (step = greedy_step(&g, &c)) > 0; made += step) progress_at(a, (double)made, "");
    progress_end(a);
    greedy_report(&g, read, t1 - t0, made, now() - t1);
    greedy_ends(&g);
    for (int64_t b = 0; b < g.p.B; b++)
        for (int64_t i = 0; i < g.made[b]; i++)
            printf("%d%c", g.out[b * g.n + i], i + 1 < g.made[b] ? ' ' : '\n');
    engine_run_end(&g.e);
    engine_report(a, &g.e);
    engine_close(&g.e);
    return EXIT_FINE;
}

static const option run_options[] = {
    OPT_IDS, OPT_PIXELS,
    { "-n", "N", OPT_NEEDED, "tokens to add to each sequence" },
    { "--ignore-eos", NULL, OPT_FLAG, "go on past the end of text" },
    OPT_PROFILE,
    { "--chunk", "N", OPT_ONE, "tokens of each prompt in one call" },
    PROGRAM_MODEL_OPTIONS
    OPT_SET, OPT_ACCEPT, OPT_LENIENT, OPT_END
};

static const char run_note[] =
    "Prints the new ids, one sequence a line; speed and memory go to stderr. A sequence ends\n"
    "after N tokens or with an end-of-text id, which is printed: eos_token_id, a number or a\n"
    "list, of generation_config.json if the folder has one that says so, else of config.json.\n"
    "Sequences run together; each gets the ids that it would get alone.\n\n"
    IDS_NOTE PIXELS_NOTE
    "\nExit codes: 0 fine; 2 unusable input, or NaN among the logits.\n" PROGRAM_CODES;

/* ============================================================================
 * tiny {tiny}
 * ========================================================================= */

typedef struct part {               /* one tensor, or an elements-and-scales pair, to be written */
    tr_stored st[2];  int n;
    size_t    bytes[2];
    const tr_qformat *format;       /* of a scaled pair; NULL: plain */
    tr_init   init;
    double    c;
    int64_t   rows, cols;           /* as a matrix; of all but the first dimension */
    int64_t   used;                 /* elements before the padding */
    int64_t   shard;
} part;

typedef struct tiny_job {
    app      *a;
    tr_config cfg;
    uint64_t  seed;
    part     *part;  int64_t parts, cap;
    int64_t   shards;               /* 1: a single file */
    double    bytes, done;
    const char *dir;
} tiny_job;

static tr_status tiny_visit(void *user, tr_ctx *ctx, const tr_expected *e)
{
    tiny_job *j = (tiny_job *)user;
    part *p;
    tr_status s;
    int64_t all = 1;
    j->part = (part *)grow(j->a, j->part, &j->cap, j->parts, sizeof *j->part);
    p = &j->part[j->parts++];
    memset(p, 0, sizeof *p);
    s = tr_expected_stored(ctx, &j->cfg, e, e->format, p->st, &p->n);
    if (s != TR_OK) return s;
    p->format = e->format;
    p->init = e->spec->init;
    p->c = e->spec->c;
    p->used = used_of(&j->cfg, e);
    if (p->format) {
        p->rows = e->shape[0];
        p->cols = e->shape[1];
    } else {
        for (int k = 0; k < p->st[0].rank; k++) all *= p->st[0].shape[k];
        p->rows = p->st[0].rank > 1 ? p->st[0].shape[0] : 1;
        p->cols = all / (p->rows > 0 ? p->rows : 1);
    }
    p->shard = e->layer >= 0 ? e->layer : -1;
    for (int k = 0; k < p->n; k++) {
        p->bytes[k] = stored_bytes(j->a, &p->st[k]);
        j->bytes += (double)p->bytes[k];
    }
    return TR_OK;
}

/* ---- Numbers: a function of seed, name and index alone, so that nothing else moves them. */

typedef struct filler { const part *p; uint64_t seed, stream; float *x; double scale; } filler;

static uint64_t name_hash(const char *s)        /* FNV-1a */
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

static void fill_range(void *user, int64_t begin, int64_t end)
{
    const filler *f = (const filler *)user;
    double c = f->p->c;
    for (int64_t i = begin; i < end; i++) {
        uint64_t k = (uint64_t)i;
        double v = 0;
        if (i < f->p->used) switch (f->p->init) {
        case TR_INIT_LINEAR:  v = f->scale * tr_rng_normal(f->seed, f->stream, k); break;
        case TR_INIT_NORM:    v = 1 + c * tr_rng_normal(f->seed, f->stream, k); break;
        case TR_INIT_NORMAL:  v = c * tr_rng_normal(f->seed, f->stream, k); break;
        case TR_INIT_UNIFORM: v = c * (2 * tr_rng_unit(f->seed, f->stream, k) - 1); break;
        case TR_INIT_PADDED:  v = c * (3 * tr_rng_unit(f->seed, f->stream, k) - 1); break;
        }
        f->x[i] = (float)v;
    }
}

static void tiny_tensor(tiny_job *j, const part *p, void *q, void *s)
{
    app *a = j->a;
    int64_t n = p->rows * p->cols;
    filler f;
    f.p = p;
    f.seed = j->seed;
    f.stream = name_hash(p->st[0].name);
    f.scale = p->c / sqrt(p->cols > 0 ? (double)p->cols : 1);
    f.x = (float *)need(a, n, sizeof *f.x);
    tr_par_for(a->ctx, n, 4096, fill_range, &f);
    must(a, tr_quantize(a->ctx, p->format ? p->format : tr_qformat_plain(p->st[0].dtype), q, s, f.x,
                        p->rows, p->cols, j->cfg.block_rows, j->cfg.block_cols));
    tr_free(a->ctx, f.x);
}

/* ---- Files: one for a dense model up to a gigabyte; else one a layer and one for the rest, so
 * that a single shard is in memory at a time. */

static void tiny_shards(tiny_job *j)
{
    int64_t most = -1;
    int one = j->cfg.experts == 0 && j->bytes <= 1e9;
    for (int64_t i = 0; i < j->parts; i++)
        if (j->part[i].shard > most) most = j->part[i].shard;
    j->shards = one ? 1 : most + 2;
    for (int64_t i = 0; i < j->parts; i++)
        if (one) j->part[i].shard = 0;
        else if (j->part[i].shard < 0) j->part[i].shard = most + 1;
}

static char *shard_name(tiny_job *j, int64_t k)
{
    if (j->shards == 1) return text(j->a, "model.safetensors");
    return text(j->a, "model-%05lld-of-%05lld.safetensors", (long long)k + 1, (long long)j->shards);
}

static const tr_st_meta_item tiny_mark[2] = { { "format", "pt" }, { "made_by", "trillion tiny" } };

static void tiny_shard(tiny_job *j, int64_t k)
{
    app *a = j->a;
    char *path = text(a, "%s/%s", j->dir, shard_name(j, k));
    tr_st_item *item = (tr_st_item *)need(a, 2 * j->parts, sizeof *item);
    int64_t n = 0;
    for (int64_t i = 0; i < j->parts; i++) {
        const part *p = &j->part[i];
        void *block[2] = { NULL, NULL };
        if (p->shard != k) continue;
        for (int h = 0; h < p->n; h++, n++) {
            const tr_stored *s = &p->st[h];
            block[h] = need(a, (int64_t)p->bytes[h], 1);
            item[n].name = s->name;
            item[n].view = tr_view_of(block[h], s->dtype, s->rank, s->shape);
        }
        tiny_tensor(j, p, block[0], block[1]);
        j->done += (double)(p->bytes[0] + p->bytes[1]);
        progress_at(a, j->done, p->st[0].name);
    }
    must(a, tr_st_write(a->ctx, path, item, n, tiny_mark, 2));
    for (int64_t i = 0; i < n; i++) tr_free(a->ctx, item[i].view.data);
    tr_free(a->ctx, item);
}

static void tiny_index(tiny_job *j)
{
    char *path = text(j->a, "%s/model.safetensors.index.json", j->dir);
    FILE *f;
    if (j->shards == 1) return;
    f = part_open(j->a, path);
    fprintf(f, "{\n  \"metadata\": {\"total_size\": %.0f},\n  \"weight_map\": {", j->bytes);
    for (int64_t i = 0, n = 0; i < j->parts; i++)
        for (int k = 0; k < j->part[i].n; k++, n++)
            fprintf(f, "%s\n    \"%s\": \"%s\"", n ? "," : "", j->part[i].st[k].name,
                    shard_name(j, j->part[i].shard));
    fprintf(f, "\n  }\n}\n");
    part_close(j->a, path, f);
}

/* Files that tiny did not write: to be left alone, whatever stands beside them. */
static int has_others(app *a, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int others = 0;
    while (d && !others && (e = readdir(d)) != NULL) {
        const char *by;
        tr_st f;
        if (!ends_with(e->d_name, ".safetensors")) continue;
        others = 1;
        if (tr_st_open(a->ctx, &f, text(a, "%s/%s", dir, e->d_name), 0) != TR_OK) continue;
        by = tr_st_meta(&f, "made_by");
        others = !by || strcmp(by, tiny_mark[1].value) != 0;
        tr_st_close(a->ctx, &f);
    }
    if (d) closedir(d);
    return others;
}

/* A folder with a checkpoint of ours is emptied of it; anybody else's is not touched. */
static void tiny_clear(app *a, const char *dir)
{
    char *config = text(a, "%s/config.json", dir);
    int others = has_others(a, dir);
    tr_shards s;
    if (!exists(config) && !others) return;
    if (others || tr_shards_open(a->ctx, &s, dir, 0) != TR_OK || s.files == 0)
        die(a, "%s: holds a checkpoint that tiny did not write; choose another folder", dir);
    remove(config);
    remove(text(a, "%s/model.safetensors.index.json", dir));
    for (int64_t i = 0; i < s.files; i++) remove(s.file[i].path);
    tr_shards_close(a->ctx, &s);
}

static void make_folder(app *a, const char *path)       /* and those above it */
{
    char *s = text(a, "%s", path);
    for (char *p = s + 1; ; p++) {
        char end = *p;
        if (end && end != '/') continue;
        *p = 0;
#ifdef _WIN32
        (void)mkdir(s);
#else
        (void)mkdir(s, 0777);
#endif
        if (!(*p = end)) break;
    }
    if (!exists(path)) die(a, "%s: the folder cannot be made", path);
}

static int cmd_tiny(app *a)
{
    tiny_job j;
    tr_model *m;
    FILE *f;
    char *json, *path;
    const char **set;
    int64_t n_set, tensors = 0;
    memset(&j, 0, sizeof j);
    j.a = a;
    j.dir = a->arg[0];
    j.seed = (uint64_t)opt_int(a, "--seed", 1, 0, INT64_MAX);
    set = opt_all(a, "--set", &n_set);
    path = text(a, "%s/config.json", j.dir);
    must(a, tr_config_tiny(a->ctx, &json, opt(a, "--family"), set, n_set));
    must(a, tr_config_parse(a->ctx, &j.cfg, path, json, strlen(json), NULL));
    must(a, tr_config_each(a->ctx, &j.cfg, tiny_visit, &j));
    make_folder(a, j.dir);
    tiny_clear(a, j.dir);
    tiny_shards(&j);
    progress_begin(a, "writing", j.bytes);
    for (int64_t k = 0; k < j.shards; k++) tiny_shard(&j, k);
    tiny_index(&j);
    progress_end(a);
    f = part_open(a, path);                             /* last: now it is a checkpoint */
    fputs(json, f);
    part_close(a, path, f);
    must(a, tr_model_open(a->ctx, &m, j.dir, NULL));
    tr_model_close(m);
    for (int64_t i = 0; i < j.parts; i++) tensors += j.part[i].n;
    say(a, "%s: %s tensor%s, %s in %lld file%s", j.dir, commas(tensors).s, plural(tensors),
        size_of(j.bytes).s, (long long)j.shards, plural(j.shards));
    return EXIT_FINE;
}

static const option tiny_options[] = {
    { "--family", "NAME", OPT_NEEDED, "one that `trillion families` lists" },
    { "--seed",   "N",    OPT_ONE,    "of the random numbers (default: 1)" },
    { "--set", "KEY=VALUE", OPT_MANY, "a config key, the value as JSON: hidden_size=96" },
    OPT_END
};

static const char tiny_note[] =
    "Writes config.json and weights as the family releases them. A number depends on the seed,\n"
    "its tensor's name and its place there. A model with experts, or of more than a gigabyte, has\n"
    "one shard a layer and one for the rest; one shard is in memory at a time. A folder with a\n"
    "checkpoint that tiny did not write is left alone.\n\n"
    "Exit codes: 0 written and opened; 2 not.\n";

/* ============================================================================
 * image {image}
 * ========================================================================= */

typedef struct image_job {
    app       *a;
    img_proc   proc;
    img        m;
    img_pixels x;
    metadata   meta;
} image_job;

static const char *decimal(app *a, int64_t n) { return text(a, "%lld", (long long)n); }

static tr_view image_resized(const image_job *j)
{
    return tr_view3(j->x.resized, TR_U8, j->x.grid.nh, j->x.grid.nw, 3);
}

static tr_view image_values(const image_job *j)     /* in the shape of the vendor's processor */
{
    const img_grid *g = &j->x.grid;
    int64_t p = j->proc.patch;
    return j->proc.family == IMG_KIMI ? tr_view4(j->x.values, TR_F32, g->patches, 3, p, p)
                                      : tr_view2(j->x.values, TR_F32, g->patches, g->patch_len);
}

static void image_meta(image_job *j)
{
    app *a = j->a;
    metadata *m = &j->meta;
    const img_grid *g = &j->x.grid;
    int64_t n;
    const char **accept = opt_all(a, "--accept", &n);
    meta_add(a, m, "version", TR_VERSION);
    meta_add(a, m, "file_sha256", j->m.sha256);
    meta_add(a, m, "format", j->m.format);
    meta_add(a, m, "mode", img_mode_name(j->m.mode));
    meta_add(a, m, "width", decimal(a, g->w));
    meta_add(a, m, "height", decimal(a, g->h));
    meta_add(a, m, "new_width", decimal(a, g->nw));
    meta_add(a, m, "new_height", decimal(a, g->nh));
    meta_add(a, m, "pad_width", decimal(a, g->pw));
    meta_add(a, m, "pad_height", decimal(a, g->ph));
    meta_add(a, m, "num_tokens", decimal(a, g->tokens));
    meta_add(a, m, "pillow", decimal(a, j->x.order));
    meta_add(a, m, "decoder", strcmp(j->m.format, "JPEG") ? "exact" : "libjpeg");
    meta_add(a, m, "resample", img_kernel_get(j->proc.filter)->name);
    meta_add(a, m, "processor", img_family_name(j->proc.family));
    meta_add(a, m, "processor_sha256", j->proc.sha256);
    for (int i = 0; i < j->proc.n_facts; i++)
        meta_add(a, m, text(a, "processor.%s", j->proc.fact[i].key), j->proc.fact[i].value);
    for (int64_t i = 0; i < n; i++) meta_add(a, m, text(a, "accept.%s", accept[i]), "by name");
    meta_add(a, m, "resized_sha256", hash_of(a, image_resized(j)));
    meta_add(a, m, "pixel_values_sha256", hash_of(a, image_values(j)));
}

static void image_write(image_job *j, const char *out)
{
    int64_t thw[3] = { 1, j->x.grid.gh, j->x.grid.gw };
    tr_st_item item[3];
    item[0].name = j->proc.family == IMG_KIMI ? "grid_thws" : "image_grid_thw";
    item[0].view = tr_view2(thw, TR_I64, 1, 3);
    item[1].name = "pixel_values";
    item[1].view = image_values(j);
    item[2].name = "resized";
    item[2].view = image_resized(j);
    must(j->a, tr_st_write(j->a->ctx, out, item, 3, j->meta.item, j->meta.n));
    say(j->a, "%s: %s %s, %s %s, %s %s", out, item[0].name, shape_str(item[0].view).s,
        item[1].name, shape_str(item[1].view).s, item[2].name, shape_str(item[2].view).s);
}

/* ---- What the model sees: the patches apart from one another, tokens more so, and the padding.
 * Small pictures are enlarged, each pixel to a square. */

enum { GAP_PATCH = 1, GAP_TOKEN = 2, PICTURE_SIDE = 900 };

static const uint8_t gap_color[2][3] = { { 128, 128, 128 }, { 255, 140, 0 } };  /* patch, token */

/* Where patch i begins: before every one a gap, of a token's or of a patch's width. */
static int64_t tile_at(const img_proc *p, int64_t i, int64_t zoom)
{
    int64_t tokens = (i + p->merge) / p->merge;         /* gaps of that kind up to i */
    return i * p->patch * zoom + tokens * GAP_TOKEN + (i + 1 - tokens) * GAP_PATCH;
}

static void draw_tile(const image_job *j, uint8_t *to, int64_t width, int64_t zoom, int64_t i,
                      int64_t k)
{
    const img_grid *g = &j->x.grid;
    int64_t P = j->proc.patch, top = tile_at(&j->proc, i, zoom), left = tile_at(&j->proc, k, zoom);
    for (int64_t y = 0; y < P * zoom; y++)
        for (int64_t x = 0; x < P * zoom; x++) {
            int64_t v = i * P + y / zoom, u = k * P + x / zoom;
            uint8_t *q = to + ((top + y) * width + left + x) * 3;
            if (v < g->nh && u < g->nw) memcpy(q, j->x.resized + (v * g->nw + u) * 3, 3);
            else memset(q, 0, 3);
        }
}

/* Gaps between patches of one token; what is left of the ground are gaps between tokens. */
static void draw_token(const image_job *j, uint8_t *to, int64_t width, int64_t zoom, int64_t i,
                       int64_t k)
{
    const img_proc *p = &j->proc;
    int64_t side = p->patch * zoom;
    int64_t bottom = tile_at(p, i + p->merge - 1, zoom) + side;
    int64_t right = tile_at(p, k + p->merge - 1, zoom) + side;
    for (int64_t y = tile_at(p, i, zoom); y < bottom; y++)
        for (int64_t x = tile_at(p, k, zoom); x < right; x++)
            memcpy(to + (y * width + x) * 3, gap_color[0], 3);
}

static void image_draw(image_job *j, const char *path)
{
    app *a = j->a;
    const img_grid *g = &j->x.grid;
    int64_t m = j->proc.merge, most = (g->gw > g->gh ? g->gw : g->gh) * j->proc.patch;
    int64_t zoom = PICTURE_SIDE / most > 1 ? PICTURE_SIDE / most : 1;
    int64_t w = tile_at(&j->proc, g->gw, zoom), h = tile_at(&j->proc, g->gh, zoom);
    uint8_t *px;
    unsigned char *png;
    FILE *f;
    int n;
    if (w > 1 << 30 || h > (1 << 30) / 3 / w) die(a, "%s: %lld x %lld pixels are too many", path,
                                                  (long long)w, (long long)h);
    px = (uint8_t *)need(a, w * h, 3);
    for (int64_t i = 0; i < w * h; i++) memcpy(px + 3 * i, gap_color[1], 3);
    for (int64_t i = 0; i < g->gh; i += m)
        for (int64_t k = 0; k < g->gw; k += m) draw_token(j, px, w, zoom, i, k);
    for (int64_t i = 0; i < g->gh; i++)
        for (int64_t k = 0; k < g->gw; k++) draw_tile(j, px, w, zoom, i, k);
    png = stbi_write_png_to_mem(px, (int)(3 * w), (int)w, (int)h, 3, &n);
    if (!png) die(a, "%s: out of memory", path);
    f = part_open(a, path);
    fwrite(png, 1, (size_t)n, f);
    part_close(a, path, f);
    free(png);
    tr_free(a->ctx, px);
    say(a, "%s: PNG, %lld x %lld, each pixel %lld x %lld, patches and tokens apart", path,
        (long long)w, (long long)h, (long long)zoom, (long long)zoom);
}

static void image_print(const image_job *j, const char *path)
{
    const img_grid *g = &j->x.grid;
    const img_proc *p = &j->proc;
    printf("%s: %s, mode %s, %lld x %lld\n\n", path, j->m.format, img_mode_name(j->m.mode),
           (long long)g->w, (long long)g->h);
    if (g->nw == g->w && g->nh == g->h) printf("  resized   not\n");
    else printf("  resized   %lld x %lld, %s of Pillow %d\n", (long long)g->nw, (long long)g->nh,
                img_kernel_get(p->filter)->name, (int)j->x.order);
    printf("  padded    %lld x %lld\n", (long long)(g->nw + g->pw), (long long)(g->nh + g->ph));
    printf("  grid      1 x %lld x %lld\n", (long long)g->gh, (long long)g->gw);
    printf("  patches   %s of %lld x %lld pixels\n", commas(g->patches).s, (long long)p->patch,
           (long long)p->patch);
    printf("  tokens    %s of %lld x %lld patches\n", commas(g->tokens).s, (long long)p->merge,
           (long long)p->merge);
    printf("\n  pixel_values  SHA-256 %s\n", j->meta.item[j->meta.n - 1].value);
}

/* The metadata is text; here a size, or a key's number, list, truth or null, is what it was. */
static int is_bare(const char *key, const char *value)
{
    static const char *const size[] = { "width", "height", "new_width", "new_height", "pad_width",
                                        "pad_height", "num_tokens", "pillow" };
    char *end;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (strcmp(key, size[i]) == 0) return 1;
    if (strncmp(key, "processor.", 10) != 0) return 0;
    if (strspn(value, "-.0123456789eE+") == strlen(value) && strtod(value, &end) < DBL_MAX && !*end)
        return 1;
    return *value == '[' || !strcmp(value, "true") || !strcmp(value, "false") ||
           !strcmp(value, "null");
}

static void image_json(image_job *j, const char *path)
{
    app *a = j->a;
    const int64_t thw[3] = { 1, j->x.grid.gh, j->x.grid.gw };
    js_open(a, NULL, '{');
    js_str(a, "file", path);
    js_shape(a, "grid_thws", 3, thw);
    js_int(a, "patches", j->x.grid.patches);
    js_int(a, "tokens", j->x.grid.tokens);
    for (int64_t i = 0; i < j->meta.n; i++) {
        const char *key = j->meta.item[i].key, *value = j->meta.item[i].value;
        if (!is_bare(key, value)) { js_str(a, key, value); continue; }
        js_lead(a, key);
        printf("%s", value);
    }
    js_close(a, '}');
}

static int cmd_image(app *a)
{
    image_job j;
    const char *path = a->arg[0], *out = opt(a, "-o"), *png = opt(a, "--png");
    int64_t n, order = opt_pillow(a);
    const char **accept = opt_all(a, "--accept", &n);
    memset(&j, 0, sizeof j);
    j.a = a;
    if (out) must_be_writable(a, out);
    if (png) must_be_writable(a, png);
    must(a, img_proc_load(a->ctx, &j.proc, opt(a, "--model"), accept, n));
    must(a, img_load(a->ctx, &j.m, path, IMG_MAX_PIXELS));
    must(a, img_size(a->ctx, &j.proc, path, j.m.w, j.m.h, &j.x.grid));
    must(a, img_process(a->ctx, &j.proc, &j.m, (img_pillow)order, &j.x));
    image_meta(&j);
    if (out) image_write(&j, out);
    if (png) image_draw(&j, png);
    if (a->json) image_json(&j, path);
    else image_print(&j, path);
    return EXIT_FINE;
}

static const option image_options[] = {
    { "--model",  "DIR",   OPT_NEEDED, "a checkpoint with preprocessor_config.json, or that file" },
    { "--pillow", "12|13", OPT_ONE,    "whose order of the two passes (default: 12)" },
    { "-o",       "OUT",   OPT_ONE,    "safetensors to write: resized, pixel_values, grid_thws" },
    { "--png",    "FILE",  OPT_ONE,    "draw what the model sees: patches and tokens apart" },
    OPT_ACCEPT,
    OPT_END
};

static const char image_note[] =
    "FILE is a PNG or JPEG. Its pixels, and all that follows, are Pillow's and the vendor's to\n"
    "the last bit; those of a JPEG because libjpeg-turbo decodes it here too. EXIF orientation\n"
    "is not applied, as by Kimi's processor. Pillow 13 does the rows first for tall pictures that\n"
    "shrink; 12 never does.\n"
    "\nOUT has pixel_values F32, the grid I64 [1,3] under the vendor's name, resized U8 [nh,nw,3]\n"
    "before padding. Metadata: the sizes, pillow, decoder, the processor's keys as processor.KEY,\n"
    "and SHA-256 of the file, the processor's file, resized and pixel_values.\n\n"
    "Exit codes: 0 fine; 2 not a picture, or not one for this processor.\n";

/* ============================================================================
 * bench {bench}
 *
 * Speed as a ratio to a named peer, or to a limit measured in the same run, the two in turn. A
 * measure of the table at the end is a row with one thread and a row with all of them.
 * ========================================================================= */

typedef struct bench_row {
    const char *name, *title, *unit, *peer_name;
    const char *why;                    /* it was not measured; else NULL */
    int     threads, streams, repeats;  /* streams: of a limit; else 0 */
    double  ours, ours_median, peer, peer_median;       /* NaN: there is none */
    double  goal;                       /* the least ratio; 0: none */
    int     goal_is_ours;               /* the goal is for ours, not for the ratio */
} bench_row;

typedef struct bench {
    app         *a;
    int          quick;
    bench_effort effort;
    int          threads[2], levels, level;     /* one and all; how many; which is measured now */
    int          streams[2];                    /* of the best read of each; 4 until measured */
    tr_ctx      *fast[2], *base[2];             /* this machine's kernels, and any machine's */
    tr_model    *model[2];                      /* NULL: none was given */
    bench_pool   pool;
    bench_blas   blas;
    bench_row   *row;  int64_t rows, cap;
} bench;

typedef struct measure {
    const char *name;
    void      (*run)(bench *b, const struct measure *m);
    int64_t     rows, in, out;          /* x [rows, in], w [out, in] */
    tr_format   format;
    double      goal;
} measure;

static bench_row *bench_row_add(bench *b, const measure *m, const char *title, const char *unit,
                                const char *peer_name)
{
    bench_row *r;
    b->row = (bench_row *)grow(b->a, b->row, &b->cap, b->rows, sizeof *b->row);
    r = &b->row[b->rows++];
    memset(r, 0, sizeof *r);
    r->name = m->name;
    r->title = title;
    r->unit = unit;
    r->peer_name = peer_name;
    r->threads = b->threads[b->level];
    r->ours = r->ours_median = r->peer = r->peer_median = (double)NAN;
    r->goal = m->goal;
    return r;
}

static bench_side bench_side_of(void (*call)(void *job), void *job)
{
    bench_side s;
    memset(&s, 0, sizeof s);
    s.call = call;
    s.job = job;
    return s;
}

/* work: of a call, in what the row's unit counts. */
static void bench_row_measure(bench *b, bench_row *r, bench_side ours, double ours_work,
                              bench_side peer, double peer_work)
{
    bench_measure(&ours, &peer, &b->effort);
    r->ours = ours_work / ours.s[0];
    r->ours_median = ours_work / bench_median(&ours);
    r->peer = peer_work / peer.s[0];
    r->peer_median = peer_work / bench_median(&peer);
    r->repeats = ours.n;
}

/* ---- The limit */

static bench_read bench_read_of(const bench *b, bench_pool *pool, int streams, size_t band)
{
    bench_read r;
    size_t whole;
    memset(&r, 0, sizeof r);
    r.ctx = b->fast[b->level];
    r.pool = pool;
    r.streams = streams;
    r.parts = b->threads[b->level] < BENCH_PARTS ? b->threads[b->level] : BENCH_PARTS;
    whole = BENCH_STEP * (size_t)r.parts;
    r.band = band / whole * whole;
    return r;
}

static void bench_limit(bench *b, const measure *m)
{
    static const int streams[4] = { 1, 2, 4, 8 };
    bench_row *r = bench_row_add(b, m, "best read of memory", "GB/s", "read");
    for (int i = 0; i < 4; i += 2) {
        size_t band = b->pool.bytes / BENCH_BANDS;
        bench_read read[2];
        bench_side side[2];
        for (int k = 0; k < 2; k++) {
            read[k] = bench_read_of(b, &b->pool, streams[i + k], band);
            side[k] = bench_side_of(bench_read_band, &read[k]);
        }
        bench_measure(&side[0], &side[1], &b->effort);
        for (int k = 0; k < 2; k++) {
            double bytes = 1e-9 * (double)read[k].band;
            if (r->streams && bytes / side[k].s[0] <= r->peer) continue;
            r->peer = bytes / side[k].s[0];
            r->peer_median = bytes / bench_median(&side[k]);
            r->streams = streams[i + k];
            r->repeats = side[k].n;
        }
    }
    b->streams[b->level] = r->streams;
}

/* ---- Products of many rows */

typedef struct filling { float *x; uint64_t stream; float even, odd; } filling;

static void fill_uniform(void *user, int64_t begin, int64_t end)
{
    const filling *f = (const filling *)user;
    for (int64_t i = begin; i < end; i++)
        f->x[i] = (i % 2 ? f->odd : f->even) *
                  (float)(2 * tr_rng_unit(1, f->stream, (uint64_t)i) - 1);
}

/* x [n]: uniform between -1 and 1, times even or odd by the index. */
static void bench_fill(const bench *b, float *x, int64_t n, float even, float odd)
{
    filling f;
    f.x = x;
    f.stream = (uint64_t)n;
    f.even = even;
    f.odd = odd;
    tr_par_for(b->fast[b->levels - 1], n, 4096, fill_uniform, &f);
}

typedef struct product {
    app           *a;
    tr_ctx        *ctx;
    bench_blas    *blas;
    tr_matmul_args args;
    tr_weight      w;                   /* f32 [out, in] */
    int64_t        rows, in, out;
    float         *x, *y, *peer_y;      /* [rows, in] [rows, out] [rows, out] */
    const float   *w_f32;
} product;

static void product_new(bench *b, product *p, tr_ctx *ctx, const measure *m, float *w)
{
    memset(p, 0, sizeof *p);
    p->a = b->a;
    p->ctx = ctx;
    p->blas = &b->blas;
    p->rows = m->rows;
    p->in = m->in;
    p->out = m->out;
    p->w_f32 = w;
    p->x = (float *)need(b->a, m->rows * m->in, sizeof *p->x);
    p->y = (float *)need(b->a, m->rows * m->out, sizeof *p->y);
    p->peer_y = (float *)need(b->a, m->rows * m->out, sizeof *p->y);
    must(b->a, tr_weight_of(b->a->ctx, &p->w, tr_qformat_get(TR_FMT_F32), "w", w, NULL, m->out,
                            m->in, 1, 1));
    bench_fill(b, p->x, m->rows * m->in, 1, 1);
    bench_fill(b, w, m->out * m->in, 1, 1);
    p->args.x = tr_view2(p->x, TR_F32, m->rows, m->in);
    p->args.y = tr_view2(p->y, TR_F32, m->rows, m->out);
    p->args.w = &p->w;
}

static void product_free(product *p)
{
    tr_free(p->a->ctx, p->x);
    tr_free(p->a->ctx, p->y);
    tr_free(p->a->ctx, p->peer_y);
}

static double product_gflop(const product *p)
{
    return 2e-9 * (double)p->rows * (double)p->in * (double)p->out;
}

static void product_ours(void *job)
{
    product *p = (product *)job;
    if (tr_matmul(p->ctx, &p->args) != TR_OK) die(p->a, "bench: %s", tr_err_last(p->ctx));
}

static void product_blas(void *job)
{
    product *p = (product *)job;
    int M = (int)p->rows, I = (int)p->in, O = (int)p->out;
    p->blas->sgemm(BENCH_ROW_MAJOR, BENCH_PLAIN, BENCH_TRANSPOSED, M, O, I, 1, p->x, I, p->w_f32, I,
                   0, p->peer_y, O);
}

static void product_libm_rows(void *user, int64_t begin, int64_t end)
{
    product *p = (product *)user;
    for (int64_t o = begin; o < end; o++)
        for (int64_t n = 0; n < p->rows; n++) {
            const float *x = p->x + n * p->in, *w = p->w_f32 + o * p->in;
            float lane[TR_LANES] = { 0 };
            for (int64_t i = 0; i < p->in; i++)
                lane[i % TR_LANES] = fmaf(x[i], w[i], lane[i % TR_LANES]);
            for (int k = TR_LANES / 2; k > 0; k /= 2)
                for (int l = 0; l < k; l++) lane[l] += lane[l + k];
            p->peer_y[n * p->out + o] = lane[0];
        }
}

static void product_libm(void *job)
{
    product *p = (product *)job;
    tr_par_for(p->ctx, p->out, 1, product_libm_rows, p);
}

/* Two sums of `in` products of numbers up to 1, in any order, are within 2 in 2^-24 in of each
 * other: far below what a product of other numbers would be off by. */
static void product_agree(const product *p)
{
    double bound = 2 * (double)p->in * (double)p->in * ldexp(1, -24);
    for (int64_t i = 0; i < p->rows * p->out; i++)
        if (!(fabs((double)p->y[i] - (double)p->peer_y[i]) <= bound))
            die(p->a, "bench: product [%lld, %lld] x [%lld, %lld]: element %lld is %g here and %g "
                "of the peer", (long long)p->rows, (long long)p->in, (long long)p->out,
                (long long)p->in, (long long)i, (double)p->y[i], (double)p->peer_y[i]);
}

static const char *product_title(bench *b, const measure *m, const char *more)
{
    return text(b->a, "product, %lld rows, %lld to %lld%s", (long long)m->rows, (long long)m->in,
                (long long)m->out, more);
}

static void bench_product(bench *b, const measure *m)
{
    bench_row *r = bench_row_add(b, m, product_title(b, m, ""), "GFLOP/s", "OpenBLAS");
    product p;
    if (b->blas.why) r->why = text(b->a, "OpenBLAS %s", b->blas.why);
    else if (r->threads > 1 && !b->blas.parallel) r->why = "this OpenBLAS has no threads";
    if (r->why) return;
    product_new(b, &p, b->fast[b->level], m, (float *)(void *)b->pool.p);
    b->blas.threads(r->threads);
    bench_row_measure(b, r, bench_side_of(product_ours, &p), product_gflop(&p),
                      bench_side_of(product_blas, &p), product_gflop(&p));
    product_agree(&p);
    product_free(&p);
}

/* Kernels for any machine. Where its compiler was told of an FMA instruction, they have it too. */
static void bench_base(bench *b, const measure *m)
{
#ifdef FP_FAST_FMAF
    const char *more = ", base", *peer = "fmaf, plain loop";
#else
    const char *more = ", base: no FMA", *peer = "libm's fmaf";
#endif
    bench_row *r = bench_row_add(b, m, product_title(b, m, more), "GFLOP/s", peer);
    product p;
    r->goal_is_ours = 1;
    product_new(b, &p, b->base[b->level], m, (float *)(void *)b->pool.p);
    bench_row_measure(b, r, bench_side_of(product_ours, &p), product_gflop(&p),
                      bench_side_of(product_libm, &p), product_gflop(&p));
    product_agree(&p);
    product_free(&p);
}

/* All weights and half of x subnormal: so are products, sums and results. */
static void bench_tiny_numbers(bench *b, const measure *m, tr_ctx *ctx, const char *more)
{
    bench_row *r = bench_row_add(b, m, product_title(b, m, more), "GFLOP/s", "normal numbers");
    float *w = (float *)(void *)b->pool.p, *other = w + m->in * m->out;
    product small, normal;
    product_new(b, &small, ctx, m, w);
    product_new(b, &normal, ctx, m, other);
    bench_fill(b, w, m->in * m->out, 0x1p-127f, 0x1p-127f);
    bench_fill(b, small.x, m->rows * m->in, 0x1p-127f, 1);
    bench_row_measure(b, r, bench_side_of(product_ours, &small), product_gflop(&small),
                      bench_side_of(product_ours, &normal), product_gflop(&normal));
    product_free(&small);
    product_free(&normal);
}

static void bench_subnormal(bench *b, const measure *m)
{
    bench_tiny_numbers(b, m, b->fast[b->level], ", subnormal");
}

static void bench_subnormal_base(bench *b, const measure *m)
{
    bench_tiny_numbers(b, m, b->base[b->level], ", subnormal, base");
}

/* ---- One row: weights are read once, as they are stored, and memory is the limit. */

typedef struct one_row {
    app           *a;
    tr_ctx        *ctx;
    bench_pool    *pool;
    tr_matmul_args args;
    tr_weight      all, band;           /* a band of rows a call */
} one_row;

static void one_row_call(void *job)
{
    one_row *o = (one_row *)job;
    o->band = tr_weight_rows(&o->all, o->pool->turn++ % BENCH_BANDS * o->band.rows, o->band.rows);
    if (tr_matmul(o->ctx, &o->args) != TR_OK) die(o->a, "bench: %s", tr_err_last(o->ctx));
}

enum { UNIT_ROWS = 128 };               /* a row of the blocks of fp8-block */

/* Fills the pool with as many rows [.., in] as it holds: copies of one unit. Returns the bytes of
 * a band. */
static size_t one_row_fill(bench *b, one_row *o, const measure *m)
{
    const tr_qformat *f = tr_qformat_get(m->format);
    int64_t block_rows = m->format == TR_FMT_MXFP4 ? 1 : UNIT_ROWS;
    int64_t block_cols = m->format == TR_FMT_MXFP4 ? 32 : 128, units;
    float *x = (float *)need(b->a, UNIT_ROWS * m->in, sizeof *x);
    unsigned char *q = b->pool.p, *s;
    size_t q_bytes, s_bytes;
    must(b->a, tr_qformat_bytes(b->a->ctx, f, UNIT_ROWS, m->in, block_rows, block_cols, &q_bytes,
                                &s_bytes));
    units = (int64_t)(b->pool.bytes / BENCH_BANDS / (q_bytes + s_bytes));
    s = q + (size_t)units * BENCH_BANDS * q_bytes;
    bench_fill(b, x, UNIT_ROWS * m->in, 1, 1);
    must(b->a, tr_quantize(b->a->ctx, f, q, s, x, UNIT_ROWS, m->in, block_rows, block_cols));
    for (size_t i = 1; i < (size_t)units * BENCH_BANDS; i++) {
        memcpy(q + i * q_bytes, q, q_bytes);
        if (s_bytes) memcpy(s + i * s_bytes, s, s_bytes);
    }
    tr_free(b->a->ctx, x);
    must(b->a, tr_weight_of(b->a->ctx, &o->all, f, "w", q, s, units * BENCH_BANDS * UNIT_ROWS,
                            m->in, block_rows, block_cols));
    must(b->a, tr_weight_check(b->a->ctx, &o->all));      /* as the engine does before first use */
    o->band.rows = units * UNIT_ROWS;
    return (size_t)units * (q_bytes + s_bytes);
}

static void bench_one_row(bench *b, const measure *m)
{
    const char *title = text(b->a, "one row, %s weights", tr_qformat_get(m->format)->name);
    bench_row *r = bench_row_add(b, m, title, "GB/s", "read");
    one_row o;
    bench_read read;
    size_t bytes;
    float *x, *y;
    memset(&o, 0, sizeof o);
    o.a = b->a;
    o.ctx = b->fast[b->level];
    o.pool = &b->pool;
    bytes = one_row_fill(b, &o, m);
    x = (float *)need(b->a, m->in, sizeof *x);
    y = (float *)need(b->a, o.band.rows, sizeof *y);
    bench_fill(b, x, m->in, 1, 1);
    o.args.x = tr_view2(x, TR_F32, 1, m->in);
    o.args.y = tr_view2(y, TR_F32, 1, o.band.rows);
    o.args.w = &o.band;
    read = bench_read_of(b, &b->pool, b->streams[b->level], bytes);
    bench_row_measure(b, r, bench_side_of(one_row_call, &o), 1e-9 * (double)bytes,
                      bench_side_of(bench_read_band, &read), 1e-9 * (double)read.band);
    tr_free(b->a->ctx, x);
    tr_free(b->a->ctx, y);
}

/* ---- Decoding: every weight is read for each token, an embedding that is not the head aside. */

typedef struct decoding { app *a; tr_run *r; int32_t id; } decoding;

static void decode_token(void *job)
{
    static const int64_t one = 1;
    decoding *d = (decoding *)job;
    tr_batch batch;
    batch.B = 1;
    batch.T = &one;
    batch.ids = &d->id;
    if (d->r->state.len[0] == d->r->opts.capacity) tr_state_reset(&d->r->state);
    if (tr_forward(d->r, &batch, NULL) != TR_OK) die(d->a, "bench: %s", tr_err_last(d->r->ctx));
    d->id = tr_argmax(tr_view_at(d->r->logits, 0));
    if (d->id < 0) die(d->a, "bench: NaN among the logits");
}

static void bench_decode(bench *b, const measure *m)
{
    bench_row *r = bench_row_add(b, m, "decode", "tok/s", "read");
    tr_model *model = b->model[b->level];
    tr_run_opts o = tr_run_opts_default();
    tr_plan plan;
    decoding d;
    bench_read read;
    size_t bytes, embed = 0, scales;
    o.profile = tr_profile_find("exact");
    o.max_tokens = 1;
    o.capacity = 256;
    if (!model) r->why = "no --model DIR";
    else if (!o.profile) r->why = "no profile `exact` in this build";
    else if (model->cfg.experts) r->why = "which experts a token reads is left to the router";
    if (r->why) return;
    if (tr_plan_model(model->ctx, &plan, model, &o) != TR_OK)
        die(b->a, "bench: %s", tr_err_last(model->ctx));
    if (!model->cfg.tie) {
        const tr_weight *w = &model->top.w[TR_W_EMBED];
        must(b->a, tr_qformat_bytes(b->a->ctx, w->format, w->rows, w->cols, w->block_rows,
                                    w->block_cols, &embed, &scales));
        embed += scales;
    }
    bytes = plan.bytes - embed;
    r->title = text(b->a, "decode, %s parameters, %s a token", human((double)plan.params).s,
                    size_of((double)bytes).s);
    tr_plan_free(model->ctx, &plan);
    d.a = b->a;
    d.id = 0;
    if (tr_run_new(model->ctx, &d.r, model, &o) != TR_OK)
        die(b->a, "bench: %s", tr_err_last(model->ctx));
    read = bench_read_of(b, &b->pool, b->streams[b->level], b->pool.bytes / BENCH_BANDS);
    bench_row_measure(b, r, bench_side_of(decode_token, &d), 1,
                      bench_side_of(bench_read_band, &read), (double)read.band / (double)bytes);
    tr_run_free(d.r);
}

/* ---- What is measured, and how it is told */

static const measure measures[] = {
    /* name, how, x [rows, in], w [out, in], stored as, goal */
    { "read",           bench_limit,             0,    0,    0, TR_FMT_F32,       0 },
    { "product-512",    bench_product,         512, 4096, 4096, TR_FMT_F32,       0.8 },
    { "product-256",    bench_product,         256, 7168, 4096, TR_FMT_F32,       0.8 },
    { "product-odd",    bench_product,        1020, 4093, 4099, TR_FMT_F32,       0.8 },
    { "product-8",      bench_product,           8, 4096, 4096, TR_FMT_F32,       1.2 },
    { "row-f32",        bench_one_row,           1, 4096,    0, TR_FMT_F32,       0.7 },
    { "row-bf16",       bench_one_row,           1, 4096,    0, TR_FMT_BF16,      0.7 },
    { "row-fp8-block",  bench_one_row,           1, 4096,    0, TR_FMT_FP8_BLOCK, 0.7 },
    { "row-mxfp4",      bench_one_row,           1, 4096,    0, TR_FMT_MXFP4,     0.7 },
    { "decode",         bench_decode,            1,    0,    0, TR_FMT_F32,       0.6 },
    { "base",           bench_base,              8, 4096,  512, TR_FMT_F32,       0.3 },
    { "subnormal",      bench_subnormal,        64, 4096, 1024, TR_FMT_F32,       0.01 },
    { "subnormal-base", bench_subnormal_base,    8, 4096,  256, TR_FMT_F32,       0.01 },
};
enum { N_MEASURES = sizeof measures / sizeof *measures };

static tr_ctx *bench_ctx(app *a, int threads, tr_cpu cpu)
{
    tr_ctx_opts o;
    tr_ctx *ctx;
    memset(&o, 0, sizeof o);
    o.threads = threads;
    o.cpu = cpu;
    o.log = on_warning;
    o.log_user = a;
    if (tr_ctx_new(&ctx, &o) != TR_OK) die(a, "bench: %s", ctx ? tr_err_last(ctx) : "no memory");
    return ctx;
}

/* Four times the largest cache, so that what was used a round ago is gone, but not more than a
 * third of what memory is free. */
static size_t bench_pool_bytes(const bench *b)
{
    double bytes = 4 * bench_cache_bytes();
    double most = bench_proc_bytes("/proc/meminfo", "MemAvailable") / 3;
    if (b->quick) return (size_t)4 << 20;
    if (most > 0 && bytes > most) bytes = most;
    if (bytes < 256e6) bytes = 256e6;
    return ((size_t)bytes / BENCH_PAGE + 1) * BENCH_PAGE;
}

/* Is it asked for, by any of n globs? Without one everything is. */
static int bench_wanted(const char *name, const char **only, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (tr_tap_match(only[k], name)) return 1;
    return n == 0;
}

static void bench_check_only(app *a)
{
    const char **only;
    char *have = text(a, "%s", "");
    int64_t n;
    only = opt_all(a, "--only", &n);
    for (int i = 0; i < N_MEASURES; i++) {
        if (bench_wanted(measures[i].name, only, n)) return;
        have = text(a, "%s%s%s", have, i ? ", " : "", measures[i].name);
    }
    die(a, "bench: --only '%s' matches none of %s", only[0], have);
}

static void bench_begin(bench *b, app *a)
{
    const char *lib = opt(a, "--blas");
    int all = tr_par_threads(a->ctx);
    memset(b, 0, sizeof *b);
    b->a = a;
    b->quick = opt(a, "--quick") != NULL;
    b->effort.repeats = b->quick ? 1 : BENCH_REPEATS;
    b->effort.least = b->quick ? 0 : 0.03;
    b->effort.most = 5;
    b->threads[0] = 1;
    b->threads[1] = all;
    b->levels = all > 1 ? 2 : 1;
    b->streams[0] = b->streams[1] = 4;
    bench_check_only(a);
    for (int i = 0; i < b->levels; i++) {
        b->fast[i] = bench_ctx(a, b->threads[i], TR_CPU_BEST);
        b->base[i] = bench_ctx(a, b->threads[i], TR_CPU_BASE);
        if (opt(a, "--model") &&
            tr_model_open(b->fast[i], &b->model[i], opt(a, "--model"), NULL) != TR_OK)
            die(a, "%s", tr_err_last(b->fast[i]));
    }
    bench_blas_open(&b->blas, lib ? lib : BENCH_BLAS);
    if (b->blas.why)
        say(a, "%s %s: what is compared with it is left out (Debian: apt install libopenblas0)",
            lib ? lib : BENCH_BLAS, b->blas.why);
    if (!bench_pool_new(&b->pool, bench_pool_bytes(b)))
        die(a, "bench: no memory for %s", size_of((double)bench_pool_bytes(b)).s);
}

static void bench_end(bench *b)
{
    for (int i = 0; i < b->levels; i++) {
        tr_model_close(b->model[i]);
        tr_ctx_free(b->fast[i]);
        tr_ctx_free(b->base[i]);
    }
    bench_pool_free(&b->pool);
}

static void bench_run(bench *b)
{
    int64_t n;
    const char **only = opt_all(b->a, "--only", &n);
    progress_begin(b->a, "measuring", N_MEASURES * b->levels);
    for (int i = 0; i < N_MEASURES; i++)
        for (b->level = 0; b->level < b->levels; b->level++) {
            measure m = measures[i];
            if (!bench_wanted(m.name, only, n)) continue;
            progress_at(b->a, i * b->levels + b->level, m.name);
            if (b->quick) {
                if (m.rows > 16) m.rows /= 16;
                m.in /= 16;
                m.out /= 16;
            }
            m.run(b, &m);
        }
    progress_end(b->a);
}

static int bench_met(const bench_row *r)
{
    return (r->goal_is_ours ? r->ours : r->ours / r->peer) >= r->goal;
}

static void bench_cpu(char *out, size_t cap)
{
    if (!bench_proc("/proc/cpuinfo", "model name", out, cap)) snprintf(out, cap, "a processor");
}

static void bench_json(bench *b)
{
    app *a = b->a;
    tr_build build = tr_build_info(a->ctx);
    char cpu[128];
    bench_cpu(cpu, sizeof cpu);
    js_open(a, NULL, '{');
    js_str(a, "version", build.version);
    js_str(a, "cpu", cpu);
    js_str(a, "arch", build.arch);
    js_str(a, "kernels", tr_cpu_name(tr_ctx_cpu(b->fast[0])));
    js_str(a, "compiler", build.compiler);
    js_int(a, "threads", b->threads[b->levels - 1]);
    js_str(a, "blas", b->blas.why ? NULL : b->blas.name);
    js_num(a, "cache_bytes", bench_cache_bytes());
    js_int(a, "pool_bytes", (int64_t)b->pool.bytes);
    js_bool(a, "huge_pages", b->pool.huge);
    js_bool(a, "quick", b->quick);
    js_open(a, "rows", '[');
    for (int64_t i = 0; i < b->rows; i++) {
        const bench_row *r = &b->row[i];
        js_open(a, NULL, '{');
        js_str(a, "name", r->name);
        js_str(a, "what", r->title);
        js_int(a, "threads", r->threads);
        js_str(a, "unit", r->unit);
        js_num(a, "ours", r->ours);
        js_num(a, "ours_median", r->ours_median);
        js_str(a, "peer_name", r->peer_name);
        js_num(a, "peer", r->peer);
        js_num(a, "peer_median", r->peer_median);
        js_num(a, "ratio", r->ours / r->peer);
        js_num(a, "goal", r->goal > 0 ? r->goal : (double)NAN);
        js_str(a, "goal_of", r->goal_is_ours ? "ours" : "ratio");
        if (r->goal > 0 && !r->why) js_bool(a, "met", bench_met(r));
        else js_str(a, "met", NULL);
        js_int(a, "repeats", r->repeats);
        js_int(a, "streams", r->streams);
        js_str(a, "why", r->why);
        js_close(a, '}');
    }
    js_close(a, ']');
    js_close(a, '}');
}

static str32 three_digits(double x)             /* "-" if there is no number */
{
    str32 s;
    if (isnan(x)) snprintf(s.s, sizeof s.s, "-");
    else if (x < 0.1) snprintf(s.s, sizeof s.s, "%.2g", x);
    else snprintf(s.s, sizeof s.s, "%.*f", x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2, x);
    return s;
}

static void bench_print(const bench *b)
{
    char cpu[128];
    bench_cpu(cpu, sizeof cpu);
    printf("%s, %s kernels, %s, cache %s, memory read %s in %s pages\n", cpu,
           tr_cpu_name(tr_ctx_cpu(b->fast[0])), b->blas.why ? "no OpenBLAS" : b->blas.name,
           size_of(bench_cache_bytes()).s, size_of((double)b->pool.bytes).s,
           b->pool.huge ? "huge" : "plain");
    printf("%-46s %7s %7s %7s %-7s %-14s %5s %s\n", "", "threads", "ours", "peer", "", "", "ratio",
           "goal");
    for (int64_t i = 0; i < b->rows; i++) {
        const bench_row *r = &b->row[i];
        printf("%-46s %7d ", r->title, r->threads);
        if (r->why) { printf("not measured: %s\n", r->why); continue; }
        printf("%7s %7s %-7s %-14s %5s", three_digits(r->ours).s, three_digits(r->peer).s, r->unit,
               r->peer_name, three_digits(r->ours / r->peer).s);
        if (r->goal > 0)
            printf(" %g%s%s%s", r->goal, r->goal_is_ours ? " " : "", r->goal_is_ours ? r->unit : "",
                   bench_met(r) ? "" : ", missed");
        printf("\n");
    }
}

static int cmd_bench(app *a)
{
    bench b;
    bench_begin(&b, a);
    bench_run(&b);
    if (a->json) bench_json(&b);
    else bench_print(&b);
    bench_end(&b);
    return EXIT_FINE;
}

static const option bench_options[] = {
    { "--model", "DIR",  OPT_ONE,  "a checkpoint without experts, to decode with" },
    { "--blas",  "FILE", OPT_ONE,  "OpenBLAS's shared library (default: " BENCH_BLAS ")" },
    { "--only",  "GLOB", OPT_MANY, "measures by name, as --json gives it: 'row-*'" },
    { "--quick", NULL,   OPT_FLAG, "every measure once, in sizes too small to mean anything" },
    OPT_END
};

static const char bench_note[] =
    "Ours and a peer, or what memory can be read with, in turn; the best of up to nine samples\n"
    "each, once with one thread and once with all. Products read f32 unless something else is\n"
    "said. The weights of one row and the memory that is read are four times the largest cache;\n"
    "bytes count as stored. A goal that is missed is no failure.\n\n"
    "Exit codes: 0 measured; 2 a file cannot be used, or ours and the peer disagree.\n";

/* ============================================================================
 * postmortem {post}
 * ========================================================================= */

static const char *step_str(app *a, const pm_rank *r)       /* "layer 5, dispatch" */
{
    const ring_record *e = r->last;
    const char *s;
    if (!e) return "none yet";
    if (e->kind == RING_END) return "after the last";
    s = e->kind == RING_DONE ? text(a, "after %s", e->step) : e->step;
    return e->layer < 0 ? s : text(a, "layer %d, %s", (int)e->layer, s);
}

static const char *state_str(app *a, const pm_rank *r)
{
    const char *s = pm_end_name(r);
    if (r->end == PM_SIGNALLED || r->end == PM_CRASHED)
        s = text(a, "ended by %s", ring_signal_name(r->log.head.signal));
    if (r->end == PM_ORDERLY || r->waits == RING_NOBODY) return s;
    return r->waits >= 0 ? text(a, "%s, waited for rank %d", s, r->waits) :
           text(a, "%s, waited for others", s);
}

static void post_print(app *a, const pm *p, const pm_verdict *v)
{
    char *missing = (char *)need(a, p->world + 1, 1);
    int host = 4, step = 9, healthy = pm_is_healthy(p);
    for (int i = 0; i < p->world; i++) {
        const pm_rank *r = &p->rank[i];
        int h = (int)strlen(r->log.head.host), s = r->file ? (int)strlen(step_str(a, r)) : 0;
        missing[i] = !r->file;
        if (h > host) host = h;
        if (s > step) step = s;
    }
    printf("   rank  %-*s       pid  %-*s  %14s  state\n", host, "host", step,
           "last step", healthy ? "s silent" : "s before end");
    for (int i = 0; i < p->world; i++) {
        const pm_rank *r = &p->rank[i];
        if (!r->file) continue;
        printf("%c %5d  %-*s  %8lld  %-*s  %13.3f  %s\n", i == v->first && !healthy ? '*' : ' ', i,
               host, r->log.head.host, (long long)r->log.head.pid, step, step_str(a, r),
               pm_seconds(p->end - pm_seen(r)), state_str(a, r));
    }
    if (p->known < p->world) print_at("  no ring: rank ", ranges(a, missing, p->world, ", "));
    printf("\n");
    print_at("", v->sentence);
}

static void post_rank_json(app *a, const pm *p, int i)
{
    const pm_rank *r = &p->rank[i];
    const ring_head *h = &r->log.head;
    js_open(a, NULL, '{');
    js_int(a, "rank", i);
    js_str(a, "state", pm_end_name(r));
    if (r->file) {
        js_str(a, "file", r->file);
        js_str(a, "host", h->host);
        js_int(a, "pid", h->pid);
        js_int(a, "signal", h->signal);
        js_str(a, "sentence", h->sentence);
        js_int(a, "events", r->log.n);
        js_int(a, "torn", r->log.torn);
        js_num(a, "seconds_before_end", pm_seconds(p->end - pm_seen(r)));
    }
    if (r->end == PM_FAILED) {
        js_str(a, "cause", pm_cause_name(r->cause));
        js_int(a, "failure_of", r->given_up || r->blames == RING_NOBODY ? i : r->blames);
    }
    if (r->last) {
        js_int(a, "layer", r->last->layer);
        js_str(a, "step", r->last->step);
        js_int(a, "waits_for", r->waits);
        js_int(a, "expected", (int64_t)r->last->expected);
        js_int(a, "arrived", (int64_t)r->last->arrived);
    }
    js_close(a, '}');
}

static void post_json(app *a, const pm *p, const pm_verdict *v)
{
    const ring_head *h = &pm_any(p)->log.head;
    js_open(a, NULL, '{');
    js_str(a, "verdict", v->sentence);
    js_str(a, "why", pm_why_name(v->why));
    js_int(a, "first", v->first);
    js_int(a, "ranks", p->world);
    js_str(a, "layout", h->layout);
    js_str(a, "run", h->run);
    js_str(a, "command", h->command);
    js_open(a, "rank", '[');
    for (int i = 0; i < p->world; i++) post_rank_json(a, p, i);
    js_close(a, ']');
    js_close(a, '}');
}

static int cmd_postmortem(app *a)
{
    pm p;
    pm_verdict v;
    must(a, pm_read(a->ctx, &p, a->arg[0]));
    for (int64_t i = 0; i < p.n_damaged; i++) say(a, "warning: left out: %s", p.damaged[i]);
    v = pm_judge(&p);
    if (a->json) post_json(a, &p, &v);
    else post_print(a, &p, &v);
    pm_free(a->ctx, &p);
    return v.why == PM_FINE ? EXIT_FINE : EXIT_DIFFERS;
}

static const char postmortem_note[] =
    "DIR holds the rings that the ranks of `trillion-mpi --rings DIR` left, rank-00000.ring and\n"
    "so on, gathered from all machines; without --rings a new folder trillion-XXXXXX in TMPDIR or\n"
    "/tmp, which the run names when it begins, and which stays if it fails. The run may still be\n"
    "running: a rank that is stopped is then named as such.\n\n"
    "The table says where each rank was at the end, since when, and how it ended: the end is when\n"
    "the first rank failed or gave up waiting, else the last event of all. * marks the rank that\n"
    "the sentence names. A rank that was killed leaves no ending, but its events up to there. A\n"
    "ring that is damaged is left out with a warning. Clocks of several machines must agree to\n"
    "less than the deadline.\n"
    "\nKeys of --json: verdict why first ranks layout run command rank. why is fine, running,\n"
    "failed, late, killed, left (ended while others waited), absent, deadlock, outside (signals)\n"
    "or unknown; first is -1 if no rank can be named; waits_for is -1 for nobody, -2 for others.\n"
    "Of a rank that failed, cause is own, unlike (it has another file or step than others), late,\n"
    "deadlock or mpi, and failure_of the rank whose failure it is, -2 if of others.\n"
    "\n"
    "Exit codes: 0 all ranks ended in order; 1 not; 2 no rings, or of more than one run.\n";

/* ============================================================================
 * families, selftest {small}
 * ========================================================================= */

static int cmd_families(app *a)
{
    if (a->json) {
        js_open(a, NULL, '{');
        js_open(a, "families", '[');
    }
    for (int64_t i = 0; i < tr_family_count(); i++) {
        const tr_family *f = tr_family_get(i);
        if (!a->json) {
            printf("%-16s %s\n", tr_family_name(f), tr_family_title(f));
            continue;
        }
        js_open(a, NULL, '{');
        js_str(a, "name", tr_family_name(f));
        js_str(a, "title", tr_family_title(f));
        js_facts(a, f, NULL);
        js_close(a, '}');
    }
    if (a->json) {
        js_close(a, ']');
        js_close(a, '}');
    }
    return EXIT_FINE;
}

static int cmd_selftest(app *a)
{
    tr_build b = tr_build_info(a->ctx);
    int ok = tr_selftest(a->ctx) == TR_OK;
    if (a->json) {
        js_open(a, NULL, '{');
        js_str(a, "version", b.version);
        js_str(a, "contract", b.contract);
        js_str(a, "compiler", b.compiler);
        js_str(a, "arch", b.arch);
        js_str(a, "kernels", tr_cpu_name(tr_ctx_cpu(a->ctx)));
        js_bool(a, "openmp", b.openmp);
        js_int(a, "threads", b.threads);
        js_bool(a, "mmap", b.mmap);
        js_bool(a, "passed", ok);
        js_str(a, "failure", ok ? "" : tr_err_last(a->ctx));
        js_close(a, '}');
    } else {
        printf("trillion %s, contract %s, %s, %s, %s kernels, %d %s%s, files %s\n", b.version,
               b.contract, b.compiler, b.arch, tr_cpu_name(tr_ctx_cpu(a->ctx)), b.threads,
               b.threads == 1 ? "thread" : "threads", b.openmp ? " (OpenMP)" : "",
               b.mmap ? "mapped" : "read");
        if (ok) printf("selftest passed\n");
        else printf("selftest FAILED: %s\n", tr_err_last(a->ctx));
    }
    return ok ? EXIT_FINE : EXIT_DIFFERS;
}

/* ============================================================================
 * The table of commands {main}
 * ========================================================================= */

static const option no_options[] = { OPT_END };

static const command commands[] = {
    PROGRAM_COMMANDS                    /* found first */
    { "families", "", "What is supported, from the tables.",
      "Exit codes: 0 fine.\n", 0, 1, 0, no_options, NULL, cmd_families },
    { "audit", "DIR [options]",
      "Is every key, tensor, shape and byte of a checkpoint as it must be?",
      audit_note, 1, 1, 0, audit_options, NULL, cmd_audit },
    { "plan", "DIR|config.json [options]",
      "How many tensors, bytes and parameters; what each layer computes.",
      plan_note, 1, 1, 0, plan_options, NULL, cmd_plan },
    { "golden", "DIR --ids FILE -o OUT [options]",
      "Run a prompt and write every layer's output under its public name.",
      golden_note, 1, 1, 1, golden_options, check_golden, cmd_golden },
    { "compare", "A B [options]",
      "Which tensor differs first, and by how much? A is theirs, B the golden.",
      compare_note, 2, 1, 0, compare_options, NULL, cmd_compare },
    { "run", "DIR --ids FILE -n N [options]",
      "Greedy ids after a prompt, one sequence a line.",
      run_note, 1, 0, 1, run_options, check_run, cmd_run },
    { "tiny", "DIR --family NAME [options]",
      "Write a small random checkpoint in the released layout.",
      tiny_note, 1, 0, 0, tiny_options, NULL, cmd_tiny },
    { "image", "FILE --model DIR [options]",
      "From a picture to the patches and tokens that the model sees.",
      image_note, 1, 1, 0, image_options, NULL, cmd_image },
    { "bench", "[options]", "Speed, as ratios to OpenBLAS and to what memory can be read with.",
      bench_note, 0, 1, 0, bench_options, NULL, cmd_bench },
    { "postmortem", "DIR [options]",
      "Which rank of a run stopped first, where and why?",
      postmortem_note, 1, 1, 0, no_options, NULL, cmd_postmortem },
    { "selftest", "", "What this build is, and whether its arithmetic is what it must be.",
      "Exit codes: 0 passed; 1 failed, by name.\n", 0, 1, 1, no_options, NULL, cmd_selftest },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const command *command_find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int command_runs(const command *c) { return !PROGRAM_RANKS || c->ranks; }

static int overview(void)
{
    printf(PROGRAM " %s - the reference that a trillion-parameter model is checked against\n\n",
           TR_VERSION);
    for (int i = 0; i < N_COMMANDS; i++)
        if (&commands[i] == command_find(commands[i].name) && command_runs(&commands[i]))
            printf("  %-10s %s\n", commands[i].name, commands[i].help);
    printf("\n" PROGRAM_USE
           "`" PROGRAM " COMMAND --help` explains one. --json prints one object for scripts;\n"
           "--threads N limits threads. Exit codes: 0 fine, 1 differs or failed, 2 unusable input\n"
           "or arguments. Answers go to stdout, all else to stderr.\n");
    return EXIT_FINE;
}

static int run_command(app *a, int argc, char **argv)
{
    tr_ctx_opts o;
    int code;
    memset(&o, 0, sizeof o);
    o.log = on_warning;
    o.log_user = a;
    options_parse(a, argc, argv);
    if (opt(a, "--help")) return help_print(a->cmd);
    program_begin(a);
    o.threads = opt_threads(a, program_threads(a));
    if (tr_ctx_new(&a->ctx, &o) != TR_OK && (!a->ctx || a->cmd->run != cmd_selftest))
        die(a, "%s", a->ctx ? tr_err_last(a->ctx) : "out of memory");
    program_ready(a);
    code = a->cmd->run(a);
    progress_clear(a);
    return code;
}

int main(int argc, char **argv)
{
    static char answer[1 << 20];        /* kept back while something can still fail */
    app a;
    int code;
    memset(&a, 0, sizeof a);
    program_start(&a, argc, argv);
    setvbuf(stdout, answer, _IOFBF, sizeof answer);
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        code = overview();
    } else if (strcmp(argv[1], "--version") == 0) {
        code = EXIT_FINE;
        printf(PROGRAM " %s, contract %s\n", TR_VERSION, TR_CONTRACT);
    } else {
        a.cmd = command_find(argv[1]);
        if (!a.cmd) die(&a, "there is no command '%s'; `" PROGRAM "` alone lists them", argv[1]);
        if (!command_runs(a.cmd))
            die(&a, "%s is for one rank: `trillion %s`", a.cmd->name, a.cmd->name);
        code = run_command(&a, argc - 2, argv + 2);
    }
    return program_end(&a, code);
}
