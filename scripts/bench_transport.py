"""Measures the wire between actors and learner: rows/s, CPU time, latency.

  python scripts/bench_transport.py --seconds=2 --rounds=3 --json

Server and clients are processes of their own; the server answers zeros. Every message size is sent
over TCP and over a unix socket, in turn within each round, so that both meet the same machine:

  alone   one client: its round trip's p50 and p99, and its CPU time per message
  many    --streams clients: rows/s, and the server's CPU time per message and per row
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from seed_rl.grpc.client import make_client
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import ServerClosed, make_server
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

ACTION = ArraySpec((), "int32", 0, 17)
# 13 bytes of a row are its id, step type and rewards.
ROWS = {"64b": ArraySpec((51,), "uint8"), "frame": ArraySpec((84, 84), "uint8")}
TRANSPORTS = ("unix", "tcp")
WARM_UP_SECS = 0.3


@dataclasses.dataclass(frozen=True)
class Load:
    """What is sent: how large, over what, by how many."""

    transport: str
    row: str
    num_rows: int  # of a message
    num_streams: int

    def __str__(self) -> str:
        return f"{self.num_rows}x{self.row}"


@dataclasses.dataclass
class Result:
    """Sums over all rounds."""

    num_rows: int
    secs: float = 0.0
    messages: int = 0
    server_cpu_secs: float = 0.0
    client_cpu_secs: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)

    @property
    def rows_s(self) -> float:
        return self.messages * self.num_rows / self.secs

    @property
    def server_us(self) -> float:
        return 1e6 * self.server_cpu_secs / self.messages

    @property
    def client_us(self) -> float:
        return 1e6 * self.client_cpu_secs / self.messages

    def latency_us(self, percentile: float) -> float:
        return 1e6 * float(np.percentile(self.latencies, percentile))

    def to_json(self) -> dict[str, float]:
        return {
            "rows_s": round(self.rows_s),
            "server_us_message": round(self.server_us, 2),
            "server_us_row": round(self.server_us / self.num_rows, 3),
            "client_us_message": round(self.client_us, 2),
            "client_us_row": round(self.client_us / self.num_rows, 3),
            "p50_us": round(self.latency_us(50), 1),
            "p99_us": round(self.latency_us(99), 1),
        }


def serve(connection: Connection, address: str, load: Load) -> None:
    """The server's process: tells its address, then its CPU time whenever asked, until None."""
    sys.setswitchinterval(1e-4)  # as in the learner
    num_envs = load.num_streams * load.num_rows
    server = make_server(
        address,
        step_layout(ROWS[load.row]),
        action_layout(ACTION),
        "{}",
        num_envs,
        # The clients whose answers are under way don't hold up the others.
        batch_size=max(num_envs // 2, load.num_rows),
        batch_timeout_secs=0.01,
    )
    answers = ACTION.zeros(num_envs)

    def answer() -> None:
        with contextlib.suppress(ServerClosed):
            while True:
                batch = server.next_batch(1.0)
                if batch is not None:
                    server.reply(batch, [answers[: batch.size]])

    thread = threading.Thread(target=answer)
    thread.start()
    connection.send(server.address)
    while connection.recv():
        connection.send(time.process_time())
    server.close(finished=True)
    thread.join()


def send(connection: Connection, address: str, load: Load, streams: range) -> None:
    """A clients' process: sends for as many seconds as it is told, until 0."""
    layout = step_layout(ROWS[load.row])
    clients, messages = [], []
    for stream in streams:
        client = make_client(address)
        first = stream * load.num_rows
        client.join(first, load.num_rows, layout, action_layout(ACTION))
        columns = layout.empty(load.num_rows)
        columns[0][:] = np.arange(first, first + load.num_rows)
        client.act(columns)
        columns[1][:] = StepType.MID
        clients.append(client)
        messages.append(columns)
    connection.send("ready")
    while secs := connection.recv():
        latencies: list[list[float]] = [[] for _ in clients]
        until = time.perf_counter() + secs

        def act(index: int, until: float, latencies: list[float]) -> None:
            now = time.perf_counter()
            while now < until:
                clients[index].act(messages[index])
                before, now = now, time.perf_counter()
                latencies.append(now - before)

        cpu = time.process_time()
        if len(clients) == 1:
            act(0, until, latencies[0])
        else:
            threads = [
                threading.Thread(target=act, args=(index, until, latencies[index]))
                for index in range(len(clients))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        connection.send(
            (time.process_time() - cpu, [value for part in latencies for value in part])
        )
    for client in clients:
        client.close()


class Bench:
    """The processes of one load, which rest between their turns."""

    def __init__(self, load: Load, folder: str, max_processes: int) -> None:
        self._load = load
        self.result = Result(load.num_rows)
        context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []  # the server's first
        path = f"{folder}/{load.row}-{load.num_rows}-{load.num_streams}"
        wanted = f"unix:{path}" if load.transport == "unix" else "127.0.0.1:0"

        def start(target: Any, *arguments: Any) -> Connection:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            return ours

        self._server = start(serve, wanted, load)
        address = self._server.recv()
        num_processes = min(max_processes, load.num_streams)
        edges = [load.num_streams * i // num_processes for i in range(num_processes + 1)]
        self._clients = [
            start(send, address, load, range(first, last))
            for first, last in itertools.pairwise(edges)
        ]
        for client in self._clients:
            client.recv()

    def run(self, secs: float) -> None:
        self._send(WARM_UP_SECS)
        start, cpu = time.perf_counter(), self._server_cpu_secs()
        outcomes = self._send(secs)
        self.result.server_cpu_secs += self._server_cpu_secs() - cpu
        self.result.secs += time.perf_counter() - start
        for client_cpu_secs, latencies in outcomes:
            self.result.client_cpu_secs += client_cpu_secs
            self.result.latencies += latencies
            self.result.messages += len(latencies)

    def close(self) -> None:
        # The server first: it takes clients that go before it for lost.
        self._server.send(False)
        self._processes[0].join()
        for client in self._clients:
            client.send(0)
        for process in self._processes:
            process.join()

    def _send(self, secs: float) -> list[Any]:
        for client in self._clients:
            client.send(secs)
        return [client.recv() for client in self._clients]

    def _server_cpu_secs(self) -> float:
        self._server.send(True)
        return float(self._server.recv())


@contextlib.contextmanager
def benches(loads: list[Load], max_processes: int) -> Iterator[dict[Load, Bench]]:
    with tempfile.TemporaryDirectory(prefix="bench") as folder, contextlib.ExitStack() as stack:
        made = {}
        for load in loads:
            made[load] = Bench(load, folder, max_processes)
            stack.callback(made[load].close)
        yield made


def measure(arguments: argparse.Namespace) -> dict[Load, Result]:
    results = {}
    for row in arguments.rows:
        for num_rows in arguments.message_rows:
            # Only what is compared directly is alive at the same time.
            loads = [
                Load(transport, row, num_rows, num_streams)
                for num_streams in (1, arguments.streams)
                for transport in TRANSPORTS
            ]
            with benches(loads, arguments.processes) as made:
                for _ in range(arguments.rounds):
                    for bench in made.values():
                        bench.run(arguments.seconds)
                results.update({load: bench.result for load, bench in made.items()})
    return results


def table(results: dict[Load, Result], num_streams: int) -> list[str]:
    alone_head = f"{'p50 us':>8} {'p99 us':>8} {'CPU us':>8}"
    many_head = f"{'rows/s':>10} {'CPU us':>8} {'us a row':>9} {'rows/s a core':>14}"
    lines = [
        f"{'':22}  {'alone: client':26}    {num_streams} streams: server",
        f"{'message':>9} {'transport':>12}  {alone_head}    {many_head}",
    ]
    for load, alone in results.items():
        if load.num_streams != 1:
            continue
        many = results[dataclasses.replace(load, num_streams=num_streams)]
        lines.append(
            f"{load!s:>9} {load.transport:>12}  {alone.latency_us(50):8.0f} "
            f"{alone.latency_us(99):8.0f} {alone.client_us:8.1f}    {many.rows_s:10,.0f} "
            f"{many.server_us:8.1f} {many.server_us / load.num_rows:9.2f} "
            f"{1e6 * load.num_rows / many.server_us:14,.0f}"
        )
        if load.transport == TRANSPORTS[-1]:
            unix = dataclasses.replace(load, transport="unix")
            unix_many = results[dataclasses.replace(unix, num_streams=num_streams)]
            lines.append(
                f"{'':9} {'unix / tcp':>12}  "
                f"{results[unix].latency_us(50) / alone.latency_us(50):8.2f} "
                f"{results[unix].latency_us(99) / alone.latency_us(99):8.2f} "
                f"{results[unix].client_us / alone.client_us:8.2f}    "
                f"{unix_many.rows_s / many.rows_s:10.2f} "
                f"{unix_many.server_us / many.server_us:8.2f}"
            )
    return lines


def summary(results: dict[Load, Result], arguments: argparse.Namespace) -> dict[str, Any]:
    """The few numbers to follow over time, where they were measured, and all the others."""
    streams = arguments.streams

    def find(transport: str, row: str, num_rows: int, num_streams: int) -> Result | None:
        return results.get(Load(transport, row, num_rows, num_streams))

    found: dict[str, Any] = {"core": "python", "streams": streams, "cpus": os.cpu_count()}
    for row in ROWS:
        if many := find("unix", row, 64, streams):
            found[f"rows_s_64x{row}"] = round(many.rows_s)
            tcp = find("tcp", row, 64, streams)
            assert tcp is not None  # measured beside it
            found[f"unix_to_tcp_64x{row}"] = round(many.rows_s / tcp.rows_s, 3)
        single, many_rows = find("unix", row, 1, streams), find("unix", row, 64, streams)
        if single and many_rows:
            found[f"row_cost_1_to_64_{row}"] = round(64 * single.server_us / many_rows.server_us, 2)
    for name, row in (("single", "64b"), ("single_frame", "frame")):
        if many := find("unix", row, 1, streams):
            found[f"server_us_{name}"] = round(many.server_us, 2)
        if alone := find("unix", row, 1, 1):
            found[f"client_us_{name}"] = round(alone.client_us, 2)
    for transport in TRANSPORTS:
        if alone := find(transport, "64b", 1, 1):
            found[f"p50_us_{transport}"] = round(alone.latency_us(50), 1)
            found[f"p99_us_{transport}"] = round(alone.latency_us(99), 1)
    found["results"] = [
        {**dataclasses.asdict(load), **result.to_json()} for load, result in results.items()
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16, help="clients at the same time, > 1")
    parser.add_argument("--processes", type=int, default=4, help="that the clients are spread over")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--message_rows", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.streams < 2:
        parser.error(f"--streams is {arguments.streams}, wanted at least 2")
    results = measure(arguments)
    print("\n".join(table(results, arguments.streams)))
    if arguments.json:
        print(json.dumps(summary(results, arguments)))


if __name__ == "__main__":
    main()
