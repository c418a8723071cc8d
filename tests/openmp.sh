#!/bin/sh
# Prints -fopenmp if a program with it compiles and links: sh tests/openmp.sh CC [FLAGS]
t=$(mktemp -d) || exit 0
trap 'rm -rf "$t"' EXIT
printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' > "$t/omp.c"
"$@" -fopenmp -o "$t/omp" "$t/omp.c" 2>/dev/null && echo -fopenmp
exit 0
