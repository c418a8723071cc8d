#!/bin/sh
# The same bits from 1, 2, 3, 4, 5, 7 and 8 ranks in every layout, with 1 and 2 threads: logits, all
# taps and the state of each model, against one rank without MPI. One launch a number of ranks.
#
#     sh tests/mpi.sh             all of it, and a table         (make check-mpi)
#     sh tests/mpi.sh short       2 and 3 ranks, one of the models in 4, callers' mistakes
#     sh tests/mpi.sh repeat [N]  a small job N times in one launch: same ids, memory flat
. tests/mpi_lib.sh
need_mpi
mkdir -p build/mpi
passed=0 failed=0

# sum LOG CODE: adds what a launch said at its end.
sum() {
    set -- $(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$1") x "$2"
    if [ "$1" = x ]; then
        echo "FAILED: no sum, exit code $2"
        set -- 0 1
    fi
    passed=$((passed + $1)) failed=$((failed + $2))
}

# launch N MODEL THREADS
launch() {
    log=build/mpi/$1-$2-$3.log begun=$(date +%s)
    ranks "$1" 900 build/tests/mpi_bits "$2" all "$3" > "$log" 2>&1
    code=$?
    grep -v '^ok\|^[0-9]* passed' "$log" | grep -v '^-*$' | head -20
    printf '%5d ranks  %-15s %d threads  %4d ok %4d failed  %4d s\n' "$1" "$2" "$3" \
        "$(grep -c '^ok' "$log")" "$(grep -c '^FAILED' "$log")" $(($(date +%s) - begun))
    sum "$log" $code
}

case ${1:-long} in
short)
    launch 2 all 1
    launch 3 kimi_k3_images 2
    launch 4 deepseek_v3_fp8 1
    launch 2 mistakes 1 ;;
long)
    for t in 1 2; do
        for n in 1 2 3 4 5 7 8; do launch $n all $t; done
    done
    launch 3 mistakes 1 ;;
repeat)
    jobs=${2:-1000} log=build/mpi/repeat.log
    if ranks 4 900 build/tests/mpi_faults tests/golden/kimi_k3/text-c pp=2,ep=2 60 none 0 0 "$jobs" \
        > "$log" 2>&1 && [ "$(grep -c '^[0-9 ]*$' "$log")" -eq "$jobs" ] &&
        [ "$(grep '^[0-9 ]*$' "$log" | sort -u | wc -l)" -eq 1 ]; then
        echo "ok $(tail -1 "$log"), the same ids each time"
        passed=1
    else
        tail -5 "$log"
        failed=1
    fi ;;
*) echo "mpi.sh: '$1'?" >&2; exit 2 ;;
esac
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
