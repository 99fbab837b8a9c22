/* Matmul: every instruction set this machine has against plain double loops and the reference, and bit for
 * bit against itself and the others. Where a set is missing its tests have nothing to compare; portable is
 * always there. */
#include "../cases.h"
#include "matmul_case.h"

#include <criterion/criterion.h>
#include <errno.h>

/* vector: all those that give the same bits. */
#ifdef TEST_CUDA
static const char *const isas[] = { "cuda" }, *const vector[] = { "cuda", "avx2", "avx512" };
#else
static const char *const isas[] = { "portable", "avx2", "avx512", "amx" };
static const char *const vector[] = { "avx2", "avx512", "amx" };
#endif
/* A device takes no number of threads: twice is then whether it repeats itself. */
#ifdef TEST_CUDA
#define THREADS_MOST 2u
#else
#define THREADS_MOST 3u
#endif
#define ISAS (sizeof isas / sizeof *isas)
#define VECTORS (sizeof vector / sizeof *vector)

/* Where one will do. */
#ifdef TEST_CUDA
static const char any[] = "cuda";
#else
static const char any[] = "auto";
#endif

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* ---- right: plain double loops over what the formulas say ---- */

/* The prepared row in double. */
static void prepare_double(const struct product_case *c, uint32_t row, double *y)
{
    const float *x = c->x + (size_t)row * c->cols;
    double sum = 0;
    for (uint32_t i = 0; i < c->cols; i++)
        sum += (double)x[i] * x[i];
    for (uint32_t i = 0; i < c->cols; i++) {
        y[i] = x[i];
        if (c->prepare == OPS_RMS_NORM)
            y[i] = y[i] * c->norm[i] / sqrt(sum / c->cols + (double)1e-5f);
        if (c->prepare == OPS_SWIGLU)
            y[i] = y[i] / (1 + exp(-y[i])) * c->x2[(size_t)row * c->cols + i];
        if (c->prepare == OPS_GEGLU)
            y[i] = y[i] * (1 + tanh(0.7978845608028654 * (y[i] + 0.044715 * pow(y[i], 3)))) / 2 *
                   c->x2[(size_t)row * c->cols + i];
    }
}

/* Each block of 32 as amax / 127 times whole numbers. */
static void quantize_double(double *y, double *slack, uint32_t cols)
{
    for (uint32_t b = 0; b < cols; b += 32) {
        double amax = 0;
        for (uint32_t i = b; i < b + 32; i++)
            amax = fmax(amax, fabs(y[i]));
        double s = amax / 127;
        for (uint32_t i = b; i < b + 32 && s > 0; i++) {
            double v = y[i] / s, whole = nearbyint(v);
            /* Computed in float, a value this near to a tie may have gone either way. */
            slack[i] = fabs(fabs(v - whole) - 0.5) < 1e-4 ? s : 0;
            y[i] = whole * s;
        }
    }
}

/* What two terms leave of a number: half a 127th of the largest of what one leaves, which is half a 127th of
 * the largest of 32. */
static void slack_of_two(const double *y, double *slack, uint32_t cols)
{
    for (uint32_t b = 0; b < cols; b += 32) {
        double amax = 0;
        for (uint32_t i = b; i < b + 32; i++)
            amax = fmax(amax, fabs(y[i]));
        for (uint32_t i = b; i < b + 32; i++)
            slack[i] = amax / 254 / 254;
    }
}

