"""Agents with actions of every kind, and with masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks.body import Body
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.agents.r2d2.agent import R2d2Agent
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.agents.vtrace.agent import VtraceAgent
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.agents.vtrace.maths import vtrace
from seed_rl.distributions import Categorical, Joint
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType, Unrolls

MakeUnrolls = Callable[..., Unrolls]
VECTOR = ArraySpec((3,), "float32", -5, 5)
SEED = tf.constant([3, 4])


def choice(num_choices: int) -> ArraySpec:
    return ArraySpec((), "int32", 0, num_choices - 1)


MULTI_DISCRETE = (choice(2), choice(4), choice(3))
NUMBERS = ArraySpec((2,), "float32", -1, 1)
MIXED = {"aim": NUMBERS, "buttons": (choice(2), choice(3)), "gas": ArraySpec((), "float32", -1, 1)}


def make(action: Nest, observation: Nest = VECTOR, **options: object) -> VtraceAgent:
    return VtraceAgent(VtraceConfig(**options), EnvironmentSpecs(observation, action), seed=1)


def loss_and_gradients(
    agent: VtraceAgent, unrolls: Unrolls
) -> tuple[dict[str, float], list[np.ndarray]]:
    with tf.GradientTape() as tape:
        result = agent.loss(unrolls)
    gradients = tape.gradient(result.loss, agent.trainable_variables)
    return {k: float(v) for k, v in result.metrics.items()}, [g.numpy() for g in gradients]


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_one_of_several_choices_is_as_a_single_one(
    lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    """Case 49: loss and gradients of a tuple of one choice are those of the choice, exactly."""
    single = make(choice(4), lstm_size=lstm_size, kl_cost=0.1, entropy_cost=0.1)
    several = make((choice(4),), lstm_size=lstm_size, kl_cost=0.1, entropy_cost=0.1)
    environment = EnvironmentSpecs(VECTOR, choice(4))
    unrolls = random_unrolls(environment, 7, 3, single.initial_state(3))
    step = unrolls.step._replace(prev_action=(unrolls.step.prev_action,))
    metrics, gradients = loss_and_gradients(single, unrolls)
    other_metrics, other_gradients = loss_and_gradients(
        several, unrolls._replace(step=step, action=(unrolls.action,))
    )
    assert metrics == other_metrics
    for one, other in zip(gradients, other_gradients, strict=True):
        assert np.any(one)
        np.testing.assert_array_equal(one, other)


def test_multi_discrete_with_an_lstm(random_unrolls: MakeUnrolls) -> None:
    """Case 59: the ratio in V-trace is the product of those of the parts, and all else a sum."""
    agent = make(MULTI_DISCRETE, lstm_size=8, entropy_cost=0.1, kl_cost=0.1)
    for variable in agent.trainable_variables:
        if variable.name.startswith("policy"):  # a new one is too uniform
            variable.assign(100 * variable)
    environment = EnvironmentSpecs(VECTOR, MULTI_DISCRETE)
    unrolls = random_unrolls(environment, 7, 3, agent.initial_state(3))
    metrics, gradients = loss_and_gradients(agent, unrolls)
    assert all(np.isfinite(gradient).all() and np.any(gradient) for gradient in gradients)

    features, _ = agent._body.unroll(unrolls.step, unrolls.state)
    policy = tf.reshape(agent._policy(tf.reshape(features, [-1, 8])), [7, 3, 9])[:-1]
    values = tf.reshape(agent._baseline(tf.reshape(features, [-1, 8])), [7, 3])
    behaviour = unrolls.extras["policy"][:-1]
    ratios, entropy, kl = tf.ones([6, 3]), tf.zeros([6, 3]), tf.zeros([6, 3])
    for i, (start, size) in enumerate([(0, 2), (2, 4), (6, 3)]):
        own, other = (tf.nn.softmax(x[..., start : start + size]) for x in (policy, behaviour))
        taken = tf.one_hot(unrolls.action[i][:-1], size)
        ratios *= tf.reduce_sum(taken * own, -1) / tf.reduce_sum(taken * other, -1)
        entropy -= tf.reduce_sum(own * tf.math.log(own), -1)
        kl += tf.reduce_sum(other * tf.math.log(other / own), -1)
    next_type = unrolls.step.step_type[1:]
    weights = tf.cast(next_type != StepType.FIRST.value, tf.float32)

    def mean(x: tf.Tensor) -> float:
        return float(tf.reduce_sum(weights * x) / tf.reduce_sum(weights))

    targets = vtrace(
        tf.math.log(ratios),
        tf.zeros([6, 3]),
        0.99 * tf.cast(next_type != StepType.TERMINATED.value, tf.float32),
        tf.clip_by_value(unrolls.step.reward[1:], -1.0, 1.0),
        values[:-1],
        values[-1],
        weights,
        lambda_=0.95,
    )
    assert metrics["mean_ratio"] == pytest.approx(mean(tf.minimum(ratios, 1.0)), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(mean(entropy), rel=1e-4)
    assert metrics["kl"] == pytest.approx(mean(kl), rel=1e-4)
    error = mean(tf.square(targets.values - values[:-1]))
    assert metrics["baseline_loss"] == pytest.approx(0.5 * error, rel=1e-4)


@pytest.mark.parametrize("action", [MULTI_DISCRETE, NUMBERS, MIXED])
@pytest.mark.parametrize("lstm_size", [0, 8])
def test_acting_and_learning_agree(
    action: Nest, lstm_size: int, random_unrolls: MakeUnrolls
) -> None:
    """Of a policy that has not changed since it acted, ratios are 1 and the divergence is 0."""
    agent = make(action, lstm_size=lstm_size)
    inputs = random_unrolls(EnvironmentSpecs(VECTOR, action), 6, 3).step
    state, rows = agent.initial_state(3), []
    for t in range(6):
        row = specs.map_nest(lambda x: x[t], inputs)  # noqa: B023
        output = agent.act(row, state, tf.constant([t, 7]), tf.ones(3))
        state = output.state
        rows.append(Unrolls(row, output.action, output.extras, ()))
        for leaf, spec in zip(specs.flatten(output.action), specs.flatten(action), strict=True):
            assert leaf.dtype.name == spec.dtype
            assert leaf.shape == (3, *spec.shape)
    unrolls = specs.map_nest(lambda *parts: tf.stack(parts), *rows)
    metrics, gradients = loss_and_gradients(agent, unrolls._replace(state=agent.initial_state(3)))
    assert metrics["mean_ratio"] == pytest.approx(1, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert np.any(gradient)


def test_the_last_action_is_an_input_whatever_it_is() -> None:
    """Case 87: choices as one-hot, numbers as they are, zeros at FIRST."""
    body = Body(EnvironmentSpecs(VECTOR, MIXED), NetworkConfig(), np.random.default_rng(0))
    size = 256 + 2 + (2 + 3) + 1 + 1
    assert body.output_size == size
    action = {
        "aim": tf.constant([[0.25, -1.0]] * 2),
        "buttons": (tf.constant([1, 1]), tf.constant([2, 2])),
        "gas": tf.constant([0.5, 0.5]),
    }
    kinds = tf.constant([StepType.MID, StepType.FIRST], tf.uint8)
    inputs = StepInputs(kinds, tf.constant([0.75, 0.75]), tf.zeros([2, 3]), action)
    features, _ = body.step(inputs, ())
    expected = [0.25, -1, 0, 1, 0, 0, 1, 0.5, 0.75]
    np.testing.assert_array_equal(features[0, 256:], expected)
    np.testing.assert_array_equal(features[1, 256:], np.zeros(9))


def test_r2d2_refuses_all_but_one_choice() -> None:
    for action, seen in (
        (MULTI_DISCRETE, r"saw 0 int32\[\] in \[0, 1\], 1 int32"),
        (NUMBERS, r"saw float32\[2\] in \[-1, 1\]; --agent=vtrace takes"),
    ):
        with pytest.raises(ValueError, match=f"--agent=r2d2: wanted one action, .*{seen}"):
            R2d2Agent(R2d2Config(), EnvironmentSpecs(VECTOR, action), 0)


# Masks


def masked(size: int, dtype: str = "uint8") -> dict[str, ArraySpec]:
    return {"action_mask": ArraySpec((size,), dtype, 0, 1), "seen": VECTOR}


def mask_of(unrolls: Unrolls) -> np.ndarray:
    """With at least one action allowed, so that all of it is minded."""
    return unrolls.step.observation["action_mask"].numpy()


def with_masks(unrolls: Unrolls, size: int, seed: int = 0) -> Unrolls:
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, (*unrolls.step.step_type.shape, size)).astype(np.uint8)
    mask[..., 1] = 1
    observation = {**unrolls.step.observation, "action_mask": tf.constant(mask)}
    return unrolls._replace(step=unrolls.step._replace(observation=observation))


def test_vtrace_takes_no_masked_action(random_unrolls: MakeUnrolls) -> None:
    environment = EnvironmentSpecs(masked(4), choice(4))
    agent = make(choice(4), masked(4))
    unrolls = with_masks(random_unrolls(environment, 2, 500), 4)
    row = specs.map_nest(lambda x: x[0], unrolls.step)
    output = agent.act(row, (), SEED, tf.ones(500))
    taken = output.action.numpy()
    mask = mask_of(unrolls)[0]
    assert (mask[np.arange(500), taken] == 1).all()
    assert set(taken[mask.all(axis=1)]) == {0, 1, 2, 3}
    probabilities = tf.nn.softmax(output.extras["policy"]).numpy()
    assert (probabilities[mask == 0] == 0).all()
    assert np.isfinite(output.extras["policy"]).all(), "a finite batch must count as one"


def test_vtrace_learns_among_what_is_allowed(random_unrolls: MakeUnrolls) -> None:
    """The policy's gradient, entropy included, is as if masked logits were not there."""
    environment = EnvironmentSpecs(masked(4), choice(4))
    agent = make(choice(4), masked(4), entropy_cost=0.5, kl_cost=0.5)
    unrolls = with_masks(random_unrolls(environment, 6, 4, agent.initial_state(4)), 4)
    mask = mask_of(unrolls)
    behaviour = agent._distribution.masked(unrolls.extras["policy"], tf.constant(mask))
    action = Categorical(4, "int32").sample(behaviour, SEED)
    unrolls = unrolls._replace(action=action, extras={"policy": behaviour})
    metrics, gradients = loss_and_gradients(agent, unrolls)
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    before = metrics["loss"]
    # Only actions 0 and 1 are ever allowed: the weights of the others get no gradient.
    observation = {**unrolls.step.observation, "action_mask": tf.constant(mask * [1, 1, 0, 0])}
    step = unrolls.step._replace(observation=observation)
    few = unrolls._replace(step=step, action=tf.ones_like(action))
    with tf.GradientTape() as tape:
        loss = agent.loss(few).loss
    gradient = tape.gradient(loss, agent._policy._kernel).numpy()
    assert np.any(gradient[:, :2])
    np.testing.assert_array_equal(gradient[:, 2:], 0)
    assert float(loss) != before


