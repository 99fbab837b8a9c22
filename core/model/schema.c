/* Schema: see schema.h. */
#include "model/schema.h"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Schemas looked at for one tool: far more than real ones have, and few enough for those that refer to
 * themselves in several places. */
#define MAX_VISITS 4096u
#define MAX_DEPTH 64u
#define MAX_NAME 256u

struct walk {
    const json_t *root;
    unsigned visits, depth;
    json_t *members;
    bool failed;
};

static unsigned bits_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        { "string", 1u << JSON_STRING },
        { "integer", 1u << JSON_INTEGER },
        { "number", 1u << JSON_INTEGER | 1u << JSON_REAL },
        { "boolean", 1u << JSON_TRUE | 1u << JSON_FALSE },
        { "null", 1u << JSON_NULL },
        { "array", 1u << JSON_ARRAY },
        { "object", 1u << JSON_OBJECT },
    };
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].bits;
    return 0;
}

/* One name of a JSON pointer, up to `end`: ~1 is a slash and ~0 a tilde. */
static const json_t *step(const json_t *value, const char *name, const char *end)
{
    char plain[MAX_NAME];
    size_t n = 0;
    if (json_is_array(value)) {
        size_t i = 0;
        for (; name < end && *name >= '0' && *name <= '9' && i < 1000000; name++)
            i = 10 * i + (size_t)(*name - '0');
        return name == end ? json_array_get(value, i) : NULL;
    }
    for (; name < end && n + 1 < sizeof plain; name++) {
        bool escape = *name == '~' && name + 1 < end && (name[1] == '0' || name[1] == '1');
        plain[n++] = !escape ? *name : name[1] == '1' ? '/' : '~';
        name += escape;
    }
    plain[n] = '\0';
    return name == end ? json_object_get(value, plain) : NULL;
}

/* What "#" and "#/$defs/name" refer to; NULL for what lies elsewhere or nowhere. */
static const json_t *refer(const json_t *root, const json_t *ref)
{
    const char *at = json_string_value(ref);
    const json_t *value = root;
    if (!at || *at++ != '#' || (*at && *at != '/'))
        return NULL;
    while (value && *at) {
        const char *name = at + 1;
        at = name + strcspn(name, "/");
        value = step(value, name, at);
    }
    return value;
}

/* Both hold. Where they contradict one another the first is believed. */
static unsigned both(unsigned a, unsigned b)
{
    return a && b && (a & b) ? a & b : a ? a : b;
}

static bool enter(struct walk *w)
{
    if (w->depth == MAX_DEPTH || w->visits == MAX_VISITS)
        return false;
    w->depth++;
    w->visits++;
    return true;
}

static unsigned types(struct walk *w, const json_t *schema);

/* One of the list holds; 0 as soon as one of them does not tell. */
static unsigned types_of_any(struct walk *w, const json_t *list)
{
    unsigned all = 0, bits = 1;
    for (size_t i = 0; bits && i < json_array_size(list); i++) {
        bits = types(w, json_array_get(list, i));
        all |= bits;
    }
    return bits ? all : 0;
}

static unsigned types_named(const json_t *type)
{
    unsigned all = bits_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        all |= bits_named(json_string_value(json_array_get(type, i)));
    return all;
}

static unsigned types_of_values(const json_t *schema)
{
    const json_t *values = json_object_get(schema, "enum"), *value = json_object_get(schema, "const");
    unsigned all = value ? 1u << json_typeof(value) : 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        all |= 1u << json_typeof(json_array_get(values, i));
    return all;
}

static unsigned types(struct walk *w, const json_t *schema)
{
    const json_t *every = json_object_get(schema, "allOf"), *ref = json_object_get(schema, "$ref");
    unsigned all = types_named(json_object_get(schema, "type"));
    if (!json_is_object(schema) || !enter(w))
        return 0;
    all = both(all, types_of_values(schema));
    all = both(all, types_of_any(w, json_object_get(schema, "anyOf")));
    all = both(all, types_of_any(w, json_object_get(schema, "oneOf")));
    for (size_t i = 0; i < json_array_size(every); i++)
        all = both(all, types(w, json_array_get(every, i)));
    if (ref)
        all = both(all, types(w, refer(w->root, ref)));
    w->depth--;
    return all;
}

/* The members that a schema of an object tells of, those of its parts too. */
static void collect(struct walk *w, const json_t *schema)
{
    const json_t *every = json_object_get(schema, "allOf");
    json_t *properties = json_object_get(schema, "properties"), *property;
    const char *name;
    if (!json_is_object(schema) || !enter(w))
        return;
    json_object_foreach(properties, name, property)
    {
        unsigned before = (unsigned)json_integer_value(json_object_get(w->members, name));
        w->failed |=
            json_object_set_new(w->members, name, json_integer(both(before, types(w, property)))) < 0;
    }
    for (size_t i = 0; i < json_array_size(every); i++)
        collect(w, json_array_get(every, i));
    collect(w, refer(w->root, json_object_get(schema, "$ref")));
    w->depth--;
}

json_t *schema_members(const json_t *schema)
{
    struct walk w = { .root = schema, .members = json_object() };
    if (w.members)
        collect(&w, schema);
    if (!w.failed)
        return w.members;
    json_decref(w.members);
    return NULL;
}
