/// KVCache in C++: tokens and rows that leave, move or are copied.

#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

using namespace posenc::nn;

namespace {

constexpr int64_t kBatch = 3, kHeads = 2, kRoom = 10, kWidth = 4;

/// Everything that comes with `count` tokens.
struct Tokens {
  explicit Tokens(int64_t count)
      : k(torch::randn({kBatch, kHeads, count, kWidth})),
        v(torch::randn({kBatch, kHeads, count, kWidth})),
        gate_key(torch::randn({kBatch, kHeads, count, kWidth})),
        log_decay(torch::randn({kBatch, 5, count})),
        positions(torch::randint(0, 100, {kBatch, count}, torch::kLong)) {}

  at::Tensor k, v, gate_key, log_decay, positions;
};

void append(KVCache& cache, const Tokens& t) { cache.append(t.k, t.v, t.gate_key, t.positions, t.log_decay); }

KVCache filled(const Tokens& tokens) {
  KVCache cache(KVCacheOptions(kBatch, kHeads, kRoom, kWidth));
  append(cache, tokens);
  return cache;
}

/// Expects the cache to hold what `change` makes of each tensor of the tokens; the axis is that of tokens.
template <typename Change>
void expect_content(const KVCache& cache, const Tokens& t, const Change& change) {
  EXPECT_TRUE(torch::equal(cache.keys(), change(t.k, 2)));
  EXPECT_TRUE(torch::equal(cache.values(), change(t.v, 2)));
  EXPECT_TRUE(torch::equal(cache.gate_keys().value(), change(t.gate_key, 2)));
  EXPECT_TRUE(torch::equal(cache.log_decay().value(), change(t.log_decay, 2)));
  EXPECT_TRUE(torch::equal(cache.positions().value(), change(t.positions, 1)));
}

at::Tensor same(const at::Tensor& x, int64_t /*axis*/) { return x; }

TEST(KVCache, RowsAreReorderedWithAllThatBelongsToThem) {
  for (const auto dtype : {torch::kLong, torch::kInt}) {
    const Tokens tokens(4);
    auto cache = filled(tokens);
    const auto index = torch::tensor({2, 0, 2}, dtype);
    cache.reorder(index);
    expect_content(cache, tokens, [&](const at::Tensor& x, int64_t) { return x.index_select(0, index); });
    EXPECT_EQ(cache.length(), 4);
  }
}

TEST(KVCache, AnIndexThatDoesNotFitIsRefusedAndChangesNothing) {
  const Tokens tokens(4);
  auto cache = filled(tokens);
  expect_error([&] { cache.reorder(torch::tensor({0, 1}, torch::kLong)); },
               "KVCache: expected index of shape [3], a row for each, but got [2]");
  expect_error([&] { cache.reorder(torch::tensor({0, 3, 1}, torch::kLong)); },
               "KVCache: expected index to name rows from 0 to 2, but got 3");
  expect_error([&] { cache.reorder(torch::tensor({0, 1, -1}, torch::kInt)); }, "rows from 0 to 2, but got -1");
  expect_error([&] { cache.reorder(torch::zeros({3}, at::TensorOptions(torch::kLong).device(torch::kMeta))); },
               "KVCache: expected index on the cache's device cpu, but got meta");
  expect_error<c10::TypeError>([&] { cache.reorder(torch::zeros({3})); },
                               "KVCache: expected index to be int64 or int32, but got Float");
  expect_content(cache, tokens, same);
}

TEST(KVCache, CropDropsTheLastTokensToo) {
  const Tokens tokens(6);
  auto cache = filled(tokens);
  cache.crop(-2);
  EXPECT_EQ(cache.length(), 4);
  expect_content(cache, tokens, [](const at::Tensor& x, int64_t axis) { return x.slice(axis, 0, 4); });
  expect_error([&] { cache.crop(-5); }, "a length from 0 to 4, or by one from -4, but got -5");
  expect_error([&] { cache.crop(5); }, "a length from 0 to 4, or by one from -4, but got 5");
  cache.crop(-4);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_FALSE(cache.positions() || cache.log_decay());
}

TEST(KVCache, ACopyHoldsTheSameAndGoesOnAlone) {
  const Tokens tokens(4), more(2), others(3);
  auto cache = filled(tokens);
  auto twin = cache.copy();
  expect_content(twin, tokens, same);
  append(cache, more);
  append(twin, others);
  twin.reorder(torch::tensor({1, 1, 1}, torch::kLong));
  EXPECT_TRUE(torch::equal(cache.keys(), torch::cat({tokens.k, more.k}, 2)));
  EXPECT_TRUE(torch::equal(cache.positions().value(), torch::cat({tokens.positions, more.positions}, 1)));
  EXPECT_TRUE(torch::equal(twin.values()[0], torch::cat({tokens.v, others.v}, 2)[1]));
  EXPECT_EQ(twin.length(), 7);
}

TEST(KVCache, ValuesMayHaveAnotherWidthThanKeys) {
  KVCache cache(KVCacheOptions(2, kHeads, kRoom, 192).value_dim(128));
  const auto k = torch::randn({2, kHeads, 3, 192}), v = torch::randn({2, kHeads, 3, 128});
  cache.append(k, v, k);
  const auto [keys, values] = cache.append(k, v, k);
  EXPECT_TRUE(torch::equal(keys, torch::cat({k, k}, 2)));
  EXPECT_TRUE(torch::equal(values, torch::cat({v, v}, 2)));
  expect_error([&] { cache.append(k, k, k); }, "KVCache: expected v of shape [2, 2, 3, 128], but got [2, 2, 3, 192]");
  expect_error([&] { cache.append(k, v, v); }, "KVCache: expected gate_key of shape [2, 2, 3, 192]");
  expect_error([] { KVCache(KVCacheOptions(1, 1, 1, 1).value_dim(0)); },
               "KVCache: expected value_dim to be at least 1, but got 0");
  expect_error([] { KVCache(KVCacheOptions(1 << 16, 1 << 16, 1 << 16, 1).value_dim(2)); },
               "batch_size * num_kv_heads * max_length * ");
}

TEST(KVCache, LeftOutPositionsFollowTheLargestOfEachRow) {
  const auto k = torch::randn({2, kHeads, 2, kWidth}), one = k.narrow(2, 0, 1);
  KVCache cache(KVCacheOptions(2, kHeads, kRoom, kWidth));
  cache.append(k, k, std::nullopt, torch::tensor({{9, 4}, {-7, -5}}, torch::kLong));
  EXPECT_TRUE(torch::equal(cache.next_positions(2).value(), torch::tensor({{10, 11}, {-4, -3}}, torch::kLong)));
  cache.append(one, one);
  EXPECT_TRUE(torch::equal(cache.positions().value(), torch::tensor({{9, 4, 10}, {-7, -5, -4}}, torch::kLong)));
  cache.reset();
  cache.append(one, one);
  EXPECT_FALSE(cache.next_positions(1) || cache.positions());
}

TEST(KVCache, PositionsWithNoKnownNextOneMustNotBeLeftOut) {
  const auto k = torch::randn({1, kHeads, 2, kWidth});
  const auto several = torch::zeros({3, 1, 2}, torch::kLong);
  KVCache cache(KVCacheOptions(1, kHeads, kRoom, kWidth));
  cache.append(k, k);
  cache.append(k, k, std::nullopt, several);
  expect_error([&] { cache.append(k, k); },
               "KVCache: expected positions of the new tokens, since those of cached ones have several axes and "
               "nothing says which come next: pass positions");
  expect_error([&] { cache.append(k, k, std::nullopt, torch::arange(2)); },
               "expected positions with several axes, as cached ones have, but got [2]");
  cache.crop(2);
  cache.append(k, k, std::nullopt, torch::arange(2) + 0.5);
  expect_error([&] { cache.append(k, k); }, "those of cached ones are floating and nothing says");
  expect_error([&] { cache.append(k, k, std::nullopt, several); },
               "expected positions with one axis, as cached ones have, but got [3, 1, 2]");
  EXPECT_EQ(cache.length(), 4);
}

TEST(KVCache, ALayerGoesOnAfterThePositionsOfThePrompt) {
  torch::manual_seed(1);
  Attention attention(AttentionOptions(8, kHeads).with(Rotary(kWidth)));
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 6, 8});
  const auto positions = torch::stack({torch::arange(10, 16), torch::arange(3, 9)});
  KVCache cache(KVCacheOptions(2, kHeads, 6, kWidth));
  const auto call = AttentionForwardOptions().cache(&cache);
  auto prompt = call;
  attention->forward(x.narrow(1, 0, 4), prompt.positions(positions.narrow(1, 0, 4)));
  const auto y = attention->forward(x.narrow(1, 4, 2), call);
  const auto whole = attention->forward(x, AttentionForwardOptions().positions(positions));
  EXPECT_TRUE(torch::allclose(y, whole.narrow(1, 4, 2), 1e-5, 1e-6));
}

