#!/bin/sh
# The header itself: how it may be included, by which compilers, what its object holds, and whether
# its contents list tells the truth.
. tests/lib.sh
t=build/header
rm -rf $t
mkdir -p $t

# ---- ways to include it

cat > $t/impl.c <<'END'
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
END
cat > $t/twice.c <<'END'
#include "trillion.h"
#include "trillion.h"
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
#include "trillion.h"
END
cat > $t/user.c <<'END'
#include "trillion.h"
#include <stdio.h>
int main(void)
{
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    if (tr_selftest(ctx) != TR_OK) { printf("%s\n", tr_err_last(ctx)); return 1; }
    tr_ctx_free(ctx);
    return 0;
}
END
cat > $t/static.c <<'END'
#define TR_STATIC 1
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
int main(void)
{
    tr_ctx *ctx;
    if (tr_ctx_new(&ctx, NULL) != TR_OK) return 1;
    tr_ctx_free(ctx);
    return 0;
}
END
cat > $t/assert.c <<'END'
#include <assert.h>
#define TR_ASSERT(c) assert(c)
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
END

openmp=$(sh tests/openmp.sh $CC)
c11="$CC -std=c11 -O2 $openmp $NUMERIC $WARN $WARN_C -I."
quiet 'the implementation, no warning' $c11 -fno-pic -c -o $t/impl.o $t/impl.c
quiet 'the declarations alone' $c11 -fno-pic -c -o $t/user.o $t/user.c
quiet 'two translation units link' $c11 -no-pie -o $t/two $t/impl.o $t/user.o -lm
check 'and run' $t/two
quiet 'included twice, before and after' $c11 -fsyntax-only $t/twice.c
quiet 'TR_STATIC: one file, nothing unused' $c11 -o $t/static $t/static.c -lm
check 'and runs' $t/static
quiet 'TR_NO_OPENMP' $c11 -DTR_NO_OPENMP=1 -fsyntax-only $t/impl.c
quiet 'TR_NO_MMAP' $c11 -DTR_NO_MMAP=1 -fsyntax-only $t/impl.c
quiet 'TR_ASSERT' $c11 -fsyntax-only $t/assert.c
said=$($c11 -ffast-math -fsyntax-only $t/impl.c 2>&1) &&
    bad 'fast-math is refused' 'it compiled' || ok 'fast-math is refused'

# ---- compilers and languages

for cc in gcc clang; do
    have $cc || continue
    quiet "$cc -std=c11" $cc -std=c11 $NUMERIC $WARN $WARN_C -I. -O1 -c -o $t/o $t/impl.c
done
for cc in g++ clang++; do
    have $cc || continue
    for std in c++11 c++17; do
        quiet "$cc -std=$std" $cc -x c++ -std=$std $NUMERIC $WARN -I. -fsyntax-only $t/impl.c
    done
    quiet "$cc, declarations, then a C object" \
        $cc -x c++ -std=c++11 $NUMERIC $WARN -I. -no-pie -o $t/mixed $t/user.c -x none $t/impl.o \
        $openmp -lm
done
m32='-m32 -msse2 -mfpmath=sse'
if $CC $m32 -std=c11 -o $t/m32 $t/user.c -I. -fsyntax-only 2> /dev/null; then
    quiet '32 bits' $CC $m32 -std=c11 $NUMERIC $WARN $WARN_C -I. -fsyntax-only $t/impl.c
fi

# ---- what the object holds

if have nm; then
    said=$(nm $t/impl.o | awk '$2 ~ /^[BbDdCSs]$/ { print $2, $3 }')
    [ -z "$said" ] && ok 'no writable data' || bad 'no writable data' "$said"
    said=$(nm -u $t/impl.o | awk '{ print $NF }' | grep -Ex \
        '_*(f?printf|vf?printf|puts|putchar|perror|exit|abort|getenv|s?rand|random)(_chk)?')
    [ -z "$said" ] && ok 'no printing, exit, environment or hidden randomness' ||
        bad 'no printing, exit, environment or hidden randomness' "$said"
    said=$(nm -g $t/impl.o | awk '$2 ~ /^[A-TV-Z]$/ && $3 !~ /^tr_/ { print $3 }')
    [ -z "$said" ] && ok 'every public symbol starts with tr_' ||
        bad 'every public symbol starts with tr_' "$said"
fi

# ---- the text

same() { [ "$2" = "$3" ] && ok "$1" || bad "$1" "$(printf '%s\n--\n%s' "$2" "$3")"; }
listed=$(sed -n '/^ \* CONTENTS/,/^ \* READING PATHS/p' trillion.h |
    grep -oE '[0-9]+ \{[a-z]+\}' | sort -n | tr '\n' ' ')
banners() { sed -n 's/^ \* \([0-9]*\)\. .*{\([a-z]*\)}$/\1 {\2}/p' | tr '\n' ' '; }
declared=$(sed '/^#endif \/\* TRILLION_H \*\//q' trillion.h | banners)
written=$(sed -n '/^#endif \/\* TRILLION_H \*\//,$p' trillion.h | banners)
same 'the contents list is the implementation' "$listed" "$written"
same 'and the declarations, without the system' "${listed%36 *}" "$declared"

sources=$(ls trillion.h trillion_mpi.h tools/*.[ch] examples/*.c 2> /dev/null)
# The first line of an example is the command that builds it, in one piece.
said=$(awk 'length > 100 && !(FNR == 1 && /^\/\* (mpi)?cc /) { print FILENAME ":" FNR ": " $0 }' $sources)
[ -z "$said" ] && ok 'no line over 100 columns' || bad 'no line over 100 columns' "$said"

# Comments may cite a vendor's module; code may not know one, outside {cfg}. The word llama3 is
# exempt: configs call a way to scale rope so, whatever the family.
said=$(awk '
    /^ \* [0-9]+\. .*\{[a-z]+\}$/ { cfg = /\{cfg\}/ }
    {
        line = $0; code = ""
        while (line != "") {
            if (inside) {
                i = index(line, "*/")
                if (!i) break
                inside = 0; line = substr(line, i + 2)
            } else {
                i = index(line, "/*")
                if (!i) { code = code line; break }
                code = code substr(line, 1, i - 1)
                inside = 1; line = substr(line, i + 2)
            }
        }
        sub(/\/\/.*/, "", code)
        code = tolower(code)
        gsub(/llama3/, "", code)
        if (!cfg && code ~ /kimi|deepseek|llama/) print FNR ": " $0
    }' trillion.h)
[ -z "$said" ] && ok 'no family by name outside {cfg}' || bad 'no family by name outside {cfg}' "$said"

said=$(grep -nE '\b(TODO|FIXME|XXX)\b' $sources)
[ -z "$said" ] && ok 'nothing left to do' || bad 'nothing left to do' "$said"
said=$(grep -nE '\b(tri|TRI)_' $(echo $sources | sed 's/trillion\.h//; s/trillion_mpi\.h//')
       grep -nE '\b(tri|TRI)_[a-zA-Z]' trillion_mpi.h | grep -vE '\b(tri_mpi|TRI_MPI)_|tri_s_')
[ -z "$said" ] && ok 'tools and examples use public names' ||
    bad 'tools and examples use public names' "$said"
end
