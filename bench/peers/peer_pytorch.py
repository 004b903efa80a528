"""PyTorch: channels-last, fused optimizers, autocast for bf16. `--mode compile` runs models through `torch.compile`."""

import measure

a = measure.arguments()  # before torch, which reads the number of threads from the environment

import torch
import torch.nn.functional as F
from torch import nn

PEER = "pytorch-compile" if a.mode == "compile" else "pytorch"


def run():
    torch.set_num_threads(a.threads)
    torch.set_default_device(a.device)
    torch.manual_seed(0)
    if a.workload == "gemm":
        return measure.gemm(a, PEER, gemm)
    elementwise() if a.workload == "elementwise" else model()


def model():
    build = MODELS.get(a.workload.removesuffix("-inference"))
    if build is None:
        raise measure.Skip("not written")
    net, x, classes = build()
    settings = ["fused optimizer"]
    if x.dim() == 4:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        settings.insert(0, "channels_last")
    called = torch.compile(net) if a.mode == "compile" else net

    if a.workload.endswith("-inference"):
        net.eval()
        if a.bf16:  # weights converted once, rather than by autocast in every step
            net, x = net.bfloat16(), x.bfloat16() if x.is_floating_point() else x

        def step():
            with torch.inference_mode():
                return called(x)

        return measure.report(a, PEER, settings[:-1], measure.time_steps(step, a.seconds))

    y = torch.randint(0, classes, (x.numel() if x.dtype == torch.int64 else len(x),))  # one for each token or picture
    optimizer = make_optimizer(net.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.bf16):
            out = called(x)
        loss = F.cross_entropy(out.float().reshape(-1, classes), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    measure.report(a, PEER, settings, measure.time_steps(step, a.seconds))


def make_optimizer(weights):
    if a.workload == "resnet50":
        return torch.optim.SGD(weights, 0.1, momentum=0.9, fused=True)
    if a.workload == "gpt2-small":
        return torch.optim.AdamW(weights, 3e-4, weight_decay=0.1, fused=True)
    return torch.optim.Adam(weights, 1e-3, fused=True)


# Models. Each gives the module, its input and the number of classes.


def activation():
    return {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}[a.activation]()


def fashion_cnn():
    side = (28 - a.kernel + 1) // 2
    pool = nn.MaxPool2d(2) if a.pool == "max" else nn.AvgPool2d(2)
    net = nn.Sequential(
        nn.Conv2d(1, a.filters, a.kernel), pool, activation(), nn.Flatten(), nn.Linear(side * side * a.filters, 10)
    )
    return net, torch.rand(a.batch, 1, 28, 28), 10


def mlp():
    net = nn.Sequential(nn.Linear(784, a.units), activation(), nn.Dropout(0.2), nn.Linear(a.units, 10))
    return net, torch.rand(a.batch, 784), 10


def cifar_cnn():
    layers, channels = [], 3
    for filters in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10)), torch.rand(a.batch, 3, 32, 32), 10


def four_convolutions():
    layers, channels = [], 3
    for filters in (64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 64, 10)), torch.rand(a.batch, 3, 32, 32), 10


class MeanOf(nn.Module):
    """The mean over some dimensions: global average pooling."""

    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.mean(self.dims)


def pictures():
    return torch.rand(a.batch, 3, 32, 32)


def transposed_convolutions():
    layers, channels = [nn.Conv2d(3, 64, 4, 4), nn.ReLU()], 64
    for filters in (64, 32, 16):
        layers += [nn.ConvTranspose2d(channels, filters, 4, 2, 1), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, MeanOf(2, 3), nn.Linear(16, 10)), pictures(), 10


def separable_convolutions():
    layers = [nn.Conv2d(3, 128, 3, 2, 1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(128, 128, 3, padding=1, groups=128, bias=False), nn.Conv2d(128, 128, 1), nn.ReLU()]
    return nn.Sequential(*layers, MeanOf(2, 3), nn.Linear(128, 10)), pictures(), 10


def convolutions_1d():
    layers, channels = [], 3
    for padding in ((2, 2), (2, 2), (4, 0)):
        layers += [nn.ConstantPad1d(padding, 0.0), nn.Conv1d(channels, 64, 5), nn.ReLU()]
        channels = 64
    return nn.Sequential(*layers, MeanOf(2), nn.Linear(64, 10)), torch.rand(a.batch, 3, 1024), 10


def group_normalization():
    layers, channels = [], 3
    for _ in range(3):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU()]
        channels = 64
    return nn.Sequential(*layers, MeanOf(2, 3), nn.Linear(64, 10)), pictures(), 10


