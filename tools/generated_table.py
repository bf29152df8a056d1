"""A table in a page that a tool writes, between two comments."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_END: Final = "<!-- end of the table -->\n"


@dataclass(frozen=True)
class GeneratedTable:
    page: Path
    tool: str
    """Its path, which stands in the comment above the table: tools/name.py."""
    make: Callable[[], str]
    """Returns the table."""

    def written(self) -> str:
        """Return the page with the present table."""
        begin = f"<!-- {self.tool} writes this table -->\n"
        before, _, rest = self.page.read_text().partition(begin)
        _, _, after = rest.partition(_END)
        return f"{before}{begin}\n{self.make()}\n{_END}{after}"

    def main(self, arguments: Sequence[str], description: str | None) -> int:
        """Write the page; with --check return 1 if it has another table."""
        name = self.tool.removesuffix(".py").replace("/", ".")
        parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
        parser.add_argument("--check", action="store_true", help="compare instead of writing")
        page = self.written()
        if parser.parse_args(arguments).check:
            return int(self.page.read_text() != page)
        self.page.write_text(page)
        return 0
