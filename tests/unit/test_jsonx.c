/* Tests of core/util/jsonx.h. */
#include "util/jsonx.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char err[256];

static int parse(const char *text, json_t **ret_value)
{
    return jsonx_parse(text, strlen(text), 128, false, ret_value, err, sizeof err);
}

Test(jsonx, errors_say_line_and_column)
{
    static const struct {
        const char *text, *where;
    } bad[] = {
        { "", "line 1 column " },
        { "  \n ", "line 2 column " },
        { "{\"a\": 1,\n \"b\": nul}", "line 2 column " },
        { "[1,]", "line 1 column " },
        { "{\"a\" 1}", "line 1 column " },
        { "[1", "line 1 column " },
        { "NaN", "line 1 column " },
        { "\"abc", "line 1 column " },
        { "[1,\n\"a\xFF\"]", "line 2 column " },
        { "\"\\ud800\"", "line 1 column " },
        { "1 1", "line 1 column " },
    };
    json_t *value = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(parse(bad[i].text, &value), -EINVAL, "%s", bad[i].text);
        cr_expect_eq(strncmp(err, bad[i].where, strlen(bad[i].where)), 0, "%s: %s", bad[i].text, err);
    }
    cr_expect_null(value, "the result is untouched");
}

Test(jsonx, a_number_beyond_ours_is_told_from_bad_json_and_says_what_is_allowed)
{
    static const char *const beyond[][2] = {
        { "1e999", "line 1 column 5: a number outside -1.8e308..1.8e308" },
        { "99999999999999999999", "line 1 column 20: a whole number outside -2^63..2^63-1" },
        { "[\n-9223372036854775809]", "line 2 column 20: a whole number outside -2^63..2^63-1" },
    };
    json_t *value = NULL;

    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        cr_assert_eq(parse(beyond[i][0], &value), -ERANGE, "%s", beyond[i][0]);
        cr_expect_str_eq(err, beyond[i][1]);
    }
    cr_expect_null(value, "the result is untouched");
}

Test(jsonx, every_cut_of_a_text_is_an_error_and_reads_nothing_past_its_end)
{
    static const char text[] = "{\"k\": [1.5e2, \"\\ud83d\\ude00\", true, null, {\"x\": -7}]}";

    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *copy = malloc(n ? n : 1); /* exactly n bytes: AddressSanitizer sees a byte too far */
        json_t *value;

        memcpy(copy, text, n);
        cr_expect_eq(jsonx_parse(copy, n, 128, true, &value, err, sizeof err), -EINVAL, "%zu bytes", n);
        free(copy);
    }
}

Test(jsonx, duplicates_are_refused_on_wish_and_the_last_wins_otherwise)
{
    static const char text[] = "{\"a\": 1, \"b\": {\"c\": 1,\n\"c\": 2}, \"a\": 3}";
    json_t *value;

    cr_expect_eq(jsonx_parse(text, strlen(text), 128, true, &value, err, sizeof err), -EINVAL);
    cr_expect_eq(strncmp(err, "line 2 column ", 14), 0, "%s", err);
    cr_expect(strstr(err, "duplicate"), "%s", err);
    cr_assert_eq(parse(text, &value), 0);
    cr_expect_eq(json_integer_value(json_object_get(value, "a")), 3);
    json_decref(value);
}

