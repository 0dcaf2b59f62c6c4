"""A module's time from a folder of texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from helion_rt import targets
from helion_rt.database import EvidenceKind
from helion_rt.schedule import Bottleneck, Estimate, module, process
from helion_rt.schedule.units import rates

from .texts import GUARDED, TOP, UTILIZATION

TARGET = targets.get("v5e")
KERNEL_CYCLES = 2 + 6 * 7 + 2 * 16 + 6 * 8 + 1


def write(folder: Path, **changes: str | None) -> Path:
    files = {
        "1-TLP-03-final_bundles.txt": TOP,
        "2-kernel.1-03-final_bundles.txt": GUARDED,
        "2-kernel.1-02-schedule-analysis_final_bundles.txt": "something else",
        "2-kernel.1-01-final_hlo-static-per-bundle-utilization.txt": UTILIZATION,
        "2-kernel.1-00-pre-finalize-registers-and-allocations.txt": "  #allocation3 [shape = 'f32[8,128]', space=vmem, size = 0x1000]\n"
        "  #allocation4 [shape = 's32[]', space=smem, size = 0x4]\n  #allocation5 [shape = 'u8[64]', space=vmem, size = 0x40]\n",
    } | changes
    for name, text in files.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def test_kernels_are_counted_as_often_as_they_are_called(tmp_path: Path) -> None:
    totals = module.weigh(write(tmp_path), rates(TARGET))
    (kernel,) = totals.kernels.values()
    assert (kernel.name, kernel.calls, kernel.cycles, kernel.vmem_bytes) == ("kernel.1", 2, KERNEL_CYCLES, 0x1040)
    assert totals.cycles == 2 * KERNEL_CYCLES + 9
    assert totals.mxu_cycles == 2 * 2 * 16
    assert totals.spills == 2 * 6  # a fill in bundle 3, six turns, two calls
    assert totals.slots["VALU"] == 2 * 2 * 1 / 4
    assert totals.notes == []


def test_kernels_that_are_too_large_to_be_inlined_are_called(tmp_path: Path) -> None:
    top = TOP.replace("inlined_call %s5_s20, %s5_s20", "call %s5_s20, %s5_s20")
    assert module.weigh(write(tmp_path, **{"1-TLP-03-final_bundles.txt": top}), rates(TARGET)).cycles == 2 * KERNEL_CYCLES + 9


def test_a_schedule_without_the_products_is_not_believed(tmp_path: Path) -> None:
    top = "\n".join(line for line in TOP.splitlines() if "inlined_call" not in line) + "\n   0x7   :  {}\n   0x8   :  {}\n"
    write(tmp_path, **{"1-TLP-03-final_bundles.txt": top})
    estimate = process.read(tmp_path, TARGET, tables=(), trips=1, work=(rates(TARGET).mxu_flops * 1e6, 0.0))
    assert estimate.kind is EvidenceKind.MODELLED and estimate.cycles == pytest.approx(1e6)
    assert "the products alone take" in estimate.notes[0]


def test_the_summary_names_what_is_full(tmp_path: Path) -> None:
    estimate = process.read(write(tmp_path), TARGET, tables=(), trips=1, work=(0.0, 0.0))
    assert estimate.kind is EvidenceKind.SCHEDULED and estimate.target == "v5e"
    assert estimate.ms == pytest.approx((2 * KERNEL_CYCLES + 9) / rates(TARGET).clock * 1e3)
    assert all(0 <= share <= 1 for share in estimate.units.values())
    assert estimate.bottleneck is Bottleneck.LATENCY  # the scalar unit comes nearest, with one of two slots in most bundles
    assert Estimate.from_dict(estimate.to_dict()) == estimate
    assert estimate.facts()["bound"] == "latency"


def test_a_kernel_without_text_is_told(tmp_path: Path) -> None:
    totals = module.weigh(write(tmp_path, **{"2-kernel.1-03-final_bundles.txt": None}), rates(TARGET))
    assert any("no text of kernel.1" in note for note in totals.notes)
    like = write(tmp_path, **{"3-kernel.7-03-final_bundles.txt": GUARDED})
    (like / "2-kernel.1-03-final_bundles.txt").unlink(missing_ok=True)
    totals = module.weigh(like, rates(TARGET))
    assert totals.cycles > KERNEL_CYCLES and any("like kernel.7" in note for note in totals.notes)


def test_texts_that_cannot_be_read_give_a_modelled_estimate_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(module.Unreadable, match="no text"):
        module.weigh(tmp_path, rates(TARGET))
    for name, text in (("1-TLP-03-final_bundles.txt", "garbage"), ("2-kernel.1-03-final_bundles.txt", "garbage")):
        folder = tmp_path / name
        folder.mkdir()
        work = (rates(TARGET).mxu_flops * 3e6, rates(TARGET).hbm * 1e6)
        estimate = process.read(write(folder, **{name: text}), TARGET, tables=(), trips=1, work=work)
        assert estimate.kind is EvidenceKind.MODELLED and estimate.bottleneck is Bottleneck.MXU
        assert estimate.cycles == pytest.approx(3e6)
        assert estimate.notes and estimate.notes[0].startswith("not scheduled: ")
