/* Toolcall: see toolcall.h. A machine over bytes. Until a call is announced everything since the white space
 * before it is held; when it turns out to be none, that is the text it was. From then on its arguments go out
 * as they are checked (jsonscan.h), and `held` keeps the source for a call that breaks. */
#include "model/toolcall.h"
#include "model/schema.h"
#include "util/jsonx.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum state {
    START,  /* nothing but white space yet: a format without a mark may begin here */
    TEXT,   /* plain; `held` is white space and what may become a mark */
    OPENED, /* a call's JSON must begin */
    NAMED,  /* the tool's name stands in front of its arguments */
    TOLD,   /* so does an id, which is not wanted: a call gets one from the server */
    CALL,   /* inside the JSON of a call */
    TAGGED, /* inside a call whose arguments have marks */
    AFTER,  /* a call ended: a closing mark, a separator, another call */
};

enum member { OTHER, NAME, ARGUMENTS };

static const struct tagged_marks xml = { .name = "<function=",
                                         .name_end = ">",
                                         .key = "<parameter=",
                                         .key_end = ">",
                                         .value_end = "</parameter>",
                                         .end = "</function>",
                                         .lines = true };
static const struct tagged_marks glm = { .key = "<arg_key>",
                                         .key_end = "</arg_key>",
                                         .value = "<arg_value>",
                                         .value_end = "</arg_value>",
                                         .end = "</tool_call>" };

/* No mark's first byte occurs in it again: where one fails, another can only begin at the failing byte. */
static const struct format {
    const char *name, *open, *close, *args, *id;
    bool bare, list;
    const char *separators; /* between calls */
    const struct tagged_marks *tagged;
} formats[TOOLCALL_FORMATS] = {
    [TOOLCALL_NONE] = { .name = "none" },
    [TOOLCALL_HERMES] = { .name = "hermes",
                          .open = "<tool_call>",
                          .close = "</tool_call>",
                          .list = true,
                          .separators = "" },
    [TOOLCALL_MISTRAL] = { .name = "mistral",
                           .open = "[TOOL_CALLS]",
                           .close = "[TOOL_CALLS]",
                           .args = "[ARGS]",
                           .id = "[CALL_ID]",
                           .list = true,
                           .separators = "" },
    [TOOLCALL_LLAMA3] = { .name = "llama3", .open = "<|python_tag|>", .bare = true, .separators = ";" },
    [TOOLCALL_JSON] = { .name = "json", .bare = true, .list = true, .separators = "" },
    [TOOLCALL_XML] = { .name = "xml",
                       .open = "<tool_call>",
                       .close = "</tool_call>",
                       .separators = "",
                       .tagged = &xml },
    [TOOLCALL_GLM] = { .name = "glm", .open = "<tool_call>", .separators = "", .tagged = &glm },
};

struct toolcall {
    const struct format *f;
    char **names;
    size_t n_names;
    json_t *strings; /* for tagged.h */
    struct tagged tagged;
    char gap[8];

    enum state state;
    bool said, between; /* text came out; a call did, and no text since */
    bool in_list, one;
    struct buf held;
    size_t n_mark; /* bytes at the end of held that are the start of a mark */
    size_t n_gap;  /* bytes at its start that are white space before the call */
    uint32_t complete;

    /* The call. */
    struct jsonscan scan;
    struct buf json; /* what it becomes */
    struct buf name; /* of the tool; or of NAMED, while it is read */
    bool named, announced, has_arguments, arguments_end;
    bool front; /* the name stood in front: the JSON is the arguments alone */
    enum member member;
    size_t key_at, value_at, sent; /* in json */
    struct buf arguments;          /* a string's content; or what came before the name was known */
};

const char *toolcall_format_name(enum toolcall_format f)
{
    return formats[f].name;
}

int toolcall_format_find(const char *name, enum toolcall_format *ret_format)
{
    for (int i = 0; i < TOOLCALL_FORMATS; i++) {
        if (strcmp(formats[i].name, name) != 0)
            continue;
        *ret_format = (enum toolcall_format)i;
        return 0;
    }
    return -EINVAL;
}

const char *toolcall_format_mark(enum toolcall_format f, size_t i)
{
    static const struct tagged_marks none;
    const struct tagged_marks *m = formats[f].tagged ? formats[f].tagged : &none;
    const char *all[] = { formats[f].open, formats[f].close, formats[f].args, formats[f].id,
                          m->key,          m->value,         m->value_end,    m->value ? m->key_end : NULL };
    _Static_assert(sizeof all / sizeof *all <= TOOLCALL_MARKS + 2, "no format has all of them");
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (all[k] && i-- == 0)
            return all[k];
    return NULL;
}

