/* {st}, {os} and the hash of {golden}: files that open and what is in them, files that must not
 * open and the words in which that is said, folders of shards, writing under bad conditions. */

#define _GNU_SOURCE     /* fork, setrlimit, seteuid: for this test, not for the header */
#include <dirent.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRILLION_IMPLEMENTATION
#include "test.h"

#define DIR_TMP "build/tmp/st"
#define FILE_TMP DIR_TMP "/a.safetensors"

static const char *cases = "tests/golden";

static void empty_dir(void)
{
    char path[600];
    struct dirent *e;
    DIR *d;
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    mkdir(DIR_TMP, 0777);
    d = opendir(DIR_TMP);
    while (d && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", DIR_TMP, e->d_name);
        if (e->d_name[0] != '.' && remove(path)) printf("  cannot remove %s\n", path);
    }
    if (d) closedir(d);
}

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) { printf("cannot write %s\n", path); exit(1); }
}

static size_t get_file(const char *path, void *data, size_t cap)    /* 0: not there */
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(data, 1, cap, f) : 0;
    if (f) fclose(f);
    return n;
}

/* length, header, and `data` bytes 3, 10, 17, ... */
static void put_st(const char *path, const char *header, size_t data)
{
    static unsigned char b[1 << 16];
    size_t n = strlen(header);
    for (int k = 0; k < 8; k++) b[k] = (unsigned char)((uint64_t)n >> 8 * k);
    memcpy(b + 8, header, n);
    for (size_t i = 0; i < data; i++) b[8 + n + i] = (unsigned char)(i * 7 + 3);
    put_file(path, b, 8 + n + data);
}

/* ---- one file ---- */

#define T(name, dtype, shape, begin, end) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape \
                                          ",\"data_offsets\":[" #begin "," #end "]}"

typedef struct good_row { const char *header; size_t data; const char *want; } good_row;
static const good_row good[] = {
    { "{}", 0, "" },
    { "{}        ", 0, "" },
    { "{\"__metadata__\":{}}", 0, "" },
    { "{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"}}", 0, "" },
    { "{" T("a", "F32", "[2,3]", 0, 24) "}", 24, "a F32 [2, 3] 0+24;" },
    { "{" T("a", "F32", "[]", 0, 4) "}", 4, "a F32 [] 0+4;" },                   /* a scalar */
    { "{" T("a", "F32", "[0]", 0, 0) "}", 0, "a F32 [0] 0+0;" },
    { "{" T("a", "F32", "[4,0,3]", 0, 0) "," T("b", "U8", "[1]", 0, 1) "," T("c", "F64", "[0]", 1, 1) "}", 1,
      "a F32 [4, 0, 3] 0+0;b U8 [1] 0+1;c F64 [0] 1+0;" },
    { "{" T("b", "U8", "[2]", 0, 2) "," T("a", "U8", "[0]", 0, 0) "}", 2, "a U8 [0] 0+0;b U8 [2] 0+2;" },
    { "{" T("z", "U8", "[3]", 5, 8) "," T("y", "U8", "[1]", 4, 5) "," T("x", "U8", "[4]", 0, 4) "}", 8,
      "x U8 [4] 0+4;y U8 [1] 4+1;z U8 [3] 5+3;" },                               /* any order */
    { "{" T("a", "F64", "[1]", 0, 8) "," T("b", "F32", "[1]", 8, 12) "," T("c", "F16", "[1]", 12, 14) ","
      T("d", "BF16", "[1]", 14, 16) "," T("e", "F8_E4M3", "[1]", 16, 17) "," T("f", "F8_E5M2", "[1]", 17, 18)
      "," T("g", "F8_E8M0", "[1]", 18, 19) "," T("h", "BOOL", "[1]", 19, 20) "," T("i", "F4", "[1,2]", 20, 21)
      "," T("j", "I8", "[1]", 21, 22) "," T("k", "U8", "[1]", 22, 23) "," T("l", "U8", "[1]", 23, 24) ","
      T("m", "I64", "[1]", 24, 32) "," T("n", "U64", "[1]", 32, 40) "," T("o", "I32", "[1]", 40, 44) ","
      T("p", "U32", "[1]", 44, 48) "," T("q", "I16", "[1]", 48, 50) "," T("r", "U16", "[1]", 50, 52) "}", 52,
      "a F64 [1] 0+8;b F32 [1] 8+4;c F16 [1] 12+2;d BF16 [1] 14+2;e F8_E4M3 [1] 16+1;f F8_E5M2 [1] 17+1;"
      "g F8_E8M0 [1] 18+1;h BOOL [1] 19+1;i F4 [1, 2] 20+1;j I8 [1] 21+1;k U8 [1] 22+1;l U8 [1] 23+1;"
      "m I64 [1] 24+8;n U64 [1] 32+8;o I32 [1] 40+4;p U32 [1] 44+4;q I16 [1] 48+2;r U16 [1] 50+2;" },
    { "{" T("a", "F4", "[3,6]", 0, 9) "}", 9, "a F4 [3, 6] 0+9;" },
    { "{" T("a", "U8", "[1,1,1,1,1,2]", 0, 2) "}", 2, "a U8 [1, 1, 1, 1, 1, 2] 0+2;" },
    { "{" T("", "U8", "[1]", 0, 1) "," T("\\u00e9 \\\"x\\\"", "U8", "[1]", 1, 2) "}", 2,
      " U8 [1] 0+1;\xc3\xa9 \"x\" U8 [1] 1+1;" },
    { "{\"a\" : { \"data_offsets\" : [ 0 , 1 ] , \"shape\" : [ 1 ] , \"dtype\" : \"U8\" } }", 1, "a U8 [1] 0+1;" },
};

