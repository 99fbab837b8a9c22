/* Fuzz, files: any bytes as a GGUF file. What the reader hands out lies inside the file, and the model and
 * the tokenizer are read or refused in words. Run by tools/fuzz. */
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "tests/unit/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* An error is one line that says something and holds nothing a terminal acts on. */
static void check_error(const char *err)
{
    check(*err);
    for (; *err; err++)
        check((unsigned char)*err >= 0x20 && *err != 0x7f);
}

static unsigned walk(const struct gguf *f)
{
    char text[512];
    struct gguf_str name;
    unsigned sum = 0;
    for (uint64_t i = 0; i < gguf_n_keys(f); i++) {
        gguf_key_text(f, i, &name, text, sizeof text);
        check_error(text);
    }
    for (uint64_t i = 0; i < gguf_n_tensors(f); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(f, i);
        const uint8_t *bytes = t->data;
        if (bytes && t->size)
            sum += bytes[0] + bytes[t->size - 1];
        gguf_type_name(t->type);
    }
    return sum;
}

static void encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags)
{
    int32_t *ids;
    size_t n, size;
    check(tokenizer_encode(t, text, len, flags, &ids, &n) == 0);
    for (size_t i = 0; i < n; i++) {
        check(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_vocab(t));
        tokenizer_piece(t, ids[i], true, &size);
        tokenizer_is_eog(t, ids[i]);
    }
    free(ids);
}

static void read_tokenizer(const struct gguf *f, const char *text, size_t len)
{
    static const char words[] = "Hello, <s>world</s>! 'tis 1234 \xe2\x96\x81 caf\xc3\xa9 \xff\n\n   aaaa";
    char err[512] = "";
    struct tokenizer *t;
    if (tokenizer_open(f, &t, err, sizeof err) < 0) {
        check_error(err);
        return;
    }
    for (unsigned flags = 0; flags < 8; flags++)
        encode(t, words, sizeof words - 1, flags);
    encode(t, text, len, TOKENIZER_PARSE_SPECIAL);
    tokenizer_turn(t, text, len);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char err[512] = "";
    struct gguf *f;
    struct model *m;
    volatile unsigned sum;
    if (open_bytes(data, len, &f, err, sizeof err) < 0) {
        check_error(err);
        return 0;
    }
    sum = walk(f);
    (void)sum;
    if (model_read(f, &m, err, sizeof err) == 0)
        model_free(m);
    else
        check_error(err);
    read_tokenizer(f, (const char *)data, len < 4096 ? len : 4096);
    gguf_close(f);
    return 0;
}
