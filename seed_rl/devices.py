"""Starts TensorFlow on this machine. Call it before anything else imports TensorFlow."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

_logger = logging.getLogger(__name__)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def start_tensorflow(intra_op_threads: int = -1, inter_op_threads: int = -1) -> None:
    """Imports TensorFlow, sets its threads and finds its devices.

    Threads within an operation and between operations: -1 chooses for this machine. On two cores
    or fewer, inference and training are the parallelism, and threads within an operation only get
    in their way; of three between operations, training takes two and leaves one to inference.

    TensorFlow's C++ code greets with a page of notes that no log level silences. One line of ours
    stands for them, unless TF_CPP_MIN_LOG_LEVEL is set or the start fails. Later notes, such as
    those of its compiler, that level does silence.
    """
    greets = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, "1")
    small = (os.cpu_count() or 1) <= 2
    with contextlib.nullcontext() if greets else _without_greeting():
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(
            (1 if small else 0) if intra_op_threads < 0 else intra_op_threads
        )
        tf.config.threading.set_inter_op_parallelism_threads(
            (3 if small else 0) if inter_op_threads < 0 else inter_op_threads
        )
        devices = tf.config.list_logical_devices()
    # Or the collector would go through all of TensorFlow's objects again and again, and at the end
    # of the program, which takes seconds on a busy machine.
    gc.freeze()
    names = ", ".join(device.name.removeprefix("/device:") for device in devices)
    _logger.info("TensorFlow %s on %s", tf.__version__, names)


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except BaseException:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def is_cpu_only() -> bool:
    """Whether TensorFlow has found no accelerator."""
    import tensorflow as tf

    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def one_thread() -> contextlib.AbstractContextManager[None]:
    """In here, functions are traced and called such that each runs in one thread from end to end.

    Both have to happen in here. TensorFlow has no public name for this.
    """
    from tensorflow.python.eager import context

    manager: contextlib.AbstractContextManager[None] = context.function_executor_type(
        "SINGLE_THREADED_EXECUTOR"
    )
    return manager
