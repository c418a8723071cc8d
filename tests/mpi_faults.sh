#!/bin/sh
# One fault of one rank at a time, for real: who is named by the others, within which time, and that
# nobody is left running. `short` leaves out what takes its time.
. tests/mpi_lib.sh
need_mpi
mkdir -p build/mpi
model=tests/golden/kimi_k3/text-c
log=build/mpi/fault.log
passed=0 failed=0

# told TITLE BAD SHOWN LOG: a line; BAD is empty if all is as it must be.
told() {
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        printf 'ok %-34s %s\n' "$1" "$3"
    else
        failed=$((failed + 1))
        printf 'FAILED %s: %s\n' "$1" "$2"
        tail -5 "$4"
    fi
}

# fault TITLE N LAYOUT DEADLINE FAULT RANK LAYER SECONDS WORDS [FAILURE]: ends nonzero within SECONDS
# of the start, WORDS (a pattern) on one line, no process left. Words "-": it must end well. FAILURE:
# the rank and the cause that all ranks were told, and no other. $fetch: experts that so many tokens
# want come to them.
fault() {
    begun=$(date +%s%N)
    ranks "$2" 60 build/tests/mpi_faults $model "$3" "$4" "$5" "$6" "$7" 1 ${fetch:-0} > "$log" 2>&1
    code=$?
    took=$((($(date +%s%N) - begun) / 1000000))
    said=$(sed -n 's/^rank [0-9]* after \([0-9.]* s: .*\)/\1/p' "$log" | sort | head -1 | cut -c1-90)
    [ -n "$said" ] || said=$(grep -am1 'signal\|killed' "$log" | cut -c1-90)
    bad=
    if [ "$9" = - ]; then [ $code -eq 0 ] || bad="exit code $code"
    else
        [ $code -ne 0 ] || bad="exit code 0"
        grep -aq "$9" "$log" || bad="$bad; nobody says '$9'"
        fails=$(sed -n 's/^failure of rank //p' "$log" | sort -u)
        [ -z "${10:-}" ] || [ "$fails" = "${10}" ] || bad="$bad; failures: $fails"
    fi
    [ $took -le $(($8 * 1000)) ] || bad="$bad; $took ms"
    ! grep -aq MPI_ERR "$log" || bad="$bad; $(grep -am1 MPI_ERR "$log")"
    left=$(left "mpi_faults $model $3 $4 $5 $6 $7")
    [ "$left" -eq 0 ] || bad="$bad; $left processes left"
    told "$1" "$bad" "$(printf '%2d.%d s  %s' $((took / 1000)) $((took % 1000 / 100)) "$said")" "$log"
}

# The launcher takes some 1.5 s to end the ranks after one of them asked for it.
fault 'nothing wrong'             4 ep=4       5 none   0 0  20 -
fault 'its own sentence, ep'      4 ep=4       5 fail   1 2  20 'rank 1.*layers.2.*the disk is full' '1, own'
fault 'its own sentence, pp'      3 pp=3       5 fail   2 4  20 'rank 2.*layers.4.*the disk is full' '2, own'
fault 'NaN on one rank'           4 ep=4       5 nan    1 2  20 'sequence 1, token 0.*nan' '1, own'
fault 'another branch'            4 ep=4       5 branch 1 2  20 'different branches'
fault 'killed'                    4 ep=4       5 kill   1 2  20 'process rank 1 with'
fault 'stopped, ep'               4 ep=4       2 stop   1 2  20 'rank 1 is late: layer 2' '1, late'
case $($MPIRUN --version) in            # by its pt2pt a rank has to help those who read from it
*"(Open MPI) 4."*) export OMPI_MCA_osc=pt2pt ;;
esac
fetch=1
fault 'experts come'              4 ep=4       5 none   0 0  20 -
fault 'stopped, experts come'     4 ep=4       2 stop   1 2  20 'rank 1 is late: layer 2' '1, late'
fault 'killed, experts come'      4 ep=4       5 kill   1 2  20 'process rank 1 with'
fault 'its own sentence, experts come' 4 ep=4  5 fail   1 2  20 'rank 1.*layers.2.*the disk is full'
unset OMPI_MCA_osc fetch
if [ "${1:-long}" != short ]; then
    fault 'late for half a deadline'  4 ep=4       4 pause  2 1  30 -
    fault 'slow, ep'                  4 ep=4       3 slow   2 1  20 'rank 2 is late' '2, late'
    fault 'slow, tp'                  4 tp=4       3 slow   2 1  20 'rank 2 is late' '2, late'
    fault 'slow, cp'                  4 cp=4       3 slow   1 1  20 'rank 1 is late: .*layer 1' '1, late'
    fault 'slow, pp: a chain'         4 pp=4       3 slow   1 1  20 'rank 1 is late' '1, late'
    fault 'stopped, pp=2,tp=2: a chain' 4 pp=2,tp=2 3 stop   0 1  20 'rank 0 is late' '0, late'
    fault 'stopped, cp: a chain'      5 cp=5       3 stop   0 1  20 'rank 0 is late' '0, late'
    fault 'killed, the last stage'    3 pp=3       5 kill   2 4  20 'process rank 2 with'
    fault 'killed, rank 0'            3 ep=3       5 kill   0 1  20 'process rank 0 with'
    fault 'its own sentence, tp'      3 tp=3       5 fail   1 3  20 'rank 1.*layers.3.*the disk is full' '1, own'
    fault 'its own sentence, cp'      3 cp=3       5 fail   1 3  20 'rank 1.*layers.3.*the disk is full' '1, own'
    fault 'a circle'                  3 ep=3       3 circle 0 1  20 'deadlock: it waits for rank'
    fault 'another branch, tp'        2 tp=2       5 branch 1 2  20 'different branches'
