/* Settings: see settings.h. */
#include "policy/settings.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct policy_settings {
    uint32_t n, stride;
    char *values; /* [n] of stride */
    struct text {
        const char *name; /* the table's */
        char *text, *origin;
    } * texts; /* [n] */
};

/* A row at our own size. */
static struct policy_setting row(const struct slot_policy *entry, uint32_t i)
{
    struct policy_setting r = { 0 };
    size_t size = entry->head.size_setting;
    memcpy(&r, (const char *)entry->settings + (size_t)i * size, size < sizeof r ? size : sizeof r);
    return r;
}

/* ---- one value ---- */

/* What is wrong with a value, to be worded with where it came from; false means that something is. */
__attribute__((format(printf, 3, 4))) static bool wrong(char *why, size_t len, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, len, format, args);
    va_end(args);
    return false;
}

static bool within(const struct policy_setting *s, double v, const char *text, char *why, size_t len)
{
    const char *unit = *s->unit ? " " : "";
    if (v >= s->min && v <= s->max)
        return true;
    return wrong(why, len, "%.60s is outside %.17g..%.17g%s%.20s", text, s->min, s->max, unit, s->unit);
}

static bool parse_int(const struct policy_setting *s, const char *text, struct policy_value *v, char *why,
                      size_t len)
{
    char *end;
    errno = 0;
    v->number = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        return wrong(why, len, "\"%.60s\" is not a whole number %.17g..%.17g", text, s->min, s->max);
    v->real = (double)v->number;
    return within(s, errno == ERANGE ? NAN : v->real, text, why, len);
}

static bool parse_real(const struct policy_setting *s, const char *text, struct policy_value *v, char *why,
                       size_t len)
{
    char *end;
    v->real = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || isnan(v->real))
        return wrong(why, len, "\"%.60s\" is not a number %.17g..%.17g", text, s->min, s->max);
    if (!within(s, v->real, text, why, len))
        return false;
    /* A number beyond int64 is its nearest. */
    v->number = v->real >= 0x1p63 ? INT64_MAX : v->real <= -0x1p63 ? INT64_MIN : (int64_t)v->real;
    return true;
}

static bool parse_bool(const char *text, struct policy_value *v, char *why, size_t len)
{
    bool yes = !strcmp(text, "true") || !strcmp(text, "1"), no = !strcmp(text, "false") || !strcmp(text, "0");
    if (!yes && !no)
        return wrong(why, len, "\"%.60s\" is not true or false", text);
    v->number = yes;
    v->real = yes;
    return true;
}

static bool parse_choice(const struct policy_setting *s, const char *text, struct policy_value *v, char *why,
                         size_t len)
{
    size_t used = (size_t)snprintf(why, len, "\"%.60s\" is not one of", text);
    for (uint32_t i = 0; i < s->n_choices; i++) {
        if (strcmp(text, s->choices[i]) == 0) {
            v->number = i;
            v->real = i;
            return true;
        }
        if (used < len)
            used += (size_t)snprintf(why + used, len - used, "%s %s", i ? "," : "", s->choices[i]);
    }
    return false;
}

/* Fills *v, or says in why what is wrong with the text. */
static bool parse(const struct policy_setting *s, const char *text, struct policy_value *v, char *why,
                  size_t len)
{
    *v = (struct policy_value){ .text = text };
    switch (s->kind) {
    case POLICY_INT:
        return parse_int(s, text, v, why, len);
    case POLICY_REAL:
    case POLICY_SECONDS:
        return parse_real(s, text, v, why, len);
    case POLICY_BOOL:
        return parse_bool(text, v, why, len);
    case POLICY_CHOICE:
        return parse_choice(s, text, v, why, len);
    default:
        if ((double)strlen(text) < s->min || (double)strlen(text) > s->max)
            return wrong(why, len, "\"%.60s\" is %zu bytes long, %.17g..%.17g are allowed", text,
                         strlen(text), s->min, s->max);
        return true;
    }
}

/* ---- the table ---- */

static bool is_name(const char *name)
{
    size_t n = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    return n >= 1 && n <= 63 && !name[n];
}

static const char *row_fault(const struct policy_setting *s)
{
    bool numeric = s->kind == POLICY_INT || s->kind == POLICY_REAL || s->kind == POLICY_SECONDS;
    if (s->kind < POLICY_INT || s->kind > POLICY_CHOICE)
        return "has no known kind";
    if (!s->default_text || !s->unit || !s->help)
        return "lacks its default, unit or help";
    if ((numeric || s->kind == POLICY_TEXT) && !(s->min <= s->max))
        return "has no bounds";
    if (s->kind == POLICY_CHOICE && (!s->n_choices || s->n_choices > 256 || !s->choices))
        return "has no choices";
    for (uint32_t i = 0; s->kind == POLICY_CHOICE && i < s->n_choices; i++)
        if (!s->choices[i])
            return "has a choice without a name";
    return NULL;
}

