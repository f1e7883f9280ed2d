"""One file that holds entries, for moving them between banks.

After the line "CARNATOR BANK 1" comes entry after entry: the length of a JSON text (8 bytes, little-endian), the text
{"entry": id, "files": [[name, bytes], ...]}, and the files' bytes in that order. Nothing in it is a path: names come
from a fixed list, and an id from one pattern. It can be read as a stream, so a crafted one costs no memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import format as entry_format
from .errors import BankDamaged, BankRefusal
from .format import Header
from .limits import valid_id
from .reading import Reading
from .strictjson import MAX_JSON_BYTES, dumps, loads

MAGIC = b"CARNATOR BANK 1\n"
MAX_LISTING = 4096
MAX_FILE_BYTES = 32 << 30
_CHUNK = 1 << 20


def write_entry(stream: BinaryIO, entry_id: str, folder: Path, header: Header) -> None:
    """Append one entry. Raises OSError."""
    names = [entry_format.HEADER, *header.files]
    sizes = [(folder / name).stat().st_size for name in names]
    listing = dumps({"entry": entry_id, "files": [[n, s] for n, s in zip(names, sizes, strict=True)]})
    stream.write(len(listing).to_bytes(8, "little") + listing)
    for name, size in zip(names, sizes, strict=True):
        with open(folder / name, "rb") as file:
            _copy(file, stream, size)


def expect_magic(stream: BinaryIO) -> None:
    """Read the first line. Raises BankRefusal when the file is none of ours."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise BankRefusal("the file is not an exported bank, or comes from another version")


@dataclass(frozen=True)
class Coming:
    """The next entry of a stream: its id and its files with their sizes."""

    id: str
    files: list[tuple[str, int]]

    def bytes(self) -> int:
        """Of all files."""
        return sum(size for _, size in self.files)

    def receive(self, stream: BinaryIO, folder: Path) -> Header:
        """Write the files into an empty folder, flushed, and check every value. Raises BankDamaged and OSError."""
        for name, size in self.files:
            with open(folder / name, "xb") as file:
                _copy(stream, file, size)
                file.flush()
                os.fsync(file.fileno())
        header = entry_format.read_header(folder)
        if {name for name, _ in self.files} != {entry_format.HEADER, *header.files}:
            raise BankDamaged("the files are not those of the entry")
        with Reading(folder, header) as reading:
            reading.verify()
        return header

    def skip(self, stream: BinaryIO) -> None:
        """Read past the files."""
        _copy(stream, None, self.bytes())


def next_entry(stream: BinaryIO) -> Coming | None:
    """The next entry's listing, or None at the end. Raises BankDamaged for anything else."""
    head = stream.read(8)
    if not head:
        return None
    size = int.from_bytes(head, "little")
    if len(head) != 8 or not 2 <= size <= MAX_LISTING:
        raise BankDamaged("the file is cut short or malformed")
    listing = loads(stream.read(size))
    if not isinstance(listing, dict) or listing.keys() != {"entry", "files"} or not valid_id(listing["entry"]):
        raise BankDamaged("the file's listing of an entry is malformed")
    allowed = {entry_format.HEADER: MAX_JSON_BYTES, **dict.fromkeys(entry_format.FILES, MAX_FILE_BYTES)}
    files: list[tuple[str, int]] = []
    for item in listing["files"] if isinstance(listing["files"], list) else [None]:
        name, count = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(name, str) or type(count) is not int or not 0 <= count <= allowed.pop(name, -1):
            raise BankDamaged("the file's listing of an entry is malformed")
        files.append((name, count))
    return Coming(listing["entry"], files)


def _copy(source: BinaryIO, target: BinaryIO | None, size: int) -> None:
    while size:
        data = source.read(min(size, _CHUNK))
        if not data:
            raise BankDamaged("the file is cut short")
        if target is not None:
            target.write(data)
        size -= len(data)
