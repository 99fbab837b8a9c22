/* Model info: what a GGUF file says about itself, read key by key so that a file this build cannot run is
 * described all the same, and whether and with how much memory it can be run. One thread. Must not know: how
 * anything is computed. Tests: tests/e2e/test_model_cli.py */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_model.h"
#include "engine/engine.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "util/jsonx.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TYPES 48u
#define MAX_ENDS 32u
#define BESIDE_BYTES ((uint64_t)64 << 20) /* all that is neither weights nor keys and values */

struct type_use {
    uint32_t type;
    uint64_t tensors, bytes;
};

/* The report is one JSON object; the text form prints the same object. */
struct report {
    const char *path;
    struct gguf *file;
    json_t *out;
    char arch[64];
};

/* Text of a file as a JSON string: what is not UTF-8 or not printable becomes '?'. */
static json_t *safe_string(struct gguf_str s)
{
    json_t *ret = json_stringn(s.data, s.len);
    char *copy;

    if (ret)
        return ret;
    copy = malloc(s.len + 1);
    if (!copy)
        return NULL;
    for (size_t i = 0; i < s.len; i++)
        copy[i] = (unsigned char)s.data[i] < 0x20 || (unsigned char)s.data[i] > 0x7e ? '?' : s.data[i];
    ret = json_stringn(copy, s.len);
    free(copy);
    return ret;
}

static void put_int(json_t *object, const char *name, uint64_t v)
{
    json_object_set_new(object, name, json_integer((json_int_t)v));
}

static void put_text_key(struct report *r, const char *key, const char *name)
{
    char err[256];
    struct gguf_str s;
    if (gguf_get_str(r->file, key, &s, err, sizeof err) == 1)
        json_object_set_new(r->out, name, safe_string(s));
}

/* A float with as few digits as give it again: 1e-05, not 9.9999997473787516e-06. */
static json_t *short_real(float v)
{
    char text[32];
    gguf_real_text((double)v, true, text, sizeof text);
    return json_real(strtod(text, NULL));
}

static void put_reals(struct report *r)
{
    static const char *const keys[][2] = {
        { "rope.freq_base", "rope_base" },
        { "rope.scaling.factor", "rope_scaling" },
        { "attention.layer_norm_rms_epsilon", "norm_epsilon" },
    };
    char key[160], err[256];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        float v;
        snprintf(key, sizeof key, "%s.%s", r->arch, keys[i][0]);
        if (gguf_get_f32(r->file, key, &v, err, sizeof err) == 1 && isfinite(v))
            json_object_set_new(r->out, keys[i][1], short_real(v));
    }
}

static void put_sizes(struct report *r)
{
    static const char *const keys[][2] = {
        { "block_count", "layers" },
        { "embedding_length", "embedding" },
        { "feed_forward_length", "feed_forward" },
        { "attention.head_count", "heads" },
        { "attention.head_count_kv", "kv_heads" },
        { "attention.key_length", "head_dim" },
        { "expert_count", "experts" },
        { "attention.sliding_window", "window" },
        { "context_length", "context" },
    };
    char key[160], err[256];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint32_t v;
        snprintf(key, sizeof key, "%s.%s", r->arch, keys[i][0]);
        if (gguf_get_u32(r->file, key, &v, err, sizeof err) == 1)
            put_int(r->out, keys[i][1], v);
    }
    put_reals(r);
}

static void count_type(struct type_use *uses, size_t *n, const struct gguf_tensor *t)
{
    size_t i = 0;
    while (i < *n && uses[i].type != t->type)
        i++;
    if (i == *n && *n < MAX_TYPES)
        uses[(*n)++] = (struct type_use){ .type = t->type };
    if (i < MAX_TYPES) {
        uses[i].tensors++;
        uses[i].bytes += t->size;
    }
}

static uint64_t put_tensors(struct report *r)
{
    struct type_use uses[MAX_TYPES];
    size_t n = 0;
    uint64_t bytes = 0;
    double weights = 0;
    json_t *list = json_array();

    for (uint64_t i = 0; i < gguf_n_tensors(r->file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->file, i);
        count_type(uses, &n, t);
        bytes += t->size;
        weights += (double)t->dims[0] * (double)t->dims[1] * (double)t->dims[2] * (double)t->dims[3];
    }
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I}", "type", gguf_type_name(uses[i].type), "tensors",
                                        (json_int_t)uses[i].tensors, "bytes", (json_int_t)uses[i].bytes));
    json_object_set_new(r->out, "parameters",
                        weights < 9e18 ? json_integer((json_int_t)weights) : json_null());
    json_object_set_new(r->out, "tensor_types", list);
    put_int(r->out, "tensor_bytes", bytes);
    return bytes;
}

