"""Conversations in files: POST /slots/{id}?action=save|restore|erase. A restart in between costs nothing; what is wrong is told,
and then the slot is as it was."""
import hashlib
import json
import os
import random
import re
import resource
import signal
import threading
import time

import pytest

from apikit import chat, error_of, eventually, get, post, text_of, user

SLOTS = {"engine.slots": 4, "engine.rows": 4, "engine.threads": 1}
LONG = "The tide comes in and goes out again, and nobody knows what it carries. " * 12


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def act(server, slot, action, name=None, **options):
    return post(server, f"/slots/{slot}?action={action}", {} if name is None else {"filename": name}, **options)


def turn(server, said, slot, question="And then?", **fields):
    """The next turn of a talk that began with LONG: what it answered, and how much of the prompt was there."""
    messages = user(LONG) + [m for text in said for m in ({"role": "assistant", "content": text}, {"role": "user", "content": question})]
    reply = post(server, "/v1/chat/completions",
                 {"messages": messages, "temperature": 0, "max_tokens": 20, "ignore_eos": True, "id_slot": slot, **fields}).json()
    return text_of(reply), reply["timings"]["cache_n"]


@pytest.mark.parametrize("more", [{}, {"engine.kv_type": "f32"}, {"engine.kv_type": "q8_0"}, {"engine.stages": 2, "engine.threads": 2}])
def test_a_restart_costs_nothing(start_server, folder, more):
    settings = {**SLOTS, "cache.save_dir": folder, **more}
    server = start_server(settings)
    first, _ = turn(server, [], 2)
    tokens = get(server, "/slots").json()[2]["tokens"]
    reply = act(server, 2, "save", "talk.kv").json()
    assert (reply["id_slot"], reply["filename"], reply["n_saved"], reply["turns"]) == (2, "talk.kv", tokens, 1)
    assert reply["n_written"] == (folder / "talk.kv").stat().st_size and reply["timings"]["save_ms"] > 0
    server.stop()

    if "engine.stages" in more:
        settings["engine.stages"] = 1  # what a file holds does not depend on them
    server = start_server(settings)
    reply = act(server, 0, "restore", "talk.kv").json()
    assert (reply["id_slot"], reply["n_restored"], reply["n_read"]) == (0, tokens, (folder / "talk.kv").stat().st_size)
    assert reply["timings"]["restore_ms"] > 0 and reply["turn_tokens"] == get(server, "/slots").json()[0]["turn_tokens"]
    warm, cached = turn(server, [first], 3)
    # The end of the answer is told anew by the template, in other tokens perhaps.
    assert cached >= reply["turn_tokens"] > 100
    cold, cached = turn(server, [first], 1, cache_prompt=False)
    assert warm == cold and cached == 0
    assert [e["kind"] for e in get(server, "/events?format=json").json()["events"]][0] == "load"


def test_main_is_a_place_too(start_server, folder):
    server = start_server({**SLOTS, "cache.save_dir": folder})
    first = text_of(chat(server, LONG))
    saved = act(server, "main", "save", "m").json()
    assert saved["id_slot"] == -1 == act(server, -1, "save", "m").json()["id_slot"]
    assert act(server, "main", "erase").json() == {"id_slot": -1, "n_erased": saved["n_saved"]}
    assert chat(server, LONG, max_tokens=1, cache_prompt=True)["timings"]["cache_n"] == 0
    assert act(server, "main", "restore", "m").json()["n_restored"] == saved["n_saved"]
    reply = chat(server, LONG)
    assert text_of(reply) == first and reply["timings"]["prompt_n"] == 1


def test_erase_needs_no_folder_and_no_body(start_server):
    server = start_server(SLOTS)
    turn(server, [], 1)
    held = get(server, "/slots").json()[1]["tokens"]
    reply = post(server, "/slots/1?action=erase", b"")
    assert reply.json() == {"id_slot": 1, "n_erased": held} and held > 100
    assert get(server, "/slots").json()[1]["tokens"] == 0
    assert turn(server, [], 2)[1] == 0, "it is forgotten"
    for action in ("save", "restore"):
        assert "cache.save_dir" in error_of(act(server, 0, action, "x"), 501)["message"]


