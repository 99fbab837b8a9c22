/* Config: the operator's settings. One table of keys (keys.c: name, type, unit, bounds, default, reloadable,
 * help) drives parsing, --set, `berth check`, --help-config and conf/README.md. Pure data once loaded;
 * whoever loads it owns it. Must not know: what a setting does. Tests: tests/unit/test_config.c,
 * tests/e2e/test_check.py */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CONFIG_AUTO (-1) /* value of a number whose setting is "auto" */
#define CONFIG_BAD_SET (-EDOM)

struct config_list {
    char **items;
    size_t n;
};

/* One entry of an object whose names are not the config's to know. */
struct config_setting {
    char *name;
    char *text;  /* the value: a string without its quotes, a number, true or false */
    char *where; /* it came from: "conf/berth.json line 14", "--set" */
};

struct config_settings {
    struct config_setting *items;
    size_t n;
};

struct config_policy {
    char *path;
    struct config_settings settings;
};

struct config_policies {
    struct config_policy *items;
    size_t n;
};

struct config {
    struct { /* server */
        struct config_list listen, cors_origins;
        char *keys_file; /* NULL: none */
        bool open, metrics_open;
        int64_t max_header_bytes, max_body_bytes, max_json_depth, max_connections, header_timeout_s,
            idle_timeout_s, max_unsent_bytes, drain_s, watchdog_s, keepalive_s, workers;
    } server;
    struct {                 /* model */
        char *path;          /* NULL: the first GGUF file in ./models */
        int64_t context;     /* tokens; CONFIG_AUTO: as trained, bounded by memory */
        char *chat_template; /* path of a file; NULL: the model's own */
        char *turn_token;    /* text of the token that starts a turn; NULL: found in the vocabulary */
        char *tool_format;   /* auto hermes mistral llama3 json xml glm none */
        char *name;          /* what /v1/models calls it; NULL: the file's name without .gguf */
    } model;
    struct { /* api */
        struct config_list normalize;
    } api;
    struct {             /* engine */
        char *device;    /* auto cpu cuda */
        char *isa;       /* auto avx512 avx2 portable */
        int64_t threads; /* CONFIG_AUTO: the cores this process may use */
        int64_t stages, slots, rows;
        int64_t groups;    /* CONFIG_AUTO: as many as stages, or the next fewer that divides the slots */
        int64_t kv_tokens; /* CONFIG_AUTO */
        char *kv_type;     /* f16 f32 q8_0 */
        char *activations; /* auto int8 int16 f32 */
        bool deterministic;
        char *windows; /* active padded */
        int64_t max_pause_ms;
    } engine;
    struct {
        int64_t max; /* waiting requests */
        char *order; /* least arrival */
    } queue;
    struct {
        char *isolation; /* auto shared key */
        char *save_dir;  /* folder of saved conversations; NULL: none */
    } cache;
    struct { /* sampling defaults of requests that say nothing */
        double temperature, top_p, min_p, repeat_penalty;
        int64_t top_k;
    } sampling;
    struct {        /* policy: what decides which conversations are kept */
        char *path; /* of the object; NULL: the built-in, or what the environment asks for */
        struct config_settings settings;
        struct config_policies shadow;
        char *fallback;  /* none builtin: what a policy that cannot be loaded at start means */
        int64_t probe_s; /* time a policy has to load in the probe */
    } policy;
    struct config_settings env; /* instead of the process environment, where a name is in both */
    struct {
        char *path; /* NULL: none */
    } trace;
    struct {
        char *level;
    } log;
};

/* Loads path (NULL: only defaults), then the overrides "a.b=c", in order, later ones winning. All or nothing:
 * on failure err names the key's path, the value, what is allowed, and file and line where that is known.
 * Relative paths in a file (those of unix: addresses too) are relative to it; in overrides to the working
 * directory. CONFIG_BAD_SET when an override is wrong, else -EINVAL, -ENOENT, -ENOMEM, or what reading the
 * file said. */
int config_load(const char *path, const char *const *sets, size_t n_sets, struct config **ret_config,
                char *err, size_t errlen);
void config_free(struct config *c);
/* Gives `next` the values that `running` has of every key that needs a restart, and calls changed(arg, key)
 * for each that differed. -ENOMEM; then next is only good for config_free. */
int config_keep_fixed(struct config *next, const struct config *running,
                      void (*changed)(void *arg, const char *key), void *arg);
/* Whether settings that are right by themselves fit together. -EINVAL with err naming the key and where it
 * was set. */
int config_check_rules(const struct config *c, char *err, size_t errlen);
/* The first key whose last word is `word`, which may have dashes for underscores; NULL: none is. */
const char *config_key_by_word(const char *word);
/* Whether neither the file nor an override names the key. */
bool config_is_default(const struct config *c, const char *key);
/* Whether every file the config names can be read. -EINVAL with err naming the key, the path and where it was
 * set. */
int config_check_files(const struct config *c, char *err, size_t errlen);
/* Prints every key, its value and where it came from (default, file line, --set). */
void config_print(const struct config *c, FILE *out);
/* Prints the table for people: --help-config (text) and the body of conf/README.md (markdown). */
void config_print_keys(FILE *out, bool markdown);
