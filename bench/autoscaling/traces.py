"""Times at which requests come, in seconds, for an hour."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Final

HOUR: Final = 3600.0
STEP: Final = (600.0, 2400.0)  # the busy part of `step`
BURST_SECONDS: Final = 60.0
BURST_PERIOD: Final = 900.0


def wave(rng: random.Random) -> Iterator[float]:
    """Yield a day in an hour, from 0.3 to 4.5 requests a second."""
    return _poisson(rng, lambda at: 0.3 + 2.1 * (1 - math.cos(2 * math.pi * at / HOUR)))


def bursts(rng: random.Random) -> Iterator[float]:
    """Yield 0.5 requests a second, and 5 for a minute of each quarter of an hour."""
    return _poisson(rng, lambda at: 5.0 if at % BURST_PERIOD > BURST_PERIOD - BURST_SECONDS else 0.5)


def step(rng: random.Random) -> Iterator[float]:
    """Yield 0.5 requests a second, but 3 for half an hour."""
    return _poisson(rng, lambda at: 3.0 if STEP[0] <= at < STEP[1] else 0.5)


def steady(rng: random.Random, rate: float) -> Iterator[float]:
    return _poisson(rng, lambda _: rate)


TRACES: Final = {"wave": wave, "bursts": bursts, "step": step}


def _poisson(rng: random.Random, rate: Callable[[float], float], most: float = 5.0) -> Iterator[float]:
    # by thinning
    at = rng.expovariate(most)
    while at < HOUR:
        if rng.random() < rate(at) / most:
            yield at
        at += rng.expovariate(most)
