/* Gguf: right files are read back as written; wrong ones are refused with words that name what is wrong; no
 * bytes whatever make it read outside the file. */
#include "gguf_write.h"
#include "model/fingerprint.h"
#include "model/gguf_file.h"
#include <criterion/criterion.h>
#include <errno.h>

/* Touches everything the reader hands out and checks that it lies inside the file. */
static uint64_t walk(const struct gguf *f)
{
    uint64_t sum = 0;
    char text[256];
    struct gguf_str name;

    for (uint64_t i = 0; i < gguf_n_keys(f); i++) {
        const struct gguf_key *k = &f->keys[i];
        gguf_key_text(f, i, &name, text, sizeof text);
        sum += strlen(text);
        for (uint64_t j = 0; k->type == GGUF_ARR && k->array.type == GGUF_STR && j < k->array.len; j++) {
            struct gguf_str s = gguf_array_str(&k->array, j);
            cr_assert((const uint8_t *)s.data + s.len <= f->map + f->size);
        }
    }
    for (uint64_t i = 0; i < gguf_n_tensors(f); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(f, i);
        const uint8_t *data = t->data;
        cr_assert(!data || (data >= f->map && data + t->size <= f->map + f->size));
        for (size_t b = 0; b < t->size; b++)
            sum += data[b];
        gguf_tensor_release(f, t);
    }
    return sum;
}

