"""`berth serve`: the start, and every way it can fail: one line that says what to do, exit code 1."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import gguf
import pytest

from apikit import chat, eventually, get, post, user


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


def fails_before_the_model(berth, model, settings, part):
    """The model is none: whoever looks at it before the cheap mistake says so instead."""
    args = [a for key, value in settings.items() for a in ("--set", f"{key}={value}")]
    result = berth("serve", "--set", f"model.path={model}", *args)
    errors = [line for line in result.stderr.splitlines() if line.startswith("berth: ")]
    assert result.returncode == 1 and len(errors) == 1, result.stderr
    assert part in errors[0] and str(model) not in errors[0], errors[0]


def test_cheap_mistakes_are_found_before_the_model_is_loaded(berth, tmp_path):
    model = tmp_path / "cut.gguf"
    model.write_text("no model")
    keys = tmp_path / "keys"
    keys.write_text("what is this\n")
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for settings, part in [
            ({"server.listen": address}, f"{address}: address in use"),
            ({"server.listen": "foo"}, "foo: not an address"),
            ({"server.listen": "[]"}, "server.listen: no address"),
            ({"server.listen": "0.0.0.0:0"}, "no keys are set"),
            ({"server.listen": f"127.0.0.1:0,unix:{tmp_path}/s,unix:{tmp_path}/s"}, "listed twice"),
            ({"server.listen": f"unix:{tmp_path}/none/s"}, "the folder of the socket does not exist"),
            ({"server.listen": f"unix:{tmp_path}/file"}, "a file that is no socket"),
            ({"server.keys_file": keys}, f"server.keys_file: {keys} line 1"),
            ({"model.chat_template": tmp_path}, "is a directory"),
            ({"engine.kv_tokens": 1024, "model.context": 4096}, "engine.kv_tokens: 1024 is below"),
        ]:
            fails_before_the_model(berth, model, settings, part)


def test_hangups_and_user_signals_do_not_end_it(start_server):
    server = start_server()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        server.signal(number)
    server.wait_log("reload state=done")
    assert chat(server)["usage"]["completion_tokens"] == 24


def test_a_second_signal_ends_it_at_once_and_leaves_no_socket_file(berth_bin, start_server, tmp_path):
    path = tmp_path / "s.sock"
    server = start_server({"server.listen": f"127.0.0.1:0,unix:{path}", "server.drain_s": 100})
    assert path.is_socket()
    reply = post(server, "/v1/chat/completions", {"messages": user("x"), "stream": True, "ignore_eos": True,
                                                  "logprobs": True, "top_logprobs": 32}, stream=True)
    server.signal(signal.SIGTERM)
    server.wait_log("drain .*started")
    server.signal(signal.SIGTERM)
    assert server.wait() == 1
    assert not path.exists() and not path.is_symlink()
    reply.close()


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
    line = fails(start_server({"engine.kv_tokens": 60_000_000}, wait=False), "60000000", "available", "--set model.context=N --set engine.kv_tokens=N")
    assert "at most" in line


def test_a_context_that_cannot_fit(start_server):
    fails(start_server({"model.context": 16_000_000, "engine.kv_type": "f32"}, wait=False), "16000000", "available", "--set")


def test_keys_and_values_that_cannot_be_kept_in_q8(start_server, make_model):
    model = make_model("--embd", "96", "--heads", "6", "--layers", "1")
    fails(start_server({"engine.kv_type": "q8_0"}, model=model, wait=False), "engine.kv_type q8_0", "head dimension is 16")


def test_a_pool_below_the_context(start_server):
    fails(start_server({"engine.kv_tokens": 1024, "model.context": 4096}, wait=False), "1024", "4096", "model.context=1024")


def test_the_context_follows_the_pool(start_server):
    assert start_server({"engine.kv_tokens": 1024}).ready["context"] == "1024"


def test_a_context_beyond_training_is_allowed_and_said(start_server):
    server = start_server({"model.context": 20000})
    assert server.ready["context"] == "20000" and "longer than the model was trained for" in server.log


@pytest.mark.parametrize("arch, applied", [("llama", False), ("qwen2", False), ("qwen3", False), ("gemma3", True)])
def test_a_window_that_is_not_applied_is_said(berth, start_server, make_model, arch, applied):
    """In a longer context than it alone, and where the model has layers with one not at all."""
    model = make_model("--arch", arch, "--window", "512", "--context", "1024", "--layers", "1")
    told = "sliding window is not applied"
    assert [told in start_server({"model.context": n}, model=model).log for n in (512, 513)] == [False, not applied]
    info = json.loads(berth("model", "info", "--json", model).stdout)
    assert info["window"] == 512 and ("warning" in info) is not applied
    assert ("the sliding window of 512 is not applied" in berth("model", "info", model).stdout) is not applied


def test_a_model_trained_for_next_to_nothing_has_the_least_context(start_server, make_model):
    server = start_server(model=make_model("--context", 1, "--layers", 1))
    assert server.ready["context"] == "16" and "trained=1 " in server.log


def test_stages_share_the_layers_and_change_no_answer(start_server):
    body = {"messages": user("one answer"), "temperature": 0, "max_tokens": 32, "ignore_eos": True}
    answers = []
    for stages in (1, 3):
        server = start_server({"engine.stages": stages, "engine.threads": 2})
        assert server.ready["stages"] == str(stages)
        assert server.ready["groups"] == {1: "1", 3: "2"}[stages]  # 64 slots are not divided by 3
        layers = re.findall(r"stage number=\d+ layers=(\d+)-(\d+) ", server.log)
        assert len(layers) == (stages if stages > 1 else 0)
        if stages > 1:
            assert [int(first) for first, _ in layers] == [0] + [int(last) + 1 for _, last in layers[:-1]]
            assert layers[-1][1] == "3"
        answers.append(post(server, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"])
    assert answers[0] == answers[1] != ""


def test_more_stages_than_layers(start_server):
    fails(start_server({"engine.stages": 5}, wait=False), "engine.stages: 5 stages", "4 layers", "1 to 4")


def test_a_template_of_ones_own(start_server, tmp_path):
    path = tmp_path / "plain.jinja"
    path.write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    server = start_server({"model.chat_template": path})
    assert get(server, "/props").json()["chat_template"] == path.read_text()
    assert chat(server)["usage"]["prompt_tokens"] > 0
    path.write_text("line one\n{% for %}")
    fails(start_server({"model.chat_template": path}, wait=False), "plain.jinja", "line 2", "--chatml")
    path.write_bytes(b"line one\0line two")
    fails(start_server({"model.chat_template": path}, wait=False), "plain.jinja", "not valid UTF-8")


def test_a_model_that_computes_no_numbers_says_so(start_server, synthetic_model, tmp_path):
    path = tmp_path / "damaged.gguf"
    shutil.copy(synthetic_model, path)
    norm = next(t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "output_norm.weight")
    norm.data[:] = float("nan")
    norm.data.flush()
    server = start_server(model=path)
    for fields in [{}, {"logprobs": 2}, {"frequency_penalty": 1, "temperature": 1}]:
        reply = post(server, "/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0, **fields})
        assert reply.status_code == 500 and "computes no numbers" in reply.json()["error"]["message"], reply.text


def test_a_model_file_of_any_name(start_server, synthetic_model, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / os.fsdecode(b"caf\xe9.gguf")).symlink_to(synthetic_model)
    server = start_server(model=None, cwd=tmp_path)
    assert get(server, "/v1/models").json()["data"][0]["id"] == "caf?"
    assert get(server, "/props").json()["model_path"] == "models/caf?.gguf"
    assert chat(server, max_tokens=1)["model"] == "caf?"
    assert 'model="caf?"' in get(server, "/metrics?format=prometheus").content.decode()


def test_the_name_is_a_setting(start_server):
    server = start_server({"model.name": "harbour"})
    assert get(server, "/v1/models").json()["data"][0]["id"] == "harbour" and chat(server)["model"] == "harbour"


@pytest.mark.parametrize("settings", [{"engine.isa": "portable"}, {"engine.activations": "f32", "engine.kv_type": "f32"},
                                      {"engine.kv_type": "q8_0", "engine.activations": "int16"},
                                      {"engine.slots": 1}, {"engine.rows": 1}, {"engine.slots": 2, "engine.rows": 200}])
def test_it_serves_with_other_settings(start_server, settings):
    server = start_server(settings)
    assert chat(server)["usage"]["completion_tokens"] == 24
    # What "auto" has become is told where it is looked for.
    arithmetic = {"activations": settings.get("engine.activations", "int8"), "kv_type": settings.get("engine.kv_type", "f16")}
    assert arithmetic.items() <= server.ready.items() and arithmetic.items() <= get(server, "/metrics").json()["engine"].items()
    info = re.search(r"^berth_info\{(.*)\} 1$", get(server, "/metrics?format=prometheus").text, re.M).group(1)
    assert all(f'{key}="{value}"' in info for key, value in arithmetic.items())


def test_closed_standard_streams_get_no_socket_in_their_place(berth_bin, synthetic_model, tmp_path, time_scale):
    """What the log says must not go to whoever holds the connection that took its number."""
    path = tmp_path / "s.sock"
    command = 'exec "$0" serve --set model.path="$1" --set server.listen="unix:$2" --set server.drain_s=1 <&- >&- 2>&-'
    process = subprocess.Popen(["sh", "-c", command, str(berth_bin), str(synthetic_model), str(path)])

    def answer():
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                sock.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 33\r\n\r\n" + b'{"prompt": "x", "max_tokens": 2}\n')
                return b"".join(iter(lambda: sock.recv(65536), b""))
        except (FileNotFoundError, ConnectionRefusedError):
            assert process.poll() is None
            return None

    try:
        head, body = eventually(answer, 60 * time_scale).split(b"\r\n\r\n", 1)
        assert b" 200 " in head and json.loads(body)["choices"]
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
    finally:
        process.terminate()
        assert process.wait(30 * time_scale) == 0


def test_a_closed_standard_output_is_still_an_error(berth_bin):
    assert subprocess.run(["sh", "-c", 'exec "$0" --version >&-', str(berth_bin)], stderr=subprocess.DEVNULL).returncode == 1
