"""The cache bank: finished renders on disk, checked before use, within the space the creator gave."""

from .ahead import Ahead
from .card import EntryCard
from .errors import BankDamaged, BankError, BankMissing, BankRefusal
from .format import noise_digest
from .reading import Reading
from .store import Bank

__all__ = [
    "Ahead",
    "Bank",
    "BankDamaged",
    "BankError",
    "BankMissing",
    "BankRefusal",
    "EntryCard",
    "Reading",
    "noise_digest",
]
