#!/bin/sh
# Feeds each reader inputs that grow from its corpus: sh tests/fuzz.sh SECONDS
# tests/fuzz_NAME.c has LLVMFuzzerTestOneInput; tests/corpus/NAME/ holds inputs that once mattered
# and tests/corpus/NAME.dict, if there, its words. What crashes is left in build/fuzz/. Needs clang
# with its fuzzer and sanitizers.
seconds=${1:-60}
. tests/lib.sh
mkdir -p build/fuzz
for f in tests/fuzz_*.c; do
    [ -e "$f" ] || break
    name=$(basename "$f" .c)
    name=${name#fuzz_}
    mkdir -p "build/fuzz/$name.new" "tests/corpus/$name"
    libs=-lm
    [ "$name" != image ] || libs="-ljpeg -lm"
    clang -std=c11 $NUMERIC -g -O1 -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=undefined -o "build/fuzz/$name" "$f" $libs ||
        { bad "$name"; continue; }
    dict=
    [ -e "tests/corpus/$name.dict" ] && dict=-dict=tests/corpus/$name.dict
    check "$name, $seconds s" "build/fuzz/$name" -max_total_time="$seconds" -max_len=65536 $dict \
        -artifact_prefix="build/fuzz/$name-" "build/fuzz/$name.new" "tests/corpus/$name"
done
end
