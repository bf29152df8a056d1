"""In bfloat16 the logits are as near to the exact ones as those of transformers, in prefill and in decode."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvasir.hub.model import load_model_info
from kvasir.hub.weights import weight_files
from kvasir.layers.attention import AttentionPlan, DecodeGroup, KVCache, PrefillChunk
from kvasir.layers.linear import pack_linears
from kvasir.layers.parameter import Placement
from kvasir.models.base import CausalLM
from kvasir.models.loader import load_weights
from kvasir.models.registry import build_model
from runtime.models.tiny import MODELS, VOCAB, load_reference, save

BLOCK = 8
TOKENS = 72


@pytest.fixture(params=list(MODELS))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(MODELS[request.param]().bfloat16(), tmp_path)


def load(path: Path, dtype: torch.dtype) -> CausalLM:
    info = load_model_info(path)
    placement = Placement(torch.device("cpu"), dtype)
    model = build_model(info.architecture, info.config, placement)
    load_weights(model, weight_files(path), lambda done, total: None)
    pack_linears(model.modules(), placement)
    return model


def empty_caches(model: CausalLM, dtype: torch.dtype) -> list[KVCache]:
    size = (1 + TOKENS // BLOCK, 2, model.heads.kv_heads, BLOCK, model.heads.head_dim)
    return [KVCache(torch.zeros(size, dtype=dtype)) for _ in range(model.num_layers)]


def prefill(model: CausalLM, ids: Tensor, caches: Sequence[KVCache]) -> Tensor:
    positions = torch.arange(TOKENS)
    chunk = PrefillChunk(slice(0, TOKENS), pieces=None, mask=None, length=TOKENS)
    plan = AttentionPlan(positions // BLOCK + 1, positions % BLOCK, decode=(), prefill=(chunk,))
    return model.logits(model.hidden_states(ids, positions, caches, plan)).float()


def decode(model: CausalLM, ids: Tensor, caches: Sequence[KVCache]) -> Tensor:
    """One token after the other, through the cache."""
    halves = torch.arange(2 * model.heads.kv_heads)  # K's heads, then V's
    rows = []
    for place in range(TOKENS):
        blocks = torch.arange(1, place // BLOCK + 2)
        pieces = (blocks * len(halves) + halves.view(2, 1, -1, 1)).reshape(-1)
        unwritten = torch.arange(len(blocks) * BLOCK) > place
        mask = torch.zeros(unwritten.shape).masked_fill(unwritten, -torch.inf)[None, None, None]
        plan = AttentionPlan(
            blocks[-1:], torch.tensor([place % BLOCK]), (DecodeGroup(slice(0, 1), pieces, mask),), prefill=()
        )
        hidden = model.hidden_states(ids[place : place + 1], torch.tensor([place]), caches, plan)
        rows.append(model.logits(hidden).float())
    return torch.cat(rows)


def error(logits: Tensor, exact: Tensor) -> float:
    """As a share of the logits' spread."""
    return float((logits - exact).square().mean().sqrt() / exact.std())


@torch.inference_mode()
def test_logits_are_as_near_to_the_exact_ones_as_those_of_transformers(path: Path) -> None:
    ids = torch.randint(0, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(4))
    exact = load_reference(path, torch.float32)(ids[None]).logits[0]
    theirs = error(load_reference(path, torch.bfloat16)(ids[None]).logits[0].float(), exact)
    assert theirs > 1e-3, "the reference must show rounding, or this test shows nothing"
    for way in (prefill, decode):
        model = load(path, torch.bfloat16)
        assert error(way(model, ids, empty_caches(model, torch.bfloat16)), exact) <= 1.15 * theirs
        model = load(path, torch.float32)
        assert error(way(model, ids, empty_caches(model, torch.float32)), exact) <= 1e-5
