"""Carnator: cross-request reuse for text-to-video in ComfyUI."""

from __future__ import annotations

WEB_DIRECTORY = "./web"
__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]


async def comfy_entrypoint():  # type: ignore[no-untyped-def]
    """The host's V3 entry point: our extension, imported only when the host asks for it."""
    from .nodes import CarnatorExtension

    return CarnatorExtension()
