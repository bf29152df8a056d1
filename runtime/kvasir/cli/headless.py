"""`kvasir serve --headless`: an engine without an API server, as `kvasir engine` starts it.

vLLM's options for the ranks and the address of the head become those of `kvasir engine`.
"""

from collections.abc import Sequence
from typing import Final, get_type_hints

from kvasir.cli import engine, serve
from kvasir.config.frontend_settings import FrontendConfig
from kvasir.config.options import ConfigError, flag_of, names_of
from kvasir.config.settings import EngineConfig
from kvasir.config.vllm.given_options import GivenOption, split_words
from kvasir_contract.endpoints import LINK_PORT

HEADLESS: Final = "--headless"
_ONLY_OF_FRONTENDS: Final = {*get_type_hints(FrontendConfig).values()} - {*get_type_hints(EngineConfig).values()}
_OF_THE_SERVER: Final = frozenset(
    (HEADLESS, *(flag_of(name) for kind in _ONLY_OF_FRONTENDS for name in names_of(kind)))
)
_OF_THE_HEAD: Final = ("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-size")


def engine_words(argv: Sequence[str]) -> list[str]:
    """Return the words for `kvasir engine`. Raises ValueError if they leave the frontend's address open."""
    own = serve.parser()._option_string_actions | engine.parser()._option_string_actions
    given = split_words(argv, own)
    options = {word.name: word for word in given if isinstance(word, GivenOption)}
    _check_one_engine(options)
    words: list[str] = []
    for word in given:
        if isinstance(word, str):
            words.append(word)
        elif not _is_left_out(word.name, shares_experts="--enable-expert-parallel" in options):
            name = "--data-parallel-rank" if word.name == "--data-parallel-start-rank" else word.name
            words += GivenOption(name, word.values).words()
    return words + _link(options)


def _check_one_engine(options: dict[str, GivenOption]) -> None:
    local = _value(options, "--data-parallel-size-local")
    if local not in ("", "1"):
        raise ConfigError(
            f"{HEADLESS} starts one engine: for --data-parallel-size-local {local}, start it {local} times, each "
            "time with its own --data-parallel-rank, --ops-port and --data-parallel-size-local 1"
        )


def _is_left_out(name: str, shares_experts: bool) -> bool:
    positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    return positive in _OF_THE_SERVER or (name in _OF_THE_HEAD and not shares_experts)


def _link(options: dict[str, GivenOption]) -> list[str]:
    # A node other than the first needs no address.
    if "--link" in options or _value(options, "--node-rank") not in ("", "0"):
        return []
    address = _value(options, "--data-parallel-address")
    if not address or "--enable-expert-parallel" in options:
        raise ConfigError(
            f"{HEADLESS} starts an engine, which needs the address of its frontend: give --link "
            f"tcp://HOST:{LINK_PORT} --link-keys DIR, and on HOST start `kvasir frontend MODEL --link "
            f"tcp://*:{LINK_PORT} --link-keys DIR`"
        )
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return ["--link", f"tcp://{host}:{_value(options, '--data-parallel-rpc-port') or LINK_PORT}"]


def _value(options: dict[str, GivenOption], name: str) -> str:
    return options[name].values[0] if name in options and options[name].values else ""
