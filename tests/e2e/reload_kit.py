"""What the tests of reloads share: a configuration file that changes, and reloads that are waited for."""
import json
import os
import re
import signal
import threading

from apikit import get, post, stream, streamed_text, user


class Conf:
    """A configuration file of a server. `set` and `drop` write it anew; `start` starts a server on it."""

    def __init__(self, path, start_server):
        self.path, self.start_server, self.tree, self.server = path, start_server, {}, None
        self.write()

    def write(self):
        """In one piece: a reload may be under way."""
        put_file(self.path, json.dumps(self.tree, indent=1).encode())

    def set(self, **keys):
        """set(log__level="debug"): a section and a key, with two underscores between them."""
        for name, value in keys.items():
            section, _, key = name.partition("__")
            if key:
                self.tree.setdefault(section, {})[key] = value
            else:
                self.tree[section] = value
        self.write()
        return self

    def drop(self, section):
        self.tree.pop(section, None)
        self.write()
        return self

    def start(self, settings=None, **options):
        self.server = self.start_server({"engine.threads": 1, **(settings or {})}, args=["--config", self.path], **options)
        return self.server

    def reload(self, key=None):
        """POST /admin/reload, which must succeed: what it answers."""
        reply = self.post_reload(key)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post_reload(self, key=None):
        return post(self.server, "/admin/reload", "", headers={"Authorization": f"Bearer {key}"} if key else {})

    def refused(self, key=None):
        """POST /admin/reload, which must fail: the reason."""
        reply = self.post_reload(key)
        assert reply.status_code == 422, reply.text
        error = reply.json()["error"]
        assert error["type"] == "reload_failed", error
        return error["message"]

    def hangup(self):
        """SIGHUP, and the line that tells how its reload ended."""
        before = self.policy()["reloads"]  # the log is read a little later than it is written
        self.server.signal(signal.SIGHUP)
        return self.wait_outcome(before)

    def wait_outcome(self, n):
        """The line of the log that tells of reload number n, from 0."""
        with self.server._changed:
            self.server._changed.wait_for(lambda: len(outcomes(self.server, self.server._lines)) > n, 60)
        lines = outcomes(self.server)
        assert len(lines) > n, self.server.log
        return lines[n]

    def policy(self, key=None):
        reply = get(self.server, "/admin/policy", headers={"Authorization": f"Bearer {key}"} if key else {})
        assert reply.status_code == 200, reply.text
        return reply.json()


def outcomes(server, lines=None):
    return [line for line in (server.log.splitlines() if lines is None else lines)
            if re.search(r" reload state=(done|failed) ", line)]


def descriptors(pid):
    """What the open descriptors of a process are, sorted; connections of clients are left out."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return sorted(re.sub(r"\d+", "N", name) for name in found if not name.startswith("socket:"))


def mappings(pid):
    """How often each file is mapped into a process: (path, permissions) -> how many."""
    count = {}
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                name = (fields[5].strip(), fields[1])
                count[name] = count.get(name, 0) + 1
    return count


def large_memory(pid):
    """Where the large pieces of a process's own memory begin: the weights and the key-value pool are among them."""
    found = set()
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            fields = line.split(maxsplit=5)
            begin, end = (int(at, 16) for at in fields[0].split("-"))
            if len(fields) == 5 and fields[1] == "rw-p" and end - begin >= 1 << 20:
                found.add(begin)
    assert found
    return found


def put_file(path, data):
    """A new file at a path, the way build tools and copies that mean well put it there."""
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(data)
    os.replace(aside, path)


class Crowd:
    """Streams that run as long as a test wants, each compared with what the same prompt was answered before.

    `texts`: what was answered, one after the other, before the crowd was set loose.
    """

    def __init__(self, server, n, tokens=60):
        self.server, self.tokens, self.n = server, tokens, n
        self.texts = [self.ask(i) for i in range(n)]
        self.stop, self.wrong, self.rounds = threading.Event(), [], [0] * n
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]

    def ask(self, i):
        chunks = stream(self.server, messages=user(f"Story number {i} of the sea and what lives in it"), temperature=1,
                        seed=i + 1, ignore_eos=True, max_tokens=self.tokens)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert chunks[-1]["timings"]["predicted_n"] == self.tokens
        return streamed_text(chunks)

    def run(self, i):
        while not self.stop.is_set():
            try:
                text = self.ask(i)
            except Exception as error:  # told by the test, not by a thread that ends
                text = repr(error)
            if text != self.texts[i]:
                self.wrong.append((i, self.texts[i], text))
                return
            self.rounds[i] += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        if failure[0] is None:
            assert not self.wrong, self.wrong[0]
            assert min(self.rounds) > 0
