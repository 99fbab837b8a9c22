/* Cmd serve load: see cmd_serve_load.h. */
#include "cmd_serve_load.h"
#include "cmd_serve_policy.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/file.h"
#include "util/log.h"
#include "util/utf8.h"
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KV_TOKENS_AUTO 65536u
#define MAX_PADDED_ROWS 256u      /* rows of a window */
#define SPARE_BYTES (64ull << 20) /* everything that is neither weights nor pool */
/* The same on a device, whose pool takes its memory at once, used or not: more is worth having there. */
#define DEVICE_KV_TOKENS_AUTO (1u << 20)
#define DEVICE_SPARE_BYTES (512ull << 20)
#define CONTEXT_LEAST 16u /* as for model.context */
#define MAX_TEMPLATE_BYTES (4ul << 20)

static int find_model(const struct config *c, char **ret_path, char *err, size_t errlen)
{
    glob_t found;
    int r = -ENOENT;
    if (c->model.path) {
        *ret_path = strdup(c->model.path);
        return *ret_path ? 0 : -ENOMEM;
    }
    if (glob("models/*.gguf", 0, NULL, &found) == 0) {
        *ret_path = strdup(found.gl_pathv[0]);
        r = *ret_path ? 0 : -ENOMEM;
        globfree(&found);
    } else {
        snprintf(err, errlen,
                 "no model: there is no models/*.gguf here; name one with --set model.path=FILE.gguf");
    }
    return r;
}

static char *name_of(const struct config *c, const char *path)
{
    if (c->model.name)
        return strdup(c->model.name);
    const char *base = strrchr(path, '/');
    char *name = strdup(base ? base + 1 : path);
    if (name) /* a file may have any name; this one goes into every answer */
        utf8_mend(name);
    size_t len = name ? strlen(name) : 0;
    if (len > 5 && strcmp(name + len - 5, ".gguf") == 0)
        name[len - 5] = 0;
    return name;
}

static int read_template_file(const char *path, struct buf *text, char *err, size_t errlen)
{
    char why[900] = "";
    int r = file_read(path, MAX_TEMPLATE_BYTES, text, why, sizeof why);
    if (r == 0 && !text->len) {
        snprintf(why, sizeof why, "%s: empty", path);
        r = -EINVAL;
    }
    if (r < 0)
        snprintf(err, errlen, "model.chat_template: %s", why);
    return r;
}

static int parse_template(const struct config *c, struct gguf_str text, struct loaded *l, char *err,
                          size_t errlen)
{
    char why[400];
    int r = chat_template_parse(text.data, text.len, &l->chat, why, sizeof why);
    if (r < 0) {
        snprintf(err, errlen,
                 "chat template of %s: %s; name a file with another one with --set model.chat_template=FILE "
                 "(`berth model render --chatml` prints ChatML, which many models understand)",
                 c->model.chat_template ? c->model.chat_template : l->path, why);
        return r;
    }
    l->chat_source = strndup(text.data, text.len); /* which has no zero bytes, the parser saw to that */
    return l->chat_source ? 0 : -ENOMEM;
}

static int load_template(const struct config *c, const struct gguf *f, struct loaded *l, char *err,
                         size_t errlen)
{
    struct gguf_str text = { 0 };
    struct buf file = { 0 };
    int r;
    if (c->model.chat_template) {
        r = read_template_file(c->model.chat_template, &file, err, errlen);
        text = (struct gguf_str){ file.data, file.len };
    } else {
        r = gguf_get_str(f, "tokenizer.chat_template", &text, err, errlen);
        if (r == 0) {
            log_write(LOG_WARN, "template",
                      "source=chatml reason=\"the model brings none; model.chat_template names a file that "
                      "has one\"");
            text = (struct gguf_str){ chat_template_chatml, strlen(chat_template_chatml) };
        }
    }
    if (r >= 0)
        r = parse_template(c, text, l, err, errlen);
    buf_free(&file);
    return r;
}

