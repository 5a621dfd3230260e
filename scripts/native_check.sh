#!/usr/bin/env bash
# Checks the native core with sanitizers and fuzzers. Installs nothing, builds in build/native_check.
# Usage: scripts/native_check.sh [--runs=N] [asan|tsan|fuzz|leaks|python|all]...
#
#   asan     stress under AddressSanitizer, UBSan and LeakSanitizer                      3 minutes
#   tsan     the same under ThreadSanitizer                                              3 minutes
#   fuzz     1,000,000 inputs each for the server's and the client's end of a wire     16 minutes
#   leaks    10,000 connects under LeakSanitizer, with resident memory flat; fewer
#            under valgrind where it is installed                                        1 minute
#   python   the tests of tests/grpc on an extension with AddressSanitizer and UBSan     4 minutes
#   all      all of them (the default), as long as they take together on two cores
#
# --runs=N gives each fuzzer N inputs, and shortens the stress in proportion. The part python needs
# the environment of scripts/test.sh; PYTHON chooses another interpreter.
# Exits with 1 where anything was found, and with 2 where something is missing.
set -euo pipefail
exec </dev/null

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
[[ $python != */* || ! -x $python ]] || python="$(cd "$(dirname "$python")" && pwd)/$(basename "$python")"
cd "$root"
build="$root/build/native_check"
native=grpc/native
sources=tests/grpc/native
runs=1000000
findings=0

die() {
    echo "native_check: $*" >&2
    exit 2
}

parts=()
for word in "$@"; do
    case "$word" in
        --runs=*) runs="${word#*=}" ;;
        asan | tsan | fuzz | leaks | python) parts+=("$word") ;;
        all) parts+=(asan tsan fuzz leaks python) ;;
        -h | --help)
            sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit
            ;;
        *) die "saw $word, wanted asan, tsan, fuzz, leaks, python, all or --runs=N" ;;
    esac
done
[[ $runs =~ ^[1-9][0-9]*$ ]] || die "saw --runs=$runs, wanted a number above 0"
((${#parts[@]} > 0)) || parts=(asan tsan fuzz leaks python)

# Of a number for a full run, the share that --runs asks for.
share() {
    local number=$(($1 * runs / 1000000))
    echo "$((number < $2 ? $2 : number > $1 ? $1 : number))"
}

need_clang() {
    command -v clang++ >/dev/null || die "found no clang++; type: sudo apt-get install clang"
    echo '#include <nghttp2/nghttp2.h>' | clang++ -x c++ -fsyntax-only - 2>/dev/null ||
        die "found no libnghttp2; type: sudo apt-get install libnghttp2-dev"
}

# compile NAME SANITIZERS FILE...: builds $build/NAME.
compile() {
    local name="$1" sanitizers="$2"
    shift 2
    mkdir -p "$build"
    nice -n 10 clang++ -std=c++17 -O1 -gdwarf-4 -fno-omit-frame-pointer -pthread -Wall -Wextra \
        ${sanitizers:+"-fsanitize=$sanitizers" -fno-sanitize-recover=all} "-I$native" "$@" \
        -lnghttp2 -o "$build/$name" >"$build/$name.log" 2>&1 ||
        { cat "$build/$name.log" >&2 && die "$name can't be built"; }
}

# All but the binding.
core=()
for file in "$native"/*.cc; do
    case "${file##*/}" in bind_*.cc | module.cc) ;; *) core+=("$file") ;; esac
done

# run NAME COMMAND...: shows the last line of its output, or all where it fails.
run() {
    local name="$1" log="$build/$1.log"
    shift
    if nice -n 10 "$@" >"$log" 2>&1; then
        echo "$name: $(tail -n 1 "$log")"
    else
        tail -n 200 "$log" >&2
        echo "$name: FOUND SOMETHING, see ${log#"$root"/}"
        findings=1
    fi
}

check_asan() {
    need_clang
    compile stress_asan address,undefined "$sources/stress.cc" "${core[@]}"
    run asan env ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 \
        "$build/stress_asan" --secs=4 "--rounds=$(share 20 1)"
}

check_tsan() {
    need_clang
    compile stress_tsan thread "$sources/stress.cc" "${core[@]}"
    run tsan env TSAN_OPTIONS=second_deadlock_stack=1 \
        "$build/stress_tsan" --secs=4 "--rounds=$(share 20 1)" --seed=1000
}

# Small scripts, in the words of fuzz_server.cc, that get to where it is interesting.
write_seeds() {
    mkdir -p "$1"
    local i=0 seed
    for seed in \
        '\0\0\20\0\3\0\0\23\3\0\4\23\10\0' \
        '\0\0\20\0\3\0\x10\6\0\5\6\0\x20\23\6\0\xff\23\26' \
        '\0\0\20\0\3\0\x10\6\0\x20\23\27\6\0\xff\23\23' \
        '\0\0\x80\20\0\20\1\3\0\3\x83\0\3\23\3\0\7\x83\0\7\23\23' \
        '\0\2\13\0\0\5\0\0\0\0\0\10\0\20\0' \
        '\0\0\20\0\3\0\x8\11\4\31\5\31\5\22\0\0\23' \
        '\0\0\20\0\3\0\3\3\0\x7\3\0\x7\10\0\23\23\23\23' \
        '\0\0\20\0\3\0\x10\6\0\x20\11\0\10\23' \
        '\0\34\1\4\0\xff\20\0\30\x20\1' \
        '\0\0\20\0\3\0\3\31\0\1\23' \
        '\0\35\3\0\20\0\3\0\3\23\15\1\0\0\0\0\5\15\1\0\0\0\0\xff'; do
        # shellcheck disable=SC2059
        printf "$seed" >"$1/$i"
        i=$((i + 1))
    done
}

fuzz_one() {
    local name="$1" start=$SECONDS log="$build/$1.log" corpus="$build/corpus_$1" count
    local folders=("$corpus")
    [[ ! -d $sources/regressions/$name ]] || folders+=("$sources/regressions/$name")
    # What is left out would only make it slower: long stacks, and statistics of what was seen.
    if ASAN_OPTIONS=malloc_context_size=5:quarantine_size_mb=32 nice -n 10 "$build/$name" \
        "-runs=$runs" -max_len=128 -timeout=60 -entropic=0 -print_final_stats=1 \
        "-artifact_prefix=$build/$name." "${folders[@]}" >"$log" 2>&1; then
        count="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
        echo "$name: $count inputs, no finding, $((SECONDS - start)) s"
    else
        grep -v $'^#[0-9]*\t' "$log" | tail -n 200 >&2
        echo "$name: FOUND SOMETHING, see ${log#"$root"/}"
        return 1
    fi
}

check_fuzz() {
    need_clang
    compile fuzz_server fuzzer,address,undefined "$sources/fuzz_server.cc" \
        "$native"/{batcher,stream,connection}.cc
    compile fuzz_client fuzzer,address,undefined "$sources/fuzz_client.cc" \
        "$native/client_session.cc"
    rm -rf "$build"/corpus_fuzz_*
    mkdir -p "$build/corpus_fuzz_client"
    write_seeds "$build/corpus_fuzz_server"
    fuzz_one fuzz_server &
    local server=$!
    fuzz_one fuzz_client || findings=1
    wait "$server" || findings=1
}

check_leaks() {
    need_clang
    compile stress_leaks leak "$sources/stress.cc" "${core[@]}"
    run leaks "$build/stress_leaks" "--connects=$(share 10000 2000)"
    if command -v valgrind >/dev/null; then
        compile stress "" "$sources/stress.cc" "${core[@]}"
        run valgrind valgrind --quiet --error-exitcode=9 --leak-check=full \
            --errors-for-leak-kinds=definite,indirect "$build/stress" "--connects=$(share 500 100)"
    fi
}

check_python() {
    "$python" -c 'import pytest, pybind11, setuptools' 2>/dev/null ||
        die "found no environment for tests in $python; type: scripts/test.sh"
    local compiler="${CXX:-g++}" tree="$build/python" preload
    preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
    mkdir -p "$build"
    CXX="$compiler" SEED_RL_NATIVE=1 LDFLAGS="-fsanitize=address,undefined" \
        CXXFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr" \
        "$python" setup.py -q build_ext --build-lib "$build/lib" --build-temp "$build/temp" \
        >"$build/extension.log" 2>&1 ||
        { cat "$build/extension.log" >&2 && die "the extension can't be built"; }
    # As it is installed, but for the extension. Which modules it gets on with is not the question.
    rm -rf "$tree"
    mkdir -p "$tree/seed_rl/grpc"
    ln -s "$root"/seed_rl/*.py "$root/agents" "$root/envs" "$tree/seed_rl/"
    ln -s "$root"/grpc/python/*.py "$build"/lib/seed_rl/grpc/_native*.so "$tree/seed_rl/grpc/"
    run python env PYTHONPATH="$tree" PYTHONMALLOC=malloc LD_PRELOAD="$preload" \
        ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        "$python" -m pytest -q -p no:cacheprovider -o timeout=600 tests/grpc \
        --ignore=tests/grpc/test_import_order.py
}

for part in "${parts[@]}"; do
    case "$part" in
        asan) check_asan ;;
        tsan) check_tsan ;;
        fuzz) check_fuzz ;;
        leaks) check_leaks ;;
        python) check_python ;;
    esac
done
exit "$findings"
