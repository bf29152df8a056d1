"""An engine serves its KV blocks next to its link, if that is on this machine."""

import pytest

from kvasir.config.settings import LinkConfig
from kvasir.engine.handover.start_exchange import local_address


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("ipc:///run/kvasir/link", "ipc:///run/kvasir/kv-engine-0-1"),
        ("ipc:///run/" + "a" * 90 + "/link", ""),
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:0"),
        ("tcp://demo-frontend.default.svc:5557", ""),
        ("tcp://10.0.0.7:5557", ""),
    ],
)
def test_the_address_follows_from_the_link(link: str, address: str) -> None:
    assert local_address(LinkConfig(link=(link,)), "engine-0-1") == address
