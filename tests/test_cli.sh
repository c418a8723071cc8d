#!/bin/sh
# The commands end to end: small checkpoints made by `tiny`, and copies of them broken on purpose.
# Every failure must have its exit code, leave stdout empty and say in one sentence what is wrong.
. tests/lib.sh
T=build/trillion
W=build/cli
rm -rf $W
mkdir -p $W

# gives NAME CODE "WORDS" COMMAND...: the exit code and words on stdout or stderr. A 2 prints
# nothing to stdout and one line to stderr (warnings and progress aside).
gives() {
    name=$1 code=$2 words=$3
    shift 3
    "$@" > $W/out 2> $W/err < /dev/null
    got=$? why=
    [ $got -eq $code ] || why="exit code $got, expected $code"
    for w in $words; do
        grep -qF -- "$w" $W/out $W/err || why="$why; no \"$w\""
    done
    if [ $code -eq 2 ]; then
        [ -s $W/out ] && why="$why; stdout is not empty"
        [ "$(grep -vcE 'trillion: warning: | s spent, about ' $W/err)" = 1 ] ||
            why="$why; not one sentence"
        grep -q '^trillion: ' $W/err || why="$why; no \"trillion: \""
    fi
    [ -z "$why" ] && ok "$name" || bad "$name" "$why
$(cat $W/out $W/err)"
}

same() { if cmp -s "$2" "$3"; then ok "$1"; else bad "$1" "$2 and $3 differ"; fi; }

is_json() {
    if have python3; then python3 -m json.tool "$1" > /dev/null
    else [ "$(head -c 1 "$1")" = '{' ] && [ "$(tail -n 1 "$1" | tail -c 2)" = '}' ]; fi
}

# json NAME COMMAND...: prints one JSON object and nothing else on stdout.
json() {
    name=$1
    shift
    "$@" > $W/out 2> $W/err
    if [ $? -lt 2 ] && is_json $W/out; then ok "$name"; else bad "$name" "$(head -c 400 $W/out)"; fi
}

copy() { rm -rf "$2"; cp -R "$1" "$2"; }

# ---- help and arguments

gives 'alone: the overview' 0 'audit golden compare selftest' $T
for c in families audit plan golden compare run tiny image bench postmortem selftest; do
    gives "$c --help" 0 "trillion $c --threads Exit" $T $c --help
done 2> /dev/null
gives 'an unknown command' 2 "'gulden'" $T gulden
gives 'an unknown option' 2 "'--fast'" $T golden x --fast
gives 'a missing value' 2 '--ids needs FILE' $T golden x --ids
gives 'an option instead of a value' 2 '--ids needs' $T golden x --ids --json
gives 'an option twice' 2 '-o twice' $T golden x -o a -o b
gives 'a missing option' 2 '--ids FILE' $T golden x -o a
gives 'a missing argument' 2 'DIR' $T audit
gives 'an argument too many' 2 "'y'" $T audit x y
gives 'a value for a flag' 2 '--deep' $T audit x --deep=1
gives 'no number' 2 "-n 'many'" $T run x --ids y -n many
gives 'no tokens' 2 "-n '0'" $T run x --ids y -n 0
gives 'no bound' 2 "--max-rel '-1'" $T compare a b --max-rel=-1
gives 'no threads' 2 "--threads '0'" $T families --threads 0
gives 'an unknown profile' 2 "'bf17' oracle" $T run x --ids y -n 1 --profile bf17
gives 'families' 0 'llama deepseek_v3 kimi_k3' $T families
gives 'selftest' 0 'trillion contract passed' $T selftest
gives 'postmortem of no folder' 2 "$W/nowhere" $T postmortem $W/nowhere
gives 'postmortem of a folder without rings' 2 'tests/golden .ring' $T postmortem tests/golden
json 'families --json' $T families --json
json 'selftest --json' $T selftest --json
if [ -w /dev/full ]; then gives 'a full stdout' 2 'stdout' sh -c "$T families > /dev/full"; fi

# ---- tiny

for f in llama deepseek_v3 kimi_k3; do
    gives "tiny $f" 0 "tensors" $T tiny $W/$f --family $f --seed 3
    gives "audit $f --deep" 0 "$f fine" $T audit $W/$f --deep
    json "audit $f --json" $T audit $W/$f --deep --json
done
$T tiny $W/again --family deepseek_v3 --seed 3 2> /dev/null
same 'the same seed, the same bytes' $W/again/model-00002-of-00005.safetensors \
    $W/deepseek_v3/model-00002-of-00005.safetensors
gives 'over its own checkpoint' 0 '' $T tiny $W/again --family deepseek_v3 --seed 4 \
    --set num_hidden_layers=2
