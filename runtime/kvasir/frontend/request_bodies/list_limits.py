"""Limits on lists and objects, checked before pydantic reads their items."""

from typing import Any

from pydantic import BeforeValidator


def at_most(count: int) -> BeforeValidator:
    """Reject a longer list or object. Other types pass."""

    # not in the schema: generators of bodies would try a longer list
    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"{len(value)} items are too many, send at most {count}")
        return value

    return BeforeValidator(check)
