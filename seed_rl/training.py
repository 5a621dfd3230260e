"""One training step: from a batch of unrolls on the host to updated weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.agent import Agent
from seed_rl.experience import BatchForm, HostBatch
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, Nest


class DeviceBatch(NamedTuple):
    leaves: list[tf.Tensor]  # of steps, then of states, then the weights if there are any
    versions: np.ndarray  # the rest as in HostBatch
    env_ids: np.ndarray
    num_transitions: int
    keys: np.ndarray | None


class Result(NamedTuple):
    """What came of one training step."""

    scalars: dict[str, float]  # for TensorBoard; 'applied' is 0 where the update was skipped
    priorities: np.ndarray | None  # float32 [B], from agents that replay


class Trainer:
    """The traced function that turns one batch into one update of the agent's weights."""

    def __init__(
        self,
        agent: Agent,
        optimizer: Optimizer,
        batch_size: int,
        form: BatchForm,
    ) -> None:
        self._agent = agent
        self._optimizer = optimizer
        self._form = form
        weights = ArraySpec((), "float32") if form.has_weights else ()
        self._structure = (form.steps, form.state, weights)

        def leading(nest: Nest, *sizes: int) -> list[tf.TensorSpec]:
            return [
                tf.TensorSpec((*sizes, *spec.shape), spec.dtype) for spec in specs.flatten(nest)
            ]

        self.metric_names: list[str] = []
        self._train = tf.function(
            self._step,
            autograph=False,
            input_signature=[
                *leading(form.steps, form.num_rows, batch_size),
                *leading(form.state, batch_size),
                *leading(weights, batch_size),
            ],
        ).get_concrete_function()

    def _step(self, *leaves: tf.Tensor) -> tf.Tensor:
        steps, state, weights = specs.unflatten(self._structure, list(leaves))
        unrolls = self._form.unpack(steps, state, weights)
        variables = list(self._agent.trainable_variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = self._agent.loss(unrolls)
        # Networks of users may have weights that nothing depends on.
        gradients = tape.gradient(
            loss.loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        update = self._optimizer.apply(loss.loss, gradients)
        self._agent.after_update(self._optimizer.num_updates, unrolls, update.applied)
        metrics = {
            "applied": tf.cast(update.applied, tf.float32),
            "loss": loss.loss,
            "gradient_norm": update.gradient_norm,
            "learning_rate": update.learning_rate,
            **loss.metrics,
        }
        self.metric_names = list(metrics)
        # One tensor: fetching each scalar by itself costs more than computing it.
        scalars = tf.stack([tf.cast(value, tf.float32) for value in metrics.values()])
        return scalars if loss.priorities is None else tf.concat([scalars, loss.priorities], 0)

    def to_device(self, batch: HostBatch) -> DeviceBatch:
        """Copies the batch, whose buffers may then be used again."""
        weights = [] if batch.weights is None else [batch.weights]
        leaves = [tf.constant(leaf) for leaf in [*batch.steps, *batch.states, *weights]]
        keys = None if batch.keys is None else batch.keys.copy()
        return DeviceBatch(
            leaves, batch.versions.copy(), batch.env_ids.copy(), batch.num_transitions, keys
        )

    def __call__(self, batch: DeviceBatch) -> Result:
        """Trains on the batch."""
        values = self._train(*batch.leaves).numpy()
        num_scalars = len(self.metric_names)
        scalars = dict(zip(self.metric_names, values[:num_scalars].tolist(), strict=True))
        return Result(scalars, values[num_scalars:] if len(values) > num_scalars else None)

    def explain(self, batch: DeviceBatch) -> str:
        """What in the batch is not finite: whose unroll, which field, and where it came from."""
        steps, state, _ = specs.unflatten(self._structure, batch.leaves)
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