gives 'nothing is left of the old one' 0 'fine' $T audit $W/again
grep -q 'not read' $W/out && bad 'no stray shards' || ok 'no stray shards'
gives 'an unknown family' 2 "gpt5" $T tiny $W/none --family gpt5
gives 'an unknown key' 2 "hiden_size" $T tiny $W/none --family llama --set hiden_size=96
[ -e $W/none ] && bad 'a refused tiny leaves nothing' || ok 'a refused tiny leaves nothing'
copy $W/llama $W/theirs
sed -i.bak 's/"made_by":"trillion tiny"/"made_by":"somebody else"/' $W/theirs/model.safetensors
gives 'not over somebody else'"'"'s' 2 "$W/theirs" $T tiny $W/theirs --family llama
rm $W/theirs/config.json
gives 'not over weights without a config' 2 "$W/theirs" $T tiny $W/theirs --family llama
copy $W/deepseek_v3 $W/half
rm $W/half/config.json $W/half/model-00002-of-00005.safetensors
gives 'over what a stopped tiny left' 0 'tensors' $T tiny $W/half --family deepseek_v3
gives 'a size that its format cannot hold' 2 'experts.0.w2 97 groups' \
    $T tiny $W/none --family kimi_k3 --set moe_intermediate_size=97

# ---- plan

json 'plan --json' $T plan $W/kimi_k3 --json
for k in tensors bytes params active_params layers; do
    grep -q "\"$k\":" $W/out || bad "plan --json has $k"
done
gives 'plan of a folder or its config' 0 '2048 KDA MLA' $T plan $W/kimi_k3/config.json \
    --capacity 2048 --tokens 16
$T plan $W/kimi_k3 --names > $W/names
gives 'plan --names is sorted' 0 '' env LC_ALL=C sort -c $W/names
cat $W/kimi_k3/model.safetensors.index.json | grep -o '^ *"[^"]*": "model' | sed 's/^ *"//;s/".*//' |
    LC_ALL=C sort > $W/index
same 'and is the index' $W/names $W/index
for released in tests/golden/kimi_k3/released-index "${CASES:-}/kimi_k3/released-index"; do
    [ -f "$released/config.json" ] || continue
    gives "plan $released" 0 '497,220 1,560,860,324,864 2,779,931,837,184 104,189,614,848' \
        $T plan "$released/config.json"
    sum=$($T plan "$released/config.json" --names | sha256sum | cut -c1-64)
    [ "$sum" = 6de6475ef6fac789044688d2b1f127d50cfc3adb17983756c2393c495a535ec4 ] &&
        ok 'its names are the inventory' || bad 'its names are the inventory' "$sum"
done

gives 'plan of too many sequences' 2 "--batch '99999'" $T plan $W/llama --batch 99999
copy $W/kimi_k3 $W/x
sed 's/"num_heads": *3/"num_heads": 16777216/' $W/kimi_k3/config.json > $W/x/config.json
gives 'a size that is not in the files takes no memory' 2 'q_proj' sh -c \
    "ulimit -v 4000000; exec $T audit $W/x"

# ---- ids

golden() { $T golden "$1" --ids "$2" -o "$3" --tap '*' > /dev/null 2>&1; }
printf '5 17 3 200 41 9 100\n' > $W/one.txt
printf '77 2 250\n' > $W/two.txt
printf '5 17 3 200 41 9 100\n\n  \n77\t2 250\r\n' > $W/both.txt
run() { gives "$1" 2 "$2" $T run $W/llama -n 2 --ids $W/bad.txt; }
printf '1 2\n3 x 4\n' > $W/bad.txt;        run 'a word among the ids' "bad.txt:2: 'x'"
printf '1 -2\n' > $W/bad.txt;              run 'a negative id' "bad.txt:1: '-2'"
printf '1 2147483648\n' > $W/bad.txt;      run 'an id past 32 bits' "bad.txt:1: '2147483648'"
printf '1,2,3\n' > $W/bad.txt;             run 'commas' "bad.txt:1: '1,2,3'"
printf '1 2.0\n' > $W/bad.txt;             run 'a fraction' "bad.txt:1: '2.0'"
printf '\n \n' > $W/bad.txt;               run 'no ids' 'bad.txt no'
: > $W/bad.txt;                            run 'an empty file' 'bad.txt no'
printf '1 2 320\n' > $W/bad.txt;           run 'an id outside the vocabulary' '320'
printf '1 2\000 3\n' > $W/bad.txt;         run 'a NUL' 'bad.txt:1:'
printf '1 2\r3\n' > $W/bad.txt;            run 'a lone carriage return' "bad.txt:1: '2\\x0d'"
printf '\357\273\277' > $W/bad.txt; echo 1 >> $W/bad.txt; run 'a byte order mark' "'\\xef'"
i=0; while [ $i -lt 40 ]; do cat $W/one.txt; i=$((i + 1)); done | tr '\n' ' ' > $W/long.txt
gives 'ids from a pipe' 0 '' sh -c "cat $W/long.txt | $T run $W/llama -n 2 --ids /dev/stdin > $W/piped"
$T run $W/llama -n 2 --ids $W/long.txt > $W/filed 2> /dev/null
same 'are those of a file' $W/piped $W/filed
head -c 5000 /dev/zero | tr '\0' '\n' > $W/blank.txt
gives 'past the first block of a pipe' 0 '' \
    sh -c "cat $W/blank.txt $W/one.txt | $T run $W/llama -n 2 --ids /dev/stdin"
gives 'a safetensors without input_ids' 2 'input_ids' $T run $W/llama -n 2 \
    --ids $W/llama/model.safetensors
gives 'ids that are not there' 2 'nowhere.txt' $T run $W/llama -n 2 --ids nowhere.txt
gives 'a folder as ids' 2 "$W" $T run $W/llama -n 2 --ids $W

# ---- run: batches, chunks, eos

