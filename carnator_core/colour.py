"""Colour as the eye sees it: sRGB to CIELAB under D65, and the CIEDE2000 difference."""

from __future__ import annotations

import torch
from torch import Tensor

# IEC 61966-2-1: linear sRGB to CIE XYZ. The rows' sums are the white point, so white is exactly L* = 100, a* = b* = 0.
_XYZ_FROM_RGB = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def srgb_to_lab(rgb: Tensor) -> Tensor:
    """CIELAB (L* 0..100, a*, b*) of non-linear sRGB 0..1 under D65; [..., 3] of any float dtype to [..., 3] float64.

    Values outside 0..1 are clamped, as a display would.
    """
    value = rgb.double().clamp(0.0, 1.0)
    linear = torch.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    matrix = torch.tensor(_XYZ_FROM_RGB, dtype=torch.float64, device=rgb.device)
    ratio = (linear @ matrix.T) / matrix.sum(dim=1)
    delta = 6.0 / 29.0
    f = torch.where(ratio > delta**3, ratio.clamp_min(1e-12) ** (1.0 / 3.0), ratio / (3 * delta**2) + 4.0 / 29.0)
    x, y, z = f.unbind(-1)
    return torch.stack((116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)), dim=-1)


def ciede2000(first: Tensor, second: Tensor) -> Tensor:
    """CIEDE2000 difference of two CIELAB colours, [..., 3] each, to [...] float64; k_L = k_C = k_H = 1.

    Source: Sharma, Wu, Dalal, "The CIEDE2000 color-difference formula", Color Res. Appl. 30 (2005), equations 2 to 22.
    """
    lightness1, a1, b1 = first.double().unbind(-1)
    lightness2, a2, b2 = second.double().unbind(-1)
    mean_chroma7 = ((torch.hypot(a1, b1) + torch.hypot(a2, b2)) / 2.0) ** 7
    a_scale = 1.5 - 0.5 * torch.sqrt(mean_chroma7 / (mean_chroma7 + 25.0**7))
    a1, a2 = a1 * a_scale, a2 * a_scale
    chroma1, chroma2 = torch.hypot(a1, b1), torch.hypot(a2, b2)
    hue1 = torch.rad2deg(torch.atan2(b1, a1)) % 360.0
    hue2 = torch.rad2deg(torch.atan2(b2, a2)) % 360.0

    grey = chroma1 * chroma2 == 0.0  # a hue is undefined there
    turn = hue2 - hue1
    turn = torch.where(turn > 180.0, turn - 360.0, torch.where(turn < -180.0, turn + 360.0, turn))
    turn = torch.where(grey, 0.0, turn)
    hue_difference = 2.0 * torch.sqrt(chroma1 * chroma2) * _sin(turn / 2.0)
    total = hue1 + hue2
    wrapped = torch.where(total < 360.0, (total + 360.0) / 2.0, (total - 360.0) / 2.0)
    mean_hue = torch.where(grey, total, torch.where((hue1 - hue2).abs() > 180.0, wrapped, total / 2.0))

    mean_lightness, mean_chroma = (lightness1 + lightness2) / 2.0, (chroma1 + chroma2) / 2.0
    weight = (
        1.0
        - 0.17 * _cos(mean_hue - 30.0)
        + 0.24 * _cos(2.0 * mean_hue)
        + 0.32 * _cos(3.0 * mean_hue + 6.0)
        - 0.20 * _cos(4.0 * mean_hue - 63.0)
    )
    off_grey = (mean_lightness - 50.0) ** 2
    s_lightness = 1.0 + 0.015 * off_grey / torch.sqrt(20.0 + off_grey)
    s_chroma = 1.0 + 0.045 * mean_chroma
    s_hue = 1.0 + 0.015 * mean_chroma * weight
    rotation_angle = 60.0 * torch.exp(-(((mean_hue - 275.0) / 25.0) ** 2))
    rotation = -2.0 * torch.sqrt(mean_chroma**7 / (mean_chroma**7 + 25.0**7)) * _sin(rotation_angle)

    d_lightness = (lightness2 - lightness1) / s_lightness
    d_chroma = (chroma2 - chroma1) / s_chroma
    d_hue = hue_difference / s_hue
    squared = d_lightness**2 + d_chroma**2 + d_hue**2 + rotation * d_chroma * d_hue
    return torch.sqrt(squared.clamp_min(0.0))


def _sin(degrees: Tensor) -> Tensor:
    return torch.sin(torch.deg2rad(degrees))


def _cos(degrees: Tensor) -> Tensor:
    return torch.cos(torch.deg2rad(degrees))
