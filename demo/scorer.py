"""Say what a demo clip shows: objects, their number, the place and the motion.

Foreground is what differs from the place's backdrop; each connected piece is compared with the silhouettes of the
six nouns in several frames, which vote. Objects that touch are told apart by their coloured cores, since every object
has a dark rim. Needs numpy and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from . import words, world

Array = NDArray[Any]
LOOKED_AT = (0, 2, 4, 6, 8)  # frames
SOFTEN = 0.8  # pixels; clip and backdrops are smoothed alike, against decoder blur and noise
HIDDEN = 0.2  # RGB units; a rim that is nearer to the backdrop cannot be seen
RIM = 2.5  # pixels, width of the dark rim that `world.render` draws
SMALLEST = 90  # pixels; smaller pieces are specks
GRID, GRID_AREA = 48, 420.0  # silhouettes are compared on a 48 x 48 grid, scaled to 420 cells of area
_PALETTE = np.array(list(world.COLOURS.values()), np.float32)


@dataclass(frozen=True)
class Item:
    """One object seen. Centre (x, y) and area in pixels of the middle frame; confidence: its silhouette's IoU."""

    noun: str
    colour: str
    size: str
    centre: tuple[float, float]
    area: float
    confidence: float


@dataclass(frozen=True)
class Seen:
    """What a clip shows, objects largest first."""

    objects: tuple[Item, ...]
    place: str
    motion: str

    @property
    def count(self) -> int:
        return len(self.objects)

    def text(self) -> str:
        """The clip in the words of a demo caption."""
        names = [" ".join(w for w in (o.size, o.colour, o.noun) if w) for o in self.objects]
        if not names:
            return "nothing " + world.PLACE_PHRASE[self.place]
        if len(names) == 2 and len({(o.colour, o.noun) for o in self.objects}) == 1:
            first = self.objects[0]
            text = f"two {first.colour} {first.noun}{'es' if first.noun == 'cross' else 's'}"
        else:
            text = " and ".join("a " + n for n in names)
        moving = "" if self.motion == "still" else f" moving {self.motion}"
        return f"{text}{moving} {world.PLACE_PHRASE[self.place]}"


@dataclass(frozen=True)
class _Piece:
    """A connected piece of one frame: its mask, colour, whether its rim is lost, its IoU with each silhouette."""

    mask: Array
    colour: int
    rimless: bool
    fits: Array
    y: float
    x: float


def _soften(frames: Array) -> Array:
    return np.asarray(ndimage.gaussian_filter(frames, (0, 0, SOFTEN, SOFTEN)))


@lru_cache(maxsize=1)
def _backdrops() -> dict[str, Array]:
    """Each place's smoothed backdrop at the frames looked at, [F, 3, H, W]."""
    return {p: _soften(v[:, list(LOOKED_AT)].transpose(0, 1).numpy()) for p, v in world.BACKDROP.items()}


def _on_grid(mask: Array) -> Array:
    """A mask moved to the middle of a GRID x GRID field and scaled to GRID_AREA cells of area."""
    rows, columns = np.nonzero(mask)
    scale = math.sqrt(len(rows) / GRID_AREA)
    steps = (np.arange(GRID) - (GRID - 1) / 2) * scale
    at = np.meshgrid(rows.mean() + steps, columns.mean() + steps, indexing="ij")
    return np.asarray(ndimage.map_coordinates(mask.astype(np.float32), at, order=1, cval=0.0) > 0.5)


def _silhouette(noun: str, radius: float, rim: float) -> Array:
    """The inside of a noun's outline, `rim` pixels in, on a field of 96 x 96 pixels."""
    line = (torch.arange(96) - 47.5) / radius
    y, x = torch.meshgrid(line, line, indexing="ij")
    return np.asarray((world.signed_distance(noun, x, y) * radius < -rim).numpy())


@lru_cache(maxsize=2)
def _templates(rim: float) -> tuple[Array, Array]:
    """Silhouettes of every noun at every size: [nouns, sizes, GRID * GRID] as 0 or 1, and their areas in pixels."""
    drawn = [[_silhouette(n, r, rim) for r in world.RADIUS.values()] for n in world.NOUNS]
    grids = np.array([[_on_grid(m).ravel() for m in row] for row in drawn], np.float32)
    return grids, np.array([[m.sum() for m in row] for row in drawn], np.float32)


def _colour_distance(frame: Array) -> Array:
    """Distance of each pixel [3, H, W] to each colour under any shading, [8, H, W] in RGB units."""
    along = np.einsum("cn,nhw->chw", _PALETTE, frame) / (_PALETTE**2).sum(1)[:, None, None]
    shaded = np.minimum(np.clip(along, 0.8, 1.18)[:, None] * _PALETTE[:, :, None, None], 1.0)
    return np.asarray(np.sqrt(((frame[None] - shaded) ** 2).sum(1)))