static json_t *token_json(const struct tokenizer *t, int32_t id)
{
    size_t len;
    const char *piece = tokenizer_piece(t, id, true, &len);
    return json_pack("{s:i, s:o}", "id", (int)id, "text", safe_string((struct gguf_str){ piece, len }));
}

static void put_piece(json_t *object, const char *name, const struct tokenizer *t, int32_t id)
{
    if (id >= 0)
        json_object_set_new(object, name, token_json(t, id));
}

/* The tokens that end an answer. */
static void put_ends(json_t *object, const struct tokenizer *t)
{
    json_t *list = json_array();
    for (uint32_t id = 0; id < tokenizer_n_vocab(t) && json_array_size(list) < MAX_ENDS; id++)
        if (tokenizer_is_eog(t, (int32_t)id))
            json_array_append_new(list, token_json(t, (int32_t)id));
    json_object_set_new(object, "ends", list);
}

/* *ret_reason: why it cannot be used, empty when it can. */
static void put_tokenizer(struct report *r, char *ret_reason, size_t len)
{
    struct tokenizer *t;
    struct gguf_str chat = { 0 };
    char unused[256];
    json_t *o = json_object();

    json_object_set_new(r->out, "tokenizer", o);
    if (tokenizer_open(r->file, &t, ret_reason, len) < 0) {
        json_object_set_new(o, "kind", json_null());
        return;
    }
    json_object_set_new(o, "kind", json_string(tokenizer_kind(t)));
    put_int(o, "tokens", tokenizer_n_vocab(t));
    put_piece(o, "bos", t, tokenizer_bos(t));
    put_piece(o, "eos", t, tokenizer_eos(t));
    (void)gguf_get_str(r->file, "tokenizer.chat_template", &chat, unused, sizeof unused);
    put_piece(o, "turn", t, tokenizer_turn(t, chat.data, chat.len));
    put_ends(o, t);
    tokenizer_free(t);
}

static void put_template(struct report *r)
{
    char err[512] = "";
    struct gguf_str s;
    struct chat_template *t;
    int found = gguf_get_str(r->file, "tokenizer.chat_template", &s, err, sizeof err);

    json_object_set_new(r->out, "chat_template", json_boolean(found == 1));
    if (found != 1)
        return;
    put_int(r->out, "chat_template_bytes", s.len);
    if (chat_template_parse(s.data, s.len, &t, err, sizeof err) == 0)
        chat_template_free(t);
    else
        json_object_set_new(r->out, "chat_template_error",
                            safe_string((struct gguf_str){ err, strlen(err) }));
}

/* What keys and values take, and all together. */
static void put_memory(struct report *r, const struct model *m, uint64_t tensor_bytes)
{
    size_t f16 = engine_kv_token_bytes(m, "f16"), q8 = engine_kv_token_bytes(m, "q8_0");
    uint64_t all;

    put_int(r->out, "kv_bytes_per_token_f16", f16);
    put_int(r->out, "kv_bytes_per_token_f32", engine_kv_token_bytes(m, "f32"));
    if (q8)
        put_int(r->out, "kv_bytes_per_token_q8_0", q8);
    if (!__builtin_mul_overflow((uint64_t)m->context_train, (uint64_t)f16, &all) &&
        !__builtin_add_overflow(all, tensor_bytes + BESIDE_BYTES, &all) && all <= INT64_MAX)
        put_int(r->out, "memory_bytes", all);
}

static uint32_t size_of(const struct report *r, const char *name, json_int_t otherwise)
{
    const json_t *v = json_object_get(r->out, name);
    json_int_t n = v ? json_integer_value(v) : otherwise;
    return n > 0 && n <= 65536 ? (uint32_t)n : 0;
}

/* The same for a file that is not run here, from what it says of its sizes, as far as it does. */
static void put_guessed_memory(struct report *r, uint64_t tensor_bytes)
{
    uint32_t heads = size_of(r, "heads", 0);
    struct model m = { .n_layers = size_of(r, "layers", 0), .n_head_kv = size_of(r, "kv_heads", heads) };

    m.head_dim = size_of(r, "head_dim", heads ? size_of(r, "embedding", 0) / heads : 0);
    m.context_train = (uint32_t)json_integer_value(json_object_get(r->out, "context"));
    if (m.n_layers && m.n_head_kv && m.head_dim && m.context_train)
        put_memory(r, &m, tensor_bytes);
}

