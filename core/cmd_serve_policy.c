/* Cmd serve policy: see cmd_serve_policy.h. */
#include "cmd_serve_policy.h"
#include "policy/load.h"
#include "util/buf.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AFFINITY "STRATA_SLOT_CACHE_AFFINITY"
#define TRACE "STRATA_CACHE_TRACE"
#define ACTIVE_ROWS "STRATA_PIPELINE_ACTIVE_ROWS"
#define SETTING_PREFIX                                                                                       \
    "STRATA_SLOT_" /* what names of the process environment begin with that only a policy knows */

extern char **environ;

/* Values for policy_load; each one's strings are one block, which begins with the name. */
struct givens {
    struct policy_given *items;
    size_t n;
};

/* What is looked up by name: first the configuration's entries, then the process environment's. */
struct environment {
    struct givens all;
    size_t n_own; /* of the configuration */
};

struct wish {
    const struct config *config;
    struct environment env;
    unsigned probe_ms;
    int stop_fd;
    struct policy_graveyard *graveyard;
};

/* ---- values and where they came from ---- */

static void givens_clear(struct givens *g)
{
    for (size_t i = 0; i < g->n; i++)
        free((char *)g->items[i].name);
    free(g->items);
    *g = (struct givens){ 0 };
}

__attribute__((format(printf, 5, 6))) static int givens_add(struct givens *g, const char *name,
                                                            size_t name_len, const char *text,
                                                            const char *origin, ...)
{
    struct policy_given *items = reallocarray(g->items, g->n + 1, sizeof *items);
    char where[1024], *block = NULL;
    va_list args;
    if (!items)
        return -ENOMEM;
    g->items = items;
    va_start(args, origin);
    vsnprintf(where, sizeof where, origin, args);
    va_end(args);
    size_t text_len = strlen(text), where_len = strlen(where);
    block = malloc(name_len + text_len + where_len + 3);
    if (!block)
        return -ENOMEM;
    memcpy(block, name, name_len);
    block[name_len] = '\0';
    memcpy(block + name_len + 1, text, text_len + 1);
    memcpy(block + name_len + text_len + 2, where, where_len + 1);
    g->items[g->n++] = (struct policy_given){ .name = block,
                                              .text = block + name_len + 1,
                                              .origin = block + name_len + text_len + 2 };
    return 0;
}

static int add_settings(struct givens *g, const struct config_settings *s, const char *prefix)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct config_setting *e = &s->items[i];
        int r = givens_add(g, e->name, strlen(e->name), e->text, "%s.%s, %s", prefix, e->name, e->where);
        if (r < 0)
            return r;
    }
    return 0;
}

static int environment_read(const struct config *c, struct environment *env)
{
    int r = add_settings(&env->all, &c->env, "env");
    env->n_own = env->all.n;
    for (char **e = environ; r == 0 && *e; e++) {
        size_t len = strcspn(*e, "=");
        if ((*e)[len])
            r = givens_add(&env->all, *e, len, *e + len + 1, "environment %.*s", (int)len, *e);
    }
    return r;
}

static const struct policy_given *environment_find(const struct environment *env, const char *name)
{
    for (size_t i = 0; i < env->all.n; i++)
        if (strcmp(env->all.items[i].name, name) == 0)
            return &env->all.items[i];
    return NULL;
}

/* 1, 0, or -1 where the name is not set. */
static int read_switch(const struct environment *env, const char *name, int *ret_value, char *err,
                       size_t errlen)
{
    const struct policy_given *g = environment_find(env, name);
    *ret_value = -1;
    if (!g)
        return 0;
    if (strcmp(g->text, "0") != 0 && strcmp(g->text, "1") != 0) {
        snprintf(err, errlen, "%s: \"%.60s\" where 0 or 1 is allowed (%s)", name, g->text, g->origin);
        return -EDOM;
    }
    *ret_value = g->text[0] == '1';
    return 0;
}

/* ---- where policies lie ---- */

