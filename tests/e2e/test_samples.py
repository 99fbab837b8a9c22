"""n: several answers to one prompt. Each is what a request of its own with its seed would get; the prompt is read once."""
import pytest

from apikit import chat, error_of, eventually, get, metrics, post, stream, streamed_text, text_of, user

TEXT = "Every harbour has a bell, and every bell has rung for somebody. " * 8
SAMPLING = {"temperature": 1.2, "top_p": 1, "seed": 7, "max_tokens": 30}
ASK = {"/v1/chat/completions": {"messages": user(TEXT)}, "/v1/completions": {"prompt": TEXT}}


def ask(server, path, **fields):
    reply = post(server, path, {**ASK[path], **SAMPLING, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def of(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


def singles(server, path, n, **fields):
    """n requests one after another, read cold: (text, finish reason, tokens) of each."""
    replies = [ask(server, path, cache_prompt=False, **{**fields, "seed": 7 + i}) for i in range(n)]
    return [(text_of(r), r["choices"][0]["finish_reason"], r["usage"]["completion_tokens"]) for r in replies]


@pytest.fixture(scope="module")
def settings():
    return {"engine.slots": 8, "engine.rows": 8, "engine.threads": 1}


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("more", [{}, {"engine.rows": 2}, {"engine.slots": 2, "engine.rows": 2},
                                  {"engine.stages": 2, "engine.groups": 2, "engine.threads": 2}])
def test_each_answer_is_what_its_seed_gives_and_the_prompt_is_read_once(start_server, settings, path, more):
    server = start_server({**settings, **more})
    for fields in ({}, {"cache_prompt": False}, {"logprobs": True if "chat" in path else 1}):
        wanted = singles(server, path, 5, **{k: v for k, v in fields.items() if k != "cache_prompt"})
        assert len(set(wanted)) > 1, "the seeds make no difference"
        for slot in range(more.get("engine.slots", 8)):
            post(server, f"/slots/{slot}?action=erase", {})
        post(server, "/slots/main?action=erase", {})
        reply = ask(server, path, n=5, **fields)
        assert [(of(c), c["finish_reason"]) for c in reply["choices"]] == [(text, why) for text, why, _ in wanted]
        assert [c["index"] for c in reply["choices"]] == list(range(5)) and reply["seed"] == 7
        usage, prompt = reply["usage"], reply["usage"]["prompt_tokens"]
        assert usage["completion_tokens"] == sum(n for _, _, n in wanted) and usage["total_tokens"] == prompt + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == reply["timings"]["cache_n"] == 0
        # Each further answer reads the last token too, whose logits it starts with: no part of the prompt is counted twice.
        assert prompt > 90 and reply["timings"]["prompt_n"] == prompt


def test_none_runs_on_main(start_server, settings):
    server = start_server(settings)
    ask(server, "/v1/completions", n=3, max_tokens=60)
    kinds = {(e["kind"], e["slot"]) for e in get(server, "/events?format=json").json()["events"]}
    assert not any(slot == "main" for _, slot in kinds), kinds
    assert metrics(server)["totals"]["started"] == 3


def test_what_was_kept_is_reused_and_counted_once(start_server, settings):
    server = start_server(settings)
    first = ask(server, "/v1/completions", max_tokens=1)
    prompt = first["usage"]["prompt_tokens"]
    reply = ask(server, "/v1/completions", n=4)
    assert reply["usage"]["prompt_tokens"] == prompt
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1 and reply["timings"]["prompt_n"] == 1
    again = ask(server, "/v1/completions", n=4, cache_prompt=False)
    assert [of(c) for c in again["choices"]] == [of(c) for c in reply["choices"]]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", ASK)
def test_a_stream_names_the_answer_that_grows(start_server, settings, path):
    server = start_server(settings)
    whole = ask(server, path, n=3)
    chunks = stream(server, path, **ASK[path], **SAMPLING, n=3, stream_options={"include_usage": True})
    assert [streamed_text(chunks, i) for i in range(3)] == [of(c) for c in whole["choices"]]
    ends = {c["index"]: c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert ends == {c["index"]: c["finish_reason"] for c in whole["choices"]}
    usage = chunks[-1]["usage"]
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"] and usage["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_several_prompts_have_n_answers_each(start_server, settings):
    server = start_server(settings)
    prompts = [TEXT, "Something else"]
    reply = ask(server, "/v1/completions", prompt=prompts, n=2, best_of=2)
    alone = [of(c) for prompt in prompts for c in ask(server, "/v1/completions", prompt=prompt, n=2)["choices"]]
    assert [of(c) for c in reply["choices"]] == alone
    counts = [ask(server, "/v1/completions", prompt=p, max_tokens=1)["usage"]["prompt_tokens"] for p in prompts]
    assert reply["usage"]["prompt_tokens"] == sum(counts)


def test_a_client_that_leaves_ends_all_of_them(start_server, settings):
    server = start_server(settings)
    with post(server, "/v1/completions", {"prompt": "x", "n": 4, "stream": True, "ignore_eos": True}, stream=True) as reply:
        parts = reply.iter_content(None)
        next(parts)
        eventually(lambda: metrics(server)["live"]["running"] == 4)
    eventually(lambda: metrics(server)["live"]["running"] == 0)
    totals = metrics(server)["totals"]
    assert totals["cancelled"] == totals["started"] == 4
    assert chat(server, "Hi", max_tokens=2)


def test_more_than_the_queue_takes_is_refused_as_a_whole(start_server, settings):
    server = start_server({**settings, "queue.max": 4})
    assert error_of(post(server, "/v1/completions", {"prompt": "x", "n": 60, "max_tokens": 2}), 429)["code"]
    eventually(lambda: metrics(server)["live"]["running"] + metrics(server)["live"]["waiting"] == 0)
    assert ask(server, "/v1/completions", n=2)["choices"][1]
