import asyncio
import logging
import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from kvasir.config.options import ConfigError
from kvasir.config.tls_settings import TlsConfig
from kvasir.frontend.http.connections.tls import Tls
from runtime.frontend.harness import ANSWER, Frontend, eventually, running_frontend
from runtime.frontend.scripted import TIMEOUT

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


class Files:
    """An authority, and the certificate and key of a server as files."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.certificate = directory / "tls.crt"
        self.key = directory / "tls.key"
        self.authorities = directory / "ca.crt"
        self.authority.cert_pem.write_to_path(self.authorities)
        self.issue()

    def issue(self) -> None:
        pair = self.authority.issue_cert("127.0.0.1")
        self.certificate.write_bytes(b"".join(part.bytes() for part in pair.cert_chain_pems))
        self.key.write_bytes(pair.private_key_pem.bytes())

    def config(self, **options: object) -> TlsConfig:
        return TlsConfig(
            ssl_certfile=str(self.certificate),
            ssl_keyfile=str(self.key),
            **options,  # type: ignore[arg-type]
        )

    def client_context(self, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority; with a certificate of `issuer`."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_requests_and_streams_go_over_tls(files: Files) -> None:
    async with running_frontend(tls=files.config()) as frontend, _client(frontend, files) as client:
        answer = await client.post("/v1/chat/completions", json=BODY)
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        async with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as stream:
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert frontend.url.startswith("https://")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await httpx.AsyncClient(base_url=frontend.url, timeout=TIMEOUT).get("/version")


async def test_new_files_serve_new_connections_and_old_ones_go_on(files: Files) -> None:
    async with running_frontend(tls=files.config(enable_ssl_refresh=True)) as frontend:
        reader, writer = await _connect(frontend, files)
        before = _certificate(writer)
        files.key.write_text("not a key")  # the first half of an update
        await _turns(frontend, 2)
        assert await _served(frontend, files) == before
        files.issue()

        async def changed() -> bool:
            return await _served(frontend, files) != before

        await eventually(changed)
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert _certificate(writer) == before
        writer.close()


def test_a_change_and_a_fault_of_the_files_are_logged_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tls = Tls(files.config(enable_ssl_refresh=True))
    files.key.write_text("not a key")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            tls.refresh()
        files.issue()
        for _ in range(2):
            tls.refresh()
    fault, change = (record.message for record in caplog.records)
    assert fault.endswith("the last certificate stays")
    assert change == f"new certificate read from {files.certificate}"


async def test_without_refresh_the_first_certificate_stays(files: Files) -> None:
    async with running_frontend(tls=files.config()) as frontend:
        before = await _served(frontend, files)
        files.issue()
        await _turns(frontend, 2)
        assert await _served(frontend, files) == before


async def test_required_client_certificates_are_checked(files: Files, tmp_path: Path) -> None:
    clients, others = trustme.CA(), trustme.CA()
    accepted = tmp_path / "clients.crt"
    clients.cert_pem.write_to_path(accepted)
    tls = files.config(ssl_ca_certs=str(accepted), ssl_cert_reqs=2, enable_ssl_refresh=True)
    async with running_frontend(tls=tls) as frontend:
        async with _client(frontend, files, clients) as client:
            assert (await client.get("/version")).status_code == 200
        for issuer in (None, others):
            assert not await _is_accepted(frontend, files, issuer)
        others.cert_pem.write_to_path(accepted)
        await eventually(lambda: _is_accepted(frontend, files, others))
        assert not await _is_accepted(frontend, files, clients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_certfile": "/no/such/file"}, "--ssl-certfile /no/such/file.*: no such file"),
        ({"ssl_ca_certs": "/no/such/file", "ssl_cert_reqs": 2}, "--ssl-ca-certs /no/such/file: no such file"),
        ({"ssl_ciphers": "NONSENSE"}, "--ssl-ciphers NONSENSE: OpenSSL has no such cipher"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(files: Files, options: dict[str, object], message: str) -> None:
    given = {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)} | options
    with pytest.raises(ConfigError, match="(?i)" + message):
        Tls(TlsConfig(**given))  # type: ignore[arg-type]


def test_a_key_of_another_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    files.authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    with pytest.raises(ConfigError, match="key values mismatch"):
        Tls(TlsConfig(ssl_certfile=str(files.certificate), ssl_keyfile=str(other)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_keyfile": "x"}, "--ssl-keyfile has no effect without --ssl-certfile"),
        ({"ssl_certfile": "x", "ssl_cert_reqs": 2}, "--ssl-cert-reqs 2 without --ssl-ca-certs"),
        ({"ssl_certfile": "x", "ssl_ca_certs": "y"}, "--ssl-ca-certs has no effect with --ssl-cert-reqs 0"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TlsConfig(**options)  # type: ignore[arg-type]


def _client(frontend: Frontend, files: Files, issuer: trustme.CA | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=frontend.url, verify=files.client_context(issuer), timeout=TIMEOUT)


async def _is_accepted(frontend: Frontend, files: Files, issuer: trustme.CA | None) -> bool:
    """Whether the server answers a client with a certificate of this issuer; it may refuse after the handshake."""
    async with _client(frontend, files, issuer) as client:
        try:
            return (await client.get("/version")).status_code == 200
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return False


async def _connect(frontend: Frontend, files: Files) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(frontend.url)
    return await asyncio.open_connection(url.host, url.port, ssl=files.client_context())


def _certificate(writer: asyncio.StreamWriter) -> bytes:
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    return certificate


async def _served(frontend: Frontend, files: Files) -> bytes:
    """Return the certificate of a new connection."""
    _, writer = await _connect(frontend, files)
    try:
        return _certificate(writer)
    finally:
        writer.close()


async def _turns(frontend: Frontend, count: int) -> None:
    """Wait until this many of the turns that the server takes every second have passed."""
    passed, enough = 0, asyncio.Event()
    beat = frontend.status.beat

    def counted() -> None:
        nonlocal passed
        beat()
        passed += 1
        if passed > count:
            enough.set()

    frontend.status.beat = counted  # type: ignore[method-assign]
    await asyncio.wait_for(enough.wait(), TIMEOUT)
    frontend.status.beat = beat  # type: ignore[method-assign]
