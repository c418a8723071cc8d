#!/bin/sh
# Flags under which a compiler may give other numbers than the contract. Each must be refused, by
# #error when the header is compiled or by tr_ctx_new with a sentence; or change no bit, which is
# then shown with whole models. Never other bits.
#
# HOSTILE="gcc clang" does that for these compilers at LEVELS, which are -O2 -O3 unless given. Else
# it is $CC at -O2, without the rows marked long, and what passes the self-test is believed.
. tests/lib.sh
full=${HOSTILE:-}
t=build/hostile-$(echo "${full:-$CC}" | tr -cd 'a-z0-9')
rm -rf "$t"
mkdir -p "$t"
export OMP_WAIT_POLICY=passive

# Prints "CPU: SENTENCE" for each cpu of this machine that is refused; with an argument, how many
# there are.
cat > $t/self.c <<'END_C'
#define TR_STATIC 1
#define TRILLION_IMPLEMENTATION
#include "trillion.h"
int main(int argc, char **argv)
{
    int here = 0;
    (void)argv;
    for (int c = TR_CPU_BASE; c < TR_CPU_COUNT; c++) {
        tr_ctx_opts o;
        tr_ctx *ctx;
        tr_status s;
        memset(&o, 0, sizeof o);
        o.cpu = (tr_cpu)c;
        s = tr_ctx_new(&ctx, &o);
        if (!strstr(tr_err_last(ctx), "this machine is no")) {
            here++;
            if (s != TR_OK && argc == 1) printf("%s: %s\n", tr_cpu_name(o.cpu), tr_err_last(ctx));
        }
        tr_ctx_free(ctx);
    }
    if (argc > 1) printf("%d\n", here);
    return 0;
}
END_C

# What a flag must come to: "refused", in either way; "same", which must be accepted; "either".
# Without an instruction that fuses, nothing is fused and nothing to refuse.
if grep -qw fma /proc/cpuinfo 2> /dev/null || [ "$(uname -m)" != x86_64 ]; then fuses=refused
else fuses=either; fi
flags() {
    cat <<END_FLAGS
same    -      -ffp-contract=off
$fuses  -      -ffp-contract=fast
$fuses  long   -std=gnu17 -ffp-contract=fast
refused -      -ffp-contract=fast -mfma
refused long   -ffp-contract=fast -march=native
either  long   -ffp-contract=on -march=native
refused -      -ffast-math
refused -      -Ofast
refused -      -funsafe-math-optimizations
refused -      -fassociative-math -fno-signed-zeros -fno-trapping-math
refused -      -freciprocal-math
refused -      -ffinite-math-only
refused -      -fno-honor-nans
either  long   -fno-honor-infinities
refused -      -fno-signed-zeros
same    long   -fno-trapping-math
same    long   -ftrapping-math
same    -      -frounding-math
same    long   -fno-math-errno
same    long   -fno-builtin
either  long   -fapprox-func
either  long   -mrecip
either  -      -fsingle-precision-constant
either  long   -fdenormal-fp-math=preserve-sign
either  long   -ffp-model=strict
refused long   -ffp-model=fast
refused -      -mfpmath=387
refused long   -m32 -mfpmath=387
either  long   -m32 -msse2 -mfpmath=sse
refused long   -mdaz-ftz
END_FLAGS
}

# verdict CC LEVEL FLAGS...: prints it; "refused ..", "same", "OTHER BITS ..", "unknown flag"
verdict() {
    cc=$1 level=$2
    shift 2
    base="$cc -std=c11 $level $NUMERIC -w -I."
    echo 'int main(void) { return 0; }' > $t/empty.c
    if ! $base "$@" -o $t/empty $t/empty.c 2> /dev/null; then
        echo "no such flag, or no library for it"
        return
    fi
    if ! $base "$@" -o $t/self $t/self.c -lm 2> $t/log; then
        said=$(sed -n 's/.*error: *\(#error *\)*"\(trillion\.h: [^;"]*\).*/\2/p' $t/log | head -n 1)
        if [ -n "$said" ]; then echo "refused by #error: $said"; else echo "DOES NOT COMPILE"; fi
        return
    fi
    if ! $t/self > $t/said 2>&1; then echo "CRASHES"; return; fi
    cpus_here=$($t/self count)
    if [ -s $t/said ]; then
        cpus=$(sed 's/:.*//' $t/said | tr '\n' ' ')
        said="refused by self-test (${cpus% }): $(sed -n '1s/^[^:]*: //; s/;.*//; 1p' $t/said)"
        [ -n "$full" ] && [ "$(grep -c . $t/said)" -lt "$cpus_here" ] || { echo "$said"; return; }
    else
        said=
        [ -z "$full" ] && { echo "same: passes the self-test"; return; }
    fi
    $base "$@" -o $t/bits tests/bits.c -lm 2> $t/log || { echo "DOES NOT COMPILE"; return; }
    runs=0
    for cpu in base avx2 avx512; do             # a cpu that was not refused must be right
        $t/bits tests/golden short $cpu > $t/out 2>&1 || continue
        other=$(awk '
            /^#/ { next }
            NF == 5 { want[$1, $2] = substr($3, 1, 16) substr($4, 1, 16) substr($5, 1, 16) }
            NF == 9 { n++; bad += want[$1, $2] != $7 $8 $9 }
            END { print n ? bad + 0 : "none" }' tests/golden/bits.txt $t/out)
        [ "$other" = 0 ] || { echo "OTHER BITS on $cpu"; return; }
        runs=$((runs + 1))
    done
    if [ -n "$said" ] && [ $runs -eq 0 ]; then echo "$said"
    elif [ -n "$said" ]; then echo "$said; else same bits"
    else echo "same bits on $runs cpus"
    fi
}

row() {
    must=$1 cc=$2 level=$3
    shift 3
    found=$(verdict "$cc" "$level" "$@")
    line=$(printf '%-5s %-3s %-58s %s' "$cc" "$level" "$*" "$found")
    case $must,$found in
    *,'no such flag'*)                        echo "   $line" ;;
    refused,refused* | either,refused*)        ok "$line" ;;
    same,same* | either,same*)                 ok "$line" ;;
    *)                                         bad "$line (must be $must)" ;;
    esac
}

if [ -n "$full" ]; then compilers=$full levels=${LEVELS:--O2 -O3}; else compilers=$CC levels=-O2; fi
for cc in $compilers; do
    have "$cc" || { bad "$cc is not installed"; continue; }
    for level in $levels; do
        flags > $t/flags
        while read -r must long list; do
            [ -n "$full" ] || [ "$long" = - ] || continue
            # shellcheck disable=SC2086  # list is a list
            row "$must" "$cc" "$level" $list
        done < $t/flags
    done
done

# Start-up code that sets the processor to flush: linked in by -ffast-math at the last step alone.
case $(uname -m) in x86_64)
    for cc in $compilers; do
        have "$cc" || continue
        # shellcheck disable=SC2086
        if $cc -std=c11 -O2 $NUMERIC -w -I. -c -o $t/self.o $t/self.c &&
           $cc -ffast-math -o $t/self $t/self.o -lm && $t/self > $t/said && [ -s $t/said ]; then
            ok "$cc linked with -ffast-math: refused by self-test:$(sed -n "1s/^[^:]*://p" $t/said)"
        else
            bad "$cc linked with -ffast-math: passes"
        fi
    done
esac
end
