"""A fake executor that checks the worker's contract, and the fake model that it samples from.

It computes nothing but keeps a fake KV cache: it writes each token into its slot, all of a step
before it reads any, and samples from the tokens that it reads back through the block table. A block that two rows
share and that is not the same full block of both, a wrong position or a row that was not computed from the end of
its cached prefix therefore changes the output or trips an assertion. In a group with a sliding window, it reads the
last tokens only.
"""

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from kvasir.layers.kv import KVCacheConfig
from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import from_wire
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.step import NAN_COMPUTED, NO_TOKENS, LateInput, NewRow, ScheduledRow, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from runtime.engine.fake_block_bytes import FakeBlockBytes
from runtime.engine.first_stage import FirstStage
from runtime.engine.kv_configs import kv_groups

VOCAB_SIZE = 1000
EOS = 0
NAN = -1
"""A model returns it in place of a token: its logits hold NaN."""


def next_token(token_ids: Sequence[int]) -> int:
    """Return the fake model's token after these tokens: never EOS."""
    return 1 + zlib.crc32(repr(list(token_ids)).encode()) % (VOCAB_SIZE - 1)


def expected_output(
    prompt: Sequence[int], count: int, model: Callable[[Sequence[int]], int] = next_token
) -> list[int]:
    """Return the tokens that a request must receive, however it was scheduled."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model(tokens))
    return tokens[len(prompt) :]


def choose(token_id: int, allowed: npt.NDArray[np.bool_]) -> int:
    """Return the first of the allowed tokens, from the model's token on. allowed: [VOCAB_SIZE] bool."""
    return int((np.roll(allowed, -token_id).argmax() + token_id) % VOCAB_SIZE)


def fake_logprobs(token_ids: Sequence[int]) -> Logprobs:
    """Log probabilities by which a test recognizes the tokens that they belong to."""
    return Logprobs(
        [-float(id) for id in token_ids], [1] * len(token_ids), [[] for _ in token_ids], [[] for _ in token_ids]
    )


@dataclass
class _Row:
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    num_computed: int | None = None
    """None until its first chunk, which shows how much of it was found in the prefix cache."""
    tables: list[list[int]] = field(default_factory=list)
    """Block tables by KV group. As in a worker, ids of freed blocks stay in them."""
    prefixes: list[int] = field(default_factory=list)
    """A checksum of the tokens up to each position: K and V depend on all of them."""
    slot: int = -1
    adapter: str = ""

    def content(self, position: int, drafts: Sequence[int] = ()) -> tuple[int, int]:
        """Return what K and V of this position hold: the token, and the prefix that they were computed from."""
        if position >= len(self.token_ids):
            token_id, prefix = self.content(len(self.token_ids) - 1)
            for token_id in drafts[: position - len(self.token_ids) + 1]:
                prefix = zlib.crc32(token_id.to_bytes(4, "little", signed=True), prefix)
            return token_id, prefix
        for token_id in self.token_ids[len(self.prefixes) : position + 1]:
            before = self.prefixes[-1] if self.prefixes else zlib.crc32(self.adapter.encode())
            self.prefixes.append(zlib.crc32(token_id.to_bytes(4, "little", signed=True), before))
        return self.token_ids[position], self.prefixes[position]


class _Deferred(Future[StepOutput]):
    """The output of a step that is computed when its result is needed, and not before."""

    def __init__(self, compute_until: "Callable[[_Deferred], None]") -> None:
        super().__init__()
        self._compute_until = compute_until

    def result(self, timeout: float | None = None) -> StepOutput:
        self._compute_until(self)
        return super().result(timeout)


