/* Chat: a template from its text to a tree, and from a tree and variables to a prompt. The work is done in
 * jinja_*.c. Any thread: the tree is only read after parsing, a render owns the rest. Must not know: HTTP,
 * tokens, files, clocks. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/chat.h"

#include "model/jinja_parse.h"
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char chat_template_chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}"
    "{{ message['content'] }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "{% endif %}"
    "{{ '" CHAT_CHATML_END "\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* A copy with \n for every kind of line end, and without the last one, as jinja2 reads a template. */
static char *normalized(struct jarena *mem, const char *text, size_t len, size_t *ret_len)
{
    char *copy = jarena_alloc(mem, len + 1);
    size_t n = 0;
    if (!copy)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\r') {
            c = '\n';
            i += i + 1 < len && text[i + 1] == '\n';
        }
        copy[n++] = c;
    }
    n -= n > 0 && copy[n - 1] == '\n';
    copy[n] = '\0';
    *ret_len = n;
    return copy;
}

static int check_text(const char *text, size_t len, char *err, size_t errlen)
{
    if (len > JINJA_MAX_TEMPLATE) {
        snprintf(err, errlen, "the template has %zu bytes, at most %u are read", len, JINJA_MAX_TEMPLATE);
        return -EINVAL;
    }
    if (!utf8_valid(text, len) || (len && memchr(text, '\0', len))) {
        snprintf(err, errlen, "the template is not valid UTF-8 text");
        return -EINVAL;
    }
    return 0;
}

int chat_template_parse(const char *text, size_t len, struct chat_template **ret_template, char *err,
                        size_t errlen)
{
    int r = check_text(text, len, err, errlen);
    if (r < 0)
        return r;
    struct chat_template *t = calloc(1, sizeof *t);
    struct jparser *p = calloc(1, sizeof *p);
    snprintf(err, errlen, "out of memory");
    r = -ENOMEM;
    if (!t || !p)
        goto fail;
    t->mem.max = JINJA_MAX_TREE_MEMORY;
    size_t n;
    const char *src = normalized(&t->mem, text, len, &n);
    if (!src)
        goto fail;
    p->t = t;
    jlex_init(&p->lex, src, n, &t->mem, err, errlen);
    r = jparse_template(p);
    if (r < 0)
        goto fail;
    free(p);
    *ret_template = t;
    return 0;

fail:
    free(p);
    chat_template_free(t);
    return r;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    jarena_free(&t->mem);
    free(t);
}

/* Names that no scope has: the caller's variables first, then the functions. */
static int load_globals(struct jrt *rt)
{
    struct jval *g = jalloc(rt, rt->t->nglobals, sizeof *g);
    if (!g)
        return jnomem(rt);
    for (uint32_t i = 0; i < rt->t->nglobals; i++) {
        const char *name = rt->t->globals[i]->text;
        const json_t *v = json_object_get(rt->vars, name);
        g[i] = (struct jval){ .type = J_MISSING };
        if (v)
            g[i] = jfrom_json(v);
        else
            jfunc_find(name, &g[i]);
    }
    rt->globals = g;
    return 0;
}

/* Bytes of text in v: a long conversation is written, and may be copied on the way, without being hostile. */
static size_t text_bytes(const json_t *v)
{
    size_t n = 0, i;
    const char *key;
    json_t *x;
    if (json_is_string(v))
        return json_string_length(v);
    if (json_is_array(v))
        json_array_foreach(v, i, x) n += text_bytes(x);
    if (json_is_object(v))
        json_object_foreach((json_t *)v, key, x) n += text_bytes(x);
    return n;
}

int chat_template_render(const struct chat_template *t, const json_t *vars, int64_t now_s, struct buf *out,
                         char *err, size_t errlen)
{
    struct jrt rt = { .t = t, .vars = vars, .now_s = now_s, .steps = JINJA_MAX_STEPS, .line = 1 };
    rt.err = err;
    rt.errlen = errlen;
    rt.max = JINJA_MAX_MEMORY + JINJA_MEMORY_PER_BYTE * text_bytes(vars);
    int r = load_globals(&rt);
    if (r >= 0)
        r = jscope_enter(&rt, t->scope, NULL, &rt.frame);
    if (r >= 0)
        r = jexec(&rt, t->root);
    if (r >= 0) {
        buf_append(out, rt.out.data, rt.out.len);
        r = out->failed ? -ENOMEM : 0;
        if (out->failed && out->max && rt.out.len > out->max) {
            snprintf(err, errlen, "the prompt has %zu bytes, at most %zu are wanted", rt.out.len, out->max);
            r = -E2BIG;
        }
    }
    buf_free(&rt.out);
    jarena_free(&rt.mem);
    return r;
}
