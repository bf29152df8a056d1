import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.engine.scheduling.rations import StageRation
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.gates import TokenRation


def prompt(length: int, salt: int = 0) -> list[int]:
    return [1 + (salt * 131 + i * 7) % 900 for i in range(length)]


def pipeline(stages: int, *, budget: int, num_blocks: int = 64) -> CoreHarness:
    return CoreHarness(
        max_in_flight=stages,
        lookahead=0,
        is_pipeline=True,
        rations=[StageRation(stages, 8)],
        budget=budget,
        num_blocks=num_blocks,
        by_priority=True,
    )


def sizes(core: CoreHarness, since: int = 0) -> list[int]:
    return [len(step.scheduled) for step in core.executor.steps[since:] if step.scheduled]


def test_a_ration_shortens_what_a_request_computes() -> None:
    ration = TokenRation()
    ration.limits = {"a": 3}
    core = CoreHarness(rations=[ration])
    core.add(add_request("a", prompt(8), 2))
    core.add(add_request("b", prompt(8, 1), 1))
    core.run()
    assert ration.joined_tokens[:4] == [{"a": (0, 3), "b": (0, 8)}, {"a": (3, 3)}, {"a": (6, 2)}, {"a": (8, 1)}]
    assert core.answers["a"].token_ids == expected_output(prompt(8), 2)


def test_a_request_without_a_ration_is_not_admitted() -> None:
    ration = TokenRation()
    ration.limits = {"a": 0}
    core = CoreHarness(rations=[ration])
    core.add(add_request("a", prompt(8)))
    core.step()
    assert len(core.scheduler.waiting) == 1
    assert not core.core.has_work
    core.core.check_idle()
    ration.limits = {}
    core.core.wake("a")
    core.run()
    assert core.answers["a"].token_ids == expected_output(prompt(8), 4)


def test_a_running_request_without_a_ration_keeps_its_row() -> None:
    ration = TokenRation()
    core = CoreHarness(rations=[ration])
    core.add(add_request("a", prompt(8), 5))
    core.step()
    ration.limits = {"a": 0}
    core.step()
    assert not core.core.has_work
    core.core.check_idle()
    assert len(core.executor.rows) == 1
    ration.limits = {}
    core.core.wake("a")
    core.run()
    assert core.answers["a"].token_ids == expected_output(prompt(8), 5)


