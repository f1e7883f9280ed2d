"""The demo world: short procedurally rendered clips with captions and known truth.

A `Scene` says what is to be seen; `caption` puts it in words; `render` draws it.
Clips are 9 frames of 128 x 128 pixels. Objects sit on the inner cells of a grid of visual
tokens (with a little jitter), so no position is favoured.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

FRAMES, SIDE = 9, 128
NOUNS = ("ball", "cube", "star", "ring", "cross", "triangle")
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.14, 0.14), "orange": (0.98, 0.55, 0.08), "yellow": (0.98, 0.90, 0.15),
    "green": (0.08, 0.55, 0.18), "cyan": (0.15, 0.85, 0.88), "blue": (0.12, 0.25, 0.90),
    "purple": (0.50, 0.18, 0.75), "pink": (1.00, 0.50, 0.75),
}
PLACES = ("snow", "grass", "sand", "night", "water")
PLACE_PHRASE = {p: ("at " if p == "night" else "on ") + p for p in PLACES}
MOTIONS: dict[str, tuple[int, int]] = {
    "still": (0, 0), "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1),
}
RADIUS = {"small": 16.0, "": 22.0, "big": 30.0}
SPEED = 1.75  # pixels a frame
APART = 48  # two objects stand at least this many pixels apart along one axis


@dataclass(frozen=True)
class Lattice:
    """Where objects may stand: the inner cells of the grid of `cell`-pixel visual tokens."""

    cell: int = 8

    @property
    def cells(self) -> list[tuple[int, int]]:
        """All (row, column), row by row."""
        inner = range(16 // self.cell, SIDE // self.cell - 16 // self.cell)
        return [(row, column) for row in inner for column in inner]

    def far(self, cell: tuple[int, int]) -> list[tuple[int, int]]:
        """Cells where a second object may stand when the first is at `cell`."""
        return [c for c in self.cells if max(abs(c[0] - cell[0]), abs(c[1] - cell[1])) * self.cell >= APART]

    def centre(self, index: int) -> float:
        """Pixel at the middle of a row or column."""
        return self.cell * (index + 0.5)


FINE, COARSE = Lattice(8), Lattice(16)


@dataclass(frozen=True)
class Thing:
    """One object: what it is, and its centre in the middle frame, in pixels."""

    noun: str
    colour: str
    size: str = ""
    cell: tuple[int, int] = (7, 7)
    x: float = 64.0
    y: float = 64.0


@dataclass(frozen=True)
class Scene:
    """A clip's whole truth. `counted` scenes hold two things of one kind ("two red balls")."""

    place: str
    motion: str
    things: tuple[Thing, ...]
    counted: bool = False


def caption(scene: Scene) -> str:
    """The English caption of a scene, at most 10 words."""
    def name(thing: Thing) -> str:
        return " ".join(w for w in (thing.size, thing.colour, thing.noun) if w)
    if scene.counted:
        noun = scene.things[0].noun
        text = f"two {scene.things[0].colour} {noun}{'es' if noun == 'cross' else 's'}"
    else:
        text = " and ".join("a " + name(t) for t in scene.things)
    if scene.motion != "still":
        text += f" moving {scene.motion}"
    return f"{text} {PLACE_PHRASE[scene.place]}"


def held_out(noun: str, colour: str, place: str) -> bool:
    """One combination in eight is never trained."""
    index = NOUNS.index(noun) * 31 + list(COLOURS).index(colour) * 17 + PLACES.index(place) * 7
    return index % 8 == 0


def placed(thing: Thing, cell: tuple[int, int], motion: str, jitter: tuple[float, float] = (0, 0),
           lattice: Lattice = FINE) -> Thing:
    """`thing` standing at `cell`, moved inwards as far as its radius and path need."""
    radius = RADIUS[thing.size]
    vx, vy = MOTIONS[motion]
    def inside(centre: float, velocity: int) -> float:
        margin = radius + (4 * SPEED if velocity else 0)
        return min(max(centre, margin), SIDE - margin)
    x = inside(lattice.centre(cell[1]) + jitter[0], vx)
    y = inside(lattice.centre(cell[0]) + jitter[1], vy)
    return replace(thing, cell=cell, x=x, y=y)


def random_scene(rng: random.Random, *, pair: float = 0.25, counted: float = 0.08, held: bool | None = False,
                 jitter: float = 3.0, lattice: Lattice = FINE) -> Scene:
    """A random scene. `held` False: only trained combinations; True: only held-out ones; None: any."""
    while True:
        place, motion = rng.choice(PLACES), rng.choice(list(MOTIONS))
        draw = rng.random()
        if draw < counted:
            thing = Thing(rng.choice(NOUNS), rng.choice(list(COLOURS)))
            things = [thing, thing]
        elif draw < counted + pair:
            things = [Thing(n, c) for n, c in zip(rng.sample(NOUNS, 2), rng.sample(list(COLOURS), 2), strict=False)]
        else:
            size = rng.choice(("", "", "", "small", "big"))
            things = [Thing(rng.choice(NOUNS), rng.choice(list(COLOURS)), size)]
        flags = [held_out(t.noun, t.colour, place) for t in things]
        if held is None or (held and all(flags)) or (held is False and not any(flags)):
            break
    cells = [rng.choice(lattice.cells)]
    if len(things) == 2:
        cells.append(rng.choice(lattice.far(cells[0])))
    def shake() -> tuple[float, float]:
        return rng.uniform(-jitter, jitter), rng.uniform(-jitter, jitter)
    return Scene(place, motion, tuple(placed(t, c, motion, shake(), lattice) for t, c in zip(things, cells, strict=False)),
                 counted=draw < counted)