def _fit(mask: Array, rimless: bool) -> Array:
    """IoU of a mask with each noun's silhouette, [nouns], at the best of the sizes' proportions."""
    templates, _ = _templates(RIM if rimless else 0.0)
    field = _on_grid(mask).ravel().astype(np.float32)
    both = templates @ field
    return np.asarray((both / (templates.sum(-1) + field.sum() - both)).max(1))


def _rim_contrast(colour: int, backdrop: Array, mask: Array) -> float:
    """How far the dark rim of a colour is from the backdrop [3, H, W] under a piece, in RGB units."""
    return float(np.linalg.norm(_PALETTE[colour] * 0.35 - backdrop[:, mask].mean(1)))


def _pieces(frame: Array, backdrop: Array) -> list[_Piece]:
    """The objects of one frame [3, H, W], largest first."""
    off = np.sqrt(((frame - backdrop) ** 2).sum(0))
    near = _colour_distance(frame)
    core = (near.min(0) < 0.25) & (near.min(0) < 0.7 * off)
    foreground = ndimage.binary_opening(ndimage.binary_closing((off > 0.18) | ((off > 0.12) & core)))
    labels, number = ndimage.label(foreground, structure=np.ones((3, 3)))
    closest = near.argmin(0)

    def describe(mask: Array) -> _Piece:
        inner = mask & core
        if inner.sum() < 20:
            inner = mask
        colour = int(np.bincount(closest[inner], minlength=len(_PALETTE)).argmax())
        contrast = _rim_contrast(colour, backdrop, mask)
        sharp = mask & (core | (off > min(0.45 * contrast, 0.5)))  # a blurred rim ends at half its height
        if sharp.sum() >= SMALLEST // 2:
            mask = sharp
        y, x = ndimage.center_of_mass(mask)
        return _Piece(mask, colour, contrast < HIDDEN, _fit(mask, contrast < HIDDEN), y, x)

    found: list[_Piece] = []
    for index in range(1, number + 1):
        mask = labels == index
        if mask.sum() < SMALLEST:
            continue
        whole = describe(mask)
        parts = [describe(m) for m in _split(mask, core)]
        if len(parts) > 1 and np.mean([p.fits.max() for p in parts]) > whole.fits.max() + 0.03:
            found.extend(parts)
        else:
            found.append(whole)
    return sorted(found, key=lambda p: -p.mask.sum())


def _split(mask: Array, core: Array) -> list[Array]:
    """A piece cut into the neighbourhoods of its two largest coloured cores; empty when it has one."""
    labels, number = ndimage.label(ndimage.binary_opening(mask & core, iterations=1))
    areas = np.bincount(labels.ravel(), minlength=number + 1)[1:]
    large = np.argsort(-areas)[:2]
    if number < 2 or areas[large[1]] < 0.2 * areas[large[0]] or areas[large[1]] < 60:
        return []
    away = [ndimage.distance_transform_edt(labels != i + 1) for i in large]
    return [m for m in (mask & (away[0] <= away[1]), mask & (away[0] > away[1])) if m.sum() >= SMALLEST]


def _tracks(frames: list[list[_Piece]]) -> list[dict[int, _Piece]]:
    """Pieces joined over frames by nearness; a track is seen in most frames."""
    tracks: list[dict[int, _Piece]] = []
    for t, pieces in enumerate(frames):
        free = list(range(len(tracks)))
        for piece in pieces:
            def gap(k: int, piece: _Piece = piece) -> float:
                last = tracks[k][max(tracks[k])]
                return math.hypot(last.y - piece.y, last.x - piece.x) + 8.0 * (last.colour != piece.colour)
            best = min(free, key=gap, default=None)
            if best is not None and gap(best) < 22:
                tracks[best][t] = piece
                free.remove(best)
            else:
                tracks.append({t: piece})
    return [track for track in tracks if 2 * len(track) > len(frames)]


def _size(noun: int, area: float, rimless: bool) -> str:
    """The size whose silhouette's area is nearest, on a logarithmic scale."""
    areas = _templates(RIM if rimless else 0.0)[1][noun]
    return list(world.RADIUS)[int(np.abs(np.log(areas / area)).argmin())]


