"""The attention kernels: compiled for chips that are not here, against the oracle, and timed on what is here.

    python3 run.py bench kernel [--quick] [--json FILE]

Times are processor seconds of one thread, the best of a few, so that a busy machine disturbs them little.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from carnator.carnator_core.connectivity import EVERY, morton_order
from carnator.kernels import available_backends, block_sparse_attention, mass, select
from carnator.kernels.masks import pack_bits

from . import ROOT
from . import _compiled as compiled
from ._attention import alone
from ._shapes import random_mask
from ._table import table

WAN_480P = (21, 30, 52)  # tokens of Wan2.1-1.3B at 832 x 480, 81 frames; 12 heads of 128
DENSITIES = (0.1, 0.2, 0.3, 0.5, 1.0)
Row = dict[str, Any]


def best(run: Callable[[], Any], times: int = 5) -> float:
    """Processor seconds of the fastest run."""
    run()
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def compiled_table(quick: bool) -> list[Row]:
    """Every kernel on every chip, as the pack would launch it."""
    rows: list[Row] = []
    for chip in compiled.CHIPS:
        jobs = [partial(compiled.forward, chip, 128, 128)]
        for dtype, head_dim in [] if quick else product((torch.bfloat16, torch.float16), (128, 64)):
            jobs += [partial(compiled.forward, chip, head_dim, block_q, dtype, need_lse=True) for block_q in (128, 64)]
            jobs.append(partial(compiled.scores, chip, head_dim, dtype))
        for job in jobs:
            try:
                rows.append(job().plain())
            except Exception as error:  # one chip that this Triton does not know must not hide the others
                reason = f"not compiled: {type(error).__name__}: {error}"
                rows.append({"chip": chip, "kernel": reason[:110], "sound": False})
    return rows


def oracle_errors() -> dict[str, float] | str:
    """Largest relative error per kernel and dtype over the test's cases, interpreted; or why there is none."""
    child = ROOT / "tests" / "test_kernels_triton.py"
    if not child.is_file() or importlib.util.find_spec("pytest") is None:
        return "the tests are not here"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, child], env=environment, capture_output=True, text=True)
    if done.returncode:
        return f"the interpreter failed: {done.stderr.strip().splitlines()[-1]}"
    errors: dict[str, float] = {}
    for name, (dtype, error, _, finite) in json.loads(done.stdout.splitlines()[-1]).items():
        kind = f"{'mass' if name.startswith('mass') else 'attention'} {dtype}"
        errors[kind] = max(errors.get(kind, 0.0), error if finite else float("inf"))
    return errors


def cpu_table(quick: bool) -> list[Row]:
    """The gathering path against torch's dense attention, two heads of 128."""
    rows = []
    for tokens in (1280,) if quick else (640, 1280, 4320):
        for dtype in (torch.float32,) if quick else (torch.float32, torch.bfloat16):
            q, k, v = (torch.randn(1, 2, tokens, 128).to(dtype) for _ in range(3))
            dense = best(lambda: F.scaled_dot_product_attention(q, k, v))  # noqa: B023 (called at once)
            for density in DENSITIES:
                mask = random_mask(tokens, density, 2)
                sparse = best(lambda: block_sparse_attention(q, k, v, mask))  # noqa: B023
                rows.append({"tokens": tokens, "dtype": str(dtype).removeprefix("torch."),
                             "density": round(mask.density, 3), "dense_ms": round(1e3 * dense, 2),
                             "sparse_ms": round(1e3 * sparse, 2), "ratio": round(sparse / dense, 3)})
    return rows


def recording_cost(quick: bool) -> Row:
    """What recording adds to one head's dense attention at Wan2.1-1.3B's 480p shape (fewer frames when quick)."""
    grid = (5, 30, 52) if quick else WAN_480P
    tokens = grid[0] * grid[1] * grid[2]
    q, k, v = (torch.randn(1, 1, tokens, 128) for _ in range(3))
    order = morton_order(grid)

    def record() -> None:
        found = mass(q.index_select(2, order), k.index_select(2, order))
        pack_bits(select(found))

    times = 3 if quick else 1
    dense, recorded = best(lambda: F.scaled_dot_product_attention(q, k, v), times), best(record, times)
    return {"grid": list(grid), "dense_s": round(dense, 3), "recording_s": round(recorded, 3),
            "of_one_attention": round(recorded / dense, 4), "steps_sharing_one": EVERY,
            "of_a_render_at_most": round(recorded / dense / EVERY, 4)}


def gpu_table(quick: bool) -> list[Row] | str:
    """The Triton kernel beside dense and other sparse attention at Wan2.1-1.3B's shape (`_attention.alone`); or why not."""
    reason = available_backends("cuda")["triton"]
    if reason:
        return f"not measured: {reason}"
    grid = (9, 30, 52) if quick else WAN_480P
    rows, missing = alone(grid[0] * grid[1] * grid[2], 12, 128, "cuda", torch.bfloat16, DENSITIES)
    return [{"gpu": torch.cuda.get_device_name(), "tokens": grid[0] * grid[1] * grid[2], "missing": missing} | row for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py bench kernel", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one kernel a chip, one size, fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    torch.set_num_threads(1)
    result: Row = {"torch": torch.__version__, "quick": arguments.quick}

    print("Compiled ahead of time (registers a thread, spilled bytes a thread, shared bytes a block)")
    if importlib.util.find_spec("triton") is None:
        result["compiled"] = "not measured: Triton is not installed"
        print(f"  {result['compiled']}")
    else:
        result["compiled"] = compiled_table(arguments.quick)
        table(result["compiled"], {"chip": "chip", "kernel": "kernel", "head_dim": "head", "tile": "tile",
                                   "registers": "registers", "spills": "spills", "shared": "shared", "fits": "fits",
                                   "products": "products", "copies": "copies", "sound": "sound"})
        print("Against the oracle, in Triton's interpreter: largest relative error")
        result["oracle"] = oracle_errors()
        print(f"  {result['oracle']}")
    print("CPU, gathered blocks against dense attention (one thread)")
    result["cpu"] = cpu_table(arguments.quick)
    table(result["cpu"], {k: k for k in ("tokens", "dtype", "density", "dense_ms", "sparse_ms", "ratio")})
    print("Recording, one head at Wan2.1-1.3B's 480p shape" + (", 17 frames" if arguments.quick else ""))
    result["recording"] = recording_cost(arguments.quick)
    print(f"  {result['recording']}")
    print("GPU, milliseconds of one attention")
    result["gpu"] = gpu_table(arguments.quick)
    if isinstance(result["gpu"], str):
        print(f"  {result['gpu']}")
    else:
        table(result["gpu"], {k: k for k in ("tokens", "density", "dense", "ours", "flex", "sparge")})
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    rows = result["compiled"] if isinstance(result["compiled"], list) else []
    return 0 if all(r["sound"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
