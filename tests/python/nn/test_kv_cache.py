"""KVCache: what it holds, in which memory, and what it refuses; the C++ one does the same."""

import copy
import pickle

import pytest
import torch

import posenc
from tolerances import assert_bits

BATCH, HEADS, ROOM, WIDTH = 2, 3, 10, 4

in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def new_cache(namespace=posenc.nn, **options):
    return namespace.KVCache(BATCH, HEADS, ROOM, WIDTH, **options)


def tokens(count, dtype=torch.float32):
    return torch.randn(BATCH, HEADS, count, WIDTH, dtype=torch.float64).to(dtype)


def positions(*numbers):
    return torch.tensor(numbers)


@in_both_languages
def test_append_returns_all_so_far(namespace):
    cache = new_cache(namespace)
    assert cache.length == 0
    parts = [(tokens(n), tokens(n)) for n in (4, 1, 0, 2)]
    for index, (k, v) in enumerate(parts):
        keys, values = cache.append(k, v)
        assert_bits(keys, torch.cat([k for k, _ in parts[: index + 1]], dim=2))
        assert_bits(values, torch.cat([v for _, v in parts[: index + 1]], dim=2))
    assert cache.length == 7
    assert cache.gate_keys is None
    assert cache.positions is None


@in_both_languages
def test_what_append_returns_are_views_of_memory_allocated_once(namespace):
    cache = new_cache(namespace)
    keys, values = cache.append(tokens(3), tokens(3))
    more_keys, more_values = cache.append(tokens(2), tokens(2))
    assert more_keys.data_ptr() == keys.data_ptr()
    assert more_values.data_ptr() == values.data_ptr()
    assert keys.data_ptr() != values.data_ptr()
    cache.reset()
    again, _ = cache.append(tokens(1), tokens(1))
    assert again.data_ptr() == keys.data_ptr()


@in_both_languages
def test_inputs_of_any_layout_are_copied(namespace):
    cache = new_cache(namespace)
    k, v = tokens(5).transpose(1, 2).contiguous().transpose(1, 2), tokens(1).expand(-1, -1, 5, -1)
    keys, values = cache.append(k, v)
    assert_bits(keys, k)
    assert_bits(values, v)
    before = keys.clone()
    k.zero_()
    assert_bits(keys, before)


@in_both_languages
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtype_is_kept(namespace, dtype):
    cache = new_cache(namespace, dtype=dtype)
    k = tokens(2, dtype)
    assert_bits(cache.append(k, k)[0], k)
    with pytest.raises(TypeError, match="expected k of the cache's dtype"):
        cache.append(tokens(2), tokens(2))


@in_both_languages
def test_gate_keys_come_with_every_token(namespace):
    cache = new_cache(namespace)
    gates = [tokens(2), tokens(3)]
    for gate in gates:
        cache.append(torch.zeros_like(gate), torch.zeros_like(gate), gate_key=gate)
    assert_bits(cache.gate_keys, torch.cat(gates, dim=2))
    with pytest.raises(ValueError, match="expected gate_key with every token or with none, .* came with"):
        cache.append(tokens(1), tokens(1))
    cache.reset()
    cache.append(tokens(1), tokens(1))
    assert cache.gate_keys is None
    with pytest.raises(ValueError, match="came without"):
        cache.append(tokens(1), tokens(1), gate_key=tokens(1))


@in_both_languages
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_decays_come_with_every_token(namespace, dtype):
    """As float32 at least: they are summed."""
    cache, wide = new_cache(namespace, dtype=dtype), torch.promote_types(dtype, torch.float32)
    parts = [torch.randn(BATCH, 6, count).to(wide) for count in (2, 3)]
    for part in parts:
        k = tokens(part.shape[2], dtype)
        cache.append(k, k, log_decay=part)
    assert_bits(cache.log_decay, torch.cat(parts, dim=2))
    one = tokens(1, dtype)
    with pytest.raises(ValueError, match="expected log_decay with every token or with none, .* came with"):
        cache.append(one, one)
    with pytest.raises(ValueError, match=r"expected log_decay of shape \(2, 6, 1\), but got \[2, 5, 1\]"):
        cache.append(one, one, log_decay=torch.zeros(2, 5, 1, dtype=wide))
    cache.crop(3)
    assert_bits(cache.log_decay, torch.cat(parts, dim=2)[:, :, :3])
    cache.reset()
    cache.append(one, one)
    assert cache.log_decay is None
    with pytest.raises(ValueError, match="came without"):
        cache.append(one, one, log_decay=torch.zeros(2, 6, 1, dtype=wide))


