"""Turn prompts and conversations of an offline call into requests for the engine."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict

import msgspec

from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.input.prompted import Prompted
from kvasir.client.live_request import LiveRequest
from kvasir.client.text.detokenizer import Detokenizer, NoText
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.errors import ApiError
from kvasir.frontend.request_bodies.request_body import parse
from kvasir.offline.engine_options import in_python
from kvasir.offline.lora_request import AdapterOfPrompt, LoRARequest
from kvasir.offline.sampling_params import SamplingParams
from kvasir.request.constraint import OutputConstraint


class TextPrompt(TypedDict):
    """A prompt as text; the model's special tokens are added."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. `prompt` is only returned with the output."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
_KEYS: Final = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
_NOT_YET: Final = frozenset({"multi_modal_data", "prompt_embeds", "encoder_prompt", "decoder_prompt"})


@dataclass(frozen=True)
class PreparedRequest:
    prompt: str | None
    prompted: Prompted
    params: SamplingParams
    lora_request: LoRARequest | None = None


@dataclass(frozen=True)
class PromptOptions:
    priority: int = 0
    add_special_tokens: bool = True
    lora: AdapterOfPrompt | None = None

    @classmethod
    def of(
        cls, priority: int, tokenization: Mapping[str, Any] | None, lora: AdapterOfPrompt | None = None
    ) -> "PromptOptions":
        """Return the options. `tokenization`: vLLM's tokenization_kwargs. Raises ValueError for unknown ones."""
        fields = dict(tokenization or {})
        special = fields.pop("add_special_tokens", True)
        if given := [name for name, value in fields.items() if value not in (None, False)]:
            raise ValueError(
                f"tokenization_kwargs: {given[0]} is not supported: give add_special_tokens, and "
                "truncate_prompt_tokens in SamplingParams"
            )
        return cls(priority, bool(special), lora)

    @classmethod
    def for_each(
        cls,
        priority: Sequence[int] | None,
        tokenization: Mapping[str, Any] | None,
        adapters: Sequence[AdapterOfPrompt | None],
    ) -> list["PromptOptions"]:
        """Raises ValueError."""
        count = len(adapters)
        if priority is not None and len(priority) != count:
            raise ValueError(f"{len(priority)} priorities for {count} prompts: give one for each")
        several = zip(priority or [0] * count, adapters, strict=True)
        return [cls.of(each, tokenization, adapter) for each, adapter in several]


class RequestBuilder:
    """A builder of requests for one thread at a time."""

    def __init__(self, input: InputProcessor, detokenizer: Detokenizer, max_model_len: Callable[[], int]) -> None:
        self._input = input
        self._detokenizer = detokenizer
        self._max_model_len = max_model_len
        # Prompts without a seed get one from here; None: a random one.
        self.seeds: random.Random | None = None
        self._fresh = itertools.count()

    def completion(self, prompt: Prompt, params: SamplingParams, options: PromptOptions) -> PreparedRequest:
        """Raises ValueError and ApiError."""
        text, token_ids, salt = parts_of(prompt)
        keep = self._kept(params)
        if token_ids is None:
            token_ids = self._input.encode(text or "", options.add_special_tokens, "prompt", keep)
        elif keep is not None:
            token_ids = token_ids[-keep:]
        return self._request(text, token_ids, params, options, salt)

    def chat(
        self, fields: Mapping[str, Any], params: SamplingParams, lora: AdapterOfPrompt | None
    ) -> PreparedRequest:
        """Return the request of a body of POST /v1/chat/completions. Raises ValueError and ApiError."""
        body = parse(ChatRequest, fields, strict=True)
        body.check()
        variables = body.template_variables()
        variables["tools"] = body.tool_use().for_template
        text = self._input.chat_text(body.template_messages(), **variables)
        token_ids = self._input.encode_chat(text, self._kept(params), body.chat_template)
        return self._request(text, token_ids, params, PromptOptions(lora=lora))

    def live(self, request_id: str, prepared: PreparedRequest, index: int) -> LiveRequest:
        prompted = prepared.prompted.child(index)
        text = prompted.text(self._detokenizer) if prepared.params.detokenize else NoText()
        return LiveRequest(request_id, prompted, text)

    def _kept(self, params: SamplingParams) -> int | None:
        # None: all.
        if params.truncate_prompt_tokens == -1:
            return max(1, self._max_model_len() - (params.max_tokens or 1))
        return params.truncate_prompt_tokens

    def _request(
        self,
        text: str | None,
        token_ids: Sequence[int],
        params: SamplingParams,
        options: PromptOptions,
        salt: str = "",
    ) -> PreparedRequest:
        params.check()  # it may have been changed
        left, max_tokens, asked = self._max_model_len() - len(token_ids), params.max_tokens, params
        if max_tokens is None or max_tokens >= left:  # the output ends with the context, as in vLLM
            if max_tokens is None or params.min_tokens <= max_tokens:
                asked = msgspec.structs.replace(params, min_tokens=min(params.min_tokens, max(left, 0)))
            max_tokens = None
        if self.seeds is not None and params.seed is None:
            asked = msgspec.structs.replace(asked, seed=self.seeds.getrandbits(63))
        if params.skip_reading_prefix_cache:
            salt = f"{salt}-fresh-{next(self._fresh)}"  # the same in all processes of torchrun
        structured = params.structured_outputs
        prompted = self._input.prepare(
            token_ids,
            asked,
            max_tokens=max_tokens,
            logprobs=params.logprobs,
            priority=options.priority,
            cache_salt=salt,
            constraint=None if structured is None else OutputConstraint(structured.source().grammar()),
            adapter=None if options.lora is None else options.lora.adapter,
        )
        return PreparedRequest(text, prompted, params, None if options.lora is None else options.lora.request)