for f in llama deepseek_v3 kimi_k3; do
    { $T run $W/$f -n 6 --ids $W/one.txt --ignore-eos
      $T run $W/$f -n 6 --ids $W/two.txt --ignore-eos; } > $W/alone 2> /dev/null
    $T run $W/$f -n 6 --ids $W/both.txt --ignore-eos --chunk 2 > $W/batch 2> $W/err
    same "run $f: batched, in pieces = alone" $W/alone $W/batch
    [ "$(wc -l < $W/batch)" -eq 2 ] && grep -q 'tok/s' $W/err && grep -q 'peak memory' $W/err &&
        ok "run $f: a line a sequence" || bad "run $f: a line a sequence" "$(cat $W/batch $W/err)"
done
set -- $(cat $W/alone) "$1"
copy $W/kimi_k3 $W/eos
printf '{"eos_token_id": [319, %d]}\n' "$2" > $W/eos/generation_config.json
$T run $W/eos -n 6 --ids $W/one.txt > $W/out 2> $W/err
[ "$(cat $W/out)" = "$1 $2" ] && ok 'run stops at an id of generation_config.json' ||
    bad 'run stops at an id of generation_config.json' "$(cat $W/out), expected $1 $2"
grep -q "sequence 0: end of text (id $2) after 2 of 6 tokens" $W/err && ok 'and says so' ||
    bad 'and says so' "$(cat $W/err)"
gives '--ignore-eos goes on' 0 "$3" $T run $W/eos -n 6 --ids $W/one.txt --ignore-eos
for last; do :; done
cases=$last

# ---- images

mm=tests/golden/kimi_k3/multimodal
see=tests/golden/kimi_k3/vision
$T golden $mm --ids $mm/expected.safetensors -o $W/mm.st 2> /dev/null
gives 'golden of a prompt with images' 0 'logits 2a247eac' $T golden $mm \
    --ids $mm/expected.safetensors -o $W/piece.st --chunk 5 --threads 1
gives 'its rows and logits are the vendor'"'"'s' 1 'inputs_embeds mm_projector.1 logits' \
    $T compare $mm/expected.safetensors $W/mm.st --max-rel 1e-7
gives 'near enough' 0 'no difference' $T compare $mm/expected.safetensors \
    $W/mm.st --max-rel 1e-4
echo "85 88 277 30 277 40" > $W/two-images.txt
$T golden $mm --ids $mm/expected.safetensors -o $W/piece.st 2> $W/err
[ "$(grep -c warning: $W/err)" = 1 ] && grep -q "2 warnings; .trillion audit $mm. lists" $W/err &&
    ok 'two warnings are one line' || bad 'two warnings are one line' "$(cat $W/err)"
gives 'which audit lists' 0 'warnings expected.safetensors padded' $T audit $mm
[ "$(tail -n 1 $W/out)" = 'fine (2 warnings above)' ] && ok 'and counts beside its verdict' ||
    bad 'and counts beside its verdict' "$(tail -n 1 $W/out)"
echo "85 88 277 30" > $W/one-image.txt
gives 'golden with --pixels' 0 'logits' $T golden $mm --ids $W/two-images.txt \
    --pixels $mm/expected.safetensors -o $W/piece.st
gives 'run with --pixels' 0 'prompt 20 tokens' $T run $mm --ids $W/two-images.txt \
    --pixels $mm/expected.safetensors -n 2 --ignore-eos
gives 'the tower alone' 0 '11 tensors' $T golden $see --pixels $see/expected.safetensors \
    -o $W/see.st --tap 'mm_projector.*' --tap 'vision_tower.merged.*' \
    --tap vision_tower.patch_embed
gives 'and its rows' 0 '' $T compare $see/expected.safetensors $W/see.st --max-rel 1e-5
$T golden $mm --ids $mm/expected.safetensors --layers 4-8 --input $W/mm.st -o $W/piece.st \
    2> $W/err
grep -q 'logits 2a247eac' $W/err && ok 'layers in part, behind images' ||
    bad 'layers in part, behind images' "$(cat $W/err)"
gives 'a placeholder too few' 2 'one-image.txt: kimi_k3 1 placeholder 277 2 images' \
    $T run $mm -n 1 --ids $W/one-image.txt --pixels $mm/expected.safetensors
gives 'images without ids need golden' 2 '--ids' $T run $mm -n 1 --pixels $mm/expected.safetensors
gives 'no ids and no images' 2 '--pixels' $T golden $mm -o $W/none.st
gives 'images twice' 2 'which' $T run $mm -n 1 --ids $mm/expected.safetensors \
    --pixels $see/expected.safetensors
gives 'a safetensors without images' 2 'pixel_values' $T run $mm -n 1 --ids $W/two-images.txt \
    --pixels $W/llama/model.safetensors
gives 'an image for a text model' 2 'expected.safetensors: llama no vision tower' \
    $T run $W/llama -n 1 --ids $W/one.txt --pixels $see/expected.safetensors
