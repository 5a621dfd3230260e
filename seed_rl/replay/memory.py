"""Whether what is about to be allocated fits in the machine's memory."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path("/")


def available_bytes(root: pathlib.Path = _ROOT) -> int | None:
    """What this process can still allocate without swapping; None where the system doesn't say.

    The least of what the machine has left and of what the limits of control groups leave, as set by
    containers and batch systems. `root` is where the system's files are.
    """
    left = [*_machine(root / "proc/meminfo"), *_groups(root)]
    return min(left, default=None)


def describe_bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def require_memory(
    num_bytes: int, unroll_bytes: int, buffer_size: int, least_size: int, available: int | None
) -> None:
    """Raises ValueError where a replay of `buffer_size` unrolls, `num_bytes`, doesn't fit.

    One unroll less would take `unroll_bytes` less; `least_size` is how many there must be.
    """
    if available is None or num_bytes <= available:
        return
    # Some is left for the rest of the learner.
    fitting = buffer_size - math.ceil((num_bytes - 0.8 * available) / unroll_bytes)
    advice = (
        f"set it to {fitting}, for example"
        if fitting >= least_size
        else "lower it, --replay_buffer_min_size, --unroll_length, --burn_in or the number of "
        "environments"
    )
    raise ValueError(
        f"--replay_buffer_size={buffer_size} takes {describe_bytes(num_bytes)} of memory, but "
        f"{describe_bytes(available)} are available: {advice}, or set "
        "--check_replay_memory=False to try nevertheless"
    )


def require_batch_memory(num_bytes: int, batch_size: int, available: int | None) -> None:
    """Raises ValueError where a batch of `batch_size` unrolls, `num_bytes`, doesn't fit."""
    if available is None or num_bytes <= available:
        return
    fitting = int(0.5 * available / num_bytes * batch_size)  # training takes memory, too
    advice = f"set it to {fitting}, for example" if fitting >= 1 else "lower --unroll_length"
    raise ValueError(
        f"--batch_size={batch_size} takes {describe_bytes(num_bytes)} of memory, but "
        f"{describe_bytes(available)} are available: {advice}"
    )


def _machine(meminfo: pathlib.Path) -> Iterator[int]:
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield 1024 * int(value.split()[0])


def _groups(root: pathlib.Path) -> Iterator[int]:
    """What each limit leaves: that of the process's own group, and those of the groups above."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the mount may begin at its own group: then only the last of them is there.
        own = pathlib.PurePath(path.lstrip("/"))
        for group in (own, *own.parents):
            yield from _group(root / mount / group, *names)


def _group(folder: pathlib.Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    try:
        most = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return
    for line in _lines(folder / "memory.stat"):
        name, value = line.split()
        if name == reclaimable:  # of the cache of files, which gives way
            used -= int(value)
    yield max(most - used, 0)


def _lines(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
