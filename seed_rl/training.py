"""One training step: from a batch of unrolls on the host to updated weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.agent import Agent
from seed_rl.experience import HostBatch
from seed_rl.inference import Step
from seed_rl.optimizers import Optimizer
from seed_rl.specs import Nest
from seed_rl.types import Unrolls


class DeviceBatch(NamedTuple):
    leaves: list[tf.Tensor]  # of steps, then of states
    versions: np.ndarray  # int64 [T + 1, B]
    env_ids: np.ndarray  # int64 [B]


class Trainer:
    """The traced function that turns one batch into one update of the agent's weights."""

    def __init__(
        self,
        agent: Agent,
        optimizer: Optimizer,
        batch_size: int,
        step_specs: Step,
        state_specs: Nest,
    ) -> None:
        self._agent = agent
        self._optimizer = optimizer
        self._structure = (step_specs, state_specs)
        time = agent.unroll_length + 1

        def leading(nest: Nest, *sizes: int) -> list[tf.TensorSpec]:
            return [
                tf.TensorSpec((*sizes, *spec.shape), spec.dtype) for spec in specs.flatten(nest)
            ]

        self.metric_names: list[str] = []
        self._train = tf.function(
            self._step,
            autograph=False,
            input_signature=[
                *leading(step_specs, time, batch_size),
                *leading(state_specs, batch_size),
            ],
        ).get_concrete_function()

    def _step(self, *leaves: tf.Tensor) -> tf.Tensor:
        steps, state = specs.unflatten(self._structure, list(leaves))
        variables = list(self._agent.trainable_variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = self._agent.loss(Unrolls(steps.step, steps.action, steps.extras, state))
        update = self._optimizer.apply(loss.loss, tape.gradient(loss.loss, variables))
        metrics = {
            "applied": tf.cast(update.applied, tf.float32),
            "loss": loss.loss,
            "gradient_norm": update.gradient_norm,
            "learning_rate": update.learning_rate,
            **loss.metrics,
        }
        self.metric_names = list(metrics)
        # One tensor: fetching each scalar by itself costs more than computing it.
        return tf.stack([tf.cast(value, tf.float32) for value in metrics.values()])

    def to_device(self, batch: HostBatch) -> DeviceBatch:
        """Copies the batch, whose buffers may then be used again."""
        leaves = [tf.constant(leaf) for leaf in [*batch.steps, *batch.states]]
        return DeviceBatch(leaves, batch.versions.copy(), batch.env_ids.copy())

    def __call__(self, batch: DeviceBatch) -> dict[str, float]:
        """Trains on the batch and returns the metrics; 'applied' is 0 where it was skipped."""
        values = self._train(*batch.leaves).numpy()
        return dict(zip(self.metric_names, values.tolist(), strict=True))

    def explain(self, batch: DeviceBatch) -> str:
        """What in the batch is not finite: whose unroll, which field, and where it came from."""
        steps, state = specs.unflatten(self._structure, batch.leaves)
        for path, leaf in zip(specs.paths(steps), specs.flatten(steps), strict=True):
            if found := _first_bad(leaf):
                (time, column, *_), value = found
                env_id = batch.env_ids[column]
                who = (
                    f"environment {env_id} brought"
                    if path.startswith("step/")
                    else f"the network answered environment {env_id} with"
                )
                return f"{who} {value} in {path} at step {time} of its unroll"
        for path, leaf in zip(specs.paths(state), specs.flatten(state), strict=True):
            if found := _first_bad(leaf):
                (column, *_), value = found
                return (
                    f"the network's state for environment {batch.env_ids[column]} has {value} in "
                    f"state/{path} before its unroll"
                )
        return "the whole batch is finite, so it arose in the network or the loss"


def _first_bad(leaf: tf.Tensor) -> tuple[list[int], float] | None:
    """Index and value of the leaf's first number that is not finite."""
    if not leaf.dtype.is_floating:
        return None
    values = leaf.numpy()
    bad = np.argwhere(~np.isfinite(values))
    return (bad[0].tolist(), values[tuple(bad[0])]) if len(bad) else None
