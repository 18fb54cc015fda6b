"""Split-VOC: every method on PASCAL VOC 2007, its 20 classes in 5 experiences of 4 (B0-C4).

    python runs/split_voc.py --data ROOT
    python runs/split_voc.py --data ROOT --protocol B10-C2 --loss asl --pseudo-labels --method finetuning
    python runs/split_voc.py                                      # without data: drawn scenes

ROOT has `VOCdevkit/VOC2007` with `Annotations`, `ImageSets/Main` and `JPEGImages`; `--download` first
downloads what is missing of them, 0.9 GB. Each method and seed writes
`results/<method>-seed<k>/results.json`; `--resume` continues interrupted runs.
The AGCN paper has no results on VOC; those of KRT, CSC and L3A use another network and 20 epochs.
"""

from avalanche_agcn.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main("voc", __doc__))
