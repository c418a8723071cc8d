#!/bin/sh
# The main job on a small Kimi K3, from picture and prompt to verdict: patches, the vision tower tap
# by tap, logits of a prompt with two pictures, answer ids, and a long text; each held against what
# the vendor's own code computed. `make demo`, or sh tools/demo.sh GOLDEN for another tests/golden.
G=${1:-tests/golden}
K=$G/kimi_k3
W=build/demo
trillion=build/trillion
bound=1e-9
wrong=0
photo=$G/images/files/photo_113x251.png
theirs=$K/multimodal/expected.safetensors
mkdir -p $W || exit
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}      # small steps on a busy machine: no spinning

bold= plain=
[ -t 1 ] && bold=$(printf '\033[1m') plain=$(printf '\033[0m')

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# A command as it can be typed, in lines of 100 columns; an option stays with its value.
show() {
    for word in trillion "$@"; do
        case $word in *[*]*) word="'$word'" ;; esac
        printf '%s\n' "$word"
    done | awk '
        function put(w) {
            if (length(line) + length(w) > 97) { print line " \\"; line = "     " }
            line = line " " w
        }
        BEGIN { line = "  $" }
        option != "" && !/^-/ { put(option " " $0); option = ""; next }
        { if (option != "") put(option); option = "" }
        /^-/ { option = $0; next }
        { put($0) }
        END { if (option != "") put(option); print line }'
}

# do_it ARGUMENTS: shows the command and runs it, what it prints into $W/out; it must succeed.
do_it() {
    show "$@"
    $trillion "$@" > $W/out 2> $W/err || { cat $W/out $W/err >&2; exit 2; }
}

# verdict NAME COMMAND...: the command says whether it holds.
verdict() {
    name=$1
    shift
    if "$@"; then printf '  equal    %s\n' "$name"
    else printf '  DIFFERS  %s\n' "$name"; wrong=1
    fi
}

# bytes FILE TENSOR: the raw bytes of a tensor: header, offsets, data.
bytes() {
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    set -- "$1" "$n" $(tail -c +9 "$1" | head -c "$n" | grep -ao "\"$2\": *{[^}]*}" |
        sed 's/.*\[\([0-9]*\), *\([0-9]*\)\]}$/\1 \2/')
    tail -c +$((9 + $2 + $3)) "$1" | head -c $(($4 - $3))
}

# integers FILE TENSOR: the numbers of an I64 tensor.
integers() { bytes "$1" "$2" | od -An -v -td8 | tr -s ' \n' ' ' | sed 's/^ //;s/ $//'; }

# held N THEIRS OURS PATTERN: compares N tensors and prints their rows, but for those that fit
# PATTERN only the worst distance.
held() {
    tensors=$1
    shift
    show compare "$1" "$2" --max-rel $bound
    $trillion compare "$1" "$2" --max-rel $bound > $W/table 2> $W/err
    code=$?
    [ $code -lt 2 ] || { cat $W/err >&2; exit 2; }
    [ $code -eq 0 ] || wrong=1
    awk -v skip="$3" -v bound=$bound -v tensors="$tensors" '
        function row() { sub(/^   /, "  "); sub(/^!! /, "!!"); print }      # 101 columns to 100
        /^left out/              { print "  " $0 }
        /^first difference/      { differ = 1; print "  DIFFERS  " $0 }
        /^   tensor /            { on = 1; row(); next }
        /^$/                     { on = 0 }
        !on                      { next }
        { n++; bad = /^!!/ }
        / of [0-9]+ routes? equal/ {
            for (i = 2; i < NF; i++) if ($i == "of") { equal += $(i - 1); routes += $(i + 1) }
            if (bad) row()
            next
        }
        { rel = $(bad ? 4 : 3) + 0
          if (rel > worst) { worst = rel; where = $(bad ? 2 : 1) }
          if (!bad && skip && $0 ~ skip) { more++; if (rel > most) most = rel; next }
          row() }
        END {
            if (more) printf "  %-31s         %.1e\n", "and " more " more, the worst", most
            if (routes) printf "  %d of %d choices of experts equal\n", equal, routes
            if (n != tensors) { print "  DIFFERS  " n " tensors here, not " tensors; exit 1 }
            if (!differ) printf "  within   %s, all %d tensors; the worst %.1e at %s\n", bound, n,
                                worst, where
        }' $W/table || wrong=1
}