# pixels_file "GRID" [FIRST]: build/cli/pixels.st, four patches of zeros after the bytes of FIRST; a
# grid is three digits an image.
pixels_file() {
    at=0
    for n in $1; do at=$((at + 8)); done
    head="{\"grid_thws\":{\"dtype\":\"I64\",\"shape\":[$((at / 24)),3],\"data_offsets\":[0,$at]},"
    head="$head\"pixel_values\":{\"dtype\":\"F32\",\"shape\":[4,3,14,14],"
    head="$head\"data_offsets\":[$at,$((at + 9408))]}}"
    { printf "\\$(printf %o ${#head})\0\0\0\0\0\0\0%s" "$head"
      for n in $1; do printf "\\$n\0\0\0\0\0\0\0"; done
      printf "${2-\0\0\0\0}"
      head -c 9404 /dev/zero; } > $W/pixels.st
}
pixels_file ''
gives 'pixels without a grid' 2 "$W/pixels.st: grid_thws 0, 3 no image" $T golden $mm \
    --pixels $W/pixels.st -o $W/none.st
pixels_file '1 2 4'
gives 'a grid that does not fit' 2 "$W/pixels.st: grid 1 x 2 x 4 4 patches" $T golden $mm \
    --pixels $W/pixels.st -o $W/none.st
pixels_file '1 2 2' '\0\0\300\177'
gives 'a pixel that is no number' 2 "$W/pixels.st: pixel_values: image 0, row element nan" \
    $T golden $mm --pixels $W/pixels.st -o $W/none.st
gives 'a placeholder and no image' 2 '277 2 placeholders 0, token 2 --image --pixels --as-text' \
    $T run $mm -n 1 --ids $W/two-images.txt
gives 'or one, of another prompt' 2 '1 placeholder, 1, token 3' \
    sh -c "(cat $W/one.txt; cat $W/one-image.txt) | sed 's/85 88 277/85 88 30 277/' > $W/second.txt
           exec $T golden $mm --ids $W/second.txt -o $W/none.st"
gives 'a placeholder as an ordinary id' 0 'prompt 6 tokens' $T run $mm -n 1 --as-text \
    --ids $W/two-images.txt
gives 'which images are not' 2 '--as-text' $T run $mm -n 1 --as-text \
    --ids $mm/expected.safetensors
png=tests/golden/images/files/rgb8.png
gives '--image for a text model' 2 'llama no vision tower 2 --image' $T run $W/llama -n 1 \
    --ids $W/one.txt --image $png --image $png
$T image $png --model $mm -o $W/png.st 2> /dev/null > /dev/null
gives 'two pictures by --image' 0 'prompt 22 tokens' $T run $mm --ids $W/two-images.txt \
    --image $png --image $png -n 2 --ignore-eos
$T golden $mm --image $png -o $W/by-file.st --tap 'mm_projector.0' 2> /dev/null
$T golden $mm --pixels $W/png.st -o $W/by-patches.st --tap 'mm_projector.0' 2> /dev/null
gives 'a picture and its patches are the same' 0 'no difference' $T compare $W/by-file.st \
    $W/by-patches.st
grep -q warning: $W/err && bad 'and nothing is warned of' "$(cat $W/err)" ||
    ok 'and nothing is warned of'
gives 'its file and pass order are in the golden' 0 'image_sha256 pillow' \
    sh -c "head -c 4000 $W/by-file.st | LC_ALL=C tr -cd '[:print:]'"
$T golden $mm --image tests/golden/images/files/photo_113x251.png -o $W/photo.st \
    --tap 'mm_projector.0' 2> /dev/null
gives 'goldens of different pictures' 1 "warning: $W/by-file.st $W/photo.st different pictures" \
    $T compare $W/by-file.st $W/photo.st
if ${PYTHON:-python3} -c 'import numpy' 2> /dev/null; then
    port() { ${PYTHON:-python3} "$1" $mm $W/cup.st $W/port.st; }
    $T image tests/golden/images/files/photo_113x251.png --model $mm -o $W/cup.st > $W/out 2>&1
    $T golden $mm --pixels $W/cup.st --profile oracle --tap '*' -o $W/tower.st 2> /dev/null
    port docs/howto/tower.py
    gives 'a port of the tower, tap by tap' 0 '23 compared difference' $T compare $W/port.st $W/tower.st \
        --max-rel 1e-9 --strict
    sed 's/np.outer(col, f), np.outer(row, f)/np.outer(row, f), np.outer(col, f)/' \
        docs/howto/tower.py > $W/broken.py
    port $W/broken.py
    gives 'its mistake is named' 1 'agreed: encoder.blocks.0.wqkv difference: encoder.blocks.0.rope_q' \
        $T compare $W/port.st $W/tower.st --max-rel 1e-9
else echo 'not tested: the port of the tower needs a PYTHON with numpy'
fi
gives '--image and --pixels' 2 'which' $T golden $mm --image $png --pixels $W/png.st -o $W/none.st
gives 'no picture' 2 'one.txt' $T golden $mm --image $W/one.txt -o $W/none.st
gives 'plan with an image' 0 '36 patches 9 rows attn mm_projector.proj.2' $T plan $mm --patches 36
gives 'plan with an image for a text model' 2 'no vision tower' $T plan $W/llama --patches 36

# ---- golden and compare

