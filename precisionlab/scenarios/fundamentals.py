"""What the library must teach, by part. Each scenario names the keys that it covers; a test sees that none is left out."""

from __future__ import annotations

FUNDAMENTALS: dict[str, dict[str, str]] = {
    "Formats": {
        "fp16 floors": "fp16's normal floor 6.1e-5 and subnormal floor 6e-8, below which a gradient is zero",
        "fp16 ceiling": "fp16 ends at 65504",
        "spacing": "the spacing after 1.0: 2^-10 in fp16, 2^-7 in bf16",
        "bf16 range": "bf16 has fp32's range and needs no scaler, but few bits",
        "integers": "integers above 2048 (fp16) and 256 (bf16)",
    },
    "Gradient underflow and loss scaling": {
        "scale and unscale": "scaling the loss, dividing the gradients",
        "scale too low": "a scale that is too low",
        "scale too high": "a scale that is too high, overflow detection that still works",
        "scale window": "the window of scales between the floor and the ceiling",
        "dynamic scaler": "a dynamic scaler calibrating",
        "scale collapse": "a scale that collapses",
        "scaler state": "the scaler's state on resume",
        "skipped steps": "what must not happen on a skipped step",
    },
    "Swamped updates": {
        "swamped update": "1e-7 on a weight of 1.0, and why masters are fp32",
        "bf16 weights": "bf16 weights at a small learning rate",
        "ema": "an average of weights",
        "weight decay": "weight decay",
        "counters": "counters",
        "batchnorm statistics": "running statistics of BatchNorm",
        "stochastic rounding": "stochastic rounding as a repair",
        "kahan": "Kahan's compensated sum as a repair",
    },
    "Accumulators": {
        "global norm": "a global norm whose squares pass 65504",
        "fp32 norm": "the norm of 1e7 fp32 elements",
        "running sum": "running sums of ones",
        "pixel mean": "the mean over many pixels",
        "softmax statistics": "statistics of softmax and LayerNorm",
        "split-k": "split-k partial sums",
        "block order": "the order and the blocks of a sum",
        "truncation bias": "the bias of truncating accumulators",
    },
    "Gradient accumulation": {
        "missing 1/N": "the missing 1/N",
        "clip per micro-batch": "clipping inside the micro-batch loop",
        "half buffers": "gradient buffers in half",
        "batchnorm micro-batches": "BatchNorm statistics per micro-batch",
    },
    "Activation checkpointing": {
        "fresh random numbers": "recomputation that draws fresh random numbers, and restoring the generator",
        "other autocast": "recomputation under another autocast state",
    },
    "Data parallel": {
        "half averaging": "averaging in half over many ranks",
        "divide and sum": "the order of divide and sum",
        "per-replica batchnorm": "BatchNorm per replica",
        "ranks with scales": "ranks with different scales",
    },
    "Attention and norms": {
        "scores before scaling": "scores before they are scaled",
        "masks": "masks that turn to -inf",
        "masked rows": "rows that are masked completely",
        "rmsnorm squares": "squares of RMSNorm",
        "vanishing eps": "an eps that vanishes",
        "rope positions": "rotary positions in bf16",
        "biased pv": "biased rounding in P times V",
    },
    "Losses and formulas": {
        "log softmax": "log(softmax)",
        "softplus": "log(1 + exp)",
        "bce": "binary cross entropy on probabilities",
        "variance": "variance as E[x^2] - E[x]^2",
        "cosine": "a cosine above 1",
        "distances": "distances by expansion",
        "kl": "KL at low temperature",
    },
    "Optimizers": {
        "adam eps": "Adam's eps in half",
        "second moment": "Adam's second moment in half",
        "beta2": "a beta2 that rounds to 1",
        "state cast": "optimizer state cast on load",
    },
    "Decisions and inference": {
        "router": "router flips",
        "argmax": "argmax flips",
        "top-p": "top-p by cumsum",
        "lora merge": "merging a LoRA",
        "kv cache": "a cache or recurrent state in half",
        "sampling": "sampling",
    },
    "The reference and false alarms": {
        "wrong reference": "an fp64 reference that is itself wrong",
        "false alarm": "healthy programs that look dangerous",
    },
    "Plans": {
        "four plans": "one op under four plans of storage, compute and accumulation",
    },
}
