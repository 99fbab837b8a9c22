/* Quant: conversions against arithmetic with ldexp, block layouts against hand-made blocks and a generator
 * that writes them from the formulas of quant.h. */
#include "kernels/quant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* What the ten mantissa and five exponent bits say. */
static double half_value(uint32_t h)
{
    uint32_t e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(1024 + m, (int)e - 25);
    return h & 0x8000 ? -v : v;
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

Test(quant, every_half_has_its_value_and_comes_back)
{
    for (uint32_t h = 0; h < 65536; h++) {
        double want = half_value(h);
        float got = quant_f16_to_f32((uint16_t)h);
        if (isnan(want)) {
            cr_assert(isnan(got) && isnan(quant_f16_to_f32(quant_f32_to_f16(got))), "half %04x", h);
            continue;
        }
        cr_assert_eq(bits(got), bits((float)want), "half %04x is %g, not %g", h, want, (double)got);
        cr_assert_eq(quant_f32_to_f16(got), h, "half %04x comes back as %04x", h, quant_f32_to_f16(got));
    }
}

Test(quant, floats_between_halves_go_to_the_nearest_and_ties_to_even)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float low = (float)half_value(h), high = h == 0x7bff ? 65536.0f : (float)half_value(h + 1);
        float mid = (low + high) / 2; /* exact: 12 bits at most */
        uint32_t even = h & 1 ? h + 1 : h;
        cr_assert_eq(quant_f32_to_f16(mid), even, "the middle above %04x", h);
        cr_assert_eq(quant_f32_to_f16(nextafterf(mid, low)), h, "just below the middle above %04x", h);
        cr_assert_eq(quant_f32_to_f16(nextafterf(mid, high)), h + 1, "just above the middle above %04x", h);
        cr_assert_eq(quant_f32_to_f16(-mid), even | 0x8000, "the middle below -%04x", h);
    }
    cr_assert_eq(quant_f32_to_f16(3.4e38f), 0x7c00, "overflow is infinity");
    cr_assert_eq(quant_f32_to_f16(-INFINITY), 0xfc00, "infinity stays");
    cr_assert_eq(quant_f32_to_f16(1e-30f), 0, "underflow is zero");
}

Test(quant, bf16_is_the_upper_half_of_a_float)
{
    const float exact[] = { 0, -0.0f, 1, -1.5f, 0x1p-133f, 0x1.fep127f, INFINITY };
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        cr_expect_eq(bits(quant_bf16_to_f32((uint16_t)(bits(exact[i]) >> 16))), bits(exact[i]));
    cr_expect(isnan(quant_bf16_to_f32(0x7fc0)));
}

Test(quant, the_types_are_known_by_number_name_and_size)
{
    const struct quant_info want[] = { { 0, "F32", 1, 4 },    { 1, "F16", 1, 2 },    { 30, "BF16", 1, 2 },
                                       { 2, "Q4_0", 32, 18 }, { 3, "Q4_1", 32, 20 }, { 8, "Q8_0", 32, 34 } };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct quant_info *got = quant_info_find(want[i].type);
        cr_assert_not_null(got);
        cr_expect_str_eq(got->name, want[i].name);
        cr_expect(got->block == want[i].block && got->bytes == want[i].bytes, "sizes of %s", got->name);
        cr_expect_not_null(strstr(quant_names(), got->name));
    }
    for (uint32_t t = 0; t < 300; t++)
        cr_expect_eq(quant_info_find(t) != NULL, t <= 3 || t == 8 || t == 30, "type %u", t);
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Blocks of bytes as a file has them, starting at an odd address, each weight checked by its formula in
 * double. */
static void check_type(uint32_t type)
{
    enum { BLOCKS = 7 };
    const struct quant_info *info = quant_info_find(type);
    unsigned char raw[BLOCKS * 34 + 1], *src = raw + 1;
    float got[BLOCKS * 32];
    uint32_t state = type + 1;
    for (size_t i = 0; i < sizeof raw; i++)
        raw[i] = (unsigned char)next(&state);
    uint32_t head = type == QUANT_Q4_1 ? 4 : 2;
    for (uint32_t b = 0; b < BLOCKS; b++) /* keep scales and minima finite */
        for (uint32_t i = 1; i < head; i += 2)
            src[b * info->bytes + i] &= 0xbb;
    quant_dequantize(type, src, BLOCKS * 32, got);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const unsigned char *block = src + b * info->bytes, *q = block + head;
        double d = half_value(block[0] | (uint32_t)block[1] << 8),
               m = type == QUANT_Q4_1 ? half_value(block[2] | (uint32_t)block[3] << 8) : 0;
        for (uint32_t i = 0; i < 32; i++) {
            int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
            double want = type == QUANT_Q8_0   ? d * (q[i] < 128 ? q[i] : q[i] - 256)
                          : type == QUANT_Q4_0 ? d * (nibble - 8)
                                               : d * nibble + m;
            cr_assert_float_eq(got[b * 32 + i], want, 1e-6 * fabs(want) + 1e-12 + fabs(m) * 1e-6,
                               "%s block %u weight %u", info->name, b, i);
        }
    }
}

Test(quant, blocks_become_the_weights_of_their_formula)
{
    check_type(QUANT_Q4_0);
    check_type(QUANT_Q4_1);
    check_type(QUANT_Q8_0);
}

Test(quant, plain_types_are_converted_one_by_one)
{
    const uint16_t halves[] = { 0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000 };
    const float floats[] = { 1, -2.5f, 1e-40f, 3e38f, -0.0f };
    float got[5];
    unsigned char odd[1 + sizeof floats];
    memcpy(odd + 1, halves, sizeof halves);
    quant_dequantize(QUANT_F16, odd + 1, 5, got);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(bits(got[i]), bits((float)half_value(halves[i])));
    quant_dequantize(QUANT_BF16, odd + 1, 5, got);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(bits(got[i]), (uint32_t)halves[i] << 16);
    memcpy(odd + 1, floats, sizeof floats);
    quant_dequantize(QUANT_F32, odd + 1, 5, got);
    cr_expect_arr_eq(got, floats, sizeof floats);
}
