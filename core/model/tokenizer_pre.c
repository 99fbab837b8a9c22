/* Pre-tokenizers: see tokenizer_pre.h. The patterns are regular expressions in the models' own
 * configurations; here each is a few lines that look at one character at a time, because none of them ever
 * needs to look back. */
#include "model/tokenizer_pre.h"
#include "model/tokenizer_char.h"
#include <stdio.h>
#include <string.h>

/* 's 't 're 've 'm 'll 'd: the length of the one that text starts with, or 0. */
static size_t contraction(const char *text, size_t len)
{
    if (len < 2 || text[0] != '\'')
        return 0;
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd')
        return 2;
    if (len < 3)
        return 0;
    if ((text[2] == 'e' && (text[1] == 'r' || text[1] == 'v')) || (text[1] == 'l' && text[2] == 'l'))
        return 3;
    return 0;
}

/* The same in either case. The long s (U+017F) is an s in another case, too. */
static size_t contraction_any_case(const char *text, size_t len)
{
    char lower[3];
    if (len >= 3 && memcmp(text, "'\xc5\xbf", 3) == 0)
        return 3;
    if (len < 2 || text[0] != '\'')
        return 0;
    if (len > 3)
        len = 3;
    for (size_t i = 0; i < len; i++)
        lower[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] | 0x20) : text[i];
    return contraction(lower, len);
}

/* --- GPT-2 and what was made of it: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
 * ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ A tokenizer may cut out some characters first and take what lies between as
 * texts of their own; `ends` says which. --- */

typedef bool ends_fn(struct character c);

static bool same_run(struct character a, struct character b)
{
    return a.class == b.class || (character_is_symbol(a) && character_is_symbol(b)) ||
           (character_is_letter(a) && character_is_letter(b));
}

/* The end of the run of characters like `first` that goes on at `at`. */
static size_t run_end(const char *text, size_t len, size_t at, struct character first, ends_fn *ends)
{
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (!same_run(c, first) || ends(c))
            break;
        at += c.len;
    }
    return at;
}

/* A run of spaces. Its last one is left for what follows, unless the text ends there. */
static size_t space_run(const char *text, size_t len, ends_fn *ends)
{
    size_t at = 0, last = 0;
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (ends(c))
            break;
        if (c.class != UNICODE_SPACE)
            return last ? last : at;
        last = at;
        at += c.len;
    }
    return at;
}

/* The first piece of a text that does not begin with what ends one. */
static inline size_t gpt2_piece(const char *text, size_t len, ends_fn *ends)
{
    size_t n = contraction(text, len), start = 0;
    struct character first = character_at(text, len);
    if (n)
        return n;
    if (text[0] == ' ' && len > 1) {
        struct character next = character_at(text + 1, len - 1);
        if (next.class != UNICODE_SPACE && !ends(next)) {
            start = 1;
            first = next;
        }
    }
    if (first.class == UNICODE_SPACE)
        return space_run(text, len, ends);
    return run_end(text, len, start + first.len, first, ends);
}

static bool ends_nowhere(struct character c)
{
    (void)c;
    return false;
}

static size_t gpt2(const char *text, size_t len)
{
    return gpt2_piece(text, len, ends_nowhere);
}

static bool is_number(struct character c)
{
    return c.class == UNICODE_NUMBER;
}

/* Every number character by itself (\p{N}), and what lies between as GPT-2. */
static size_t smollm(const char *text, size_t len)
{
    struct character first = character_at(text, len);
    return is_number(first) ? first.len : gpt2_piece(text, len, is_number);
}

/* [\p{P}\$\+<=>\^~\|] */
static bool is_mark(struct character c)
{
    return c.class == UNICODE_PUNCTUATION || (c.cp && c.cp < 0x80 && strchr("$+<=>^~|", (int)c.cp));
}

static bool has_three_digits(const char *text, size_t len)
{
    if (len < 3)
        return false;
    for (int i = 0; i < 3; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return true;
}

/* A run of numbers, with groups of three ASCII digits cut out. */
static size_t number_groups(const char *text, size_t len)
{
    size_t at = 0;
    if (has_three_digits(text, len))
        return 3;
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (!is_number(c) || has_three_digits(text + at, len - at))
            break;
        at += c.len;
    }
    return at;
}

/* What files get that name no pre-tokenizer: runs of marks, what lies between as GPT-2, of that runs of
 * numbers (\p{N}+), and of those [0-9][0-9][0-9]. */
static size_t unnamed(const char *text, size_t len)
{
    struct character first = character_at(text, len);
    if (is_number(first))
        return number_groups(text, len);
    if (text[0] == ' ' && len > 1 && is_number(character_at(text + 1, len - 1)))
        return 1;
    if (!is_mark(first))
        return gpt2_piece(text, len, is_mark);

    size_t at = first.len;
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (!is_mark(c))
            break;
        at += c.len;
    }
    return at;
}

/* --- Llama 3 and Qwen 2:
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+ --- */

