#!/usr/bin/env python3
"""Writes ONNX files of public architectures with random weights, folded as torch's exporter does; usage: make.py FOLDER [--int8] [name...]

--int8 writes FOLDER/NAME.int8.onnx too, quantized by onnxruntime.quantization: images statically (QDQ, int8 per channel), text dynamically.
"""

import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(1)


class Net:
    """A graph under construction; activations are float[N, C, H, W]."""

    def __init__(self, name):
        self.name, self.nodes, self.weights, self.channels = name, [], [], {"x": 3}

    def node(self, op, inputs, channels=None, **attrs):
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        self.channels[out] = self.channels.get(inputs[0]) if channels is None else channels
        return out

    def weight(self, *shape, scale=None):
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        value = rng.normal(0, scale or (2 / fan) ** 0.5, shape).astype(np.float32)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, x, channels, kernel=1, stride=1, groups=1, act="Relu", gain=1.0):
        w = self.weight(channels, self.channels[x] // groups, kernel, kernel, scale=gain * (2 / (self.channels[x] // groups * kernel**2)) ** 0.5)
        b, pad = self.weight(channels, scale=0.1), kernel // 2
        x = self.node("Conv", [x, w, b], channels, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups, dilations=[1, 1])
        return self.act(x, act)

    def act(self, x, act):
        if act == "Relu6":
            low, high = self.constant(0.0), self.constant(6.0)
            return self.node("Clip", [x, low, high])
        return self.node(act, [x]) if act else x

    def constant(self, value):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def head(self, x, classes=1000, hidden=None):
        x = self.node("GlobalAveragePool", [x])
        x = self.node("Flatten", [x], self.channels[x], axis=1)
        if hidden:
            x = self.node("Gemm", [x, self.weight(hidden, self.channels[x]), self.weight(hidden)], hidden, transB=1)
            x = self.act(x, "HardSwish")
        return self.node("Gemm", [x, self.weight(classes, self.channels[x]), self.weight(classes)], classes, transB=1)

    def dense(self, x, rows, columns):
        return self.node("Add", [self.node("MatMul", [x, self.weight(rows, columns, scale=rows**-0.5)]), self.weight(columns, scale=0.1)])

    def list(self, *values):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def save(self, folder, inputs=("x", TensorProto.FLOAT, ["batch", 3, 224, 224]), outputs=("batch", 1000)):
        self.nodes[-1].output[0] = "y"
        x = helper.make_tensor_value_info(*inputs)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(outputs))
        graph = helper.make_graph(self.nodes, self.name, [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, os.path.join(folder, f"{self.name}.onnx"))


def resnet(name, blocks, bottleneck, groups=1, width=64):
    n = Net(name)
    x = n.node("MaxPool", [n.conv("x", 64, 7, 2)], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, count in enumerate(blocks):
        planes = 64 << stage
        for i in range(count):
            stride, skip = (2 if i == 0 and stage else 1), x
            if bottleneck:
                inner = planes * width // 64 * (groups if groups > 1 else 1)
                y = n.conv(n.conv(x, inner), inner, 3, stride, groups)
                y = n.conv(y, planes * 4, act=None, gain=0.3)
            else:
                y = n.conv(n.conv(x, planes, 3, stride), planes, 3, act=None, gain=0.3)
            if i == 0 and (stage or bottleneck):
                skip = n.conv(x, n.channels[y], 1, stride, act=None)
            x = n.node("Relu", [n.node("Add", [y, skip])])
    n.head(x)
    return n


def mobilenet_v2(name):
    n = Net(name)
    x = n.conv("x", 32, 3, 2, act="Relu6")
    for expand, channels, count, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(count):
            inner, s = n.channels[x] * expand, stride if i == 0 else 1
            y = n.conv(x, inner, act="Relu6") if expand > 1 else x
            y = n.conv(y, inner, 3, s, inner, act="Relu6")
            y = n.conv(y, channels, act=None)
            x = n.node("Add", [x, y]) if s == 1 and n.channels[x] == channels else y
    n.head(n.conv(x, 1280, act="Relu6"))
    return n


def mobilenet_v3_large(name):
    n = Net(name)
    x = n.conv("x", 16, 3, 2, act="HardSwish")
    rows = [(3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2), (3, 72, 24, 0, "Relu", 1), (5, 72, 40, 1, "Relu", 2), (5, 120, 40, 1, "Relu", 1), (5, 120, 40, 1, "Relu", 1)]
    rows += [(3, 240, 80, 0, "HardSwish", 2), (3, 200, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1), (3, 480, 112, 1, "HardSwish", 1)]
    rows += [(3, 672, 112, 1, "HardSwish", 1), (5, 672, 160, 1, "HardSwish", 2), (5, 960, 160, 1, "HardSwish", 1), (5, 960, 160, 1, "HardSwish", 1)]
    for kernel, inner, channels, squeeze, act, stride in rows:
        y = n.conv(x, inner, act=act) if inner != n.channels[x] else x
        y = n.conv(y, inner, kernel, stride, inner, act=act)
        if squeeze:
            s = n.conv(n.node("GlobalAveragePool", [y]), max(8, (inner // 4 + 4) // 8 * 8))
            y = n.node("Mul", [y, n.act(n.conv(s, inner, act=None), "HardSigmoid")])
        y = n.conv(y, channels, act=None)
        x = n.node("Add", [x, y]) if stride == 1 and n.channels[x] == channels else y
    n.head(n.conv(x, 960, act="HardSwish"), hidden=1280)
    return n


class Text(Net):
    """An encoder of token numbers, as sentence-transformers/all-MiniLM-L6-v2 without its mask."""

    def save(self, folder):
        super().save(folder, ("ids", TensorProto.INT64, ["batch", 128]), ("batch", 128, 384))


def minilm(name, layers=6, hidden=384, heads=12, vocabulary=30522, length=128):
    n, size = Text(name), hidden // heads
    norm = lambda x: n.node("LayerNormalization", [x, n.weight(hidden, scale=1.0), n.weight(hidden, scale=0.1)], axis=-1, epsilon=1e-12)
    words = n.node("Gather", [n.weight(vocabulary, hidden, scale=1.0), "ids"])
    x = norm(n.node("Add", [words, n.weight(length, hidden, scale=1.0)]))
    split, joined = n.list(0, 0, heads, size), n.list(0, 0, hidden)
    for _ in range(layers):
        q, k, v = (n.node("Reshape", [n.dense(x, hidden, hidden), split]) for _ in range(3))
        q, k, v = n.node("Transpose", [q], perm=[0, 2, 1, 3]), n.node("Transpose", [k], perm=[0, 2, 3, 1]), n.node("Transpose", [v], perm=[0, 2, 1, 3])
        scores = n.node("Div", [n.node("MatMul", [q, k]), n.constant(size**0.5)])
        y = n.node("Transpose", [n.node("MatMul", [n.node("Softmax", [scores], axis=-1), v])], perm=[0, 2, 1, 3])
        x = norm(n.node("Add", [n.dense(n.node("Reshape", [y, joined]), hidden, hidden), x]))
        y = n.dense(x, hidden, 4 * hidden)
        gelu = n.node("Mul", [n.node("Mul", [y, n.node("Add", [n.node("Erf", [n.node("Div", [y, n.constant(2**0.5)])]), n.constant(1.0)])]), n.constant(0.5)])
        x = norm(n.node("Add", [n.dense(gelu, 4 * hidden, hidden), x]))
    return n


def quantize(folder, name):
    """Writes NAME.int8.onnx."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

    class Images(CalibrationDataReader):
        def __init__(self):
            self.left = [{"x": rng.normal(size=(1, 3, 224, 224)).astype(np.float32)} for _ in range(2)]

        def get_next(self):
            return self.left.pop() if self.left else None

    source, target = (os.path.join(folder, f"{name}{ending}.onnx") for ending in ("", ".int8"))
    if name == "minilm":
        return quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    types = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(source, target, Images(), quant_format=QuantFormat.QDQ, per_channel=True, **types)


MODELS = {
    "minilm": minilm,
    "resnet18": lambda name: resnet(name, [2, 2, 2, 2], False),
    "resnet50": lambda name: resnet(name, [3, 4, 6, 3], True),
    "resnext50_32x4d": lambda name: resnet(name, [3, 4, 6, 3], True, 32, 4),
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_large": mobilenet_v3_large,
}

if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    names = [name for name in sys.argv[2:] if name != "--int8"]
    for name in names or MODELS:
        MODELS[name](name).save(folder)
        if "--int8" in sys.argv:
            quantize(folder, name)
        print(name, "written", flush=True)
