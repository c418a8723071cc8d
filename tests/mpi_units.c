/* What needs no other rank: layouts, groups, maps of experts. Run without mpirun. */
#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "../trillion_mpi.h"
#include "test.h"

static tr_config config(tr_ctx *c, int experts, int layers)
{
    const char *set[5];
    char a[64], b[64], *json;
    tr_config cfg;
    snprintf(a, sizeof a, "n_routed_experts=%d", experts);
    snprintf(b, sizeof b, "num_hidden_layers=%d", layers);
    set[0] = a;
    set[1] = b;
    set[2] = "n_group=1";
    set[3] = "topk_group=1";
    set[4] = "num_experts_per_tok=2";
    memset(&cfg, 0, sizeof cfg);
    CHECK_OK(c, tr_config_tiny(c, &json, "deepseek_v3", set, 5));
    CHECK_OK(c, tr_config_parse(c, &cfg, "tiny", json, strlen(json), NULL));
    tr_free(c, json);
    return cfg;
}

static void shares(void)
{
    tr_ctx *c = test_ctx();
    for (int64_t n = 0; n < 40; n++)
        for (int64_t parts = 1; parts < 12; parts++) {
            int64_t at = 0, least = n, most = 0;
            for (int64_t p = 0; p < parts; p++) {
                tr_range r = tr_range_of(n, parts, p);
                CHECK(r.begin == at && r.end >= r.begin);
                at = r.end;
                if (r.end - r.begin < least) least = r.end - r.begin;
                if (r.end - r.begin > most) most = r.end - r.begin;
            }
            CHECK(at == n && most - least <= 1);
            CHECK(n == 0 || tr_range_of(n, parts, parts - 1).begin < n);
        }
    /* 96 heads on 5 ranks, 896 experts on 7; and where n part does not fit 64 bits */
    CHECK(tr_range_of(96, 5, 1).begin == 19 && tr_range_of(96, 5, 1).end == 38);
    CHECK(tr_range_of(896, 7, 6).begin == 768 && tr_range_of(896, 7, 6).end == 896);
    CHECK(tr_range_of(INT64_MAX, 8, 7).end == INT64_MAX);
    tr_ctx_free(c);
}

static void layouts(void)
{
    tr_ctx *c = test_ctx();
    tr_mpi_layout l;
    char s[64];
    CHECK_OK(c, tr_mpi_layout_parse(c, &l, "pp=2,ep=4", 8));
    CHECK(l.pp == 2 && l.tp == 1 && l.ep == 4 && l.cp == 1);
    CHECK(!strcmp(tr_mpi_layout_str(l, s), "pp=2,tp=1,ep=4,cp=1"));
    CHECK_OK(c, tr_mpi_layout_parse(c, &l, "", 7));
    CHECK(l.pp == 1 && l.ep == 7);
    CHECK_OK(c, tr_mpi_layout_parse(c, &l, "cp=3,tp=2", 6));
    CHECK(l.cp == 3 && l.tp == 2);
    CHECK_FAILS(c, TR_ERR_ARG, "pp=2,tp=1,ep=1,cp=1 2 3", tr_mpi_layout_parse(c, &l, "pp=2", 3));
    CHECK_FAILS(c, TR_ERR_ARG, "second", tr_mpi_layout_parse(c, &l, "pp=2,pp=1", 2));
    CHECK_FAILS(c, TR_ERR_ARG, "dp=2", tr_mpi_layout_parse(c, &l, "dp=2", 2));
    CHECK_FAILS(c, TR_ERR_ARG, "ep=", tr_mpi_layout_parse(c, &l, "ep=0", 1));
    CHECK_FAILS(c, TR_ERR_ARG, "ep=", tr_mpi_layout_parse(c, &l, "ep=-1", 1));
    CHECK_FAILS(c, TR_ERR_ARG, "ep=", tr_mpi_layout_parse(c, &l, "ep=", 1));
    CHECK_FAILS(c, TR_ERR_ARG, "ep=", tr_mpi_layout_parse(c, &l, "ep=1,", 1));
    CHECK_FAILS(c, TR_ERR_ARG, "ranks", 
                tr_mpi_layout_parse(c, &l, "ep=999999,tp=999999,pp=999999", 1));
    tr_ctx_free(c);
}

static int64_t count(const tr_mpi_map *m, int place, int64_t layer)
{
    int64_t n = 0;
    for (int64_t e = 0; e < m->experts; e++)
        n += m->held[((int64_t)place * m->layers + layer) * m->experts + e];
    return n;
}

/* 128 experts on 6 ranks, 10 on 4, 3 on 8: all somewhere, as even as can be. */
static void experts_dealt_evenly(void)
{
    tr_ctx *c = test_ctx();
    static const int cases[3][2] = { { 128, 6 }, { 10, 4 }, { 3, 8 } };
    for (int k = 0; k < 3; k++) {
        tr_config cfg = config(c, cases[k][0], 4);
        tr_mpi_map m;
        int64_t all = 0;
        CHECK_OK(c, tr_mpi_map_even(c, &m, &cfg, cases[k][1]));
        CHECK_OK(c, tr_mpi_map_check(c, &m, &cfg));
        for (int p = 0; p < cases[k][1]; p++) {
            int64_t n = count(&m, p, 3), least = cases[k][0] / cases[k][1];
            CHECK(n == least || n == least + 1);
            all += n;
            CHECK(count(&m, p, 0) == 0);            /* a dense layer */
        }
        CHECK(all == cases[k][0]);
        tr_mpi_map_free(c, &m);
        tr_config_free(c, &cfg);
    }
    tr_ctx_free(c);
}

