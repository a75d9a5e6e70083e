"""Every test starts from the same seed, on one thread and with the default dtype."""

import hypothesis
import pytest
import torch

import devices

hypothesis.settings.register_profile("posenc", deadline=None, derandomize=True, max_examples=40, database=None)
hypothesis.settings.load_profile("posenc")


def pytest_ignore_collect(collection_path, config):
    """`-m kernels`, which runs once per instruction set, does not import files without such tests."""
    if config.option.markexpr == "kernels" and collection_path.suffix == ".py":
        return "mark.kernels" not in collection_path.read_text() or None
    return None


@pytest.fixture(autouse=True)
def _deterministic():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(params=devices.PARAMETERS)
def device(request):
    """The name of the device under test; tensors are made there unless a call says where."""
    if request.param == "cpu":
        yield request.param
    else:
        with torch.device(request.param):
            yield request.param


@pytest.fixture
def fresh_compiler():
    """torch.compile without the graphs of earlier tests."""
    torch.compiler.reset()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()
