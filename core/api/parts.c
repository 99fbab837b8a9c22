/* Parts: what an answer says. On the scheduler's thread text becomes pieces (model/answer.h); on the event
 * thread pieces become the parts of a choice, of which streams are told as they grow. Tests:
 * tests/e2e/test_tools.py, test_reasoning.py */
#include "api/private.h"
#include "util/rng.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the scheduler's thread ---- */

struct pieces {
    struct api_piece *list;
    size_t n, cap;
    struct buf text;
    bool failed;
};

static void take_piece(void *arg, enum answer_kind kind, const char *text, size_t len)
{
    struct pieces *p = arg;
    if (p->n == p->cap) {
        size_t cap = p->cap * 2 + 4;
        struct api_piece *list = realloc(p->list, cap * sizeof *list);
        if (!list) {
            p->failed = true;
            return;
        }
        p->list = list;
        p->cap = cap;
    }
    p->list[p->n++] = (struct api_piece){ kind, len };
    if (len)
        buf_append(&p->text, text, len);
}

static void read_text(struct api_choice *c, const struct sched_event *ev, bool finish, struct pieces *p)
{
    if (!c->answer && ev->text_len)
        take_piece(p, ANSWER_TEXT, ev->text, ev->text_len);
    if (c->answer && ev->text_len && answer_feed(c->answer, ev->text, ev->text_len, take_piece, p) < 0)
        p->failed = true;
    if (c->answer && finish && answer_finish(c->answer, take_piece, p) < 0)
        p->failed = true;
}

_Static_assert(sizeof(struct api_message) % _Alignof(struct api_piece) == 0 &&
                   sizeof(struct api_piece) % _Alignof(struct sched_token) == 0,
               "what lies behind one another is aligned");

struct api_message *parts_message(struct api_choice *c, const struct sched_event *ev, bool finish)
{
    struct pieces p = { 0 };
    read_text(c, ev, finish, &p);
    size_t tokens = ev->n_tokens * sizeof *ev->tokens, pieces = p.n * sizeof *p.list;
    struct api_message *m =
        p.failed || p.text.failed ? NULL : calloc(1, sizeof *m + tokens + pieces + p.text.len);
    if (m) {
        m->pieces = (struct api_piece *)(void *)(m + 1); /* first: they have the largest alignment */
        m->tokens = (struct sched_token *)(void *)((char *)(m + 1) + pieces);
        m->text = (char *)(m + 1) + pieces + tokens;
        if (tokens)
            memcpy(m->tokens, ev->tokens, tokens);
        if (pieces)
            memcpy(m->pieces, p.list, pieces);
        if (p.text.len)
            memcpy(m->text, p.text.data, p.text.len);
        m->n_tokens = ev->n_tokens;
        m->n_pieces = p.n;
    }
    free(p.list);
    buf_free(&p.text);
    return m;
}

/* ---- the event thread ---- */

static struct api_part *last_part(const struct api_choice *c)
{
    return c->n_parts ? &c->parts[c->n_parts - 1] : NULL;
}

void parts_close(struct api_choice *c)
{
    if (c->n_parts)
        last_part(c)->closed = true;
}

static struct api_part *open_part(struct api_choice *c, enum api_part_kind kind)
{
    parts_close(c);
    struct api_part *list = realloc(c->parts, (c->n_parts + 1) * sizeof *list);
    if (!list)
        return NULL;
    c->parts = list;
    struct api_part *p = &list[c->n_parts++];
    *p = (struct api_part){ .kind = kind };
    return p;
}

static bool add_text(struct api_choice *c, enum api_part_kind kind, const char *text, size_t len)
{
    struct api_part *p = last_part(c);
    if (!p || p->kind != kind || p->closed)
        p = open_part(c, kind);
    if (!p)
        return false;
    buf_append(&p->text, text, len);
    return !p->text.failed;
}

