/* Model: `berth model tokenize` and `render` show what the server would make of a text or a conversation;
 * `info` is in cmd_model_info.c. One thread. Must not know: how tokenizers and templates work. Tests:
 * tests/e2e/test_model_cli.py, tests/e2e/test_render.py */
#include "cmd_model.h"
#include "cmd.h"
#include "cmd_args.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/jsonx.h"
#include "util/utf8.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_INPUT ((size_t)256 << 20)
#define MAX_DEPTH 512u

static int read_all(FILE *f, const char *name, struct buf *out)
{
    static const size_t chunk_len = 1 << 16;
    char *chunk = malloc(chunk_len);

    out->max = MAX_INPUT;
    if (!chunk) {
        cmd_error("out of memory");
        return -ENOMEM;
    }
    for (size_t n; (n = fread(chunk, 1, chunk_len, f)) > 0;)
        buf_append(out, chunk, n);
    free(chunk);
    if (ferror(f) || out->failed) {
        cmd_error("%s: %s", name, ferror(f) ? strerror(errno) : "is longer than 256 MiB");
        return -EIO;
    }
    return 0;
}

static int read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "re");
    int r;

    if (!f) {
        r = -errno;
        cmd_error("%s: %s", path, strerror(-r));
        return r;
    }
    r = read_all(f, path, out);
    fclose(f);
    return r;
}

/* The file, opened, and its tokenizer; the file may be NULL'ed by a caller that does not want it. */
static int open_tokenizer(const char *path, struct gguf **ret_file, struct tokenizer **ret)
{
    char err[1024];
    struct gguf *f;

    if (gguf_open(path, &f, err, sizeof err) < 0) {
        cmd_error("%s", err);
        return -EINVAL;
    }
    if (tokenizer_open(f, ret, err, sizeof err) < 0) {
        cmd_error("%s: %s", path, err);
        gguf_close(f);
        return -EINVAL;
    }
    *ret_file = f;
    return 0;
}

static bool is_harmless(uint32_t cp)
{
    bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
    bool turns =
        cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
    return !control && !turns;
}

void cmd_model_print(const char *text, size_t len, char quote)
{
    for (size_t at = 0; at < len;) {
        uint32_t cp = 0;
        unsigned n = utf8_decode(text + at, len - at, &cp);
        if (quote && (text[at] == quote || text[at] == '\\'))
            printf("\\%c", text[at]);
        else if (quote && text[at] == '\n')
            printf("\\n");
        else if (n && is_harmless(cp))
            fwrite(text + at, 1, n, stdout);
        else if (n > 1)
            printf("\\u%04" PRIx32, cp);
        else
            printf("\\x%02x", (unsigned char)text[at]);
        at += n ? n : 1;
    }
}

/* A piece between quotes, so that spaces and line breaks are seen. */
static void print_piece(const struct tokenizer *t, int32_t id)
{
    size_t len;
    const char *piece = tokenizer_piece(t, id, true, &len);

    putchar('"');
    cmd_model_print(piece, len, '"');
    putchar('"');
}

static void print_tokens(const struct tokenizer *t, const int32_t *ids, size_t n, bool only_ids,
                         bool only_pieces)
{
    for (size_t i = 0; i < n; i++) {
        if (only_ids) {
            printf("%s%" PRId32, i ? " " : "", ids[i]);
            continue;
        }
        if (!only_pieces)
            printf("%" PRId32 "\t", ids[i]);
        print_piece(t, ids[i]);
        putchar('\n');
    }
    if (only_ids)
        putchar('\n');
}

