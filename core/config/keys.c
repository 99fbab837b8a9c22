/* Keys: the table itself, and finding a row by its name. A new setting is a row here and a field in config.h.
 * Pure constant data; any thread. Must not know: what a setting does. Tests: tests/unit/test_config.c */
#include "config/keys.h"

#include "util/jsonx.h"

#include <string.h>

#define AT(field) offsetof(struct config, field)
#define LIST(field_, fallback_, max_)                                                                        \
    .type = KEY_LIST, .offset = AT(field_), .fallback = fallback_, .max = max_
#define SETTINGS(field_, max_) .type = KEY_SETTINGS, .offset = AT(field_), .fallback = "{}", .max = max_
#define POLICIES(field_, max_) .type = KEY_POLICIES, .offset = AT(field_), .fallback = "[]", .max = max_
#define PATH(field_) .type = KEY_PATH, .offset = AT(field_), .fallback = "null"
#define TEXT(field_) .type = KEY_TEXT, .offset = AT(field_), .fallback = "null"
#define BOOL(field_, fallback_) .type = KEY_BOOL, .offset = AT(field_), .fallback = fallback_
#define CHOICE(field_, fallback_, choices_)                                                                  \
    .type = KEY_CHOICE, .offset = AT(field_), .fallback = fallback_, .choices = choices_
#define INT(field_, fallback_, min_, max_)                                                                   \
    .type = KEY_INT, .offset = AT(field_), .fallback = fallback_, .min = min_, .max = max_
#define AUTO(field_, min_, max_)                                                                             \
    .type = KEY_INT_AUTO, .offset = AT(field_), .fallback = "\"auto\"", .min = min_, .max = max_
#define REAL(field_, fallback_, min_, max_)                                                                  \
    .type = KEY_REAL, .offset = AT(field_), .fallback = fallback_, .min = min_, .max = max_
#define UNIT(unit_) .unit = unit_
#define RELOAD .reloadable = true
#define RESTART .reloadable = false
#define HELP(help_) .help = help_

