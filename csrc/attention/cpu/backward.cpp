/// Jobs of the backward kernel, and the sums of what several of them add to.

#include "attention/cpu/jobs.h"
#include "attention/cpu/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {

/// The rows of keys (or values) that parts of the work add gradients to. A single part adds to the result itself where
/// that has rows as the kernels want them.
template <typename T>
class KeyGradients {
 public:
  KeyGradients(const Tensor& like, int64_t parts) {
    const int64_t width = like.size(3), row = whole_vectors<T>(width);
    const auto type = c10::CppTypeToScalarType<T>::value;
    if (parts == 1 && like.scalar_type() == type && like.stride(3) == 1 && row == width) {
      result_ = at::zeros_like(like);
      if (result_.stride(3) == 1) {
        return;
      }
    }
    sums_ = at::zeros({like.size(0), like.size(1), parts, like.size(2), row}, like.options().dtype(type));
    result_ = at::empty_like(like);
  }

  GradientRows<T> part(int64_t batch, int64_t group, int64_t part) const {
    const Tensor& x = sums_.defined() ? sums_ : result_;
    const int64_t of_part = sums_.defined() ? part * sums_.stride(2) : 0;
    return {x.mutable_data_ptr<T>() + batch * x.stride(0) + group * x.stride(1) + of_part, x.stride(x.dim() - 2)};
  }

  Tensor result() const {
    if (sums_.defined()) {
      const Tensor sum = sums_.size(2) == 1 ? sums_.select(2, 0) : sums_.sum(2);
      result_.copy_(sum.narrow(3, 0, result_.size(3)));
    }
    return result_;
  }

 private:
  /// sums_: undefined where the result takes the gradients itself.
  Tensor sums_, result_;
};

/// The rows of a table (entries, width), or of one for each head (heads, entries, width), that workers add gradients
/// to. Entries but `first` .. first + count - 1 have none.
template <typename T>
class TableGradients {
 public:
  TableGradients(const Tensor& table, int64_t first, int64_t count, int64_t workers)
      : like_(table), first_(first), by_head_(table.dim() == 3 && table.size(0) > 1) {
    sums_ = at::zeros({workers, by_head_ ? table.size(0) : 1, count, whole_vectors<T>(table.size(-1))},
                      at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value).device(at::kCPU));
  }

  GradientRows<T> rows(int64_t worker, int64_t head) const {
    const int64_t index = worker * sums_.size(1) + (by_head_ ? head : 0);
    return {sums_.mutable_data_ptr<T>() + index * sums_.size(2) * sums_.size(3), sums_.size(3)};
  }

  /// Like the table.
  Tensor result() const {
    const Tensor sum = sums_.sum(0).narrow(-1, 0, like_.size(-1));
    Tensor gradient = at::zeros_like(like_);
    gradient.narrow(-2, first_, sums_.size(2)).copy_(like_.dim() == 3 ? sum : sum.squeeze(0));
    return gradient;
  }

 private:
  Tensor like_;
  int64_t first_;
  bool by_head_;
  Tensor sums_;
};

/// Sums of gradients that several jobs add to, by part of the work or by worker, so that they can be added up in a
/// fixed order. What is as large as a table is there once for each worker, not for each batch row.
template <typename T>
class SharedGradients {
 public:
  SharedGradients(const Call& c, const Sizes& n, const Rules<T>& rules, int64_t parts, int64_t workers,
                  const std::vector<bool>& wants)
      : c_(c), n_(n), parts_(parts), entries_(rules.table_entries()) {
    const auto sums = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
    if (wants[kDistanceBias]) {
      table_ = at::zeros({workers, n.heads, entries_}, sums);
    }
    if (wants[kSlopes]) {
      slopes_ = at::zeros({n.batch, parts, n.heads}, sums);
    }
    if (wants[kLogDecay]) {
      decay_sums_ = at::zeros({n.batch, parts, n.heads, n.keys}, sums);
    }
    if (wants[kGateBias]) {
      gate_bias_ = at::zeros({n.batch, parts, n.heads}, sums);
    }
    if (wants[kBias]) {
      bias_ = at::zeros(c[kBias].sizes(), sums.dtype(c10::CppTypeToScalarType<T>::value));
      expanded_bias_ = bias_.expand({n.batch, n.heads, n.queries, n.keys});
    }
    for (const Slot slot : {kKey, kValue, kFarKey, kGateKey}) {
      if (wants[slot]) {
        keys_[slot].emplace(c[slot], parts);
      }
    }
    for (const Slot slot : {kRelK, kRelV}) {
      if (wants[slot]) {
        const int64_t unreachable = rules.unreachable_entries();
        tables_[slot].emplace(c[slot], unreachable, c[slot].size(-2) - 2 * unreachable, workers);
      }
    }
    if (wants[kPosEmb]) {
      tables_[kPosEmb].emplace(c[kPosEmb].transpose(1, 2), 0, rules.shape().contextual_entries, workers);
    }
    for (const Slot slot : {kQuery, kFarQuery}) {
      if (wants[slot]) {
        queries_[slot] = at::empty_like(c[slot]);
      }
    }
  }

