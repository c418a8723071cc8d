#!/usr/bin/env python3
"""Ports broken on purpose: does `trillion compare` name the operator that is wrong?

    python tests/real/break_ports.py [--build build] [--fixtures tests/golden/families]

transformers' Llama and DeepSeek-V3 stand for somebody's port. In float64 one operator at a time
gets a mistake that real ports had, the port is dumped with tools/dump_hooks.py, and

    trillion compare theirs gold --max-rel 1e-9 --map MAP

must give the broken operator as the first difference, and none where nothing is broken. Where the
golden does not tap it, the module around it is expected. Exit code 1 if it names another.
--python-only takes the unbroken port as the golden and looks for the first difference here.
"""
import argparse
import copy
import pathlib
import re
import subprocess
import sys
import types

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama

from tiny_vs_hf import difference, dump_hooks

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOUND = 1e-9
PORTS = []


def port(family, what, where):
    """Registers a function that breaks `what` in a model; `where` is the operator to be named."""
    def register(function):
        PORTS.append((family, what, where, function))
        return function
    return register


def layer(model, n):
    return model.model.layers[n]


def while_running(module, home, name, function):
    """`home.name` is `function` while this module runs, and only then."""
    kept = getattr(home, name)
    module.register_forward_pre_hook(lambda *_: setattr(home, name, function))
    module.register_forward_hook(lambda *_: setattr(home, name, kept))


def forward(module):
    """Takes a function as the module's new forward."""
    def register(function):
        module.forward = types.MethodType(function, module)
    return register


@port("llama", "nothing", "none")
@port("llama3", "nothing", "none")
@port("deepseek_v3", "nothing", "none")
def _(m):
    pass


# ---- Llama -------------------------------------------------------------------------------------

@port("llama", "rope theta 10000 instead of the config's", "layers.0.self_attn.o_proj.input")
def _(m):
    d = m.config.head_dim
    m.model.rotary_emb.inv_freq = 10000.0 ** -(torch.arange(0, d, 2).double() / d)


@port("llama", "rope on neighbouring pairs, not on halves", "layers.1.self_attn.o_proj.input")
def _(m):
    while_running(layer(m, 1).self_attn, modeling_llama, "apply_rotary_pos_emb",
                  modeling_deepseek_v3.apply_rotary_pos_emb_interleave)


@port("llama3", "llama3 scaling of the frequencies left out", "layers.0.self_attn.o_proj.input")
def _(m):
    d = m.config.head_dim
    theta = m.config.rope_parameters["rope_theta"]
    m.model.rotary_emb.inv_freq = theta ** -(torch.arange(0, d, 2).double() / d)


@port("llama", "RMSNorm eps 1e-6 instead of 1e-5", "layers.2.post_attention_layernorm")
def _(m):
    layer(m, 2).post_attention_layernorm.variance_epsilon = 1e-6


@port("llama", "query head h reads key head h mod G", "layers.2.self_attn.o_proj.input")
def _(m):
    while_running(layer(m, 2).self_attn, modeling_llama, "repeat_kv",
                  lambda x, n: x.repeat(1, n, 1, 1))


