"""A profile: thresholds for one model and shape, with the certificate that says what they were seen to do.

As JSON: {"carnator_profile": 1, "name", "thresholds", "change_scale" (or null), "certificate" (or null)}. A profile is
called certified only where its certificate holds: its figures add up, it is of these very thresholds, and it was made
for this model, shape class, mode and probe, at no tighter a forecast tolerance. Otherwise it may still be used, and is
called uncertified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .certify import describe
from .change import ChangeScale
from .gate import Thresholds
from .history import Identity
from .request import Settings

SCHEMA = 1
LARGEST = 1 << 20  # characters of a profile's JSON
UNCERTIFIED = "uncertified"


@dataclass(frozen=True)
class Profile:
    """Thresholds under a name. scale: the change scale that the change threshold belongs to, None for the default.
    certificate: as `certify.certificate` makes it, or None."""

    name: str
    thresholds: Thresholds
    scale: ChangeScale | None = None
    certificate: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """The profile's file."""
        body = {"carnator_profile": SCHEMA, "name": self.name, "thresholds": self.thresholds.to_dict(),
                "change_scale": self.scale.to_dict() if self.scale is not None else None,
                "certificate": dict(self.certificate) if self.certificate is not None else None}
        return json.dumps(body, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The inverse of `to_json`. Raises ValueError, in a sentence, for what is no profile."""
        wrong = "this is not a profile that Carnator Calibrate wrote: "
        if len(text) > LARGEST:
            raise ValueError(f"{wrong}{len(text)} characters, at most {LARGEST} are read")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{wrong}it is not JSON ({error})") from error
        if not isinstance(body, dict) or not isinstance(body.get("thresholds"), dict):
            raise ValueError(f'{wrong}it has no "thresholds"')
        if (schema := body.get("carnator_profile", SCHEMA)) != SCHEMA:
            raise ValueError(f'{wrong}"carnator_profile" is {schema!r}, this version reads {SCHEMA}')
        scale, held = body.get("change_scale"), body.get("certificate")
        try:
            return cls(str(body.get("name", "")), Thresholds.from_dict(body["thresholds"]),
                       ChangeScale.from_dict(scale) if scale is not None else None, held if isinstance(held, dict) else None)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{wrong}{error}") from error

    def standing(self, identity: Identity, settings: Settings) -> str:
        """What may be said of this profile in a render: "certified: ..." or "uncertified: ...", with the reason."""
        held = self.certificate
        if held is None:
            return f"{UNCERTIFIED}: it has no certificate"
        said, made = describe(held), held.get("settings", {})
        try:
            own = Thresholds.from_dict(held["thresholds"]) == self.thresholds
        except (AttributeError, KeyError, TypeError, ValueError):
            own = False
        scale = self.scale.to_dict() if self.scale is not None else None
        if said == UNCERTIFIED or not own or held.get("change_scale") != scale or not isinstance(made, dict):
            return f"{UNCERTIFIED}: its certificate does not add up"
        asked = {"model": (held.get("model"), model_of(identity)), "shape": (held.get("shape_class"), shape_class(identity)),
                 "mode": (made.get("mode", settings.mode), settings.mode),
                 "number of probe steps": (made.get("probe", settings.probe), settings.probe)}
        for name, (there, here) in asked.items():
            if there != here:
                return f"{UNCERTIFIED}: it was made for another {name} ({there}; this is {here})"
        pace = made.get("tolerance")
        if isinstance(pace, int | float) and settings.tolerance > pace:
            return f"{UNCERTIFIED}: it was made at a tighter forecast tolerance ({pace:g}; this is {settings.tolerance:g})"
        if settings.strictness != 1.0:
            return f"{UNCERTIFIED}: its thresholds are multiplied by {settings.strictness:g}"
        return said


def model_of(identity: Identity) -> str:
    """The model of a certificate: class, fingerprint of the weights, and of LoRAs when there are any."""
    fields = identity.fields
    named = f"{fields.get('model', '')} {fields.get('weights', '')}"
    patches = fields.get("patches", "none")
    return named if patches == "none" else f"{named} with patches {patches}"


def shape_class(identity: Identity) -> str:
    """The shape class of a certificate: the latent's C x T x H x W, "16x21x60x104"."""
    return identity.fields.get("latent", "")
