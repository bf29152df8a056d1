import logging
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry import log_stats
from kvasir.frontend.telemetry.log_stats import (
    GROUP,
    INTERVAL_SECONDS,
    LineLogger,
    PeriodicStats,
    ServiceStats,
    stat_loggers,
)
from kvasir.frontend.telemetry.metrics import Totals
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import DraftStats, EngineStats, Ready
from kvasir.request.hashing import BLAKE2B
from runtime.frontend.harness import running_frontend

PLUGIN = """
class Recorder:
    def __init__(self, model_name):
        self.seen = [model_name]
    def log(self, stats):
        self.seen.append(stats.generation_tokens)
"""


class Recorder:
    def __init__(self) -> None:
        self.seen: list[ServiceStats] = []

    def log(self, stats: ServiceStats) -> None:
        self.seen.append(stats)


class Service:
    """Counters and a clock that a test sets."""

    def __init__(self, *loggers: log_stats.StatLogger) -> None:
        self.now = 100.0
        self.totals = Totals(0, 0, 0, 0)
        self.live = 0
        self.engines: dict[str, RemoteEngine] = {}
        self.stats = PeriodicStats(
            [(f"logger {number}", logger) for number, logger in enumerate(loggers)],
            lambda: self.totals,
            lambda: self.engines,
            lambda: self.live,
            lambda: self.now,
        )

    def pass_interval(self) -> None:
        self.now += INTERVAL_SECONDS
        self.stats.tick()


def engine(rank: int, running: int, waiting: int, used: int, drafts: DraftStats | None = None) -> RemoteEngine:
    capacity = Ready(16, 100, 2048, 64, (), 2**20, BLAKE2B)
    stats = EngineStats(waiting, running, used, 1, drafts=drafts)
    return RemoteEngine(f"engine-{rank}", rank, "node", EngineState.READY, None, 0.0, capacity, stats)


def test_interval_has_differences_and_the_load_of_all_engines() -> None:
    recorder = Recorder()
    service = Service(recorder)
    service.totals = Totals(100, 50, 80, 20)
    service.engines = {"a": engine(0, 3, 1, 10), "b": engine(1, 2, 0, 40)}
    service.now += 5
    service.stats.tick()
    assert recorder.seen == []
    service.now += 7
    service.stats.tick()
    service.totals = Totals(130, 90, 80, 20)
    service.pass_interval()
    first, second = recorder.seen
    assert first == ServiceStats(12.0, 100, 50, 80, 20, running=5, waiting=1, kv_cache_usage=0.25)
    assert (second.seconds, second.prompt_tokens, second.generation_tokens) == (10.0, 30, 40)
    assert second.prefix_cache_queries == 0


def test_interval_has_the_drafts_since_the_last_one() -> None:
    recorder = Recorder()
    service = Service(recorder)
    service.live = 1
    service.engines = {"a": engine(0, 1, 0, 10, DraftStats(100, 400, (90, 80)))}  # older than the frontend
    service.stats.tick()
    for drafts in (DraftStats(103, 410, (93, 81)), DraftStats(105, 416, (94, 82)), DraftStats(1, 4, (1, 0))):
        service.engines = {"a": engine(0, 1, 0, 10, drafts), "b": engine(1, 1, 0, 10)}
        service.pass_interval()
    seen = [(each.drafts, each.draft_tokens, each.accepted_tokens) for each in recorder.seen]
    assert seen == [(3, 10, 4), (2, 6, 2), (1, 4, 1)]


def test_interval_has_no_drafts_without_their_tokens() -> None:
    """A new engine has more drafts than the ended one, and fewer tokens in them."""
    recorder = Recorder()
    service = Service(recorder)
    service.live = 1
    for name, drafts in (("a", DraftStats(3, 15, (3, 1))), ("b", DraftStats(4, 6, (2, 1)))):
        service.engines = {name: engine(0, 1, 0, 10, DraftStats(0, 0, ()))}
        service.stats.tick()
        service.engines = {name: engine(0, 1, 0, 10, drafts)}
        service.pass_interval()
    assert [(each.drafts, each.draft_tokens) for each in recorder.seen] == [(3, 15), (4, 6)]


