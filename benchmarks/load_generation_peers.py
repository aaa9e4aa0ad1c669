"""Other load generators: how to install each, pinned, and how to make it replay the trace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Client command of a server's URL and a folder with the traces.
Command = Callable[[str, Path], list[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One tool. ``command`` takes its programs' folder, the tokenizer, the URL, the traces."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Path, Path, str, Path], list[str]]
    #: Also where the CPU build of a dependency is published.
    index: str = ""

    def install(self, folder: Path) -> Command:
        """Make the tool's environment, or use it where it is; raises subprocess errors, OSError."""
        tokenizer = character_tokenizer(folder / "tokenizer")
        if not self.packages:
            programs = Path(sys.executable).parent
        else:
            home = folder / self.packages[0].replace("==", "-")
            programs = home / "bin"
            if not (home / "ready").exists():
                subprocess.run([sys.executable, "-m", "venv", home], check=True)
                pip = [programs / "pip", "install", "-q", *self.packages]
                extra = ["--extra-index-url", self.index] if self.index else []
                subprocess.run(
                    [*pip, *extra], check=True, timeout=1800, capture_output=True, text=True
                )
                (home / "ready").touch()
        return lambda url, work: self.command(programs, tokenizer, url, work)


def character_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of characters: all peers make their prompts from text, offline."""
    if not folder.exists():
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {chr(code): code - 32 for code in range(32, 127)} | {"?!": 95, "<end>": 96}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?!"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        folder.mkdir(parents=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
        config |= {"pad_token": "<end>", "model_max_length": 100_000}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def vllm_bench(programs: Path, tokenizer: Path, url: str, work: Path) -> list[str]:
    """``vllm bench serve`` with a timed trace."""
    return [
        str(programs / "vllm"), "bench", "serve", "--backend", "vllm", "--base-url", url,
        "--model", "fake", "--tokenizer", str(tokenizer), "--dataset-name", "timed_trace",
        "--dataset-path", str(work / "trace.jsonl"), "--timed-trace-chunk-hash-size", "512",
        "--num-prompts", str(_rows(work)), "--ignore-eos", "--disable-tqdm",
        "--ready-check-timeout-sec", "0",
    ]  # fmt: skip


def aiperf(programs: Path, tokenizer: Path, url: str, work: Path) -> list[str]:
    """``aiperf profile`` with a fixed schedule."""
    return [
        str(programs / "aiperf"), "profile", "--model", "fake", "--url", url,
        "--endpoint-type", "completions", "--streaming", "--tokenizer", str(tokenizer),
        "--input-file", str(work / "trace_ms.jsonl"), "--custom-dataset-type", "mooncake_trace",
        "--fixed-schedule", "--ui", "none", "--output-artifact-dir", str(work / "artifacts"),
    ]  # fmt: skip


def guidellm(programs: Path, tokenizer: Path, url: str, work: Path) -> list[str]:
    """``guidellm run`` with its replay profile at the trace's own times."""
    data = {
        "kind": "trace_synthetic",
        "source": {"kind": "json_file", "path": str(work / "trace.jsonl")},
    }
    backend = f"kind=openai_http,target={url},model=fake,request_format=/v1/completions"
    return [
        str(programs / "guidellm"), "run", "--backend", backend, "--data", json.dumps(data),
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--profile", "kind=replay,schedule_turn=timestamp", "--disable-console",
        "--output", f"kind=json,path={work / 'out.json'}",
    ]  # fmt: skip


def _rows(work: Path) -> int:
    return len((work / "trace.jsonl").read_text().splitlines())


PEERS = (
    Peer("vllm bench serve 0.32.0", (), vllm_bench),
    Peer("aiperf 0.13.0", ("aiperf==0.13.0",), aiperf),
    Peer("guidellm 0.8.1", ("guidellm==0.8.1",), guidellm, "https://download.pytorch.org/whl/cpu"),
)
