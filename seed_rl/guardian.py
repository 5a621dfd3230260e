"""Ends the launcher's children once the launcher is gone, however it went: also by SIGKILL.

A program of its own, run by its path: `python guardian.py [FOLDER]`. Its stdin is a pipe that only
the launcher writes to, `+PID` for each process group begun and `-PID` for each one ended. When the
pipe closes, the groups left are asked to stop, then killed, and FOLDER is deleted.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

STOP_SECS = 5.0


def signal_group(group: int, signum: int) -> bool:
    """Whether the group still had a process to signal."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # not ours: the id has been taken by another user's process
        return False
    return True


def groups_left(lines: Iterable[str]) -> list[int]:
    """The process groups begun and not ended, in the order of their beginning."""
    groups: dict[int, None] = {}
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups[group] = None
        else:
            groups.pop(group, None)
    return list(groups)


def end(groups: list[int]) -> None:
    deadline = time.monotonic() + STOP_SECS
    groups = [group for group in groups if signal_group(group, signal.SIGTERM)]
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        groups = [group for group in groups if signal_group(group, 0)]
    for group in groups:
        signal_group(group, signal.SIGKILL)


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    end(groups_left(sys.stdin))
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
