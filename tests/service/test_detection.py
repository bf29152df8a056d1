"""A killed engine of a service is noticed at once: its connections are held by a process that outlives it."""

from pathlib import Path

from service.running import Service


def test_every_engine_has_its_connections_held(service: Service) -> None:
    engines = service.engines()
    assert engines
    for engine in engines:
        keepers = [
            int(child)
            for task in Path(f"/proc/{engine.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
            if "connection_keeper" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        assert len(keepers) == 1
        # One frontend. The keeper's own socket leads to the engine, so it is not one of the engine's.
        assert len(sockets(engine.pid) & sockets(keepers[0])) == 1


def sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return {link for link in links if link.startswith("socket:")}
