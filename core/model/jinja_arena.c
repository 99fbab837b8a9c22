/* Arena of the chat renderer: memory that is given back all at once, or back to a mark.
 * Owner: the template (its tree) or one render (its values). Must not know: what it holds.
 * Tests: tests/unit/test_chat.c */
#include "model/jinja.h"
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)32 << 10)

struct jchunk {
    struct jchunk *prev;
    size_t cap, used;
    alignas(16) char data[];
};

void *jarena_alloc(struct jarena *a, size_t size)
{
    a->full = false;
    if (size > a->max)
        goto full;
    size = (size + 15) & ~(size_t)15;
    struct jchunk *c = a->top;
    if (!c || c->cap - c->used < size) {
        size_t cap = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        if (cap > a->max - a->total)
            goto full;
        c = malloc(sizeof *c + cap);
        if (!c)
            return NULL;
        *c = (struct jchunk){ .prev = a->top, .cap = cap };
        a->top = c;
        a->total += cap;
    }
    void *p = c->data + c->used;
    c->used += size;
    return p;

full:
    a->full = true;
    return NULL;
}

char *jarena_strndup(struct jarena *a, const char *text, size_t len)
{
    char *p = jarena_alloc(a, len + 1);
    if (!p)
        return NULL;
    memcpy(p, text, len);
    p[len] = '\0';
    return p;
}

struct jmark jarena_mark(const struct jarena *a)
{
    return (struct jmark){ a->top, a->top ? a->top->used : 0 };
}

void jarena_release(struct jarena *a, struct jmark m)
{
    while (a->top != m.chunk) {
        struct jchunk *c = a->top;
        a->top = c->prev;
        a->total -= c->cap;
        free(c);
    }
    if (a->top)
        a->top->used = m.used;
}

void jarena_free(struct jarena *a)
{
    jarena_release(a, (struct jmark){ NULL, 0 });
}
