"""What README.md shows is run, and what it lists exists."""

import re
import sys

import pytest

import cases
import posenc
from processes import ROOT, python, run

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def rows():
    """The names in the first cells of the tables of encodings."""
    for line in README.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`(\w+)`", line.split("|")[1])


def test_python_examples_run(tmp_path):
    examples = blocks("python")
    assert examples
    for example in examples:
        python(example, cwd=tmp_path)


def test_cpp_example_builds_and_runs_as_the_readme_says(tmp_path):
    [program] = blocks("cpp")
    [project] = blocks("cmake")
    (tmp_path / "main.cpp").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(project)
    prefix = run(sys.executable, "-m", "posenc", "--cmake-dir").strip()
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    output = run(tmp_path / "build/example")
    assert "Rotary" in output
    assert f"on {posenc._C.cpu_capability()}" in output


@pytest.mark.parametrize("name", list(rows()))
def test_table_of_encodings_tells_the_truth(name):
    assert hasattr(posenc.nn, name) or hasattr(posenc.scaling, name)
    headers = "".join(path.read_text() for path in (ROOT / "csrc/include/posenc").rglob("*.h"))
    assert re.search(rf"TORCH_MODULE\({name}\)|struct (POSENC_API )?{name}\b|class (POSENC_API )?{name}\b", headers)


def test_table_of_encodings_is_complete():
    listed = set(rows())
    modules = cases.ENCODINGS | {"Attention", "KVCache"}
    scalings = {name for name in posenc.scaling.__all__ if name[0].isupper() and name != "Scaling"}
    assert modules | scalings <= listed


def test_links_to_files_lead_somewhere():
    targets = re.findall(r"\]\(((?!https?:)[^)#]+)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_the_two_commands_exist():
    for command in re.findall(r"^    make (\w+)", README, flags=re.MULTILINE):
        assert f"make {command} " in run("make", "-C", ROOT)
