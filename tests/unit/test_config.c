/* Tests of core/config: defaults, files, overrides, where values come from, and what errors say. */
#include "config/config.h"
#include "config/keys.h"
#include "engine/engine.h"
#include "util/buf.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], path[96], err[1024];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/berth-config-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/c.json", dir);
}

static void remove_dir(void)
{
    unlink(path);
    rmdir(dir);
}

TestSuite(config, .init = make_dir, .fini = remove_dir);

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static int load(const char *text, struct config **ret_config)
{
    write_file(text);
    return config_load(path, NULL, 0, ret_config, err, sizeof err);
}

/* Loads text, expects it to fail and the error to hold `part` and the file's line. */
static void expect_refused(const char *text, const char *part, unsigned line)
{
    struct config *c = NULL;
    char where[128];

    cr_expect_eq(load(text, &c), -EINVAL, "%s", text);
    cr_expect_null(c);
    cr_expect(strstr(err, part) != NULL, "%s: %s", text, err);
    snprintf(where, sizeof where, "%s line %u", path, line);
    cr_expect(strstr(err, where) != NULL, "%s: %s", text, err);
    cr_expect_null(strchr(err, '\n'));
}

static void expect_set_refused(const char *set, const char *part)
{
    struct config *c = NULL;

    cr_expect_eq(config_load(NULL, &set, 1, &c, err, sizeof err), CONFIG_BAD_SET, "%s", set);
    cr_expect_null(c);
    cr_expect(strstr(err, part) != NULL, "%s: %s", set, err);
    cr_expect(strstr(err, "(--set)") != NULL, "%s: %s", set, err);
}

Test(config, an_error_is_one_line_whatever_a_name_holds)
{
    expect_refused("{\n\"no\\nsuch\\u001bkey\": 1}", "no such key: unknown key", 2);
    struct config *c;
    const char *sets[] = { "no\nsuch.key=1" };
    cr_expect_eq(config_load(NULL, sets, 1, &c, err, sizeof err), CONFIG_BAD_SET);
    cr_expect(strstr(err, "no such.key") && !strchr(err, '\n'), "%s", err);
}

Test(config, defaults_are_those_of_the_contract)
{
    struct config *c;

    cr_assert_eq(config_load(NULL, NULL, 0, &c, err, sizeof err), 0, "%s", err);
    cr_assert_eq(c->server.listen.n, 1);
    cr_expect_str_eq(c->server.listen.items[0], "127.0.0.1:8080");
    cr_expect_eq(c->server.cors_origins.n, 0);
    cr_expect_null(c->server.keys_file);
    cr_expect_not(c->server.open);
    cr_expect_eq(c->server.max_header_bytes, 64 * 1024);
    cr_expect_eq(c->server.max_body_bytes, 32 * 1024 * 1024);
    cr_expect_eq(c->server.max_json_depth, 128);
    cr_expect_eq(c->server.max_connections, 1024);
    cr_expect_eq(c->server.idle_timeout_s, 75);
    cr_expect_eq(c->server.header_timeout_s, 10);
    cr_expect_eq(c->server.max_unsent_bytes, 1024 * 1024);
    cr_expect_eq(c->server.keepalive_s, 10);
    cr_expect_null(c->model.path);
    cr_expect_eq(c->model.context, CONFIG_AUTO);
    cr_expect_str_eq(c->engine.device, "auto");
    cr_expect_eq(c->engine.threads, CONFIG_AUTO);
    cr_expect_eq(c->engine.slots, 64);
    cr_expect_eq(c->engine.rows, 16);
    cr_expect_eq(c->engine.kv_tokens, CONFIG_AUTO);
    cr_expect_str_eq(c->engine.kv_type, "f16");
    cr_expect_str_eq(c->engine.activations, "auto");
    cr_expect_eq(c->engine.max_pause_ms, 100);
    cr_expect_eq(c->queue.max, 256);
    cr_expect_eq(c->sampling.temperature, 0.7);
    cr_expect_eq(c->sampling.top_p, 0.95);
    cr_expect_str_eq(c->log.level, "info");
    config_free(c);
    config_free(NULL);
}

