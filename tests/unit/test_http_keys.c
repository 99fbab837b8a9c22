/* The key file: what is accepted, and that every refusal names file, line and reason. */
#include "http/http.h"
#include "util/digest.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As `printf %s key | sha256sum` and `printf %s test | sha256sum` print them. */
#define HASH "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
#define OTHER "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

static char path[] = "/tmp/berth-keys-XXXXXX";

static int load(const char *text, size_t len, struct http_key **keys, size_t *n, char *err, size_t errlen)
{
    int fd, r;

    strcpy(path + strlen(path) - 6, "XXXXXX");
    fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, len), (ssize_t)len);
    close(fd);
    r = http_keys_load(path, keys, n, err, errlen);
    unlink(path);
    return r;
}

Test(http_keys, names_hashes_and_roles_are_read)
{
    static const char text[] = "# comment\n\n  ann:" HASH "  \r\nroot@host:" OTHER ":admin";
    struct http_key *keys = NULL;
    uint8_t digest[DIGEST_LEN];
    size_t n = 0;
    char err[256];

    cr_assert_eq(load(text, strlen(text), &keys, &n, err, sizeof err), 0, "%s", err);
    cr_assert_eq(n, 2);
    cr_expect_str_eq(keys[0].name, "ann");
    cr_expect_not(keys[0].admin);
    digest_sha256("key", 3, digest);
    cr_expect(digest_equal(digest, keys[0].sha256));
    cr_expect_str_eq(keys[1].name, "root@host");
    cr_expect(keys[1].admin);
    free(keys);
}

static void refused(const char *text, size_t len, const char *line, const char *why)
{
    struct http_key *keys = NULL;
    size_t n = 0;
    char err[256] = "";

    cr_assert_eq(load(text, len, &keys, &n, err, sizeof err), -EINVAL, "%s", text);
    cr_expect_null(keys);
    cr_expect(strncmp(err, path, strlen(path)) == 0, "%s", err);
    cr_expect_not_null(strstr(err, line), "%s", err);
    cr_expect_not_null(strstr(err, why), "%s", err);
}

Test(http_keys, a_bad_line_is_named_with_its_reason)
{
#define REFUSED(text, line, why) refused(text, sizeof text - 1, line, why)
    REFUSED("ann\n", "line 1", "name:sha256");
    REFUSED("# fine\n\nann:12\n", "line 3", "64 hex digits");
    REFUSED("ann:" HASH "0\n", "line 1", "64 hex digits");
    REFUSED("ann:" HASH ":root\n", "line 1", "admin");
    REFUSED("ann:" HASH ":\n", "line 1", "admin");
    REFUSED(":" HASH "\n", "line 1", "1 to 63");
    REFUSED("a b:" HASH "\n", "line 1", "letters");
    REFUSED("ann:" HASH "\nann:" OTHER "\n", "line 2", "name was used");
    REFUSED("ann:" HASH "\nbob:" HASH "\n", "line 2", "hash was used");
    REFUSED("ann:" HASH "\0:admin\n", "line 1", "not text");
    REFUSED("0123456789012345678901234567890123456789012345678901234567890123:" HASH "\n", "line 1",
            "1 to 63");
    REFUSED("# nothing\n", "", "no key");
    REFUSED("", "", "no key");
}

Test(http_keys, a_file_that_is_not_there_is_named)
{
    struct http_key *keys = NULL;
    size_t n = 0;
    char err[256] = "";

    cr_expect_eq(http_keys_load("/no/such/file", &keys, &n, err, sizeof err), -ENOENT);
    cr_expect_not_null(strstr(err, "/no/such/file"));
    cr_expect_eq(http_keys_load("/", &keys, &n, err, sizeof err), -EISDIR, "%s", err);
}
