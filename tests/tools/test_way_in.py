"""The way of a chat is counted from its bytes to the link."""

from tools.way_in import ROOT, measured


async def test_the_way_in_ends_on_the_link() -> None:
    way = await measured()
    files = [file.removeprefix(f"{ROOT}/kvasir/") for file in way.files]
    assert files[0].startswith("frontend/http/")
    assert files[-1].startswith("link/")
    assert "client/dispatch/dispatcher.py" in files
    assert way.calls.total() >= len(way.calls) >= len(set(files))
