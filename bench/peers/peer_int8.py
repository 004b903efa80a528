#!/usr/bin/env python3
"""Quantised predictions by a peer: milliseconds a batch, the median of a run, as one JSON object.

    peer_int8.py onnxruntime FILE.onnx [--batch 16]     a file of `systole export --format onnx --int8`
    peer_int8.py litert FILE.tflite                     a file of `systole quantize` (its batch is 1), by XNNPACK
    peer_int8.py pytorch resnet50|mobilenet|mlp         torch.ao's x86 (oneDNN) or the backend that --backend names
    peer_int8.py pytorch characters|gpt2-small          dense layers by torch.ao's quantize_dynamic, attention in floats

--threads (2) and --seconds (5) are of all. Work is finished when the clock stops: each call returns what it computed.
"""

import argparse
import json
import statistics
import time


def timed(call, seconds):
    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 7:
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return times


def onnxruntime(args):
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(args.what, options, providers=["CPUExecutionProvider"])
    random, feed = numpy.random.default_rng(1), {}
    for x in session.get_inputs():
        shape = [d if isinstance(d, int) else args.batch for d in x.shape]
        feed[x.name] = {
            "tensor(float)": lambda s: random.uniform(-1, 1, s).astype(numpy.float32),
            "tensor(int8)": lambda s: random.integers(-128, 128, s).astype(numpy.int8),
            "tensor(uint8)": lambda s: random.integers(0, 256, s).astype(numpy.uint8),
            "tensor(int32)": lambda s: random.integers(0, 64, s).astype(numpy.int32),
        }[x.type](shape)
    return timed(lambda: session.run(None, feed), args.seconds)


def litert(args):
    import numpy
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(args.what, num_threads=args.threads)
    interpreter.allocate_tensors()
    random = numpy.random.default_rng(1)
    for x in interpreter.get_input_details():
        high = 64 if x["dtype"] is numpy.int32 else 128
        drawn = random.integers(0 if high == 64 else -128, high, x["shape"])
        interpreter.set_tensor(x["index"], drawn.astype(x["dtype"]))
    return timed(interpreter.invoke, args.seconds)


def pytorch(args):
    import torch
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    torch.set_num_threads(args.threads)
    torch.backends.quantized.engine = args.backend
    if args.what in GPTS:
        return timed_gpt(args)
    if args.what == "mlp":
        layers = [torch.nn.Flatten(), torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)]
        model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(1024, 10))
        x = torch.rand(args.batch, 784)
    else:
        import torchvision

        model = {"resnet50": torchvision.models.resnet50, "mobilenet": mobilenet}[args.what]()
        x = torch.rand(args.batch, 3, 224, 224)
    model = model.eval()
    if not args.float:
        prepared = prepare_fx(model, get_default_qconfig_mapping(args.backend), (x,))
        with torch.no_grad():
            prepared(x)
        model = convert_fx(prepared)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    with torch.inference_mode():
        model = torch.jit.freeze(torch.jit.trace(model, x))
        return timed(lambda: model(x), args.seconds)


# Layers, width, heads, places and vocabulary of language models.
GPTS = {"characters": (6, 256, 4, 256, 65), "gpt2-small": (12, 768, 12, 256, 50257)}


def timed_gpt(args):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    layers, width, heads, places, vocabulary = GPTS[args.what]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = Net().eval()
    if not args.float:
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    ids = torch.randint(0, vocabulary, (args.batch, places))
    with torch.inference_mode():
        return timed(lambda: model(ids), args.seconds)


def mobilenet():
    """MobileNet of 2017, which torchvision does not have."""
    import torch.nn as nn

    def conv(c, f, stride, groups=1, size=3):
        own = nn.Conv2d(c, f, size, stride, size // 2, groups=groups, bias=False)
        return [own, nn.BatchNorm2d(f), nn.ReLU()]

    layers, c = conv(3, 32, 2), 32
    for f, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + 5 * [(512, 1)] + [(1024, 2), (1024, 1)]:
        layers += conv(c, c, stride, c) + conv(c, f, 1, 1, 1)
        c = f
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=["onnxruntime", "litert", "pytorch"])
    parser.add_argument("what")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--backend", default="x86", help="of PyTorch: x86, onednn, fbgemm")
    parser.add_argument("--float", action="store_true", help="PyTorch without quantisation")
    args = parser.parse_args()
    times = globals()[args.peer](args)
    print(json.dumps({"median_ms": statistics.median(times), "best_ms": min(times), "runs": len(times)}))


if __name__ == "__main__":
    main()