Test(jsonx, the_bound_on_depth_is_exact_and_brackets_in_strings_do_not_count)
{
    json_t *value;

    cr_assert_eq(jsonx_parse("[[{\"a\":\"[[[[\\\"[[\"}]]", 20, 3, true, &value, err, sizeof err), 0, "%s",
                 err);
    json_decref(value);
    cr_expect_eq(jsonx_parse("[[[[]]]]", 8, 3, true, &value, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "line 1 column 4: nested deeper than 3");
    cr_assert_eq(jsonx_parse("[[],[[]],[[]]]", 14, 3, true, &value, err, sizeof err), 0, "%s", err);
    json_decref(value);
}

/* Each of these once took a parser down somewhere; all of them must be over before anyone notices. */
Test(jsonx, hostile_texts_are_handled_at_once)
{
    size_t cap = 20u << 20, n = 0;
    char *text = malloc(cap);
    clock_t start = clock(); /* processor time: other processes must not make this fail */
    json_t *value;

    memset(text, ' ', 10u << 20);
    cr_expect_eq(jsonx_parse(text, 10u << 20, 128, false, &value, err, sizeof err), -EINVAL);
    memset(text, '[', 100000);
    cr_expect_eq(jsonx_parse(text, 100000, 128, false, &value, err, sizeof err), -EINVAL);
    text[n++] = '{';
    for (int i = 0; i < 100000; i++)
        n += (size_t)snprintf(text + n, cap - n, "%s\"key%d\":[%d]", i ? "," : "", i, i);
    text[n++] = '}';
    cr_assert_eq(jsonx_parse(text, n, 128, true, &value, err, sizeof err), 0, "%s", err);
    cr_expect_eq(json_object_size(value), 100000);
    json_decref(value);
    memset(text, '9', 1u << 20);
    cr_expect_eq(jsonx_parse(text, 1u << 20, 128, false, &value, err, sizeof err), -ERANGE);
    cr_expect_lt(clock() - start, 3 * CLOCKS_PER_SEC, "about 0.2 s, and 1 s under AddressSanitizer");
    free(text);
}

struct seen {
    char text[256];
};

static void note(void *arg, const json_t *object, const char *key, unsigned line)
{
    struct seen *s = arg;
    size_t n = strlen(s->text);

    cr_expect(json_is_object(object));
    snprintf(s->text + n, sizeof s->text - n, "%s:%u ", key, line);
}

Test(jsonx, the_line_of_every_key_is_told)
{
    static const char text[] = "{\"a\": 1,\n\n \"b\": {\"c\":\n \"x\\n\",\n\"d\": [{\"e\": 1}]}, \"f\": 2}";
    struct seen s = { "" };
    json_t *value;

    cr_assert_eq(jsonx_parse_lines(text, strlen(text), 9, note, &s, &value, err, sizeof err), 0, "%s", err);
    cr_expect_str_eq(s.text, "a:1 c:3 e:5 d:5 b:3 f:5 ");
    json_decref(value);
}

/* ---- getters ---- */

Test(jsonx_get, right_values_are_read_and_absent_ones_leave_the_default)
{
    json_t *o;
    bool b = false;
    int64_t i = 7;
    double d = 7;
    const char *s = NULL;
    size_t len = 0;

    cr_assert_eq(parse("{\"b\":true,\"i\":5,\"whole\":6.0,\"d\":1.5,\"s\":\"a\\u0000b\",\"none\":null}", &o),
                 0);
    cr_expect_eq(jsonx_get_bool(o, "b", &b, err, sizeof err), 1);
    cr_expect(b);
    cr_expect_eq(jsonx_get_int(o, "i", 5, 5, &i, err, sizeof err), 1);
    cr_expect_eq(i, 5);
    cr_expect_eq(jsonx_get_int(o, "whole", 0, 9, &i, err, sizeof err), 1);
    cr_expect_eq(i, 6);
    cr_expect_eq(jsonx_get_real(o, "d", 0, 2, &d, err, sizeof err), 1);
    cr_expect_eq(d, 1.5);
    cr_expect_eq(jsonx_get_real(o, "i", 0, 9, &d, err, sizeof err), 1);
    cr_expect_eq(d, 5);
    cr_expect_eq(jsonx_get_str(o, "s", &s, &len, err, sizeof err), 1);
    cr_expect_eq(len, 3);
    cr_expect_arr_eq(s, "a\0b", 4);
    cr_expect_eq(jsonx_get_int(o, "none", 0, 9, &i, err, sizeof err), 0);
    cr_expect_eq(jsonx_get_real(o, "absent", 0, 9, &d, err, sizeof err), 0);
    cr_expect_eq(i, 6);
    cr_expect_eq(d, 5);
    json_decref(o);
}

Test(jsonx_get, wrong_values_are_named_with_what_is_allowed)
{
    json_t *o;
    bool b;
    int64_t i;
    double d;
    const char *s;
    size_t len;

    cr_assert_eq(parse("{\"s\":\"x\",\"n\":3.5,\"big\":1e300,\"l\":[],\"o\":{},\"t\":true}", &o), 0);
    cr_expect_eq(jsonx_get_bool(o, "s", &b, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "s: a string where true or false is wanted");
    cr_expect_eq(jsonx_get_int(o, "n", 0, 9, &i, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "n: 3.5 where a whole number is wanted");
    cr_expect_eq(jsonx_get_int(o, "big", 0, 9, &i, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "big: 1e+300 is outside 0..9");
    cr_expect_eq(jsonx_get_int(o, "t", 0, 9, &i, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "t: true or false where a whole number is wanted");
    cr_expect_eq(jsonx_get_real(o, "n", 0, 2, &d, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "n: 3.5 is outside 0..2");
    cr_expect_eq(jsonx_get_real(o, "l", 0, 2, &d, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "l: a list where a number is wanted");
    cr_expect_eq(jsonx_get_str(o, "o", &s, &len, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "o: an object where a string is wanted");
    json_decref(o);
}

Test(jsonx_nearest, finds_the_name_that_was_meant)
{
    static const char *const names[] = { "temperature", "top_p", "top_k", "stream", "stop" };
    char longest[300];

    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    cr_expect_str_eq(jsonx_nearest("temprature", names, 5), "temperature");
    cr_expect_str_eq(jsonx_nearest("tempreature", names, 5), "temperature");
    cr_expect_str_eq(jsonx_nearest("topp", names, 5), "top_p");
    cr_expect_str_eq(jsonx_nearest("steram", names, 5), "stream");
    cr_expect_str_eq(jsonx_nearest("stop", names, 5), "stop");
    cr_expect_null(jsonx_nearest("frequency", names, 5));
    cr_expect_null(jsonx_nearest("", names, 5));
    cr_expect_null(jsonx_nearest(longest, names, 5));
    cr_expect_null(jsonx_nearest("stop", names, 0));
}

Test(jsonx, any_bytes_become_a_string)
{
    static const char *const cases[][2] = {
        { "", "" }, { "\xC3\xA9", "\xC3\xA9" }, { "caf\xE9", "caf?" }, { "\xC3\xA9\xC3", "\xC3\xA9?" }
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = jsonx_text(cases[i][0]);

        cr_expect_str_eq(json_string_value(v), cases[i][1]);
        json_decref(v);
    }
}