def test_the_line_has_the_acceptance_of_drafts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        LineLogger().log(ServiceStats(10.0, 0, 9, 0, 0, 1, 0, 0.0, drafts=4, draft_tokens=10, accepted_tokens=5))
    assert caplog.records[0].message.endswith(", 50.0% of 10 guessed tokens right (2.25 tokens per guess)")
    assert vars(caplog.records[0])["fields"]["mean_acceptance_length"] == 2.25


def test_one_line_follows_the_traffic_and_none_comes_when_idle() -> None:
    recorder = Recorder()
    service = Service(recorder)
    service.pass_interval()
    assert recorder.seen == []
    service.totals = Totals(10, 10, 0, 0)
    for _ in range(4):
        service.pass_interval()
    assert [stats.prompt_tokens for stats in recorder.seen] == [10, 0]


def test_requests_that_only_wait_are_traffic() -> None:
    recorder = Recorder()
    service = Service(recorder)
    service.live = 1
    service.pass_interval()
    service.pass_interval()
    assert len(recorder.seen) == 2


def test_the_line_has_rates_and_the_hits_of_the_prefix_cache(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        LineLogger().log(ServiceStats(10.0, 1000, 55, 400, 100, running=1, waiting=1, kv_cache_usage=0.123))
        LineLogger().log(ServiceStats(10.0, 0, 0, 0, 0, running=0, waiting=0, kv_cache_usage=0.0))
    assert [record.message for record in caplog.records] == [
        "100.0 prompt and 5.5 generated tokens/s, 1 request running, 1 waiting, 12.3% of the KV cache in use, "
        "25.0% of the prompt tokens from the prefix cache",
        "0.0 prompt and 0.0 generated tokens/s, 0 requests running, 0 waiting, 0.0% of the KV cache in use",
    ]
    fields = vars(caplog.records[0])["fields"]
    assert fields["generation_tokens_per_second"] == 5.5
    assert fields["prefix_cache_hit_rate"] == 0.25


def test_logger_that_raises_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, stats: ServiceStats) -> None:
            raise OSError("disk full")

    recorder = Recorder()
    service = Service(Broken(), recorder)
    service.live = 1
    service.pass_interval()
    service.pass_interval()
    assert len(recorder.seen) == 2
    assert [record.message for record in caplog.records] == [
        "the stat logger logger 0 failed and is not called again"
    ]


def test_an_installed_package_brings_a_stat_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvasir_test_plugin.py").write_text(PLUGIN)
    info = tmp_path / "kvasir_test_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir-test-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nrecorder = kvasir_test_plugin:Recorder\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kvasir_test_plugin", raising=False)
    ((name, logger),) = stat_loggers("demo", line=False)
    logger.log(ServiceStats(10.0, 1, 2, 0, 0, 0, 0, 0.0))
    assert name == "recorder"
    assert vars(logger)["seen"] == ["demo", 2]


def test_a_stat_logger_that_cannot_be_made_is_named() -> None:
    missing = EntryPoint("mine", "no_such_module:Logger", GROUP)
    with pytest.raises(ConfigError, match=r"the stat logger mine \(no_such_module:Logger\) cannot be used"):
        stat_loggers("demo", line=True, found=[missing])


@pytest.mark.parametrize("disabled", [False, True])
async def test_a_frontend_logs_its_requests_unless_told_otherwise(
    disabled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_stats, "INTERVAL_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        async with running_frontend(disable_log_stats=disabled) as frontend, frontend.http() as client:
            await client.post("/v1/completions", json={"prompt": "Hi"})
            frontend.server._stats.tick()
    lines = [record.message for record in caplog.records if "generated tokens/s" in record.message]
    assert bool(lines) is not disabled
    assert frontend.service.metrics.totals().generation_tokens == len(frontend.engine.script.answer) + 1
