"""Generation with kept keys and values by Hugging Face transformers on PyTorch: GPT-2 small with drawn weights.

    PYTHON peer_generation.py OUT [--tokens N] [--rounds N] [--threads N]

OUT gets the model's folder (config.json, model.safetensors, tokenizer.json of bytes), so that the same weights can be imported;
then one line of JSON with the tokens a second of the best round, prompt not counted, and the tokens of the likeliest continuation.
"""

import argparse
import json
import os
import pathlib
import time

p = argparse.ArgumentParser()
p.add_argument("out", type=pathlib.Path)
p.add_argument("--tokens", type=int, default=128)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
a = p.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT = "First Citizen"

torch.set_num_threads(a.threads)
torch.manual_seed(0)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
# As many tokens as GPT-2 has, so that its last product has its size: the others are never made of a text.
words = alphabet + [f"unused{i}" for i in range(50_257 - len(alphabet))]
tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
config = GPT2Config(bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(config).eval()
model.save_pretrained(a.out)
tokenizer.save(str(a.out / "tokenizer.json"))

ids = torch.tensor([tokenizer.encode(PROMPT).ids])


def generate():
    """The likeliest tokens one after the other: the bare loop, without what `generate` adds around it."""
    with torch.inference_mode():
        out = model(ids, use_cache=True)
        began, made = time.perf_counter(), []
        for _ in range(a.tokens):
            token = out.logits[:, -1:].argmax(-1)
            made.append(token.item())
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
    return made, a.tokens / (time.perf_counter() - began)


rounds = [generate() for _ in range(a.rounds)]
print(json.dumps({"peer": "pytorch", "tokens_per_second": round(max(r for _, r in rounds), 2), "tokens": rounds[0][0]}))
