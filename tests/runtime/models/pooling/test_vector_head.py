"""The poolings of sentence-transformers, by their definitions, and its dense layers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kvasir.hub.pooling.module_files import DenseFiles
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.pooling.vector_head import POOLINGS, VectorHead

LENGTHS = [3, 1, 5]
CPU = torch.device("cpu")


def definition(mode: str, x: Tensor) -> Tensor:  # [L, H] → [H]
    weights = torch.arange(1, len(x) + 1)[:, None]
    poolings: dict[str, Tensor] = {
        "cls": x[0],
        "lasttoken": x[-1],
        "max": x.max(0).values,
        "mean": x.mean(0),
        "mean_sqrt_len_tokens": x.sum(0) / len(x) ** 0.5,
        "weightedmean": (x * weights).sum(0) / weights.sum(),
    }
    return poolings[mode]


@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_equals_its_definition(mode: str) -> None:
    hidden = torch.randn(sum(LENGTHS), 4, generator=torch.Generator().manual_seed(0))
    head = VectorHead([mode], 4, [], False, CPU)
    found = head(hidden, torch.tensor(LENGTHS))
    expected = torch.stack([definition(mode, each) for each in hidden.split(LENGTHS)])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_dense_layers_follow_the_pooling(tmp_path: Path) -> None:
    weight, bias = torch.randn(2, 4), torch.randn(2)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "model.safetensors")
    head = VectorHead(["cls"], 4, [DenseFiles(tmp_path, 4, 2, True, "Tanh")], True, CPU)
    hidden = torch.randn(3, 4)
    (found,) = head(hidden, torch.tensor([3]))
    np.testing.assert_allclose(found, torch.tanh(weight @ hidden[0] + bias), atol=1e-6)
    assert head.size == 2
    with pytest.raises(ModelLoadError, match="Softmax is not supported"):
        VectorHead(["cls"], 4, [DenseFiles(tmp_path, 4, 2, True, "Softmax")], True, CPU)
