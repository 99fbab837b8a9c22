/* Gguf: reads a GGUF v2 or v3 file through a read-only mapping. Nothing in the file is believed: every count,
 * offset and size is checked against the file before it is used, so a corrupt or hostile file gives an error
 * that names the key or tensor, never a crash. Thread: after opening, any number of readers. Must not know:
 * what the keys mean. Tests: tests/unit/test_gguf.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GGUF_MAX_DIMS 4

/* Value types of the metadata, as numbered in the file. */
enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARR,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf_str {
    const char *data; /* inside the mapping; no zero byte follows */
    size_t len;
};

static inline bool gguf_str_is(struct gguf_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

struct gguf_tensor {
    struct gguf_str name;
    uint32_t type;   /* the file's number; gguf_type_name() names it, known to this build or not */
    uint32_t n_dims; /* 1..4 */
    uint64_t dims[GGUF_MAX_DIMS]; /* dims[0] is the fastest (columns); unused ones are 1 */
    const void *data;             /* inside the mapping, NULL when the type's size is unknown to this build */
    size_t size;                  /* bytes, 0 when unknown */
};

struct gguf;

/* Maps and checks the whole header. *ret_file is owned by the caller. Fails with a negative errno and a text
 * that says what is wrong and where; -EINVAL for a malformed file. */
int gguf_open(const char *path, struct gguf **ret_file, char *err, size_t errlen);
void gguf_close(struct gguf *f);

uint32_t gguf_version(const struct gguf *f);
uint64_t gguf_file_size(const struct gguf *f);

/* Scalars: 1 when found and of a fitting type, 0 when the key is absent, -EINVAL when it has another type or
 * does not fit (err names key, found and wanted type). Integers of any width and sign are accepted for
 * u32/i64 when in range. */
int gguf_get_u32(const struct gguf *f, const char *key, uint32_t *ret, char *err, size_t errlen);
int gguf_get_f32(const struct gguf *f, const char *key, float *ret, char *err, size_t errlen);
int gguf_get_bool(const struct gguf *f, const char *key, bool *ret, char *err, size_t errlen);
int gguf_get_str(const struct gguf *f, const char *key, struct gguf_str *ret, char *err, size_t errlen);

/* Arrays: the count and element type; elements by index (index < count, checked at open). Strings are found
 * in O(1) (an index is built at open for string arrays). */
struct gguf_array;
int gguf_get_array(const struct gguf *f, const char *key, enum gguf_value_type wanted,
                   const struct gguf_array **ret, char *err, size_t errlen);
uint64_t gguf_array_len(const struct gguf_array *a);
struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i);
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i);
float gguf_array_f32(const struct gguf_array *a, uint64_t i);

uint64_t gguf_n_tensors(const struct gguf *f);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *f, uint64_t i);
/* NULL when there is none of that name. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *f, const char *name);

/* Walks the metadata in file order, for people who look: key, type and a short text of the value. i <
 * gguf_n_keys. */
uint64_t gguf_n_keys(const struct gguf *f);
void gguf_key_text(const struct gguf *f, uint64_t i, struct gguf_str *ret_key, char *text, size_t textlen);

/* "Q4_1", "IQ3_S", ...; "type 77" for a number nobody has given a name (written into a static table: stable).
 */
const char *gguf_type_name(uint32_t type);

/* Writes v with as few digits as give the same number again, read as a float or as a double. */
void gguf_real_text(double v, bool is_float, char *text, size_t textlen);
/* Writes s for an error text: at most 80 of its bytes, everything that is not printable ASCII escaped;
 * returns dst. */
const char *gguf_printable(char *dst, size_t dstlen, struct gguf_str s);
#define GGUF_PRINTABLE_LEN 336u /* room that is always enough: 80 escaped bytes, dots and the zero byte */

/* Tells the kernel that the tensor's pages are no longer needed (they would count as ours otherwise). */
void gguf_tensor_release(const struct gguf *f, const struct gguf_tensor *t);
