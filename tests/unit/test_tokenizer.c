/* Tokenizer: the ids of the reference for all fixtures on the real model; any merges against an encoder that
 * tries every pair again and again; what a vocabulary may not say; that bytes come back; and how long it
 * takes. */
#include "../cases.h"
#include "model/matcher.h"
#include "model/tokenizer.h"
#include "model/tokenizer_bpe.h"
#include "model/tokenizer_special.h"
#include "model/unicode.h"
#include "vocab.h"
#include "vocab_checks.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the real model --- */

static const char *env(const char *name)
{
    const char *value = getenv(name);
    cr_assert_not_null(value, "%s is not set", name);
    return value;
}

static struct gguf *real_file(void)
{
    char path[4096], err[512] = "";
    struct gguf *f;
    snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", env("BERTH_MODELS"));
    int r = gguf_open(path, &f, err, sizeof err);
    cr_assert_eq(r, 0, "%s: %s", path, err);
    return f;
}

static struct tokenizer *real_tokenizer(void)
{
    char err[512] = "";
    struct tokenizer *t;
    struct gguf *f = real_file();
    int r = tokenizer_open(f, &t, err, sizeof err);
    cr_assert_eq(r, 0, "%s", err);
    gguf_close(f);
    return t;
}

/* --- the fixtures --- */

Test(tokenizer, gives_the_ids_of_the_reference_for_every_fixture)
{
    struct tokenizer *t = real_tokenizer();
    char path[4096];
    static char line[1 << 20];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/tokenizer-smollm2.jsonl", env("BERTH_TEST_DATA"));
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s cannot be read", path);
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        cr_assert_not_null(o);
        json_t *text = json_object_get(o, "text"), *ids = json_object_get(o, "ids");
        unsigned flags = json_is_true(json_object_get(o, "parse_special")) ? TOKENIZER_PARSE_SPECIAL : 0;
        flags |= json_is_true(json_object_get(o, "add_special")) ? TOKENIZER_ADD_SPECIAL : 0;
        size_t n_want = json_array_size(ids);
        int32_t *want = malloc((n_want + 1) * sizeof *want);
        for (size_t i = 0; i < n_want; i++)
            want[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        check_ids(t, json_string_value(text), json_string_length(text), flags, want, n_want);
        free(want);
        json_decref(o);
        n++;
    }
    fclose(f);
    tokenizer_free(t);
    cr_assert_geq(n, 460);
}

Test(tokenizer, knows_what_the_model_says_about_itself)
{
    struct tokenizer *t = real_tokenizer();
    size_t len;
    cr_expect_eq(tokenizer_n_vocab(t), 49152);
    cr_expect_str_eq(tokenizer_kind(t), "gpt2/smollm");
    cr_expect_eq(tokenizer_bos(t), 1);
    cr_expect_eq(tokenizer_eos(t), 2);
    cr_expect_eq(tokenizer_turn(t, NULL, 0), 1, "<|im_start|>");
    cr_expect(tokenizer_is_eog(t, 2) && tokenizer_is_eog(t, 0), "<|im_end|> and <|endoftext|>");
    cr_expect(!tokenizer_is_eog(t, 1) && !tokenizer_is_eog(t, 260));
    cr_expect(tokenizer_is_control(t, 16) && !tokenizer_is_control(t, 17));
    cr_expect_eq(tokenizer_find(t, " the", 4), 260);
    cr_expect_eq(tokenizer_find(t, "<|im_end|>", 10), 2);
    cr_expect_eq(tokenizer_find(t, "no such token", 13), -1);
    cr_expect_eq(tokenizer_find(t, "", 0), -1);
    cr_expect(strncmp(tokenizer_piece(t, 260, false, &len), " the", 4) == 0 && len == 4);
    cr_expect(strncmp(tokenizer_piece(t, 2, true, &len), "<|im_end|>", 10) == 0 && len == 10);
    tokenizer_piece(t, 2, false, &len);
    cr_expect_eq(len, 0, "a control token stands for nothing");
    tokenizer_free(t);
}

