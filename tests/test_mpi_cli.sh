#!/bin/sh
# trillion-mpi against trillion: the same files and ids, byte for byte, whatever the layout; and of
# each failure one sentence, a code that is not 0 and no process left.
. tests/lib.sh
. tests/mpi_lib.sh
T=build/trillion
M=build/trillion-mpi
W=build/mpi-cli
rm -rf $W
mkdir -p $W/tmp
need_mpi
export OMPI_MCA_orte_execute_quiet=1            # without Open MPI's boxes
export TMPDIR=$PWD/$W/tmp
launch="$MPIRUN $BIND"

# over N ARGUMENTS...: trillion-mpi on N ranks.
over() { n=$1; shift; $launch -np "$n" $M "$@" --threads 1 --deadline 60; }

# sh $W/each.sh [@FOLDER] ARGUMENTS... // [@FOLDER] ARGUMENTS...: trillion-mpi with those before
# the slashes on rank 0, those behind them on the others. (Launchers have a colon for it, and crash.)
cat > $W/each.sh <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} program=$1 mine=
shift
for a; do
    case $a in
    //) [ "$rank" != 0 ] || break; mine= ;;
    @*) cd "${a#@}" || exit 3 ;;
    *) mine="$mine $a" ;;
    esac
done
exec "$program" $mine
END
each="sh $PWD/$W/each.sh $PWD/$M"

# gives NAME RANKS CODE "WORDS" ARGUMENTS...: exit code, words; of a failure one sentence and nothing
# on stdout. Ranks that the launcher ends in MPI_Init may say that.
gives() {
    name=$1 n=$2 code=$3 words=$4
    shift 4
    $launch -np "$n" ${by:-$M} "$@" > $W/out 2> $W/err < /dev/null
    got=$? why=
    [ $got -eq "$code" ] || why="exit code $got, expected $code"
    for w in $words; do
        grep -qF -- "$w" $W/out $W/err || why="$why; no \"$w\""
    done
    if [ "$code" -eq 2 ]; then
        [ -s $W/out ] && why="$why; stdout is not empty"
        said=$(grep -c '^trillion-mpi: ' $W/err)
        aside=$(grep -cE '^trillion-mpi: (warning: |events of the ranks |`trillion postmortem )| s spent, about |in step MPI_Init$' $W/err)
        [ $((said - aside)) = 1 ] || why="$why; not one sentence"
    fi
    [ -z "$why" ] && ok "$name" || bad "$name" "$why
$(cat $W/out $W/err)"
}

# The same of arguments that are wrong by themselves: there are no rings yet.
early() {
    gives "$@"
    grep -q 'events of the ranks' $W/err && bad "$1: before the rings" "$(cat $W/err)"
}

# ---- The same file

# golden NAME "RANKS:LAYOUT..." ARGUMENTS...: of one rank, and of each of these.
golden() {
    name=$1 list=$2
    shift 2
    $T golden "$@" -o $W/one.st --json > $W/one.json 2> $W/err || { bad "$name" "$(cat $W/err)"; return; }
    for l in $list; do
        rm -f $W/many.st
        if over "${l%%:*}" golden "$@" -o $W/many.st --json --layout "${l#*:}" \
                > $W/many.json 2> $W/err && cmp -s $W/one.st $W/many.st; then
            ok "golden $name, $l"
        else bad "golden $name, $l" "$(cat $W/err; cmp $W/one.st $W/many.st)"; fi
        sed 's/many\.st/one.st/' $W/many.json | cmp -s - $W/one.json ||
            bad "golden $name, $l, --json" "$(cat $W/many.json)"
    done
}

K=tests/golden/kimi_k3
F=tests/golden/families
golden 'Kimi K3' '1:ep=1 2:ep=2 3:tp=3 4:pp=2,cp=2' $K/text-c --ids $K/text-c/expected.safetensors \
    --tap '*' --chunk 61
for tap in '*gate*' '*g_proj' '*up_proj' '*o_norm'; do      # whole beside what is in part
    golden "one operand tapped, $tap" '3:tp=3' $K/text-c --ids $K/text-c/expected.safetensors \
        --tap "$tap" --chunk 61
