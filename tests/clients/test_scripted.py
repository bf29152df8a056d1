import asyncio

import pytest

from clients.programs import (
    ENVIRONMENT,
    INSTRUCTOR,
    LOOP_PROGRAMS,
    PROGRAMS,
    RUN_SECONDS,
    NotInstalledError,
    Program,
    command_of,
    failures_of,
    label,
)
from kvasir.frontend.generation import sse
from runtime.frontend.harness import Frontend, running_frontend, script_for
from runtime.frontend.tool_turns import FORMATS, looping_model

COMMENTS = 3


async def failures(program: Program, frontend: Frontend, *replays: str) -> dict[str, str]:
    try:
        command = command_of(program, f"{frontend.url}/v1", *replays)
    except NotInstalledError as missing:
        pytest.skip(str(missing))
    process = await asyncio.create_subprocess_exec(
        *command, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return failures_of(output.decode())


@pytest.mark.parametrize("program", PROGRAMS, ids=label)
async def test_a_stream_with_comments_before_its_first_token(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client reads over the comments of a server whose first token takes long."""
    monkeypatch.setattr(sse, "HEAD_SECONDS", 0.01)
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    written: list[bytes] = []
    write = sse._Output._write
    async with running_frontend() as frontend:
        frontend.engine.script.pause_at = 0

        async def note_and_write(
            output: sse._Output, piece: bytes, more: bool, silence: float | None = None
        ) -> None:
            await write(output, piece, more, silence)
            written.append(piece)
            if written.count(sse.KEEP_ALIVE) >= COMMENTS:
                frontend.engine.resume()

        monkeypatch.setattr(sse._Output, "_write", note_and_write)
        assert await failures(program, frontend, "stream") == {}
    assert written[:COMMENTS] == [sse.KEEP_ALIVE] * COMMENTS
    assert len(written) > COMMENTS


async def test_instructor_reads_json_that_is_text() -> None:
    async with running_frontend() as frontend:
        frontend.engine.script = script_for('```json\n{"name": "web", "replicas": 3}\n```')
        assert await failures(INSTRUCTOR, frontend, "json_in_text") == {}


@pytest.mark.parametrize("program", LOOP_PROGRAMS, ids=label)
@pytest.mark.parametrize("name", FORMATS)
async def test_loop_of_three_calls_reaches_the_answer(program: Program, name: str) -> None:
    async with looping_model(name) as frontend:
        assert await failures(program, frontend) == {}