@pytest.mark.parametrize("slot, action, body, status, param", [
    (4, "save", {"filename": "x"}, 404, "id_slot"), ("x", "save", {"filename": "x"}, 404, "id_slot"),
    ("1x", "erase", {}, 404, "id_slot"), ("+1", "erase", {}, 404, "id_slot"),
    (99999999999999999999, "erase", {}, 404, "id_slot"),
    (0, "load", {}, 400, "action"), (0, "", {}, 400, "action"),
    (0, "save", {}, 400, "filename"), (0, "save", [], 400, None), (0, "save", {"filename": 3}, 400, "filename"),
    (0, "save", {"filename": "a/b"}, 400, "filename"), (0, "save", {"filename": ".."}, 400, "filename"),
    (0, "save", {"filename": "a\0b"}, 400, "filename"), (0, "save", {"filename": "x" * 65}, 400, "filename"),
    (0, "save", {"filename": "x"}, 400, None),  # there is nothing to save
    (0, "restore", {"filename": "none"}, 404, "filename"), (0, "save", b"{", 400, None), (0, "save", b"", 400, None),
])
def test_wrong_calls_are_refused_by_name(start_server, folder, slot, action, body, status, param):
    # One server for each: they start in a tenth of a second.
    server = start_server({**SLOTS, "cache.save_dir": folder})
    error = error_of(post(server, f"/slots/{slot}?action={action}", body), status)
    assert error["param"] == param
    if param in ("action", "id_slot"):
        assert f'"{action if param == "action" else slot}" where' in error["message"]
    assert os.listdir(folder) == []


def test_a_call_without_an_action_is_told_so(server):
    error = error_of(post(server, "/slots/0", {}))
    assert error["param"] == "action" and error["message"] == "action: missing where save, restore or erase is wanted"


def test_a_file_that_is_not_right_changes_nothing(start_server, folder, make_model):
    server = start_server({**SLOTS, "cache.save_dir": folder})
    turn(server, [], 1)
    act(server, 1, "save", "right")
    data = (folder / "right").read_bytes()
    for name, bytes_, word in (("short", data[:-1], "not whole"), ("long", data + b"x", "something was added"),
                               ("text", b"hello" * 200, "no saved conversation"),
                               ("bit", data[:-100] + bytes([data[-100] ^ 4]) + data[-99:], "are damaged")):
        (folder / name).write_bytes(bytes_)
        before = get(server, "/slots").json()[2]
        error = error_of(act(server, 2, "restore", name), 422)
        assert word in error["message"] and error["param"] == "filename"
        after = get(server, "/slots").json()[2]
        assert (after["tokens"], after["turns"], after["age_s"]) == (before["tokens"], before["turns"], before["age_s"])
    assert act(server, 2, "restore", "right").status_code == 200
    server.stop()
    for model, more, word in ((make_model("--type", "Q4_0"), {}, "another model"), (None, {"engine.kv_type": "f32"}, "engine.kv_type"),
                              (None, {"engine.activations": "f32"}, "other arithmetic"), (None, {"model.context": 64}, "context")):
        other = start_server({**SLOTS, "cache.save_dir": folder, **more}, **({"model": model} if model else {}))
        assert word in error_of(act(other, 0, "restore", "right"), 422)["message"]
        assert get(other, "/slots").json()[0]["tokens"] == 0
        other.stop()


def test_a_slot_at_work_is_left_alone(start_server, folder):
    server = start_server({**SLOTS, "cache.save_dir": folder})
    turn(server, [], 0)
    act(server, 0, "save", "x")
    with post(server, "/v1/completions", {"prompt": "x", "stream": True, "ignore_eos": True, "id_slot": 0}, stream=True) as reply:
        parts = reply.iter_content(None)
        next(parts)
        for action in ("save", "restore", "erase"):
            error = error_of(act(server, 0, action, "x"), 409)
            assert error["message"] == "slot 0: a request runs there"
        assert act(server, 1, "restore", "x").status_code == 200, "another slot is free"
    eventually(lambda: not get(server, "/slots").json()[0]["is_processing"])
    assert act(server, 0, "erase").status_code == 200


