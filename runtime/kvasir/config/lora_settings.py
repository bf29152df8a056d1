"""LoRAConfig: settings of LoRA adapters in engines."""

from dataclasses import dataclass
from typing import Final

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int

MAX_LORA_RANK: Final = 512
ADAPTERS_IN_MEMORY: Final = 32


@dataclass(frozen=True)
class LoRAConfig:
    enable_lora: bool = option(False, "accept requests for LoRA adapters of the model")
    max_loras: int = option(4, "most adapters in a step; the requests of others wait", parse=parse_int(1, 256))
    max_lora_rank: int = option(
        16, "highest rank of an adapter; a GPU reserves memory for it", parse=parse_int(1, MAX_LORA_RANK)
    )
    max_cpu_loras: int | None = option(
        None,
        "most adapters in memory, --max-loras or more; the least recently used makes room [default: 32, or "
        "--max-loras]",
        parse=parse_int(1, 65536),
    )

    def __post_init__(self) -> None:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"--max-cpu-loras {self.max_cpu_loras} is below --max-loras {self.max_loras}: adapters in a step "
                "are in memory too"
            )

    @property
    def num_in_memory(self) -> int:
        return self.max_cpu_loras or max(self.max_loras, ADAPTERS_IN_MEMORY)