for f in llama deepseek_v3 kimi_k3; do
    golden $W/$f $W/one.txt $W/$f-all.st || bad "golden $f"
    for n in 1 3; do
        $T golden $W/$f --ids $W/one.txt -o $W/piece.st --tap '*' --chunk $n 2> /dev/null
        gives "golden $f --chunk $n" 0 'no difference' \
            $T compare $W/piece.st $W/$f-all.st --max-rel 1e-12 --strict
    done
    $T golden $W/$f --ids $W/one.txt -o $W/threads.st --tap '*' --threads 1 2> /dev/null
    same "golden $f: threads change no byte" $W/threads.st $W/$f-all.st
    golden $W/$f $W/both.txt $W/ragged.st
    $T golden $W/$f --ids $W/one.txt -o $W/self.st 2> /dev/null
    gives "golden $f: a file as its own input" 0 'no difference' $T compare $W/self.st $W/self.st
done
gives 'a ragged batch stores lengths' 0 'lengths' $T compare $W/ragged.st $W/ragged.st

f=kimi_k3
prefix=language_model.model
for part in 0-2 3-6 4-4 7-8; do
    input="--input $W/$f-all.st"
    [ $part = 0-2 ] && input=
    gives "golden --layers $part" 0 '' \
        $T golden $W/$f --ids $W/one.txt -o $W/part.st --layers $part $input
    gives "and they are those of the whole" 0 'no difference' \
        $T compare $W/part.st $W/$f-all.st --max-rel 1e-12
done
golden $W/$f $W/both.txt $W/ragged.st
gives 'part of a ragged batch' 0 '' $T golden $W/$f --ids $W/both.txt -o $W/part.st --layers 5-6 \
    --input $W/ragged.st --chunk 3
gives 'and it is that of the whole' 0 'no difference' \
    $T compare $W/part.st $W/ragged.st --max-rel 1e-12
gives 'part without its input' 2 '--input' $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 3-4
gives 'input without a part' 2 '--layers' $T golden $W/$f --ids $W/one.txt -o $W/p.st --input x
gives 'layers that are not there' 2 '9' $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 7-9 \
    --input $W/$f-all.st
gives 'layers backwards' 2 "'5-3'" $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 5-3
$T golden $W/$f --ids $W/one.txt -o $W/few.st --tap '*layers.4' 2> /dev/null
gives 'block sums that are missing' 2 "$prefix.embed_tokens 2" \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 5-5 --input $W/few.st
gives 'a hidden state that is missing' 2 "$prefix.layers.6 2" \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 7-8 --input $W/few.st
gives 'an input of another prompt' 2 "$W/$f-all.st $W/two.txt input_ids_sha256" \
    $T golden $W/$f --ids $W/two.txt -o $W/p.st --layers 5-5 --input $W/$f-all.st
LC_ALL=C sed 's/input_ids_sha256/input_ids_sha---/' $W/$f-all.st > $W/unsaid.st
gives 'an input that does not say its prompt' 0 '' \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 5-5 --input $W/unsaid.st
gives 'and has another shape' 2 "$prefix.layers.4 expected" \
    $T golden $W/$f --ids $W/two.txt -o $W/p.st --layers 5-5 --input $W/unsaid.st
LC_ALL=C sed "s/\(layers\.4\":{\"dtype\":\"\)F32/\1I32/" $W/unsaid.st > $W/whole.st
gives 'an input of whole numbers' 2 "$prefix.layers.4 I32 floats" \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 5-5 --input $W/whole.st
gives 'an input of another profile' 0 'exact oracle' \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --layers 5-5 --input $W/$f-all.st --profile oracle
grep -q "warning: $W/$f-all.st" $W/err && ok 'is told' || bad 'is told' "$(cat $W/err)"
gives 'a tap that matches nothing' 2 'matched' \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --tap 'no.such.*'
gives 'state taps' 0 'state.layers.0.kda_recurrent state.layers.3.mla_latent' sh -c \
    "$T golden $W/$f --ids $W/one.txt -o $W/state.st --tap 'state.*' && \
     $T compare $W/state.st $W/state.st"
echo 5 > $W/single.txt
gives 'one of a kind' 0 'prompt 1 token, 1 token, tok/s' $T run $W/$f --ids $W/single.txt -n 2 \
    --ignore-eos
gives 'and in a plan' 0 '1 sequence, 1 token 1 patch, 1 row of' $T plan $mm --tokens 1 --patches 1
$T golden $W/$f --ids $W/one.txt -o $W/tap.st --tap logits 2> $W/err
grep -q 'tap.st: 1 tensor, exact' $W/err && ok 'one tensor' || bad 'one tensor' "$(cat $W/err)"
gives 'one tap, one tensor' 0 '1 compared' sh -c \
    "$T golden $W/$f --ids $W/one.txt -o $W/tap.st --tap logits && $T compare $W/tap.st $W/tap.st"
json 'golden --json' $T golden $W/$f --ids $W/one.txt -o $W/j.st --json --hash-weights
for k in contract version profile family config_sha256 headers_sha256 weights_sample_sha256 \
    weights_sha256 logits_sha256 fact.mla.inner_eps; do
    grep -q "\"$k\":" $W/out && grep -aq "\"$k\":" $W/j.st ||
        bad "golden's metadata has $k" "$(cat $W/out)"
done
$T golden $W/$f --ids $W/one.txt -o $W/eps.st --set mla.inner_eps=1e-3 2> /dev/null
gives 'a fact set by name moves the numbers' 1 'first agreed layers.3.self_attn' \
    $T compare $W/eps.st $W/$f-all.st
