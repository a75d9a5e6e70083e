/// Jobs of the backward kernel, and the sums of what several of them add to.

#include "attention/cpu.h"
#include "attention/cpu_jobs.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {

/// Sums of gradients that several jobs add to, by part of the work, so that they can be added up in a fixed order.
template <typename T>
class SharedGradients {
 public:
  SharedGradients(const Call& c, const Sizes& n, const Rules<T>& rules, int64_t parts, const std::vector<bool>& wants)
      : n_(n), parts_(parts), entries_(rules.table_entries()) {
    const auto sums = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
    if (wants[kDistanceBias]) {
      table = at::zeros({n.batch, parts, n.heads, entries_}, sums);
    }
    if (wants[kSlopes]) {
      slopes = at::zeros({n.batch, parts, n.heads}, sums);
    }
    if (wants[kBias]) {
      bias = at::zeros(c[kBias].sizes(), sums.dtype(c10::CppTypeToScalarType<T>::value));
      expanded_bias_ = bias.expand({n.batch, n.heads, n.queries, n.keys});
    }
  }

  void enter(BackwardJob<T>& job, int64_t batch, int64_t part, int64_t head) const {
    const int64_t at = (batch * parts_ + part) * n_.heads + head;
    job.grad_table = table.defined() ? table.mutable_data_ptr<double>() + at * entries_ : nullptr;
    job.grad_slope = slopes.defined() ? slopes.mutable_data_ptr<double>() + at : nullptr;
    job.grad_bias = bias.defined() ? mutable_rows_of(expanded_bias_, batch, head) : MutableRows{};
  }

  Tensor table, slopes, bias;

 private:
  const Sizes& n_;
  int64_t parts_, entries_;
  Tensor expanded_bias_;
};

/// The rows of one head's keys (or values) that parts of the work add gradients to, and their sum into the result.
template <typename T>
struct KeyGradients {
  KeyGradients(bool wanted, const Tensor& like, int64_t parts)
      : result(wanted ? at::empty_like(like) : Tensor()), row(whole_vectors<T>(like.size(3))) {
    if (wanted) {
      sums = at::zeros({like.size(0), like.size(1), parts, like.size(2), row},
                       like.options().dtype(c10::CppTypeToScalarType<T>::value));
    }
  }
  T* part(int64_t batch, int64_t group, int64_t part) const {
    if (!sums.defined()) {
      return nullptr;
    }
    const int64_t index = (batch * sums.size(1) + group) * sums.size(2) + part;
    return sums.mutable_data_ptr<T>() + index * sums.size(3) * row;
  }
  void finish() const {
    if (result.defined()) {
      result.copy_((sums.size(2) == 1 ? sums.select(2, 0) : sums.sum(2)).narrow(3, 0, result.size(3)));
    }
  }
  Tensor result, sums;
  int64_t row;
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
  const SharedGradients<T> shared(c, n, rules, parts, wants);
  const KeyGradients<T> grad_key(wants[kKey], c.key(), parts), grad_value(wants[kValue], c.value(), parts);
  const Tensor grad_query = wants[kQuery] ? at::empty_like(c.query()) : Tensor();
  const Tensor lse = s.lse.contiguous();
  const Tensor grad_lse = s.grad_lse ? s.grad_lse->contiguous() : Tensor();
  const int64_t seed = s.seed.item<int64_t>();
  const int64_t size = KernelsOf<T>::backward_workspace(n.width, n.value_width);

  at::parallel_for(0, pairs * parts, serial ? pairs * parts : 1, [&](int64_t begin, int64_t end) {
    Memory& memory = thread_memory();
    T* workspace = memory.workspace.get<T>(size);
    HeadRows<T> keys(c.key(), jobs > 1), values(c.value(), jobs > 1);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / (n.groups * parts), g = item / parts % n.groups, part = item % parts;
      for (int64_t i = part; i < jobs; i += parts) {
        const int64_t h = g * n.share + i / n.tiles;
        BackwardJob<T> job{};
        job.visible = rules.visibility(b);
        job.bias = rules.bias(b, h);
        job.dropout = dropout_of(c, seed, b * n.heads + h);
        job.scale = c.score_scale();
        job.width = n.width;
        job.value_width = n.value_width;
        job.first_query = i % n.tiles * kTileQueries;
        job.queries = std::min(kTileQueries, n.queries - job.first_query);
        job.query = rows_of(c.query(), b, h, job.first_query);
        job.out = rows_of(s.out, b, h, job.first_query);
        job.grad_out = rows_of(s.grad_out, b, h, job.first_query);
        job.key = keys.head(b, g, memory.key);
        job.value = values.head(b, g, memory.value);
        job.lse = lse.const_data_ptr<T>() + (b * n.heads + h) * n.queries;
        job.grad_lse = grad_lse.defined() ? grad_lse.const_data_ptr<T>() + (b * n.heads + h) * n.queries : nullptr;
        job.grad_key = grad_key.part(b, g, part);
        job.grad_value = grad_value.part(b, g, part);
        job.grad_key_row = grad_key.row;
        job.grad_value_row = grad_value.row;
        job.grad_query = grad_query.defined() ? mutable_rows_of(grad_query, b, h, job.first_query) : MutableRows{};
        shared.enter(job, b, part, h);
        KernelsOf<T>::backward(job, workspace);
      }
    }
  });
  grad_key.finish();
  grad_value.finish();

  std::vector<Tensor> results;
  for (const int64_t slot : s.wanted) {
    const Tensor& input = c[static_cast<Slot>(slot)];
    const auto like_input = [&](const Tensor& gradient) { return at::empty_like(input).copy_(gradient); };
    switch (slot) {
      case kQuery:
        results.push_back(grad_query);
        break;
      case kKey:
        results.push_back(grad_key.result);
        break;
      case kValue:
        results.push_back(grad_value.result);
        break;
      case kSlopes:
        results.push_back(like_input(input.dim() == 1 ? shared.slopes.sum({0, 1}) : shared.slopes.sum(1)));
        break;
      case kDistanceBias:
        results.push_back(like_input(shared.table.sum({0, 1})));
        break;
      default:
        results.push_back(like_input(shared.bias));
    }
  }
  return results;
}

template std::vector<Tensor> run_backward<float>(const Saved&, const Call&);
template std::vector<Tensor> run_backward<double>(const Saved&, const Call&);

}  // namespace posenc::attention_ops
