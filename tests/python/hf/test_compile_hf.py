"""torch.compile of models with attn_implementation="posenc": one graph for a forward, two for any number of tokens."""

import pytest
import torch
from transformers import StaticCache

import hf_models
import posenc.hf

pytestmark = pytest.mark.usefixtures("fresh_compiler")
assert posenc.hf.register  # registered by the import


def first_output(outputs):
    return outputs.logits if getattr(outputs, "logits", None) is not None else outputs.last_hidden_state


class Graphs:
    """A backend that runs graphs as they are and keeps them."""

    def __init__(self):
        self.kept = []

    def __call__(self, graph, inputs):
        self.kept.append(graph)
        return graph.forward

    def makes_a_mask(self, tokens):
        """Whether a (tokens, tokens) tensor is made outside of the attention op."""
        nodes = (node for graph in self.kept for node in graph.graph.nodes)
        shapes = (getattr(node.meta.get("example_value"), "shape", ()) for node in nodes)
        return any(tuple(shape[-2:]) == (tokens, tokens) for shape in shapes)


@pytest.mark.parametrize(
    "name, call",
    [
        ("llama", "packed"),
        ("mistral-window", "packed"),
        ("mistral-window", "left padding"),
        ("gpt_oss-sinks", "plain"),
        ("llama4-chunks", "left padding"),
        ("t5", "padded"),
        ("vit", "plain"),
    ],
)
def test_a_forward_is_one_graph(name, call):
    model, given = hf_models.build(name), hf_models.inputs(name)[call]
    with torch.no_grad():
        expected = first_output(model(**given))
        found = first_output(torch.compile(model, fullgraph=True, backend="eager")(**given))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2-softcap", "modernbert-window"])
def test_a_graph_with_a_mask_of_tokens_holds_no_mask_of_pairs(name):
    model, graphs = hf_models.build(name), Graphs()
    given = hf_models.tokens(right=9)
    with torch.no_grad():
        torch.compile(model, fullgraph=True, backend=graphs)(**given)
    assert graphs.kept and not graphs.makes_a_mask(hf_models.TOKENS)


def test_gradients_of_a_compiled_model_equal_those_of_the_model():
    given = hf_models.tokens(right=9) | {"use_cache": False}
    grads = []
    for compiled in (False, True):
        model = hf_models.build("mistral-window")
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
        run(**given).logits[given["attention_mask"].bool()].square().mean().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for plain, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_decoding_with_a_cache_of_fixed_size_takes_two_graphs(name):
    """A prompt, then one token after the other."""
    model, graphs = hf_models.build(name), Graphs()
    ids = hf_models.tokens(2, 40)["input_ids"]
    # Caches are made before graphs, as generate() does.
    cache = StaticCache(model.config, max_cache_len=48)
    cache.early_initialization(2, 2, 16, torch.float32, "cpu")
    given = {hf_models.cache_keyword(): cache}
    compiled = torch.compile(model, fullgraph=True, backend=graphs)
    with torch.no_grad():
        found = [compiled(input_ids=ids[:, :20], **given).logits]
        found += [compiled(input_ids=ids[:, place : place + 1], **given).logits for place in range(20, 40)]
        expected = model(input_ids=ids).logits
    assert len(graphs.kept) <= 2
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-4, atol=1e-4)


def test_generate_with_a_compiled_forward_equals_eager():
    """Masks are made outside of the graph and are its inputs."""
    model = hf_models.build("llama")
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    options |= dict(cache_implementation="static", disable_compile=True)
    given = hf_models.tokens(2, 20, left=5)
    expected = model.generate(**given, **options)
    graphs = Graphs()
    model.forward = torch.compile(model.forward, fullgraph=True, backend=graphs)
    torch.testing.assert_close(model.generate(**given, **options), expected)
    assert len(graphs.kept) <= 3


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_torch_export_equals_the_model(name):
    model = hf_models.build(name)
    given = hf_models.tokens(right=9)
    if name == "llama":
        given["use_cache"] = False
    program = torch.export.export(model, (), given, strict=False)
    torch.testing.assert_close(program.module()(**given).logits, model(**given).logits)
