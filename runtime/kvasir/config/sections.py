"""Options of whole configurations, such as EngineConfig, whose fields are sections of options."""

import argparse
import os
from collections.abc import Collection, Mapping
from typing import Any, Final, get_type_hints

from kvasir.config.options import Config, add_options, from_args

_TITLES: Final = {
    "serve": "parallelism",
    "model": "model",
    "server": "HTTP server",
    "tls": "TLS",
    "chat": "chats",
    "device": "device",
    "cache": "KV cache",
    "scheduler": "scheduler",
    "parallel": "parallelism",
    "executor": "workers",
    "nodes": "nodes of an engine with several pods",
    "adapters": "LoRA adapters",
    "lora": "LoRA adapters in engines",
    "link": "link between frontends and engines",
    "ops": "probes and metrics",
    "trace": "observability",
    "process": "process",
}


def sections_of(config: type[Any], only: Collection[str] = ()) -> dict[str, type[Any]]:
    """Return the classes of a configuration's fields by name. `only`: these fields; none means all."""
    return {name: kind for name, kind in get_type_hints(config).items() if not only or name in only}


def add_sections(
    parser: argparse.ArgumentParser, config: type[Any], only: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """Add the options of each section as a group. `without`: options that are left out."""
    for name, section in sections_of(config, only).items():
        add_options(parser, section, _TITLES[name], without)


def from_sections(
    config: type[Config],
    args: argparse.Namespace,
    only: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    **given: Any,
) -> Config:
    """Build the configuration. `given`: a section that is made already, or a dict of fields that are not options.

    Raises ConfigError for a bad variable or a contradiction.
    """
    sections = {
        name: from_args(section, args, environ, **given.pop(name, {}))
        for name, section in sections_of(config, only).items()
        if isinstance(given.get(name, {}), dict)
    }
    return config(**sections, **given)
