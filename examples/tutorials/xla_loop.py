"""The PyTorch/XLA tutorials' loop on torch_xla 2.9: on Systole's plugin, on a TPU, or on XLA's CPU.

    python xla_loop.py PATH/TO/libsystole_plugin.so    the CPU engine of Systole, through PJRT
    PJRT_DEVICE=TPU python xla_loop.py                 a TPU
    PJRT_DEVICE=CPU python xla_loop.py                 XLA's own CPU compiler

`xm.xla_device()` and `xm.mark_step()` of the tutorials are `torch_xla.device()` and `torch_xla.sync()` now.
"""
import os
import sys

if len(sys.argv) > 1:
    # The plugin accepts StableHLO.
    os.environ.update(PJRT_DEVICE="SYSTOLE", XLA_STABLEHLO_COMPILE="1")
import torch
import torch_xla
from torch import nn
from torch_xla.experimental import plugins

if len(sys.argv) > 1:

    class Systole(plugins.DevicePlugin):
        def library_path(self):
            return sys.argv[1]

    plugins.use_dynamic_plugins()
    plugins.register_plugin("SYSTOLE", Systole())
device = torch_xla.device()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10)
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
images, labels = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))

for step in range(10):
    inputs, targets = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    print(f"step {step + 1}: loss {loss.item():.6f}")
