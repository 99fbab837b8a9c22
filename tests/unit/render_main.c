/* render_cases: renders many templates in one process, for tests that compare with jinja2.
 * One JSON object a line on stdin ({"template": "...", "vars": {...}, "now": seconds}), one a line on stdout
 * ({"text": "..."} or {"error": "...", "code": -22}). Used by tests/e2e/test_render.py. */
#include "model/chat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *render(const json_t *job)
{
    const json_t *source = json_object_get(job, "template");
    struct chat_template *t = NULL;
    struct buf out = { 0 };
    char err[512] = "";
    int r = chat_template_parse(json_string_value(source), json_string_length(source), &t, err, sizeof err);
    const char *stage = "parse";
    if (r >= 0) {
        stage = "render";
        r = chat_template_render(t, json_object_get(job, "vars"),
                                 json_integer_value(json_object_get(job, "now")), &out, err, sizeof err);
    }
    json_t *answer = r < 0 ? json_pack("{s:s, s:i, s:s}", "error", err, "code", r, "stage", stage)
                           : json_pack("{s:s%}", "text", out.data ? out.data : "", out.len);
    if (!answer)
        answer = json_pack("{s:s, s:i, s:s}", "error", "the result is not text", "code", -1, "stage", stage);
    chat_template_free(t);
    buf_free(&out);
    return answer;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        if (!job) {
            fprintf(stderr, "render_cases: %s\n", e.text);
            return 2;
        }
        json_t *answer = render(job);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(job);
    }
    free(line);
    return fflush(stdout) == 0 ? 0 : 1;
}
