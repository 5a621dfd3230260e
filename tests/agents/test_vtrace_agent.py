"""The V-trace agent through its public methods."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agent import Agent
from seed_rl.agents import registry
from seed_rl.agents.vtrace.agent import VtraceAgent
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepInputs, StepType, Unrolls

ACTION = ArraySpec((), "int64", 0, 4)
IMAGES = EnvironmentSpecs(ArraySpec((36, 40, 2), "uint8"), ACTION)
VECTORS = EnvironmentSpecs(ArraySpec((3,), "float32"), ACTION)
FIRST, MID, TERMINATED, TRUNCATED = StepType
EXPLORATION = tf.ones(1)  # which V-trace does not look at
MakeUnrolls = Callable[..., Unrolls]


def make(environment: EnvironmentSpecs = VECTORS, **options: object) -> VtraceAgent:
    return VtraceAgent(VtraceConfig(**options), environment, seed=1)


def gradients_of(agent: VtraceAgent, unrolls: Unrolls, name: str) -> dict[str, tf.Tensor | None]:
    variables = agent.trainable_variables
    with tf.GradientTape() as tape:
        value = agent.loss(unrolls).metrics[name]
    gradients = tape.gradient(value, variables)
    return {v.name: g for v, g in zip(variables, gradients, strict=True)}


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize(
    ("network", "environment"),
    [("shallow", IMAGES), ("nature", IMAGES), ("deep", IMAGES), ("mlp", VECTORS)],
)
def test_gradient_reaches_every_variable(
    network: str, environment: EnvironmentSpecs, lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    agent = make(environment, network=network, lstm_size=lstm_size)
    unrolls = random_unrolls(environment, 5, 3, agent.initial_state(3))
    for name, gradient in gradients_of(agent, unrolls, "loss").items():
        assert gradient is not None, name
        assert np.isfinite(gradient).all(), name
        assert np.any(gradient), name


def test_each_loss_leaves_the_other_head_alone(random_unrolls: MakeUnrolls) -> None:
    """Case 45: d(policy loss)/d(baseline head) = 0 and d(baseline loss)/d(policy head) = 0."""
    agent = make(lstm_size=4)
    unrolls = random_unrolls(VECTORS, 5, 3, agent.initial_state(3))
    for loss, own, other in (
        ("policy_loss", "policy", "baseline"),
        ("baseline_loss", "baseline", "policy"),
    ):
        for name, gradient in gradients_of(agent, unrolls, loss).items():
            if name.startswith(other):
                assert gradient is None or not np.any(gradient), name
            else:
                assert np.any(gradient), f"{own}: {name}"


def test_loss_is_the_weighted_sum_of_its_parts(random_unrolls: MakeUnrolls) -> None:
    agent = make(baseline_cost=0.3, entropy_cost=0.02, kl_cost=0.7)
    result = agent.loss(random_unrolls(VECTORS, 6, 4))
    parts = result.metrics
    expected = (
        parts["policy_loss"]
        + 0.3 * parts["baseline_loss"]
        - 0.02 * parts["entropy"]
        + 0.7 * parts["kl"]
    )
    np.testing.assert_allclose(result.loss, expected, rtol=1e-6)
    assert result.priorities is None
    assert parts["kl"] > 0
    for value in parts.values():
        assert value.shape == ()
        assert np.isfinite(value)


def cut(unrolls: Unrolls, start: int, stop: int, state: specs.Nest) -> Unrolls:
    rows = specs.map_nest(lambda x: x[start:stop], unrolls._replace(state=()))
    return rows._replace(state=state)


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
@pytest.mark.parametrize("lstm_size", [0, 4])
def test_two_episodes_in_an_unroll_are_as_each_alone(
    end: StepType, lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    """Case 98: the loss is the mean of those of both, and what joins them counts nowhere."""
    agent = make(lstm_size=lstm_size)
    step_type = np.full((9, 2), MID, np.uint8)
    step_type[3], step_type[4] = end, FIRST
    state = specs.map_nest(lambda part: part + 0.3, agent.initial_state(2))
    both = random_unrolls(VECTORS, 9, 2, state, step_type=step_type)
    first = cut(both, 0, 4, state)  # 3 transitions
    second = cut(both, 4, 9, agent.initial_state(2))  # 4
    metrics = [agent.loss(unrolls).metrics for unrolls in (both, first, second)]
    for name in ("loss", "policy_loss", "baseline_loss", "entropy", "kl", "mean_value"):
        seen, *parts = (float(metric[name]) for metric in metrics)
        assert seen == pytest.approx((3 * parts[0] + 4 * parts[1]) / 7, rel=1e-4), name


def test_truncation_bootstraps_and_termination_does_not(random_unrolls: MakeUnrolls) -> None:
    """Case 99: only into TRUNCATED does the last observation's value count."""
    agent = make()
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


