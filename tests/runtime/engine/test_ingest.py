"""From a message to a request that the scheduler can queue."""

import logging
from array import array

import msgspec
import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.ingest import Ingest, RefusedRequest
from kvasir.engine.scheduling.token_budget import REQUEST_TOKENS, TokenBudget
from kvasir.link.protocol import AddRequest, FinishReason, RefusalKind
from kvasir.request.hashing import SHA256, ChainRoot, chain_root, packed_chain
from kvasir.request.request_core import RequestKind
from kvasir.request.tokens import token_array
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import VOCAB_SIZE

PROMPT = list(range(100, 130))
MAX_MODEL_LEN = 100


def ingest(cache_block_size: int | None = 4, limit: int = 2**26) -> Ingest:
    return Ingest(VOCAB_SIZE, MAX_MODEL_LEN, cache_block_size, TokenBudget(limit))


def accepted(prepare: Ingest, message: AddRequest) -> EngineRequest:
    request = prepare.prepare(FRONTEND, message)
    assert isinstance(request, EngineRequest), request
    return request


def test_a_prepared_request_has_its_tokens_and_its_reservation() -> None:
    prepare = ingest()
    request = accepted(prepare, add_request("a", PROMPT, output=[7, 8], attempt=3))
    assert (request.frontend, request.request_id, request.attempt) == (FRONTEND, "a", 3)
    assert request.token_ids.tolist() == [*PROMPT, 7, 8]
    assert (request.num_prompt_tokens, request.num_output_tokens) == (30, 2)
    assert prepare.budget.held == 32 + REQUEST_TOKENS


@pytest.mark.parametrize(
    ("kind", "refusal", "error"),
    [
        (
            RequestKind.POOL,
            RefusalKind.INVALID,
            "generates text only, and the request is of kind pool: start frontends and engines",
        ),
        (RequestKind("of-a-later-version"), RefusalKind.UNAVAILABLE, "does not have the request's kind"),
    ],
)
def test_ingest_refuses_a_kind_it_does_not_compute(kind: RequestKind, refusal: RefusalKind, error: str) -> None:
    prepare = ingest()
    refused = prepare.prepare(FRONTEND, msgspec.structs.replace(add_request("a", PROMPT), kind=kind))
    assert isinstance(refused, RefusedRequest)
    assert refused.output.refusal is refusal
    assert error in refused.output.error
    assert prepare.budget.held == 0


@pytest.mark.parametrize("hashed_for", [None, 4], ids=["by the engine", "by the frontend"])
@pytest.mark.parametrize("salt", ["", "tenant"])
def test_all_full_blocks_are_hashed_those_of_the_output_too(hashed_for: int | None, salt: str) -> None:
    output = [7] * 11
    message = add_request("a", PROMPT, output=output, cache_salt=salt, hashed_for=hashed_for)
    request = accepted(ingest(), message)
    whole = packed_chain(chain_root(salt), token_array([*PROMPT, *output]), 4)
    assert request.packed_hashes == whole
    assert len(whole) == 10 * 16


def test_hashes_that_do_not_fit_are_replaced_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    message = add_request("a", PROMPT, hashed_for=5)
    with caplog.at_level(logging.WARNING):
        request = accepted(ingest(), message)
    assert request.packed_hashes == packed_chain(chain_root(), token_array(PROMPT), 4)
    assert "block hashes that do not fit" in caplog.text


