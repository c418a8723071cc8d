#!/bin/sh
# Runs tests and sums their last lines: CASES=DIR sh tests/check.sh PROGRAM|SCRIPT...
# A program gets tests/golden, then once more DIR if that is given; a script finds it in CASES. Each prints a line a test and
# ends with "N passed, N failed"; one that does not reach that line counts as one failure.
cases=${CASES:-}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}     # more threads than cores shall not spin
passed=0 failed=0
log=build/check.log

run() {                                     # run NAME COMMAND...
    name=$1 begun=$(date +%s)
    shift
    "$@" > "$log" 2>&1
    code=$?
    echo "== $name, $(($(date +%s) - begun)) s"
    cat "$log"
    set -- $(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
    if [ $# -ne 2 ]; then
        echo "FAILED: ended with exit code $code and without a sum"
        set -- 0 1
    elif [ $code -ne 0 ] && [ "$2" -eq 0 ]; then
        echo "FAILED: exit code $code"
        set -- "$1" 1
    fi
    passed=$((passed + $1)) failed=$((failed + $2))
}

# More threads than cores are tested on purpose; waiting ones need not keep the cores busy.
export OMP_WAIT_POLICY=passive
mkdir -p build
for t in "$@"; do
    case $t in
    *.sh) run "$t" sh "$t" ;;
    *)  run "$t" "$t" tests/golden
        [ -z "$cases" ] || run "$t $cases" "$t" "$cases" ;;
    esac
done
echo
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
