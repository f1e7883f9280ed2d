"""Other words under which a creator may look for a node, where the host's search knows such words (after 0.3.64)."""

from __future__ import annotations

from typing import Any

ALIASES = {
    "CarnatorReuse": ("reuse", "cache", "step cache", "teacache", "easycache", "magcache", "speed up", "faster video", "remember"),
    "CarnatorTextEncode": ("prompt", "clip text encode", "positive prompt"),
    "CarnatorBankLoader": ("cache bank", "history", "remembered renders", "load bank"),
    "CarnatorBankReport": ("cache bank", "statistics", "time saved", "disk space"),
    "CarnatorEarlySignatureProbe": ("probe", "first steps", "early steps"),
    "CarnatorRiskGate": ("gate", "compatibility", "thresholds", "safe to reuse"),
    "CarnatorEvidenceRegionViewer": ("attention map", "mask from prompt", "where is it", "regions"),
    "CarnatorJointReuseSampler": ("sampler", "reuse sampler", "region sampler"),
    "CarnatorDenseFallback": ("fallback", "full render", "dense render"),
    "CarnatorCalibrate": ("calibration", "thresholds", "profile", "certify"),
    "CarnatorDemoTextEncoder": ("demo", "demo clip"),
    "CarnatorDemoVAE": ("demo", "demo decoder"),
}


def findable(node: Any) -> Any:
    """The node's class, with the aliases of its id on its schema."""
    define = node.define_schema.__func__

    def define_schema(cls: Any) -> Any:
        schema = define(cls)
        if hasattr(schema, "search_aliases"):
            schema.search_aliases = list(ALIASES[schema.node_id])
        return schema

    node.define_schema = classmethod(define_schema)
    return node
