/* What is found out about templates by asking them: over the templates of tests/data, whose traits are listed
 * here by hand from reading them. */
#include "model/chat_traits.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct chat_traits traits_of(const char *name, const char *text)
{
    char err[200] = "";
    struct chat_template *t;
    struct chat_traits r;
    cr_assert_eq(chat_template_parse(text, strlen(text), &t, err, sizeof err), 0, "%s: %s", name, err);
    chat_traits_find(t, text, &r);
    chat_template_free(t);
    return r;
}

static char *read_file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/templates/%s.jinja", getenv("BERTH_TEST_DATA"), name);
    FILE *f = fopen(path, "re");
    cr_assert(f != NULL, "%s", path);
    char *text = calloc(1, 1 << 16);
    cr_assert_gt(fread(text, 1, (1 << 16) - 1, f), 0);
    fclose(f);
    return text;
}

enum { T = 1, C = 2, R = 4, TEXT = 8, SHORT = 16, S = 32, LATER = 64, REPEATS = 128, MANY = 256 };

static const struct row {
    const char *name;
    unsigned has;
    enum toolcall_format format;
    const char *gap, *mark;
} rows[] = {
    { "qwen25", MANY | T | C | R | S | LATER | REPEATS, TOOLCALL_HERMES, "\n", NULL },
    { "hermes", MANY | T | C | R | S | LATER | REPEATS, TOOLCALL_HERMES, "", NULL },
    { "llama3", T | C | R | S | LATER | REPEATS, TOOLCALL_LLAMA3, "", NULL },
    { "mistral", MANY | T | C | R | SHORT | S, TOOLCALL_MISTRAL, "", NULL },
    { "smollm2", R | S | LATER | REPEATS, TOOLCALL_JSON, "", NULL },
    { "qwen3", MANY | C | R | S | LATER | REPEATS, TOOLCALL_HERMES, "\n", "</think>" },
    { "gemma", S, TOOLCALL_JSON, "", NULL },
    { "qwen3_coder", MANY | T | C | R | S | LATER | REPEATS, TOOLCALL_XML, "\n\n", NULL },
    { "glm45", MANY | T | C | R | S | LATER | REPEATS, TOOLCALL_GLM, "\n", "</think>" },
};

Test(traits, templates_are_found_out)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *w = &rows[i];
        char *text = read_file(w->name);
        struct chat_traits t = traits_of(w->name, text);
        unsigned has = (t.tools ? T : 0) | (t.calls ? C : 0) | (t.results ? R : 0) |
                       (t.arguments_text ? TEXT : 0) | (t.short_ids ? SHORT : 0) | (t.system ? S : 0) |
                       (t.system_later ? LATER : 0) | (t.repeats ? REPEATS : 0) | (t.several ? MANY : 0);
        cr_expect_eq(has, w->has, "%s: %x, wanted %x", w->name, has, w->has);
        cr_expect_eq(t.format, w->format, "%s: %s", w->name, toolcall_format_name(t.format));
        cr_expect_str_eq(t.gap, w->gap, "%s", w->name);
        cr_expect_str_eq(t.marks ? t.marks->end : "none", w->mark ? w->mark : "none", "%s", w->name);
        free(text);
    }
}

Test(traits, arguments_as_text_are_noticed)
{
    static const char text[] =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
        "{{ c.function.name + ' ' + c.function.arguments }}</tool_call>{% endfor %}{% endfor %}";
    struct chat_traits t = traits_of("text", text);
    cr_expect(t.calls && t.arguments_text);
    cr_expect_eq(t.format, TOOLCALL_HERMES);
}

Test(traits, a_template_that_refuses_everything_has_none)
{
    struct chat_traits t = traits_of("no", "{{ raise_exception('no') }}");
    cr_expect_not(t.tools || t.calls || t.results || t.system || t.system_later || t.repeats);
    cr_expect_eq(t.format, TOOLCALL_JSON);
}
