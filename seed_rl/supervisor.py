"""Runs one learner and its actors as child processes, and ends them all together.

Children write to log files, which are followed from here to the terminal: so a blocked or closed
terminal never blocks a child, and what a child says is kept even when the launcher is killed. Each
child leads a session of its own: Ctrl-C reaches only the launcher, which passes it on in order.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import BinaryIO, TextIO

from seed_rl import guardian

POLL_SECS = 0.05
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
KEPT_LINES = 60
REFUSED = 2  # a learner's exit code after one line that says what the user must mend


@dataclasses.dataclass(frozen=True)
class Program:
    """One child: what to run, and how to speak of it."""

    name: str  # 'learner', 'actor 1'
    command: Sequence[str]
    log: pathlib.Path
    prefix: str = ""  # of its lines on the terminal
    duty: str = ""  # what is affected by its death: 'environments 16-31'

    def __str__(self) -> str:
        return f"{self.name} ({self.duty})" if self.duty else self.name


@dataclasses.dataclass(frozen=True)
class Policy:
    """When to restart an actor, when to give up, and how long to wait at the end."""

    # So many lives in a row, each shorter than that, and the actor is given up.
    quick_secs: float = 10.0
    quick_lives: int = 3
    short_secs: float = 60.0  # some need half a minute before they come to what fails
    short_lives: int = 5
    first_delay_secs: float = 1.0  # doubled for each short life, at most:
    max_delay_secs: float = 30.0
    # An actor ends with code 0 once the learner says that training is over: give the learner time
    # to end, too. If it goes on, something else has ended the actor.
    finished_delay_secs: float = 10.0
    # From the order to stop, for everything to be gone within 5 s.
    learner_stop_secs: float = 4.0
    stop_secs: float = 4.6
    # After the learner's end, for actors to notice that by themselves.
    farewell_secs: float = 5.0


class Terminal:
    """Where lines go. Once it is gone, nothing is shown, and the log files still have it all."""

    def __init__(self, stream: TextIO):
        self._stream: TextIO | None = stream

    def show(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:  # a closed pipe, a lost terminal
            self._stream = None

    def announce(self, line: str) -> None:
        self.show(f"[launcher] {line}")


class Guard:
    """The process that cleans up when this one is killed; see guardian.py."""

    def __init__(self, folder: str | None = None):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, *([folder] if folder else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def begin(self, group: int) -> None:
        self._tell(f"+{group}")

    def end(self, group: int) -> None:
        self._tell(f"-{group}")

    def close(self) -> None:
        """Lets it end what is left, if anything, and go."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=guardian.STOP_SECS + 5)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # someone killed it: the children are still ours to end
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


