/* image.h - from an image file to the patches that a vision tower reads, as Pillow and the vendors'
 * processors make them, to the last bit
 *
 * The bytes of a file become pixels in the mode that Pillow gives them (a palette stays a palette,
 * CMYK stays CMYK, 16-bit grey stays 16 bits), because Kimi K3 resizes before it converts. Then a
 * processor, driven by preprocessor_config.json, makes of them `resized` and `pixel_values`.
 *
 *     img m;  img_proc p;  img_pixels x;
 *     img_proc_load(ctx, &p, "DIR", NULL, 0);
 *     img_load(ctx, &m, "cat.png", IMG_MAX_PIXELS);
 *     img_process(ctx, &p, &m, IMG_PILLOW_12, &x);
 *
 * and x.values is [x.grid.patches, x.grid.patch_len].
 *
 * CONTENTS   (search for the tag in braces)
 *
 *     {mode}    what a pixel is           {resize}  Pillow's resize, in fixed point
 *     {file}    bytes of a file           {key}     preprocessor_config.json, in five classes
 *     {png}     chunks, filters, depths   {size}    the size rules
 *     {jpeg}    libjpeg and its warnings  {pixels}  fill, pad, normalise, cut into patches
 *
 * The inflater is stb_image's (Debian: libstb-dev), the JPEG decoder libjpeg-turbo (libjpeg-dev,
 * linked with -ljpeg). A program includes this once, after trillion.h with its implementation. What
 * fails says why in ctx and leaves *out empty; empty things may be freed. */

#ifndef IMAGE_H
#define IMAGE_H

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../trillion.h"

#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#include <stb/stb_image.h>

#include <jpeglib.h>
#include <jerror.h>

#define IMG_TRY(e) do { tr_status img_s = (e); if (img_s != TR_OK) return img_s; } while (0)

/* ============================================================================
 * Modes {mode}
 *
 * Pillow's names. A transparency key or the alphas of a palette are not part of the mode: they
 * travel beside the pixels (Image.info), survive a resize, and count when alpha is asked for.
 * ========================================================================= */

#define IMG_MODE_LIST(X)        /* bytes of a pixel, has alpha, Pillow's name */    \
    X(IMG_1,    1, 0, "1")      /* 0 or 255 */                                      \
    X(IMG_L,    1, 0, "L")                                                          \
    X(IMG_LA,   2, 1, "LA")                                                         \
    X(IMG_P,    1, 0, "P")      /* index into the palette */                        \
    X(IMG_RGB,  3, 0, "RGB")                                                        \
    X(IMG_RGBA, 4, 1, "RGBA")                                                       \
    X(IMG_CMYK, 4, 0, "CMYK")                                                       \
    X(IMG_I16,  2, 0, "I;16")   /* one uint16_t of the machine */

#define IMG_ENUM(name, bytes, alpha, text) name,
typedef enum img_mode { IMG_MODE_LIST(IMG_ENUM) IMG_MODES } img_mode;
#undef IMG_ENUM

typedef struct img_layout { int bytes, alpha; const char *name; } img_layout;

static inline const img_layout *img_mode_get(img_mode m)
{
#define IMG_ROW(name, bytes, alpha, text) { bytes, alpha, text },
    static const img_layout row[IMG_MODES] = { IMG_MODE_LIST(IMG_ROW) };
#undef IMG_ROW
    return &row[m];
}

static inline int img_bytes(img_mode m) { return img_mode_get(m)->bytes; }      /* of a pixel */
static inline int img_has_alpha(img_mode m) { return img_mode_get(m)->alpha; }  /* as a band */
static inline const char *img_mode_name(img_mode m) { return img_mode_get(m)->name; }

typedef struct img {
    img_mode mode;
    int64_t  w, h;
    uint8_t *px;                /* [h, w, img_bytes(mode)], owned */
    uint8_t  palette[256][4];   /* P: red, green, blue, alpha */
    int      has_key;           /* Image.info has "transparency": */
    uint8_t  key;               /* 1, L, I;16: this value, seen as 8 bits, is transparent */
    const char *format;         /* "PNG", "JPEG" */
    int      orientation;       /* EXIF's, which nobody applies: 1 upright, to 8; 0: not said */
    char     sha256[65];        /* of the file's bytes */
} img;

static inline void img_free(tr_ctx *ctx, img *m)
{
    tr_free(ctx, m->px);
    memset(m, 0, sizeof *m);
}

/* px of w times h pixels, zeroed; the other fields stay. */
static inline tr_status img_alloc(tr_ctx *ctx, img *m, img_mode mode, int64_t w, int64_t h)
{
    size_t n;
    void *p;
    m->px = NULL;
    IMG_TRY(tr_size_mul(ctx, &n, (size_t)w, (size_t)h));
    IMG_TRY(tr_size_mul(ctx, &n, n, (size_t)img_bytes(mode)));
    IMG_TRY(tr_alloc(ctx, &p, n));
    m->px = (uint8_t *)p;
    m->mode = mode;
    m->w = w;
    m->h = h;
    return TR_OK;
}

/* Pixel (x, y). */
static inline uint8_t *img_at(const img *m, int64_t x, int64_t y)
{
    return m->px + ((size_t)y * (size_t)m->w + (size_t)x) * (size_t)img_bytes(m->mode);
}

/* a b / 255 of bytes, rounded. */
static inline uint8_t img_mul255(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)((t + (t >> 8)) >> 8);
}

/* Row y as red, green, blue, alpha [w, 4]: convert("RGBA"), and without its alpha convert("RGB").
 * Of CMYK, red is (1 - C) (1 - K), in steps of 1/255, and so on. 16-bit grey is clipped at 255, not
 * scaled; and a key of a grey picture is compared with the grey of 8 bits, even if the file has 2.
 * All of it is Pillow's. */
static inline void img_row_rgba(const img *m, int64_t y, uint8_t *rgba)
{
    const uint8_t *p = img_at(m, 0, y);
    for (int64_t x = 0; x < m->w; x++, rgba += 4) {
        uint16_t v = 0;
        rgba[3] = 255;
        switch (m->mode) {
        case IMG_P:
            memcpy(rgba, m->palette[p[x]], 4);
            break;
        case IMG_RGB:
            memcpy(rgba, p + 3 * x, 3);
            break;
        case IMG_RGBA:
            memcpy(rgba, p + 4 * x, 4);
            break;
        case IMG_CMYK:
            for (int c = 0, light = 255 - p[4 * x + 3]; c < 3; c++)
                rgba[c] = (uint8_t)(light - img_mul255(p[4 * x + c], (unsigned)light));
            break;
        case IMG_LA:
            rgba[0] = rgba[1] = rgba[2] = p[2 * x];
            rgba[3] = p[2 * x + 1];
            break;
        default:                                    /* 1, L, I;16 */
            if (m->mode == IMG_I16) memcpy(&v, p + 2 * x, 2);
            else v = p[x];
            rgba[0] = rgba[1] = rgba[2] = (uint8_t)(v < 255 ? v : 255);
            if (m->has_key && rgba[0] == m->key) rgba[3] = 0;
        }
    }
}

/* ============================================================================
 * Files {file}
 * ========================================================================= */

/* Twice Pillow's MAX_IMAGE_PIXELS, where it speaks of a decompression bomb and stops. */
#define IMG_MAX_PIXELS ((int64_t)178956970)

#define IMG_MAX_FILE ((size_t)1 << 30)

/* All of a file, or of what a pipe gives, at most `most` bytes: *data [*n], to be freed. */
static inline tr_status img_read_file(tr_ctx *ctx, const char *path, size_t most, void **data,
                                      size_t *n)
{
    FILE *f = fopen(path, "rb");
    size_t room = 0;
    tr_status s = TR_OK;
    *data = NULL;
    *n = 0;
    if (!f) return tr_fail(ctx, TR_ERR_IO, "%s: %s", path, strerror(errno));
    while (s == TR_OK && *n == room) {              /* until a read does not fill it */
        void *more;
        room = room ? 2 * room : (size_t)1 << 20;
        if ((s = tr_alloc(ctx, &more, room)) != TR_OK) break;
        if (*n) memcpy(more, *data, *n);
        tr_free(ctx, *data);
        *data = more;
        *n += fread((char *)*data + *n, 1, room - *n, f);
        if (ferror(f))
            s = tr_fail(ctx, TR_ERR_IO, "%s: %s", path, strerror(errno));
        else if (*n > most)
            s = tr_fail(ctx, TR_ERR_RANGE, "%s: more than %llu bytes", path,
                        (unsigned long long)most);
    }
    fclose(f);
    if (s != TR_OK) {
        tr_free(ctx, *data);
        *data = NULL;
    }
    return s;
}

static inline void img_sha256(char out[65], const void *data, size_t n)
{
    tr_sha256 hash;
    tr_sha256_init(&hash);
    tr_sha256_update(&hash, data, n);
    tr_sha256_hex(&hash, out);
}

static inline uint32_t img_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline int img_u16(const uint8_t *p) { return p[0] << 8 | p[1]; }

/* Sizes as the header has them, before anything is allocated for them. */
static inline tr_status img_check_size(tr_ctx *ctx, const char *name, int64_t w, int64_t h,
                                       int64_t max_pixels)
{
    if (w < 1 || h < 1)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: a picture of %lld x %lld pixels has none", name,
                       (long long)w, (long long)h);
    if (w > INT_MAX || h > INT_MAX || w > max_pixels / h)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: %lld x %lld pixels are more than the %lld that are "
                       "allowed", name, (long long)w, (long long)h, (long long)max_pixels);
    return TR_OK;
}

/* EXIF's orientation in p [n], a small TIFF file: byte order, place of the first directory, its
 * entries of twelve bytes (tag, type, count, value). 0: it is not said, or makes no sense. */
static inline int img_exif_orientation(const uint8_t *p, size_t n)
{
#define IMG_TIFF16(at) (little ? p[(at) + 1] << 8 | p[at] : img_u16(p + (at)))
    int little = n >= 8 && !memcmp(p, "II*\0", 4), v = 0;
    if (!little && (n < 8 || memcmp(p, "MM\0*", 4))) return 0;
    size_t high = (size_t)IMG_TIFF16(little ? 6 : 4), at = (size_t)IMG_TIFF16(little ? 4 : 6);
    if (high || at > n - 2) return 0;               /* APP1 has less than 64 kB */
    int entries = IMG_TIFF16(at);
    for (at += 2; entries > 0 && n - at >= 12; entries--, at += 12)
        if (IMG_TIFF16(at) == 0x112 && IMG_TIFF16(at + 2) == 3) v = IMG_TIFF16(at + 8);
    return v <= 8 ? v : 0;
#undef IMG_TIFF16
}

static inline void img_warn_tail(tr_ctx *ctx, const char *name, size_t n)
{
    if (n) tr_warn(ctx, "%s: %llu bytes after the picture's end are ignored", name,
                   (unsigned long long)n);
}

/* ============================================================================
 * PNG {png}
 *
 * Chunks: length, four letters, data, CRC. IHDR says size, depth and colour type; PLTE and tRNS the
 * palette and what is transparent; the IDATs together are one zlib stream of rows, each with the
 * filter it was stored by in front. With Adam7 seven smaller pictures follow one another.
 *
 * A chunk that is critical, or tRNS, must have its right CRC; others are not looked at: no gamma,
 * no colour profile, no EXIF rotation, as with Pillow.
 * ========================================================================= */

