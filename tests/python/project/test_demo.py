"""The demonstration: both programs do what they say, and agree with each other to 1e-5."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import cases
from processes import ROOT

PYTHON_PROGRAM = ROOT / "examples/python/train_lm.py"
BUILD = Path(os.environ.get("POSENC_BUILD_DIR", ROOT / f"build/torch-{torch.__version__.partition('+')[0]}"))
CPP_PROGRAM = BUILD / "examples/cpp/train_lm"
sys.path.insert(0, str(PYTHON_PROGRAM.parent))

import train_lm  # noqa: E402  (needs the path above)
from lm.data import DataError, fnv1a, load_corpus, validation_segments  # noqa: E402
from lm.encodings import ENCODINGS  # noqa: E402
from lm.evaluate import evaluate  # noqa: E402
from lm.model import LanguageModel, ModelOptions  # noqa: E402
from lm.scalings import SCALINGS  # noqa: E402

TEXT = Path(asyncio.__file__).parent
TINY = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "64", "--batch", "4"]
BRIEF = ["--data", str(TEXT), "--windows", "2", "--threads", "1", "--scalings", ",".join(SCALINGS)]
LENGTHS = [64, 128, 256, 512]


@dataclass
class Outcome:
    status: int
    output: str
    errors: str


@pytest.fixture
def programs(capfd):
    """Both programs as functions of their arguments."""

    def python(*arguments):
        capfd.readouterr()
        try:
            status = train_lm.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            status = exit.code
        return Outcome(status, *capfd.readouterr())

    def cpp(*arguments):
        run = run_cpp(*arguments)
        return Outcome(run.returncode, run.stdout, run.stderr)

    return {"python": python, "c++": cpp}


def run_cpp(*arguments):
    assert CPP_PROGRAM.exists(), f"{CPP_PROGRAM} is missing: build with -DPOSENC_BUILD_EXAMPLES=ON"
    return subprocess.run([CPP_PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of both programs, by language, after the same brief training with every encoding."""
    folders = {language: tmp_path_factory.mktemp("trained") for language in ("python", "c++")}
    arguments = (*TINY, *BRIEF, "--steps", 10, "--seed", 7, "--encodings", ",".join(ENCODINGS), "--out")
    assert train_lm.main([str(argument) for argument in (*arguments, folders["python"])]) == 0
    assert run_cpp(*arguments, folders["c++"]).returncode == 0
    return folders


in_both_languages = pytest.mark.parametrize("language", ["python", "c++"])


def other(language):
    return "c++" if language == "python" else "python"


def numbers(folder):
    return json.loads((folder / "results.json").read_text())


def assert_same_scores(folder, expected_folder, tolerance, encoding=None):
    scores, expected = numbers(folder)["scores"], numbers(expected_folder)["scores"]
    if encoding is not None:
        expected = [e for e in expected if e["encoding"] == encoding]
    assert len(expected) >= len(LENGTHS)
    for score, e in zip(scores, expected, strict=True):
        assert [score[key] for key in ("encoding", "scaling", "length")] == [
            e[key] for key in ("encoding", "scaling", "length")
        ]
        if e["bits_per_byte"] is None:
            assert score["bits_per_byte"] is None
        else:
            assert score["bits_per_byte"] == pytest.approx(e["bits_per_byte"], rel=0, abs=tolerance)
        assert score["by_position"] == pytest.approx(e["by_position"], rel=0, abs=10 * tolerance)


# What a run leaves behind


@in_both_languages
def test_run_shows_a_table_and_writes_numbers_plot_and_weights(programs, language, tmp_path):
    outcome = programs[language](*TINY, *BRIEF, "--steps", 30, "--out", tmp_path)
    assert outcome.status == 0, outcome.errors
    for scaling in SCALINGS:
        assert re.search(rf"RoPE\W+{scaling}(\W+\d\.\d{{3}}){{{len(LENGTHS)}}}", outcome.output), outcome.output
    assert "training rotary 30/30" in outcome.output

    result = numbers(tmp_path)
    assert {(score["scaling"], score["length"]) for score in result["scores"]} == {
        (scaling, length) for scaling in SCALINGS for length in LENGTHS
    }
    for score in result["scores"]:
        assert len(score["by_position"]) == score["length"] // result["position_bucket"]
        assert sum(score["by_position"]) / len(score["by_position"]) == pytest.approx(score["bits_per_byte"])
    curve = [point["bits_per_byte"] for point in result["training"]["rotary"]["curve"]]
    assert len(curve) == 3 and curve[-1] < curve[0] - 0.2
    assert result["data"]["scored_bytes"] == 2 * LENGTHS[-1]
    assert not result["interrupted"]

    assert (tmp_path / "weights-rotary.pt").stat().st_size > 10_000
    if language == "python":
        plot = (tmp_path / "results.png").read_bytes()
        assert plot.startswith(b"\x89PNG") and len(plot) > 10_000


