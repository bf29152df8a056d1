"""A model that is divided after some layer computes the same as the whole model."""

from pathlib import Path

import pytest
import torch
from torch import nn

from kvasir.hub.model_info import load_model_info
from kvasir.layers.attention import KVCache
from kvasir.layers.parameter import Placement
from kvasir.models.architectures.gpt2 import GPT2
from kvasir.models.causal_lm import Generates
from kvasir.models.decoder import Decoder
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.load_model import load_model
from kvasir.params import SamplingParams
from kvasir.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.cache_memory import single_group
from kvasir.worker.step import NewRow, ScheduledRow
from runtime.models.tiny import MODELS, VOCAB, save

PLACEMENT = Placement(torch.device("cpu"), torch.float32)
TOKENS, BLOCK = 21, 8


def load(path: Path) -> Generates:
    return load_model(load_model_info(path), PLACEMENT, 64, lambda done, total: None)


def part(path: Path, layers: slice, *, last: bool) -> Generates:
    """Some layers of a model; without the norm if other layers follow."""
    model = load(path)
    if isinstance(model, Decoder):
        model.layers = nn.ModuleList(list(model.layers)[layers])
        model._rope_of_layer = model._rope_of_layer[layers]
        model.norm = model.norm if last else None
    else:
        assert isinstance(model, GPT2)
        model.h = nn.ModuleList(list(model.h)[layers])
        model.ln_f = model.ln_f if last else None
    return model


def one_request(model: Generates, arrived: Intermediate | None = None, layers: int = 3) -> ForwardBatch:
    table = RequestTable(1, 64, BLOCK)
    table.add(NewRow("r", packed(range(7, 7 + TOKENS)), TOKENS, SamplingParams(max_tokens=1, seed=0)))
    table.append_blocks(0, [[3, 1, 2]])
    groups = single_group(model, BLOCK, torch.float32)
    inputs = InputBuilder(
        table, PLACEMENT, groups=groups, heads=model.heads, windows=model.windows, vocab_size=VOCAB
    )
    batch = inputs.build([ScheduledRow("r", 0, TOKENS, [])])
    size = (4, 2, model.heads.kv_heads, BLOCK, model.heads.head_dim)
    caches = [KVCache(torch.zeros(size)) for _ in range(layers)]
    return ForwardBatch(batch.token_ids, batch.positions, batch.attention, caches, arrived)


@pytest.mark.parametrize("name", ["llama-gqa", "gemma2", "phi", "gpt2"])
@torch.inference_mode()
def test_parts_of_a_model_compute_the_whole(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    whole = load(path)
    expected = whole.forward(one_request(whole))
    first, second = part(path, slice(1), last=False), part(path, slice(1, 3), last=True)
    arrived = first.forward(one_request(first, layers=1))
    assert isinstance(arrived, Intermediate)
    computed = second.forward(one_request(second, arrived, layers=2))
    assert isinstance(computed, Hidden)
    assert isinstance(expected, Hidden)
    assert torch.equal(computed.last, expected.last)
