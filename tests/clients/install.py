"""Install the client programs that are missing or out of date: `python -m clients.install`, by `make test-clients`.

A program that cannot be installed is named with its reason; the tests of the others still run.
"""

import shutil
import subprocess

from clients.programs import CACHE, EVERY_PROGRAM, Program, is_installed, label, stamp


def main() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for program in EVERY_PROGRAM:
        if is_installed(program):
            continue
        print(f"installing {label(program)} from {program.source} into {CACHE}", flush=True)
        problem = _install(program)
        if problem:
            print(f"{label(program)} is not installed, and its tests are skipped: {problem}", flush=True)
        else:
            stamp(program).write_text(program.version)


def _install(program: Program) -> str:
    """Return why it failed; empty if it did not."""
    for command in program.installation():
        if shutil.which(command[0]) is None:
            return f"there is no {command[0]} on this machine"
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = (result.stdout + result.stderr).strip().splitlines()
            errors = [line for line in lines if "error" in line.lower()]
            reason = next(iter(errors or lines), f"{command[0]} ended with {result.returncode}")
            return f"{reason} (is {program.source} reachable?)"
    return ""


if __name__ == "__main__":
    main()
