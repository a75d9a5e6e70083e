"""What importing posenc and posenc.hf does, and does not do."""

from processes import python

WITHOUT = """
import sys
sys.modules["transformers"] = None
"""


def test_posenc_alone_imports_no_transformers_and_registers_nothing():
    python("""
import sys, posenc
assert "transformers" not in sys.modules and "posenc.hf" not in sys.modules
import transformers
assert "posenc" not in transformers.AttentionInterface._global_mapping
assert "hf" in posenc.__all__ and posenc.hf.read_rope is not None
assert "posenc" in transformers.AttentionInterface._global_mapping
""")


def test_importing_posenc_hf_registers_one_attention_and_its_masks():
    python("""
from transformers import AttentionInterface, AttentionMaskInterface
before = [dict(x._global_mapping) for x in (AttentionInterface, AttentionMaskInterface)]
import posenc.hf
after = [dict(x._global_mapping) for x in (AttentionInterface, AttentionMaskInterface)]
for old, new in zip(before, after):
    assert {name: f for name, f in new.items() if name != "posenc"} == old and "posenc" in new
""")


def test_from_pretrained_takes_the_name(tmp_path):
    python(
        """
import torch, transformers, posenc.hf
config = transformers.LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=1)
transformers.LlamaForCausalLM(config).save_pretrained("model")
model = transformers.AutoModelForCausalLM.from_pretrained("model", attn_implementation="posenc")
model(torch.tensor([[1, 2, 3]]))
assert [layer.ran for layer in posenc.hf.report(model)] == ["posenc"]
model.set_attn_implementation("sdpa")
model.set_attn_implementation("posenc")
""",
        cwd=tmp_path,
    )


def test_without_transformers_configurations_are_read_and_the_rest_names_what_to_install():
    python(
        WITHOUT
        + """
import posenc, posenc.hf
assert posenc.nn.Rotary.from_hf({"rope_type": "linear", "factor": 4.0}, head_dim=64).head_dim == 64
try:
    posenc.hf.register()
except ImportError as error:
    assert "pip install 'transformers" in str(error), error
else:
    raise AssertionError("registered without transformers")
"""
    )


def test_the_other_modules_keep_their_names():
    python("""
import posenc
from posenc import hf
assert hf is posenc.hf
from posenc.hf import RopeConfig, multimodal_rotary_arguments, read_rope, rotary_arguments
try:
    posenc.no_such_module
except AttributeError as error:
    assert "no_such_module" in str(error)
""")
