"""Reading ahead: the next model calls are decoded on a thread while the transformer computes, so a hit never waits."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import overload

from torch import Tensor

# What lies ready, in bytes: a row of forecast steps asks for one call after another with no computed step in between.
AHEAD_BYTES = 256 << 20
LEAST, MOST = 2, 16
# Calls that stay: those last asked for, and those just before the one asked for. A decision is made at the probe's last
# step and then looks at the ones before it; a restart and interpolation ask again.
KEPT = 4


class Ahead(Sequence[Tensor]):
    """The predictions of an entry, decoded on `thread` a few calls ahead of the last one asked for.

    read(i) gives call i of `calls`, each of call_bytes; order: the calls that will be asked for, rising; others may be,
    and are waited for. In plain memory: page-locked memory, once allocated, is the process's for good.
    `waited` counts the seconds that callers stood still. For one caller at a time; the thread outlives this.
    """

    def __init__(
        self, read: Callable[[int], Tensor], calls: int, call_bytes: int, order: Sequence[int], thread: ThreadPoolExecutor
    ) -> None:
        self.waited = 0.0
        self._read = read
        self._calls = calls
        self._order = list(order)
        self._depth = max(LEAST, min(MOST, AHEAD_BYTES // max(1, call_bytes)))
        self._thread = thread
        self._coming: dict[int, Future[Tensor]] = {}
        self._asked: deque[int] = deque(maxlen=KEPT)
        self._fetch(self._order[: self._depth])

    def __len__(self) -> int:
        return self._calls

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        """Call i, on the CPU. Raises BankDamaged, BankMissing; IndexError beyond the last call."""
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._calls))]
        if not 0 <= i < self._calls:
            raise IndexError(f"call {i} of {self._calls}")
        if i not in self._asked:
            self._asked.append(i)
        at = bisect_left(self._order, i)
        kept = {*self._asked, *self._order[max(0, at - KEPT) : at + self._depth + 1]}
        for k, coming in list(self._coming.items()):
            # What nobody expected goes before all that has not begun.
            if k not in kept or (i not in self._coming and coming.cancel()):
                self._coming.pop(k).cancel()
        self._fetch([i, *self._order[at : at + self._depth + 1]])
        began = time.perf_counter()
        try:
            return self._coming[i].result()
        finally:
            self.waited += time.perf_counter() - began

    def clear(self) -> None:
        """Let go of everything decoded; the thread has to be at rest."""
        self._coming.clear()

    def _fetch(self, calls: Sequence[int]) -> None:
        for k in calls:
            if k not in self._coming:
                self._coming[k] = self._thread.submit(self._read, k)