/* lenient: NULL if the file must not open then either, else the words of the warning. */
typedef struct bad_row {
    const char *header;  size_t data;  tr_status status;  const char *words, *lenient;
} bad_row;
static const bad_row bad[] = {
    /* the header's form */
    { "[]", 0, TR_ERR_FORMAT, "'{'", NULL },
    { " {}", 0, TR_ERR_FORMAT, "'{'", NULL },
    { "\"a\"", 0, TR_ERR_FORMAT, "'{'", NULL },
    { "{", 0, TR_ERR_FORMAT, "header:1: ends", NULL },
    { "{}x", 0, TR_ERR_FORMAT, "header:1: 'x'", NULL },
    { "{} {}", 0, TR_ERR_FORMAT, "after", NULL },
    { "{\"a:1}", 0, TR_ERR_FORMAT, "closing quote", NULL },
    { "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, TR_ERR_FORMAT, "deeper", NULL },
    /* an entry's members */
    { "{\"a\":1}", 0, TR_ERR_FORMAT, "tensor \"a\": description number", NULL },
    { "{\"a\":null}", 0, TR_ERR_FORMAT, "\"a\" null", NULL },
    { "{\"a\":{}}", 0, TR_ERR_FORMAT, "\"a\": dtype", NULL },
    { "{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, TR_ERR_FORMAT, "\"a\": no dtype", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, TR_ERR_FORMAT, "\"a\": no shape", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, TR_ERR_FORMAT, "\"a\": no data_offsets", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, TR_ERR_FORMAT, "\"a\": unknown \"x\"", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"shape\":[1]}}", 4, TR_ERR_FORMAT, "shape: twice", NULL },
    { "{\"a\":{\"dtype\":9,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, TR_ERR_FORMAT, "\"a\": dtype number", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, TR_ERR_FORMAT, "\"a\": shape number", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, TR_ERR_FORMAT, "shape object", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 4, TR_ERR_FORMAT, "data_offsets number", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":null}}", 4, TR_ERR_FORMAT, "data_offsets null", NULL },
    { "{" T("a\\nb", "F32", "[1]", 0, 4) "}", 4, TR_ERR_FORMAT, "\"a?b\": control", NULL },
    { "{" T("a\\u007f", "F32", "[1]", 0, 4) "}", 4, TR_ERR_FORMAT, "control", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, TR_ERR_FORMAT, "a: twice", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("\\u0061", "F32", "[1]", 0, 4) "}", 4, TR_ERR_FORMAT, "a: twice", NULL },
    /* dtypes */
    { "{" T("a", "F128", "[1]", 0, 16) "}", 16, TR_ERR_DTYPE, "\"a\": dtype \"F128\"", NULL },
    { "{" T("a", "f32", "[1]", 0, 4) "}", 4, TR_ERR_DTYPE, "\"f32\"", NULL },
    { "{" T("a", "", "[1]", 0, 4) "}", 4, TR_ERR_DTYPE, "\"\"", NULL },
    { "{" T("a", "F3", "[1]", 0, 4) "}", 4, TR_ERR_DTYPE, "\"F3\"", NULL },
    { "{" T("a", "F32 ", "[1]", 0, 4) "}", 4, TR_ERR_DTYPE, "\"F32", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("b", "C64", "[1]", 4, 12) "}", 12, TR_ERR_DTYPE, "\"b\": \"C64\"", NULL },
    /* shapes */
    { "{" T("a", "F32", "[-1]", 0, 4) "}", 4, TR_ERR_FORMAT, "\"a\": shape -1", NULL },
    { "{" T("a", "F32", "[1.0]", 0, 4) "}", 4, TR_ERR_FORMAT, "\"a\": 1.0 integer", NULL },
    { "{" T("a", "F32", "[\"1\"]", 0, 4) "}", 4, TR_ERR_FORMAT, "\"1\" integer", NULL },
    { "{" T("a", "F32", "[null]", 0, 4) "}", 4, TR_ERR_FORMAT, "null integer", NULL },
    { "{" T("a", "F32", "[[1]]", 0, 4) "}", 4, TR_ERR_FORMAT, "array integer", NULL },
    { "{" T("a", "F32", "[1e0]", 0, 4) "}", 4, TR_ERR_FORMAT, "1e0 integer", NULL },
    { "{" T("a", "F32", "[9223372036854775808]", 0, 4) "}", 4, TR_ERR_FORMAT, "64 bits", NULL },
    { "{" T("a", "U8", "[1,1,1,1,1,1,1]", 0, 1) "}", 1, TR_ERR_UNSUPPORTED, "\"a\": 7 dimensions 6", NULL },
    { "{" T("a", "F32", "[4294967296,4294967296]", 0, 0) "}", 0, TR_ERR_RANGE, "\"a\": overflows", NULL },
    { "{" T("a", "U8", "[4294967296,4294967297]", 0, 4294967296) "}", 8, TR_ERR_RANGE, "overflows", NULL },
    { "{" T("a", "F32", "[4611686018427387905]", 0, 4) "}", 4, TR_ERR_RANGE, "overflows", NULL },
    { "{" T("a", "U8", "[9223372036854775807]", 0, 8) "}", 8, TR_ERR_RANGE, "overflows", NULL },
    { "{" T("a", "F32", "[0,4294967296,4294967296]", 0, 0) "}", 0, TR_ERR_RANGE, "overflows", NULL },
    { "{" T("a", "F32", "[4294967296,4294967296,0]", 0, 0) "}", 0, TR_ERR_RANGE, "overflows", NULL },
    { "{" T("a", "F4", "[3]", 0, 1) "}", 1, TR_ERR_SHAPE, "\"a\": 3 4 bits fill", NULL },
    { "{" T("a", "F4", "[3]", 0, 2) "}", 2, TR_ERR_SHAPE, "fill", NULL },
    { "{" T("a", "F4", "[]", 0, 1) "}", 1, TR_ERR_SHAPE, "fill", NULL },
    /* offsets */
    { "{" T("a", "F32", "[1]", 0, 3) "}", 3, TR_ERR_FORMAT, "\"a\": [0, 3] 4 bytes", NULL },
    { "{" T("a", "F32", "[1]", 0, 8) "}", 8, TR_ERR_FORMAT, "[0, 8] 4 bytes", NULL },
    { "{" T("a", "F32", "[2]", 0, 4) "}", 4, TR_ERR_FORMAT, "[0, 4] 8 bytes", NULL },
    { "{" T("a", "F4", "[4]", 0, 4) "}", 4, TR_ERR_FORMAT, "[0, 4] 2 bytes", NULL },
    { "{" T("a", "F32", "[0]", 0, 4) "}", 4, TR_ERR_FORMAT, "[0, 4] 0 bytes", NULL },
    { "{" T("a", "F32", "[]", 0, 0) "}", 0, TR_ERR_FORMAT, "[0, 0] 4 bytes", NULL },
    { "{" T("a", "F32", "[1]", 4, 0) "}", 4, TR_ERR_FORMAT, "[4, 0]", NULL },
    { "{" T("a", "F32", "[1]", -4, 0) "}", 4, TR_ERR_FORMAT, "\"a\": data_offsets -4", NULL },
    { "{" T("a", "F32", "[1]", 0, 4.0) "}", 4, TR_ERR_FORMAT, "4.0 integer", NULL },
    { "{" T("a", "F32", "[1]", 18446744073709551612, 0) "}", 4, TR_ERR_FORMAT, "64 bits", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[]}}", 4, TR_ERR_FORMAT, "\"a\": data_offsets 0 2", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, TR_ERR_FORMAT, "data_offsets 1 2", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, TR_ERR_FORMAT, "data_offsets 3 2", NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,[4]]}}", 4, TR_ERR_FORMAT, "array integer", NULL },
    { "{" T("a", "U8", "[1]", 9223372036854775806, 9223372036854775807) "}", 1, TR_ERR_FORMAT, "truncated \"a\"", NULL },
    /* the data area */
    { "{" T("a", "F32", "[2]", 0, 8) "}", 7, TR_ERR_FORMAT, "truncated 70 69 \"a\"", NULL },
    { "{" T("a", "F32", "[2]", 0, 8) "}", 0, TR_ERR_FORMAT, "truncated 70 62 \"a\"", NULL },
    { "{" T("b", "U8", "[1]", 9, 10) "," T("a", "U8", "[9]", 0, 9) "}", 8, TR_ERR_FORMAT, "truncated \"b\"", NULL },
    { "{" T("a", "U8", "[1]", 0, 1) "," T("b", "F32", "[0]", 2, 2) "}", 1, TR_ERR_FORMAT, "truncated \"b\"", NULL },
    { "{" T("a", "U8", "[9]", 0, 9) "," T("b", "U8", "[2]", 3, 5) "}", 6, TR_ERR_FORMAT, "truncated \"a\"", NULL },
    { "{" T("a", "U8", "[1]", 4611686018427387000, 4611686018427387001) "}", 1, TR_ERR_FORMAT, "truncated \"a\"", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 2, 6) "}", 6, TR_ERR_FORMAT, "\"a\" \"b\" overlap 2", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 0, 4) "}", 4, TR_ERR_FORMAT, "\"a\" \"b\" overlap 0", NULL },
    { "{" T("a", "U8", "[8]", 0, 8) "," T("b", "U8", "[2]", 3, 5) "}", 8, TR_ERR_FORMAT, "overlap 3", NULL },
    { "{" T("a", "U8", "[8]", 0, 8) "," T("b", "U8", "[0]", 3, 3) "}", 8, TR_ERR_FORMAT, "overlap 3", NULL },
    { "{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[1]", 2, 3) "," T("c", "U8", "[2]", 3, 5) "}", 5, TR_ERR_FORMAT, "\"a\" \"b\" overlap", NULL },
    { "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12, TR_ERR_FORMAT, "hole 4 8 \"b\"", "4 between 0 trailing" },
    { "{" T("a", "F32", "[1]", 4, 8) "}", 8, TR_ERR_FORMAT, "hole 0 4 \"a\"", "4 between 0 trailing" },
    { "{" T("a", "U8", "[1]", 0, 1) "," T("b", "U8", "[0]", 3, 3) "}", 3, TR_ERR_FORMAT, "hole 1 3", "2 between 0 trailing" },
    { "{" T("a", "F32", "[1]", 0, 4) "}", 8, TR_ERR_FORMAT, "4 trailing", "0 between 4 trailing" },
    { "{}", 4, TR_ERR_FORMAT, "4 trailing", "0 between 4 trailing" },
    { "{" T("a", "U8", "[1]", 1, 2) "," T("b", "U8", "[1]", 5, 6) "}", 9, TR_ERR_FORMAT, "hole 0 1", "4 between 3 trailing" },
    { "{" T("a", "F32", "[1]", 4, 8) "," T("b", "F32", "[1]", 6, 10) "}", 12, TR_ERR_FORMAT, "hole", NULL },
    /* __metadata__ */
    { "{\"__metadata__\":1}", 0, TR_ERR_FORMAT, "__metadata__ number", NULL },
    { "{\"__metadata__\":null}", 0, TR_ERR_FORMAT, "__metadata__ null", NULL },
    { "{\"__metadata__\":[]}", 0, TR_ERR_FORMAT, "__metadata__ array", NULL },
    { "{\"__metadata__\":{\"a\":1}}", 0, TR_ERR_FORMAT, "__metadata__ \"a\" number", NULL },
    { "{\"__metadata__\":{\"b\":\"\",\"a\":{}}}", 0, TR_ERR_FORMAT, "__metadata__ \"a\" object", NULL },
    { "{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, TR_ERR_FORMAT, "a: twice", NULL },
    { "{" T("__metadata__", "F32", "[1]", 0, 4) "}", 4, TR_ERR_FORMAT, "__metadata__ \"shape\" array", NULL },
};

