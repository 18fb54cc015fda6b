import pytest
from avalanche.evaluation import metrics as stock
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator

from avalanche_agcn.evaluation import f1_metrics, mean_average_precision_metrics, multilabel_evaluator
from avalanche_agcn.evaluation.guard import refuse_stock_accuracy


@pytest.mark.parametrize(
    ("metrics", "instead"),
    [
        (stock.accuracy_metrics(epoch=True), "mean_average_precision_metrics"),
        (stock.topk_acc_metrics(stream=True), "top_k=3"),
        (stock.class_accuracy_metrics(stream=True), "per_class=True"),
        (stock.confusion_matrix_metrics(num_classes=3, stream=True), "per_class=True"),
        (stock.forgetting_metrics(experience=True), "forgetting_metrics"),
        (stock.bwt_metrics(stream=True), "forgetting_metrics"),
        (stock.forward_transfer_metrics(stream=True), "forgetting_metrics"),
        (stock.amca_metrics(), "mean_average_precision_metrics"),
    ],
)
def test_metrics_that_take_an_argmax_are_refused_with_the_fix(metrics, instead):
    with pytest.raises(ValueError, match="argmax of multi-hot targets") as error:
        refuse_stock_accuracy(EvaluationPlugin(metrics, loggers=[]))
    assert instead in str(error.value)
    assert "multilabel_evaluator()" in str(error.value)


def test_default_evaluator_is_refused():
    with pytest.raises(ValueError, match="Top1_Acc_Epoch"):
        refuse_stock_accuracy(default_evaluator())


def test_own_metrics_and_those_that_do_not_look_at_labels_pass():
    evaluator = multilabel_evaluator(
        stock.loss_metrics(epoch=True), stock.timing_metrics(epoch=True), loggers=[]
    )
    refuse_stock_accuracy(evaluator)
    assert {"Loss_Epoch", "Time_Epoch"} <= {str(metric) for metric in evaluator.metrics}


def test_multilabel_evaluator_refuses_accuracy():
    with pytest.raises(ValueError, match="argmax"):
        multilabel_evaluator(stock.accuracy_metrics(stream=True), loggers=[])


@pytest.mark.parametrize("ours", [mean_average_precision_metrics, f1_metrics])
@pytest.mark.parametrize("phase", ["train", "eval"])
def test_accuracy_beside_our_metrics_stops_training_and_evaluation(benchmark, make_strategy, ours, phase):
    evaluator = EvaluationPlugin(stock.accuracy_metrics(stream=True), ours(stream=True), loggers=[])
    strategy = make_strategy(evaluator=evaluator)
    with pytest.raises(ValueError, match="takes the argmax of multi-hot targets"):
        getattr(strategy, phase)(benchmark.test_stream[0])