Test(config, a_file_sets_values_of_every_type)
{
    struct config *c;

    cr_assert_eq(
        load("{\"server\": {\"listen\": [\"[::1]:0\", \"unix:/x\"], \"open\": true, \"drain_s\": 0},\n"
             " \"model\": {\"path\": \"m.gguf\", \"chat_template\": \"/abs/t\", \"context\": 4096, \"name\": "
             "\"n\"},\n"
             " \"engine\": {\"threads\": 3, \"kv_tokens\": \"auto\", \"kv_type\": \"f32\"},\n"
             " \"sampling\": {\"temperature\": 0, \"top_p\": 1}}",
             &c),
        0, "%s", err);
    cr_assert_eq(c->server.listen.n, 2);
    cr_expect_str_eq(c->server.listen.items[1], "unix:/x");
    cr_expect(c->server.open);
    cr_expect_eq(c->server.drain_s, 0);
    cr_expect_eq(strncmp(c->model.path, dir, strlen(dir)), 0, "relative to the file: %s", c->model.path);
    cr_expect_str_eq(c->model.path + strlen(dir), "/m.gguf");
    cr_expect_str_eq(c->model.chat_template, "/abs/t");
    cr_expect_eq(c->model.context, 4096);
    cr_expect_str_eq(c->model.name, "n");
    cr_expect_eq(c->engine.threads, 3);
    cr_expect_eq(c->engine.kv_tokens, CONFIG_AUTO);
    cr_expect_str_eq(c->engine.kv_type, "f32");
    cr_expect_eq(c->sampling.temperature, 0);
    config_free(c);
}

Test(config, unknown_keys_are_refused_with_their_path_line_and_the_nearest_name)
{
    expect_refused("{\"engine\": {\n\"thread\": 2}}",
                   "engine.thread: unknown key; did you mean engine.threads?", 2);
    expect_refused("{\n\n\"enigne\": {\"threads\": 2}}", "enigne: unknown key; did you mean engine?", 3);
    expect_refused("{\"threads\": 2}", "threads: unknown key; did you mean engine.threads?", 1);
    expect_refused("{\"server\": {\"slots\":\n2}}", "server.slots: unknown key; did you mean engine.slots?",
                   1);
    expect_refused("{\"wholly_other\": 1}", "wholly_other: unknown key; berth --help-config", 1);
    expect_refused("{\"engine\": {\"slots\": {\"deep\": 1}}}", "engine.slots: an object where", 1);
    expect_refused("{\"foo\": 1}", "foo: unknown key; berth --help-config", 1);
    expect_refused("{\"engine\": {\"foo\": 1}}", "engine.foo: unknown key; berth --help-config", 1);
    expect_refused("{\"engnie\": {\"thread\": 1}}", "engnie: unknown key; did you mean engine?", 1);
}

