#!/usr/bin/env python3
"""A photograph of 12 megapixels through `trillion image` and through Pillow and the vendors' steps in
numpy, one thread each, in turn in one run: python3 tools/bench_image.py [build/bench_image]

Measured after decoding: resize, normalise, patches. Kimi K3 does not shrink such a picture, so a
second row asks it for a quarter of the patches; the third is Qwen2-VL's. Needs numpy and Pillow.
The results are compared bit by bit, with the order of the passes of the Pillow that is here.
"""
import hashlib, json, math, subprocess, sys, time
import numpy as np
import PIL
from PIL import Image

W, H = 4000, 3000


def kimi(image, cfg):
    p, m, side = cfg["patch_size"], cfg["merge_kernel_size"], cfg["patch_limit_on_one_side"]
    s = math.sqrt(cfg["in_patch_limit"] / (max(1, W // p) * max(1, H // p)))
    s = min(1.0, s, side * p / W, side * p / H)
    nw, nh = int(W * s), int(H * s)
    a = np.asarray(image.resize((nw, nh), Image.Resampling.BICUBIC))
    a = np.pad(a, ((0, -nh % (p * m)), (0, -nw % (p * m)), (0, 0)))
    x = (a / 255.0).astype(np.float32)
    x -= np.array(cfg["image_mean"])
    x *= 1.0 / np.array(cfg["image_std"])
    h, w = x.shape[0] // p, x.shape[1] // p
    return np.ascontiguousarray(x.reshape(h, p, w, p, 3).transpose(0, 2, 4, 1, 3))


def qwen(image, cfg):
    p, m, t = cfg["patch_size"], cfg["merge_size"], cfg["temporal_patch_size"]
    f, most = p * m, cfg["max_pixels"]
    b = math.sqrt(W * H / most)
    nh, nw = math.floor(H / b / f) * f, math.floor(W / b / f) * f
    a = np.asarray(image.resize((nw, nh), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    x = (a.astype(np.float64) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(cfg[k], np.float32) for k in ("image_mean", "image_std"))
    x = ((x.T - mean) / std).T
    x = x.reshape(3, nh // f, m, p, nw // f, m, p).transpose(1, 4, 2, 5, 0, 3, 6)
    x = np.broadcast_to(x[:, :, :, :, :, None], (*x.shape[:5], t, p, p))
    return np.ascontiguousarray(x)


def main():
    exe = sys.argv[1] if len(sys.argv) > 1 else "build/bench_image"
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:H, :W]
    photo = np.stack([127 + 90 * np.sin(x / 91 + c) + 30 * np.cos(y / 57 * (c + 1)) for c in range(3)], 2)
    photo = np.clip(photo + rng.normal(0, 6, photo.shape), 0, 255).astype(np.uint8)
    image = Image.fromarray(photo)
    photo.tofile(exe + ".rgb")
    k3 = {"in_patch_limit": 65536, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
          "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512}
    q2 = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2,
          "temporal_patch_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
          "image_std": [0.26862954, 0.26130258, 0.27577711], "min_pixels": 3136, "max_pixels": 1003520}
    quarter = dict(k3, in_patch_limit=15252)
    rows = [("Kimi K3", kimi, k3, {"media_proc_cfg": k3}),
            ("Kimi K3, a quarter of the patches", kimi, quarter, {"media_proc_cfg": quarter}),
            ("Qwen2-VL", qwen, q2, q2)]
    print(f"{W} x {H} RGB, decoded; Pillow {PIL.__version__}; ms, best of 5, one thread\n")
    print(f"{'':36}{'trillion':>9}{'Pillow':>9}{'ratio':>8}  bits")
    slower = 0
    for name, theirs, cfg, text in rows:
        with open(exe + ".json", "w") as f:
            json.dump(text, f)
        best = 1e9
        mine = subprocess.Popen([exe, exe + ".json", exe + ".rgb", str(W), str(H),
                                 PIL.__version__.split(".")[0]], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ours, digest = 1e9, ""
        for _ in range(5):                      # in turn: a slow moment meets both
            begun = time.perf_counter()
            out = theirs(image, cfg)
            best = min(best, time.perf_counter() - begun)
            mine.stdin.write("again\n")
            mine.stdin.flush()
            ms, digest = mine.stdout.readline().split()
            ours = min(ours, float(ms) / 1000)
        mine.stdin.close()
        mine.wait()
        same = hashlib.sha256(out.tobytes()).hexdigest() == digest
        print(f"{name:36}{ours * 1e3:9.1f}{best * 1e3:9.1f}{best / ours:8.2f}  {'equal' if same else 'DIFFER'}")
        slower += ours > best or not same
    return 1 if slower else 0


sys.exit(main())
