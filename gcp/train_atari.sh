#!/usr/bin/env bash
# R2D2 on Atari as in the paper: Espeholt et al. 2020, https://arxiv.org/abs/1910.06591, appendix A.3.
# The replay takes some 60 GB of the learner. Usage: gcp/train_atari.sh [--game=Breakout] [flags]
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train atari --environment=atari --agent=r2d2 --preset=paper \
    --inference_batch_size=64 --total_environment_frames=10000000000 \
    --workers=32 --actors_per_worker=20 --env_batch_size=1 --num_eval_envs=30 \
    --learner_machine=g2-standard-32 --accelerator=NVIDIA_L4 --actor_machine=e2-standard-8 \
    --frames_per_second=40000 "$@"