static bool open_call(struct exchange *ex, struct api_choice *c, const char *name, size_t len)
{
    struct api_part *p = open_part(c, PART_CALL);
    if (!p)
        return false;
    p->index = c->n_calls++;
    snprintf(p->id, sizeof p->id, "%s%016" PRIx64 "%08" PRIx32, ex->endpoint->call_prefix, rng_system_seed(),
             (uint32_t)rng_system_seed());
    p->name = malloc(len + 1);
    if (!p->name)
        return false;
    memcpy(p->name, name, len);
    p->name[len] = '\0';
    return true;
}

/* Nobody has been told of a call that broke when the answer is given whole: it is the text it was. */
static bool unmake_call(struct api_choice *c, const char *source, size_t len)
{
    struct api_part *p = last_part(c);
    free(p->name);
    buf_free(&p->text);
    c->n_parts--;
    c->n_calls--;
    p = last_part(c);
    if (p && p->kind == PART_TEXT)
        p->closed = false;
    return add_text(c, PART_TEXT, source, len);
}

static bool take(struct exchange *ex, struct api_choice *c, enum answer_kind kind, const char *text,
                 size_t len)
{
    struct api_part *p = last_part(c);
    switch (kind) {
    case ANSWER_REASONING:
        return add_text(c, PART_REASONING, text, len);
    case ANSWER_TEXT:
        return add_text(c, PART_TEXT, text, len);
    case ANSWER_CALL:
        return open_call(ex, c, text, len);
    case ANSWER_ARGUMENTS:
        buf_append(&p->text, text, len);
        return !p->text.failed;
    case ANSWER_CALL_END:
        c->n_complete++;
        p->closed = true;
        return true;
    case ANSWER_CALL_BROKEN:
        if (!ex->request.stream)
            return unmake_call(c, text, len);
        p->closed = p->broken = true;
        return true;
    }
    return true;
}

bool parts_take(struct exchange *ex, struct api_choice *c, const struct api_message *m)
{
    const char *text = m->text;
    bool ok = true;
    for (size_t i = 0; ok && i < m->n_pieces; i++) {
        ok = take(ex, c, m->pieces[i].kind, text, m->pieces[i].len);
        text += m->pieces[i].len;
        if (m->pieces[i].kind == ANSWER_REASONING)
            c->reasoning_tokens = m->timings.generated;
    }
    return ok;
}

static void flush_part(struct exchange *ex, struct api_choice *c, struct api_part *p)
{
    const struct endpoint *e = ex->endpoint;
    if (!p->begun && e->part_begin)
        e->part_begin(ex, c, p, &ex->out);
    p->begun = true;
    if (p->text.len > p->written)
        e->part_delta(ex, c, p, p->text.data + p->written, p->text.len - p->written, &ex->out);
    p->written = p->text.len;
    if (p->closed && e->part_end)
        e->part_end(ex, c, p, &ex->out);
    p->told = p->closed;
}

void parts_flush(struct exchange *ex, struct api_choice *c)
{
    while (c->n_told < c->n_parts) {
        struct api_part *p = &c->parts[c->n_told];
        flush_part(ex, c, p);
        if (!p->told)
            break;
        c->n_told++;
    }
}

void parts_clear(struct api_choice *c)
{
    for (size_t i = 0; i < c->n_parts; i++) {
        free(c->parts[i].name);
        buf_free(&c->parts[i].text);
    }
    free(c->parts);
    answer_free(c->answer);
    free(c->done_message);
    for (int k = 0; k < API_LP_LISTS; k++)
        buf_free(&c->lp[k]);
}

void parts_write(const struct api_choice *c, enum api_part_kind kind, struct buf *out)
{
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            jsonout_escape(out, c->parts[i].text.data, c->parts[i].text.len);
}

bool parts_have(const struct api_choice *c, enum api_part_kind kind)
{
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            return true;
    return false;
}

bool parts_call(const struct api_choice *c)
{
    return c->n_complete && (c->stop == SCHED_STOP_EOG || c->stop == SCHED_STOP_STRING);
}

bool parts_cut(const struct api_choice *c)
{
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].broken)
            return true;
    return c->stop == SCHED_STOP_LENGTH;
}