/* Spaces: up to the last line break among them, else all but the last if something follows. */
static size_t space_or_line_breaks(const char *text, size_t len)
{
    size_t at = 0, last = 0, after_break = 0;
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (c.class != UNICODE_SPACE)
            break;
        last = at;
        at += c.len;
        if (character_is_newline(c))
            after_break = at;
    }
    if (after_break)
        return after_break;
    return at < len && last ? last : at;
}

static inline size_t numbers(const char *text, size_t len, unsigned most)
{
    size_t at = 0;
    for (unsigned n = 0; n < most && at < len; n++) {
        struct character c = character_at(text + at, len - at);
        if (!is_number(c))
            break;
        at += c.len;
    }
    return at;
}

static inline size_t word_or_symbols(const char *text, size_t len, unsigned digits)
{
    size_t n = contraction_any_case(text, len), start = 0;
    struct character first = character_at(text, len);
    if (n)
        return n;
    if (is_number(first))
        return numbers(text, len, digits);
    if (!character_is_letter(first) && !character_is_newline(first) && len > first.len) {
        struct character next = character_at(text + first.len, len - first.len);
        if (character_is_letter(next) || (first.cp == ' ' && character_is_symbol(next))) {
            start = first.len;
            first = next;
        }
    }
    if (first.class == UNICODE_SPACE)
        return space_or_line_breaks(text, len);

    size_t at = run_end(text, len, start + first.len, first, ends_nowhere);
    if (character_is_symbol(first))
        while (at < len && (text[at] == '\r' || text[at] == '\n'))
            at++;
    return at;
}

static size_t llama_bpe(const char *text, size_t len)
{
    return word_or_symbols(text, len, 3);
}

static size_t qwen2(const char *text, size_t len)
{
    return word_or_symbols(text, len, 1);
}

/* --- Mistral's since Nemo. With HEAD for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and TAIL for
 * [\p{Ll}\p{Lm}\p{Lo}\p{M}], which have letters without case and marks in common:
 * [^\r\n\p{L}\p{N}]?HEAD*TAIL+|[^\r\n\p{L}\p{N}]?HEAD+TAIL*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+ --- */

static bool in_both(struct character c)
{
    return c.class == UNICODE_LETTER || c.class == UNICODE_MARK;
}

/* The end of HEAD*TAIL+ at text[at..), or `at`. *ret_head is that of HEAD*. */
static size_t cased_word(const char *text, size_t len, size_t at, size_t *ret_head)
{
    size_t last_of_both = at, end;
    struct character c = { 0 };
    for (; at < len; at += c.len) {
        c = character_at(text + at, len - at);
        if (c.class != UNICODE_UPPER && !in_both(c))
            break;
        if (in_both(c))
            last_of_both = at + c.len;
    }
    *ret_head = at;
    if (at == len || c.class != UNICODE_LOWER)
        /* HEAD* gives back what it took until TAIL+ has one. */
        return last_of_both;
    for (end = at; end < len; end += c.len) {
        c = character_at(text + end, len - end);
        if (c.class != UNICODE_LOWER && !in_both(c))
            break;
    }
    return end;
}

static size_t tekken(const char *text, size_t len)
{
    struct character first = character_at(text, len);
    size_t head, start = character_is_letter(first) ? 0 : first.len;
    if (is_number(first))
        return first.len;
    if (!character_is_newline(first)) {
        size_t end = cased_word(text, len, start, &head);
        if (end > start)
            return end;
        /* A mark by itself is a word, which comes before a mark and capitals. */
        if (head > start || first.class == UNICODE_MARK)
            return first.class == UNICODE_MARK ? first.len : head;
    }
    if (first.cp == ' ' && len > 1 && character_is_symbol(character_at(text + 1, len - 1)))
        first = character_at(text + 1, len - 1);
    else
        start = 0;
    if (first.class == UNICODE_SPACE)
        return space_or_line_breaks(text, len);
    size_t at = run_end(text, len, start + first.len, first, ends_nowhere);
    while (at < len && (text[at] == '\r' || text[at] == '\n' || text[at] == '/'))
        at++;
    return at;
}

static const struct tokenizer_pre rows[] = {
    { "default", unnamed, false, false }, { "gpt-2", gpt2, false, false },
    { "smollm", smollm, false, false },   { "llama-bpe", llama_bpe, true, true },
    { "llama3", llama_bpe, true, true },  { "llama-v3", llama_bpe, true, true },
    { "qwen2", qwen2, false, false },     { "deepseek-r1-qwen", qwen2, false, false },
    { "tekken", tekken, true, true },     { "deepseek-llm", tokenizer_deepseek_piece, false, false },
};

const struct tokenizer_pre *tokenizer_pre_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
            return &rows[i];
    return NULL;
}

void tokenizer_pre_names(char *text, size_t textlen)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && used < textlen; i++) {
        int n = snprintf(text + used, textlen - used, "%s%s", i ? ", " : "", rows[i].name);
        used += n > 0 ? (size_t)n : 0;
    }
}
