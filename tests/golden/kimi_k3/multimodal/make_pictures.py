"""The two pictures of this fixture as PNG files, out of the vendor's pixel_values.

    python make_pictures.py             needs numpy and Pillow; rewrites picture-0.png, picture-1.png

The vendor's numbers hang on `pixel_values`, F32 patches [patches, 3, 14, 14]. They were made of 8-bit
pixels by the processor's own rule, v -> (v / 255 - 0.5) / 0.5 in binary32, without resize or padding, so
the pixels can be read off: the rule is applied again, and every bit must return.
"""
import json
from pathlib import Path

import numpy as np
from PIL import Image

here = Path(__file__).parent


def tensor(name, dtype):
    data = (here / "expected.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + n])[name]
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[8 + n + begin:8 + n + end], dtype).reshape(entry["shape"])


values = tensor("pixel_values", "<f4")
pixels = np.rint((values.astype(np.float64) + 1) * 127.5).astype(np.uint8)
half = np.float32(0.5)
again = (pixels.astype(np.float32) / np.float32(255) - half) / half
assert again.tobytes() == values.tobytes(), "not made of 8-bit pixels"

at = 0
for i, (t, h, w) in enumerate(tensor("grid_thws", "<i8")):
    assert t == 1
    p = pixels[at:at + h * w].reshape(h, w, 3, 14, 14).transpose(0, 3, 1, 4, 2)
    Image.fromarray(p.reshape(14 * h, 14 * w, 3)).save(here / f"picture-{i}.png", optimize=True)
    at += h * w
