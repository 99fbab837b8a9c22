/* Hostile files, all the way to the model and the tokenizer: cut ones, and vocabularies of strange sizes.
 * What the fuzzers of tests/fuzz find is kept here as well. */
#include "gguf_write.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>

static void check_error(const char *err)
{
    cr_assert_neq(*err, 0, "every failure has words");
    for (const char *p = err; *p; p++)
        cr_assert((unsigned char)*p >= 0x20 && *p != 0x7f, "%s", err);
}

/* Whether the file opens; whatever opens is read. */
static bool reads(const char *path)
{
    char err[512] = "";
    struct gguf *f;
    struct model *m;
    struct tokenizer *t;
    if (gguf_open(path, &f, err, sizeof err) < 0) {
        check_error(err);
        return false;
    }
    if (model_read(f, &m, err, sizeof err) == 0)
        model_free(m);
    else
        check_error(err);
    *err = 0;
    if (tokenizer_open(f, &t, err, sizeof err) == 0)
        tokenizer_free(t);
    else
        check_error(err);
    gguf_close(f);
    return true;
}

/* The first `most` bytes of a file, in memory. */
static int copy_of(const char *from, size_t most)
{
    char chunk[65536];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = memfd_create("cut", MFD_CLOEXEC);
    cr_assert(in >= 0 && out >= 0, "%s", from);
    for (size_t done = 0; done < most;) {
        ssize_t n = read(in, chunk, most - done < sizeof chunk ? most - done : sizeof chunk);
        if (n <= 0)
            break;
        cr_assert_eq(write(out, chunk, (size_t)n), n);
        done += (size_t)n;
    }
    close(in);
    return out;
}

/* Cuts it shorter and shorter, by `step` bytes; none of the shorter ones may open. */
static void cut_all(int fd, size_t step)
{
    char path[64];
    off_t size = lseek(fd, 0, SEEK_END);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (off_t len = (size - 1) / (off_t)step * (off_t)step;; len -= (off_t)step) {
        cr_assert_eq(ftruncate(fd, len), 0);
        cr_assert(!reads(path), "cut to %lld of %lld bytes", (long long)len, (long long)size);
        if (len == 0)
            break;
    }
    close(fd);
}

static const char *in_folder(const char *variable, const char *name)
{
    static char path[4096];
    const char *folder = getenv(variable);
    cr_assert_not_null(folder, "%s is not set", variable);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

Test(hostile, a_file_cut_at_every_4_kib_is_refused)
{
    cut_all(copy_of(in_folder("BERTH_TEST_DATA", "tiny-chatml.gguf"), SIZE_MAX), 4096);
    cut_all(copy_of(in_folder("BERTH_TEST_DATA", "tiny-deep.gguf"), SIZE_MAX), 4096);
}

Test(hostile, the_header_of_a_real_file_cut_anywhere_is_refused)
{
    cut_all(copy_of(in_folder("BERTH_MODELS", "SmolLM2-135M-Instruct.Q4_1.gguf"), (size_t)4 << 20), 65536);
}

static void refused_vocabulary(struct gguf_write *w, const char *says)
{
    char err[512] = "";
    struct gguf *f;
    struct tokenizer *t;
    struct bytes file = write_finish(w, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(tokenizer_open(f, &t, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, says), "\"%s\" does not say \"%s\"", err, says);
    check_error(err);
    gguf_close(f);
    free(file.data);
}

static void write_head(struct gguf_write *w, const char *kind, uint64_t n_tokens)
{
    write_text(w, "tokenizer.ggml.model", kind);
    write_key(w, "tokenizer.ggml.tokens", GGUF_ARR);
    put_u32(&w->keys, GGUF_STR);
    put_u64(&w->keys, n_tokens);
}

Test(hostile, a_vocabulary_of_none_or_of_too_many_is_refused)
{
    static const char *const kinds[] = { "gpt2", "llama" };
    for (size_t i = 0; i < 2; i++) {
        struct gguf_write w = { 0 };
        uint64_t many = ((uint64_t)1 << 22) + 1;
        write_head(&w, kinds[i], 0);
        refused_vocabulary(&w, "tokenizer.ggml.tokens: 0 tokens; 1..4194304 are allowed");
        write_head(&w, kinds[i], many);
        w.keys.data = realloc(w.keys.data, w.keys.len + many * 8); /* as many empty texts */
        cr_assert_not_null(w.keys.data);
        memset(w.keys.data + w.keys.len, 0, many * 8);
        w.keys.cap = w.keys.len += many * 8;
        refused_vocabulary(&w, "tokenizer.ggml.tokens: 4194305 tokens; 1..4194304 are allowed");
    }
}

Test(hostile, a_vocabulary_of_one_text_over_and_over_is_read)
{
    enum { N = 200000 };
    const char **texts = calloc(N, sizeof *texts);
    char err[512] = "";
    for (size_t i = 0; i < N; i++)
        texts[i] = "same";
    struct gguf_write w = { 0 };
    struct gguf *f;
    struct tokenizer *t;
    write_text(&w, "tokenizer.ggml.model", "gpt2");
    write_texts(&w, "tokenizer.ggml.tokens", texts, N);
    write_texts(&w, "tokenizer.ggml.merges", NULL, 0);
    struct bytes file = write_finish(&w, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_assert_eq(tokenizer_open(f, &t, err, sizeof err), 0, "%s", err);
    cr_expect_eq(tokenizer_find(t, "same", 4), 0, "the first of them");
    tokenizer_free(t);
    gguf_close(f);
    free(file.data);
    free(texts);
}
