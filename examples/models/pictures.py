"""VGG19 and ResNet152 on pictures.

Simonyan and Zisserman (ICLR 2015), configuration E: SGD with 0.01, momentum of 0.9, weight decay of
5e-4, dropout before each of the last two layers. He et al. (CVPR 2016), 152 layers of bottlenecks:
SGD with 0.1 for 256 pictures, and so 0.025 for the 64 of four ranks here (Goyal et al., 2017), a
tenth of it at first, as there for the deepest network on CIFAR-10 (section 4.2), momentum of 0.9,
weight decay of 1e-4, the last normalization of a bottleneck as the others. Rates fall to a tenth
when a half, and when three quarters of the steps are done.

By default pictures of CIFAR-10 (32 x 32) and layers of a half or a quarter of their width; --full:
of ImageNet (224 x 224, 1000 classes).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sources
import torch
from task import Published, Task
from torch import Tensor, nn

CLASSES = 10
EACH = {"train": 320, "test": 50}  # pictures of a class
RECORD = 1 + 3 * 32 * 32  # bytes of CIFAR-10's binary version


class Vgg19(nn.Module):
    BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))

    def __init__(self, side: int, classes: int, width: float) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        channels = 3
        for wide, layers in self.BLOCKS:
            for _ in range(layers):
                following = max(int(wide * width), 1)
                parts += [nn.Conv2d(channels, following, 3, padding=1), nn.ReLU()]
                channels = following
            parts.append(nn.MaxPool2d(2))
        hidden = max(int(4096 * width), 1)
        self.layers = nn.Sequential(
            *parts,
            *(nn.Flatten(), nn.Linear(channels * (side // 32) ** 2, hidden), nn.ReLU()),
            *(nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout()),
            nn.Linear(hidden, classes),
        )
        _draw(self)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layers(pictures)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            convolution = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


class ResNet152(nn.Module):
    BLOCKS = (3, 8, 36, 3)

    def __init__(self, side: int, classes: int, width: float, blocks: tuple[int, ...] = BLOCKS):
        super().__init__()
        channels = max(int(64 * width), 1)
        if side < 64:  # as He et al. begin on CIFAR
            parts = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)]
            parts += [nn.ReLU(), nn.MaxPool2d(2)]
        else:
            parts = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)]
            parts += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = channels
        for stage, count in enumerate(blocks):
            for i in range(count):
                wide = channels << stage
                parts.append(Bottleneck(inputs, wide, 2 if stage and not i else 1))
                inputs = 4 * wide
        self.layers = nn.Sequential(
            *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
        )
        _draw(self)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layers(pictures)


def _draw(model: nn.Module) -> None:
    """He et al. (ICCV 2015)."""
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class Pictures(Task):
    batch_size, steps = 16, 100
    width = 0.5

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(data, size, rank, ranks)
        self.side, self.classes = (224, 1000) if size == "full" else (32, CLASSES)
        if size == "tiny":
            self.width, self.batch_size = 1 / 32, 4
        elif size == "full":
            self.width = 1.0
        there = {"tiny": lambda: False, "full": self._imagenet, "default": self._cifar}[size]()
        if not there:
            self.split(*self._drawn())

    def _imagenet(self) -> bool:
        """Whether there are pictures. Ranks share out the same files, and each reads its own."""
        files = sources.files(self.data, "imagenet", "n*.JPEG")
        names = sorted({_class_of(file) for file in files})
        files = files[: 200 * self.ranks]
        if not files:
            return False
        self.source = f"{len(files):,} pictures of ImageNet"
        targets = torch.tensor([names.index(_class_of(file)) for file in files])
        self.split(torch.arange(len(files)), targets, max(min(20, len(files) // 5), 1))

        def read(numbers: Tensor) -> Tensor:
            return torch.stack([_picture(files[number], self.side) for number in numbers])

        self.inputs = read(self.inputs)
        self.held_out = read(self.held_out[0]), self.held_out[1]
        return True

    def _cifar(self) -> bool:
        """Whether there are pictures. The test's are held out."""
        train = self._part("train", "data_batch*.bin")
        test = self._part("test", "test_batch.bin")
        if train is None or test is None:
            return False
        self.source = f"{len(train[0]) + len(test[0]):,} pictures of CIFAR-10"
        self.split(*train, test)
        return True

    def _part(self, part: str, pattern: str) -> tuple[Tensor, Tensor] | None:
        binaries = sources.files(self.data, "cifar-10", pattern)
        if binaries:
            raw = np.frombuffer(binaries[0].read_bytes(), np.uint8).reshape(-1, RECORD)
            raw = raw[: EACH[part] * CLASSES]
            pictures = torch.from_numpy(raw[:, 1:].copy()).view(-1, 3, 32, 32)
            return _normal(pictures), torch.from_numpy(raw[:, 0].astype(np.int64))
        folders = sorted((self.data or Path()).glob(f"cifar-10/{part}/*"))
        files = [file for folder in folders for file in sorted(folder.iterdir())[: EACH[part]]]
        if not files:
            return None
        labels = [folders.index(file.parent) for file in files]
        return torch.stack([_picture(file, 32) for file in files]), torch.tensor(labels)

    def _drawn(self) -> tuple[Tensor, Tensor, int]:
        self.source = "drawn: a pattern for each class, and noise"
        generator = torch.Generator().manual_seed(1)
        count = 64 if self.size in ("tiny", "full") else 3200
        targets = torch.randint(self.classes, (count,), generator=generator)
        shape = (3, self.side, self.side)
        patterns = torch.randn((min(self.classes, CLASSES), *shape), generator=generator)
        noise = torch.randn((count, *shape), generator=generator)
        return patterns[targets % CLASSES] + noise, targets, count // 5

    def rate(self, done: float) -> float:
        return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


class Vgg19Pictures(Pictures):
    published = Published(32, "ImageNet")

    def model(self) -> nn.Module:
        return Vgg19(self.side, self.classes, self.width)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)


class ResNet152Pictures(Pictures):
    published = Published(21, "ImageNet")
    width = 0.25

    def model(self) -> nn.Module:
        blocks = (1, 1, 1, 1) if self.size == "tiny" else ResNet152.BLOCKS
        return ResNet152(self.side, self.classes, self.width, blocks)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.025, momentum=0.9, weight_decay=1e-4)

    def rate(self, done: float) -> float:
        return 0.1 if done < 0.1 else super().rate(done)


def _class_of(file: Path) -> str:
    return file.name.split("_")[0]


def _picture(file: Path, side: int) -> Tensor:
    from PIL import Image  # matplotlib brings it

    with Image.open(file) as image:
        image = image.convert("RGB")
        if image.size != (side, side):
            image = image.resize((side, side))
        return _normal(torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1))


def _normal(pictures: Tensor) -> Tensor:
    return pictures.float() / 64 - 2
