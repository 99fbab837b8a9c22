/* Fuzz, texts: any bytes through every kind of tokenizer, over small vocabularies that have every byte: the
 * bytes come back. The first byte chooses the vocabulary and the flags. Run by tools/fuzz. */
#include "model/tokenizer.h"
#include "tests/unit/gguf_write.h"
#include "util/buf.h"
#include "util/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const char *const pres[] = { "default", "gpt-2",        "smollm", "llama-bpe",
                                    "qwen2",   "deepseek-llm", "tekken" };
#define N_PRES (sizeof pres / sizeof pres[0])
#define N_KINDS (N_PRES + 2) /* and SentencePiece-style, with a space before and without */

static const char *const merges[] = { "t h",          "th e", "\xc4\xa0 t",
                                      "\xc4\xa0 the", "a a",  "aa aa",
                                      "1 2",          "12 3", "\xc4\xa0 \xc4\xa0",
                                      "i n",          "e r",  "\xc3\x83 \xc2\xa9" };
static const char *const made[] = {
    "th", "the", "\xc4\xa0t",        "\xc4\xa0the", "aa", "aaaa",
    "12", "123", "\xc4\xa0\xc4\xa0", "in",          "er", "\xc3\x83\xc2\xa9"
};
#define N_MADE (sizeof made / sizeof made[0])
static const char *const words[] = { "\xe2\x96\x81",
                                     "t",
                                     "h",
                                     "e",
                                     "th",
                                     "the",
                                     "\xe2\x96\x81the",
                                     "a",
                                     "aa",
                                     "aaa",
                                     "\xe2\x96\x81\xe2\x96\x81",
                                     "\xc3\xa9",
                                     "\xe4\xb8\xad",
                                     "e\xe2\x96\x81t" };
#define N_WORDS (sizeof words / sizeof words[0])
#define MAX_TOKENS (3 + 256 + N_WORDS + N_MADE)

struct vocabulary {
    const char *tokens[MAX_TOKENS];
    char bytes[256][8];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    size_t n;
};

static void add(struct vocabulary *v, const char *text, int32_t type, float score)
{
    v->tokens[v->n] = text;
    v->types[v->n] = type;
    v->scores[v->n++] = score;
}

static void fill(struct vocabulary *v, bool byte_level)
{
    uint32_t next = 256;
    add(v, "<unk>", 2, 0);
    add(v, "<s>", 3, 0);
    add(v, "<u>", 4, 0);
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (byte_level)
            v->bytes[b][utf8_encode(printable ? b : next++, v->bytes[b])] = 0;
        else
            snprintf(v->bytes[b], sizeof v->bytes[b], "<0x%02X>", b);
        add(v, v->bytes[b], byte_level ? 1 : 6, 0);
    }
    for (size_t i = 0; i < (byte_level ? N_MADE : N_WORDS); i++)
        add(v, byte_level ? made[i] : words[i], 1, (float)(i * 7 % 5));
}

static struct tokenizer *open_kind(size_t kind)
{
    static struct vocabulary v;
    struct gguf_write w = { 0 };
    struct gguf *f;
    struct tokenizer *t;
    char err[512];
    bool byte_level = kind < N_PRES;
    memset(&v, 0, sizeof v);
    fill(&v, byte_level);
    write_text(&w, "tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
    write_texts(&w, "tokenizer.ggml.tokens", v.tokens, v.n);
    write_key(&w, "tokenizer.ggml.token_type", GGUF_ARR);
    put_u32(&w.keys, GGUF_I32);
    put_u64(&w.keys, v.n);
    bytes_put(&w.keys, v.types, v.n * sizeof v.types[0]);
    write_key(&w, "tokenizer.ggml.scores", GGUF_ARR);
    put_u32(&w.keys, GGUF_F32);
    put_u64(&w.keys, v.n);
    bytes_put(&w.keys, v.scores, v.n * sizeof v.scores[0]);
    write_key(&w, "tokenizer.ggml.add_space_prefix", GGUF_BOOL);
    bytes_put(&w.keys, kind == N_PRES ? "\1" : "\0", 1);
    if (byte_level) {
        write_text(&w, "tokenizer.ggml.pre", pres[kind]);
        write_texts(&w, "tokenizer.ggml.merges", merges, N_MADE);
    }
    struct bytes file = write_finish(&w, NULL);
    if (open_bytes(file.data, file.len, &f, err, sizeof err) < 0 ||
        tokenizer_open(f, &t, err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        abort();
    }
    gguf_close(f);
    free(file.data);
    return t;
}

/* The text with each U+2581 as a space, which is what comes back of it. */
static void put_spaced(struct buf *b, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        bool mark = len - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        buf_putc(b, mark ? ' ' : text[i]);
        i += mark ? 3 : 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct tokenizer *kinds[N_KINDS];
    if (len < 1)
        return 0;
    size_t kind = data[0] % N_KINDS, n, size;
    unsigned flags = data[0] / N_KINDS % 2 ? TOKENIZER_PARSE_SPECIAL : 0;
    const char *text = (const char *)data + 1;
    struct buf want = { 0 }, got = { 0 };
    int32_t *ids;
    if (!kinds[kind])
        kinds[kind] = open_kind(kind);
    if (tokenizer_encode(kinds[kind], text, --len, flags, &ids, &n) < 0)
        abort();
    for (size_t i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(kinds[kind], ids[i], true, &size);
        buf_append(&got, piece, size);
    }
    if (kind < N_PRES)
        buf_append(&want, text, len);
    else
        put_spaced(&want, text, len);
    /* With a space before text and after each special token only the case without those can be told exactly.
     */
    if (kind != N_PRES && (want.len != got.len || (got.len && memcmp(want.data, got.data, got.len) != 0)))
        abort();
    free(ids);
    buf_free(&want);
    buf_free(&got);
    return 0;
}
