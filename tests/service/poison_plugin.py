"""A package with a class of workers that a prompt kills, for the services that a test starts."""

import os
from pathlib import Path

POISON_TOKEN = 1500

_CODE = f'''
import os
import signal
from pathlib import Path

from kvasir.request.tokens import from_wire
from kvasir.worker.worker import Worker


class PoisonedWorker(Worker):
    """Kills its process in the step that computes a prompt with the token {POISON_TOKEN}, and leaves a file first
    that names the other requests of the step."""

    def execute(self, step, late=None):
        poisoned = {{row.request_id for row in step.new if {POISON_TOKEN} in from_wire(row.tokens)}}
        if poisoned & {{row.request_id for row in step.scheduled}}:
            others = [row.request_id for row in step.scheduled if row.request_id not in poisoned]
            Path(os.environ["POISON_FOLDER"], str(os.getpid())).write_text(",".join(others))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(step, late)
'''


def install(folder: Path) -> dict[str, str]:
    """Return the environment in which a service finds the class `poisoned`, which leaves files in `folder`."""
    package, deaths = folder / "package", folder / "deaths"
    metadata = package / "kvasir_test_poison-1.dist-info"
    metadata.mkdir(parents=True)
    deaths.mkdir()
    (package / "kvasir_test_poison.py").write_text(_CODE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir-test-poison\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[kvasir.workers]\npoisoned = kvasir_test_poison:PoisonedWorker\n")
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "POISON_FOLDER": str(deaths)}


def deaths(folder: Path) -> list[list[str]]:
    """Return, for each engine that the poison has killed, the other requests of its last step."""
    files = sorted((folder / "deaths").iterdir(), key=lambda file: file.stat().st_mtime)
    return [list(filter(None, file.read_text().split(","))) for file in files]
