"""tests/gpu/run where there is no GPU: it says so for each step; and on the emulator's programs its report is right, what fails
beside what does not."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BERTH_BUILD", ROOT / "build"))
EMULATOR = BUILD / "tests" / "cudahost"


def gpu_run(tmp_path, *args):
    report = tmp_path / "report.json"
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/run", "--report", report, *args], capture_output=True, text=True,
                          timeout=100)
    return done.returncode, json.loads(report.read_text())


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has one")
def test_without_a_gpu_every_step_says_so(tmp_path):
    code, report = gpu_run(tmp_path)
    assert code == 1 and not report["ok"]
    assert list(report["steps"]) == ["device", "kernels", "sanitizer", "server", "speed", "bench"]
    for step in report["steps"].values():
        assert not step["ok"] and step["why"].startswith("no CUDA device: ")


@pytest.mark.skipif(not EMULATOR.exists(), reason="this build has no emulator of CUDA")
def test_what_fails_leaves_the_other_results(tmp_path, synthetic_model):
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "berth").symlink_to(EMULATOR / "berth_cudahost")
    (packed / "gpu_best").symlink_to(EMULATOR / "test_cuda_best")
    (packed / "gpu_matmul").symlink_to("/bin/false")
    (packed / "gpu_speed").symlink_to(EMULATOR / "gpu_speed_cudahost")
    (packed / "libcublas.so.13").symlink_to(EMULATOR / "libcublas.so.13")
    (packed / "model.gguf").symlink_to(synthetic_model)
    code, report = gpu_run(tmp_path, "--from", packed, "--emulated", "--steps", "device,kernels,speed,bench")
    steps = report["steps"]
    assert code == 1 and steps["device"]["ok"] and steps["speed"]["ok"] and steps["bench"]["ok"], report
    assert steps["kernels"]["why"] == "not fine: gpu_matmul, gpu_attention, gpu_engine"
    kernels = steps["kernels"]["result"]
    assert kernels["gpu_best"]["tested"] == kernels["gpu_best"]["passing"] == 2
    assert "ended without a count" in kernels["gpu_matmul"]["why"] and "is not there" in kernels["gpu_attention"]["why"]
    speed = steps["speed"]["result"]
    assert len(speed) == 16 and speed["attention f16, 512 tokens"]["bytes"] == 512 * 8 * 128 * 2 * 2
    for one in speed.values():
        assert 0 < one["least"] <= one["median"] <= one["most"]
        assert one["tflop_s"] == pytest.approx(one["operations"] / one["median"] / 1e12)
    for streams in (1, 2):
        bench = steps["bench"]["result"][f"{streams} streams"]
        assert bench["device"].startswith("cuda device 0")
        weights = os.path.getsize(synthetic_model)
        assert bench["decode_weights_gb_s"] == pytest.approx(bench["decode_tok_s"]["median"] / streams * weights / 1e9)
        assert bench["decode_of_peak"] is None
