"""16 LoRA settings over one frozen Llama: four ranks times four learning rates, trained at once.

The base is tiny and random. Its adapters learn to count on (5 7 9 11 ...), in steps that the first
two tokens show.

python examples/lora_search.py          writes lora_search.png (needs: pip install 'wide_compiler[peft]')
"""

import sys

import matplotlib
import torch
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM

from wide_compiler import adapters
from wide_compiler.training import AdamW, fit, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = 12 if "--quick" in sys.argv else 300
RANKS, RATES = [1, 2, 4, 8], [1e-3, 3e-3, 1e-2, 3e-2]
TOKENS = 23

torch.manual_seed(0)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
shape |= {"vocab_size": TOKENS, "max_position_embeddings": 32, "use_cache": False}
ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # no token has a meaning of its own
base = LlamaForCausalLM(LlamaConfig(**shape, **ends))

targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"]
configs = {
    f"rank {rank}, rate {rate:g}": LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    for rank in RANKS
    for rate in RATES
}


def counting(batch):
    """`[batch, 10]`: each row counts on from a random token in steps of a random size."""
    start, step = torch.randint(TOKENS, (batch, 1)), torch.randint(1, 4, (batch, 1))
    return (start + step * torch.arange(10)) % TOKENS


def next_token_loss(output, ids):
    """The lanes' logits `[16, B, 10, V]` and the tokens `[B, 10]` that all of them see -> `[16]`."""
    logits = output.logits[:, :, 1:-1].flatten(1, 2)  # the step is known from the second token on
    return lane_losses.cross_entropy(logits, ids[:, 2:].flatten())


wide = adapters.compile(base, configs, counting(2))
batches = [(ids, ids) for ids in (counting(32) for _ in range(STEPS))]
history = fit(wide, AdamW(wide.parameters(), lr=RATES * len(RANKS)), next_token_loss, batches, epochs=1)

last = history.losses[-max(1, STEPS // 10) :].mean(0)
print(str(wide.explain(measure=False)).splitlines()[0])
for lane in last.argsort().tolist():
    print(f"{wide.names[lane]:22} loss {last[lane]:.3f}")
best = int(last.argmin())
wide.eval()
wide.save_adapter(best, "lora_search_best")  # a folder that peft.PeftModel.from_pretrained reads
prompt = torch.tensor([[5, 7], [20, 19 + 2]])
for name, tokens in zip(wide.names, wide.generate(prompt, max_new_tokens=5, do_sample=False), strict=True):
    if name == wide.names[best]:
        print(f"{name} counts on: {tokens.tolist()}")

figure, (curves, table) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for lane, name in enumerate(wide.names):
    colour = plt.get_cmap("viridis")(lane // len(RATES) / len(RANKS))
    curves.plot(history.losses[:, lane], color=colour, alpha=0.4 + 0.15 * (lane % len(RATES)), label=name)
curves.set(xlabel="step", ylabel="loss", title="16 adapters, one base, one training")
grid = last.view(len(RANKS), len(RATES))
table.imshow(grid, cmap="viridis_r")
for row, column in [(row, column) for row in range(len(RANKS)) for column in range(len(RATES))]:
    table.text(
        column,
        row,
        f"{grid[row, column]:.2f}",
        ha="center",
        va="center",
        color="white" if grid[row, column] > 1 else "black",
    )
table.set(xlabel="learning rate", ylabel="rank", title="loss at the end")
table.set_xticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
table.set_yticks(range(len(RANKS)), RANKS)
figure.savefig("lora_search.png", dpi=120)
print("written to lora_search.png")
