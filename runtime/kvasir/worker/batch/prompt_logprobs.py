"""Log probabilities of prompts: computed with each prefill chunk, reported with the last token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.link.protocol import Logprobs
from kvasir.sampling.token_logprobs import score
from kvasir.worker.batch.request_table import RequestTable

Ints = npt.NDArray[np.int64]

# Bounds the logits: 128 MiB in float32 for 128 Ki tokens.
_POSITIONS = 256


@dataclass(frozen=True)
class PromptSpan:
    """Positions of a prompt in a step, without the prompt's last one."""

    row: int
    start: int  # place in the flat batch
    targets: Tensor  # [P] int64, the next tokens
    output: int | None  # place in the output, in the prompt's last step


def prompt_spans(table: RequestTable, rows: Ints, computed: Ints, new: Ints, order: Ints) -> Iterator[PromptSpan]:
    # `order`: indexes in the step's output.
    starts = np.cumsum(new) - new
    for index, row in enumerate(rows.tolist()):
        scores = table.prompt_scores.get(row)
        if scores is None:
            continue
        assert scores.count == computed[index], "a prompt that reports log probabilities has tokens not computed"
        first, last = int(computed[index]), int(table.num_prompt_tokens[row]) - 1
        end = first + int(new[index])
        yield PromptSpan(
            row=row,
            start=int(starts[index]),
            targets=torch.from_numpy(table.tokens[row, first + 1 : min(end, last) + 1].astype(np.int64)),
            output=int(order[index]) if end > last else None,
        )


def score_prompts(
    spans: Sequence[PromptSpan], hidden: Tensor, logits: Callable[[Tensor], Tensor], table: RequestTable
) -> dict[int, Logprobs]:
    """Score the spans. Remove complete prompts from the table and return them by index in the output."""
    complete = {}
    for span in spans:
        scores = table.prompt_scores[span.row]
        targets = span.targets.to(hidden.device)
        for at in range(0, len(targets), _POSITIONS):
            end = min(at + _POSITIONS, len(targets))
            states = hidden[span.start + at : span.start + end]
            scores.append(score(logits(states), targets[at:end], scores.k))
        if span.output is not None:
            complete[span.output] = table.prompt_scores.pop(span.row).wire()
    return complete
