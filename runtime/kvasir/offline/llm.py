"""`LLM`: generates text with a model in this process."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, NotRequired, Self, TypedDict

import msgspec

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.input_processor import InputProcessor, Prompted
from kvasir.client.live_request import LiveRequest
from kvasir.client.text.detokenizer import Detokenizer
from kvasir.client.text.stop_strings import StopSearch
from kvasir.constraint import OutputConstraint
from kvasir.executor.torchrun.launched_rank import shows_results
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.request_body import parse
from kvasir.frontend.errors import ApiError
from kvasir.hub.located_model import read_model
from kvasir.hub.source import fetch, normalise
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.observability.progress import progress_bar
from kvasir.offline.engine_options import engine_config
from kvasir.offline.offline_engine import start_engine
from kvasir.offline.request_output import RequestOutput, request_output
from kvasir.offline.sampling_params import SamplingParams
from kvasir.worker.worker_calls import WorkerCall


class TextPrompt(TypedDict):
    """A prompt as text; the model's special tokens are added."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids. `prompt` is only returned with the output."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]


Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]

_KEYS: Final = frozenset({"prompt", "prompt_token_ids"})


@dataclass(frozen=True)
class _Request:
    """One prompt of a call, ready for the engine."""

    prompt: str | None
    prompted: Prompted
    n: int


