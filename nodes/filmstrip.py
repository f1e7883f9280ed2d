"""A clip as one picture that the page can cut into frames: its frames under each other, in the host's temporary folder."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGEST, TALLEST = 448, 60000  # pixels: of a frame's longer side; of the whole strip, under JPEG's own limit


def save_strip(frames: Tensor) -> dict[str, Any]:
    """frames [T, h, w, 3] sRGB 0..1 -> {filename, subfolder, type} as the host's /view takes it, with the frames' size
    `width`, `height` in pixels and their `count`."""
    import folder_paths
    from PIL import Image

    count, height, width = frames.shape[:3]
    scale = min(1.0, LARGEST / max(height, width), TALLEST / (count * height))
    if scale < 1.0:
        size = (max(1, int(height * scale)), max(1, int(width * scale)))
        frames = torch.nn.functional.interpolate(frames.movedim(-1, 1), size=size, mode="area").movedim(1, -1)
    count, height, width = frames.shape[:3]
    strip = (frames.reshape(count * height, width, 3).clamp(0, 1) * 255).round().to("cpu", torch.uint8).numpy()
    folder, name = Path(folder_paths.get_temp_directory()), f"carnator_{uuid.uuid4().hex}.jpg"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(strip).save(folder / name, quality=88)
    return {"filename": name, "subfolder": "", "type": "temp", "width": width, "height": height, "count": count}
