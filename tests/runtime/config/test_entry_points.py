import importlib.metadata
from unittest.mock import Mock

import pytest

from kvasir.config import entry_points
from kvasir.config.entry_points import entry_points as of_group


def test_packages_are_read_once_for_each_path(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=importlib.metadata.entry_points)
    monkeypatch.setattr(importlib.metadata, "entry_points", read)
    entry_points._of_all_groups.cache_clear()
    assert {entry.group for entry in of_group("console_scripts")} == {"console_scripts"}
    assert not of_group("kvasir.none")
    assert read.call_count == 1
    monkeypatch.syspath_prepend("/nowhere")
    of_group("console_scripts")
    assert read.call_count == 2
