"""``python -m helion_rt.schedule.worker REQUEST FOLDER``: one estimate, in a process that may crash or hang and is then done with.

The function arrives as JAX's own serialised form (``jax.export``): no code of the user's runs here. The answer is JSON on standard
output: ``{"estimate": ...}``, or ``{"refused": reason, "text": ...}`` where the compiler says no.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jax
import msgpack
import numpy as np

from helion_rt import targets
from helion_rt.exc import CompileError

from . import process
from .tables import Table


def main(request: Path, folder: Path) -> int:
    """Carry out the request; 0 also where the compiler refuses. Everything but the answer goes to standard error."""
    process.die_with_parent()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libtpu writes to standard output
    message = msgpack.unpackb(request.read_bytes(), raw=False)
    process.limit_memory(int(message["memory"]))
    exported = jax.export.deserialize(bytearray(message["function"]))
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    tables = [Table(tuple(np.frombuffer(data, kind).reshape(shape) for kind, shape, data in table)) for table in message["tables"]]

    def function(*arrays: object) -> object:
        return exported.call(*arrays)

    try:
        estimate = process.compile_and_estimate(
            function, specs, targets.get(message["target"]), folder, tables=tables, trips=message["trips"], work=tuple(message["work"])
        )
        json.dump({"estimate": estimate.to_dict()}, answer)
    except CompileError as error:
        json.dump({"refused": error.reason, "text": error.full_text[:20_000]}, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
