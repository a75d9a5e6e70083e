"""tools/hf_models.py, which writes docs/models.md, on a few classes."""

import re
import sys

from processes import ROOT, run

PAGE = (ROOT / "docs/models.md").read_text()


def test_the_walk_finds_what_the_page_says(tmp_path):
    names = ["LlamaForCausalLM", "BloomForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration"]
    written = tmp_path / "models.md"
    run(sys.executable, ROOT / "tools/hf_models.py", "--only", f"^({'|'.join(names)})$", "--write", written)
    outcomes = dict(re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", written.read_text(), flags=re.MULTILINE))
    assert outcomes == dict.fromkeys(names, "exact") | {"BloomForCausalLM": "own code"}
    for name, outcome in outcomes.items():
        assert f"| `{name}` | {outcome} |" in PAGE


def test_no_class_on_the_page_differs():
    assert "| exact |" in PAGE and "| differs |" not in PAGE