grep -aq '"set.mla.inner_eps":"1e-3"' $W/eps.st && ok 'and is recorded' || bad 'and is recorded'
gives 'a fact that does not exist' 2 'mla.outer_eps' \
    $T golden $W/$f --ids $W/one.txt -o $W/p.st --set mla.outer_eps=1

gives 'another file differs' 1 'first difference' $T compare $W/llama-all.st $W/ragged.st
gives 'nothing in common' 2 '--map' $T compare $W/llama/model.safetensors $W/$f-all.st
gives 'a bound' 0 'no difference' $T compare $W/eps.st $W/$f-all.st --max-rel 1e9
gives 'one side only' 0 'only in' $T compare $W/$f-all.st $W/tap.st
gives 'one side only, strictly' 1 'no difference' $T compare $W/$f-all.st $W/tap.st --strict
json 'compare --json' $T compare $W/eps.st $W/$f-all.st --json
grep -q '"first_difference":"language_model.model.layers.3.self_attn' $W/out &&
    ok 'compare --json names the first' || bad 'compare --json names the first' "$(head -c 900 $W/out)"
printf '# theirs, ours\n\nh.*.out\tlanguage_model.model.layers.*\n' > $W/map.txt
LC_ALL=C sed 's/"language_model.model.layers.4":/"h.4.out":                      /' $W/few.st > $W/h.st
gives 'a map' 0 '1 compared difference' $T compare $W/h.st $W/few.st --map $W/map.txt
gives 'without it' 2 'common' $T compare $W/h.st $W/few.st
printf 'a\tb\tc\n' > $W/map.txt
gives 'a map with two tabs' 2 'map.txt:1:' $T compare $W/h.st $W/few.st --map $W/map.txt
printf 'a*\tb\n' > $W/map.txt
gives 'a map with one star' 2 'map.txt:1:' $T compare $W/h.st $W/few.st --map $W/map.txt
copy $W/tap.st $W/nan.st
poke $W/nan.st logits '\000\000\000\000\000\000\370\177'
gives 'NaN on one side' 1 'NaN first' $T compare $W/nan.st $W/tap.st --max-rel 1
gives 'NaN on both' 0 'no difference' $T compare $W/nan.st $W/nan.st
printf 'mm_projector.*\tf64.mm_projector.*\n' > $W/map.txt
gives 'theirs and golden swapped' 0 "$W/mm.st golden none first" \
    $T compare $W/mm.st $mm/expected.safetensors --map $W/map.txt --max-rel 1e-4
gives 'and without a map' 2 'golden is none first common' $T compare $W/mm.st $mm/expected.safetensors
gives 'the right way round' 0 '' $T compare $mm/expected.safetensors $W/mm.st --max-rel 1e-4
grep -q 'is a golden' $W/err && bad 'says nothing of it' || ok 'says nothing of it'
gives 'a short name' 0 '~ whole names' $T compare $W/$f-all.st $W/$f-all.st
grep -q '~' $W/out && ok 'and ~ is explained where it is used' || bad 'and ~ is explained'
gives 'and nowhere else' 0 '1 compared' $T compare $W/tap.st $W/tap.st
grep -q '~' $W/out && bad 'no ~, no word of it' || ok 'no ~, no word of it'
gives 'a file that is not there' 2 'nowhere.st' $T compare nowhere.st $W/tap.st
head -c 200 $W/tap.st > $W/cut.st
gives 'a truncated file' 2 'cut.st' $T compare $W/cut.st $W/tap.st

# ---- the old file stays

echo old > $W/old
cp $W/old $W/keep.st
printf '1 2 999\n' > $W/bad.txt
gives 'golden that fails' 2 '999' $T golden $W/llama --ids $W/bad.txt -o $W/keep.st
same 'leaves the old file' $W/old $W/keep.st
gives 'a folder that is not there' 2 'no/where.st' \
    $T golden $W/llama --ids $W/one.txt -o $W/no/where.st
gives 'a folder as output' 2 "$W" $T golden $W/llama --ids $W/one.txt -o $W
gives 'a device as output, before any work' 2 '/dev/null: regular' \
    $T golden no/such/model --ids $W/one.txt -o /dev/null
gives 'no name as output' 2 'empty name' $T golden $W/llama --ids $W/one.txt -o ''
[ ! -e .part ] && ok 'no file .part' || bad 'no file .part'
echo "another's" > $W/pair.st.part
gives 'beside a run that writes the same' 0 'pair.st.part: exists' \
    $T golden $W/llama --ids $W/one.txt -o $W/pair.st
[ "$(cat $W/pair.st.part)" = "another's" ] && ok 'whose part stays' || bad 'whose part stays'
rm $W/pair.st.part
gives 'a fact set twice' 2 'mla.inner_eps twice' $T golden $W/kimi_k3 --ids $W/one.txt \
    -o $W/pair.st --set mla.inner_eps=1e-6 --set mla.inner_eps=1e-3
gives 'a full disk' 2 'keep.st' \
    sh -c "trap '' XFSZ; ulimit -f 8; exec $T golden $W/llama --ids $W/one.txt -o $W/keep.st"
same 'leaves the old file, too' $W/old $W/keep.st
[ -z "$(ls $W/*.part 2> /dev/null)" ] && ok 'no half file is left' || bad 'no half file is left'