static void put_warning(struct report *r, const struct model *m)
{
    char text[160];
    if (!m->window_unused || m->window_unused >= m->context_train)
        return;
    snprintf(text, sizeof text,
             "the sliding window of %" PRIu32 " is not applied, all layers see the whole context",
             m->window_unused);
    json_object_set_new(r->out, "warning", json_string(text));
}

/* Whether it runs, and what that takes. */
static void put_verdict(struct report *r, uint64_t tensor_bytes, const char *tokenizer_reason)
{
    char err[1024] = "";
    struct model *m = NULL;

    if (model_read(r->file, &m, err, sizeof err) == 0) {
        put_int(r->out, "head_dim", m->head_dim);
        put_int(r->out, "kv_heads", m->n_head_kv);
        put_int(r->out, "vocabulary", m->n_vocab);
        json_object_set_new(r->out, "output_tied", json_boolean(m->output == m->token_embd));
        /* With engine.activations "auto". */
        json_object_set_new(r->out, "activations", json_string(m->int16 ? "int16" : "int8"));
        put_memory(r, m, tensor_bytes);
        put_warning(r, m);
        model_free(m);
        snprintf(err, sizeof err, "%s", tokenizer_reason);
    } else {
        put_guessed_memory(r, tensor_bytes);
    }
    json_object_set_new(r->out, "runs", json_boolean(err[0] == 0));
    if (err[0])
        json_object_set_new(r->out, "reason", safe_string((struct gguf_str){ err, strlen(err) }));
}

static void gather(struct report *r)
{
    char err[256], reason[1024] = "";
    struct gguf_str arch;
    uint64_t tensor_bytes;

    json_object_set_new(r->out, "file", safe_string((struct gguf_str){ r->path, strlen(r->path) }));
    put_int(r->out, "file_bytes", gguf_file_size(r->file));
    put_int(r->out, "gguf_version", gguf_version(r->file));
    put_text_key(r, "general.architecture", "architecture");
    put_text_key(r, "general.name", "name");
    put_text_key(r, "general.license", "license");
    if (gguf_get_str(r->file, "general.architecture", &arch, err, sizeof err) == 1 &&
        arch.len < sizeof r->arch) {
        memcpy(r->arch, arch.data, arch.len);
        put_sizes(r);
    }
    tensor_bytes = put_tensors(r);
    put_tokenizer(r, reason, sizeof reason);
    put_template(r);
    put_verdict(r, tensor_bytes, reason);
}

static void print_line(const char *label, const char *text, size_t len)
{
    printf("%-18s ", label);
    cmd_model_print(text, len, 0);
    putchar('\n');
}

static void print_value(const char *label, const json_t *v)
{
    if (json_is_integer(v))
        printf("%-18s %" JSON_INTEGER_FORMAT "\n", label, json_integer_value(v));
    else if (json_is_real(v))
        printf("%-18s %.9g\n", label, json_real_value(v));
    else if (json_is_string(v))
        print_line(label, json_string_value(v), json_string_length(v));
    else if (json_is_boolean(v))
        printf("%-18s %s\n", label, json_is_true(v) ? "yes" : "no");
}

static void print_bytes(const char *label, const json_t *v)
{
    double bytes = (double)json_integer_value(v);
    if (v)
        printf("%-18s %.1f MiB (%.0f bytes)\n", label, bytes / 1048576, bytes);
}

static void print_types(const json_t *list)
{
    size_t i;
    const json_t *each;
    json_array_foreach(list, i, each)
    {
        printf("%-18s %-8s %5" JSON_INTEGER_FORMAT " tensors %12" JSON_INTEGER_FORMAT " bytes\n",
               i == 0 ? "tensors" : "", json_string_value(json_object_get(each, "type")),
               json_integer_value(json_object_get(each, "tensors")),
               json_integer_value(json_object_get(each, "bytes")));
    }
}

static void print_token(const char *what, const json_t *token)
{
    const json_t *text = json_object_get(token, "text");
    printf("%-18s ", what);
    cmd_model_print(json_string_value(text), json_string_length(text), 0);
    printf(" (%" JSON_INTEGER_FORMAT ")\n", json_integer_value(json_object_get(token, "id")));
}

