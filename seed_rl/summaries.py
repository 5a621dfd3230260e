"""TensorBoard event files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

_logger = logging.getLogger(__name__)


class SummaryWriter:
    """Writes scalars for TensorBoard against the number of environment frames.

    Where that fails, as on a full disk, an error is logged: curves are not worth a training.
    """

    def __init__(self, logdir: str) -> None:
        self._writer = tf.summary.create_file_writer(logdir)
        self._complained = False

    def write(self, scalars: Mapping[str, float], frames: int) -> None:
        try:
            # Beyond float32, as in event files, is infinite: the sum of a game's rewards may be.
            with self._writer.as_default(), np.errstate(over="ignore"):
                for name, value in scalars.items():
                    tf.summary.scalar(name, np.float32(value), step=frames)
            self._writer.flush()
            self._complained = False
        except (OSError, tf.errors.OpError) as error:
            if not self._complained:
                _logger.error("could not write the points for TensorBoard, going on: %s", error)
            self._complained = True

    def close(self) -> None:
        with contextlib.suppress(OSError, tf.errors.OpError):
            self._writer.close()
