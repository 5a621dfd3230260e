"""Running means and variances of observations, and where they are kept."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from learners import make_learner, running

from seed_rl import specs
from seed_rl.agents.networks.normalization import Normalizer, RunningMoments
from seed_rl.agents.r2d2.agent import R2d2Agent
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.agents.vtrace.agent import VtraceAgent
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.experiment import load_trained
from seed_rl.inference import Step
from seed_rl.optimizers import Optimizer
from seed_rl.queued import form
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.training import Trainer
from seed_rl.types import Unrolls

YES, NO = tf.constant(True), tf.constant(False)
FREE = ArraySpec((3,), "float32")
NEST = {
    "bounded": ArraySpec((2,), "float32", -1, 1),
    "bounded each": ArraySpec((2,), "float32", -1, 5, element_bounds=((-1.0, 1.0), (0.0, 5.0))),
    "count": ArraySpec((), "int64"),
    "die": ArraySpec((), "int32", 1, 6),
    "free": FREE,
    "half": ArraySpec((), "float32", 0, None),
    "image": ArraySpec((4, 4, 1), "uint8"),
    "limitless": ArraySpec((), "float32", -3.4e38, 3.4e38),
}


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        ("auto", {"count", "free", "half", "limitless"}),
        ("true", {"bounded", "bounded each", "count", "free", "half", "limitless"}),
        ("false", set()),
    ],
)
def test_which_leaves(which: str, chosen: set[str]) -> None:
    normalizer = Normalizer(NEST, which)
    seen = normalizer.spec(NEST)
    assert {key for key in NEST if seen[key] != NEST[key]} == chosen
    assert all(seen[key] == ArraySpec(NEST[key].shape, "float32", -10, 10) for key in chosen)
    rows = {key: spec.zeros(2) for key, spec in NEST.items()}
    for key, part in normalizer(rows).items():
        assert part.dtype == seen[key].dtype
        if key not in chosen:
            assert part is rows[key]
    assert len(normalizer.variables) == 3 * len(chosen)
    assert not normalizer.trainable_variables


def test_moments_are_those_of_all_values_together() -> None:
    """Against numpy in float64, where float32 sums would have lost the variance."""
    rng = np.random.default_rng(0)
    normalizer = Normalizer(FREE, "auto")
    batches = [
        (rng.normal(size=(size, 3)) * [1, 1e-2, 100] + [1000, -5, i]).astype(np.float32)
        for i, size in enumerate([1, 7, 300, 20, 2000] * 10)
    ]
    for batch in batches:
        normalizer.update(tf.constant(batch), YES)
    everything = np.concatenate(batches).astype(np.float64)
    (moments,) = normalizer._moments
    np.testing.assert_allclose(moments._mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments._squares / moments._count, everything.var(axis=0), rtol=1e-9)
    seen = normalizer(tf.constant(batches[-1])).numpy()
    expected = (batches[-1] - everything.mean(axis=0)) / np.sqrt(everything.var(axis=0) + 1e-6)
    np.testing.assert_allclose(seen, np.clip(expected, -10, 10), atol=1e-3)


def test_values_are_clipped_and_before_any_update_themselves() -> None:
    normalizer = Normalizer(FREE, "auto")
    values = tf.constant([[1.0, -2.0, 300.0]])
    np.testing.assert_array_equal(normalizer(values), [[1, -2, 10]])
    normalizer.update(tf.constant(np.random.default_rng(0).normal(size=(50, 3))), YES)
    np.testing.assert_array_equal(normalizer(1e30 * values), [[10, -10, 10]])


def test_what_is_not_finite_stays_so() -> None:
    """Case 61: clipped, it would go into the weights."""
    normalizer = Normalizer(FREE, "auto")
    values = tf.constant([[np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(normalizer(values), values)


def test_what_never_changes_is_0() -> None:
    normalizer = Normalizer(FREE, "auto")
    values = tf.constant([[0.1, 1e6, -3.0]] * 7)
    normalizer.update(values, YES)
    np.testing.assert_array_equal(normalizer(values), np.zeros((7, 3)))


@pytest.mark.parametrize(("value", "applied"), [(5.0, NO), (np.nan, YES), (np.inf, YES)])
def test_skipped_updates_and_broken_values_change_nothing(value: float, applied: Any) -> None:
    """Case 61."""
    normalizer = Normalizer(FREE, "auto")
    normalizer.update(tf.ones([4, 3]), YES)
    before = [variable.numpy() for variable in normalizer.variables]
    normalizer.update(tf.constant([[1.0, value, 1.0]]), applied)
    for old, new in zip(before, normalizer.variables, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("agent_name", "broken"), [("vtrace", False), ("vtrace", True), ("r2d2", False)]
)
def test_each_applied_update_takes_in_its_batch_once(
    agent_name: str, broken: bool, random_unrolls: Callable[..., Unrolls]
) -> None:
    """Case 61: by the very step that trains; with a NaN in the batch neither weights nor these."""
    environment = EnvironmentSpecs(FREE, ArraySpec((), "int64", 0, 2))
    config: Any
    agent: Any
    if agent_name == "vtrace":
        config = VtraceConfig()
        agent = VtraceAgent(config, environment, 0)
    else:
        config = R2d2Config(burn_in=0, lstm_size=0, dueling_size=8)
        agent = R2d2Agent(config, environment, 0)
    unrolls = random_unrolls(environment, 6, 4)
    if agent_name == "r2d2":
        unrolls = unrolls._replace(extras={})
    reward = unrolls.step.reward + (np.nan if broken else 0.0)
    unrolls = unrolls._replace(step=unrolls.step._replace(reward=reward))

    def spec_of(nest: specs.Nest) -> specs.Nest:
        return specs.map_nest(lambda x: ArraySpec(tuple(x.shape[2:]), x.dtype.name), nest)

    step = Step(unrolls.step, unrolls.action, unrolls.extras)
    optimizer = Optimizer(config, agent.trainable_variables, 100)
    trainer = Trainer(agent, optimizer, 4, form(5, spec_of(step), ()))
    for _ in range(3):
        trainer._train(*specs.flatten(step))
    body = agent._body if agent_name == "vtrace" else agent._online._body
    (moments,) = body._normalizer._moments
    if broken:
        assert float(moments._count) == 0
        return
    assert float(moments._count) == 3 * 5 * 4
    rows = unrolls.step.observation[:-1].numpy().reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(moments._mean, rows.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(moments._squares / moments._count, rows.var(axis=0), rtol=1e-9)


def test_acting_and_learning_see_the_same(random_unrolls: Callable[..., Unrolls]) -> None:
    environment = EnvironmentSpecs(FREE, ArraySpec((), "int64", 0, 2))
    agent = VtraceAgent(VtraceConfig(), environment, 0)
    unrolls = random_unrolls(environment, 4, 3)
    observation = 50.0 + 7.0 * unrolls.step.observation
    unrolls = unrolls._replace(step=unrolls.step._replace(observation=observation))
    first = specs.map_nest(lambda x: x[0], unrolls.step)

    def policies() -> tuple[Any, Any]:
        acted = agent.act(first, (), tf.constant([1, 2]), tf.ones(3)).extras["policy"]
        features, _ = agent._body.unroll(unrolls.step, ())
        return acted.numpy(), agent._policy(features[0]).numpy()

    before, _ = policies()
    agent.after_update(tf.constant(1), unrolls, YES)
    after, learned = policies()
    np.testing.assert_allclose(after, learned, rtol=1e-5, atol=1e-6)
    assert np.abs(after - before).max() > 1e-4


MODULE = """
import gymnasium
import numpy as np

