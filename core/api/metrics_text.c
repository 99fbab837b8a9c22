/* Metrics as Prometheus text, version 0.0.4: our own names first, then the same figures under the names that
 * vLLM and llama.cpp gave them. Rows of one name follow each other in the table and are one family. */
#include "api/metrics.h"
#include <inttypes.h>
#include <string.h>

struct family { /* whose names are written */
    const char *prefix;
    size_t offset; /* of the name in a row */
    bool model;    /* with the model's name as a label, as vLLM has it */
};

struct writer {
    struct buf *b;
    const struct metrics_view *v;
    const struct family *family;
    const char *name, *last; /* without the prefix */
};

void metrics_label(struct buf *b, const char *text)
{
    buf_putc(b, '"');
    for (; text && *text; text++) {
        if (*text == '\\' || *text == '"')
            buf_putc(b, '\\');
        if (*text == '\n')
            buf_puts(b, "\\n");
        else
            buf_putc(b, *text);
    }
    buf_putc(b, '"');
}

/* Name and labels; `le` of a histogram's bucket may be NULL, so may all others. */
static void begin_line(const struct writer *w, const char *suffix, const char *fixed, const char *label,
                       const char *value, const char *le)
{
    struct buf *b = w->b;
    size_t before;
    buf_printf(b, "%s%s%s{", w->family->prefix, w->name, suffix);
    before = b->len;
    if (w->family->model) {
        buf_puts(b, "model_name=");
        metrics_label(b, w->v->extra.model);
    }
    if (fixed)
        buf_printf(b, "%s%s", b->len > before ? "," : "", fixed);
    if (label) {
        buf_printf(b, "%s%s=", b->len > before ? "," : "", label);
        metrics_label(b, value);
    }
    if (le)
        buf_printf(b, "%sle=\"%s\"", b->len > before ? "," : "", le);
    if (b->len == before && b->len)
        b->len--; /* no label: no braces */
    else
        buf_putc(b, '}');
    buf_putc(b, ' ');
}

static void end_count(const struct writer *w, uint64_t n)
{
    buf_printf(w->b, "%" PRIu64 "\n", n);
}

static void end_real(const struct writer *w, double x)
{
    buf_printf(w->b, "%.12g\n", x);
}

static void put_histogram(const struct writer *w, const char *label, const char *value, const uint64_t *bins,
                          uint32_t n, uint64_t total_ns, double (*edge)(uint32_t i))
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        char le[32] = "+Inf";
        if (i + 1 < n)
            snprintf(le, sizeof le, "%.9g", edge(i));
        count += bins[i];
        begin_line(w, "_bucket", NULL, label, value, le);
        end_count(w, count);
    }
    begin_line(w, "_sum", NULL, label, value, NULL);
    end_real(w, (double)total_ns / 1e9);
    begin_line(w, "_count", NULL, label, value, NULL);
    end_count(w, count);
}

static void put_shadows(const struct writer *w, const struct metric *m)
{
    for (size_t i = 0; i < metrics_shadows(w->v); i++) {
        const json_t *shadow = metrics_shadow(w->v, i);
        const char *name = json_string_value(json_object_get(shadow, "name"));
        char fixed[64];
        /* The place in the list tells two loads of the same policy apart. */
        snprintf(fixed, sizeof fixed, "shadow=\"%zu\",policy=\"%.31s\"", i, name ? name : "");
        for (uint32_t k = 0; k < (m->by ? m->by->n : 1); k++) {
            const char *call = m->by ? m->by->name(k) : NULL;
            begin_line(w, "", fixed, m->by ? m->by->label : NULL, call, NULL);
            end_count(w, metrics_policy_count(shadow, m->fixed, call));
        }
    }
}

static void put_value(const struct writer *w, const struct metric *m, uint32_t i)
{
    const char *label = m->by ? m->by->label : NULL, *value = m->by ? m->by->name(i) : NULL;
    const void *at = metrics_at(m, w->v, i);
    if (m->kind == METRIC_TIMES) {
        const struct sched_times *t = at;
        put_histogram(w, label, value, t->bins, SCHED_TIME_EDGES + 1, t->total_ns, metrics_time_edge);
        return;
    }
    if (m->kind == METRIC_CALLS) {
        const struct policy_call_counts *call = &w->v->st->policy.call[i];
        put_histogram(w, label, value, call->times, POLICY_TIME_BINS, call->time_ns, metrics_call_edge);
        return;
    }
    begin_line(w, "", m->fixed, label, value, NULL);
    if (m->kind == METRIC_REAL)
        end_real(w, *(const double *)at);
    else
        end_count(w, m->kind == METRIC_U32    ? *(const uint32_t *)at
                     : m->kind == METRIC_BOOL ? *(const bool *)at
                                              : *(const uint64_t *)at);
}

static void put_info(const struct writer *w, const struct metric *m)
{
    buf_printf(w->b, "%s%s{", w->family->prefix, w->name);
    if (w->family->model) {
        buf_puts(w->b, "model_name=");
        metrics_label(w->b, w->v->extra.model);
        buf_putc(w->b, ',');
    }
    m->write(w->v, w->b);
    buf_puts(w->b, "} 1\n");
}

static void put_row(struct writer *w, const struct metric *m)
{
    if (!w->last || strcmp(w->last, w->name) != 0)
        buf_printf(w->b, "# HELP %s%s %s\n# TYPE %s%s %s\n", w->family->prefix, w->name, m->help,
                   w->family->prefix, w->name, m->type);
    w->last = w->name;
    if (m->kind == METRIC_INFO) {
        put_info(w, m);
    } else if (m->kind == METRIC_SHADOW) {
        put_shadows(w, m);
    } else if (m->kind == METRIC_POLICY) {
        begin_line(w, "", NULL, NULL, NULL, NULL);
        end_count(w, metrics_policy_count(w->v->policy, m->fixed, NULL));
    } else if (m->kind == METRIC_TRACE) {
        begin_line(w, "", NULL, NULL, NULL, NULL);
        end_count(w, metrics_policy_count(w->v->policy, "trace", m->fixed));
    } else {
        for (uint32_t i = m->by ? m->by->first : 0; i < (m->by ? m->by->n : 1); i++)
            put_value(w, m, i);
    }
}

void metrics_text(const struct metrics_view *v, struct buf *b)
{
    static const struct family families[] = {
        { "berth_", offsetof(struct metric, name), false },
        { "vllm:", offsetof(struct metric, vllm), true },
        { "llamacpp:", offsetof(struct metric, llamacpp), false },
    };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct writer w = { .b = b, .v = v, .family = &families[f] };
        for (size_t i = 0; i < metrics_n; i++) {
            const struct metric *m = &metrics_table[i];
            w.name = *(const char *const *)((const char *)m + families[f].offset);
            if (w.name)
                put_row(&w, m);
        }
    }
}
