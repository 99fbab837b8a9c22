"""/metrics: what its JSON holds, that the Prometheus text is what a scraper takes, and that both tell the same."""
import re
import statistics
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from apikit import balanced, chat, eventually, get, idle, metrics, post, stream

SECTIONS = {
    "engine": {"model", "max_context", "slots", "groups", "stages", "padding_safe", "slot_park", "turn_token", "device",
               "kv_blocks", "kv_blocks_used", "kv_block_tokens", "kv_bytes", "kv_usage"},
    "policy": {"name", "version", "digest", "generation", "calls", "call_seconds", "breaches", "quarantined"},
    "live": {"state", "queued", "waiting", "running", "prompt_tokens_per_s", "generated_tokens_per_s", "slots", "solo_tokens",
             "solo_age_s", "solo_value", "solo_state", "cache_events"},
    "totals": {"started", "completed", "cancelled", "failed", "prompt_tokens", "cached_tokens", "generated_tokens"},
    "misses": {"first_turn", "slot_taken", "replaced_on_main", "client_changed_history", "evicted_memory", "restart"},
    "times": {"first_token", "between_tokens", "whole", "queue"},
}
VLLM = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "prefix_cache_queries",
        "prefix_cache_hits", "prompt_tokens", "generation_tokens", "request_success", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"}
LLAMACPP = {"prompt_tokens", "tokens_predicted", "requests_processing", "requests_deferred"}
# Names of families as the parser has them (a counter's without _total) -> where the same figure is in the JSON.
SAME = {
    "berth_requests_started": ("totals", "started"), "berth_requests_completed": ("totals", "completed"),
    "berth_requests_cancelled": ("totals", "cancelled"), "berth_steps": ("totals", "steps"),
    "berth_prompt_tokens": ("totals", "prompt_tokens"), "berth_cached_tokens": ("totals", "cached_tokens"),
    "berth_read_tokens": ("totals", "read_tokens"), "berth_generated_tokens": ("totals", "generated_tokens"),
    "vllm:prompt_tokens": ("totals", "prompt_tokens"), "vllm:prefix_cache_hits": ("totals", "cached_tokens"),
    "vllm:generation_tokens": ("totals", "generated_tokens"), "vllm:num_requests_running": ("live", "running"),
    "llamacpp:prompt_tokens": ("totals", "read_tokens"), "llamacpp:tokens_predicted": ("totals", "generated_tokens"),
    "llamacpp:requests_deferred": ("live", "waiting"), "berth_slots": ("engine", "slots"),
    "berth_policy_generation": ("policy", "generation"), "berth_kv_blocks_used": ("engine", "kv_blocks_used"),
}


def scrape(server):
    """The families of the Prometheus text by name, as the client library's parser reads them."""
    text = get(server, "/metrics?format=prometheus").text
    families = list(text_string_to_metric_families(text))
    assert len({f.name for f in families}) == len(families), "a family is torn apart"
    return {f.name: f for f in families}, text


@pytest.fixture
def served(server):
    """The shared server after some requests of each kind, idle again."""
    for k in range(2):
        chat(server, f"What do you say, {k}?", max_tokens=5)
    stream(server, max_tokens=6)
    post(server, "/v1/completions", {"prompt": [[9, 9, 9], [8, 8, 8]], "max_tokens": 3})
    eventually(lambda: idle(server))
    return server


def test_the_json_holds_what_is_promised(served):
    m = metrics(served)
    for section, keys in SECTIONS.items():
        assert keys <= set(m[section]), (section, keys - set(m[section]))
    slot = m["live"]["slots"][0]
    assert {"id", "state", "superseded", "request", "client", "tokens", "turn_tokens", "shared_prompt", "value", "retention",
            "age_s", "ttl_s", "turns", "stop_reason"} <= set(slot)
    assert len(m["live"]["slots"]) == m["engine"]["slots"] == 64 and m["engine"]["turn_token"] == "<|im_start|>"
    assert (m["engine"]["activations"], m["engine"]["kv_type"]) == ("int8", "f16")
    assert m["engine"]["model"] and "cpu" in m["engine"]["device"] and m["engine"]["padding_safe"] is True
    assert 0 < len(m["live"]["cache_events"]) <= 96
    assert {"id", "time", "kind", "slot", "source", "tokens", "reason", "job", "request", "client", "generation"} <= \
        set(m["live"]["cache_events"][-1])
    assert all(set(reason) == {"prompts", "tokens"} for reason in m["misses"].values())


