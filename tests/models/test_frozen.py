"""Folded copies and passes of frozen networks, compared with the networks themselves."""

import copy
import threading

import pytest
import torch
from torch import nn

from avalanche_agcn.benchmarks.image_files import paper_transforms, split_transform
from avalanche_agcn.models import Backbone, create_backbone
from avalanche_agcn.models import frozen as module
from avalanche_agcn.models.frozen import PointwiseConv2d, folded_copy, frozen_forward, use_fast_pointwise


class Twice(nn.Module):
    """Uses the output of a convolution twice, which cannot be folded."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean.fill_(1.0)

    def forward(self, x):
        y = self.convolution(x)
        return y + self.norm(y)


def test_folded_copy_gives_the_same_features_and_leaves_the_network_as_it_is():
    network = create_backbone("small", pretrained=True, freeze_batchnorm=True).train()
    before = copy.deepcopy(network.state_dict())
    folded = folded_copy(network)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in folded.modules())
    assert folded.layers[0][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not folded.training
    assert not any(weight.requires_grad for weight in folded.parameters())
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(folded(images), network.eval()(images).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "network",
    [
        Backbone(Twice(), num_features=4),
        Backbone(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), num_features=4),  # of grey images
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),  # not a network of this package
    ],
)
def test_networks_that_cannot_be_folded_are_only_copied(network):
    copied = folded_copy(network)
    first = next(network.parameters())
    images = torch.randn(2, first.shape[1], 16, 16)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in copied.modules())
    torch.testing.assert_close(copied(images), network.eval()(images).detach())


@pytest.mark.parametrize("name", ["efficientnet_lite0", "resnet50", "mobilenet_v3_small"])
def test_pointwise_convolutions_change_no_feature(name):
    """Also for a batch of one image, in another layout and in half precision, and in a copy of the copy."""
    network = create_backbone(name, pretrained=False).eval()
    folded = copy.deepcopy(folded_copy(network))
    n_fast = sum(isinstance(layer, PointwiseConv2d) for layer in folded.modules())
    assert n_fast >= 10
    assert not any(isinstance(layer, PointwiseConv2d) for layer in network.modules())
    images = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = network(images).detach()
    torch.testing.assert_close(folded(images), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    torch.testing.assert_close(folded(images[:1]), folded(images)[:1], rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halved = folded(images)
    torch.testing.assert_close(halved.float(), expected, rtol=0.2, atol=0.1 * expected.abs().max().item())
    compiled = torch.compile(folded, backend="eager")
    torch.testing.assert_close(compiled(images), folded(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(folded.double()(images.double()).float(), expected, rtol=1e-4, atol=1e-4)


def test_only_plain_convolutions_of_one_pixel_are_replaced():
    layers = nn.Sequential(
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 1, bias=False),
        nn.Conv2d(4, 4, 1, stride=2),
        nn.Conv2d(4, 4, 1, padding=1),
        nn.Conv2d(4, 4, 1, groups=4),
        nn.Conv2d(4, 4, 3),
        torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
        Doubled(4, 4, 1),
    )
    maps = torch.randn(2, 4, 9, 9)
    expected = layers(maps).detach()
    use_fast_pointwise(layers)
    assert [isinstance(layer, PointwiseConv2d) for layer in layers] == [True, True, *[False] * 6]
    torch.testing.assert_close(layers(maps).detach(), expected)


class Doubled(nn.Conv2d):
    """Computes something else than a convolution."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_passes_give_the_outputs_of_the_whole_batch_transformed_image_by_image(monkeypatch):
    sizes = []
    network = folded_copy(create_backbone("small", pretrained=True))
    network.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    pixels = torch.randint(0, 256, (7, 3, 40, 40), dtype=torch.uint8)
    transform = paper_transforms(32, mean=network.mean, std=network.std)["eval_transform"]
    to_pixels, to_inputs = split_transform(transform)
    expected = network(torch.stack([transform(image) for image in pixels]))
    monkeypatch.setattr(module, "PIXELS_PER_PASS", 3 * 32 * 32)
    outputs = frozen_forward(network, to_pixels(pixels), to_inputs)
    assert sizes == [7, 3, 3, 1]
    torch.testing.assert_close(outputs, expected)
    monkeypatch.setattr(module, "PIXELS_PER_PASS", 1)  # less than an image
    torch.testing.assert_close(frozen_forward(network, to_inputs(to_pixels(pixels))), expected)


def test_threads_compute_passes_of_their_own_and_change_no_bit(monkeypatch):
    threads = []
    network = folded_copy(create_backbone("small", pretrained=True))
    images = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "PIXELS_PER_PASS", 2 * 32 * 32)
    network.register_forward_hook(
        lambda *parts: threads.append((threading.current_thread(), torch.get_num_threads()))
    )
    outputs = []
    before = torch.get_num_threads()
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            outputs.append(frozen_forward(network, images))
            assert torch.get_num_threads() == n_threads
        assert not any(output.requires_grad for output in outputs)
        assert torch.equal(*outputs)
        alone, others = threads[:4], threads[4:]
        assert {thread for thread, _ in alone} == {threading.main_thread()}
        assert threading.main_thread() not in {thread for thread, _ in others}
        assert {n for _, n in others} == {1}
        with torch.autocast("cpu", dtype=torch.bfloat16):  # its state does not reach other threads
            frozen_forward(network, images)
        assert threads[-1][0] is threading.main_thread()
    finally:
        torch.set_num_threads(before)
