/* Textout: see textout.h. Three steps, each one pass: bytes to characters (what cannot be one becomes U+FFFD,
 * as Python's decode with errors="replace" gives), characters past an automaton of the stop strings, and out,
 * except for what could still become a stop string. Places in the text are counted from the start of the
 * generation. Must not know: why a generation ended, HTTP. Tests: tests/unit/test_textout.c */
#include "model/textout.h"
#include "model/matcher.h"
#include "util/utf8.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A token that is not wholly out. */
struct waiting {
    uint64_t raw_end; /* where its bytes end */
    uint64_t end; /* where the character with its last byte ends in the text; known for the first n_placed */
};

struct stop_match {
    uint64_t start;
    size_t index;
    bool found;
};

struct textout {
    const struct tokenizer *tokenizer;
    struct matcher *stops; /* NULL: none */
    size_t *stop_lens;
    uint32_t state; /* of the automaton, after the whole text */

    char partial[4]; /* the start of a character */
    size_t n_partial;
    uint64_t raw;       /* bytes of all tokens so far */
    uint64_t raw_whole; /* of them, those whose character is in the text or has been replaced */

    char *text; /* text[head..len): not handed out before the last call */
    size_t head, len, cap;
    uint64_t total;  /* bytes of text so far */
    uint64_t handed; /* of them, handed out */

    struct waiting *tokens; /* tokens[first..n) */
    size_t first, n, n_placed, tokens_cap;
    struct stop_match match;

    int32_t shown[TEXTOUT_SHOWN];
    size_t n_shown;
};

static int read_stops(struct textout *o, const char *const *stops, const size_t *lens, size_t n)
{
    int r = 0;
    if (n == 0)
        return 0;
    struct gguf_str *strings = malloc(n * sizeof *strings);
    o->stop_lens = malloc(n * sizeof *o->stop_lens);
    if (!strings || !o->stop_lens)
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++) {
        /* What is no UTF-8 could begin inside a character, and never stands in the text anyway. */
        if (lens[i] == 0 || !utf8_valid(stops[i], lens[i]))
            r = -EINVAL;
        strings[i] = (struct gguf_str){ stops[i], lens[i] };
        o->stop_lens[i] = lens[i];
    }
    if (r == 0)
        r = matcher_new(strings, n, false, &o->stops);
    free(strings);
    return r;
}

int textout_new(const struct tokenizer *t, const char *const *stops, const size_t *stop_lens, size_t n_stops,
                struct textout **ret_out)
{
    struct textout *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    o->tokenizer = t;
    int r = read_stops(o, stops, stop_lens, n_stops);
    if (r < 0) {
        textout_free(o);
        return r;
    }
    *ret_out = o;
    return 0;
}

void textout_free(struct textout *o)
{
    if (!o)
        return;
    matcher_free(o->stops);
    free(o->stop_lens);
    free(o->text);
    free(o->tokens);
    free(o);
}

void textout_show(struct textout *o, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n && o->n_shown < TEXTOUT_SHOWN; i++)
        o->shown[o->n_shown++] = tokens[i];
}

static bool is_shown(const struct textout *o, int32_t token)
{
    for (size_t i = 0; i < o->n_shown; i++)
        if (o->shown[i] == token)
            return true;
    return false;
}

/* Forgets what the last call handed out and makes room for what n more bytes can become. What is kept is
 * moved only when it is the smaller part, so a byte is moved once on average, however much is held back. */
static int make_text_room(struct textout *o, size_t n)
{
    size_t kept = o->len - o->head;
    if (kept <= o->head) {
        if (kept)
            memcpy(o->text, o->text + o->head, kept);
        o->len = kept;
        o->head = 0;
    }
    if (n > SIZE_MAX / 8)
        return -ENOMEM;
    size_t want = o->len + 3 * n + 3;
    if (want <= o->cap)
        return 0;
    want += want / 2;
    char *text = realloc(o->text, want);
    if (!text)
        return -ENOMEM;
    o->text = text;
    o->cap = want;
    return 0;
}

