#!/usr/bin/env bash
# Device checks on one H200 with 139 GiB, under eight minutes: `bash tests/device/run.sh`, results in $OUT.
#
# Torch, transformers, peft, accelerate and numpy are on such a machine; what is not travels as wheels in `.whl` (name it
# in `carry`). Once, where pip works:
#   echo /.whl/ >> .git/info/exclude
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d .whl \
#     diffusers==0.42.1 pydantic==2.14.4 pydantic_core==2.50.5 annotated-types typing-inspection \
#     omegaconf==2.4.0 tenacity==9.2.1 importlib_metadata
set -euo pipefail
cd "$(dirname "$0")/../.."
out="${OUT:?set OUT to a directory for the results}"
if compgen -G ".whl/*.whl" > /dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
  export PYTHONPATH="/tmp/site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Small models first: a mistake shows in seconds instead of minutes of the lease. Exit code 1 is a finding, not a mistake.
timeout 90 python3 -m tests.device.check --tiny --out "$out/tiny" > /dev/null || [ $? -eq 1 ]
code=0
timeout 460 python3 -m tests.device.check --out "$out" "$@" || code=$?
cat "$out/device.md"
exit "$code"