/* Checks one row of output j. The bound is that of float sums in any order. */
static void check_row(const struct product_case *c, const char *who, uint32_t j, uint32_t row,
                      enum ops_activations activations, const float *out)
{
    uint32_t cols = c->cols, rows = c->rows[j];
    double *y = calloc(2 * (size_t)cols, sizeof *y), *slack = y + cols;
    float *w = malloc((size_t)cols * sizeof *w);
    const struct quant_info *info = quant_info_find(c->type[j]);
    prepare_double(c, row, y);
    if (activations == OPS_INT8 && info->block > 1)
        quantize_double(y, slack, cols);
    if (activations == OPS_INT16 && info->block > 1)
        slack_of_two(y, slack, cols);
    for (uint32_t r = 0; r < rows; r++) {
        size_t row_bytes = (size_t)cols / info->block * info->bytes;
        double sum = c->add ? c->start[j][(size_t)row * rows + r] : 0, size = fabs(sum), ties = 0;
        if (c->bias[j]) {
            sum += c->bias[j][r];
            size += fabs((double)c->bias[j][r]);
        }
        quant_dequantize(c->type[j], c->weight[j] + r * row_bytes, cols, w);
        for (uint32_t i = 0; i < cols; i++) {
            sum += w[i] * y[i];
            size += fabs(w[i] * y[i]);
            ties += fabs(w[i]) * slack[i];
        }
        /* Minima and quants are summed apart and may cancel: count both. */
        if (case_has_minima(c->type[j]))
            size *= 4;
        double far = fabs(out[r] - sum), bound = ties * 1.01 + size * 4e-6 + 1e-30;
        cr_assert(far <= bound, "%s: %s output %u row %u of n %u, cols %u: %g, should be %g within %g", who,
                  info->name, r, row, c->n, cols, (double)out[r], sum, bound);
    }
    free(y);
    free(w);
}

static void check_against_loops(struct dut *d, uint64_t seed, uint32_t cases,
                                enum ops_activations activations)
{
    struct rng r = { seed };
    for (uint32_t i = 0; i < cases; i++) {
        struct product_case c = { 0 };
        float *out[OPS_MAX_OUT];
        case_random(&r, &c);
        case_outputs(&c, c.n, out);
        cr_assert(case_run(&c, d, 0, c.n, out));
        for (uint32_t j = 0; j < c.count; j++)
            for (uint32_t row = 0; row < c.n; row++)
                check_row(&c, d->name, j, row, activations, out[j] + (size_t)row * c.rows[j]);
        case_outputs_free(&c, out);
        case_free(&c);
    }
}

Test(matmul, every_shape_and_type_is_the_double_sum_over_its_int8_activations)
{
    for (size_t i = 0; i < ISAS; i++) {
        struct dut d;
        if (!dut_open(&d, isas[i], 2, OPS_INT8))
            continue;
        check_against_loops(&d, 11 + i, cases_of(40, 2), OPS_INT8);
        dut_close(&d);
    }
}

Test(matmul, two_int8_leave_next_to_nothing_of_an_activation)
{
    for (size_t i = 0; i < ISAS; i++) {
        struct dut d;
        if (!dut_open(&d, isas[i], 2, OPS_INT16))
            continue;
        check_against_loops(&d, 311 + i, cases_of(30, 2), OPS_INT16);
        dut_close(&d);
    }
}

Test(matmul, with_float_activations_nothing_is_quantized)
{
    for (size_t i = 0; i < ISAS; i++) {
        struct dut d;
        if (!dut_open(&d, isas[i], 2, OPS_F32))
            continue;
        check_against_loops(&d, 211 + i, cases_of(40, 2), OPS_F32);
        dut_close(&d);
    }
}

Test(matmul, the_reference_is_the_double_sum)
{
    struct dut d;
    cr_assert(dut_open(&d, NULL, 1, OPS_INT8));
    check_against_loops(&d, 5, cases_of(40, 2), OPS_F32);
    dut_close(&d);
}