def test_max_abs_reward_clips_in_the_loss(random_unrolls: MakeUnrolls) -> None:
    unrolls = random_unrolls(VECTORS, 6, 4)

    def loss(scale: float, max_abs_reward: float) -> float:
        # Beyond 1 everywhere, so that the network, which sees at most 1, sees no difference.
        reward = tf.sign(unrolls.step.reward) * scale
        step = unrolls.step._replace(reward=reward)
        agent = make(max_abs_reward=max_abs_reward)
        return float(agent.loss(unrolls._replace(step=step)).loss)

    assert loss(3.0, 2.0) == loss(2.0, 2.0) == loss(2.0, 0.0)
    assert loss(3.0, 0.0) != loss(2.0, 0.0)


def roll(
    agent: VtraceAgent, inputs: StepInputs, state: specs.Nest
) -> tuple[Unrolls, specs.Nest, list[specs.Nest]]:
    """Acts on the rows one by one; the state after each row."""
    action, policy, states = [], [], []
    for t in range(inputs.step_type.shape[0]):
        row = specs.map_nest(lambda x: x[t], inputs)  # noqa: B023
        output = agent.act(row, state, tf.constant([t, 7]), EXPLORATION)
        state = output.state
        action.append(output.action)
        policy.append(output.extras["policy"])
        states.append(state)
    unrolls = Unrolls(inputs, tf.stack(action), {"policy": tf.stack(policy)}, ())
    return unrolls, state, states


@pytest.mark.parametrize(
    ("network", "environment"),
    [("shallow", IMAGES), ("nature", IMAGES), ("deep", IMAGES), ("mlp", VECTORS)],
)
def test_unroll_2_starts_from_the_final_state_of_unroll_1(
    network: str, environment: EnvironmentSpecs, random_unrolls: MakeUnrolls
) -> None:
    """Case 51: with it the learner finds the acting policy again; from zeros it does not."""
    agent = make(environment, network=network, lstm_size=8)
    for variable in agent.trainable_variables:
        if variable.name.startswith("policy"):  # a new one is too uniform to tell states apart
            variable.assign(100 * variable)
    inputs = random_unrolls(environment, 9, 3, step_type=np.full((9, 3), MID, np.uint8)).step
    rows, _, states = roll(agent, inputs, agent.initial_state(3))
    # Of 4 transitions each: row 4 ends the first and begins the second, so that the state
    # that went into row 4 is the one that came out of row 3.
    kept = agent.loss(cut(rows, 4, 9, states[3])).metrics
    lost = agent.loss(cut(rows, 4, 9, agent.initial_state(3))).metrics
    assert abs(kept["kl"]) < 1e-6
    assert abs(kept["mean_ratio"] - 1) < 1e-4
    assert abs(lost["loss"] - kept["loss"]) > 1e-4
    assert lost["kl"] > 1e-4


def test_first_restarts_the_state_when_acting(random_unrolls: MakeUnrolls) -> None:
    agent = make(lstm_size=8)
    step = random_unrolls(VECTORS, 1, 3, step_type=np.full((1, 3), FIRST, np.uint8)).step
    row = specs.map_nest(lambda x: x[0], step)
    dirty = specs.map_nest(lambda part: part + 3.0, agent.initial_state(3))
    seed = tf.constant([1, 2])
    for seen, wanted in zip(
        specs.flatten(agent.act(row, dirty, seed, EXPLORATION)),
        specs.flatten(agent.act(row, agent.initial_state(3), seed, EXPLORATION)),
        strict=True,
    ):
        np.testing.assert_array_equal(seen, wanted)


def test_the_first_policy_is_nearly_uniform(random_unrolls: MakeUnrolls) -> None:
    agent = make(IMAGES)
    step = specs.map_nest(lambda x: x[0], random_unrolls(IMAGES, 1, 16).step)
    output = agent.act(step, (), tf.constant([1, 2]), EXPLORATION)
    assert output.action.dtype == tf.int64
    np.testing.assert_allclose(tf.nn.softmax(output.extras["policy"]), 0.2, atol=0.03)


