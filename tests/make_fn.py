#!/usr/bin/env python3
"""Makes the constants of chapter {fn} in trillion.h, and the tables its test reads (needs mpmath).

usage: make_fn.py                   prints the constants
       make_fn.py table TO          hard and random arguments of the binary64 functions
       make_fn.py trim FROM TO      every second hard argument of elementary.safetensors

Every polynomial is a weighted minimax fit, found by Remez's exchange on a fine grid in 200 bits and
then rounded to binary64. Printed with each: the worst weighted error of the rounded coefficients,
as a power of two. Nothing here is taken from another library."""
import json
import random
import struct
import sys

from mpmath import mp, mpf, log, exp, sin, cos, erf, erfc, sqrt, pi, cospi, matrix, lu_solve, floor

mp.prec = 200


def remez(f, w, lo, hi, n):
    """n coefficients c with max |w(x) (f(x) - sum c_i x^i)| least over [lo, hi]."""
    count = 60 * n
    xs = [(lo + hi) / 2 - (hi - lo) / 2 * cospi(mpf(2 * i + 1) / (2 * count)) for i in range(count)]
    fx, wx = [f(x) for x in xs], [w(x) for x in xs]
    ref = [min(count - 1, int(count * (i + 0.5) / (n + 1))) for i in range(n + 1)]
    c = None
    for _ in range(60):
        rows = [[xs[r] ** j for j in range(n)] + [(-1) ** i / wx[r]] for i, r in enumerate(ref)]
        sol = lu_solve(matrix(rows), matrix([fx[r] for r in ref]))
        c, level = [sol[j] for j in range(n)], abs(sol[n])
        err = [wx[i] * (fx[i] - poly(c, xs[i])) for i in range(count)]
        runs = []                                   # the largest of each run of one sign
        for i in range(count):
            if runs and (err[i] > 0) == (err[runs[-1]] > 0):
                if abs(err[i]) > abs(err[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n + 1:
            runs.pop(0 if abs(err[runs[0]]) < abs(err[runs[-1]]) else -1)
        if len(runs) < n + 1 or max(map(abs, err)) < level * mpf("1.0001"):
            break
        ref = runs
    return c


def poly(c, x):
    y = mpf(0)
    for a in reversed(c):
        y = y * x + a
    return y


def fit(name, f, w, lo, hi, n):
    lo, hi = mpf(lo), mpf(hi)
    c = [mpf(float(a)) for a in remez(f, w, lo, hi, n)]
    worst = max(abs(w(x) * (f(x) - poly(c, x)))
                for x in (lo + (hi - lo) * (mpf(i) + mpf("0.37")) / 4000 for i in range(4000)))
    print(f"{name}: 2^{float(log(worst, 2)):.1f}")
    for i, a in enumerate(c):
        print(f"    c{i:<2} {float(a):.17g}")


def parts(name, x, bits, count):
    """x as a sum of `count` numbers, all but the last cut to multiples of 2^-bits, 2^-2bits, .."""
    print(name)
    for i in range(1, count + 1):
        p = mpf(float(x)) if i == count else floor(x * mpf(2) ** (bits * i)) / mpf(2) ** (bits * i)
        print(f"    {float(p):.17g}")
        x -= p


def constants():
    ln2 = log(mpf(2))
    half = mpf("0.5")
    eps = mpf("1e-6")           # intervals a little wider than the reductions need

    fit("exp2m1: (2^r - 1) / r, relative", lambda r: (2 ** r - 1) / r if r else ln2,
        lambda r: r / (2 ** r - 1) if r else 1 / ln2, -half - eps, half + eps, 8)

    top = (3 - 2 * sqrt(mpf(2))) ** 2 + eps                     # s^2 at f = sqrt(2) - 1
    atanh2 = lambda z: log((1 + sqrt(z)) / (1 - sqrt(z))) / sqrt(z) if z else mpf(2)
    fit("log: (2 atanh(s) / s - 2) / z, z = s^2, relative to log",
        lambda z: (atanh2(z) - 2) / z, lambda z: z / atanh2(z), mpf(2) ** -40, top, 4)
    fit("log64: ((2 atanh(s) / s - 2) / z - 2/3) / z",
        lambda z: ((atanh2(z) - 2) / z - mpf(2) / 3) / z, lambda z: z * z / atanh2(z),
        mpf(2) ** -30, top, 7)

    fit("exp64: (e^r - 1 - r) / r^2", lambda r: (exp(r) - 1 - r) / r ** 2 if r else half,
        lambda r: r ** 2 / exp(r), -ln2 / 2 - eps, ln2 / 2 + eps, 11)

    z4 = (pi / 4) ** 2 + eps
    fit("sin: (sin(r) / r - 1) / z, z = r^2, relative to sin",
        lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z, lambda z: z * sqrt(z) / sin(sqrt(z)),
        mpf(2) ** -40, z4, 6)
    fit("cos: (cos(r) - 1 + z/2) / z^2", lambda z: (cos(sqrt(z)) - 1 + z / 2) / z ** 2,
        lambda z: z * z / cos(sqrt(z)), mpf(2) ** -30, z4, 6)

    # erf(a) = 1 - 2^(-a Q(a)): an error d of Q changes erf by ln2 a erfc d.
    fit("erf: -log2(erfc(a)) / a, relative to erf", lambda a: -log(erfc(a), 2) / a,
        lambda a: ln2 * a * erfc(a) / erf(a), mpf(2) ** -40, mpf(4), 13)

    # Phi(-b) = e^(-b^2 / 2) M(t), t = 4 / (4 + b), and gelu rounds to 0 below -14.2. M(1) is to be
    # 1/2 exactly, so Q of M = 1/2 + (t - 1) Q is fitted, and c0 takes what Horner's roundings leave.
    mills = lambda t: exp(8 * (1 / t - 1) ** 2) * erfc(4 * (1 / t - 1) / sqrt(mpf(2))) / 2
    low = 4 / mpf("18.5")
    q = remez(lambda t: (mills(t) - half) / (t - 1), lambda t: (1 - t) / mills(t), low, 1 - eps ** 2,
              13)
    c = [float(a) for a in [half - q[0]] + [q[i - 1] - q[i] for i in range(1, 13)] + [q[12]]]
    left = 0.0
    for a in reversed(c):
        left += a
    c[0] += 0.5 - left
    worst = max(abs(poly([mpf(a) for a in c], t) / mills(t) - 1)
                for t in (low + (1 - low) * mpf(i) / 4000 for i in range(4001)))
    print(f"gelu: e^(b^2 / 2) Phi(-b) in t = 4 / (4 + b), relative: 2^{float(log(worst, 2)):.1f}")
    for i, a in enumerate(c):
        print(f"    c{i:<2} {a:.17g}")

    print(f"log2(e)  {float(1 / ln2):.17g}\nln2      {float(ln2):.17g}\npi/2     {float(pi / 2):.17g}")
    print(f"2/pi     {float(2 / pi):.17g}\n2/3 low  {float(mpf(2) / 3 - mpf(float(mpf(2) / 3))):.17g}")
    parts("ln2 in 42 bits and the rest", ln2, 42, 2)
    parts("pi/2 in pieces of 21 bits", pi / 2, 21, 6)
    print("2/pi in digits of base 2^24")
    x = 2 / pi
    for _ in range(9):
        x *= 2 ** 24
        print(f"    {int(floor(x))}")
        x -= floor(x)


# ---- tables

def write(path, meta, tensors):
    """tensors: name -> (dtype, count, bytes)"""
    head, at = {"__metadata__": meta}, 0
    for name, (dtype, n, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": [n], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def trim(path_from, path_to):
    with open(path_from, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    meta, out = head.pop("__metadata__"), {}
    for name, e in head.items():
        if name.startswith("rsqrt"):
            continue
        size = {"F32": 4, "F64": 8}[e["dtype"]]
        b, end = e["data_offsets"]
        items = [data[i:i + size] for i in range(b, end, size)]
        items = items[:2400:2] + items[2400:]               # the first 2,400 are the hard ones
        out[name] = (e["dtype"], len(items), b"".join(items))
    write(path_to, meta, out)


def near_quarter_turns():
    """Binary64 numbers below 2^31 that lie nearest to multiples of pi/2. x = m 2^(E-52) does where
    m is a small multiple of a denominator of the continued fraction of 2^(E-52) / (pi/2)."""
    found = set()
    for E in range(0, 31):
        a = y = mpf(2) ** (E - 52) / (pi / 2)
        q0, q1 = 1, 0
        while q1 < 2 ** 53:
            q0, q1 = q1, int(floor(y)) * q1 + q0
            for m in range(q1, min(2 ** 53, 9 * q1 + 1), max(q1, 1)):
                if m >= 2 ** 52:
                    found.add((abs(m * a - floor(m * a + 0.5)), float(m) * 2.0 ** (E - 52)))
            y = 1 / (y - floor(y))
    return [x for _, x in sorted(found)[:150]]


def table(path):
    r, near = random.Random(4), lambda x, n: x * (1 + n * 2.0 ** -52)
    wide = lambda lo, hi: r.choice((-1, 1)) * r.uniform(1, 2) * 2.0 ** r.randint(lo, hi)
    xs = {
        "exp64": [r.uniform(-708, 709) for _ in range(500)] + [wide(-60, 9) for _ in range(200)] +
                 [near(float((k + mpf("0.5")) * log(mpf(2))), r.randint(-2, 2))
                  for k in range(-1000, 1000, 20)],
        "log64": [abs(wide(-1022, 1023)) for _ in range(300)] +
                 [1 + r.choice((-1, 1)) * r.uniform(1, 2) * 2.0 ** -r.randint(1, 52)
                  for _ in range(300)] +
                 [near(2.0 ** k * 0.7071067811865476, r.randint(-3, 3)) for k in range(-99, 100)],
        "pow64": [float(t) for t in (10000, 50000, 150000, 500000, 1000000, 10000000) * 50] +
                 [abs(wide(-100, 100)) for _ in range(200)] +
                 [1 + wide(-30, -2) for _ in range(200)],
        "sincos64": [r.uniform(-1, 1) * 2.0 ** r.randint(-20, 31) for _ in range(500)] +
                    [float(r.randint(0, 2 ** 31)) for _ in range(100)] +
                    [float(mpf(r.randint(1, 2 ** 30)) * pi / 2) for _ in range(100)] +
                    near_quarter_turns(),
    }
    ys = [-2.0 * r.randint(0, 63) / 128 for _ in range(300)]
    for x in xs["pow64"][300:]:                             # results over the whole range
        ys.append(r.uniform(-1, 1) * min(700 / abs(float(log(mpf(x)))), 1e9))
    f64 = lambda v: ("F64", len(v), struct.pack(f"<{len(v)}d", *v))
    out = {}

    def result(name, exact):
        hi = [float(v) for v in exact]
        out[name + ".hi"], out[name + ".lo"] = f64(hi), f64([float(v - h) for v, h in zip(exact, hi)])

    for fn, x in xs.items():
        out[fn + ".in.x"] = f64(x)
    out["pow64.in.y"] = f64(ys)
    result("exp64.out", [exp(mpf(x)) for x in xs["exp64"]])
    result("log64.out", [log(mpf(x)) for x in xs["log64"]])
    result("pow64.out", [mpf(x) ** mpf(y) for x, y in zip(xs["pow64"], ys)])
    result("sincos64.out.sin", [sin(mpf(x)) for x in xs["sincos64"]])
    result("sincos64.out.cos", [cos(mpf(x)) for x in xs["sincos64"]])
    write(path, {"about": "binary64 functions; the result is hi + lo, by mpmath in 200 bits"}, out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table(sys.argv[2])
    elif sys.argv[1:2] == ["trim"]:
        trim(sys.argv[2], sys.argv[3])
    else:
        constants()
