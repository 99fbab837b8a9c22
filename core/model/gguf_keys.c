/* Gguf, the metadata: values by key, arrays by index, and short texts of them for people.
 * Thread: any, the file is immutable. Must not know: what keys mean. Tests: tests/unit/test_gguf.c */
#include "model/gguf_file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_ELEMENTS 4u
#define SHOWN_BYTES 80u

uint64_t gguf_load(const uint8_t *from, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)from[i] << 8 * i;
    return v;
}

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    if (order)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

const char *gguf_printable(char *dst, size_t dstlen, struct gguf_str s)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0, i;

    for (i = 0; i < s.len && i < SHOWN_BYTES && n + 8 < dstlen; i++) {
        unsigned char ch = (unsigned char)s.data[i];
        if (ch >= 0x20 && ch < 0x7f) {
            if (ch == '\\' || ch == '"')
                dst[n++] = '\\';
            dst[n++] = (char)ch;
        } else {
            dst[n++] = '\\';
            dst[n++] = 'x';
            dst[n++] = hex[ch >> 4];
            dst[n++] = hex[ch & 15];
        }
    }
    for (unsigned dots = 0; i < s.len && dots < 3; dots++)
        dst[n++] = '.';
    dst[n] = 0;
    return dst;
}

static const struct gguf_key *find(const struct gguf *f, const char *key)
{
    struct gguf_str wanted = { .data = key, .len = strlen(key) };
    uint64_t lo = 0, hi = f->n_keys;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = gguf_str_compare(f->keys_by_name[mid]->name, wanted);
        if (order == 0)
            return f->keys_by_name[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static int wrong_type(const char *key, uint32_t found, const char *wanted, char *err, size_t errlen)
{
    snprintf(err, errlen, "key %s: is of type %s, %s is wanted", key, gguf_value_type_name(found), wanted);
    return -EINVAL;
}

/* An integer of any width as int64; false when the type is no integer or the value does not fit. */
static bool as_int(uint32_t type, const uint8_t *value, int64_t *ret)
{
    uint64_t v = gguf_load(value, gguf_scalar_size(type));
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *ret = (int64_t)v;
        return true;
    case GGUF_U64:
        *ret = (int64_t)v;
        return v <= INT64_MAX;
    case GGUF_I8:
        *ret = (int8_t)v;
        return true;
    case GGUF_I16:
        *ret = (int16_t)v;
        return true;
    case GGUF_I32:
        *ret = (int32_t)v;
        return true;
    case GGUF_I64:
        *ret = (int64_t)v;
        return true;
    default:
        return false;
    }
}

static bool is_int(uint32_t type)
{
    return gguf_scalar_size(type) && type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL;
}

static double as_real(uint32_t type, const uint8_t *value)
{
    float f;
    double d;

    if (type == GGUF_F32) {
        memcpy(&f, value, sizeof f);
        return (double)f;
    }
    memcpy(&d, value, sizeof d);
    return d;
}

int gguf_get_u32(const struct gguf *f, const char *key, uint32_t *ret, char *err, size_t errlen)
{
    const struct gguf_key *k = find(f, key);
    int64_t v = 0;
    bool fits;

    if (!k)
        return 0;
    if (!is_int(k->type))
        return wrong_type(key, k->type, "an integer", err, errlen);
    fits = as_int(k->type, k->value, &v);
    if (!fits || v < 0 || v > UINT32_MAX) {
        if (fits)
            snprintf(err, errlen, "key %s: %" PRId64 " is outside 0..4294967295", key, v);
        else
            snprintf(err, errlen, "key %s: %" PRIu64 " is above 4294967295", key, (uint64_t)v);
        return -EINVAL;
    }
    *ret = (uint32_t)v;
    return 1;
}

int gguf_get_f32(const struct gguf *f, const char *key, float *ret, char *err, size_t errlen)
{
    const struct gguf_key *k = find(f, key);
    if (!k)
        return 0;
    if (k->type != GGUF_F32 && k->type != GGUF_F64)
        return wrong_type(key, k->type, "f32", err, errlen);
    *ret = (float)as_real(k->type, k->value);
    return 1;
}

int gguf_get_bool(const struct gguf *f, const char *key, bool *ret, char *err, size_t errlen)
{
    const struct gguf_key *k = find(f, key);
    if (!k)
        return 0;
    if (k->type != GGUF_BOOL)
        return wrong_type(key, k->type, "bool", err, errlen);
    *ret = *k->value != 0;
    return 1;
}

int gguf_get_str(const struct gguf *f, const char *key, struct gguf_str *ret, char *err, size_t errlen)
{
    const struct gguf_key *k = find(f, key);
    if (!k)
        return 0;
    if (k->type != GGUF_STR)
        return wrong_type(key, k->type, "a string", err, errlen);
    *ret = (struct gguf_str){ .data = (const char *)k->value, .len = k->len };
    return 1;
}

/* Whether elements of `type` can be handed out as `wanted`. 64-bit integers are left out: no list of them is
 * in use, and the rest always fits an int32 after one look at each. */
static bool array_fits(uint32_t type, enum gguf_value_type wanted)
{
    if (wanted == GGUF_I32)
        return is_int(type) && gguf_scalar_size(type) <= 4;
    return type == (uint32_t)wanted;
}

int gguf_get_array(const struct gguf *f, const char *key, enum gguf_value_type wanted,
                   const struct gguf_array **ret, char *err, size_t errlen)
{
    const struct gguf_key *k = find(f, key);
    if (!k)
        return 0;
    if (k->type != GGUF_ARR)
        return wrong_type(key, k->type, "an array", err, errlen);
    if (!array_fits(k->array.type, wanted)) {
        snprintf(err, errlen, "key %s: is an array of %s, one of %s is wanted", key,
                 gguf_value_type_name(k->array.type), gguf_value_type_name((uint32_t)wanted));
        return -EINVAL;
    }
    for (uint64_t i = 0; k->array.type == GGUF_U32 && i < k->array.len; i++) {
        uint64_t v = gguf_load(k->array.data + 4 * i, 4);
        if (v > INT32_MAX) {
            snprintf(err, errlen, "key %s: element %" PRIu64 ", %" PRIu64 ", is above 2147483647", key, i, v);
            return -EINVAL;
        }
    }
    *ret = &k->array;
    return 1;
}

uint64_t gguf_array_len(const struct gguf_array *a)
{
    return a->len;
}

struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i)
{
    const uint8_t *at = a->data + a->starts[i];
    return (struct gguf_str){ .data = (const char *)at + 8, .len = (size_t)gguf_load(at, 8) };
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    int64_t v = 0;
    (void)as_int(a->type, a->data + i * gguf_scalar_size(a->type), &v);
    return (int32_t)v;
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    return (float)as_real(GGUF_F32, a->data + 4 * i);
}

