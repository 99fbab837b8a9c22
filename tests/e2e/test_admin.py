"""Health, readiness, models, metrics, the help page."""
import hashlib
import re

import openai
import pytest

from apikit import balanced, chat, error_of, eventually, get, idle, metrics, post


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
        assert re.search(r"^berth_generated_tokens_total \d+$", reply.text, re.M)
    assert get(server, "/metrics").headers["Content-Type"].startswith("application/json")


def test_the_help_page_shows_how_to_ask(server):
    page = get(server, "/")
    assert page.headers["Content-Type"].startswith("text/html") and "curl" in page.text
    for path in re.findall(r'href="([^"]+)"', page.text):
        assert get(server, path).status_code == 200, path
    for dialect in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        assert f"<code>POST {dialect}</code>" in page.text, dialect


def test_the_help_page_and_the_docs_have_every_endpoint(server, root):
    """The routes are read from the source: another one must be told of."""
    routes = re.findall(r'{ "(GET|POST)", "(/[^"]*)", HTTP_', (root / "core" / "api" / "api.c").read_text() +
                        (root / "core" / "cmd_serve_admin.c").read_text())
    assert len(routes) > 20
    page, docs = get(server, "/").text, (root / "docs" / "api.md").read_text()
    for method, path in routes:
        for text in page, docs:
            # Models are told of in one line, with the path they begin with.
            assert path.replace("/models/*", "/models").replace("/*", "/") in text, (method, path)


def test_every_curl_line_of_the_help_page_can_be_pasted(server):
    blocks = re.findall(r"<pre>(.*?)</pre>", get(server, "/").text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    assert len(lines) == 5 and all(line.startswith("curl ") for line in lines)
    for line in lines:
        bare = re.sub(r"'[^']*'", "", line).replace(" | python3 -m json.tool", "")
        assert not set("?&*|;<>$`") & set(bare), line


def test_the_help_page_names_the_host_it_was_asked_by(server):
    page = get(server, "/").text
    assert "$HOST" not in page and page.count(server.url + "/v1") == 2 and page.count(server.url) == 6
    assert "http://localhost:9/v1" in get(server, "/", headers={"Host": "localhost:9"}).text


def test_a_host_that_could_be_markup_or_a_command_is_not_shown(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ann:" + hashlib.sha256(b"k").hexdigest() + "\n")
    server = start_server({"server.keys_file": keys})  # with keys any Host is answered
    for host in ("<script>alert(1)</script>", "a;reboot", "`x`", "$(x)", "x y", "a'b", 'a"b', "a&amp;b"):
        page = get(server, "/", headers={"Host": host}).text
        assert host not in page and "http://localhost/v1/chat" in page
    assert "http://berth.example:80/v1/chat" in get(server, "/", headers={"Host": "berth.example:80"}).text


def test_a_model_is_found_by_its_name(server, client):
    listed = client.models.list().data[0]
    assert client.models.retrieve(listed.id) == listed
    for path in ("/v1/models/berth", f"/v1/models/{listed.id}", f"/models/{listed.id}", f"/v1/models/%{ord(listed.id[0]):02x}{listed.id[1:]}"):
        assert get(server, path).json() == get(server, "/v1/models").json()["data"][0]
    for name in ("gpt-4", "a/b", listed.id + "/x", listed.id + "%00", "x" * 400):
        error = error_of(get(server, f"/v1/models/{name}"), 404)
        assert error["code"] == "model_not_found" and listed.id in error["message"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    assert error_of(get(server, "/v1/models/"), 404)["code"] is None
    assert error_of(post(server, f"/v1/models/{listed.id}", {}), 405)


def test_an_unknown_format_of_the_metrics_is_refused(server):
    for value in ("xml", "", "Prometheus"):
        assert "prometheus" in error_of(get(server, f"/metrics?format={value}"))["message"]
    assert get(server, "/metrics?format=json").json()["totals"]


def test_numbers_are_written_as_people_write_them(start_server):
    server = start_server({"sampling.temperature": 0.7, "sampling.top_p": 0.9, "sampling.min_p": 0.05})
    text = get(server, "/props").text
    assert '"temperature":0.7,' in text and '"top_p":0.9,' in text and '"min_p":0.05,' in text
    for path in ("/props", "/ready", "/metrics", "/slots", "/v1/models"):
        assert not re.search(r"\d\.\d{16}", get(server, path).text), path
