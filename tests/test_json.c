/* {json}: what is accepted, what is refused and with which words, and numbers to the bit. */

#include <float.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

/* The locale decides what strtod takes for a decimal point, so it must never be shown one. */
static int test_points;
static double test_strtod(const char *s, char **end);
#define strtod test_strtod
#define TRILLION_IMPLEMENTATION
#include "test.h"
#undef strtod

static double test_strtod(const char *s, char **end)
{
    if (strpbrk(s, ".,")) test_points++;
    return strtod(s, end);
}

/* The tree as text again: strings raw between quotes, tokens as they were, no blanks. */
static char   out[1 << 16];
static size_t out_n;

static void put(const char *s)
{
    size_t n = strlen(s);
    if (out_n + n < sizeof out) { memcpy(out + out_n, s, n + 1); out_n += n; }
}

static void dump(const tr_json *j, const tr_json_node *v)
{
    int array = v->type == TR_JSON_ARRAY, n = 0;
    if (v->type == TR_JSON_STR) { put("\""); put(tr_json_str(j, v)); put("\""); return; }
    if (v->type < TR_JSON_STR) { put(tr_json_str(j, v)); return; }
    put(array ? "[" : "{");
    for (const tr_json_node *c = tr_json_first(j, v); c; c = tr_json_next(j, c)) {
        if (n++) put(",");
        if (!array) { put("\""); put(tr_json_key(j, c)); put("\":"); }
        CHECK(!array == (c->key != 0));
        dump(j, c);
    }
    CHECK(n == (int)v->count);
    put(array ? "]" : "}");
}

typedef struct row { const char *text; size_t n; const char *want; } row;
#define ROW(text, want) { text, sizeof text - 1, want }

static const row good[] = {
    ROW("{}", "{}"),
    ROW("[]", "[]"),
    ROW(" \t\r\n{ \n} \r\n", "{}"),
    ROW("null", "null"), ROW("true", "true"), ROW(" false ", "false"), ROW("-0", "-0"),
    ROW("12", "12"), ROW("\"a\"", "\"a\""), ROW("\"\"", "\"\""),
    ROW("[1,2,3]", "[1,2,3]"), ROW("[ 1 , [ ] , { } ]", "[1,[],{}]"),
    ROW("[[[[]]]]", "[[[[]]]]"),
    ROW("{\"a\":1,\"b\":[true,false,null],\"c\":{\"a\":\"x\"}}",
        "{\"a\":1,\"b\":[true,false,null],\"c\":{\"a\":\"x\"}}"),
    ROW("{\"\":1}", "{\"\":1}"),                       /* an empty key is a key */
    ROW("{\"\":{\"\":[\"\"]}, \" \":0}", "{\"\":{\"\":[\"\"]},\" \":0}"),
    ROW("[0,-0,0.0,1.5,-1.25e10,1E+2,1e-2,0e0,123456789012345678901234567890]",
        "[0,-0,0.0,1.5,-1.25e10,1E+2,1e-2,0e0,123456789012345678901234567890]"),
    ROW("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\"\\/\b\f\n\r\t\""),
    ROW("\"\\u0041\\u00e9\\u20AC\\uD83d\\uDe00\\uffff\"", "\"A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\""),
    ROW("\"\\u0001\\u001f\\u007f\\u0080\\u07ff\\u0800\"", "\"\x01\x1f\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\""),
    ROW("\"\\uD800\\uDC00\\uDBFF\\uDFFF\\uD7FF\\uE000\"",
        "\"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\""),
    ROW("\"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf\"",
        "\"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf\""),
    ROW("\"a\\u0062c\\\\u0041\"", "\"abc\\u0041\""),
    ROW("[\"\x7f\"]", "[\"\x7f\"]"),
    ROW("{\"a\\u0062\":1,\"abc\":2,\"ab \":3}", "{\"ab\":1,\"abc\":2,\"ab \":3}"),
    ROW("{\"a\":{\"x\":1},\"b\":{\"x\":1}}", "{\"a\":{\"x\":1},\"b\":{\"x\":1}}"),
    ROW("[true,\"x\",1,null]", "[true,\"x\",1,null]"),
};