typedef struct img_png {
    const char *name;
    int64_t w, h;
    int     depth, interlaced;
    int     color_type;                 /* 0 grey, 2 RGB, 3 palette, 4 grey alpha, 6 RGBA */
    int     colors;                     /* entries of the palette */
    uint8_t palette[256][3];
    uint8_t trns[256];  int n_trns;     /* -1: none */
    uint8_t *idat;  size_t n_idat;      /* owned: the zlib stream */
    size_t  end;                        /* of IEND in the file */
    int     orientation;                /* EXIF's */
} img_png;

static inline uint32_t img_crc(const uint8_t *p, size_t n)
{
    uint32_t table[256], c = ~(uint32_t)0;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0xedb88320u : table[i] >> 1;
    }
    for (size_t i = 0; i < n; i++) c = table[(c ^ p[i]) & 255] ^ c >> 8;
    return ~c;
}

static inline uint32_t img_adler32(const uint8_t *p, size_t n)
{
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < n; ) {
        size_t end = n - i < 5552 ? n : i + 5552;   /* so many fit 32 bits before the remainder */
        for (; i < end; i++) b += a += p[i];
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

static inline int img_png_samples(const img_png *g)         /* of a pixel in the file */
{
    return g->color_type == 2 ? 3 : g->color_type == 4 ? 2 : g->color_type == 6 ? 4 : 1;
}

static inline size_t img_png_row_bytes(const img_png *g, int64_t w)     /* of w pixels */
{
    return ((size_t)w * (size_t)(g->depth * img_png_samples(g)) + 7) / 8;
}

static inline tr_status img_png_header(tr_ctx *ctx, img_png *g, const uint8_t *d, size_t n,
                                       int64_t max_pixels)
{
    if (n != 13)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: IHDR has %llu bytes, not 13", g->name,
                       (unsigned long long)n);
    g->w = img_u32(d);
    g->h = img_u32(d + 4);
    g->depth = d[8];
    g->color_type = d[9];
    g->interlaced = d[12];
    int type = g->color_type, depth = g->depth;
    int one = type == 0 || type == 3, more = type == 2 || type == 4 || type == 6;
    int deep = depth == 8 || (depth == 16 && type != 3);
    if (!(one || more) || !(deep || (one && (depth == 1 || depth == 2 || depth == 4))))
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: IHDR: colour type %d of bit depth %d does not "
                       "exist", g->name, type, depth);
    if (d[10] || d[11] || d[12] > 1)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: IHDR: compression %d, filter %d, interlace %d do "
                       "not exist", g->name, d[10], d[11], d[12]);
    return img_check_size(ctx, g->name, g->w, g->h, max_pixels);
}

static inline tr_status img_png_palette(tr_ctx *ctx, img_png *g, const uint8_t *d, size_t n)
{
    if (n % 3 || n == 0 || n > 768 || g->colors)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: PLTE%s has %llu bytes, not three for each of 1 to "
                       "256 colours", g->name, g->colors ? ", the second one," : "",
                       (unsigned long long)n);
    g->colors = (int)n / 3;
    memcpy(g->palette, d, n);
    return TR_OK;
}

static inline tr_status img_png_trns(tr_ctx *ctx, img_png *g, const uint8_t *d, size_t n)
{
    size_t need = g->color_type == 0 ? 2 : g->color_type == 2 ? 6 : 0;
    if (g->color_type == 3 ? n > 256 || !g->colors : n != need || !need)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: tRNS of %llu bytes does not fit colour type %d%s",
                       g->name, (unsigned long long)n, g->color_type,
                       g->color_type == 3 && !g->colors ? " before PLTE" : "");
    memcpy(g->trns, d, n);
    g->n_trns = (int)n;
    return TR_OK;
}

typedef struct img_chunk { const uint8_t *name, *data; size_t len; } img_chunk;

static inline int img_chunk_is(const img_chunk *c, const char *name)
{
    return !memcmp(c->name, name, 4);
}

/* The chunk at byte `at` of the file [n]: it is all there and, if that matters, undamaged. */
static inline tr_status img_png_chunk(tr_ctx *ctx, const img_png *g, const uint8_t *file, size_t n,
                                      size_t at, img_chunk *c)
{
    if (n - at < 12)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: the file is cut: %s", g->name,
                       at == 8 ? "it ends before its header" : "there is no IEND");
    c->len = img_u32(file + at);
    c->name = file + at + 4;
    c->data = file + at + 8;
    for (int k = 0; k < 4; k++)
        if ((c->name[k] | 32) < 'a' || (c->name[k] | 32) > 'z')
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: at byte %llu there is no chunk", g->name,
                           (unsigned long long)at);
    if (c->len > n - at - 12)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: the file is cut: chunk %.4s of %llu bytes ends "
                       "after %llu", g->name, (const char *)c->name, (unsigned long long)c->len,
                       (unsigned long long)(n - at - 8));
    int matters = !(c->name[0] & 32) || img_chunk_is(c, "tRNS");
    if (matters && img_crc(c->name, c->len + 4) != img_u32(c->data + c->len))
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: chunk %.4s at byte %llu is damaged (CRC)", g->name,
                       (const char *)c->name, (unsigned long long)at);
    return TR_OK;
}

static inline tr_status img_png_chunks(tr_ctx *ctx, img_png *g, const uint8_t *file, size_t n,
                                       int64_t max_pixels)
{
    img_chunk c = { NULL, NULL, 0 };
    int idats = 0, idat_over = 0;
    for (size_t at = 8; !g->end; at += 12 + c.len) {
        IMG_TRY(img_png_chunk(ctx, g, file, n, at, &c));
        if ((at == 8) != img_chunk_is(&c, "IHDR"))
            return tr_fail(ctx, TR_ERR_FORMAT, "%s: IHDR %s", g->name,
                           at == 8 ? "is not the first chunk" : "occurs twice");
        if (idats && !img_chunk_is(&c, "IDAT")) idat_over = 1;
        if (at == 8) {
            IMG_TRY(img_png_header(ctx, g, c.data, c.len, max_pixels));
        } else if (img_chunk_is(&c, "PLTE")) {
            if (!idats) IMG_TRY(img_png_palette(ctx, g, c.data, c.len));
        } else if (img_chunk_is(&c, "tRNS")) {
            if (idats)
                return tr_fail(ctx, TR_ERR_FORMAT, "%s: tRNS stands after IDAT", g->name);
            IMG_TRY(img_png_trns(ctx, g, c.data, c.len));
        } else if (img_chunk_is(&c, "IDAT")) {
            if (idat_over)
                return tr_fail(ctx, TR_ERR_FORMAT, "%s: another chunk stands between two IDATs",
                               g->name);
            idats = 1;
            memcpy(g->idat + g->n_idat, c.data, c.len);     /* it has room for the whole file */
            g->n_idat += c.len;
        } else if (img_chunk_is(&c, "eXIf")) {
            g->orientation = img_exif_orientation(c.data, c.len);
        } else if (img_chunk_is(&c, "IEND")) {
            g->end = at + 12 + c.len;
        } else if (!(c.name[0] & 32)) {
            return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: critical chunk %.4s is not known",
                           g->name, (const char *)c.name);
        }
    }
    if (!idats)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: there is no IDAT, so no pixel", g->name);
    if (g->color_type == 3 && !g->colors)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: colour type 3 needs a PLTE before IDAT", g->name);
    return TR_OK;
}

/* The seven pictures of Adam7: first column and row, steps. */
static const uint8_t img_adam7[7][4] = {
    { 0, 0, 8, 8 }, { 4, 0, 8, 8 }, { 0, 4, 4, 8 }, { 2, 0, 4, 4 },
    { 0, 2, 2, 4 }, { 1, 0, 2, 2 }, { 0, 1, 1, 2 }
};

typedef struct img_pass { int64_t x0, y0, dx, dy, w, h; size_t row_bytes; } img_pass;

static inline int img_png_passes(const img_png *g) { return g->interlaced ? 7 : 1; }

static inline img_pass img_png_pass(const img_png *g, int k)    /* k < img_png_passes(g) */
{
    img_pass p = { 0, 0, 1, 1, 0, 0, 0 };
    if (g->interlaced) {
        p.x0 = img_adam7[k][0];
        p.y0 = img_adam7[k][1];
        p.dx = img_adam7[k][2];
        p.dy = img_adam7[k][3];
    }
    p.w = (g->w - p.x0 + p.dx - 1) / p.dx;
    p.h = (g->h - p.y0 + p.dy - 1) / p.dy;
    if (p.w < 1) p.h = 0;
    p.row_bytes = img_png_row_bytes(g, p.w);
    return p;
}

/* row [n] was stored as the difference to a prediction; prev is the row above, bpp the bytes of a
 * pixel, at least one. */
static inline void img_png_unfilter(uint8_t *row, const uint8_t *prev, size_t n, size_t bpp,
                                    int filter)
{
    size_t i, head = bpp < n ? bpp : n;
    switch (filter) {
    case 1:                                         /* Sub: left */
        for (i = bpp; i < n; i++) row[i] = (uint8_t)(row[i] + row[i - bpp]);
        break;
    case 2:                                         /* Up */
        for (i = 0; i < n; i++) row[i] = (uint8_t)(row[i] + prev[i]);
        break;
    case 3:                                         /* Average of left and up */
        for (i = 0; i < head; i++) row[i] = (uint8_t)(row[i] + prev[i] / 2);
        for (; i < n; i++) row[i] = (uint8_t)(row[i] + (row[i - bpp] + prev[i]) / 2);
        break;
    case 4:                                         /* Paeth: the nearest of left, up, up-left */
        for (i = 0; i < head; i++) row[i] = (uint8_t)(row[i] + prev[i]);
        for (; i < n; i++) {
            int a = row[i - bpp], b = prev[i], c = prev[i - bpp];
            int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
            row[i] = (uint8_t)(row[i] + (pa <= pb && pa <= pc ? a : pb <= pc ? b : c));
        }
        break;
    default:                                        /* None */
        break;
    }
}

static inline img_mode img_png_mode(const img_png *g)
{
    switch (g->color_type) {
    case 0:  return g->depth == 1 ? IMG_1 : g->depth == 16 ? IMG_I16 : IMG_L;
    case 2:  return IMG_RGB;
    case 3:  return IMG_P;
    case 4:  return g->depth == 16 ? IMG_RGBA : IMG_LA;     /* Pillow has no LA of 16 bits */
    default: return IMG_RGBA;
    }
}

/* A row of the file to its places in the picture. Of 16-bit colour the upper byte is kept; small
 * greys are spread over 0 to 255. Returns the largest palette index, which may be no colour. */
static inline int img_png_put(const img_png *g, const img_pass *p, const uint8_t *row, int64_t y,
                              img *m)
{
    int n = img_png_samples(g), step = img_bytes(m->mode), top = 0;
    uint8_t *to = img_at(m, p->x0, y);
    if (g->depth == 8 && p->dx == 1 && g->color_type != 3) {
        memcpy(to, row, p->row_bytes);
        return 0;
    }
    for (int64_t x = 0; x < p->w; x++, to += p->dx * step) {
        if (m->mode == IMG_I16) {
            uint16_t v = (uint16_t)img_u16(row + 2 * x);
            memcpy(to, &v, 2);
        } else if (g->depth >= 8) {
            const uint8_t *s = row + (size_t)x * (size_t)(n * g->depth / 8);
            for (int c = 0; c < n; c++) to[c] = s[c * g->depth / 8];
            if (g->color_type == 4 && step == 4) {        /* grey, alpha of 16 bits */
                to[3] = to[1];
                to[1] = to[2] = to[0];
            }
        } else {
            int64_t bit = x * g->depth;
            int v = row[bit / 8] >> (8 - g->depth - bit % 8) & ((1 << g->depth) - 1);
            to[0] = (uint8_t)(g->color_type == 3 ? v : v * (255 / ((1 << g->depth) - 1)));
        }
        if (g->color_type == 3 && to[0] > top) top = to[0];
    }
    return top;
}