static int tokenize(const char *path, const char *text, bool only_ids, bool only_pieces, bool plain)
{
    struct buf input = { 0 };
    struct gguf *f;
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n, len = text ? strlen(text) : 0;
    int code = 1;

    if (open_tokenizer(path, &f, &t) < 0)
        return 1;
    gguf_close(f);
    if (!text) {
        if (read_all(stdin, "standard input", &input) < 0)
            goto out;
        text = input.data ? input.data : "";
        len = input.len;
    }
    if (tokenizer_encode(t, text, len, plain ? 0 : TOKENIZER_PARSE_SPECIAL, &ids, &n) < 0) {
        cmd_error("the text cannot be tokenized: out of memory, or longer than 256 MiB");
        goto out;
    }
    print_tokens(t, ids, n, only_ids, only_pieces);
    code = 0;
out:
    free(ids);
    tokenizer_free(t);
    buf_free(&input);
    return code;
}

int cmd_model_tokenize(int argc, char **argv)
{
    struct cmd_strings words = { 0 };
    bool ids = false, pieces = false, plain = false;
    const struct cmd_option options[] = {
        { .name = "--ids", .help = "Print the ids alone, on one line.", .flag = &ids },
        { .name = "--pieces", .help = "Print the pieces of text alone.", .flag = &pieces },
        { .name = "--plain",
          .help = "Take \"<|im_end|>\" and its like literally, not as the tokens they name.",
          .flag = &plain },
    };
    const struct cmd_spec spec = {
        .usage = "berth model tokenize FILE.gguf [TEXT] [--ids | --pieces] [--plain]",
        .about = "Prints the tokens of TEXT, or of standard input, as the server's /tokenize makes them: an "
                 "id and "
                 "its piece a line.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 2,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0 && ids && pieces) {
        cmd_error("--ids and --pieces exclude each other");
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = tokenize(words.items[0], words.n > 1 ? words.items[1] : NULL, ids, pieces, plain);
    cmd_strings_free(&words);
    return code;
}

static int set_token(json_t *vars, const char *name, const struct tokenizer *t, int32_t id)
{
    size_t len;
    const char *piece;

    if (id < 0 || json_object_get(vars, name))
        return 0;
    piece = tokenizer_piece(t, id, true, &len);
    return json_object_set_new(vars, name, json_stringn(piece, len));
}

/* A model's template, and what the server adds to a request that does not say otherwise. */
static int take_from_model(const char *path, json_t *vars, struct buf *source)
{
    char err[512];
    struct gguf *f;
    struct gguf_str own;
    struct tokenizer *t;
    int r;

    if (open_tokenizer(path, &f, &t) < 0)
        return -EINVAL;
    r = gguf_get_str(f, "tokenizer.chat_template", &own, err, sizeof err);
    if (r > 0)
        buf_append(source, own.data, own.len);
    else if (r == 0)
        buf_puts(source, chat_template_chatml);
    else
        cmd_error("%s: %s", path, err);
    if (r >= 0 && !json_object_get(vars, "add_generation_prompt"))
        json_object_set_new(vars, "add_generation_prompt", json_true());
    if (r >= 0 && (set_token(vars, "bos_token", t, tokenizer_bos(t)) < 0 ||
                   set_token(vars, "eos_token", t, tokenizer_eos(t)) < 0)) {
        cmd_error("%s: the text of the bos or eos token is not UTF-8", path);
        r = -EINVAL;
    }
    tokenizer_free(t);
    gguf_close(f);
    return r < 0 ? r : 0;
}

static int render_with(const struct buf *source, const json_t *vars, int64_t now_s)
{
    char err[1024];
    struct chat_template *template;
    struct buf out = { 0 };
    int r = chat_template_parse(source->data ? source->data : "", source->len, &template, err, sizeof err);

    if (r < 0) {
        cmd_error("template: %s", err);
        return 1;
    }
    r = chat_template_render(template, vars, now_s, &out, err, sizeof err);
    if (r < 0)
        cmd_error("%s", err);
    else
        fwrite(out.data, 1, out.len, stdout);
    chat_template_free(template);
    buf_free(&out);
    return r < 0 ? 1 : 0;
}

static int render(const char *model, const char *template_path, int64_t now_s)
{
    char err[512];
    struct buf input = { 0 }, source = { 0 };
    json_t *vars = NULL;
    int code = 1;

    if (read_all(stdin, "standard input", &input) < 0)
        goto out;
    if (jsonx_parse(input.data ? input.data : "", input.len, MAX_DEPTH, false, &vars, err, sizeof err) < 0) {
        cmd_error("standard input: %s", err);
        goto out;
    }
    if (!json_is_object(vars)) {
        cmd_error("standard input: %s where an object with \"messages\" is wanted", jsonx_type_name(vars));
        goto out;
    }
    if ((model ? take_from_model(model, vars, &source) : read_file(template_path, &source)) < 0)
        goto out;
    code = render_with(&source, vars, now_s);
out:
    json_decref(vars);
    buf_free(&input);
    buf_free(&source);
    return code;
}

int cmd_model_render(int argc, char **argv)
{
    struct cmd_strings words = { 0 };
    const char *template_path = NULL, *now = NULL;
    bool chatml = false;
    int64_t now_s = (int64_t)(clock_wall_ns() / NS_PER_S);
    const struct cmd_option options[] = {
        { .name = "--template",
          .value = "FILE",
          .help = "Use this template and add no variables.",
          .text = &template_path },
        { .name = "--chatml", .help = "Print the built-in ChatML template instead.", .flag = &chatml },
        { .name = "--now",
          .value = "SECONDS",
          .help = "The time strftime_now tells, since 1970 UTC.",
          .text = &now },
    };
    const struct cmd_spec spec = {
        .usage = "berth model render (FILE.gguf | --template FILE | --chatml) < request.json",
        .about = "Renders a chat template over the variables in a JSON object (messages, tools, ...) from "
                 "standard input\n"
                 "and prints the bytes. With a model, its bos_token and eos_token and add_generation_prompt "
                 "are added\n"
                 "where the object does not have them. A template's own error is printed, exit code 1.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0 && (words.n > 0) + (template_path != NULL) + chatml != 1) {
        cmd_error("one of a model, --template and --chatml is wanted (usage: %s)", spec.usage);
        code = EXIT_USAGE;
    }
    if (code < 0 && now)
        code = cmd_args_int("--now", now, 0, INT64_MAX / 1000, &now_s);
    if (code < 0 && chatml)
        code = fputs(chat_template_chatml, stdout) < 0 ? 1 : 0;
    if (code < 0)
        code = render(words.n ? words.items[0] : NULL, template_path, now_s);
    cmd_strings_free(&words);
    return code;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} words_of_model[] = {
    { "info", cmd_model_info, "what a file holds, whether it can be run, and what that takes" },
    { "tokenize", cmd_model_tokenize, "the tokens of a text" },
    { "render", cmd_model_render, "what a chat template makes of a conversation" },
};
#define N_WORDS (sizeof words_of_model / sizeof words_of_model[0])

static void print_usage(FILE *out)
{
    fprintf(out, "usage: berth model (info | tokenize | render) ...\n\nLooks into a model file.\n\n");
    for (size_t i = 0; i < N_WORDS; i++)
        fprintf(out, "  %-10s %s\n", words_of_model[i].name, words_of_model[i].about);
    fprintf(out, "\nberth model WORD --help tells more.\n");
}

int cmd_model(int argc, char **argv)
{
    const char *names[N_WORDS + 1] = { [N_WORDS] = "--help" }, *nearest;

    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        if (strcmp(argv[1], words_of_model[i].name) == 0)
            return words_of_model[i].run(argc - 1, argv + 1);
        names[i] = words_of_model[i].name;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return 0;
    }
    nearest = jsonx_nearest(argv[1], names, N_WORDS + 1);
    cmd_error("unknown word \"%.80s\" after model%s%s (info, tokenize and render are there)", argv[1],
              nearest ? "; did you mean " : "", nearest ? nearest : "");
    return EXIT_USAGE;
}
