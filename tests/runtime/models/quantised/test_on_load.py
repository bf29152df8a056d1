import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme, chosen_scheme, read_scheme
from kvasir.layers.quantised.packings.on_load_packing import quantised_int4
from kvasir.layers.quantised.weight import QuantisedWeight
from kvasir.models.product_weights import product_weights
from kvasir.parallel.parallel_state import ParallelState
from runtime.models.quantised.checkpoints import LLAMA, MOE, assert_alike, linear_layers, write, write_pair
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy


def float_model(folder: Path, config: dict[str, object]) -> Path:
    return write_pair(folder, {}, lambda name, shape: None, config)[1]


def rounded(weight: Tensor, numbers: str, ranks: int = 1, dim: int = 0) -> Tensor:
    if dim == 1 and ranks > 1:  # each rank rounds its own inputs
        return torch.cat([rounded(part, numbers) for part in weight.chunk(ranks, 1)], 1)
    if numbers == "int4":
        return QuantisedWeight(*quantised_int4(weight, weight.shape[1])).dequantised(torch.float32)
    largest = weight.abs().amax(1, keepdim=True)
    if numbers == "int8":
        return (weight / largest * 127).round() * largest / 127
    return (weight / largest * 448).to(torch.float8_e4m3fn).float() * largest / 448


def with_rounded_floats(path: Path, numbers: str, config: dict[str, object], ranks: int = 1) -> Path:
    tensors = load_file(path / "model.safetensors")
    for name in linear_layers(config):
        if name.endswith("mlp.gate") or (name == "lm_head" and numbers == "fp8"):
            continue
        used = "int8" if name == "lm_head" else numbers
        split = name.endswith(("o_proj", "down_proj"))
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = rounded(weight, used, ranks, int(split))
    return write(path.parent / f"rounded-{numbers}-{ranks}", config, tensors)


@pytest.mark.parametrize(("numbers", "config"), [("int8", LLAMA), ("int4", LLAMA), ("fp8", LLAMA), ("int4", MOE)])
def test_floats_are_rounded_to_the_numbers(numbers: str, config: dict[str, object], tmp_path: Path) -> None:
    path = float_model(tmp_path, config)
    assert_alike(path, with_rounded_floats(path, numbers, config), quantization=numbers)
    expected = with_rounded_floats(path, numbers, config, ranks=2)
    run_ranks(2, lambda tensor: assert_alike(path, expected, ParallelState(tensor), quantization=numbers))


def test_int4_takes_the_better_zero_of_each_group() -> None:
    weight = torch.randn(48, 192, generator=torch.Generator().manual_seed(1))
    weight[:16] += 3  # all numbers on one side
    weight[16:32, 0] = -9
    weight[32] = 0
    quantised = QuantisedWeight(*quantised_int4(weight, 64))
    groups = weight.unflatten(1, (3, 64))
    error = (quantised.dequantised(torch.float32).unflatten(1, (3, 64)) - groups).square().sum(2)
    span = (groups.amax(2).clamp(min=0) - groups.amin(2).clamp(max=0)) / 15
    assert (error <= 64 * (span * 0.501) ** 2).all()
    place = groups.abs().argmax(2, keepdim=True)
    scale = groups.gather(2, place) / -8
    symmetric = (groups / scale).round().clamp(-8, 7) * scale - groups
    assert (error <= symmetric.nan_to_num().square().sum(2) + 1e-5).all()


def test_a_tied_head_is_quantised_and_its_embedding_is_not(tmp_path: Path) -> None:
    config = {**LLAMA, "tie_word_embeddings": True}
    path = float_model(tmp_path, LLAMA)
    tensors = load_file(path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    untied = write(tmp_path / "untied", LLAMA, tensors | {"lm_head.weight": embedding.clone()})
    del tensors["lm_head.weight"]
    expected = with_rounded_floats(untied, "int8", LLAMA)
    assert_alike(write(tmp_path / "tied", config, tensors), expected, quantization="int8")


def test_dummy_weights_are_made_for_each_scheme(tmp_path: Path) -> None:
    path = float_model(tmp_path, LLAMA)
    for numbers in ("int8", "int4", "fp8"):
        driver = Driver.load(path, load_format="dummy", files=ModelFiles(quantization=numbers))
        driver.add("r", [3, 4, 5], greedy(2))
        assert len(driver.run()["r"]) == 2


def test_weights_are_counted_in_their_numbers(tmp_path: Path) -> None:
    path = float_model(tmp_path, LLAMA)
    sizes = {}
    for numbers in (None, "int8", "int4"):
        counted = product_weights(load_model_info(path, ModelFiles(quantization=numbers)), "float32")
        assert counted is not None
        sizes[numbers] = counted.num_bytes
    assert 0.25 < sizes["int8"] / sizes[None] < 0.28
    assert 0.14 < sizes["int4"] / sizes[None] < 0.19


def test_the_fingerprint_tells_schemes_apart(tmp_path: Path) -> None:
    path = float_model(tmp_path, LLAMA)
    found = {load_model_info(path, ModelFiles(quantization=each)).fingerprint for each in (None, "int8", "int4")}
    assert len(found) == 3


AWQ = read_scheme({"quant_method": "awq", "bits": 4, "group_size": 128})


@pytest.mark.parametrize("option", [None, "none", "awq", "awq_marlin"])
def test_the_own_method_of_a_checkpoint_is_accepted(option: str | None) -> None:
    assert chosen_scheme(option, AWQ) == AWQ


def test_other_names_of_the_same_are_accepted() -> None:
    assert chosen_scheme("fp8_per_channel", UNQUANTISED) == chosen_scheme("fp8", UNQUANTISED)
    assert chosen_scheme("int8_per_channel_weight_only", UNQUANTISED).option == "int8"
    fp8 = read_scheme({"quant_method": "fp8"})
    assert chosen_scheme("fp8", fp8) == fp8


@pytest.mark.parametrize(
    ("option", "checkpoint", "said"),
    [
        ("int8", AWQ, "--quantization int8: .* quantised already, with awq: leave the option out"),
        ("gptq", AWQ, "--quantization gptq: .* quantised already, with awq"),
        ("awq", UNQUANTISED, "--quantization awq: .* are not quantised: give int8, int4, fp8 .* with awq weights"),
        ("int3", UNQUANTISED, "--quantization int3: there is no such format: give int8, int4, fp8 "),
    ],
)
def test_an_option_that_does_not_fit_is_refused(option: str, checkpoint: WeightScheme, said: str) -> None:
    with pytest.raises(HubError, match=said):
        chosen_scheme(option, checkpoint)


def test_the_log_names_the_scheme_and_its_products(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = float_model(tmp_path, LLAMA)
    with caplog.at_level("INFO", "kvasir.models.load_model"):
        Driver.load(path, files=ModelFiles(quantization="int8"))
    assert re.search(r"weights: --quantization int8; (9|0) quantised layers", caplog.text)
