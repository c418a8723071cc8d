# What the test scripts share: a line a test, then the sum. Sourced from the top of the repository.

CC=${CC:-cc}
WARN='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wvla
      -Wundef -Wcast-qual -Wwrite-strings'
WARN_C='-Wstrict-prototypes -Wmissing-prototypes'
NUMERIC='-D_POSIX_C_SOURCE=200809L -ffp-contract=off'
passed=0 failed=0

ok()   { passed=$((passed + 1)); echo "ok $1"; }
bad()  { failed=$((failed + 1)); echo "FAILED $1"; [ $# -lt 2 ] || printf '%s\n' "$2" | head -n 20; }
have() { command -v "$1" > /dev/null 2>&1; }

# check NAME COMMAND...: it must succeed.
check() {
    name=$1
    shift
    if said=$("$@" 2>&1); then ok "$name"; else bad "$name" "$said"; fi
}

# quiet NAME COMMAND...: it must succeed and print nothing, no warning either.
quiet() {
    name=$1
    shift
    said=$("$@" 2>&1) && [ -z "$said" ] && { ok "$name"; return; }
    bad "$name" "$said"
}

end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
