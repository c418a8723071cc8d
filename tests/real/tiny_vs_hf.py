#!/usr/bin/env python3
"""Hold a golden file against transformers, run in float64 on the same checkpoint directory.

    build/trillion tiny build/tiny --family deepseek_v3
    build/trillion golden build/tiny --ids ids.txt --profile oracle -o build/gold.safetensors
    python tests/real/tiny_vs_hf.py build/tiny --ids ids.txt build/gold.safetensors

Every tensor of the golden that transformers has too is compared: relative error
max|a-b| / max|b| <= 1e-10, ids equal. Embedding, every layer, final norm and logits must be there.
Exit code 0 if all hold, 1 if not.
"""
import argparse
import json
import os
import sys

import torch
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import dump_hooks  # noqa: E402

BOUND = 1e-10


def difference(a, b):
    """max|a-b| / max|b| in float64; for integers the number that differ; inf for other sizes."""
    if a.numel() != b.numel():
        return float("inf")
    if not b.is_floating_point():
        return float((a.flatten() != b.flatten()).sum())
    a, b = a.double().flatten(), b.double().flatten()
    error = (a - b).abs().max().item() / max(b.abs().max().item(), 5e-324)
    return error if error == error else float("inf")


def theirs(directory, ids):
    """What every module of the checkpoint returns in transformers, all of it in float64."""
    with dump_hooks.exact(), torch.no_grad():
        model = dump_hooks.load(directory, "float64")
        with dump_hooks.dump_hooks(model, inputs=["*.o_proj"]) as d:
            model(ids, use_cache=False)
    return d.tensors()


def compare(directory, ids_file, gold_file):
    """[(name, difference)] in the golden's order; an entry of inf for a tap that is missing."""
    ids, lengths = dump_hooks.read_ids(ids_file)
    assert (lengths == ids.shape[1]).all(), "one length only"
    gold, got = load_file(gold_file), theirs(directory, ids)
    with open(os.path.join(directory, "config.json")) as f:
        layers = json.load(f)["num_hidden_layers"]
    needed = ["model.embed_tokens", "model.norm", "logits"]
    for n in range(layers):
        needed += [f"model.layers.{n}", f"model.layers.{n}.self_attn", f"model.layers.{n}.mlp"]
    rows = [(n, difference(got[n], b)) for n, b in gold.items() if n in got]
    return rows + [(n, float("inf")) for n in needed if n not in gold]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("dir", metavar="DIR")
    p.add_argument("gold", metavar="GOLD")
    p.add_argument("--ids", required=True, metavar="FILE")
    a = p.parse_args()
    rows = compare(a.dir, a.ids, a.gold)
    bad = [(n, e) for n, e in rows if not e <= BOUND]
    for name, error in bad:
        print(f"{name}: {error:.2e}")
    name, error = max(rows, key=lambda r: r[1])
    print(f"{len(rows)} tensors, {len(bad)} over {BOUND:.0e}; worst {error:.2e} at {name}; "
          f"logits {dict(rows)['logits']:.2e}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
