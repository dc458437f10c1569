"""The networks of resnet.py in Keras 3: the same layers, the same number of parameters, images (N, H, W, 3)."""

from __future__ import annotations

from typing import Any

import keras

LAYERS = {
    "resnet18": (1, (2, 2, 2, 2)),
    "resnet34": (1, (3, 4, 6, 3)),
    "resnet50": (4, (3, 4, 6, 3)),
    "resnet101": (4, (3, 4, 23, 3)),
    "resnet152": (4, (3, 8, 36, 3)),
}  # (channels of a block's output for each of its 3x3 convolution, blocks of each layer)


def convolution(x: Any, outputs: int, kernel: int, stride: int = 1) -> Any:
    if kernel > 1:
        x = keras.layers.ZeroPadding2D(kernel // 2)(x)
    he = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    return keras.layers.Conv2D(outputs, kernel, stride, use_bias=False, kernel_initializer=he)(x)


def normal(x: Any, relu: bool = True) -> Any:
    x = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
    return keras.layers.ReLU()(x) if relu else x


def block(x: Any, width: int, stride: int, expansion: int) -> Any:
    """Two 3x3 convolutions, or one between two 1x1 ones that narrow and widen, beside a shortcut."""
    shortcut, outputs = x, width * expansion
    if stride != 1 or x.shape[-1] != outputs:
        shortcut = normal(convolution(x, outputs, 1, stride), relu=False)
    if expansion == 1:
        x = normal(convolution(x, width, 3, stride))
        x = normal(convolution(x, width, 3), relu=False)
    else:
        x = normal(convolution(x, width, 1))
        x = normal(convolution(x, width, 3, stride))
        x = normal(convolution(x, outputs, 1), relu=False)
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def make(name: str, image_size: int, classes: int = 1000) -> keras.Model:
    """The network called `name`, from images to logits; ValueError for a name that is not in LAYERS."""
    if name not in LAYERS:
        raise ValueError(f"unknown model {name!r}; there are {', '.join(LAYERS)}")
    expansion, counts = LAYERS[name]
    images = keras.Input((image_size, image_size, 3))
    x = normal(convolution(images, 64, 7, 2))
    x = keras.layers.ZeroPadding2D(1)(x)
    x = keras.layers.MaxPooling2D(3, 2)(x)
    for layer, count in enumerate(counts):
        for index in range(count):
            x = block(x, 64 << layer, 2 if layer and not index else 1, expansion)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes)(x), name=name)
