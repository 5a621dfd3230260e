"""Starts, tells and ends the processes of bench_transport.py."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any, Protocol

import transport_peers
import transport_raw
from transport_load import Load, Result, ServerCpu

WARM_UP_SECS = 0.2
_ANSWER_SECS = 120.0  # of a process, beyond the time that it was given
_END_SECS = 5.0
# Of the server and of the clients. Mixed: clients that cost less leave the server more time.
_CORES = {
    "native": ("native", "native"),
    "python": ("python", "python"),
    "mixed": ("python", "native"),
}
_context = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes that are started in here never see Ctrl-C: they end when their pipe does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class Worker:
    """A process that answers each thing it is told."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self._connection, theirs = _context.Pipe()
        self._name = f"the process of {target.__name__}{arguments}"
        self._process = _context.Process(target=target, args=(theirs, *arguments), daemon=True)
        with interrupts_held_back():
            self._process.start()
        theirs.close()

    def tell(self, *words: Any) -> None:
        self._connection.send(words if len(words) > 1 else words[0])

    def answer(self, secs: float = 0.0) -> Any:
        if not self._connection.poll(secs + _ANSWER_SECS):
            raise RuntimeError(f"{self._name} doesn't answer")
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self._name} has ended, and says above why") from None

    def ask(self, *words: Any) -> Any:
        self.tell(*words)
        return self.answer()

    def hang_up(self) -> None:
        self._connection.close()

    def end(self) -> None:
        self._process.join(_END_SECS)
        if self._process.is_alive():
            self.kill()
            self._process.join()

    def kill(self) -> None:
        self._process.kill()


class Bench(Protocol):
    """Server and clients of one load."""

    result: Result

    def cpu(self) -> ServerCpu:
        """Of the server so far."""

    def drive(self, secs: float) -> list[Any]:
        """Lets the clients send."""

    def close(self) -> None: ...


def measure(bench: Bench, secs: float, result: Result | None = None) -> None:
    """One turn, after a short one to warm up. It goes into `result`, or else into the bench's."""
    bench.drive(min(WARM_UP_SECS, secs))
    before = bench.cpu()
    drives = bench.drive(secs)
    (result or bench.result).add(drives, before, bench.cpu())


class _SeedBench:
    """Of seed_rl's own servers and clients."""

    def __init__(
        self, key: int, load: Load, address: str, server: Worker, clients: list[Worker]
    ) -> None:
        self.result = Result(load)
        self._key = key
        self.server = server
        address = server.ask("open", key, address, load)
        num = min(len(clients), load.num_streams)
        self._clients = clients[:num]
        edges = [load.num_streams * i // num for i in range(num + 1)]
        for client, (first, last) in zip(self._clients, itertools.pairwise(edges), strict=True):
            client.tell("open", key, address, load, range(first, last))
        for client in self._clients:
            client.answer()

    def cpu(self) -> ServerCpu:
        return self.server.ask("cpu")

    def drive(self, secs: float) -> list[Any]:
        for client in self._clients:
            client.tell("drive", self._key, secs)
        return [client.answer(secs) for client in self._clients]

    def close(self) -> None:
        # The server first: it takes clients that go before it for lost.
        for worker in (self.server, *self._clients):
            worker.ask("close", self._key)


class Peers:
    """All processes of a run. A variant is a kind of server with a kind of clients."""

    def __init__(self, folder: str, cores: list[str], num_processes: int) -> None:
        self._folder = folder
        self._cores = cores
        self._num_processes = num_processes
        self._keys = itertools.count()
        self._workers: list[Worker] = []
        # Resting servers' processes. Each has one server at a time: those of grpc.aio in the same
        # process would handle one another's events.
        self._servers: dict[str, list[Worker]] = {core: [] for core in cores}
        self._clients: dict[str, list[Worker]] = {}
        self._raw: transport_raw.Program | None = None

    def start(self) -> None:
        resource_tracker.ensure_running()  # or the first start would let interrupts in
        for core in self._cores:
            self._servers[core].append(self._start(transport_peers.serve, core, False))
            self._clients[core] = [
                self._start(transport_peers.drive, core) for _ in range(self._num_processes)
            ]
        for worker in self._workers:
            worker.answer()

    def _start(self, target: Any, *arguments: Any) -> Worker:
        self._workers.append(Worker(target, *arguments))
        return self._workers[-1]

    def compile_raw(self) -> None:
        """Adds the variant raw. Raises OSError where it can't be had."""
        self._raw = transport_raw.Program(self._folder)

    def start_trainers(self) -> dict[str, Worker]:
        """Servers that know how to train, by core; they take seconds to start."""
        trainers = {core: self._start(transport_peers.serve, core, True) for core in self._cores}
        for trainer in trainers.values():
            trainer.answer()
        return trainers

    @contextlib.contextmanager
    def open(
        self, loads: list[Load], variants: list[str], servers: dict[str, Worker] | None = None
    ) -> Iterator[dict[tuple[Load, str], Bench]]:
        """The benches of all the loads and variants.

        After a failure the processes are good for nothing but to be killed.
        """
        made: dict[tuple[Load, str], Bench] = {}
        with contextlib.ExitStack() as raw:
            for load in loads:
                for variant in variants:
                    bench = made[load, variant] = self._open(load, variant, servers)
                    if variant in ("raw", "paced"):
                        raw.callback(bench.close)
            yield made
            for (_, variant), bench in made.items():
                if isinstance(bench, _SeedBench):
                    bench.close()
                    if servers is None:
                        self._servers[_CORES[variant][0]].append(bench.server)

    def _open(self, load: Load, variant: str, servers: dict[str, Worker] | None) -> Bench:
        key = next(self._keys)
        address = f"unix:{self._folder}/{key}" if load.transport == "unix" else "127.0.0.1:0"
        if variant in ("raw", "paced"):
            assert self._raw is not None
            with interrupts_held_back():
                return transport_raw.Bench(self._raw, load, address, self._num_processes)
        core, clients_core = _CORES[variant]
        if servers is not None:
            server = servers[core]
        elif self._servers[core]:
            server = self._servers[core].pop()
        else:
            server = self._start(transport_peers.serve, core, False)
            server.answer()
        return _SeedBench(key, load, address, server, self._clients[clients_core])

    def close(self) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.end()

    def kill(self) -> None:
        # Clients first: they would complain of a server that goes before them.
        clients = [client for group in self._clients.values() for client in group]
        for worker in (*clients, *self._workers):
            worker.kill()
        for worker in self._workers:
            worker.end()


@contextlib.contextmanager
def start(cores: list[str], num_processes: int) -> Iterator[Peers]:
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        peers = Peers(folder, cores, num_processes)
        try:
            peers.start()
            yield peers
        except BaseException:
            peers.kill()
            raise
        peers.close()