def test_a_mask_is_no_feature(random_unrolls: MakeUnrolls) -> None:
    agent = make(choice(4), masked(4))
    assert agent._body.output_size == 256 + 4 + 1
    environment = EnvironmentSpecs(masked(4), choice(4))
    one, other = (with_masks(random_unrolls(environment, 3, 2), 4, seed) for seed in (0, 1))
    assert (mask_of(one) != mask_of(other)).any()
    np.testing.assert_array_equal(
        agent._body.unroll(one.step, ())[0], agent._body.unroll(other.step, ())[0]
    )


def test_masks_of_several_choices(random_unrolls: MakeUnrolls) -> None:
    agent = make(MIXED, masked(5))
    assert isinstance(agent._distribution, Joint)
    environment = EnvironmentSpecs(masked(5), MIXED)
    step = specs.map_nest(lambda x: x[0], random_unrolls(environment, 1, 300).step)
    mask = tf.constant(np.tile(np.uint8([0, 1, 1, 0, 1]), (300, 1)))
    step = step._replace(observation={**step.observation, "action_mask": mask})
    action = agent.act(step, (), SEED, tf.ones(300)).action
    assert set(action["buttons"][0].numpy()) == {1}
    assert set(action["buttons"][1].numpy()) == {0, 2}
    assert len(np.unique(action["gas"])) == 300


