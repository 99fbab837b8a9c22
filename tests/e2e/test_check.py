"""`berth check`: the effective configuration with the origin of every value, and errors with file and line."""
import json
import os
import re
import subprocess


def settings(text):
    """key -> (value, origin) of what `berth check` printed."""
    result = {}
    for line in text.splitlines():
        if line.startswith("ok: "):
            continue
        match = re.fullmatch(r"([a-z_.]+) = (.*\S) +# (.+)", line)
        assert match, line
        result[match[1]] = (json.loads(match[2]), match[3])
    return result


def write(path, text):
    path.write_text(text)
    return path


def test_without_a_file_all_are_defaults(berth, tmp_path):
    result = berth("check", cwd=tmp_path)
    assert result.returncode == 0
    values = settings(result.stdout)
    assert {origin for _, origin in values.values()} == {"default"}
    assert values["server.listen"][0] == ["127.0.0.1:8080"]
    assert values["server.max_body_bytes"][0] == 32 << 20
    assert values["sampling.temperature"][0] == 0.7


def test_every_value_says_where_it_came_from(berth, synthetic_model, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(synthetic_model)
    conf = write(tmp_path / "c.json", '{"engine": {\n  "slots": 8,\n  "rows": 2},\n "model": {"path": "m.gguf"}}')
    result = berth("check", "--config", conf, "--set", "engine.rows=3")
    assert result.returncode == 0, result.stderr
    values = settings(result.stdout)
    assert values["engine.slots"] == (8, f"{conf} line 2")
    assert values["engine.rows"] == (3, "--set")
    assert values["model.path"] == (str(model), f"{conf} line 4")
    assert values["engine.threads"] == ("auto", "default")


def test_relative_paths_are_relative_to_the_file_or_to_where_the_operator_stands(berth, synthetic_model, tmp_path):
    (tmp_path / "conf").mkdir()
    write(tmp_path / "conf" / "t.jinja", "x")
    (tmp_path / "m.gguf").symlink_to(synthetic_model)
    conf = write(tmp_path / "conf" / "c.json", '{"model": {"chat_template": "t.jinja"}}')
    result = berth("check", "--config", conf.relative_to(tmp_path), "--set", "model.path=m.gguf", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert settings(result.stdout)["model.chat_template"][0] == "conf/t.jinja"
    assert settings(result.stdout)["model.path"][0] == "m.gguf"


def test_stages_are_compared_with_the_layers(berth, synthetic_model):
    model = f"model.path={synthetic_model}"
    result = berth("check", "--set", model, "--set", "engine.stages=4")
    assert result.returncode == 0 and settings(result.stdout)["engine.stages"] == (4, "--set"), result.stderr
    result = berth("check", "--set", model, "--set", "engine.stages=5")
    assert result.returncode == 1
    assert result.stderr == "berth: engine.stages: 5 stages for 4 layers; the model allows 1 to 4\n"


def test_a_file_that_is_not_there_is_named_with_its_line(berth, tmp_path):
    conf = write(tmp_path / "c.json", '{\n\n"model": {\n"path": "gone.gguf"}}')
    result = berth("check", "--config", conf)
    assert result.returncode == 1
    assert result.stderr == f"berth: model.path: {tmp_path}/gone.gguf: No such file or directory ({conf} line 4)\n"


def test_errors_of_a_file_name_key_file_and_line(berth, tmp_path):
    cases = [
        ('{"engine": {\n"thread": 1}}', r"engine\.thread: unknown key; did you mean engine\.threads\? \(.*c\.json line 2\)"),
        ('{"engine": {"rows": 2,\n"rows": 3}}', r'.*c\.json line 2 column \d+: duplicate object key near'),
        ('{"engine": {"rows":\n"two"}}', r'engine\.rows: "two" where 1\.\.256 requests is allowed \(.*c\.json line 1\)'),
        ('{"queue":\n\n{"max": 0}}', r"queue\.max: 0 where 1\.\.65536 requests is allowed \(.*c\.json line 3\)"),
        ('{"queue": {"max": 1}', r".*c\.json line 1 column \d+: .*end of file"),
    ]
    for text, pattern in cases:
        result = berth("check", "--config", write(tmp_path / "c.json", text))
        assert result.returncode == 1 and result.stdout == ""
        assert re.fullmatch(r"berth: " + pattern + r"[^\n]*\n", result.stderr), result.stderr


def test_a_missing_config_file_says_so(berth, tmp_path):
    result = berth("check", "--config", tmp_path / "none.json")
    assert result.returncode == 1
    assert result.stderr == f"berth: {tmp_path}/none.json: No such file or directory\n"


def test_a_config_from_a_pipe_is_read(berth_bin, tmp_path):
    result = subprocess.run([str(berth_bin), "check", "--config", "/dev/stdin"], input='{"engine": {"slots": 5}}',
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert settings(result.stdout)["engine.slots"] == (5, "/dev/stdin line 1")


def test_the_example_is_right(berth, root):
    result = berth("check", "--config", root / "conf" / "berth.json")
    assert result.stdout and ("No such file" in result.stderr or result.returncode == 0), result.stderr
    example = json.loads((root / "conf" / "berth.json").read_text())
    origins = settings(result.stdout)
    for section, keys in example.items():
        for key in keys:
            assert "berth.json line" in origins[f"{section}.{key}"][1]


def test_the_page_about_the_configuration_is_up_to_date(berth, root):
    page = (root / "conf" / "README.md").read_text()
    table = berth("--help-config", "--markdown").stdout
    assert table in page, "conf/README.md: run tools/update-conf-readme"


def test_without_any_model_the_rest_is_checked_and_that_is_said(berth, tmp_path):
    result = berth("check", cwd=tmp_path)
    assert result.returncode == 0 and "note: no model: there is no models/*.gguf here" in result.stderr
    template = write(tmp_path / "t.jinja", "{% for %}")
    result = berth("check", "--set", f"model.chat_template={template}", cwd=tmp_path)
    assert result.returncode == 1 and "t.jinja" in result.stderr


def test_what_cannot_serve_does_not_pass(berth, synthetic_model, tmp_path):
    keys = write(tmp_path / "keys", "junk\n")
    text = write(tmp_path / "text.gguf", "no model" * 100)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(synthetic_model.read_bytes()[:-1000])
    template = write(tmp_path / "t.jinja", "line\n{% for %}")
    model = {"path": str(synthetic_model)}
    for config, part in [
        ({"server": {"listen": ["foo"]}}, "foo: not an address"),
        ({"server": {"listen": []}}, "server.listen: no address"),
        ({"server": {"listen": ["127.0.0.1:99999"]}}, "127.0.0.1:99999: not an address"),
        ({"server": {"listen": ["127.0.0.1:81", "127.0.0.1:81"]}}, "listed twice"),
        ({"server": {"listen": ["unix:/" + "x" * 200]}}, "a socket's path has at most"),
        ({"server": {"listen": ["0.0.0.0:80"]}}, "reachable from other machines, and no keys"),
        ({"server": {"keys_file": str(keys)}}, f"server.keys_file: {keys} line 1"),
        ({"model": {"path": str(text)}}, "text.gguf"),
        ({"model": {"path": str(cut)}}, "cut.gguf"),
        ({"model": {**model, "chat_template": str(template)}}, "line 2"),
        ({"model": {**model, "chat_template": str(tmp_path)}}, "is a directory"),
        ({"engine": {"threads": 257}}, "engine.threads: 257 where auto or 1..256"),
        ({"model": {**model, "context": 4096}, "engine": {"kv_tokens": 1024}}, "engine.kv_tokens: 1024 is below"),
        ({"engine": {"groups": 7}}, "engine.groups: 7 groups do not divide the 64 slots of engine.slots"),
    ]:
        conf = write(tmp_path / "c.json", json.dumps({"model": model, **config}))
        result = berth("check", "--config", conf)
        assert result.returncode == 1, config
        assert part in result.stderr and result.stderr.count("\n") == 1, result.stderr
    open_to_all = {"server": {"listen": ["0.0.0.0:80"], "open": True}, "model": model}
    result = berth("check", "--config", write(tmp_path / "c.json", json.dumps(open_to_all)))
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert re.fullmatch(r"ok: model synthetic, device (cpu|cuda), activations int8, context \d+, kv_tokens \d+, 64 slots, policy builtin",
                        result.stdout.splitlines()[-1])


def test_what_serve_refuses_check_refuses_in_the_same_words(berth, synthetic_model, tmp_path):
    (tmp_path / "folder").mkdir()
    wrong = ["engine.device=cuda", f"trace.path={tmp_path}/none/trace", f"trace.path={tmp_path}/folder",
             "model.turn_token=<none>", f"policy.path={tmp_path}/none.so", "engine.stages=9", f"cache.save_dir={tmp_path}/none"]
    if "amx_int8" not in open("/proc/cpuinfo").read():
        wrong.append("engine.isa=amx")
    for setting in wrong:
        args = ["--set", f"model.path={synthetic_model}", "--set", "server.listen=127.0.0.1:0", "--set", setting]
        # Without a GPU, on whatever machine this runs.
        served, checked = (berth(command, *args, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}) for command in ("serve", "check"))
        assert served.returncode == checked.returncode == 1, setting
        assert checked.stderr == served.stderr.splitlines()[-1] + "\n", (served.stderr, checked.stderr)
        assert "\nok: " not in checked.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]


def test_what_is_wrong_stands_last_where_both_streams_go_to_one_place(berth_bin):
    both = subprocess.run([str(berth_bin), "check", "--set", "model.turn_token=<none>", "--set", "trace.path=/none/x"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert both.returncode == 1 and both.stdout.splitlines()[-1].startswith("berth: trace.path")


def test_a_trace_that_can_be_written_passes_and_is_not_made(berth, synthetic_model, tmp_path):
    args = ["--set", f"model.path={synthetic_model}", "--set", "trace.path=t.jsonl"]
    assert berth("check", *args, cwd=tmp_path).returncode == 0 and not list(tmp_path.iterdir())
    write(tmp_path / "t.jsonl", "kept")
    assert berth("check", *args, cwd=tmp_path).returncode == 0 and (tmp_path / "t.jsonl").read_text() == "kept"


def test_memory_that_is_not_free_now_is_a_note(berth, synthetic_model):
    result = berth("check", "--set", f"model.path={synthetic_model}", "--set", "engine.kv_tokens=67108864",
                   "--set", "engine.kv_type=f32", "--set", "engine.device=cpu")
    free_mb = int(re.search(r"MemAvailable: +(\d+)", open("/proc/meminfo").read())[1]) >> 10
    assert free_mb > 120_000 or "note: a key-value pool of 67108864 tokens" in result.stderr, result.stderr
    assert result.returncode == 0 and ("ok: " in result.stdout) == (result.stderr == "")


def test_a_taken_port_is_no_fault_of_the_configuration(berth, server, synthetic_model):
    result = berth("check", "--set", f"server.listen=127.0.0.1:{server.port}", "--set", f"model.path={synthetic_model}")
    assert result.returncode == 0, result.stderr
