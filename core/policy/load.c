/* Load: see load.h. */
#include "policy/load.h"
#include "policy/image.h"
#include "policy/marker.h"
#include "policy/object.h"
#include "policy/probe.h"
#include "policy/selftest.h"
#include "policy/settings.h"
#include "util/digest.h"
#include "util/utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRY "slot_policy_entry"
#define FILE_MAX ((size_t)64 << 20)
#define SIZE_MAX_ABI 4096u
#define REASONS_MAX 256u
#define ERROR_SIZE 512u
#define TEXT_MAX 400u

/* What is being loaded, and what of it must be undone. */
struct loading {
    const struct policy_load_options *o;
    char *bytes;
    size_t len;
    struct policy_head head;
    char digest[2 * DIGEST_LEN + 1];
    struct policy_object *object;
    const struct slot_policy *entry;
    struct policy_settings *settings;
    void *self;
    struct policy_marker marker;
    char *err;
    size_t errlen;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct loading *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(l->err, l->errlen, format, args);
    va_end(args);
    return -ENOEXEC;
}

static int refuse_errno(struct loading *l, int r)
{
    snprintf(l->err, l->errlen, "%s", r == -ENOMEM ? "out of memory" : strerror(-r));
    return r;
}

/* ---- the bytes ---- */

static int read_bytes(struct loading *l, int fd)
{
    size_t cap = 0;
    for (;;) {
        if (l->len == cap) {
            cap = cap ? 2 * cap : (size_t)64 << 10;
            char *more = cap <= FILE_MAX ? realloc(l->bytes, cap) : NULL;
            if (!more)
                return cap > FILE_MAX ? refuse(l, "larger than %zu MiB", FILE_MAX >> 20)
                                      : refuse_errno(l, -ENOMEM);
            l->bytes = more;
        }
        ssize_t n = read(fd, l->bytes + l->len, cap - l->len);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return refuse_errno(l, -errno);
        if (n > 0)
            l->len += (size_t)n;
    }
}

static int read_file(struct loading *l)
{
    struct stat st;
    /* Not waiting for whoever might write to a pipe of that name. */
    int r, fd = open(l->o->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return refuse_errno(l, -errno);
    if (fstat(fd, &st) < 0)
        r = refuse_errno(l, -errno);
    else if (!S_ISREG(st.st_mode))
        r = refuse(l, "not a regular file");
    else
        r = read_bytes(l, fd);
    close(fd);
    return r;
}

/* ---- the entry, before anything of it runs ---- */

static int check_versions(struct loading *l)
{
    const struct policy_head *h = &l->head;
    if (h->magic != POLICY_MAGIC)
        return refuse(l, "not a policy: " ENTRY " begins with %016llx, a policy's with %016llx",
                      (unsigned long long)h->magic, (unsigned long long)POLICY_MAGIC);
    if (h->abi_major != POLICY_ABI_MAJOR)
        return refuse(l, "ABI %u.%u, this server speaks %u.%u", h->abi_major, h->abi_minor, POLICY_ABI_MAJOR,
                      POLICY_ABI_MINOR);
    if (h->needs_minor > POLICY_ABI_MINOR)
        return refuse(l, "it needs ABI %u.%u, this server speaks %u.%u", h->abi_major, h->needs_minor,
                      POLICY_ABI_MAJOR, POLICY_ABI_MINOR);
    return 0;
}

static int check_sizes(struct loading *l, uint64_t symbol_size)
{
    const struct policy_head *h = &l->head;
    const uint32_t sizes[] = { h->size_snapshot, h->size_history,    h->size_group,  h->size_returns,
                               h->size_request,  h->size_place,      h->size_park,   h->size_state,
                               h->size_worth,    h->size_set,        h->size_reason, h->size_setting,
                               h->size_value,    h->size_create_args };
    if (h->size > symbol_size)
        return refuse(l, ENTRY " says it has %u bytes, the file has %llu of it", h->size,
                      (unsigned long long)symbol_size);
    if (h->size < offsetof(struct slot_policy, place))
        return refuse(l, ENTRY " says it has %u bytes, at least %zu are needed", h->size,
                      offsetof(struct slot_policy, place));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > SIZE_MAX_ABI)
            return refuse(l, "one of its structs has %u bytes, at most %u are allowed", sizes[i],
                          SIZE_MAX_ABI);
    /* The rows of its own tables are read at these distances. */
    if (h->size_reason < sizeof(struct policy_reason) || h->size_reason % 8 ||
        h->size_setting < sizeof(struct policy_setting) || h->size_setting % 8)
        return refuse(l, "rows of its tables have %u and %u bytes, at least %zu and %zu are needed",
                      h->size_reason, h->size_setting, sizeof(struct policy_reason),
                      sizeof(struct policy_setting));
    return 0;
}

static int check_file(struct loading *l)
{
    struct policy_image_symbol symbol;
    int r = policy_image_find(l->bytes, l->len, ENTRY, &symbol, l->err, l->errlen);
    if (r < 0)
        return r;
    if (symbol.size < sizeof l->head)
        return refuse(l, ENTRY " has %llu bytes, a policy's has at least %zu",
                      (unsigned long long)symbol.size, sizeof l->head);
    memcpy(&l->head, l->bytes + symbol.offset, sizeof l->head);
    r = check_versions(l);
    if (r == 0)
        r = check_sizes(l, symbol.size);
    if (r == 0) {
        uint8_t digest[DIGEST_LEN];
        digest_sha256(l->bytes, l->len, digest);
        digest_hex(digest, l->digest);
    }
    return r;
}

/* ---- the tables, once it is open ---- */

