"""The example of a linear method halves the weights and gives the answers of plain ones that are as precise."""

from pathlib import Path

import pytest
import torch

from examples.bfloat16_method import Bfloat16Method
from kvasir.layers import linear
from kvasir.layers.linear import Linear
from kvasir.layers.parameter import Placement
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.tiny import gpt2, llama, save
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy

PROMPT = list(range(2, 40))
MODELS = {"llama": llama, "gpt2": gpt2}  # gpt2: transposed weights, biases, a tied head


def tokens(path: Path, parallel: ParallelState = SINGLE) -> list[int]:
    driver = Driver.load(path, parallel=parallel)
    driver.add("a", PROMPT, greedy(8))
    return driver.run()["a"]


@pytest.mark.parametrize("name", list(MODELS))
def test_weights_take_half_the_memory_and_give_the_same_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()  # numbers that bfloat16 has
    path = save(model, tmp_path)
    expected = tokens(path)
    monkeypatch.setattr(linear, "new_method", lambda placement: Bfloat16Method())
    assert tokens(path) == expected
    assert run_ranks(2, lambda group: tokens(path, ParallelState(group))) == [expected] * 2


def test_the_weight_of_a_layer_is_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(torch.device("cpu"), torch.float32)
    plain = Linear(8, 4, bias=True, placement=placement)
    monkeypatch.setattr(linear, "new_method", lambda placement: Bfloat16Method())
    layer = Linear(8, 4, bias=True, placement=placement)
    assert 2 * layer.weight.nbytes == plain.weight.nbytes
    assert layer(torch.ones(1, 8)).dtype == torch.float32
