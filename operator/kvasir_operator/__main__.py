"""python -m kvasir_operator"""

import sys

from kvasir_operator.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
