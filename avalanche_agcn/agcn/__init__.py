"""AGCN (Augmented Graph Convolutional Network, Du et al., 2022): the paper, in the order it is read.

===================  ============================================================  =============
file                 contents                                                      equations
===================  ============================================================  =============
``correlation.py``   the Augmented Correlation Matrix, counted batch by batch      1 to 4
``graph.py``         from correlations to the adjacency matrix of a GCN
``gcn.py``           two graph convolutions                                        5
``model.py``         image features times the classifiers of the GCN               5, 6
``losses.py``        distillation, and preservation of relationships               7, 8
``plugins.py``       when each is computed in a training step, and their sum       9
``strategy.py``      `AGCN`, with its presets
``official.py``      what the authors' code computes instead of Eq. 1 to 4
===================  ============================================================  =============

``docs/agcn.md`` has the paper's equations beside the lines of code.
"""