static void list(const tr_st *f, char *b, size_t cap)
{
    char v[96];
    size_t n = 0;
    b[0] = 0;
    for (int64_t i = 0; i < f->n && n < cap; i++) {
        const tr_st_entry *e = &f->entry[i];
        n += (size_t)snprintf(b + n, cap - n, "%s %s %d+%d;", e->name, tr_view_str(e->view, v),
                              (int)e->begin, (int)e->bytes);
        CHECK(tr_st_find(f, e->name) == e && tr_view_is_contig(e->view) && e->view.data);
        for (size_t k = 0; k < e->bytes; k++)
            CHECK(((unsigned char *)e->view.data)[k] == (unsigned char)((e->begin + k) * 7 + 3));
    }
}

static void opens(void)
{
    tr_ctx *ctx = test_ctx();
    tr_st f;
    char b[2000];
    empty_dir();
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int before = test_bad;
        put_st(FILE_TMP, good[i].header, good[i].data);
        CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
        if (test_bad > before) continue;
        list(&f, b, sizeof b);
        CHECK(!strcmp(f.path, FILE_TMP) && f.holes == 0 && f.trailing == 0);
        CHECK(!tr_st_find(&f, "none") && !tr_st_find(&f, "__metadata__"));
        if (strcmp(b, good[i].want)) { test_bad++; printf("  row %d: %s\n", (int)i, b); }
        tr_st_close(ctx, &f);
        tr_st_close(ctx, &f);
    }
    CHECK(test_log[0] == 0);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* All blank-separated words in s? */
static int has(const char *s, const char *words)
{
    char w[256];
    while (*words) {
        size_t n = strcspn(words, " ");
        snprintf(w, sizeof w, "%.*s", (int)n, words);
        if (!strstr(s, w)) { printf("  no \"%s\" in \"%s\"\n", w, s); return 0; }
        words += n;
        words += strspn(words, " ");
    }
    return 1;
}

static void refuses(void)
{
    tr_ctx *ctx = test_ctx();
    tr_st f, none;
    memset(&none, 0, sizeof none);
    empty_dir();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const bad_row *r = &bad[i];
        int before = test_bad;
        put_st(FILE_TMP, r->header, r->data);
        memset(&f, 1, sizeof f);
        CHECK_FAILS(ctx, r->status, r->words, tr_st_open(ctx, &f, FILE_TMP, 0));
        CHECK_BITS(&f, &none, sizeof f);
        CHECK(has(tr_err_last(ctx), FILE_TMP ":"));
        test_log[0] = 0;
        if (!r->lenient) CHECK(tr_st_open(ctx, &f, FILE_TMP, 1) == r->status || strstr(r->words, "hole"));
        else {
            CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 1));
            CHECK(has(test_log, r->lenient) && has(test_log, FILE_TMP));
            CHECK((int)f.holes == atoi(strstr(test_log, ": ") + 2));
            CHECK((int)f.trailing == atoi(strstr(test_log, "and ") + 4));
        }
        tr_st_close(ctx, &f);
        if (test_bad > before) printf("  in row %d: %s\n", (int)i, r->header);
    }
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* The first eight bytes, and files that are none. */
static void lengths(void)
{
    static const struct { uint64_t length; size_t bytes; const char *words; } row[] = {
        { UINT64_MAX - 4, 64, "18446744073709551611 64" }, { UINT64_MAX, 64, "truncated" },
        { UINT64_MAX - 7, 64, "truncated" }, { (uint64_t)1 << 63, 64, "9223372036854775808" },
        { 57, 64, "57 64 truncated" }, { 1000000, 64, "1000000 64" }, { 0, 64, "'{'" }, { 0, 8, "'{'" },
        { 1, 8, "1 8" }, { 0x5b7b, 64, "truncated" }, { 2, 9, "2 9" },
    };
    tr_ctx *ctx = test_ctx();
    tr_st f;
    unsigned char b[64];
    empty_dir();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        memset(b, ' ', sizeof b);
        for (int k = 0; k < 8; k++) b[k] = (unsigned char)(row[i].length >> 8 * k);
        put_file(FILE_TMP, b, row[i].bytes);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, row[i].words, tr_st_open(ctx, &f, FILE_TMP, 1));
    }
    for (size_t n = 1; n < 8; n++) {
        put_file(FILE_TMP, b, n);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, "few", tr_st_open(ctx, &f, FILE_TMP, 1));
    }
    put_file(FILE_TMP, b, 0);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "a.safetensors: empty", tr_st_open(ctx, &f, FILE_TMP, 1));
    put_file(FILE_TMP, "version https://git-lfs.github.com/spec/v1\noid sha256:", 54);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "no safetensors file", tr_st_open(ctx, &f, FILE_TMP, 1));
    CHECK_FAILS(ctx, TR_ERR_IO, DIR_TMP ": folder", tr_st_open(ctx, &f, DIR_TMP, 0));
    CHECK_FAILS(ctx, TR_ERR_IO, DIR_TMP "/none: No such file", tr_st_open(ctx, &f, DIR_TMP "/none", 0));
    remove(FILE_TMP);
    CHECK(mkfifo(FILE_TMP, 0600) == 0);         /* opening it would wait for a writer */
    CHECK_FAILS(ctx, TR_ERR_IO, "regular", tr_st_open(ctx, &f, FILE_TMP, 0));
    remove(FILE_TMP);
    CHECK(symlink("gone", FILE_TMP) == 0);
    CHECK_FAILS(ctx, TR_ERR_IO, "a.safetensors: No such file", tr_st_open(ctx, &f, FILE_TMP, 0));
    remove(FILE_TMP);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* A header beyond 512 MiB, and a tensor beyond 2^31 bytes; the files are holes on the disk. */
