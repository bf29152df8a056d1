"""The GPUs that engines may use on this machine, found without torch."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from kvasir.config.options import ConfigError


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs of CUDA_VISIBLE_DEVICES, or all NVIDIA devices if it is not set."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    count = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return [str(number) for number in range(count)]


def take_gpus(count: int, remedy: str, gpus: list[str] | None = None, unit: str = "engine") -> list[str]:
    """Return `count` of the visible GPUs, one for each `unit`. Raises ConfigError with the remedy if there are
    fewer."""
    gpus = visible_gpus() if gpus is None else gpus
    if len(gpus) < count:
        have = {0: "there is no GPU here", 1: "there is 1 GPU here"}.get(
            len(gpus), f"there are {len(gpus)} GPUs here"
        )
        need = f"1 {unit} needs one" if count == 1 else f"{count} {unit}s need one each"
        raise ConfigError(f"{have}, and {need}: {remedy}")
    return gpus[:count]