Test(config, wrong_types_and_bounds_are_refused_with_what_is_allowed)
{
    expect_refused("{\"engine\": {\"slots\": 5000}}",
                   "engine.slots: 5000 where 1..1024 conversations is allowed", 1);
    expect_refused("{\"engine\": {\"slots\": 0}}", "engine.slots: 0 where 1..1024", 1);
    expect_refused("{\"engine\": {\"slots\": 1.5}}", "engine.slots: 1.5 where a whole number", 1);
    expect_refused("{\"engine\": {\"slots\": \"auto\"}}", "engine.slots: \"auto\" where 1..1024", 1);
    expect_refused("{\"engine\": {\"threads\": \"all\"}}", "engine.threads: \"all\" where auto or 1..256", 1);
    expect_refused("{\"engine\":\n{\"kv_type\":\"q8\"}}",
                   "engine.kv_type: \"q8\" where f16, f32, q8_0 is allowed", 2);
    expect_refused("{\"engine\": {\"kv_type\": null}}", "engine.kv_type: null where f16, f32, q8_0", 1);
    expect_refused("{\"server\": {\"open\": 1}}", "server.open: 1 where true or false", 1);
    expect_refused("{\"server\": {\"listen\": \"x\"}}", "server.listen: \"x\" where a list of strings", 1);
    expect_refused("{\"server\": {\"listen\": [1]}}", "server.listen: item 1 is a number where a string", 1);
    expect_refused("{\"server\": {\"listen\": [\"\"]}}", "server.listen: item 1 is an empty string", 1);
    expect_refused("{\"server\": []}", "server: a list where an object is wanted", 1);
    expect_refused("{\"model\": {\"path\": \"\"}}", "model.path: \"\" where a path or null", 1);
    expect_refused("{\"model\": {\"path\": \"a\\u0000b\"}}", "model.path: ", 1);
    expect_refused("{\"log\": {\"level\": \"info\\u0000\"}}",
                   "log.level: \"info\\u0000\" where debug, info, warn, error", 1);
    expect_refused("{\"sampling\": {\"top_p\": 1.01}}", "sampling.top_p: 1.01 where 0..1", 1);
    expect_refused("{\"sampling\": {\"top_k\": 99999999999999999999}}", "line 1 column", 1);
    expect_refused("{\"log\": {\"level\": \"loud\"}}", "log.level: \"loud\" where debug, info, warn, error",
                   1);
}

static void no_place(void *arg, const json_t *object, const char *name, char *dst, size_t dstlen)
{
    (void)arg, (void)object, (void)name;
    snprintf(dst, dstlen, "nowhere");
}

/* Every key refuses every JSON type that is not its own: nothing is taken for something else. */
Test(config, every_key_refuses_every_other_type)
{
    static const struct config_stand stand = { .where = no_place };
    static const char *const values[] = { "null", "true", "-1e9", "\"\\u0001?\"", "[[]]", "{\"x\":1}" };

    for (size_t k = 0; k < config_n_keys; k++) {
        enum config_key_type type = config_keys[k].type;
        bool nullable = type == KEY_TEXT || type == KEY_PATH;

        for (size_t v = 0; v < 6; v++) {
            json_t *value = json_loads(values[v], JSON_DECODE_ANY, NULL);
            struct config *c;
            bool fits = (v == 0 && nullable) || (v == 1 && type == KEY_BOOL) || (v == 3 && nullable) ||
                        (v == 5 && type == KEY_SETTINGS);

            cr_assert_eq(config_load(NULL, NULL, 0, &c, err, sizeof err), 0);
            cr_expect_eq(config_key_set(&config_keys[k], c, value, &stand, err, sizeof err),
                         fits ? 0 : -EINVAL, "%s = %s", config_keys[k].name, values[v]);
            cr_expect(fits || strncmp(err, config_keys[k].name, strlen(config_keys[k].name)) == 0, "%s", err);
            config_free(c);
            json_decref(value);
        }
    }
}

Test(config, duplicates_and_broken_json_are_refused_with_the_line)
{
    expect_refused("{\"log\": {\"level\": \"info\",\n \"level\": \"warn\"}}", "duplicate object key near", 2);
    expect_refused("{\"log\": {},\n\n\"log\": {}}", "duplicate object key near", 3);
    expect_refused("{\"log\":\n{\"level\": }}", "unexpected token near", 2);
    expect_refused("", "end of file", 1);
    cr_expect_eq(load("[]", &(struct config *){ NULL }), -EINVAL);
    cr_expect(strstr(err, "a list where an object is wanted") != NULL, "%s", err);
}

