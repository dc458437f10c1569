#!/bin/bash
# A wheel for aarch64, built by cross compilation and tried in QEMU's emulation: the core's tests, then a bare Debian 12
# with a job of 2 ranks and with sums that are checked bit by bit.
#
#   sudo bash tests/packaging/aarch64.sh
#
# Needs root, a network, the extra `test`, python3.11, debootstrap, doctest-dev, g++-aarch64-linux-gnu, and Debian 13's
# qemu-user-binfmt or newer: QEMU 7 lacks a system call of sirtakirun's. Takes about an hour on 2 cores, so it is run by
# hand. Emulation shows neither speed nor faults in the order of memory accesses, for it has the order of its machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
python3 .ci/wheels.py --arch aarch64 --python 3.11 --no-sdist --out "$out"
cmake -S . -B build/aarch64 -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" \
  -Ddoctest_DIR=/usr/lib/cmake/doctest -DSIRTAKI_PYTHON=OFF -DSIRTAKI_TESTS=ON \
  "-DSIRTAKI_CORE_ARCHIVE=$PWD/build/wheel-3.11-aarch64/libsirtaki_core.a"
cmake --build build/aarch64
ctest --test-dir build/aarch64 --output-on-failure --exclude-regex liveness_lock_test  # QEMU forgets who held a mutex
TORCH=2.8.0 bash tests/packaging/bare_debian.sh bookworm "$out"/*.whl  # later ones on PyPI need CUDA's libraries here, too
