"""The cache bank: finished renders on disk, checked before use, within the space the creator gave."""

from .errors import BankDamaged, BankError, BankMissing, BankRefusal
from .format import Reading, noise_digest
from .store import Bank, EntryCard

__all__ = ["Bank", "BankDamaged", "BankError", "BankMissing", "BankRefusal", "EntryCard", "Reading", "noise_digest"]
