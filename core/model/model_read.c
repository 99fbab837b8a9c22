/* Model keys: see model_read.h. Pure; one thread. Must not know: what a key is for. Tests:
 * tests/unit/test_model.c */
#include "model/model_read.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

int model_refuse(struct model_reader *r, int error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->err, r->errlen, fmt, ap);
    va_end(ap);
    return error;
}

const char *model_key_name(const struct model_reader *r, const char *suffix, char name[96])
{
    snprintf(name, 96, "%s.%s", r->arch->name, suffix);
    return name;
}

int model_take_count(struct model_reader *r, const char *suffix, unsigned flags, uint32_t min, uint32_t max,
                     uint32_t *ret)
{
    char key[96];
    int found = gguf_get_u32(r->f, model_key_name(r, suffix, key), ret, r->err, r->errlen);
    if (found < 0)
        return found;
    if (!found && (flags & MODEL_REQUIRED))
        return model_refuse(r, -EINVAL, "key %s is missing", key);
    if (found && (*ret < min || *ret > max))
        return model_refuse(r, -EINVAL, "key %s: %" PRIu32 " is outside %" PRIu32 "..%" PRIu32, key, *ret,
                            min, max);
    return 0;
}

int model_take_real(struct model_reader *r, const char *suffix, unsigned flags, double min, double max,
                    float *ret)
{
    char key[96];
    int found = gguf_get_f32(r->f, model_key_name(r, suffix, key), ret, r->err, r->errlen);
    if (found < 0)
        return found;
    if (!found && (flags & MODEL_REQUIRED))
        return model_refuse(r, -EINVAL, "key %s is missing", key);
    /* Written so that a NaN is refused too. */
    if (found && !((double)*ret >= min && (double)*ret <= max))
        return model_refuse(r, -EINVAL, "key %s: %g is outside %g..%g", key, (double)*ret, min, max);
    return 0;
}
