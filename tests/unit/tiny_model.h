/* Tiny model: writes a model of any small shape with random weights, for tests. The weights are sized
 * so that every part of the network moves the logits: a fault anywhere shows. */
#pragma once
#include "gguf_write.h"
#include <math.h>

struct tiny_shape {
    uint32_t layers, embd, heads, kv_heads, head_dim, ff, vocab;
    uint32_t type; /* of the matrices, as in the file */
    bool untied;
    uint64_t seed;
    const char *arch;    /* NULL: "llama" */
    bool biased;         /* llama: q, k and v, as qwen2 has them in any case */
    bool factors;        /* llama: divisors of the rope's frequencies */
    const char *scaling; /* of the rope, by 4; NULL: none */
    uint32_t window;     /* gemma3 */
};

static inline bool tiny_is(const struct tiny_shape *s, const char *arch)
{
    return strcmp(s->arch ? s->arch : "llama", arch) == 0;
}

static inline double tiny_normal(uint64_t *seed)
{
    double u = ((double)(next_random(seed) >> 11) + 1) * 0x1p-53,
           v = (double)(next_random(seed) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* Half precision of a number that is normal in it; the rest of the bits is cut off. */
static inline uint16_t tiny_f16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10 & 0x7c00) | (u >> 13 & 0x3ff));
}

/* Of a quantized type: weights and bytes of a block; where its f16 scale lies, and its minimum behind it when
 * weights are not about 0 by themselves; standard deviation and mean of weights whose scale is 1. */
struct tiny_kind {
    uint32_t type, weights, bytes, scale;
    double deviation, mean, minimum; /* what a minimum of 1 adds to a weight, about */
};

static inline const struct tiny_kind *tiny_kind(uint32_t type)
{
    static const struct tiny_kind kinds[] = {
        { 2, 32, 18, 0, 4.6, 0, 0 },        { 3, 32, 20, 0, 4.6, 7.5, 1 },
        { 6, 32, 22, 0, 9.2, 0, 0 },        { 7, 32, 24, 0, 9.2, 15.5, 1 },
        { 8, 32, 34, 0, 74, 0, 0 },         { 12, 256, 144, 0, 220, 7.5, -1 },
        { 13, 256, 176, 0, 440, 15.5, -1 }, { 14, 256, 210, 208, 670, 0, 0 },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].type == type)
            return &kinds[i];
    return NULL;
}

/* A block of random weights of standard deviation about `size`. */
static inline void tiny_block(struct bytes *out, const struct tiny_kind *kind, double size, uint64_t *seed)
{
    uint8_t block[256];
    const uint32_t first = kind->scale ? 0 : kind->minimum != 0 ? 4 : 2;
    uint16_t d = tiny_f16(size / kind->deviation),
             m = tiny_f16(-kind->minimum * size / kind->deviation * kind->mean);
    for (uint32_t i = 0; i < kind->weights; i++) {
        uint8_t byte = (uint8_t)next_random(seed);
        if (first + i < kind->bytes)
            block[first + i] = byte;
    }
    for (uint32_t i = 192; i < 208 && kind->type == 14; i++)
        block[i] &= 63; /* scales, which could be negative and twice as large */
    memcpy(block + kind->scale, &d, sizeof d);
    if (kind->minimum != 0)
        memcpy(block + 2, &m, sizeof m);
    bytes_put(out, block, kind->bytes);
}

static inline void tiny_weight(struct bytes *out, uint32_t type, double size, uint64_t *seed)
{
    float f = (float)(size * tiny_normal(seed));
    uint16_t h = tiny_f16((double)f);
    if (type == 0)
        bytes_put(out, &f, sizeof f);
    else if (type == 30)
        bytes_put(out, (const uint8_t *)&f + 2, 2);
    else
        bytes_put(out, fabsf(f) < 1e-4f ? "\0" : (const char *)&h, 2);
}

static inline void tiny_matrix(struct gguf_write *w, const char *name, uint32_t type, uint64_t cols,
                               uint64_t rows, double gain, uint64_t *seed)
{
    struct bytes out = { 0 };
    double size = gain / sqrt((double)cols);
    const struct tiny_kind *kind = tiny_kind(type);
    for (uint64_t i = 0; i < rows * cols / (kind ? kind->weights : 1); i++) {
        if (kind)
            tiny_block(&out, kind, size, seed);
        else
            tiny_weight(&out, type, size, seed);
    }
    write_tensor(w, name, type, cols, rows, out.data, out.len);
    free(out.data);
}

/* n numbers around `mean`. */
static inline void tiny_vector(struct gguf_write *w, const char *name, uint64_t n, double mean,
                               uint64_t *seed)
{
    struct bytes out = { 0 };
    for (uint64_t i = 0; i < n; i++) {
        float f = (float)(mean + 0.2 * tiny_normal(seed));
        bytes_put(&out, &f, sizeof f);
    }
    write_tensor(w, name, 0, n, 1, out.data, out.len);
    free(out.data);
}

