# shellcheck shell=bash
# The virtual environment that run_local.sh and scripts/test.sh share. To be sourced.
#
# ensure_venv EXTRA... makes it where it is missing, installs seed_rl into it with these extras
# unless that has been done already, and sets venv_python. SEED_RL_VENV is its folder, by default
# .venv in the checkout. With SEED_RL_NATIVE=0 it is installed without its native core, with
# SEED_RL_NATIVE=1 that this can't be built is an error.

# Or bash would go on after a program that was interrupted, taking its failure for an answer.
trap 'exit 130' INT
trap 'exit 143' TERM

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
    echo "seed_rl: $*" >&2
    exit 1
}

# Installs Debian packages where that is possible without asking.
apt_get() {
    [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null || return
    echo "seed_rl: installing $*"
    # One list that can't be had does not matter if the others have the packages.
    apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# The same, or says what to type.
apt_install() {
    apt_get "$@" || fail "$why; type: sudo apt-get install $*"
}

# Whether the command $1 is a Python of version 3.10 or later, and earlier than 3.$2.
fits() {
    "$1" -c "import sys; sys.exit(not (3, 10) <= sys.version_info < (3, $2))" 2>/dev/null
}

# Sets python to a command of Python 3.10 or later that can make virtual environments.
find_python() {
    local candidate before why
    python=""
    # TensorFlow's packages are some months behind Python: an older one is better than the newest.
    for before in 14 99; do
        for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
            if [[ -z $python ]] && fits "$candidate" "$before"; then
                python="$candidate"
            fi
        done
    done
    if [[ -z $python ]]; then
        if command -v python3 >/dev/null; then
            fail "wanted Python 3.10 or later, found only $(python3 --version 2>&1)"
        fi
        why="found no python3"
        apt_install python3 python3-venv
        python=python3
        fits "$python" 99 || fail "wanted Python 3.10 or later, found only $(python3 --version 2>&1)"
    fi
    # Debian has ensurepip, which venv needs, in a package of its own.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        why="$python can't make virtual environments"
        apt_install python3-venv
    fi
    "$python" -c 'import ensurepip, venv' || fail "$python still can't make virtual environments"
}

make_venv() {
    local venv="$1" python
    if [[ -e $venv/pyvenv.cfg ]]; then
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
        echo "seed_rl: the virtual environment $venv is damaged and made anew"
    elif [[ -d $venv && -n $(ls -A "$venv") ]]; then
        fail "$venv is no virtual environment: let SEED_RL_VENV name another folder"
    else
        echo "seed_rl: making a virtual environment in $venv"
    fi
    find_python
    "$python" -m venv --clear "$venv"
}

# Prints the Debian packages that the native core still needs to be built for the Python $1.
missing_packages() {
    local candidate compiler="" packages="" version="" include=""
    for candidate in "${CXX:-${CC:-}}" c++ g++ clang++; do
        candidate="${candidate%% *}"
        if [[ -z $compiler && -n $candidate ]] && command -v "$candidate" >/dev/null; then
            compiler="$candidate"
        fi
    done
    if [[ -z $compiler ]]; then
        packages=" g++ libnghttp2-dev"
    elif ! finds_header "$compiler" nghttp2/nghttp2.h; then
        packages=" libnghttp2-dev"
    fi
    # Python's headers come along with it, unless it is Debian's.
    read -r version include < <("$1" -c "import sys, sysconfig
if sys.base_prefix == '/usr':
    print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))") || true
    if [[ -n $include && ! -e $include/Python.h ]]; then
        packages="$packages python$version-dev"
    fi
    echo "${packages# }"
}

# Whether the compiler $1 finds the header $2.
finds_header() {
    local flags
    flags="$(pkg-config --cflags libnghttp2 2>/dev/null)" || flags=""
    # shellcheck disable=SC2086
    "$1" ${CPPFLAGS:-} ${CXXFLAGS:-} $flags -x c++ -E - <<<"#include <$2>" >/dev/null 2>&1
}

# Whether there is nothing to be gained by building the native core again: it was left out, it is
# there, or what it lacked when it could not be built is still not there.
native_is_settled() {
    case "$1" in
        "left out") ;;
        built) compgen -G "$root/grpc/python/_native.*.so" >/dev/null ;;
        lacks:*) [[ $1 == "lacks:$(missing_packages "$venv_python")" ]] ;;
        *) return 1 ;;
    esac
}

# How the native core fared in an installation, as native_is_settled takes it.
native_state() {
    if [[ ${SEED_RL_NATIVE:-} == 0 ]]; then
        echo "left out"
    elif [[ ! -e $native_note ]]; then
        echo built
    else
        echo "lacks:$(missing_packages "$venv_python")"
    fi
}

tell_of_native() {
    if [[ $1 == lacks:* && -e $native_note ]]; then
        echo "seed_rl: no native core, the Python core takes its place: $(<"$native_note")"
    fi
}

# Prints the extras of setup.py that the environments called $1 need.
extras_of() {
    case "$1" in
        atari | mujoco) echo "$1" ;;
    esac
}

ensure_venv() {
    local venv="${SEED_RL_VENV:-$root/.venv}" extras="$*" stamp stamped_state stamped_extras state
    local native native_note="$root/grpc/python/_native_missing.txt" packages
    mkdir -p "$(dirname "$venv")"
    venv="$(cd "$(dirname "$venv")" && pwd)/$(basename "$venv")"
    # Of two starts at once, one installs and the other waits.
    exec 9>"$venv.lock"
    if command -v flock >/dev/null && ! flock -n 9; then
        echo "seed_rl: waiting for another installation into $venv"
        flock 9
    fi

    make_venv "$venv"
    venv_python="$venv/bin/python"

    # What the installation depends on, and the extras that it had.
    state="$(find "$root/setup.py" "$root/pyproject.toml" "$root/grpc/native" -type f |
        LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | cksum)"
    state="$state $("$venv_python" -V) native=${SEED_RL_NATIVE:-} $root"
    stamp="$venv/seed_rl.stamp"
    if [[ -e $stamp ]]; then
        { read -r stamped_state && read -r stamped_extras && read -r native; } <"$stamp" ||
            stamped_state=""
        if [[ $stamped_state == "$state" ]]; then
            local extra missing=""
            for extra in $extras; do
                [[ " $stamped_extras " == *" $extra "* ]] || missing="$missing $extra"
            done
            if [[ -z $missing ]] && native_is_settled "$native"; then
                tell_of_native "$native"
                exec 9>&-
                return
            fi
            extras="$stamped_extras$missing"
            extras="${extras# }"
        fi
    fi
    rm -f "$stamp"
    packages=""
    [[ ${SEED_RL_NATIVE:-} == 0 ]] || packages="$(missing_packages "$venv_python")"
    if [[ -n $packages ]]; then
        # shellcheck disable=SC2086
        apt_get $packages || true # then with the Python core
    fi
    echo "seed_rl: installing into $venv; the first time, this downloads about 1 GB"
    (cd "$root" && "$venv_python" -m pip install --disable-pip-version-check \
        -e ".${extras:+[${extras// /,}]}") || fail "the installation failed; start again to go on with it"
    native="$(native_state)"
    tell_of_native "$native"
    printf '%s\n%s\n%s\n' "$state" "$extras" "$native" >"$stamp"
    exec 9>&-
}
