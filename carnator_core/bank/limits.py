"""What an entry may hold: checked before it is written, and again before anything is allocated for reading it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from ..history import History
from .errors import BankDamaged, BankForeign, BankRefusal
from .strictjson import MAX_JSON_BYTES, dumps

MAX_CALLS = 4096
MAX_DECODED_BYTES = 16 << 30
MAX_ENTRY_JSON = MAX_JSON_BYTES // 2
FLAT = 1e-4
_ID = re.compile(r"[0-9a-f]{24}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "prompt": str,
    "identity": dict,
    "noise_digest": str,
    "facts": dict,
    "created": (int, float),
    "shape": list,
    "calls": int,
    "codes": dict,
    "signature": bool,
    "files": dict,
    "schema": int,
}


def valid_id(entry_id: object) -> bool:
    """Whether this is an entry id as the bank makes them: 24 lower-case hex digits."""
    return isinstance(entry_id, str) and _ID.fullmatch(entry_id) is not None


def check_history(history: History) -> None:
    """Refuse a render that must not be remembered. Raises BankRefusal with the reason."""
    h = history
    m = len(h.denoised) if h.denoised.dim() == 5 else 0
    if h.noise.dim() != 4 or not 1 <= m <= MAX_CALLS or tuple(h.denoised.shape[1:]) != tuple(h.noise.shape) or h.noise.numel() == 0:
        raise BankRefusal("the record of the render is incomplete: its latents do not fit together")
    if tuple(h.call_sigmas.shape) != (m,) or h.sigmas.dim() != 1 or len(h.sigmas) < 2:
        raise BankRefusal("the record of the render is incomplete: its sigmas do not fit its model calls")
    if h.uncond is not None and h.uncond.shape != h.denoised.shape:
        raise BankRefusal("the record of the render is incomplete: an unconditional prediction is missing")
    if h.text_vector.dim() != 1 or h.text_vector.numel() == 0:
        raise BankRefusal("the record of the render is incomplete: it has no text vector")
    if h.thumbnail is not None and (h.thumbnail.dtype != torch.uint8 or h.thumbnail.dim() != 3):
        raise BankRefusal("the thumbnail is not an 8-bit image")
    for tensor in (
        h.noise,
        h.text_vector,
        h.sigmas,
        h.call_sigmas,
        *h.denoised,
        *(h.uncond if h.uncond is not None else ()),
    ):
        if not bool(torch.isfinite(tensor).all()):
            raise BankRefusal("the render holds NaN or infinite values")
    if float(h.denoised[-1].float().std()) < FLAT:
        raise BankRefusal("the render is flat: every value of its last prediction is the same")
    if float(h.noise.float().std()) < FLAT:
        raise BankRefusal("the render did not start from noise")
    for i in range(1, m):
        if h.call_sigmas[i] != h.call_sigmas[i - 1] and torch.equal(h.denoised[i], h.denoised[i - 1]):
            raise BankRefusal("two steps hold the same prediction: a step cache was at work")
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in h.identity.fields.items()):
        raise BankRefusal("the identity of the render is not text")
    try:
        size = len(dumps([h.prompt, h.identity.fields, h.facts]))
    except (TypeError, ValueError, RecursionError) as error:
        raise BankRefusal("the facts of the render cannot be written down as JSON") from error
    if size > MAX_ENTRY_JSON:
        raise BankRefusal("the prompt or the facts of the render are too long")


def check_header(body: Any, schema: int, files: Sequence[str]) -> None:
    """Refuse a header that lies about types, sizes or names. Raises BankDamaged; allocates nothing."""
    if not isinstance(body, dict) or type(body.get("schema")) is not int:
        raise BankDamaged("the header has no version")
    if body["schema"] != schema:
        raise BankForeign(f"the entry has version {body['schema']} of the format, and this pack reads {schema}")
    if body.keys() != _FIELDS.keys() or not all(isinstance(body[k], t) for k, t in _FIELDS.items()):
        raise BankDamaged("the header lacks fields or has strange ones")
    shape, calls = body["shape"], body["calls"]
    if not 0 <= body["created"] < 1e12:
        raise BankDamaged("the date makes no sense")
    if len(shape) != 4 or not all(type(n) is int and n > 0 for n in shape) or type(calls) is not int:
        raise BankDamaged("the latent's shape makes no sense")
    if not 1 <= calls <= MAX_CALLS or 4 * math.prod(shape) * calls * max(1, len(body["codes"])) > MAX_DECODED_BYTES:
        raise BankDamaged("the entry claims more steps or values than any render has")
    if not body["codes"].keys() <= {"denoised", "uncond"} or "denoised" not in body["codes"]:
        raise BankDamaged("the predictions are missing")
    if not all(isinstance(c, dict) for c in body["codes"].values()):
        raise BankDamaged("the coding of the predictions is malformed")
    if not all(isinstance(v, str) for v in body["identity"].values()) or not _SHA256.fullmatch(body["noise_digest"]):
        raise BankDamaged("the identity or the noise's digest is malformed")
    if not {*files[:2]} <= body["files"].keys() <= {*files}:
        raise BankDamaged("the list of files is not an entry's")
    for item in body["files"].values():
        sound = isinstance(item, dict) and item.keys() == {"bytes", "digest"} and type(item["bytes"]) is int
        if not sound or item["bytes"] < 0 or not isinstance(item["digest"], str) or not _DIGEST.fullmatch(item["digest"]):
            raise BankDamaged("the list of files is malformed")