static int make_token_room(struct textout *o)
{
    size_t kept = o->n - o->first;
    if (kept <= o->first) {
        if (kept)
            memcpy(o->tokens, o->tokens + o->first, kept * sizeof *o->tokens);
        o->n_placed -= o->first;
        o->n = kept;
        o->first = 0;
    }
    if (o->n < o->tokens_cap)
        return 0;
    size_t cap = o->tokens_cap ? 2 * o->tokens_cap : 16;
    struct waiting *tokens = realloc(o->tokens, cap * sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    o->tokens = tokens;
    o->tokens_cap = cap;
    return 0;
}

/* Takes the stop strings that end with the byte just stepped over. The longest starts first; one found before
 * is kept unless this one starts before it. */
static void note_match(struct textout *o)
{
    uint32_t out = o->stops->states[o->state].out;
    if (out == MATCHER_NONE)
        return;
    uint64_t start = o->total - o->stop_lens[out];
    if (!o->match.found || start < o->match.start)
        o->match = (struct stop_match){ start, out, true };
}

/* Gives a place to the tokens whose characters are complete. */
static void place_tokens(struct textout *o)
{
    while (o->n_placed < o->n && o->tokens[o->n_placed].raw_end <= o->raw_whole)
        o->tokens[o->n_placed++].end = o->total;
}

/* Adds a character, which stands for raw_len bytes of tokens. */
static void add_character(struct textout *o, const char *bytes, size_t len, size_t raw_len)
{
    memcpy(o->text + o->len, bytes, len);
    o->len += len;
    for (size_t i = 0; i < len; i++) {
        o->total++;
        if (!o->stops)
            continue;
        o->state = matcher_step(o->stops, o->state, (unsigned char)bytes[i]);
        note_match(o);
    }
    o->raw_whole += raw_len;
    place_tokens(o);
}

static void add_replacement(struct textout *o, size_t raw_len)
{
    add_character(o, "\xef\xbf\xbd", 3, raw_len);
}

static void add_byte(struct textout *o, char byte)
{
    uint32_t cp;
    o->partial[o->n_partial++] = byte;
    if (utf8_decode(o->partial, o->n_partial, &cp)) {
        add_character(o, o->partial, o->n_partial, o->n_partial);
        o->n_partial = 0;
    } else if (utf8_incomplete_tail(o->partial, o->n_partial) == o->n_partial) {
        return;
    } else if (o->n_partial == 1) {
        add_replacement(o, 1);
        o->n_partial = 0;
    } else {
        /* This byte does not go on with what came before: that is one replacement, and the byte starts anew.
         */
        add_replacement(o, o->n_partial - 1);
        o->n_partial = 0;
        add_byte(o, byte);
    }
}

/* Hands out the text up to the place `end` and the tokens that end there at the latest. */
static void hand_out(struct textout *o, uint64_t end, const char **ret_text, size_t *ret_len,
                     size_t *ret_tokens)
{
    *ret_text = o->text + o->head;
    *ret_len = (size_t)(end - o->handed);
    o->head += *ret_len;
    o->handed = end;
    size_t tokens = 0;
    while (o->first < o->n_placed && o->tokens[o->first].end <= end) {
        o->first++;
        tokens++;
    }
    *ret_tokens = tokens;
}

int textout_add(struct textout *o, int32_t token, const char **ret_text, size_t *ret_len, size_t *ret_tokens,
                size_t *ret_stop)
{
    size_t len;
    const char *bytes = tokenizer_piece(o->tokenizer, token, is_shown(o, token), &len);
    if (o->match.found) {
        hand_out(o, o->handed, ret_text, ret_len, ret_tokens);
        *ret_stop = o->match.index;
        return 1;
    }
    if (make_text_room(o, len) < 0 || make_token_room(o) < 0)
        return -ENOMEM;
    o->raw += len;
    o->tokens[o->n++] = (struct waiting){ .raw_end = o->raw };
    for (size_t i = 0; i < len; i++)
        add_byte(o, bytes[i]);
    place_tokens(o);

    if (o->match.found) {
        hand_out(o, o->match.start, ret_text, ret_len, ret_tokens);
        *ret_stop = o->match.index;
        return 1;
    }
    uint64_t held = o->stops ? o->stops->states[o->state].depth : 0;
    hand_out(o, o->total - held, ret_text, ret_len, ret_tokens);
    return 0;
}

int textout_finish(struct textout *o, const char **ret_text, size_t *ret_len, size_t *ret_tokens)
{
    if (o->match.found) {
        hand_out(o, o->handed, ret_text, ret_len, ret_tokens);
        return 0;
    }
    if (make_text_room(o, 1) < 0)
        return -ENOMEM;
    if (o->n_partial) {
        add_replacement(o, o->n_partial);
        o->n_partial = 0;
    }
    hand_out(o, o->total, ret_text, ret_len, ret_tokens);
    return 0;
}
