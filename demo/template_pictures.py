"""Draws the small pictures beside the templates of real models: python -m demo.template_pictures

A title and the graph itself, Carnator's nodes bright. The demo's own two pictures show its clips and are left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from .setup import ROOT
from .sheet import TITLE

FOLDER = ROOT / "workflows"
SIZE, TOP, MARGIN, SCALE = (640, 360), 64, 22, 2  # pixels; drawn at SCALE times the size
NAMES = {
    "carnator_calibrate": "Calibrate: thresholds of your own",
    "carnator_wan21_t2v_1_3b": "Wan2.1 1.3B, one node",
    "carnator_wan21_t2v_1_3b_stages": "Wan2.1 1.3B, stage by stage",
    "carnator_wan22_t2v_5b": "Wan2.2 5B, one node",
    "carnator_wan22_t2v_5b_stages": "Wan2.2 5B, stage by stage",
    "carnator_wan22_t2v_14b": "Wan2.2 14B, two experts",
    "carnator_wan22_t2v_14b_stages": "Wan2.2 14B, stage by stage",
    "carnator_ltx_t2v": "LTX-Video, one node",
    "carnator_ltx_t2v_stages": "LTX-Video, stage by stage",
}
BACK, WIRE, PLAIN, NOTE, OURS, INK = "#191c21", "#59616c", "#3a4049", "#5d4f2c", "#1f8a6d", "#eef1f4"


def picture(title: str, workflow: Mapping[str, Any]) -> Image.Image:
    """The workflow's nodes and wires, fitted under a title."""
    width, height = (side * SCALE for side in SIZE)
    image = Image.new("RGB", (width, height), BACK)
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN * SCALE, 16 * SCALE), title, INK, ImageFont.load_default(26 * SCALE))
    nodes = {n["id"]: n for n in workflow["nodes"]}
    right = max(n["pos"][0] + n["size"][0] for n in nodes.values())
    bottom = max(n["pos"][1] + n["size"][1] for n in nodes.values())
    room = (width - 2 * MARGIN * SCALE, height - (TOP + MARGIN) * SCALE)
    scale = min(room[0] / right, room[1] / bottom)
    left, top = MARGIN * SCALE + (room[0] - right * scale) / 2, TOP * SCALE

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * scale, top + y * scale

    for _, origin, slot, target, into, _ in workflow["links"]:
        one, other = nodes[origin], nodes[target]
        start = at(one["pos"][0] + one["size"][0], one["pos"][1] + 14 + 20 * slot)
        end = at(other["pos"][0], other["pos"][1] + 14 + 20 * into)
        draw.line([start, end], WIRE, SCALE)
    font = ImageFont.load_default(max(12, int(30 * scale)))
    for n in nodes.values():
        (x, y), (w, h) = n["pos"], n["size"]
        ours = n["type"].startswith("Carnator")
        colour = NOTE if n["type"] == "MarkdownNote" else OURS if ours else PLAIN
        draw.rounded_rectangle([at(x, y - TITLE), at(x + w, y + h)], 6 * SCALE, colour)
        if ours:
            label = n.get("title") or re.sub("(?<=[a-z])(?=[A-Z])", " ", n["type"].removeprefix("Carnator"))
            draw.text(at(x + 14, y - TITLE + 12), label, INK, font)
    return image.resize(SIZE, Image.Resampling.LANCZOS)


def main() -> None:
    for name, title in NAMES.items():
        workflow = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        picture(title, workflow).save(Path(FOLDER / f"{name}.jpg"), quality=86)
        print(name)


if __name__ == "__main__":
    main()
