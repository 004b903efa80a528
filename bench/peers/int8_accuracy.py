#!/usr/bin/env python3
"""What eight bits cost a trained model of ours in PyTorch and in Keras: accuracy in floats and in int8, as one JSON object a line.

    systole data convert RUN.toml test --part test --decode; systole export RUN --format keras --out model.keras
    int8_accuracy.py data test-00000-of-00001.tfrecord test.npz           TFRecord to arrays (needs TensorFlow); the training part likewise
    int8_accuracy.py keras model.keras test.npz --out model.npz           Model.quantize("int8"); writes layers and weights for PyTorch, too
    int8_accuracy.py pytorch model.npz test.npz --train train.npz         torch.ao, FX: ranges from 500 pictures, weights by channel
    int8_accuracy.py pytorch model.npz test.npz --train train.npz --qat 3 torch.ao, trained for eight bits for three epochs

    systole export RUN --format safetensors --out gpt.safetensors
    int8_accuracy.py text-pytorch gpt.safetensors input.txt               dense layers in int8, static and dynamic; all else in floats
    int8_accuracy.py text-keras gpt.safetensors input.txt                 dense layers and embeddings in int8

Pictures are brought to --size by bilinear interpolation to whole numbers, and multiplied by --scale. "int8" of an answer counts the layers that compute in
eight bits, "float" those with weights that do not. Text: one token for each character of input.txt, in order; the last tenth is for tests.
"""

import argparse
import json
import os
from collections import Counter

import numpy as np


def answer(**values):
    print(json.dumps(values), flush=True)


def share(hits, of):
    return round(100 * float(hits) / of, 3)


def pictures(path, limit=None):
    with np.load(path) as file:
        return file["image"][:limit], file["label"][:limit]


# TFRecord files of `systole data convert`.


def data(args):
    import tensorflow as tf

    features = {"image": tf.io.VarLenFeature(tf.int64), "label": tf.io.FixedLenFeature([], tf.int64)}
    images, labels = [], []
    shape = open(args.file.rsplit("-", 3)[0] + ".features").read()
    shape = [int(n) for n in shape[shape.index("[") + 1 : shape.index("]")].split(",")]
    for record in tf.data.TFRecordDataset(args.file):
        example = tf.train.Example.FromString(record.numpy()).features.feature
        image = example["image"]
        raw = image.bytes_list.value
        values = np.frombuffer(raw[0], np.uint8) if raw else np.array(image.int64_list.value, np.uint8)
        images.append(values.reshape(shape))
        labels.append(example["label"].int64_list.value[0])
    np.savez(args.out, image=np.stack(images), label=np.array(labels, np.int64))
    answer(pictures=len(labels), shape=shape)


# Keras.


def keras(args):
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    model = keras.models.load_model(args.model)
    if args.out:
        unpack(model, args.out)
    images, labels = pictures(args.test, args.limit)
    floats = classes(model, images, args)
    model.quantize("int8")
    inner = [l for l in model._flatten_layers() if l.weights and not list(l._layers)]
    in_int8 = Counter(type(l).__name__ for l in inner if getattr(l, "quantization_mode", None) == "int8")
    kept = [l for l in inner if getattr(l, "quantization_mode", None) is None]
    int8 = classes(model, images, args) if in_int8 else floats
    answer(
        peer=f"keras {keras.__version__}",
        how='quantize("int8")',
        float=share((floats == labels).sum(), len(labels)),
        quantised=share((int8 == labels).sum(), len(labels)),
        same=share((int8 == floats).sum(), len(labels)),
        layers={"int8": in_int8, "float": Counter(type(l).__name__ for l in kept)},
    )


def classes(model, images, args):
    import tensorflow as tf

    answers = []
    for i in range(0, len(images), 500):
        x = images[i : i + 500].astype(np.float32)
        if args.size:
            x = np.rint(tf.image.resize(x, [args.size, args.size], antialias=False).numpy())
        x = x * args.scale
        answers.append(np.asarray(model(x, training=False)).argmax(-1))
    return np.concatenate(answers)


