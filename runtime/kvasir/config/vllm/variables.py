"""Environment variables of vLLM: a few set options of Kvasir, and a warning names the others."""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

PREFIX: Final = "VLLM_"

TAKEN: Final = MappingProxyType(
    {
        "api_key": "VLLM_API_KEY",
        "allow_runtime_lora_updating": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "log_level": "VLLM_LOGGING_LEVEL",
        "log_config_file": "VLLM_LOGGING_CONFIG_PATH",
        "batch_invariant": "VLLM_BATCH_INVARIANT",
    }
)
"""Option → the variable that is read if neither an argument nor a KVASIR_ variable sets it."""
READ: Final = frozenset(TAKEN.values())

_LEVELS: Final = MappingProxyType({"trace": "debug", "critical": "error", "fatal": "error"})

_INSTEAD: Final = MappingProxyType(
    {
        "VLLM_HOST_IP": "it is the address between vLLM's processes; the one of the API is --host",
        "VLLM_PORT": "it is the port between vLLM's processes; the one of the API is --port",
        "VLLM_CPU_KVCACHE_SPACE": "use --kv-cache-memory-bytes, for example 4Gi",
        "VLLM_CPU_OMP_THREADS_BIND": "use --threads",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "use --threads",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "the model's own length is the limit; --hf-overrides can change it",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "use --worker-timeout",
        "VLLM_LOGGING_PREFIX": "use --log-format json to add fields to log lines",
        "VLLM_USE_MODELSCOPE": "models come from the Hugging Face hub; HF_ENDPOINT can name a mirror",
        "VLLM_DP_RANK": "use --data-parallel-rank of kvasir engine",
        "VLLM_DP_SIZE": "use --data-parallel-size",
        "VLLM_DP_MASTER_IP": "use --link of kvasir engine",
        "VLLM_DP_MASTER_PORT": "use --link of kvasir engine",
        "VLLM_PLUGINS": "plugins of vLLM are not loaded",
    }
)
"""Variables without effect → the alternative, or the reason."""

# Statistics of use, which Kvasir does not send.
_NEUTRAL: Final = frozenset({"VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE"})

# Kubernetes sets these for a Service whose name begins with kvasir or vllm, and NAME_PORT to a URL.
_OF_A_SERVICE: Final = re.compile(
    r"(?:KVASIR|VLLM)(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def value_for(option: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable for an option and its value in Kvasir's form; None if it is not set."""
    name = TAKEN.get(option)
    if name is None or (text := environ.get(name)) is None:
        return None
    if option == "log_level":
        text = _LEVELS.get(text.lower(), text.lower())
    return name, text


def given(environ: Mapping[str, str]) -> list[str]:
    names = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in _NEUTRAL]
    return [name for name in names if not is_of_a_service(name, environ[name])]


def notes(environ: Mapping[str, str], options: Collection[str]) -> list[str]:
    """Return a sentence for each variable of vLLM that is set; those without any relation here share one.

    `options`: the names of all options of Kvasir.
    """
    names = given(environ)
    taken = {variable: option for option, variable in TAKEN.items() if option in options}
    result = [f"{name} is read as {_flag(taken[name])}, unless that is given" for name in names if name in taken]
    result += [f"{name} has no effect: {_INSTEAD[name]}" for name in names if name in _INSTEAD.keys() - taken]
    if others := [name for name in names if name not in {*taken, *_INSTEAD}]:
        verb = "has" if len(others) == 1 else "have"
        result.append(f"{', '.join(others)} {verb} no effect: Kvasir does not read variables of vLLM")
    return result


def is_of_a_service(name: str, value: str) -> bool:
    if name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value):
        return True
    return _OF_A_SERVICE.fullmatch(name) is not None


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
