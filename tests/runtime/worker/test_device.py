"""The facts about the devices of a machine."""

from types import SimpleNamespace

import pytest
import torch

from kvasir.worker.device import gpu_facts


def test_the_facts_count_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    properties = SimpleNamespace(name="a GPU", total_memory=2**36, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    facts = gpu_facts()
    assert facts is not None
    assert (facts.kind, facts.name, facts.gpus) == ("cuda", "a GPU", 3)