/* clang-format off */
const struct config_key config_keys[] = {
    { "server.listen", LIST(server.listen, "[\"127.0.0.1:8080\"]", 16), .path_mark = "unix:", UNIT(""), RESTART,
      HELP("Addresses to listen on: host:port, [ipv6]:port or unix:/path; port 0 lets the kernel choose. Beyond "
           "loopback it needs keys or server.open.") },
    { "server.keys_file", PATH(server.keys_file), UNIT(""), RELOAD,
      HELP("File with the API keys, a line name:sha256[:admin] each. Without it anyone who reaches the address may "
           "ask.") },
    { "server.open", BOOL(server.open, "false"), UNIT(""), RESTART,
      HELP("Allow listening beyond loopback without keys.") },
    { "server.metrics_open", BOOL(server.metrics_open, "false"), UNIT(""), RELOAD,
      HELP("With keys: let /metrics and what else only watches be read without the admin key.") },
    { "server.cors_origins", LIST(server.cors_origins, "[]", 64), UNIT(""), RELOAD,
      HELP("Web origins (\"https://example.org\") whose pages may call this server from a browser.") },
    { "server.max_header_bytes", INT(server.max_header_bytes, "65536", 1024, 1 << 20), UNIT("bytes"), RESTART,
      HELP("Longest request line and headers together.") },
    { "server.max_body_bytes", INT(server.max_body_bytes, "33554432", 1024, 1 << 30), UNIT("bytes"), RESTART,
      HELP("Largest request body; a larger one gets 413.") },
    { "server.max_json_depth", INT(server.max_json_depth, "128", 8, 1000), UNIT("levels"), RESTART,
      HELP("Deepest nesting of a request's JSON.") },
    { "server.max_connections", INT(server.max_connections, "1024", 1, 65536), UNIT("connections"), RESTART,
      HELP("Connections open at once; further ones wait unaccepted.") },
    { "server.header_timeout_s", INT(server.header_timeout_s, "10", 1, 3600), UNIT("s"), RESTART,
      HELP("Time a client has to send its request line and headers.") },
    { "server.idle_timeout_s", INT(server.idle_timeout_s, "75", 1, 86400), UNIT("s"), RESTART,
      HELP("Time after which a connection without a request is closed.") },
    { "server.max_unsent_bytes", INT(server.max_unsent_bytes, "1048576", 4096, 1 << 30), UNIT("bytes"), RESTART,
      HELP("Bytes a stream may hold back for a slow reader before its generation pauses.") },
    { "server.drain_s", INT(server.drain_s, "30", 0, 3600), UNIT("s"), RELOAD,
      HELP("Time running requests have to finish after SIGTERM.") },
    { "server.watchdog_s", INT(server.watchdog_s, "30", 1, 3600), UNIT("s"), RELOAD,
      HELP("With work pending and no step for so long, /ready answers 503.") },
    { "server.keepalive_s", INT(server.keepalive_s, "10", 1, 3600), UNIT("s"), RELOAD,
      HELP("Interval of comment lines in a stream that waits or whose prompt is being read.") },
    { "server.workers", INT(server.workers, "2", 1, 64), UNIT("threads"), RESTART,
      HELP("Threads that parse, render and tokenize requests.") },

    { "model.path", PATH(model.path), UNIT(""), RESTART,
      HELP("The GGUF file to serve; null: the first one in ./models.") },
    { "model.context", AUTO(model.context, 16, 1 << 24), UNIT("tokens"), RESTART,
      HELP("Longest prompt and answer together; auto: what the model was trained for, bounded by memory.") },
    { "model.chat_template", PATH(model.chat_template), UNIT(""), RESTART,
      HELP("File with a chat template; null: the model's own.") },
    { "model.turn_token", TEXT(model.turn_token), UNIT(""), RESTART,
      HELP("Text of the token that starts a turn of a chat, which tells where a conversation's finished turns end; "
           "null: found in the chat template and the model's vocabulary.") },
    { "model.tool_format", CHOICE(model.tool_format, "\"auto\"", "auto hermes mistral llama3 json xml glm none"), UNIT(""), RESTART,
      HELP("How the model writes calls of tools; auto: found in its chat template. hermes: JSON between <tool_call> and "
           "</tool_call>; mistral: after [TOOL_CALLS]; llama3, json: JSON as the whole answer; xml: <function=..> with "
           "<parameter=..>; glm: <arg_key> and <arg_value>; none: calls are left text.") },
    { "model.name", TEXT(model.name), UNIT(""), RESTART,
      HELP("What /v1/models calls the model; null: the file's name without .gguf.") },

    { "api.normalize", LIST(api.normalize, "[\"claude_billing\"]", 16), .choices = "claude_billing", UNIT(""), RESTART,
      HELP("What is known to change between requests without meaning anything, and is taken out before a prompt is "
           "made. claude_billing: the first line of Claude Code's system prompt, which differs in every conversation.") },

    { "engine.device", CHOICE(engine.device, "\"auto\"", "auto cpu cuda"), UNIT(""), RESTART,
      HELP("Where the model is computed; auto: on CUDA devices where this build and the machine have them and they "
           "can hold it, else, and wherever engine.isa names an instruction set, on the CPU.") },
    { "engine.isa", CHOICE(engine.isa, "\"auto\"", "auto amx avx512 avx2 portable ref"), UNIT(""), RESTART,
      HELP("Instruction set of the CPU kernels; auto: the best this machine has. ref: plain loops, for doubts.") },
    { "engine.threads", AUTO(engine.threads, 1, 256), UNIT("threads"), RESTART,
      HELP("Threads that compute; auto: the cores this process may use.") },
    { "engine.stages", INT(engine.stages, "1", 1, 64), UNIT("stages"), RESTART,
      HELP("Parts the model's layers are divided into, at most one a layer: each with its own processors, its share of "
           "the threads and at least one, or on a CUDA device of its own as far as there are devices.") },
    { "engine.slots", INT(engine.slots, "64", 1, 1024), UNIT("conversations"), RESTART,
      HELP("Conversations kept at once.") },
    { "engine.groups", AUTO(engine.groups, 1, 1024), UNIT("groups"), RESTART,
      HELP("Groups that engine.slots is divided into; a window computes the requests of one. auto: as many as there are "
           "stages, or the next smaller number that divides the slots.") },
    { "engine.rows", INT(engine.rows, "16", 1, 256), UNIT("requests"), RESTART,
      HELP("Requests that run at once, over all groups, never more than engine.slots; further ones wait in the queue.") },
    { "engine.kv_tokens", AUTO(engine.kv_tokens, 256, 1 << 26), UNIT("tokens"), RESTART,
      HELP("Size of the key-value pool that all conversations share; auto: from the context and the free memory, the device's "
           "where that computes.") },
    { "engine.kv_type", CHOICE(engine.kv_type, "\"f16\"", "f16 f32 q8_0"), UNIT(""), RESTART,
      HELP("Number type of keys and values. q8_0: half of f16's memory, for models whose head dimension is a multiple of 32.") },
    { "engine.activations", CHOICE(engine.activations, "\"auto\"", "auto int8 int16 f32"), UNIT(""), RESTART,
      HELP("What activations are rounded to before they meet the weights. auto: int16 for gemma3, whose "
           "activations int8 makes too coarse, int8 for others. int16: prompts, and streams that run together, "
           "take up to twice as long; a single stream loses little. f32: exact, with engine.kv_type f32, and "
           "slow.") },
    { "engine.deterministic", BOOL(engine.deterministic, "true"), UNIT(""), RESTART,
      HELP("On CUDA: whether an answer is the same whatever else runs, as it always is on the CPU. false: cuBLAS computes large "
           "chunks of prompts in an order of its own, and must be there (libcublas).") },
    { "engine.windows", CHOICE(engine.windows, "\"active\"", "active padded"), UNIT(""), RESTART,
      HELP("active: a window has rows for the requests of its group alone. padded: for every slot of the group up to the last "
           "busy one, as fixed layouts have, at the cost of what idle ones among them hold: to measure what that costs, and "
           "for policies that reckon with it.") },
    { "engine.max_pause_ms", INT(engine.max_pause_ms, "100", 1, 10000), UNIT("ms"), RELOAD,
      HELP("Longest a running stream waits for a part of someone else's prompt to be read.") },

    { "queue.max", INT(queue.max, "256", 1, 65536), UNIT("requests"), RESTART,
      HELP("Requests that may wait; further ones get 429. One client, told by its address and key name, may hold half of "
           "it: behind a proxy without keys all users are one client.") },
    { "queue.order", CHOICE(queue.order, "\"least\"", "least arrival"), UNIT(""), RESTART,
      HELP("Who of those that wait goes next. least: the one with the fewest tokens to read, one that has waited very long "
           "first, and each takes its slot only when its turn has come. arrival: first come, first served, a slot taken as "
           "soon as one is free: to compare with.") },

    { "cache.isolation", CHOICE(cache.isolation, "\"auto\"", "auto shared key"), UNIT(""), RELOAD,
      HELP("Whose prefixes a request may reuse. shared: everybody's; key: those of requests with the same API key; auto: key "
           "with server.keys_file, shared without. A request's cache_salt narrows it further.") },
    { "cache.save_dir", PATH(cache.save_dir), .tried_later = true, UNIT(""), RESTART,
      HELP("Folder in which POST /slots/ID?action=save keeps conversations; null: there is none. It must exist.") },

    { "sampling.temperature", REAL(sampling.temperature, "0.7", 0, 2), UNIT(""), RELOAD,
      HELP("Default temperature of requests that name none; 0: always the likeliest token.") },
    { "sampling.top_p", REAL(sampling.top_p, "0.95", 0, 1), UNIT(""), RELOAD,
      HELP("Default top_p; 1: off.") },
    { "sampling.min_p", REAL(sampling.min_p, "0", 0, 1), UNIT(""), RELOAD,
      HELP("Default min_p; 0: off.") },
    { "sampling.top_k", INT(sampling.top_k, "0", 0, 1 << 20), UNIT("tokens"), RELOAD,
      HELP("Default top_k; 0: off.") },
    { "sampling.repeat_penalty", REAL(sampling.repeat_penalty, "1", 0.01, 10), UNIT(""), RELOAD,
      HELP("Default repeat_penalty over the last 64 tokens; 1: off.") },

    { "policy.path", PATH(policy.path), .tried_later = true, UNIT(""), RELOAD,
      HELP("The placement policy, a shared object; null: the built-in one, or with STRATA_SLOT_CACHE_AFFINITY=1 the "
           "installed value.so.") },
    { "policy.settings", SETTINGS(policy.settings, CONFIG_MAX_ENTRIES), UNIT(""), RELOAD,
      HELP("The policy's own settings by name, as berth policy list tells them: {\"ttl_max_s\": 60}; one of them with "
           "--set policy.settings.ttl_max_s=60.") },
    { "policy.shadow", POLICIES(policy.shadow, 8), UNIT("policies"), RELOAD,
      HELP("Policies that are asked the same questions beside the one that decides, to compare: [{\"path\": \"lru.so\", "
           "\"settings\": {}}]; with --set a list of paths will do.") },
    { "policy.fallback", CHOICE(policy.fallback, "\"none\"", "none builtin"), UNIT(""), RELOAD,
      HELP("What a policy that cannot be loaded at start means. none: the server does not start; builtin: it starts with "
           "the built-in policy. At a reload the policy in use stays, whatever is set here.") },
    { "policy.probe_s", INT(policy.probe_s, "5", 1, 600), UNIT("s"), RELOAD,
      HELP("Time a policy has to load and answer in a process of its own before the server loads it.") },

    { "env", SETTINGS(env, CONFIG_MAX_ENTRIES), UNIT(""), RELOAD,
      HELP("Environment names and their values (STRATA_SLOT_TTL_MAX_S and others a policy knows), which win over the "
           "process environment; policy.settings wins over both.") },

    { "trace.path", PATH(trace.path), .tried_later = true, UNIT(""), RELOAD,
      HELP("File that gets a line for every placement decision, which berth policy eval reads; null: none. A reload "
           "opens it anew.") },

    { "log.level", CHOICE(log.level, "\"info\"", "debug info warn error"), UNIT(""), RELOAD,
      HELP("Least level of the lines written to standard error.") },
};
/* clang-format on */
const size_t config_n_keys = sizeof config_keys / sizeof config_keys[0];

