"""The cache bank: bytes an entry, speed, recall, eviction, and what a hit waits for the disk.

python3 run.py bench bank [--quick] [--only PART] [--json FILE]

Latents and masks of the real shapes are made up (see _bank_data.py); demo-world renders are real ones of the demo
transformer. Masks are made for some layers and their bytes scaled to all; --quick also takes a quarter of the latent's
area, fewer entries and streams, and says so in `scaled`. Everything runs on the CPU, in memory where the system has a
folder there, so that store and load speeds are the bank's and not the disk's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from carnator.carnator_core.bank import Bank, Loans, tensorfile
from carnator.carnator_core.bank.codec import encode
from carnator.carnator_core.bank.nearest import Nearest
from carnator.carnator_core.history import History, Identity
from carnator.carnator_core.outcome import Probe, Verdict
from carnator.carnator_core.prompt import parse
from carnator.carnator_core.record import Trajectory
from carnator.carnator_core.request import Request, Settings
from carnator.carnator_core.reuse import Run
from torch import Tensor

from . import _bank_data as made
from . import _eviction
from . import _stage as stage

DISK_BYTES_S = 200e6
STEP_S = 1.5  # a step of Wan2.2-5B on a fast GPU: an estimate from its FLOPs


def history(latents: Tensor, sigmas: Tensor, masks: dict[str, Tensor], width: int = 4096, seed: int = 0) -> History:
    """A history around predictions [m, C, T, H, W]; noise and text vector are random."""
    chance = torch.Generator().manual_seed(seed)
    vector = torch.randn(width, generator=chance)
    return History(
        identity=Identity({"model": "bench", "latent": str(tuple(latents.shape[1:]))}),
        prompt=f"render {seed}",
        text_vector=vector / vector.norm(),
        noise=torch.randn(latents.shape[1:], generator=chance),
        sigmas=sigmas,
        call_sigmas=sigmas[:-1],
        denoised=latents,
        connectivity=masks,
        facts={"seed": seed, "seconds": 100.0},
    )


def replay(noise: Tensor, predictions: Tensor, sigmas: Tensor) -> Tensor:
    """The Euler sampler fed with predictions: the final latent [C, T, H, W]."""
    x = noise.clone()
    for i, denoised in enumerate(predictions):
        x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
    return x


def psnr(found: Tensor, true: Tensor) -> float:
    """In dB, of latents, against the range of the true one."""
    error = float((found - true).square().mean())
    return 20 * math.log10(float(true.max() - true.min())) - 10 * math.log10(max(error, 1e-30))


def measure_shape(shape: made.Shape, folder: Path, quick: bool) -> dict[str, Any]:
    """One real shape: bytes of an entry in the bank, errors of what comes back, and speeds."""
    layers = 1 if quick else 2
    c, t, h, w = shape.latent
    small = (c, t, h // 2, w // 2) if quick else shape.latent
    area = h * w / (small[2] * small[3])
    latents, sigmas = made.trajectory(small, shape.steps), made.schedule(shape.steps)
    sample = made.masks(shape, layers)
    names = list(sample)
    stored = history(latents, sigmas, sample)
    bank = Bank.open(folder / "shapes", reserve_bytes=0, precision="compact")
    began = time.perf_counter()
    entry_id = bank.add(stored)
    store_s = time.perf_counter() - began
    began = time.perf_counter()
    loaded = bank.load(entry_id)
    load_s = time.perf_counter() - began
    with bank.reading(entry_id) as reading:
        sizes = {name: int(item["bytes"]) for name, item in reading.header.files.items()}
    mask_bytes = sizes["connectivity.safetensors"] / layers * shape.layers
    latent_bytes = (sizes["render.safetensors"] + sizes["steps.safetensors"]) * area
    raw_bytes = sum(len(x) for x in sample.values()) / layers * shape.layers
    calls = [psnr(loaded.denoised[i], latents[i]) for i in range(shape.steps)]
    peak = float(latents[-1].max() - latents[-1].min())
    worst = max(float((loaded.denoised[i] - latents[i]).square().mean()) for i in range(shape.steps))
    per_step = made.BRANCHES * layers
    bank.clear()
    return {
        "name": shape.name,
        "bytes": round(latent_bytes + mask_bytes),
        "psnr_db": round(psnr(replay(stored.noise, loaded.denoised, sigmas), replay(stored.noise, latents, sigmas)), 1),
        "naive_bytes": shape.naive_bytes(),
        "noise_bytes": 4 * c * t * h * w,
        "prediction_bytes": round(sizes["steps.safetensors"] * area),
        "mask_bytes": round(mask_bytes),
        "mask_bytes_packed": round(raw_bytes),
        "mask_overlap": round(made.overlap(sample[names[0]], sample[names[per_step]]), 3),
        "masks_lossless": all(torch.equal(loaded.connectivity[n], m) for n, m in sample.items()),
        "psnr_db_worst_call": round(20 * math.log10(peak) - 10 * math.log10(worst), 1),
        "psnr_db_last_call": round(calls[-1], 1),
        "store_mb_s": round(latents.nbytes / store_s / 1e6),
        "load_mb_s": round(latents.nbytes / load_s / 1e6),
        "scaled": {"latent_area": area, "mask_layers": shape.layers / layers},
    }


def measure_demo(quick: bool) -> dict[str, Any]:
    """Real renders of the demo transformer: bytes exact and compact, and the errors of the compact ones."""
    captions, renders, sigmas = made.demo_renders(2 if quick else 6, 20 if quick else 40)
    errors, exact, compact = [], 0, 0
    for number, latents in enumerate(renders):
        noise = torch.randn(latents.shape[1:], generator=torch.Generator().manual_seed(number))
        coded = encode("denoised", latents, "compact")
        compact += sum(x.nbytes for x in coded.tensors.values())
        exact += latents.nbytes
        errors.append(float(coded.header["psnr_db"]))
        assert torch.isfinite(replay(noise, latents, sigmas)).all()
    return {
        "renders": len(captions),
        "exact_bytes": exact // len(renders),
        "compact_bytes": compact // len(renders),
        "compact_bytes_a_latent_value": round(compact / sum(latents[0].numel() for latents in renders), 3),
        "psnr_db_worst_call": round(min(errors), 1),
    }


def measure_recall(folder: Path, quick: bool) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Milliseconds of a recall and of an opening at several sizes, and what the sketch misses at the largest."""
    width = 1024 if quick else 4096
    recall: dict[str, float] = {}
    opened: dict[str, float] = {}
    extra: dict[str, Any] = {"width": width}
    for count in (1000,) if quick else (1000, 10_000):
        place = folder / f"many{count}"
        fill(place, count, width)
        began = time.perf_counter()
        bank = Bank.open(place, reserve_bytes=0)
        assert bank.total_bytes() > 0
        opened[str(count)] = ms(began)
        identity = history(torch.zeros(1, 1, 1, 2, 2), torch.ones(2), {}).identity.digest()
        began = time.perf_counter()
        bank.nearest(torch.randn(width), identity)
        extra[f"first_recall_ms_{count}"] = ms(began)
        recall[str(count)] = median_ms(lambda b=bank, i=identity: b.nearest(torch.randn(width), i))
        bank.close()
        (place / "index.sqlite").unlink()
        began = time.perf_counter()
        assert len(Bank.open(place, reserve_bytes=0).entries()) == count
        extra[f"rebuild_ms_{count}"] = ms(began)
    for count in (10_000, 100_000):
        near, vectors = many_vectors(count, width)
        near.top(vectors[0].float(), 10)
        queries = [
            torch.nn.functional.normalize(vectors[i * 97].float() + 0.3 * torch.randn(width) / width**0.5, dim=0) for i in range(20)
        ]
        if str(count) not in recall:
            recall[str(count)] = median_ms(lambda n=near, q=queries: n.top(q[0], 10))
        exact = [{int(i) for i in (torch.cat([p.float() @ q for p in vectors.split(8192)])).topk(10).indices} for q in queries]
        hits = sum(len({int(i, 16) for i, _ in near.top(q, 10)} & e) for q, e in zip(queries, exact, strict=True))
        extra[f"found_of_true_top_10_{count}"] = hits / (10 * len(queries))
    return recall, opened, extra