static bool is_name(const char *name, const char *letters)
{
    size_t n = name ? strspn(name, letters) : 0;
    return n >= 1 && n < POLICY_NAME_SIZE && !name[n];
}

/* One line of UTF-8 that is not too long. */
static bool is_text(const char *text)
{
    size_t n = text ? strnlen(text, TEXT_MAX + 1) : TEXT_MAX + 1;
    for (size_t i = 0; n <= TEXT_MAX && i < n; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return false;
    return n <= TEXT_MAX && utf8_valid(text, n);
}

static int check_reasons(struct loading *l)
{
    const struct slot_policy *e = l->entry;
    if (!e->n_reasons || e->n_reasons > REASONS_MAX || !e->reasons)
        return refuse(l, "%u reasons, where 1..%u are allowed", e->n_reasons, REASONS_MAX);
    for (uint32_t i = 0; i < e->n_reasons; i++) {
        const struct policy_reason *reason =
            (const void *)((const char *)e->reasons + (size_t)i * e->head.size_reason);
        if (!is_name(reason->name, "abcdefghijklmnopqrstuvwxyz0123456789_"))
            return refuse(l, "reason %u has no name of [a-z0-9_]{1,31}", i);
        if (!is_text(reason->sentence))
            return refuse(l, "reason %s has no sentence of at most %u bytes in one line", reason->name,
                          TEXT_MAX);
    }
    return 0;
}

static int check_entry(struct loading *l)
{
    const struct slot_policy *e = l->entry;
    if (!is_name(e->name, "abcdefghijklmnopqrstuvwxyz0123456789_-"))
        return refuse(l, "it has no name of [a-z0-9_-]{1,31}");
    if (!is_text(e->version) || !is_text(e->summary))
        return refuse(l, "%s has no version or summary of at most %u bytes in one line", e->name, TEXT_MAX);
    if (!e->create)
        return refuse(l, "%s has no create", e->name);
    int r = check_reasons(l);
    return r < 0 ? r : policy_settings_check_table(e, l->err, l->errlen) < 0 ? -ENOEXEC : 0;
}

/* ---- in this process ---- */

static int open_object(struct loading *l)
{
    policy_marker_enter(&l->marker, "unnamed", "constructor", 0);
    int r = policy_object_open(l->object, l->err, l->errlen);
    policy_marker_leave(&l->marker);
    if (r < 0)
        return r;
    l->entry = policy_object_symbol(l->object, ENTRY);
    /* What was checked in the file must be what the dynamic linker made of it. */
    if (!l->entry || memcmp(&l->entry->head, &l->head, sizeof l->head) != 0)
        return refuse(l, ENTRY " is not what the file says");
    return check_entry(l);
}

static int create(struct loading *l)
{
    struct {
        struct policy_create_args args;
        char beyond[SIZE_MAX_ABI];
    } laid = { 0 };
    char text[ERROR_SIZE] = "";
    laid.args.size =
        l->head.size_create_args > sizeof laid.args ? l->head.size_create_args : (uint32_t)sizeof laid.args;
    laid.args.n_values = l->entry->n_settings;
    laid.args.values = policy_settings_values(l->settings, &laid.args.value_stride);
    laid.args.error = text;
    laid.args.error_size = sizeof text;
    policy_marker_enter(&l->marker, l->entry->name, "create", 0);
    l->self = l->entry->create(&laid.args);
    policy_marker_leave(&l->marker);
    text[sizeof text - 1] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (l->self)
        return 0;
    return *text ? refuse(l, "create: %s", text) : refuse(l, "create: failed without a reason");
}

static void undo(struct loading *l)
{
    if (l->self && l->entry->destroy)
        l->entry->destroy(l->self);
    policy_settings_free(l->settings);
    policy_object_free(l->object);
}

static int make(struct loading *l, struct policy_loaded **ret_policy)
{
    struct policy_loaded_parts parts = {
        .entry = l->entry,
        .self = l->self,
        .object = l->object,
        .settings = l->settings,
        .path = l->o->path,
        .digest = l->digest,
        .graveyard = l->o->graveyard,
    };
    int r = policy_loaded_new(&parts, ret_policy);
    if (r < 0)
        return refuse_errno(l, r);
    l->self = NULL; /* all is the policy's now */
    l->object = NULL;
    l->settings = NULL;
    r = policy_selftest(*ret_policy, l->err, l->errlen);
    if (r < 0) {
        policy_loaded_unref(*ret_policy);
        if (l->o->graveyard) /* this is the thread that may */
            policy_graveyard_bury(l->o->graveyard);
    }
    return r;
}

int policy_load(const struct policy_load_options *o, struct policy_loaded **ret_policy, char *err,
                size_t errlen)
{
    struct loading l = { .o = o, .err = err, .errlen = errlen };
    struct policy_object_options how = { .private_dir = o->private_dir, .no_memfd = o->no_memfd };
    struct policy_loaded *p = NULL;
    bool settings_refused = false;
    int r = read_file(&l);
    if (r == 0)
        r = check_file(&l);
    if (r == 0)
        r = policy_object_new(l.bytes, l.len, &how, &l.object, err, errlen);
    free(l.bytes);
    if (r == 0 && o->probe_program) {
        r = policy_probe(o, policy_object_fd(l.object), err, errlen);
        settings_refused = r == -EDOM;
        if (settings_refused)
            r = 0;
    }
    if (r == 0)
        r = open_object(&l);
    if (r == 0)
        r = policy_settings_new(l.entry, o, &l.settings, err, errlen);
    if (r == 0 && settings_refused)
        r = refuse(&l, "probe: refused its settings");
    if (r == 0)
        r = create(&l);
    if (r == 0)
        r = make(&l, &p);
    if (r < 0)
        undo(&l);
    else
        *ret_policy = p;
    return r;
}
