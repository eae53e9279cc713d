"""What the checks say: with numbers where there are any, without inventing them where there are none."""

from __future__ import annotations

import math
import re

import pytest
from check_faults import event, every_fault, fault, sink

from precisionlab.checks.base import Fault, all_checks, check_for
from precisionlab.checks.facts import op_stem
from precisionlab.checks.families import family_of
from precisionlab.checks.wording import number, percent
from precisionlab.records import EventKind, Phase, SinkKind

RICH: dict[str, float | int | str | bool] = {
    "nonfinite": 12,
    "elements": 64,
    "true_max_abs": 4.85e8,
    "format_max": 65504.0,
    "dtype": "torch.float16",
    "reduction_length": 4096,
    "term_max_abs": 300.0,
    "flushed": 7,
    "flushed_energy_share": 0.78,
    "smallest_subnormal": 2.0**-24,
    "value": 1e-8,
    "stored": 0.0,
    "lost_share": 0.93,
    "swamped": 60,
    "addend_rms": 5.0,
    "base_rms": 3008.0,
    "spacing": 16.0,
    "occurrences": 24,
    "inexact": 5,
    "example_from": 257.0,
    "example_to": 256.0,
    "rho_max": 1290.0,
    "rho_p99": 3.0,
    "local_error_u": 900.0,
    "gain": 180.0,
    "drift_u_in": 1.2,
    "drift_u_out": 216.0,
    "drift": 0.4,
    "flips": 3,
    "ties": 9,
    "headroom_log2": 0.7,
    "max_abs": 40000.0,
}
WORDS = re.compile(r"\b(nan|none|null)\b")


def texts(one: Fault) -> tuple[str, str]:
    check = check_for(one)
    assert check is not None
    return check.message(one), check.advice(one)


def test_without_any_number_every_sentence_is_still_whole() -> None:
    for one in every_fault():
        message, advice = texts(one)
        for text in (message, advice):
            assert not WORDS.search(text), text
        message = re.sub(r"\b(step|update|zero_grad|backward|forward|float|get_scale|get_scale)\(\)", "call", message)
        assert len(message) > 30 and message.endswith("."), message
        assert "  " not in message and "( " not in message and "()" not in message, message
        assert len(advice) > 40 and advice.endswith("."), advice
        assert "  " not in advice, advice


def test_numbers_that_are_nan_are_left_out() -> None:
    for one in every_fault():
        root, reached = one.event, one.sink
        if root is not None:
            root.evidence = {name: math.nan for name in RICH if name != "dtype"}
        message, advice = texts(Fault(root, reached, one.verdict, one.sinks))
        assert not WORDS.search(message), message
        assert not WORDS.search(advice), advice


def test_the_module_and_the_op_are_named_with_the_numbers() -> None:
    for one in every_fault():
        if one.event is None:
            continue
        one.event.evidence = dict(RICH)
        message, advice = texts(one)
        assert one.event.site.op in message
        assert one.event.site.module in message
        assert re.search(r"\d", message), message
        assert "  " not in message + advice
        assert "{" not in message + advice


def test_without_a_module_the_function_or_the_op_alone_is_named() -> None:
    message, _ = texts(fault(event(EventKind.OVERFLOW, module="", function="train_step", dtype="torch.float16")))
    assert message.startswith("aten.exp in train_step() overflows fp16")
    message, _ = texts(fault(event(EventKind.OVERFLOW, module="", function="<module>", dtype="torch.float16")))
    assert message.startswith("aten.exp overflows fp16")


def test_the_counts_of_a_sink_are_not_taken_for_those_of_the_event() -> None:
    message, _ = texts(fault(event(EventKind.OVERFLOW, nonfinite=2), sink(SinkKind.OUTPUT, nonfinite=900, elements=1000)))
    assert "2 results" in message
    assert "1000" not in message


def test_an_overflow_reads_as_one_sentence_with_its_numbers() -> None:
    root = event(
        EventKind.OVERFLOW,
        "result",
        module="sinkhorn",
        **{k: RICH[k] for k in ("nonfinite", "elements", "true_max_abs", "format_max", "dtype")},
    )
    assert texts(fault(root))[0] == (
        "aten.exp in sinkhorn overflows fp16: 12 of 64 results became non-finite (the exact result reaches 4.85e8, fp16 ends at 65504)."
    )


def test_a_changed_id_reads_with_its_example() -> None:
    root = event(EventKind.CAST, "integer to float", op="aten._to_copy", module="wrapper", dtype="torch.bfloat16", inexact=60, elements=64,
                 example_from=257.0, example_to=256.0)  # fmt: skip
    message, advice = texts(fault(root, sink(SinkKind.DECISION)))
    assert message == "aten._to_copy in wrapper changes 60 of 64 integers by storing them in bf16, for example 257 becomes 256."
    assert "256" in advice and "is_floating_point" in advice


