"""`kvasir chat`: which server it asks, with which key, for what."""

import ssl
from collections.abc import Iterator

import pytest
import trustme

from kvasir.cli import main
from runtime.cli.fake_server import FakeServer, fake_server, sse


@pytest.fixture
def server() -> Iterator[FakeServer]:
    answer = sse({"choices": [{"delta": {"content": "Yes."}}]})
    with fake_server({"/v1/chat/completions": (200, answer)}) as server:
        yield server


@pytest.mark.parametrize("form", ["http://{}", "http://{}/", "http://{}/v1", "http://{}/v1/", "{}", "{}/v1"])
def test_every_way_to_write_the_address_finds_the_server(
    form: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", form.format(server.address), "-m", "Is it you?"]) == 0
    assert capfd.readouterr().out == "Yes.\n"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "http://[::1 is not a URL: "),
        ("ftp://x", "ftp://x is not the URL of a server: give http://HOST:PORT"),
        ("http://", "http:// is not the URL of a server: give http://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(url: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["chat", url, "-m", "x"]) == 2
    assert capfd.readouterr().err.startswith(f"kvasir chat: {message}")


def test_an_untrusted_certificate_is_explained(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    assert main.main(["chat", f"https://{server.address}", "-m", "x"]) == 1
    assert "set SSL_CERT_FILE to the PEM file" in capfd.readouterr().err


def test_a_key_beyond_ascii_is_sent_in_utf_8(server: FakeServer) -> None:
    assert main.main(["chat", server.address, "-m", "x", "--api-key", "schlüssel"]) == 0
    assert set(server.keys) == {"Bearer schlüssel".encode()}


def test_what_is_left_out_is_left_to_the_server(server: FakeServer) -> None:
    assert main.main(["chat", server.address, "-m", "x"]) == 0
    assert main.main(["chat", server.address, "-m", "x", "--system", "s", "--seed", "3", "--stop", "a"]) == 0
    user = {"role": "user", "content": "x"}
    assert server.bodies == [
        {"model": "m", "messages": [user], "stream": True},
        {
            "model": "m",
            "messages": [{"role": "system", "content": "s"}, user],
            "seed": 3,
            "stop": ["a"],
            "stream": True,
        },
    ]