done
printf '%s\n' '1 2 300 4' '9' '7 5 300 3 2 1' > $W/see.txt
media=$(sed -n 's/.*"media_placeholder_token_id": *\([0-9]*\).*/\1/p' $K/multimodal/config.json)
sed -i.bak "s/300/$media/" $W/see.txt
golden 'with pictures' '2:ep=2 4:pp=2,ep=2' $K/multimodal --ids $W/see.txt \
    --image $K/multimodal/picture-0.png --image $K/multimodal/picture-1.png --hash-weights
golden 'pictures alone' '2:tp=2' $K/multimodal --image $K/multimodal/picture-1.png
golden 'DeepSeek-V3' '2:cp=2 3:ep=3' $F/deepseek_v3 --ids $F/deepseek_v3/expected.safetensors
golden 'Llama 3' '2:pp=2 4:tp=2,ep=2' $F/llama3 --ids $F/llama3/expected.safetensors
golden 'in binary64' '2:ep=2' $F/deepseek_v3 --ids $F/deepseek_v3/expected.safetensors \
    --profile oracle

# ---- Layers in part

printf '%s\n' '1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17' '42' '9 8 7 6 5' > $W/ids.txt
$T golden $K/text-a --ids $W/ids.txt -o $W/k3.st 2> /dev/null
$T golden $F/deepseek_v3 --ids $W/ids.txt -o $W/ds.st 2> /dev/null
golden 'layers 5-8, two block sums' '1:ep=1 2:pp=2 2:tp=2 2:ep=2 2:cp=2 4:pp=2,cp=2' $K/text-a \
    --ids $W/ids.txt --layers 5-8 --input $W/k3.st --tap '*' --chunk 7
golden 'layers 4-6, short of the last' '2:pp=2 4:tp=2,ep=2' $K/text-a --ids $W/ids.txt \
    --layers 4-6 --input $W/k3.st
golden 'layers 0-2' '2:cp=2 3:pp=3' $K/text-a --ids $W/ids.txt --layers 0-2 --tap '*layers.*'
golden 'layer 5 alone' '3:ep=3' $K/text-a --ids $W/ids.txt --layers 5 --input $W/k3.st
golden 'DeepSeek-V3, layers 1-3' '2:ep=2 2:cp=2 3:pp=3 3:tp=3' $F/deepseek_v3 --ids $W/ids.txt \
    --layers 1-3 --input $W/ds.st --chunk 3 --tap '*' --tap 'state.*'
golden 'layers 1-2 in binary64' '2:pp=2' $F/deepseek_v3 --ids $W/ids.txt --layers 1-2 \
    --input $W/ds.st --profile oracle
$T golden $F/llama3 --ids $W/ids.txt -o $W/llama.st 2> /dev/null
golden 'Llama 3, layers 2-3' '2:ep=2 2:tp=2' $F/llama3 --ids $W/ids.txt --layers 2-3 \
    --input $W/llama.st
$T golden $K/multimodal --ids $W/see.txt --image $K/multimodal/picture-0.png \
    --image $K/multimodal/picture-1.png -o $W/see.st 2> /dev/null
golden 'layers behind pictures' '2:ep=2' $K/multimodal --ids $W/see.txt \
    --image $K/multimodal/picture-0.png --image $K/multimodal/picture-1.png --layers 2-3 \
    --input $W/see.st

# ---- The same ids