/* --- merges against brute force --- */

/* A vocabulary of a few letters: text i is tokens[i], merge i joins left[i] and right[i] to result[i]. */
struct toy {
    char tokens[96][64];
    uint32_t n_tokens, n_merges;
    uint32_t left[160], right[160], result[160];
};

static uint32_t toy_find(const struct toy *v, const char *text)
{
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (strcmp(v->tokens[i], text) == 0)
            return i;
    return BPE_NONE;
}

static void toy_make(struct toy *v, struct dice *d, uint32_t letters, uint32_t merges, bool shuffled)
{
    memset(v, 0, sizeof *v);
    for (; v->n_tokens < letters; v->n_tokens++)
        v->tokens[v->n_tokens][0] = (char)('a' + v->n_tokens);
    for (uint32_t tries = 0; v->n_merges < merges && tries < 1000; tries++) {
        char text[160];
        uint32_t a = roll(d, v->n_tokens), b = roll(d, v->n_tokens);
        snprintf(text, sizeof text, "%s%s", v->tokens[a], v->tokens[b]);
        if (strlen(text) > 40 || v->n_tokens == 96)
            continue;
        uint32_t made = toy_find(v, text);
        if (made == BPE_NONE) {
            made = v->n_tokens++;
            strcpy(v->tokens[made], text);
        } else if (!shuffled && roll(d, 4)) {
            continue; /* a second way to the same token now and then */
        }
        v->left[v->n_merges] = a;
        v->right[v->n_merges] = b;
        v->result[v->n_merges++] = made;
    }
    for (uint32_t i = v->n_merges; shuffled && i > 1; i--) {
        uint32_t j = roll(d, i), k = i - 1;
        uint32_t l = v->left[j], r = v->right[j], m = v->result[j];
        v->left[j] = v->left[k], v->right[j] = v->right[k], v->result[j] = v->result[k];
        v->left[k] = l, v->right[k] = r, v->result[k] = m;
    }
}

/* The definition: while any adjacent pair has a merge, join the leftmost of those with the first merge. */
static size_t toy_encode(const struct toy *v, const char *text, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++) {
        char letter[2] = { text[i], 0 };
        ids[i] = toy_find(v, letter);
    }
    for (;;) {
        uint32_t best = v->n_merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t m = 0; m < best; m++)
                if (v->left[m] == ids[i] && v->right[m] == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == v->n_merges)
            break;
        ids[at] = v->result[best];
        n--;
        memmove(&ids[at + 1], &ids[at + 2], (n - at - 1) * sizeof *ids);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] != BPE_NONE)
            ids[kept++] = ids[i];
    return kept;
}

static void compare_toy(const struct toy *v, struct dice *d, uint32_t letters, uint32_t *ret_unordered)
{
    struct bpe b;
    struct bpe_work w = { 0 };
    cr_assert_eq(bpe_init(&b, v->n_merges), 0);
    for (uint32_t i = 0; i < letters; i++)
        b.byte_ids['a' + i] = i;
    for (uint32_t i = 0; i < v->n_merges; i++) {
        int r = bpe_add_merge(&b, v->left[i], v->right[i], v->result[i]);
        cr_assert(r == 0 || r == -EEXIST);
    }
    cr_assert_eq(bpe_finish(&b, v->n_tokens), 0);
    *ret_unordered += !b.ordered;
    for (int texts = 0; texts < 6; texts++) {
        char text[160];
        uint32_t want[160];
        int32_t got[160];
        size_t len = 1 + roll(d, texts % 2 ? 159 : 47);
        uint32_t few = 1 + roll(d, letters + 1); /* now and then a letter without a token */
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + roll(d, few));
        size_t n_want = toy_encode(v, text, len, want);
        int64_t n_got = bpe_encode(&b, &w, text, len, got);
        cr_assert_eq(n_got, (int64_t)n_want, "%.*s: %d ids, want %zu", (int)len, text, (int)n_got, n_want);
        for (size_t i = 0; i < n_want; i++)
            cr_assert_eq((uint32_t)got[i], want[i], "%.*s: id %zu", (int)len, text, i);
    }
    bpe_work_free(&w);
    bpe_free(&b);
}

