"""Fill the tuning database from a manifest: ``python scripts/prewarm.py MANIFEST [--target NAME]``. See ``helion-rt prewarm --help``."""

import sys

from helion_rt.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prewarm", *sys.argv[1:]]))
