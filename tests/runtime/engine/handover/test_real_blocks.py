import queue
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.engine.core import EngineCore
from kvasir.engine.handover.exchange import Exchange
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.handover.messages import FetchEnded, HandOverEvent
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.link.protocol import AddRequest
from kvasir.request.hashing import split_chain
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from runtime.engine.handover.sides import PATIENCE, PATIENT
from runtime.worker.driver import engine_settings

PROMPT = [5 + (7 * place) % 400 for place in range(150)]
BLOCK_SIZE = 16
FULL_BLOCKS = 9


class RealEngine:
    def __init__(self, dtype: str, events: "queue.SimpleQueue[tuple[HandOver, HandOverEvent]]") -> None:
        info = load_model_info(fetch("demo://", weights=True))
        settings = engine_settings(dtype=dtype, block_size=BLOCK_SIZE, num_blocks=60, max_model_len=512)
        executor = InProcessExecutor(settings, info)
        executor.start(lambda done, total: None, failed=lambda error: None)
        layout = executor.kv_layout()
        executor.allocate_kv_cache(layout.num_blocks, settings.max_model_len)
        self.hand_over = HandOver()
        self.blocks = KVManager(layout, prefix_caching=True, longest_chunk=2048)
        scheduler = Scheduler(
            self.blocks,
            max_num_seqs=4,
            max_num_batched_tokens=2048,
            max_model_len=512,
            eos_token_ids=info.eos_token_ids,
            gates=[self.hand_over],
        )
        ingest = Ingest(info.vocab_size, 512, BLOCK_SIZE, TokenBudget(2**20))
        self.core = EngineCore(scheduler, executor, ingest)
        memory = executor.block_bytes()
        assert memory is not None
        self.memory = memory
        self.exchange = Exchange(
            memory, "class", None, lambda event: events.put((self.hand_over, event)), limits=PATIENT
        )
        self.hand_over.open(scheduler, self.exchange)
        self.token_ids: list[int] = []

    def add(self, source: str = "") -> None:
        params = SamplingParams(max_tokens=20, seed=0, temperature=0.0, ignore_eos=True)
        self.core.add("test", AddRequest("r", 1, packed(PROMPT), b"", params, kv_source=source))

    def run(self) -> None:
        while self.core.has_work:
            for outputs in self.core.step().values():
                self.token_ids += [token for output in outputs.outputs for token in output.token_ids]

    def prefix(self) -> bytes:
        """The bytes of the prompt's full blocks."""
        request = self.core.ingest.prepare(
            "test", AddRequest("p", 1, packed(PROMPT), b"", SamplingParams(max_tokens=1, seed=0))
        )
        hashes = split_chain(request.packed_hashes)  # type: ignore[union-attr]
        found = self.blocks.held.find(hashes, FULL_BLOCKS)
        assert len(found) == FULL_BLOCKS
        return bytes(self.memory.read(found))


@pytest.fixture
def path() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="kv"))  # short: a socket's path has 107 characters at most
    yield f"ipc://{directory}/blocks"
    shutil.rmtree(directory)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_a_model_are_handed_over_bit_for_bit(path: str, dtype: str) -> None:
    events: queue.SimpleQueue[tuple[HandOver, HandOverEvent]] = queue.SimpleQueue()
    giver, taker = RealEngine(dtype, events), RealEngine(dtype, events)
    address = giver.exchange.listen(path)
    for engine in (giver, taker):
        engine.exchange.start()
    giver.add()
    giver.run()
    taker.add(address)
    taker.run()
    assert taker.token_ids == []
    while True:
        hand_over, event = events.get(timeout=PATIENCE)
        hand_over.handle(event)
        if isinstance(event, FetchEnded):
            break
    assert (event.num_blocks, event.problem) == (FULL_BLOCKS, "")
    taker.run()
    assert taker.prefix() == giver.prefix()
    assert any(taker.prefix())
    if dtype == "float32":  # others round a chunk of another size differently
        assert taker.token_ids == giver.token_ids
    for engine in (giver, taker):
        engine.exchange.close()
