"""An engine without frontends, whose model is computed by one process or split over several.

engine = SplitEngine(model, engine_settings(executor=ExecutorConfig(tensor_parallel_size=2)))
engine.add("a", [5, 6, 7], params)
engine.run()
assert engine.answers["a"] == expected
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvasir.config.resolve import ResolvedEngine
from kvasir.engine.build import build_core, prepare_workers
from kvasir.executor.executor import Executor
from kvasir.executor.executor_for import executor_for
from kvasir.hub.model_info import ModelInfo
from kvasir.link.protocol import AddRequest
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""
    logprobs: list[float] = field(default_factory=list, compare=False)
    """Tolerance for log probabilities, which several ranks round in another way."""
    prompt_logprobs: list[float] = field(default_factory=list, compare=False)


class SplitEngine:
    """Scheduler, executor and workers as an engine's process has them."""

    def __init__(self, model: ModelInfo, settings: ResolvedEngine, executor: Executor | None = None) -> None:
        """`executor`: default, the one of the settings."""
        self.model = model
        self.executor = executor_for(settings, model) if executor is None else executor
        self.executor.start(lambda done, total: None, failed=lambda error: None)
        settings, self.layout = prepare_workers(self.executor, settings, asked=None)
        self.core = build_core(settings, model, self.layout, self.executor)
        self.forget()

    def forget(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.aborted: set[str] = set()

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        outputs: Sequence[int] = (),
        constraint: OutputConstraint | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        """`outputs`: already emitted, by an earlier attempt."""
        self.answers[request_id] = Answer()
        message = AddRequest(
            request_id, 1, packed(prompt), packed(outputs), params, constraint=constraint, adapter=adapter
        )
        self.core.add("frontend", message)

    def abort(self, request_id: str) -> None:
        self.aborted.add(request_id)
        self.core.abort("frontend", [request_id])

    def step(self) -> None:
        for message in self.core.step().values():
            for output in message.outputs:
                answer = self.answers[output.request_id]
                answer.tokens += output.token_ids
                answer.error = output.error or answer.error
                answer.logprobs += output.logprobs.token if output.logprobs else []
                answer.prompt_logprobs += output.prompt_logprobs.token if output.prompt_logprobs else []
                if output.finish_reason is not None:
                    answer.finish_reason = str(output.finish_reason)

    def run(self) -> None:
        """Step until every request has ended."""
        while self.core.has_work:
            self.step()
        self.core.check_idle()

    def close(self) -> None:
        self.core.close()
        self.executor.shutdown()

    @property
    def num_preemptions(self) -> int:
        return self.core.scheduler.num_preemptions

    @property
    def num_hit_tokens(self) -> int:
        """Tokens of prompts that were found in the prefix cache."""
        return self.core.scheduler.blocks.num_hit_tokens
