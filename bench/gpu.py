"""Real model shapes with random weights on the GPU: a guided evaluation by every mode, and the kernel alone.

    python3 run.py bench gpu [--quick] [--cpu] [--json FILE]

Seconds and memory only: with random weights there is no picture. Without a CUDA GPU the table says "not measured" and the
command ends well; --cpu runs the same code on tiny stand-in shapes here, which shows that it works and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from carnator.carnator_core.connectivity import EVERY
from carnator.carnator_core.request import Settings

from . import _attention
from ._attention import DENSITIES
from ._shapes import MODES, SHAPES, Shape, Stand
from ._stage import host, machine
from ._table import table

Row = dict[str, Any]
RENDER = 50  # evaluations of a dense render
OURS = 14  # evaluations computed on a hit, as in the demo world (docs/data/demo.json)
TINY = (Shape("stand-in Wan", "wan", (16, 2, 16, 18), 256, 512, 2, 3, 16),
        Shape("stand-in LTX", "ltx", (128, 2, 8, 9), 256, 1024, 4, 3, 16))
COLUMNS = {"shape": "shape", "tokens": "tokens", "dense": "dense s", "latent": "latent s", "attention": "attention s",
           "joint": "joint s", "record": "recording s", "recording": "recording costs", "render": "dense render s",
           "joint_ratio": "joint", "ours_ratio": "ours", "peak": "dense GB", "peak_reuse": "joint GB"}


def modes(shape: Shape, device: str, dtype: torch.dtype, times: int, share: float = 0.1, density: float = 0.3) -> Row:
    """Seconds of one guided evaluation by each mode, what a render comes to, and peak memory in GB (None on a CPU).

    A joint render computes every step with both halves but the probe's; ours computes `OURS` evaluations, the probe's and
    every third of the others whole (Settings.refresh). recording: share that recording adds to a render.
    """
    row: Row = {"shape": shape.name, "tokens": shape.tokens, "layers": shape.layers, "device": device,
                "dtype": str(dtype).removeprefix("torch."), "density": density}
    stand = Stand(shape, device, dtype, share, density)
    row["active_share"] = round(stand.scope.share(), 3)
    row["peak"] = _peak(device, lambda: stand.evaluate("dense"))
    stand.evaluate("full")
    row["peak_reuse"] = _peak(device, lambda: stand.evaluate("joint"))
    row |= {name: round(s, 4) for name, s in stand.seconds(times, *MODES, "record").items()}
    row["recording"] = round((row["record"] / row["dense"] - 1) / EVERY, 4)
    row["render"] = round(RENDER * row["dense"], 2)
    joint = Settings.probe * row["dense"] + (RENDER - Settings.probe) * row["joint"]
    probe, turn = Settings.probe, Settings.refresh + 1
    whole = probe + (OURS - probe + turn - 1) // turn
    ours = whole * row["dense"] + (OURS - whole) * row["joint"]
    row["joint_ratio"], row["ours_ratio"] = round(row["render"] / joint, 2), round(row["render"] / ours, 2)
    return row


def _peak(device: str, run: Any) -> float | None:
    if torch.device(device).type != "cuda":
        run()
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return round(torch.cuda.max_memory_allocated() / 1e9, 2)


def measure(shapes: Sequence[Shape], device: str, dtype: torch.dtype, times: int,
            densities: Sequence[float] = DENSITIES) -> dict[str, Any]:
    """All tables: `modes`, `attention` (per shape, the kernel alone), `missing` (backend -> why not), `backends`."""
    result: dict[str, Any] = {"machine": machine(), "device": device, "modes": [], "attention": [], "missing": {},
                              "backends": _attention.backends(device)}
    for shape in shapes:
        try:
            result["modes"].append(modes(shape, device, dtype, times))
        except torch.OutOfMemoryError as error:
            result["modes"].append({"shape": shape.name, "tokens": shape.tokens, "dense": f"out of memory: {error}"[:60]})
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()
        rows, missing = _attention.alone(shape.tokens, shape.heads, shape.dim // shape.heads, device, dtype, densities, times)
        result["attention"] += [{"shape": shape.name} | row for row in rows]
        result["missing"] |= missing
    return result


def show(result: dict[str, Any]) -> None:
    """The tables as text."""
    print(f"On {result['machine']}; one guided evaluation (two branches) by each mode, render of {RENDER}")
    table(result["modes"], COLUMNS)
    print("One self-attention alone, milliseconds")
    table(result["attention"], {"shape": "shape", "density": "density", "dense": "dense", "ours": "ours", "flex": "FlexAttention",
                                "sparge": "SpargeAttn", "error": "error of ours"})
    for name, reason in {**{k: v for k, v in result["backends"].items() if v}, **result["missing"]}.items():
        print(f"  {name}: not measured: {reason}")


def not_measured() -> dict[str, Any]:
    """The same tables where there is no GPU."""
    return {"machine": machine(), "device": "none", "backends": _attention.backends("cpu"), "attention": [],
            "missing": {"GPU": "no CUDA GPU is here"},
            "modes": [{"shape": s.name, "tokens": s.tokens} | dict.fromkeys(list(COLUMNS)[2:], "not measured") for s in SHAPES]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py bench gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two shapes, fewer repeats")
    parser.add_argument("--cpu", action="store_true", help="tiny stand-in shapes on the CPU: shows that this runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    host()
    if arguments.cpu:
        torch.set_num_threads(1)
        result = measure(TINY, "cpu", torch.float32, 2, (0.3, 1.0))
    elif torch.cuda.is_available():
        result = measure(SHAPES[::2] if arguments.quick else SHAPES, "cuda", torch.bfloat16, 3 if arguments.quick else 7)
    else:
        result = not_measured()
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
