"""The demo: a real ComfyUI renders a few histories, then similar prompts, with reuse and densely, side by side.

python3 run.py demo [--family NAME] [--json FILE] [--out FOLDER]

Every render is the workflow file a creator would drag in (workflows/carnator_demo_one_node.json), submitted through the
host's API. Each request is rendered three times: by the stock graph (Carnator Reuse bypassed), by the same graph with
an empty read-only bank (for the transformer's seconds of a dense render), and with the bank of histories.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import report, scorer
from .events import Events
from .families import FAMILIES, WAN, Family
from .graph import to_prompt
from .host import Host, HostError
from .swap import on_family

ROOT = Path(__file__).resolve().parent.parent
ONE_NODE = ROOT / "workflows" / "carnator_demo_one_node.json"
GRANULAR = ROOT / "workflows" / "carnator_demo.json"

HISTORIES = [
    ("a red ball moving right on snow", 101),
    ("a blue star on grass", 202),
    ("a yellow ring moving up at night", 303),
    ("a green cube on sand", 404),
    ("a pink triangle and a cyan ball on water", 505),
]
REQUESTS = [  # prompt, seed, what changes, index of the history it is close to
    ("a red star moving right on snow", 101, "noun", 0),
    ("a purple star on grass", 202, "colour", 1),
    ("a yellow ring moving up on sand", 303, "place", 2),
    ("a big green cube on sand", 404, "size", 3),
    ("a red cube moving right on snow", 77, "noun, another seed", 0),
    ("a pink triangle on water", 505, "look-alike", 4),
    ("a red ball moving left on snow", 101, "direction", 0),
    ("a blue star on grass", 202, "exact repeat", 1),
]


@dataclass
class Render:
    """One finished render: frames as they came out [F, H, W, 3] in 0..1, and in Wan2.1's size, which the scorer reads; seconds
    end to end; Carnator's summary (None when bypassed)."""

    whole: Tensor
    frames: Tensor
    seconds: float
    summary: dict[str, Any] | None
    mp4: bytes


def read_video(data: bytes) -> Tensor:
    """All frames of an encoded video, [F, H, W, 3] float32 in 0..1."""
    import io

    import av

    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(frames)).float() / 255


class Studio:
    """Submits one workflow file with changed texts and settings, and brings back what came out."""

    def __init__(self, host: Host, events: Events, workflow: Path, family: Family = WAN) -> None:
        self.host, self.events, self.family = host, events, family
        self.workflow = json.loads(workflow.read_text(encoding="utf-8"))
        self.info = host.object_info()

    def render(self, text: str, seed: int, *, bypass: bool = False, bank: str = "default", remember: bool = True) -> Render:
        """One render of the workflow. bypass: our node is bypassed, as Ctrl+B does in the UI. bank: which one is used."""
        graph = copy.deepcopy(self.workflow)
        if bypass:
            for node in graph["nodes"]:
                if node["type"] == "CarnatorReuse":
                    node["mode"] = 4
        prompt = on_family(to_prompt(graph, self.info), self.family)
        self._set(prompt, text, seed, bank, remember)
        mark, began = len(self.events.seen), time.perf_counter()
        outcome = self.host.wait(self.host.submit(prompt, graph), timeout=300)
        wall = time.perf_counter() - began
        stamps = {name: data["timestamp"] for name, data in outcome["status"]["messages"] if "timestamp" in data}
        seconds = wall
        if {"execution_start", "execution_success"} <= stamps.keys():
            seconds = (stamps["execution_success"] - stamps["execution_start"]) / 1000
        time.sleep(0.05)
        summaries = self.events.since(mark, "carnator.summary")
        files = [f for out in outcome["outputs"].values() for group in out.values() if isinstance(group, list)
                 for f in group if isinstance(f, dict) and str(f.get("filename", "")).endswith(".mp4")]
        if not files:
            raise HostError("the workflow finished without a video; its SaveVideo node is missing")
        data = self.host.view(files[-1])
        whole = read_video(data)
        clip = self.family.reduced(whole.permute(3, 0, 1, 2)[None])[0].permute(1, 2, 3, 0)
        return Render(whole, clip, seconds, summaries[-1] if summaries else None, data)

    @staticmethod
    def _set(prompt: dict[str, Any], text: str, seed: int, bank: str, remember: bool) -> None:
        policy = "read and remember" if remember else "read only"
        for node in list(prompt.values()):
            inputs, kind = node["inputs"], node["class_type"]
            if kind == "CarnatorTextEncode" and inputs.get("text"):
                inputs["text"] = text
            if "seed" in inputs:
                inputs["seed"] = seed
            if kind == "CarnatorBankLoader":
                inputs |= {"name": bank, "policy": policy}
            if kind == "CarnatorReuse":
                inputs["remember"] = remember
                if bank != "default":
                    loader = {"name": bank, "budget_gb": 1.0, "policy": policy}
                    prompt["bank"] = {"class_type": "CarnatorBankLoader", "inputs": loader}
                    inputs["bank"] = ["bank", 0]
            if kind == "SaveVideo":
                inputs["filename_prefix"] = f"carnator/{time.time_ns()}"


