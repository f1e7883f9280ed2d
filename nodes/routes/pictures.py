"""Thumbnails as the page asks for them: small, and the same for ever under one name."""

from __future__ import annotations

import io

from PIL import Image

from ...carnator_core.bank import Bank

LONGEST = 256  # pixels of the longer side
QUALITY = 88
# An entry never changes under its id, so a browser need not ask twice; nobody between may keep it.
FOR_EVER = "private, max-age=31536000, immutable"


def tag(entry_id: str) -> str:
    """The ETag of an entry's thumbnail."""
    return f'"{entry_id}"'


def thumbnail(bank: Bank, entry_id: str) -> bytes:
    """An entry's thumbnail as JPEG, empty when it was kept without one. Raises BankMissing, BankDamaged."""
    with bank.reading(entry_id) as reading:
        pixels = reading.thumbnail()
    if pixels is None or pixels.shape[2] != 3 or 0 in pixels.shape:
        return b""
    picture = Image.fromarray(pixels.numpy())
    picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=QUALITY, subsampling=0)
    return written.getvalue()
