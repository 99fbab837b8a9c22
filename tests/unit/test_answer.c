/* The parsers of an answer: what becomes reasoning, text and calls; and that the pieces in which it comes
 * make no difference. Each case is a line: what goes in, and what must come out, written by hand. */
#include "../cases.h"
#include "model/answer.h"
#include "model/schema.h"
#include "util/rng.h"
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tools[] = { "now", "read_file" };
static const char *const schemas[] = {
    "{\"properties\": {\"n\": {\"type\": \"integer\"}, \"tz\": {\"type\": \"string\"}}}",
    "{\"properties\": {\"path\": {\"type\": \"string\"}, \"odd\": {\"type\": [\"string\", \"null\"]}, "
    "\"any\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\"}]}, \"one\": {\"oneOf\": [{\"type\": "
    "\"string\"}, {\"$ref\": \"#\"}]}, \"word\": {\"enum\": [\"1\", \"2\", null]}, \"size\": {\"type\": "
    "[\"integer\", \"string\"]}, \"what\": true, \"far\": {\"$ref\": \"#/$defs/a~1b\"}, \"old\": {\"$ref\": "
    "\"#/definitions/list/anyOf/1\"}, \"all\": {\"allOf\": [{\"$ref\": \"#/definitions/list\"}, {\"type\": "
    "[\"array\", \"string\", \"null\"]}]}, \"gone\": {\"$ref\": \"#/$defs/none\"}, \"else\": {\"$ref\": "
    "\"other.json#/$defs/a~1b\"}, \"self\": {\"$ref\": \"#/properties/self\"}, \"same\": {\"const\": \"1\"}},"
    "\"$defs\": {\"a/b\": {\"type\": \"string\"}, \"more\": {\"properties\": {\"inner\": {\"type\": "
    "\"string\"}}}}, "
    "\"definitions\": {\"list\": {\"anyOf\": [{\"type\": [\"array\", \"number\"]}, {\"type\": "
    "\"string\"}]}}, "
    "\"allOf\": [{\"$ref\": \"#/$defs/more\"}]}",
};

/* Events as one line: R(..) T(..) C(name)(arguments). or ! for one that breaks. */
struct heard {
    struct buf line;
    char last;
};

static void hear(void *arg, enum answer_kind kind, const char *text, size_t len)
{
    static const char letters[] = "RTCA.!";
    struct heard *h = arg;
    char c = letters[kind];
    if (kind < ANSWER_CALL_END)
        cr_assert(len > 0, "an event of kind %d says nothing", kind);
    bool goes_on = (c == h->last && (c == 'R' || c == 'T')) || (c == 'A' && h->last == 'A');
    if (!goes_on && h->last && strchr("RTA", h->last))
        buf_putc(&h->line, ')');
    if (c == 'C')
        buf_puts(&h->line, "C(");
    else if (!goes_on && strchr("RT", c))
        buf_printf(&h->line, "%c(", c);
    else if (!goes_on && c == 'A')
        buf_putc(&h->line, '(');
    else if (strchr(".!", c))
        buf_putc(&h->line, c);
    if (c == '!')
        buf_putc(&h->line, '(');
    buf_append(&h->line, text, len);
    if (strchr("C!", c))
        buf_putc(&h->line, ')');
    h->last = c;
}

struct setting {
    enum toolcall_format format;
    const char *gap;
    bool marks, thinking, one;
};

static struct answer *parser(struct setting s)
{
    struct answer_options o = {
        .thinking = s.thinking,
        .calls = { .format = s.format, .gap = s.gap, .names = tools, .n_names = 2, .one = s.one }
    };
    struct answer *a;
    const json_t *parsed[2];
    for (int i = 0; i < 2; i++)
        parsed[i] = json_loads(schemas[i], 0, NULL);
    o.calls.schemas = parsed;
    o.marks = s.marks ? reasoning_marks_find("x</think>y") : NULL;
    cr_assert_eq(answer_new(&o, &a), 0);
    for (int i = 0; i < 2; i++)
        json_decref((json_t *)(uintptr_t)parsed[i]);
    return a;
}

