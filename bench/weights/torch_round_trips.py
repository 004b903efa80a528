"""What Systole writes, read by PyTorch and safetensors: python torch_round_trips.py SYSTOLE SCRATCH"""

import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file
S, T = sys.argv[1], sys.argv[2] + "/"
F = str(pathlib.Path(__file__).parents[2] / "fixtures/weights") + "/"
def run(*a):
    r=subprocess.run([S,*a],capture_output=True,text=True); 
    if r.returncode: print("FAILED",a,r.stderr[-600:],r.stdout[-300:])
    return r.returncode==0
run("import",F+"resnet.pt","--out",T + "t.safetensors","--force")
run("export",T + "t.safetensors","--format","torch","--out",T + "t.pt","--force")
a=torch.load(T + "t.pt",weights_only=True); b=torch.load(F+"resnet.pt",weights_only=True)
print("torch round trip", all(torch.equal(a[k],b[k]) for k in b if "num_batches" not in k), len(a))
run("export",T + "t.safetensors","--format","safetensors","--out",T + "t2.safetensors","--force")
c=load_file(T + "t2.safetensors"); print("safetensors", all(torch.equal(a[k],c[k]) for k in a))
run("import",F+"gpt2","--out",T + "g.safetensors","--force")
run("export",T + "g.safetensors","--format","safetensors","--out",T + "g2.safetensors","--force")
c=load_file(T + "g2.safetensors"); o={}
for i in (1,2,3): o.update(load_file(F+f"gpt2/model-0000{i}-of-00003.safetensors"))
print("gpt2", all(torch.equal(o[k],c[k]) for k in c), len(c), len(o))
for n in ("cnn","branches"):
    run("import",F+n+".keras","--out",T + f"{n}.safetensors","--force")
    run("export",T + f"{n}.safetensors","--format","keras","--out",T + f"{n}_out.keras","--force")
    run("export",T + f"{n}.safetensors","--format","keras","--out",T + f"{n}_out.weights.h5","--force")
