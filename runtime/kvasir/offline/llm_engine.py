"""`LLMEngine`: a model in this process for programs that make its steps themselves."""

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.live_request import Delta, LiveRequest, RequestState
from kvasir.client.service_limits import ServiceLimits
from kvasir.client.text.detokenizer import Detokenizer
from kvasir.executor.torchrun.launched_rank import shows_results
from kvasir.frontend.telemetry.metrics import Metrics
from kvasir.hub.located_model import read_model
from kvasir.hub.source import fetch, normalise
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.offline.engine_options import in_python, python_names, read_options
from kvasir.offline.lora_request import AdapterOfPrompt, LoRARequest, LoRARequests, OfflineAdapters
from kvasir.offline.metric_values import Metric, metric_values
from kvasir.offline.offline_engine import start_engine
from kvasir.offline.request_builder import PreparedRequest, Prompt, PromptOptions, RequestBuilder, prepared
from kvasir.offline.request_output import RequestOutput, merged, request_output
from kvasir.offline.sampling_params import RequestOutputKind, SamplingParams
from kvasir.process.progress import progress_bar


@dataclass
class _Running:
    prepared: PreparedRequest
    choices: list[LiveRequest]
    # By index. Outputs of kind DELTA are not kept.
    so_far: dict[int, Delta] = field(default_factory=dict)
    num_ended: int = 0


