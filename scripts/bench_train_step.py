#!/usr/bin/env python3
"""Measures an agent's training step: microseconds a step and a transition, for networks.

The copy of the batch to the device, loss, gradients and update are timed. For example:

    python scripts/bench_train_step.py nature nature:single --unroll_length=20 --train_batch=32
    python scripts/bench_train_step.py nature+lstm512 --agent=r2d2 --unroll_length=80 \
        --train_batch=16
"""

from __future__ import annotations

import functools
from typing import Any

import bench_tools
import numpy as np

from seed_rl import queued, replay_form, specs
from seed_rl.agents import registry
from seed_rl.experience import HostBatch
from seed_rl.frame_stack import stacked_spec
from seed_rl.inference import Inference
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.training import Trainer


def random_leaf(rng: np.random.Generator, spec: ArraySpec, *leading: int) -> np.ndarray:
    shape = (*leading, *spec.shape)
    if np.dtype(spec.dtype).kind == "f":
        return rng.standard_normal(shape).astype(spec.dtype)
    maximum = 1 if spec.maximum is None else int(spec.maximum)  # a step type: FIRST or MID
    return rng.integers(0, maximum + 1, shape).astype(spec.dtype)


def make_call(
    variant: bench_tools.Variant,
    agent_name: str,
    environment: EnvironmentSpecs,
    num_frames: int,
    unroll_length: int,
    batch_size: int,
) -> Any:
    stacked = EnvironmentSpecs(
        stacked_spec(environment.observation, num_frames), environment.action
    )
    config = variant.config(agent_name, unroll_length=unroll_length, batch_size=batch_size)
    agent = registry.load(agent_name).make(config, stacked, 0)
    rng = np.random.default_rng(0)
    with variant.scope():
        inference = Inference(agent, environment, batch_size, batch_size, num_frames)
        optimizer = Optimizer(config, list(agent.trainable_variables), 1_000_000)
        inferred = inference.step_specs, inference.state_specs
        if agent.replay is None:
            form = queued.form(unroll_length, *inferred)
        else:
            form = replay_form.form(
                unroll_length, agent.burn_in, environment.observation, num_frames, *inferred
            )
        trainer = Trainer(agent, optimizer, batch_size, form)
    batch = HostBatch(
        [random_leaf(rng, s, form.num_rows, batch_size) for s in specs.flatten(form.steps)],
        [random_leaf(rng, s, batch_size) for s in specs.flatten(form.state)],
        np.zeros(batch_size, np.int64),
        np.arange(batch_size),
        unroll_length * batch_size,
        np.ones(batch_size, np.float32) if form.has_weights else None,
    )

    def call() -> None:
        with variant.scope():
            trainer(trainer.to_device(batch))

    return call


def main() -> None:
    parser = bench_tools.parser(__doc__.splitlines()[0], ["nature", "shallow", "shallow+lstm256"])
    parser.add_argument("--agent", default="vtrace", help="Whose training step.")
    parser.add_argument("--unroll_length", type=int, default=20, help="Transitions in an unroll.")
    parser.add_argument("--train_batch", type=int, default=32, help="Unrolls in a batch.")
    arguments = parser.parse_args()
    environment, num_frames = bench_tools.start(arguments)
    make = functools.partial(
        make_call,
        agent_name=arguments.agent,
        environment=environment,
        num_frames=num_frames,
        unroll_length=arguments.unroll_length,
        batch_size=arguments.train_batch,
    )
    calls = {variant.name: make(variant) for variant in arguments.variants}
    rows = bench_tools.compare(calls, arguments.seconds, 1)
    transitions = arguments.unroll_length * arguments.train_batch
    for row in rows:
        row["cpu_us_per_transition"] = round(float(row["cpu_us"]) / transitions, 1)
    bench_tools.report(
        arguments,
        f"train step of {arguments.agent}, {arguments.unroll_length}x{arguments.train_batch}",
        rows,
    )


if __name__ == "__main__":
    main()