def test_scalings_agree_at_the_trained_length_and_differ_beyond(programs, tmp_path):
    assert programs["python"](*TINY, *BRIEF, "--steps", 30, "--out", tmp_path).status == 0
    by_length = {length: set() for length in LENGTHS}
    for score in numbers(tmp_path)["scores"]:
        by_length[score["length"]].add(round(score["bits_per_byte"], 9))
    assert len(by_length[64]) == 1
    assert len(by_length[512]) == len(SCALINGS)


@in_both_languages
def test_every_encoding_trains(language, trained):
    folder = trained[language]
    scored = {(score["encoding"], score["scaling"]) for score in numbers(folder)["scores"]}
    assert scored == {
        (name, scaling)
        for name, encoding in ENCODINGS.items()
        for scaling in (SCALINGS if encoding.rescalable else ["none"])
    }
    assert all((folder / f"weights-{name}.pt").exists() for name in ENCODINGS)


def test_python_draws_what_heads_with_contextual_positions_count(trained):
    for name in ("cope", "rotary-cope"):
        picture = (trained["python"] / f"counted-{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert {path.name for path in trained["python"].glob("counted-*")} == {
        "counted-cope.png",
        "counted-rotary-cope.png",
    }


@in_both_languages
def test_lengths_beyond_a_table_are_reported_as_not_defined(programs, language, tmp_path):
    arguments = ("--steps", 1, "--encodings", "learned,sinusoidal", "--out", tmp_path)
    outcome = programs[language](*TINY, *BRIEF, *arguments)
    assert outcome.status == 0, outcome.errors
    assert re.search(r"learned\W+none\W+\d\.\d{3}" + r"\W+not defined" * 3, outcome.output), outcome.output
    scores = {(score["encoding"], score["length"]): score["bits_per_byte"] for score in numbers(tmp_path)["scores"]}
    undefined = {key for key, bits in scores.items() if bits is None}
    assert undefined == {("learned", length) for length in LENGTHS[1:]}


# The same in both languages


@in_both_languages
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_same_weights_give_the_same_loss_in_the_other_language(programs, language, encoding, trained, tmp_path):
    arguments = ("--steps", 0, "--weights", trained[language] / f"weights-{encoding}.pt", "--out", tmp_path)
    outcome = programs[other(language)](*BRIEF, *arguments)
    assert outcome.status == 0, outcome.errors
    assert_same_scores(tmp_path, trained[language], 1e-5, encoding)
    assert numbers(tmp_path)["model"] == numbers(trained[language])["model"]


def test_every_encoding_of_text_can_be_trained():
    made = set()
    for name in ENCODINGS:
        model = LanguageModel(ModelOptions(encoding=name, layers=1, width=32, heads=2))
        made |= {type(module).__name__ for module in model.modules() if type(module).__module__.startswith("posenc.")}
    assert made == cases.ENCODINGS - cases.GRIDS


def test_same_seed_trains_the_same_models_in_both_languages(trained):
    assert_same_scores(trained["c++"], trained["python"], 1e-4)


def test_same_files_are_held_out_in_both_languages(programs, tmp_path):
    folder, draw = tmp_path / "text", random.Random(0)
    for name in ["a", "b.txt", "deep/er/c.bin", "ümlaut", "deep/with space", ".hidden", "__pycache__/d", "empty"]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(0 if name == "empty" else draw.randrange(2_000, 60_000)))
    (folder / "link").symlink_to(folder / "b.txt")
    (folder / "dangling").symlink_to(folder / "nothing")
    for language, run in programs.items():
        outcome = run(*TINY, *BRIEF, "--data", folder, "--steps", 1, "--out", tmp_path / language)
        assert outcome.status == 0, outcome.errors
    python, cpp = numbers(tmp_path / "python"), numbers(tmp_path / "c++")
    assert python["data"] == cpp["data"]
    assert python["data"]["files"] == 7
    assert python["data"]["scored_bytes"] > 0
    assert_same_scores(tmp_path / "c++", tmp_path / "python", 1e-5)


