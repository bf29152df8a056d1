"""Drives a Worker (or an Executor) the way a scheduler would, for tests: chunks, blocks, preemption, no engine.

driver = Driver.load(path)
driver.add("a", prompt, params)
assert driver.run()["a"] == expected
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.engine.kv.kv_manager import longest_sequence
from kvasir.executor.executor import Executor
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.link.protocol import Logprobs
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import NAN_COMPUTED, NewRow, ScheduledRow, StepInput, StepOutput
from kvasir.worker.worker import Worker

NAN = -1
"""In the outputs of a request, in place of a token: its logits held NaN."""
FAILED = 0
"""In place of a token: the sampling of the request could not be prepared."""

DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "load_format": "safetensors",
    "batch_invariant": True,
    "threads": 1,
    "yield_threads": False,
    "max_model_len": 256,
    "max_num_seqs": 40,
    "max_num_batched_tokens": 8192,
    "long_prefill_token_threshold": None,
    "scheduling_policy": "fcfs",
    "max_queued_tokens": 2**26,
    "async_scheduling": False,
    "block_size": 8,
    "enable_prefix_caching": True,
    "prefix_caching_hash_algo": "blake2b",
    "kv_cache_memory_bytes": 2**24,
    "gpu_memory_utilization": 0.9,
    "num_blocks": None,
    "data_parallel_rank": 0,
    "data_parallel_size_local": 1,
    "executor": ExecutorConfig(),
}


def engine_settings(**changes: Any) -> ResolvedEngine:
    return ResolvedEngine(**DEFAULTS | changes)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0)


class Submits:
    """An executor whose steps are awaited one by one."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def execute(self, step: StepInput) -> StepOutput:
        return self._executor.submit(step).result()

    def work_ahead(self) -> bool:
        return self._executor.work_ahead()

    def check_idle(self) -> None:
        self._executor.check_idle()


class Runs(Protocol):
    def execute(self, step: StepInput) -> StepOutput: ...

    def work_ahead(self) -> bool:
        return False

    def check_idle(self) -> None: ...


@dataclass
class Request:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    outputs: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.outputs

    @property
    def done(self) -> bool:
        return len(self.outputs) >= self.params.max_tokens


