/* Model rope: how far each pair of a head's numbers is turned per position: the frequencies of a base,
 * stretched as the file says.
 *
 *   f[i] = base^(-2i/dims) / factors[i]          linear: / factor
 *   yarn (Peng et al. 2023): pairs that turn more than beta_fast times within the original context stay as
 * they are, those that turn less than beta_slow times are divided by the factor, those between are mixed in
 *   proportion to their index; queries and keys grow by 1 + 0.1 ln(factor).
 *
 * Llama 3's scaling comes as a tensor of factors and needs nothing else. Layers with a window were never
 * stretched. Pure; any thread. Must not know: positions, engines. Tests: tests/unit/test_model.c,
 * tests/e2e/test_architectures.py */
#include "model/gguf_file.h"
#include "model/model_read.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static int take_yarn(struct model_reader *r)
{
    /* Present in no file of these architectures with another value; they would change the formula. */
    static const struct {
        const char *suffix;
        float neutral;
    } fixed[] = { { "rope.scaling.yarn_ext_factor", 1 },
                  { "rope.scaling.yarn_attn_factor", 1 },
                  { "rope.scaling.yarn_log_multiplier", 0 } };
    struct model_yarn *y = &r->m->yarn;
    char key[96];
    int e;

    *y = (struct model_yarn){
        .beta_fast = 32, .beta_slow = 1, .magnitude = 1, .context_original = r->m->context_train
    };
    e = model_take_real(r, "rope.scaling.yarn_beta_fast", 0, 1e-3, 1e6, &y->beta_fast);
    if (e == 0)
        e = model_take_real(r, "rope.scaling.yarn_beta_slow", 0, 1e-3, 1e6, &y->beta_slow);
    if (e == 0)
        e = model_take_real(r, "rope.scaling.attn_factor", 0, 1e-3, 1e3, &y->magnitude);
    if (e == 0)
        e = model_take_count(r, "rope.scaling.original_context_length", 0, 1, 1u << 27, &y->context_original);
    for (size_t i = 0; e == 0 && i < sizeof fixed / sizeof *fixed; i++) {
        float value = fixed[i].neutral;
        e = model_take_real(r, fixed[i].suffix, 0, -1e30, 1e30, &value);
        if (e == 0 && value != fixed[i].neutral)
            e = model_refuse(r, -ENOTSUP, "key %s: %g is not something this build computes (%g is)",
                             model_key_name(r, fixed[i].suffix, key), (double)value,
                             (double)fixed[i].neutral);
    }
    return e;
}

static int take_scaling(struct model_reader *r)
{
    struct model *m = r->m;
    struct gguf_str type = { "linear", 6 };
    char key[96], shown[GGUF_PRINTABLE_LEN];
    float factor = 0; /* as good as none */
    int e = gguf_get_str(r->f, model_key_name(r, "rope.scaling.type", key), &type, r->err, r->errlen);

    if (e >= 0)
        e = model_take_real(r, "rope.scale_linear", 0, 0, 1e6, &factor);
    if (e >= 0)
        e = model_take_real(r, "rope.scaling.factor", 0, 0, 1e6, &factor);
    if (e < 0)
        return e;
    m->scaling_factor = factor > 0 ? factor : 1;
    if (gguf_str_is(type, "none"))
        return 0;
    if (gguf_str_is(type, "linear")) {
        m->scaling = m->scaling_factor == 1 ? MODEL_SCALING_NONE : MODEL_SCALING_LINEAR;
        return 0;
    }
    if (!gguf_str_is(type, "yarn"))
        return model_refuse(
            r, -ENOTSUP, "rope scaling \"%s\" is not something this build computes (none, linear, yarn are)",
            gguf_printable(shown, sizeof shown, type));
    m->scaling = MODEL_SCALING_YARN;
    return take_yarn(r);
}

int model_read_rope(struct model_reader *r)
{
    struct model *m = r->m;
    int e;

    m->rope = r->arch->rope;
    m->rope_dims = m->head_dim;
    m->rope_base = m->rope_base_window = 10000;
    e = model_take_count(r, "rope.dimension_count", 0, 2, m->head_dim, &m->rope_dims);
    if (e == 0)
        e = model_take_real(r, "rope.freq_base", 0, 1, 1e12, &m->rope_base);
    if (e == 0 && m->window)
        e = model_take_real(r, "rope.freq_base_swa", 0, 1, 1e12, &m->rope_base_window);
    if (e < 0)
        return e;
    if (m->rope_dims % 2)
        return model_refuse(r, -EINVAL, "%" PRIu32 " rotated dimensions: an even count is wanted",
                            m->rope_dims);
    return take_scaling(r);
}

static float factor_at(const struct gguf_tensor *t, uint32_t i)
{
    float factor;
    memcpy(&factor, (const char *)t->data + i * sizeof factor, sizeof factor); /* aligned or not */
    return factor;
}

int model_check_rope_factors(struct model_reader *r)
{
    const struct gguf_tensor *t = r->m->rope_factors;

    for (uint32_t i = 0; t && i < r->m->rope_dims / 2; i++) {
        float factor = factor_at(t, i);
        /* Written so that a NaN is refused too. */
        if (!(factor >= 1e-6f && factor <= 1e6f))
            return model_refuse(r, -EINVAL,
                                "tensor rope_freqs.weight: number %" PRIu32 " is %g, outside 1e-06..1e+06", i,
                                (double)factor);
    }
    return 0;
}

/* The pair that turns so many times within the original context. */
static double pair_of_turns(const struct model *m, double turns)
{
    return m->rope_dims * log(m->yarn.context_original / (turns * 2 * acos(-1))) /
           (2 * log((double)m->rope_base));
}

/* How much of pair i stays as it is: 1 from the fast end, 0 to the slow end. */
static double yarn_kept(const struct model *m, uint32_t i)
{
    double low = fmax(0, floor(pair_of_turns(m, (double)m->yarn.beta_fast)));
    double high = fmin(m->rope_dims - 1, ceil(pair_of_turns(m, (double)m->yarn.beta_slow)));

    return 1 - fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
}

void model_rope_frequencies(const struct model *m, bool with_window, double *ret_frequencies,
                            double *ret_magnitude)
{
    double base = (double)(with_window ? m->rope_base_window : m->rope_base);
    double factor = (double)m->scaling_factor;

    *ret_magnitude = 1;
    if (m->scaling == MODEL_SCALING_YARN && !with_window)
        *ret_magnitude = (double)m->yarn.magnitude * (1 + 0.1 * log(factor));
    for (uint32_t i = 0; i < m->rope_dims / 2; i++) {
        double f = pow(base, -2.0 * i / m->rope_dims), kept;
        if (m->rope_factors && !with_window)
            f /= (double)factor_at(m->rope_factors, i);
        kept = m->scaling == MODEL_SCALING_YARN ? yarn_kept(m, i) : 0;
        if (m->scaling != MODEL_SCALING_NONE && !with_window)
            f = f * kept + f / factor * (1 - kept);
        ret_frequencies[i] = f;
    }
}
