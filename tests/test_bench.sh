#!/bin/sh
# `trillion bench` in tiny sizes: every measure has its rows, the JSON parses, and the table stands
# in a README between its markers. No time is judged here.
. tests/lib.sh
T=build/trillion
W=build/bench-test
rm -rf $W
mkdir -p $W

measures='read product-512 product-256 product-odd product-8 row-f32 row-bf16 row-fp8-block
    row-mxfp4 decode base subnormal subnormal-base'
rows() { grep -c "\"name\":\"$1\",.*\"threads\":$2," $W/out.json; }

# bench NAME OPTIONS...: one JSON object, and a row of every measure with one thread.
bench() {
    name=$1 missing=
    shift
    $T bench --quick --json "$@" > $W/out.json 2> $W/err || { bad "$name" "$(cat $W/err)"; return; }
    if have python3 && ! python3 -m json.tool $W/out.json > /dev/null; then bad "$name: JSON"; fi
    for m in $measures; do [ "$(rows $m 1)" -eq 1 ] || missing="$missing $m"; done
    [ -z "$missing" ] && ok "$name" || bad "$name" "no row of$missing"
}

table() { awk -v json=$W/out.json -v flags=-O2 -v commit=1a2b3c4 -f tools/bench_table.awk "$1"; }

$T tiny $W/model --family llama > $W/err 2>&1
$T tiny $W/untied --family llama --set tie_word_embeddings=false >> $W/err 2>&1
$T tiny $W/experts --family deepseek_v3 >> $W/err 2>&1

bench 'a quick run' --threads 3 --model $W/model
for m in $measures; do
    [ "$(rows $m 3)" -eq 1 ] || bad "$m has a row with all threads"
done
said=$(grep '"name"' $W/out.json | grep '"why":null' | grep -E '"(peer|ratio)":null' |
    grep -v '"name":"read"')
[ -z "$said" ] && ok 'what was measured has a ratio' || bad 'what was measured has a ratio' "$said"

printf 'before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n' > $W/readme
table $W/readme > $W/readme.new
[ "$(sed -n '1,2p' $W/readme.new; tail -n 2 $W/readme.new)" = "$(grep -v old $W/readme)" ] &&
    ok 'the table stands between the markers' || bad 'the table' "$(cat $W/readme.new)"
[ "$(grep -c '^|' $W/readme.new)" -eq 14 ] && ! grep -q '^old' $W/readme.new &&
    ! grep '^|' $W/readme.new | grep -vqE '^(\|[^|]*){5}\|$' &&
    ok 'a line of five cells for each measure' || bad 'a line of five cells' "$(cat $W/readme.new)"
grep -q 'commit 1a2b3c4' $W/readme.new && grep -q '1 · 3 threads' $W/readme.new &&
    ok 'and says where it is from' || bad 'and says where it is from' "$(cat $W/readme.new)"
table $W/readme.new > $W/again
cmp -s $W/again $W/readme.new && ok 'written again it is the same' || bad 'written again'
table CONTRIBUTING.md > /dev/null && bad 'a page without markers' || ok 'a page without markers'

bench 'one thread, no peer' --threads 1 --blas $W/nowhere.so
grep -q 'nowhere.so cannot be loaded.*apt install' $W/err && grep -q '"blas":null' $W/out.json &&
    ok 'says what to install' || bad 'says what to install' "$(cat $W/err)"
[ "$(grep -c '"why":"OpenBLAS cannot be loaded"' $W/out.json)" -eq 4 ] &&
    ok 'and leaves out what needs it' || bad 'and leaves out what needs it' "$(cat $W/out.json)"
table $W/readme > $W/readme.new
grep -q 'not measured: OpenBLAS' $W/readme.new && ok 'the table tells' || bad 'the table tells'
bench 'an embedding beside the head' --threads 1 --model $W/untied
bench 'a model with experts' --threads 1 --model $W/experts
grep '"name":"decode"' $W/out.json | grep -q '"why":"' && ok 'is not decoded' ||
    bad 'is not decoded' "$(cat $W/out.json)"

$T bench --quick --json --only 'row-*' --only base > $W/out.json 2> $W/err
[ "$(rows 'row-[a-z0-9-]*' 1)$(rows base 1)$(rows '[a-z0-9-]*' 1)" = 415 ] && ok 'some of them' ||
    bad 'some of them' "$(cat $W/out.json $W/err)"
$T bench --only gemm > $W/out 2> $W/err
[ $? -eq 2 ] && [ ! -s $W/out ] && grep -q "'gemm'.*row-f32" $W/err && ok 'none of them' ||
    bad 'none of them' "$(cat $W/out $W/err)"
$T bench --quick --model $W/nowhere > $W/out 2> $W/err
[ $? -eq 2 ] && [ ! -s $W/out ] && grep -q nowhere $W/err && ok 'a model that is not there' ||
    bad 'a model that is not there' "$(cat $W/out $W/err)"
$T bench --quick --threads 1 > $W/out 2> $W/err && grep -q '^one row, mxfp4' $W/out &&
    ok 'and as text' || bad 'and as text' "$(cat $W/out $W/err)"
end
