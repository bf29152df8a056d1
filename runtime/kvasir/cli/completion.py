"""`kvasir completion [SHELL]`: a script, made from the parsers, that completes commands, options and values."""

import argparse
import importlib
import os
from pathlib import Path
from typing import Any, Final

import shtab

from kvasir.config.options import OptionParser

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"FILE", "FILE_OR_TEXT", "INPUT", "MANIFEST", "OUTPUT"})
_DIRECTORIES: Final = frozenset({"DIR", "MODEL"})


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir completion",
        usage="kvasir completion [SHELL]",
        description="Print a script with which a shell completes kvasir's commands, options and their values. Put "
        'eval "$(kvasir completion bash)" into ~/.bashrc, the same with zsh into ~/.zshrc, or '
        "kvasir completion fish | source into ~/.config/fish/config.fish.",
    )
    result.add_argument("shell", nargs="?", choices=SHELLS, help="[default: that of the variable SHELL, else bash]")
    return result


def run(args: argparse.Namespace) -> int:
    shell = args.shell or Path(os.environ.get("SHELL", "")).name
    print(script(shell if shell in SHELLS else "bash"), end="")
    return 0


def script(shell: str) -> str:
    from kvasir.cli.main import COMMANDS

    root = OptionParser(prog="kvasir", description="serves large language models")
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
        found = importlib.import_module(f"kvasir.cli.{name.replace('-', '_')}").parser()
        _mark_paths(found)
        commands.choices[name] = found
    text: str = shtab.complete(root, shell)
    return f"{text}\n"


def _mark_paths(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        path: Any = action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark_paths(inner)
        elif action.metavar in _FILES or action.type is Path:
            path.complete = shtab.FILE
        elif action.metavar in _DIRECTORIES:
            path.complete = shtab.DIRECTORY
