"""--network=module:factory: what is taken, and that every mistake is told."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from learners import make_learner, read_scalars, running

from seed_rl.agents.networks import torsos
from seed_rl.agents.vtrace.agent import VtraceAgent
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.envs import registry
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import make_server
from seed_rl.specs import ArraySpec, EnvironmentSpecs

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs/examples"
SPEC = {"a": ArraySpec((3,), "float32", -1, 1), "b": ArraySpec((2, 2), "int32", 0, 3)}

MODULE = """
import keras
import tensorflow as tf

class Base(tf.Module):
    output_size = 4

    def __init__(self, observation, rng):
        super().__init__()
        self.observation = observation
        self.layers = {"first": [tf.Variable(rng.normal(size=(3, 4)), dtype=tf.float32)]}

    def __call__(self, observation):
        return observation["a"] @ self.layers["first"][0]

class WrongSize(Base):
    output_size = 5

class NoSize(Base):
    output_size = None

class WrongType(Base):
    def __call__(self, observation):
        return tf.cast(super().__call__(observation), tf.float64)

class Nothing(Base):
    def __call__(self, observation):
        super().__call__(observation)

class NoModule:
    output_size = 4
    def __init__(self, observation, rng):
        self.weights = tf.Variable(tf.zeros((3, 4)))
    def __call__(self, observation):
        return observation["a"] @ self.weights

class NoVariables(Base):
    def __init__(self, observation, rng):
        tf.Module.__init__(self)
    def __call__(self, observation):
        return tf.tile(observation["a"][:, :1], [1, 4])

class Keras(Base):
    def __init__(self, observation, rng):
        tf.Module.__init__(self)
        self.dense = keras.layers.Dense(4)
        self.dense.build((None, 3))
    def __call__(self, observation):
        return self.dense(observation["a"])

class HalfKeras(Base):
    def __init__(self, observation, rng):
        super().__init__(observation, rng)
        self.dense = keras.layers.Dense(4)
        self.dense.build((None, 4))
    def __call__(self, observation):
        return self.dense(super().__call__(observation))

class Lazy(Base):
    def __call__(self, observation):
        self.bias = tf.Variable(tf.zeros(4), name="late")
        return super().__call__(observation) + self.bias

class Double(Base):
    def __init__(self, observation, rng):
        super().__init__(observation, rng)
        self.layers["first"][0] = tf.Variable(tf.zeros((3, 4), tf.float64), name="wide")

class Whole(Base):
    def __init__(self, observation, rng):
        super().__init__(observation, rng)
        self.counts = tf.Variable([1, 2], name="counts")

class NotTrained(Base):
    def __init__(self, observation, rng):
        super().__init__(observation, rng)
        self.counts = tf.Variable([1, 2], trainable=False)

def no_rng(observation):
    return Base(observation, None)

def function(observation, rng):
    return Base(observation, rng)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_networks", None)


def make(name: str) -> torsos.Torso:
    return torsos.make(name, SPEC, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["Base", "function", "NotTrained"])
def test_classes_and_functions_are_taken(name: str) -> None:
    environment = EnvironmentSpecs(SPEC, ArraySpec((), "int32", 0, 1))
    agent = VtraceAgent(VtraceConfig(network=f"own_networks:{name}"), environment, 0)
    assert [tuple(v.shape) for v in agent.trainable_variables].count((3, 4)) == 1
    assert agent._body.output_size == 4 + 2 + 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WrongSize", r"wanted features float32\[2, 5\].*a float32\[3\].*, saw float32\[2, 4\]"),
        ("WrongType", r"wanted features float32\[2, 4\].*saw float64\[2, 4\]"),
        ("Nothing", r"wanted features float32\[2, 4\].*saw NoneType"),
        ("NoSize", "wanted an output_size of at least 1, an int, saw None"),
        ("NoModule", "wanted a tf.Module with __call__"),
        ("NoVariables", "kept as an attribute.*saw that it computes with none"),
        ("Keras", "kept as an attribute.*none of those that it computes with.*Keras"),
        ("HalfKeras", "kept as an attribute.*also with .*kernel:0, .*bias:0.*Keras"),
        ("Lazy", "made in the constructor.*also with late"),
        ("Double", r"trainable variables of float32, saw wide:0 float64\[3, 4\]: make it with"),
        ("Whole", r"trainable variables of float32, saw counts:0 int32\[2\]: .*trainable=False"),
        ("no_rng", r"wanted to call it with \(observation spec, rng\): too many"),
        ("missing", "wanted a function or class 'missing' in .*own_networks.py, saw None"),
        ("number", "wanted a function or class 'number' in .*own_networks.py, saw 3"),
    ],
)
def test_mistakes_are_told_with_what_is_wanted(name: str, words: str) -> None:
    """Case 25: both specs, and what to do about it."""
    with pytest.raises(ValueError, match=f"--network=own_networks:{name}: .*{words}"):
        make(f"own_networks:{name}")


