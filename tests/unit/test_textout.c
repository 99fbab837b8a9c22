/* Textout: what a reader gets token by token, against a model that decodes the whole text anew after each
 * token and looks for every stop string everywhere. */
#include "model/textout.h"
#include "vocab.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tokens 0..255 are the bytes; then these, written in bytes; the last is a control token. */
static const char *const more_pieces[] = { "ab",       "abc",          "bca",      "STOP",  "ST",
                                           "OP",       "\n\n",         "\xc3\xa9", "\xa9",  "\xf0\x9f",
                                           "\x98\x80", "\xe2\x80",     "x\xe2",    "aXbYc", "\xff\xfe",
                                           "  ",       "\xef\xbf\xbd", "aaaa",     "<end>" };
#define N_MORE (sizeof more_pieces / sizeof more_pieces[0])
#define N_TOKENS (256 + N_MORE)
#define CONTROL ((int32_t)N_TOKENS - 1)

static struct tokenizer *vocabulary(void)
{
    char texts[256][4];
    static char more[N_MORE][64];
    const char *tokens[N_TOKENS], *merges[] = { "" };
    int32_t types[N_TOKENS];
    byte_texts(texts, tokens);
    for (size_t i = 0; i < N_TOKENS; i++)
        types[i] = i == N_TOKENS - 1 ? 3 : 1;
    for (size_t i = 0; i < N_MORE; i++) {
        more[i][0] = 0;
        for (const char *p = more_pieces[i]; *p; p++)
            strcat(more[i], i == N_MORE - 1 ? (char[]){ *p, 0 } : texts[(unsigned char)*p]);
        tokens[256 + i] = more[i];
    }
    struct vocab v = { .model = "gpt2",
                       .pre = "smollm",
                       .tokens = tokens,
                       .n_tokens = N_TOKENS,
                       .types = types,
                       .n_types = N_TOKENS,
                       .merges = merges,
                       .n_merges = 0,
                       .bos = -1,
                       .eos = -1,
                       .add_bos = -1 };
    return must_open(&v);
}

/* --- the slow model --- */

/* How many bytes at p[0..n) are one valid character (ret_valid) or one maximal part of one; *ret_open when
 * more bytes could complete it. By the table of well-formed sequences, row by row. */
static size_t take(const unsigned char *p, size_t n, bool *ret_valid, bool *ret_open)
{
    static const unsigned char rows[][8] = {
        { 0xC2, 0xDF, 0x80, 0xBF, 2 }, { 0xE0, 0xE0, 0xA0, 0xBF, 3 }, { 0xE1, 0xEC, 0x80, 0xBF, 3 },
        { 0xED, 0xED, 0x80, 0x9F, 3 }, { 0xEE, 0xEF, 0x80, 0xBF, 3 }, { 0xF0, 0xF0, 0x90, 0xBF, 4 },
        { 0xF1, 0xF3, 0x80, 0xBF, 4 }, { 0xF4, 0xF4, 0x80, 0x8F, 4 },
    };
    *ret_open = false;
    *ret_valid = p[0] < 0x80;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        if (p[0] < rows[r][0] || p[0] > rows[r][1])
            continue;
        size_t len = 1;
        while (len < rows[r][4] && len < n && p[len] >= (len == 1 ? rows[r][2] : 0x80) &&
               p[len] <= (len == 1 ? rows[r][3] : 0xBF))
            len++;
        *ret_valid = len == rows[r][4];
        *ret_open = !*ret_valid && len == n;
        return len;
    }
    return 1;
}

struct slow {
    unsigned char raw[4096];
    size_t n_raw;
    size_t raw_ends[512];
    size_t n_tokens;
    char text[16384];
    size_t n_text;
    size_t ends[512]; /* of tokens in the text; SIZE_MAX while open */
};

static void slow_decode(struct slow *s, bool finished)
{
    size_t token = 0, at = 0;
    bool valid, open = false;
    s->n_text = 0;
    for (;;) {
        for (; token < s->n_tokens && s->raw_ends[token] <= at; token++)
            s->ends[token] = s->n_text;
        if (at == s->n_raw)
            break;
        size_t n = take(s->raw + at, s->n_raw - at, &valid, &open);
        if (open && !finished)
            break;
        memcpy(s->text + s->n_text, valid ? (const char *)s->raw + at : "\xef\xbf\xbd", valid ? n : 3);
        s->n_text += valid ? n : 3;
        at += n;
    }
    for (; token < s->n_tokens; token++)
        s->ends[token] = SIZE_MAX;
}

