"""What TensorBoard is given to show."""

import math

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from seed_rl.summaries import SummaryWriter


def test_any_float_can_be_shown(tmp_path):
    """Also the sum of rewards that each fit into float32, and together don't."""
    writer = SummaryWriter(str(tmp_path))
    writer.write({"return": 6e38, "loss": 0.5}, 10)
    writer.write({"return": -6e38, "loss": math.nan}, 20)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    shown = {
        tag: [
            (event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)
        ]
        for tag in ("return", "loss")
    }
    assert shown["return"] == [(10, math.inf), (20, -math.inf)]
    assert shown["loss"][0] == (10, 0.5)
    assert math.isnan(shown["loss"][1][1])


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch, caplog):
    """It is told once, and points are written again when there is room."""

    def fail(*_args, **_options):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    writer = SummaryWriter(str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(tf.summary, "scalar", fail)
        writer.write({"loss": 0.5}, 10)
        writer.write({"loss": 0.5}, 20)
    assert caplog.text.count("No space left on device") == 1
    writer.write({"loss": 0.25}, 30)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Tensors("loss")] == [30]
