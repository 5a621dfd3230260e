# shellcheck shell=bash
# What the scripts train_*.sh share. To be sourced.
set -euo pipefail

# train TARGET [flags]: trains on Vertex AI with the image TARGET; train.py says which flags.
train() {
    exec python3 "$(dirname "${BASH_SOURCE[0]}")/train.py" "$0" "$1" --log_secs=60 "${@:2}"
}

# V-trace on DMLab-30 as in the paper: Espeholt et al. 2020, https://arxiv.org/abs/1910.06591.
# Machines, frames and what else it leaves open are our choice; --frames_per_second is a guess.
train_dmlab() {
    train dmlab --environment=dmlab --agent=vtrace --preset=paper_dmlab \
        --inference_batch_size=64 --total_environment_frames=1000000000 \
        --workers=16 --actors_per_worker=16 --env_batch_size=1 --actor_machine=e2-standard-16 \
        --learner_machine=g2-standard-16 --accelerator=NVIDIA_L4 --frames_per_second=20000 "$@"
}

# V-trace on Google Research Football, of which the same is true.
train_football() {
    train football --environment=football --agent=vtrace --preset=paper_football \
        --game=11_vs_11_hard_stochastic --total_environment_frames=500000000 \
        --workers=16 --actors_per_worker=16 --env_batch_size=1 --actor_machine=e2-standard-16 \
        --learner_machine=g2-standard-16 --accelerator=NVIDIA_L4 --frames_per_second=15000 "$@"
}
