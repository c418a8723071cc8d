#!/bin/sh
# Holds the book to its word. For every page of docs/ (and the pages at the top):
#
#   worked numbers   a block opened with "```c run" is compiled and run; what it prints must be the
#                    block opened with "```text output" that follows it. A block without main is
#                    put into one. <stdio.h> <stdlib.h> <string.h> <math.h> <inttypes.h> and
#                    trillion.h are included before.
#   exercises        docs/exercises/NN-tag.c must exit 1 as it stands, and print "right" and exit 0
#                    with -DSOLUTION; the page NN-tag.md must say how to build it.
#   links            what a page points to in this repository must exist, headings too.
#   tags             docs/NN-tag.md has the number and tag of a chapter in trillion.h; from 40 on it
#                    has the tags of all chapters of another header in its title.
#
# The implementation is compiled once; blocks and exercises see declarations only.
# Arguments: the pages to check; none means all. CC and CFLAGS are taken from the environment.

cd "$(dirname "$0")/.." || exit 2
CC=${CC:-cc}
FLAGS="-std=c11 -D_POSIX_C_SOURCE=200809L -O0 -ffp-contract=off -I. -Wall -Werror ${CFLAGS:-}"
out=build/docs
impl=$out/impl.o
rm -rf $out
mkdir -p $out || exit 2

if [ $# -eq 0 ]; then
    for f in README.md CONTRIBUTING.md docs/*.md docs/*/*.md; do
        [ -f "$f" ] && set -- "$@" "$f"
    done
fi

passed=0 failed=0
ok()   { passed=$((passed + 1)); echo "ok      $1"; }
fail() { failed=$((failed + 1)); echo "FAILED  $1"; [ -z "${2:-}" ] || head -n 20 "$2"; }

printf '#define TRILLION_IMPLEMENTATION\n#include "trillion.h"\n' > $out/impl.c
# shellcheck disable=SC2086  # FLAGS is a list
$CC $FLAGS -c $out/impl.c -o $impl || exit 2

# --- worked numbers: page -> build/docs/<page>.<n>.c and .want --------------------------------

blocks() {
    awk -v base="$1" '
        function emit(    f) {
            f = base "." n ".c"
            printf "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n" > f
            printf "#include <math.h>\n#include <inttypes.h>\n#include \"trillion.h\"\n" > f
            if (!main) printf "int main(void)\n{\n" > f
            printf "#line %d \"%s\"\n%s", line, page, code > f
            if (!main) printf "return 0;\n}\n" > f
            close(f)
        }
        FNR == 1 { page = FILENAME }
        /^```/ {
            if (in_code)      { in_code = 0; emit(); wait = 1 }
            else if (in_want) { in_want = 0; wait = 0; close(want) }
            else if (in_else) in_else = 0
            else if ($0 == "```c run") {
                if (wait) print page ": block " n " has no output after it"
                in_code = 1; n++; code = ""; main = 0; line = FNR + 1
            } else if ($0 == "```text output") {
                if (!wait) print page ":" FNR ": output without a block before it"
                in_want = 1; want = base "." n ".want"; printf "" > want
            } else in_else = 1
            next
        }
        in_code { code = code $0 "\n"; if ($0 ~ /(^|[^A-Za-z0-9_])main *\(/) main = 1 }
        in_want { print > want }
        END {
            if (wait) print page ": block " n " has no output after it"
            if (in_code || in_want || in_else) print page ": a fence is not closed"
        }' "$2"
}

# --- links: "line target" of every [text](target) outside code ------------------------------

