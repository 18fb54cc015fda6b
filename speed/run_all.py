"""Run all measurements of this folder and write their tables into its README.md.

    python speed/run_all.py                    # about ten minutes on two otherwise idle cores
    python speed/run_all.py --quick            # two minutes: rough numbers, printed and not stored
    python speed/run_all.py --only graph       # measure some again and keep the other numbers
    python speed/run_all.py --only             # measure nothing: write the page from results.json

The scripts run one after the other, each in its own process. Numbers are stored in results.json, from which
the tables are generated. Exits with 1 if a bound is missed or a script fails.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measure import Row, Topic

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- written by run_all.py -->\n", "<!-- end -->\n"
SCRIPTS = (
    "methods",
    "agcn",
    "processes",
    "graph",
    "feature_sums",
    "long_stream",
    "memories",
    "features",
    "predict",
    "evaluation",
    "benchmarks",
    "real_stream",
)
"""In the order of the page."""
ENVIRONMENTS = {"methods": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}}
"""Variables with which glibc keeps the memory of freed tensors.

Otherwise it returns temporaries of more than 32 MB to the system and gets them again, page by page. That
takes up to a third of a step with 32 images, and differs from process to process."""
WITH_DATA = "real_stream"
"""Measured only with ``--data``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen scripts, store their numbers and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few turns and no slow measurements")
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, metavar="SCRIPT", help=", ".join(SCRIPTS))
    parser.add_argument("--data", metavar="ROOT", help=f"folder of COCO 2014, for {WITH_DATA}")
    parser.add_argument("--split-lists", metavar="LISTS", help="published lists of Split-COCO, likewise")
    parser.add_argument("--cache", metavar="DIR", help="folder with its features, likewise")
    arguments = parser.parse_args(argv)
    paths = {"--data": arguments.data, "--split-lists": arguments.split_lists, "--cache": arguments.cache}
    options = [text for name, path in paths.items() if path is not None for text in (name, path)]
    chosen = SCRIPTS if arguments.only is None else arguments.only
    if arguments.data is None:
        chosen = [script for script in chosen if script != WITH_DATA]
    results = {"conditions": describe_conditions(), "scripts": {}}
    if arguments.only is not None and not arguments.quick:
        results = read_results(results["conditions"] if chosen else None)
    for script in chosen:
        print(f"\n# {script}", flush=True)
        results["scripts"].pop(script, None)
        given = options if script == WITH_DATA else []
        measured = run_script(HERE / f"{script}.py", given, quick=arguments.quick)
        if measured is not None:
            results["scripts"][script] = measured
        if not arguments.quick:  # after each script, so that an interruption loses one at most
            RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    tables = make_tables(results)
    if arguments.quick:
        print(tables)
    else:
        PAGE.write_text(insert(tables, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    has_failed = any(script not in results["scripts"] for script in chosen)
    return int(has_failed or "**missed**" in tables)


def run_script(script: Path, options: Sequence[str] = (), *, quick: bool) -> list[dict[str, Any]] | None:
    """Tables that a script measured, or None if it failed; it prints its own tables and errors."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [sys.executable, str(script), "--json", str(rows), *options]
        environment = {**os.environ, **ENVIRONMENTS.get(script.stem, {})}
        subprocess.run([*command, "--quick"] if quick else command, check=False, env=environment)
        return json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else None


def describe_conditions() -> str:
    """Machine and versions that the numbers depend on."""
    machine = f"{os.cpu_count()} cores ({torch.backends.cpu.get_cpu_capability()})"
    versions = f"torch {torch.__version__}, Avalanche {version('avalanche-lib')}"
    return f"{machine}, {torch.get_num_threads()} threads, Python {platform.python_version()}, {versions}"


def read_results(conditions: str | None = None) -> dict[str, Any]:
    """Read the stored numbers; a SystemExit if they were measured under other conditions than those given."""
    if not RESULTS.exists():
        raise SystemExit(f"There is no {RESULTS}: run without --only first.")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if conditions not in (None, results["conditions"]):
        raise SystemExit(
            f"{RESULTS} was measured on {results['conditions']}, not {conditions}: the numbers are not "
            "comparable. Run without --only."
        )
    return results


def make_tables(results: Mapping[str, Any]) -> str:
    """The part of the page that has the numbers."""
    tables, rows, missing = [], [], []
    for script in SCRIPTS:
        for topic in results["scripts"].get(script, []):
            measured = Topic(topic["title"], topic["about"], [Row(**row) for row in topic["rows"]])
            tables.append(f"## {measured.title}\n{measured.about} (`{script}.py`)\n\n{measured}\n")
            rows += measured.rows
        if script not in results["scripts"]:
            missing.append(f"`{script}.py`")
    if missing:
        tables.append(f"## Not measured\n{', '.join(missing)}: failed or not run.\n")
    bounded = [row for row in rows if row.bound is not None]
    n_held = sum(not row.missed for row in bounded)
    verdict = f"{n_held} of {len(bounded)} bounds hold. Measured on {results['conditions']}.\n"
    return "\n".join([verdict, *tables])


def insert(tables: str, page: str) -> str:
    """The page with these tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{tables}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(main())
