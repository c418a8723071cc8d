#!/bin/sh
# Two programs, one page: tests/second/second.py was written from docs/numerics.md and the models'
# fact sheets by someone who had not seen trillion.h. Both must give the same bits. Ends with
# "N passed, N failed".
#
#   SECOND_PYTHON  a Python with numpy: used as it is
#   SECOND_VENV    where a virtual environment with numpy is made else (default: build/second-venv)
set -u
python=${SECOND_PYTHON:-}
if [ -z "$python" ] && python3 -c 'import numpy' 2> /dev/null; then python=python3; fi
if [ -z "$python" ]; then
    venv=${SECOND_VENV:-build/second-venv}
    python=$venv/bin/python
    [ -x "$python" ] || python3 -m venv "$venv" || exit 1
    "$python" -c 'import numpy' 2> /dev/null || "$python" -m pip install -q numpy || exit 1
fi

passed=0 failed=0
verdict() {                                 # verdict OK WHAT
    if [ "$1" = 1 ]; then passed=$((passed + 1)) word=ok; else failed=$((failed + 1)) word=FAILED; fi
    echo "$word  $2"
}

"$python" tests/second/second.py --selftest > build/second.log 2>&1
verdict $((!$?)) 'its own arithmetic, against exact fractions'
for dir in tests/golden/kimi_k3/text-c tests/golden/families/deepseek_v3_fp8; do
    theirs=$("$python" tests/second/second.py $dir $dir/expected.safetensors |
        grep -oE '[0-9a-f]{64}' | head -n 1)
    ours=$(build/trillion golden $dir --ids $dir/expected.safetensors --tap logits \
        -o build/second.safetensors --profile exact 2>&1 | grep -oE '[0-9a-f]{64}' | tail -n 1)
    same=0
    [ -n "$ours" ] && [ "$ours" = "$theirs" ] && same=1
    verdict $same "logits of $dir: trillion.h ${ours:-none}, second.py ${theirs:-none}"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
