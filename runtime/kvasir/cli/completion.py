"""`kvasir completion`: a bash and zsh script, generated from the parsers, that completes commands and options."""

import argparse
import importlib
from collections.abc import Iterator

from kvasir.config.options import OptionParser

_SCRIPT = """\
# eval "$(kvasir completion)" in ~/.bashrc or ~/.zshrc
[ -n "$ZSH_VERSION" ] && autoload -U +X bashcompinit && bashcompinit
_kvasir() {{
  local words
  case "$COMP_CWORD ${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
    "1 "*) words="{commands}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _kvasir kvasir
"""


def parser() -> OptionParser:
    return OptionParser(
        prog="kvasir completion",
        usage="kvasir completion",
        description="Print a script with which bash or zsh completes kvasir's commands and options. "
        'Put eval "$(kvasir completion)" into ~/.bashrc or ~/.zshrc.',
    )


def run(args: argparse.Namespace) -> int:
    from kvasir.cli.main import COMMANDS

    cases = [f'    {pattern}) words="{" ".join(words)}" ;;' for pattern, words in _cases(COMMANDS)]
    print(_SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases)), end="")
    return 0


def _cases(commands: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (pattern of the word's position, the command and its first word; possible completions)."""
    for name in commands:
        parser = importlib.import_module(f"kvasir.cli.{name.replace('-', '_')}").parser()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield f'"2 {name} "*', list(action.choices)
                for inner, choice in action.choices.items():
                    yield f'*" {name} {inner}"', _options(choice)
        yield f'*" {name} "*', _options(parser)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for option in parser._option_string_actions if option.startswith("--")]
