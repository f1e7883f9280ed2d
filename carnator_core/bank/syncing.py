"""Files that are wholly there or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_new(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk. Raises OSError."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Put new contents in the place of a file: written beside it, then renamed. Raises OSError and keeps the old."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        write_new(beside, data)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can (Windows has no such call)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network folders refuse; the rename itself has happened
    finally:
        os.close(handle)
