"""The PyTorch/XLA tutorials' loop: a small convolutional network on MNIST, SGD 0.001, in PyTorch.

With torch_xla installed, `import torch_xla` and `device = torch_xla.device()` move it to a TPU (`xm.xla_device()` in the
tutorials), and `torch_xla.sync()` ends each step.
"""
import sys

import torch
from torch import nn
from torchvision import datasets, transforms

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
root = sys.argv[1] if len(sys.argv) > 1 else "data"
to_tensor = transforms.ToTensor()
train = datasets.MNIST(root, train=True, download=True, transform=to_tensor)
test = datasets.MNIST(root, train=False, download=True, transform=to_tensor)
loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True, drop_last=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.25), nn.Linear(1600, 10),
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

for epoch in range(3):
    model.train()
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)

model.eval()
hits = 0
with torch.no_grad():
    for inputs, labels in torch.utils.data.DataLoader(test, batch_size=1000):
        hits += (model(inputs.to(device)).argmax(1).cpu() == labels).sum().item()
print(f"test accuracy {hits / len(test):.4f}")
