"""A script: the engine process with a number of worker processes that all compute the whole model.

python engine_with_workers.py NUMBER MODEL [option …]
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvasir.cli.engine import config_of, parser
from kvasir.engine import engine_process
from kvasir.executor.multiprocess import MultiprocessExecutor

vars(engine_process)["executor_for"] = partial(MultiprocessExecutor, num_workers=int(sys.argv[1]))
sys.exit(engine_process.run_engine(config_of(parser().parse_args(sys.argv[2:]))))
