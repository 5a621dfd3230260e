"""What runs in the processes that bench_transport.py measures: a server's and the clients'.

Both do what they are told over a pipe, and end when it does. A server's process has one server at a
time, a process of clients can hold several sets of them, which rest between their turns.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from transport_load import ACTION, ANSWER_THREAD, ANSWERS, LOOP_THREADS, Drive, Load, ServerCpu

from seed_rl.grpc.client import make_client
from seed_rl.grpc.server import ServerClosed, make_server
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepType

# As the kernel names them. The threads that Python started are listed by Python's names.
_THREADS_OF_GRPC = ("event_engine", "grpc", "lifeguard", "timer_manager")
_NO_TRANSPORT = ("MainThread", "training")


class _Service:
    """A server, and the thread that answers its batches with zeros."""

    def __init__(self, core: str, address: str, load: Load) -> None:
        self._answers = [ACTION.zeros(load.batch_size)]
        self.server = make_server(
            address,
            load.layout,
            ANSWERS,
            "{}",
            load.num_envs,
            batch_size=load.batch_size,
            batch_timeout_secs=0.01,
            core=core,
        )
        self._thread = threading.Thread(target=self._answer, name=ANSWER_THREAD, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        server, answers = self.server, self._answers
        with contextlib.suppress(ServerClosed):
            while True:
                batch = server.next_batch(1.0)
                if batch is not None:
                    server.reply(batch, answers)

    def close(self) -> None:
        self.server.close(finished=True)
        self._thread.join()


class _Training:
    """V-trace steps of the Nature CNN, as many as there is time for, while it is on."""

    def __init__(self) -> None:
        # TensorFlow only where it is wanted.
        from seed_rl.devices import start_tensorflow

        start_tensorflow()
        import bench_tools
        import bench_train_step

        environment = EnvironmentSpecs(
            ArraySpec((84, 84), "uint8", 0, 255), ArraySpec((), "int64", 0, 17)
        )
        variant = bench_tools.Variant.parse("nature")
        self._call = bench_train_step.make_call(variant, environment, 4, 20, 32)
        self._call()
        self._call()
        self._is_on = threading.Event()
        self._is_idle = threading.Event()
        threading.Thread(target=self._run, name="training", daemon=True).start()

    def set(self, is_on: bool) -> None:
        if is_on:
            self._is_idle.clear()
            self._is_on.set()
        else:
            self._is_on.clear()
            self._is_idle.wait()

    def _run(self) -> None:
        while True:
            if not self._is_on.is_set():
                self._is_idle.set()
                self._is_on.wait()
            self._call()


def serve(connection: Connection, core: str, with_training: bool) -> None:
    """A server's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(1e-4)  # as in the learner
    training = _Training() if with_training else None
    service: _Service | None = None
    with contextlib.suppress(EOFError, OSError):  # whoever started this process is gone
        connection.send("ready")
        while True:
            answer: Any = None
            match connection.recv():
                case "open", _, address, load:
                    assert service is None
                    service = _Service(core, address, load)
                    answer = service.server.address
                case "close", _:
                    assert service is not None
                    service.close()
                    service = None
                    gc.collect()  # grpc.aio lets go of an event loop with the last object of it
                case "train", is_on:
                    assert training is not None
                    training.set(is_on)
                case "cpu":
                    answer = _cpu()
            connection.send(answer)
    if service is not None:
        service.close()
    # Without Python's goodbye, which would wait for TensorFlow's thread.
    os._exit(0)


def _cpu() -> ServerCpu:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    threads: dict[str, float] = {}
    for thread in os.listdir("/proc/self/task"):
        # A thread may end before it is looked at.
        with contextlib.suppress(OSError):
            name = names.get(int(thread)) or _read(thread, "comm").strip()
            if int(thread) in names:
                is_transport = name not in _NO_TRANSPORT
            else:
                is_transport = name.startswith((*LOOP_THREADS, *_THREADS_OF_GRPC))
            if is_transport:
                secs = 1e-9 * int(_read(thread, "schedstat").split()[0])
                threads[name] = threads.get(name, 0.0) + secs
    return ServerCpu(time.process_time(), threads)


def _read(thread: str, file: str) -> str:
    with open(f"/proc/self/task/{thread}/{file}") as opened:
        return opened.read()


class _Streams:
    """Clients that one thread drives in turn."""

    def __init__(self, core: str, address: str, load: Load, streams: range) -> None:
        self._clients = [make_client(address, core=core) for _ in streams]
        self._messages = []
        for stream, client in zip(streams, self._clients, strict=True):
            first = stream * load.num_rows
            client.join(first, load.num_rows, load.layout, ANSWERS)
            columns = load.layout.empty(load.num_rows)
            columns[0][:] = np.arange(first, first + load.num_rows)
            self._messages.append(columns)
        # All of them at once, or each would wait for a batch's deadline.
        for client, columns in zip(self._clients, self._messages, strict=True):
            client.send(columns)
        for client, columns in zip(self._clients, self._messages, strict=True):
            client.receive()
            columns[1][:] = StepType.MID

    def drive(self, secs: float) -> Drive:
        cpu, start = time.process_time(), time.perf_counter()
        until = start + secs
        if len(self._clients) == 1:
            latencies = self._act(start, until)
            stop = time.perf_counter()
            answers = messages = len(latencies)
        else:
            latencies = []
            answers = self._round_robin(until)
            stop = time.perf_counter()
            messages = answers + len(self._clients)
            for client in self._clients:
                client.receive()
        return Drive(
            stop - start, answers, messages, time.process_time() - cpu, np.array(latencies)
        )

    def _act(self, now: float, until: float) -> list[float]:
        act, columns = self._clients[0].act, self._messages[0]
        latencies = []
        while now < until:
            act(columns)
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        return latencies

    def _round_robin(self, until: float) -> int:
        """Leaves a message of each stream under way."""
        for client, columns in zip(self._clients, self._messages, strict=True):
            client.send(columns)
        steps = [
            (client.receive, client.send, columns)
            for client, columns in zip(self._clients, self._messages, strict=True)
        ]
        answers = 0
        while True:
            for receive, send, columns in steps:
                receive()
                send(columns)
            answers += len(steps)
            if time.perf_counter() >= until:
                return answers

    def close(self) -> None:
        for client in self._clients:
            client.close()


def drive(connection: Connection, core: str) -> None:
    """A process of clients."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sets: dict[int, _Streams] = {}
    with contextlib.suppress(EOFError, OSError):
        connection.send("ready")
        while True:
            answer: Any = None
            match connection.recv():
                case "open", key, address, load, streams:
                    sets[key] = _Streams(core, address, load, streams)
                case "close", key:
                    sets.pop(key).close()
                case "drive", key, secs:
                    answer = sets[key].drive(secs)
            connection.send(answer)
    # Open streams end with the process: there may be a thousand of them.
    os._exit(0)
