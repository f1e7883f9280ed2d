"""What makes a history unusable elsewhere, read off a host's model, guider and conditioning."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..history import Identity

KEY = "carnator"  # of our own wrappers
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
        index = torch.linspace(0, flat.numel() - 1, min(_SAMPLED_VALUES, flat.numel()), dtype=torch.float64).long()  # exact
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
    return _digest(getattr(patcher, "patches", {}))


def forward_digest(options: dict[str, Any], objects: Mapping[str, Any], own: str,
                   injected: Mapping[str, Any] | None = None) -> str:
    """Fingerprint of what other nodes do to the forward pass (block and attention patches, wrappers, rotary options,
    replaced objects, what is injected into layers); "none" without. Functions count by their name and by what they close
    over. own: our wrappers' key."""
    transformer = options.get("transformer_options", {})
    wrappers = {kind: {key: w for key, w in keyed.items() if key != own}
                for kind, keyed in transformer.get("wrappers", {}).items()}
    rest = {k: v for k, v in transformer.items() if k not in ("wrappers", "callbacks") and v}
    replaced = {k: v for k, v in objects.items() if k != "model_sampling"}  # that one has a field of its own
    return _digest({**rest, **{k: v for k, v in wrappers.items() if any(v.values())}, **replaced, **(injected or {})})


def filled(held: Any) -> Any:
    """A patcher's nested registers (callbacks by kind and key) without those that are empty; other values as they are."""
    if not isinstance(held, Mapping):
        return held
    inner = {key: filled(value) for key, value in held.items()}
    return {key: value for key, value in inner.items() if value is not None and (not hasattr(value, "__len__") or len(value))}


def _digest(values: dict[Any, Any]) -> str:
    if not values:
        return "none"
    h = hashlib.sha256()
    _feed(h, values, {})
    return h.hexdigest()[:16]


def _feed(h: Any, value: Any, seen: dict[int, Any], depth: int = 0) -> None:
    """Add what can be told of a value between processes: names and what they hold, no addresses.

    Of objects that are not known their attributes count, for a node's settings may stand there (NAG's scale, a bypassed
    LoRA's weights). Of models and of the host's patchers the type alone does: they have fields of their own in the identity.
    """
    if isinstance(value, Tensor):
        _sample(h, "", value)
    elif isinstance(value, int | float | str | bool | bytes | torch.dtype | torch.device) or value is None:
        h.update(repr(value).encode())
    elif isinstance(value, np.ndarray | np.generic):
        h.update(f"{value.shape} {value.dtype}".encode())
        h.update(value.tobytes())
    elif depth > 8 or id(value) in seen or isinstance(value, type | torch.nn.Module) or hasattr(value, "patches_uuid"):
        h.update(getattr(value, "__qualname__", type(value).__qualname__).encode())
    else:
        seen[id(value)] = value  # kept: a value that was made on the way, and let go, leaves its number to the next
        for part in _parts(h, value):
            _feed(h, part, seen, depth + 1)


def _parts(h: Any, value: Any) -> Iterable[Any]:
    """What an object is made of, after its name was added."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            h.update(str(key).encode() if isinstance(key, str | int | float | tuple) else type(key).__qualname__.encode())
            yield value[key]
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif callable(value) and hasattr(value, "__qualname__"):
        h.update(f"{value.__module__}.{value.__qualname__}".encode())
        yield getattr(value, "__self__", None)
        yield getattr(value, "__defaults__", None)
        for cell in getattr(value, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a name that the function closes over and that was never given a value
                h.update(b"empty")
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=str)
    elif isinstance(value, Collection):
        yield from value
    else:
        h.update(type(value).__qualname__.encode())
        # What is still None, or a method that was swapped out, comes and goes with the model's loading.
        slots = getattr(type(value), "__slots__", ())
        held = {n: getattr(value, n, None) for n in ((slots,) if isinstance(slots, str) else slots)}
        held |= getattr(value, "__dict__", {})
        yield {k: v for k, v in held.items() if v is not None and not isinstance(v, MethodType)}


def numerics(model: Any) -> str:
    """What a host was started with, or another node has set for the whole process, that changes a model's results."""
    from comfy.cli_args import args
    from comfy.ldm.modules.attention import optimized_attention

    fast = sorted(str(getattr(feature, "value", feature)) for feature in getattr(args, "fast", None) or ())
    cast = getattr(model, "manual_cast_dtype", None)
    said = [getattr(optimized_attention, "__name__", "attention"), *([f"cast {cast}"] if cast is not None else []), *fast]
    if getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False):
        said.append("fp16 accumulation")
    return ", ".join(said)


def sampler_name(sampler: Any) -> str:
    """A sampler's name with its options: part of what makes a render repeat exactly."""
    function = getattr(sampler, "sampler_function", sampler)
    options = {k: v for k, v in getattr(sampler, "extra_options", {}).items() if v is not None}
    name = getattr(function, "__name__", type(sampler).__name__)
    plain = {k: v for k, v in options.items() if isinstance(v, int | float | str | bool)}
    odd = {k: v for k, v in options.items() if k not in plain}
    return name + (f" {sorted(plain.items())}" if plain else "") + (f" {_digest(odd)}" if odd else "")


def guided(guider: Any, sampler: Any) -> bool:
    """Whether the unconditional branch is evaluated."""
    both = abs(float(guider.cfg) - 1.0) > 1e-6 or "cfg_pp" in sampler_name(sampler)
    return "negative" in guider.conds and (both or bool(guider.model_options.get("disable_cfg1_optimization")))


def conditioning_digest(conds: list[dict[str, Any]] | None) -> str:
    """Fingerprint of a guidance branch's text conditioning; "none" when the branch is not evaluated."""
    if not conds:
        return "none"
    return ",".join(tensor_digest(c["cross_attn"]) if c.get("cross_attn") is not None else "empty" for c in conds)


def identity(guider: Any, latent_shape: Iterable[int], guided: bool, own: str) -> Identity:
    """Identity of a request on this guider. guided: whether the unconditional branch is evaluated. own: the key of our
    own wrappers, which do not count."""
    patcher = guider.model_patcher
    model = patcher.model
    sampling = patcher.get_model_object("model_sampling")  # the model itself may still wear another clone's
    shift = getattr(sampling, "shift", None)
    positive = guider.conds.get("positive") or [{}]
    text = positive[0].get("cross_attn")
    return Identity({
        "model": type(model).__name__,
        "weights": weights_digest(patcher),
        "patches": patches_digest(patcher),
        "other nodes": forward_digest(guider.model_options, getattr(patcher, "object_patches", {}), own, {
            name: held for name in ("injections", "weight_wrapper_patches", "callbacks")
            if (held := filled(getattr(patcher, name, None)))}),
        "precision": str(patcher.model_dtype()),
        "numerics": numerics(model),
        "latent": "x".join(str(n) for n in latent_shape),
        "sampling": type(sampling).__mro__[1].__name__ + (f" shift {shift:g}" if shift is not None else ""),
        "text": "none" if text is None else str(text.shape[-1]),
        "guider": type(guider).__name__,
        "cfg": f"{float(guider.cfg):g}" if guided else "1",
        "negative": conditioning_digest(guider.conds.get("negative")) if guided else "none",
        "frame_rate": str(positive[0].get("frame_rate", "")),
    })
