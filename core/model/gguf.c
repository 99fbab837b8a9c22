/* Gguf, opening: maps the file and walks its header once, checking every count, length, type and offset
 * against the bytes that are really there before anything uses it. Thread: one while it opens; the result is
 * immutable. Must not know: what keys and tensors mean. Tests: tests/unit/test_gguf.c */
#include "model/gguf_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_ALIGNMENT 32u
#define MAX_ALIGNMENT (1u << 26)
/* The least a key and a tensor can take: a count that promises more than the file can hold is refused before
 * memory is asked for. */
#define MIN_KEY_BYTES (8u + 4u + 1u)
#define MIN_TENSOR_BYTES (8u + 4u + 8u + 4u + 8u)

/* Where the walk is. `what` names the thing being read, for errors. */
struct cursor {
    const struct gguf *f;
    size_t pos;
    char what[GGUF_PRINTABLE_LEN + 32];
    char *err;
    size_t errlen;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct cursor *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(c->err, c->errlen, "%s: %s", c->what, text);
    return -EINVAL;
}

static size_t bytes_left(const struct cursor *c)
{
    return c->f->size - c->pos;
}

static int past_end(struct cursor *c, const char *wanted, uint64_t bytes)
{
    return refuse(c, "%s of %" PRIu64 " bytes at byte %zu runs past the end of the file (%zu bytes)", wanted,
                  bytes, c->pos, c->f->size);
}

static int take_int(struct cursor *c, size_t bytes, uint64_t *ret)
{
    if (bytes_left(c) < bytes)
        return past_end(c, "a number", bytes);
    *ret = gguf_load(c->f->map + c->pos, bytes);
    c->pos += bytes;
    return 0;
}

static int take_str(struct cursor *c, struct gguf_str *ret)
{
    uint64_t len = 0;
    int r = take_int(c, 8, &len);
    if (r < 0)
        return r;
    if (len > bytes_left(c))
        return past_end(c, "a string", len);
    *ret = (struct gguf_str){ .data = (const char *)c->f->map + c->pos, .len = (size_t)len };
    c->pos += (size_t)len;
    return 0;
}