/* Weights and activations at the ends of their ranges, signs equal: integer sums at their largest. */
Test(matmul, extreme_quants_do_not_saturate)
{
    const unsigned char fills[] = { 0x00, 0x7f, 0x80, 0x81, 0xff };
    for (size_t i = 0; i < ISAS * CASE_QUANTS * 5; i++) {
        struct rng r = { i };
        struct product_case c = {
            .n = 17, .cols = 256, .count = 1, .type = { case_types[i / 5 % CASE_QUANTS] }, .rows = { 17 }
        };
        struct dut d;
        float *out[OPS_MAX_OUT];
        if (!dut_open(&d, isas[i / 5 / CASE_QUANTS], 1, OPS_INT8))
            continue;
        const struct quant_info *info = quant_info_find(c.type[0]);
        const uint32_t scale = case_scale_at(c.type[0]);
        case_fill(&r, &c, SCALES_USUAL);
        for (size_t b = 0; b < (size_t)c.rows[0] * c.cols / info->block; b++) {
            unsigned char *at = c.weight[0] + b * info->bytes, own[4];
            memcpy(own, at + scale, case_has_minima(c.type[0]) ? 4 : 2);
            memset(at, fills[i % 5], info->bytes);
            if (c.type[0] == QUANT_Q6_K) /* scales, signed */
                memset(at + 192, b % 3 ? 0x80 : 0x7f, 16);
            memcpy(at + scale, own, case_has_minima(c.type[0]) ? 4 : 2);
        }
        for (size_t k = 0; k < (size_t)c.n * c.cols; k++)
            c.x[k] = k / c.cols % 3 == 0 ? 127 : k / c.cols % 3 == 1 ? -127 : k % 2 ? 127 : -127;
        case_outputs(&c, c.n, out);
        cr_assert(case_run(&c, &d, 0, c.n, out));
        for (uint32_t row = 0; row < c.n; row++)
            check_row(&c, d.name, 0, row, OPS_INT8, out[0] + (size_t)row * c.rows[0]);
        case_outputs_free(&c, out);
        case_free(&c);
        dut_close(&d);
    }
}

/* ---- exact: the same bits however it is computed ---- */

static void check_same(const struct product_case *c, float *const a[], float *const b[], uint32_t first,
                       uint32_t n, const char *what)
{
    for (uint32_t j = 0; j < c->count; j++)
        for (size_t i = 0; i < (size_t)n * c->rows[j]; i++)
            cr_assert(same_bits(a[j][(size_t)first * c->rows[j] + i], b[j][i]),
                      "%s: output %u, type %u, element %zu of rows %u..%u of %u, cols %u: %a and %a", what, j,
                      c->type[j], i, first, first + n - 1, c->n, c->cols,
                      (double)a[j][(size_t)first * c->rows[j] + i], (double)b[j][i]);
}

static void check_splits(const struct product_case *c, struct dut *d, struct rng *r)
{
    float *all[OPS_MAX_OUT], *part[OPS_MAX_OUT];
    case_outputs(c, c->n, all);
    case_outputs(c, c->n, part);
    cr_assert(case_run(c, d, 0, c->n, all));
    for (uint32_t first = 0; first < c->n; first++) {
        cr_assert(case_run(c, d, first, 1, part));
        check_same(c, all, part, first, 1, d->name);
    }
    for (uint32_t first = 0, n; first < c->n; first += n) {
        n = rng_range(r, 1, c->n - first);
        cr_assert(case_run(c, d, first, n, part));
        check_same(c, all, part, first, n, d->name);
    }
    case_outputs_free(c, all);
    case_outputs_free(c, part);
}

Test(matmul, rows_together_are_the_same_bits_as_each_alone)
{
    for (size_t i = 0; i < ISAS * 3; i++) {
        struct rng r = { 71 + i };
        struct dut d;
        if (!dut_open(&d, isas[i / 3], 2, (enum ops_activations)(i % 3)))
            continue;
        for (uint32_t k = 0; k < cases_of(8, 2); k++) {
            struct product_case c = { 0 };
            case_random(&r, &c);
            check_splits(&c, &d, &r);
            case_free(&c);
        }
        dut_close(&d);
    }
}

/* Wide and long enough for rows prepared in shares, several chunks and several pieces. */
static void large_case(struct rng *r, struct product_case *c, uint32_t n)
{
    *c = (struct product_case){ .n = n, .cols = 1536, .count = 3, .prepare = OPS_SWIGLU, .add = true };
    const uint32_t types[] = { rng_next(r) & 1 ? QUANT_Q4_1 : case_types[CASE_QUANTS - 1], QUANT_Q8_0,
                               QUANT_F16 };
    for (uint32_t j = 0; j < 3; j++) {
        c->type[j] = types[j];
        c->rows[j] = (const uint32_t[]){ 200, 49, 16 }[j];
    }
    case_fill(r, c, SCALES_USUAL);
}

