"""``HELION_RT_RECORD_KEYS``: what live traffic asked for, as a manifest."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.cli import manifest
from helion_rt.runtime import background, recording
from helion_rt.runtime.recording import Recorder

ROOT = str(Path(helion.__file__).parent.parent)


@helion.kernel
def scale(x: torch.Tensor, factor: float = 2.0, *, flip: bool = False) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * factor
    return out


@helion.kernel
def total(pair: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype, *more: torch.Tensor) -> torch.Tensor:
    out = torch.empty(pair[0].size(), dtype=dtype)
    for tile in hl.tile(out.size()):
        out[tile] = (pair[0][tile] + pair[1][tile] + more[0][tile]).to(dtype)
    return out


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_RT_RECORD_KEYS", str(tmp_path / "keys.jsonl"))
    return tmp_path / "keys.jsonl"


def fresh(kernel, **options):
    """The kernel without what earlier tests left in it, under the same name."""
    made = helion.kernel(kernel.fn, **options)
    setattr(sys.modules[__name__], kernel.name, made)
    return made


def written(file):
    assert helion.wait_for_tuning(60)  # the tuner's thread has stored, and written, what it had to
    return [line for line in file.read_text().splitlines() if not line.startswith("#")] if file.exists() else []


def test_each_signature_is_a_line_that_prewarm_reads(file):
    kernel = fresh(scale)
    for _ in range(3):
        kernel(torch.ones(8, 128))
    kernel(jnp.ones((8, 256), jnp.bfloat16), 3.0, flip=True)
    first, second = map(json.loads, written(file))
    assert first["kernel"] == f"{__name__}:scale" and first["target"] == "cpu"
    assert first["args"] == [{"shape": [8, 128], "dtype": "float32"}, {"value": 2.0}] and first["kwargs"] == {"flip": {"value": False}}
    assert second["args"] == [{"shape": [8, 256], "dtype": "bfloat16"}, {"value": 3.0}] and second["kwargs"] == {"flip": {"value": True}}
    entries = list(manifest.entries(manifest.load(file), file.parent, None))
    assert [entry.kernel for entry in entries] == [kernel, kernel]
    keys = {kernel.bind(*entry.args, **entry.kwargs).key for entry in entries}
    assert keys == {kernel.bind(torch.ones(8, 128)).key, kernel.bind(jnp.ones((8, 256), jnp.bfloat16), 3.0, flip=True).key}


def test_nothing_is_written_unless_asked_for_and_a_command_is_no_traffic(tmp_path, file, monkeypatch):
    kernel = fresh(scale)
    kernel.bind(torch.ones(8, 128))  # as prewarm does
    assert written(file) == []
    monkeypatch.delenv("HELION_RT_RECORD_KEYS")
    kernel(torch.ones(8, 384))
    assert written(file) == [] and not file.exists()


def test_the_calling_thread_writes_nothing(file, monkeypatch):
    threads = []
    write = Recorder.write
    monkeypatch.setattr(Recorder, "write", lambda self, lines: (threads.append(threading.current_thread().name), write(self, lines)))
    fresh(scale)(torch.ones(8, 128))
    assert len(written(file)) == 1 and threads == ["helion-rt-tuner"]


def test_a_warm_process_records_too(file):
    """Its program is stored and nothing is to be tuned: without recording the tuner would have nothing to do."""
    kernel = fresh(scale)
    kernel(torch.ones(8, 128))
    assert len(written(file)) == 1
    file.unlink()
    recording._recorders.clear()
    again = fresh(scale)
    again(torch.ones(8, 128))
    assert not again.bind(torch.ones(8, 128)).captured and len(written(file)) == 1


def test_traced_calls_and_odd_arguments(file):
    kernel = fresh(scale)
    jax.jit(lambda x: kernel(x, math.inf))(jnp.ones((8, 128)))
    made = fresh(total)
    x = torch.ones(8, 128)
    made((x, x), torch.float32, x)
    first, second = map(json.loads, written(file))
    assert first["args"] == [{"shape": [8, 128], "dtype": "float32"}, {"float": "inf"}]
    tensor = {"shape": [8, 128], "dtype": "float32"}
    assert second["args"] == [{"items": [tensor, tensor]}, {"dtype": "float32"}, tensor]
    entries = list(manifest.entries(manifest.load(file), file.parent, None))
    assert entries[0].args[1] == math.inf and made.bind(*entries[1].args).key == made.bind((x, x), torch.float32, x).key


def test_what_has_no_name_is_a_comment_with_the_reason(file):
    @helion.kernel
    def local(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(out.size()):
            out[tile] = x[tile] + 1
        return out

    local(torch.ones(8, 128))
    helion.kernel(scale.fn)(torch.ones(8, 128))
    assert written(file) == []
    first, second = file.read_text().splitlines()
    assert first.startswith("# ") and "<locals>.local" in first and "made inside a function" in first
    assert "is not this kernel" in second
    assert manifest.load(file) == {"kernels": []}


def test_settings_that_are_part_of_the_key_are_recorded(file):
    kernel = fresh(scale, strict=True)
    with jax.default_matmul_precision("float32"):
        kernel(torch.ones(8, 128))
    (line,) = map(json.loads, written(file))
    assert line["numerics"] == "x64=0;matmul=float32" and line["strict"] is True
    (entry,) = manifest.entries(manifest.load(file), file.parent, None)
    assert entry.kernel is None and "matmul=float32, here" in entry.problem
    with jax.default_matmul_precision("float32"):
        (entry,) = manifest.entries(manifest.load(file), file.parent, None)
        assert entry.kernel is kernel
        fresh(scale)
        (entry,) = manifest.entries(manifest.load(file), file.parent, None)
        assert entry.kernel is None and "strict=True, here False" in entry.problem


def test_calls_are_told_at_the_end_and_the_busiest_comes_first(file):
    kernel = fresh(scale)
    kernel(torch.ones(8, 128))
    for _ in range(4):
        kernel(torch.ones(8, 512))
    assert len(written(file)) == 2
    slots = [kernel.bind(torch.ones(8, 128)), kernel.bind(torch.ones(8, 512))]
    recording.tell_calls(slots)
    few, many = map(json.loads, written(file)[2:])
    assert (few["calls"], many["calls"]) == (1, 4)
    assert [item["args"][0]["shape"] for item in manifest.load(file)["kernels"]] == [[8, 512], [8, 128]]


def test_dynamic_extents_of_one_bucket_are_one_line(file):
    kernel = fresh(scale, dynamic={"x": (0,)})
    for rows in (17, 18, 24, 25):  # 24 is the bucket of the first three
        kernel(torch.ones(rows, 128))
    lines = [json.loads(line) for line in written(file)]
    assert [line["args"][0]["shape"] for line in lines] == [[17, 128], [25, 128]]
    recording.tell_calls([kernel.bind(torch.ones(rows, 128)) for rows in (17, 18, 24, 25)])
    assert [json.loads(line)["calls"] for line in written(file)[2:]] == [3, 1]


def test_what_goes_wrong_with_the_arguments_stays_out_of_the_call(file, monkeypatch):
    monkeypatch.setattr(recording, "_said", lambda value: 1 / 0)
    assert torch.equal(fresh(scale)(torch.ones(8, 128)), torch.full((8, 128), 2.0))
    assert written(file) == [] and "division by zero" in file.read_text()


@pytest.mark.parametrize("place", ["a file", "no folder"])
def test_a_file_that_cannot_be_written_is_told_once_and_harms_nobody(tmp_path, monkeypatch, caplog, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELION_RT_RECORD_KEYS", str(tmp_path / "file" / "x" if place == "a file" else tmp_path / "none" / "x"))
    kernel = fresh(scale)
    with caplog.at_level(logging.WARNING):
        kernel(torch.ones(8, 128))
        assert torch.equal(kernel(torch.ones(4, 128)), torch.full((4, 128), 2.0))
        assert helion.wait_for_tuning(60)
    assert len([r for r in caplog.records if "manifest of recorded keys" in r.message]) == 1
    assert background.tuner.wait(1)


# The file itself.


def test_a_line_is_written_once_whoever_wrote_it(tmp_path):
    file = tmp_path / "keys"
    one, other = Recorder(file), Recorder(file)
    one.write(["a", "b", "a"])
    one.write(["b", "c"])
    other.write(["c", "d"])
    assert file.read_text() == "a\nb\nc\nd\n"
    assert file.stat().st_mode & 0o077 == 0


def test_a_line_that_somebody_did_not_finish_spoils_no_other(tmp_path):
    file = tmp_path / "keys.jsonl"
    file.write_text('{"kernel": "a:b", "args": [], "tar')
    Recorder(file).write(['{"kernel": "c:d", "args": []}'])
    good, bad = manifest.load(file)["kernels"]
    assert good == {"kernel": "c:d", "args": []} and bad["line"] == 1


def test_the_file_has_an_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recording, "MAX_BYTES", 100)
    file = tmp_path / "keys"
    recorder = Recorder(file)
    with caplog.at_level(logging.WARNING):
        recorder.write([f"{n:030}" for n in range(10)])
        recorder.write(["short"])
    assert file.stat().st_size <= 100 and len(file.read_text().splitlines()) == 3
    assert len(caplog.records) == 1 and "takes no more" in caplog.text


def test_a_line_has_an_end_too(file, monkeypatch):
    monkeypatch.setattr(recording, "MAX_LINE_BYTES", 400)
    made = fresh(total)
    x = torch.ones(8, 128)
    made((x, x), torch.float32, *[x] * 8)
    assert written(file) == [] and len(file.read_text()) <= 401 and "its line would have" in file.read_text()


def test_threads_and_files_opened_apart_do_not_mix_lines(tmp_path):
    file = tmp_path / "keys"
    lines = [[json.dumps({"writer": writer, "line": line, "pad": "x" * 300}) for line in range(200)] for writer in range(8)]
    threads = [threading.Thread(target=lambda mine=mine: [Recorder(file).write([line]) for line in mine]) for mine in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # An empty line may be among them (see `Recorder._append`); whole lines only, and each of them once.
    found, expected = Counter(line for line in file.read_text().splitlines() if line), Counter(line for mine in lines for line in mine)
    assert found - expected == expected - found == Counter()


@pytest.mark.slow
def test_processes_at_once_and_a_script_of_its_own(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        "import sys, torch, helion_rt as helion, helion_rt.language as hl\n"
        "@helion.kernel\n"
        "def double(x: torch.Tensor) -> torch.Tensor:\n"
        "    out = torch.empty_like(x)\n"
        "    for tile in hl.tile(out.size()):\n"
        "        out[tile] = x[tile] * 2\n"
        "    return out\n"
        "if __name__ == '__main__':\n"
        "    for n in range(1, 9):\n"
        "        double(torch.ones(8 * n, 128)); double(torch.ones(8 * n, 128))\n"
    )
    file = tmp_path / "keys.jsonl"
    env = {**os.environ, "PYTHONPATH": ROOT, "HELION_RT_RECORD_KEYS": str(file), "HELION_RT_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen([sys.executable, str(script)], env=env) for _ in range(3)]
    assert [process.wait(300) for process in processes] == [0, 0, 0]
    entries = list(manifest.entries(manifest.load(file), tmp_path, None))
    assert len(entries) == 8 and all(entry.name == f"{script}:double" and not entry.problem for entry in entries)
    counts = [json.loads(line) for line in file.read_text().splitlines() if '"calls"' in line]
    assert sum(count["calls"] for count in counts) == 3 * 8 * 2
