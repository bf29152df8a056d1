"""AdapterUpdates: who may load and unload adapters while the frontend runs."""

import os
from dataclasses import dataclass
from typing import Self

from kvasir.config.frontend_settings import ServerConfig
from kvasir_contract.environment import MANAGED_VARIABLES


@dataclass(frozen=True)
class AdapterUpdates:
    refusal: str = ""  # why nobody may; "" if an administrator may
    for_all: bool = False  # without administrators

    @classmethod
    def of(cls, config: ServerConfig) -> Self:
        if MANAGED_VARIABLES in os.environ:
            return cls("they are those of the InferenceService: change its spec.model.loraAdapters")
        if config.lora_modules_file is not None:
            return cls(f"they are those of a file: change {config.lora_modules_file}")
        if config.api_server_count > 1:
            return cls(
                f"a request reaches only one of {config.api_server_count} frontends (--api-server-count): name the "
                "adapters in a file for --lora-modules-file, which all of them read again when it changes"
            )
        return cls(for_all=config.allow_runtime_lora_updating)
