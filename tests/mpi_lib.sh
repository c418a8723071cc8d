# What the scripts that start ranks share. Sourced.
export OMP_WAIT_POLICY=passive                  # ranks share the cores, their threads shall not spin
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_orte_base_help_aggregate=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
if [ "$(id -u)" = 0 ]; then                     # in a container; Open MPI wants it said twice
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
MPIRUN=${MPIRUN:-mpirun}
BIND=
case $($MPIRUN --version 2> /dev/null) in
*"Open MPI"*|*OpenRTE*) BIND='--bind-to none' ;;
esac

# ranks N SECONDS COMMAND...: the launcher is ended, with all it started, when the seconds are over.
ranks() {
    n=$1 seconds=$2
    shift 2
    # shellcheck disable=SC2086
    timeout -k 5 "$seconds" $MPIRUN $BIND -n "$n" "$@"
}

# running WORDS: the numbers of the processes whose command line has them.
running() {
    for f in /proc/[0-9]*/cmdline; do
        if cat "$f" 2> /dev/null | tr '\0' ' ' | grep -q -- "$1"; then
            f=${f#/proc/}
            echo "${f%/cmdline}"
        fi
    done
}

# left WORDS: how many of them are there, when two seconds have gone or none is.
left() {
    for i in 1 2 3 4 5 6 7 8 9 10; do
        n=$(running "$1" | wc -l)
        [ "$n" -gt 0 ] || break
        sleep 0.2
    done
    echo "$n"
}

has_mpi() { command -v "$MPIRUN" > /dev/null && command -v "${MPICC:-mpicc}" > /dev/null; }

# Ends a script where no ranks can be started.
need_mpi() {
    has_mpi && return
    echo "skipped: there is no $MPIRUN or no ${MPICC:-mpicc} (make setup installs Open MPI)"
    echo "0 passed, 0 failed"
    exit 0
}
