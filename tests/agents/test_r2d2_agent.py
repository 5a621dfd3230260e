"""The R2D2 agent through its public methods: how it acts, its loss, its target network."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agent import Agent
from seed_rl.agents import registry
from seed_rl.agents.r2d2.agent import R2d2Agent
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.checkpoints import Checkpoints
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepInputs, StepType, Unrolls

ACTION = ArraySpec((), "int64", 0, 4)
IMAGES = EnvironmentSpecs(ArraySpec((36, 40, 2), "uint8"), ACTION)
VECTORS = EnvironmentSpecs(ArraySpec((3,), "float32", -5, 5), ACTION)
FIRST, MID, TERMINATED, TRUNCATED = StepType
MakeUnrolls = Callable[..., Unrolls]
SEED = (1, 2)


def make(
    environment: EnvironmentSpecs = VECTORS, target_differs: bool = True, **options: object
) -> R2d2Agent:
    """Of small networks; the target network is another one unless asked otherwise."""
    small = {"burn_in": 0, "lstm_size": 8, "dueling_size": 16}
    agent = R2d2Agent(R2d2Config(**{**small, **options}), environment, seed=1)
    if target_differs:
        rng = np.random.default_rng(7)
        for variable in agent._target.variables:
            variable.assign_add(0.1 * rng.standard_normal(variable.shape).astype(np.float32))
    return agent


def first_row(unrolls: Unrolls) -> StepInputs:
    return specs.map_nest(lambda x: x[0], unrolls.step)


def values_of(variables: list[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


# Acting


def test_output_depends_on_the_last_action_and_reward(random_unrolls: MakeUnrolls) -> None:
    """Case 87: on both, except at FIRST, where there is neither."""
    agent = make(lstm_size=0)
    for kind in (MID, FIRST):
        step = first_row(random_unrolls(VECTORS, 1, 6, step_type=np.full((1, 6), kind, np.uint8)))

        def q_max(step: StepInputs) -> np.ndarray:
            output = agent.act(step, (), tf.constant(SEED), tf.zeros(6))
            return output.extras["q_max"].numpy()

        before = q_max(step)
        other_action = q_max(step._replace(prev_action=(step.prev_action + 1) % 5))
        other_reward = q_max(step._replace(reward=step.reward / 2 + 0.1))
        for seen in (other_action, other_reward):
            assert np.all(seen == before) if kind == FIRST else np.all(seen != before)


def test_each_row_explores_by_its_own_epsilon(random_unrolls: MakeUnrolls) -> None:
    """Case 87: with epsilon e a row's action is not the best one at a rate of e * 4/5."""
    agent, num_rows, num_seeds = make(lstm_size=0), 400, 50
    step = specs.map_nest(
        lambda x: tf.repeat(x, num_rows, axis=0), first_row(random_unrolls(VECTORS, 1, 4))
    )
    epsilon = np.tile(np.float32([0.0, 0.1, 0.4, 1.0]), num_rows)  # neighbours differ
    act = tf.function(agent.act, autograph=False)
    greedy = act(step, (), tf.constant(SEED), tf.zeros(4 * num_rows))
    explored, actions = np.zeros(4 * num_rows), []
    for i in range(num_seeds):
        output = act(step, (), tf.constant([i, 5]), tf.constant(epsilon))
        explored += output.action.numpy() != greedy.action.numpy()
        actions.append(output.action.numpy())
        np.testing.assert_array_equal(output.extras["q_max"], greedy.extras["q_max"])
        best = output.action == greedy.action
        lower = output.extras["q_taken"] < output.extras["q_max"]
        np.testing.assert_array_equal(lower, tf.logical_not(best))
    for e in np.unique(epsilon):
        rate = explored[epsilon == e].mean() / num_seeds
        assert rate == pytest.approx(0.8 * e, abs=0.01)
    random = np.stack(actions)[:, epsilon == 1.0]
    np.testing.assert_allclose(
        np.bincount(random.ravel(), minlength=5) / random.size, 0.2, atol=0.01
    )


