/* Vocabulary checks: what the tests of tokenizers ask of one. */
#pragma once
#include "vocab.h"
#include <stdio.h>
#include <time.h>

static inline void check_ids(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                             const int32_t *want, size_t n_want)
{
    int32_t *ids;
    size_t n;
    cr_assert_eq(tokenizer_encode(t, text, len, flags, &ids, &n), 0);
    bool same = n == n_want;
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == want[i];
    if (!same) {
        fprintf(stderr, "text: %.*s\ngot: ", (int)(len < 200 ? len : 200), text);
        for (size_t i = 0; i < n && i < 60; i++)
            fprintf(stderr, " %d", ids[i]);
        fprintf(stderr, "\nwant:");
        for (size_t i = 0; i < n_want && i < 60; i++)
            fprintf(stderr, " %d", want[i]);
        fprintf(stderr, "\n");
    }
    free(ids);
    cr_assert(same, "the ids differ");
}

static inline void refuses(const struct vocab *v, int want, const char *says)
{
    char err[512] = "";
    struct tokenizer *t = NULL;
    int r = open_vocab(v, &t, err, sizeof err);
    cr_expect_eq(r, want, "%d, want %d (%s)", r, want, says);
    cr_expect(strstr(err, says), "\"%s\" does not say \"%s\"", err, says);
    cr_expect_null(t);
    tokenizer_free(t);
}

static inline double cpu_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Encodes and prints the rate. A second for a megabyte is far from any rate that is wanted, and near to
 * nothing that looks at the text twice for each of its bytes. */
static inline void takes_time(const struct tokenizer *t, const char *name, const char *text, size_t len,
                              unsigned flags)
{
    int32_t *ids;
    size_t n;
    double start = cpu_s();
    cr_assert_eq(tokenizer_encode(t, text, len, flags, &ids, &n), 0);
    double spent = cpu_s() - start;
    free(ids);
    fprintf(stderr, "tokenizer: %-28s %8zu bytes %8zu ids %7.1f ms %7.1f MB/s\n", name, len, n, 1e3 * spent,
            1e-6 * (double)len / spent);
    cr_expect_lt(spent, 20.0, "%s", name);
}
