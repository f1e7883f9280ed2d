"""The early probe: where it sees things after 2 to 10 steps, and what looking costs.

    python3 run.py bench probe [--quick] [--family NAME] [--json FILE]

Localisation: IoU of the Evidence Region after the probe's last step with the object in the finished clip (found in the
decoded frames, brought to visual tokens), and with another clip's object as control. Whole hits: how near the dense render
they come, and how fast they are, by the length of the probe that they begin with. Cost: seconds that reading
attention, building regions, the signature and the gate add to a render, as a share of the dense one; for the demo model,
and for the shape of Wan2.1-1.3B with random weights at a size this machine can run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from carnator.carnator_core import gate, recall
from carnator.carnator_core.backbones.base import token_grid
from carnator.carnator_core.observe import AttentionReader
from carnator.carnator_core.prompt import parse, token_slots
from carnator.carnator_core.signature import signature
from carnator.demo import scorer, world
from carnator.demo.evaluate import picture, token_mask
from torch import Tensor

from . import _stage as stage
from ._table import table

LENGTHS = range(2, 11)
REAL = {"dim": 1536, "ffn_dim": 8960, "num_heads": 12, "text_dim": 4096}  # Wan2.1-1.3B, which has 30 such layers
REAL_LAYERS, REAL_STEPS = 30, 50
REAL_LATENT = (1, 16, 3, 60, 104)  # 832 x 480, 9 frames: 4,680 tokens
Row = dict[str, Any]


def watched(theatre: stage.Stage, prompt: str, lengths: Sequence[int]) -> tuple[Any, dict[int, Timed]]:
    """The model with attention read at the last step of every probe length, and the readers by length."""
    from carnator.carnator_core.hosts.opening import middle
    from carnator.carnator_core.hosts.patching import Patched
    from comfy.patcher_extension import WrappersMP

    carried = theatre.text(prompt)[0][1]["carnator"]
    parsed = parse(prompt)
    columns = token_slots(parsed.text, carried["pieces"], parsed.entities)
    layers = theatre.layers
    readers = {p: Timed(columns, middle(layers)) for p in lengths}
    calls = iter(range(1, 10_000))

    def read(executor: Any, x: Tensor, timestep: Tensor, options: dict[str, Any], seed: Any = None) -> Tensor:
        reader = readers.get(next(calls))
        call = Patched(options, layers, reader, None, False, None, capture=False)
        return executor(x, timestep, call.options, seed)

    clone = theatre.model.clone()
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, "bench", read)
    return clone, readers


def iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union of two boolean grids; 0 when both are empty."""
    return int((a & b).sum()) / max(1, int((a | b).sum()))


def localisation(theatre: stage.Stage, prompts: int, seed: int = 3) -> list[Row]:
    """A row for each probe length: mean and lower quartile of the IoU, control, and how often nothing was found."""
    rng = random.Random(seed)
    scenes = [world.random_scene(rng, pair=0.0, counted=0.0, held=True) for _ in range(prompts)]
    grid = token_grid(theatre.latent, theatre.patch)
    found: dict[int, list[Tensor]] = {p: [] for p in LENGTHS}
    objects: list[Tensor] = []
    step = stage.progress(prompts)
    for number, scene in enumerate(scenes):
        prompt = world.caption(scene)
        model, readers = watched(theatre, prompt, LENGTHS)
        latent, _ = theatre.sample(model, prompt, 1000 + number)
        step("localisation")
        _, masks = scorer.look(picture(latent[None])[0])
        if not len(masks):
            continue  # the model drew nothing that could be found
        count = grid[0] * grid[1] * grid[2]
        objects.append((token_mask(masks[0], count) > 0.4).view(grid))
        for p, reader in readers.items():
            regions = reader.regions(grid)[0]
            found[p].append(regions.get(scene.things[0].noun, torch.zeros(grid, dtype=torch.bool)))
    rows: list[Row] = []
    for p in LENGTHS:
        own = [iou(r, o) for r, o in zip(found[p], objects, strict=True)]
        other = [iou(r, objects[(i + 1) % len(objects)]) for i, r in enumerate(found[p])]
        rows.append({"probe": p, "iou": round(statistics.mean(own), 3), "lower_quartile": round(statistics.quantiles(own)[0], 3),
                     "control": round(statistics.mean(other), 3), "empty": sum(not bool(r.any()) for r in found[p]),
                     "clips": len(own)})
    return rows