class FakeExecutor:
    """A worker without a model; the steps that were submitted stay in `steps`.

    A step is computed as late as possible, when its result is needed, so that a scheduler that needs an earlier
    token or changes a step after submitting it fails.
    """

    max_in_flight = 1

    def __init__(
        self,
        *,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        model: Callable[[Sequence[int]], int] = next_token,
        windows: Sequence[int | None] = (None,),
        is_pipeline: bool = False,
    ) -> None:
        """`windows`: of each KV group; None: full attention."""
        self.first_stage = FirstStage() if is_pipeline else None
        self.steps: list[StepInput] = []
        self.before_step: Callable[[], None] = lambda: None
        """A test may replace it by a function that waits or raises."""
        self.rows: dict[str, _Row] = {}
        self.failing: dict[str, int] = {}
        """Ids of requests whose sampling cannot be prepared once they have this many tokens."""
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._model = model
        self.late: deque[LateInput] = deque()
        """The masks of submitted steps, in their order."""
        self.submitted: deque[tuple[StepInput, _Deferred, list[list[int]]]] = deque()
        """Steps that are not computed yet, and the tokens of their rows that the first stage had."""
        self._windows = windows
        self.adapters: set[str] = set()
        """Digests of the adapters in memory."""
        self.most_adapters = 0
        self._adapter_slots: dict[int, str] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # slot → the token whose KV is there, and its prefix

    def execute(self, step: StepInput) -> StepOutput:
        self.before_step()
        for slot, digest in step.slots:
            assert digest in self.adapters, "the adapter of a slot is not loaded"
            self._adapter_slots[slot] = digest
        for request_id, forced in step.forced.items():
            self.rows[request_id].token_ids += forced
        for request_id in step.finished:
            del self.rows[request_id]
        for new in step.new:
            self._take_row(new)
        assert len(self.rows) <= self._max_num_seqs
        assert sum(row.num_new_tokens for row in step.scheduled) <= self._max_num_batched_tokens
        assert len({row.request_id for row in step.scheduled}) == len(step.scheduled)
        for scheduled in step.scheduled:
            self._write(scheduled)
        for scheduled in step.scheduled:
            self._check_reads(scheduled)
            row = self.rows[scheduled.request_id]
            assert row.slot < 0 or self._adapter_slots.get(row.slot) == row.adapter, "the row's slot was taken away"
        self._check_blocks()
        failed = {
            place: "injected"
            for place, scheduled in enumerate(step.scheduled)
            if len(self.rows[scheduled.request_id].token_ids) >= self.failing.get(scheduled.request_id, 2**40)
        }
        masks = self._masks(step)
        token_ids = [self._sample(scheduled, masks.get(place)) for place, scheduled in enumerate(step.scheduled)]
        failed |= {place: NAN_COMPUTED for place, sampled in enumerate(token_ids) if NAN in sampled}
        token_ids = [[] if place in failed else sampled for place, sampled in enumerate(token_ids)]
        return StepOutput(
            token_ids,
            self._logprobs(step.scheduled, token_ids),
            self._prompt_logprobs(step.scheduled),
            failed,
        )

    def submit(self, step: StepInput) -> "Future[StepOutput]":
        self.steps.append(step)
        assert step.number == len(self.steps)
        future = _Deferred(self._compute_until)
        read = self.first_stage.take(step) if self.first_stage else []
        assert self.first_stage or step.sampled is NO_TOKENS
        self.submitted.append((step, future, read))
        return future

    def supply(self, late: LateInput) -> None:
        assert self.steps[late.number - 1].masked, "masks for a step that needs none"
        self.late.append(late)

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        (digest,) = (msgspec.msgpack.decode(each) for name, each in call.arguments.items() if name == "digest")
        if call.method == "load_adapter":
            if digest == "unfit":
                return [WorkerResult(error="UnfitAdapter: it is of another model")]
            if digest == "too large":
                return [WorkerResult(error="MemoryError: no memory")]
            self.adapters.add(digest)
            self.most_adapters = max(self.most_adapters, len(self.adapters))
            return [WorkerResult(True)]
        assert call.method == "drop_adapter"
        self.adapters.discard(digest)
        self._adapter_slots = {slot: each for slot, each in self._adapter_slots.items() if each != digest}
        return [WorkerResult()]

    def _compute_until(self, last: _Deferred) -> None:
        while not last.done():
            step, future, read = self.submitted.popleft()
            future.set_result(self.execute(step))
            for scheduled, tokens in zip(step.scheduled, read, strict=False):  # without a pipeline none are read
                start = scheduled.num_computed_tokens
                assert self.rows[scheduled.request_id].token_ids[start : start + len(tokens)] == tokens

    def work_ahead(self) -> bool:
        return False

    def check_idle(self) -> None:
        assert not self.rows
        assert not self.submitted
        assert not self.late
        assert not (self.first_stage and self.first_stage.rows)

    def block_bytes(self) -> BlockBytes:
        return FakeBlockBytes(self._slots, self._block_size)

    def where(self) -> str:
        return ""

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        progress(1, 1)

    def kv_layout(self) -> KVCacheConfig:
        return KVCacheConfig(kv_groups(self._block_size, self._windows), 64)

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def _take_row(self, new: NewRow) -> None:
        assert new.request_id not in self.rows
        row = _Row(from_wire(new.tokens).tolist(), new.num_prompt_tokens, new.params)
        row.tables = [[] for _ in self._windows]
        row.slot, row.adapter = new.slot, self._adapter_slots.get(new.slot, "")
        self.rows[new.request_id] = row

    def _write(self, scheduled: ScheduledRow) -> None:
        row = self.rows[scheduled.request_id]
        if row.num_computed is None:
            row.num_computed = scheduled.num_computed_tokens
            assert row.num_computed % self._block_size == 0
        assert scheduled.num_new_tokens > 0
        assert scheduled.num_computed_tokens == row.num_computed
        if scheduled.new_block_ids:
            for table, new_block_ids in zip(row.tables, scheduled.new_block_ids, strict=True):
                table += new_block_ids
        end = row.num_computed + scheduled.num_new_tokens
        known = len(row.token_ids) + len(scheduled.draft_token_ids)
        assert end == known if scheduled.draft_token_ids else end <= known
        for table in row.tables:
            assert end <= len(table) * self._block_size
            for position in range(row.num_computed, end):
                self._slots[self._slot(table, position)] = row.content(position, scheduled.draft_token_ids)
        row.num_computed = end

    def _check_reads(self, scheduled: ScheduledRow) -> None:
        """Assert that each token finds what its layers read, in every group."""
        row = self.rows[scheduled.request_id]
        end = scheduled.num_computed_tokens + scheduled.num_new_tokens
        for window, table in zip(self._windows, row.tables, strict=True):
            for position in range(_first_read(window, scheduled.num_computed_tokens), end):
                content = row.content(position, scheduled.draft_token_ids)
                assert self._slots[self._slot(table, position)] == content

    def _masks(self, step: StepInput) -> dict[int, list[npt.NDArray[np.bool_]]]:
        """Return the allowed tokens of each masked row, by place: before each draft and after the last one."""
        if not step.masked:
            return {}
        late = self.late.popleft()  # raises IndexError if the masks come later than the result is asked for
        assert late.number == step.number
        words = np.frombuffer(late.masks, np.uint8).reshape(-1, -(-VOCAB_SIZE // 32) * 4)
        bits = iter(np.unpackbits(words, axis=1, count=VOCAB_SIZE, bitorder="little").astype(bool))
        masks = {
            place: [next(bits) for _ in range(1 + len(step.scheduled[place].draft_token_ids))]
            for place in step.masked
        }
        assert next(bits, None) is None
        return masks

    def _sample(self, scheduled: ScheduledRow, masks: Sequence[npt.NDArray[np.bool_]] | None = None) -> list[int]:
        """Return the accepted drafts and one token, or nothing after a chunk that is not the last one."""
        row = self.rows[scheduled.request_id]
        end = scheduled.num_computed_tokens + scheduled.num_new_tokens
        if end < len(row.token_ids):
            assert masks is None, "a mask for a row without a next token"
            return []
        context = [*row.token_ids, *scheduled.draft_token_ids]
        if self._windows[0] is None:
            context = [self._slots[self._slot(row.tables[0], position)][0] for position in range(end)]
        sampled = []
        for place, draft in enumerate((*scheduled.draft_token_ids, None)):
            token_id = self._model(context[: len(row.token_ids)])
            sampled.append(token_id if masks is None or token_id == NAN else choose(token_id, masks[place]))
            if token_id == NAN and place:  # it comes again in the next step
                sampled.pop()
                break
            row.token_ids.append(sampled[-1])
            if sampled[-1] != draft:
                break
        row.num_computed = len(row.token_ids) - 1
        return sampled

    def _logprobs(self, scheduled: Sequence[ScheduledRow], token_ids: Sequence[list[int]]) -> dict[int, Logprobs]:
        return {
            place: fake_logprobs(sampled)
            for place, (each, sampled) in enumerate(zip(scheduled, token_ids, strict=True))
            if sampled and self.rows[each.request_id].params.logprobs is not None
        }

    def _prompt_logprobs(self, scheduled: Sequence[ScheduledRow]) -> dict[int, Logprobs]:
        """Prompt log probabilities of each prompt whose last token this step computes."""
        found = {}
        for place, each in enumerate(scheduled):
            row, end = self.rows[each.request_id], each.num_computed_tokens + each.num_new_tokens
            if row.params.prompt_logprobs is not None and each.num_computed_tokens < row.num_prompt_tokens <= end:
                found[place] = fake_logprobs(row.token_ids[1 : row.num_prompt_tokens])
        return found

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size

    def _check_blocks(self) -> None:
        """Assert that no block has several users, unless it is the same full block of the same group for them."""
        users: dict[int, list[tuple[tuple[int, int], list[int]]]] = {}
        for row in self.rows.values():
            for group, table in enumerate(row.tables):
                first = _first_read(self._windows[group], row.num_computed or 0) // self._block_size
                for place, block_id in enumerate(table[first:], first):
                    start = place * self._block_size
                    content = row.token_ids[start : start + self._block_size]
                    users.setdefault(block_id, []).append(((group, place), content))
        assert 0 not in users, "the null block belongs to a row"
        for block_id, contents in users.items():
            if len(contents) > 1:
                assert len(contents[0][1]) == self._block_size, f"block {block_id} is shared and not full"
                assert all(each == contents[0] for each in contents), f"block {block_id} is shared wrongly"


def _first_read(window: int | None, position: int) -> int:
    """Return the first position that a token at this position attends to."""
    return 0 if window is None else max(0, position - window + 1)