static void huge(void)
{
#if !TR_NO_MMAP
    static const char header[] = "{" T("a", "U8", "[2147483658]", 0, 2147483658) ","
                                 T("b", "U8", "[3]", 2147483658, 2147483661) "}";
    tr_ctx *ctx = test_ctx();
    tr_st f;
    FILE *h;
    empty_dir();
    put_file(FILE_TMP, "\x01\0\0\x20\0\0\0\0{}", 10);
    CHECK(truncate(FILE_TMP, 8 + 0x20000001) == 0);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "536870913 536870912", tr_st_open(ctx, &f, FILE_TMP, 0));
    put_st(FILE_TMP, header, 0);
    h = fopen(FILE_TMP, "r+b");
    CHECK(fseek(h, (long)(8 + strlen(header)) + 2147483657L, SEEK_SET) == 0 && fputs("\x05xyz", h) >= 0);
    CHECK(fclose(h) == 0);
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    if (f.n == 2) {
        CHECK(f.entry[0].bytes == 2147483658u && !memcmp(f.entry[1].view.data, "xyz", 3));
        CHECK(((unsigned char *)f.entry[0].view.data)[2147483657] == 5);
    }
    tr_st_close(ctx, &f);
    CHECK(truncate(FILE_TMP, 2000000000) == 0);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "truncated 2147483810 2000000000 \"b\"", tr_st_open(ctx, &f, FILE_TMP, 0));
    remove(FILE_TMP);
    tr_ctx_free(ctx);
#endif
}

