/* Matcher: see matcher.h. The trie is built string by string; failure links go in by depth, so that a link's
 * target, which is always shallower, is complete when it is needed. */
#include "model/matcher.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)4 << 20)

/* How a state was reached: needed only while building. */
struct arrival {
    uint32_t parent;
    unsigned char byte;
};

static uint32_t edge(const struct matcher *m, uint32_t state, unsigned char byte)
{
    if (state == 0)
        return m->root[byte] ? m->root[byte] : VOCAB_MAP_NONE;
    return pairmap_get(&m->edges, state, byte);
}

/* Adds one string to the trie. */
static int add_string(struct matcher *m, const struct gguf_str *string, uint32_t index, bool reversed,
                      struct arrival *arrivals, uint32_t *n_states)
{
    uint32_t state = 0;
    for (size_t i = 0; i < string->len; i++) {
        unsigned char byte = (unsigned char)string->data[reversed ? string->len - 1 - i : i];
        uint32_t next = edge(m, state, byte);
        if (next == VOCAB_MAP_NONE) {
            next = (*n_states)++;
            m->states[next] = (struct matcher_state){ 0, MATCHER_NONE, (uint32_t)i + 1 };
            arrivals[next] = (struct arrival){ state, byte };
            if (state == 0) {
                m->root[byte] = next;
            } else {
                int r = pairmap_put(&m->edges, state, byte, next);
                if (r < 0)
                    return r;
            }
        }
        state = next;
    }
    if (string->len && m->states[state].out == MATCHER_NONE)
        m->states[state].out = index;
    return 0;
}

/* Numbers of states in order of depth, the root left out (counting sort). */
static uint32_t *by_depth(const struct matcher *m, uint32_t n_states, size_t max_depth)
{
    uint32_t *order = malloc((n_states + 1) * sizeof *order);
    uint32_t *starts = calloc(max_depth + 2, sizeof *starts);
    if (order && starts) {
        for (uint32_t i = 1; i < n_states; i++)
            starts[m->states[i].depth + 1]++;
        for (size_t d = 1; d < max_depth + 2; d++)
            starts[d] += starts[d - 1];
        for (uint32_t i = 1; i < n_states; i++)
            order[starts[m->states[i].depth]++] = i;
    } else {
        free(order);
        order = NULL;
    }
    free(starts);
    return order;
}

static void link_failures(struct matcher *m, const uint32_t *order, uint32_t n_states,
                          const struct arrival *arrivals)
{
    for (uint32_t i = 0; i + 1 < n_states; i++) {
        uint32_t state = order[i];
        struct arrival a = arrivals[state];
        uint32_t fail = a.parent;
        uint32_t target = 0;
        while (fail) {
            fail = m->states[fail].fail;
            uint32_t next = edge(m, fail, a.byte);
            if (next != VOCAB_MAP_NONE) {
                target = next;
                break;
            }
        }
        m->states[state].fail = target;
        if (m->states[state].out == MATCHER_NONE)
            m->states[state].out = m->states[target].out;
    }
}

static int build(struct matcher *m, const struct gguf_str *strings, size_t n, bool reversed,
                 size_t max_states, size_t max_depth)
{
    int r = -ENOMEM;
    uint32_t *order = NULL;
    uint32_t n_states = 1;
    struct arrival *arrivals = malloc(max_states * sizeof *arrivals);
    m->states = malloc(max_states * sizeof *m->states);
    if (!arrivals || !m->states)
        goto done;
    m->states[0] = (struct matcher_state){ 0, MATCHER_NONE, 0 };
    for (size_t i = 0; i < n; i++) {
        r = add_string(m, &strings[i], (uint32_t)i, reversed, arrivals, &n_states);
        if (r < 0)
            goto done;
    }
    r = -ENOMEM;
    order = by_depth(m, n_states, max_depth);
    if (!order)
        goto done;
    link_failures(m, order, n_states, arrivals);
    r = 0;
done:
    free(order);
    free(arrivals);
    return r;
}

int matcher_new(const struct gguf_str *strings, size_t n, bool reversed, struct matcher **ret_matcher)
{
    size_t total = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        if (strings[i].len > MAX_BYTES - total)
            return -E2BIG;
        total += strings[i].len;
        if (strings[i].len > longest)
            longest = strings[i].len;
    }
    struct matcher *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    int r = pairmap_init(&m->edges, total);
    if (r == 0)
        r = build(m, strings, n, reversed, total + 1, longest);
    if (r < 0) {
        matcher_free(m);
        return r;
    }
    *ret_matcher = m;
    return 0;
}

void matcher_free(struct matcher *m)
{
    if (!m)
        return;
    free(m->states);
    pairmap_free(&m->edges);
    free(m);
}
