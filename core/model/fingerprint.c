/* Fingerprint: see fingerprint.h. Everything is written down one after another with its length, and hashed.
 */
#include "model/fingerprint.h"
#include "model/gguf_file.h"
#include "util/buf.h"
#include "util/digest.h"
#include <errno.h>
#include <string.h>

/* Other weights differ nearly everywhere, those of one layer of a fine-tuned model too. */
#define SAMPLES 16u
#define SAMPLE_BYTES 256u

_Static_assert(FINGERPRINT_LEN == DIGEST_LEN, "a fingerprint is a digest");

static bool begins(struct gguf_str s, const char *with)
{
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.data, with, n) == 0;
}

static void put(struct buf *b, const void *data, size_t len)
{
    uint64_t n = len;
    buf_append(b, &n, sizeof n);
    if (len)
        buf_append(b, data, len);
}

static void put_key(struct buf *b, const struct gguf_key *k)
{
    const struct gguf_array *a = &k->array;
    put(b, k->name.data, k->name.len);
    buf_append(b, &k->type, sizeof k->type);
    if (k->type == GGUF_STR) {
        put(b, k->value, k->len);
    } else if (k->type != GGUF_ARR) {
        put(b, k->value, gguf_scalar_size(k->type));
    } else if (a->type != GGUF_STR) {
        buf_append(b, &a->type, sizeof a->type);
        put(b, a->data, a->len * gguf_scalar_size(a->type));
    } else {
        buf_append(b, &a->len, sizeof a->len);
        for (uint64_t i = 0; i < a->len; i++) {
            struct gguf_str s = gguf_array_str(a, i);
            put(b, s.data, s.len);
        }
    }
}

static void put_tensor(struct buf *b, const struct gguf_tensor *t)
{
    put(b, t->name.data, t->name.len);
    buf_append(b, &t->type, sizeof t->type);
    buf_append(b, t->dims, sizeof t->dims);
    if (t->size <= SAMPLES * SAMPLE_BYTES) {
        put(b, t->data, t->size);
        return;
    }
    for (size_t i = 0; i < SAMPLES; i++)
        buf_append(b, (const char *)t->data + (t->size - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES);
}

static int finish(struct buf *b, uint8_t ret[FINGERPRINT_LEN])
{
    bool failed = b->failed;
    if (!failed)
        digest_sha256(b->data, b->len, ret);
    buf_free(b);
    return failed ? -ENOMEM : 0;
}

int fingerprint_model(const struct gguf *f, uint8_t ret[FINGERPRINT_LEN])
{
    struct buf b = { 0 };
    for (uint64_t i = 0; i < f->n_keys; i++) {
        const struct gguf_key *k = f->keys_by_name[i];
        bool remark = begins(k->name, "general.") && !gguf_str_is(k->name, "general.architecture");
        if (!remark && !begins(k->name, "tokenizer."))
            put_key(&b, k);
    }
    for (uint64_t i = 0; i < f->n_tensors; i++)
        put_tensor(&b, f->tensors_by_name[i]);
    return finish(&b, ret);
}

int fingerprint_tokenizer(const struct gguf *f, uint8_t ret[FINGERPRINT_LEN])
{
    struct buf b = { 0 };
    for (uint64_t i = 0; i < f->n_keys; i++)
        if (begins(f->keys_by_name[i]->name, "tokenizer.") &&
            !gguf_str_is(f->keys_by_name[i]->name, "tokenizer.chat_template"))
            put_key(&b, f->keys_by_name[i]);
    return finish(&b, ret);
}
