/* Gguf write: puts little GGUF files together in memory, for tests: right ones and, since every part is plain
 * bytes, wrong ones. A file is handed to the reader through /proc/self/fd, so nothing is left on disk. */
#pragma once
#include "model/gguf.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct bytes {
    uint8_t *data;
    size_t len, cap;
};

static inline void bytes_put(struct bytes *b, const void *data, size_t len)
{
    if (b->len + len > b->cap) {
        b->cap = (b->len + len) * 2 + 64;
        b->data = realloc(b->data, b->cap);
        assert(b->data);
    }
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
}

static inline void bytes_zeros(struct bytes *b, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes_put(b, "", 1);
}

static inline void put_u32(struct bytes *b, uint32_t v)
{
    bytes_put(b, &v, sizeof v);
}

static inline void put_u64(struct bytes *b, uint64_t v)
{
    bytes_put(b, &v, sizeof v);
}

static inline void put_str(struct bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    bytes_put(b, text, strlen(text));
}

struct gguf_write {
    uint32_t version; /* 0: 3 */
    uint64_t n_keys, n_tensors;
    struct bytes keys, tensors, data;
};

/* The head of a key; its value's bytes are put into w->keys next. */
static inline void write_key(struct gguf_write *w, const char *name, uint32_t type)
{
    put_str(&w->keys, name);
    put_u32(&w->keys, type);
    w->n_keys++;
}

static inline void write_u32(struct gguf_write *w, const char *name, uint32_t v)
{
    write_key(w, name, GGUF_U32);
    put_u32(&w->keys, v);
}

static inline void write_f32(struct gguf_write *w, const char *name, float v)
{
    write_key(w, name, GGUF_F32);
    bytes_put(&w->keys, &v, sizeof v);
}

static inline void write_text(struct gguf_write *w, const char *name, const char *text)
{
    write_key(w, name, GGUF_STR);
    put_str(&w->keys, text);
}

static inline void write_texts(struct gguf_write *w, const char *name, const char *const *texts, size_t n)
{
    write_key(w, name, GGUF_ARR);
    put_u32(&w->keys, GGUF_STR);
    put_u64(&w->keys, n);
    for (size_t i = 0; i < n; i++)
        put_str(&w->keys, texts[i]);
}

/* An entry of the tensor table alone, with any offset. */
static inline void write_entry(struct gguf_write *w, const char *name, uint32_t type, uint32_t n_dims,
                               const uint64_t *dims, uint64_t offset)
{
    put_str(&w->tensors, name);
    put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(&w->tensors, dims[i]);
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, offset);
    w->n_tensors++;
}

/* A tensor with its data, aligned to 32. */
static inline void write_tensor(struct gguf_write *w, const char *name, uint32_t type, uint64_t cols,
                                uint64_t rows, const void *data, size_t len)
{
    uint64_t dims[] = { cols, rows };
    write_entry(w, name, type, rows == 1 ? 1 : 2, dims, w->data.len);
    bytes_put(&w->data, data, len);
    bytes_zeros(&w->data, (32 - w->data.len % 32) % 32);
}

/* The whole file; *ret_data_start: where the data section begins. w is freed. */
static inline struct bytes write_finish(struct gguf_write *w, size_t *ret_data_start)
{
    struct bytes file = { 0 };
    bytes_put(&file, "GGUF", 4);
    put_u32(&file, w->version ? w->version : 3);
    put_u64(&file, w->n_tensors);
    put_u64(&file, w->n_keys);
    bytes_put(&file, w->keys.data, w->keys.len);
    bytes_put(&file, w->tensors.data, w->tensors.len);
    if (w->n_tensors)
        bytes_zeros(&file, (32 - file.len % 32) % 32);
    if (ret_data_start)
        *ret_data_start = file.len;
    bytes_put(&file, w->data.data, w->data.len);
    free(w->keys.data);
    free(w->tensors.data);
    free(w->data.data);
    *w = (struct gguf_write){ 0 };
    return file;
}

/* gguf_open on these bytes. */
static inline int open_bytes(const void *data, size_t len, struct gguf **ret, char *err, size_t errlen)
{
    char path[64];
    int r, fd = memfd_create("gguf", MFD_CLOEXEC);
    assert(fd >= 0);
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        assert(n > 0);
        done += (size_t)n;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    r = gguf_open(path, ret, err, errlen);
    close(fd);
    return r;
}

/* A small repeatable generator (splitmix64). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(next_random(state) % n);
}
