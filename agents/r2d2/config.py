"""Options of the R2D2 agent."""

from __future__ import annotations

import dataclasses

from seed_rl import specs
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.config import option
from seed_rl.optimizer_config import OptimizerConfig
from seed_rl.replay_config import ReplayConfig
from seed_rl.specs import EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class R2d2Config(OptimizerConfig, NetworkConfig, ReplayConfig):
    """Everything that can be set about the algorithm; each field is a flag.

    The defaults are for a machine of few cores; --preset=paper has those of the paper.
    """

    unroll_length: int = option(80, "Transitions in an unroll that are trained on.")
    burn_in: int = option(
        40, "Steps before them that bring the stored recurrent state up to date. 0: none."
    )
    stored_state: bool = option(
        True,
        "Begin an unroll with the recurrent state that acting had there. False: with zeros, which "
        "is worse where memory matters.",
    )
    n_steps: int = option(5, "Most rewards that are summed up before a target bootstraps.")
    # Few: on a small machine, what counts early on is the number of updates.
    batch_size: int = option(4, "Unrolls in a training batch.")
    discounting: float = option(0.997, "Discount of a future reward per agent step.")
    update_target_every_n_step: int = option(
        400, "Updates after which the target network is made equal to the trained one."
    )
    value_function_rescaling_epsilon: float = option(
        1e-3, "Slope of the rescaling of values where they are large. 0: it is a square root there."
    )
    priority_eta: float = option(
        0.9, "Share of an unroll's largest error in its priority; the rest is the mean error's."
    )
    eval_epsilon: float = option(
        1e-3, "Probability of a random action in environments that only evaluate."
    )
    max_abs_reward: float = option(0.0, "Clips rewards in the loss to +- this. 0: no clipping.")
    lstm_size: int = option(256, "Units of the LSTM between torso and heads. 0: none.")
    dueling_size: int = option(
        256, "Units of the hidden layer in each of the heads, value and advantage."
    )

    # Other defaults than V-trace has.
    learning_rate: float = option(2.5e-4, "Learning rate at the start.")
    learning_rate_decay: bool = option(
        False, "Lower the learning rate linearly, to 0 at total_environment_frames."
    )
    # The loss, and with it the norm, is a sum over an unroll.
    clip_norm: float = option(80.0, "Largest global norm of the gradients. 0: no limit.")

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)
        NetworkConfig.__post_init__(self)
        ReplayConfig.__post_init__(self)
        self.check_batch_size(self.batch_size)
        for name in ("unroll_length", "n_steps", "batch_size", "update_target_every_n_step"):
            self._require(name, getattr(self, name) >= 1, "an integer of at least 1")
        self._require("burn_in", self.burn_in >= 0, "an integer of at least 0")
        self._require("dueling_size", self.dueling_size >= 1, "an integer of at least 1")
        for name in ("discounting", "priority_eta", "eval_epsilon"):
            self._require(name, 0 <= getattr(self, name) <= 1, "a number in [0, 1]")
        for name in ("value_function_rescaling_epsilon", "max_abs_reward"):
            self._require_at_least_0(name)


def require_choice(environment: EnvironmentSpecs) -> None:
    """Raises ValueError unless the action is one choice, which is what Q-learning takes."""
    if not specs.is_choice(environment.action):
        raise ValueError(
            "--agent=r2d2: wanted one action, an integer from 0 to a maximum, saw "
            f"{specs.describe(environment.action)}; --agent=vtrace takes several, and numbers"
        )