static inline void tiny_norm(struct gguf_write *w, const char *name, uint64_t n, uint64_t *seed)
{
    tiny_vector(w, name, n, 1, seed);
}

/* "llama.block_count" from "block_count"; good until the next call. */
static inline const char *tiny_key(const struct tiny_shape *s, const char *suffix)
{
    static char key[96];
    snprintf(key, sizeof key, "%s.%s", s->arch ? s->arch : "llama", suffix);
    return key;
}

static inline void tiny_keys(struct gguf_write *w, const struct tiny_shape *s)
{
    write_text(w, "general.architecture", s->arch ? s->arch : "llama");
    write_text(w, "general.name", "tiny");
    write_u32(w, tiny_key(s, "block_count"), s->layers);
    write_u32(w, tiny_key(s, "context_length"), 4096);
    write_u32(w, tiny_key(s, "embedding_length"), s->embd);
    write_u32(w, tiny_key(s, "feed_forward_length"), s->ff);
    write_u32(w, tiny_key(s, "attention.head_count"), s->heads);
    write_u32(w, tiny_key(s, "attention.head_count_kv"), s->kv_heads);
    write_u32(w, tiny_key(s, "attention.key_length"), s->head_dim);
    write_u32(w, tiny_key(s, "attention.value_length"), s->head_dim);
    write_f32(w, tiny_key(s, "rope.freq_base"), 100000);
    write_f32(w, tiny_key(s, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (s->window)
        write_u32(w, tiny_key(s, "attention.sliding_window"), s->window);
    if (s->scaling) {
        write_text(w, tiny_key(s, "rope.scaling.type"), s->scaling);
        write_f32(w, tiny_key(s, "rope.scaling.factor"), 4);
    }
}

/* What the architecture has besides matrices and the two norms. */
static inline void tiny_extras(struct gguf_write *w, const struct tiny_shape *s, uint32_t i, uint64_t *seed)
{
    const bool biased = s->biased || tiny_is(s, "qwen2"), gemma = tiny_is(s, "gemma3");
    const struct {
        const char *name;
        bool there;
        uint32_t n;
        double mean;
    } vectors[] = {
        { "attn_q.bias", biased, s->heads * s->head_dim, 0 },
        { "attn_k.bias", biased, s->kv_heads * s->head_dim, 0 },
        { "attn_v.bias", biased, s->kv_heads * s->head_dim, 0 },
        { "attn_q_norm.weight", gemma || tiny_is(s, "qwen3"), s->head_dim, 1 },
        { "attn_k_norm.weight", gemma || tiny_is(s, "qwen3"), s->head_dim, 1 },
        { "post_attention_norm.weight", gemma, s->embd, 1 },
        { "post_ffw_norm.weight", gemma, s->embd, 1 },
    };
    char name[64];
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, vectors[v].name);
        if (vectors[v].there)
            tiny_vector(w, name, vectors[v].n, vectors[v].mean, seed);
    }
}

static inline void tiny_layer(struct gguf_write *w, const struct tiny_shape *s, uint32_t i, uint64_t *seed)
{
    const struct {
        const char *name;
        uint32_t cols, rows;
        double gain;
    } matrices[] = {
        { "attn_q", s->embd, s->heads * s->head_dim, 1.7 },
        { "attn_k", s->embd, s->kv_heads * s->head_dim, 1.7 },
        { "attn_v", s->embd, s->kv_heads * s->head_dim, 1 },
        { "attn_output", s->heads * s->head_dim, s->embd, 1 },
        { "ffn_gate", s->embd, s->ff, 1.4 },
        { "ffn_up", s->embd, s->ff, 1.4 },
        { "ffn_down", s->ff, s->embd, 0.9 },
    };
    char name[64];
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", i);
    tiny_norm(w, name, s->embd, seed);
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", i);
    tiny_norm(w, name, s->embd, seed);
    for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", i, matrices[m].name);
        tiny_matrix(w, name, s->type, matrices[m].cols, matrices[m].rows, matrices[m].gain, seed);
    }
    tiny_extras(w, s, i, seed);
}

/* The file's bytes. */
static inline struct bytes tiny_model(const struct tiny_shape *s, size_t *ret_data_start)
{
    struct gguf_write w = { 0 };
    uint64_t seed = s->seed;
    tiny_keys(&w, s);
    tiny_matrix(&w, "token_embd.weight", s->type, s->embd, s->vocab, 3, &seed);
    for (uint32_t i = 0; i < s->layers; i++)
        tiny_layer(&w, s, i, &seed);
    tiny_norm(&w, "output_norm.weight", s->embd, &seed);
    if (s->factors)
        tiny_vector(&w, "rope_freqs.weight", s->head_dim / 2, 2, &seed);
    if (s->untied)
        tiny_matrix(&w, "output.weight", s->type, s->embd, s->vocab, 3, &seed);
    return write_finish(&w, ret_data_start);
}
