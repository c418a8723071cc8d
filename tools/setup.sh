#!/bin/sh
# Installs a C compiler and make if they are missing; where there is no apt, says what to install.
works() {
    t=$(mktemp -d)
    printf '#include <math.h>\n#include <stdio.h>\nint main(void) { return 0; }\n' > "$t/a.c"
    ${CC:-cc} -std=c11 -o "$t/a" "$t/a.c" -lm 2>/dev/null
    code=$?
    rm -rf "$t"
    return $code
}
if works && command -v make >/dev/null; then
    echo "setup: a C11 compiler and make are here, nothing to install"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "setup: please install a C11 compiler (gcc or clang) with its C library, and GNU make" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends gcc libc6-dev make
works || { echo "setup: ${CC:-cc} still cannot compile a program" >&2; exit 1; }