Test(tokenizer, merges_as_trying_every_pair_again_does)
{
    struct dice d = { 1, 0 };
    uint32_t unordered = 0, cases = 0;
    for (; cases < 600; cases++) {
        struct toy v;
        uint32_t letters = 1 + roll(&d, 4);
        toy_make(&v, &d, letters, roll(&d, 60), cases % 2);
        compare_toy(&v, &d, letters, &unordered);
    }
    cr_expect(unordered > cases / 4 && unordered < cases * 3 / 4, "both kinds are wanted: %u of %u",
              unordered, cases);
}

/* Merges of the real model as text, sorted, with their ranks. */
struct real_merge {
    char text[96];
    uint32_t rank;
};

static int order_merges(const void *a, const void *b)
{
    return strcmp(((const struct real_merge *)a)->text, ((const struct real_merge *)b)->text);
}

static uint32_t real_rank(const struct real_merge *merges, size_t n, const char *left, const char *right)
{
    struct real_merge key;
    snprintf(key.text, sizeof key.text, "%s %s", left, right);
    const struct real_merge *m = bsearch(&key, merges, n, sizeof key, order_merges);
    return m ? m->rank : UINT32_MAX;
}

Test(tokenizer, merges_a_word_of_the_real_model_as_brute_force_does)
{
    struct tokenizer *t = real_tokenizer();
    struct gguf *f = real_file();
    const struct gguf_array *a;
    char err[256];
    cr_assert_eq(gguf_get_array(f, "tokenizer.ggml.merges", GGUF_STR, &a, err, sizeof err), 1);
    size_t n_merges = 0;
    struct real_merge *merges = calloc(gguf_array_len(a), sizeof *merges);
    for (uint64_t i = 0; i < gguf_array_len(a); i++) {
        struct gguf_str s = gguf_array_str(a, i);
        if (s.len >= sizeof merges[0].text)
            continue;
        memcpy(merges[n_merges].text, s.data, s.len);
        merges[n_merges++].rank = (uint32_t)i;
    }
    qsort(merges, n_merges, sizeof *merges, order_merges);
    struct dice d = { 2, 0 };
    for (int words = 0; words < 12; words++) {
        static char syms[120][96];
        char word[121] = "";
        size_t n = 20 + roll(&d, 100), len = n;
        for (size_t i = 0; i < n; i++) {
            word[i] = "etaoinshrdlu"[roll(&d, words < 3 ? 2 : 12)];
            snprintf(syms[i], sizeof syms[i], "%c", word[i]);
        }
        for (;;) {
            uint32_t best = UINT32_MAX;
            size_t at = 0;
            for (size_t i = 0; i + 1 < n; i++) {
                uint32_t rank = real_rank(merges, n_merges, syms[i], syms[i + 1]);
                if (rank < best) {
                    best = rank;
                    at = i;
                }
            }
            if (best == UINT32_MAX)
                break;
            size_t len_left = strlen(syms[at]), len_right = strlen(syms[at + 1]);
            cr_assert_lt(len_left + len_right, sizeof syms[at]);
            memmove(syms[at] + len_left, syms[at + 1], len_right + 1);
            n--;
            memmove(syms[at + 1], syms[at + 2], (n - at - 1) * sizeof syms[0]);
        }
        int32_t want[120];
        for (size_t i = 0; i < n; i++)
            want[i] = tokenizer_find(t, syms[i], strlen(syms[i]));
        check_ids(t, word, len, 0, want, n);
    }
    free(merges);
    gguf_close(f);
    tokenizer_free(t);
}

/* --- bytes come back --- */

static void decode(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = tokenizer_piece(t, ids[i], true, &len);
        buf_append(out, piece, len);
    }
}