static void print_tokenizer(const json_t *t)
{
    static const char *const ids[][2] = { { "bos", "bos token" },
                                          { "eos", "eos token" },
                                          { "turn", "turn token" } };
    const json_t *kind = json_object_get(t, "kind"), *each;
    size_t i;

    printf("%-18s %s\n", "tokenizer",
           json_is_string(kind) ? json_string_value(kind) : "not one this build has");
    for (i = 0; i < sizeof ids / sizeof *ids; i++) {
        each = json_object_get(t, ids[i][0]);
        if (each)
            print_token(ids[i][1], each);
    }
    json_array_foreach(json_object_get(t, "ends"), i, each) print_token(i ? "" : "end tokens", each);
}

static void print_text(const json_t *o)
{
    static const char *const plain[][2] = {
        { "architecture", "architecture" },
        { "name", "name" },
        { "license", "license" },
        { "parameters", "parameters" },
        { "layers", "layers" },
        { "embedding", "embedding" },
        { "feed_forward", "feed forward" },
        { "heads", "heads" },
        { "kv_heads", "KV heads" },
        { "head_dim", "head size" },
        { "experts", "experts" },
        { "vocabulary", "vocabulary" },
        { "output_tied", "output tied" },
        { "context", "context" },
        { "window", "sliding window" },
        { "rope_base", "rope base" },
        { "rope_scaling", "rope scaling" },
        { "norm_epsilon", "norm epsilon" },
    };

    print_value("file", json_object_get(o, "file"));
    print_bytes("file size", json_object_get(o, "file_bytes"));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        print_value(plain[i][1], json_object_get(o, plain[i][0]));
    print_types(json_object_get(o, "tensor_types"));
    print_tokenizer(json_object_get(o, "tokenizer"));
    print_value("chat template", json_object_get(o, "chat_template"));
    print_value("template error", json_object_get(o, "chat_template_error"));
    print_value("activations", json_object_get(o, "activations"));
    print_value("KV bytes/token f16", json_object_get(o, "kv_bytes_per_token_f16"));
    print_value("KV bytes/token f32", json_object_get(o, "kv_bytes_per_token_f32"));
    print_value("KV bytes/token q8", json_object_get(o, "kv_bytes_per_token_q8_0"));
    print_bytes("memory", json_object_get(o, "memory_bytes"));
    print_value("runs here", json_object_get(o, "runs"));
    print_value("because", json_object_get(o, "reason"));
    print_value("warning", json_object_get(o, "warning"));
}

/* Every key of the file, with a short text of its value. */
static void print_keys(const struct gguf *f)
{
    for (uint64_t i = 0; i < gguf_n_keys(f); i++) {
        char text[512];
        struct gguf_str key;
        gguf_key_text(f, i, &key, text, sizeof text);
        cmd_model_print(key.data, key.len, 0);
        printf(" = %s\n", text);
    }
}

static int info(const char *path, bool json, bool keys)
{
    char err[1024];
    struct report r = { .path = path };
    int code = 0;

    if (gguf_open(path, &r.file, err, sizeof err) < 0) {
        cmd_error("%s", err);
        return 1;
    }
    r.out = json_object();
    if (keys) {
        print_keys(r.file);
    } else {
        gather(&r);
        if (jsonx_starved()) { /* something is missing in it */
            cmd_error("out of memory");
            code = 1;
        } else if (!json)
            print_text(r.out);
        else if (json_dumpf(r.out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) < 0 || putchar('\n') < 0)
            code = 1;
    }
    json_decref(r.out);
    gguf_close(r.file);
    return code;
}

int cmd_model_info(int argc, char **argv)
{
    struct cmd_strings words = { 0 };
    bool json = false, keys = false;
    const struct cmd_option options[] = {
        { .name = "--json", .help = "Print JSON.", .flag = &json },
        { .name = "--keys", .help = "Print every key of the file instead.", .flag = &keys },
    };
    const struct cmd_spec spec = {
        .usage = "berth model info FILE.gguf [--json | --keys]",
        .about = "Prints what a model file holds, whether this build runs it (and why not), and the memory "
                 "that takes:\n"
                 "its weights, keys and values (f16) for the whole context it was trained for, and 64 MiB "
                 "beside them.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0 && json && keys) {
        cmd_error("--json and --keys exclude each other");
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = info(words.items[0], json, keys);
    cmd_strings_free(&words);
    return code;
}
