#!/usr/bin/env bash
# Installs the emulator of --atari_backend=atari_py, and gym, which it once came with, and gives it
# the ROMs that come with ale-py. What is there already is left as it is.
# Usage: scripts/install_atari_py.sh. SEED_RL_VENV is the virtual environment's folder, by default
# .venv in the checkout; where it is missing, it is made as run_local.sh makes it.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# Builds and installs atari-py, of which there are only sources, from times of an older CMake.
install() {
    local packages="" why="atari-py can't be built"
    command -v g++ >/dev/null || packages="g++"
    command -v make >/dev/null || packages="$packages make"
    if [[ $packages == *g++* ]] || ! finds_header g++ zlib.h; then
        packages="$packages zlib1g-dev"
    fi
    # shellcheck disable=SC2086
    [[ -z $packages ]] || apt_install $packages
    PATH="$(cd "$(dirname "$venv_python")" && pwd):$PATH"
    command -v cmake >/dev/null || "$venv_python" -m pip install -q --disable-pip-version-check cmake
    echo "seed_rl: building atari-py, which takes a minute or two"
    CMAKE_POLICY_VERSION_MINIMUM=3.5 CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
        "$venv_python" -m pip install -q --disable-pip-version-check 'atari-py>=0.2.9' 'gym>=0.22'
}

venv_python="${SEED_RL_VENV:-$root/.venv}/bin/python"
"$venv_python" -c 'import ale_py' 2>/dev/null || ensure_venv atari
"$venv_python" -c 'import atari_py, gym' 2>/dev/null || install ||
    fail "atari-py can't be built: mend what is said above, then type scripts/install_atari_py.sh"
if ! "$venv_python" -c 'import atari_py; atari_py.get_game_path("pong")' 2>/dev/null; then
    roms="$("$venv_python" -c 'import ale_py.roms as roms; print(list(roms.__path__)[0])')"
    "$venv_python" -m atari_py.import_roms "$roms" >/dev/null
fi
echo "seed_rl: atari-py is there and has ROMs"
