import logging
from collections.abc import Callable, Sequence

import pytest

from kvasir.engine.engine_request import RequestStatus
from kvasir.link.protocol import Call, FinishReason, RefusalKind, Result
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import NAN, expected_output, next_token

OTHER = "frontend-b"
PROMPT = [5, 6, 7, 8, 9]


def test_outputs_are_grouped_by_frontend_and_carry_the_load() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    engine.add(add_request("b", PROMPT[::-1]), OTHER)
    outputs = engine.core.step()
    assert {frontend: [each.request_id for each in sent.outputs] for frontend, sent in outputs.items()} == {
        FRONTEND: ["a"],
        OTHER: ["b"],
    }
    stats = outputs[FRONTEND].stats
    assert (stats.running, stats.waiting, stats.step, stats.kv_blocks_used) == (2, 0, 1, 4)


def test_the_row_of_the_last_finished_request_is_freed() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 1))
    engine.step()
    assert engine.answers["a"].finish_reason is FinishReason.LENGTH
    assert engine.core.has_work
    engine.step()
    assert engine.executor.steps[-1].finished == ["a"]
    assert engine.executor.steps[-1].scheduled == []
    assert not engine.core.has_work
    engine.core.check_idle()


def test_an_idle_step_does_not_reach_the_executor() -> None:
    engine = CoreHarness()
    assert engine.core.step() == {}
    assert engine.executor.steps == []
    assert engine.core.num_steps == 0


# ------------------------------------------------------------------------------------------------------------ abort


def waiting_request(engine: CoreHarness) -> None:
    engine.add(add_request("a", PROMPT))


def request_in_its_prompt(engine: CoreHarness) -> None:
    engine.add(add_request("a", [7] * 40, 10))
    engine.step()
    assert engine.answers["a"].token_ids == []
    assert engine.scheduler.requests["a"].status is RequestStatus.RUNNING


def generating_request(engine: CoreHarness) -> None:
    engine.add(add_request("a", PROMPT, 10))
    engine.step()
    engine.step()
    assert len(engine.answers["a"].token_ids) == 2


def preempted_request(engine: CoreHarness) -> None:
    engine.add(add_request("first", [3] * 12, 40))
    engine.add(add_request("a", PROMPT, 40))
    while engine.scheduler.num_preemptions == 0:
        engine.step()
    assert engine.scheduler.requests["a"].status is RequestStatus.PREEMPTED
    engine.core.abort(FRONTEND, ["first"])


@pytest.mark.parametrize(
    "reach",
    [waiting_request, request_in_its_prompt, generating_request, preempted_request],
    ids=lambda f: f.__name__,
)
def test_an_abort_leaves_nothing_whatever_the_state(reach: Callable[[CoreHarness], None]) -> None:
    engine = CoreHarness(num_blocks=14, budget=16)
    reach(engine)
    before = list(engine.answers["a"].token_ids)
    engine.core.abort(FRONTEND, ["a"])
    engine.run()
    assert engine.answers["a"].token_ids == before
    assert engine.answers["a"].finish_reason is None


def test_an_abort_between_execute_and_update_leaves_no_output() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    kept = engine.add(add_request("b", PROMPT))
    computed = engine.core.execute()
    engine.core.abort(FRONTEND, ["a"])
    engine.take(engine.core.update(computed))
    assert engine.answers["a"].token_ids == []
    engine.run()
    assert kept.token_ids == expected_output(PROMPT, 4)


def test_an_id_reused_before_the_next_step_gets_a_new_row() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 10))
    engine.step()
    engine.core.abort(FRONTEND, ["a"])
    answer = engine.add(add_request("a", [1, 2, 3], 4, attempt=1))
    engine.step()
    step = engine.executor.steps[-1]
    assert (step.finished, [new.request_id for new in step.new]) == (["a"], ["a"])
    engine.run()
    assert answer.token_ids == expected_output([1, 2, 3], 4)


def test_an_id_reused_within_a_step_gets_a_new_row() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 10))
    computed = engine.core.execute()
    engine.core.abort(FRONTEND, ["a"])
    answer = engine.add(add_request("a", [1, 2, 3], 4))
    engine.take(engine.core.update(computed))
    engine.run()
    assert answer.token_ids == expected_output([1, 2, 3], 4)


def test_a_frontend_cannot_abort_the_requests_of_another() -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", PROMPT))
    engine.core.abort(OTHER, ["a", "unknown"])
    engine.run()
    assert answer.finish_reason is FinishReason.LENGTH


def test_only_the_requests_of_a_lost_frontend_are_aborted() -> None:
    engine = CoreHarness(max_num_seqs=2)
    for i in range(4):
        engine.add(add_request(f"lost{i}", PROMPT), OTHER)
    answer = engine.add(add_request("kept", PROMPT))
    engine.step()
    assert engine.core.abort_frontend(OTHER) == 4
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 4)
    assert all(engine.answers[f"lost{i}"].finish_reason is None for i in range(4))


# ---------------------------------------------------------------------------------------------- the same id twice


def test_a_newer_attempt_replaces_the_older_one() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 10))
    engine.step()
    emitted = expected_output(PROMPT, 1)
    answer = engine.add(add_request("a", PROMPT, 10, output=emitted, attempt=1))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 10)


@pytest.mark.parametrize("prompt", [PROMPT, [5, 10**6]], ids=["accepted", "refused"])
def test_an_attempt_that_came_twice_is_computed_once(prompt: list[int], caplog: pytest.LogCaptureFixture) -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", PROMPT))
    with caplog.at_level(logging.WARNING):
        engine.core.add(FRONTEND, add_request("a", prompt))
    engine.run()
    assert answer.error == ""
    assert answer.token_ids == expected_output(PROMPT, 4)
    assert "request a attempt 0 came while attempt 0 runs" in caplog.text


