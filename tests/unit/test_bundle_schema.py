"""The schema of a bundle's documents beside the code is what is read; limits and ranges are rejected with their places."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec
import pytest

from orchestrator.core.documents import decoder
from orchestrator.model.event import Event
from orchestrator.model.payload import REGISTRY
from orchestrator.model.plan import Plan
from orchestrator.model.run import Twin
from orchestrator.model.trial import Trial
from orchestrator.model.verdict import Verdict

from .golden import same_as_golden

DOCUMENTS = {
    "trial.json": Trial, "plan.json": Plan, "twin.json": Twin, "bundle.json": decoder.About, "fingerprint.json": decoder.Fingerprint,
    "verdicts.json": tuple[Verdict, ...], "history.jsonl, a line": Event,
}  # fmt: skip


def in_one_form(schema: Any) -> Any:
    """The schema without what releases of msgspec write differently: indented descriptions, defaults that are empty."""
    if isinstance(schema, list):
        return [in_one_form(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: in_one_form(value) for key, value in schema.items() if key != "default" or value not in ({}, [])}
    if isinstance(text := kept.get("description"), str):
        kept["description"] = inspect.cleandoc(text)
    return kept


def test_the_schema_of_a_bundle_is_written_down() -> None:
    types = {key: decoder.value_type(*key) for key in REGISTRY}
    values = {f"{name}, {kind}": value_type for (name, kind), value_type in types.items() if value_type is not None}
    (*schemas,), components = msgspec.json.schema_components([*DOCUMENTS.values(), *values.values()])
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "documents": dict(zip(DOCUMENTS, schemas, strict=False)),
        "values of events": dict(zip(values, schemas[len(DOCUMENTS) :], strict=True)),
        "$defs": components,
    }
    same_as_golden(
        "../../orchestrator/core/documents/bundle.schema.json",
        json.dumps(in_one_form(schema), indent=1, sort_keys=True) + "\n",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "x", "workload": "w", "seed": "7"}', "seed: expected int, got str"),
        ('{"name": "x", "workload": "w", "world": {"nodes": 1000000000}}', "world: must have 1 to 65,536 ranks"),
        ('{"name": "x", "workload": "w", "params": {"a": [1' + "0" * 400 + "]}}", "params.a.0: a number beyond ±10^18"),
        ('{"name": "x", "workload": "w", "params": {"a": NaN}}', "not valid JSON: "),
        ('{"name": "x", "name": "y", "workload": "w"}', "name: appears twice in an object"),
        (
            '{"name": "x", "workload": "w", "params": ' + '{"a": ' * 40 + "1" + "}" * 41,
            "nested more than 32 levels deep",
        ),
        ("[" * 100_000, "nested more than 32 levels deep"),
        ("[]", "expected object, got array"),
    ],
)
def test_a_wrong_document_is_rejected_with_its_place(text: str, message: str) -> None:
    with pytest.raises(decoder.DocumentError) as error:
        decoder.convert(Trial, decoder.parse_document(text.encode()))
    assert message in str(error.value)


def test_keys_that_the_model_does_not_know_are_ignored() -> None:
    trial: Any = decoder.convert(Trial, decoder.parse_document(b'{"name": "x", "workload": "w", "later": 1}'))
    assert trial == Trial(name="x", workload="w")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'{"path": "c\udce9.pt", "note": "\ud83d\ude00"}', {"path": "c?.pt", "note": "\U0001f600"}),
        (rb'{"path": "c\\udce9"}', {"path": "c\\udce9"}),
        (rb'{"path": "\udce9", "seconds": NaN}', None),
        (rb'{"path": "\\udce9", "seconds": NaN}', None),
        (rb'{"path": "\udce9', None),
    ],
    ids=["a name that is not UTF-8", "a backslash", "no JSON otherwise", "no JSON, and a backslash", "torn"],
)
def test_the_name_of_a_file_that_is_not_utf_8_makes_no_record_unreadable(text: bytes, value: object) -> None:
    """Python writes each byte that is not UTF-8 as a lone surrogate, which JSON does not have."""
    if value is not None:
        assert decoder.parse(text) == value
        return
    with pytest.raises(decoder.DocumentError):
        decoder.parse(text)
