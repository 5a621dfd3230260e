# shellcheck shell=bash
# What build.sh, run.sh and lock.sh share. To be sourced by scripts that set usage.

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/venv.sh"

# shellcheck disable=SC2034
targets=(atari dmlab football mujoco)

# A command line that can't be meant: what was wrong, then how it is typed.
refuse() {
    echo "seed_rl: $1" >&2
    # shellcheck disable=SC2154
    echo "$usage" >&2
    exit 2
}

require_docker() {
    local said
    command -v docker >/dev/null ||
        fail "found no docker; install Docker (docs.docker.com/engine/install), or leave out --docker"
    # The client alone is not enough, and its user must be let in.
    said="$(docker version --format '{{.Server.Version}}' 2>&1)" || fail "docker: ${said##*$'\n'}"
}