/// A layer's cache after an eviction of tokens 4 to 6 of 10, and one that was filled with what is kept.
template <typename... Modules>
void expect_evicted(RotaryEncoding* rotary, const Modules&... encodings) {
  torch::manual_seed(1);
  constexpr int64_t embed_dim = 32, heads = 4, head_dim = 8;
  Attention attention(AttentionOptions(embed_dim, heads).num_kv_heads(kHeads).with(encodings...));
  attention->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 11, embed_dim}, torch::kDouble);
  KVCache cache(KVCacheOptions(2, kHeads, 11, head_dim).dtype(torch::kDouble));
  auto anew = cache.copy();
  const auto fill = [&](KVCache& each, const at::Tensor& part) {
    return attention->forward(part, AttentionForwardOptions().cache(&each));
  };
  fill(cache, x.narrow(1, 0, 10));
  cache.evict(4, 3, rotary);
  fill(anew, torch::cat({x.narrow(1, 0, 4), x.narrow(1, 7, 3)}, 1));
  const auto close = [](const at::Tensor& a, const at::Tensor& b) { return torch::allclose(a, b, 1e-12, 1e-12); };
  EXPECT_EQ(cache.length(), 7);
  EXPECT_TRUE(close(cache.keys(), anew.keys()));
  EXPECT_TRUE(close(cache.values(), anew.values()));
  for (const auto& [name, state] : anew.token_state()) {
    EXPECT_TRUE(close(cache.token_state().at(name), state)) << name;
  }
  const auto last = x.narrow(1, 10, 1);
  EXPECT_TRUE(close(fill(cache, last), fill(anew, last)));
}

