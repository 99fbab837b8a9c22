/* The chat renderer: what templates may say, what errors say, and that nothing hostile costs much.
 * Byte-for-byte comparison with jinja2 is in tests/e2e/test_render.py. */
#include "model/chat.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOW 1760000000 /* 2025-10-09 08:53:20 UTC */

struct result {
    int r;
    char *text;
    char err[256];
};

static struct result render_with(const char *source, size_t len, const char *vars)
{
    struct result res = { 0 };
    struct chat_template *t = NULL;
    struct buf out = { 0 };
    json_error_t e;
    json_t *v = json_loads(vars, 0, &e);
    cr_assert_not_null(v, "the variables of the test are JSON: %s", e.text);
    res.r = chat_template_parse(source, len, &t, res.err, sizeof res.err);
    if (res.r == 0)
        res.r = chat_template_render(t, v, NOW, &out, res.err, sizeof res.err);
    res.text = strdup(out.data ? out.data : "");
    chat_template_free(t);
    buf_free(&out);
    json_decref(v);
    return res;
}

static void check(const char *source, const char *vars, const char *wanted)
{
    struct result res = render_with(source, strlen(source), vars);
    cr_expect_eq(res.r, 0, "%s: %s", source, res.err);
    cr_expect_str_eq(res.text, wanted, "%s gives \"%s\", wanted \"%s\"", source, res.text, wanted);
    free(res.text);
}

static void refuse(const char *source, const char *vars, int code, const char *message)
{
    struct result res = render_with(source, strlen(source), vars);
    cr_expect_eq(res.r, code, "%.80s: returned %d (%s)", source, res.r, res.text);
    cr_expect(strstr(res.err, message) != NULL, "%.80s: \"%s\" does not say \"%s\"", source, res.err,
              message);
    cr_expect_str_eq(res.text, "", "a failed render leaves nothing behind");
    free(res.text);
}

static double seconds_to_refuse(const char *source, const char *vars, const char *message)
{
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    refuse(source, vars, -E2BIG, message);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* ---- SmolLM2 */

static const char smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}";