/* Fed in pieces of random lengths up to `most` (0: whole). */
static char *parse(struct setting s, const char *text, size_t len, size_t most, uint64_t seed,
                   uint32_t *ret_calls)
{
    struct answer *a = parser(s);
    struct heard h = { 0 };
    for (size_t at = 0, n, k = 0; at < len; at += n) {
        n = most ? 1 + (size_t)(rng_uniform(seed, k++) * (double)most) : len;
        n = n < len - at ? n : len - at;
        char *piece = malloc(n); /* of its own, so that a sanitizer sees what lies beyond it */
        memcpy(piece, text + at, n);
        cr_assert_eq(answer_feed(a, piece, n, hear, &h), 0);
        free(piece);
    }
    cr_assert_eq(answer_finish(a, hear, &h), 0);
    if (h.last && strchr("RTA", h.last))
        buf_putc(&h.line, ')');
    if (ret_calls)
        *ret_calls = answer_calls(a);
    answer_free(a);
    buf_append(&h.line, "", 0);
    return buf_steal(&h.line, NULL);
}

static void check_case(struct setting s, const char *in, const char *out)
{
    for (size_t most = 0; most < 6; most++) {
        char *line = parse(s, in, strlen(in), most, most, NULL);
        cr_expect_str_eq(line ? line : "", out, "in pieces of up to %zu: %s\n  gives  %s\n  wanted %s", most,
                         in, line, out);
        free(line);
    }
}

/* Texts that are no call. */
static void check_texts(struct setting s, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char want[256];
        snprintf(want, sizeof want, "T(%s)", texts[i]);
        check_case(s, texts[i], want);
    }
}

static const struct setting none = { .format = TOOLCALL_NONE, .marks = true };
static const struct setting opened = { .format = TOOLCALL_NONE, .marks = true, .thinking = true };
static const struct setting hermes = { .format = TOOLCALL_HERMES, .gap = "\n", .marks = true };
static const struct setting mistral = { .format = TOOLCALL_MISTRAL };
static const struct setting llama3 = { .format = TOOLCALL_LLAMA3 };
static const struct setting json = { .format = TOOLCALL_JSON };
static const struct setting xml = { .format = TOOLCALL_XML, .gap = "\n", .marks = true };
static const struct setting glm = { .format = TOOLCALL_GLM, .gap = "\n" };

Test(answer, reasoning_stands_in_front)
{
    check_case(none, "", "");
    check_case(none, "Hello", "T(Hello)");
    check_case(none, "\n Hello \n", "T(\n Hello \n)");
    check_case(none, "<think>\nWhy?\n</think>\n\nBecause.\n", "R(Why?)T(Because.\n)");
    check_case(none, " <think>a  b\n</thin k> c</think>d", "R(a  b\n</thin k> c)T(d)");
    check_case(none, "<think>\n\n</think>\n\nHi", "T(Hi)");
    check_case(none, "<think>never ends \n", "R(never ends)");
    check_case(none, "<think>cut </thi", "R(cut </thi)");
    check_case(none, "Well <think>no</think>", "T(Well <think>no</think>)");
    check_case(none, "<thin", "T(<thin)");
    check_case(none, "<<think>x</think>", "T(<<think>x</think>)");
    check_case(opened, "\nWhy?\n</think>\nSo.", "R(Why?)T(So.)");
    check_case(opened, "</think>So.", "T(So.)");
    check_case(opened, "a<</think>b", "R(a<)T(b)");
    cr_expect(reasoning_is_open(reasoning_marks_find("</think>"), "x<think>\n", 9));
    cr_expect_not(reasoning_is_open(reasoning_marks_find("</think>"), "<think>\n\n</think>\n", 18));
    cr_expect_null(reasoning_marks_find("no marks at all"));
}

