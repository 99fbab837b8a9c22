/* Slot files: what is written is read back; a file that is not what it was, in any bit, is refused in words
 * that say what is wrong; one that is not finished has never been there. */
#include "gguf_write.h"
#include "sched/slotfile.h"
#include "util/checksum.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define TOKENS 135u /* two whole pieces and seven tokens */
#define TOKEN_BYTES 24u

static const struct slotfile_kind kind = { .model = "a model",
                                           .tokenizer = "a tokenizer",
                                           .model_name = "tiny",
                                           .kv_type = "f16",
                                           .arithmetic = "vector",
                                           .token_bytes = TOKEN_BYTES };
static const struct slotfile_history history = { .n_tokens = TOKENS,
                                                 .turn_tokens = 100,
                                                 .turns = 3,
                                                 .stop_reason = 1,
                                                 .prompt_tokens = 80,
                                                 .request_flags = 2,
                                                 .cut = true,
                                                 .salt = 77,
                                                 .saved_s = 1234567890 };
static const struct slotfile_limits limits = { .kind = &kind, .context = 4096, .n_vocab = 1000 };
static char folder[64];
static int dir = -1;
static uint64_t seed = 5;

static uint32_t random_n(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void open_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/berth-slotfile-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY);
    cr_assert_geq(dir, 0);
}

static unsigned n_files(void)
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += *e->d_name != '.';
    closedir(d);
    return n;
}

static void close_folder(void)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        unlinkat(dir, e->d_name, 0);
    closedir(d);
    close(dir);
    rmdir(folder);
}

TestSuite(slotfile, .init = open_folder, .fini = close_folder, .timeout = 120);

static void fill(int32_t *tokens, unsigned char *kv)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(i * 7 % 1000);
    for (uint32_t i = 0; i < TOKENS * TOKEN_BYTES; i++)
        kv[i] = (unsigned char)(i * 31 >> 3);
}

static int try_write(const char *name, const struct slotfile_kind *k, const struct slotfile_history *h,
                     char *err)
{
    int32_t tokens[TOKENS];
    unsigned char kv[TOKENS * TOKEN_BYTES];
    uint64_t bytes = 0;
    struct slotfile *f;
    fill(tokens, kv);
    int r = slotfile_create(dir, name, k, h, tokens, &f, err, 400);
    if (r < 0)
        return r;
    for (uint32_t at = 0; r == 0 && at < TOKENS; at += 64)
        r = slotfile_write(f, kv + at * TOKEN_BYTES, TOKENS - at < 64 ? TOKENS - at : 64, err, 400);
    if (r == 0)
        r = slotfile_finish(f, &bytes, err, 400);
    slotfile_close(f);
    return r;
}

static void write_right(const char *name)
{
    char err[400] = "";
    cr_assert_eq(try_write(name, &kind, &history, err), 0, "%s", err);
}

/* Reads all of it and checks what it says. */
static int try_read(const char *name, const struct slotfile_limits *l, char *err)
{
    int32_t tokens[TOKENS], *got;
    unsigned char kv[TOKENS * TOKEN_BYTES], piece[64 * TOKEN_BYTES];
    struct slotfile_history h;
    struct slotfile *f;
    uint32_t at = 0, n = 1;
    fill(tokens, kv);
    *err = 0;
    int r = slotfile_open(dir, name, l, &f, &h, &got, err, 400);
    if (r < 0) {
        cr_expect_neq(*err, 0, "an error has a text");
        return r;
    }
    bool same = h.n_tokens == TOKENS && memcmp(got, tokens, sizeof tokens) == 0 && h.turn_tokens == 100 &&
                h.turns == 3 && h.stop_reason == 1 && h.prompt_tokens == 80 && h.request_flags == 2 &&
                h.cut && h.salt == 77 && h.saved_s == 1234567890;
    while (r == 0 && n) {
        r = slotfile_read(f, piece, &n, err, 400);
        if (r == 0) {
            same = same && memcmp(piece, kv + at * TOKEN_BYTES, n * TOKEN_BYTES) == 0;
            at += n;
        }
    }
    cr_expect_eq(*err != 0, r < 0);
    cr_expect(r < 0 || (same && at == TOKENS), "%s: what was read is not what was written", name);
    slotfile_close(f);
    free(got);
    return r;
}