Test(chat, smollm2_adds_its_system_message)
{
    check(
        smollm2,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}",
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

Test(chat, smollm2_keeps_a_given_system_message)
{
    check(smollm2,
          "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
          "\"content\": "
          "\"\\u00e9 \\n\"}, {\"role\": \"assistant\", \"content\": \"ok\"}]}",
          "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n\u00e9 \n<|im_end|>\n"
          "<|im_start|>assistant\nok<|im_end|>\n");
}

Test(chat, smollm2_refuses_a_message_without_text)
{
    refuse(smollm2, "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", -EINVAL,
           "line 4: + does not work between str and NoneType");
}

Test(chat, the_default_template_is_chatml)
{
    check(
        chat_template_chatml,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
        "[{\"type\": "
        "\"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"user\", "
        "\"content\": null}], "
        "\"add_generation_prompt\": true}",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
        "<|im_start|>assistant\n");
}

/* ---- the language */

Test(chat, blocks_take_their_line_and_signs_take_more)
{
    check("a\n  {% if true %}\nb\n  {% endif %}\nc", "{}", "a\nb\nc");
    check("a  {%- if true -%}  b  {%- endif %}  c", "{}", "ab  c");
    check("a\n  {%+ if true +%}\nb{% endif %}", "{}", "a\n  \nb");
    check("x {# gone #} y\n  {#- gone -#}\n z", "{}", "x  yz");
    check("{% raw %}{{ x }}{% endraw %}", "{}", "{{ x }}");
    check("one\r\ntwo\n", "{}", "one\ntwo");
}

Test(chat, set_inside_a_loop_is_gone_after_it)
{
    check("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{}", "231");
    check("{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
          "{}", "4");
    check("{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{}", "5");
}

Test(chat, loops_know_where_they_are)
{
    check("{% for x in v %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}{% else %}none{% "
          "endfor %}",
          "{\"v\": [1, 2]}", "1/2,2/2.");
    check("{% for x in v %}{% else %}none{% endfor %}", "{\"v\": []}", "none");
    check("{% for k, v in d.items() if v > 1 %}{{ k }}{{ loop.revindex }}{% endfor %}",
          "{\"d\": {\"a\": 1, \"b\": 2, \"c\": 3}}", "b2c1");
    check("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% "
          "endif %}{{ x }}{% "
          "endfor %}",
          "{}", "13");
}

Test(chat, macros_take_defaults_names_and_callers)
{
    check("{% macro m(a, b='x', c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=2) }}", "{}",
          "1xx 1x2");
    check("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}", "{}", "[in]");
    check("{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{}", "321");
}

Test(chat, values_print_as_in_python)
{
    check("{{ [1, 2.0, none, true, 'a\"\\'', {'k': (1,)}] }}", "{}",
          "[1, 2.0, None, True, 'a\"\\'', {'k': (1,)}]");
    check("{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 7 // -2 }} {{ 7 % -2 }} {{ 7 / 2 }} {{ 2 ** 10 }}", "{}",
          "1e+16 0.30000000000000004 -4 -1 3.5 1024");
    check("{{ 'h\u00e9llo'|length }}{{ 'h\u00e9llo'[1:3] }}{{ 'stra\u00dfe'|upper }}", "{}",
          "5\u00e9lSTRASSE");
    check("[{{ nothing }}]{{ nothing is defined }}", "{}", "[]False");
}

Test(chat, tojson_is_json_dumps)
{
    check("{{ v|tojson }}", "{\"v\": {\"b\": [1, 1.5, null, true], \"a\": \"<\\u00e9\\\"\\n>\"}}",
          "{\"b\": [1, 1.5, null, true], \"a\": \"<\u00e9\\\"\\n>\"}");
    check("{{ v|tojson(indent=2) }}", "{\"v\": {\"a\": [1], \"b\": {}}}",
          "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}");
}

Test(chat, generation_blocks_change_nothing)
{
    check("a{% generation %}b{% endgeneration %}c", "{}", "abc");
}

Test(chat, the_time_is_the_callers)
{
    check("{{ strftime_now('%d %b %Y') }}", "{}", "09 Oct 2025");
}

/* ---- errors */

Test(chat, parse_errors_name_line_and_column)
{
    refuse("ab\n  {{ 1 + }}", "{}", -EINVAL, "line 2 column 10: expected an expression, got }}");
    refuse("{% if x %}", "{}", -EINVAL, "line 1 column 11: the block that starts here has no {% endif %}");
    refuse("{% fi x %}", "{}", -EINVAL, "line 1 column 4: unknown tag 'fi'");
    refuse("{{ x|nope }}", "{}", -EINVAL, "line 1 column 6: there is no filter 'nope'");
    refuse("{{ 'abc }}", "{}", -EINVAL, "line 1 column 4: the string that starts here has no closing '");
    refuse("{% include 'x' %}", "{}", -EINVAL, "line 1 column 4: {% include %} is not read by this build");
}

Test(chat, runtime_errors_name_the_line)
{
    refuse("\n\n{{ a.b.c }}", "{\"a\": {}}", -EINVAL, "line 3: 'dict object' has no attribute 'b'");
    refuse("{{ 1 + 'a' }}", "{}", -EINVAL, "line 1: + does not work between int and str");
    refuse("\n{{ x() }}", "{}", -EINVAL, "line 2: 'x' is undefined");
    refuse("{{ [1].append(2) }}", "{}", -EINVAL, "line 1: templates may not call what changes a list");
}

Test(chat, raise_exception_gives_the_templates_own_words)
{
    struct result res = render_with("{{ raise_exception('Roles must alternate') }}", 45, "{}");
    cr_expect_eq(res.r, -EINVAL);
    cr_expect_str_eq(res.err, "Roles must alternate");
    free(res.text);
}

Test(chat, text_that_is_not_utf8_is_refused)
{
    struct result res = render_with("a\xff", 2, "{}");
    cr_expect_eq(res.r, -EINVAL);
    cr_expect_str_eq(res.err, "the template is not valid UTF-8 text");
    free(res.text);
}

/* ---- broken templates */

#define MAX_TEMPLATES 64

struct corpus {
    char *text[MAX_TEMPLATES];
    size_t len[MAX_TEMPLATES];
    unsigned n;
};

static char *read_file(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s is there", path);
    char *text = calloc(1, 1 << 16);
    *ret_len = fread(text, 1, (1 << 16) - 1, f);
    fclose(f);
    return text;
}

static void load_corpus(struct corpus *c)
{
    const char *data = getenv("BERTH_TEST_DATA");
    cr_assert_not_null(data, "BERTH_TEST_DATA names tests/data");
    char path[1024];
    snprintf(path, sizeof path, "%s/templates", data);
    DIR *dir = opendir(path);
    cr_assert_not_null(dir, "%s is there", path);
    for (struct dirent *e; (e = readdir(dir)) && c->n < MAX_TEMPLATES;) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/templates/%s", data, e->d_name);
        c->text[c->n] = read_file(path, &c->len[c->n]);
        c->n++;
    }
    closedir(dir);
    cr_assert_geq(c->n, 12);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static const char *const tokens[] = {
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-%}",
    "{%-",
    "if ",
    "endif",
    "for ",
    "endfor",
    " in ",
    "else",
    "set ",
    "endset",
    "macro m()",
    "m()",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "|",
    "tojson",
    "join",
    "'",
    "\"",
    "\\",
    "~",
    "+",
    "**",
    "//",
    "%",
    "=",
    "==",
    " is ",
    " not ",
    " defined",
    "range",
    "loop.",
    "ns.x",
    "raw",
    "endraw",
    "call(x) ",
    "caller()",
    "break",
    "\n",
    "\xc3\xa9",
    "\xff",
    "0x",
    "1e9",
    "1_0",
    "999999999",
    "messages",
    "|map(",
    "|sort",
    "*",
    "**kwargs",
    "[::-1]",
    ".items()",
    ".split()",
    "'%s' % ",
    ".format(",
    "namespace(",
    "|groupby('role')",
    "|batch(2)",
    "|unique",
};