Test(matmul, any_number_of_threads_gives_the_same_bits)
{
    for (size_t i = 0; i < ISAS; i++) {
        struct rng r = { 31 };
        for (int k = 0; k < 10; k++) {
            struct product_case c = { 0 };
            float *one[OPS_MAX_OUT], *more[OPS_MAX_OUT];
            const enum ops_activations how = k % 2 ? OPS_INT8 : OPS_INT16;
            if (k < 3)
                large_case(&r, &c, (const uint32_t[]){ 1, 17, cases_all() ? 150 : 70 }[k]);
            else
                case_random(&r, &c);
            case_outputs(&c, c.n, one);
            case_outputs(&c, c.n, more);
            for (uint32_t threads = 1; threads <= THREADS_MOST; threads++) {
                struct dut d;
                if (!dut_open(&d, isas[i], threads, how))
                    break;
                cr_assert(case_run(&c, &d, 0, c.n, threads == 1 ? one : more));
                if (threads > 1)
                    check_same(&c, one, more, 0, c.n, d.name);
                else
                    for (uint32_t j = 0; j < c.count; j++)
                        for (uint32_t row = 0; row < c.n; row += 7)
                            check_row(&c, d.name, j, row, how, one[j] + (size_t)row * c.rows[j]);
                dut_close(&d);
            }
            case_outputs_free(&c, one);
            case_outputs_free(&c, more);
            case_free(&c);
        }
    }
}

static void check_isas(const struct product_case *c, enum ops_activations activations)
{
    float *first[OPS_MAX_OUT], *other[OPS_MAX_OUT];
    bool have = false;
    case_outputs(c, c->n, first);
    case_outputs(c, c->n, other);
    for (size_t i = 0; i < VECTORS; i++) {
        struct dut d;
        if (!dut_open(&d, vector[i], 1, activations))
            continue;
        cr_assert(case_run(c, &d, 0, c->n, have ? other : first));
        if (have)
            check_same(c, first, other, 0, c->n, d.name);
        have = true;
        dut_close(&d);
    }
    case_outputs_free(c, first);
    case_outputs_free(c, other);
}

Test(matmul, all_vector_devices_give_the_same_bits)
{
    struct rng r = { 99 };
    for (uint32_t k = 0; k < cases_of(120, 4); k++) {
        struct product_case c = { 0 };
        if (k == 0)
            large_case(&r, &c, 70);
        else
            case_random(&r, &c);
        /* Inputs over the whole range of floats, zeros and subnormals among them. */
        for (size_t i = 0; k % 2 && i < (size_t)c.n * c.cols; i++)
            c.x[i] = i % 7 == 0 ? 0 : ldexpf(c.x[i], (int)rng_range(&r, 0, 240) - 140);
        check_isas(&c, k % 5 == 4 ? OPS_F32 : k % 5 < 2 ? OPS_INT16 : OPS_INT8);
        case_free(&c);
    }
}

/* ---- edges ---- */

Test(matmul, a_nan_or_infinity_stays_in_its_row_and_shows)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < ISAS * 3 * CASE_TYPES; i++) {
        struct rng r = { i };
        struct dut d;
        struct product_case c = {
            .n = 11, .cols = 256, .count = 1, .rows = { 33 }, .prepare = (enum ops_prepare)(i % 3)
        };
        float *clean[OPS_MAX_OUT], *dirty[OPS_MAX_OUT];
        if (!dut_open(&d, isas[i / 3 / CASE_TYPES], 2, i % 2 ? OPS_INT16 : OPS_INT8))
            continue;
        c.type[0] = case_types[i / 3 % CASE_TYPES];
        case_fill(&r, &c, SCALES_USUAL);
        case_outputs(&c, c.n, clean);
        case_outputs(&c, c.n, dirty);
        cr_assert(case_run(&c, &d, 0, c.n, clean));
        c.x[5 * c.cols + 40] = bad[i % 3];
        c.x2[5 * c.cols + 40] = NAN;
        cr_assert(case_run(&c, &d, 0, c.n, dirty));
        for (uint32_t row = 0; row < c.n; row++)
            for (uint32_t k = row * c.rows[0]; k < (row + 1) * c.rows[0]; k++)
                cr_assert(row == 5 ? !isfinite(dirty[0][k]) : same_bits(clean[0][k], dirty[0][k]),
                          "%s type %u row %u: %g", d.name, c.type[0], row, (double)dirty[0][k]);
        case_outputs_free(&c, clean);
        case_outputs_free(&c, dirty);
        case_free(&c);
        dut_close(&d);
    }
}

