"""One entry as a folder: entry.json, render.safetensors, steps.safetensors and, if recorded, connectivity.safetensors.

entry.json is the header: schema version, prompt, identity, facts, shapes, how the predictions are coded, and for each
tensor file its size and the digest of its header (which holds the digests of its tensors). Its own last line of
defence is `checksum`, the SHA-256 of the canonical JSON of all the rest; the file must be exactly that canonical text.
So one flipped bit anywhere is found before use, and a reader that wants one model call checks only what it reads.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .. import signature as signatures
from ..history import History, Identity
from . import codec, tensorfile
from .errors import BankDamaged, BankMissing
from .limits import check_header, check_history
from .strictjson import MAX_JSON_BYTES, dumps, loads
from .syncing import write_new

SCHEMA = 1
HEADER = "entry.json"
RENDER = "render.safetensors"
STEPS = "steps.safetensors"
CONNECTIVITY = "connectivity.safetensors"
FILES = (RENDER, STEPS, CONNECTIVITY)


@dataclass(frozen=True)
class Header:
    """entry.json. shape is (C, T, H, W) of the latent; calls the number m of recorded model calls; codes says per
    trajectory ("denoised", "uncond") how it is coded; files maps a file name to {"bytes", "digest"}."""

    prompt: str
    identity: dict[str, str]
    noise_digest: str
    facts: dict[str, Any]
    created: float
    shape: tuple[int, ...]
    calls: int
    codes: dict[str, dict[str, Any]]
    signature: bool
    files: dict[str, dict[str, Any]]
    schema: int = SCHEMA

    def bytes(self) -> int:
        """Bytes of all files of the entry, the header aside."""
        return sum(int(f["bytes"]) for f in self.files.values())


def noise_digest(noise: Tensor) -> str:
    """SHA-256 (64 hex digits) of the float32 bytes of a starting latent; a leading batch axis of 1 changes nothing."""
    return hashlib.sha256(tensorfile.as_bytes(noise.detach().to("cpu", torch.float32))).hexdigest()


@dataclass(frozen=True)
class Contents:
    """A history ready to be written: its header without the list of files, and the tensors of each file."""

    header: Header
    tensors: dict[str, dict[str, Tensor]]

    def bytes(self) -> int:
        """What the files will take at most, in bytes, before any of them exists."""
        return sum(t.numel() * t.element_size() + 512 for file in self.tensors.values() for t in file.values()) + (
            1 << 14
        )


def prepare(history: History, precision: str, created: float) -> Contents:
    """Check and code a history (see codec.encode for precision). Raises BankRefusal; writes nothing."""
    check_history(history)
    coded = {"denoised": codec.encode("denoised", history.denoised, precision)}
    if history.uncond is not None:
        coded["uncond"] = codec.encode("uncond", history.uncond, precision)
    floats = {
        "noise": history.noise,
        "text_vector": history.text_vector,
        "sigmas": history.sigmas,
        "call_sigmas": history.call_sigmas,
    }
    render = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in floats.items()}
    if history.thumbnail is not None:
        render["thumbnail"] = history.thumbnail.detach().to("cpu")
    if history.signature is not None:
        render.update({f"signature/{k}": v for k, v in signatures.to_tensors(history.signature).items()})
    tensors = {RENDER: render, STEPS: {k: v for c in coded.values() for k, v in c.tensors.items()}}
    if history.connectivity:
        tensors[CONNECTIVITY] = dict(history.connectivity)
    header = Header(
        prompt=history.prompt,
        identity=dict(history.identity.fields),
        noise_digest=noise_digest(history.noise),
        facts=history.facts,
        created=created,
        shape=tuple(history.noise.shape),
        calls=len(history.denoised),
        codes={k: c.header for k, c in coded.items()},
        signature=history.signature is not None,
        files={},
    )
    return Contents(header, tensors)


def write_entry(folder: Path, contents: Contents) -> Header:
    """Write all files into an empty folder, flushed to the disk. Raises OSError and, for odd dtypes, ValueError."""
    metadata = {"identity": dumps(contents.header.identity).decode(), "schema": str(SCHEMA)}
    files = {}
    for name, tensors in contents.tensors.items():
        head = tensorfile.write(folder / name, tensors, metadata)
        files[name] = {"bytes": (folder / name).stat().st_size, "digest": head}
    header = replace(contents.header, files=files)
    write_new(folder / HEADER, _text(header))
    return header


def _text(header: Header) -> bytes:
    body = asdict(header)
    return dumps({**body, "checksum": hashlib.sha256(dumps(body)).hexdigest()})


def read_header(folder: Path) -> Header:
    """entry.json, checked. Raises BankDamaged, or BankMissing when the folder is gone or cannot be read."""
    try:
        with open(folder / HEADER, "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError as error:
        if folder.is_dir():
            raise BankDamaged("the entry has no header") from error
        raise BankMissing("the entry is gone") from error
    except OSError as error:
        raise BankMissing(f"the entry cannot be read: {error.strerror}") from error
    body = loads(data)
    checksum = body.pop("checksum", None) if isinstance(body, dict) else None
    if checksum is None or dumps({**body, "checksum": checksum}) != data:
        raise BankDamaged("the header is not as it was written")
    if hashlib.sha256(dumps(body)).hexdigest() != checksum:
        raise BankDamaged("the header was altered")
    check_header(body, SCHEMA, FILES)
    return Header(**{**body, "shape": tuple(body["shape"])})


class Reading:
    """An open entry. Small parts are read at once, predictions one model call at a time. A context manager.

    Raises BankDamaged wherever something fails its check, BankMissing when the files are gone.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.header = header
        self._open: dict[str, tensorfile.TensorFile] = {}
        try:
            for name, item in header.files.items():
                self._open[name] = self._file(folder, name, item)
            steps, noise = self._open[STEPS], self._open[RENDER].slots.get("noise")
            # What is decoded later is bounded by bytes that are really there.
            if noise is None or noise.shape != header.shape or noise.dtype != torch.float32:
                raise BankDamaged("the noise is not the entry's own")
            shape = (header.calls, *header.shape)
            self._decoders = {k: codec.Decoder(k, c, steps, shape) for k, c in header.codes.items()}
        except BaseException:
            self.close()
            raise

    def _file(self, folder: Path, name: str, item: dict[str, Any]) -> tensorfile.TensorFile:
        try:
            if (folder / name).stat().st_size != item["bytes"]:
                raise BankDamaged(f"{name} is cut short or too long")
            file = tensorfile.TensorFile(folder / name, item["digest"])
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
        links = self._open.get(CONNECTIVITY)
        return {} if links is None else {name: links.read(name) for name in links.slots}

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