def fill(place: Path, count: int, width: int) -> None:
    """A bank of tiny entries with real text vectors' width."""
    bank = Bank.open(place, reserve_bytes=0)
    for number in range(count):
        tiny = torch.randn(2, 1, 1, 2, 2, generator=torch.Generator().manual_seed(number))
        bank.add(
            dataclasses.replace(
                history(tiny, torch.tensor([1.0, 0.5, 0.0]), {}, width, number),
                identity=Identity({"model": "bench", "latent": "(1, 1, 2, 2)"}),
            )
        )


def many_vectors(count: int, width: int) -> tuple[Nearest, Tensor]:
    """Vectors like pooled text conditionings: a common part, some hundred directions of falling strength, noise."""
    chance = torch.Generator().manual_seed(1)
    directions = torch.randn(200, width, generator=chance) / torch.arange(1, 201)[:, None] ** 0.7
    common = 2 * torch.randn(width, generator=chance)
    near = Nearest(width)
    vectors = torch.empty(count, width, dtype=torch.float16)
    for start in range(0, count, 5000):
        part = torch.randn(min(5000, count - start), 200, generator=chance) @ directions + common
        part += 0.05 * torch.randn(part.shape, generator=chance)
        vectors[start : start + len(part)] = torch.nn.functional.normalize(part, dim=1)
    ids = [f"{i:024x}" for i in range(count)]
    near.update(ids, dict(zip(ids, vectors, strict=True)))
    return near, vectors