def prepared(index: int, make: Callable[[], PreparedRequest]) -> PreparedRequest:
    # An error names the prompt by its index.
    try:
        return make()
    except (ValueError, ApiError) as error:
        raise ValueError(f"prompt {index}: {in_python(str(error))}") from None


def listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    return [prompts] if isinstance(prompts, str | Mapping) else prompts  # type: ignore[return-value]


def for_each(asked: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """Return the parameters of each prompt. Raises ValueError."""
    if asked is None:
        asked = SamplingParams()
    if isinstance(asked, SamplingParams):
        return [asked] * count
    if not (isinstance(asked, Sequence) and all(isinstance(each, SamplingParams) for each in asked)):
        raise TypeError(f"sampling_params is of type {type(asked).__name__}: give SamplingParams, or a list")
    if len(asked) != count:
        raise ValueError(f"{len(asked)} sampling_params for {count} prompts: give one for all, or one for each")
    return asked


def parts_of(prompt: Prompt) -> tuple[str | None, Sequence[int] | None, str]:
    """Return the text, the tokens and the cache salt of a prompt; at least one of the first two."""
    if isinstance(prompt, str):
        return prompt, None, ""
    if isinstance(prompt, list | tuple) and all(type(each) is int for each in prompt):
        return None, prompt, ""
    if not isinstance(prompt, Mapping):
        raise ValueError(
            f'a prompt of type {type(prompt).__name__}: give a text, or token ids as {{"prompt_token_ids": [...]}}'
        )
    values: Mapping[str, Any] = {name: value for name, value in prompt.items() if value is not None}
    for name in values.keys() & _NOT_YET:
        raise ValueError(f"{name} is not supported yet: prompts are texts or token ids")
    if unknown := values.keys() - _KEYS:
        raise ValueError(f"a prompt has no key {sorted(unknown)[0]!r}: give prompt or prompt_token_ids")
    text, token_ids, salt = values.get("prompt"), values.get("prompt_token_ids"), values.get("cache_salt", "")
    if not isinstance(salt, str):
        raise ValueError("cache_salt is not a text")
    if not isinstance(text, str | None) or (text is None and token_ids is None):
        raise ValueError("a prompt needs a text as its prompt, or a list of integers as its prompt_token_ids")
    if token_ids is None:
        return text, None, salt
    if not isinstance(token_ids, Sequence) or not all(type(each) is int for each in token_ids):
        raise ValueError("prompt_token_ids is not a list of integers")
    return text, token_ids, salt
