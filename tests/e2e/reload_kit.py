"""What the tests of reloads share: a configuration file that changes, and reloads that are waited for."""
import json
import os
import re
import signal

from apikit import get, post


class Conf:
    """A configuration file of a server. `set` and `drop` write it anew; `start` starts a server on it."""

    def __init__(self, path, start_server):
        self.path, self.start_server, self.tree, self.server = path, start_server, {}, None
        self.write()

    def write(self):
        self.path.write_text(json.dumps(self.tree, indent=1))

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
        before = outcomes(self.server)
        self.server.signal(signal.SIGHUP)
        return self.wait_outcome(len(before))

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
