"""The refusal of a grammar."""


class BadGrammar(ValueError):
    """A grammar that is malformed, too large or not supported. The message names what to change."""

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword
        """The keyword of JSON Schema that is at fault; None if none is."""


def bad_keyword(path: str, keyword: str, problem: str) -> BadGrammar:
    """Return the refusal of a keyword at this place of a schema, a JSON pointer."""
    where = f" at {path}" if path != "#" else ""
    return BadGrammar(f"JSON Schema keyword {keyword!r}{where} {problem}", keyword)