def whole_hits(theatre: stage.Stage, count: int, lengths: Sequence[int] = (2, 3, 4, 5, 6)) -> list[Row]:
    """A row for each probe length: the default mode on `count` pairs of one noise each, whatever the gate would say."""
    import tempfile

    from ._scope_methods import Meter, Studio, pairs
    from .scope import row_of, summed_up

    meter, rows, step = Meter(theatre.model), [], stage.progress(count * len(lengths))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, meter.attached():
        studio = Studio(theatre, meter, Path(folder))
        for pair in pairs(count, 31):
            bank, _ = studio.bank_of(pair)
            dense = studio.show("dense", pair, bank)
            for length in lengths:
                rows.append(row_of(studio.show("ours", pair, bank, probe=length), dense, pair) | {"probe": length})
                step("whole hits")
    kept = ("hits", "evals", "dit_ratio", "psnr_dense", "psnr_worst", "psnr_latent", "alignment")
    return [{"probe": p, **{k: v for k, v in summed_up([r for r in rows if r["probe"] == p], theatre.steps).items() if k in kept}}
            for p in lengths]


def chosen(rows: Sequence[Row], share: float = 0.95) -> int:
    """The shortest probe whose mean IoU reaches `share` of the best."""
    best = max(r["iou"] for r in rows)
    return next(r["probe"] for r in rows if r["iou"] >= share * best)


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


class Timed(AttentionReader):
    """A reader that counts the seconds spent in it."""

    seconds = 0.0

    def attention(self, *args: Any) -> None:
        self.seconds += timed(lambda: AttentionReader.attention(self, *args))


def demo_cost(theatre: stage.Stage, rounds: int) -> Row:
    """Reading in the probe's last step, and what follows a probe, against a dense render's forwards in the same calls."""
    from carnator.carnator_core.gate import Thresholds

    prompt, other = "a red ball moving right on snow", "a blue star moving right on snow"
    history = theatre.history(theatre.render(other, 5, stage.settings()), 5)
    probe = theatre.render(prompt, 5, stage.settings()).run.finish_probe()
    correspondence = recall.correspond(parse(prompt), parse(other))
    forwards: list[float] = []
    reading, after = [], []
    for _ in range(rounds):
        model, readers = watched(theatre, prompt, [2])
        _clocked(model, forwards)
        theatre.sample(model, prompt, 5, steps=3)
        reading.append(readers[2].seconds)
        after.append(timed(lambda: _after(theatre, readers[2], probe, history, correspondence, Thresholds())))  # noqa: B023
    return _cost(f"demo (192 tokens, {theatre.layers} layers)", statistics.median(reading), statistics.median(after),
                 statistics.median(forwards) * theatre.steps)


def _cost(model: str, reading: float, deciding: float, dense: float) -> Row:
    return {"model": model, "reading_ms": round(1e3 * reading, 2), "deciding_ms": round(1e3 * deciding, 2),
            "dense_s": round(dense, 2), "share": round((reading + deciding) / dense, 5)}


def _after(theatre: stage.Stage, reader: AttentionReader, probe: Any, history: Any, correspondence: Any, limits: Any) -> None:
    """What the pack does between the probe's last step and its verdict."""
    from carnator.carnator_core.change import ChangeScale
    from carnator.carnator_core.decide import predicted_change
    from carnator.carnator_core.hosts.pictures import tail_frame

    regions, _ = reader.regions(probe.grid)
    last = probe.trajectory.predictions[-1][0]
    seen = signature(regions, tail_frame(theatre.model.model, last), last, probe.patch)
    share, _ = predicted_change(probe, history, ChangeScale())
    gate.judge(seen, history.signature or {}, correspondence, limits, share)


