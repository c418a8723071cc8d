#!/usr/bin/env python3
"""Copies a fixture folder and keeps of its expected.safetensors what the tests hold:
ids, float64 logits, every layer and sublayer, routes, states, the float32 logits (a noise measure),
and the finer taps of the layers named. Bytes are copied, never converted.

usage: trim.py FROM TO LAYER[,LAYER...]   layers whose finer taps stay
       trim.py FROM TO none               no finer taps
       trim.py FROM TO lean               ids, logits and routes alone
"""
import json, os, re, shutil, struct, sys

src, dst, fine = sys.argv[1], sys.argv[2], set(sys.argv[3].split(","))
os.makedirs(dst, exist_ok=True)
for f in sorted(os.listdir(src)):
    if f != "expected.safetensors":
        shutil.copyfile(os.path.join(src, f), os.path.join(dst, f))

with open(os.path.join(src, "expected.safetensors"), "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    base = f.tell()
    meta = head.pop("__metadata__", None)

    def keep(name):
        if name in ("input_ids", "f32.logits", "pixel_values", "grid_thws"):
            return True
        if not name.startswith("f64."):
            return False
        if "lean" in fine:
            return "topk" in name or name in ("f64.logits", "f64.greedy_ids")
        m = re.search(r"layers\.(\d+)\.(.+)", name)
        if not m or name.startswith("f64.state") or m.group(1) in fine:
            return True
        return m.group(2) in ("self_attn", "mlp", "block_sparse_moe") or "topk" in m.group(2)

    out, data, at = {}, [], 0
    for name, e in head.items():
        if keep(name):
            b, c = e["data_offsets"]
            f.seek(base + b)
            data.append(f.read(c - b))
            out[name] = {"dtype": e["dtype"], "shape": e["shape"], "data_offsets": [at, at + c - b]}
            at += c - b

if meta:
    out = {"__metadata__": meta, **out}
text = json.dumps(out, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(dst, "expected.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + b"".join(data))
