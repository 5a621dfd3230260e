#!/usr/bin/env python3
"""Measures central inference: microseconds a row, for networks at several batch sizes.

All that the learner does with a batch of rows but for the transport is timed: stacking frames,
recurrent states, the network, sampling. For example:

    python scripts/bench_inference.py nature nature:single nature+lstm256 --batch_sizes=16,64
"""

from __future__ import annotations

import functools
from typing import Any

import bench_tools
import numpy as np

from seed_rl.agents import registry
from seed_rl.frame_stack import stacked_spec
from seed_rl.inference import Inference
from seed_rl.specs import EnvironmentSpecs
from seed_rl.types import StepType


def make_call(
    variant: bench_tools.Variant, environment: EnvironmentSpecs, num_frames: int, batch_size: int
) -> Any:
    stacked = EnvironmentSpecs(
        stacked_spec(environment.observation, num_frames), environment.action
    )
    agent = registry.load("vtrace").make(variant.config(), stacked, 0)
    rng = np.random.default_rng(0)
    env_ids = np.arange(batch_size, dtype=np.int32)
    step_type = np.full(batch_size, StepType.MID, np.uint8)
    reward = np.ones(batch_size, np.float32)
    shape = (batch_size, *environment.observation.shape)
    frames = rng.integers(0, 256, shape, np.uint8)
    with variant.scope():
        inference = Inference(agent, environment, batch_size, batch_size, num_frames)

    def call() -> None:
        with variant.scope():
            inference(env_ids, step_type, reward, [frames], batch_size)

    return call


def main() -> None:
    parser = bench_tools.parser(__doc__.splitlines()[0], ["nature", "shallow", "shallow+lstm256"])
    parser.add_argument("--batch_sizes", default="1,16,64", help="Rows in a call.")
    arguments = parser.parse_args()
    environment, num_frames = bench_tools.start(arguments)
    rows: list[dict[str, Any]] = []
    for batch_size in map(int, arguments.batch_sizes.split(",")):
        make = functools.partial(
            make_call, environment=environment, num_frames=num_frames, batch_size=batch_size
        )
        calls = {variant.name: make(variant) for variant in arguments.variants}
        results = bench_tools.compare(calls, arguments.seconds, batch_size)
        rows += [{"batch_size": batch_size, **result} for result in results]
    bench_tools.report(arguments, "inference, per row", rows)


if __name__ == "__main__":
    main()
