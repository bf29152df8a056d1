"""Log probabilities before any change (vLLM's raw_logprobs), and ranks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.cpu import kernels_for
from kvasir.link.protocol import Logprobs

_AT_ONCE = 2**21  # logits: their float32 copies stay in CPU caches


@dataclass(frozen=True)
class Scores:
    token: npt.NDArray[np.float32]  # [N] log probability
    rank: npt.NDArray[np.int64]  # [N] tokens at least as likely, itself included
    top_ids: npt.NDArray[np.int64]  # [N, k] most likely first, then by id
    top: npt.NDArray[np.float32]  # [N, k]

    def wire(self, start: int, end: int, k: int) -> Logprobs:
        part = slice(start, end)
        return Logprobs(
            token=self.token[part].tolist(),
            rank=self.rank[part].tolist(),
            top_ids=self.top_ids[part, :k].tolist(),
            top=self.top[part, :k].tolist(),
        )


class PromptScores:
    def __init__(self, k: int) -> None:
        self.k = k
        self._parts: list[Scores] = []

    @property
    def count(self) -> int:
        return sum(len(part.token) for part in self._parts)

    def append(self, scores: Scores) -> None:
        self._parts.append(scores)

    def wire(self) -> Logprobs:
        parts = [part.wire(0, len(part.token), self.k) for part in self._parts]
        return Logprobs(
            token=[value for part in parts for value in part.token],
            rank=[value for part in parts for value in part.rank],
            top_ids=[values for part in parts for values in part.top_ids],
            top=[values for part in parts for values in part.top],
        )


def score(logits: Tensor, tokens: Tensor, k: int) -> Scores:
    # tokens [N], logits [N, V]
    count, vocab = logits.shape
    k = min(k, vocab)
    size = max(1, _AT_ONCE // vocab)
    parts = [_score(logits[at : at + size].float(), tokens[at : at + size], k) for at in range(0, count, size)]
    return Scores(*(torch.cat(columns).cpu().numpy() for columns in zip(*parts, strict=True)))


def _score(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = log_sum_exp(logits)
    own = logits.gather(1, tokens[:, None])  # [N, 1]
    rank = (logits >= own).view(torch.int8).sum(dim=-1, dtype=torch.int32).long()
    top, top_ids = _most_likely(logits, k)
    return (own - total)[:, 0], rank, top_ids, top - total


def log_sum_exp(logits: Tensor) -> Tensor:
    # [N, V] float32 → [N, 1]
    kernels = kernels_for(logits.device, logits.dtype)
    return logits.logsumexp(dim=-1, keepdim=True) if kernels is None else kernels.log_sum_exp(logits)[:, None]


def _most_likely(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return [N, k] logits and [N, k] tokens, equal logits by token."""
    vocab = logits.shape[1]
    values, ids = logits.topk(min(k + 1, vocab), dim=-1)  # one more shows ties
    if 0 < k < vocab:
        tied = (values[:, k - 1] == values[:, k]).nonzero()[:, 0]
        if len(tied):
            ids[tied] = _first_of_the_last(logits[tied], values[tied], ids[tied], k)
    values, ids = values[:, :k], ids[:, :k]
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _first_of_the_last(logits: Tensor, values: Tensor, ids: Tensor, k: int) -> Tensor:
    # ids [N, k + 1] get the smallest ids with the k-th largest value
    last = values[:, k - 1 : k]  # [N, 1]
    above = (values > last).sum(dim=-1)  # [N]
    rows, tokens = (logits == last).nonzero(as_tuple=True)  # by row, in each by token
    starts = torch.searchsorted(rows, torch.arange(len(last), device=rows.device))
    places = above[rows] + torch.arange(len(rows), device=rows.device) - starts[rows]
    fitting = places < k
    ids[rows[fitting], places[fitting]] = tokens[fitting]
    return ids