static struct bytes load(const char *name)
{
    struct bytes b = { 0 };
    char part[4096];
    int fd = openat(dir, name, O_RDONLY);
    cr_assert_geq(fd, 0);
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;)
        bytes_put(&b, part, (size_t)n);
    close(fd);
    return b;
}

static void store(const char *name, const void *data, size_t len)
{
    /* Not O_TRUNC: file systems write a file that was emptied to the disk at once. */
    int fd = openat(dir, name, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, data, len), (ssize_t)len);
    cr_assert_eq(ftruncate(fd, (off_t)len), 0);
    close(fd);
}

Test(slotfile, what_is_written_is_read_back)
{
    char err[400];
    write_right("sea");
    write_right("sea"); /* in place of the first */
    cr_expect_eq(try_read("sea", &limits, err), 0, "%s", err);
    cr_expect_eq(n_files(), 1, "nothing else is left");
    struct bytes b = load("sea");
    cr_expect_eq(b.len, 512 + TOKENS * 4 + 8 + TOKENS * TOKEN_BYTES + 3 * 8);
    free(b.data);
}

Test(slotfile, names_are_letters_digits_and_few_signs)
{
    static const char *const wrong[] = {
        "",    ".",        "..",
        "a/b", "../a",     "a b",
        "a~b", "\xc3\xa4", "a234567890123456789012345678901234567890123456789012345678901234x"
    };
    char err[400];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_eq(slotfile_check_name(wrong[i], err, sizeof err), -EINVAL, "\"%s\"", wrong[i]);
        cr_expect_eq(try_write(wrong[i], &kind, &history, err), -EINVAL);
        cr_expect_eq(try_read(wrong[i], &limits, err), -EINVAL);
    }
    static const char *const right[] = { "a", "...", ".a", "A-1_b.kv",
                                         "a23456789012345678901234567890123456789012345678901234567890123x" };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        cr_expect_eq(slotfile_check_name(right[i], err, sizeof err), 0, "\"%s\"", right[i]);
    cr_expect_eq(n_files(), 0);
}

static void expect_refused(const struct slotfile_kind *k, const struct slotfile_history *h,
                           const struct slotfile_limits *l, const char *word)
{
    char err[400];
    cr_assert_eq(try_write("x", k, h, err), 0, "%s", err);
    cr_expect_eq(try_read("x", l, err), -EINVAL);
    cr_expect(strstr(err, word), "\"%s\" does not say \"%s\"", err, word);
}

Test(slotfile, what_this_server_cannot_use_is_refused_by_name)
{
    struct slotfile_kind k = kind;
    struct slotfile_limits l = limits;
    k.model[31] = 1;
    snprintf(k.model_name, sizeof k.model_name, "large");
    expect_refused(&k, &history, &limits, "another model, large; this server has tiny");
    k = kind;
    k.tokenizer[31] = 1;
    expect_refused(&k, &history, &limits, "another tokenizer");
    k = kind;
    memcpy(k.kv_type, "f32", 4);
    expect_refused(&k, &history, &limits, "keys and values are f32, this server's f16");
    k = kind;
    memcpy(k.arithmetic, "other", 6);
    expect_refused(&k, &history, &limits, "other arithmetic, \"other\"; this server's is \"vector\"");
    k = kind;
    k.token_bytes = TOKEN_BYTES + 8;
    struct slotfile_limits wide = { .kind = &k, .context = 4096, .n_vocab = 1000 };
    expect_refused(&kind, &history, &wide, "24 bytes in it, 32 in this server");
    l.context = TOKENS - 1;
    expect_refused(&kind, &history, &l, "135 tokens, this server's context allows 1 to 134");
    l = limits;
    l.n_vocab = 900;
    expect_refused(&kind, &history, &l, "its token 129 is 903, allowed are 0 to 899");
    struct slotfile_history h = history;
    h.turn_tokens = TOKENS + 1;
    expect_refused(&kind, &h, &limits, "136 tokens of turns are more than the 135 there are");
}

