"""Split-COCO: every method of the AGCN paper on MS-COCO, 40 classes in 10 experiences.

    python runs/split_coco.py                                     # five methods on drawn scenes, two minutes
    python runs/split_coco.py --method agcn                       # only AGCN, backbone trained
    python runs/split_coco.py --method all --seed 0 1 2           # all methods, backbone trained
    python runs/split_coco.py --data ROOT --defaults small --n-classes 18 --n-experiences 6 --method all
                                                                  # on photos, with a small frozen backbone
    python runs/split_coco.py --data ROOT --word-vectors glove.6B.300d.txt
                                                                  # the paper's settings, on COCO
    python runs/split_coco.py --data ROOT --split-lists Split-COCO.zip
                                                                  # with the published split

ROOT has COCO's `annotations`, `train2014` and `val2014`; `--download` first downloads what is missing of
them, 20.4 GB. Each method and seed writes `results/<method>-seed<k>/results.json`; `--resume` continues
interrupted runs.
The paper reports, for AGCN: mAP 34.11, CF1 35.49, OF1 42.37.
"""

from avalanche_agcn.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main("coco", __doc__))
