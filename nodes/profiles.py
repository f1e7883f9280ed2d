"""Where profiles and labelled pairs live on a host: `<user folder>/carnator/profiles` and `.../pairs`, by name."""

from __future__ import annotations

import os
from pathlib import Path

from ..carnator_core.profile import LARGEST, Profile
from . import banks

MOST_PAIRS = 64 << 20  # bytes of a file of pairs


def _file(kind: str, name: str, ending: str) -> Path:
    """Raises ValueError for a name that is not one: the rules are those of bank names."""
    problem = banks.check_name(name).replace("bank name", f"name of {kind}")
    if problem:
        raise ValueError(problem)
    return banks.home() / kind / (name + ending)


def _text(path: Path, most: int, what: str) -> str:
    try:
        if path.stat().st_size > most:
            raise ValueError(f"{what} is larger than {most} bytes and is not read")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{what} does not exist: it would be {path.name} in {path.parent}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} cannot be read ({error})") from error


def read(given: str) -> Profile | None:
    """A profile by its name, or as JSON text; None for an empty text. Raises ValueError in a sentence."""
    given = given.strip()
    if not given:
        return None
    if given.startswith("{"):
        return Profile.from_json(given)
    return Profile.from_json(_text(_file("profiles", given, ".json"), LARGEST, f"the profile {given!r}"))


def find(given: str) -> tuple[Profile | None, str]:
    """`read`, with the problem as a text: (profile, "") or (None, why not)."""
    try:
        return read(given), ""
    except ValueError as error:
        return None, str(error)


def stamp(given: str) -> str:
    """What changes when the profile of this name is written anew."""
    try:
        held = _file("profiles", given.strip(), ".json").stat()
    except (OSError, ValueError):
        return ""
    return f"{held.st_mtime_ns} {held.st_size}"


def write(profile: Profile) -> Path:
    """Save a profile under its name, in place of an older one. Raises ValueError for the name, OSError."""
    path = _file("profiles", profile.name, ".json")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(profile.to_json(), encoding="utf-8")
    os.replace(part, path)
    return path


def read_pairs(given: str) -> str:
    """JSON lines as they were given, or those of a file by its name; "" for none. Raises ValueError in a sentence."""
    given = given.strip()
    if not given or given.startswith("{"):
        return given
    return _text(_file("pairs", given, ".jsonl"), MOST_PAIRS, f"the file of pairs {given!r}")


def stamps(pairs: str) -> list[tuple[str, int, int]]:
    """What tells whether a file of pairs or anybody's verdicts changed since: (name, time, size)."""
    try:
        files = sorted(banks.root().glob("*/verdicts.jsonl"))
        if pairs.strip() and not pairs.strip().startswith("{"):
            files.append(_file("pairs", pairs.strip(), ".jsonl"))
        return [(f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files if f.exists()]
    except (OSError, ValueError):
        return []
