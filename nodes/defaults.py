"""What the host's settings dialog says where a workflow says nothing: a small file in the user folder.

Only the bank that Carnator Reuse uses without a Cache Bank Loader is read here. The other settings of the dialog are the
first values of new nodes; the page puts them there, and the workflow states them from then on.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..carnator_core.bank import Bank, BankDamaged
from ..carnator_core.bank.strictjson import dumps, loads
from ..carnator_core.bank.syncing import replace
from . import banks

log = logging.getLogger("carnator")
FILE = "settings.json"


@dataclass(frozen=True)
class Defaults:
    """bank: a name. budget_gb: its budget on disk, in GB. Raises ValueError, with the reason, for anything else."""

    bank: str = banks.DEFAULT_NAME
    budget_gb: float = banks.DEFAULT_GIGABYTES

    def __post_init__(self) -> None:
        problem = banks.check_name(self.bank) if isinstance(self.bank, str) else "the bank's name has to be a text"
        if problem:
            raise ValueError(problem)
        number = isinstance(self.budget_gb, (int, float)) and not isinstance(self.budget_gb, bool)
        if not number or not banks.LEAST_GIGABYTES <= self.budget_gb <= banks.MOST_GIGABYTES:
            raise ValueError(f"the budget is {self.budget_gb!r}; it has to be a number of GB from {banks.LEAST_GIGABYTES:g} "
                             f"to {banks.MOST_GIGABYTES:g}")

    def plain(self) -> dict[str, Any]:
        """As a dict that JSON can hold."""
        return asdict(self)


def of(body: Any) -> Defaults:
    """Defaults from JSON; a missing name keeps its default. Raises ValueError for anything that is not."""
    if not isinstance(body, dict) or not body.keys() <= {"bank", "budget_gb"}:
        raise ValueError("settings are an object with 'bank' and 'budget_gb'")
    return Defaults(**body)


def open_bank() -> Bank:
    """The bank of a render whose workflow names none."""
    settings = read()
    return banks.open_bank(settings.bank, settings.budget_gb)


def read() -> Defaults:
    """The settings in force; those that cannot be read count as never made."""
    try:
        return of(loads(_file().read_bytes()))
    except FileNotFoundError:
        return Defaults()
    except (OSError, BankDamaged, ValueError) as error:
        log.warning("Carnator: the settings cannot be read (%s); using bank '%s'.", type(error).__name__, banks.DEFAULT_NAME)
        return Defaults()


def write(settings: Defaults) -> None:
    """Keep the settings. Raises OSError."""
    path = _file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, dumps(settings.plain()))


def _file() -> Path:
    return banks.home() / FILE