@port("llama", "SiLU on up instead of gate", "layers.1.mlp.down_proj.input")
def _(m):
    @forward(layer(m, 1).mlp)
    def _(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


@port("llama", "gate_proj and up_proj loaded the wrong way round", "layers.3.mlp.gate_proj")
def _(m):
    mlp = layer(m, 3).mlp
    mlp.gate_proj.weight, mlp.up_proj.weight = mlp.up_proj.weight, mlp.gate_proj.weight


@port("llama", "no residual around the MLP of one layer", "layers.2")
def _(m):
    layer(m, 2).register_forward_hook(lambda block, args, out: block.mlp_out)
    layer(m, 2).mlp.register_forward_hook(
        lambda mlp, args, out: setattr(layer(m, 2), "mlp_out", out))


@port("llama", "the mask lets a token see the next one", "layers.0.self_attn.o_proj.input")
def _(m):
    def late(module, args, kwargs):
        mask = kwargs["attention_mask"]
        kwargs["attention_mask"] = torch.cat([mask[..., 1:, :], mask[..., -1:, :]], -2)
        return args, kwargs
    layer(m, 0).self_attn.register_forward_pre_hook(late, with_kwargs=True)


@port("llama3", "logits from the hidden state before the final norm", "logits")
def _(m):
    m.model.norm.register_forward_pre_hook(lambda norm, args: setattr(m, "raw", args[0]))
    m.lm_head.register_forward_pre_hook(lambda head, args: (m.raw,))


# ---- DeepSeek-V3 -------------------------------------------------------------------------------

@port("deepseek_v3", "softmax scale without yarn's mscale squared",
      "layers.0.self_attn.o_proj.input")
def _(m):
    for block in m.model.layers:
        block.self_attn.scaling = block.self_attn.qk_head_dim ** -0.5


@port("deepseek_v3", "rope on halves, weights are for pairs", "layers.1.self_attn.o_proj.input")
def _(m):
    attn = layer(m, 1).self_attn
    attn.config = copy.copy(attn.config)
    attn.config.rope_interleave = False


@port("deepseek_v3", "yarn left out of the frequencies", "layers.0.self_attn.o_proj.input")
def _(m):
    d = m.config.qk_rope_head_dim
    theta = m.config.rope_parameters["rope_theta"]
    m.model.rotary_emb.inv_freq = theta ** -(torch.arange(0, d, 2).double() / d)


@port("deepseek_v3", "kv_a_layernorm eps 1e-5 instead of 1e-6", "layers.2.self_attn.kv_a_layernorm")
def _(m):
    layer(m, 2).self_attn.kv_a_layernorm.variance_epsilon = 1e-5


@port("deepseek_v3", "kv_b split as all keys, then all values", "layers.1.self_attn.o_proj.input")
def _(m):
    def expand(self, latent, k_rot):
        H, N, V = self.num_heads, self.qk_nope_head_dim, self.v_head_dim
        k, v = self.kv_b_proj(latent).squeeze(1).split([H * N, H * V], -1)
        k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (k, v))
        return torch.cat([k, k_rot.expand(-1, H, -1, -1)], -1), v
    attn = layer(m, 1).self_attn
    attn.expand_kv = types.MethodType(expand, attn)


@port("deepseek_v3", "only head 0 gets the shared rope key", "layers.3.self_attn.o_proj.input")
def _(m):
    attn = layer(m, 3).self_attn
    right = attn.expand_kv

    def expand(self, latent, k_rot):
        k, v = right(latent, k_rot)
        k[:, 1:, :, self.qk_nope_head_dim:] = 0
        return k, v
    attn.expand_kv = types.MethodType(expand, attn)


def reroute(gate, rule):
    """The router's tuple (logits, weights, ids) is replaced by what rule makes of it."""
    gate.register_forward_hook(lambda gate, args, out: rule(gate, *out))


@port("deepseek_v3", "the selection bias leaks into the weights", "layers.1.mlp.gate.topk_weights")
def _(m):
    def rule(gate, logits, weights, ids):
        w = (logits.sigmoid() + gate.e_score_correction_bias).gather(1, ids)
        return logits, w / w.sum(-1, keepdim=True) * gate.routed_scaling_factor, ids
    reroute(layer(m, 1).mlp.gate, rule)


@port("deepseek_v3", "experts chosen without the bias", "layers.2.mlp.gate.topk_ids")
def _(m):
    layer(m, 2).mlp.gate.e_score_correction_bias.zero_()


@port("deepseek_v3", "no limit to groups", "layers.1.mlp.gate.topk_ids")
def _(m):
    layer(m, 1).mlp.gate.topk_group = layer(m, 1).mlp.gate.num_group


@port("deepseek_v3", "weights are not renormalised", "layers.2.mlp.gate.topk_weights")
def _(m):
    layer(m, 2).mlp.gate.norm_topk_prob = False


@port("deepseek_v3", "routed_scaling_factor dropped", "layers.3.mlp.gate.topk_weights")
def _(m):
    layer(m, 3).mlp.gate.routed_scaling_factor = 1.0