def test_a_missing_module_is_told() -> None:
    with pytest.raises(ValueError, match="--network=no_such:Thing: found no module no_such; start"):
        make("no_such:Thing")


def test_the_documented_file_trains_2000_steps(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25: environment and network in one file of at most 40 lines."""
    assert len((EXAMPLES / "lights.py").read_text().splitlines()) <= 40
    monkeypatch.syspath_prepend(str(EXAMPLES))
    learner = make_learner(
        tmp_path / "run",
        "lights:Lights",
        network="lights:make_network",
        total_environment_frames=2000,
        learning_rate=5e-3,
    )
    weights = [v.numpy() for v in learner.optimizer._variables]
    with running(learner) as run:
        run.join(60.0)
        assert run.failure is None
        assert not run.actor_failures
    assert learner.num_frames >= 2000
    assert any(v.shape == (6, 32) for v in learner.optimizer._variables)
    for before, after in zip(weights, learner.optimizer._variables, strict=True):
        assert np.any(before != after)
    returns = read_scalars(tmp_path / "run")["episode/return"]
    assert len(returns) >= 1


def test_actors_of_the_documented_file_do_without_tensorflow(tmp_path: pathlib.Path) -> None:
    """A real actor process of that very file, which plays for a learner until that is done."""
    server = make_server(
        f"unix:{tmp_path}/socket",
        step_layout(ArraySpec((6,), "uint8")),
        action_layout(ArraySpec((), "int32", 0, 5)),
        json.dumps(
            {
                "environment": "lights:Lights",
                "environment_config": {},
                "seed": 1,
                "num_envs": 2,
                "env_batch_size": 2,
            }
        ),
        num_envs=2,
        batch_size=2,
        batch_timeout_secs=0.05,
    )
    program = (
        "import sys; from seed_rl.__main__ import main; "
        f"code = main(['--run_mode=actor', '--server_address=unix:{tmp_path}/socket']); "
        "heavy = {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy or 'lights' not in sys.modules else code)"
    )
    actor = subprocess.Popen(
        [sys.executable, "-c", program], cwd=EXAMPLES, stderr=subprocess.PIPE, text=True
    )
    try:
        num_rows, until = 0, time.monotonic() + 60
        while num_rows < 40:
            assert time.monotonic() < until
            batch = server.next_batch(0.2)
            if batch is not None:
                num_rows += batch.size
                server.reply(batch, [np.zeros(batch.size, np.int32)])
    finally:
        server.close(finished=True)
        _, errors = actor.communicate(timeout=30)
    assert actor.returncode == 0, errors


@pytest.mark.parametrize(
    ("lights", "seen"),
    [
        (np.zeros(5, np.int8), r"uint8\[6\] in \[0, 1\].*int8\[5\]"),
        (np.full(6, 0.5), r"uint8\[6\] in \[0, 1\].*float64\[6\] from 0.5"),
    ],
)
def test_the_documented_file_with_a_mistake(
    lights: np.ndarray, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25: a wrong shape or dtype is told with both specs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import lights as module  # type: ignore[import-not-found]

    monkeypatch.setattr(module.Lights, "reset", lambda self, **_: (lights, {}))
    family = registry.load("lights:Lights")
    with pytest.raises(ValueError, match=f"environment 7: observation: wanted {seen}"):
        family.make(family.Config(), [7], 0).reset()


def test_the_weights_are_drawn_from_the_seed() -> None:
    one, same = (make("own_networks:Base").trainable_variables[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert np.any(tf.abs(one) > 0)
