"""From what a request says to what an engine gets: text to tokens, and sampling parameters that are complete.

The HTTP routes call it before AsyncLLM.generate; every mistake of a user is found here, as InvalidRequest.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvasir.client.errors import InvalidRequest, TooManyRequests
from kvasir.hub.chat_template import ChatTemplate, ChatTemplateError
from kvasir.hub.model import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.params import SamplingParams

INLINE_CHARACTERS: Final = 2048
"""Texts up to this length are tokenized on the event loop (a millisecond); longer ones in a thread."""
INLINE_MESSAGES: Final = 32
"""The same for the messages of a chat, whose template is Python code that loops over them."""
THREADS: Final = 2
MAX_STOP_TOKEN_IDS: Final = 64
"""An engine looks each token up among them."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Prompted:
    """A request that an engine can take as it is."""

    prompt_token_ids: list[int]
    params: SamplingParams


class InputProcessor:
    """Tokenizes and validates. `max_model_len` is asked each time: it depends on the engines that are ready."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        max_model_len: Callable[[], int],
        max_queued: int,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._max_model_len = max_model_len
        self._max_queued = max_queued
        self._queued = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    async def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text. Raises InvalidRequest for one that is no Unicode, TooManyRequests."""
        return await self._run(
            lambda: self._encode(text, add_special_tokens, "prompt"), inline=len(text) <= INLINE_CHARACTERS
        )

    async def render_chat(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """The tokens of a conversation in the model's chat template, which also gets `kwargs`.

        Raises InvalidRequest when the model has none or its template refuses the messages, TooManyRequests.
        """
        template = self._chat_template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template: send its prompt as text to /v1/completions", "messages"
            )

        def render() -> str:
            try:
                return template.render(messages, **kwargs)
            except ChatTemplateError as error:
                raise InvalidRequest(
                    f"the model's chat template refuses the messages: {error}", "messages"
                ) from None

        text = await self._run(render, inline=len(messages) <= INLINE_MESSAGES)
        # The template wrote the special tokens itself.
        return await self._run(lambda: self._encode(text, False, "messages"), inline=len(text) <= INLINE_CHARACTERS)

    def prepare(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
    ) -> Prompted:
        """A complete request: what is None is the model's own default (generation_config.json), the seed is random
        and `max_tokens` what is left of the context. Raises InvalidRequest."""
        self._check_prompt(prompt_token_ids)
        defaults = self._model.generation_defaults
        if temperature is None:
            temperature = defaults.get("temperature", 1.0)
        if top_p is None:
            top_p = defaults.get("top_p", 1.0)
        if top_k is None:
            top_k = int(defaults.get("top_k", 0))
        params = SamplingParams(
            max_tokens=self._max_tokens(len(prompt_token_ids), max_tokens),
            seed=_checked_seed(seed),
            temperature=_checked_temperature(temperature),
            top_p=_checked_top_p(top_p),
            # More than the vocabulary keeps all, and need not fit into an engine's 64 bits.
            top_k=min(_checked_top_k(top_k), self._model.vocab_size),
            stop_token_ids=self._checked_stop_token_ids(stop_token_ids),
            ignore_eos=ignore_eos,
        )
        return Prompted(list(prompt_token_ids), params)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------ texts

    async def _run(self, work: Callable[[], Result], *, inline: bool) -> Result:
        if inline:
            return work()
        with self._in_queue():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def _in_queue(self) -> Iterator[None]:
        if self._queued >= self._max_queued:
            raise TooManyRequests(f"{self._queued} long prompts wait to be tokenized: try again in a while", 1.0)
        self._queued += 1
        try:
            yield
        finally:
            self._queued -= 1

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the text holds half of a surrogate pair (\\ud800 to \\udfff): send complete characters", param
            ) from None
        self._check_length(text, param)
        return self._tokenizer.encode(text, add_special_tokens)

    # ------------------------------------------------------------------------------------------ limits

    def _check_length(self, text: str, param: str) -> None:
        """Before a text is tokenized: megabytes keep a thread, for which others wait, busy for minutes."""
        limit = self._max_model_len()
        characters = limit * self._tokenizer.longest_token
        if len(text) > characters:
            raise InvalidRequest(
                f"the prompt has {len(text)} characters, and the context of {limit} tokens holds {characters} of "
                "them at the very most: shorten the prompt",
                param,
                "context_length_exceeded",
            )

    def _check_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        if not prompt_token_ids:
            raise InvalidRequest("the prompt is empty: it needs at least one token", "prompt")
        self._check_in_vocabulary(prompt_token_ids, "prompt")

    def _check_in_vocabulary(self, token_ids: Sequence[int], param: str) -> None:
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._model.vocab_size:
                raise InvalidRequest(
                    f"{token_id} is no token of this model: ids go from 0 to {self._model.vocab_size - 1}", param
                )

    def _max_tokens(self, prompt_length: int, asked: int | None) -> int:
        limit = self._max_model_len()
        left = limit - prompt_length
        if asked is not None and asked < 1:
            raise InvalidRequest(f"max_tokens is {asked}: ask for at least 1 token", "max_tokens")
        if left < 1:
            raise InvalidRequest(
                f"the prompt has {prompt_length} tokens, and the context of {limit} tokens must also hold the "
                f"answer: shorten the prompt to at most {limit - 1} tokens",
                "prompt",
                "context_length_exceeded",
            )
        if asked is not None and asked > left:
            raise InvalidRequest(
                f"the prompt has {prompt_length} tokens and max_tokens asks for {asked} more, but the context is "
                f"{limit} tokens: lower max_tokens to at most {left}, leave it out, or shorten the prompt",
                "max_tokens",
                "context_length_exceeded",
            )
        return left if asked is None else asked

    def _checked_stop_token_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        if not token_ids:
            return ()
        if len(token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"{len(token_ids)} stop tokens are too many: give at most {MAX_STOP_TOKEN_IDS}", "stop_token_ids"
            )
        self._check_in_vocabulary(token_ids, "stop_token_ids")
        return tuple(dict.fromkeys(token_ids))


def _checked_temperature(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"temperature is {value}: give a number that is 0 (greedy) or more", "temperature")
    return float(value)


def _checked_top_p(value: float) -> float:
    if not 0 < value <= 1:
        raise InvalidRequest(f"top_p is {value}: give a number above 0 and at most 1", "top_p")
    return float(value)


def _checked_top_k(value: int) -> int:
    if value < -1:
        raise InvalidRequest(f"top_k is {value}: give 1 or more, or 0 or -1 to keep all tokens", "top_k")
    return max(value, 0)


def _checked_seed(value: int | None) -> int:
    if value is None:
        return secrets.randbits(64) - 2**63
    if not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"seed is {value}: give an integer of 64 bits, -2**63 to 2**63 - 1", "seed")
    return value
