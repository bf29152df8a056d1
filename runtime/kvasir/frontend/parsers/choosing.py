"""Chooses a model's formats by name, or by marker texts in its chat template."""

import logging
from collections.abc import Mapping
from typing import TypeVar

from kvasir.config.options import ConfigError
from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat, ToolFormat, fits

log = logging.getLogger(__name__)

Described = TypeVar("Described", bound=ToolFormat | ReasoningFormat | HarmonyFormat)


def choose_format(
    kind: str, flag: str, formats: Mapping[str, Described], name: str | None, template: str | None
) -> Described | None:
    """Return the format of this name; with None or "auto" the only one that fits the template, or None.

    The name "none" chooses none. `kind` ("tool") and `flag` are for messages. Raises ConfigError for another name.
    """
    if name == "none":
        log.info("%s format: none (%s)", kind, flag)
        return None
    if name is not None and name != "auto":
        if name not in formats:
            raise ConfigError(f"{flag} {name}: no {kind} format has this name (use one of {', '.join(formats)})")
        log.info("%s format: %s (%s)", kind, name, flag)
        return formats[name]
    found = [each for each in formats.values() if fits(template or "", each.markers, each.not_markers)]
    if len(found) == 1:
        marks = " and ".join(repr(marker) for marker in found[0].markers)
        log.info("%s format: %s (the chat template has %s)", kind, found[0].name, marks)
        return found[0]
    if found:
        names = ", ".join(each.name for each in found)
        log.info("%s format: none (the chat template fits several: %s; choose one with %s)", kind, names, flag)
    else:
        log.info("%s format: none (no known marks in the chat template; choose one with %s)", kind, flag)
    return None