/* Text of characters of many kinds, valid and not. */
static size_t random_text(struct dice *d, char *text, size_t max)
{
    static const char *const parts[] = { " ",
                                         "  ",
                                         "\n",
                                         "a",
                                         "The",
                                         "'s",
                                         "'ll",
                                         "\t",
                                         "12",
                                         "\xc3\xa9",
                                         "\xe2\x80\x83",
                                         "\xd9\xa3",
                                         "\xf0\x9f\x98\x80",
                                         "\xe4\xb8\xad",
                                         "\xff",
                                         "\xe2\x80",
                                         "\xc3",
                                         "<|im_end|>",
                                         "--",
                                         "'",
                                         "\xc2\xa0",
                                         "\xed\xa0\x80",
                                         "\xf0\x90\x8d\x88" };
    size_t n = 0, len = roll(d, (uint32_t)max);
    while (n < len) {
        const char *part = parts[roll(d, sizeof parts / sizeof parts[0])];
        if (roll(d, 4) == 0) {
            text[n++] = (char)roll(d, 256);
        } else if (n + strlen(part) <= len) {
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        } else {
            break;
        }
    }
    return n;
}

static void check_round_trips(const struct tokenizer *t, bool has_byte[256], struct dice *d, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        char text[600];
        struct buf want = { 0 }, got = { 0 };
        int32_t *ids;
        size_t n, len = random_text(d, text, sizeof text);
        cr_assert_eq(tokenizer_encode(t, text, len, i % 2 ? TOKENIZER_PARSE_SPECIAL : 0, &ids, &n), 0);
        decode(t, ids, n, &got);
        for (size_t k = 0; k < len; k++)
            if (has_byte[(unsigned char)text[k]])
                buf_putc(&want, text[k]);
        cr_assert_eq(want.len, got.len);
        cr_assert(want.len == 0 || memcmp(want.data, got.data, want.len) == 0, "round %d", i);
        buf_free(&want);
        buf_free(&got);
        free(ids);
    }
}

Test(tokenizer, gives_back_every_byte_that_the_vocabulary_has)
{
    struct dice d = { 3, 0 };
    struct tokenizer *t = real_tokenizer();
    bool has_byte[256];
    int missing = 0;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        has_byte[b] = tokenizer_find(t, &byte, 1) >= 0;
        missing += !has_byte[b];
    }
    cr_expect_eq(missing, 21, "SmolLM2 has no token for 21 bytes: eight of them stand in valid text");
    check_round_trips(t, has_byte, &d, 3000);
    tokenizer_free(t);
}