/* Headers of every length modulo 8, so that F64 lies at every offset: read through its pointer. */
static void alignment(void)
{
    tr_ctx *ctx = test_ctx();
    tr_st f;
    char b[300];
    empty_dir();
    for (int pad = 0; pad < 8; pad++) {
        snprintf(b, sizeof b, "{" T("a", "F64", "[2]", 0, 16) "," T("c", "U8", "[3]", 16, 19) ","
                 T("d", "BF16", "[2]", 19, 23) "}%*s", pad, "");
        put_st(FILE_TMP, b, 23);
        CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
        if (f.n != 3) break;
        list(&f, b, sizeof b);
        for (int64_t i = 0; i < 3; i++) {
            const tr_st_entry *e = &f.entry[i];
            CHECK((uintptr_t)e->view.data % (unsigned)(tr_dtype_get(e->view.dtype)->bits / 8) == 0);
        }
        int odd = (int)(f.data_at % 8);
        CHECK(f.copied == (odd ? 16u : 0u) + (odd % 2 == 0 ? 4u : 0u));     /* d begins at 19 */
        tr_st_close(ctx, &f);
    }
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void many(void)
{
    enum { N = 20000 };
    tr_ctx *ctx = test_ctx();
    tr_st f;
    char *b = (char *)malloc(N * 100u), name[40], *p = b + 8;
    uint64_t n;
    empty_dir();
    *p++ = '{';
    for (int i = 0; i < N; i++) {
        int k = (int)((int64_t)i * 7919 % N);
        p += sprintf(p, "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "",
                     k, k, k + 1);
    }
    *p++ = '}';
    n = (uint64_t)(p - b - 8);
    for (int k = 0; k < 8; k++) b[k] = (char)(n >> 8 * k & 0xff);
    for (int i = 0; i < N; i++) *p++ = (char)(i % 100);
    put_file(FILE_TMP, b, (size_t)(p - b));
    free(b);
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(f.n == N);
    for (int64_t i = 0; i < f.n; i++) {
        snprintf(name, sizeof name, "t.%d", (int)i);
        const tr_st_entry *e = tr_st_find(&f, name);
        CHECK(e == &f.entry[i] && !strcmp(e->name, name) && *(char *)e->view.data == (char)(i % 100));
        CHECK(i == 0 || strcmp(f.by_name[i - 1]->name, f.by_name[i]->name) < 0);
    }
    CHECK(!tr_st_find(&f, "t.20000") && !tr_st_find(&f, "") && !tr_st_find(&f, "zz"));
    tr_st_close(ctx, &f);
    tr_ctx_free(ctx);
}

static void metadata(void)
{
    tr_ctx *ctx = test_ctx();
    tr_st f;
    empty_dir();
    put_st(FILE_TMP, "{" T("a", "U8", "[1]", 0, 1) ",\"__metadata__\":{\"format\":\"pt\",\"k\":\"a\\nb\"}}", 1);
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(f.n == 1 && tr_st_meta(&f, "format") && !strcmp(tr_st_meta(&f, "format"), "pt"));
    CHECK(!strcmp(tr_st_meta(&f, "k"), "a\nb") && !tr_st_meta(&f, "a") && !tr_st_meta(&f, "dtype"));
    tr_st_close(ctx, &f);
    put_st(FILE_TMP, "{" T("a", "U8", "[1]", 0, 1) "}", 1);
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(!tr_st_meta(&f, "format"));
    tr_st_close(ctx, &f);
    tr_ctx_free(ctx);
}

/* ---- folders ----
 *
 * A folder in one string: FILE=a,b,... separated by blanks; each letter is a U8 [4] tensor, and
 * .safetensors is added to the name. FILE! is the same cut short by two bytes, FILE+ has two bytes
 * too many, FILE? is a symbolic link to nothing. */

static void put_folder(const char *files, const char *index)
{
    char path[300], header[1000];
    empty_dir();
    while (*files) {
        size_t k = strcspn(files, "=!+?"), n = 1, data = 0;
        char mode = files[k];
        snprintf(path, sizeof path, "%s/%.*s.safetensors", DIR_TMP, (int)k, files);
        strcpy(header, "{");
        for (files += k + 1; *files && *files != ' '; files += files[1] == ',' ? 2 : 1, data += 4)
            n += (size_t)snprintf(header + n, sizeof header - n,
                                  "%s\"%c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}",
                                  data ? "," : "", *files, (int)data, (int)data + 4);
        strcpy(header + n, "}");
        if (mode == '?') CHECK(symlink("gone", path) == 0);
        else put_st(path, header, mode == '!' ? data - 2 : mode == '+' ? data + 2 : data);
        files += strspn(files, " ");
    }
    if (index) put_file(DIR_TMP "/model.safetensors.index.json", index, strlen(index));
}

#define M1 "model-00001-of-00002.safetensors"
#define M2 "model-00002-of-00002.safetensors"
#define MAP(m) "{\"metadata\":{\"total_size\":12},\"weight_map\":{" m "}}"
#define ABC MAP("\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"")
#define TWO "model-00001-of-00002=a,b model-00002-of-00002=c"

typedef struct folder_row {
    const char *files, *index;
    tr_status   status;         /* TR_OK: want is "a0 b0 c1": each tensor and the file it is in */
    const char *want;
    const char *warning;        /* words, or "" for none */
    int         lenient;
} folder_row;

static const folder_row folders[] = {
    /* by index */
    { TWO, ABC, TR_OK, "a0 b0 c1", "", 0 },
    { "one=a other=b x=c", "{\"weight_map\":{\"b\":\"other.safetensors\",\"a\":\"one.safetensors\"}}",
      TR_OK, "a0 b1", "1 x.safetensors not read", 0 },
    { "model-00001-of-00002=a,b model-00002-of-00002=c model-00003-of-00003=a,b,c z=c", ABC, TR_OK,
      "a0 b0 c1", "2 model-00003-of-00003.safetensors z.safetensors", 0 },
    { TWO " model=a,b,c", ABC, TR_OK, "a0 b0 c1", " model.safetensors", 0 },
    { TWO, "{\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}", TR_OK, "a0 b0 c1", "", 0 },
    { TWO, "{\"metadata\":{},\"x\":1,\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_OK, "a0 b0 c1", "\"x\" not used", 0 },
    { TWO, "{\"metadata\":{\"total_size\":12.0},\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_OK, "a0 b0 c1", "", 0 },
    { TWO, "{\"metadata\":{\"total_size\":13},\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_ERR_FORMAT, "index.json:1: total_size 13 12", "", 0 },
    { TWO, "{\"metadata\":{\"total_size\":13},\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_OK, "a0 b0 c1", "total_size 13 12", 1 },
    { TWO, "{\"metadata\":{\"total_size\":\"12\"},\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_ERR_FORMAT, "total_size \"12\" number", "", 1 },
    { TWO, "{\"metadata\":5,\"weight_map\":{\"a\":\"" M1 "\",\"c\":\"" M2 "\",\"b\":\"" M1 "\"}}",
      TR_ERR_FORMAT, "metadata number", "", 1 },
    /* shards that are not there, or not whole */
    { "model-00001-of-00002=a,b", ABC, TR_ERR_MISSING, DIR_TMP ": 1 of 2 " M2 " missing", "", 0 },
    { "model-00002-of-00002=c", ABC, TR_ERR_MISSING, "1 of 2 shards " M1, "", 1 },
    { "other=c", ABC, TR_ERR_MISSING, "0 of 2 " M1 " others", "", 1 },
    { "", ABC, TR_ERR_MISSING, "0 of 2", "", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002!c", ABC, TR_ERR_FORMAT, M2 ": truncated 65 63", "", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002+c", ABC, TR_ERR_FORMAT, M2 ": 2 trailing", "", 0 },
    { "model-00001-of-00002=a,b model-00002-of-00002+c", ABC, TR_OK, "a0 b0 c1", M2 " 2 trailing", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002?", ABC, TR_ERR_IO, M2 ": No such file", "", 1 },
    /* index and shards that disagree */
    { "model-00001-of-00002=a model-00002-of-00002=c", ABC, TR_ERR_MISSING, M1 ": \"b\" not index", "", 1 },
    { "model-00001-of-00002=b model-00002-of-00002=c", ABC, TR_ERR_MISSING, M1 ": \"a\" not index", "", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002=d", ABC, TR_ERR_MISSING, M2 ": \"c\" not", "", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002=c,d", ABC, TR_ERR_FORMAT, M2 ": \"d\" not know", "", 1 },
    { "model-00001-of-00002=a,b,d model-00002-of-00002=c", ABC, TR_ERR_FORMAT, M1 ": \"d\" not know", "", 1 },
    { "model-00001-of-00002=A,a,b model-00002-of-00002=c", ABC, TR_ERR_FORMAT, M1 ": \"A\" not know", "", 1 },
    { "model-00001-of-00002=a,b,c model-00002-of-00002=c", ABC, TR_ERR_FORMAT, M1 ": \"c\" puts into " M2, "", 1 },
    { "model-00001-of-00002=a,b,c model-00002-of-00002=d", ABC, TR_ERR_FORMAT, M1 ": \"c\" puts " M2, "", 1 },
    /* the index itself */
    { TWO, "{", TR_ERR_FORMAT, "model.safetensors.index.json:1: ends", "", 1 },
    { TWO, "", TR_ERR_FORMAT, "index.json: empty", "", 1 },
    { TWO, "[]", TR_ERR_FORMAT, "index.json: weight_map missing", "", 1 },
    { TWO, "{}", TR_ERR_FORMAT, "weight_map missing", "", 1 },
    { TWO, "{\"weight_map\":{}}", TR_ERR_FORMAT, "weight_map empty", "", 1 },
    { TWO, "{\"weight_map\":[]}", TR_ERR_FORMAT, "weight_map no object", "", 1 },
    { TWO, MAP("\"a\":1"), TR_ERR_FORMAT, "index.json:1: a: \"1\" name", "", 1 },
    { TWO, MAP("\"a\":null"), TR_ERR_FORMAT, "a: \"null\"", "", 1 },
    { TWO, MAP("\"a\":[\"" M1 "\"]"), TR_ERR_FORMAT, "a: name", "", 1 },
    { TWO, MAP("\"a\":\"" M1 "\",\"a\":\"" M2 "\""), TR_ERR_FORMAT, "a: twice", "", 1 },
    { TWO, MAP("\"a\":\"/etc/x.safetensors\""), TR_ERR_FORMAT, "a: \"/etc/x.safetensors\" beside", "", 1 },
    { TWO, MAP("\"a\":\"../st/" M1 "\""), TR_ERR_FORMAT, "a: \"../st", "", 1 },
    { TWO, MAP("\"a\":\"./" M1 "\""), TR_ERR_FORMAT, "beside", "", 1 },
    { TWO, MAP("\"a\":\"sub/" M1 "\""), TR_ERR_FORMAT, "beside", "", 1 },
    { TWO, MAP("\"a\":\"sub\\\\x.safetensors\""), TR_ERR_FORMAT, "beside", "", 1 },
    { TWO, MAP("\"a\":\"C:x.safetensors\""), TR_ERR_FORMAT, "beside", "", 1 },
    { TWO, MAP("\"a\":\"..safetensors\""), TR_ERR_FORMAT, "beside", "", 1 },
    { TWO, MAP("\"a\":\"x\\n.safetensors\""), TR_ERR_FORMAT, "x?.safetensors", "", 1 },
    { TWO, MAP("\"a\":\"\""), TR_ERR_FORMAT, "a: \"\"", "", 1 },
    { TWO, MAP("\"a\":\"model.bin\""), TR_ERR_FORMAT, "\"model.bin\"", "", 1 },
    /* without an index */
    { "model=c,a,b", NULL, TR_OK, "a0 b0 c0", "", 0 },
    { "model=c,a model-00001-of-00001=a x=q", NULL, TR_OK, "a0 c0", "2 model-00001-of-00001 x.safetensors", 0 },
    { "model!a", NULL, TR_ERR_FORMAT, "model.safetensors: truncated", "", 0 },
    { "model?", NULL, TR_ERR_IO, "model.safetensors: No such file", "", 0 },
    { TWO, NULL, TR_OK, "a0 b0 c1", "", 0 },
    { "model-00001-of-00001=a", NULL, TR_OK, "a0", "", 0 },
    { "model-00002-of-000002=a model-00001-of-000002=b", NULL, TR_OK, "a1 b0", "", 0 },
    { "model-000001-of-000002=a model-000002-of-000002=b", NULL, TR_OK, "a0 b1", "", 0 },
    { "model-00002-of-00002=a model-000001-of-00002=b", NULL, TR_OK, "a1 b0", "", 0 },
    { TWO " x=a model-1-of-2=a model-00001-of-00002-copy=a xmodel-00001-of-00002=a model-00001-of-0000002=a", NULL,
      TR_OK, "a0 b0 c1", "5 x.safetensors model-1-of-2 copy xmodel 0000002", 0 },
    { "model-00001-of-00003=a model-00003-of-00003=b", NULL, TR_ERR_MISSING, "2 of 3 model-00002-of-00003.safetensors missing", "", 0 },
    { "model-000003-of-000004=a", NULL, TR_ERR_MISSING, "1 of 4 model-000001-of-000004.safetensors others", "", 0 },
    { "model-00002-of-000002=a", NULL, TR_ERR_MISSING, "1 of 2 model-00001-of-000002.safetensors", "", 0 },
    { TWO " model-00001-of-00003=d", NULL, TR_ERR_FORMAT, DIR_TMP ": model-00001-of-00002 model-00001-of-00003 different", "", 0 },
    { "model-00000-of-00001=a model-00001-of-00001=b", NULL, TR_ERR_FORMAT, "model-00000-of-00001 0 of 1", "", 0 },
    { "model-00003-of-00002=a", NULL, TR_ERR_FORMAT, "number 3 of 2", "", 0 },
    { "model-00001-of-00000=a", NULL, TR_ERR_FORMAT, "number 1 of 0", "", 0 },
    { "model-00001-of-00001=a model-000001-of-00001=b", NULL, TR_ERR_FORMAT, "model-00001-of-00001 model-000001-of-00001 same", "", 0 },
    { "model-00001-of-00001=a model-00001-of-000001=b", NULL, TR_ERR_FORMAT, "same", "", 0 },
    { "model-00001-of-00002=a,b model-00002-of-00002=b", NULL, TR_ERR_FORMAT, "\"b\" " M1 " " M2, "", 1 },
    { "model-00001-of-00002=a,b model-00002-of-00002!c", NULL, TR_ERR_FORMAT, M2 ": truncated", "", 1 },
    { "x=a", NULL, TR_ERR_MISSING, DIR_TMP ": model.safetensors", "", 0 },
    { "", NULL, TR_ERR_MISSING, "no model.safetensors.index.json model.safetensors model-*-of-*", "", 0 },
};

static void shards(void)
{
    tr_ctx *ctx = test_ctx();
    tr_shards s, none;
    char b[200];
    memset(&none, 0, sizeof none);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const folder_row *r = &folders[i];
        int before = test_bad;
        put_folder(r->files, r->index);
        memset(&s, 1, sizeof s);
        test_log[0] = 0;
        if (r->status != TR_OK) {
            CHECK_FAILS(ctx, r->status, r->want, tr_shards_open(ctx, &s, DIR_TMP, r->lenient));
            CHECK_BITS(&s, &none, sizeof s);
            CHECK(tr_ctx_bytes(ctx) == 0);
        } else {
            size_t n = 0;
            CHECK_OK(ctx, tr_shards_open(ctx, &s, DIR_TMP, r->lenient));
            b[0] = 0;
            for (int64_t k = 0; k < s.n; k++) {
                n += (size_t)snprintf(b + n, sizeof b - n, "%s%s%d", k ? " " : "", s.entry[k]->name,
                                      (int)s.entry[k]->file);
                CHECK(tr_shards_find(&s, s.entry[k]->name) == s.entry[k]);
                CHECK(tr_st_find(&s.file[s.entry[k]->file], s.entry[k]->name) == s.entry[k]);
            }
            CHECK(!strcmp(b, r->want));
            CHECK(s.bytes == 4 * (size_t)s.n && !strcmp(s.dir, DIR_TMP));
            CHECK(!tr_shards_find(&s, "") && !tr_shards_find(&s, "zz"));
            CHECK(has(test_log, r->warning) && (r->warning[0] || !test_log[0]));
            tr_shards_close(ctx, &s);
            tr_shards_close(ctx, &s);
        }
        CHECK(tr_ctx_bytes(ctx) == 0);
        if (test_bad > before) printf("  in row %d: %s\n  %s\n  %s\n", (int)i, r->files, r->index, test_log);
    }
    put_folder("model-00001-of-00002=a", NULL);
    CHECK(tr_shards_open(ctx, &s, DIR_TMP, 0) == TR_ERR_MISSING && !strstr(tr_err_last(ctx), "others"));
    empty_dir();
    CHECK_FAILS(ctx, TR_ERR_IO, DIR_TMP "/none: No such file", tr_shards_open(ctx, &s, DIR_TMP "/none", 0));
    CHECK_FAILS(ctx, TR_ERR_IO, "test.h: Not a directory", tr_shards_open(ctx, &s, "tests/test.h", 0));
    CHECK(mkdir(DIR_TMP "/model.safetensors", 0777) == 0);
    CHECK_FAILS(ctx, TR_ERR_IO, "model.safetensors: folder", tr_shards_open(ctx, &s, DIR_TMP, 0));
    CHECK(symlink("gone", DIR_TMP "/model.safetensors.index.json") == 0);   /* there, but not to be read */
    CHECK_FAILS(ctx, TR_ERR_IO, "index.json: No such file", tr_shards_open(ctx, &s, DIR_TMP, 0));
    empty_dir();
    tr_ctx_free(ctx);
}

/* A checkpoint that we did not make: counts and hashes come from Python's json, struct, hashlib. */
static void released(void)
{
    static const char *const want[][2] = {
        { "language_model.lm_head.weight",
          "7520c73ea7a28913ec73e9fea0d6040a817d805248dad465b22397e9f7be79fd" },
        { "language_model.model.layers.0.self_attn.A_log",
          "3b196f3e713d7a9b876259a40c50dc3f6cbc6899d1ab784259b4e67466ba1e00" },
        { "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight_packed",
          "072e1ba17868faf56e66206930143101c2ccbb37ecebde905cd4ba8209abbf42" },
    };
    tr_ctx *ctx = test_ctx();
    tr_shards s;
    char dir[300], hex[65], v[96];
    snprintf(dir, sizeof dir, "%s/kimi_k3/text-a", cases);
    CHECK_OK(ctx, tr_shards_open(ctx, &s, dir, 0));
    CHECK(s.n == 828 && s.bytes == 3040768 && s.files == 12);
    for (size_t i = 0; i < 3 && s.n; i++) {
        const tr_st_entry *e = tr_shards_find(&s, want[i][0]);
        CHECK(e != NULL);
        if (!e) continue;
        tr_view_sha256(e->view, hex);
        CHECK(!strcmp(hex, want[i][1]));
        if (i == 2) CHECK(!strcmp(tr_view_str(e->view, v), "U8 [64, 48]"));
    }
    if (s.n) CHECK(!strcmp(tr_st_meta(&s.file[0], "format"), "pt") && s.file[0].copied == 0);
    CHECK(!strstr(test_log, "model-"));         /* expected.safetensors is named, no shard is */
    tr_shards_close(ctx, &s);
    tr_ctx_free(ctx);
}

/* ---- writing ---- */

static float  w_f32[6] = { 1, 2, 3, 4, 5, 6 };
static double w_f64[2] = { 0.5, -0.25 };
static unsigned char w_u8[5] = { 9, 8, 7, 6, 5 };

static void writes(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"a \\\"q\\\"\":\"x\\u000ay\\\\\",\"b\":\"\"},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"\xc3\xa9/\\\"\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[24,29]},"
        "\"e\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[29,29]},"
        "\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[29,37]},"
        "\"p\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[37,39]}}";
    tr_ctx *ctx = test_ctx();
    tr_st_meta_item meta[2] = { { "a \"q\"", "x\ny\\" }, { "b", "" } };
    tr_st_item item[5];
    int64_t empty[2] = { 0, 7 };
    unsigned char b[1000], want[1000];
    size_t n = sizeof header - 1, pad = (8 - n % 8) % 8;
    tr_st f;
    item[0].name = "f"; item[0].view = tr_view2(w_f32, TR_F32, 2, 3);
    item[1].name = "\xc3\xa9/\""; item[1].view = tr_view1(w_u8, TR_U8, 5);
    item[2].name = "e"; item[2].view = tr_view_of(NULL, TR_BF16, 2, empty);
    item[3].name = "s"; item[3].view = tr_view_of(w_f64, TR_F64, 0, NULL);
    item[4].name = "p"; item[4].view = tr_view2(w_u8, TR_F4E2M1, 2, 2);
    empty_dir();
    put_file(FILE_TMP ".part", "another's", 9);         /* who writes at the same time */
    CHECK_OK(ctx, tr_st_write(ctx, FILE_TMP, item, 5, meta, 2));
    CHECK(get_file(FILE_TMP ".part", b, sizeof b) == 9 && !memcmp(b, "another's", 9));
    CHECK(access(FILE_TMP ".part2", F_OK) != 0 && remove(FILE_TMP ".part") == 0);
    memset(want, 0, 8);
    want[0] = (unsigned char)((n + pad) & 255);
    want[1] = (unsigned char)((n + pad) >> 8);
    memcpy(want + 8, header, n);
    memset(want + 8 + n, ' ', pad);
    n += 8 + pad;
    memcpy(want + n, w_f32, 24);
    memcpy(want + n + 24, w_u8, 5);
    memcpy(want + n + 29, w_f64, 8);
    memcpy(want + n + 37, w_u8, 2);
    CHECK(n % 8 == 0 && get_file(FILE_TMP, b, sizeof b) == n + 39);
    CHECK_BITS(b, want, n + 39);
    CHECK(access(FILE_TMP ".part", F_OK) != 0 && access(FILE_TMP ".old", F_OK) != 0);
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(f.n == 5 && !strcmp(tr_st_meta(&f, "a \"q\""), "x\ny\\") && !strcmp(tr_st_meta(&f, "b"), ""));
    if (tr_st_find(&f, "s")) CHECK(*tr_view_f64(tr_st_find(&f, "s")->view) == 0.5);
    tr_st_close(ctx, &f);
    /* over an old file, without tensors, without metadata */
    CHECK_OK(ctx, tr_st_write(ctx, FILE_TMP, NULL, 0, NULL, 0));
    CHECK(get_file(FILE_TMP, b, sizeof b) == 16 && !memcmp(b, "\x08\0\0\0\0\0\0\0{}      ", 16));
    CHECK_OK(ctx, tr_st_write(ctx, FILE_TMP, NULL, 0, meta, 1));
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(f.n == 0 && tr_st_meta(&f, "a \"q\""));
    tr_st_close(ctx, &f);
    CHECK_OK(ctx, tr_st_write(ctx, FILE_TMP, item, 1, NULL, 0));
    CHECK_OK(ctx, tr_st_open(ctx, &f, FILE_TMP, 0));
    CHECK(f.n == 1 && f.data_at % 8 == 0);
    if (f.n) CHECK_BITS(f.entry->view.data, w_f32, 24);
    tr_st_close(ctx, &f);
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* What cannot be written is refused before anything is touched. */
static void write_refuses(void)
{
    tr_ctx *ctx = test_ctx();
    tr_st_meta_item meta[2] = { { "k", "1" }, { "k", "2" } }, latin[1] = { { "k", "\xe9" } };
    tr_st_item item[2], x;
    int64_t big[3] = { 4294967296, 4294967296, 1 };
    char b[16];
    item[0].name = "a"; item[0].view = tr_view1(w_f32, TR_F32, 6);
    item[1].name = "b"; item[1].view = tr_view1(w_u8, TR_U8, 5);
    x = item[0];
    empty_dir();
    put_file(FILE_TMP, "old", 3);
    x.view = tr_view_at(tr_view_slice(tr_view2(w_f32, TR_F32, 3, 2), 1, 0, 1), 0);
    CHECK_OK(ctx, tr_st_write(ctx, DIR_TMP "/b.safetensors", &x, 1, NULL, 0));
    x.view = tr_view_slice(tr_view2(w_f32, TR_F32, 3, 2), 1, 0, 1);
    CHECK_FAILS(ctx, TR_ERR_ARG, "a.safetensors: \"a\": contiguous", tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0));
    x.view = tr_view1(NULL, TR_F32, 3);
    CHECK_FAILS(ctx, TR_ERR_ARG, "\"a\": data", tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0));
    x.view = tr_view_none();
    CHECK_FAILS(ctx, TR_ERR_ARG, "\"a\": absent", tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0));
    x.view = tr_view1(w_u8, TR_F4E2M1, 3);
    CHECK_FAILS(ctx, TR_ERR_SHAPE, "\"a\": 3 fill", tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0));
    x.view = tr_view1(w_u8, TR_DTYPE_COUNT, 1);
    CHECK_FAILS(ctx, TR_ERR_DTYPE, "\"a\": type", tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0));
    x.view = tr_view1(w_u8, TR_U8, 1);
    memcpy(x.view.shape, big, sizeof big);
    x.view.rank = 3;
    x.view.stride[1] = x.view.stride[2] = 1;
    x.view.stride[0] = big[1];
    CHECK(tr_st_write(ctx, FILE_TMP, &x, 1, NULL, 0) == TR_ERR_RANGE);
    item[1].name = "a";
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "a.safetensors: a: twice", tr_st_write(ctx, FILE_TMP, item, 2, NULL, 0));
    item[1].name = "x\ty";
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "\"x?y\": control", tr_st_write(ctx, FILE_TMP, item, 2, NULL, 0));
    item[1].name = "\xff";
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "0xff UTF-8", tr_st_write(ctx, FILE_TMP, item, 2, NULL, 0));
    item[1].name = "__metadata__";
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "__metadata__", tr_st_write(ctx, FILE_TMP, item, 2, NULL, 0));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "__metadata__", tr_st_write(ctx, FILE_TMP, item, 2, meta, 1));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "k: twice", tr_st_write(ctx, FILE_TMP, item, 1, meta, 2));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "k: 0xe9", tr_st_write(ctx, FILE_TMP, item, 1, latin, 1));
    CHECK(get_file(FILE_TMP, b, sizeof b) == 3 && !memcmp(b, "old", 3));
    CHECK(access(FILE_TMP ".part", F_OK) != 0);
    CHECK_FAILS(ctx, TR_ERR_IO, "/dev/null: regular", tr_st_write(ctx, "/dev/null", item, 1, NULL, 0));
    CHECK_FAILS(ctx, TR_ERR_IO, DIR_TMP ": regular", tr_st_write(ctx, DIR_TMP, item, 1, NULL, 0));
    CHECK_FAILS(ctx, TR_ERR_IO, DIR_TMP "/none/x No such file",
                tr_st_write(ctx, DIR_TMP "/none/x", item, 1, NULL, 0));
    for (int k = 1; k <= 9; k++) {
        char part[64];
        snprintf(part, sizeof part, k == 1 ? "%s.part" : "%s.part%d", FILE_TMP, k);
        CHECK(mkdir(part, 0777) == 0);
    }
    CHECK_FAILS(ctx, TR_ERR_IO, "a.safetensors.part9 exists", tr_st_write(ctx, FILE_TMP, item, 1, NULL, 0));
    CHECK(get_file(FILE_TMP, b, sizeof b) == 3);
    empty_dir();
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* In a child with little room or no permission: the old file stays, and nothing else. */
static void child_write(const char *path, size_t bytes, const char *words, int (*prepare)(void))
{
    char b[16], part[300], *big = (char *)malloc(bytes);
    int status = -1;
    pid_t pid;
    memset(big, 1, bytes);
    snprintf(part, sizeof part, "%s.part", path);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        tr_ctx *ctx = test_ctx();
        tr_st_item item;
        item.name = "big";
        item.view = tr_view1(big, TR_U8, (int64_t)bytes);
        if (prepare()) _exit(9);
        test_bad = 0;
        CHECK_FAILS(ctx, TR_ERR_IO, words, tr_st_write(ctx, path, &item, 1, NULL, 0));
        CHECK(tr_ctx_bytes(ctx) == 0);
        fflush(stdout);
        _exit(test_bad ? 1 : 0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(get_file(path, b, sizeof b) == 3 && !memcmp(b, "old", 3));
    CHECK(access(part, F_OK) != 0);
    free(big);
}

static int limit_files(void)            /* no file may grow beyond 64 bytes */
{
    struct rlimit r;
    r.rlim_cur = r.rlim_max = 64;
    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &r);
}

