"""Joint actions are their parts, independently of each other."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import distributions, specs
from seed_rl.distributions import Categorical, Joint, TanhNormal
from seed_rl.specs import ArraySpec, Nest

SEED = tf.constant([3, 4], tf.int32)


def choice(num_choices: int, dtype: str = "int32") -> ArraySpec:
    return ArraySpec((), dtype, 0, num_choices - 1)


MULTI_DISCRETE = (choice(2), choice(4), choice(3))
MIXED = {
    "steer": ArraySpec((2,), "float32", -1, 1),
    "gear": choice(5, "int64"),
    "buttons": (choice(2, "uint8"), choice(3)),
    "gas": ArraySpec((), "float32", -1, 1),
}


def make(spec: Nest, *leading: int) -> tuple[Joint, tf.Tensor, tf.Tensor]:
    distribution = distributions.for_action(spec)
    assert isinstance(distribution, Joint)
    shape = (*leading, distribution.num_parameters)
    rng = np.random.default_rng(0)
    one, other = (tf.constant(rng.normal(0, 2, shape).astype(np.float32)) for _ in range(2))
    return distribution, one, other


def test_parts_follow_the_flattened_nest() -> None:
    distribution, _, _ = make(MIXED)
    assert distribution.parts == (
        Categorical(2, "uint8"),
        Categorical(3, "int32"),
        TanhNormal(()),
        Categorical(5, "int64"),
        TanhNormal((2,)),
    )
    assert distribution.num_parameters == 2 + 3 + 2 + 5 + 4
    assert distribution.num_choices == 2 + 3 + 5


@pytest.mark.parametrize("spec", [MULTI_DISCRETE, MIXED])
def test_log_prob_entropy_and_kl_are_sums_of_the_parts(spec: Nest) -> None:
    """Case 59."""
    distribution, one, other = make(spec, 6, 5)
    action = distribution.sample(one, SEED)
    sizes = [part.num_parameters for part in distribution.parts]
    parts = list(
        zip(
            distribution.parts,
            tf.split(one, sizes, axis=-1),
            tf.split(other, sizes, axis=-1),
            specs.flatten(action),
            strict=True,
        )
    )
    log_prob = sum(part.log_prob(own, leaf) for part, own, _, leaf in parts)
    entropy = sum(part.entropy(own) for part, own, _, _ in parts)
    kl = sum(part.kl(own, others) for part, own, others, _ in parts)
    np.testing.assert_allclose(distribution.log_prob(one, action), log_prob, rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(one), entropy, rtol=1e-5)
    np.testing.assert_allclose(distribution.kl(one, other), kl, rtol=1e-5)


def test_probabilities_of_all_joint_actions_add_up_to_1() -> None:
    distribution, one, _ = make(MULTI_DISCRETE, 1)
    actions = tuple(
        tf.constant(axis.reshape(-1)) for axis in np.meshgrid(range(2), range(4), range(3))
    )
    probabilities = np.exp(distribution.log_prob(tf.tile(one, [24, 1]), actions))
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
    entropy = -np.sum(probabilities * np.log(probabilities))
    assert float(distribution.entropy(one)[0]) == pytest.approx(entropy, abs=1e-5)


@pytest.mark.parametrize("spec", [MULTI_DISCRETE, MIXED])
def test_samples_and_modes_have_the_structure_of_the_spec(spec: Nest) -> None:
    distribution, one, _ = make(spec, 7)
    for action in (distribution.sample(one, SEED), distribution.mode(one)):
        assert specs.paths(action) == specs.paths(spec)
        for leaf, leaf_spec in zip(specs.flatten(action), specs.flatten(spec), strict=True):
            assert leaf.dtype.name == leaf_spec.dtype
            assert leaf.shape == (7, *leaf_spec.shape)
            assert (leaf.numpy() <= leaf_spec.maximum).all()


def test_parts_are_drawn_independently() -> None:
    """Equal parts with one seed for all would always agree."""
    distribution, _, _ = make((choice(3), choice(3), *[ArraySpec((), "float32", -1, 1)] * 2))
    parameters = tf.zeros([20_000, distribution.num_parameters])
    sample = distribution.sample(parameters, SEED)
    counts = np.histogram2d(*(leaf.numpy() for leaf in sample[:2]), bins=3)[0]
    np.testing.assert_allclose(counts / 20_000, 1 / 9, atol=0.01)
    correlations = np.corrcoef([leaf.numpy() for leaf in sample])
    assert np.abs(correlations - np.eye(4)).max() < 0.03
    for leaf, same in zip(sample, distribution.sample(parameters, SEED), strict=True):
        np.testing.assert_array_equal(leaf, same)


def test_a_mask_is_that_of_the_choices_side_by_side() -> None:
    distribution, one, _ = make(MIXED, 500)
    mask = np.concatenate([[1, 0], [0, 1, 1], [0, 0, 1, 0, 0]])  # buttons/0, buttons/1, gear
    masked = distribution.masked(one, tf.tile(mask.astype(np.uint8)[tf.newaxis], [500, 1]))
    for action in (distribution.sample(masked, SEED), distribution.mode(masked)):
        assert (action["buttons"][0].numpy() == 0).all()
        assert set(action["buttons"][1].numpy()) == {1, 2}
        assert (action["gear"].numpy() == 2).all()
    plain = distribution.sample(one, SEED)
    np.testing.assert_array_equal(plain["steer"], distribution.sample(masked, SEED)["steer"])
    # Only buttons/1 has a choice left.
    only = distributions.for_action({"b": choice(2), "x": MIXED["gas"], "y": MIXED["steer"]})
    rest = tf.concat([masked[:, 3:7], masked[:, 12:]], axis=-1)
    np.testing.assert_allclose(
        distribution.entropy(masked), only.entropy(rest), rtol=1e-4, atol=1e-5
    )
    # Of one of several choices a mask of zeros, too, masks nothing.
    zeros = tf.zeros([500, 10], tf.uint8)
    np.testing.assert_array_equal(distribution.masked(one, zeros), one)