def test_a_conversation_keeps_its_salt(start_server, folder):
    settings = {**SLOTS, "cache.save_dir": folder}
    server = start_server(settings)
    first, _ = turn(server, [], 0, cache_salt="ours")
    assert act(server, 0, "save", "x").status_code == 200
    server.stop()
    server = start_server(settings)
    for salt in ("theirs", 3):
        reply = post(server, "/slots/0?action=restore", {"filename": "x", "cache_salt": salt})
        error = error_of(reply, 422 if salt == "theirs" else 400)
        assert "salt" in error["message"] and get(server, "/slots").json()[0]["tokens"] == 0
    assert post(server, "/slots/0?action=restore", {"filename": "x", "cache_salt": "ours"}).status_code == 200
    assert [turn(server, [first], slot, **more)[1] > 100 for slot, more in
            ((1, {}), (2, {"cache_salt": "theirs"}), (3, {"cache_salt": "ours"}))] == [False, False, True]


def test_a_conversation_stays_with_its_key(start_server, folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{n}:{hashlib.sha256(n.encode()).hexdigest()}{a}\n"
                            for n, a in (("ann", ""), ("bob", ""), ("root", ":admin"))))
    settings = {**SLOTS, "cache.save_dir": folder, "server.keys_file": keys}

    def cached(server, name, slot):
        reply = post(server, "/v1/completions", {"prompt": LONG, "max_tokens": 4, "id_slot": slot}, headers={"Authorization": f"Bearer {name}"})
        return reply.json()["timings"]["cache_n"]

    server, root = start_server(settings), {"Authorization": "Bearer root"}
    assert cached(server, "ann", 0) == 0
    assert act(server, 0, "save", "x", headers=root).status_code == 200
    server.stop()
    server = start_server(settings)
    assert act(server, 0, "restore", "x", headers=root).status_code == 200
    assert cached(server, "bob", 1) == 0 and cached(server, "root", 2) == 0 and cached(server, "ann", 3) > 100


def test_only_the_admin_may(start_server, folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{n}:{hashlib.sha256(n.encode()).hexdigest()}{a}\n" for n, a in (("ann", ""), ("root", ":admin"))))
    server = start_server({**SLOTS, "cache.save_dir": folder, "server.keys_file": keys})
    for headers, status in (({}, 401), ({"Authorization": "Bearer ann"}, 403), ({"Authorization": "Bearer root"}, 200)):
        assert act(server, 0, "erase", headers=headers).status_code == status


def test_a_full_disk_is_told_and_leaves_nothing(start_server, folder):
    server = start_server({**SLOTS, "cache.save_dir": folder})
    turn(server, [], 0)
    assert act(server, 0, "save", "x").status_code == 200
    before = (folder / "x").read_bytes()
    old = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (50_000, old[1]))
    assert error_of(act(server, 0, "save", "x"), 507)["message"] == "x: cannot be written: File too large"
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, old)
    assert os.listdir(folder) == ["x"] and (folder / "x").read_bytes() == before
    assert act(server, 0, "save", "x").status_code == 200


def test_a_history_that_was_padded_away_is_not_saved(start_server, folder):
    server = start_server({**SLOTS, "cache.save_dir": folder, "engine.windows": "padded"})
    turn(server, [], 0)
    turn(server, [], 3, "Something else")  # its windows have a row for slot 0 too
    slot = get(server, "/slots").json()[0]
    reply = act(server, 0, "save", "x")
    assert error_of(reply, 400)["message"] in ("slot 0: it holds nothing", "slot 0: what it holds is not to be relied on"), slot
    assert act(server, 3, "save", "x").status_code == 200
    assert act(server, 0, "restore", "x").status_code == 200
    assert turn(server, [], 1)[1] > 100


def test_a_folder_that_is_not_there_is_told_at_start(start_server, berth, tmp_path):
    for wrong in (tmp_path / "none", __file__):
        result = berth("check", "--set", f"cache.save_dir={wrong}")
        assert result.returncode == 1 and "cache.save_dir" in result.stderr and str(wrong) in result.stderr
        server = start_server({"cache.save_dir": wrong}, wait=False)
        assert server.wait() == 1 and "cache.save_dir" in server.log


def test_what_a_killed_server_left_is_removed_by_the_next_one(start_server, folder):
    (folder / "talk~0123456789abcdef").write_bytes(b"half of a conversation")
    (folder / "notes~").write_text("somebody's own")
    server = start_server({**SLOTS, "cache.save_dir": folder})
    assert os.listdir(folder) == ["notes~"]
    assert re.search(r"save_dir\b.* removed=1 ", server.log)


