#!/bin/sh
# Does the exact profile give the same bits whatever it is compiled with and however it is run?
# Builds tests/bits.c by every compiler here, at four levels, with and without OpenMP; runs each
# build on every cpu of the machine; compares every hash with the first one, and that with
# tests/golden/bits.txt. Prints a row a build and cpu, and ends with "N passed, N failed".
# BITS=word picks builds whose line below has that word.
. tests/lib.sh
dir=build/bits
models=$(awk '!/^#/ && !seen[$1]++ { print $1 }' tests/golden/bits.txt)
export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0      # more threads than cores shall not spin

# A line a build: name, compiler, OpenMP, what is run, flags. The slowest come first.
builds() {
    for level in '-O0' '-O2' '-O3' '-O3 -march=native'; do
        for cc in gcc clang; do
            for omp in on off; do
                echo "$cc$(echo "$level" | tr -d ' =') $cc $omp cover $level"
            done
        done
    done
    echo "gcc-O2 gcc on product -O2"
    echo "clang-O3 clang on product -O3"
}

# one LINE: compiles (once) and runs; leaves $dir/NAME-OMP.WHAT.CPU, or .build with what went wrong
one() {
    name=$1 cc=$2 omp=$3 what=$4
    shift 4
    exe=$dir/$name-$omp.$what
    [ "$omp" = off ] || omp=$(sh tests/openmp.sh "$cc")
    [ "$omp" = off ] && omp=
    # shellcheck disable=SC2086  # NUMERIC is a list
    nice $cc -std=c11 "$@" $NUMERIC $omp -w -I. -o "$exe.exe" tests/bits.c -lm \
        2> "$exe.build" || return
    rm "$exe.build"
    cpus='base avx2 best'
    [ "$what" = cover ] || cpus=best
    for cpu in $cpus; do
        nice "$exe.exe" tests/golden "$what" "$cpu" > "$exe.$cpu" 2>&1
        echo "exit $?" >> "$exe.$cpu"
    done
    rm "$exe.exe"
}

if [ "${1:-}" = --one ]; then
    shift
    one "$@"
    exit 0
fi

rm -rf $dir
mkdir -p $dir
begun=$(date +%s)
for cc in gcc clang; do
    have $cc || bad "$cc is not installed: its builds are not tested"
done
builds | grep -e "${BITS:-.}" | while read -r name cc rest; do
    have "$cc" && echo "$name $cc $rest"
done > $dir/builds
xargs -P 2 -L 1 sh tests/bits.sh --one < $dir/builds

echo "cells (threads/piece/batch), each sequence of a batch against its own single run:"
echo "  cover    1/all/1 2/7/3 3/16/1 7/64/3 2/1/1 7/all/3"
echo "  product  threads 1 2 3 7 x piece 1 7 16 64 all x batch 1 3"
awk '!/^#/ && NF == 5 {
        print $1, $2, 0, 0, 0, 0, substr($3, 1, 16), substr($4, 1, 16), substr($5, 1, 16)
    }' tests/golden/bits.txt > $dir/known
first=

# row TITLE FILE: holds it against the first and prints a row
row() {
    [ -n "$first" ] || first=$2
    printf '%-24s %-6s %-8s %-5s' "$1" "$3" "$4" "$5"
    for m in $models; do
        said=$(awk -v m="$m" '
            $1 != m || NF != 9 { next }
            { key = $2; h = $7 $8 $9 }
            FNR == NR && !(key in want) { want[key] = h }
            FNR != NR || same { n++; bad += want[key] != h }
            END { print n + 0, bad + 0 }' "$first" "$2")
        n=${said% *} wrong=${said#* }
        if [ "$n" -gt 0 ] && [ "$wrong" -eq 0 ]; then
            printf '  %-18s' "ok $n"
            passed=$((passed + 1))
        else
            printf '  %-18s' "$wrong of $n DIFFER"
            failed=$((failed + 1))
        fi
    done
    echo
}

printf '%-24s %-6s %-8s %-5s' build OpenMP cells cpu
for m in $models; do printf '  %-18s' "$m"; done
echo
while read -r name cc omp what flags; do
    exe=$dir/$name-$omp.$what
    if [ -f "$exe.build" ]; then
        bad "$name, OpenMP $omp: does not compile" "$(cat "$exe.build")"
        continue
    fi
    for cpu in base avx2 best; do
        [ -f "$exe.$cpu" ] || continue
        case $(tail -n 1 "$exe.$cpu") in
        'exit 0') row "$cc $flags" "$exe.$cpu" "$omp" "$what" "$cpu" ;;
        'exit 2') printf '%-24s %-6s %-8s %-5s  %s\n' "$cc $flags" "$omp" "$what" "$cpu" \
                      "not run: $(head -n 1 "$exe.$cpu")" ;;
        *)        bad "$name, OpenMP $omp, $cpu" "$(tail -n 5 "$exe.$cpu")" ;;
        esac
    done
done < $dir/builds
row tests/golden/bits.txt $dir/known '' '' ''
runs=$(cat $dir/*.cover.* $dir/*.product.* 2> /dev/null | awk 'NF == 9 { n++ } END { print n + 0 }')
echo "$runs prompts run in $(($(date +%s) - begun)) s"
end