enum { MAX_NAMES = 256 };
_Static_assert(sizeof config_keys / sizeof config_keys[0] <= MAX_NAMES,
               "config_key_nearest looks at all of them");

const struct config_key *config_key_find(const char *name)
{
    for (size_t i = 0; i < config_n_keys; i++)
        if (strcmp(config_keys[i].name, name) == 0)
            return &config_keys[i];
    return NULL;
}

bool config_key_is_section(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < config_n_keys; i++)
        if (strncmp(config_keys[i].name, name, len) == 0 && config_keys[i].name[len] == '.')
            return true;
    return false;
}

const struct config_key *config_key_of_entry(const char *name, const char **ret_entry)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        size_t len = strlen(config_keys[i].name);

        if (config_keys[i].type != KEY_SETTINGS || strncmp(config_keys[i].name, name, len) != 0 ||
            name[len] != '.' || !name[len + 1])
            continue;
        *ret_entry = name + len + 1;
        return &config_keys[i];
    }
    return NULL;
}

/* "threads" of "engine.threads". */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

const char *config_key_by_word(const char *word)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const char *own = last_word(config_keys[i].name), *w = word;

        while (*own && (*own == *w || (*own == '_' && *w == '-')))
            own++, w++;
        if (!*own && !*w)
            return config_keys[i].name;
    }
    return NULL;
}