def unpack(model, out):
    """Layers as [name, class, inputs, arguments], and their weights as NAME/0, NAME/1, …"""
    layers, previous = [], None
    for layer in model.layers:
        kind = type(layer).__name__
        if kind == "InputLayer":
            previous = layer.name
            continue
        inputs = [previous]
        if not hasattr(model, "add"):  # not Sequential
            inputs = [t._keras_history.operation.name for t in layer._inbound_nodes[0].input_tensors]
        config = layer.get_config()
        keep = ("strides", "padding", "epsilon", "activation", "pool_size", "groups", "scale", "offset", "max_value", "keepdims")
        layers.append([layer.name, kind, inputs, {k: config[k] for k in keep if k in config}])
        previous = layer.name
    weights = {f"{l.name}/{i}": np.asarray(w) for l in model.layers for i, w in enumerate(l.get_weights())}
    np.savez(out, layers=json.dumps(layers), **weights)


# PyTorch.


def network(path):
    """The layers of a file of `unpack` as a module that torch.fx can trace. Pictures are channels first; a softmax at the end is left out."""
    import torch
    import torch.nn as nn

    with np.load(path) as file:
        layers = json.loads(str(file["layers"]))
        weights = {k: torch.from_numpy(file[k].astype(np.float32)) for k in file.files if k != "layers"}

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = []
            for name, kind, inputs, config in layers:
                own = [weights[f"{name}/{i}"] for i in range(5) if f"{name}/{i}" in weights]
                modules = made(kind, config, own)
                for i, module in enumerate(modules):
                    self.add_module(f"{name}_{i}", module)
                self.steps.append((name, kind, inputs, [f"{name}_{i}" for i in range(len(modules))]))
            self.result = layers[-1][0]

        def forward(self, x):
            values = {}
            for name, kind, inputs, modules in self.steps:
                y = [values.get(i, x) for i in inputs]
                if kind == "Add":
                    y = y[0] + y[1]
                else:
                    y = y[0]
                    for module in modules:
                        y = getattr(self, module)(y)
                values[name] = y
            return values[self.result]

    return Steps().eval()


