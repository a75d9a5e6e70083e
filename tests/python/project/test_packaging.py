"""The package as users get it: a wheel in a folder of its own, its CMake package, and what it says about itself."""

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import posenc
from processes import ROOT, needed, python, run, search_path

TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT)
    run(*command, POSENC_BUILD_DIR=None, POSENC_CMAKE_ARGS=None)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with posenc as pip unpacks it, with a link to torch."""
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, wheel)
    (folder / "torch").symlink_to(TORCH)
    return folder


def test_wheel_holds_all_parts_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for part in (
        "posenc/__init__.py",
        "posenc/_build_info.py",
        "posenc/_C/__init__.pyi",
        "posenc/py.typed",
        "posenc/nn/__init__.py",
        "posenc/lib/libposenc.so",
        "posenc/include/posenc/posenc.h",
        "posenc/include/posenc/nn/rotary.h",
        "posenc/share/cmake/posenc/posenc-config.cmake",
    ):
        assert part in names
    assert any(re.fullmatch(r"posenc/_C\..*\.so", name) for name in names)
    headers = {f"posenc/include/{path.relative_to(ROOT / 'csrc/include')}" for path in ROOT.glob("csrc/include/**/*.h")}
    assert headers == {name for name in names if name.startswith("posenc/include/")}
    assert {name.split("/")[0].split("-")[0] for name in names} == {"posenc"}


def test_wheel_asks_for_the_minor_version_of_torch_it_was_built_with(wheel):
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
    major, minor = torch.__version__.split(".")[:2]
    assert f"Requires-Dist: torch=={major}.{minor}.*" in archive.read(metadata).decode()
    assert "-py3-none-any" not in wheel.name


def test_wheel_finds_torch_beside_itself_on_any_machine(site):
    [extension] = (site / "posenc").glob("_C.*.so")
    for library in (extension, site / "posenc/lib/libposenc.so"):
        paths = search_path(library)
        assert paths
        assert all(path.startswith("$ORIGIN") for path in paths), f"{library.name} looks in {paths}"
    assert "$ORIGIN/lib" in search_path(extension)
    # The sources' folder may appear in no text that an installation reads.
    for path in (site / "posenc").rglob("*"):
        if path.is_file() and path.suffix in {".cmake", ".py", ".pyi", ".h"}:
            assert str(ROOT) not in path.read_text(), path


def test_libposenc_needs_no_python_and_the_extension_both(site):
    [extension] = (site / "posenc").glob("_C.*.so")
    library = needed(site / "posenc/lib/libposenc.so")
    assert "libtorch_cpu.so" in library
    assert not [name for name in library if "python" in name]
    assert {"libposenc.so", "libtorch_python.so"} <= set(needed(extension))


def test_no_openmp_runtime_but_that_of_torch(site):
    [extension] = (site / "posenc").glob("_C.*.so")
    of_torch = needed(TORCH / "lib/libtorch_cpu.so")
    for library in (extension, site / "posenc/lib/libposenc.so"):
        openmp = [name for name in needed(library) if re.search(r"gomp|iomp|libomp", name)]
        assert set(openmp) <= set(of_torch)
    code = """
import torch, posenc
x = torch.ones(1, 32, 2048, 128)
posenc.ops.rotary(x, None, torch.ones(64))
print(*{line.split()[-1] for line in open("/proc/self/maps") if "omp" in line and ".so" in line})
"""
    loaded = python(code, PYTHONPATH=site, cwd=site).split()
    assert len({Path(path).resolve() for path in loaded}) == 1, loaded


def test_wheel_works_from_its_own_folder(site):
    code = """