@pytest.mark.parametrize(
    ("mask", "action", "seen"),
    [
        (
            ArraySpec((3,), "uint8"),
            choice(4),
            r"bools \[4\].* int32\[\] in \[0, 3\], saw uint8\[3\]",
        ),
        (ArraySpec((4,), "float32"), choice(4), r"bools \[4\].*, saw float32\[4\]"),
        (ArraySpec((4,), "uint8"), MULTI_DISCRETE, r"bools \[9\].*, saw uint8\[4\]"),
        (ArraySpec((2,), "uint8"), NUMBERS, r"bools \[0\].*, saw uint8\[2\]"),
        ((ArraySpec((4,), "uint8"),), choice(4), r"bools \[4\].*, saw 0 uint8\[4\]"),
    ],
)
def test_masks_that_fit_no_action_are_refused(mask: Nest, action: Nest, seen: str) -> None:
    with pytest.raises(ValueError, match=f"observation action_mask: wanted integers or {seen}"):
        make(action, {"action_mask": mask, "seen": VECTOR})


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_r2d2_takes_no_masked_action(epsilon: float, random_unrolls: MakeUnrolls) -> None:
    environment = EnvironmentSpecs(masked(4, "bool"), choice(4))
    agent = R2d2Agent(R2d2Config(burn_in=0, lstm_size=0, dueling_size=8), environment, seed=1)
    step = specs.map_nest(lambda x: x[0], random_unrolls(environment, 1, 4000).step)
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (4000, 4)).astype(bool)
    mask[:, 2] = True
    mask[-1] = False  # as if all were True
    step = step._replace(observation={**step.observation, "action_mask": tf.constant(mask)})
    output = agent.act(step, (), SEED, tf.fill([4000], epsilon))
    taken = output.action.numpy()
    assert mask[np.arange(3999), taken[:-1]].all()
    assert 0 <= taken[-1] < 4
    q_values, _ = agent._online.step(step, ())
    best = np.where(mask[:-1], q_values[:-1], -np.inf).max(axis=1)
    np.testing.assert_allclose(output.extras["q_max"][:-1], best, rtol=1e-6)
    if epsilon == 1:  # each of those allowed as often
        for pattern in ([1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0]):
            rows = (mask == pattern).all(axis=1)
            counts = np.bincount(taken[rows], minlength=4) / rows.sum()
            np.testing.assert_allclose(counts, np.array(pattern) / sum(pattern), atol=0.1)


