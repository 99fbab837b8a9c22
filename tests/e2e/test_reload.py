"""SIGHUP and POST /admin/reload: the whole configuration is read again, and takes effect whole or not at all."""
import hashlib
import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from apikit import chat, endless_stream, eventually, events, get, metrics, post, stream, streamed_text, text_of, user
from reload_kit import Conf, outcomes


@pytest.fixture
def conf(tmp_path, start_server):
    return Conf(tmp_path / "berth.json", start_server)


def key_line(name, key, admin=True):
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{':admin' if admin else ''}\n"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


# ---- how a reload is asked for and told of


def test_sighup_and_the_endpoint_do_the_same(conf):
    server = conf.start()
    assert re.search(r"state=done policy=builtin/2 ", conf.hangup())
    outcome = conf.reload()
    assert outcome["ok"] and outcome["generation"] == 3 and outcome["policy"] == "builtin" and outcome["restart"] == []
    policy = conf.policy()
    assert policy["generation"] == 3 and policy["reloads"] == 2 and policy["reload_failures"] == 0
    assert policy["last_reload_error"] is None
    assert {k: v for k, v in metrics(server)["policy"].items() if k in policy}.keys() == policy.keys()


def test_a_client_that_leaves_before_its_outcome_disturbs_nobody(conf):
    server = conf.start()
    for _ in range(20):
        with server.connect() as s:
            s.sendall(b"POST /admin/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    assert conf.reload()["ok"]


def test_a_reload_needs_the_admin_key(conf, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(key_line("boss", "b") + key_line("user", "u", admin=False))
    conf.set(server__keys_file="keys")
    server = conf.start()
    for path, method in (("/admin/reload", requests.post), ("/admin/policy", requests.get)):
        assert method(server.url + path).status_code == 401
        assert method(server.url + path, headers=bearer("u")).status_code == 403
    assert conf.reload("b")["ok"]
    assert get(server, "/admin/reload", headers=bearer("b")).status_code == 405


def test_a_page_of_another_host_cannot_reload(conf):
    server = conf.start()
    assert requests.post(server.url + "/admin/reload", headers={"Origin": "https://evil.example"}).status_code == 403
    assert requests.post(server.url + "/admin/reload", headers={"Host": "evil.example"}).status_code == 403
    assert not outcomes(server)


# ---- all or nothing


@pytest.mark.parametrize("text, reason", [
    ('{"log": {"level": "debug"', r"berth\.json line 1 column \d+: .*end of file"),
    ('{"log": {"level": "debug"},\n"lgo": {}}', r"lgo: unknown key; did you mean log\? \(.*berth\.json line 2\)"),
    ('{"log": {"level": "debug"},\n"log": {}}', r"berth\.json line 2 column \d+: duplicate object key"),
    ('{"log": {"level": "debug"},\n"engine": {"slots": 0}}', r"engine\.slots: 0 where 1\.\.1024"),
    ('{"log": {"level": "debug"}, "server": {"keys_file": "none"}}', r"server\.keys_file: .*none: No such file"),
    ('{"log": {"level": "debug"}, "policy": {"path": "none.so"}}', r"policy\.path: .*none\.so: "),
    ('{"log": {"level": "debug"}, "policy": {"path": "none.so", "fallback": "builtin"}}', r"policy\.path: .*none\.so: "),
    ('{"log": {"level": "debug"}, "policy": {"shadow": [{"path": "none.so"}]}}', r"policy\.shadow: item 1: .*none\.so: "),
    ('{"log": {"level": "debug"}, "policy": {"settings": {"a": 1}}}', r"policy\.settings\.a: the built-in policy has no set"),
    ('{"log": {"level": "debug"}, "trace": {"path": "none/trace"}}', r"trace\.path: .*none/trace: No such file"),
    ('{"log": {"level": "debug"}, "env": {"STRATA_CACHE_TRACE": "yes"}}', r'STRATA_CACHE_TRACE: "yes" where 0 or 1'),
    ('{"log": {"level": "debug"}, "env": {"STRATA_SLOT_CACHE_AFFINITY": ""}}', r'AFFINITY: "" where 0 or 1 .*line 1'),
    ('{"log": {"level": "debug"}, "policy": {"path": "x.so"}, "env": {"STRATA_SLOT_CACHE_AFFINITY": "0"}}',
     r"STRATA_SLOT_CACHE_AFFINITY=0 asks for the built-in policy \(.*\), policy\.path for .*x\.so"),
])
def test_what_is_wrong_changes_nothing_and_is_told(conf, text, reason):
    server = conf.start()
    conf.path.write_text(text)
    message = conf.refused()
    assert re.search(reason, message) and "kept: builtin/1" in message, message
    line = conf.hangup()
    assert " error reload state=failed " in line and "kept=builtin/1" in line, line
    assert re.search(reason, line.replace('\\"', '"')), line
    policy = metrics(server)["policy"]
    assert policy["generation"] == 1 and policy["reloads"] == policy["reload_failures"] == 2
    assert re.search(reason, policy["last_reload_error"])
    assert " debug " not in server.log, "a part of it took effect"
    conf.write()
    assert conf.reload()["generation"] == 2
    policy = conf.policy()
    assert policy["reload_failures"] == 2 and re.search(reason, policy["last_reload_error"])


def test_a_config_that_is_gone_changes_nothing(conf):
    conf.start()
    conf.path.unlink()
    assert "No such file" in conf.refused()
    conf.write()
    assert conf.reload()["ok"]


def turn_into(path, what):
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "loop":
        path.symlink_to(path.name)
    else:
        with open(path, "wb") as f:
            f.truncate(2 << 30)


WHAT = {"pipe": "end of file|holds no key", "folder": "is a directory", "device": "longer than", "loop": "Too many levels",
        "hole": "longer than"}


@pytest.mark.parametrize("what", WHAT)
def test_a_config_that_became_something_else_holds_nobody_up(conf, what):
    conf.start()
    turn_into(conf.path, what)
    assert re.search(WHAT[what], conf.refused())
    conf.path.rmdir() if what == "folder" else conf.path.unlink()
    conf.write()
    assert conf.reload()["ok"]


@pytest.mark.parametrize("what", WHAT)
def test_a_key_file_that_became_something_else_holds_nobody_up(conf, tmp_path, what):
    keys = tmp_path / "keys"
    keys.write_text(key_line("a", "k"))
    conf.set(server__keys_file="keys")
    conf.start()
    turn_into(keys, what)
    assert re.search("server.keys_file: .*keys.*" + WHAT[what], conf.refused("k"))
    keys.rmdir() if what == "folder" else keys.unlink()
    keys.write_text(key_line("a", "k"))
    assert conf.reload("k")["ok"]


def test_a_config_may_come_through_a_pipe(start_server):
    read, write = os.pipe()
    os.write(write, b'{"engine": {"slots": 5}}')
    os.close(write)
    server = start_server({"engine.threads": 1}, args=["--config", f"/proc/{os.getpid()}/fd/{read}"])
    assert metrics(server)["engine"]["slots"] == 5
    assert post(server, "/admin/reload", "").status_code == 422, "it was read already"
    os.close(read)


def test_what_is_wrong_is_told_even_where_it_is_cut_within_a_character(conf, berth_bin):
    conf.set(policy__path=str(berth_bin.parent / "plugins" / "value.so"))
    server = conf.start()
    for shift in ("", "a"):
        conf.set(policy__settings={"ttl_max_s": shift + "ё" * 100})
        assert "is not a number 0..86400" in conf.refused()
        assert "is not a number 0..86400" in conf.policy()["last_reload_error"]
        assert metrics(server)["policy"]["reload_failures"] == conf.policy()["reload_failures"]


def test_folders_of_any_name_are_told_of(tmp_path, start_server, berth_bin):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    shutil.copy(berth_bin.parent / "plugins" / "value.so", folder / "p.so")
    conf = Conf(folder / "berth.json", start_server).set(policy__path="p.so", policy__settings={"ttl_max_s": 60})
    conf.start()
    for _ in range(2):
        policy = conf.policy()
        assert policy["path"] == f"{tmp_path}/caf?/p.so"
        assert policy["settings"]["ttl_max_s"]["value"] == "60" and "caf?/berth.json" in policy["settings"]["ttl_max_s"]["origin"]
        conf.reload()
    (folder / "p.so").unlink()
    assert "p.so: No such file" in conf.refused() and "p.so: No such file" in conf.policy()["last_reload_error"]


def test_a_set_wins_at_every_reload(conf):
    conf.set(log__level="debug")
    server = conf.start({"log.level": "info"})
    assert conf.reload()["ok"]
    assert " debug " not in server.log


def test_keys_that_need_a_restart_are_named_once_and_the_others_take_effect(conf):
    server = conf.start()
    conf.set(engine__slots=7, queue__max=9, log__level="debug", server__max_body_bytes=4096)
    assert conf.reload()["restart"] == ["server.max_body_bytes", "engine.slots", "queue.max"]
    server.wait_log(" debug http ")
    found = re.findall(r"warn reload state=waiting keys=(\S+)", server.log)
    assert found == ["server.max_body_bytes,engine.slots,queue.max"]
    assert metrics(server)["engine"]["slots"] == 64 and len(get(server, "/slots").json()) == 64
    conf.drop("engine").drop("queue").drop("server")
    assert conf.reload()["restart"] == []


def test_the_file_is_found_again_by_the_path_that_was_given(conf, tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    one, two = real / "1.json", real / "2.json"
    one.write_text("{}")
    two.write_text('{"log": {"level": "debug"}}')
    conf.path.unlink()
    conf.path.symlink_to(one)
    server = conf.start()
    conf.path.unlink()
    conf.path.symlink_to(two)
    conf.reload()
    server.wait_log(" debug http ")


# ---- what each reloadable key does


def test_keys_are_exchanged(conf, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(key_line("a", "first"))
    conf.set(server__keys_file="keys")
    server = conf.start()
    assert get(server, "/v1/models", headers=bearer("first")).status_code == 200
    keys.write_text(key_line("a", "second"))
    assert conf.reload("first")["ok"]
    assert get(server, "/v1/models", headers=bearer("first")).status_code == 401
    assert get(server, "/v1/models", headers=bearer("second")).status_code == 200
    keys.write_text("nonsense\n")
    assert "line 1" in conf.refused("second")
    assert get(server, "/v1/models", headers=bearer("second")).status_code == 200
    conf.drop("server")
    assert conf.reload("second")["ok"]
    assert get(server, "/v1/models").status_code == 200


def test_who_may_listen_no_longer_is_not_told_any_more(conf, tmp_path):
    """Streams of events have no end of their own: a key that was taken back must not keep one."""
    keys = tmp_path / "keys"
    keys.write_text(key_line("a", "old") + key_line("b", "kept"))
    conf.set(server__keys_file="keys", server__metrics_open=True)
    server = conf.start()
    streams = {key: requests.get(server.url + "/events", headers=bearer(key) if key else {}, stream=True, timeout=60)
               for key in ("old", "kept", "")}
    lines = {key: reply.iter_lines() for key, reply in streams.items()}
    assert all(next(each) == b"retry: 2000" for each in lines.values())
    keys.write_text(key_line("b", "kept") + key_line("c", "new"))
    conf.reload("old")
    assert get(server, "/metrics", headers=bearer("kept")).json()["live"]["event_listeners"] == 3, "open to all, still"
    conf.set(server__metrics_open=False)
    conf.reload("kept")
    for key in ("old", ""):
        assert sum(b'"kind":"reload"' in line for line in lines[key]) == 1, "and then its end"
    assert get(server, "/metrics", headers=bearer("kept")).json()["live"]["event_listeners"] == 1
    found = 0
    while found < 2:
        found += b'"kind":"reload"' in next(lines["kept"])
    streams["kept"].close()


def test_a_server_beyond_loopback_keeps_its_keys(conf, tmp_path):
    (tmp_path / "keys").write_text(key_line("a", "first"))
    conf.set(server__keys_file="keys")
    server = conf.start({"server.listen": "0.0.0.0:0"})
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    conf.drop("server")
    assert "keys" in conf.refused("first")
    assert get(server, "/v1/models").status_code == 401


def test_watching_is_opened_and_closed(conf, tmp_path):
    (tmp_path / "keys").write_text(key_line("a", "k"))
    conf.set(server__keys_file="keys")
    server = conf.start()
    assert get(server, "/metrics").status_code == 401
    conf.set(server__metrics_open=True)
    conf.reload("k")
    assert get(server, "/metrics").status_code == 200 and get(server, "/v1/models").status_code == 401
    conf.set(server__metrics_open=False)
    conf.reload("k")
    assert get(server, "/metrics").status_code == 401


def test_web_origins_are_exchanged(conf):
    server = conf.start()
    page = {"Origin": "https://app.example"}
    assert get(server, "/v1/models", headers=page).status_code == 403
    conf.set(server__cors_origins=["https://app.example"])
    conf.reload()
    assert get(server, "/v1/models", headers=page).headers["Access-Control-Allow-Origin"] == "https://app.example"
    conf.set(server__cors_origins=[])
    conf.reload()
    assert get(server, "/v1/models", headers=page).status_code == 403


def test_the_time_to_drain_changes(conf):
    conf.set(server__drain_s=3600)
    server = conf.start({"server.drain_s": None})
    with post(server, "/v1/chat/completions", {"messages": user("x"), "stream": True, "ignore_eos": True, "logprobs": True,
                                               "top_logprobs": 32}, stream=True) as reply:
        lines = events(reply)
        assert next(lines)[0] == "data"
        conf.set(server__drain_s=0)
        conf.reload()
        server.signal(signal.SIGTERM)
        server.wait_log(r"drain state=started .*seconds=0")
        data = [value for kind, value in lines if kind == "data"]
    assert "shutting down" in json.loads(data[-2])["error"]["message"]
    assert server.wait() == 0


def test_the_interval_of_keep_alives_changes_for_streams_that_run(conf, time_scale):
    conf.set(server__keepalive_s=3600)
    server = conf.start({"engine.rows": 1, "engine.slots": 1})
    with endless_stream(server, n=8), ThreadPoolExecutor(1) as pool:  # one after the other: there is one slot
        # Nothing of an answer comes, not even its header, before the first comment.
        waiting = pool.submit(post, server, "/v1/chat/completions",
                              {"messages": user("y"), "max_tokens": 1, "stream": True}, stream=True)
        eventually(lambda: metrics(server)["live"]["waiting"] == 8)
        conf.set(server__keepalive_s=1)
        conf.reload()
        with waiting.result(30 * time_scale) as second:
            assert next(events(second))[0] == "comment"


def test_the_longest_pause_changes(conf):
    conf.set(engine__max_pause_ms=10000)
    server = conf.start({"log.level": "debug"})
    words = " ".join(f"word{i}" for i in range(200))
    window = re.compile(r"debug window rows=2 prompt_tokens=(\d+) ")

    def longest_chunk():
        """Of a long prompt that is read beside a stream."""
        before = len(window.findall(server.log))
        with endless_stream(server):
            chat(server, f"{time.monotonic()} {words}", max_tokens=1)
        return max(int(n) for n in window.findall(server.log)[before:])

    longest_chunk()  # the speed is measured
    slack = longest_chunk()
    conf.set(engine__max_pause_ms=1)
    conf.reload()
    assert longest_chunk() < slack / 2


def test_defaults_of_sampling_change(conf):
    conf.set(sampling__temperature=2, sampling__top_k=0)
    server = conf.start()
    plain = text_of(chat(server, temperature=0, max_tokens=12))
    conf.set(sampling__temperature=0, sampling__top_k=17, sampling__top_p=0.5, sampling__min_p=0.25, sampling__repeat_penalty=1)
    conf.reload()
    params = get(server, "/props").json()["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["top_p"], params["min_p"]) == (0, 17, 0.5, 0.25)
    reply = post(server, "/v1/chat/completions", {"messages": user("Tell me about the sea"), "max_tokens": 12})
    assert text_of(reply.json()) == plain
    conf.set(sampling__temperature=2)
    conf.reload()
    texts = {text_of(post(server, "/v1/chat/completions", {"messages": user("Tell me about the sea"), "max_tokens": 12,
                                                           "seed": seed}).json()) for seed in range(4)}
    assert len(texts) > 1


def test_the_level_of_the_log_changes(conf):
    server = conf.start()
    conf.reload()
    conf.set(log__level="error")
    conf.reload()
    conf.reload()
    conf.set(log__level="debug")
    conf.reload()
    server.wait_log(r" debug http .*path=\"/admin/reload\"")
    assert len(outcomes(server)) == 2, "what the level leaves out was told"


# ---- beside requests


@pytest.mark.tsan
def test_a_hangup_while_streams_run(conf):
    server = conf.start({"engine.slots": 4})
    fields = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}
    alone = streamed_text(stream(server, **fields))
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(streamed_text(stream(server, **fields)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(20):
        conf.set(sampling__top_k=n, server__keepalive_s=1 + n)
        conf.hangup()
    for thread in threads:
        thread.join()
    assert texts == [alone] * 3
    assert metrics(server)["policy"]["reloads"] == 20


def test_a_reload_that_is_asked_for_while_the_server_drains_does_not_hold_it_up(conf):
    server = conf.start()
    server.signal(signal.SIGHUP)
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGHUP)
    assert server.wait() == 0
