"""Runs the actors of one machine whose learner is on another."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from typing import TextIO

from seed_rl.supervisor import (
    POLL_SECS,
    Actor,
    Child,
    Guard,
    Policy,
    Program,
    Terminal,
    describe_exit,
    on_stop_signals,
    shell_code,
)

# An actor that ends with code 0 has heard from the learner that training is over.
_POLICY = Policy(finished_delay_secs=math.inf)


class _Crew:
    def __init__(
        self,
        actors: Sequence[Program],
        guard: Guard,
        terminal: Terminal,
        policy: Policy,
        signals: Sequence[int],
    ) -> None:
        self._terminal = terminal
        self._policy = policy
        self._signals = signals
        self._actors = [Actor(Child(actor, guard, terminal), policy) for actor in actors]

    def run(self) -> int:
        try:
            while not self._signals:
                for actor in self._actors:
                    actor.start_if_due()
                for actor in self._actors:
                    actor.child.relay()
                    code = actor.failure()
                    if code is not None and not self._goes_on(actor, code):
                        return shell_code(code)
                if any(not actor.child.runs and actor.child.code == 0 for actor in self._actors):
                    self._wait(self._policy.farewell_secs)
                    return 0
                time.sleep(POLL_SECS)
            return shell_code(-self._signals[0])
        finally:
            self._end()

    def _goes_on(self, actor: Actor, code: int) -> bool:
        """Whether the actor that failed will live again."""
        why = actor.why_give_up()
        if why is not None:
            self._say(f"{actor.child.program} {describe_exit(code)}, {why}; stopping all actors")
            return False
        self._say(
            f"{actor.child.program} {describe_exit(code)}; "
            f"it starts again in {actor.plan_restart():g} s"
        )
        return True

    def _say(self, line: str) -> None:
        self._terminal.show(f"[actors] {line}")

    def _end(self) -> None:
        for signum, secs in ((signal.SIGTERM, self._policy.stop_secs), (signal.SIGKILL, 2.0)):
            for actor in self._actors:
                actor.child.signal(signum)
            self._wait(secs)

    def _wait(self, secs: float) -> None:
        """For all actors to end."""
        deadline = time.monotonic() + secs
        while any(actor.child.runs for actor in self._actors) and time.monotonic() < deadline:
            for actor in self._actors:
                actor.child.relay()
                actor.child.poll()
            time.sleep(POLL_SECS)


def supervise_actors(
    actors: Sequence[Program], *, terminal: TextIO, scratch_folder: str, policy: Policy = _POLICY
) -> int:
    """Runs the actors until one says that training is over, keeps failing, or a signal arrives.

    One that dies is started again. Returns 0 after training, the code of the first actor that is
    given up, 128 + N where signal N ended it or stopped everything. `scratch_folder` is deleted at
    the end. Must be called from the main thread, which receives signals.
    """
    signals: list[int] = []
    with on_stop_signals(lambda signum, _: signals.append(signum)):
        guard = Guard(scratch_folder)
        try:
            return _Crew(actors, guard, Terminal(terminal), policy, signals).run()
        finally:
            guard.close()
