"""torch.export → StableHLO → `systole run`, with torch_xla 2.9 as the converter.

    python export_stablehlo.py FOLDER

Writes two programs with their arguments and PyTorch's own results: `forward`, the network, and `step`, a whole training
step with gradients and SGD. Then: systole run FOLDER/step.mlir --input FOLDER/step.npz --output FOLDER/step-out.npz
"""
import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import numpy
import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch_xla.stablehlo import VariableType, exported_program_to_stablehlo

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))
images, labels = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))


def step(weights, images, labels):
    """Loss and new weights after a step of SGD 0.001."""

    def loss_of(weights):
        # torch_xla cannot convert the gradient of nll_loss (a scatter of its indices); a one-hot matrix has the same one.
        logits = functional_call(network, weights, (images,))
        hot = (labels[:, None] == torch.arange(10)).to(logits.dtype)
        return -(hot * logits.log_softmax(1)).sum(1).mean()

    gradients, loss = grad_and_value(loss_of)(weights)
    return loss, [w - 0.001 * gradients[name] for name, w in weights.items()]


def write(name, module, arguments):
    """StableHLO text, the arguments in the order of the program, and PyTorch's results."""
    program = torch.export.export(module, arguments, strict=False)
    hlo = exported_program_to_stablehlo(program)
    with open(f"{folder}/{name}.mlir", "w") as file:
        file.write(hlo.get_stablehlo_text("forward"))
    flat, _ = torch.utils._pytree.tree_flatten(arguments)
    values = []
    for location in hlo._bundle.stablehlo_funcs[0].meta.input_locations:
        if location.type_ == VariableType.INPUT_ARG:
            values.append(flat[location.position])
        elif location.type_ == VariableType.PARAMETER:
            values.append(program.state_dict[location.name])
        else:
            values.append(torch.as_tensor(hlo._bundle.additional_constants[location.position]))
    numpy.savez(f"{folder}/{name}.npz", **{f"arg{n}": v.detach().numpy() for n, v in enumerate(values)})
    results, _ = torch.utils._pytree.tree_flatten(module(*arguments))
    numpy.savez(f"{folder}/{name}-torch.npz", **{f"out{n}": r.detach().numpy() for n, r in enumerate(results)})
    print(f"{name}: {len(values)} arguments, {len(results)} results")


write("forward", network.eval(), (images,))
# torch.export does not trace torch.func.grad; make_fx writes the gradients out as ATen operators first.
weights = {name: w.detach() for name, w in network.named_parameters()}
names = list(weights)
flat_step = make_fx(lambda *flat: step(dict(zip(names, flat)), *flat[len(names):]))
flat = (*weights.values(), images, labels)
write("step", flat_step(*flat), flat)