static inline tr_status img_png_rows(tr_ctx *ctx, const img_png *g, uint8_t *raw, img *m)
{
    size_t bpp = img_png_row_bytes(g, 1);
    void *zeros;                                    /* what lies above a first row */
    int top = 0, filter = 0;
    int64_t at = 0;
    IMG_TRY(tr_alloc(ctx, &zeros, img_png_row_bytes(g, g->w)));
    for (int k = 0; k < img_png_passes(g) && filter < 5; k++) {
        img_pass p = img_png_pass(g, k);
        const uint8_t *prev = (const uint8_t *)zeros;
        for (int64_t y = 0; y < p.h && filter < 5; y++, raw += 1 + p.row_bytes) {
            at = p.y0 + y * p.dy;
            filter = raw[0];
            img_png_unfilter(raw + 1, prev, p.row_bytes, bpp, filter);
            prev = raw + 1;
            int v = img_png_put(g, &p, raw + 1, at, m);
            if (v > top) top = v;
        }
    }
    tr_free(ctx, zeros);
    if (filter > 4)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: row %lld: filter %d does not exist", g->name,
                       (long long)at, filter);
    if (g->color_type == 3 && top >= g->colors)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: a pixel has colour %d of a palette of %d", g->name,
                       top, g->colors);
    return TR_OK;
}

/* What Pillow keeps as Image.info["transparency"]. Of RGB it is never read: both processors keep
 * an RGB picture as it is. */
static inline void img_png_info(const img_png *g, img *m)
{
    for (int i = 0; i < g->colors; i++) {
        memcpy(m->palette[i], g->palette[i], 3);
        m->palette[i][3] = i < g->n_trns ? g->trns[i] : 255;
    }
    m->has_key = g->n_trns >= 0;
    if (m->has_key && g->color_type == 0)
        m->key = g->depth > 1 ? g->trns[1] : img_u16(g->trns) ? 255 : 0;
}

/* The zlib stream ends with the Adler-32 of what was deflated. stb_image does not look at it, nor
 * say where it stands; something may follow it, so it is looked for from the end. */
static inline int img_png_has_adler(const img_png *g, uint32_t sum)
{
    for (size_t at = g->n_idat; at >= 6; at--)      /* behind two bytes of header */
        if (img_u32(g->idat + at - 4) == sum) return 1;
    return 0;
}

static inline tr_status img_png_inflate(tr_ctx *ctx, const img_png *g, img *m)
{
    size_t bytes = 0;
    void *raw;
    int got;
    tr_status s;
    for (int k = 0; k < img_png_passes(g); k++) {
        img_pass p = img_png_pass(g, k);
        bytes += (size_t)p.h * (1 + p.row_bytes);         /* of at most 2^28 pixels */
    }
    /* Deflate makes at most 1032 bytes of one: a header that promises more is not believed. */
    if (bytes > INT_MAX || g->n_idat > INT_MAX || bytes / 1032 > g->n_idat)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: %lld x %lld pixels cannot be in %llu bytes of IDAT",
                       g->name, (long long)g->w, (long long)g->h, (unsigned long long)g->n_idat);
    IMG_TRY(img_alloc(ctx, m, img_png_mode(g), g->w, g->h));
    IMG_TRY(tr_alloc(ctx, &raw, bytes));
    got = stbi_zlib_decode_buffer((char *)raw, (int)bytes, (const char *)g->idat, (int)g->n_idat);
    if (got < 0)
        s = tr_fail(ctx, TR_ERR_FORMAT, "%s: the pixels do not inflate: %s", g->name,
                    stbi_failure_reason());
    else if ((size_t)got < bytes)
        s = tr_fail(ctx, TR_ERR_FORMAT, "%s: the pixels end after %d of %llu bytes", g->name, got,
                    (unsigned long long)bytes);
    else if (!img_png_has_adler(g, img_adler32((const uint8_t *)raw, bytes)))
        s = tr_fail(ctx, TR_ERR_FORMAT, "%s: the pixels are damaged: IDAT does not "
                    "have their Adler-32", g->name);
    else
        s = img_png_rows(ctx, g, (uint8_t *)raw, m);
    tr_free(ctx, raw);
    return s;
}

static inline tr_status img_png_decode(tr_ctx *ctx, img *m, const char *name, const uint8_t *file,
                                       size_t n, int64_t max_pixels)
{
    img_png g;
    void *idat;
    tr_status s;
    memset(&g, 0, sizeof g);
    g.name = name;
    g.n_trns = -1;
    IMG_TRY(tr_alloc(ctx, &idat, n));
    g.idat = (uint8_t *)idat;
    s = img_png_chunks(ctx, &g, file, n, max_pixels);
    if (s == TR_OK) s = img_png_inflate(ctx, &g, m);
    if (s == TR_OK) {
        img_png_info(&g, m);
        m->format = "PNG";
        m->orientation = g.orientation;
        img_warn_tail(ctx, name, n - g.end);
    }
    tr_free(ctx, idat);
    return s;
}

/* ============================================================================
 * JPEG {jpeg}
 *
 * libjpeg-turbo decodes, with the settings that Pillow uses, which are its own: the exact cosine
 * transform in integers, chroma upsampled smoothly. So the pixels are Pillow's. Four components are
 * ink; Pillow takes them for inverted, as Adobe writes them, whether or not the file says so.
 *
 * The library reports by calls, and carries on after a warning with pixels that it made up. Here an
 * error and such a warning end the decoding by longjmp, and its sentence becomes ours; Pillow hears
 * no warning. The header is read first, and what it claims is checked before memory is taken; a
 * thousand scans over one picture, each a few bytes long, are the known way to keep a decoder busy.
 * ========================================================================= */

enum { IMG_MAX_SCANS = 500 };   /* those of real files are about ten */

typedef struct img_jpeg {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr    err;
    struct jpeg_progress_mgr progress;
    jmp_buf  escape;                    /* out of the library, to img_jpeg_try */
    char     said[JMSG_LENGTH_MAX];     /* why; or else the first warning */
    const uint8_t *file;  size_t n;
    int64_t  max_pixels;
    img     *m;
} img_jpeg;

static void img_jpeg_exit(j_common_ptr cinfo)
{
    img_jpeg *j = (img_jpeg *)cinfo->client_data;
    cinfo->err->format_message(cinfo, j->said);
    longjmp(j->escape, 1);
}

/* A warning (level < 0) or a trace. What is told of data that is not there ends the decoding. */
static void img_jpeg_message(j_common_ptr cinfo, int level)
{
    img_jpeg *j = (img_jpeg *)cinfo->client_data;
    if (level >= 0) return;
    switch (cinfo->err->msg_code) {
    case JWRN_JPEG_EOF: case JWRN_HIT_MARKER: case JWRN_MUST_RESYNC:
    case JWRN_HUFF_BAD_CODE: case JWRN_ARITH_BAD_CODE:
        img_jpeg_exit(cinfo);
        break;
    default:                                        /* the pixels are those of the file */
        if (!j->said[0]) cinfo->err->format_message(cinfo, j->said);
    }
}

static void img_jpeg_progress(j_common_ptr cinfo)
{
    img_jpeg *j = (img_jpeg *)cinfo->client_data;
    if (j->cinfo.input_scan_number <= IMG_MAX_SCANS) return;
    snprintf(j->said, sizeof j->said, "more than %d scans", IMG_MAX_SCANS);
    longjmp(j->escape, 1);
}

/* 0: step was left by longjmp. No variable lives across it: all is in j, which is the caller's. */
static int img_jpeg_try(img_jpeg *j, void (*step)(img_jpeg *j))
{
    if (setjmp(j->escape)) return 0;
    step(j);
    return 1;
}

static void img_jpeg_read_header(img_jpeg *j)
{
    jpeg_create_decompress(&j->cinfo);
    j->cinfo.progress = &j->progress;
    /* Coefficients of all scans: 2 bytes in 4 components, and the margins of a narrow picture. */
    j->cinfo.mem->max_memory_to_use = (long)(8 * j->max_pixels + (64 << 20));
    jpeg_mem_src(&j->cinfo, j->file, (unsigned long)j->n);
    jpeg_save_markers(&j->cinfo, JPEG_APP0 + 1, 0xffff);
    (void)jpeg_read_header(&j->cinfo, TRUE);
}

/* All scans were read. Where one is missing the library fills the gap, each version of it in its
 * own way, or leaves grey, and says nothing. coef_bits: the bits that a coefficient still lacks, in
 * zigzag, -1 for all; the first ten are what decides. A component of no scan has no table. */
static void img_jpeg_check_scans(img_jpeg *j)
{
    const struct jpeg_decompress_struct *cinfo = &j->cinfo;
    for (int c = 0; c < cinfo->num_components; c++) {
        int lacking = cinfo->comp_info[c].quant_table == NULL;
        for (int k = 0; cinfo->coef_bits && k < 10; k++) lacking |= cinfo->coef_bits[c][k] != 0;
        if (!lacking) continue;
        snprintf(j->said, sizeof j->said, "component %d is not complete: a scan is missing", c);
        longjmp(j->escape, 1);
    }
}

static void img_jpeg_read_pixels(img_jpeg *j)
{
    struct jpeg_decompress_struct *cinfo = &j->cinfo;
    cinfo->out_color_space = j->m->mode == IMG_L ? JCS_GRAYSCALE
                           : j->m->mode == IMG_RGB ? JCS_RGB : JCS_CMYK;
    (void)jpeg_start_decompress(cinfo);
    if (jpeg_has_multiple_scans(cinfo)) img_jpeg_check_scans(j);
    while (cinfo->output_scanline < cinfo->output_height) {
        JSAMPROW to = img_at(j->m, 0, cinfo->output_scanline);
        (void)jpeg_read_scanlines(cinfo, &to, 1);
    }
    (void)jpeg_finish_decompress(cinfo);                /* to the end marker */
}

static inline tr_status img_jpeg_fail(tr_ctx *ctx, const img_jpeg *j, const char *name)
{
    int code = j->err.msg_code;
    tr_status s = code == JERR_OUT_OF_MEMORY ? TR_ERR_MEMORY
                : code == JERR_SOF_UNSUPPORTED || code == JERR_BAD_PRECISION ||
                  code == JERR_ARITH_NOTIMPL ? TR_ERR_UNSUPPORTED : TR_ERR_FORMAT;
    return tr_fail(ctx, s, "%s: JPEG: %s", name, j->said);
}

