"""How TensorFlow is told to run functions."""

from __future__ import annotations

import tensorflow as tf

from seed_rl import devices


def test_functions_in_one_thread_take_loops_and_branches() -> None:
    """Networks of users may have them, in inference too."""

    @tf.function(autograph=False, jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (0, x))[1]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([2], tf.float32)])
    def function(x: tf.Tensor) -> tf.Tensor:
        doubled = tf.map_fn(lambda part: part * 2, x)
        return compiled(tf.cond(doubled[0] > 1, lambda: doubled, lambda: -doubled))

    with devices.one_thread():
        concrete = function.get_concrete_function()
        assert concrete(tf.constant([1.0, 2.0])).numpy().tolist() == [16, 32]
        assert concrete(tf.constant([0.0, 2.0])).numpy().tolist() == [0, -32]


def test_machines_without_an_accelerator_are_known() -> None:
    assert devices.is_cpu_only() == (not tf.config.list_physical_devices("GPU"))
