"""`kvasir-operator` (python -m kvasir_operator): the operator; with `plan FILE` it prints what it would do."""

import sys

from kvasir_operator.operator_process import main


def run() -> int:
    if sys.argv[1:2] == ["plan"]:
        from kvasir_operator.preview import preview

        return preview(sys.argv[2:])
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
