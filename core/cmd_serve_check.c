/* Cmd serve check: see check_settings in cmd_serve_load.h. Cheap mistakes are found here, before a large
 * model is loaded. One thread, at start. Must not know: how addresses are bound and keys written. Tests:
 * tests/e2e/test_check.py, tests/e2e/test_serve.py */
#include "cmd_serve_load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int load_keys(const char *path, struct http_key **ret_keys, size_t *ret_n, char *err, size_t errlen)
{
    char why[800] = "";
    int r = http_keys_load(path, ret_keys, ret_n, why, sizeof why);

    if (r < 0)
        snprintf(err, errlen, "server.keys_file: %s", *why ? why : strerror(-r));
    return r;
}

int check_keys(const struct config *c, bool try_bind, struct http_key **ret_keys, size_t *ret_n_keys,
               char *err, size_t errlen)
{
    struct http_key *keys = NULL;
    size_t n_keys = 0;
    int r = 0;

    if (c->server.keys_file)
        r = load_keys(c->server.keys_file, &keys, &n_keys, err, errlen);
    if (r == 0) {
        struct http_options o = {
            .listen = (const char *const *)c->server.listen.items,
            .n_listen = c->server.listen.n,
            .n_keys = n_keys,
            .open = c->server.open,
        };
        r = http_check_listen(&o, try_bind, err, errlen);
    }
    if (r < 0) {
        free(keys);
        return r;
    }
    *ret_keys = keys;
    *ret_n_keys = n_keys;
    return 0;
}

int check_save_dir(const struct config *c, int *ret_dir, char *err, size_t errlen)
{
    const char *path = c->cache.save_dir;
    int dir = -1;

    if (path) {
        dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || faccessat(dir, ".", W_OK | X_OK, 0) < 0) {
            int r = -errno;
            snprintf(err, errlen, "cache.save_dir: %s: %s", path, strerror(errno));
            if (dir >= 0)
                close(dir);
            return r;
        }
    }
    *ret_dir = dir;
    return 0;
}

static int try_save_dir(const struct config *c, char *err, size_t errlen)
{
    int dir = -1, r = check_save_dir(c, &dir, err, errlen);

    if (r == 0 && dir >= 0)
        close(dir);
    return r;
}

int check_settings(const struct config *c, bool try_bind, struct http_key **ret_keys, size_t *ret_n_keys,
                   char *err, size_t errlen)
{
    uint32_t groups;
    bool padded;
    int r = config_check_rules(c, err, errlen);

    if (r == 0)
        r = check_windows(c, &groups, &padded, err, errlen);
    if (r == 0)
        r = config_check_files(c, err, errlen);
    if (r == 0)
        r = try_save_dir(c, err, errlen);
    return r < 0 ? r : check_keys(c, try_bind, ret_keys, ret_n_keys, err, errlen);
}
