/* A built policy, opened and asked directly, without loader or host. */
#pragma once
#include "abi/policy_words.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_SETTINGS 16

/* Elements lie further apart than their own size, as for a policy built with an earlier header. */
struct module_value {
    struct policy_value v;
    char beyond[8];
};

struct module_worth {
    struct policy_worth w;
    char beyond[16];
};

/* The name.so of this build. It stays open until the process ends. */
static inline const struct slot_policy *module_open(const char *name)
{
    char path[1024];
    const char *folder = getenv("BERTH_BUILD");
    cr_assert_not_null(folder, "BERTH_BUILD is not set");
    snprintf(path, sizeof path, "%s/plugins/%s.so", folder, name);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(object, "%s", dlerror());
    const struct slot_policy *entry = dlsym(object, "slot_policy_entry");
    cr_assert_not_null(entry, "%s has no entry", path);
    cr_assert(entry->head.magic == POLICY_MAGIC && entry->head.size == sizeof *entry);
    return entry;
}

/* Settings at their defaults, in table order. */
static inline void module_defaults(const struct slot_policy *p, double *values)
{
    cr_assert_leq(p->n_settings, MODULE_SETTINGS);
    for (uint32_t i = 0; i < p->n_settings; i++)
        values[i] = strtod(p->settings[i].default_text, NULL);
}

static inline uint32_t module_setting(const struct slot_policy *p, const char *name)
{
    uint32_t i = 0;
    while (i < p->n_settings && strcmp(p->settings[i].name, name) != 0)
        i++;
    cr_assert_lt(i, p->n_settings, "no setting %s", name);
    return i;
}

static inline void *module_create(const struct slot_policy *p, const double *values)
{
    struct module_value v[MODULE_SETTINGS];
    char error[256] = "";
    struct policy_create_args args = { .size = sizeof args,
                                       .n_values = p->n_settings,
                                       .value_stride = sizeof v[0],
                                       .error_size = sizeof error,
                                       .values = &v[0].v,
                                       .error = error };
    memset(v, 0xee, sizeof v);
    for (uint32_t i = 0; i < p->n_settings; i++)
        v[i].v = (struct policy_value){ .number = (int64_t)values[i], .real = values[i] };
    void *self = p->create(&args);
    cr_assert_not_null(self, "%s", error);
    return self;
}
