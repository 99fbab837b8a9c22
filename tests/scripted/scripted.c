/* Scripted: makes of berth a program whose model says what a test wants. Linked with --wrap around the
 * sampler's functions (tests/meson.build): everything runs as in the product, and at the last moment the
 * chosen token is replaced by the next one of a given text, then by the end.
 *
 * BERTH_SCRIPT names a JSON file, read anew for each request: [{"after": "..", "say": ".."}, ..]. Of the
 * rules whose `after` stands in the prompt, the one where it stands last speaks; where none does, the model
 * does. */
#include "model/sampler.h"
#include "model/tokenizer.h"
#include "util/buf.h"
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int __real_sampler_new(const struct sampler_params *p, uint32_t n_vocab,
                       bool (*is_eog)(const void *arg, int32_t id), const void *arg,
                       struct sampler **ret_sampler);
void __real_sampler_free(struct sampler *s);
void __real_sampler_accept(struct sampler *s, int32_t token, bool generated);
void __real_sampler_choose(struct sampler *s, const float *logits, uint64_t position,
                           struct sampler_choice *ret_choice);
int __wrap_sampler_new(const struct sampler_params *p, uint32_t n_vocab,
                       bool (*is_eog)(const void *arg, int32_t id), const void *arg,
                       struct sampler **ret_sampler);
void __wrap_sampler_free(struct sampler *s);
void __wrap_sampler_accept(struct sampler *s, int32_t token, bool generated);
void __wrap_sampler_choose(struct sampler *s, const float *logits, uint64_t position,
                           struct sampler_choice *ret_choice);

struct play {
    struct play *next;
    const struct sampler *of;
    const struct tokenizer *tokenizer;
    struct buf prompt;
    int32_t *tokens; /* what is to be said */
    size_t n, at;
    bool begun, scripted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct play *plays;

static struct play **find(const struct sampler *s)
{
    struct play **at = &plays;
    while (*at && (*at)->of != s)
        at = &(*at)->next;
    return at;
}

int __wrap_sampler_new(const struct sampler_params *p, uint32_t n_vocab,
                       bool (*is_eog)(const void *arg, int32_t id), const void *arg,
                       struct sampler **ret_sampler)
{
    int r = __real_sampler_new(p, n_vocab, is_eog, arg, ret_sampler);
    struct play *play = r < 0 ? NULL : calloc(1, sizeof *play);
    if (!play)
        return r;
    play->of = *ret_sampler;
    play->tokenizer = arg;
    pthread_mutex_lock(&lock);
    play->next = plays;
    plays = play;
    pthread_mutex_unlock(&lock);
    return 0;
}

void __wrap_sampler_free(struct sampler *s)
{
    pthread_mutex_lock(&lock);
    struct play **at = find(s), *play = *at;
    if (play)
        *at = play->next;
    pthread_mutex_unlock(&lock);
    if (play) {
        buf_free(&play->prompt);
        free(play->tokens);
        free(play);
    }
    __real_sampler_free(s);
}

static struct play *play_of(const struct sampler *s)
{
    pthread_mutex_lock(&lock);
    struct play *play = *find(s);
    pthread_mutex_unlock(&lock);
    return play;
}

void __wrap_sampler_accept(struct sampler *s, int32_t token, bool generated)
{
    struct play *play = play_of(s);
    size_t len;
    if (play && !generated) {
        const char *piece = tokenizer_piece(play->tokenizer, token, true, &len);
        buf_append(&play->prompt, piece, len);
    }
    __real_sampler_accept(s, token, generated);
}

/* Where a text stands last, from its end on; 0: nowhere. */
static size_t last_place(const char *text, const char *part)
{
    size_t place = 0;
    for (const char *at = text; part && *part && (at = strstr(at, part)); at++)
        place = (size_t)(at - text) + strlen(part);
    return place;
}

static void begin(struct play *play)
{
    const char *path = getenv("BERTH_SCRIPT");
    json_t *rules = path ? json_load_file(path, 0, NULL) : NULL, *rule, *chosen = NULL;
    size_t i, best = 0;
    play->begun = true;
    buf_append(&play->prompt, "", 0);
    json_array_foreach(rules, i, rule)
    {
        size_t place = last_place(play->prompt.data, json_string_value(json_object_get(rule, "after")));
        if (place > best) {
            best = place;
            chosen = json_object_get(rule, "say");
        }
    }
    if (json_is_string(chosen))
        play->scripted =
            tokenizer_encode(play->tokenizer, json_string_value(chosen), json_string_length(chosen),
                             TOKENIZER_PARSE_SPECIAL, &play->tokens, &play->n) == 0;
    json_decref(rules);
}

void __wrap_sampler_choose(struct sampler *s, const float *logits, uint64_t position,
                           struct sampler_choice *ret_choice)
{
    struct play *play = play_of(s);
    __real_sampler_choose(s, logits, position, ret_choice);
    if (play && !play->begun)
        begin(play);
    if (!play || !play->scripted)
        return;
    ret_choice->token = play->at < play->n ? play->tokens[play->at] : tokenizer_eos(play->tokenizer);
    play->at++;
}