static const row bad[] = {
    ROW("", "t:1: ends"),
    ROW(" \n\n ", "t:3: ends"),
    ROW("{", "t:1: ends object"), ROW("[", "t:1: ends"), ROW("[1", "t:1: before ]"),
    ROW("[1,", "ends"), ROW("{\"a\"", "t:1: a: ':'"), ROW("{\"a\":", "t:1: a: ends"),
    ROW("{\"a\":1", "before '}'"), ROW("{\"a\":1,", "ends"),
    ROW("]", "']'"), ROW("}", "'}'"), ROW("[}", "'}'"), ROW("{]", "']' key"), ROW(",", "','"),
    ROW("[1,]", "comma before ']'"), ROW("{\"a\":1,}", "comma before '}'"),
    ROW("[,1]", "','"), ROW("[1,,2]", "','"), ROW("{,}", "','"), ROW("[1 2]", "'2' ','"),
    ROW("[1}", "'}' ']'"), ROW("{\"a\":1]", "']' '}'"), ROW("[\"a\":1]", "':' ']'"),
    ROW("{\"a\" 1}", "a: ':'"), ROW("{\"a\",1}", "a: ':'"), ROW("{\"a\"::1}", "a: ':'"),
    ROW("{a:1}", "'a' key quotes"), ROW("{'a':1}", "''' key"), ROW("{1:1}", "'1' key"),
    ROW("{null:1}", "key"), ROW("{\"a\":1 \"b\":2}", "','"), ROW("{\"a\":}", "a: '}'"),
    ROW("{\"a\"}", "a: ':'"), ROW("{\"a\":1,\"b\"}", "b: ':'"),
    ROW("{}{}", "after end"), ROW("1 2", "'2' after"), ROW("[]]", "after"), ROW("null,", "after"),
    ROW("{} x", "'x' after"), ROW("[1]\n\n#", "t:3: '#' after"), ROW("\"a\"\"b\"", "after"),
    /* literals */
    ROW("tru", "'tru'"), ROW("[True]", "'True'"), ROW("[NULL]", "'NULL'"), ROW("nul", "'nul'"),
    ROW("[truee]", "'e'"), ROW("{\"a\":NaN}", "a: 'NaN'"), ROW("[Infinity]", "'Infinity'"),
    ROW("[-Infinity]", "'-Infinity'"), ROW("[nan]", "'nan'"), ROW("undefined", "'undefined'"),
    /* numbers */
    ROW("[01]", "'01'"), ROW("[-01]", "'-01'"), ROW("[00]", "'00'"), ROW("[+1]", "'+1'"),
    ROW("[1.]", "'1.'"), ROW("[.5]", "'.5'"), ROW("[-]", "'-'"), ROW("[1e]", "'1e'"),
    ROW("[1e+]", "'1e+'"), ROW("[1.e3]", "'1.e3'"), ROW("[0x10]", "'x'"), ROW("[1_000]", "'_'"),
    ROW("[1.5.5]", "'.'"), ROW("[--1]", "'--1'"), ROW("[1e5.5]", "'.'"), ROW("[- 1]", "'-'"),
    ROW("[\xef\xbc\x91]", "no value"), ROW("-", "'-'"), ROW("1e", "'1e'"), ROW("[1,-]", "'-'"),
    /* strings */
    ROW("\"", "closing quote"), ROW("\"abc", "closing quote"), ROW("{\"a", "closing quote"),
    ROW("{\"a\n\":1}", "t:1: closing quote"), ROW("[\"a\nb\"]", "closing quote"),
    ROW("[\"a\tb\"]", "0x09"), ROW("[\"\x1f\"]", "0x1f"), ROW("[\"a\0b\"]", "0x00"),
    ROW("\"\\\"", "closing quote"), ROW("\"\\", "no escape"), ROW("[\"\\x41\"]", "\\x escape"),
    ROW("[\"\\'\"]", "\\' escape"), ROW("[\"\\U0041\"]", "\\U escape"), ROW("[\"\\\n\"]", "escape"),
    ROW("[\"\\a\"]", "\\a escape"), ROW("[\"\\0\"]", "\\0 escape"), ROW("[\"\\\0\"]", "escape"),
    ROW("[\"\\u\"]", "\\u four"), ROW("[\"\\u12\"]", "four"), ROW("[\"\\u123\"]", "four"),
    ROW("[\"\\u12g4\"]", "four"), ROW("[\"\\u 123\"]", "four"), ROW("[\"\\u-123\"]", "four"),
    ROW("\"\\u123", "four"), ROW("[\"\\u0000\"]", "\\u0000"), ROW("{\"\\u0000\":1}", "\\u0000"),
    ROW("[\"\\ud800\"]", "\\ud800 half"), ROW("[\"\\udbff\"]", "\\udbff half"),
    ROW("[\"\\udc00\"]", "\\udc00 half"), ROW("[\"\\udfff\"]", "\\udfff half"),
    ROW("[\"\\ud800\\ud800\"]", "half"), ROW("[\"\\ud800x\"]", "half"),
    ROW("[\"\\ud800\\n\"]", "half"), ROW("[\"\\ud800\\ue000\"]", "half"),
    ROW("[\"\\ud800\\u\"]", "half"), ROW("[\"\\udc00\\ud800\"]", "half"), ROW("\"\\ud800", "half"),
    ROW("[\"\\ud83d\\\\ude00\"]", "half"), ROW("['a']", "''a''"), ROW("{\"k\":\"\x01\"}", "k: 0x01"),
    /* UTF-8: continuation alone, overlong, surrogates, beyond U+10FFFF, cut short */
    ROW("[\"\x80\"]", "0x80 UTF-8"), ROW("[\"\xbf\"]", "0xbf"), ROW("[\"\xc0\x80\"]", "0xc0"),
    ROW("[\"\xc1\xbf\"]", "0xc1"), ROW("[\"\xe0\x80\x80\"]", "0xe0"), ROW("[\"\xe0\x9f\xbf\"]", "0xe0"),
    ROW("[\"\xed\xa0\x80\"]", "0xed"), ROW("[\"\xed\xbf\xbf\"]", "0xed"),
    ROW("[\"\xf0\x80\x80\x80\"]", "0xf0"), ROW("[\"\xf0\x8f\xbf\xbf\"]", "0xf0"),
    ROW("[\"\xf4\x90\x80\x80\"]", "0xf4"), ROW("[\"\xf5\x80\x80\x80\"]", "0xf5"),
    ROW("[\"\xff\"]", "0xff"), ROW("[\"\xfe\"]", "0xfe"), ROW("[\"\xc3\"]", "0xc3"),
    ROW("[\"\xe2\x82\"]", "0xe2"), ROW("[\"\xf0\x9f\x98\"]", "0xf0"), ROW("\"\xf0\x9f\x98", "0xf0"),
    ROW("[\"\xc3\x28\"]", "0xc3"), ROW("{\"\xff\":1}", "0xff"),
    /* whole texts */
    ROW("\xef\xbb\xbf{}", "t:1: byte order mark"), ROW("[1]\0", "after"), ROW("\0", "'?'"),
    ROW("[\xa0]", "'?'"), ROW("[1]\x0c", "after"), ROW("\x0b[]", "'?'"), ROW("/* */{}", "'/*'"),
    ROW("[1,//\n2]", "'//'"), ROW("{\"a\":1,\n\"b\":2,\n\"c\":x}", "t:3: c: 'x'"),
    ROW("{\"a\":[1,\n{\"bb\":+}]}", "t:2: bb: '+'"), ROW("{\"a\":{\"b\":1}, x}", "t:1: 'x' key"),
    ROW("{\"a\":{\"b\":1,\"c\":[]} \"d\"}", "t:1: '\"' ','"),
    /* keys that occur twice */
    ROW("{\"a\":1,\"a\":1}", "t:1: a: twice"), ROW("{\"\":1,\"\":2}", "twice"),
    ROW("{\"a\":1,\n\"b\":2,\n\"\\u0061\":3}", "t:3: a: twice"),
    ROW("[{\"x\":{\"a\":1,\"b\":[],\"a\":{}}}]", "a: twice"),
    ROW("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1}\n{", "t:2: after"),
    ROW("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"a\":1}", "a: twice"),
    ROW("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\n\"a\":1}", "t:2: a: twice"),
    ROW("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\n\"i\":1}",
        "t:2: i: twice"),
};