TEST(KVCache, AfterAnEvictionItEqualsOneFilledWithWhatIsKept) {
  Rotary plain(8), part(RotaryOptions(8).rotary_dim(4).interleaved(true));
  Rotary yarn(RotaryOptions(8).scaling(posenc::scaling::Yarn(4.0, 4)));
  XPos xpos(XPosOptions(8).scale_base(8.0).centre(3.0));
  expect_evicted(plain.get(), plain);
  expect_evicted(part.get(), part);
  expect_evicted(yarn.get(), yarn);
  expect_evicted(xpos.get(), xpos);
  expect_evicted(plain.get(), plain, CoPE(CoPEOptions(8, 5).gate(CoPEGate::kKey)));
  expect_evicted(plain.get(), plain, ForgettingBias(32, 4));
  expect_evicted(nullptr, ALiBi(4));
}

TEST(KVCache, PositionsMoveUpWhereTokensAreEvicted) {
  KVCache cache(KVCacheOptions(1, 1, 5, kWidth));
  const auto k = torch::randn({1, 1, 5, kWidth});
  cache.append(k, k, std::nullopt, torch::tensor({3, 9, 4, 12, 15}, torch::kLong));
  cache.evict(1, 2);
  EXPECT_TRUE(torch::equal(cache.positions().value(), torch::tensor({{3, 10, 13}}, torch::kLong)));
  EXPECT_TRUE(torch::equal(cache.keys(), k.index_select(2, torch::tensor({0, 3, 4}, torch::kLong))));
  cache.evict(0, 3);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_FALSE(cache.positions().has_value());
}

TEST(KVCache, WhatCannotBeEvictedIsRefusedAndNothingChanges) {
  const Tokens tokens(6);
  auto cache = filled(tokens);
  expect_error([&] { cache.evict(5, 2); },
               "KVCache: expected to evict tokens from 0 to 6, but got start 5 and count 2");
  expect_error([&] { cache.evict(-1, 2); }, "but got start -1 and count 2");
  expect_error([&] { cache.evict(2, -1); }, "but got start 2 and count -1");
  expect_error([&] { cache.evict(1, 1, AxialRotary(kWidth).get()); },
               "KVCache: expected rotary to have positions on one axis, but got posenc::nn::AxialRotaryImpl with 2");
  expect_error([&] { cache.evict(1, 1, Rotary(2 * kWidth).get()); }, "Rotary: expected key of shape");
  expect_error(
      [&] {
        const auto dynamic = RotaryOptions(kWidth).scaling(posenc::scaling::DynamicNTK(2.0, 16));
        cache.evict(1, 1, Rotary(dynamic).get());
      },
      "Rotary: expected seq_len, one length for all calls, to shift keys whose scaling depends on the length");
  expect_error<c10::NotImplementedError>(
      [&] { MultimodalRotary(MultimodalRotaryOptions(4, {1, 0, 1}))->shift(tokens.k, 1); },
      "MultimodalRotaryImpl: keys that it has rotated cannot be shifted");
  expect_content(cache, tokens, same);
}