/* Two ways to write a key would be two places for it in one file. */
Test(config, a_dotted_name_in_a_file_is_no_key)
{
    expect_refused("{\"server.open\": true}", "server.open: unknown key; \"open\" belongs in \"server\"", 1);
    expect_refused("{\"server\": {\"open\": false},\n\"server.open\": true}",
                   "\"open\" belongs in \"server\"", 2);
    expect_refused("{\"server.opne\": true}", "server.opne: unknown key; did you mean server.open?", 1);
    expect_refused("{\"server\": {\"server.open\": true}}", "server.server.open: unknown key", 1);
    expect_refused("{\"server.\": {}}", "server.: unknown key", 1);
    for (size_t i = 0; i < config_n_keys; i++) {
        char text[128];

        if (!strchr(config_keys[i].name, '.'))
            continue;
        snprintf(text, sizeof text, "{\"%s\": %s}", config_keys[i].name, config_keys[i].fallback);
        expect_refused(text, "belongs in", 1);
    }
}

Test(config, the_path_of_a_unix_address_is_relative_to_the_file)
{
    const char *sets[] = { "server.listen=unix:mine.sock" };
    char wanted[128];
    struct config *c;

    cr_assert_eq(load("{\"server\": {\"listen\": [\"unix:run/b.sock\", \"unix:/abs\", \"127.0.0.1:1\"], "
                      "\"cors_origins\": [\"unix:x\"]}}",
                      &c),
                 0, "%s", err);
    snprintf(wanted, sizeof wanted, "unix:%s/run/b.sock", dir);
    cr_expect_str_eq(c->server.listen.items[0], wanted);
    cr_expect_str_eq(c->server.listen.items[1], "unix:/abs");
    cr_expect_str_eq(c->server.listen.items[2], "127.0.0.1:1");
    cr_expect_str_eq(c->server.cors_origins.items[0], "unix:x", "no address");
    config_free(c);
    cr_assert_eq(config_load(NULL, sets, 1, &c, err, sizeof err), 0);
    cr_expect_str_eq(c->server.listen.items[0], "unix:mine.sock", "relative to the working directory");
    config_free(c);
}

Test(config, rules_between_keys_are_checked_with_the_line)
{
    static const char *const fit[] = { "{}", "{\"model\": {\"context\": 99999}}",
                                       "{\"engine\": {\"kv_tokens\": 256}}",
                                       "{\"engine\": {\"slots\": 12, \"groups\": 4}}",
                                       "{\"model\": {\"context\": 300}, \"engine\": {\"kv_tokens\": 300}}" };
    struct config *c;

    for (size_t i = 0; i < sizeof fit / sizeof fit[0]; i++) {
        cr_assert_eq(load(fit[i], &c), 0);
        cr_expect_eq(config_check_rules(c, err, sizeof err), 0, "%s", fit[i]);
        config_free(c);
    }
    cr_assert_eq(load("{\"model\": {\"context\": 301},\n\"engine\": {\"kv_tokens\": 300}}", &c), 0);
    cr_expect_eq(config_check_rules(c, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "engine.kv_tokens: 300 is below model.context, 301") == err &&
                  strstr(err, "line 2)"),
              "%s", err);
    config_free(c);
}

Test(config, groups_divide_the_slots)
{
    struct config *c;
    cr_assert_eq(load("{\"engine\": {\"slots\": 12,\n\"groups\": 5}}", &c), 0);
    cr_expect_eq(config_check_rules(c, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "engine.groups: 5 groups do not divide the 12 slots of engine.slots") == err &&
                  strstr(err, "line 2)"),
              "%s", err);
    config_free(c);
}

Test(config, the_bound_of_threads_is_the_engines)
{
    cr_expect_eq(config_key_find("engine.threads")->max, ENGINE_MAX_THREADS);
}

