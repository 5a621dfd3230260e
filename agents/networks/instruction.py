"""Reads an instruction in words, beside a torso that sees the picture."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from seed_rl.agents.networks.lstm import Lstm
from seed_rl.specs import ArraySpec, Nest, is_choice

_EMBEDDING_SIZE, _LSTM_SIZE = 20, 64


def is_instructed(observation: Nest) -> bool:
    """Whether it is a dict of `frame` and `instruction`, int32 `[W]`: numbers of words, or 0."""
    if not isinstance(observation, dict) or observation.keys() != {"frame", "instruction"}:
        return False
    words = observation["instruction"]
    return (
        isinstance(words, ArraySpec)
        and len(words.shape) == 1
        and is_choice(ArraySpec((), words.dtype, words.minimum, words.maximum))
    )


class InstructedTorso(tf.Module):
    """A torso's features of `frame`, and an LSTM's output after the last word of `instruction`.

    As in figure 3 of Espeholt et al. 2018: words are embedded in 20 numbers, the LSTM has 64
    units. The number 0 stands for no word; without any, its output is zeros.
    """

    def __init__(self, torso: tf.Module, words: ArraySpec, rng: np.random.Generator) -> None:
        super().__init__(name="instructed")
        self._torso = torso
        self._num_words = words.shape[0]
        num_numbers = ArraySpec((), words.dtype, words.minimum, words.maximum).num_choices
        self._embedding = tf.Variable(
            rng.standard_normal((num_numbers, _EMBEDDING_SIZE), np.float32),
            name="instruction/embedding",
        )
        self._lstm = Lstm(_EMBEDDING_SIZE, _LSTM_SIZE, rng)
        self.output_size = torso.output_size + _LSTM_SIZE

    def __call__(self, observation: Nest) -> tf.Tensor:
        frame, words = observation["frame"], tf.convert_to_tensor(observation["instruction"])
        hidden, cell = self._lstm.initial_state(tf.shape(words)[0])
        not_first = tf.zeros(tf.shape(words)[:1], tf.bool)
        for i in range(self._num_words):
            is_word = words[:, i, tf.newaxis] > 0
            inputs = tf.gather(self._embedding, words[:, i])
            _, (next_hidden, next_cell) = self._lstm.step(inputs, not_first, (hidden, cell))
            hidden = tf.where(is_word, next_hidden, hidden)
            cell = tf.where(is_word, next_cell, cell)
        return tf.concat([self._torso(frame), hidden], axis=-1)
