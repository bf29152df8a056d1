"""Limits on the lengths of a body's lists and objects, checked before pydantic reads their items."""

from typing import Any

from pydantic import BeforeValidator


def at_most(count: int) -> BeforeValidator:
    """Refuse a longer list or object. Values of other types pass."""

    # Not in the described schema: generators of bodies would try a list that exceeds it.
    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"{len(value)} items are too many, send at most {count}")
        return value

    return BeforeValidator(check)
