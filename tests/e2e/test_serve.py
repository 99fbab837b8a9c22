"""`berth serve`: the start, and every way it can fail: one line that says what to do, exit code 1."""
import socket

import pytest

from apikit import chat, get


def fails(server, *words):
    assert server.wait() == 1
    lines = [line for line in server.log.splitlines() if line.startswith("berth: ")]
    assert len(lines) == 1, server.log
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


def test_the_ready_line_says_what_runs(server):
    assert set(server.ready) >= {"address", "model", "context", "kv_tokens", "kv_mb", "device", "threads", "seconds"}
    assert server.ready["context"] == "16384" and "cpu" in server.ready["device"] and server.ready["threads"] == "1"


def test_the_real_model_is_ready_within_a_second_or_so(real_server, time_scale):
    print(f"\nready after {real_server.ready['seconds']} s")
    assert float(real_server.ready["seconds"]) < 3 * time_scale


def test_a_port_in_use(start_server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fails(start_server({"server.listen": f"127.0.0.1:{port}"}, wait=False), str(port), "in use")


def test_a_model_that_is_not_there(start_server, tmp_path):
    fails(start_server(model=tmp_path / "no.gguf", wait=False), "no.gguf")


def test_no_model_at_all(start_server, tmp_path):
    fails(start_server(model=None, cwd=tmp_path, wait=False), "model.path")


def test_a_file_that_is_no_model(start_server, tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("this is not a model, whatever its name says" * 100)
    fails(start_server(model=path, wait=False), "text.gguf")


def test_a_truncated_model(start_server, synthetic_model, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(synthetic_model.read_bytes()[:-1000])
    fails(start_server(model=path, wait=False), "cut.gguf")


def test_a_pool_that_cannot_fit(start_server):
    line = fails(start_server({"engine.kv_tokens": 60_000_000}, wait=False), "60000000", "available", "--set")
    assert "at most" in line


def test_a_context_that_cannot_fit(start_server):
    fails(start_server({"model.context": 16_000_000, "engine.kv_type": "f32"}, wait=False), "16000000", "available", "--set")


def test_a_pool_below_the_context(start_server):
    fails(start_server({"engine.kv_tokens": 1024, "model.context": 4096}, wait=False), "1024", "4096", "model.context=1024")


def test_the_context_follows_the_pool(start_server):
    assert start_server({"engine.kv_tokens": 1024}).ready["context"] == "1024"


def test_a_context_beyond_training_is_allowed_and_said(start_server):
    server = start_server({"model.context": 20000})
    assert server.ready["context"] == "20000" and "longer than the model was trained for" in server.log


def test_a_template_of_ones_own(start_server, tmp_path):
    path = tmp_path / "plain.jinja"
    path.write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    server = start_server({"model.chat_template": path})
    assert get(server, "/props").json()["chat_template"] == path.read_text()
    assert chat(server)["usage"]["prompt_tokens"] > 0
    path.write_text("line one\n{% for %}")
    fails(start_server({"model.chat_template": path}, wait=False), "plain.jinja", "line 2", "--chatml")


def test_the_name_is_a_setting(start_server):
    server = start_server({"model.name": "harbour"})
    assert get(server, "/v1/models").json()["data"][0]["id"] == "harbour" and chat(server)["model"] == "harbour"


@pytest.mark.parametrize("settings", [{"engine.isa": "portable"}, {"engine.activations": "f32", "engine.kv_type": "f32"},
                                      {"engine.slots": 1}, {"engine.rows": 1}, {"engine.slots": 2, "engine.rows": 200}])
def test_it_serves_with_other_settings(start_server, settings):
    assert chat(start_server(settings))["usage"]["completion_tokens"] == 24
