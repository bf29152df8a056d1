import sys

import pytest
from tools.install_packages import announcement, downloads, show

from tools import install_packages

OUTPUT = [
    "Collecting torch<3,>=2.11 (from kvasir-serve==0.1.0)\n",
    "  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (539.1 MB)\n",
    "  Using cached nvidia_cudnn_cu13-9.26.0.51-py3-none-manylinux_2_27_x86_64.whl (519.0 MB)\n",
    "  Downloading idna-3.10-py3-none-any.whl.metadata (10 kB)\n",
    "  Downloading idna-3.10-py3-none-any.whl (70 kB)\n",
    "Installing collected packages: torch\n",
]


def test_gigabytes_are_named_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    first, second = announcement({}, has_gpu=False, has_torch=False)
    assert "3.1 GB to download" in first
    assert "TORCH_INDEX_URL" in second
    assert announcement({}, has_gpu=True, has_torch=False) == [first]
    assert "GB" not in announcement({}, has_gpu=False, has_torch=True)[0]
    assert announcement({"TORCH_INDEX_URL": "u"}, False, False) == ["Installing Kvasir, with torch from u"]


def test_files_of_pip_are_counted_and_all_lines_logged() -> None:
    log: list[str] = []
    found = dict(downloads(iter(OUTPUT), log))
    assert found == {"torch": 539.1, "nvidia_cudnn_cu13": 519.0, "idna": pytest.approx(0.07)}
    assert log == OUTPUT


def test_progress_is_one_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(iter([("torch", 539.1), ("idna", 0.1)]), is_terminal=True)
    printed = capsys.readouterr().out
    assert "\n" not in printed
    assert "  2 files, 0.54 GB: idna" in printed
    show(iter([("torch", 539.1), ("idna", 0.1)]), is_terminal=False)
    assert capsys.readouterr().out == "  1 file, 0.54 GB: torch\n"


def test_the_output_of_pip_is_shown_if_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert install_packages.pip("--no-index", "no-such-package-at-all") != 0
    assert "no-such-package-at-all" in capfd.readouterr().err


def test_torch_comes_from_its_own_index_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(install_packages, "pip", pip)
    monkeypatch.setenv("TORCH_INDEX_URL", "u")
    monkeypatch.setattr(sys, "path", [])
    assert install_packages.main(".[engine]") == 0
    assert calls == [("--index-url", "u", "torch>=2.11,<3"), ("-e", ".[engine]")]
