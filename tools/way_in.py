"""Counts the functions and files of Kvasir that one short chat enters between its bytes and its AddRequest.

    python -m tools.way_in [--list]

The frontend runs in this process with a scripted engine. The third chat is measured, when caches are filled. Only
the thread of the event loop is counted. A resumed coroutine counts as a call.
"""

import argparse
import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import kvasir
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.protocol import AddRequest

ROOT = Path(kvasir.__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

CHAT = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "What is a pod, please?"}]}


@dataclass
class WayIn:
    """A profiler of the event loop's thread, which stops when a request is on the link."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    # Without repetitions in a row.
    files: list[str] = field(default_factory=list)

    def start(self) -> None:
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)):
            return
        if event == "call":
            self.calls[code] += 1
            if not self.files or self.files[-1] != code.co_filename:
                self.files.append(code.co_filename)
        elif code is FrontendLink.send.__code__ and isinstance(frame.f_locals["message"], AddRequest):
            sys.setprofile(None)

    def __str__(self) -> str:
        num_files = len(set(self.files))
        return (
            f"{self.calls.total()} calls of {len(self.calls)} functions in {num_files} files, "
            f"{len(self.files) - num_files} returns to an earlier file"
        )

    def listing(self) -> str:
        """Return the functions with their numbers of calls, in the order in which files were entered."""
        order = list(dict.fromkeys(self.files))
        rows = sorted(self.calls.items(), key=lambda row: (order.index(row[0].co_filename), row[0].co_firstlineno))
        return "\n".join(
            f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname} {calls}"
            for code, calls in rows
        )


async def measured() -> WayIn:
    # Of the third of three equal chats.
    from runtime.frontend.harness import running_frontend

    way = WayIn()
    async with running_frontend() as frontend, frontend.http() as client:
        for number in range(3):
            if number == 2:
                way.start()
            answer = await client.post("/v1/chat/completions", json=CHAT)
            answer.raise_for_status()
            await frontend.idle()
    return way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="print each function, in the order of the files")
    args = parser.parse_args()
    way = asyncio.run(measured())
    if args.list:
        print(way.listing())
    print(way)


if __name__ == "__main__":
    main()
