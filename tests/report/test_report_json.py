from __future__ import annotations

import hashlib
import json
from pathlib import Path

import jsonschema
import pytest
from report_gold import assert_gold

import precisionlab.report
from precisionlab.records import Kind, Phase, RunRecord, Verdict
from precisionlab.report.model import Report
from precisionlab.report.to_json import number, plain, report_to_dict, report_to_json

SCHEMA_FILE = Path(precisionlab.report.__file__).with_name("schema.json")
SCHEMA = json.loads(SCHEMA_FILE.read_text())
FROZEN = "dedffdcab004a88ba42af43d25089c479c7dcc8c4b5f06cc045b66a859e84331"


@pytest.mark.parametrize("which", ["broken", "safe", "cut_short"])
def test_report_obeys_the_shipped_schema(which: str, request: pytest.FixtureRequest) -> None:
    jsonschema.validate(report_to_dict(request.getfixturevalue(which)), SCHEMA, jsonschema.Draft202012Validator)


def test_empty_report_obeys_the_shipped_schema() -> None:
    jsonschema.validate(report_to_dict(Report(Verdict.UNKNOWN, [], [], RunRecord())), SCHEMA, jsonschema.Draft202012Validator)


def test_schema_is_frozen() -> None:
    meaning = json.dumps(SCHEMA, sort_keys=True)
    assert hashlib.sha256(meaning.encode()).hexdigest() == FROZEN, (
        "schema.json changed. Others parse these reports: adding an optional field is fine (update FROZEN); "
        "removing, renaming or retyping one needs a new schema_version."
    )


def test_schema_knows_every_word_of_the_enums() -> None:
    definitions = SCHEMA["$defs"]
    assert definitions["verdict"]["enum"] == sorted(map(str, Verdict), key=definitions["verdict"]["enum"].index)
    assert set(definitions["finding"]["properties"]["kind"]["enum"]) == set(map(str, Kind))
    assert set(definitions["phase"]["enum"]) == set(map(str, Phase))


def test_json_is_strict_and_nan_and_infinities_are_strings(broken: Report) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(report_to_json(broken), parse_constant=refuse)
    assert data["steps"][0]["loss"] == "inf"
    assert data["ops"][0]["drift_u"] == "inf"
    assert data["ops"][0]["gain"] == "nan"
    assert data["findings"][0]["evidence"]["headroom_log2"] == "-inf"


def test_numbers_have_six_significant_digits(broken: Report) -> None:
    assert number(160000.123456789) == 160000.0
    assert number(1.23456789e-7) == 1.23457e-07
    assert report_to_dict(broken)["parameters"][0]["gradient_norm"] == 0.123457


def test_free_mappings_are_sorted_whatever_their_insertion_order() -> None:
    assert list(plain({"b": 1, "a": {"d": 1, "c": 2}})) == ["a", "b"]
    assert json.dumps(plain({"x": {3, 1, 2}})) == '{"x": [1, 2, 3]}'


def test_same_report_gives_the_same_bytes(broken: Report) -> None:
    assert report_to_json(broken) == report_to_json(broken)


def test_to_dict_is_the_json_report(broken: Report) -> None:
    assert broken.to_dict() == json.loads(report_to_json(broken))


def test_notes_of_judge_and_run_appear_once(broken: Report) -> None:
    broken.notes.extend(broken.record.notes)
    assert broken.to_dict()["notes"] == ["optimizer: none given, AdamW(lr=0.0001) was used", "the judge says"]


def test_json_gold(broken: Report) -> None:
    assert_gold("broken.json", report_to_json(broken))
