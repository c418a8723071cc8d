#!/bin/sh
# Does some test fail for each of the listed mistakes? Each mutant of tests/mutants.txt is one
# replacement of text in a copy of trillion.h, or of the file named behind the program; the named
# test program must then fail (or not compile). One that is called mpi_bits runs on 4 ranks. Prints a
# line a mutant; ends with "N passed, N failed". MUTANTS=word picks some.
#
# A mutant is these lines and a blank one:
#     # what the mistake is
#     program [file]
#     @ text that occurs exactly once in the file
#     - text whose first occurrence after that is meant; without an @, its only one in the file
#     + text in its place
set -u
. tests/mpi_lib.sh
CC=${CC:-cc}
FLAGS="-std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -w"
dir=build/mutants

one() {                                     # N: applies, compiles and runs mutant N
    n=$1 at=$dir/$n
    rm -rf "$at"; mkdir -p "$at/tests" "$at/tools"
    awk -v n="$n" 'BEGIN { RS = ""; FS = "\n" } NR == n { for (i = 1; i <= NF; i++) print $i }' \
        tests/mutants.txt > "$at/mutant"
    what=$(sed -n '1s/^# //p' "$at/mutant")
    prog=$(sed -n 2p "$at/mutant") file=trillion.h
    case $prog in *' '*) file=${prog#* } prog=${prog%% *} ;; esac
    cp trillion.h trillion_mpi.h "$at/"; cp tools/*.h "$at/tools/"
    awk -v spec="$at/mutant" '
        BEGIN {
            while ((getline line < spec) > 0) {
                if (line ~ /^@ /) at = substr(line, 3)
                if (line ~ /^- /) from = substr(line, 3)
                if (line ~ /^\+( |$)/) to = substr(line, 3)
            }
        }
        at != "" && index($0, at) { places++; here = 1 }
        (at == "" || here) && (i = index($0, from)) {
            hits++
            here = 0
            $0 = substr($0, 1, i - 1) to substr($0, i + length(from))
        }
        { print }
        END { exit hits == 1 && (at == "" || places == 1) ? 0 : 3 }' "$file" > "$at/$file" ||
        { echo "STALE    $what: its text is not there, or more than once" > "$at/verdict"; return; }
    cp tests/*.h "tests/$prog.c" "$at/tests/"
    libs=-lm cc=$CC run=
    [ "$prog" != test_image ] || libs="-ljpeg -lm"
    case $prog in mpi_*) cc=${MPICC:-mpicc} ;; esac
    [ "$prog" != mpi_bits ] || { cc="$cc -O2 -fopenmp" run="ranks 4 300"; }
    if ! $cc $FLAGS -o "$at/test" "$at/tests/$prog.c" $libs 2> "$at/log"; then
        echo "killed   $what ($prog does not compile)" > "$at/verdict"
    elif [ -n "$run" ] && $run "$at/test" kimi_k3_images all 1 > "$at/log" 2>&1 ||
         [ -z "$run" ] && TEST_STOP=1 timeout 300 "$at/test" > "$at/log" 2>&1; then
        echo "SURVIVED $what ($prog passes)" > "$at/verdict"
    else
        why=$(grep -m1 '^FAILED\|: rank [0-9]' "$at/log" || tail -n 1 "$at/log")    # or the self-test
        echo "killed   $what ($prog: $(echo "$why" | cut -c1-60))" > "$at/verdict"
    fi
    rm -f "$at/test" "$at/trillion.h" "$at/trillion_mpi.h"
}

if [ "${1:-}" = --one ]; then one "$2"; exit 0; fi

total=$(awk 'BEGIN { RS = "" } END { print NR }' tests/mutants.txt)
rm -rf $dir
awk -v pick="${MUTANTS:-}" 'BEGIN { RS = "" } index($0, pick) { print NR }' tests/mutants.txt |
    CC=$CC xargs -P 2 -n 1 sh tests/mutants.sh --one
cat $dir/*/verdict | sort
killed=$(cat $dir/*/verdict | grep -c '^killed')
alive=$(cat $dir/*/verdict | grep -vc '^killed')
echo "of $total mutants"
echo "$killed passed, $alive failed"
[ "$alive" = 0 ]