cat << END
A small Kimi K3 in the released layout against the numbers of the vendor's own code, in float64.
Its weights are random: what it answers means nothing; that it is the vendor's answer is the point.
END

title '1  What the model sees of a photograph'
sed 's/"in_patch_limit": *[0-9]*/"in_patch_limit": 60/' $K/multimodal/preprocessor_config.json \
    > $W/preprocessor_config.json
echo '  in_patch_limit is 60 here instead of 65536, so that a small photograph is shrunk, too.'
do_it image $photo --model $W/preprocessor_config.json -o $W/photo.safetensors --png $W/seen.png
sed -n '/^$/d;s/^  \([a-z]\)/     \1/p' $W/out | grep -v SHA
expected=$G/images/expected/photo_113x251.png.limit60.safetensors
bytes $expected resized_pillow12 > $W/theirs
bytes $W/photo.safetensors resized > $W/ours
verdict "every byte of the resized picture, to Pillow 12's" cmp -s $W/theirs $W/ours
hash=$(sed -n 's/.*pixel_values  SHA-256 //p' $W/out)
verdict "SHA-256 of all patches, to that of the vendor's processor" \
    grep -aq "\"pixel_values_sha256_pillow12\":\"$hash\"" $expected
echo "  look at $W/seen.png: patches apart by grey lines, tokens by orange ones"

title '2  Is the checkpoint what its config says?'
do_it audit $K/multimodal
awk '/^(tensors|bytes) / { sub(/^/, "     "); print }
     /^[A-Z]+ \+ /       { kind = $1 " + " $3; sub(/.*iB  /, ""); kinds = kinds "; " kind ": " $0 }
     /^fine/             { print "     layers      " substr(kinds, 3)
                           sub(/ above/, ", which it lists"); print "  " $0 }' $W/out

title '3  The vision tower, tap by tap: four pictures and a clip of three frames'
echo "  the bound on max rel is $bound: rounding alone, in float64, is about 1e-14"
echo '  ~ in a name: modules left out, so that it fits'
do_it golden $K/vision --pixels $K/vision/expected.safetensors --profile oracle --tap '*' \
    -o $W/tower.safetensors
held 23 $K/vision/expected.safetensors $W/tower.safetensors 'merged|mm_projector\.[1-4]'

title '4  A prompt with two pictures'
integers $theirs input_ids > $W/ids.txt
place=$(sed -n 's/.*"media_placeholder_token_id": *\([0-9]*\).*/\1/p' $K/multimodal/config.json)
pictures=
: > $W/ours
for i in 0 1; do
    png=$K/multimodal/picture-$i.png
    do_it image $png --model $K/multimodal -o $W/picture-$i.safetensors
    awk '/grid|patches|tokens/ { sub(/^ */, ""); gsub(/  +/, " "); line = line ", " $0 }
         END { print "     " substr(line, 3) }' $W/out
    bytes $W/picture-$i.safetensors pixel_values >> $W/ours
    pictures="$pictures --image $png"
done
bytes $theirs pixel_values > $W/theirs
verdict "every bit of the pixel_values that the vendor's run had" cmp -s $W/theirs $W/ours
n=$(wc -w < $W/ids.txt | tr -d ' ')
echo "  $W/ids.txt: $n ids; $place, twice among them, is the place of a picture"
do_it golden $K/multimodal --ids $W/ids.txt $pictures --profile oracle -o $W/gold.safetensors
held 20 $theirs $W/gold.safetensors 'topk_weights'

title '5  The answer'
do_it run $K/multimodal --ids $W/ids.txt $pictures -n 12 --ignore-eos
vendor=$(integers $theirs f64.greedy_ids)
printf '     vendor  %s\n     ours    %s\n' "$vendor" "$(cat $W/out)"
verdict 'twelve ids' [ "$(cat $W/out)" = "$vendor" ]

title '6  Text alone, every layer'
do_it golden $K/text-a --ids $K/text-a/expected.safetensors --profile oracle -o $W/text.safetensors
held 46 $K/text-a/expected.safetensors $W/text.safetensors 'layers|embed'

echo
if [ $wrong -eq 0 ]; then
    echo "demo: from picture to answer as the vendor has it: equal bits and ids, the rest in $bound"
else
    echo "demo: something DIFFERS, see above" >&2
fi
exit $wrong
