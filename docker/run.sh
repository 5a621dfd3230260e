#!/usr/bin/env bash
# Trains in a container on this machine: run_local.sh --docker. Builds the image where it is missing.
# SEED_RL_IMAGE names another image. docs/docker.md tells more.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: docker/run.sh [--gpu] GAME AGENT NUM_ACTORS [ENVS_PER_ACTOR] [--flags]"
device=cpu
if [[ ${1:-} == --gpu ]]; then
    device=gpu
    shift
fi
words=()
while (($# > 0)) && [[ $1 != -* ]]; do
    words+=("$1")
    shift
done
((${#words[@]} >= 3 && ${#words[@]} <= 4)) ||
    refuse "wanted GAME AGENT NUM_ACTORS [ENVS_PER_ACTOR] before the flags, saw ${words[*]:-nothing}"
game="${words[0]}"
require_docker

# What has no image of its own needs no packages of its own.
target=atari
[[ " ${targets[*]} " != *" $game "* ]] || target="$game"
[[ $game != gym ]] || target=mujoco

# Logs are kept where they are without Docker, and belong to whoever starts it. Paths are the same
# inside and outside: those that the launcher shows are right here, too.
if [[ $game == *:* ]]; then
    [[ ! -e seed_rl/__init__.py ]] ||
        fail "$PWD has a seed_rl of its own, which hides the image's; start from the folder of ${game%%:*}"
    place=(--workdir "$PWD" --volume "$PWD:$PWD")
else
    place=(--workdir "$PWD" --volume "$PWD/logs:$PWD/logs")
fi
mkdir -p logs # or Docker makes it, as root
flags=()
while (($# > 0)); do
    if [[ $1 =~ ^--?logdir$ && -n ${2:-} ]]; then
        set -- "--logdir=$2" "${@:3}"
    fi
    if [[ $1 =~ ^--?logdir=(.+)$ && $1 != *://* ]]; then
        logdir="${BASH_REMATCH[1]}"
        mkdir -p "$logdir"
        logdir="$(cd "$logdir" && pwd)"
        place+=(--volume "$logdir:$logdir")
        flags+=("--logdir=$logdir")
    else
        flags+=("$1")
    fi
    shift
done

image="${SEED_RL_IMAGE:-seed_rl:$target-$device}"
if [[ -z ${SEED_RL_IMAGE:-} ]] && ! docker image inspect "$image" >/dev/null 2>&1; then
    echo "seed_rl: building the image $image; the first time, this takes some minutes"
    "$root/docker/build.sh" "$target" "$device"
fi
gpus=()
[[ $device == cpu ]] || gpus=(--gpus all)
# What the launcher shows for watching a run; it adds the --logdir.
tensorboard="docker run --rm --init --publish 127.0.0.1:6006:6006$(printf ' %q' "${place[@]}" "$image")"
tensorboard+=" tensorboard.main --host 0.0.0.0"
# --init: whoever is process 1 inherits orphans. Shared memory is for gymnasium's own subprocesses.
# Without a terminal of its own, the container gets Ctrl-C and SIGTERM from the client.
exec docker run --rm --init --user "$(id -u):$(id -g)" --shm-size=1g "${gpus[@]}" "${place[@]}" \
    --env "SEED_RL_TENSORBOARD=$tensorboard" "$image" seed_rl.launcher "${words[@]}" "${flags[@]}"
