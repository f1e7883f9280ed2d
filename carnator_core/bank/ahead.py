"""Reading ahead: the next model calls are decoded on a thread while the transformer computes, so a hit never waits."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch
from torch import Tensor

from .reading import Reading

DEPTH = 2


class Ahead:
    """Predictions of an open entry, a few calls ahead of the last one asked for. A context manager.

    In pinned memory where there is a CUDA device, so that the copy to it does not wait either. `waited` counts the
    seconds that callers stood still. The reading must not be used by others meanwhile, and outlives this.
    """

    def __init__(self, reading: Reading, first: int = 0, depth: int = DEPTH) -> None:
        self.waited = 0.0
        self._reading = reading
        self._depth = depth
        self._pin = torch.cuda.is_available()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="carnator-read")
        self._coming: dict[int, Future[Tensor]] = {}
        self._fetch(range(first, first + depth))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def denoised(self, i: int) -> Tensor:
        """D_i, [C, T, H, W] float32 on the CPU. Raises BankDamaged, BankMissing; IndexError beyond the last call."""
        if not 0 <= i < self._reading.header.calls:
            raise IndexError(f"call {i} of {self._reading.header.calls}")
        for k in [k for k in self._coming if not i <= k <= i + self._depth]:
            self._coming.pop(k).cancel()
        self._fetch(range(i, i + self._depth + 1))
        began = time.perf_counter()
        try:
            return self._coming.pop(i).result()
        finally:
            self.waited += time.perf_counter() - began

    def _fetch(self, calls: range) -> None:
        for k in calls:
            if k < self._reading.header.calls and k not in self._coming:
                self._coming[k] = self._thread.submit(self._read, k)

    def _read(self, i: int) -> Tensor:
        found = self._reading.denoised(i)
        return found.pin_memory() if self._pin else found