/* Which arguments may be strings, as tagged.h wants it. */
static json_t *find_strings(const struct toolcall_options *o)
{
    json_t *all = json_object(), *bits;
    const char *key;
    for (size_t i = 0; o->schemas && i < o->n_names; i++) {
        json_t *members = schema_members(o->schemas[i]), *found = json_object();
        json_object_foreach(members, key, bits)
        {
            unsigned types = (unsigned)json_integer_value(bits), string = 1u << JSON_STRING;
            if (types & string)
                json_object_set_new(found, key, json_integer(types & ~string));
        }
        json_decref(members);
        json_object_set_new(all, o->names[i], found);
    }
    return all;
}

int toolcall_new(const struct toolcall_options *o, struct toolcall **ret_parser)
{
    struct toolcall *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->f = &formats[o->format];
    t->state = t->f->bare ? START : TEXT;
    t->one = o->one;
    if (o->gap && strlen(o->gap) < sizeof t->gap)
        strcpy(t->gap, o->gap);
    t->names = calloc(o->n_names + 1, sizeof *t->names);
    for (size_t i = 0; t->names && i < o->n_names; i++) {
        t->names[i] = strdup(o->names[i]);
        if (!t->names[i])
            goto fail;
        t->n_names++;
    }
    if (!t->names)
        goto fail;
    if (t->f->tagged && !(t->strings = find_strings(o)))
        goto fail;
    *ret_parser = t;
    return 0;

fail:
    toolcall_free(t);
    return -ENOMEM;
}

void toolcall_free(struct toolcall *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_names; i++)
        free(t->names[i]);
    free(t->names);
    json_decref(t->strings);
    tagged_clear(&t->tagged);
    buf_free(&t->held);
    buf_free(&t->json);
    buf_free(&t->name);
    buf_free(&t->arguments);
    free(t);
}

uint32_t toolcall_complete(const struct toolcall *t)
{
    return t->complete;
}

static void say(struct toolcall *t, const char *text, size_t len, answer_sink sink, void *arg)
{
    if (!len)
        return;
    t->said = true;
    t->between = false;
    sink(arg, ANSWER_TEXT, text, len);
}

/* What is held is text. */
static void say_held(struct toolcall *t, answer_sink sink, void *arg)
{
    if (t->held.len)
        say(t, t->held.data, t->held.len, sink, arg);
    buf_clear(&t->held);
    t->n_mark = 0;
}

/* ---- one call ---- */

static void forget_call(struct toolcall *t)
{
    jsonscan_init(&t->scan);
    buf_clear(&t->json);
    buf_clear(&t->name);
    buf_clear(&t->arguments);
    t->named = t->announced = t->has_arguments = t->arguments_end = t->front = false;
    t->member = OTHER;
    t->key_at = t->value_at = t->sent = 0;
}

/* The white space before a call is the template's where it ends as the template writes it; the rest of it is
 * text, so that the same bytes are rendered when the answer comes back. */
static void say_gap(struct toolcall *t, answer_sink sink, void *arg)
{
    size_t gap = strlen(t->gap), n = t->n_gap;
    bool ends_so = n >= gap && memcmp(t->held.data + n - gap, t->gap, gap) == 0;
    if (t->said && !t->between && ends_so && n > gap) {
        say(t, t->held.data, n - gap, sink, arg);
        buf_consume(&t->held, n - gap);
    }
    t->n_gap = 0;
}

static void announce(struct toolcall *t, answer_sink sink, void *arg)
{
    say_gap(t, sink, arg);
    t->announced = true;
    sink(arg, ANSWER_CALL, t->name.data, t->name.len);
}

/* Hands out what is certain of the arguments. */
static void send_arguments(struct toolcall *t, answer_sink sink, void *arg)
{
    if (!t->announced)
        return;
    if (t->arguments.len) {
        sink(arg, ANSWER_ARGUMENTS, t->arguments.data, t->arguments.len);
        buf_clear(&t->arguments);
    }
    if (t->has_arguments && !t->arguments_end && t->json.len > t->sent) {
        sink(arg, ANSWER_ARGUMENTS, t->json.data + t->sent, t->json.len - t->sent);
        t->sent = t->json.len;
    }
}

