/* Fuzz, configurations: any bytes as a file of settings; what follows a zero byte is one override ("a.b=c").
 * Loaded, or refused in one line. Run by tools/fuzz. */
#include "config/config.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void note_change(void *arg, const char *key)
{
    (void)arg;
    if (!*key)
        abort();
}

static void refused_in_words(const char *err)
{
    if (!*err || strchr(err, '\n'))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static FILE *nowhere;
    char path[64], err[1024] = "", set[256] = "";
    const char *sets[] = { set };
    const uint8_t *zero = len ? memchr(data, 0, len) : NULL;
    size_t n_file = zero ? (size_t)(zero - data) : len;
    struct config *c, *other;
    if (zero) {
        size_t n = len - n_file - 1 < sizeof set - 1 ? len - n_file - 1 : sizeof set - 1;
        memcpy(set, zero + 1, n);
    }
    if (!nowhere && !(nowhere = fopen("/dev/null", "w")))
        abort();
    int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n_file) != (ssize_t)n_file)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int r = config_load(path, sets, zero != NULL, &c, err, sizeof err);
    close(fd);
    if (r < 0) {
        refused_in_words(err);
        return 0;
    }
    if (config_check_rules(c, err, sizeof err) < 0)
        refused_in_words(err);
    config_print(c, nowhere);
    if (config_load(NULL, NULL, 0, &other, err, sizeof err) < 0 ||
        config_keep_fixed(c, other, note_change, NULL) < 0)
        abort();
    config_free(other);
    config_free(c);
    return 0;
}
