/* Slot file: see slotfile.h. */
#include "sched/slotfile.h"
#include "util/checksum.h"
#include "util/rng.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "berthkv\n"
#define VERSION 1u
#define SUM_BYTES 8u
#define UNFINISHED_DIGITS 16u /* behind a '~', which no name has */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "keys and values are written as they lie in memory");

struct slotfile {
    int dir, fd;
    char name[SLOTFILE_NAME_MAX + 1];
    char unfinished[SLOTFILE_NAME_MAX + 20]; /* its name while it is written; "": it is not */
    uint64_t sum, bytes;
    uint32_t n_tokens, at; /* tokens whose pieces are written or read */
    size_t token_bytes;
};

static int fail(const struct slotfile *f, int r, const char *what, char *err, size_t errlen)
{
    snprintf(err, errlen, "%s: %s: %s", f->name, what, strerror(-r));
    return r;
}

__attribute__((format(printf, 4, 5))) static int refuse(const struct slotfile *f, char *err, size_t errlen,
                                                        const char *fmt, ...)
{
    char why[320];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    snprintf(err, errlen, "%s: %s", f->name, why);
    return -EINVAL;
}

int slotfile_check_name(const char *name, char *err, size_t errlen)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(name);
    if (n >= 1 && n <= SLOTFILE_NAME_MAX && strspn(name, allowed) == n && strcmp(name, ".") &&
        strcmp(name, ".."))
        return 0;
    snprintf(err, errlen,
             "a name of 1 to %u letters, digits, '.', '_' and '-' is wanted, not \".\" or \"..\"",
             SLOTFILE_NAME_MAX);
    return -EINVAL;
}

static int file_new(int dir, const char *name, struct slotfile **ret_file, char *err, size_t errlen)
{
    int r = slotfile_check_name(name, err, errlen);
    if (r < 0)
        return r;
    struct slotfile *f = calloc(1, sizeof *f);
    if (!f) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    f->dir = dir;
    f->fd = -1;
    snprintf(f->name, sizeof f->name, "%s", name);
    *ret_file = f;
    return 0;
}

void slotfile_close(struct slotfile *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (*f->unfinished)
        unlinkat(f->dir, f->unfinished, 0);
    free(f);
}

static bool is_unfinished(const char *name)
{
    const char *mark = strrchr(name, '~');
    return mark && strlen(mark + 1) == UNFINISHED_DIGITS &&
           strspn(mark + 1, "0123456789abcdef") == UNFINISHED_DIGITS;
}

static bool remove_left_over(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool removed = flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir, name, 0) == 0;
    close(fd);
    return removed;
}

uint32_t slotfile_sweep(int dir)
{
    /* A descriptor of its own: reading moves it, and closedir closes it. */
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    uint32_t n = 0;
    if (!list) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    for (const struct dirent *e; (e = readdir(list));)
        n += is_unfinished(e->d_name) && remove_left_over(dir, e->d_name);
    closedir(list);
    return n;
}

uint64_t slotfile_bytes(const struct slotfile *f)
{
    return f->bytes;
}

static uint64_t whole_size(uint32_t n_tokens, size_t token_bytes)
{
    uint64_t pieces = ((uint64_t)n_tokens + SESSION_IO_TOKENS - 1) / SESSION_IO_TOKENS;
    return SLOTFILE_HEADER + n_tokens * (sizeof(int32_t) + (uint64_t)token_bytes) + (pieces + 1) * SUM_BYTES;
}

/* ---- the header ---- */

/* Writes or reads the header's fields in order: one list for both directions. */
struct cursor {
    unsigned char *at;
    bool reads;
};

static void bytes(struct cursor *c, void *field, size_t n)
{
    if (c->reads)
        memcpy(field, c->at, n);
    else
        memcpy(c->at, field, n);
    c->at += n;
}

struct header {
    char magic[8];
    uint32_t version, size;
    struct slotfile_kind kind;
    struct slotfile_history h;
};

