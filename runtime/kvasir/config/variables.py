"""Variables of the environment that look like settings of Kvasir and are none: slips of the pen, told as a warning.

Called by the commands that read settings from the environment.
"""

import os
import re
from collections.abc import Mapping
from typing import Final, get_type_hints

from kvasir.config.advice import closest
from kvasir.config.options import names_of, variable_of
from kvasir.config.settings import EngineConfig, FrontendConfig
from kvasir_contract.environment import MANAGED_VARIABLES, PREFIX
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE

_CONFIGS: Final = {kind for config in (EngineConfig, FrontendConfig) for kind in get_type_hints(config).values()}
KNOWN: Final = frozenset(
    (
        *(variable_of(name) for config in _CONFIGS for name in names_of(config)),
        *(TERMINATION_MESSAGE_VARIABLE, MANAGED_VARIABLES),
        *("KVASIR_DATA_PARALLEL_SIZE", "KVASIR_URL"),
    )
)
"""Of any command: pods and shells often have one environment for several."""

_OF_A_SERVICE = re.compile(
    r"KVASIR(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""What Kubernetes tells pods of a Service whose name begins with kvasir; so does a name_PORT with a URL in it."""
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each."""
    return [
        f"{name} is no setting of Kvasir and has no effect{_meant(name)}"
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and name not in KNOWN and not _is_of_a_service(name, value)
    ]


def _is_of_a_service(name: str, value: str) -> bool:
    if name.endswith("_PORT") and _SERVICE_URL.fullmatch(value):
        return True
    return _OF_A_SERVICE.fullmatch(name) is not None


def _meant(name: str) -> str:
    meant = closest(name, sorted(KNOWN))
    return f" (did you mean {meant}?)" if meant else ""