def _clocked(model: Any, stamps: list[float]) -> None:
    """Append the seconds of every model call to `stamps`."""
    from comfy.patcher_extension import WrappersMP

    def clock(executor: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        out = executor(*args, **kwargs)
        stamps.append(time.perf_counter() - began)
        return out

    model.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, "clock", clock)


@torch.inference_mode()
def real_cost(rounds: int, layers: int = 2, latent: Sequence[int] = REAL_LATENT, shape: dict[str, int] | None = None) -> Row:
    """The same for Wan2.1-1.3B's layers with random weights in bfloat16: a few layers are timed, 30 of them reckoned."""
    import comfy.ops
    from carnator.carnator_core.hosts.patching import Patched
    from comfy.ldm.wan.model import WanModel

    torch.manual_seed(0)
    model = WanModel(num_layers=layers, **(shape or REAL), operations=comfy.ops.disable_weight_init, dtype=torch.bfloat16)
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data.fill_(1.0 if name.endswith("weight") else 0.0)
        else:
            value.data.normal_(0, value[0].numel() ** -0.5 if value.ndim > 1 else 0.02)
    x, text = torch.randn(*latent, dtype=torch.bfloat16), torch.randn(1, 512, 4096, dtype=torch.bfloat16)
    grid = token_grid(latent, model.patch_size)

    def forward(reader: AttentionReader | None) -> float:
        options = {"transformer_options": {"cond_or_uncond": [0]}}
        call = Patched(options, layers, reader, None, False, None, capture=False)
        return timed(lambda: model(x, torch.tensor([900.0]), text, transformer_options=call.options["transformer_options"]))

    forward(None)
    forwards, reading, after = [], [], []
    for _ in range(rounds):
        forwards.append(forward(None))
        reader = Timed({"fox": (3,), "snow": (7,)}, range(layers))
        forward(reader)
        reading.append(reader.seconds / layers)
        after.append(timed(lambda: reader.regions(grid)))  # noqa: B023 (called at once)
    # Embeddings and head are counted with the layers: they are small beside them.
    layer = statistics.median(forwards) / layers
    tokens = grid[0] * grid[1] * grid[2]
    return _cost(f"Wan2.1-1.3B shape ({tokens} tokens, {layers} of {REAL_LAYERS} layers timed, random weights)",
                 8 * statistics.median(reading), statistics.median(after), REAL_STEPS * 2 * REAL_LAYERS * layer)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="run.py bench probe", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few prompts and rounds: a smoke test, not a measurement")
    stage.family_option(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    theatre = stage.Stage(steps=20 if options.quick else 50, halved=True, family=options.family)
    print(f"The early probe, on {stage.machine()}; {theatre.steps} steps")
    rows = localisation(theatre, 8 if options.quick else 104)
    print("\nEvidence Region after the probe's last step against the object in the finished clip (IoU)")
    table(rows)
    print(f"  the shortest probe within 5 % of the best: {chosen(rows)} steps")
    hits = whole_hits(theatre, 2 if options.quick else 21)
    print("\nHits by the length of their probe (medians of ratios, means of the rest; dB on decoded video, latents)")
    table(hits)
    costs = [demo_cost(theatre, 5 if options.quick else 25), real_cost(1 if options.quick else 5)]
    print("\nWhat looking costs beside the steps that the render needs anyway (at most 0.01 of a dense render)")
    table(costs)
    if options.json:
        found = {"family": theatre.family.title, "machine": stage.machine(), "steps": theatre.steps, "localisation": rows,
                 "shortest": chosen(rows), "hits": hits, "cost": costs}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
