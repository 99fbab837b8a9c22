/* Quant: conversions against arithmetic with ldexp, block layouts against blocks that another program has
 * read. */
#include "kernels/quant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
    const struct quant_info want[] = {
        { 0, "F32", 1, 4 },       { 1, "F16", 1, 2 },       { 30, "BF16", 1, 2 },     { 2, "Q4_0", 32, 18 },
        { 3, "Q4_1", 32, 20 },    { 6, "Q5_0", 32, 22 },    { 7, "Q5_1", 32, 24 },    { 8, "Q8_0", 32, 34 },
        { 12, "Q4_K", 256, 144 }, { 13, "Q5_K", 256, 176 }, { 14, "Q6_K", 256, 210 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct quant_info *got = quant_info_find(want[i].type);
        cr_assert_not_null(got);
        cr_expect_str_eq(got->name, want[i].name);
        cr_expect(got->block == want[i].block && got->bytes == want[i].bytes, "sizes of %s", got->name);
        cr_expect_not_null(strstr(quant_names(), got->name));
    }
    for (uint32_t t = 0; t < 300; t++)
        cr_expect_eq(quant_info_find(t) != NULL,
                     t <= 3 || (t >= 6 && t <= 8) || (t >= 12 && t <= 14) || t == 30, "type %u", t);
}

static size_t from_hex(const char *text, unsigned char *to)
{
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned int byte = 0;
        cr_assert_eq(sscanf(text + 2 * i, "%2x", &byte), 1);
        to[i] = (unsigned char)byte;
    }
    return n;
}

/* Bytes and weights of one block, starting at an odd address. */
static void check_block(const struct quant_info *info, const char *bytes, const char *weights)
{
    unsigned char raw[1 + 256], want[256 * 4];
    float got[256];
    cr_assert_eq(from_hex(bytes, raw + 1), info->bytes);
    cr_assert_eq(from_hex(weights, want), 4 * info->block);
    quant_dequantize(info->type, raw + 1, info->block, got);
    for (uint32_t i = 0; i < info->block; i++) {
        const unsigned char *w = want + 4 * i;
        uint32_t is = (uint32_t)w[0] << 24 | (uint32_t)w[1] << 16 | (uint32_t)w[2] << 8 | w[3];
        float f;
        memcpy(&f, &is, sizeof f);
        cr_assert(f == got[i], "%s weight %u is %a, should be %a", info->name, i, (double)got[i], (double)f);
    }
}

/* tests/data/make-quant-vectors says what made them. */
Test(quant, blocks_become_the_weights_that_the_gguf_package_makes_of_them)
{
    static char line[4096], *word[3];
    char path[512];
    uint32_t seen = 0;
    snprintf(path, sizeof path, "%s/quant-vectors.txt", getenv("BERTH_TEST_DATA"));
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    while (fgets(line, sizeof line, f)) {
        word[0] = strtok(line, " ");
        word[1] = strtok(NULL, " ");
        word[2] = strtok(NULL, "\n");
        cr_assert_not_null(word[2]);
        for (uint32_t type = 0; type < 31; type++) {
            const struct quant_info *info = quant_info_find(type);
            if (info && !strcmp(info->name, word[0])) {
                check_block(info, word[1], word[2]);
                seen |= 1u << type;
            }
        }
    }
    fclose(f);
    for (uint32_t type = 2; type < 30; type++)
        cr_expect(!quant_info_find(type) || seen >> type & 1, "type %u has no vectors", type);
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
