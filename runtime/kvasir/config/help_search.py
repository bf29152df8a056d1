"""Help on a part of a command's options: `--help=WORD`, as `vllm serve` has it."""

import argparse
import difflib
from collections.abc import Iterable, Sequence


def text_about(parser: argparse.ArgumentParser, word: str) -> str:
    """Return the help of the group with this title, or of the options whose names contain the word.

    "all" is the whole help, and "listgroup" lists the titles. Raises LookupError if nothing fits.
    """
    groups = {group.title or "": group for group in parser._action_groups if group._group_actions}
    if word == "all":
        return parser.format_help()
    if word == "listgroup":
        lines = "\n".join(f"  {title}" for title in groups)
        return f"{lines}\n\n`{parser.prog} --help=GROUP` shows one of them.\n"
    for title, group in groups.items():
        if _plain(title) == _plain(word):
            return _section(parser, title, group._group_actions)
    found = {title: _named(group._group_actions, _plain(word)) for title, group in groups.items()}
    text = "\n".join(_section(parser, title, actions) for title, actions in found.items() if actions)
    if not text:
        names = [_plain(name) for name in parser._option_string_actions]
        close = difflib.get_close_matches(_plain(word), names, n=1)
        advice = f"did you mean --help={close[0]}?" if close else "--help=listgroup lists the groups"
        raise LookupError(f"--help={word}: no option and no group has this name; {advice}")
    return text


def _named(actions: Iterable[argparse.Action], word: str) -> list[argparse.Action]:
    return [action for action in actions if any(word in _plain(name) for name in action.option_strings)]


def _plain(name: str) -> str:
    return name.strip("-").replace("_", "-").replace(" ", "-").lower()


def _section(parser: argparse.ArgumentParser, title: str, actions: Sequence[argparse.Action]) -> str:
    formatter = parser._get_formatter()
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()
