"""The JSON API: the answers of Python and the command line, problems, its description, and visitors side by side."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import llmviewer as lv
from llmviewer import questions
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.server import arguments, calls, limits, openapi, problems
from llmviewer.server.app import Settings, create_app

pytest.importorskip("flask")

RUN = {"model": "llama-3.2-1b", "hardware": "a100-80gb-sxm"}
SIZES = {"batch_size": 2, "input_len": 64, "output_len": 4}
LOAD = {**RUN, "request_rate": 2, "requests": 50, "input_len": 64, "output_len": 8}
#: Call -> arguments, and the command line of the same question.
QUESTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "analyze": ({**RUN, **SIZES, "quantization": "w4a16"}, "analyze {run} {sizes} --quantization w4a16"),
    "sweep": (
        {**RUN, "batch_size": [1, 4], "input_len": 64, "output_len": 4},
        "sweep {run} --batch-size 1,4 --input-len 64 --output-len 4",
    ),
    "compare": (
        {**RUN, **SIZES, "quantization": ["none", "w4a16"]},
        "compare {run} {sizes} --quantization none,w4a16",
    ),
    "size": ({**LOAD, "ttft": "1s"}, "size {run} {load} --ttft 1s"),
    "simulate": (LOAD, "simulate {run} {load}"),
    "explain": ({"number": "tpot_s", **RUN, **SIZES}, "explain tpot_s {run} {sizes}"),
    "why": (
        {"a": "llama-3.2-1b --hardware a100", "b": "llama-3.2-1b --hardware h100"},
        "why 'llama-3.2-1b --hardware a100' 'llama-3.2-1b --hardware h100'",
    ),
    "require": (
        {"model": "llama-3.2-1b", "vary": "bandwidth", "tpot": "10ms"},
        "require llama-3.2-1b --vary bandwidth --tpot 10ms",
    ),
    "fit": (
        {"hardware": "rtx-4090", "models": "llama-3.2-1b,llama-3.1-8b", "context": "4k"},
        "fit --hardware rtx-4090 --models llama-3.2-1b,llama-3.1-8b --context 4k",
    ),
    "elasticity": ({**RUN, **SIZES}, "elasticity {run} {sizes}"),
    "advise": ({**RUN, **SIZES}, "advise {run} {sizes}"),
    "train": ({**RUN, "batch_size": 2, "input_len": 64}, "train {run} --batch-size 2 --input-len 64"),
    "crossover": (
        {**RUN, "quantization": ["none", "w4a16"], "batch_size": [1, 4], "context": "512:2048:*2"},
        "crossover {run} --quantization none,w4a16 --batch-size 1,4 --context 512:2048:*2",
    ),
    "check": ({"contract": [{"llama-3.2-1b on h100-sxm": "tpot_s <= 30 ms at batch 8"}]}, "check {contract}"),
}
WORDS = {
    "run": "llama-3.2-1b --hardware a100-80gb-sxm",
    "sizes": "--batch-size 2 --input-len 64 --output-len 4",
    "load": "--request-rate 2 --requests 50 --input-len 64 --output-len 8",
}


@pytest.fixture(scope="module")
def visitor() -> Any:
    return create_app(Settings(pages=False)).test_client()


def posted(visitor: Any, call: str, given: object, **more: Any) -> Any:
    return visitor.post(f"{openapi.PREFIX}/{call}", json=given, **more)


def refused(answer: Any, status: int) -> str:
    """The line of a problem document with this status."""
    assert answer.status_code == status
    assert answer.mimetype == problems.MEDIA_TYPE
    found = answer.get_json()
    assert found["status"] == status and {"type", "title", "detail", "instance"} <= set(found)
    assert "Traceback" not in found["detail"] and len(found["detail"]) < 600
    return str(found["detail"])


def test_every_call_is_asked_here() -> None:
    assert set(QUESTIONS) == set(calls.CALLS)


@pytest.mark.parametrize("call", QUESTIONS)
def test_an_answer_is_that_of_the_command_line(
    call: str, visitor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, line = QUESTIONS[call]
    (tmp_path / "contract.yaml").write_text(json.dumps(given.get("contract")), encoding="utf-8")
    answer = posted(visitor, call, given)
    assert answer.status_code == 200, answer.get_json()
    assert main([*shlex.split(line.format(**WORDS, contract=tmp_path / "contract.yaml")), "--format", "json"]) in (0, 1)
    assert answer.get_json() == json.loads(capsys.readouterr().out)
    assert answer.get_json()["schema"] == calls.CALLS[call].schema


def test_an_analysis_is_that_of_python(visitor: Any) -> None:
    expected = lv.analyze("llama-3.2-1b", "a100-80gb-sxm", **SIZES, engine="vllm").to_dict()
    assert posted(visitor, "analyze", {**RUN, **SIZES, "engine": "vllm"}).get_json() == expected


@pytest.mark.parametrize("name", ["attention", "fusion", "dtype", "ignore_fields"])
def test_null_is_unset_and_a_stated_default_is_stated(name: str, visitor: Any) -> None:
    """Older builds of llama.cpp have attention of their own, which a stated flash replaces."""
    run = {"model": "llama-3.1-8b", "hardware": "rtx-4090", "engine": "llama.cpp==b6000"}
    default = arguments.schema("analyze")["properties"][name][arguments.UNSET]
    bare, null, stated = (posted(visitor, "analyze", {**run, **one}).json["metrics"]
                          for one in ({}, {name: None}, {name: default}))  # fmt: skip
    assert bare == null
    assert (stated != bare) == (name == "attention")


def test_models_and_chips_may_be_given_by_their_fields(visitor: Any) -> None:
    """As by their names, but for the names and sources."""
    config = data.read_yaml(data.folder("model_configs") / "llama-3.2-1b.yaml")["config"]
    spec = data.read_yaml(data.folder("hardware_specs") / "a100-80gb-sxm.yaml")
    spec = {**{key: value for key, value in spec.items() if key != "sources"}, "name": "a100-80gb-sxm"}
    found = posted(visitor, "analyze", {"model": config, "hardware": spec, **SIZES}).get_json()
    assert found["metrics"] == posted(visitor, "analyze", {**RUN, **SIZES}).get_json()["metrics"]


def test_undefined_numbers_are_null() -> None:
    found = calls.text({"a": float("nan"), "b": [float("inf"), -float("inf")], "c": (1.5, "x", None, True)})
    assert json.loads(found) == {"a": None, "b": [None, None], "c": [1.5, "x", None, True]}


@pytest.mark.parametrize("command", calls.LISTS)
def test_lists_are_those_of_the_command_line(command: str, visitor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "list", "--format", "json"]) == 0
    assert visitor.get(f"{openapi.PREFIX}/{command}").get_json() == json.loads(capsys.readouterr().out)


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [*questions.QUESTIONS])
def test_arguments_of_a_call_are_those_of_python(call: str) -> None:
    described = arguments.schema(call)
    jsonschema.Draft202012Validator.check_schema(described)
    assert all(one["description"] for one in described["properties"].values())
    own = arguments._parameters(call)
    lines = [arguments.LAUNCH_LINE] if arguments.LAUNCH_LINE in described["properties"] else []
    assert list(described["properties"]) == [*own, *lines]  # a line stands for a model and options
    assert {*described["required"]} | ({"model"} if lines else set()) == {
        name for name, one in own.items() if one.default is one.empty
    }
    assert getattr(lv, call) is questions.QUESTIONS[call].function()


@pytest.mark.parametrize("call", QUESTIONS)
def test_requests_are_valid_by_their_schema(call: str) -> None:
    for given in (QUESTIONS[call][0], dict(calls.CALLS[call].example)):
        jsonschema.validate(given, arguments.schema(call))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"quantisation": "fp8"}, "unknown option 'quantisation'; did you mean 'quantization'?"),
        ({"hardwear": "h100"}, "unknown option 'hardwear'; did you mean 'hardware'?"),
        ({"--batch-size": 8}, "(use batch_size)"),
        ({"model": "llama-3.2-1bb"}, "did you mean"),
        ({"batch_size": "many"}, "batch_size is 'many'; allowed: whole numbers from 1 to 1,000,000,000"),
        ({"batch_size": [1, 2]}, "batch_size is a list; analyze takes one value; `llmviewer sweep` takes lists"),
        ({"dtype": ["bf16", "fp16"]}, "dtype is a list; analyze takes one value; compare takes lists"),
        ({"batch_size": None}, "batch_size is null; expected a whole number, or a text"),
        ({"input_len": "4q"}, "input_len is '4q'; allowed: whole numbers from 1 to 1,000,000,000"),
        ({"dtype": {"a": 1}}, "dtype is a mapping; expected a text"),
        ({"efficiency": "best"}, "allowed: calibrated, ideal"),
        ({"model": None}, "model is null; expected a text, or a mapping of fields"),
        ({"model": {}}, "expected a name"),
    ],
)
def test_a_wrong_argument_is_the_line_of_python(given: dict[str, Any], line: str, visitor: Any) -> None:
    assert line in refused(posted(visitor, "analyze", {**RUN, **given}), 400)


@pytest.mark.parametrize("call", [*questions.QUESTIONS])
def test_whole_numbers_are_read_as_on_the_command_line(call: str) -> None:
    """k is 1024 and m is 1024²: 4k is 4,096."""
    properties = arguments.schema(call)["properties"]
    names = [name for name, one in properties.items() if arguments._takes(one, "integer")]
    assert names or call in ("why", "check")
    required = {
        **dict.fromkeys(arguments.schema(call)["required"], "x"),
        **({"model": "x"} if "model" in properties else {}),
    }
    for name in names:
        jsonschema.validate({**required, name: "4k"}, arguments.schema(call))
        assert arguments.check(call, {**required, name: "4k"})[name] == 4096
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**required, name: "many"}, arguments.schema(call))
    if "batch_size" in names and call in ("sweep", "crossover"):
        assert arguments.check(call, {**required, "batch_size": [1, "1k"]})["batch_size"] == [1, 1024]


def test_a_length_with_a_suffix_has_the_answer_of_its_number(visitor: Any) -> None:
    found = [posted(visitor, "analyze", {**RUN, "input_len": one}).get_json() for one in ("4k", 4096)]
    assert found[0] == found[1] and found[0]["workload"]["input_len"] == 4096
    answer = posted(visitor, "simulate", {**LOAD, "requests": "1m"})
    assert "the load has 1,048,576 requests; allowed here: at most 100,000" in refused(answer, 400)


def test_the_lines_of_why_are_those_of_the_command_line(visitor: Any) -> None:
    sides = {"a": {**RUN, "batch_size": 4}, "b": {**RUN, "hardware": "h100-sxm"}}
    found = posted(visitor, "why", sides).get_json()
    assert found["lines"]["a"] == "llama-3.2-1b --hardware a100-80gb-sxm --batch-size 4"
    assert posted(visitor, "why", found["lines"]).get_json() == found


def test_a_missing_argument_is_named(visitor: Any) -> None:
    assert refused(posted(visitor, "analyze", {}), 400) == "analyze needs model and hardware"


@pytest.mark.parametrize("call", QUESTIONS)
def test_a_value_of_any_type_is_answered_or_refused_in_one_line(call: str, visitor: Any) -> None:
    """No argument of any call, whatever its value, is an internal error."""
    quick = {"size": {"ttft": "1us"}, "simulate": {"requests": 5}}  # a limit that no layout meets, few requests
    plain = {**QUESTIONS[call][0], **quick.get(call, {})}
    values: list[Any] = [True, -1, 0, 1e300, "", "x", "a=b", [], {}, [None], [[1]], [{}], {"a": [1]}]
    names = arguments.schema(call)["properties"]
    # an empty list of values of `size` is one that is not stated, which is the same search each time: all at once
    empty = [name for name in names if call == "size" and limits._is_option(name)]
    bodies = [{**plain, name: value} for name in names for value in values if value != "" or name not in empty]
    bodies.append({**plain, **dict.fromkeys(empty, "")})
    unset = dict.fromkeys(names)  # null is a value that is not stated: all at once
    for body in (*bodies, unset, {**unset, **plain}):
        answer = posted(visitor, call, body)
        if answer.status_code != 200:
            line = refused(answer, 400)
            assert line.isprintable(), (call, body)


# --- by address alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", calls.CHEAP)
def test_an_address_has_the_answer_of_its_arguments(call: str, visitor: Any) -> None:
    query = [
        (name, one if isinstance(one, str) else json.dumps(one))
        for name, value in QUESTIONS[call][0].items()
        for one in (value if isinstance(value, list) else [value])
    ]
    answer = visitor.get(f"{openapi.PREFIX}/{call}", query_string=query)
    assert answer.get_json() == posted(visitor, call, QUESTIONS[call][0]).get_json()


def test_texts_of_an_address_are_what_their_arguments_take() -> None:
    """0.5 is a number and true a truth where no text is taken; 8 may be a text; fields of a chip are an object."""
    query = {"enforce_eager": "true", "gpu_memory_utilization": "0.5", "batch_size": "8", "hardware": '{"name": "x"}'}
    expected = {"enforce_eager": True, "gpu_memory_utilization": 0.5, "batch_size": "8", "hardware": {"name": "x"}}
    assert arguments.of_query("analyze", query.items()) == expected
    assert arguments.of_query("analyze", [("enforce_eager", "{"), ("x", "1"), ("x", "2")]) == {
        "enforce_eager": "{",
        "x": ["1", "2"],
    }


@pytest.mark.parametrize("address", ["models", "openapi.json", "analyze?model=llama-3.2-1b&hardware=l40s"])
@pytest.mark.parametrize("taken", ["identity", "gzip", "br"])
def test_an_unchanged_answer_is_not_sent_again(address: str, taken: str, visitor: Any) -> None:
    path, accepted = f"{openapi.PREFIX}/{address}", {"Accept-Encoding": taken}
    first = visitor.get(path, headers=accepted)
    tag = first.headers["ETag"]
    again = visitor.get(path, headers={**accepted, "If-None-Match": tag})
    assert (first.status_code, again.status_code, again.data) == (200, 304, b"") and again.headers["ETag"] == tag
    other = visitor.get(path, headers={**accepted, "If-None-Match": 'W/"other"'})
    assert other.status_code == 200 and other.headers["ETag"] == tag and other.data


def test_words_of_an_address_that_nothing_reads_are_refused(visitor: Any) -> None:
    run = {"model": "llama-3.2-1b", "hardware": "l40s"}
    for found, why in (
        (visitor.get(f"{openapi.PREFIX}/models?name=gpt2"), "models takes no arguments; remove 'name'"),
        (posted(visitor, "analyze?batch_size=8", run), "the arguments of a POST are its body; remove 'batch_size'"),
    ):
        assert found.status_code == 400 and found.get_json()["detail"].startswith(why)


def test_tags_of_unlike_answers_differ(visitor: Any) -> None:
    run = f"{openapi.PREFIX}/analyze?model=llama-3.2-1b&hardware=l40s&batch_size="
    assert len({visitor.get(f"{run}{size}").headers["ETag"] for size in (1, 2, 1)}) == 2


def test_a_page_elsewhere_asks_nothing_by_an_address(visitor: Any) -> None:
    answer = visitor.get(f"{openapi.PREFIX}/analyze", query_string=RUN, headers={"Sec-Fetch-Site": "cross-site"})
    assert refused(answer, 403)


# --- problems --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["api only", "with pages"])
def either(request: pytest.FixtureRequest) -> Any:
    """A visitor of `serve --api-only`, and one of `serve`."""
    if request.param == "with pages":
        pytest.importorskip("dash")
    return create_app(Settings(pages=request.param == "with pages")).test_client()


def test_statuses_have_a_problem_each(either: Any) -> None:
    analyze = f"{openapi.PREFIX}/analyze"
    assert "JSON" in refused(either.post(analyze, data="{}", content_type="text/plain"), 415)
    large = json.dumps({"model": "x" * limits.MAX_BODY_BYTES})
    assert refused(either.post(analyze, data=large, content_type="application/json"), 413)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/analyze/", "/api/v2/analyze", "/api", "/nothing"])
def test_a_path_that_nothing_serves_is_not_found(path: str, method: str, either: Any) -> None:
    answer = either.open(path, method=method)
    assert (answer.status_code, answer.mimetype) == (404, problems.MEDIA_TYPE)
    if method != "HEAD":  # whose answer has no body
        assert refused(answer, 404) == "nothing is served at this address"


@pytest.mark.parametrize("name", [*calls.CALLS, *calls.LISTS, "openapi.json"])
def test_a_wrong_method_is_refused_with_those_that_are_allowed(name: str, either: Any) -> None:
    allowed = {"OPTIONS"} | ({"POST"} if name in calls.CALLS else {"GET", "HEAD"})
    allowed |= {"GET", "HEAD"} if name in calls.CHEAP else set()
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE"} - allowed:
        answer = either.open(f"{openapi.PREFIX}/{name}", method=method)
        assert (answer.status_code, answer.mimetype) == (405, problems.MEDIA_TYPE)
        assert set(answer.headers["Allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nope", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"],
)
def test_a_body_that_is_no_json_is_refused(body: bytes, visitor: Any) -> None:
    answer = visitor.post(f"{openapi.PREFIX}/analyze", data=body, content_type="application/json")
    assert refused(answer, 400)


def test_an_internal_error_tells_nothing(visitor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: str, given: object) -> str:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(calls, "answer", broken)
    line = refused(posted(visitor, "analyze", RUN), 500)
    assert "secret" not in line


# --- its description -------------------------------------------------------------------------------------------------


def test_the_description_has_the_form_of_openapi(visitor: Any) -> None:
    """OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1), by a public validator; operations have names of their own."""
    validator = pytest.importorskip("openapi_spec_validator", reason="needs openapi-spec-validator")
    found = visitor.get(f"{openapi.PREFIX}/openapi.json").get_json()
    validator.validate(found)
    assert re.fullmatch(r"3\.1\.\d", found["openapi"]) and {"title", "version"} <= set(found["info"])
    names = []
    for path, item in found["paths"].items():
        assert path.startswith("/")
        for method, operation in item.items():
            assert method in ("get", "post")
            names.append(operation["operationId"])
            for status, answer in operation["responses"].items():
                assert re.fullmatch(r"[1-5]\d\d", status) and ("$ref" in answer or answer["description"])
    assert len(names) == len(set(names)) == len(calls.CALLS) + len(calls.CHEAP) + len(calls.LISTS)
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_what_is_described_is_served(visitor: Any) -> None:
    found = openapi.document()
    for path, item in found["paths"].items():
        if "post" not in item:
            assert visitor.get(path).status_code == 200
            continue
        content = item["post"]["requestBody"]["content"]["application/json"]
        answer = visitor.post(path, json=content["example"])
        described = item["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.get_json(), described)


@pytest.mark.slow
def test_a_generated_client_gets_the_answers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By openapi-python-client; what is not stated stays unset, although it sends every default that is described."""
    pytest.importorskip("openapi_python_client", reason="needs openapi-python-client")
    import httpx

    (tmp_path / "openapi.json").write_text(json.dumps(openapi.document()), encoding="utf-8")
    words = ["generate", "--path", "openapi.json", "--output-path", "described", "--meta", "none", "--fail-on-warning"]
    (tmp_path / "config.yaml").write_text("post_hooks: []", encoding="utf-8")
    made = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", *words, "--config", "config.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout
    monkeypatch.syspath_prepend(tmp_path)
    operations = {path.stem for path in (tmp_path / "described/api/default").glob("[a-z]*.py")}
    assert operations == {*calls.CALLS, *(f"get_{one}" for one in calls.CHEAP), *(f"list_{one}" for one in calls.LISTS)}
    models, own = import_module("described.models"), import_module("described.api.default.list_models")
    transport = httpx.WSGITransport(app=create_app(Settings(pages=False)))
    client = import_module("described").Client("http://localhost", httpx_args={"transport": transport})
    asked = models.Analyze(**RUN, **SIZES, engine="vllm", enforce_eager=True)
    expected = lv.analyze(**RUN, **SIZES, engine="vllm", enforce_eager=True).to_dict()
    for name, words in (("analyze", {"body": asked}), ("get_analyze", {"arguments": asked})):
        answer = import_module(f"described.api.default.{name}").sync(client=client, **words)
        assert answer.to_dict() == expected
    assert len(own.sync(client=client)) == len(lv.list_models())
    wrong = models.Analyze(model="llama-3.2-1bb", hardware="l40s")
    problem = import_module("described.api.default.analyze").sync(client=client, body=wrong)
    assert isinstance(problem, models.Problem) and "did you mean" in problem.detail