  void enter(BackwardJob<T>& job, int64_t worker, int64_t batch, int64_t part, int64_t head) const {
    const auto number = [&](const Tensor& x, int64_t entries) {
      const int64_t at = (batch * parts_ + part) * n_.heads + head;
      return x.defined() ? x.mutable_data_ptr<double>() + at * entries : nullptr;
    };
    const auto keys = [&](Slot slot) {
      return keys_[slot] ? keys_[slot]->part(batch, head / n_.share, part) : GradientRows<T>{};
    };
    const auto table = [&](Slot slot) { return tables_[slot] ? tables_[slot]->rows(worker, head) : GradientRows<T>{}; };
    const auto queries = [&](Slot slot) {
      return queries_[slot].defined() ? mutable_rows_of(queries_[slot], batch, head, job.first_query) : MutableRows{};
    };
    job.grad_key = keys(kKey);
    job.grad_value = keys(kValue);
    job.grad_query = queries(kQuery);
    ScoreGradients<T>& to = job.grad_scores;
    to.table = table_.defined() ? table_.mutable_data_ptr<double>() + (worker * n_.heads + head) * entries_ : nullptr;
    to.slope = number(slopes_, 1);
    to.decay_sums = number(decay_sums_, n_.keys);
    to.bias = bias_.defined() ? mutable_rows_of(expanded_bias_, batch, head) : MutableRows{};
    to.relative_key = table(kRelK);
    to.relative_value = table(kRelV);
    to.contextual = table(kPosEmb);
    to.gate_key = keys(kGateKey);
    to.gate_bias = number(gate_bias_, 1);
    to.far_key = keys(kFarKey);
    to.far_query = queries(kFarQuery);
  }

  /// The gradient of an input, like it.
  Tensor result(Slot slot) const {
    const Tensor& input = c_[slot];
    const auto like_input = [&](const Tensor& gradient) { return at::empty_like(input).copy_(gradient); };
    if (keys_[slot]) {
      return keys_[slot]->result();
    }
    switch (slot) {
      case kQuery:
      case kFarQuery:
        return queries_[slot];
      case kRelK:
      case kRelV:
        return like_input(tables_[slot]->result());
      case kPosEmb:
        return like_input(tables_[slot]->result().transpose(1, 2));
      case kSlopes:
        return like_input(input.dim() == 1 ? slopes_.sum({0, 1}) : slopes_.sum(1));
      case kDistanceBias:
        return like_input(table_.sum(0));
      case kLogDecay:
        return like_input(gradient_of_decays_on_cpu(c_, decay_sums_.sum(1)));
      case kGateBias:
        return like_input(gate_bias_.sum({0, 1}));
      default:
        return like_input(bias_);
    }
  }

 private:
  const Call& c_;
  const Sizes& n_;
  int64_t parts_, entries_;
  Tensor table_, slopes_, decay_sums_, gate_bias_, bias_, expanded_bias_;
  std::array<Tensor, kSlots> queries_;
  std::array<std::optional<KeyGradients<T>>, kSlots> keys_;
  std::array<std::optional<TableGradients<T>>, kSlots> tables_;
};

/// Jobs of one batch row and group of heads add to the same keys: they are one item of work, or with few of these and
/// many threads a fixed number of parts with sums of their own.
template <typename T>
std::vector<Tensor> run_backward(const Saved& s, const Call& c) {
  const Sizes n(c);
  const Rules<T> rules(c);
  std::vector<bool> wants(kSlots);
  for (const int64_t slot : s.wanted) {
    wants[slot] = true;
  }
  const bool serial =
      n.products() < kSerialProducts || (wants[kBias] && c[kBias].numel() < n.batch * n.heads * n.queries * n.keys);
  const int64_t pairs = n.batch * n.groups, jobs = n.share * n.tiles;
  const int64_t parts =
      serial || pairs >= at::get_num_threads() ? 1 : std::min(jobs, ceil_div(at::get_num_threads(), pairs));
  const int64_t items = pairs * parts, workers = serial ? 1 : std::min<int64_t>(at::get_num_threads(), items);
  const SharedGradients<T> gradients(c, n, rules, parts, workers, wants);
  const Tensor lse = s.lse.contiguous();
  std::vector<Tensor> state;
  for (const Tensor& x : s.state) {
    state.push_back(x.contiguous());
  }
  const Tensor grad_lse = s.grad_lse ? s.grad_lse->contiguous() : Tensor();
  const int64_t seed = s.seed.item<int64_t>();
  const int64_t size = KernelsOf<T>::backward_workspace(rules.shape());

  const auto work = [&](int64_t worker) {
    T* workspace = thread_memory().workspace.get<T>(size);
    KeyRows<T> keys(c, jobs > 1);
    for (int64_t item = items * worker / workers; item < items * (worker + 1) / workers; ++item) {
      const int64_t b = item / (n.groups * parts), g = item / parts % n.groups, part = item % parts;
      for (int64_t i = part; i < jobs; i += parts) {
        const int64_t h = g * n.share + i / n.tiles;
        BackwardJob<T> job{};
        describe(job, c, n, rules, keys, state, seed, b, h, i % n.tiles * kTileQueries);
        job.out = rows_of(s.out, b, h, job.first_query);
        job.grad_out = rows_of(s.grad_out, b, h, job.first_query);
        job.lse = lse.const_data_ptr<T>() + (b * n.heads + h) * n.queries;
        job.grad_lse = grad_lse.defined() ? grad_lse.const_data_ptr<T>() + (b * n.heads + h) * n.queries : nullptr;
        gradients.enter(job, worker, b, part, h);
        KernelsOf<T>::backward(job, workspace);
      }
    }
  };
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      work(worker);
    }
  });

  std::vector<Tensor> results;
  for (const int64_t slot : s.wanted) {
    results.push_back(gradients.result(static_cast<Slot>(slot)));
  }
  return results;
}

template std::vector<Tensor> run_backward<float>(const Saved&, const Call&);
template std::vector<Tensor> run_backward<double>(const Saved&, const Call&);

}  // namespace posenc::attention_ops
