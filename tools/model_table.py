"""The table of architectures in docs/models.md: `python -m tools.model_table` writes it from the registry."""

import inspect
from pathlib import Path
from typing import Final

from kvasir.models.registry import ARCHITECTURES, reader_of

PAGE: Final = Path(__file__).parents[1] / "docs" / "models.md"
_HEAD: Final = "| `architectures` | models | computes | file |\n|---|---|---|---|\n"


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


def replaced(page: str) -> str:
    before, _, rest = page.partition(_HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


def _row(file: str, names: list[str], doc: str) -> str:
    models, _, computes = doc.rpartition(": ")
    assert models, f"{file}.py: its docstring has the form 'models: differences'"
    return f"| {', '.join(names)} | {models} | {computes} | `{file}.py` |"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text()))
