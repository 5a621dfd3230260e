"""Threads whose first failure stops the whole program and is raised where it can be seen."""

from __future__ import annotations

import threading
from collections.abc import Callable

from seed_rl.experience import Stopped


class ThreadGroup:
    """The background threads of a program, with one event that stops all of them.

    A thread ends by returning, by Stopped, or by failing. The first failure sets `stop` and waits
    for `raise_failure`; later ones are mostly its consequences.
    """

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def start(self, name: str, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except Stopped:
                pass
            except BaseException as error:
                with self._lock:
                    if self._failure is None:
                        self._failure = error
                self.stop.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def raise_failure(self) -> None:
        """Raises what the first failing thread raised, with its traceback, if any has failed."""
        with self._lock:
            if self._failure is not None:
                raise self._failure

    def join(self, timeout: float) -> None:
        """Stops the threads and waits for each to end, at most `timeout` seconds."""
        self.stop.set()
        for thread in self._threads:
            thread.join(timeout)