Test(tokenizer, the_turn_token_is_the_one_that_the_template_writes)
{
    char texts[256][4];
    const char *tokens[259];
    const char *merges[] = { "a a" };
    byte_texts(texts, tokens);
    tokens[256] = "aa", tokens[257] = "[INST]", tokens[258] = "<|im_start|>";
    struct vocab v = { .model = "gpt2",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = 259,
                       .merges = merges,
                       .n_merges = 1,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    struct tokenizer *t = must_open(&v);
    cr_expect_eq(tokenizer_turn(t, "{{ '[INST] ' }}", 15), 257);
    cr_expect_eq(tokenizer_turn(t, "{{ '[INST] ' }}", 9), 258, "it ends before that");
    cr_expect_eq(tokenizer_turn(t, "<start_of_turn><|im_start|>", 27), 258, "not in the vocabulary");
    cr_expect_eq(tokenizer_turn(t, "no turns", 8), 258);
    cr_expect_eq(tokenizer_turn(t, NULL, 0), 258);
    tokenizer_free(t);
}

Test(tokenizer, gives_back_any_bytes_when_the_vocabulary_has_them_all)
{
    struct dice d = { 4, 0 };
    char texts[256][4];
    const char *tokens[259];
    const char *merges[] = { "a a", "T h", "Th e" };
    byte_texts(texts, tokens);
    tokens[256] = "aa", tokens[257] = "Th", tokens[258] = "The";
    struct vocab v = { .model = "gpt2",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = 259,
                       .merges = merges,
                       .n_merges = 3,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    struct tokenizer *t = must_open(&v);
    bool has_byte[256];
    memset(has_byte, true, sizeof has_byte);
    check_round_trips(t, has_byte, &d, 3000);
    cr_expect_eq(tokenizer_bos(t), -1);
    cr_expect_eq(tokenizer_eos(t), -1);
    cr_expect_eq(tokenizer_turn(t, "<|im_start|>", 12), -1);
    tokenizer_free(t);
}

Test(tokenizer, an_empty_text_has_no_ids)
{
    struct tokenizer *t = real_tokenizer();
    int32_t *ids = NULL;
    size_t n = 7;
    cr_expect_eq(tokenizer_encode(t, "", 0, TOKENIZER_ADD_SPECIAL, &ids, &n), 0);
    cr_expect_eq(n, 0);
    cr_expect_not_null(ids);
    free(ids);
    cr_expect_eq(tokenizer_encode(t, "", ((size_t)256 << 20) + 1, 0, &ids, &n), -E2BIG);
    tokenizer_free(t);
}

/* --- special tokens --- */

/* Bytes, then: 256 control "<c>", 257 user-defined "<u>", 258 control "<c><c>", 259 unknown "<k>", 260 unused
 * "<x>", 261 "</s>" and 262 "<|im_end|>", both ordinary, 263 control "<b>". */
static struct tokenizer *special_vocab(int add_bos)
{
    static char texts[256][4];
    static const char *tokens[264];
    static int32_t types[264];
    static const char *merges[1];
    const char *more[] = { "<c>", "<u>", "<c><c>", "<k>", "<x>", "</s>", "<|im_end|>", "<b>" };
    int32_t more_types[] = { 3, 4, 3, 2, 5, 1, 1, 3 };
    byte_texts(texts, tokens);
    for (int i = 0; i < 264; i++) {
        tokens[i] = i < 256 ? tokens[i] : more[i - 256];
        types[i] = i < 256 ? 1 : more_types[i - 256];
    }
    struct vocab v = { .model = "gpt2",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = 264,
                       .types = types,
                       .n_types = 264,
                       .merges = merges,
                       .n_merges = 0,
                       .bos = 263,
                       .eos = 256,
                       .add_bos = add_bos };
    return must_open(&v);
}

Test(tokenizer, finds_control_tokens_only_when_asked_and_user_defined_ones_always)
{
    struct tokenizer *t = special_vocab(0);
    const char *text = "a<c><c><c>b<u><k><x>";
    int32_t asked[] = { 'a', 258, 256, 'b', 257, 259, '<', 'x', '>' };
    int32_t plain[] = { 'a', '<', 'c', '>', '<', 'c', '>', '<', 'c',
                        '>', 'b', 257, '<', 'k', '>', '<', 'x', '>' };
    check_ids(t, text, strlen(text), TOKENIZER_PARSE_SPECIAL, asked, 9);
    check_ids(t, text, strlen(text), TOKENIZER_ADD_SPECIAL, plain, 18);
    tokenizer_free(t);
}

Test(tokenizer, adds_bos_when_the_model_wants_it_and_the_caller_asks)
{
    struct tokenizer *t = special_vocab(1);
    check_ids(t, "a", 1, TOKENIZER_ADD_SPECIAL, (int32_t[]){ 263, 'a' }, 2);
    check_ids(t, "a", 1, 0, (int32_t[]){ 'a' }, 1);
    tokenizer_free(t);
}

Test(tokenizer, knows_ends_of_generation_by_their_texts)
{
    struct tokenizer *t = special_vocab(0);
    size_t len;
    cr_expect(tokenizer_is_eog(t, 262) && tokenizer_is_control(t, 262),
              "<|im_end|> though the file has it as ordinary");
    cr_expect(!tokenizer_is_eog(t, 261), "</s> is HTML when the file has it as ordinary");
    cr_expect(tokenizer_is_eog(t, 256), "the file's eos");
    tokenizer_piece(t, 260, false, &len);
    cr_expect_eq(len, 0, "an unused token stands for nothing");
    tokenizer_piece(t, 257, false, &len);
    cr_expect_eq(len, 3, "a user-defined one stands for its text");
    tokenizer_free(t);
}

Test(tokenizer, finds_the_leftmost_and_then_the_longest_special_token)
{
    struct dice d = { 5, 0 };
    for (int cases = 0; cases < 2000; cases++) {
        char texts[12][6], text[80];
        struct gguf_str strings[12];
        int32_t ids[12];
        uint32_t n = 1 + roll(&d, 12), len = roll(&d, 80), letters = 1 + roll(&d, 3);
        for (uint32_t i = 0; i < n; i++) {
            strings[i] = (struct gguf_str){ texts[i], roll(&d, 7) };
            ids[i] = (int32_t)i;
            for (size_t k = 0; k < strings[i].len; k++)
                texts[i][k] = (char)('a' + roll(&d, letters));
        }
        for (uint32_t i = 0; i < len; i++)
            text[i] = (char)('a' + roll(&d, letters + 1));
        struct special_set *s;
        struct special_match *got;
        size_t n_got, k = 0;
        cr_assert_eq(special_set_new(strings, ids, n, &s), 0);
        cr_assert_eq(special_set_find(s, text, len, &got, &n_got), 0);
        for (uint32_t at = 0; at < len;) {
            size_t best = 0;
            int32_t id = -1;
            for (uint32_t i = 0; i < n; i++)
                if (strings[i].len > best && strings[i].len <= len - at &&
                    !memcmp(texts[i], text + at, strings[i].len)) {
                    best = strings[i].len;
                    id = ids[i];
                }
            if (best) {
                cr_assert(k < n_got && got[k].at == at && got[k].len == best && got[k].token == id, "case %d",
                          cases);
                k++;
            }
            at += best ? (uint32_t)best : 1;
        }
        cr_assert_eq(k, n_got, "case %d", cases);
        free(got);
        special_set_free(s);
    }
}

/* --- vocabularies that are not believed --- */

Test(tokenizer, refuses_by_name_what_it_does_not_have)
{
    const char *tokens[] = { "a" }, *merges[] = { "" };
    struct vocab v = { .model = "bert",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = 1,
                       .merges = merges,
                       .n_merges = 0,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    refuses(&v, -ENOTSUP, "tokenizer 'bert' is not one this build has: gpt2, llama");
    v.model = "gpt2";
    v.pre = "tek\nken";
    refuses(
        &v, -ENOTSUP,
        "pre-tokenizer 'tek\\x0aken' of tokenizer 'gpt2' is not one this build has: default, gpt-2, smollm, "
        "llama-bpe, llama3, llama-v3, qwen2, deepseek-r1-qwen, tekken, deepseek-llm");
    v.pre = NULL;
    struct tokenizer *t = must_open(&v);
    cr_expect_str_eq(tokenizer_kind(t), "gpt2/default", "of a file that names none");
    tokenizer_free(t);
    v.model = NULL;
    refuses(&v, -EINVAL, "tokenizer.ggml.model: missing");
}

Test(tokenizer, refuses_a_vocabulary_that_contradicts_itself)
{
    const char *tokens[] = { "a", "b", "ab", "b" }, *merges[] = { "a b", "ab a" };
    int32_t types[] = { 1, 1, 1, 9 };
    struct vocab good = { .model = "gpt2",
                          .pre = "smollm",
                          .tokens = tokens,
                          .n_tokens = 4,
                          .types = types,
                          .n_types = 3,
                          .merges = merges,
                          .n_merges = 1,
                          .bos = -1,
                          .eos = 2,
                          .add_bos = -1 };
    struct vocab v = good;
    refuses(&v, -EINVAL, "tokenizer.ggml.token_type: 3 types for 4 tokens");
    v.n_types = 4;
    refuses(&v, -EINVAL, "tokenizer.ggml.token_type: token 3 has type 9; 0..6 are known");
    types[3] = 1;
    v.n_merges = 2;
    refuses(&v, -EINVAL,
            "tokenizer.ggml.merges: number 1, \"ab a\", makes a token that is not in the vocabulary");
    merges[1] = "a c";
    refuses(&v, -EINVAL, "\"a c\", joins a token that is not in the vocabulary");
    merges[1] = "ab\x1b";
    refuses(&v, -EINVAL, "\"ab\\x1b\", is not two tokens with a space between them");
    v.n_merges = 1;
    v.eos = 4;
    refuses(&v, -EINVAL, "tokenizer.ggml.eos_token_id: token 4; the vocabulary has 4");
    v.eos = 2;
    v.add_bos = 1;
    refuses(&v, -EINVAL, "tokenizer.ggml.add_bos_token: true, but tokenizer.ggml.bos_token_id names none");
    v.bos = 0;
    tokenizer_free(must_open(&v));
    v.merges = NULL;
    refuses(&v, -EINVAL, "tokenizer.ggml.merges: missing");
    v = good;
    v.n_tokens = 0;
    refuses(&v, -EINVAL, "tokenizer.ggml.tokens: 0 tokens; 1..4194304 are allowed");
}

/* --- characters --- */

Test(tokenizer, classes_of_characters_are_those_of_the_unicode_standard)
{
    static const struct {
        uint32_t cp;
        enum unicode_class class;
    } rows[] = {
        { 'a', UNICODE_LOWER },        { '0', UNICODE_NUMBER },     { ' ', UNICODE_SPACE },
        { '_', UNICODE_PUNCTUATION },  { 0x08, UNICODE_OTHER },     { 0x09, UNICODE_SPACE },
        { 0x0d, UNICODE_SPACE },       { 0x0e, UNICODE_OTHER },     { 0x1c, UNICODE_OTHER },
        { 0x85, UNICODE_SPACE },       { 0xa0, UNICODE_SPACE },     { 0xaa, UNICODE_LETTER },
        { 0xb2, UNICODE_NUMBER },      { 0xd7, UNICODE_OTHER },     { 0x300, UNICODE_MARK },
        { 0x660, UNICODE_NUMBER },     { 0x16ee, UNICODE_NUMBER },  { 0x180e, UNICODE_OTHER },
        { 0x200a, UNICODE_SPACE },     { 0x200b, UNICODE_OTHER },   { 0x2160, UNICODE_NUMBER },
        { 0x3000, UNICODE_SPACE },     { 0x3042, UNICODE_LETTER },  { 0x4e00, UNICODE_LETTER },
        { 0x9fff, UNICODE_LETTER },    { 0xd7a3, UNICODE_LETTER },  { 0xd800, UNICODE_OTHER },
        { 0xe000, UNICODE_OTHER },     { 0xfeff, UNICODE_OTHER },   { 0xfffd, UNICODE_OTHER },
        { 0x10000, UNICODE_LETTER },   { 0x1d7ff, UNICODE_NUMBER }, { 0x1f600, UNICODE_OTHER },
        { 0x2a6df, UNICODE_LETTER },   { 0x3134a, UNICODE_LETTER }, { 0x3ffff, UNICODE_OTHER },
        { 0xe0001, UNICODE_OTHER },    { 0x10ffff, UNICODE_OTHER }, { 0x110000, UNICODE_OTHER },
        { 'A', UNICODE_UPPER },        { 0x1c5, UNICODE_UPPER },    { 0x2b0, UNICODE_LETTER },
        { UINT32_MAX, UNICODE_OTHER }, { 0x903, UNICODE_MARK },     { 0xe0100, UNICODE_MARK },
    };
    size_t letters = 0, numbers = 0, spaces = 0, marks = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect_eq(unicode_class(rows[i].cp), rows[i].class, "U+%04X", rows[i].cp);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        letters += unicode_class(cp) >= UNICODE_LETTER;
        numbers += unicode_class(cp) == UNICODE_NUMBER;
        spaces += unicode_class(cp) == UNICODE_SPACE;
        marks += unicode_class(cp) == UNICODE_PUNCTUATION;
    }
    cr_expect_eq(spaces, 25, "White_Space has 25 characters");
    cr_expect_str_eq(unicode_version, "14.0.0", "the next three numbers are of that version");
    cr_expect_eq(letters, 131756, "%zu", letters);
    cr_expect_eq(numbers, 1791, "%zu", numbers);
    cr_expect_eq(marks, 819, "%zu", marks);
}

/* --- time --- */

Test(tokenizer, takes_time_in_proportion_whatever_the_text)
{
    size_t len = (size_t)1 << 20;
    struct tokenizer *t = real_tokenizer();
    struct dice d = { 6, 0 };
    char *text = malloc(len);
    memset(text, 'a', len);
    takes_time(t, "one letter", text, len / 2, 0);
    takes_time(t, "one letter", text, len, 0);
    memset(text, ' ', len);
    takes_time(t, "spaces", text, len, 0);
    memset(text, '<', len);
    takes_time(t, "starts of special tokens", text, len, TOKENIZER_PARSE_SPECIAL);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)('a' + roll(&d, 26));
    takes_time(t, "random letters, one word", text, len, 0);
    for (size_t i = 0; i < len; i++)
        text[i] = "\xc3\xa9"[i % 2];
    takes_time(t, "e with an accent", text, len, 0);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)roll(&d, 256);
    takes_time(t, "random bytes", text, len, TOKENIZER_PARSE_SPECIAL);
    free(text);
    tokenizer_free(t);
}

