"""The models that profiles are made of: four image classifiers, an LSTM translator and a transformer, in plain torch.

Written from the papers: AlexNet (Krizhevsky, 2014, one tower), VGG-16 (Simonyan and Zisserman, 2015), ResNet-18 (He et
al., 2016), SqueezeNet 1.0 (Iandola et al., 2016), GNMT (Wu et al., 2016) and a GPT (Radford et al., 2019).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU()]


def alexnet() -> nn.Module:
    """AlexNet for 224 x 224 images, 1000 classes."""
    return nn.Sequential(
        *_conv(3, 64, 11, 4, 2),
        nn.MaxPool2d(3, 2),
        *_conv(64, 192, 5, padding=2),
        nn.MaxPool2d(3, 2),
        *_conv(192, 384, 3, padding=1),
        *_conv(384, 256, 3, padding=1),
        *_conv(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        *(nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU()),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, 1000),
    )


def vgg16() -> nn.Module:
    """VGG-16 for 224 x 224 images, 1000 classes."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += _conv(channels, width, 3, padding=1)
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()),
        nn.Linear(4096, 1000),
    )


class _Residual(nn.Module):
    """Two 3 x 3 convolutions, and what went in added to them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.last_relu = nn.ReLU()
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        x = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(x)
        return self.last_relu(y + x)


def resnet18() -> nn.Module:
    """ResNet-18 for 224 x 224 images, 1000 classes."""
    blocks: list[nn.Module] = []
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_Residual(channels, width, stride), _Residual(width, width, 1)]
        channels = width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


class _Fire(nn.Module):
    """Squeeze to few channels, expand by 1 x 1 and 3 x 3 convolutions side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*_conv(inputs, squeezed, 1))
        self.narrow = nn.Sequential(*_conv(squeezed, expanded, 1))
        self.wide = nn.Sequential(*_conv(squeezed, expanded, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat((self.narrow(x), self.wide(x)), 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.0 for 224 x 224 images, 1000 classes."""
    return nn.Sequential(
        *_conv(3, 96, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *(_Fire(96, 16, 64), _Fire(128, 16, 64), _Fire(128, 32, 128)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *(_Fire(256, 32, 128), _Fire(256, 48, 192), _Fire(384, 48, 192), _Fire(384, 64, 256)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _Fire(512, 64, 256),
        nn.Dropout(),
        *_conv(512, 1000, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Recurrent(nn.Module):
    """An LSTM layer over a sequence (batch, time, channels), of which all outputs count and the state does not."""

    def __init__(self, inputs: int, outputs: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.cell = nn.LSTM(inputs, outputs, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(x)[0]
        return y


class Attention(nn.Module):
    """What each position of ``x`` reads from ``memory``, by scaled dot products in ``heads`` parts."""

    def __init__(self, width: int, heads: int = 1, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)


class _Translator(nn.Module):
    """Four encoder layers, the first one in both directions, and four decoder layers that attend to them."""

    def __init__(self, words: int = 32_000, width: int = 1024) -> None:
        super().__init__()
        self.source_words, self.target_words = nn.Embedding(words, width), nn.Embedding(words, width)
        self.drop = nn.Dropout(0.2)
        self.both_ways = Recurrent(width, width // 2, bidirectional=True)
        self.encoder = nn.ModuleList(Recurrent(width, width) for _ in range(3))
        self.first_decoder = Recurrent(width, width)
        self.attention = Attention(width)
        self.decoder = nn.ModuleList(Recurrent(2 * width, width) for _ in range(3))
        self.classifier = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.both_ways(self.drop(self.source_words(source)))
        for i, layer in enumerate(self.encoder):
            read = layer(self.drop(memory))
            memory = read + memory if i else read
        x = self.first_decoder(self.drop(self.target_words(target)))
        context = self.attention(x, memory)
        for i, layer in enumerate(self.decoder):
            read = layer(torch.cat((self.drop(x), context), -1))
            x = read + x if i else read
        return self.classifier(x)


class _Layer(nn.Module):
    """A transformer layer: attention and two linear maps, each on the normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.map_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=True)
        self.out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.out(self.attention(y, y))
        return x + self.narrow(functional.gelu(self.widen(self.map_norm(x))))


class _Transformer(nn.Module):
    def __init__(
        self, words: int = 50_257, width: int = 768, layers: int = 12, heads: int = 12, length: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, words, bias=False)

    def forward(self, text: Tensor, place: Tensor) -> Tensor:
        x = self.words(text) + self.places(place)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x))


@dataclass(frozen=True)
class Model:
    """A model, the usual batch size, and the inputs of one step for a batch size."""

    make: Callable[[], nn.Module]
    batch: int
    inputs: Callable[[int], tuple[Tensor, ...]]


def _images(batch: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, 3, 224, 224),)


def _sentences(batch: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, 30, dtype=torch.long), torch.zeros(batch, 30, dtype=torch.long))


def _texts(batch: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, 1024, dtype=torch.long), torch.arange(1024).expand(batch, 1024).contiguous())


MODELS = {
    "alexnet": Model(alexnet, 256, _images),
    "vgg16": Model(vgg16, 64, _images),
    "resnet18": Model(resnet18, 256, _images),
    "squeezenet": Model(squeezenet, 256, _images),
    "gnmt": Model(_Translator, 128, _sentences),
    "gpt": Model(_Transformer, 8, _texts),
}
# Those whose profiles are shipped: the jobs where no others are given.
SHIPPED = ("alexnet", "vgg16", "resnet18", "squeezenet", "gnmt")
