#!/bin/sh
# Measures speed and writes the table of README.md; a few minutes, best on an idle machine.
#     MODEL=DIR   what to decode with (default: random weights in the shape of SmolLM2-135M)
#     BLAS=FILE   OpenBLAS's shared library, if the system does not find it by itself
#     FLAGS=...   what the tool was compiled with, for the table
trillion=build/trillion
json=build/bench.json
model=${MODEL:-build/bench-model}
blas=${BLAS:+--blas=$BLAS}

$trillion bench --quick --json $blas > $json || exit
if grep -q '"blas":null' $json; then
    echo "bench: without OpenBLAS there is no table to write. Install it (Debian, Ubuntu: apt" >&2
    echo "bench: install libopenblas0), or name its shared library: make bench BLAS=FILE" >&2
    exit 1
fi

[ -n "$MODEL" ] || [ -f $model/config.json ] ||
    $trillion tiny $model --family llama --set hidden_size=576 --set num_hidden_layers=30 \
        --set num_attention_heads=9 --set num_key_value_heads=3 --set head_dim=64 \
        --set intermediate_size=1536 --set vocab_size=49152 --set tie_word_embeddings=true || exit
$trillion bench --json --model "$model" $blas > $json || exit

commit=$(git rev-parse --short HEAD 2> /dev/null)
[ -z "$(git status --porcelain -- trillion.h tools 2> /dev/null)" ] || commit="$commit and changes"
awk -v json=$json -v flags="$FLAGS" -v commit="$commit" -f tools/bench_table.awk README.md \
    > build/README.md || { echo "bench: README.md has lost its <!-- bench --> markers" >&2; exit 1; }
cat build/README.md > README.md
sed -n '/^<!-- bench -->$/,/^<!-- \/bench -->$/p' README.md | grep -v '^<!--'
