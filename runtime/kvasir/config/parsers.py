"""Parsers of option values. A value that does not fit raises ValueError."""

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_THOUSANDS: Final = "kmgt"


@dataclass(frozen=True)
class parse_int:  # lower case: used like the functions below
    """Parse an integer within bounds, both included."""

    minimum: int
    maximum: int | None = None

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            bounds = f"at least {self.minimum}"
            if self.maximum is not None:
                bounds = f"between {self.minimum} and {self.maximum}"
            raise ValueError(f"{value} is out of range: give {bounds}")
        return value


@dataclass(frozen=True)
class parse_number:
    """Parse a finite number within bounds, both included."""

    minimum: float
    maximum: float = math.inf

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or not self.minimum <= value <= self.maximum:
            bounds = f"at least {self.minimum:g}"
            if self.maximum < math.inf:
                bounds = f"between {self.minimum:g} and {self.maximum:g}"
            raise ValueError(f"{text} is out of range: give {bounds}")
        return value


@dataclass(frozen=True)
class parse_tokens:
    """Parse a number of tokens, such as 32768, 32k (32,000), 1.5m or 32K (32,768)."""

    minimum: int = 1

    def __call__(self, text: str) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip(), re.ASCII)
        if match is None:
            return self._plain(text)
        number, unit = match.groups()
        power = _THOUSANDS.index(unit.lower()) + 1
        if unit.islower():
            return parse_int(self.minimum)(f"{float(number) * 1000**power:.0f}")
        if "." in number:
            raise ValueError(f"{text!r}: a number before {unit}, which is {1024**power}, must be whole")
        return parse_int(self.minimum)(str(int(number) * 1024**power))

    def _plain(self, text: str) -> int:
        try:
            int(text)
        except ValueError:
            forms = "32768, 32k (32,000) or 32K (32,768)"
            raise ValueError(f"{text!r} is not a number of tokens: give one such as {forms}") from None
        return parse_int(self.minimum)(text)


def parse_length(text: str) -> int | None:
    """Return a number of tokens; None for auto and for -1."""
    return None if text.strip().lower() in ("auto", "-1") else parse_tokens()(text)


def parse_dtype(text: str) -> str:
    # half is float16, float is float32, and torch's own names are known.
    return {"half": "float16", "float": "float32"}.get(text, text.removeprefix("torch."))


def parse_switch(text: str) -> str:
    # vLLM writes 1 and 0 for on and off.
    return {"1": "on", "true": "on", "0": "off", "false": "off"}.get(text.lower(), text)


def parse_fraction(text: str) -> float:
    """Return a number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 < value <= 1:
        raise ValueError(f"{text} is out of range: give a number above 0 and at most 1")
    return value


def parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is not a boolean: give true or false")


def parse_json_object(text: str) -> str:
    """Check that the text is a JSON object, and return it unchanged: settings become arguments again."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{text!r} is not JSON ({error}): give an object such as {{"key": true}}') from None
    if not isinstance(value, dict):
        raise ValueError(f'{text!r} is not a JSON object: give one such as {{"key": true}}')
    return text


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    # argparse hides the message of a ValueError.
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def parse_task(text: str) -> str:
    # vLLM's names for --task, --runner and --convert
    return {"pooling": "pool", "embedding": "embed", "score": "classify", "none": "auto"}.get(text, text)