static void accepts(void)
{
    tr_ctx *ctx = test_ctx();
    tr_json j;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int before = test_bad;
        CHECK_OK(ctx, tr_json_parse(ctx, &j, "t", good[i].text, good[i].n));
        if (test_bad == before) {
            out_n = 0;
            dump(&j, j.node);
            if (strcmp(out, good[i].want)) {
                test_bad++;
                printf("  %s gave %s\n", good[i].text, out);
            }
        } else printf("  in row %d: %s\n", (int)i, good[i].text);
        tr_json_free(&j);
    }
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void refuses(void)
{
    tr_ctx *ctx = test_ctx();
    tr_json j, none;
    memset(&none, 0, sizeof none);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int before = test_bad;
        memset(&j, 1, sizeof j);
        CHECK_FAILS(ctx, TR_ERR_FORMAT, bad[i].want, tr_json_parse(ctx, &j, "t", bad[i].text, bad[i].n));
        CHECK_BITS(&j, &none, sizeof j);
        if (test_bad > before) printf("  in row %d: %s\n", (int)i, bad[i].text);
    }
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

/* Every prefix of a good text but the whole is refused, and no byte behind it is read: the copy
 * handed over has nothing behind it (the sanitizer watches). */
static void prefixes(void)
{
    static const char text[] = "{\"a\":[1.5e+3,true,null,\"\\u00e9\\n\xe2\x82\xac\\ud83d\\ude00\"],\"b\":{}}";
    tr_ctx *ctx = test_ctx();
    tr_json j;
    for (size_t n = 0; n < sizeof text; n++) {
        char *copy = (char *)malloc(n + !n);
        memcpy(copy, text, n);
        if (n < sizeof text - 1) CHECK(tr_json_parse(ctx, &j, "t", copy, n) == TR_ERR_FORMAT);
        else CHECK_OK(ctx, tr_json_parse(ctx, &j, "t", copy, n));
        tr_json_free(&j);
        free(copy);
    }
    tr_ctx_free(ctx);
}

