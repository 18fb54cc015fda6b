"""Run all measurements of this folder and write its README.md.

    python speed/run_all.py                    # about ten minutes on two otherwise idle cores
    python speed/run_all.py --quick            # two minutes: rough numbers, printed and not stored
    python speed/run_all.py --only graph       # measure some again and keep the other numbers
    python speed/run_all.py --only             # measure nothing: write the page from results.json

The scripts run one after the other, each in its own process. Numbers are stored in results.json, from which
the page is generated. Exits with 1 if a bound is missed or a script fails.
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
from measure import Topic, read_topics

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
SCRIPTS = (
    "methods",
    "processes",
    "peak_memory",
    "graph",
    "feature_sums",
    "memories",
    "streams",
    "evaluation",
    "benchmarks",
    "predict",
)
"""In the order of the page."""

INTRODUCTION = """# Speed

Costs are ratios, measured in one run on one machine: against other code that does the same, or against a
theoretical bound. Both sides take turns, and the best turn of each counts.

```sh
python speed/run_all.py            # this whole page, about ten minutes
python speed/run_all.py --quick    # rough numbers
python speed/methods.py            # a single script
```

Measured on {cores} cores ({capability}) with {threads} threads, Python {python}, torch {torch}, Avalanche
{avalanche}. Networks have random weights and images are noise or drawn, so that nothing is downloaded.
Measurements on one thread use CPU time, others wall-clock time, so on a busy machine bounds may be missed
that hold otherwise. {verdict}
"""

CONCLUSION = """## What limits speed
- Most of a step is spent in the network's convolutions and their backward pass. A method adds passes or
  images, as the tables show; everything else it does must be small in comparison.
- AGCN adds its teacher's forward pass, which stores nothing for a backward pass. The teacher's logits are
  computed once for ℓ_dst and the ACM, its classifiers once per experience; the GCN runs once per step,
  for the logits and ℓ_gph.
- Small batches are relatively slow, because Adam and the GCN process all their weights in each step.
- The bound on torchmetrics was set when mAP was 30 times as fast; the note on its row explains part of the
  difference.
- Whether bf16, torch.compile, more threads or loader workers help depends on the machine: time one experience
  with and without them.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen scripts, store their numbers and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few turns and no slow measurements")
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, metavar="SCRIPT", help=", ".join(SCRIPTS))
    arguments = parser.parse_args(argv)
    chosen = SCRIPTS if arguments.only is None else arguments.only
    results = {"conditions": describe_conditions(), "scripts": {}}
    if arguments.only is not None and not arguments.quick:
        results = read_results(results["conditions"] if chosen else None)
    for script in chosen:
        print(f"\n# {script}", flush=True)
        results["scripts"].pop(script, None)
        measured = run_script(HERE / f"{script}.py", quick=arguments.quick)
        if measured is not None:
            results["scripts"][script] = measured
        if not arguments.quick:  # after each script, so that an interruption loses one at most
            RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = make_page(results)
    if arguments.quick:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")
    has_failed = any(script not in results["scripts"] for script in chosen)
    return int(has_failed or "**missed**" in page)


def run_script(script: Path, *, quick: bool) -> list[dict[str, Any]] | None:
    """Tables that a script measured, or None if it failed; it prints its own tables and errors."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [sys.executable, str(script), "--json", str(rows)]
        subprocess.run([*command, "--quick"] if quick else command, check=False)
        return json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else None


def describe_conditions() -> dict[str, Any]:
    """Machine and versions that the numbers depend on."""
    return {
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "avalanche": version("avalanche-lib"),
    }


def read_results(conditions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read the stored numbers; a SystemExit if they were measured under other conditions than those given."""
    if not RESULTS.exists():
        raise SystemExit(f"There is no {RESULTS}: run without --only first.")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if conditions is not None and results["conditions"] != conditions:
        raise SystemExit(
            f"{RESULTS} was measured under {results['conditions']}, not {conditions}: the numbers are not "
            "comparable. Run without --only."
        )
    return results


def make_page(results: Mapping[str, Any]) -> str:
    """The text of README.md."""
    topics: dict[str, list[Topic]] = {}
    for script in SCRIPTS:
        topics[script] = read_topics(results["scripts"].get(script, []))
    rows = [row for measured in topics.values() for topic in measured for row in topic.rows]
    bounded = [row for row in rows if row.bound is not None]
    n_held = sum(not row.missed for row in bounded)
    parts = [INTRODUCTION.format(**results["conditions"], verdict=f"{n_held} of {len(bounded)} bounds hold.")]
    for script, measured in topics.items():
        parts += [f"## {topic.title}\n{topic.about} (`{script}.py`)\n\n{topic}\n" for topic in measured]
    missing = [f"`{script}.py`" for script in SCRIPTS if not topics[script]]
    if missing:
        parts.append(f"## Not measured\n{', '.join(missing)}: failed or not run.\n")
    return "\n".join([*parts, CONCLUSION])


if __name__ == "__main__":
    sys.exit(main())
