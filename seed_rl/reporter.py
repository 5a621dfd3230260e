"""The learner's reports: a status line, TensorBoard points, and who is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np

from seed_rl.acting import InferenceLoop, ranges
from seed_rl.config import LearnerConfig
from seed_rl.envs.scores import ReferenceScores
from seed_rl.experience import Source
from seed_rl.grpc.server import Server
from seed_rl.metrics import Accumulator, StageTimes, duration, human_normalized_score
from seed_rl.summaries import SummaryWriter

_logger = logging.getLogger(__name__)


class Reporter:
    """Reports every `log_secs` on all that happened since its last report."""

    def __init__(
        self,
        config: LearnerConfig,
        metrics: Accumulator,
        stages: Mapping[str, StageTimes],
        loop: InferenceLoop,
        server: Server,
        writer: SummaryWriter,
        num_action_repeats: int,
        source: Source,
        reference: ReferenceScores | None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._stages = stages
        self._loop = loop
        self._server = server
        self._writer = writer
        self._repeats = num_action_repeats
        self._source = source
        self._reference = reference
        self.missing_secs = 30.0
        self._start = self._last = self._told_missing = time.monotonic()
        self._last_frames: int | None = None
        self._last_steps = self._last_rows = self._last_batches = 0

    def report_if_due(self, frames: int) -> None:
        """Reports if `log_secs` have passed; `frames` are those trained on so far."""
        now = time.monotonic()
        if self._last_frames is None:
            self._last_frames = frames
        if now - self._told_missing > self.missing_secs:
            self._told_missing = now
            self._tell_missing()
        if now - self._last >= self._config.log_secs:
            self.report(frames)

    def report(self, frames: int) -> None:
        """Reports now."""
        now = time.monotonic()
        if self._last_frames is None:
            self._last_frames = frames
        seconds, self._last = now - self._last, now
        frames_per_second = (frames - self._last_frames) / seconds
        self._last_frames = frames
        scalars = self._metrics.take() | self._source.scalars()
        if self._reference is not None and "eval/return" in scalars:
            scalars["eval/human_normalized_score"] = human_normalized_score(
                scalars["eval/return"], self._reference
            )
        scalars |= self._rates(seconds)
        scalars["speed/trained_frames_per_second"] = frames_per_second
        for thread, times in self._stages.items():
            for stage, stage_seconds in times.take().items():
                scalars[f"time_{thread}/{stage}"] = stage_seconds / seconds
        self._writer.write(scalars, frames)
        print(self._status(now, frames, frames_per_second, scalars), flush=True)

    def _rates(self, seconds: float) -> dict[str, float]:
        steps, rows, batches = self._loop.agent_steps, self._loop.rows, self._loop.batches
        rates = {
            "speed/agent_steps_per_second": (steps - self._last_steps) / seconds,
            "speed/frames_per_second": (steps - self._last_steps) * self._repeats / seconds,
        }
        if batches > self._last_batches:
            rows_a_batch = (rows - self._last_rows) / (batches - self._last_batches)
            rates["inference/rows_per_batch"] = rows_a_batch
            rates["inference/batch_fill"] = rows_a_batch / self._config.inference_capacity
        self._last_steps, self._last_rows, self._last_batches = steps, rows, batches
        return rates

    def _status(
        self, now: float, frames: int, frames_per_second: float, scalars: Mapping[str, float]
    ) -> str:
        total = self._config.total_environment_frames
        parts = [
            f"[{duration(now - self._start)}] frames {frames:,}/{total:,}",
            f"{frames_per_second:,.0f} frames/s",
        ]
        for name, is_evaluation in (("return", False), ("eval return", True)):
            recent = self._metrics.recent_return(is_evaluation)
            if recent is not None:
                parts.append(f"{name} {recent:.2f}")
        if progress := self._source.progress():
            parts.append(progress)
        if "train/loss" in scalars:
            parts.append(f"loss {scalars['train/loss']:.4f}")
        for name in ("policy_lag", "replay_age"):  # in updates
            if f"{name}/mean" in scalars:
                parts.append(f"{name.replace('_', ' ')} {scalars[f'{name}/mean']:.1f}")
        if frames_per_second > 0:
            parts.append(f"left {duration(max(0, total - frames) / frames_per_second)}")
        return " | ".join(parts)

    def _tell_missing(self) -> None:
        missing = np.asarray(self._server.missing_env_ids())
        if len(missing):
            _logger.warning(
                "waiting for the actors of %d of %d environments: %s",
                len(missing),
                self._config.num_envs,
                ranges(missing),
            )
