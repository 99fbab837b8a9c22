/* Special tokens in a text: see tokenizer_special.h. The text is walked from its end by the automaton of the
 * reversed texts: at each place it knows the longest token that starts there, which is just what a walk from
 * the front wants to know next. Walking forward instead would have to look ahead from each place anew. */
#include "model/tokenizer_special.h"
#include "model/matcher.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct special_set {
    struct matcher *matcher;
    int32_t *ids;   /* by the matcher's numbers */
    uint32_t *lens; /* of their texts */
};

int special_set_new(const struct gguf_str *texts, const int32_t *ids, size_t n, struct special_set **ret_set)
{
    *ret_set = NULL;
    if (n == 0)
        return 0;
    int r = -ENOMEM;
    struct special_set *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->ids = malloc(n * sizeof *s->ids);
    s->lens = malloc(n * sizeof *s->lens);
    if (!s->ids || !s->lens)
        goto fail;
    r = matcher_new(texts, n, true, &s->matcher);
    if (r < 0)
        goto fail;
    for (size_t i = 0; i < n; i++) {
        s->ids[i] = ids[i];
        s->lens[i] = (uint32_t)texts[i].len;
    }
    *ret_set = s;
    return 0;
fail:
    special_set_free(s);
    return r;
}

void special_set_free(struct special_set *s)
{
    if (!s)
        return;
    matcher_free(s->matcher);
    free(s->ids);
    free(s->lens);
    free(s);
}

struct match_list {
    struct special_match *data;
    size_t n, cap;
};

static int add_match(struct match_list *l, struct special_match match)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        struct special_match *data = realloc(l->data, cap * sizeof *data);
        if (!data)
            return -ENOMEM;
        l->data = data;
        l->cap = cap;
    }
    l->data[l->n++] = match;
    return 0;
}

/* The longest match at every place, last place first. */
static int find_all(const struct special_set *s, const char *text, size_t len, struct match_list *l)
{
    const struct matcher *m = s->matcher;
    uint32_t state = 0;
    for (size_t at = len; at-- > 0;) {
        state = matcher_step(m, state, (unsigned char)text[at]);
        uint32_t out = m->states[state].out;
        if (out == MATCHER_NONE)
            continue;
        int r = add_match(l, (struct special_match){ at, s->lens[out], s->ids[out] });
        if (r < 0)
            return r;
    }
    return 0;
}

int special_set_find(const struct special_set *s, const char *text, size_t len,
                     struct special_match **ret_matches, size_t *ret_n)
{
    *ret_matches = NULL;
    *ret_n = 0;
    if (!s)
        return 0;
    struct match_list all = { 0 };
    int r = find_all(s, text, len, &all);
    if (r < 0) {
        free(all.data);
        return r;
    }
    for (size_t i = 0; i < all.n / 2; i++) {
        struct special_match first = all.data[i];
        all.data[i] = all.data[all.n - 1 - i];
        all.data[all.n - 1 - i] = first;
    }
    size_t kept = 0, end = 0;
    for (size_t i = 0; i < all.n; i++) {
        if (all.data[i].at < end)
            continue;
        end = all.data[i].at + all.data[i].len;
        all.data[kept++] = all.data[i];
    }
    *ret_matches = all.data;
    *ret_n = kept;
    return 0;
}
