"""What a replay takes is held against what the machine has, before anything is allocated."""

from __future__ import annotations

import pathlib

import pytest

from seed_rl.replay.memory import (
    available_bytes,
    describe_bytes,
    require_batch_memory,
    require_memory,
)

MEMINFO = (
    "MemTotal:       24000000 kB\nMemFree:  500 kB\nMemAvailable:   20000000 kB\nBuffers: 5 kB\n"
)
LARGE = str(2**63 - 4096)  # what version 1 says where there is no limit


def write(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group_v2(folder: str, most: str, used: int, inactive: int) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{folder}/memory.max": f"{most}\n",
        f"sys/fs/cgroup/{folder}/memory.current": f"{used}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": f"anon 7\ninactive_file {inactive}\nactive_file 1\n",
    }


def group_v1(folder: str, most: str, used: int, inactive: int) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes": f"{most}\n",
        f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory/{folder}/memory.stat": (
            f"inactive_file 3\ntotal_inactive_file {inactive}\n"
        ),
    }


def test_this_machine_has_some() -> None:
    found = available_bytes()
    assert found is None or 2**20 < found < 2**50


def test_what_the_machine_has(tmp_path: pathlib.Path) -> None:
    assert available_bytes(write(tmp_path, {"proc/meminfo": MEMINFO})) == 20_000_000 * 1024


def test_a_system_that_does_not_say(tmp_path: pathlib.Path) -> None:
    assert available_bytes(tmp_path) is None
    require_memory(10**18, 10**14, 5000, 100, available_bytes(tmp_path))


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        ("3000000", "5000000", 3_000_000 - 1_000_000 + 200_000),
        ("3000000", "2500000", 2_500_000 - 1_500_000 + 300_000),
        ("max", "5000000", 5_000_000 - 1_500_000 + 300_000),
        ("1000", "5000000", 0),
        ("max", "max", 20_000_000 * 1024),
    ],
)
def test_limits_of_control_groups(
    tmp_path: pathlib.Path, own: str, above: str, expected: int
) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/jobs/mine\n"}
    files |= group_v2("jobs/mine", own, 1_000_000, 200_000)
    files |= group_v2("jobs", above, 1_500_000, 300_000)
    assert available_bytes(write(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("mine", "folder"), [("/docker/abc", "docker/abc"), ("/docker/abc", "."), ("/", ".")]
)
def test_limits_of_control_groups_of_version_1(
    tmp_path: pathlib.Path, mine: str, folder: str
) -> None:
    """Where a container sees its own group as the root, too."""
    listing = f"9:name=systemd:{mine}\n5:cpu,cpuacct:/\n4:memory:{mine}\n0::/\n"
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": listing}
    files |= group_v1(".", LARGE, 9_000_000, 0)
    files |= group_v1(folder, "4000000", 1_000_000, 500_000)
    assert available_bytes(write(tmp_path, files)) == 3_500_000


def test_what_fits_is_accepted() -> None:
    require_memory(10**9, 200_000, 5000, 100, 10**9)


def test_a_refusal_names_both_numbers_and_what_to_type() -> None:
    """Case 86."""
    with pytest.raises(ValueError) as error:
        require_memory(56_448_000_000, 564_480, 100_000, 5_000, 12_345_000_000)
    words = str(error.value)
    for part in (
        "--replay_buffer_size=100000 takes 56.45 GB",
        "12.35 GB are available",
        "set it to 17495",
        "--check_replay_memory=False",
    ):
        assert part in words
    assert "\n" not in words


def test_small_numbers_can_be_read() -> None:
    assert describe_bytes(2_340_000) == "2.34 MB"
    assert describe_bytes(150_000_000) == "0.15 GB"


def test_where_fewer_unrolls_would_not_do_other_flags_are_named() -> None:
    """Such as for a burn-in of which each environment needs more than there is memory."""
    with pytest.raises(ValueError, match=r"lower it, --replay_buffer_min_size, .*--burn_in"):
        require_memory(10**12, 10**5, 5000, 100, 10**9)


def test_batches_that_do_not_fit_are_refused_with_a_size_that_does() -> None:
    require_batch_memory(10**9, 100, 10**9)
    require_batch_memory(10**9, 100, None)
    with pytest.raises(ValueError) as error:
        require_batch_memory(40 * 10**9, 30_000, 20 * 10**9)
    assert str(error.value) == (
        "--batch_size=30000 takes 40.00 GB of memory, but 20.00 GB are available: set it to 7500, "
        "for example"
    )
    with pytest.raises(ValueError, match="available: lower --unroll_length"):
        require_batch_memory(10**12, 2, 10**9)
