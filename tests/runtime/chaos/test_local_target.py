"""Which processes of this machine count as ended."""

import os
import subprocess
import sys

from kvasir.chaos import local_target


def test_a_process_has_ended_before_its_parent_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not local_target._has_ended(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert local_target._has_ended(process.pid)
    assert local_target._has_ended(process.pid)
