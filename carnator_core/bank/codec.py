"""How a trajectory of predictions becomes tensors of a file, and back, one model call at a time.

Three codings: "exact" keeps float32; "half" keeps float16; "modes" is the compact one.

The predictions D_0 .. D_{m-1} of a render are nearly dependent: D is smooth in sigma. So the m x N matrix X with rows
w_i D_i is rotated into its principal modes along the calls (the Karhunen-Loeve transform of X X^T, m x m), and the few
modes that matter are rounded to one step size q and deflated. It is what knots with interpolation would be, with knots
and weights chosen best in the sense of squares, for any sampler and any order of sigmas. Allowed errors: 45 dB PSNR at
every call and 50 dB at the last, which most samplers return; the peak is the range of the last prediction. The errors
are measured on what a reader will decode, and q shrinks until they hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .deflate import pack, unpack
from .errors import BankDamaged
from .tensorfile import TensorFile

EXACT_LIMIT_BYTES = 64 << 20
CALL_DB = 45.0
LAST_CALL_DB = 50.0
_CHUNK = 1 << 18
# Of the error allowed, what the dropped modes may take, and the rounding. Rounding towards zero a little more than
# nearest (0.4) makes more zeros for its error than a larger step would.
_DROPPED, _ROUNDED, _ROUND = 0.25, 0.6, 0.4


@dataclass(frozen=True)
class Encoded:
    """A coded trajectory: what JSON must remember, and the tensors to write."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def encode(name: str, steps: Tensor, precision: str) -> Encoded:
    """Code predictions [m, C, T, H, W].

    precision "exact" keeps float32, so that a replay is bit-identical; "compact" keeps 45 dB at every call; "auto" is
    exact while the whole trajectory is under 64 MiB of float32. The header's psnr_db is the smallest measured.
    """
    if precision == "auto":
        precision = "exact" if steps.numel() * 4 <= EXACT_LIMIT_BYTES else "compact"
    if precision == "compact":
        coded = _encode_modes(name, steps)
        if coded is not None:
            return coded
        precision = "half" if float(steps.abs().max()) < torch.finfo(torch.float16).max else "exact"
    dtype = {"exact": torch.float32, "half": torch.float16}[precision]
    tensors = {f"{name}/{i:04d}": step.detach().to("cpu", dtype) for i, step in enumerate(steps)}
    return Encoded({"kind": precision}, tensors)


def _encode_modes(name: str, steps: Tensor) -> Encoded | None:
    """The compact coding, or None where it does not apply (a constant last prediction) or would not pay."""
    m, size = len(steps), steps[0].numel()
    peak = float(steps[-1].max() - steps[-1].min())
    if peak <= 0:
        return None
    allowed = torch.full((m,), peak**2 * 10 ** (-CALL_DB / 10), dtype=torch.float64)
    allowed[-1] = peak**2 * 10 ** (-LAST_CALL_DB / 10)
    weights = allowed.rsqrt()
    energy, modes = _modes(steps, weights)
    rank = _rank(energy / size, modes, _DROPPED)
    modes = modes[:, :rank]
    # In units of the error allowed at each call, rounding one mode by up to q/2 costs q^2/12 times its squared share.
    q = math.sqrt(12 * _ROUNDED / float(modes.square().sum(1).max()))
    for _ in range(6):
        rounded, errors = _round(steps, weights, modes, q)
        if bool((errors <= allowed).all()):
            break
        q *= 0.8
    else:
        return None
    kinds = ["int8" if int(r.abs().max()) <= 127 else "int16" for r in rounded]
    tensors = {f"{name}/{k:04d}": pack(r.to(_KINDS[kind])) for k, (r, kind) in enumerate(zip(rounded, kinds, strict=True))}
    if sum(t.numel() for t in tensors.values()) >= 2 * steps.numel():
        return None
    tensors[f"{name}/mix"] = (modes * q / weights[:, None]).to(torch.float32)
    psnr = 10 * math.log10(peak**2 / max(float(errors.max()), 1e-30))
    return Encoded({"kind": "modes", "modes": kinds, "psnr_db": round(psnr, 2)}, tensors)


_KINDS = {"int8": torch.int8, "int16": torch.int16}


