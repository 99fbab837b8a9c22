"""The command line: help, version, exit codes, and errors of one line that name what was wrong."""
import re

import pytest

COMMANDS = ["serve", "check", "bench", "model"]


def one_line(text):
    assert text.startswith("berth: ") and text.count("\n") == 1 and text.endswith("\n"), text
    return text


def test_version_is_a_name_and_a_number(berth):
    result = berth("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"berth \d+\.\d+\.\d+\n", result.stdout)
    assert result.stderr == ""


def test_help_names_every_command(berth):
    result = berth("--help")
    assert result.returncode == 0 and result.stderr == ""
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", result.stdout, re.M)
    assert berth("-h").stdout == result.stdout


def test_the_exit_codes_are_told_as_the_readme_tells_them(berth, root):
    told = re.search(r"Exit codes: .* is 1\.", (root / "README.md").read_text().replace("\n", " ").replace("`", ""))
    assert told and told[0] in berth("--help").stdout.replace("\n", " ")


HELP = [[], ["serve"], ["check"], ["bench"], ["bench", "policy"], ["bench", "--url", "x"], ["bench", "--compare", "x=1,2"], ["policy"],
        ["policy", "check"], ["policy", "list"], ["policy", "eval"], ["model"], ["model", "info"], ["model", "tokenize"], ["model", "render"]]


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_fits_into_a_terminal(berth, command):
    result = berth(*command, "--help")
    assert result.returncode == 0 and result.stdout.startswith("usage: berth")
    assert not too_long(result)


def too_long(result):
    return [line for line in result.stdout.splitlines() if len(line) > 80]


def test_what_help_lists_fits_into_a_terminal(berth):
    for args in (["--help-config"], ["--help-metrics"], ["policy", "list"]):
        # A path alone may be as long as it likes.
        assert not [line for line in too_long(berth(*args)) if "/" not in line], args


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself(berth, command, option):
    result = berth(command, option)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(f"usage: berth {command}")


def test_no_command_is_wrong_usage_and_shows_the_usage(berth):
    result = berth()
    assert result.returncode == 2
    assert result.stdout == "" and "usage: berth" in result.stderr


@pytest.mark.parametrize("given, meant", [("srve", "serve"), ("chekc", "check"), ("benhc", "bench"), ("modle", "model"),
                                          ("--versoin", "--version"), ("--hlep", "--help")])
def test_a_misspelt_command_is_told_what_was_meant(berth, given, meant):
    result = berth(given)
    assert result.returncode == 2 and result.stdout == ""
    assert f"did you mean {meant}?" in one_line(result.stderr)


def test_a_wholly_unknown_command_points_to_the_help(berth):
    result = berth("frobnicate")
    assert result.returncode == 2
    assert "berth --help" in one_line(result.stderr) and "did you mean" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "check", "bench"])
@pytest.mark.parametrize("args, part", [
    (["--confg", "x"], "did you mean --config?"),
    (["--frobnicate"], "unknown option --frobnicate"),
    (["--config"], "--config wants a value: --config FILE"),
    (["--config="], "--config wants a value: --config FILE"),
    (["--config", ""], "--config wants a value: --config FILE"),
    (["--set="], "--set wants a value: --set KEY=VALUE"),
    (["--set", "foo"], '"foo": an override is KEY=VALUE'),
    (["--set", "="], "the key is missing"),
    (["--set", "foo=1"], "foo: unknown key; berth --help-config lists all"),
    (["--set", "engine=1"], "engine: a section, not a key"),
    (["--set", "engine.slots=0"], "engine.slots: 0 where 1..1024"),
    (["--config", "--set"], "--config wants a value"),
    (["--config", "a", "--config", "b"], "--config is given twice"),
    (["one", "two"], 'unexpected argument "'),
    (["--", "--one", "--two"], 'unexpected argument "--'),
])
def test_wrong_options_are_wrong_usage(berth, command, args, part):
    result = berth(command, *args)
    assert result.returncode == 2 and result.stdout == ""
    assert part in one_line(result.stderr)


@pytest.mark.parametrize("args, part", [
    (["--port", "9000"], "unknown option --port; did you mean --set server.listen=127.0.0.1:PORT?"),
    (["--host=0.0.0.0"], "did you mean --set server.listen=HOST:PORT?"),
    (["--model", "m.gguf"], "did you mean --set model.path=FILE?"),
    (["-m", "m.gguf"], "did you mean --set model.path=FILE?"),
    (["--threads", "2"], "did you mean --set engine.threads=VALUE?"),
    (["--kv-tokens=9"], "did you mean --set engine.kv_tokens=VALUE?"),
    (["--sets=a=b"], "did you mean --set?"),
    (["m.gguf"], 'unexpected argument "m.gguf"; did you mean --set model.path=m.gguf?'),
    (["conf/berth.json"], "did you mean --config conf/berth.json?"),
    (["engine.threads=2"], "did you mean --set engine.threads=2?"),
])
def test_what_other_servers_take_is_told_in_terms_of_settings(berth, args, part):
    result = berth("serve", *args)
    assert result.returncode == 2 and part in one_line(result.stderr), result.stderr


def test_a_suggestion_is_near(berth):
    assert "did you mean" not in one_line(berth("bench", "--compare", "engine.foo=1,2").stderr)
    assert "did you mean engine.rows?" in one_line(berth("bench", "--compare", "engine.row=1,2").stderr)
    assert "did you mean" not in one_line(berth("model", "info", "--port", "1").stderr)


@pytest.mark.parametrize("command", ["serve", "check", "bench"])
def test_a_wrong_setting_is_wrong_usage_and_names_the_key(berth, command):
    result = berth(command, "--set", "engine.thread=2")
    assert result.returncode == 2 and result.stdout == ""
    assert "engine.thread: unknown key; did you mean engine.threads? (--set)" in one_line(result.stderr)


def test_an_argument_with_a_line_break_makes_one_line(berth):
    result = berth("check", "--set", "a\nb=c")
    assert result.returncode == 2
    one_line(result.stderr)


def test_help_config_lists_every_key(berth):
    keys = [line.split(" = ")[0] for line in berth("check").stdout.splitlines() if " = " in line]
    text = berth("--help-config").stdout
    assert len(keys) > 30
    for key in keys:
        assert re.search(rf"^  {re.escape(key)}  \(default ", text, re.M), key


def test_a_full_disk_is_a_failure(berth_bin):
    import subprocess
    with open("/dev/full", "w") as full:
        result = subprocess.run([str(berth_bin), "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    one_line(result.stderr)
