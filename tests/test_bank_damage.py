"""Files that were cut, altered or made up: found before anything in them is used, in bounded time and memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bank_world import history, smooth
from carnator.carnator_core.bank import format as entry_format
from carnator.carnator_core.bank import tensorfile
from carnator.carnator_core.bank.errors import BankDamaged
from carnator.carnator_core.bank.format import prepare, read_header, write_entry
from carnator.carnator_core.bank.reading import Reading
from carnator.carnator_core.bank.strictjson import dumps, loads

resource = pytest.importorskip("resource", reason="memory is measured with it")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound compact entry with every kind of file."""
    folder = tmp_path_factory.mktemp("entry")
    steps = smooth((4, 2, 6, 5), calls=6)
    write_entry(folder, prepare(history(denoised=steps, uncond=steps * 0.5 + 0.1), "compact", 1.0))
    return folder


@pytest.fixture
def entry(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "entry"))


def use(folder: Path) -> None:
    """Everything that anybody does with an entry."""
    with Reading(folder, read_header(folder)) as reading:
        reading.verify()
        reading.history()


def test_the_pristine_entry_is_sound(pristine: Path) -> None:
    use(pristine)


def test_a_flipped_bit_anywhere_is_found(entry: Path) -> None:
    for file in sorted(entry.iterdir()):
        data = file.read_bytes()
        step = max(1, len(data) // 50)
        for position in [*range(0, len(data), step), len(data) - 1]:
            file.write_bytes(data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :])
            with pytest.raises(BankDamaged):
                use(entry)
        file.write_bytes(data)


def test_files_of_any_other_length_are_found(entry: Path) -> None:
    for file in sorted(entry.iterdir()):
        data = file.read_bytes()
        for length in [0, 1, 7, 8, 9, 50, *range(100, len(data), 4096), len(data) - 1]:
            file.write_bytes(data[:length])
            with pytest.raises(BankDamaged):
                use(entry)
        for other in (data + b"\0", b"<html><body>404</body></html>" * 20, b""):
            file.write_bytes(other)
            with pytest.raises(BankDamaged):
                use(entry)
        file.unlink()
        with pytest.raises(BankDamaged):
            use(entry)
        file.write_bytes(data)


