# SPDX-License-Identifier: Apache-2.0
"""Runs training code in a process of its own with the real plugin loaded, and returns the steps that its trace has."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Stands in for NCCL: makes a communicator of 8 ranks, so that the plugin's worker runs and writes its trace.
BEFORE = """
import ctypes, time
import linkwise_step
lib = linkwise_step.library()
assert lib is not None, "the plugin was not found"
init_t = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)(lambda *a: None)
table = (ctypes.c_void_p * 4).in_dll(lib, "ncclTunerPlugin_v4")
context = ctypes.c_void_p()
assert init_t(table[1])(8, 1, ctypes.cast(log, ctypes.c_void_p), ctypes.byref(context)) == 0 and context.value
"""
AFTER = """
time.sleep(0.2)
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(table[3])(context) == 0
"""

LIBRARY = os.environ.get("LINKWISE_TEST_PLUGIN", "")


def steps(code: str) -> list:
    """Times of the steps that the code reported, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"NCCL_TUNER_PLUGIN": LIBRARY, "LINKWISE_MODE": "observe", "LINKWISE_TRACE": folder, "CUDA_VISIBLE_DEVICES": ""}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LINKWISE_")}
        environment.update(settings, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1", PYTHONWARNINGS="ignore")
        done = subprocess.run(
            [sys.executable, "-c", BEFORE + code + AFTER], env=environment, cwd=folder, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for file in Path(folder).glob("*.jsonl") for line in file.read_text().splitlines()]
        assert lines, f"no trace in {list(Path(folder).iterdir())}"
        return [v["time_us"] for v in map(json.loads, lines) if v.get("kind") == "step"]
