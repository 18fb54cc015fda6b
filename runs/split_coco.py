"""Split-COCO, or without data the embedded benchmark of drawn scenes.

python runs/split_coco.py                # the embedded benchmark
python runs/split_coco.py --data ROOT    # ROOT has COCO's `annotations` and image folders
"""

import argparse

from avalanche_agcn.benchmarks import SplitCOCO, SplitScenes


def main() -> None:
    """Build the benchmark and print what each experience holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="COCO's folder; without it drawn scenes are used, which are not COCO")
    parser.add_argument("--split-lists", help="folder or zip of published split lists")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.data:
        benchmark = SplitCOCO(arguments.data, split_lists=arguments.split_lists, seed=arguments.seed)
    else:
        print("No --data given: this is the embedded benchmark of drawn scenes, not COCO.")
        benchmark = SplitScenes(seed=arguments.seed)
    print(benchmark)
    for train, test in zip(benchmark.train_stream, benchmark.test_stream, strict=True):
        names = ", ".join(benchmark.class_names[c] for c in train.classes_in_this_experience)
        print(f"  {train.current_experience}: {len(train.dataset)} train, {len(test.dataset)} test: {names}")


if __name__ == "__main__":
    main()
