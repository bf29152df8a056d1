"""Ingest: turns a message into a request for the scheduler, in the link's thread.

All work that grows with the prompt is done here, not between steps. Threads share the interpreter: hashing, which
loops, pauses for the step's thread.
"""

import logging
from dataclasses import dataclass
from typing import Final

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.scheduling.endings import error_output
from kvasir.engine.scheduling.token_budget import REQUEST_TOKENS, RequestRefused, TokenBudget
from kvasir.link.protocol import AddRequest, RefusalKind, RequestOutput
from kvasir.process.seldom_log import SeldomLog
from kvasir.request.hashing import BLAKE2B, HASH_BYTES, chain_fits, packed_chain
from kvasir.request.params import BadParameter, check_token_ids
from kvasir.request.request_core import RequestKind
from kvasir.request.tokens import TOKEN_BYTES

log = logging.getLogger(__name__)

_WORK: Final = {
    RequestKind.GENERATE: "this engine generates text only",
    RequestKind.POOL: "this engine makes vectors and scores only",
}


@dataclass(frozen=True)
class RefusedRequest:
    frontend: str
    output: RequestOutput


class Ingest:
    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        cache_block_size: int | None,
        budget: TokenBudget,
        hash_algorithm: str = BLAKE2B,
        grammars: GrammarGate | None = None,
        kind: RequestKind = RequestKind.GENERATE,
        *,
        takes_adapters: bool = False,
    ) -> None:
        # `cache_block_size`: tokens; None without prefix cache
        self.vocab_size = vocab_size
        self._grammars = grammars
        self._kind = kind
        self._takes_adapters = takes_adapters
        self._max_model_len = max_model_len
        self._block_size = cache_block_size
        self._hash_algorithm = hash_algorithm
        self.budget = budget
        self._seldom = SeldomLog(log)

    def prepare(self, frontend: str, message: AddRequest) -> EngineRequest | RefusedRequest:
        if message.kind is RequestKind.UNKNOWN:  # an engine of the frontend's version may compute it
            reason = "this engine's version does not have the request's kind: update the engines"
            return RefusedRequest(frontend, error_output(message, reason, RefusalKind.UNAVAILABLE))
        if not self.budget.reserve(message.num_tokens, has_begun=message.age > 0):
            return RefusedRequest(frontend, error_output(message, self._why_full(), RefusalKind.OVERLOADED))
        try:
            return self._request(frontend, message)
        except RequestRefused as refusal:
            self.budget.release(message.num_tokens)
            return RefusedRequest(frontend, error_output(message, str(refusal), RefusalKind.INVALID))
        except Exception:  # a defect must end this request only
            log.exception("request %s could not be prepared", message.request_id)
            self.budget.release(message.num_tokens)
            reason = "the engine could not prepare the request: its log has the details"
            return RefusedRequest(frontend, error_output(message, reason, None))

    def release(self, request: EngineRequest) -> None:
        self.budget.release(request.num_tokens)
        if self._grammars is not None:
            self._grammars.ended(request)

    def _request(self, frontend: str, message: AddRequest) -> EngineRequest:
        if message.kind is not self._kind:
            raise RequestRefused(
                f"{_WORK[self._kind]}, and the request is of kind {message.kind}: start frontends and engines with "
                "the same --task"
            )
        if message.adapter is not None and not self._takes_adapters:
            raise RequestRefused(
                f"the request is for the adapter {message.adapter.name!r}, and this engine takes none: start it "
                "with --enable-lora"
            )
        self._check_length(message)
        self._check(message)
        request = EngineRequest(frontend, message, self._hash_algorithm)
        # A resumed request of the full length is complete: it needs no hashes.
        if self._block_size is not None and self._block_size <= request.num_tokens < self._max_model_len:
            request.packed_hashes = self._hashed(request, message, self._block_size)
        if message.constraint is not None:
            if self._grammars is None:
                raise RequestRefused("this engine takes no requests with a constraint for their output")
            self._grammars.begin(request, message.constraint)
        return request

    def _check_length(self, message: AddRequest) -> None:
        num_prompt_tokens = len(message.prompt_tokens) // TOKEN_BYTES
        if message.kind is RequestKind.POOL:
            if num_prompt_tokens > self._max_model_len:
                raise RequestRefused(
                    f"the input has {num_prompt_tokens} tokens and this engine computes at most "
                    f"{self._max_model_len}: shorten the input"
                )
            return
        # a resumed request ends instead
        if num_prompt_tokens >= self._max_model_len and not message.num_output_tokens:
            raise RequestRefused(
                f"the prompt has {num_prompt_tokens} tokens and this engine holds {self._max_model_len} of prompt "
                "and output together: shorten the prompt"
            )

    def _check(self, message: AddRequest) -> None:
        # Frontends of another version may have other bounds.
        highest = max(_highest(message.prompt_tokens), _highest(message.output_tokens))
        try:
            check_token_ids([highest], self.vocab_size, "prompt")
            message.params.check(self.vocab_size)
            if message.constraint is not None:
                check_token_ids(message.constraint.reasoning_end, self.vocab_size, "reasoning_end")
                if message.constraint.reasoning_start is not None:
                    check_token_ids([message.constraint.reasoning_start], self.vocab_size, "reasoning_start")
        except BadParameter as error:
            raise RequestRefused(str(error)) from error

    def _hashed(self, request: EngineRequest, message: AddRequest, block_size: int) -> bytes:
        """Return the hashes of all full blocks, from the message if they fit."""
        packed = message.block_hashes
        prompt = request.token_ids[: request.num_prompt_tokens]
        if not chain_fits(packed, request.chain_root, prompt, block_size):
            if packed:
                self._seldom.warning(
                    f"frontend {request.frontend} sends block hashes that do not fit their prompts: the engine "
                    f"hashes the prompts itself with {self._hash_algorithm} (are both of one version?)",
                    about=request.frontend,
                )
            packed = b""
        rest = request.token_ids[len(packed) // HASH_BYTES * block_size :]
        return packed + packed_chain(request.chain_root, rest, block_size, before=packed)

    def _why_full(self) -> str:
        return (
            f"the requests that wait in this engine count as {self.budget.held} tokens (their own, and "
            f"{REQUEST_TOKENS} for each request), and its limit is {self.budget.limit} (--max-queued-tokens): "
            "try again when some requests have finished"
        )


def _highest(tokens: bytes) -> int:
    import numpy as np  # here, because an engine sends Hello before its slow imports

    if len(tokens) % TOKEN_BYTES:
        raise RequestRefused(f"{len(tokens)} bytes are not a whole number of tokens of {TOKEN_BYTES} bytes")
    return int(np.frombuffer(tokens, "<u4").max()) if tokens else 0
