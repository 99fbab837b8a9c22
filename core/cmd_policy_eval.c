/* Policy eval: `berth policy eval` asks a policy one case a line and prints one answer a line, so that a
 * policy can be tested from any language, and a server's trace asked again. The form of both is described in
 * policy/case.h. A bad case is answered by what is wrong with it, and the run goes on.
 * One thread. Must not know: what a good answer is. Tests: tests/e2e/test_policy_eval.py */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_policy.h"
#include "policy/asker.h"
#include "policy/case.h"
#include "policy/loaded.h"
#include "util/buf.h"
#include "util/jsonx.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval {
    struct policy_asker *asker;
    struct policy_case *one;
    struct buf out;
    unsigned long line, cases, bad;
};

/* A message, which may quote a bad case. */
static void put_text(struct buf *b, const char *text)
{
    json_t *v = jsonx_text(text);
    char *dumped = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    buf_puts(b, dumped ? dumped : "\"out of memory\"");
    free(dumped);
    json_decref(v);
}

static void put_id(struct buf *b, const json_t *id)
{
    char *dumped = id ? json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    buf_puts(b, "{\"id\":");
    buf_puts(b, dumped ? dumped : "null");
    free(dumped);
}

/* A line of its own for every case: the parser's "line 1" is the input's line. */
static int parse(const struct eval *e, const char *line, size_t len, json_t **ret_root, char *err,
                 size_t errlen)
{
    static const char one[] = "line 1";
    char why[400] = "out of memory";
    int r = jsonx_parse(line, len, POLICY_CASE_DEPTH, true, ret_root, why, sizeof why);
    if (r < 0)
        snprintf(err, errlen, "line %lu%s%s", e->line, strncmp(why, one, sizeof one - 1) ? ": " : "",
                 strncmp(why, one, sizeof one - 1) ? why : why + sizeof one - 1);
    return r;
}

/* Answers the case in one line of text. */
static void answer(struct eval *e, const char *line, size_t len)
{
    char err[512];
    struct policy_answer a;
    json_t *root = NULL;
    int r = parse(e, line, len, &root, err, sizeof err);
    put_id(&e->out, json_object_get(root, "id"));
    if (r == 0)
        r = policy_case_read(e->one, root, err, sizeof err);
    if (r == 0) {
        struct policy_decision d = *policy_case_get(e->one);
        r = policy_asker_ask(e->asker, &d, &a, err, sizeof err);
        d.answer = a;
        if (r == 0) {
            buf_puts(&e->out, ",\"ok\":true,");
            policy_answer_write(&e->out, &d);
        }
    }
    if (r < 0) {
        e->bad++;
        buf_puts(&e->out, ",\"ok\":false,\"error\":");
        put_text(&e->out, err);
    }
    buf_puts(&e->out, "}\n");
    json_decref(root);
}

static bool is_blank(const char *line)
{
    return line[strspn(line, " \t\r\n")] == 0;
}

/* Every answer leaves at once: who asks may wait for it before he asks again. */
static int stream(struct eval *e, FILE *in)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int r = 0;
    while (r == 0 && (len = getline(&line, &cap, in)) >= 0) {
        e->line++;
        if (is_blank(line) && strlen(line) == (size_t)len)
            continue;
        buf_clear(&e->out);
        answer(e, line, (size_t)len);
        e->cases++;
        if (e->out.failed)
            r = -ENOMEM;
        else if (fwrite(e->out.data, 1, e->out.len, stdout) != e->out.len || fflush(stdout) == EOF)
            r = -EIO;
    }
    if (r == -ENOMEM)
        cmd_error("line %lu: out of memory", e->line);
    else if (r < 0)
        cmd_error("could not write to standard output");
    else if (ferror(in))
        cmd_error("standard input: %s", strerror(errno));
    free(line);
    return r < 0 || ferror(in) ? -1 : 0;
}

static int run(struct policy_loaded *policy)
{
    struct eval e = { 0 };
    int r = policy_asker_new(policy, &e.asker);
    if (r == 0)
        r = policy_case_new(&e.one);
    if (r < 0)
        cmd_error("out of memory");
    else
        r = stream(&e, stdin);
    if (r == 0 && e.bad)
        cmd_error("%lu of %lu cases were not answered", e.bad, e.cases);
    policy_asker_free(e.asker);
    policy_case_free(e.one);
    buf_free(&e.out);
    return r < 0 || e.bad ? 1 : 0;
}

