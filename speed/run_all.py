"""Run all measurements of this folder and write its README.md.

    python speed/run_all.py                    # about a quarter of an hour on two cores that do nothing else
    python speed/run_all.py --quick            # two minutes: a rough look, printed and not kept
    python speed/run_all.py --only switches    # some again, the others as measured before
    python speed/run_all.py --only             # none: write the page from results.json

Each script has a process of its own, one after the other. Numbers are kept in results.json, from which the
page is made. Exits with 1 if a bound is missed or a script failed.
"""

from __future__ import annotations

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
from measure import Topic, read_topics

HERE = Path(__file__).parent
SCRIPTS = (
    "methods",
    "processes",
    "feature_sums",
    "parts",
    "graph",
    "memories",
    "switches",
    "peak_memory",
    "streams",
    "evaluation",
    "benchmarks",
    "scenes",
)
"""In the order of the page."""
RESULTS, PAGE = "results.json", "README.md"

INTRODUCTION = """# Speed

Every cost as a ratio, measured in one run on one machine: against a peer that does the same, or against what
theory allows. Both sides take turns, and the best turn of each counts.

```sh
python speed/run_all.py            # all of this page, about a quarter of an hour
python speed/run_all.py --quick    # a rough look
python speed/methods.py            # one script alone
```

Measured on {cores} cores ({capability}) with {threads} threads, Python {python}, torch {torch}, Avalanche
{avalanche}. Networks have random weights, images are noise or drawn, so that nothing is downloaded. On one
thread the processor's time counts, else the clock's: on a machine that does something else, too, bounds may
be missed that hold. {verdict}
"""

CONCLUSION = """## What bounds it
- A step is bound by the network's convolutions and their backward pass. A method adds passes or images, and
  the tables say which; all else it does must be small beside them.
- AGCN adds its teacher's forward pass, which keeps nothing for a backward pass. The teacher's logits are
  computed once for ℓ_dst and the ACM, its classifiers once per experience; the GCN runs once per step,
  for the logits and ℓ_gph.
- Small batches pay for what does not depend on them: Adam and the GCN go over all their weights in each step.
- Folding the teacher's normalisations alone, while the student's stay, was tried: it gained a
  few per cent of a step at most, and would make the teacher another network than the student.
- Of the bounds that are missed, those on peak memory, nested evaluation and the first batch are missed by
  at most 2 per cent. The lead over torchmetrics was 30 times when its bound was set; why it is less now was
  not found out.
- A switch that gains for both networks and both batches is worth being a default. Adam(fused=True) is one,
  too, though here it gains with EfficientNet-Lite0 in small batches alone: the published results were made
  with it. bf16 needs a processor with instructions for it, and torch.compile a run long enough to pay for
  the compiling.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few turns and no slow measurement")
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, metavar="SCRIPT", help=", ".join(SCRIPTS))
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results.json and README.md go; here")
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
        if folder is not None:  # after each, so that a stop loses one at most
            write_results(folder / RESULTS, conditions, topics)
    page = make_page(conditions, topics)
    if folder is None:
        print(page)
    else:
        (folder / PAGE).write_text(page, encoding="utf-8")
    return int(not set(chosen) <= set(topics) or _missed(topics) > 0)


def run_script(script: Path, options: Sequence[str]) -> list[Topic] | None:
    """What a script measured, or None if it failed; it prints its own tables and errors."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        subprocess.run([sys.executable, str(script), "--json", str(rows), *options], check=False)
        return read_topics(json.loads(rows.read_text(encoding="utf-8"))) if rows.exists() else None


def describe_conditions(*, quick: bool) -> dict[str, Any]:
    """What numbers depend on and the page says about the machine."""
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
    """Keep all numbers."""
    scripts = {script: [asdict(topic) for topic in measured] for script, measured in topics.items()}
    content = {"conditions": conditions, "scripts": scripts}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(
    path: Path, conditions: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, list[Topic]]]:
    """The conditions of kept numbers, and the numbers of each script.

    Raises:
        SystemExit: if they are from other conditions than those given, or there are none and none are given.
    """
    if not path.exists():
        if conditions is None:
            raise SystemExit(f"There is no {path} to make a page from: run without --only first.")
        return dict(conditions), {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if conditions is not None and content["conditions"] != conditions:
        raise SystemExit(
            f"{path} was measured under {content['conditions']}, not {conditions}: numbers of both would not "
            "compare. Run without --only."
        )
    return content["conditions"], {s: read_topics(topics) for s, topics in content["scripts"].items()}


def make_page(conditions: Mapping[str, Any], topics: Mapping[str, Sequence[Topic]]) -> str:
    """README.md."""
    parts = [INTRODUCTION.format(**conditions, verdict=_verdict(topics))]
    parts += [
        f"## {topic.title}\n{topic.about} (`{script}.py`)\n\n{topic}\n"
        for script in SCRIPTS
        for topic in topics.get(script, ())
    ]
    if missing := _missing(topics):
        names = ", ".join(f"`{script}.py`" for script in missing)
        parts.append(f"## Not measured\n{names}: failed or not run.\n")
    return "\n".join([*parts, CONCLUSION])


def _verdict(topics: Mapping[str, Sequence[Topic]]) -> str:
    rows = [row for measured in topics.values() for topic in measured for row in topic.rows]
    bounded, missed = sum(row.bound is not None for row in rows), _missed(topics)
    return f"{bounded - missed} of {bounded} bounds hold."


def _missed(topics: Mapping[str, Sequence[Topic]]) -> int:
    return sum(row.missed for measured in topics.values() for topic in measured for row in topic.rows)


def _missing(topics: Mapping[str, Sequence[Topic]]) -> list[str]:
    return [script for script in SCRIPTS if script not in topics]


if __name__ == "__main__":
    sys.exit(main())
