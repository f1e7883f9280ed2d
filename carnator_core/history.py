"""What one finished render leaves behind, and what must be equal for it to be of use elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .course import bend
from .record import Past
from .signature import Signature

REPEATS = ("conditioning", "sampler", "schedule")  # facts that, beside identity and noise, make a render repeat exactly


@dataclass(frozen=True)
class Identity:
    """Everything that makes a history unusable for another request, as named fields.

    Sampler, schedule and seed are not in it: a history is keyed by sigma and converts between them.
    """

    fields: dict[str, str]

    def digest(self) -> str:
        """A stable key of all fields, 32 hex digits."""
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()[:32]

    def differs(self, other: Identity) -> list[str]:
        """Names of the fields in which two identities differ, in alphabetical order."""
        names = sorted(self.fields.keys() | other.fields.keys())
        return [n for n in names if self.fields.get(n) != other.fields.get(n)]


@dataclass
class History:
    """A cache entry C_j: the starting latent and the guided predictions of every model call.

    noise [C, T, H, W] float32 is z_0, exact; sigmas [n+1] the run's schedule; call_sigmas [m] the sigma of each model
    call and denoised [m, C, T, H, W] what was predicted there (uncond likewise, for the _cfg_pp samplers only).
    text_vector [D] is the pooled text conditioning, unit length. facts holds what JSON can: sampler, seed, seconds,
    created, grid, patch, probe length.
    """

    identity: Identity
    prompt: str
    text_vector: Tensor
    noise: Tensor
    sigmas: Tensor
    call_sigmas: Tensor
    denoised: Tensor
    uncond: Tensor | None = None
    signature: Signature | None = None
    connectivity: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    thumbnail: Tensor | None = None

    @property
    def stack(self) -> int:
        """S: 2 when the unconditional predictions were kept, else 1."""
        return 1 if self.uncond is None else 2

    @property
    def past(self) -> Past:
        """The predictions [S, C, T, H, W]."""
        if self.uncond is None:
            return Past(self.call_sigmas.tolist(), [d.unsqueeze(0) for d in self.denoised])
        return Past(self.call_sigmas.tolist(), [torch.stack(both) for both in zip(self.denoised, self.uncond, strict=True)])

    @property
    def bend(self) -> Tensor:
        """How the predictions move, [m, m] (`course.bend`)."""
        return bend(list(self.denoised))


class Remembered(Protocol):
    """A history as a run reuses it: its small parts, and its predictions call by call.

    A `History` is one; so is an entry that is read from a disk meanwhile, where any part may raise BankDamaged.
    """

    @property
    def prompt(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def noise(self) -> Tensor: ...
    @property
    def signature(self) -> Signature | None: ...
    @property
    def thumbnail(self) -> Tensor | None: ...
    @property
    def stack(self) -> int: ...
    @property
    def past(self) -> Past: ...
    @property
    def bend(self) -> Tensor: ...
    @property
    def connectivity(self) -> Mapping[str, Tensor]: ...


def repeat_key(identity_digest: str, noise_digest: str, facts: Mapping[str, Any]) -> str:
    """A key, 32 hex digits, that two renders share when one is the other's exact repeat."""
    parts = [identity_digest, noise_digest, *(str(facts.get(name)) for name in REPEATS)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