static void depth(void)
{
    enum { N = 1000000 };
    tr_ctx *ctx = test_ctx();
    tr_json j;
    char text[2 * TR_JSON_MAX_DEPTH + 2], *deep = (char *)malloc(N);
    memset(text, '[', sizeof text);
    memset(text + TR_JSON_MAX_DEPTH, ']', TR_JSON_MAX_DEPTH);
    CHECK_OK(ctx, tr_json_parse(ctx, &j, "t", text, 2 * TR_JSON_MAX_DEPTH));
    CHECK(j.n == TR_JSON_MAX_DEPTH);
    tr_json_free(&j);
    memset(text, '[', sizeof text);
    memset(text + TR_JSON_MAX_DEPTH + 1, ']', TR_JSON_MAX_DEPTH + 1);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "t:1: deeper 64",
                tr_json_parse(ctx, &j, "t", text, sizeof text));
    memset(deep, '[', N);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "deeper", tr_json_parse(ctx, &j, "t", deep, N));
    for (int i = 0; i + 5 <= N; i += 5) memcpy(deep + i, "{\"a\":", 5);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "deeper", tr_json_parse(ctx, &j, "t", deep, N));
    free(deep);
    /* side by side is not deep */
    CHECK_OK(ctx, tr_json_parse(ctx, &j, "t", "[[],[],[[]],{}]", 15));
    tr_json_free(&j);
    tr_ctx_free(ctx);
}

