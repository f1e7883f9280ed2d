"""An entry as its reader sees it: opened once, checked piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .. import signature as signatures
from ..course import bend
from ..history import History, Identity
from .codec import Decoder
from .connectivity import Masks
from .errors import BankDamaged, BankMissing
from .format import CONNECTIVITY, FILES, RENDER, STEPS, Header, noise_digest
from .limits import FLAT
from .strictjson import loads
from .tensorfile import TensorFile


class Reading:
    """An open entry. Small parts are read at once, predictions one model call at a time. A context manager.

    Raises BankDamaged wherever something fails its check, BankMissing when the files are gone.
    """

    def __init__(self, folder: Path, header: Header, files: Sequence[str] = FILES) -> None:
        """Opens those of the entry's files that are named; what lies in others cannot be read."""
        self.folder, self.header = folder, header
        self._open: dict[str, TensorFile] = {}
        self._decoders: dict[str, Decoder] = {}
        self._masks: Masks | None = None
        try:
            for name in [n for n in header.files if n in files]:
                self._open[name] = self._file(folder, name, header.files[name])
            noise = self._open[RENDER].slots.get("noise")
            # What is decoded later is bounded by bytes that are really there.
            if noise is None or noise.shape != header.shape or noise.dtype != torch.float32:
                raise BankDamaged("the noise is not the entry's own")
            if CONNECTIVITY in self._open:
                self._masks = Masks(self._open[CONNECTIVITY])
            if STEPS in self._open:
                shape = (header.calls, *header.shape)
                self._decoders = {k: Decoder(k, c, self._open[STEPS], shape) for k, c in header.codes.items()}
        except BaseException:
            self.close()
            raise

    def _file(self, folder: Path, name: str, item: dict[str, Any]) -> TensorFile:
        try:
            if (folder / name).stat().st_size != item["bytes"]:
                raise BankDamaged(f"{name} is cut short or too long")
            file = TensorFile(folder / name, item["digest"])
        except FileNotFoundError as error:
            if folder.is_dir():
                raise BankDamaged(f"{name} is missing") from error
            raise BankMissing("the entry is gone") from error
        except OSError as error:
            raise BankMissing(f"the entry cannot be read: {error.strerror}") from error
        if loads(file.metadata.get("identity", "").encode()) != self.header.identity:
            file.close()
            raise BankDamaged(f"{name} belongs to another entry")
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        for file in self._open.values():
            file.close()
        self._decoders.clear()  # their modes are large

    def _part(self, name: str, dims: int, dtype: torch.dtype = torch.float32) -> Tensor:
        slot = self._open[RENDER].slots.get(name)
        if slot is None or slot.dtype != dtype or len(slot.shape) != dims:
            raise BankDamaged(f"{name} is missing or of another kind")
        tensor = self._open[RENDER].read(name)
        if dtype == torch.float32 and not bool(torch.isfinite(tensor).all()):
            raise BankDamaged(f"{name} is not finite")
        return tensor

    def noise(self) -> Tensor:
        """z_0, [C, T, H, W] float32, exact."""
        noise = self._part("noise", 4)
        if tuple(noise.shape) != self.header.shape or noise_digest(noise) != self.header.noise_digest:
            raise BankDamaged("the noise is not the entry's own")
        return noise

    def text_vector(self) -> Tensor:
        """[D] float32."""
        return self._part("text_vector", 1)

    def sigmas(self) -> Tensor:
        """The run's schedule, [n+1] float32."""
        return self._part("sigmas", 1)

    def call_sigmas(self) -> Tensor:
        """The sigma of each recorded model call, [m] float32."""
        sigmas = self._part("call_sigmas", 1)
        if len(sigmas) != self.header.calls:
            raise BankDamaged("the schedule is not the entry's own")
        return sigmas

    def bend(self) -> Tensor:
        """How the predictions move, [m, m] float32 (`course.bend`); entries from before it was kept have it computed."""
        calls = self.header.calls
        if "bend" not in self._open[RENDER].slots:
            return bend([self.denoised(i) for i in range(calls)])
        inner = self._part("bend", 2)
        if inner.shape != (calls, calls):
            raise BankDamaged("the bend is not the entry's own")
        return inner

    def thumbnail(self) -> Tensor | None:
        """[h, w, 3] uint8, or None when none was stored."""
        return self._part("thumbnail", 3, torch.uint8) if "thumbnail" in self._open[RENDER].slots else None

    def signature(self) -> signatures.Signature | None:
        """The Early Signature, or None when none was recorded."""
        if not self.header.signature:
            return None
        render = self._open[RENDER]
        stored = {n.removeprefix("signature/"): render.read(n) for n in render.slots if n.startswith("signature/")}
        try:
            return signatures.from_tensors(stored)
        except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
            raise BankDamaged("the signature is malformed") from error

    def connectivity(self) -> dict[str, Tensor]:
        """The packed block masks; empty when none were recorded."""
        return {} if self._masks is None else {name: self._masks.read(name) for name in self._masks.names()}

    def mask(self, name: str) -> Tensor:
        """One packed block mask. Raises KeyError when it was not recorded."""
        if self._masks is None:
            raise KeyError(name)
        return self._masks.read(name)

    def denoised(self, i: int) -> Tensor:
        """D_i, [C, T, H, W] float32."""
        return self._decoders["denoised"].step(i)

    def uncond(self, i: int) -> Tensor | None:
        """The unconditional prediction of call i, or None when none was recorded."""
        decoder = self._decoders.get("uncond")
        return None if decoder is None else decoder.step(i)

    def history(self) -> History:
        """The whole entry in memory."""
        calls = range(self.header.calls)
        unconditional = self._decoders.get("uncond")
        return History(
            identity=Identity(dict(self.header.identity)),
            prompt=self.header.prompt,
            text_vector=self.text_vector(),
            noise=self.noise(),
            sigmas=self.sigmas(),
            call_sigmas=self.call_sigmas(),
            denoised=torch.stack([self.denoised(i) for i in calls]),
            uncond=None if unconditional is None else torch.stack([unconditional.step(i) for i in calls]),
            signature=self.signature(),
            connectivity=self.connectivity(),
            facts=dict(self.header.facts),
            thumbnail=self.thumbnail(),
        )

    def verify(self) -> None:
        """Read and check everything, one tensor at a time. Raises BankDamaged."""
        for part in (self.noise, self.text_vector, self.sigmas, self.call_sigmas, self.bend, self.thumbnail, self.signature):
            part()
        for name in self._masks.names() if self._masks is not None else ():
            self.mask(name)
        for i in range(self.header.calls):
            self.uncond(i)
            last = self.denoised(i)
        if float(last.std()) < FLAT:
            raise BankDamaged("the render is flat")
        for file in self._open.values():
            for name in file.slots:
                file.read(name)
