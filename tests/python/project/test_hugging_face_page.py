"""What docs/hugging_face.md shows is run."""

import re

import pytest

from processes import ROOT, python

PAGE = (ROOT / "docs/hugging_face.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_examples_run(number, tmp_path):
    output = python("import torch\ntorch.manual_seed(0)\n" + EXAMPLES[number], cwd=tmp_path)
    assert number != 0 or "model.layers.1.self_attn  LlamaAttention  posenc" in output


def test_every_example_is_run():
    assert len(EXAMPLES) == 2
