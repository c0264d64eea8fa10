"""
Build the documentation's site: lay out its sources, run Sphinx, and check what came of it.

Runs in ``make site``; its argument is the folder for the site.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from check_site import faults
from sphinx.cmd.build import build_main
from stage import Staged


def main(site: Path) -> int:
    """Build it there, and return an exit code."""
    sources = site.with_name(f"{site.name}-sources")
    # Whole, each time: what was built by other code, or of a page that is gone, would hide a fault.
    for folder in (site, sources):
        shutil.rmtree(folder, ignore_errors=True)
    Staged().write(sources)
    here = str(Path(__file__).resolve().parent)
    code = build_main(["-q", "-W", "--keep-going", "-c", here, "-d", f"{sources}/.read", str(sources), str(site)])
    found = list(faults(site.resolve())) if code == 0 else []
    sys.stderr.writelines(f"{one}\n" for one in found)
    return code or bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
