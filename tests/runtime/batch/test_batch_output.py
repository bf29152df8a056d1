import json
from pathlib import Path

import msgspec
import pytest

from kvasir.batch.batch_input import id_hash
from kvasir.batch.batch_output import AnswerFile, BatchResponse
from kvasir.config.options import CommandFailed, ConfigError


def response(body: str = '{"x": 1}', status: int = 200) -> BatchResponse:
    return BatchResponse(status, "r1", msgspec.Raw(body.encode()))


def test_an_answer_has_the_form_of_openai(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out") as output:
        output.write("a\n", response())
    text = (tmp_path / "out").read_text()
    answer = json.loads(text)
    assert answer.pop("id").startswith("batch_req_")
    assert answer == {
        "custom_id": "a\n",
        "response": {"status_code": 200, "request_id": "r1", "body": {"x": 1}},
        "error": None,
    }
    assert text.count("\n") == 1


def test_each_answer_is_in_the_file_at_once(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out") as output:
        for count in range(1, 4):
            output.write(str(count), response())
            assert (tmp_path / "out").read_text().count("\n") == count


def test_answers_of_an_earlier_run_stand(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out") as output:
        output.write("a", response())
        output.write("b", response(status=400))
    before = (tmp_path / "out").read_bytes()
    with AnswerFile(tmp_path / "out") as output:
        assert output.answered == {id_hash("a"), id_hash("b")}
        output.write("c", response())
    after = (tmp_path / "out").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 3


@pytest.mark.parametrize("kept", [1, 60, -1])
def test_a_part_of_a_line_is_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "out"
    with AnswerFile(path) as output:
        output.write("a", response())
        whole = path.read_bytes()
        output.write("b", response())
    second = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + second[:kept])
    with AnswerFile(path) as output:
        assert output.answered == {id_hash("a")}
        assert path.read_bytes() == whole
        output.write("b", response())
    with AnswerFile(path) as output:
        assert output.answered == {id_hash("a"), id_hash("b")}


@pytest.mark.parametrize(
    "text", ["notes\n", "[]\n", '{"custom_id": "a"}\n', '{"custom_id": "a", "response": null}\n']
)
def test_a_file_with_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1, is not an answer of a batch: choose another --output-file"):
        AnswerFile(path)
    assert path.read_text() == text


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with (
        AnswerFile(tmp_path / "out"),
        pytest.raises(ConfigError, match="is being written by another run-batch"),
    ):
        AnswerFile(tmp_path / "out")
    with AnswerFile(tmp_path / "out"):
        pass


@pytest.mark.parametrize(("name", "message"), [("no/out", "cannot write"), (".", "cannot write")])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AnswerFile(tmp_path / name)


def test_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a regular file"):
        AnswerFile(Path("/dev/null"))


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with AnswerFile(tmp_path / "out") as output:
        monkeypatch.setattr("os.write", full)
        with pytest.raises(CommandFailed, match="No space left on device"):
            output.write("a", response())
        monkeypatch.undo()


def test_outdated_answers_go_when_a_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with AnswerFile(path) as output:
        output.write("good", response())
        output.write("bad", response(status=404))
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with AnswerFile(link) as output:
        assert output.failed == {id_hash("bad")}
        output.replace({id_hash("bad"), id_hash("good")})
        assert output.answered == {id_hash("good")}
        assert path.read_text().count("\n") == 2
        output.write("new", response())
        output.write("bad", response())
        with pytest.raises(ConfigError, match="is being written by another run-batch"):
            AnswerFile(path)
    assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["good", "new", "bad"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_full_disk_leaves_outdated_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    with AnswerFile(path) as output:
        output.write("bad", response(status=500))
    before = path.read_bytes()

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    with AnswerFile(path) as output:
        output.replace(output.failed)
        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(CommandFailed, match="No space left on device"):
            output.write("a", response())
        monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
