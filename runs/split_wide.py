"""Split-WIDE: every method of the AGCN paper on NUS-WIDE, 21 classes in 7 experiences.

    python runs/split_wide.py --data ROOT --word-vectors glove.6B.300d.txt
    python runs/split_wide.py --data ROOT --split-lists Split-WIDE.zip     # with the published split
    python runs/split_wide.py                                     # without data: drawn scenes

ROOT has NUS-WIDE's `ImageList`, `Groundtruth` and the images under `Flickr`. Each method and seed writes
`results/<method>-seed<k>/results.json`; `--resume` continues interrupted runs.
The paper reports, for AGCN: mAP 41.12, CF1 38.27, OF1 43.27.
"""

from avalanche_agcn.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main("wide", __doc__))
