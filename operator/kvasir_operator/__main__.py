"""The command `kvasir-operator`: runs the operator, or with `plan FILE` prints its plan."""

import sys

from kvasir_contract.exits import ExitCode
from kvasir_contract.extras import install_extra
from kvasir_contract.process_basics import complete_process


def run() -> int:
    complete_process()
    try:
        return _run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kopf", "kubernetes", "aiohttp"):
            raise
        print(f"kvasir-operator: {error.name} is not installed: {install_extra('operator')}", file=sys.stderr)
        return ExitCode.USER_ERROR


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["plan"]:
        from kvasir_operator.preview import preview

        return preview(arguments[1:])
    from kvasir_operator.operator_process import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(run())