def test_actions_repeat_with_the_seed(random_unrolls: MakeUnrolls) -> None:
    agent = make(lstm_size=0)
    step = first_row(random_unrolls(VECTORS, 1, 64))

    def actions(*seed: int) -> np.ndarray:
        return agent.act(step, (), tf.constant(seed), tf.ones(64)).action.numpy()

    np.testing.assert_array_equal(actions(1, 2), actions(1, 2))
    assert np.any(actions(1, 2) != actions(1, 3))
    assert actions(1, 2).dtype == np.int64


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_nan_still_gives_an_action(epsilon: float, random_unrolls: MakeUnrolls) -> None:
    agent = make()
    step = first_row(random_unrolls(VECTORS, 1, 32))
    for broken in (np.nan, np.inf, -np.inf):
        step = step._replace(observation=tf.fill([32, 3], np.float32(broken)))
        output = agent.act(step, agent.initial_state(32), tf.constant(SEED), tf.fill([32], epsilon))
        assert np.isin(output.action, range(5)).all()


def test_first_restarts_the_state_when_acting(random_unrolls: MakeUnrolls) -> None:
    agent = make()
    step = first_row(random_unrolls(VECTORS, 1, 3, step_type=np.full((1, 3), FIRST, np.uint8)))
    fresh = agent.initial_state(3)
    dirty = specs.map_nest(lambda part: part + 3.0, fresh)
    seed, epsilon = tf.constant(SEED), tf.zeros(3)
    for seen, wanted in zip(
        specs.flatten(agent.act(step, dirty, seed, epsilon)),
        specs.flatten(agent.act(step, fresh, seed, epsilon)),
        strict=True,
    ):
        np.testing.assert_array_equal(seen, wanted)


def test_exploration_has_the_evaluation_s_epsilon_last() -> None:
    """Case 87."""
    seen = make(eval_epsilon=0.0625).exploration(10, 3)
    assert seen.dtype == np.float32
    assert seen[0] == pytest.approx(0.4)
    np.testing.assert_array_equal(seen[7:], [0.0625] * 3)


@pytest.mark.parametrize(
    "action",
    [
        ArraySpec((2,), "float32", -1, 1),
        ArraySpec((), "float32", 0, 1),
        ArraySpec((), "int64"),
        ArraySpec((2,), "int64", 0, 3),
        (ACTION, ACTION),
    ],
)
def test_other_actions_are_refused(action: specs.Nest) -> None:
    environment = EnvironmentSpecs(ArraySpec((3,), "float32"), action)
    with pytest.raises(
        ValueError, match=r"--agent=r2d2: wanted one action, an integer from 0 to a maximum, saw"
    ):
        make(environment)


# Loss