/* An index of half a million names: seconds would mean that names are compared pairwise. Two of
 * the names have the same 64-bit FNV-1a hash and are still two names. */
static void large(void)
{
    enum { N = 500000 };
    tr_ctx *ctx = test_ctx();
    tr_json j;
    const tr_json_node *v;
    char *text = (char *)malloc(N * 120u), *p = text;
    int64_t n = 0;
    clock_t t;
    p += sprintf(p, "{\"8yn0iYCKYHlIj4-BwPqk\":0,\"GReLUrM4wMqfg9yzV3KQ\":0");
    for (int i = 0; i < N; i++)
        p += sprintf(p, ",\n\"model.layers.%d.block_sparse_moe.experts.%d.w1.weight_packed\": \"%05d\"",
                     i * 37 % 93, i, i % 96);
    strcpy(p, "}");
    t = clock();
    CHECK_OK(ctx, tr_json_parse(ctx, &j, "t", text, strlen(text)));
    CHECK((double)(clock() - t) / CLOCKS_PER_SEC < 10);
    CHECK(j.n == N + 3 && j.node->count == N + 2);
    for (v = tr_json_first(&j, j.node); v; v = tr_json_next(&j, v)) n++;
    CHECK(n == N + 2);
    v = tr_json_get(&j, j.node, "model.layers.0.block_sparse_moe.experts.0.w1.weight_packed");
    CHECK(v && !strcmp(tr_json_str(&j, v), "00000") && v->line == 2);
    v = tr_json_get(&j, j.node, "GReLUrM4wMqfg9yzV3KQ");
    CHECK(v && v->line == 1);
    tr_json_free(&j);
    strcpy(p, ",\n\"model.layers.0.block_sparse_moe.experts.0.w1.weight_packed\":0}");
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "t:500002: experts.0.w1 twice",
                tr_json_parse(ctx, &j, "t", text, strlen(text)));
    free(text);
    tr_ctx_free(ctx);
}

/* ---- values ---- */

static tr_json one;     /* {"k": TEXT} */
static const tr_json_node *value(tr_ctx *ctx, const char *text)
{
    char b[4096];
    tr_json_free(&one);
    snprintf(b, sizeof b, "{\n\"k\": %s}", text);
    CHECK_OK(ctx, tr_json_parse(ctx, &one, "t", b, strlen(b)));
    return tr_json_get(&one, one.node, "k");
}

static void integers(void)
{
    static const struct { const char *text; int64_t want; } ok[] = {
        { "0", 0 }, { "-0", 0 }, { "7", 7 }, { "-1", -1 }, { "7168", 7168 }, { "10", 10 },
        { "9223372036854775807", INT64_MAX }, { "-9223372036854775807", -INT64_MAX },
        { "-9223372036854775808", INT64_MIN }, { "1560860324864", 1560860324864 },
    };
    static const struct { const char *text, *words; } no[] = {
        { "1.0", "t:2: k: 1.0 integer" }, { "1e3", "k: 1e3 integer" }, { "0.5", "0.5" }, { "-1.5", "-1.5" },
        { "9223372036854775808", "9223372036854775808 64 bits" }, { "-9223372036854775809", "64" },
        { "18446744073709551615", "64" }, { "99999999999999999999999999", "64" },
        { "18446744073709551616", "64" }, { "92233720368547758070", "64" },
        { "\"7\"", "t:2: k: \"7\" integer" }, { "true", "k: true integer" }, { "null", "k: null integer" },
        { "[1]", "k: array integer" }, { "{}", "k: object integer" },
        { "\"a\\u001b[31m\"", "\"a?[31m\"" },
    };
    tr_ctx *ctx = test_ctx();
    int64_t v;
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        v = 1234;
        CHECK_OK(ctx, tr_json_int(&one, value(ctx, ok[i].text), &v));
        CHECK(v == ok[i].want);
    }
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        const tr_json_node *n = value(ctx, no[i].text);
        v = 1234;
        CHECK_FAILS(ctx, TR_ERR_FORMAT, no[i].words, tr_json_int(&one, n, &v));
        CHECK(v == 0);
    }
    CHECK_FAILS(ctx, TR_ERR_MISSING, "t: missing",
                tr_json_int(&one, tr_json_get(&one, one.node, "none"), &v));
    tr_json_free(&one);
    tr_ctx_free(ctx);
}

