"""Rejects models that cannot be split over the ranks of an engine."""

from collections.abc import Sequence
from typing import NamedTuple

from kvasir.models.decoder_config import DecoderConfig
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import ParallelState
from kvasir.parallel.stage import Stage


class Splits(NamedTuple):
    """A number of config.json that is split over the ranks."""

    name: str
    value: int
    # If it divides the number of ranks, several ranks hold the same part.
    replicable: bool = False

    def allows(self, ranks: int) -> bool:
        return self.value % ranks == 0 or (self.replicable and ranks % self.value == 0)


def check_split(config: DecoderConfig, parallel: ParallelState) -> None:
    """Raise ModelLoadError, which names the number and possible sizes, if a decoder cannot be split."""
    splits = [
        Splits(config.key("num_attention_heads"), config.heads.heads),
        Splits(config.key("num_key_value_heads"), config.heads.kv_heads, replicable=True),
    ]
    if any(layer.experts is None for layer in config.layers):
        splits.append(Splits(config.key("intermediate_size"), config.intermediate_size))
    for experts in {layer.experts for layer in config.layers if layer.experts is not None}:
        if parallel.expert_parallel:
            splits.append(Splits("num_experts", experts.routing.count))
        else:
            splits.append(Splits("moe_intermediate_size", experts.intermediate_size))
        if experts.shared is not None:
            splits.append(Splits("shared_expert_intermediate_size", experts.shared.intermediate_size))
    refuse_split(parallel.tensor.size, splits)


def stage_of(name: str, num_layers: int, parallel: ParallelState) -> Stage:
    # `name` is a key of config.json. Raises ModelLoadError if there are fewer layers than stages.
    stages = parallel.pipeline
    if num_layers < stages.size:
        raise ModelLoadError(
            f"--pipeline-parallel-size {stages.size} is more than {name} = {num_layers} of config.json: "
            f"choose at most {num_layers}"
        )
    return Stage.of(num_layers, stages.rank, stages.size)


def refuse_split(ranks: int, splits: Sequence[Splits]) -> None:
    # Raises ModelLoadError.
    for split in splits:
        if not split.allows(ranks):
            largest = max(other.value for other in splits)
            sizes = [size for size in range(1, largest + 1) if all(other.allows(size) for other in splits)]
            raise ModelLoadError(
                f"--tensor-parallel-size {ranks} does not divide {split.name} = {split.value} of config.json: "
                f"choose {' or '.join(map(str, sizes))}"
            )
