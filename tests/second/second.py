#!/usr/bin/env python3
"""A second implementation of the numerics contract, version 1.

Clean-room statement. This program was written from the page numerics.md, the model fact sheets, and
the README files, configs and tensor headers of two test checkpoints. Its author had not seen the
library's source, headers, model pages or tests, nor any other program that follows the contract.
Results were compared only with the vendors' float64 taps stored beside the checkpoints. A revised
text of the page, read afterwards, answered the author's questions and changed nothing here.

    second.py DIR IDS [--dump FILE.npz] [--layers] [--check]
    second.py --selftest

DIR is a checkpoint in its released layout (kimi_k3 text, or deepseek_v3), IDS a safetensors file
with `input_ids` [B, T] (or a text file of numbers). The SHA-256 of the little-endian binary32
logits [B, T, V] is printed. --dump writes every tap, --layers prints sums and hashes of the taps,
--check compares them with the `f64.*` tensors in IDS.

Only numpy. Arrays are vectorised over elements that do not meet; every chain keeps its order.
Labels such as S1 or O16 are rows of the contract.
"""
import hashlib
import json
import os
import sys
import time

import numpy as np

F = np.float32
D = np.float64


# ---------------------------------------------------------------- arithmetic (section 1)

def fma(a, b, c):
    """fl(a b + c) with one rounding, for arrays that hold binary32 numbers (as float32 or float64).

    p = a b is exact in binary64: 24 + 24 bits <= 53, and |p| is 0 or between 2^-298 and 2^256.
    s = fl64(p + c), then r = fl(s). Could r differ from fl(p + c)? fl is a step function whose
    steps are the midpoints between neighbouring binary32 numbers (2^128 counted as one), and each
    midpoint m is a binary64 number. fl64 is monotone and keeps m, so p + c < m gives s <= m, and
    s < m unless s = m; the same from above. So p + c and s lie on the same side of every midpoint
    except where s itself is a midpoint. There, and in the subnormal range (where midpoints have
    other bit patterns), s is replaced by the sum rounded to odd: the exact error of p + c is known
    (two_sum); if it is not 0 and the last bit of s is even, s moves one step towards the error.
    Such an s is no midpoint, on the side of p + c, and is rounded right by the argument above.
    An exact zero gets its sign from p + c in binary64, which has the same rule.
    """
    p = np.multiply(a, b, dtype=D)
    s = np.add(p, c, dtype=D)
    r = s.astype(F)
    odd = (s.view(np.int64) & 0x1fffffff) == 0x10000000
    odd |= np.abs(s) < 2.0 ** -126
    if odd.any():
        at = np.nonzero(odd)
        ss, pp = s[at], p[at]
        cc = np.broadcast_to(c, s.shape)[at].astype(D)
        v = ss - pp
        e = (pp - (ss - v)) + (cc - v)
        bits = ss.view(np.int64).copy()
        move = (e != 0) & ((bits & 1) == 0)     # e != 0 implies s != 0; s is finite here
        bits += np.where(move, np.where((e > 0) == (ss > 0), 1, -1), 0)
        r[at] = bits.view(D).astype(F)
    return r


def fold(a):
    """The sixteen lanes (last axis) fold in halves (S1)."""
    for h in (8, 4, 2, 1):
        a = a[..., :h] + a[..., h:2 * h]
    return a[..., 0]


def dot_last(x, w):
    """S1 over the last axis of two arrays that broadcast against each other."""
    n = x.shape[-1]
    assert n == w.shape[-1]
    shape = np.broadcast_shapes(x.shape[:-1], w.shape[:-1])
    a = np.zeros(shape + (16,), F)
    for k in range(0, n, 16):
        m = min(16, n - k)                      # an absent element leaves its lane alone
        if m == 16:
            a = fma(x[..., k:k + 16], w[..., k:k + 16], a)
        else:
            a[..., :m] = fma(x[..., k:], w[..., k:], a[..., :m])
    return fold(a)


