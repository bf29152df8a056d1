"""Gathers the sampler's inputs for a step; rows with equal kinds of parameters together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory
from kvasir.sampling.counted_penalties import CountedPenalties
from kvasir.sampling.logit_rules import Floats, LogitRules
from kvasir.sampling.logits import Allowed, Bias, Entries, LogitChanges, Penalties
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

    def build(self, rows: Ints, ahead: Ints | None = None, *, is_awaited: bool = True) -> SamplingPlan:
        """Return the plan for rows [R] of the logits.

        `ahead` [R]: drafts between the known tokens and the sampled one. `is_awaited`: no row has a pending token.
        """
        return SamplingPlan(
            tuple(self._random_rows(rows, ahead)),
            self._changes(rows, ahead, is_awaited),
            self._logprobs(rows, ahead),
        )

    def need_tokens(self, rows: Iterable[int], *, is_awaited: bool) -> bool:
        # If so, pending tokens must be known first.
        rules = self._table.rules
        if not rules:
            return False
        on_host = self._counts_on_host(is_awaited)
        ruled = [rules[row] for row in rows if row in rules]
        return any(rule.need_tokens or (on_host and rule.is_penalised) for rule in ruled)

    def sampled(self, plan: SamplingPlan, tokens: Tensor) -> None:
        if plan.changes is not None and plan.changes.counted is not None:
            self.device_counts.sampled(plan.changes.counted, tokens)

    def _counts_on_host(self, is_awaited: bool) -> bool:
        # A CPU has the tokens before its next step. Counts on the device would cost passes over the whole
        # vocabulary.
        return is_awaited and self._on_cpu

    def _random_rows(self, rows: Ints, ahead: Ints | None) -> Iterator[RandomRows]:
        table = self._table
        random = ~table.greedy[rows]
        if not random.any():
            return
        params = table.params
        filters = (params["top_k"][rows] > 0) | (params["top_p"][rows] < 1)
        floors = params["min_p"][rows] > 0
        positions = table.num_tokens[rows] - table.num_prompt_tokens[rows]
        if ahead is not None:
            positions += ahead
        if floors.any():
            yield from self._random_kinds(rows, positions, random & ~floors, filters, floored=False)
            yield from self._random_kinds(rows, positions, random & floors, filters, floored=True)
        else:
            yield from self._random_kinds(rows, positions, random, filters, floored=False)

    def _random_kinds(
        self, rows: Ints, positions: Ints, random: Flags, filters: Flags, floored: bool
    ) -> Iterator[RandomRows]:
        params = self._table.params
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
                positions=self._tensor(positions[places]),
                top_k=self._tensor(np.where(top_k > 0, top_k, self._vocab_size))[:, None] if filtered else None,
                top_p=self._tensor(np.where(top_p < 1, top_p, np.inf))[:, None] if filtered else None,
                min_p=self._floats(params["min_p"][chosen]) if floored else None,
            )

    def _logprobs(self, rows: Ints, ahead: Ints | None) -> LogprobRows | None:
        counts = self._table.num_logprobs
        if not counts:
            return None
        asked = [(place, counts[row]) for place, row in enumerate(rows.tolist()) if row in counts]
        if not asked:
            return None
        if ahead is not None:
            asked.sort(key=lambda each: rows[each[0]])  # the places of a row together
        places = [place for place, _ in asked]
        return LogprobRows(self._tensor(np.array(places)), places, [count for _, count in asked])

    def _changes(self, rows: Ints, ahead: Ints | None, is_awaited: bool) -> LogitChanges | None:
        table = self._table
        if not table.rules:
            return None
        ruled = [(place, row) for place, row in enumerate(rows.tolist()) if row in table.rules]
        if not ruled:
            return None
        places = [place for place, _ in ruled]
        rules = [table.rules[row] for _, row in ruled]
        drafts = [0] * len(places) if ahead is None else ahead[places].tolist()
        tokens = [table.tokens_of(row, count) for (_, row), count in zip(ruled, drafts, strict=True)]
        listed, counted = self._penalised(ruled, rules, drafts, is_awaited)
        return LogitChanges(
            allowed=self._allowed(places, rules),
            forbidden=self._entries(
                places, [rule.forbidden(known, self._vocab_size) for rule, known in zip(rules, tokens, strict=True)]
            ),
            bias=self._bias(places, rules),
            penalties=self._listed(
                [places[each] for each in listed],
                [rules[each] for each in listed],
                [rules[each].penalised(tokens[each], drafts[each]) for each in listed],
            ),
            counted=self._counted([ruled[each] for each in counted]),
        )

    def _penalised(
        self, ruled: list[tuple[int, int]], rules: list[LogitRules], drafts: list[int], is_awaited: bool
    ) -> tuple[list[int], list[int]]:
        """Return which rows have penalties by counts on the host, and which by counts on the device."""
        penalised = [each for each, rule in enumerate(rules) if rule.is_penalised]
        if self._counts_on_host(is_awaited):
            return penalised, []
        # The host has all tokens of a row with drafts, and the device could not take rejected ones back.
        drafted = {row for (_, row), count in zip(ruled, drafts, strict=True) if count}
        listed = [each for each in penalised if ruled[each][1] in drafted]
        return listed, [each for each in penalised if ruled[each][1] not in drafted]

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

    def _listed(
        self, places: list[int], rules: list[LogitRules], penalised: list[tuple[Ints, Floats]]
    ) -> Penalties | None:
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
