"""The cache bank: finished renders on disk, checked before use, within the space the creator gave."""

from .card import EntryCard
from .errors import BankDamaged, BankError, BankForeign, BankMissing, BankRefusal, BankUnreadable
from .format import noise_digest
from .loans import Loan, Loans
from .reading import Reading
from .store import Bank

__all__ = [
    "Bank",
    "BankDamaged",
    "BankError",
    "BankForeign",
    "BankMissing",
    "BankRefusal",
    "BankUnreadable",
    "EntryCard",
    "Loan",
    "Loans",
    "Reading",
    "noise_digest",
]