def matmul(x, w):
    """O1 without a bias: x [M, K], w [N, K] -> [M, N]. Pieces only keep the arrays in cache."""
    x, w = x.astype(D), w.astype(D)
    out = np.empty((x.shape[0], w.shape[0]), F)
    step = max(1, 6144 // max(1, w.shape[0]))
    for i in range(0, x.shape[0], step):
        out[i:i + step] = dot_last(x[i:i + step, None, :], w[None])
    return out


def in_sequence(x):
    """S3: one chain from +0 along the last axis."""
    a = np.zeros(x.shape[:-1], F)
    for i in range(x.shape[-1]):
        a = a + x[..., i]
    return a


def const(v):
    """A6: a decimal, rounded to binary64 and then to binary32."""
    return F(float(v))


# ---------------------------------------------------------------- elementary functions (section 4)

M = D(6755399441055744.0)
LOG2E = D(1.4426950408889634)

EXP2 = [1.3215473638376677e-06, 1.530360894321085e-05, 0.00015403629606012824,
        0.0013333478817755093, 0.0096181289425099487, 0.055504109060035223,
        0.2402265069648917, 0.69314718055687696]


def poly(c, t):
    p = np.full_like(t, c[0])
    for v in c[1:]:
        p = p * t + D(v)
    return p


def exp2_parts(z):
    """E1, and s = 2^k."""
    k = (z + M) - M
    r = z - k
    return np.ldexp(D(1), k.astype(np.int32)), poly(EXP2, r) * r


def exp2(z):                                    # E2
    s, q = exp2_parts(z)
    return s + s * q


def exp2m1(z):                                  # E3
    s, q = exp2_parts(z)
    return (s - 1) + s * q


def wide(x):
    return np.asarray(x, F).astype(D)


def exp(x):                                     # E4
    with np.errstate(over='ignore'):
        return exp2(np.clip(wide(x), -105, 90) * LOG2E).astype(F)


def tanh(x):                                    # E6
    e = exp2m1(np.clip(np.abs(wide(x)), 0, 10) * (2 * LOG2E))
    return np.copysign(e / (e + 2), x).astype(F)


def sigmoid(x):                                 # E7
    return (1 / (1 + exp2(np.clip(wide(x), -110, 110) * -LOG2E))).astype(F)


# Binary64 functions, for positions. Scalars or arrays of float64; each operation is one fl64.

def two_sum(a, b):
    h = a + b
    v = h - a
    return h, (a - (h - v)) + (b - v)


def two_prod(a, b):
    """h + l = a b exactly (Dekker); the arguments here are far from overflow and underflow."""
    def halves(x):
        t = x * D(134217729.0)
        hi = t - (t - x)
        return hi, x - hi
    h = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return h, al * bl - (((h - ah * bh) - al * bh) - ah * bl)


EXP64 = [2.0826619102482348e-09, 2.5112024821849769e-08, 2.7557581807135586e-07,
         2.7557234895834474e-06, 2.480158692677383e-05, 0.00019841269896350431,
         0.0013888888889115496, 0.0083333333333170476, 0.041666666666666095,
         0.16666666666666682, 0.5]
LN2H = D(0.69314718055989033)
LN2L = D(5.4979230187083712e-14)


def exp_pair(x, l):                             # E16
    k = (x * LOG2E + M) - M
    hi = x - k * LN2H
    lo = l - k * LN2L
    r = hi + lo
    p = poly(EXP64, r)
    v = 1 + (r + (r * r * p + (lo - (r - hi))))
    j = (k * 0.5 + M) - M
    return v * np.ldexp(D(1), np.int32(j)) * np.ldexp(D(1), np.int32(k - j))


ATANH = [0.13195859781531022, 0.13256869272630395, 0.15386755073158759, 0.18181784417174213,
         0.22222222519338541, 0.28571428570102919, 0.4000000000000225]
TWO3 = D(0.66666666666666663)


def split(x):
    """E10 for one number: x = 2^k m, m in [sqrt 1/2, sqrt 2). frexp gives m in [1/2, 1)."""
    k0 = 0
    if x < D(2.0) ** -1022:
        x, k0 = x * D(2.0) ** 54, 54
    m, k = np.frexp(x)
    if m < np.array(0x3fe6a09e667f3bcd, np.int64).view(D):
        m, k = m * 2, k - 1
    return D(k - k0), D(m)


def log64(x):                                   # E18
    k, m = split(D(x))
    f = m - 1
    s = f / (2 + f)
    z = s * s
    t = s * z * (TWO3 + z * poly(ATANH, z))
    return k * LN2H + (2 * s + (t + k * LN2L))


def log_pair(x):                                # E19
    k, m = split(D(x))
    f = m - 1
    d = 2 + f
    dl = f - (d - 2)
    s = f / d
    p, pl = two_prod(s, d)
    sl = (((f - p) - pl) - s * dl) / d
    z, zl = two_prod(s, s)
    c, cl = two_prod(s, z)
    w, wl = two_prod(c, TWO3)
    cl = cl + ((3 * z) * sl + s * zl)
    wl = wl + (TWO3 * cl + D(3.7007434154171883e-17) * c)
    h, l1 = two_sum(k * LN2H, 2 * s)
    h, l2 = two_sum(h, w)
    return two_sum(h, (l1 + l2) + ((2 * sl + (wl + (c * z) * poly(ATANH, z))) + k * LN2L))


def pow64(x, y):                                # E20
    y = np.clip(D(y), D(-1e20), D(1e20))
    h, l = log_pair(x)
    p, pl = two_prod(y, h)
    pl = pl + y * l
    return exp_pair(np.clip(p, D(-800), D(800)), pl if abs(p) < 800 else D(0))


SIN = [1.5896230074390288e-10, -2.5050747759863509e-08, 2.7557313621350977e-06,
       -0.00019841269829589363, 0.0083333333333221182, -0.1666666666666663]
COS = [-1.1358536916813013e-11, 2.0875700851838813e-09, -2.7557314179391761e-07,
       2.4801587288852144e-05, -0.0013888888888873058, 0.041666666666666595]


def sincos64(x):                                # E21, E22
    n = (x * D(0.63661977236758138) + M) - M
    a = (x - n * D(1.570796012878418)) - n * D(3.139164164167596e-07)
    a, l1 = two_sum(a, -(n * D(6.2233638381536949e-14)))
    a, l2 = two_sum(a, -(n * D(8.3337412738951847e-20)))
    a, l3 = two_sum(a, -(n * D(1.6446246107757519e-26)))
    h, l = two_sum(a, l1 + (l2 + (l3 - n * D(1.082856673921914e-32))))
    z = h * h
    sn = h + ((h * z) * poly(SIN, z) + l * (1 - 0.5 * z))
    cs = 1 - (0.5 * z - ((z * z) * poly(COS, z) - h * l))
    q = n.astype(np.int64) & 3
    sine = np.choose(q, [sn, cs, -sn, -cs])
    cosine = np.choose(q, [cs, -sn, -cs, sn])
    return np.where(x == 0, x, sine), np.where(x == 0, D(1), cosine)


# ---------------------------------------------------------------- stored weights (section 2)

def e2m1_table():
    v = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], F)
    return np.concatenate([v, -v])