def test_both_languages_take_the_same_flags_and_names(programs):
    helps = {language: run("--help") for language, run in programs.items()}
    flags = {language: set(re.findall(r"--[a-z-]+", help.output)) - {"--help"} for language, help in helps.items()}
    assert flags["python"] == flags["c++"]
    assert len(flags["python"]) == 16
    for outcome in helps.values():
        assert outcome.status == 0
        text = " ".join(outcome.output.split())
        assert f": {', '.join(SCALINGS)} (" in text
        assert f": {', '.join(ENCODINGS)} (" in text


# Repeatable


@in_both_languages
def test_seed_decides_the_weights_bit_for_bit(programs, language, tmp_path):
    def train(name, seed):
        arguments = (*TINY, *BRIEF, "--steps", 5, "--seed", seed, "--scalings", "none", "--out", tmp_path / name)
        assert programs[language](*arguments).status == 0
        return (tmp_path / name / "weights-rotary.pt").read_bytes()

    first = train("first", 1)
    assert train("again", 1) == first
    assert train("other", 2) != first


@in_both_languages
def test_training_continues_from_saved_weights(programs, language, tmp_path):
    assert programs[language](*TINY, *BRIEF, "--steps", 40, "--scalings", "none", "--out", tmp_path / "a").status == 0
    arguments = ("--steps", 10, "--scalings", "none", "--weights", tmp_path / "a/weights-rotary.pt")
    assert programs[language](*BRIEF, *arguments, "--out", tmp_path / "b").status == 0
    before = numbers(tmp_path / "a")["training"]["rotary"]["curve"]
    after = numbers(tmp_path / "b")["training"]["rotary"]["curve"]
    assert after[0]["bits_per_byte"] < before[0]["bits_per_byte"] - 1.0


# Ends early without losing anything


