"""The operator as a child process, with its log and its end."""

import asyncio
from typing import Final

PATIENCE: Final = 60.0
"""How many seconds a test waits before it fails."""


class OperatorProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self._grown = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def logs(self, text: str, patience: float = PATIENCE) -> str:
        """Wait for a line of the log that contains the text."""
        async with asyncio.timeout(patience), self._grown:
            while not (lines := [line for line in self.log if text in line]):
                assert not self._reader.done(), f"it ended without logging {text!r}: {self.log}"
                await self._grown.wait()
        return lines[0]

    async def stop(self) -> int:
        self.process.terminate()
        return await self.ended()

    async def kill(self) -> int:
        if self.process.returncode is None:
            self.process.kill()
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            await self._reader
            return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())
            async with self._grown:
                self._grown.notify_all()
        async with self._grown:
            self._grown.notify_all()
