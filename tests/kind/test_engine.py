"""The network namespace never gets an address that the machine uses. A stop always removes as much as possible."""

from pathlib import Path

import pytest

from e2e.kind import cache, engine, traces
from e2e.kind.build import debian
from e2e.kind.progress import KindError, Log

DEFAULT = "default via 192.0.2.1 dev eth0"


class Routes(Log):
    """`ip route` on a machine with these routes."""

    def __init__(self, folder: Path, *routes: str) -> None:
        super().__init__(folder / "log")
        self._routes = "\n".join((DEFAULT, *routes))

    def read(self, *command: object, **_: object) -> str:
        return self._routes


def test_a_range_is_taken_that_touches_no_route(tmp_path: Path) -> None:
    assert str(engine.free_range(Routes(tmp_path))) == "10.213.77.0/30"
    assert str(engine.free_range(Routes(tmp_path, "10.0.0.0/8 via 192.0.2.9 dev eth0"))) == "192.168.213.0/30"
    assert str(engine.free_range(Routes(tmp_path, "local 10.213.77.2 dev eth0 scope host"))) == "192.168.213.0/30"


def test_a_machine_without_a_free_range_is_reported(tmp_path: Path) -> None:
    taken = ("10.0.0.0/8 dev a", "192.168.0.0/16 dev b", "172.16.0.0/12 dev c")
    with pytest.raises(KindError, match=r"routes to all of 10\.213\.77\.0/30"):
        engine.free_range(Routes(tmp_path, *taken))


def test_a_hanging_docker_does_not_prevent_the_other_removals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def hangs(out: Path) -> None:
        docker = out / "usr/bin/docker"
        docker.parent.mkdir(parents=True)
        docker.write_text('#!/bin/sh\n[ "$3" = ps ] && echo node || exec sleep 60\n')
        docker.chmod(0o755)

    cache.make("docker", cache.digest(debian.SUITE), hangs)
    monkeypatch.setattr(engine, "_REMOVED_WITHIN", 0.2)
    monkeypatch.setattr(engine, "alive", lambda: True)
    monkeypatch.setattr(traces, "processes", lambda: [1])
    monkeypatch.setattr(traces, "remove", lambda: ["the rest"])
    assert engine.stop() == ["the rest"]