class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def observe(self):
        return self.np_random.normal([500, -3], [20, 0.1]).astype(np.float32)

    def step(self, action):
        self.time += 1
        return self.observe(), 0.0, self.time == 9, False, {}
"""


def test_a_resumed_run_and_evaluation_go_on_with_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 66: the checkpoint has it."""
    (tmp_path / "drift_environment.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(frames: int) -> int:
        learner = make_learner(
            tmp_path / "run", "drift_environment:Drift", total_environment_frames=frames
        )
        first = learner.num_updates
        with running(learner) as run:
            run.join(60.0)
            assert run.failure is None
        return learner.num_updates - first

    def count() -> float:
        agent: Any = load_trained(str(tmp_path / "run")).agent
        (moments,) = agent._body._normalizer._moments
        np.testing.assert_allclose(moments._mean, [500, -3], rtol=0.02)
        deviation = tf.sqrt(moments._squares / moments._count)
        np.testing.assert_allclose(deviation, [20, 0.1], rtol=0.2)
        return float(moments._count)

    updates = train(500)
    assert count() == updates * 5 * 4
    updates += train(1000)
    assert count() == updates * 5 * 4


def test_large_integers_keep_their_digits() -> None:
    """Such as times in seconds, of which float32 keeps every 128th."""
    moments = RunningMoments(())
    times = np.int64(1_700_000_000) + np.arange(100)
    moments.update(tf.constant(times), tf.constant(True))
    expected = (np.arange(100) - 49.5) / np.arange(100).std()
    np.testing.assert_allclose(moments.normalize(tf.constant(times)), expected, rtol=1e-5)