# ---- broken checkpoints: refuse NAME "WORDS" after $W/x was made and broken

refuse() {
    gives "audit: $1" 2 "$2" $T audit $W/x
    gives "run: $1" 2 "$2" $T run $W/x -n 1 --ids $W/one.txt
}
fresh() { copy $W/${1:-llama} $W/x; }
config() { sed "$1" $W/llama/config.json > $W/x/config.json; }
gives 'no checkpoint' 2 'nowhere' $T audit nowhere
gives 'a name of two lines' 2 'no?where' $T audit "no
where"
gives 'an ids file of two lines in name' 2 'no?where' $T run $W/llama -n 1 --ids "no
where"
fresh; config '/"rms_norm_eps"/d';                     refuse 'a missing key' 'rms_norm_eps'
fresh; config 's/"hidden_size": *72/"hidden_size": "72"/'; refuse 'a string for a size' 'hidden_size'
fresh; config 's/"hidden_size": *72/"hidden_size": 80/'; refuse 'another size' 'config.json'
fresh; config 's/"model_type": *"llama"/"model_type": "gpt5"/'; refuse 'another family' 'gpt5'
fresh; config 's/{/{ "use_magic": true,/';             refuse 'an unknown key' 'use_magic'
gives 'accepted by name' 0 'use_magic' $T audit $W/x --accept use_magic
$T golden $W/x --ids $W/one.txt -o $W/accept.st --accept use_magic 2> /dev/null
grep -aq '"accept.use_magic"' $W/accept.st && ok 'and recorded' || bad 'and recorded'
fresh; head -c 100 $W/llama/config.json > $W/x/config.json;  refuse 'half a config' 'config.json'
fresh; rm $W/x/config.json;                            refuse 'no config' 'config.json'
fresh; rm $W/x/model.safetensors;                      refuse 'no weights' "$W/x"
fresh; head -c 300000 $W/llama/model.safetensors > $W/x/model.safetensors
refuse 'a truncated shard' 'model.safetensors truncated'
fresh; printf 'tail' >> $W/x/model.safetensors;        refuse 'trailing bytes' 'model.safetensors 4'
gives '--lenient passes them' 0 'warnings model.safetensors' $T audit $W/x --lenient
fresh; LC_ALL=C sed 's/"model.norm.weight"/"model.nerm.weight"/' $W/llama/model.safetensors \
    > $W/x/model.safetensors;                          refuse 'a renamed tensor' 'model.norm.weight'
fresh deepseek_v3; rm $W/x/model-00003-of-00005.safetensors
refuse 'a missing shard' 'model-00003-of-00005.safetensors'
fresh deepseek_v3; cp $W/x/model-00003-of-00005.safetensors $W/x/model-extra.safetensors
gives 'a stray shard is named and not read' 0 'model-extra.safetensors' $T audit $W/x
fresh deepseek_v3
sed 's/layers.1.self_attn.o_proj.weight": "model-00002/layers.1.self_attn.o_proj.weight": "model-00003/' \
    $W/deepseek_v3/model.safetensors.index.json > $W/x/model.safetensors.index.json
refuse 'an index that disagrees' 'model.layers.1.self_attn.o_proj.weight'

fresh; poke $W/x/model.safetensors model.layers.2.mlp.up_proj.weight '\300\177'
gives 'audit does not read weights' 0 'fine' $T audit $W/x
gives 'audit --deep finds NaN' 1 'model.layers.2.mlp.up_proj.weight FAILED' $T audit $W/x --deep
json 'and says so in JSON' $T audit $W/x --deep --json
gives 'golden refuses it' 2 'model.layers.2.mlp.up_proj.weight' \
    $T golden $W/x --ids $W/one.txt -o $W/p.st
gives 'audit --deep keeps a state' 1 'FAILED' $T audit $W/x --deep --resume $W/state
gives 'and goes on from it' 1 'earlier model.layers.2.mlp.up_proj.weight' \
    $T audit $W/x --deep --resume $W/state
for n in 99999 -1 x 5x; do
    sed "s/^read .*/read $n/" $W/state > $W/spoilt
    gives "not from a state that says read $n" 2 "$W/spoilt $n" $T audit $W/x --deep --resume $W/spoilt
done
gives 'of this checkpoint alone' 2 "$W/state" $T audit $W/deepseek_v3 --deep --resume $W/state
fresh kimi_k3
scale=language_model.model.layers.2.block_sparse_moe.experts.5.w1.weight_scale
poke $W/x/model-00003-of-00010.safetensors $scale '\377'
gives 'audit --deep finds scale 255' 1 "experts.5.w1 FAILED" $T audit $W/x --deep
# Odd sizes: the smallest of everything, in one piece and in pieces of two.
echo '1 2 3 4 5 6 7 8 9' > $W/odd.txt
for set in short_conv_kernel_size=1 attn_res_block_size=1 attn_res_block_size=100 \
    num_shared_experts=0 q_lora_rank=null num_experts_per_token=12 num_hidden_layers=1 \
    mla_use_output_gate=false gate_lower_bound=null first_k_dense_replace=9; do
    rm -rf $W/odd
    $T tiny $W/odd --family kimi_k3 --set $set > /dev/null 2>&1
    $T golden $W/odd --ids $W/odd.txt --tap '*' -o $W/odd1.safetensors > /dev/null 2>&1
    $T golden $W/odd --ids $W/odd.txt --tap '*' --chunk 2 --threads 3 -o $W/odd2.safetensors \
        > /dev/null 2>&1
    gives "$set in any pieces" 0 "no difference" \
        $T compare $W/odd1.safetensors $W/odd2.safetensors --strict
