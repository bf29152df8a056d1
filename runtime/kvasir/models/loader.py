"""Streams safetensors files into a model; called by the worker.

One tensor is in memory at a time besides the model. Every tensor of the checkpoint must find its parameter and
every parameter must be filled, so that a model never runs on uninitialised memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from kvasir.hub.weights import tensor_bytes
from kvasir.layers.parameter import weight_loader_of
from kvasir.models.causal_lm import LoadableLM, Target
from kvasir.models.model_load_error import ModelLoadError

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load_weights(model: LoadableLM, files: Sequence[Path], progress: Callable[[int, int], None]) -> None:
    """Fill the model's parameters. `progress` is called with the bytes done and in all.

    Raises ModelLoadError, which names tensor or parameter, for anything missing, unknown, misshaped or unreadable.
    """
    parameters = dict(model.named_parameters())
    aliases = model.aliases()
    sources: dict[Target, _Source] = {}
    duplicates: list[tuple[_Source, Target]] = []
    done, total = 0, tensor_bytes(files)
    progress(done, total)
    for file in files:
        for name, tensor in _tensors(file):
            source = _Source(name, file)
            if name in aliases:
                duplicates.append((source, aliases[name]))
            elif target := model.locate(name):
                _fill(parameters.get(target.parameter), target.shard, tensor, source)
                sources[target] = source
            done += tensor.nbytes
            progress(done, total)
    _check_complete(parameters)
    for duplicate, target in duplicates:
        _check_equal(duplicate, sources[target])


@dataclass(frozen=True)
class _Source:
    name: str
    file: Path

    def __str__(self) -> str:
        return f"tensor {self.name!r} in {self.file}"

    def read(self) -> torch.Tensor:
        with _readable(self.file), safe_open(self.file, framework="pt", device="cpu") as checkpoint:
            tensor: torch.Tensor = checkpoint.get_tensor(self.name)
            return tensor


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with _readable(file), safe_open(file, framework="pt", device="cpu") as checkpoint:
        for name in checkpoint.keys():  # noqa: SIM118 (not a mapping)
            yield name, checkpoint.get_tensor(name)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file} cannot be read as safetensors: {error}. Fetch it again") from error


def _fill(parameter: nn.Parameter | None, shard: str, tensor: torch.Tensor, source: _Source) -> None:
    if parameter is None:
        raise ModelLoadError(f"{source} has no place in this model: does config.json belong to it?")
    if tensor.dtype not in _FLOATS:
        raise ModelLoadError(
            f"{source} is {tensor.dtype}: quantised checkpoints are not supported, "
            "use the model's float32, bfloat16 or float16 one"
        )
    try:
        weight_loader_of(parameter)(parameter, tensor, shard)
    except ValueError as error:
        raise ModelLoadError(f"{source} does not fit: {error}") from error


def _check_complete(parameters: Mapping[str, nn.Parameter]) -> None:
    missing = [
        f"{name} ({shard})" if shard else name
        for name, parameter in parameters.items()
        for shard in sorted(weight_loader_of(parameter).missing)
    ]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelLoadError(f"the checkpoint holds no weights for {shown}: is it complete?")


def _check_equal(duplicate: _Source, original: _Source) -> None:
    if not torch.equal(duplicate.read(), original.read()):
        raise ModelLoadError(
            f"config.json ties the embeddings, but {duplicate} differs from {original.name!r}: "
            "set tie_word_embeddings to false"
        )
