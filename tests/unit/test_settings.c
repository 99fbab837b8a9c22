/* Tests of core/policy/settings.c: where values come from, what they may be, and what is said of the others.
 */
#include "policy/settings.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const colours[] = { "red", "green" };

static const struct policy_setting table[] = {
    { "count", POLICY_INT, 0, -5, 10, "3", "tokens", "How many.", "ODD_COUNT", NULL },
    { "ratio", POLICY_REAL, 0, 0.01, 1, "0.5", "", "How much.", NULL, NULL },
    { "ttl_s", POLICY_SECONDS, 0, 0, 86400, "120", "s", "How long.", "ODD_TTL_S", NULL },
    { "on", POLICY_BOOL, 0, 0, 0, "true", "", "Whether.", NULL, NULL },
    { "word", POLICY_TEXT, 0, 1, 8, "hello", "", "What.", NULL, NULL },
    { "colour", POLICY_CHOICE, 2, 0, 0, "green", "", "Which.", NULL, colours },
};

static const struct slot_policy policy = {
    .head = POLICY_HEAD(0), .name = "odd", .settings = table, .n_settings = 6
};

static int make(const struct policy_given *given, size_t n, const struct policy_given *env, size_t n_env,
                struct policy_settings **ret, char err[512])
{
    struct policy_load_options o = { .settings = given, .n_settings = n, .env = env, .n_env = n_env };
    *err = '\0';
    return policy_settings_new(&policy, &o, ret, err, 512);
}

Test(settings, defaults_fill_what_is_not_given)
{
    struct policy_settings *s = NULL;
    char err[512];
    uint32_t stride;
    cr_assert_eq(policy_settings_check_table(&policy, err, sizeof err), 0, "%s", err);
    cr_assert_eq(make(NULL, 0, NULL, 0, &s, err), 0, "%s", err);
    const struct policy_value *v = policy_settings_values(s, &stride);
    cr_assert_eq(stride, sizeof *v);
    cr_expect(v[0].number == 3 && v[0].real == 3);
    cr_expect(v[1].real == 0.5 && v[2].real == 120 && v[2].number == 120);
    cr_expect(v[3].number == 1 && v[5].number == 1);
    cr_expect_str_eq(v[4].text, "hello");
    cr_expect_str_eq(policy_settings_get(s, 4).origin, "default");
    policy_settings_free(s);
}

Test(settings, a_given_one_wins_over_the_environment_and_that_over_the_default)
{
    const struct policy_given given[] = { { "count", "-5", "file" }, { "colour", "red", "file" } };
    const struct policy_given env[] = { { "ODD_TTL_S", "1.5", "env object" },
                                        { "ODD_COUNT", "7", "env object" },
                                        { "ODD_TTL_S", "9", "process" },
                                        { "PATH", "/bin", "process" } };
    struct policy_settings *s = NULL;
    char err[512];
    uint32_t stride;
    cr_assert_eq(make(given, 2, env, 4, &s, err), 0, "%s", err);
    const struct policy_value *v = policy_settings_values(s, &stride);
    cr_expect(v[0].number == -5 && v[2].real == 1.5 && v[5].number == 0);
    cr_expect_str_eq(policy_settings_get(s, 0).origin, "file");
    cr_expect_str_eq(policy_settings_get(s, 2).origin, "env object");
    cr_expect_str_eq(policy_settings_get(s, 2).text, "1.5");
    policy_settings_free(s);
}