static int no_permission(void)
{
    return chmod(DIR_TMP, 0555) || (geteuid() == 0 && seteuid(65534));
}

static int nothing(void) { return 0; }

static void no_room(void)
{
    empty_dir();
    put_file(FILE_TMP, "old", 3);
    child_write(FILE_TMP, 10, "a.safetensors: written File", limit_files);         /* seen by fclose */
    child_write(FILE_TMP, 1 << 20, "a.safetensors: written File", limit_files);    /* seen by fwrite */
    child_write(FILE_TMP, 10, "a.safetensors.part: written denied", no_permission);
    chmod(DIR_TMP, 0777);
    empty_dir();
    if (mkdir(DIR_TMP "/disk", 0777) == 0 && mount("none", DIR_TMP "/disk", "tmpfs", 0, "size=64k") == 0) {
        put_file(DIR_TMP "/disk/a", "old", 3);
        child_write(DIR_TMP "/disk/a", 1 << 20, "disk/a: written No space", nothing);
        CHECK(umount(DIR_TMP "/disk") == 0);
    } else printf("  (no tmpfs can be mounted here: a full disk was tried by a file size limit only)\n");
    empty_dir();
}

/* ---- allocation failures ---- */

static tr_status sweep_st(tr_ctx *ctx, void *user)
{
    tr_st f;
    tr_status s = tr_st_open(ctx, &f, (const char *)user, 0);
    if (s == TR_OK) tr_st_close(ctx, &f);
    return s;
}