def _item(track: dict[int, _Piece]) -> Item:
    fits = np.mean([p.fits for p in track.values()], 0)
    noun = int(fits.argmax())
    colour = int(np.bincount([p.colour for p in track.values()], minlength=len(_PALETTE)).argmax())
    areas = [float(p.mask.sum()) for p in track.values()]
    middle = track[min(track, key=lambda t: abs(LOOKED_AT[t] - world.FRAMES // 2))]
    size = _size(noun, float(np.median(areas)), middle.rimless)
    return Item(world.NOUNS[noun], list(world.COLOURS)[colour], size, (float(middle.x), float(middle.y)),
                float(middle.mask.sum()), float(fits[noun]))


def _motion(tracks: list[dict[int, _Piece]]) -> str:
    """The direction in which the pieces go, weighted by area; half of the world's speed counts as motion."""
    moved, weight = np.zeros(2), 1e-6
    for track in tracks:
        times = np.array([LOOKED_AT[t] for t in track], np.float64)
        path = np.array([(p.x, p.y) for p in track.values()])
        times -= times.mean()
        slope = (times[:, None] * (path - path.mean(0))).sum(0) / (times**2).sum()
        area = float(np.mean([p.mask.sum() for p in track.values()]))
        moved, weight = moved + slope * area, weight + area
    speed = moved / weight
    if np.abs(speed).max() < world.SPEED / 2:
        return "still"
    across = abs(speed[0]) > abs(speed[1])
    sign = int(np.sign(speed[0] if across else speed[1]))
    return next(m for m, v in world.MOTIONS.items() if v == ((sign, 0) if across else (0, sign)))


def look(video: Tensor) -> tuple[Seen, Tensor]:
    """Read a clip as `score` does; also each object's mask at the frames LOOKED_AT, [objects, 5, 128, 128] bool."""
    if video.shape == (world.FRAMES, world.SIDE, world.SIDE, 3):
        video = video.permute(3, 0, 1, 2)
    if video.shape != (3, world.FRAMES, world.SIDE, world.SIDE):
        raise ValueError(f"a demo clip is [3, 9, 128, 128] or [9, 128, 128, 3], not {list(video.shape)}")
    frames = _soften(video[:, list(LOOKED_AT)].transpose(0, 1).float().clamp(0, 1).cpu().numpy())
    backdrops = _backdrops()
    place = max(world.PLACES, key=lambda p: float((np.abs(frames - backdrops[p]).max(1) < 0.12).mean()))
    backdrop = backdrops[place]
    tracks = _tracks([_pieces(f, b) for f, b in zip(frames, backdrop, strict=True)])
    pairs = sorted(((_item(t), t) for t in tracks), key=lambda pair: -pair[0].area)
    masks = torch.zeros(len(pairs), len(LOOKED_AT), world.SIDE, world.SIDE, dtype=torch.bool)
    for k, (_, track) in enumerate(pairs):
        for t, piece in track.items():
            masks[k, t] = torch.from_numpy(piece.mask)
    return Seen(tuple(item for item, _ in pairs), place, _motion(tracks)), masks


def score(video: Tensor) -> Seen:
    """Read a clip: video [3, 9, 128, 128] or [9, 128, 128, 3], RGB in 0..1, any float dtype.

    Raises ValueError for another shape.
    """
    return look(video)[0]


def parse_caption(text: str) -> dict[str, Any]:
    """What a demo caption asks for: nouns, colours, sizes (lists, one entry an object), count, place, motion.

    A colour or place that is not said is "" and not judged; without a motion the objects stand still.
    """
    nouns: list[str] = []
    colours: list[str] = []
    sizes: list[str] = []
    colour = size = place = ""
    motion, number = "still", 1
    plurals = {n + ("es" if n == "cross" else "s"): n for n in world.NOUNS}
    for word in words.split(text):
        noun = plurals.get(word, word)
        if word == "two":
            number = 2
        elif word in world.COLOURS:
            colour = word
        elif word and word in world.RADIUS:
            size = word
        elif noun in world.NOUNS:
            nouns += [noun] * number
            colours += [colour] * number
            sizes += [size] * number
            colour, size, number = "", "", 1
        elif word in world.MOTIONS:
            motion = word
        elif word in world.PLACES:
            place = word
    return {"nouns": nouns, "colours": colours, "sizes": sizes, "count": len(nouns), "place": place, "motion": motion}


def agrees(seen: Seen, wanted: world.Scene | str | Mapping[str, Any]) -> dict[str, bool]:
    """Whether a clip shows what a scene, a caption or a parsed caption asks for, by noun, colour, size, count, place
    and motion. Objects are paired with the wanted ones so that most attributes agree; with too few objects noun,
    colour and size are false. What the caption leaves open is true."""
    if isinstance(wanted, world.Scene):
        wanted = world.caption(wanted)
    if isinstance(wanted, str):
        wanted = parse_caption(wanted)
    number = int(wanted["count"])
    asked = list(zip(wanted["nouns"], wanted["colours"], wanted["sizes"], strict=True))

    def pairs(objects: tuple[Item, ...]) -> tuple[bool, bool, bool]:
        rows = [(o.noun == n, c in ("", o.colour), o.size == s) for o, (n, c, s) in zip(objects, asked, strict=True)]
        return all(r[0] for r in rows), all(r[1] for r in rows), all(r[2] for r in rows)

    best = (False, False, False)
    if seen.count >= number:
        best = max((pairs(p) for p in permutations(seen.objects[:number])), key=lambda r: (sum(r[:2]), sum(r)))
    return {"noun": best[0], "colour": best[1], "size": best[2], "count": seen.count == number,
            "place": wanted["place"] in ("", seen.place), "motion": seen.motion == wanted["motion"]}
