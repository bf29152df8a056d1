"""The `kvasir` command: finds the sub-command and runs it; each lives in a module of its own, imported when used.

A sub-command's module has SUMMARY (one line), parser() and run(args) → exit code. A ConfigError is the user's to
mend: one line, exit code 2, never a traceback.
"""

import argparse
import importlib
import sys
from typing import Protocol

from kvasir import __version__
from kvasir.config.options import ConfigError

COMMANDS = {
    "up": "run the InferenceServices of a manifest on this machine, as local processes",
    "serve": "serve one model on this machine: a frontend and its engines",
    "chat": "talk to a served model in the terminal",
    "frontend": "run one API server (what a frontend pod runs)",
    "engine": "run one engine, a data-parallel rank (what an engine pod runs)",
}


class Command(Protocol):
    """The shape of a sub-command's module."""

    def parser(self) -> argparse.ArgumentParser: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version", "version"):
        print(f"kvasir {__version__}")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        print(f"kvasir: there is no command {name!r}; choose from {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        command: Command = importlib.import_module(f"kvasir.cli.{name}")
        return command.run(command.parser().parse_args(rest))
    except ConfigError as error:
        print(f"kvasir {name}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = _extra_of(error.name or "")
        if extra is None:
            raise
        print(f"kvasir {name}: {error.name} is not installed: pip install 'kvasir[{extra}]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "Kvasir serves large language models, on Kubernetes and without it.",
        "",
        "usage: kvasir COMMAND …",
        "",
    ]
    lines += [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "kvasir COMMAND --help tells a command's options."]
    return "\n".join(lines)


def _extra_of(module: str) -> str | None:
    """The extra that brings this third-party module, where it is one of ours."""
    top = module.partition(".")[0]
    if top in ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "orjson", "tokenizers", "jinja2"):
        return "frontend"
    if top in ("torch", "numpy", "safetensors"):
        return "engine"
    return None


if __name__ == "__main__":
    sys.exit(main())
