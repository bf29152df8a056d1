"""Disturbances of a run, drawn from a seed, and the interface of a target."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvasir.chaos.settings import Havoc
from kvasir.config.options import ConfigError


class DisturbanceKind(StrEnum):
    KILL = "kill"
    FREEZE = "freeze"
    DRAIN = "drain"


@dataclass(frozen=True)
class Disturbance:
    kind: DisturbanceKind
    # Seconds after the recovery from the previous one.
    pause: float
    # From 0 to 1: which of the running engines.
    draw: float

    def victim(self, ranks: Sequence[str]) -> str:
        return ranks[int(self.draw * len(ranks))]


class ChaosTarget(Protocol):
    """The engines of one service."""

    @property
    def kinds(self) -> Collection[DisturbanceKind]:
        """Return the possible kinds of disturbances."""

    async def engines(self) -> list[str]:
        """Return the ranks of the running engines, in order; none while engines are replaced.

        Raises CommandFailed if the service is gone.
        """

    async def disturb(self, kind: DisturbanceKind, rank: str) -> None:
        """Disturb an engine, without waiting for its recovery.

        A cancellation leaves no engine frozen.
        """


def plan(havoc: Havoc, seed: int, possible: Collection[DisturbanceKind]) -> list[Disturbance]:
    """Return the disturbances in random order, with exponential pauses.

    Raises ConfigError for one that is not possible here.
    """
    counts = {
        DisturbanceKind.KILL: havoc.kills,
        DisturbanceKind.FREEZE: havoc.freezes,
        DisturbanceKind.DRAIN: havoc.drains,
    }
    for kind, count in counts.items():
        if count and kind not in possible:
            raise ConfigError(f"--{kind}s {count}: possible here are {', '.join(sorted(possible))}")
    rng = random.Random(f"disturbances {seed}")
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    return [Disturbance(kind, rng.expovariate(1 / havoc.pause), rng.random()) for kind in kinds]
