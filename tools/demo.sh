#!/bin/sh
# The main job on a small Kimi K3, from checkpoint to verdict: audit, golden, compare with what the
# vendor's own code computed, greedy ids. `make demo`, or sh tools/demo.sh DIR for another folder
# with a checkpoint and its expected.safetensors.
dir=${1:-tests/golden/kimi_k3/text-a}
theirs=$dir/expected.safetensors
gold=build/demo-gold.safetensors
trillion=build/trillion
bound=1e-9

step() { printf '\n\033[1m$ trillion %s\033[0m\n' "$*"; }
[ -t 1 ] || step() { printf '\n$ trillion %s\n' "$*"; }

# The numbers of an I64 tensor: header, offsets, bytes.
integers() {
    n=$(od -An -tu8 -N8 "$theirs" | tr -d ' ')
    at=$(tail -c +9 "$theirs" | head -c "$n" | grep -o "\"$1\": *{[^}]*}" |
        sed 's/.*\[\([0-9]*\), *\([0-9]*\)\]}$/\1 \2/')
    set -- $at
    od -An -v -td8 -j $((8 + n + $1)) -N $(($2 - $1)) "$theirs" | tr -s ' \n' ' ' | sed 's/^ //;s/ $//'
}

step audit "$dir"
$trillion audit "$dir" || exit
step golden "$dir" --ids "$theirs" --profile oracle -o $gold
$trillion golden "$dir" --ids "$theirs" --profile oracle -o $gold || exit
step compare "$theirs" $gold --max-rel $bound
$trillion compare "$theirs" $gold --max-rel $bound > build/demo-compare.txt
verdict=$?
sed '/^only in /,/^$/d' build/demo-compare.txt
step run "$dir" --ids "$theirs" -n 12 --ignore-eos
ours=$($trillion run "$dir" --ids "$theirs" -n 12 --ignore-eos) || exit
vendor=$(integers f64.greedy_ids)
printf 'vendor  %s\nours    %s\n' "$vendor" "$ours"
[ "$ours" = "$vendor" ] || verdict=1

echo
if [ $verdict -eq 0 ]; then
    echo "demo: every layer within $bound of the vendor's float64 run, every route and greedy id equal"
else
    echo "demo: something differs, see above" >&2
fi
exit $verdict