done

# ---- image

I=tests/golden/images
mkdir -p $W/k3 $W/fixed
cat > $W/k3/preprocessor_config.json << 'END'
{"media_proc_cfg": {"in_patch_limit": 6, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5],
 "image_std": [0.5, 0.5, 0.5], "merge_kernel_size": 2, "fixed_output_tokens": null,
 "patch_limit_on_one_side": 512, "transparent_bg_config": {"pattern": "chessboard",
 "chessboard_square_size": 8, "chessboard_square_on_top_left": true,
 "chessboard_white_value": 255, "chessboard_gray_value": 180},
 "transparent_bg_fill_stage": "after_resize"}}
END
gives 'image' 0 '45 x 33 1 x 4 x 4 16 tokens aa3215f1c8230c62' $T image $I/files/rgba8.png --model $W/k3 \
    -o $W/a.safetensors --png $W/a.png
cp $W/err $W/said
gives 'image again, the config by its own name' 0 '' $T image $I/files/rgba8.png \
    --model $W/k3/preprocessor_config.json -o $W/b.safetensors
same 'the same picture, the same bytes' $W/a.safetensors $W/b.safetensors
gives 'its file has the grid, the values, the picture' 0 'grid_thws pixel_values resized' \
    $T compare $W/a.safetensors $W/b.safetensors
gives 'the vendor has the same resized picture' 0 '' $T compare \
    $I/expected/rgba8.png.limit6.safetensors $W/a.safetensors
gives 'a drawing is a picture' 0 'PNG, RGB' $T image $W/a.png --model $W/k3
for w in "$W/a.safetensors: grid_thws [1,3], pixel_values [16,3,14,14], resized [33,45,3]" \
    "$W/a.png: PNG, 904 x 904, each pixel 16 x 16"; do
    grep -qF "$w" $W/said && ok 'image says what it wrote' || bad 'image says what it wrote' "$(cat $W/said)"
done
json 'image --json' $T image $I/files/rgba8.png --model $W/k3 --json --pillow 13
for w in '"grid_thws":\[1,4,4\],' '"width":83,' '"pillow":13,' 'patch_size":14,' 'square_on_top_left":true,' \
    'image_mean":\[0.5, 0.5, 0.5\],' '"mode":"RGBA",'; do
    grep -q "$w" $W/out && ok "its $w" || bad "its $w" "$(cat $W/out)"
done
gives 'another order of the passes' 0 '' $T image $I/files/s_113x251_rgba.png --model $W/k3 --pillow 13
sed -n '/pixel_values/p' $W/out > $W/order13
gives 'and the first' 0 '' $T image $I/files/s_113x251_rgba.png --model $W/k3
sed -n '/pixel_values/p' $W/out > $W/order12
cmp -s $W/order12 $W/order13 && bad 'give other bits' || ok 'give other bits'
gives 'image without a model' 2 '--model DIR' $T image $I/files/rgba8.png
gives 'no such Pillow' 2 "--pillow '11'" $T image $I/files/rgba8.png --model $W/k3 --pillow 11
gives 'no such picture' 2 'nowhere.png' $T image nowhere.png --model $W/k3
gives 'a folder is no picture' 2 "$W/k3" $T image $W/k3 --model $W/k3
gives 'a model without a processor' 2 'llama/preprocessor_config.json' \
    $T image $I/files/rgba8.png --model $W/llama
for f in $I/files/bad_*; do
    grep -A9 "\"file\": \"${f##*/}\"" $I/manifest.json | grep -q '"expect": "error"' || continue
    rm -f $W/c.safetensors
    gives "${f##*/}" 2 "${f##*/}" $T image "$f" --model $W/k3 -o $W/c.safetensors
    [ -e $W/c.safetensors ] && bad "${f##*/} leaves a file"
done
sed 's/"in_patch_limit": 6, //' $W/k3/preprocessor_config.json > $W/fixed/preprocessor_config.json
gives 'a key is missing' 2 'media_proc_cfg.in_patch_limit missing' $T image $I/files/rgba8.png \
    --model $W/fixed
sed 's/"in_patch_limit": 6, /&"shrink": 1, /' $W/k3/preprocessor_config.json \
    > $W/fixed/preprocessor_config.json
gives 'a key is unknown' 2 'media_proc_cfg.shrink unknown' $T image $I/files/rgba8.png \
    --model $W/fixed
gives 'and accepted by name' 0 '16' $T image $I/files/rgba8.png --model $W/fixed \
    --accept media_proc_cfg.shrink -o $W/c.safetensors
grep -q 'accept.media_proc_cfg.shrink' $W/c.safetensors && ok 'which its file says' ||
    bad 'which its file says'
gives 'memory that only a header claims' 2 'bad_huge_dims.png' sh -c \
    "ulimit -v 400000; exec $T image $I/files/bad_huge_dims.png --model $W/k3 --threads 1"

end