Test(matmul, zero_rows_of_input_give_zeros)
{
    for (size_t i = 0; i < ISAS * CASE_QUANTS; i++) {
        struct rng r = { 3 };
        struct dut d;
        struct product_case c = {
            .n = 3, .cols = 256, .count = 1, .type = { case_types[i % CASE_QUANTS] }, .rows = { 40 }
        };
        float *out[OPS_MAX_OUT];
        if (!dut_open(&d, isas[i / CASE_QUANTS], 1, i % 2 ? OPS_INT16 : OPS_INT8))
            continue;
        case_fill(&r, &c, SCALES_MIXED);
        memset(c.x, 0, (size_t)c.n * c.cols * sizeof(float));
        case_outputs(&c, c.n, out);
        cr_assert(case_run(&c, &d, 0, c.n, out));
        for (uint32_t j = 0; j < c.count; j++)
            for (uint32_t k = 0; k < c.n * c.rows[j]; k++)
                cr_assert(out[j][k] == 0, "%s: %g", d.name, (double)out[j][k]);
        case_outputs_free(&c, out);
        case_free(&c);
        dut_close(&d);
    }
}

/* Through an identity matrix the prepared rows come out as they are. */
Test(matmul, norm_and_gate_are_their_formulas_over_the_range_of_floats)
{
    enum { COLS = 83 };
    static float identity[COLS * COLS];
    for (int i = 0; i < COLS; i++)
        identity[i * COLS + i] = 1;
    for (size_t i = 0; i < ISAS * 40; i++) {
        struct rng r = { i };
        struct dut d;
        struct product_case c = { .n = 1, .cols = COLS, .count = 1, .type = { QUANT_F32 }, .rows = { COLS } };
        float *out[OPS_MAX_OUT];
        double want[COLS];
        if (!dut_open(&d, isas[i / 40], 1, OPS_INT8))
            continue;
        c.prepare = i % 2 ? OPS_SWIGLU : OPS_RMS_NORM;
        case_fill(&r, &c, SCALES_USUAL);
        memcpy(c.weight[0], identity, sizeof identity);
        for (int k = 0; k < COLS; k++) /* the gate's exponential from nothing to overflow */
            c.x[k] *= (const float[]){ 1, 1e-3f, 40, 10 }[i / 2 % 4];
        case_outputs(&c, 1, out);
        cr_assert(case_run(&c, &d, 0, 1, out));
        prepare_double(&c, 0, want);
        for (int k = 0; k < COLS; k++)
            cr_assert(fabs(out[0][k] - want[k]) <= 1e-6 * fabs(want[k]) + 1e-36, "%s x %g: %g, should be %g",
                      d.name, (double)c.x[k], (double)out[0][k], want[k]);
        case_outputs_free(&c, out);
        case_free(&c);
        dut_close(&d);
    }
}

Test(matmul, a_gate_too_large_for_the_exponential_is_its_limit)
{
    const float x[] = { 1e4f, -1e4f, 3e38f, -3e38f, 100, -100, -88.5f },
                want[] = { 1e4f, 0, 3e38f, 0, 100, 0, 0 };
    for (size_t i = 0; i < ISAS * 7; i++) {
        struct dut d;
        float one = 1, got = -1, *out[OPS_MAX_OUT] = { &got }, value = x[i % 7];
        struct product_case c = { .n = 1,
                                  .cols = 1,
                                  .count = 1,
                                  .type = { QUANT_F32 },
                                  .rows = { 1 },
                                  .x = &value,
                                  .x2 = &one,
                                  .norm = &one,
                                  .prepare = OPS_SWIGLU,
                                  .weight = { (unsigned char *)&one },
                                  .start = { &one } };
        if (!dut_open(&d, isas[i / 7], 1, OPS_INT8))
            continue;
        cr_assert(case_run(&c, &d, 0, 1, out));
        cr_expect(fabsf(got - want[i % 7]) <= 1e-35f, "%s: silu(%g) = %g", d.name, (double)value,
                  (double)got);
        dut_close(&d);
    }
}

