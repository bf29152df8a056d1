"""A simulated engine: a real scheduler and prefix cache, and steps that take a computed time."""

from collections import Counter
from dataclasses import dataclass

from kvasir.engine.cache_reports import CacheReports
from kvasir.engine.core import EngineCore
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.hashing import split_chain
from kvasir.layers.kv import BlockShape, FullAttention, KVCacheConfig, KVGroup
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, AddRequest, CacheEvents, Outputs, Ready
from kvasir.worker.step import StepInput, StepOutput

from .traces import BLOCK_SIZE, OUTPUT_TOKEN

MAX_MODEL_LEN = 200_000


class Clock:
    """The simulated time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Speed:
    """How long a step takes: seconds for itself, for each row, and for each token that is not the only one of its
    row."""

    step: float = 8e-3
    row: float = 1e-4
    token: float = 1 / 8000
    factor: float = 1.0


@dataclass(frozen=True)
class Size:
    rows: int = 32
    blocks: int = 4096
    tokens_per_step: int = 2048


class _Result:
    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def done(self) -> bool:
        return True

    def result(self) -> StepOutput:
        return self._output


class TimedExecutor:
    """Generates OUTPUT_TOKEN, and notes how long the step takes."""

    max_in_flight = 1

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._known: dict[str, int] = {}
        self.seconds = 0.0

    def submit(self, step: StepInput) -> _Result:
        for request_id in step.finished:
            self._known.pop(request_id, None)
        for new in step.new:
            self._known[new.request_id] = len(new.tokens) // 4
        speed, prefill, token_ids = self._speed, 0, []
        for row in step.scheduled:
            samples = row.num_computed_tokens + row.num_new_tokens == self._known[row.request_id]
            self._known[row.request_id] += samples
            prefill += row.num_new_tokens if row.num_new_tokens > 1 else 0
            token_ids.append([OUTPUT_TOKEN] if samples else [])
        work = speed.step + speed.row * len(step.scheduled) + speed.token * prefill
        self.seconds = work * speed.factor if step.scheduled else 0.0
        return _Result(StepOutput(token_ids))

    def check_idle(self) -> None: ...


class SimulatedEngine:
    """One engine; `busy_until` is None while it has nothing to do."""

    def __init__(self, name: str, speed: Speed, size: Size, clock: Clock, frontends: list[str]) -> None:
        self.name = name
        self.busy_until: float | None = None
        self.busy_seconds = 0.0
        self.promised: Counter[bytes] = Counter()
        """Hashes of the prompts that it has got and not begun to answer."""
        self.executor = TimedExecutor(speed)
        block = BlockShape(BLOCK_SIZE, kv_heads=1, head_dim=8, dtype="float32", dtype_bytes=4)
        config = KVCacheConfig((KVGroup(FullAttention(block), (0,)),), size.blocks)
        blocks = KVManager(config, prefix_caching=True, longest_chunk=size.tokens_per_step)
        max_model_len = min(MAX_MODEL_LEN, blocks.longest_sequence)
        budget = TokenBudget(2**40)
        self.scheduler = Scheduler(
            blocks,
            max_num_seqs=size.rows,
            max_num_batched_tokens=size.tokens_per_step,
            max_model_len=max_model_len,
            eos_token_ids=(),
            budget=budget,
            lookahead=0,
        )
        ingest = Ingest(2**31, max_model_len, BLOCK_SIZE, budget)
        self.core = EngineCore(self.scheduler, self.executor, ingest)  # type: ignore[arg-type]
        self.events: list[tuple[str, CacheEvents]] = []
        pool = blocks.pool
        assert pool.cache is not None
        self.cache = pool.cache
        self.reports = CacheReports(self.cache, size.blocks, lambda *event: self.events.append(event), clock)
        for frontend in frontends:
            self.reports.follow(frontend)
        ready = Ready(
            BLOCK_SIZE,
            size.blocks,
            max_model_len,
            size.rows,
            (FEATURE_PREFIX_CACHE,),
            max_num_batched_tokens=size.tokens_per_step,
        )
        self.remote = RemoteEngine(name, 0, "node", EngineState.READY, None, 0.0, capacity=ready)

    def add(self, frontend: str, message: AddRequest) -> None:
        self.promised.update(split_chain(message.block_hashes))
        self.core.add(frontend, message)

    def holds(self, block_hash: bytes) -> bool:
        """Whether the block is in the cache, or will be."""
        return block_hash in self.cache._blocks[0] or self.promised[block_hash] > 0

    def begin_step(self, now: float) -> None:
        """Start the next step, if there is work."""
        self.busy_until = None
        if self.core.has_work:
            self._output = self.core.execute()
            self.busy_until = now + self.executor.seconds
            self.busy_seconds += self.executor.seconds

    def end_step(self) -> tuple[dict[str, Outputs], list[tuple[str, CacheEvents]]]:
        """Return the outputs and the reports that leave after the step."""
        outputs = self.core.update(self._output)
        self.reports.after_step()
        if not self.core.has_work:
            self.reports.before_waiting()
        events, self.events = self.events, []
        return outputs, events
