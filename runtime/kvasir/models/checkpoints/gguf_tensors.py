"""Tensors of a GGUF file by the names and in the order of the checkpoint that it was made from.

They are dequantised when they are read, each rank its own rows.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir.hub.gguf.gguf_file import TYPES, GGUFTensor, read_tensors
from kvasir.hub.reading import read_json
from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.model_load_error import ModelLoadError

log = logging.getLogger(__name__)

_PLAIN: Final = MappingProxyType({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16})
_BYTES_OF_BLOCK: Final = MappingProxyType({name: (block, size) for name, block, size in TYPES.values()})
# More at a time do not fit into the cache of a core, and take three times as long.
_MAX_WEIGHTS: Final = 2**18
# Numbers that the config has instead.
_IN_CONFIG: Final = re.compile(r"(blk\.\d+\.)?rope_(freqs|factors_long|factors_short)\.weight")
_EXPERTS: Final = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")

_LLAMA: Final = MappingProxyType({
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
})  # fmt: skip
_SANDWICH: Final = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_PHI3: Final = _LLAMA | {"ffn_up": "mlp.gate_up_proj"}
_PHI: Final = _LLAMA | {
    "output_norm": "model.final_layernorm", "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
_GPT2: Final = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "output": "lm_head", "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip


@dataclass(frozen=True)
class _Family:
    names: Mapping[str, str]
    layers: str = "model.layers"
    # Queries and keys are ordered for rotating neighbours, not halves.
    interleaved: bool = False
    # Norms hold 1 + the weight of the checkpoint.
    offset_norms: bool = False
    # GPT-2's matrices are [inputs, outputs].
    transposed: frozenset[str] = field(default_factory=frozenset)


# by model_type of config.json
_FAMILIES: Final = MappingProxyType(
    {
        "gemma": _Family(_LLAMA, offset_norms=True),
        "gemma2": _Family(_SANDWICH, offset_norms=True),
        "gemma3_text": _Family(_SANDWICH, offset_norms=True),
        "gpt2": _Family(
            _GPT2,
            layers="transformer.h",
            transposed=frozenset(("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
        ),
        "llama": _Family(_LLAMA, interleaved=True),
        "phi": _Family(_PHI),
        "phi3": _Family(_PHI3),
        "qwen2": _Family(_LLAMA),
        "qwen3": _Family(_LLAMA),
        "qwen3_moe": _Family(_LLAMA),
    }
)


@contextmanager
def gguf_tensors(file: Path) -> Iterator[list[CheckpointTensor]]:
    """Raises ModelLoadError without the `gguf` package, and HubError for a broken file."""
    tensors = [tensor for tensor in read_tensors(file).tensors if not _IN_CONFIG.fullmatch(tensor.name)]
    config = read_json(file.parent / "config.json")
    family = _FAMILIES[config["model_type"]]
    content = np.memmap(file, np.uint8, "r")
    kinds = Counter(tensor.type for tensor in tensors if tensor.type not in _PLAIN)
    if kinds:
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        log.info("%s: tensors are dequantised at load: %s", file.resolve().name, counts)
    yield [named for tensor in tensors for named in _named(tensor, Rows(tensor, content), family, config, file)]


def _named(
    tensor: GGUFTensor, rows: "Rows", family: _Family, config: Mapping[str, Any], file: Path
) -> Iterator[CheckpointTensor]:
    if match := _EXPERTS.fullmatch(tensor.name):
        count, outputs, inputs = tensor.shape
        layer, part = match.groups()
        for expert in range(count):
            name = f"{family.layers}.{layer}.mlp.experts.{expert}.{part}_proj.weight"
            own = rows.section(expert * outputs, outputs)
            yield _Tensor(Origin(name, file), (outputs, inputs), tensor.num_bytes // count, own)
        return
    path = tensor.name.split(".")
    leaf, suffix = path[-2] if len(path) > 1 else "", path[-1]
    name = f"{family.names.get(leaf, leaf)}.{suffix}"
    if path[0] == "blk":
        name = f"{family.layers}.{path[1]}.{name}"
    if family.interleaved and leaf in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if leaf == "attn_q" else "num_key_value_heads"]
        rows = rows.in_order(_halves(tensor.shape[0], heads))
    transposed = leaf in family.transposed and suffix == "weight"
    yield _Tensor(
        Origin(name, file),
        tensor.shape[::-1] if transposed else tensor.shape,
        tensor.num_bytes,
        rows,
        offset=1.0 if family.offset_norms and leaf.endswith("norm") else 0.0,
        transposed=transposed,
    )


def _halves(size: int, heads: int) -> NDArray[np.int64]:
    """Return the rows that rotate neighbours in an order that rotates halves.

    >>> _halves(8, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(size).reshape(heads, size // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class Rows:
    """The rows of a tensor in the file, or some of them in another order."""

    def __init__(self, tensor: GGUFTensor, content: NDArray[np.uint8]) -> None:
        block, block_bytes = _BYTES_OF_BLOCK[tensor.type]
        self.type = tensor.type
        end = tensor.start + tensor.num_bytes
        self._bytes = content[tensor.start : end].reshape(-1, tensor.shape[-1] // block * block_bytes)
        self._order: NDArray[np.int64] | None = None

    def section(self, start: int, count: int) -> "Rows":
        other = copy(self)
        other._bytes = self._bytes[start : start + count]
        return other

    def in_order(self, order: NDArray[np.int64]) -> "Rows":
        other = copy(self)
        # a bias is one row of the file
        other._bytes = self._bytes.reshape(len(order), -1)
        other._order = order
        return other

    def floats(self, part: slice) -> Tensor:  # [rows, inputs]
        blocks = self._bytes[part if self._order is None else self._order[part]]
        if self.type in _PLAIN:
            return torch.from_numpy(np.array(blocks)).view(_PLAIN[self.type])
        block, block_bytes = _BYTES_OF_BLOCK[self.type]
        inputs = blocks.shape[1] // block_bytes * block
        floats = torch.empty(len(blocks), inputs)
        step = max(1, _MAX_WEIGHTS // inputs)
        for start in range(0, len(blocks), step):
            some = _dequantised(np.array(blocks[start : start + step]), self.type)
            floats[start : start + step] = torch.from_numpy(some)
        return floats


def _dequantised(data: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    try:
        import gguf
    except ImportError as error:
        raise ModelLoadError(
            f"the weights are in GGUF, and the package that reads it is not there ({error}): pip install gguf"
        ) from error
    floats: NDArray[np.float32] = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    return floats


class _Tensor:
    def __init__(
        self,
        origin: Origin,
        shape: tuple[int, ...],
        nbytes: int,
        rows: Rows,
        offset: float = 0.0,
        transposed: bool = False,
    ) -> None:
        self.origin, self.shape, self.nbytes = origin, shape, nbytes
        self._rows, self._offset, self._transposed = rows, offset, transposed

    def __getitem__(self, part: Part, /) -> Tensor:
        if len(self.shape) == 1:
            return self._vector()[part]
        rows, columns = part[::-1] if self._transposed else part
        floats = self._rows.floats(rows)[:, columns]
        return floats.t() if self._transposed else floats

    def _vector(self) -> Tensor:
        floats = self._rows.floats(slice(None)).reshape(self.shape)
        return floats - self._offset if self._offset else floats