class LLM:
    """One model, with its engine in this process. Use it in one thread at a time, and `close` it or use `with`.

    Answers are those of a service with the same options. Ctrl-C ends a call after the current step. If there are
    worker processes (`tensor_parallel_size=2`), they end with the thread that created the LLM.
    """

    def __init__(self, model: str, **engine_options: Any) -> None:
        """`model`: hf://org/name[@revision], a directory, or demo://. `engine_options`: those of `kvasir engine`
        for device, KV cache, scheduler and workers, with underscores, for example `max_model_len=4096`.

        Raises ConfigError (a ValueError) for options and models that cannot be used, ModelLoadError, and
        FailureError if a worker process fails.
        """
        config = engine_config(model, engine_options)
        self._shown = shows_results(config.executor)
        with progress_bar(f"fetching {model}", in_bytes=True, shown=self._shown) as progress:
            path = fetch(
                normalise(model),
                weights=config.device.load_format != "dummy",
                download_dir=config.model.download_dir,
                progress=progress,
            )
        info = read_model(config.model, path)
        tokenizer, templates = load_tokenizer(info.tokenizer_path), ChatTemplates.load(info.tokenizer_path)
        self._detokenizer = Detokenizer(tokenizer)
        engine = self._engine = start_engine(config, info)
        self._input = InputProcessor(
            info,
            tokenizer,
            templates,
            lambda: engine.settings.max_model_len,
            max_queued=1,
            takes_priority=lambda: engine.settings.scheduling_policy == "priority",
        )
        self._numbers = itertools.count()
        seed = engine.seed if config.model.seed is None else config.model.seed
        self._seeds = None if seed is None else random.Random(seed)
        self._running = threading.Lock()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt: a text, {"prompt": text} or {"prompt_token_ids": [...]}; one, or a list of them.

        `sampling_params`: for all prompts, or one for each. `use_tqdm`: show progress if standard error is a
        terminal. Raises ValueError for a prompt or parameters that cannot be used, before anything is computed.
        """
        several = _listed(prompts)
        asked = _for_each(sampling_params, len(several))
        requests = [
            _at(index, partial(self._completion, prompt, params))
            for index, (prompt, params) in enumerate(zip(several, asked, strict=True))
        ]
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, a list of {"role": ..., "content": ...}, or each of a list of conversations.

        The further arguments are the fields of POST /v1/chat/completions. Raises as `generate` does.
        """
        several: Sequence[Any] = messages if messages and _is_list(messages[0]) else [messages]
        options = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
        }
        asked = _for_each(sampling_params, len(several))
        requests = [
            _at(index, partial(self._chat, {"messages": [*chat], **options}, params))
            for index, (chat, params) in enumerate(zip(several, asked, strict=True))
        ]
        return self._run(requests, use_tqdm)

    def collective_rpc(
        self, method: str, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker, and return the results in the order of the ranks.

        `method`: the name of a method with the mark `worker_call`, of the class in `worker_cls` or
        `worker_extension_cls`. Arguments and results must be of types that msgpack has. Raises TypeError for other
        arguments, RuntimeError with the error of each worker that fails, and FailureError if a worker ends.
        """
        if not isinstance(method, str):
            raise TypeError(f"method is of type {type(method).__name__}: give the name of a worker's method")
        call = WorkerCall.of(method, *args, **dict(kwargs or {}))
        with self._alone():
            results = self._engine.call(call)
        errors = [f"on worker {rank}: {result.error}" for rank, result in enumerate(results) if result.error]
        if errors and len(results) == 1:  # it is not worker 0 in each process of torchrun
            raise RuntimeError(f"{method} failed: {results[0].error}")
        if errors:
            raise RuntimeError(f"{method} failed {'; '.join(errors)}")
        return [result.value for result in results]

    def close(self) -> None:
        """Free the model. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._input.close()
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ requests

    def _completion(self, prompt: Prompt, params: SamplingParams) -> _Request:
        text, token_ids = _parts(prompt)
        if token_ids is None:
            token_ids = self._input.encode(text or "")
        return self._request(text, token_ids, params)

    def _chat(self, fields: dict[str, Any], params: SamplingParams) -> _Request:
        body = parse(ChatRequest, fields, strict=True)
        body.check()
        text = self._input.chat_text(body.template_messages(), **body.template_variables())
        return self._request(text, self._input.encode_chat(text), params)

    def _request(self, text: str | None, token_ids: Sequence[int], params: SamplingParams) -> _Request:
        if self._seeds is not None and params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        structured = params.structured_outputs
        prompted = self._input.prepare(
            token_ids,
            params,
            max_tokens=params.max_tokens,
            logprobs=params.logprobs,
            constraint=None if structured is None else OutputConstraint(structured.source().grammar()),
        )
        return _Request(text, prompted, params.n)

    def _live(self, request_id: str, prompted: Prompted) -> LiveRequest:
        return LiveRequest(
            request_id,
            prompted.prompt_token_ids,
            prompted.params,
            self._detokenizer.stream(
                prompted.prompt_token_ids, prompted.skip_special_tokens, prompted.spaces_between_special_tokens
            ),
            stops=None if prompted.stops is None else StopSearch(prompted.stops, prompted.include_stop),
            include_stop=prompted.include_stop,
            constraint=prompted.constraint,
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise RuntimeError if this LLM is closed or in use by another thread."""
        if self._closed:
            raise RuntimeError("this LLM is closed: create a new one")
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this LLM is running in another thread: give it all prompts in one call")
        try:
            yield
        finally:
            self._running.release()

    def _run(self, requests: Sequence[_Request], use_tqdm: bool) -> list[RequestOutput]:
        with self._alone():
            names = [str(next(self._numbers)) for _ in requests]
            choices = [
                [self._live(f"{name}-{index}", request.prompted.child(index)) for index in range(request.n)]
                for name, request in zip(names, requests, strict=True)
            ]
            everything = [live for lives in choices for live in lives]
            with progress_bar("requests", shown=use_tqdm and self._shown) as progress:
                deltas = iter(self._engine.run(everything, progress))
        return [
            request_output(name, request.prompt, [(live, next(deltas)) for live in lives], self._detokenizer)
            for name, request, lives in zip(names, requests, choices, strict=True)
        ]


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    return [prompts] if isinstance(prompts, str | Mapping) else prompts


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _parts(prompt: Prompt) -> tuple[str | None, Sequence[int] | None]:
    """Return the text and the tokens of a prompt; at least one of them."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, Mapping):
        raise ValueError(
            f'a prompt of type {type(prompt).__name__}: give a text, or token ids as {{"prompt_token_ids": [...]}}'
        )
    if unknown := prompt.keys() - _KEYS:
        raise ValueError(f"a prompt has no key {sorted(unknown)[0]!r}: give prompt or prompt_token_ids")
    values: Mapping[str, Any] = prompt
    text, token_ids = values.get("prompt"), values.get("prompt_token_ids")
    if not isinstance(text, str | None) or (text is None and token_ids is None):
        raise ValueError("a prompt needs a text as its prompt, or a list of integers as its prompt_token_ids")
    if token_ids is None:
        return text, None
    if not isinstance(token_ids, Sequence) or not all(type(each) is int for each in token_ids):
        raise ValueError("prompt_token_ids is not a list of integers")
    return text, token_ids


def _for_each(asked: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if asked is None:
        asked = SamplingParams()
    if isinstance(asked, SamplingParams):
        return [asked] * count
    if len(asked) != count:
        raise ValueError(f"{len(asked)} sampling_params for {count} prompts: give one for all, or one for each")
    return asked


def _at(index: int, make: Callable[[], _Request]) -> _Request:
    """Return the request, or raise its error with the index of the prompt."""
    try:
        return make()
    except (ValueError, ApiError) as error:
        raise ValueError(f"prompt {index}: {error}") from None
