"""Check environment variables: warn of those without effect, reject those that a pod must not have."""

import os
from collections.abc import Mapping
from typing import Final, get_type_hints

from kvasir.config.advice import closest
from kvasir.config.frontend_settings import FrontendConfig
from kvasir.config.options import ConfigError, names_of, variable_of
from kvasir.config.settings import EngineConfig
from kvasir.config.vllm import variables as vllm
from kvasir_contract.environment import MANAGED_VARIABLES, POD_INDEX, POD_IP, PREFIX
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE

_CONFIGS: Final = {kind for config in (EngineConfig, FrontendConfig) for kind in get_type_hints(config).values()}
_OPTIONS: Final = frozenset(name for config in _CONFIGS for name in names_of(config))
# Of all commands: a pod or shell often has one environment for several.
KNOWN: Final = frozenset(
    (
        *map(variable_of, _OPTIONS),
        *(TERMINATION_MESSAGE_VARIABLE, MANAGED_VARIABLES, POD_INDEX, POD_IP),
        *("KVASIR_DATA_PARALLEL_SIZE", "KVASIR_URL"),
    )
)


def refuse_unmanaged_variables(environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for a variable that sets an option and is not from the operator's pod template."""
    managed = environ.get(MANAGED_VARIABLES)
    if managed is None:
        return
    allowed = {MANAGED_VARIABLES, *managed.split(",")}
    setting = {name for name in environ if name.startswith(PREFIX)} | (vllm.READ & environ.keys())
    if others := sorted(setting - allowed):
        raise ConfigError(
            f"{', '.join(others)}: in a pod, options are set by fields of the InferenceService and by extraArgs; "
            "remove these variables from the image, and from the Secret or ConfigMap that envFrom names"
        )


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a sentence for each KVASIR_ variable that is not a setting, and for those of vLLM."""
    return vllm.notes(environ, _OPTIONS) + [
        f"{name} is not a setting of Kvasir and has no effect{_meant(name)}"
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and name not in KNOWN and not vllm.is_of_a_service(name, value)
    ]


def _meant(name: str) -> str:
    meant = closest(name, sorted(KNOWN))
    return f" (did you mean {meant}?)" if meant else ""