for d in $K/text-c $F/deepseek_v3 $F/llama3; do
    $T run $d --ids $W/ids.txt -n 6 --chunk 5 > $W/one.ids 2> $W/err
    for l in 2:ep=2 3:cp=3 4:tp=2,pp=2; do
        if over ${l%%:*} run $d --ids $W/ids.txt -n 6 --chunk 5 --layout ${l#*:} \
                > $W/many.ids 2> $W/err && cmp -s $W/one.ids $W/many.ids; then ok "run $d, $l"
        else bad "run $d, $l" "$(cat $W/err $W/many.ids)"; fi
    done
done

$T tiny $W/biased --family llama --set attention_bias=true --set mlp_bias=true 2> $W/err
$T golden $W/biased --ids $W/ids.txt -o $W/one.st --tap '*' 2> $W/err
over 3 golden $W/biased --ids $W/ids.txt -o $W/many.st --tap '*' --layout tp=3 2> $W/err &&
    cmp -s $W/one.st $W/many.st && ok 'bands with biases' || bad 'bands with biases' "$(cat $W/err)"

# ---- Who holds which expert

$T golden $F/deepseek_v3 --ids $W/ids.txt -o $W/load.st 2> /dev/null
$T run $F/deepseek_v3 --ids $W/ids.txt -n 3 > $W/one.ids 2> /dev/null
mapped() {                          # mapped NAME EXPERTS...
    name=$1
    shift
    if over 2 run $F/deepseek_v3 --ids $W/ids.txt -n 3 --report --experts "$@" \
            > $W/many.ids 2> $W/err && cmp -s $W/one.ids $W/many.ids; then ok "$name"
    else bad "$name" "$(cat $W/err)"; fi
}
took() { awk -v kind="$1" '$1 == kind { print $2 }' $W/err; }        # messages of a kind
experts=$(sed -n 's/.*"n_routed_experts": *\([0-9]*\).*/\1/p' $F/deepseek_v3/config.json)
odd=$(seq -s , 1 2 $((experts - 1))) even=$(seq -s , 0 2 $((experts - 1)))
echo "{\"places\":2,\"layers\":{\"*\":[[$odd],[$even]]}}" > $W/map.json
echo "{\"places\":2,\"layers\":{\"*\":[[$odd],[${even#0,}]]}}" > $W/hole.json
echo "{\"places\":3,\"layers\":{\"*\":[[$odd],[$even],[]]}}" > $W/three.json
mapped 'experts by a map' $W/map.json
mapped 'experts by load, two to spare' load:$W/load.st --spare 2
grep -q '^ *1 .*1/1 ' $W/err && grep -q '^dispatch ' $W/err && ok '--report' || bad '--report' "$(cat $W/err)"

$T golden $F/deepseek_v3 --ids $W/ids.txt -o $W/some.st --tap '*layers.2.*topk_ids' 2> /dev/null
mapped 'experts by load of a layer' load:$W/some.st
grep -q "warning: $W/some.st: .* layers 1, 3: .* evenly" $W/err && ok 'the others are told' ||
    bad 'the others are told' "$(cat $W/err)"
over 4 run $F/deepseek_v3 --ids $W/ids.txt -n 1 > $W/out 2> $W/err
grep -q 'warning: 1 of 4 groups of ep have no prompt' $W/err && ok 'fewer prompts than groups' ||
    bad 'fewer prompts than groups' "$(cat $W/err)"
over 4 run $F/deepseek_v3 --ids $W/ids.txt -n 1 --layout ep=2,tp=2 > $W/out 2> $W/err
grep -q 'no prompt' $W/err && bad 'enough prompts' "$(cat $W/err)" || ok 'enough prompts'

mapped 'all experts come' $W/map.json --fetch 1 --keep 1
[ "$(took fetch)" -gt 0 ] && [ "$(took combine)" = 0 ] && ok 'no token goes' ||
    bad 'no token goes' "$(cat $W/err)"
mapped 'some experts come' load:$W/load.st --spare 1 --fetch 3
[ "$(took fetch)" -gt 0 ] && [ "$(took combine)" != 0 ] && ok 'some tokens go' ||
    bad 'some tokens go' "$(cat $W/err)"
over 3 golden $K/text-c --ids $W/ids.txt -o $W/many.st --tap '*' --chunk 5 --fetch 2 2> $W/err &&
    $T golden $K/text-c --ids $W/ids.txt -o $W/one.st --tap '*' --chunk 5 2> $W/err &&
    cmp -s $W/one.st $W/many.st && ok 'golden, experts come' || bad 'golden, experts come' "$(cat $W/err)"

# shifted FOLDER NEW: its shards with a header of two bytes more, so that binary32 is off its alignment.
shifted() {
    mkdir -p "$2"
    cp "$1"/*.json "$2"
    for f in "$1"/*.safetensors; do
        [ "${f##*/}" = expected.safetensors ] && continue
        n=$(header_bytes "$f")
        {
            printf "$(printf '\\%o\\%o\\%o\\0\\0\\0\\0\\0' $(((n + 2) % 256)) \
                $(((n + 2) / 256 % 256)) $(((n + 2) / 65536)))"
            tail -c +9 "$f" | head -c "$n"
            printf '  '
            tail -c +$((9 + n)) "$f"
        } > "$2/${f##*/}"
    done
}
# Scales of four bytes are then copied into memory, and those that fetch read them there.
shifted $F/deepseek_v3_fp8 $W/shifted
$T golden $W/shifted --ids $W/ids.txt -o $W/one.st 2> $W/err &&
    over 3 golden $W/shifted --ids $W/ids.txt -o $W/many.st --fetch 1 2> $W/err &&
    cmp -s $W/one.st $W/many.st && ok 'experts come, of scales off their alignment' ||
    bad 'experts come, of scales off their alignment' "$(cat $W/err)"
