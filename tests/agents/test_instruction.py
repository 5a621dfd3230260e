"""The LSTM that reads instructions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.networks import torsos
from seed_rl.agents.networks.instruction import is_instructed
from seed_rl.specs import ArraySpec

FRAME = ArraySpec((72, 96, 3), "uint8", 0, 255)
WORDS = ArraySpec((16,), "int32", 0, 4096)
SPEC = {"frame": FRAME, "instruction": WORDS}


def make(seed: int = 0, precision: str = "float32") -> torsos.Torso:
    return torsos.make("auto", SPEC, np.random.default_rng(seed), precision)


def observe(*instructions: list[int]) -> dict[str, np.ndarray]:
    words = np.zeros((len(instructions), 16), np.int32)
    for row, instruction in zip(words, instructions, strict=True):
        row[: len(instruction)] = instruction
    frames = np.random.default_rng(0).integers(0, 256, (1, 72, 96, 3), np.uint8)
    return {"frame": np.repeat(frames, len(words), 0), "instruction": words}


def read(torso: torsos.Torso, *instructions: list[int]) -> np.ndarray:
    """The features of instructions alone, `[N, 64]`."""
    return torso(observe(*instructions))[:, 256:].numpy()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_features_are_those_of_the_picture_and_of_the_words(precision: str) -> None:
    torso, plain = (
        torsos.make("auto", spec, np.random.default_rng(0), precision) for spec in (SPEC, FRAME)
    )
    seen = observe([], [1, 2])
    features = torso(seen)
    assert features.dtype == tf.float32
    assert features.shape == (2, torso.output_size) == (2, plain.output_size + 64)
    np.testing.assert_array_equal(features[:, :256], plain(seen["frame"]))


def test_every_word_and_their_order_matter_and_padding_does_not() -> None:
    torso = make()
    nothing, one, two, turned, first, last = read(
        torso, [], [5], [5, 9], [9, 5], [1, *range(2, 17)], [*range(1, 16), 4096]
    )
    assert not nothing.any()
    outputs = [one, two, turned, first, last]
    assert all(np.abs(output).max() > 0.02 for output in outputs)
    for i, output in enumerate(outputs):
        assert all(np.abs(output - other).max() > 1e-3 for other in outputs[:i])
    # The reference: a step of the LSTM for each word, and none for the rest.
    lstm, state = torso._lstm, torso._lstm.initial_state(1)
    for word in (5, 9):
        _, state = lstm.step(tf.gather(torso._embedding, [word]), tf.constant([False]), state)
    np.testing.assert_allclose(two, state[0][0], atol=1e-6)


def test_all_parts_learn() -> None:
    torso = make()
    variables = torso.trainable_variables
    assert {"instruction/embedding:0", "lstm/input_kernel:0"} <= {v.name for v in variables}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(torso(observe([3, 4], [7]))))
    gradients = [
        tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, variables)
    ]
    assert all(np.isfinite(gradient).all() and gradient.any() for gradient in gradients)
    embedding = gradients[[v.name for v in variables].index("instruction/embedding:0")]
    assert np.flatnonzero(embedding.any(axis=1)).tolist() == [3, 4, 7]


def test_a_batch_of_unknown_size_can_be_traced() -> None:
    torso = make()
    function = tf.function(
        torso,
        autograph=False,
        input_signature=[
            {
                "frame": tf.TensorSpec((None, *FRAME.shape), tf.uint8),
                "instruction": tf.TensorSpec((None, *WORDS.shape), tf.int32),
            }
        ],
    )
    for seen in (observe([1]), observe([1], [], [2, 3])):
        np.testing.assert_allclose(function(seen), torso(seen), atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        FRAME,
        {"frame": FRAME},
        {"frame": FRAME, "instruction": WORDS, "depth": FRAME},
        {"frame": FRAME, "instruction": ArraySpec((16,), "float32")},
        {"frame": FRAME, "instruction": ArraySpec((16,), "int32")},
        {"frame": FRAME, "instruction": ArraySpec((4, 4), "int32", 0, 9)},
    ],
)
def test_other_observations_are_left_alone(spec: object) -> None:
    assert not is_instructed(spec)
