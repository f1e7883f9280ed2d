"""How a trajectory of predictions becomes tensors of a file, and back, one model call at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import BankDamaged
from .tensorfile import TensorFile

EXACT_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Encoded:
    """A coded trajectory: what JSON must remember, and the tensors to write."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def encode(name: str, steps: Tensor, precision: str) -> Encoded:
    """Code predictions [m, C, T, H, W].

    precision "exact" keeps float32, so that a replay is bit-identical; "compact" keeps float16; "auto" is exact while
    the whole trajectory is under 64 MiB of float32.
    """
    if precision == "auto":
        precision = "exact" if steps.numel() * 4 <= EXACT_LIMIT_BYTES else "compact"
    dtype = {"exact": torch.float32, "compact": torch.float16}[precision]
    tensors = {f"{name}/{i:04d}": step.detach().to("cpu", dtype) for i, step in enumerate(steps)}
    return Encoded({"kind": precision}, tensors)


class Decoder:
    """Reads single model calls of a coded trajectory of shape [m, C, T, H, W]."""

    def __init__(self, name: str, header: dict[str, Any], file: TensorFile, shape: tuple[int, ...]) -> None:
        self._name, self._file, self._shape = name, file, shape
        dtypes = {"exact": torch.float32, "compact": torch.float16}
        kind = header.get("kind")
        if kind not in dtypes:
            raise BankDamaged("the predictions are coded in a way this version does not know")
        for i in range(shape[0]):
            slot = file.slots.get(f"{name}/{i:04d}")
            if slot is None or slot.shape != shape[1:] or slot.dtype != dtypes[kind]:
                raise BankDamaged(f"prediction {i} is missing or of another shape")

    def step(self, i: int) -> Tensor:
        """Prediction of model call i, [C, T, H, W] float32."""
        return self._file.read(f"{self._name}/{i:04d}").to(torch.float32)
