import asyncio

from kvasir.frontend.status import LOAD_LIMIT_SECONDS, FrontendStatus
from kvasir.frontend.telemetry.load_window import MAX_VALUES, LoadWindow
from kvasir.link.protocol import FinishReason
from kvasir_contract.status_report import LOAD_WINDOW_SECONDS, ReportedLoad
from runtime.fake_clock import FakeClock
from runtime.frontend.harness import Frontend, eventually, running_frontend


def report_of(window: LoadWindow) -> ReportedLoad:
    assert window.report is not None
    return window.report


def test_a_window_counts_its_own_seconds_only() -> None:
    clock = FakeClock()
    window = LoadWindow(clock)
    window.tick(5, 9, [1.0, 0.5], 2, 0.7)
    window.request_started(4.0)
    window.first_token(6.0)
    window.request_finished(FinishReason.STOP)
    window.request_finished(FinishReason.ABORT)
    clock.now += LOAD_WINDOW_SECONDS
    window.tick(8, 3, [], 2, 0.2)
    assert report_of(window) == ReportedLoad(LOAD_WINDOW_SECONDS, 2, 3, 1, 2, 9, 4.0, 6.0, 0.7)
    clock.now += 1
    window.tick(9, 1, [], 1, None)
    assert report_of(window) == ReportedLoad(1.0, 1, 1, 0, 0, 3, None, None, 0.2)


def test_percentiles_include_requests_that_still_wait() -> None:
    window = LoadWindow(FakeClock())
    for number in range(95):
        window.request_started(number / 100)
        window.first_token(1.0)
    window.tick(100, 95, [20.0, 19.0, 18.0, 17.0, 16.0], 1, None)
    assert report_of(window).queue_seconds == 0.94
    window.tick(100, 95, [20.0, 19.0, 18.0, 17.0, 16.0, 15.0], 1, None)
    assert (report_of(window).queue_seconds, report_of(window).ttft) == (15.0, 15.0)


def test_the_values_of_a_window_are_bounded() -> None:
    window = LoadWindow(FakeClock())
    for number in range(2 * MAX_VALUES):
        window.request_started(float(number < MAX_VALUES))
    window.tick(1, 1, [], 1, None)
    assert report_of(window).queue_seconds == 0.0


async def test_a_frontend_reports_its_load_each_second(frontend: Frontend) -> None:
    async with frontend.http() as client:
        done = await client.post("/v1/completions", json={"prompt": "What is"})
    assert done.status_code == 200
    frontend.service.measure_load()
    load = frontend.status.report().load
    assert load is not None
    assert (load.engines, load.waiting, load.running, load.queue_seconds) == (1, 0, 0, 0.0)
    assert load.ttft is not None

    async def is_counted() -> bool:
        found = frontend.status.report().load
        return found is not None and (found.arrived, found.finished) == (1, 1)

    await eventually(is_counted)


async def test_a_held_request_counts_as_waiting() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "What is"}))

        async def is_counted() -> bool:
            load = frontend.status.report().load
            return load is not None and load.waiting == 1 and (load.queue_seconds or 0.0) > 0.0

        await eventually(is_counted)
        load = frontend.status.report().load
        assert load is not None
        assert (load.engines, load.running) == (0, 0)
        await frontend.add_engine()
        assert (await waiting).status_code == 200


async def test_a_late_event_loop_reports_no_load(frontend: Frontend) -> None:
    clock = FakeClock()
    status = FrontendStatus(clock)
    status.serve(frontend.service)
    frontend.service.measure_load()
    clock.now += LOAD_LIMIT_SECONDS
    assert status.report().load is not None
    clock.now += 0.1
    assert status.report().load is None