Test(config, overrides_win_in_their_order_and_keep_the_file_for_the_rest)
{
    const char *sets[] = { "engine.slots=8",
                           "engine.slots=9",
                           "server.listen=a:1,b:2",
                           "model.path=rel.gguf",
                           "engine.threads=auto",
                           "sampling.temperature=0.25",
                           "server.cors_origins=[\"http://x,y\"]",
                           "model.name=null",
                           "server.open=true",
                           "log.level=debug" };
    struct config *c;

    write_file("{\"engine\": {\"slots\": 3, \"rows\": 2}, \"model\": {\"name\": \"x\"}}");
    cr_assert_eq(config_load(path, sets, sizeof sets / sizeof sets[0], &c, err, sizeof err), 0, "%s", err);
    cr_expect_eq(c->engine.slots, 9);
    cr_expect_eq(c->engine.rows, 2);
    cr_assert_eq(c->server.listen.n, 2);
    cr_expect_str_eq(c->server.listen.items[1], "b:2");
    cr_expect_str_eq(c->model.path, "rel.gguf", "relative to the working directory");
    cr_expect_eq(c->engine.threads, CONFIG_AUTO);
    cr_expect_eq(c->sampling.temperature, 0.25);
    cr_assert_eq(c->server.cors_origins.n, 1);
    cr_expect_str_eq(c->server.cors_origins.items[0], "http://x,y");
    cr_expect_null(c->model.name);
    cr_expect(c->server.open);
    cr_expect_str_eq(c->log.level, "debug");
    config_free(c);
}

Test(config, wrong_overrides_are_refused)
{
    expect_set_refused("engine.slots", "\"engine.slots\": an override is KEY=VALUE, and the \"=\"");
    expect_set_refused("engine.slot=3", "did you mean engine.slots?");
    expect_set_refused("engine.slots=many", "engine.slots: \"many\" where 1..1024");
    expect_set_refused("engine.slots=", "engine.slots: \"\" where 1..1024");
    expect_set_refused("engine.slots=99999", "engine.slots: 99999 where 1..1024");
    expect_set_refused("engine={}", "engine: a section, not a key");
    expect_set_refused("=3", "\"=3\": an override is KEY=VALUE, and the key is missing");
    expect_set_refused("=", "\"=\": an override is KEY=VALUE, and the key is missing");
    expect_set_refused("foo=1", "foo: unknown key; berth --help-config");
    expect_set_refused("lgo=1", "lgo: unknown key; did you mean log?");
    expect_set_refused("server.listen=[\"a\"", "server.listen: \"[\"a\"\" where a list");
    expect_set_refused("model.name=\xFF", "not valid UTF-8");
}

static const struct config_setting *entry_of(const struct config_settings *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].name, name) == 0)
            return &s->items[i];
    return NULL;
}

static void expect_entry(const struct config_settings *s, const char *name, const char *text,
                         const char *where_end)
{
    const struct config_setting *e = entry_of(s, name);

    cr_assert_not_null(e, "%s", name);
    cr_expect_str_eq(e->text, text);
    size_t len = strlen(e->where), end = strlen(where_end);
    cr_expect(len >= end && strcmp(e->where + len - end, where_end) == 0, "%s: %s", name, e->where);
}

Test(config, entries_keep_their_text_and_where_they_came_from)
{
    const char *sets[] = { "policy.settings.b=7.50", "policy.settings.new=on=off",
                           "env.STRATA_X=", "policy.settings.b=8" };
    struct config *c;

    write_file("{\"policy\": {\"settings\": {\"a\": 0.1, \"b\": 12,\n \"c\": \"x y\", \"d\": true,\n"
               " \"e\": 1e300, \"f\": 0.30000000000000004}},\n \"env\": {\"STRATA_Y\": \"2\"}}");
    cr_assert_eq(config_load(path, sets, 4, &c, err, sizeof err), 0, "%s", err);
    cr_expect_eq(c->policy.settings.n, 7);
    expect_entry(&c->policy.settings, "a", "0.1", "c.json line 1");
    expect_entry(&c->policy.settings, "b", "8", "--set");
    expect_entry(&c->policy.settings, "c", "x y", "c.json line 2");
    expect_entry(&c->policy.settings, "d", "true", "c.json line 2");
    expect_entry(&c->policy.settings, "e", "1e+300", "c.json line 3");
    expect_entry(&c->policy.settings, "f", "0.30000000000000004", "c.json line 3");
    expect_entry(&c->policy.settings, "new", "on=off", "--set");
    expect_entry(&c->env, "STRATA_X", "", "--set");
    expect_entry(&c->env, "STRATA_Y", "2", "c.json line 4");
    config_free(c);
}

