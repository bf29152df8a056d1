"""The choice of tokens by kernels, next to plain torch on the CPU: the same tokens, from the same seeds.

Winners of a race may change places if their scores are equal to within rounding.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from bench.gpu.checks.comparison import guarded, report, same
from bench.gpu.worker import Context
from torch import Tensor

from kvasir.kernels.triton.sampling.logit_kernels import add_bias, mask_rows, penalise_counted, restore_rows
from kvasir.kernels.triton.sampling.sampling_kernels import choose_largest
from kvasir.sampling import sampler, triton_sampler
from kvasir.sampling.counted_penalties import CountedPenalties
from kvasir.sampling.logits import Bias, Entries
from kvasir.sampling.random import exponential
from kvasir.sampling.random_rows import RandomRows
from kvasir.sampling.token_masks import TokenMasks

# Tolerance for the difference of two scores.
ROUNDING = 2e-5
VOCABULARIES = (1, 50, 2048, 4999, 128256, 151936)
TINY_VOCABULARIES = (1, 50, 2085)
# top-k, top-p, min-p
FILTERS = (
    (1, None, None),
    (5, None, None),
    (None, 0.5, None),
    (None, 1e-300, None),
    (8, 0.7, None),
    (50, 0.95, None),
    (None, 0.999, None),
    (2**40, 0.95, None),
    (None, None, 0.1),
    (None, None, 1.0),
    (6, None, 0.02),
    (9, 0.8, 0.05),
)


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    vocabularies = TINY_VOCABULARIES if context.tiny else VOCABULARIES
    checks = {"greedy": _greedy, "race": _race, "filters": _filters, "logits": _logits}
    for vocab in vocabularies:
        with guarded(context, argument, f"{vocab} tokens"):
            checks[argument](context, vocab)


def odd_rows(vocab: int, rows: int, dtype: torch.dtype) -> Tensor:
    # [rows, vocab] on the CPU: random numbers, ties, infinities, a single token, none, and NaN.
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    logits[1] = -torch.inf
    logits[2] = 0.0
    logits[2, ::2] = -0.0
    logits[3, -1] = logits[3].max()
    logits[4, [0, -1]] = 20.0
    logits[5] = -torch.inf
    logits[5, vocab // 2] = -300.0
    logits[6, vocab * 3 // 4 :] = torch.nan
    logits[7, [vocab // 3, -1]] = torch.inf
    return logits.to(dtype)


def _greedy(context: Context, vocab: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = odd_rows(vocab, 9, dtype)
        there = logits.to(context.device)
        chosen = torch.full((9,), -7, device=context.device)
        choose_largest(there, chosen)
        expected = logits.float().argmax(dim=-1)
        report(context, "greedy tokens", f"{dtype} {vocab} tokens", same(chosen, expected))
        through = triton_sampler.sample(there, ())
        report(context, "greedy tokens", f"{dtype} {vocab}, sampler", same(through, expected))


def _race(context: Context, vocab: int) -> None:
    rows = list(range(9))
    for dtype in (torch.float32, torch.bfloat16):
        _compare(context, "race", vocab, odd_rows(vocab, 9, dtype), (_group(rows, vocab, (None, None, None)),))
    many = 8 if context.tiny else 64
    logits = torch.randn(many, vocab, generator=torch.Generator().manual_seed(1)) * 2
    group = _group(list(range(0, many, 2)), vocab, (None, None, None))
    _compare(context, "race", vocab, logits.bfloat16(), (group,))


def _filters(context: Context, vocab: int) -> None:
    # In large vocabularies, plain torch on a CPU orders equal candidates arbitrarily.
    rows = [8, 0, 5] if vocab > 1024 else [8, 0, 5, 7, 3, 4, 2]
    odd = odd_rows(vocab, 9, torch.float32)
    for filters in FILTERS[::4] if context.tiny else FILTERS:
        _compare(context, "filters", vocab, odd, (_group(rows, vocab, filters),))
        logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(3))
        _compare(context, "filters", vocab, logits, (_group([4, 1, 2], vocab, filters, temperature=1.3),))


def _group(
    rows: list[int],
    vocab: int,
    filters: tuple[int | None, float | None, float | None],
    temperature: float = 0.8,
) -> RandomRows:
    top_k, top_p, min_p = filters
    is_filtered, count = top_k is not None or top_p is not None, len(rows)
    return RandomRows(
        rows=torch.tensor(rows),
        temperature=torch.full((count, 1), temperature),
        seeds=torch.tensor(rows) * 977 - 2**62,
        positions=torch.tensor(rows),
        top_k=torch.full((count, 1), top_k or vocab) if is_filtered else None,
        top_p=torch.full((count, 1), top_p or math.inf, dtype=torch.float64) if is_filtered else None,
        min_p=None if min_p is None else torch.full((count, 1), min_p),
    )


def _there(group: RandomRows, device: str) -> RandomRows:
    values: dict[str, Any] = {each.name: getattr(group, each.name) for each in dataclasses.fields(group)}
    there: dict[str, Any] = {name: None if each is None else each.to(device) for name, each in values.items()}
    return RandomRows(**there)


def _compare(context: Context, kernel: str, vocab: int, logits: Tensor, groups: tuple[RandomRows, ...]) -> None:
    """Sample logits [R, V] of the CPU here and on the device."""
    one = groups[0]
    case = f"{logits.dtype} {vocab} tokens, rows {len(one.rows)} of {len(logits)}"
    if one.top_k is not None and one.top_p is not None:
        case += f", k {int(one.top_k[0])}, p {float(one.top_p[0]):g}"
    case += "" if one.min_p is None else f", min-p {float(one.min_p[0]):g}"
    there = tuple(_there(group, context.device) for group in groups)
    chosen = triton_sampler.sample(logits.to(context.device), there).cpu()
    expected = sampler.sample(logits, groups)
    problems = list(_problems(logits, groups, chosen, expected))
    context.check(kernel, case, float(len(problems) > 0), "; ".join(problems[:3]))


def _at_limit(logits: Tensor, group: RandomRows, pair: Tensor) -> Tensor:
    # [N]: the tokens before one of the two have probability p to within rounding.
    if group.top_k is None or group.top_p is None:
        return torch.zeros(len(pair), dtype=torch.bool)
    scaled = (logits[group.rows].float() / group.temperature).double()
    ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(ordered.shape[1]) >= group.top_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    before = torch.empty_like(probabilities).scatter_(1, tokens, probabilities.cumsum(-1) - probabilities)
    return ((before.gather(1, pair) - group.top_p).abs() < ROUNDING).any(1)


def _problems(logits: Tensor, groups: tuple[RandomRows, ...], chosen: Tensor, expected: Tensor) -> Iterator[str]:
    if bad := [token for token in chosen.tolist() if not 0 <= token < logits.shape[1]]:
        yield f"tokens {bad[:5]} are not in the vocabulary"
        return
    drawn = torch.zeros(len(logits), dtype=torch.bool)
    for group in groups:
        drawn[group.rows] = True
        scores = logits[group.rows].float() / group.temperature
        scores -= exponential(group.seeds, group.positions, logits.shape[1]).log_()
        pair = torch.stack([chosen[group.rows], expected[group.rows]], dim=1)
        first, second = scores.gather(1, pair).unbind(1)
        equal = (pair[:, 0] == pair[:, 1]) | ((first - second).abs() < ROUNDING) | _at_limit(logits, group, pair)
        for row, (found, wanted) in zip(group.rows[~equal].tolist(), pair[~equal].tolist(), strict=True):
            yield f"row {row} draws token {found} instead of {wanted}"
    for row in ((chosen != expected) & ~drawn).nonzero()[:, 0].tolist():
        yield f"greedy row {row} takes token {int(chosen[row])} instead of {int(expected[row])}"


def _logits(context: Context, vocab: int) -> None:
    # Masks, bias and penalties give the bits of plain torch.
    device, rows = context.device, 9
    logits = odd_rows(vocab, rows, torch.float32)
    for count in (1, min(700, rows * vocab)):
        at = torch.randperm(rows * vocab, generator=torch.Generator().manual_seed(count))[:count]
        entries = Entries(at // vocab, at % vocab)
        added = torch.randn(count, generator=torch.Generator().manual_seed(3))
        at_rows, at_tokens = entries.rows.to(device), entries.tokens.to(device)
        case = f"{vocab} tokens, {count} entries"

        found, expected = logits.to(device, copy=True), logits.clone()
        add_bias(found, at_rows, at_tokens, added.to(device))
        Bias(entries, added).apply_(expected)
        report(context, "bias", case, same(found, expected))
    _penalties(context, logits)
    _masks(context, logits)


def _penalties(context: Context, logits: Tensor) -> None:
    # Three rows, whose counts are in other slots.
    device, generator = context.device, torch.Generator().manual_seed(3)
    vocab = logits.shape[1]
    rows, slots = torch.tensor([4, 0, 6]), torch.tensor([1, 3, 0])
    counts = torch.randint(0, 9, (4, vocab), generator=generator, dtype=torch.int32)
    params = torch.rand(4, 3, generator=generator, dtype=torch.float64) + 0.5
    found, expected = logits.to(device, copy=True), logits.clone()
    penalise_counted(found, *(each.to(device) for each in (rows, slots, counts, params)))
    CountedPenalties(rows, slots, slots.numpy(), counts, params).apply_(expected)
    report(context, "penalties", f"{vocab} tokens", same(found, expected))


def _masks(context: Context, logits: Tensor) -> None:
    vocab, masked = logits.shape[1], [4, 0, 6]
    random = np.random.default_rng(vocab)
    words = random.integers(-(2**31), 2**31, (len(masked), -(-vocab // 32)))
    words[1] = 0
    words[1, -1] = 1 << (vocab - 1) % 32
    words[2] = -1
    packed = (words % 2**32).astype("<u4").tobytes()
    found, expected = logits.to(context.device, copy=True), logits.clone()
    there = torch.from_numpy(np.frombuffer(packed, "<i4").reshape(words.shape).astype(np.int32))
    rows = torch.tensor(masked, device=context.device)
    mask_rows(found, there.to(context.device), rows)
    TokenMasks.unpack(packed, masked, vocab, torch.device("cpu")).apply_(expected, None)
    report(context, "masks", f"{vocab} tokens", same(found, expected))

    saved = found[rows]
    emptied = found.clone()
    emptied[masked[1]] = -torch.inf
    restored = emptied.clone()
    restored[masked[1]] = saved[1]
    restore_rows(emptied, saved, rows)
    report(context, "restored rows", f"{vocab} tokens", same(emptied, restored))