/* clang-format off */
/* The form of policy/case.h, for those who have no sources. */
static const char about[] =
    "Answers cases from standard input, one JSON object a line, one a line. Lines of a trace are cases. A case\n"
    "that is bad, or that the policy answers illegally, is answered with \"ok\": false and why; the run goes on,\n"
    "and the exit code is 1. A case, with the defaults of what may be left out (times in seconds, lengths in\n"
    "tokens; main has a slot's fields from \"reliable\" on, \"valid\" and \"busy\"):\n"
    "\n"
    "  {\"id\": anything,\n"
    "   \"call\": \"place\" | \"park_destination\" | \"cache_state\" | \"superseded_slots\",\n"
    "   \"snapshot\":\n"
    "    {\"now_s\": 0, \"padding_safe\": true, \"prompt_tokens_per_s\": 0, \"seed\": 0,\n"
    "     \"slots\": [\n"
    "      {\"id\": 0, \"group\": 0, \"state\": \"idle\" | \"busy\", \"excluded\": false,\n"
    "       \"held\": false, \"reliable\": true, \"tokens\": 0, \"turn_tokens\": 0,\n"
    "       \"shared_prompt\": 0, \"last_use_s\": 0, \"turns\": 0, \"stop_reason\":\n"
    "        \"none\" | \"end_turn\" | \"tool_use\" | \"length\" | \"cancelled\",\n"
    "       \"prompt_tokens\": 0, \"client_key\": 0, \"session_key\": 0, \"parent_key\": 0,\n"
    "       \"line_key\": 0, \"side\": false, \"tools\": false, \"subagent\": false,\n"
    "       \"recompute_s\": 0, \"bytes\": 0}, ...],\n"
    "     \"main\": {\"valid\": false, \"busy\": false, ...},\n"
    "     \"shared\": [[...], ...]: a row for every slot, and one for main; symmetric,\n"
    "      all 0,\n"
    "     \"returns\": {\"end_turn\":\n"
    "      {\"edges_s\": [...], \"at_risk\": [...], \"returned\": [...]}, ...}},\n"
    "   \"request\": {\"prompt_tokens\": 0, \"turn_tokens\": 0, \"max_new_tokens\": 0,\n"
    "    and a slot's keys and flags},\n"
    "   \"decision\": anything; what a trace adds}\n"
    "\n"
    "The answer to each call; slots are named by their ids:\n"
    "\n"
    "  {\"id\", \"ok\": true, \"slot\": 3 | null, \"source\": 1 | \"main\" | null, \"reason\",\n"
    "   \"loss\", \"tokens_lost\"}\n"
    "  {\"id\", \"ok\": true, \"slot\": 3 | null, \"reason\"}\n"
    "  {\"id\", \"ok\": true, \"main\": the same as a slot | null,\n"
    "   \"slots\": [{\"state\", \"retention\", \"value\", \"age_s\", \"ttl_s\", \"give_up\"}, ...]}\n"
    "  {\"id\", \"ok\": true, \"slots\": [1, 4]}\n"
    "  {\"id\", \"ok\": false,\n"
    "   \"error\": \"snapshot.slots[3].turn_tokens: 9 is above tokens, which is 5\"}";
/* clang-format on */

int cmd_policy_eval(int argc, char **argv)
{
    struct cmd_strings words = { 0 }, sets = { 0 };
    struct policy_loaded *policy;
    const struct cmd_option options[] = {
        { .name = "--set",
          .value = "NAME=VALUE",
          .help = "Set one of the policy's settings; may be given several times.",
          .list = &sets },
    };
    const struct cmd_spec spec = {
        .usage = "berth policy eval (FILE | builtin) [--set NAME=VALUE]... < cases.jsonl",
        .about = about,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0)
        code = cmd_policy_open(words.items[0], &sets, false, &policy);
    if (code < 0) {
        code = run(policy);
        policy_loaded_unref(policy);
    }
    cmd_strings_free(&words);
    cmd_strings_free(&sets);
    return code;
}