struct stop {
    char text[24];
    size_t len;
};

/* The earliest start of any stop string in the text, of those the shortest, of those the first. */
static bool slow_stop(const struct slow *s, const struct stop *stops, size_t n, size_t *ret_start,
                      size_t *ret_index)
{
    for (size_t at = 0; at < s->n_text; at++) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < n; i++)
            if (stops[i].len <= s->n_text - at && memcmp(s->text + at, stops[i].text, stops[i].len) == 0 &&
                (best == SIZE_MAX || stops[i].len < stops[best].len))
                best = i;
        if (best != SIZE_MAX) {
            *ret_start = at;
            *ret_index = best;
            return true;
        }
    }
    return false;
}

/* The longest end of the text that is the start of a stop string. */
static size_t slow_held(const struct slow *s, const struct stop *stops, size_t n)
{
    size_t held = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t len = 1; len < stops[i].len && len <= s->n_text; len++)
            if (len > held && memcmp(s->text + s->n_text - len, stops[i].text, len) == 0)
                held = len;
    return held;
}

static size_t slow_out(const struct slow *s, size_t end)
{
    size_t n = 0;
    while (n < s->n_tokens && s->ends[n] <= end)
        n++;
    return n;
}

/* --- both side by side --- */

struct reader {
    char text[16384];
    size_t n, n_tokens;
};

static void read_part(struct reader *r, const char *text, size_t len, size_t tokens)
{
    if (len)
        memcpy(r->text + r->n, text, len);
    r->n += len;
    r->n_tokens += tokens;
}

static void expect_same(const struct reader *r, const struct slow *s, size_t end, uint32_t round)
{
    cr_assert_eq(r->n, end, "round %u: %zu bytes, want %zu", round, r->n, end);
    cr_assert(memcmp(r->text, s->text, end) == 0, "round %u", round);
    cr_assert_eq(r->n_tokens, slow_out(s, end), "round %u: %zu tokens, want %zu", round, r->n_tokens,
                 slow_out(s, end));
}

static int32_t any_token(struct dice *d, uint32_t kind)
{
    if (kind == 0) /* a few letters, so that stop strings come up and overlap */
        return roll(d, 3) ? (int32_t)('a' + roll(d, 3)) : (int32_t)(256 + roll(d, 3));
    if (kind == 1)
        return (int32_t)(256 + roll(d, N_MORE));
    return roll(d, 3) ? (int32_t)roll(d, 256) : (int32_t)(256 + roll(d, N_MORE));
}

static size_t any_stops(struct dice *d, uint32_t kind, struct stop stops[4])
{
    static const char *const fixed[] = { "STOP",         "\n\n", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                         "\xef\xbf\xbd", "aXb",  "O",        "abca" };
    size_t n = roll(d, 5);
    for (size_t i = 0; i < n; i++) {
        stops[i].len = 0;
        if (kind == 0) {
            stops[i].len = 1 + roll(d, 7);
            for (size_t k = 0; k < stops[i].len; k++)
                stops[i].text[k] = (char)('a' + roll(d, 3));
        } else {
            strcpy(stops[i].text, fixed[roll(d, 8)]);
            stops[i].len = strlen(stops[i].text);
        }
    }
    return n;
}

static void one_round(const struct tokenizer *t, struct dice *d, uint32_t round)
{
    static struct slow s;
    static struct reader r;
    struct stop stops[4];
    const char *texts[4];
    size_t lens[4], n_stops = any_stops(d, round % 3, stops), len, tokens, index = 99, want_start = 0,
                    want_index = 0;
    const char *text;
    struct textout *o;
    for (size_t i = 0; i < n_stops; i++) {
        texts[i] = stops[i].text;
        lens[i] = stops[i].len;
    }
    s.n_raw = s.n_tokens = 0;
    r.n = r.n_tokens = 0;
    cr_assert_eq(textout_new(t, texts, lens, n_stops, &o), 0);
    for (uint32_t i = roll(d, 40); i > 0; i--) {
        int32_t token = any_token(d, round % 3);
        const char *piece = tokenizer_piece(t, token, false, &len);
        memcpy(s.raw + s.n_raw, piece, len);
        s.n_raw += len;
        s.raw_ends[s.n_tokens++] = s.n_raw;
        slow_decode(&s, false);
        bool stopped = slow_stop(&s, stops, n_stops, &want_start, &want_index);
        int got = textout_add(o, token, &text, &len, &tokens, &index);
        read_part(&r, text, len, tokens);
        cr_assert_eq(got, stopped, "round %u: %d", round, got);
        if (stopped) {
            expect_same(&r, &s, want_start, round);
            cr_assert_eq(index, want_index, "round %u", round);
            textout_free(o);
            return;
        }
        expect_same(&r, &s, s.n_text - slow_held(&s, stops, n_stops), round);
    }
    cr_assert_eq(textout_finish(o, &text, &len, &tokens), 0);
    read_part(&r, text, len, tokens);
    slow_decode(&s, true);
    expect_same(&r, &s, s.n_text, round);
    cr_assert_eq(r.n_tokens, s.n_tokens, "round %u: every token is out", round);
    textout_free(o);
}

