/* Slot io: see slotio.h. Pieces go through one buffer: filled by the scheduler and written to the file, or
 * read from the file and emptied by the scheduler. */
#include "sched/slotio.h"
#include "sched/private.h"
#include "util/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES (4u << 20)

/* One conversation on its way. */
struct carry {
    struct sched *s;
    const struct sched_slot_call *c;
    struct slotfile *file;
    struct slotfile_history history;
    int32_t *tokens;
    size_t token_bytes;
    unsigned char *buffer;
    uint32_t room; /* tokens of whole pieces that the buffer takes */
};

void sched_slot_kind(const struct engine *e, const char *model_name, struct slotfile_kind *ret_kind)
{
    struct session_io_kind kind;
    session_io_kind(e, &kind);
    snprintf(ret_kind->model_name, sizeof ret_kind->model_name, "%s", model_name);
    snprintf(ret_kind->kv_type, sizeof ret_kind->kv_type, "%s", kind.kv_type);
    snprintf(ret_kind->arithmetic, sizeof ret_kind->arithmetic, "%s", kind.arithmetic);
    ret_kind->token_bytes = kind.token_bytes;
}

static struct visit_call call_of(const struct carry *x, enum visit_what what)
{
    return (struct visit_call){
        .what = what,
        .index = x->c->slot == SCHED_MAIN ? x->s->h.n : (uint32_t)x->c->slot,
        .bytes = x->buffer,
        .size = (size_t)x->room * x->token_bytes,
        .token_bytes = x->token_bytes,
        .history = x->history,
        .tokens = x->tokens,
    };
}

static int visit(const struct carry *x, struct visit_call *v, char *err, size_t errlen)
{
    int r = visits_call(x->s, v);
    if (r < 0)
        snprintf(err, errlen, "%s", v->err);
    return r;
}

static int begin(struct carry *x, struct sched *s, const struct sched_slot_call *c, char *err, size_t errlen)
{
    size_t piece = c->kind->token_bytes * SESSION_IO_TOKENS;
    size_t pieces = piece < BUFFER_BYTES ? BUFFER_BYTES / piece : 1;
    *x = (struct carry){ .s = s, .c = c, .token_bytes = c->kind->token_bytes };
    x->room = (uint32_t)pieces * SESSION_IO_TOKENS;
    x->buffer = malloc(pieces * piece);
    if (x->buffer)
        return 0;
    snprintf(err, errlen, "out of memory");
    return -ENOMEM;
}

static void end(struct carry *x)
{
    slotfile_close(x->file);
    free(x->tokens);
    free(x->buffer);
}

static bool is_stopped(const struct carry *x, char *err, size_t errlen)
{
    if (!x->c->stop || !x->c->stop(x->c->arg))
        return false;
    snprintf(err, errlen, "it was given up: nobody waits for it any more");
    return true;
}

static struct sched_slot_done done_of(const struct carry *x, uint64_t bytes, uint64_t begin_ns)
{
    return (struct sched_slot_done){ .tokens = x->history.n_tokens,
                                     .turn_tokens = x->history.turn_tokens,
                                     .turns = x->history.turns,
                                     .bytes = bytes,
                                     .ms = (double)(clock_now_ns() - begin_ns) / (double)NS_PER_MS };
}

int sched_slot_erase(struct sched *s, int32_t slot, uint32_t *ret_tokens, char *err, size_t errlen)
{
    const struct sched_slot_call c = { .slot = slot };
    const struct carry x = { .s = s, .c = &c };
    struct visit_call v = call_of(&x, VISIT_ERASE);
    int r = visit(&x, &v, err, errlen);
    if (r == 0)
        *ret_tokens = v.n;
    return r;
}

/* ---- out ---- */

static int write_pieces(struct carry *x, uint32_t n, char *err, size_t errlen)
{
    int r = 0;
    for (uint32_t at = 0, k; r == 0 && at < n; at += k) {
        k = n - at < SESSION_IO_TOKENS ? n - at : SESSION_IO_TOKENS;
        r = slotfile_write(x->file, x->buffer + at * x->token_bytes, k, err, errlen);
    }
    return r;
}

