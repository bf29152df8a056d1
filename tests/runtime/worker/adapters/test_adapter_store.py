"""AdapterStore reads adapters in pieces, and refuses those of other models."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import OlmoConfig

from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.options import ConfigError
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.adapters.adapter_matrices import AdapterMatrices
from kvasir.layers.adapters.slot_matrices import DeviceMatrices
from kvasir.layers.layout import WHOLE
from kvasir.layers.linear import Linear
from kvasir.layers.linear_shape import LinearShape
from kvasir.layers.parameter import Placement
from kvasir.models.load_model import load_model
from kvasir.worker.adapters import adapter_store
from kvasir.worker.adapters.adapted_layers import UnfitAdapter
from kvasir.worker.adapters.adapter_store import AdapterStore
from runtime.hub.adapters.adapter_files import write_adapter
from runtime.models.tiny import MODELS, decoder, llama, save
from runtime.worker.driver import Driver

Q_PROJ = "model.layers.1.self_attn.q_proj"


def loaded(path: Path, quantization: str | None = None) -> tuple[AdapterStore, dict[str, Linear], AdapterSlots]:
    info = load_model_info(path, ModelFiles(quantization=quantization))
    slots = AdapterSlots(2, 16, torch.device("cpu"))
    placement = Placement(torch.device("cpu"), torch.float32, scheme=info.weight_scheme, adapters=slots)
    model = load_model(info, placement, 64, lambda done, total: None)
    store = AdapterStore()
    store.open(model, text_only=False)  # type: ignore[arg-type]
    linears = {each.name: each for each in model.modules() if isinstance(each, Linear)}  # type: ignore[attr-defined]
    return store, linears, slots


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantised_layer_gets_the_adapters_product(quantization: str, tmp_path: Path) -> None:
    store, linears, slots = loaded(save(llama(), tmp_path / "model"), quantization)
    adapter = write_adapter(tmp_path / "a", {Q_PROJ: (64, 64)})
    assert store.load_adapter("d", str(adapter))
    store.place([(1, "d")])
    layer, x = linears["layers.1.self_attn.qkv_proj"], torch.randn(3, 64)
    slots.begin(None)
    plain = layer(x)
    slots.begin(torch.tensor([1, -1, 1]).numpy())
    added = layer(x) - plain
    (down, up), *_ = layer.method.slots.held.values()  # type: ignore[attr-defined]
    assert torch.allclose(added[::2], (x @ down.T @ up.T)[::2], atol=1e-4)
    assert added[::2, :64].abs().max() > 0.1
    assert not added[1].any()
    assert not added[:, 64:].any()


def test_an_adapter_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_store, "PIECE_SECONDS", 1e-9)
    store, linears, _ = loaded(save(llama(), tmp_path / "model"))
    modules = {f"model.layers.{layer}.mlp.down_proj": (112, 64) for layer in range(3)}
    path = str(write_adapter(tmp_path / "a", modules))
    pieces = [store.load_adapter("d", path)]
    while not pieces[-1]:
        pieces.append(store.load_adapter("d", path))
    assert len(pieces) > 2
    assert store.load_adapter("d", "/gone")  # it is held
    store.place([(0, "d")])
    methods = [linears[f"layers.{layer}.mlp.down_proj"].method for layer in range(3)]
    assert all(method.slots.held for method in methods)  # type: ignore[attr-defined]
    store.drop_adapter("d")
    assert not any(method.slots.held for method in methods)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "module", "sizes", "said"),
    [
        ("llama-gqa", Q_PROJ, (64, 128), "its shape is [128, 4] and the model has [64, 4]"),
        ("llama-gqa", Q_PROJ, (32, 64), "its shape is [4, 32] and the model has [4, 64]"),
        ("llama-gqa", "model.layers.9.self_attn.q_proj", (64, 64), "which this model does not have"),
        ("llama-gqa", "transformer.h.0.attn.c_attn", (64, 192), "which this model does not have"),
        ("llama-gqa", "lm_head", (64, 256), "only linear layers within"),
        ("qwen3-moe", "model.layers.0.mlp.experts.1.up_proj", (64, 48), "experts of a mixture are not adapted"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    name: str, module: str, sizes: tuple[int, int], said: str, tmp_path: Path
) -> None:
    store, *_ = loaded(save(MODELS[name](), tmp_path / "model"))
    path = str(write_adapter(tmp_path / "a", {module: sizes}))
    for _ in range(2):
        with pytest.raises(UnfitAdapter, match=re.escape(said)):
            store.load_adapter("d", path)


@pytest.mark.parametrize(
    "other", [("layers.1.self_attn.q_proj", (64, 64)), ("model.layers.1.self_attn.qkv_proj", (64, 128))]
)
def test_matrices_of_one_layer_may_not_overlap(other: tuple[str, tuple[int, int]], tmp_path: Path) -> None:
    store, *_ = loaded(save(llama(), tmp_path / "model"))
    path = str(write_adapter(tmp_path / "a", dict([(Q_PROJ, (64, 64)), other])))
    with pytest.raises(UnfitAdapter, match="the same layer of this model more than once") as refused:
        store.load_adapter("d", path)
    assert other[0] in str(refused.value)


def test_a_device_slot_keeps_nothing_of_an_earlier_adapter() -> None:
    slots = AdapterSlots(2, 4, torch.device("cpu"))
    matrices = DeviceMatrices(LinearShape(8, {WHOLE: 6}), Placement(torch.device("cpu"), torch.float32), slots)
    matrices.hold(1, AdapterMatrices(torch.full((4, 8), torch.nan), torch.ones(6, 4)))
    matrices.hold(1, AdapterMatrices(torch.ones(2, 8), torch.ones(6, 2)))
    product = torch.ones(8) @ matrices.down[1].T @ matrices.up[1].T
    assert torch.equal(product, torch.full((6,), 16.0))


def test_a_model_of_transformers_refuses_adapters(tmp_path: Path) -> None:
    path = save(decoder(OlmoConfig), tmp_path)
    with pytest.raises(ConfigError, match="--enable-lora: OlmoForCausalLM is computed by transformers' code"):
        Driver.load(path, lora=replace(LoRAConfig(), enable_lora=True))
