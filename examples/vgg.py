"""VGG-16 for ImageNet-sized images, with torchvision's layer and parameter names.

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition (2014), configuration D. Its
138,357,544 parameters in 32 tensors, most of them in one layer, weigh on the wire more than on the processor.
"""

import torch
from torch import Tensor, nn

WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: half the resolution


class Vgg16(nn.Module):
    """Images (N, 3, H, W), H and W at least 32, to logits (N, classes)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            if width == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
