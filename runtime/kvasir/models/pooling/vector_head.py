"""VectorHead: the vector of each sequence, from its hidden states. Sums are made in float32."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from kvasir.hub.pooling.module_files import DenseFiles
from kvasir.models.model_load_error import ModelLoadError

# hidden [T, size], lengths [B] → [B, size] float32
Pooling = Callable[[Tensor, Tensor], Tensor]


def _first(hidden: Tensor, lengths: Tensor) -> Tensor:
    return hidden[lengths.cumsum(0) - lengths].float()


def _last(hidden: Tensor, lengths: Tensor) -> Tensor:
    return hidden[lengths.cumsum(0) - 1].float()


def _mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(hidden.float(), "mean", lengths=lengths)


def _max(hidden: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(hidden.float(), "max", lengths=lengths)


def _mean_sqrt(hidden: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(hidden.float(), "sum", lengths=lengths) / lengths[:, None].sqrt()


def _weighted_mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    # Later tokens count more: 1, 2, 3, …
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    weights = torch.arange(1, len(hidden) + 1, device=hidden.device) - starts  # [T]
    total = lengths * (lengths + 1) / 2
    return torch.segment_reduce(hidden.float() * weights[:, None], "sum", lengths=lengths) / total[:, None]


POOLINGS: Final = MappingProxyType[str, Pooling](
    {
        "cls": _first,
        "lasttoken": _last,
        "max": _max,
        "mean": _mean,
        "mean_sqrt_len_tokens": _mean_sqrt,
        "weightedmean": _weighted_mean,
    }
)
_ACTIVATIONS: Final = MappingProxyType[str, Callable[[Tensor], Tensor]](
    {"GELU": F.gelu, "Identity": lambda x: x, "ReLU": F.relu, "Tanh": torch.tanh, "SiLU": F.silu}
)


class _Dense(nn.Module):
    """A linear layer of sentence-transformers, in float32."""

    def __init__(self, files: DenseFiles, device: torch.device) -> None:
        super().__init__()
        file = files.path / "model.safetensors"
        if files.activation not in _ACTIVATIONS:
            raise ModelLoadError(
                f"{files.path / 'config.json'}: the activation {files.activation} is not supported: "
                f"{', '.join(_ACTIVATIONS)} are"
            )
        self._activation = _ACTIVATIONS[files.activation]
        try:
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                weight = tensors.get_tensor("linear.weight").float()
                bias = tensors.get_tensor("linear.bias").float() if files.bias else None
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file} cannot be read as safetensors: {error}. Fetch it again") from error
        if weight.shape != (files.outputs, files.inputs):
            raise ModelLoadError(f"{file} does not fit its config.json: its shape is {list(weight.shape)}")
        self._weight, self._bias = weight, bias  # not parameters: the model's loader does not fill them

    def forward(self, x: Tensor) -> Tensor:
        return self._activation(F.linear(x, self._weight, self._bias))


class VectorHead(nn.Module):
    def __init__(
        self, modes: Sequence[str], size: int, dense: Sequence[DenseFiles], normalise: bool, device: torch.device
    ) -> None:
        super().__init__()
        self._poolings = [POOLINGS[mode] for mode in modes]
        self._dense = nn.ModuleList(_Dense(files, device) for files in dense)
        self._normalise = normalise
        self.size = dense[-1].outputs if dense else size * len(modes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors [B, size] in float32, not normalised. hidden [T, hidden], lengths [B]."""
        parts = [pooling(hidden, lengths) for pooling in self._poolings]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        for dense in self._dense:
            vectors = dense(vectors)
        return vectors

    def finish(self, vector: Tensor, dimensions: int | None, normalise: bool | None) -> Tensor:
        """Cut a vector [size] (Matryoshka), then normalise it: the other order would not give length 1."""
        vector = vector[:dimensions]
        return F.normalize(vector, dim=-1) if (self._normalise if normalise is None else normalise) else vector
