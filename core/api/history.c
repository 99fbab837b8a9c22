/* History: see history.h. */
#include "api/jsonout.h"
#include "api/metrics.h"
#include "util/clock.h"
#include <stdlib.h>

#define RATE_SAMPLES 10u

static const struct history_sample *sample_at(const struct api *a, uint64_t number)
{
    return &a->history.at[number % (HISTORY_SAMPLES + 1)];
}

void history_tick(struct api *a)
{
    struct sched_status *st = sched_status_get(a->o.sched);
    if (!st)
        return;
    a->history.at[a->history.n++ % (HISTORY_SAMPLES + 1)] = (struct history_sample){
        .now_ns = clock_now_ns(),
        .wall_ns = clock_wall_ns(),
        .running = st->running,
        .waiting = st->waiting,
        .read = st->tally.read_tokens,
        .cached = st->cached_tokens,
        .generated = st->generated_tokens,
        .kv_usage = st->kv_blocks ? (double)st->kv_blocks_used / st->kv_blocks : 0,
    };
    free(st);
}

static double rate(const struct history_sample *from, const struct history_sample *to, uint64_t before,
                   uint64_t after)
{
    return to->now_ns > from->now_ns ? (double)(after - before) * 1e9 / (double)(to->now_ns - from->now_ns)
                                     : 0;
}

void history_rates(const struct api *a, struct metrics_extra *e)
{
    if (a->history.n < 2)
        return;
    uint64_t n = a->history.n - 1, back = n < RATE_SAMPLES ? n : RATE_SAMPLES;
    const struct history_sample *to = sample_at(a, n), *from = sample_at(a, n - back);
    e->read_per_s = rate(from, to, from->read, to->read);
    e->cached_per_s = rate(from, to, from->cached, to->cached);
    e->generated_per_s = rate(from, to, from->generated, to->generated);
}

static void put(struct buf *b, const char *key, double value)
{
    buf_puts(b, key);
    jsonout_short(b, value);
}

void history_write(const struct metrics_view *v, struct buf *b)
{
    const struct api *a = v->api;
    uint64_t n = a->history.n, first = n > HISTORY_SAMPLES ? n - HISTORY_SAMPLES : 1;
    buf_putc(b, '[');
    for (uint64_t i = first; i < n; i++) {
        const struct history_sample *to = sample_at(a, i), *from = sample_at(a, i - 1);
        put(b, i > first ? ",{\"time\":" : "{\"time\":", (double)(to->wall_ns / NS_PER_MS) / 1e3);
        put(b, ",\"running\":", to->running);
        put(b, ",\"waiting\":", to->waiting);
        put(b, ",\"prompt_tokens_per_s\":", rate(from, to, from->read, to->read));
        put(b, ",\"cached_tokens_per_s\":", rate(from, to, from->cached, to->cached));
        put(b, ",\"generated_tokens_per_s\":", rate(from, to, from->generated, to->generated));
        put(b, ",\"kv_usage\":", to->kv_usage);
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}
