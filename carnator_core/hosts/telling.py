"""What a page is told of a verdict: the history it is about, by its picture too, and every distance measured to it."""

from __future__ import annotations

import base64
import io
from typing import Any

from torch import Tensor

from ..outcome import Verdict
from ..summary import compared


def told_of(verdict: Verdict | None) -> dict[str, Any]:
    """`compared`, with the history's first frame as `thumbnail` (a data URL, "" without one)."""
    look = verdict.look if verdict is not None else None
    picture = look.thumbnail if look is not None else None
    return {**compared(verdict), "thumbnail": "" if picture is None else data_url(picture)}


def data_url(picture: Tensor, largest: int = 160) -> str:
    """A picture [h, w, 3] uint8 as a small JPEG that a page shows without asking for a file; at most `largest` pixels
    on its longer side."""
    from PIL import Image

    image = Image.fromarray(picture.cpu().numpy())
    image.thumbnail((largest, largest))
    held = io.BytesIO()
    image.save(held, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode("ascii")
