"""The paper's ablations of AGCN: its Table 2 (blocks R and Q) and Table 3 (loss weights).

    python runs/ablations.py                       # on drawn scenes, no data needed
    python runs/ablations.py --seed 0 1 2 --resume
    python runs/ablations.py --data ROOT           # on COCO, with the paper's settings

Takes the options of runs/split_coco.py. Each variant is a row of the table. The paper's values of λ₃ are
multiplied by `--lambda-gph` / 1e5.
"""

from avalanche_agcn.experiments.cli import main
from avalanche_agcn.experiments.methods import ABLATIONS

if __name__ == "__main__":
    raise SystemExit(main("coco", __doc__, variants=ABLATIONS))