@in_both_languages
def test_decays_in_half_width_are_refused(namespace):
    cache, k = new_cache(namespace, dtype=torch.bfloat16), tokens(2, torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(TypeError, match="KVCache: expected log_decay to be .*[Ff]loat.* in a cache of .*[Bb][Ff]"):
            cache.append(k, k, log_decay=torch.zeros(2, 6, 2, dtype=dtype))
    assert cache.length == 0


@in_both_languages
def test_positions_are_kept_for_all_tokens_once_any_are_given(namespace):
    cache = new_cache(namespace)
    cache.append(tokens(2), tokens(2))
    cache.append(tokens(2), tokens(2), positions=positions(7, 3))
    assert cache.positions.tolist() == [[0, 1, 7, 3]] * BATCH
    cache.append(tokens(1), tokens(1))
    cache.append(tokens(1), tokens(1), positions=positions([5], [9]))
    cache.append(tokens(1), tokens(1), positions=positions([6]))
    assert cache.positions.tolist() == [[0, 1, 7, 3, 8, 5, 6], [0, 1, 7, 3, 8, 9, 6]]
    assert cache.positions.dtype == torch.int64
    cache.crop(3)
    assert cache.positions.tolist() == [[0, 1, 7]] * BATCH
    cache.append(tokens(2), tokens(2))
    assert cache.positions.tolist() == [[0, 1, 7, 8, 9]] * BATCH


@in_both_languages
def test_left_out_positions_follow_the_largest_of_each_row(namespace):
    cache = new_cache(namespace)
    assert cache.next_positions(3) is None
    cache.append(tokens(2), tokens(2), positions=positions([9, 4], [-7, -5]).int())
    assert cache.next_positions(0) is None
    assert cache.next_positions(3).tolist() == [[10, 11, 12], [-4, -3, -2]]
    assert cache.length == 2
    cache.append(tokens(1), tokens(1))
    assert cache.positions.tolist() == [[9, 4, 10], [-7, -5, -4]]
    cache.crop(0)
    cache.append(tokens(1), tokens(1))
    assert cache.positions is None


UNKNOWN = {
    "are floating": torch.tensor([0.5, 1.5]),
    "have several axes": torch.zeros(3, 1, 2, dtype=torch.int64),
}


@in_both_languages
@pytest.mark.parametrize("kind", UNKNOWN)
def test_positions_with_no_known_next_one_must_not_be_left_out(namespace, kind):
    cache = new_cache(namespace)
    cache.append(tokens(2), tokens(2))
    for _ in range(2):
        cache.append(tokens(2), tokens(2), positions=UNKNOWN[kind])
    with pytest.raises(ValueError, match=f"those of cached ones {kind} and nothing says .*: pass positions"):
        cache.append(tokens(1), tokens(1))
    assert cache.length == 6
    cache.append(tokens(2), tokens(2), positions=UNKNOWN[kind])
    cache.append(tokens(0), tokens(0))
    cache.reset()
    cache.append(tokens(1), tokens(1))
    assert cache.positions is None


@in_both_languages
def test_positions_of_several_axes_are_forgotten_with_their_tokens(namespace):
    cache = new_cache(namespace)
    cache.append(tokens(2), tokens(2))
    cache.append(tokens(2), tokens(2), positions=torch.zeros(3, BATCH, 2))
    cache.crop(3)
    with pytest.raises(ValueError, match="have several axes"):
        cache.next_positions(1)
    cache.crop(2)
    assert cache.next_positions(1) is None


@in_both_languages
def test_one_axis_and_several_do_not_mix(namespace):
    one, several = torch.zeros(2, dtype=torch.int64), torch.zeros(3, 1, 2, dtype=torch.int64)
    for first, second, kind in ((one, several, "one axis"), (several, one, "several axes")):
        cache = new_cache(namespace)
        cache.append(tokens(2), tokens(2), positions=first)
        with pytest.raises(ValueError, match=f"KVCache: expected positions with {kind}, as cached ones have, but got"):
            cache.append(tokens(2), tokens(2), positions=second)
        assert cache.length == 2


@in_both_languages
def test_floating_positions_leave_whole_ones_exact(namespace):
    cache = new_cache(namespace)
    cache.append(tokens(2), tokens(2), positions=positions(16_000_001, 1025))
    cache.append(tokens(1), tokens(1), positions=torch.tensor([0.5], dtype=torch.bfloat16))
    assert cache.positions.tolist() == [[16_000_001, 1025, 0.5]] * BATCH
    cache.append(tokens(1), tokens(1), positions=positions(2))
    assert cache.positions.tolist() == [[16_000_001, 1025, 0.5, 2]] * BATCH


@in_both_languages
def test_whole_and_floating_positions_stay_exact_together(namespace):
    """float32 has no 2**24 + 1."""
    large, broken = positions(2**24 + 1), torch.tensor([0.5])
    for given in ([large, broken], [broken, large], [broken, broken.double(), large], [broken, large, broken]):
        cache = new_cache(namespace)
        for new in given:
            cache.append(tokens(1), tokens(1), positions=new)
        assert cache.positions.dtype == torch.float64
        assert cache.positions.tolist() == [torch.cat([new.double() for new in given]).tolist()] * BATCH


@in_both_languages
def test_floating_positions_alone_keep_their_width(namespace):
    for dtype, kept in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        cache = new_cache(namespace)
        for place in (0.5, 1.5):
            cache.append(tokens(1), tokens(1), positions=torch.tensor([place], dtype=dtype))
        assert cache.positions.dtype == kept
        assert cache.positions.tolist() == [[0.5, 1.5]] * BATCH


@in_both_languages
def test_crop_takes_whole_numbers(namespace):
    """0.0 would pass for 0, and be the length of the cache from then on."""
    cache = new_cache(namespace)
    cache.append(tokens(2), tokens(2))
    with pytest.raises(TypeError, match=r"KVCache: expected to crop to a length that is an int, but got 0\.0|crop\(\)"):
        cache.crop(0.0)
    assert cache.length == 2
    cache.append(tokens(1), tokens(1))


@in_both_languages
def test_crop_and_reset_forget(namespace):
    cache = new_cache(namespace)
    k = tokens(6)
    cache.append(k, k, positions=torch.arange(6))
    cache.crop(4)
    assert cache.length == 4
    new = tokens(1)
    assert_bits(cache.append(new, new)[0], torch.cat([k[:, :, :4], new], dim=2))
    with pytest.raises(ValueError, match="expected to crop to a length from 0 to 5, .* but got 6"):
        cache.crop(6)
    cache.reset()
    assert cache.length == 0
    assert cache.positions is None


@in_both_languages
def test_overflow_names_both_numbers_and_stores_nothing(namespace):
    cache = new_cache(namespace)
    cache.append(tokens(8), tokens(8))
    with pytest.raises(ValueError, match="at most max_length 10 tokens, but got 3 new after 8 cached, 11 in all"):
        cache.append(tokens(3), tokens(3), positions=torch.arange(3))
    assert cache.length == 8
    assert cache.positions is None
    cache.append(tokens(2), tokens(2))
    assert cache.length == ROOM


WRONG = {
    "k without heads": ({"k": torch.zeros(2, 3, 4)}, ValueError, r"expected k of shape \(batch, heads, tokens"),
    "batch of k": ({"k": torch.zeros(1, 3, 2, 4)}, ValueError, r"expected k of shape \[2, 3, 2, 4\], but got \[1, 3"),
    "heads of k": ({"k": torch.zeros(2, 4, 2, 4)}, ValueError, "expected k of shape"),
    "width of k": ({"k": torch.zeros(2, 3, 2, 5)}, ValueError, "expected k of shape"),
    "tokens of v": ({"v": torch.zeros(2, 3, 1, 4)}, ValueError, r"expected v of shape \[2, 3, 2, 4\]"),
    "dtype of v": ({"v": torch.zeros(2, 3, 2, 4).double()}, TypeError, "expected v of the cache's dtype"),
    "tokens of gate_key": ({"gate_key": torch.zeros(2, 3, 1, 4)}, ValueError, "expected gate_key of shape"),
    "dtype of gate_key": ({"gate_key": torch.zeros(2, 3, 2, 4).half()}, TypeError, "expected gate_key of the"),
    "device of k": ({"k": torch.zeros(2, 3, 2, 4, device="meta")}, ValueError, "k on the cache's device cpu, .*meta"),
    "tokens of log_decay": (
        {"log_decay": torch.zeros(2, 6, 1)},
        ValueError,
        r"expected log_decay of shape \(2, heads, 2\), but got \[2, 6, 1\]",
    ),
    "batch of log_decay": ({"log_decay": torch.zeros(1, 6, 2)}, ValueError, "expected log_decay of shape"),
    "device of log_decay": (
        {"log_decay": torch.zeros(2, 6, 2, device="meta")},
        ValueError,
        "log_decay on the cache's device cpu, .*meta",
    ),
    "length of positions": (
        {"positions": torch.arange(3)},
        ValueError,
        r"expected positions of shape \(2\) or \(2, 2\)",
    ),
    "batch of positions": ({"positions": torch.zeros(3, 2)}, ValueError, "expected positions of shape"),
    "rows of axes": (
        {"positions": torch.zeros(2, 3, 2)},
        ValueError,
        r"axes \(axes, 2, 2\), but got \[2, 3, 2\]",
    ),
    "axes of positions": ({"positions": torch.zeros(1, 1, 2, 2)}, ValueError, "expected positions of shape"),
    "dtype of positions": ({"positions": torch.ones(2).bool()}, TypeError, "positions of an integer or floating"),
    "device of positions": ({"positions": torch.ones(2, device="meta")}, ValueError, "positions on the cache's device"),
}


@in_both_languages
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(namespace, case):
    change, error, message = WRONG[case]
    cache = new_cache(namespace)
    with pytest.raises(error, match="KVCache: .*" + message):
        arguments = {"k": tokens(2), "v": tokens(2), **change}
        cache.append(arguments.pop("k"), arguments.pop("v"), **arguments)
    assert cache.length == 0
    assert cache.positions is None
    assert cache.gate_keys is None
    assert cache.log_decay is None


@in_both_languages
@pytest.mark.parametrize("name", ["batch_size", "num_kv_heads", "max_length", "head_dim", "value_dim"])
def test_sizes_must_be_positive(namespace, name):
    sizes = dict.fromkeys(("batch_size", "num_kv_heads", "max_length", "head_dim"), 2)
    with pytest.raises(ValueError, match=f"KVCache: expected {name} to be at least 1, but got 0"):
        namespace.KVCache(**{**sizes, name: 0})


@in_both_languages
def test_values_may_have_another_width_than_keys(namespace):
    """As in multi-head latent attention; gate keys are as wide as keys."""
    cache = namespace.KVCache(2, 3, 8, 192, value_dim=128)
    k, v = torch.randn(2, 3, 5, 192), torch.randn(2, 3, 5, 128)
    for part in (slice(0, 3), slice(3, 5)):
        keys, values = cache.append(k[:, :, part], v[:, :, part], gate_key=-k[:, :, part])
    assert_bits(keys, k)
    assert_bits(values, v)
    assert_bits(cache.values, v)
    assert_bits(cache.gate_keys, -k)
    one = {"k": k[:, :, :1], "v": v[:, :, :1], "gate_key": k[:, :, :1]}
    for name in one:
        wrong = {**one, name: one["k" if name == "v" else "v"]}
        shapes = (r"\[2, 3, 1, 128\]", r"\[2, 3, 1, 192\]")
        expected, actual = shapes if name == "v" else reversed(shapes)
        with pytest.raises(ValueError, match=f"KVCache: expected {name} of shape {expected}, but got {actual}"):
            cache.append(wrong.pop("k"), wrong.pop("v"), **wrong)
    assert cache.length == 5
    cache.reorder(torch.tensor([1, 1]))
    assert_bits(cache.copy().values, v[[1, 1]])


@in_both_languages
def test_dtype_must_be_floating(namespace):
    with pytest.raises(TypeError, match="KVCache: expected a floating dtype"):
        new_cache(namespace, dtype=torch.int64)


@in_both_languages
@pytest.mark.parametrize("name", ["k", "v", "gate_key", "log_decay"])
def test_gradients_are_refused_while_they_are_recorded(namespace, name):
    cache = new_cache(namespace)
    arguments = {"k": tokens(1), "v": tokens(1), "gate_key": tokens(1), "log_decay": torch.zeros(BATCH, 6, 1)}
    arguments[name].requires_grad_()
    k, v = arguments.pop("k"), arguments.pop("v")
    with pytest.raises(RuntimeError, match=f"passes no gradient on, but {name} requires one"):
        cache.append(k, v, **arguments)
    assert cache.length == 0
    with torch.no_grad():
        keys, _ = cache.append(k, v, **arguments)
    assert not keys.requires_grad
    assert not cache.log_decay.requires_grad


@in_both_languages
def test_inference_mode_leaves_nothing_behind(namespace):
    """Made and filled inside inference mode, used outside, and the other way round."""
    with torch.inference_mode():
        cache = new_cache(namespace)
        k, decays = tokens(2), torch.zeros(BATCH, 6, 2)
        cache.append(k, k, gate_key=k, log_decay=decays, positions=torch.arange(2))
        cache.append(k, k, gate_key=k, log_decay=decays, positions=torch.arange(2) + 0.5)
    new = tokens(1)
    keys, _ = cache.append(new, new, gate_key=new, log_decay=torch.zeros(BATCH, 6, 1), positions=positions(9))
    assert not keys.is_inference()
    assert not cache.positions.is_inference()
    assert not cache.log_decay.is_inference()
    with torch.inference_mode():
        cache.append(k, k, gate_key=k, log_decay=decays, positions=torch.arange(2))
    assert cache.length == 7


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_go_on_alone(duplicate):
    cache = new_cache()
    k = tokens(2)
    cache.append(k, k, positions=torch.arange(2))
    twin = duplicate(cache)
    twin.append(tokens(1), tokens(1))
    assert (cache.length, twin.length) == (2, 3)
    keys, _ = cache.append(k, k)
    assert_bits(keys[:, :, :2], k)


def test_attributes_and_repr_say_what_it_is():
    cache = new_cache(dtype=torch.bfloat16)
    assert (cache.batch_size, cache.num_kv_heads, cache.max_length, cache.head_dim) == (BATCH, HEADS, ROOM, WIDTH)
    assert cache.dtype == torch.bfloat16
    assert cache.device == torch.device("cpu")
    assert cache.value_dim == WIDTH
    assert repr(cache) == "KVCache(2, 3, 10, 4, value_dim=4, window=None, dtype=torch.bfloat16, device='cpu', length=0)"


def test_default_device_is_taken_and_an_explicit_one_wins():
    with torch.device("meta"):
        assert new_cache().device.type == "meta"
        assert new_cache(device="cpu").device.type == "cpu"


def test_an_empty_first_call_binds_nobody():
    cache = posenc.nn.KVCache(1, 1, 8, 4)
    empty, tokens = torch.zeros(1, 1, 0, 4), torch.randn(1, 1, 2, 4)
    cache.append(empty, empty, gate_key=empty, log_decay=torch.zeros(1, 3, 0))
    cache.append(tokens, tokens)
    assert cache.gate_keys is None and cache.log_decay is None
    cache.reset()
    cache.append(empty, empty, log_decay=torch.zeros(1, 3, 0))
    cache.append(tokens, tokens, log_decay=torch.zeros(1, 2, 2))
    assert cache.log_decay.shape == (1, 2, 2)
