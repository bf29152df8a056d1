from pathlib import Path

import pytest

from e2e.kind import cache
from e2e.kind.progress import KindError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.folder()


class Fill:
    """A build that writes one file and counts its calls."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.calls = 0

    def __call__(self, out: Path) -> None:
        self.calls += 1
        (out / "made").write_text(self.text)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_cached_step_is_not_built_again() -> None:
    build = Fill("one")
    first, second = (cache.make("step", cache.digest("in"), build) for _ in range(2))
    assert first == second
    assert (first / "made").read_text() == "one"
    assert build.calls == 1


def test_a_new_hash_removes_the_old_one_of_its_step_only(folder: Path) -> None:
    other = cache.make("step-of-another", cache.digest("a"), Fill("other"))
    cache.make("step", cache.digest("a"), Fill("old"))
    new = cache.make("step", cache.digest("b"), Fill("new"))
    assert visible(folder) == sorted([other.name, new.name])


def test_a_failed_build_leaves_nothing_and_keeps_the_old_folder(folder: Path) -> None:
    old = cache.make("step", cache.digest("a"), Fill("old"))

    def fails(out: Path) -> None:
        (out / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.make("step", cache.digest("b"), fails)
    assert visible(folder) == [old.name]


def test_the_hash_follows_names_contents_and_modes_of_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    script = source / "script"
    script.write_text("one")
    seen = {cache.digest(source)}
    script.write_text("two")
    seen.add(cache.digest(source))
    script.chmod(0o755)
    seen.add(cache.digest(source))
    script.rename(source / "other")
    seen.add(cache.digest(source))
    assert len(seen) == 4
    assert cache.digest(source) in seen


def test_too_little_disk_space_is_reported_with_a_remedy() -> None:
    cache.require_space(0, "nothing")
    with pytest.raises(KindError, match=r"GB are free .* needs up to 1000000 GB.*XDG_CACHE_HOME"):
        cache.require_space(1_000_000, "everything")
