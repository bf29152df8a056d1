"""The disturbances of a run, drawn from a seed, and what a target has to be able to do."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvasir.chaos.settings import Havoc
from kvasir.config.options import ConfigError


class Kind(StrEnum):
    KILL = "kill"
    FREEZE = "freeze"
    DRAIN = "drain"


@dataclass(frozen=True)
class Disturbance:
    kind: Kind
    pause: float
    """Seconds after the recovery from the previous one."""
    draw: float
    """From 0 to 1: which of the engines there are at that moment."""

    def victim(self, ranks: Sequence[str]) -> str:
        return ranks[int(self.draw * len(ranks))]


class Target(Protocol):
    """The engines of one service, and no other process."""

    @property
    def kinds(self) -> Collection[Kind]:
        """What can be done to them."""

    async def engines(self) -> list[str]:
        """Return the ranks of the engines that run now, in order: none between two that are replaced at once.

        Raises CommandFailed if the service is gone.
        """

    async def disturb(self, kind: Kind, rank: str) -> None:
        """Return when it is done, but not recovered from. After a cancellation no engine is left frozen."""


def plan(havoc: Havoc, seed: int, possible: Collection[Kind]) -> list[Disturbance]:
    """Return the disturbances in random order, with exponential pauses.

    Raises ConfigError for one that is not possible here.
    """
    counts = {Kind.KILL: havoc.kills, Kind.FREEZE: havoc.freezes, Kind.DRAIN: havoc.drains}
    for kind, count in counts.items():
        if count and kind not in possible:
            raise ConfigError(f"--{kind}s {count}: possible here are {', '.join(sorted(possible))}")
    rng = random.Random(f"disturbances {seed}")
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    return [Disturbance(kind, rng.expovariate(1 / havoc.pause), rng.random()) for kind in kinds]
