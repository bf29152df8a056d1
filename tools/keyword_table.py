"""The table of JSON Schema's keywords in docs/structured-output.md: `python -m tools.keyword_table` writes it."""

from pathlib import Path
from typing import Final

from kvasir.grammar_bounds import KEYWORDS, Support, SupportStatus

PAGE: Final = Path(__file__).parents[1] / "docs" / "structured-output.md"
_HEAD: Final = "| keyword | |\n|---|---|\n"
_MEANINGS: Final = {
    SupportStatus.ENFORCED: "enforced",
    SupportStatus.LIMITED: "in part",
    SupportStatus.ANNOTATION: "no effect",
    SupportStatus.REFUSED: "refused",
}


def table() -> str:
    """Return the table, in the order of KEYWORDS. Keywords without a note share a row for each status."""
    rows = [f"| `{name}` | {_meaning(support)} |" for name, support in KEYWORDS.items() if support.note]
    for status, meaning in _MEANINGS.items():
        plain = [f"`{name}`" for name, each in KEYWORDS.items() if each.status is status and not each.note]
        if plain:
            rows.append(f"| {', '.join(plain)} | {meaning} |")
    return _HEAD + "\n".join(rows) + "\n"


def replaced(page: str) -> str:
    before, _, rest = page.partition(_HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


def _meaning(support: Support) -> str:
    return f"{_MEANINGS[support.status]}: {support.note.replace('|', '&#124;')}"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text()))