Test(config, a_whole_object_replaces_the_one_before)
{
    const char *sets[] = { "policy.settings={\"z\": 1}" };
    struct config *c;

    write_file("{\"policy\": {\"settings\": {\"a\": 1}}}");
    cr_assert_eq(config_load(path, sets, 1, &c, err, sizeof err), 0, "%s", err);
    cr_expect_eq(c->policy.settings.n, 1);
    expect_entry(&c->policy.settings, "z", "1", "--set");
    config_free(c);
}

Test(config, policies_of_a_list_have_paths_and_settings)
{
    const char *sets[] = { "policy.shadow=a.so,/b.so" };
    char wanted[128];
    struct config *c;

    cr_assert_eq(load("{\"policy\": {\"path\": \"p/v.so\", \"shadow\": [{\"path\": \"l.so\"},\n"
                      " {\"settings\": {\"k\":\n 3}, \"path\": \"/abs.so\"}]}}",
                      &c),
                 0, "%s", err);
    snprintf(wanted, sizeof wanted, "%s/p/v.so", dir);
    cr_expect_str_eq(c->policy.path, wanted);
    cr_assert_eq(c->policy.shadow.n, 2);
    snprintf(wanted, sizeof wanted, "%s/l.so", dir);
    cr_expect_str_eq(c->policy.shadow.items[0].path, wanted);
    cr_expect_eq(c->policy.shadow.items[0].settings.n, 0);
    cr_expect_str_eq(c->policy.shadow.items[1].path, "/abs.so");
    expect_entry(&c->policy.shadow.items[1].settings, "k", "3", "c.json line 2");
    config_free(c);
    cr_assert_eq(config_load(NULL, sets, 1, &c, err, sizeof err), 0, "%s", err);
    cr_assert_eq(c->policy.shadow.n, 2);
    cr_expect_str_eq(c->policy.shadow.items[0].path, "a.so", "relative to the working directory");
    cr_expect_str_eq(c->policy.shadow.items[1].path, "/b.so");
    config_free(c);
}

Test(config, wrong_entries_are_refused)
{
    expect_refused("{\"policy\": {\"settings\": {\"a\": null}}}",
                   "policy.settings.a: null where a string without zero bytes, a number, true or false", 1);
    expect_refused("{\"policy\": {\"settings\": {\"a\": [1]}}}", "policy.settings.a: a list where", 1);
    expect_refused("{\"policy\": {\"settings\": {\"a\": \"x\\u0000\"}}}", "policy.settings.a: a string where",
                   1);
    expect_refused("{\"policy\": {\"settings\": {\"\": 1}}}", "policy.settings.: an empty name where", 1);
    expect_refused("{\"policy\": {\"settings\": {\"a\": 1,\n\"a\": 1}}}", "duplicate object key", 2);
    expect_refused("{\"policy\": {\"settings\": 3}}", "policy.settings: 3 where an object of", 1);
    expect_refused("{\"env\": {\"A\": {}}}", "env.A: an object where a string", 1);
    expect_refused("{\"policy\": {\"shadow\": {}}}", "policy.shadow: an object where a list of objects", 1);
    expect_refused("{\"policy\": {\"shadow\": [\"x.so\"]}}",
                   "policy.shadow: item 1: a string where an object", 1);
    expect_refused("{\"policy\": {\"shadow\": [{\"path\": \"a\"}, {}]}}",
                   "policy.shadow: item 2: path: nothing where the path of a policy", 1);
    expect_refused("{\"policy\": {\"shadow\": [{\"path\": \"a\", \"settings\": 1}]}}",
                   "policy.shadow: item 1: settings: a number where an object", 1);
    expect_refused("{\"policy\": {\"shadow\": [{\"path\": \"a\", \"setings\": {}}]}}",
                   "policy.shadow: item 1: setings: unknown key", 1);
    expect_refused("{\"policy\": {\"shadow\": [{\"path\": \"a\", \"settings\": {\"q\": []}}]}}",
                   "policy.shadow: item 1: settings.q: a list where", 1);
    expect_refused("{\"policy\": {\"shadow\": [{},{},{},{},{},{},{},{},{}]}}",
                   "policy.shadow: a list of 9 where at most 8", 1);
    expect_refused("{\"policy\": {\"fallback\": \"lru\"}}", "policy.fallback: \"lru\" where none, builtin",
                   1);
    expect_refused("{\"polcy\": {}}", "polcy: unknown key; did you mean policy?", 1);
    expect_set_refused("policy.settings=3", "policy.settings: 3 where an object of");
    expect_set_refused("policy.settings.=3", "policy.settings.: unknown key");
    expect_set_refused("policy.shadow=[1]", "policy.shadow: item 1: a number where an object");
}