/* Hot experts apart, replicas where they are not held already, none twice at a place. */
static void experts_dealt_by_load(void)
{
    tr_ctx *c = test_ctx();
    tr_config cfg = config(c, 8, 4);
    int64_t load[4 * 8] = { 0 };
    tr_mpi_map m;
    int64_t *l3 = load + 3 * 8;
    l3[5] = 100;
    l3[6] = 90;
    l3[0] = 10;
    l3[1] = 9;
    CHECK_OK(c, tr_mpi_map_by_load(c, &m, &cfg, 4, load, 0));
    CHECK_OK(c, tr_mpi_map_check(c, &m, &cfg));
    for (int p = 0; p < 4; p++) CHECK(count(&m, p, 3) == 2);
    for (int p = 0; p < 4; p++) {
        const unsigned char *h = m.held + (p * 4 + 3) * 8;
        CHECK(!(h[5] && h[6]));
    }
    tr_mpi_map_free(c, &m);
    CHECK_OK(c, tr_mpi_map_by_load(c, &m, &cfg, 4, load, 1));     /* 9 or more copies at 4 places */
    CHECK_OK(c, tr_mpi_map_check(c, &m, &cfg));
    for (int p = 0; p < 4; p++) {
        const unsigned char *h = m.held + (p * 4 + 3) * 8;
        CHECK(count(&m, p, 3) == 3);
        CHECK(h[5]);                                /* the hottest of all to spare */
        for (int e = 0; e < 8; e++) CHECK(h[e] <= 1);
    }
    tr_mpi_map_free(c, &m);
    CHECK_OK(c, tr_mpi_map_by_load(c, &m, &cfg, 4, load, INT_MAX));     /* more than there are */
    for (int p = 0; p < 4; p++) CHECK(count(&m, p, 3) == 8);
    tr_mpi_map_free(c, &m);
    tr_config_free(c, &cfg);
    tr_ctx_free(c);
}

static void map_file(const char *text)
{
    FILE *f = fopen("build/tests/map.json", "wb");
    if (!f) return;
    fputs(text, f);
    fclose(f);
}

/* Maps for 2 places and 4 experts, and what is said of them. */
static const struct { const char *text; tr_status status; const char *words; } bad_maps[] = {
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], [3]]}}",
      TR_ERR_MISSING, "map.json expert 2" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1, 0], [2, 3]]}}",
      TR_ERR_FORMAT, "place 0 expert 0 twice" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1, 4], [2, 3]]}}",
      TR_ERR_RANGE, "expert 4" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1, -1], [2, 3]]}}",
      TR_ERR_RANGE, "-1" },
    { "{\"places\": 2, \"layers\": {\"3\": [[0, 1, 2, 3]]}}",
      TR_ERR_MISSING, "layer 1" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1, 2, 3]]}}",
      TR_ERR_FORMAT, "2 lists" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], {\"a\": 2}]}}",
      TR_ERR_FORMAT, "place 1" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]], \"0\": []}}",
      TR_ERR_RANGE, "map.json \"0\" layer" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]], \"4\": [[3, 2], [0, 1]]}}",
      TR_ERR_RANGE, "map.json \"4\" layer" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]], \"03\": [[3, 2], [0, 1]]}}",
      TR_ERR_RANGE, "map.json \"03\" layer" },
    { "{\"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]]}, \"layer\": {\"3\": []}}",
      TR_ERR_FORMAT, "map.json \"layer\"" },
    { "{\"spare\": 1, \"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]]}}",
      TR_ERR_FORMAT, "map.json \"spare\"" },
    { "{\"places\": 2}",
      TR_ERR_MISSING, "layers" },
};
static const char *const no_maps[] = {
    "{\"places\": 2, \"layers\": {\"*\": [[0, 1.5], [2, 3]]}}",
    "[1]",
    "",
};

static void maps_read(void)
{
    tr_ctx *c = test_ctx();
    static const char path[] = "build/tests/map.json";
    tr_config cfg = config(c, 4, 4);
    tr_mpi_map m;
    map_file("{\"places\": 2, \"layers\": {\"*\": [[0, 1], [2, 3]], \"3\": [[3, 2, 1], [0, 1]]}}");
    CHECK_OK(c, tr_mpi_map_read(c, &m, &cfg, 2, path));
    CHECK(count(&m, 0, 3) == 3 && count(&m, 1, 3) == 2);
    tr_mpi_map_free(c, &m);
    CHECK_FAILS(c, TR_ERR_ARG, "map.json 2 3", tr_mpi_map_read(c, &m, &cfg, 3, path));
    for (size_t i = 0; i < sizeof bad_maps / sizeof *bad_maps; i++) {
        map_file(bad_maps[i].text);
        CHECK_FAILS(c, bad_maps[i].status, bad_maps[i].words,
                    tr_mpi_map_read(c, &m, &cfg, 2, path));
    }
    for (size_t i = 0; i < sizeof no_maps / sizeof *no_maps; i++) {
        map_file(no_maps[i]);
        CHECK(tr_mpi_map_read(c, &m, &cfg, 2, path) != TR_OK);
    }
    CHECK_FAILS(c, TR_ERR_IO, "nowhere.json", tr_mpi_map_read(c, &m, &cfg, 2, "nowhere.json"));
    tr_config_free(c, &cfg);
    tr_ctx_free(c);
}

int main(void)
{
    TEST(shares);
    TEST(layouts);
    TEST(experts_dealt_evenly);
    TEST(experts_dealt_by_load);
    TEST(maps_read);
    return test_end();
}