def test_a_ration_sees_the_cached_prefix_of_a_waiting_request() -> None:
    ration = TokenRation()
    core = CoreHarness(rations=[ration])
    for name in "ab":
        core.add(add_request(name, prompt(10), 1))
        core.run()
    assert [step for step in ration.joined_tokens if step] == [{"a": (0, 10)}, {"b": (8, 2)}]
    assert ration.asked == {("a", 0, 10), ("b", 8, 2)}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_step_of_a_pipeline_gets_its_share_of_the_rows(stages: int) -> None:
    core = pipeline(stages, budget=200)
    for i in range(8):
        core.add(add_request(f"r{i}", prompt(5, i), 12))
    core.run()
    share = -(-8 // stages)
    assert max(sizes(core)) == share
    assert len(sizes(core)) <= 12 * -(-8 // share) + stages
    for i in range(8):
        assert core.answers[f"r{i}"].token_ids == expected_output(prompt(5, i), 12)


def test_inadmissible_requests_take_no_share_of_a_pipeline() -> None:
    """Otherwise all running requests would join one step again."""
    core = pipeline(2, budget=200, num_blocks=16)
    for i in range(8):
        core.add(add_request(f"r{i}", prompt(5, i), 8))
    core.step()
    core.step()
    running = len(core.scheduler.running)
    assert 2 <= running < 8
    before = len(core.executor.steps)
    for _ in range(4):
        core.step()
    assert max(sizes(core, before)) <= -(-running // 2)
    core.run()


def test_a_long_prompt_in_chunks_keeps_no_row_out_of_a_pipeline() -> None:
    core = pipeline(2, budget=16, num_blocks=100)  # the long one is urgent: first in every step
    others = [core.add(add_request(f"short{i}", prompt(5, i), 8)) for i in range(3)]
    core.step()
    core.add(add_request("long", prompt(300, 5), 2, priority=-1))
    for _ in range(20):
        core.step()
    assert [len(answer.token_ids) for answer in others] == [8, 8, 8]
    assert core.answers["long"].token_ids == []
    core.run()


def test_the_chunks_of_a_prompt_join_every_step_of_a_pipeline() -> None:
    core = pipeline(2, budget=16, num_blocks=200)
    for i in range(7):
        core.add(add_request(f"short{i}", prompt(2, i), 30))
    for _ in range(6):
        core.step()
    core.add(add_request("long", prompt(300, 7), 2))
    core.step()
    before = len(core.executor.steps)
    for _ in range(6):
        core.step()
    for step in core.executor.steps[before:]:
        assert "long" in [row.request_id for row in step.scheduled]
    core.run()


def test_a_row_that_a_pipeline_leaves_out_is_next() -> None:
    core = pipeline(2, budget=100)
    for i in range(5):
        core.add(add_request(f"r{i}", prompt(5, i), 30))
    gaps = dict.fromkeys(core.answers, 0)
    for _ in range(40):
        before = len(core.executor.steps)
        core.step()
        for step in core.executor.steps[before:]:
            scheduled = {row.request_id for row in step.scheduled}
            gaps = {name: 0 if name in scheduled else gap + 1 for name, gap in gaps.items()}
            assert max(gaps.values()) <= 3
    core.run()


@settings(max_examples=40, deadline=None)
@given(stages=st.integers(2, 5), lengths=st.lists(st.integers(2, 30), min_size=1, max_size=8))
def test_the_steps_of_a_pipeline_are_balanced(stages: int, lengths: list[int]) -> None:
    """The requests begin with different steps and end at different times; the lasting ones are spread evenly."""
    core = pipeline(stages, budget=200, num_blocks=400)
    for i, length in enumerate(lengths):
        core.add(add_request(f"early{i}", prompt(5, i), length))
        core.step()
    late = [f"late{i}" for i in range(8)]
    for i, name in enumerate(late):
        core.add(add_request(name, prompt(5, i), 80, ignore_eos=True))
    while {each.request_id for each in core.scheduler.running} != set(late):
        core.step()
    before = len(core.executor.steps)
    for _ in range(6 * stages):  # until every step in flight has returned a few times
        core.step()
    last = sizes(core, before)[-stages:]
    assert (sum(last), max(last) - min(last)) == (8, int(8 % stages > 0))
    assert {row.request_id for step in core.executor.steps[-stages:] for row in step.scheduled} == set(late)
    core.run()


@pytest.mark.parametrize(("requests", "expected"), [(7, [3, 2, 2]), (8, [3, 3, 2]), (4, [2, 1, 1])])
def test_the_remainder_of_a_pipelines_rows_is_spread(requests: int, expected: list[int]) -> None:
    core = pipeline(3, budget=200)
    for i in range(requests):
        core.add(add_request(f"r{i}", prompt(5, i), 30, ignore_eos=True))
    for _ in range(20):
        core.step()
    assert sorted(sizes(core)[-3:], reverse=True) == expected
    core.run()


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_has_as_many_steps_in_flight_as_stages(stages: int) -> None:
    """With at least as many requests: each of the steps has one of them."""
    core = pipeline(stages, budget=200)
    for i in range(stages):
        core.add(add_request(f"r{i}", prompt(5, i), 12))
    in_flight = []
    core.executor.before_step = lambda: in_flight.append(len(core.executor.submitted) + 1)
    core.run()
    assert max(in_flight) == stages
    assert in_flight.count(stages) >= 12 * stages - stages
    assert all(size == 1 for size in sizes(core))


def test_a_pipeline_of_fewer_requests_than_stages_computes_them() -> None:
    core = pipeline(4, budget=200)
    core.add(add_request("a", prompt(5), 6))
    core.run()
    assert core.answers["a"].token_ids == expected_output(prompt(5), 6)
