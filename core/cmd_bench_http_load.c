/* Bench over HTTP, the load: what is asked of a server, when each piece of the reply comes, and the numbers
 * of a round. A token's time is the time its bytes were read here. One thread: the event loop runs for a
 * round and ends with it. Must not know: how HTTP is written, how results are printed. Tests:
 * tests/e2e/test_bench_http.py */
#include "cmd_bench_http.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/jsonx.h"
#include "util/rng.h"
#include "util/utf8.h"
#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32u
/* The prompt that shows how many tokens a word has. */
#define SAMPLE_WORDS 64u
/* Pieces of the first stream before the second request goes out. */
#define STALL_LEAD_TEXTS 8u
#define STALL_FIRST_PROMPT 16u

/* Common words, so that most vocabularies have each as one token. */
static const char *const words[] = {
    "time",     "year",        "people",    "way",      "day",        "man",      "thing",       "woman",
    "life",     "child",       "world",     "school",   "state",      "family",   "student",     "group",
    "country",  "problem",     "hand",      "part",     "place",      "case",     "week",        "company",
    "system",   "program",     "question",  "work",     "government", "number",   "night",       "point",
    "home",     "water",       "room",      "mother",   "area",       "money",    "story",       "fact",
    "month",    "lot",         "right",     "study",    "book",       "eye",      "job",         "word",
    "business", "issue",       "side",      "kind",     "head",       "house",    "service",     "friend",
    "father",   "power",       "hour",      "game",     "line",       "end",      "member",      "law",
    "car",      "city",        "community", "name",     "president",  "team",     "minute",      "idea",
    "body",     "information", "back",      "parent",   "face",       "others",   "level",       "office",
    "door",     "health",      "person",    "art",      "war",        "history",  "party",       "result",
    "change",   "morning",     "reason",    "research", "girl",       "guy",      "moment",      "air",
    "teacher",  "force",       "education", "foot",     "boy",        "age",      "policy",      "music",
    "market",   "sense",       "nation",    "plan",     "college",    "interest", "death",       "experience",
    "effect",   "use",         "class",     "control",  "care",       "field",    "development", "role",
    "effort",   "rate",        "heart",     "drug",     "show",       "leader",   "light",       "voice",
};
#define N_WORDS (sizeof words / sizeof *words)

struct load;

struct stream {
    struct load *load;
    struct bench_call *call;
    char *body;
    size_t body_len;
    uint64_t sent, first, last, done;  /* when; 0: not yet */
    uint64_t longest_gap;              /* ns between two pieces of text */
    uint64_t texts;                    /* pieces so far */
    int64_t prompt, cached, generated; /* tokens by the server's count; -1: not told */
    bool ended;
};

/* A round that is running. */
struct load {
    struct bench_http *b;
    struct bench_target *target;
    struct stream *streams;
    size_t n, running;
    void (*on_text)(struct load *l, struct stream *s, uint64_t now);
    void (*on_stream_end)(struct load *l, struct stream *s);
    char *err;
    size_t errlen;
    int r;
    /* Of a stall round. */
    uint64_t gap_alone, stall_gap, stall_texts;
    bool settled;
};

static void fail(struct load *l, int r, const char *text)
{
    if (l->r == 0) {
        l->r = r;
        snprintf(l->err, l->errlen, "%s: %s", l->target->url, text);
    }
    event_base_loopbreak(l->b->base);
}

/* Words of prompt `id`: the first differs between neighbours, so that what two share is next to nothing. */
static void put_prompt(struct buf *out, uint64_t seed, uint64_t id, uint32_t n_words)
{
    uint32_t random[4];
    buf_puts(out, words[(seed + id) % N_WORDS]);
    for (uint32_t i = 1; i < n_words; i++) {
        rng_philox(seed, id << 32 | i, random);
        buf_putc(out, ' ');
        buf_puts(out, words[random[0] % N_WORDS]);
    }
}

static int make_body(struct stream *s, uint64_t id, uint32_t n_words, uint32_t generate)
{
    struct bench_http *b = s->load->b;
    struct buf prompt = { 0 };
    json_t *root;

    put_prompt(&prompt, b->seed, id, n_words);
    root = prompt.failed ? NULL
                         : json_pack("{s:s, s:i, s:b, s:i, s:b, s:{s:b}}", "prompt", prompt.data,
                                     "max_tokens", (int)generate, "stream", 1, "temperature", 0, "ignore_eos",
                                     1, "stream_options", "include_usage", 1);
    if (root && b->model)
        json_object_set_new(root, "model", json_string(b->model));
    s->body = root ? json_dumps(root, JSON_COMPACT) : NULL;
    s->body_len = s->body ? strlen(s->body) : 0;
    json_decref(root);
    buf_free(&prompt);
    if (!s->body)
        fail(s->load, -ENOMEM, "out of memory");
    return s->load->r;
}