static json_t *value_of(const struct toolcall *t)
{
    return json_loadb(t->json.data + t->value_at, t->json.len - t->value_at, JSON_DECODE_ANY, NULL);
}

static bool is_offered(const struct toolcall *t)
{
    for (size_t i = 0; i < t->n_names; i++)
        if (strlen(t->names[i]) == t->name.len && memcmp(t->names[i], t->name.data, t->name.len) == 0)
            return true;
    return false;
}

static bool take_name(struct toolcall *t)
{
    json_t *v = t->named ? NULL : value_of(t);
    bool ok = json_is_string(v) && json_string_length(v);
    if (ok)
        buf_append(&t->name, json_string_value(v), json_string_length(v));
    json_decref(v);
    t->named = ok;
    return ok && (!t->f->bare || is_offered(t));
}

/* The arguments are whole, and did not go out as they came. */
static bool take_arguments(struct toolcall *t)
{
    const char *value = t->json.data + t->value_at;
    size_t len = t->json.len - t->value_at;
    if (*value == '{') {
        buf_append(&t->arguments, value + (t->sent - t->value_at), t->json.len - t->sent);
        return true;
    }
    if (*value == 'n') {
        buf_puts(&t->arguments, "{}");
        return true;
    }
    json_t *text = json_loadb(value, len, JSON_DECODE_ANY, NULL), *object = NULL;
    char err[8];
    bool ok = json_is_string(text) &&
              jsonx_parse(json_string_value(text), json_string_length(text), JSONSCAN_DEPTH, false, &object,
                          err, sizeof err) == 0 &&
              json_is_object(object);
    if (ok)
        buf_append(&t->arguments, json_string_value(text), json_string_length(text));
    json_decref(text);
    json_decref(object);
    return ok;
}

static bool key_is(const struct toolcall *t, const char *name)
{
    size_t len = t->json.len - 1 - t->key_at;
    return strlen(name) == len && memcmp(t->json.data + t->key_at, name, len) == 0;
}

/* False for a key that an answer in JSON has and a call has not. */
static bool take_key(struct toolcall *t)
{
    t->member = key_is(t, "name")                                   ? NAME
                : key_is(t, "arguments") || key_is(t, "parameters") ? ARGUMENTS
                                                                    : OTHER;
    return t->member != OTHER || !t->f->bare || key_is(t, "id") || key_is(t, "type");
}

static bool value_begins(struct toolcall *t, char c)
{
    t->value_at = t->json.len - 1;
    if (t->member == NAME)
        return c == '"' && !t->named;
    if (t->member != ARGUMENTS)
        return true;
    if (t->has_arguments || !strchr("{\"n", c))
        return false;
    t->has_arguments = true;
    t->sent = t->value_at;
    t->arguments_end = c != '{'; /* only an object goes out as it comes */
    return true;
}

static bool value_ended(struct toolcall *t)
{
    enum member m = t->member;
    t->member = OTHER;
    if (m == NAME)
        return take_name(t);
    if (m != ARGUMENTS)
        return true;
    bool ok = take_arguments(t);
    t->arguments_end = true;
    return ok;
}

/* What a byte of the call's object means on its first level. */
static bool follow_members(struct toolcall *t, enum jsonscan_place was, unsigned was_depth, char c)
{
    enum jsonscan_place is = jsonscan_place(&t->scan);
    if (was_depth == 1 && was == JSONSCAN_KEY && c == '"')
        t->key_at = t->json.len;
    if (was_depth == 1 && is == JSONSCAN_COLON && was == JSONSCAN_INSIDE)
        return take_key(t);
    if (was_depth == 1 && was == JSONSCAN_VALUE && !jsonscan_is_space(c) && !value_begins(t, c))
        return false;
    if (t->scan.depth == 1 && is == JSONSCAN_NEXT && (was_depth == 2 || was == JSONSCAN_INSIDE))
        return value_ended(t);
    return true;
}

static void call_ends(struct toolcall *t, answer_sink sink, void *arg)
{
    if (!t->announced)
        announce(t, sink, arg);
    if (!t->has_arguments)
        buf_puts(&t->arguments, "{}");
    send_arguments(t, sink, arg);
    sink(arg, ANSWER_CALL_END, NULL, 0);
    t->complete++;
    t->between = true;
    buf_clear(&t->held);
    t->n_mark = t->n_gap = 0;
    t->state = AFTER;
}

