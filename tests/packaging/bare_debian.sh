#!/bin/bash
# A wheel on a bare Debian: a root file system by debootstrap with Python and no compiler, an environment, the wheel, a job of 2 ranks.
#
#   sudo bash tests/packaging/bare_debian.sh bookworm dist/sirtaki-*-cp311-*.whl      # Debian 12
#   sudo bash tests/packaging/bare_debian.sh trixie dist/sirtaki-*-cp313-*.whl        # Debian 13
#
# Needs root, debootstrap and a network, so it is run by hand. Prints the seconds from the new environment to the job's end.
# A wheel for aarch64 gets a root file system of that architecture; another machine runs it by emulation: aarch64.sh. With
# TORCH=VERSION in the environment, that torch is installed as well, and sums.py checks results.
set -euo pipefail
suite=$1
wheel=$(realpath "$2")
root=${3:-$(mktemp -d)}
[[ $wheel == *_aarch64.whl ]] && architecture=arm64 || architecture=amd64
[ -x "$root/usr/bin/python3" ] || debootstrap --arch=$architecture --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root"
for folder in proc sys dev; do
  mountpoint -q "$root/$folder" || mount --rbind "/$folder" "$root/$folder"
  mount --make-rslave "$root/$folder"
done
trap 'for folder in proc sys dev; do umount -R -l "$root/$folder"; done' EXIT
cp /etc/resolv.conf "$root/etc/"
rm -rf "$root/root/wheel" && mkdir "$root/root/wheel" && cp "$wheel" "$root/root/wheel/"
cp "$(dirname "$0")/sums.py" "$root/root/"
cat >"$root/root/job.sh" <<'JOB'
set -euo pipefail
cd /root
! command -v gcc && ! command -v cc && echo "no compiler"
begin=$(date +%s)
rm -rf env && python3 -m venv env
env/bin/pip install -q wheel/*.whl
env/bin/sirtakirun -np 2 env/bin/python -c '
import ctypes, sirtaki
from sirtaki.native import core
sirtaki.init()
value = (ctypes.c_float * 1)(sirtaki.rank() + 1)
place = ctypes.addressof(value)
core.submit(core.VERBS["allreduce"], "x", [(place, place, core.DTYPES["float32"], [1], -1)], op=int(sirtaki.Sum)).wait()
assert value[0] == 3.0 and sirtaki.size() == 2, value[0]
print("the sum is right")
sirtaki.shutdown()'
echo "$(. /etc/os-release; echo "$PRETTY_NAME"), $(python3 --version): $(($(date +%s) - begin)) s"
[ -n "${TORCH-}" ] || exit 0
env/bin/pip install -q "torch==$TORCH" numpy
env/bin/sirtakirun -np 2 env/bin/python sums.py
JOB
chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TORCH="${TORCH-}" bash /root/job.sh
