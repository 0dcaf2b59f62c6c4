"""The table: two toolchains, two source formats of one kernel (and another program of its name), two generations."""

from dataclasses import replace
from itertools import permutations

import jax
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt import targets
from helion_rt.config import Config
from helion_rt.database import Evidence, EvidenceKind, Origin, Record, Status, open_local, utc_now
from helion_rt.database.tiers import Tiers
from helion_rt.runtime import prepare
from helion_rt.runtime.standing import Standing, nearest, preferred, standing
from helion_rt.tuning.space import SPACE_VERSION

THEIRS = {"helion_rt": "0.0.1", "jax": "0.0.1", "jaxlib": "0.0.1", "libtpu": "0.0.1"}
NEWER = dict.fromkeys(THEIRS, "99.0")
X = (jax.ShapeDtypeStruct((512, 256), np.float32),)


def plain():
    @helion.kernel
    def scaled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile] * 2
        return out

    return scaled


def formatted():
    @helion.kernel
    def scaled(
        x: torch.Tensor,
    ) -> torch.Tensor:
        # The same, written by somebody else.
        result = torch.empty_like(x)

        for here in hl.tile(x.size()):
            result[here] = x[here] * 2  # twice
        return result

    return scaled


def another():
    @helion.kernel
    def scaled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile] * 3
        return out

    return scaled


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The key of each kernel on each generation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_RT_CACHE_DIR", str(tmp_path_factory.mktemp("keys")))
        found = {}
        for make in (plain, formatted, another):
            kernel = make()
            for target in ("v5e", "v6e"):
                found[make, target] = prepare.find(kernel, kernel.bound(*X), targets.get(target))[1]
        return found


def record(key, toolchain=None, **changes):
    fields = {"config": {"block_sizes": [8, 128]}, "evidence": Evidence(EvidenceKind.MEASURED, 1.0, 2.0), "date": utc_now()}
    fields |= {"key": key, "kernel": "scaled", "status": Status.WINNER, "space_version": SPACE_VERSION}
    return Record(**{**fields, **changes}, toolchain=toolchain or prepare.toolchain())


SCHEDULED = {"evidence": Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)}

# Asked is the key of the plain kernel on a v5e, under today's toolchain. A record of another key is a miss; it may seed a search.
TABLE = [
    # source, generation, toolchain, more, what it is worth, is it a seed
    (plain, "v5e", None, {}, Standing.FINAL, False),
    (formatted, "v5e", None, {}, Standing.FINAL, False),
    (another, "v5e", None, {}, Standing.MISS, True),
    (plain, "v6e", None, {}, Standing.MISS, True),
    (formatted, "v6e", None, {}, Standing.MISS, True),
    (another, "v6e", None, {}, Standing.MISS, True),
    (plain, "v5e", THEIRS, {}, Standing.HINT, False),
    (plain, "v5e", NEWER, {}, Standing.HINT, False),
    (formatted, "v5e", THEIRS, {}, Standing.HINT, False),
    (another, "v5e", THEIRS, {}, Standing.MISS, True),
    (plain, "v6e", THEIRS, {}, Standing.MISS, True),
    (plain, "v5e", None, SCHEDULED, Standing.HINT, False),
    (plain, "v5e", None, {**SCHEDULED, "origin": Origin.SHIPPED}, Standing.HINT, False),
    (plain, "v5e", THEIRS, SCHEDULED, Standing.HINT, False),
    (plain, "v6e", None, SCHEDULED, Standing.MISS, True),
    (plain, "v5e", None, {"quarantined": ({"block_sizes": [8, 128]},)}, Standing.MISS, False),
    (plain, "v5e", None, {"space_version": SPACE_VERSION + 1}, Standing.MISS, False),
]


@pytest.mark.parametrize(("source", "generation", "toolchain", "more", "worth", "seed"), TABLE)
def test_what_a_record_is_worth(keys, tmp_path, source, generation, toolchain, more, worth, seed):
    tiers = Tiers(open_local(tmp_path), prefer=preferred)
    tiers.put(record(keys[source, generation], toolchain, **more))
    asked = keys[plain, "v5e"]
    assert standing(tiers.get(asked), prepare.toolchain()) is worth
    assert bool(nearest(tiers.records(), asked, "scaled", Config(block_sizes=[8, 256]))) is seed


# Of two records of one key, in whichever order they come: the first of these serves here.
MINE = {"config": {"block_sizes": [16, 128]}}
PAIRS = [
    (MINE, {"toolchain": THEIRS}, Standing.FINAL),
    (MINE, {"toolchain": NEWER}, Standing.FINAL),  # stored elsewhere the newer one is the better
    ({**MINE, "toolchain": THEIRS}, SCHEDULED, Standing.HINT),
    (MINE, SCHEDULED, Standing.FINAL),
    ({**MINE, "toolchain": NEWER}, {"toolchain": THEIRS}, Standing.HINT),
    ({"status": Status.NO_CANDIDATE, "config": {}}, {"toolchain": NEWER}, Standing.FINAL),
]


@pytest.mark.parametrize(("best", "other", "worth"), PAIRS)
def test_which_of_two_serves(keys, tmp_path, best, other, worth):
    asked = keys[plain, "v5e"]
    for number, pair in enumerate(permutations([best, other])):
        tiers = Tiers(open_local(tmp_path / str(number)), prefer=preferred)
        for changes in pair:
            fields = dict(changes)
            tiers._arrived(asked, record(asked, fields.pop("toolchain", None), **fields))  # as from a shared tier
        found, fields = tiers.get(asked), dict(best)
        assert found == replace(record(asked, fields.pop("toolchain", None), **fields), date=found.date)
        assert standing(found, prepare.toolchain()) is worth
