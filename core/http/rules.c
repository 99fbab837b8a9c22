/* Rules: who may ask what, as one thing that a reload exchanges. Made and freed on any thread; used on the
 * event thread alone. Must not know: how a request is judged by them (auth.c). Tests:
 * tests/e2e/test_http_rules.py, tests/e2e/test_reload.py */
#include "http/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void http_rules_free(struct http_rules *rules)
{
    if (!rules)
        return;
    for (size_t i = 0; i < rules->n_origins; i++)
        free(rules->origins[i]);
    free(rules->origins);
    free(rules->keys);
    free(rules);
}

int http_rules_new(const struct http_options *o, struct http_rules **ret_rules)
{
    struct http_rules *rules = calloc(1, sizeof *rules);

    if (!rules)
        return -ENOMEM;
    rules->metrics_open = o->metrics_open;
    rules->keys = calloc(o->n_keys + 1, sizeof *rules->keys);
    rules->origins = calloc(o->n_cors_origins + 1, sizeof *rules->origins);
    if (!rules->keys || !rules->origins)
        goto fail;
    if (o->n_keys)
        memcpy(rules->keys, o->keys, o->n_keys * sizeof *rules->keys);
    rules->n_keys = o->n_keys;
    for (size_t i = 0; i < o->n_cors_origins; i++) {
        rules->origins[i] = strdup(o->cors_origins[i]);
        if (!rules->origins[i])
            goto fail;
        rules->n_origins++;
    }
    *ret_rules = rules;
    return 0;

fail:
    http_rules_free(rules);
    return -ENOMEM;
}

int http_rules_exchange(struct http *h, struct http_rules **rules)
{
    struct http_rules *old = h->rules;

    if ((*rules)->n_keys == 0 && h->wide && !h->o.open)
        return -EACCES;
    h->rules = *rules;
    *rules = old;
    return 0;
}
