"""Health, readiness, models, metrics, the help page."""
import re

from apikit import balanced, chat, eventually, get, idle, metrics


def test_health_live_and_ready(server):
    assert get(server, "/health").json() == {"status": "ok"}
    assert get(server, "/live").json() == {"status": "ok"}
    ready = get(server, "/ready")
    assert ready.status_code == 200 and ready.json()["status"] == "ready" and ready.json()["doing"]


def test_models_tell_size_and_context(server, client):
    model = get(server, "/v1/models").json()["data"][0]
    assert get(server, "/models").json() == get(server, "/v1/models").json()
    assert model["object"] == "model" and model["max_model_len"] == model["meta"]["n_ctx"] == 16384
    assert model["meta"]["n_vocab"] == 700 and model["meta"]["n_params"] > 100_000 and model["meta"]["size"] > 100_000
    assert client.models.list().data[0].id == model["id"]


def test_metrics_count_what_happened(server):
    eventually(lambda: idle(server))
    before = metrics(server)["totals"]
    reply = chat(server, "Count me", max_tokens=9, cache_prompt=False)
    after = metrics(server)
    assert balanced(after)
    grown = {k: after["totals"][k] - before[k] for k in before}
    assert grown["started"] == grown["completed"] == 1 and grown["generated_tokens"] == 9
    assert grown["prompt_tokens"] == reply["usage"]["prompt_tokens"] and grown["cached_tokens"] == 0


def test_prometheus_gets_text(server):
    for reply in (get(server, "/metrics?format=prometheus"), get(server, "/metrics", headers={"Accept": "text/plain;version=0.0.4"})):
        assert reply.headers["Content-Type"].startswith("text/plain")
        names = re.findall(r"^(berth_\w+) \d+$", reply.text, re.M)
        assert "berth_generated_tokens_total" in names and len(names) == len(set(names))
        for name in names:
            assert f"# TYPE {name} " in reply.text and f"# HELP {name} " in reply.text
    assert get(server, "/metrics").headers["Content-Type"].startswith("application/json")


def test_the_help_page_shows_how_to_ask(server):
    page = get(server, "/")
    assert page.headers["Content-Type"].startswith("text/html") and "curl" in page.text
    for path in re.findall(r'href="([^"]+)"', page.text):
        assert get(server, path).status_code == 200, path
