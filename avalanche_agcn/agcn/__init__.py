r"""AGCN (Augmented Graph Convolutional Network, Du et al., 2022), in the order of the paper's equations.

=======  ==================================  ==================  =======================================
Eq.      paper                               file                code
=======  ==================================  ==================  =======================================
1        A^t = [[A^{t-1}, R], [Q, B]]        ``correlation.py``  ``AugmentedCorrelationMatrix.matrix``
2, 3, 4  B, R, Q                             ``correlation.py``  ``new_new``, ``old_new``, ``new_old``
\        from A^t to the GCN (not given)     ``graph.py``        ``adjacency``
5        H^t = AGCN(A^t, H^{t,0})            ``gcn.py``          ``GCN.forward``
6        ŷ = σ(H^t ⊗ CNN(x))                 ``model.py``        ``AGCNModel.logits``, before σ
7        ℓ_dst(ẑ, ŷ_old)                     ``losses.py``       ``distillation_loss``
8        ℓ_gph(G^{t-1}, H^t)                 ``losses.py``       ``relationship_preserving_loss``
9        ℓ = λ₁ ℓ_cls + λ₂ ℓ_dst + λ₃ ℓ_gph  ``plugins.py``      ``AGCNPlugin.before_backward``
=======  ==================================  ==================  =======================================

`AGCN` in ``strategy.py`` has the presets; ``official.py`` is what the authors' code computes instead. A task
is an *experience* here, and the expert, which gives ẑ and G, a frozen *teacher*. See also ``docs/agcn.md``.
"""
