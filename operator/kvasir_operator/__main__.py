"""The command `kvasir-operator`: runs the operator, or with `plan FILE` prints its plan."""

import sys

from kvasir_operator.operator_process import main


def run() -> int:
    if sys.argv[1:2] == ["plan"]:
        from kvasir_operator.preview import preview

        return preview(sys.argv[2:])
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
