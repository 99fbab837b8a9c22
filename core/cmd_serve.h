/* Cmd serve, inside: what the files of `berth serve` share. */
#pragma once
#include "api/api.h"
#include "config/config.h"
#include "http/http.h"

/* cmd_serve_options.c: a configuration as the options of those who know no configuration. What is borrowed
 * from it lives as long as it. */
struct api_live serve_live(const struct config *c);
/* Without a policy and without listeners. */
struct loaded;
struct sched_options serve_sched_options(const struct config *c, const struct loaded *l);
/* Without routes. */
struct http_options serve_http_options(const struct config *c, const struct http_key *keys, size_t n_keys);