static tr_status sweep_shards(tr_ctx *ctx, void *user)
{
    tr_shards d;
    tr_status s = tr_shards_open(ctx, &d, (const char *)user, 0);
    if (s == TR_OK) tr_shards_close(ctx, &d);
    return s;
}

static tr_status sweep_write(tr_ctx *ctx, void *user)
{
    tr_st_item item;
    tr_st_meta_item meta = { "k", "v" };
    item.name = "a";
    item.view = tr_view1(w_f32, TR_F32, 6);
    return tr_st_write(ctx, (const char *)user, &item, 1, &meta, 1);
}

static void allocations(void)
{
    char path[] = FILE_TMP, dir[] = DIR_TMP;
    empty_dir();
    put_st(FILE_TMP, "{" T("a", "F64", "[2]", 0, 16) ",\"__metadata__\":{}}  ", 16);    /* is copied */
    CHECK(test_sweep(sweep_st, path) >= 7);
    put_folder(TWO " x=a", ABC);
    CHECK(test_sweep(sweep_shards, dir) >= 30);
    put_folder(TWO " x=a", NULL);
    CHECK(test_sweep(sweep_shards, dir) >= 25);
    put_folder("model=a", NULL);
    CHECK(test_sweep(sweep_shards, dir) >= 12);
    put_file(FILE_TMP, "old", 3);
    CHECK(test_sweep(sweep_write, path) >= 8);
    CHECK(access(FILE_TMP ".part", F_OK) != 0);
    empty_dir();
}

