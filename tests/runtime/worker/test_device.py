from types import SimpleNamespace

import pytest
import torch

from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.options import ConfigError
from kvasir.config.settings import DeviceConfig
from kvasir.worker.device import device_facts, gpu_facts


def test_the_facts_count_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    properties = SimpleNamespace(name="a GPU", total_memory=2**36, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    facts = gpu_facts()
    assert isinstance(facts, DeviceFacts)
    assert (facts.kind, facts.name, facts.gpus) == ("cuda", "a GPU", 3)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("The NVIDIA driver on your system is too old (found version 12080). Please update"),
            "The NVIDIA driver on your system is too old (found version 12080); install",
        ),
        (AssertionError("Torch not compiled with CUDA enabled"), "Torch not compiled with CUDA enabled; install"),
        (None, "it counts 0 devices; install"),
    ],
)
def test_an_unusable_gpu_is_explained_by_torch(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(ConfigError) as raised:
        device_facts(DeviceConfig(device="cuda"))
    assert f"torch can use no GPU here: {reason}" in str(raised.value)
