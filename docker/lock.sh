#!/usr/bin/env bash
# Writes docker/locks/*.txt: the versions of all packages of each image, as pip chooses them today.
# Nothing is installed. PYTHON names a Python of the version that the images have.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: docker/lock.sh [build | TARGET-cpu | TARGET-gpu]...; all by default"
for name in "$@"; do
    [[ $name == build || ($name =~ -(cpu|gpu)$ && " ${targets[*]} " == *" ${name%-*} "*) ]] ||
        refuse "saw $name, wanted build, or one of ${targets[*]} with -cpu or -gpu"
done
names=" $* "
python="${PYTHON:-python3}"
version=3.11
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" ||
    fail "the images have Python $version; let PYTHON name one, saw $("$python" --version)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"

# lock NAME REQUIREMENT...: resolves and writes one of them.
lock() {
    local name="$1"
    shift
    [[ $names == "  " || $names == *" $name "* ]] || return 0
    echo "seed_rl: docker/locks/$name.txt"
    SEED_RL_NATIVE=0 "$scratch/venv/bin/python" -m pip install -q --disable-pip-version-check \
        --dry-run --ignore-installed --report "$scratch/report.json" "$@" ||
        fail "pip can't resolve $*"
    # gfootball is built by scripts/install_football.sh, seed_rl by the Dockerfile.
    "$scratch/venv/bin/python" - "$scratch/report.json" >"$scratch/lock.txt" <<'CODE'
import json, sys
print("# Made by docker/lock.sh.")
packages = [package["metadata"] for package in json.load(open(sys.argv[1]))["install"]]
for package in sorted(packages, key=lambda package: package["name"].lower()):
    if package["name"] not in ("gfootball", "seed_rl"):
        print(f"{package['name']}=={package['version']}")
CODE
    mv "$scratch/lock.txt" "$root/docker/locks/$name.txt"
}

mapfile -t football < <("$root/scripts/install_football.sh" --requirements)
mapfile -t build < <("$scratch/venv/bin/python" -c "
import tomllib
print(*tomllib.load(open('$root/pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')")
lock build "${build[@]}" wheel
for device in cpu gpu; do
    gpu=""
    [[ $device == cpu ]] || gpu=gpu
    lock "atari-$device" "${root}[atari${gpu:+,gpu}]"
    lock "dmlab-$device" "${root}${gpu:+[gpu]}"
    lock "football-$device" "${root}${gpu:+[gpu]}" "${football[@]}"
    lock "mujoco-$device" "${root}[mujoco${gpu:+,gpu}]"
done