/* ---- embeddings and copies ---- */

Test(matmul, embedding_rows_are_the_dequantized_file)
{
    for (size_t i = 0; i < (ISAS + 1) * CASE_TYPES; i++) {
        enum { ROWS = 37, COLS = 512, N = 40 };
        struct rng r = { i };
        struct dut d;
        struct ops_weight *w = NULL;
        int32_t ids[N];
        char err[200] = "";
        float want[COLS], scale = i % 2 ? 1 : 25.298222f;
        if (!dut_open(&d, i / CASE_TYPES < ISAS ? isas[i / CASE_TYPES] : NULL, 2, OPS_INT8))
            continue;
        const struct quant_info *info = quant_info_find(case_types[i % CASE_TYPES]);
        unsigned char *raw = case_weights(&r, case_types[i % CASE_TYPES], ROWS, COLS, SCALES_MIXED);
        cr_assert_eq(d.ops->weight_new(d.dev,
                                       &(struct ops_tensor){ case_types[i % CASE_TYPES], ROWS, COLS, raw },
                                       &w, err, sizeof err),
                     0, "%s", err);
        for (int k = 0; k < N; k++)
            ids[k] = (int32_t)rng_range(&r, 0, ROWS - 1);
        float *out = d.ops->alloc(d.dev, N * COLS * sizeof *out);
        d.ops->embed(d.dev, w, ids, N, scale, out);
        float *got = dut_download(&d, out, N * COLS);
        for (int k = 0; k < N; k++) {
            quant_dequantize(case_types[i % CASE_TYPES],
                             raw + (size_t)ids[k] * (COLS / info->block) * info->bytes, COLS, want);
            for (int col = 0; col < COLS; col++)
                cr_assert(got[k * COLS + col] == scale * want[col], "%s %s id %d col %d: %g, should be %g",
                          d.name, info->name, ids[k], col, (double)got[k * COLS + col], (double)want[col]);
        }
        free(got);
        d.ops->release(d.dev, out);
        d.ops->weight_free(w);
        free(raw);
        dut_close(&d);
    }
}

/* Of rows of 1 .. 700 numbers: in double, and the same bits on every instruction set and number of threads.
 */
Test(matmul, norm_add_adds_the_norm_of_each_row)
{
    struct rng r = { 3 };
    for (uint32_t k = 0; k < 40; k++) {
        uint32_t cols = rng_range(&r, 1, k % 4 ? 100 : 700), n = rng_range(&r, 1, k % 5 ? 9 : 40);
        float *x = case_floats(&r, (size_t)n * cols, 3), *norm = case_floats(&r, cols, 1),
              *start = case_floats(&r, (size_t)n * cols, 2), *first = NULL;
        for (size_t i = 0; i < 2 * VECTORS + 2; i++) {
            struct dut d;
            const bool is_vector = i < 2 * VECTORS;
            const char *isa = is_vector ? vector[i / 2] : i == 2 * VECTORS ? "portable" : NULL;
            if (!dut_open(&d, isa, 1 + i % 2, OPS_INT8))
                continue;
            float *dx = dut_upload(&d, x, (size_t)n * cols), *dnorm = dut_upload(&d, norm, cols);
            float *out = dut_upload(&d, start, (size_t)n * cols);
            d.ops->norm_add(d.dev, dx, dnorm, 1e-3f, n, cols, out);
            float *got = dut_download(&d, out, (size_t)n * cols);
            for (uint32_t row = 0; row < n; row++) {
                double sum = 0;
                for (uint32_t c = 0; c < cols; c++)
                    sum += pow(x[row * cols + c], 2);
                for (uint32_t c = 0; c < cols; c++) {
                    uint32_t at = row * cols + c;
                    double want = start[at] + x[at] / sqrt(sum / cols + (double)1e-3f) * norm[c];
                    cr_assert_float_eq(got[at], want, 3e-6 * (1 + fabs(want)), "%s: row %u of %u, column %u",
                                       d.name, row, n, c);
                }
            }
            if (is_vector && first)
                cr_assert_arr_eq(got, first, (size_t)n * cols * sizeof *got, "%s", d.name);
            d.ops->release(d.dev, dx);
            d.ops->release(d.dev, dnorm);
            d.ops->release(d.dev, out);
            dut_close(&d);
            if (is_vector && !first)
                first = got;
            else
                free(got);
        }
        free(first);
        free(x);
        free(norm);
        free(start);
    }
}

