/* Gguf, the tensor types: number, name and block layout of all that are in use, read by this build or not, so
 * that `model info` can show any file and an error can name what it refuses. Pure tables; any thread. Tests:
 * tests/unit/test_gguf.c */
#include "model/gguf_file.h"

static const struct gguf_type_info types[] = {
    [0] = { "F32", 1, 4 },         [1] = { "F16", 1, 2 },         [2] = { "Q4_0", 32, 18 },
    [3] = { "Q4_1", 32, 20 },      [6] = { "Q5_0", 32, 22 },      [7] = { "Q5_1", 32, 24 },
    [8] = { "Q8_0", 32, 34 },      [9] = { "Q8_1", 32, 36 },      [10] = { "Q2_K", 256, 84 },
    [11] = { "Q3_K", 256, 110 },   [12] = { "Q4_K", 256, 144 },   [13] = { "Q5_K", 256, 176 },
    [14] = { "Q6_K", 256, 210 },   [15] = { "Q8_K", 256, 292 },   [16] = { "IQ2_XXS", 256, 66 },
    [17] = { "IQ2_XS", 256, 74 },  [18] = { "IQ3_XXS", 256, 98 }, [19] = { "IQ1_S", 256, 50 },
    [20] = { "IQ4_NL", 32, 18 },   [21] = { "IQ3_S", 256, 110 },  [22] = { "IQ2_S", 256, 82 },
    [23] = { "IQ4_XS", 256, 136 }, [24] = { "I8", 1, 1 },         [25] = { "I16", 1, 2 },
    [26] = { "I32", 1, 4 },        [27] = { "I64", 1, 8 },        [28] = { "F64", 1, 8 },
    [29] = { "IQ1_M", 256, 56 },   [30] = { "BF16", 1, 2 },       [34] = { "TQ1_0", 256, 54 },
    [35] = { "TQ2_0", 256, 66 },   [39] = { "MXFP4", 32, 17 },    [40] = { "NVFP4", 64, 36 },
    [41] = { "Q1_0", 128, 18 },
};

/* Names for numbers without one: literals, because a name must live as long as the program. */
#define TEN(d)                                                                                               \
    "type " d "0", "type " d "1", "type " d "2", "type " d "3", "type " d "4", "type " d "5", "type " d "6", \
        "type " d "7", "type " d "8", "type " d "9"
static const char *const unnamed[] = { TEN(""),  TEN("1"), TEN("2"), TEN("3"), TEN("4"),
                                       TEN("5"), TEN("6"), TEN("7"), TEN("8"), TEN("9") };

const struct gguf_type_info *gguf_type_info(uint32_t type)
{
    if (type >= sizeof types / sizeof *types || !types[type].name)
        return NULL;
    return &types[type];
}

const char *gguf_type_name(uint32_t type)
{
    const struct gguf_type_info *info = gguf_type_info(type);
    if (info)
        return info->name;
    return type < sizeof unnamed / sizeof *unnamed ? unnamed[type] : "type above 99";
}

size_t gguf_scalar_size(uint32_t type)
{
    static const uint8_t sizes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < sizeof sizes ? sizes[type] : 0;
}

const char *gguf_value_type_name(uint32_t type)
{
    static const char *const names[] = {
        [GGUF_U8] = "u8",      [GGUF_I8] = "i8",     [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",    [GGUF_I32] = "i32",   [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_STR] = "string", [GGUF_ARR] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
        [GGUF_F64] = "f64",
    };
    return type < sizeof names / sizeof *names ? names[type] : "unknown";
}