/* Changes text in place; it has room for 1 << 17 bytes. */
static size_t mutate(char *text, size_t len, const struct corpus *c, uint64_t *rng)
{
    size_t at = next_random(rng) % (len + 1), n = next_random(rng) % 40;
    const char *put = tokens[next_random(rng) % (sizeof tokens / sizeof tokens[0])];
    size_t put_len = strlen(put);
    switch (next_random(rng) % 5) {
    case 0: /* another byte */
        if (at < len)
            text[at] = (char)next_random(rng);
        return len;
    case 1: /* a piece less */
        n = n < len - at ? n : len - at;
        memmove(text + at, text + at + n, len - at - n);
        return len - n;
    case 2: { /* a piece of another template */
        unsigned other = (unsigned)(next_random(rng) % c->n);
        size_t from = next_random(rng) % c->len[other];
        put = c->text[other] + from;
        put_len = n < c->len[other] - from ? n : c->len[other] - from;
        break;
    }
    case 3: /* cut off */
        return next_random(rng) % 8 ? len : at;
    default:
        break;
    }
    if (len + put_len >= 1 << 17)
        return len;
    memmove(text + at + put_len, text + at, len - at);
    memcpy(text + at, put, put_len);
    return len + put_len;
}

Test(chat, broken_templates_are_refused_or_rendered)
{
    static const char vars[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a \\u00e9\"}, {\"role\": \"assistant\", "
        "\"content\": null, \"tool_calls\": [{\"id\": \"123456789\", \"function\": {\"name\": \"f\", "
        "\"arguments\": {\"x\": [1, 2.5]}}}]}], \"bos_token\": \"<s>\", \"n\": 3, \"s\": \"text\", "
        "\"l\": [3, 1, 2], \"d\": {\"a\": 1}, \"add_generation_prompt\": true}";
    struct corpus c = { 0 };
    load_corpus(&c);
    char *text = malloc(1 << 17);
    uint64_t rng = 0x9e3779b97f4a7c15u;
    unsigned rendered = 0, rounds = getenv("CHAT_FUZZ") ? (unsigned)atoi(getenv("CHAT_FUZZ")) : 3000;
    for (unsigned i = 0; i < rounds; i++) {
        unsigned which = (unsigned)(next_random(&rng) % c.n);
        size_t len = c.len[which];
        memcpy(text, c.text[which], len);
        for (uint64_t k = next_random(&rng) % 6 + 1; k > 0; k--)
            len = mutate(text, len, &c, &rng);
        struct result res = render_with(text, len, vars);
        cr_assert(res.r == 0 || res.r == -EINVAL || res.r == -E2BIG, "round %u returned %d", i, res.r);
        cr_assert(res.r == 0 || res.err[0], "round %u says what is wrong", i);
        rendered += res.r == 0;
        free(res.text);
    }
    cr_log_info("%u of %u rendered", rendered, rounds);
    cr_expect_gt(rendered, rounds / 50);
    for (unsigned i = 0; i < c.n; i++)
        free(c.text[i]);
    free(text);
}

/* ---- bounds */

Test(chat, endless_work_ends)
{
    static const struct {
        const char *source, *message;
    } hostile[] = {
        { "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps" },
        { "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than 16 MiB" },
        { "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than" },
        { "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}", "deeper than" },
        { "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
          "endfor %}",
          "more than 16 MiB" },
        { "{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
          "more than" },
        { "{% for a in range(99999) %}{% for b in range(99999) %}{{ 1.1 * b }}{% endfor %}{% endfor %}",
          "steps" },
        { "{% set s = 'ab' * 500000 %}{% for a in range(99999) %}{% if s.find('bb') > 0 %}{% endif %}{% "
          "endfor %}",
          "steps" },
        { "{% set s = '\u00e9' * 500000 %}{% for a in range(99999) %}{% set x = s|upper %}{% endfor %}",
          "steps" },
        { "{% set s = 'a b ' * 50000 %}{% for a in range(99999) %}{% set x = s.split() %}{% endfor %}",
          "steps" },
        { "{% set s = 'a' * 500000 %}{% for a in range(99999) %}{% set x = s.replace('a', 'b') %}{% endfor "
          "%}",
          "steps" },
        { "{% set s = '\"' * 500000 %}{% for a in range(99999) %}{% set x = s|tojson %}{% endfor %}",
          "steps" },
        { "{% set l = range(99999)|list %}{% for a in l %}{% if a == -1 or -1 in l %}{% endif %}{% endfor %}",
          "steps" },
        { "{% set l = range(999)|list %}{% for a in range(99999) %}{% set x = l|sort %}{% endfor %}",
          "steps" },
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        double s = seconds_to_refuse(hostile[i].source, "{}", hostile[i].message);
        cr_log_info("%.1f ms: %.60s", s * 1e3, hostile[i].source);
        if (s > worst)
            worst = s;
    }
    cr_log_info("the worst of %zu templates took %.1f ms", sizeof hostile / sizeof hostile[0], worst * 1e3);
    /* 0.1 s is the aim; what is not counted takes many seconds, and sanitizers are slow */
    cr_expect_lt(worst, 1.0);
}

static void refuse_repeated(const char *before, const char *piece, unsigned times, const char *after,
                            int code, const char *message)
{
    struct buf b = { 0 };
    buf_puts(&b, before);
    for (unsigned i = 0; i < times; i++)
        buf_puts(&b, piece);
    buf_puts(&b, after);
    refuse(b.data, "{}", code, message);
    buf_free(&b);
}

Test(chat, nesting_is_bounded)
{
    refuse_repeated("{{ ", "(", 5000, "", -EINVAL, "blocks and brackets inside one another: at most 100");
    refuse_repeated("{{ ", "not ", 5000, "1 }}", -EINVAL,
                    "blocks and brackets inside one another: at most 100");
    refuse_repeated("{{ 1", " + 1", 5000, " }}", -EINVAL, "more than 400 operators");
    refuse_repeated("{{ a", ".b", 5000, " }}", -EINVAL, "more than 400 operators");
    refuse_repeated("{{ 1", " if 1 else 1", 5000, " }}", -EINVAL, "at most 100");
    refuse_repeated("", "{% if 1 %}", 5000, "", -EINVAL,
                    "blocks and brackets inside one another: at most 100");
    refuse_repeated("", "{% for a in b %}", 5000, "", -EINVAL,
                    "blocks and brackets inside one another: at most 100");
    refuse_repeated("{{ 'a' ", "'a' ", 60000, "}}", -EINVAL, "the template needs more than 15 MiB");
    refuse_repeated("", "x", 300000, "", -EINVAL, "the template has 300000 bytes, at most 262144 are read");
}

Test(chat, values_that_hold_themselves_end)
{
    refuse("{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}", "{}", -E2BIG, "deeper than");
    refuse("{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
           "ns.l|tojson }}",
           "{}", -E2BIG, "deeper than");
    refuse("{% set ns = namespace(g=[1]) %}{% for i in range(5000) %}{% set ns.g = ns.g|map('string') %}{% "
           "endfor %}{{ "
           "ns.g|list }}",
           "{}", -E2BIG, "deeper than");
}

Test(chat, the_bound_of_the_buffer_holds)
{
    struct chat_template *t = NULL;
    struct buf out = { .max = 10 };
    char err[256] = "";
    json_t *vars = json_object();
    cr_assert_eq(chat_template_parse("12345678901", 11, &t, err, sizeof err), 0);
    cr_expect_eq(chat_template_render(t, vars, NOW, &out, err, sizeof err), -E2BIG);
    cr_expect_str_eq(err, "the prompt has 11 bytes, at most 10 are wanted");
    json_decref(vars);
    chat_template_free(t);
    buf_free(&out);
}

/* ---- speed */

static json_t *long_conversation(unsigned messages)
{
    json_t *list = json_array(), *vars = json_object();
    char text[1024];
    for (unsigned i = 0; i < messages; i++) {
        size_t n = 0;
        while (n + 32 < 620)
            n += (size_t)snprintf(text + n, sizeof text - n, "Some t\u00e9xt %u \"of it\" ", i);
        json_array_append_new(list,
                              json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", text));
    }
    json_object_set_new(vars, "messages", list);
    json_object_set_new(vars, "add_generation_prompt", json_true());
    return vars;
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Test(chat, a_megabyte_of_conversation_takes_milliseconds)
{
    static const struct {
        const char *name, *source;
    } cases[] = {
        { "SmolLM2", smollm2 },
        { "ChatML", chat_template_chatml },
        { "text in a namespace",
          "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ '<' ~ m.role ~ '>' ~ "
          "m.content|trim ~ '\\n' %}{% endfor %}{{ ns.t }}" },
        { "+ and trim",
          "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + '<' + m.role + '>' + "
          "m.content|trim + '\\n' %}{% endfor %}{{ ns.t }}" },
        { "a macro", "{% macro r(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ "
                     "r(m) }}{% endfor %}" },
        { "tojson", "{% for m in messages %}{{ m|tojson }}{% endfor %}" },
    };
    json_t *vars = long_conversation(2000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct chat_template *t = NULL;
        struct buf out = { 0 };
        char err[256] = "";
        cr_assert_eq(chat_template_parse(cases[i].source, strlen(cases[i].source), &t, err, sizeof err), 0,
                     "%s", err);
        double start = thread_seconds();
        int r = chat_template_render(t, vars, NOW, &out, err, sizeof err);
        double s = thread_seconds() - start;
        cr_expect_eq(r, 0, "%s: %s", cases[i].name, err);
        cr_expect_gt(out.len, 1200000);
        cr_log_info("%s: %.2f ms for %zu bytes", cases[i].name, s * 1e3, out.len);
        cr_expect_lt(s, 0.5, "%s is not quadratic", cases[i].name);
        chat_template_free(t);
        buf_free(&out);
    }
    json_decref(vars);
}
