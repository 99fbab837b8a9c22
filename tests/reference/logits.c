/* Logits: writes what the engine computes for every position of a sequence, for those who compare:
 * tests/e2e/test_architectures.py, tools/compare-llama. Token ids come in on standard input, whitespace
 * between them; float32 logits, [position][vocabulary], go out on standard output.
 *
 *     logits_of FILE [exact|usual] [chunk]
 *
 * exact: float activations and float KV; usual: as served. chunk: tokens of a window, 64 if not given. */
#include "engine/engine.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536u /* tokens */

static int fail(const char *what)
{
    fprintf(stderr, "logits_of: %s\n", what);
    return 1;
}

static uint32_t read_ids(int32_t *ids)
{
    uint32_t n = 0;
    while (n < MOST && scanf("%d", &ids[n]) == 1)
        n++;
    return n;
}

/* 0, or 1 with the reason said. */
static int write_logits(struct engine *e, const int32_t *ids, uint32_t n, uint32_t chunk)
{
    char err[512] = "";
    struct engine_info info;
    struct session *s;
    engine_info_get(e, &info);
    if (session_new(e, &s) < 0)
        return fail("no memory for a session");
    for (uint32_t at = 0; at < n; at += chunk) {
        struct engine_row row = { .session = s, .tokens = ids + at, .n = n - at < chunk ? n - at : chunk };
        row.n_logits = row.n;
        if (engine_window(e, &row, 1, err, sizeof err) < 0 ||
            fwrite(row.logits, sizeof(float) * info.n_vocab, row.n, stdout) != row.n) {
            session_free(s);
            return fail(*err ? err : strerror(errno));
        }
    }
    session_free(s);
    return 0;
}

int main(int argc, char **argv)
{
    static int32_t ids[MOST];
    const bool exact = argc > 2 && strcmp(argv[2], "exact") == 0;
    const uint32_t chunk = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 64, n = read_ids(ids);
    char err[512] = "";
    struct gguf *f;
    struct model *m;
    struct engine *e;
    if (argc < 2 || !n || chunk < 1 || chunk > 4096)
        return fail("usage: logits_of FILE [exact|usual] [chunk of 1..4096] < IDS");
    struct engine_options o = { .isa = "auto",
                                .threads = 2,
                                .activations = exact ? "f32" : "auto",
                                .kv_type = exact ? "f32" : "f16",
                                .kv_tokens = n,
                                .max_rows = 1,
                                .max_tokens = chunk };
    if (gguf_open(argv[1], &f, err, sizeof err) < 0)
        return fail(err);
    if (model_read(f, &m, err, sizeof err) < 0) {
        gguf_close(f);
        return fail(err);
    }
    int r = engine_open(f, m, &o, NULL, NULL, &e, err, sizeof err);
    model_free(m);
    gguf_close(f);
    if (r < 0)
        return fail(err);
    r = write_logits(e, ids, n, chunk);
    engine_close(e);
    return r;
}