int policy_settings_check_table(const struct slot_policy *entry, char *err, size_t errlen)
{
    char why[512];
    if (entry->n_settings > POLICY_SETTINGS_MAX || (entry->n_settings && !entry->settings)) {
        snprintf(err, errlen, "%u settings, where 0..%u are allowed", entry->n_settings, POLICY_SETTINGS_MAX);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < entry->n_settings; i++) {
        struct policy_setting s = row(entry, i);
        struct policy_value v;
        if (!is_name(s.name)) {
            snprintf(err, errlen, "setting %u has no name of [a-z0-9_]{1,63}", i);
            return -EINVAL;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(row(entry, k).name, s.name) == 0) {
                snprintf(err, errlen, "setting %s is declared twice", s.name);
                return -EINVAL;
            }
        }
        const char *fault = row_fault(&s);
        if (fault || !parse(&s, s.default_text, &v, why, sizeof why)) {
            snprintf(err, errlen, "setting %s %s%s", s.name,
                     fault ? fault : "has a wrong default: ", fault ? "" : why);
            return -EINVAL;
        }
    }
    return 0;
}

/* ---- the values ---- */

static bool names(const struct policy_setting *s, const char *name)
{
    return strcmp(name, s->name) == 0 || (s->env && strcmp(name, s->env) == 0);
}

static int check_given(const struct slot_policy *entry, const struct policy_load_options *o, char *err,
                       size_t errlen)
{
    for (size_t g = 0; g < o->n_settings; g++) {
        uint32_t i = 0;
        struct policy_setting s = { 0 };
        for (; i < entry->n_settings; i++) {
            s = row(entry, i);
            if (names(&s, o->settings[g].name))
                break;
        }
        if (i == entry->n_settings) {
            size_t used =
                (size_t)snprintf(err, errlen, "%.80s: unknown (%.200s); %s has %s", o->settings[g].name,
                                 o->settings[g].origin, entry->name, entry->n_settings ? "" : "no settings");
            for (i = 0; i < entry->n_settings && used < errlen; i++)
                used +=
                    (size_t)snprintf(err + used, errlen - used, "%s%s", i ? ", " : "", row(entry, i).name);
            return -EDOM;
        }
        for (size_t k = 0; k < g; k++) {
            if (names(&s, o->settings[k].name)) {
                snprintf(err, errlen, "%s: given twice (%.200s; %.200s)", s.name, o->settings[k].origin,
                         o->settings[g].origin);
                return -EDOM;
            }
        }
    }
    return 0;
}

static struct policy_given find(const struct policy_setting *s, const struct policy_load_options *o)
{
    for (size_t g = 0; g < o->n_settings; g++)
        if (names(s, o->settings[g].name))
            return o->settings[g];
    for (size_t g = 0; s->env && g < o->n_env; g++)
        if (strcmp(o->env[g].name, s->env) == 0)
            return o->env[g];
    return (struct policy_given){ .name = s->name, .text = s->default_text, .origin = "default" };
}

static int fill(struct policy_settings *p, const struct slot_policy *entry,
                const struct policy_load_options *o, char *err, size_t errlen)
{
    char why[512];
    for (uint32_t i = 0; i < p->n; i++) {
        struct policy_setting s = row(entry, i);
        struct policy_given g = find(&s, o);
        struct policy_value *v = (struct policy_value *)(p->values + (size_t)i * p->stride);
        struct text *t = &p->texts[i];
        *t = (struct text){ .name = s.name, .text = strdup(g.text), .origin = strdup(g.origin) };
        if (!t->text || !t->origin) {
            snprintf(err, errlen, "out of memory");
            return -ENOMEM;
        }
        if (!parse(&s, t->text, v, why, sizeof why)) {
            snprintf(err, errlen, "%s: %s (%.300s)", s.name, why, t->origin);
            return -EDOM;
        }
    }
    return 0;
}

int policy_settings_new(const struct slot_policy *entry, const struct policy_load_options *o,
                        struct policy_settings **ret_settings, char *err, size_t errlen)
{
    struct policy_settings *p = calloc(1, sizeof *p);
    int r = check_given(entry, o, err, errlen);
    if (p) {
        uint32_t size = entry->head.size_value;
        p->n = entry->n_settings;
        p->stride = size > sizeof(struct policy_value) ? (size + 7) & ~7u : sizeof(struct policy_value);
        p->values = calloc(p->n + (size_t)1, p->stride);
        p->texts = calloc(p->n + (size_t)1, sizeof *p->texts);
    }
    if (r == 0 && (!p || !p->values || !p->texts)) {
        snprintf(err, errlen, "out of memory");
        r = -ENOMEM;
    }
    if (r == 0)
        r = fill(p, entry, o, err, errlen);
    if (r < 0) {
        policy_settings_free(p);
        return r;
    }
    *ret_settings = p;
    return 0;
}

void policy_settings_free(struct policy_settings *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->texts && i < p->n; i++) {
        free(p->texts[i].text);
        free(p->texts[i].origin);
    }
    free(p->texts);
    free(p->values);
    free(p);
}

const struct policy_value *policy_settings_values(const struct policy_settings *p, uint32_t *ret_stride)
{
    *ret_stride = p->stride;
    return (const struct policy_value *)p->values;
}

struct policy_loaded_setting policy_settings_get(const struct policy_settings *p, uint32_t i)
{
    const struct text *t = &p->texts[i];
    return (struct policy_loaded_setting){ t->name, t->text, t->origin };
}
