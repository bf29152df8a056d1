"""Sizes and durations in the notation of the InferenceService and the options."""

import re
from typing import Final

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FACTORS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_duration(text: str) -> float:
    """Return the seconds of "300s", "1h30m", "500ms" or "300". Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text, re.ASCII):
        raise ValueError(f"{text!r} is not a duration: write it like 30s, 10m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text))


def format_duration(seconds: float) -> str:
    """Return an option's notation: 300s, 0.5s."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def parse_bytes(quantity: str | int) -> int:
    """Return the bytes of "4Gi", "1.5G" or 4096. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(quantity).strip(), re.ASCII)
    factor = _FACTORS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ValueError(f"{quantity!r} is not a size: give bytes or a quantity such as 512Mi or 4Gi")
    return int(float(match[1]) * factor)