class Driver:
    def __init__(self, worker: Runs, num_blocks: int, block_size: int, num_groups: int = 1) -> None:
        self.worker = worker
        self._block_size = block_size
        self._num_groups = num_groups
        self._free = list(range(num_blocks, 0, -1))
        self._requests: dict[str, Request] = {}
        self._finished: list[str] = []
        self._new: list[str] = []
        self._slots: list[tuple[int, str]] = []
        self.done: dict[str, Request] = {}
        """Requests that were finished, by id; of a reused id the latest."""
        self.steps = 0
        self.drafter: Callable[[Request], Sequence[int]] = lambda request: ()
        """Guesses the tokens after those of a request that decodes."""

    @classmethod
    def load(
        cls,
        path: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
        parallel: ParallelState = SINGLE,
        files: ModelFiles | None = None,
        **changes: Any,
    ) -> "Driver":
        settings = engine_settings(**changes)
        worker = Worker(settings, load_model_info(path, files or ModelFiles()), parallel)
        worker.load(progress)
        layout = worker.kv_layout()
        longest = longest_sequence(layout, settings.max_num_batched_tokens)
        worker.allocate_kv_cache(layout.num_blocks, min(settings.max_model_len, longest))
        worker.warm_up()
        return cls(worker, layout.num_blocks, settings.block_size, len(layout.groups))

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        outputs: Sequence[int] = (),
        slot: int = -1,
    ) -> None:
        """`outputs`: already emitted, by an earlier attempt. `slot`: of its adapter, see `hold`."""
        self._requests[request_id] = Request(request_id, list(prompt), params, list(outputs), slot=slot)
        self._new.append(request_id)

    def hold(self, slot: int, path: Path) -> None:
        """Load an adapter, and put it into a slot in the next step."""
        worker = self.worker
        assert isinstance(worker, Worker)
        assert worker.adapters is not None
        while not worker.adapters.load_adapter(str(path), str(path)):
            pass
        self._slots.append((slot, str(path)))

    @property
    def waiting(self) -> list[str]:
        """Requests that take a row in the next step."""
        return self._new

    def preempt(self, request_id: str) -> None:
        """Free its row and blocks; it is added again, with its outputs, in the next step."""
        request = self._requests[request_id]
        self._finished.append(request_id)
        self._free += reversed(request.blocks)
        self._new.append(request_id)
        request.computed, request.blocks = 0, []

    def step(self, budget: int = 8192) -> None:
        """Compute up to `budget` tokens, split over the requests in order."""
        new = [self._requests[request_id] for request_id in self._new]
        scheduled = []
        for request in self._requests.values():
            count = min(budget, len(request.tokens) - request.computed)
            if count > 0:
                drafts = self._drafts(request, count)
                count += len(drafts)
                scheduled.append((request, count, self._grow(request, request.computed + count), drafts))
                budget -= count
        step = StepInput(
            finished=self._finished,
            new=[NewRow(r.request_id, packed(r.tokens), len(r.prompt), r.params, slot=r.slot) for r in new],
            scheduled=[
                ScheduledRow(r.request_id, r.computed, count, blocks, drafts)
                for r, count, blocks, drafts in scheduled
            ],
            slots=tuple(self._slots),
        )
        self._finished, self._new, self._slots = [], [], []
        output = self.worker.execute(step)
        self.steps += 1
        assert len(output.token_ids) == len(scheduled)
        for place, (row, sampled) in enumerate(zip(scheduled, output.token_ids, strict=True)):
            request, count, _, drafts = row
            request.computed += count - len(drafts)
            if place in output.logprobs:
                request.logprobs.append(output.logprobs[place])
            if place in output.prompt_logprobs:
                request.prompt_logprobs.append(output.prompt_logprobs[place])
            due = request.computed == len(request.tokens)
            if due and place in output.failed:  # it goes on, as a row does until the scheduler frees it
                request.outputs.append(NAN if output.failed[place] == NAN_COMPUTED else FAILED)
                continue
            if drafts:
                assert list(drafts[: len(sampled) - 1]) == sampled[:-1]
                request.computed += len(sampled) - 1
            else:
                assert len(sampled) == due
            request.outputs += sampled

    def finish(self) -> dict[str, list[int]]:
        """Take the requests that are done out; their outputs by id."""
        done = {name: request.outputs for name, request in self._requests.items() if request.done}
        for name in done:
            request = self.done[name] = self._requests.pop(name)
            self._free += reversed(request.blocks)
            self._finished.append(name)
        return done

    def run(self, budget: int = 8192) -> dict[str, list[int]]:
        """Step until every request has its tokens; their outputs by id. The worker is idle afterwards."""
        outputs: dict[str, list[int]] = {}
        while self._requests:
            self.step(budget)
            outputs |= self.finish()
        self.worker.execute(StepInput(self._finished, [], []))
        self._finished = []
        self.worker.check_idle()
        return outputs

    def _drafts(self, request: Request, count: int) -> tuple[int, ...]:
        decodes = bool(request.outputs) and count == 1 and request.computed == len(request.tokens) - 1
        left = request.params.max_tokens - len(request.outputs) - 1
        return tuple(self.drafter(request)[:left]) if decodes and left > 0 else ()

    def _grow(self, request: Request, tokens: int) -> list[list[int]]:
        """Return new blocks by KV group. No group frees any before the request ends."""
        needed = -(-tokens // self._block_size) - len(request.blocks) // self._num_groups
        blocks = [[self._free.pop() for _ in range(needed)] for _ in range(self._num_groups)]
        request.blocks += chain.from_iterable(blocks)
        return blocks
