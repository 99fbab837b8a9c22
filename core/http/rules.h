/* Rules: who may ask what, as one thing; rules.c. Event thread once in use. */
#pragma once
#include "http/http.h"

struct http_rules {
    struct http_key *keys;
    char **origins;
    size_t n_keys, n_origins;
    bool metrics_open;
};