/* Whether all that is missing is the brace after the arguments, which small models leave out: they go on with
 * the closing mark, or end. `c` is what came in its place; 0: the end. */
static bool lacks_brace(const struct toolcall *t, char c)
{
    bool closes = !c || (t->f->close && c == t->f->close[0]);
    return closes && t->state == CALL && !t->front && !t->in_list && t->named && t->arguments_end &&
           t->scan.depth == 1 && jsonscan_place(&t->scan) == JSONSCAN_NEXT;
}

/* It is no call, or no longer one. */
static void call_fails(struct toolcall *t, answer_sink sink, void *arg)
{
    if (t->announced) {
        send_arguments(t, sink, arg);
        sink(arg, ANSWER_CALL_BROKEN, t->held.data, t->held.len);
        buf_clear(&t->held);
        t->said = true;
        t->between = false;
    } else {
        say_held(t, sink, arg);
    }
    t->n_gap = 0;
    t->in_list = false;
    t->state = TEXT;
}

/* Inside a call. False when the byte is to be looked at again, in another state. */
static bool step_call(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    enum jsonscan_place was = jsonscan_place(&t->scan);
    unsigned was_depth = t->scan.depth;
    size_t before = t->json.len;
    bool lacks = lacks_brace(t, c);
    enum jsonscan_result r = jsonscan_byte(&t->scan, c, &t->json);
    if (r == JSONSCAN_BAD || (!t->front && !follow_members(t, was, was_depth, c)) ||
        (r == JSONSCAN_DONE && !t->named)) {
        t->json.len = before;
        if (lacks)
            call_ends(t, sink, arg);
        else
            call_fails(t, sink, arg);
        return false;
    }
    buf_putc(&t->held, c);
    if (t->named && t->has_arguments && !t->announced && (!t->arguments_end || t->arguments.len))
        announce(t, sink, arg);
    if (r == JSONSCAN_DONE)
        call_ends(t, sink, arg);
    return true;
}

/* Begins the JSON of a call with its brace. */
static bool open_call(struct toolcall *t, answer_sink sink, void *arg)
{
    forget_call(t);
    t->state = CALL;
    return step_call(t, '{', sink, arg);
}

/* The arguments that follow a name in front of them. */
static bool open_arguments(struct toolcall *t, answer_sink sink, void *arg)
{
    jsonscan_init(&t->scan);
    buf_clear(&t->json);
    t->named = t->has_arguments = t->front = true;
    t->state = CALL;
    announce(t, sink, arg);
    return step_call(t, '{', sink, arg);
}

static bool step_tagged(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    enum tagged_result r = tagged_byte(&t->tagged, c, t->strings, &t->name, &t->arguments);
    if (r == TAGGED_BAD) {
        call_fails(t, sink, arg);
        return false;
    }
    buf_putc(&t->held, c);
    if (t->tagged.named && !t->announced)
        announce(t, sink, arg);
    t->has_arguments = true;
    if (r == TAGGED_DONE)
        call_ends(t, sink, arg);
    return true;
}

/* ---- around calls ---- */

/* One byte goes on with `mark` (NULL: there is none). The state after it is `next`. */
static bool take_mark(struct toolcall *t, const char *mark, enum state next, char c)
{
    if (!mark || mark[t->n_mark] != c)
        return false;
    buf_putc(&t->held, c);
    if (!mark[++t->n_mark]) {
        t->n_mark = 0;
        t->state = next;
    }
    return true;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.", c));
}

static bool step_opened(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    if (c == '{' && (!t->f->tagged || t->f->close))
        return open_call(t, sink, arg);
    if (jsonscan_is_space(c) || (c == '[' && t->f->list && !t->in_list)) {
        t->in_list = t->in_list || c == '[';
        buf_putc(&t->held, c);
        return true;
    }
    forget_call(t);
    if (t->f->tagged) {
        tagged_init(&t->tagged, t->f->tagged);
        t->state = TAGGED;
        return false;
    }
    if (t->f->args && !t->in_list && is_name(c)) {
        t->state = NAMED;
        return false;
    }
    call_fails(t, sink, arg);
    return false;
}

/* Which mark is being read behind a name; they begin alike. */
static bool is_id_mark(const struct toolcall *t, char c)
{
    char second = t->n_mark > 1 ? t->held.data[t->held.len - t->n_mark + 1] : c;
    return t->n_mark > 0 && second == t->f->id[1];
}

