import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_transport.py"


def test_every_figure_is_there():
    size = ["--seconds=0.2", "--rounds=1", "--streams=2", "--processes=1", "--rows", "64b"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *size, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    assert [line.split()[:2] for line in table[2:]] == [
        ["1x64b", "unix"],
        ["1x64b", "tcp"],
        ["unix", "/"],
        ["64x64b", "unix"],
        ["64x64b", "tcp"],
        ["unix", "/"],
    ]
    figures = json.loads(last)
    assert figures["core"] == "python"
    for name in ("rows_s_64x64b", "server_us_single", "client_us_single", "p50_us_unix"):
        assert figures[name] > 0, name
    assert len(figures["results"]) == 8
    assert "lost actor" not in done.stderr