/* A file with every type of value and a few tensors. */
static struct bytes example(size_t *ret_data_start)
{
    static const uint8_t widths[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    const char *words[] = { "alpha", "", "gamma" };
    float values[64];
    char name[16];
    struct gguf_write w = { 0 };

    for (uint32_t type = 0; type < sizeof widths; type++) {
        uint64_t v = type == GGUF_F32 ? 0x3fc00000 : type == GGUF_F64 ? 0x3ff8000000000000 : 1;
        if (!widths[type])
            continue;
        snprintf(name, sizeof name, "scalar.%u", type);
        write_key(&w, name, type);
        bytes_put(&w.keys, &v, widths[type]);
    }
    write_text(&w, "text", "some text");
    write_texts(&w, "words", words, 3);
    write_key(&w, "numbers", GGUF_ARR);
    put_u32(&w.keys, GGUF_I32);
    put_u64(&w.keys, 3);
    bytes_put(&w.keys, (int32_t[]){ 7, -8, 9 }, 12);
    write_key(&w, "reals", GGUF_ARR);
    put_u32(&w.keys, GGUF_F32);
    put_u64(&w.keys, 2);
    bytes_put(&w.keys, (float[]){ 0.5f, -2 }, 8);
    for (int i = 0; i < 64; i++)
        values[i] = (float)i;
    write_tensor(&w, "a", 0, 8, 8, values, sizeof values);
    write_tensor(&w, "b", 2, 32, 2, values, 36);
    write_tensor(&w, "c", 77, 5, 1, NULL, 0);
    return write_finish(&w, ret_data_start);
}

static struct gguf *open_example(void)
{
    char err[512] = "";
    struct gguf *f = NULL;
    struct bytes file = example(NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    free(file.data);
    return f;
}

Test(gguf, scalars_of_every_width_are_read_back)
{
    char err[512] = "";
    struct gguf *f = open_example();
    uint32_t u = 0;
    float r = 0;
    bool b = false;

    for (const char *types = "0 1 2 3 4 5 10 11"; *types;
         types += strcspn(types, " "), types += *types == ' ') {
        char name[16];
        snprintf(name, sizeof name, "scalar.%d", atoi(types));
        u = 0;
        cr_expect_eq(gguf_get_u32(f, name, &u, err, sizeof err), 1, "%s", err);
        cr_expect_eq(u, 1, "%s", name);
    }
    cr_expect_eq(gguf_get_f32(f, "scalar.6", &r, err, sizeof err), 1);
    cr_expect_eq(r, 1.5f);
    cr_expect_eq(gguf_get_f32(f, "scalar.12", &r, err, sizeof err), 1);
    cr_expect_eq(r, 1.5f);
    cr_expect_eq(gguf_get_bool(f, "scalar.7", &b, err, sizeof err), 1);
    cr_expect(b);
    cr_expect_eq(gguf_get_u32(f, "nothing", &u, err, sizeof err), 0, "an absent key is no error");
    gguf_close(f);
}

Test(gguf, strings_and_arrays_are_read_back)
{
    char err[512] = "";
    struct gguf *f = open_example();
    struct gguf_str s;
    const struct gguf_array *a;

    cr_assert_eq(gguf_get_str(f, "text", &s, err, sizeof err), 1);
    cr_expect(s.len == 9 && memcmp(s.data, "some text", 9) == 0);
    cr_assert_eq(gguf_get_array(f, "words", GGUF_STR, &a, err, sizeof err), 1);
    cr_assert_eq(gguf_array_len(a), 3);
    s = gguf_array_str(a, 2);
    cr_expect(s.len == 5 && memcmp(s.data, "gamma", 5) == 0);
    cr_expect_eq(gguf_array_str(a, 1).len, 0);
    cr_assert_eq(gguf_get_array(f, "numbers", GGUF_I32, &a, err, sizeof err), 1);
    cr_expect(gguf_array_i32(a, 0) == 7 && gguf_array_i32(a, 1) == -8 && gguf_array_i32(a, 2) == 9);
    cr_assert_eq(gguf_get_array(f, "reals", GGUF_F32, &a, err, sizeof err), 1);
    cr_expect(gguf_array_f32(a, 0) == 0.5f && gguf_array_f32(a, 1) == -2);
    gguf_close(f);
}

Test(gguf, tensors_are_found_with_their_shape_and_data)
{
    struct gguf *f = open_example();
    const struct gguf_tensor *t = gguf_tensor_find(f, "a");
    float v;

    cr_assert_not_null(t);
    cr_expect(t->n_dims == 2 && t->dims[0] == 8 && t->dims[1] == 8 && t->dims[2] == 1 && t->dims[3] == 1);
    memcpy(&v, (const char *)t->data + 63 * sizeof v, sizeof v);
    cr_expect_eq(v, 63);
    gguf_tensor_release(f, t);
    memcpy(&v, (const char *)t->data + 5 * sizeof v, sizeof v);
    cr_expect_eq(v, 5, "a released tensor comes back from the file");
    cr_expect_eq(gguf_tensor_find(f, "b")->size, 36);
    cr_expect_null(gguf_tensor_find(f, "d"));
    gguf_close(f);
}

Test(gguf, a_tensor_type_nobody_knows_is_named_and_has_no_data)
{
    struct gguf *f = open_example();
    const struct gguf_tensor *t = gguf_tensor_find(f, "c");
    cr_expect_str_eq(gguf_type_name(t->type), "type 77");
    cr_expect_null(t->data);
    cr_expect_eq(t->size, 0);
    cr_expect_str_eq(gguf_type_name(21), "IQ3_S");
    cr_expect_str_eq(gguf_type_name(4000000000u), "type above 99");
    gguf_close(f);
}

Test(gguf, values_of_another_type_are_refused_by_name)
{
    char err[512] = "";
    struct gguf *f = open_example();
    uint32_t u = 5;
    const struct gguf_array *a;

    cr_expect_eq(gguf_get_u32(f, "text", &u, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "key text: is of type string, an integer is wanted");
    cr_expect_eq(u, 5, "nothing is written on failure");
    cr_expect_eq(gguf_get_array(f, "words", GGUF_I32, &a, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "key words: is an array of string, one of i32 is wanted");
    cr_expect_eq(gguf_get_array(f, "text", GGUF_STR, &a, err, sizeof err), -EINVAL);
    gguf_close(f);
}

static void expect_u32_refused(uint32_t type, uint64_t bits, size_t bytes, const char *message)
{
    char err[512] = "";
    struct gguf_write w = { 0 };
    struct bytes file;
    struct gguf *f;
    uint32_t u;

    write_key(&w, "n", type);
    bytes_put(&w.keys, &bits, bytes);
    file = write_finish(&w, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(gguf_get_u32(f, "n", &u, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, message);
    gguf_close(f);
    free(file.data);
}

Test(gguf, integers_that_do_not_fit_are_refused)
{
    expect_u32_refused(GGUF_I8, 0xff, 1, "key n: -1 is outside 0..4294967295");
    expect_u32_refused(GGUF_I64, UINT64_MAX - 4, 8, "key n: -5 is outside 0..4294967295");
    expect_u32_refused(GGUF_U64, 1ull << 32, 8, "key n: 4294967296 is outside 0..4294967295");
    expect_u32_refused(GGUF_U64, UINT64_MAX, 8, "key n: 18446744073709551615 is above 4294967295");
}

static void expect_refused(struct gguf_write *w, const char *message)
{
    char err[512] = "";
    struct gguf *f;
    struct bytes file = write_finish(w, NULL);
    int r = open_bytes(file.data, file.len, &f, err, sizeof err);
    cr_expect_eq(r, -EINVAL, "wanted: %s", message);
    cr_expect(strstr(err, message) != NULL, "wanted \"%s\", got \"%s\"", message, err);
    if (r == 0)
        gguf_close(f);
    free(file.data);
}

Test(gguf, counts_and_lengths_beyond_the_file_are_refused_before_memory_is_taken)
{
    struct gguf_write w = { .n_keys = UINT64_MAX };
    expect_refused(&w, "header: 18446744073709551615 keys cannot lie in 0 bytes");
    w = (struct gguf_write){ .n_tensors = 1ull << 60 };
    expect_refused(&w, "1152921504606846976 tensors cannot lie in");

    w = (struct gguf_write){ .n_keys = 1 };
    put_u64(&w.keys, UINT64_MAX);
    bytes_zeros(&w.keys, 8);
    expect_refused(&w, "key 1 of 1: a string of 18446744073709551615 bytes at byte 32 runs past the end");

    w = (struct gguf_write){ 0 };
    write_key(&w, "list", GGUF_ARR);
    put_u32(&w.keys, GGUF_F64);
    put_u64(&w.keys, 1ull << 61);
    expect_refused(&w, "key list: an array of 2305843009213693952 elements");

    w = (struct gguf_write){ 0 };
    write_key(&w, "list", GGUF_ARR);
    put_u32(&w.keys, GGUF_STR);
    put_u64(&w.keys, 1);
    put_u64(&w.keys, 50);
    expect_refused(&w, "key list: a string of 50 bytes");
}

Test(gguf, values_that_cannot_be_are_refused)
{
    struct gguf_write w = { 0 };
    write_key(&w, "odd", 13);
    bytes_zeros(&w.keys, 8);
    expect_refused(&w, "key odd: a value of unknown type 13");

    write_key(&w, "deep", GGUF_ARR);
    put_u32(&w.keys, GGUF_ARR);
    put_u64(&w.keys, 1);
    expect_refused(&w, "key deep: an array of arrays");

    write_key(&w, "yes", GGUF_BOOL);
    bytes_put(&w.keys, "\2", 1);
    expect_refused(&w, "key yes: a boolean of value 2");

    write_u32(&w, "same", 1);
    write_u32(&w, "other", 1);
    write_u32(&w, "same", 2);
    expect_refused(&w, "key same: is there twice");

    write_u32(&w, "", 1);
    expect_refused(&w, "key 1 of 1: a name of 0 bytes");
}

Test(gguf, control_characters_never_reach_an_error_text)
{
    struct gguf_write w = { 0 };
    write_key(&w, "bell\a\x1b[31m\n\"\xff", 99);
    bytes_zeros(&w.keys, 8);
    expect_refused(&w, "key bell\\x07\\x1b[31m\\x0a\\\"\\xff: a value of unknown type 99");
}

static void expect_tensor_refused(const char *name, uint32_t type, uint32_t n_dims, const uint64_t dims[4],
                                  uint64_t offset, const char *message)
{
    struct gguf_write w = { 0 };
    write_entry(&w, name, type, n_dims, dims, offset);
    bytes_zeros(&w.data, 256);
    expect_refused(&w, message);
}

Test(gguf, tensors_that_cannot_be_are_refused)
{
    const uint64_t small[] = { 8, 1, 1, 1 }, none[] = { 8, 0, 1, 1 },
                   huge[] = { 1ull << 40, 1ull << 40, 1, 1 };
    const uint64_t large[] = { 1ull << 62, 1, 1, 1 }, full[] = { 64, 1, 1, 1 }, past[] = { 72, 1, 1, 1 };
    char name[80];

    memset(name, 'n', 65);
    name[65] = 0;
    expect_tensor_refused("t", 0, 0, small, 0, "tensor t: 0 dimensions");
    expect_tensor_refused("t", 0, 2, none, 0, "tensor t: dimension 2 is 0");
    expect_tensor_refused("t", 0, 2, huge, 0,
                          "tensor t: its dimensions multiply to more than can be counted");
    expect_tensor_refused("t", 28, 1, large, 0, "tensor t: its size is more than can be counted");
    expect_tensor_refused("t", 2, 1, small, 0,
                          "tensor t: rows of 8 weights are not whole blocks of Q4_0 (32)");
    expect_tensor_refused("t", 0, 1, small, 16, "tensor t: offset 16 is not a multiple of the alignment 32");
    expect_tensor_refused("t", 0, 1, past, 0,
                          "offset 0 + 288 bytes lies past the end of the file (256 bytes");
    expect_tensor_refused("t", 0, 1, full, 32, "offset 32 + 256 bytes lies past the end");
    expect_tensor_refused("t", 0, 1, small, UINT64_MAX - 31, "lies past the end");
    expect_tensor_refused(name, 0, 1, small, 0, "a name of 65 bytes (1..64 are allowed)");
}

Test(gguf, tensors_that_share_bytes_or_a_name_are_refused)
{
    const uint64_t dims[] = { 16, 1, 1, 1 };
    struct gguf_write w = { 0 };
    write_entry(&w, "first", 0, 1, dims, 32);
    write_entry(&w, "second", 0, 1, dims, 64);
    bytes_zeros(&w.data, 256);
    expect_refused(&w, "tensor second: overlaps tensor first");

    write_entry(&w, "same", 0, 1, dims, 0);
    write_entry(&w, "same", 0, 1, dims, 64);
    bytes_zeros(&w.data, 256);
    expect_refused(&w, "tensor same: is there twice");
}

Test(gguf, the_alignment_key_is_obeyed_and_bounded)
{
    const uint64_t dims[] = { 8, 1, 1, 1 };
    char err[512] = "";
    struct gguf_write w = { 0 };
    struct bytes file;
    struct gguf *f;

    write_u32(&w, "general.alignment", 12);
    expect_refused(&w, "key general.alignment: 12 is not a power of two");
    write_u32(&w, "general.alignment", 0);
    expect_refused(&w, "key general.alignment: 0 is not a power of two");

    write_u32(&w, "general.alignment", 128);
    write_entry(&w, "t", 0, 1, dims, 0);
    file = write_finish(&w, NULL);
    bytes_zeros(&file, 128 - file.len % 128);
    bytes_put(&file, "abcdefghijklmnopqrstuvwxyz012345", 32);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(memcmp(gguf_tensor_at(f, 0)->data, "abcd", 4), 0);
    gguf_close(f);
    free(file.data);
}

Test(gguf, other_files_are_refused_in_words)
{
    char err[512] = "";
    struct gguf *f;
    const struct {
        const char *bytes;
        size_t len;
        const char *message;
    } files[] = {
        { "", 0, "is empty" },
        { "GG", 2, "not a GGUF file" },
        { "PK\3\4 and so on", 13, "not a GGUF file" },
        { "GGUF\1\0\0\0", 8, "GGUF version 1 (this build reads 2 and 3)" },
        { "GGUF\4\0\0\0", 8, "GGUF version 4 (this build reads 2 and 3)" },
        { "GGUF\0\0\0\3", 8, "the file is big-endian" },
        { "GGUF\3\0\0\0\1", 9,
          "header: a number of 8 bytes at byte 8 runs past the end of the file (9 bytes)" },
    };

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        cr_expect_eq(open_bytes(files[i].bytes, files[i].len, &f, err, sizeof err), -EINVAL);
        cr_expect(strstr(err, files[i].message) != NULL, "got \"%s\"", err);
    }
    cr_expect_eq(gguf_open("/proc/self/nothing.gguf", &f, err, sizeof err), -ENOENT);
    cr_expect_str_eq(err, "/proc/self/nothing.gguf: cannot be opened: No such file or directory");
    cr_expect_eq(gguf_open("/proc", &f, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "/proc: is not a regular file");
}

Test(gguf, version_2_is_read_too)
{
    char err[512] = "";
    struct gguf_write w = { .version = 2 };
    struct bytes file;
    struct gguf *f;

    write_u32(&w, "n", 3);
    file = write_finish(&w, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(gguf_version(f), 2);
    gguf_close(f);
    free(file.data);
}

/* Opens the bytes; whatever opens is walked. */
static void try_bytes(const void *data, size_t len)
{
    char err[512] = "";
    struct gguf *f;
    if (open_bytes(data, len, &f, err, sizeof err) == 0) {
        walk(f);
        gguf_close(f);
    } else {
        cr_assert_neq(err[0], 0, "every failure has words");
    }
}

Test(gguf, a_file_cut_anywhere_is_refused_or_readable)
{
    struct bytes file = example(NULL);
    for (size_t len = 1; len <= file.len; len++)
        try_bytes(file.data, len);
    free(file.data);
}

Test(gguf, flipped_bits_anywhere_are_refused_or_readable)
{
    uint64_t seed = 1;
    size_t header;
    struct bytes file = example(&header);
    uint8_t *copy = malloc(file.len);

    for (int round = 0; round < 3000; round++) {
        memcpy(copy, file.data, file.len);
        for (uint32_t flips = 1 + random_below(&seed, 3); flips > 0; flips--)
            copy[random_below(&seed, (uint32_t)header)] ^= (uint8_t)(1u << random_below(&seed, 8));
        try_bytes(copy, file.len);
    }
    free(copy);
    free(file.data);
}

/* ---- fingerprints ---- */

struct marks {
    uint8_t model[FINGERPRINT_LEN], tokenizer[FINGERPRINT_LEN];
};

/* A model whose parts are told by letters: w: a weight, g: a hyperparameter, r: a remark, t: a token's text,
 * c: the chat template, n: a tensor's name, o: only the order of keys. */
static struct marks marks_of(char other)
{
    struct gguf_write w = { 0 };
    char err[256] = "";
    struct gguf *f;
    struct marks m;
    static uint8_t weights[40000];
    const char *words[] = { "a", other == 't' ? "x" : "b", "c" };
    if (other != 'o')
        write_u32(&w, "llama.block_count", other == 'g' ? 3 : 2);
    write_text(&w, "general.name", other == 'r' ? "mine" : "theirs");
    write_text(&w, "tokenizer.chat_template", other == 'c' ? "{{ x }}" : "");
    write_texts(&w, "tokenizer.ggml.tokens", words, 3);
    if (other == 'o')
        write_u32(&w, "llama.block_count", 2);
    memset(weights, other == 'w' ? 1 : 0, sizeof weights);
    write_tensor(&w, other == 'n' ? "b" : "a", 0, 100, 100, weights, sizeof weights);
    struct bytes file = write_finish(&w, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &f, err, sizeof err), 0, "%s", err);
    cr_assert_eq(fingerprint_model(f, m.model), 0);
    cr_assert_eq(fingerprint_tokenizer(f, m.tokenizer), 0);
    gguf_close(f);
    free(file.data);
    return m;
}

Test(fingerprint, what_decides_counts_and_nothing_else)
{
    static const struct {
        char other;
        bool model, tokenizer;
    } cases[] = { { 'w', true, false },  { 'g', true, false },  { 'n', true, false }, { 't', false, true },
                  { 'r', false, false }, { 'c', false, false }, { 'o', false, false } };
    struct marks first = marks_of('-');
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct marks m = marks_of(cases[i].other);
        cr_expect_eq(memcmp(m.model, first.model, sizeof m.model) != 0, cases[i].model, "model, %c",
                     cases[i].other);
        cr_expect_eq(memcmp(m.tokenizer, first.tokenizer, sizeof m.tokenizer) != 0, cases[i].tokenizer,
                     "tokenizer, %c", cases[i].other);
    }
}
