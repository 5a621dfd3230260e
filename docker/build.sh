#!/usr/bin/env bash
# Builds an image of seed_rl; docs/docker.md tells more.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: docker/build.sh atari|dmlab|football|mujoco [cpu|gpu] [--tag=IMAGE] [--push]"
target=""
device=""
tag=""
push=""
for word in "$@"; do
    case "$word" in
        -h | --help)
            echo "$usage"
            exit
            ;;
        --tag=?*) tag="${word#*=}" ;;
        --push) push=yes ;;
        -*) refuse "saw $word, wanted --tag=IMAGE or --push" ;;
        *)
            if [[ -z $target ]]; then
                target="$word"
            elif [[ -z $device ]]; then
                device="$word"
            else
                refuse "saw $word after $target $device"
            fi
            ;;
    esac
done
[[ -n $target ]] || refuse "no target"
[[ " ${targets[*]} " == *" $target "* ]] || refuse "saw target $target, wanted one of: ${targets[*]}"
device="${device:-cpu}"
[[ $device == cpu || $device == gpu ]] || refuse "saw device $device, wanted cpu or gpu"
[[ -z $push || -n $tag ]] || refuse "--push needs --tag=IMAGE, which names the registry"
tag="${tag:-seed_rl:$target-$device}"

if [[ $target == dmlab ]]; then
    shopt -s nullglob
    wheels=("$root"/docker/wheels/*.whl)
    ((${#wheels[@]} == 1)) || fail "found ${#wheels[@]} wheels in docker/wheels; put your own build" \
        "of deepmind_lab there, and nothing else: docs/environments.md tells how it is made"
fi
require_docker
# Without BuildKit, Docker would build the stages of all other targets, too.
DOCKER_BUILDKIT=1 docker build --file "$root/docker/Dockerfile" --target "$target" \
    --build-arg "DEVICE=$device" --tag "$tag" "$root" || fail "docker build of $tag failed"
[[ -z $push ]] || docker push "$tag" ||
    fail "docker push $tag failed; is its registry one that you are logged in to?"
echo "seed_rl: built ${push:+and pushed }$tag"
