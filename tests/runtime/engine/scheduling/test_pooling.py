import pytest

from kvasir.link.protocol import FinishReason, RefusalKind
from kvasir.request.pool_params import PoolParams
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.pooling_executor import fake_vector

POOLING = PoolParams()


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_prompts_are_packed_whole_and_answered(max_in_flight: int) -> None:
    harness = CoreHarness(pools=True, budget=16, max_model_len=16, max_in_flight=max_in_flight)
    prompts = [list(range(1, 1 + count)) for count in (7, 9, 1, 16, 3, 5, 8, 1, 1, 2)]
    answers = [harness.add(add_request(str(i), each, 1, pooling=POOLING)) for i, each in enumerate(prompts)]
    harness.run()
    assert [answer.pooled for answer in answers] == [fake_vector(each) for each in prompts]
    assert {answer.finish_reason for answer in answers} == {FinishReason.STOP}
    scheduled = [[row.num_new_tokens for row in step.scheduled] for step in harness.executor.steps]
    assert [each for each in scheduled if each] == [[7, 9], [1], [16], [3, 5, 8], [1, 1, 2]]
    assert harness.scheduler.num_prompt_tokens == sum(map(len, prompts))


def test_a_failed_row_ends_its_request_only() -> None:
    harness = CoreHarness(pools=True)
    harness.executor.failing["bad"] = 0
    bad, good = (harness.add(add_request(name, [1, 2, 3], 1, pooling=POOLING)) for name in ("bad", "good"))
    harness.run()
    assert (bad.finish_reason, bad.pooled) == (FinishReason.ERROR, None)
    assert "injected" in bad.error
    assert good.pooled == fake_vector([1, 2, 3])


def test_an_aborted_request_gets_no_vector() -> None:
    harness = CoreHarness(pools=True, budget=16, max_model_len=16)
    gone, kept = (harness.add(add_request(name, [1] * 16, 1, pooling=POOLING)) for name in ("gone", "kept"))
    harness.core.abort("frontend-a", ["gone"])
    harness.run()
    assert (gone.pooled, kept.pooled) == (None, fake_vector([1] * 16))


@pytest.mark.parametrize(
    ("tokens", "pooling", "error"),
    [
        (17, POOLING, "computes at most 16"),
        (4, None, "vectors and scores only, and the request is of"),
    ],
)
def test_requests_that_cannot_be_pooled_are_refused(tokens: int, pooling: PoolParams | None, error: str) -> None:
    harness = CoreHarness(pools=True, budget=16, max_model_len=16)
    answer = harness.add(add_request("a", [1] * tokens, 1, pooling=pooling))
    harness.run()
    assert answer.refusal is RefusalKind.INVALID
    assert error in answer.error


def test_a_suspect_is_pooled_alone() -> None:
    harness = CoreHarness(pools=True)
    answers = [harness.add(add_request(str(i), [i + 1], 1, pooling=POOLING, alone=i == 1)) for i in range(3)]
    harness.run()
    assert all(answer.pooled for answer in answers)
    alone = [step for step in harness.executor.steps if [row.request_id for row in step.scheduled] == ["1"]]
    assert len(alone) == 1