static int take_str_elements(struct cursor *c, struct gguf_array *a)
{
    size_t start = c->pos;
    int r;

    a->starts = malloc((size_t)a->len * sizeof *a->starts + 1);
    if (!a->starts)
        return -ENOMEM;
    for (uint64_t i = 0; i < a->len; i++) {
        struct gguf_str s;
        a->starts[i] = c->pos - start;
        r = take_str(c, &s);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_array(struct cursor *c, struct gguf_array *a)
{
    uint64_t type = 0, len = 0;
    size_t each;
    int r = take_int(c, 4, &type);
    if (r == 0)
        r = take_int(c, 8, &len);
    if (r < 0)
        return r;
    if (type == GGUF_ARR)
        return refuse(c, "an array of arrays, which this build does not read");
    each = type == GGUF_STR ? 8 : gguf_scalar_size((uint32_t)type);
    if (!each)
        return refuse(c, "an array of unknown type %" PRIu64, type);
    if (len > bytes_left(c) / each)
        return refuse(
            c, "an array of %" PRIu64 " elements at byte %zu runs past the end of the file (%zu bytes)", len,
            c->pos, c->f->size);
    *a = (struct gguf_array){ .type = (uint32_t)type, .len = len, .data = c->f->map + c->pos };
    if (type == GGUF_STR)
        return take_str_elements(c, a);
    c->pos += (size_t)len * each;
    return 0;
}

static int take_value(struct cursor *c, struct gguf_key *k)
{
    size_t bytes = gguf_scalar_size(k->type);
    struct gguf_str s;
    int r;

    if (k->type == GGUF_ARR)
        return take_array(c, &k->array);
    if (k->type == GGUF_STR) {
        r = take_str(c, &s);
        if (r < 0)
            return r;
        k->value = (const uint8_t *)s.data;
        k->len = s.len;
        return 0;
    }
    if (!bytes)
        return refuse(c, "a value of unknown type %" PRIu32, k->type);
    if (bytes_left(c) < bytes)
        return past_end(c, "a value", bytes);
    k->value = c->f->map + c->pos;
    c->pos += bytes;
    if (k->type == GGUF_BOOL && *k->value > 1)
        return refuse(c, "a boolean of value %d (0 or 1 are allowed)", *k->value);
    return 0;
}

static int take_key(struct cursor *c, uint64_t i, struct gguf_key *k)
{
    char name[GGUF_PRINTABLE_LEN];
    uint64_t type = 0;
    int r;

    snprintf(c->what, sizeof c->what, "key %" PRIu64 " of %" PRIu64, i + 1, c->f->n_keys);
    r = take_str(c, &k->name);
    if (r < 0)
        return r;
    if (k->name.len == 0 || k->name.len > GGUF_MAX_KEY_LEN)
        return refuse(c, "a name of %zu bytes (1..%u are allowed)", k->name.len, GGUF_MAX_KEY_LEN);
    snprintf(c->what, sizeof c->what, "key %s", gguf_printable(name, sizeof name, k->name));
    r = take_int(c, 4, &type);
    if (r < 0)
        return r;
    k->type = (uint32_t)type;
    return take_value(c, k);
}

static int order_keys(const void *a, const void *b)
{
    return gguf_str_compare((*(const struct gguf_key *const *)a)->name,
                            (*(const struct gguf_key *const *)b)->name);
}

static int take_keys(struct cursor *c, struct gguf *f)
{
    char name[GGUF_PRINTABLE_LEN];
    int r;

    if (f->n_keys > bytes_left(c) / MIN_KEY_BYTES)
        return refuse(c, "%" PRIu64 " keys cannot lie in %zu bytes", f->n_keys, bytes_left(c));
    f->keys = calloc((size_t)f->n_keys + 1, sizeof *f->keys);
    f->keys_by_name = calloc((size_t)f->n_keys + 1, sizeof *f->keys_by_name);
    if (!f->keys || !f->keys_by_name)
        return -ENOMEM;
    for (uint64_t i = 0; i < f->n_keys; i++) {
        r = take_key(c, i, &f->keys[i]);
        if (r < 0)
            return r;
        f->keys_by_name[i] = &f->keys[i];
    }
    qsort(f->keys_by_name, (size_t)f->n_keys, sizeof *f->keys_by_name, order_keys);
    for (uint64_t i = 1; i < f->n_keys; i++)
        if (order_keys(&f->keys_by_name[i - 1], &f->keys_by_name[i]) == 0) {
            snprintf(c->what, sizeof c->what, "key %s",
                     gguf_printable(name, sizeof name, f->keys_by_name[i]->name));
            return refuse(c, "is there twice");
        }
    return 0;
}

static int take_alignment(struct cursor *c, const struct gguf *f, uint32_t *ret)
{
    int r = gguf_get_u32(f, "general.alignment", ret, c->err, c->errlen);
    if (r < 0)
        return r;
    if (r == 0)
        *ret = DEFAULT_ALIGNMENT;
    snprintf(c->what, sizeof c->what, "key general.alignment");
    if (*ret < 8 || *ret > MAX_ALIGNMENT || (*ret & (*ret - 1)))
        return refuse(c, "%" PRIu32 " is not a power of two in 8..%u", *ret, MAX_ALIGNMENT);
    return 0;
}

/* Its number of weights and bytes; checks the shape. */
static int measure(struct cursor *c, struct gguf_tensor *t)
{
    const struct gguf_type_info *info = gguf_type_info(t->type);
    uint64_t weights = 1, bytes;

    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0)
            return refuse(c, "dimension %u is 0", i + 1);
        if (__builtin_mul_overflow(weights, t->dims[i], &weights) || weights > INT64_MAX)
            return refuse(c, "its dimensions multiply to more than can be counted");
    }
    t->size = 0;
    if (!info)
        return 0;
    if (t->dims[0] % info->block)
        return refuse(c, "rows of %" PRIu64 " weights are not whole blocks of %s (%u)", t->dims[0],
                      info->name, info->block);
    if (__builtin_mul_overflow(weights / info->block, (uint64_t)info->bytes, &bytes) || bytes > SIZE_MAX)
        return refuse(c, "its size is more than can be counted");
    t->size = (size_t)bytes;
    return 0;
}

/* One entry of the tensor table. The offset is kept in *ret_offset until the data section's start is known.
 */
