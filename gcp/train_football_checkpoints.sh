#!/usr/bin/env bash
# V-trace on Google Research Football with the rewards 'checkpoints'.
# Usage: gcp/train_football_checkpoints.sh [flags]
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train_football --reward_experiment=scoring,checkpoints "$@"
