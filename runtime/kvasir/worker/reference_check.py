"""Checks that transformers' code computes the same over a flat batch as for one sequence."""

import torch
from torch import Tensor

from kvasir.layers.kv import KVCacheConfig
from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import Generates, ReferencedLM
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.model_load_error import ModelLoadError
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import allocate, single_group
from kvasir.worker.step import NewRow, ScheduledRow

_BLOCK = 4
_BLOCKS = 3
_LENGTHS = {"a": 11, "b": 7}
_STEPS = ((("a", 0, 6), ("b", 0, 6)), (("a", 6, 5), ("b", 6, 1)))  # a prefill of both; a chunk next to a decode
# Relative to the spread of a token's logits. A wrong context gives 1.4; rounding can change the choice of an
# expert.
_TOLERANCE = {torch.float32: 0.01, torch.float16: 0.2, torch.bfloat16: 0.5}


def check_against_reference(model: Generates, placement: Placement) -> None:
    """Raise ModelLoadError if the logits differ. Kvasir's own models have no reference."""
    if not isinstance(model, ReferencedLM):
        return
    generator = torch.Generator().manual_seed(0)
    tokens = {
        name: torch.randint(model.vocab_size, (length,), generator=generator) for name, length in _LENGTHS.items()
    }
    with torch.inference_mode():
        ours = _compute(model, placement, tokens)
        for name, ids in tokens.items():
            reference = model.reference_logits(ids.to(placement.device)).float()
            spread = reference.std(dim=1)
            error = ((ours[name] - reference).square().mean(dim=1).sqrt() / spread).max().item()
            if not error <= _TOLERANCE[placement.dtype]:
                raise ModelLoadError(
                    "transformers' code for this model computes other logits over a flat batch and the paged cache "
                    f"than for one sequence alone (they differ by {error:.2g} of their spread), so it is not served"
                )


def _compute(model: Generates, placement: Placement, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
    # By sequence: [tokens, vocab_size].
    config = KVCacheConfig(single_group(model, _BLOCK, placement.dtype), _BLOCKS * len(tokens))
    caches = allocate(config, model.heads, placement)
    table = RequestTable(len(tokens), _BLOCK * _BLOCKS, _BLOCK)
    for index, (name, ids) in enumerate(tokens.items()):
        table.add(
            NewRow(name, packed(ids.tolist()), len(ids), SamplingParams(max_tokens=1, seed=0, temperature=0.0))
        )
        first = 1 + index * _BLOCKS
        table.append_blocks(table.row_of(name), [list(range(first, first + _BLOCKS))])
    inputs = InputBuilder(
        table,
        placement,
        groups=config.groups,
        heads=model.heads,
        windows=model.windows,
        vocab_size=model.vocab_size,
        max_tokens=_BLOCK * _BLOCKS * len(tokens),
    )
    parts: dict[str, list[Tensor]] = {name: [] for name in tokens}
    for step in _STEPS:
        batch = inputs.build([ScheduledRow(name, start, count, []) for name, start, count in step])
        hidden = model.forward(ForwardBatch(batch.token_ids, batch.positions, batch.attention, caches))
        assert isinstance(hidden, Hidden)
        logits = model.logits(hidden.last).float()
        place = 0
        for name, _, count in sorted(step, key=lambda entry: entry[2] > 1):  # decodes come first
            parts[name].append(logits[place : place + count])
            place += count
    return {name: torch.cat(chunks) for name, chunks in parts.items()}