Test(config, entries_are_bounded)
{
    struct buf text = { 0 };
    struct config *c;

    for (int i = 0; i <= CONFIG_MAX_ENTRIES; i++)
        buf_printf(&text, "%s\"k%d\":0", i ? "," : "{\"env\": {", i);
    buf_puts(&text, "}}");
    expect_refused(text.data, "env: more than 256 entries", 1);
    buf_clear(&text);
    buf_puts(&text, "env.");
    for (int i = 0; i < 300; i++)
        buf_putc(&text, 'n');
    buf_puts(&text, "=1");
    cr_expect_eq(config_load(NULL, (const char *const *)&text.data, 1, &c, err, sizeof err), CONFIG_BAD_SET);
    buf_free(&text);
}

static char changed[256];

static void note_changed(void *arg, const char *key)
{
    (void)arg;
    strcat(strcat(changed, key), " ");
}

Test(config, what_needs_a_restart_is_kept_and_named_and_the_rest_is_new)
{
    const char *before[] = { "engine.slots=3", "server.listen=a:1", "log.level=warn", "model.name=x" };
    const char *after[] = { "engine.slots=4", "server.listen=a:1", "log.level=debug", "policy.settings.a=1",
                            "model.name=null" };
    struct config *running, *next;

    cr_assert_eq(config_load(NULL, before, 4, &running, err, sizeof err), 0, "%s", err);
    cr_assert_eq(config_load(NULL, after, 5, &next, err, sizeof err), 0, "%s", err);
    cr_expect_eq(config_keep_fixed(next, running, note_changed, NULL), 0);
    cr_expect_str_eq(changed, "model.name engine.slots ");
    cr_expect_eq(next->engine.slots, 3);
    cr_expect_str_eq(next->server.listen.items[0], "a:1");
    cr_expect_str_eq(next->model.name, "x");
    cr_expect_str_eq(next->log.level, "debug");
    cr_expect_eq(next->policy.settings.n, 1);
    config_free(running);
    config_free(next);
}

Test(config, unreadable_files_say_why)
{
    struct config *c;

    cr_expect_eq(config_load("/nonexistent/x.json", NULL, 0, &c, err, sizeof err), -ENOENT);
    cr_expect_str_eq(err, "/nonexistent/x.json: No such file or directory");
    cr_expect_eq(config_load(dir, NULL, 0, &c, err, sizeof err), -EISDIR);
    cr_expect(strstr(err, "a directory") != NULL, "%s", err);
    cr_expect_eq(config_load("/dev/zero", NULL, 0, &c, err, sizeof err), -EFBIG);
}

Test(config, long_and_many_names_do_not_hurt)
{
    struct buf text = { 0 };

    buf_puts(&text, "{\"");
    for (int i = 0; i < 3000; i++)
        buf_puts(&text, "\xC3\xA9");
    buf_puts(&text, "\": 1}");
    expect_refused(text.data, "unknown key", 1);
    buf_clear(&text);
    for (int i = 0; i < 50000; i++)
        buf_printf(&text, "%s\"k%d\":0", i ? "," : "{", i);
    buf_puts(&text, "}");
    expect_refused(text.data, "k0: unknown key", 1);
    buf_free(&text);
}

