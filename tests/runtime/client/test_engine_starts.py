from kvasir.client.engine_starts import DEFAULT_RETRY_AFTER, JITTER, EngineStarts
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import Progress
from runtime.fake_clock import FakeClock


def engine_of(incarnation: str, state: EngineState = EngineState.STARTING) -> RemoteEngine:
    return RemoteEngine(incarnation, 0, "node", state, None, 0.0)


def start(starts: EngineStarts, clock: FakeClock, seconds: float) -> None:
    """Let an engine come and be ready after this time."""
    engine = engine_of("ready")
    starts.joined(engine)
    clock.now += seconds
    engine.state = EngineState.READY
    starts.changed(engine)
    starts.forget("ready")


def without_jitter(clock: FakeClock) -> EngineStarts:
    return EngineStarts(clock, lambda least, most: (least + most) / 2)


def test_retry_after_is_the_default_until_a_start_was_seen() -> None:
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    assert starts.retry_after() == DEFAULT_RETRY_AFTER
    start(starts, clock, 40.0)
    assert starts.retry_after() == 40.0


def test_retry_after_follows_later_starts_slowly() -> None:
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    for seconds in (40.0, 50.0):
        start(starts, clock, seconds)
    assert starts.retry_after() == 43.0


def test_an_engine_that_was_ready_before_is_not_measured() -> None:
    """A frontend that starts later sees such an engine for milliseconds before its Ready."""
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    engine = engine_of("old", EngineState.WARMING)
    starts.joined(engine)
    engine.state = EngineState.READY
    starts.changed(engine)
    assert starts.seconds is None


def test_the_time_that_a_start_has_taken_counts() -> None:
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    start(starts, clock, 40.0)
    engine = engine_of("next")
    starts.joined(engine)
    clock.now += 30.0
    assert starts.retry_after() == 10.0
    clock.now += 60.0
    assert starts.retry_after() == 1.0
    starts.forget("next")
    assert starts.retry_after() == 40.0


def test_clients_that_are_rejected_together_come_back_spread() -> None:
    clock = FakeClock(100.0)
    starts = EngineStarts(clock)
    start(starts, clock, 100.0)
    seconds = [starts.retry_after() for _ in range(1000)]
    assert 100 * (1 - JITTER) <= min(seconds) < 85
    assert 115 < max(seconds) <= 100 * (1 + JITTER)


def test_progress_names_the_engine_that_is_closest_to_ready() -> None:
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    engines = [engine_of(name) for name in "abc"]
    for engine in engines:
        starts.joined(engine)
    assert starts.describe([]) == "none is connected"
    assert starts.describe([engine_of("leaving", EngineState.DRAINING)]) == "none is connected"
    assert starts.describe(engines) == "Starting"
    for engine, done in zip(engines[:2], (1_000_000_000, 600_000_000), strict=True):
        engine.state, engine.progress = EngineState.LOADING, Progress(done, 15_000_000_000)
        starts.changed(engine)
    assert starts.describe(engines) == "Loading 1.0/15.0 GB"
    clock.now += 7.0
    engines[1].progress = Progress(3_100_000_000, 15_000_000_000)  # 2.5 GB in 7 s
    starts.changed(engines[1])
    assert starts.describe(engines) == "Loading 3.1/15.0 GB, about 33 s"
    engines[2].state = EngineState.WARMING
    assert starts.describe(engines) == "Warming"


def test_progress_of_small_models_and_measured_starts() -> None:
    clock = FakeClock(100.0)
    starts = without_jitter(clock)
    start(starts, clock, 20.0)
    engine = engine_of("a")
    starts.joined(engine)
    engine.state, engine.progress = EngineState.LOADING, Progress(100_000_000, 500_000_000)
    starts.changed(engine)
    clock.now += 4.0
    assert starts.describe([engine]) == "Loading 100.0/500.0 MB, about 16 s"
    clock.now += 30.0  # longer than the starts before
    assert starts.describe([engine]) == "Loading 100.0/500.0 MB"
