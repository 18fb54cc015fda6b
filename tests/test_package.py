"""Names that users and other projects rely on."""

import importlib

import pytest

import avalanche_agcn

PUBLIC = {
    "benchmarks": "SplitCOCO SplitWIDE SplitVOC SplitPhotos SplitScenes multilabel_benchmark multilabel_csv",
    "models": "AGCNModel MultiLabelClassifier GCN create_backbone load_word_vectors load_model",
    "training": "AGCN MultiTask FineTuning EWC LwF AGEM ER PRS OCDM SCR StreamingRidge "
    "AugmentedCorrelationMatrix adjacency FeatureStatistics PartialBCEWithLogitsLoss",
    "training.plugins": "ACMPlugin AGCNPlugin StatisticalNegativesPlugin DriftCompensationPlugin "
    "OnlineReplayPlugin",
    "evaluation": "multilabel_evaluator mean_average_precision_metrics f1_metrics nested_metrics",
    "evaluation.functional": "average_precision mean_average_precision precision_recall_f1 nested_summary",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_can_be_imported(module):
    imported = importlib.import_module(f"avalanche_agcn.{module}")
    for name in PUBLIC[module].split():
        assert callable(getattr(imported, name))


def test_names_of_all_layers_can_be_imported_from_the_package():
    from avalanche_agcn import AGCN, SplitCOCO, multilabel_evaluator

    assert AGCN is importlib.import_module("avalanche_agcn.training").AGCN
    assert SplitCOCO.__module__ == "avalanche_agcn.benchmarks.coco"
    assert "multilabel_evaluator" in dir(avalanche_agcn)
    assert callable(multilabel_evaluator)
    assert avalanche_agcn.ACMPlugin is importlib.import_module("avalanche_agcn.training.plugins").ACMPlugin
    for module, names in PUBLIC.items():
        assert module == "evaluation.functional" or all(
            hasattr(avalanche_agcn, name) for name in names.split()
        )
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = avalanche_agcn.Nothing