Test(settings, wrong_values_are_named_with_their_bounds_and_their_place)
{
    static const struct {
        const char *name, *text, *why;
    } cases[] = {
        { "count", "11", "count: 11 is outside -5..10 tokens (here)" },
        { "count", "1.5", "count: \"1.5\" is not a whole number -5..10 (here)" },
        { "count", "", "count: \"\" is not a whole number -5..10 (here)" },
        { "count", " 1", "count: \" 1\" is not a whole number -5..10 (here)" },
        { "count", "99999999999999999999", "count: 99999999999999999999 is outside -5..10 tokens (here)" },
        { "ttl_s", "-1", "ttl_s: -1 is outside 0..86400 s (here)" },
        { "ttl_s", "1e9", "ttl_s: 1e9 is outside 0..86400 s (here)" },
        { "ttl_s", "nan", "ttl_s: \"nan\" is not a number 0..86400 (here)" },
        { "ttl_s", "inf", "ttl_s: inf is outside 0..86400 s (here)" },
        { "ttl_s", "ten", "ttl_s: \"ten\" is not a number 0..86400 (here)" },
        { "ttl_s", "10 s", "ttl_s: \"10 s\" is not a number 0..86400 (here)" },
        { "ratio", "0", "ratio: 0 is outside 0.01" },
        { "on", "yes", "on: \"yes\" is not true or false (here)" },
        { "word", "", "word: \"\" is 0 bytes long, 1..8 are allowed (here)" },
        { "word", "much too long", "word: \"much too long\" is 13 bytes long, 1..8 are allowed (here)" },
        { "colour", "blue", "colour: \"blue\" is not one of red, green (here)" },
        { "size", "1", "size: unknown (here); odd has count, ratio, ttl_s, on, word, colour" },
        { "ODD_TTL_S", "x", "ttl_s: \"x\" is not a number 0..86400 (here)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct policy_given given = { cases[i].name, cases[i].text, "here" };
        struct policy_settings *s = NULL;
        char err[512];
        cr_expect_eq(make(&given, 1, NULL, 0, &s, err), -EDOM, "%s=%s", given.name, given.text);
        cr_expect(strncmp(err, cases[i].why, strlen(cases[i].why)) == 0, "%s", err);
        cr_expect_null(s);
    }
}

Test(settings, one_setting_given_by_both_its_names_is_refused)
{
    const struct policy_given given[] = { { "ttl_s", "1", "line 3" }, { "ODD_TTL_S", "1", "line 4" } };
    struct policy_settings *s = NULL;
    char err[512];
    cr_expect_eq(make(given, 2, NULL, 0, &s, err), -EDOM);
    cr_expect_str_eq(err, "ttl_s: given twice (line 3; line 4)");
}

Test(settings, a_wrong_value_in_the_environment_is_refused_unless_a_given_one_wins)
{
    const struct policy_given env = { "ODD_TTL_S", "soon", "environment ODD_TTL_S" };
    const struct policy_given given = { "ttl_s", "4", "file" };
    struct policy_settings *s = NULL;
    char err[512];
    cr_expect_eq(make(NULL, 0, &env, 1, &s, err), -EDOM);
    cr_expect_str_eq(err, "ttl_s: \"soon\" is not a number 0..86400 (environment ODD_TTL_S)");
    cr_expect_eq(make(&given, 1, &env, 1, &s, err), 0);
    policy_settings_free(s);
}

Test(settings, tables_that_cannot_be_used_are_refused)
{
    static const struct {
        struct policy_setting row;
        const char *why;
    } cases[] = {
        { { "Count", POLICY_INT, 0, 0, 1, "0", "", "", NULL, NULL }, "setting 0 has no name" },
        { { NULL, POLICY_INT, 0, 0, 1, "0", "", "", NULL, NULL }, "setting 0 has no name" },
        { { "a", 99, 0, 0, 1, "0", "", "", NULL, NULL }, "setting a has no known kind" },
        { { "a", POLICY_INT, 0, 1, 0, "0", "", "", NULL, NULL }, "setting a has no bounds" },
        { { "a", POLICY_INT, 0, 0, 1, "7", "", "", NULL, NULL },
          "setting a has a wrong default: 7 is outside" },
        { { "a", POLICY_INT, 0, 0, 1, NULL, "", "", NULL, NULL }, "setting a lacks its default" },
        { { "a", POLICY_CHOICE, 0, 0, 1, "x", "", "", NULL, NULL }, "setting a has no choices" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct slot_policy p = policy;
        char err[512];
        p.settings = &cases[i].row;
        p.n_settings = 1;
        cr_expect_eq(policy_settings_check_table(&p, err, sizeof err), -EINVAL);
        cr_expect(strncmp(err, cases[i].why, strlen(cases[i].why)) == 0, "%s", err);
    }
    struct policy_setting twice[] = { table[0], table[0] };
    struct slot_policy p = policy;
    char err[512];
    p.settings = twice;
    p.n_settings = 2;
    cr_expect_eq(policy_settings_check_table(&p, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "setting count is declared twice");
    p.n_settings = 65;
    cr_expect_eq(policy_settings_check_table(&p, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "65 settings, where 0..64 are allowed");
}