static int take_tensor(struct cursor *c, uint64_t i, struct gguf_tensor *t, uint64_t *ret_offset)
{
    char name[GGUF_PRINTABLE_LEN];
    uint64_t v = 0;
    int r;

    snprintf(c->what, sizeof c->what, "tensor %" PRIu64 " of %" PRIu64, i + 1, c->f->n_tensors);
    r = take_str(c, &t->name);
    if (r < 0)
        return r;
    if (t->name.len == 0 || t->name.len > GGUF_MAX_NAME_LEN)
        return refuse(c, "a name of %zu bytes (1..%u are allowed)", t->name.len, GGUF_MAX_NAME_LEN);
    snprintf(c->what, sizeof c->what, "tensor %s", gguf_printable(name, sizeof name, t->name));
    r = take_int(c, 4, &v);
    if (r < 0)
        return r;
    if (v < 1 || v > GGUF_MAX_DIMS)
        return refuse(c, "%" PRIu64 " dimensions (1..%d are allowed)", v, GGUF_MAX_DIMS);
    t->n_dims = (uint32_t)v;
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        r = d < t->n_dims ? take_int(c, 8, &t->dims[d]) : 0;
        if (r < 0)
            return r;
    }
    r = take_int(c, 4, &v);
    if (r < 0)
        return r;
    t->type = (uint32_t)v;
    r = measure(c, t);
    return r < 0 ? r : take_int(c, 8, ret_offset);
}

/* Gives the tensor its place in the data section. */
static int place(struct cursor *c, struct gguf_tensor *t, uint64_t offset, size_t data_start,
                 uint32_t alignment)
{
    char name[GGUF_PRINTABLE_LEN];
    size_t room = c->f->size - data_start;

    snprintf(c->what, sizeof c->what, "tensor %s", gguf_printable(name, sizeof name, t->name));
    if (offset % alignment)
        return refuse(c, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu32, offset, alignment);
    if (offset > room || t->size > room - offset)
        return refuse(c, "offset %" PRIu64 " + %zu bytes lies past the end of the file (%zu bytes of data)",
                      offset, t->size, room);
    t->data = t->size ? c->f->map + data_start + offset : NULL;
    return 0;
}

static int order_names(const void *a, const void *b)
{
    return gguf_str_compare((*(const struct gguf_tensor *const *)a)->name,
                            (*(const struct gguf_tensor *const *)b)->name);
}

static int order_places(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a,
                             *y = *(const struct gguf_tensor *const *)b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    return p < q ? -1 : p > q;
}

/* Two tensors over the same bytes are no legal file, and would let a small file ask for much memory. Leaves
 * the list in order of names. */
static int check_distinct(struct cursor *c, struct gguf *f)
{
    char name[GGUF_PRINTABLE_LEN], other[GGUF_PRINTABLE_LEN];
    const struct gguf_tensor **list = f->tensors_by_name;
    size_t n = (size_t)f->n_tensors;

    for (size_t i = 0; i < n; i++)
        list[i] = &f->tensors[i];
    qsort(list, n, sizeof *list, order_places);
    for (size_t i = 1; i < n; i++) {
        const uint8_t *end = list[i - 1]->data;
        if (!end || end + list[i - 1]->size <= (const uint8_t *)list[i]->data)
            continue;
        snprintf(c->what, sizeof c->what, "tensor %s", gguf_printable(name, sizeof name, list[i]->name));
        return refuse(c, "overlaps tensor %.80s", gguf_printable(other, sizeof other, list[i - 1]->name));
    }
    qsort(list, n, sizeof *list, order_names);
    for (size_t i = 1; i < n; i++)
        if (order_names(&list[i - 1], &list[i]) == 0) {
            snprintf(c->what, sizeof c->what, "tensor %s", gguf_printable(name, sizeof name, list[i]->name));
            return refuse(c, "is there twice");
        }
    return 0;
}

static int take_tensors(struct cursor *c, struct gguf *f)
{
    uint64_t *offsets = NULL;
    uint32_t alignment;
    size_t data_start;
    int r;

    /* Offsets count from the data section, whose start depends on the alignment key. */
    r = take_alignment(c, f, &alignment);
    if (r < 0)
        return r;
    snprintf(c->what, sizeof c->what, "header");
    if (f->n_tensors > bytes_left(c) / MIN_TENSOR_BYTES)
        return refuse(c, "%" PRIu64 " tensors cannot lie in %zu bytes", f->n_tensors, bytes_left(c));
    f->tensors = calloc((size_t)f->n_tensors + 1, sizeof *f->tensors);
    f->tensors_by_name = calloc((size_t)f->n_tensors + 1, sizeof *f->tensors_by_name);
    offsets = calloc((size_t)f->n_tensors + 1, sizeof *offsets);
    r = f->tensors && f->tensors_by_name && offsets ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < f->n_tensors; i++)
        r = take_tensor(c, i, &f->tensors[i], &offsets[i]);
    if (r < 0)
        goto out;

    data_start = c->pos + (alignment - c->pos % alignment) % alignment;
    if (data_start > f->size) /* a file without tensors may end with its header */
        data_start = f->size;
    for (uint64_t i = 0; r == 0 && i < f->n_tensors; i++)
        r = place(c, &f->tensors[i], offsets[i], data_start, alignment);
    if (r == 0)
        r = check_distinct(c, f);
