#!/bin/sh
# Builds every examples/*.c alone, runs it from the top of the repository and compares what it
# prints with the comment at its end:
#
#     /* expected output:
#     ...
#     */
#
# Arguments: the examples to run; none means all. CC and CFLAGS are taken from the environment.
# Those whose command is mpicc run on 4 ranks, and are left out where there is no MPI.

cd "$(dirname "$0")/.." || exit 2
. tests/mpi_lib.sh
CC=${CC:-cc}
FLAGS="-std=c11 -D_POSIX_C_SOURCE=200809L -O0 -ffp-contract=off -I. -Wall -Wextra -Wpedantic \
-Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wvla -Wundef -Wcast-qual \
-Wwrite-strings -Wstrict-prototypes -Wmissing-prototypes -Werror ${CFLAGS:-}"
out=build/examples
mkdir -p $out || exit 2
[ $# -gt 0 ] || set -- examples/*.c

passed=0 failed=0
fail() { failed=$((failed + 1)); echo "FAILED  $1"; }

for src in "$@"; do
    name=$(basename "$src" .c)
    [ -f "$src" ] || { fail "$src: no such file"; continue; }
    rm -f "$out/$name"
    awk '/^\/\* expected output:$/ { on = 1; next }  /^\*\/$/ { if (on) done = 1; on = 0 }
         on { print }  END { exit !done }' "$src" > "$out/$name.want" ||
        { fail "$src: no expected output at its end"; continue; }
    compile=$CC start=
    case $(head -n 1 "$src") in
        "/* cc "*" $src "*) ;;
        "/* mpicc "*" $src "*"mpirun --oversubscribe -n 4 "*)
            has_mpi || { echo "skipped $src: there is no MPI"; continue; }
            compile=${MPICC:-mpicc} start="ranks 4 60" ;;
        *) fail "$src: its first line is not the command that builds it"; continue ;;
    esac
    # shellcheck disable=SC2086  # FLAGS is a list
    OMPI_CC=$CC MPICH_CC=$CC $compile $FLAGS "$src" -o "$out/$name" -lm > "$out/$name.log" 2>&1 ||
        { fail "$src: does not compile"; head -n 20 "$out/$name.log"; continue; }
    $start "$out/$name" > "$out/$name.got" 2> "$out/$name.log" ||
        { fail "$src: exit status $?"; cat "$out/$name.log"; continue; }
    if diff "$out/$name.want" "$out/$name.got" > "$out/$name.log"; then
        passed=$((passed + 1)); echo "ok      $src"
    else
        fail "$src: < expected, > printed"; head -n 20 "$out/$name.log"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
