from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvasir.hub.model_info import load_model_info
from kvasir.layers.kv import KVCacheConfig
from kvasir.layers.parameter import Placement
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.load_model import load_model
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import allocate, single_group
from kvasir.worker.step import NewRow, ScheduledRow
from runtime.models.mixtures import MIXTURES
from runtime.models.tiny import FAMILIES, MODELS, VOCAB, load_reference, save

BLOCK = 8
TOKENS = 72


ALL = {
    **MODELS,
    **{name: FAMILIES[name] for name in ("cohere", "hunyuan", "nemotron", "olmo2")},
    **{name: MIXTURES[name] for name in ("gpt-oss", "glm4-moe")},
}


@pytest.fixture(params=list(ALL))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(ALL[request.param]().bfloat16(), tmp_path)


class Computing:
    """One request of TOKENS tokens on a model, its steps built as the worker builds them."""

    def __init__(self, path: Path, dtype: torch.dtype, ids: Tensor) -> None:
        placement = Placement(torch.device("cpu"), dtype)
        self.model = load_model(load_model_info(path), placement, 256, lambda done, total: None)
        config = KVCacheConfig(single_group(self.model, BLOCK, dtype), TOKENS // BLOCK)
        self._caches = allocate(config, self.model.heads, placement)
        table = RequestTable(1, TOKENS, BLOCK)
        table.add(NewRow("r", packed(ids.tolist()), TOKENS, SamplingParams(max_tokens=1, seed=0, temperature=0.0)))
        table.append_blocks(0, [list(range(1, 1 + TOKENS // BLOCK))])
        self._inputs = InputBuilder(
            table,
            placement,
            groups=config.groups,
            heads=self.model.heads,
            windows=self.model.windows,
            vocab_size=VOCAB,
            max_tokens=256,
        )

    def step(self, start: int, count: int) -> Tensor:
        """[count, vocabulary]"""
        batch = self._inputs.build([ScheduledRow("r", start, count, [])])
        hidden = self.model.forward(ForwardBatch(batch.token_ids, batch.positions, batch.attention, self._caches))
        assert isinstance(hidden, Hidden)
        return self.model.logits(hidden.last).float()


def prefill(request: Computing) -> Tensor:
    return request.step(0, TOKENS)


def chunks(request: Computing) -> Tensor:
    return torch.cat([request.step(start, 24) for start in range(0, TOKENS, 24)])


def decode(request: Computing) -> Tensor:
    """One token after the other, through the cache."""
    return torch.cat([request.step(place, 1) for place in range(TOKENS)])


def error(logits: Tensor, exact: Tensor) -> float:
    """As a share of the logits' spread; of the median token, because where rounding tips the choice of an expert a
    token differs wholly."""
    return float((logits - exact).square().mean(dim=1).sqrt().median() / exact.std())


@torch.inference_mode()
def test_logits_are_as_exact_as_those_of_transformers(path: Path) -> None:
    ids = torch.randint(0, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(4))
    exact = load_reference(path, torch.float32)(ids[None]).logits[0]
    theirs = error(load_reference(path, torch.bfloat16)(ids[None]).logits[0].float(), exact)
    assert theirs > 1e-3, "the reference must show rounding, or this test shows nothing"
    for way in (prefill, chunks, decode):
        assert error(way(Computing(path, torch.bfloat16, ids)), exact) <= 1.15 * theirs
        assert error(way(Computing(path, torch.float32, ids)), exact) <= 1e-5