@pytest.mark.parametrize("end", [TRUNCATED, TERMINATED])
def test_values_of_a_constant_reward(end: StepType) -> None:
    """Case 99: reward 1, limit 10, discount 0.9. Truncated, V -> 1 / (1 - 0.9) in all states;
    terminated, it is the discounted sum of the rewards that are left.
    """
    limit, discount, num_updates, batch_size = 10, 0.9, 400, 8
    period = limit + 1  # rows of an episode
    num_rows = 2 * period + 1
    # Termination is known from the clock; truncation comes at any of 4 states that recur.
    num_states = period if end == TERMINATED else 4
    environment = EnvironmentSpecs(
        ArraySpec((num_states,), "float32"), ArraySpec((), "int64", 0, 1)
    )
    agent = make(environment, discounting=discount, entropy_cost=0.0)
    optimizer = Optimizer(VtraceConfig(learning_rate=3e-3), agent.trainable_variables, num_updates)
    rng = np.random.default_rng(0)

    @tf.function(autograph=False)
    def train(unrolls: Unrolls) -> tf.Tensor:
        variables = agent.trainable_variables
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        return optimizer.apply(loss, tape.gradient(loss, variables)).applied

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
        policy = tf.zeros([*clock.shape, 2])
        return Unrolls(specs.map_nest(tf.cast, step, dtypes), action, {"policy": policy}, ())

    for _ in range(num_updates):
        assert train(batch())
    step = specs.map_nest(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), batch().step)
    values = agent._baseline(agent._body.step(step, ())[0])[:, 0]
    left = np.full(values.shape, np.inf)
    if end == TERMINATED:
        left = limit - np.argmax(step.observation, axis=-1)
    counts = step.step_type != TERMINATED  # no transition leaves it that would teach its value
    expected = (1 - discount**left) / (1 - discount)
    np.testing.assert_allclose(values[counts], expected[counts], atol=0.3)


def test_actions_of_the_last_row_count_in_the_next_unroll_only(
    random_unrolls: MakeUnrolls,
) -> None:
    """Case 3: action and behaviour of row t are of transition t, and row T begins none."""
    agent = make()
    unrolls = random_unrolls(VECTORS, 4, 2, step_type=np.full((4, 2), MID, np.uint8))
    base = agent.loss(unrolls).loss
    for row in range(4):
        changed = (np.arange(4) == row)[:, None]
        action = tf.where(changed, (unrolls.action + 1) % 5, unrolls.action)
        policy = tf.where(changed[..., None], unrolls.extras["policy"][..., ::-1], 0.0)
        other_action = agent.loss(unrolls._replace(action=action)).loss
        other_policy = agent.loss(unrolls._replace(extras={"policy": policy})).loss
        if row == 3:
            zeros = unrolls._replace(extras={"policy": tf.zeros_like(policy)})
            assert other_action == base
            assert other_policy == agent.loss(zeros).loss
        else:
            assert other_action != base


def test_learns_to_answer_what_it_sees() -> None:
    """Case 3: reward at t + 1 depends on the observation and the action at t and nothing else."""
    num_classes, length, batch_size, num_updates = 3, 8, 16, 150
    environment = EnvironmentSpecs(
        ArraySpec((num_classes,), "float32"), ArraySpec((), "int64", 0, num_classes - 1)
    )
    agent = make(environment, discounting=0.5)
    optimizer = Optimizer(VtraceConfig(learning_rate=2e-3), agent.trainable_variables, num_updates)
    act = tf.function(agent.act, autograph=False)
    rng = np.random.default_rng(0)

    @tf.function(autograph=False)
    def train(unrolls: Unrolls) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        return optimizer.apply(loss, tape.gradient(loss, agent.trainable_variables)).applied

    def see(action: np.ndarray, reward: np.ndarray) -> StepInputs:
        wanted = rng.integers(0, num_classes, batch_size)
        return StepInputs(
            tf.fill([batch_size], np.uint8(MID)),
            tf.constant(reward, tf.float32),
            tf.constant(np.eye(num_classes)[wanted], tf.float32),
            tf.constant(action),
        )

    step = see(np.zeros(batch_size, np.int64), np.zeros(batch_size))
    rewards = []
    for update in range(num_updates):
        rows = []
        for t in range(length + 1):
            output = act(step, (), tf.constant([update, t]), EXPLORATION)
            rows.append(Unrolls(step, output.action, output.extras, ()))
            if t < length:  # the last row of this unroll is the first of the next
                correct = output.action == tf.argmax(step.observation, axis=-1)
                step = see(output.action.numpy(), correct.numpy())
                rewards.append(np.mean(correct))
        assert train(specs.map_nest(lambda *parts: tf.stack(parts), *rows))
    assert np.mean(rewards[: 5 * length]) < 0.6
    assert np.mean(rewards[-5 * length :]) > 0.9


