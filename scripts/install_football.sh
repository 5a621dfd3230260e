#!/usr/bin/env bash
# Installs Google Research Football, whose engine is compiled from source: some 5 minutes of two
# cores, once. Debian's packages are installed where nothing has to be asked, as by root.
# Usage: scripts/install_football.sh. PYTHON chooses the interpreter, by default that of the virtual
# environment of run_local.sh; it may be of any environment. --requirements only prints what pip gets.
set -euo pipefail
exec </dev/null

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# What run_local.sh football has been tried with. gym's later versions break gfootball's wrappers;
# six is imported by gfootball, which does not say so.
football=(gfootball==2.10.2 gym==0.23.1 six==1.17.0)
# What its build imports. From setuptools 81 on, pkg_resources gives warnings, or is not there.
build=("setuptools>=70.1,<81" wheel==0.45.1 psutil==7.0.0)
debian=(g++ make cmake libopengl-dev libboost-python-dev libboost-filesystem-dev
    libboost-thread-dev libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev)

is_installed() {
    "$python" - "${football[@]}" >/dev/null 2>&1 <<'CODE'
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    assert importlib.metadata.version(name) == version
import gfootball_engine
CODE
}

# Prints those of Debian's packages that are not there; nothing on other systems.
missing_debian_packages() {
    command -v dpkg-query >/dev/null || return 0
    local package
    for package in "${debian[@]}"; do
        [[ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" == *" installed" ]] ||
            printf '%s ' "$package"
    done
}

# Fails where a program for the engine can't be linked: Boost.Python is made for one Python.
require_boost() {
    local version boost
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    boost="boost_python${version/./}"
    c++ -x c++ - "-l$boost" -shared -fPIC -o /dev/null <<<"" 2>/dev/null ||
        fail "found no lib$boost, the Boost.Python of Python $version: Debian's is for its own" \
            "python3; let SEED_RL_VENV name another folder, and python3 be /usr/bin/python3"
}

if [[ ${1:-} == --requirements ]]; then
    printf '%s\n' "${football[@]}" "${build[@]}"
    exit
fi
python="${PYTHON:-${SEED_RL_VENV:-$root/.venv}/bin/python}"
command -v "$python" >/dev/null || fail "found no $python; let PYTHON name an interpreter"
# A path counts from where it was typed.
[[ $python != */* ]] || python="$(cd "$(dirname "$python")" && pwd)/$(basename "$python")"
if is_installed; then
    exit
fi

read -ra missing < <(missing_debian_packages) || true
if ((${#missing[@]} > 0)); then
    why="Google Research Football needs Debian packages to be built"
    apt_install "${missing[@]}"
fi
for command in c++ make cmake; do
    command -v "$command" >/dev/null ||
        fail "found no $command; install what Debian calls: ${debian[*]}"
done
require_boost

echo "seed_rl: building Google Research Football, which takes about 5 minutes"
# Its build starts the first python3 of PATH.
bin="$(dirname "$(command -v "$python")")"
export PATH="$bin:$PATH"
pip=("$python" -m pip install --disable-pip-version-check)
"${pip[@]}" "${build[@]}" || fail "the installation failed; start again to go on with it"
# CMake 4 refuses what asks for a CMake as old as gfootball's.
CMAKE_POLICY_VERSION_MINIMUM=3.5 "${pip[@]}" --no-build-isolation "${football[@]}" ||
    fail "Google Research Football can't be built; what the compiler said is above"
is_installed || fail "gfootball is installed, but '$python -c \"import gfootball_engine\"' fails"
