import pytest

from runtime.link.bare_peers import BareEngine
from runtime.link.peers import frontend, socket_directory
from runtime.link.written_keys import write_link_keys


@pytest.fixture
def sockets():
    """A private directory with a short path, for ipc:// sockets."""
    with socket_directory() as path:
        yield path


@pytest.fixture
def keys(tmp_path):
    """Directories of keys by side: frontend, engine."""
    directories = {"frontend": tmp_path / "frontend", "engine": tmp_path / "engine"}
    write_link_keys(directories["frontend"], directories["engine"])
    return directories


@pytest.fixture(params=["ipc", "tcp with keys"])
def transport(request, sockets, keys):
    """What both sides of a link are given: the frontend's address, its keys, the engines' keys."""
    if request.param == "ipc":
        return f"ipc://{sockets}/link", None, None
    return "tcp://127.0.0.1:0", keys["frontend"], keys["engine"]


@pytest.fixture
async def f(sockets):
    async with frontend(f"ipc://{sockets}/link") as f:
        yield f


@pytest.fixture
async def bare(f):
    """Makes bare engines of the frontend `f`."""
    engines = []

    def make(incarnation, **options):
        engines.append(BareEngine(f.link.addresses, incarnation, **options))
        return engines[-1]

    yield make
    for each in engines:
        each.close()
