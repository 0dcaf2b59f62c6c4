"""``helion-rt prewarm``: what it fills, what it says when it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import helion_rt
from helion_rt.cli.main import main
from helion_rt.database import EvidenceKind, open_local

ROOT = str(Path(helion_rt.__file__).parent.parent)

KERNELS = """
import torch
import helion_rt as helion
import helion_rt.language as hl

@helion.kernel
def double(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * by
    return out
"""

MANIFEST = """
[[kernels]]
kernel = "my_kernels.py:double"
args = [{ shape = [64, 128], dtype = "float32" }, { value = 3.0 }]
"""


@pytest.fixture
def manifest(tmp_path):
    (tmp_path / "my_kernels.py").write_text(KERNELS)
    path = tmp_path / "manifest.toml"
    path.write_text(MANIFEST)
    return path


def run(manifest, *args):
    env = {**os.environ, "HELION_RT_TUNE_SECONDS": "1", "PYTHONPATH": ROOT}
    command = [sys.executable, "-m", "helion_rt.cli.main", "prewarm", str(manifest), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_this_machine_and_an_absent_tpu(manifest, own_cache):
    done = run(manifest, "--target", "cpu", "--target", "v5e", "--json")
    assert done.returncode == 0, done.stderr
    cpu, tpu = json.loads(done.stdout)
    assert cpu["filled"] and cpu["evidence"] == "measured" and tpu["filled"] and tpu["evidence"] == "modelled"
    kinds = {record.key.target: record.evidence.kind for record in open_local(own_cache).records()}
    assert kinds.pop("v5e") is EvidenceKind.MODELLED and list(kinds.values()) == [EvidenceKind.MEASURED]
    again = json.loads(run(manifest, "--target", "cpu", "--target", "v5e", "--json").stdout)
    assert [r["candidates_tried"] for r in again] == [0, 0] and all(r["filled"] for r in again)


def test_a_key_that_cannot_be_filled_is_named_and_fails(manifest):
    manifest.write_text(MANIFEST.replace("[64, 128]", "[64, 128]").replace("float32", "complex64"))
    done = run(manifest)
    assert done.returncode == 1 and "not filled: double(64x128, 3.0) on cpu" in done.stderr and "complex64" in done.stderr
    assert "0 of 1 keys filled" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a list 'kernels'"),
        ("[[kernels]]\nkernel = 'my_kernels.py:nothing'\nargs = []", "nothing is NoneType"),
        ("[[kernels]]\nkernel = 'no_such_module:f'\nargs = []", "cannot import no_such_module"),
        ("[[kernels]]\nkernel = 'my_kernels.py:double'\nargs = [{shape = [1], dtype = 'float33'}]", "float33"),
        ("[[kernels]]\nkernel = 'my_kernels.py:double'\nargs = [7]", "an argument is"),
        ("targets = ['v99']\n[[kernels]]\nkernel = 'my_kernels.py:double'\nargs = []", "no target 'v99'"),
        ("not toml", "manifest.toml"),
    ],
)
def test_manifests_that_cannot_be_used(manifest, capsys, text, says):
    manifest.write_text(text)
    assert main(["prewarm", str(manifest)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("body", ["raise RuntimeError('boom')", "def (", "import no_such_module"])
def test_a_module_that_does_not_import_is_named(manifest, capsys, body):
    (manifest.parent / "broken.py").write_text(body)
    manifest.write_text("[[kernels]]\nkernel = 'broken.py:f'\nargs = []")
    assert main(["prewarm", str(manifest)]) == 2
    assert "'broken.py:f': cannot import broken.py" in capsys.readouterr().err


def test_targets_are_a_list(manifest, capsys):
    manifest.write_text('targets = "cpu"\n' + MANIFEST)
    assert main(["prewarm", str(manifest)]) == 2
    assert "a list of names, not 'cpu'" in capsys.readouterr().err


def test_a_record_that_the_directory_does_not_take_fills_nothing(manifest, own_cache, monkeypatch, capsys):
    from helion_rt.runtime.background import tuner
    from helion_rt.tuning.search import Outcome

    own_cache.write_text("a file, not a directory")
    monkeypatch.setattr(tuner, "_search", lambda slot: Outcome())
    assert main(["prewarm", str(manifest), "--target", "cpu", "--json"]) == 1
    out, _ = capsys.readouterr()
    (result,) = json.loads(out)
    assert not result["filled"] and result["status"] == f"found, but {own_cache} cannot be written"
