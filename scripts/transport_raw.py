"""The limit, raw_epoll.c: compiled and run."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import shutil
import subprocess

import numpy as np
from transport_load import ANSWERS, Drive, Load, Result, ServerCpu

_SOURCE = pathlib.Path(__file__).parent / "raw_epoll.c"
_END_SECS = 5.0


class Program:
    """The compiled program. Raises OSError where it can't be made."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/raw_epoll"
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise OSError("no C compiler (cc) is installed")
        command = [compiler, "-O2", "-std=c11", "-o", self.path, str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{compiler} refuses {_SOURCE.name}: {done.stderr.strip()[:500]}")


class Bench:
    """Server and clients of one load, each a process.

    The clients compute for `pause_us` after each step.
    """

    def __init__(self, program: Program, load: Load, address: str, num_processes: int) -> None:
        self.result = Result(load)
        self.pause_us = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._clients: list[subprocess.Popen[bytes]] = []
        sizes = [str(load.num_rows * layout.row_bytes) for layout in (load.layout, ANSWERS)]

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [program.path, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._processes.append(process)
            return process

        try:
            self._server = start("serve", address, *sizes)
            address = _line(self._server)
            num = min(num_processes, load.num_streams)
            edges = [load.num_streams * i // num for i in range(num + 1)]
            self._clients = [
                start("drive", address, *sizes, str(last - first))
                for first, last in itertools.pairwise(edges)
            ]
            for client in self._clients:
                _line(client)
        except BaseException:
            self.close()
            raise

    def cpu(self) -> ServerCpu:
        _tell(self._server, "cpu")
        return ServerCpu(1e-9 * int(_line(self._server)))

    def drive(self, secs: float) -> list[Drive]:
        for client in self._clients:
            _tell(client, f"{round(1e6 * secs)} {round(1e3 * self.pause_us)}")
        return [_drive(client) for client in self._clients]

    def close(self) -> None:
        for process in reversed(self._processes):
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            try:
                process.wait(_END_SECS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tell(process: subprocess.Popen[bytes], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n".encode())
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("raw_epoll has ended, and says above why")
    return line.decode().strip()


def _drive(client: subprocess.Popen[bytes]) -> Drive:
    answers, messages, wall, cpu, num = (int(word) for word in _line(client).split())
    assert client.stdout is not None
    latencies = np.frombuffer(client.stdout.read(4 * num), np.uint32) * 1e-9
    return Drive(1e-9 * wall, answers, messages, 1e-9 * cpu, latencies)
