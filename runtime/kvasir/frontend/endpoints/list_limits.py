"""Limits on the lengths of a body's lists and objects, checked before pydantic looks at their items.

They are not part of the described schema: what generates bodies from it would try a list that exceeds them.
"""

from typing import Any

from pydantic import BeforeValidator


def at_most(count: int) -> BeforeValidator:
    """Refuse a longer list or object; values of other types are for the type's own check."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"{len(value)} items are too many, send at most {count}")
        return value

    return BeforeValidator(check)
