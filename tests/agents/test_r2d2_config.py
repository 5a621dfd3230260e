"""Options, presets and the exploration of R2D2, none of which needs TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from seed_rl.agents import r2d2
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.agents.r2d2.exploration import epsilons


@pytest.mark.parametrize(
    "options",
    [
        {"unroll_length": 0},
        {"burn_in": -1},
        {"n_steps": 0},
        {"batch_size": 0},
        {"discounting": 1.01},
        {"discounting": float("nan")},
        {"update_target_every_n_step": 0},
        {"value_function_rescaling_epsilon": -1e-3},
        {"priority_eta": 1.1},
        {"eval_epsilon": -0.1},
        {"max_abs_reward": -1.0},
        {"network": "resnet"},
        {"lstm_size": -1},
        {"dueling_size": 0},
        {"learning_rate": -1.0},
        {"clip_norm": -1.0},
    ],
)
def test_wrong_options_are_named(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^--{name}=.*: wanted .*; the default is "):
        R2d2Config(**options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"batch_size": 30, "replay_buffer_min_size": 20}, ("batch_size", "min_size")),
        ({"batch_size": 300, "replay_buffer_size": 200}, ("batch_size", "replay_buffer_size")),
        (
            {"replay_buffer_min_size": 300, "replay_buffer_size": 200},
            ("replay_buffer_min_size", "replay_buffer_size"),
        ),
    ],
)
def test_a_replay_that_would_never_give_a_batch_is_refused(
    options: dict[str, int], names: tuple[str, ...]
) -> None:
    """Case 85: minimum below batch, batch or minimum above capacity: no silent wait."""
    with pytest.raises(ValueError) as error:
        R2d2Config(**{"replay_buffer_size": 1000, **options})
    for text in (*names, *map(str, options.values())):
        assert text in str(error.value)


def test_the_paper_s_preset() -> None:
    """The numbers of Kapturowski et al. 2019 and Espeholt et al. 2020 (SEED), appendix A.3."""
    config = R2d2Config(**r2d2.PRESETS["paper"])
    assert (config.unroll_length, config.burn_in, config.n_steps) == (80, 40, 5)
    assert (config.batch_size, config.discounting) == (64, 0.997)
    assert (config.learning_rate, config.adam_epsilon, config.clip_norm) == (1e-4, 1e-3, 80.0)
    assert not config.learning_rate_decay
    assert (config.replay_buffer_size, config.replay_buffer_min_size) == (100_000, 5_000)
    assert config.replay_ratio == 0.75
    assert (config.priority_exponent, config.importance_sampling_exponent) == (0.9, 0.6)
    assert (config.network, config.lstm_size, config.dueling_size) == ("nature", 512, 512)
    assert config.update_target_every_n_step == 2500
    assert config.value_function_rescaling_epsilon == 1e-3
    assert (config.priority_eta, config.eval_epsilon, config.max_abs_reward) == (0.9, 1e-3, 0.0)


@pytest.mark.parametrize("num_envs", [2, 4, 32, 1000])
def test_epsilons_follow_the_law(num_envs: int) -> None:
    """Case 87: 0.4^(1 + 7 i / (M - 1)), which spans at least 1e-3 to 0.4."""
    seen = epsilons(num_envs, 0, 0.5)
    assert seen.dtype == np.float32
    assert seen.shape == (num_envs,)
    for i in range(num_envs):
        assert seen[i] == pytest.approx(0.4 ** (1 + 7 * i / (num_envs - 1)), rel=1e-6)
    assert seen.max() == pytest.approx(0.4)
    assert seen.min() < 1e-3


def test_evaluating_environments_have_their_own_epsilon() -> None:
    """Case 87: it is that of the last ones, and changes none of the others."""
    seen = epsilons(12, 4, 0.25)
    np.testing.assert_array_equal(seen[:8], epsilons(8, 0, 0.0))
    np.testing.assert_array_equal(seen[8:], np.full(4, 0.25, np.float32))
    np.testing.assert_array_equal(epsilons(3, 3, 0.25), np.full(3, 0.25, np.float32))


def test_a_single_environment_explores_most() -> None:
    np.testing.assert_allclose(epsilons(1, 0, 0.0), [0.4], rtol=1e-6)
    np.testing.assert_allclose(epsilons(2, 1, 0.125), [0.4, 0.125], rtol=1e-6)


def test_options_need_no_tensorflow() -> None:
    program = (
        "import sys; from seed_rl.agents import registry; a = registry.load('r2d2');"
        "a.Config(**a.PRESETS['paper']); sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