def test_files_of_another_entry_are_found(entry: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_entry(other, prepare(history(1, denoised=smooth((4, 2, 6, 5), calls=6, seed=1)), "compact", 1.0))
    for name in (entry_format.RENDER, entry_format.STEPS, entry_format.CONNECTIVITY):
        kept = (entry / name).read_bytes()
        shutil.copy(other / name, entry / name)
        with pytest.raises(BankDamaged):
            use(entry)
        (entry / name).write_bytes(kept)


def seal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter entry.json and make its checksum right again."""
    body = json.loads((folder / "entry.json").read_bytes())
    body.pop("checksum")
    change(body)
    (folder / "entry.json").write_bytes(dumps({**body, "checksum": hashlib.sha256(dumps(body)).hexdigest()}))


def put_file(folder: Path, name: str, data: bytes) -> None:
    """Replace a tensor file by made-up bytes and vouch for them in entry.json."""
    (folder / name).write_bytes(data)
    size = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    digest = tensorfile.digest(data[: 8 + size])
    seal(folder, lambda body: body["files"].update({name: {"bytes": len(data), "digest": digest}}))


def lies() -> list[tuple[str, object]]:
    """Values of the wrong kind for every field of the header, and some of the right kind that cannot be true."""
    odd: list[object] = [None, -1, 1 << 62, 10**30, True, "x", [], {}, [[]], {"a": {}}, 1.5]
    fields = ["identity", "noise_digest", "facts", "created", "shape", "calls", "codes", "signature", "files", "schema"]
    sound = {("created", -1), ("created", 1 << 62), ("created", 10**30), ("created", 1.5), ("signature", True)}
    sound |= {("created", True), ("facts", "{}"), ("facts", "nested")}
    made = [(f, v) for f in fields for v in odd if (f, v if not isinstance(v, (list, dict)) else "") not in sound]
    made = [(f, v) for f, v in made if not (f == "facts" and isinstance(v, dict))]
    made += [("prompt", v) for v in (None, 3, [], {})]
    made += [("shape", v) for v in ([4, 2, 6], [4, 2, 6, 6], [0, 2, 6, 5], [1 << 40, 1 << 40, 1, 1], [4, 2, 6, "5"])]
    made += [("shape", [4.0, 2, 6, 5]), ("shape", [True, 2, 6, 5]), ("calls", 7), ("calls", 5), ("calls", 1 << 20)]
    made += [("codes", {"denoised": c}) for c in ({}, {"kind": "pickle"}, {"kind": []}, {"kind": "exact"})]
    made += [("codes", {"denoised": {"kind": "modes", "modes": m}}) for m in (["int8"] * 99, ["int64"], 3, [[]])]
    made += [("codes", {"../x": {"kind": "exact"}}), ("identity", {"model": 3}), ("identity", {"model": "another"})]
    made += [("files", {"../../etc/passwd": {"bytes": 3, "digest": "0" * 32}}), ("noise_digest", "0" * 64)]
    return made


@pytest.mark.parametrize(("field", "value"), lies(), ids=lambda v: str(v)[:24])
def test_a_header_that_lies_is_refused(entry: Path, field: str, value: object) -> None:
    seal(entry, lambda body: body.update({field: value}))
    with pytest.raises(BankDamaged):
        use(entry)


def crafted_file(tensors: dict[str, Any], payload: bytes, metadata: object = None, length: int | None = None) -> bytes:
    """A safetensors file with this header, whose digests are those of zeros."""
    digests = {n: tensorfile.digest(bytes(64)) for n in tensors}
    text = json.dumps({**tensors, "__metadata__": metadata or {"digests": json.dumps(digests)}}).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + payload


def one(**changes: object) -> dict[str, Any]:
    return {"noise": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64], **changes}}


CRAFTED: dict[str, bytes] = {
    "huge header": crafted_file(one(), bytes(64), length=1 << 40),
    "largest header": crafted_file(one(), bytes(64), length=(1 << 64) - 1),
    "no header": crafted_file(one(), bytes(64), length=0),
    "header of spaces": (3 << 20).to_bytes(8, "little") + b" " * (3 << 20),
    "deep json": (1 << 20).to_bytes(8, "little") + b"[" * (1 << 20),
    "wide json": (1 << 20).to_bytes(8, "little") + b"[" + b"0," * ((1 << 19) - 1) + b"0",
    "long number": (1 << 20).to_bytes(8, "little") + b"1" * (1 << 20),
    "not utf-8": (4).to_bytes(8, "little") + b'"\xff\xfe"',
    "a list": (2).to_bytes(8, "little") + b"[]",
    "twice": (48).to_bytes(8, "little") + b'{"a":{},"a":{},"__metadata__":{"digests":"{}"}} ',
    "no metadata": (2).to_bytes(8, "little") + b"{}",
    "metadata of numbers": crafted_file(one(), bytes(64), {"digests": 3}),
    "no digests": crafted_file(one(), bytes(64), {"digests": "{}"}),
    "overlap": crafted_file({**one(), "b": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}, bytes(64)),
    "gap": crafted_file(one(data_offsets=[8, 72]), bytes(72)),
    "negative": crafted_file(one(data_offsets=[-64, 0]), bytes(64)),
    "backwards": crafted_file(one(data_offsets=[64, 0]), bytes(64)),
    "beyond": crafted_file(one(shape=[1 << 40], data_offsets=[0, 1 << 40]), bytes(64)),
    "too long": crafted_file(one(), bytes(65)),
    "overflow": crafted_file(one(shape=[1 << 32, 1 << 32, 64]), bytes(64)),
    "other shape": crafted_file(one(shape=[63]), bytes(64)),
    "negative shape": crafted_file(one(shape=[-8, -8]), bytes(64)),
    "many axes": crafted_file(one(shape=[1] * 64 + [64]), bytes(64)),
    "shape of floats": crafted_file(one(shape=[64.0]), bytes(64)),
    "true": crafted_file(one(shape=[True, 64]), bytes(64)),
    "another dtype": crafted_file(one(dtype="F8_E5M2"), bytes(64)),
    "dtype of a list": crafted_file(one(dtype=["U8"]), bytes(64)),
    "no offsets": crafted_file(one(data_offsets=[]), bytes(64)),
    "not an object": crafted_file({"noise": 3}, bytes(64)),
    "sound but empty of what is needed": crafted_file(one(), bytes(64)),
}


@pytest.mark.parametrize("file", [entry_format.RENDER, entry_format.STEPS])
@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_tensor_files_are_refused(entry: Path, file: str, name: str) -> None:
    put_file(entry, file, CRAFTED[name])
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BankDamaged):
        use(entry)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"
    assert time.monotonic() - began < 10


def test_values_that_unpack_to_more_than_they_may(entry: Path) -> None:
    bomb = torch.frombuffer(bytearray(zlib.compress(bytes(1 << 26))), dtype=torch.uint8)
    with Reading(entry, read_header(entry)) as reading:
        file = reading._open[entry_format.STEPS]
        tensors = {name: file.read(name) for name in file.slots}
        metadata = {"identity": file.metadata["identity"]}
    (entry / entry_format.STEPS).unlink()
    head = tensorfile.write(entry / entry_format.STEPS, {**tensors, "denoised/0000": bomb}, metadata)
    size = (entry / entry_format.STEPS).stat().st_size
    seal(entry, lambda body: body["files"].update({entry_format.STEPS: {"bytes": size, "digest": head}}))
    with pytest.raises(BankDamaged, match="another size"):
        use(entry)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    stored = history()
    contents = prepare(stored, "exact", 1.0)
    contents.tensors[entry_format.STEPS]["denoised/0003"][0, 0, 0, 0] = float("nan")
    (tmp_path / "entry").mkdir()
    write_entry(tmp_path / "entry", dataclasses.replace(contents, tensors=contents.tensors))
    with pytest.raises(BankDamaged, match="not finite"):
        use(tmp_path / "entry")


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"NaN", b'{"a":1,"a":2}', b"\xff", b" " * (3 << 20)])
def test_strict_json(text: bytes) -> None:
    with pytest.raises(BankDamaged):
        loads(text)
