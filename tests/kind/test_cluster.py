"""The choice of the cluster, and the lock that keeps two runs from sharing one."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.kind import cache, cluster, own, plain
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
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
    monkeypatch.delenv(cluster.CONSENT, raising=False)
    monkeypatch.setattr(plain, "is_up", lambda: False)
    monkeypatch.setattr(plain, "impossible", lambda: "no docker engine is running")
    monkeypatch.setattr(plain, "up", plain_up)
    monkeypatch.setattr(own, "is_up", lambda: False)
    monkeypatch.setattr(own, "up", own_up)
    monkeypatch.setattr(own, "has_traces", lambda: bool(done))
    monkeypatch.setattr(own, "down", lambda: done.append("own down"))
    return done


@pytest.mark.parametrize("said", [None, "", "no", "true"])
def test_the_cluster_of_kubeconfig_is_refused_without_consent(
    said: str | None, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message identifies the cluster, even without kubectl to read the rest."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\ncase "$*" in *server*) echo https://prod:6443;; *) echo production;; esac\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("KUBECONFIG", "/theirs")
    if said is not None:
        monkeypatch.setenv(cluster.CONSENT, said)
    for path, words in ((tmp_path, ("production", "https://prod:6443")), (tmp_path / "none", ("not installed",))):
        monkeypatch.setenv("PATH", str(path))
        with pytest.raises(KindError) as refusal, cluster.cluster(io.StringIO()):
            pytest.fail("the cluster was given to the tests")
        for word in ("/theirs", "kvasir-system", f"{cluster.CONSENT}=yes", *words):
            assert word in str(refusal.value)
    assert calls == []


def test_a_run_of_tests_is_refused_before_its_first_test(tmp_path: Path) -> None:
    """`make e2e` fails before the tests that need only an API server have run."""
    settings = {**os.environ, "KUBECONFIG": str(tmp_path / "theirs"), "XDG_CACHE_HOME": str(tmp_path)}
    settings.pop(cluster.CONSENT, None)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "e2e/test_apiserver.py",
        "e2e/test_kind.py",
    )
    run = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{cluster.CONSENT}=yes" in run.stderr + run.stdout
    assert "passed" not in run.stdout


def test_with_consent_the_cluster_of_kubeconfig_is_used(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/theirs")
    monkeypatch.setenv(cluster.CONSENT, "yes")
    with cluster.cluster(io.StringIO()) as given:
        assert given.kubeconfig == Path("/theirs")
        with pytest.raises(KindError, match="push it to a registry"):
            given.load_image("app")
    assert calls == []


def test_the_kubeconfig_that_make_cluster_prints_is_our_own(
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


def test_a_cluster_of_a_run_is_removed_also_if_the_run_fails(calls: list[str]) -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), cluster.cluster(out):
        raise KeyboardInterrupt
    assert calls == ["own up", "own down"]
    assert "no docker engine is running" in out.getvalue()


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
