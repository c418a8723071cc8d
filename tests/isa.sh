#!/bin/sh
# The same bits on processors that this machine is not: x86-64 without FMA and with another one's,
# aarch64 and riscv64, emulated by qemu. The shortest prompt of each model against
# tests/golden/bits.txt. A tool that is missing fails, with the package that has it.
. tests/lib.sh
dir=build/isa
models=$(awk '!/^#/ && !seen[$1]++ { print $1 }' tests/golden/bits.txt)
export OMP_WAIT_POLICY=passive

# Name, compiler, emulator, its flags, packages.
machines() {
    echo 'x86-64-no-fma-gcc gcc qemu-x86_64 -cpu,Nehalem qemu-user,gcc'
    echo 'x86-64-no-fma-clang clang qemu-x86_64 -cpu,Nehalem qemu-user,clang'
    echo 'x86-64-haswell-gcc gcc qemu-x86_64 -cpu,Haswell qemu-user,gcc'
    echo 'aarch64 aarch64-linux-gnu-gcc qemu-aarch64 - qemu-user,gcc-aarch64-linux-gnu'
    echo 'riscv64 riscv64-linux-gnu-gcc qemu-riscv64 - qemu-user,gcc-riscv64-linux-gnu'
}

# one LEVEL NAME CC QEMU FLAGS PACKAGES
one() {
    exe=$dir/$2$1
    flags=$(echo "$5" | tr ',' ' ')
    [ "$flags" = - ] && flags=
    here=x86_64
    case $2 in x86*) here=$(uname -m) ;; esac           # that compiler is the machine's own
    if ! have "$3" || ! have "$4" || [ "$here" != x86_64 ]; then
        echo "missing" > "$exe.out"
        return
    fi
    omp=$(sh tests/openmp.sh "$3" -static)
    # shellcheck disable=SC2086
    nice $3 -std=c11 $1 -static $NUMERIC $omp -w -I. -o $exe tests/bits.c -lm 2> $exe.out || return
    # shellcheck disable=SC2086
    nice $4 $flags $exe tests/golden short best > $exe.out 2>&1
    echo "exit $?" >> $exe.out
}

if [ "${1:-}" = --one ]; then
    shift
    one "$@"
    exit 0
fi

rm -rf $dir
mkdir -p $dir
begun=$(date +%s)
for level in -O0 -O2; do machines | sed "s/^/$level /"; done > $dir/builds
xargs -P 2 -L 1 sh tests/isa.sh --one < $dir/builds

printf '%-24s %-5s %-8s' machine level cpu
for m in $models; do printf '  %-18s' "$m"; done
echo
while read -r level name cc qemu flags packages; do
    out=$dir/$name$level.out
    if [ "$(cat "$out")" = missing ]; then
        bad "$name $level: needs $cc and $qemu (packages $packages; x86-64 on such a machine)"
        continue
    elif [ "$(tail -n 1 "$out")" != 'exit 0' ]; then
        bad "$name $level" "$(tail -n 5 "$out")"
        continue
    fi
    printf '%-24s %-5s %-8s' "$name" "$level" "$(awk 'NF == 9 { print $6; exit }' "$out")"
    for m in $models; do
        said=$(awk -v m="$m" '
            $1 != m { next }
            NF == 5 { want[$2] = substr($3, 1, 16) substr($4, 1, 16) substr($5, 1, 16) }
            NF == 9 { n++; bad += want[$2] != $7 $8 $9 }
            END { print n + 0, bad + 0 }' tests/golden/bits.txt "$out")
        if [ "${said% *}" -gt 0 ] && [ "${said#* }" -eq 0 ]; then
            printf '  %-18s' "ok ${said% *}"
            passed=$((passed + 1))
        else
            printf '  %-18s' "${said#* } of ${said% *} DIFFER"
            failed=$((failed + 1))
        fi
    done
    echo
done < $dir/builds
echo "$(($(date +%s) - begun)) s"
end
