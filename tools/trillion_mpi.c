/* trillion_mpi.c - the command line over ranks: trillion.c with another {engine}, ranks.h
 *
 *     mpirun -np 8 trillion-mpi run DIR --ids ids.txt -n 20 --layout pp=2,ep=4
 *
 * Options, answers and files are those of one rank, byte for byte. Rank 0 alone speaks and writes;
 * of a failure one rank says one sentence, and all end. */

#define _GNU_SOURCE 1                   /* sched_getaffinity */
#define TRILLION_IMPLEMENTATION
#define TRILLION_MPI_IMPLEMENTATION
#include "../trillion_mpi.h"

#define TRILLION_RANKS
#define PROGRAM "trillion-mpi"
#define PROGRAM_RANKS 1
#define PROGRAM_CODES                                                                       \
    "Over ranks: 1 a rank was late, or MPI failed between them; a rank that a signal ended has\n" \
    "the launcher end all with a code of the launcher's, such as 137 after SIGKILL.\n"
#define PROGRAM_LAYERS                                                                      \
    "Over ranks the stages share layers A to B, and rank 0 alone reads FILE.\n"
#define PROGRAM_THREADS "cores of a machine / ranks there"
#define PROGRAM_OPTIONS                                                                     \
    { "--layout",   "L",    OPT_ONE,  "pp=2,tp=1,ep=4,cp=1 or part of it (default: ep=ranks)" }, \
    { "--deadline", "S",    OPT_ONE,  "seconds that a rank waits for another (default: 300)" },  \
    { "--rings",    "DIR",  OPT_ONE,  "last events of each rank, kept (default: a new folder)" },
#define PROGRAM_COMMANDS                                                                    \
    { "bench", "DIR [options]", "Many ranks against one: speed, and what was waited for.",  \
      ranks_bench_note, 1, 1, 1, ranks_bench_options, check_ranks_bench, cmd_ranks_bench },
#define PROGRAM_MODEL_OPTIONS                                                               \
    { "--report",   NULL,   OPT_FLAG, "memory, bytes and waits of the ranks, to stderr" },  \
    { "--experts",  "FILE", OPT_ONE,  "map of experts, JSON; or load:GOLDEN, by its topk_ids" }, \
    { "--spare",    "N",    OPT_ONE,  "with load: N more of the hottest experts on each rank" }, \
    { "--fetch",    "N",    OPT_ONE,  "experts that N tokens of a rank want come to them" }, \
    { "--keep",     "N",    OPT_ONE,  "with fetch: how many stay on a rank (default: 16)" },
#define PROGRAM_USE                                                                         \
    "  mpirun -np 4 trillion-mpi golden DIR --ids ids.txt -o gold.safetensors --layout ep=4\n" \
    "  mpirun -np 8 trillion-mpi run    DIR --ids ids.txt -n 20 --layout pp=2,tp=2,ep=2\n\n" \
    "The same answers as `trillion`, to the bit and byte, whatever the layout. As root (in a\n" \
    "container) Open MPI starts with --allow-run-as-root, or with OMPI_ALLOW_RUN_AS_ROOT=1 and\n" \
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1: it refuses by itself, as what a wrong program damages is\n" \
    "larger there. Its own boxes after ours: OMPI_MCA_orte_execute_quiet=1 turns them off,\n" \
    "and with them its line that names a rank which was killed.\n\n" \
    "`trillion postmortem DIR` says which rank of a run stopped first, where and why.\n\n"

#include "trillion.c"
