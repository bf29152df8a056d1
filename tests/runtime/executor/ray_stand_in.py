"""A module in the place of Ray, for tests of the engine's side without it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


@contextmanager
def ray_stand_in(monkeypatch: pytest.MonkeyPatch, content: dict[str, Any], *users: str) -> Iterator[None]:
    """Let the modules `users` import a `ray` with this content, and import them again afterwards."""
    group = dict.fromkeys(("PlacementGroup", "placement_group", "remove_placement_group"))
    modules: dict[str, dict[str, Any]] = {
        "ray": content,
        "ray.util": {},
        "ray.util.placement_group": group,
        "ray.util.scheduling_strategies": {"PlacementGroupSchedulingStrategy": None},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    for name in users:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in users:
        sys.modules.pop(name, None)
