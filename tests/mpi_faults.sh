#!/bin/sh
# One fault of one rank at a time, for real: who is named by the others, within which time, and that
# nobody is left running. `short` leaves out what takes its time.
. tests/mpi_lib.sh
need_mpi
mkdir -p build/mpi
model=tests/golden/kimi_k3/text-c
log=build/mpi/fault.log
passed=0 failed=0

# fault TITLE N LAYOUT DEADLINE FAULT RANK LAYER SECONDS WORDS: ends nonzero within SECONDS of the
# start, WORDS (a pattern) on one line, no process left. Words "-": it must end well.
fault() {
    begun=$(date +%s%N)
    ranks "$2" 60 build/tests/mpi_faults $model "$3" "$4" "$5" "$6" "$7" > "$log" 2>&1
    code=$?
    took=$((($(date +%s%N) - begun) / 1000000))
    said=$(sed -n 's/^rank [0-9]* after \([0-9.]* s: .*\)/\1/p' "$log" | sort | head -1 | cut -c1-90)
    [ -n "$said" ] || said=$(grep -m1 'signal\|killed' "$log" | cut -c1-90)
    bad=
    if [ "$9" = - ]; then [ $code -eq 0 ] || bad="exit code $code"
    else
        [ $code -ne 0 ] || bad="exit code 0"
        grep -q "$9" "$log" || bad="$bad; nobody says '$9'"
    fi
    [ $took -le $(($8 * 1000)) ] || bad="$bad; $took ms"
    left=$(pgrep -f "mpi_faults $model $3 $4 $5 $6 $7" | wc -l)
    [ "$left" -eq 0 ] || bad="$bad; $left processes left"
    if [ -z "$bad" ]; then
        passed=$((passed + 1))
        printf 'ok %-34s %2d.%d s  %s\n' "$1" $((took / 1000)) $((took % 1000 / 100)) "$said"
    else
        failed=$((failed + 1))
        printf 'FAILED %s: %s\n' "$1" "$bad"
        tail -5 "$log"
    fi
}

# The launcher takes some 1.5 s to end the ranks after one of them asked for it.
fault 'nothing wrong'             4 ep=4       5 none   0 0  20 -
fault 'its own sentence, ep'      4 ep=4       5 fail   1 2  20 'rank 1: .*layers.2.*the disk is full'
fault 'its own sentence, pp'      3 pp=3       5 fail   2 4  20 'rank 2: .*layers.4.*the disk is full'
fault 'NaN on one rank'           4 ep=4       5 nan    1 2  20 'sequence 1, token 0.*nan'
fault 'another branch'            4 ep=4       5 branch 1 2  20 'different branches'
fault 'killed'                    4 ep=4       5 kill   1 2  20 'rank 1 .*signal 9'
fault 'stopped, ep'               4 ep=4       2 stop   1 2  20 'rank 1 is late: layer 2'
if [ "${1:-long}" != short ]; then
    fault 'late for half a deadline'  4 ep=4       4 pause  2 1  30 -
    fault 'slow, ep'                  4 ep=4       3 slow   2 1  20 'rank 2 is late'
    fault 'slow, tp'                  4 tp=4       3 slow   2 1  20 'rank 2 is late'
    fault 'slow, cp'                  4 cp=4       3 slow   1 1  20 'rank 1 is late: .*layer 1'
    fault 'slow, pp: a chain'         4 pp=4       3 slow   1 1  20 'rank 1 is late'
    fault 'stopped, pp=2,tp=2: a chain' 4 pp=2,tp=2 3 stop   0 1  20 'rank 0 is late'
    fault 'stopped, cp: a chain'      5 cp=5       3 stop   0 1  20 'rank 0 is late'
    fault 'killed, the last stage'    3 pp=3       5 kill   2 4  20 'rank 2 .*signal 9'
    fault 'killed, rank 0'            3 ep=3       5 kill   0 1  20 'rank 0 .*signal 9'
    fault 'its own sentence, tp'      3 tp=3       5 fail   1 3  20 'rank 1: .*layers.3.*the disk is full'
    fault 'its own sentence, cp'      3 cp=3       5 fail   1 3  20 'rank 1: .*layers.3.*the disk is full'
    fault 'another branch, tp'        2 tp=2       5 branch 1 2  20 'different branches'
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