uint64_t gguf_n_keys(const struct gguf *f)
{
    return f->n_keys;
}

void gguf_real_text(double v, bool is_float, char *text, size_t textlen)
{
    int most = is_float ? 9 : 17;
    for (int digits = 1; digits <= most; digits++) {
        snprintf(text, textlen, "%.*g", digits, v);
        if (is_float ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v)
            return;
    }
}

static void scalar_text(uint32_t type, const uint8_t *value, char *text, size_t textlen)
{
    int64_t v = 0;
    if (type == GGUF_BOOL)
        snprintf(text, textlen, "%s", *value ? "true" : "false");
    else if (type == GGUF_F32 || type == GGUF_F64)
        gguf_real_text(as_real(type, value), type == GGUF_F32, text, textlen);
    else if (as_int(type, value, &v))
        snprintf(text, textlen, "%" PRId64, v);
    else
        snprintf(text, textlen, "%" PRIu64, gguf_load(value, 8));
}

static void element_text(const struct gguf_array *a, uint64_t i, char *text, size_t textlen)
{
    char shown[GGUF_PRINTABLE_LEN];
    if (a->type == GGUF_STR)
        snprintf(text, textlen, "\"%s\"", gguf_printable(shown, sizeof shown, gguf_array_str(a, i)));
    else
        scalar_text(a->type, a->data + i * gguf_scalar_size(a->type), text, textlen);
}

static void array_text(const struct gguf_array *a, char *text, size_t textlen)
{
    char each[GGUF_PRINTABLE_LEN + 2];
    int n = snprintf(text, textlen, "%s[%" PRIu64 "]", gguf_value_type_name(a->type), a->len);
    size_t used = n < 0 ? 0 : (size_t)n;

    for (uint64_t i = 0; i < a->len && i < SHOWN_ELEMENTS && used < textlen; i++) {
        element_text(a, i, each, sizeof each);
        n = snprintf(text + used, textlen - used, "%s%s", i ? ", " : " ", each);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (a->len > SHOWN_ELEMENTS && used < textlen)
        snprintf(text + used, textlen - used, ", ...");
}

void gguf_key_text(const struct gguf *f, uint64_t i, struct gguf_str *ret_key, char *text, size_t textlen)
{
    const struct gguf_key *k = &f->keys[i];
    char shown[GGUF_PRINTABLE_LEN];

    *ret_key = k->name;
    if (k->type == GGUF_ARR)
        array_text(&k->array, text, textlen);
    else if (k->type == GGUF_STR)
        snprintf(text, textlen, "\"%s\"",
                 gguf_printable(shown, sizeof shown, (struct gguf_str){ (const char *)k->value, k->len }));
    else
        scalar_text(k->type, k->value, text, textlen);
}
