"""Which cluster is taken, and that two runs do not share one unawares."""

import io
from pathlib import Path

import pytest

from e2e.kind import cache, cluster, own, plain
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be done to the machine: it has no docker engine, and nothing is up."""
    done: list[str] = []

    def up(name: str) -> KindCluster:
        done.append(f"{name} up")
        return KindCluster(cache.kubeconfig(), None, {}, "docker")

    def plain_up(progress: Progress) -> KindCluster:
        return up("plain")

    def own_up(progress: Progress) -> KindCluster:
        return up("own")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(plain, "is_up", lambda: False)
    monkeypatch.setattr(plain, "impossible", lambda: "no docker engine answers")
    monkeypatch.setattr(plain, "up", plain_up)
    monkeypatch.setattr(own, "is_up", lambda: False)
    monkeypatch.setattr(own, "up", own_up)
    monkeypatch.setattr(own, "has_traces", lambda: bool(done))
    monkeypatch.setattr(own, "down", lambda: done.append("own down"))
    return done


def test_the_cluster_of_kubeconfig_is_used_and_nothing_is_made(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/theirs")
    with cluster.cluster(io.StringIO()) as given:
        assert given.kubeconfig == Path("/theirs")
        with pytest.raises(KindError, match="push it to a registry"):
            given.load_image("app")
    assert calls == []


def test_the_kubeconfig_that_make_cluster_tells_to_export_is_our_own(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cache.kubeconfig()))
    assert cluster.current() is None


def test_a_machine_with_docker_and_a_registry_builds_nothing(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "impossible", lambda: None)
    cluster.up(io.StringIO())
    assert calls == ["plain up"]


def test_a_cluster_made_for_a_run_is_removed_also_when_the_run_fails(calls: list[str]) -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), cluster.cluster(out):
        raise KeyboardInterrupt
    assert calls == ["own up", "own down"]
    assert "no docker engine answers" in out.getvalue()


def test_a_cluster_that_is_up_already_stays_up(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "is_up", lambda: True)
    monkeypatch.setattr(own, "existing", lambda: KindCluster(cache.kubeconfig(), None, {}, "buildah"))
    with cluster.cluster(io.StringIO()) as running:
        assert running.can_load
    assert calls == []


def test_a_second_run_waits_for_no_cluster_of_the_first(calls: list[str]) -> None:
    with cluster.cluster(io.StringIO()), pytest.raises(KindError, match="Another run"):
        cluster.down()
    assert calls == ["own up", "own down"]
