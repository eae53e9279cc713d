"""Makes the weights that ``tiny_gpt.py`` ships: ``python -m precisionlab.models.train_tiny_gpt``; two minutes of one core, in fp32."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

from precisionlab.models.tiny_gpt import CONTEXT, TEXT, WEIGHTS, TinyGPT, loss

STEPS, BATCH, LEARNING_RATE, WARM_UP = 1500, 32, 2e-3, 100


def training_text() -> torch.Tensor:
    """The top level of the standard library, without the file that the demo reads."""
    files = sorted(path for path in Path(sysconfig.get_path("stdlib")).glob("*.py") if path.name != TEXT.name)
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8).long()


def main() -> None:
    torch.manual_seed(0)
    text = training_text()
    gpt = TinyGPT(wide=True)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS))
    for step in range(STEPS):
        starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,))
        pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        optimizer.zero_grad()
        value = loss(gpt, (pieces[:, :-1], pieces[:, 1:]))
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: {value.item() / 0.6931:.2f} bits a byte", flush=True)
    # Half precision is enough to keep them, and both forms of the model start from numbers that fp16 holds exactly.
    torch.save({name: tensor.half() for name, tensor in gpt.state_dict().items()}, WEIGHTS)


if __name__ == "__main__":
    main()
