/* Metrics as JSON: section by section, in the order of the table. */
#include "api/jsonout.h"
#include "api/metrics.h"
#include <string.h>

static void comma(struct buf *b)
{
    char last = b->len ? b->data[b->len - 1] : '{';
    if (last != '{' && last != '[')
        buf_putc(b, ',');
}

static void member(struct buf *b, const char *key)
{
    comma(b);
    jsonout_str(b, key, strlen(key));
    buf_putc(b, ':');
}

static void put_text(struct buf *b, const char *text)
{
    if (text)
        jsonout_bytes_str(b, text, strlen(text));
    else
        buf_puts(b, "null");
}

static void put_edge(struct buf *b, bool last, double le)
{
    buf_puts(b, b->data[b->len - 1] == '[' ? "[" : ",[");
    if (last)
        buf_puts(b, "null");
    else
        jsonout_real(b, le, 6);
    buf_putc(b, ',');
}

/* {"count", "sum_s", "buckets": [[upper edge in seconds, how many in it], ...]}; the last edge is null. */
static void put_bins(struct buf *b, const uint64_t *bins, uint32_t n, uint64_t total_ns,
                     double (*edge)(uint32_t i))
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += bins[i];
    buf_puts(b, "{\"count\":");
    jsonout_int(b, (int64_t)count);
    buf_puts(b, ",\"sum_s\":");
    jsonout_short(b, (double)total_ns / 1e9);
    buf_puts(b, ",\"buckets\":[");
    for (uint32_t i = 0; i < n; i++) {
        put_edge(b, i + 1 == n, i + 1 < n ? edge(i) : 0);
        jsonout_int(b, (int64_t)bins[i]);
        buf_putc(b, ']');
    }
    buf_puts(b, "]}");
}

static void put_value(const struct metric *m, const struct metrics_view *v, uint32_t i, struct buf *b)
{
    const void *at = metrics_at(m, v, i);
    switch (m->kind) {
    case METRIC_U64:
        jsonout_int(b, (int64_t) * (const uint64_t *)at);
        break;
    case METRIC_U32:
        jsonout_int(b, *(const uint32_t *)at);
        break;
    case METRIC_REAL:
        jsonout_short(b, *(const double *)at);
        break;
    case METRIC_BOOL:
        buf_puts(b, *(const bool *)at ? "true" : "false");
        break;
    case METRIC_TEXT:
        put_text(b, at);
        break;
    case METRIC_WORD:
        put_text(b, *(const char *const *)at);
        break;
    case METRIC_TIMES:
        put_bins(b, ((const struct sched_times *)at)->bins, SCHED_TIME_EDGES + 1,
                 ((const struct sched_times *)at)->total_ns, metrics_time_edge);
        break;
    case METRIC_CALLS:
        put_bins(b, v->st->policy.call[i].times, POLICY_TIME_BINS, v->st->policy.call[i].time_ns,
                 metrics_call_edge);
        break;
    case METRIC_POLICY:
    case METRIC_TRACE:
    case METRIC_SHADOW:
    case METRIC_WRITE:
    case METRIC_INFO:
        break;
    }
}

static void put_row(const struct metric *m, const struct metrics_view *v, struct buf *b)
{
    member(b, m->key);
    if (m->kind == METRIC_WRITE) {
        m->write(v, b);
    } else if (!m->by) {
        put_value(m, v, 0, b);
    } else {
        buf_putc(b, '{');
        for (uint32_t i = m->by->first; i < m->by->n; i++) {
            member(b, m->by->name(i));
            put_value(m, v, i, b);
        }
        buf_putc(b, '}');
    }
}

/* The rows of a section whose labels come first. */
static void put_inside(const struct metric *rows, size_t n, const struct metrics_view *v, struct buf *b)
{
    const struct metric_by *by = rows->by;
    for (uint32_t i = by->first; i < by->n; i++) {
        member(b, by->name(i));
        buf_putc(b, '{');
        for (size_t k = 0; k < n; k++) {
            member(b, rows[k].key);
            put_value(&rows[k], v, i, b);
        }
        buf_putc(b, '}');
    }
}

/* Rows i..end-1 are one section. */
static void put_section(size_t i, size_t end, const struct metrics_view *v, struct buf *b)
{
    const struct metric *first = &metrics_table[i];
    member(b, first->section);
    if (end == i + 1 && !first->key) { /* all of it is one list */
        first->write(v, b);
        return;
    }
    buf_putc(b, '{');
    if (first->by && first->by->inside) {
        put_inside(first, end - i, v, b);
    } else {
        for (; i < end; i++) {
            const struct metric *m = &metrics_table[i];
            if (m->section && m->key)
                put_row(m, v, b);
            else if (m->kind == METRIC_WRITE) /* several members at once */
                m->write(v, b);
        }
    }
    buf_putc(b, '}');
}

void metrics_json(const struct metrics_view *v, struct buf *b)
{
    buf_putc(b, '{');
    for (size_t i = 0, end; i < metrics_n; i = end) {
        for (end = i + 1; end < metrics_n; end++) {
            const char *section = metrics_table[end].section;
            if (section && strcmp(section, metrics_table[i].section) != 0)
                break;
        }
        put_section(i, end, v, b);
    }
    buf_putc(b, '}');
}