def record(render: Render, dense: Render, timed: Render, text: str, kind: str) -> dict[str, Any]:
    """One row of the table, as the JSON has it."""
    facts, timing = render.summary or {}, timed.summary or {}
    seen_dense, seen_reuse = scorer.score(dense.frames), scorer.score(render.frames)
    return {
        "prompt": text, "kind": kind, "decision": facts.get("decision", "miss"), "reason": facts.get("reason", ""),
        "history": facts.get("history_prompt", ""), "dense_s": dense.seconds, "reuse_s": render.seconds,
        "dense_dit_s": timing.get("transformer_seconds", float("nan")),
        "reuse_dit_s": facts.get("transformer_seconds", float("nan")),
        "speedup": dense.seconds / render.seconds, "seen_dense": seen_dense.text(), "seen_reuse": seen_reuse.text(),
        "agrees_dense": all(scorer.agrees(seen_dense, text).values()),
        "agrees_reuse": all(scorer.agrees(seen_reuse, text).values()),
        "computed": facts.get("computed"), "restricted": facts.get("restricted"), "forecast": facts.get("forecast"),
        "steps": facts.get("steps"), "active_share": facts.get("active_share", 1.0),
        "bit_identical_to_dense": bool(torch.equal(render.whole, dense.whole)), "report": facts.get("report", []),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The table as text."""
    lines = [f"{'request':<42} {'what changes':<15} {'':<5} {'dense s':>8} {'reuse s':>8} {'speed':>6} {'steps':>9}  seen"]
    for r in rows:
        steps = f"{r['computed']}/{r['steps']}"
        seen = ("ok  " if r["agrees_reuse"] else "OFF ") + r["seen_reuse"]
        lines.append(f"{r['prompt']:<42} {r['kind'][:15]:<15} {r['decision']:<5} {r['dense_s']:8.2f} {r['reuse_s']:8.2f} "
                     f"{r['speedup']:5.2f}x {steps:>9}  {seen}")
        lines.append(f"    {r['reason']}")
    return "\n".join(lines)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the table shows in all: hits, the median speed-up, agreement with the prompts, share of the transformer."""
    hits = [r for r in rows if r["decision"] == "hit"]
    return {
        "hits": len(hits), "requests": len(rows),
        "median_speedup_hits": statistics.median(r["speedup"] for r in hits) if hits else None,
        "agrees_dense": sum(r["agrees_dense"] for r in rows), "agrees_reuse": sum(r["agrees_reuse"] for r in rows),
        "transformer_share": statistics.median(r["dense_dit_s"] / r["dense_s"] for r in rows),
    }


def machine() -> str:
    """The machine a table was made on: processor, cores, PyTorch."""
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor()) if Path("/proc/cpuinfo").exists() else platform.processor()
    return f"{cpu or platform.machine()}, {os.cpu_count()} cores, no GPU, torch {torch.__version__}"


def run(out: Path, json_file: Path | None, say: Any = print, family: Family = WAN) -> list[dict[str, Any]]:
    """The whole demo on a host of its own; writes clips, contact sheet, report.html and the JSON."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with Host() as host, Events(host.url) as events:
        studio = Studio(host, events, ONE_NODE, family)
        say(f"ComfyUI is up at {host.url} after {time.perf_counter() - began:.0f} s; first render warms it up")
        studio.render("a red ball on snow", 1, bypass=True)
        histories = []
        for text, seed in HISTORIES:
            render = studio.render(text, seed)
            histories.append(render)
            say(f"remembered: {text:<42} {render.seconds:6.2f} s")
        rows, panels = [], []
        for text, seed, kind, near in REQUESTS:
            dense = studio.render(text, seed, bypass=True)
            timed = studio.render(text, seed, bank="empty", remember=False)
            render = studio.render(text, seed, remember=False)
            row = record(render, dense, timed, text, kind)
            name = f"{len(rows) + 1:02d}_{kind.split(',')[0].replace(' ', '_')}"
            for suffix, clip in (("dense", dense), ("reuse", render), ("history", histories[near])):
                (out / f"{name}_{suffix}.mp4").write_bytes(clip.mp4)
            row["video"] = f"{name}_reuse.mp4"
            row["videos"] = {s: f"{name}_{s}.mp4" for s in ("history", "dense", "reuse")}
            rows.append(row)
            panels.append(report.Panel(row, histories[near].frames, dense.frames, render.frames, render.summary or {}))
            say(f"{row['decision']:<4} {text:<42} {row['speedup']:5.2f}x  {row['reason']}")
        say("the granular graph, the same request: " + granular(host, events, family))
        share = summarise(rows)
    say("\n" + table(rows))
    say(f"\n{share['hits']} hits of {share['requests']}; "
        f"median speed-up of hits {share['median_speedup_hits'] or float('nan'):.2f}x; "
        f"prompts followed: dense {share['agrees_dense']}, reuse {share['agrees_reuse']} of {share['requests']}; "
        f"transformer's share of a dense render {share['transformer_share']:.0%}; {time.perf_counter() - began:.0f} s in all")
    report.contact_sheet(panels, out / "contact_sheet.png")
    report.html(panels, share, out / "report.html")
    body = {"family": family.title, "requests": rows, "summary": share, "machine": machine()}
    (json_file or out / "demo.json").write_text(json.dumps(body, indent=1), encoding="utf-8")
    say(f"clips, contact sheet and report: {out / 'report.html'}")
    return rows


def granular(host: Host, events: Events, family: Family) -> str:
    """The first request through the graph of single nodes; returns the verdict's first line."""
    studio = Studio(host, events, GRANULAR, family)
    text, seed, _, _ = REQUESTS[0]
    render = studio.render(text, seed, remember=False)
    facts = render.summary or {}
    return f"{facts.get('decision', 'no summary')}, {render.seconds:.2f} s, {facts.get('reason', '')}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run.py demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default=WAN.name, choices=tuple(FAMILIES), help="the demo model (wan: Wan2.1)")
    parser.add_argument("--json", type=Path, help="also write the table as JSON to this file")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="folder for clips, contact sheet and report")
    args = parser.parse_args(argv)
    try:
        run(args.out, args.json, family=FAMILIES[args.family])
    except HostError as error:
        print(f"the demo stopped: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
