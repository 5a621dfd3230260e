#!/usr/bin/env bash
# V-trace on this level of DMLab-30. Needs an image with your build of DeepMind Lab.
# Usage: gcp/train_dmlab_lasertag_three_opponents_small.sh [flags]
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train_dmlab --game=lasertag_three_opponents_small "$@"
