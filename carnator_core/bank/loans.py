"""What one sampling run has borrowed from the bank: an entry that is opened, read and decoded on a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from ..record import Past, around, same_sigma
from ..signature import Signature
from .ahead import Ahead
from .errors import BankDamaged, BankMissing
from .reading import Reading
from .shelf import ascii_text
from .store import Bank

LOG = logging.getLogger("carnator")


@dataclass(frozen=True)
class _Parts:
    """The small parts of an open entry, its predictions, and its masks to come."""

    reading: Reading
    noise: Tensor
    signature: Signature | None
    thumbnail: Tensor | None
    bend: Tensor
    past: Past
    masks: Future[dict[str, Tensor]] | None


class Loan:
    """An entry of a bank as a run reuses it (a `history.Remembered`): pinned in the bank until it is closed.

    Opening and reading begin at once, on a thread. sigmas [n+1]: the schedule of the run, from which follows what is
    decoded ahead; masks: whether the connectivity will be asked for. Whatever is asked for is waited for, `waited`
    counts the seconds; anything may raise BankDamaged or BankMissing. What was read before stays readable when closed.
    """

    def __init__(self, bank: Bank, entry_id: str, sigmas: Sequence[float], masks: bool) -> None:
        self.id = entry_id
        self._stood = 0.0
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="carnator-read")
        self._ahead: Ahead | None = None
        self._opening = self._thread.submit(self._open, bank, sigmas, masks)

    def _open(self, bank: Bank, sigmas: Sequence[float], masks: bool) -> _Parts:
        reading = self._stack.enter_context(bank.reading(self.id))
        header, calls = reading.header, reading.call_sigmas().tolist()
        noise = reading.noise()
        order = needed(calls, reading.sigmas().tolist(), sigmas)
        self._ahead = ahead = Ahead(self._call, header.calls, 4 * noise.numel() * len(header.codes), order, self._thread)
        coming = self._thread.submit(reading.connectivity) if masks else None
        return _Parts(reading, noise, reading.signature(), reading.thumbnail(), reading.bend(), Past(calls, ahead), coming)

    def _call(self, i: int) -> Tensor:
        """Prediction of call i, [S, C, T, H, W]."""
        reading = self._opening.result().reading
        guided, unconditional = reading.denoised(i), reading.uncond(i)
        return guided.unsqueeze(0) if unconditional is None else torch.stack([guided, unconditional])

    @property
    def waited(self) -> float:
        """Seconds that the caller stood still for this entry."""
        return self._stood + (self._ahead.waited if self._ahead is not None else 0.0)

    def _parts(self) -> _Parts:
        began = time.perf_counter()
        try:
            return self._opening.result()
        finally:
            self._stood += time.perf_counter() - began

    @property
    def prompt(self) -> str:
        """As it was rendered from."""
        return self._parts().reading.header.prompt

    @property
    def facts(self) -> Mapping[str, Any]:
        """What JSON holds of the render."""
        return self._parts().reading.header.facts

    @property
    def noise(self) -> Tensor:
        """z_0, [C, T, H, W] float32, exact."""
        return self._parts().noise

    @property
    def signature(self) -> Signature | None:
        """The Early Signature, when one was recorded."""
        return self._parts().signature

    @property
    def thumbnail(self) -> Tensor | None:
        """[h, w, 3] uint8, when one was stored."""
        return self._parts().thumbnail

    @property
    def stack(self) -> int:
        """S of the predictions."""
        return len(self._parts().reading.header.codes)

    @property
    def past(self) -> Past:
        """The predictions, read ahead."""
        return self._parts().past

    @property
    def bend(self) -> Tensor:
        """How the predictions move, [m, m]."""
        return self._parts().bend

    @property
    def connectivity(self) -> Mapping[str, Tensor]:
        """The packed block masks; empty when none were recorded, or none were wanted."""
        masks = self._parts().masks
        began = time.perf_counter()
        try:
            return masks.result() if masks is not None else {}
        finally:
            self._stood += time.perf_counter() - began

    def close(self, error: BankDamaged | None = None) -> None:
        """Stop reading and let the entry go; with what was found wrong with it, the bank puts it aside."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._ahead is not None:
            self._ahead.clear()
        if error is None:
            self._stack.close()
            return
        try:
            self._stack.__exit__(type(error), error, error.__traceback__)
        except BankDamaged:
            pass  # put aside, with its warning


@dataclass
class Loans:
    """The entry that a sampling run has open, one at a time. A context manager: nothing stays open when it is left.

    bank: None lends nothing. sigmas, masks: see Loan. waited: seconds that the run stood still for the bank.
    """

    bank: Bank | None
    sigmas: Sequence[float]
    masks: bool = True
    _open: Loan | None = field(default=None, init=False)
    _before: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def waited(self) -> float:
        """Seconds that the run stood still for the bank."""
        return self._before + (self._open.waited if self._open is not None else 0.0)

    def begin(self, entry_id: str) -> None:
        """Start to read an entry that will probably be taken."""
        if self.bank is not None and (self._open is None or self._open.id != entry_id):
            self._close()
            self._open = Loan(self.bank, entry_id, self.sigmas, self.masks)

    def take(self, entry_id: str) -> Loan | None:
        """An entry whose small parts can be read, or None (and a warning): a miss. The one open before is given back."""
        self.begin(entry_id)
        if self._open is None:
            return None
        try:
            self._open.noise  # noqa: B018 - waits until it is open
        except (BankDamaged, OSError, ValueError) as error:
            self.lost(error)
            return None
        return self._open

    def lost(self, error: Exception) -> None:
        """Give back the open entry, which could not be read (further): one warning."""
        if self._open is None:
            return
        if not isinstance(error, BankDamaged) or isinstance(error, BankMissing):
            LOG.warning("Carnator: the remembered render %s cannot be read (%s); the model computes instead.", self._open.id,
                        ascii_text(error))  # fmt: skip
        self._close(error if isinstance(error, BankDamaged) else None)

    def _close(self, error: BankDamaged | None = None) -> None:
        if self._open is not None:
            loan, self._open = self._open, None
            loan.close(error)
            self._before += loan.waited


def needed(calls: Sequence[float], recorded: Sequence[float], sigmas: Sequence[float]) -> list[int]:
    """The calls that a run on the schedule `sigmas` asks for, rising: all of them when it is the schedule `recorded` on
    which they were made (a sampler may call several times a step), otherwise those next to its sigmas."""
    if len(recorded) == len(sigmas) and all(same_sigma(a, b) for a, b in zip(recorded, sigmas, strict=True)):
        return list(range(len(calls)))
    return sorted({i for s in sigmas[:-1] for i in around(calls, s)})