static int64_t count_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

static void take_usage(struct stream *s, const json_t *root)
{
    const json_t *usage = json_object_get(root, "usage");
    if (!json_is_object(usage))
        return;
    s->prompt = count_of(usage, "prompt_tokens");
    s->generated = count_of(usage, "completion_tokens");
    s->cached = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (s->cached < 0)
        s->cached = count_of(json_object_get(root, "timings"), "cache_n");
}

static void take_text(struct stream *s, uint64_t now)
{
    if (!s->first)
        s->first = now;
    else if (now - s->last > s->longest_gap)
        s->longest_gap = now - s->last;
    if (s->load->on_text)
        s->load->on_text(s->load, s, now);
    s->last = now;
    s->texts++;
}

/* Cut to what fits, never inside a character: JSON wants it whole. */
static void keep_name(struct bench_target *t, const char *model)
{
    size_t len = strnlen(model, sizeof t->model - 1);
    len -= utf8_incomplete_tail(model, len);
    memcpy(t->model, model, len);
    t->model[len] = '\0';
}

static void take_chunk(struct stream *s, const json_t *root, uint64_t now)
{
    struct bench_target *t = s->load->target;
    const json_t *error = json_object_get(root, "error");
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *model = json_string_value(json_object_get(root, "model"));

    if (error && !json_is_null(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        char text[1024];
        snprintf(text, sizeof text, "an error in the stream: %s",
                 message                 ? message
                 : json_is_string(error) ? json_string_value(error)
                                         : "no message");
        fail(s->load, -EIO, text);
        return;
    }
    if (json_string_length(json_object_get(choice, "text")))
        take_text(s, now);
    take_usage(s, root);
    if (model && !t->model[0])
        keep_name(t, model);
}

static void on_event(void *arg, const char *data, size_t len)
{
    struct stream *s = arg;
    uint64_t now = clock_now_ns();
    json_t *root = NULL;
    char why[160], text[320];

    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->done = now;
        return;
    }
    if (jsonx_parse(data, len, MAX_DEPTH, false, &root, why, sizeof why) < 0) {
        snprintf(text, sizeof text, "an event is not JSON: %s", why);
        fail(s->load, -EIO, text);
        return;
    }
    take_chunk(s, root, now);
    json_decref(root);
}

static void on_end(void *arg, const char *err)
{
    struct stream *s = arg;
    struct load *l = s->load;

    s->ended = true;
    if (err) {
        fail(l, -EIO, err);
        return;
    }
    if (!s->done)
        s->done = clock_now_ns();
    /* Tokens without text, as a part of a character is one, came with the end. */
    if (!s->first)
        s->first = s->last = s->done;
    if (s->prompt < 0 || s->generated < 0) {
        fail(l, -EIO, "the stream told no usage; stream_options.include_usage is not known there");
        return;
    }
    if (s->generated == 0) {
        fail(l, -EIO, "nothing was generated");
        return;
    }
    l->running--;
    if (l->on_stream_end)
        l->on_stream_end(l, s);
    else if (l->running == 0)
        event_base_loopbreak(l->b->base);
}

static int connect_stream(struct stream *s)
{
    static const struct bench_call_events events = { on_event, on_end };
    struct load *l = s->load;
    if (l->r == 0)
        l->r = bench_call_open(l->b->base, l->target, &events, s, &s->call, l->err, l->errlen);
    return l->r;
}

static int send_off(struct stream *s)
{
    s->sent = clock_now_ns();
    s->load->running++;
    if (bench_call_send(s->call, s->body, s->body_len) < 0)
        fail(s->load, -ENOMEM, "out of memory");
    return s->load->r;
}

static int load_init(struct load *l, struct bench_http *b, struct bench_target *t, size_t n, char *err,
                     size_t errlen)
{
    *l = (struct load){ .b = b, .target = t, .n = n, .err = err, .errlen = errlen };
    l->streams = calloc(n, sizeof *l->streams);
    if (!l->streams) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        l->streams[i] = (struct stream){ .load = l, .prompt = -1, .cached = -1, .generated = -1 };
    return 0;
}

static void load_clear(struct load *l)
{
    for (size_t i = 0; l->streams && i < l->n; i++) {
        bench_call_close(l->streams[i].call);
        free(l->streams[i].body);
    }
    free(l->streams);
}

/* Runs until a callback breaks the loop. */
static int wait_for(struct load *l)
{
    if (l->r == 0 && event_base_dispatch(l->b->base) < 0)
        fail(l, -EIO, "the event loop failed");
    return l->r;
}

