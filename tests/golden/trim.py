#!/usr/bin/env python3
"""Copies a fixture folder and keeps of its expected.safetensors what the tests hold:
ids, float64 logits, every layer and sublayer, routes, states, the float32 logits (a noise measure),
the rows of images in float32 too, and the finer taps of the layers named. Bytes are copied, never
converted.

usage: trim.py FROM TO LAYER[,LAYER...]   layers whose finer taps stay
       trim.py FROM TO none               no finer taps
       trim.py FROM TO lean               ids, logits and routes alone
       trim.py FROM TO media              these, states, what is not of the text model (but wqkv)
       trim.py FROM TO images             the folder of pictures: see the function
"""
import json, os, re, shutil, struct, sys

src, dst, fine = sys.argv[1], sys.argv[2], set(sys.argv[3].split(","))
os.makedirs(dst, exist_ok=True)


def images():
    """Files of at most 100 kB; of what is expected the grid, and, where a hash does not say it
    all, the resized pictures; a fifth of the sizes; Pillow's resize whole; Qwen's small picture."""
    small = lambda name: os.path.getsize(os.path.join(src, "files", name)) <= 100000
    for d in ("files", "expected", "pil_resize", "qwen_vl"):
        os.makedirs(os.path.join(dst, d), exist_ok=True)
    m = json.load(open(os.path.join(src, "manifest.json")))
    m["files"] = [f for f in m["files"] if small(f["file"])]
    json.dump(m, open(os.path.join(dst, "manifest.json"), "w"), indent=0)
    for f in sorted({f["file"] for f in m["files"]}):
        shutil.copyfile(os.path.join(src, "files", f), os.path.join(dst, "files", f))
    for f in sorted(os.listdir(os.path.join(src, "expected"))):
        if small(f[: f.index(".", f.index(".") + 1)]) and ".rotated." not in f:
            trim(os.path.join(src, "expected", f), os.path.join(dst, "expected", f),
                 lambda name, meta: name == "grid_thws" or name == "resized_pillow12" or
                 name == "resized" and ("resized_sha256" not in meta or
                                         f.endswith(".png.safetensors") and meta["exact"] == "0"))
    for d in ("pil_resize", "qwen_vl"):
        for f in sorted(os.listdir(os.path.join(src, d))):
            if "photo" not in f:
                shutil.copyfile(os.path.join(src, d, f), os.path.join(dst, d, f))
    for f in ("k3_sizes.jsonl", "qwen_sizes.jsonl"):
        lines = open(os.path.join(src, f)).readlines()
        open(os.path.join(dst, f), "w").writelines(lines[:60] + lines[60::5])


def trim(source, target, keep):
    """The tensors that keep(name, metadata) wants, with all metadata."""
    with open(source, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        base = f.tell()
        meta = head.pop("__metadata__", None)
        out, data, at = {}, [], 0
        for name, e in head.items():
            if keep(name, meta):
                b, c = e["data_offsets"]
                f.seek(base + b)
                data.append(f.read(c - b))
                out[name] = {"dtype": e["dtype"], "shape": e["shape"],
                             "data_offsets": [at, at + c - b]}
                at += c - b
    if meta:
        out = {"__metadata__": meta, **out}
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


if "images" in fine:
    images()
    sys.exit()
for f in sorted(os.listdir(src)):
    if f != "expected.safetensors":
        shutil.copyfile(os.path.join(src, f), os.path.join(dst, f))


def keep(name, meta):
    if name in ("input_ids", "f32.logits", "pixel_values", "grid_thws"):
        return True
    if name.startswith("f32.mm_projector."):
        return True
    if not name.startswith("f64."):
        return False
    if "lean" in fine:
        return "topk" in name or name in ("f64.logits", "f64.greedy_ids")
    if "media" in fine:
        return "topk" in name or not re.search(r"[^e]\.layers\.|wqkv|model\.", name)
    m = re.search(r"layers\.(\d+)\.(.+)", name)
    if not m or name.startswith("f64.state") or m.group(1) in fine:
        return True
    return m.group(2) in ("self_attn", "mlp", "block_sparse_moe") or "topk" in m.group(2)


trim(os.path.join(src, "expected.safetensors"), os.path.join(dst, "expected.safetensors"), keep)
