"""Statistics of a stream, as sums that store no image.

``sums.py`` has the sums themselves, ``features.py`` one set of them per experience, and ``collector.py`` the
plugin that fills them. ``negatives.py``, ``ridge.py`` and ``drift.py`` use them: as negatives of new classes,
for classifiers in closed form, and with a network that is trained.
"""
