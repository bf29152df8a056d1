"""Lines of batch files."""

import json
from pathlib import Path
from typing import Any

COMPLETIONS = "/v1/completions"


def line(custom_id: object = "a", **fields: Any) -> str:
    request = {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": {"prompt": "x"}} | fields
    return json.dumps({name: value for name, value in request.items() if value is not ...})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def answers(path: Path) -> dict[str, Any]:
    """Return the answers of an output file by their ids; each id occurs once."""
    read = [json.loads(each) for each in path.read_text().splitlines()]
    result = {each["custom_id"]: each for each in read}
    assert len(result) == len(read)
    return result
