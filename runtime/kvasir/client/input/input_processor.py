"""Makes requests for engines from users' requests, and rejects mistakes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.fair_queue import FairQueue
from kvasir.client.input.grammar_source import GrammarSource
from kvasir.client.input.pooling_input import pooling_input
from kvasir.client.input.prompted import Prompted, PromptHashes
from kvasir.client.input.sampling import Sampling, check_in_vocabulary
from kvasir.client.request_errors import InvalidRequest, TooManyRequests
from kvasir.client.service_limits import ServiceLimits
from kvasir.hub.chat_templates.chat_template import (
    RENDER_SECONDS,
    ChatTemplateError,
    ChatTemplateTooSlow,
    count_values,
)
from kvasir.hub.chat_templates.quoted_tokens import QuotedTokens
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.process.words import count
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import Grammar, OutputConstraint
from kvasir.request.hashing import BlockHashing
from kvasir.request.params import SamplingFields
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import token_array

# Larger texts, tokens and chats are converted in a thread.
INLINE_CHARACTERS: Final = 2048
INLINE_TOKENS: Final = 2048
INLINE_MESSAGES: Final = 32
INLINE_VARIABLES: Final = 64  # values for the template
INLINE_SECONDS: Final = 0.02  # of CPU; then a thread renders again
MACRO_DEPTH: Final = 4  # how often a template may write one text, through macros
PROMPT_TAIL_TOKENS: Final = 32  # fits a role and marks of the reasoning
THREADS: Final = 2
NOTHING_ASKED: Final = SamplingFields()

Result = TypeVar("Result")


class InputProcessor:
    """Tokenizes and validates. `check_rank` raises InvalidRequest; it and `limits` depend on the engines."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        chat_templates: ChatTemplates,
        limits: ServiceLimits,
        max_queued: int,
        check_rank: Callable[[int], None] = lambda rank: None,
        seed: int | None = None,
    ) -> None:
        self.vocab_size = model.vocab_size
        self._sampling = Sampling(model, tokenizer, seed)
        self._max_new_tokens = model.max_new_tokens
        self._tokenizer = tokenizer
        self._chat_templates = chat_templates
        self._quoted = QuotedTokens(tokenizer) if chat_templates.quotes_special_tokens else None
        self._limits = limits
        self._max_queued = max_queued
        self._check_rank = check_rank
        self.pooling = pooling_input(model, tokenizer, chat_templates, limits, check_rank)
        self._queued = 0
        self._turns = FairQueue(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    async def tokenize(self, text: str, add_special_tokens: bool = True, keep: int | None = None) -> list[int]:
        """Return a text's last `keep` tokens. Raises InvalidRequest, TooManyRequests."""
        return await self._run(
            lambda: self.encode(text, add_special_tokens, "prompt", keep), inline=len(text) <= INLINE_CHARACTERS
        )

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Raises InvalidRequest, TooManyRequests."""
        if not token_ids:
            return ""
        if len(token_ids) > (limit := self._limits.max_model_len):
            raise InvalidRequest(
                f"{len(token_ids)} tokens are more than the context of {limit} holds: send them in parts", "tokens"
            )
        check_in_vocabulary(token_ids, self.vocab_size, "tokens")
        return await self._run(
            lambda: self._tokenizer.decode(token_ids, skip_special_tokens),
            inline=len(token_ids) <= INLINE_TOKENS,
        )

    def prompt_tail(self, token_ids: Sequence[int]) -> str:
        """Return the text with which a chat template begins the answer, with special tokens."""
        return self._tokenizer.decode(token_ids[-PROMPT_TAIL_TOKENS:], skip_special_tokens=False)

    async def compute(self, work: Callable[[], Result], *, inline: bool) -> Result:
        """Run `work`, in a thread unless `inline`. Raises its errors, and TooManyRequests."""
        return await self._run(work, inline=inline)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's name in the vocabulary, or ""."""
        return [self._tokenizer.backend.id_to_token(token_id) or "" for token_id in token_ids]

    async def render_chat(
        self, messages: list[dict[str, Any]], keep: int | None = None, /, **kwargs: Any
    ) -> list[int]:
        """Return a conversation's last `keep` tokens. Raises InvalidRequest, TooManyRequests."""
        template = kwargs.get("chat_template")
        text = await self._rendered(messages, kwargs)
        if len(text) <= INLINE_CHARACTERS:
            return self.encode_chat(text, keep, template)
        return await self._run(lambda: self.encode_chat(text, keep, template), inline=False)

    def encode_chat(self, text: str, keep: int | None = None, chat_template: str | None = None) -> list[int]:
        """Return the tokens of a text from `chat_text`."""
        # a template writes special tokens itself
        add_special_tokens = self._chat_templates.is_plain_for(chat_template)
        return self._encode(self._quoted or self._tokenizer, text, add_special_tokens, "messages", keep)

    def encode(
        self, text: str, add_special_tokens: bool = True, param: str = "prompt", keep: int | None = None
    ) -> list[int]:
        """Run `tokenize` in this thread. `param`: the field with the text."""
        return self._encode(self._tokenizer, text, add_special_tokens, param, keep)

    def _encode(
        self, tokenizer: Tokenizer | QuotedTokens, text: str, add_special_tokens: bool, param: str, keep: int | None
    ) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the text holds half of a surrogate pair (\\ud800 to \\udfff): send complete characters", param
            ) from None
        self._check_length(len(text), param)
        return tokenizer.encode(text, add_special_tokens, keep)

    async def _rendered(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        # Most chats take less time than a change of threads, but a request's own template must be compiled.
        few = len(messages) <= INLINE_MESSAGES and count_values(variables, INLINE_VARIABLES) <= INLINE_VARIABLES
        if few and variables.get("chat_template") is None:
            with suppress(ChatTemplateTooSlow):
                return self._chat_text(messages, variables, INLINE_SECONDS)
        return await self._run(lambda: self.chat_text(messages, **variables), inline=False)

    def chat_text(self, messages: list[dict[str, Any]], /, **kwargs: Any) -> str:
        """Return a conversation's text. Raises InvalidRequest."""
        try:
            return self._chat_text(messages, kwargs, RENDER_SECONDS)
        except ChatTemplateTooSlow as error:
            raise InvalidRequest(f"the model's chat template was stopped: {error}", "messages") from None

    def _chat_text(self, messages: list[dict[str, Any]], variables: dict[str, Any], seconds: float) -> str:
        self._check_length(sum(map(_length_of, messages)), "messages")
        if self._quoted is not None:
            messages = [{**self._quoted.quoted(message), "role": message.get("role")} for message in messages]
            variables = {**variables, "tools": self._quoted.quoted(variables.get("tools"))}
        characters = MACRO_DEPTH * self._limits.max_model_len * self._tokenizer.longest_token + INLINE_CHARACTERS
        try:
            return self._chat_templates.render(messages, seconds, characters, **variables)
        except ChatTemplateTooSlow:
            raise
        except ChatTemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses the messages: {error}", "messages") from None

    def prepare(
        self,
        prompt_token_ids: Sequence[int],
        asked: SamplingFields = NOTHING_ASKED,
        *,
        max_tokens: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        priority: int = 0,
        cache_salt: str = "",
        data_parallel_rank: int | None = None,
        constraint: OutputConstraint | None = None,
        adapter: Adapter | None = None,
    ) -> Prompted:
        """Return a complete request. Raises InvalidRequest.

        `max_tokens`: None for generation_config.json or the context. `prompt_logprobs`: in addition to those of
        `asked`.
        """
        self._check_prompt(prompt_token_ids)
        self._limits.check_priority(priority)
        if data_parallel_rank is not None:
            self._check_rank(data_parallel_rank)
        max_tokens = self._max_tokens(len(prompt_token_ids), max_tokens, asked.min_tokens)
        if prompt_logprobs is None or (asked.prompt_logprobs or 0) > prompt_logprobs:
            prompt_logprobs = asked.prompt_logprobs
        token_ids = token_array(prompt_token_ids)
        params = self._sampling.params(asked, max_tokens, logprobs, prompt_logprobs)
        core = RequestCore(params, priority, cache_salt, constraint, adapter=adapter)
        return Prompted(
            token_ids,
            core,
            stops=self._sampling.stops(asked.stop),
            include_stop=asked.include_stop_str_in_output,
            skip_special_tokens=asked.skip_special_tokens,
            spaces_between_special_tokens=asked.spaces_between_special_tokens,
            hashes=PromptHashes(token_ids, cache_salt, core.adapter_digest),
            data_parallel_rank=data_parallel_rank,
        )

    async def grammar(self, source: GrammarSource | None) -> Grammar | None:
        """Raises InvalidRequest, TooManyRequests."""
        if source is None:
            return None
        return await self._run(source.grammar, inline=source.is_small)

    async def constraint(self, source: GrammarSource | None) -> OutputConstraint | None:
        """Return a constraint on the whole output. Raises as `grammar` does."""
        grammar = await self.grammar(source)
        return None if grammar is None else OutputConstraint(grammar)

    async def hash_blocks(self, prompted: Prompted, hashings: Iterable[BlockHashing]) -> None:
        if prompted.hashes is not None:
            await prompted.hashes.make(hashings, self._threads)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------ texts

    async def _run(self, work: Callable[[], Result], *, inline: bool) -> Result:
        if inline:
            return work()
        with self._in_queue():
            async with self._turns.turn():
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

    # ------------------------------------------------------------------------------------------ limits

    def _check_length(self, length: int, param: str) -> None:
        """Raise InvalidRequest for a text that cannot fit, before its tokenization: megabytes take minutes."""
        limit = self._limits.max_model_len
        characters = limit * self._tokenizer.longest_token
        if length > characters:
            raise InvalidRequest(
                f"{_maximum(limit)}, {characters} characters at the very most, and the prompt is too long: it has "
                f"{length} characters. Shorten it",
                param,
                "context_length_exceeded",
            )

    def _check_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        if not prompt_token_ids:
            raise InvalidRequest("the prompt is empty: it needs at least one token", "prompt")
        check_in_vocabulary(prompt_token_ids, self.vocab_size, "prompt")

    def _max_tokens(self, prompt_length: int, asked: int | None, least: int) -> int:
        limit = self._limits.max_model_len
        left = limit - prompt_length
        if asked is not None and asked < 1:
            raise InvalidRequest(f"max_tokens is {asked}: ask for at least 1 token", "max_tokens")
        if left < 1:
            raise InvalidRequest(
                f"{_maximum(limit)}, the answer included, and the prompt is too long: it has "
                f"{count(prompt_length, 'token')}. Shorten it to at most {count(limit - 1, 'token')}",
                "prompt",
                "context_length_exceeded",
            )
        if asked is not None and asked > left:
            raise InvalidRequest(
                f"{_maximum(limit)}, and the prompt is too long for an answer of {count(asked, 'token')}: "
                f"it has {count(prompt_length, 'token')}. Lower max_tokens to at most {left}, leave it out, or "
                "shorten the prompt",
                "max_tokens",
                "context_length_exceeded",
            )
        return min(left, max(least, self._max_new_tokens or left)) if asked is None else asked


def _length_of(message: dict[str, Any]) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)


def _maximum(limit: int) -> str:
    # litellm detects an overflow by these words, LangChain by "prompt is too long"
    return f"this model's maximum context length is {limit} tokens"
