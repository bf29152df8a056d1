"""A simulated engine: a real scheduler and prefix cache, and steps and fetches that take a computed time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvasir.engine.cache_reports import CacheReports
from kvasir.engine.core import EngineCore
from kvasir.engine.handover.block_server import MAX_SESSIONS
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.handover.messages import MAX_FETCH_BLOCKS, FetchEnded, HandOverEvent, PinReleased, PinWanted
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.layers.kv import BlockShape, FullAttention, KVCacheConfig, KVGroup
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, AddRequest, CacheEvents, Outputs, Ready
from kvasir.request.hashing import split_chain
from kvasir.worker.step import LateInput, StepInput, StepOutput

from .traces import BLOCK_SIZE, OUTPUT_TOKEN

MAX_MODEL_LEN = 200_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Speed:
    """Seconds of a step: for itself, for each row, and for each further token of a row."""

    step: float = 8e-3
    row: float = 1e-4
    token: float = 1 / 8000
    factor: float = 1.0
    # Seconds for each token whose KV blocks are sent to another engine.
    fetched_token: float = 0.1 / 8000
    # Seconds for the messages of a fetch.
    fetch: float = 2e-3


@dataclass(frozen=True)
class Size:
    rows: int = 32
    blocks: int = 4096
    tokens_per_step: int = 2048
    adapters: int = 8  # in memory
    adapter_seconds: float = 0.5  # to read one


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

    def supply(self, late: LateInput) -> None:
        # No request of a simulation has a constraint.
        pass

    def check_idle(self) -> None: ...


class Fetches:
    """The exchange of an engine without sockets, which sends the blocks of one fetch at a time."""

    def __init__(self, speed: Speed, clock: Clock, at: "Callable[[float, Callable[[], None]], None]") -> None:
        # `at` calls a function at a time.
        self._speed = speed
        self._clock = clock
        self._at = at
        self._engine: SimulatedEngine | None = None
        self._peers: dict[str, SimulatedEngine] = {}
        self._sessions: dict[int, Callable[[list[int]], None]] = {}
        self._free_at = 0.0
        self._numbers = 0

    def connect(self, engine: "SimulatedEngine", peers: "dict[str, SimulatedEngine]") -> None:
        self._engine, self._peers = engine, peers

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None:
        assert self._engine is not None
        engine, peer = self._engine, self._peers[source]

        def ended(count: int, problem: str = "") -> None:
            engine.handle(FetchEnded(number, count, problem))

        assert peer.exchange is not None
        peer.exchange.ask(hashes[:MAX_FETCH_BLOCKS], ended)

    def ask(self, hashes: list[bytes], ended: "Callable[[int, str], None]") -> None:
        assert self._engine is not None
        engine = self._engine
        if len(self._sessions) >= MAX_SESSIONS:
            self._at(self._clock.now + self._speed.fetch, lambda: ended(0, "refused"))
            return
        self._numbers += 1
        session = self._numbers

        def send(block_ids: list[int]) -> None:
            seconds = len(block_ids) * BLOCK_SIZE * self._speed.fetched_token * self._speed.factor
            self._free_at = max(self._clock.now, self._free_at) + seconds

            def sent() -> None:
                del self._sessions[session]
                engine.handle(PinReleased(session))
                ended(len(block_ids), "")

            self._at(self._free_at + self._speed.fetch, sent)

        self._sessions[session] = send
        engine.handle(PinWanted(session, hashes))

    def pinned(self, session: int, block_ids: list[int]) -> None:
        self._sessions[session](block_ids)


class SimulatedEngine:
    """An engine. `busy_until` is None while there is no work."""

    def __init__(
        self,
        name: str,
        speed: Speed,
        size: Size,
        clock: Clock,
        frontends: list[str],
        exchange: Fetches | None = None,
    ) -> None:
        # `exchange`: None for an engine that neither sends nor fetches KV blocks.
        self.name = name
        self.busy_until: float | None = None
        self.busy_seconds = 0.0
        # Hashes of the prompts whose answers have not begun.
        self.promised: Counter[bytes] = Counter()
        # Its adapters, the least recently used first, and when each was or will be read.
        self.adapters: dict[str, float] = {}
        self.num_reads = 0
        self._size = size
        self.executor = TimedExecutor(speed)
        self.exchange = exchange
        self._hand_over = HandOver()
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
            gates=[self._hand_over],
        )
        if exchange is not None:
            self._hand_over.open(self.scheduler, exchange)
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
            numerics="simulated",
            max_num_batched_tokens=size.tokens_per_step,
            kv_address="" if exchange is None else name,
        )
        self.remote = RemoteEngine(name, 0, "node", EngineState.READY, None, 0.0, capacity=ready)

    def adapter_ready_at(self, digest: str, now: float) -> float:
        """Return when the adapter is in memory, and read it if it is not on its way."""
        ready = self.adapters.pop(digest, None)
        if ready is None:
            ready = now + self._size.adapter_seconds
            self.num_reads += 1
        self.adapters[digest] = ready
        if len(self.adapters) > self._size.adapters:
            del self.adapters[next(iter(self.adapters))]
        self.remote.adapters = frozenset(name for name, at in self.adapters.items() if at <= now)
        return ready

    def add(self, frontend: str, message: AddRequest) -> None:
        self.promised.update(split_chain(message.block_hashes))
        self.core.add(frontend, message)

    def connect(self, engines: "list[SimulatedEngine]", work_came: Callable[[], None]) -> None:
        # `work_came`: called when an event may have given the engine work.
        self._work_came = work_came
        if self.exchange is not None:
            self.exchange.connect(self, {engine.name: engine for engine in engines})

    def handle(self, event: HandOverEvent) -> None:
        self._hand_over.handle(event)
        self._work_came()

    def holds(self, block_hash: bytes) -> bool:
        # Also if the block is on its way.
        return block_hash in self.cache._blocks[0] or self.promised[block_hash] > 0

    def begin_step(self, now: float) -> None:
        self.busy_until = None
        if self.core.has_work:
            self._output = self.core.execute()
            self.busy_until = now + self.executor.seconds
            self.busy_seconds += self.executor.seconds

    def end_step(self) -> tuple[dict[str, Outputs], list[tuple[str, CacheEvents]]]:
        # The outputs and the reports that leave after the step.
        outputs = self.core.update(self._output)
        self.reports.after_step()
        self._hand_over.after_step()
        if not self.core.has_work:
            self.reports.before_waiting()
        events, self.events = self.events, []
        return outputs, events
