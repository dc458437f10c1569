#!/bin/bash
# A wheel in the environments that people have: each gets the wheel, and runs a job of 2 ranks with the MPI that it must find.
#
#   bash tests/packaging/environments.sh dist/sirtaki-*.whl
#
# Needs a network, and root for the rows of a distribution's MPI (apt-get installs and removes its packages), so it is run
# by hand. Prints one line for each environment, and ends with 1 if one failed.
set -uo pipefail
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore HOME="$work/home" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir "$HOME"
failed=0
cat >job.py <<'JOB'
import ctypes, sirtaki
from sirtaki.native import core
sirtaki.init()
value = (ctypes.c_float * 1)(sirtaki.rank() + 1)
place = ctypes.addressof(value)
core.submit(core.VERBS["allreduce"], "x", [(place, place, core.DTYPES["float32"], [1], -1)], op=int(sirtaki.Sum)).wait()
assert value[0] == 3.0 and sirtaki.size() == 2, value[0]
if sirtaki.rank() == 0:
    from sirtaki.libraries import mpi_library
    print("MPI:", mpi_library.find().path)
sirtaki.shutdown()
JOB

# try NAME PATTERN COMMAND...: the command's output must have a line that fits the pattern.
try() {
  local name=$1 pattern=$2 output code=0
  shift 2
  output=$(timeout 120 "$@" 2>&1 </dev/null) || code=$?
  if grep -Eq -- "$pattern" <<<"$output"; then
    printf 'well    %-48s %s\n' "$name" "$(grep -Eo -m1 -- "$pattern" <<<"$output" | head -1)"
  else
    printf 'FAILED  %-48s exit code %s, wanted /%s/, got:\n%s\n' "$name" "$code" "$pattern" "$output"
    failed=1
  fi
}
cat >job <<'JOB'
#!/bin/bash
# BIN, and words before the program
bin=$1
shift
exec "$bin/python" -m sirtaki.launch -np 2 "$@" "$bin/python" "$(dirname "$0")/job.py"
JOB
chmod +x job

python3 -m venv "tools" && tools/bin/pip install -q uv virtualenv
python3 -m venv plain && plain/bin/pip install -q "$wheel"
try "venv" "MPI: .*/plain/lib/libmpi" ./job plain/bin
python3 -m venv "with spaces" && "with spaces/bin/python" -m pip install -q "$wheel"
try "venv, spaces in its path" "MPI: .*/with spaces/lib/libmpi" ./job "$work/with spaces/bin"
tools/bin/virtualenv -q virtual && virtual/bin/pip install -q "$wheel"
try "virtualenv" "MPI: .*/virtual/lib/libmpi" ./job virtual/bin
tools/bin/uv -q venv uv && tools/bin/uv -q pip install --python uv/bin/python "$wheel"
try "uv venv, uv pip install" "MPI: .*/uv/lib/libmpi" ./job uv/bin
mv plain moved
try "venv that was moved" "MPI: .*/moved/lib/libmpi" ./job moved/bin
python3 -m venv --system-site-packages upper
echo "$work/moved/lib/$(ls moved/lib | grep ^python)/site-packages" >"upper/lib/$(ls upper/lib | grep ^python)/site-packages/lower.pth"
try "environment that sees another one" "MPI: .*/moved/lib/libmpi" ./job upper/bin
/usr/bin/python3 -m pip install -q --user --break-system-packages "$wheel" 2>/dev/null
try "pip install --user" "MPI: .*/home/.local/lib/libmpi" /usr/bin/python3 -m sirtaki.launch -np 2 /usr/bin/python3 "$work/job.py"
moved/bin/python -m pip install -q --target target "$wheel"
python3 -m venv bare
try "pip install --target, refused by name" "its library is not" env PYTHONPATH="$work/target" bare/bin/python -m sirtaki.launch -np 2 bare/bin/python "$work/job.py"
# As conda: one prefix for Python and all libraries.
base=$(python3 -c 'import sys; print(sys.base_prefix)')
if [ "$base" = /usr ]; then
  echo "left    Python with a prefix of its own: this one is the distribution's"
else
  cp -r "$base" prefix && prefix/bin/python3 -m pip install -q --ignore-installed "$wheel"
  try "Python with a prefix of its own" "MPI: .*/prefix/lib/libmpi" prefix/bin/python3 -m sirtaki.launch -np 2 prefix/bin/python3 "$work/job.py"
fi

for package in openmpi mpich; do
  [ "$package" = openmpi ] && installed=openmpi-bin || installed=mpich
  if [ "$(id -u)" != 0 ] || ! apt-get install -qq -y --no-install-recommends "$installed" >/dev/null 2>&1; then
    echo "left    the distribution's $package: cannot be installed here"
    continue
  fi
  try "the distribution's $package, asked for" "MPI: .*/lib.*/lib(mpi|mpich)" env SIRTAKI_MPI=$package "$work/moved/bin/python" -m sirtaki.launch -np 2 "$work/moved/bin/python" "$work/job.py"
  try "the wheel's MPI beside the distribution's $package" "MPI: .*/moved/lib/libmpi" ./job moved/bin
  apt-get remove -qq -y --autoremove "$installed" >/dev/null 2>&1
done
exit "$failed"
