#!/bin/bash
# Two nodes with four ranks each: qsub -v PROGRAM=train.py examples/cluster/pbs.sh
#PBS -N sirtaki
#PBS -l select=2:ncpus=32:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"
source "${VENV:-$HOME/venv}/bin/activate"

# PBS lists a node once for each of its ranks.
sort "$PBS_NODEFILE" | uniq -c | awk '{print $2 " slots=" $1}' > "$TMPDIR/hosts"
exec sirtakirun -np "$(wc -l < "$PBS_NODEFILE")" -hostfile "$TMPDIR/hosts" python "$PROGRAM"
