"""An engine serves its KV blocks at the address of its pod, or next to its link, if that is on this machine."""

import logging
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import HAND_OVER_AUTO, CacheConfig, EngineConfig, ModelConfig
from kvasir.engine.handover.exchange import Exchange, own_address, start_exchange
from kvasir_contract.environment import POD_IP
from runtime.engine.fake_executor import FakeExecutor
from runtime.link.written_keys import write_link_keys

CLUSTER = "tcp://demo-frontend:5570"
OF_ANOTHER = "192.0.2.1"
"""An address that no machine has."""


@pytest.mark.parametrize(
    ("link", "pod_ip", "address"),
    [
        ("ipc:///run/kvasir/link", "", "ipc:///run/kvasir/kv-engine-0-1"),
        ("ipc:///run/" + "a" * 90 + "/link", "", ""),
        ("tcp://127.0.0.1:5557", "", "tcp://127.0.0.1:0"),
        (CLUSTER, "", ""),
        ("tcp://10.0.0.7:5557", "", ""),
        (CLUSTER, "10.0.0.8", "tcp://10.0.0.8:5572"),
        (CLUSTER, "fd00:10::8", "tcp://[fd00:10::8]:5572"),
    ],
)
def test_the_address_follows_from_pod_and_link(link: str, pod_ip: str, address: str) -> None:
    assert own_address(LinkConfig(link=(link,)), "engine-0-1", {POD_IP: pod_ip}) == address


def start(keys: Path, kv_hand_over: str = HAND_OVER_AUTO) -> tuple[Exchange, str] | None:
    write_link_keys(keys / "frontend", keys / "engine")
    config = EngineConfig(
        ModelConfig("demo://"),
        cache=CacheConfig(kv_hand_over=kv_hand_over),
        link=LinkConfig(link=(CLUSTER,), link_keys=str(keys / "engine")),
    )
    executor = FakeExecutor()
    return start_exchange(config, "engine-0-1", executor, executor.kv_layout(), str, lambda event: None)


def test_an_option_goes_before_the_address_of_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_IP, OF_ANOTHER)
    assert start(tmp_path, "off") is None
    started = start(tmp_path, "tcp://[::1]:0")
    assert started is not None
    exchange, address = started
    exchange.close()
    assert address.startswith("tcp://[::1]:")


def test_an_engine_that_cannot_use_its_own_address_only_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(POD_IP, OF_ANOTHER)
    with caplog.at_level(logging.WARNING):
        started = start(tmp_path)
    assert started is not None
    exchange, address = started
    exchange.close()
    assert address == ""
    assert f"--kv-hand-over tcp://{OF_ANOTHER}:5572 cannot be bound" in caplog.text
    with pytest.raises(ConfigError, match="cannot be bound"):
        start(tmp_path, f"tcp://{OF_ANOTHER}:5572")
