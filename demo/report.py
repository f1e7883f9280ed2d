"""The demo's results to look at: a contact sheet and a page that stands on its own beside the clips.

A `Panel` is one request: its row of the table, and the frames of the history, the dense render and the render with
reuse. Evidence and Active Regions come packed in Carnator's summary of the render (see carnator_core/summary.py).
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .words import split

TEMPLATE = Path(__file__).with_name("report_template.html")
OUTLINES = ("#ff2d95", "#00d0ff", "#ffb000", "#7cff4f")  # one an entity
ACTIVE = "#ffffff"
SHOWN = (0, 4, 8)  # frames on the contact sheet
TILE, GAP, HEAD, LEFT = 144, 14, 78, 18  # pixels of the contact sheet
INK, SOFT, HIT, MISS = "#1d2129", "#626a76", "#137a4b", "#8a5a00"


@dataclass
class Panel:
    """One request: its row, the clips [F, H, W, 3] in 0..1, and Carnator's summary ({} without)."""

    row: dict[str, Any]
    history: Tensor
    dense: Tensor
    reuse: Tensor
    summary: dict[str, Any]

    def clips(self) -> dict[str, Tensor]:
        return {"history": self.history, "dense": self.dense, "reuse": self.reuse}


def unpacked(text: str, grid: Sequence[int]) -> Tensor:
    """A packed region (base64 of bits, row by row) as [T, H, W] bool."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[: math.prod(grid)]
    return torch.from_numpy(bits.astype(bool)).view(*grid)


def regions(summary: dict[str, Any]) -> list[tuple[str, str, Tensor]]:
    """Name, colour and [T, H, W] of each entity's Evidence Region and, last, of the Active Region."""
    grid = summary.get("grid")
    if not grid:
        return []
    found = [(name, OUTLINES[k % len(OUTLINES)], unpacked(packed, grid))
             for k, (name, packed) in enumerate((summary.get("regions") or {}).items())]
    if summary.get("active"):
        found.append(("active", ACTIVE, unpacked(summary["active"], grid)))
    return [(name, colour, region) for name, colour, region in found if region.any()]


def edges(region: Tensor) -> list[tuple[int, int, int, int]]:
    """The border of a region [H, W] as unit segments (x0, y0, x1, y1) in cells."""
    padded = torch.nn.functional.pad(region.to(torch.int8), (1, 1, 1, 1))
    upright = (padded[1:-1, 1:] != padded[1:-1, :-1]).nonzero().tolist()
    level = (padded[1:, 1:-1] != padded[:-1, 1:-1]).nonzero().tolist()
    return [(x, y, x, y + 1) for y, x in upright] + [(x, y, x + 1, y) for y, x in level]


def latent_frame(frame: int) -> int:
    """The latent frame in which a frame of the clip lies: the first alone, then four by four."""
    return (frame + 3) // 4


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _image(frame: Tensor, side: int) -> Image.Image:
    picture = Image.fromarray((frame.float().clamp(0, 1) * 255).round().byte().cpu().numpy())
    return picture.resize((side, side), Image.Resampling.BICUBIC)


def _fitted(pen: ImageDraw.ImageDraw, text: str, size: int, width: float) -> str:
    """`text`, shortened until it fits `width` pixels."""
    if pen.textlength(text, font=_font(size)) <= width:
        return text
    while text and pen.textlength(text + "...", font=_font(size)) > width:
        text = text[:-1]
    return text.rstrip() + "..."


