"""Stored state and burn-in: what they bring to the loss, and what they must not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.r2d2.agent import R2d2Agent
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.agents.r2d2.network import QNetwork
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest
from seed_rl.types import StepType, Unrolls

ENVIRONMENT = EnvironmentSpecs(ArraySpec((3,), "float32"), ArraySpec((), "int64", 0, 4))
FIRST, MID, TERMINATED, TRUNCATED = StepType
BURN_IN, LENGTH, BATCH_SIZE = 5, 6, 3
NUM_ROWS = BURN_IN + LENGTH + 1
MakeUnrolls = Callable[..., Unrolls]


def make(**options: object) -> R2d2Agent:
    config = R2d2Config(
        **{"burn_in": BURN_IN, "unroll_length": LENGTH, "lstm_size": 8, "dueling_size": 8} | options
    )
    return R2d2Agent(config, ENVIRONMENT, seed=1)


def random_state(batch_size: int) -> Nest:
    rng = np.random.default_rng(5)
    return tuple(tf.constant(rng.standard_normal((batch_size, 8)), tf.float32) for _ in range(2))


def within_an_episode() -> np.ndarray:
    return np.full((NUM_ROWS, BATCH_SIZE), MID, np.uint8)


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
@pytest.mark.parametrize("last_row", range(BURN_IN - 1))
def test_state_after_an_end_is_that_of_the_new_episode_alone(
    end: StepType, last_row: int, random_unrolls: MakeUnrolls
) -> None:
    """Case 52: a fresh initial state, rolled from the step after the end."""
    network = QNetwork(R2d2Config(lstm_size=8), ENVIRONMENT, seed=1)
    step_type = within_an_episode()
    step_type[last_row, 0], step_type[last_row + 1, 0] = end, FIRST
    step = random_unrolls(ENVIRONMENT, NUM_ROWS, BATCH_SIZE, step_type=step_type).step
    window = specs.map_nest(lambda x: x[:BURN_IN], step)
    state = network.burn_in(window, random_state(BATCH_SIZE))

    fresh = network.initial_state(BATCH_SIZE)
    for t in range(last_row + 1, BURN_IN):
        _, fresh = network.step(specs.map_nest(lambda x: x[t], step), fresh)  # noqa: B023
    for seen, alone in zip(specs.flatten(state), specs.flatten(fresh), strict=True):
        np.testing.assert_allclose(seen[0], alone[0], rtol=1e-5, atol=1e-6)
        # The other columns go on from what they had before.
        assert np.all(np.abs(seen[1:] - alone[1:]).max(axis=1) > 1e-4)


def test_nothing_before_an_end_counts_and_all_after_it_does(random_unrolls: MakeUnrolls) -> None:
    """Case 52, in the loss: of observations and of the stored state."""
    agent = make()
    step_type = within_an_episode()
    step_type[1], step_type[2] = TRUNCATED, FIRST
    unrolls = random_unrolls(
        ENVIRONMENT, NUM_ROWS, BATCH_SIZE, random_state(BATCH_SIZE), step_type=step_type
    )
    base = agent.loss(unrolls)
    assert agent.loss(unrolls._replace(state=agent.initial_state(BATCH_SIZE))).loss == base.loss
    for row in range(BURN_IN):
        changed = (np.arange(NUM_ROWS) == row)[:, None, None]
        observation = unrolls.step.observation + 2 * tf.cast(changed, tf.float32)
        step = unrolls.step._replace(observation=observation)
        other = agent.loss(unrolls._replace(step=step))
        assert (other.loss == base.loss) == (row < 2), row


@pytest.mark.parametrize("burn_in", [0, BURN_IN])
def test_the_stored_state_matters(burn_in: int, random_unrolls: MakeUnrolls) -> None:
    agent = make(burn_in=burn_in)
    unrolls = random_unrolls(
        ENVIRONMENT,
        burn_in + LENGTH + 1,
        BATCH_SIZE,
        random_state(BATCH_SIZE),
        step_type=within_an_episode()[: burn_in + LENGTH + 1],
    )
    kept = agent.loss(unrolls)
    lost = agent.loss(unrolls._replace(state=agent.initial_state(BATCH_SIZE)))
    assert np.abs(kept.priorities - lost.priorities).min() > 1e-5


def test_no_gradient_through_the_burn_in(random_unrolls: MakeUnrolls) -> None:
    """None to its observations and to the stored state; to all rows of transitions there is."""
    agent = make()
    unrolls = random_unrolls(
        ENVIRONMENT,
        NUM_ROWS,
        BATCH_SIZE,
        random_state(BATCH_SIZE),
        step_type=within_an_episode(),
    )
    observation = unrolls.step.observation
    with tf.GradientTape() as tape:
        tape.watch([observation, unrolls.state])
        loss = agent.loss(unrolls).loss
    gradient, state_gradients = tape.gradient(loss, [observation, unrolls.state])
    per_row = np.abs(gradient).max(axis=(1, 2))
    assert np.all(per_row[:BURN_IN] == 0)
    assert np.all(per_row[BURN_IN:-1] > 0)
    assert per_row[-1] == 0  # it only gives a target
    assert all(part is None for part in state_gradients)


def test_weights_learn_nothing_from_the_burn_in(random_unrolls: MakeUnrolls) -> None:
    """Their gradient is that of the trained rows from the state that the burn-in led to."""
    agent, without = make(), make(burn_in=0)
    unrolls = random_unrolls(
        ENVIRONMENT,
        NUM_ROWS,
        BATCH_SIZE,
        random_state(BATCH_SIZE),
        step_type=within_an_episode(),
    )
    state = agent._online.burn_in(
        specs.map_nest(lambda x: x[:BURN_IN], unrolls.step), unrolls.state
    )
    rows = specs.map_nest(lambda x: x[BURN_IN:], unrolls._replace(state=()))._replace(state=state)

    def gradients(agent: R2d2Agent, unrolls: Unrolls) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        return tape.gradient(loss, agent.trainable_variables)

    for seen, wanted in zip(gradients(agent, unrolls), gradients(without, rows), strict=True):
        np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-6)


def act_through(agent: R2d2Agent, unrolls: Unrolls) -> tuple[Unrolls, dict[str, tf.Tensor]]:
    """The unrolls with the actions that the agent takes from their state, and the extras."""
    actions, extras, state = [], [], unrolls.state
    for t in range(NUM_ROWS):
        row = specs.map_nest(lambda x: x[t], unrolls.step)  # noqa: B023
        seed, epsilon = tf.constant([t, 7]), tf.fill([BATCH_SIZE], 0.5)
        output = agent.act(row, state, seed, epsilon)
        actions.append(output.action)
        extras.append(output.extras)
        state = output.state
    return (
        unrolls._replace(action=tf.stack(actions)),
        specs.map_nest(lambda *parts: tf.stack(parts), *extras),
    )


def test_initial_priorities_are_those_of_the_loss_before_any_update(
    random_unrolls: MakeUnrolls,
) -> None:
    """The learner finds the Q values of acting again, from the stored state by the burn-in.

    Of a target network that still is a copy: what it says of the best action is the largest Q.
    """
    agent = make(n_steps=3)
    step_type = within_an_episode()
    step_type[BURN_IN + 2, 0], step_type[BURN_IN + 3, 0] = TERMINATED, FIRST
    unrolls = random_unrolls(
        ENVIRONMENT, NUM_ROWS, BATCH_SIZE, random_state(BATCH_SIZE), step_type=step_type
    )
    unrolls, extras = act_through(agent, unrolls)
    rows = {name: extra[BURN_IN:] for name, extra in extras.items()}
    initial = tf.function(agent.initial_priorities, autograph=False)(
        unrolls.step.step_type[BURN_IN:], unrolls.step.reward[BURN_IN:], rows
    )
    assert initial.shape == (BATCH_SIZE,)
    assert initial.dtype == tf.float32
    assert np.all(initial > 0)
    np.testing.assert_allclose(agent.loss(unrolls).priorities, initial, rtol=1e-4)
    lost = unrolls._replace(state=agent.initial_state(BATCH_SIZE))
    assert np.all(np.abs(agent.loss(lost).priorities - initial) > 1e-5)


def test_without_memory_there_is_no_burn_in(random_unrolls: MakeUnrolls) -> None:
    """No state needs it, so its rows are not asked for."""
    agent = make(lstm_size=0)
    assert agent.burn_in == 0
    assert np.isfinite(agent.loss(random_unrolls(ENVIRONMENT, LENGTH + 1, BATCH_SIZE)).loss)
