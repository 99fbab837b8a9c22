/* Saved: POST /slots/{id}?action=save|restore|erase, in llama.cpp's shapes: conversations to files and back.
 * Saving and restoring wait for the disk: they have a thread of their own, one at a time. Errors tell what is
 * wrong with a file, never what is in it. Tests: tests/e2e/test_slot_files.py */
#include "api/private.h"
#include "sched/slotio.h"
#include "util/jsonx.h"
#include "util/log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 4, 5))) static void fail(struct exchange *ex, int status, const char *param,
                                                       const char *fmt, ...)
{
    char text[sizeof ex->error.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    api_fail(ex, param, "%s", text);
    ex->error.status = status;
    if (status >= 500)
        ex->error.type = "server_error";
}

/* The slot that the path names: a number, or main, which answers call -1. */
static bool read_slot(struct exchange *ex, int32_t *ret)
{
    const char *text = http_path_rest(ex->http);
    uint32_t slots = ex->api->o.slots;
    char *end;
    if (strcmp(text, "main") == 0 || strcmp(text, "-1") == 0) {
        *ret = SCHED_MAIN;
        return true;
    }
    unsigned long n = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && n < slots) {
        *ret = (int32_t)n;
        return true;
    }
    fail(ex, 404, "id_slot", "id_slot: \"%.60s\" where 0 to %u or main is wanted", text, slots - 1);
    return false;
}

static bool read_body(struct exchange *ex, json_t *body)
{
    if (fields_read(ex, body) && !ex->request.filename)
        api_fail(ex, "filename", "filename: the body must have one: {\"filename\": \"name\"}");
    return !ex->error.status;
}

/* How the scheduler's answer and the disk's become HTTP's. */
static int status_of(int r, bool restores)
{
    switch (r) {
    case -EBUSY:
        return 409;
    case -ENODATA:
        return 400;
    case -ENOENT: /* a folder that is gone is the operator's to mend */
        return restores ? 404 : 500;
    case -EINVAL:
    case -EISDIR:
    case -ELOOP:
        return 422;
    case -ENOSPC:
    case -EDQUOT:
    case -EFBIG:
        return 507;
    case -ENOMEM:
    case -ECANCELED:
        return 503;
    default:
        return 500;
    }
}

static bool about_name(int r, bool restores)
{
    return r == -EINVAL || r == -EISDIR || (restores && r == -ENOENT);
}

static void log_outcome(const struct exchange *ex, const char *action, int32_t slot, const char *name,
                        const struct sched_slot_done *done)
{
    char quoted[320];
    if (ex->error.status)
        log_write(LOG_WARN, action, "slot=%d file=%s status=%d reason=%s", slot, name, ex->error.status,
                  log_quote(quoted, sizeof quoted, ex->error.message));
    else
        log_write(LOG_INFO, action, "slot=%d file=%s tokens=%u bytes=%llu ms=%.0f", slot, name, done->tokens,
                  (unsigned long long)done->bytes, done->ms);
}

static bool is_left(void *arg)
{
    struct exchange *ex = arg;
    return atomic_load(&ex->left);
}

static void write_reply(struct exchange *ex, bool restores, int32_t slot, const char *name,
                        const struct sched_slot_done *done)
{
    buf_printf(&ex->reply,
               "{\"id_slot\":%d,\"filename\":\"%s\",\"%s\":%u,\"%s\":%llu,\"timings\":{\"%s\":%.3f}", slot,
               name, restores ? "n_restored" : "n_saved", done->tokens, restores ? "n_read" : "n_written",
               (unsigned long long)done->bytes, restores ? "restore_ms" : "save_ms", done->ms);
    buf_printf(&ex->reply, ",\"turn_tokens\":%u,\"turns\":%u}", done->turn_tokens, done->turns);
}

static void read_files(struct exchange *ex, json_t *body, bool restores)
{
    const struct api_options *o = &ex->api->o;
    struct sched_slot_call c = { .dir = o->save_dir, .kind = o->slot_kind, .stop = is_left, .arg = ex };
    struct sched_slot_done done = { 0 };
    char err[400] = "";
    if (o->save_dir < 0) {
        fail(ex, 501, NULL, "this server keeps no conversations in files: cache.save_dir names no folder");
        return;
    }
    if (!read_slot(ex, &c.slot) || !read_body(ex, body))
        return;
    c.name = ex->request.filename;
    /* With a cache_salt only a conversation of requests with the same one is restored: their salt is this
     * one's. */
    if (restores && !json_is_null(json_object_get(body, "cache_salt")) && json_object_get(body, "cache_salt"))
        c.salt = &ex->identity.salt;
    int r = restores ? sched_slot_restore(o->sched, &c, &done, err, sizeof err)
                     : sched_slot_save(o->sched, &c, &done, err, sizeof err);
    if (r < 0)
        fail(ex, status_of(r, restores), about_name(r, restores) ? "filename" : NULL, "%s", err);
    else
        write_reply(ex, restores, c.slot, c.name, &done);
    log_outcome(ex, restores ? "restore" : "save", c.slot, c.name, &done);
}

static void read_save(struct exchange *ex, json_t *body)
{
    read_files(ex, body, false);
}

static void read_restore(struct exchange *ex, json_t *body)
{
    read_files(ex, body, true);
}

static void read_erase(struct exchange *ex, json_t *body)
{
    int32_t slot;
    struct sched_slot_done done = { 0 };
    char err[400] = "";
    (void)body;
    if (!read_slot(ex, &slot))
        return;
    int r = sched_slot_erase(ex->api->o.sched, slot, &done.tokens, err, sizeof err);
    if (r < 0)
        fail(ex, status_of(r, false), NULL, "%s", err);
    else
        buf_printf(&ex->reply, "{\"id_slot\":%d,\"n_erased\":%u}", slot, done.tokens);
    log_outcome(ex, "erase", slot, "-", &done);
}

static const struct endpoint saves = { .name = "save", .fields = FIELDS_SAVE, .read = read_save };
static const struct endpoint restores = { .name = "restore", .fields = FIELDS_RESTORE, .read = read_restore };
static const struct endpoint erases = { .name = "erase", .may_be_empty = true, .read = read_erase };

void api_on_slot_action(struct http_request *r, void *arg)
{
    struct api *a = arg;
    const char *action = http_query(r, "action");
    if (action && strcmp(action, "save") == 0) {
        exchange_start(a, &saves, &a->files, r);
    } else if (action && strcmp(action, "restore") == 0) {
        exchange_start(a, &restores, &a->files, r);
    } else if (action && strcmp(action, "erase") == 0) {
        exchange_start(a, &erases, &a->workers, r);
    } else {
        char text[160];
        snprintf(text, sizeof text, "action: %s%.60s%s where save, restore or erase is wanted",
                 action ? "\"" : "", action ? action : "missing", action ? "\"" : "");
        http_reply_error(r, 400, "invalid_request_error", text, "action", NULL);
        http_done(r);
    }
}