Test(textout, gives_what_decoding_everything_anew_gives)
{
    struct tokenizer *t = vocabulary();
    struct dice d = { 1, 0 };
    for (uint32_t round = 0; round < 20000; round++)
        one_round(t, &d, round);
    tokenizer_free(t);
}

/* --- by hand --- */

/* Adds the bytes of `feed` one token each and returns all that came out, '|' after each call. */
static const char *out_of(struct textout *o, const char *feed, char *out)
{
    const char *text;
    size_t len, tokens, stop;
    char *at = out;
    int r = 0;
    for (; *feed && r == 0; feed++) {
        r = textout_add(o, (unsigned char)*feed, &text, &len, &tokens, &stop);
        memcpy(at, text, len);
        at += len;
        *at++ = '|';
    }
    if (r == 0) {
        textout_finish(o, &text, &len, &tokens);
        memcpy(at, text, len);
        at += len;
    }
    *at = 0;
    return out;
}

static void shows(const struct tokenizer *t, const char *stop, const char *feed, const char *want)
{
    char out[256];
    struct textout *o;
    size_t len = stop ? strlen(stop) : 0;
    cr_assert_eq(textout_new(t, &stop, &len, stop ? 1 : 0, &o), 0);
    cr_expect_str_eq(out_of(o, feed, out), want);
    textout_free(o);
}

Test(textout, never_splits_a_character)
{
    struct tokenizer *t = vocabulary();
    shows(t, NULL, "a\xc3\xa9z", "a||\xc3\xa9|z|");
    shows(t, NULL, "\xf0\x9f\x98\x80", "|||\xf0\x9f\x98\x80|");
    tokenizer_free(t);
}

/* The right-hand sides are what Python prints for bytes.decode("utf-8", "replace"). */
Test(textout, replaces_what_is_no_text_as_python_does)
{
    struct tokenizer *t = vocabulary();
    shows(t, NULL, "\xff", "\xef\xbf\xbd|");
    shows(t, NULL, "\xe2\x80q", "||\xef\xbf\xbdq|");
    shows(t, NULL, "\xed\xa0\x80", "|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|");
    shows(t, NULL, "\xf0\x9f\xf0\x9f", "||\xef\xbf\xbd||\xef\xbf\xbd");
    shows(t, NULL, "\xc3\xc3\xa9", "|\xef\xbf\xbd|\xc3\xa9|");
    tokenizer_free(t);
}

Test(textout, puts_characters_together_from_byte_tokens)
{
    const char *tokens[] = { "<unk>", "<s>", "</s>", "<0xE2>", "<0x82>", "<0xAC>", "▁x" };
    int32_t types[] = { 2, 3, 3, 6, 6, 6, 1 };
    float scores[7] = { 0 };
    struct vocab v = vocab_of_scores(tokens, types, scores, 7);
    static const struct {
        int32_t token;
        const char *text;
        size_t tokens;
    } steps[] = { { 3, "", 0 },   { 4, "", 0 }, { 5, "€", 3 },
                  { 6, " x", 1 }, { 3, "", 0 }, { 6, "\xef\xbf\xbd x", 2 },
                  { 2, "", 1 } };
    struct tokenizer *t = must_open(&v);
    struct textout *o;
    cr_assert_eq(textout_new(t, NULL, NULL, 0, &o), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const char *text;
        size_t len, n, stop;
        cr_assert_eq(textout_add(o, steps[i].token, &text, &len, &n, &stop), 0);
        cr_expect(len == strlen(steps[i].text) && memcmp(text, steps[i].text, len) == 0, "step %zu", i);
        cr_expect_eq(n, steps[i].tokens, "step %zu", i);
    }
    textout_free(o);
    tokenizer_free(t);
}

