"""berth bench --url: the real server measured over HTTP, and scripted servers that say what a measurement must show."""
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from apikit import eventually, idle, metrics


def bench_json(berth, url, *args):
    result = berth("bench", "--url", url, *args, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def chunk(text, **fields):
    return {"model": "scripted", "choices": [{"index": 0, "text": text}], **fields}


def usage(prompt, generated, cached=0):
    return {"model": "scripted", "choices": [],
            "usage": {"prompt_tokens": prompt, "completion_tokens": generated,
                      "prompt_tokens_details": {"cached_tokens": cached}}}


def sse(*objects, done=True):
    lines = [f"data: {json.dumps(o)}\n\n" for o in objects] + (["data: [DONE]\n\n"] if done else [])
    return "".join(lines).encode()


def chunked(data, size=None):
    size = size or max(1, len(data))
    parts = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WORDS_A_TOKEN = 2


def reply_to(body, cached=0):
    """A whole stream for a request, by a tokenizer that makes a token of two words."""
    n = body["max_tokens"]
    return sse(*[chunk("x")] * n, usage(len(body["prompt"].split()) // WORDS_A_TOKEN, n, cached))


@pytest.fixture
def scripted():
    """scripted(answer) -> (url, requests): answer(send, body, number) writes the whole reply with send(bytes)."""
    servers = []

    def make(answer):
        requests = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(requests)
                    requests.append((self.path, dict(self.headers), body))

                def send(data):
                    self.wfile.write(data)
                    self.wfile.flush()

                self.close_connection = True
                try:
                    answer(send, body, number)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", requests

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def plain(send, body, number):
    send(CHUNKED + chunked(reply_to(body)) + b"0\r\n\r\n")


# Long enough that a fast model's tokens do not all come in one piece.
N = 300
STREAMS = ["--streams", "3", "--prompt-tokens", "100", "--generate", str(N), "--rounds", "3"]


def test_the_numbers_of_a_real_server_agree_with_each_other_and_with_it(berth, server):
    eventually(lambda: idle(server))
    before = metrics(server)["totals"]
    out = bench_json(berth, server.url, *STREAMS)
    eventually(lambda: idle(server))
    after = metrics(server)["totals"]

    assert (out["scenario"], out["streams"], out["generate"], out["rounds"]) == ("streams", 3, N, 3)
    assert out["url"] == server.url and out["model"]
    samples = {key: value["samples"] for key, value in out.items() if isinstance(value, dict)}
    assert all(len(s) == 3 for s in samples.values())
    assert samples["generated_tokens"] == [3 * N] * 3
    for i in range(3):
        assert samples["total_tok_s"][i] * samples["seconds"][i] == pytest.approx(3 * N, rel=1e-3)
        p50, p95, most = (samples[f"first_token_{p}_ms"][i] for p in ["p50", "p95", "max"])
        assert 0 < p50 <= p95 <= most <= samples["seconds"][i] * 1000
        assert 0 < samples["longest_gap_ms"][i] < samples["seconds"][i] * 1000
        assert samples["stream_tok_s"][i] > 0
        assert 0.6 * 300 < samples["prompt_tokens"][i] < 1.4 * 300
    for value in (v for v in out.values() if isinstance(v, dict)):
        assert [value["min"], value["median"], value["max"]] == pytest.approx(sorted(value["samples"]), rel=1e-4)
    assert "prompt_tok_s" not in out, "several streams share the reading"
    # A question about words, a warm-up and three rounds.
    assert after["started"] - before["started"] == 1 + 4 * 3
    assert after["generated_tokens"] - before["generated_tokens"] == 1 + 4 * 3 * N


def test_one_stream_has_a_speed_of_reading_its_prompt(berth, server):
    out = bench_json(berth, server.url, "--prompt-tokens", "100", "--generate", "4", "--rounds", "1")
    uncached = out["prompt_tokens"]["median"] - out["cached_tokens"]["median"]
    assert out["prompt_tok_s"]["median"] * out["first_token_max_ms"]["median"] / 1000 == pytest.approx(uncached, rel=1e-3)


def test_prompts_share_next_to_nothing(berth, server):
    out = bench_json(berth, server.url, *STREAMS)
    assert out["cached_tokens"]["max"] <= 0.2 * out["prompt_tokens"]["min"]


def test_a_stream_beside_a_long_prompt_of_a_real_server(berth, server):
    out = bench_json(berth, server.url, "--stall", "--prompt-tokens", "200", "--generate", "8000", "--rounds", "2")
    assert out["scenario"] == "stall" and "streams" not in out
    assert out["first_token_ms"]["min"] > 0 and out["longest_gap_ms"]["min"] > 0 and out["longest_gap_alone_ms"]["min"] > 0
    assert 0.6 * 200 < out["prompt_tokens"]["median"] < 1.4 * 200


def test_text_has_every_round_and_the_medians(berth, server):
    result = berth("bench", "--url", server.url, *STREAMS)
    assert result.returncode == 0, result.stderr
    head, table, medians = result.stdout.split("\n\n")
    assert f"server           {server.url}, model " in head
    assert f"3 streams at once, prompt about 100 tokens, generate {N}, 3 rounds after one to warm up" in head
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["1", "2", "3"]
    for label in ["total", "first token p50", "first token p95", "first token max", "longest gap", "each stream",
                  "tokens generated"]:
        assert f"\n{label} " in medians, label
    assert "tok/s" in medians and " ms " in medians


def test_two_servers_are_measured_in_turns_with_the_same_prompts(berth, scripted):
    order = []

    def named(name):
        def answer(send, body, number):
            order.append(name)
            plain(send, body, number)
        return answer

    (one, asked_one), (two, asked_two) = scripted(named("one")), scripted(named("two"))
    out = bench_json(berth, one, "--vs-url", two, "--rounds", "3", "--generate", "4")
    assert order == ["one"] + ["one", "two", "two", "one"] * 2, "a question, then pairs that begin with another one each"
    assert [r[2]["prompt"] for r in asked_one[1:]] == [r[2]["prompt"] for r in asked_two]
    assert out["vs"]["url"] == two
    for key in ["total_tok_s", "first_token_p50_ms"]:
        pairs = [a / b for a, b in zip(out[key]["samples"], out["vs"][key]["samples"])]
        assert out["vs"][key + "_ratio"]["samples"] == pytest.approx(pairs, rel=1e-3)
    assert "seconds_ratio" not in out["vs"]

    text = berth("bench", "--url", one, "--vs-url", two, "--rounds", "1", "--generate", "4").stdout
    assert f"beside           {two}" in text and f"{one} / {two}: median of the pairs" in text and " times " in text


def test_what_is_asked(berth, scripted, tmp_path):
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    url, asked = scripted(plain)
    out = bench_json(berth, url + "/under/v1/", "--streams", "4", "--prompt-tokens", "100", "--generate", "3",
                     "--rounds", "2", "--model", 'the "model"', "--key-file", key)
    assert len(asked) == 1 + 3 * 4
    for path, headers, body in asked:
        assert path == "/under/v1/completions"
        assert headers["Authorization"] == "Bearer s3cret"
        assert headers["Host"] == url.removeprefix("http://")
        assert {k: v for k, v in body.items() if k not in ("prompt", "max_tokens")} == {
            "model": 'the "model"', "stream": True, "temperature": 0, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    rounds = asked[1:]
    assert {r[2]["max_tokens"] for r in rounds} == {3}
    assert len({r[2]["prompt"].split()[0] for r in rounds}) == len(rounds), "no two prompts begin alike"
    assert {len(r[2]["prompt"].split()) for r in rounds} == {200}, "words for 100 tokens of this tokenizer"
    assert out["prompt_tokens"]["samples"] == [400, 400] and out["model"] == "scripted"


def test_another_run_asks_other_prompts(berth, scripted):
    url, asked = scripted(plain)
    for _ in range(2):
        bench_json(berth, url, "--rounds", "1")
    assert len({r[2]["prompt"] for r in asked}) == len(asked)


def test_a_pause_is_the_first_token_or_the_gap_it_falls_on(berth, scripted):
    def answer(send, body, number):
        time.sleep(0.2)
        send(CHUNKED + chunked(sse(chunk("a"), done=False)))
        time.sleep(0.4)
        send(chunked(sse(chunk("b"), usage(40, 3, cached=8))) + b"0\r\n\r\n")

    url, _ = scripted(answer)
    out = bench_json(berth, url, "--rounds", "1")
    first, gap, seconds = (out[k]["median"] for k in ["first_token_p50_ms", "longest_gap_ms", "seconds"])
    # A first piece that is read late is early for the gap, never for both.
    assert 200 <= first and 250 <= gap and 600 <= first + gap <= seconds * 1000 + 1
    assert out["total_tok_s"]["median"] == pytest.approx(3 / seconds, rel=1e-3)
    assert out["stream_tok_s"]["median"] == pytest.approx(2 / (gap / 1000), rel=1e-3)
    assert out["prompt_tok_s"]["median"] == pytest.approx((40 - 8) / (first / 1000), rel=1e-3)
    assert out["cached_tokens"]["median"] == 8


def test_percentiles_are_those_of_the_streams(berth, scripted):
    def answer(send, body, number):
        if number > 4:
            time.sleep(0.3 * ((number - 1) % 4))
        plain(send, body, number)

    url, _ = scripted(answer)
    out = bench_json(berth, url, "--streams", "4", "--rounds", "1")
    p50, p95, most = (out[f"first_token_{p}_ms"]["median"] for p in ["p50", "p95", "max"])
    assert 300 <= p50 < 600 and p95 == most and 900 <= most


def test_a_stall_is_the_gap_while_the_second_prompt_is_read(berth, scripted):
    second_came, second_answers = threading.Event(), threading.Event()

    def answer(send, body, number):
        if number and number % 2:
            second_came.clear()
            second_answers.clear()
            send(CHUNKED)
            for _ in range(8):
                send(chunked(sse(chunk("a"), done=False)))
            second_came.wait(30)
            send(chunked(sse(chunk("b"), done=False)) * 3)
            second_answers.wait(30)
            time.sleep(0.1)
            for _ in range(1000):
                send(chunked(sse(chunk("c"), done=False)))
        elif number:
            second_came.set()
            time.sleep(0.3)
            send(CHUNKED + chunked(reply_to(body)) + b"0\r\n\r\n")
            second_answers.set()
        else:
            plain(send, body, number)

    url, asked = scripted(answer)
    out = bench_json(berth, url, "--stall", "--rounds", "2", "--prompt-tokens", "500")
    assert out["longest_gap_ms"]["min"] >= 300 and out["first_token_ms"]["min"] >= 300
    assert out["longest_gap_alone_ms"]["max"] < 300
    assert out["stream_chunks_s"]["max"] == pytest.approx(3 / out["first_token_ms"]["min"] * 1000, rel=1e-3)
    assert out["prompt_tokens"]["samples"] == [500, 500]
    assert [r[2]["max_tokens"] for r in asked] == [1] + [1024, 1] * 3


def test_a_first_stream_that_ends_too_early_is_an_error(berth, scripted):
    def answer(send, body, number):
        if number == 2:
            time.sleep(1)
        plain(send, body, number)

    url, _ = scripted(answer)
    result = berth("bench", "--url", url, "--stall", "--generate", "16", "--rounds", "1")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == f"berth: {url}: the first stream was over before the second prompt was read; --generate more\n"


FRAMINGS = {
    "chunks of one byte": lambda data: CHUNKED + chunked(data, 1) + b"0\r\n\r\n",
    "chunk extensions and trailers": lambda data: CHUNKED + b"%X ;a=b\r\n%s\r\n" % (len(data), data) +
                                                  b"0\r\nDigest: x\r\n\r\n",
    "a length": lambda data: HEAD + b"content-length: %d\r\n\r\n" % len(data) + data,
    "until it closes": lambda data: HEAD + b"\r\n" + data,
    "an interim reply before": lambda data: b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED + chunked(data) + b"0\r\n\r\n",
    "comments, names and CRLF": lambda data: CHUNKED + chunked(
        b": wait\r\n\r\n" + data.replace(b"\n\n", b"\r\n\r\n").replace(b"data: ", b"event: x\r\ndata:")) + b"0\r\n\r\n",
    "no [DONE]": lambda data: CHUNKED + chunked(data.replace(b"data: [DONE]\n\n", b"")) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_way_to_send_a_stream_is_read(berth, scripted, framing):
    url, _ = scripted(lambda send, body, number: send(FRAMINGS[framing](reply_to(body))))
    out = bench_json(berth, url, "--streams", "2", "--rounds", "1", "--generate", "5")
    assert out["generated_tokens"]["median"] == 10 and out["prompt_tokens"]["median"] == 128


BROKEN = {
    "HTTP 503: busy  come again": b"HTTP/1.1 503 Unavailable\r\nContent-Length: 17\r\n\r\nbusy\r\ncome again\n",
    "HTTP 500": b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    'no stream of events came, but: {"choices":[]}':
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n" + b'{"choices":[]}',
    "what answers there does not speak HTTP/1.1": b"220 mail.example ESMTP\r\n\r\n",
    "the server closed the connection without an answer": b"",
    "the server closed the connection in the middle of its reply": CHUNKED + chunked(sse(chunk("a"))),
    "the reply is not chunked as HTTP/1.1 wants it": CHUNKED + b"xyz\r\n",
    "the reply's head is longer than 64 KiB": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000,
    "an event is not JSON": CHUNKED + chunked(b"data: {nothing\n\n"),
    "an error in the stream: out of berths": CHUNKED + chunked(sse({"error": {"message": "out of berths"}})),
    "the stream told no usage": CHUNKED + chunked(sse(chunk("a"))) + b"0\r\n\r\n",
    "nothing was generated": CHUNKED + chunked(sse(usage(4, 0))) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_a_server_does_wrong_is_an_error_of_one_line(berth, scripted, message):
    url, _ = scripted(lambda send, body, number: send(BROKEN[message]))
    result = berth("bench", "--url", url)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"berth: {url}: {message}") and result.stderr.count("\n") == 1


def test_an_error_in_a_later_round_is_an_error(berth, scripted):
    def answer(send, body, number):
        if number == 5:
            send(BROKEN["HTTP 500"])
        else:
            plain(send, body, number)

    url, _ = scripted(answer)
    result = berth("bench", "--url", url, "--streams", "2", "--rounds", "3")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == f"berth: {url}: HTTP 500:\n"


def test_a_server_that_says_nothing_is_given_up(berth, scripted):
    over = threading.Event()
    url, _ = scripted(lambda send, body, number: over.wait(60))
    result = berth("bench", "--url", url, "--timeout", "1")
    over.set()
    assert result.returncode == 1
    assert result.stderr == f"berth: {url}: nothing came for 1 s\n"


def test_a_servers_refusal_is_printed_in_its_words(berth, server):
    result = berth("bench", "--url", server.url, "--prompt-tokens", "1000000", "--generate", "1")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"berth: {server.url}: HTTP 4") and "context" in result.stderr


def test_a_key_opens_a_server_that_wants_one(berth, start_server, tmp_path):
    keys, key = tmp_path / "keys", tmp_path / "key"
    keys.write_text(f"bench:{hashlib.sha256(b'open sesame'.replace(b' ', b'-')).hexdigest()}\n")
    key.write_text("open-sesame\n")
    server = start_server({"server.keys_file": keys, "engine.threads": 1})
    result = berth("bench", "--url", server.url, "--rounds", "1")
    assert result.returncode == 1 and "HTTP 401" in result.stderr
    assert bench_json(berth, server.url, "--rounds", "1", "--generate", "2", "--key-file", key)["generated_tokens"]["median"] == 2


def test_nobody_at_an_address_is_an_error(berth, scripted):
    url, _ = scripted(plain)
    result = berth("bench", "--url", "http://127.0.0.1:1", "--vs-url", url)
    assert result.returncode == 1
    assert result.stderr == "berth: http://127.0.0.1:1: cannot connect: Connection refused\n"


@pytest.mark.parametrize("url, message", [
    ("https://127.0.0.1:1", "wants TLS, which is not spoken here; wanted is http://HOST:PORT"),
    ("ftp://127.0.0.1", "does not begin with http://"),
    ("127.0.0.1:8080", "is not an address"),
    ("http://", "names no host"),
    ("http://127.0.0.1:70000", "127.0.0.1:70000"),
    ("http://127.0.0.1:0", "has a port outside 1..65535"),
    ("http://me:pw@127.0.0.1:80", "holds more than an address and a path"),
    ("http://127.0.0.1/?a=b", "holds more than an address and a path"),
    ("http://" + "h" * 300, "has too long a host name"),
    ("http://h/" + "p" * 300, "has too long a path"),
])
@pytest.mark.parametrize("option", ["--url", "--vs-url"])
def test_an_address_that_is_none_is_wrong_usage(berth, option, url, message):
    others = [] if option == "--url" else ["--url", "http://127.0.0.1:1"]
    result = berth("bench", *others, option, url)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"berth: {option}: ") and message in result.stderr


@pytest.mark.parametrize("args, message", [
    (["--streams", "0"], '--streams: "0" is not a whole number 1..256'),
    (["--prompt-tokens", "0"], "--prompt-tokens"),
    (["--generate", "0"], "--generate"),
    (["--generate", "8", "--stall"], '--generate: "8" is not a whole number 16..'),
    (["--rounds", "1001"], "--rounds"),
    (["--timeout", "x"], "--timeout"),
    (["--stall", "--streams", "2"], "--streams does not go with it"),
    (["--depth", "3"], "unknown option --depth"),
    (["--prompt-token", "3"], "did you mean --prompt-tokens?"),
    (["model.gguf"], 'unexpected argument "model.gguf"'),
])
def test_wrong_usage_is_named(berth, args, message):
    result = berth("bench", "--url", "http://127.0.0.1:1", *args)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr


@pytest.mark.parametrize("content, message", [
    (None, "No such file or directory"),
    ("\nkey\n", "its first line is no key of 1..1024 characters"),
    ("x" * 2000, "its first line is no key of 1..1024 characters"),
    ("a b\n", "byte 2 is no part of a key"),
])
def test_a_key_file_that_holds_none_is_an_error(berth, tmp_path, content, message):
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    result = berth("bench", "--url", "http://127.0.0.1:1", "--key-file", path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"berth: --key-file: {path}: ") and message in result.stderr


def test_a_second_server_wants_a_first(berth):
    result = berth("bench", "--vs-url", "http://127.0.0.1:1")
    assert result.returncode == 2 and "--vs-url wants --url too" in result.stderr


def test_both_ways_to_measure_have_their_help(berth):
    assert "berth bench --url --help" in berth("bench", "--help").stdout
    text = berth("bench", "--url", "--help").stdout
    for option in ["--vs-url", "--stall", "--prompt-tokens", "--key-file", "--timeout"]:
        assert f"\n  {option} " in text
