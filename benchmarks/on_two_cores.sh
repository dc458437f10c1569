#!/bin/bash
# Measures the planes for CPUs on two cores of this machine that are close to each other and on two that are far apart:
# the shared-memory plane alone, whole allreduces beside MPI and gloo, latency after rest, two levels with pretended hosts.
#
#   SIRTAKI_MPI=/prefix/of/mpich bash benchmarks/on_two_cores.sh [folder to build in]
#
# From the root of a checkout; needs g++, cmake, ninja, and a python3 with torch, numpy, mpi4py and pybind11. Takes about
# eight minutes. Builds and installs nothing outside the folder.
set -e
mpi=${SIRTAKI_MPI:?the prefix of an MPICH}
build=${1:-$(mktemp -d)}
mpiexec=$mpi/bin/mpiexec
mkdir -p "$build/sirtaki"
cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$(which python3)" -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)" \
  >"$build/log" 2>&1 || { tail -20 "$build/log"; exit 1; }
cmake --build "$build" >"$build/log" 2>&1 || { grep -A5 error "$build/log"; exit 1; }
g++ -O2 -std=c++20 -Icollectives -I"$mpi/include" benchmarks/plane_benchmark.cc "$build/libsirtaki_core.a" \
  -L"$mpi/lib" -Wl,-rpath,"$mpi/lib" -lmpi -lpthread -ldl -o "$build/plane_benchmark"
cp -r frameworks/sirtaki/. "$build/sirtaki/"
cp "$build"/_core*.so "$build/sirtaki/"
export PYTHONPATH=$build OMP_NUM_THREADS=1 LD_LIBRARY_PATH=$mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

cat >"$build/ping_pong.cc" <<'SOURCE'
// Nanoseconds that a cache line needs from the first allowed core to each other one and back.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

alignas(128) std::atomic<int> ping{0};
alignas(128) std::atomic<int> pong{0};

void stay_on(int core) {
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof(own), &own);
}

int main() {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  constexpr int kRounds = 20000;
  for (int core = first + 1; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    ping = pong = 0;
    std::thread peer([core] {
      stay_on(core);
      for (int i = 1; i <= kRounds; ++i) {
        while (ping.load() < i) {
        }
        pong.store(i);
      }
    });
    stay_on(first);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 1; i <= kRounds; ++i) {
      ping.store(i);
      while (pong.load() < i) {
      }
    }
    const auto time = std::chrono::steady_clock::now() - start;
    peer.join();
    std::printf("%d %d %ld\n", first, core,
                static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count() / kRounds));
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
}
SOURCE
g++ -O2 -std=c++20 "$build/ping_pong.cc" -o "$build/ping_pong" -lpthread
"$build/ping_pong" | sort -k3 -n >"$build/pairs"
siblings=$(tr ',-' '\n\n' <"/sys/devices/system/cpu/cpu$(head -1 "$build/pairs" | cut -d' ' -f1)/topology/thread_siblings_list")
for sibling in $siblings; do sed -i "/^[0-9]* $sibling /d" "$build/pairs"; done  # two threads of one core are none apart
near=$(head -1 "$build/pairs" | awk '{print $1","$2}')
far=$(tail -1 "$build/pairs" | awk '{print $1","$2}')
lscpu | grep -E "^Model name|^CPU\(s\)|^Thread|^L3" || true
echo "load $(cut -d' ' -f1-3 /proc/loadavg); cache line and back: near $near $(head -1 "$build/pairs" | cut -d' ' -f3) ns," \
  "far $far $(tail -1 "$build/pairs" | cut -d' ' -f3) ns"

run() { timeout 150 "$@" 2>&1 | grep -v "^$" || echo "failed: $*"; }
for place in near far; do
  cores=${!place}
  echo "== $place: cores $cores, 2 ranks, plane alone"
  run taskset -c "$cores" "$mpiexec" -n 2 "$build/plane_benchmark" 67108864 0.4 pin
  echo "== $place: after rest, 2 ranks"
  run taskset -c "$cores" "$mpiexec" -n 2 python3 benchmarks/after_idle.py
  echo "== $place: allreduce, 2 ranks"
  run taskset -c "$cores" "$mpiexec" -n 2 python3 examples/collective_benchmark.py --rounds 20 \
    --sizes 64 1KiB 4KiB 16KiB 64KiB 1MiB 16MiB 64MiB
done
echo "== near: 4 ranks on 2 cores, plane alone"
run taskset -c "$near" "$mpiexec" -n 4 "$build/plane_benchmark" 1048576 0.2
echo "== near: 4 ranks on 2 cores, after rest"
run taskset -c "$near" "$mpiexec" -n 4 python3 benchmarks/after_idle.py
echo "== near: 4 ranks on 2 cores, allreduce"
run taskset -c "$near" "$mpiexec" -n 4 python3 examples/collective_benchmark.py --rounds 3 --sizes 1KiB 64KiB 1MiB \
  --no-gradients
if [ "$(nproc)" -ge 4 ]; then
  echo "== 4 ranks on pretended hosts of 2, any cores: two levels beside MPI"
  run "$mpiexec" -n 2 env SIRTAKI_HOSTNAME=a python3 examples/collective_benchmark.py --rounds 20 \
    --sizes 1KiB 64KiB 1MiB 16MiB 64MiB : -n 2 env SIRTAKI_HOSTNAME=b python3 examples/collective_benchmark.py \
    --rounds 20 --sizes 1KiB 64KiB 1MiB 16MiB 64MiB
fi
