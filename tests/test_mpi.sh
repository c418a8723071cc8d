#!/bin/sh
# A short part of check-mpi and of check-faults, and what needs no other rank.
. tests/mpi_lib.sh
need_mpi
mkdir -p build/mpi
{ build/tests/mpi_units; sh tests/mpi.sh short; sh tests/mpi_faults.sh short; } > build/mpi/short.log 2>&1
grep -v '^[0-9]* passed, [0-9]* failed$' build/mpi/short.log
awk '/^[0-9]+ passed, [0-9]+ failed$/ { n++; p += $1; f += $3 }
     END { if (n != 3) f++; print p " passed, " f " failed"; exit f > 0 }' build/mpi/short.log
