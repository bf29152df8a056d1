import msgspec
import pytest

from kvasir.link.protocol import AddRequest, FinishReason
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import EOS

STOP = 77
PROMPT = [1, 2, 3, 4]


def with_min_tokens(message: AddRequest, min_tokens: int) -> AddRequest:
    return msgspec.structs.replace(message, params=msgspec.structs.replace(message.params, min_tokens=min_tokens))


@pytest.mark.parametrize("ending", [EOS, STOP])
@pytest.mark.parametrize(("min_tokens", "length"), [(0, 1), (1, 2), (3, 4)])
def test_a_request_ends_only_after_its_min_tokens(ending: int, min_tokens: int, length: int) -> None:
    """The token that ends the request does not count as one of them."""
    engine = CoreHarness(model=lambda tokens: ending)
    message = add_request("a", PROMPT, 10, stop_token_ids=(STOP,))
    answer = engine.add(with_min_tokens(message, min_tokens))
    engine.run()
    assert answer.token_ids == [ending] * length
    assert answer.finish_reason is FinishReason.STOP
    assert answer.stop_token_id == (STOP if ending == STOP else None)


def test_max_tokens_end_a_request_before_its_min_tokens() -> None:
    engine = CoreHarness(model=lambda tokens: EOS)
    answer = engine.add(with_min_tokens(add_request("a", PROMPT, 3), 3))
    engine.run()
    assert answer.token_ids == [EOS] * 3
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.LENGTH, None)


def test_a_resumed_request_counts_all_its_output_for_min_tokens() -> None:
    engine = CoreHarness(model=lambda tokens: EOS)
    message = add_request("a", PROMPT, 10, output=[EOS, 5], attempt=1)
    answer = engine.add(with_min_tokens(message, 3))
    engine.run()
    assert answer.token_ids == [EOS, 5, EOS, EOS]
    assert answer.finish_reason is FinishReason.STOP
