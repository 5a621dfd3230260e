"""Counts what happens: episodes, seconds, scalars."""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from seed_rl.envs.scores import ReferenceScores
from seed_rl.types import StepType, is_last

# The status line shows the mean over as many of the latest episodes.
_RECENT_EPISODES = 100


class Episode(NamedTuple):
    episode_return: float  # sum of raw rewards
    length: int  # agent steps


class EpisodeTracker:
    """Adds up the raw reward and the steps of each environment's episode in progress."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)

    def step(
        self, env_ids: np.ndarray, step_type: np.ndarray, raw_reward: np.ndarray
    ) -> list[tuple[int, Episode]]:
        """Adds a step of each environment; returns (environment, episode) for those that ended."""
        is_first = step_type == StepType.FIRST
        returns = np.where(is_first, 0.0, self._returns[env_ids] + raw_reward)
        lengths = np.where(is_first, 0, self._lengths[env_ids] + 1)
        self._returns[env_ids], self._lengths[env_ids] = returns, lengths
        return [
            (int(env_ids[row]), Episode(float(returns[row]), int(lengths[row])))
            for row in np.flatnonzero(is_last(step_type))
        ]


class StageTimes:
    """Wall-clock seconds that one thread spends in each of its stages, one at a time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = collections.defaultdict(float)
        self._stage: str | None = None
        self._since = 0.0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        with self._lock:
            self._stage, self._since = stage, time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[stage] += time.perf_counter() - self._since
                self._stage = None

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call, those of the stage under way included."""
        with self._lock:
            if self._stage is not None:
                now = time.perf_counter()
                self._seconds[self._stage] += now - self._since
                self._since = now
            taken, self._seconds = self._seconds, collections.defaultdict(float)
        return dict(taken)


class Accumulator:
    """Means and maxima of scalars, and episodes, between two reports. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._counts: dict[str, int] = collections.defaultdict(int)
        self._episodes: dict[str, list[Episode]] = {"episode": [], "eval": []}
        self._recent = {
            kind: collections.deque[float](maxlen=_RECENT_EPISODES) for kind in self._episodes
        }

    def add(self, scalars: Mapping[str, float]) -> None:
        """Adds to the means what is finite: the loss of a skipped update would spoil them."""
        with self._lock:
            for name, value in scalars.items():
                if math.isfinite(value):
                    self._sums[name] += value
                    self._counts[name] += 1

    def add_episode(self, episode: Episode, is_evaluation: bool = False) -> None:
        kind = "eval" if is_evaluation else "episode"
        with self._lock:
            self._episodes[kind].append(episode)
            self._recent[kind].append(episode.episode_return)

    def recent_return(self, is_evaluation: bool = False) -> float | None:
        """Mean return of the latest episodes; None before the first has ended."""
        with self._lock:
            recent = self._recent["eval" if is_evaluation else "episode"]
            return float(np.mean(recent)) if recent else None

    def take(self) -> dict[str, float]:
        """Means since the last call. A scalar that nothing was added to is absent, not NaN."""
        with self._lock:
            scalars = {name: self._sums[name] / self._counts[name] for name in self._sums}
            for kind, episodes in self._episodes.items():
                if episodes:
                    scalars |= _statistics(kind, episodes)
                episodes.clear()
            self._sums.clear()
            self._counts.clear()
        return scalars


def _statistics(kind: str, episodes: Sequence[Episode]) -> dict[str, float]:
    returns = [episode.episode_return for episode in episodes]
    return {
        f"{kind}/return": float(np.mean(returns)),
        f"{kind}/return_min": float(np.min(returns)),
        f"{kind}/return_max": float(np.max(returns)),
        f"{kind}/length": float(np.mean([episode.length for episode in episodes])),
        f"{kind}/finished": float(len(episodes)),
    }


def human_normalized_score(score: float, reference: ReferenceScores) -> float:
    """In per cent: 0 is what random play scores, 100 what people do."""
    return 100 * (score - reference.random) / (reference.human - reference.random)


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds below an hour: '3h05m', '4m30s'."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
