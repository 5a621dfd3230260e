#!/usr/bin/env bash
# Installs what is needed, and checks and tests the checkout.
# Usage: scripts/test.sh [pytest's arguments], such as tests/seed_rl -k launcher, or -m slow.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
ensure_venv atari mujoco test dev
cd "$root"
scripts/install_atari_py.sh || echo "seed_rl: the tests of atari-py will be skipped"

"$venv_python" -m ruff check
"$venv_python" -m ruff format --check
PYTHON="$venv_python" scripts/typecheck.sh
exec "$venv_python" -m pytest "$@"
