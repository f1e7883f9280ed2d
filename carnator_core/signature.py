"""The Early Signature: per entity, where it is, how large, of which colour, how it moves, and its mean latent.

Regions are boolean grids of visual tokens, [T, H, W]. The tail slice is the last latent frame, m(T-1, ., .).
A discrepancy that has nothing to compare is NaN, never zero: the gate leaves it out and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .colour import ciede2000, srgb_to_lab

_SHAPE_SAMPLES = 48  # canvas of the shape comparison; 12 samples along the side of a square of the object's area
_SHAPE_REACH = 2.0  # half the canvas, in sides of that square: bars up to 1:16 fit


@dataclass
class EntitySignature:
    """What the probe saw of one entity.

    region: Evidence Region, [T, H, W] bool. size: A_{r,o}, the share of the tail slice, 0..1. lab: mean CIELAB over
    the region's pixels in the last frame, None without a frame or without a region there. path: centroid (y, x) in
    tokens per latent frame, [T, 2] float32, NaN where the region is empty. latent: mean of the guided prediction over the
    region, all frames, [C] float32; None without a prediction or a region.
    """

    region: Tensor
    size: float
    lab: tuple[float, float, float] | None
    path: Tensor
    latent: Tensor | None = None


Signature = dict[str, EntitySignature]


def signature(regions: Mapping[str, Tensor], frame: Tensor | None, prediction: Tensor | None = None,
              patch: Sequence[int] = (1, 1, 1)) -> Signature:
    """S_r = {s_{r,o}} from each entity's Evidence Region, the last decoded frame and the probe's last prediction.

    regions: lemma to [T, H, W] bool. frame: [H', W', 3] sRGB 0..1, the last decoded frame (or the latent format's RGB
    factors); its size may be any, it is laid over the token grid. prediction: guided `denoised`, [C, T', H', W'], of which
    a token holds `patch` cells. Raises ValueError for another number of axes, or a grid that does not fit.
    """
    if frame is not None and (frame.ndim != 3 or frame.shape[-1] != 3):
        raise ValueError(f"the frame must be [H, W, 3], not {list(frame.shape)}")
    pooled = None if prediction is None or not regions else _on_tokens(prediction, patch)
    found: Signature = {}
    for name, region in regions.items():
        if region.ndim != 3:
            raise ValueError(f"the region of {name!r} must be [T, H, W], not {list(region.shape)}")
        mask = region.detach().to("cpu", torch.bool)
        lab = None if frame is None else _mean_lab(mask[-1], frame)
        latent = None if pooled is None else _mean_latent(mask, pooled, name)
        found[name] = EntitySignature(mask, mask[-1].float().mean().item(), lab, centroids(mask), latent)
    return found


def centroids(region: Tensor) -> Tensor:
    """Centroid (y, x) in tokens of every latent frame of a [T, H, W] region; [T, 2] float32, NaN where empty."""
    mean, _ = _moments(region)
    return mean.float()


def extents(region: Tensor) -> Tensor:
    """Height and width in tokens per latent frame, [T, 2] float32, NaN where empty.

    They are those of the upright rectangle with the region's second moments: one stray token moves them little.
    """
    _, variance = _moments(region)
    return torch.sqrt(12.0 * variance + 1.0).float()  # +1: a token is one wide, and not a point


def size_distance(first: EntitySignature, second: EntitySignature) -> float:
    """d_size = |log(A_q / A_j)| on the tail slice; inf when one is empty there, NaN when both are."""
    if first.size == 0.0 and second.size == 0.0:
        return math.nan
    if first.size == 0.0 or second.size == 0.0:
        return math.inf
    return abs(math.log(first.size / second.size))


def shape_distance(first: EntitySignature, second: EntitySignature) -> float:
    """d_shape = 1 - Dice of the two tail slices, each moved to its centroid and scaled to unit area.

    Place and size do not count here: size has a discrepancy of its own, and a new place is covered by the regions.
    0..1; 1 when one is empty, NaN when both are.
    """
    one, two = _normalised_shape(first.region[-1]), _normalised_shape(second.region[-1])
    total = int(one.sum()) + int(two.sum())
    if total == 0:
        return math.nan
    return 1.0 - 2.0 * int((one & two).sum()) / total


def colour_distance(first: EntitySignature, second: EntitySignature) -> float:
    """d_color = CIEDE2000 of the mean colours; NaN when either has none."""
    if first.lab is None or second.lab is None:
        return math.nan
    return float(ciede2000(torch.tensor(first.lab), torch.tensor(second.lab)))


def latent_distance(first: EntitySignature, second: EntitySignature) -> float:
    """d_latent = ||a - b|| / mean(||a||, ||b||) of the mean latents (A.1: early states of alike renders lie closer), 0..2.

    It needs no shared noise and no decoding, and sees what colour does not: texture and brightness over all frames.
    NaN when either has none.
    """
    if first.latent is None or second.latent is None or first.latent.shape != second.latent.shape:
        return math.nan
    scale = float(first.latent.norm() + second.latent.norm()) / 2.0
    return float((first.latent - second.latent).norm()) / scale if scale > 0.0 else 0.0


def motion_distance(first: EntitySignature, second: EntitySignature) -> float:
    """How differently two entities move: the largest gap between their displacements since the first common frame.

    Counts the centroid's displacement and half the growth of the extent (how far an edge moves), as a share of the
    frame's shorter side, so that a threshold holds at every resolution. Where they stand does not count. NaN when
    fewer than two latent frames show both. Raises ValueError when the grids differ.
    """
    if first.region.shape != second.region.shape:
        raise ValueError(f"token grids differ: {list(first.region.shape)} and {list(second.region.shape)}")
    both = ~(first.path.isnan().any(dim=1) | second.path.isnan().any(dim=1))
    if int(both.sum()) < 2:
        return math.nan
    gap = torch.zeros(())
    for one, two, share in (
        (first.path, second.path, 1.0),
        (extents(first.region), extents(second.region), 0.5),
    ):
        one, two = one[both], two[both]
        difference = (one - one[0]) - (two - two[0])
        gap = torch.maximum(gap, share * difference.norm(dim=1).max())
    return float(gap) / min(first.region.shape[1:])


def displacement(entity: EntitySignature) -> tuple[float, float]:
    """(y, x) from the first to the last latent frame that shows the entity, shares of the frame; (0, 0) if unseen."""
    seen = entity.path[~entity.path.isnan().any(dim=1)]
    if len(seen) < 2:
        return 0.0, 0.0
    moved = (seen[-1] - seen[0]) / torch.tensor(entity.region.shape[1:])
    return float(moved[0]), float(moved[1])


def to_tensors(sig: Signature) -> dict[str, Tensor]:
    """A signature as named tensors, for a safetensors file: `<lemma>/region`, `/path` and, where known, `/lab`, `/latent`."""
    out: dict[str, Tensor] = {}
    for name, entity in sig.items():
        out[f"{name}/region"] = entity.region.to(torch.bool).contiguous()
        out[f"{name}/path"] = entity.path.float().contiguous()
        if entity.lab is not None:
            out[f"{name}/lab"] = torch.tensor(entity.lab, dtype=torch.float32)
        if entity.latent is not None:
            out[f"{name}/latent"] = entity.latent.float().contiguous()
    return out


def from_tensors(tensors: Mapping[str, Tensor]) -> Signature:
    """The inverse of `to_tensors`. Raises KeyError when an entity's region or path is missing."""
    found: Signature = {}
    for name in dict.fromkeys(key.rpartition("/")[0] for key in tensors):
        region = tensors[f"{name}/region"].to(torch.bool)
        colour = tensors.get(f"{name}/lab")
        lab = None if colour is None else (float(colour[0]), float(colour[1]), float(colour[2]))
        found[name] = EntitySignature(region, region[-1].float().mean().item(), lab, tensors[f"{name}/path"],
                                      tensors.get(f"{name}/latent"))
    return found


def _moments(region: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the (y, x) coordinates per latent frame, [T, 2] float64 each, NaN where empty."""
    mask = region.double()
    count = mask.sum(dim=(1, 2))
    mean, variance = [], []
    for axis in (1, 2):
        line = torch.arange(mask.shape[axis], dtype=torch.float64, device=mask.device)
        marginal = mask.sum(dim=3 - axis)
        centre = (marginal @ line) / count
        mean.append(centre)
        variance.append((marginal * (line[None] - centre[:, None]) ** 2).sum(dim=1) / count)
    return torch.stack(mean, dim=1), torch.stack(variance, dim=1)


def _normalised_shape(mask: Tensor) -> Tensor:
    """A [H, W] bool mask about its centroid at unit area, sampled to [48, 48] bool; all False when empty."""
    rows, columns = torch.nonzero(mask, as_tuple=True)
    canvas = torch.zeros(_SHAPE_SAMPLES, _SHAPE_SAMPLES, dtype=torch.bool)
    if len(rows) == 0:
        return canvas
    # The tiny offset keeps samples off the borders between tokens, where rounding would decide.
    steps = (torch.arange(_SHAPE_SAMPLES, dtype=torch.float64) + 0.5) / _SHAPE_SAMPLES * 2.0 - 1.0 + 1e-7
    reach = _SHAPE_REACH * math.sqrt(len(rows))
    y = torch.floor(rows.double().mean() + 0.5 + reach * steps).long()
    x = torch.floor(columns.double().mean() + 0.5 + reach * steps).long()
    inside = ((y >= 0) & (y < mask.shape[0]))[:, None] & ((x >= 0) & (x < mask.shape[1]))[None]
    values = mask.cpu()[y.clamp(0, mask.shape[0] - 1)][:, x.clamp(0, mask.shape[1] - 1)]
    return values & inside


def _mean_lab(tail: Tensor, frame: Tensor) -> tuple[float, float, float] | None:
    """Mean CIELAB over the pixels of a [H, W] tail region; None when it is empty or the pixels are not finite."""
    rows = _cells(frame.shape[0], tail.shape[0])
    columns = _cells(frame.shape[1], tail.shape[1])
    pixels = frame.detach()[tail[rows][:, columns].to(frame.device)]
    if len(pixels) == 0:
        return None
    mean = srgb_to_lab(pixels).mean(dim=0)
    if not bool(mean.isfinite().all()):
        return None
    return float(mean[0]), float(mean[1]), float(mean[2])


def _on_tokens(prediction: Tensor, patch: Sequence[int]) -> Tensor:
    """A [C, T', H', W'] prediction averaged over every patch, the last ones over what they hold: [C, T, H, W] float32."""
    if prediction.ndim != 4:
        raise ValueError(f"the prediction must be [C, T, H, W], not {list(prediction.shape)}")
    return F.avg_pool3d(prediction.detach().float()[None], tuple(patch), ceil_mode=True, count_include_pad=False)[0].cpu()


def _mean_latent(mask: Tensor, pooled: Tensor, name: str) -> Tensor | None:
    """Mean over a [T, H, W] region's tokens, [C]; None when it is empty or not finite. Raises ValueError for another grid."""
    if mask.shape != pooled.shape[1:]:
        raise ValueError(f"the region of {name!r} has {list(mask.shape)} tokens, the prediction {list(pooled.shape[1:])}")
    if not bool(mask.any()):
        return None
    mean = pooled[:, mask].mean(dim=1)
    return mean if bool(mean.isfinite().all()) else None


def _cells(pixels: int, tokens: int) -> Tensor:
    """Which of `tokens` cells each of `pixels` positions lies in, [pixels] int64.

    The token grid is made on the padded latent, so 536 pixels may lie under 34 cells of 16 with half a cell of
    padding: whole-pixel cells when the last one is at least partly covered, proportional ones otherwise.
    """
    position = torch.arange(pixels)
    cell = -(-pixels // tokens)
    if cell * tokens - pixels < cell:
        return position // cell
    return position * tokens // pixels