def test_r2d2_random_actions_are_as_without_a_mask_where_all_is_allowed(
    random_unrolls: MakeUnrolls,
) -> None:
    options = R2d2Config(burn_in=0, lstm_size=0, dueling_size=8)
    agent = R2d2Agent(options, EnvironmentSpecs(masked(4), choice(4)), seed=1)
    plain = R2d2Agent(options, EnvironmentSpecs({"seen": VECTOR}, choice(4)), seed=1)
    step = specs.map_nest(
        lambda x: x[0], random_unrolls(EnvironmentSpecs({"seen": VECTOR}, choice(4)), 1, 500).step
    )
    mask = tf.ones([500, 4], tf.uint8)
    full = step._replace(observation={**step.observation, "action_mask": mask})
    for epsilon in (0.0, 0.5, 1.0):
        exploration = tf.fill([500], epsilon)
        np.testing.assert_array_equal(
            agent.act(full, (), SEED, exploration).action,
            plain.act(step, (), SEED, exploration).action,
        )


def test_r2d2_bootstraps_from_allowed_actions_only(random_unrolls: MakeUnrolls) -> None:
    """The loss is the same whatever is thought of actions that can't be taken."""
    environment = EnvironmentSpecs(masked(4), choice(4))
    agent = R2d2Agent(R2d2Config(burn_in=0, lstm_size=0, dueling_size=8), environment, seed=1)
    unrolls = random_unrolls(environment, 8, 6)._replace(extras={})
    mask = tf.constant(np.tile(np.uint8([1, 0, 1, 0]), (8, 6, 1)))
    observation = {**unrolls.step.observation, "action_mask": mask}
    unrolls = unrolls._replace(
        step=unrolls.step._replace(observation=observation), action=2 * (unrolls.action % 2)
    )

    def values() -> tuple[float, float]:
        loss = agent.loss(unrolls)
        assert np.isfinite(loss.priorities).all()
        return float(loss.loss), float(loss.metrics["mean_target"])

    before = values()
    online = agent._online._head._advantage._bias
    # The mean advantage stays, so that allowed actions keep their Q values.
    online.assign_add([0.0, 50.0, 0.0, -50.0])
    np.testing.assert_allclose(values(), before, rtol=1e-4)
    open_mask = {**observation, "action_mask": tf.ones_like(mask)}
    unrolls = unrolls._replace(step=unrolls.step._replace(observation=open_mask))
    assert values() != pytest.approx(before, rel=1e-3)
