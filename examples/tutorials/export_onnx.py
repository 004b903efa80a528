"""torch.export → ONNX → `systole run`, `predict` and `evaluate`.

    python export_onnx.py FOLDER

Writes model.onnx, an argument and PyTorch's own result. Then:
systole run FOLDER/model.onnx --input FOLDER/onnx.npz --output FOLDER/onnx-out.npz
"""
import os
import sys

import numpy
import torch
from torch import nn

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10)
).eval()
images = torch.randn(32, 1, 28, 28)
program = torch.export.export(network, (images,))
torch.onnx.export(program, (images,), f"{folder}/model.onnx", input_names=["image"], output_names=["logits"])
numpy.savez(f"{folder}/onnx.npz", arg0=images.numpy())
numpy.savez(f"{folder}/onnx-torch.npz", out0=network(images).detach().numpy())
print("model.onnx: 1 argument, 1 result")
