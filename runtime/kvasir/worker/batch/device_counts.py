"""The token counts of penalised rows, on the device."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.triton.sampling.sizes import IN_OUTPUT, IN_PROMPT
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory, copied
from kvasir.sampling.counted_penalties import CountedPenalties
from kvasir.worker.batch.request_table import PENDING, RequestTable

Ints = npt.NDArray[np.int64]

MIN_SLOTS: Final = 4


class DeviceCounts:
    """A slot for each penalised row. If all slots are taken, their number doubles.

    The device counts sampled tokens; the host copies forced tokens only.
    """

    def __init__(self, table: RequestTable, placement: Placement, memory: StepMemory, vocab_size: int) -> None:
        self._table = table
        self._memory = memory
        self._device = placement.device
        self._vocab_size = vocab_size
        self._slot_of: dict[int, int] = {}
        # Freed slots keep old counts.
        self._free: list[int] = []
        # By slot.
        self._num_counted: Ints = np.zeros(0, np.int64)
        self._counts = self._empty(0, vocab_size, torch.int32)  # [S, V]
        self._params = self._empty(0, 3, torch.float64)  # [S, 3]

    def penalties(self, places: list[int], rows: list[int]) -> CountedPenalties:
        """Return the penalties of `rows`, which have `places` in the logits."""
        self._take_slots([row for row in rows if row not in self._slot_of])
        self._count_known(rows)
        slots = np.array([self._slot_of[row] for row in rows], np.int64)
        return CountedPenalties(
            rows=self._memory.put(np.array(places, np.int64)),
            slots=self._memory.put(slots),
            host_slots=slots,
            counts=self._counts,
            params=self._params,
        )

    def sampled(self, penalties: CountedPenalties, tokens: Tensor) -> None:
        penalties.add_(tokens)
        self._num_counted[penalties.host_slots] += 1

    def remove(self, row: int) -> None:
        slot = self._slot_of.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def _take_slots(self, rows: list[int]) -> None:
        if not rows:
            return
        # The profiling step takes all slots, so the KV cache leaves room.
        if len(self._free) < len(rows):
            self._grow(len(self._slot_of) + len(rows))
        rules = [self._table.rules[row] for row in rows]
        params = np.array([(rule.repetition, rule.frequency, rule.presence) for rule in rules])  # [N, 3]
        slots = [self._free.pop() for _ in rows]
        at = self._tensor(np.array(slots, np.int64))
        self._counts.index_fill_(0, at, 0)
        self._params[at] = self._tensor(params)
        self._num_counted[slots] = 0
        self._slot_of.update(zip(rows, slots, strict=True))

    def _grow(self, needed: int) -> None:
        old = len(self._num_counted)
        size = min(max(needed, 2 * old, MIN_SLOTS), len(self._table.tokens))
        counts = self._empty(size, self._vocab_size, torch.int32)
        params = self._empty(size, 3, torch.float64)
        counts[:old], params[:old] = self._counts, self._params
        self._counts, self._params = counts, params
        self._num_counted = np.concatenate((self._num_counted, np.zeros(size - old, np.int64)))
        self._free += reversed(range(old, size))

    def _count_known(self, rows: list[int]) -> None:
        # The host must have all tokens of these rows.
        table = self._table
        prompts, outputs = [], []  # as one row of S * V
        for row in rows:
            slot = self._slot_of[row]
            counted, prompt = int(self._num_counted[slot]), int(table.num_prompt_tokens[row])
            tokens = table.tokens_of(row)[counted:]
            if not len(tokens):
                continue
            assert tokens.min() > PENDING, f"row {row} has a pending token that the device has not counted"
            at = slot * self._vocab_size + tokens.astype(np.int64)
            if counted == 0 and table.rules[row].penalises_prompt:
                prompts.append(at[:prompt])
            outputs.append(at[max(0, prompt - counted) :])
        flat = self._counts.view(-1)
        if prompts:
            flat.index_fill_(0, self._tensor(np.concatenate(prompts)), IN_PROMPT)
        if outputs:
            chosen = self._tensor(np.concatenate(outputs))
            flat.index_add_(0, chosen, torch.full_like(chosen, IN_OUTPUT, dtype=torch.int32))
            self._num_counted[[self._slot_of[row] for row in rows]] = table.num_tokens[rows]

    def _empty(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=self._device)

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return copied(values, self._device)