def test_the_counts_add_up(served):
    m = metrics(served)
    t, times = m["totals"], m["times"]
    assert balanced(m) and t["completed"] == t["stopped"] + t["cut_off"]
    assert times["whole"]["count"] == t["completed"] and times["queue"]["count"] == t["started"]
    # Every generated token has a time: the first since its request came, all others since the one before.
    assert times["first_token"]["count"] + times["between_tokens"]["count"] == t["generated_tokens"]
    for name, h in times.items():
        assert h["count"] == sum(n for _, n in h["buckets"]), name
        edges = [edge for edge, _ in h["buckets"][:-1]]
        assert edges == sorted(edges) and h["buckets"][-1][0] is None and (h["sum_s"] > 0) == (h["count"] > 0)
    assert t["read_tokens"] == t["prompt_tokens"] - t["cached_tokens"]
    calls = m["policy"]["call_seconds"]
    assert all(calls[call]["count"] <= m["policy"]["calls"][call] for call in calls)


def test_a_scraper_reads_all_of_the_text(served):
    families, text = scrape(served)
    for prefix, names in (("vllm:", VLLM), ("llamacpp:", LLAMACPP)):
        assert {prefix + name for name in names} <= set(families)
    for name, family in families.items():
        assert family.type in ("counter", "gauge", "histogram") and family.documentation, name
        seen = [(s.name, tuple(sorted(s.labels.items()))) for s in family.samples]
        assert len(seen) == len(set(seen)), f"{name} has a sample twice"
        for sample in family.samples:
            assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", sample.name)
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) for label in sample.labels)
            assert name.startswith("vllm:") == ("model_name" in sample.labels)
    # As the text format wants it: HELP and TYPE once, before the first sample, and nothing of another family between.
    current, seen = None, set()
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            assert what in ("HELP", "TYPE") and rest
            if what == "HELP":
                assert name not in seen
                seen.add(name)
                current = name
            assert name == current
        else:
            name = re.match(r"[^{ ]+", line).group(0)
            assert name == current or name in (current + "_bucket", current + "_sum", current + "_count"), line
    assert text.endswith("\n") and "\n\n" not in text


def test_histograms_are_cumulative_and_whole(served):
    families, _ = scrape(served)
    histograms = [f for f in families.values() if f.type == "histogram"]
    assert len(histograms) >= 9
    for family in histograms:
        rows = {}
        for s in family.samples:
            key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            rows.setdefault(key, {"le": []})
            if s.name.endswith("_bucket"):
                rows[key]["le"].append((float(s.labels["le"]), s.value))
            else:
                rows[key][s.name.removeprefix(family.name)] = s.value
        for row in rows.values():
            edges, counts = zip(*row["le"])
            assert list(edges) == sorted(set(edges)) and edges[-1] == float("inf")
            assert list(counts) == sorted(counts) and counts[-1] == row["_count"] and row["_sum"] >= 0


def test_both_forms_tell_the_same(served):
    families, _ = scrape(served)
    m = metrics(served)
    for name, (section, key) in SAME.items():
        assert [s.value for s in families[name].samples] == [m[section][key]], name
    for key, prompts in ((s.labels["reason"], s.value) for s in families["berth_misses"].samples):
        assert m["misses"][key]["prompts"] == prompts
    assert {s.labels["reason"] for s in families["berth_misses"].samples} == set(m["misses"])
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended == {"stop": m["totals"]["stopped"], "length": m["totals"]["cut_off"], "abort": m["totals"]["cancelled"]}
    first = next(s.value for s in families["vllm:time_to_first_token_seconds"].samples if s.name.endswith("_count"))
    assert first == m["times"]["first_token"]["count"]
    states = {s.labels["state"]: s.value for s in families["berth_slots_in_state"].samples}
    assert sum(n for state, n in states.items() if state != "superseded") == m["engine"]["slots"]