def reference(
    agent: R2d2Agent, unrolls: Unrolls, n: int, gamma: float, epsilon: float, eta: float
) -> tuple[float, np.ndarray]:
    """Loss and priorities in float64, one transition at a time, from the networks' Q values."""
    online, target = (
        network.unroll(unrolls.step, unrolls.state).numpy().astype(np.float64)
        for network in (agent._online, agent._target)
    )
    kind = unrolls.step.step_type.numpy()
    reward = unrolls.step.reward.numpy().astype(np.float64)
    last_row = len(kind) - 1
    losses, priorities = [], []
    for b in range(kind.shape[1]):
        errors = []
        for t in range(last_row):
            if kind[t + 1, b] == FIRST:
                continue
            total, scale, row = 0.0, 1.0, t
            while row < min(t + n, last_row) and kind[row + 1, b] != FIRST:
                row += 1
                total += scale * reward[row, b]
                scale *= 0.0 if kind[row, b] == TERMINATED else gamma
            y = target[row, b, np.argmax(online[row, b])]
            root = np.sqrt(1 + 4 * epsilon * (abs(y) + 1 + epsilon))
            total += scale * np.sign(y) * (((root - 1) / (2 * epsilon)) ** 2 - 1)
            h = np.sign(total) * (np.sqrt(abs(total) + 1) - 1) + epsilon * total
            errors.append(abs(h - online[t, b, unrolls.action[t, b]]))
        losses.append(0.5 * sum(e * e for e in errors))
        mean = sum(errors) / len(errors) if errors else 0.0
        priorities.append(eta * max(errors, default=0.0) + (1 - eta) * mean)
    return float(np.mean(unrolls.weights * losses)), np.array(priorities)


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_loss_and_priorities_equal_a_float64_reference(
    lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    agent = make(
        lstm_size=lstm_size,
        n_steps=3,
        discounting=0.9,
        value_function_rescaling_epsilon=1e-2,
        priority_eta=0.7,
    )
    state = specs.map_nest(lambda part: part + 0.3, agent.initial_state(16))
    unrolls = random_unrolls(VECTORS, 12, 16, state)
    weights = np.random.default_rng(3).random(16).astype(np.float32)
    unrolls = unrolls._replace(weights=tf.constant(weights))
    result = agent.loss(unrolls)
    loss, priorities = reference(agent, unrolls, n=3, gamma=0.9, epsilon=1e-2, eta=0.7)
    assert float(result.loss) == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(result.priorities, priorities, rtol=1e-3, atol=1e-5)


def test_loss_without_weights_is_that_with_ones(random_unrolls: MakeUnrolls) -> None:
    agent = make()
    unrolls = random_unrolls(VECTORS, 6, 4, agent.initial_state(4))
    without, ones, twos = (
        agent.loss(unrolls._replace(weights=weights))
        for weights in (None, tf.ones(4), tf.fill([4], 2.0))
    )
    assert without.loss == ones.loss > 0
    np.testing.assert_allclose(twos.loss, 2 * ones.loss, rtol=1e-6)
    np.testing.assert_array_equal(twos.priorities, ones.priorities)
    for name, value in without.metrics.items():
        assert value.shape == (), name
        assert np.isfinite(value), name


def cut(unrolls: Unrolls, start: int, stop: int, state: specs.Nest) -> Unrolls:
    rows = specs.map_nest(lambda x: x[start:stop], unrolls._replace(state=()))
    return rows._replace(state=state)


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
def test_two_episodes_in_an_unroll_are_as_each_alone(
    end: StepType, random_unrolls: MakeUnrolls
) -> None:
    """Case 98: the loss is the sum of those of both, and what joins them counts nowhere."""
    agent = make()
    step_type = np.full((9, 2), MID, np.uint8)
    step_type[3], step_type[4] = end, FIRST
    state = specs.map_nest(lambda part: part + 0.3, agent.initial_state(2))
    both = random_unrolls(VECTORS, 9, 2, state, step_type=step_type)
    parts = cut(both, 0, 4, state), cut(both, 4, 9, agent.initial_state(2))
    losses = [float(agent.loss(unrolls).loss) for unrolls in (both, *parts)]
    assert losses[0] == pytest.approx(losses[1] + losses[2], rel=1e-5)


def test_truncation_bootstraps_and_termination_does_not(random_unrolls: MakeUnrolls) -> None:
    """Case 99: only into TRUNCATED does the last observation's value count."""
    agent = make(lstm_size=0)
    losses = {}
    for end in (TERMINATED, TRUNCATED, MID):
        for shift in (0.0, 5.0):
            step_type = np.full((4, 1), MID, np.uint8)
            step_type[3] = end
            unrolls = random_unrolls(VECTORS, 4, 1, step_type=step_type)
            # The step type is no input, so all three see the same values.
            observation = unrolls.step.observation + shift * np.eye(4)[3][:, None, None]
            step = unrolls.step._replace(observation=tf.cast(observation, tf.float32))
            losses[end, shift] = float(agent.loss(unrolls._replace(step=step)).loss)
    assert losses[TERMINATED, 0.0] == losses[TERMINATED, 5.0]
    assert losses[TRUNCATED, 0.0] != losses[TRUNCATED, 5.0]
    assert losses[TRUNCATED, 0.0] == losses[MID, 0.0]


def test_actions_of_the_last_row_count_in_the_next_unroll_only(
    random_unrolls: MakeUnrolls,
) -> None:
    """Case 3: the action of row t is of transition t, and row T begins none."""
    agent = make()
    step_type = np.full((4, 2), MID, np.uint8)
    unrolls = random_unrolls(VECTORS, 4, 2, agent.initial_state(2), step_type=step_type)
    base = agent.loss(unrolls).loss
    for row in range(4):
        changed = (np.arange(4) == row)[:, None]
        action = tf.where(changed, (unrolls.action + 1) % 5, unrolls.action)
        other = agent.loss(unrolls._replace(action=action)).loss
        assert (other == base) == (row == 3), row


def test_max_abs_reward_clips_in_loss_and_priorities(random_unrolls: MakeUnrolls) -> None:
    """Rewards are left as they are unless it is set."""
    unrolls = random_unrolls(VECTORS, 6, 4)

    def results(scale: float, **options: float) -> list[list[float]]:
        # Beyond 1 everywhere, so that the network, which sees at most 1, sees no difference.
        step = unrolls.step._replace(reward=tf.sign(unrolls.step.reward) * scale)
        agent = make(lstm_size=0, **options)
        loss = agent.loss(unrolls._replace(step=step))
        extras = {name: tf.zeros([6, 4]) for name in ("q_taken", "q_max")}
        initial = agent.initial_priorities(step.step_type, step.reward, extras)
        return [x.numpy().tolist() for x in (loss.loss, loss.priorities, initial)]

    assert results(3.0, max_abs_reward=2.0) == results(2.0, max_abs_reward=2.0) == results(2.0)
    assert all(a != b for a, b in zip(results(3.0), results(2.0), strict=True))


def test_no_transition_at_all_costs_nothing(random_unrolls: MakeUnrolls) -> None:
    agent = make()
    step_type = np.uint8([[TERMINATED] * 3, [FIRST] * 3])
    result = agent.loss(random_unrolls(VECTORS, 2, 3, agent.initial_state(3), step_type=step_type))
    assert result.loss == 0
    np.testing.assert_array_equal(result.priorities, [0, 0, 0])


# Target network


def trained(agent: R2d2Agent, learning_rate: float = 3e-3) -> Callable[[Unrolls], tf.Tensor]:
    optimizer = Optimizer(
        R2d2Config(learning_rate=learning_rate), agent.trainable_variables, total_updates=1000
    )

    @tf.function(autograph=False)
    def train(unrolls: Unrolls) -> tf.Tensor:
        variables = agent.trainable_variables
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        applied = optimizer.apply(loss, tape.gradient(loss, variables)).applied
        agent.after_update(optimizer.num_updates, unrolls, applied)
        with tf.control_dependencies([tf.debugging.assert_equal(applied, True)]):
            return tf.identity(loss)

    return train


def test_target_network_starts_as_a_copy() -> None:
    agent = make(target_differs=False)
    for a, b in zip(agent._online.variables, agent._target.variables, strict=True):
        assert a is not b
        np.testing.assert_array_equal(a, b)


def test_target_network_is_copied_at_multiples_and_else_left_alone(
    random_unrolls: MakeUnrolls,
) -> None:
    agent = make(target_differs=False, update_target_every_n_step=3)
    train = trained(agent)
    unrolls = random_unrolls(VECTORS, 6, 4, agent.initial_state(4))
    target = values_of(agent._target.variables)
    for update in range(1, 8):
        online = values_of(agent._online.variables)
        train(unrolls)
        changes = zip(online, agent._online.variables, strict=True)
        assert all(np.any(a != b) for a, b in changes)
        expected = values_of(agent._online.variables) if update % 3 == 0 else target
        target = values_of(agent._target.variables)
        for a, b in zip(target, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_only_the_online_network_is_trained(random_unrolls: MakeUnrolls) -> None:
    """And both take part in the loss."""
    agent = make()
    trainable = {v.ref() for v in agent.trainable_variables}
    assert trainable == {v.ref() for v in agent._online.variables}
    unrolls = random_unrolls(VECTORS, 6, 4, agent.initial_state(4))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(agent.variables)
        loss = agent.loss(unrolls).loss
    assert set(tape.gradient(loss, agent._target.variables)) == {None}
    gradients = tape.gradient(loss, agent.trainable_variables)
    for variable, gradient in zip(agent.trainable_variables, gradients, strict=True):
        assert np.any(gradient), variable.name
    for variable in agent._target.variables:
        variable.assign(2.0 * variable)
    assert agent.loss(unrolls).loss != loss


def test_checkpoints_hold_both_networks(tmp_path: pathlib.Path) -> None:
    """Case 66: a target network that was lost would be one more copy, at the wrong time."""
    agent = make(IMAGES)
    other = R2d2Agent(R2d2Config(burn_in=0, lstm_size=8, dueling_size=16), IMAGES, seed=2)
    path = Checkpoints(str(tmp_path), {"agent": agent}).save(3)
    Checkpoints(str(tmp_path), {"agent": other}).restore(path)
    assert len(agent.variables) == 2 * len(agent.trainable_variables)
    for name in ("_online", "_target"):
        pairs = zip(getattr(agent, name).variables, getattr(other, name).variables, strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
    assert any(
        np.any(a != b)
        for a, b in zip(other._online.variables, other._target.variables, strict=True)
    )


# Learning


def test_loss_falls_on_a_fixed_batch(random_unrolls: MakeUnrolls) -> None:
    agent = make(target_differs=False, burn_in=2, update_target_every_n_step=10_000)
    unrolls = random_unrolls(VECTORS, 10, 4, agent.initial_state(4))
    train = trained(agent, learning_rate=1e-2)
    losses = [float(train(unrolls)) for _ in range(150)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("end", [TRUNCATED, TERMINATED])
def test_values_of_a_constant_reward(end: StepType) -> None:
    """Case 99: reward 1, limit 10, discount 0.9. Truncated, V -> 1 / (1 - 0.9) in all states;
    terminated, it is the discounted sum of the rewards that are left.
    """
    limit, discount, num_updates, batch_size, epsilon = 10, 0.9, 400, 8, 1e-2
    period = limit + 1  # rows of an episode
    num_rows = 2 * period + 1
    # Termination is known from the clock; truncation comes at any of 4 states that recur.
    num_states = period if end == TERMINATED else 4
    environment = EnvironmentSpecs(
        ArraySpec((num_states,), "float32"), ArraySpec((), "int64", 0, 1)
    )
    agent = make(
        environment,
        target_differs=False,
        lstm_size=0,
        dueling_size=32,
        discounting=discount,
        update_target_every_n_step=10,
        value_function_rescaling_epsilon=epsilon,
    )
    train = trained(agent)
    rng = np.random.default_rng(0)

    def batch() -> Unrolls:
        clock = (np.arange(num_rows)[:, None] + rng.integers(0, period, batch_size)) % period
        start = 0 if end == TERMINATED else rng.integers(0, num_states, batch_size)
        action = rng.integers(0, 2, clock.shape)
        step = StepInputs(
            step_type=np.where(clock == 0, FIRST, np.where(clock == limit, end, MID)),
            reward=clock > 0,
            observation=np.eye(num_states)[(clock + start) % num_states],
            prev_action=np.where(clock == 0, 0, np.roll(action, 1, axis=0)),
        )
        dtypes = StepInputs(tf.uint8, tf.float32, tf.float32, tf.int64)
        return Unrolls(specs.map_nest(tf.cast, step, dtypes), tf.constant(action), {}, ())

    for _ in range(num_updates):
        train(batch())
    step = specs.map_nest(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), batch().step)
    output = agent.act(step, (), tf.constant(SEED), tf.zeros(len(step.reward)))
    rescaled = output.extras["q_max"].numpy()
    left = np.full(rescaled.shape, np.inf)
    if end == TERMINATED:
        left = limit - np.argmax(step.observation, axis=-1)
    counts = step.step_type.numpy() != TERMINATED  # no transition leaves it to teach its value
    returns = (1 - discount**left) / (1 - discount)
    expected = np.sqrt(returns + 1) - 1 + epsilon * returns
    np.testing.assert_allclose(rescaled[counts], expected[counts], atol=0.1)


# In graphs


@pytest.mark.parametrize(
    ("network", "environment"),
    [("shallow", IMAGES), ("nature", IMAGES), ("deep", IMAGES), ("mlp", VECTORS)],
)
@pytest.mark.parametrize("lstm_size", [0, 8])
def test_all_variables_exist_before_any_call(
    network: str, environment: EnvironmentSpecs, lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    """Case 123: built in the constructor; then 8 threads run a cold function at once."""
    agent = make(environment, network=network, lstm_size=lstm_size)
    before = {variable.ref() for variable in agent.variables}
    act = tf.function(agent.act, autograph=False)
    step = first_row(random_unrolls(environment, 1, 2))
    actions, barrier = [], threading.Barrier(8)

    def run() -> None:
        barrier.wait(30)
        output = act(step, agent.initial_state(2), tf.constant(SEED), tf.zeros(2))
        actions.append(output.action.numpy())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(actions) == 8
    assert all((action == actions[0]).all() for action in actions)
    assert {variable.ref() for variable in agent.variables} == before


def test_train_step_runs_under_the_single_threaded_executor(random_unrolls: MakeUnrolls) -> None:
    """It refuses loops and branches, unless the function was also traced in its scope."""
    from tensorflow.python.eager import context

    agent = make(burn_in=2, update_target_every_n_step=2)
    unrolls = random_unrolls(VECTORS, 7, 2, agent.initial_state(2))
    train = trained(agent)
    with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        assert train(unrolls) > 0
        assert train(unrolls) > 0
    for a, b in zip(agent._online.variables, agent._target.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_registry_makes_the_agent() -> None:
    algorithm = registry.load("r2d2")
    config = algorithm.Config(unroll_length=7, burn_in=3)
    agent: Agent = algorithm.make(config, VECTORS, 1)
    assert (agent.unroll_length, agent.burn_in) == (7, 3)
    assert agent.replay == config
