"""The output for the user while a cluster is created."""

import io
import os
import time
from pathlib import Path

import pytest

from e2e.kind.progress import KindError, Log, Progress


def test_each_step_is_one_line_with_its_time(tmp_path: Path) -> None:
    out = io.StringIO()
    progress = Progress(2, tmp_path, out)
    for name in ("first", "node image"):
        with progress.step(name) as log:
            log.run("echo", "long output")
    assert out.getvalue() == "[1/2] first … 0 s\n[2/2] node image … 0 s\n"
    assert (tmp_path / "node-image.log").read_text() == "+ echo 'long output'\nlong output\n"


def test_a_step_that_fails_names_its_log_and_shows_the_end_of_it(tmp_path: Path) -> None:
    with pytest.raises(KindError) as failure, Progress(1, tmp_path, io.StringIO()).step("node image") as log:
        log.run("sh", "-c", "seq 100; echo no space left >&2; exit 3")
    text = str(failure.value)
    assert text.startswith("node image: sh ended with code 3")
    assert str(tmp_path / "node-image.log") in text
    assert text.endswith("99\n100\nno space left")
    assert "\n50\n" not in text


def test_an_interrupted_command_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "log")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def interrupt(*_: object) -> None:
        fifo.open().close()  # succeeds when the grandchild has opened it
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.run("sh", "-c", f"sh -c 'echo $$ > {tmp_path}/pid; exec 3> {fifo}; exec sleep 1000' & wait")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # no event reports that a grandchild has been reaped
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
