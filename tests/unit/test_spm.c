/* SentencePiece-style tokenizers: what a file that is silent means, what a vocabulary may not say, and how
 * long it takes. The ids are compared in tests/e2e/test_tokenizers.py. */
#include "model/tokenizer_spm.h"
#include "vocab_checks.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>

/* "<unk>", "<s>", "</s>", "<0x41>", "ab", "a", "b" */
static struct vocab spm_vocab(void)
{
    static const char *tokens[] = { "<unk>", "<s>", "</s>", "<0x41>", "ab", "a", "b" };
    static int32_t types[7];
    static float scores[7];
    memcpy(types, (int32_t[]){ 2, 3, 3, 6, 1, 1, 1 }, sizeof types);
    memcpy(scores, (float[]){ 0, 0, 0, 0, -1, -2, -3 }, sizeof scores);
    return vocab_of_scores(tokens, types, scores, 7);
}

Test(spm, knows_itself_where_the_file_is_silent)
{
    struct vocab v = spm_vocab();
    struct tokenizer *t = must_open(&v);
    cr_expect_str_eq(tokenizer_kind(t), "llama");
    cr_expect(tokenizer_bos(t) == 1 && tokenizer_eos(t) == 2);
    cr_expect(tokenizer_is_eog(t, 2) && !tokenizer_is_eog(t, 1));
    cr_expect_eq(tokenizer_find(t, "A", 1), 3, "a byte, where no token has that text");
    cr_expect_eq(tokenizer_find(t, "ab", 2), 4);
    check_ids(t, "ab", 2, TOKENIZER_ADD_SPECIAL, (int32_t[]){ 1, 0, 4 }, 3);
    check_ids(t, "", 0, TOKENIZER_ADD_SPECIAL, (int32_t[]){ 1 }, 1);
    tokenizer_free(t);
    v.types[1] = 1;
    t = must_open(&v);
    cr_expect_eq(tokenizer_bos(t), -1, "number 1 is an ordinary token here");
    check_ids(t, "ab", 2, TOKENIZER_ADD_SPECIAL, (int32_t[]){ 0, 4 }, 2);
    tokenizer_free(t);
}

Test(spm, refuses_a_vocabulary_that_cannot_be)
{
    char *longest = malloc(SPM_MAX_TOKEN + 2);
    const char *tokens[7];
    struct vocab good = spm_vocab(), v = good;
    memset(longest, 'x', SPM_MAX_TOKEN + 1);
    longest[SPM_MAX_TOKEN + 1] = 0;
    v.scores = NULL;
    refuses(&v, -EINVAL, "tokenizer.ggml.scores: missing");
    v = good;
    v.n_scores = 6;
    refuses(&v, -EINVAL, "tokenizer.ggml.scores: 6 scores for 7 tokens");
    v = spm_vocab();
    ((float *)v.scores)[4] = NAN;
    refuses(&v, -EINVAL, "tokenizer.ggml.scores: that of token 4 is no number");
    v = spm_vocab();
    memcpy(tokens, v.tokens, sizeof tokens);
    v.tokens = tokens;
    tokens[3] = "<0xG1>";
    refuses(&v, -EINVAL, "token 3, \"<0xG1>\", is of the type for bytes; <0x00>..<0xFF> are");
    tokens[3] = "<0xfF>";
    tokens[4] = longest;
    refuses(&v, -EINVAL, "tokenizer.ggml.tokens: a token of more than 1024 bytes that is not a special one");
    longest[SPM_MAX_TOKEN] = 0;
    ((float *)v.scores)[4] = INFINITY;
    ((float *)v.scores)[5] = -INFINITY;
    tokenizer_free(must_open(&v));
    free(longest);
}

/* "a", "aa", ..., each better than all shorter ones: every join asks for a longer text. */
static struct tokenizer *stairs(bool longer_is_better)
{
    enum { N = SPM_MAX_TOKEN };
    char *letters = malloc(N + 1);
    const char *tokens[N];
    float scores[N];
    memset(letters, 'a', N);
    letters[N] = 0;
    for (int i = 0; i < N; i++) {
        tokens[i] = letters + N - 1 - i;
        scores[i] = (float)(longer_is_better ? i : -i);
    }
    struct vocab v = { .model = "llama",
                       .tokens = tokens,
                       .n_tokens = N,
                       .scores = scores,
                       .n_scores = N,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    struct tokenizer *t = must_open(&v);
    free(letters);
    return t;
}

Test(spm, takes_time_in_proportion_whatever_the_text_and_the_scores)
{
    size_t len = (size_t)1 << 20;
    char *text = malloc(len);
    memset(text, 'a', len);
    for (int up = 0; up < 2; up++) {
        struct tokenizer *t = stairs(up);
        takes_time(t, up ? "longest first" : "shortest first", text, len / 2, 0);
        takes_time(t, up ? "longest first" : "shortest first", text, len, 0);
        tokenizer_free(t);
    }
    free(text);
}