Test(textout, holds_back_what_may_become_a_stop_string_and_no_more)
{
    struct tokenizer *t = vocabulary();
    shows(t, "STOP", "xSTOPy", "x|||||");
    shows(t, "STOP", "xSTSTOP", "x|||ST||||");
    shows(t, "STOP", "STO", "|||STO");
    shows(t, "aab", "aaaab", "||a|a||");
    tokenizer_free(t);
}

Test(textout, of_stops_completed_by_one_token_the_one_that_starts_first_wins)
{
    struct tokenizer *t = vocabulary();
    const char *stops[] = { "Y", "XbYc", "bY" };
    size_t lens[] = { 1, 4, 2 }, len, tokens, stop;
    const char *text;
    struct textout *o;
    cr_assert_eq(textout_new(t, stops, lens, 3, &o), 0);
    cr_expect_eq(textout_add(o, 256 + 13, &text, &len, &tokens, &stop), 1, "aXbYc in one token");
    cr_expect(stop == 1 && len == 1 && text[0] == 'a' && tokens == 0);
    cr_expect_eq(textout_add(o, 'z', &text, &len, &tokens, &stop), 1, "stopped is stopped");
    cr_expect(stop == 1 && len == 0 && tokens == 0);
    cr_expect_eq(textout_finish(o, &text, &len, &tokens), 0);
    cr_expect(len == 0 && tokens == 0);
    textout_free(o);
    cr_assert_eq(textout_new(t, stops, lens, 3, &o), 0);
    textout_add(o, 'X', &text, &len, &tokens, &stop);
    cr_expect_eq(len, 0);
    textout_add(o, 'b', &text, &len, &tokens, &stop);
    cr_expect_eq(textout_add(o, 'Y', &text, &len, &tokens, &stop), 1, "bY is complete before XbYc could be");
    cr_expect(stop == 2 && len == 1 && text[0] == 'X' && tokens == 1);
    textout_free(o);
    tokenizer_free(t);
}

Test(textout, control_tokens_say_nothing_and_are_out_at_once)
{
    struct tokenizer *t = vocabulary();
    const char *text;
    size_t len, tokens, stop;
    struct textout *o;
    cr_assert_eq(textout_new(t, NULL, NULL, 0, &o), 0);
    cr_expect_eq(textout_add(o, CONTROL, &text, &len, &tokens, &stop), 0);
    cr_expect(len == 0 && tokens == 1);
    textout_free(o);

    size_t want;
    const char *own = tokenizer_piece(t, CONTROL, true, &want);
    cr_assert_eq(textout_new(t, NULL, NULL, 0, &o), 0);
    textout_show(o, (const int32_t[]){ CONTROL }, 1);
    cr_expect_eq(textout_add(o, CONTROL, &text, &len, &tokens, &stop), 0);
    cr_expect(want > 0 && len == want && memcmp(text, own, len) == 0 && tokens == 1, "one that is shown has");
    textout_free(o);
    tokenizer_free(t);
}

Test(textout, refuses_stop_strings_that_are_empty_or_no_text)
{
    struct tokenizer *t = vocabulary();
    const char *empty = "", *broken = "\xa9x";
    size_t none = 0, two = 2;
    struct textout *o = NULL;
    cr_expect_eq(textout_new(t, &empty, &none, 1, &o), -EINVAL);
    cr_expect_eq(textout_new(t, &broken, &two, 1, &o), -EINVAL);
    cr_expect_null(o);
    tokenizer_free(t);
}

/* A stop string of 200,000 letters that the text is always about to complete: all of it is held and none of
 * it moved for each token. Looking or moving anew each time would be 10^11 steps. */
Test(textout, costs_the_same_for_each_token_however_much_is_held)
{
    struct tokenizer *t = vocabulary();
    size_t n = 200000, stop_len = n + 1, len, tokens, stop, out = 0;
    char *letters = malloc(n + 1);
    const char *text, *stops[] = { letters };
    struct textout *o;
    memset(letters, 'a', n);
    letters[n] = 'b';
    cr_assert_eq(textout_new(t, stops, &stop_len, 1, &o), 0);
    clock_t start = clock();
    for (size_t i = 0; i < 4 * n; i++) {
        cr_assert_eq(textout_add(o, 'a', &text, &len, &tokens, &stop), 0);
        out += tokens;
    }
    fprintf(stderr, "textout: %.0f ns a token with %zu bytes held\n",
            1e9 * (double)(clock() - start) / CLOCKS_PER_SEC / (double)(4 * n), n);
    cr_expect_eq(out, 3 * n);
    textout_free(o);
    free(letters);
    tokenizer_free(t);
}