ADVICE: list[tuple[str, Fault, tuple[str, ...]]] = [
    ("exp", fault(event(EventKind.OVERFLOW, dtype="torch.float16")), ("Subtract the maximum", "11.1", "logsumexp")),
    ("mask", fault(event(EventKind.OVERFLOW, op="aten.add", term_max_abs=65504.0, format_max=65504.0)), ("masked_fill", "once")),
    (
        "residual",
        fault(event(EventKind.OVERFLOW, op="aten.add", line="h = h + f(h)", dtype="torch.float16")),
        ("residual", "bf16", "`h = h + f(h)`"),
    ),
    ("linear", fault(event(EventKind.OVERFLOW, op="aten.addmm", module="ff.wo", dtype="torch.float16")), ("ff.wo", "power of two", "bf16")),
    ("bf16 product", fault(event(EventKind.OVERFLOW, op="aten.mm", module="ff", dtype="torch.bfloat16")), ("3.4e38", "Rescale")),
    ("scores", fault(event(EventKind.OVERFLOW, op="aten.bmm", module="layer.attn")), ("Scale q",)),
    ("power", fault(event(EventKind.OVERFLOW, op="aten.pow")), ("fused", "gelu")),
    ("norm", fault(event(EventKind.OVERFLOW, op="aten.pow", phase=Phase.CLIP, dtype="torch.float16")), ("before squaring", "255")),
    ("area", fault(event(EventKind.OVERFLOW, op="aten.mul", dtype="torch.float16")), ("255", "float()")),
    ("sum", fault(event(EventKind.OVERFLOW, "accumulator", op="aten.sum")), ("dtype=torch.float32",)),
    ("mean", fault(event(EventKind.OVERFLOW, "accumulator", op="aten.mean")), ("x.mean(", "fp32")),
    ("vector norm", fault(event(EventKind.OVERFLOW, "accumulator", op="aten._foreach_norm", phase=Phase.CLIP)), ("vector_norm",)),
    ("logsumexp", fault(event(EventKind.OVERFLOW, "accumulator", op="aten.logsumexp")), ("torch.logsumexp(x.float()",)),
    ("fft", fault(event(EventKind.OVERFLOW, "accumulator", op="aten._fft_r2c")), ("ortho",)),
    ("mask literal", fault(event(EventKind.OVERFLOW, "constant", op="aten.full", line="mask = full(-1e9)")), ("torch.finfo",)),
    ("log", fault(event(EventKind.DOMAIN, "log", op="aten.log")), ("log_softmax", "logsigmoid", "log1p", "logaddexp")),
    ("acos", fault(event(EventKind.DOMAIN, "acos", op="aten.acos")), ("Clamp", "[-1, 1]")),
    ("div", fault(event(EventKind.DOMAIN, "div", op="aten.div", dtype="torch.float16")), ("eps", "1e-4")),
    ("empty row", fault(event(EventKind.DOMAIN, "softmax", op="aten._softmax")), ("masked_fill",)),
    ("bce", fault(event(EventKind.DOMAIN, "div", op="aten.binary_cross_entropy_backward", phase=Phase.BACKWARD)), ("with_logits",)),
    (
        "guard",
        fault(event(EventKind.FLUSH, "constant", op="aten.lift_fresh", dtype="torch.float16", line="eps = tensor(1e-12)")),
        ("5.96e-8", "1e-4"),
    ),
    (
        "rate",
        fault(event(EventKind.CONSTANT, "rounds to 0", op="aten.div", line="lr = max_lr / factor", dtype="torch.float16")),
        ("Python floats",),
    ),
    ("decay", fault(event(EventKind.CONSTANT, "rounds to 1", op="aten.lift_fresh", dtype="torch.bfloat16")), ("1 - factor",)),
    ("beta", fault(event(EventKind.CONSTANT, "rounds to 1", phase=Phase.OPTIMIZER, dtype="torch.bfloat16")), ("betas", "Python floats")),
    ("loaded", fault(event(EventKind.FLUSH, "cast", op="aten._to_copy", phase=Phase.OTHER), sink(SinkKind.STATE)), ("load_state_dict",)),
    ("positions", fault(event(EventKind.CAST, op="aten._to_copy", line="pos = arange(n)"), sink(SinkKind.OUTPUT)), ("positions", "int64")),
    ("scaling", fault(event(EventKind.FLUSH, op="aten.mul", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT)), ("GradScaler", "bf16")),
    ("micro-batches", fault(event(EventKind.OVERFLOW, op="aten.add_", phase=Phase.BACKWARD), sink(SinkKind.UPDATE)), ("micro-batches",)),
    ("ranks", fault(event(EventKind.OVERFLOW, op="c10d.allreduce_", phase=Phase.BACKWARD), sink(SinkKind.UPDATE)), ("world size",)),
    ("activation", fault(event(EventKind.OVERFLOW, op="aten.mul", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT)), ("fused activation",)),
    ("buffer", fault(event(EventKind.LOST, "accumulate", op="aten.add_", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT)), ("main_grad",)),
    (
        "update",
        fault(event(EventKind.LOST, op="aten.addcdiv_", phase=Phase.OPTIMIZER, spacing=0.0078), sink(SinkKind.UPDATE)),
        ("master", "Kahan", "0.0078"),
    ),
    (
        "ema",
        fault(event(EventKind.LOST, op="aten.lerp_", phase=Phase.OPTIMIZER, function="update_ema"), sink(SinkKind.ACCUMULATOR)),
        ("average in fp32",),
    ),
    ("merge", fault(event(EventKind.LOST, op="aten.add", module="q_proj.merge"), sink(SinkKind.OUTPUT)), ("unmerged",)),
    ("state", fault(event(EventKind.LOST, "write-back", op="aten._to_copy"), sink(SinkKind.OUTPUT)), ("between the steps",)),
    (
        "prefix",
        fault(event(EventKind.LOST, op="aten.add", line="total = total + p"), sink(SinkKind.DECISION)),
        ("running sum", "fp32 carry"),
    ),
    ("coordinates", fault(event(EventKind.GAIN, op="aten.sub", line="d = x[i] - x[j]"), sink(SinkKind.OUTPUT)), ("coordinates",)),
    (
        "variance",
        fault(event(EventKind.GAIN, op="aten.sub", line="var = x.pow(2).mean() - m * m"), sink(SinkKind.OUTPUT)),
        ("(x - x.mean())^2",),
    ),
    ("complement", fault(event(EventKind.GAIN, op="aten.rsub", line="q = 1 - p"), sink(SinkKind.OUTPUT)), ("sigmoid(-x)", "expm1")),
    ("table", fault(event(EventKind.RHO, op="aten.embedding_dense_backward", phase=Phase.BACKWARD)), ("table", "fp32")),
    ("head", fault(event(EventKind.TIE, op="aten.argmax"), sink(SinkKind.DECISION)), ("fp32", "too late")),
    ("router", fault(event(EventKind.TIE, op="aten.topk", module="moe.router"), sink(SinkKind.DECISION)), ("router",)),
    ("clip", fault(event(EventKind.PROTOCOL, "clip-before-unscale", op="clip_grad_norm_", phase=Phase.CLIP)), ("unscale_",)),
]


