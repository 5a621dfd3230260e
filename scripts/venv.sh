# shellcheck shell=bash
# The virtual environment that run_local.sh and scripts/test.sh share. To be sourced.
#
# ensure_venv EXTRA... makes it where it is missing, installs seed_rl into it with these extras
# unless that has been done already, and sets venv_python. SEED_RL_VENV is its folder, by default
# .venv in the checkout.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
    echo "seed_rl: $*" >&2
    exit 1
}

# Installs Debian packages where that is possible without asking, or says what to type.
apt_install() {
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        echo "seed_rl: installing $*"
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" && return
    fi
    fail "$why; type: sudo apt-get install $*"
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

ensure_venv() {
    local venv="${SEED_RL_VENV:-$root/.venv}" extras="$*" stamp stamped_state stamped_extras state
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
    state="$(cat "$root/setup.py" "$root/pyproject.toml" | cksum) $("$venv_python" -V) $root"
    stamp="$venv/seed_rl.stamp"
    if [[ -e $stamp ]]; then
        { read -r stamped_state && read -r stamped_extras; } <"$stamp" || stamped_state=""
        if [[ $stamped_state == "$state" ]]; then
            local extra missing=""
            for extra in $extras; do
                [[ " $stamped_extras " == *" $extra "* ]] || missing="$missing $extra"
            done
            if [[ -z $missing ]]; then
                exec 9>&-
                return
            fi
            extras="$stamped_extras$missing"
        fi
    fi
    rm -f "$stamp"
    echo "seed_rl: installing into $venv; the first time, this downloads about 1 GB"
    (cd "$root" && "$venv_python" -m pip install --disable-pip-version-check \
        -e ".[${extras// /,}]") || fail "the installation failed; start again to go on with it"
    printf '%s\n%s\n' "$state" "$extras" >"$stamp"
    exec 9>&-
}
