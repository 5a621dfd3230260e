#!/usr/bin/env bash
# V-trace with our own defaults on one of gymnasium's robots, without an accelerator.
# Usage: gcp/train_mujoco.sh [--game=Hopper-v5] [flags]
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train mujoco --environment=mujoco --agent=vtrace --total_environment_frames=1000000000 \
    --workers=4 --actors_per_worker=8 --env_batch_size=4 --actor_machine=e2-standard-8 \
    --learner_machine=e2-standard-16 --accelerator=none --frames_per_second=20000 "$@"
