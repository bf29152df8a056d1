"""Tensors of a GGUF file by the names and in the order of the checkpoint that it was made from.

They are dequantised when they are read, each rank its own rows.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvasir.hub.gguf.gguf_file import GGUFTensor, read_tensors
from kvasir.hub.gguf.gguf_names import EXPERTS, FAMILIES, IN_CONFIG, Family, checkpoint_name, leaf_of
from kvasir.hub.gguf.kept_layers import GGUF, kept_name
from kvasir.hub.reading import read_json
from kvasir.hub.weight_scheme import WeightScheme
from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.checkpoints.gguf_kept import kept_tensors
from kvasir.models.checkpoints.gguf_rows import PLAIN, Rows

log = logging.getLogger(__name__)


@contextmanager
def gguf_tensors(file: Path, scheme: WeightScheme) -> Iterator[list[CheckpointTensor]]:
    """Raises ModelLoadError without the `gguf` package, and HubError for a broken file."""
    tensors = [tensor for tensor in read_tensors(file).tensors if not IN_CONFIG.fullmatch(tensor.name)]
    config = read_json(file.parent / "config.json")
    kept = scheme.config["kept"] if scheme.method == GGUF else {}
    content = np.memmap(file, np.uint8, "r")
    checkpoint = _Checkpoint(file, FAMILIES[config["model_type"]], config, kept)
    named = [checkpoint.named(tensor, Rows(tensor, content)) for tensor in tensors]
    kinds = Counter(tensor.kind for each in named for tensor in each if isinstance(tensor, _Floats))
    if counts := ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if kind not in PLAIN):
        log.info("%s: tensors are dequantised at load: %s", file.resolve().name, counts)
    yield [tensor for each in named for tensor in each]


@dataclass(frozen=True)
class _Checkpoint:
    file: Path
    family: Family
    config: Mapping[str, Any]
    kept: Mapping[str, str]  # types by layer

    def named(self, tensor: GGUFTensor, rows: "Rows") -> list[CheckpointTensor]:
        name = checkpoint_name(tensor.name, self.family)
        if not EXPERTS.fullmatch(tensor.name):
            return self._one(tensor, name, tensor.shape, rows, tensor.num_bytes)
        count, outputs, inputs = tensor.shape
        layer, _, part = name.rpartition(".experts.")
        found: list[CheckpointTensor] = []
        for expert in range(count):
            own = rows.section(expert * outputs, outputs)
            path = f"{layer}.experts.{expert}.{part}"
            found += self._one(tensor, path, (outputs, inputs), own, tensor.num_bytes // count)
        return found

    def _one(
        self, tensor: GGUFTensor, name: str, shape: tuple[int, ...], rows: "Rows", num_bytes: int
    ) -> list[CheckpointTensor]:
        leaf, origin = leaf_of(tensor.name), Origin(name, self.file)
        if self.family.interleaved and leaf in ("attn_q", "attn_k"):
            heads = self.config["num_attention_heads" if leaf == "attn_q" else "num_key_value_heads"]
            rows = rows.in_order(_halves(shape[0], heads))
        layer, _, last = name.rpartition(".")
        if last == "weight" and kept_name(layer) in self.kept:
            return list(kept_tensors(layer, self.file, shape, num_bytes, rows))
        transposed = leaf in self.family.transposed and last == "weight"
        offset = 1.0 if self.family.offset_norms and leaf.endswith("norm") else 0.0
        return [_Floats(origin, shape[::-1] if transposed else shape, num_bytes, rows, offset, transposed)]


def _halves(size: int, heads: int) -> NDArray[np.int64]:
    """Return the rows that rotate neighbours in an order that rotates halves.

    >>> _halves(8, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(size).reshape(heads, size // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class _Floats:
    def __init__(
        self,
        origin: Origin,
        shape: tuple[int, ...],
        nbytes: int,
        rows: Rows,
        offset: float = 0.0,
        transposed: bool = False,
    ) -> None:
        self.origin, self.shape, self.nbytes, self.kind = origin, shape, nbytes, rows.kind
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
