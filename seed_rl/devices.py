"""Sets TensorFlow up for the machine. Call before anything computes."""

from __future__ import annotations

import os

import tensorflow as tf


def configure_threads(intra_op: int, inter_op: int) -> None:
    """Threads within an operation and between operations; -1 chooses for this machine.

    On two cores or fewer, inference and training are the parallelism, and threads within an
    operation only get in their way.
    """
    small = (os.cpu_count() or 1) <= 2
    if intra_op < 0:
        intra_op = 1 if small else 0
    if inter_op < 0:
        inter_op = 2 if small else 0
    tf.config.threading.set_intra_op_parallelism_threads(intra_op)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