int serve_policies_folder(char *dst, size_t size)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    struct stat st;
    if (n < 0)
        return -errno;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    int len = snprintf(dst, size, "%s/plugins", self);
    if (len > 0 && (size_t)len < size && stat(dst, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    len = snprintf(dst, size, "%s%s" BERTH_POLICIES, BERTH_POLICIES[0] == '/' ? "" : self,
                   BERTH_POLICIES[0] == '/' ? "" : "/");
    return len > 0 && (size_t)len < size ? 0 : -ENAMETOOLONG;
}

/* ---- loading ---- */

/* `key` is what names the policy, for errors. */
static int load_one(const struct wish *w, const char *key, const char *path, const struct config_settings *s,
                    const char *prefix, struct policy_loaded **ret, char *err, size_t errlen)
{
    struct givens settings = { 0 };
    char why[900] = "";
    int r = add_settings(&settings, s, prefix);
    if (r == 0) {
        struct policy_load_options o = {
            .path = path,
            .settings = settings.items,
            .n_settings = settings.n,
            .env = w->env.all.items,
            .n_env = w->env.all.n,
            .probe_program = "/proc/self/exe",
            .probe_ms = w->probe_ms,
            .stop_fd = w->stop_fd,
            .graveyard = w->graveyard,
        };
        r = policy_load(&o, ret, why, sizeof why);
    }
    if (r < 0)
        snprintf(err, errlen, "%s: %s: %s%s", key, path, *why ? why : strerror(-r),
                 r == -ENOENT
                     ? "; berth policy list shows those that are there, make build brings berth's own"
                     : "");
    givens_clear(&settings);
    return r;
}

static int load_builtin(const struct config *c, struct policy_loaded **ret, char *err, size_t errlen)
{
    if (c->policy.settings.n) {
        const struct config_setting *e = &c->policy.settings.items[0];
        snprintf(err, errlen,
                 "policy.settings.%.80s: the built-in policy has no settings; policy.path names "
                 "a policy that has (%s)",
                 e->name, e->where);
        return -EDOM;
    }
    *ret = policy_loaded_ref(policy_loaded_builtin());
    return 0;
}

static int load_policy(const struct wish *w, struct policy_loaded **ret, char *err, size_t errlen)
{
    const struct config *c = w->config;
    char folder[4096], path[4200];
    int affinity, r = read_switch(&w->env, AFFINITY, &affinity, err, errlen);
    if (r < 0)
        return r;
    if (c->policy.path && affinity == 0) {
        snprintf(err, errlen,
                 AFFINITY "=0 asks for the built-in policy (%s), policy.path for %s; leave out one of them",
                 environment_find(&w->env, AFFINITY)->origin, c->policy.path);
        return -EDOM;
    }
    if (c->policy.path)
        return load_one(w, "policy.path", c->policy.path, &c->policy.settings, "policy.settings", ret, err,
                        errlen);
    if (affinity != 1)
        return load_builtin(c, ret, err, errlen);
    r = serve_policies_folder(folder, sizeof folder);
    if (r < 0) {
        snprintf(err, errlen, AFFINITY "=1: the folder of the policies is not found: %s", strerror(-r));
        return r;
    }
    snprintf(path, sizeof path, "%s/value.so", folder);
    return load_one(w, AFFINITY "=1", path, &c->policy.settings, "policy.settings", ret, err, errlen);
}

/* Whether the operator would rather have the built-in policy than no server. Wrong settings are a mistake in
 * the configuration, and no policy's fault. */
static bool fall_back(const struct config *c, bool starting, int r)
{
    return starting && r != -EDOM && strcmp(c->policy.fallback, "builtin") == 0;
}

static int load_all(const struct wish *w, bool starting, struct serve_policies *p, char *err, size_t errlen)
{
    const struct config_policies *shadow = &w->config->policy.shadow;
    int r = load_policy(w, &p->policy, err, errlen);
    if (r < 0 && fall_back(w->config, starting, r)) {
        snprintf(p->fallback, sizeof p->fallback, "%s", err);
        p->policy = policy_loaded_ref(policy_loaded_builtin());
        r = 0;
    }
    for (size_t i = 0; r == 0 && i < shadow->n; i++) {
        char key[64], prefix[96];
        snprintf(key, sizeof key, "policy.shadow: item %zu", i + 1);
        snprintf(prefix, sizeof prefix, "%s: settings", key);
        r = load_one(w, key, shadow->items[i].path, &shadow->items[i].settings, prefix,
                     &p->shadow[p->n_shadows], err, errlen);
        if (r == 0) {
            p->n_shadows++;
        } else if (fall_back(w->config, starting, r)) {
            if (!*p->fallback)
                snprintf(p->fallback, sizeof p->fallback, "%s", err);
            r = 0;
        }
    }
    return r;
}

/* ---- what is left over ---- */

static bool knows(const struct policy_loaded *p, const char *name)
{
    const struct slot_policy *entry = policy_loaded_entry(p);
    for (uint32_t i = 0; i < entry->n_settings; i++) {
        const struct policy_setting *s =
            (const void *)((const char *)entry->settings + (size_t)i * entry->head.size_setting);
        if (s->env && strcmp(s->env, name) == 0)
            return true;
    }
    return false;
}

static bool anybody_knows(const struct serve_policies *p, const char *name)
{
    bool known = strcmp(name, AFFINITY) == 0 || strcmp(name, TRACE) == 0 || strcmp(name, ACTIVE_ROWS) == 0 ||
                 knows(p->policy, name);
    for (size_t i = 0; !known && i < p->n_shadows; i++)
        known = knows(p->shadow[i], name);
    return known;
}

static void list_unused(const struct wish *w, struct serve_policies *p)
{
    struct buf list = { .max = sizeof p->unused - 1 };
    for (size_t i = 0; i < w->env.all.n; i++) {
        const char *name = w->env.all.items[i].name;
        bool ours = i < w->env.n_own || strncmp(name, SETTING_PREFIX, strlen(SETTING_PREFIX)) == 0;
        if (ours && !anybody_knows(p, name))
            buf_printf(&list, "%s%s", list.len ? "," : "", name);
    }
    snprintf(p->unused, sizeof p->unused, "%s", list.data ? list.data : "");
    buf_free(&list);
}

int serve_policies_load(const struct config *c, bool starting, int stop_fd, struct policy_graveyard *g,
                        struct serve_policies *ret_policies, char *err, size_t errlen)
{
    struct serve_policies p = { .trace = c->trace.path != NULL, .trace_path = c->trace.path };
    struct wish w = {
        .config = c, .probe_ms = (unsigned)c->policy.probe_s * 1000, .stop_fd = stop_fd, .graveyard = g
    };
    int trace, r = environment_read(c, &w.env);
    if (r < 0)
        snprintf(err, errlen, "out of memory");
    else
        r = read_switch(&w.env, TRACE, &trace, err, errlen);
    if (r == 0)
        r = load_all(&w, starting, &p, err, errlen);
    if (r == 0) {
        p.trace |= trace == 1;
        list_unused(&w, &p);
        *ret_policies = p;
    } else {
        serve_policies_clear(&p);
    }
    givens_clear(&w.env.all);
    return r;
}

int serve_padded(const struct config *c, bool *ret_padded, char *err, size_t errlen)
{
    struct environment env = { 0 };
    bool padded = strcmp(c->engine.windows, "padded") == 0;
    int active, r = environment_read(c, &env);
    if (r < 0)
        snprintf(err, errlen, "out of memory");
    else
        r = read_switch(&env, ACTIVE_ROWS, &active, err, errlen);
    if (r == 0 && active >= 0 && active == padded && !config_is_default(c, "engine.windows")) {
        snprintf(err, errlen,
                 ACTIVE_ROWS
                 "=%d asks for %s windows (%s), engine.windows for %s ones; leave out one of them",
                 active, active ? "active" : "padded", environment_find(&env, ACTIVE_ROWS)->origin,
                 c->engine.windows);
        r = -EDOM;
    }
    if (r == 0)
        *ret_padded = active >= 0 ? !active : padded;
    givens_clear(&env.all);
    return r;
}

void serve_policies_clear(struct serve_policies *p)
{
    policy_loaded_unref(p->policy);
    for (size_t i = 0; i < p->n_shadows; i++)
        policy_loaded_unref(p->shadow[i]);
    *p = (struct serve_policies){ 0 };
}
