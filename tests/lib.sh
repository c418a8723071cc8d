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

header_bytes() { od -An -tu8 -N8 "$1" | tr -d ' '; }       # of a safetensors

# file_offset FILE TENSOR: where its first byte lies in a safetensors.
file_offset() {
    n=$(header_bytes "$1")
    at=$(tail -c +9 "$1" | head -c "$n" | grep -ao "\"$2\": *{[^}]*}" |
        sed 's/.*\[\([0-9]*\),.*/\1/')
    echo $((8 + n + at))
}

# poke FILE TENSOR BYTES [AT]: overwrites the first bytes of a tensor, or those from byte AT on.
poke() {
    printf "$3" |
        dd of="$1" bs=1 seek=$(($(file_offset "$1" "$2") + ${4:-0})) conv=notrunc 2> /dev/null
}

end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
