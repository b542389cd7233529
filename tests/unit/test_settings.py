"""Settings from files: keys are options, a wrong one is one error with its place, and their origin is shown. -q, -v and --json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import click
import platformdirs
import pytest

from orchestrator import plugins
from orchestrator.app import settings as files
from orchestrator.app.session import state_dir
from orchestrator.cli import main
from orchestrator.cli.inputs import settings_as_defaults
from orchestrator.cli.render import terminal
from orchestrator.workloads import infer_dp

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


def write(desk: Desk, text: str, *, user: bool = False) -> None:
    file = desk.root / "config" / "ccbed" / "config.toml" if user else desk.root / "ccbed.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def trial(desk: Desk) -> dict[str, object]:
    assert desk("run", "dp-ring", "--dry-run", "--json") == 0, desk.err
    document: dict[str, dict[str, object]] = json.loads(desk.out)
    return document["trial"]


def test_the_command_line_is_stronger_than_the_variable_the_project_and_the_user(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccbed("up", "local.yml")
    seeds = []
    write(ccbed, "[run]\nseed = 1\n", user=True)
    seeds.append(trial(ccbed)["seed"])
    write(ccbed, "seed = 2\n")
    seeds.append(trial(ccbed)["seed"])
    write(ccbed, "seed = 2\n[run]\nseed = 3\n")
    seeds.append(trial(ccbed)["seed"])
    monkeypatch.setenv("CCBED_SEED", "4")
    seeds.append(trial(ccbed)["seed"])
    assert ccbed("run", "dp-ring", "--dry-run", "--seed", "5") == 0
    assert seeds == [1, 2, 3, 4]
    assert "seed 5" in ccbed.out


def test_parameters_of_workloads_lists_and_flags_are_keys_too(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    write(ccbed, '[run]\nepochs = 2\nfail_node = ["n1"]\ntwin = false\nbackend = "gloo"\n')
    document = trial(ccbed)
    assert document["params"]["epochs"] == 2  # type: ignore[index]
    assert document["faults"][0]["node"] == "n1"  # type: ignore[index]


@pytest.mark.parametrize("table", ["", "[run]\n"])
@pytest.mark.parametrize("line", [("run", "dp-ring", "--dry-run"), ("config", "show"), ("runs",)])
def test_a_former_key_works_for_one_release_with_every_verb(ccbed: Desk, table: str, line: tuple[str, ...]) -> None:
    ccbed("up", "local.yml")
    write(ccbed, f"{table}twin = false\n")
    assert ccbed(*line) == 0
    assert "twin is now reference; the former name works for one release" in ccbed.err
    assert "unknown" not in ccbed.err


def test_a_table_of_a_former_verb_is_that_of_the_present_one(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    write(ccbed, '[drain]\nreason = "a fan"\n')
    assert ccbed("status") == 0
    assert "the verb drain is now set-aside; the former name works for one release" in ccbed.err
    assert ccbed("set-aside", "localhost") == 0


@pytest.mark.parametrize("text", ["'rng,ema'", "['rng', 'ema']"])
def test_the_parts_that_may_be_lost_are_a_text_or_a_list(ccbed: Desk, text: str) -> None:
    ccbed("up", "local.yml")
    write(ccbed, f"[run]\naccept = {text}\n")
    assert trial(ccbed)["accept"] == ["rng", "ema"]


def test_a_path_of_the_project_is_relative_to_its_file(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ccbed, 'runs-dir = "my-runs"\n')
    (ccbed.root / "below").mkdir()
    monkeypatch.chdir(ccbed.root / "below")
    assert ccbed("check") == 3
    assert "my-runs: no run yet" in ccbed.err and "below" not in ccbed.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bedd = 1\n", "ccbed.toml:1: unknown key bedd; did you mean bed?"),
        ("\n[rnu]\nseed = 1\n", "ccbed.toml:3: unknown verb rnu; did you mean run?"),
        (
            "[run]\n# a comment\nbakend = 'gloo'\n",
            "ccbed.toml:3: run.bakend: unknown option of ccbed run; did you mean backend?",
        ),
        ("[image.build]\nkind = 'cuad'\n", "image.build.kind: 'cuad' is not one of 'cpu', 'cuda'; did you mean cuda?"),
        ("[logs]\nrank = 'x'\n", "ccbed.toml:2: logs.rank: must be a whole number (got x)"),
        ("[run]\ndry-run = 3\n", "ccbed.toml:2: run.dry-run: must be true or false (got 3)"),
        ("[run]\nseed = [1]\n", "ccbed.toml:2: run.seed: must be one value, not a list"),
        ("bed = \n", "ccbed.toml:1: not valid TOML: Invalid value"),
    ],
)
def test_a_wrong_setting_is_one_error_with_its_place(ccbed: Desk, text: str, problem: str) -> None:
    write(ccbed, text)
    verb = next((verb for verb in ("run", "image", "logs") if f"[{verb}" in text), "status")
    for args in ((verb, *(["build"] if verb == "image" else ["dp-ring"])), ("config", "show")):
        assert ccbed(*args) == 3
        assert problem in ccbed.err and ccbed.err.count("error:") == 1


def test_a_value_that_the_verb_rejects_has_its_place_as_well(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ccbed("up", "local.yml")
    write(ccbed, "seed = 'y'\n[run]\nseed = 'x'\n")
    problem = "error: --seed: must be a whole number (got x)"
    assert ccbed("run", "dp-ring") == 3 and f"{problem} (--seed is set in ccbed.toml:3)\n" in ccbed.err
    monkeypatch.setenv("CCBED_SEED", "x")
    assert ccbed("run", "dp-ring") == 3 and f"{problem} (--seed is set in CCBED_SEED)\n" in ccbed.err
    assert ccbed("run", "dp-ring", "--seed", "x") == 3 and f"{problem}\n" in ccbed.err
    assert ccbed("run", "dp-ring", "--seed=x") == 3 and f"{problem}\n" in ccbed.err


def test_a_file_that_is_no_text_is_one_error(ccbed: Desk) -> None:
    (ccbed.root / "ccbed.toml").write_bytes(b"\xd0\xff")
    assert ccbed("status") == 3
    assert ccbed.err == "error: ccbed.toml: not valid TOML: not UTF-8 text (byte 0)\n"


def test_all_mistakes_are_reported_at_once(ccbed: Desk) -> None:
    write(ccbed, "bedd = 1\n[run]\nbakend = 1\n")
    assert ccbed("run", "dp-ring") == 3 and ccbed.err.count("error:") == 2


def test_the_table_of_another_verb_loads_no_workload(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_as_defaults, "_workload_params", lambda ctx: pytest.fail("workloads are loaded"))
    write(ccbed, "[run]\nepochs = 2\n")
    assert ccbed("status") == 0, ccbed.err


def test_a_project_names_no_program_and_confirms_nothing(ccbed: Desk) -> None:
    folder = ccbed.root / "evil" / "faults"
    folder.mkdir(parents=True)
    (folder / "evil.py").write_text(f"open({str(ccbed.root / 'ran')!r}, 'w')\n")
    write(
        ccbed, 'plugins = "evil"\n[run]\nepochs = 2\nfile = "x.py"\n[nightly]\non-culprit = "rm"\n[down]\nall = true\n'
    )
    only = "only in ~/.config/ccbed/config.toml, in the environment or on the command line"
    for args in (("status",), ("run", "dp-ring"), ("down",), ("config", "show")):
        assert ccbed(*args) == 3
        lines = [line for line in ccbed.err.splitlines() if line.startswith("error:")]
        reasons = {
            "1: plugins": "ccbed imports its files", "4: run.file": "it is run", "6: nightly.on-culprit": "it is a command",
            "8: down.all": "it confirms an act, or widens it",
        }  # fmt: skip
        assert lines == [f"error: ccbed.toml:{key}: {only}: {reason}" for key, reason in reasons.items()]
    assert not (ccbed.root / "ran").exists()
    for verb, key in (("compare", "html"), ("trend", "plot"), ("bundle.export", "output")):
        write(ccbed, f'[{verb}]\n{key} = "/etc/passwd"\n')
        assert ccbed("status") == 3 and "it overwrites a file" in ccbed.err
    write(ccbed, 'model = "evil:make"\n[size]\nmodel = "evil:make"\n')
    assert ccbed("status") == 3 and ccbed.err.count("error:") == 2
    (ccbed.root / "ccbed.toml").unlink()
    write(ccbed, "[down]\nall = true\n", user=True)
    assert ccbed("down") == 0, ccbed.err


def test_a_path_of_the_user_is_relative_to_the_file_as_well(ccbed: Desk) -> None:
    write(ccbed, 'runs-dir = "my-runs"\nplugins = ["mine"]\n', user=True)
    (ccbed.root / "config" / "ccbed" / "mine" / "faults").mkdir(parents=True)
    assert ccbed("check") == 3
    assert "config/ccbed/my-runs: no run yet" in ccbed.err


#: Options, and parameters of the shipped workloads, that a project may set to anything: they run nothing, confirm nothing and
#: name no path. A new option belongs here, in ``files.PATHS``, or among those that are refused.
_HARMLESS = """
accept algorithm all-gather all-reduce args ask-vault-pass asynchronous at attention auto-s backend batch bed broadcast bucket-mb
budget checkpoint-every checkpoint-retry-s close cold csv dataset detach digest-every disk-mib disk-tool drain dry-run dtype dtypes
each-node each-pair ep ephemeral epochs exit-timeout-s experts fail-node fail-on fail-over fault ffn follow fresh-probe gap-ms
gap-scale gather gpu-memory gpus grace grace-s groups grow-after heads hidden in-turn input items iterations
jobid json keep keep-last keep-size kind kv-heads layers like limit lines link loss-band lr margin max-restarts
max-unavailable memory-mib metric microbatches nic-mib night nnodes node noise nproc older-than only operation operator
optimizer outcome over passes plots pp precision precision-s prepare probe probe-s probe-spares probes quick quiet rank
ranks-per-node reason rebuild recompute recovery reference repeat repeat-s repeats replace-wait require reshard rounds save-grace-s scatter
secret seed sequence sequence-parallel shares since sizes start step-min-ms step-regex steps stop-at strategy style systems
table tag tee timeout timeout-s tokens topk tp trial until verbose verify vocabulary wait wall warmup world zero
"""
HARMLESS = set(_HARMLESS.split())
#: Parameters with the name of an option that is in another class.
PARAMS_HARMLESS = {"model", "record"}


def test_each_option_is_in_exactly_one_class(ccbed: Desk) -> None:
    refused = files.EXECUTING.keys() | files.CONFIRMING.keys()
    names = set()
    for path, command in [((), main._group()), *every_verb()]:
        for option in settings_as_defaults.options(command):
            key = settings_as_defaults.key(option)
            names |= {key, ".".join((*path, key))}
            others = [name[2:] for name in option.opts if name.startswith("--")]
            assert len({files.refusal(path, name) for name in others}) <= 1, f"{others}: another name is allowed"
            of_user = bool(files.refusal(path, key))
            assert of_user + (key in files.PATHS) + (key in HARMLESS) == 1, f"{path} {key} is in no class, or in two"
            is_path = isinstance(option.type, click.Path | click.File) or "DIR" in str(option.metavar)
            assert not is_path or key not in HARMLESS, f"{path} {key} is a path"
    params = _params()
    unknown = params - refused - files.PATHS.keys() - HARMLESS - PARAMS_HARMLESS
    assert not unknown, f"parameters of workloads in no class: {unknown}"
    assert (refused | files.PATHS.keys() | HARMLESS) - {"exec-"} <= names | params, "an option is gone"


def _params() -> set[str]:
    workloads = plugins.discover(()).workloads
    names = {field.name for plugin in workloads.values() for field in dataclasses.fields(plugin.module.Params)}
    return {name.rstrip("_").replace("_", "-") for name in names}


@pytest.mark.parametrize(
    ("verb", "key"),
    [
        ("run", "runs-dir"), ("run", "log-dir"), ("run", "data-dir"), ("run", "baselines"), ("size", "emit"), ("size", "trace"),
        ("run", "root"), ("run", "checkpoints"), ("bundle.sign", "key"), ("nightly", "resume"), ("", "runs_dir"),
    ],
)  # fmt: skip
def test_a_project_names_no_path_outside_of_itself(ccbed: Desk, tmp_path: Path, verb: str, key: str) -> None:
    (ccbed.root / "link").symlink_to("/etc")
    (ccbed.root / "deep").symlink_to("config/ccbed")
    table = f"[{verb}]\n" if verb else ""
    for value in (
        "/",
        "..",
        "../other",
        "link",
        "link/passwd",
        "deep/../../x",
        "~/x",
        f"{ccbed.root}/../x",
        f"{ccbed.root}x",
    ):
        text = json.dumps([value] if key == "checkpoints" else value)
        write(ccbed, f"{table}{key} = {text}\n")
        assert ccbed("status") == 3, f"{value} is accepted"
        assert f"is outside of {ccbed.root}: " in ccbed.err and ccbed.err.startswith(
            f"error: ccbed.toml:{1 + bool(verb)}: "
        )
    for value in ("in", "in/../x", str(ccbed.root / "in")):
        text = json.dumps([value] if key == "checkpoints" else value)
        write(ccbed, f"{table}{key} = {text}\n")
        assert ccbed("status") == 0, ccbed.err


def test_show_says_where_each_value_comes_from(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ccbed, 'bed = "lab"\n', user=True)
    write(ccbed, 'bed = "local"\n[run]\nseed = 3\n')
    monkeypatch.setenv("CCBED_WALL", "2h")
    monkeypatch.setenv("CCBED_DATABASE_URL", "postgresql://me:secret@host/db")
    assert ccbed("config", "show", "--json") == 0
    rows = {(row["key"], row["value"]): row["from"] for row in json.loads(ccbed.out)["settings"]}
    assert rows["bed", "lab"] == "config/ccbed/config.toml:1 (overridden in ccbed.toml:1)"
    assert rows["bed", "local"] == "ccbed.toml:1"
    assert rows["run.seed", "3"] == "ccbed.toml:3"
    assert rows["CCBED_WALL", "2h"] == "environment"
    assert ccbed("config", "show") == 0 and "ccbed.toml:3" in ccbed.out and "secret" not in ccbed.out


def test_show_redacts_the_secrets_of_files(ccbed: Desk) -> None:
    write(ccbed, '[run]\nenv = ["HF_TOKEN=abc123", "LEVEL=3"]\nsecret = ["MY_TOKEN"]\nwall = "2h"\n', user=True)
    for args in (("config", "show"), ("config", "show", "--json")):
        assert ccbed(*args) == 0, ccbed.err
        assert "abc123" not in ccbed.out
        assert all(text in ccbed.out for text in ("HF_TOKEN=<redacted>", "LEVEL=3", "MY_TOKEN", "2h"))


def test_show_knows_the_parameters_of_the_plugins_that_a_file_names(ccbed: Desk) -> None:
    write(ccbed, 'plugins = ["mine"]\n[run]\nmy-knob = 3\n', user=True)
    folder = ccbed.root / "config" / "ccbed" / "mine" / "workloads"
    folder.mkdir(parents=True)
    text = Path(infer_dp.__file__).read_text().replace("passes: int", "my_knob: int = 1\n    passes: int")
    (folder / "turn_knob.py").write_text(text)
    assert ccbed("config", "show") == 0, ccbed.err
    assert "run.my-knob" in ccbed.out


def test_a_file_of_somebody_else_is_not_read(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ccbed, "[run]\nseed = 3\n")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    file = ccbed.root / "ccbed.toml"
    is_of_root = file.stat().st_uid == 0
    if is_of_root:
        import os

        try:
            os.chown(file, 12346, -1)
        except PermissionError:
            pytest.skip("this user cannot give a file away")
    assert ccbed("status") == 0
    assert "ccbed.toml: not read: it belongs to another user" in ccbed.err


def test_quiet_prints_the_result_only_and_verbose_what_was_used(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml", "-q") == 0
    assert len(ccbed.out.splitlines()) == 1 and ccbed.out.startswith("up in ")
    assert ccbed("-v", "status") == 0
    assert "state in " in ccbed.err and "files of settings: none" in ccbed.err
    assert ccbed("status", "-q", "-v") == 3 and "exclude each other" in ccbed.err


def test_the_line_is_stronger_than_quiet_in_a_file(ccbed: Desk) -> None:
    write(ccbed, "quiet = true\n")
    assert ccbed("up", "local.yml") == 0 and len(ccbed.out.splitlines()) == 1
    assert ccbed("status", "-v") == 0 and "files of settings: ccbed.toml" in ccbed.err
    assert ccbed("-v", "status") == 0 and "files of settings: ccbed.toml" in ccbed.err


def every_verb() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    root = main._group()
    context = click.Context(root)

    def below(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                nested = command.get_command(context, name)
                assert nested is not None
                yield from below((*path, name), nested)

    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        yield from below((name,), command)


@pytest.mark.parametrize("verb", list(every_verb()), ids=lambda verb: "-".join(verb[0]))
def test_every_verb_has_json_quiet_and_verbose(verb: tuple[tuple[str, ...], click.Command]) -> None:
    names = {name for param in verb[1].params for name in param.opts}
    assert {"--json", "--quiet", "--verbose"} <= names


def test_verbs_that_change_a_bed_print_one_document(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml", "--json") == 0
    assert [node["state"] for node in json.loads(ccbed.out)["nodes"]] == ["warm"] * 5
    assert ccbed("heal", "--json") == 0
    assert json.loads(ccbed.out)["closed_run"] is None
    assert ccbed("up", "local.yml", "--dry-run", "--json") == 0
    assert json.loads(ccbed.out)["empty"] is True
    assert ccbed("logs", "local/n0", "--json") == 0 and ccbed.out == ""
    assert ccbed("down", "--json") == 0
    assert [bed["bed"] for bed in json.loads(ccbed.out)] == ["local"]


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        ("up nothing.yml", 3, "nothing.yml: cannot be read: No such file or directory"),
        ("check nope", 3, "no run nope in runs"),
        ("statsu", 3, "unknown verb statsu; did you mean status?"),
        ("status --jsn", 3, "unknown option --jsn; did you mean --json?"),
        ("run", 3, "Missing argument 'TRIAL|FILE.yml|FILE.py|example:NAME [-- ARGS]'."),
        ("trend gemm", 2, "runs: no recorded night with measurements yet"),
    ],
)
def test_an_error_is_a_document_too(ccbed: Desk, args: str, code: int, problem: str) -> None:
    assert ccbed(*args.split(), "--json") == code
    document = json.loads(ccbed.out)
    assert (document["error"]["problems"], document["exit"]) == ([problem], code)
    assert ccbed.err == f"error: {problem}\nnext: {document['error']['next']}\n"
    assert ccbed(*args.split()) == code and ccbed.out == ""


def test_the_json_of_a_program_is_not_that_of_ccbed(ccbed: Desk) -> None:
    assert ccbed("exec", "n0", "--", "train", "--json") == 3
    assert ccbed.out == "" and "no bed is up" in ccbed.err


def test_what_is_a_document_already_gets_no_second_one(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: terminal.Terminal, value: object, *, indent: int | None = 1) -> None:
        printed(self, value, indent=indent)
        raise KeyboardInterrupt

    printed = terminal.Terminal.json
    monkeypatch.setattr(terminal.Terminal, "json", interrupted)
    assert ccbed("status", "--json") == 130
    assert json.loads(ccbed.out) == [] and ccbed.err == "error: interrupted\n"


def test_each_option_has_a_variable_of_its_name(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBED_JSON", "1")
    assert ccbed("status") == 0 and ccbed.out == "[]\n"
    assert ccbed("status", "nope") == 3 and json.loads(ccbed.out)["exit"] == 3
    monkeypatch.setenv("CCBED_RANK", "x")
    assert ccbed("logs") == 3 and ccbed.err.startswith("error: CCBED_RANK: must be a whole number (got x)\n")
    for path, command in every_verb():
        for option in settings_as_defaults.options(command):
            variable = f"CCBED_{settings_as_defaults.key(option).replace('-', '_').upper()}"
            assert option.envvar == variable or option.name == variable.removeprefix("CCBED_").lower(), path


def test_version_names_torch_without_importing_it(ccbed: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import metadata

    assert ccbed("--version") == 0
    assert f"· torch {metadata.version('torch')} · Python 3." in capsys.readouterr().out


@pytest.mark.parametrize("value", ["", "relative", "/absolute", " /blank", None])
def test_the_directories_of_a_user_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert state_dir() == platformdirs.user_state_path("ccbed")
    assert files.user_file() == platformdirs.user_config_path("ccbed") / "config.toml"
