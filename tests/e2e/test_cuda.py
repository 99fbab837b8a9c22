"""The server with engine.device: on emulated devices it says what it says on the CPU, to the letter; where there is none it says so."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BERTH_BUILD", ROOT / "build"))
EMULATED = BUILD / "tests" / "cudahost" / "berth_cudahost"
# Greedy; from the best logits alone; with their probabilities; and with something that needs all of them.
BODIES = [{"prompt": "Once upon a time", "temperature": 0},
          {"prompt": "The quick brown fox jumps over", "seed": 3},
          {"prompt": "1 2 3 4 5 6 7", "seed": 4, "temperature": 1.5, "top_p": 1, "logprobs": 3},
          {"prompt": "Hello", "seed": 5, "frequency_penalty": 1}]
SMALL = {"engine.kv_tokens": 1024, "model.context": 256, "engine.threads": 1}

pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="this build has no emulator of CUDA")


def say(server, body):
    reply = requests.post(f"{server.url}/v1/completions", json={"max_tokens": 6, **body}, timeout=120)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]


def on_cpu(start_server):
    server = start_server({**SMALL, "engine.device": "cpu", "engine.isa": "avx2"})
    said = [say(server, b) for b in BODIES]
    server.stop()
    return said


def has_avx2():
    return " avx2 " in Path("/proc/cpuinfo").read_text()


@pytest.mark.skipif(not has_avx2(), reason="the CPU's bits without AVX2 are others")
@pytest.mark.parametrize("stages", [1, 2])
def test_the_same_words_as_on_the_cpu(start_server, stages):
    want = on_cpu(start_server)
    server = start_server({**SMALL, "engine.device": "auto", "engine.stages": stages}, binary=EMULATED,
                          env={"CUDAHOST_DEVICES": str(stages)})
    assert "cuda device 0" in server.ready["device"]
    assert [say(server, b) for b in BODIES] == want
    with ThreadPoolExecutor(len(BODIES)) as pool:
        assert list(pool.map(lambda b: say(server, b), BODIES)) == want


def test_what_does_not_fit_on_the_device_is_said(start_server):
    server = start_server({"engine.device": "cuda", "engine.kv_tokens": 1 << 22}, binary=EMULATED, wait=False,
                          env={"CUDAHOST_MEMORY": "600"})
    assert server.process.wait(60) == 1
    assert "work with 512 MB, but 600 MB are available on the device; lower it" in server.log
    server = start_server({"engine.device": "cuda"}, binary=EMULATED, wait=False, env={"CUDAHOST_MEMORY": "512"})
    assert server.process.wait(60) == 1
    assert server.log.endswith("but 512 MB are available on the device")  # and no advice that could not help


def test_auto_takes_the_cpu_where_a_device_is_too_small_or_lost_while_loading(start_server, tmp_path):
    (tmp_path / "lost").touch()
    for env, why in (({"CUDAHOST_MEMORY": "512"}, "512 MB are available on the device"),
                     ({"CUDAHOST_LOSE": str(tmp_path / "lost")}, "CUDA device 0")):
        server = start_server({**SMALL, "engine.device": "auto"}, binary=EMULATED, env=env)
        assert server.ready["device"].startswith("cpu") and server.log.count("using=cpu reason=") == 1
        assert why in server.wait_log("using=cpu reason=.*").group(0)
        assert say(server, {**BODIES[0], "max_tokens": 2})
        server.stop()


def test_the_pool_is_as_large_as_the_device_has_memory_for(start_server):
    server = start_server({"engine.device": "cuda", "engine.threads": 1}, binary=EMULATED, env={"CUDAHOST_MEMORY": "530"})
    assert 12 <= int(server.ready["kv_mb"]) <= 530 - 512


def test_a_lost_device_fails_requests_and_turns_readiness_off(start_server, tmp_path):
    lost = tmp_path / "lost"
    server = start_server({**SMALL, "engine.device": "cuda"}, binary=EMULATED, env={"CUDAHOST_LOSE": str(lost)})
    assert requests.get(f"{server.url}/ready", timeout=10).status_code == 200
    with requests.post(f"{server.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 200, "stream": True}, stream=True,
                       timeout=120) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith(b"data:"))
        assert b'"text"' in next(lines)
        lost.touch()
        rest = b"\n".join(lines)
    assert b"CUDA device 0" in rest and b'"error"' in rest, rest[-500:]
    for _ in range(2):
        reply = requests.post(f"{server.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 4}, timeout=120)
        assert reply.status_code == 500 and "CUDA device 0" in reply.json()["error"]["message"], reply.text
    ready = requests.get(f"{server.url}/ready", timeout=10)
    assert ready.status_code == 503 and ready.json()["status"] == "device lost"
    assert requests.get(f"{server.url}/health", timeout=10).status_code == 200
    assert server.log.count("device lost reason=") == 1


@pytest.mark.skipif(not has_avx2(), reason="the CPU's bits without AVX2 are others")
def test_k_quants_and_keys_in_q8_0_are_the_devices_too(start_server, tmp_path):
    model = tmp_path / "kquant.gguf"
    subprocess.run([sys.executable, ROOT / "tools/make-model", "--type", "Q4_K", "--embd", "256", "--ff", "256", "--layers", "1", "--heads", "4",
                    "--kv-heads", "2", model],
                   check=True, timeout=100)
    small = {**SMALL, "engine.kv_type": "q8_0"}
    server = start_server({**small, "engine.device": "cpu", "engine.isa": "avx2"}, model=model)
    want = say(server, {**BODIES[0], "max_tokens": 4})
    server.stop()
    server = start_server(small, model=model, binary=EMULATED)
    assert "cuda device 0" in server.ready["device"]
    assert say(server, {**BODIES[0], "max_tokens": 4}) == want


@pytest.mark.long
@pytest.mark.real
@pytest.mark.skipif(not has_avx2(), reason="the CPU's bits without AVX2 are others")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_gemma_says_on_the_device_what_it_says_on_the_cpu(start_server, gemma_model, kv_type):
    """A file as they come: Q4_K, Q5_0, Q6_K and Q8_0 side by side."""
    body, small = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 3, "logprobs": 5}, {**SMALL, "engine.kv_type": kv_type}
    server = start_server({**small, "engine.device": "cpu", "engine.isa": "avx2"}, model=gemma_model)
    want = say(server, body)
    server.stop()
    server = start_server({**small, "engine.device": "cuda"}, model=gemma_model, binary=EMULATED)
    assert say(server, body) == want


def test_auto_names_the_cpu_where_an_instruction_set_is_named(start_server):
    server = start_server({**SMALL, "engine.isa": "portable"}, binary=EMULATED)
    assert server.ready["device"].startswith("cpu portable")


def test_without_a_device_cuda_is_refused_and_auto_is_the_cpu(start_server, berth_bin, synthetic_model):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has one")
    done = subprocess.run([berth_bin, "serve", "--set", f"model.path={synthetic_model}", "--set", "server.listen=127.0.0.1:0",
                           "--set", "engine.device=cuda"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "engine.device: cuda cannot be had: " in done.stderr
    server = start_server({**SMALL, "engine.device": "auto"})
    assert server.ready["device"].startswith("cpu")
    assert server.log.count("using=cpu reason=") == (0 if "this build has no CUDA" in done.stderr else 1)
