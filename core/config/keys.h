/* Keys: the table of settings, private to config. A setting is a row: parsing, printing, defaults and
 * documentation all follow from it. Pure constant data; any thread. Tests: tests/unit/test_config.c */
#pragma once
#include "config/config.h"

#include <jansson.h>

enum config_key_type {
    KEY_BOOL,     /* bool */
    KEY_INT,      /* int64_t */
    KEY_INT_AUTO, /* int64_t, or "auto" for CONFIG_AUTO */
    KEY_REAL,     /* double */
    KEY_TEXT,     /* char *; null for none */
    KEY_PATH,     /* char *; null for none; relative to the file it stands in */
    KEY_CHOICE,   /* char *, one of `choices` */
    KEY_LIST,     /* struct config_list of strings */
    KEY_SETTINGS, /* struct config_settings */
    KEY_POLICIES, /* struct config_policies */
};

struct config_key {
    const char *name; /* "section.key", or "key" */
    enum config_key_type type;
    size_t offset;         /* in struct config */
    const char *fallback;  /* the default, as JSON */
    double min, max;       /* numbers; lists and objects: number of items */
    const char *choices;   /* separated by spaces; of lists: NULL where any string will do */
    const char *path_mark; /* lists: what follows it in an item is a path, relative to the file; NULL: none */
    const char *unit;      /* "bytes", "s", ...; "" where there is none */
    bool tried_later;      /* paths: whoever opens the file says whether it can be */
    bool reloadable;       /* can change while the server runs; the others need a restart */
    const char *help;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

#define CONFIG_MAX_ENTRIES 256 /* settings of a policy */

enum config_source { CONFIG_FROM_DEFAULT, CONFIG_FROM_FILE, CONFIG_FROM_SET };

struct config_origin { /* where a value came from, and what errors about it say */
    enum config_source source;
    unsigned line; /* of the file; 0: not known */
};

/* What config_load really allocates: struct config first, then what only printing and freeing need. */
struct config_whole {
    struct config config;
    char *path;                     /* of the file; NULL: none */
    struct config_origin origins[]; /* one per key */
};

/* The key called `name`, or NULL. */
const struct config_key *config_key_find(const char *name);
/* Whether some key lies below `name` ("server"). */
bool config_key_is_section(const char *name);
/* The name to suggest for an unknown one: the same word in another section, a near name, a near section; or
 * NULL. */
const char *config_key_nearest(const char *name);

/* The KEY_SETTINGS key that `name` is an entry of, as "policy.settings.ttl_max_s" is, and the entry's name;
 * or NULL. */
const struct config_key *config_key_of_entry(const char *name, const char **ret_entry);

struct config_stand { /* where a value stands */
    const char *dir;  /* what relative paths in it are relative to; NULL: left as they are */
    /* Writes where the entry `name` of `object`, an object in the value, came from. */
    void (*where)(void *arg, const json_t *object, const char *name, char *dst, size_t dstlen);
    void *arg;
};

/* Stores `value` after checking type and bounds. Returns 0, -ENOMEM, or -EINVAL with err = "key: what is
 * wrong", without where it stands. */
int config_key_set(const struct config_key *key, struct config *c, const json_t *value,
                   const struct config_stand *stand, char *err, size_t errlen);
/* A new reference to the key's value as JSON; NULL when out of memory. */
json_t *config_key_get(const struct config_key *key, const struct config *c);
/* Frees what the key's value owns and leaves it empty. */
void config_key_clear(const struct config_key *key, struct config *c);

/* object.c: the same for the types that have entries. `name` is what errors call the value. */
int config_settings_set(struct config_settings *s, const char *name, size_t max, const json_t *value,
                        const struct config_stand *stand, char *err, size_t errlen);
/* Adds one entry, or replaces it. -ENOMEM, or -EINVAL when there are `max` others already. */
int config_settings_put(struct config_settings *s, const char *name, size_t max, const char *entry,
                        const char *text, const char *where, char *err, size_t errlen);
json_t *config_settings_get(const struct config_settings *s);
void config_settings_clear(struct config_settings *s);
int config_policies_set(struct config_policies *p, const char *name, size_t max, const json_t *value,
                        const struct config_stand *stand, char *err, size_t errlen);
json_t *config_policies_get(const struct config_policies *p);
void config_policies_clear(struct config_policies *p);
/* A copy of a path, made relative to `dir`; NULL: out of memory. */
char *config_path_copy(const char *path, const char *dir);

/* "1..1024", "auto or 1..1024", "true or false", "auto, cpu", ... */
void config_key_allowed(const struct config_key *key, char *dst, size_t dstlen);
