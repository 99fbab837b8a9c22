/* The table of metrics: names, meanings and where the figures are. What is told in JSON and in Prometheus
 * text is told by one row. Names are a promise: they do not change. */
#include "api/metrics.h"
#include <stdlib.h>
#include <string.h>

#define STATUS(field) .offset = offsetof(struct sched_status, field)
#define EXTRA(field) .extra = true, .offset = offsetof(struct metrics_extra, field)
#define CALL(field) .offset = offsetof(struct sched_status, policy.call[0].field), .by = &by_call

static const char *call_name(uint32_t i)
{
    return policy_call_name((enum policy_call)i);
}

static const char *kind_name(uint32_t i)
{
    return sched_placement_name((enum sched_placement_kind)i);
}

static const struct metric_by by_call = {
    .label = "call", .name = call_name, .n = POLICY_CALLS, .stride = sizeof(struct policy_call_counts)
};
static const struct metric_by by_kind = {
    .label = "kind", .name = kind_name, .n = SCHED_PLACEMENT_KINDS, .stride = sizeof(uint64_t), .inside = true
};
static const struct metric_by by_reason = { .label = "reason",
                                            .name = sched_miss_name,
                                            .first = 1,
                                            .n = SCHED_MISSES,
                                            .stride = sizeof(uint64_t),
                                            .inside = true };

/* What the process knows of policies beside the rows above it. */
static void policy_rest(const struct metrics_view *v, struct buf *b)
{
    static const char *const told[] = { "name", "version", "digest", "generation" };
    const char *key;
    json_t *value;
    json_object_foreach(v->policy, key, value)
    {
        bool again = false;
        for (size_t i = 0; i < sizeof told / sizeof *told; i++)
            again |= strcmp(key, told[i]) == 0;
        char *text =
            again ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (text)
            buf_printf(b, ",\"%s\":%s", key, text);
        free(text);
    }
}

static void info_labels(const struct metrics_view *v, struct buf *b)
{
    buf_puts(b, "version=\"" BERTH_VERSION "\",model=");
    metrics_label(b, v->extra.model);
    buf_puts(b, ",device=");
    metrics_label(b, v->extra.device);
    buf_puts(b, ",activations=");
    metrics_label(b, v->extra.activations);
    buf_puts(b, ",kv_type=");
    metrics_label(b, v->extra.kv_type);
    buf_puts(b, ",policy=");
    metrics_label(b, v->st->policy.name);
    buf_puts(b, ",policy_version=");
    metrics_label(b, v->st->policy.version);
    buf_puts(b, ",policy_digest=");
    metrics_label(b, v->st->policy.digest);
}

static void cache_labels(const struct metrics_view *v, struct buf *b)
{
    buf_printf(b, "block_size=\"%u\",num_gpu_blocks=\"%u\",enable_prefix_caching=\"True\"",
               v->st->kv_block_tokens, v->st->kv_blocks);
}