def signed_distance(noun: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance (negative inside) of a unit-radius silhouette at (x right, y down)."""
    if noun == "ball":
        return torch.sqrt(x * x + y * y) - 0.95
    if noun == "cube":
        return torch.maximum(x.abs(), y.abs()) - 0.82
    if noun == "ring":
        return (torch.sqrt(x * x + y * y) - 0.72).abs() - 0.25
    if noun == "cross":
        across = torch.maximum(x.abs() - 1.0, y.abs() - 0.32)
        upright = torch.maximum(x.abs() - 0.32, y.abs() - 1.0)
        return torch.minimum(across, upright)
    if noun == "triangle":
        return torch.maximum(y - 0.80, (x.abs() * 0.866 - y * 0.5) - 0.50)
    if noun == "star":
        wedge = 2 * math.pi / 5
        angle = torch.remainder(torch.atan2(x, -y) + wedge / 2, wedge) - wedge / 2
        radius = torch.sqrt(x * x + y * y)
        px, py = radius * torch.cos(angle), radius * torch.sin(angle).abs()
        ox, oy = 1.1, 0.0
        ex, ey = 0.46 * math.cos(wedge / 2) - ox, 0.46 * math.sin(wedge / 2) - oy
        return ((px - ox) * ey - (py - oy) * ex) / math.hypot(ex, ey)
    raise ValueError(f"no noun {noun!r} in the demo world; it has {', '.join(NOUNS)}")


_Y, _X = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")


def _rgb(*values: float) -> Tensor:
    return torch.tensor(values).view(3, 1, 1)


def _place(place: str) -> Tensor:
    """A place without objects: [3, 9, 128, 128] in 0..1."""
    down, horizon = _Y / SIDE, 52.0
    if place == "night":
        stars = torch.rand(34, 2, generator=torch.Generator().manual_seed(5)) * SIDE
        sky = _rgb(0.05, 0.06, 0.20) + _rgb(0.05, 0.04, 0.16) * down
        glow = torch.stack([torch.exp(-((_X - sx) ** 2 + (_Y - sy) ** 2) / 1.6) for sx, sy in stars.tolist()])
        light = glow.amax(0)
        return (sky * (1 - light) + _rgb(0.9, 0.9, 0.8) * light).unsqueeze(1).expand(3, FRAMES, SIDE, SIDE)
    if place == "water":
        sky, frames = _rgb(0.70, 0.85, 0.97) - _rgb(0.1, 0.06, 0.02) * down, []
        for t in range(FRAMES):
            below = torch.clamp(_Y - horizon + 0.5, 0, 1)
            wave = 0.5 + 0.5 * torch.sin((_Y - horizon) * 0.42 + 0.7 * torch.sin(_X * 0.07) + t * 0.22)
            frames.append(sky * (1 - below) + (_rgb(0.05, 0.33, 0.60) + _rgb(0.10, 0.14, 0.14) * wave) * below)
        return torch.stack(frames, 1)
    sky, ground, line = {
        "snow": (_rgb(0.62, 0.74, 0.88) + _rgb(0.1, 0.08, 0.05) * down,
                 _rgb(0.95, 0.97, 1.0) - _rgb(0.08, 0.06, 0.02) * down, horizon + 2 * torch.sin(_X * 0.05)),
        "grass": (_rgb(0.55, 0.80, 1.0) + _rgb(0.15, 0.08, 0.0) * down,
                  _rgb(0.52, 0.78, 0.32) - _rgb(0.12, 0.16, 0.08) * down, horizon + 3 * torch.sin(_X * 0.04 + 1)),
        "sand": (_rgb(1.0, 0.88, 0.70) - _rgb(0.0, 0.06, 0.08) * down,
                 _rgb(0.88, 0.72, 0.46) - _rgb(0.10, 0.12, 0.10) * down, horizon + 6 * torch.sin(_X * 0.06 + 2)),
    }[place]
    below = torch.clamp(_Y - line + 0.5, 0, 1)
    return (sky * (1 - below) + ground * below).unsqueeze(1).expand(3, FRAMES, SIDE, SIDE)


BACKDROP = {place: _place(place).contiguous() for place in PLACES}


def render(scene: Scene) -> tuple[Tensor, Tensor]:
    """Draw a scene: video [3, 9, 128, 128] in 0..1, and one mask per thing [2, 9, 128, 128] (zeros if absent)."""
    video = BACKDROP[scene.place].clone()
    masks = torch.zeros(2, FRAMES, SIDE, SIDE)
    vx, vy = MOTIONS[scene.motion]
    steps = (torch.arange(FRAMES) - FRAMES // 2).view(-1, 1, 1) * SPEED
    for j, thing in enumerate(scene.things):
        radius = RADIUS[thing.size]
        reach = int(radius * 1.2 + 4 * SPEED + 4)
        top, left = max(0, int(thing.y) - reach), max(0, int(thing.x) - reach)
        rows, columns = slice(top, int(thing.y) + reach), slice(left, int(thing.x) + reach)
        dx = (_X[rows, columns] - (thing.x + vx * steps)) / radius
        dy = (_Y[rows, columns] - (thing.y + vy * steps)) / radius
        distance = signed_distance(thing.noun, dx, dy) * radius
        cover, core = torch.clamp(0.5 - distance, 0, 1), torch.clamp(0.5 - (distance + 2.5), 0, 1)
        colour = torch.tensor(COLOURS[thing.colour]).view(3, 1, 1, 1)
        shaded = (colour * (1 + 0.16 * (-(dx * 0.5 + dy)))).clamp(0, 1)
        paint = colour * 0.35 * (1 - core) + shaded * core
        video[:, :, rows, columns] = video[:, :, rows, columns] * (1 - cover) + paint * cover
        masks[j, :, rows, columns] = cover
    return video, masks
