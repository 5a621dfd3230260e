#!/usr/bin/env bash
# Trains on this machine: makes a virtual environment, installs seed_rl into it, and starts a
# learner and its actors. ./run_local.sh --help tells more; try ./run_local.sh atari vtrace 2 16
# With --docker or --docker=gpu it does so in a container.
set -euo pipefail
# Nothing here asks anything, and a closed stdin would lend its number to the next file opened.
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/scripts/venv.sh"

docker=""
words=()
for word in "$@"; do
    case "$word" in
        --docker) docker=cpu ;;
        --docker=*) docker="${word#*=}" docker="${docker:-nothing}" ;;
        *) words+=("$word") ;;
    esac
done
set -- "${words[@]}"

# Help and a wrong number of words need no installation to be answered.
asks_help=""
for word in "$@"; do
    [[ $word == -h || $word == -help || $word == --help ]] && asks_help=yes
done
if [[ -n $docker && -z $asks_help ]]; then
    case "$docker" in
        cpu) exec "$root/docker/run.sh" "$@" ;;
        gpu) exec "$root/docker/run.sh" --gpu "$@" ;;
        *)
            echo "seed_rl: saw $docker after --docker=, wanted --docker, --docker=cpu or --docker=gpu" >&2
            exit 2
            ;;
    esac
fi
num_words=0
for word in "$@"; do
    [[ $word == -* ]] && break
    num_words=$((num_words + 1))
done
if [[ -n $asks_help || $num_words -lt 3 || $num_words -gt 4 ]]; then
    find_python
    PYTHONPATH="$root" exec "$python" -m seed_rl.launcher "$@"
fi

# shellcheck disable=SC2046
ensure_venv $(extras_of "$1")
if [[ $1 == football ]]; then
    PYTHON="$venv_python" "$root/scripts/install_football.sh"
fi
exec "$venv_python" -m seed_rl.launcher "$@"