/* ---- SHA-256 ---- */

static const char *sha(const void *p, size_t n, size_t piece)
{
    static char hex[65];
    tr_sha256 s;
    tr_sha256_init(&s);
    for (size_t at = 0; at < n; at += piece)
        tr_sha256_update(&s, (const char *)p + at, n - at < piece ? n - at : piece);
    tr_sha256_hex(&s, hex);
    return hex;
}

static void sha256(void)
{
    static const struct { size_t n; const char *hex; } row[] = {   /* bytes 3, 10, 17, ..; hashlib */
        { 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { 3, "6ab0dba1f4f1dfbb37b4f9eeb092c09fca4900ad32bdcd147d8dde35d6c87c35" },
        { 55, "e7313d333c272e639f790978283f9eb392e843d0f29b7016828bb1daa4aac70b" },
        { 56, "4324d65f3c103567f5589c710bc08f8523f929a9272e3af36fc968e52abc6c27" },
        { 57, "35df609437dcfea3279283ab79fd554e2bf78f8f7ae2de532d8ee300b09e8f73" },
        { 63, "81c80242132f230c3bd41b3e63bbcff16107339549214a99614ff26664625055" },
        { 64, "39e3d7b6b5d075d37d053ad89b24b41bef4f3c29760c84447cab3f3be1882241" },
        { 65, "aacca6ff74fdbb296d165a45cecfa04e5127bc008770fbbdd48006f2d2fae95e" },
        { 119, "9ce7368e4daf32341631b492e80359dc9f594b48453cd0dd5bf0b19279cc177e" },
        { 120, "7836b787757e95e58b3ca5aec90b1b004e8deba1e50e9675af9cabf1a13a04b5" },
        { 127, "a8d23e75d936f303d248888d9b165ee543f4cbafcad3c9dd2a79bd84faa11d07" },
        { 128, "d2742f1f4ac6bb7ca2b239ee18402ba8b3f9f8e652d2a72973c2b9ba11c08cf6" },
        { 1000, "1e9bc38cbf860b9ec31918b065f9b52476c549a782e0e7990bed8ce3868d2371" },
    };
    static const char nist[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    unsigned char b[1000];
    char *a = (char *)malloc(1000000);
    for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(i * 7 + 3);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (size_t piece = 1; piece < 1001; piece += 37) CHECK(!strcmp(sha(b, row[i].n, piece), row[i].hex));
    CHECK(!strcmp(sha("abc", 3, 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK(!strcmp(sha(nist, 56, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    memset(a, 'a', 1000000);
    CHECK(!strcmp(sha(a, 1000000, 999), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    free(a);
}

/* NaNs of any sign and payload hash as one; infinities, integers and other bits as they are. */
static void view_sha256(void)
{
    uint64_t f64[6] = { 0x7ff8000000000000, 0xfff8000000000000, 0x7ff0000000000001, 0xffffffffffffffff,
                        0x7ff0000000000000, 0xfff0000000000000 };
    uint32_t f32[6] = { 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff, 0x7f800000, 0xff800000 };
    uint16_t bf16[6] = { 0x7fc0, 0xffc0, 0x7f81, 0xffff, 0x7f80, 0xff80 };
    uint16_t f16[6] = { 0x7e00, 0xfe00, 0x7c01, 0xffff, 0x7c00, 0xfc00 };
    struct { tr_dtype t; void *p; size_t size; } row[4];
    unsigned char canonical[48];
    char hex[65];
    row[0].t = TR_F64;  row[0].p = f64;  row[0].size = 8;
    row[1].t = TR_F32;  row[1].p = f32;  row[1].size = 4;
    row[2].t = TR_BF16; row[2].p = bf16; row[2].size = 2;
    row[3].t = TR_F16;  row[3].p = f16;  row[3].size = 2;
    for (int i = 0; i < 4; i++) {
        size_t size = row[i].size;
        memcpy(canonical, row[i].p, 6 * size);
        for (size_t k = 1; k < 4; k++) memcpy(canonical + k * size, row[i].p, size);
        tr_view_sha256(tr_view2(row[i].p, row[i].t, 2, 3), hex);
        CHECK(!strcmp(hex, sha(canonical, 6 * size, 6 * size)));
        CHECK(strcmp(hex, sha(row[i].p, 6 * size, 6 * size)));
    }
    tr_view_sha256(tr_view1(f32, TR_U32, 6), hex);
    CHECK(!strcmp(hex, sha(f32, 24, 24)));
    tr_view_sha256(tr_view1(f32, TR_F4E2M1, 48), hex);
    CHECK(!strcmp(hex, sha(f32, 24, 24)));
    tr_view_sha256(tr_view1(f32, TR_F8E4M3, 24), hex);
    CHECK(!strcmp(hex, sha(f32, 24, 24)));
    tr_view_sha256(tr_view_none(), hex);
    CHECK(!strcmp(hex, sha("", 0, 1)));
    tr_view_sha256(tr_view1(NULL, TR_F32, 0), hex);
    CHECK(!strcmp(hex, sha("", 0, 1)));
    double zeros[2] = { 0.0, -0.0 };
    tr_view_sha256(tr_view1(zeros, TR_F64, 2), hex);
    CHECK(!strcmp(hex, sha(zeros, 16, 16)));
}

int main(int argc, char **argv)
{
    if (argc > 1) cases = argv[1];
    TEST(opens);
    TEST(refuses);
    TEST(lengths);
    TEST(huge);
    TEST(alignment);
    TEST(many);
    TEST(metadata);
    TEST(shards);
    TEST(released);
    TEST(writes);
    TEST(write_refuses);
    TEST(no_room);
    TEST(allocations);
    TEST(sha256);
    TEST(view_sha256);
    return test_end();
}
