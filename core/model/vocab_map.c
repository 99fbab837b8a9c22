/* Vocab map: see vocab_map.h. Open addressing, linear probing, at most half full. */
#include "model/vocab_map.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES ((size_t)1 << 27)

/* The number of slots for n entries, a power of two. */
static uint32_t slots_for(size_t n)
{
    uint32_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

int pairmap_init(struct pairmap *m, size_t n)
{
    if (n > MAX_ENTRIES)
        return -E2BIG;
    uint32_t slots = slots_for(n);
    m->slots = malloc(slots * sizeof *m->slots);
    if (!m->slots)
        return -ENOMEM;
    memset(m->slots, 0xff, slots * sizeof *m->slots);
    m->mask = slots - 1;
    return 0;
}

void pairmap_free(struct pairmap *m)
{
    free(m->slots);
    m->slots = NULL;
}

int pairmap_put(struct pairmap *m, uint32_t a, uint32_t b, uint32_t value)
{
    uint32_t i = pairmap_slot_of(m, a, b);
    for (unsigned probes = 0; probes < VOCAB_MAP_PROBES; probes++, i = (i + 1) & m->mask) {
        struct pairmap_slot *s = &m->slots[i];
        if (s->value == VOCAB_MAP_NONE) {
            *s = (struct pairmap_slot){ a, b, value };
            return 0;
        }
        if (s->a == a && s->b == b)
            return -EEXIST;
    }
    return -ELOOP;
}

static uint32_t hash_bytes(const char *data, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;
    for (; len >= 8; data += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        h = (h ^ word) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 32;
    }
    uint64_t tail = 0;
    if (len)
        memcpy(&tail, data, len);
    h = (h ^ tail) * 0x94d049bb133111ebu;
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

int strmap_init(struct strmap *m, const struct gguf_str *strings, size_t n)
{
    if (n > MAX_ENTRIES)
        return -E2BIG;
    uint32_t slots = slots_for(n);
    m->slots = malloc(slots * sizeof *m->slots);
    if (!m->slots)
        return -ENOMEM;
    memset(m->slots, 0xff, slots * sizeof *m->slots);
    m->mask = slots - 1;
    m->strings = strings;
    return 0;
}

void strmap_free(struct strmap *m)
{
    free(m->slots);
    m->slots = NULL;
}

static bool same(const struct gguf_str *s, const char *data, size_t len)
{
    return s->len == len && (len == 0 || memcmp(s->data, data, len) == 0);
}

int strmap_put(struct strmap *m, uint32_t index)
{
    const struct gguf_str *string = &m->strings[index];
    uint32_t hash = hash_bytes(string->data, string->len);
    uint32_t i = hash & m->mask;
    for (unsigned probes = 0; probes < VOCAB_MAP_PROBES; probes++, i = (i + 1) & m->mask) {
        struct strmap_slot *s = &m->slots[i];
        if (s->index == VOCAB_MAP_NONE) {
            *s = (struct strmap_slot){ hash, index };
            return 0;
        }
        if (s->hash == hash && same(&m->strings[s->index], string->data, string->len))
            return -EEXIST;
    }
    return -ELOOP;
}

uint32_t strmap_get(const struct strmap *m, const char *data, size_t len)
{
    uint32_t hash = hash_bytes(data, len);
    uint32_t i = hash & m->mask;
    for (unsigned probes = 0; probes < VOCAB_MAP_PROBES; probes++, i = (i + 1) & m->mask) {
        const struct strmap_slot *s = &m->slots[i];
        if (s->index == VOCAB_MAP_NONE)
            break;
        if (s->hash == hash && same(&m->strings[s->index], data, len))
            return s->index;
    }
    return VOCAB_MAP_NONE;
}
