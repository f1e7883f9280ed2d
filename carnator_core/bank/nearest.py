"""The entries whose text is most like a request's, by cosine similarity, among very many."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

# Up to here one exact product of all vectors is fast enough (D = 4096: about 5 ms on one core).
PLAIN = 2048
SKETCH = 256
# Candidates of the sketch that are compared exactly, for each entry wanted.
EXACT_SHARE = 20


class Nearest:
    """Unit vectors of text conditionings, and the search among them.

    Beyond PLAIN vectors a query is first compared in the 256 principal directions of the vectors (found on 1,024 of
    them), and only the best candidates exactly: approximate in principle, so the benchmark measures what it misses.
    Vectors are kept in half precision, which moves a similarity by less than 0.001.
    """

    def __init__(self, width: int) -> None:
        self.ids: list[str] = []
        self._vectors = torch.empty(0, width, dtype=torch.float16)
        self._basis: Tensor | None = None
        self._sketches = torch.empty(0, SKETCH)
        self._sketched_at = 0

    def update(self, ids: Sequence[str], new: dict[str, Tensor]) -> None:
        """Hold the vectors of `ids` only; `new` has those [D] not held yet. Ones of another width are left out."""
        wanted = set(ids)
        kept = [i for i, entry_id in enumerate(self.ids) if entry_id in wanted]
        held = {self.ids[i] for i in kept}
        width = self._vectors.shape[1]
        added = [i for i in ids if i not in held and i in new and len(new[i]) == width]
        self.ids = [self.ids[i] for i in kept] + added
        old = self._vectors[kept] if len(kept) != len(self._vectors) else self._vectors
        fresh = torch.stack([new[i] for i in added]).to(torch.float16) if added else old[:0]
        self._vectors = torch.cat([old, fresh])
        if self._basis is not None and len(self.ids) <= 2 * self._sketched_at:
            self._sketches = torch.cat([self._sketches[kept], fresh.float() @ self._basis])
        else:
            self._basis = None

    def top(self, query: Tensor, k: int, among: Collection[str] | None = None) -> list[tuple[str, float]]:
        """The k ids of the largest cosine similarity to `query` [D], with it, the largest first; `among` some ids or all."""
        if not self.ids or k < 1:
            return []
        query = query.detach().to("cpu", torch.float32)
        if among is None:
            chosen = torch.arange(len(self.ids))
        else:
            chosen = torch.tensor([i for i, entry_id in enumerate(self.ids) if entry_id in among], dtype=torch.long)
        if len(chosen) > PLAIN:
            if self._basis is None:
                self._sketch()
            assert self._basis is not None
            likeness = self._sketches @ (query @ self._basis)
            best = likeness[chosen].topk(min(EXACT_SHARE * k, len(chosen)))
            chosen = chosen[best.indices]
        found = self._vectors[chosen].float() @ query
        best = found.topk(min(k, len(found)))
        return [(self.ids[int(chosen[i])], float(v)) for v, i in zip(best.values, best.indices, strict=True)]

    def _sketch(self) -> None:
        """Principal directions from some of the vectors (through their small Gram matrix), and all in them."""
        some = self._vectors[torch.linspace(0, len(self.ids) - 1, 1024).long()].float()
        values, modes = torch.linalg.eigh((some @ some.T).double())
        size = min(SKETCH, some.shape[1])
        strong = modes[:, -size:] / values[-size:].clamp(min=1e-9).sqrt()
        self._basis = some.T @ strong.float()
        self._sketches = torch.cat([part.float() @ self._basis for part in self._vectors.split(4096)])
        self._sketched_at = len(self.ids)