/* Of those whose last word is near too: one in the same section is near by its section alone. */
static const char *nearest_name(const char *name, const char *const *names, const char *const *words)
{
    const char *some[MAX_NAMES];
    size_t n = 0;

    for (size_t i = 0; i < config_n_keys; i++)
        if (jsonx_nearest(last_word(name), &words[i], 1))
            some[n++] = names[i];
    return jsonx_nearest(name, some, n);
}

const char *config_key_nearest(const char *name)
{
    static const char *const sections[] = { "server",   "model",  "api", "api",   "engine", "queue",
                                            "sampling", "policy", "env", "trace", "log" };
    const char *words[MAX_NAMES], *names[MAX_NAMES], *found;

    for (size_t i = 0; i < config_n_keys; i++) {
        names[i] = config_keys[i].name;
        words[i] = last_word(names[i]);
        if (strcmp(words[i], last_word(name)) == 0)
            return names[i];
    }
    if (config_key_is_section(name))
        return NULL;
    if (!strchr(name, '.')) {
        found = jsonx_nearest(name, sections, sizeof sections / sizeof sections[0]);
        if (found)
            return found;
    }
    found = nearest_name(name, names, words);
    if (found)
        return found;
    found = jsonx_nearest(last_word(name), words, config_n_keys);
    for (size_t i = 0; found && i < config_n_keys; i++)
        if (words[i] == found)
            return names[i];
    return NULL;
}
