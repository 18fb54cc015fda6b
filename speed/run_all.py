"""Run all measurements of this folder and write its README.md.

    python speed/run_all.py                    # about a quarter of an hour on two otherwise idle cores
    python speed/run_all.py --quick            # two minutes: rough numbers, printed and not stored
    python speed/run_all.py --only switches    # measure some again and keep the other numbers
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
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measure import Row, Topic, read_topics

HERE = Path(__file__).parent
SCRIPTS = (
    *("methods", "processes", "feature_sums", "parts", "graph", "memories"),
    *("switches", "peak_memory", "streams", "evaluation", "benchmarks", "scenes"),
)
"""In the order of the page."""
RESULTS, PAGE = "results.json", "README.md"

INTRODUCTION = """# Speed

Costs are ratios, measured in one run on one machine: against other code that does the same, or against a
theoretical bound. Both sides take turns, and the best turn of each counts.

```sh
python speed/run_all.py            # this whole page, about a quarter of an hour
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
- Folding batch normalisation only in the teacher was tried: it saved a few per cent of a step at
  most, and the teacher's network would differ from the student's.
- The bound on torchmetrics was set when mAP was 30 times as fast; the note on its row explains part of the
  difference.
- channels_last and keeping freed memory help both networks and both batch sizes, and are on by default.
  Adam(fused=True) is also on, because the published results were made with it. bf16 needs a processor with
  instructions for it, and torch.compile a run that is long enough to make up for the compilation.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen scripts, store their numbers and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few turns and no slow measurements")
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, metavar="SCRIPT", help=", ".join(SCRIPTS))
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of results.json and README.md (default: speed)"
    )
    arguments = parser.parse_args(argv)
    folder = arguments.out or (None if arguments.quick else HERE)
    conditions = describe_conditions(quick=arguments.quick)
    chosen = SCRIPTS if arguments.only is None else arguments.only
    topics: dict[str, list[Topic]] = {}
    if arguments.only is not None and folder is not None:
        conditions, topics = read_results(folder / RESULTS, conditions if chosen else None)
    for script in chosen:
        print(f"\n# {script}", flush=True)
        measured = run_script(HERE / f"{script}.py", ["--quick"] * arguments.quick)
        topics.pop(script, None)
        if measured is not None:
            topics[script] = measured
        if folder is not None:  # after each script, so that an interruption loses one at most
            write_results(folder / RESULTS, conditions, topics)
    page = make_page(conditions, topics)
    if folder is None:
        print(page)
    else:
        (folder / PAGE).write_text(page, encoding="utf-8")
    return int(not set(chosen) <= set(topics) or any(row.missed for row in _rows(topics)))


def run_script(script: Path, options: Sequence[str]) -> list[Topic] | None:
    """Topics that a script measured, or None if it failed; it prints its own tables and errors."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        subprocess.run([sys.executable, str(script), "--json", str(rows), *options], check=False)
        return read_topics(json.loads(rows.read_text(encoding="utf-8"))) if rows.exists() else None


def describe_conditions(*, quick: bool) -> dict[str, Any]:
    """Machine, versions and settings that the numbers depend on."""
    return {
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "avalanche": version("avalanche-lib"),
        "quick": quick,
    }


def write_results(path: Path, conditions: Mapping[str, Any], topics: Mapping[str, Sequence[Topic]]) -> None:
    """Write all numbers to a JSON file."""
    scripts = {script: [asdict(topic) for topic in measured] for script, measured in topics.items()}
    content = {"conditions": conditions, "scripts": scripts}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(
    path: Path, conditions: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, list[Topic]]]:
    """Read the conditions and the numbers of each script.

    Raises:
        SystemExit: if the conditions differ from those given, or if there is no file and none are given.
    """
    if not path.exists():
        if conditions is None:
            raise SystemExit(f"There is no {path} to make a page from: run without --only first.")
        return dict(conditions), {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if conditions is not None and content["conditions"] != conditions:
        raise SystemExit(
            f"{path} was measured under {content['conditions']}, not {conditions}: the numbers are not "
            "comparable. Run without --only."
        )
    return content["conditions"], {s: read_topics(topics) for s, topics in content["scripts"].items()}


def make_page(conditions: Mapping[str, Any], topics: Mapping[str, Sequence[Topic]]) -> str:
    """The text of README.md."""
    bounded = [row for row in _rows(topics) if row.bound is not None]
    verdict = f"{sum(not row.missed for row in bounded)} of {len(bounded)} bounds hold."
    parts = [INTRODUCTION.format(**conditions, verdict=verdict)]
    parts += [
        f"## {topic.title}\n{topic.about} (`{script}.py`)\n\n{topic}\n"
        for script in SCRIPTS
        for topic in topics.get(script, ())
    ]
    if missing := [f"`{script}.py`" for script in SCRIPTS if script not in topics]:
        parts.append(f"## Not measured\n{', '.join(missing)}: failed or not run.\n")
    return "\n".join([*parts, CONCLUSION])


def _rows(topics: Mapping[str, Sequence[Topic]]) -> list[Row]:
    return [row for measured in topics.values() for topic in measured for row in topic.rows]


if __name__ == "__main__":
    sys.exit(main())