def test_no_argument_of_the_description_names_a_file() -> None:
    schemas = openapi.document()["components"]["schemas"]
    assert not {name for one in schemas.values() for name in one["properties"]} & set(arguments.OF_FILES)


def test_a_problem_is_valid_by_its_schema(visitor: Any) -> None:
    schema = openapi.document()["components"]["schemas"]["Problem"]
    jsonschema.validate(posted(visitor, "analyze", {}).get_json(), schema)


# --- visitors --------------------------------------------------------------------------------------------------------


def test_visitors_side_by_side_get_their_own_answers() -> None:
    """Many at once, each with other inputs: every answer is that of its own question, asked alone."""
    app = create_app(Settings(pages=False))
    asked = [
        {"model": model, "hardware": chip, "batch_size": batch, "quantization": quantization}
        for model in ("llama-3.2-1b", "gpt2")
        for chip in ("a100-80gb-sxm", "h100-sxm")
        for batch in range(1, 9)
        for quantization in ("none", "w4a16")
    ]

    def answered(given: dict[str, Any]) -> Any:
        return posted(app.test_client(), "analyze", given).get_json()

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answered, asked))
    assert together == [answered(one) for one in asked]


def test_the_documentation_names_every_address() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "http_api.md").read_text(encoding="utf-8")
    for name in (*calls.CALLS, *calls.LISTS, "openapi.json"):
        assert f"`{name}`" in page or f"{openapi.PREFIX}/{name}" in page
    for status in problems.TITLES:
        assert f"| {status} |" in page
