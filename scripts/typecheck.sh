#!/usr/bin/env bash
# Type-checks seed_rl as it is installed. mypy does not follow editable installs, so the four
# folders are laid out as one package by links first.
# Usage: scripts/typecheck.sh [mypy's arguments]. PYTHON chooses the interpreter.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
# A path counts from where it was typed.
[[ $python != */* ]] || python="$(cd "$(dirname "$python")" && pwd)/$(basename "$python")"
# Out of the checkout's root, where `import grpc` and `import seed_rl` would find the bare folders.
tree="$root/build/types"

rm -rf "$tree"
mkdir -p "$tree/seed_rl"
ln -s "$root"/seed_rl/{*.py,py.typed,distributions,replay} "$tree/seed_rl/"
ln -s "$root/agents" "$tree/seed_rl/agents"
ln -s "$root/envs" "$tree/seed_rl/envs"
ln -s "$root/grpc/python" "$tree/seed_rl/grpc"

cd "$tree"
exec "$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" \
    -p seed_rl "$@"