@pytest.mark.parametrize("field", ["reward", "observation", "policy"])
def test_nan_never_reaches_the_weights(field: str, random_unrolls: MakeUnrolls) -> None:
    """Case 61: a NaN reward or observation, or a logit of minus infinity."""
    agent = make(lstm_size=4)
    optimizer = Optimizer(VtraceConfig(), agent.trainable_variables, 10)
    unrolls = random_unrolls(VECTORS, 5, 2, agent.initial_state(2))
    if field == "policy":
        one_hot = tf.one_hot(unrolls.action, 5, on_value=-np.inf, off_value=0.0)
        unrolls = unrolls._replace(extras={"policy": one_hot})
    else:
        broken = tf.fill(getattr(unrolls.step, field).shape, np.float32(np.nan))
        unrolls = unrolls._replace(step=unrolls.step._replace(**{field: broken}))
    before = [variable.numpy() for variable in agent.trainable_variables]
    with tf.GradientTape() as tape:
        loss = agent.loss(unrolls).loss
    update = optimizer.apply(loss, tape.gradient(loss, agent.trainable_variables))
    assert not update.applied
    for old, variable in zip(before, agent.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, variable)


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_all_variables_exist_before_any_call(lstm_size: int) -> None:
    """Case 123: built in the constructor; then 8 threads run a cold function at once."""
    agent = make(IMAGES, lstm_size=lstm_size)
    before = {variable.ref() for variable in agent.variables}
    act = tf.function(agent.act, autograph=False)
    step = StepInputs(
        tf.zeros([2], tf.uint8),
        tf.zeros([2]),
        tf.zeros([2, 36, 40, 2], tf.uint8),
        tf.zeros([2], tf.int64),
    )
    actions, barrier = [], threading.Barrier(8)

    def run() -> None:
        barrier.wait(30)
        actions.append(
            act(step, agent.initial_state(2), tf.constant([1, 2]), EXPLORATION).action.numpy()
        )

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(actions) == 8
    assert all((action == actions[0]).all() for action in actions)
    assert {variable.ref() for variable in agent.variables} == before


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_train_step_runs_under_the_single_threaded_executor(
    lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    """It refuses loops and branches, unless the function was also traced in its scope."""
    from tensorflow.python.eager import context

    agent = make(lstm_size=lstm_size)
    optimizer = Optimizer(VtraceConfig(), agent.trainable_variables, 10)
    unrolls = random_unrolls(VECTORS, 5, 2, agent.initial_state(2))

    @tf.function(autograph=False)
    def train(unrolls: Unrolls) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        return optimizer.apply(loss, tape.gradient(loss, agent.trainable_variables)).applied

    with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        assert train(unrolls)
        assert train(unrolls)
    assert optimizer.num_updates == 2


def test_a_checkpoint_holds_every_weight(tmp_path: object) -> None:
    """Cases 4 and 126: restored into another agent, each variable is matched and equal."""
    environment = IMAGES
    agent = make(environment, network="deep", lstm_size=8)
    other = VtraceAgent(VtraceConfig(network="deep", lstm_size=8), environment, seed=2)
    path = tf.train.Checkpoint(agent=agent).save(f"{tmp_path}/checkpoint")
    tf.train.Checkpoint(agent=other).restore(path).assert_existing_objects_matched()
    for a, b in zip(agent.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_registry_makes_the_agent() -> None:
    algorithm = registry.load("vtrace")
    agent: Agent = algorithm.make(algorithm.Config(unroll_length=7), VECTORS, 1)
    assert agent.unroll_length == 7
    with pytest.raises(ValueError, match="--agent=dqn: no such agent; wanted one of: r2d2, vtrace"):
        registry.load("dqn")
