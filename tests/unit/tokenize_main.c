/* Tokenizes many texts in one process, for tests/e2e/test_tokenizers.py: tokenize_cases FILE.gguf reads cases
 * from standard input (a 4-byte length, a byte of flags, the text) and writes for each a 4-byte count, the
 * ids, a 4-byte length and the bytes that they stand for. Numbers are little-endian. */
#include "model/tokenizer.h"
#include "util/buf.h"
#include <stdio.h>
#include <stdlib.h>

static int answer(const struct tokenizer *t, const char *text, uint32_t len, unsigned flags)
{
    int32_t *ids;
    size_t n;
    struct buf bytes = { 0 };
    if (tokenizer_encode(t, text, len, flags, &ids, &n) < 0)
        return 1;
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = tokenizer_piece(t, ids[i], true, &size);
        buf_append(&bytes, piece, size);
    }
    uint32_t count = (uint32_t)n, size = (uint32_t)bytes.len;
    fwrite(&count, sizeof count, 1, stdout);
    fwrite(ids, sizeof *ids, n, stdout);
    fwrite(&size, sizeof size, 1, stdout);
    fwrite(bytes.data, 1, bytes.len, stdout);
    free(ids);
    buf_free(&bytes);
    return 0;
}

int main(int argc, char **argv)
{
    char err[512];
    struct gguf *f;
    struct tokenizer *t;
    int code = 0;
    if (argc != 2)
        return 2;
    if (gguf_open(argv[1], &f, err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    int r = tokenizer_open(f, &t, err, sizeof err);
    gguf_close(f);
    if (r < 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    for (uint32_t len; code == 0 && fread(&len, sizeof len, 1, stdin) == 1;) {
        int flags = getchar();
        char *text = malloc((size_t)len + 1);
        if (!text || fread(text, 1, len, stdin) != len)
            code = 1;
        else
            code = answer(t, text, len, (unsigned)flags);
        free(text);
    }
    tokenizer_free(t);
    return code;
}
