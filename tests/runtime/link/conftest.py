from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtime.link.bare_peers import BareEngine, MakeEngine
from runtime.link.peers import Frontend, Transport, frontend, socket_directory
from runtime.link.written_keys import write_link_keys


@pytest.fixture
def sockets() -> Iterator[Path]:
    with socket_directory() as path:
        yield path


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    directories = {"frontend": tmp_path / "frontend", "engine": tmp_path / "engine"}
    write_link_keys(directories["frontend"], directories["engine"])
    return directories


@pytest.fixture(params=["ipc", "tcp with keys"])
def transport(request: pytest.FixtureRequest, sockets: Path, keys: dict[str, Path]) -> Transport:
    if request.param == "ipc":
        return f"ipc://{sockets}/link", None, None
    return "tcp://127.0.0.1:0", keys["frontend"], keys["engine"]


@pytest.fixture
async def f(sockets: Path) -> AsyncIterator[Frontend]:
    async with frontend(f"ipc://{sockets}/link") as f:
        yield f


@pytest.fixture
async def bare(f: Frontend) -> AsyncIterator[MakeEngine]:
    """Makes bare engines of the frontend `f`."""
    engines = []

    def make(incarnation: str, **options: object) -> BareEngine:
        engines.append(BareEngine(f.link.addresses, incarnation, **options))
        return engines[-1]

    yield make
    for each in engines:
        each.close()
