"""Where banks live on a host: `<user folder>/carnator/<name>`, private to the user who runs it.

A person whose user folder is on a small disk names another place as `carnator_banks` in the host's extra_model_paths.yaml.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..carnator_core.bank import Bank

DEFAULT_NAME, DEFAULT_GIGABYTES = "default", 20.0
RESERVED = ("profiles", "pairs")  # folders beside the banks
LEAST_GIGABYTES, MOST_GIGABYTES = 0.1, 10_000.0
PLACE = "carnator_banks"
_NAME = re.compile(r"[\w\- ]{1,64}", re.UNICODE)
_DEVICE = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9\u00b9\u00b2\u00b3]", re.IGNORECASE)  # Windows opens these wherever they stand
_budgets: dict[Path, float] = {}
_MOST_BYTES = 200  # of a folder's name; most file systems take 255


def check_name(name: str) -> str:
    """An error sentence for a bank name that is not one, "" for a good one."""
    good = _NAME.fullmatch(name) and name.strip() == name and len(name.encode()) <= _MOST_BYTES
    if not good or _DEVICE.fullmatch(name):
        return (f"the bank name {name[:80]!r} cannot be used: up to 64 letters, digits, spaces, '-' or '_', "
                "without a path, without spaces at the ends, and no device name of Windows")
    if name.lower() in RESERVED:
        return f"the bank name {name!r} cannot be used: {' and '.join(RESERVED)} are folders of their own"
    return ""


def home() -> Path:
    """The folder of everything that Carnator keeps for this user, the banks aside where they have a place of their own."""
    import folder_paths

    return Path(folder_paths.get_user_directory()) / "carnator"


def root() -> Path:
    """The folder that holds the banks."""
    import folder_paths

    placed = folder_paths.folder_names_and_paths.get(PLACE)
    return Path(placed[0][0]) if placed and placed[0] else home()


def folder(name: str) -> Path:
    """The folder of a bank. Raises ValueError for a name that is not one."""
    problem = check_name(name)
    if problem:
        raise ValueError(problem)
    return root() / name


def names(most: int = 500) -> list[str]:
    """Names of the banks that there are, in order, at most so many. Raises OSError where the folder cannot be read."""
    try:
        found = [p.name for p in root().iterdir() if not check_name(p.name) and (p / "entries").is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found)[:most]


def open_bank(name: str, gigabytes: float) -> Bank:
    """Open a bank; one that does not exist yet is empty. gigabytes: its budget on disk."""
    place = folder(name)
    _budgets[place] = gigabytes
    return Bank.open(place, int(gigabytes * 1e9))


def budget(name: str) -> float | None:
    """The budget in GB with which a node of this process last opened the bank, for what the page shows; None without."""
    return _budgets.get(folder(name))