class LLMEngine:
    """One model in this process. Use it in one thread at a time."""

    def __init__(self, model: str | os.PathLike[str], **engine_options: Any) -> None:
        """Load the model. The arguments and errors are those of `LLM`."""
        if not isinstance(model, str | os.PathLike):
            raise TypeError(f"model is of type {type(model).__name__}: give the name of a model, or its directory")
        with python_names():
            self._start(os.fspath(model), engine_options)

    def _start(self, model: str, engine_options: Mapping[str, Any]) -> None:
        options = read_options(model, engine_options)
        config = options.engine
        self.shows_progress = shows_results(config.executor)
        with progress_bar(f"fetching {model}", in_bytes=True, shown=self.shows_progress) as progress:
            path = fetch(
                normalise(config.model.source),
                weights=config.device.load_format != "dummy",
                download_dir=config.model.download_dir,
                progress=progress,
            )
        self.model = read_model(config.model, path)
        tokenizer = load_tokenizer(self.model.tokenizer_path)
        templates = ChatTemplates.load(self.model.tokenizer_path, options.chats)
        self.detokenizer = Detokenizer(tokenizer)
        self._adapters = OfflineAdapters(config.lora, config.model.download_dir)
        self._metrics = Metrics(model) if options.has_metrics else None
        engine = self.engine = start_engine(config, self.model, self._metrics)
        self.input = InputProcessor(
            self.model,
            tokenizer,
            templates,
            ServiceLimits(
                engine.settings.max_model_len,
                takes_priority=engine.settings.scheduling_policy == "priority",
            ),
            max_queued=1,
        )
        self.builder = RequestBuilder(self.input, self.detokenizer, lambda: engine.settings.max_model_len)
        seed = engine.seed if config.model.seed is None else config.model.seed
        self.builder.seeds = None if seed is None else random.Random(seed)
        self._running: dict[str, _Running] = {}
        # By the id of the engine's request.
        self._of_request: dict[str, tuple[str, int]] = {}
        self.is_closed = False

    @classmethod
    def from_engine_args(cls, engine_args: Any, **_: Any) -> Self:
        # vLLM's further arguments have no effect.
        return cls(**vars(engine_args))

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt for the next steps. Raises ValueError if it cannot be used."""
        options = PromptOptions.of(priority, tokenization_kwargs, self.lora_adapter(lora_request))
        self._add(request_id, prepared(0, lambda: self.builder.completion(prompt, params, options)))

    def _add(self, request_id: str, request: PreparedRequest) -> None:
        if self.is_closed:
            raise RuntimeError("this engine is closed: create a new one")
        if request_id in self._running:
            raise ValueError(f"a request with id {request_id!r} is still running: choose another id")
        names = [f"{request_id}-{index}" for index in range(request.params.n)]
        choices = [self.builder.live(name, request, index) for index, name in enumerate(names)]
        self.engine.add(choices)
        self._running[request_id] = _Running(request, choices)
        self._of_request.update((name, (request_id, index)) for index, name in enumerate(names))

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Forget these prompts; ids of ended ones have no effect."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            if (running := self._running.get(each)) is not None:
                self.engine.abort(running.choices)
                self._forget(each)

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def get_num_unfinished_requests(self) -> int:
        return len(self._running)

    def step(self) -> list[RequestOutput]:
        """Compute a step, and return the new outputs. Raises the error of a prompt that fails and is forgotten."""
        outputs = self.advance()
        for output in outputs.values():
            if isinstance(output, Exception):
                raise output
        return [output for output in outputs.values() if isinstance(output, RequestOutput)]

    def advance(self) -> dict[str, RequestOutput | Exception]:
        """Compute a step, and return the new output or the error of each prompt by its id."""
        if not self.engine.has_work:
            return {}
        try:
            touched = self.engine.step()
        except BaseException:
            self._running.clear()
            self._of_request.clear()
            raise
        by_prompt: dict[str, list[tuple[int, LiveRequest]]] = {}
        for live in touched:
            if (place := self._of_request.get(live.request_id)) is not None:
                by_prompt.setdefault(place[0], []).append((place[1], live))
        outputs: dict[str, RequestOutput | Exception] = {}
        for request_id, choices in by_prompt.items():
            try:
                output = self._output(request_id, choices)
            except Exception as error:
                self.abort_request(request_id)
                outputs[request_id] = error
            else:
                if output is not None:
                    outputs[request_id] = output
        return outputs

    def _output(self, request_id: str, touched: list[tuple[int, LiveRequest]]) -> RequestOutput | None:
        running = self._running[request_id]
        kind, so_far = running.prepared.params.output_kind, running.so_far
        shown: list[tuple[int, LiveRequest, Delta]] = []
        for index, live in touched:
            running.num_ended += live.state is RequestState.FINISHED
            if kind is RequestOutputKind.FINAL_ONLY and live.state is not RequestState.FINISHED:
                continue  # its collector keeps the output
            if (delta := live.collector.take_now()) is None:
                continue
            if kind is not RequestOutputKind.DELTA:
                delta = so_far[index] = merged(so_far[index], delta) if index in so_far else delta
            shown.append((index, live, delta))
        is_last = running.num_ended == len(running.choices)
        if is_last:
            self._forget(request_id)
        if kind is RequestOutputKind.FINAL_ONLY:
            shown = [(i, live, so_far[i]) for i, live in enumerate(running.choices)] if is_last else []
        if not shown:
            return None
        return request_output(request_id, running.prepared, shown, self.detokenizer, is_last)

    def _forget(self, request_id: str) -> None:
        for live in self._running.pop(request_id).choices:
            self._of_request.pop(live.request_id, None)

    # ------------------------------------------------------------------------------------------------ the model

    def lora_adapter(self, request: LoRARequest | None) -> AdapterOfPrompt | None:
        """Return the adapter of a prompt. Raises ValueError."""
        return self._adapters.of(request)

    def lora_adapters(self, asked: LoRARequests, count: int) -> list[AdapterOfPrompt | None]:
        """Return the adapter of each prompt. Raises ValueError."""
        return self._adapters.for_each(asked, count)

    def check_generates(self) -> None:
        """Raise ValueError for a model that makes vectors or scores."""
        if self.input.pooling is not None:
            raise ValueError("this LLM makes vectors or scores: use embed, classify, score or encode")

    def get_tokenizer(self) -> Any:
        """Return the tokenizer as transformers has it. Raises ImportError and the errors of transformers."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model.tokenizer_path, local_files_only=True)

    def get_metrics(self) -> list[Metric]:
        """Return the metrics so far, under vLLM's names. Raises RuntimeError if they are switched off."""
        if self._metrics is None:
            raise RuntimeError("metrics are off: give disable_log_stats=False when you create the LLM")
        return metric_values(self._metrics.render().decode(), self.engine)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache. Return False if running requests use it."""
        return not self.engine.call_core("reset_prefix_cache").error

    def call_profiler(self, method: str) -> None:
        if error := self.engine.call_core(method).error:
            raise RuntimeError(in_python(error.removeprefix("CallError: ")))

    def close(self) -> None:
        """Free the model. A second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self.input.close()
            self.engine.close()