Test(answer, hermes_calls)
{
    check_case(hermes, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"tz\": \"UTC\"}}\n</tool_call>",
               "C(now)({\"tz\": \"UTC\"}).");
    check_case(hermes, "Let me look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
               "T(Let me look.)C(now)({}).");
    check_case(hermes, "Look.\n\n<tool_call>{\"name\":\"now\"}</tool_call>", "T(Look.\n)C(now)({}).");
    check_case(
        hermes,
        "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [1, {\"b\": null}]}}</tool_call>\n<tool_call>"
        "{\"arguments\": {\"p\": 1}, \"name\": \"other\"}</tool_call> Done.",
        "C(now)({\"a\": [1, {\"b\": null}]}).C(other)({\"p\": 1}).T(Done.)");
    check_case(
        hermes,
        "<think>x</think>\n<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        "R(x)C(now)({\"a\": 1}).");
    check_case(hermes,
               "<tool_call>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": "
               "null}]</tool_call>",
               "C(now)({}).C(now)({}).");
    check_case(hermes, "<tool_call>{\"name\": \"now\", \"arguments\": {}}", "C(now)({}).");
    check_case(hermes,
               "<tool_call>{\"name\": \"now\", \"x\": [1e3, -0.5], \"parameters\": {\"q\":2}}</tool_call>",
               "C(now)({\"q\":2}).");
}

Test(answer, strings_are_mended)
{
    check_case(hermes,
               "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x\ny\tz\", \"b\": \"it\\'s \\d "
               "\\u00e9 \\ud83d\\ude42\"}}",
               "C(now)({\"a\": \"x\\ny\\tz\", \"b\": \"it's \\\\d \\u00e9 \\ud83d\\ude42\"}).");
    check_case(hermes,
               "<tool_call>{\"name\": \"n\\u006fw\", \"arguments\": {\"</tool_call>\": "
               "\"<tool_call>{\"}}</tool_call>x",
               "C(now)({\"</tool_call>\": \"<tool_call>{\"}).T(x)");
}

Test(answer, what_is_no_call_is_text)
{
    static const char *const texts[] = {
        "<tool_call>",
        "<tool_call>\n",
        "a <tool_call> b",
        "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "x\n<tool_call>{\"name\": \"\"}",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": 5}</tool_call>",
        "<tool_call>{\"name\": \"now\"",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"no json\"}</tool_call>",
        "<tool_call>{'name': 'now'}</tool_call>",
        "<tool_call>{\"name\": \"now\",}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
        "< tool_call>",
        "<tool_cal",
        "a\n <tool_cal",
        "<tool_call>{\"name\": \"now\", \"name\": \"now\"}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": \"\\ud800\"}, \"name\": \"now\"}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": 01}, \"name\": \"now\"}",
        "<tool_call>{\"arguments\": {\"a\": 1.}}",
        "<tool_call>{\"arguments\": {\"a\": trux}}",
        "<tool_call>{\"arguments\": [}",
    };
    check_texts(hermes, texts, sizeof texts / sizeof *texts);
    check_case(hermes, "<tool_call><tool_call>{\"name\": \"now\"}</tool_call>", "T(<tool_call>)C(now)({}).");
}

Test(answer, a_call_that_was_announced_breaks)
{
    check_case(hermes, "a\n<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1,, 2}}</tool_call>",
               "T(a)C(now)({\"a\": 1,)!(\n<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1,)T(, "
               "2}}</tool_call>)");
}

Test(answer, a_call_that_lacks_its_last_brace_is_one)
{
    check_case(hermes, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}\n</tool_call> Done.",
               "C(now)({\"a\": 1}).T(Done.)");
    check_case(hermes, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}", "C(now)({\"a\": 1}).");
    check_case(hermes, "<tool_call>{\"name\": \"now\", \"arguments\": \"{}\"</tool_call>", "C(now)({}).");
    check_case(llama3, "{\"name\": \"now\", \"parameters\": {\"a\": 1}", "C(now)({\"a\": 1}).");
    /* But not one whose arguments are cut off, and nothing else may come in the brace's place. */
    check_case(hermes, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1</tool_call>",
               "C(now)({\"a\": 1)!(<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1)T(</tool_call>)");
    check_case(hermes, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1} x",
               "C(now)({\"a\": 1})!(<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1} )T(x)");
    check_case(hermes, "<tool_call>{\"arguments\": {\"a\": 1}</tool_call>",
               "T(<tool_call>{\"arguments\": {\"a\": 1}</tool_call>)");
}

Test(answer, of_several_calls_the_first_can_be_the_end)
{
    static const struct setting first = { .format = TOOLCALL_HERMES, .one = true };
    static const struct setting listed = { .format = TOOLCALL_JSON, .one = true };
    check_case(first,
               "a<tool_call>{\"name\": \"now\"}</tool_call> b <tool_call>{\"name\": \"now\"}</tool_call>",
               "T(a)C(now)({}).");
    check_case(listed, "[{\"name\": \"now\"}, {\"name\": \"now\"}]", "C(now)({}).");
    check_case(first, "no call", "T(no call)");
}

Test(answer, mistral_calls)
{
    check_case(mistral,
               "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"a\": 1}}, {\"name\": \"read_file\", "
               "\"arguments\": {}}]",
               "C(now)({\"a\": 1}).C(read_file)({}).");
    check_case(mistral, "Sure.[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}]",
               "T(Sure.)C(now)({}).");
    check_case(mistral, "[TOOL_CALLS]now{\"name\": 3}[TOOL_CALLS]read_file[ARGS]{\"p\": \"x\"}",
               "C(now)({\"name\": 3}).C(read_file)({\"p\": \"x\"}).");
    check_case(mistral,
               "[TOOL_CALLS]now[CALL_ID]aB3456789[ARGS]{\"a\": 1}[TOOL_CALLS]read_file[CALL_ID]1[ARGS]{}",
               "C(now)({\"a\": 1}).C(read_file)({}).");
    check_case(mistral, "[TOOL_CALLS]now[CAGS]{}", "T([TOOL_CALLS]now[CAGS]{})");
    check_case(mistral, "[TOOL_CALLS]now[CALL_ID]a[CALL_ID]b[ARGS]{}",
               "T([TOOL_CALLS]now[CALL_ID]a[CALL_ID]b[ARGS]{})");
    check_case(mistral, "[TOOL_CALLS]now[CALL_ID]a", "T([TOOL_CALLS]now[CALL_ID]a)");
    check_case(mistral, "[TOOL_CALLS]now[CALL_ID][", "T([TOOL_CALLS]now[CALL_ID][)");
    check_case(mistral, "[TOOL_CALLS]now", "T([TOOL_CALLS]now)");
    check_case(mistral, "[TOOL_CALLS]now[ARG]{}", "T([TOOL_CALLS]now[ARG]{})");
    check_case(mistral, "[TOOL", "T([TOOL)");
    check_case(mistral, "see [1] and [TOOL_CALL]", "T(see [1] and [TOOL_CALL])");
}

Test(answer, xml_calls)
{
    check_case(xml,
               "Look.\n<tool_call>\n<function=now>\n<parameter=n>\n7\n</parameter>\n<parameter=tz>\n7\n"
               "</parameter>\n</function>\n</tool_call>",
               "T(Look.)C(now)({\"n\": 7, \"tz\": \"7\"}).");
    check_case(xml,
               "<tool_call><function=now></function></tool_call>\n<tool_call>\n<function=now>\n</function>"
               "\n</tool_call> Done.",
               "C(now)({}).C(now)({}).T(Done.)");
    /* One line break at each end is the form's; all else is the value. */
    check_case(
        xml,
        "<tool_call><function=read_file><parameter=path>\n\n a <b> \"c\"\n</parameter x\n\n</parameter>"
        "</function></tool_call>",
        "C(read_file)({\"path\": \"\\n a <b> \\\"c\\\"\\n</parameter x\\n\"}).");
    /* What is no string by its schema is JSON where it reads as such. */
    check_case(xml,
               "<tool_call><function=other><parameter=a>[1, {\"b\": null}]</parameter><parameter=c>true"
               "</parameter><parameter=d>plain text</parameter></function></tool_call>",
               "C(other)({\"a\": [1, {\"b\": null}], \"c\": true, \"d\": \"plain text\"}).");
    check_case(xml, "<tool_call><function=read_file><parameter=odd>null</parameter></function></tool_call>",
               "C(read_file)({\"odd\": null}).");
    check_case(xml, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"n\": 1}}\n</tool_call>",
               "C(now)({\"n\": 1}).");
    static const char *const texts[] = {
        "<tool_call>\n<function",
        "<tool_call><function=>",
        "<tool_call><function=a b></function></tool_call>",
        "<tool_call><function=now>text</function></tool_call>",
        "<tool_call>now</tool_call>",
        "<tool_call><function=now></tool_call>",
        "<function=now></function>",
    };
    check_texts(xml, texts, sizeof texts / sizeof *texts);
    /* Known to be a call, and cut off: nobody may run what there is of it. */
    check_case(xml, "<tool_call><function=now><parameter=tz>UTC",
               "C(now)!(<tool_call><function=now><parameter=tz>UTC)");
    check_case(xml, "<tool_call><function=now><parameter=n>1</parameter>x",
               "C(now)!(<tool_call><function=now><parameter=n>1</parameter>x)");
}

/* A file about this very format can be written with it. */
Test(answer, a_value_may_hold_the_marks_of_its_format)
{
    check_case(
        xml,
        "<tool_call><function=read_file><parameter=path>a</parameter> \n b</parameter></parameter></fun"
        "</parameter>\n</function></tool_call>.",
        "C(read_file)({\"path\": \"a</parameter> \\n b</parameter></parameter></fun\"}).T(.)");
    check_case(xml,
               "<tool_call><function=read_file><parameter=path></parameter</parameter><parameter=odd>1"
               "</parameter></param</parameter></function></tool_call>",
               "C(read_file)({\"path\": \"</parameter\", \"odd\": \"1</parameter></param\"}).");
    check_case(
        glm,
        "<tool_call>now<arg_key>tz</arg_key><arg_value>x</arg_value> y</arg_value></arg_value><arg_key>n"
        "</arg_key><arg_value>7</arg_value>\n</tool_call>",
        "C(now)({\"tz\": \"x</arg_value> y</arg_value>\", \"n\": 7}).");
}

/* One argument of read_file, in each form: what is written, and what it becomes. */
Test(answer, a_value_has_a_type_that_its_schema_allows)
{
    static const struct {
        const char *key, *value, *want;
    } cases[] = {
        { "odd", "7", "\"7\"" },
        { "odd", "true", "\"true\"" },
        { "odd", "null", "null" },
        { "odd", "nul", "\"nul\"" },
        { "odd", "\"q\"", "\"\\\"q\\\"\"" },
        { "odd", "{\"a\": 1}", "\"{\\\"a\\\": 1}\"" },
        { "any", "7", "\"7\"" },
        { "any", "[7, \"x\"]", "[7, \"x\"]" },
        { "any", "[7", "\"[7\"" },
        { "one", "7", "7" },
        { "one", "x", "\"x\"" },
        { "word", "1", "\"1\"" },
        { "word", "null", "null" },
        { "size", "7", "7" },
        { "size", "7.5", "\"7.5\"" },
        { "size", "7 m", "\"7 m\"" },
        { "what", "7", "7" },
        { "path", "null", "\"null\"" },
        { "far", "7", "\"7\"" },
        { "old", "[]", "\"[]\"" },
        { "all", "[7]", "[7]" },
        { "all", "7", "\"7\"" },
        { "all", "null", "\"null\"" },
        { "gone", "7", "7" },
        { "else", "7", "7" },
        { "self", "7", "7" },
        { "same", "1", "\"1\"" },
        { "inner", "7", "\"7\"" },
        { "new", "0.1", "0.1" },
        { "new", "1e400", "\"1e400\"" },
        { "new", "\"q\"", "\"q\"" },
        { "new", "", "\"\"" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200], want[100];
        snprintf(want, sizeof want, "C(read_file)({\"%s\": %s}).", cases[i].key, cases[i].want);
        snprintf(text, sizeof text,
                 "<tool_call><function=read_file><parameter=%s>%s</parameter></function></tool_call>",
                 cases[i].key, cases[i].value);
        check_case(xml, text, want);
        snprintf(text, sizeof text,
                 "<tool_call>read_file<arg_key>%s</arg_key><arg_value>%s</arg_value></tool_call>",
                 cases[i].key, cases[i].value);
        check_case(glm, text, want);
    }
}

/* Two members of one name would be an error to some clients, and each of the others takes the one it likes.
 */
Test(answer, an_argument_that_is_written_again_is_left_out)
{
    check_case(xml,
               "<tool_call><function=now><parameter=tz>a</parameter><parameter=n>1</parameter><parameter=tz>b"
               "</parameter><parameter=t>c</parameter></function></tool_call>",
               "C(now)({\"tz\": \"a\", \"n\": 1, \"t\": \"c\"}).");
    check_case(glm,
               "<tool_call>now<arg_key>tz</arg_key><arg_value>a</arg_value><arg_key>tz</arg_key><arg_value>b"
               "</arg_value></tool_call>",
               "C(now)({\"tz\": \"a\"}).");
    /* In the next call it is new. */
    check_case(xml,
               "<tool_call><function=now><parameter=n>1</parameter></function></tool_call>\n<tool_call>"
               "<function=now><parameter=n>2</parameter></function></tool_call>",
               "C(now)({\"n\": 1}).C(now)({\"n\": 2}).");
}

/* Each part refers to the whole in many places: followed to the end it would take for ever. */
Test(answer, a_schema_that_refers_to_itself_is_followed_for_a_while, .timeout = 10)
{
    struct buf text = { 0 };
    buf_puts(&text, "{\"properties\": {\"a\": {\"anyOf\": [");
    for (int i = 0; i < 50; i++)
        buf_printf(&text, "%s{\"$ref\": \"#/properties/a\"}", i ? ", " : "");
    buf_puts(&text, "]}}, \"allOf\": [");
    for (int i = 0; i < 50; i++)
        buf_printf(&text, "%s{\"$ref\": \"#\"}", i ? ", " : "");
    buf_puts(&text, "]}");
    json_t *schema = json_loadb(text.data, text.len, 0, NULL), *members = schema_members(schema);
    cr_assert(schema && members);
    cr_expect_eq(json_integer_value(json_object_get(members, "a")), 0, "it does not tell");
    json_decref(members);
    json_decref(schema);
    buf_free(&text);
}

/* A request has room for lists in lists 128 deep: a call that goes deeper could never be sent back. */
Test(answer, a_value_that_is_too_deep_is_a_string)
{
    char text[1000], want[1000], nest[401];
    for (size_t deep = 100; deep <= 101; deep++) {
        memset(nest, '[', deep);
        memset(nest + deep, ']', deep);
        nest[2 * deep] = '\0';
        const char *quote = deep > 100 ? "\"" : "";
        snprintf(text, sizeof text, "<tool_call>now<arg_key>n</arg_key><arg_value>%s</arg_value></tool_call>",
                 nest);
        snprintf(want, sizeof want, "C(now)({\"n\": %s%s%s}).", quote, nest, quote);
        check_case(glm, text, want);
    }
}

Test(answer, glm_calls)
{
    check_case(glm,
               "Look.\n<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a b\n</arg_value>\n"
               "<arg_key>n</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>",
               "T(Look.)C(read_file)({\"path\": \"a b\\n\", \"n\": [1]}).");
    check_case(glm, "<tool_call>now\n</tool_call>\n<tool_call>now</tool_call>x",
               "C(now)({}).C(now)({}).T(x)");
    check_case(glm, "<tool_call>now<arg_key>tz</arg_key><arg_value>1</arg_value></tool_call>",
               "C(now)({\"tz\": \"1\"}).");
    check_case(glm, "<tool_call>now and then</tool_call>", "T(<tool_call>now and then</tool_call>)");
    check_case(glm, "<tool_call></tool_call>", "T(<tool_call></tool_call>)");
}

Test(answer, bare_json_calls)
{
    check_case(llama3, "{\"name\": \"now\", \"parameters\": {\"a\": 1}}", "C(now)({\"a\": 1}).");
    check_case(llama3,
               " {\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", "
               "\"parameters\": {}}",
               "C(now)({}).C(now)({}).");
    check_case(llama3, "I will.<|python_tag|>{\"name\": \"now\", \"parameters\": {}}",
               "T(I will.)C(now)({}).");
    check_case(llama3, "{\"name\": \"Ada\", \"parameters\": {}}",
               "T({\"name\": \"Ada\", \"parameters\": {}})");
    check_case(llama3, "{\"answer\": 42}", "T({\"answer\": 42})");
    check_case(llama3, "Use {\"name\": \"now\"}", "T(Use {\"name\": \"now\"})");
    check_case(llama3, "[{\"name\": \"now\"}]", "T([{\"name\": \"now\"}])");
    check_case(
        json,
        "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"read_file\", \"arguments\": {\"p\": 1}}]",
        "C(now)({}).C(read_file)({\"p\": 1}).");
    check_case(json, "[1, 2]", "T([1, 2])");
    check_case(json, "\n{\"name\": \"now\"}\n", "C(now)({}).");
}

Test(answer, calls_are_counted)
{
    uint32_t calls;
    const char *two = "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}";
    free(parse(hermes, two, strlen(two), 3, 1, &calls));
    cr_expect_eq(calls, 2);
    free(parse(hermes, two, strlen(two) - 1, 3, 1, &calls));
    cr_expect_eq(calls, 1);
}

/* ---- properties, over texts made of the pieces that matter, in random order, with random damage ---- */

static const char *const pieces[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "\n",
    " ",
    "[",
    "]",
    "{",
    "}",
    "\"",
    ",",
    ":",
    "\\",
    "1",
    "-",
    "e",
    ".",
    "null",
    "true",
    "now",
    "read_file",
    "{\"name\": \"now\", ",
    "\"arguments\": ",
    "\"parameters\": ",
    "{\"a\": \"b\"}",
    "{\"name\": \"read_file\", \"arguments\": {\"p\": [1, 2]}}",
    "hello",
    "\xc3\xa9",
    "\x01",
    "\\u00e9",
    "\\ud83d",
    ";",
    "<",
    "</",
    "<tool",
    "<function=now>",
    "<parameter=tz>",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
};

static size_t random_text(uint64_t seed, char *text, size_t size)
{
    size_t n = 0, count = 1 + (size_t)(rng_uniform(seed, 0) * 24);
    for (size_t i = 1; i <= count; i++) {
        const char *p = pieces[(size_t)(rng_uniform(seed, i) * (double)(sizeof pieces / sizeof *pieces))];
        size_t len = strlen(p);
        if (n + len >= size)
            break;
        memcpy(text + n, p, len);
        n += len;
    }
    text[n] = '\0';
    return n;
}

Test(answer, pieces_make_no_difference)
{
    const uint32_t n = cases_of(30000, 8);
    static const struct setting *const all[] = {
        &none, &opened, &hermes, &mistral, &llama3, &json, &xml, &glm
    };
    for (uint64_t seed = 0; seed < n; seed++) {
        char text[1024];
        size_t len = random_text(seed, text, sizeof text);
        struct setting s = *all[seed % 8];
        uint32_t calls_whole, calls_parts;
        char *whole = parse(s, text, len, 0, seed, &calls_whole);
        char *parts = parse(s, text, len, 1 + seed % 7, seed, &calls_parts);
        cr_assert_str_eq(whole ? whole : "", parts ? parts : "", "seed %zu: %s\n whole %s\n parts %s",
                         (size_t)seed, text, whole, parts);
        cr_assert_eq(calls_whole, calls_parts);
        free(whole);
        free(parts);
    }
}

/* All letters of an answer must be somewhere: in reasoning, text, or a call. Only white space, marks and the
 * syntax of calls may be gone. And a call that ends has a name and arguments that any reader takes. */
struct kept {
    struct buf text, arguments;
    size_t calls;
};

static void keep(void *arg, enum answer_kind kind, const char *text, size_t len)
{
    struct kept *k = arg;
    if (kind == ANSWER_TEXT)
        buf_append(&k->text, text, len);
    if (kind == ANSWER_CALL)
        buf_clear(&k->arguments);
    if (kind == ANSWER_ARGUMENTS)
        buf_append(&k->arguments, text, len);
    if (kind == ANSWER_CALL_BROKEN)
        buf_append(&k->text, text, len);
    if (kind == ANSWER_CALL_END) {
        json_t *v = json_loadb(k->arguments.data, k->arguments.len, JSON_ALLOW_NUL, NULL);
        cr_assert(json_is_object(v), "arguments %.*s", (int)k->arguments.len, k->arguments.data);
        json_decref(v);
        k->calls++;
    }
}

Test(answer, without_a_complete_call_the_text_is_the_answer)
{
    const uint32_t n = cases_of(30000, 8);
    size_t without = 0, with = 0;
    for (uint64_t seed = 0; seed < n; seed++) {
        char text[1024];
        size_t len = random_text(seed + 1000000, text, sizeof text);
        struct setting s = (struct setting[]){ hermes, mistral, llama3, json, xml, glm }[seed % 6];
        s.marks = false;
        struct answer *a = parser(s);
        struct kept k = { 0 };
        cr_assert_eq(answer_feed(a, text, len, keep, &k), 0);
        cr_assert_eq(answer_finish(a, keep, &k), 0);
        if (!k.calls) {
            without++;
            buf_append(&k.text, "", 0);
            cr_assert(k.text.len == len, "seed %zu: %s\n gives %s", (size_t)seed, text, k.text.data);
            cr_assert_eq(memcmp(len ? k.text.data : "", text, len), 0, "seed %zu: %s\n gives %s",
                         (size_t)seed, text, k.text.data);
        }
        with += k.calls > 0;
        answer_free(a);
        buf_free(&k.text);
        buf_free(&k.arguments);
    }
    cr_expect_gt(without, n / 30);
    cr_expect_gt(with, n / 300);
}
