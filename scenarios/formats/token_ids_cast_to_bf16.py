"""Token ids cast with the rest of the batch.

A batch is moved to bf16, integers included: {wrong:.0%} of the ids become another token, and nothing fails.

What happens
    Integers are exact in a format with p bits up to 2^p: 256 in bf16, 2048 in fp16. Beyond that only every second, fourth, ...
    integer exists. Near 30000 bf16 steps by 128: the id 30000 becomes {example:.0f}. The cast back to int64 gives a valid id, so
    the embedding finds a row, only another one. Of the ids below 32000 bf16 keeps {kept:.1%}.

How to recognise it
    The loss is that of an untrained model, from the first step, in bf16 only (in fp16 the first ids above 65504 crash instead).
    Text decoded from the ids that reach the embedding is nonsense. Compare `ids.unique().numel()` before and after the move to the
    device.

The repair
    Cast floating-point entries only: `t.to(dtype) if t.is_floating_point() else t`. The same holds for positions, timesteps and
    counts: build them in int64 or fp32 and round the result of sin, cos or a ratio, not the argument.

When it is no problem
    When the integer is only a magnitude (a length used as a weight), where a relative error of 2^-8 is noise like any other.

Sources
    IEEE 754-2019, section 3.3: integers up to 2^p are exact. huggingface/accelerate issue 1405, deepspeedai/DeepSpeed issue 5701.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("integers",)
EXPECT = (("PL106", "aten._to_copy"),)
CLAIMS = {"wrong": (0.9, 1.0), "example": (29952, 29952), "kept": (0.03, 0.05)}
QUIZ = (
    (
        "Ids drawn from a vocabulary of 32000 pass through bf16 and back to int64. Which share of them arrives changed?",
        {"under 1 %": "wrong < 0.01", "about 10 %": "0.01 <= wrong < 0.5", "over 90 %": "wrong > 0.9"},
    ),
)
PICTURE = ("line", "ids", "token")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32000, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids.long()).mean(1))


def _run(dtype: torch.dtype, floats_only: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Classifier().to(dtype)
    batch = {"ids": torch.randint(0, 32000, (4, 64))}
    moved = {key: value if floats_only and not value.is_floating_point() else value.to(dtype) for key, value in batch.items()}
    with torch.no_grad():
        scores = model(moved["ids"])
    return {"scores": scores, "ids": moved["ids"].flatten().sort().values, "sent": batch["ids"].flatten().sort().values}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _run(dtype, floats_only=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _run(dtype, floats_only=True)


def reference() -> dict[str, Tensor]:
    return _run(torch.float64, floats_only=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    ids = torch.arange(32000)
    return {
        "wrong": float((broken["ids"] != broken["sent"]).double().mean()),
        "example": float(torch.tensor(30000.0).bfloat16()),
        "kept": float((ids.bfloat16().long() == ids).double().mean()),
    }