static char *print_to_text(const struct config *c)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    config_print(c, f);
    fclose(f);
    return text;
}

static bool has_line(const char *text, const char *start, const char *end)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        size_t n = strcspn(line, "\n"), end_len = strlen(end);

        if (strncmp(line, start, strlen(start)) == 0 && n >= end_len &&
            strncmp(line + n - end_len, end, end_len) == 0)
            return true;
    }
    return false;
}

Test(config, printing_names_every_key_once_and_where_its_value_came_from)
{
    const char *sets[] = { "engine.threads=2" };
    char from_file[160];
    struct config *c;
    char *text;
    size_t lines = 0;

    write_file("{\"engine\": {\n\"slots\": 3,\n\"threads\": 1}}");
    cr_assert_eq(config_load(path, sets, 1, &c, err, sizeof err), 0, "%s", err);
    text = print_to_text(c);
    snprintf(from_file, sizeof from_file, "# %s line 2", path);
    cr_expect(has_line(text, "engine.slots = 3 ", from_file), "%s", text);
    cr_expect(has_line(text, "engine.threads = 2 ", "# --set"));
    cr_expect(has_line(text, "engine.rows = 16 ", "# default"));
    cr_expect(has_line(text, "server.listen = [\"127.0.0.1:8080\"] ", "# default"));
    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    cr_expect_eq(lines, config_n_keys);
    free(text);
    config_free(c);
}

Test(config, printing_names_every_entry)
{
    const char *sets[] = { "policy.settings.a=1.5" };
    char *text;
    struct config *c;

    write_file("{\"policy\": {\"settings\": {\n\"b\": true}, \"shadow\": [{\"path\": \"/l.so\"}]}}");
    cr_assert_eq(config_load(path, sets, 1, &c, err, sizeof err), 0, "%s", err);
    text = print_to_text(c);
    cr_expect(has_line(text, "policy.settings.a = \"1.5\" ", "# --set"), "%s", text);
    cr_expect(has_line(text, "policy.settings.b = \"true\" ", "c.json line 2"), "%s", text);
    cr_expect(has_line(text, "policy.shadow = [{\"path\": \"/l.so\", \"settings\": {}}] ", "c.json line 2"),
              "%s", text);
    free(text);
    config_free(c);
}

Test(config, named_files_are_tried)
{
    struct config *c;

    cr_assert_eq(load("{\"model\":\n{\"path\": \"c.json\"}}", &c), 0);
    cr_expect_eq(config_check_files(c, err, sizeof err), 0);
    config_free(c);
    cr_assert_eq(load("{\"model\":\n{\"path\": \"none.gguf\"}}", &c), 0);
    cr_expect_eq(config_check_files(c, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "model.path: ") == err && strstr(err, "none.gguf: No such file") &&
                  strstr(err, "line 2)"),
              "%s", err);
    config_free(c);
    cr_assert_eq(load("{\"server\": {\"keys_file\": \"..\"}}", &c), 0);
    cr_expect_eq(config_check_files(c, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "is a directory") != NULL, "%s", err);
    config_free(c);
    cr_assert_eq(load("{\"trace\": {\"path\": \"to-be-written\"}}", &c), 0);
    cr_expect_eq(config_check_files(c, err, sizeof err), 0);
    config_free(c);
}

Test(config, the_table_is_sound)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];

        cr_expect_eq(config_key_find(key->name), key, "%s is there twice", key->name);
        cr_expect(strlen(key->help) > 15 && key->help[strlen(key->help) - 1] == '.', "%s", key->name);
        cr_expect_not_null(key->unit, "%s", key->name);
        cr_expect_null(strchr(key->help, '|'), "%s: breaks the markdown table", key->name);
    }
}