static void check_num(tr_ctx *ctx, const char *text, double want)
{
    double v = 1234;
    CHECK_OK(ctx, tr_json_num(&one, value(ctx, text), &v));
    if (memcmp(&v, &want, sizeof v)) {
        test_bad++;
        printf("  %.60s is %a, not %a\n", text, want, v);
    }
}

static void numbers(void)
{
    static const struct { const char *text; double want; } ok[] = {
        { "0", 0 }, { "-0", -0.0 }, { "0.0", 0 }, { "-0.0e5", -0.0 }, { "1", 1 }, { "1.5", 1.5 },
        { "-12.5e3", -12500 }, { "1E+2", 100 }, { "25e-2", 0.25 }, { "0.001", 1e-3 }, { "1e-05", 1e-5 },
        { "0.000001", 1e-6 }, { "1000000.0", 1e6 }, { "100.125", 100.125 }, { "10.0", 10 },
        { "0.1", 0x1.999999999999ap-4 }, { "2.2250738585072011e-308", 0x0.fffffffffffffp-1022 },
        { "1.7976931348623157e308", 0x1.fffffffffffffp+1023 },
        { "1.7976931348623158079e308", 0x1.fffffffffffffp+1023 },   /* just under halfway to 2^1024 */
        { "4.9e-324", 0x1p-1074 }, { "2.4703282292062328e-324", 0x1p-1074 },
        { "2.4703282292062327e-324", 0 }, { "1e-400", 0 }, { "-1e-999999999999999999999", -0.0 },
        { "0e999999999999999999999", 0 }, { "0.0000e-5", 0 },
        { "9007199254740993", 9007199254740992.0 },                 /* a tie: to even */
        { "9007199254740993.0000000000000000000000000001", 9007199254740994.0 },
        { "9007199254740995", 9007199254740996.0 }, { "1e23", 0x1.52d02c7e14af6p+76 },
        { "7168", 7168 }, { "1e0000000000000000000000000000001", 10 },
    };
    static const struct { const char *text, *words; } no[] = {
        { "1e309", "t:2: k: 1e309 range" }, { "-1e309", "range" }, { "1.7976931348623159e308", "range" },
        { "1e99999999999999999999", "range" }, { "\"1.5\"", "\"1.5\" no number" }, { "true", "true number" },
        { "null", "null" }, { "[]", "array" },
    };
    tr_ctx *ctx = test_ctx();
    double v;
    test_points = 0;
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) check_num(ctx, ok[i].text, ok[i].want);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        const tr_json_node *n = value(ctx, no[i].text);
        v = 1234;
        CHECK_FAILS(ctx, TR_ERR_FORMAT, no[i].words, tr_json_num(&one, n, &v));
        CHECK(v == 0);
    }
    CHECK(test_points == 0);
    tr_json_free(&one);
    tr_ctx_free(ctx);
}

/* Any double, printed with 17 digits or all of them, comes back; a point exactly halfway between
 * two, with all its digits, goes to the even one, and with a digit 1 far behind to the upper. */