out:
    free(offsets);
    return r;
}

static int take_header(struct cursor *c, struct gguf *f)
{
    uint64_t version = 0;
    int r;

    snprintf(c->what, sizeof c->what, "header");
    if (f->size < 4 || memcmp(f->map, "GGUF", 4) != 0)
        return refuse(c, "not a GGUF file (it does not start with the letters GGUF)");
    c->pos = 4;
    r = take_int(c, 4, &version);
    if (r < 0)
        return r;
    if (version == 0x02000000u || version == 0x03000000u)
        return refuse(c, "the file is big-endian; this build reads little-endian files");
    if (version != 2 && version != 3)
        return refuse(c, "GGUF version %" PRIu64 " (this build reads 2 and 3)", version);
    f->version = (uint32_t)version;
    r = take_int(c, 8, &f->n_tensors);
    return r < 0 ? r : take_int(c, 8, &f->n_keys);
}

static int map_whole_file(const char *path, struct gguf *f, char *err, size_t errlen)
{
    struct stat st;
    void *map;
    int r = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        r = -errno;
        snprintf(err, errlen, "cannot be opened: %s", strerror(-r));
        return r;
    }
    if (fstat(fd, &st) < 0) {
        r = -errno;
        snprintf(err, errlen, "cannot be examined: %s", strerror(-r));
    } else if (!S_ISREG(st.st_mode)) {
        r = -EINVAL;
        snprintf(err, errlen, "is not a regular file");
    } else if (st.st_size == 0) {
        r = -EINVAL;
        snprintf(err, errlen, "is empty");
    } else {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            r = -errno;
            snprintf(err, errlen, "cannot be mapped: %s", strerror(-r));
        } else {
            f->map = map;
            f->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return r;
}

int gguf_open(const char *path, struct gguf **ret_file, char *err, size_t errlen)
{
    char why[GGUF_PRINTABLE_LEN + 320] = "out of memory";
    int r;
    struct gguf *f = calloc(1, sizeof *f);
    struct cursor c = { .f = f, .err = why, .errlen = sizeof why };
    if (!f) {
        snprintf(err, errlen, "%s: %s", path, why);
        return -ENOMEM;
    }

    r = map_whole_file(path, f, why, sizeof why);
    if (r == 0)
        r = take_header(&c, f);
    if (r == 0)
        r = take_keys(&c, f);
    if (r == 0)
        r = take_tensors(&c, f);
    if (r < 0) {
        snprintf(err, errlen, "%s: %s", path, why);
        gguf_close(f);
        return r;
    }
    *ret_file = f;
    return 0;
}

void gguf_close(struct gguf *f)
{
    if (!f)
        return;
    for (uint64_t i = 0; f->keys && i < f->n_keys; i++)
        free(f->keys[i].array.starts);
    free(f->keys);
    free(f->keys_by_name);
    free(f->tensors);
    free(f->tensors_by_name);
    if (f->map)
        munmap(f->map, f->size);
    free(f);
}

uint32_t gguf_version(const struct gguf *f)
{
    return f->version;
}

uint64_t gguf_file_size(const struct gguf *f)
{
    return f->size;
}

uint64_t gguf_n_tensors(const struct gguf *f)
{
    return f->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *f, uint64_t i)
{
    return &f->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *f, const char *name)
{
    struct gguf_str wanted = { .data = name, .len = strlen(name) };
    uint64_t lo = 0, hi = f->n_tensors;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = gguf_str_compare(f->tensors_by_name[mid]->name, wanted);
        if (order == 0)
            return f->tensors_by_name[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

void gguf_tensor_release(const struct gguf *f, const struct gguf_tensor *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin, end;

    if (!t->data)
        return;
    /* Whole pages, a neighbour's part included: what is still wanted of them comes back from the file by
     * itself. */
    begin = (size_t)((const uint8_t *)t->data - f->map) & ~(page - 1);
    end = (size_t)((const uint8_t *)t->data - f->map) + t->size;
    (void)madvise(f->map + begin, end - begin, MADV_DONTNEED);
}
