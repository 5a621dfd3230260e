"""Trains on every unroll once, in the order in which the unrolls end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seed_rl import specs
from seed_rl.errors import as_user_error
from seed_rl.experience import BatchForm, BatchQueue, HostBatch
from seed_rl.inference import Answers, Step
from seed_rl.replay.memory import available_bytes, require_batch_memory
from seed_rl.specs import Nest
from seed_rl.types import Unrolls
from seed_rl.unrolls import UnrollStore


def form(length: int, step_specs: Step, state_specs: Nest) -> BatchForm:
    """That of unrolls with `length` transitions, whose steps are what inference answered."""

    def unpack(steps: Step, state: Nest, weights: Any) -> Unrolls:
        return Unrolls(steps.step, steps.action, steps.extras, state)

    return BatchForm(length + 1, step_specs, state_specs, False, unpack)


class QueuedSource:
    """Implements seed_rl.experience.Source for agents without a replay."""

    def __init__(
        self,
        num_envs: int,
        batch_size: int,
        length: int,
        step_specs: Step,
        state_specs: Nest,
        stop: threading.Event,
    ) -> None:
        """Raises UserError where a batch doesn't fit in memory."""
        self.form = form(length, step_specs, state_specs)
        columns = specs.flatten(step_specs), specs.flatten(state_specs)
        row_bytes, state_bytes = (sum(leaf.num_bytes for leaf in part) for part in columns)
        unroll_bytes = (length + 1) * row_bytes + state_bytes
        with as_user_error(ValueError):
            # One is filled while the one before is on the device, which may be the same memory.
            require_batch_memory(2 * batch_size * unroll_bytes, batch_size, available_bytes())
        self._store = UnrollStore(num_envs, length, *columns, group_size=batch_size)
        self._batches = BatchQueue(batch_size, length, *columns, stop)

    def restart(self, env_ids: np.ndarray) -> None:
        self._store.restart(env_ids)

    def append(
        self, env_ids: np.ndarray, answers: Answers, observation: Sequence[np.ndarray], version: int
    ) -> np.ndarray:
        return self._store.append(
            env_ids, specs.flatten(answers.step), specs.flatten(answers.state), version
        )

    def put(self, env_ids: np.ndarray) -> None:
        self._batches.put(self._store, env_ids)
        self._store.advance(env_ids)

    def ask(self) -> None:
        self._batches.ask()

    def get(self) -> HostBatch:
        return self._batches.get()

    def release(self, batch: HostBatch) -> None:
        self._batches.release(batch)

    def learned(self, keys: np.ndarray | None, priorities: np.ndarray | None) -> None:
        pass

    @property
    def has_news(self) -> bool:
        return False

    def saving(self, number: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def restore(self, number: int) -> None:
        pass

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {}

    def scalars(self) -> dict[str, float]:
        return {"queue/full_batches": self._batches.waiting}

    def progress(self) -> str:
        return self._batches.progress()
