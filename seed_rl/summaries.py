"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf


class SummaryWriter:
    """Writes scalars for TensorBoard against the number of environment frames."""

    def __init__(self, logdir: str) -> None:
        self._writer = tf.summary.create_file_writer(logdir)

    def write(self, scalars: Mapping[str, float], frames: int) -> None:
        # Beyond float32, as in event files, is infinite: the sum of a game's rewards may be.
        with self._writer.as_default(), np.errstate(over="ignore"):
            for name, value in scalars.items():
                tf.summary.scalar(name, np.float32(value), step=frames)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
