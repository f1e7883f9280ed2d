"""Interrupts, as ComfyUI 0.3.64 raises them."""

from __future__ import annotations


class InterruptProcessingException(Exception): ...


wanted = False


def throw_exception_if_processing_interrupted() -> None:
    global wanted
    if wanted:
        wanted = False
        raise InterruptProcessingException()