static void numbers_at_random(void)
{
    tr_ctx *ctx = test_ctx();
    char b[3000];
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t u = tr_rng_u64(1, 2, i);
        double x;
        memcpy(&x, &u, sizeof x);
        if (!isfinite(x)) continue;
        snprintf(b, sizeof b, i % 3 == 0 ? "%.17g" : i % 3 == 1 ? "%.16e" : "%.1100f", x);
        if (i % 3 < 2 || i % 7 == 2) check_num(ctx, b, x);
    }
#if LDBL_MANT_DIG >= 64
    for (int e = -1074; e < 0; e += 17) {       /* halfway between even lo and odd hi: down */
        long double lo = ldexpl(e == -1074 ? 2 : 4503599627370498, e), hi = lo + ldexpl(1, e);
        snprintf(b, sizeof b, "%.1200Lf", (lo + hi) / 2);
        check_num(ctx, b, (double)lo);
        b[strlen(b) - 1] = '1';                 /* and a little more than halfway: up */
        check_num(ctx, b, (double)hi);
    }
#endif
    {   /* 1 + 2^-53 has 54 digits: exactly halfway, then with a 1 behind 900 zeros */
        int n = snprintf(b, sizeof b, "1.00000000000000011102230246251565404236316680908203125");
        check_num(ctx, b, 1.0);
        memset(b + n, '0', 900);
        strcpy(b + n + 900, "0");
        check_num(ctx, b, 1.0);
        strcpy(b + n + 900, "1");
        check_num(ctx, b, 1 + 0x1p-52);
        strcpy(b + n + 900, "1e-2");
        check_num(ctx, b, strtod(b, NULL));
        memmove(b + 2 + 900, b + 2, strlen(b + 2) + 1);         /* 900 zeros in front count for nothing */
        memset(b + 2, '0', 900);
        b[0] = '0';
        check_num(ctx, b, strtod(b, NULL));
        memset(b, '9', 1000);
        strcpy(b + 1000, "e-990");
        check_num(ctx, b, 1e10);
    }
    CHECK(test_points == 0);
    tr_json_free(&one);
    tr_ctx_free(ctx);
}

static void booleans(void)
{
    tr_ctx *ctx = test_ctx();
    int v = 7;
    CHECK_OK(ctx, tr_json_bool(&one, value(ctx, "true"), &v));
    CHECK(v == 1);
    CHECK_OK(ctx, tr_json_bool(&one, value(ctx, "false"), &v));
    CHECK(v == 0);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "t:2: k: 1 neither", tr_json_bool(&one, value(ctx, "1"), &v));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "k: \"true\" neither", tr_json_bool(&one, value(ctx, "\"true\""), &v));
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "null", tr_json_bool(&one, value(ctx, "null"), &v));
    CHECK_FAILS(ctx, TR_ERR_MISSING, "t:", tr_json_bool(&one, NULL, &v));
    tr_json_free(&one);
    tr_ctx_free(ctx);
}