def made(kind, config, own):
    import torch
    import torch.nn as nn

    def filled(module, weight, bias):
        with torch.no_grad():
            module.weight.copy_(weight)
            if bias:
                module.bias.copy_(bias[0])
        return module

    def activation():
        name = config.get("activation", "linear")
        return {"linear": [], "softmax": [], "relu": [nn.ReLU()], "relu6": [nn.ReLU6()]}[name]

    class Mean(nn.Module):
        def forward(self, x):
            y = x.mean([2, 3], keepdim=True)  # without, torch.ao's kernel refuses channels last
            return y if config["keepdims"] else y.flatten(1)

    class Greatest(nn.Module):
        def forward(self, x):
            return x.amax([2, 3])

    class Last(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1).flatten(1)

    class Times(nn.Module):
        def forward(self, x):
            return x * config["scale"]

    if kind in ("Conv2D", "DepthwiseConv2D"):
        kernel = own[0]
        if kind == "DepthwiseConv2D":
            h, w, c, m = kernel.shape
            weight, groups = kernel.permute(2, 3, 0, 1).reshape(c * m, 1, h, w), c
        else:
            weight, groups = kernel.permute(3, 2, 0, 1), config.get("groups", 1)
        f, c, h, w = weight.shape
        stride = config["strides"][0]
        before, padding = [], 0
        if config["padding"] == "same" and stride == 1:
            padding = h // 2
        elif config["padding"] == "same" and h > 1:
            # Of even sizes and strides of 2, which these models have.
            before = [nn.ZeroPad2d(((h - 2) // 2, (h - 1) // 2, (h - 2) // 2, (h - 1) // 2))]
        own_conv = nn.Conv2d(c * groups, f, (h, w), stride, padding, groups=groups, bias=len(own) > 1)
        return before + [filled(own_conv, weight, own[1:])] + activation()
    if kind == "Dense":
        return [filled(nn.Linear(*own[0].shape, bias=len(own) > 1), own[0].T, own[1:])] + activation()
    if kind == "BatchNormalization":
        module = nn.BatchNorm2d(len(own[0]), eps=config["epsilon"])
        filled(module, own[0], own[1:2]).running_mean.copy_(own[2])
        module.running_var.copy_(own[3])
        return [module]
    if kind == "ZeroPadding2D":
        (top, bottom), (left, right) = config["padding"]
        return [nn.ZeroPad2d((left, right, top, bottom))]
    if kind == "MaxPooling2D":
        return [nn.MaxPool2d(config["pool_size"], config["strides"])]
    simple = {"Dropout": [], "GlobalAveragePooling2D": [Mean()], "GlobalMaxPooling2D": [Greatest()], "Add": []}
    simple |= {"Flatten": [Last()], "Reshape": [nn.Flatten()], "Rescaling": [Times()]}
    if kind == "ReLU":
        return [nn.ReLU() if config.get("max_value") is None else nn.ReLU6()]
    if kind == "Activation":
        return activation()
    return simple[kind]


def pytorch(args):
    import torch
    from torch.ao.quantization import quantize_fx

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.backends.quantized.engine = args.backend
    model = network(args.model)
    images, labels = pictures(args.test, args.limit)
    floats = torch_classes(model, images, args)
    example = (prepared(images[:1], args),)
    if args.qat:
        int8_model, how = trained(model, example, args), f"torch.ao, trained {args.qat} epochs"
    else:
        mapping = torch.ao.quantization.get_default_qconfig_mapping(args.backend)
        int8_model = quantize_fx.prepare_fx(model, mapping, example)
        torch_classes(int8_model, pictures(args.train, args.samples)[0], args)
        int8_model, how = quantize_fx.convert_fx(int8_model), f"torch.ao, static, {args.backend}"
    int8 = torch_classes(int8_model, images, args)
    answer(
        peer=f"pytorch {torch.__version__}",
        how=how,
        float=share((floats == labels).sum(), len(labels)),
        quantised=share((int8 == labels).sum(), len(labels)),
        same=share((int8 == floats).sum(), len(labels)),
        layers=counted(int8_model),
    )


def counted(model):
    """How many modules with weights compute in eight bits, and how many do not."""
    counts = {"int8": Counter(), "float": Counter()}
    for module in model.modules():
        if callable(getattr(module, "weight", None)):
            counts["int8"][type(module).__name__] += 1
        elif "weight" in getattr(module, "_parameters", {}):
            counts["float"][type(module).__name__] += 1
    return counts


def prepared(images, args):
    import torch

    x = torch.from_numpy(images.astype(np.float32)).permute(0, 3, 1, 2)
    if args.size:
        x = torch.nn.functional.interpolate(x, size=(args.size, args.size), mode="bilinear", align_corners=False).round()
    x = x * args.scale
    return x.contiguous(memory_format=torch.channels_last)


def torch_classes(model, images, args):
    import torch

    with torch.no_grad():
        parts = [model(prepared(images[i : i + 250], args)).flatten(1).argmax(1) for i in range(0, len(images), 250)]
    return torch.cat(parts).numpy()


def trained(model, example, args):
    """torch.ao's training for eight bits, from the model as it is: Adam, no changed pictures, observers and batch statistics frozen in the last epoch."""
    import torch
    from torch.ao.quantization import disable_observer, quantize_fx

    mapping = torch.ao.quantization.get_default_qat_qconfig_mapping(args.backend)
    model = quantize_fx.prepare_qat_fx(model.train(), mapping, example)
    images, labels = pictures(args.train)
    labels = torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), args.learning_rate)
    for epoch in range(args.qat):
        if epoch == args.qat - 1:
            model.apply(disable_observer)
            model.apply(torch.nn.intrinsic.qat.freeze_bn_stats)
        order = torch.randperm(len(labels))
        for i in range(0, len(order) - args.batch + 1, args.batch):
            rows = order[i : i + args.batch]
            loss = torch.nn.functional.cross_entropy(model(prepared(images[rows.numpy()], args)).flatten(1), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return quantize_fx.convert_fx(model.eval())


# A language model of characters, in the names of transformers' GPT-2.


def text(args):
    """Sequences of tokens for tests: `[n, places + 1]`."""
    characters = open(args.text, encoding="utf-8").read()
    numbers = {c: i for i, c in enumerate(sorted(set(characters)))}
    tokens = np.array([numbers[c] for c in characters])
    tokens = tokens[len(tokens) * 9 // 10 :]
    n = (len(tokens) - 1) // args.places
    return np.stack([tokens[i * args.places : (i + 1) * args.places + 1] for i in range(n)])


def judged(logits_of, sequences, batch=15):
    """Hits and mean loss over all places, and what was said."""
    said, loss = [], 0.0
    for i in range(0, len(sequences), batch):
        part = sequences[i : i + batch]
        logits = np.asarray(logits_of(part[:, :-1]), np.float64)
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        loss -= np.take_along_axis(logits, part[:, 1:, None], -1).sum()
        said.append(logits.argmax(-1))
    said, wanted = np.concatenate(said), sequences[:, 1:]
    return said, {"accuracy": share((said == wanted).sum(), wanted.size), "nats": round(loss / wanted.size, 4)}


def told(peer, how, judge, int8_judge, layers):
    (floats, before), (int8, after) = judge, int8_judge
    answer(peer=peer, how=how, float=before, quantised=after, same=share((floats == int8).sum(), floats.size), layers=layers)


def gpt_weights(path):
    from safetensors.numpy import load_file

    weights = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    return weights, len({k.split(".")[1] for k in weights if k.startswith("h.")})


def text_pytorch(args):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.ao.quantization import QConfigMapping, get_default_qconfig, quantize_dynamic, quantize_fx

    torch.set_num_threads(args.threads)
    torch.backends.quantized.engine = args.backend
    weights, blocks = gpt_weights(args.model)
    weights = {k: torch.from_numpy(v) for k, v in weights.items()}

    def dense(name):
        kernel = weights[name + ".weight"]
        layer = nn.Linear(*kernel.shape)
        layer.load_state_dict({"weight": kernel.T, "bias": weights[name + ".bias"]})
        return layer

    def norm(name):
        layer = nn.LayerNorm(weights[name + ".weight"].shape[0], eps=args.epsilon)
        layer.load_state_dict({k: weights[f"{name}.{k}"] for k in ("weight", "bias")})
        return layer

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding.from_pretrained(weights["wte.weight"])
            self.places = nn.Parameter(weights["wpe.weight"])
            for i in range(blocks):
                for name, make in [("ln_1", norm), ("attn.c_attn", dense), ("attn.c_proj", dense), ("ln_2", norm), ("mlp.c_fc", dense), ("mlp.c_proj", dense)]:
                    self.add_module(f"{i}_{name}".replace(".", "_"), make(f"h.{i}.{name}"))
            self.norm = norm("ln_f")
            self.head = nn.Linear(*weights["wte.weight"].T.shape, bias=False)
            self.head.load_state_dict({"weight": weights["wte.weight"]})

        def forward(self, ids):
            x = self.tokens(ids) + self.places
            for i in range(blocks):
                part = lambda name: getattr(self, f"{i}_{name}")
                q, k, v = part("attn_c_attn")(part("ln_1")(x)).chunk(3, -1)
                q, k, v = (y.unflatten(-1, (args.heads, -1)).transpose(1, 2) for y in (q, k, v))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + part("attn_c_proj")(y.transpose(1, 2).flatten(2))
                x = x + part("mlp_c_proj")(F.gelu(part("mlp_c_fc")(part("ln_2")(x)), approximate="tanh"))
            return self.head(self.norm(x))

    sequences, model, peer = text(args), Net().eval(), f"pytorch {torch.__version__}"

    def judge(model):
        with torch.no_grad():
            return judged(lambda ids: model(torch.from_numpy(ids)).numpy(), sequences)

    floats = judge(model)
    dynamic = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    told(peer, "torch.ao, quantize_dynamic", floats, judge(dynamic), counted(dynamic))
    mapping = QConfigMapping().set_object_type(nn.Linear, get_default_qconfig(args.backend))
    ids = torch.from_numpy(sequences[:4, :-1])
    static = quantize_fx.prepare_fx(model, mapping, (ids,))
    with torch.no_grad():
        static(torch.from_numpy(training_text(args)))
    static = quantize_fx.convert_fx(static)
    told(peer, f"torch.ao, static, {args.backend}", floats, judge(static), counted(static))


def training_text(args, n=64):
    characters = open(args.text, encoding="utf-8").read()
    numbers = {c: i for i, c in enumerate(sorted(set(characters)))}
    tokens = np.array([numbers[c] for c in characters])[: len(characters) * 9 // 10]
    starts = np.linspace(0, len(tokens) - args.places, n).astype(int)
    return np.stack([tokens[s : s + args.places] for s in starts])


def text_keras(args):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
    from keras import layers as L
    from keras import ops

    weights, blocks = gpt_weights(args.model)
    width, places = weights["wte.weight"].shape[1], weights["wpe.weight"].shape[0]
    vocabulary, per_head = weights["wte.weight"].shape[0], width // args.heads
    filled = []

    def dense(name, x, units):
        layer = L.Dense(units)
        filled.append((layer, [weights[name + ".weight"], weights[name + ".bias"]]))
        return layer(x)

    def norm(name, x):
        layer = L.LayerNormalization(epsilon=args.epsilon)
        filled.append((layer, [weights[name + ".weight"], weights[name + ".bias"]]))
        return layer(x)

    def attention(name, x):
        layer = L.MultiHeadAttention(args.heads, per_head)
        kernels = np.split(weights[name + ".c_attn.weight"], 3, 1) + [weights[name + ".c_proj.weight"]]
        biases = np.split(weights[name + ".c_attn.bias"], 3)
        own = []
        for kernel, bias in zip(kernels, biases):
            own += [kernel.reshape(width, args.heads, per_head), bias.reshape(args.heads, per_head)]
        own += [kernels[3].reshape(args.heads, per_head, width), weights[name + ".c_proj.bias"]]
        filled.append((layer, own))
        return layer(x, x, use_causal_mask=True)

    ids = keras.Input((places,), dtype="int32")
    tokens = L.ReversibleEmbedding(vocabulary, width)
    filled.append((tokens, [weights["wte.weight"]]))
    position = L.Embedding(places, width)
    filled.append((position, [weights["wpe.weight"]]))
    x = tokens(ids) + position(ops.zeros_like(ids) + ops.arange(places))
    for i in range(blocks):
        x = x + attention(f"h.{i}.attn", norm(f"h.{i}.ln_1", x))
        y = ops.gelu(dense(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x), 4 * width), approximate=True)
        x = x + dense(f"h.{i}.mlp.c_proj", y, width)
    model = keras.Model(ids, tokens(norm("ln_f", x), reverse=True))
    for layer, values in filled:
        layer.set_weights(values)
    sequences = text(args)

    def judge():
        return judged(lambda ids: model(ids.astype("int32"), training=False), sequences)

    floats = judge()
    model.quantize("int8")
    inner = [l for l in model._flatten_layers() if l.weights and not [m for m in l._layers if m.weights]]
    layers = {"int8": Counter(), "float": Counter()}
    for layer in inner:
        kind = "int8" if getattr(layer, "quantization_mode", None) == "int8" else "float"
        layers[kind][type(layer).__name__] += 1
    told(f"keras {keras.__version__}", 'quantize("int8")', floats, judge(), layers)


def fraction(text):
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("data")
    command.add_argument("file")
    command.add_argument("out")
    for name in ("keras", "pytorch"):
        command = commands.add_parser(name)
        command.add_argument("model")
        command.add_argument("test")
        command.add_argument("--scale", type=fraction, default=1 / 255)
        command.add_argument("--size", type=int, help="height and width that pictures are brought to")
        command.add_argument("--limit", type=int, help="only the first so many test pictures")
        if name == "keras":
            command.add_argument("--out", help="layers and weights for PyTorch")
            continue
        command.add_argument("--train", required=True, help="training pictures")
        command.add_argument("--samples", type=int, default=500, help="so many of them tell the ranges")
        command.add_argument("--qat", type=int, help="epochs to train for eight bits")
        command.add_argument("--learning-rate", type=float, default=1e-4)
        command.add_argument("--batch", type=int, default=128)
    for name in ("text-keras", "text-pytorch"):
        command = commands.add_parser(name)
        command.add_argument("model")
        command.add_argument("text")
        command.add_argument("--heads", type=int, default=4)
        command.add_argument("--places", type=int, default=256)
        command.add_argument("--epsilon", type=float, default=1e-5, help="of layer normalisations")
    for command in commands.choices.values():
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--backend", default="x86", help="of PyTorch: x86, onednn, fbgemm")
    args = parser.parse_args()
    globals()[args.command.replace("-", "_")](args)


if __name__ == "__main__":
    main()
