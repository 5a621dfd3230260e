#!/usr/bin/env python3
"""Measures the wire between actors and learner: rows/s, CPU time, latency, beside its limit.

  python scripts/bench_transport.py --json                      all of it, in some five minutes
  python scripts/bench_transport.py --parts latency --rounds=1  a first look

Compared, in turn within each round so that all meet the same machine:

  native  the native server and native clients
  python  the server on grpc.aio and clients on grpcio
  mixed   the Python server with native clients: what it costs where clients leave it more time
  raw     raw_epoll.c: the same bytes by epoll, read and write in C and nothing else, the limit
  paced   the same, with clients that compute as long in each step as those of the first core: its
          server meets as many messages at once as the core's, where the raw one always has some

Servers and clients are processes of their own; the server answers zeros from one Python thread, as
inference would. Each process of clients drives its streams from one thread: it sends on all of
them, then receives and sends on each in turn. A stream that is alone waits for each answer
(`act`), and its round trips are the latencies. Rows have 64 bytes or a frame of 84x84, messages 1
or 64 rows. CPU times are those of whole processes, medians of the rounds.

The parts:

  latency     one stream: round trip, and the client's CPU time a step
  throughput  --streams streams: rows/s, and CPU time a message
  streams     the server's CPU time a row at 1, 16, 128 and 1,000 streams
  idle        the server's CPU time while that many streams are open and silent
  training    a message's CPU time, of the transport's threads alone, while the server's process
              trains the Nature CNN in a loop, over that of the same process without

A batch holds half of the environments, 2,048 at most, so that while one half is answered the other
arrives, and nobody waits for a deadline. That makes one stream alone the worst case: each of its
messages is a batch, and pays what a batch costs in Python; among 1,000 streams 500 share it. Costs
a row so fall at first as streams grow; what is held against the target is the largest rise, from
any number of streams to any larger one. What the loop's thread takes is told apart, since it
doesn't know that advantage: it is what a stream itself costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from typing import Any

import transport_bench
import transport_raw
from transport_bench import Bench, Peers
from transport_load import Load, Result
from transport_report import Measured, Results, growth_table, summary, table

from seed_rl.grpc import core

PARTS = ("latency", "throughput", "streams", "idle", "training")
_SPARE_FILES = 200


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def available_cores() -> list[str]:
    """Native first, where it is built."""
    if core.choose("auto") == "native":
        return ["native", "python"]
    progress(core.why_python())
    return ["python"]


def run_rounds(
    peers: Peers, loads: list[Load], variants: list[str], arguments: argparse.Namespace
) -> Results:
    with peers.open(loads, variants) as benches:
        for _ in range(arguments.rounds):
            for (load, variant), bench in benches.items():
                if variant == "paced":
                    pace(bench, *(benches[load, other] for other in (variants[0], "raw")))
                transport_bench.measure(bench, arguments.seconds)
        for load in loads:
            found = [
                f"{variant} {describe(benches[load, variant].result)}"
                for variant in variants
                if (load, variant) in benches
            ]
            progress(f"{load}, {load.num_streams} streams, {load.transport}: {'; '.join(found)}")
        return {key: bench.result for key, bench in benches.items()}


def pace(bench: Bench, other: Bench, raw: Bench) -> None:
    """Makes the clients' steps cost as much as the core's."""
    assert isinstance(bench, transport_raw.Bench)
    bench.pause_us = max(other.result.turns[-1].client_us - raw.result.turns[-1].client_us, 0)


def describe(result: Result) -> str:
    text = f"{result.median('rows_s'):,.0f} rows/s, {result.median('server_us'):.1f} us"
    return text + (f", p50 {result.latency_us(50):.0f} us" if result.load.num_streams == 1 else "")


def measure_idle(peers: Peers, cores: list[str], num_streams: int, secs: float) -> dict[str, float]:
    with peers.open([Load("64b", 1, num_streams)], cores) as benches:
        time.sleep(min(1.5, secs))  # what happens once after the last message

        def cpu_secs() -> dict[str, float]:
            return {variant: bench.cpu().process for (_, variant), bench in benches.items()}

        before, start = cpu_secs(), time.perf_counter()
        time.sleep(secs)
        after, passed = cpu_secs(), time.perf_counter() - start
    return {key: 100 * (after[key] - before[key]) / passed for key in before}


def measure_training(
    peers: Peers, cores: list[str], arguments: argparse.Namespace
) -> tuple[Results, Results]:
    trainers = peers.start_trainers()
    resting: Results = {}
    training: Results = {}
    for num_rows in (1, 64):
        with peers.open([Load("64b", num_rows, arguments.streams)], cores, trainers) as benches:
            for _ in range(arguments.rounds):
                for key, bench in benches.items():
                    resting[key] = bench.result
                    transport_bench.measure(bench, arguments.seconds)
                    trainers[key[1]].ask("train", True)
                    beside = training.setdefault(key, Result(key[0]))
                    transport_bench.measure(bench, arguments.seconds, beside)
                    trainers[key[1]].ask("train", False)
            for (load, variant), bench in benches.items():
                beside = training[load, variant]
                progress(
                    f"{load}, {variant}: {beside.median('transport_us'):.1f} us of the "
                    f"transport's threads, {bench.result.median('transport_us'):.1f} "
                    "without training"
                )
    return resting, training


def measure(peers: Peers, cores: list[str], arguments: argparse.Namespace) -> Measured:
    measured = Measured(arguments.streams, arguments.stream_counts)
    compared = list(cores)
    try:
        peers.compile_raw()
        compared.append("raw")
    except OSError as error:
        progress(f"without raw epoll: {error}")
    # Only what is compared directly is alive at the same time.
    if "latency" in arguments.parts:
        progress("latency:")
        for load in (
            Load("64b", 1, 1),
            Load("64b", 1, 1, "tcp"),
            Load("frame", 1, 1),
            Load("64b", 64, 1),
            Load("frame", 64, 1),
        ):
            measured.latency |= run_rounds(peers, [load], compared, arguments)
    if "throughput" in arguments.parts:
        progress("throughput:")
        mixed = ["mixed"] if "native" in cores and "python" in cores else []
        for num_rows, row, transport in (
            (1, "64b", "unix"),
            (1, "64b", "tcp"),
            (1, "frame", "unix"),
            (64, "64b", "unix"),
            (64, "64b", "tcp"),
            (64, "frame", "unix"),
            (64, "frame", "tcp"),
        ):
            load = Load(row, num_rows, arguments.streams, transport)
            variants = compared + (mixed if transport == "unix" else [])
            if "raw" in compared and num_rows == 1:
                variants = [*variants, "paced"]
            measured.throughput |= run_rounds(peers, [load], variants, arguments)
    if "streams" in arguments.parts:
        progress("streams:")
        for num_rows in (1, 64):
            loads = [Load("64b", num_rows, count) for count in arguments.stream_counts]
            measured.growth |= run_rounds(peers, loads, compared, arguments)
    if "training" in arguments.parts:
        progress("training: starting TensorFlow")
        measured.resting, measured.training = measure_training(peers, cores, arguments)
    if "idle" in arguments.parts:
        measured.idle_streams = max(arguments.stream_counts)
        progress(f"idle: {measured.idle_streams} streams for {arguments.idle_seconds:g} s")
        measured.idle_percent = measure_idle(
            peers, cores, measured.idle_streams, arguments.idle_seconds
        )
    return measured


def allow_files(wanted: int) -> int:
    """Raises the limit of open files; how many it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cores", nargs="+", choices=["native", "python"], help="default: all")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measurement in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16, help="clients at the same time, > 1")
    parser.add_argument(
        "--stream_counts", nargs="+", type=int, default=[1, 16, 128, 1000], help="ascending"
    )
    parser.add_argument("--idle_seconds", type=float, default=10.0, help="a period of keepalive")
    parser.add_argument("--processes", type=int, default=2, help="that the clients are spread over")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.streams < 2:
        parser.error(f"--streams is {arguments.streams}, wanted at least 2")
    if arguments.stream_counts != sorted(set(arguments.stream_counts)):
        parser.error("--stream_counts: wanted each number once, in ascending order")
    available = available_cores()
    arguments.cores = [core for core in available if core in (arguments.cores or available)]
    if not arguments.cores:
        parser.error("the native core isn't built")
    # A server has all streams of its loads open at the same time.
    needed = 2 * sum(arguments.stream_counts) + _SPARE_FILES
    if allow_files(needed) < needed:
        parser.error(
            f"--stream_counts {arguments.stream_counts} need {needed} open files: raise the limit "
            "(ulimit -Hn) or ask for fewer streams"
        )
    return arguments


def end(*_: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what follows takes seconds at most
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    start = time.perf_counter()
    try:
        with transport_bench.start(arguments.cores, arguments.processes) as peers:
            measured = measure(peers, arguments.cores, arguments)
    except KeyboardInterrupt:
        progress("interrupted")
        return 130
    except RuntimeError as error:
        progress(f"error: {error}")
        return 1
    print("\n".join([*table(measured), "", *growth_table(measured)]).rstrip())
    progress(f"took {time.perf_counter() - start:.0f} s")
    if arguments.json:
        found = summary(measured, arguments.cores[0])
        found |= {"streams": arguments.streams, "cpus": os.cpu_count()}
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
