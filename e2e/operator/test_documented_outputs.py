"""docs/operating.md shows what kubectl prints about the demo service."""

import re
from pathlib import Path

import pytest
import yaml

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.world import World

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
OMITTED = "…\n"
CHANGING = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "TIME",
    r"\d+\.\d+\.\d+-[0-9a-f]{8}": "RELEASE",
    r"(?<= )(\d+[smh])+(?= |$)": "AGE",
}


@pytest.mark.parametrize("command", ["kubectl get kvs -o wide", "kubectl describe kvs demo"])
async def test_the_output_of_a_command_is_as_documented(world: World, server: ApiServer, command: str) -> None:
    example = yaml.safe_load((ROOT / "manifests" / "examples" / "demo.yaml").read_text())
    async with world.in_process() as operator, kubelet(world):
        await world.create(**example["spec"])

        async def settled() -> bool:
            progressing = await world.condition("Progressing")
            return progressing.get("reason") == "AsDesired"

        await operator.until(settled, after=3)
    printed = server.kubectl(*command.split()[1:], "--namespace", world.namespace)
    (documented,) = documented_outputs(command)
    expected = normalised(printed.replace(world.namespace, "default"))
    for part in documented.split(OMITTED):
        assert normalised(part) in expected, printed


def documented_outputs(command: str) -> list[str]:
    """Return what follows the command in the page, up to the next command or the end of the block."""
    blocks = re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    shown = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)]
    return [output for name, _, output in (part.partition("\n") for part in shown) if name == command]


def normalised(output: str) -> str:
    """Return the output without what differs from run to run."""
    text = "\n".join(re.sub(r"\s+", " ", line.strip()) for line in output.strip().splitlines())
    for pattern, word in CHANGING.items():
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text
