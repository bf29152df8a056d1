"""Gathers the sampler's inputs for a step; rows with equal kinds of parameters together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory
from kvasir.sampling.counted_penalties import CountedPenalties
from kvasir.sampling.logit_rules import LogitRules
from kvasir.sampling.logits import Allowed, Bias, Entries, LogitChanges, Penalties
from kvasir.sampling.penalties import Tokens
from kvasir.sampling.random_rows import RandomRows
from kvasir.worker.batch.device_counts import DeviceCounts
from kvasir.worker.batch.request_table import RequestTable

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LogprobRows:
    rows: Tensor  # [P] in the logits
    places: list[int]
    counts: list[int]  # most likely tokens to report


@dataclass(frozen=True)
class SamplingPlan:
    random_rows: tuple[RandomRows, ...]
    changes: LogitChanges | None
    logprobs: LogprobRows | None


class SamplingInputs:
    def __init__(self, table: RequestTable, placement: Placement, memory: StepMemory, vocab_size: int) -> None:
        self._table = table
        self._memory = memory
        self._on_cpu = placement.device.type == "cpu"
        self._vocab_size = vocab_size
        self.device_counts = DeviceCounts(table, placement, memory, vocab_size)

    def build(self, rows: Ints, *, is_awaited: bool = True) -> SamplingPlan:
        """Return the plan for rows [R] of the logits. `is_awaited`: no row has a pending token."""
        return SamplingPlan(tuple(self._random_rows(rows)), self._changes(rows, is_awaited), self._logprobs(rows))

    def need_tokens(self, rows: Iterable[int], *, is_awaited: bool) -> bool:
        # If so, pending tokens must be known first.
        rules = self._table.rules
        if not rules:
            return False
        on_host = self._counts_on_host(is_awaited)
        ruled = [rules[row] for row in rows if row in rules]
        return any(rule.need_tokens or (on_host and rule.is_penalised) for rule in ruled)

    def sampled(self, plan: SamplingPlan, tokens: Tensor) -> None:
        if plan.changes is not None and isinstance(plan.changes.penalties, CountedPenalties):
            self.device_counts.sampled(plan.changes.penalties, tokens)

    def _counts_on_host(self, is_awaited: bool) -> bool:
        # A CPU has the tokens before its next step. Counts on the device would cost passes over the whole
        # vocabulary.
        return is_awaited and self._on_cpu

    def _random_rows(self, rows: Ints) -> Iterator[RandomRows]:
        table = self._table
        random = ~table.greedy[rows]
        if not random.any():
            return
        params = table.params
        filters = (params["top_k"][rows] > 0) | (params["top_p"][rows] < 1)
        floors = params["min_p"][rows] > 0
        if floors.any():
            yield from self._random_kinds(rows, random & ~floors, filters, floored=False)
            yield from self._random_kinds(rows, random & floors, filters, floored=True)
        else:
            yield from self._random_kinds(rows, random, filters, floored=False)

    def _random_kinds(self, rows: Ints, random: Flags, filters: Flags, floored: bool) -> Iterator[RandomRows]:
        table, params = self._table, self._table.params
        for filtered in (False, True):
            places = np.flatnonzero(random & (filters == filtered))
            if len(places) == 0:
                continue
            chosen = rows[places]
            top_k, top_p = params["top_k"][chosen], params["top_p"][chosen]
            yield RandomRows(
                rows=self._tensor(places),
                temperature=self._floats(params["temperature"][chosen]),
                seeds=self._tensor(params["seed"][chosen]),
                positions=self._tensor(table.num_tokens[chosen] - table.num_prompt_tokens[chosen]),
                top_k=self._tensor(np.where(top_k > 0, top_k, self._vocab_size))[:, None] if filtered else None,
                top_p=self._tensor(np.where(top_p < 1, top_p, np.inf))[:, None] if filtered else None,
                min_p=self._floats(params["min_p"][chosen]) if floored else None,
            )

    def _logprobs(self, rows: Ints) -> LogprobRows | None:
        counts = self._table.num_logprobs
        if not counts:
            return None
        asked = [(place, counts[row]) for place, row in enumerate(rows.tolist()) if row in counts]
        if not asked:
            return None
        places = [place for place, _ in asked]
        return LogprobRows(self._tensor(np.array(places)), places, [count for _, count in asked])

    def _changes(self, rows: Ints, is_awaited: bool) -> LogitChanges | None:
        table = self._table
        if not table.rules:
            return None
        ruled = [(place, row) for place, row in enumerate(rows.tolist()) if row in table.rules]
        if not ruled:
            return None
        places = [place for place, _ in ruled]
        rules = [table.rules[row] for _, row in ruled]
        tokens = [table.tokens_of(row) for _, row in ruled]
        return LogitChanges(
            allowed=self._allowed(places, rules),
            forbidden=self._entries(
                places, [rule.forbidden(known, self._vocab_size) for rule, known in zip(rules, tokens, strict=True)]
            ),
            bias=self._bias(places, rules),
            penalties=self._listed(places, rules, tokens)
            if self._counts_on_host(is_awaited)
            else self._counted([each for each, rule in zip(ruled, rules, strict=True) if rule.is_penalised]),
        )

    def _allowed(self, places: list[int], rules: list[LogitRules]) -> Allowed | None:
        entries = self._entries(places, [rule.allowed for rule in rules])
        if entries is None:
            return None
        rows = [place for place, rule in zip(places, rules, strict=True) if len(rule.allowed)]
        return Allowed(self._tensor(np.array(rows)), entries)

    def _bias(self, places: list[int], rules: list[LogitRules]) -> Bias | None:
        entries = self._entries(places, [rule.biased for rule in rules])
        if entries is None:
            return None
        return Bias(entries, self._tensor(np.concatenate([rule.bias for rule in rules])))

    def _counted(self, penalised: list[tuple[int, int]]) -> CountedPenalties | None:
        if not penalised:
            return None
        return self.device_counts.penalties([place for place, _ in penalised], [row for _, row in penalised])

    def _listed(self, places: list[int], rules: list[LogitRules], known: list[Tokens]) -> Penalties | None:
        penalised = [rule.penalised(each) for rule, each in zip(rules, known, strict=True)]
        tokens = [each for each, _ in penalised]
        entries = self._entries(places, tokens)
        if entries is None:
            return None
        repetition = np.array([rule.repetition for rule in rules], np.float32)
        return Penalties(
            entries,
            repetition=self._tensor(np.repeat(repetition, [len(each) for each in tokens])),
            taken=self._tensor(np.concatenate([taken for _, taken in penalised])),
        )

    def _entries(self, places: Sequence[int], tokens: Sequence[Ints]) -> Entries | None:
        lengths = [len(each) for each in tokens]
        if not any(lengths):
            return None
        return Entries(
            rows=self._tensor(np.repeat(np.array(places), lengths)), tokens=self._tensor(np.concatenate(tokens))
        )

    def _floats(self, values: npt.NDArray[np.float64]) -> Tensor:
        """[N, 1] float32"""
        return self._tensor(values.astype(np.float32))[:, None]

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return self._memory.put(values)