Test(slotfile, one_that_holds_nothing_is_refused)
{
    const struct slotfile_history none = { 0 };
    struct slotfile *f;
    uint64_t bytes;
    char err[400] = "";
    cr_assert_eq(slotfile_create(dir, "x", &kind, &none, NULL, &f, err, sizeof err), 0, "%s", err);
    cr_assert_eq(slotfile_finish(f, &bytes, err, sizeof err), 0, "%s", err);
    slotfile_close(f);
    cr_expect_eq(try_read("x", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "x: it holds 0 tokens, this server's context allows 1 to 4096");
}

/* A header with another version, right in itself. */
static void set_version(struct bytes *b, uint32_t version)
{
    memcpy(b->data + 8, &version, sizeof version);
    uint64_t sum = checksum64(0, b->data, 504);
    memcpy(b->data + 504, &sum, sizeof sum);
}

Test(slotfile, other_files_are_refused_by_name)
{
    char err[400];
    write_right("x");
    struct bytes b = load("x");
    set_version(&b, 2);
    store("new", b.data, b.len);
    cr_expect_eq(try_read("new", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "new: its format is version 2, this server reads 1");
    store("text", "Call me Ishmael.", 16);
    cr_expect_eq(try_read("text", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "text: it ends after 16 bytes");
    b.data[0]++;
    store("other", b.data, b.len);
    cr_expect_eq(try_read("other", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "other: it is no saved conversation");
    cr_expect_eq(try_read("none", &limits, err), -ENOENT);
    cr_expect_str_eq(err, "none: cannot be opened: No such file or directory");
    cr_assert_eq(mkfifoat(dir, "pipe", 0600), 0);
    cr_expect_eq(try_read("pipe", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "pipe: it is no regular file");
    cr_assert_eq(symlinkat("x", dir, "link"), 0);
    cr_expect_eq(try_read("link", &limits, err), -ELOOP, "a link leads out of the folder");
    free(b.data);
}

Test(slotfile, no_length_but_its_own_is_right)
{
    char err[400];
    write_right("x");
    struct bytes b = load("x");
    for (size_t len = 0; len < b.len; len += len < 600 || b.len - len < 300 ? 1 : 37) {
        store("cut", b.data, len);
        cr_expect_eq(try_read("cut", &limits, err), -EINVAL, "%zu of %zu bytes were taken", len, b.len);
    }
    bytes_put(&b, "x", 1);
    store("more", b.data, b.len);
    cr_expect_eq(try_read("more", &limits, err), -EINVAL);
    free(b.data);
}

Test(slotfile, every_flipped_bit_shows)
{
    char err[400];
    write_right("x");
    struct bytes b = load("x");
    for (size_t bit = 0; bit < b.len * 8; bit += 1 + (bit > 4096) * (bit % 7)) {
        b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        store("flipped", b.data, b.len);
        cr_assert_eq(try_read("flipped", &limits, err), -EINVAL, "bit %zu of %zu", bit, b.len * 8);
        b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    free(b.data);
}

/* Two pieces of equal length that changed places, their sums with them. */
Test(slotfile, pieces_cannot_change_places)
{
    char err[400];
    write_right("x");
    struct bytes b = load("x");
    size_t piece = 64 * TOKEN_BYTES + 8, first = 512 + TOKENS * 4 + 8;
    uint8_t *held = malloc(piece);
    memcpy(held, b.data + first, piece);
    memcpy(b.data + first, b.data + first + piece, piece);
    memcpy(b.data + first + piece, held, piece);
    store("moved", b.data, b.len);
    cr_expect_eq(try_read("moved", &limits, err), -EINVAL);
    cr_expect_str_eq(err, "moved: keys and values of tokens 0 to 63 are damaged");
    free(held);
    free(b.data);
}

/* Whatever the bytes: an answer, in words where it is no, and nothing read outside the file's memory. Half of
 * the cases have a header that is right in itself, whose numbers are anything. */
Test(slotfile, no_bytes_do_harm)
{
    char err[400];
    unsigned taken = 0;
    write_right("x");
    struct bytes b = load("x");
    uint8_t *copy = malloc(b.len + 64);
    for (int i = 0; i < 10000; i++) {
        size_t len = b.len;
        memcpy(copy, b.data, len);
        for (uint32_t k = random_n(8) + 1; k; k--)
            copy[random_n(2) ? random_n(512) : random_n((uint32_t)len)] = (uint8_t)random_n(256);
        if (random_n(4) == 0)
            len = random_n((uint32_t)len + 64);
        if (random_n(2)) {
            uint64_t sum = checksum64(0, copy, 504);
            memcpy(copy + 504, &sum, sizeof sum);
        }
        store("fuzz", copy, len < b.len + 64 ? len : b.len);
        bool as_it_was = len == b.len && memcmp(copy, b.data, len) == 0;
        int r = try_read("fuzz", &limits, err);
        if (!as_it_was)
            taken += r == 0;
    }
    /* Bytes of the header that stand for nothing may change with a right sum; then what follows is wrong. */
    cr_expect_eq(taken, 0, "%u damaged files were taken", taken);
    free(copy);
    free(b.data);
}

Test(slotfile, one_that_was_not_finished_has_never_been_there)
{
    int32_t tokens[TOKENS];
    unsigned char kv[TOKENS * TOKEN_BYTES];
    char err[400] = "";
    struct slotfile *f;
    uint64_t bytes;
    fill(tokens, kv);
    write_right("x");
    cr_assert_eq(slotfile_create(dir, "x", &kind, &history, tokens, &f, err, sizeof err), 0);
    cr_expect_eq(slotfile_write(f, kv, 64, err, sizeof err), 0);
    cr_expect_eq(n_files(), 2);
    cr_expect_eq(slotfile_finish(f, &bytes, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "x: 64 of 135 tokens were written");
    slotfile_close(f);
    cr_expect_eq(n_files(), 1);
    cr_expect_eq(try_read("x", &limits, err), 0, "the one before is as it was: %s", err);
}

static void touch(const char *name)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

Test(slotfile, what_a_killed_process_left_is_removed_and_nothing_else)
{
    static const char *const stay[] = {
        "x",  "y~0123456789abcde", "y~0123456789abcdef0", "y~0123456789abcdeg", "y~0123456789abcdefx",
        "~y", "y~0123456789ABCDEF"
    };
    static const char *const go[] = { "y~0123456789abcdef", "a.b~ffffffffffffffff" };
    int32_t tokens[TOKENS];
    unsigned char kv[TOKENS * TOKEN_BYTES];
    char err[400] = "";
    struct slotfile *f;
    uint64_t bytes;
    fill(tokens, kv);
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        touch(stay[i]);
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        touch(go[i]);
    cr_assert_eq(symlinkat("x", dir, "link~0123456789abcdef"), 0);
    cr_assert_eq(slotfile_create(dir, "z", &kind, &history, tokens, &f, err, sizeof err), 0);
    cr_expect_eq(slotfile_sweep(dir), 2);
    cr_expect_eq(faccessat(dir, "link~0123456789abcdef", F_OK, 0), 0, "no file of ours is a link");
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        cr_expect_eq(faccessat(dir, stay[i], F_OK, 0), 0, "%s", stay[i]);
    cr_expect_eq(n_files(), 9);
    for (uint32_t at = 0; at < TOKENS; at += 64)
        cr_expect_eq(
            slotfile_write(f, kv + at * TOKEN_BYTES, TOKENS - at < 64 ? TOKENS - at : 64, err, sizeof err),
            0);
    cr_expect_eq(slotfile_finish(f, &bytes, err, sizeof err), 0, "somebody writes it: it stays: %s", err);
    slotfile_close(f);
    cr_expect_eq(try_read("z", &limits, err), 0, "%s", err);
    cr_expect_eq(slotfile_sweep(dir), 0);
}

Test(slotfile, a_full_disk_says_so_and_leaves_nothing)
{
    char err[400] = "";
    write_right("x");
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 4000; most += 173) {
        struct rlimit limit = { most, RLIM_INFINITY }, old;
        getrlimit(RLIMIT_FSIZE, &old);
        setrlimit(RLIMIT_FSIZE, &limit);
        int r = try_write("x", &kind, &history, err);
        setrlimit(RLIMIT_FSIZE, &old);
        cr_expect_eq(r, -EFBIG, "%d", r);
        cr_expect_str_eq(err, "x: cannot be written: File too large");
        cr_expect_eq(n_files(), 1);
        cr_expect_eq(try_read("x", &limits, err), 0, "the one before is as it was: %s", err);
    }
}

Test(checksum, changes_show_wherever_they_are)
{
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 17);
    for (size_t len = 0; len <= sizeof data; len += 1 + len / 10) {
        uint64_t sum = checksum64(1, data, len);
        cr_expect_neq(sum, checksum64(2, data, len), "the seed counts");
        for (size_t bit = 0; bit < len * 8; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            cr_assert_neq(checksum64(1, data, len), sum, "bit %zu of %zu bytes", bit, len);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    unsigned char zeros[300] = { 0 };
    uint64_t sums[301];
    for (size_t len = 0; len <= 300; len++) {
        sums[len] = checksum64(0, zeros, len);
        for (size_t k = 0; k < len; k++)
            cr_assert_neq(sums[k], sums[len], "%zu and %zu zeros", k, len);
    }
}
