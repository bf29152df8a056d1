import pytest

from kvasir.chaos import chaos_run
from kvasir.chaos.disturbances import Havoc, Load, plan
from kvasir.chaos.questions import questions
from kvasir.chaos.report import Report, passed
from kvasir.config.options import CommandFailed
from runtime.chaos.fake_service import FakeService, FakeTarget, fake_service

LOAD = Load(requests=40, concurrency=4, questions=40, seed=1)


async def run(
    service: FakeService, target: FakeTarget, havoc: Havoc | None = None, notes: list[str] | None = None
) -> Report:
    havoc = havoc or Havoc(kills=2, pause=0.01)
    asked = questions(LOAD.questions, "m", LOAD.max_tokens, 1)
    disturbances = plan(havoc, 1, target.kinds)
    note = (notes if notes is not None else []).append
    return await chaos_run.run(service.url, None, LOAD, havoc, asked, target, plan=disturbances, seed=1, note=note)


async def test_service_that_keeps_its_requests_passes() -> None:
    with fake_service() as service:
        target = FakeTarget(service)
        report = await run(service, target)
    figures = report.figures()
    assert passed(figures), figures
    assert figures["requests"] >= LOAD.requests
    assert (figures["lost"], figures["wrong"], figures["unsteady"]) == (0, 0, 0)
    assert figures["moved"] == 0  # the metric has not grown
    assert figures["disturbances"]["kill"]["count"] == 2
    assert figures["disturbances"]["kill"]["recovery_seconds"]["max"] >= 0.5
    assert target.most_disturbed == 1  # the next one waits until all engines are back


async def test_engines_are_disturbed_together_down_to_min_usable() -> None:
    with fake_service() as service:
        target = FakeTarget(service)
        report = await run(service, target, Havoc(kills=6, pause=0.01, min_usable=1))
    assert target.most_disturbed == 2
    assert len(report.events) == 6


@pytest.mark.parametrize(
    ("damage", "counted"), [("lost", "lost"), ("cut", "lost"), ("wrong", "wrong"), ("refused", "refused")]
)
async def test_damage_by_disturbances_is_counted(damage: str, counted: str) -> None:
    with fake_service() as service:
        figures = (await run(service, FakeTarget(service, damage), Havoc(kills=1, pause=0.01))).figures()
    assert not passed(figures)
    assert figures[counted] > 0
    assert sum(figures[name] for name in ("lost", "wrong", "refused")) == figures[counted]
    assert figures["problems"]


async def test_output_against_its_grammar_is_invalid() -> None:
    with fake_service() as service:
        service.ends = True
        figures = (await run(service, FakeTarget(service))).figures()
    assert not passed(figures)
    assert figures["invalid"] > 0
    assert (figures["lost"], figures["wrong"]) == (0, 0)
    assert any("no match of the regular expression" in problem for problem in figures["problems"])


async def test_engine_that_does_not_come_back_ends_the_run() -> None:
    with fake_service() as service:
        havoc = Havoc(kills=5, pause=0.01, recovery_timeout=0.5)
        figures = (await run(service, FakeTarget(service, recovers=False), havoc)).figures()
    assert not passed(figures)
    assert figures["disturbances"]["kill"]["not_recovered"] == 1
    assert figures["lost"] == 0


async def test_target_that_fails_stops_the_run_with_its_report() -> None:
    class Failing(FakeTarget):
        calls = 0

        async def engines(self) -> list[str]:
            self.calls += 1
            if self.calls > 1:
                raise CommandFailed("the service has ended")
            return await super().engines()

    with fake_service() as service:
        figures = (await run(service, Failing(service))).figures()
    assert figures["stopped_by"] == "the service has ended"
    assert not passed(figures)


async def test_run_goes_on_while_all_engines_are_replaced_at_once() -> None:
    class Replaced(FakeTarget):
        calls = 0

        async def engines(self) -> list[str]:
            self.calls += 1
            return [] if self.calls in (2, 3) else await super().engines()

    with fake_service() as service:
        target = Replaced(service)
        assert passed((await run(service, target)).figures())
    assert target.calls > 3


async def test_rejected_kinds_are_left_out_by_name() -> None:
    notes: list[str] = []
    with fake_service() as service:
        service.rejected = "echo"
        assert passed((await run(service, FakeTarget(service), notes=notes)).figures())
    assert "left out, because the service rejects them: echo" in notes


async def test_service_with_changing_answers_cannot_be_compared() -> None:
    with fake_service() as service:
        service.drifts = True
        with pytest.raises(CommandFailed, match="no two undisturbed answers are the same"):
            await run(service, FakeTarget(service))


async def test_service_without_engines_is_not_disturbed() -> None:
    with fake_service() as service:
        service.usable.clear()
        with pytest.raises(CommandFailed, match="has no engine that takes requests"):
            await run(service, FakeTarget(service))