@in_both_languages
def test_interrupt_keeps_the_weights_and_reports(programs, language, tmp_path):
    program = [sys.executable, str(PYTHON_PROGRAM)] if language == "python" else [str(CPP_PROGRAM)]
    arguments = [*TINY, *BRIEF, "--steps", "1000000", "--scalings", "none,yarn", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        output = ""
        while "training rotary 1/" not in output:
            output += process.stdout.readline()
            assert process.poll() is None, output
        process.send_signal(signal.SIGINT)
        output += process.communicate(timeout=240)[0]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted after" in output
    result = numbers(tmp_path / "run")
    assert result["interrupted"]
    assert 1 <= result["training"]["rotary"]["steps"] < 1_000_000
    assert len(result["scores"]) == 2 * len(LENGTHS)
    weights = tmp_path / "run/weights-rotary.pt"
    arguments = ("--steps", 0, "--scalings", "none,yarn", "--weights", weights, "--out", tmp_path / "again")
    assert programs[language](*BRIEF, *arguments).status == 0
    assert numbers(tmp_path / "again")["scores"] == result["scores"]


@in_both_languages
def test_time_limit_ends_training_with_the_weights_kept(programs, language, tmp_path):
    arguments = ("--steps", 1000, "--time-limit", 1e-9, "--scalings", "none", "--out", tmp_path)
    outcome = programs[language](*TINY, *BRIEF, *arguments)
    assert outcome.status == 0, outcome.errors
    assert "time limit after 1 of 1000 steps" in outcome.output
    assert (tmp_path / "weights-rotary.pt").exists()


def test_second_interrupt_ends_the_scoring():
    model = LanguageModel(ModelOptions(layers=1, width=16, heads=2))
    segments = validation_segments(torch.arange(100, dtype=torch.uint8), 2, 32)
    answers = iter([False, False, True])
    scores = list(evaluate(model, segments, ["none"], [8, 16, 32], stop=lambda: next(answers)))
    assert [score.length for score in scores] == [8, 16]


# Unusable input: one line that says what is wrong

UNUSABLE = {
    "missing data": (["--data", "{tmp}/nothing"], "nothing does not exist"),
    "empty folder": (["--data", "{tmp}/empty"], "empty holds no files"),
    "empty file": (["--data", "{tmp}/empty.txt"], "empty.txt is too small: 0 bytes"),
    "small file": (["--data", "{tmp}/small.txt"], "small.txt is too small: 5000 bytes, and about 20500 are needed"),
    "neither file nor folder": (["--data", "/dev/null"], "/dev/null is neither a file nor a folder"),
    "no steps": (["--steps", "0"], "--steps must be at least 1"),
    "negative steps": (["--steps=-3"], "--steps: must be at least 0, got -3"),
    "steps that are no number": (["--steps", "many"], "--steps: expected a whole number, got 'many'"),
    "no threads": (["--threads", "0"], "--threads: must be at least 1, got 0"),
    "too many threads": (["--threads", "100000"], "--threads: must be at most 1024, got 100000"),
    "negative seed": (["--seed=-1"], "--seed: must be at least 0, got -1"),
    "learning rate": (["--learning-rate", "nan"], "--learning-rate: must be positive and finite, got nan"),
    "unknown scaling": (
        ["--scalings", "yarn,warp"],
        "unknown name 'warp'; known: none, linear",
    ),
    "no scaling": (["--scalings", ","], "--scalings: expected names; known: none, linear"),
    "unknown encoding": (["--encodings", "warp"], "unknown name 'warp'; known: rotary"),
    "width": (["--width", "36", "--heads", "4"], "--width must be a multiple of twice --heads, got 36 and 4"),
    "width for axes": (
        ["--width", "12", "--heads", "2", "--encodings", "axial"],
        "the encoding 'axial' does not fit: AxialRotary: expected head_dim to be a multiple of 2 * num_axes = 4",
    ),
    "unknown flag": (["--warp", "1"], "--warp"),
    "flag without value": (["--steps"], "--steps: expected"),
    "missing weights": (["--weights", "{tmp}/nothing.pt"], "cannot read weights {tmp}/nothing.pt"),
    "folder as weights": (["--weights", "{tmp}"], "cannot read weights {tmp}"),
    "text as weights": (["--weights", "{tmp}/small.txt"], "small.txt holds no weights of this program"),
    "other weights": (["--weights", "{tmp}/other.pt"], "other.pt holds no weights of this program"),
    "size beside weights": (["--weights", "x", "--layers", "2"], "--layers comes from the weights"),
    "output in a file": (["--out", "{tmp}/small.txt/out"], "{tmp}/small.txt"),
}


@in_both_languages
@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_input_is_refused_in_one_line(programs, language, case, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "small.txt").write_bytes(bytes(5000))
    torch.save({"weights": {}, "options": {}}, tmp_path / "other.pt")
    arguments, message = UNUSABLE[case]
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    outcome = programs[language]("--out", tmp_path / "out", *arguments)
    assert outcome.status in (1, 2)
    assert message.format(tmp=tmp_path) in outcome.errors
    assert outcome.errors.startswith("train_lm: error: ")
    assert outcome.errors.count("\n") == 1
    assert not list(tmp_path.rglob("results.json"))


# The split


def test_unreadable_text_is_named():
    with pytest.raises(DataError, match="cannot read /proc/self/mem"):
        load_corpus(Path("/proc/self/mem"))


def test_held_out_files_are_not_trained_on(tmp_path):
    contents = {f"{index}.txt": f"<{index}>".encode() * 200 for index in range(100)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    corpus = load_corpus(tmp_path)
    train, validation = bytes(corpus.train.tolist()), bytes(corpus.validation.tolist())
    held_out = [content for content in contents.values() if content in validation]
    assert 0.025 <= len(validation) / len(train + validation) <= 0.05
    assert sum(map(len, held_out)) == len(validation)
    assert all((content in train) != (content in held_out) for content in contents.values())


def test_end_of_a_single_file_is_held_out(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    corpus = load_corpus(path)
    assert corpus.train.tolist() == list(range(190))
    assert corpus.validation.tolist() == list(range(190, 200))


def test_hash_is_fnv1a():
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a(b"foobar") == 0x85944171F73967E8


@pytest.mark.parametrize(("size", "count"), [(11, 1), (20, 1), (21, 2), (100, 3), (1000, 3)])
def test_validation_segments_do_not_overlap(size, count):
    segments = validation_segments(torch.arange(size, dtype=torch.int16), 3, 10)
    assert segments.shape == (count, 11)
    predicted = segments[:, 1:].flatten().tolist()
    assert len(set(predicted)) == len(predicted)
    if count > 1:
        assert segments[-1, -1] == size - 1