static uint64_t mb(uint64_t bytes)
{
    return (bytes + (1 << 20) - 1) >> 20;
}

int choose_device(const struct config *c, const char **ret_device, uint64_t *ret_memory, char *err,
                  size_t errlen)
{
    const char *asked = c->engine.device;
    char why[256] = "";
    int r;
    /* Who names an instruction set means the CPU. */
    if (strcmp(asked, "auto") == 0 && strcmp(c->engine.isa, "auto") != 0)
        asked = "cpu";
    *ret_memory = 0;
    r = engine_device_find(asked, (uint32_t)c->engine.stages, ret_device, ret_memory, why, sizeof why);
    if (r < 0)
        snprintf(err, errlen, "engine.device: cuda cannot be had: %s", why);
    else
        snprintf(err, errlen, "%s", why);
    return r;
}

/* What auto settled for, one line. */
static void tell_cpu(const struct loaded *l, const char *why)
{
    char quoted[512];
    if (!l->sample)
        log_write(LOG_INFO, "device", "using=cpu reason=%s", log_quote(quoted, sizeof quoted, why));
}

static int find_device(const struct config *c, struct loaded *l, char *err, size_t errlen)
{
    char why[256] = "";
    int r = choose_device(c, &l->device, &l->device_memory, why, sizeof why);
    if (r < 0)
        snprintf(err, errlen, "%s", why);
    else if (*why)
        tell_cpu(l, why);
    return r;
}

/* What is neither weights nor pool. */
static uint64_t spare_of(const struct loaded *l)
{
    return strcmp(l->device, "cuda") == 0 ? DEVICE_SPARE_BYTES : SPARE_BYTES;
}

static int no_room(const struct loaded *l, uint64_t kv, uint64_t context, uint64_t token, uint64_t available,
                   uint64_t fit, char *err, size_t errlen)
{
    bool cuda = strcmp(l->device, "cuda") == 0;
    char hint[128] = "";
    if (fit >= CONTEXT_LEAST)
        snprintf(hint, sizeof hint,
                 "; lower it with --set model.context=N --set engine.kv_tokens=N (at most %" PRIu64 " fit)",
                 fit);
    snprintf(err, errlen,
             "a key-value pool of %" PRIu64 " tokens (context %" PRIu64 ") needs %" PRIu64
             " MB, the model %" PRIu64 " MB and what they work with %" PRIu64 " MB, but %" PRIu64
             " MB are available%s%s",
             kv, context, mb(kv * token), mb(l->file_bytes), mb(spare_of(l)), mb(available),
             cuda ? " on the device" : "", hint);
    return -ENOMEM;
}

/* How long the context and how large the pool: what the config says, else what the model and the memory
 * allow. */
