# Trillion. The library is trillion.h alone; this builds the programs around it. `make` lists what
# there is. CC, CFLAGS and LDFLAGS may be given: the flags that the contract needs are added.

CC      ?= cc
CFLAGS  ?= -O2 -g
CASES   ?=
SECONDS ?= 60
PYTHON  ?= python3

# Plain c11 hides pread; contraction would fuse multiply and add behind the contract's back.
NUMERIC := -std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion \
           -Wvla -Wundef -Wcast-qual -Wwrite-strings -Wstrict-prototypes -Wmissing-prototypes
# Asked once and only when something is compiled; clang often has the flag without the library.
OPENMP   = $(eval OPENMP := $(shell sh tests/openmp.sh $(CC)))$(OPENMP)
BUILD    = $(CC) $(CFLAGS) $(LEVEL) $(NUMERIC) $(WARN) $(OPENMP) -I.
# V=1 shows whole commands.
ifndef V
.SILENT:
endif

TESTS    := $(patsubst tests/%.c,build/tests/%,$(wildcard tests/test_*.c tests/e2e*.c))
RANKS    := $(patsubst tests/%.c,build/tests/%,$(wildcard tests/mpi_*.c))
EXAMPLES := $(patsubst %.c,build/%,$(wildcard examples/*.c))
LONG     := $(patsubst tests/%.c,build/tests/%,$(wildcard tests/long_*.c))
SCRIPTS  := $(wildcard tests/test_*.sh)
FIRST    := $(filter setup,$(MAKECMDGOALS))     # `make setup check` installs before it compiles

# dlopen, by which `trillion bench` finds its peer, has a library of its own before glibc 2.34.
DL   := $(if $(filter Windows_NT,$(OS)),,-ldl)
JPEG := -ljpeg

ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j2
endif
.DEFAULT_GOAL := help
.PHONY: help setup demo check check-long check-bits check-isa check-hostile check-mutants \
        check-mpi check-faults check-real bits-golden bench bench-image fuzz examples docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  %-14s %s\n", $$1, $$2}' Makefile

setup: ## install a compiler, stb_image, libjpeg, MPI if missing (apt), or say what to install
	@CC='$(CC)' sh tools/setup.sh

demo: build/trillion ## from a picture to answer ids on a small Kimi K3, against the vendor's numbers
	@sh tools/demo.sh

check: build/trillion build/trillion-mpi $(TESTS) $(RANKS) ## run every test, no network, minutes (CASES=DIR: more cases)
	@CC='$(CC)' CASES='$(CASES)' sh tests/check.sh $(TESTS) $(SCRIPTS)

# Tests are compiled often and run once: -O1 takes half of the time.
$(TESTS): LEVEL = -O1
$(LONG): LEVEL = -O3 -march=native
build/tests/test_bits build/tests/test_par build/tests/e2e: LEVEL = -O2   # these run for as long as they compile

check-long: $(LONG) build/trillion ## all binary32 numbers through every function; the second program
	@nice sh tests/check.sh $(LONG) tests/second/second.sh

check-bits: $(FIRST) ## the same bits from every compiler, level, cpu, threads, pieces, batch (minutes)
	@sh tests/bits.sh

check-isa: $(FIRST) ## the same bits from emulated processors (qemu; minutes)
	@sh tests/isa.sh

check-hostile: $(FIRST) ## flags that break arithmetic are refused or change no bit (half an hour)
	@HOSTILE='gcc clang' nice sh tests/test_hostile.sh

bits-golden: build/tests/bits ## rewrite tests/golden/bits.txt, together with a new TR_CONTRACT
	build/tests/bits tests/golden golden best > build/bits.txt
	mv build/bits.txt tests/golden/bits.txt

check-mutants: $(FIRST) ## does some test fail for each of the listed mistakes?
	@CC='$(CC)' sh tests/mutants.sh

check-mpi: build/trillion-mpi $(RANKS) ## the same bits from 1 to 8 ranks in every layout (minutes)
	@sh tests/mpi.sh

check-faults: build/trillion build/trillion-mpi $(RANKS) ## kill, stop, slow down a rank: who is named, and when
	@sh tests/mpi_faults.sh

check-real: build/trillion ## real weights against transformers (downloads packages)
	@bash tests/real/check_real.sh

bench: build/trillion bench-image ## speed against OpenBLAS and memory, into README.md (MODEL=DIR)
	@MODEL='$(MODEL)' BLAS='$(BLAS)' FLAGS='$(CFLAGS)' sh tools/bench.sh

bench-image: build/bench_image ## a 12-megapixel photograph against Pillow (PYTHON=one that has it)
	@if $(PYTHON) -c 'import numpy, PIL' 2> /dev/null; then \
	    OMP_NUM_THREADS=1 $(PYTHON) tools/bench_image.py $<; \
	else echo "bench-image: $(PYTHON) has no numpy or no Pillow, not measured"; fi

fuzz: $(FIRST) ## feed the readers broken files, SECONDS=60 each, with sanitizers
	@CC='$(CC)' sh tests/fuzz.sh $(SECONDS)

examples: $(EXAMPLES) ## compile examples/ into build/examples/

docs: build/trillion $(EXAMPLES) ## recompute every number and snippet of docs/
	@CC='$(CC)' sh tests/test_docs.sh

clean: ## remove build/
	rm -rf build

build/trillion: tools/trillion.c $(wildcard tools/*.h) trillion.h | $(FIRST)
	@mkdir -p $(@D) && echo "  CC $@"
	$(BUILD) -o $@ $< $(LDFLAGS) $(JPEG) -lm $(DL)

# The same over ranks, where there is an MPI. mpicc is Open MPI's or MPICH's; both are told which
# compiler is meant. Whether it is there is asked when it is needed: setup may just have installed it.
MPICC   ?= mpicc
MPI_BUILD = if command -v $(MPICC) > /dev/null; then echo "  MPICC $@"; \
            OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(BUILD:$(CC)%=$(MPICC)%)
MPI_END   = ; else echo "  skipped: $@ ($(MPICC) is not here; make setup)"; fi

build/trillion-mpi: tools/trillion_mpi.c tools/trillion.c $(wildcard tools/*.h) trillion_mpi.h \
                    trillion.h | $(FIRST)
	@mkdir -p $(@D)
	$(MPI_BUILD) -o $@ $< $(LDFLAGS) -pthread $(JPEG) -lm $(DL) $(MPI_END)

$(RANKS): LEVEL = -O2
build/tests/mpi_%: tests/mpi_%.c trillion_mpi.h trillion.h tests/test.h | $(FIRST)
	@mkdir -p $(@D)
	$(MPI_BUILD) -o $@ $< $(LDFLAGS) -lm $(MPI_END)

build/bench_image: tools/bench_image.c tools/image.h trillion.h | $(FIRST)
	@mkdir -p $(@D) && echo "  CC $@"
	$(BUILD) -o $@ $< $(LDFLAGS) $(JPEG) -lm

build/tests/test_image: tools/image.h
build/tests/test_image: LIBS = $(JPEG)
build/tests/test_ring: tools/ring.h tools/postmortem.h tools/watch.h
build/tests/test_ring: LDFLAGS += -pthread

build/tests/%: tests/%.c $(wildcard tests/*.h) trillion.h | $(FIRST)
	@mkdir -p $(@D) && echo "  CC $@"
	$(BUILD) -o $@ $< $(LDFLAGS) $(LIBS) -lm

build/examples/2%: examples/2%.c trillion_mpi.h trillion.h | $(FIRST)
	@mkdir -p $(@D)
	$(MPI_BUILD) -o $@ $< $(LDFLAGS) -lm $(MPI_END)

build/examples/%: examples/%.c trillion.h | $(FIRST)
	@mkdir -p $(@D) && echo "  CC $@"
	$(BUILD) -o $@ $< $(LDFLAGS) -lm
