"""The names of special tokens in grammars: no usual text contains them.

Where only one text may follow, llguidance tokenizes it and allows only its first token. If the name of a special
token were in that text, this would be the special token, which does not match the text, and the request would end
with an error. So the names for llguidance contain a mark.
"""

from typing import Final

_MARK: Final = "\ufdd0"
"""A code point that Unicode reserves for use inside of programs."""
_DEBUG_MARK: Final = r"\u{fdd0}"
"""As Rust writes it in an error."""


def private_name(name: str) -> str:
    """Return the name of a special token in a grammar or tokenizer for llguidance: with a mark in it."""
    if _MARK in name:
        return name
    return name[:1] + _MARK + name[1:] if name.startswith("<") else _MARK + name


def public_text(text: str) -> str:
    """Return a text of llguidance, such as an error, with the names that a tokenizer has."""
    return text.replace(_MARK, "").replace(_DEBUG_MARK, "")
