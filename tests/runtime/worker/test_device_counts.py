from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import HostMemory
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.device_counts import MIN_SLOTS, DeviceCounts
from kvasir.worker.batch.request_table import PendingTokens, RequestTable
from kvasir.worker.batch.sampling_inputs import SamplingInputs
from kvasir.worker.step import NewRow

CPU = Placement(torch.device("cpu"), torch.float32)
V = 12
ROWS = 2 * MIN_SLOTS + 1
TOKEN = st.integers(0, V - 1)
TOKENS = st.lists(TOKEN, max_size=6)
PENALTIES = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    seed=st.just(0),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.1, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -1.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    allowed_token_ids=st.sampled_from([(), (), tuple(range(1, 9))]),
    min_tokens=st.integers(0, 3),
)
NUMBER = st.integers(0, ROWS - 1)
"""Some of the running requests, or none if none is."""
ADD = st.tuples(st.just("add"), TOKENS.map(lambda tokens: [3, *tokens]), TOKENS, PENALTIES)
SAMPLE = st.tuples(st.just("sample"), st.sets(NUMBER, min_size=1), st.lists(TOKEN, min_size=ROWS, max_size=ROWS))
ACTIONS = st.one_of(
    ADD,
    SAMPLE,
    SAMPLE,
    st.tuples(st.just("awaited"), st.sets(NUMBER, min_size=1), st.lists(TOKEN, min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("force"), NUMBER, st.lists(TOKEN, min_size=1, max_size=3)),
    st.tuples(st.just("remove"), NUMBER),
    st.tuples(st.just("resume"), NUMBER),
    st.tuples(st.just("settle")),
)


@dataclass
class Request:
    prompt: list[int]
    output: list[int]
    params: SamplingParams

    def row(self, name: str) -> NewRow:
        return NewRow(name, packed(self.prompt + self.output), len(self.prompt), self.params)


class Rows:
    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._table = self._new_table()
        self._inputs = SamplingInputs(self._table, CPU, HostMemory(0), V)
        self._pending: list[tuple[PendingTokens, list[int]]] = []
        self._count = 0

    def play(self, action: tuple[object, ...]) -> None:
        names = list(self._requests)
        match action:
            case ("add", list(prompt), list(output), SamplingParams() as params):
                if len(names) < ROWS:
                    self._count += 1
                    self._add(str(self._count), Request(prompt, output, params))
            case ("settle",):
                self._settle()
            case ("sample" | "awaited" as kind, set(numbers), list(tokens)):
                chosen = [names[number] for number in numbers if number < len(names)]
                if chosen:
                    self._sample(chosen, tokens[: len(chosen)], is_awaited=kind == "awaited")
            case ("force" | "remove" | "resume", int(number), *_) if number >= len(names):
                pass
            case ("force", int(number), list(tokens)):
                self._settle()
                self._table.append_chosen({names[number]: tokens})
                self._requests[names[number]].output += tokens
            case ("remove", int(number)):
                self._remove(names[number])
            case ("resume", int(number)):
                self._add(names[number], self._remove(names[number]))

    def _add(self, name: str, request: Request) -> None:
        self._requests[name] = request
        self._table.add(request.row(name))

    def _remove(self, name: str) -> Request:
        self._inputs.device_counts.remove(self._table.row_of(name))
        self._table.remove(name)
        return self._requests.pop(name)

    def _settle(self) -> None:
        for pending, tokens in self._pending:
            self._table.settle(pending, np.array(tokens))
        self._pending = []

    def _sample(self, names: list[str], tokens: list[int], *, is_awaited: bool) -> None:
        rows = np.array([self._table.row_of(name) for name in names])
        if self._inputs.need_tokens(rows.tolist(), is_awaited=is_awaited):
            self._settle()
        plan = self._inputs.build(rows, is_awaited=is_awaited)
        logits = logits_of(len(names))
        if plan.changes is not None:
            plan.changes.apply_(logits)
        assert torch.equal(logits, self._expected(names))
        self._inputs.sampled(plan, torch.tensor(tokens))
        self._pending.append((self._table.append_pending(rows), tokens))
        if is_awaited:
            self._settle()
        for name, token in zip(names, tokens, strict=True):
            self._requests[name].output.append(token)

    def _expected(self, names: list[str]) -> Tensor:
        table = self._new_table()
        for name in names:
            table.add(self._requests[name].row(name))
        changes = (
            SamplingInputs(table, CPU, HostMemory(0), V)
            .build(np.array([table.row_of(name) for name in names]))
            .changes
        )
        logits = logits_of(len(names))
        if changes is not None:
            changes.apply_(logits)
        return logits

    def _new_table(self) -> RequestTable:
        return RequestTable(rows=ROWS, max_model_len=200, block_size=4, eos_token_ids=(0,))


def logits_of(rows: int) -> Tensor:
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)) * 3
    logits[:, 5] = -0.0
    return logits


@given(st.lists(ACTIONS, max_size=40))
@settings(deadline=None)
def test_penalties_are_those_of_the_tokens_on_the_host(actions: list[tuple[object, ...]]) -> None:
    rows = Rows()
    for action in actions:
        rows.play(action)


def penalised_table(rows: int) -> RequestTable:
    table = RequestTable(rows=rows, max_model_len=64, block_size=4)
    for row in range(rows):
        table.add(NewRow(str(row), packed([row]), 1, SamplingParams(9, 0, repetition_penalty=2.0)))
    return table


def test_slots_are_allocated_for_penalised_rows_only() -> None:
    table = penalised_table(rows=MIN_SLOTS + 2)
    counts = DeviceCounts(table, CPU, HostMemory(0), V)
    sizes = []
    for row in range(MIN_SLOTS + 2):
        penalties = counts.penalties([0], [table.row_of(str(row))])
        assert penalties.counts[penalties.slots].tolist() == [[int(token == row) for token in range(V)]]
        sizes.append(len(penalties.counts))
    assert sizes == [MIN_SLOTS] * MIN_SLOTS + [MIN_SLOTS + 2] * 2


def test_a_freed_slot_is_taken_before_others_are_allocated() -> None:
    table = penalised_table(rows=3 * MIN_SLOTS)
    counts = DeviceCounts(table, CPU, HostMemory(0), V)
    for row in range(3 * MIN_SLOTS):
        assert len(counts.penalties([0], [row]).counts) == MIN_SLOTS
        counts.remove(row)
        counts.remove(row)


def test_a_pending_token_that_is_not_counted_is_an_error() -> None:
    table = penalised_table(rows=1)
    counts = DeviceCounts(table, CPU, HostMemory(0), V)
    counts.penalties([0], [0])
    table.append_pending(np.array([0]))
    with pytest.raises(AssertionError, match="row 0 has a pending token"):
        counts.penalties([0], [0])