fi

# ---- the program: what a rank is given, and what becomes of one from outside ----
work=build/mpi/faults
ids=$work/ids.txt
rm -rf $work
mkdir -p $work
echo '1 2 3 4 5 6 7' > $ids
echo '9 8 7' >> $ids

# Ranks of trillion-mpi, each in a folder that has "model" and the ids, as on machines of their own;
# rank 1 is in another one ($odd), or runs another $program.
cat > $work/rank.sh <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exe=$top/build/trillion-mpi threads=1 place=$top/$here
[ "$rank" != 1 ] || { place=$top/${odd:-$here} exe=${program:-$exe} threads=${many:-1}; }
cd "$place" || exit 3
[ "$rank" != "${stops:--}" ] || kill -STOP $$
exec "$exe" $command model --ids ids.txt --threads $threads --deadline ${deadline:-20} "$@"
END
top=$(pwd) here=$work/here command=run
mkdir -p $work/tmp
export TMPDIR=$top/$work/tmp
export top here odd program many command deadline stops
mkdir -p $here
cp $ids $here/ids.txt
ln -s "$top/$model" $here/model

# verdict TITLE EXPECTED-CODE CODE FILE WORDS [SECONDS LIMIT]
verdict() {
    bad=
    [ "$3" -eq "$2" ] || bad="exit code $3"
    grep -aq "$5" "$4" || bad="$bad; nobody says '$5'"
    [ "${6:-0}" -le "${7:-0}" ] || bad="$bad; $6 s"
    left=$(left "$top/build/trillion-mpi run model")
    [ "$left" -eq 0 ] || bad="$bad; $left processes left"
    told "$1" "$bad" "$(grep -am1 "$5" "$4" | cut -c1-100)" "$4"
}

given() {                                       # given TITLE CODE WORDS [ARGUMENT...]
    title=$1 code=$2 words=$3
    shift 3
    ranks 3 60 sh $work/rank.sh "$@" > $log 2>&1
    verdict "$title" "$code" $? $log "$words"
    odd='' program='' many=''
}

shard=$(ls $model/*.safetensors | grep -v expected | head -1)
copy() {
    rm -rf $work/odd
    mkdir $work/odd
    cp -r $model $work/odd/model
    cp $ids $work/odd/ids.txt
    odd=$work/odd
}
build/trillion run $model --ids $ids -n 6 > $work/want.txt 2> /dev/null
copy                                            # the same shapes and headers, another number
bytes=$(wc -c < "$shard")
printf '\001\002' | dd of=$work/odd/model/$(basename "$shard") bs=1 seek=$((bytes - 40)) conv=notrunc 2> /dev/null
given 'another checkpoint'      2 'rank 1 differs from rank 0 in the checkpoint' -n 6
copy
printf ' ' >> $work/odd/model/config.json
given 'another config'          2 'rank 1 differs from rank 0 in config.json' -n 6
copy
truncate -s -100 $work/odd/model/$(basename "$shard")
given 'a truncated shard'       2 "rank 1: .*$(basename "$shard")" -n 6
copy                                            # where no sample is taken
printf '\125\252' | dd of=$work/odd/model/$(basename "$shard") bs=1 seek=$((bytes / 2)) conv=notrunc 2> /dev/null
command='golden'
given 'a byte that only --hash-weights sees' 2 'rank 1 differs from rank 0 in the weights' \
    -o $top/$work/odd.safetensors --hash-weights
command='run'
cp build/trillion-mpi $work/other && printf x >> $work/other && program=$top/$work/other
given 'another binary'          2 'rank 1 differs from rank 0 in the program' -n 6
many=2
given 'another thread count'    0 "$(head -1 $work/want.txt)" -n 6
if [ "$(id -u)" = 0 ] && mkdir -p $work/full && mount -t tmpfs -o size=64k tmpfs $work/full 2> /dev/null
then
    command='golden'
    given 'a full disk'         2 'No space left' -o $top/$work/full/gold.safetensors
    umount $work/full
    command='run'
fi

stops=1 deadline=2
given 'stopped before its main' 1 'MPI_Init did not return within 2 s: rank 1, process' -n 6
stops='' deadline=''

# outside TITLE SIGNAL WORDS-OF-SCREEN WORDS-OF-POSTMORTEM [DEADLINE]: to rank 1, while it decodes.
outside() {
    rm -rf $work/rings && mkdir $work/rings
    deadline=${5:-3}
    ranks 3 90 sh $work/rank.sh -n 3000 --ignore-eos --rings $top/$work/rings > $log 2>&1 &
    job=$!
    sleep 2
    pid=$(running "$top/build/trillion-mpi run model" | while read -r p; do
              tr '\0' '\n' < /proc/$p/environ 2> /dev/null |
                  grep -aq '^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=1$' && echo $p; done | head -1)
    kill "-$2" "$pid"
    begun=$(date +%s)
    wait $job
    code=$?
    took=$(($(date +%s) - begun))
    [ "$3" = - ] || verdict "$1: on the screen" 1 $code $log "$3" $took $((deadline + 6))
    hints=$(grep -ac 'tells more' $log)
    [ "$hints" = 1 ] || told "$1: where the rings are, once" "$hints times" '' $log
    build/trillion postmortem $work/rings > $work/post.txt 2>&1
    verdict "$1: postmortem" 1 $? $work/post.txt "$4" $took $((deadline + 6))
}
if [ "${1:-long}" != short ]; then
    outside 'killed from outside'  KILL - '^rank 1 '
    outside 'stopped from outside' STOP 'rank 1 is late' '^rank 1 '
    outside 'stopped for half of it' STOP 'rank 0 has waited more than 10 s for rank 1' '^rank 1 ' 20
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