def test_a_label_can_hold_anything(start_server):
    server = start_server({"model.name": 'a "quoted" \\ name'})
    families, _ = scrape(server)
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == 'a "quoted" \\ name'
    assert metrics(server)["engine"]["model"] == 'a "quoted" \\ name'


def test_every_figure_is_documented(served, root, berth):
    assert berth("--help-metrics", "--markdown").stdout in (root / "conf" / "README.md").read_text(), "run tools/update-conf-readme"
    plain = berth("--help-metrics").stdout
    guide = (root / "conf" / "README.md").read_text()
    families, text = scrape(served)
    page = get(served, "/").text
    names = set(re.findall(r"^# HELP (\S+)", text, re.M))
    assert len(names) > 70
    for name in names:
        assert f"`{name}`" in guide, f"{name} is not in conf/README.md (tools/update-conf-readme writes it)"
        assert name in plain
        assert name in page or name == "vllm:prefix_cache_queries_total" or name == "vllm:cache_config_info", name
    assert set(re.findall(r"`((?:berth_|vllm:|llamacpp:)\w+)`", guide)) <= names


def test_a_sample_a_second(start_server):
    server = start_server()
    before = time.time()
    chat(server, "Count", max_tokens=40)
    history = eventually(lambda: (h := metrics(server)["history"])[3:] and h)
    assert len(history) <= 60 and [s["time"] for s in history] == sorted(s["time"] for s in history)
    assert all({"running", "waiting", "prompt_tokens_per_s", "generated_tokens_per_s", "kv_usage"} <= set(s) for s in history)
    assert abs(history[0]["time"] - before) < 5
    gaps = [b["time"] - a["time"] for a, b in zip(history, history[1:])]
    generated = sum(s["generated_tokens_per_s"] * g for s, g in zip(history[1:], gaps))
    generated += history[0]["generated_tokens_per_s"]  # its second began before the first sample told
    assert 30 <= generated <= 60, history
    assert metrics(server)["live"]["generated_tokens_per_s"] > 0


def test_it_answers_at_once_with_a_thousand_slots(start_server, time_scale):
    server = start_server({"engine.slots": 1024, "engine.threads": 1})

    def on_cpu():
        with open(f"/proc/{server.pid}/task/{server.pid}/schedstat") as f:
            return int(f.read().split()[0]) / 1e9

    for path in ("/metrics", "/metrics?format=prometheus", "/slots", "/events?format=json"):
        took = []
        for _ in range(20):
            begin = on_cpu()
            assert get(server, path).status_code == 200
            took.append(on_cpu() - begin)
        # Time of the event thread alone: how busy the machine is does not count.
        assert statistics.median(took) < 0.005 * time_scale, (path, took)


def test_who_may_watch(start_server, tmp_path):
    import hashlib
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}{rest}\n"
                            for name, rest in (("ann", ""), ("root", ":admin"))))
    server = start_server({"server.keys_file": keys})
    for path in ("/metrics", "/slots", "/events?format=json", "/placements/1", "/events"):
        for key, status in ((None, 401), ("ann", 403)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assert get(server, path, headers=headers).status_code == status, (path, key)
        if path != "/events":
            assert get(server, path, headers={"Authorization": "Bearer root"}).status_code in (200, 404)


def test_shadows_are_counted_under_both_names(start_server, berth_bin):
    lru = berth_bin.parent / "plugins" / "lru.so"
    assert lru.is_file()
    server = start_server({"policy.shadow": f'[{{"path": "{lru}"}}]'})
    for k in range(3):
        chat(server, f"Something else, {k}", max_tokens=2)
    shadow = eventually(lambda: (s := metrics(server)["policy"]["shadows"][0])["asked"]["park_destination"] == 2 and s)
    families, _ = scrape(server)
    for name in ("asked", "agreed", "disagreed", "breaches"):
        told = {s.labels["call"]: s.value for s in families[f"berth_shadow_{name}"].samples}
        assert set(told) == set(shadow[name])
        assert told["park_destination"] == shadow[name]["park_destination"], name
    (dropped,) = families["berth_shadow_dropped"].samples
    assert dropped.labels == {"shadow": "0", "policy": "lru"} and dropped.value == 0