def test_an_id_in_use_by_another_frontend_is_refused() -> None:
    engine = CoreHarness()
    engine.core.add(OTHER, add_request("a", PROMPT))
    engine.core.add(FRONTEND, add_request("a", PROMPT))
    outputs = engine.core.step()
    [refused] = outputs[FRONTEND].outputs
    assert refused.finish_reason is FinishReason.ERROR
    assert "in use by another frontend" in refused.error
    assert refused.refusal is RefusalKind.INVALID
    assert [each.request_id for each in outputs[OTHER].outputs] == ["a"]


# ------------------------------------------------------------------------------------------------------------ calls


def test_the_prefix_cache_is_reset_when_no_request_has_blocks() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 2))
    engine.step()
    assert engine.core.call(Call(1, "reset_prefix_cache")) == Result(
        1,
        "2 of 64 KV blocks are in use by requests: the prefix cache can be reset when no request is running",
    )
    engine.run()
    assert engine.core.call(Call(2, "reset_prefix_cache")) == Result(2)
    again = engine.add(add_request("b", PROMPT, 2))
    engine.run()
    assert again.num_cached_tokens == [0, None]


def test_a_call_that_the_engine_does_not_know_says_so() -> None:
    engine = CoreHarness(prefix_caching=False)
    assert "no call 'sleep'" in engine.core.call(Call(1, "sleep")).error
    assert engine.core.call(Call(1, "reset_prefix_cache")) == Result(
        1, "this engine keeps no prefix cache (--no-enable-prefix-caching)"
    )


# ---------------------------------------------------------------------------------------------------------- failing


def test_requests_that_are_failed_get_an_error_at_their_position() -> None:
    engine = CoreHarness(max_num_seqs=1)
    engine.add(add_request("running", PROMPT, 10))
    engine.add(add_request("waiting", PROMPT, 10))
    engine.step()
    assert engine.core.fail_all("shut down") == 2
    engine.run()
    assert {name: (answer.finish_reason, answer.error) for name, answer in engine.answers.items()} == {
        "running": (FinishReason.ERROR, "shut down"),
        "waiting": (FinishReason.ERROR, "shut down"),
    }
    assert {answer.refusal for answer in engine.answers.values()} == {RefusalKind.UNAVAILABLE}


@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
def test_nan_ends_only_its_request_with_an_error(max_in_flight: int, caplog: pytest.LogCaptureFixture) -> None:
    def model(tokens: Sequence[int]) -> int:
        return NAN if tokens[0] == 900 and len(tokens) > 9 else next_token(tokens)

    engine = CoreHarness(model=model, max_in_flight=max_in_flight)
    broken = [engine.add(add_request(name, [900, place], 20)) for place, name in enumerate("ab")]
    sound = engine.add(add_request("c", PROMPT, 20))
    engine.run()
    for place, answer in enumerate(broken):
        assert answer.token_ids == expected_output([900, place], 8)
        assert answer.finish_reason is FinishReason.ERROR
        assert answer.error == "the model computed NaN: its weights or its precision are broken"
    assert sound.token_ids == expected_output(PROMPT, 20)
    assert engine.core.stats().corrupted == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("request a ends with an error: the model computed NaN")


def test_the_load_has_the_rest_of_prompts_in_chunks() -> None:
    engine = CoreHarness(budget=8, max_num_seqs=1)
    engine.add(add_request("a", range(20, 40), 2))
    engine.add(add_request("b", range(50, 60), 2))
    queued = []
    while engine.core.has_work:
        engine.step()
        queued.append(engine.core.stats().unfinished_tokens)
    assert queued[:6] == [12, 4, 0, 0, 2, 0]


def test_a_worker_that_returns_too_few_tokens_is_found_at_once() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    engine.add(add_request("b", PROMPT))
    output = engine.core.execute()
    assert output is not None
    output.token_ids.pop()
    with pytest.raises(ValueError, match="shorter"):
        engine.core.update(output)


@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
def test_a_request_that_the_worker_cannot_prepare_ends_alone(max_in_flight: int) -> None:
    engine = CoreHarness(max_in_flight=max_in_flight)
    engine.executor.failing = {"at once": len(PROMPT), "later": len(PROMPT) + 3}
    failed = {name: engine.add(add_request(name, PROMPT, 20)) for name in engine.executor.failing}
    sound = engine.add(add_request("sound", PROMPT, 20))
    engine.run()
    assert failed["at once"].token_ids == []
    assert failed["later"].token_ids == expected_output(PROMPT, 3)
    for answer in failed.values():
        assert answer.finish_reason is FinishReason.ERROR
        assert "could not prepare the sampling of this request (injected)" in answer.error
        assert answer.refusal is None  # HTTP 500
    assert sound.token_ids == expected_output(PROMPT, 20)


def test_a_request_that_cannot_be_queued_ends_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = CoreHarness()
    sound = engine.add(add_request("sound", PROMPT))
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "add", lambda request: 1 / 0)
        failed = engine.add(add_request("failed", PROMPT))
    engine.run()
    assert (failed.finish_reason, failed.refusal) == (FinishReason.ERROR, None)
    assert "could not queue the request" in failed.error
    assert "ZeroDivisionError" in caplog.text
    assert sound.token_ids == expected_output(PROMPT, 4)


@pytest.mark.parametrize("token_ids", [[], [7, 8]])
def test_a_worker_that_breaks_its_contract_is_found_at_once(token_ids: list[int]) -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    output = engine.core.execute()
    assert output is not None
    output.token_ids[0] = token_ids
    with pytest.raises(
        RuntimeError, match=rf"returned {len(token_ids)} tokens, .* for a request with 5 of 5 tokens computed"
    ):
        engine.core.update(output)