def seconds(value: float | None) -> str:
    """A duration for people; a dash when it was not measured."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {value % 60:.0f} s"


def contact_sheet(panels: Sequence[Panel], file: Path) -> None:
    """A PNG with one row a request: history, dense render and reuse, three frames each, evidence outlined."""
    strip = len(SHOWN) * TILE
    width, height = 2 * LEFT + 3 * strip + 2 * GAP, HEAD + TILE + GAP
    canvas = Image.new("RGB", (width, max(1, len(panels)) * height + LEFT), "#ffffff")
    pen = ImageDraw.Draw(canvas)
    for k, panel in enumerate(panels):
        top, row = k * height + 10, panel.row
        hit = row["decision"] == "hit"
        pen.text((LEFT, top), _fitted(pen, row["prompt"], 20, 2 * strip), font=_font(20), fill=INK)
        verdict = f"{row['decision']}   {row['speedup']:.2f}x faster" if hit else "rendered densely"
        pen.text((width - LEFT, top), verdict, font=_font(20), fill=HIT if hit else MISS, anchor="ra")
        why = f"{row['kind']}: {row['reason']}" if row["reason"] else row["kind"]
        pen.text((LEFT, top + 26), _fitted(pen, why, 14, width - 2 * LEFT), font=_font(14), fill=SOFT)
        labels = {"history": f"history: {row['history'] or 'none was used'}",
                  "dense": f"dense {seconds(row['dense_s'])}: {row['seen_dense']}",
                  "reuse": f"Carnator {seconds(row['reuse_s'])}: {row['seen_reuse']}"}
        outlined = regions(panel.summary)
        for j, (name, clip) in enumerate(panel.clips().items()):
            left, under = LEFT + j * (strip + GAP), top + HEAD - 10
            pen.text((left, top + 47), _fitted(pen, labels[name], 14, strip), font=_font(14), fill=INK)
            for i, frame in enumerate(SHOWN):
                corner = (left + i * TILE, under)
                canvas.paste(_image(clip[min(frame, len(clip) - 1)], TILE), corner)
                if name == "reuse" or (name == "history" and hit):
                    _outline(pen, outlined, latent_frame(frame), corner)
    canvas.save(file, optimize=True)


def _outline(pen: ImageDraw.ImageDraw, outlined: Iterable[tuple[str, str, Tensor]], at: int,
             corner: tuple[int, int]) -> None:
    """Draw the regions' borders in latent frame `at` over a tile: evidence in colour, the Active Region thin."""
    for name, colour, region in outlined:
        across, down = TILE / region.shape[2], TILE / region.shape[1]
        lines = [(corner[0] + x0 * across, corner[1] + y0 * down, corner[0] + x1 * across, corner[1] + y1 * down)
                 for x0, y0, x1, y1 in edges(region[min(at, len(region) - 1)])]
        strokes = [(colour, 1)] if name == "active" else [("#000000", 4), (colour, 2)]
        for ink, width in strokes:
            for line in lines:
                pen.line(line, fill=ink, width=width)


def marked(prompt: str, history: str) -> str:
    """The prompt as HTML, its words that the history's prompt does not have emphasised."""
    known = set(split(history))
    out = []
    for word in prompt.split():
        new = history and split(word) and not set(split(word)) <= known
        out.append(f"<mark>{escape(word)}</mark>" if new else escape(word))
    return " ".join(out)