static int carry_out(struct carry *x, uint64_t *ret_bytes, char *err, size_t errlen)
{
    int r = slotfile_create(x->c->dir, x->c->name, x->c->kind, &x->history, x->tokens, &x->file, err, errlen);
    for (uint32_t at = 0; r == 0 && at < x->history.n_tokens;) {
        if (is_stopped(x, err, errlen))
            return -ECANCELED;
        struct visit_call v = call_of(x, VISIT_GET);
        v.at = at;
        r = visit(x, &v, err, errlen);
        if (r == 0)
            r = write_pieces(x, v.n, err, errlen);
        at += v.n;
    }
    return r < 0 ? r : slotfile_finish(x->file, ret_bytes, err, errlen);
}

int sched_slot_save(struct sched *s, const struct sched_slot_call *c, struct sched_slot_done *ret, char *err,
                    size_t errlen)
{
    uint64_t begin_ns = clock_now_ns(), bytes = 0;
    struct carry x;
    int r = begin(&x, s, c, err, errlen);
    if (r < 0)
        return r;
    struct visit_call v = call_of(&x, VISIT_LEAVE);
    r = visit(&x, &v, err, errlen);
    if (r == 0) {
        x.tokens = v.tokens;
        x.history = v.history;
        x.history.saved_s = clock_wall_ns() / NS_PER_S;
        r = carry_out(&x, &bytes, err, errlen);
        v.what = VISIT_END;
        (void)visits_call(s, &v);
    }
    if (r == 0)
        *ret = done_of(&x, bytes, begin_ns);
    end(&x);
    return r;
}

/* ---- in ---- */

static int read_pieces(struct carry *x, uint32_t *ret_n, char *err, size_t errlen)
{
    uint32_t n = 0, k = SESSION_IO_TOKENS;
    int r = 0;
    while (r == 0 && k == SESSION_IO_TOKENS && n + SESSION_IO_TOKENS <= x->room) {
        r = slotfile_read(x->file, x->buffer + n * x->token_bytes, &k, err, errlen);
        n += r == 0 ? k : 0;
    }
    *ret_n = n;
    return r;
}

/* Hands over what is in the buffer, as often as it takes. */
static int put_pieces(struct carry *x, uint32_t from, uint32_t n, char *err, size_t errlen)
{
    int r = 0;
    for (uint32_t at = 0; r == 0 && at < n;) {
        if (is_stopped(x, err, errlen))
            return -ECANCELED;
        struct visit_call v = call_of(x, VISIT_PUT);
        v.bytes += at * x->token_bytes;
        v.at = from + at;
        v.n = n - at;
        r = visit(x, &v, err, errlen);
        at += v.taken;
    }
    return r;
}

static int carry_in(struct carry *x, char *err, size_t errlen)
{
    int r;
    uint32_t at = 0, n;
    do {
        r = read_pieces(x, &n, err, errlen);
        if (r == 0)
            r = put_pieces(x, at, n, err, errlen);
        at += n;
    } while (r == 0 && n == x->room);
    if (r == 0 && is_stopped(x, err, errlen))
        r = -ECANCELED;
    if (r < 0)
        return r;
    struct visit_call v = call_of(x, VISIT_COMMIT);
    return visit(x, &v, err, errlen);
}

static int open_file(struct carry *x, char *err, size_t errlen)
{
    const struct sched_slot_call *c = x->c;
    const struct slotfile_limits limits = { .kind = c->kind,
                                            .context = x->s->o.context,
                                            .n_vocab = x->s->n_vocab };
    int r = slotfile_open(c->dir, c->name, &limits, &x->file, &x->history, &x->tokens, err, errlen);
    if (r < 0 || !c->salt || *c->salt == x->history.salt)
        return r;
    snprintf(err, errlen, "%s: it was saved with another salt: its conversation belongs to others", c->name);
    return -EINVAL;
}

int sched_slot_restore(struct sched *s, const struct sched_slot_call *c, struct sched_slot_done *ret,
                       char *err, size_t errlen)
{
    uint64_t begin_ns = clock_now_ns();
    struct carry x;
    int r = begin(&x, s, c, err, errlen);
    if (r < 0)
        return r;
    r = open_file(&x, err, errlen);
    if (r == 0) {
        struct visit_call v = call_of(&x, VISIT_ENTER);
        r = visit(&x, &v, err, errlen);
        if (r == 0) {
            r = carry_in(&x, err, errlen);
            v.what = VISIT_END;
            (void)visits_call(s, &v);
        }
    }
    if (r == 0)
        *ret = done_of(&x, slotfile_bytes(x.file), begin_ns);
    end(&x);
    return r;
}
