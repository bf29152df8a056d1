"""Opens a file with weights, by its suffix."""

from contextlib import AbstractContextManager
from pathlib import Path

from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme
from kvasir.models.checkpoints.checkpoint import CheckpointTensor
from kvasir.models.checkpoints.gguf_tensors import gguf_tensors
from kvasir.models.checkpoints.pickled_tensors import pickled_tensors
from kvasir.models.checkpoints.safetensors_tensors import safetensors_tensors


def open_checkpoint(
    file: Path, scheme: WeightScheme = UNQUANTISED
) -> AbstractContextManager[list[CheckpointTensor]]:
    """Raises ModelLoadError for a file that is unreadable."""
    if file.suffix == ".gguf":
        return gguf_tensors(file, scheme)
    return pickled_tensors(file) if file.suffix == ".bin" else safetensors_tensors(file)