def rms_normalization():
    layers, width = [], 48
    for _ in range(4):
        layers += [nn.Linear(width, 256), nn.RMSNorm(256), nn.GELU()]
        width = 256
    return nn.Sequential(*layers, MeanOf(1), nn.Linear(256, 10)), torch.rand(a.batch, 64, 48), 10


def resnet50():
    def conv(i, o, kernel, stride=1):
        return [nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o)]

    class Bottleneck(nn.Module):
        def __init__(self, i, width, stride):
            super().__init__()
            self.main = nn.Sequential(
                *conv(i, width, 1, stride), nn.ReLU(), *conv(width, width, 3), nn.ReLU(), *conv(width, 4 * width, 1)
            )
            same = i == 4 * width and stride == 1
            self.side = nn.Identity() if same else nn.Sequential(*conv(i, 4 * width, 1, stride))

        def forward(self, x):
            return torch.relu(self.main(x) + self.side(x))

    layers, channels = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in measure.RESNET_STAGES:
        for i in range(count):
            layers.append(Bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return net, torch.rand(a.batch, 3, 224, 224), 1000


def gpt2_small():
    wide, heads = measure.WIDTH, measure.HEADS

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
            self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
            self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

        def forward(self, x):
            b, t, _ = x.shape
            qkv = self.qkv(self.norm1(x)).view(b, t, 3, heads, wide // heads).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, wide))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(measure.VOCABULARY, wide)
            self.places = nn.Embedding(measure.TOKENS, wide)
            nn.init.normal_(self.words.weight, std=0.02)
            nn.init.normal_(self.places.weight, std=0.02)
            self.blocks = nn.Sequential(*(Block() for _ in range(measure.BLOCKS)))
            self.norm = nn.LayerNorm(wide)

        def forward(self, tokens):
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            return F.linear(self.norm(self.blocks(x)), self.words.weight)

    return Gpt2(), torch.randint(0, measure.VOCABULARY, (a.batch, measure.TOKENS)), measure.VOCABULARY


def lstm():
    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            units, vocabulary = measure.LSTM_UNITS, measure.LSTM_VOCABULARY
            self.words = nn.Embedding(vocabulary, units)
            self.layers = nn.LSTM(units, units, num_layers=2, batch_first=True)
            self.head = nn.Linear(units, vocabulary)

        def forward(self, tokens):
            return self.head(self.layers(self.words(tokens))[0])

    tokens = torch.randint(0, measure.LSTM_VOCABULARY, (a.batch, measure.LSTM_TOKENS))
    return Lstm(), tokens, measure.LSTM_VOCABULARY


MODELS = measure.by_name(
    *(fashion_cnn, mlp, cifar_cnn, four_convolutions, resnet50, gpt2_small, lstm),
    *(transposed_convolutions, separable_convolutions, convolutions_1d, group_normalization, rms_normalization),
)


# Kernels.


def gemm(n, precision):
    if precision == "int8":
        x, y = (torch.randint(-100, 100, (n, n), dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(x, y)
    x, y = (torch.randn(n, n).to(getattr(torch, precision)) for _ in range(2))
    return lambda: x @ y


def elementwise():
    dtype = torch.bfloat16 if a.bf16 else torch.float32
    x = torch.randn(measure.ROWS, measure.COLUMNS).to(dtype)
    scale, shift = torch.ones(measure.COLUMNS, dtype=dtype), torch.zeros(measure.COLUMNS, dtype=dtype)
    weight = torch.nn.Parameter(torch.randn(measure.WEIGHTS))
    weight.grad = torch.randn(measure.WEIGHTS)
    adam = torch.optim.Adam([weight], fused=True)

    def forward(f):
        f = torch.compile(f) if a.mode == "compile" else f
        return lambda: f(x)

    with torch.no_grad():
        steps = {
            "adam": adam.step,
            "gelu": forward(F.gelu),
            "softmax": forward(lambda x: F.softmax(x, -1)),
            "layernorm": forward(lambda x: F.layer_norm(x, (measure.COLUMNS,), scale, shift)),
        }
        measure.elementwise(a, PEER, steps)


if __name__ == "__main__":
    measure.main(a, PEER, run)
