"""`LLM`: generate text with a model in this process."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from kvasir.client.input.prompted import Prompted
from kvasir.client.live_request import Delta, LiveRequest
from kvasir.client.text.detokenizer import NoText
from kvasir.offline.beam_search import BeamSearches, BeamSearchOutput, BeamSearchParams
from kvasir.offline.llm_engine import LLMEngine
from kvasir.offline.lora_request import LoRARequest, LoRARequests
from kvasir.offline.metric_values import Metric
from kvasir.offline.pooling_calls import Classified, Embedded, Encoded, PoolingCalls, PoolingParams, Prompts, Scored
from kvasir.offline.request_builder import PreparedRequest, Prompt, PromptOptions, for_each, listed, prepared
from kvasir.offline.request_output import RequestOutput, request_output
from kvasir.offline.sampling_params import SamplingParams
from kvasir.process.progress import progress_bar
from kvasir.worker.worker_calls import WorkerCall

Message = Mapping[str, Any]

# methods of vLLM that are missing, and why
_NOT_YET: Final = {
    "reward": "it is not needed: encode has the scores of a reward model, and classify those of other labels",
    **dict.fromkeys(("sleep", "wake_up"), "a sleep mode is not supported yet: close() frees the memory"),
    "apply_model": "functions are not sent to workers: see collective_rpc",
}


class LLM:
    """One model with its engine in this process. Close it, and use it in one thread at a time.

    Ctrl-C ends a call after the current step. Worker processes end with the thread that created the LLM.
    """

    def __init__(
        self, model: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None, **engine_options: Any
    ) -> None:
        """Load hf://org/name[@revision], a directory, a GGUF file, or demo://.

        `engine_options`: options of `kvasir engine` with underscores, such as `max_model_len=4096`, and vLLM's.
        Raises ConfigError (a ValueError) for unusable options and models, ModelLoadError, and FailureError if a
        worker process fails.
        """
        if tokenizer is not None:
            engine_options["tokenizer"] = os.fspath(tokenizer)
        self.llm_engine = LLMEngine(model, **engine_options)
        self._engine = self.llm_engine.engine
        self._builder = self.llm_engine.builder
        self._numbers = itertools.count()
        self._pooling = PoolingCalls(self.llm_engine.input, self._run_pooling, self._numbers)
        self._running = threading.Lock()

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> Self:
        return cls(**vars(engine_args))

    def __getattr__(self, name: str) -> Any:
        reason = f": {_NOT_YET[name]}" if name in _NOT_YET else ""
        raise AttributeError(f"LLM has no attribute {name!r}{reason}")

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Continue one prompt or a list: a text, {"prompt": text} or {"prompt_token_ids": [...]}.

        `sampling_params`, `lora_request`: for all prompts, or one for each. `priority`: of each prompt, smallest
        first, with scheduling_policy="priority". Raises ValueError before any computation.
        """
        self.llm_engine.check_generates()
        several = listed(prompts)
        asked = for_each(sampling_params, len(several))
        adapters = self.llm_engine.lora_adapters(lora_request, len(several))
        options = PromptOptions.for_each(priority, tokenization_kwargs, adapters)
        requests = [
            prepared(index, partial(self._builder.completion, prompt, asked[index], options[index]))
            for index, prompt in enumerate(several)
        ]
        return self._run(requests, bool(use_tqdm))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, a list of {"role": ..., "content": ...}, or each of a list of conversations.

        `chat_template`: replaces the model's. `tools`: functions in OpenAI's form; calls are part of the answer's
        text. Other arguments are fields of POST /v1/chat/completions. Raises as `generate` does.
        """
        self.llm_engine.check_generates()
        if chat_template_content_format != "auto":
            raise ValueError("chat_template_content_format is an argument of LLM(...) here: give it there")
        if mm_processor_kwargs:
            raise ValueError("mm_processor_kwargs is not supported: models take text only")
        several: Sequence[Any] = messages if messages and _is_list(messages[0]) else [messages]
        fields = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template": chat_template,
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
            "tools": None if tools is None else [dict(tool) for tool in tools],
        }
        asked = for_each(sampling_params, len(several))
        adapters = self.llm_engine.lora_adapters(lora_request, len(several))
        requests = [
            prepared(index, partial(self._builder.chat, {"messages": [*chat], **fields}, params, lora=lora))
            for index, (chat, params, lora) in enumerate(zip(several, asked, adapters, strict=True))
        ]
        return self._run(requests, bool(use_tqdm))

    def beam_search(
        self,
        prompts: Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the `params.beam_width` most likely continuations of each prompt, the best first.

        `concurrency_limit`: prompts in computation at once. Raises as `generate` does.
        """
        self.llm_engine.check_generates()
        several = listed(prompts)
        searches = BeamSearches(self.llm_engine, params, self.llm_engine.lora_adapter(lora_request))
        requests = [prepared(index, partial(searches.prepare, prompt)) for index, prompt in enumerate(several)]
        with self._alone(), progress_bar("prompts", shown=use_tqdm and self.llm_engine.shows_progress) as progress:
            return searches.run(requests, concurrency_limit or max(1, len(requests)), progress)

    def embed(
        self, prompts: Prompts, *, pooling_params: PoolingParams | None = None, use_tqdm: bool = True
    ) -> Embedded:
        """Return a vector for each prompt. Raises ValueError for a model of another task, as the next three do."""
        return self._pooling.embed(prompts, pooling_params)

    def classify(
        self, prompts: Prompts, *, pooling_params: PoolingParams | None = None, use_tqdm: bool = True
    ) -> Classified:
        """Return the probabilities of the model's labels for each prompt."""
        return self._pooling.classify(prompts, pooling_params)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> Scored:
        """Return how well texts fit each other: one with any number, or in pairs."""
        return self._pooling.score(data_1, data_2, pooling_params)

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
    ) -> Encoded:
        """Return the vector or the scores of each prompt as an array. `pooling_task`: vLLM's."""
        return self._pooling.encode(prompts, pooling_params, pooling_task)

    def collective_rpc(
        self,
        method: str,
        timeout: None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker, and return the results by rank.

        `method`: a method with the mark `worker_call`, of the class in `worker_cls` or `worker_extension_cls`.
        Arguments and results have msgpack's types. Raises TypeError for other arguments, RuntimeError with the
        error of each failed worker, and FailureError if a worker ends.
        """
        if not isinstance(method, str):
            raise TypeError(f"method is of type {type(method).__name__}: give the name of a worker's method")
        if timeout is not None:
            raise ValueError("timeout is not supported: leave it out; worker_timeout is an argument of LLM(...)")
        call = WorkerCall.of(method, *args, **dict(kwargs or {}))
        with self._alone():
            results = self._engine.call(call)
        errors = [f"on worker {rank}: {result.error}" for rank, result in enumerate(results) if result.error]
        if errors and len(results) == 1:  # it is not worker 0 in each process of torchrun
            raise RuntimeError(f"{method} failed: {results[0].error}")
        if errors:
            raise RuntimeError(f"{method} failed {'; '.join(errors)}")
        return [result.value for result in results]

    def get_default_sampling_params(self) -> SamplingParams:
        """Return new parameters with the defaults of generation_config.json."""
        defaults = self.llm_engine.model.generation_defaults
        return SamplingParams(**{k: v for k, v in defaults.items() if k in SamplingParams.__struct_fields__})  # type: ignore[arg-type]

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer of transformers."""
        return self.llm_engine.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Return the metrics under vLLM's names. Raises RuntimeError without `disable_log_stats=False`."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache. Return False if running requests use it."""
        with self._alone():
            return self.llm_engine.reset_prefix_cache()

    def start_profile(self) -> None:
        """Raises RuntimeError without `profiler_config`."""
        with self._alone():
            self.llm_engine.call_profiler("start_profile")

    def stop_profile(self) -> None:
        """Write the profile. Raises RuntimeError if none was started."""
        with self._alone():
            self.llm_engine.call_profiler("stop_profile")

    def close(self) -> None:
        self.llm_engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise RuntimeError if this LLM is closed or in use by another thread."""
        if self.llm_engine.is_closed:
            raise RuntimeError("this LLM is closed: create a new one")
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this LLM is running in another thread: give it all prompts in one call")
        try:
            yield
        finally:
            self._running.release()

    def _run_pooling(self, prompts: Sequence[Prompted]) -> list[Delta]:
        with self._alone():
            requests = [LiveRequest(str(next(self._numbers)), each, NoText()) for each in prompts]
            return self._engine.run(requests, lambda done, total: None)

    def _run(self, requests: Sequence[PreparedRequest], use_tqdm: bool) -> list[RequestOutput]:
        with self._alone():
            names = [str(next(self._numbers)) for _ in requests]
            choices = [
                [self._builder.live(f"{name}-{index}", request, index) for index in range(request.params.n)]
                for name, request in zip(names, requests, strict=True)
            ]
            everything = [live for lives in choices for live in lives]
            with progress_bar("requests", shown=use_tqdm and self.llm_engine.shows_progress) as progress:
                deltas = iter(self._engine.run(everything, progress))
        detokenizer = self.llm_engine.detokenizer
        return [
            request_output(name, request, [(i, live, next(deltas)) for i, live in enumerate(lives)], detokenizer)
            for name, request, lives in zip(names, requests, choices, strict=True)
        ]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
