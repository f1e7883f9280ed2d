"""Where banks live on a host: `<user folder>/carnator/<name>`, private to the user who runs it."""

from __future__ import annotations

import re
from pathlib import Path

from ..carnator_core.bank import Bank

DEFAULT_NAME, DEFAULT_GIGABYTES = "default", 20.0
RESERVED = ("profiles", "pairs")  # folders beside the banks
_NAME = re.compile(r"[\w\- ]{1,64}", re.UNICODE)


def check_name(name: str) -> str:
    """An error sentence for a bank name that is not one, "" for a good one."""
    if not _NAME.fullmatch(name) or name.strip() != name:
        return (f"the bank name {name!r} cannot be used: up to 64 letters, digits, spaces, '-' or '_', "
                "without a path and without spaces at the ends")
    if name.lower() in RESERVED:
        return f"the bank name {name!r} cannot be used: {' and '.join(RESERVED)} are folders of their own"
    return ""


def home() -> Path:
    """The folder of everything that Carnator keeps for this user."""
    import folder_paths

    return Path(folder_paths.get_user_directory()) / "carnator"


def folder(name: str) -> Path:
    """The folder of a bank. Raises ValueError for a name that is not one."""
    problem = check_name(name)
    if problem:
        raise ValueError(problem)
    return home() / name


def open_bank(name: str = DEFAULT_NAME, gigabytes: float = DEFAULT_GIGABYTES) -> Bank:
    """Open a bank; one that does not exist yet is empty. gigabytes: its budget on disk."""
    return Bank.open(folder(name), int(gigabytes * 1e9))
