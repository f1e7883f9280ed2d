"""What the bank raises; nothing else leaves it for a reason of its own."""

from __future__ import annotations


class BankError(Exception):
    """Base of all. The message is a short sentence a creator understands."""

    @property
    def reason(self) -> str:
        """The sentence."""
        return str(self)


class BankRefusal(BankError):
    """A render that is not stored: broken values, no room, or a folder that cannot be written."""


class BankUnreadable(BankError):
    """The bank as a whole cannot be read now: its index is locked, or its folder fails. That is not an empty bank."""


class BankDamaged(BankError):
    """An entry that fails a check. It is put aside where that is possible, and callers treat it as a miss. entry_id is its id."""

    entry_id: str | None = None


class BankMissing(BankDamaged):
    """An entry that is not there (any more), or cannot be read now. Nothing was put aside."""


class BankForeign(BankMissing):
    """A sound entry of another version of the format: of no use here, and left where it is."""