Test(matmul, gather_takes_rows_by_index)
{
    const uint32_t idx[] = { 4, 0, 4, 2 };
    float x[5 * 3];
    for (int i = 0; i < 15; i++)
        x[i] = (float)i;
    for (int i = 0; i < 2; i++) {
        struct dut d;
        cr_assert(dut_open(&d, i ? NULL : any, 1, OPS_INT8));
        float *from = dut_upload(&d, x, 15), *to = d.ops->alloc(d.dev, 12 * sizeof *to);
        d.ops->gather(d.dev, from, idx, 4, 3, to);
        float *out = dut_download(&d, to, 12);
        for (uint32_t k = 0; k < 12; k++)
            cr_expect(out[k] == (float)(idx[k / 3] * 3 + k % 3));
        free(out);
        d.ops->release(d.dev, from);
        d.ops->release(d.dev, to);
        dut_close(&d);
    }
}

/* ---- weights ---- */

Test(matmul, weights_take_the_files_bytes)
{
    struct dut d;
    cr_assert(dut_open(&d, any, 2, OPS_INT8));
    for (size_t i = 0; i < CASE_TYPES; i++) {
        struct rng r = { i };
        struct ops_weight *w = NULL;
        char err[200] = "";
        unsigned char *raw = case_weights(&r, case_types[i], 64, 768, SCALES_USUAL);
        const struct quant_info *info = quant_info_find(case_types[i]);
        cr_assert_eq(d.ops->weight_new(d.dev, &(struct ops_tensor){ case_types[i], 64, 768, raw }, &w, err,
                                       sizeof err),
                     0);
        size_t file = (size_t)64 * 768 / info->block * info->bytes, got = d.ops->weight_bytes(w);
        /* Q4_K's scales of 6 bits are bytes here. */
        cr_expect(got >= file && got <= file + file / 36 + 512, "%s: %zu bytes in the file, %zu here",
                  info->name, file, got);
        d.ops->weight_free(w);
        free(raw);
    }
    dut_close(&d);
}

Test(matmul, impossible_weights_are_refused_with_the_reason)
{
    const struct {
        struct ops_tensor t;
        int error;
        const char *says;
    } cases[] = {
        { { 21, 32, 256, "" }, -ENOTSUP, "type 21" },
        { { QUANT_Q4_1, 32, 48, "" }, -EINVAL, "48 columns: Q4_1 needs a multiple of 32" },
        { { QUANT_Q6_K, 32, 640, "" }, -EINVAL, "640 columns: Q6_K needs a multiple of 256" },
        { { QUANT_F32, 0, 32, "" }, -EINVAL, "0 rows" },
        { { QUANT_F32, 32, 0, "" }, -EINVAL, "0 columns" },
        { { QUANT_Q8_0, UINT64_MAX, 32, "" }, -EINVAL, "18446744073709551615 rows" },
    };
    struct dut d;
    cr_assert(dut_open(&d, any, 1, OPS_INT8));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ops_weight *w = NULL;
        char err[200] = "";
        cr_expect_eq(d.ops->weight_new(d.dev, &cases[i].t, &w, err, sizeof err), cases[i].error,
                     "case %zu: %s", i, err);
        cr_expect_not_null(strstr(err, cases[i].says), "case %zu says %s", i, err);
        cr_expect_null(w);
    }
    d.ops->weight_free(NULL);
    dut_close(&d);
}
