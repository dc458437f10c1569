#!/bin/bash
# All that is measured on the GPUs of one host, with as many ranks as there are GPUs: the tests for GPUs, training beside
# torch's own ways, sharded optimizers, collectives beside NCCL, and a rank that is killed. Ends with one table of figures
# and goals.
#
#   bash benchmarks/gpu_suite.sh [folder for logs and JSON] [ranks]
#
# From the root of a checkout, with sirtaki importable (`pip install .[torch,test]`, or PYTHONPATH=frameworks after
# `./dev build`) and torch for CUDA. Takes 10 to 15 minutes. NVLink multicast is not used.
set -u
out=${1:-$(mktemp -d)}
mkdir -p "$out"
ranks=${2:-$(python3 -c 'import torch; print(torch.cuda.device_count())')}
[ "$ranks" -ge 1 ] || { echo "no GPU found by torch" >&2; exit 1; }
export NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1
failed=0

launch() { timeout --kill-after=20 "${limit:-180}" python3 -m sirtaki.launch -np "$ranks" python3 "$@"; }

train() { # name, then flags of synthetic_benchmark.py
  local name=$1
  shift
  echo "== $name"
  NCCL_GRAPH_MIXING_SUPPORT=0 launch examples/synthetic_benchmark.py --compare ddp --capture --num-warmup-batches 12 \
    --num-batches-per-iter 12 --num-iters 6 --json "$out/$name.json" "$@" >"$out/$name.log" 2>&1 || failed=1
  grep -A12 "^In one run" "$out/$name.log" || tail -15 "$out/$name.log"
}

gpt2() { # name, then flags of gpt2_synthetic.py
  local name=$1
  shift
  echo "== $name"
  launch examples/gpt2_synthetic.py --batch-size 8 --sequence-length 512 --rounds 5 --steps 8 "$@" >"$out/$name.log" 2>&1 ||
    failed=1
  tail -8 "$out/$name.log"
}

if [ "${SIRTAKI_SUITE_TESTS:-1}" = 1 ]; then
  echo "== tests"
  timeout 500 python3 -m pytest -q -rf tests/parallel/test_gpu_*.py >"$out/tests.log" 2>&1 || failed=1
  tail -12 "$out/tests.log"
fi
echo "== collectives"
limit=240 launch examples/gpu_collective_benchmark.py --verb all --rounds 12 --sizes 4 1KiB 64KiB 1MiB 16MiB 64MiB 256MiB \
  --json "$out/collectives.json" >"$out/collectives.log" 2>&1 || failed=1
cat "$out/collectives.log"
train resnet50-bfloat16 --model resnet50 --batch-size 64 --dtype bfloat16 --channels-last
train resnet50-float32 --model resnet50 --batch-size 64 --dtype float32 --channels-last
train vgg16-bfloat16 --model vgg16 --batch-size 32 --dtype bfloat16 --channels-last
train encoder-bfloat16 --model bert-large --batch-size 8 --dtype bfloat16
train encoder-bfloat16-wire --model bert-large --batch-size 8 --dtype bfloat16 --bf16-allreduce
gpt2 gpt2-float32 --modes sirtaki sharded captured sharded-captured ddp zero
gpt2 gpt2-bfloat16 --modes sirtaki sharded captured sharded-captured ddp zero --dtype bfloat16
gpt2 gpt2-bfloat16-freed --modes sirtaki sharded --dtype bfloat16 --free-gradients
python3 benchmarks/gpu_targets.py "$out"/*.json --json "$out/targets.json" || failed=1
exit "$failed"
