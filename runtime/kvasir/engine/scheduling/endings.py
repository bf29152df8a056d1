"""Endings: when a request ends, and the outputs that it gets."""

import logging
import time
from collections.abc import Collection
from typing import Final

from kvasir.engine.engine_request import FINISH_REASONS, EngineRequest, GrammarTooComplex, RequestStatus
from kvasir.link.protocol import AddRequest, FinishReason, Logprobs, RefusalKind, RequestOutput, RequestProgress
from kvasir.process.seldom_log import SeldomLog
from kvasir.worker.step import NAN_COMPUTED

log = logging.getLogger(__name__)

BROKEN_MODEL: Final = "the model computed NaN: its weights or its precision are broken"

NOT_PREPARED: Final = (
    "the engine could not prepare the sampling of this request ({failure}): its log has the details; send the "
    "request with other sampling parameters"
)


def error_output(request: EngineRequest | AddRequest, error: str, refusal: RefusalKind | None) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        attempt=request.attempt,
        position=request.num_output_tokens,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=error,
        refusal=refusal,
    )


class Endings:
    def __init__(self, eos_token_ids: Collection[int], max_model_len: int) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self._seldom = SeldomLog(log)

    def status_of(self, request: EngineRequest) -> RequestStatus:
        """Return the status after the last output token: unchanged, STOPPED or LENGTH."""
        # before min_tokens and ignore_eos: only an end-of-sequence token may follow
        if request.guide is not None and request.guide.is_complete:
            return RequestStatus.STOPPED
        params = request.params
        token_id = request.token_ids[-1]
        ends = (token_id in self._eos_token_ids and not params.ignore_eos) or token_id in params.stop_token_ids
        if ends and request.num_output_tokens > params.min_tokens:
            return RequestStatus.STOPPED
        return RequestStatus.LENGTH if self._is_full(request, 0) else request.status

    def awaits_last(self, request: EngineRequest) -> bool:
        return request.num_pending > 0 and self._is_full(request, request.num_pending)

    def num_left(self, request: EngineRequest) -> int:
        return min(request.params.max_tokens - request.num_output_tokens, self._max_model_len - request.num_tokens)

    def _is_full(self, request: EngineRequest, pending: int) -> bool:
        num_tokens = len(request.token_ids) + pending
        num_output_tokens = num_tokens - request.num_prompt_tokens
        return num_output_tokens >= request.params.max_tokens or num_tokens >= self._max_model_len

    def output(
        self,
        request: EngineRequest,
        position: int,
        token_ids: list[int],
        *,
        logprobs: Logprobs | None = None,
        prompt_logprobs: Logprobs | None = None,
        num_cached_tokens: int | None = None,
        pooled: bytes | None = None,
    ) -> RequestOutput:
        finished = request.status.finished
        return RequestOutput(
            request_id=request.request_id,
            attempt=request.attempt,
            position=position,
            token_ids=token_ids,
            finish_reason=FINISH_REASONS[request.status] if finished else None,
            stop_token_id=self._stop_token(request) if finished else None,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=num_cached_tokens,
            queue_seconds=None if num_cached_tokens is None else request.queue_seconds,
            progress=_progress(request),
            pooled=pooled,
        )

    def broken_off(self, request: EngineRequest, failure: str) -> RequestOutput:
        if failure == NAN_COMPUTED:
            self._seldom.warning(
                f"request {request.request_id} ends with an error: {BROKEN_MODEL}: check the checkpoint, or try "
                "another --dtype (float16 ends at 65,504, bfloat16 and float32 do not)",
                about="NaN",
            )
        return error_output(
            request,
            BROKEN_MODEL if failure == NAN_COMPUTED else NOT_PREPARED.format(failure=failure),
            refusal=None,
        )

    def left_grammar(self, request: EngineRequest, error: Exception) -> RequestOutput:
        if isinstance(error, GrammarTooComplex):
            return error_output(request, str(error), RefusalKind.INVALID)
        log.error("request %s ends with an error: its guide has failed", request.request_id, exc_info=error)
        return error_output(request, f"the output could not be continued within its constraint: {error}", None)

    def _stop_token(self, request: EngineRequest) -> int | None:
        token_id, params = request.token_ids[-1], request.params
        by_eos = token_id in self._eos_token_ids and not params.ignore_eos
        is_stop = request.status is RequestStatus.STOPPED and token_id in params.stop_token_ids
        return token_id if is_stop and not by_eos else None


def _progress(request: EngineRequest) -> RequestProgress | None:
    """Return the progress of the request; notes the time of its first token."""
    finished, prefill_seconds = request.status.finished, None
    if request.first_token is None:
        request.first_token = time.monotonic()
        prefill_seconds = request.first_token - request.arrived - (request.queue_seconds or 0.0)
    elif not (finished or request.num_preemptions):
        return None
    decode_seconds = time.monotonic() - request.first_token if finished else None
    return RequestProgress(request.num_preemptions, prefill_seconds, decode_seconds)