static void header_fields(struct cursor *c, struct header *x)
{
    struct slotfile_history *h = &x->h;
    uint32_t *const numbers[] = { &h->n_tokens,    &h->turn_tokens,   &h->turns,
                                  &h->stop_reason, &h->prompt_tokens, &h->request_flags };
    uint32_t cut = h->cut;
    bytes(c, x->magic, sizeof x->magic);
    bytes(c, &x->version, sizeof x->version);
    bytes(c, &x->size, sizeof x->size);
    bytes(c, x->kind.model, sizeof x->kind.model);
    bytes(c, x->kind.tokenizer, sizeof x->kind.tokenizer);
    bytes(c, x->kind.model_name, sizeof x->kind.model_name);
    bytes(c, x->kind.kv_type, sizeof x->kind.kv_type);
    bytes(c, x->kind.arithmetic, sizeof x->kind.arithmetic);
    bytes(c, &x->kind.token_bytes, sizeof x->kind.token_bytes);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        bytes(c, numbers[i], sizeof *numbers[i]);
    bytes(c, &cut, sizeof cut);
    bytes(c, &h->salt, sizeof h->salt);
    bytes(c, &h->saved_s, sizeof h->saved_s);
    h->cut = cut;
}

/* ---- writing ---- */

static int write_all(struct slotfile *f, const void *data, size_t len, char *err, size_t errlen)
{
    const char *p = data;
    while (len) {
        ssize_t n = write(f->fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(f, -errno, "cannot be written", err, errlen);
        p += n;
        len -= (size_t)n;
        f->bytes += (size_t)n;
    }
    return 0;
}

/* The data and the sum that continues the last one. */
static int write_summed(struct slotfile *f, const void *data, size_t len, char *err, size_t errlen)
{
    f->sum = checksum64(f->sum, data, len);
    int r = write_all(f, data, len, err, errlen);
    return r < 0 ? r : write_all(f, &f->sum, sizeof f->sum, err, errlen);
}

static int write_header(struct slotfile *f, const struct slotfile_kind *kind,
                        const struct slotfile_history *h, char *err, size_t errlen)
{
    struct header x = { .version = VERSION, .size = SLOTFILE_HEADER, .kind = *kind, .h = *h };
    unsigned char head[SLOTFILE_HEADER - SUM_BYTES] = { 0 };
    struct cursor c = { .at = head };
    memcpy(x.magic, MAGIC, sizeof x.magic);
    header_fields(&c, &x);
    return write_summed(f, head, sizeof head, err, errlen);
}

static int create_unfinished(struct slotfile *f, char *err, size_t errlen)
{
    char name[sizeof f->unfinished];
    snprintf(name, sizeof name, "%s~%016" PRIx64, f->name, rng_system_seed());
    f->fd = openat(f->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (f->fd < 0)
        return fail(f, -errno, "cannot be created", err, errlen);
    memcpy(f->unfinished, name, sizeof name);
    (void)flock(f->fd, LOCK_EX | LOCK_NB); /* as long as it is locked it is no left-over: slotfile_sweep */
    /* A disk that is full says so before anything was copied. Not every file system can tell. */
    if (fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)whole_size(f->n_tokens, f->token_bytes)) < 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
        return fail(f, -errno, "cannot be written", err, errlen);
    return 0;
}

int slotfile_create(int dir, const char *name, const struct slotfile_kind *kind,
                    const struct slotfile_history *h, const int32_t *tokens, struct slotfile **ret_file,
                    char *err, size_t errlen)
{
    struct slotfile *f;
    int r = file_new(dir, name, &f, err, errlen);
    if (r < 0)
        return r;
    f->n_tokens = h->n_tokens;
    f->token_bytes = kind->token_bytes;
    r = create_unfinished(f, err, errlen);
    if (r == 0)
        r = write_header(f, kind, h, err, errlen);
    if (r == 0)
        r = write_summed(f, tokens, h->n_tokens * sizeof *tokens, err, errlen);
    if (r < 0) {
        slotfile_close(f);
        return r;
    }
    *ret_file = f;
    return 0;
}

int slotfile_write(struct slotfile *f, const void *piece, uint32_t n, char *err, size_t errlen)
{
    f->at += n;
    return write_summed(f, piece, n * f->token_bytes, err, errlen);
}

int slotfile_finish(struct slotfile *f, uint64_t *ret_bytes, char *err, size_t errlen)
{
    if (f->at != f->n_tokens || f->bytes != whole_size(f->n_tokens, f->token_bytes))
        return refuse(f, err, errlen, "%" PRIu32 " of %" PRIu32 " tokens were written", f->at, f->n_tokens);
    if (fsync(f->fd) < 0)
        return fail(f, -errno, "cannot be written", err, errlen);
    if (renameat(f->dir, f->unfinished, f->dir, f->name) < 0)
        return fail(f, -errno, "cannot get its name", err, errlen);
    *f->unfinished = '\0';
    if (fsync(f->dir) < 0) /* the name too is to be there after a power cut */
        return fail(f, -errno, "its folder cannot be written", err, errlen);
    *ret_bytes = f->bytes;
    return 0;
}

/* ---- reading ---- */

static int read_all(struct slotfile *f, void *data, size_t len, char *err, size_t errlen)
{
    char *p = data;
    while (len) {
        ssize_t n = read(f->fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(f, -errno, "cannot be read", err, errlen);
        if (n == 0)
            return refuse(f, err, errlen, "it ends after %" PRIu64 " bytes", f->bytes);
        p += n;
        len -= (size_t)n;
        f->bytes += (size_t)n;
    }
    return 0;
}

/* False where the sum is another one. */
static int read_summed(struct slotfile *f, void *data, size_t len, bool *ret_right, char *err, size_t errlen)
{
    uint64_t sum;
    int r = read_all(f, data, len, err, errlen);
    if (r == 0)
        r = read_all(f, &sum, sizeof sum, err, errlen);
    f->sum = checksum64(f->sum, data, len);
    *ret_right = r == 0 && sum == f->sum;
    return r;
}

static int open_file(struct slotfile *f, uint64_t *ret_size, char *err, size_t errlen)
{
    struct stat st;
    /* A pipe of that name must not hold us up. */
    f->fd = openat(f->dir, f->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return fail(f, -errno, "cannot be opened", err, errlen);
    if (!S_ISREG(st.st_mode))
        return refuse(f, err, errlen, "it is no regular file");
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int read_header(struct slotfile *f, struct header *ret, char *err, size_t errlen)
{
    unsigned char head[SLOTFILE_HEADER - SUM_BYTES];
    struct cursor c = { .at = head, .reads = true };
    bool right;
    int r = read_summed(f, head, sizeof head, &right, err, errlen);
    if (r < 0)
        return r;
    header_fields(&c, ret);
    if (memcmp(ret->magic, MAGIC, sizeof ret->magic) != 0)
        return refuse(f, err, errlen, "it is no saved conversation");
    if (ret->version != VERSION)
        return refuse(f, err, errlen, "its format is version %" PRIu32 ", this server reads %u", ret->version,
                      VERSION);
    if (!right || ret->size != SLOTFILE_HEADER)
        return refuse(f, err, errlen, "its header is damaged");
    return 0;
}

/* Text fields come from a file: they may lack an end. */
static void end_texts(struct slotfile_kind *k)
{
    k->model_name[sizeof k->model_name - 1] = '\0';
    k->kv_type[sizeof k->kv_type - 1] = '\0';
    k->arithmetic[sizeof k->arithmetic - 1] = '\0';
}

static int check_kind(const struct slotfile *f, struct slotfile_kind *k, const struct slotfile_kind *ours,
                      char *err, size_t errlen)
{
    end_texts(k);
    if (memcmp(k->model, ours->model, sizeof k->model) != 0)
        return refuse(f, err, errlen, "it was saved with another model, %s; this server has %s",
                      k->model_name, ours->model_name);
    if (memcmp(k->tokenizer, ours->tokenizer, sizeof k->tokenizer) != 0)
        return refuse(f, err, errlen, "it was saved with another tokenizer (model %s)", k->model_name);
    if (strcmp(k->kv_type, ours->kv_type) != 0)
        return refuse(f, err, errlen, "its keys and values are %s, this server's %s (engine.kv_type)",
                      k->kv_type, ours->kv_type);
    if (strcmp(k->arithmetic, ours->arithmetic) != 0)
        return refuse(f, err, errlen,
                      "it was computed with other arithmetic, \"%s\"; this server's is \"%s\" (engine.isa, "
                      "engine.activations)",
                      k->arithmetic, ours->arithmetic);
    if (k->token_bytes != ours->token_bytes)
        return refuse(f, err, errlen, "a token takes %" PRIu64 " bytes in it, %" PRIu64 " in this server",
                      k->token_bytes, ours->token_bytes);
    return 0;
}

static int check_history(const struct slotfile *f, const struct slotfile_history *h, uint64_t size,
                         const struct slotfile_limits *l, char *err, size_t errlen)
{
    uint64_t wanted = whole_size(h->n_tokens, l->kind->token_bytes);
    if (h->n_tokens < 1 || h->n_tokens > l->context)
        return refuse(f, err, errlen,
                      "it holds %" PRIu32 " tokens, this server's context allows 1 to %" PRIu32, h->n_tokens,
                      l->context);
    if (h->turn_tokens > h->n_tokens)
        return refuse(f, err, errlen, "%" PRIu32 " tokens of turns are more than the %" PRIu32 " there are",
                      h->turn_tokens, h->n_tokens);
    if (size != wanted)
        return refuse(f, err, errlen,
                      "it is %" PRIu64 " bytes long, %" PRIu64 " are wanted for %" PRIu32
                      " tokens: it is not whole, or something was added",
                      size, wanted, h->n_tokens);
    return 0;
}

static int read_tokens(struct slotfile *f, uint32_t n_vocab, int32_t **ret_tokens, char *err, size_t errlen)
{
    bool right;
    int32_t *tokens = malloc(f->n_tokens * sizeof *tokens);
    if (!tokens) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    int r = read_summed(f, tokens, f->n_tokens * sizeof *tokens, &right, err, errlen);
    if (r == 0 && !right)
        r = refuse(f, err, errlen, "its tokens are damaged");
    for (uint32_t i = 0; r == 0 && i < f->n_tokens; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            r = refuse(f, err, errlen, "its token %" PRIu32 " is %" PRId32 ", allowed are 0 to %" PRIu32, i,
                       tokens[i], n_vocab - 1);
    if (r < 0) {
        free(tokens);
        return r;
    }
    *ret_tokens = tokens;
    return 0;
}

int slotfile_open(int dir, const char *name, const struct slotfile_limits *l, struct slotfile **ret_file,
                  struct slotfile_history *ret_history, int32_t **ret_tokens, char *err, size_t errlen)
{
    struct header x = { 0 };
    uint64_t size = 0;
    struct slotfile *f;
    int r = file_new(dir, name, &f, err, errlen);
    if (r < 0)
        return r;
    r = open_file(f, &size, err, errlen);
    if (r == 0)
        r = read_header(f, &x, err, errlen);
    if (r == 0)
        r = check_kind(f, &x.kind, l->kind, err, errlen);
    if (r == 0)
        r = check_history(f, &x.h, size, l, err, errlen);
    f->n_tokens = x.h.n_tokens;
    f->token_bytes = l->kind->token_bytes;
    if (r == 0)
        r = read_tokens(f, l->n_vocab, ret_tokens, err, errlen);
    if (r < 0) {
        slotfile_close(f);
        return r;
    }
    *ret_history = x.h;
    *ret_file = f;
    return 0;
}

int slotfile_read(struct slotfile *f, void *piece, uint32_t *ret_n, char *err, size_t errlen)
{
    uint32_t left = f->n_tokens - f->at, n = left < SESSION_IO_TOKENS ? left : SESSION_IO_TOKENS;
    bool right = true;
    int r = n ? read_summed(f, piece, n * f->token_bytes, &right, err, errlen) : 0;
    if (r == 0 && !right)
        r = refuse(f, err, errlen, "keys and values of tokens %" PRIu32 " to %" PRIu32 " are damaged", f->at,
                   f->at + n - 1);
    if (r < 0)
        return r;
    f->at += n;
    *ret_n = n;
    return 0;
}