Test(tokenizer, takes_time_in_proportion_whatever_the_merges_and_special_tokens)
{
    char err[512] = "", *long_text = malloc(100001);
    const char *tokens[] = { "a", "b", "aa", "aaaa", "aaaaaaaa", "ba", long_text };
    const char *merges[] = { "aaaa aaaa", "aa aa", "b a", "a a" };
    int32_t types[] = { 1, 1, 1, 1, 1, 1, 3 };
    memset(long_text, 'a', 100000);
    long_text[99999] = 'b';
    long_text[100000] = 0;
    struct vocab v = { .model = "gpt2",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = 7,
                       .types = types,
                       .n_types = 7,
                       .merges = merges,
                       .n_merges = 4,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    struct tokenizer *t;
    cr_assert_eq(open_vocab(&v, &t, err, sizeof err), 0, "%s", err);
    size_t len = (size_t)1 << 20;
    char *text = malloc(len);
    memset(text, 'a', len);
    takes_time(t, "merges in the wrong order", text, len, 0);
    takes_time(t, "a special token of 100,000", text, len, TOKENIZER_PARSE_SPECIAL);
    free(text);
    free(long_text);
    tokenizer_free(t);
}

/* Texts whose pieces are short but end only where one has looked far ahead, if one looks without care. */
Test(tokenizer, every_pre_tokenizer_takes_time_in_proportion)
{
    static const char *const pres[] = { "default", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm" };
    static const char *const parts[] = {
        "\xe2\x80\x83 ",  "1", "1\xd9\xa3", "\n ", " \t", "!", "\xe3\x80\x80", "\xc2\xac\xe0\xa4\x80",
        "x\xe2\x80\x83 ", "'", "a\xc3\xa9"
    };
    const size_t all = cases_of(1 << 19, 8);
    char texts[256][4], *text = malloc(all);
    const char *tokens[256], *merges[1];
    byte_texts(texts, tokens);
    for (size_t p = 0; p < sizeof pres / sizeof pres[0]; p++) {
        struct vocab v = { .model = "gpt2",
                           .pre = pres[p],
                           .tokens = tokens,
                           .n_tokens = 256,
                           .merges = merges,
                           .n_merges = 0,
                           .bos = -1,
                           .eos = -1,
                           .add_bos = -1 };
        struct tokenizer *t = must_open(&v);
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            size_t part = strlen(parts[i]), len = 0;
            for (; len + part < all; len += part)
                memcpy(text + len, parts[i], part);
            takes_time(t, pres[p], text, len, 0);
        }
        memset(text, ' ', all);
        memcpy(text, "\xc2\xac", 2);
        memcpy(text + all - 2, "\xc2\xac", 2);
        takes_time(t, pres[p], text, all, 0);
        tokenizer_free(t);
    }
    free(text);
}
