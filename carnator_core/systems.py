"""Other systems as settings of the same machinery: for comparison, and for those who want them."""

from __future__ import annotations

from typing import Any

# NIRVANA: similarity from which a render resumes at this share of the schedule (arXiv 2312.04429, its K of 5 .. 25 of 50).
RESUME_AT = ((0.95, 0.5), (0.9, 0.4), (0.85, 0.3), (0.75, 0.2), (0.65, 0.1))
REGION_UNTIL = 0.6  # Chorus: share of the schedule up to which the history's state stands outside the region
SYSTEMS = ("nirvana", "chorus", "chorus2")


def resume_step(similarity: float, steps: int) -> int:
    """NIRVANA's K: steps replayed from a history of this text similarity, of `steps`."""
    return round(steps * next((share for least, share in RESUME_AT if similarity >= least), 0.0))


def system(name: str, similarity: float, steps: int) -> dict[str, Any]:
    """Values of `Settings` that make a hit do what another system does.

    nirvana (for video): the history's latent at step K by similarity, then every step. chorus: full latent reuse up to K,
    then region reuse, then none. chorus2: the history's sparse connectivity alone. Raises KeyError for another name.
    """
    if name not in SYSTEMS:
        raise KeyError(f"no system {name!r}; there are {', '.join(SYSTEMS)}")
    if name == "chorus2":
        return {"mode": "attention"}
    k = resume_step(similarity, steps)
    return {"mode": "resume", "resume": k} if name == "nirvana" else {"mode": "latent", "resume": k, "until": REGION_UNTIL}
