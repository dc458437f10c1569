"""The models of synthetic_benchmark.py by name, each with one batch of random inputs for it."""

import argparse

import encoder
import resnet
import torch
import vgg

SEQUENCES = ("bert-large",)  # models of tokens rather than of images


def make(name: str) -> torch.nn.Module:
    """One of our own, or torchvision's of that name; where torchvision is missing, our own ResNets and VGG-16."""
    if name == "bert-large":
        return encoder.Encoder()
    try:
        import torchvision
    except ImportError:
        return vgg.Vgg16() if name == "vgg16" else resnet.make(name)
    return torchvision.models.get_model(name)


def batch(arguments: argparse.Namespace, place: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels: images (N, 3, H, W) of 1000 classes, or tokens (N, length), whose class is a token."""
    count = arguments.batch_size
    if arguments.model in SEQUENCES:
        shape = (count, arguments.sequence_length)
        tokens = torch.randint(encoder.TOKENS, shape, device=place)
        return tokens, torch.randint(encoder.TOKENS, (count,), device=place)
    images = torch.randn(count, 3, arguments.image_size, arguments.image_size, device=place)
    if arguments.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    return images, torch.randint(1000, (count,), device=place)
