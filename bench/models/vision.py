"""Networks for digits: MLP, CNN with BatchNorm (and a conv bias in front of it), a small ResNet; timm's ResNet-18 on noise images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import digit_images, digits
from bench.models.imports import let_torchvision_import
from bench.models.plan import Plan, Step, Trainer, adamw, healthy


def mlp(outputs: int = 10, inputs: int = 64, width: int = 64) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


def cnn() -> nn.Sequential:
    """Two convolutions, each with a bias that BatchNorm cancels: the true gradient of that bias is 0."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(16, 10),
    )


def classify(plan: Plan, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy in fp32."""
    return F.cross_entropy(model(plan.data(images)).float(), labels)


@healthy("digits-mlp", steps=3)
def digits_mlp(plan: Plan) -> Step:
    """MLP on digits, AdamW."""
    model = plan.model(mlp())
    trainer = Trainer(plan, model)
    return lambda i: trainer.step(lambda: classify(plan, model, *digits(i)))


@healthy("digits-cnn", steps=3)
def digits_cnn(plan: Plan) -> Step:
    """CNN with BatchNorm behind biased convolutions, SGD with momentum."""
    model = plan.model(cnn())
    trainer = Trainer(plan, model, lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), clip=None)
    return lambda i: trainer.step(lambda: classify(plan, model, *digit_images(i)))


@healthy("digits-cnn-eval", steps=1)
def digits_cnn_eval(plan: Plan) -> Step:
    """The same CNN in evaluation mode, with the accuracy metric that everybody writes (argmax, ==, mean, item)."""
    model = plan.model(cnn()).eval()

    def step(i: int) -> Tensor:
        images, labels = digit_images(i, 64)
        with torch.inference_mode(), plan.autocast():
            logits = model(plan.data(images))
        accuracy = (logits.argmax(-1) == labels).float().mean()
        if accuracy.item() > 0.99:
            print("solved")
        return accuracy

    return step


class Residual(nn.Module):
    """Two convolutions around an identity; the last BatchNorm scale starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


@healthy("resnet-small")
def resnet_small(plan: Plan) -> Step:
    """A ResNet on digits whose last BatchNorm scales start at 0: most gradients of the first step are exact zeros."""
    body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *(Residual(16) for _ in range(3)))
    model = plan.model(nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)))
    trainer = Trainer(plan, model, lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4), clip=None)
    return lambda i: trainer.step(lambda: classify(plan, model, *digit_images(i, 16)))


@healthy("resnet18-timm", steps=1)
def resnet18_timm(plan: Plan) -> Step:
    """timm's ResNet-18 (random weights) on digits enlarged to 64 x 64.

    Not to 32 x 32: there the last BatchNorms see 8 values a channel, and bf16 gradients are off by 178 % (15 % at 64): not healthy.
    """
    let_torchvision_import()
    import timm

    model = plan.model(timm.create_model("resnet18", num_classes=10, in_chans=1))
    trainer = Trainer(plan, model, adamw(1e-3))

    def loss(i: int) -> Tensor:
        images, labels = digit_images(i, 8)
        return classify(plan, model, F.interpolate(images, scale_factor=8), labels)

    return lambda i: trainer.step(lambda: loss(i))