static int choose_sizes(const struct config *c, const struct model *m, struct loaded *l, char *err,
                        size_t errlen)
{
    uint64_t token = engine_kv_token_bytes(m, c->engine.kv_type);
    bool cuda = strcmp(l->device, "cuda") == 0;
    uint64_t available = cuda ? l->device_memory : machine_memory_available();
    uint64_t beside = l->file_bytes + spare_of(l);
    uint64_t most = cuda ? DEVICE_KV_TOKENS_AUTO : KV_TOKENS_AUTO;
    uint64_t for_kv = !available ? UINT64_MAX : available > beside ? available - beside : 0;
    uint64_t may = !available || for_kv < available / 2 ? for_kv : available / 2;
    uint64_t may_tokens = token ? may / token : 0;
    uint64_t context, kv;

    if (!token) {
        snprintf(err, errlen,
                 "engine.kv_type %s: the model's head dimension is %u, a multiple of 32 is wanted; f16 and "
                 "f32 take "
                 "any",
                 c->engine.kv_type, m->head_dim);
        return -ENOTSUP;
    }
    if (c->model.context != CONFIG_AUTO) {
        context = (uint64_t)c->model.context;
    } else {
        uint64_t bound = c->engine.kv_tokens != CONFIG_AUTO ? (uint64_t)c->engine.kv_tokens : may_tokens;
        context = m->context_train < bound ? m->context_train : bound;
        context = context > CONTEXT_LEAST ? context : CONTEXT_LEAST;
    }
    if (c->engine.kv_tokens != CONFIG_AUTO) {
        kv = (uint64_t)c->engine.kv_tokens;
    } else {
        kv = may_tokens < most ? may_tokens : most;
        kv = kv > context ? kv : context;
    }
    if (kv > for_kv / token)
        return no_room(l, kv, context, token, available, for_kv / token, err, errlen);
    if (context > m->context_train)
        log_write(LOG_WARN, "context",
                  "tokens=%" PRIu64 " trained=%" PRIu32 " reason=\"longer than the model was trained for\"",
                  context, m->context_train);
    if (m->window_unused && m->window_unused < context)
        log_write(LOG_WARN, "window",
                  "tokens=%" PRIu32 " context=%" PRIu64
                  " reason=\"the file's sliding window is not applied, all layers see the whole context\"",
                  m->window_unused, context);
    l->context = (uint32_t)context;
    l->kv_tokens = (uint32_t)kv;
    return 0;
}

struct progress {
    uint64_t start_ns, next_ns;
};

/* A line a second: a small model is ready before the first. */
static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    uint64_t now = clock_now_ns();
    if (now < p->next_ns || !total)
        return;
    p->next_ns = now + NS_PER_S;
    log_write(LOG_INFO, "loading", "percent=%.0f seconds=%.1f", 100.0 * (double)done / (double)total,
              (double)(now - p->start_ns) / 1e9);
}

static int open_engine(const struct config *c, const struct gguf *f, const struct model *m, struct loaded *l,
                       char *err, size_t errlen)
{
    struct progress p = { .start_ns = clock_now_ns() };
    uint32_t group = l->slots / l->groups, rows = l->padded && group > l->rows ? group : l->rows;
    p.next_ns = p.start_ns + NS_PER_S;
    struct engine_options o = {
        .device = l->device,
        .isa = c->engine.isa,
        .threads = l->threads,
        .stages = (uint32_t)c->engine.stages,
        .any_order = !c->engine.deterministic,
        .activations = c->engine.activations,
        .kv_type = c->engine.kv_type,
        .kv_tokens = l->kv_tokens,
        .max_rows = rows,
        .max_tokens = LOAD_CHUNK_TOKENS + rows,
    };
    if (l->sample) {
        o.sample = true;
        o.threads = o.kv_tokens = o.max_rows = o.max_tokens = 1;
    }
    int r = engine_open(f, m, &o, on_progress, &p, &l->engine, err, errlen);
    if (r == 0)
        engine_info_get(l->engine, &l->info);
    return r;
}

/* For a sample memory that is not free now is no fault: 1, with what is wanted and free in err. */
static int size_and_open_on(const struct config *c, const struct gguf *f, const struct model *m,
                            struct loaded *l, char *err, size_t errlen)
{
    char why[512] = "";
    int r = choose_sizes(c, m, l, err, errlen);
    bool later = r == -ENOMEM && l->sample;
    if (r == 0 || later)
        r = open_engine(c, f, m, l, why, sizeof why);
    if (*why)
        snprintf(err, errlen, "%s", why);
    return r == 0 && later ? 1 : r;
}

/* auto: a device that is too small, or is lost meanwhile, leaves the CPU. */
static int size_and_open(const struct config *c, const struct gguf *f, const struct model *m,
                         struct loaded *l, char *err, size_t errlen)
{
    int r = size_and_open_on(c, f, m, l, err, errlen);
    if (r == 0 || strcmp(l->device, "cpu") == 0 || strcmp(c->engine.device, "auto") != 0)
        return r;
    if (l->engine) /* a sample is opened whatever fits */
        engine_close(l->engine);
    l->engine = NULL;
    tell_cpu(l, err);
    *err = '\0';
    l->device = "cpu";
    l->device_memory = 0;
    return size_and_open_on(c, f, m, l, err, errlen);
}