def test_what_is_the_operators_to_mend_is_not_the_callers_fault(start_server, folder):
    server = start_server({**SLOTS, "cache.save_dir": folder})
    turn(server, [], 0)
    (folder / "taken").mkdir()
    error = error_of(act(server, 0, "save", "taken"), 422)
    assert error["message"] == "taken: cannot get its name: Is a directory" and error["param"] == "filename"
    assert error_of(act(server, 0, "restore", "taken"), 422)["message"] == "taken: it is no regular file"
    (folder / "taken").rmdir()
    assert os.listdir(folder) == []
    folder.rmdir()
    error = error_of(act(server, 0, "save", "x"), 500)
    assert error["message"] == "x: cannot be created: No such file or directory" and error["param"] is None


def hang_up(server, path, body):
    """A request whose client is gone before it is answered."""
    data = json.dumps(body).encode()
    with server.connect() as s:
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


@pytest.mark.tsan
@pytest.mark.parametrize("stages, groups, windows", [(1, 2, "padded"), (3, 2, "active")])
def test_conversations_come_and_go_while_others_run(start_server, folder, stages, groups, windows):
    """Slots are saved, restored and emptied at random while requests use them, some of whose clients go, and while the
    configuration is read again and again. Nothing fails but what must, and every answer is the one that it is alone."""
    server = start_server({**SLOTS, "cache.save_dir": folder, "engine.stages": stages, "engine.threads": stages, "engine.groups": groups,
                           "engine.windows": windows, "engine.kv_tokens": 2048, "model.context": 512})
    body = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    prompts = [f"{i} " + LONG[:300 + 40 * i] for i in range(4)]

    def answer(prompt, **fields):
        return text_of(post(server, "/v1/completions", {**body, "prompt": prompt, **fields}).json())

    alone = [answer(prompt, cache_prompt=False) for prompt in prompts]
    wrong, done = [], threading.Event()

    def ask(i):
        for k in range(12):
            reply = post(server, "/v1/completions", {**body, "prompt": prompts[i], "n": 1 + k % 2, "cache_salt": "ab"[k // 6]})
            if [choice["text"] for choice in reply.json()["choices"]] != [alone[i]] * (1 + k % 2):
                wrong.append(i)

    def carry(seed):
        rng = random.Random(seed)
        while not done.is_set():
            action, name = rng.choice(["save", "save", "restore", "erase"]), f"f{rng.randrange(3)}"
            if rng.random() < 0.3:
                hang_up(server, *rng.choice([(f"/slots/{rng.randrange(4)}?action={action}", {"filename": name}),
                                             ("/v1/completions", {**body, "prompt": prompts[0], "max_tokens": 200, "n": 3})]))
                server.signal(signal.SIGHUP)
            status = act(server, rng.randrange(4), action, name).status_code
            if status not in (200, 400, 404, 409, 503):
                wrong.append((action, status))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    carriers = [threading.Thread(target=carry, args=(i,)) for i in range(2)]
    for thread in threads + carriers:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    for thread in carriers:
        thread.join()
    assert not wrong
    assert not [name for name in os.listdir(folder) if "~" in name]


@pytest.mark.alone
def test_streams_go_on_meanwhile(start_server, folder, time_scale):
    """A file of a few buffers comes and goes again and again; between two pieces of a stream there is never a pause for it."""
    server = start_server({**SLOTS, "cache.save_dir": folder, "engine.kv_type": "f32"})
    length = len(post(server, "/tokenize", {"content": LONG}).json()["tokens"])
    prompt = LONG * (5000 // length)
    reply = post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 2, "id_slot": 0}).json()
    assert reply["usage"]["prompt_tokens"] > 4200
    times, done = [], threading.Event()

    def carry():
        for _ in range(5):
            assert act(server, 0, "save", "x").json()["n_written"] > 8 << 20
            assert act(server, 1, "restore", "x").status_code == 200
        done.set()

    with post(server, "/v1/completions", {"prompt": "x", "stream": True, "ignore_eos": True, "id_slot": 2}, stream=True) as reply:
        lines = reply.iter_lines()
        next(lines)
        thread = threading.Thread(target=carry)
        thread.start()
        while not done.is_set() and thread.is_alive():
            next(lines)
            times.append(time.monotonic())
        thread.join()
    assert done.is_set()
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert len(gaps) > 20 and max(gaps) < 0.5 * time_scale, (len(gaps), max(gaps))
    print(f"{len(gaps)} pieces, longest gap {max(gaps) * 1e3:.1f} ms, median {sorted(gaps)[len(gaps) // 2] * 1e3:.1f} ms")
