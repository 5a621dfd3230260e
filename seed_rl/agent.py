"""What an algorithm supplies to the learner: one Agent, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from seed_rl.specs import Nest
from seed_rl.types import StepInputs, Unrolls

if TYPE_CHECKING:  # so that reading flags needs no TensorFlow
    import tensorflow as tf


class ActOutput(NamedTuple):
    """Answers to N steps, and what the loss will want to know of them."""

    action: Nest  # tensors [N, ...]
    extras: dict[str, tf.Tensor]  # [N, ...], stored in the unroll
    state: Nest  # [N, ...]


class Loss(NamedTuple):
    loss: tf.Tensor  # float32 scalar
    priorities: tf.Tensor | None  # float32 [B], for replay; None from agents without
    metrics: dict[str, tf.Tensor]  # scalars, for TensorBoard


class Agent(Protocol):
    """The networks and the loss of one algorithm. Its methods build graphs: no Python state.

    All variables exist when the constructor returns.
    """

    unroll_length: int  # T

    @property
    def trainable_variables(self) -> Any: ...

    def initial_state(self, batch_size: int) -> Nest:
        """Recurrent state of `batch_size` fresh episodes, tensors `[batch_size, ...]`."""

    def act(self, step: StepInputs, state: Nest, seed: tf.Tensor) -> ActOutput:
        """Answers steps `[N, ...]`; `seed` int32 `[2]` makes the sampling repeatable.

        Where `step_type` is FIRST, `state` counts as the initial state.
        """

    def loss(self, unrolls: Unrolls) -> Loss:
        """The loss to minimise over a batch of unrolls."""