@port("deepseek_v3", "SiLU on up instead of gate in the experts", "layers.2.mlp.experts")
def _(m):
    w = layer(m, 2).mlp.experts.gate_up_proj
    w.data = w.data.roll(w.shape[1] // 2, 1)


@port("deepseek_v3", "shared expert dropped", "layers.3.mlp")
def _(m):
    @forward(layer(m, 3).mlp)
    def _(self, x):
        _, weights, ids = self.gate(x)
        self.shared_experts(x)
        return self.experts(x.flatten(0, 1), ids, weights).view_as(x)


@port("deepseek_v3", "no residual around the attention of one layer",
      "layers.1.post_attention_layernorm")
def _(m):
    block = layer(m, 1)
    block.self_attn.register_forward_hook(lambda attn, args, out: setattr(block, "attn", out[0]))
    block.post_attention_layernorm.register_forward_pre_hook(lambda norm, args: (block.attn,))


# ---- the run -----------------------------------------------------------------------------------

# Where our name for a tap is not the path of a module of transformers.
MAP = """\
model.layers.*.mlp.experts\tmodel.layers.*.mlp.routed_sum
model.layers.*.self_attn.o_proj.input\tmodel.layers.*.self_attn.attn_ctx
"""
UNTAPPED = ("rotary_emb", "act_fn")      # modules whose output the golden does not hold


def dump(directory, ids, breaks):
    with dump_hooks.exact(), torch.no_grad():
        model = dump_hooks.load(directory, "float64")
        breaks(model)
        with dump_hooks.dump_hooks(model, inputs=["*.o_proj", "*.down_proj"]) as d:
            model(ids, use_cache=False)
    return {n: x for n, x in d.tensors().items() if n.split(".")[-1] not in UNTAPPED}


def renamed(name):
    """A module's path under the golden's name, by MAP."""
    for line in MAP.splitlines():
        theirs, ours = (side.split("*") for side in line.split("\t"))
        if name.startswith(theirs[0]) and name.endswith(theirs[1]):
            return ours[0] + name[len(theirs[0]):len(name) - len(theirs[1])] + ours[1]
    return name


def nearest(where, names):
    """The tap that shows `where` first: itself, or else the module that contains it."""
    name = where if where in ("logits", "none") else "model." + where
    while "." in name and name not in names and renamed(name) not in names:
        name = name.rpartition(".")[0]
    return name if name in names else renamed(name)


def trillion(command, *args):
    r = subprocess.run([str(x) for x in (command, *args)], capture_output=True, text=True)
    if r.returncode > 1:
        sys.exit(f"{command} {args[0]}: {r.stderr.strip()}")
    return r.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder")
    p.add_argument("--fixtures", type=pathlib.Path, default=ROOT / "tests/golden/families",
                   help="where llama, llama3 and deepseek_v3 lie")
    p.add_argument("--python-only", action="store_true", help="leave out what needs trillion")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = a.build / "real" / "ports"
    folder.mkdir(parents=True, exist_ok=True)
    map_file, theirs_file = folder / "map.txt", folder / "theirs.safetensors"
    map_file.write_text(MAP)
    failed, golds = 0, {}
    print(f"{'':4}  {'port':11}  {'broken':50}  first difference")
    for family, what, where, breaks in PORTS:
        directory, gold_file = a.fixtures / family, folder / f"{family}-gold.safetensors"
        ids_file = directory / "expected.safetensors"
        ids = load_file(ids_file)["input_ids"]
        if family not in golds:
            if not a.python_only:
                trillion(a.build / "trillion", "golden", directory, "--ids", ids_file,
                         "--profile", "oracle", "--tap", "*", "-o", gold_file)
            golds[family] = (dump(directory, ids, lambda m: None) if a.python_only
                             else load_file(gold_file))
        gold, theirs = golds[family], dump(directory, ids, breaks)
        if a.python_only:
            found = next((n for n in gold if difference(theirs[n], gold[n]) > BOUND), "none")
        else:
            save_file(theirs, theirs_file)
            said = trillion(a.build / "trillion", "compare", theirs_file, gold_file,
                            "--max-rel", BOUND, "--map", map_file)
            found = re.search(r"first difference\W+(?:at |in |is )?([\w.]+)", said)
            found = found[1] if found else "none"
        expected = nearest(where, gold)
        failed += found != expected
        print(f"{'ok  ' if found == expected else 'FAIL'}  {family:11}  {what:50}  {found}"
              f"{'' if found == expected else f', not {expected}'}", flush=True)
    print(f"{len(PORTS) - failed} of {len(PORTS)} as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
