"""The load of a service every ten seconds, for the log and the stat loggers of other packages."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Final, Protocol, TypeAlias

from kvasir.config.entry_points import entry_points
from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry.metrics import Totals
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.process.words import count

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
GROUP: Final = "kvasir.stat_loggers"
"""Entry points that take the model's name and return a StatLogger."""


@dataclass(frozen=True)
class ServiceStats:
    seconds: float
    prompt_tokens: int
    """Prompt tokens sent to engines."""
    generation_tokens: int
    prefix_cache_queries: int
    """Prompt tokens of ended requests, if their engine has a prefix cache."""
    prefix_cache_hits: int
    """Tokens found in the cache."""
    running: int
    """Requests of all frontends that engines compute."""
    waiting: int
    """Requests of all frontends that wait in engines."""
    kv_cache_usage: float
    """Used share of the engines' KV blocks, 0 to 1."""
    drafts: int = 0
    """How often engines verified tokens that they had guessed."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Guessed tokens that were right."""


# Drafts, the tokens in them, and those that were right.
_Drafts: TypeAlias = tuple[int, int, int]


class StatLogger(Protocol):
    """`log` must be quick. A logger that raises is not called again."""

    def log(self, stats: ServiceStats) -> None:
        """Take the stats of an interval with traffic, or of the first one without."""


class LineLogger:
    def log(self, stats: ServiceStats) -> None:
        fields = {
            "prompt_tokens_per_second": round(stats.prompt_tokens / stats.seconds, 1),
            "generation_tokens_per_second": round(stats.generation_tokens / stats.seconds, 1),
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_cache_usage": round(stats.kv_cache_usage, 4),
        }
        text = (
            f"{fields['prompt_tokens_per_second']} prompt and {fields['generation_tokens_per_second']} generated "
            f"tokens/s, {count(stats.running, 'request')} running, {stats.waiting} waiting, "
            f"{stats.kv_cache_usage:.1%} of the KV cache in use"
        )
        if stats.prefix_cache_queries:
            fields["prefix_cache_hit_rate"] = round(stats.prefix_cache_hits / stats.prefix_cache_queries, 4)
            text += f", {fields['prefix_cache_hit_rate']:.1%} of the prompt tokens from the prefix cache"
        if stats.drafts:
            fields["draft_acceptance_rate"] = round(stats.accepted_tokens / stats.draft_tokens, 4)
            fields["mean_acceptance_length"] = round(1 + stats.accepted_tokens / stats.drafts, 2)
            text += (
                f", {fields['draft_acceptance_rate']:.1%} of {stats.draft_tokens} guessed tokens right "
                f"({fields['mean_acceptance_length']} tokens per guess)"
            )
        log.info("%s", text, extra={"fields": fields})


class PeriodicStats:
    """Makes the stats of each interval with traffic, and of the next one."""

    def __init__(
        self,
        loggers: Sequence[tuple[str, StatLogger]],
        totals: Callable[[], Totals],
        engines: Callable[[], Mapping[str, RemoteEngine]],
        live: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loggers = list(loggers)
        self._totals = totals
        self._engines = engines
        self._live = live
        self._clock = clock
        self._began = clock()
        self._last = totals()
        self._last_drafts: dict[str, _Drafts] = {}  # by engine
        self._had_traffic = False

    def tick(self) -> None:
        for engine, counts in _drafts(self._engines()).items():
            self._last_drafts.setdefault(engine, counts)  # it may be older than this frontend
        seconds = self._clock() - self._began
        if seconds < INTERVAL_SECONDS or not self._loggers:
            return
        totals, last = self._totals(), self._last
        has_traffic = totals != last or self._live() > 0
        if has_traffic or self._had_traffic:
            self._write(self._stats(seconds, last, totals))
        self._began, self._last, self._had_traffic = self._began + seconds, totals, has_traffic

    def _stats(self, seconds: float, last: Totals, totals: Totals) -> ServiceStats:
        running = waiting = used = blocks = 0
        for engine in self._engines().values():
            if engine.stats is None:
                continue
            running += engine.stats.running
            waiting += engine.stats.waiting
            if engine.capacity is not None:
                used += engine.stats.kv_blocks_used
                blocks += engine.capacity.num_blocks
        drafts = _drafts(self._engines())
        since = _since(self._last_drafts, drafts)
        self._last_drafts = drafts
        return ServiceStats(
            seconds,
            prompt_tokens=totals.prompt_tokens - last.prompt_tokens,
            generation_tokens=totals.generation_tokens - last.generation_tokens,
            prefix_cache_queries=totals.prefix_cache_queries - last.prefix_cache_queries,
            prefix_cache_hits=totals.prefix_cache_hits - last.prefix_cache_hits,
            running=running,
            waiting=waiting,
            kv_cache_usage=used / max(1, blocks),
            drafts=since[0],
            draft_tokens=since[1],
            accepted_tokens=since[2],
        )

    def _write(self, stats: ServiceStats) -> None:
        for entry in list(self._loggers):
            name, logger = entry
            try:
                logger.log(stats)
            except Exception:
                log.exception("the stat logger %s failed and is not called again", name)
                self._loggers.remove(entry)


def _drafts(engines: Mapping[str, RemoteEngine]) -> dict[str, _Drafts]:
    return {
        name: (drafts.drafts, drafts.tokens, sum(drafts.accepted))
        for name, engine in engines.items()
        if engine.stats and (drafts := engine.stats.drafts)
    }


def _since(before: Mapping[str, _Drafts], now: Mapping[str, _Drafts]) -> _Drafts:
    """Return the sums of what each engine has counted. Counts below the last ones began again at 0."""
    drafts = tokens = accepted = 0
    for name, counts in now.items():
        last = before.get(name, (0, 0, 0))
        if any(new < old for new, old in zip(counts, last, strict=True)):
            last = (0, 0, 0)
        drafts += counts[0] - last[0]
        tokens += counts[1] - last[1]
        accepted += counts[2] - last[2]
    return drafts, tokens, accepted


def stat_loggers(
    model_name: str, *, line: bool, found: Iterable[EntryPoint] | None = None
) -> list[tuple[str, StatLogger]]:
    """Return the loggers of installed packages, and with `line` the log's. Raises ConfigError."""
    loggers: list[tuple[str, StatLogger]] = [("log", LineLogger())] if line else []
    for entry in entry_points(GROUP) if found is None else found:
        try:
            loggers.append((entry.name, entry.load()(model_name)))
        except Exception as error:
            raise ConfigError(
                f"the stat logger {entry.name} ({entry.value}) cannot be used ({type(error).__name__}: {error}): "
                "repair or uninstall its package"
            ) from error
    return loggers
