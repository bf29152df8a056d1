"""The names of special tokens in grammars: no text of a grammar contains them.

Where only one text may follow, llguidance tokenizes it and allows only its first token. If the name of a special
token were in that text, this would be the special token, which does not match the text. So the names for llguidance
contain a mark, which grammars may not contain.
"""

import re
from typing import Final

from kvasir.grammar_bounds.bad_grammar import BadGrammar

_MARK: Final = "\ufdd0"
"""A code point that Unicode reserves for use inside of programs."""
PRIVATE_NAME: Final = re.compile(rf"<{_MARK}[^<>\s]*>")
"""A name that `private_name` has made of one in angle brackets."""
_DEBUG_MARK: Final = r"\u{fdd0}"
"""The mark in errors of Rust."""
_ESCAPED_MARK: Final = re.compile(r"\\[uUx]\{?0*fdd0", re.IGNORECASE)


def check_no_mark(text: str) -> None:
    """Raise BadGrammar if the text of a grammar contains the mark."""
    if _MARK in text or _ESCAPED_MARK.search(text):
        raise BadGrammar("the code point U+FDD0, which Unicode reserves, is in the grammar: remove it")


def private_name(name: str) -> str:
    """Return the name of a special token in a grammar or tokenizer for llguidance: with a mark in it."""
    if _MARK in name:
        return name
    return name[:1] + _MARK + name[1:] if name.startswith("<") else _MARK + name


def public_text(text: str) -> str:
    """Return a text of llguidance, such as an error, with the names that a tokenizer has."""
    return text.replace(_MARK, "").replace(_DEBUG_MARK, "")
