#!/bin/sh
# Installs a C compiler, make, stb_image's headers, libjpeg and an MPI (any will do) if they are
# missing; where there is no apt, says what to install.
compiles() {                                # compiles LIBRARY...: a program from stdin
    t=$(mktemp -d)
    cat > "$t/a.c"
    ${CC:-cc} -std=c11 -o "$t/a" "$t/a.c" "$@" -lm 2>/dev/null
    code=$?
    rm -rf "$t"
    return $code
}
works()     { printf '#include <math.h>\n#include <stdio.h>\nint main(void) { return 0; }\n' | compiles; }
has_stb()   { printf '#include <stb/stb_image.h>\n#include <stb/stb_image_write.h>\nint main(void) { return 0; }\n' | compiles; }
has_jpeg()  { printf '#include <stdio.h>\n#include <jpeglib.h>\nint main(void) { struct jpeg_error_mgr e; return !jpeg_std_error(&e); }\n' | compiles -ljpeg; }
has_mpi()   { command -v "${MPICC:-mpicc}" >/dev/null && command -v mpirun >/dev/null; }
if works && has_stb && has_jpeg && has_mpi && command -v make >/dev/null; then
    echo "setup: a C11 compiler, make, stb_image, libjpeg and an MPI are here, nothing to install"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "setup: please install a C11 compiler (gcc or clang) with its C library, GNU make, the" \
         "headers stb/stb_image.h and stb/stb_image_write.h, libjpeg-turbo with jpeglib.h, and" \
         "Open MPI or MPICH with mpicc and mpirun" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
set --
works && command -v make >/dev/null || set -- gcc libc6-dev make
has_stb || set -- "$@" libstb-dev
has_jpeg || set -- "$@" libjpeg-dev
has_mpi || set -- "$@" libopenmpi-dev openmpi-bin
$sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends "$@"
works || { echo "setup: ${CC:-cc} still cannot compile a program" >&2; exit 1; }
has_stb || { echo "setup: ${CC:-cc} still does not find stb/stb_image.h" >&2; exit 1; }
has_jpeg || { echo "setup: ${CC:-cc} still does not find jpeglib.h or libjpeg" >&2; exit 1; }
has_mpi || { echo "setup: mpicc and mpirun are still not found" >&2; exit 1; }
