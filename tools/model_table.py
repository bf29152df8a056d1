"""The tables of docs/models.md and docs/checkpoints.md, which `python -m tools.model_table` writes.

Their sources are the registry and tests/runtime/models/popular/checkpoints.toml.
"""

import inspect
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvasir.models.registry import ARCHITECTURES, reader_of

_ROOT: Final = Path(__file__).parents[1]
PAGE: Final = _ROOT / "docs" / "models.md"
CHECKPOINTS_PAGE: Final = _ROOT / "docs" / "checkpoints.md"
CHECKPOINTS: Final = _ROOT / "tests" / "runtime" / "models" / "popular" / "checkpoints.toml"
_HEAD: Final = "| `architectures` | models | computes | file |\n|---|---|---|---|\n"
_CHECKPOINTS_HEAD: Final = "| checkpoint | architecture | weights | tokenizer | served |\n|---|---|---|---|---|\n"


def table() -> str:
    """Return a row for each module, from the first line of its docstring: "models: differences"."""
    names: dict[str, list[str]] = {}
    docs: dict[str, str] = {}
    for name, build in sorted(ARCHITECTURES.items(), key=lambda entry: entry[0].lower()):
        module = inspect.getmodule(reader_of(build))
        assert module is not None
        assert module.__doc__, f"{module.__name__} needs a docstring"
        file = module.__name__.partition("architectures.")[2].replace(".", "/")
        names.setdefault(file, []).append(f"`{name}`")
        docs[file] = module.__doc__.partition("\n")[0].rstrip(".")
    return _HEAD + "\n".join(_row(file, names[file], docs[file]) for file in names) + "\n"


def checkpoint_table() -> str:
    """Return a row for each checkpoint, and a sentence with their counts."""
    entries = tomllib.loads(CHECKPOINTS.read_text())["checkpoint"]
    by_name = {entry["name"]: entry for entry in entries}
    counts = Counter(_served(entry) for entry in entries)
    rows = "\n".join(_checkpoint_row(entry, by_name) for entry in entries)
    summary = ", ".join(f"{counts[kind]} {kind}" for kind in ("natively", "by transformers", "refused"))
    return f"{_CHECKPOINTS_HEAD}{rows}\n| **{len(entries)} checkpoints** | | | | **{summary}** |\n"


def replaced(page: str) -> str:
    return _replaced(page, _HEAD, table())


def replaced_checkpoints(page: str) -> str:
    return _replaced(page, _CHECKPOINTS_HEAD, checkpoint_table())


def _replaced(page: str, head: str, new: str) -> str:
    before, _, rest = page.partition(head)
    _, _, after = rest.partition("\n\n")
    return f"{before}{new}\n{after}"


def _served(entry: Mapping[str, Any]) -> str:
    return str(entry.get("served", "natively"))


def _checkpoint_row(entry: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> str:
    like = entry
    while "architectures" not in like.get("config", {}):
        like = by_name[like["like"]]
    cells = (
        f"`{entry['name']}`",
        f"`{like['config']['architectures'][0]}`",
        entry.get("weights", "floats"),
        entry["tokenizer"],
        f"{_served(entry)}: {entry['note']}" if "note" in entry else _served(entry),
    )
    return f"| {' | '.join(cells)} |"


def _row(file: str, names: list[str], doc: str) -> str:
    models, _, computes = doc.rpartition(": ")
    assert models, f"{file}.py: its docstring has the form 'models: differences'"
    return f"| {', '.join(names)} | {models} | {computes} | `{file}.py` |"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text()))
    CHECKPOINTS_PAGE.write_text(replaced_checkpoints(CHECKPOINTS_PAGE.read_text()))
