/* Bench, the other program: fills in the command, runs it through the shell, and reads the speeds out of the
 * JSON it prints (an array of runs, each with n_prompt, n_gen and avg_ts, as llama-bench writes it). One
 * thread; waits for the program. Must not know: our own speeds. Tests: tests/e2e/test_bench.py */
#include "cmd_bench.h"
#include "util/buf.h"
#include "util/jsonx.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define MAX_OUTPUT (4u << 20)
#define MAX_DEPTH 32u

static const char *const placeholders[] = { "{model}", "{prompt}", "{generate}", "{depth}", "{threads}" };
#define N_PLACEHOLDERS (sizeof placeholders / sizeof *placeholders)

/* Which placeholder begins here; N_PLACEHOLDERS: none. */
static size_t placeholder_at(const char *text)
{
    size_t i = 0;
    while (i < N_PLACEHOLDERS && strncmp(text, placeholders[i], strlen(placeholders[i])) != 0)
        i++;
    return i;
}

int bench_vs_check(const char *command, char *err, size_t errlen)
{
    for (const char *at = command; (at = strchr(at, '{')) != NULL; at++)
        if (placeholder_at(at) == N_PLACEHOLDERS) {
            snprintf(err, errlen, "--vs: \"%.20s\" is none of {model} {prompt} {generate} {depth} {threads}",
                     at);
            return -EINVAL;
        }
    return 0;
}

/* One word for the shell, whatever the text holds. */
static void put_quoted(struct buf *out, const char *text)
{
    buf_putc(out, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            buf_puts(out, "'\\''");
        else
            buf_putc(out, *text);
    }
    buf_putc(out, '\'');
}

static void fill_in(const char *command, const struct bench_settings *s, struct buf *out)
{
    const uint32_t numbers[N_PLACEHOLDERS] = { 0, s->prompt, s->generate, s->depth, s->threads };

    while (*command) {
        size_t i = placeholder_at(command);
        if (i == N_PLACEHOLDERS) {
            buf_putc(out, *command++);
            continue;
        }
        if (i == 0)
            put_quoted(out, s->model);
        else
            buf_printf(out, "%u", numbers[i]);
        command += strlen(placeholders[i]);
    }
}

static int run(const char *command, struct buf *out, char *err, size_t errlen)
{
    char chunk[4096];
    int status;
    FILE *f = popen(command, "re");

    if (!f) {
        int r = -errno;
        snprintf(err, errlen, "--vs: cannot be started: %s", strerror(-r));
        return r;
    }
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        buf_append(out, chunk, n);
    status = pclose(f);
    if (status == 0)
        return 0;
    if (status > 0 && WIFEXITED(status))
        snprintf(err, errlen, "--vs: exit code %d of: %s", WEXITSTATUS(status), command);
    else
        snprintf(err, errlen, "--vs: ended by a signal: %s", command);
    return -EIO;
}

static int read_speeds(const char *text, size_t len, struct bench_speed *ret, char *err, size_t errlen)
{
    json_t *root = NULL, *each;
    char why[160];
    size_t i;

    *ret = (struct bench_speed){ NAN, NAN };
    if (jsonx_parse(text, len, MAX_DEPTH, false, &root, why, sizeof why) < 0 || !json_is_array(root)) {
        snprintf(err, errlen, "--vs: printed no JSON array as llama-bench does with -o json%s%s",
                 root ? "" : ": ", root ? "" : why);
        json_decref(root);
        return -EINVAL;
    }
    json_array_foreach(root, i, each)
    {
        json_int_t prompt = json_integer_value(json_object_get(each, "n_prompt"));
        json_int_t generate = json_integer_value(json_object_get(each, "n_gen"));
        double speed = json_number_value(json_object_get(each, "avg_ts"));
        if (speed > 0 && prompt > 0 && generate == 0)
            ret->prefill = speed;
        else if (speed > 0 && generate > 0 && prompt == 0)
            ret->decode = speed;
    }
    json_decref(root);
    return 0;
}

int bench_vs_round(const char *command, const struct bench_settings *s, struct bench_speed *ret_speed,
                   char *err, size_t errlen)
{
    struct buf line = { 0 }, out = { .max = MAX_OUTPUT };
    int r = -ENOMEM;

    fill_in(command, s, &line);
    if (line.failed)
        goto out;
    r = run(line.data, &out, err, errlen);
    if (r < 0)
        goto out;
    if (out.failed) {
        r = -EINVAL;
        snprintf(err, errlen, "--vs: printed more than %u bytes", MAX_OUTPUT);
        goto out;
    }
    r = read_speeds(out.data ? out.data : "", out.len, ret_speed, err, errlen);
    if (r == 0 && ((s->prompt && isnan(ret_speed->prefill)) || (s->generate && isnan(ret_speed->decode)))) {
        r = -EINVAL;
        snprintf(err, errlen,
                 "--vs: its output has no speed of %s (n_prompt, n_gen and avg_ts are looked for)",
                 s->prompt && isnan(ret_speed->prefill) ? "reading a prompt" : "generating");
    }
out:
    if (r == -ENOMEM)
        snprintf(err, errlen, "out of memory");
    buf_free(&line);
    buf_free(&out);
    return r;
}
