"""AdapterUpdates: which clients may load and unload adapters while the frontend runs."""

import os
from dataclasses import dataclass
from typing import Self

from kvasir.config.frontend_settings import FrontendConfig
from kvasir_contract.environment import MANAGED_VARIABLES


@dataclass(frozen=True)
class AdapterUpdates:
    refusal: str = ""  # why they cannot be changed; "" if an administrator can
    for_all: bool = False  # without administrators

    @classmethod
    def of(cls, config: FrontendConfig) -> Self:
        if MANAGED_VARIABLES in os.environ:
            return cls("they are those of the InferenceService: change its spec.model.loraAdapters")
        if config.adapters.lora_modules_file is not None:
            return cls(f"they are those of a file: change {config.adapters.lora_modules_file}")
        if (count := config.server.api_server_count) > 1:
            return cls(
                f"a request reaches only one of the {count} frontends (--api-server-count): name the "
                "adapters in a file for --lora-modules-file, which all of them read again when it changes"
            )
        return cls(for_all=config.adapters.allow_runtime_lora_updating)