/* clang-format off */
const struct metric metrics_table[] = {
{ "engine", "model", .kind = METRIC_WORD, EXTRA(model), .help = "Name of the model." },
{ "engine", "device", .kind = METRIC_WORD, EXTRA(device), .help = "Where it is computed, with what: each stage's device, semicolons between." },
{ "engine", "activations", .kind = METRIC_WORD, EXTRA(activations), .help = "What activations are rounded to: int8, int16, f32." },
{ "engine", "kv_type", .kind = METRIC_WORD, EXTRA(kv_type), .help = "What keys and values are kept in: f16, f32, q8_0." },
{ .name = "info", .type = "gauge", .help = "1; what runs here is in the labels.", .kind = METRIC_INFO, .write = info_labels },
{ .vllm = "cache_config_info", .type = "gauge", .help = "1; how keys and values are kept is in the labels.", .kind = METRIC_INFO, .write = cache_labels },
{ "engine", "max_context", "max_context_tokens", .type = "gauge", .help = "Longest prompt and answer together.", EXTRA(max_context) },
{ "engine", "slots", "slots", .type = "gauge", .help = "Conversations that can be kept.", .kind = METRIC_U32, STATUS(slots) },
{ "engine", "groups", "groups", .type = "gauge", .help = "Groups of slots that are computed in turns.", EXTRA(groups) },
{ "engine", "stages", "stages", .type = "gauge", .help = "Stages that the model's layers are spread over.", EXTRA(stages) },
{ "engine", "padding_safe", .kind = METRIC_BOOL, EXTRA(padding_safe), .help = "Whether starting a request leaves idle histories whole." },
{ "engine", "slot_park", .kind = METRIC_BOOL, EXTRA(yes), .help = "Whether what the solo session holds is kept in a slot." },
{ "engine", "turn_token", .kind = METRIC_WORD, EXTRA(turn_token), .help = "The token that starts a turn; null: the model has none." },
{ "engine", "kv_blocks", "kv_blocks", .type = "gauge", .help = "Blocks of the key-value pool.", .kind = METRIC_U32, STATUS(kv_blocks) },
{ "engine", "kv_blocks_used", "kv_blocks_used", .type = "gauge", .help = "Blocks that hold something.", .kind = METRIC_U32, STATUS(kv_blocks_used) },
{ "engine", "kv_block_tokens", "kv_block_tokens", .type = "gauge", .help = "Tokens of a block.", .kind = METRIC_U32, STATUS(kv_block_tokens) },
{ "engine", "kv_bytes", "kv_bytes", .type = "gauge", .help = "Memory of the key-value pool.", STATUS(kv_bytes) },
{ "engine", "kv_usage", "kv_usage_ratio", "kv_cache_usage_perc", "kv_cache_usage_ratio", "gauge", "Share of the blocks that hold something, 0 to 1. Kept conversations count: full is usual.", .kind = METRIC_REAL, EXTRA(kv_usage) },
{ "engine", "start_time_s", "start_time_seconds", .type = "gauge", .help = "When the server started, seconds since 1970.", .kind = METRIC_REAL, EXTRA(start_time_s) },
{ "engine", "uptime_s", "uptime_seconds", .type = "gauge", .help = "How long it has run.", .kind = METRIC_REAL, EXTRA(uptime_s) },

{ "policy", "name", .kind = METRIC_TEXT, STATUS(policy.name), .help = "Name of the policy in use." },
{ "policy", "version", .kind = METRIC_TEXT, STATUS(policy.version), .help = "Its version." },
{ "policy", "digest", .kind = METRIC_TEXT, STATUS(policy.digest), .help = "SHA-256 of its file; empty for the built-in." },
{ "policy", "generation", "policy_generation", .type = "gauge", .help = "Counts the policies that were put in use, this one included.", STATUS(policy.generation) },
{ "policy", "quarantined", "policy_quarantined", .type = "gauge", .help = "1 when the policy breached its contract too often and the built-in answers until a reload.", .kind = METRIC_BOOL, STATUS(policy.quarantined) },
{ "policy", "quarantines", "policy_quarantines_total", .type = "counter", .help = "How often a policy was put out of use.", STATUS(policy.quarantines) },
{ "policy", "calls", "policy_calls_total", .type = "counter", .help = "Questions asked.", CALL(calls) },
{ "policy", "breaches", "policy_breaches_total", .type = "counter", .help = "Answers that were not legal; the built-in answered instead.", CALL(breaches) },
{ "policy", "slow", "policy_slow_calls_total", .type = "counter", .help = "Calls that took longer than 1 ms.", CALL(slow) },
{ "policy", "by_builtin", "policy_builtin_answers_total", .type = "counter", .help = "Questions that the built-in answered instead.", CALL(by_builtin) },
{ "policy", "call_seconds", "policy_call_seconds", .type = "histogram", .help = "How long calls took.", .kind = METRIC_CALLS, CALL(times) },
{ "policy", NULL, "policy_reloads_total", .type = "counter", .help = "Reloads that were tried.", .kind = METRIC_POLICY, .fixed = "reloads" },
{ "policy", NULL, "policy_reload_failures_total", .type = "counter", .help = "Reloads that failed and changed nothing.", .kind = METRIC_POLICY, .fixed = "reload_failures" },
{ "policy", NULL, .kind = METRIC_WRITE, .write = policy_rest, .help = "What is loaded: path, summary, settings with their origins, shadows with agreements and disagreements by call, the trace, reloads, reload_failures, last_reload_error." },
{ "policy", NULL, "shadow_asked_total", .type = "counter", .help = "Decisions put to a shadow policy, by shadow.", .kind = METRIC_SHADOW, .fixed = "asked", .by = &by_call },
{ "policy", NULL, "shadow_agreed_total", .type = "counter", .help = "Of these, those it would have made the same.", .kind = METRIC_SHADOW, .fixed = "agreed", .by = &by_call },
{ "policy", NULL, "shadow_disagreed_total", .type = "counter", .help = "Of these, those it would have made differently.", .kind = METRIC_SHADOW, .fixed = "disagreed", .by = &by_call },
{ "policy", NULL, "shadow_breaches_total", .type = "counter", .help = "Answers of a shadow that were not legal.", .kind = METRIC_SHADOW, .fixed = "breaches", .by = &by_call },
{ "policy", NULL, "shadow_dropped_total", .type = "counter", .help = "Decisions a shadow was not asked about, because it was behind.", .kind = METRIC_SHADOW, .fixed = "dropped" },
{ "policy", NULL, "trace_lines_total", .type = "counter", .help = "Decisions written to the trace.", .kind = METRIC_TRACE, .fixed = "lines" },
{ "policy", NULL, "trace_dropped_total", .type = "counter", .help = "Decisions not written to the trace, because it was behind.", .kind = METRIC_TRACE, .fixed = "dropped" },
{ "policy", NULL, "trace_failed_total", .type = "counter", .help = "Decisions that could not be written to the trace.", .kind = METRIC_TRACE, .fixed = "failed" },

{ "live", "state", .kind = METRIC_WORD, STATUS(doing), .help = "What the scheduler does." },
{ "live", "queued", "requests_reading", .type = "gauge", .help = "Requests whose body a worker reads or is about to read; they are not counted as started yet.", EXTRA(requests_reading) },
{ "live", "waiting", "requests_waiting", "num_requests_waiting", "requests_deferred", "gauge", "Requests in the queue for a slot.", .kind = METRIC_U32, STATUS(waiting) },
{ "live", "running", "requests_running", "num_requests_running", "requests_processing", "gauge", "Requests that have a slot.", .kind = METRIC_U32, STATUS(running) },
{ "live", "open_requests", "http_requests_open", .type = "gauge", .help = "HTTP requests that are being answered, of all kinds.", EXTRA(open_requests) },
{ "live", "event_listeners", "event_listeners", .type = "gauge", .help = "Streams of GET /events that are open.", EXTRA(listeners) },
{ "live", "prompt_tokens_per_s", "prompt_tokens_per_second", .type = "gauge", .llamacpp = "prompt_tokens_seconds", .help = "Prompt tokens read per second over the last 10 s.", .kind = METRIC_REAL, EXTRA(read_per_s) },
{ "live", "cached_tokens_per_s", "cached_tokens_per_second", .type = "gauge", .help = "Prompt tokens reused per second over the last 10 s.", .kind = METRIC_REAL, EXTRA(cached_per_s) },
{ "live", "generated_tokens_per_s", "generated_tokens_per_second", .type = "gauge", .llamacpp = "predicted_tokens_seconds", .help = "Tokens generated per second over the last 10 s.", .kind = METRIC_REAL, EXTRA(generated_per_s) },
{ "live", "prompt_speed_per_s", "prompt_speed_tokens_per_second", .type = "gauge", .help = "How fast prompts are read while one is, as measured lately; policies reckon with it.", .kind = METRIC_REAL, STATUS(prompt_tokens_per_s) },
{ NULL, NULL, "slots_in_state", .type = "gauge", .help = "Slots by state; busy ones run a request, superseded ones are counted twice.", EXTRA(busy), .fixed = "state=\"busy\"" },
{ NULL, NULL, "slots_in_state", .type = "gauge", EXTRA(blank), .fixed = "state=\"blank\"" },
{ NULL, NULL, "slots_in_state", .type = "gauge", EXTRA(protected), .fixed = "state=\"protected\"" },
{ NULL, NULL, "slots_in_state", .type = "gauge", EXTRA(expired), .fixed = "state=\"expired\"" },
{ NULL, NULL, "slots_in_state", .type = "gauge", EXTRA(superseded), .fixed = "state=\"superseded\"" },
{ "live", NULL, .kind = METRIC_WRITE, .write = places_write_solo, .help = "The solo session: solo_tokens, solo_age_s, solo_value, solo_state." },
{ "live", "slots", .kind = METRIC_WRITE, .write = places_write_slots, .help = "Each slot: state (busy, blank, protected, expired), superseded, request (number of the job it holds most from), client, tokens, turn_tokens, shared_prompt (what that job found when it came), turns, stop_reason, age_s, ttl_s, retention, value." },
{ "live", "cache_events", .kind = METRIC_WRITE, .write = feed_write_last, .help = "The last 96 placement events, as GET /events tells them." },

{ "totals", "steps", "steps_total", .type = "counter", .llamacpp = "n_decode_total", .help = "Windows computed.", STATUS(step) },
{ "totals", "started", "requests_started_total", .type = "counter", .help = "Requests taken in. started = completed + cancelled + failed + running + waiting, at any moment.", STATUS(started) },
{ "totals", "completed", "requests_completed_total", .type = "counter", .help = "Requests that ended by themselves or by a limit of length.", STATUS(completed) },
{ "totals", "cancelled", "requests_cancelled_total", .type = "counter", .help = "Requests whose client left, or that the server ended.", STATUS(cancelled) },
{ "totals", "failed", "requests_failed_total", .type = "counter", .help = "Requests that ended with an error of the server.", STATUS(failed) },
{ "totals", "stopped", "requests_ended_total", "request_success_total", .type = "counter", .help = "Requests by how they ended: stop (the model's own end, or a stop string), length, abort (cancelled), error.", STATUS(tally.stopped), .fixed = "finished_reason=\"stop\"" },
{ "totals", "cut_off", "requests_ended_total", "request_success_total", .type = "counter", .help = "Requests that reached their limit of length.", STATUS(tally.cut_off), .fixed = "finished_reason=\"length\"" },
{ NULL, NULL, "requests_ended_total", "request_success_total", .type = "counter", STATUS(cancelled), .fixed = "finished_reason=\"abort\"" },
{ NULL, NULL, "requests_ended_total", .type = "counter", STATUS(failed), .fixed = "finished_reason=\"error\"" },
{ "totals", "prompt_tokens", "prompt_tokens_total", "prompt_tokens_total", .type = "counter", .help = "Prompt tokens of started requests, cached ones included.", STATUS(prompt_tokens) },
{ NULL, NULL, NULL, "prefix_cache_queries_total", .type = "counter", .help = "Prompt tokens that were looked up among what is kept.", STATUS(prompt_tokens) },
{ "totals", "cached_tokens", "cached_tokens_total", "prefix_cache_hits_total", .type = "counter", .help = "Prompt tokens that were not read again.", STATUS(cached_tokens) },
{ "totals", "read_tokens", "read_tokens_total", NULL, "prompt_tokens_total", "counter", "Prompt tokens that were read; those of a request put back into the queue count each time.", STATUS(tally.read_tokens) },
{ "totals", "generated_tokens", "generated_tokens_total", "generation_tokens_total", "tokens_predicted_total", "counter", "Tokens generated.", STATUS(generated_tokens) },
{ "totals", "drafted_tokens", "drafted_tokens_total", .type = "counter", .help = "Tokens guessed ahead of a single stream.", STATUS(drafted_tokens) },
{ "totals", "accepted_tokens", "accepted_tokens_total", .type = "counter", .help = "Guessed tokens that were right.", STATUS(accepted_tokens) },
{ "totals", "resumed", "prompts_resumed_total", .type = "counter", .help = "Prompts that went on where their conversation's history ended.", STATUS(tally.misses.prompts) },

{ "times", "first_token", "time_to_first_token_seconds", "time_to_first_token_seconds", .type = "histogram", .help = "From a request's arrival at the scheduler to its first token.", .kind = METRIC_TIMES, STATUS(tally.first_token) },
{ "times", "between_tokens", "inter_token_latency_seconds", "inter_token_latency_seconds", .type = "histogram", .help = "From one token of a request to its next.", .kind = METRIC_TIMES, STATUS(tally.between) },
{ "times", "whole", "e2e_request_latency_seconds", "e2e_request_latency_seconds", .type = "histogram", .help = "From a request's arrival to its end, of completed ones.", .kind = METRIC_TIMES, STATUS(tally.whole) },
{ "times", "queue", "request_queue_time_seconds", "request_queue_time_seconds", .type = "histogram", .help = "From a request's arrival to its place.", .kind = METRIC_TIMES, STATUS(tally.queued) },

{ "misses", "prompts", "misses_total", .type = "counter", .help = "Prompts that had to be read: first_turn; slot_taken, replaced_on_main, evicted_memory (its history, or a longer state of it, was here and is lost); client_changed_history (the conversation is known, the prompt tells it differently); restart (it has answers in it and nothing of it is known).", STATUS(tally.misses.prompts), .by = &by_reason },
{ "misses", "tokens", "miss_tokens_total", .type = "counter", .help = "Tokens that were read for it: of the three losses those that had been here, otherwise all that were not cached.", STATUS(tally.misses.tokens), .by = &by_reason },

{ "placements", "events", "placements_total", .type = "counter", .help = "Placement events.", STATUS(tally.placements), .by = &by_kind },
{ "placements", "tokens", "placement_tokens_total", .type = "counter", .help = "Tokens of placement events: overwrite and evict are what was lost.", STATUS(tally.placement_tokens), .by = &by_kind },

{ "history", NULL, .kind = METRIC_WRITE, .write = history_write, .help = "One sample a second, the last 60, the oldest first: time, running, waiting, prompt_tokens_per_s, cached_tokens_per_s, generated_tokens_per_s, kv_usage." },
};
/* clang-format on */
const size_t metrics_n = sizeof metrics_table / sizeof *metrics_table;
