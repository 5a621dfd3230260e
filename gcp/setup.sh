#!/usr/bin/env bash
# Prepares a project of Google Cloud for gcp/train_*.sh: enables what they need, makes the bucket
# and the repository of images. What is there already is left as it is.
# Usage: gcp/setup.sh [--project=] [--region=] [--bucket=] [--dry_run]
set -euo pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$@"