def measure_wait(folder: Path, quick: bool) -> dict[str, Any]:
    """What a hit on the largest shape waits for a disk of 200 MB/s: a whole run as a host drives it, with a model that takes
    STEP_S for a call. The entry is borrowed when the run begins, as hosts do. With --quick everything is a quarter: values,
    disk and step."""
    shape = made.SHAPES[0]
    latent = (*shape.latent[:3], shape.latent[3] // 4) if quick else shape.latent
    share = latent[3] / shape.latent[3]
    bank = Bank.open(folder / "wait", reserve_bytes=0, precision="compact")
    stored = history(made.trajectory(latent, shape.steps), made.schedule(shape.steps), {})
    entry_id = bank.add(stored)
    noise, identity, sigmas = stored.noise, stored.identity, stored.sigmas
    own = 0.1 * torch.randn(noise.shape, generator=torch.Generator().manual_seed(5))  # by which the target differs
    theirs = Trajectory(sigmas.tolist()[:-1], list(stored.denoised))
    plain = tensorfile.TensorFile.read

    def slow(self: tensorfile.TensorFile, name: str) -> Tensor:
        time.sleep(self.slots[name].bytes / share / DISK_BYTES_S)
        return plain(self, name)

    def model(sigma: float) -> Tensor:
        ready = time.perf_counter() + STEP_S * share
        prediction = (theirs.at(sigma) + (1 - sigma) * own).unsqueeze(0)
        time.sleep(max(0.0, ready - time.perf_counter()))
        return prediction

    request = Request(identity, parse(""), stored.text_vector, noise, sigmas)
    settings = Settings(sparse="off", mode="forecast")
    with mock.patch.object(tensorfile.TensorFile, "read", slow), Loans(bank, sigmas.tolist(), settings.follows()) as loans:
        loans.begin(entry_id)

        def decide(probe: Probe) -> Verdict:
            found = loans.take(entry_id)
            assert found is not None
            change = float((probe.trajectory.predictions[-1][0] - found.past.at(probe.trajectory.sigmas[-1])[0]).abs().max())
            return Verdict(True, f"bench ({change:.2f})", found, entry_id)

        run = Run(request, settings, (1, 1, 1), (1, 1, 1), decide, lambda: None, lambda scope: None,
                  waited=lambda: loans.waited, lost=loans.lost)  # fmt: skip
        began, x = time.perf_counter(), noise
        for now, then in zip(sigmas.tolist(), sigmas.tolist()[1:], strict=False):
            denoised = run.predict(now, lambda now=now, **how: model(now))[0]  # type: ignore[misc]
            x = x + (x - denoised) / now * (then - now)
        seconds = time.perf_counter() - began
    assert bool(torch.isfinite(x).all())
    bank.clear()
    counts = run.counts
    return {
        "disk_mb_s": DISK_BYTES_S / 1e6,
        "step_s": STEP_S,
        "probe_steps": settings.probe,
        "steps": shape.steps,
        "computed": counts.computed,
        "forecast": counts.forecast,
        "steps_delayed": counts.delayed,
        "waited_ms": round(1000 * counts.waited, 1),
        "seconds": round(seconds, 1),
        "model_seconds": round(counts.seconds, 1),
        "scaled": share,
    }


def measure_kills(folder: Path, rounds: int) -> dict[str, Any] | str:
    """SIGKILL at random points of a store, see tests/bank_kill.py."""
    script = Path(__file__).resolve().parent.parent / "tests" / "bank_kill.py"
    if not hasattr(os, "fork") or not script.exists():
        return "not run here"
    command = [sys.executable, str(script), str(folder / "killed"), str(rounds), "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads(done.stdout)
    return {k: len(v) if isinstance(v, list) else v for k, v in found.items()}


def ms(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 2)


def median_ms(call: Any, times: int = 15) -> float:
    """The median of some calls after a first one."""
    call()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(ms(began))
    return sorted(taken)[times // 2]


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A temporary folder, in memory where there is such a place."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="run.py bench bank")
    options.add_argument("--quick", action="store_true", help="a few minutes: smaller latents, fewer entries")
    options.add_argument("--json", type=Path, help="write the figures here")
    options.add_argument("--only", choices=("wait", "recall"), help="measure this part alone, and renew it in the file")
    given = options.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": stage.machine(), "quick": given.quick, "threads": 1, "shapes": []}
    if given.only:
        with memory_folder() as folder:
            if given.only == "wait":
                found: dict[str, Any] = {"wait": measure_wait(folder, given.quick)}
            else:
                found = dict(zip(("recall_ms", "open_ms", "recall"), measure_recall(folder, given.quick), strict=True))
        say(f"{given.only}: {found}")
        if given.json:
            known = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else report
            given.json.write_text(json.dumps({**known, **found}, indent=1), encoding="utf-8")
        return
    with memory_folder() as folder:
        for shape in made.SHAPES:
            report["shapes"].append(found := measure_shape(shape, folder, given.quick))
            say(f"{found['name']:24} {found['bytes'] / 1e6:6.1f} MB of {found['naive_bytes'] / 1e6:6.0f} MB naive; replay "
                f"{found['psnr_db']} dB, worst call {found['psnr_db_worst_call']} dB; "
                f"store {found['store_mb_s']} MB/s, load {found['load_mb_s']} MB/s")  # fmt: skip
        report["demo"] = measure_demo(given.quick)
        say(f"demo-world renders: {report['demo']}")
        for found, shape in zip(report["shapes"], made.SHAPES, strict=True):
            rough = report["demo"]["compact_bytes_a_latent_value"] * found["noise_bytes"] / 4
            found["bytes_if_as_rough_as_demo"] = round(found["bytes"] - found["prediction_bytes"] + rough)
            say(f"{shape.name}: {found['bytes_if_as_rough_as_demo'] / 1e6:.1f} MB with predictions as rough as those")
        report["eviction"] = _eviction.compare(2 if given.quick else 8)
        say(f"eviction, seconds saved: {report['eviction']}")
        report["wait"] = measure_wait(folder, given.quick)
        say(f"a hit's wait for the disk: {report['wait']}")
        report["recall_ms"], report["open_ms"], report["recall"] = measure_recall(folder, given.quick)
        say(f"recall {report['recall_ms']} ms, opening {report['open_ms']} ms, {report['recall']}")
        report["kills"] = measure_kills(folder, 20 if given.quick else 200)
        say(f"killed while storing: {report['kills']}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
