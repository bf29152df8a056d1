"""What the demo model learns to write, and the features that Kvasir does not have yet (demo/not-yet.json)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from demo.reading import read_corpus
from demo.tools import read_tools

CORPUS: Final = read_corpus()
TOOLS: Final = read_tools(CORPUS.unknown.answer)
FEATURES: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "demo" / "not-yet.json").read_text()
)


def texts() -> Iterator[str]:
    """Return every text that the model learns to write."""
    yield from (entry.answer for entry in CORPUS.entries)
    yield from CORPUS.prose
    yield CORPUS.unknown.answer
    for kind in TOOLS.kinds:
        yield kind.answer
        yield from [] if kind.without is None else [kind.without]
