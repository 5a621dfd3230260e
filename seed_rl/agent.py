"""What an algorithm supplies to the learner: one Agent, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from seed_rl.specs import Nest
from seed_rl.types import StepInputs, Unrolls

if TYPE_CHECKING:  # so that reading flags needs no TensorFlow
    import tensorflow as tf

    from seed_rl.replay_config import ReplayConfig


class ActOutput(NamedTuple):
    """Answers to N steps, and what the loss will want to know of them."""

    action: Nest  # tensors [N, ...]
    extras: dict[str, tf.Tensor]  # [N, ...], stored in the unroll
    state: Nest  # [N, ...]


class Loss(NamedTuple):
    loss: tf.Tensor  # float32 scalar
    priorities: tf.Tensor | None  # float32 [B], of replayed unrolls; None from agents without
    metrics: dict[str, tf.Tensor]  # scalars, for TensorBoard


class Agent(Protocol):
    """The networks and the loss of one algorithm. Its methods build graphs: no Python state.

    All variables exist when the constructor returns.
    """

    unroll_length: int  # T
    burn_in: int  # K, the steps before them that only bring the recurrent state up to date
    replay: ReplayConfig | None  # None: every unroll is trained on once, in the order of its end

    @property
    def trainable_variables(self) -> Any: ...

    def initial_state(self, batch_size: int) -> Nest:
        """Recurrent state of `batch_size` fresh episodes, tensors `[batch_size, ...]`."""

    def exploration(self, num_envs: int, num_eval_envs: int) -> np.ndarray:
        """How much each environment explores, float32 `[num_envs]`, in the agent's own terms.

        The last `num_eval_envs` of them only show what has been learned.
        """

    def describe_evaluation(self) -> str:
        """In a few words, how environments act that only show what has been learned."""

    def act(
        self, step: StepInputs, state: Nest, seed: tf.Tensor, exploration: tf.Tensor
    ) -> ActOutput:
        """Answers steps `[N, ...]`; `seed` int32 `[2]` makes the sampling repeatable.

        Where `step_type` is FIRST, `state` counts as the initial state. `exploration` `[N]` is what
        the method of that name gave for these environments.
        """

    def loss(self, unrolls: Unrolls) -> Loss:
        """The loss to minimise over a batch of unrolls."""

    def initial_priorities(
        self, step_type: tf.Tensor, reward: tf.Tensor, extras: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        """Priorities `[B]` of new unrolls from what inference answered, all `[T + 1, B]`.

        Only asked of agents with a replay.
        """

    def after_update(self, num_updates: tf.Tensor, unrolls: Unrolls, applied: tf.Tensor) -> None:
        """Whatever must happen when the weights have been updated for the `num_updates`th time.

        `unrolls` are those of this update, which was skipped where `applied`, a bool, is False.
        """