static bool step_named(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    if (is_id_mark(t, c) ? take_mark(t, t->f->id, TOLD, c) : take_mark(t, t->f->args, NAMED, c))
        return true;
    if (c == '{' && !t->n_mark && t->name.len)
        return open_arguments(t, sink, arg);
    if (t->n_mark || !is_name(c)) {
        call_fails(t, sink, arg);
        return false;
    }
    buf_putc(&t->name, c);
    buf_putc(&t->held, c);
    return true;
}

static bool step_told(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    if (take_mark(t, t->f->args, NAMED, c))
        return true;
    if (t->n_mark || !is_name(c)) {
        call_fails(t, sink, arg);
        return false;
    }
    buf_putc(&t->held, c);
    return true;
}

static bool step_after(struct toolcall *t, char c, answer_sink sink, void *arg)
{
    bool closes = t->f->close && !t->in_list;
    if (closes && take_mark(t, t->f->close, t->f->close == t->f->open ? OPENED : TEXT, c)) {
        if (t->state == TEXT)
            buf_clear(&t->held);
        return true;
    }
    if (t->n_mark) {
        t->state = TEXT;
        say_held(t, sink, arg);
        return false;
    }
    if (c == '{' && !t->in_list)
        return open_call(t, sink, arg);
    if (jsonscan_is_space(c) || (c == ']' && t->in_list)) {
        t->in_list = t->in_list && c != ']';
        return true;
    }
    if (t->in_list ? c == ',' : c && strchr(t->f->separators, c)) {
        buf_putc(&t->held, c);
        t->state = OPENED;
        return true;
    }
    t->state = TEXT;
    t->in_list = false;
    return false;
}

/* Plain text, white space and marks. Returns how many bytes were taken. */
static size_t step_text(struct toolcall *t, const char *text, size_t len, answer_sink sink, void *arg)
{
    const char *mark = t->f->open;
    size_t n = 0, spaces = t->held.len - t->n_mark;
    if (take_mark(t, mark, OPENED, *text)) {
        if (t->state == OPENED)
            t->n_gap = spaces;
        return 1;
    }
    if (!t->n_mark && jsonscan_is_space(*text)) {
        buf_putc(&t->held, *text);
        return 1;
    }
    if (t->between) /* white space after a call belongs to it */
        buf_consume(&t->held, spaces);
    bool looked = t->n_mark;
    say_held(t, sink, arg);
    if (looked)
        return 0;
    while (n < len && !jsonscan_is_space(text[n]) && !(mark && text[n] == mark[0]))
        n++;
    say(t, text, n, sink, arg);
    return n;
}

static size_t step_start(struct toolcall *t, const char *text)
{
    if (jsonscan_is_space(*text)) {
        buf_putc(&t->held, *text);
        return 1;
    }
    if (*text == '{' || (*text == '[' && t->f->list)) {
        t->n_gap = t->held.len;
        t->state = OPENED;
    } else {
        t->state = TEXT;
    }
    return 0;
}

int toolcall_feed(struct toolcall *t, const char *text, size_t len, answer_sink sink, void *arg)
{
    for (size_t n; len && !(t->one && t->complete); text += n, len -= n) {
        switch (t->state) {
        case START:
            n = step_start(t, text);
            break;
        case TEXT:
            n = step_text(t, text, len, sink, arg);
            break;
        case OPENED:
            n = step_opened(t, *text, sink, arg);
            break;
        case NAMED:
            n = step_named(t, *text, sink, arg);
            break;
        case TOLD:
            n = step_told(t, *text, sink, arg);
            break;
        case CALL:
            n = step_call(t, *text, sink, arg);
            break;
        case TAGGED:
            n = step_tagged(t, *text, sink, arg);
            break;
        default:
            n = step_after(t, *text, sink, arg);
        }
        if (t->held.failed || t->json.failed || t->name.failed || t->arguments.failed)
            return -ENOMEM;
    }
    if (t->state == CALL || t->state == TAGGED)
        send_arguments(t, sink, arg);
    return 0;
}

int toolcall_finish(struct toolcall *t, answer_sink sink, void *arg)
{
    if (lacks_brace(t, '\0'))
        call_ends(t, sink, arg);
    else if (t->state != START && t->state != TEXT && t->state != AFTER)
        call_fails(t, sink, arg);
    if (t->between)
        buf_consume(&t->held, t->held.len - t->n_mark);
    say_held(t, sink, arg);
    return 0;
}
