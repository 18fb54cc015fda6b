r"""AGCN (Augmented Graph Convolutional Network, Du et al., 2022), in the order of the paper's equations.

=========  ==================  =====================================================================
equation   file                function
=========  ==================  =====================================================================
1 to 4     ``correlation.py``  ``AugmentedCorrelationMatrix.matrix``: relations between labels
(none)     ``graph.py``        ``adjacency``: from these relations to the graph of the GCN
5          ``gcn.py``          ``GCN.forward``: from word vectors to one classifier per class
6          ``model.py``        ``AGCNModel.logits``: image features times these classifiers
7, 8       ``losses.py``       ``distillation_loss`` and ``relationship_preserving_loss``
9          ``plugins.py``      ``AGCNPlugin.before_backward``; ``ACMPlugin`` counts the labels
\          ``strategy.py``     `AGCN`: both plugins, and the presets
\          ``official.py``     the authors' code where it differs from the equations
=========  ==================  =====================================================================

``docs/agcn.md`` has the paper's equations beside the lines of code.
"""
