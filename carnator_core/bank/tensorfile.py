"""Safetensors files with a digest for every tensor, read piece by piece and without a memory map.

The file is a plain safetensors file (8 bytes little-endian header length, JSON header, tensors without gaps), so any
safetensors reader opens it. Its `__metadata__` carries `digests`, a JSON object from tensor name to the first 32 hex
digits of the SHA-256 of the tensor's bytes. The SHA-256 of the header itself is kept by the caller: with it, each
tensor can be checked on its own, before use, without reading the rest. A memory map is avoided because Windows refuses
to move a file that is mapped, and because a map of a file cut short ends the process instead of raising.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from .errors import BankDamaged, BankMissing
from .strictjson import MAX_JSON_BYTES, loads

MAX_HEADER_BYTES = MAX_JSON_BYTES
MAX_DIMS = 8
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies: dtype, shape, first byte in the file, bytes, digest."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    bytes: int
    digest: str


def as_octets(tensor: Tensor) -> Tensor:
    """The tensor's bytes in row-major order, 1-D uint8 on the CPU; no copy where none is needed."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def as_bytes(tensor: Tensor) -> memoryview:
    """The same as a buffer."""
    array: Any = as_octets(tensor).numpy()
    return memoryview(array)


def from_bytes(data: bytes) -> Tensor:
    """Bytes as a 1-D uint8 tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def digest(data: bytes | memoryview) -> str:
    """The first 32 hex digits of SHA-256: enough to find any damage."""
    return hashlib.sha256(data).hexdigest()[:32]


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write a new file, flushed to the disk, and return the digest of its header.

    Raises OSError (no space, no permission) and ValueError for a dtype that the format lacks.
    """
    header: dict[str, Any] = {}
    digests: dict[str, str] = {}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name}: {tensor.dtype} cannot be stored")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        digests[name] = digest(as_bytes(tensor))
        at += size
    header["__metadata__"] = {**metadata, "digests": json.dumps(digests)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError("too many tensors for one file")
    head = len(text).to_bytes(8, "little") + text
    with open(path, "xb") as file:
        file.write(head)
        for tensor in tensors.values():
            file.write(as_bytes(tensor))
        file.flush()
        os.fsync(file.fileno())
    return digest(head)


class TensorFile:
    """An open file whose header has been checked; `read` fetches and checks one tensor. A context manager.

    Raises BankDamaged for anything that is not exactly what `write` makes, before allocating for it.
    """

    def __init__(self, path: Path, header_digest: str) -> None:
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by close(), which lives as long as the reading
        try:
            self._file_bytes = os.fstat(self._file.fileno()).st_size
            self.metadata, self.slots = self._parse(header_digest)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; further reads raise ValueError."""
        self._file.close()

    def _parse(self, header_digest: str) -> tuple[dict[str, str], dict[str, Slot]]:
        head = self._file.read(8)
        size = int.from_bytes(head, "little") if len(head) == 8 else -1
        if not 2 <= size <= min(MAX_HEADER_BYTES, self._file_bytes - 8):
            raise BankDamaged("a tensor file is cut short or is not one")
        text = self._file.read(size)
        if digest(head + text) != header_digest:
            raise BankDamaged("a tensor file's header differs from what was stored")
        header = loads(text)
        metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise BankDamaged("a tensor file has no metadata")
        digests = loads(metadata.get("digests", "").encode())
        if not isinstance(digests, dict) or digests.keys() != header.keys():
            raise BankDamaged("a tensor file lacks checksums")
        slots: dict[str, Slot] = {}
        at = 0
        for name, item in header.items():
            slots[name] = slot = _slot(item, 8 + size, str(digests[name]))
            if slot.start != 8 + size + at:
                raise BankDamaged("a tensor file's offsets overlap or leave a gap")
            at += slot.bytes
        if 8 + size + at != self._file_bytes:
            raise BankDamaged("a tensor file is cut short or too long")
        return metadata, slots

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU, checked against its digest. Raises BankDamaged when absent or altered."""
        slot = self.slots.get(name)
        if slot is None:
            raise BankDamaged(f"{name} is missing")
        raw = torch.empty(slot.bytes, dtype=torch.uint8)
        view = as_bytes(raw)
        try:
            self._file.seek(slot.start)
            count = self._file.readinto(view)  # type: ignore[attr-defined]
        except OSError as error:
            raise BankMissing(f"the entry cannot be read: {error.strerror}") from error
        if count != slot.bytes:
            raise BankDamaged(f"{name} is cut short")
        if digest(view) != slot.digest:
            raise BankDamaged(f"{name} was altered")
        if slot.dtype == torch.bool and slot.bytes and int(raw.max()) > 1:
            raise BankDamaged(f"{name} is not boolean")
        return raw.view(slot.dtype).reshape(slot.shape)


def _slot(item: Any, base: int, digest_: str) -> Slot:
    """One header item, or BankDamaged. Sizes are checked in Python integers, which do not overflow."""
    shape, dtype, offsets = _triple(item)
    if len(shape) > MAX_DIMS or len(offsets) != 2 or dtype not in _DTYPES:
        raise BankDamaged("a tensor file's header is malformed")
    size = _DTYPES[dtype].itemsize
    for n in shape:
        size *= n
    if offsets[1] - offsets[0] != size:
        raise BankDamaged("a tensor's shape and size disagree")
    return Slot(_DTYPES[dtype], tuple(shape), base + offsets[0], size, digest_)


def _triple(item: Any) -> tuple[list[int], str, list[int]]:
    found: Any = [item.get(k) for k in ("shape", "dtype", "data_offsets")] if isinstance(item, dict) else None
    if not found or not isinstance(found[0], list) or not isinstance(found[1], str) or not isinstance(found[2], list):
        raise BankDamaged("a tensor file's header is malformed")
    if not all(type(n) is int and n >= 0 for n in found[0] + found[2]):
        raise BankDamaged("a tensor file's header is malformed")
    return found[0], found[1], found[2]
