#!/usr/bin/env bash
# Every branch that a config can take, against transformers in float64: small checkpoints written by
# `trillion tiny` with one thing set. usage: variants.sh PYTHON BUILD
set -u
python=$1 build=$2
dir=$build/real/variant ids=$build/real/variant-ids.txt gold=$build/real/variant.safetensors
mkdir -p "$build/real"
seq 0 7 279 | awk '{ printf "%d ", ($1 * $1 + 3) % 97 } END { print "" }' > "$ids"
failed=0

try() {                                     # FAMILY KEY=VALUE...
    local family=$1 sets=() s out
    shift
    for s in "$@"; do sets+=(--set "$s"); done
    rm -rf "$dir"
    if "$build/trillion" tiny "$dir" --family "$family" "${sets[@]}" > /dev/null &&
        "$build/trillion" golden "$dir" --ids "$ids" --profile oracle -o "$gold" 2> /dev/null &&
        out=$("$python" tests/real/tiny_vs_hf.py "$dir" --ids "$ids" "$gold" 2> /dev/null); then
        echo "ok    $family $*: $(echo "$out" | tail -n 1)"
    else
        failed=$((failed + 1))
        echo "FAILED $family $*"
    fi
}

yarn='{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32}'
yarn2='{"type":"yarn","factor":8,"original_max_position_embeddings":32,"mscale":0.7,
"mscale_all_dim":0.5,"beta_fast":16,"beta_slow":2}'
llama3='{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
"original_max_position_embeddings":16}'
try llama attention_bias=true mlp_bias=true
try llama 'rope_scaling={"rope_type":"linear","factor":4.0}'
try llama "rope_scaling=$yarn"
try llama "rope_scaling=$llama3" tie_word_embeddings=true
try llama 'rope_scaling={"rope_type":"dynamic","factor":4.0}'
try llama head_dim=12 num_key_value_heads=1
try deepseek_v3 q_lora_rank=null
try deepseek_v3 n_group=1 topk_group=1 rope_scaling=null
try deepseek_v3 norm_topk_prob=false n_shared_experts=2
try deepseek_v3 "rope_scaling=$yarn2"
try deepseek_v3 first_k_dense_replace=4 tie_word_embeddings=true
[ $failed = 0 ]