links() {
    awk '/^```/ { code = !code; next }
         !code {
             gsub(/`[^`]*`/, "")
             while (match($0, /\]\([^)]*\)/)) {
                 print FNR, substr($0, RSTART + 2, RLENGTH - 3)
                 $0 = substr($0, RSTART + RLENGTH)
             }
         }' "$1"
}

# The anchors that a page offers: its headings, lower case, words joined by hyphens.
anchors() {
    awk '/^```/ { code = !code; next }
         !code && /^#+ / {
             sub(/^#+ +/, ""); s = tolower($0)
             gsub(/[][`*_{}().,:;!?"\/+=<>|&%$@~^'"'"']/, "", s); gsub(/ /, "-", s); print s
         }' "$1"
}

# Tags in the first line of a page, and those of a header's chapters.
tags()     { sed -n 1p "$1" | grep -o '{[a-z]*}' | tr -d '{}' | sort -u; }
chapters() { sed -n 's/^ \* [0-9]*\. [^{]*{\([a-z]*\)}.*/\1/p' "$1" | sort -u; }

for page in "$@"; do
    [ -f "$page" ] || { fail "$page: no such page"; continue; }
    base=$out/$(echo "$page" | sed 's/\.md$//; s,/,_,g')

    blocks "$base" "$page" > "$base.log"
    if [ -s "$base.log" ]; then fail "$page: blocks" "$base.log"; fi
    n=0
    while n=$((n + 1)); [ -f "$base.$n.c" ]; do
        [ -f "$base.$n.want" ] || continue
        # shellcheck disable=SC2086
        if ! $CC $FLAGS -Wextra "$base.$n.c" $impl -o "$base.$n" -lm > "$base.log" 2>&1; then
            fail "$page: block $n does not compile" "$base.log"
        elif ! "$base.$n" > "$base.$n.got" 2>&1; then
            fail "$page: block $n does not exit 0" "$base.$n.got"
        elif ! diff "$base.$n.want" "$base.$n.got" > "$base.log"; then
            fail "$page: block $n: < page, > printed" "$base.log"
        else
            ok "$page: block $n"
        fi
    done

    links "$page" > "$base.links"
    bad=0
    while read -r line target; do
        file=${target%%#*} anchor=
        case $target in
            *://*|mailto:*) continue ;;
            *#*) anchor=${target#*#} ;;
        esac
        if [ -z "$file" ]; then file=$page; else file=$(dirname "$page")/$file; fi
        if [ ! -e "$file" ]; then
            fail "$page:$line: $target does not exist"; bad=1
        elif [ -n "$anchor" ] && ! anchors "$file" | grep -qx -e "$anchor"; then
            fail "$page:$line: $target: no such heading"; bad=1
        fi
    done < "$base.links"
    if [ $bad -eq 0 ] && [ -s "$base.links" ]; then
        ok "$page: $(wc -l < "$base.links" | tr -d ' ') links"
    fi

    case $page in
        docs/[0-9][0-9]-*.md) ;;
        *) continue ;;
    esac
    chapter=$(basename "$page" .md)
    tag=${chapter#??-}
    nr=$(expr "${chapter%%-*}" : '0*\([0-9]*\)')
    if [ "$nr" -ge 40 ]; then
        tags "$page" > "$base.tags"
        chapters trillion_mpi.h > "$base.chapters"
        if diff "$base.chapters" "$base.tags" > "$base.log"; then
            ok "$page: $(wc -l < "$base.tags" | tr -d ' ') chapters of trillion_mpi.h"
        else
            fail "$page: < chapters of trillion_mpi.h, > tags in its title" "$base.log"
        fi
    elif grep -q "^ \* $nr\. .*{$tag}" trillion.h; then
        ok "$page: chapter $nr {$tag}"
    else
        fail "$page: trillion.h has no chapter \"$nr. ... {$tag}\""
    fi
    [ -f "$base.1.c" ] || fail "$page: no worked number"

    src=docs/exercises/$chapter.c
    ex=$out/exercise_$chapter
    [ -f "$src" ] || { fail "$page: no exercise $src"; continue; }
    grep -q "^ *cc .*$src" "$page" || fail "$page: does not say how to build $src"
    sed 's/^#define TRILLION_IMPLEMENTATION$//' "$src" > "$ex.c"
    # shellcheck disable=SC2086
    if ! $CC $FLAGS "$ex.c" $impl -o "$ex" -lm > "$ex.log" 2>&1 ||
       ! $CC $FLAGS -DSOLUTION "$ex.c" $impl -o "$ex.solved" -lm > "$ex.log" 2>&1; then
        fail "$src: does not compile" "$ex.log"; continue
    fi
    "$ex" > "$ex.log" 2>&1; status=$?
    [ $status -eq 1 ] || fail "$src: exits $status without the solution, should be 1" "$ex.log"
    "$ex.solved" > "$ex.log" 2>&1; solved=$?
    if [ $solved -ne 0 ] || [ "$(tail -n 1 "$ex.log")" != right ]; then
        fail "$src: -DSOLUTION exits $solved and does not end with \"right\"" "$ex.log"
    elif [ $status -eq 1 ]; then
        ok "$src"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
