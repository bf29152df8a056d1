from collections.abc import Iterable

import pytest

from kvasir.engine.health.black_box import BlackBox
from kvasir.engine.scheduling.step_results import StepRows
from kvasir.link.protocol import SUSPECT_TOKENS
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.gates import ReadyGate, WaitGate


def rows(engine: CoreHarness) -> list[set[str]]:
    return [{row.request_id for row in step.scheduled} for step in engine.executor.steps if step.scheduled]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_suspect_shares_no_step_until_it_has_its_first_tokens(max_in_flight: int) -> None:
    engine = CoreHarness(max_in_flight=max_in_flight, budget=8)
    long = list(range(1, 21))  # three chunks
    answers = [engine.add(add_request(f"r{n}", [n, 5], 20)) for n in (1, 2)]
    engine.step()
    suspect = engine.add(add_request("suspect", long, 10, alone=True))
    engine.run()
    lone = [step for step in rows(engine) if "suspect" in step][: 3 + SUSPECT_TOKENS - 1]
    assert lone == [{"suspect"}] * len(lone)
    assert {"suspect", "r1", "r2"} in rows(engine)
    assert suspect.token_ids == expected_output(long, 10)
    assert [answer.token_ids for answer in answers] == [expected_output([n, 5], 20) for n in (1, 2)]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_lone_step_overlaps_no_other_step(max_in_flight: int) -> None:
    engine = CoreHarness(max_in_flight=max_in_flight)
    in_flight: list[list[str]] = []

    class Recorder(BlackBox):
        def note(self, steps: Iterable[StepRows]) -> None:
            in_flight.append([request.request_id for rows in steps for request, _ in rows])

    engine.core.black_box = Recorder("")
    engine.add(add_request("r", [1, 2], 20))
    engine.step()
    engine.add(add_request("suspect", [3, 4], 10, alone=True))
    engine.run()
    assert in_flight.count(["suspect"]) >= SUSPECT_TOKENS
    assert (["r", "r"] in in_flight) == (max_in_flight > 1)  # otherwise steps overlap


def test_others_get_every_second_step() -> None:
    engine = CoreHarness(budget=8)
    engine.add(add_request("r", [1, 2], 20))
    engine.step()
    engine.add(add_request("suspect", list(range(1, 41)), 4, alone=True))
    for _ in range(10):
        engine.step()
    assert [len(step & {"suspect"}) for step in rows(engine)[1:]] == [1, 0] * 5
    engine.run()


def test_suspects_run_one_after_the_other() -> None:
    engine = CoreHarness()
    for n in range(3):
        engine.add(add_request(f"s{n}", [1, n], 20, alone=True))
    engine.run()
    steps = rows(engine)
    for n in range(2):
        begin = next(i for i, step in enumerate(steps) if f"s{n + 1}" in step)
        assert sum(f"s{n}" in step for step in steps[:begin]) >= SUSPECT_TOKENS


def test_resumed_suspect_is_alone_for_tokens_of_this_attempt() -> None:
    engine = CoreHarness()
    engine.add(add_request("r", [1, 2], 30))
    engine.step()
    emitted = expected_output([3, 4], 8)
    suspect = engine.add(add_request("suspect", [3, 4], 12, output=emitted, alone=True))
    while len(suspect.token_ids) < len(emitted) + SUSPECT_TOKENS:
        engine.step()
        assert {"r", "suspect"} not in rows(engine)
    engine.run()
    assert {"r", "suspect"} in rows(engine)
    assert suspect.token_ids == expected_output([3, 4], 12)


def test_suspect_without_a_free_row_gets_the_next_one() -> None:
    engine = CoreHarness(max_num_seqs=2)
    for n in range(2):
        engine.add(add_request(f"r{n}", [1, n], 6))
    engine.step()
    engine.add(add_request("suspect", [7, 8], 4, alone=True))
    engine.add(add_request("later", [9, 9], 4))
    engine.run()
    steps = rows(engine)
    assert min(i for i, step in enumerate(steps) if "suspect" in step) < min(
        i for i, step in enumerate(steps) if "later" in step
    )


def test_suspect_that_a_gate_skips_holds_nobody_up() -> None:
    gate = ReadyGate()
    gate.unready.add("suspect")
    engine = CoreHarness(gates=[gate])
    engine.add(add_request("suspect", [7, 8], 4, alone=True))
    other = engine.add(add_request("r", [1, 2], 4))
    while engine.core.has_work:
        engine.step()
    assert len(other.token_ids) == 4
    gate.unready.clear()
    engine.core.wake("suspect")
    engine.run()


def test_engine_sleeps_while_its_only_suspect_waits_for_an_event() -> None:
    gate = WaitGate()
    engine = CoreHarness(gates=[gate])
    engine.add(add_request("suspect", [7, 8], 4, alone=True))
    engine.step()
    assert not engine.core.has_work
    gate.is_open = True
    engine.core.wake("suspect")
    engine.run()


def test_aborted_waiting_suspect_leaves_its_row_to_others() -> None:
    engine = CoreHarness(max_num_seqs=1)
    engine.add(add_request("first", [1, 2], 2))
    engine.step()
    engine.add(add_request("suspect", [3, 4], 2, alone=True))
    engine.step()
    engine.core.abort("frontend-a", ["suspect"])
    later = engine.add(add_request("later", [5, 6], 2))
    engine.run()
    assert later.token_ids == expected_output([5, 6], 2)


def test_aborted_suspect_leaves_the_others_their_steps() -> None:
    engine = CoreHarness(max_in_flight=2)
    other = engine.add(add_request("r", [1, 2], 20))
    engine.step()
    engine.add(add_request("suspect", list(range(1, 60)), 4, alone=True))
    engine.step()
    engine.core.abort("frontend-a", ["suspect"])
    engine.run()
    assert other.token_ids == expected_output([1, 2], 20)