@pytest.mark.parametrize(("one", "fragments"), [(one, f) for _, one, f in ADVICE], ids=[name for name, _, _ in ADVICE])
def test_advice_speaks_about_the_expression(one: Fault, fragments: tuple[str, ...]) -> None:
    _, advice = texts(one)
    for fragment in fragments:
        assert fragment in advice, advice


def test_a_near_overflow_says_what_is_left() -> None:
    root = event(EventKind.OVERFLOW, "headroom", dtype="torch.float16", max_abs=40000.0, format_max=65504.0, headroom_log2=0.7113)
    assert "(largest magnitude 40000, fp16 ends at 65504, 0.711 binades left)" in texts(fault(root))[0]


def test_protocol_faults_quote_their_evidence() -> None:
    root = event(
        EventKind.PROTOCOL, "clip-before-unscale", op="clip_grad_norm_", module="", phase=Phase.CLIP, scale=65536.0, norm=3.2e4, tied=True
    )
    message, _ = texts(fault(root))
    assert "scale 65536, norm 32000, tied" in message


def test_documentation_checks_can_be_worded_from_any_evidence() -> None:
    for code in ("PL901", "PL902", "PL903"):
        check = all_checks()[code]
        for one in (fault(None, None), fault(None, sink(SinkKind.EXIT, error="ValueError: x"))):
            assert check.message(one).endswith(".")
            assert len(check.advice(one)) > 40
            assert not check.claims(one)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65504"),
        (4.85165e8, "4.85e8"),
        (5.96e-8, "5.96e-8"),
        (0.25, "0.25"),
        (-3.0, "-3"),
        (math.inf, "inf"),
        (0.0, "0"),
        (1e7, "1e7"),
    ],
)
def test_numbers_are_written_briefly(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-6, "less than 0.01 %"),
        (0.0031, "0.31 %"),
        (0.623, "62 %"),
        (0.999, "more than 99 %"),
        (1.0, "100 %"),
        (2.5, "250 %"),
    ],
)
def test_shares_are_written_as_percentages(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("op", "stem"),
    [("aten.mm", "mm"), ("aten.add_", "add"), ("aten._foreach_addcdiv_", "addcdiv"), ("aten._to_copy", "to_copy"),
     ("aten.mm.default", "mm"),
     ("aten::_softmax", "softmax"), ("c10d.allreduce_", "allreduce"), ("clip_grad_norm_", "clip_grad_norm")],
)  # fmt: skip
def test_op_stems(op: str, stem: str) -> None:
    assert op_stem(fault(event(EventKind.GAIN, op=op))) == stem


@pytest.mark.parametrize(
    ("stem", "name"),
    [("addmm", "product"), ("convolution_backward", "convolution"), ("embedding_dense_backward", "scatter"), ("index_backward", "scatter"),
     ("softmax_backward_data", "softmax"), ("native_layer_norm_backward", "normalisation"), ("linalg_vector_norm", "norm"),
     ("scaled_dot_product_flash_attention_for_cpu", "attention"), ("exp", "exponential"), ("relu", ""), ("index", "")],
)  # fmt: skip
def test_op_families(stem: str, name: str) -> None:
    assert family_of(stem) == name
