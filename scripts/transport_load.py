"""What bench_transport.py sends, and what it measures of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from seed_rl.grpc.codec import Layout, action_layout, step_layout
from seed_rl.specs import ArraySpec

ACTION = ArraySpec((), "int32", 0, 17)
ANSWERS = action_layout(ACTION)
# 13 bytes of a row are its id, step type and rewards.
OBSERVATIONS = {"64b": ArraySpec((51,), "uint8"), "frame": ArraySpec((84, 84), "uint8")}
# Under which the threads of the server that get the bytes and that answer the batches are listed.
LOOP_THREADS = ("seed_rl epoll", "grpc server")
ANSWER_THREAD = "answer"
_LARGEST_BATCH = 2048


@dataclasses.dataclass(frozen=True)
class Load:
    """What is sent: how large, by how many, over what."""

    row: str
    num_rows: int  # of a message
    num_streams: int
    transport: str = "unix"

    def __str__(self) -> str:
        return f"{self.num_rows}x{self.row}"

    @property
    def layout(self) -> Layout:
        return step_layout(OBSERVATIONS[self.row])

    @property
    def num_envs(self) -> int:
        return self.num_streams * self.num_rows

    @property
    def batch_size(self) -> int:
        """Half of the rows, so that the clients whose answers are under way hold up nobody.

        No more than a learner would infer at once.
        """
        return max(min(self.num_envs // 2, _LARGEST_BATCH), self.num_rows)


@dataclasses.dataclass
class Drive:
    """What one process of clients did in a turn."""

    secs: float
    answers: int  # that came within these seconds
    messages: int  # all that were sent, and answered in the end
    cpu_secs: float
    latencies: np.ndarray  # seconds; of a stream that is alone


@dataclasses.dataclass
class ServerCpu:
    """CPU seconds of a server's process so far."""

    process: float
    threads: dict[str, float] = dataclasses.field(default_factory=dict)  # the transport's, by name


@dataclasses.dataclass
class Turn:
    """One measurement of a load: a turn in one of the rounds."""

    num_rows: int  # of a message
    rows_s: float
    messages: int
    server_cpu_secs: float
    threads: dict[str, float]
    client_cpu_secs: float

    @property
    def server_us(self) -> float:
        return 1e6 * self.server_cpu_secs / self.messages

    @property
    def client_us(self) -> float:
        return 1e6 * self.client_cpu_secs / self.messages

    @property
    def loop_us(self) -> float:
        """Of the thread alone that gets the bytes: without the fixed cost of a batch in Python."""
        return 1e6 * sum(self.threads.get(name, 0.0) for name in LOOP_THREADS) / self.messages

    @property
    def transport_us(self) -> float:
        """Of the transport's threads, whatever else the process does."""
        return 1e6 * sum(self.threads.values()) / self.messages

    @property
    def rows_per_transport_sec(self) -> float:
        return 1e6 * self.num_rows / self.transport_us


class Result:
    """All turns of a load."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.turns: list[Turn] = []
        self.latencies: list[np.ndarray] = []

    def add(self, drives: list[Drive], before: ServerCpu, after: ServerCpu) -> None:
        rows_s = self.load.num_rows * sum(drive.answers / drive.secs for drive in drives)
        self.turns.append(
            Turn(
                self.load.num_rows,
                rows_s,
                sum(drive.messages for drive in drives),
                after.process - before.process,
                {
                    name: secs - before.threads.get(name, 0.0)
                    for name, secs in after.threads.items()
                },
                sum(drive.cpu_secs for drive in drives),
            )
        )
        self.latencies += [drive.latencies for drive in drives]

    def median(self, figure: str) -> float:
        """Of the turns: whatever else the machine did in one of them doesn't count."""
        return float(np.median([getattr(turn, figure) for turn in self.turns]))

    @property
    def server_us_row(self) -> float:
        return self.median("server_us") / self.load.num_rows

    @property
    def rows_s_core(self) -> float:
        """Rows a second that one core of the server's machine serves."""
        return 1e6 / self.server_us_row

    def latency_us(self, percentile: float) -> float:
        latencies = np.concatenate(self.latencies)
        return 1e6 * float(np.percentile(latencies, percentile)) if len(latencies) else math.nan

    def to_json(self) -> dict[str, float]:
        figures = {
            "rows_s": round(self.median("rows_s")),
            "server_us_message": round(self.median("server_us"), 2),
            "server_us_row": round(self.server_us_row, 3),
            "client_us_message": round(self.median("client_us"), 2),
            "loop_us_message": round(self.median("loop_us"), 2),
            "transport_us_message": round(self.median("transport_us"), 2),
        }
        for percentile in (50, 99):
            latency = self.latency_us(percentile)
            if not math.isnan(latency):
                figures[f"p{percentile}_us"] = round(latency, 1)
        return figures


def ratio(result: Result, other: Result, figure: str) -> float:
    """The median of the ratios round by round: both sides of each met the same machine."""
    pairs = zip(result.turns, other.turns, strict=True)
    return float(np.median([getattr(a, figure) / getattr(b, figure) for a, b in pairs]))