static int find_turn_token(const struct config *c, struct loaded *l, char *err, size_t errlen)
{
    const char *text = c->model.turn_token;
    l->turn_token = text ? tokenizer_find(l->tokenizer, text, strlen(text))
                         : tokenizer_turn(l->tokenizer, l->chat_source, strlen(l->chat_source));
    if (!text || l->turn_token >= 0)
        return 0;
    snprintf(err, errlen, "model.turn_token: %s is no token of this model", text);
    return -EINVAL;
}

static int check_stages(const struct config *c, const struct model *m, char *err, size_t errlen)
{
    if (c->engine.stages <= m->n_layers)
        return 0;
    snprintf(err, errlen, "engine.stages: %" PRId64 " stages for %u layers; the model allows 1 to %u",
             c->engine.stages, m->n_layers,
             m->n_layers < ENGINE_MAX_STAGES ? m->n_layers : ENGINE_MAX_STAGES);
    return -EINVAL;
}

/* The readers of the file name it, or not; here it is named in any case. */
static int fail_file(const char *path, const char *why, int r, char *err, size_t errlen)
{
    bool named = strstr(why, path) != NULL;
    snprintf(err, errlen, "%s%s%s", named ? "" : path, named ? "" : ": ", *why ? why : strerror(-r));
    return r;
}

/* All of the file but its weights. On success the caller frees *ret_m and closes *ret_f. */
static int read_head(const struct config *c, struct loaded *l, struct gguf **ret_f, struct model **ret_m,
                     char *err, size_t errlen)
{
    char why[600] = "";
    struct gguf *f = NULL;
    struct model *m = NULL;
    int r = gguf_open(l->path, &f, why, sizeof why);
    if (r == 0)
        r = model_read(f, &m, why, sizeof why);
    if (r == 0)
        r = tokenizer_open(f, &l->tokenizer, why, sizeof why);
    if (r == 0 && tokenizer_n_vocab(l->tokenizer) != m->n_vocab) {
        snprintf(why, sizeof why, "the tokenizer has %u tokens, the network %u",
                 tokenizer_n_vocab(l->tokenizer), m->n_vocab);
        r = -EINVAL;
    }
    if (r < 0)
        fail_file(l->path, why, r, err, errlen);
    if (r == 0)
        r = check_stages(c, m, err, errlen);
    if (r == 0)
        r = load_template(c, f, l, err, errlen);
    if (r == 0)
        r = find_turn_token(c, l, err, errlen);
    if (r < 0) {
        model_free(m);
        gguf_close(f);
        return r;
    }
    *ret_f = f;
    *ret_m = m;
    return 0;
}

uint32_t engine_threads(const struct config *c)
{
    uint32_t threads = c->engine.threads == CONFIG_AUTO ? machine_cores() : (uint32_t)c->engine.threads;
    return threads < ENGINE_MAX_THREADS ? threads : ENGINE_MAX_THREADS;
}

/* auto: the largest divisor of slots that is not above the number of stages. */
static uint32_t choose_groups(const struct config *c)
{
    int64_t n = c->engine.stages < c->engine.slots ? c->engine.stages : c->engine.slots;
    if (c->engine.groups != CONFIG_AUTO)
        return (uint32_t)c->engine.groups;
    while (c->engine.slots % n)
        n--;
    return (uint32_t)n;
}

int check_windows(const struct config *c, uint32_t *ret_groups, bool *ret_padded, char *err, size_t errlen)
{
    uint32_t groups = choose_groups(c);
    bool padded;
    int r = serve_padded(c, &padded, err, errlen);
    if (r < 0)
        return r;
    if (padded && c->engine.slots / groups > MAX_PADDED_ROWS) {
        snprintf(
            err, errlen,
            "engine.windows: padded windows have a row for each slot of a group, at most %u; engine.slots "
            "is %" PRId64 ", engine.groups %u",
            MAX_PADDED_ROWS, c->engine.slots, groups);
        return -EINVAL;
    }
    *ret_groups = groups;
    *ret_padded = padded;
    return 0;
}