static double ms(uint64_t ns)
{
    return (double)ns / (double)NS_PER_MS;
}

/* `count` in a time; NAN where no time passed. */
static double rate(double count, uint64_t ns)
{
    return ns ? count * (double)NS_PER_S / (double)ns : NAN;
}

static int64_t known(int64_t count)
{
    return count > 0 ? count : 0;
}

/* --- streams: all at once --- */

enum {
    TOTAL,
    FIRST_P50,
    FIRST_P95,
    FIRST_MAX,
    GAP,
    EACH,
    READING,
    SECONDS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATED_TOKENS,
    N_STREAMS_METRICS
};

static const struct bench_metric streams_metrics[N_STREAMS_METRICS] = {
    [TOTAL] = { "total_tok_s", "total", "total", "tok/s", true },
    [FIRST_P50] = { "first_token_p50_ms", "first token p50", "1st p50", "ms", true },
    [FIRST_P95] = { "first_token_p95_ms", "first token p95", "1st p95", "ms", true },
    [FIRST_MAX] = { "first_token_max_ms", "first token max", "1st max", "ms", true },
    [GAP] = { "longest_gap_ms", "longest gap", "gap", "ms", true },
    [EACH] = { "stream_tok_s", "each stream", "stream", "tok/s", true },
    [READING] = { "prompt_tok_s", "prompt", "prompt", "tok/s", true },
    [SECONDS] = { "seconds", "round", "round", "s", false },
    [PROMPT_TOKENS] = { "prompt_tokens", "prompt tokens", "read", "", false },
    [CACHED_TOKENS] = { "cached_tokens", "of them cached", "cached", "", false },
    [GENERATED_TOKENS] = { "generated_tokens", "tokens generated", "made", "", false },
};

static int order_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The p-th quantile by nearest rank; sorts the samples. */
static double quantile(double *samples, size_t n, double p)
{
    size_t rank = (size_t)ceil(p * (double)n);
    qsort(samples, n, sizeof *samples, order_doubles);
    return samples[rank ? rank - 1 : 0];
}

static double reading_speed(const struct stream *s)
{
    return rate((double)(s->prompt - known(s->cached)), s->first - s->sent);
}

static int count_streams(const struct load *l, double *v)
{
    uint64_t last = 0, gap = 0;
    double *firsts = calloc(l->n, sizeof *firsts), *rates = calloc(l->n, sizeof *rates);
    int64_t prompt = 0, cached = 0, generated = 0;
    size_t n_rates = 0;
    int r = firsts && rates ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < l->n; i++) {
        const struct stream *s = &l->streams[i];
        last = s->done > last ? s->done : last;
        gap = s->longest_gap > gap ? s->longest_gap : gap;
        prompt += s->prompt;
        cached += known(s->cached);
        generated += s->generated;
        firsts[i] = ms(s->first - s->sent);
        if (s->last > s->first)
            rates[n_rates++] = rate((double)(s->generated - 1), s->last - s->first);
    }
    if (r == 0) {
        uint64_t took = last - l->streams[0].sent;
        v[TOTAL] = rate((double)generated, took);
        v[FIRST_P50] = quantile(firsts, l->n, 0.5);
        v[FIRST_P95] = quantile(firsts, l->n, 0.95);
        v[FIRST_MAX] = quantile(firsts, l->n, 1);
        v[GAP] = n_rates ? ms(gap) : NAN;
        v[EACH] = n_rates ? quantile(rates, n_rates, 0.5) : NAN;
        v[READING] = l->n == 1 ? reading_speed(&l->streams[0]) : NAN;
        v[SECONDS] = (double)took / (double)NS_PER_S;
        v[PROMPT_TOKENS] = (double)prompt;
        v[CACHED_TOKENS] = (double)cached;
        v[GENERATED_TOKENS] = (double)generated;
    } else {
        snprintf(l->err, l->errlen, "out of memory");
    }
    free(firsts);
    free(rates);
    return r;
}

static int streams_round(struct bench_http *b, struct bench_target *t, uint64_t number, double *ret_values,
                         char *err, size_t errlen)
{
    struct load l;
    int r = load_init(&l, b, t, b->streams, err, errlen);
    /* Prompts are written and connections made before the clock starts. */
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = make_body(&l.streams[i], number * b->streams + i, b->words, b->generate);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = connect_stream(&l.streams[i]);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = send_off(&l.streams[i]);
    if (r == 0)
        r = wait_for(&l);
    if (r == 0)
        r = count_streams(&l, ret_values);
    load_clear(&l);
    return r;
}

const struct bench_scenario bench_scenario_streams = { "streams", streams_metrics, N_STREAMS_METRICS,
                                                       streams_round };