/* The header, and the picture that it announces. */
static inline tr_status img_jpeg_begin(tr_ctx *ctx, img_jpeg *j, const char *name)
{
    struct jpeg_decompress_struct *cinfo = &j->cinfo;
    int n = cinfo->num_components;
    int64_t w = cinfo->image_width, h = cinfo->image_height, most = 0;
    IMG_TRY(img_check_size(ctx, name, w, h, j->max_pixels));
    if (cinfo->data_precision != 8)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: JPEG of %d bits is not supported", name,
                       cinfo->data_precision);
    if (n != 1 && n != 3 && n != 4)
        return tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: JPEG of %d components is not supported", name,
                       n);
    for (int c = 0; c < n; c++) {
        const jpeg_component_info *k = &cinfo->comp_info[c];
        int64_t blocks = (int64_t)k->width_in_blocks * k->height_in_blocks;
        if (blocks > most) most = blocks;
    }
    /* In Huffman's code the mean of a block takes a bit at least. */
    if (!cinfo->arith_code && (uint64_t)most / 8 > j->n)
        return tr_fail(ctx, TR_ERR_FORMAT, "%s: %lld x %lld pixels cannot be in %llu bytes", name,
                       (long long)w, (long long)h, (unsigned long long)j->n);
    for (jpeg_saved_marker_ptr a = cinfo->marker_list; a && !j->m->orientation; a = a->next)
        if (a->data_length > 6 && !memcmp(a->data, "Exif\0\0", 6))
            j->m->orientation = img_exif_orientation(a->data + 6, a->data_length - 6);
    j->m->format = "JPEG";
    return img_alloc(ctx, j->m, n == 1 ? IMG_L : n == 3 ? IMG_RGB : IMG_CMYK, w, h);
}

static inline tr_status img_jpeg_decode(tr_ctx *ctx, img *m, const char *name, const uint8_t *file,
                                        size_t n, int64_t max_pixels)
{
    img_jpeg j;
    tr_status s;
    memset(&j, 0, sizeof j);
    j.cinfo.err = jpeg_std_error(&j.err);
    j.cinfo.client_data = &j;
    j.err.error_exit = img_jpeg_exit;
    j.err.emit_message = img_jpeg_message;
    j.progress.progress_monitor = img_jpeg_progress;
    j.file = file;
    j.n = n;
    j.max_pixels = max_pixels;
    j.m = m;
    s = img_jpeg_try(&j, img_jpeg_read_header) ? img_jpeg_begin(ctx, &j, name)
                                               : img_jpeg_fail(ctx, &j, name);
    if (s == TR_OK && !img_jpeg_try(&j, img_jpeg_read_pixels)) s = img_jpeg_fail(ctx, &j, name);
    if (s == TR_OK) {
        for (int64_t i = 0; m->mode == IMG_CMYK && i < 4 * m->w * m->h; i++)
            m->px[i] = (uint8_t)(255 - m->px[i]);
        if (j.said[0]) tr_warn(ctx, "%s: JPEG: %s", name, j.said);
        img_warn_tail(ctx, name, j.cinfo.src->bytes_in_buffer);
    }
    jpeg_destroy_decompress(&j.cinfo);
    return s;
}

/* What the model will see otherwise than a viewer of pictures shows it. */
static inline void img_warn_changes(tr_ctx *ctx, const char *name, const img *m)
{
    int64_t n = m->w * m->h, beyond = 0;
    if (m->orientation > 1)
        tr_warn(ctx, "%s: EXIF orientation %d is not applied: the model's processor ignores it",
                name, m->orientation);
    for (int64_t i = 0; m->mode == IMG_I16 && i < n; i++) {
        uint16_t v;
        memcpy(&v, m->px + 2 * i, 2);
        beyond += v > 255;
    }
    if (beyond)
        tr_warn(ctx, "%s: 16-bit grey: %lld of %lld pixels are more than 255 and become white, as "
                "with Pillow", name, (long long)beyond, (long long)n);
}

/* The picture in data [n]. name is for messages and may be gone afterwards; pictures of more than
 * max_pixels are refused before memory is taken. */
static inline tr_status img_decode(tr_ctx *ctx, img *out, const char *name, const void *data,
                                   size_t n, int64_t max_pixels)
{
    const uint8_t *f = (const uint8_t *)data;
    tr_status s;
    memset(out, 0, sizeof *out);
    if (n > IMG_MAX_FILE)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: more than %llu bytes", name,
                       (unsigned long long)IMG_MAX_FILE);
    if (n >= 8 && !memcmp(f, "\x89PNG\r\n\x1a\n", 8))
        s = img_png_decode(ctx, out, name, f, n, max_pixels);
    else if (n >= 3 && f[0] == 0xff && f[1] == 0xd8 && f[2] == 0xff)
        s = img_jpeg_decode(ctx, out, name, f, n, max_pixels);
    else
        s = tr_fail(ctx, TR_ERR_UNSUPPORTED, n ? "%s: neither PNG nor JPEG" : "%s: an empty file",
                    name);
    if (s != TR_OK) {
        img_free(ctx, out);
        return s;
    }
    img_warn_changes(ctx, name, out);
    img_sha256(out->sha256, data, n);
    return TR_OK;
}

static inline tr_status img_load(tr_ctx *ctx, img *out, const char *path, int64_t max_pixels)
{
    void *data;
    size_t n;
    memset(out, 0, sizeof *out);
    IMG_TRY(img_read_file(ctx, path, IMG_MAX_FILE, &data, &n));
    tr_status s = img_decode(ctx, out, path, data, n, max_pixels);
    tr_free(ctx, data);
    return s;
}

/* ============================================================================
 * Resize {resize}
 *
 * Pillow's, of 8 bits in fixed point. An output pixel i looks at the input around its centre
 *
 *     c = (i + 1/2) in/out,     f = max(1, in/out),     |x + 1/2 - c| < support f,
 *
 * wider when the picture shrinks. Its weights are the filter's values at (x + 1/2 - c) / f,
 * divided by their sum in binary64, then rounded to multiples of 2^-22, halves away from 0:
 *
 *     k_x  = round(2^22 w_x / sum w)
 *     out  = clip((2^21 + sum k_x in_x) >> 22)                                8 bits
 *     out  = clip(round(sum w_x in_x))               binary64, in rising x: I;16
 *
 * Columns first, then rows, with 8 bits between the two, so the order of the passes shows:
 *
 *     Pillow 12   across, then down
 *     Pillow 13   down first if h - nh > 2 (w - nw) and nh < h: tall pictures that shrink
 *
 * (12.2 and 12.3 go down first if h > 100 w and the picture shrinks; ours is 12.0 and 12.1 there.)
 * A picture of the same size is a copy. Palettes and single bits know no mean: nearest, always.
 * With alpha, colours are weighted by it before and divided by it after.
 *
 * Traps. The kernel is Keys' with a = -1/2, not -3/4. Sums are kept modulo 2^32, as unsigned, and
 * read as signed: Pillow's bound of 640 levels is a little more than 31 bits hold.
 * ========================================================================= */

typedef enum img_pillow { IMG_PILLOW_12 = 12, IMG_PILLOW_13 = 13 } img_pillow;

/* Pillow's numbers, which are those of preprocessor_config.json. */
typedef enum img_filter {
    IMG_NEAREST, IMG_LANCZOS, IMG_BILINEAR, IMG_BICUBIC, IMG_BOX, IMG_HAMMING, IMG_FILTERS
} img_filter;

#define IMG_PI 3.14159265358979323846

static inline double img_sinc(double x)
{
    double s, c;
    if (x == 0) return 1;
    tr_sincos64(x * IMG_PI, &s, &c);
    return s / (x * IMG_PI);
}

static inline double img_lanczos(double x)
{
    return -3 <= x && x < 3 ? img_sinc(x) * img_sinc(x / 3) : 0;
}