class Child:
    """One life after another of a program, and the lines of its log."""

    def __init__(self, program: Program, guard: Guard, terminal: Terminal):
        self.program = program
        self.started = 0.0  # by the monotonic clock
        self.code: int | None = None  # of the life that ended last; -N for signal N
        self.was_killed = False  # by `signal`
        self._guard = guard
        self._terminal = terminal
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: BinaryIO | None = None  # of the log, while the child lives
        self._partial = b""
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)

    def start(self) -> None:
        with open(self.program.log, "ab") as log:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"--- {now} {self.program.name} starts\n".encode())
            log.flush()
            self._reader = open(self.program.log, "rb", buffering=0)  # noqa: SIM115, closed by poll
            self._reader.seek(log.tell())
            self._lines.clear()
            self._process = subprocess.Popen(
                self.program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._guard.begin(self._process.pid)
        self.started = time.monotonic()

    def poll(self) -> int | None:
        """The exit code, once for each life; None while it goes on and afterwards."""
        if self._process is None or self._process.poll() is None:
            return None
        self.code = self._process.returncode
        # Children of its own that it left behind.
        guardian.signal_group(self._process.pid, signal.SIGKILL)
        self._guard.end(self._process.pid)
        self._process = None
        while self.relay():
            pass
        if self._partial:
            self._show(self._partial)
            self._partial = b""
        assert self._reader is not None
        self._reader.close()
        self._reader = None
        return self.code

    @property
    def runs(self) -> bool:
        return self._process is not None

    def signal(self, signum: int) -> None:
        if self._process is None:
            return
        if signum == signal.SIGKILL:
            self.was_killed = True
            guardian.signal_group(self._process.pid, signum)
        else:
            self._process.send_signal(signum)

    def relay(self) -> bool:
        """Shows what is new in the log. Returns whether there was anything."""
        new = self._reader.read(READ_BYTES) if self._reader is not None else b""
        if not new:
            return False
        *lines, self._partial = (self._partial + new).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._show(line)
        return True

    def last_lines(self) -> list[str]:
        """What to repeat of a failed life: from its traceback on, or the last lines without one."""
        lines = list(self._lines)
        for index, line in enumerate(lines):
            if line.startswith("Traceback (most recent call last)"):
                return lines[index:]
        return lines[-10:]

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._lines.append(text)
        self._terminal.show(self.program.prefix + text)


def describe_exit(code: int) -> str:
    """An exit code as `Popen.returncode` gives it, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def shell_code(code: int) -> int:
    """The exit code for which a shell would say the same."""
    return 128 - code if code < 0 else code


class Actor:
    """An actor's child and the decision when it lives again."""

    def __init__(self, child: Child, policy: Policy):
        self.child = child
        self._policy = policy
        self._short_lives: list[float] = []  # in a row: how many seconds each took
        self._failed_at: float | None = None  # may lie ahead, and the learner end before
        self._restart_at = 0.0

    def start_if_due(self) -> None:
        if not self.child.runs and self._failed_at is None and time.monotonic() >= self._restart_at:
            self.child.start()

    def failure(self) -> int | None:
        """The exit code of a life, once; that is 0 where it ended so and the learner goes on."""
        code = self.child.poll()
        now = time.monotonic()
        if code is not None:
            lived = now - self.child.started
            self._short_lives.append(lived)
            if lived >= self._policy.short_secs:
                self._short_lives.clear()
            self._failed_at = now if code else now + self._policy.finished_delay_secs
        if self._failed_at is None or now < self._failed_at:
            return None
        self._failed_at = None
        return self.child.code

    def why_give_up(self) -> str | None:
        """In words, if its last lives were too short for another one."""
        policy = self._policy
        for lives, secs in (
            (policy.quick_lives, policy.quick_secs),
            (policy.short_lives, policy.short_secs),
        ):
            last = self._short_lives[-lives:]
            if len(last) == lives and max(last) < secs:
                return f"{lives} times in a row after less than {secs:g} s"
        return None

    def plan_restart(self) -> float:
        """Returns the delay."""
        delay = min(
            self._policy.max_delay_secs,
            self._policy.first_delay_secs * 2 ** max(0, len(self._short_lives) - 1),
        )
        self._restart_at = time.monotonic() + delay
        return delay


class Supervisor:
    """`signals` grows as signals arrive; the first one ends the run."""

    def __init__(
        self,
        learner: Program,
        actors: Sequence[Program],
        guard: Guard,
        terminal: Terminal,
        policy: Policy,
        signals: Sequence[int],
        after_stop: str,
    ):
        self._terminal = terminal
        self._after_stop = after_stop
        self._policy = policy
        self._signals = signals
        self._learner = Child(learner, guard, terminal)
        self._actors = [Actor(Child(actor, guard, terminal), policy) for actor in actors]
        self._children = [self._learner, *(actor.child for actor in self._actors)]

    def run(self) -> int:
        """Until training ends, fails, or a signal arrives. Returns the exit code."""
        try:
            self._learner.start()
            while not self._signals:
                for actor in self._actors:
                    actor.start_if_due()
                self._relay()
                if self._learner.poll() is not None:
                    return self._learner_ended()
                for actor in self._actors:
                    code = actor.failure()
                    if code is None:
                        continue
                    why = actor.why_give_up()
                    if why is not None:
                        return self._give_up(actor, code, why)
                    self._terminal.announce(
                        f"{actor.child.program} {describe_exit(code)}"
                        f"{'' if code else ' before training was over'}; "
                        f"it starts again in {actor.plan_restart():g} s"
                    )
                time.sleep(POLL_SECS)
            name = signal.Signals(self._signals[0]).name
            self._terminal.announce(f"{name}: stopping the learner, which saves a checkpoint first")
            stop_code = self._stop()
            if stop_code == 0 and self._after_stop:
                self._terminal.announce(self._after_stop)
            return stop_code
        finally:
            self._kill()

    def _give_up(self, actor: Actor, code: int, why: str) -> int:
        program = actor.child.program
        lines = actor.child.last_lines()
        self._terminal.announce(f"{program} {describe_exit(code)}, {why}; stopping everything")
        self._stop()
        self._terminal.announce(f"stopped, since {program.name} kept failing. Its last lines:")
        self._repeat(program, lines)
        return shell_code(code) or 1

    def _learner_ended(self) -> int:
        code = self._learner.code
        if code == 0:
            self._wait(self._policy.farewell_secs)
        self._end_actors(self._policy.stop_secs - self._policy.learner_stop_secs)
        if code == 0:
            self._terminal.announce("the learner has ended, and so has everything else")
            return 0
        return self._learner_failed()

    def _stop(self) -> int:
        """Ends the learner, then the actors. Returns the launcher's exit code."""
        deadline = time.monotonic() + self._policy.stop_secs
        self._learner.signal(signal.SIGTERM)
        self._wait(self._policy.learner_stop_secs, self._learner)
        self._end_actors(deadline - time.monotonic())
        ended_in_time = not self._learner.was_killed
        # The signal itself ends a learner that is still starting, and has nothing to save.
        if self._learner.code in (0, -signal.SIGTERM):
            return 0
        if not ended_in_time:
            self._terminal.announce(
                "the learner did not end in time: what it learned since its last checkpoint is "
                f"lost, unless {self._learner.program.log} says that it saved"
            )
            return shell_code(-signal.SIGKILL)
        return self._learner_failed()

    def _learner_failed(self) -> int:
        code = self._learner.code
        assert code is not None
        if code == REFUSED:
            self._terminal.announce(
                f"the learner {describe_exit(code)}; why stands above and in "
                f"{self._learner.program.log}"
            )
            return code
        self._terminal.announce(f"the learner {describe_exit(code)}. Its last lines:")
        self._repeat(self._learner.program, self._learner.last_lines())
        return shell_code(code)

    def _end_actors(self, secs: float) -> None:
        """Ends the actors, and what else still runs when the time is up."""
        for actor in self._actors:
            actor.child.signal(signal.SIGTERM)
        self._wait(secs)
        self._kill()

    def _kill(self) -> None:
        for child in self._children:
            if child.runs:
                self._terminal.announce(f"{child.program} did not end in time and is killed")
                child.signal(signal.SIGKILL)
        self._wait(2.0)

    def _wait(self, secs: float, *children: Child) -> None:
        """Relays output until these children have ended (all, if none is named), or for `secs`."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            self._relay()
            for child in self._children:
                child.poll()
            if not any(child.runs for child in children or self._children):
                return
            time.sleep(POLL_SECS)

    def _relay(self) -> None:
        for child in self._children:
            child.relay()

    def _repeat(self, program: Program, lines: Sequence[str]) -> None:
        for line in lines:
            self._terminal.show(program.prefix + line)
        self._terminal.announce(f"all of it is in {program.log}")


@contextmanager
def on_stop_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Lets the signals to stop call this, instead of what they did before."""
    # nohup ignores SIGHUP on purpose. SIGINT is ignored in what a script runs in the background,
    # too, but there `kill -INT` means what it says.
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, handle) for signum in wanted}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def supervise(
    learner: Program,
    actors: Sequence[Program],
    *,
    terminal: TextIO,
    policy: Policy | None = None,
    scratch_folder: str | None = None,
    after_stop: str = "",
) -> int:
    """Runs the programs until training ends, fails or is stopped by a signal.

    Returns the exit code: 0 after training and after an orderly stop, the learner's if it fails,
    the actor's if one keeps failing (1 where that is 0), 128 + N where signal N ended either.
    `scratch_folder` is deleted at the end. `after_stop` is the last line after an orderly stop.
    Must be called from the main thread, which receives signals.
    """
    signals: list[int] = []
    with on_stop_signals(lambda signum, _: signals.append(signum)):
        guard = Guard(scratch_folder)
        try:
            supervisor = Supervisor(
                learner, actors, guard, Terminal(terminal), policy or Policy(), signals, after_stop
            )
            return supervisor.run()
        finally:
            guard.close()