def e4m3_table():
    c = np.arange(256)
    e, m = (c >> 3) & 15, c & 7
    v = np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10.0))
    v = np.where((c & 127) == 127, np.nan, v)
    return np.where(c & 128, -v, v).astype(F)


RAW = {'F64': '<f8', 'F32': '<f4', 'F16': '<f2', 'BF16': '<u2', 'I64': '<i8', 'I32': '<i4',
       'U8': 'u1', 'I8': 'i1', 'F8_E4M3': 'u1', 'BOOL': '?'}


def read_json(path):
    with open(path, encoding='utf-8') as f:
        return json.load(f)


def read_safetensors(path):
    """name -> (dtype name, array of raw storage)."""
    with open(path, 'rb') as f:
        n = int.from_bytes(f.read(8), 'little')
        head = json.loads(f.read(n))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name != '__metadata__':
            lo, hi = t['data_offsets']
            out[name] = t['dtype'], np.frombuffer(data[lo:hi], RAW[t['dtype']]).reshape(t['shape'])
    return out


class Weights:
    def __init__(self, folder, block):
        index = os.path.join(folder, 'model.safetensors.index.json')
        if os.path.exists(index):
            where = read_json(index)['weight_map']
        else:
            where = None
        files = sorted(set(where.values())) if where else ['model.safetensors']
        self.t, self.block = {}, block
        for f in files:
            got = read_safetensors(os.path.join(folder, f))
            self.t.update({k: v for k, v in got.items() if where is None or where[k] == f})

    def plain(self, name):                      # W1, W2
        kind, a = self.t[name]
        if kind == 'BF16':
            return (a.astype(np.uint32) << 16).view(F)
        if kind not in ('F32', 'F16', 'F64'):
            raise ValueError('%s: %s is no plain weight' % (name, kind))
        return a.astype(F)

    def __call__(self, name):
        """The decoded binary32 weight of module `name` (without `.weight`)."""
        if name + '.weight_packed' in self.t:   # W4
            b = self.t[name + '.weight_packed'][1]
            q = np.stack([b & 15, b >> 4], -1).reshape(b.shape[0], -1)
            e = self.t[name + '.weight_scale'][1].astype(np.int32)
            if e.max() == 255:
                raise ValueError(name + ': a scale that is NaN')
            w = np.ldexp(e2m1_table()[q], np.repeat(e - 127, 32, axis=1)).astype(F)
        elif name + '.weight_scale_inv' in self.t:      # W3
            q = e4m3_table()[self.t[name + '.weight'][1]]
            s = self.plain(name + '.weight_scale_inv')
            r, c = (np.arange(n) // b for n, b in zip(q.shape, self.block))
            w = q * s[r][:, c]
        else:
            w = self.plain(name + '.weight')
        if not np.isfinite(w).all():
            raise ValueError(name + ': a weight that is not finite')
        return w


# ---------------------------------------------------------------- operations (section 5)

def rms_scale(x, eps):
    """r of O3, with a last axis of 1."""
    d = dot_last(x, x) / F(x.shape[-1])
    return (F(1) / np.sqrt(d + eps))[..., None]


def rms_norm(x, w, eps):                        # O3, O6
    return x * rms_scale(x, eps) * w


def l2_norm(x, eps):                            # O4
    return x * (F(1) / np.sqrt(dot_last(x, x) + eps))[..., None]


def silu(g):                                    # O7
    s = sigmoid(g)
    with np.errstate(invalid='ignore'):
        return np.where(s == 0, F(0), g * s)


def situ(g, u, p, q):                           # O8
    a = p * tanh(g / p)
    b = q * tanh(u / q)
    return (a * sigmoid(g)) * b


def conv_silu(x, w):
    """O15 for a whole prompt: x [T, C], w [C, taps], the last tap is the current token.

    Tokens before the first count as +0, which leaves the chain at +0 (a product with 0 is +-0)."""
    taps = w.shape[1]
    xp = np.concatenate([np.zeros((taps - 1, x.shape[1]), F), x])
    a = np.zeros_like(x)
    for j in range(taps):
        a = fma(w[:, j], xp[j:j + x.shape[0]], a)
    return silu(a)


def latent_attention(q, key, rank, scale):
    """Section 7 over latent keys: q [T, Hd, R + Dr], key [T, R + Dr], value key[:, :R], causal."""
    T, Hd, _ = q.shape
    big, den, out = np.empty((T, Hd), F), np.empty((T, Hd), F), np.empty((T, Hd, rank), F)
    for t0 in range(0, T, 128):                 # the block's keys; queries t0 .. T-1 see some
        kk = key[t0:t0 + 128].astype(D)
        S, Q = kk.shape[0], T - t0
        z = np.empty((Q, Hd, S), F)
        for i in range(0, Q, 8):
            z[i:i + 8] = dot_last(q[t0 + i:t0 + i + 8, :, None, :].astype(D), kk)
        z = z * scale
        vis = (np.arange(t0, t0 + S) <= np.arange(t0, T)[:, None])[:, None, :]
        m = np.where(vis, z, F(-np.inf)).max(-1)        # the sign of a zero cannot reach a result
        e = np.where(vis, exp(z - m[..., None]), F(0))
        la = np.zeros((Q, Hd, 16), F)
        oa = np.zeros((Q, Hd, rank, 16), F)
        for s in range(0, S, 16):               # t0 is a multiple of 16: lane s mod 16
            n = min(16, S - s)
            ok = vis[..., s:s + n]
            es = e[..., s:s + n]
            la[..., :n] = np.where(ok, la[..., :n] + es, la[..., :n])
            vs = kk[s:s + n, :rank].T
            i = s                               # earlier queries see none of these sixteen keys
            new = fma(es[i:, :, None, :].astype(D), vs, oa[i:, ..., :n])
            oa[i:, ..., :n] = np.where(ok[i:, :, None, :], new, oa[i:, ..., :n])
        l, o = fold(la), fold(oa)
        if t0 == 0:
            big, den, out = m, l, o
            continue
        M0, L0, O0 = big[t0:], den[t0:], out[t0:]
        M1 = np.where(M0 > m, M0, m)
        a, b = exp(M0 - M1), exp(m - M1)
        den[t0:] = fma(L0, a, l * b)
        out[t0:] = fma(O0, a[..., None], o * b[..., None])
        big[t0:] = M1
    return out / den[..., None]


def mla(w, x, cfg, scale, tap, freq=None):
    """Section 8 with its projections. freq: (cos, sin) [T, Dr/2] for interleaved pairs, or None."""
    T = x.shape[0]
    Hd, R = cfg['num_attention_heads'], cfg['kv_lora_rank']
    Dn, Dr, Dv = cfg['qk_nope_head_dim'], cfg['qk_rope_head_dim'], cfg['v_head_dim']
    eps = const('1e-6')                         # these two norms never use the config's value
    cq = rms_norm(matmul(x, w('q_a_proj')), w('q_a_layernorm'), eps)
    q = tap('q_b_proj', matmul(cq, w('q_b_proj'))).reshape(T, Hd, Dn + Dr)
    kva = tap('kv_a_proj_with_mqa', matmul(x, w('kv_a_proj_with_mqa')))
    lat = tap('kv_a_layernorm', rms_norm(kva[:, :R], w('kv_a_layernorm'), eps))
    qr, kr = q[..., Dn:], kva[:, R:]
    if freq is not None:
        c, s = freq
        qr, kr = rotate(qr, c[:, None], s[:, None]), rotate(kr, c, s)
    kvb = w('kv_b_proj').reshape(Hd, Dn + Dv, R)
    qa = np.stack([matmul(q[:, h, :Dn], kvb[h, :Dn].T) for h in range(Hd)], 1)
    key = tap('latent', np.concatenate([lat, kr], -1))
    ctx = latent_attention(np.concatenate([qa, qr], -1), key, R, scale)
    y = np.stack([matmul(ctx[:, h], kvb[h, Dn:]) for h in range(Hd)], 1)
    return tap('attn_ctx', y)


def rotate(x, c, s):
    """O12 on interleaved pairs (2i, 2i + 1), in place."""
    a, b = x[..., 0::2], x[..., 1::2]
    y = np.empty_like(x)
    y[..., 0::2] = a * c - b * s
    y[..., 1::2] = b * c + a * s
    return y


def kda(w, x, cfg, eps, tap):
    """Kimi Delta Attention: O15, O4, O16, O18 and section 9, then O3/O6 with a gate."""
    T, la = x.shape[0], cfg['linear_attn_config']
    Hd, K = la['num_heads'], la['head_dim']
    q, k, v = (tap(n + '_conv1d', conv_silu(matmul(x, w(n + '_proj')), w(n + '_conv1d')[:, 0]))
               .reshape(T, Hd, K) for n in 'qkv')
    scale = F(D(1) / np.sqrt(D(K)))
    q = tap('kda_qn', l2_norm(q, const('1e-6')) * scale)
    k = tap('kda_kn', l2_norm(k, const('1e-6')))
    z = tap('f_b_proj', matmul(matmul(x, w('f_a_proj')), w('f_b_proj')))
    dt = w.plain('dt_bias')
    A = exp(w.plain('A_log').reshape(-1)[:Hd])  # longer than the heads in the release
    g = sigmoid(A[:, None] * (z + dt).reshape(T, Hd, K))
    g = tap('kda_g', const(la['gate_lower_bound']) * g)
    beta = tap('kda_beta', sigmoid(matmul(x, w('b_proj'))))
    f = exp(g)
    S = np.zeros((Hd, K, K), F)                 # [V, K] for each head
    o = np.empty((T, Hd, K), F)
    for t in range(T):
        kt = k[t][:, None, :]
        S = S * f[t][:, None, :]
        u = dot_last(S, kt)
        r = beta[t][:, None] * (v[t] - u)
        S = fma(r[..., None], kt, S)
        o[t] = dot_last(S, q[t][:, None, :])
    tap('kda_recurrent', S)
    tap('kda_o', o)
    gate = tap('g_proj', matmul(x, w('g_proj'))).reshape(T, Hd, K)
    o = tap('o_norm', rms_norm(o, w('o_norm'), eps) * sigmoid(gate))
    return matmul(o.reshape(T, -1), w('o_proj'))


def route(logit, bias, top, groups, keep, renorm, scale, tap):
    """O22 to O24: the chosen ids in ascending order, and their weights, [T, top] each."""
    T, E = logit.shape
    s = tap('gate.scores', sigmoid(logit))
    c = s + bias
    if np.isnan(c).any():
        raise ValueError('NaN in router scores')
    if groups > 1:
        cg = c.reshape(T, groups, E // groups)
        best = np.sort(cg, -1)[..., ::-1]
        val = best[..., 0] + best[..., 1] if cg.shape[-1] > 1 else best[..., 0]
        kept = np.argsort(-val, -1, kind='stable')[:, :keep]    # stable: the lower index first
        mask = np.zeros((T, groups), bool)
        np.put_along_axis(mask, kept, True, -1)
        c = np.where(np.repeat(mask, E // groups, 1), c, F(-np.inf))
    ids = np.sort(np.argsort(-c, -1, kind='stable')[:, :top], -1)
    w = np.take_along_axis(s, ids, -1)
    if renorm:
        w = w / (in_sequence(w) + const('1e-20'))[:, None]
    w = w * scale
    return tap('gate.topk_ids', ids), tap('gate.topk_weights', w)


def feed_forward(x, w, names, act):
    g, u, d = (w(n) for n in names)
    return matmul(act(matmul(x, g), matmul(x, u)), d)


def experts(x, ids, weight, w, names, act, width):
    """O25, O26. Going through the experts in ascending order is each token's own order."""
    acc = np.zeros((x.shape[0], width), F)
    for e in range(int(ids.max()) + 1):
        t, j = np.nonzero(ids == e)
        if len(t):
            y = feed_forward(x[t], lambda n: w('experts.%d.%s' % (e, n)), names, act)
            acc[t] = fma(weight[t, j][:, None], y, acc[t])
    return acc


class Prefix:
    """Weights below a prefix."""
    def __init__(self, w, prefix):
        self.w, self.p = w, prefix

    def __call__(self, name):
        return self.w(self.p + name)

    def plain(self, name):
        return self.w.plain(self.p + name)


# ---------------------------------------------------------------- models

def mix(blocks, P, w, name, eps):
    """Section 10. All arrays [T, H]."""
    V = np.stack(blocks + [P], 1)
    c = w(name + '_norm') * w(name + '_proj')[0]
    z = dot_last(V * rms_scale(V, eps), c)
    e = exp(z - z.max(-1)[:, None])
    p = e / in_sequence(e)[:, None]
    a = np.zeros_like(P)
    for i in range(V.shape[1]):
        a = fma(p[:, i, None], V[:, i], a)
    return a


def kimi_k3(folder, config, ids, tap0):
    cfg = config['text_config']
    W = Weights(folder, None)
    top = Prefix(W, 'language_model.model.')
    eps = const(cfg['rms_norm_eps'])
    cap, ucap = const(cfg['activation_situ_beta']), const(cfg['activation_situ_linear_beta'])
    Dk = cfg['qk_nope_head_dim'] + cfg['qk_rope_head_dim']
    scale = F(D(1) / np.sqrt(D(Dk)))

    def act(g, u):
        return situ(g, u, cap, ucap)

    P, blocks = tap0(top.p + 'embed_tokens', top('embed_tokens')[ids]), []
    for l in range(cfg['num_hidden_layers']):
        name = top.p + 'layers.%d' % l
        w = Prefix(W, name + '.')

        def tap(n, v):
            return tap0(name + '.' + n, v)

        x = P
        if blocks:
            x = tap('self_attention_res', mix(blocks, P, w, 'self_attention_res', eps))
        push = l % cfg['attn_res_block_size'] == 0
        if push:
            blocks.append(P)
        x = rms_norm(x, w('input_layernorm'), eps)
        wa = Prefix(W, w.p + 'self_attn.')
        if l + 1 in cfg['linear_attn_config']['kda_layers']:
            a = kda(wa, x, cfg, eps, lambda n, v: tap('self_attn.' + n, v))
        else:
            y = mla(wa, x, cfg, scale, lambda n, v: tap('self_attn.' + n, v))
            gate = tap('self_attn.g_proj', matmul(x, wa('g_proj')))
            y = tap('self_attn.o_proj.input', y.reshape(len(x), -1) * sigmoid(gate))     # O9
            a = matmul(y, wa('o_proj'))
        tap('self_attn', a)
        P = a if push else P + a
        x = tap('mlp_res', mix(blocks, P, w, 'mlp_res', eps))
        x = rms_norm(x, w('post_attention_layernorm'), eps)
        glu = ('gate_proj', 'up_proj', 'down_proj')
        if l < cfg['first_k_dense_replace'] or l % cfg['moe_layer_freq']:
            m = tap('mlp', feed_forward(x, Prefix(W, w.p + 'mlp.'), glu, act))
        else:
            wm = Prefix(W, w.p + 'block_sparse_moe.')

            def tm(n, v):
                return tap('block_sparse_moe.' + n, v)

            chosen, wt = route(matmul(x, wm('gate')), wm.plain('gate.e_score_correction_bias'),
                               cfg['num_experts_per_token'], cfg['num_expert_group'],
                               cfg['topk_group'], cfg['moe_renormalize'],
                               const(cfg['routed_scaling_factor']), tm)
            z = tm('routed_expert_down_proj', matmul(x, wm('routed_expert_down_proj')))
            u = experts(z, chosen, wt, wm, ('w1', 'w3', 'w2'), act, z.shape[1])
            u = rms_norm(tm('routed_sum', u), wm('routed_expert_norm'), eps)
            u = matmul(tm('routed_expert_norm', u), wm('routed_expert_up_proj'))
            sh = feed_forward(x, Prefix(W, wm.p + 'shared_experts.'), glu, act)
            m = tm('routed_expert_up_proj', u) + tm('shared_experts', sh)
            tap('block_sparse_moe', m)
        P = tap0(name, P + m)
    y = tap0(top.p + 'output_attn_res', mix(blocks, P, top, 'output_attn_res', eps))
    y = tap0(top.p + 'norm', rms_norm(y, top('norm'), eps))
    return matmul(y, W('language_model.lm_head'))


def yarn(d, theta, r):
    """O11 and section 6: inverse frequencies [d/2], the multiplier of cos and sin, and g g."""
    pi = D(3.14159265358979323846)
    factor, orig = D(r['factor']), D(r['original_max_position_embeddings'])

    def corr(rot):
        return D(d) * log64(orig / ((2 * pi) * D(rot))) / (2 * log64(theta))

    def g(m):
        return D(1) if factor <= 1 else ((D(0.1) * D(m)) * log64(factor)) + 1

    low, high = corr(r.get('beta_fast', 32)), corr(r.get('beta_slow', 1))
    if r.get('truncate', True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, D(0)), min(high, D(d - 1))
    if low == high:
        high = high + D(0.001)
    i = np.arange(d // 2).astype(D)
    ramp = np.clip((i - low) / (high - low), D(0), D(1))
    inv = np.array([pow64(theta, D(-2 * n) / D(d)) for n in range(d // 2)])
    inv = (inv / factor) * ramp + inv * (1 - ramp)
    ms, ma = r.get('mscale'), r.get('mscale_all_dim')
    mult = D(r['attention_factor']) if r.get('attention_factor') else \
        g(ms) / g(ma) if ms and ma else g(1)
    return inv, mult, g(ma) * g(ma) if ma else D(1)


def deepseek_v3(folder, cfg, ids, tap0):
    W = Weights(folder, cfg.get('quantization_config', {}).get('weight_block_size'))
    top = Prefix(W, 'model.')
    eps = const(cfg['rms_norm_eps'])
    inv, mult, gg = yarn(cfg['qk_rope_head_dim'], D(cfg['rope_theta']), cfg['rope_scaling'])
    sn, cs = sincos64(np.arange(len(ids)).astype(D)[:, None] * inv)
    freq = (mult * cs).astype(F), (mult * sn).astype(F)
    Dk = cfg['qk_nope_head_dim'] + cfg['qk_rope_head_dim']
    scale = F((D(1) / np.sqrt(D(Dk))) * gg)

    def act(g, u):
        return silu(g) * u

    h = tap0('embed', top('embed_tokens')[ids])
    glu = ('gate_proj', 'up_proj', 'down_proj')
    for l in range(cfg['num_hidden_layers']):
        w = Prefix(W, top.p + 'layers.%d.' % l)

        def tap(n, v):
            return tap0('layers.%d.' % l + n, v)

        x = rms_norm(h, w('input_layernorm'), eps)
        wa = Prefix(W, w.p + 'self_attn.')
        y = mla(wa, x, cfg, scale, lambda n, v: tap('self_attn.' + n, v), freq)
        tap('self_attn.core', y)
        h = h + tap('self_attn', matmul(y.reshape(len(x), -1), wa('o_proj')))
        x = rms_norm(h, w('post_attention_layernorm'), eps)
        wm = Prefix(W, w.p + 'mlp.')
        if l < cfg['first_k_dense_replace'] or l % cfg['moe_layer_freq']:
            m = feed_forward(x, wm, glu, act)
        else:
            logit = tap('mlp.router_logits', matmul(x, wm('gate')))
            chosen, wt = route(logit, wm.plain('gate.e_score_correction_bias'),
                               cfg['num_experts_per_tok'], cfg['n_group'], cfg['topk_group'],
                               cfg['norm_topk_prob'], const(cfg['routed_scaling_factor']),
                               lambda n, v: tap('mlp.' + n.replace('gate.topk', 'topk'), v))
            m = tap('mlp.experts', experts(x, chosen, wt, wm, glu, act, x.shape[1]))
            sh = feed_forward(x, Prefix(W, wm.p + 'shared_experts.'), glu, act)
            m = m + tap('mlp.shared_experts', sh)
        h = tap0('layers.%d' % l, h + tap('mlp', m))
    y = tap0('norm', rms_norm(h, top('norm'), eps))
    return matmul(y, W('lm_head'))


# ---------------------------------------------------------------- program

def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a, '<f4').tobytes()).hexdigest()


def check(taps, logits, path):
    """Compare with the f64 tensors of the fixture: max |a - b| / max |b|."""
    want = {k[4:]: v[1] for k, v in read_safetensors(path).items() if k.startswith('f64.')}
    have = dict(taps, logits=logits)
    for name, a in have.items():
        b = want.get(name)
        if b is None and name.endswith('.latent'):
            b = want.get('state.' + name.split('model.')[-1].replace('self_attn.latent',
                                                                     'mla_latent'))
        if b is None and name.endswith('kda_recurrent'):
            b = want.get('state.' + name.split('model.')[-1].replace('self_attn.', ''))
        if b is not None:
            a, b = np.asarray(a, D).reshape(-1), b.astype(D).reshape(-1)
            print('%-72s %.2e' % (name, np.abs(a - b).max() / np.abs(b).max()))


def selftest():
    """fma against exact fractions, the functions against the C library's to about half an ulp."""
    import math
    from fractions import Fraction
    rng = np.random.default_rng(1)

    def exact(a, b, c):
        """fl(a b + c) in integers: a multiple of the ulp, ties to even."""
        v = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if v == 0:                              # the sign of an exact zero: IEEE, 6.3
            neg = np.signbit(a) ^ np.signbit(b)
            return F(-0.0) if neg and np.signbit(c) and (a == 0 or b == 0) else F(0)
        m = abs(v)
        e = max(-149, m.numerator.bit_length() - m.denominator.bit_length() - 24)
        e += m >= Fraction(2) ** (e + 24)       # now 2^(e+23) <= m < 2^(e+24), or e = -149
        r = round(m / Fraction(2) ** e) * Fraction(2) ** e      # round() is ties to even
        r = float('inf') if r >= Fraction(2) ** 128 else float(r)
        return F(math.copysign(r, v))

    def numbers(lo, hi, n):
        """Any exponent field in [lo, hi), mantissas of random lengths."""
        m = rng.integers(0, 1 << 23, n) & ~((1 << rng.integers(0, 24, n)) - 1)
        u = (rng.integers(0, 2, n) << 31) | (rng.integers(lo, hi, n) << 23) | m
        return u.astype(np.uint32).view(F)

    def near_ties(n):
        """a b is (1 +- 2^-i)(1 -+ 2^-j) times 1/2 or 3/2 ulp of c: sums beside midpoints."""
        c = np.abs(numbers(0, 255, n))
        c[::8] = np.nextafter(F(np.inf), F(0))  # the midpoint before infinity
        sign = rng.choice([-1, 1], n)
        i, j = rng.integers(1, 24, n), rng.integers(1, 24, n)
        j = np.where(rng.integers(0, 2, n) == 0, i, j)
        # exponents of both factors stay in range: the ulp goes to the one, 2^k between them
        e = np.maximum(np.frexp(c)[1] - 24, -149) - 1
        k = np.clip(rng.integers(-20, 20, n), e - 100, e + 100)
        a = np.ldexp(1 + sign * 2.0 ** -i, k)
        b = np.ldexp((1 - sign * 2.0 ** -j) * rng.choice([1, 1, 3], n), e - k)
        b = np.where(b.astype(F) == b, b, np.ldexp(1.0, e - k))
        return [np.where(rng.integers(0, 2, n) == 1, x, -x).astype(F) for x in (a, b, c)]

    n, bad, repaired, total = 20000, 0, 0, 0
    sets = [[numbers(lo, hi, n), numbers(lo, hi, n), numbers(clo, chi, n)]
            for lo, hi, clo, chi in [(0, 255, 0, 255), (120, 135, 120, 135), (0, 120, 0, 30),
                                     (0, 3, 0, 3), (45, 65, 0, 3), (186, 196, 250, 255)]]
    for a, b, c in sets + [near_ties(n) for _ in range(8)]:
        with np.errstate(over='ignore'):
            got = fma(a, b, c)
            twice = (a.astype(D) * b.astype(D) + c.astype(D)).astype(F)
        want = np.array([exact(*t) for t in zip(a, b, c)])
        bad += int((got.view(np.int32) != want.view(np.int32)).sum())
        repaired += int((twice.view(np.int32) != want.view(np.int32)).sum())
        total += n
    print('fma: %d of %d wrong (two roundings would be wrong in %d)' % (bad, total, repaired))

    tiny = np.array([1e-45], F)
    assert (tiny + tiny)[0] == 2 * tiny[0] > 0 and (tiny * F(2))[0] == 2 * tiny[0]
    assert (np.array([2e-38], F) * F(0.25))[0] > 0 and np.sqrt(tiny)[0] > 0
    x = np.concatenate([numbers(1, 134, n), np.linspace(-110, 100, n).astype(F)])
    for fn, ref in [(exp, lambda v: math.exp(min(v, 700.0))), (tanh, math.tanh),
                    (sigmoid, lambda v: 1 / (1 + math.exp(min(-v, 700.0))))]:
        want = np.array([ref(float(v)) for v in x])
        ok = np.abs(want) < 3.4e38
        err = np.abs(fn(x).astype(D) - want)[ok] / np.spacing(np.abs(want[ok]).astype(F))
        print('%-8s %.5f ulp' % (fn.__name__, err.max()))
        bad += err.max() > 0.501
    for v in rng.uniform(0.001, 1e6, 2000):
        sn, cs = sincos64(np.array([v]))
        y = rng.uniform(-5, 5)
        bad += not (abs(log64(v) - math.log(v)) <= math.ulp(math.log(v))
                    and abs(pow64(v, y) - math.pow(v, y)) <= math.ulp(math.pow(v, y))
                    and abs(sn[0] - math.sin(v)) <= math.ulp(math.sin(v))
                    and abs(cs[0] - math.cos(v)) <= math.ulp(math.cos(v)))
    print('selftest', 'failed' if bad else 'ok')
    return bad == 0


def main(argv):
    if '--selftest' in argv:
        return 0 if selftest() else 1
    args, opt, dump = [], set(), None
    it = iter(argv)
    for a in it:
        if a == '--dump':
            dump = next(it)
        elif a.startswith('--'):
            opt.add(a)
        else:
            args.append(a)
    if len(args) != 2:
        print(__doc__)
        return 2
    folder, path = args
    config = read_json(os.path.join(folder, 'config.json'))
    if path.endswith('.safetensors'):
        ids = read_safetensors(path)['input_ids'][1]
    else:
        ids = np.array(open(path).read().replace(',', ' ').split(), np.int64)
    ids = ids.reshape(-1, ids.shape[-1])
    run = {'kimi_k3': kimi_k3, 'deepseek_v3': deepseek_v3}[config['model_type']]
    start, rows, taps = time.time(), [], {}

    def tap(name, v):
        taps.setdefault(name, []).append(v)
        return v

    for row in ids:
        rows.append(run(folder, config, row, tap))
    logits = np.stack(rows)
    taps = {name: np.stack(v) for name, v in taps.items()}
    logits = np.where(np.isnan(logits), np.array(0x7fc00000, np.uint32).view(F), logits)  # A5
    print('logits_sha256', sha(logits))
    if '--layers' in opt:
        for name, v in taps.items():
            if v.dtype == F:
                print('%-72s %s %.9e' % (name, sha(v)[:16], v.astype(D).sum()))
    if '--check' in opt:
        check(taps, logits, path)
    if dump:
        np.savez(dump, logits=logits, **taps)
    print('%.1f s' % (time.time() - start), file=sys.stderr)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