static void warn_of_groups(const struct config *c, const struct loaded *l)
{
    if (l->groups < c->engine.stages)
        log_write(LOG_WARN, "groups",
                  "groups=%u stages=%" PRId64
                  " slots=%u reason=\"fewer groups than stages: a group's window is in "
                  "one stage at a time, and the others wait\"",
                  l->groups, c->engine.stages, l->slots);
}

static int load_parts(const struct config *c, struct loaded *l, char *err, size_t errlen)
{
    struct gguf *f = NULL;
    struct model *m = NULL;
    int r = read_head(c, l, &f, &m, err, errlen);
    if (r < 0)
        return r;
    l->slots = (uint32_t)c->engine.slots;
    l->rows = (uint32_t)(c->engine.rows < c->engine.slots ? c->engine.rows : c->engine.slots);
    l->threads = engine_threads(c);
    l->context_train = m->context_train;
    l->n_embd = m->n_embd;
    l->n_params = m->n_params;
    l->file_bytes = gguf_file_size(f);
    if (c->cache.save_dir && !l->sample) {
        r = fingerprint_model(f, l->model_print);
        if (r == 0)
            r = fingerprint_tokenizer(f, l->tokenizer_print);
    }
    snprintf(l->arch, sizeof l->arch, "%s", m->arch);
    if (r == 0)
        r = check_windows(c, &l->groups, &l->padded, err, errlen);
    if (r == 0)
        r = find_device(c, l, err, errlen);
    if (r == 0)
        r = size_and_open(c, f, m, l, err, errlen);
    if (r >= 0)
        warn_of_groups(c, l);
    model_free(m);
    gguf_close(f);
    return r;
}

static int load(const struct config *c, struct loaded *l, char *err, size_t errlen)
{
    l->name = name_of(c, l->path);
    return l->name ? load_parts(c, l, err, errlen) : -ENOMEM;
}

/* What is left to look at where there is no model. */
static int check_without(const struct config *c, struct loaded *l, char *err, size_t errlen)
{
    char why[1024] = "";
    int r = c->model.chat_template ? load_template(c, NULL, l, why, sizeof why) : 0;
    if (r == 0)
        r = find_device(c, l, why, sizeof why);
    if (r < 0)
        snprintf(err, errlen, "%s", why);
    return r < 0 ? r : 1;
}

static int finish(struct loaded *l, int r, struct loaded *ret, char *err, size_t errlen)
{
    if (r < 0) {
        if (!*err)
            snprintf(err, errlen, "%s", strerror(-r));
        loaded_clear(l);
        return r;
    }
    *ret = *l;
    return r;
}

int load_model(const struct config *c, struct loaded *ret, char *err, size_t errlen)
{
    struct loaded l = { 0 };
    int r = find_model(c, &l.path, err, errlen);
    if (r == 0)
        r = load(c, &l, err, errlen);
    return finish(&l, r, ret, err, errlen);
}

int check_model(const struct config *c, struct loaded *ret, char *err, size_t errlen)
{
    struct loaded l = { .sample = true };
    int r = find_model(c, &l.path, err, errlen);
    if (r == 0)
        r = load(c, &l, err, errlen);
    else if (r == -ENOENT)
        r = check_without(c, &l, err, errlen);
    return finish(&l, r, ret, err, errlen);
}

void loaded_clear(struct loaded *l)
{
    if (l->engine)
        engine_close(l->engine);
    chat_template_free(l->chat);
    tokenizer_free(l->tokenizer);
    free(l->chat_source);
    free(l->name);
    free(l->path);
    *l = (struct loaded){ 0 };
}