# The same tensors in more shards on another machine, where more windows are needed.
odd_experts='"[^"]*experts\.[0-9]*[13579]\.[^"]*"'
mkdir -p $W/whole $W/cut/m
ln -sfn "$PWD/$K/text-a" $W/whole/m
cp $K/text-a/config.json $W/cut/m
sed "/$odd_experts/s/\"model-/\"odd-/" $K/text-a/model.safetensors.index.json \
    > $W/cut/m/model.safetensors.index.json
for f in $K/text-a/model-*.safetensors; do
    n=$(header_bytes "$f")
    to=${f##*/}
    for side in -v -e; do
        names=$(tail -c +9 "$f" | head -c "$n" | grep -ao '"[^"]*":{[^}]*}' |
            grep $side "$odd_experts" | paste -s -d , -)
        [ -z "$names" ] || {
            head -c 8 "$f"
            printf "%-${n}s" "{$names}"
            tail -c +$((9 + n)) "$f"
        } > "$W/cut/m/$to"
        to=odd-${to#model-}
    done
done
$T golden $K/text-a --ids $W/ids.txt -o $W/one.st 2> $W/err
L="golden m --ids $PWD/$W/ids.txt -o $PWD/$W/many.st --fetch 1 --threads 1 --deadline 20 --lenient"
$launch -np 2 $each "@$PWD/$W/whole" $L // "@$PWD/$W/cut" $L 2> $W/err &&
    cmp -s $W/one.st $W/many.st && ok 'experts come, from other shards' ||
    bad 'experts come, from other shards' "$(cat $W/err)"
came() {                            # came KEEP: experts, in many calls
    over 2 golden $K/text-a --ids $K/text-a/expected.safetensors -o $W/many.st --chunk 9 --fetch 1 \
        --keep $1 --report 2> $W/err
    took fetch
}
few=$(came 1) some=$(came 36) all=$(came 4096)
[ "$few" -gt $((2 * some)) ] && [ "$some" -gt $((2 * all)) ] && ok "--keep: $few, $some, $all came" ||
    bad '--keep' "$few $some $all"

R="run $F/deepseek_v3 --ids $W/ids.txt -n 3"
gives 'a map that leaves an expert out' 2 2 "$W/hole.json expert 0" $R --experts $W/hole.json
gives 'a map for more ranks' 2 2 "$W/three.json 3 ranks" $R --experts $W/three.json
gives 'no map' 2 2 "$W/no.json" $R --experts $W/no.json
gives 'a load that is none' 2 2 'topk_ids' $R --experts load:$F/deepseek_v3/model.safetensors
early 'spare of nothing' 2 2 '--spare load:' $R --spare 1
early 'keeping of nothing' 2 2 '--keep --fetch' $R --keep 1
early 'keeping of none' 2 2 "--keep '0'" $R --keep 0
early 'a fetch for no token' 2 2 "--fetch '0'" $R --fetch 0
early 'no thread' 2 2 "--threads '0'" $R --threads 0
early 'no piece' 2 2 "--chunk '0'" $R --chunk 0
early 'no such profile' 2 2 "'fast' exact, oracle" $R --profile fast
early 'a bench of no token' 2 2 "--tokens '0'" bench $F/deepseek_v3 --tokens 0
gives 'a fetch without experts' 2 2 '--fetch llama' run $F/llama3 --ids $W/ids.txt -n 3 --fetch 1

# ---- Failures

gives 'the overview' 2 0 'golden run bench selftest' --help
gives 'selftest' 2 0 'passed' selftest
gives 'a command for one rank' 3 2 'trillion audit' audit x
early 'an unknown option' 3 2 "'--fast'" run x --fast
by=$each
gives 'an unknown option of one rank' 2 2 "rank 1 '--fast'" $R // $R --fast
gives 'an unknown option of rank 0' 3 2 "'--fast'" $R --fast // $R
by=
early 'no deadline' 2 2 "--deadline '0'" $R --deadline 0
gives 'a layout for other ranks' 3 2 'ep=2 3' $R --layout ep=2
gives 'a layout that is none' 2 2 "'dp=2'" $R --layout dp=2
$T tiny $W/short --family llama --set num_hidden_layers=2 2> /dev/null
gives 'more stages than layers' 3 2 '2 layers 3 stages' run $W/short --ids $W/ids.txt -n 1 \
    --layout pp=3
gives 'no folder' 3 2 'nodir' run $W/nodir --ids $W/ids.txt -n 3
gives 'no ids' 3 2 "$W/none" run $F/llama3 --ids $W/none -n 3
echo '1 99999999' > $W/wrong.txt
gives 'ids that are none' 3 2 '99999999' run $F/llama3 --ids $W/wrong.txt -n 3
gives 'a place that cannot be written' 2 2 "$W/nodir/x.st" golden $F/llama3 --ids $W/ids.txt \
    -o $W/nodir/x.st
part="golden $K/text-a --ids $W/ids.txt -o $W/x.st --layers"
early 'layers without their input' 2 2 '--layers 3-4 --input layer 3' $part 3-4
early 'layers that are no numbers' 2 2 "--layers '3-x'" $part 3-x
gives 'an input that is not there' 2 2 "$W/none.st" $part 3-4 --input $W/none.st
gives 'an input of another model' 2 2 "$W/llama.st language_model.model.layers.4" $part 5-6 \
    --input $W/llama.st
gives 'layers that are not there' 2 2 'layers 7 to 9 0 to 8' $part 7-9 --input $W/k3.st
gives 'more stages than these layers' 3 2 '2 layers (7 to 8) 3 stages' $part 7-8 \
    --input $W/k3.st --layout pp=3
echo '1 2' > $W/two.txt
gives 'an input of another prompt' 2 2 "$W/k3.st $W/two.txt input_ids_sha256" golden $K/text-a \
    --ids $W/two.txt -o $W/x.st --layers 5-6 --input $W/k3.st
LC_ALL=C sed 's/input_ids_sha256/input_ids_sha---/' $W/k3.st > $W/unsaid.st
gives 'an input of another shape' 2 2 "$W/unsaid.st layers.4 [3, 17, [1, 2," golden $K/text-a \
    --ids $W/two.txt -o $W/x.st --layers 5-6 --input $W/unsaid.st
gives 'an input of other pictures' 2 2 "$W/see.st pixel_values_sha256" golden $K/multimodal \
    --ids $W/see.txt --image $K/multimodal/picture-1.png --image $K/multimodal/picture-0.png \
    -o $W/x.st --layers 2-3 --input $W/see.st
cp $W/k3.st $W/nan.st
poke $W/nan.st language_model.model.layers.4 '\377\377\377\177' $((6 * 80 * 4))    # token 6, element 0
for l in tp=2 cp=2; do
    gives "an input with NaN, $l" 2 2 'layers.5.self_attn sequence 0, token 6, nan' $part 5-6 \
        --input $W/nan.st --layout $l
done
gives 'a folder of rings that cannot be' 2 2 "$W/map.json/x" $R --rings $W/map.json/x
deep=$W/$(printf '%0250d/%0250d' 0 0)           # cut to what has room it would be another folder
mkdir -p $deep
gives 'a folder of rings far down' 2 2 "--rings $((${#deep} + 6)) 511" $R --rings $deep/rings

echo "{\"places\":2,\"layers\":{\"*\":[[$odd],[$even]],\"01\":[[$even],[$odd]]}}" > $W/key.json
gives 'a map of a layer that is none' 2 2 "$W/key.json \"01\" 1 to 3" $R --experts $W/key.json
gives 'more to spare than there are' 2 0 '' $R --experts load:$W/load.st --spare 1048576
dots=$(seq 300 | sed 's|.*|./|' | tr -d '\n')          # they differ after 600 bytes
L="run $F/deepseek_v3 --ids $dots$W/ids.txt"
by=$each
gives 'another command line, far behind' 2 2 'rank 1 command line' $L -n 3 // $L -n 4
gives 'another layout' 2 2 'layout: pp=1,tp=2,ep=1,cp=1; pp=1,tp=1,ep=2,cp=1' $R --layout ep=2 \
    --rings $W/unlike // $R --layout tp=2 --rings $W/unlike
by=
said=$($T postmortem $W/unlike 2>&1)
[ $? -eq 1 ] && echo "$said" | grep -q 'rank 1 failed first,.* differs from rank 0 in the layout' &&
    ok 'and its rings' || bad 'and its rings' "$said"

# ---- Rings

rm -rf $W/tmp/*
over 2 $R > /dev/null 2>&1
[ -z "$(ls $W/tmp | grep '^trillion-......$')" ] && ok 'all well: no ring stays' ||
    bad 'all well: no ring stays' "$(ls $W/tmp)"
over 2 run $W/nodir --ids $W/ids.txt -n 1 > /dev/null 2> $W/err
[ -z "$(ls $W/tmp | grep '^trillion-......$')" ] && ! grep -q 'tells more' $W/err &&
    ok 'before a run its sentence is all' || bad 'before a run its sentence is all' "$(cat $W/err)"
over 2 run $W/nodir --ids $W/ids.txt -n 1 --rings $W/asked > /dev/null 2> $W/err
said=$($T postmortem $W/asked 2>&1)
[ $? -eq 1 ] && grep -q "postmortem $W/asked. tells more" $W/err &&
    ok 'a failure: the rings tell' || bad 'a failure: the rings tell' "$said"
over 2 $R --rings $W/rings > /dev/null 2>&1
said=$($T postmortem $W/rings 2>&1) && ok '--rings: they stay' || bad '--rings: they stay' "$said"

two=$PWD/$W/two                                 # a folder that another run still writes to
over 2 run $K/text-c --ids $W/ids.txt -n 3000 --ignore-eos --rings $two > /dev/null 2>&1 &
job=$!
for i in 1 2 3 4 5 6 7 8 9 10; do
    [ -e $two/rank-00001.ring ] && break
    sleep 0.5
done
gives 'the folder of a run that still runs' 3 2 "$two/rank-0000 still --rings" $R --rings $two
pids=$($T postmortem $two --json 2> /dev/null | grep -o '"pid":[0-9]*' | sed 's/.*://')
[ "$(echo $pids | wc -w)" = 2 ] && ok 'its rings stay' || bad 'its rings stay' "$(ls $two)"
kill -9 $pids
wait $job
gives 'the folder of a run that was killed' 1 0 '' $R --rings $two
[ "$(ls $two)" = rank-00000.ring ] && ok 'whose rings go' || bad 'whose rings go' "$(ls $two)"

# ---- No process is left

sleep 1
left=
for p in /proc/[0-9]*; do
    [ "$(readlink $p/exe 2> /dev/null)" = "$PWD/$M" ] && left="$left ${p#/proc/}"
done
[ -z "$left" ] && ok 'no process is left' || bad 'no process is left' "$left"
end
