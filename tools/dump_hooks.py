#!/usr/bin/env python3
"""Write what every module of a PyTorch model returns to one safetensors file.

    python tools/dump_hooks.py DIR --ids FILE -o theirs.safetensors [--exact] [--tap GLOB]...
    trillion compare theirs.safetensors gold.safetensors

or, around a model of your own, which may be any torch.nn.Module:

    with dump_hooks(model, ["*.self_attn", "*.mlp", "logits"]) as d:
        model(ids)
    d.save("theirs.safetensors")

A tensor is named by the path of its module, as `trillion golden` names it:
`model.layers.3.self_attn`, `model.layers.3.mlp.gate`, `model.norm`; `lm_head` becomes `logits`.
  * Of a tuple the first tensor is kept. A router's tuple (it holds integer ids and weights of one
    shape) gives three: PATH.topk_ids (I32, ascending), PATH.topk_weights in that order, and PATH,
    the logits, if the tuple has them. A dict or ModelOutput is not kept, nor the outermost module.
  * `inputs` (globs, --input) adds the first tensor that a module reads, as PATH.input:
    `*.self_attn.o_proj.input` is the attention before the output projection.
  * The dtype stays as the model computed it. Values are copied, so later in-place edits don't show.
  * Rows flattened to [B*T, N] become [B, T, N]. Calls of one module (chunks, decode steps, a module
    used twice) are joined along the last axis but one, in the order they came. A module that reads
    its whole cache again (transformers' kv_b_proj of MLA) repeats itself then: dump it at prefill.

--exact runs the model in float64 although its code asks for float32 in places (norms, softmax,
router, rope tables). While `exact()` is active torch's default dtype is float64 and every torch
function, factories included, that is given float32 (complex64) as dtype takes float64
(complex128); Tensor.float() is Tensor.double(). It must hold while the model is made, for tables
computed then, and while it runs. It cannot reach casts to float16 or bfloat16, dtypes given as
strings, code outside PyTorch's functions (numpy, own kernels), and other threads.
"""
import argparse
import contextlib
import functools
import sys
from fnmatch import fnmatchcase

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode


class dump_hooks:
    def __init__(self, model, globs=("*",), inputs=()):
        self.model, self.globs, self.inputs = model, globs, inputs
        self.calls, self.hooks, self.batch = {}, [], (1, 0)

    def __enter__(self):
        self.hooks = [self.model.register_forward_pre_hook(self._start, with_kwargs=True)]
        for path, module in self.model.named_modules():
            if path:
                keep = functools.partial(self._keep, path)
                self.hooks.append(module.register_forward_hook(keep, with_kwargs=True))
        return self

    def __exit__(self, *exc):
        for hook in self.hooks:
            hook.remove()

    def _start(self, module, args, kwargs):         # [B, T] of this call: ids, or embeddings
        for x in (*args, *kwargs.values()):
            if torch.is_tensor(x) and x.dim() >= 2:
                self.batch = tuple(x.shape[:2])
                return

    def _keep(self, path, module, args, kwargs, out):
        path = "logits" if path.split(".")[-1] == "lm_head" else path
        read = [x for x in (*args, *kwargs.values()) if torch.is_tensor(x)]
        if read and any(fnmatchcase(path, g) for g in self.inputs):
            self._add(path + ".input", read[0])
        out = [x for x in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(x)]
        found = {path: out[0]} if out else {}
        ids = next((x for x in out if not x.is_floating_point()), None)
        reals = [x for x in out if x.is_floating_point()]
        weights = next((x for x in reals if ids is not None and x.shape == ids.shape), None)
        if weights is not None:                     # a router
            order = ids.argsort(-1)
            logits = [x for x in reals if x is not weights and x.shape[:-1] == ids.shape[:-1]]
            found = {path: logits[0]} if logits else {}
            found[path + ".topk_ids"] = ids.gather(-1, order).int()
            found[path + ".topk_weights"] = weights.gather(-1, order)
        for name, x in found.items():
            if any(fnmatchcase(name, g) for g in self.globs):
                self._add(name, x)

    def _add(self, name, x):
        x = x.detach().to("cpu", copy=True).contiguous()
        self.calls.setdefault(name, []).append((x, self.batch))

    def tensors(self):
        return {name: self._join(calls) for name, calls in self.calls.items()}

    @staticmethod
    def _join(calls):
        if all(x.dim() == 2 and len(x) == B * T for x, (B, T) in calls):
            calls = [(x.view(B, T, -1), 0) for x, (B, T) in calls]
        axis = -2 if calls[0][0].dim() > 1 else 0
        return torch.cat([x for x, _ in calls], axis) if len(calls) > 1 else calls[0][0]

    def save(self, path):
        save_file(self.tensors(), path)


class exact(TorchFunctionMode):
    WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exc):
        torch.set_default_dtype(self.default)
        return super().__exit__(*exc)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(x):
            return self.WIDE.get(x, x) if isinstance(x, torch.dtype) else x
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def read_ids(path):
    """The ids [B, T], padded with 0 at the end, and the length of each sequence."""
    if path.endswith(".safetensors"):
        f = load_file(path)
        ids = f["input_ids"].long()
        ids = ids[None] if ids.dim() == 1 else ids
        return ids, f.get("lengths", torch.full((len(ids),), ids.shape[1])).long()
    with open(path) as f:
        rows = [[int(w) for w in line.split()] for line in f if line.strip()]
    if not rows:
        sys.exit(f"{path}: no ids")
    lengths = torch.tensor([len(r) for r in rows])
    return torch.tensor([r + [0] * (max(lengths) - len(r)) for r in rows]), lengths


def load(directory, dtype="float32", remote_code=False):
    """The checkpoint as transformers runs it, by its plain (eager) code for every operator."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        attn_implementation="eager", experts_implementation="eager",
        local_files_only=True, trust_remote_code=remote_code)
    return model.eval()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                epilog="Names, joins and --exact: see the top of this file.")
    p.add_argument("dir", metavar="DIR", help="checkpoint directory in the Hugging Face layout")
    p.add_argument("--ids", required=True, metavar="FILE",
                   help="text, one sequence of integers a line, or a safetensors with input_ids")
    p.add_argument("-o", required=True, metavar="OUT", dest="out", help="safetensors to write")
    p.add_argument("--dtype", default="float32", help="auto, float32 (default), float64, bfloat16")
    p.add_argument("--exact", action="store_true", help="all of it in float64")
    p.add_argument("--tap", action="append", metavar="GLOB", help="names to keep (default: all)")
    p.add_argument("--input", action="append", metavar="GLOB", default=[],
                   help="modules whose input is kept too, as PATH.input")
    p.add_argument("--trust-remote-code", action="store_true",
                   help="run the modeling code inside DIR")
    a = p.parse_args()
    ids, lengths = read_ids(a.ids)
    with exact() if a.exact else contextlib.nullcontext(), torch.no_grad():
        model = load(a.dir, "float64" if a.exact else a.dtype, a.trust_remote_code)
        with dump_hooks(model, a.tap or ["*"], a.input) as d:
            model(ids, use_cache=False)
    theirs = d.tensors()
    if lengths.min() < ids.shape[1]:                # rows past a sequence's end are 0, as ours
        pad = torch.arange(ids.shape[1]) >= lengths[:, None]
        for x in theirs.values():
            if x.squeeze(1).shape[:2] == ids.shape:
                x.squeeze(1)[pad] = 0
        theirs["lengths"] = lengths
    save_file(theirs, a.out)


if __name__ == "__main__":
    main()