def _chunks(steps: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(start, [m, n] float32 on the CPU) slices of the flattened predictions."""
    flat = steps.detach().reshape(len(steps), -1)
    for start in range(0, flat.shape[1], _CHUNK):
        yield start, flat[:, start : start + _CHUNK].to("cpu", torch.float32)


def _modes(steps: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Energies, falling, [m] and modes [m, m] (columns) of the weighted predictions; float64."""
    gram = torch.zeros(len(steps), len(steps), dtype=torch.float64)
    for _, part in _chunks(steps):
        gram += (part @ part.T).to(torch.float64)
    energy, modes = torch.linalg.eigh(gram * weights[:, None] * weights[None])
    return energy.flip(0).clamp(min=0), modes.flip(1)


def _rank(energy: Tensor, modes: Tensor, dropped: float) -> int:
    """The fewest modes whose remainder is at most `dropped` of the error allowed (1 in weighted units) at each call."""
    kept_from = (modes.square() * energy).flip(1).cumsum(1).flip(1)  # [m, r]: what is lost when modes r.. are dropped
    enough = (kept_from <= dropped).all(0).nonzero()
    return max(1, int(enough[0])) if len(enough) else len(energy)


def _round(steps: Tensor, weights: Tensor, modes: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """Rounded modes [r, N] int16 and the mean squared error of each decoded call, [m] float64."""
    m, size = len(steps), steps[0].numel()
    forward = (modes * weights[:, None] / q).T.to(torch.float32)
    back = (modes * q / weights[:, None]).to(torch.float32)
    rounded = torch.empty(modes.shape[1], size, dtype=torch.int16)
    errors = torch.zeros(m, dtype=torch.float64)
    for start, part in _chunks(steps):
        value = forward @ part
        whole = (value.abs() + _ROUND).floor_().copysign_(value).clamp_(-32768, 32767)
        errors += (back @ whole - part).square().sum(1, dtype=torch.float64)
        rounded[:, start : start + part.shape[1]] = whole.to(torch.int16)
    return rounded, errors / size


class Decoder:
    """Reads single model calls of a coded trajectory of shape [m, C, T, H, W].

    Raises BankDamaged, already when made, for anything that does not fit that shape.
    """

    def __init__(self, name: str, header: dict[str, Any], file: TensorFile, shape: tuple[int, ...]) -> None:
        self._name, self._file, self._shape = name, file, shape
        kind, modes = header.get("kind"), header.get("modes")
        self._modes: list[str] | None = None
        self._mix: Tensor | None = None
        self._values: list[Tensor] = []
        if kind in ("exact", "half"):
            for i in range(shape[0]):
                self._expect(f"{i:04d}", torch.float32 if kind == "exact" else torch.float16, shape[1:])
        elif kind == "modes" and isinstance(modes, list) and len(modes) <= shape[0] and all(k in ("int8", "int16") for k in modes):
            self._expect("mix", torch.float32, (shape[0], len(modes)))
            for k in range(len(modes)):
                self._expect(f"{k:04d}", torch.uint8, None)
            self._modes = modes
        else:
            raise BankDamaged("the predictions are coded in a way this version does not know")

    def _expect(self, part: str, dtype: torch.dtype, shape: tuple[int, ...] | None) -> None:
        slot = self._file.slots.get(f"{self._name}/{part}")
        if slot is None or slot.dtype != dtype or (slot.shape != shape if shape is not None else len(slot.shape) != 1):
            raise BankDamaged(f"prediction {part} is missing or of another shape")

    def step(self, i: int) -> Tensor:
        """Prediction of model call i, [C, T, H, W] float32. Raises IndexError beyond the last call.

        The first call of a compact trajectory reads all of its modes, which are then kept (rounded, so small).
        """
        if not 0 <= i < self._shape[0]:
            raise IndexError(f"call {i} of {self._shape[0]}")
        if self._modes is None:
            found = self._file.read(f"{self._name}/{i:04d}").to(torch.float32)
        else:
            if self._mix is None:
                self._values = [self._mode(k, kind) for k, kind in enumerate(self._modes)]
                self._mix = self._file.read(f"{self._name}/mix")
            found = torch.zeros(self._shape[1:])
            for share, values in zip(self._mix[i].tolist(), self._values, strict=True):
                found.add_(values, alpha=share)
        if not bool(torch.isfinite(found).all()):
            raise BankDamaged(f"prediction {i} is not finite")
        return found

    def _mode(self, k: int, kind: str) -> Tensor:
        return unpack(self._file.read(f"{self._name}/{k:04d}"), _KINDS[kind], self._shape[1:])
