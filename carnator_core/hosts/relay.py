"""Two experts: one render over two sampling calls, each with a model of its own (Wan2.2 A14B: high noise, then low noise).

The first call leaves its run and the latent that it put out with its own attachment. A second call that starts from
that very latent takes the run over, once, and goes on with its own model. Whatever is not taken over dies with the next
render, or with the first half's model.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..bank import Loans
from ..history import Identity
from ..record import same_sigma
from ..reuse import Run
from .eligible import Part
from .identity import KEY, conditioning_digest, guided, identity, sampler_name, tensor_digest
from .patching import window_maker

ALONE = ("this is the second half of a render, and the first half was not made just now with Carnator Reuse in its MODEL line; "
         "put the node into both")
UNFOLLOWED = "only the first half of this render has Carnator Reuse in its MODEL line; put the node into both"

# The host's samplers, by function, that draw no noise of their own at their defaults: a second half's seed is nothing to them.
DRAWS_NOTHING = frozenset({
    "sample_euler", "sample_euler_cfg_pp", "sample_heun", "sample_heunpp2", "sample_dpm_2", "sample_lms", "sample_dpmpp_2m",
    "sample_dpmpp_2m_cfg_pp", "sample_ipndm", "sample_ipndm_v", "sample_deis", "sample_res_multistep",
    "sample_res_multistep_cfg_pp", "sample_gradient_estimation", "sample_gradient_estimation_cfg_pp", "sample_exp_heun_2_x0",
    "sample_unipc", "sample_unipc_bh2", "dpm_fast_function", "dpm_adaptive_function",
})  # fmt: skip


@dataclass
class Relay:
    """What the first half hands over: its run, the latent that it put out, what it took.

    bank: where its history goes. seed: of the noise that the render started from.
    """

    run: Run
    output: Tensor
    bank: Any
    seed: Any

    def problem(self, latent: Tensor, sigmas: Tensor, facts: dict[str, str], bank: Any) -> str:
        """Why a second half cannot go on from here, "" when it can. facts: conditioning and sampler, as of a request."""
        if self.output.shape != latent.shape or not torch.equal(self.output.to(latent), latent):
            return "the second half does not start from what the first half put out; " + ALONE
        request = self.run.request
        stopped, begins = float(request.sigmas[-1]), float(sigmas[0])
        if not same_sigma(stopped, begins):
            return f"the first half stops at sigma {stopped:.3f} and the second begins at {begins:.3f}; they have to meet"
        if getattr(self.bank, "folder", None) != getattr(bank, "folder", None):
            return "the two halves have different banks; connect the same one to both"
        for name, words in (("conditioning", "positive prompts"), ("sampler", "samplers")):
            if request.facts[name] != facts[name]:
                return f"the two halves have different {words}; Carnator serves renders that have one"
        return ""


_waiting: weakref.ReferenceType[Any] | None = None  # the attachment whose first half was the last render to finish


def leave(attachment: Any, relay: Relay) -> None:
    """Keep what a first half leaves, with its attachment, for the sampling call that follows."""
    global _waiting
    relay.run.pause()
    attachment.left = relay
    _waiting = weakref.ref(attachment)


def take() -> Relay | None:
    """What the render before left, if it was a first half. It is left to nobody else."""
    global _waiting
    attachment = _waiting() if _waiting is not None else None
    _waiting = None
    if attachment is None:
        return None
    relay: Relay | None = attachment.left
    attachment.left = None
    return relay


def first_half(identity: Identity, sigmas: Tensor) -> Identity:
    """The identity of a render whose first expert this is: where it hands over belongs to it."""
    return Identity({**identity.fields, "experts": f"two, the second from sigma {float(sigmas[-1]):.4f}"})


def problem(attachment: Any, part: Part, before: Relay | None, guider: Any, latent: Tensor, sampler: Any,
            sigmas: Tensor) -> str:
    """Why a half of a render cannot be served, "" when it can."""
    if part is Part.FIRST:
        return UNFOLLOWED if attachment.unfollowed() else ""
    if before is None:
        return ALONE
    facts = {"conditioning": conditioning_digest(guider.conds["positive"]), "sampler": sampler_name(sampler)}
    return before.problem(latent, sigmas, facts, attachment.bank)


def go_on(attachment: Any, loans: Loans, before: Relay, guider: Any, noise: Tensor, sampler: Any, sigmas: Tensor,
          seed: Any) -> Run:
    """The run of a render's first half, taken over by its second expert. seed: of what the second sampler draws itself."""
    run, both = before.run, guided(guider, sampler)
    facts = {"second_identity": identity(guider, noise.shape[1:], both, KEY).digest(),
             "second_schedule": tensor_digest(sigmas.detach().float().cpu()),
             "second_seed": "none" if sampler_name(sampler) in DRAWS_NOTHING else str(seed)}
    run.say, run.waited, run.lost = attachment.say, lambda: loans.waited, loans.lost
    history, verdict = None, run.verdict
    if verdict is not None and verdict.history is not None:
        matters = facts if verdict.exact else {"second_identity": facts["second_identity"]}
        if all(verdict.history.facts.get(name) == value for name, value in matters.items()):
            history = loans.take(verdict.history_id)
        else:
            verdict.reason += "; the history's second expert or its settings were others, so that half is computed"
    run.go_on(sigmas.detach().float().cpu(), history, window_maker(guider, run.settings), both, facts)
    return run
