"""Disturbances of a run, drawn from a seed, and the interface of a target."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int, parse_number
from kvasir_contract.units import parse_duration


@dataclass(frozen=True)
class Load:
    """Requests from before the first disturbance until after the last recovery."""

    model: str | None = option(None, "name of the model [default: the first served name]", metavar="NAME")
    requests: int = option(
        300, "send at least this many; the load goes on until the last disturbance is over", parse=parse_int(1)
    )
    concurrency: int = option(8, "requests in flight", parse=parse_int(1))
    questions: int = option(100, "different requests, each with a known answer", parse=parse_int(1))
    max_tokens: int = option(64, "longest answer", parse=parse_int(8))
    timeout: float = option(300.0, "a request without an answer for so long is lost", parse=parse_duration)
    tolerance: float = option(0.001, "permitted difference of a log probability", parse=parse_number(0))
    seed: int | None = option(
        None, "of requests and disturbances [default: a random one, which is printed]", parse=parse_int(0)
    )


@dataclass(frozen=True)
class Havoc:
    kills: int = option(5, "engines killed at once (SIGKILL)", parse=parse_int(0))
    freezes: int = option(0, "engines stopped (SIGSTOP) and continued (SIGCONT)", parse=parse_int(0))
    drains: int = option(0, "engines ended in order (SIGTERM)", parse=parse_int(0))
    pause: float = option(2.0, "mean time before the next disturbance; each is random", parse=parse_duration)
    freeze_time: float = option(
        15.0, "time from SIGSTOP to SIGCONT; longer than --heartbeat-timeout of the service", parse=parse_duration
    )
    min_usable: int | None = option(
        None, "engines that take requests before the next disturbance [default: all]", parse=parse_int(1)
    )
    recovery_timeout: float = option(300.0, "time that an engine has to come back", parse=parse_duration)

    def __post_init__(self) -> None:
        if not self.pause:
            raise ConfigError("--pause 0: give the time that requests run undisturbed on average, for example 2s")


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
