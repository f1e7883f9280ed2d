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
from typing import Any

import torch
from torch import Tensor

from .. import signature as signatures
from ..history import History
from . import codec, connectivity, tensorfile
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
    masks: str

    def bytes(self) -> int:
        """What the files will take at most, in bytes, before any of them exists."""
        tensors = [t for file in self.tensors.values() for t in file.values()]
        return sum(t.nbytes + 512 for t in tensors) + len(self.masks) + (1 << 14)


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
        "bend": history.bend,
    }
    render = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in floats.items()}
    if history.thumbnail is not None:
        render["thumbnail"] = history.thumbnail.detach().to("cpu")
    if history.signature is not None:
        render.update({f"signature/{k}": v for k, v in signatures.to_tensors(history.signature).items()})
    tensors = {RENDER: render, STEPS: {k: v for c in coded.values() for k, v in c.tensors.items()}}
    masks = ""
    if history.connectivity:
        masks, tensors[CONNECTIVITY] = connectivity.encode(history.connectivity)
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
    return Contents(header, tensors, masks)


def write_entry(folder: Path, contents: Contents) -> Header:
    """Write all files into an empty folder, flushed to the disk. Raises OSError and, for odd dtypes, ValueError."""
    metadata = {"identity": dumps(contents.header.identity).decode(), "schema": str(SCHEMA)}
    files = {}
    for name, tensors in contents.tensors.items():
        head = tensorfile.write(folder / name, tensors, {**metadata, "codes": contents.masks} if name == CONNECTIVITY else metadata)
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