@pytest.mark.parametrize("given", ["blake2b", "sha256"])
def test_an_engine_hashes_with_its_own_algorithm(given: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hashes of another algorithm are replaced, with one line in the log; the request is served."""
    theirs = packed_chain(chain_root(algorithm=given), token_array(PROMPT), 4)
    message = msgspec.structs.replace(add_request("a", PROMPT), block_hashes=theirs)
    prepare = Ingest(VOCAB_SIZE, MAX_MODEL_LEN, 4, TokenBudget(2**26), SHA256)
    with caplog.at_level(logging.WARNING):
        requests = [accepted(prepare, message) for _ in range(2)]
    for request in requests:
        assert request.packed_hashes == packed_chain(chain_root(algorithm=SHA256), token_array(PROMPT), 4)
        assert request.chain_root.algorithm == SHA256
    assert len(caplog.records) == (given != SHA256)


def test_without_a_prefix_cache_nothing_is_hashed() -> None:
    request = accepted(ingest(None), add_request("a", PROMPT, hashed_for=4))
    assert request.packed_hashes == b""


def test_hashes_of_the_frontend_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    message = add_request("a", PROMPT, hashed_for=4)
    hashed = []

    def chain(root: ChainRoot, token_ids: "array[int]", block_size: int, before: bytes) -> bytes:
        hashed.append((before, token_ids.tolist()))
        return b""

    monkeypatch.setattr("kvasir.engine.ingest.packed_chain", chain)
    ingest().prepare(FRONTEND, message)
    assert hashed == [(message.block_hashes, PROMPT[28:])]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"prompt_tokens": b"\0\0\0\0\0"}, "5 bytes are not a whole number of tokens of 4 bytes"),
        ({"output_tokens": b"\0"}, "1 bytes are not a whole number of tokens"),
        ({"output_tokens": bytes([232, 3, 0, 0])}, "prompt: token id 1000 is out of range (0 to 999)"),
    ],
)
def test_tokens_that_would_break_the_engine_are_refused(change: dict[str, bytes], error: str) -> None:
    prepare = ingest()
    refusal = prepare.prepare(FRONTEND, msgspec.structs.replace(add_request("a", PROMPT, attempt=2), **change))
    assert isinstance(refusal, RefusedRequest)
    assert refusal.frontend == FRONTEND
    assert error in refusal.output.error
    assert refusal.output.finish_reason is FinishReason.ERROR
    assert (refusal.output.request_id, refusal.output.attempt) == ("a", 2)
    assert refusal.output.refusal is RefusalKind.INVALID
    assert prepare.budget.held == 0


def test_a_prompt_beyond_the_context_is_refused_unhashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.engine.ingest.packed_chain", _fail)
    monkeypatch.setattr("kvasir.engine.ingest.EngineRequest", _fail)
    prepare = ingest()
    refusal = prepare.prepare(FRONTEND, add_request("a", [5] * MAX_MODEL_LEN))
    assert isinstance(refusal, RefusedRequest)
    assert refusal.output.error == (
        "the prompt has 100 tokens and this engine holds 100 of prompt and output together: shorten the prompt"
    )
    assert refusal.output.refusal is RefusalKind.INVALID
    assert prepare.budget.held == 0


def test_a_prompt_of_the_context_less_one_is_accepted() -> None:
    assert accepted(ingest(), add_request("a", [5] * (MAX_MODEL_LEN - 1))).packed_hashes


@pytest.mark.parametrize("prompt_length", [MAX_MODEL_LEN - 1, MAX_MODEL_LEN, 2 * MAX_MODEL_LEN])
def test_a_complete_resumed_request_is_not_hashed(monkeypatch: pytest.MonkeyPatch, prompt_length: int) -> None:
    monkeypatch.setattr("kvasir.engine.ingest.packed_chain", _fail)
    assert accepted(ingest(), add_request("a", [5] * prompt_length, output=[7])).packed_hashes == b""


def test_a_resumed_request_beyond_the_context_is_complete() -> None:
    engine = CoreHarness(max_model_len=10)
    answer = engine.add(add_request("a", PROMPT, 20, output=[7], attempt=1))
    engine.run()
    assert (answer.finish_reason, answer.token_ids, engine.executor.steps) == (FinishReason.LENGTH, [7], [])


def _fail(*arguments: object) -> None:
    raise AssertionError(f"called with {arguments}")


def test_a_refused_resumed_request_is_answered_at_its_position() -> None:
    prepare = ingest(limit=REQUEST_TOKENS)
    prepare.budget.reserve(0)
    refusal = prepare.prepare(FRONTEND, add_request("a", PROMPT, output=[7, 8]))
    assert isinstance(refusal, RefusedRequest)
    assert refusal.output.position == 2
    assert refusal.output.refusal is RefusalKind.OVERLOADED


def test_a_full_engine_takes_a_request_begun_elsewhere() -> None:
    prepare = ingest(limit=REQUEST_TOKENS)
    prepare.budget.reserve(0)
    accepted(prepare, add_request("a", PROMPT, output=[7, 8], age=1.0))
    assert isinstance(prepare.prepare(FRONTEND, add_request("b", PROMPT)), RefusedRequest)


def test_a_refused_later_attempt_ends_the_earlier_one() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 20))
    engine.step()
    answer = engine.add(add_request("a", [5, 10**6], 20, attempt=1))
    engine.run()
    assert answer.token_ids == []
    assert answer.refusal is RefusalKind.INVALID