/* --- stall: one stream decodes while another prompt is read --- */

enum {
    STALL_GAP,
    STALL_FIRST,
    STALL_GAP_ALONE,
    STALL_PIECES,
    STALL_READING,
    STALL_PROMPT_TOKENS,
    STALL_CACHED_TOKENS,
    N_STALL_METRICS
};

static const struct bench_metric stall_metrics[N_STALL_METRICS] = {
    [STALL_GAP] = { "longest_gap_ms", "longest gap", "gap", "ms", true },
    [STALL_FIRST] = { "first_token_ms", "first token of 2nd", "1st", "ms", true },
    [STALL_GAP_ALONE] = { "longest_gap_alone_ms", "longest gap alone", "alone", "ms", true },
    [STALL_PIECES] = { "stream_chunks_s", "chunks meanwhile", "chunks", "/s", true },
    [STALL_READING] = { "prompt_tok_s", "prompt of 2nd", "prompt", "tok/s", true },
    [STALL_PROMPT_TOKENS] = { "prompt_tokens", "prompt tokens", "read", "", false },
    [STALL_CACHED_TOKENS] = { "cached_tokens", "of them cached", "cached", "", false },
};

/* The gap that is open when the second's first token comes still counts: the first stream waited in it. */
static void stall_on_text(struct load *l, struct stream *s, uint64_t now)
{
    struct stream *first = &l->streams[0], *second = &l->streams[1];

    if (s != first || l->settled)
        return;
    if (second->sent) {
        if (now - first->last > l->stall_gap)
            l->stall_gap = now - first->last;
        l->settled = second->first != 0;
        l->stall_texts += !l->settled;
        if (l->settled && second->ended)
            event_base_loopbreak(l->b->base);
    } else if (first->texts + 1 >= STALL_LEAD_TEXTS) {
        l->gap_alone = first->longest_gap;
        if (connect_stream(second) == 0)
            send_off(second);
        else
            event_base_loopbreak(l->b->base);
    }
}

static void stall_on_end(struct load *l, struct stream *s)
{
    if (s == &l->streams[1]) {
        if (l->settled)
            event_base_loopbreak(l->b->base);
    } else if (!l->settled) {
        fail(l, -EIO, "the first stream was over before the second prompt was read; --generate more");
    }
}

static int stall_round(struct bench_http *b, struct bench_target *t, uint64_t number, double *ret_values,
                       char *err, size_t errlen)
{
    struct load l;
    int r = load_init(&l, b, t, 2, err, errlen);
    if (r == 0) {
        l.on_text = stall_on_text;
        l.on_stream_end = stall_on_end;
        r = make_body(&l.streams[0], number * 2, STALL_FIRST_PROMPT, b->generate);
    }
    if (r == 0)
        r = make_body(&l.streams[1], number * 2 + 1, b->words, 1);
    if (r == 0)
        r = connect_stream(&l.streams[0]);
    if (r == 0)
        r = send_off(&l.streams[0]);
    if (r == 0)
        r = wait_for(&l);
    if (r == 0) {
        const struct stream *second = &l.streams[1];
        ret_values[STALL_GAP] = ms(l.stall_gap);
        ret_values[STALL_FIRST] = ms(second->first - second->sent);
        ret_values[STALL_GAP_ALONE] = ms(l.gap_alone);
        ret_values[STALL_PIECES] = rate((double)l.stall_texts, second->first - second->sent);
        ret_values[STALL_READING] = reading_speed(second);
        ret_values[STALL_PROMPT_TOKENS] = (double)second->prompt;
        ret_values[STALL_CACHED_TOKENS] = (double)known(second->cached);
    }
    /* The first stream is left in the middle, which ends its work there. */
    load_clear(&l);
    return r;
}

const struct bench_scenario bench_scenario_stall = { "stall", stall_metrics, N_STALL_METRICS, stall_round };

int bench_http_fit_words(struct bench_http *b, char *err, size_t errlen)
{
    struct load l;
    int r = load_init(&l, b, &b->targets[0], 1, err, errlen);
    if (r == 0)
        r = make_body(&l.streams[0], 0, SAMPLE_WORDS, 1);
    if (r == 0)
        r = connect_stream(&l.streams[0]);
    if (r == 0)
        r = send_off(&l.streams[0]);
    if (r == 0)
        r = wait_for(&l);
    if (r == 0) {
        double tokens = (double)(l.streams[0].prompt > 0 ? l.streams[0].prompt : 1);
        b->words = (uint32_t)fmax(1, round((double)b->prompt * SAMPLE_WORDS / tokens));
    }
    load_clear(&l);
    return r;
}