def _poster(frame: Tensor) -> str:
    data = io.BytesIO()
    _image(frame, 128).save(data, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _overlay(outlined: Sequence[tuple[str, str, Tensor]]) -> str:
    """An SVG over a clip: one group a latent frame, shown by the page's script as the clip plays."""
    if not outlined:
        return ""
    frames, height, width = outlined[0][2].shape
    groups = []
    for t in range(frames):
        paths = []
        for name, colour, region in outlined:
            line = "".join(f"M{x0} {y0}L{x1} {y1}" for x0, y0, x1, y1 in edges(region[t]))
            kind = "active" if name == "active" else "evidence"
            paths.append(f'<path class="{kind}" stroke="{colour}" d="{line}"/>')
        groups.append(f'<g data-t="{t}">{"".join(paths)}</g>')
    return f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">{"".join(groups)}</svg>'


def _clip(panel: Panel, name: str, title: str, note: str, overlay: str) -> str:
    video = escape(panel.row.get("videos", {}).get(name, panel.row["video"]), quote=True)
    clip = panel.clips()[name]
    label = escape(f"{title}: {note}", quote=True)
    return (f'<figure><div class="frame"><video src="{video}" poster="{_poster(clip[len(clip) // 2])}" '
            f'muted loop playsinline preload="auto" aria-label="{label}"></video>{overlay}</div>'
            f"<figcaption><b>{escape(title)}</b> {escape(note)}</figcaption></figure>")


def _bars(row: dict[str, Any], longest: float) -> str:
    """The seconds of both renders as bars, the transformer's part darker."""
    lines = []
    for name, title in (("dense", "Dense"), ("reuse", "Carnator")):
        total, inner = row[f"{name}_s"], row.get(f"{name}_dit_s")
        inner = inner if inner is not None and math.isfinite(inner) else 0.0
        share = min(1.0, inner / total) if total else 0.0
        lines.append(f'<div class="bar {name}"><span>{title}</span><div><i style="width:{total / longest:.1%}">'
                     f'<u style="width:{share:.1%}"></u></i></div><span>{seconds(total)}</span></div>')
    return "".join(lines)


def _seen(title: str, text: str, ok: bool | None) -> str:
    state = {True: ("yes", "follows the prompt"), False: ("no", "differs from the prompt"), None: ("", "")}[ok]
    return f'<p class="seen {state[0]}"><span>{title} shows</span> {escape(text)} <em>{state[1]}</em></p>'


def _card(panel: Panel, number: int, longest: float) -> str:
    row, outlined = panel.row, regions(panel.summary)
    hit = row["decision"] == "hit"
    chip = f'<span class="chip hit">hit, {row["speedup"]:.2f}x</span>' if hit else '<span class="chip">dense</span>'
    legend = " ".join(f'<span style="--line:{colour}">{"recomputed area" if name == "active" else escape(name)}</span>'
                      for name, colour, _ in outlined)
    details = "\n".join(str(line) for line in row.get("report", []))
    history = row["history"] or ""
    seen = "".join(_seen(title, row[f"seen_{name}"], row.get(f"agrees_{name}"))
                   for name, title in (("dense", "Dense"), ("reuse", "Carnator")))
    return f"""<article id="request-{number}">
<header><div><p class="kind">{escape(row["kind"])}</p><h2>{marked(row["prompt"], history)}</h2></div>{chip}</header>
<p class="reason">{escape(row["reason"])}</p>
<div class="clips">
{_clip(panel, "history", "History", history or "not used for this request", _overlay(outlined) if hit else "")}
{_clip(panel, "dense", "Dense render", "the full computation", "")}
{_clip(panel, "reuse", "With Carnator", "reuse" if hit else "dense, at no loss", _overlay(outlined))}
</div>
{f'<p class="legend">Outlined: {legend}</p>' if legend else ""}
<div class="facts"><div class="bars">{_bars(row, longest)}</div>
<div>{seen}</div></div>
{f"<details><summary>How it was decided</summary><pre>{escape(details)}</pre></details>" if details else ""}
</article>"""


def html(panels: Sequence[Panel], share: dict[str, Any], file: Path) -> None:
    """Write the page; it plays the clips that lie beside it (`row["videos"]`, relative) and needs nothing else.

    share: as `demo.summarise` gives it (hits, requests, median_speedup_hits, agrees_dense, agrees_reuse,
    transformer_share); what is missing or None is shown as a dash.
    """
    def number(key: str, form: str) -> str:
        value = share.get(key)
        return "-" if value is None or (isinstance(value, float) and not math.isfinite(value)) else format(value, form)
    figures = [
        (number("median_speedup_hits", ".2f") + "x", "faster on a hit, median, end to end"),
        (f"{number('hits', 'd')} of {len(panels)}", "requests found a safe history"),
        (f"{number('agrees_reuse', 'd')} of {len(panels)}",
         f"clips follow their prompt (dense: {number('agrees_dense', 'd')})"),
        (number("transformer_share", ".0%"), "of a dense render is the transformer"),
    ]
    longest = max((max(p.row["dense_s"], p.row["reuse_s"]) for p in panels), default=1.0)
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("<!--FIGURES-->", "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for value, label in figures))
    page = page.replace("<!--CARDS-->", "\n".join(_card(p, k + 1, longest) for k, p in enumerate(panels)))
    file.write_text(page, encoding="utf-8")