static void walking(void)
{
    static const char text[] = "{\n \"a\": [1,\n  {\"b\": \"x\"}, []],\n \"c\": -2.5\n}";
    tr_ctx *ctx = test_ctx();
    tr_json j;
    const tr_json_node *a, *c, *v;
    CHECK_OK(ctx, tr_json_parse(ctx, &j, "some name", text, sizeof text - 1));
    CHECK(!strcmp(j.name, "some name") && j.n == 7 && j.node->type == TR_JSON_OBJECT);
    CHECK(j.node->key == 0 && j.node->next == 0 && !strcmp(tr_json_key(&j, j.node), ""));
    a = tr_json_get(&j, j.node, "a");
    c = tr_json_get(&j, j.node, "c");
    CHECK(a && c && tr_json_next(&j, a) == c && !tr_json_next(&j, c));
    CHECK(a->type == TR_JSON_ARRAY && a->count == 3 && a->line == 2 && c->line == 4);
    CHECK(!tr_json_get(&j, j.node, "b") && !tr_json_get(&j, j.node, "") && !tr_json_get(&j, a, "b"));
    CHECK(!tr_json_get(&j, NULL, "a") && !tr_json_first(&j, NULL) && !tr_json_first(&j, c));
    v = tr_json_next(&j, tr_json_first(&j, a));
    CHECK(v->line == 3 && !strcmp(tr_json_str(&j, tr_json_get(&j, v, "b")), "x"));
    v = tr_json_next(&j, v);
    CHECK(v->type == TR_JSON_ARRAY && v->count == 0 && !tr_json_first(&j, v) && !tr_json_next(&j, v));
    CHECK(!strcmp(tr_json_str(&j, a), "") && !strcmp(tr_json_str(&j, c), "-2.5"));
    CHECK(!strcmp(tr_json_type_str(TR_JSON_OBJECT), "an object"));
    CHECK(!strcmp(tr_json_type_str(TR_JSON_NULL), "null"));
    tr_json_free(&j);
    tr_json_free(&j);                   /* twice is harmless */
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static void files(void)
{
    tr_ctx *ctx = test_ctx();
    tr_json j;
    FILE *f;
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    CHECK_FAILS(ctx, TR_ERR_IO, "build/tmp/none.json: No such file", tr_json_load(ctx, &j, "build/tmp/none.json"));
    CHECK_FAILS(ctx, TR_ERR_IO, "build/tmp: folder", tr_json_load(ctx, &j, "build/tmp"));
    CHECK_FAILS(ctx, TR_ERR_IO, "/dev/null: regular", tr_json_load(ctx, &j, "/dev/null"));
    CHECK_FAILS(ctx, TR_ERR_IO, "test.h/x: Not a directory", tr_json_load(ctx, &j, "tests/test.h/x"));
    f = fopen("build/tmp/a.json", "wb");
    fclose(f);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "build/tmp/a.json: empty", tr_json_load(ctx, &j, "build/tmp/a.json"));
    f = fopen("build/tmp/a.json", "wb");
    fputs("{\"a\":\n5}", f);
    fclose(f);
    CHECK_OK(ctx, tr_json_load(ctx, &j, "build/tmp/a.json"));
    CHECK(j.node->count == 1);
    tr_json_free(&j);
    f = fopen("build/tmp/a.json", "wb");
    for (int i = 0; i < 4096; i++) fputc(i < 4095 ? ' ' : '{', f);      /* ends with its page */
    fclose(f);
    CHECK_FAILS(ctx, TR_ERR_FORMAT, "build/tmp/a.json:1: ends", tr_json_load(ctx, &j, "build/tmp/a.json"));
    remove("build/tmp/a.json");
    CHECK_FAILS(ctx, TR_ERR_RANGE, "big: 4294967295 4 GiB",     /* refused before it is read */
                tr_json_parse(ctx, &j, "big", "{}", (size_t)UINT32_MAX));
    CHECK(tr_ctx_bytes(ctx) == 0);
    tr_ctx_free(ctx);
}

static tr_status sweep_parse(tr_ctx *ctx, void *user)
{
    const char *text = (const char *)user;
    tr_json j;
    tr_status s = tr_json_parse(ctx, &j, "t", text, strlen(text));
    tr_json_free(&j);
    return s;
}

static void allocations(void)
{
    char text[4000] = "{\"m\":[";
    for (int i = 0; i < 200; i++) sprintf(text + strlen(text), "%d,", i);
    strcat(text, "{}],\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1}");
    CHECK(test_sweep(sweep_parse, text) >= 8);
}

int main(void)
{
    TEST(accepts);
    TEST(refuses);
    TEST(prefixes);
    TEST(depth);
    TEST(large);
    TEST(integers);
    TEST(numbers);
    TEST(numbers_at_random);
    TEST(booleans);
    TEST(walking);
    TEST(files);
    TEST(allocations);
    return test_end();
}
