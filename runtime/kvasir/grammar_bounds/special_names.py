"""Names of special tokens for llguidance, which no text of a grammar contains.

llguidance tokenizes a forced text. A special token's name in it would become the special token, which does not
match the text. So these names contain a mark that grammars may not contain.
"""

import re
from typing import Final

from kvasir.grammar_bounds.bad_grammar import BadGrammar

_MARK: Final = "\ufdd0"  # Unicode reserves it for use inside of programs
PRIVATE_NAME: Final = re.compile(rf"<{_MARK}[^<>\s]*>")
_DEBUG_MARK: Final = r"\u{fdd0}"  # the mark in errors of Rust
_ESCAPED_MARK: Final = re.compile(r"\\[uUx]\{?0*fdd0", re.IGNORECASE)


def check_no_mark(text: str) -> None:
    """Raise BadGrammar if a text contains the mark."""
    if _MARK in text or _ESCAPED_MARK.search(text):
        raise BadGrammar("the code point U+FDD0, which Unicode reserves, is in the grammar: remove it")


def private_name(name: str) -> str:
    """Return the name of a special token with the mark in it."""
    if _MARK in name:
        return name
    return name[:1] + _MARK + name[1:] if name.startswith("<") else _MARK + name


def public_text(text: str) -> str:
    """Return a text of llguidance, such as an error, without marks."""
    return text.replace(_MARK, "").replace(_DEBUG_MARK, "")