import torch, posenc
q = torch.ones(1, 1, 2, 4)
print(posenc.__file__)
print(posenc.nn.Rotary(4)(q)[0, 0, 1].tolist())
"""
    file, row = python(code, PYTHONPATH=site, cwd=site).splitlines()
    assert Path(file) == site / "posenc/__init__.py"
    assert row.startswith("[-0.30116")  # cos 1 - sin 1


def test_development_install_is_editable_and_another_torch_gets_a_wheel():
    """`make build` installs for the default torch by `pip install --editable`, for another one from a wheel."""
    from importlib.metadata import distribution

    direct_url = distribution("posenc").read_text("direct_url.json")
    if '"editable": true' in direct_url:
        assert Path(posenc.__file__) == ROOT / "python/posenc/__init__.py"
    else:
        assert "site-packages" in posenc.__file__


def test_version_is_said_once():
    version = (ROOT / "VERSION").read_text().strip()
    assert posenc.__version__ == version
    assert posenc._C.version() == version


def test_info_says_what_runs_and_how_it_was_built():
    info = run(sys.executable, "-m", "posenc", "--info")
    for line in (
        f"posenc: {posenc.__version__}",
        f"torch: {torch.__version__}",
        f"instruction set in use: {posenc._C.cpu_capability()}",
        "CUDA: no",
    ):
        assert line in info
    assert re.search(r"threads: \d+", info)
    assert re.search(r"compiler: \w+ \d+", info)
    assert "default" in re.search(r"instruction sets: (.*)", info).group(1).split()


@pytest.mark.parametrize("level", ["default", "nonsense"])
def test_info_obeys_the_instruction_set_asked_for(level):
    command = (sys.executable, "-m", "posenc", "--info")
    if level == "default":
        assert "instruction set in use: default" in run(*command, POSENC_CPU_CAPABILITY=level)
    else:
        assert "must be default, avx2, avx512 or avx512_bf16" in run(
            *command, POSENC_CPU_CAPABILITY=level, expect_failure=True
        )


@pytest.mark.parametrize("variable", ["CMAKE_PREFIX_PATH", "posenc_DIR"])
def test_cmake_dir_leads_a_project_to_the_package_and_its_torch(site, tmp_path, variable):
    folder = run(sys.executable, "-m", "posenc", "--cmake-dir", PYTHONPATH=site, cwd=site).strip()
    assert Path(folder).is_relative_to(site)
    consumer = ROOT / "tests/consumer"
    run("cmake", "-S", consumer, "-B", tmp_path, f"-D{variable}={folder}", "-DCMAKE_BUILD_TYPE=Release")
    if variable == "posenc_DIR":  # one of both is enough to compile
        run("cmake", "--build", tmp_path, "--target", "by_name")
        run(tmp_path / "by_name")


def test_import_works_in_a_fresh_process_and_abi_is_that_of_torch():
    assert "imported" in python("import posenc; print('imported')")
    from posenc import _build_info

    assert _build_info.torch_version == torch.__version__.split("+")[0]
    assert _build_info.torch_cxx11_abi == int(torch.compiled_with_cxx11_abi())
    assert f"C++11 ABI {_build_info.torch_cxx11_abi}" in posenc._C.build_info()


@pytest.mark.parametrize(
    "line, stamps",
    [
        ('torch_version = "2.99.1"', ["2.99.1", torch.__version__]),
        ('torch_version = "1.13.0"', ["1.13.0", torch.__version__]),
        (
            f"torch_cxx11_abi = {1 - int(torch.compiled_with_cxx11_abi())}",
            [f"C++11 ABI {abi}" for abi in (0, 1)],
        ),
    ],
)
def test_another_torch_is_refused_before_a_library_is_loaded(site, tmp_path, line, stamps):
    shutil.copytree(site / "posenc", tmp_path / "posenc")
    built = tmp_path / "posenc/_build_info.py"
    built.write_text(re.sub(f"^{line.split()[0]} = .*$", line, built.read_text(), flags=re.MULTILINE))
    code = """
try:
    import posenc
except ImportError as error:
    print(error)
    print("libposenc" in open("/proc/self/maps").read())
"""
    message, loaded = python(code, PYTHONPATH=tmp_path, cwd=tmp_path).splitlines()
    for stamp in stamps:
        assert stamp in message
    assert "pip install --no-build-isolation --no-deps --force-reinstall ." in message
    assert loaded == "False"


def test_another_patch_version_is_accepted(site, tmp_path):
    shutil.copytree(site / "posenc", tmp_path / "posenc")
    built = tmp_path / "posenc/_build_info.py"
    other = ".".join([*torch.__version__.split(".")[:2], "99"])
    built.write_text(built.read_text().replace(torch.__version__.split("+")[0], other))
    assert other in built.read_text()
    assert "imported" in python("import posenc; print('imported')", PYTHONPATH=tmp_path, cwd=tmp_path)


def test_sources_without_a_build_say_how_to_build(tmp_path):
    shutil.copytree(
        ROOT / "python/posenc", tmp_path / "posenc", ignore=shutil.ignore_patterns("*.so", "_build_info.py")
    )
    message = python("import posenc", PYTHONPATH=tmp_path, cwd=tmp_path, expect_failure=True)
    assert "posenc is not built" in message
    assert "pip install --no-build-isolation ." in message
