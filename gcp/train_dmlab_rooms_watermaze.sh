#!/usr/bin/env bash
# V-trace on this level of DMLab-30. Needs an image with your build of DeepMind Lab.
# Usage: gcp/train_dmlab_rooms_watermaze.sh [flags]
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train_dmlab --game=rooms_watermaze "$@"