static inline double img_bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static inline double img_bicubic(double x)
{
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static inline double img_box(double x) { return x > -0.5 && x <= 0.5 ? 1 : 0; }

static inline double img_hamming(double x)
{
    double s, c;
    x = fabs(x);
    if (x == 0) return 1;
    if (x >= 1) return 0;
    tr_sincos64(x * IMG_PI, &s, &c);
    return s / (x * IMG_PI) * ((double)0.54f + (double)0.46f * c);
}

typedef struct img_kernel { const char *name; double support; double (*at)(double x); } img_kernel;

static inline const img_kernel *img_kernel_get(img_filter f)
{
    static const img_kernel k[IMG_FILTERS] = {
        { "nearest", 0, NULL },         { "lanczos", 3, img_lanczos },
        { "bilinear", 1, img_bilinear }, { "bicubic", 2, img_bicubic },
        { "box", 0.5, img_box },        { "hamming", 1, img_hamming }
    };
    return &k[f];
}

/* The weights of all outputs of one axis. */
typedef struct img_taps {
    int64_t   most;             /* weights of an output, at most */
    int32_t  *first, *count;    /* [out] */
    double   *w;                /* [out, most] sum 1 */
    uint32_t *k;                /* [out, most] 2^22 times those, rounded; negative modulo 2^32 */
} img_taps;

static inline void img_taps_free(tr_ctx *ctx, img_taps *t)
{
    tr_free(ctx, t->first);
    tr_free(ctx, t->count);
    tr_free(ctx, t->w);
    tr_free(ctx, t->k);
    memset(t, 0, sizeof *t);
}

static inline tr_status img_taps_alloc(tr_ctx *ctx, img_taps *t, int64_t in, int64_t out,
                                       double reach)
{
    void *p;
    t->most = (int64_t)ceil(reach) * 2 + 1;
    if (out > INT_MAX / (t->most * 8))              /* where Pillow gives up too */
        return tr_fail(ctx, TR_ERR_RANGE, "resize of %lld to %lld pixels needs %lld weights each: "
                       "too many", (long long)in, (long long)out, (long long)t->most);
    IMG_TRY(tr_alloc(ctx, &p, (size_t)out * 4));
    t->first = (int32_t *)p;
    IMG_TRY(tr_alloc(ctx, &p, (size_t)out * 4));
    t->count = (int32_t *)p;
    IMG_TRY(tr_alloc(ctx, &p, (size_t)(out * t->most) * 8));
    t->w = (double *)p;
    IMG_TRY(tr_alloc(ctx, &p, (size_t)(out * t->most) * 4));
    t->k = (uint32_t *)p;
    return TR_OK;
}

static inline tr_status img_taps_make(tr_ctx *ctx, img_taps *t, int64_t in, int64_t out,
                                      const img_kernel *kernel)
{
    double scale = (double)in / (double)out, f = scale > 1 ? scale : 1;
    double reach = kernel->support * f, inv = 1 / f;
    IMG_TRY(img_taps_alloc(ctx, t, in, out, reach));
    for (int64_t i = 0; i < out; i++) {
        double c = ((double)i + 0.5) * scale, sum = 0, *w = t->w + i * t->most;
        int64_t lo = (int64_t)(c - reach + 0.5), hi = (int64_t)(c + reach + 0.5);
        if (lo < 0) lo = 0;
        if (hi > in) hi = in;
        for (int64_t x = 0; x < hi - lo; x++) {
            w[x] = kernel->at(((double)(x + lo) - c + 0.5) * inv);
            sum += w[x];
        }
        for (int64_t x = 0; x < hi - lo; x++) {
            if (sum != 0) w[x] /= sum;
            t->k[i * t->most + x] = (uint32_t)(int32_t)(w[x] * 4194304 + (w[x] < 0 ? -0.5 : 0.5));
        }
        t->first[i] = (int32_t)lo;
        t->count[i] = (int32_t)(hi - lo);
    }
    return TR_OK;
}

#if defined(__GNUC__)           /* into a caller that is compiled for another machine */
#define IMG_INLINE static inline __attribute__((always_inline))
#else
#define IMG_INLINE static inline
#endif

/* out[i] = clip((2^21 + sum over t of k[t] in[t stride + i]) >> 22) for i < n <= 16: rows of bytes,
 * weighted and added. Both passes are made of it. */
IMG_INLINE void img_sum_some(uint8_t *out, const uint8_t *in, size_t stride, const uint32_t *k,
                             int64_t taps, int n)
{
    uint32_t s[16];
    for (int i = 0; i < n; i++) s[i] = (uint32_t)1 << 21;
    for (int64_t t = 0; t < taps; t++)
        for (int i = 0; i < n; i++) s[i] += k[t] * in[(size_t)t * stride + (size_t)i];
    for (int i = 0; i < n; i++) {
        int32_t v = (int32_t)s[i] >> 22;
        out[i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

/* Any n: bytes go through in sixteens, the last of which may overlap the one before. */
IMG_INLINE void img_sum_body(uint8_t *out, const uint8_t *in, size_t stride, const uint32_t *k,
                             int64_t taps, int64_t n)
{
    if (n < 16) {
        img_sum_some(out, in, stride, k, taps, (int)n);
        return;
    }
    for (int64_t i = 0; i < n; i += 16) {
        int64_t at = i + 16 <= n ? i : n - 16;
        img_sum_some(out + at, in + at, stride, k, taps, 16);
    }
}

static inline void img_sum_base(uint8_t *out, const uint8_t *in, size_t stride, const uint32_t *k,
                                int64_t taps, int64_t n)
{
    img_sum_body(out, in, stride, k, taps, n);
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2")))
static inline void img_sum_avx2(uint8_t *out, const uint8_t *in, size_t stride, const uint32_t *k,
                                int64_t taps, int64_t n)
{
    img_sum_body(out, in, stride, k, taps, n);
}
#else
#define img_sum_avx2 img_sum_base
#endif

typedef void (*img_sum_fn)(uint8_t *out, const uint8_t *in, size_t stride, const uint32_t *k,
                           int64_t taps, int64_t n);

static inline img_sum_fn img_sum(const tr_ctx *ctx)
{
    return tr_ctx_cpu(ctx) == TR_CPU_BASE ? img_sum_base : img_sum_avx2;
}

/* Down: rows of the picture are the rows of img_sum. */
static inline void img_down8(img_sum_fn sum, const img *a, const img_taps *t, img *b)
{
    size_t row = (size_t)a->w * (size_t)img_bytes(a->mode);
    for (int64_t y = 0; y < b->h; y++)
        sum(img_at(b, 0, y), img_at(a, 0, t->first[y]), row, t->k + y * t->most, t->count[y],
            (int64_t)row);
}

/* Across: a strip of sixteen rows is transposed, so that a column is a row of sixteen pixels; of
 * each only the columns that the next IMG_GROUP outputs look at. */
enum { IMG_STRIP = 16, IMG_GROUP = 64 };

static inline void img_transpose(uint8_t *to, const img *a, int64_t y0, int64_t rows, int64_t x0,
                                 int64_t x1)
{
    size_t n = (size_t)(x1 - x0) * (size_t)img_bytes(a->mode);
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *in = img_at(a, x0, y0 + r);
        for (size_t i = 0; i < n; i++) to[i * IMG_STRIP + (size_t)r] = in[i];
    }
}

/* The outputs of the group that begins at g look at columns t->first[g] up to this one, less 1. */
static inline int64_t img_group_end(const img_taps *t, int64_t g, int64_t out)
{
    int64_t last = g + IMG_GROUP < out ? g + IMG_GROUP - 1 : out - 1;
    return t->first[last] + t->count[last];
}

static inline tr_status img_across8(tr_ctx *ctx, const img *a, const img_taps *t, img *b)
{
    img_sum_fn sum = img_sum(ctx);
    size_t C = (size_t)img_bytes(a->mode), span = 0, bytes;
    size_t stride = C * IMG_STRIP;                  /* bytes of a transposed column */
    uint8_t column[4 * IMG_STRIP], *strip;
    void *p;
    for (int64_t g = 0; g < b->w; g += IMG_GROUP) {
        size_t n = (size_t)(img_group_end(t, g, b->w) - t->first[g]);
        if (n > span) span = n;
    }
    IMG_TRY(tr_size_mul(ctx, &bytes, span, stride));
    IMG_TRY(tr_alloc(ctx, &p, bytes));
    strip = (uint8_t *)p;
    for (int64_t y = 0; y < a->h; y += IMG_STRIP) {
        int64_t rows = a->h - y < IMG_STRIP ? a->h - y : IMG_STRIP;
        for (int64_t x = 0; x < b->w; x++) {
            int64_t g = x - x % IMG_GROUP;
            if (x == g) img_transpose(strip, a, y, rows, t->first[g], img_group_end(t, g, b->w));
            sum(column, strip + (size_t)(t->first[x] - t->first[g]) * stride, stride,
                t->k + x * t->most, t->count[x], (int64_t)stride);
            for (int64_t r = 0; r < rows; r++) {
                uint8_t *to = img_at(b, x, y + r);
                for (size_t c = 0; c < C; c++) to[c] = column[c * IMG_STRIP + (size_t)r];
            }
        }
    }
    tr_free(ctx, p);
    return TR_OK;
}

/* One output of I;16: inputs `step` apart. Pillow 12 clips the two bytes one by one: beyond 65535
 * the upper one sticks at 255 while the lower one runs on. Pillow 13 clips the number. */
static inline uint16_t img_sum16(const uint16_t *in, size_t step, const double *w, int64_t taps,
                                 img_pillow order)
{
    double s = 0;
    int v;
    for (int64_t t = 0; t < taps; t++) s += in[(size_t)t * step] * w[t];
    v = (int)(s >= 0 ? s + 0.5 : s - 0.5);
    if (v < 0) return 0;
    if (v <= 65535) return (uint16_t)v;
    return (uint16_t)(order == IMG_PILLOW_13 ? 65535 : 0xff00 | v % 256);
}

static inline void img_pass16(const img *a, const img_taps *t, img *b, int down, img_pillow order)
{
    const uint16_t *in = (const uint16_t *)(const void *)a->px;
    uint16_t *out = (uint16_t *)(void *)b->px;
    for (int64_t y = 0; y < b->h; y++)
        for (int64_t x = 0; x < b->w; x++) {
            int64_t i = down ? y : x;
            size_t at = down ? (size_t)t->first[y] * (size_t)a->w + (size_t)x
                             : (size_t)y * (size_t)a->w + (size_t)t->first[x];
            out[(size_t)y * (size_t)b->w + (size_t)x] =
                img_sum16(in + at, down ? (size_t)a->w : 1, t->w + i * t->most, t->count[i],
                          order);
        }
}

/* One pass: b gets a's pixels with another height (down) or width, n. */
static inline tr_status img_pass_to(tr_ctx *ctx, img *b, const img *a, int64_t n, int down,
                                    const img_kernel *kernel, img_pillow order)
{
    img_taps t;
    tr_status s;
    memset(&t, 0, sizeof t);
    b->px = NULL;
    s = img_taps_make(ctx, &t, down ? a->h : a->w, n, kernel);
    if (s == TR_OK) s = img_alloc(ctx, b, a->mode, down ? a->w : n, down ? n : a->h);
    if (s == TR_OK && a->mode == IMG_I16) img_pass16(a, &t, b, down, order);
    else if (s == TR_OK && down) img_down8(img_sum(ctx), a, &t, b);
    else if (s == TR_OK) s = img_across8(ctx, a, &t, b);
    img_taps_free(ctx, &t);
    return s;
}

/* Where Pillow looks for each output of one axis: centres are added up, not multiplied, so the
 * last ones may be off; one that leaves the picture is -1, and its pixel 0. */
static inline tr_status img_nearest_of(tr_ctx *ctx, int32_t **out, int64_t in, int64_t n)
{
    double step = (double)in / (double)n, at = step * 0.5;
    void *p;
    IMG_TRY(tr_alloc(ctx, &p, (size_t)n * 4));
    *out = (int32_t *)p;
    for (int64_t i = 0; i < n; i++, at += step) (*out)[i] = at < (double)in ? (int32_t)at : -1;
    return TR_OK;
}

static inline tr_status img_nearest(tr_ctx *ctx, img *b, const img *a, int64_t w, int64_t h)
{
    size_t C = (size_t)img_bytes(a->mode);
    int32_t *xs = NULL, *ys = NULL;
    tr_status s = img_nearest_of(ctx, &xs, a->w, w);
    if (s == TR_OK) s = img_nearest_of(ctx, &ys, a->h, h);
    if (s == TR_OK) s = img_alloc(ctx, b, a->mode, w, h);
    for (int64_t y = 0; s == TR_OK && y < h; y++)
        for (int64_t x = 0; x < w; x++)
            if (xs[x] >= 0 && ys[y] >= 0)
                memcpy(img_at(b, x, y), img_at(a, xs[x], ys[y]), C);
    tr_free(ctx, xs);
    tr_free(ctx, ys);
    return s;
}

/* Colours times alpha, c a / 255 rounded; and back, cut off. The last channel is alpha. */
static inline void img_premultiply(img *m)
{
    int C = img_bytes(m->mode);
    uint8_t *p = m->px;
    for (int64_t i = 0; i < m->w * m->h; i++, p += C)
        for (int c = 0; c < C - 1; c++) p[c] = img_mul255(p[c], p[C - 1]);
}

static inline void img_unpremultiply(img *m)
{
    int C = img_bytes(m->mode);
    uint8_t *p = m->px;
    for (int64_t i = 0; i < m->w * m->h; i++, p += C)
        for (int c = 0; c < C - 1; c++) {
            int a = p[C - 1], v = a ? 255 * p[c] / a : 0;
            if (a && a < 255) p[c] = (uint8_t)(v < 255 ? v : 255);
        }
}

static inline tr_status img_copy(tr_ctx *ctx, img *b, const img *a)
{
    IMG_TRY(img_alloc(ctx, b, a->mode, a->w, a->h));
    memcpy(b->px, a->px, (size_t)(a->w * a->h) * (size_t)img_bytes(a->mode));
    return TR_OK;
}

/* Both passes, those that are needed. */
static inline tr_status img_passes(tr_ctx *ctx, img *out, const img *a, int64_t w, int64_t h,
                                   const img_kernel *kernel, img_pillow order)
{
    int down_first = order == IMG_PILLOW_13 && h < a->h && a->h - h > 2 * (a->w - w);
    img mid = *a;
    tr_status s;
    if (w == a->w) return img_pass_to(ctx, out, a, h, 1, kernel, order);
    if (h == a->h) return img_pass_to(ctx, out, a, w, 0, kernel, order);
    s = img_pass_to(ctx, &mid, a, down_first ? h : w, down_first, kernel, order);
    if (s == TR_OK)
        s = img_pass_to(ctx, out, &mid, down_first ? w : h, !down_first, kernel, order);
    tr_free(ctx, mid.px);
    return s;
}

/* Image.resize((w, h), filter). out must not be src; what stands beside the pixels is copied. */
static inline tr_status img_resize(tr_ctx *ctx, img *out, const img *src, int64_t w, int64_t h,
                                   img_filter filter, img_pillow order)
{
    img weighted = *src;
    tr_status s;
    *out = *src;
    out->px = NULL;
    if (w == src->w && h == src->h) {
        s = img_copy(ctx, out, src);
    } else if (src->mode == IMG_1 || src->mode == IMG_P || filter == IMG_NEAREST) {
        s = img_nearest(ctx, out, src, w, h);
    } else if (img_has_alpha(src->mode)) {
        s = img_copy(ctx, &weighted, src);
        if (s == TR_OK) img_premultiply(&weighted);
        if (s == TR_OK) s = img_passes(ctx, out, &weighted, w, h, img_kernel_get(filter), order);
        if (s == TR_OK) img_unpremultiply(out);
        tr_free(ctx, weighted.px);
    } else {
        s = img_passes(ctx, out, src, w, h, img_kernel_get(filter), order);
    }
    if (s != TR_OK) img_free(ctx, out);
    return s;
}

/* ============================================================================
 * Processors {key}
 *
 * preprocessor_config.json decides; a key is a row in one of five classes, and one without a row
 * is refused by name, unless the caller accepts it by name:
 *
 *     required     it must be there
 *     optional     what its absence (or null) means stands in the row
 *     only         one of these values (split by |); the first is what its absence means
 *     exact        the same, but it must be there
 *     inert        it changes no pixel of a still picture
 *
 * A file with media_proc_cfg is Kimi's; one with an image_processor_type of Qwen2-VL is Qwen's.
 * ========================================================================= */

typedef enum img_family { IMG_KIMI, IMG_QWEN } img_family;

/* What lies under transparent pixels. none: alpha is dropped, as convert("RGB") does. */
typedef enum img_fill {
    IMG_FILL_NONE, IMG_FILL_WHITE, IMG_FILL_BLACK, IMG_FILL_GRAY, IMG_FILL_CHESS
} img_fill;

enum { IMG_MAX_FACTS = 48, IMG_FACT = 96, IMG_MAX_SIDE = 1024 };

typedef struct img_fact { char key[IMG_FACT], value[IMG_FACT]; } img_fact;

typedef struct img_proc {
    img_family family;
    int64_t    patch, merge, temporal;      /* pixels of a patch; patches of a token, each way;
                                               frames of a patch (Qwen repeats a still picture) */
    double     mean[3], std[3], rescale;
    img_filter filter;
    int64_t    patch_limit, side_limit;     /* Kimi: patches in all, and of a side */
    img_fill   fill;
    int64_t    fill_before;                 /* 1: before the resize, 0: after */
    int64_t    square, square_first, white, gray;
    int64_t    min_pixels, max_pixels;      /* Qwen */
    float      value[3][256];               /* of a byte of each channel, normalised */
    int        n_facts;  img_fact fact[IMG_MAX_FACTS];  /* key and value of every row, as read */
    char       sha256[65];                  /* of the file */
} img_proc;

static inline const char *img_family_name(img_family f)
{
    return f == IMG_KIMI ? "kimi" : "qwen2_vl";
}

typedef enum img_class { IMG_REQUIRED, IMG_OPTIONAL, IMG_ONLY, IMG_EXACT, IMG_INERT } img_class;

typedef enum img_type {
    IMG_SIZE,                   /* int64_t, 1 to 2^40 */
    IMG_SIDE,                   /* int64_t, 1 to IMG_MAX_SIDE: of patches, squares, groups */
    IMG_BYTE,                   /* int64_t, 0 to 255 */
    IMG_REAL,                   /* double, positive */
    IMG_REAL3,                  /* double [3] */
    IMG_POS3,                   /* double [3], positive */
    IMG_WORD,                   /* int64_t: which of the words of `value`, split by | */
    IMG_ANY                     /* nothing is stored */
} img_type;

typedef struct img_key {
    const char *path;
    img_class   cls;
    img_type    type;
    size_t      field;
    const char *value;          /* only, exact, word: what is allowed */
    const char *absent;         /* optional: the value in JSON that absence (or null) means */
} img_key;

#define IMG_F(f) offsetof(img_proc, f)

static const img_key img_kimi_keys[] = {
    { "media_proc_cfg", IMG_REQUIRED, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.in_patch_limit", IMG_REQUIRED, IMG_SIZE, IMG_F(patch_limit), NULL, NULL },
    { "media_proc_cfg.patch_size", IMG_REQUIRED, IMG_SIDE, IMG_F(patch), NULL, NULL },
    { "media_proc_cfg.image_mean", IMG_REQUIRED, IMG_REAL3, IMG_F(mean), NULL, NULL },
    { "media_proc_cfg.image_std", IMG_REQUIRED, IMG_POS3, IMG_F(std), NULL, NULL },
    { "media_proc_cfg.merge_kernel_size", IMG_REQUIRED, IMG_SIDE, IMG_F(merge), NULL, NULL },
    { "media_proc_cfg.fixed_output_tokens", IMG_EXACT, IMG_ANY, 0, "null", NULL },
    { "media_proc_cfg.patch_limit_on_one_side", IMG_REQUIRED, IMG_SIZE, IMG_F(side_limit), NULL,
      NULL },
    /* Absent or null: alpha is dropped. If it is there, so are all its members: the defaults of
     * the vendor's class are other values than those that the checkpoints ship. */
    { "media_proc_cfg.transparent_bg_config", IMG_OPTIONAL, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.transparent_bg_config.pattern", IMG_REQUIRED, IMG_WORD, IMG_F(fill),
      "none|white|black|gray|chessboard", NULL },
    { "media_proc_cfg.transparent_bg_config.chessboard_square_size", IMG_REQUIRED, IMG_SIDE,
      IMG_F(square), NULL, NULL },
    { "media_proc_cfg.transparent_bg_config.chessboard_square_on_top_left", IMG_REQUIRED, IMG_WORD,
      IMG_F(square_first), "false|true", NULL },
    { "media_proc_cfg.transparent_bg_config.chessboard_white_value", IMG_REQUIRED, IMG_BYTE,
      IMG_F(white), NULL, NULL },
    { "media_proc_cfg.transparent_bg_config.chessboard_gray_value", IMG_REQUIRED, IMG_BYTE,
      IMG_F(gray), NULL, NULL },
    { "media_proc_cfg.transparent_bg_fill_stage", IMG_OPTIONAL, IMG_WORD, IMG_F(fill_before),
      "after_resize|before_resize", "\"before_resize\"" },
    /* Of films only. */
    { "media_proc_cfg.in_patch_limit_each_frame", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.in_patch_limit_video", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.max_num_frames_each_video", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.sample_fps", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.temporal_merge_kernel_size", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "media_proc_cfg.timestamp_mode", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "auto_map", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "image_processor_type", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "processor_class", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { NULL, IMG_INERT, IMG_ANY, 0, NULL, NULL }
};

static const img_key img_qwen_keys[] = {
    /* The one named Fast resizes with torchvision, which gives other pixels. */
    { "image_processor_type", IMG_EXACT, IMG_ANY, 0,
      "Qwen2VLImageProcessor|Qwen2VLImageProcessorPil", NULL },
    { "patch_size", IMG_REQUIRED, IMG_SIDE, IMG_F(patch), NULL, NULL },
    { "merge_size", IMG_REQUIRED, IMG_SIDE, IMG_F(merge), NULL, NULL },
    { "temporal_patch_size", IMG_REQUIRED, IMG_SIDE, IMG_F(temporal), NULL, NULL },
    { "image_mean", IMG_REQUIRED, IMG_REAL3, IMG_F(mean), NULL, NULL },
    { "image_std", IMG_REQUIRED, IMG_POS3, IMG_F(std), NULL, NULL },
    /* Both bounds, under either pair of names; both pairs must say the same. */
    { "size", IMG_OPTIONAL, IMG_ANY, 0, NULL, NULL },
    { "size.shortest_edge", IMG_OPTIONAL, IMG_SIZE, IMG_F(min_pixels), NULL, NULL },
    { "size.longest_edge", IMG_OPTIONAL, IMG_SIZE, IMG_F(max_pixels), NULL, NULL },
    { "min_pixels", IMG_OPTIONAL, IMG_SIZE, IMG_F(min_pixels), NULL, NULL },
    { "max_pixels", IMG_OPTIONAL, IMG_SIZE, IMG_F(max_pixels), NULL, NULL },
    { "resample", IMG_OPTIONAL, IMG_WORD, IMG_F(filter), "0|1|2|3|4|5", "3" },
    { "rescale_factor", IMG_OPTIONAL, IMG_REAL, IMG_F(rescale), NULL,
      "0.00392156862745098" },
    { "do_convert_rgb", IMG_ONLY, IMG_ANY, 0, "true", NULL },
    { "do_resize", IMG_ONLY, IMG_ANY, 0, "true", NULL },
    { "do_rescale", IMG_ONLY, IMG_ANY, 0, "true", NULL },
    { "do_normalize", IMG_ONLY, IMG_ANY, 0, "true", NULL },
    { "do_center_crop", IMG_ONLY, IMG_ANY, 0, "null|false", NULL },
    { "do_pad", IMG_ONLY, IMG_ANY, 0, "null|false", NULL },
    { "crop_size", IMG_ONLY, IMG_ANY, 0, "null", NULL },
    { "pad_size", IMG_ONLY, IMG_ANY, 0, "null", NULL },
    { "input_data_format", IMG_ONLY, IMG_ANY, 0, "null", NULL },
    { "data_format", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "default_to_square", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "device", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "disable_grouping", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "return_tensors", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "auto_map", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "feature_extractor_type", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { "processor_class", IMG_INERT, IMG_ANY, 0, NULL, NULL },
    { NULL, IMG_INERT, IMG_ANY, 0, NULL, NULL }
};

enum { IMG_MAX_KEYS = 40 };

typedef struct img_reader {
    tr_ctx        *ctx;
    const tr_json *json;
    const img_key *row;
    img_proc      *p;
    const char *const *accept;  int64_t n_accept;
    char           seen[IMG_MAX_KEYS];
} img_reader;

/* The place of word among the words of list, split by |; -1: it is none of them. */
static inline int img_word_of(const char *list, const char *word)
{
    for (int i = 0; *list; i++) {
        size_t n = strcspn(list, "|");
        if (strlen(word) == n && !memcmp(list, word, n)) return i;
        list += n + (list[n] == '|');
    }
    return -1;
}

static inline tr_status img_bad_value(const img_reader *rd, const tr_json_node *v,
                                      const char *path, const char *want)
{
    const char *quote = v->type == TR_JSON_STR ? "\"" : "";
    return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: key \"%s\" is %s%.60s%s and must be %s",
                   rd->json->name, v->line, path, quote,
                   v->type == TR_JSON_ARRAY || v->type == TR_JSON_OBJECT
                       ? tr_json_type_str(v->type) : tr_json_str(rd->json, v), quote, want);
}

static inline void *img_field(const img_reader *rd, const img_key *k)
{
    return (char *)rd->p + k->field;
}

/* Did the caller accept this key by name? */
static inline int img_accepts(const img_reader *rd, const char *path)
{
    for (int64_t a = 0; a < rd->n_accept; a++)
        if (!strcmp(rd->accept[a], path)) return 1;
    return 0;
}

/* One of the row's words. */
static inline tr_status img_read_word(const img_reader *rd, const img_key *k, const tr_json_node *v)
{
    const char *s = tr_json_str(rd->json, v);
    int64_t word = v->type == TR_JSON_ARRAY ? -1 : img_word_of(k->value, s);
    int bare = !strcmp(s, "true") || !strcmp(s, "false") || !strcmp(s, "null") ||
               strspn(s, "0123456789") > 0;
    if (bare == (v->type == TR_JSON_STR)) word = -1;    /* to the vendor "false" is true */
    if (k->type == IMG_WORD && !strcmp(s, "none")) word = -1;           /* absence says it */
    if (word < 0 && k->type == IMG_ANY && img_accepts(rd, k->path)) word = 0;
    if (word < 0) return img_bad_value(rd, v, k->path, k->value);
    if (k->type != IMG_WORD) return TR_OK;
    if (k->field == IMG_F(fill)) rd->p->fill = (img_fill)word;
    else if (k->field == IMG_F(filter)) rd->p->filter = (img_filter)word;
    else memcpy(img_field(rd, k), &word, sizeof word);
    return TR_OK;
}

/* Three numbers, as values and, in text [IMG_FACT], as a fact. */
static inline tr_status img_read_real3(const img_reader *rd, const img_key *k,
                                       const tr_json_node *v, char *text)
{
    const tr_json_node *e = tr_json_first(rd->json, v);
    double d[3];
    size_t at = 0;
    int i = 0;
    for (; v->type == TR_JSON_ARRAY && e && i < 3; e = tr_json_next(rd->json, e), i++) {
        if (e->type != TR_JSON_NUM || tr_json_num(rd->json, e, &d[i]) != TR_OK) break;
        if (fabs(d[i]) > 1e6 || (k->type == IMG_POS3 && !(d[i] >= 1e-6))) break;
        if (at < IMG_FACT)
            at += (size_t)snprintf(text + at, IMG_FACT - at, "%s%.24s%s", i ? ", " : "[",
                                   tr_json_str(rd->json, e), i == 2 ? "]" : "");
    }
    if (i != 3 || e)
        return img_bad_value(rd, v, k->path, k->type == IMG_POS3
                             ? "a list of three positive numbers, 1e-6 to 1e6"
                             : "a list of three numbers, -1e6 to 1e6");
    memcpy(img_field(rd, k), d, sizeof d);
    return TR_OK;
}

static inline tr_status img_read_real(const img_reader *rd, const img_key *k, const tr_json_node *v)
{
    double d = 0;
    if (v->type != TR_JSON_NUM || tr_json_num(rd->json, v, &d) != TR_OK || !(d > 0 && d < 1e6))
        return img_bad_value(rd, v, k->path, "a positive number, less than 1e6");
    memcpy(img_field(rd, k), &d, sizeof d);
    return TR_OK;
}

/* An integer, which another key may have set already: to the same. */
static inline tr_status img_read_int(const img_reader *rd, const img_key *k, const tr_json_node *v)
{
    int64_t old, n = 0, most = k->type == IMG_SIZE ? (int64_t)1 << 40
                             : k->type == IMG_BYTE ? 255 : IMG_MAX_SIDE;
    if (v->type != TR_JSON_NUM || tr_json_int(rd->json, v, &n) != TR_OK ||
        n < (k->type != IMG_BYTE) || n > most)
        return img_bad_value(rd, v, k->path, k->type == IMG_SIZE ? "an integer from 1 to 2^40"
                             : k->type == IMG_BYTE ? "an integer from 0 to 255"
                                                   : "an integer from 1 to 1024");
    memcpy(&old, img_field(rd, k), sizeof old);
    if (old && old != n)
        return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: key \"%s\" is %lld, and another key "
                       "says %lld", rd->json->name, v->line, k->path, (long long)n, (long long)old);
    memcpy(img_field(rd, k), &n, sizeof n);
    return TR_OK;
}

/* v goes to row i's field and becomes a fact. */
static inline tr_status img_read_row(img_reader *rd, int i, const tr_json_node *v)
{
    const img_key *k = &rd->row[i];
    img_fact *f = &rd->p->fact[rd->p->n_facts];
    int group = k->type == IMG_ANY && k->cls < IMG_ONLY;        /* an object with rows of its own */
    int three = k->type == IMG_REAL3 || k->type == IMG_POS3;
    rd->seen[i] = v->type != TR_JSON_NULL || k->cls != IMG_OPTIONAL;
    if (k->cls == IMG_INERT || !rd->seen[i]) return TR_OK;
    if (group != (v->type == TR_JSON_OBJECT))
        return img_bad_value(rd, v, k->path, group ? "an object" : "no object");
    if (group) return TR_OK;
    if (k->cls >= IMG_ONLY || k->type == IMG_WORD) IMG_TRY(img_read_word(rd, k, v));
    else if (three) IMG_TRY(img_read_real3(rd, k, v, f->value));
    else if (k->type == IMG_REAL) IMG_TRY(img_read_real(rd, k, v));
    else IMG_TRY(img_read_int(rd, k, v));
    snprintf(f->key, sizeof f->key, "%s", k->path);
    if (v->type != TR_JSON_ARRAY)
        snprintf(f->value, sizeof f->value, "%s", tr_json_str(rd->json, v));
    rd->p->n_facts++;
    return TR_OK;
}

static inline tr_status img_read_object(img_reader *rd, const tr_json_node *obj, const char *lead)
{
    const tr_json_node *v = tr_json_first(rd->json, obj);
    char path[256];
    for (; v; v = tr_json_next(rd->json, v)) {
        int i = 0, n = snprintf(path, sizeof path, "%s%s", lead, tr_json_key(rd->json, v));
        if (n < 0 || n >= (int)sizeof path - 1)
            return tr_fail(rd->ctx, TR_ERR_FORMAT, "%s line %d: a key of %d bytes is too long",
                           rd->json->name, v->line, n);
        while (rd->row[i].path && strcmp(rd->row[i].path, path) != 0) i++;
        if (!rd->row[i].path) {
            if (img_accepts(rd, path)) continue;
            return tr_fail(rd->ctx, TR_ERR_UNSUPPORTED, "%s line %d: unknown key \"%s\"; accept it "
                           "by name if it changes nothing", rd->json->name, v->line, path);
        }
        IMG_TRY(img_read_row(rd, i, v));
        if (v->type == TR_JSON_OBJECT && rd->row[i].cls != IMG_INERT) {
            path[n] = '.';
            path[n + 1] = 0;
            IMG_TRY(img_read_object(rd, v, path));
        }
    }
    return TR_OK;
}

/* The object that the last key of a path lies in; NULL: it is not there, or null. */
static inline const tr_json_node *img_parent(const tr_json *json, const char *path)
{
    const char *dot = strrchr(path, '.');
    const tr_json_node *v = json->node;
    char part[128];
    while (dot && v && path < dot) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = tr_json_get(json, v, part);
        path += n + 1;
    }
    return v && v->type != TR_JSON_NULL ? v : NULL;
}

/* Required rows whose object is there must be there too. */
static inline tr_status img_check_missing(const img_reader *rd)
{
    for (int i = 0; rd->row[i].path; i++) {
        int needed = rd->row[i].cls == IMG_REQUIRED || rd->row[i].cls == IMG_EXACT;
        if (needed && !rd->seen[i] && img_parent(rd->json, rd->row[i].path))
            return tr_fail(rd->ctx, TR_ERR_MISSING, "%s: key \"%s\" is missing", rd->json->name,
                           rd->row[i].path);
    }
    return TR_OK;
}

/* What absence means, for optional rows that were not there. */
static inline tr_status img_read_absent(img_reader *rd)
{
    const tr_json *file = rd->json;
    tr_status s = TR_OK;
    tr_json j;
    for (int i = 0; rd->row[i].path && s == TR_OK; i++) {
        const char *text = rd->row[i].absent;
        if (rd->seen[i] || !text) continue;
        s = tr_json_parse(rd->ctx, &j, rd->row[i].path, text, strlen(text));
        rd->json = &j;
        if (s == TR_OK) s = img_read_row(rd, i, j.node);
        tr_json_free(&j);
    }
    rd->json = file;
    return s;
}

/* value[v] = (v rescale - mean) / std as transformers rounds it (rescale, then normalize): the
 * product in binary64 and then stored in binary32, the rest in binary32. */
static inline void img_qwen_normalize(float value[256], double rescale, double mean, double std)
{
    for (int v = 0; v < 256; v++) {
        float x = (float)(v * rescale);
        x = x - (float)mean;
        value[v] = x / (float)std;
    }
}

/* Qwen's bounds, which may come under either pair of names. */
static inline tr_status img_check_bounds(tr_ctx *ctx, const img_proc *p, const char *name)
{
    if (!p->min_pixels || !p->max_pixels)
        return tr_fail(ctx, TR_ERR_MISSING, "%s: key \"size.%s_edge\" (or \"%s_pixels\") is "
                       "missing", name, p->min_pixels ? "longest" : "shortest",
                       p->min_pixels ? "max" : "min");
    if (p->min_pixels > p->max_pixels)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: at least %lld and at most %lld pixels cannot be",
                       name, (long long)p->min_pixels, (long long)p->max_pixels);
    return TR_OK;
}

/* From text [n]. accept [n_accept]: keys to let pass that have no row, or a value that is not
 * among the row's. */
static inline tr_status img_proc_parse(tr_ctx *ctx, img_proc *p, const char *name, const char *text,
                                       size_t n, const char *const *accept, int64_t n_accept)
{
    img_reader rd;
    tr_json j;
    tr_status s;
    memset(p, 0, sizeof *p);
    memset(&rd, 0, sizeof rd);
    IMG_TRY(tr_json_parse(ctx, &j, name, text, n));
    rd.ctx = ctx;
    rd.json = &j;
    rd.p = p;
    rd.accept = accept;
    rd.n_accept = n_accept;
    p->filter = IMG_BICUBIC;                        /* Kimi's code; Qwen's is a key */
    p->family = tr_json_get(&j, j.node, "media_proc_cfg") ? IMG_KIMI : IMG_QWEN;
    if (p->family == IMG_KIMI) p->temporal = 1;
    rd.row = p->family == IMG_KIMI ? img_kimi_keys : img_qwen_keys;
    if (j.node->type != TR_JSON_OBJECT || (p->family == IMG_QWEN &&
                                           !tr_json_get(&j, j.node, "image_processor_type")))
        s = tr_fail(ctx, TR_ERR_UNSUPPORTED, "%s: neither \"media_proc_cfg\" nor "
                    "\"image_processor_type\" is there, so the processor is not known", name);
    else
        s = img_read_object(&rd, j.node, "");
    if (s == TR_OK) s = img_check_missing(&rd);
    if (s == TR_OK) s = img_read_absent(&rd);
    if (s == TR_OK && p->family == IMG_QWEN) s = img_check_bounds(ctx, p, name);
    tr_json_free(&j);
    if (s != TR_OK) {
        memset(p, 0, sizeof *p);
        return s;
    }
    for (int c = 0; c < 3; c++)
        if (p->family == IMG_KIMI) tr_image_normalize(p->value[c], p->mean[c], p->std[c]);
        else img_qwen_normalize(p->value[c], p->rescale, p->mean[c], p->std[c]);
    img_sha256(p->sha256, text, n);
    return TR_OK;
}

/* From preprocessor_config.json in dir, or from dir if it is that file. */
static inline tr_status img_proc_load(tr_ctx *ctx, img_proc *p, const char *dir,
                                      const char *const *accept, int64_t n_accept)
{
    size_t n = strlen(dir);
    int is_file = n > 5 && !strcmp(dir + n - 5, ".json");
    char path[4096];
    void *text;
    memset(p, 0, sizeof *p);
    if (snprintf(path, sizeof path, is_file ? "%s" : "%s/preprocessor_config.json", dir) >= 4096)
        return tr_fail(ctx, TR_ERR_ARG, "%.40s..: the name is too long", dir);
    IMG_TRY(img_read_file(ctx, path, (size_t)1 << 20, &text, &n));
    tr_status s = img_proc_parse(ctx, p, path, (const char *)text, n, accept, n_accept);
    tr_free(ctx, text);
    return s;
}

/* ============================================================================
 * Size rules {size}
 *
 * Kimi, in binary64, never larger, then padded to whole tokens of `merge` patches each way:
 *
 *     s  = min(1, sqrt(L / (max(1, w div p) max(1, h div p))), S p / w, S p / h)
 *     nw = min(max(1, trunc(w s)), S p)             L: in_patch_limit, S: patch_limit_on_one_side
 *
 * Qwen, to multiples of f = p merge, ties to even, the aspect at most 200:
 *
 *     nw, nh = round(w / f) f, round(h / f) f
 *     nw nh > max:  b = sqrt(w h / max),  max(f, floor(w / b / f) f)
 *     nw nh < min:  b = sqrt(min / (w h)),       ceil(w b / f) f
 * ========================================================================= */

typedef struct img_grid {
    int64_t w, h;               /* of the file */
    int64_t nw, nh;             /* resized */
    int64_t pw, ph;             /* padding at the right and below */
    int64_t gw, gh;             /* patches, both multiples of merge */
    int64_t patches, tokens;
    int64_t patch_len;          /* numbers of a patch: 3 temporal p p */
} img_grid;

static inline int64_t img_kimi_side(const img_proc *p, int64_t n, double scale)
{
    int64_t m = (int64_t)((double)n * scale), most = p->side_limit * p->patch;
    if (m < 1) m = 1;
    return m < most ? m : most;
}

static inline void img_kimi_size(const img_proc *p, img_grid *g)
{
    int64_t rows = g->h / p->patch, cols = g->w / p->patch, f = p->merge * p->patch;
    double side = (double)(p->side_limit * p->patch);
    double s = sqrt((double)p->patch_limit / ((cols > 1 ? (double)cols : 1) *
                                              (rows > 1 ? (double)rows : 1)));
    s = fmin(1, fmin(s, fmin(side / (double)g->w, side / (double)g->h)));
    g->nw = img_kimi_side(p, g->w, s);
    g->nh = img_kimi_side(p, g->h, s);
    g->pw = (f - g->nw % f) % f;
    g->ph = (f - g->nh % f) % f;
}

static inline double img_round_even(double x)       /* halves to even; 0 <= x < 2^52 */
{
    double n = floor(x), d = x - n;
    return d > 0.5 || (d == 0.5 && fmod(n, 2) == 1) ? n + 1 : n;
}

static inline void img_qwen_size(const img_proc *p, img_grid *g)
{
    double f = (double)(p->patch * p->merge), w = (double)g->w, h = (double)g->h;
    double most = (double)p->max_pixels, least = (double)p->min_pixels;
    double nw = img_round_even(w / f) * f, nh = img_round_even(h / f) * f, b;
    if (nw * nh > most) {
        b = sqrt(h * w / most);
        nh = floor(h / b / f) * f;
        nw = floor(w / b / f) * f;
        if (nh < f) nh = f;
        if (nw < f) nw = f;
    } else if (nw * nh < least) {
        b = sqrt(least / (h * w));
        nh = ceil(h * b / f) * f;
        nw = ceil(w * b / f) * f;
    }
    g->nw = (int64_t)nw;
    g->nh = (int64_t)nh;
}

/* What becomes of w x h pixels; name is for messages. */
static inline tr_status img_size(tr_ctx *ctx, const img_proc *p, const char *name, int64_t w,
                                 int64_t h, img_grid *g)
{
    double lw = (double)w, lh = (double)h;
    memset(g, 0, sizeof *g);
    g->w = w;
    g->h = h;
    IMG_TRY(img_check_size(ctx, name, w, h, (int64_t)1 << 40));
    if (p->family == IMG_QWEN && (lw > lh ? lw / lh : lh / lw) > 200)
        return tr_fail(ctx, TR_ERR_RANGE, "%s: %lld x %lld pixels: one side is more than 200 times "
                       "the other", name, (long long)w, (long long)h);
    if (p->family == IMG_KIMI) img_kimi_size(p, g);
    else img_qwen_size(p, g);
    int64_t W = g->nw + g->pw, H = g->nh + g->ph;   /* padded */
    if (!((double)W * (double)H * (double)p->temporal <= 1 << 28))
        return tr_fail(ctx, TR_ERR_RANGE, "%s: %lld x %lld pixels become %lld x %lld of %lld "
                       "frames: too many", name, (long long)w, (long long)h, (long long)W,
                       (long long)H, (long long)p->temporal);
    g->gw = W / p->patch;
    g->gh = H / p->patch;
    if (p->family == IMG_KIMI && (g->gw > p->side_limit || g->gh > p->side_limit))
        return tr_fail(ctx, TR_ERR_RANGE, "%s: %lld x %lld patches, and a side may have %lld", name,
                       (long long)g->gw, (long long)g->gh, (long long)p->side_limit);
    g->patches = g->gw * g->gh;
    g->tokens = g->patches / (p->merge * p->merge);
    g->patch_len = 3 * p->temporal * p->patch * p->patch;
    return TR_OK;
}

/* ============================================================================
 * Pixels to patches {pixels}
 *
 *     fill       A = a / 255,  out = trunc(A c + (1 - A) b)     binary32, one rounding a step
 *     pad        black, at the right and below, before the values are normalised
 *     values     one table of 256 numbers a channel
 *     patches    [gh, gw] in rows (Kimi), or in tokens of merge x merge patches (Qwen)
 *     a patch    [3, temporal, p, p]
 *
 * b is the chessboard in coordinates of the picture that is filled: after the resize, for Kimi.
 * ========================================================================= */

typedef struct img_pixels {
    img_grid  grid;
    img_pillow order;
    uint8_t  *resized;          /* [nh, nw, 3] owned: after resize and fill, before padding */
    float    *values;           /* [patches, patch_len] owned */
} img_pixels;

static inline void img_pixels_free(tr_ctx *ctx, img_pixels *x)
{
    tr_free(ctx, x->resized);
    tr_free(ctx, x->values);
    memset(x, 0, sizeof *x);
}

static inline uint8_t img_under(const img_proc *p, int64_t x, int64_t y)
{
    int64_t odd;
    switch (p->fill) {
    case IMG_FILL_WHITE: return 255;
    case IMG_FILL_GRAY:  return 128;
    case IMG_FILL_CHESS:
        odd = (y / p->square + x / p->square) % 2;
        return (uint8_t)(odd == p->square_first ? p->gray : p->white);
    default:             return 0;
    }
}

/* out = trunc(A c + (1 - A) b),   A = a / 255 */
static inline void img_blend(uint8_t *out, const uint8_t *rgba, uint8_t under)
{
    float A = (float)rgba[3] / 255.0f, b = (1.0f - A) * (float)under;
    for (int c = 0; c < 3; c++) {
        float over = A * (float)rgba[c];
        out[c] = (uint8_t)(over + b);
    }
}

/* a as RGB; with a pattern, and if it has alpha in any form, over that. An RGB picture stays as it
 * is, even one with a transparent colour. */
static inline tr_status img_flatten(tr_ctx *ctx, const img_proc *p, img *out, const img *a)
{
    int blend = p->fill != IMG_FILL_NONE && (img_has_alpha(a->mode) || a->has_key);
    void *row;
    *out = *a;
    out->px = NULL;
    if (a->mode == IMG_RGB) return img_copy(ctx, out, a);
    IMG_TRY(tr_alloc(ctx, &row, (size_t)a->w * 4));
    tr_status s = img_alloc(ctx, out, IMG_RGB, a->w, a->h);
    for (int64_t y = 0; s == TR_OK && y < a->h; y++) {
        const uint8_t *q = (const uint8_t *)row;
        uint8_t *to = img_at(out, 0, y);
        img_row_rgba(a, y, (uint8_t *)row);
        for (int64_t x = 0; x < a->w; x++, q += 4, to += 3)
            if (blend) img_blend(to, q, img_under(p, x, y));
            else memcpy(to, q, 3);
    }
    tr_free(ctx, row);
    return s;
}

/* m as the processor resizes it, in RGB. */
static inline tr_status img_to_size(tr_ctx *ctx, const img_proc *p, const img *m, const img_grid *g,
                                    img_pillow order, img *out)
{
    int rgb_first = p->family == IMG_QWEN || p->fill_before;
    img mid;
    tr_status s;
    if (m->mode == IMG_RGB) return img_resize(ctx, out, m, g->nw, g->nh, p->filter, order);
    s = rgb_first ? img_flatten(ctx, p, &mid, m)
                  : img_resize(ctx, &mid, m, g->nw, g->nh, p->filter, order);
    if (s != TR_OK) return s;
    s = rgb_first ? img_resize(ctx, out, &mid, g->nw, g->nh, p->filter, order)
                  : img_flatten(ctx, p, out, &mid);
    img_free(ctx, &mid);
    return s;
}

/* The patch at row i, column k of the grid: out [3, temporal, p, p]. */
static inline void img_patch(const img_proc *p, const img_pixels *x, int64_t i, int64_t k,
                             float *out)
{
    int64_t n = p->patch * p->patch, T = p->temporal;
    tr_patch(out, x->resized, x->grid.nh, x->grid.nw, i, k, p->patch, p->value[0]);
    for (int64_t c = 2; T > 1 && c >= 0; c--)       /* from the last on: none is overwritten */
        for (int64_t t = T - 1; t >= 0; t--)
            memmove(out + (c * T + t) * n, out + c * n, (size_t)n * sizeof *out);
}

static inline void img_patches(const img_proc *p, img_pixels *x)
{
    const img_grid *g = &x->grid;
    int64_t m = p->family == IMG_QWEN ? p->merge : 1;   /* patches of a block, each way */
    float *out = x->values;
    for (int64_t i = 0; i < g->gh; i += m)
        for (int64_t k = 0; k < g->gw; k += m)
            for (int64_t a = 0; a < m; a++)
                for (int64_t b = 0; b < m; b++, out += g->patch_len)
                    img_patch(p, x, i + a, k + b, out);
}

/* Everything: m through p with one of Pillow's orders. */
static inline tr_status img_process(tr_ctx *ctx, const img_proc *p, const img *m, img_pillow order,
                                    img_pixels *out)
{
    img rgb;
    void *q;
    size_t n;
    tr_status s;
    memset(out, 0, sizeof *out);
    IMG_TRY(img_size(ctx, p, "the picture", m->w, m->h, &out->grid));
    s = img_to_size(ctx, p, m, &out->grid, order, &rgb);
    if (s == TR_OK) {
        out->order = order;
        out->resized = rgb.px;
        s = tr_size_mul(ctx, &n, (size_t)out->grid.patches, (size_t)out->grid.patch_len * 4);
    }
    if (s == TR_OK) s = tr_alloc(ctx, &q, n);
    if (s == TR_OK) {
        out->values = (float *)q;
        img_patches(p, out);
    } else {
        img_pixels_free(ctx, out);
    }
    return s;
}

#endif
