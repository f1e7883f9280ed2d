"""What makes a history unusable elsewhere, read off a host's model, guider and conditioning."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..history import Identity

_SAMPLED_TENSORS, _SAMPLED_VALUES = 48, 16
_weights: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 over shape, dtype and bytes, 16 hex digits. Reads every value: for conditioning and noise."""
    h = hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    h.update(tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


def _sample(h: Any, name: str, value: Tensor) -> None:
    h.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
    try:
        flat = value.detach().reshape(-1)
        index = torch.linspace(0, flat.numel() - 1, min(_SAMPLED_VALUES, flat.numel())).long()
        h.update(flat[index.to(flat.device)].to("cpu", torch.float32).numpy().tobytes())
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        h.update(b"?")  # quantised storage that cannot be indexed: its name, shape and dtype have to do


def weights_digest(patcher: Any) -> str:
    """Fingerprint of the unpatched weights: 16 values of each of 48 tensors, milliseconds. Kept with the model."""
    model = patcher.model
    if model not in _weights:
        backup = getattr(patcher, "backup", {})
        named = sorted(model.diffusion_model.named_parameters())
        chosen = named[:: max(1, len(named) // _SAMPLED_TENSORS)]
        h = hashlib.sha256(str(len(named)).encode())
        for name, value in chosen:
            held = backup.get(f"diffusion_model.{name}")
            _sample(h, name, held.weight if held is not None else value)
        _weights[model] = h.hexdigest()[:16]
    return _weights[model]


def patches_digest(patcher: Any) -> str:
    """Fingerprint of LoRAs and other weight patches with their strengths; "none" without."""
    patches = getattr(patcher, "patches", {})
    if not patches:
        return "none"
    h = hashlib.sha256()

    def add(value: Any, depth: int = 0) -> None:
        if isinstance(value, Tensor):
            _sample(h, "", value)
        elif isinstance(value, int | float | str | bool) or value is None:
            h.update(repr(value).encode())
        elif isinstance(value, Iterable) and depth < 4:
            for item in value:
                add(item, depth + 1)
        elif hasattr(value, "weights"):
            add(value.weights, depth + 1)
        else:
            h.update(type(value).__qualname__.encode())

    for key in sorted(patches, key=str):
        h.update(str(key).encode())
        add(patches[key])
    return h.hexdigest()[:16]


def conditioning_digest(conds: list[dict[str, Any]] | None) -> str:
    """Fingerprint of a guidance branch's text conditioning; "none" when the branch is not evaluated."""
    if not conds:
        return "none"
    return ",".join(tensor_digest(c["cross_attn"]) if c.get("cross_attn") is not None else "empty" for c in conds)


def identity(guider: Any, latent_shape: Iterable[int], guided: bool) -> Identity:
    """Identity of a request on this guider. guided: whether the unconditional branch is evaluated (cfg is not 1)."""
    patcher = guider.model_patcher
    model = patcher.model
    sampling = model.model_sampling
    shift = getattr(sampling, "shift", None)
    positive = guider.conds.get("positive") or [{}]
    text = positive[0].get("cross_attn")
    return Identity({
        "model": type(model).__name__,
        "weights": weights_digest(patcher),
        "patches": patches_digest(patcher),
        "precision": str(patcher.model_dtype()),
        "latent": "x".join(str(n) for n in latent_shape),
        "sampling": f"{type(sampling).__mro__[1].__name__} shift {shift:g}" if shift is not None else type(sampling).__mro__[1].__name__,
        "text": "none" if text is None else str(text.shape[-1]),
        "guider": type(guider).__name__,
        "cfg": f"{float(guider.cfg):g}" if guided else "1",
        "negative": conditioning_digest(guider.conds.get("negative")) if guided else "none",
        "frame_rate": str(positive[0].get("frame_rate", "")),
    })
