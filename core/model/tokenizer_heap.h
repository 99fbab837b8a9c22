/* Tokenizer heap: places in a text by what is to be done there, the best first: a rank in the high half of a
 * key, the place in the low one, so that of equal ranks the leftmost comes first. Entries that became wrong
 * stay until they come up and then no longer agree with the text. The caller makes room for the keys.
 * Tests: tests/unit/test_tokenizer.c (through both encoders) */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct heap {
    uint64_t *keys;
    size_t n;
};

static inline void heap_push(struct heap *h, uint64_t key)
{
    size_t i = h->n++;
    while (i > 0 && h->keys[(i - 1) / 2] > key) {
        h->keys[i] = h->keys[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->keys[i] = key;
}

static inline uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->keys[0], key = h->keys[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child])
            child++;
        if (h->keys[child] >= key)
            break;
        h->keys[i] = h->keys[child];
        i = child;
    }
    h->keys[i] = key;
    return top;
}
