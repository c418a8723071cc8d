"""A port of Kimi K3's vision tower in numpy, float64, for one picture; values by their taps' names.

    python tower.py DIR PIXELS OUT      PIXELS: of `trillion image -o`; OUT: safetensors to compare

It is the example of compare-your-tower.md: something to break, and a form to write a dump in.
"""
import json
import math
import sys

import numpy as np

DIR, PIXELS, OUT = sys.argv[1:4]
EPS = 2.0 ** -23                                    # nn.RMSNorm without one


def read(path):                                     # BF16 widened exactly, all else as stored
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    head, out = json.loads(data[8:8 + n]), {}
    types = {"F32": "<f4", "I64": "<i8", "BF16": "<u2", "U8": "u1", "F64": "<f8", "I32": "<i4"}
    for name, e in head.items():
        if name == "__metadata__":
            continue
        x = np.frombuffer(data[8 + n:], types[e["dtype"]], offset=e["data_offsets"][0],
                          count=int(np.prod(e["shape"]))).reshape(e["shape"])
        out[name] = (x.astype("<u4") << 16).view("<f4") if e["dtype"] == "BF16" else x
    return out


def write(path, tensors):
    head, at = {}, 0
    for name, x in tensors.items():
        head[name] = {"dtype": "F64", "shape": x.shape, "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())


cfg = json.load(open(DIR + "/config.json"))["vision_config"]
shards = json.load(open(DIR + "/model.safetensors.index.json"))["weight_map"]
files = {f: read(f"{DIR}/{f}") for f in set(shards.values())}
tap, image = {}, read(PIXELS)
D, H = cfg["vt_hidden_size"], cfg["vt_num_attention_heads"]


def W(name):
    return files[shards[name + ".weight"]][name + ".weight"].astype(np.float64)


def norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def gelu_erf(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def stretch(n, size):                               # of a table of size entries: two of them mixed
    z = np.maximum((np.arange(n) + 0.5) * size / n - 0.5, 0)
    low = z.astype(int)
    return low, np.minimum(low + 1, size - 1), (z - low)[:, None]


def rope(x, row, col):                              # [patches, heads, dim]; pairs (0, 1), (2, 3) ..
    f = 10000.0 ** (-4 * np.arange(x.shape[2] // 4) / x.shape[2])
    angle = np.stack([np.outer(col, f), np.outer(row, f)], -1).reshape(len(row), 1, -1)
    c, s, a, b = np.cos(angle), np.sin(angle), x[..., 0::2], x[..., 1::2]
    return np.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


(_, gh, gw), = image["grid_thws"]
t = "vision_tower.patch_embed"
x = image["pixel_values"].reshape(gh * gw, -1) @ W(t + ".proj").reshape(D, -1).T
tap[t + ".proj"] = x
table = W(t + ".pos_emb")
a, b, f = stretch(gh, table.shape[0])
rows = table[a] * (1 - f[..., None]) + table[b] * f[..., None]
a, b, f = stretch(gw, table.shape[1])
x = x + (rows[:, a] * (1 - f) + rows[:, b] * f).reshape(gh * gw, D)
tap[t] = x
row, col = np.repeat(np.arange(gh), gw), np.tile(np.arange(gw), gh)
for n in range(cfg["vt_num_hidden_layers"]):
    t = f"vision_tower.encoder.blocks.{n}"
    y = tap[t + ".norm0"] = norm(x, W(t + ".norm0"), EPS)
    y = tap[t + ".wqkv"] = y @ W(t + ".wqkv").T
    q, k, v = y.reshape(len(y), 3, H, -1).transpose(1, 0, 2, 3)
    q = tap[t + ".rope_q"] = rope(q, row, col)
    k = tap[t + ".rope_k"] = rope(k, row, col)
    score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
    p = np.exp(score - score.max(-1, keepdims=True))
    y = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(len(y), -1)
    tap[t + ".attn_ctx"] = y
    y = tap[t + ".wo"] = y @ W(t + ".wo").T
    x = x + y
    y = tap[t + ".norm1"] = norm(x, W(t + ".norm1"), EPS)
    y = tap[t + ".mlp"] = gelu_tanh(y @ W(t + ".mlp.fc0").T) @ W(t + ".mlp.fc1").T
    x = tap[t] = x + y
t = "vision_tower.encoder.final_layernorm"
x = tap[t] = norm(x, W(t), EPS)
x = x.reshape(gh // 2, 2, gw // 2, 2, D).transpose(0, 2, 1, 3, 4).reshape(-1, 4, D)
tap["vision_tower.merged.0"] = x
x = x.reshape(len(x), -1) @ W("mm_projector.proj.0").T
x = gelu_erf(x) @ W("mm_projector.proj.2").T
tap["mm_projector.0"] = norm(x, W("mm_projector.post_norm"), 1e-5)
write(OUT, tap)
