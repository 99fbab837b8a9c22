/* Keys: reads the key file. One key a line, `name:sha256[:admin]`: the name is for logs and metrics, the 64
 * hex digits are the SHA-256 of the key's text, so the file holds nothing that opens the door. Empty lines
 * and lines that begin with # are skipped. To make an entry: printf %s "$KEY" | sha256sum Pure but for
 * reading the file. Tests: tests/unit/test_http_keys.c */
#include "http/http.h"
#include "util/buf.h"
#include "util/file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 65536, MAX_FILE_BYTES = 16 << 20 };

static int hex_digit(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    if (ch >= 'a' && ch <= 'f')
        return ch - 'a' + 10;
    return ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
}

static bool parse_hash(const char *text, uint8_t ret_hash[32])
{
    if (strlen(text) != 64)
        return false;
    for (size_t i = 0; i < 32; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        ret_hash[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* NULL, or what is wrong with the line. */
static const char *parse_line(char *line, struct http_key *key)
{
    char *hash = strchr(line, ':');
    char *role;

    if (!hash)
        return "wanted name:sha256[:admin]";
    *hash++ = '\0';
    role = strchr(hash, ':');
    if (role)
        *role++ = '\0';
    if (line[0] == '\0' || strlen(line) >= sizeof key->name)
        return "the name must have 1 to 63 characters";
    for (const char *at = line; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-@", *at))
            return "a name is made of letters, digits and . _ - @";
    if (!parse_hash(hash, key->sha256))
        return "the hash must be 64 hex digits, as printf %s KEY | sha256sum prints them";
    if (role && strcmp(role, "admin") != 0)
        return "after the hash only \":admin\" is known";
    snprintf(key->name, sizeof key->name, "%s", line);
    key->admin = role != NULL;
    return NULL;
}

static const char *add_key(struct http_key **keys, size_t *n, const struct http_key *key)
{
    struct http_key *more;

    for (size_t i = 0; i < *n; i++) {
        if (strcmp((*keys)[i].name, key->name) == 0)
            return "the name was used before";
        if (memcmp((*keys)[i].sha256, key->sha256, sizeof key->sha256) == 0)
            return "the hash was used before";
    }
    if (*n >= MAX_KEYS)
        return "more than 65536 keys";
    more = realloc(*keys, (*n + 1) * sizeof **keys);
    if (!more)
        return "out of memory";
    *keys = more;
    more[(*n)++] = *key;
    return NULL;
}

static char *trim(char *line)
{
    size_t n;

    line += strspn(line, " \t");
    n = strlen(line);
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
        line[--n] = '\0';
    return line;
}

static int read_lines(struct buf *text, const char *path, struct http_key **keys, size_t *n, char *err,
                      size_t errlen)
{
    char *line = text->data, *end = line + text->len;
    size_t number = 0;

    for (char *next; line < end; line = next) {
        struct http_key key = { 0 };
        const char *wrong = NULL;
        char *stop = memchr(line, '\n', (size_t)(end - line));
        bool binary;

        if (!stop)
            stop = end; /* where buf keeps a zero byte */
        next = stop + 1;
        *stop = '\0';
        binary = strlen(line) != (size_t)(stop - line);
        line = trim(line);
        number++;
        if (binary)
            wrong = "not text";
        else if (line[0] != '\0' && line[0] != '#')
            wrong = parse_line(line, &key);
        else
            continue;
        if (!wrong)
            wrong = add_key(keys, n, &key);
        if (wrong) {
            snprintf(err, errlen, "%s line %zu: %s", path, number, wrong);
            return -EINVAL;
        }
    }
    return 0;
}

int http_keys_load(const char *path, struct http_key **ret_keys, size_t *ret_n, char *err, size_t errlen)
{
    struct http_key *keys = NULL;
    struct buf text = { 0 };
    size_t n = 0;
    int r = file_read(path, MAX_FILE_BYTES, &text, err, errlen);

    if (r == 0)
        r = read_lines(&text, path, &keys, &n, err, errlen);
    buf_free(&text);
    if (r == 0 && n == 0) {
        snprintf(err, errlen, "%s holds no key; a line is name:sha256[:admin]", path);
        r = -EINVAL;
    }
    if (r < 0) {
        free(keys);
        return r;
    }
    *ret_keys = keys;
    *ret_n = n;
    return 0;
}
