"""The error for grammars."""


class BadGrammar(ValueError):
    """Raised for a grammar that is malformed, too large or not supported."""

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword  # of JSON Schema; None if another part is at fault


def bad_keyword(path: str, keyword: str, problem: str) -> BadGrammar:
    """Return the error for a keyword. `path`: JSON pointer of its schema."""
    where = f" at {path}" if path != "#" else ""
    return BadGrammar(f"JSON Schema keyword {keyword!r}{where} {problem}", keyword)