/// Calls of up to 4 tokens with a window of 4, in memory for 7 tokens, against one pass over 15.
template <typename... Modules>
void expect_window(const Modules&... encodings) {
  torch::manual_seed(1);
  constexpr int64_t embed_dim = 32, heads = 4, head_dim = 8, length = 15;
  Attention attention(AttentionOptions(embed_dim, heads).num_kv_heads(kHeads).window(4).with(encodings...));
  attention->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, length, embed_dim}, torch::kDouble);
  const auto mask = torch::ones({2, length}, torch::kBool);
  mask[1].slice(0, 4, 7).fill_(false);
  KVCache cache(KVCacheOptions(2, kHeads, 7, head_dim).window(4).dtype(torch::kDouble));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : {3, 1, 4, 1, 1, 2, 3}) {
    const auto call = AttentionForwardOptions().cache(&cache).key_mask(mask.slice(1, 0, begin + count));
    parts.push_back(attention->forward(x.narrow(1, begin, count), call));
    begin += count;
  }
  const auto whole = attention->forward(x, AttentionForwardOptions().key_mask(mask));
  EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), whole, 1e-9, 1e-9));
  EXPECT_EQ(cache.length(), length);
  EXPECT_EQ(cache.dropped(), length - 6);
  EXPECT_EQ(cache.keys().size(2), 6);
}

TEST(KVCache, DecodingWithAWindowEqualsOnePass) {
  expect_window();
  expect_window(Rotary(8));
  expect_window(Sinusoidal(32), ALiBi(4));
  expect_window(T5RelativeBias(T5RelativeBiasOptions(4).num_buckets(8).max_distance(16)));
  expect_window(FIRE(4));
  expect_window(SelfExtend(SelfExtendOptions(8).group(2).window(4)));
  expect_window(XPos(8), CoPE(CoPEOptions(8, 5).gate(CoPEGate::kKey)));
  expect_window(Rotary(8), ForgettingBias(32, 4));
}

TEST(KVCache, ACallThatRaisesLeavesAWindowAsItWas) {
  Attention attention(AttentionOptions(8, kHeads).window(3).with(Rotary(kWidth)));
  const torch::NoGradGuard no_grad;
  KVCache cache(KVCacheOptions(1, kHeads, 4, kWidth).window(3));
  const auto call = AttentionForwardOptions().cache(&cache);
  const auto x = torch::randn({1, 2, 8});
  attention->forward(x, call);
  attention->forward(x, call);
  const auto keys = cache.keys(), before = keys.clone();
  auto masked = call;
  EXPECT_THROW(attention->forward(x, masked.key_mask(torch::ones({1, 5}, torch::kBool))), c10::ValueError);
  EXPECT_EQ(cache.length(), 4);
  EXPECT_EQ(cache.dropped(), 0);
  EXPECT_TRUE(torch::equal(cache.keys(), before));
  attention->forward(x, call);
  EXPECT_TRUE(torch::equal(keys, before)) << "views of earlier calls stay";
}

TEST(KVCache, WhatDoesNotFitAWindowIsRefused) {
  expect_error([] { KVCache(KVCacheOptions(1, 1, 4, 4).window(5)); },
               "KVCache: expected window to be from 1 to max_length 4, but got 5");
  KVCache cache(KVCacheOptions(1, kHeads, 4, kWidth).window(3));
  const auto k = torch::randn({1, kHeads, 2, kWidth});
  cache.append(k, k);
  cache.append(k, k);
  expect_error([&] { cache.append(torch::cat({k, k}, 2), torch::cat({k, k}, 2)); },
               "KVCache: expected at most max_length 4 tokens, but got 4 new after 2 cached, 6 in all");
  cache.append(k, k);
  EXPECT_EQ(cache.dropped(), 2);
  expect_error([&] { cache.crop(3); },
               "KVCache: expected to crop to a length from 4 to 6, or to 0, as the window of the next token reaches no "
               "further back, but got 3");
  expect_error([&] { cache.evict(2, 1); },
               "KVCache: expected to evict before tokens leave the window 3, but 2 have left it");
  const torch::NoGradGuard no_grad;
  const auto call = AttentionForwardOptions().cache(&cache);
  expect_error(
      [&] { Attention(AttentionOptions(8, kHeads))->forward(torch::zeros({1, 1, 8}), call); },
      "Attention: expected a window of at most 3, that of the cache, which drops what is further back, but got "
      "none");
  cache.reset();
  EXPECT_EQ(cache.dropped(), 0);
  EXPECT_EQ(cache.keys().size(2), 0);
}

}  // namespace
